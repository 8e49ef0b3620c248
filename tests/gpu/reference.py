# SPDX-License-Identifier: Apache-2.0
"""A problem's results in f64 by torch, how far a result is from them and, of f32, how far it may be
(docs/numerics.md)."""
import math

import torch

from programs import PARTIALS, REFERENCE, SCATTER


U = 2.0 ** -24


class Context:
    """The inputs of a reference program for one (b, h), and its results."""


def keep(seed, p, b, h, q, k):
    """Which pairs dropout keeps: src/base/philox.h in torch, with 64-bit ints that wrap."""
    mask = 0xFFFFFFFF
    q, k = torch.broadcast_tensors(q.long(), k.long())
    c0, c1, c2, c3 = k >> 2, q, torch.full_like(q, h), torch.full_like(q, b)
    k0, k1 = seed & mask, seed >> 32 & mask
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & mask) ^ c1 ^ k0, p1 & mask, (p0 >> 32 & mask) ^ c3 ^ k1, p0 & mask
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    words = torch.stack((c0, c1, c2, c3)).gather(0, (k & 3)[None])[0]
    return words >= int(p * 2 ** 32)


def context(pr, b, h):
    c = Context()
    c.h, c.b, c.cap, c.window, c.k_size = h, b, pr.cap, pr.window, pr.Sk
    c.q_len, c.k_len = pr.length("q", b), pr.length("k", b)
    c.q = torch.arange(c.q_len, device=pr.q.device)[:, None]
    c.k = torch.arange(c.k_len, device=pr.q.device)[None, :]
    c.tensor = None if pr.tensor is None else pr.tensor.double()
    c.dense = None if pr.dense is None else pr.dense[b % pr.dense.shape[0], h].double()
    if pr.ids is not None:
        c.q_ids, c.k_ids = pr.ids[b][:c.q_len], pr.ids[b][:c.k_len]
    return c


def results(pr, b, h):
    """O, LSE, dQ, this head's share of dK, dV and of the sink's gradient, and the score gradient, all in f64."""
    c = context(pr, b, h)
    kv, (value, mask) = h * pr.Hkv // pr.H, REFERENCE[pr.program]
    q, grad_o = pr.own("q", pr.q, b)[h].double(), pr.own("q", pr.grad_o, b)[h].double()
    k, v = pr.own("k", pr.k, b)[kv].double(), pr.own("k", pr.v, b)[kv].double()
    s = ((q @ k.T) * pr.scale).requires_grad_(True)
    new = value(s, c)
    slope = torch.autograd.grad(new.sum(), s)[0] if new.numel() else torch.zeros_like(s)
    new = plain = new.detach()
    if mask:
        new = new.masked_fill(~mask(c).expand_as(new), -math.inf)
    lse = torch.logsumexp(new, 1)
    if pr.sink is not None:
        lse = torch.logaddexp(lse, pr.sink[h].double())
    weights = torch.exp(new - torch.where(lse == -math.inf, 0, lse)[:, None])
    factor = torch.ones_like(weights)
    if pr.drop:
        factor = keep(pr.seed, pr.drop, b, h, c.q, c.k).double() / (1 - pr.drop)
    o = (weights * factor) @ v
    delta = (grad_o * o).sum(1, keepdim=True)
    if pr.grad_lse is not None:
        delta = delta - pr.own_row(pr.grad_lse, b)[h].double()[:, None]
    c.grad_new = weights * (factor * (grad_o @ v.T) - delta)
    grad_s = c.grad_new * slope
    # Returns the effect of rounding dS, and O inside delta, to storage: squared terms, because their errors are
    # independent.
    terms = grad_s ** 2 + (weights * slope) ** 2 * ((grad_o * o) ** 2).sum(1, keepdim=True)
    c.noise_q, c.noise_k = (terms @ k ** 2).sum() * pr.scale ** 2, (terms.T @ q ** 2).sum() * pr.scale ** 2
    c.o, c.lse, c.grad_q = o, lse, grad_s @ k * pr.scale
    c.grad_k, c.grad_v = grad_s.T @ q * pr.scale, (weights * factor).T @ grad_o
    rounding = ((grad_o * o) ** 2).sum(1)  # the error of O inside delta, which all pairs of a row share
    c.sums = [(float((c.grad_new * g).sum()),
               float(((c.grad_new * g) ** 2).sum() + ((weights * g).sum(1) ** 2 * rounding).sum()))
              for g in (PARTIALS[pr.program](s.detach(), c) if pr.program in PARTIALS else [])]
    if pr.dtype == torch.float32:
        e_s = pr.scale * dot_error(q, k) + U * s.detach().abs()
        allow(pr, c, q, k, v, grad_o, weights, factor, delta, plain, slope, e_s, slope_error(value, s, c, slope, e_s))
    if pr.program in SCATTER:
        c.table = torch.zeros(pr.tensor.shape[1], dtype=torch.float64, device=pr.q.device)
        c.table.index_add_(0, SCATTER[pr.program](c).reshape(-1), c.grad_new.reshape(-1))
        c.noise_table = float((c.grad_new ** 2).sum() + (weights.sum(1) ** 2 * rounding).sum())
    if pr.sink is not None:
        terms = torch.exp(pr.sink[h].double() - lse) * -delta[:, 0]
        c.grad_sink, c.noise_sink = float(terms.sum()), float((terms ** 2).sum())
    c.attended = float((mask(c).expand_as(new)).sum()) if mask else float(new.numel())
    return c


def dot_error(x, y):
    """Returns a bound of the error of products of the rows of x and y that are summed in f32."""
    part = torch.zeros(x.shape[0], y.shape[0], dtype=x.dtype, device=x.device)
    squares = torch.zeros_like(part)
    for d in range(x.shape[1]):
        part += x[:, d, None] * y[None, :, d]
        squares += part ** 2
    return U * (squares.sqrt() + 2 * (x.abs() @ y.abs().T))


def slope_error(value, s, c, slope, e_s):
    """Returns the error of the program's derivative: the effect of the error of the score, and two roundings."""
    def at(x):
        x = x.detach().requires_grad_(True)
        new = value(x, c)
        return torch.autograd.grad(new.sum(), x)[0] if new.numel() else torch.zeros_like(x)
    return (at(s + e_s) - at(s - e_s)).abs() / 2 + 2 * U * slope.abs()


def allow(pr, c, q, k, v, grad_o, weights, factor, delta, new, slope, e_s, e_slope):
    """{result: (error, size)} element by element, as docs/numerics.md has them, and what each LSE may be off by. A
    program's own operations, three at most, add a unit of the score each; the hardware's tanh 2^-11 of its value."""
    lse = torch.where(c.lse == -math.inf, 0, c.lse)[:, None]
    tanh = 2.0 ** -11 if pr.fast and "softcap" in pr.program else 0.0
    e_p = slope.abs() * e_s + 3 * U * (new.abs() + c.cap * (tanh > 0)) + tanh * new.abs() + U * (new - lse).abs()
    mean = (weights * e_p).sum(1, keepdim=True)
    c.allowed_lse = 2 * mean[:, 0] + (16 + 2 * math.sqrt(max(1, c.k_len))) * U * (lse[:, 0].abs() + 1)
    kept = weights * factor
    c.allowed = {"o": ((kept * (e_p + mean)) @ v.abs(), kept @ v.abs())}
    e_p = e_p + U * lse.abs()  # backward is given an LSE that was rounded
    parts = (grad_o * c.o).cumsum(1)
    e_delta = U * ((parts ** 2).sum(1).sqrt() + 3 * (grad_o * c.o).abs().sum(1))[:, None]
    size = weights * (factor * (grad_o @ v.T).abs() + delta.abs())
    wrong = size * (e_p + 4 * U) + weights * (factor * dot_error(grad_o, v) + e_delta)
    wrong = slope.abs() * wrong + (e_slope + 2 * tanh) * size
    size = slope.abs() * size
    c.allowed["v"] = ((kept * e_p).T @ grad_o.abs(), kept.T @ grad_o.abs())
    c.allowed["q"] = (wrong @ k.abs() * pr.scale, size @ k.abs() * pr.scale)
    c.allowed["k"] = (wrong.T @ q.abs() * pr.scale, size.T @ q.abs() * pr.scale)


def share(x, ref, allowed):
    """The root mean square distance as a share of what is allowed: (error, size)."""
    if not torch.isfinite(x).all():
        return math.nan
    most = float((allowed[0] + 2e-6 * allowed[1]).norm())
    return float((x.double() - ref).norm()) / most if most > 0 else float((x != 0).any())


def error(x, ref, noise=0.0):
    """L2 distance relative to the reference, or to sqrt(noise) where cancellation makes the reference the smaller."""
    if not torch.isfinite(x).all():
        return math.nan
    norm = max(float(ref.norm()), math.sqrt(noise))
    return float((x.double() - ref).norm()) / (norm if norm > 0 else 1)
