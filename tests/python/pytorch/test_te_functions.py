# SPDX-License-Identifier: Apache-2.0
"""Transformer Engine's own cases of score_mod, by DotProductAttention, at the bar of test_flex_functions.py: identity,
causal with and without a backward of its own, causal with -inf from outside, a soft cap with and without, a bias after
the scale, which has a gradient."""
import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import pytest

torch = pytest.importorskip("torch")

from soft_cap import SoftCap  # noqa: E402
from torch_support import assert_within_bar, eager_step, gradients, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402

B, H, D = 2, 4, 16


class Identity:
    def forward(self, graph, score, tensors):
        assert tensors == {}
        return score


class Causal:
    """Keeps its mask for the backward."""

    def forward(self, graph, score, tensors):
        row, column = graph.gen_index(input=score, axis=2), graph.gen_index(input=score, axis=3)
        self.keep = graph.cmp_ge(input=row, comparison=column)
        return graph.binary_select(input0=score, input1=tensors["low"], mask=self.keep)

    def backward(self, graph, dscore, tensors):
        return graph.binary_select(input0=dscore, input1=tensors["zero"], mask=self.keep)


class Bias:
    def forward(self, graph, score, tensors):
        return graph.add(a=score, b=tensors["bias"])


class Case(NamedTuple):
    callback: type
    plain: Callable[..., Any]  # the same for FlexAttention; of a bias
    tensors: Dict[str, float] = {}
    bprop_tensors: Optional[Dict[str, float]] = None  # not None: its own backward is used
    biased: bool = False


def _causal(low):
    return lambda s, b, h, i, j, bias: torch.where(i >= j, s, low)


def _capped(s, b, h, i, j, bias):
    return 0.8 * torch.tanh(s / 0.8)


CASES = {
    "identity": Case(Identity, lambda s, b, h, i, j, bias: s),
    "causal": Case(Causal, _causal(-1e9), {"low": -1e9}),
    "causal with a backward": Case(Causal, _causal(-1e9), {"low": -1e9}, {"zero": 0.0}),
    "causal by -inf": Case(Causal, _causal(-math.inf), {"low": -math.inf}),
    "soft cap": Case(SoftCap, _capped, {"cap": 0.8}),
    "soft cap with a backward": Case(SoftCap, _capped, {"cap": 0.8}, {"cap": 0.8}),
    "bias after the scale": Case(Bias, lambda s, b, h, i, j, bias: s + bias[0, h, i, j], biased=True),
}


def scalars(values, dtype):
    """As Transformer Engine gives them: tensors of four dimensions."""
    return {name: torch.full((1, 1, 1, 1), value, dtype=dtype) for name, value in values.items()}


def run(case: Case, dtype, fused, leaves, raw) -> Tuple[Any, ...]:
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves)
    bias = raw.to(dtype).requires_grad_()
    learned = [bias] if case.biased else []
    direction = torch.randn((*q.shape[:3], D), generator=torch.Generator().manual_seed(5)).to(leaves[0].dtype)
    if not fused:
        return eager_step(q, k, v, lambda *place: case.plain(*place, bias), None, learned, direction)
    callback, module = case.callback(), fx.DotProductAttention(H, D, k.shape[1], qkv_format="bshd",
                                                               attn_mask_type="no_mask")
    given = {"score_mod_tensors": {"bias": bias} if case.biased else scalars(case.tensors, torch.float32)}
    if case.bprop_tensors is not None:
        given.update(score_mod_bprop=callback.backward,
                     score_mod_bprop_tensors=scalars(case.bprop_tensors, torch.float32))
    out = module(*(x.transpose(1, 2) for x in (q, k, v)), score_mod=callback.forward, **given)
    return gradients(out.unflatten(-1, (H, D)).transpose(1, 2), direction, [q, k, v, *learned])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_case(name, dtype):
    """Also of grouped heads, and of odd sizes."""
    for hkv, rows in ((H, 37), (2, 21)):
        leaves = inputs(B, H, hkv, rows, rows, D, D, dtype)
        raw = torch.randn(1, H, rows, rows, generator=torch.Generator().manual_seed(2)).to(dtype)
        assert_within_bar(name, dtype, [[run(CASES[name], kind, fused, leaves, raw) for kind, fused in (
            (dtype, True), (dtype, False), (torch.float64, False))]])
