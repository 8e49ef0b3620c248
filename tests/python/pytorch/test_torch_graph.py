# SPDX-License-Identifier: Apache-2.0
"""The graph style as attention() and the modules call it: beside masks, packed rows, arrays of other libraries, and
what is refused."""
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import fxattn
import fxattn.numpy as fxn
from fxattn.torch import DotProductAttention, attention
from torch_support import eager


def qkv(seed=0, b=2, h=2, s=5, d=4):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(b, h, s, d, generator=g, dtype=torch.float64).requires_grad_() for _ in range(3)]


def doubled(graph, score, tensors):
    return graph.mul(a=score, b=2.0)


def plus(graph, score, tensors):
    return graph.add(a=score, b=tensors["x"])


def same_grads(got, want, leaves):
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got.sin().sum(), leaves), torch.autograd.grad(want.sin().sum(), leaves)):
        torch.testing.assert_close(a, b)


def test_mask_mod_beside_a_graph():
    leaves = qkv()
    document = torch.tensor([0, 0, 1, 1, 1])

    def mask(b, h, q, k):
        return (q >= k) & (document[q] == document[k])

    want = eager(*leaves, lambda s, b, h, q, k: 2 * s, mask)[0]
    same_grads(attention(*leaves, doubled, mask, style="graph"), want, leaves)
    back = attention(*leaves, doubled, mask, style="graph", score_mod_bprop=doubled)
    same_grads(back, eager(*leaves, lambda s, b, h, q, k: 2 * s, mask)[0], leaves)
    same_grads(attention(*leaves, None, mask, style="graph"), eager(*leaves, None, mask)[0], leaves)
    arrays = [x.detach().numpy() for x in leaves]
    numbers = document.numpy()
    got = fxn.attention(*arrays, doubled, lambda b, h, q, k: (q >= k) & (numbers[q] == numbers[k]), style="graph")
    np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-13)
    assert "mask = q >= k" in fxattn.program(doubled, lambda b, h, q, k: q >= k, style="graph").text


def test_arbitrary_mask_beside_a_graph():
    leaves = qkv(1)
    hidden = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.3
    module = DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="arbitrary")
    got = module(*(x.transpose(1, 2) for x in leaves), hidden, score_mod=doubled)
    want = eager(*leaves, lambda s, b, h, q, k: 2 * s, lambda b, h, q, k: ~hidden[b, 0, q, k])[0]
    torch.testing.assert_close(got.unflatten(-1, (2, 4)).transpose(1, 2), want)


def test_sizes_of_packed_rows():
    """What `tensors` broadcast over are sequences and their rows, not all packed rows."""
    rows = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    bias = torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    offsets = torch.tensor([0, 2, 5])
    got = attention(rows, rows, rows, plus, style="graph", tensors={"x": bias}, layout="thd", cu_q=offsets)
    for n, (begin, end) in enumerate(((0, 2), (2, 5))):
        one = rows[begin:end].transpose(0, 1).unsqueeze(0)
        want = eager(one, one, one, lambda s, b, h, q, k: s + bias[n, 0, q, k])[0]
        torch.testing.assert_close(got[begin:end], want[0].transpose(0, 1))
    with pytest.raises(RuntimeError, match=r"does not broadcast to the scores' \(2, 2, 3, 3\)"):
        attention(rows, rows, rows, plus, style="graph", tensors={"x": bias.new_zeros(5, 5)}, layout="thd",
                  cu_q=offsets)
    cache = torch.randn(4, 2, 2, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    q = torch.randn(1, 2, 1, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    wide = torch.randn(6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    got = attention(q, cache, cache, plus, style="graph", tensors={"x": wide}, pages=torch.tensor([[3, 0, 2]]),
                    k_lengths=[3 * cache.shape[2]])
    keys = torch.cat([cache[3], cache[0], cache[2]], 1).unsqueeze(0)
    torch.testing.assert_close(got, eager(q, keys, keys, lambda s, b, h, q, k: s + wide[k])[0])


def test_arrays_of_numpy_in_the_backward():
    leaves, x = qkv(7), np.linspace(0.5, 1.5, 5)

    def times(graph, score, tensors):
        return graph.mul(a=score, b=tensors["x"])

    for array in (x, x[::-1], x.astype(np.float16)):
        values = torch.from_numpy(array.astype(np.float64))
        got = attention(*leaves, times, style="graph", tensors={"x": array}, score_mod_bprop=times,
                        bprop_tensors={"x": array})
        same_grads(got, eager(*leaves, lambda s, b, h, q, k: s * values[k])[0], leaves)


def test_default_of_a_param_of_the_backward():
    leaves = qkv(8)
    got = attention(*leaves, "score * 2.0", score_mod_bprop="param c : float = 2\ndscore = dscore * c")
    same_grads(got, eager(*leaves, lambda s, b, h, q, k: 2 * s)[0], leaves)


def wrapped(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call


class Decorated:
    @wrapped
    def forward(self, graph, score, tensors):
        return graph.mul(a=score, b=2.0)

    def __call__(self, graph, score, tensors):
        return graph.mul(a=score, b=2.0)


@pytest.mark.parametrize("mod", [wrapped(doubled), Decorated().forward, Decorated(),
                                 functools.partial(lambda by, g, s, t: g.mul(s, by), 2.0)])
def test_callbacks_in_wrappers(mod):
    leaves = [x.transpose(1, 2) for x in qkv(9)]
    module = DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="no_mask")
    torch.testing.assert_close(module(*leaves, score_mod=mod), module(*leaves, score_mod=doubled))


@pytest.mark.parametrize("error, match, given", [
    (ValueError, "style is 'foo'; \"flex\" and \"graph\"", dict(score_mod=lambda s, b, h, q, k: s, style="foo")),
    (ValueError, "style is 'foo'", dict(score_mod="score", style="foo")),
    (ValueError, "style=\"graph\"", dict(score_mod=lambda s, b, h, q, k: s, score_mod_bprop=doubled)),
    (TypeError, "tensors is of type list; a dictionary by name", dict(score_mod=plus, style="graph", tensors=[1.0])),
    (TypeError, "bprop_tensors is of type list", dict(score_mod=plus, style="graph", score_mod_bprop=plus,
                                                      tensors={"x": 1.0}, bprop_tensors=[1.0])),
    (TypeError, "tensors is of type Tensor", dict(score_mod="score * c", tensors=torch.ones(2))),
    (RuntimeError, "binary_select", dict(style="graph", score_mod=lambda g, s, t: s if g.cmp_gt(s, 0.0) else g.neg(s))),
])
def test_refused(error, match, given):
    with pytest.raises(error, match=match):
        attention(*qkv(), **given)


def test_a_backward_of_scores_as_they_are():
    """The program of such a forward is a text of nothing."""
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64, requires_grad=True)
    want, = torch.autograd.grad(attention(q, q.detach(), q.detach()).sin().sum(), q)
    for own in ({"score_mod": "score = score", "score_mod_bprop": "dscore = 2 * dscore"},
                {"score_mod": lambda graph, score, tensors: score, "style": "graph",
                 "score_mod_bprop": lambda graph, dscore, tensors: graph.mul(dscore, 2.0)}):
        got, = torch.autograd.grad(attention(q, q.detach(), q.detach(), **own).sin().sum(), q)
        assert torch.allclose(got, 2 * want, rtol=1e-12)
