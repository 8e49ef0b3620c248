# SPDX-License-Identifier: Apache-2.0
"""The dispatcher route: a call of fxattn::fwd or fxattn::bwd through PyTorch's dispatcher; and the kernels that the
dispatcher calls before those of libfxattn_torch.

For a call of fxattn::fwd (or fxattn::bwd), the dispatcher runs the batching rule of vmap.py under functorch, then the
kernel _forward_kernel (or _backward_kernel) of the dispatch key Autograd, then the fake implementation of operators.py
or the kernel for CPU or CUDA of torch_shim.c. The kernel _batched_kernel of the dispatch key Batched is for
torch.autograd.grad(is_grads_batched=True).

Operators in compiled and exported graphs, and calls of torch.ops.fxattn by users, go through the kernels of this file.
"""
from typing import Any, ContextManager, List, Sequence

import torch
from torch import Tensor

from ... import _abi
from .. import operators as ops
from .. import vmap
from ..call import Call, Results, absent
from ..forward_mode import refuse_tangents
from .autograd import (NO_CONTEXT, apply_backward, apply_forward, below_autograd, has_transforms, run_backward,
                       split_backward, training_flags)


def run(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Results:
    """Returns (out, LSE, row maxima) of a call without gradients."""
    with below_autograd():
        return ops.forward(q, k, v, *call.arguments())


def run_entire(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Results:
    """Returns (out, LSE, row maxima), computed by a call of fxattn::fwd through all kernels of the dispatcher, also
    those of Autograd. torch.jit.trace cannot save an autograd Function, but can save the operator fxattn::fwd."""
    return ops.forward(q, k, v, *call.arguments())


# ---- Kernels of the dispatcher ---------------------------------------------------------------------------------------

def _one_level() -> ContextManager[None]:
    """Returns a context in which an autograd Function may be applied inside a kernel that functorch calls for one of
    its levels. Calls of fxattn::fwd and fxattn::bwd in the returned context go to the next level of functorch, as in
    PyTorch's own Autograd kernels."""
    if not has_transforms():
        return NO_CONTEXT
    from torch._functorch.utils import enable_single_level_autograd_function
    return enable_single_level_autograd_function()  # type: ignore[no-any-return]


def _is_recorded(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _call_of(tensors: Any, extras: Any, scalars: Any, ints: Any, floats: Any, config: Any, program: str) -> Call:
    """Returns a Call without tensors, made from the arguments 3 to 9 of fxattn::fwd or fxattn::bwd."""
    return Call(program, absent(tensors), absent(extras), absent(scalars), ints, floats, tuple(config))


def _forward_kernel(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Results:
    tensors = tuple(t for part in arguments[:3] for t in part)
    refuse_tangents(len(arguments[0]), (q, k, v, *tensors))
    if not _is_recorded((q, k, v, *tensors)):
        with below_autograd():
            return ops.forward(q, k, v, *arguments)
    call = _call_of(*arguments)
    wants_lse = call.flags() & _abi.RETURN_LSE
    call.config = (call.flags() | training_flags(q), *call.config[1:])
    with _one_level():
        out, lse, rows = apply_forward(call, q, k, v, *tensors)
    # If LSE was not requested, lse is empty, as in the fake implementation (operators.py).
    return out, lse if wants_lse else q.new_empty(0, dtype=torch.float64), rows


def _backward_kernel(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> List[Tensor]:
    *common, out, lse, grads, want = arguments
    tensors = tuple(t for part in common[:3] for t in part)
    inputs, call = (q, k, v, *tensors, out, lse, *grads), _call_of(*common)
    refuse_tangents(len(call.tensors), inputs)
    if not _is_recorded(inputs):
        return list(run_backward(call, tensors, q, k, v, out, lse, grads, want))
    with _one_level():
        return list(apply_backward(call, list(want), len(grads), *inputs))


def _batched_kernel(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> List[Tensor]:
    """The kernel of fxattn::bwd for gradients that torch.autograd.grad(is_grads_batched=True) has wrapped by its
    vmap."""
    *common, out, lse, grads, want = arguments
    tensors = tuple(t for part in common[:3] for t in part)
    return vmap.backward_of_batched(_call_of(*common), want, grads, (q, k, v, *tensors, out, lse, *grads))


def _forward_of_vmap(info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Any:
    tensors = [t for part in arguments[:3] for t in part]
    dims = [*in_dims[:3], *(dim for part in in_dims[3:6] for dim in part)]
    results, out_dims = vmap.forward_batched(info.batch_size, dims, _call_of(*arguments), (q, k, v, *tensors),
                                             _forward_by_operator)
    return tuple(results), out_dims


def _forward_by_operator(call: Call, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Results:
    return ops.forward(q, k, v, *call.arguments(tensors))


def _backward_of_vmap(info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Any:
    *common, out, lse, grads, want = arguments
    tensors = [t for part in common[:3] for t in part]
    dims = [*in_dims[:3], *(dim for part in in_dims[3:6] for dim in part), *in_dims[10:12], *in_dims[12]]
    results, out_dims = vmap.backward_batched(info.batch_size, dims, _call_of(*common), want, len(grads),
                                              (q, k, v, *tensors, out, lse, *grads), _backward_by_operator)
    return list(results), list(out_dims)


def _backward_by_operator(call: Call, want: List[int], n_grads: int, *tensors: Tensor) -> Sequence[Tensor]:
    (q, k, v, *rest), out, lse, grads = split_backward(n_grads, tensors)
    return ops.bwd(q, k, v, *call.arguments(rest), out, lse, grads, want)  # type: ignore[no-any-return]


_kernels = torch.library.Library("fxattn", "IMPL")
if hasattr(torch.library, "register_vmap"):
    torch.library.register_vmap("fxattn::fwd", _forward_of_vmap, lib=_kernels)
    torch.library.register_vmap("fxattn::bwd", _backward_of_vmap, lib=_kernels)
_kernels.impl("bwd", _batched_kernel, "Batched")
_kernels.impl("fwd", _forward_kernel, "Autograd")
_kernels.impl("bwd", _backward_kernel, "Autograd")
