# SPDX-License-Identifier: Apache-2.0
"""What fxattn.jax says of what it does not take: a call, and the words that its message must have. None of them is left to
JAX, NumPy or Python, whose messages name nothing of the user's call."""
import inspect

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax_support import qkv  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn.jax import SequenceDescriptor, attention, dot_product_attention, ring_attention  # noqa: E402

Q, K, V = qkv(1, s=8)
INTS = jnp.asarray([3, 4])
IDS = jnp.ones((2, 8), int)
KEY = jax.random.key(0)


def given(**options):
    return lambda: attention(Q, K, V, **options)


def packed(**options):
    return lambda: attention(Q[0], K[0], V[0], layout="thd", **options)


def traced(name, value, **rest):
    return lambda: jax.jit(lambda x: attention(Q, K, V, **{name: x}, **rest))(value)


def nn(**options):
    return lambda: dot_product_attention(Q, K, V, **options)


CASES = {
    "no keys": (lambda: attention(Q, None, V), "k is None; an array is accepted"),
    "text for keys": (lambda: attention(Q, "keys", V), "k is of type str; an array"),
    "int queries": (lambda: attention(Q.astype(int), K, V), "q has dtype int32; a float type"),
    "floats of 8 bits beside others": (lambda: attention(Q.astype("float8_e4m3fn"), K, V),
                                       "dtypes float8_e4m3fn, float32, float32; floats of 8 bits are not promoted"),
    "other floats of 8 bits": (lambda: attention(*(x.astype("float8_e4m3b11fnuz") for x in (Q, K, V))),
                               "q has dtype float8_e4m3b11fnuz; a float type is accepted: float64.*, float8_e5m2$"),
    "a scale by position": (lambda: attention(Q, K, V, None, None, 0.5),
                            "takes q, k, v, score_mod, mask_mod by position, and everything else by name.*type float"),
    "a bias by position": (lambda: attention(Q, K, V, Q), "score_mod is of type .*Array.*; a function, a Program or"),
    "scale of text": (given(scale="x"), "scale is 'x'; a number, or an array of rank 0"),
    "scale of an axis": (given(scale=jnp.ones(2)), r"scale is float32 of shape \(2,\)"),
    "dropout of text": (given(dropout="x"), "dropout is 'x'; a number from 0 to below 1"),
    "dropout of nothing": (given(dropout_p=None), "dropout_p is None; a number from 0"),
    "dropout of 1": (given(dropout=1.0, dropout_key=KEY), "dropout is 1.0; a number from 0"),
    "traced dropout": (traced("dropout", 0.5, dropout_key=KEY), "dropout is traced.*static_argnames.*lax.switch"),
    "dropout without key": (given(dropout=0.5), "dropout_key, a key of jax.random"),
    "seed for a key": (given(dropout=0.5, dropout_key=3), r"dropout_key is of type int.*jax.random.key\(0\)"),
    "many keys": (given(dropout=0.5, dropout_key=jax.random.split(KEY, 2)), "one key of jax.random"),
    "traced window": (traced("window", 3), "window is traced.*static_argnames.*mask_mod=lambda"),
    "a traced side": (lambda: jax.jit(lambda x: attention(Q, K, V, window=(x, 0)))(3), "window is traced.*mask_mod"),
    "window of text": (given(window=("x", 0)), r"window is \('x', 0\); \(left, right\)"),
    "traced causal": (traced("causal", True), r"causal is traced.*static_argnames=\(\"causal\",\).*mask_mod"),
    "causal of text": (given(causal="yes"), "causal is 'yes'; True or False"),
    "bottom_right of an array": (given(bottom_right=jnp.ones(3)), "bottom_right is .*True or False"),
    "traced return_lse": (traced("return_lse", True), "return_lse is traced"),
    "one offset": (packed(cu_q=3), r"cu_q has shape \(\); ints of shape \[N\+1\]"),
    "no offsets": (packed(cu_q=jnp.zeros(0, int)), r"cu_q has shape \(0,\)"),
    "offsets without": (packed(), "without cu_q"),
    "max_q of text": (packed(cu_q=[0, 3, 8], max_q="a"), "max_q is 'a'; an int from 0"),
    "traced max_q": (lambda: jax.jit(lambda n: packed(cu_q=[0, 3, 8], max_q=n)())(8), "max_q is traced.*Python int"),
    "mask": (given(mask=IDS), "mask is no argument here: dot_product_attention .*mask_mod=lambda b, h, q, k"),
    "bias": (given(bias=Q), "bias is no argument here: dot_product_attention .*score_mod=lambda score, b, h, q, k"),
    "two names of one mask": (given(is_causal=True, causal=True), "is_causal= and causal= are both given"),
    "two names of lengths": (given(q_lengths=INTS, lengths=INTS), "q_lengths= and lengths= are both given"),
    "two names of tensors": (given(score_mod="score", tensors={}, score_mod_tensors={}), "score_mod_tensors= are both"),
    "two seeds": (given(dropout_p=0.5, seed=1, dropout_key=KEY), "seed= and dropout_key= are both given"),
    "a seed of text": (given(dropout_p=0.5, seed="1"), "seed is '1'; an int, or an array of rank 0"),
    "a seed of 65 bits": (given(dropout_p=0.5, seed=1 << 64), "64 bits are accepted"),
    "a style": (given(score_mod="score", style="te"), "style is 'te'"),
    "one number of keys": (given(k_lengths=3), r"k_lengths is 3; ints of shape \(2,\)"),
    "pages": (given(pages=INTS), "pages is no argument here"),
    "jax.nn's lengths": (given(query_seq_lengths=INTS), "query_seq_lengths= is called q_lengths="),
    "jax.nn's window": (given(local_window_size=3), r"is called window=\(left, right\)"),
    "flax's key": (given(dropout_rng=KEY), "dropout_rng is called dropout_key="),
    "TE's mask type": (given(attn_mask_type="causal"), "attn_mask_type is of the modules in fxattn.jax.flax .*causal"),
    "TE's scale": (given(scale_factor=1.0), "scale_factor is of the modules .*here it is scale"),
    "a misspelt keyword": (given(widow=(3, 0)), "unexpected keyword widow; accepted are q, k, v.*window"),
    "two lengths": (given(lengths=(3, 8)), r"lengths is \(3, 8\), which may be meant for two batch entries or for q and k"),
    "one length": (given(lengths=3), r"lengths is int.* of shape \(\); ints of shape \(2,\)"),
    "lengths of floats": (given(lengths=jnp.ones(2)), "lengths is float32"),
    "no descriptor": (given(sequence_descriptor=IDS), "a SequenceDescriptor is accepted"),
    "descriptor of nothing": (given(sequence_descriptor=SequenceDescriptor()), "neither seqlens nor segment_ids"),
    "descriptor of both": (given(sequence_descriptor=SequenceDescriptor((INTS, INTS), segment_ids=(IDS, IDS))),
                           "both seqlens and segment_ids; one of them"),
    "descriptor of positions": (given(sequence_descriptor=SequenceDescriptor((INTS, INTS), segment_pos=(IDS, IDS))),
                                "segment_pos and without segment_ids"),
    "descriptor of three": (lambda: SequenceDescriptor.from_seqlens((INTS,) * 3), "of one array, or of a pair"),
    "descriptor of numbers": (lambda: SequenceDescriptor.from_seqlens((3, 4)), "of one array, or of a pair"),
    "implementation": (nn(implementation="xla"), "implementation is 'xla'; None .*jax.nn.dot_product_attention has \"xla\""),
    "jax.nn has no score_mod": (nn(score_mod="score"), "score_mod is no argument of jax.nn's; fxattn.jax.attention has it"),
    "jax.nn's keys": (lambda: dot_product_attention(Q, None, V), "key is None; an array"),
    "jax.nn's causal": (nn(causal=True), "causal= is called is_causal="),
    "a mask of ints": (nn(mask=IDS), "mask has dtype int32; bool"),
    "ring by position": (lambda: ring_attention(Q, K, V, "sp", "zigzag"), "ring_attention takes q, k, v"),
    "ring of packed rows": (lambda: ring_attention(Q, K, V, "sp", cu_q=INTS), "cu_q is no argument of a ring; q_lengths"),
    "ring outside": (lambda: ring_attention(Q, K, V, "sp"), "axis_name is 'sp', which is no axis.*jax.shard_map"),
    "another platform": (lambda: jax.jit(lambda q: attention(q, K, V)).trace(Q).lower(lowering_platforms=("tpu",)),
                         "fxattn has engines for cpu and cuda, and no other platform"),
    "int()": (given(score_mod=lambda s, b, h, i, j: s + int(i)), r"x.astype\(jnp.int32\)"),
    "float()": (given(score_mod=lambda s, b, h, i, j: s * float(i)), r"x.astype\(jnp.float32\).*jax.numpy's"),
    "a key of a dictionary": (given(score_mod=lambda s, b, h, i, j: s + {0: 1.0}[i]), "make an array of"),
}


@pytest.mark.parametrize("case", CASES)
def test_words(case):
    call, words = CASES[case]
    with pytest.raises(fxattn.Error, match="(?s)" + words) as caught:
        call()
    assert "torch" not in str(caught.value)


RUN = {
    "a length beyond": (given(lengths=jnp.asarray([9, 3])), r"q_lengths\[0\] is 9: accepted are 0 to 8"),
    "a length of keys": (given(lengths=(None, jnp.asarray([9, 3]))), r"k_lengths\[0\] is 9"),
    "an offset beyond": (packed(cu_q=[0, 3, 9]), r"cu_q\[2\] is 9"),
    "a sequence too long": (packed(cu_q=[0, 3, 8], max_q=2), r"cu_q\[1\] to cu_q\[2\]|cu_q\[0\] to cu_q\[1\]"),
}


@pytest.mark.parametrize("case", RUN)
def test_what_a_run_finds_is_told_by_the_keyword(case):
    call, words = RUN[case]
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="fxattn: " + words):
        jax.block_until_ready(call())


def test_help_shows_keywords_and_nothing_that_is_there_to_be_refused():
    for function in (attention, dot_product_attention, ring_attention):
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert list(inspect.signature(dot_product_attention).parameters) == list(
        inspect.signature(jax.nn.dot_product_attention).parameters)
