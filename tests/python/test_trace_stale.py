# SPDX-License-Identifier: Apache-2.0
"""What a function may depend on besides its code, cells, defaults and globals: elements and lengths of tensors that it
tells to Python, attributes of functions and tensors, and what somebody put into a module. A change of any must show in
the next trace, though nothing else changed."""
import math

import pytest

from fxattn.trace import reuse, trace
from trace_support import evaluator, same

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
F = torch.nn.functional

at_place = torch.tensor(0)
weight = torch.tensor(0.5)
rows = torch.ones(2)


def value(mod, score=0.75, **at):
    return evaluator(trace(mod))(score, **at)[0]


def own_value(mod, score=0.75):
    return mod(torch.tensor(score, dtype=torch.float64), *(torch.tensor(0) for _ in range(4)))


def _by_length(s, b, h, q, k):
    for _ in rows:
        s = s * 1.5
    return s


def _two(s):
    return torch.stack([torch.stack([s, s * 2, s * 3]), torch.stack([s, s, s])])


READING = {
    "math": lambda s, b, h, q, k: s * math.exp(weight),
    "math, and captured": lambda s, b, h, q, k: s * math.exp(weight) + weight,
    "math.floor": lambda s, b, h, q, k: s * math.floor(weight * 4),
    "tuple": lambda s, b, h, q, k: s * (s, 2.5)[at_place],
    "list": lambda s, b, h, q, k: s * [1.0, 2.5][at_place],
    "length": _by_length,
    "NumPy's scalar": lambda s, b, h, q, k: s * np.float32(weight),
    "decimals": lambda s, b, h, q, k: torch.round(s, decimals=at_place),
    "norm": lambda s, b, h, q, k: torch.norm(torch.stack([s, s * 2]), at_place + 1),
    "vector_norm": lambda s, b, h, q, k: torch.linalg.vector_norm(torch.stack([s, s * 2]), weight + 1),
    "nan_to_num": lambda s, b, h, q, k: torch.nan_to_num(s / 0.0, posinf=weight),
    "isclose": lambda s, b, h, q, k: s + torch.isclose(s, s + 0.6, rtol=0, atol=weight) * 1.0,
    "dim": lambda s, b, h, q, k: torch.cumsum(_two(s), at_place)[1, 1],
    "sizes": lambda s, b, h, q, k: torch.reshape(_two(s), (at_place + 1, -1))[0].sum(),
    "threshold": lambda s, b, h, q, k: F.softplus(s, 1.0, weight),
}


@pytest.mark.parametrize("name", READING)
def test_values_told_to_python(name):
    global rows
    try:
        for n in range(4):
            at_place.fill_(n % 2)
            weight.fill_(0.5 + 0.5 * n)
            rows = torch.ones(2 + n)
            for _ in range(2):
                assert same(value(READING[name]), own_value(READING[name]), 1e-6)
    finally:
        at_place.fill_(0)
        weight.fill_(0.5)
        rows = torch.ones(2)


def test_attributes_with_names_of_functions():
    def helper(x):
        return x * 2

    table = torch.ones(4)
    for n in range(3):
        helper.e = table.pi = 1.0 + n
        assert value(lambda s, b, h, q, k: helper(s) * helper.e) == 1.5 * (1 + n)
        assert value(lambda s, b, h, q, k: s * table.pi) == 0.75 * (1 + n)


def _square(s, b, h, q, k):
    return torch.nn.functional.silu(s) + torch.tanh(s) * math.pi


def test_modules_that_somebody_changed(monkeypatch):
    factor = [2.0]
    for _ in range(2):
        assert same(value(_square), own_value(_square), 1e-6)
    monkeypatch.setattr(torch, "tanh", lambda x: x * factor[0])
    for factor[0] in (2.0, 3.0):
        assert same(value(_square), own_value(_square), 1e-6)
    monkeypatch.setattr(torch.nn.functional, "silu", torch.abs)
    assert same(value(_square), own_value(_square), 1e-6)
    monkeypatch.setattr(math, "pi", 2.0)
    assert same(value(_square), own_value(_square), 1e-6)
    monkeypatch.undo()
    assert same(value(_square), own_value(_square), 1e-6)


def test_what_is_kept_still():
    """Captured tensors and functions of modules are no reason to trace again."""
    table = torch.ones(4)
    mods = (_square, lambda s, b, h, q, k: s + table[h] * weight, lambda s, b, h, q, k: torch.where(q > k, s, weight))
    for mod in mods:
        trace(mod)
        asked = reuse.lookup(mod, None, ("torch", None, None))
        assert asked is not None and asked.find() is not None


def test_one_code_over_tables_of_two_libraries():
    """How a function must be traced is remembered; that of another library's values is another way. torch takes -1 for
    255 beside a uint8, NumPy for -1."""
    def below(table):
        return lambda s, b, h, q, k: s + (table[q] < -1)

    table = torch.tensor([200, 3], dtype=torch.uint8)
    for _ in range(2):
        assert evaluator(trace(below(table.numpy())))(0.0)[0] == 0.0
        assert evaluator(trace(below(table)))(0.0)[0] == float(table[0] < -1) == 1.0


def test_a_global_of_another_library(monkeypatch):
    table = torch.tensor([200, 3], dtype=torch.uint8)
    for found in (table.numpy(), table) * 2:
        monkeypatch.setitem(globals(), "rows", found)
        assert evaluator(trace(_below_rows))(0.0)[0] == float(found is table)


def _below_rows(s, b, h, q, k):
    return s + (rows[q] < -1)


def test_one_code_over_functions_of_two_libraries():
    jnp = pytest.importorskip("jax.numpy")

    def of(function):
        return lambda s, b, h, q, k: function(s)

    for _ in range(2):
        assert evaluator(trace(of(jnp.square)))(3.0)[0] == 9.0
        assert evaluator(trace(of(torch.square)))(3.0)[0] == 9.0
        assert evaluator(trace(of(lambda x: jnp.square(x))))(3.0)[0] == 9.0
        assert evaluator(trace(of(lambda x: torch.square(x))))(3.0)[0] == 9.0
