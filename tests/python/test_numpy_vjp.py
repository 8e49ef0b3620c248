# SPDX-License-Identifier: Apache-2.0
"""fxattn.numpy backward: vjp and backward against attention written in NumPy, whose derivatives are complex steps."""
import inspect
import os
import sys

import fxattn
import pytest

np = pytest.importorskip("numpy")
sys.path.insert(0, os.path.dirname(__file__))
import fxattn.numpy as fn  # noqa: E402
from dense import STEP, close, coordinates, dense, random_qkv  # noqa: E402

TEXT = "cap * tanh((score + slopes[h] * (q - k)) / cap)"
SLOPES = np.array([0.5, 0.1, -0.2, 0.3])
CAP = 5.0


def cap_score(s, b, h, q, k, cap=CAP, slopes=SLOPES):
    return cap * np.tanh((s + slopes[h] * (q - k)) / cap)


def causal(b, h, q, k):
    return q >= k


def captured_gradients(q, k, dscore):
    """Of cap and slopes, one complex step each."""
    at = coordinates(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    raw = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[3])
    dcap = (dscore * np.imag(cap_score(raw, *at, cap=CAP + 1j * STEP)) / STEP).sum()
    steps = [SLOPES + 1j * STEP * (np.arange(4) == i) for i in range(4)]
    return dcap, np.array([(dscore * np.imag(cap_score(raw, *at, slopes=s)) / STEP).sum() for s in steps])


def test_every_gradient():
    q, k, v = random_qkv(1)
    dout, dlse = (np.random.default_rng(2).standard_normal(shape) for shape in (q.shape, q.shape[:3]))
    (out, lse), pullback = fn.vjp(q, k, v, TEXT, is_causal=True, params={"cap": CAP}, tensors={"slopes": SLOPES},
                                  return_lse=True)
    want = dense(q, k, v, cap_score, causal, dout=dout, dlse=dlse)
    assert close(out, want["out"]) and close(lse, want["lse"])
    for gradients in (pullback(dout, dlse), pullback((dout, dlse))):
        dq, dk, dv = gradients
        assert close(dq, want["dq"]) and close(dk, want["dk"]) and close(dv, want["dv"])
        dcap, dslopes = captured_gradients(q, k, want["dscore"])
        assert close(gradients.params["cap"], dcap) and close(gradients.tensors["slopes"], dslopes)
        assert gradients.captured["slopes"] is SLOPES and gradients.sinks is None
        assert np.array_equal(gradients.of(SLOPES), gradients.tensors["slopes"])
    without = dense(q, k, v, cap_score, causal, dout=dout)
    assert close(pullback(dout)[0], without["dq"])


@pytest.mark.parametrize("engine", ["ref", "cpu"])
def test_negative_indices_count_from_the_end(engine):
    """Of a captured array, whose gradient goes to the elements that were read."""
    q, k, v = random_qkv(7, sq=9, sk=9)
    table, dout = (np.random.default_rng(8).standard_normal(shape) for shape in ((11,), q.shape))
    score = lambda s, b, h, q, k: s + table[q - k]  # noqa: E731
    out, pullback = fn.vjp(q, k, v, score, engine=engine)
    want = dense(q, k, v, score, dout=dout)
    gradients = pullback(dout)
    assert close(out, want["out"]) and all(close(x, want[name]) for x, name in zip(gradients, ("dq", "dk", "dv")))
    expected, (_, _, row, column) = np.zeros(11), coordinates(2, 4, 9, 9)
    np.add.at(expected, np.broadcast_to(row - column, want["dscore"].shape), want["dscore"])
    assert close(gradients.of(table), expected)


@pytest.mark.parametrize("dtype, rounding", [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 3e-2)])
def test_narrow_dtypes(dtype, rounding):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    q, k, v = random_qkv(3, sq=17, sk=20, hkv=2, dv=12, dtype=dtype)
    out, pullback = fn.vjp(q, k, v, "2 * score")
    dout = np.random.default_rng(4).standard_normal(out.shape)
    want = dense(q, k, v, lambda s, *_: 2 * s, dout=dout)
    for given in (dout, dout.astype(np.float32)):
        gradients = pullback(given)
        for got, name in zip(gradients, ("dq", "dk", "dv")):
            assert got.dtype == dtype and close(got, want[name], rounding)


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "dhsb"])
def test_layouts_and_strides(layout):
    q, k, v = random_qkv(5, dv=5, hkv=2)
    order = ["bhsd".index(letter) for letter in layout]
    dout = np.random.default_rng(6).standard_normal((2, 4, 9, 5))
    want = dense(q, k, v, mask=causal, dout=dout)
    _, pullback = fn.vjp(*(x.transpose(order) for x in (q, k, v)), is_causal=True, layout=layout)
    for got, name in zip(pullback(dout.transpose(order)), ("dq", "dk", "dv")):
        assert close(got, want[name].transpose(order))


def test_expanded_gradients_and_shared_keys():
    q, k, v = random_qkv(7)
    one = np.broadcast_to(np.float64(1), q.shape)
    out, pullback = fn.vjp(q, k[:1], v[:1])
    want = dense(q, *(np.repeat(x[:1], 2, 0) for x in (k, v)), dout=one)
    dq, dk, dv = pullback(one)
    assert dk.shape == dv.shape == k[:1].shape
    assert close(dq, want["dq"]) and close(dk, want["dk"].sum(0, keepdims=True))
    dq, dk, dv = fn.vjp(q, k[0], v[0], kv_layout="hsd")[1](one)
    assert dk.shape == k[0].shape and close(dk, want["dk"].sum(0)) and close(dv, want["dv"].sum(0))


def test_packed_rows_of_no_sequence_are_zero():
    x, offsets = np.random.default_rng(0).standard_normal((10, 2, 8), np.float32), [0, 3, 7]
    held = [np.full_like(x, np.nan) for _ in range(30)]  # memory that the results are likely to get
    del held
    (out, lse), pullback = fn.vjp(x, x, x, layout="thd", cu_q=offsets, cu_k=offsets, return_lse=True)
    assert (out[7:] == 0).all() and (lse[7:] == 0).all()
    held = [np.full_like(x, np.nan) for _ in range(30)]
    del held
    for gradient in pullback(np.ones_like(out), np.zeros_like(lse)):
        assert (gradient[7:] == 0).all() and np.isfinite(gradient).all()
    given = np.full_like(x, np.nan)
    assert (fn.attention(x, x, x, layout="thd", cu_q=offsets, cu_k=offsets, out=given)[7:] == 0).all()


def test_packed_sequences_and_lengths():
    cu = np.array([0, 3, 10])
    rng = np.random.default_rng(8)
    q, k, v, dout = (rng.standard_normal((10, 4, 8)) for _ in range(4))
    _, pullback = fn.vjp(q, k, v, is_causal=True, layout="thd", cu_q=cu)
    got = pullback(dout)
    for i in range(2):
        rows = slice(*cu[i:i + 2])
        parts = [x[rows].transpose(1, 0, 2)[None] for x in (q, k, v, dout)]
        want = dense(*parts[:3], mask=causal, dout=parts[3])
        for x, name in zip(got, ("dq", "dk", "dv")):
            assert close(x[rows], want[name][0].transpose(1, 0, 2))
    q, k, v = random_qkv(9)
    lengths = np.array([4, 9])
    dout = rng.standard_normal(q.shape)
    got = fn.vjp(q, k, v, k_lengths=lengths)[1](dout)
    want = dense(q, k, v, mask=lambda b, h, i, j: j < lengths[b], dout=dout)
    assert close(got[0], want["dq"]) and close(got[1], want["dk"])


def test_sink_gradient_and_what_is_wanted():
    q, k, v = random_qkv(10)
    sink, dout = np.array([0.3, -1, 2, 0]), np.random.default_rng(11).standard_normal(q.shape)
    gradients = fn.vjp(q, k, v, sinks=sink)[1](dout)
    assert close(gradients.sinks, dense(q, k, v, sink=sink, dout=dout)["dsink"])
    only = fn.vjp(q, k, v, TEXT, params={"cap": CAP}, tensors={"slopes": SLOPES}, sinks=sink,
                  wrt=("k", "params"))[1](dout)
    assert only[0] is None and only[2] is None and only.sinks is None and only.tensors == {"slopes": None}
    assert only[1] is not None and only.params["cap"] is not None
    ints = fn.vjp(q, k, v, "score + n * t[q]", params={"n": 2}, tensors={"t": np.arange(9)})[1](dout)
    assert ints.params == {"n": None} and ints.tensors == {"t": None}


def test_gradient_of_views():
    q, k, v = random_qkv(12)
    table = np.random.default_rng(13).standard_normal((3, 4, 9))
    dout = np.random.default_rng(14).standard_normal(q.shape)
    gradients = fn.vjp(q, k, v, "score + first[h, k] + last[8 - k, h]",
                       tensors={"first": table[0], "last": table[2, :, ::-1].T})[1](dout)
    dscore = dense(q, k, v, lambda s, b, h, i, j: s + table[0][h, j] + table[2][h, j], dout=dout)["dscore"].sum((0, 2))
    whole = gradients.of(table)
    assert close(whole[0], dscore) and close(whole[2], dscore) and not whole[1].any()
    with pytest.raises(fxattn.ArgumentError, match="captured"):
        gradients.of(table.copy())


def test_backward_of_one_s_own():
    q, k, v = random_qkv(15)
    dout = np.random.default_rng(16).standard_normal(q.shape)
    derived = fn.vjp(q, k, v, "score * score")[1](dout)
    own = fn.vjp(q, k, v, "score * score", score_mod_bprop="dscore * two * score", bprop_params={"two": 2.0})[1](dout)
    other = fn.vjp(q, k, v, "score * score", score_mod_bprop="0 * dscore")[1](dout)
    assert close(own[0], derived[0]) and close(own[1], derived[1]) and not other[0].any()


def test_shards_by_backward_alone():
    """Context parallelism: each half of the keys with the output and LSE of the whole."""
    q, k, v = random_qkv(17)
    dout = np.random.default_rng(18).standard_normal(q.shape)
    want = dense(q, k, v, mask=causal, dout=dout)
    halves = [fn.backward(dout, want["out"], want["lse"], q, k[:, :, s], v[:, :, s], mask_mod="q >= k",
                          coordinates={"k": s.start}) for s in (slice(0, 5), slice(5, 9))]
    assert close(halves[0][0] + halves[1][0], want["dq"])
    assert close(np.concatenate([h[1] for h in halves], 2), want["dk"])


def test_dropout_is_the_same_in_both_passes():
    """Where V is the identity the output is P itself, and dV its transpose times dout."""
    q, k, _ = random_qkv(19, sq=16, sk=16)
    v = np.broadcast_to(np.eye(16), (2, 4, 16, 16)).copy()
    p, pullback = fn.vjp(q, k, v, dropout_p=0.3, seed=7)
    dout = np.random.default_rng(20).standard_normal(p.shape)
    assert close(pullback(dout)[2], p.swapaxes(2, 3) @ dout)


def test_keywords_are_shown():
    for function in (fn.attention, fn.vjp, fn.backward):
        assert "is_causal" in inspect.signature(function).parameters


class SoftCap:
    """As written for Transformer Engine: the backward uses what the forward kept."""

    def forward(self, graph, score, tensors):
        self.x = graph.div(score, tensors["cap"])
        return graph.mul(graph.tanh(self.x), tensors["cap"])

    def backward(self, graph, dscore, tensors):
        return graph.tanh_backward(loss=dscore, input=self.x)


def test_callbacks_of_the_graph_style():
    pytest.importorskip("fxattn.trace")
    q, k, v = random_qkv(21)
    dout = np.random.default_rng(22).standard_normal(q.shape)
    want = dense(q, k, v, lambda s, *_: CAP * np.tanh(s / CAP), dout=dout)
    mod = SoftCap()
    for keywords in ({}, {"score_mod_bprop": mod.backward, "bprop_tensors": {"cap": CAP}}):
        out, pullback = fn.vjp(q, k, v, mod.forward, style="graph", tensors={"cap": CAP}, **keywords)
        assert close(out, want["out"]) and close(pullback(dout)[0], want["dq"])


def test_gradients_of_what_functions_capture():
    pytest.importorskip("fxattn.trace")
    q, k, v = random_qkv(23)
    dout = np.random.default_rng(24).standard_normal(q.shape)
    gradients = fn.vjp(q, k, v, lambda s, b, h, i, j: CAP * np.tanh((s + SLOPES[h] * (i - j)) / CAP), is_causal=True)[1](dout)
    want = dense(q, k, v, cap_score, causal, dout=dout)
    assert close(gradients[0], want["dq"]) and close(gradients.of(SLOPES), captured_gradients(q, k, want["dscore"])[1])


def test_gradients_of_views_that_show_an_element_twice():
    """Windows, broadcasts and new axes: what each pair reads is added where it lies."""
    q, k, v = random_qkv(5, b=1, h=1, sq=5, sk=5)
    x = np.random.default_rng(6).standard_normal(9)
    windows, row = np.lib.stride_tricks.sliding_window_view(x, 5), x[None, 2:7]
    spread = np.broadcast_to(x[:1], (5,))
    out, pullback = fn.vjp(q, k, v, lambda s, b, h, i, j: s + windows[i, j] + row[0, j] * spread[i])
    got = pullback(np.cos(out)).of(x)
    want = np.zeros(9)
    at = np.arange(5)
    for n in range(9):
        def bent(s, b, h, i, j, n=n):
            y = x + 1e-200j * (np.arange(9) == n)
            return s + y[i + j] + y[2:7][j] * y[0]
        dscore = dense(q, k, v, lambda *a: bent(*a).real, dout=np.cos(out))["dscore"]
        want[n] = (dscore * np.imag(bent(np.zeros((1, 1, 5, 5)), 0, 0, at[:, None], at)) / 1e-200).sum()
    assert close(got, want)
