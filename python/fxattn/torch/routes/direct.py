# SPDX-License-Identifier: Apache-2.0
"""The direct route: an eager call that bypasses PyTorch's dispatcher (bypass.py). If a call needs gradients, the kernel
runs first, and autograd then records the finished run (FinishedRun)."""
from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor, is_grad_enabled

from ...trace.watch import find
from ..call import DEFAULT_FLOATS, Call, Results, call_of
from ..frames import skip_frame
from . import bypass
from .autograd import WANT_QKV, gradients, training_flags


class FinishedRun(torch.autograd.Function):
    """The autograd Function of a finished direct run. FinishedRun takes the results of the run, (out, LSE) or (out,
    LSE, row maxima); it returns only out of the first, and the second unchanged."""

    @staticmethod
    def forward(ctx: Any, results: Sequence[Tensor], call: Call, *tensors: Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, results[0], results[1])
        if len(results) == 2:
            return results[0]
        ctx.mark_non_differentiable(results[2])
        return tuple(results)

    @staticmethod
    @skip_frame
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor] = None, _: Any = None) -> Tuple[Any, ...]:
        call, saved = ctx.call, ctx.saved_tensors
        if len(saved) == 5 and dout is not None and dlse is None and not torch.is_grad_enabled() \
                and ctx.needs_input_grad == _NEEDS_QKV:  # the usual case: q, k and v are the only tensors
            q, k, v, out, lse = saved
            made = bypass.backward(q, k, v, *call.arguments(), out, lse, (dout,), WANT_QKV)
            if made:
                return None, None, *made
        return gradients(ctx, saved, dout, dlse, 2)


_KEY_ON_HOST, _FLOAT64 = ("torch", None, None), torch.float64  # the trace cache's key of f32 scores on the host
_NEEDS_QKV = (False, False, True, True, True)  # needs_input_grad of FinishedRun if q, k and v are its only tensors
# _record skips Function.apply, whose inspect.signature takes longer than the rest of a small call.
_record = super(torch.autograd.Function, FinishedRun).apply


def run(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Optional[Results]:
    """Returns (out, LSE, row maxima); None if the call must take another route. Requires bypass.is_plain(q, k, v)."""
    if not call.needs_grad(q, k, v):
        made = bypass.forward(q, k, v, *call.arguments(), bypass.ANYTHING)
        return bypass.all_results(made, call.config) if made else None
    bare, tensors = call.without_tensors(training_flags(q)), call.all_tensors()
    made = bypass.forward(q, k, v, *bare.arguments(tensors), bypass.ANYTHING)
    return _record(bypass.all_results(made, bare.config), bare, q, k, v, *tensors) if made else None


@skip_frame
def known_output(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any, scale: Any, config: Tuple[int, ...],
                 expected: Sequence[int]) -> Optional[Tensor]:
    """Returns the output if the functions were traced in an earlier call and are unchanged; None if the call must be
    traced or must take another route. `config`: the settings of the problem, which request neither LSE nor row maxima.
    `expected`: conditions on shapes and device (bypass.forward). Requires bypass.is_plain(q, k, v). A run without
    gradients makes no object of the class Call, which would take 5 % of the time of a small call."""
    if scale is not None and (type(scale) is not float or scale != scale):
        return None
    tensors: Sequence[Tensor] = ()
    program, recorded = "", False
    if score_mod is None and mask_mod is None:
        floats = DEFAULT_FLOATS if scale is None else (scale, 0.0)
    else:
        wide = _FLOAT64 if q.dtype is _FLOAT64 else None  # the rule of score_attributes()
        if q.is_cpu:
            traced = find(score_mod, mask_mod, _KEY_ON_HOST if wide is None else ("torch", None, wide))
        else:
            traced = find(score_mod, mask_mod, ("torch", q.device, wide))
        if traced is None:
            return None
        _, tensors, _, _, _, _, program, floats = traced
        if floats is None:  # some params are ints
            return output(call_of(traced, scale, config), q, k, v, expected)
        floats = DEFAULT_FLOATS + floats if scale is None else (scale, 0.0, *floats)
    if is_grad_enabled():
        recorded = q.requires_grad or k.requires_grad or v.requires_grad
        for tensor in tensors:
            recorded = recorded or tensor.requires_grad
        if recorded:
            config = (config[0] | training_flags(q), *config[1:])
    made = bypass.forward(q, k, v, tensors, (), (), (), floats, config, program, expected)
    if not made:
        return None
    if not recorded:
        return made[0]
    call = Call(program, (None,) * len(tensors), (), (), (), floats, config)
    return _record(made, call, q, k, v, *tensors)  # type: ignore[no-any-return]


def output(call: Call, q: Tensor, k: Tensor, v: Tensor, expected: Sequence[int]) -> Optional[Tensor]:
    """Returns the output of a call that requests neither LSE nor row maxima; None if the call must take another route.
    Requires bypass.is_plain(q, k, v)."""
    if not call.needs_grad(q, k, v):
        made = bypass.forward(q, k, v, *call.arguments(), expected)
        return made[0] if made else None
    bare, tensors = call.without_tensors(training_flags(q)), call.all_tensors()
    made = bypass.forward(q, k, v, *bare.arguments(tensors), expected)
    return _record(made, bare, q, k, v, *tensors) if made else None
