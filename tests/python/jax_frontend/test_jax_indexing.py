# SPDX-License-Identifier: Apache-2.0
"""Indices of captured arrays in functions of JAX: outside of the array, from its end, unsigned, by every mode, values and
gradients as plain jax.numpy has them; and that an index which is inside for sure costs nothing."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, exact, loss_of, plain, qkv, rand  # noqa: E402

from fxattn.jax import attention  # noqa: E402
from fxattn.trace import trace  # noqa: E402

ROWS = 5
FORMS = {
    "plain": lambda t, i: t[i], "clip": lambda t, i: t.at[i].get(mode="clip"),
    "fill": lambda t, i: t.at[i].get(mode="fill", fill_value=0.5),
    "no wrap": lambda t, i: t.at[i].get(wrap_negative_indices=False),
    "no wrap, fill": lambda t, i: t.at[i].get(mode="fill", fill_value=0.25, wrap_negative_indices=False),
    "take clip": lambda t, i: jnp.take(t, i, mode="clip"), "take wrap": lambda t, i: jnp.take(t, i, mode="wrap"),
    "take fill": lambda t, i: jnp.take(t, i, mode="fill", fill_value=-1.0),
    "in dim": lambda t, i: jax.lax.dynamic_index_in_dim(t, i, keepdims=False),
    "unsigned": lambda t, i: t[i.astype("uint32")], "narrow": lambda t, i: t[i.astype("int8")],
    "several": lambda t, i: t[jnp.stack([i, i + 1, -i])].sum(),
    "a slice": lambda t, i: (jax.lax.dynamic_slice(t, (i,), (3,)) * jnp.arange(3.0)).sum(),
    "along": lambda t, i: jnp.nan_to_num(jnp.take_along_axis(t, i[None], 0)[0], nan=2.0),
    "of values": lambda t, i: jnp.stack([t[0], t[1], t[2] * t[3]])[i],
    "of values, fill": lambda t, i: jnp.stack([t[0], t[1]]).at[i].get(mode="fill", fill_value=7.0),
    "two": lambda t, i: jnp.outer(t, t)[i, 2 - i],
}


@pytest.mark.parametrize("form", FORMS)
def test_indices_outside(form):
    """q - k + 1 from -7 to 5 in arrays of 4 and 3."""
    f, args, table = FORMS[form], qkv(51, b=1, s=ROWS, h=1, t=9), rand(52, 4)

    def fused(q, k, v, table):
        return attention(q, k, v, score_mod=lambda s, b, h, q, k: s + f(table, q - k + 1))

    def dense(q, k, v, table):
        found = jax.vmap(jax.vmap(lambda i: f(table, i)))(jnp.arange(ROWS)[:, None] - jnp.arange(9) + 1)
        return plain(q, k, v, lambda s, *at: s + found)[0]
    got = jax.jit(lambda *a: (fused(*a), jax.grad(loss_of(fused), (0, 3))(*a)))(*args, table)
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), (0, 3))(*a)), *args, table)
    assert all_close(got, want, 200)


def test_what_is_inside_for_sure_costs_nothing():
    slopes, table, bias = jnp.ones(4), jnp.ones((4, 17)), jnp.ones((2, 4, 9, 9))

    def mod(score, b, h, q, k):
        return score + slopes[h] * (q - k) + table[h, q - k + 8] + bias[b, h, q, k] + table[h % 4, (q + k) // 2]
    text = trace(mod, lib="numpy", sizes=(2, 4, 9, 9)).program.text
    assert "clamp" not in text and "?" not in text and "where" not in text
    assert "clamp" in trace(mod, lib="numpy", sizes=(2, 4, 9, 10)).program.text
    assert "clamp" in trace(mod, lib="numpy").program.text


def test_rows_that_are_moved():
    """Positions, and rows that are aligned with the last key, are no rows of the call."""
    q, k, v = qkv(53, s=3, t=9)
    table = jnp.asarray([0.5, 1.0, 2.0])
    out = attention(q, k, v, q_start=jnp.asarray([2, 5]), score_mod=lambda s, b, h, q, k: s * table[q])
    at = np.minimum(np.arange(3) + np.asarray([[2], [5]]), 2)
    want = exact(lambda *a: plain(*a, lambda s, *_: s * jnp.asarray(table)[at][:, None, :, None])[0], q, k, v)
    assert all_close(out, want, 40)
    out = attention(q, k, v, bottom_right=True, score_mod=lambda s, b, h, q, k: s * table[q - 6])
    assert all_close(out, exact(lambda *a: plain(*a, lambda s, *_: s * table[:, None])[0], q, k, v), 40)


def test_an_index_that_is_made_in_many_steps():
    """Each step reads the one before twice: bounds are looked for once for each, not once for each path."""
    table = jnp.ones(64)

    def mod(score, b, h, q, k):
        at = q
        for _ in range(30):
            at = (at * at + at) % 64
        return score + table[at]
    assert "clamp" not in trace(mod, lib="numpy", sizes=(1, 1, 64, 64)).program.text
