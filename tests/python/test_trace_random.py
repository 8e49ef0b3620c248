# SPDX-License-Identifier: Apache-2.0
"""The tracer's oracle: random functions, evaluated pair by pair by their own library in float64, against the program
that is traced of them, evaluated by the C library."""
import os
import warnings

import numpy as np
import pytest

from fxattn.trace import trace
from trace_random import Source, arrays, pairs
from trace_support import evaluator, same

SCALE = float(os.environ.get("FXA_TEST_SCALE", "1"))


def some(n):
    return range(max(3, int(n * SCALE)))


def check(source, traced, values, truths, seed):
    run = evaluator(traced)
    for pair, value, truth in zip(pairs(seed), values, truths):
        got, mask = run(*pair)
        assert same(got, value, 1e-9), "%s\n%s\nat %s: program %r, function %r\n%s" % (
            source.score, source.floats, pair, got, value, traced.program.text)
        assert mask == bool(truth), "%s\n%s\nat %s: program %r, function %r\n%s" % (
            source.mask, source.ints, pair, mask, truth, traced.program.text)


@pytest.fixture
def double():
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


@pytest.mark.parametrize("part", range(8))
def test_torch(double, part):
    torch = double
    names = {"torch": torch, **{name: torch.from_numpy(np.array(a)) for name, a in arrays(np).items()}}
    for seed in some(25):
        source = Source(seed * 8 + part, "torch")
        score_mod, mask_mod = source.functions(names)
        made = [[torch.tensor(s), *(torch.tensor(i, dtype=torch.int32) for i in rest)] for s, *rest in pairs(seed)]
        check(source, trace(score_mod, mask_mod, dtype=torch.float64), [score_mod(*p) for p in made],
              [mask_mod(*p[1:]) for p in made], seed)


@pytest.mark.parametrize("part", range(4))
def test_numpy(part):
    names = {"np": np, **arrays(np)}
    for seed in some(40):
        source = Source(seed * 4 + part, "numpy")
        score_mod, mask_mod = source.functions(names)
        made = [[np.float64(s), *map(np.int32, rest)] for s, *rest in pairs(seed)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values, truths = [score_mod(*p) for p in made], [mask_mod(*p[1:]) for p in made]
        check(source, trace(score_mod, mask_mod, lib="numpy"), values, truths, seed)


def test_jax():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    with jax.enable_x64(True):
        # Ints of 32 bits: products of 64 are refused.
        names = {"jnp": jnp, **{name: jnp.asarray(a, dtype=np.int32 if a.dtype == np.int64 else a.dtype)
                                for name, a in arrays(np).items()}}
        for seed in some(20):
            source = Source(seed, "jax", depth=3)
            score_mod, mask_mod = source.functions(names)
            columns = [jnp.asarray(c, dtype=jnp.float64 if n == 0 else jnp.int32) for n,
                       c in enumerate(zip(*pairs(seed)))]
            values = jax.jit(jax.vmap(score_mod))(*columns)
            truths = jax.jit(jax.vmap(mask_mod))(*columns[1:])
            check(source, trace(score_mod, mask_mod, dtype="float64"), values, truths, seed)
