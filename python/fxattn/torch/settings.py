# SPDX-License-Identifier: Apache-2.0
"""Converts the options of attention() to settings and extra tensors of the operators fxattn::fwd and fxattn::bwd.

Options of attention() with a wrong type or rank raise errors in this file; each error names the argument. The C library
checks whether the values of options fit together, and its message becomes the message of the exception.
"""
import operator
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import _abi
from .._options import window_sides
from . import operators as ops

_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_LOWEST, _HIGHEST = -(1 << 31), (1 << 31) - 1
_RANKS = {"cu_q": 1, "cu_k": 1, "pages": 2}


def whole_number(name: str, value: Any, shown: Any = None) -> int:
    """Returns `value` as an int of 64 bits, or unchanged if it is symbolic. Raises TypeError or ValueError for a value
    that is no int of 64 bits, with `shown` in the message if it is given."""
    if not isinstance(value, (int, torch.SymInt)):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError("%s is %r; an int is accepted" % (name, value if shown is None else shown)) from None
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("%s is %r; 64 bits are accepted" % (name, value if shown is None else shown))
    return value


def _symbolic_or_index(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else operator.index(value)


def real_number(name: str, value: Any) -> Any:
    """Returns `value` as a number: an int, a float or a symbolic number. Raises TypeError for a value that is no
    number."""
    if isinstance(value, (int, float, *_SYMBOLIC)):
        return value
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError("%s is %r; a number is accepted" % (name, value)) from None


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


def param_number(name: str, kind: str, value: Any) -> Any:
    """Returns the value of a param as a number. For a float param, a tensor of one element or a symbolic number is
    returned unchanged."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError("params[%r] has %d elements; a number, or a tensor of one element, is accepted"
                         % (name, value.numel()))
    if kind == "float" and isinstance(value, (Tensor, *_SYMBOLIC)) or isinstance(value, torch.SymInt):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError("params[%r] is of type %s; a number is accepted" % (name, type(value).__name__)) from None
    if kind == "float":
        return number
    if not number.is_integer():
        raise ValueError("params[%r] is %r; the program declares it as an int" % (name, value))
    return int(value)


class Settings:
    """Collects the `config` and the extra tensors of a call of fxattn::fwd."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flags = 0
        self.fields: Dict[int, int] = {}
        self.slots: Dict[int, Tensor] = {}

    def flag(self, flag: int, on: Any = True) -> None:
        if on:
            self.flags |= flag

    def integers(self, name: str, slot: int, values: Any, flag: int = 0, count: Optional[int] = None) -> None:
        """Adds `values` (lengths, offsets or page numbers) to the extra tensors of the operators, as an int32 tensor on
        the device of q. `count`: the required number of elements of `values`, if known. Lengths, offsets and page
        numbers beyond 32 bits are clamped, and the C library refuses the clamped values; checking them in Python would
        have to read device memory."""
        if values is None:
            return
        # Arrays of other libraries are copied, because a change before the backward pass would not be detected.
        tensor = values if isinstance(values, Tensor) else torch.tensor(values, device="cpu")
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            if tensor.numel() or isinstance(values, Tensor):  # torch gives an empty list a float dtype
                raise TypeError("%s is of %s; ints are accepted" % (name, tensor.dtype))
        if tensor.dim() != _RANKS.get(name, tensor.dim()):
            raise ValueError("%s has shape %s; %d dimension%s accepted" % (
                name, tuple(tensor.shape), _RANKS[name], " is" if _RANKS[name] == 1 else "s are"))
        if count is not None and not torch.compiler.is_compiling() and tensor.numel() != count:
            raise ValueError("%s has shape %s; (%d,) is accepted" % (name, tuple(tensor.shape), count))
        if tensor.dtype == torch.int64 and slot != _abi.SLOT_Q_START:  # positions are not clamped, because they wrap
            tensor = tensor.clamp(_LOWEST, _HIGHEST)
        self.slots[slot] = tensor.to(device=self.device, dtype=torch.int32).contiguous()
        self.flags |= flag

    def window(self, window: Any) -> None:
        sides = window_sides(window, _symbolic_or_index)
        if sides is not None:
            self.flag(_abi.WINDOW)
            for field, side in zip((ops.WINDOW_LEFT, ops.WINDOW_RIGHT), sides):
                self.fields[field] = whole_number("window", side, window)

    def sizes_of_packed(self, k: Tensor, max_q: Optional[int], max_k: Optional[int]) -> None:
        for offsets, field, longest, name in ((_abi.SLOT_CU_Q, ops.SQ, max_q, "max_q"),
                                              (_abi.SLOT_CU_K, ops.SK, max_k, "max_k")):
            if offsets in self.slots:
                self.fields[field] = (_longest(name, self.slots[offsets]) if longest is None else
                                      whole_number(name, longest))
        if _abi.SLOT_CU_K not in self.slots and _abi.SLOT_PAGES in self.slots:
            room = self.slots[_abi.SLOT_PAGES].shape[-1] * k.shape[2]
            self.fields[ops.SK] = room if max_k is None else whole_number("max_k", max_k)

    def sinks(self, sinks: Union[None, str, Tensor], heads: int) -> None:
        if isinstance(sinks, Tensor):
            if sinks.device != self.device:
                raise ValueError("sinks is on %s, q on %s; both must be on one device" % (sinks.device, self.device))
            if sinks.dim() != 1 or sinks.shape[0] != heads:
                raise ValueError("sinks has shape %s; (%d,), a score per query head, is accepted"
                                 % (tuple(sinks.shape), heads))
            if not sinks.is_floating_point():
                raise TypeError("sinks is of %s; floats are accepted" % sinks.dtype)
            self.flag(_abi.SINKS)
            self.slots[_abi.SLOT_SINKS] = sinks
        elif sinks is not None:
            if not isinstance(sinks, str) or sinks != "zero":
                raise ValueError("sinks is %r; \"zero\", or a tensor of a score per query head, is accepted" % (sinks,))
            self.flag(_abi.SINK_ZERO)

    def dropout(self, dropout_p: Any, seed: Union[None, int, Tensor]) -> Any:
        """Returns the dropout probability as a number, and adds the flag of dropout and the seed if the probability is
        not 0."""
        dropout_p = real_number("dropout_p", dropout_p)
        if type(dropout_p) in (int, float) and not 0 <= dropout_p < 1:
            raise ValueError("dropout_p is %s; 0 <= dropout_p < 1 is accepted" % dropout_p)
        if dropout_p:
            self.flag(_abi.DROPOUT)
            self.slots[_abi.SLOT_SEED] = drawn_seed() if seed is None else seed_tensor(seed)
        return dropout_p

    def config(self) -> Tuple[int, ...]:
        slots = 0
        for slot in self.slots:
            slots |= 1 << slot
        last = max([ops.SLOTS if slots else ops.FLAGS, *self.fields])
        known = {**self.fields, ops.FLAGS: self.flags, ops.SLOTS: slots}
        return tuple(known.get(i, 0) for i in range(last + 1))

    def extras(self) -> List[Tensor]:
        return [self.slots[slot] for slot in sorted(self.slots)]


def _longest(name: str, offsets: Tensor) -> int:
    if not offsets.is_cpu and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
        raise ValueError("%s is not given, and to find the longest sequence is to wait for the device, which a call "
                         "that is recorded into a graph cannot; give it" % name)
    return int((offsets[1:] - offsets[:-1]).max()) if offsets.numel() > 1 else 0


def drawn_seed() -> Tensor:
    """Returns a seed drawn from PyTorch's generator, as a CPU tensor for every default device, because kernels read
    seeds on the host."""
    return torch.randint(0, (1 << 62) - 1, (1,), device="cpu")


def seed_tensor(seed: Any) -> Tensor:
    """Returns `seed`, a signed or unsigned 64-bit int, as an int64 tensor [1]."""
    if isinstance(seed, Tensor):
        if seed.is_floating_point() or seed.is_complex():
            raise TypeError("seed is of %s; an int is accepted" % seed.dtype)
        if seed.numel() != 1:
            raise ValueError("seed has %d elements; one is accepted" % seed.numel())
        return seed.to(torch.int64).reshape(1)
    if isinstance(seed, int) and 1 << 63 <= seed < 1 << 64:
        seed -= 1 << 64
    return torch.as_tensor(whole_number("seed", seed), dtype=torch.int64, device="cpu").reshape(1)


def shape_of_scores(config: Sequence[int], extras: Sequence[Tensor], q: Tensor, k: Tensor) -> Tuple[int, ...]:
    """Returns the sizes of the scores of a call: (batch, heads, rows, keys). For packed rows, batch is the number of
    sequences, and rows and keys are the maximal lengths. For paged K and V, keys is the maximal length of a
    sequence."""
    flags = config[ops.FLAGS]
    packed, paged = flags & _abi.VARLEN, flags & _abi.PAGED
    batch = extras[ops.extra_index(config[ops.SLOTS], _abi.SLOT_CU_Q)].numel() - 1 if packed else q.shape[0]
    return (batch, q.shape[1], config[ops.SQ] if packed else q.shape[2],
            config[ops.SK] if packed or paged else k.shape[2])


def check_mappings(named: Mapping[str, Any]) -> None:
    for name, given in named.items():
        if given is not None and type(given) is not dict and not isinstance(given, Mapping):
            raise TypeError("%s is of type %s; a dictionary by name is accepted" % (name, type(given).__name__))
