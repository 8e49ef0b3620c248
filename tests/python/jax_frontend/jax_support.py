# SPDX-License-Identifier: Apache-2.0
"""Attention written in plain jax.numpy in f64, and how far a fused result may be from it. Score functions take arrays
that broadcast: score [B,H,S,T], b [B,1,1,1] and so on."""
import jax
import jax.numpy as jnp
import numpy as np

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rand(seed, *shape, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def qkv(seed=0, b=2, s=9, h=4, d=8, t=None, hkv=None, dv=None, dtype="float32"):
    """[B,S,H,D], [B,T,Hkv,D], [B,T,Hkv,Dv]"""
    t, hkv = t or s, hkv or h
    return (rand(seed, b, s, h, d, dtype=dtype), rand(seed + 1, b, t, hkv, d, dtype=dtype),
            rand(seed + 2, b, t, hkv, dv or d, dtype=dtype))


def plain(q, k, v, mod=None, mask=None, scale=None, sink=None):
    """out [B,S,H,Dv] and lse [B,H,S] of arrays [B,S,H,D]; mod and mask as in attention, on whole arrays."""
    group = q.shape[2] // k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = jnp.repeat(k, group, 2), jnp.repeat(v, group, 2)
    score = scale * jnp.einsum("bshd,bthd->bhst", q, k)
    at = [jnp.arange(n).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate(score.shape)]
    score = score if mod is None else mod(score, *at)
    kept = jnp.broadcast_to(True if mask is None else mask(*at), score.shape)
    score = jnp.where(kept, score, -1e300)
    top = jax.lax.stop_gradient(jnp.max(score, -1, keepdims=True, initial=-1e300))
    top = jnp.maximum(top, -1e200)  # of a row of nothing: then all weights are 0
    weights = jnp.exp(score - top)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + jnp.exp(jnp.reshape(sink, (1, -1, 1, 1)) - top)
    empty = total == 0
    safe = jnp.where(empty, 1.0, total)
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(safe))[..., 0]
    return jnp.einsum("bhst,bthd->bshd", weights / safe, v), lse


def wide(tree):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), "float64") if jnp.issubdtype(x.dtype, jnp.floating) else x,
                        tree)


def exact(f, *args):
    """f in f64, of the same values."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(f)(*wide(args)))


def close(got, want, terms, dtype="float32"):
    """Whether results agree: sums of `terms` products, each rounded a few times, relative to the largest element."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(got), finite)
    assert np.array_equal(got[~finite], want[~finite])
    limit = 8 * (terms + 8) * UNIT["float32" if dtype in ("float16", "bfloat16") else dtype]
    limit = (limit + 2 * UNIT[dtype]) * max(np.abs(want[finite]).max(initial=0), 1)
    worst = np.abs(got[finite] - want[finite]).max(initial=0)
    assert worst <= limit, "off by %g, of %g" % (worst, limit)
    return True


def all_close(got, want, terms, dtype="float32"):
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    return all([close(a, b, terms, dtype) for a, b in zip(got, want)])


def loss_of(f):
    """A number of everything that f gives, whose gradient is different everywhere."""
    def total(*args):
        return sum(jnp.sum(jnp.sin(x.astype(x.dtype)) * (1 + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape) % 7))
                   for x in jax.tree.leaves(f(*args)))
    return total
