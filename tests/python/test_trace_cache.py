# SPDX-License-Identifier: Apache-2.0
"""What is kept between traces, and that it is never stale: content decides, not names, addresses or lines (R-01 to
R-05, R-23, R-44, R-66, R-69)."""
import functools
import gc
import math
import types

import pytest

from fxattn.trace import recipe, reuse, trace
from fxattn.trace.record import PROGRAMS, Recording
from run_threads import run_threads
from trace_support import evaluator

torch = pytest.importorskip("torch")


def value(mod, score=1.0, **at):
    return evaluator(trace(mod))(score, **at)[0]


def builds():
    return PROGRAMS.builds


def test_lambdas_on_one_line():
    """R-66"""
    mods = [lambda s, b, h, q, k: s + 1, lambda s, b, h, q, k: s + 2, lambda s, b, h, q, k: s + 3, lambda s, b, h, q,
            k: s * 2]
    for _ in range(3):
        assert [value(mod) for mod in mods] == [2, 3, 4, 2]


def test_redefinition_under_the_same_name():
    """R-66"""
    for factor in (2, 3, 5):
        scope = {}
        exec("def mod(s, b, h, q, k):\n    return s * %d" % factor, scope)
        for _ in range(2):
            assert value(scope["mod"]) == factor


def test_deleted_callbacks():
    """R-01: another function at the address of one that is gone has its own result."""
    for n in range(12):
        mod = eval("lambda s, b, h, q, k: s + %d" % n)
        assert value(mod) == 1 + n
        del mod
        gc.collect()


def test_temperatures_build_nothing():
    """R-04, R-69: 1,000 values of a closure's, global's, default's, partial's or attribute's float are one program."""
    scope = {"torch": torch, "temperature": 1.0}
    exec("def by_global(s, b, h, q, k):\n    return torch.tanh(s / temperature)", scope)

    def by_closure(temperature):
        return lambda s, b, h, q, k: torch.tanh(s / temperature)

    def by_default(temperature):
        def mod(s, b, h, q, k, temperature=temperature):
            return torch.tanh(s / temperature)
        return mod

    def keyword(s, b, h, q, k, *, temperature):
        return torch.tanh(s / temperature)

    class Holder:
        def mod(self, s, b, h, q, k):
            return torch.tanh(s / self.temperature)

    holder, hashes = Holder(), set()
    before = None
    for n in range(1000):
        temperature = scope["temperature"] = holder.temperature = 0.25 + n / 64
        for mod in (by_closure(temperature), by_default(temperature), scope["by_global"], holder.mod,
                    functools.partial(keyword, temperature=temperature)):
            traced = trace(mod)
            hashes.add(traced.program.hash)
            assert traced.params == (temperature,)
        before = builds() if before is None else before
    assert builds() == before and len(hashes) == 1


def test_numpy_scalars_are_one_param():
    import numpy as np
    for cap in (np.float32(1.5), np.float64(1.5)):
        traced = trace(lambda s, b, h, q, k: cap * torch.tanh(s / cap))
        assert traced.params == (cap,) and "soft cap" in traced.program.properties()["names"]


def test_names_split_nothing():
    """Tensors and numbers are named by position."""
    alpha, beta = torch.rand(4), torch.rand(4)
    x, y = 0.3, 0.7
    one = trace(lambda s, b, h, q, k: s * x + alpha[h])
    two = trace(lambda s, b, h, q, k: s * y + beta[h])
    assert one.program is two.program and one.tensors[0] is alpha and two.tensors[0] is beta


def test_unchanged_function_is_not_run_again(monkeypatch):
    made, real = [], Recording.program
    monkeypatch.setattr(Recording, "program", lambda self, *args: made.append(self) or real(self, *args))
    slopes = torch.rand(4)

    def mod(s, b, h, q, k):
        return s + slopes[h] * (q - k)

    reuse.clear()
    first, *others = (trace(mod) for _ in range(4))
    assert len(made) == 1 and all(x.program is first.program and x.tensors[0] is slopes for x in others)


def make(kind):
    """A function over something that changes, and what changes it."""
    if kind == "cell":
        cap = 2.0

        def mod(s, b, h, q, k):
            return s * cap

        def change(to):
            nonlocal cap
            cap = to
    elif kind == "list":
        held = [2.0]

        def mod(s, b, h, q, k):
            return s * held[0]

        def change(to):
            held[0] = to
    elif kind == "dict":
        table = {"cap": 2.0}

        def mod(s, b, h, q, k):
            return s * table["cap"]

        def change(to):
            table["cap"] = to
    elif kind == "object":
        box = types.SimpleNamespace(cap=2.0)

        def mod(s, b, h, q, k):
            return s * box.cap

        def change(to):
            box.cap = to
    elif kind == "function attribute":
        def mod(s, b, h, q, k):
            return s * mod.cap
        mod.cap = 2.0

        def change(to):
            mod.cap = to
    elif kind == "helper":
        def helper(x):
            return x * 2.0

        def mod(s, b, h, q, k):
            return helper(s)

        def change(to):
            nonlocal helper
            helper = lambda x: x * to  # noqa: E731
    elif kind == "helper's cell":
        cap = 2.0

        def inner(x):
            return x * cap

        def mod(s, b, h, q, k):
            return inner(s)

        def change(to):
            nonlocal cap
            cap = to
    elif kind == "defaults":
        def mod(s, b, h, q, k, cap=2.0):
            return s * cap

        def change(to):
            mod.__defaults__ = (to,)
    elif kind == "code":
        def mod(s, b, h, q, k):
            return s * 2.0

        def change(to):
            mod.__code__ = eval("lambda s, b, h, q, k: s * %r" % to).__code__
    elif kind == "tensor in place":
        held = torch.tensor(2.0)

        def mod(s, b, h, q, k):
            return s * held

        def change(to):
            held.fill_(to)
    elif kind == "tensor read while traced":
        held = torch.tensor(2.0)

        def mod(s, b, h, q, k):
            return s * held.item()

        def change(to):
            held.fill_(to)
    elif kind == "tensor that decides":
        held = torch.tensor(2.0)

        def mod(s, b, h, q, k):
            return s * 2.0 if held < 2.5 else s * 3.0

        def change(to):
            held.fill_(to)
    elif kind == "tensor that indexes a tuple":
        held, choices = torch.tensor(0), (2.0, 3.0)

        def mod(s, b, h, q, k):
            return s * choices[held]

        def change(to):
            held.fill_(1 if to == 3.0 else 0)
    elif kind == "tensor as a range":
        held = torch.tensor(2)

        def mod(s, b, h, q, k):
            total = s * 0
            for _ in range(held):
                total = total + s
            return total

        def change(to):
            held.fill_(int(to))
    elif kind == "tensor computed while traced":
        held = torch.tensor([1.0])

        def mod(s, b, h, q, k):
            return s * (held * 2)[0]

        def change(to):
            held.fill_(to / 2)
    elif kind == "size of a tensor":
        held = torch.ones(2)

        def mod(s, b, h, q, k):
            return s * held[:8].sum()

        def change(to):
            held.resize_(int(to)).fill_(1.0)
    elif kind == "shape of a tensor":
        held = torch.ones(2)

        def mod(s, b, h, q, k):
            return s * held.shape[0]

        def change(to):
            held.resize_(int(to))
    elif kind == "dtype of a tensor":
        held = torch.tensor(2.0)

        def mod(s, b, h, q, k):
            return s * held

        def change(to):
            held.data = torch.tensor(int(to), dtype=torch.int16)
    elif kind == "one tensor or two":
        first = second = torch.tensor(1.0)

        def mod(s, b, h, q, k):
            return s * (first + 0 * s + second)

        def change(to):
            nonlocal second
            second = torch.tensor(to - 1.0)
    elif kind == "class attribute":
        class Box:
            cap = 2.0

        def mod(s, b, h, q, k):
            return s * Box.cap

        def change(to):
            Box.cap = to
    elif kind == "mutable default":
        def mod(s, b, h, q, k, held=[2.0]):
            return s * held[0]

        def change(to):
            mod.__defaults__[0][0] = to
    elif kind == "masks in a list":
        held = [lambda s: s * 2.0]

        def mod(s, b, h, q, k):
            for f in held:
                s = f(s)
            return s

        def change(to):
            held[0] = lambda s: s * to
    elif kind == "sign of zero":
        zero = 0.0

        def mod(s, b, h, q, k):
            return s * 2.0 + torch.where(1 / (s * zero) < 0, 1.0, 0.0)

        def change(to):
            nonlocal zero
            zero = -0.0
    return mod, change


KINDS = """cell, list, dict, object, function attribute, helper, helper's cell, defaults, code, tensor in place,
    tensor read while traced, tensor that decides, tensor that indexes a tuple, tensor as a range,
    tensor computed while traced, size of a tensor, shape of a tensor, dtype of a tensor, one tensor or two,
    class attribute, mutable default, masks in a list, sign of zero"""


@pytest.mark.parametrize("kind", [kind.strip() for kind in KINDS.split(",")])
def test_never_stale(kind):
    mod, change = make(kind)
    assert [value(mod), value(mod)] == [2.0, 2.0]
    change(3.0)
    assert [value(mod), value(mod)] == [3.0, 3.0]


def test_global_changes_are_seen():
    scope = {"torch": torch, "n": 2}
    exec("def mod(s, b, h, q, k):\n    return s * n", scope)
    for n in (2, 2.5, True, 7):
        scope["n"] = n
        assert value(scope["mod"]) == n == value(scope["mod"])
    scope["n"] = torch.tensor(3.0)
    assert value(scope["mod"]) == 3.0
    scope["abs"] = lambda x: x * 10
    exec("def mod2(s, b, h, q, k):\n    return abs(s)", scope)
    assert value(scope["mod2"]) == 10.0
    del scope["abs"]
    assert value(scope["mod2"]) == 1.0


def test_equal_numbers_of_different_types():
    def make_mod(n):
        return lambda s, b, h, q, k: torch.where(q > n, s, s * 2) + (q * 3 + n) // 2
    for n in (1, 1.0, True, 1):
        mod = make_mod(n)
        q = torch.tensor(2, dtype=torch.int32)
        expect = float(mod(torch.tensor(1.0), 0, 0, q, 0))
        assert value(mod, q=2) == expect == value(mod, q=2)


def test_fresh_tensors_are_passed_on():
    """R-03: same metadata, other data: one program, each call its own tensor."""
    def make_mod(bias):
        return lambda s, b, h, q, k: s + bias[h]
    programs = set()
    for n in range(5):
        bias = torch.full((2,), float(n))
        traced = trace(make_mod(bias))
        programs.add(traced.program.hash)
        assert traced.tensors[0] is bias and evaluator(traced)(1.0)[0] == 1.0 + n
    assert len(programs) == 1


def test_dtype_and_rank_split_programs():
    def make_mod(bias):
        return lambda s, b, h, q, k: s + bias
    hashes = {trace(make_mod(torch.ones((), dtype=t))).program.hash for t in (torch.float32, torch.float64, torch.int32,
                                                                              torch.bool)}
    assert len(hashes) == 4


def test_memory_is_bounded():
    """R-19: 10,000 distinct programs."""
    for n in range(10000):
        trace(eval("lambda s, b, h, q, k: s + q * %d" % n))
    assert len(PROGRAMS) <= PROGRAMS.limit
    assert len(reuse._traces) <= reuse._LIMIT and len(recipe._recipes) <= recipe._LIMIT


def test_threads():
    slopes = torch.rand(4)
    wrong = []

    def work(seed):
        for n in range(100):
            c = seed * 100 + n
            got = evaluator(trace(lambda s, b, h, q, k: torch.where(q >= k, s * c + slopes[h], -math.inf)))(1.0, h=1)[0]
            if abs(got - (c + float(slopes[1]))) > 1e-9:
                wrong.append((c, got))
    run_threads(work)
    assert not wrong


def test_keys_are_not_ambiguous():
    """A default of the one function is not the other function."""
    def plain(s, b, h, q, k):
        return s

    def with_default(s, b, h, q, k, other=None):
        return s * 2 if other is None else other(s, b, h, q, k) * 3
    other = lambda s, b, h, q, k: s + 1  # noqa: E731
    assert value(with_default) == 2.0
    with_default.__defaults__ = (other,)
    assert value(with_default) == 6.0
    with_default.__defaults__ = (plain,)
    assert value(with_default) == 3.0
    with_default.__defaults__ = (None,)
    assert value(with_default) == 2.0
