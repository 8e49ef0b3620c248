# SPDX-License-Identifier: Apache-2.0
"""Call, which holds the arguments of the operators fxattn::fwd and fxattn::bwd besides q, k and v, and its construction
from a traced score function.

trace() makes a Traced of score_mod and mask_mod, call_of() makes a Call of the Traced, and route.run(call, q, k, v)
returns out, LSE and row maxima.
"""
import math
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _abi
from . import operators as ops
from .dtensors import refuse_dtensors

Results = Tuple[Tensor, Tensor, Tensor]
SYMBOLIC = (torch.SymFloat, torch.SymInt)
DEFAULT_FLOATS = (math.nan, 0.0)  # the default scale, no dropout


def absent(tensors: Sequence[Any]) -> Tuple[None, ...]:
    """Returns the tensors of a Call without tensors: None for each of `tensors`."""
    return (None,) * len(tensors)


class Call:
    """The arguments of a call of the operators fxattn::fwd and fxattn::bwd besides q, k and v; torch_call.h describes
    each argument. A Call may lack its tensors, which are then None: autograd Functions store the arguments in this
    form, because autograd itself saves the tensors and detects changes of the tensors."""

    __slots__ = ("program", "tensors", "extras", "scalars", "ints", "floats", "config")

    def __init__(self, program: str = "", tensors: Sequence[Any] = (), extras: Sequence[Any] = (),
                 scalars: Sequence[Any] = (), ints: Sequence[int] = (), floats: Sequence[float] = (),
                 config: Sequence[int] = ()) -> None:
        self.program, self.config = program, config
        self.tensors, self.extras, self.scalars = tensors, extras, scalars
        self.ints, self.floats = ints, floats

    def all_tensors(self) -> Tuple[Tensor, ...]:
        return (*self.tensors, *self.extras, *self.scalars)

    def without_tensors(self, flags: int = 0) -> "Call":
        """Returns a Call in which all tensors are None, and `flags` are added to the flags in `config`."""
        return Call(self.program, absent(self.tensors), absent(self.extras), absent(self.scalars), self.ints,
                    self.floats, (self.flags() | flags, *self.config[1:]))

    def arguments(self, tensors: Optional[Sequence[Tensor]] = None) -> Tuple[Any, ...]:
        """Returns the arguments that follow q, k and v in a call of fxattn::fwd or fxattn::bwd. `tensors`, in the order
        of all_tensors(), replace tensors of this Call that are None."""
        if tensors is None:
            return self.tensors, self.extras, self.scalars, self.ints, self.floats, self.config, self.program
        first, second = len(self.tensors), len(self.tensors) + len(self.extras)
        return (tensors[:first], tensors[first:second], tensors[second:], self.ints, self.floats, self.config,
                self.program)

    def field(self, index: int) -> int:
        """Returns a field of `config`; 0 if `config` lacks the field."""
        return self.config[index] if len(self.config) > index else 0

    def flags(self) -> int:
        return self.field(ops.FLAGS)

    def needs_grad(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Returns True if autograd must record the call: gradients are enabled, and a tensor of the call requires a
        gradient."""
        if not torch.is_grad_enabled():
            return False
        if q.requires_grad or k.requires_grad or v.requires_grad:
            return True
        for t in self.tensors:
            if t.requires_grad:
                return True
        return any(t.requires_grad for t in (*self.extras, *self.scalars)) if self.extras or self.scalars else False

    def check_tensors(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Raises an error if a tensor is a DTensor, or is not on the device of q. Without a check of devices, PyTorch's
        dispatcher would run the kernel of one device on tensors of another device."""
        refuse_dtensors(("q", "k", "v"), (q, k, v))
        refuse_dtensors(("a captured tensor",) * len(self.tensors), self.tensors)
        if k.device != q.device or v.device != q.device or any(t.device != q.device for t in self.tensors):
            self._refuse_devices(q, k, v)

    def _refuse_devices(self, q: Tensor, k: Tensor, v: Tensor) -> NoReturn:
        captured = [("a captured tensor of shape %s" % (tuple(t.shape),), t) for t in self.tensors]
        away = [(name, t) for name, t in [("key", k), ("value", v), *captured] if t.device != q.device]
        raise ValueError("query is on %s, %s; all must be on one device"
                         % (q.device, ", ".join("%s on %s" % (name, t.device) for name, t in away)))


# ---- A Call from a traced score function -----------------------------------------------------------------------------

def score_attributes(q: Tensor) -> Dict[str, Any]:
    """Returns the keywords `device` and `dtype` of trace(): the device and dtype of scores that functions read. A
    device None is the host, a dtype None is f32. As in PyTorch, scores are f64 for f64 inputs, else f32."""
    return {"device": None if q.is_cpu else q.device, "dtype": q.dtype if q.dtype is torch.float64 else None}


def split_params(program: Any, params: Sequence[Any]) -> Tuple[List[Any], List[Any]]:
    """Returns (ints, floats): the values of a program's params by type, each in the program's order."""
    ints: List[Any] = []
    floats: List[Any] = []
    for declared, value in zip(program.params, params):
        (ints if declared.type == "int" else floats).append(value)
    return ints, floats


def floats_as_tensor(values: Sequence[Any]) -> Tensor:
    """Returns params as one f64 tensor on the host. Symbolic numbers (SymInt, SymFloat) are converted by multiplying a
    tensor 1 by the number, because most other conversions to a tensor make PyTorch's compiler recompile for each
    value."""
    ones = [value.reshape(()).to(device="cpu", dtype=torch.float64) if isinstance(value, Tensor)
            else torch.ones((), dtype=torch.float64, device="cpu") * value for value in values]
    return torch.stack(ones)


def is_on_device(value: Any) -> bool:
    """Returns True if `value` is a tensor on a device. Reading a number that is on a device would wait for the
    device."""
    return isinstance(value, Tensor) and not value.is_cpu


def has_scalars_on_device(scale: Any, values: Sequence[Any], config: Sequence[int], extras: Sequence[Tensor]) -> bool:
    """Returns True if scale, a param or the seed is on a device, so that the run must read all of these numbers from
    device memory."""
    slots = config[ops.SLOTS] if len(config) > ops.SLOTS else 0
    seeded = slots >> _abi.SLOT_SEED & 1 and is_on_device(extras[ops.extra_index(slots, _abi.SLOT_SEED)])
    return bool(seeded) or is_on_device(scale) or any(map(is_on_device, values))


def call_on_device(program: str, tensors: Sequence[Tensor], scale: Any, values: Sequence[Any], config: Sequence[int],
                   dropout_p: float, extras: Sequence[Tensor], device: torch.device) -> Call:
    """Returns the Call (the operators' arguments besides q, k and v) whose scale, params (in the program's order) and
    seed are on `device`. The host does not wait for the values of scale, params and seed: a CUDA graph that captures
    the call reads the current values in each replay."""
    def to_device(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.reshape(()).to(device=device, dtype=torch.float64)
        return torch.ones((), dtype=torch.float64, device=device) * value

    settings = [*config, *[0] * (ops.SLOTS + 1 - len(config))]
    index = ops.extra_index(settings[ops.SLOTS], _abi.SLOT_SCALE)
    settings[ops.FLAGS] |= _abi.SCALARS_IN_MEMORY
    settings[ops.SLOTS] |= 1 << _abi.SLOT_SCALE
    if settings[ops.SLOTS] >> _abi.SLOT_SEED & 1:
        extras = [*extras[:index], extras[index].to(device=device), *extras[index + 1:]]
    scalars = [torch.stack([to_device(value) for value in values])] if len(values) else []
    return Call(program, tensors, [*extras[:index], to_device(math.nan if scale is None else scale).reshape(1),
                                   *extras[index:]], scalars, (), (math.nan, dropout_p), settings)


def as_tensor(array: Any) -> Tensor:
    """Returns a captured NumPy or JAX array as a tensor, which shares memory with the array if torch allows it."""
    if isinstance(array, Tensor):
        return array
    if hasattr(array, "__dlpack__") and not hasattr(array, "strides"):
        return torch.utils.dlpack.from_dlpack(array)
    if min(array.strides, default=0) < 0 or not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def _are_floats(params: Sequence[Any]) -> bool:
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
    """Returns the Call (the operators' arguments besides q, k and v) of a traced function, or of the identity function
    if `traced` is None."""
    if (dropout_p or isinstance(scale, Tensor)) and has_scalars_on_device(scale, (), config, extras):
        there = scale if is_on_device(scale) else extras[ops.extra_index(config[ops.SLOTS], _abi.SLOT_SEED)]
        tensors, params = ((), ()) if traced is None else (_tensors_of(traced), traced.params)
        return call_on_device("" if traced is None else traced.program.text, tensors, scale, params, config, dropout_p,
                              extras, there.device)
    floats = DEFAULT_FLOATS if scale is None and not dropout_p else (math.nan if scale is None else scale, dropout_p)
    if traced is None:
        return Call("", (), extras, (), (), floats, config)
    program, params = traced.program, traced.params
    if not params:
        return Call(program.text, _tensors_of(traced), extras, (), (), floats, config)
    if program.takes_floats and _are_floats(params):
        return Call(program.text, _tensors_of(traced), extras, (), (), (*floats, *params), config)
    ints, numbers = split_params(program, params)
    ints = [int(x) if isinstance(x, Tensor) else x for x in ints]
    if any(isinstance(x, (Tensor, *SYMBOLIC)) for x in numbers):
        return Call(program.text, _tensors_of(traced), extras, (floats_as_tensor(numbers),), ints, floats, config)
    return Call(program.text, _tensors_of(traced), extras, (), tuple(ints), (*floats, *numbers), config)
