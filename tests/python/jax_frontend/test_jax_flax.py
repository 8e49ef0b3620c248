# SPDX-License-Identifier: Apache-2.0
"""The modules of fxattn.jax.flax (linen) and fxattn.jax.nnx against attention(), and trained."""
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402
from jax_support import all_close, close, exact, plain, qkv, rand  # noqa: E402
from soft_cap import SoftCap  # noqa: E402

import fxattn.jax.flax as linen  # noqa: E402
import fxattn.jax.nnx as modules  # noqa: E402
from fxattn.jax import attention  # noqa: E402

BOTH = ("linen", "nnx")


def made(which, *arguments, **options):
    """A call of DotProductAttention(...)(...), whichever module it is."""
    if which == "linen":
        module = linen.DotProductAttention(*arguments, **options)
        return lambda *a, **rest: module.apply({}, *a, **rest)
    return modules.DotProductAttention(*arguments, **options)


@pytest.mark.parametrize("which", BOTH)
def test_callbacks_in_the_constructor_and_tensors_at_the_call(which):
    q, k, v = qkv(90, hkv=2)
    cap, tensors = SoftCap(), {"cap": jnp.full((1, 1, 1, 1), 0.8)}
    run = made(which, 8, 4, 2, score_mod=cap.forward, score_mod_bprop=cap.backward)

    def loss(q, tensors):
        return run(q, k, v, score_mod_tensors=tensors, score_mod_bprop_tensors=tensors).sum()

    def want(q):
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: 0.8 * jnp.tanh(s / 0.8), causal=True).sum()
    assert all_close(jax.jit(jax.value_and_grad(loss))(q, tensors), jax.jit(jax.value_and_grad(want))(q), 400)


@pytest.mark.parametrize("which", BOTH)
def test_masks_biases_and_layouts(which):
    q, k, v = qkv(91)
    bias, hidden = rand(94, 1, 4, 9, 9), jnp.asarray(np.random.default_rng(2).random((2, 1, 9, 9)) < 0.3)
    hidden = hidden.at[..., 0].set(False)
    lengths = jnp.asarray([5, 9])
    ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0, 0], [1] * 9])
    apart = (jnp.where(ids == 0, -1, ids), jnp.where(ids == 0, -2, ids))
    text = "score + bias[0, h, q, k]"
    descriptor = linen.SequenceDescriptor
    cases = [
        (dict(attn_mask_type="no_mask", window_size=(2, -1)), {}, dict(window=(2, None))),
        (dict(attn_mask_type="causal"), {"bias": bias},
         dict(causal=True, score_mod=text, score_mod_tensors={"bias": bias})),
        (dict(attn_bias_type="pre_scale_bias", scale_factor=0.5), {"bias": bias},
         dict(causal=True, scale=0.5, score_mod="score + 0.5 * bias[0, h, q, k]", score_mod_tensors={"bias": bias})),
        (dict(attn_mask_type="padding"), {"mask": hidden},
         dict(mask_mod="!hidden[b, 0, q, k]", score_mod_tensors={"hidden": hidden})),
        (dict(attn_mask_type="padding_causal"), {"sequence_descriptor": descriptor.from_seqlens(lengths)},
         dict(causal=True, lengths=lengths)),
        (dict(attn_mask_type="padding_causal"), {"sequence_descriptor": descriptor.from_segment_ids_and_pos(ids)},
         dict(causal=True, segment_ids=apart)),
        (dict(attn_mask_type="causal", softmax_type="off-by-one"), {}, dict(causal=True, sinks="zero")),
    ]
    for options, given, want in cases:
        assert np.array_equal(made(which, 8, 4, **options)(q, k, v, **given), attention(q, k, v, **want)), options
    turned = made(which, 8, 4, transpose_batch_sequence=True)(*(x.swapaxes(0, 1) for x in (q, k, v)))
    causal = attention(q, k, v, causal=True)
    assert np.array_equal(turned.swapaxes(0, 1), causal)
    assert np.array_equal(made(which, 8, 4, qkv_layout="bs3hd")(jnp.stack([q, k, v], 2)), causal)
    assert np.array_equal(made(which, 8, 4, qkv_layout="bshd_bs2hd")(q, jnp.stack([k, v], 2)), causal)


def test_segments_by_position():
    q, k, v = qkv(95, b=1, s=4, t=6)
    ids = (jnp.asarray([[1, 1, 2, 2]]), jnp.asarray([[1, 1, 1, 2, 2, 2]]))
    pos = (jnp.asarray([[0, 1, 0, 1]]), jnp.asarray([[0, 1, 2, 0, 1, 2]]))
    descriptor = linen.SequenceDescriptor.from_segment_ids_and_pos(ids, pos)
    run = jax.jit(lambda d: made("linen", 8, 4, attn_mask_type="padding_causal")(q, k, v, d))

    def mask(b, h, i, j):
        return (ids[0][b, i] == ids[1][b, j]) & (pos[0][b, i] >= pos[1][b, j])
    assert close(run(descriptor), exact(lambda *a: plain(*a, mask=mask)[0], q, k, v), 20)


def test_dropout_and_learned_offsets():
    q, k, v = qkv(96)
    module = linen.DotProductAttention(8, 4, attention_dropout=0.5, softmax_type="learnable")
    variables = module.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, q, k, v)
    offsets = variables["params"]["softmax_offset"]
    assert offsets.shape == (4,)
    fixed = module.apply(variables, q, k, v, deterministic=True)
    assert np.array_equal(fixed, attention(q, k, v, causal=True, sinks=offsets))
    drawn = [module.apply(variables, q, k, v, rngs={"dropout": jax.random.key(n)}) for n in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    other = modules.DotProductAttention(8, 4, attention_dropout=0.5, softmax_type="learnable", rngs=nnx.Rngs(3))
    assert not np.array_equal(other(q, k, v), other(q, k, v))
    assert np.array_equal(other(q, k, v, deterministic=True), fixed)
    grads = nnx.grad(lambda m: m(q, k, v, deterministic=True).sum())(other)
    assert grads.softmax_offset[...].any()


def test_multi_head_attention_trains():
    x, y = rand(97, 2, 12, 16), rand(98, 2, 12, 16)

    def alibi(score, b, h, i, j):
        return score - 0.5 * (i - j)
    module = linen.MultiHeadAttention(8, 4, 2, score_mod=alibi, use_bias=True)
    params = module.init(jax.random.key(0), x)

    @jax.jit
    def step(params):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((module.apply(p, x) - y) ** 2))(params)
        return loss, jax.tree.map(lambda p, g: p - 0.3 * g, params, grads)
    losses = []
    for _ in range(10):
        loss, params = step(params)
        losses.append(float(loss))
    assert losses[-1] < 0.95 * losses[0]
    other = modules.MultiHeadAttention(16, 8, 4, 2, score_mod=alibi, use_bias=True, rngs=nnx.Rngs(0))
    for name in ("query", "key", "value", "out"):
        for part in ("kernel", "bias"):
            getattr(getattr(other, name), part).set_value(params["params"][name][part])
    assert close(other(x), module.apply(params, x), 40)
    loss, grads = nnx.jit(nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2)))(other)
    assert float(loss) <= losses[-1] and grads.query.kernel[...].any()


@pytest.mark.parametrize("which", BOTH)
def test_what_is_wrong_is_listed(which):
    q, k, v = qkv(99)
    with pytest.raises(ValueError, match="attn_mask_type is 'other'.*softmax_type is 'soft'.*multiple of num_gqa_groups"):
        made(which, 8, 4, 3, attn_mask_type="other", softmax_type="soft")(q, k, v)
    for window in (5, (3,), (3, None), (1.5, 0)):
        with pytest.raises(ValueError, match=r"window_size is .*, not \(left, right\): two ints, where -1"):
            made(which, 8, 4, window_size=window)(q, k, v)
    with pytest.raises(ValueError, match="with bias.*sequence_descriptor or mask with.*score_mod_tensors without"):
        made(which, 8, 4, attn_bias_type="no_bias")(q, k, v, bias=jnp.ones((9, 9)), mask=jnp.ones((9, 9), bool),
                                                   score_mod_tensors={})
    with pytest.raises(ValueError, match="the module has"):
        made(which, 8, 8)(q, k, v)
