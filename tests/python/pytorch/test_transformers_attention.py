# SPDX-License-Identifier: Apache-2.0
"""The function that transformers calls in a layer, by itself: every form of mask, bias, sinks, soft cap and dropout against
attention written out in f64, eager and compiled; what it refuses."""
import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask as their_block_mask  # noqa: E402

from fxattn.torch.transformers import attention_forward  # noqa: E402

B, H, HKV, SQ, SK, D = 2, 4, 2, 5, 9, 8
MODULE = SimpleNamespace(is_causal=True, training=False)


def operands(sq=SQ, sk=SK, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((B, H, sq, D), (B, HKV, sk, D), (B, HKV, sk, D))
    return [torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes]


def dense(q, k, v, keep=None, bias=None, softcap=None, sinks=None, scaling=None):
    """out [B,S,H,D]; keep and bias broadcast to [B,H,Sq,Sk]."""
    k, v = (x.repeat_interleave(H // HKV, 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (scaling or 1 / math.sqrt(D))
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    s = s if keep is None else torch.where(keep, s, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    return (torch.softmax(s, -1)[..., :k.shape[-2]] @ v).transpose(1, 2)


def same(got, expected, *inputs):
    """Equal outputs and gradients. Sums of at most 100 terms of size 10 and their like, in f64: 1e-12 is some ten times what
    they can lose."""
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = [torch.autograd.grad((x * direction).sum(), inputs, retain_graph=True) for x in (got, expected)]
    for a, b in ((got, expected), *zip(*grads)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def distances(sq=SQ, sk=SK, shift=0):
    return torch.arange(sq).view(sq, 1) + shift - torch.arange(sk)


GENERATOR = torch.Generator().manual_seed(4)
BOOL = torch.rand(B, H, SQ, SK, generator=GENERATOR) < 0.7
BOOL[..., 0] = True
FLOAT = torch.randn(B, H, SQ, SK, generator=GENERATOR, dtype=torch.float64)
PADDED = torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
# attention_mask, other keywords, what is kept, what is added
MASKS = {
    "none, causal": (None, {}, distances() >= 0, None),
    "none, not causal": (None, {"is_causal": False}, None, None),
    "none, window": (None, {"sliding_window": 2}, (distances() >= 0) & (distances() < 2), None),
    "padding": (PADDED, {}, (distances(shift=4) >= 0) & PADDED.bool()[:, None, None], None),
    "padding, not causal": (PADDED.bool(), {"is_causal": False}, PADDED.bool()[:, None, None], None),
    "bool": (BOOL, {}, BOOL, None),
    "bool, all heads": (BOOL[:, :1], {}, BOOL[:, :1], None),
    "bool, one row": (BOOL[:1, :1, :1], {}, BOOL[:1, :1, :1], None),
    "bool, more keys": (torch.cat([BOOL, BOOL], -1), {}, BOOL, None),
    "float": (FLOAT, {}, None, FLOAT),
    "float, all batches": (FLOAT[:1, :1], {}, None, FLOAT[:1, :1]),
    "float, smallest": (torch.where(BOOL, FLOAT * 0, torch.finfo(torch.float64).min), {}, BOOL, None),
    "one number": (FLOAT[:1, :1, :1, :1], {}, None, FLOAT[:1, :1, :1, :1]),
    "their BlockMask": (their_block_mask(lambda b, h, q, k: q >= k - 2, None, None, SQ, SK, "cpu"), {}, distances() >= -2, None),
}


@pytest.mark.parametrize("form", MASKS)
def test_forms_of_masks(form):
    mask, keywords, keep, bias = MASKS[form]
    q, k, v = operands()
    got, weights = attention_forward(MODULE, q, k, v, mask, **keywords)
    assert weights is None and got.is_contiguous()
    same(got, dense(q, k, v, keep, bias), q, k, v)


@pytest.mark.parametrize("window", [None, 4])
def test_one_row_without_a_mask_is_the_last(window):
    q, k, v = operands(sq=1)
    keep = None if window is None else distances(1, SK, SK - 1) < window
    same(attention_forward(MODULE, q, k, v, None, sliding_window=window)[0], dense(q, k, v, keep), q, k, v)




def test_all_at_once():
    (q, k, v), keep = operands(), distances() >= -1
    bias = torch.randn(1, H, SQ, SK, dtype=torch.float64).requires_grad_()
    learned = torch.randn(B, 1, SQ, SK, dtype=torch.float64).requires_grad_()
    sinks = torch.randn(H, dtype=torch.float64).requires_grad_()
    expected = dense(q, k, v, keep, torch.where(keep, bias + learned, 0.0), 2.0, sinks, 0.3)

    def ours(q, k, v, bias, learned, sinks):
        mask = torch.where(keep, learned, -math.inf)
        return attention_forward(MODULE, q, k, v, mask, scaling=0.3, softcap=2.0, position_bias=bias, s_aux=sinks,
                                 position_ids=None)[0]

    leaves = (q, k, v, bias, learned, sinks)
    same(ours(*leaves), expected, *leaves)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    same(compiled(*leaves), expected, *leaves)


def weights_of(attend, p):
    """The probabilities that a call used, by values that are the identity."""
    q, k, _ = operands(seed=2)
    v = torch.eye(SK, dtype=torch.float64).expand(B, HKV, SK, SK)
    return attend(q, k, v, p).transpose(1, 2)


def plain(q, k, v, p):
    return attention_forward(MODULE, q, k, v, None, dropout=p, is_causal=False)[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout(compiled):
    attend = torch.compile(plain, fullgraph=True, backend="aot_eager") if compiled else plain
    full, p = weights_of(plain, 0.0), 0.3
    seen = []
    torch.manual_seed(5)
    for _ in range(12):
        dropped = weights_of(attend, p)
        kept = dropped != 0
        torch.testing.assert_close(dropped[kept], full[kept] / (1 - p), rtol=1e-12, atol=0)
        seen.append(kept)
    share = torch.stack(seen).double().mean().item()
    # 12 * B * H * SQ * SK independent draws; five standard deviations
    assert abs(share - (1 - p)) < 5 * math.sqrt(p * (1 - p) / (12 * full.numel()))
    assert not torch.equal(seen[0], seen[1])
    torch.manual_seed(5)
    assert torch.equal(weights_of(attend, p) != 0, seen[0])


@pytest.mark.parametrize("mask, keywords, error, words", [
    (torch.zeros(B, SQ, SK), {}, TypeError, "a tensor of 2 or 4 dimensions or a BlockMask is accepted"),
    ("causal", {}, TypeError, "attention_mask is str"),
    (torch.zeros(B, 1, SQ, SK, dtype=torch.int64), {}, TypeError, "bool .true: attended. or a float to be added"),
    (torch.zeros(B, 3, SQ, SK), {}, ValueError, r"attention_mask has shape \(2, 3, 5, 9\); one that broadcasts to \(2, 4, 5, 9\)"),
    (torch.zeros(B, SK - 1), {}, ValueError, r"that of padding, \(2, 9\), is accepted"),
    (their_block_mask(lambda b, h, q, k: q >= k, None, None, 4, 4, "cpu"), {}, ValueError, "block_mask was created for"),
    (None, {"s_aux": torch.zeros(3)}, ValueError, "sinks have 3 elements; one per query head, 4"),
    (None, {"position_bias": torch.zeros(1, 1, 1, 2)}, ValueError, "position_bias has shape"),
    (None, {"head_mask": torch.ones(H)}, ValueError, "does not have head_mask"),
    (None, {"cache": object()}, ValueError, "paged cache"),
])
def test_refusals(mask, keywords, error, words):
    with pytest.raises(error, match=words):
        attention_forward(MODULE, *operands(), mask, **keywords)


def test_weights_are_not_made():
    with pytest.warns(UserWarning, match="output_attentions gives None"):
        assert attention_forward(MODULE, *operands(), None, output_attentions=True)[1] is None
