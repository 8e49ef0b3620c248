# SPDX-License-Identifier: Apache-2.0
"""Describes arrays of other libraries as captured tensors: the library that an array belongs to, and the storage type.

This file imports no array library: the module of an object's type names the library, which is loaded if the object
exists.
"""
import sys
from typing import Any, Dict, Optional, Tuple

from .place import refuse
from .types import BOOL, FLOAT, INT, STORAGE

# Storage type of each dtype, by the dtype's name without its module.
_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
           "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool", "double": "f64", "float": "f32", "half": "f16"}
# Dtypes without a storage type are converted to the nearest dtype that holds every value (uint64: below 2^63).
_CONVERTED = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "longdouble": "float64", "float128": "float64",
              "float8_e4m3fn": "float32", "float8_e5m2": "float32", "float8_e4m3fnuz": "float32",
              "float8_e5m2fnuz": "float32", "float8_e4m3": "float32"}

_MAX_TYPES = 1024
_library_by_type: Dict[type, Optional[str]] = {}
_storage_by_dtype: Dict[Any, Tuple[Optional[int], int]] = {}


def _library_of_type(kind: type) -> Optional[str]:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package == "torch" and base.__name__ == "Tensor":
            return "torch"
        if package == "numpy" and base.__name__ == "ndarray":
            return "numpy"
        if package in ("jax", "jaxlib") and base.__name__ in ("Array", "ArrayImpl", "Tracer"):
            return "jax"
    return None


def library_of(value: Any) -> Optional[str]:
    """Returns "torch", "numpy" or "jax" for an array of that library; None for any other object."""
    kind = type(value)
    try:
        return _library_by_type[kind]
    except KeyError:
        if len(_library_by_type) >= _MAX_TYPES:  # a caller that defines a class in every call must not fill the cache
            _library_by_type.clear()
        found = _library_by_type[kind] = _library_of_type(kind)
        return found


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype of any library: "float32" for torch.float32, np.float32 and jnp.float32."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2].rstrip("_")


def kind_of_dtype(dtype: Any) -> Optional[int]:
    """Returns the type (types.py) of the values of a dtype of any library; None if the object is no dtype."""
    try:
        return _storage_by_dtype[dtype][1]
    except (KeyError, TypeError):
        pass
    for python_type, kind in ((float, FLOAT), (int, INT), (bool, BOOL)):
        if dtype is python_type:
            return kind
    name = dtype_name(dtype)
    name = _CONVERTED.get(name, name)
    return STORAGE[_DTYPES[name]][1] if name in _DTYPES else None


def _look_up(dtype: Any) -> Tuple[Optional[int], int]:
    name = dtype_name(dtype)
    if name in _DTYPES and getattr(dtype, "isnative", True):
        found: Tuple[Optional[int], int] = STORAGE[_DTYPES[name]]
    elif name in _CONVERTED or name in _DTYPES:
        found = None, STORAGE[_DTYPES[_CONVERTED.get(name, name)]][1]
    else:
        refuse("a captured tensor is of dtype %s; floats, ints and bools are accepted" % dtype)
    _storage_by_dtype[dtype] = found
    return found


def storage_of(array: Any) -> Tuple[Any, int, int, int]:
    """Returns (array, storage type, type of its elements, rank) for capturing an array. The returned array is the
    argument itself, or a converted copy if fxattn has no storage type for the dtype of the argument."""
    dtype = array.dtype
    code, kind = _storage_by_dtype.get(dtype) or _look_up(dtype)
    library = library_of(array)
    if library == "torch" and array.layout is not sys.modules["torch"].strided:
        refuse("a captured tensor has the layout %s; dense (strided) tensors are accepted" % array.layout)
    if library == "numpy":
        if code is None or any(step % array.itemsize for step in array.strides):
            array = array.astype(_CONVERTED.get(dtype_name(dtype), dtype_name(dtype)))
            code, kind = _storage_by_dtype.get(array.dtype) or _look_up(array.dtype)
    elif code is None:
        name = _CONVERTED[dtype_name(dtype)]
        array = array.to(getattr(sys.modules["torch"], name)) if library == "torch" else array.astype(name)
        code, kind = _look_up(array.dtype)
    assert code is not None
    return array, code, kind, array.ndim


def plain_number(value: Any) -> Any:
    """Returns a number as a Python bool, int or float; None for a value that is no number. NumPy scalars and instances
    of subclasses of Python's int and float (such as IntEnum) count as numbers."""
    if type(value) is bool:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):  # np.float64 is a subclass of float
        return float(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.bool_, numpy.integer, numpy.floating)):
        return value.item()
    return None


def symbolic_kind(value: Any) -> Optional[int]:
    """Returns the type of a number that torch.compile leaves symbolic (SymInt, SymFloat, SymBool); None for any other
    value."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.SymInt):
        return INT
    return FLOAT if isinstance(value, torch.SymFloat) else None
