# SPDX-License-Identifier: Apache-2.0
"""Caches prepared calls of fxattn.numpy.attention. An entry of the cache has the filled fxa_problem and fxa_args of a
call. The key of a cache entry has the shapes, strides and dtypes of the arrays, the program and the options. A repeated
call sets only addresses and values of params; the C library still finds the plan in the plan cache of the library and
checks the call.

A call is cached if its only arrays are q, k, v and captured tensors, if no array is copied, and if its options are
numbers, strings or bools. A call with a score function is cached if trace.known() can prove the function unchanged;
trace.known() proves nothing about functions that capture NumPy arrays."""
import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _abi
from ._library import call as call_library
from ._library import context, lib
from ._numpy_call import OPTIONS, Call, Forward
from ._problem import SLOTS, Problem
from ._program import Program
from .trace.entry import known

_MAX_CALLS = 512
_SLOTS = tuple(SLOTS[name] for name in ("q", "k", "v", "o"))
_NUMBERS = (float, int)
_TEXTS = (str, Program, type(None))
_CONSTANT = frozenset((bool, int, float, str, type(None)))  # types whose values never change
_ATTENTION, _BYREF = lib.attention, ctypes.byref
KEPT = tuple(name for name in OPTIONS if name not in ("params", "tensors"))  # options whose values are part of the key
_PLACES = range(len(KEPT))
defaults: Tuple[Any, ...] = ()  # default values of KEPT in attention(); numpy.py sets them
_calls: Dict[Any, "_Known"] = {}


class _Interface(ctypes.Structure):
    """The C struct PyArrayInterface of NumPy's array interface, which array.__array_struct__ points to."""

    _fields_ = [("two", ctypes.c_int), ("nd", ctypes.c_int), ("typekind", ctypes.c_char), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_size_t)]


_interface = ctypes.PYFUNCTYPE(ctypes.POINTER(_Interface), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def address(array: np.ndarray) -> int:
    """Returns the address of an array's data, in half of the time that array.ctypes.data takes."""
    capsule = array.__array_struct__  # owns the struct
    return _interface(capsule, None).contents.data  # type: ignore[no-any-return]


class _Known(NamedTuple):
    """A cached call, without the addresses of its arrays and the values of its params. A _Known holds `problem`, and
    thereby the program, because a cache key may contain the id() of the program, which Python could reuse for another
    object after the program's end."""

    problem: Problem
    args: bytes
    shape: Tuple[int, ...]
    dtype: Any
    param_names: Tuple[str, ...]
    tensor_names: Tuple[str, ...]
    alignments: Tuple[int, ...]  # required alignment [bytes] of q, k, v and each captured tensor


class Found(NamedTuple):
    """The cache key of a call, with the values of its params (`numbers`) and its captured tensors (`arrays`). `numbers`
    and `arrays` are dictionaries by name if the program was given as text, and lists in the program's order if the
    program was traced."""

    key: Any
    numbers: Any
    arrays: Any


def _geometry(array: Any) -> Optional[Tuple[Any, ...]]:
    return (array.shape, array.strides, array.dtype) if type(array) is np.ndarray else None


def _settings(options: Tuple[Any, ...]) -> Optional[Tuple[Any, ...]]:
    """Returns the part of a cache key that stands for the options of a call: (index, value, type) of each option that
    differs from its default. `options` has the values of the options whose names are in KEPT. Returns None if an option
    is mutable, for example an array."""
    settings = []
    for place, value, default in zip(_PLACES, options, defaults):
        if value is default:
            continue
        kind = type(value)
        if kind is float or (kind is tuple and _CONSTANT.issuperset(map(type, value))) or issubclass(kind, np.number):
            value = repr(value)  # 0.0 equals -0.0, and (2.0, 1) equals (2, True)
        elif kind not in _CONSTANT:
            return None
        settings.append((place, value, kind))
    return tuple(settings)


def find(q: Any, k: Any, v: Any, score_mod: Any, mask_mod: Any, params: Any, tensors: Any,
         options: Optional[Tuple[Any, ...]]) -> Optional[Found]:
    """Returns the key, numbers and captured arrays of a call as a Found, or None if the call cannot be cached. Two
    calls with equal keys differ only in the contents of their arrays and the values of their params. `options` has the
    values of the options whose names are in KEPT; None if all options have their defaults."""
    if type(q) is not np.ndarray or type(k) is not np.ndarray or type(v) is not np.ndarray:
        return None
    numbers, arrays = params, tensors
    if numbers is not None and type(numbers) is not dict or arrays is not None and type(arrays) is not dict:
        return None
    numbers, arrays = numbers or (), arrays or ()
    settings = () if options is None else _settings(options)
    if settings is None:
        return None
    source: Any = None
    if callable(score_mod) or callable(mask_mod):
        if numbers or arrays:
            return None
        traced = known(score_mod, mask_mod, "numpy", None, q.dtype if q.dtype == np.float64 else None)
        if traced is None:
            return None
        source, numbers, arrays = id(traced.program), traced.params, traced.tensors
        shapes = tuple(map(_geometry, arrays))
    elif score_mod is not None or mask_mod is not None:
        if not (isinstance(score_mod, _TEXTS) and isinstance(mask_mod, _TEXTS)):
            return None
        kinds = tuple(map(type, numbers.values())) if numbers else ()
        source = (score_mod, mask_mod, tuple(numbers), kinds, tuple(arrays))
        shapes = tuple(map(_geometry, arrays.values())) if arrays else ()
    else:
        if numbers or arrays:
            return None
        shapes = ()
    if None in shapes:
        return None
    key = (q.shape, q.strides, q.dtype, k.shape, k.strides, k.dtype, v.shape, v.strides, v.dtype, source, shapes,
           settings)
    return Found(key, numbers, arrays)


def run(found: Found, q: np.ndarray, k: np.ndarray, v: np.ndarray, threads: Optional[int]) -> Optional[np.ndarray]:
    """Runs a call if it is in the cache and its arrays are aligned. Returns the output of the call; None if the call
    was not run."""
    one = _calls.get(found.key)
    if one is None:
        return None
    numbers, arrays = found.numbers, found.arrays
    if one.param_names:
        numbers = [numbers[name] for name in one.param_names]
    if one.tensor_names:
        arrays = [arrays[name] for name in one.tensor_names]
    out = np.empty(one.shape, one.dtype)
    places = [address(q), address(k), address(v), *map(address, arrays)]
    for place, alignment in zip(places, one.alignments):
        if place % alignment:
            return None
    args = _abi.Args.from_buffer_copy(one.args)
    slot = args.slot
    slot[_SLOTS[0]], slot[_SLOTS[1]], slot[_SLOTS[2]] = places[0], places[1], places[2]
    slot[_SLOTS[3]] = address(out)
    if arrays:
        tensors = (ctypes.c_void_p * len(arrays))(*places[3:])
        args.tensors, args.n_tensors = ctypes.addressof(tensors), len(arrays)
    if numbers:
        params = (ctypes.c_double * len(numbers))(*numbers)
        args.params, args.n_params = ctypes.addressof(params), len(numbers)
    call_library(_ATTENTION, context(threads), _BYREF(one.problem.struct), _BYREF(args))
    return out


def keep(found: Found, call: Call, forward: Forward, given: Sequence[Any]) -> None:
    """Caches `call`, whose `forward` pass has run, if the call meets the conditions in the docstring of this module.
    `given` has q, k and v as the caller passed them."""
    program = call.source.program
    taken: List[Any] = [call.q, call.k, call.v]
    names: Tuple[Tuple[str, ...], Tuple[str, ...]] = ((), ())
    if isinstance(found.key[9], tuple):  # the program was given as text or a Program
        names = (tuple(p.name for p in program.params), tuple(c.name for c in program.captures)) if program else names
        if any(name not in found.numbers for name in names[0]):
            return  # the program has a default value for this param
        given = [*given, *(found.arrays[name] for name in names[1])]
        numbers = [found.numbers[name] for name in names[0]]
    else:
        given = [*given, *found.arrays]
        numbers = list(found.numbers)
    taken += call.tensors
    if (call.tables or call.maps or call.sinks is not None or call.spread or call.layout.packed
            or any(a is not b for a, b in zip(given, taken))):
        return
    # A call with a float value for an int param is not cached, because each value must be checked to be integral.
    if not all(isinstance(x, int if p.type == "int" else _NUMBERS)
               for x, p in zip(numbers, program.params if program else ())):
        return
    if isinstance(found.key[9], int) and found.key[9] != id(program):
        return  # the function was traced again between find() and keep()
    args = _abi.Args.from_buffer_copy(forward.args.struct)
    for index in range(len(args.slot)):
        args.slot[index] = None
    args.tensors, args.n_tensors, args.params, args.n_params = None, 0, None, 0
    if len(_calls) >= _MAX_CALLS:
        for old in list(_calls)[:_MAX_CALLS // 2]:
            _calls.pop(old, None)
    _calls[found.key] = _Known(forward.problem, bytes(args), forward.out.shape, forward.out.dtype, *names, tuple(
                                   array.dtype.alignment for array in taken))
