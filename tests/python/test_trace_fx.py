# SPDX-License-Identifier: Apache-2.0
"""Graphs of torch.fx, as Dynamo captures score functions: operators of Python and of ATen, further arguments that were
lifted out of the function, symbolic numbers."""
import operator

import pytest

torch = pytest.importorskip("torch")
import torch.fx  # noqa: E402

from fxattn.trace import trace  # noqa: E402
from trace_support import Evaluator  # noqa: E402

aten = torch.ops.aten


def graph_of(names, build):
    graph = torch.fx.Graph()
    graph.output((build(graph, *[graph.placeholder(name) for name in names.split()]),))
    return torch.fx.GraphModule({}, graph)


def score_graph():
    def build(g, s, b, h, q, k, table, n):
        call = g.call_function
        whole = call(aten.index, (table, [h, q]))
        row = call(aten.index.Tensor, (table, [h, None]))  # None: the whole dimension
        inside = call(operator.and_, (call(operator.ge, (q, k)), call(operator.lt, (k, n))))
        chosen = call(torch.where, (inside, s, whole))
        moved = call(operator.iadd, (chosen, g.call_method("sum", (row, -1))))
        return call(aten.where.self, (call(aten.gt.Scalar, (q, 2)), call(aten.add.Tensor, (moved, q)), moved))
    return graph_of("s b h q k table n", build)


def test_operators_and_lifted_arguments():
    table = torch.arange(12.0).reshape(4, 3)
    for n in (2, 7):
        traced = trace(score_graph(), score_extra=(table, n))
        assert traced.params == (n,) and traced.tensors[0] is table
        assert [param.type for param in traced.program.params] == ["int"]
        run = Evaluator(traced.program, traced.tensors, traced.params)
        for q in range(3):
            for k in range(4):
                for h in range(4):
                    expect = 0.5 if q >= k and k < n else float(table[h, q])
                    expect += float(table[h].sum()) + (q if q > 2 else 0)
                    assert run(0.5, h=h, q=q, k=k)[0] == expect


def test_lifted_ints_are_one_program():
    table = torch.rand(4, 3)
    hashes = {trace(score_graph(), score_extra=(table, n)).program.hash for n in range(5)}
    assert len(hashes) == 1


def test_unused_arguments_declare_nothing():
    traced = trace(graph_of("s b h q k x n c", lambda g, s, *rest: s), score_extra=(torch.rand(3), 5, 2.5))
    assert traced.tensors == () == traced.params and traced.program.text.strip() == ""


def test_mask_of_symbolic_trace():
    made = torch.fx.symbolic_trace(lambda b, h, q, k: (q >= k) & b.new_ones((), dtype=torch.bool))
    assert trace(None, made).program.text.strip() == "mask = q >= k"


def test_floats_of_the_graph_are_constants_and_lifted_ones_params():
    made = graph_of("s b h q k c", lambda g, s, b, h, q, k, c: g.call_function(operator.mul, (g.call_function(
        operator.mul, (s, 0.25)), c)))
    traced = trace(made, score_extra=(3.5,))
    assert traced.params == (3.5,) and "0.25" in traced.program.text


def test_symbolic_ints_are_params():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    size = ShapeEnv().create_unbacked_symint()
    table = torch.rand(6, 4)
    traced = trace(lambda s, b, h, q, k: s + table[q, h] * size, lambda b, h, q, k: k < size)
    assert len(traced.params) == 1 and traced.params[0] is size
    assert traced.program.text.strip().endswith("mask = k < p00")


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.rand(6, 4))
        traced = trace(lambda s, b, h, q, k: s + fake[q, h] + fake[k].sum(-1) * fake[0, 0])
    assert traced.tensors[0] is fake and traced.program.captures[0].dtype == "f32"
