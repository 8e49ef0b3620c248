# SPDX-License-Identifier: Apache-2.0
"""Batching rules of fxattn's JAX primitives for jax.vmap. The axis that vmap maps, of size V, becomes a part of the
batch axis, of size B.

Arrays [V,B,...], with the mapped axis of size V, are reshaped to [V*B,...]. In the score program the batch index b
becomes b % B, where B is the batch size of one mapped call, and a captured array that vmap maps gets the leading index
b // B (_texts.py). If the mapped axis of a call cannot become a part of the batch axis (packed rows, mapped scalars,
sinks or seeds, captured arrays of rank 5, explicit shardings, symbolic shapes), the V mapped calls run one after the
other.
"""
from typing import Any, List, Optional, Sequence, Tuple

import jax
import numpy as np
from jax import lax

from .. import _abi
from ._spec import (WANT_PARAMS, WANT_SINK, WANT_TENSORS, Map, Operands, Spec, forward_rest, gather, is_symbolic,
                    sizes_of)
from ._texts import folded

_MAX_RANK = 5
_BATCHED_SLOTS = (_abi.SLOT_Q_LENGTHS, _abi.SLOT_K_LENGTHS, _abi.SLOT_Q_START)  # slots of arrays [B]


def _front(size: int, dim: Optional[int], x: Any) -> Any:
    """Returns `x` as [V,...] with V = `size`. `dim` is the axis of x that is mapped; None broadcasts x."""
    if dim is None:
        return lax.broadcast(x, (size,))
    return x if dim == 0 else lax.transpose(x, (dim, *[i for i in range(x.ndim) if i != dim]))


def _fold(size: int, dim: Optional[int], x: Any) -> Any:
    x = _front(size, dim, x)
    return lax.reshape(x, (size * x.shape[1], *x.shape[2:]))


def _unfold(size: int, batch: int, x: Any) -> Any:
    return lax.reshape(x, (size, batch, *x.shape[1:]))


def is_unmapped(dims: Sequence[Any]) -> bool:
    """Returns True if no operand is mapped. JAX calls the batching rules even for calls without a mapped operand."""
    return all(dim is None for dim in dims)


def unmapped(primitive: Any, flat: Sequence[Any], params: Any) -> Tuple[List[Any], List[Optional[int]]]:
    """Runs a call once, because jax.vmap maps none of its operands. Returns the results of the call, and None as the
    mapped axis of each result."""
    results = primitive.bind(*flat, **params)
    return results, [None] * len(results)


def _in_turn(primitive: Any, dims: Sequence[Any], flat: Sequence[Any],
             params: Any) -> Tuple[List[Any], List[Optional[int]]]:
    mapped = [lax.transpose(x, (d, *[i for i in range(x.ndim) if i != d])) for x, d in zip(flat, dims) if d is not None]

    def one(entries: Sequence[Any]) -> Any:
        rest = iter(entries)
        return primitive.bind(*[x if d is None else next(rest) for x, d in zip(flat, dims)], **params)
    results = lax.map(one, mapped)
    return results, [0] * len(results)


def _is_sharded(x: Any) -> bool:
    """Returns True if `x` is sharded over a mesh with explicit axes. The mapped axis of a sharded array is not merged
    into the batch axis, because the reshape would move data between devices."""
    return any(getattr(getattr(jax.typeof(x), "sharding", None), "spec", ()))


def _shape_without(x: Any, dim: Optional[int]) -> Any:
    shape = list(x.shape)
    if dim is not None:
        del shape[dim]
    return jax.ShapeDtypeStruct(tuple(shape), x.dtype)


class _Folded:
    """A call under jax.vmap, whose mapped axis is merged into its batch axis. If the mapped axis cannot be merged into
    the batch axis, the attribute `fits` is False, and the attributes spec and ops are not set."""

    def __init__(self, spec: Spec, size: int, ops: Operands, dims: Operands, want: Sequence[int]) -> None:
        apart = [dims.scale, dims.params, dims.bprop_params,
                 [d for slot, d in zip(spec.slots, dims.extras) if slot not in _BATCHED_SLOTS]]
        dropout = bool(spec.flags & _abi.DROPOUT)
        self.spread = [d is not None or WANT_TENSORS + i in want for i, d in enumerate(dims.tensors)]
        self.bprop_spread = [d is not None for d in dims.bprop_tensors]
        ranks = [x.ndim - (d is not None) for x, d, on in zip((*ops.tensors, *ops.bprop_tensors),
                                                              (*dims.tensors, *dims.bprop_tensors),
                                                              (*self.spread, *self.bprop_spread)) if on]
        self.fits = (spec.layout != "thd" and all(d is None for part in apart for d in part)
                     and WANT_SINK not in want and WANT_PARAMS not in want
                     and not any(one.axis == "b" for one in spec.maps) and all(rank < _MAX_RANK for rank in ranks)
                     and not (dropout and (any(self.spread) or any(self.bprop_spread)))
                     and not any(_is_sharded(x) for x in (*ops[:3], *ops.extras))
                     and not any(is_symbolic(x.shape) for x in ops.flat()))
        if self.fits:
            self._make(spec, size, ops, dims, dropout)

    def _make(self, spec: Spec, size: int, ops: Operands, dims: Operands, dropout: bool) -> None:
        shapes = jax.tree.map(_shape_without, ops, dims, is_leaf=lambda x: x is None)
        self.batch = batch = sizes_of(spec, shapes).b
        extras = [_fold(size, d, x) if slot in _BATCHED_SLOTS else x
                  for slot, d, x in zip(spec.slots, dims.extras, ops.extras)]
        if dropout:  # random numbers depend on b: a coordinate table sets b, not program text
            spec = spec._replace(slots=(*spec.slots, _abi.SLOT_MAP_B), maps=(*spec.maps, Map("b", table=True)))
            extras.append(np.tile(np.arange(batch, dtype=np.int32), size))
        else:
            spec = spec._replace(program=self._program(spec.program, batch, self.spread),
                                 bprop=self._program(spec.bprop, batch, self.bprop_spread))
        self.spec = spec
        q, k, v = (_fold(size, d, x) for d, x in zip(dims[:3], ops[:3]))
        self.ops = ops._replace(
            q=q, k=k, v=v, extras=tuple(extras),
            tensors=tuple(_front(size, d, x) if on else x for d, x, on in zip(dims.tensors, ops.tensors, self.spread)),
            bprop_tensors=tuple(_front(size, d, x) if on else x
                                for d, x, on in zip(dims.bprop_tensors, ops.bprop_tensors, self.bprop_spread)))

    @staticmethod
    def _program(program: Any, batch: int, spread: Sequence[bool]) -> Any:
        if program is None:
            return None
        return folded(program, batch, tuple(c.name for c, on in zip(program.captures, spread) if on))


def forward_rule(primitive: Any, axis: Any, flat: Sequence[Any], dims: Sequence[Any], *, spec: Spec, has_scale: bool,
                 **params: Any) -> Tuple[List[Any], List[Optional[int]]]:
    end = len(flat) - forward_rest(spec)
    if is_unmapped(dims):
        return unmapped(primitive, flat, dict(spec=spec, has_scale=has_scale, **params))
    call = _Folded(spec, axis.size, gather(spec, has_scale, flat[:end], False),
                   gather(spec, has_scale, dims[:end], False), ())
    if not call.fits:
        return _in_turn(primitive, dims, flat, dict(spec=spec, has_scale=has_scale, **params))
    rest = [_fold(axis.size, d, x) for x, d in zip(flat[end:], dims[end:])]
    results = primitive.bind(*call.ops.flat(), *rest, spec=call.spec, has_scale=has_scale, **params)
    return [_unfold(axis.size, call.batch, x) for x in results], [0] * len(results)


def backward_rule(primitive: Any, axis: Any, flat: Sequence[Any], dims: Sequence[Any], *, spec: Spec, has_scale: bool,
                  want: Tuple[int, ...], dlse: bool) -> Tuple[List[Any], List[Optional[int]]]:
    end = len(flat) - (4 if dlse else 3)
    params = dict(has_scale=has_scale, want=want, dlse=dlse)
    if is_unmapped(dims):
        return unmapped(primitive, flat, dict(spec=spec, **params))
    call = _Folded(spec, axis.size, gather(spec, has_scale, flat[:end], True),
                   gather(spec, has_scale, dims[:end], True), want)
    if not call.fits:
        return _in_turn(primitive, dims, flat, dict(spec=spec, **params))
    rest = [_fold(axis.size, d, x) for x, d in zip(flat[end:], dims[end:])]
    results = primitive.bind(*call.ops.flat(), *rest, spec=call.spec, **params)
    return [x if one >= WANT_TENSORS else _unfold(axis.size, call.batch, x)
            for one, x in zip(want, results)], [0] * len(results)
