# SPDX-License-Identifier: Apache-2.0
"""The autograd route: the operators fxattn::fwd and fxattn::bwd as autograd Functions.

The autograd Function Forward runs fxattn::fwd. The gradients of Forward are computed by run_backward(), which runs
fxattn::bwd; with create_graph=True, the autograd Function Backward runs fxattn::bwd, so that autograd records this call
of fxattn::bwd.

The autograd Functions define setup_context(), because functorch requires it. The tensors of a Call are inputs of the
Functions, so that autograd computes gradients of captured tensors, of sinks and of params given as tensors, and detects
captured tensors that are changed in place between the passes. The autograd Functions store the Call (the arguments of
the operator besides q, k and v) without its tensors.

LSE is a differentiable output; the row maxima are not. A second derivative raises an error.
"""
import contextlib
from typing import Any, ContextManager, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from ... import _abi
from .. import operators as ops
from ..call import Call, Results
from ..forward_mode import refuse_these
from ..frames import skip_frame
from . import bypass

below_autograd = torch._C._AutoDispatchBelowAutograd  # a context: the dispatcher skips the Autograd kernels
has_transforms = torch._C._are_functorch_transforms_active
NO_CONTEXT = contextlib.nullcontext()
WANT_QKV = (ops.WANT_Q, ops.WANT_K, ops.WANT_V)


def training_flags(q: Tensor) -> int:
    """Returns the flags that a call with gradients adds: RETURN_LSE, because the backward pass reads LSE, and on a
    device DETERMINISTIC if torch.use_deterministic_algorithms() is on without warn_only. Runs on the host are always
    deterministic."""
    if q.is_cpu or not torch.are_deterministic_algorithms_enabled():
        return _abi.RETURN_LSE
    return _abi.RETURN_LSE | (0 if torch.is_deterministic_algorithms_warn_only_enabled() else _abi.DETERMINISTIC)


def run(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Results:
    """Returns (out, LSE, row maxima) of a call that autograd records. LSE is computed in every case, because the
    backward pass reads LSE."""
    apply = Forward.apply if has_transforms() else apply_forward
    return apply(call.without_tensors(training_flags(q)), q, k, v, *call.all_tensors())


def run_backward(call: Call, tensors: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                 grads: Sequence[Tensor], want: Sequence[int]) -> Sequence[Tensor]:
    """Returns the gradients of the inputs whose codes are in `want`, computed by a run that autograd does not record.
    `tensors`: the tensors that without_tensors() took out of the Call; `call` itself has no tensors."""
    arguments = (q, k, v, *call.arguments(tensors), out, lse, grads, want)
    made = bypass.backward(*arguments)
    if made:
        return made
    if torch.compiler.is_dynamo_compiling():  # Dynamo compiles the backward pass
        return ops.bwd(*arguments)  # type: ignore[no-any-return]
    with below_autograd():
        return ops.bwd(*arguments)  # type: ignore[no-any-return]


# ---- Which gradients -------------------------------------------------------------------------------------------------

def needed_gradients(needs: Sequence[bool], call: Call, first: int) -> Tuple[int, ...]:
    """Returns the list `want` for the backward operator: a code for each input that needs a gradient. `needs` has one
    bool for each input of an autograd Function: that of q at index `first`, then those of k, v, tensors, extras and
    scalars."""
    if needs[first] and needs[first + 1] and needs[first + 2]:
        want: Tuple[int, ...] = WANT_QKV
    else:
        want = tuple([i for i in range(3) if needs[first + i]])
    if len(needs) == first + 3:
        return want
    tensors, slots = first + 3, call.field(ops.SLOTS)
    own = call.field(ops.BPROP_TENSORS) if call.field(ops.BPROP_TEXT) else len(call.tensors)
    if slots >> _abi.SLOT_SINKS & 1 and needs[tensors + len(call.tensors) + ops.sink_index(slots)]:
        want += ops.WANT_SINK,
    if call.scalars and needs[-1]:
        want += ops.WANT_SCALARS,
    return want + tuple([ops.WANT_TENSORS + i for i in range(own) if needs[tensors + i]])


def input_of(one: int, call: Call) -> int:
    """Returns the index, in the list (q, k, v, tensors, extras, scalars), of the input whose code in `want` is
    `one`."""
    if one <= ops.WANT_V:
        return one
    if one == ops.WANT_SINK:
        return 3 + len(call.tensors) + ops.sink_index(call.field(ops.SLOTS))
    return 3 + len(call.tensors) + len(call.extras) if one == ops.WANT_SCALARS else 3 + one - ops.WANT_TENSORS


def gradients(ctx: Any, saved: Sequence[Tensor], dout: Optional[Tensor], dlse: Optional[Tensor],
              first: int) -> Tuple[Any, ...]:
    """Returns the gradients of the arguments of an autograd Function, None for an argument without a gradient. Argument
    `first` is q. `saved` is ctx.saved_tensors, which may be read only once."""
    call, needs = ctx.call, ctx.needs_input_grad
    inputs, out, lse = saved[:-2], saved[-2], saved[-1]
    result: List[Any] = [None] * len(needs)
    want = needed_gradients(needs, call, first)
    if (dout is None and dlse is None) or not want:
        return tuple(result)
    grads: Tuple[Tensor, ...] = (torch.zeros_like(out) if dout is None else dout,)
    if dlse is not None:
        grads += dlse.to(torch.float64 if out.dtype == torch.float64 else torch.float32),
    if torch.is_grad_enabled() or has_transforms():
        got: Sequence[Tensor] = Backward.apply(call, list(want), len(grads), *saved, *grads)
    else:
        got = run_backward(call, inputs[3:], inputs[0], inputs[1], inputs[2], out, lse, grads, want)
    for one, grad in zip(want, got):
        result[first + input_of(one, call)] = grad
    return tuple(result)


# ---- The autograd Functions ------------------------------------------------------------------------------------------

@contextlib.contextmanager
def _modes_on() -> Iterator[None]:
    with torch.enable_grad(), _forward_ad._set_fwd_grad_enabled(True):
        yield


def _outer_levels() -> ContextManager[None]:
    """Returns a context that enables reverse-mode and forward-mode differentiation in the body of Function.forward().
    PyTorch disables reverse and forward mode in Function.forward(), so that in nested functorch transforms the outer
    transforms would treat the result as a constant."""
    return _modes_on() if has_transforms() else NO_CONTEXT


class Forward(torch.autograd.Function):
    """The autograd Function of the operator fxattn::fwd."""

    @staticmethod
    def forward(call: Call, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Results:
        with below_autograd(), _outer_levels():
            return ops.forward(q, k, v, *call.arguments(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[0], output[1])

    @staticmethod
    @skip_frame
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], _: Any) -> Tuple[Any, ...]:
        return gradients(ctx, ctx.saved_tensors, dout, dlse, 1)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        refuse_these(len(ctx.call.tensors), tangents)

    @staticmethod
    def vmap(info: Any, in_dims: Tuple[Any, ...], call: Call, *tensors: Tensor) -> Tuple[Any, Any]:
        from ..vmap import forward_batched
        return forward_batched(info.batch_size, in_dims[1:], call, tensors)


class Backward(torch.autograd.Function):
    """The autograd Function of the operator fxattn::bwd. The Function Backward is used only if autograd records the
    backward pass itself (create_graph=True)."""

    @staticmethod
    def forward(call: Call, want: List[int], n_grads: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        (q, k, v, *rest), out, lse, grads = split_backward(n_grads, tensors)
        with _outer_levels():
            return tuple(run_backward(call, rest, q, k, v, out, lse, grads, want))

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        ctx.n_tensors = len(inputs[0].tensors)

    @staticmethod
    @skip_frame
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(
            "fxattn has no second derivative: its backward pass was differentiated (create_graph=True, gradgradcheck, "
            "a gradient penalty). Compute that part with plain PyTorch operations, or detach the first gradient")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_these(ctx.n_tensors, tangents[3:])

    @staticmethod
    def vmap(info: Any, in_dims: Tuple[Any, ...], call: Call, want: List[int], n_grads: int, *tensors: Tensor) -> Any:
        from ..vmap import backward_batched
        return backward_batched(info.batch_size, in_dims[3:], call, want, n_grads, tensors)


# Function.apply without inspect.signature, which takes longer than the rest of a small call. Function.apply binds
# default arguments for functorch; the Functions have none.
apply_forward = super(torch.autograd.Function, Forward).apply
apply_backward = super(torch.autograd.Function, Backward).apply


class _Parts(NamedTuple):
    inputs: Sequence[Tensor]
    out: Tensor
    lse: Tensor
    grads: Sequence[Tensor]


def split_backward(n_grads: int, tensors: Sequence[Any]) -> _Parts:
    """Splits the tensors of Backward into the inputs of the forward pass, out, lse and the incoming gradients."""
    end = len(tensors) - n_grads
    return _Parts(tensors[:end - 2], tensors[end - 2], tensors[end - 1], tensors[end:])
