# SPDX-License-Identifier: Apache-2.0
"""Random calls of fxattn.jax against plain jax.numpy: packed rows of random lengths, random score functions, layers in a
scan under remat, and that no tracer leaks. What is longer than seconds is run by hand: FXA_TEST_SCALE more of them."""
import functools
import os
import random

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, exact, loss_of, plain, qkv, rand  # noqa: E402

from fxattn.jax import attention  # noqa: E402

MORE = max(1, round(float(os.environ.get("FXA_TEST_SCALE", "1"))))


@pytest.mark.parametrize("seed", range(2 * MORE))
def test_packed_rows_of_random_lengths(seed):
    """Each sequence for itself; some of no rows, gaps behind them all, scores that read where they are."""
    draw = random.Random(seed)
    n, room = draw.randint(1, 5), 24
    cuts = [np.cumsum([0] + [draw.choice([0, 1, 2, 3, 5]) for _ in range(n)]) for _ in range(2)]
    q, (k, v) = rand(seed, room, 4, 8), (rand(seed + s, room + 3, 2, 8) for s in (100, 200))
    slopes, causal = rand(seed + 300, 4), draw.random() < 0.5

    def mod(slopes, s, b, h, q, k):
        return s + slopes[h] * (q - k) + 0.1 * b

    def fused(q, k, v, slopes):
        return attention(q, k, v, layout="thd", cu_q=jnp.asarray(cuts[0]), cu_k=jnp.asarray(cuts[1]), causal=causal,
                         score_mod=functools.partial(mod, slopes))

    def dense(q, k, v, slopes):
        out = jnp.zeros(q.shape, q.dtype)
        for i in range(n):
            (a, b), (c, d) = ((cut[i], cut[i + 1]) for cut in cuts)
            if b > a and d > c:
                found = plain(q[None, a:b], k[None, c:d], v[None, c:d], lambda s, _, h, q, k: mod(slopes, s, i, h, q, k),
                              (lambda b, h, q, k: q >= k) if causal else None)[0][0]
                out = out.at[a:b].set(found)
        return out
    args = (q, k, v, slopes)
    got = jax.jit(lambda *a: (fused(*a), jax.grad(loss_of(fused), (0, 1, 2, 3))(*a)))(*args)
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), (0, 1, 2, 3))(*a)), *args)
    assert all_close(got, want, 200)


# ---- random score functions

REALS = (jnp.tanh, jnp.sin, jax.nn.relu, jax.nn.gelu, jnp.abs, jnp.square, lambda x: jnp.exp(jnp.sin(x)), jnp.arctan,
         lambda x: jnp.clip(x, -1, 1), jax.nn.silu, lambda x: jnp.log(jnp.abs(x) + 0.5), jax.lax.stop_gradient)
PAIRS = (jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda x, y: x / (jnp.abs(y) + 0.5), jnp.logaddexp,
         lambda x, y: jnp.mod(x, jnp.abs(y) + 0.7))
WHOLE = (jnp.add, jnp.subtract, jnp.multiply, jnp.bitwise_xor, lambda x, y: x // (jnp.abs(y) + 1),
         lambda x, y: x % (jnp.abs(y) + 2), jnp.minimum, lambda x, y: (x.astype("uint32") >> 3).astype("int32") + y)


def real(draw, deep):
    """A function of a dictionary, of scores, coordinates and captured arrays, that gives a float."""
    way = draw.random()
    if not deep or way < 0.15:
        index, table = whole(draw, 2), draw.choice(["slopes", "table", "score", "score", "mode"])
        if table == "mode":
            return lambda e: jnp.take(e["table"], index(e), mode="clip") + index(e) % 16 * 0.01
        return (lambda e: e["score"]) if table == "score" else lambda e: e[table][index(e)]
    x, y = real(draw, deep - 1), real(draw, deep - 1)
    if way < 0.45:
        f = draw.choice(REALS)
        return lambda e: f(x(e))
    if way < 0.8:
        g = draw.choice(PAIRS)
        return lambda e: g(x(e), y(e))
    a, b = whole(draw, 2), whole(draw, 1)
    if way < 0.9:
        return lambda e: jnp.where(a(e) < b(e), x(e), y(e))
    return lambda e: jnp.sort(jnp.stack([x(e), y(e), e["score"]]))[1] + jax.lax.fori_loop(0, 2, lambda n, z: z * y(e), x(e))


def whole(draw, deep):
    if not deep or draw.random() < 0.3:
        name, number = draw.choice("bhqkqk"), draw.randint(-7, 9)
        return lambda e: e[name] + number
    f, x, y = draw.choice(WHOLE), whole(draw, deep - 1), whole(draw, deep - 1)
    return lambda e: f(x(e), y(e))


@pytest.mark.parametrize("seed", range(6 * MORE))
def test_random_score_functions(seed):
    draw = random.Random(seed)
    f, args = real(draw, 3), (*qkv(seed, b=1, s=3, h=2, d=4, t=4), rand(seed + 7, 2), rand(seed + 8, 5))

    def mod(slopes, table, score, b, h, q, k):
        made = f({"score": score, "b": b, "h": h, "q": q, "k": k, "slopes": slopes, "table": table})
        return 3 * jnp.tanh(made / 3) + 0 * score

    def fused(q, k, v, slopes, table):
        return attention(q, k, v, score_mod=functools.partial(mod, slopes, table))

    def dense(q, k, v, slopes, table):
        def each(score, *at):
            at = jnp.broadcast_arrays(*(x.astype("int32") for x in at))
            return jax.vmap(functools.partial(mod, slopes, table))(
                score.ravel(), *(x.ravel() for x in at)).reshape(score.shape)
        return plain(q, k, v, each)[0]
    with jax.enable_x64(True):
        wide = [x.astype("float64") for x in args]
        got, want = (jax.jit(lambda *a, g=g: (g(*a), jax.grad(loss_of(g), (0, 1, 3, 4))(*a)))(*wide)
                     for g in (fused, dense))
    # A few dozen operations of slopes up to 10 each, over sums of 48 terms: some 10^4 roundings at the worst.
    assert all_close(got, want, 10**4, "float64")


def test_layers_in_a_scan_under_remat_leak_nothing():
    slopes, x = rand(71, 3, 4), rand(72, 1, 6, 4, 8)

    def layers(attend):
        def layer(x, slopes):
            return x + attend(x, lambda s, b, h, q, k: jax.nn.relu(s) + slopes[h] * (q - k)), None
        return lambda x, slopes: jax.lax.scan(jax.checkpoint(layer), x, slopes)[0]
    fused = layers(lambda x, mod: attention(x, x, x, score_mod=mod, causal=True))
    dense = layers(lambda x, mod: plain(x, x, x, mod, lambda b, h, q, k: q >= k)[0])
    with jax.checking_leaks():
        got = jax.jit(jax.grad(loss_of(fused), (0, 1)))(x, slopes)
    assert all_close(got, exact(jax.grad(loss_of(dense), (0, 1)), x, slopes), 400)
