# SPDX-License-Identifier: Apache-2.0
"""Converts arrays of any library to NumPy arrays, describes them to the C library by address, storage type and strides,
and names their axes by a layout ("bhsd"). Arrays of dtypes that the C library does not support raise errors."""
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _abi
from ._errors import ArgumentError, ArgumentTypeError
from ._problem import View
from ._program import DTYPE_NAMES, DTYPE_WORDS, DTYPES

_CODES = {word: DTYPES[name] for word, name in DTYPE_WORDS.items()}
_codes: Dict[Any, int] = {}  # cache of _CODES by dtype object, because dtype.name is slow
NOT_NUMPYS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # dtypes that ml_dtypes defines, not NumPy
FLOATS = (_abi.F64, _abi.F32, _abi.F16, _abi.BF16, _abi.E4M3, _abi.E5M2)
INTS = (_abi.I64, _abi.I32, _abi.I16, _abi.I8, _abi.U8)
ALL = (*FLOATS, *INTS, _abi.B8)


def as_array(value: Any, what: str, accepted: Sequence[int] = ALL) -> np.ndarray:
    """Returns `value` as an aligned NumPy array in native byte order. A NumPy array that is aligned and native is
    returned itself; a tensor of another library in host memory is not copied. `what` is the name of the value in error
    messages. Raises ArgumentTypeError if the storage type is not in `accepted`."""
    if value is None:
        raise ArgumentTypeError("%s is None; an array is accepted" % what)
    if not isinstance(value, np.ndarray):
        value = _foreign(value, what)
    elif type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError("%s is a masked array, whose mask would not be seen; give its .filled() and a mask "
                                "function" % what)
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if value.dtype.itemsize and (not value.flags.aligned or any(s % value.dtype.itemsize for s in value.strides)):
        value = value.copy()
    code_of(value, what, accepted)
    return value


def _foreign(value: Any, what: str) -> np.ndarray:
    try:
        if hasattr(value, "detach") and hasattr(value, "__dlpack__"):
            return _from_torch(value.detach())
        if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        return np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError, ImportError) as error:
        raise ArgumentTypeError("%s, of type %s, cannot be used as an array of the host: %s"
                                % (what, type(value).__name__, error)) from error


def _from_torch(tensor: Any) -> np.ndarray:
    """Returns a PyTorch tensor as a NumPy array. bf16 and fp8 tensors become arrays of the dtypes of ml_dtypes."""
    name = str(tensor.dtype)[len("torch."):]
    if name in NOT_NUMPYS:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
        import torch  # type: ignore[import-not-found,unused-ignore]
        bits = tensor.view(torch.int16 if name == "bfloat16" else torch.uint8)
        return _from_torch(bits).view(getattr(ml_dtypes, name))
    return tensor.numpy() if tensor.device.type == "cpu" else np.from_dlpack(tensor)


def code_of(array: Any, what: str, accepted: Sequence[int] = ALL) -> int:
    """Returns the C library's code (_abi.F32, ...) for the dtype of `array`, which is any object with a dtype. Raises
    ArgumentTypeError if the code of the dtype is not in `accepted`."""
    code = _codes.get(array.dtype)
    if code is None:
        code = _CODES.get(array.dtype.name)
        if code is not None:
            _codes[array.dtype] = code
    if code is None or code not in accepted:
        raise ArgumentTypeError("%s has dtype %s; %s are accepted" % (
            what, array.dtype, ", ".join(name for name, one in _CODES.items() if one in accepted)))
    return code


def view_of(array: np.ndarray, what: str) -> View:
    size = array.dtype.itemsize
    return View(array.ctypes.data, code_of(array, what), array.shape, tuple(s // size for s in array.strides))


def describe(name: str, value: Any) -> Tuple[str, int]:
    """Returns storage type ("f32") and rank of an array, for the declaration of the tensor in a program."""
    array = as_array(value, "tensors[%r]" % name)
    return DTYPE_NAMES[code_of(array, name)], array.ndim


def index_array(value: Any, what: str, shape: Optional[Tuple[Optional[int], ...]] = None) -> np.ndarray:
    """Returns an array of ints as a dense int32 array. Raises ArgumentError if the array does not have the shape
    `shape` (a size of None accepts any size), or has values beyond 32 bits."""
    array = as_array(value, what, INTS if np.size(value) else ALL)  # for an empty list NumPy chooses a float dtype
    if shape is not None and (array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape))):
        raise ArgumentError("%s has shape %s; %s is accepted"
                            % (what, array.shape, "(%s)" % ", ".join("any" if n is None else str(n) for n in shape)))
    if array.size and not -(1 << 31) <= int(array.min()) <= int(array.max()) < 1 << 31:
        raise ArgumentError("%s has values from %d to %d; 32 bits are accepted" % (what, array.min(), array.max()))
    return np.ascontiguousarray(array, dtype=np.int32)


class Layout(NamedTuple):
    """A Layout is the order of the axes of an array. `axes` has the indices of the axes batch, head, position and
    feature; None for an axis that the array lacks. If `packed` is true, the position axis holds the rows of all
    sequences."""

    name: str
    axes: Tuple[Optional[int], Optional[int], int, Optional[int]]
    packed: bool

    def rows(self) -> "Layout":
        """Returns the layout of LSE and row maxima, which is this layout without the feature axis."""
        name = self.name.replace("d", "")
        return Layout(name, tuple(name.find(self.name[i]) if i is not None and self.name[i] in name else None
                                  for i in self.axes), self.packed)  # type: ignore[arg-type]

    def sizes(self, array: np.ndarray) -> Tuple[int, int, int, int]:
        """Returns the sizes of batch, heads, positions and features of `array`; 1 for an axis that the layout lacks."""
        return tuple(1 if i is None else array.shape[i] for i in self.axes)  # type: ignore[return-value]

    def strides(self, array: np.ndarray) -> Tuple[int, int, int, int]:
        size = array.dtype.itemsize
        return tuple(0 if i is None else array.strides[i] // size for i in self.axes)  # type: ignore[return-value]

    def shape(self, sizes: Sequence[int]) -> Tuple[int, ...]:
        """Returns the shape of an array in this layout with `sizes` (batch, heads, positions, features)."""
        out = [0] * sum(i is not None for i in self.axes)
        for i, size in zip(self.axes, sizes):
            if i is not None:
                out[i] = size
        return tuple(out)


def parse_layout(name: Any, what: str) -> Layout:
    """Returns the Layout of a name: "bhsd", "bshd", "sbhd" and every other order; "hsd", "shd" and "sd" without a batch
    or heads; "thd" and "htd" for packed rows. Raises ArgumentError if no layout has the name."""
    letters = name.lower() if isinstance(name, str) else ""
    position = "t" if "t" in letters else "s"
    known = set("hd" + position) if position == "t" else set("bhsd")
    if not {"d", position} <= set(letters) <= known or len(set(letters)) != len(letters):
        raise ArgumentError("%s is %r; bhsd, bshd, sbhd or any order of these letters, without b or h where there is "
                            "no such axis, or thd and htd for packed sequences are accepted" % (what, name))
    axes = tuple(letters.find(letter) if letter in letters else None for letter in ("b", "h", position, "d"))
    return Layout(letters, axes, position == "t")  # type: ignore[arg-type]
