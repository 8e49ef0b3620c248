# SPDX-License-Identifier: Apache-2.0
"""Attention written in NumPy f64 for tests of the front ends: nothing is shared with the library. Score functions take
arrays that broadcast ([B,1,1,1], [1,H,1,1], ...) and complex scores, whose imaginary parts are derivatives (complex
step)."""
import numpy as np

STEP = 1e-200


def coordinates(b, h, sq, sk):
    """b, h, q and k of all pairs."""
    return [np.arange(n).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate((b, h, sq, sk))]


def dense(q, k, v, f=None, mask=None, scale=None, sink=None, dout=None, dlse=None):
    """{"out", "lse", "max"} of [B,H,S,D] arrays; with dout also "dq", "dk", "dv", "dsink" and "dscore", the gradient of
    the new scores, which those of captured tensors and params follow from."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    at = coordinates(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
    raw = scale * np.einsum("bhqd,bhkd->bhqk", q, wide_k)
    score = raw if f is None else f(raw, *at)
    kept = np.broadcast_to(True if mask is None else mask(*at), raw.shape)
    with np.errstate(all="ignore"):
        score = np.where(kept, score, -np.inf)
        extra = np.full(raw.shape[:3], -np.inf) if sink is None else np.broadcast_to(
            np.asarray(sink, np.float64)[None, :, None], raw.shape[:3])
        top = np.maximum(score.max(-1, initial=-np.inf), extra)
        safe = np.where(np.isfinite(top), top, 0)
        lse = np.log(np.exp(score - safe[..., None]).sum(-1) + np.exp(extra - safe)) + safe
        p = np.where(np.isneginf(lse)[..., None], 0, np.exp(score - lse[..., None]))
        found = {"out": p @ wide_v, "lse": lse, "max": score.max(-1, initial=-np.inf), "p": p}
        if dout is None:
            return found
        dout = np.asarray(dout, np.float64)
        delta = (dout * found["out"]).sum(-1) - (0 if dlse is None else dlse)
        found["dscore"] = dscore = p * (dout @ wide_v.swapaxes(2, 3) - delta[..., None])
        slope = 1 if f is None else np.imag(f(raw + 1j * STEP, *at)) / STEP
        draw = np.where(dscore == 0, 0, dscore * slope) * scale
        found["dsink"] = -(np.exp(extra - np.where(np.isneginf(lse), 0, lse)) * delta).sum((0, 2))
    found["dq"] = draw @ wide_k
    found["dk"] = _by_group(draw.swapaxes(2, 3) @ q, k.shape[1])
    found["dv"] = _by_group(p.swapaxes(2, 3) @ dout, k.shape[1])
    return found


def _by_group(x, heads):
    b, h, s, d = x.shape
    return x.reshape(b, heads, h // heads, s, d).sum(2)


def random_qkv(seed, b=2, h=4, sq=9, sk=9, d=8, dv=None, hkv=None, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shapes = ((b, h, sq, d), (b, hkv or h, sk, d), (b, hkv or h, sk, dv or d))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def close(got, want, rounding=1e-13):
    """Whether two results agree to a rounding error relative to the largest element."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(got), finite) and np.array_equal(got[~finite], want[~finite])
    worst = np.abs(got[finite] - want[finite]).max(initial=0)
    limit = rounding * max(np.abs(want[finite]).max(initial=0), 1)
    assert worst <= limit, "off by %g of %g" % (worst, limit)
    return True
