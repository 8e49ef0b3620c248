# SPDX-License-Identifier: Apache-2.0
"""Refuses forward-mode derivatives: torch.func.jvp, jacfwd, linearize, hessian, dual numbers.

The C library computes no forward-mode derivatives. If an input of an operator carries a forward-mode tangent, the call
raises an error, whether the call is eager, compiled or goes through the dispatcher. Without an error, the operator
fxattn::fwd would drop the tangent of its input, and PyTorch would treat a dropped tangent as 0.

* Eager calls: PyTorch calls Forward.jvp and Backward.jvp (routes/autograd.py) with the tangents.
* Calls through the dispatcher, also in exported programs: the Autograd kernels of fxattn::fwd and fxattn::bwd call
  refuse_tangents().
* Compiled calls: the Autograd kernels of fxattn::fwd and fxattn::bwd call refuse_tangents() when Dynamo runs the
  operators on fake tensors. The error of refuse_tangents() becomes a graph break, after which the eager call raises the
  error; with fullgraph=True, Dynamo's own error contains the text of the error of refuse_tangents().
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
    """Returns the name of the input with index `place` in the list q, k, v, captured tensors, other tensors."""
    if place < len(_FIRST):
        return _FIRST[place]
    return "captured tensor %d" % (place - len(_FIRST)) if place < len(_FIRST) + n_tensors else "another tensor"


def refuse_these(n_tensors: int, tangents: Sequence[Any]) -> NoReturn:
    """Raises NotImplementedError with the names of the inputs whose tangents are not None."""
    names = [_name(i, n_tensors) for i, tangent in enumerate(tangents) if tangent is not None]
    raise NotImplementedError(
        "fxattn has no forward-mode derivative: %s a tangent of torch.func.jvp, jacfwd, linearize, hessian or "
        "torch.autograd.forward_ad. Reverse mode is there for first derivatives (backward, torch.func.grad, vjp, "
        "jacrev); for forward mode compute this attention with plain PyTorch operations"
        % (", ".join(dict.fromkeys(names)) + (" has" if len(names) == 1 else " have")))


def _is_possible(q: Tensor) -> bool:
    """Returns False if no tensor of a call can have a tangent; `q` is the first tensor of the call. While Dynamo
    traces, PyTorch's current dual level does not show whether there are dual numbers; _is_possible() then returns True,
    because q is a fake tensor."""
    return (_forward_ad._current_level >= 0 or _functorch() or type(q) not in _OWN) \
        and torch._C._is_fwd_grad_enabled()


def _tangent(tensor: Any) -> Any:
    """Returns the tangent of `tensor` at PyTorch's only dual level or functorch's innermost one; None if there is no
    tangent. A tensor wrapped by vmap has no tangent itself: the kernels of fxattn::fwd get the wrapped tensor later,
    below the level of vmap."""
    if not isinstance(tensor, Tensor) or _is_batched(tensor):
        return None
    return _forward_ad.unpack_dual(tensor, level=0).tangent


def refuse_tangents(n_tensors: int, inputs: Sequence[Any]) -> None:
    """Raises NotImplementedError if one of `inputs` (q, k, v, captured tensors, other tensors) has a tangent."""
    if not _is_possible(inputs[0]):
        return
    tangents = [_tangent(x) for x in inputs]
    if any(x is not None for x in tangents):
        refuse_these(n_tensors, tangents)
