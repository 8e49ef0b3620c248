# SPDX-License-Identifier: Apache-2.0
"""fxattn.jax.ring_attention on four devices against one: orders, methods, functions, gradients."""
import functools

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_support import all_close, loss_of, qkv, rand  # noqa: E402

from fxattn.jax import attention, reorder_sequence, restore_sequence, ring_attention  # noqa: E402

SIZE = 4
MESH = jax.make_mesh((SIZE,), ("sp",), axis_types=(AxisType.Auto,))
ROWS = P(None, "sp")


def alibi(slopes, table):
    def mod(score, b, h, q, k):
        return 2 * jnp.tanh((score - slopes[h] * jnp.abs(q - k)) / 2) + table[q, k % 3]
    return mod


def spread(order, options, check=True):
    """attention() by ring_attention, on whole arrays."""
    def run(q, k, v, *rest):
        q, k, v = (reorder_sequence(x, SIZE, order) for x in (q, k, v))

        def local(q, k, v, *rest):
            return ring_attention(q, k, v, "sp", order=order, return_lse=True, **options(*rest))
        out, lse = jax.shard_map(local, mesh=MESH, in_specs=(ROWS,) * 3 + (P(),) * len(rest),
                                 out_specs=(ROWS, P(None, None, "sp")), check_vma=check)(q, k, v, *rest)
        return restore_sequence(out, SIZE, order), restore_sequence(lse, SIZE, order, axis=2)
    return run


def on_one(options):
    def run(q, k, v, *rest):
        given = options(*rest)
        return attention(q, k, v, return_lse=True, **{name: given[name] for name in given if name != "method"})
    return run


def same(order, options, args, wanted=None, check=True, terms=60, dtype="float32"):
    wanted = tuple(range(len(args))) if wanted is None else wanted
    both = [jax.jit(lambda *a, f=f: (f(*a), jax.grad(loss_of(f), wanted)(*a)))(*args)
            for f in (spread(order, options, check), on_one(options))]
    assert all_close(both[0][0], both[1][0], 20, dtype) and all_close(both[0][1], both[1][1], terms, dtype)


FORMS = [("contiguous", "ring"), ("zigzag", "ring"), ("striped", "ring"), ("zigzag", "all_gather"),
         ("contiguous", "all_gather"), ("striped", "ulysses"), ("contiguous", "ulysses")]


@pytest.mark.parametrize("order, method", FORMS)
def test_any_function_with_gradients_of_what_it_captures(order, method):
    args = (*qkv(70, s=16, h=8, hkv=4), rand(73, 8), rand(74, 16, 3))
    same(order, lambda slopes, table: {"score_mod": alibi(slopes, table), "causal": True, "method": method}, args)


@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
def test_sinks_scale_and_lengths(method):
    args = (*qkv(75, s=8, t=16, h=4), rand(78, 4), jnp.float32(0.4))
    same("striped", lambda sink, scale: {"sinks": sink, "scale": scale, "method": method, "window": (4, 3),
                                         "score_mod": "score + 0.1 * (k_len - q_len) * h / heads"}, args)


def test_zero_sink_and_text_with_a_backward_of_its_own():
    args = (*qkv(79, s=16), jnp.float32(1.5))
    same("contiguous", lambda cap: {"score_mod": "cap * tanh(score / cap)", "mask_mod": "q >= k", "params": {"cap": cap},
                                    "score_mod_bprop": "dscore * (1 - tanh(score / cap) ** 2)", "sinks": "zero"},
         args, (0, 1, 2))


@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_dropout_drops_what_one_device_drops(method):
    same("zigzag", lambda: {"dropout": 0.4, "dropout_key": jax.random.key(7), "method": method}, qkv(80, s=16, h=4))


@pytest.mark.parametrize("order, method", [("contiguous", "ring"), ("zigzag", "ring"), ("striped", "all_gather"),
                                           ("zigzag", "ulysses")])
def test_segments_of_the_parts(order, method):
    ids = jnp.asarray(np.sort(np.random.default_rng(3).integers(0, 4, (2, 16)), 1))
    args = (*qkv(86, s=16), rand(87, 4))

    def options(sink, ids):
        return dict(segment_ids=ids, causal=True, sinks=sink)

    def run(q, k, v, sink):
        parts = [reorder_sequence(x, SIZE, order) for x in (q, k, v, ids)]
        out, lse = jax.shard_map(lambda q, k, v, ids, sink: ring_attention(
            q, k, v, "sp", order=order, method=method, return_lse=True, **options(sink, ids)), mesh=MESH,
            in_specs=(ROWS,) * 4 + (P(),), out_specs=(ROWS, P(None, None, "sp")))(*parts, sink)
        return restore_sequence(out, SIZE, order), restore_sequence(lse, SIZE, order, axis=2)
    want = on_one(lambda sink: options(sink, ids))
    both = [jax.jit(lambda *a, f=f: (f(*a), jax.grad(loss_of(f), (0, 1, 2, 3))(*a)))(*args) for f in (run, want)]
    assert all_close(both[0], both[1], 60)


@pytest.mark.parametrize("method", ["ring", "all_gather"])
def test_ids_of_the_host_are_compared_whole(method):
    part = np.repeat([[5, 5 + 2**32]], 2, 1).repeat(2, 0)  # of every device, NumPy's, while JAX has 32 bits
    q, k, v = qkv(92, s=16)
    got = jax.shard_map(lambda *a: ring_attention(*a, "sp", method=method, segment_ids=part), mesh=MESH,
                        in_specs=(ROWS,) * 3, out_specs=ROWS)(q, k, v)
    assert all_close(got, attention(q, k, v, segment_ids=np.tile(part, (1, SIZE))), 20)


@pytest.mark.parametrize("order, method", [("striped", "ring"), ("zigzag", "ulysses")])
def test_lengths_of_the_whole(order, method):
    args = (*qkv(88, s=8, t=16), rand(89, 4))
    given = jnp.asarray([3, 8]), jnp.asarray([16, 5])
    for more in (dict(causal=True), dict(causal=True, bottom_right=True, window=(6, None)),
                 dict(bottom_right=True, window=(2**31 - 4, 2**31 - 1)), dict(lengths=(None, given[1]))):
        def options(sink, more=more):
            return dict({"lengths": given, "sinks": sink, "method": method}, **more)
        got = jax.jit(spread(order, options))(*args)
        assert all_close(got, jax.jit(on_one(options))(*args), 20)
    finite = jnp.isfinite(got[1]).all()  # every row is there: gradients by LSE too
    assert finite
    same(order, options, args)


def test_fewer_heads_of_keys_than_devices():
    same("striped", lambda slopes: {"score_mod": lambda s, b, h, q, k: s + slopes[h] * (k - q), "causal": True,
                                    "method": "ulysses"}, (*qkv(90, s=8, h=12, hkv=3), rand(91, 12)))


def test_rows_that_attend_to_nothing_and_16_bits():
    q, k, v = qkv(81, s=16, dtype="bfloat16")
    run = jax.jit(spread("zigzag", lambda: {"mask_mod": lambda b, h, q, k: (q > 5) & (q >= k)}))
    out, lse = run(q, k, v)
    want = attention(q, k, v, mask_mod=lambda b, h, q, k: (q > 5) & (q >= k), return_lse=True)
    assert out.dtype == jnp.bfloat16 and not out[:, :6].any() and jnp.isneginf(lse[:, :, :6]).all()
    assert all_close((out, lse), want, 20, "bfloat16")


def test_f64_and_without_check():
    with jax.enable_x64(True):
        args = (*qkv(82, s=8, dtype="float64"), rand(83, 4, dtype="float64"))
        same("striped", lambda slopes: {"score_mod": lambda s, b, h, q, k: s + slopes[h] * (k - q)}, args, check=False,
             dtype="float64")


def test_checkpoint_and_only_wanted_gradients():
    q, k, v = qkv(84, s=8)
    options = functools.partial(dict, causal=True)
    run = spread("contiguous", options)
    grad = jax.jit(jax.grad(loss_of(jax.checkpoint(run)), 1))(q, k, v)
    assert all_close(grad, jax.jit(jax.grad(loss_of(on_one(options)), 1))(q, k, v), 60)
    text = str(jax.make_jaxpr(jax.grad(loss_of(run), 0))(q, k, v))
    assert "want=(0,)" in text


def test_orders():
    x = jnp.arange(16)
    assert reorder_sequence(x, 2, "zigzag", 0).tolist() == [0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11]
    assert reorder_sequence(x, 4, "striped", 0).tolist()[:5] == [0, 4, 8, 12, 1]
    for order in ("contiguous", "zigzag", "striped"):
        assert np.array_equal(restore_sequence(reorder_sequence(x, 4, order, 0), 4, order, 0), x)


def test_what_is_refused():
    q, k, v = qkv(85, s=12, h=2)
    both = jnp.asarray([3, 4])
    for options, text in ((dict(order="zigzag"), "multiple of 8"), (dict(order="other"), "contiguous, zigzag"),
                          (dict(method="ulysses"), "heads of q .*\"ring\" and \"all_gather\" take any"),
                          (dict(method="other"), "ring, all_gather"), (dict(layout="thd"), "bshd and bhsd"),
                          (dict(lengths=both, score_mod="score + q_len"), "reads q_len"),
                          (dict(lengths=both, bottom_right=True), "without is_causal or window"),
                          (dict(lengths=(3, 4)), "two batch entries or for q and k")):
        with pytest.raises(ValueError, match=text):
            jax.eval_shape(jax.shard_map(lambda q, k, v: ring_attention(q, k, v, "sp", **options), mesh=MESH,
                                         in_specs=(ROWS,) * 3, out_specs=ROWS), q, k, v)
    for options, text in ((dict(cu_q=3), "cu_q is no argument of a ring; q_lengths"), (dict(bias=3), "score_mod=lambda")):
        with pytest.raises(TypeError, match=text):
            ring_attention(q, k, v, "sp", **options)
