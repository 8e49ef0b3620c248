# SPDX-License-Identifier: Apache-2.0
"""q_row and k_row, the indices of rows and keys as they lie, and arrays of the graph style, which are read there: in
NumPy and PyTorch beside positions, alignments and coordinates, which move q and k."""
import numpy as np
import pytest
from dense import dense, random_qkv

import fxattn
import fxattn.numpy as fxn

B, H, SQ, SK = 2, 4, 5, 9
BIAS = np.random.default_rng(5).standard_normal((B, H, SQ, SK))
STARTS = np.array([3, -2], np.int32)
TABLE = np.array([4, 0, 7, 2, 9], np.int32)
# Options of a call, and the q and k that programs see by them.
MOVED = {
    "q_start": ({"q_start": STARTS}, lambda b, q: q + STARTS[b], lambda k: k),
    "aligned": ({"bottom_right": True}, lambda b, q: q + SK - SQ, lambda k: k),
    "aligned and causal": ({"bottom_right": True, "is_causal": True}, lambda b, q: q, lambda k: k),
    "an offset": ({"coordinates": {"q": 512}}, lambda b, q: q + 512, lambda k: k),
    "offsets of both": ({"coordinates": {"q": 3, "k": 6}}, lambda b, q: q + 3, lambda k: k + 6),
    "a table": ({"coordinates": {"q": TABLE}}, lambda b, q: TABLE[q], lambda k: k),
    "segments": ({"coordinates": {"k": [(0, 20, 1), (4, 1, 2)]}}, lambda b, q: q,
                 lambda k: np.where(k < 4, 20 + k, 1 + 2 * (k - 4))),
}
SHAPES = [(B, H, SQ, SK), (SQ, 1), (1, 1, 1, SK), (H, 1, SK)]


def plus(graph, score, tensors):
    """A bias of rows as they lie, beside ALiBi of coordinates."""
    row, key = (graph.gen_index(input=score, axis=axis, compute_data_type="INT32") for axis in (2, 3))
    away = graph.abs(input=graph.sub(a=row, b=key, compute_data_type="FLOAT"))
    return graph.sub(a=graph.add(a=score, b=tensors["bias"]), b=graph.mul(a=away, b=0.125))


def taken(case, shape):
    return BIAS[tuple(slice(0, n) for n in (1,) * (4 - len(shape)) + shape)].reshape(shape)


def meaning(case, bias):
    options, q_of, k_of = MOVED[case]
    table = np.broadcast_to(bias, BIAS.shape)
    mask = (lambda b, h, q, k: k <= q + SK - SQ) if options.get("is_causal") else None
    return (lambda s, b, h, q, k: s + table[b, h, q, k] - 0.125 * np.abs(q_of(b, q) - k_of(k))), mask


@pytest.mark.parametrize("case", MOVED)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_of_the_graph_style_in_numpy(case, shape):
    q, k, v = random_qkv(1, B, H, SQ, SK)
    bias, dout = taken(case, shape), np.random.default_rng(2).standard_normal(q.shape)
    want = dense(q, k, v, *meaning(case, bias), dout=dout)
    out, pullback = fxn.vjp(q, k, v, plus, style="graph", tensors={"bias": bias}, **MOVED[case][0])
    grads = pullback(dout)
    np.testing.assert_allclose(out, want["out"], atol=1e-12)
    for got, name in zip(grads[:3], ("dq", "dk", "dv")):
        np.testing.assert_allclose(got, want[name], atol=1e-12)


@pytest.mark.parametrize("engine", ["ref", "cpu"])
@pytest.mark.parametrize("case", MOVED)
def test_inputs_of_storage(case, engine):
    """In texts, with gradients of what they index, and masks by them."""
    q, k, v = random_qkv(3, B, H, SQ, SK)
    ids, dout = np.array([0, 1, 1, 0, 2], np.int32), np.random.default_rng(4).standard_normal(q.shape)
    of_k = np.array([1, 0, 2, 1, 1, 0, 0, 2, 2], np.int32)
    score, ready = meaning(case, BIAS)
    text = ("tensor bias : f64[4]\ntensor ids : i32[1]\ntensor of_k : i32[1]\n"
            "score = score + bias[b, h, q_row, k_row] - 0.125 * abs(q - k)\nmask = ids[q_row] == of_k[k_row]")

    def mask(b, h, q, k):
        return (ids[q] == of_k[k]) & (True if ready is None else ready(b, h, q, k))
    want = dense(q, k, v, score, mask, dout=dout)
    out, pullback = fxn.vjp(q, k, v, text, tensors={"bias": BIAS, "ids": ids, "of_k": of_k}, engine=engine,
                            **MOVED[case][0])
    grads = pullback(dout)
    np.testing.assert_allclose(out, want["out"], atol=1e-12)
    for got, name in zip(grads[:3], ("dq", "dk", "dv")):
        np.testing.assert_allclose(got, want[name], atol=1e-12)
    np.testing.assert_allclose(grads.tensors["bias"], want["dscore"], atol=1e-12)


@pytest.mark.parametrize("axis", ["b", "h"])
def test_arrays_beside_moved_batch_entries_and_heads(axis):
    """b and h have no inputs of storage: what would be read there is refused, and what stretches along them is not."""
    q, k, v = random_qkv(6, B, H, SQ, SK)
    with pytest.raises(fxattn.ArgumentError, match="coordinates of %s" % axis):
        fxn.attention(q, k, v, plus, style="graph", tensors={"bias": BIAS}, coordinates={axis: 1})
    flat = BIAS[:1, :1]
    got = fxn.attention(q, k, v, plus, style="graph", tensors={"bias": flat}, coordinates={axis: 1})
    np.testing.assert_array_equal(got, fxn.attention(q, k, v, plus, style="graph", tensors={"bias": flat}))


@pytest.mark.parametrize("case", ["q_start", "aligned", "aligned and causal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_of_the_graph_style_in_torch(case, shape):
    torch = pytest.importorskip("torch")
    from fxattn.torch import attention
    arrays = random_qkv(7, B, H, SQ, SK)
    bias, dout = taken(case, shape), np.random.default_rng(8).standard_normal(arrays[0].shape)
    want = dense(*arrays, *meaning(case, bias), dout=dout)
    given = {"q_start": torch.from_numpy(STARTS)} if case == "q_start" else dict(MOVED[case][0])
    q, k, v, table = (torch.from_numpy(x.copy()).requires_grad_() for x in (*arrays, bias))
    out = attention(q, k, v, plus, style="graph", tensors={"bias": table}, **given)
    np.testing.assert_allclose(out.detach().numpy(), want["out"], atol=1e-12)
    grads = torch.autograd.grad(out, (q, k, v, table), torch.from_numpy(dout))
    summed = tuple(i for i, n in enumerate((1,) * (4 - len(shape)) + shape) if n == 1)
    wanted = [want["dq"], want["dk"], want["dv"], want["dscore"].sum(summed, keepdims=True).reshape(shape)]
    for got, grad in zip(grads, wanted):
        np.testing.assert_allclose(got.numpy(), grad, atol=1e-12)


def test_properties_and_names():
    program = fxattn.Program.from_text("tensor t : f32[2]\nscore = score + t[q_row, k_row]\nmask = k <= q")
    properties = program.properties()
    assert {"q_row", "k_row"} <= set(properties["score_depends"]) and set(properties["mask_depends"]) == {"q", "k"}
    assert "causal" in properties["names"] and "t[q_row, k_row]" in program.text
    assert "causal" not in fxattn.Program.from_text("mask = k_row <= q_row").properties()["names"]


@pytest.mark.parametrize("text, size", [("score + t[q_row]", 3), ("score + t[k_row]", 5)])
def test_strict_indices_of_rows_that_positions_move(text, size):
    """The proof that indices are inside counts rows as they lie: 0 of them is not where all of them are."""
    q, k = np.zeros((2, 1, 3, 4)), np.zeros((2, 1, 5, 4))
    call = {"q_start": [7, 100], "coordinates": {"k": [(0, 9, 2)]}, "bounds_check": True}
    fxn.attention(q, k, k, text, tensors={"t": np.zeros(size)}, **call)
    with pytest.raises(IndexError, match="index %d is outside axis 0 of tensor 't'" % (size - 1)):
        fxn.attention(q, k, k, text, tensors={"t": np.zeros(size - 1)}, **call)
