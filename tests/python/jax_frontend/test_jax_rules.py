# SPDX-License-Identifier: Apache-2.0
"""Derivative rules inside of score functions: jax.custom_jvp, jax.custom_vjp, those of jax.nn and jax.scipy, and corners
of primitives. Gradients are JAX's, of the scores and of captured arrays."""
import functools

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, exact, loss_of, plain, qkv, rand  # noqa: E402

from fxattn.jax import attention  # noqa: E402


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


rounded.defvjp(lambda x: (rounded(x), None), lambda kept, g: (g,))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def bent(power, x, y, n):
    return x * y + n, x - y


def bent_back(power, kept, g):
    x, y, n = kept
    return power * x * g[0] + g[1], jnp.where(y > 0, g[0], 2 * g[1]) * n, None


bent.defvjp(lambda power, x, y, n: (bent(power, x, y, n), (x, y, n)), bent_back)


@jax.custom_jvp
def bell(x):
    return jnp.exp(-x * x)


@bell.defjvp
def bell_slope(points, tangents):
    value = bell(points[0])
    return value, 3 * value * tangents[0]


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda kept, g: (jnp.clip(g, -1, 1),))


def table_rule(table):
    """A rule that closes over an array, which has no gradient by it."""
    @jax.custom_jvp
    def f(x):
        return x * jax.lax.stop_gradient(table)[0]

    @f.defjvp
    def _(points, tangents):
        return f(points[0]), jax.lax.stop_gradient(table)[1] * points[0] * tangents[0]
    return f


def fmod(x, y):
    """A user's, of a name that jax.numpy has."""
    return x * y


FUNCTIONS = {
    "straight through": lambda s, w, q: rounded(s * w) * w,
    "two results": lambda s, w, q: bent(3, s, w, q)[0] + bent(2, w, s, 1)[1],
    "of itself": lambda s, w, q: bell(s * w) * s,
    "inside of loops": lambda s, w, q: jax.lax.fori_loop(0, 3, lambda n, x: bell(x) + rounded(s) * w, s),
    "jitted, under remat": lambda s, w, q: jax.checkpoint(jax.jit(lambda x: bell(x) * rounded(x * w)))(s),
    "of arrays": lambda s, w, q: bell(jnp.stack([s, w, s * w])).sum() + rounded(jnp.stack([w, s]))[1],
    "in a branch": lambda s, w, q: jax.lax.cond(q > 3, lambda x: rounded(x) * w, lambda x: bell(x), s),
    "vmapped": lambda s, w, q: jax.vmap(bell)(jnp.stack([s, w])).prod(),
    "stopped": lambda s, w, q: s * jax.lax.stop_gradient(s * w) + w * jax.lax.stop_gradient(w),
    "a name of jax.numpy's": lambda s, w, q: jax.jit(fmod)(s, w) + jnp.fmod(s, 0.7),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules_of_the_users(name):
    def fused(q, k, v, w):
        return attention(q, k, v, score_mod=lambda s, b, h, q, k: FUNCTIONS[name](s, w[h], q))

    def dense(q, k, v, w):
        each = jnp.vectorize(FUNCTIONS[name])
        return plain(q, k, v, lambda s, b, h, q, k: each(s, w[h] + 0 * s, q + 0 * k))[0]
    args = (*qkv(41, b=1, s=5, h=2), rand(42, 2))
    got = jax.jit(lambda *a: (fused(*a), jax.grad(loss_of(fused), (0, 1, 3))(*a)))(*args)
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), (0, 1, 3))(*a)), *args)
    assert all_close(got, want, 200)


@jax.custom_jvp
def lent(x, y):
    """x, with the gradient of y."""
    return x


lent.defjvp(lambda at, along: (lent(*at), along[1]))


def test_a_value_of_keys_with_the_gradient_of_heads():
    args, bias, slope = qkv(46, b=1, s=40, h=3), rand(47, 40), rand(48, 3)

    def fused(q, k, v, bias, slope):
        return attention(q, k, v, score_mod=lambda s, b, h, q, k: s + jnp.tanh(lent(bias[k], slope[h])))

    def dense(q, k, v, bias, slope):
        each = jnp.vectorize(lent)
        return plain(q, k, v, lambda s, b, h, q, k: s + jnp.tanh(each(bias[k] + 0 * s, slope[h] + 0 * s)))[0]
    got = fused(*args, bias, slope), jax.grad(loss_of(fused), (0, 1, 3, 4))(*args, bias, slope)
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), (0, 1, 3, 4))(*a)), *args, bias, slope)
    assert all_close(got, want, 200)


def test_arrays_of_a_rule():
    args, table = qkv(43, b=1, s=5, h=2), rand(44, 2)

    def fused(q, k, v, table):
        return attention(q, k, v, score_mod=lambda s, *at: table_rule(table)(s) + table[1])

    def dense(q, k, v, table):
        still = jax.lax.stop_gradient(table)
        return plain(q, k, v, lambda s, *at: jax.lax.stop_gradient(s * still[0]) + table[1] + still[1] * (
            s * s - jax.lax.stop_gradient(s * s)) / 2)[0]
    got = jax.grad(loss_of(fused), (0, 3))(*args, table)
    assert all_close(got, exact(jax.grad(loss_of(dense), (0, 3)), *args, table), 200)


def test_what_no_slope_describes_is_refused():
    args = qkv(45)
    with pytest.raises(RuntimeError, match="clipped .custom_vjp.*not linear.*score_mod_bprop"):
        attention(*args, score_mod=lambda s, b, h, q, k: clipped(s))


CORNERS = jnp.asarray([-20.0, -6.0, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0])
nn, special = jax.nn, jax.scipy.special
AT_CORNERS = {
    **{name: getattr(nn, name) for name in ("relu relu6 hard_sigmoid hard_silu leaky_relu elu softplus sparse_plus").split()},
    "log_ndtr": special.log_ndtr, "xlogy": lambda x: special.xlogy(x, 2.0) + special.xlog1py(2.0, x * x),
    "clamp": lambda x: jax.lax.clamp(-1.0, x, 1.0), "clip": lambda x: jnp.clip(x, -1, 1), "abs": jnp.abs,
    "ties": lambda x: jnp.max(jnp.stack([x, x, 0 * x, x])) + 2 * jnp.min(jnp.stack([x, x + 0 * x, 0 * x])),
    "maximum": lambda x: jnp.maximum(x, 0.0) + jnp.minimum(x, 1.0), "cbrt": lambda x: jnp.cbrt(x + 0.5),
    "softmax": lambda x: nn.softmax(jnp.stack([x, 2 * x, 1 - x]))[1] + nn.logsumexp(jnp.stack([x, x, 0 * x])),
    "sinc": jnp.sinc, "logaddexp": lambda x: jnp.logaddexp(x, 0.0) + jnp.logaddexp(x, x),
}


@pytest.mark.parametrize("name", AT_CORNERS)
def test_slopes_at_corners(name):
    """Scores that are these numbers exactly: they are captured, and q is 0."""
    f, n = AT_CORNERS[name], CORNERS.size
    v = rand(46, 1, n, 1, 4)

    def fused(x):
        zero = jnp.zeros((1, n, 1, 4), x.dtype)
        return attention(zero[:, :1], zero, v.astype(x.dtype), score_mod=lambda s, b, h, q, k: 0.5 * f(x[k])).ravel()

    def dense(x):
        return nn.softmax(0.5 * jax.vmap(f)(x)) @ v[0, :, 0].astype(x.dtype)
    with jax.enable_x64(True):
        got = jax.grad(loss_of(fused))(CORNERS.astype("float64"))
    assert all_close(got, exact(jax.grad(loss_of(dense)), CORNERS), 400, "float64")
    assert np.isfinite(got).all()
