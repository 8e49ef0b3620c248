# SPDX-License-Identifier: Apache-2.0
"""The four routes of a call (route.py): which route each kind of call takes, and how many Calls it makes."""
import pytest

torch = pytest.importorskip("torch")

import fxattn.torch as fx  # noqa: E402
from fxattn.torch import route  # noqa: E402
from fxattn.torch.call import Call  # noqa: E402
from fxattn.torch.routes import autograd, bypass, compiled, direct, dispatcher  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

NAMES = {direct.run: "direct", autograd.run: "autograd", dispatcher.run: "dispatcher",
         dispatcher.run_entire: "entire dispatcher", compiled.run: "compiled"}


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.fixture
def taken(monkeypatch):
    """The names of the routes that are chosen meanwhile."""
    names, real = [], route.route

    def seen(*arguments):
        chosen = real(*arguments)
        names.append(NAMES[chosen])
        return chosen

    monkeypatch.setattr(route, "route", seen)
    return names


@pytest.fixture
def calls(monkeypatch):
    """The Calls that are made meanwhile."""
    made, real = [], Call.__init__

    def counted(self, *arguments, **named):
        made.append(self)
        real(self, *arguments, **named)

    monkeypatch.setattr(Call, "__init__", counted)
    return made


def inputs(grad):
    return [torch.randn(1, 2, 5, 8, requires_grad=grad) for _ in range(3)]


def call(q, k, v):
    """A call that needs more than the output, and so passes route.run()."""
    return fx.flex_attention(q, k, v, return_aux=fx.AuxRequest(lse=True))[0]


def in_a_mode(f):
    def run(*x):
        with Mode():
            return f(*x)
    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad, kind, expected", [
    (False, lambda f: f, ["direct"]), (True, lambda f: f, ["direct"]),
    (False, in_a_mode, ["dispatcher"]), (True, in_a_mode, ["autograd"]),
    (False, torch.func.vmap, ["autograd"]),
    (False, lambda f: lambda *x: torch.jit.trace(f, x, check_trace=False)(*x), ["dispatcher"]),
    (True, lambda f: lambda *x: torch.jit.trace(f, x, check_trace=False)(*x), ["entire dispatcher"])],
    ids=["eager", "eager, gradients", "a mode", "a mode, gradients", "vmap", "jit.trace", "jit.trace, gradients"])
def test_each_kind_of_call_takes_its_route(grad, kind, expected, taken):
    if not bypass.possible and expected == ["direct"]:
        pytest.skip("this PyTorch has no way around its dispatcher")
    x = inputs(grad)
    batched = [t.unsqueeze(0) for t in x] if kind is torch.func.vmap else x
    got = kind(call)(*batched)
    assert taken == expected
    assert torch.equal(got.reshape(x[0].shape), call(*x))


def test_export_takes_the_compiled_route(taken):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return call(q, k, v)

    x = inputs(False)
    exported = torch.export.export(Model(), tuple(x), strict=False)
    assert taken and set(taken) == {"compiled"}
    assert torch.equal(exported.module()(*x), call(*x))


def test_a_direct_run_that_is_impossible_takes_another_route(taken, monkeypatch):
    if not bypass.possible:
        pytest.skip("this PyTorch has no way around its dispatcher")
    x, expected = inputs(False), call(*inputs(False)).shape
    del taken[:]
    monkeypatch.setattr(bypass, "forward", lambda *arguments: ())
    assert call(*x).shape == expected and taken == ["direct", "dispatcher"]


def test_few_calls_are_made(calls):
    """A known eager call makes none, with gradients one, which its backward pass uses too; a compiled one two: for Flex
    and for the kernel of Autograd."""
    def known(s, b, h, i, j):
        return s * 2.5

    x = inputs(True)
    for _ in range(4):
        fx.flex_attention(*x, known).sum().backward()
    if bypass.possible:
        del calls[:]
        with torch.no_grad():
            fx.flex_attention(*x, known)
        assert not calls
        fx.flex_attention(*x, known).sum().backward()
        assert len(calls) == 1
    del calls[:]
    function = torch.compile(lambda *x: fx.flex_attention(*x, known), backend="eager", fullgraph=True)
    function(*x)
    compiled_calls = len(calls)
    del calls[:]
    function(*x).sum().backward()
    assert calls and len(calls) <= compiled_calls
