# SPDX-License-Identifier: Apache-2.0
"""fxattn.jax.attention: results and gradients of every feature against plain jax.numpy in f64."""
import functools

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_support import all_close, close, exact, loss_of, plain, qkv, rand  # noqa: E402

import fxattn  # noqa: E402
from fxattn.jax import attention  # noqa: E402


def causal(b, h, q, k):
    return q >= k


def both(f, g, args, terms, dtype="float32", argnums=None):
    """Results and gradients of f against those of g in f64."""
    argnums = tuple(range(len(args))) if argnums is None else argnums
    results, grads = jax.jit(lambda *a: (f(*a), jax.grad(loss_of(f), argnums)(*a)))(*args)
    wanted, wanted_grads = exact(lambda *a: (g(*a), jax.grad(loss_of(g), argnums)(*a)), *args)
    assert all_close(results, wanted, terms, dtype)
    # Gradients of a loss of several hundred terms: their own size counts.
    assert all_close(grads, wanted_grads, 8 * terms, dtype)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_plain_and_grouped(layout, dtype):
    args = qkv(1, h=4, hkv=2, t=11, dv=5, dtype=dtype)

    def fused(*args):
        if layout == "bshd":
            return attention(*args)
        return jnp.swapaxes(attention(*(jnp.swapaxes(x, 1, 2) for x in args), layout="bhsd"), 1, 2)
    found = fused(*args)
    assert found.dtype == dtype and close(found, exact(lambda *a: plain(*a)[0], *args), 20, dtype)
    if dtype == "float32":
        both(fused, lambda *a: plain(*a)[0], args, 20)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(dtype):
    """As the same numbers in f32, rounded to 8 bits."""
    args = [x.astype(dtype) for x in qkv(1, h=4, hkv=2, t=11, dv=5)]
    found, wanted = jax.jit(attention)(*args), attention(*(x.astype("float32") for x in args))
    assert found.dtype == dtype and (found.astype("float32") == wanted.astype(dtype).astype("float32")).all()


def test_captured_arrays_have_gradients_and_need_not_be_known():
    q, k, v = qkv(2)
    slopes, table = rand(5, 4), rand(6, 4, 17)

    def mods(slopes, table, cap):
        def mod(score, b, h, q, k):
            return cap * jnp.tanh((score + slopes[h] * (k - q) + table[h, q - k + 8]) / cap)
        return mod

    def fused(q, k, v, slopes, table, cap):
        return attention(q, k, v, score_mod=mods(slopes, table, cap), mask_mod=causal)

    def dense(q, k, v, slopes, table, cap):
        return plain(q, k, v, mods(slopes, table, cap), causal)[0]
    both(fused, dense, (q, k, v, slopes, table, jnp.float32(3.0)), 40)
    # Without a jit around, and of one operand alone.
    got = jax.grad(loss_of(functools.partial(fused, q, k, v)), 1)(slopes, table, jnp.float32(3.0))
    want = exact(jax.grad(lambda s, t, c: loss_of(dense)(*map(lambda x: x.astype("float64"), (q, k, v)), s, t, c), 1),
                 slopes, table, jnp.float32(3.0))
    assert close(got, want, 400)


def test_integer_captures_have_no_gradient():
    q, k, v = qkv(3)
    document = jnp.asarray([0, 0, 0, 1, 1, 1, 1, 2, 2])

    def fused(q, document):
        return attention(q, k, v, mask_mod=lambda b, h, q, k: document[q] == document[k])
    out, pull = jax.vjp(fused, q, document)
    dq, ddocument = pull(jnp.ones_like(out))
    assert ddocument.dtype == jax.dtypes.float0 and ddocument.shape == document.shape
    want = exact(lambda q, k, v: jax.vjp(lambda q: plain(q, k, v, mask=lambda b, h, q, k: document[q] == document[k])[0],
                                         q)[1](jnp.ones(out.shape))[0], q, k, v)
    assert close(dq, want, 100)


@pytest.mark.parametrize("case", ["causal", "window", "bottom_right", "lengths", "segments", "sinks", "q_start"])
def test_features(case):
    q, k, v = qkv(4, s=7 if case == "bottom_right" else 9, t=9)
    lengths, ids = jnp.asarray([4, 9]), jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 3, 3], [0] * 9])
    starts = jnp.asarray([0, 3])
    options = {"causal": {"causal": True}, "window": {"window": (2, 1)},
               "bottom_right": {"causal": True, "bottom_right": True}, "lengths": {"lengths": lengths},
               "segments": {"segment_ids": ids}, "sinks": {}, "q_start": {"q_start": starts, "causal": True}}[case]
    mask = {"causal": causal, "window": lambda b, h, q, k: (q - 2 <= k) & (k <= q + 1),
            "bottom_right": lambda b, h, q, k: k <= q + 2,
            "lengths": lambda b, h, q, k: (q < lengths[b]) & (k < lengths[b]),
            "segments": lambda b, h, q, k: ids[b, q] == ids[b, k], "sinks": None,
            "q_start": lambda b, h, q, k: k <= q + starts[b]}[case]
    sink = (rand(9, 4),) if case == "sinks" else ()

    def fused(q, k, v, *sink):
        return attention(q, k, v, return_lse=True, **({"sinks": sink[0]} if sink else options))

    def finite(f):
        return lambda *args: (f(*args)[0], jnp.where(jnp.isfinite(f(*args)[1]), f(*args)[1], 0.0))

    def dense(q, k, v, *sink):
        return plain(q, k, v, mask=mask, sink=sink[0] if sink else None)
    out, lse = fused(q, k, v, *sink)
    assert lse.shape == (2, 4, q.shape[1]) and lse.dtype == jnp.float32
    assert all_close((out, lse), exact(dense, q, k, v, *sink), 20)
    both(finite(fused), finite(dense), (q, k, v, *sink), 20)


def test_scale_is_an_operand():
    q, k, v = qkv(5)
    both(lambda q, k, v, s: attention(q, k, v, scale=s), lambda q, k, v, s: plain(q, k, v, scale=s)[0],
         (q, k, v, jnp.float32(0.3)), 20)
    zero = exact(jax.grad(loss_of(lambda s, q, k, v: plain(q, k, v, scale=s)[0])), jnp.float32(0.0), q, k, v)
    assert close(jax.grad(loss_of(lambda s: attention(q, k, v, scale=s)))(jnp.float32(0.0)), zero, 400)
    for scale in (0.3, 2, np.float64(0.7)):
        assert close(attention(q, k, v, scale=scale), exact(lambda q, k, v: plain(q, k, v, scale=float(scale))[0], q, k, v), 20)


def test_text_and_programs_with_params():
    q, k, v = qkv(6)
    bias = rand(7, 4, 9, 9)
    text = "cap * tanh((score + bias[h, q, k]) / cap)"

    def fused(q, k, v, bias, cap):
        return attention(q, k, v, score_mod=text, mask_mod="q >= k", params={"cap": cap},
                         score_mod_tensors={"bias": bias})

    def dense(q, k, v, bias, cap):
        return plain(q, k, v, lambda s, b, h, q, k: cap * jnp.tanh((s + bias[h, q, k]) / cap), causal)[0]
    both(fused, dense, (q, k, v, bias, jnp.float32(2.0)), 30)
    program = fxattn.Program("param n : int = 2\nmask = q - k < n && q >= k")
    near = exact(lambda q, k, v: plain(q, k, v, mask=lambda b, h, q, k: (q >= k) & (q - k < 2))[0], q, k, v)
    assert close(attention(q, k, v, score_mod=program), near, 20)
    assert close(jax.jit(lambda n: attention(q, k, v, score_mod=program, params={"n": n}))(2), near, 20)


def test_rank_3_is_one_batch_entry():
    q, k, v = (x[0] for x in qkv(12))
    out, lse = attention(q, k, v, causal=True, return_lse=True, lengths=jnp.asarray(7))
    assert out.shape == q.shape and lse.shape == (4, 9)
    whole, rows = attention(q[None], k[None], v[None], causal=True, return_lse=True, lengths=jnp.asarray([7]))
    assert np.array_equal(out, whole[0]) and np.array_equal(lse, rows[0])


def test_packed_rows():
    offsets = jnp.asarray([0, 4, 11])
    q, k, v = (rand(i, 13, 4, 8) for i in (1, 2, 3))

    def fused(q, k, v):
        return attention(q, k, v, layout="thd", cu_q=offsets, causal=True, return_lse=True, max_q=7, max_k=7)

    def apart(q, k, v):
        outs, rows = [], []
        for a, b in ((0, 4), (4, 11)):
            out, lse = plain(q[None, a:b], k[None, a:b], v[None, a:b], mask=causal)
            outs.append(out[0])
            rows.append(lse[0])
        return (jnp.concatenate([*outs, jnp.zeros((2, 4, 8))]), jnp.concatenate([*rows, jnp.zeros((4, 2))], 1))
    both(fused, apart, (q, k, v), 20)


@pytest.mark.parametrize("window", [None, (2, None), (1, 1)])
def test_packed_rows_by_a_descriptor(window):
    """Sequences of any place and length in a row of the batch, other ones of keys; masks go by positions in them."""
    lengths = jnp.asarray([[3, 4, -1], [2, 0, 5]]), jnp.asarray([[5, 4, -1], [3, 1, 2]])
    offsets = jnp.asarray([[0, 5, -1, -1], [0, 2, 3, 8]]), jnp.asarray([[1, 6, -1, -1], [0, 3, 7, 11]])
    args = qkv(22, t=11)

    def of(pair, n):
        ids, at = np.zeros((2, n), int), np.zeros((2, n), int)
        for b, i in np.ndindex(2, 3):
            length, begin = int(pair[0][b, i]), int(pair[1][b, i])
            if length > 0:
                ids[b, begin:begin + length], at[b, begin:begin + length] = i + 1, np.arange(length)
        return ids, at
    (ids_q, at_q), (ids_k, at_k) = (map(jnp.asarray, of(x, n)) for x, n in zip(zip(lengths, offsets), (9, 11)))

    def mask(b, h, q, k):
        near = at_k[b, k] <= at_q[b, q]
        if window is not None:
            near &= at_k[b, k] >= at_q[b, q] - window[0]
        return (ids_q[b, q] == ids_k[b, k]) & (ids_q[b, q] > 0) & near
    descriptor = fxattn.jax.SequenceDescriptor.from_seqlens_and_offsets(lengths, offsets)
    run = jax.jit(lambda d, *a: attention(*a, causal=True, window=window, sequence_descriptor=d))
    both(functools.partial(run, descriptor), lambda *a: plain(*a, mask=mask)[0], args, 20)


def test_dropout_by_key():
    q, k, v = qkv(13, s=32)
    run = jax.jit(lambda q, key: attention(q, k, v, dropout=0.5, dropout_key=key))
    a, b = run(q, jax.random.key(1)), run(q, jax.random.key(2))
    assert np.array_equal(a, run(q, jax.random.key(1))) and not np.array_equal(a, b)
    assert np.array_equal(a, run(q, jax.random.PRNGKey(1)))
    ones = attention(q, k, jnp.ones_like(v), dropout=0.5, dropout_key=jax.random.key(1))
    assert abs(float(ones.mean()) - 1) < 0.1 and float(ones.std()) > 0.05
    # The backward pass drops the same: the directional derivative is that of differences.
    direction = rand(3, *v.shape)
    f = lambda v: attention(q, k, v, dropout=0.5, dropout_key=jax.random.key(1)).sum()  # noqa: E731
    assert close(jnp.vdot(jax.grad(f)(v), direction), f(v + direction) - f(v), 2000)


def test_empty_rows_and_empty_arrays():
    q, k, v = qkv(14)
    with jax.debug_nans(True):
        def f(q):
            out, lse = attention(q, k, v, mask_mod=lambda b, h, q, k: q > 3, return_lse=True)
            return out.sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum()
        grad = jax.grad(f)(q)
        out, lse = attention(q, k, v, mask_mod=lambda b, h, q, k: q > 3, return_lse=True)
    assert not out[:, :4].any() and jnp.isneginf(lse[:, :, :4]).all() and not grad[:, :4].any()
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 9, 4, 8)
    assert not attention(q, k[:, :0], v[:, :0]).any()


def test_f64_and_promotion():
    with jax.enable_x64(True):
        args = qkv(15, dtype="float64")
        slopes = rand(3, 4, dtype="float64")

        def fused(q, k, v, slopes):
            return attention(q, k, v, score_mod=lambda s, b, h, q, k: s + slopes[h] * (k - q), return_lse=True)

        def dense(q, k, v, slopes):
            return plain(q, k, v, lambda s, b, h, q, k: s + slopes[h] * (k - q))
        found = fused(*args, slopes)
        assert found[0].dtype == found[1].dtype == jnp.float64
        both(fused, dense, (*args, slopes), 20, "float64")
        mixed = attention(args[0].astype("float32"), args[1].astype("bfloat16"), args[2].astype("float32"))
        assert mixed.dtype == jnp.float32
    with jax.numpy_dtype_promotion("strict"):
        q, k, v = qkv(16)
        slopes = rand(1, 4)

        def strict(q, slopes):
            return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h], scale=0.5,
                             return_lse=True)[0].sum()
        assert jax.grad(strict, (0, 1))(q, slopes)[0].dtype == jnp.float32


def test_numpy_inside_of_a_mod():
    q, k, v = qkv(17)
    table, ids = np.arange(4.0) / 3, np.asarray([0, 0, 1, 1, 1, 2, 2, 2, 2])  # 64 bits, which JAX does not have here
    got = attention(q, k, v, score_mod=lambda s, b, h, q, k: s + table[h], mask_mod=lambda b, h, q, k: ids[q] == ids[k])
    want = exact(lambda q, k, v: plain(q, k, v, mask=lambda b, h, q, k: jnp.asarray(ids)[q] == jnp.asarray(ids)[k])[0],
                 q, k, v)
    assert close(got, want, 20)


PACKED = fxattn.jax.SequenceDescriptor.from_seqlens_and_offsets(jnp.ones((2, 1), "int32"), jnp.zeros((2, 1), "int32"))
BAD = [
    (dict(layout="sbhd"), ValueError, "bhsd, bshd"),
    (dict(window=3), TypeError, "left, right"),
    (dict(lengths=jnp.ones(3, "int32")), ValueError, "shape"),
    (dict(lengths=jnp.ones(2)), TypeError, "ints"),
    (dict(sinks=jnp.ones(3)), ValueError, "per query head"),
    (dict(sinks="one"), ValueError, "zero"),
    (dict(dropout=0.5), ValueError, "dropout_key"),
    (dict(sequence_descriptor=3), ValueError, "a SequenceDescriptor is accepted"),
    (dict(sequence_descriptor=PACKED, lengths=jnp.ones(2, "int32")), ValueError, "beside lengths or segment_ids"),
    (dict(sequence_descriptor=PACKED, causal=True, bottom_right=True), ValueError, "positions in segments"),
    (dict(dropout=1.5), ValueError, "below 1"),
    (dict(scale=jnp.ones(2)), ValueError, "rank 0"),
    (dict(scale=float("inf")), ValueError, "finite"),
    (dict(cu_q=jnp.asarray([0, 9])), ValueError, "thd"),
    (dict(score_mod_tensors={"a": 1.0}), ValueError, "without score_mod"),
    (dict(score_mod="score * a"), ValueError, "unknown name"),
    (dict(score_mod="param a : float\nscore = score * a"), ValueError, "no value is given"),
    (dict(score_mod="2 * score", params={"a": 1.0}), ValueError, "does not use"),
    (dict(score_mod=lambda s, b, h, q, k: s, params={"a": 1.0}), ValueError, "brings what it uses"),
    (dict(score_mod=lambda s, b, h, q, k: s, score_mod_bprop=lambda g, d, t: d), ValueError, "derivative is known"),
    (dict(score_mod=3), TypeError, "a function"),
]


@pytest.mark.parametrize("options, kind, text", BAD)
def test_what_is_wrong_is_said_when_it_is_traced(options, kind, text):
    q, k, v = qkv(18)
    with pytest.raises(kind, match=text):
        jax.eval_shape(lambda q: attention(q, k, v, **options), q)


def test_errors_have_the_users_line_also_in_a_folder_of_that_name():
    q, k, v = qkv(21)
    space = {"jnp": jnp}
    text = "def mod(s, b, h, q, k):\n    return jnp.exp(jnp.nextafter(s, s))\n"
    exec(compile(text, "/home/me/jax/model.py", "exec"), space)
    with pytest.raises(fxattn.trace.TraceError, match="/home/me/jax/model.py:2, in mod"):
        attention(q, k, v, score_mod=space["mod"])


def test_what_is_found_later_is_said_too():
    q, k, v = qkv(20)
    with pytest.raises(Exception, match="none such"):
        attention(q, k, v, engine="none such")
    with pytest.raises(Exception, match="fxattn: .*cu_q"):
        attention(q[0], k[0], v[0], layout="thd", cu_q=jnp.asarray([0, 99])).block_until_ready()


def test_shapes_that_do_not_fit():
    q, k, v = qkv(19)
    for bad in ((q[0], k, v), (q, k[:1], v[:1]), (q, k[..., :4], v), (q[:, :, :3], k[:, :, :2], v[:, :, :2]),
                (q, k, v[:, :5])):
        with pytest.raises(ValueError, match="shapes"):
            attention(*bad)
    with pytest.raises(TypeError, match="float type"):
        attention(q.astype("int32"), k, v)


def test_keywords_of_other_front_ends_are_told_by_their_names_here():
    x = jnp.ones((1, 4, 1, 8))
    with pytest.raises(TypeError, match="positions= is called q_start=; sink= is called sinks="):
        attention(x, x, x, positions=3, sink="zero")
    with pytest.raises(TypeError, match="unexpected keyword nonsense; accepted are q, k, v, score_mod, mask_mod"):
        attention(x, x, x, nonsense=1)
