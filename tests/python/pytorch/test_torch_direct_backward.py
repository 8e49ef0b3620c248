# SPDX-License-Identifier: Apache-2.0
"""Backward passes without PyTorch's dispatcher (routes/direct.py): the bits of the operator's, for every kind of
gradient, and only where nothing would have stood between autograd and the kernel. And what a call keeps for them."""
import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import fxattn.torch as fx  # noqa: E402
from fxattn import _abi  # noqa: E402
from fxattn.torch.routes import bypass  # noqa: E402
from torch_support import Seen, by_operator  # noqa: E402

if not bypass.possible:
    pytest.skip("this PyTorch has no way around its dispatcher", allow_module_level=True)


@pytest.fixture
def taken(monkeypatch):
    """How many backward passes went the direct way."""
    made, real = [], bypass._backward

    def counted(*arguments):
        found = real(*arguments)
        made.extend([1] if found else [])
        return found

    monkeypatch.setattr(bypass, "_backward", counted)
    return made


def x4(grad=True, dtype=torch.float32):
    return torch.randn(1, 2, 6, 8, dtype=dtype, requires_grad=grad)


bias = torch.rand(2, requires_grad=True)


def learned(s, b, h, i, j):
    return torch.tanh(s) * 2.5 + bias[h] * (i - j)


def soft_cap(graph, score, tensors):
    return graph.mul(tensors["cap"], graph.tanh(graph.div(score, tensors["cap"])))


def identity(graph, dscore, tensors):
    return graph.mul(dscore, tensors["factor"])


CASES = {
    "nothing else": lambda q, k, v: fx.flex_attention(q, k, v),
    "captured": lambda q, k, v: fx.flex_attention(q, k, v, learned),
    "lse": lambda q, k, v: fx.flex_attention(q, k, v, learned, return_aux=fx.AuxRequest(lse=True))[1].lse,
    "sinks": lambda q, k, v: fx.attention(q, k, v, sinks=bias),
    "a param that is learned": lambda q, k, v: fx.attention(
        q, k, v, "param p : float\nscore = score * p", params={"p": bias.sum()}),
    "dropout": lambda q, k, v: fx.attention(q, k, v, dropout_p=0.4, seed=5),
    "one input": lambda q, k, v: fx.flex_attention(q.detach(), k, v.detach(), learned),
    "captured alone": lambda q, k, v: fx.flex_attention(q.detach(), k.detach(), v.detach(), learned),
    "graph style": lambda q, k, v: fx.attention(q, k, v, soft_cap, style="graph", tensors={"cap": 3.0}),
    "a backward of one's own": lambda q, k, v: fx.attention(
        q, k, v, soft_cap, style="graph", tensors={"cap": 3.0}, score_mod_bprop=identity,
        bprop_tensors={"factor": torch.full((1, 1, 1, 1), 0.5)}),
    "packed": lambda q, k, v: fx.attention(*(x[0].transpose(0, 1) for x in (q, k, v)), layout="thd",
                                           cu_q=torch.tensor([0, 2, 5], dtype=torch.int32)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_bits_of_the_operator(name, dtype, taken):
    q, k, v = (x4(dtype=dtype) for _ in range(3))

    def step():
        out = CASES[name](q, k, v)
        dout = torch.linspace(-1, 1, out.numel()).to(out.dtype).view(out.shape)
        return torch.autograd.grad(out, (q, k, v, bias), dout, allow_unused=True)

    expected = by_operator(step)
    assert not taken
    for _ in range(3):  # traced, found again, known
        for mine, theirs in zip(step(), expected):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert torch.equal(mine, theirs) and mine.stride() == theirs.stride() and not mine.requires_grad
    assert len(taken) == 3


@pytest.mark.parametrize("kind", ["expanded", "gaps", "transposed", "negative"])
def test_gradients_that_come_in_lie_anywhere(kind, taken):
    q = x4()
    out = fx.flex_attention(q, q, q)
    dout = {"expanded": lambda: torch.tensor(0.5).expand(out.shape), "gaps": lambda: torch.randn(1, 2, 6, 16)[..., ::2],
            "transposed": lambda: torch.randn(1, 6, 2, 8).transpose(1, 2),
            "negative": lambda: torch.randn(out.shape, dtype=torch.complex64).conj().imag}[kind]()
    assert dout.is_neg() == (kind == "negative")
    mine = torch.autograd.grad(out, q, dout, retain_graph=True)[0]
    theirs = by_operator(lambda: torch.autograd.grad(out, q, dout.resolve_neg().clone())[0])
    assert torch.equal(mine, theirs) and len(taken) == (kind != "negative")


class Subclass(torch.Tensor):
    pass


def in_a_mode(out, q):
    with Seen() as seen:
        out.sum().backward()
    assert any("fxattn.bwd" in name for name in seen.names)


def profiled(out, q):
    with torch.profiler.profile() as events:
        out.sum().backward()
    assert any(e.key == "fxattn::bwd" for e in events.key_averages())


@pytest.mark.parametrize("other", [in_a_mode, profiled], ids=lambda f: f.__name__)
def test_goes_by_the_operator(other, taken):
    q = x4()
    other(fx.flex_attention(q, q, q, learned), q)
    assert not taken


def test_a_second_derivative_is_refused_as_ever():
    q = x4()
    grad, = torch.autograd.grad(fx.flex_attention(q, q, q, learned).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        grad.sum().backward()


def test_saved_tensors_are_what_hooks_make_of_them(taken):
    q, k = x4(), x4()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach() * 1, lambda t: t.as_subclass(Subclass)):
        out = fx.flex_attention(q, k, k, learned)
    mine = torch.autograd.grad(out.sum(), (q, k))
    assert not taken
    theirs = torch.autograd.grad(fx.flex_attention(q, k, k, learned).sum(), (q, k))
    assert taken and all(torch.equal(x, y) for x, y in zip(mine, theirs))


def test_what_cannot_be_read_is_the_operators(taken):
    from fxattn.torch.call import Call
    from fxattn.torch.route import run
    q = x4(False)
    call = Call("", floats=(0.5, 0.0), config=(0,))
    out, lse, _ = run(Call("", floats=(0.5, 0.0), config=(_abi.RETURN_LSE,)), q, q, q)
    good = dict(grads=(torch.ones_like(out),), want=(0, 1, 2))
    for given in ({"want": (77,)}, {"want": ("x",)}, {"want": 3}, {"want": (0, 0)}, {"grads": ()},
                  {"grads": (out[0],)}):
        one = {**good, **given}
        assert not bypass.backward(q, q, q, *call.arguments(), out, lse, one["grads"], one["want"])
    assert not taken and bypass.backward(q, q, q, *call.arguments(), out, lse, good["grads"], good["want"]) and taken


def test_compiled_backward_passes_are_one_graph():
    """Of autograd's graph traced by Dynamo, which follows no function of C: the operator."""
    from torch._dynamo import compiled_autograd
    x = x4()

    def step():
        out = fx.flex_attention(x, x, x, learned)
        return torch.autograd.grad(out.sum(), (x, bias))

    expected = step()
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        got = step()
    assert all(torch.equal(a, b) for a, b in zip(got, expected))


# ---- attention() and the modules at once -----------------------------------------------------------------------------

@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
def test_layouts_at_once(layout, taken):
    x = torch.randn(3, 4, 2, 8) if layout != "bhsd" else torch.randn(3, 2, 4, 8)
    for given in ({}, {"is_causal": True}, {"score_mod": lambda s, b, h, i, j: s * 0.5, "bottom_right": True},
                  {"score_mod": soft_cap, "style": "graph", "tensors": {"cap": 3.0}, "is_causal": True},
                  {"score_mod": soft_cap, "style": "graph", "tensors": {"cap": 3.0}, "score_mod_bprop": identity,
                   "bprop_tensors": {"factor": 0.5}}):
        q = x.clone().requires_grad_()

        def step():
            out = fx.attention(q, q, q, layout=layout, **given)
            return out.detach(), out.stride(), *torch.autograd.grad(out.square().sum(), q)
        for _ in range(3):
            out, stride, grad = step()
        theirs = by_operator(step)
        assert torch.equal(out, theirs[0]) and stride == theirs[1] and torch.equal(grad, theirs[2])
    assert len(taken) == 15


def test_wrong_calls_say_the_same_at_once():
    x, module = torch.randn(1, 2, 6, 8), fx.DotProductAttention(2, 8, attn_mask_type="no_mask")
    y = x.transpose(1, 2)
    bad = [lambda: fx.attention(x, x, x, soft_cap, style="graph"), lambda: fx.attention(x, x[0], x),
           lambda: fx.attention(x, x, x[..., :3, :], layout="sbhd"),
           lambda: fx.attention(x, x, x, soft_cap, style="graph", tensors=3),
           lambda: fx.attention(x, x, x, soft_cap, style="graph", tensors={"cap": "x"}),
           lambda: fx.attention(x, x, x, soft_cap, style="graph", tensors={"cap": torch.rand(7, 1, 1, 1)}),
           lambda: fx.attention(x, x, x, soft_cap, style="graph", tensors={"cap": 3.0}, bprop_tensors={"a": 1.0}),
           lambda: fx.attention(x, x, x, style="other"), lambda: fx.attention(x, x, x, layout="hsbd"),
           lambda: fx.attention(x, x, x, tensors={"a": x}), lambda: fx.attention(x, x, x, params=3),
           lambda: module(y, y, y[..., :4]), lambda: module(y, y, y, score_mod_tensors={}),
           lambda: module(y, y, y, score_mod_bprop=identity), lambda: module(x, x, x),
           lambda: module(y, y, y, score_mod=lambda s, b, h, i, j: s, score_mod_tensors={})]
    for at, call in enumerate(bad):
        told = []
        for way in (call, lambda: by_operator(call)):
            with pytest.raises(Exception) as error:
                way()
            told.append((error.type, str(error.value).split("\n")[0]))
        assert told[0] == told[1], at


# ---- What is kept ----------------------------------------------------------------------------------------------------

def test_results_die_with_their_last_reference():
    gc.collect()
    gc.disable()
    try:
        q = x4()
        out = fx.flex_attention(q, q, q, learned)
        grad, = torch.autograd.grad(out.sum(), q)
        dead = weakref.ref(out), weakref.ref(grad)
        del out, grad
        assert all(ref() is None for ref in dead)
    finally:
        gc.enable()


def test_inplace_changes_are_seen():
    for change in ("q", "out"):
        q = x4()
        given = q * 1.0
        out = fx.flex_attention(given, given, given, learned)
        total = (out * 1.0).sum()
        with torch.no_grad():
            (given if change == "q" else out).mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_workspaces_are_each_threads_own():
    """Threads that run at the same time, and come and go, with workspaces of many sizes."""
    sizes = [(1, 1, 4, 8), (1, 2, 80, 64), (2, 2, 33, 16), (1, 4, 200, 128)]
    inputs = [torch.randn(size, requires_grad=True) for size in sizes]

    def step(x):
        out = fx.flex_attention(x, x, x, lambda s, b, h, i, j: s * 0.5)
        return out.detach(), torch.autograd.grad(out.square().sum(), x)[0]

    expected, wrong = [step(x) for x in inputs], []

    def work(n):
        for i in range(8):
            at = (n + i) % len(inputs)
            if not all(torch.equal(x, y) for x, y in zip(step(inputs[at]), expected[at])):
                wrong.append((n, i))

    for _ in range(3):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong
