# SPDX-License-Identifier: Apache-2.0
"""The refusal of forward-mode derivatives: torch.func.jvp, jacfwd, linearize, hessian, dual numbers.

The library has no forward mode. A tangent that reaches an operator is an error on every route; the operator would
otherwise drop it, and PyTorch takes a dropped tangent for 0.

    eager      Forward.jvp and Backward.jvp (_autograd.py), which PyTorch calls with the tangents
    dispatcher the operators' kernels for Autograd, of exported programs too: refuse_tangents
    compiled   the same, when Dynamo runs the operator on fake tensors: a graph break, after which the eager call
               refuses; with fullgraph=True Dynamo's error has the text
"""
from typing import Any, NoReturn, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

_is_batched = torch._C._functorch.is_batchedtensor
_functorch = torch._C._are_functorch_transforms_active
_FIRST = ("q", "k", "v")
_OWN = (Tensor, torch.nn.Parameter)


def _name(place: int, n_tensors: int) -> str:
    """Name of an input by its place among q, k, v, the captured tensors and the rest."""
    if place < len(_FIRST):
        return _FIRST[place]
    return "captured tensor %d" % (place - len(_FIRST)) if place < len(_FIRST) + n_tensors else "another tensor"


def refuse_these(n_tensors: int, tangents: Sequence[Any]) -> NoReturn:
    """Raises with the names of the inputs whose tangents are not None."""
    names = [_name(i, n_tensors) for i, tangent in enumerate(tangents) if tangent is not None]
    raise NotImplementedError(
        "fxattn has no forward-mode derivative: %s a tangent of torch.func.jvp, jacfwd, linearize, hessian or "
        "torch.autograd.forward_ad. Reverse mode is there for first derivatives (backward, torch.func.grad, vjp, "
        "jacrev); for forward mode compute this attention with plain PyTorch operations"
        % (", ".join(dict.fromkeys(names)) + (" has" if len(names) == 1 else " have")))


def _is_possible(q: Tensor) -> bool:
    """Returns False where no tensor of a call can have a tangent; dual levels that Dynamo traces are not PyTorch's
    current one, but tensors are fake ones then."""
    return (_forward_ad._current_level >= 0 or _functorch() or type(q) not in _OWN) \
        and torch._C._is_fwd_grad_enabled()


def _tangent(tensor: Any) -> Any:
    """Returns the tangent at PyTorch's only dual level, at functorch's innermost one; else None. A tensor of vmap has
    none itself: what it wraps comes to the operators' kernels again, below the level of vmap."""
    if not isinstance(tensor, Tensor) or _is_batched(tensor):
        return None
    return _forward_ad.unpack_dual(tensor, level=0).tangent


def refuse_tangents(n_tensors: int, inputs: Sequence[Any]) -> None:
    """Raises if one of q, k, v, the captured tensors and the rest has a tangent."""
    if not _is_possible(inputs[0]):
        return
    tangents = [_tangent(x) for x in inputs]
    if any(x is not None for x in tangents):
        refuse_these(n_tensors, tangents)
