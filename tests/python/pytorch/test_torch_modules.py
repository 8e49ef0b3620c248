# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention and MultiheadAttention: shapes and mask types of Transformer Engine's, its callbacks, errors."""
import math

import pytest

torch = pytest.importorskip("torch")

from soft_cap import SoftCap  # noqa: E402
from torch_support import eager, inputs  # noqa: E402

from fxattn.torch import DotProductAttention, MultiheadAttention, cache_stats  # noqa: E402

H, D, B, S = 4, 8, 2, 10
TO = {"sbhd": lambda x: x.permute(2, 0, 1, 3), "bshd": lambda x: x.transpose(1, 2)}


def make(qkv_format="bshd", hkv=H, **options):
    q, k, v = inputs(B, H, hkv, S, S, D, D, torch.float32)
    module = DotProductAttention(H, D, hkv, qkv_format=qkv_format, **options)
    return module, (q, k, v), [TO[qkv_format](x) for x in (q, k, v)]


def flat(out, qkv_format="bshd"):
    return TO[qkv_format](out).flatten(-2)


class Identity:
    def forward(self, graph, score, tensors):
        assert tensors == {}
        return score


class CausalByIndex:
    def forward(self, graph, score, tensors):
        row, column = graph.gen_index(input=score, axis=2), graph.gen_index(input=score, axis=3)
        keep = graph.cmp_ge(input=row, comparison=column)
        return graph.binary_select(input0=score, input1=tensors["low"], mask=keep)


class Bias:
    def forward(self, graph, score, tensors):
        return graph.add(a=score, b=tensors["bias"])


@pytest.mark.parametrize("qkv_format", TO)
@pytest.mark.parametrize("kind", ["no_mask", "causal", "causal_bottom_right"])
def test_formats_and_masks(qkv_format, kind):
    module, (q, k, v), given = make(qkv_format, hkv=2, attn_mask_type=kind)
    out = module(*given)
    assert out.shape == given[0].shape[:2] + (H * D,)
    mask = None if kind == "no_mask" else (lambda b, h, i, j: j <= i)
    torch.testing.assert_close(out, flat(eager(q, k, v, mask_mod=mask)[0], qkv_format))


def test_padding_windows_arbitrary_masks_and_biases():
    module, (q, k, v), given = make(attn_mask_type="padding")
    lengths = torch.tensor([10, 6])
    hidden = (torch.arange(S) >= lengths[:, None]).view(B, 1, 1, S)
    want = eager(q, k, v, mask_mod=lambda b, h, i, j: j < lengths[b])[0]
    torch.testing.assert_close(module(*given, hidden), flat(want))
    random = torch.rand(1, 1, S, S) > 0.6
    random[..., 0] = False
    torch.testing.assert_close(module(*given, random, attn_mask_type="arbitrary"),
                               flat(eager(q, k, v, mask_mod=lambda b, h, i, j: ~random[0, 0][i, j])[0]))
    torch.testing.assert_close(module(*given, attn_mask_type="causal", window_size=(3, -1)), flat(
        eager(q, k, v, mask_mod=lambda b, h, i, j: (j <= i) & (i - j <= 3))[0]))
    bias, slopes = torch.randn(1, H, S, S, requires_grad=True), torch.rand(H)
    capped = DotProductAttention(H, D, qkv_format="bshd", attn_mask_type="no_mask", softcap=5.0)
    out = capped(*given, core_attention_bias=bias, alibi_slopes=slopes)
    want = flat(eager(q, k, v, lambda s, b, h, i, j: 5.0 * torch.tanh(
        (s + bias[0, h, i, j] - slopes[h] * (i - j).abs()) / 5.0))[0])
    torch.testing.assert_close(out, want)
    for x, y in zip(torch.autograd.grad(out.sin().sum(), (q, bias)), torch.autograd.grad(want.sin().sum(), (q, bias))):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_callbacks_of_transformer_engine():
    module, (q, k, v), given = make(attn_mask_type="no_mask")
    bias, cap = torch.randn(1, H, S, S), SoftCap()
    torch.testing.assert_close(module(*given, score_mod=Identity().forward), flat(eager(q, k, v)[0]))
    low = torch.full((1, 1, 1, 1), -math.inf)
    torch.testing.assert_close(module(*given, score_mod=CausalByIndex().forward, score_mod_tensors={"low": low}),
                               flat(eager(q, k, v, mask_mod=lambda b, h, i, j: j <= i)[0]))
    torch.testing.assert_close(module(*given, score_mod=Bias().forward, score_mod_tensors={"bias": bias}),
                               flat(eager(q, k, v, lambda s, b, h, i, j: s + bias[0, h, i, j])[0]))
    tensors = {"cap": torch.full((1, 1, 1, 1), 3.0)}
    want = flat(eager(q, k, v, lambda s, *_: 3.0 * torch.tanh(s / 3.0))[0])
    exact = torch.autograd.grad(want.sin().sum(), (q, k, v))
    for more in ({}, {"score_mod_bprop": cap.backward, "score_mod_bprop_tensors": tensors}):
        out = module(*given, score_mod=cap.forward, score_mod_tensors=tensors, **more)
        torch.testing.assert_close(out, want)
        for x, y in zip(torch.autograd.grad(out.sin().sum(), (q, k, v)), exact):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_lambdas_on_one_line_do_not_share_a_plan():
    """Which Transformer Engine's JAX path does, silently."""
    module, (q, k, v), given = make(attn_mask_type="no_mask")
    twice, thrice = lambda g, s, t: g.mul(a=s, b=2.0), lambda g, s, t: g.mul(a=s, b=3.0)
    for factor, mod in ((2, twice), (3, thrice), (2, twice)):
        torch.testing.assert_close(module(*given, score_mod=mod), flat(eager(q, k, v, lambda s, *_: s * factor)[0]))
    before = cache_stats()["builds"]
    for _ in range(5):
        module(*given, score_mod=lambda g, s, t: g.mul(a=s, b=3.0))
    assert cache_stats()["builds"] == before


def test_dropout_and_sinks():
    module, (q, k, v), given = make(attention_dropout=0.5, attn_mask_type="no_mask")
    assert not torch.equal(module(*given), module(*given)) and torch.equal(module.eval()(*given), module(*given))
    learned, (q, k, v), given = make(softmax_type="learnable", attn_mask_type="no_mask")
    learned(*given).sum().backward()
    assert learned.softmax_offset.grad.abs().sum() > 0
    one = make(softmax_type="off-by-one", attn_mask_type="no_mask")[0]
    torch.testing.assert_close(one(*given), learned(*given))


def test_packed():
    q, k, v = (torch.randn(7, H, D) for _ in range(3))
    offsets = torch.tensor([0, 3, 7])
    out = DotProductAttention(H, D, qkv_format="thd")(q, k, v, cu_seqlens_q=offsets, cu_seqlens_kv=offsets)
    parts = [eager(*(x[a:b].transpose(0, 1).unsqueeze(0) for x in (q, k, v)), mask_mod=lambda b, h, i, j: j <= i)[0]
             for a, b in ((0, 3), (3, 7))]
    torch.testing.assert_close(out, torch.cat([p[0].transpose(0, 1) for p in parts]).flatten(-2))


def test_one_error_lists_everything():
    module, _, given = make(softcap=3.0, attn_mask_type="causal")
    with pytest.raises(ValueError) as caught:
        module(*given, torch.zeros(1, 1, 1, S, dtype=torch.bool), score_mod=lambda s, b, h, i, j: s,
               score_mod_bprop=lambda g, d, t: d, alibi_slopes=torch.ones(H), cu_seqlens_q=torch.tensor([0, S]))
    for words in ("attention_mask with attn_mask_type causal", "score_mod with softcap and alibi_slopes",
                  "score_mod_bprop with a score_mod of FlexAttention's form",
                  "cu_seqlens with qkv_format bshd and attn_mask_type causal"):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="(?s)no multiple of num_gqa_groups 3.*format is 'x'.*mask_type is 'y'"):
        DotProductAttention(4, 8, 3, qkv_format="x", attn_mask_type="y")
    with pytest.raises(ValueError, match=r"heads and features are \(4, 8\), .* and \(4, 8\); the module has 8 heads"):
        DotProductAttention(8, 8, qkv_format="bshd")(*given)


@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd"])
def test_multihead(qkv_format):  # R-28, R-76
    module = MultiheadAttention(32, 4, num_gqa_groups=2, qkv_format=qkv_format, attn_mask_type="causal")
    x = torch.randn(S, B, 32) if qkv_format == "sbhd" else torch.randn(B, S, 32)
    cap, tensors = SoftCap(), {"cap": torch.full((1, 1, 1, 1), 3.0)}
    out = module(x, score_mod=cap.forward, score_mod_bprop=cap.backward, score_mod_tensors=tensors,
                 score_mod_bprop_tensors=tensors)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())
    cross = MultiheadAttention(32, 4, attention_type="cross", qkv_format=qkv_format, attn_mask_type="no_mask")
    assert cross(x, encoder_output=x[:5] if qkv_format == "sbhd" else x[:, :5]).shape == x.shape
    with pytest.raises(ValueError, match="cross without encoder_output"):
        cross(x)


# ---- Transformer Engine's and torch's arguments and parameters -------------------------------------------------------

def test_diagonals_are_transformer_engine_s():
    """Fewer rows than keys: window and ALiBi end at the last pair, unless the mask is causal from the first."""
    q, k, v = inputs(B, H, H, 4, S, D, D, torch.float32)
    given = [TO["bshd"](x) for x in (q, k, v)]
    slopes = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625])  # the usual ones of four heads
    module = DotProductAttention(H, D, qkv_format="bshd", attn_mask_type="no_mask", window_size=(2, 0))
    for end, more in ((S - 4, {}), (0, {"bottom_right_diagonal": False}), (0, {"attn_mask_type": "causal"}),
                      (S - 4, {"attn_mask_type": "causal", "bottom_right_diagonal": True})):
        out = module(*given, core_attention_bias_type="alibi", **more)
        want = eager(q, k, v, lambda s, b, h, i, j: s - slopes[h] * (i + end - j).abs(),
                     lambda b, h, i, j: (j <= i + end) & (i + end - j <= 2))[0]
        torch.testing.assert_close(out, flat(want))


def test_biases_before_and_after_the_scale():
    module, (q, k, v), given = make(attn_mask_type="no_mask", softmax_scale=0.5)
    bias = torch.randn(1, 1, S, S)
    for kind, factor in (("pre_scale_bias", 0.5), ("post_scale_bias", 1.0), (None, 1.0)):
        want = eager(q, k, v, lambda s, b, h, i, j: s + factor * bias[0, 0, i, j], scale=0.5)[0]
        out = module(*given, attn_mask_type="no_mask", core_attention_bias_type=kind, core_attention_bias=bias)
        torch.testing.assert_close(out, flat(want))


def test_padding_by_pairs_of_masks_and_by_offsets():
    module, (q, k, v), given = make(attn_mask_type="padding,causal")
    rows, keys = torch.tensor([8, 5]), torch.tensor([10, 6])
    masks = tuple((torch.arange(S) >= n[:, None]).view(B, 1, 1, S) for n in (rows, keys))
    offsets = [torch.cat([torch.zeros(1, dtype=torch.long), n.cumsum(0)]) for n in (rows, keys)]
    want = eager(q, k, v, mask_mod=lambda b, h, i, j: (j < keys[b]) & (j <= i) & (i < rows[b]))[0]
    for out in (module(*given, masks), module(*given, cu_seqlens_q=offsets[0], cu_seqlens_kv=offsets[1])):
        torch.testing.assert_close(out, flat(want))


def test_padding_that_is_no_length():
    """Of a mask of padding the length is taken: one that hides the first positions was computed as if the last were
    hidden, and one that was forgotten as if nothing were."""
    module, (q, k, v), given = make(attn_mask_type="padding")
    hidden = (torch.arange(S) < torch.tensor([3, 0])[:, None]).view(B, 1, 1, S)
    with pytest.raises(ValueError, match="hides positions before others .* padding is at the end; .*arbitrary"):
        module(*given, hidden)
    want = eager(q, k, v, mask_mod=lambda b, h, i, j: ~hidden[b, 0, 0, j])[0]
    torch.testing.assert_close(module(*given, hidden, attn_mask_type="arbitrary"), flat(want))
    with pytest.raises(ValueError, match="attn_mask_type padding without attention_mask and cu_seqlens"):
        module(*given)


def test_arguments_without_a_meaning_here():
    module, _, given = make()
    assert module(*given, checkpoint_core_attention=True, fast_zero_fill=False, num_splits=4, fp8_output=False) is not None
    DotProductAttention(H, D, tp_size=1, cp_comm_type="a2a", attention_type="cross", name="x", return_max_logit=False)
    with pytest.raises(ValueError, match="(?s)tp_size is given as 2; 1 is accepted.*cp_group is given as 'g'; None is"):
        DotProductAttention(H, D, tp_size=2, cp_group="g")
    with pytest.raises(ValueError, match="inference_params is given as 7; None .*bias_type is 'x', not one of no_bias"):
        module(*given, inference_params=7, core_attention_bias_type="x")
    with pytest.raises(TypeError, match="DotProductAttention has no argument 'windows'"):
        DotProductAttention(H, D, windows=3)
    with pytest.raises(TypeError, match="no argument 'batch_first'; qkv_format=.bshd. is batch first"):
        MultiheadAttention(32, 4, batch_first=True)
    with pytest.raises(TypeError, match="no argument 'key_padding_mask'; attention_mask .* attn_mask_type=.padding"):
        MultiheadAttention(32, 4)(torch.randn(S, B, 32), key_padding_mask=None)
    with pytest.raises(ValueError, match="rotary_pos_emb is given as Tensor; None is accepted"):
        MultiheadAttention(32, 4)(torch.randn(S, B, 32), rotary_pos_emb=torch.zeros(2))
    with pytest.raises(ValueError, match="input_layernorm is given as True; False is accepted"):
        MultiheadAttention(32, 4, input_layernorm=True)
    with pytest.raises(ValueError, match="hidden_size is 30, no multiple of num_attention_heads 4"):
        MultiheadAttention(30, 4)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("kind", ["self", "cross"])
def test_state_of_torch_s_module_loads(kind, interleaved):
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)
    ours = MultiheadAttention(32, 4, attention_type=kind, qkv_format="bshd", attn_mask_type="no_mask",
                              qkv_weight_interleaved=interleaved)
    ours.load_state_dict(theirs.state_dict())
    x, y = torch.randn(B, S, 32), torch.randn(B, 7, 32)
    more = {} if kind == "self" else {"encoder_output": y}
    want = theirs(x, x if kind == "self" else y, x if kind == "self" else y, need_weights=False)[0]
    torch.testing.assert_close(ours(x, **more), want, rtol=1e-4, atol=1e-5)
    again = MultiheadAttention(32, 4, attention_type=kind, qkv_format="bshd", attn_mask_type="no_mask",
                               qkv_weight_interleaved=interleaved)
    again.load_state_dict(ours.state_dict())
    assert torch.equal(again(x, **more), ours(x, **more))


def test_parameters_are_transformer_engine_s():
    """Names, shapes, and rows of qkv by group: its query heads, its key, its value; scales of fp8 are left."""
    module = MultiheadAttention(32, 4, num_gqa_groups=2, qkv_format="bshd", attn_mask_type="no_mask",
                                init_method=lambda w: w.fill_(0.5), output_layer_init_method=torch.nn.init.eye_,
                                params_dtype=torch.float64)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {"qkv.weight": (64, 32), "qkv.bias": (64,), "proj.weight": (32, 32), "proj.bias": (32,)}
    assert module.qkv.weight.dtype == torch.float64 and (module.qkv.weight == 0.5).all()
    weight = torch.randn(2, 4, 8, 32, dtype=torch.float64)  # group; two heads, key, value; channel
    state = {**module.state_dict(), "qkv.weight": weight.reshape(64, 32), "core_attention._extra_state": None}
    module.load_state_dict(state)
    x = torch.randn(B, S, 32, dtype=torch.float64)
    rows = torch.einsum("bsi,gnci->bgnsc", x, weight) + module.qkv.bias.view(2, 4, 1, 8)
    q, k, v = rows[:, :, :2].flatten(1, 2), rows[:, :, 2], rows[:, :, 3]
    want = eager(q, k, v)[0].transpose(1, 2).flatten(-2) + module.proj.bias
    torch.testing.assert_close(module(x), want)
    cross = MultiheadAttention(32, 4, num_gqa_groups=2, attention_type="cross")
    assert {name for name, _ in cross.named_parameters()} >= {"query.weight", "key_value.weight", "proj.weight"}
