# SPDX-License-Identifier: Apache-2.0
"""Indices that are negative when the program runs count from the end once, as in torch, NumPy and JAX. Loads of programs
do so by themselves: indices of captured tensors are recorded as they are written, so that engines recognize them."""
import numpy as np
import pytest

from fxattn.trace import trace
from trace_support import evaluator, same

torch = pytest.importorskip("torch")

S, H = 6, 3
g = torch.Generator().manual_seed(0)
row, table, wide = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((S,), (H, 2 * S), (H, S, 3)))
documents, offsets = torch.tensor([0, 0, 1, 1, -1, -1]), torch.tensor([0.5, 2.5, 4.5], dtype=torch.float64)
signed = torch.tensor([0, -1, 3, -6, 5, -2], dtype=torch.int8)

TORCH = {
    "difference": lambda s, b, h, q, k: s + row[q - k],
    "from_the_end": lambda s, b, h, q, k: s + row[-1 - q] * row[~k],
    "offset": lambda s, b, h, q, k: s + table[h, q - k + S],
    "nested": lambda s, b, h, q, k: s + offsets[documents[q]] * offsets[documents[k]],
    "two_dimensions": lambda s, b, h, q, k: s + wide[-1 - h, q - k, -1],
    "rows": lambda s, b, h, q, k: s + wide[h, q - k].sum() + wide[-h][k].prod(),
    "part_of_rows": lambda s, b, h, q, k: s + wide[-1 - h][:, 1:][q - k].sum(),
    "array_of_indices": lambda s, b, h, q, k: s + row[torch.stack([q - k, -q - 1])].sum(),
    "constants": lambda s, b, h, q, k: s + wide[q - k - q + k, [-1, -2], -3].sum(),
    "narrow": lambda s, b, h, q, k: s + row[signed[q].long()],
    "traced_values": lambda s, b, h, q, k: s + torch.stack([s, s * 2, s * 3])[-1 - h],
    "one_traced_value": lambda s, b, h, q, k: s + torch.stack([s * 2])[h * 0 - 1],
    "traced_rows": lambda s, b, h, q, k: s + (wide[h] * s)[q - k, -1 - h],
}


@pytest.mark.parametrize("name", sorted(TORCH))
def test_torch(name):
    mod = TORCH[name]
    run, s = evaluator(trace(mod)), torch.tensor(0.25, dtype=torch.float64)
    for h in range(H):
        for q in range(S):
            for k in range(S):
                want = mod(s, *(torch.tensor(x) for x in (0, h, q, k)))
                assert same(run(0.25, h=h, q=q, k=k)[0], want), (h, q, k)


def test_once_only():
    """What is outside after that reads 0: -7 of 6 elements is not -1."""
    run = evaluator(trace(TORCH["difference"]))
    assert run(0.25, q=0, k=S)[0] == 0.25 + float(row[-S])
    assert run(0.25, q=0, k=S + 1)[0] == 0.25 == run(0.25, q=0, k=2 * S)[0]


@pytest.mark.parametrize("mask", [None, lambda b, h, q, k: q >= k], ids=["all", "causal"])
def test_indices_are_recorded_as_written(mask):
    for mod, text in ((TORCH["difference"], "t00[q - k]"), (TORCH["from_the_end"], "t00[-1 - q]"),
                      (TORCH["nested"], "t01[t00[q]]")):
        traced = trace(mod, mask)
        assert text in traced.program.text and "where" not in traced.program.text and traced.params == ()


def test_sizes_build_nothing():
    hashes = set()
    for n in (5, 7, 9):
        t = torch.arange(float(n))
        traced = trace(lambda s, b, h, q, k: s + t[q - k])
        assert evaluator(traced)(0.0, q=0, k=1)[0] == n - 1
        hashes.add(traced.program.hash)
    assert len(hashes) == 1


def test_numpy():
    t, ids, starts = np.arange(1.0, 7.0), np.array([0, 1, -1, -1, 0, 1]), np.array([0.5, 1.5, 2.5])
    narrow = np.array([0, -1, 3, -6, 5, -2], np.int8)
    many = np.arange(1.0, 201.0)
    for mod in (lambda s, b, h, q, k: s + t[q - k], lambda s, b, h, q, k: s + starts[ids[q]] + np.take(t, -1 - k),
                lambda s, b, h, q, k: s + t.take(q - k), lambda s, b, h, q, k: s + t[narrow[q]],
                lambda s, b, h, q, k: s + np.stack([s, s * 2, s * 3])[-1 - h],
                lambda s, b, h, q, k: s + (many * s)[narrow[q]]):  # -1 + 200 is no i8
        run = evaluator(trace(mod, lib="numpy"))
        for h in range(H):
            for q in range(S):
                for k in range(S):
                    assert same(run(0.25, h=h, q=q, k=k)[0], mod(np.float64(0.25), 0, h, q, k)), (h, q, k)


def _jax_functions(jax):
    jnp = jax.numpy
    a, w = jnp.arange(1.0, 7.0), jnp.arange(1.0, 13.0).reshape(4, 3)
    ids, starts = jnp.array([0, 0, 1, 1, -1, -1]), jnp.array([0.5, 2.5, 4.5])

    def own_test(s, b, h, q, k):
        d = q - k
        return s + jnp.where(d < 0, d + 5, d)

    def own_test_as_index(s, b, h, q, k):
        d = q - k
        return s + a[jnp.where(d < 0, d + 5, d)]

    def own_test_as_index_and_value(s, b, h, q, k):
        d = q - k
        wrapped = jnp.where(d < 0, d + 6, d)
        return s + a[wrapped] * wrapped

    return [own_test, own_test_as_index, own_test_as_index_and_value,
            lambda s, b, h, q, k: s + a[q - k] + w[-1 - h, -1],
            lambda s, b, h, q, k: s + starts[ids[q]] * starts[ids[k]],
            lambda s, b, h, q, k: s + w[-1 - h].sum(),
            lambda s, b, h, q, k: s + w[-1 - h, 1:].sum(),
            lambda s, b, h, q, k: s + a[jnp.stack([q - k, -1 - q])].sum(),
            lambda s, b, h, q, k: s + jnp.stack([s, 2 * s, 3 * s])[-1 - h],
            lambda s, b, h, q, k: s + jax.lax.dynamic_slice(a, (h - 1,), (2,)).sum()]


@pytest.mark.parametrize("at", range(10))
def test_jax(at):
    jax = pytest.importorskip("jax")
    mod = _jax_functions(jax)[at]
    run = evaluator(trace(mod))
    for h in range(H):
        for q in range(S):
            for k in range(S):
                want = mod(jax.numpy.float32(0.25), *map(jax.numpy.int32, (0, h, q, k)))
                assert same(run(0.25, h=h, q=q, k=k)[0], want, 1e-6), (h, q, k)
