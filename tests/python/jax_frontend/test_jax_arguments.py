# SPDX-License-Identifier: Apache-2.0
"""What arguments of fxattn.jax mean to the last int: windows, ids and lengths of 64 bits, names of params, scales beside
a backward of the user's own. Against jax.nn, or against plain jax.numpy in f64."""
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, close, exact, loss_of, plain, qkv, rand  # noqa: E402

from fxattn.jax import SequenceDescriptor, attention, dot_product_attention  # noqa: E402

REFUSED = (ValueError, jax.errors.JaxRuntimeError)  # at once, or when the result is waited for


@pytest.mark.parametrize("window", [(5, -1), (-1, 5), (-2, -1), (-3, 5), (3, -3), -1, 0, (2**31 - 1, -2), (-2**31, 4)],
                         ids=str)
def test_windows_of_jax_nn_of_any_int(window):
    args = qkv(31, b=1, s=7, h=1, t=9)
    want = exact(lambda *a: jax.nn.dot_product_attention(*a, local_window_size=window), *args)
    sides = window if isinstance(window, tuple) else (window, window)
    at = np.arange(7)[:, None], np.arange(9)
    rows = ((at[0] <= at[1] + sides[0]) & (at[0] >= at[1] - sides[1])).any(1)  # jax.nn averages over rows of nothing
    want = np.where(rows[:, None, None], want, 0)
    assert close(dot_product_attention(*args, local_window_size=window), want, 20)


def test_windows_that_mean_nothing_are_refused():
    args = qkv(32)
    for window in ((-3, 5), (2, -2), (2.5, 0), (None, "1"), (True, 0), (0, np.float32(1)), 3, (1, 2, 3)):
        with pytest.raises((ValueError, TypeError), match="window is .*>= 0"):
            attention(*args, window=window)
    for window in ((2.5, 0), 1.0, (None, 0), (1, 2, 3), "ab"):
        with pytest.raises(ValueError, match="local_window_size is"):
            dot_product_attention(*args, local_window_size=window)
    want = attention(*args, window=(2, None))
    assert np.array_equal(want, attention(*args, window=[np.int8(2), 2**40]))


IDS = {"signed": np.asarray([0, 2**32, -2**32, 2**63 - 1, 0, -2**63, 2**32, 1, 2**33 + 1]),
       "unsigned": np.asarray([0, 2**32, 2**32 - 1, 2**63, 0, 2**63, 2**64 - 1, 1, 2**31], "uint64")}


@pytest.mark.parametrize("how", ["x64", "x64 traced", "host"])
@pytest.mark.parametrize("kind", IDS)
def test_ids_of_64_bits_are_compared_whole(kind, how):
    ids = np.stack([IDS[kind], np.roll(IDS[kind], 3)])
    args = qkv(33)
    kept = ids[:, None, :, None] == ids[:, None, None, :]
    want = exact(lambda *a: plain(*a, mask=lambda *at: kept)[0], *args)
    if how == "host":
        assert close(attention(*args, segment_ids=ids), want, 20)
        return
    with jax.enable_x64(True):
        run = lambda ids: attention(*args, segment_ids=ids)  # noqa: E731
        assert close((jax.jit(run) if "traced" in how else run)(jnp.asarray(ids)), want, 20)


def test_ids_of_two_types():
    args, small = qkv(34), np.asarray([[-1, 0, 1, 2, 3, 0, 1, 2, 3]] * 2, "int32")
    big = np.where(small < 0, 2**32 - 1, small).astype("uint32")
    kept = small.astype("int64")[:, None, :, None] == big.astype("int64")[:, None, None, :]
    with jax.enable_x64(True):
        found = attention(*args, segment_ids=(jnp.asarray(small), jnp.asarray(big)))
    assert close(found, exact(lambda *a: plain(*a, mask=lambda *at: kept)[0], *args), 20)
    with pytest.raises(ValueError, match="int32 of q and uint32 of k"):
        attention(*args, segment_ids=(jnp.asarray(small), jnp.asarray(big)))
    with pytest.raises(ValueError, match="segment_ids are int64"):
        jax.jit(lambda x: attention(*args, segment_ids=(small.astype("int64") + 2**40, x)))(small)


def test_a_descriptor_has_no_ids_of_its_own():
    args, ids = qkv(35), np.asarray([[-1, -1, 0, -2, -2, 7, 7, 0, -2]] * 2)
    kept = (ids[:, None, :, None] == ids[:, None, None, :]) & (ids != 0)[:, None, :, None]
    found = attention(*args, sequence_descriptor=SequenceDescriptor.from_segment_ids_and_pos(ids))
    assert close(found, exact(lambda *a: plain(*a, mask=lambda *at: kept)[0], *args), 20)


def test_lengths_of_64_bits_are_no_shorter_ones():
    args = qkv(36)
    far = np.asarray([2**32 + 1, 5])
    for given in (far, np.asarray([2**32 - 1, 5], "uint32"), np.asarray([2**63, 5], "uint64")):
        with jax.enable_x64(True), pytest.raises(REFUSED, match="is 2147483647: accepted are"):
            jax.block_until_ready(jax.jit(lambda n: attention(*args, lengths=n))(jnp.asarray(given)))
        with pytest.raises(REFUSED, match="is 2147483647: accepted are"):
            jax.block_until_ready(attention(*args, lengths=given))
    with jax.enable_x64(True):
        want = jax.nn.dot_product_attention(*args, key_value_seq_lengths=np.asarray([9, 5], "int32"))
        found = dot_product_attention(*args, key_value_seq_lengths=jnp.asarray(far))
    assert close(found, want, 20)
    none = dot_product_attention(*args, query_seq_lengths=np.asarray([-2**32 + 5, 4]))
    assert not none[0].any() and none[1, 3].all() and not none[1, 4:].any()


def test_no_name_of_the_users_is_ours():
    args, ids = qkv(37), jnp.asarray([[0, 0, 1, 1, 1, 2, 2, 2, 2]] * 2)
    zz = rand(38, 2, 9)

    def fused(q, k, v, scale, own, zz):
        return attention(q, k, v, scale=scale, score_mod="score * zz_scale + zz_segment_q[b, q] * zzz_scale",
                         params={"zz_scale": own, "zzz_scale": 0.5}, score_mod_tensors={"zz_segment_q": zz},
                         segment_ids=ids)

    def dense(q, k, v, scale, own, zz):
        return plain(q, k, v, lambda s, b, h, q, k: s * own + zz[b, q] * 0.5 + 0 * k, scale=scale,
                     mask=lambda b, h, q, k: ids[b, q] == ids[b, k])[0]
    given = (*args, jnp.float32(0.2), jnp.float32(1.5), zz)
    which = (0, 3, 4)
    got = jax.jit(lambda *a: (fused(*a), jax.grad(loss_of(fused), which)(*a)))(*given)
    want = exact(lambda *a: (dense(*a), jax.grad(loss_of(dense), which)(*a)), *given)
    assert all_close(got, want, 200)


def test_a_scale_that_is_an_array_beside_a_backward_of_the_users():
    args = qkv(39)

    def run(q, scale):
        return attention(q, *args[1:], scale=scale, score_mod="score * score * zz_scale", params={"zz_scale": 0.25},
                         score_mod_bprop="dscore * score * 0.5")
    for which in (0, 1):
        got = jax.grad(loss_of(run), which)(args[0], jnp.float32(0.7))
        want = exact(jax.grad(loss_of(lambda q, scale, k, v: plain(
            q, k, v, lambda s, *at: s * s * 0.25, scale=scale)[0]), which), args[0], jnp.float32(0.7), *args[1:])
        assert close(got, want, 200)


@pytest.mark.parametrize("engine", ["cpu", "ref"])
def test_scores_and_sinks_of_infinity_are_those_of_the_library(engine):
    """docs/numerics.md: NaN in out and lse, of that row alone; jax.nn's lse is +inf there, its out NaN too."""
    q, k, v = qkv(60)

    def mod(score, b, h, i, j):
        return jnp.where((b == 0) & (h == 1) & (i == 2) & (j == 3), jnp.inf, score)
    out, lse = attention(q, k, v, score_mod=mod, return_lse=True, engine=engine)
    wanted = np.zeros((2, 4, 9), bool)
    wanted[0, 1, 2] = True
    assert np.array_equal(np.isnan(lse), wanted) and np.array_equal(np.isnan(out).all(-1), wanted.swapaxes(1, 2))
    bias = jnp.zeros((2, 4, 9, 9)).at[0, 1, 2, 3].set(jnp.inf)
    theirs, residual = jax.nn.dot_product_attention(q, k, v, bias, return_residual=True)
    assert np.isnan(theirs[0, 2, 1]).all() and residual[0, 2, 1] == jnp.inf
    sinks = jnp.asarray([0.0, jnp.inf, -jnp.inf, jnp.nan])
    out, lse = attention(q, k, v, sinks=sinks, return_lse=True, engine=engine)
    assert np.isnan(out[:, :, [1, 3]]).all() and np.isnan(lse[:, [1, 3]]).all()
    assert close(out[:, :, 2], attention(q, k, v, engine=engine)[:, :, 2], 20)  # as without one
