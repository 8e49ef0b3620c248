# SPDX-License-Identifier: Apache-2.0
"""flex_attention under PyTorch's transformations: gradcheck, vmap and grad of torch.func, checkpointing, autocast,
changes in place, second derivatives."""
import pytest

torch = pytest.importorskip("torch")

from torch.func import grad, vmap  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_support import eager, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402

GRADCHECK = {
    "identity": lambda w: None,
    "causal": lambda w: lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "squared": lambda w: lambda s, b, h, i, j: s * s,
    "trigonometry": lambda w: lambda s, b, h, i, j: torch.sin(torch.cos(s)) + torch.tan(b),
    "captured": lambda w: lambda s, b, h, i, j: s * w[h] + (i - j) * b,
}


@pytest.mark.parametrize("name", GRADCHECK)
def test_gradcheck_of_output_and_lse(name):
    q, k, v = inputs(2, 2, 1, 5, 6, 4, 3, torch.float64)
    w = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, w):
        out, aux = fx.flex_attention(q, k, v, GRADCHECK[name](w), enable_gqa=True, return_aux=fx.AuxRequest(lse=True))
        return (out, aux.lse)

    assert torch.autograd.gradcheck(call, (q, k, v, w))
    assert torch.autograd.gradcheck(lambda *xs: call(*xs)[1], (q, k, v, w))


def attend(q, k, v, w):
    return fx.flex_attention(q, k, v, lambda s, b, h, i, j: s * w[h] + (i - j) * b * 0.1)


def loss(q, k, v, w):
    return attend(q, k, v, w).square().sum()


def many():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, 2, 5, 4, generator=g) for _ in range(3)] + [torch.randn(3, 2, generator=g)]


def each(fn, in_dims, *xs):
    """What vmap should give: one entry after the other."""
    runs = [fn(*(x if d is None else x.select(d, i) for d, x in zip(in_dims, xs))) for i in range(3)]
    return [torch.stack(parts) for parts in zip(*runs)] if isinstance(runs[0], tuple) else [torch.stack(runs)]


@pytest.mark.parametrize("in_dims", [
    (0, 0, 0, None), (0, None, 0, None), (0, 0, 0, 0), (None, None, None, 0), (1, 0, 2, None)])
def test_vmap(in_dims):
    xs = [x if d == 0 else x[0] if d is None else x.movedim(0, d) for d, x in zip(in_dims, many())]
    torch.testing.assert_close([vmap(attend, in_dims=in_dims)(*xs)], each(attend, in_dims, *xs))
    by_all = grad(loss, argnums=(0, 1, 2, 3))
    torch.testing.assert_close(list(vmap(by_all, in_dims=in_dims)(*xs)), each(by_all, in_dims, *xs))
    by_query = grad(loss)
    torch.testing.assert_close([vmap(by_query, in_dims=in_dims)(*xs)], each(by_query, in_dims, *xs))


def test_vmap_of_vmap_and_of_what_requires_grad():
    q, k, v, w = many()
    nested = vmap(vmap(attend, in_dims=(0, 0, 0, None)), in_dims=(0, 0, 0, 0))
    double = [torch.stack([x, x + 1]) for x in (q, k, v)]
    ws = torch.stack([w[0], w[1]])
    want = torch.stack([torch.stack([attend(*(x[i, j] for x in double), ws[i]) for j in range(3)]) for i in range(2)])
    torch.testing.assert_close(nested(*double, ws), want)
    q.requires_grad_()
    vmap(attend, in_dims=(0, 0, 0, None))(q, k, v, w[0]).square().sum().backward()
    want = torch.stack([grad(loss)(x.detach(), y, z, w[0]) for x, y, z in zip(q, k, v)])
    torch.testing.assert_close(q.grad, want)


def test_grad_is_that_of_backward():
    q, k, v, w = (x[0] for x in many())
    leaves = [x.clone().requires_grad_() for x in (q, k, v, w)]
    loss(*leaves).backward()
    for x, y in zip(grad(loss, argnums=(0, 1, 2, 3))(q, k, v, w), leaves):
        assert torch.equal(x, y.grad)


def test_forward_mode_is_refused_by_name():
    x = torch.randn(1, 1, 3, 2)
    for transform in (lambda f: torch.func.jvp(f, (x,), (x,)), lambda f: torch.func.jacfwd(f)(x),
                      lambda f: torch.func.hessian(lambda y: f(y).sum())(x)):
        with pytest.raises(NotImplementedError, match="fxattn has no forward-mode derivative: q, k, v have a tangent"):
            transform(lambda y: fx.flex_attention(y, y, y))


def test_vmap_over_nothing():
    x, table = torch.randn(0, 2, 2, 5, 4), torch.randn(0, 2, 5)

    def step(y, t):
        return fx.flex_attention(y, y, y, lambda s, b, h, i, j: s + t[h, j]).sum()

    assert torch.func.vmap(lambda y: fx.flex_attention(y, y, y))(x).shape == x.shape
    assert torch.func.vmap(step)(x, table).shape == (0,)
    for got, given in zip(torch.func.vmap(torch.func.grad(step, (0, 1)))(x, table), (x, table)):
        assert got.shape == given.shape
    assert torch.func.vmap(torch.func.grad(lambda y: fx.flex_attention(y, y, y).sum()))(x).shape == x.shape


BATCHED = {
    "q": ["q"], "all": ["q", "k", "v", "w"], "captured": ["w"], "k and v": ["k", "v"],
}


@pytest.mark.parametrize("names", BATCHED.values(), ids=BATCHED)
def test_batched_gradients(names):
    """is_grads_batched has a vmap of its own, older than torch.func's; so has jacobian(vectorize=True)."""
    leaves = dict(zip("qkvw", (x[0].requires_grad_() for x in many())))
    q, k, v, w = leaves.values()
    mod = lambda s, b, h, i, j: s * w[h] + (i - j) * b * 0.1  # noqa: E731
    out, aux = fx.flex_attention(q, k, v, mod, return_aux=fx.AuxRequest(lse=True))
    chosen = [leaves[name] for name in names]
    douts, dlses = torch.randn(3, *out.shape), torch.randn(3, *aux.lse.shape)
    for results, many_grads in (((out,), (douts,)), ((aux.lse,), (dlses,)), ((out, aux.lse), (douts, dlses))):
        for options in ({}, {"create_graph": True}):
            got = torch.autograd.grad(results, chosen, many_grads, is_grads_batched=True, retain_graph=True, **options)
            each_one = [torch.autograd.grad(results, chosen, one, retain_graph=True) for one in zip(*many_grads)]
            for x, want in zip(got, zip(*each_one)):
                torch.testing.assert_close(x, torch.stack(want))


def test_batched_gradients_of_a_compiled_call():
    q, k, v = (x[0].requires_grad_() for x in many()[:3])
    out = torch.compile(lambda *xs: fx.flex_attention(*xs), backend="aot_eager", fullgraph=True)(q, k, v)
    douts = torch.randn(3, *out.shape)
    for x, y in zip(torch.autograd.grad(out, (q, k, v), douts, is_grads_batched=True, retain_graph=True),
                    zip(*(torch.autograd.grad(out, (q, k, v), one, retain_graph=True) for one in douts))):
        torch.testing.assert_close(x, torch.stack(y))


def test_vectorized_jacobian():
    q, k, v, w = (x[0] for x in many())
    got, want = (torch.autograd.functional.jacobian(lambda *xs: attend(*xs, w).sum(-1), (q, k, v), vectorize=fast)
                 for fast in (True, False))
    torch.testing.assert_close(got, want)


def test_second_derivative_is_refused_by_name():
    q, k, v = inputs(1, 2, 2, 4, 4, 4, 4, torch.float64)
    (first,) = torch.autograd.grad(fx.flex_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        first.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    q, k, v = inputs(1, 2, 2, 9, 9, 4, 4, torch.float32)
    w = torch.randn(2, requires_grad=True)
    want = torch.autograd.grad(loss(q, k, v, w), (q, k, v, w))
    checkpoint(attend, q, k, v, w, use_reentrant=reentrant).square().sum().backward()
    for x, y in zip((q, k, v, w), want):
        assert torch.equal(x.grad, y)


def test_a_captured_tensor_that_changes_is_detected():
    q, k, v = inputs(1, 2, 2, 4, 4, 4, 4, torch.float32)
    w = torch.randn(2, requires_grad=True) * 1
    out = attend(q, k, v, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_autocast_casts_the_inputs_alone():
    q, k, v = inputs(1, 2, 2, 9, 9, 8, 8, torch.float32)
    w = torch.randn(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k, v, w)
    assert out.dtype == torch.bfloat16
    want = attend(*(x.to(torch.bfloat16) for x in (q, k, v)), w)
    assert torch.equal(out, want)
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32 and w.grad.dtype == torch.float32
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(q, k, v, w), want)


def test_only_what_is_wanted_is_computed():
    """Each subset of gradients, also of lse alone."""
    for wanted in range(1, 16):
        xs = inputs(1, 2, 2, 5, 7, 4, 4, torch.float32) + [torch.randn(2)]
        xs = [x.detach().requires_grad_(bool(wanted >> i & 1)) for i, x in enumerate(xs)]
        out, aux = fx.flex_attention(*xs[:3], lambda s, b, h, i, j: s * xs[3][h], return_aux=fx.AuxRequest(lse=True))
        want, lse = eager(*xs[:3], lambda s, b, h, i, j: s * xs[3][h])
        chosen = [x for x in xs if x.requires_grad]
        for ours, theirs in ((out.sin().sum(), want.sin().sum()), (aux.lse.sin().sum(), lse.sin().sum()),
                             (out.sum() + aux.lse.sum(), want.sum() + lse.sum())):
            options = dict(retain_graph=True, allow_unused=True, materialize_grads=True)
            got = torch.autograd.grad(ours, chosen, **options)
            if theirs.requires_grad:
                exact = torch.autograd.grad(theirs, chosen, **options)
                for x, y in zip(got, exact):
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
