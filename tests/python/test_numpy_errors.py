# SPDX-License-Identifier: Apache-2.0
"""fxattn.numpy: what is wrong is said, with what was given and what is accepted, and by an exception of its kind."""
import os
import sys

import fxattn
import pytest

np = pytest.importorskip("numpy")
sys.path.insert(0, os.path.dirname(__file__))
import fxattn.numpy as fn  # noqa: E402
from dense import random_qkv  # noqa: E402

Q, K, V = random_qkv(1)
T = np.zeros(3)
READ_ONLY = np.zeros(Q.shape)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize("arguments, keywords, words", [
    ((Q, K[:, :3], V[:, :3]), {}, "hq is 4 and hkv is 3"),
    ((Q, K[..., :5], V), {}, r"\(2, 4, 9, 5\)"),
    ((Q, K, V[:, :, :5]), {}, r"\(2, 4, 5, 8\)"),
    ((Q, K[:, :, :, None], V), {}, "bhsd"),
    ((Q[0], K[0], V[0]), {}, "bhsd"),
    ((Q, np.concatenate([K, K]), np.concatenate([V, V])), {}, "batch of 2 and k of 4"),
    ((Q, K, V), {"layout": "bhdx"}, "layout is 'bhdx'"),
    ((Q, K, V), {"layout": 3}, "layout is 3"),
    ((Q, K, V), {"layout": "bbsd"}, "layout is 'bbsd'"),
    ((Q, K, V), {"cu_q": [0, 1]}, "packed"),
    ((Q[0], K[0], V[0]), {"layout": "thd"}, "cu_q is missing"),
    ((Q[0], K[0], V[0]), {"layout": "thd", "cu_q": []}, "cu_q is empty"),
    ((Q[0], K[0], V[0]), {"layout": "thd", "cu_q": [0, 4], "cu_k": [0, 2, 4]}, "2 offsets and cu_k 3"),
    ((Q[0], K[0], V[0]), {"layout": "thd", "cu_q": [0, 99]}, "99"),
    ((Q[0], K, V), {"layout": "thd", "kv_layout": "bhsd", "cu_q": [0, 4]}, "unless there are pages"),
    ((Q, K, V), {"dropout_p": 1.0}, "dropout_p is 1.0"),
    ((Q, K, V), {"dropout_p": float("nan")}, "dropout_p is nan"),
    ((Q, K, V), {"seed": -1}, "seed is -1"),
    ((Q, K, V), {"scale": float("inf")}, "scale is inf"),
    ((Q, K, V), {"sinks": "one"}, "sinks is 'one'"),
    ((Q, K, V), {"sinks": T}, r"\(4,\)"),
    ((Q, K, V), {"k_lengths": [1]}, r"k_lengths has shape \(1,\); \(2\)"),
    ((Q, K, V), {"k_lengths": [1, 10]}, "10"),
    ((Q, K, V), {"k_lengths": [1, 1 << 40]}, "32 bits"),
    ((Q, K, V), {"coordinates": {"x": 1}}, "b, h, q and k"),
    ((Q, K, V), {"coordinates": {"q": [1, 2]}}, r"\(9\)"),
    ((Q, K, V), {"coordinates": {"q": [(0, 1)]}}, "begin, base, step"),
    ((Q, K, V), {"engine": "nonsense"}, "nonsense"),
    ((Q, K, V), {"out": np.zeros((2, 4, 9, 7))}, r"out has shape \(2, 4, 9, 7\)"),
    ((Q, K, V), {"out": READ_ONLY}, "read-only"),
    ((Q, K, V), {"out": np.zeros(Q.shape, ">f8")}, "foreign"),
    ((Q, K, V), {"out": np.broadcast_to(np.zeros(8), Q.shape)}, "read-only"),
    ((Q, K, V), {"return_lse": True, "lse_dtype": np.float32}, "float64 is accepted"),
    ((Q.astype("f4"), K.astype("f4"), V.astype("f4")), {"return_lse": True, "lse_dtype": "f2"}, "float32 or float64"),
    ((Q, K, V, "score + a"), {}, "unknown name 'a'"),
    ((Q, K, V, "score + a"), {"params": {"a": 1.0, "c": 2.0}}, "'c', which the program does not use; it uses 'a'"),
    ((Q, K, V, fxattn.Program("param a : float\ntensor t : f32[1]\nscore = a * t[q]")), {}, "tensors lacks 't'"),
    ((Q, K, V, fxattn.Program("param a : float\nscore = a * score")), {}, "params lacks 'a'"),
    ((Q, K, V, fxattn.Program("param a : int\nscore = a * score")), {"params": {"a": 1.5}}, "declares it as an int"),
    ((Q, K, V, fxattn.Program("tensor t : f32[1]\nscore = t[q]")), {"tensors": {"t": T}}, "f32"),
    ((Q, K, V, fxattn.Program("tensor t : f64[2]\nscore = t[q, k]")), {"tensors": {"t": T}}, "rank"),
    ((Q, K, V, fxattn.Program.from_text("dscore = dscore", kind="bprop")), {}, "kind bprop"),
    ((Q, K, V), {"pages": [[0], [1]]}, "pages is given without k_lengths"),
    ((Q, K, V), {"score_mod_bprop": "dscore"}, "score_mod_bprop is given without score_mod"),
    ((Q, K, V, "score"), {"bprop_params": {"a": 1}}, "bprop_params is given without score_mod_bprop"),
])
def test_values(arguments, keywords, words):
    with pytest.raises(ValueError, match=words) as caught:
        fn.attention(*arguments, **keywords)
    assert isinstance(caught.value, fxattn.Error)


@pytest.mark.parametrize("arguments, keywords, words", [
    ((Q, K, V), {"window": 3}, "window is 3"),
    ((Q.astype(int), K, V), {}, "q has dtype int64"),
    ((Q, K.astype(complex), V), {}, r"k has dtype complex128; float64, [a-z0-9_, ]*float8_e5m2 are accepted"),
    ((Q, K, None), {}, "v is None; an array is accepted"),
    ((Q, K, V, "score + t[q]"), {"tensors": {"t": None}}, r"tensors\['t'\] is None"),
    ((Q, K, "text"), {}, "v has dtype"),
    ((np.ma.masked_array(Q, mask=Q > 0), K, V), {}, "q is a masked array, whose mask would not be seen; give its"),
    ((Q, K, V, "score + t[q]"), {"tensors": {"t": np.ma.masked_array(T)}}, r"tensors\['t'\] is a masked array"),
    ((Q, K, V, 3), {}, "score_mod is of type int"),
    ((Q, K, V, None, b"q >= k"), {}, "mask_mod is of type bytes"),
    ((Q, K, V, lambda s, b, h, q, k: s, "q >= k"), {}, "score_mod given as a function and mask_mod as a program"),
    ((Q, K, V), {"seed": 1.5}, "seed is of type float"),
    ((Q, K, V), {"out": [1]}, "out is of type list"),
    ((Q, K, V), {"k_lengths": [1.0, 2.0]}, "k_lengths has dtype float64; int64, int32, int16, int8, uint8 are"),
    ((Q, K, V), {"nonsense": 1}, "unexpected keyword nonsense; accepted are"),
    ((Q, K, V), {"causal": True, "dropout": 0.5}, "causal= is called is_causal=; dropout= is called dropout_p="),
    ((Q, K, V), {"score": None, "nonsense": 1}, "score= is called score_mod=; unexpected keyword nonsense; accepted are"),
    ((Q, K, V, "score + t[q]"), {"tensors": {"t": T.astype(np.uint16)}}, "uint16"),
    ((Q, K, V, "score + a"), {"params": {"a": "one"}}, "a number is accepted"),
])
def test_types(arguments, keywords, words):
    with pytest.raises(TypeError, match=words) as caught:
        fn.attention(*arguments, **keywords)
    assert isinstance(caught.value, fxattn.Error)


def test_what_only_a_backward_pass_can_have_wrong():
    out, pullback = fn.vjp(Q, K, V)
    with pytest.raises(ValueError, match=r"dout has shape \(2, 4, 9\)"):
        pullback(out[..., 0])
    with pytest.raises(ValueError, match=r"dlse has shape"):
        pullback(out, out)
    with pytest.raises(TypeError, match="dout has dtype int64"):
        pullback(np.ones(out.shape, int))
    with pytest.raises(ValueError, match="wrt has 'x'"):
        fn.vjp(Q, K, V, wrt=("q", "x"))
    with pytest.raises(ValueError, match="shapes"):
        fn.merge(out, out[..., 0], out[:1], out[..., 0])
    with pytest.raises(TypeError, match="lse_a has dtype int64"):
        fn.merge(out, np.zeros(out.shape[:3], int), out, out[..., 0])


def test_outputs_that_overlap_themselves():
    with pytest.raises(fxattn.Error, match="overlap"):
        fn.attention(Q, K, V, out=np.lib.stride_tricks.as_strided(np.zeros(64), Q.shape, (0, 0, 64, 8)))


def test_a_tensor_of_a_device_is_told(monkeypatch):
    class Elsewhere:
        def __dlpack__(self, **keywords):
            raise BufferError("on cuda:0")

        def __dlpack_device__(self):
            return 2, 0
    with pytest.raises(TypeError, match="q, of type Elsewhere, cannot be used as an array of the host"):
        fn.attention(Elsewhere(), K, V)


@pytest.mark.parametrize("out, lse, words", [
    (Q[:, :, :5], Q[..., 0], r"out has shape \(2, 4, 5, 8\)"), (Q, Q[:, :, :5, 0], r"lse has shape \(2, 4, 5\)"),
    (Q.astype(int), Q[..., 0], "out has dtype int64"), (Q, Q[..., 0].astype(int), "lse has dtype int64"),
    (Q, Q[..., 0].astype(np.float16), "lse has dtype float16")])
def test_a_backward_pass_by_itself_looks_at_what_it_is_given(out, lse, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        fn.backward(Q, out, lse, Q, K, V)
    assert isinstance(caught.value, fxattn.Error)


@pytest.mark.parametrize("keywords, words", [
    ({"scale": "1"}, "scale is of type str"), ({"scale": 1j}, "scale is of type complex"),
    ({"dropout_p": None}, "dropout_p is of type NoneType"), ({"window": (1.5, None)}, r"window is \(1.5, None\)"),
    ({"global_q_len": "5"}, "q_len is of type str"), ({"coordinates": {"q": 1.5}}, "is of type float"),
    ({"coordinates": [1]}, "coordinates is of type list"), ({"tensors": [1], "score_mod": "score"}, "tensors is of type list"),
    ({"params": 3, "score_mod": "score"}, "params is of type int"), ({"engine": 3}, "engine is of type int")])
def test_types_of_numbers(keywords, words):
    with pytest.raises(TypeError, match=words) as caught:
        fn.attention(Q, K, V, **keywords)
    assert isinstance(caught.value, fxattn.Error)


def test_merge_takes_floats():
    with pytest.raises(fxattn.Error, match="dtype"):
        fn.merge(Q.astype(int), Q[..., 0], Q, Q[..., 0])


def test_no_heads_of_keys_are_not_those_of_q():
    """0 heads of k would be "as of q" to the library, which would then read and write beyond."""
    q = np.ones((1, 2, 1, 1))
    for call in (fn.attention, fn.vjp):
        with pytest.raises(fxattn.ArgumentError, match="k has 0 heads"):
            call(q, q[:, :0], q[:, :0])


@pytest.mark.parametrize("given", [dict(window=(1 << 64, None)), dict(global_q_len=1 << 64), dict(coordinates={"q": 1 << 65}),
                                   dict(coordinates={"k": [(0, 1 << 64, 1)]}), dict(window=((1 << 63) + 5, None))])
def test_ints_beyond_64_bits(given):
    q = np.ones((1, 2, 3, 4))
    with pytest.raises(fxattn.ArgumentError, match="64 bits are accepted"):
        fn.attention(q, q, q, **given)
