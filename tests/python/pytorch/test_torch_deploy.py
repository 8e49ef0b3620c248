# SPDX-License-Identifier: Apache-2.0
"""Programs that leave the process: torch.export in a form that AOTInductor's packages can hold, torch.jit.trace with
gradients and saved. A package itself is compiled where FXA_TEST_LONG is set: it takes half a minute."""
import math
import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

import fxattn.torch as fx  # noqa: E402
from fxattn.torch import operators as ops  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.slopes = torch.nn.Parameter(torch.rand(4))

    def forward(self, q, k, v):
        out = fx.flex_attention(q, k, v, lambda s, b, h, i, j: s - self.slopes[h] * (i - j).abs())
        return fx.attention(out, k, v, is_causal=True)


def inputs(batch=1):
    g = torch.Generator().manual_seed(batch)
    return [torch.randn(batch, 4, 6, 8, generator=g) for _ in range(3)]


@pytest.mark.parametrize("strict", [False, True])
def test_exported_operators_have_no_nan_and_no_empty_list(strict):
    """AOTInductor writes its nodes as JSON, without NaN, and its executor leaves empty lists out."""
    exported = torch.export.export(Model(), tuple(inputs()), strict=strict)
    nodes = [node for node in exported.graph.nodes if node.target is ops.fwd]
    assert len(nodes) == 2
    for node in nodes:
        lists = [x for x in node.args if isinstance(x, (list, tuple))]
        assert all(lists) and not any(isinstance(x, float) and math.isnan(x) for one in lists for x in one)
    got, wanted = exported.module()(*inputs()), Model()(*inputs())
    assert torch.equal(got, wanted)
    rest = [*(torch.empty((0,) * 9) for _ in range(3))]
    x = inputs()
    found = ops.fwd(*x, *([one] for one in rest), [0], [1 / math.sqrt(8), 0.0], [0], "score = 2 * score")
    assert torch.equal(found[0], fx.attention(*x, "score * 2"))


class Stats(torch.nn.Module):
    def forward(self, q, k, v):
        return fx.attention(q, k, v, lambda s, b, h, i, j: 2 * s, return_lse=True)


@pytest.mark.parametrize("strict", [False, True])
def test_results_with_lse_are_saved(tmp_path, strict):
    path = str(tmp_path / "stats.pt2")
    torch.export.save(torch.export.export(Stats(), tuple(inputs()), strict=strict), path)
    got, wanted = torch.export.load(path).module()(*inputs()), Stats()(*inputs())
    assert isinstance(got, fx.AttentionOutput) and got.row_max is None
    assert torch.equal(got.out, wanted.out) and torch.equal(got.lse, wanted.lse)


@pytest.mark.filterwarnings("ignore")
def test_jit_trace(tmp_path):
    model = Model()
    traced = torch.jit.trace(model, tuple(inputs()))
    x = [t.requires_grad_() for t in inputs(2)]
    grads = [torch.autograd.grad(m(*x).sin().sum(), [*x, m.slopes]) for m in (traced, model)]
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    traced.save(str(tmp_path / "traced.pt"))
    again = torch.jit.load(str(tmp_path / "traced.pt"))
    assert torch.equal(again(*x), model(*x)) and "fxattn::fwd" in str(again.graph)


@pytest.mark.skipif(not os.environ.get("FXA_TEST_LONG"), reason="takes half a minute: set FXA_TEST_LONG")
def test_package_of_aotinductor(tmp_path):
    model, x, path = Model().eval(), inputs(), str(tmp_path / "model.pt2")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(torch.export.export(model, tuple(x)), package_path=path)
        torch.save((x, model(*x)), str(tmp_path / "values.pt"))
    source = ("import sys, torch, %s; x, wanted = torch.load(sys.argv[2])\n"
              "print(torch.equal(torch._inductor.aoti_load_package(sys.argv[1])(*x), wanted))")
    for module, words in (("fxattn.torch", "True"), ("torch", "Could not find schema for fxattn::fwd")):
        ran = subprocess.run([sys.executable, "-c", source % module, path, str(tmp_path / "values.pt")],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        assert words in ran.stdout, ran.stdout
