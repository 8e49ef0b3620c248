# SPDX-License-Identifier: Apache-2.0
"""attention(): layouts, packed rows, lengths, pages, positions, sinks, dropout, windows, programs as text, graph style;
each against the same written out with plain tensors."""
import math

import pytest

torch = pytest.importorskip("torch")

from soft_cap import SoftCap  # noqa: E402
from torch_support import eager, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn.torch import attention  # noqa: E402

TO = {"bhsd": lambda x: x, "bshd": lambda x: x.transpose(1, 2), "sbhd": lambda x: x.permute(2, 0, 1, 3)}


def close(x, y, **options):
    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, **options)


def grads(out, *leaves):
    return torch.autograd.grad(out.sin().sum(), leaves)


@pytest.mark.parametrize("layout", TO)
def test_layouts(layout):
    q, k, v = inputs(2, 4, 2, 9, 11, 8, 6, torch.float32)
    out = attention(*(TO[layout](x).contiguous() for x in (q, k, v)), lambda s, b, h, i, j: s + h, layout=layout)
    want = eager(q, k, v, lambda s, b, h, i, j: s + h)[0]
    close(out, TO[layout](want))
    assert out.is_contiguous()
    for x, y in zip(grads(out, q, k, v), grads(TO[layout](want), q, k, v)):
        close(x, y)


@pytest.mark.parametrize("float8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("q_type", [None, torch.float32, torch.float16], ids=str)
def test_float8(float8, q_type):
    """As the same numbers in f32, rounded to the dtype of q; compiled too. q and dO of other dtypes have gradients."""
    q, k, v = (x.detach() for x in inputs(2, 4, 2, 9, 11, 8, 6, torch.float32))
    q, k, v = q.to(q_type or float8), k.to(float8), v.to(float8)
    out = attention(q, k, v, "score = 2.0 * score", is_causal=True)
    want = attention(q.float(), k.float(), v.float(), "score = 2.0 * score", is_causal=True)
    assert out.dtype == q.dtype and torch.equal(out.float(), want.to(q.dtype).float())
    if q_type is torch.float32:
        leaf, wide = q.clone().requires_grad_(), q.clone().requires_grad_()
        close(grads(attention(leaf, k, v), leaf)[0], grads(attention(wide, k.float(), v.float()), wide)[0])


@pytest.mark.parametrize("layout", ["thd", "htd"])
def test_packed_rows(layout):
    lengths = [5, 1, 8]
    offsets = torch.tensor([0, 5, 6, 14])
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(14, 4, 8, generator=g).requires_grad_() for _ in range(3))
    turn = (lambda x: x) if layout == "thd" else (lambda x: x.transpose(0, 1))
    got = attention(*(turn(x) for x in (q, k, v)), lambda s, b, h, i, j: s + b * j * 0.1, layout=layout, cu_q=offsets,
                    cu_k=offsets, is_causal=True, return_lse=True)
    parts, lses, at = [], [], 0
    for n, length in enumerate(lengths):
        rows = [x[at:at + length].transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
        out, lse = eager(*rows, lambda s, b, h, i, j: s + n * j * 0.1, lambda b, h, i, j: i >= j)
        parts.append(out[0].transpose(0, 1)), lses.append(lse[0])
        at += length
    want = torch.cat(parts)
    close(turn(got.out), want)
    close(got.lse, torch.cat(lses, 1))
    for x, y in zip(grads(turn(got.out), q, k, v), grads(want, q, k, v)):
        close(x, y)


def test_lengths_windows_and_alignment():
    q, k, v = inputs(2, 2, 2, 7, 12, 8, 8, torch.float32)
    lengths = torch.tensor([12, 5])
    close(attention(q, k, v, k_lengths=lengths), eager(q, k, v, mask_mod=lambda b, h, i, j: j < lengths[b])[0])
    close(attention(q, k, v, window=(2, 1)), eager(q, k, v, mask_mod=lambda b, h, i, j: (i - j <= 2) & (j - i <= 1))[0])
    close(attention(q, k, v, window=(2, None)), eager(q, k, v, mask_mod=lambda b, h, i, j: i - j <= 2)[0])
    close(attention(q, k, v, is_causal=True, bottom_right=True),
          eager(q, k, v, mask_mod=lambda b, h, i, j: j <= i + 5)[0])


def test_pages_and_positions():
    """A step of decoding over a paged cache."""
    q, k, v = inputs(2, 4, 2, 1, 16, 8, 8, torch.float32)
    pages = torch.tensor([[3, 1], [0, 2]])
    cache_k, cache_v = torch.zeros(4, 2, 8, 8), torch.zeros(4, 2, 8, 8)
    for b in range(2):
        for n in range(2):
            cache_k[pages[b, n]], cache_v[pages[b, n]] = k[b, :, n * 8:n * 8 + 8], v[b, :, n * 8:n * 8 + 8]
    lengths = torch.tensor([11, 16])
    out = attention(q, cache_k, cache_v, lambda s, b, h, i, j: s - (i - j) * 0.1, pages=pages, k_lengths=lengths,
                    q_start=lengths - 1, is_causal=True)
    want = eager(q, k, v, lambda s, b, h, i, j: s - (lengths[b] - 1 + i - j) * 0.1,
                 lambda b, h, i, j: j < lengths[b])[0]
    close(out, want)


def test_sinks():
    q, k, v = inputs(2, 4, 2, 7, 9, 8, 8, torch.float32)
    sink = torch.randn(4, requires_grad=True)

    def with_sink(scores, extra):
        p = torch.cat([scores, extra.view(1, 4, 1, 1).expand(2, 4, 7, 1)], -1).softmax(-1)[..., :-1]
        return p @ v.repeat_interleave(2, 1)

    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / math.sqrt(8)
    for given, extra in ((sink, sink), ("zero", torch.zeros(4))):
        out, want = attention(q, k, v, sinks=given), with_sink(scores, extra)
        close(out, want)
        leaves = (q, k, v, sink) if given is sink else (q, k, v)
        for x, y in zip(grads(out, *leaves), torch.autograd.grad(want.sin().sum(), leaves, retain_graph=True)):
            close(x, y)


def test_dropout():
    q, k, v = inputs(1, 2, 2, 64, 64, 8, 8, torch.float32)
    first, again = (attention(q, k, v, dropout_p=0.4, seed=7) for _ in range(2))
    assert torch.equal(first, again) and not torch.equal(first, attention(q, k, v, dropout_p=0.4, seed=8))
    torch.manual_seed(3)
    drawn = attention(q, k, v, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(drawn, attention(q, k, v, dropout_p=0.4)) and not torch.equal(drawn, first)
    ones = torch.ones_like(v)
    assert abs(attention(q, k, ones, dropout_p=0.4).mean().item() - 1.0) < 0.1
    exact = inputs(1, 1, 1, 4, 4, 3, 3, torch.float64)
    assert torch.autograd.gradcheck(lambda *xs: attention(*xs, dropout_p=0.3, seed=1), exact)


def test_programs_as_text_with_params_and_tensors_by_name():
    q, k, v = inputs(1, 2, 2, 6, 6, 4, 4, torch.float64)
    cap = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    text = "param cap : float\nparam far : int = 3\ntensor bias : f64[2]\n" \
           "score = cap * tanh(score / cap) + bias[h, k]\nmask = q - k < far"

    def call(q, k, v, cap, bias):
        return attention(q, k, v, text, params={"cap": cap}, tensors={"bias": bias})

    want = eager(q, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap) + bias[h, j], lambda b, h, i, j: i - j < 3)[0]
    torch.testing.assert_close(call(q, k, v, cap, bias), want)
    torch.testing.assert_close(attention(q, k, v, text, params={"cap": 3.0}, tensors={"bias": bias}), want)
    assert torch.autograd.gradcheck(call, (q, k, v, cap, bias))
    with pytest.raises(ValueError, match="params cap, far, of which no value is given for cap"):
        attention(q, k, v, text, tensors={"bias": bias})
    with pytest.raises(ValueError, match="tensors are given for other; the program has bias"):
        attention(q, k, v, text, params={"cap": 1.0}, tensors={"bias": bias, "other": bias})


def test_expressions_with_params_and_tensors_by_name():
    q, k, v = inputs(1, 2, 2, 6, 6, 4, 4, torch.float64)
    cap, bias = torch.tensor(3.0, requires_grad=True), torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    out = attention(q, k, v, "cap * tanh(score / cap) + bias[h, k]", "q >= k", params={"cap": cap},
                    tensors={"bias": bias})
    want = eager(q, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap) + bias[h, j], lambda b, h, i, j: i >= j)[0]
    torch.testing.assert_close(out, want)
    for x, y in zip(torch.autograd.grad(out.sin().sum(), (q, cap, bias)),
                    torch.autograd.grad(want.sin().sum(), (q, cap, bias))):
        torch.testing.assert_close(x, y)
    torch.testing.assert_close(attention(q, k, v, None, "q >= k"), attention(q, k, v, is_causal=True))
    with pytest.raises(TypeError, match="score_mod_bprop|mask_mod"):
        attention(q, k, v, "score * 2", lambda b, h, q, k: q >= k)
    with pytest.raises(TypeError, match="a tensor of"):
        attention(q, k, v, "score + bias[h]", tensors={"bias": [1.0, 2.0]})


def test_packed_rows_of_no_sequence_are_zero():
    """Totals are often padded to a round number: what is there must not reach a weight by its gradient."""
    offsets, packed = torch.tensor([0, 3, 7]), torch.randn(10, 2, 8)
    lens = torch.tensor([2, 4])

    def call(x, **more):
        return attention(x, x, x, layout="thd", cu_q=offsets, cu_k=offsets, return_lse=True, return_row_max=True, **more)

    for more, nobody in (({}, [7, 8, 9]), ({"q_lengths": lens, "k_lengths": lens}, [2, 7, 8, 9])):
        held = [torch.full_like(packed, torch.nan) for _ in range(30)]  # memory that the results are likely to get
        del held
        x = packed.clone().requires_grad_()
        out, lse, rows = call(x, **more)
        assert (out[nobody] == 0).all() and (lse[:, nobody] == 0).all() and (rows[:, nobody] == 0).all()
        held = [torch.full_like(packed, torch.nan) for _ in range(30)]
        del held
        out.sum().backward()
        assert (x.grad[nobody] == 0).all() and x.grad.isfinite().all() and (x.grad[0] != 0).any()


def test_offsets_belong_to_packed_layouts():
    x = torch.randn(1, 2, 8, 4)
    with pytest.raises(ValueError, match="layout 'bhsd' with cu_q, cu_k; packed rows are thd or htd"):
        attention(x, x, x, cu_q=[0, 3], cu_k=[0, 3])
    with pytest.raises(ValueError, match="layout 'htd' without cu_q"):
        attention(x[0], x[0], x[0], layout="htd")
    torch.testing.assert_close(attention(x[0], x[0], x[0], layout="htd", cu_q=[0, 8]), attention(x, x, x)[0])
    with pytest.raises(TypeError, match=r"window is 5; \(left, right\) is accepted"):
        attention(x, x, x, window=5)


def test_compiled_without_a_mask():
    """A default argument is more than the None that it is, to Dynamo."""
    x = torch.randn(1, 2, 8, 4)
    for call in (lambda x: attention(x, x, x), lambda x: attention(x, x, x, lambda s, b, h, q, k: s - (q - k).abs()),
                 lambda x: attention(x, x, x, is_causal=True, sinks="zero", return_lse=True).lse):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(x), call(x))


def test_keywords_of_other_front_ends_are_told_by_their_names_here():
    x = torch.randn(1, 1, 4, 8)
    for options, words in ((dict(causal=True, dropout=0.1), "causal= is called is_causal=; dropout= is called dropout_p="),
                           (dict(lengths=[3]), "lengths= is called q_lengths= and k_lengths="),
                           (dict(nonsense=1), "unexpected keyword nonsense; accepted are q, k, v, score_mod, mask_mod")):
        with pytest.raises(TypeError, match=words):
            attention(x, x, x, **options)
        with pytest.raises(Exception, match=words):
            torch.compile(lambda y: attention(y, y, y, **options), backend="eager", fullgraph=True)(x)


def test_what_nothing_uses_or_brings_is_refused():
    x, bias = torch.randn(2, 4, 8, 16), torch.randn(4)
    mask = fx.create_block_mask(lambda b, h, q, k: q >= k, None, None, 8, 8, device="cpu")
    text = "param cap : float = 2\nscore = score * cap"
    for kind, words, call in (
            (ValueError, "params and tensors given beside a function",
             lambda: attention(x, x, x, lambda s, b, h, q, k: s, params={"a": 1.0}, tensors={"b": bias})),
            (ValueError, "params given beside a function",
             lambda: attention(x, x, x, lambda graph, score, tensors: score, style="graph", params={"a": 1.0})),
            (TypeError, "give its mask_mod", lambda: attention(x, x, x, None, mask)),
            (ValueError, "score_mod_bprop is given without", lambda: attention(x, x, x, score_mod_bprop="dscore * 2")),
            (ValueError, "score_mod uses bias, cap, which flex_attention has no", lambda: fx.flex_attention(
                x, x, x, "tensor bias : f32[1]\nparam cap : float\nscore = score * cap + bias[h]")),
            (ValueError, r"sinks has shape \(5,\); \(4,\)", lambda: attention(x, x, x, sinks=torch.ones(5))),
            (ValueError, "sinks is True; \"zero\", or a tensor", lambda: attention(x, x, x, sinks=True)),
            (ValueError, r"k_lengths has shape \(3,\); \(2,\) is accepted",
             lambda: attention(x, x, x, k_lengths=[1, 2, 3]))):
        with pytest.raises(kind, match=words):
            call()
    torch.testing.assert_close(fx.flex_attention(x, x, x, text), fx.flex_attention(x, x, x, "score * 2"))
    torch.testing.assert_close(fx.flex_attention(x, x, x, text), attention(x, x, x, text))


def test_shapes_that_do_not_fit_are_named():
    x = torch.randn(2, 4, 8, 16)
    torch.testing.assert_close(attention(x, x[:1], x[:1]), attention(x, x[:1].expand_as(x), x[:1].expand_as(x)))
    for given, text in (((x, x[..., :3], x), "rows of q and k must have one size"),
                        ((x, x[:, :3], x[:, :3]), "heads of q must be a multiple"),
                        ((x, x, x[:, :, :5]), "k and v must be alike but for"),
                        ((x[:1], x, x), "the batch size of q, or 1"),
                        ((x[0], x[0], x[0]), "q has shape .*; 4 dimensions are accepted, in the order bhsd"),
                        ((x, x[0], x[0]), "k has shape")):
        with pytest.raises(ValueError, match=text):
            attention(*given)


@pytest.mark.parametrize("with_bprop", [False, True])
def test_graph_style(with_bprop):
    q, k, v = inputs(2, 2, 2, 6, 6, 4, 4, torch.float64)
    mod, cap = SoftCap(), torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)

    def call(q, k, v):
        return attention(q, k, v, mod.forward, style="graph", score_mod_bprop=mod.backward if with_bprop else None,
                         tensors={"cap": cap}, bprop_tensors={"cap": cap} if with_bprop else None)

    torch.testing.assert_close(call(q, k, v), eager(q, k, v, lambda s, *_: 2.0 * torch.tanh(s / 2.0))[0])
    assert torch.autograd.gradcheck(call, (q, k, v))


def test_a_backward_of_the_user_is_used():
    """One that is not the derivative shows in the gradient."""
    q, k, v = inputs(1, 1, 1, 4, 4, 3, 3, torch.float64)
    right = grads(attention(q, k, v, "score = 2.0 * score"), q)[0]
    wrong = grads(attention(q, k, v, "score = 2.0 * score", score_mod_bprop="dscore = 6.0 * dscore"), q)[0]
    torch.testing.assert_close(wrong, 3 * right)


def test_compiled():
    q, k, v = inputs(2, 4, 4, 16, 16, 8, 8, torch.float32)
    w, sink, lengths = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True), torch.tensor([9, 16])

    def call(q, k, v, w, sink):
        out = attention(q, k, v, lambda s, b, h, i, j: s * w[h], lambda b, h, i, j: i >= j, k_lengths=lengths,
                        sinks=sink, window=(6, None), layout="bhsd", return_lse=True)
        return out.out * out.lse.exp().clamp(max=2.0).unsqueeze(-1)

    want = call(q, k, v, w, sink)
    got = torch.compile(call, backend="aot_eager", fullgraph=True)(q, k, v, w, sink)
    torch.testing.assert_close(got, want)
    for x, y in zip(grads(got, q, k, v, w, sink), grads(want, q, k, v, w, sink)):
        torch.testing.assert_close(x, y)


def test_what_does_not_go_together_is_said_by_the_library():
    q, k, v = inputs(1, 2, 2, 4, 4, 4, 4, torch.float32)
    with pytest.raises(RuntimeError, match="fxattn: "):
        attention(q, k, v, q_start=torch.tensor([1]), bottom_right=True)
    with pytest.raises(ValueError, match="layout is 'hbsd'"):
        attention(q, k, v, layout="hbsd")
    for x in (q, q.detach()):
        with pytest.raises(IndexError, match="^index 2 is outside axis 0 of .* at b 0, h 0, q 0, k 2; "):
            table = torch.randn(2)
            attention(x, k, v, lambda s, b, h, i, j: s + table[j], bounds_check=True)
    assert fx.attention(q, k, v, deterministic=True).shape == q.shape
