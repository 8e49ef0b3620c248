# SPDX-License-Identifier: Apache-2.0
"""fxattn.jax.dot_product_attention beside jax.nn's, in f64 there: its features by themselves and together."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, exact, loss_of, qkv, rand  # noqa: E402

from fxattn.jax import dot_product_attention  # noqa: E402

LENGTHS = jnp.asarray([5, 9], "int32")
MASK = jnp.asarray(np.random.default_rng(1).random((2, 1, 9, 11)) < 0.8).at[..., 0].set(True)
CASES = {
    "nothing": {}, "scale": {"scale": 0.2}, "causal": {"is_causal": True}, "mask": {"mask": MASK},
    "mask of keys": {"mask": MASK[:, :, :1]},
    "window": {"local_window_size": (3, 2)}, "one window": {"local_window_size": 2, "is_causal": True},
    "keys": {"key_value_seq_lengths": LENGTHS}, "rows": {"query_seq_lengths": LENGTHS},
    "rows and keys": {"query_seq_lengths": LENGTHS, "key_value_seq_lengths": LENGTHS[::-1], "mask": MASK},
    "all": {"mask": MASK, "is_causal": True, "local_window_size": (4, 0), "key_value_seq_lengths": LENGTHS, "scale": 0.5},
}
BIASES = {"whole": (2, 4, 9, 11), "heads": (1, 4, 9, 11), "one": (1, 1, 9, 11), "keys": (2, 1, 1, 11), "rank 2": (9, 11)}


@pytest.mark.parametrize("case", CASES)
def test_features(case):
    if "rows" in case and jax.__version_info__ < (0, 10):
        pytest.skip("jax.nn gives nan in f64 for rows that attend to nothing before JAX 0.10")
    options = CASES[case]
    args = qkv(21, t=11, hkv=2 if case in ("causal", "all") else 4)
    # What jax.nn has in rows that attend to nothing, and in their residuals, is an average and a large number.
    live = jnp.arange(9)[None, :, None] < LENGTHS[:, None, None] if "rows" in case else jnp.ones((2, 9, 1), bool)

    def of(f, **more):
        def run(q, k, v):
            out, residual = f(q, k, v, return_residual=True, **options, **more)
            return jnp.where(live[..., None], out, 0), jnp.where(live, residual, 0)
        return run

    def pair(f):
        return lambda *a: (f(*a), jax.grad(loss_of(f), (0, 1, 2))(*a))
    got = jax.jit(pair(of(dot_product_attention)))(*args)
    want = exact(pair(of(jax.nn.dot_product_attention)), *args)
    assert all_close(got[0], want[0], 20) and all_close(got[1], want[1], 160)


@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
def test_bias(shape):
    args = (*qkv(22, t=11), rand(23, *shape))

    def of(f):
        def run(q, k, v, bias):
            return f(q, k, v, bias.reshape((1,) * (4 - bias.ndim) + bias.shape) if f is not dot_product_attention
                     else bias)
        return lambda *a: (run(*a), jax.grad(loss_of(run), (0, 3))(*a))
    got, want = jax.jit(of(dot_product_attention))(*args), exact(of(jax.nn.dot_product_attention), *args)
    assert all_close(got[0], want[0], 20) and all_close(got[1], want[1], 160)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_in_vmap(dtype):
    q, k, v = qkv(25, hkv=2, dtype=dtype)

    def of(f):
        return lambda *a: (f(*a), jax.grad(lambda *b: f(*b).astype("float32").sum(), (0, 1, 2))(*a))
    got = jax.jit(of(jax.vmap(dot_product_attention)))(q, k, v)
    want = exact(of(jax.nn.dot_product_attention), q, k, v)
    assert all_close(got[0], want[0], 20, dtype) and all_close(got[1], want[1], 40, dtype)


def test_nothing_is_infinite_inside():
    """A mask in f64, rows of nothing among it, with JAX looking for infinities."""
    with jax.enable_x64(True), jax.debug_infs(True), jax.debug_nans(True):
        q = jnp.ones((5, 6, 8), "float64")
        mask = jnp.arange(7) <= jnp.asarray([-1, 2, 3, 4, 5])[:, None]
        keys = jnp.ones((7, 3, 8), "float64")
        grad = jax.jit(jax.grad(lambda q: dot_product_attention(q, keys, keys, mask=mask).sum()))(q)
        assert dot_product_attention(q, keys, keys, mask=mask)[1:].all() and not grad[0].any()


def test_without_batch_and_what_is_refused():
    q, k, v = (x[0] for x in qkv(24))
    out, residual = dot_product_attention(q, k, v, is_causal=True, return_residual=True)
    want = exact(lambda *a: jax.nn.dot_product_attention(*a, is_causal=True, return_residual=True), q, k, v)
    assert all_close((out, residual), want, 20)
    ints = jnp.arange(81).reshape(9, 9) % 5
    assert np.array_equal(dot_product_attention(q, k, v, ints), dot_product_attention(q, k, v, ints.astype("float32")))
    for bad, kind, text in (({"implementation": "cudnn"}, ValueError, "implementation"),
                            ({"bias": jnp.ones((3, 9, 9))}, ValueError, "broadcast"),
                            ({"mask": jnp.ones((9, 9))}, TypeError, "bool")):
        with pytest.raises(kind, match=text):
            dot_product_attention(q, k, v, **bad)
