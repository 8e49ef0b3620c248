# SPDX-License-Identifier: Apache-2.0
"""What the tests of fxattn.torch compare with: attention written out in PyTorch, in any dtype, with all its
gradients; and what sees whether a call went by the operators."""
import math
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from fxattn.torch.routes import bypass
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def indices(b: int, h: int, q: int, k: int) -> Tuple[Tensor, ...]:
    """b, h, q_idx, kv_idx as tensors that broadcast to [B,H,Sq,Sk]."""
    axes = torch.arange(b).view(b, 1, 1, 1), torch.arange(h).view(h, 1, 1), torch.arange(q).view(q, 1)
    return (*axes, torch.arange(k))


def eager(q: Tensor, k: Tensor, v: Tensor, score_mod: Optional[Callable[..., Any]] = None,
          mask_mod: Optional[Callable[..., Any]] = None, scale: Optional[float] = None) -> Tuple[Tensor, Tensor]:
    """out and lse, as PyTorch's own eager flex_attention has them: scores in f32 (f64 of f64 inputs), probabilities in
    the dtype of the inputs; rows that attend to nothing are 0."""
    (B, H, Sq, D), (Bk, Hk, Sk, _) = q.shape, k.shape
    k, v = (x.expand(B, *x.shape[1:]).repeat_interleave(H // Hk, 1) for x in (k, v))
    working = torch.float64 if q.dtype == torch.float64 else torch.float32
    s = q.to(working) @ k.to(working).transpose(-1, -2) * (1 / math.sqrt(D) if scale is None else scale)
    places = indices(B, H, Sq, Sk)
    if score_mod is not None:
        s = score_mod(s, *places).expand(B, H, Sq, Sk).to(working)
    if mask_mod is not None:
        s = torch.where(mask_mod(*places), s, -math.inf)
    empty = (s == -math.inf).all(-1, keepdim=True)
    p = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, s), -1))
    lse = torch.where(empty.squeeze(-1), -math.inf, torch.logsumexp(torch.where(empty, 0.0, s), -1))
    return p.to(q.dtype) @ v.to(q.dtype), lse


def eager_step(q: Tensor, k: Tensor, v: Tensor, score_mod: Optional[Callable[..., Any]],
               mask_mod: Optional[Callable[..., Any]], learned: Sequence[Tensor], direction: Tensor) -> List[Tensor]:
    """out and the gradients of q, k, v and `learned` by the formulas of PyTorch's eager flex_attention, which has no
    gradients on the CPU: probabilities again from lse, rowsum(out * dout) of the output as it is stored."""
    with torch.no_grad():
        out, lse = eager(q, k, v, score_mod, mask_mod)
        group, working, dout = q.shape[1] // k.shape[1], lse.dtype, direction.to(q.dtype)
        kk, vv = (x.repeat_interleave(group, 1) for x in (k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        s = q.to(working) @ kk.to(working).transpose(-1, -2) * scale
    places, s = indices(*s.shape), s.requires_grad_()
    new = s if score_mod is None else score_mod(s, *places).expand(s.shape).to(working)
    keep = torch.ones((), dtype=torch.bool) if mask_mod is None else mask_mod(*places)
    with torch.no_grad():
        p = torch.exp(torch.where(keep, new, -math.inf) - lse.unsqueeze(-1))
        p = torch.where((lse == -math.inf).unsqueeze(-1), 0.0, p)
        dv = p.to(q.dtype).transpose(-2, -1) @ dout
        delta = (out.to(working) * dout.to(working)).sum(-1, keepdim=True)
        dnew = p * (dout.to(working) @ vv.to(working).transpose(-2, -1) - delta)
    ds, *rest = torch.autograd.grad(new, [s, *learned], dnew, allow_unused=True) if new.requires_grad else [dnew]
    with torch.no_grad():
        ds = torch.where(keep, (torch.zeros_like(s) if ds is None else ds) * scale, 0.0).to(q.dtype)
        dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (ds.transpose(-2, -1) @ q, dv))
        rest = [torch.zeros_like(x) if g is None else g for g, x in zip(rest or [None] * len(learned), learned)]
        return [out, ds @ kk, dk, dv, *rest]


def gradients(out: Tensor, direction: Tensor, inputs: Sequence[Tensor]) -> List[Tensor]:
    """The output and its gradients by the inputs; zeroes where it does not depend on one."""
    got = torch.autograd.grad((out * direction).sum(), list(inputs), allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(got, inputs))]


def inputs(b: int, h: int, hkv: int, sq: int, sk: int, d: int, dv: int, dtype: torch.dtype,
           seed: int = 0) -> List[Tensor]:
    """q, k, v that require gradients."""
    g = torch.Generator().manual_seed(seed)
    shapes = ((b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv))
    return [torch.randn(shape, generator=g).to(dtype).requires_grad_() for shape in shapes]


def mean_error(x: Tensor, exact: Tensor) -> float:
    return (x.double() - exact).abs().mean().item()


FACTORS = {torch.float32: 2.0, torch.float16: 1.1, torch.bfloat16: 1.1}


def assert_within_bar(name: str, dtype: torch.dtype, found: Sequence[Sequence[Sequence[Tensor]]]) -> None:
    """Of each problem the output and the gradients of q, k, v and what is captured: ours, eager's in the same dtype, and
    those in f64. The mean error is at most 1.1 times eager's, in f32 twice, of captured gradients 1.35 times; or what
    rounding the exact result to the dtype costs, where that is more."""
    for i in range(len(found[0][0])):
        ours, theirs, half_ulp = 0.0, 0.0, 0.0
        for got, eager_s, exact in ((x[i], y[i], z[i].double()) for x, y, z in found):
            assert not torch.isnan(got).any(), (name, i)
            ours, theirs = ours + mean_error(got, exact), theirs + mean_error(eager_s, exact)
            half_ulp += torch.finfo(got.dtype).eps / 2 * exact.abs().mean().item()
        factor = FACTORS[dtype] if i < 4 else max(1.35, FACTORS[dtype])
        bar = max(factor * theirs, half_ulp) + 1e-7 * len(found)
        assert ours <= bar, (name, ("out", "dq", "dk", "dv", "captured")[min(i, 4)], ours, theirs)


def by_operator(call: Callable[[], Any]) -> Any:
    """call(), with nothing that goes past PyTorch's dispatcher."""
    asked = bypass.is_plain
    bypass.possible, bypass.is_plain = False, lambda q, k, v: False
    try:
        return call()
    finally:
        bypass.possible, bypass.is_plain = True, asked


class Seen(TorchDispatchMode):
    """The names of the operators that come to the dispatcher meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: List[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
