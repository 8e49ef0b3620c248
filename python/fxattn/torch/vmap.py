# SPDX-License-Identifier: Apache-2.0
"""Batching rules of fxattn::fwd and fxattn::bwd for torch.func.vmap. The mapped dimension, of size V, becomes a part of
the batch, and an array of coordinates gives the program the original batch index of each batch entry. If the mapped
dimension, of size V, cannot become a part of the batch (a captured tensor is mapped too, or each of the V entries needs
its own gradient of a captured tensor), the V entries run one after the other.

The batching rules also compute the batched gradients of torch.autograd.grad(is_grads_batched=True) and
jacobian(vectorize=True). PyTorch implements batched gradients by an older vmap, which does not use the batching rules
of autograd Functions.
"""
import itertools
from typing import Any, Callable, List, Sequence, Tuple

import torch
from torch import Tensor

from .. import _abi
from . import operators as ops
from .call import Call
from .routes.autograd import Backward, Forward, split_backward


def _fits(call: Call, in_dims: Sequence[Any]) -> bool:
    """Returns True if the mapped dimension can become a part of the batch: only q, k and v are mapped, and the call has
    no extra tensors, coordinate maps, packed rows, pages or dropout."""
    rest = in_dims[3:3 + len(call.all_tensors())]
    return (all(dim is None for dim in rest) and not call.extras and len(call.config) <= ops.MAPS
            and not call.flags() & (_abi.VARLEN | _abi.PAGED | _abi.DROPOUT))


def _fold(size: int, dim: Any, x: Tensor) -> Tensor:
    """Returns `x` with the mapped dimension, of size `size`, as a part of the batch: [size * B,...]. `dim` is the index
    of the mapped dimension of x; if it is None, x is expanded."""
    x = x.movedim(dim, 0) if dim is not None else x.expand(size, *x.shape)
    return x.reshape(size * x.shape[1], *x.shape[2:])


def _unfold(size: int, x: Tensor) -> Tensor:
    return x.reshape(size, x.shape[0] // size, *x.shape[1:]) if x.dim() > 1 else x.expand(size, *x.shape)


def _folded(size: int, batch: int, call: Call, device: Any) -> Tuple[Call, Tensor]:
    """Returns (`call` with an array of coordinates for b, the array). The array gives each batch entry its original
    batch index."""
    config = [*call.config, *[0] * (ops.MAPS - len(call.config)), 0, _abi.MAP_TABLE, 0, 0, 0, 0]
    config[ops.SLOTS] |= 1 << _abi.SLOT_MAP_B
    table = torch.arange(batch, dtype=torch.int32, device=device).repeat(size)
    return Call(call.program, call.tensors, (None,), call.scalars, call.ints, call.floats, config), table


def _entry(i: int, dim: Any, x: Tensor) -> Tensor:
    return x if dim is None else x.select(dim, i)


def _with_table(rest: Sequence[Tensor], n_tensors: int, table: Tensor) -> List[Tensor]:
    return [*rest[:n_tensors], table, *rest[n_tensors:]]


def _empty_entry(dim: Any, x: Tensor) -> Tensor:
    """Returns a tensor with the shape of one entry of `x`, for a mapped dimension of size 0."""
    return x if dim is None else x.new_zeros(x.movedim(dim, 0).shape[1:])


def _none_of(results: Sequence[Tensor]) -> Tuple[Tensor, ...]:
    return tuple(x.new_empty((0, *x.shape)) for x in results)


def forward_batched(size: int, in_dims: Sequence[Any], call: Call, tensors: Sequence[Tensor],
                    run: Callable[..., Any] = Forward.apply) -> Tuple[Any, Any]:
    """Returns (results with the mapped dimension, index of the mapped dimension in each result). `run` computes one
    call without a mapped dimension: run(call, *tensors)."""
    if size == 0:
        return _none_of(run(call, *map(_empty_entry, in_dims, tensors))), (0, 0, 0)
    if not _fits(call, in_dims):
        runs = [run(call, *(_entry(i, dim, x) for dim, x in zip(in_dims, tensors))) for i in range(size)]
        return tuple(torch.stack(parts) for parts in zip(*runs)), (0, 0, 0)
    q, k, v = (_fold(size, dim, x) for dim, x in zip(in_dims[:3], tensors[:3]))
    folded, table = _folded(size, q.shape[0] // size, call, q.device)
    results = run(folded, q, k, v, *_with_table(tensors[3:], len(call.tensors), table))
    return tuple(_unfold(size, x) for x in results), (0, 0, 0)


def backward_batched(size: int, in_dims: Sequence[Any], call: Call, want: List[int], n_grads: int,
                     tensors: Sequence[Tensor], run: Callable[..., Any] = Backward.apply) -> Tuple[Any, Any]:
    if size == 0:
        results = run(call, want, n_grads, *map(_empty_entry, in_dims, tensors))
        return _none_of(results), (0,) * len(want)
    dims = split_backward(n_grads, in_dims)
    if not _fits(call, dims.inputs) or any(one > ops.WANT_V for one in want):
        runs = [run(call, want, n_grads, *(_entry(i, dim, x) for dim, x in zip(in_dims, tensors)))
                for i in range(size)]
        return tuple(torch.stack(parts) for parts in zip(*runs)), (0,) * len(want)
    inputs, out, lse, grads = split_backward(n_grads, tensors)
    q, k, v = (_fold(size, dim, x) for dim, x in zip(dims.inputs[:3], inputs[:3]))
    folded, table = _folded(size, q.shape[0] // size, call, q.device)
    rest = _with_table(inputs[3:], len(call.tensors), table)
    outputs = (_fold(size, dim, x) for dim, x in zip((dims.out, dims.lse, *dims.grads), (out, lse, *grads)))
    results = run(folded, want, n_grads, q, k, v, *rest, *outputs)
    return tuple(_unfold(size, x) for x in results), (0,) * len(want)


def _has_level(level: int, x: Tensor) -> bool:
    """Returns True if the older vmap has wrapped `x` at `level`, the number of a vmap in a nest of vmaps. _has_level()
    removes `level` from `x` twice, for a mapped size of 0 and of 1, and compares the results: a tensor that lacks the
    level is expanded to the mapped size, so the two results differ."""
    return torch._remove_batch_dim(x, level, 0, 0).shape[0] == torch._remove_batch_dim(x, level, 1, 0).shape[0]


def backward_of_batched(call: Call, want: Sequence[int], grads: Sequence[Tensor],
                        tensors: Sequence[Tensor]) -> List[Tensor]:
    """Returns the gradients for tensors that the older vmap has wrapped: unwraps the mapped dimension, runs the
    batching rule, and wraps the results. The level at which the older vmap has wrapped the tensors is found by trying
    all levels, because a backward pass may run in another thread than the vmap."""
    level = next(i for i in itertools.count(1) if any(_has_level(i, x) for x in grads))
    in_dims = [0 if _has_level(level, x) else None for x in tensors]
    given = [x if dim is None else torch._remove_batch_dim(x, level, 0, 0) for x, dim in zip(tensors, in_dims)]
    size = next(x.shape[0] for x, dim in zip(given, in_dims) if dim is not None)
    results, _ = backward_batched(size, in_dims, call, list(want), len(grads), given)
    return [torch._add_batch_dim(x, 0, level) for x in results]
