# SPDX-License-Identifier: Apache-2.0
"""Wraps the NumPy arrays that a function uses, so that indexing an array with a traced value is traced.

NumPy's method ndarray.__getitem__ converts an index to an int without a dispatch to the tracer. If a function turns out
to index NumPy arrays, a copy of the function is called instead. In the closure, globals and defaults of the copied
function (and the attributes, for a method), each array is replaced by a Captured: a view of the same memory, of a
subclass of ndarray whose indexing is traced. The user's own objects are not modified: only their copies have wrapped
arrays."""
import copy
import functools
import sys
import types
from typing import Any, Dict, Optional

from .indexing import index
from .literals import names_of
from .symbol import recording_of
from .taking import check_take

_captured_class: Optional[type] = None
_DEEPEST = 6


def _make_class(numpy: Any) -> type:
    class Captured(numpy.ndarray):  # type: ignore[misc]
        """A view of a NumPy array whose indexing is traced. `original` is the user's array; None for a slice of the
        user's array."""

        original = None

        def __getitem__(self, key: Any) -> Any:
            rec = recording_of(key if isinstance(key, (tuple, list)) else (key,))
            if rec is None:
                return super().__getitem__(key)
            return index(rec, self, None, key)

        def take(self, indices: Any, axis: Any = None, *args: Any, **rest: Any) -> Any:
            if recording_of((indices,)) is None:
                return super().take(indices, axis, *args, **rest)
            check_take(*args, **rest)
            flat, before = (self.reshape(-1), 0) if axis is None else (self, axis % self.ndim)
            return flat[(slice(None),) * before + (indices,)]
    return Captured


def _wrapped_array(array: Any) -> Any:
    global _captured_class
    if _captured_class is None:
        _captured_class = _make_class(sys.modules["numpy"])
    wrapped = array.view(_captured_class)
    wrapped.original = array
    return wrapped


def wrapped_arrays(mod: Any) -> Any:
    """Returns a copy of a function with the NumPy arrays of the function wrapped; returns the function itself if the
    function uses no NumPy array."""
    return _wrap(mod, {}, 0)


def _wrap(value: Any, done: Dict[int, Any], depth: int) -> Any:
    """Returns a copy of a value in which arrays are wrapped; returns the value itself if the value contains no array.
    `done` maps the id of each visited object to the copy of the object, or to the object itself if it contains no
    array. The ids stay valid, because the traced function keeps visited objects alive."""
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        return _wrapped_array(value)
    if depth > _DEEPEST or id(value) in done:
        return done.get(id(value), value)
    kind = type(value)
    if kind is types.FunctionType:
        return _wrap_function(value, done, depth)
    if kind is types.MethodType:
        return types.MethodType(_wrap(value.__func__, done, depth + 1), _wrap_object(value.__self__, done, depth + 1))
    if kind is functools.partial:
        return functools.partial(_wrap(value.func, done, depth + 1), *[_wrap(x, done, depth + 1) for x in value.args],
                                 **{key: _wrap(x, done, depth + 1) for key, x in value.keywords.items()})
    if kind in (tuple, list):
        items = [_wrap(x, done, depth + 1) for x in value]
        return value if all(a is b for a, b in zip(items, value)) else kind(items)
    if kind is dict:
        pairs = {key: _wrap(x, done, depth + 1) for key, x in value.items()}
        return value if all(pairs[key] is value[key] for key in value) else pairs
    return _wrap_object(value, done, depth) if _is_plain_object(value) else value


def _is_plain_object(value: Any) -> bool:
    """Returns True for an instance of a user's class that has a __dict__."""
    return hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)) and type(
        value).__module__.partition(".")[0] not in ("builtins", "numpy", "torch", "jax", "fxattn")


def _wrap_object(value: Any, done: Dict[int, Any], depth: int) -> Any:
    if not _is_plain_object(value):
        return value
    done[id(value)] = value
    ndarray = sys.modules["numpy"].ndarray
    held: Dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        held.update((name, x) for name, x in vars(kind).items() if isinstance(x, ndarray))
    held.update(vars(value))  # attributes of the object hide attributes of its class
    changed = {name: _wrap(old, done, depth + 1) for name, old in held.items()}
    if all(new is held[name] for name, new in changed.items()):
        return value
    twin = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(twin, name, new)
    done[id(value)] = twin
    return twin


def _wrap_function(function: types.FunctionType, done: Dict[int, Any], depth: int) -> Any:
    done[id(function)] = function  # ends the recursion for a function that refers to itself
    names = function.__globals__
    used = {name: names[name] for name in names_of(function.__code__) if name in names}
    changed = {name: new for name, old in used.items() for new in [_wrap(old, done, depth + 1)] if new is not old}
    cells = []
    for cell in function.__closure__ or ():
        try:
            old = cell.cell_contents
        except ValueError:
            cells.append(cell)
            continue
        new = _wrap(old, done, depth + 1)
        cells.append(cell if new is old else types.CellType(new))
    defaults = tuple(_wrap(x, done, depth + 1) for x in function.__defaults__ or ())
    twin = types.FunctionType(function.__code__, {**names, **changed} if changed else names, function.__name__,
                              defaults or None, tuple(cells) or None)
    if function.__kwdefaults__:
        twin.__kwdefaults__ = {key: _wrap(x, done, depth + 1) for key, x in function.__kwdefaults__.items()}
    done[id(function)] = twin
    return twin
