# SPDX-License-Identifier: Apache-2.0
"""Converts a traced score function to a Call of the operators: program text, captured tensors, params."""
import math
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

from .. import _abi
from . import operators as ops
from .routes.autograd import Call

SYMBOLIC = (torch.SymFloat, torch.SymInt)
DEFAULT_FLOATS = (math.nan, 0.0)


def told_of_scores(q: Tensor) -> Dict[str, Any]:
    """Returns the keywords `device` and `dtype` of trace(), which functions see as device and dtype of scores. A device
    None is the host, a dtype None is f32. As in PyTorch, scores are f64 for f64 inputs, else f32."""
    return {"device": None if q.is_cpu else q.device, "dtype": q.dtype if q.dtype is torch.float64 else None}


def split_params(program: Any, params: Sequence[Any]) -> Tuple[List[Any], List[Any]]:
    """Returns (ints, floats): the values of a program's params by type, each in the program's order."""
    ints: List[Any] = []
    floats: List[Any] = []
    for declared, value in zip(program.params, params):
        (ints if declared.type == "int" else floats).append(value)
    return ints, floats


def floats_as_tensor(values: Sequence[Any]) -> Tensor:
    """Returns params as one f64 tensor on the host. Symbolic numbers are multiplied by a tensor 1, because most other
    conversions make compilers recompile for each value."""
    ones = [value.reshape(()).to(device="cpu", dtype=torch.float64) if isinstance(value, Tensor)
            else torch.ones((), dtype=torch.float64, device="cpu") * value for value in values]
    return torch.stack(ones)


def is_there(value: Any) -> bool:
    """Returns True if `value` is a tensor on a device. Reading such a number would wait for the device."""
    return isinstance(value, Tensor) and not value.is_cpu


def has_scalars_there(scale: Any, values: Sequence[Any], config: Sequence[int], extras: Sequence[Tensor]) -> bool:
    """Returns True if scale, a param or the seed is on a device, so that the run must read all of these numbers from
    device memory."""
    slots = config[ops.SLOTS] if len(config) > ops.SLOTS else 0
    seeded = slots >> _abi.SLOT_SEED & 1 and is_there(extras[ops.extra_place(slots, _abi.SLOT_SEED)])
    return bool(seeded) or is_there(scale) or any(map(is_there, values))


def call_there(program: str, tensors: Sequence[Tensor], scale: Any, values: Sequence[Any], config: Sequence[int],
               dropout_p: float, extras: Sequence[Tensor], device: torch.device) -> Call:
    """Returns the Call whose scale, params (in the program's order) and seed are on `device`. Nothing waits for the
    device: a CUDA graph that captures the call reads the current values in each replay."""
    def there(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.reshape(()).to(device=device, dtype=torch.float64)
        return torch.ones((), dtype=torch.float64, device=device) * value

    settings = [*config, *[0] * (ops.SLOTS + 1 - len(config))]
    place = ops.extra_place(settings[ops.SLOTS], _abi.SLOT_SCALE)
    settings[ops.FLAGS] |= _abi.SCALARS_IN_MEMORY
    settings[ops.SLOTS] |= 1 << _abi.SLOT_SCALE
    if settings[ops.SLOTS] >> _abi.SLOT_SEED & 1:
        extras = [*extras[:place], extras[place].to(device=device), *extras[place + 1:]]
    scalars = [torch.stack([there(value) for value in values])] if len(values) else []
    return Call(program, tensors, [*extras[:place], there(math.nan if scale is None else scale).reshape(1),
                                   *extras[place:]], scalars, (), (math.nan, dropout_p), settings)


def check_scale(scale: Any) -> None:
    """Raises an error if `scale` is not a number. A tensor that requires a gradient is refused, because a scale gets no
    gradient."""
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise ValueError("scale is a tensor that requires a gradient, which a scale does not get; give scale=1.0 and "
                         "multiply in the score_mod: score * scale")
    if torch.compiler.is_compiling() or isinstance(scale, Tensor) or scale is None:
        return
    if isinstance(scale, (str, bytes, complex)) or not hasattr(scale, "__float__"):
        raise TypeError("scale is %r; a number is accepted" % (scale,))
    if scale != scale:  # NaN means the default scale to the library
        raise ValueError("scale is nan; a finite number is accepted, None for 1 / sqrt(d)")


def as_tensor(array: Any) -> Tensor:
    """Returns a captured NumPy or JAX array as a tensor, which shares memory with the array if torch allows it."""
    if isinstance(array, Tensor):
        return array
    if hasattr(array, "__dlpack__") and not hasattr(array, "strides"):
        return torch.utils.dlpack.from_dlpack(array)
    if min(array.strides, default=0) < 0 or not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def are_floats(params: Sequence[Any]) -> bool:
    """Returns True if all params have exactly the type float."""
    for value in params:
        if type(value) is not float:
            return False
    return True


def _tensors_of(traced: Any) -> Sequence[Tensor]:
    for tensor in traced.tensors:
        if not isinstance(tensor, Tensor):
            return [as_tensor(x) for x in traced.tensors]
    return traced.tensors


def call_of(traced: Any, scale: Any, config: Sequence[int], dropout_p: float = 0.0,
            extras: Sequence[Tensor] = ()) -> Call:
    """Returns the Call of a traced function, or of the identity function if `traced` is None."""
    if (dropout_p or isinstance(scale, Tensor)) and has_scalars_there(scale, (), config, extras):
        device = scale.device if is_there(scale) else extras[ops.extra_place(config[ops.SLOTS], _abi.SLOT_SEED)].device
        tensors, params = ((), ()) if traced is None else (_tensors_of(traced), traced.params)
        return call_there("" if traced is None else traced.program.text, tensors, scale, params, config, dropout_p,
                          extras, device)
    floats = DEFAULT_FLOATS if scale is None and not dropout_p else (math.nan if scale is None else scale, dropout_p)
    if traced is None:
        return Call("", (), extras, (), (), floats, config)
    program, params = traced.program, traced.params
    if not params:
        return Call(program.text, _tensors_of(traced), extras, (), (), floats, config)
    if program.takes_floats and are_floats(params):
        return Call(program.text, _tensors_of(traced), extras, (), (), (*floats, *params), config)
    ints, numbers = split_params(program, params)
    ints = [int(x) if isinstance(x, Tensor) else x for x in ints]
    if any(isinstance(x, (Tensor, *SYMBOLIC)) for x in numbers):
        return Call(program.text, _tensors_of(traced), extras, (floats_as_tensor(numbers),), ints, floats, config)
    return Call(program.text, _tensors_of(traced), extras, (), tuple(ints), (*floats, *numbers), config)
