# SPDX-License-Identifier: Apache-2.0
"""Sizes of 0 in NumPy's and JAX's front ends: results of the right shape, rows without keys as documented, scores of 0
where there are no features."""
import math

import numpy as np
import pytest

import fxattn.numpy as fn

SIZES = [(0, 2, 2, 3, 5, 4, 6), (2, 0, 0, 3, 5, 4, 6), (2, 0, 2, 3, 5, 4, 6), (2, 4, 2, 0, 5, 4, 6),
         (2, 4, 2, 3, 0, 4, 6), (2, 4, 2, 3, 5, 0, 6), (2, 4, 2, 3, 5, 4, 0), (2, 4, 2, 3, 5, 0, 0),
         (0, 0, 0, 0, 0, 0, 0), (2, 0, 0, 3, 0, 4, 0), (0, 4, 2, 3, 5, 0, 6)]
PROGRAMS = [None, "b % 2 == (q + k) % 2 || true", "k >= 0 && h >= 0"]


def drawn(b, h, hkv, sq, sk, d, dv):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s) for s in ((b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv))]


def dense(q, k, v):
    """Plain softmax attention, and the gradients of the sum of its output."""
    (b, h, sq, d), hkv, sk = q.shape, k.shape[1], k.shape[2]
    scale = 1 / math.sqrt(max(d, 1))
    out, dq, dk, dv = np.zeros((b, h, sq, v.shape[3])), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for at in np.ndindex(b, h):
        if sk == 0:
            continue
        kv = at[0], at[1] // (h // hkv)
        scores = scale * q[at] @ k[kv].T
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        out[at] = p @ v[kv]
        dp = np.ones_like(out[at]) @ v[kv].T
        ds = scale * p * (dp - (p * dp).sum(1, keepdims=True))
        dq[at] = ds @ k[kv]
        dk[kv] += ds.T @ q[at]
        dv[kv] += p.T @ np.ones_like(out[at])
    return out, dq, dk, dv


def check(got, want):
    for x, y in zip(got, want):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mask", PROGRAMS)
def test_numpy(sizes, mask):
    q, k, v = drawn(*sizes)
    want = dense(q, k, v)
    check([fn.attention(q, k, v, mask_mod=mask)], want)
    out, pullback = fn.vjp(q, k, v, mask_mod=mask)
    check([out, *pullback(np.ones_like(out))], want)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mask", PROGRAMS)
def test_jax(sizes, mask):
    jax = pytest.importorskip("jax")
    from fxattn.jax import attention
    q, k, v = (x.astype(np.float32) for x in drawn(*sizes))
    want = [x.astype(np.float32) for x in dense(*(x.astype(float) for x in (q, k, v)))]

    def total(*arrays):
        return attention(*arrays, mask_mod=mask, layout="bhsd").sum()

    got = [attention(q, k, v, mask_mod=mask, layout="bhsd"), *jax.grad(total, (0, 1, 2))(q, k, v)]
    for x, y in zip(got, want):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)
