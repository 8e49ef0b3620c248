# SPDX-License-Identifier: Apache-2.0
"""flex_attention with indices that are negative for some pairs, and count from the end there: output and every gradient,
also that of the captured tensor, eager and compiled, against attention written out in f64."""
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch_support import eager, gradients  # noqa: E402

import fxattn.torch as fx  # noqa: E402

CASES = {
    "difference": (lambda t, ids: lambda s, b, h, q, k: s + t[q - k], None),
    "causal": (lambda t, ids: lambda s, b, h, q, k: s + t[q - k], lambda b, h, q, k: q >= k),
    "window": (lambda t, ids: lambda s, b, h, q, k: s + t[k - q - 1] * h, lambda b, h, q, k: (q - k).abs() < 9),
    "from_the_end": (lambda t, ids: lambda s, b, h, q, k: s + t[-1 - q] * t[-1 - k], None),
    "nested": (lambda t, ids: lambda s, b, h, q, k: s + t[ids[q]] * t[ids[k]], None),
}


def step(attend, name, S, n):
    """Output and gradients of q, k, v and the captured table of n elements."""
    g = torch.Generator().manual_seed(S)
    q, k, v, d = (torch.randn(2, 2, S, 8, generator=g, dtype=torch.float64) for _ in range(4))
    t, ids = torch.randn(n, generator=g, dtype=torch.float64), torch.arange(S) // 7
    ids[S // 2:S // 2 + 3] = -1
    leaves = [x.requires_grad_() for x in (q, k, v, t)]
    return gradients(attend(name, *leaves, ids), d, leaves)


def ours(name, q, k, v, t, ids):
    score, mask = CASES[name]
    block = None if mask is None else fx.create_block_mask(mask, None, None, q.shape[2], k.shape[2], device="cpu")
    return fx.flex_attention(q, k, v, score(t, ids), block)


def dense(name, q, k, v, t, ids):
    return eager(q, k, v, CASES[name][0](t, ids), CASES[name][1])[0]


def compare(got, want):
    for x, y in zip(got, want):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(CASES))
def test_eager(name):
    for S, n in ((9, 9), (37, 37), (33, 40)):
        compare(step(ours, name, S, n), step(dense, name, S, n))


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_compilation_for_all_lengths(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ours, backend=counter, fullgraph=True, dynamic=True)
    for S, n in ((16, 18), (17, 19), (33, 34)):  # never alike: equal sizes would be one symbol to Dynamo
        compare(step(compiled, name, S, n), step(dense, name, S, n))
    assert counter.frame_count == 1
