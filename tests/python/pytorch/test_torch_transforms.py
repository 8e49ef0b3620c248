# SPDX-License-Identifier: Apache-2.0
"""Each transformation of PyTorch on each route to the library: the result is that of plain operations, or the call is
refused by name. Nothing is silently 0, and nothing fails inside of Dynamo."""
import math

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn.trace import trace  # noqa: E402

_generator = torch.Generator().manual_seed(5)
q, k, v = (torch.randn(1, 2, 6, 4, generator=_generator) for _ in range(3))
bias = torch.randn(2, 6, generator=_generator)
ones = torch.ones_like(q)
OFFSETS = torch.tensor([0, 2, 6])
FORWARD, SECOND = "fxattn has no forward-mode derivative", "fxattn has no second derivative"


def mod(s, b, h, i, j):
    return s * 1.5 + bias[h, j]


def plain(q, k, v, hidden=None):
    scores = q @ k.transpose(-1, -2) / 2 * 1.5 + bias[:, None, :]
    return torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -math.inf), -1) @ v


def flex(q, k, v):
    return fx.flex_attention(q, k, v, mod)


TEXT = trace(mod, None).program.text


def operator(q, k, v):
    return torch.ops.fxattn.fwd(q, k, v, [bias], [], [], [], [math.nan, 0.0], [0], TEXT)[0]


def packed(q, k, v):
    rows = [x.squeeze(0).transpose(0, 1) for x in (q, k, v)]
    out = fx.attention(*rows, layout="thd", cu_q=OFFSETS, max_q=4, max_k=4)
    return out.transpose(0, 1).unsqueeze(0)


def plain_packed(q, k, v):
    own = torch.arange(6) >= 2
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(own[:, None] != own, -math.inf)
    return torch.softmax(scores, -1) @ v


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return flex(q, k, v)


dot_product = fx.DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="no_mask")


def module(q, k, v):
    return dot_product(*(x.transpose(1, 2) for x in (q, k, v))).unflatten(-1, (2, 4)).transpose(1, 2)


def plain_module(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def dual(f):
    def run(q):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(q, ones))).tangent
    return run


def dual_without_grad(f):
    return torch.no_grad()(dual(f))


def no_forward_mode(f):
    def run(q):
        with forward_ad.dual_level():
            both = forward_ad.make_dual(q, ones)
            with forward_ad._set_fwd_grad_enabled(False):
                return f(both).sum()
    return run


def twice(f):
    def run(q):
        q = q.detach().clone().requires_grad_()
        (first,) = torch.autograd.grad(f(q).square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.sum(), q)[0]
    return run


def checkpointed(f):
    def run(q):
        q = q.detach().clone().requires_grad_()
        return torch.autograd.grad(checkpoint(f, q, use_reentrant=False).square().sum(), q)[0]
    return run


def called(f):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones(()))

        def forward(self, q):
            return f(q * self.factor)

    scaled = Scaled()
    return lambda q: grad(lambda factor: functional_call(scaled, {"factor": factor}, (q,)).square().sum())(q.mean())


def loss(f):
    return lambda q: f(q).square().sum()


REVERSE = {
    "grad": lambda f: grad(loss(f)),
    "vjp": lambda f: lambda q: vjp(f, q)[1](ones)[0],
    "jacrev": lambda f: jacrev(lambda q: f(q).square().sum(-1)),
    "vmap": lambda f: lambda q: vmap(f)(torch.stack([q, q * 2])),
    "vmap of grad": lambda f: lambda q: vmap(grad(loss(f)))(torch.stack([q, q * 2])),
    "grad of vmap": lambda f: grad(lambda q: vmap(f)(torch.stack([q, q * 2])).square().sum()),
    "grad beside an inner one": lambda f: grad(lambda q: grad(loss(f))(q).detach().sum() + loss(f)(q)),
    "functional_call": called,
    "checkpoint": checkpointed,
    "forward mode off": no_forward_mode,
}
REFUSED = {
    "jvp": lambda f: lambda q: jvp(f, (q,), (ones,))[1],
    "jvp without grad": lambda f: lambda q: torch.no_grad()(jvp)(f, (q,), (ones,))[1],
    "jvp of vmap": lambda f: lambda q: jvp(lambda q: vmap(f)(torch.stack([q, q * 2])), (q,), (ones,))[1],
    "vmap of jvp": lambda f: lambda q: vmap(lambda q: jvp(f, (q,), (ones,))[1])(torch.stack([q, q * 2])),
    "jacfwd": lambda f: jacfwd(lambda q: f(q).sum()),
    "linearize": lambda f: lambda q: linearize(f, q)[1](ones),
    "hessian": lambda f: hessian(loss(f)),
    "jvp of grad": lambda f: lambda q: jvp(grad(loss(f)), (q,), (ones,))[1],
    "grad of jvp": lambda f: grad(lambda q: jvp(loss(f), (q,), (ones,))[1]),
    "jvp of a cotangent": lambda f: lambda q: jvp(lambda g: vjp(f, q)[1](g)[0], (ones,), (ones,))[1],
    "dual numbers": dual,
    "dual numbers without grad": dual_without_grad,
}
TWICE = {
    "grad of grad": lambda f: grad(lambda q: grad(loss(f))(q).sum()),
    "double backward": twice,
}
ENTRIES = {"flex_attention": (flex, plain), "packed": (packed, plain_packed), "module": (module, plain_module),
           "operator": (operator, plain)}
COMPILED = [("aot_eager", True), ("aot_eager", False), ("eager", True), ("inductor", False)]


def of_q(f):
    return lambda x: f(x, k, v)


def compiled(f, backend, fullgraph):
    torch._dynamo.reset()
    return torch.compile(f, backend=backend, fullgraph=fullgraph)


def refused(run, text):
    """The call raises an error that has the text: NotImplementedError, which Dynamo makes its own of where a graph
    break is an error."""
    with pytest.raises((NotImplementedError, torch._dynamo.exc.Unsupported)) as caught:
        run(q)
    assert text in str(caught.value)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", REVERSE)
def test_results_are_those_of_plain_operations(entry, name):
    ours, theirs = ENTRIES[entry]
    torch.testing.assert_close(REVERSE[name](of_q(ours))(q), REVERSE[name](of_q(theirs))(q), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", [*REFUSED, *TWICE])
def test_what_is_not_there_is_refused(entry, name):
    transform = {**REFUSED, **TWICE}[name]
    refused(transform(of_q(ENTRIES[entry][0])), FORWARD if name in REFUSED else SECOND)


@pytest.mark.parametrize("backend, fullgraph", COMPILED)
@pytest.mark.parametrize("name", REVERSE)
def test_compiled_results_are_those_of_plain_operations(name, backend, fullgraph):
    if name == "checkpoint" and fullgraph:
        pytest.skip("Dynamo traces no torch.autograd.grad")
    want = REVERSE[name](of_q(plain))(q)
    for f in (flex, operator):
        torch.testing.assert_close(compiled(REVERSE[name](of_q(f)), backend, fullgraph)(q), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend, fullgraph", COMPILED)
@pytest.mark.parametrize("name", REFUSED)
def test_compiled_forward_mode_is_refused(name, backend, fullgraph):
    if name == "linearize" and fullgraph:
        pytest.skip("Dynamo traces no linearize")
    for f in (flex, operator, packed) if backend == "aot_eager" else (flex,):
        refused(compiled(REFUSED[name](of_q(f)), backend, fullgraph), FORWARD)


@pytest.mark.parametrize("backend, fullgraph", COMPILED)
def test_a_compiled_second_derivative_is_refused(backend, fullgraph):
    refused(compiled(TWICE["grad of grad"](of_q(flex)), backend, fullgraph), SECOND)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_dual_numbers_reach_a_compiled_call(backend):
    refused(dual(compiled(of_q(flex), backend, False)), FORWARD)


@pytest.mark.parametrize("name", [*REVERSE, *REFUSED, *TWICE])
def test_exported_programs(name):
    exported = torch.export.export(Layer(), (q, k, v)).module()
    if name in REVERSE:
        want = REVERSE[name](of_q(plain))(q)
        torch.testing.assert_close(REVERSE[name](of_q(exported))(q), want, rtol=1e-4, atol=1e-5)
    else:
        refused({**REFUSED, **TWICE}[name](of_q(exported)), FORWARD if name in REFUSED else SECOND)


def test_captured_tensors_and_the_rest_are_named():
    def run(k, w):
        return fx.flex_attention(q, k, v, lambda s, b, h, i, j: s + w[h, j])

    with pytest.raises(NotImplementedError, match="k, captured tensor 0 have a tangent"):
        jvp(run, (k, bias), (ones, bias))
    with pytest.raises(NotImplementedError, match="captured tensor 0 has a tangent"):
        jvp(lambda w: run(k, w), (bias,), (bias,))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
def test_ring_attention():
    def run(q, w):
        return fx.ring_attention(q, k, v, lambda s, b, h, i, j: s + w[h, j])

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for transform in (lambda q: jvp(lambda q: run(q, bias), (q,), (ones,)), grad(lambda q: run(q, bias).sum())):
            refused(transform, "ring_attention does not run inside of torch.func")
        refused(dual(lambda q: run(q, bias)), FORWARD)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="captured tensor 0 has a tangent"):
            run(q, forward_ad.make_dual(bias, bias))
    finally:
        torch.distributed.destroy_process_group()
