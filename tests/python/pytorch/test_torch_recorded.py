# SPDX-License-Identifier: Apache-2.0
"""attention() with program text and with callbacks of the graph style under torch.compile(fullgraph=True): the results
of eager calls, gradients too; values that change between calls are never stale, and compile again only where they are
part of the program."""
import enum
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fxattn  # noqa: E402
from fxattn.torch import DotProductAttention, MultiheadAttention, attention  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402


def inputs(rows=5, count=3):
    g = torch.Generator().manual_seed(rows)
    return [torch.randn(2, 2, rows, 4, generator=g).requires_grad_() for _ in range(count)]


class Compiled:
    """A function, eager and compiled; the two must agree, in gradients too, and `frames` counts compilations."""

    def __init__(self, function, dynamic=None):
        torch._dynamo.reset()
        self.function, self.counter = function, CompileCounterWithBackend("aot_eager")
        self.compiled = torch.compile(function, backend=self.counter, fullgraph=True, dynamic=dynamic)

    def check(self, *leaves, **keywords):
        found = []
        for function in (self.function, self.compiled):
            out = function(*leaves, **keywords)
            wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
            found.append([out, *torch.autograd.grad(out.sin().sum(), wanted)])
        for x, y in zip(*found):
            torch.testing.assert_close(x, y)
        return found[0][0]

    @property
    def frames(self):
        return self.counter.frame_count


class SoftCap:
    def __init__(self, cap=None):
        self.cap = cap

    def forward(self, graph, score, tensors):
        cap = tensors["cap"] if self.cap is None else self.cap
        self.scaled = graph.div(a=score, b=cap, name="scaled").set_output(False)
        return graph.mul(a=graph.tanh(input=self.scaled), b=cap)

    def backward(self, graph, dscore, tensors):
        cap = tensors["cap"] if self.cap is None else self.cap
        inner = graph.tanh_backward(loss=graph.mul(a=dscore, b=cap), input=self.scaled)
        return graph.div(a=inner, b=cap)


# ---- Text ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("source", ["cap * tanh(score / cap)", fxattn.Program.from_text(
    "param cap : float = 2\nscore = cap * tanh(score / cap)")], ids=["text", "Program"])
def test_text_with_a_learned_param_and_a_tensor(source):
    bias = torch.randn(2, requires_grad=True)

    def call(q, k, v, cap, bias):
        out = attention(q, k, v, source, "q >= k", params={"cap": cap})
        return attention(out, k, v, "score + t[h]", tensors={"t": bias}, is_causal=True)

    Compiled(call).check(*inputs(), torch.tensor(2.0, requires_grad=True), bias)


def test_numbers_of_text_change_without_a_stale_result():
    def call(q, k, v, cap, width):
        return attention(q, k, v, "cap * tanh(score / cap)", "abs(q - k) <= width",
                         params={"cap": cap, "width": width})

    both = Compiled(call)
    seen = [both.check(*inputs(), cap, width) for cap, width in ((1.0, 1), (2.0, 1), (3.0, 2), (4.0, 3), (0.5, 1))]
    assert not any(torch.equal(seen[0], other) for other in seen[1:]) and both.frames <= 4


def test_other_text_is_another_program():
    source = {"text": "score * 2"}

    def call(q, k, v):
        return attention(q, k, v, source["text"])

    both = Compiled(call)
    first = both.check(*inputs())
    source["text"] = "score * 3"
    assert not torch.equal(both.check(*inputs()), first) and both.frames == 2
    programs = [fxattn.Program("score = 2 * score"), fxattn.Program("score = 5 * score")]
    both = Compiled(lambda q, k, v, program: attention(q, k, v, program))
    assert not torch.equal(both.check(*inputs(), programs[0]), both.check(*inputs(), programs[1]))


def test_text_with_a_backward_of_its_own():
    def call(q, k, v, cap):
        return attention(q, k, v, "score * t[h]", tensors={"t": cap}, score_mod_bprop="dscore * t[h] * 2",
                         bprop_tensors={"t": cap})

    Compiled(call).check(*inputs(), torch.tensor([1.0, 2.0]))


def test_one_compilation_for_all_lengths():
    both = Compiled(lambda q, k, v, n: attention(q, k, v, "score * s + n * q", params={"s": 2.0, "n": n}), dynamic=True)
    both.check(*inputs(5), 6)
    frames = both.frames
    for rows in (7, 11, 16):
        both.check(*inputs(rows), rows + 1)
    assert both.frames == frames


# ---- Callbacks -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("given, own", [(2.0, True), (torch.tensor(2.0), True), (torch.full((1, 1, 1, 1), 2.0), False)],
                         ids=["number", "rank 0", "rank 4, derived"])
def test_soft_cap_of_transformer_engine(given, own):
    callbacks, tensors = SoftCap(), {"cap": given}

    def call(q, k, v):
        return attention(q, k, v, callbacks.forward, style="graph", tensors=tensors, is_causal=True,
                         score_mod_bprop=callbacks.backward if own else None, bprop_tensors=tensors if own else None)

    both = Compiled(call)
    both.check(*inputs())
    both.check(*inputs())
    assert both.frames == 1


def test_state_of_a_callback_object_is_guarded():
    callbacks = SoftCap(1.0)
    both = Compiled(lambda q, k, v: attention(q, k, v, callbacks.forward, style="graph",
                                              score_mod_bprop=callbacks.backward))
    seen = []
    for cap in (1.0, 2.0, 3.0, 1.0):
        callbacks.cap = cap
        seen.append(both.check(*inputs()))
    assert torch.equal(seen[0], seen[3]) and not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    other = SoftCap(9.0)
    both = Compiled(lambda q, k, v, which: attention(q, k, v, which.forward, style="graph"))
    assert not torch.equal(both.check(*inputs(), callbacks), both.check(*inputs(), other))


class DataType(enum.Enum):
    FLOAT = 1
    INT32 = 2


class Everything:
    """A callable object with a tensor, an array and a number of NumPy's, an enum, setters and getters."""

    def __call__(self, graph, score, tensors):
        assert tensors["bias"].get_dim() == [1, 2, 5, 5]
        moved = graph.add(a=score, b=tensors["bias"], compute_data_type=DataType.FLOAT, name="moved")
        key = graph.gen_index(input=score, axis=-1).set_data_type(DataType.INT32).set_name("key")
        moved = graph.add(a=moved, b=graph.mul(a=key, b=tensors["array"])).set_data_type(DataType.FLOAT)
        return graph.mul(a=moved, b=np.float32(0.5))


def test_what_a_callback_may_use_and_its_gradients():
    callback, array = Everything(), np.array([[0.25]], np.float32)

    def call(q, k, v, bias):
        return attention(q, k, v, callback, style="graph", tensors={"bias": bias, "array": array})

    Compiled(call).check(*inputs(), torch.randn(1, 2, 5, 5, requires_grad=True))


def scaled(factor, graph, score, tensors):
    return graph.mul(a=score, b=factor)


def test_partials():
    part = functools.partial(scaled, 0.25)
    both = Compiled(lambda q, k, v: attention(q, k, v, part, style="graph"))
    first = both.check(*inputs())
    part = functools.partial(scaled, 4.0)
    assert not torch.equal(both.check(*inputs()), first)


def test_callbacks_beside_a_mask_that_captures():
    def positive(graph, score, tensors):
        row, key = (graph.gen_index(input=score, axis=axis) for axis in (2, 3))
        close = graph.cmp_le(input=graph.abs(input=graph.sub(a=row, b=key)), comparison=tensors["width"])
        return graph.binary_select(input0=score, input1=graph.relu(input=score, lower_clip=0.1), mask=close)

    def call(q, k, v, hidden, width):
        return attention(q, k, v, positive, lambda b, h, i, j: (i >= j) & ~hidden[j], style="graph",
                         tensors={"width": width})

    both = Compiled(call)
    hidden = torch.tensor([False, False, True, False, False])
    assert not torch.equal(both.check(*inputs(), hidden, 1), both.check(*inputs(), hidden, 3))


def test_identity_and_wrong_results():
    both = Compiled(lambda q, k, v: attention(q, k, v, lambda graph, score, tensors: None, style="graph"))
    torch.testing.assert_close(both.check(*inputs()), attention(*inputs()))
    wrong = torch.compile(lambda q, k, v: attention(q, k, v, lambda graph, score, tensors: q, style="graph"),
                          backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="score_mod returned .*Tensor; a tensor of the graph, or None"):
        wrong(*inputs())


@pytest.mark.parametrize("kind", [DotProductAttention, MultiheadAttention])
def test_modules(kind):
    torch.manual_seed(0)
    layer = (kind(2, 4, attn_mask_type="causal", qkv_format="bshd") if kind is DotProductAttention
             else kind(8, 2, attn_mask_type="causal", qkv_format="bshd"))
    callbacks, tensors = SoftCap(), {"cap": torch.tensor(2.0)}

    def call(*x):
        return layer(*x, score_mod=callbacks.forward, score_mod_bprop=callbacks.backward, score_mod_tensors=tensors,
                     score_mod_bprop_tensors=tensors)

    x = inputs(5) if kind is DotProductAttention else [torch.randn(2, 5, 8, requires_grad=True)]
    x = [t.detach().transpose(1, 2).contiguous().requires_grad_() if t.dim() == 4 else t for t in x]
    Compiled(call).check(*x)
