# SPDX-License-Identifier: Apache-2.0
"""The forward and backward pass of ring_attention on one process.

Step 0 of the forward pass computes (out, LSE) over the process's own K and V. Step s of the forward pass merges the
attention over K and V of the s-th process before this one into (out, LSE). Step s of the backward pass adds to dQ, and
to the dK and dV that travel with K and V of the s-th process before this one.
"""
import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from ... import _abi
from ..._errors import OutsideError
from ..._library import call as call_library
from ..._library import context, lib
from .. import operators as ops
from ..call import Call
from ..dtypes import DTYPES
from ..forward_mode import refuse_these
from ..routes.autograd import below_autograd, input_of, needed_gradients, run_backward
from .processes import Ring, Transfer, finishing

_TAG_KEYS, _TAG_GRADS = 0, 2  # tags of the transfers: K, V; dK, dV


def merge_(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merges the attention of the same rows over further keys, (part, part_lse), into out [B,H,S,D] and lse [B,H,S]."""
    args = _abi.MergeArgs(struct_size=ctypes.sizeof(_abi.MergeArgs))
    args.b, args.h, args.s, args.d = out.shape
    for name, tensor in (("o_a", out), ("lse_a", lse), ("o_b", part), ("lse_b", part_lse)):
        operand = getattr(args, name)
        operand.dtype, operand.layout = DTYPES[tensor.dtype], _abi.LAYOUT_STRIDED
        operand.stride[:tensor.dim()] = tensor.stride()
        setattr(args, name + "_data", tensor.data_ptr())
    if out.is_cuda:
        args.device, args.ordinal, args.ctx = _abi.CUDA, out.device.index, context()
        args.stream = torch.cuda.current_stream(out.device).cuda_stream
    call_library(lib.merge, ctypes.byref(args))


class RingFunction(torch.autograd.Function):
    """The autograd Function that runs the forward and backward pass of ring_attention. Takes (ring, call, q, k, v,
    *tensors of the call), where `call`, a Call, has the other arguments of the operators and no tensors, and returns
    (out, lse in f64)."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, call: Call, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        part, out, lse = [k, v], q, q  # step 0 always runs and replaces out and lse
        outside: Optional[OutsideError] = None
        for step in range(ring.size):
            transfer = ring.send(part, step, _TAG_KEYS) if step + 1 < ring.size else None
            with finishing(transfer):
                if ring.has_work[step] and outside is None:
                    try:
                        with below_autograd():
                            found = ops.forward(q, part[0], part[1], *_arguments(ring, call, step, rest))
                        if step == 0:
                            out, lse = found[0], found[1]
                        else:
                            merge_(out, lse, found[0], found[1])
                    except OutsideError as error:  # raised after the last step, for which other processes wait
                        outside = error
            part = transfer.wait() if transfer is not None else part
        if call.flags() & _abi.BOUNDS_CHECK:
            ring.report(outside, q.device)
        out = out.to(q.dtype)
        ctx.ring, ctx.call = ring, call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *rest, out, lse)
        return out, lse

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_these(len(ctx.call.tensors), tangents[2:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> Tuple[Any, ...]:
        *inputs, out, lse = ctx.saved_tensors
        grads = [torch.zeros_like(out) if dout is None else dout]
        if dlse is not None:
            grads.append(dlse.to(torch.float64 if out.dtype == torch.float64 else torch.float32))
        want = needed_gradients(ctx.needs_input_grad, ctx.call, 2)
        total = _gradients(ctx.ring, ctx.call, inputs, out, lse, grads, want)
        result: List[Any] = [None] * (2 + len(inputs))
        for one, grad in total.items():
            index = input_of(one, ctx.call)
            result[2 + index] = grad.to(inputs[index].dtype)
        return tuple(result)


def _tensors_of(call: Call, step: int, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns the captured tensors and the extra tensors (such as sinks) that fxattn::fwd and fxattn::bwd take in step
    `step` of the ring. The sink, which is the first extra tensor, is included in step 0 only."""
    if step > 0 and call.field(ops.SLOTS) >> _abi.SLOT_SINKS & 1:
        first = len(call.tensors)
        return [*tensors[:first], *tensors[first + 1:]]
    return tensors


def _arguments(ring: Ring, call: Call, step: int, tensors: Sequence[Tensor]) -> Tuple[Any, ...]:
    """Returns the arguments of fxattn::fwd, after q, k and v, in step `step` of the ring."""
    return ring.call_of(call, step).arguments(_tensors_of(call, step, tensors))


def _gradients(ring: Ring, call: Call, inputs: Sequence[Tensor], out: Tensor, lse: Tensor, grads: Sequence[Tensor],
               want: Sequence[int]) -> Dict[int, Tensor]:
    """Returns a dictionary from the codes in `want`, which name inputs, to the gradients of these inputs: for q, k and
    v the gradients of this process's parts; for all other tensors the sum over the processes."""
    q, rest, part = inputs[0], inputs[3:], list(inputs[1:3])
    moving = [one for one in want if one in (ops.WANT_K, ops.WANT_V)]
    total: Dict[int, Tensor] = {}
    home: Optional[Transfer] = None
    for step in range(ring.size):
        transfer = ring.send(part, step, _TAG_KEYS) if step + 1 < ring.size else None
        found: Dict[int, Tensor] = {}
        here = [one for one in want if one != ops.WANT_SINK or step == 0]
        if ring.has_work[step] and here:
            own = ring.call_of(call, step), _tensors_of(call, step, rest)
            with finishing(transfer, home), below_autograd():
                found = dict(zip(here, run_backward(*own, q, part[0], part[1], out, lse, grads, here)))
        for one, grad in found.items():
            if one not in moving:
                total[one] = total[one].add_(grad) if one in total else grad
        if moving:
            # Gradients of the current keys, summed over the processes that the keys have visited so far.
            sums = [found[one] for one in moving] if home is None else home.wait()
            if home is not None and found:
                sums = [sum_.add_(found[one]) for sum_, one in zip(sums, moving)]
            home = ring.send(sums, step, _TAG_GRADS)
        part = transfer.wait() if transfer is not None else part
    for one in want:
        if one > ops.WANT_V:
            dist.all_reduce(total[one], group=ring.group)
    if home is not None:
        total.update(zip(moving, home.wait()))
    return total
