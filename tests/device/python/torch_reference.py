# SPDX-License-Identifier: Apache-2.0
"""What torch_cuda.py compares with: attention written out in f64 on the host, with its gradients, and how far a result
of 16-bit tensors may lie from it (docs/numerics.md, "Other engines" and "On matrix hardware"): what rounding P and dS
to 16 bits comes to, that of O, which the backward pass reads, and half an ulp of the result."""
import torch

UNIT = {torch.bfloat16: 2.0 ** -8, torch.float16: 2.0 ** -11}  # half an ulp, relative
# error of f32: sums of some hundred terms, exp, and tanh, which the hardware computes to 16 bits
ARITHMETIC = 2.0 ** -15


class Dense:
    """out, lse and the gradients of q, k, v and of what `captured` names, with what is allowed for each. score and mask
    are FlexAttention's functions, of f64 tensors on the host; group: query heads of a key's head."""

    def __init__(self, q, k, v, dout, score=None, mask=None, scale=None, captured=()):
        self.unit, self.rounding = UNIT[q.dtype], UNIT[q.dtype] + ARITHMETIC
        q, k, v, dout = (x.detach().cpu().double() for x in (q, k, v, dout))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        group = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
        at = [torch.arange(n).view([-1] + [1] * (3 - i)) for i, n in enumerate((*q.shape[:3], k.shape[2]))]
        scale = q.shape[3] ** -0.5 if scale is None else scale
        plain = scale * q @ keys.transpose(-1, -2)
        new = plain if score is None else score(plain, *at)
        seen = torch.ones_like(plain, dtype=torch.bool) if mask is None else mask(*at).expand(plain.shape)
        new = new.masked_fill(~seen, -torch.inf)
        self.lse = new.logsumexp(-1)
        p = torch.exp(new - self.lse.masked_fill(torch.isneginf(self.lse), 0.0).unsqueeze(-1))
        out = p @ values
        self.results = {"out": out.detach()}
        wanted = [q, k, v, *captured]
        found = torch.autograd.grad(out, wanted, dout, retain_graph=True, allow_unused=True)
        names = ["dq", "dk", "dv", *("dcaptured%d" % i for i in range(len(captured)))]
        self.results.update({n: torch.zeros_like(x) if g is None else g for n, x, g in zip(names, wanted, found)})
        self._allow(q, k, v, keys, values, dout, plain, new, p, out, scale, group, captured)

    def _allow(self, q, k, v, keys, values, dout, plain, new, p, out, scale, group, captured):
        slope = torch.ones_like(plain)
        if new.grad_fn is not None and new is not plain:
            finite = torch.where(torch.isneginf(new), torch.zeros_like(new), new)
            slope = torch.autograd.grad(finite.sum(), plain, retain_graph=True)[0]
        with torch.no_grad():
            unit, rounding, dp = self.unit, self.rounding, dout @ values.transpose(-1, -2)
            delta = (out * dout).sum(-1, keepdim=True)
            size = p * (dp.abs() + delta.abs())
            off = rounding * size + unit * p * (out * dout).abs().sum(-1, keepdim=True)
            inner = off * slope.abs() * abs(scale)
            shared = (lambda x: x.unflatten(1, (-1, group)).sum(2))
            self.allowed = {"out": rounding * (p @ values.abs()), "dq": inner @ keys.abs(),
                            "dk": shared(inner.transpose(-1, -2) @ q.abs()),
                            "dv": shared(rounding * p.transpose(-1, -2) @ dout.abs())}
        for i, x in enumerate(captured):  # linear in the score's gradient: the same sums of magnitudes
            passed = torch.autograd.grad(new.masked_fill(torch.isneginf(new), 0.0), x, off, retain_graph=True,
                                         allow_unused=True)[0]
            self.allowed["dcaptured%d" % i] = torch.zeros_like(x) if passed is None else passed.abs()
        for name, x in self.results.items():  # the result's own rounding; sums over heads round one by one
            self.allowed[name] = self.allowed[name] + (2 if group > 1 else 1) * self.unit * x.abs() + 1e-6 * x.abs().max()

    def worst(self, name, got):
        """The largest difference, of what is allowed; more than 1 is wrong."""
        if got is None or got.shape != self.results[name].shape:
            return float("inf")
        apart = (got.detach().cpu().double() - self.results[name]).abs()
        ratio = (apart / self.allowed[name].clamp(min=1e-30)).max() if apart.numel() else torch.zeros(())
        return float("inf") if torch.isnan(ratio) else float(ratio)
