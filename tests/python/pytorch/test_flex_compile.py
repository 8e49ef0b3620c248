# SPDX-License-Identifier: Apache-2.0
"""flex_attention inside torch.compile(fullgraph=True): mods that are defined there, that capture intermediates,
parameters and sizes; output and every gradient against attention written out in f64; one compilation for all
lengths."""
import functools

import pytest

torch = pytest.importorskip("torch")

from autograd_tanh import tanh_function  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402
from torch_support import eager  # noqa: E402

import fxattn.torch as fx  # noqa: E402


class Bias(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.cap = nn.Parameter(torch.randn(2, 64).double()), 20.0
        self.gain = nn.Parameter(torch.tensor(0.3).double())

    def score(self, s, b, h, i, j):
        return self.cap * torch.tanh((s + self.bias[h, (i - j).abs()] * self.gain) / self.cap)


class Scale:
    def __init__(self, w):
        self.w = w

    def __call__(self, s, b, h, i, j):
        return s * self.w[h, i]


# An operator of somebody's own, as attention-gym has one for a fast tanh of GPUs.
torch.library.define("fxattn_tests::tanh", "(Tensor x) -> Tensor")
torch.library.impl("fxattn_tests::tanh", "CompositeExplicitAutograd", torch.tanh)
torch.library.register_fake("fxattn_tests::tanh", torch.tanh)
Tanh = tanh_function(torch.ops.fxattn_tests.tanh)
torch.manual_seed(0)
MODULE, DOCUMENTS, TABLE = Bias(), torch.arange(64) // 7, torch.randn(64).double()


def closure_float(att, q, k, v, w):
    cap = 15.0

    def mod(s, b, h, i, j):
        return cap * torch.tanh(s / cap)

    return att(q, k, v, mod)


def captured_intermediate(att, q, k, v, w):
    slopes = torch.exp2(-w.exp())
    return att(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i))


def mask_made_inside(att, q, k, v, w):
    S = q.shape[2]
    documents = DOCUMENTS[:S] * 2

    def mask(b, h, i, j):
        return (documents[i] == documents[j]) & (i >= j)

    return att(q, k, v, None, fx.create_block_mask(mask, None, None, S, S, device="cpu"))


def mask_made_inside_by_pytorch(att, q, k, v, w):
    S = q.shape[2]
    return att(q, k, v, None, theirs.create_block_mask(lambda b, h, i, j: i >= j, None, None, S, S, device="cpu"))


def symbolic_sizes(att, q, k, v, w):
    S, p = q.shape[2], q.shape[2] // 2
    mask = fx.create_block_mask(lambda b, h, i, j: j <= p + 1, None, None, S, S, device="cpu")
    return att(q, k, v, lambda s, b, h, i, j: s + S - (i // (p + 1)) % 3, mask)


def bound_method(att, q, k, v, w):
    return att(q, k, v, MODULE.score)


def functions_of_functions(att, q, k, v, w):
    def outer(f, c):
        def inner(s, b, h, i, j):
            return f(s, b, h, i, j) * c
        return inner
    S = q.shape[2]
    mask = fx.and_masks(lambda b, h, i, j: i >= j, lambda b, h, i, j: i - j < 9)
    score = outer(outer(lambda s, b, h, i, j: torch.where(i >= j, s + w[h], s * 0.5), 1.5), 0.7)
    return att(q, k, v, score, fx.create_block_mask(mask, None, None, S, S, device="cpu"))


def callable_object(att, q, k, v, w):
    return att(q, k, v, Scale(w[:, None] * torch.ones(2, q.shape[2], dtype=torch.float64)))


def partial_by_keyword(att, q, k, v, w):
    def mod(s, b, h, i, j, *, t, z):
        return s + t[h] * z
    return att(q, k, v, functools.partial(mod, t=w, z=2.0))


def one_global_twice(att, q, k, v, w):
    return att(q, k, v, lambda s, b, h, i, j: s + TABLE[j] - TABLE[i])


def lse_and_scalar_tensor(att, q, k, v, w):
    z = w.sum()
    out, aux = att(q, k, v, lambda s, b, h, i, j: s * z + w[h], return_aux=fx.AuxRequest(lse=True))
    return out * aux.lse.unsqueeze(-1)


def many_operations(att, q, k, v, w):
    def mod(s, b, h, i, j):
        r = torch.clamp(i - j, -3, 3) + 3
        t = torch.minimum(s.abs(), torch.exp(-s)).clamp(max=2.0)
        keep = (i % 4 == j % 3) | ~(i < j)
        other = torch.maximum(s, s * 0.1) - torch.sqrt((i + j).double())
        return torch.where(keep, t + w[0] * r.to(torch.float64), other)
    return att(q, k, v, mod)


def two_calls_and_captured_query(att, q, k, v, w):
    y = att(q, k, v, lambda s, b, h, i, j: s + w[h] * q[b, h, i, j * 0])
    return att(y, k, v, lambda s, b, h, i, j: s - w[h])


def autograd_function(att, q, k, v, w):
    return att(q, k, v, lambda s, b, h, i, j: 5.0 * Tanh.apply(s / 5.0))


CASES = [closure_float, captured_intermediate, mask_made_inside, mask_made_inside_by_pytorch, symbolic_sizes,
         bound_method, functions_of_functions, callable_object, partial_by_keyword, one_global_twice,
         lse_and_scalar_tensor, many_operations, two_calls_and_captured_query, autograd_function]


def dense(q, k, v, score_mod=None, block_mask=None, return_aux=None):
    out, lse = eager(q, k, v, score_mod, None if block_mask is None else block_mask.mask_mod)
    return out if return_aux is None else (out, fx.AuxOutput(lse=lse))


def step(case, att, S):
    """Output and gradients of q, k, v, w and MODULE's parameters."""
    g = torch.Generator().manual_seed(S)
    xs = [torch.randn(3, 2, S, 8, generator=g).double().requires_grad_() for _ in range(3)]
    xs.append(torch.randn(2, generator=g).double().requires_grad_())
    y = case(att, *xs)
    loss = (y * torch.arange(y.numel()).view(y.shape).cos()).sum()
    got = torch.autograd.grad(loss, xs + list(MODULE.parameters()), allow_unused=True)
    return [y, *(x for x in got if x is not None)]


def compare(got, want):
    assert len(got) == len(want)
    for x, y in zip(got, want):
        assert ((x - y).abs().max() / (1 + y.abs().max())).item() < 1e-12


# Backend "eager" calls the operator of higher order itself; what Dynamo captures is the same.
@pytest.mark.parametrize("case, backend", [
    *((case, "aot_eager") for case in CASES), (mask_made_inside, "eager"), (lse_and_scalar_tensor, "eager"),
    (two_calls_and_captured_query, "eager")], ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_one_compilation_for_all_lengths(case, backend):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(case, backend=counter, fullgraph=True, dynamic=True)
    for S in (16, 17, 33):
        want = step(case, dense, S)
        compare(step(compiled, fx.flex_attention, S), want)
        compare(step(case, fx.flex_attention, S), want)
    assert counter.frame_count == 1


@pytest.mark.parametrize("case", [captured_intermediate, symbolic_sizes, lse_and_scalar_tensor],
                         ids=lambda f: f.__name__)
def test_inductor(case):
    torch._dynamo.reset()
    compiled = torch.compile(case, fullgraph=True, dynamic=True)
    compare(step(compiled, fx.flex_attention, 24), step(case, dense, 24))


def test_other_numbers_compile_nothing_anew():
    """One compilation for four closures, and one for all values of a float with dynamic=True."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fx.flex_attention, backend=counter, fullgraph=True, dynamic=True)
    x = torch.randn(2, 2, 9, 8)
    for gain in (0.5, 1.5, 2.5, 3.5):
        torch.testing.assert_close(compiled(x, x, x, lambda s, b, h, i, j: s * gain + i), eager(
            x, x, x, lambda s, b, h, i, j: s * gain + i)[0])
    assert counter.frame_count <= 2


def test_a_graph_break_in_a_mod_falls_back():
    torch._dynamo.reset()
    x = torch.randn(1, 2, 9, 8)

    def attend(x):
        def mod(s, b, h, i, j):
            torch._dynamo.graph_break()
            return s * 2
        return fx.flex_attention(x, x, x, mod)

    torch.testing.assert_close(torch.compile(attend, backend="aot_eager")(x), eager(x, x, x, lambda s, *_: s * 2)[0])


def test_modes_of_inference():
    x = torch.randn(1, 2, 9, 8)
    compiled = torch.compile(fx.flex_attention, backend="aot_eager", fullgraph=True)
    want = eager(x, x, x)[0]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(compiled(x, x, x), want)
            torch.testing.assert_close(fx.flex_attention(x, x, x), want)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2))

    def forward(self, q, k, v):
        mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device="cpu")
        return fx.flex_attention(q, k, v, lambda s, b, h, i, j: s * self.w[h], mask)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, tmp_path):
    model, x, S = Model(), torch.randn(2, 2, 5, 4), torch.export.Dim("S", min=2, max=512)
    program = torch.export.export(model, (x, x, x), dynamic_shapes=({2: S},) * 3, strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "fxattn.fwd.default" in targets and not any("higher_order" in t or "flex" in t for t in targets)
    torch.export.save(program, str(tmp_path / "model.pt2"))
    y = torch.randn(2, 2, 9, 4)
    for exported in (program, torch.export.load(str(tmp_path / "model.pt2")), program.run_decompositions()):
        torch.testing.assert_close(exported.module()(y, y, y), model(y, y, y))


def test_error_in_a_mod_names_it():
    torch._dynamo.reset()
    x = torch.randn(1, 2, 9, 8)
    with pytest.raises(Exception, match="cumsum"):
        torch.compile(lambda x: fx.flex_attention(x, x, x, lambda s, b, h, i, j: torch.cumsum(s, 0)),
                      backend="aot_eager", fullgraph=True)(x)


def test_the_first_call_of_a_process_may_be_inside_a_checkpoint(monkeypatch):
    """There Dynamo allows no change of what is outside, such as its own table of operators."""
    from torch._dynamo.variables import higher_order_ops
    monkeypatch.delitem(higher_order_ops._hop_name_to_variable_class, "fxattn_flex", raising=False)
    torch._dynamo.reset()
    x, w = torch.randn(1, 2, 9, 4, requires_grad=True), torch.randn(2, requires_grad=True)

    def layer(x):
        mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu")
        return fx.flex_attention(x, x, x, lambda s, b, h, i, j: s * w[h], mask)

    def model(x):
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    found, expected = torch.compile(model, backend="aot_eager", fullgraph=True)(x), layer(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), (x, w)), torch.autograd.grad(expected.sum(), (x, w)))


class _Layer:
    """A layer of a cache as models have them: made inside the compiled function, filled before attention."""

    def put(self, k):
        self.dtype, self.device = k.dtype, k.device
        self.keys = torch.tensor([], dtype=self.dtype, device=self.device)
        self.keys = torch.cat([self.keys, k], -2)
        return self.keys


def test_objects_made_inside_keep_their_attributes():
    """Dynamo of PyTorch 2.13 loses what is written to objects after it has recorded a mod, for PyTorch's own
    flex_attention too; the second layer of a model with a cache could not be compiled."""
    torch._dynamo.reset()

    def model(x):
        layers = [_Layer(), _Layer(), _Layer()]
        for layer in layers:
            keys = layer.put(x)
            x = fx.flex_attention(x, keys, keys, lambda s, b, h, i, j: s * 0.5)
        return x, [layer.keys for layer in layers]

    x = torch.randn(1, 2, 9, 8)
    out, keys = torch.compile(model, backend="eager", fullgraph=True)(x)
    expected, their_keys = model(x)
    assert torch.equal(out, expected) and all(torch.equal(a, b) for a, b in zip(keys, their_keys))


def test_the_program_of_a_compiled_call_is_one_line():
    """Inductor writes nodes into comments of the kernels that it makes for a GPU."""
    from torch._dynamo.backends.common import aot_autograd
    said = []

    def show(graph, _):
        said.extend(node.format_node() for node in graph.graph.nodes if "fxattn" in str(node.target))
        return graph.forward
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, 5, 5, device="cpu")

    def mod(s, b, h, i, j):
        return 2.0 * torch.tanh(s)
    out = torch.compile(lambda q: fx.flex_attention(q, q, q, mod, mask), backend=aot_autograd(
        fw_compiler=show, bw_compiler=show), fullgraph=True)(q)
    assert torch.equal(out, fx.flex_attention(q, q, q, mod, mask))
    out.sum().backward()
    assert len(said) >= 2 and "tanh" in said[0] and not any("\n" in one for one in said), said
