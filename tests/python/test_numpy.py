# SPDX-License-Identifier: Apache-2.0
"""fxattn.numpy forward, against attention written in NumPy: programs, layouts, strides, dtypes and every feature."""
import os
import sys

import fxattn
import pytest

np = pytest.importorskip("numpy")
sys.path.insert(0, os.path.dirname(__file__))
import fxattn.numpy as fn  # noqa: E402
from dense import close, dense, random_qkv  # noqa: E402

CAP = "score = cap * tanh((score + slopes[h] * (q - k)) / cap)"
# Of f32 arithmetic: some tens of roundings in the longest sums here; of storage: one rounding.
ROUNDING = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2,
            "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}


def cap_of(cap, slopes):
    return lambda s, b, h, q, k: cap * np.tanh((s + np.asarray(slopes, float)[h] * (q - k)) / cap)


def causal(b, h, q, k):
    return q >= k


@pytest.mark.parametrize("score, mask", [
    (None, None), (None, "q >= k"), (CAP, "q >= k"), (CAP + "\nmask = q >= k", None),
    ("cap * tanh((score + slopes[h] * (q - k)) / cap)  # an expression", " q >= k # and a comment"),
    ("tensor slopes : f64[1]\nparam cap : float = 5\n" + CAP, "mask = q >= k")])
def test_program_texts_and_expressions(score, mask):
    q, k, v = random_qkv(1)
    slopes = np.array([0.5, 0.1, -0.2, 0.3])
    uses = score is not None
    got = fn.attention(q, k, v, score, mask, params={"cap": 5.0} if uses else None,
                       tensors={"slopes": slopes} if uses else None)
    wants_mask = mask is not None or score is not None and "mask" in score
    want = dense(q, k, v, cap_of(5.0, slopes) if uses else None, causal if wants_mask else None)
    assert close(got, want["out"])


def test_programs_as_objects_compose_with_texts():
    q, k, v = random_qkv(2)
    program = fxattn.Program("param a : float = 2\nscore = a * score")
    want = dense(q, k, v, lambda s, *_: 2 * s, causal)["out"]
    assert close(fn.attention(q, k, v, program, "q >= k"), want)
    assert close(fn.attention(q, k, v, program, fxattn.Program("mask = q >= k")), want)
    assert close(fn.attention(q, k, v, None, fxattn.Program("mask = q >= k"), scale=2 / np.sqrt(8)), want)
    assert close(fn.attention(q, k, v, program, is_causal=True, params={"a": np.float32(2)}), want)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes(dtype):
    if dtype not in ("float64", "float32", "float16"):
        dtype = getattr(pytest.importorskip("ml_dtypes"), dtype)
    q, k, v = random_qkv(3, sq=33, sk=70, d=24, dv=16, h=4, hkv=2, dtype=dtype)
    out, lse, top = fn.attention(q, k, v, "score = 2 * score", return_lse=True, return_row_max=True)
    want = dense(q, k, v, lambda s, *_: 2 * s)
    assert out.dtype == q.dtype and lse.dtype == top.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert close(out, want["out"], ROUNDING[np.dtype(dtype).name])
    arithmetic = 1e-13 if dtype == "float64" else 1e-2 if np.dtype(dtype).name == "bfloat16" else 1e-5
    assert close(lse, want["lse"], arithmetic) and close(top, want["max"], arithmetic)
    wide = fn.attention(q, k, v, return_lse=True, lse_dtype=np.float64)[1]
    assert wide.dtype == np.float64


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "hbsd", "dshb"])
def test_layouts_are_orders_of_axes(layout):
    q, k, v = random_qkv(4, dv=5, hkv=2)
    want = dense(q, k, v, mask=causal)
    order = ["bhsd".index(letter) for letter in layout]
    rows = ["bhs".index(letter) for letter in layout if letter != "d"]
    out, lse = fn.attention(*(x.transpose(order) for x in (q, k, v)), is_causal=True, layout=layout, return_lse=True)
    assert close(out, want["out"].transpose(order)) and close(lse, want["lse"].transpose(rows))


def test_arrays_without_batch_or_heads():
    q, k, v = random_qkv(5, b=1, h=3)
    want = dense(q, k, v)["out"][0]
    assert close(fn.attention(q[0], k[0], v[0], layout="hsd"), want)
    assert close(fn.attention(*(x[0].transpose(1, 0, 2) for x in (q, k, v)), layout="shd"), want.transpose(1, 0, 2))
    alone = dense(q[:, :1], k[:, :1], v[:, :1])["out"][0, 0]
    assert close(fn.attention(q[0, 0], k[0, 0], v[0, 0], layout="sd"), alone)


def test_any_strides():
    q, k, v = random_qkv(6)
    want = dense(q, k, v)["out"]
    store = np.zeros((2, 4, 18, 16))
    store[:, :, ::2, ::2] = k
    backwards = v[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1]
    packed = np.zeros(q.shape, np.dtype([("pad", "u1"), ("x", "f8")]))
    packed["x"] = q
    assert close(fn.attention(packed["x"], store[:, :, ::2, ::2], backwards), want)
    assert close(fn.attention(np.asfortranarray(q), k.astype(">f8"), v), want)
    bias = np.random.default_rng(0).standard_normal((9, 9))
    assert close(fn.attention(q, k, v, "score + t[q, k]", tensors={"t": bias.T}),
                 dense(q, k, v, lambda s, b, h, i, j: s + bias.T[i, j])["out"])
    one = fn.attention(q, k[:1], v[:1])
    assert close(one, dense(q, *(np.repeat(x[:1], 2, 0) for x in (k, v)))["out"])


class OnlyDLPack:
    """What another library's array shows of itself."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_memory_of_every_kind():
    """Read-only, not aligned, of foreign byte order, by DLPack alone; q, k, v, tensors and gradients."""
    q, k, v = random_qkv(3)
    t = np.linspace(0, 1, 4)
    want, back = fn.vjp(q, k, v, "score + t[h]", tensors={"t": t})
    grads = back(q)
    kinds = {"swapped": lambda x: x.astype(">f8"), "by DLPack": OnlyDLPack,
             "not aligned": lambda x: np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view("f8").reshape(x.shape)}
    frozen = [x.copy() for x in (q, k, v, t)]
    for x in frozen:
        x.flags.writeable = False
    for name, given in (("read-only", frozen), *((n, [make(x) for x in (q, k, v, t)]) for n, make in kinds.items())):
        out, pullback = fn.vjp(*given[:3], "score + t[h]", tensors={"t": given[3]})
        found = pullback(given[0])
        assert np.array_equal(out, want), name
        assert all(np.array_equal(x, y) for x, y in zip(found, grads)), name
        assert np.array_equal(found.tensors["t"], grads.tensors["t"]) and found[0].flags.writeable, name


def test_results_go_where_they_are_told_to():
    q, k, v = random_qkv(7, dtype=np.float32)
    room = np.full((2, 4, 18, 8), 7, np.float32)
    got = fn.attention(q, k, v, out=room[:, :, ::2])
    assert np.shares_memory(got, room) and close(room[:, :, ::2], dense(q, k, v)["out"], 1e-5)
    assert (room[:, :, 1::2] == 7).all()
    half = np.empty(q.shape, np.float16)
    assert fn.attention(q, k, v, out=half) is half


def test_lists_and_other_libraries_arrays():
    q, k, v = random_qkv(8, sq=3, sk=3)
    want = dense(q, k, v)["out"]
    assert close(fn.attention(q.tolist(), k.tolist(), v.tolist()), want)
    assert close(fn.attention(OnlyDLPack(q), k, OnlyDLPack(v)), want)


def test_jax_arrays_are_taken():
    jnp = pytest.importorskip("jax.numpy")
    q, k, v = random_qkv(8, dtype=np.float32)
    bias = jnp.asarray(np.random.default_rng(0).standard_normal((9, 9)), jnp.float32)
    want = dense(q, k, v, lambda s, b, h, i, j: s + np.asarray(bias)[i, j])["out"]
    assert close(fn.attention(*map(jnp.asarray, (q, k, v)), "score + t[q, k]", tensors={"t": bias}), want, 1e-5)
    assert fn.attention(*(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v))).dtype.name == "bfloat16"
    pytest.importorskip("fxattn.trace")
    assert close(fn.attention(q, k, v, lambda s, b, h, i, j: s + bias[i, j]), want, 1e-5)


def test_torch_tensors_are_taken_without_a_copy():
    torch = pytest.importorskip("torch")
    q, k, v = random_qkv(8, dtype=np.float32)
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    assert close(fn.attention(*tensors), dense(q, k, v)["out"], 1e-5)
    pytest.importorskip("fxattn.trace")
    out, pullback = fn.vjp(q, k, v, lambda s, b, h, i, j: s + tensors[2][b, h, i, j % 8])
    assert pullback(np.ones_like(out)).of(tensors[2]).shape == v.shape
    pytest.importorskip("ml_dtypes")
    out = fn.attention(*(t.bfloat16() for t in tensors))
    assert out.dtype.name == "bfloat16" and close(out, dense(q, k, v)["out"], 0.05)


@pytest.mark.parametrize("keywords, mask", [
    ({"is_causal": True}, lambda b, h, q, k: q >= k),
    ({"is_causal": True, "bottom_right": True}, lambda b, h, q, k: q + 4 >= k),
    ({"window": (2, 1)}, lambda b, h, q, k: (q - 2 <= k) & (k <= q + 1)),
    ({"window": (None, 0)}, lambda b, h, q, k: q >= k),
    ({"window": (2, None), "bottom_right": True}, lambda b, h, q, k: q + 4 - 2 <= k),
    ({"q_lengths": [5, 9], "k_lengths": np.array([13, 3])}, lambda b, h, q, k:
        (q < np.array([5, 9])[b]) & (k < np.array([13, 3])[b])),
    ({"q_start": np.array([4, 0]), "is_causal": True}, lambda b, h, q, k: q + np.array([4, 0])[b] >= k),
    ({"coordinates": {"q": 4}, "is_causal": True}, lambda b, h, q, k: q + 4 >= k),
    ({"coordinates": {"k": np.arange(13)[::-1]}, "is_causal": True}, lambda b, h, q, k: q >= 12 - k),
    ({"coordinates": {"q": [(0, 10, 1), (5, 0, 1)]}, "is_causal": True},
     lambda b, h, q, k: np.where(q < 5, q + 10, q - 5) >= k)])
def test_masks_lengths_and_coordinates(keywords, mask):
    q, k, v = random_qkv(9, sk=13)
    got, lse = fn.attention(q, k, v, return_lse=True, **keywords)
    want = dense(q, k, v, mask=mask)
    if "q_lengths" in keywords:  # rows past the length are padding
        kept = np.broadcast_to(np.arange(9) < np.array([5, 9])[:, None, None], lse.shape)
        got, lse = np.where(kept[..., None], got, 0), np.where(kept, lse, -np.inf)
    assert close(got, want["out"]) and close(lse, want["lse"])


def test_lengths_and_heads_that_a_program_reads():
    q, k, v = random_qkv(10, sk=13)
    got = fn.attention(q, k, v, "score + q_len + 2 * k_len + 4 * heads * h * k", global_q_len=100, global_k_len=200, global_heads=8)
    assert close(got, dense(q, k, v, lambda s, b, h, i, j: s + 500 + 32 * h * j)["out"])


def test_packed_sequences():
    cu_q, cu_k = np.array([0, 3, 3, 10]), np.array([0, 5, 6, 14], np.int64)
    rng = np.random.default_rng(11)
    q, k, v = (rng.standard_normal((n, 4, 8)) for n in (10, 14, 14))
    out, lse = fn.attention(q, k, v, mask_mod="q >= k", layout="thd", cu_q=cu_q, cu_k=cu_k, return_lse=True)
    for i in range(3):
        rows, keys = slice(*cu_q[i:i + 2]), slice(*cu_k[i:i + 2])
        want = dense(*(x.transpose(1, 0, 2)[None] for x in (q[rows], k[keys], v[keys])), mask=causal)
        assert close(out[rows], want["out"][0].transpose(1, 0, 2)) and close(lse[rows], want["lse"][0].T)
    turned = fn.attention(*(x.transpose(1, 0, 2) for x in (q, k, v)), layout="htd", cu_q=cu_q, cu_k=cu_k, is_causal=True)
    assert np.array_equal(turned.transpose(1, 0, 2), out)
    assert fn.attention(q, q, q, layout="thd", cu_q=cu_q).shape == q.shape


def test_pages():
    q, k, v = random_qkv(12, sq=1, sk=12)
    lengths, table = np.array([12, 7]), np.array([[4, 0, 2], [3, 1, 5]])
    pages_k, pages_v = (np.zeros((6, 4, 4, 8)) for _ in range(2))
    for pages, source in ((pages_k, k), (pages_v, v)):
        for b in range(2):
            for i in range(3):
                pages[table[b, i]] = source[b, :, 4 * i:4 * i + 4]
    want = dense(q, k, v, mask=lambda b, h, i, j: j < lengths[b])["out"]
    got = fn.attention(q, pages_k, pages_v, pages=table, k_lengths=lengths)
    assert close(got, want)
    packed = fn.attention(q[:, :, 0], pages_k, pages_v, layout="thd", pages=table, k_lengths=lengths, cu_q=[0, 1, 2])
    assert close(packed, want[:, :, 0])


def test_sinks():
    q, k, v = random_qkv(13)
    sink = np.array([0.3, -1, 2, 0])
    for given, means in (("zero", np.zeros(4)), (sink, sink), (sink.astype(np.float32), sink)):
        out, lse = fn.attention(q, k, v, sinks=given, return_lse=True)
        want = dense(q, k, v, sink=means.astype(np.float32) if given is not sink else means)
        assert close(out, want["out"]) and close(lse, want["lse"])


def test_dropout_is_by_counter():
    q, k, v = random_qkv(14, sq=64, sk=64)
    whole = fn.attention(q, k, v, dropout_p=0.5, seed=3)
    assert np.array_equal(whole, fn.attention(q, k, v, dropout_p=0.5, seed=3))
    assert not np.array_equal(whole, fn.attention(q, k, v, dropout_p=0.5, seed=4))
    part = fn.attention(q[:, :, 32:], k, v, dropout_p=0.5, seed=3, coordinates={"q": 32})
    assert close(part, whole[:, :, 32:])
    identity = np.broadcast_to(np.eye(64), (2, 4, 64, 64)).copy()
    p = fn.attention(q, k, identity, dropout_p=0.5, seed=3)
    kept = p != 0
    assert 0.45 < kept.mean() < 0.55 and close(p[kept], 2 * dense(q, k, identity)["out"][kept])


def test_halves_merge():
    q, k, v = random_qkv(15)
    parts = [fn.attention(q, k[:, :, s], v[:, :, s], mask_mod="q >= k", return_lse=True, coordinates={"k": s.start})
             for s in (slice(0, 5), slice(5, 9))]
    out, lse = fn.merge(*parts[0], *parts[1])
    want = dense(q, k, v, mask=causal)
    assert close(out, want["out"]) and close(lse, want["lse"])


def test_rows_that_attend_to_nothing_and_empty_arrays():
    q, k, v = random_qkv(16)
    out, lse = fn.attention(q, k, v, mask_mod="q > 20", return_lse=True)
    assert not out.any() and np.isneginf(lse).all()
    assert fn.attention(q[:, :, :0], k, v).shape == (2, 4, 0, 8)
    assert not fn.attention(q, k[:, :, :0], v[:, :, :0]).any()
    assert fn.attention(q[:0], k[:0], v[:0]).shape == (0, 4, 9, 8)


def test_engines_agree_and_options_reach_them():
    q, k, v = random_qkv(17, dtype=np.float32)
    cpu, ref = (fn.attention(q, k, v, is_causal=True, engine=name, deterministic=True) for name in ("cpu", "ref"))
    assert close(cpu, ref, 1e-6)
    doc = np.arange(9)
    assert fn.attention(q, k, v, "score + t[q + 1]", tensors={"t": doc.astype(np.float32)}).shape == q.shape
    for kind in (fxattn.BindingError, IndexError):
        with pytest.raises(kind, match="index 9 is outside axis 0 of tensor 't'"):
            fn.attention(q, k, v, "score + t[q + 1]", tensors={"t": doc.astype(np.float32)}, bounds_check=True)


def test_results_do_not_depend_on_threads():
    q, k, v = random_qkv(18, sq=200, sk=200, d=32, dtype=np.float32)
    want = fn.attention(q, k, v, is_causal=True)
    for threads in (1, 2, 5):
        fxattn.set_num_threads(threads)
        try:
            assert np.array_equal(fn.attention(q, k, v, is_causal=True), want)
        finally:
            fxattn.set_num_threads(0)


def test_results_may_lie_where_inputs_do():
    """As ufuncs have it: an output that overlaps an input is what it would be elsewhere."""
    q, k, v = random_qkv(19)
    want = fn.attention(q, k, v, is_causal=True)
    for name in "qkv":
        given = {"q": q.copy(), "k": k.copy(), "v": v.copy()}
        got = fn.attention(*given.values(), is_causal=True, out=given[name])
        assert got is given[name] and np.array_equal(got, want)
    room = np.zeros((2, 4, 10, 8))
    room[:, :, :9] = q
    assert np.array_equal(fn.attention(room[:, :, :9], k, v, is_causal=True, out=room[:, :, 1:]), want)
    bias = np.random.default_rng(0).standard_normal((2, 4, 9, 8))
    want = fn.attention(q, k, v, "score + t[b, h, q, k % 8]", tensors={"t": bias})
    assert np.array_equal(fn.attention(q, k, v, "score + t[b, h, q, k % 8]", tensors={"t": bias}, out=bias), want)


def test_numbers_of_every_kind():
    q, k, v = random_qkv(20)
    want = fn.attention(q, k, v, "score * 2 + q // 3")
    for two, three in ((2, 3), (np.float32(2), np.int64(3)), (np.array(2.0), np.array(3)), (True + True, np.uint8(3))):
        assert np.array_equal(fn.attention(q, k, v, "score * a + q // n", params={"a": two, "n": three}), want)
    assert np.array_equal(fn.attention(q, k, v, scale=np.float32(0.5)), fn.attention(q, k, v, scale=0.5))
