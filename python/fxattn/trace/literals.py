# SPDX-License-Identifier: Apache-2.0
"""Finds the float literals in the source of a function. Float literals become constants of the program. Floats from
closures, globals, attributes and defaults become params, so that a new value needs no new program.

CPython pushes the constant object itself, so a float is a literal if it is the same object as a constant of the code. A
float of a closure may be mistaken for a literal, because it may be the same object as a literal of equal value in the
module of the function. If the float of a closure is mistaken for a literal, a new value of the float needs a new
program; results are correct all the same."""
import functools
import struct
import types
from typing import Any, FrozenSet, Set

_DEEPEST = 4


def literals_of(*mods: Any) -> FrozenSet[int]:
    """Returns the ids of the float literals of several functions; the ids are valid while the functions exist."""
    found: Set[int] = set()
    for mod in mods:
        if mod is not None:
            _collect(mod, found, 0)
    return frozenset(found)


def _collect(mod: Any, found: Set[int], depth: int) -> None:
    if type(mod) is types.FunctionType:
        _collect_code(mod.__code__, mod.__globals__, found, depth)
        if depth < _DEEPEST:
            for cell in mod.__closure__ or ():
                try:
                    content = cell.cell_contents
                except ValueError:  # the cell is not yet filled
                    continue
                if callable(content):
                    _collect(content, found, depth + 1)
                elif type(content) in (tuple, list):  # the masks of and_masks
                    for item in content:
                        if callable(item):
                            _collect(item, found, depth + 1)
    elif depth < _DEEPEST:
        if isinstance(mod, types.MethodType):
            _collect(mod.__func__, found, depth + 1)
        elif isinstance(mod, functools.partial):
            _collect(mod.func, found, depth + 1)
        elif not isinstance(mod, type):
            kind = type(mod)
            for name in ("__call__", "forward"):
                inner = getattr(kind, name, None)
                if type(inner) is types.FunctionType and not str(inner.__module__).startswith("torch."):
                    _collect(inner, found, depth + 1)


def _collect_code(code: types.CodeType, names: Any, found: Set[int], depth: int) -> None:
    for constant in code.co_consts:
        if type(constant) is float:
            found.add(id(constant))
        elif type(constant) is types.CodeType:
            _collect_code(constant, names, found, depth)
    if depth < _DEEPEST:
        for name in code.co_names:  # helper functions of the same module
            helper = names.get(name)
            if type(helper) is types.FunctionType and helper.__globals__ is names and helper.__code__ is not code:
                _collect_code(helper.__code__, names, found, depth + 1)


def float_values(mod: Any) -> FrozenSet[float]:
    """Returns the values of a function's float literals, both unrounded and rounded to f32. In a jaxpr, literals are
    found by value, because a jaxpr has no object ids and may have rounded the literals."""
    values: Set[float] = set()
    codes, seen = [getattr(getattr(mod, "func", mod), "__code__", None)], 0
    while seen < len(codes):
        code = codes[seen]
        seen += 1
        for constant in code.co_consts if code is not None else ():
            if type(constant) is float:
                values.add(constant)
                if abs(constant) < 3e38:
                    values.add(struct.unpack("f", struct.pack("f", constant))[0])
            elif type(constant) is types.CodeType:
                codes.append(constant)
    return frozenset(values)


def names_of(code: types.CodeType) -> Set[str]:
    """Returns the names of globals and attributes that a code object and its nested functions use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            found |= names_of(constant)
    return found
