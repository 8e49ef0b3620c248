# SPDX-License-Identifier: Apache-2.0
"""Another default device than that of the tensors (torch.set_default_device, `with torch.device`): what fxattn makes of
lists and numbers lies where the call needs it. "meta" stands for a device here: it is on every machine, and has no
values that could be read by mistake."""
import pytest

torch = pytest.importorskip("torch")

import fxattn.torch as fx  # noqa: E402
from fxattn.torch import operators as ops  # noqa: E402

G = torch.Generator().manual_seed(0)
Q = torch.randn(2, 2, 8, 4, generator=G, dtype=torch.float64)
ROWS = torch.randn(8, 2, 4, generator=G, dtype=torch.float64)
CACHE = torch.randn(4, 2, 8, 4, generator=G, dtype=torch.float64)
LEARNED = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)


def twice(graph, score, tensors):
    return graph.mul(a=score, b=tensors["c"])


def with_gradient(q, **given):
    return torch.autograd.grad(fx.attention(q, Q, Q, **given).sum(), q)[0]


def alibi():
    module = fx.DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="no_mask")
    return lambda x: module(x, x, x, core_attention_bias_type="alibi")


CALLS = {
    "lengths": lambda q: fx.attention(q, Q, Q, k_lengths=[3, 4], q_lengths=(5, 2)),
    "q_start": lambda q: fx.attention(q, Q, Q, q_start=[1, 2], is_causal=True),
    "packed": lambda q: fx.attention(ROWS, ROWS, ROWS, layout="thd", cu_q=[0, 3, 8]),
    "pages": lambda q: fx.attention(q, CACHE, CACHE, pages=[[0], [3]], k_lengths=[3, 2]),
    "a seed": lambda q: with_gradient(q, dropout_p=0.5, seed=3),
    "numbers": lambda q: with_gradient(q, score_mod="score * c + d * score", params={"c": LEARNED, "d": 1.5}),
    "numbers of two programs": lambda q: with_gradient(q, score_mod="score * c", params={"c": 2.0, "d": LEARNED.detach()},
                                                       score_mod_bprop="dscore * d"),
    "graph style": lambda q: with_gradient(q, score_mod=twice, style="graph", tensors={"c": 2.0}, score_mod_bprop=twice,
                                           bprop_tensors={"c": LEARNED.detach()}),
    "ALiBi": lambda q, module=alibi(): module(q.transpose(1, 2)),
    "compiled": lambda q: torch.compile(lambda x: fx.attention(x, Q, Q, k_lengths=[3, 4], dropout_p=0.2, seed=4),
                                        backend="aot_eager", fullgraph=True)(q),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_made_on_the_default_device(name):
    q = Q.clone().requires_grad_()
    expected = CALLS[name](q)
    with torch.device("meta"):
        found = CALLS[name](q)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_seed_is_drawn_on_the_host():
    with torch.device("meta"):
        torch.manual_seed(5)
        found = fx.attention(Q, Q, Q, dropout_p=0.5)
    torch.manual_seed(5)
    torch.testing.assert_close(found, fx.attention(Q, Q, Q, dropout_p=0.5), rtol=0, atol=0)


def test_values_that_are_nowhere_are_refused():
    """Beside them PyTorch takes the kernels for fake tensors, whose results nobody fills."""
    nowhere = torch.tensor([3], device="meta")
    with pytest.raises(RuntimeError, match="on meta"):
        fx.attention(Q, Q, Q, dropout_p=0.5, seed=nowhere)
    with pytest.raises(RuntimeError, match="on meta"):
        ops.fwd(Q, Q, Q, [], [], [torch.empty(1, dtype=torch.float64, device="meta")], [], [],
                [0], "param c : float\nscore = score * c")
    with pytest.raises(RuntimeError, match="on meta"):
        ops.bwd(Q, Q, Q, [], [], [], [], [], [0], "", Q, Q.sum(-1), [Q.to("meta")], [0])
