# SPDX-License-Identifier: Apache-2.0
"""Checks of unchanged functions (watch.py) are as careful as the keys that they stand for: all tests of stale traces
once more, with a guard made as soon as there is a trace, and every kind of change that a guard can meet."""
import builtins
import functools
import types

import pytest

from fxattn.trace import entry, reuse, trace, watch
from trace_support import evaluator

torch = pytest.importorskip("torch")

from test_trace_cache import *  # noqa: E402,F401,F403
from test_trace_stale import *  # noqa: E402,F401,F403

del test_memory_is_bounded  # noqa: F821  # of programs, which guards do not concern


@pytest.fixture(autouse=True)
def guards_at_once(monkeypatch):
    """The second of two traces finds the first, and makes the guard."""
    real = entry._Flex.trace

    def twice(self):
        made = real(self)
        asked = reuse.lookup(self.score_mod, self.mask_mod, (self.lib, self.device, self.dtype))
        if asked is not None and asked.find() is not None:
            real(self)
        return made
    monkeypatch.setattr(entry._Flex, "trace", twice)


def warm(mod, mask=None):
    """Traces until a guard returns the trace."""
    reuse.clear()
    trace(mod, mask)
    assert entry.known(mod, mask) is not None
    return trace(mod, mask)


def fresh(mod, mask=None):
    reuse.clear()
    return trace(mod, mask)


def tell(traced):
    return traced.program.text, [id(t) for t in traced.tensors], list(map(repr, traced.params))


SOURCE = """
import torch
factor, count, word, table, other, switch = 2.5, 3, "x", torch.ones(2), torch.zeros(2), True
def inner(s): return s * factor
def helper(s, n=2.0): return inner(s) + n
def make(gain, bias, again):
    def mod(s, b, h, q, k, shift=1.5):
        return torch.tanh(helper(s) + gain) * count + bias[h] - again[h] + table[h] + shift + abs(q - k)
    return mod
"""


def scene():
    space = types.SimpleNamespace(names={})
    exec(SOURCE, space.names)
    space.one, space.two = torch.rand(2), torch.rand(2)
    space.mod = space.names["make"](0.5, space.one, space.two)
    return space


def cell(s, at):
    return dict(zip(s.mod.__code__.co_freevars, s.mod.__closure__))[at]


def put(s, name, value):
    s.names[name] = value


def replaced_code(s):
    s.names["inner"].__code__ = (lambda s: s * factor * 2).__code__  # noqa: F821


CHANGES = {
    "float of a cell": lambda s: setattr(cell(s, "gain"), "cell_contents", 0.75),
    "float of a cell to an int": lambda s: setattr(cell(s, "gain"), "cell_contents", 1),
    "float of a cell to a tensor": lambda s: setattr(cell(s, "gain"), "cell_contents", torch.tensor(0.5)),
    "tensor of a cell to another": lambda s: setattr(cell(s, "bias"), "cell_contents", torch.rand(2)),
    "to one of another dtype": lambda s: setattr(cell(s, "bias"), "cell_contents", torch.rand(2).double()),
    "to a parameter": lambda s: setattr(cell(s, "bias"), "cell_contents", torch.nn.Parameter(torch.rand(2))),
    "two tensors to one": lambda s: setattr(cell(s, "bias"), "cell_contents", s.two),
    "tensor in another's place": lambda s: setattr(cell(s, "bias"), "cell_contents", s.names["table"]),
    "dtype of the same tensor": lambda s: setattr(s.one, "data", torch.rand(2, dtype=torch.float64)),
    "attribute of a tensor": lambda s: setattr(s.one, "mark", 1),
    "elements": lambda s: s.one.mul_(2),
    "global float": lambda s: put(s, "factor", 7.5),
    "global float to nan": lambda s: put(s, "factor", float("nan")),
    "global int": lambda s: put(s, "count", 4),
    "global int to a bool": lambda s: put(s, "count", True),
    "global int to a float": lambda s: put(s, "count", 3.0),
    "global tensor": lambda s: put(s, "table", s.names["other"]),
    "global function": lambda s: put(s, "helper", lambda s: s),
    "code of a function within": replaced_code,
    "default": lambda s: setattr(s.mod, "__defaults__", (2.5,)),
    "default of a function within": lambda s: setattr(s.names["helper"], "__defaults__", (3.0,)),
    "default by keyword": lambda s: setattr(s.names["helper"], "__kwdefaults__", {"n": 3.0}),
    "attribute of a function": lambda s: setattr(s.mod, "mark", 1),
    "a builtin's name": lambda s: put(s, "abs", lambda x: x * 2),
    "builtins of the module": lambda s: put(s, "__builtins__", {**vars(builtins), "abs": lambda x: x * 2}),
    "another module": lambda s: put(s, "torch", types.SimpleNamespace(tanh=torch.sin)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    s = scene()
    before = warm(s.mod)
    assert tell(before) == tell(fresh(s.mod))
    warm(s.mod)
    CHANGES[name](s)
    known, slow = entry.known(s.mod, None), None
    after = trace(s.mod)
    slow = fresh(s.mod)
    assert known is None or tell(known) == tell(slow)
    assert tell(after) == tell(slow)


def test_what_a_module_holds_is_compared(monkeypatch):
    s = scene()
    warm(s.mod)
    monkeypatch.setattr(torch, "tanh", torch.sin)
    assert entry.known(s.mod, None) is None


@pytest.mark.parametrize("name, first, second", [("zeros", 0.0, -0.0), ("negative zero first", -0.0, 0.0)])
def test_signs_of_zero(name, first, second):
    def make(x):
        return lambda s, b, h, q, k: s / x
    warm(make(first))
    values = [evaluator(trace(make(x)))(1.0)[0] for x in (second, first)]
    assert values == ([float("-inf"), float("inf")] if name == "zeros" else [float("inf"), float("-inf")])


def test_new_functions_of_one_code_are_known_with_their_own_tensors():
    """As in a module's forward: the function is defined anew in every call."""
    def make(bias, scale):
        return lambda s, b, h, q, k: s * scale + bias[h]
    warm(make(torch.rand(2), 0.5))
    mine = torch.rand(2)
    found = entry.known(make(mine, float("0.5")), None)
    assert found is not None and found.tensors[0] is mine and found.params == (0.5,)
    assert entry.known(make(mine, 0.25), None) is None
    assert entry.known(make(mine.double(), 0.5), None) is None
    assert entry.known(make(mine[None], 0.5), None) is None


def test_what_symbols_say_of_themselves_is_part_of_the_key():
    def mod(s, b, h, q, k):
        return torch.nan_to_num(s * 2.0)
    traces = {dtype: [trace(mod, dtype=dtype) for _ in range(4)] for dtype in (None, torch.float64, None)}
    assert traces[None][3].program.text != traces[torch.float64][3].program.text
    for dtype, (first, *others) in traces.items():
        assert all(x.program is first.program for x in others)


def test_an_empty_cell_is_not_known():
    def make():
        if True:
            gain = 0.5

        def mod(s, b, h, q, k):
            return s * gain
        return mod
    mod = make()
    warm(mod)
    del mod.__closure__[0].cell_contents
    assert entry.known(mod, None) is None
    with pytest.raises(NameError):
        trace(mod)


def test_what_has_no_guard_is_traced_as_before():
    def base(s, b, h, q, k, gain):
        return s * gain

    class Callable:
        def __call__(self, s, b, h, q, k):
            return s * 3.0

    for mod in (functools.partial(base, gain=0.5), Callable(), Callable().__call__, [lambda *a: a][0]):
        assert entry.known(mod, None) is None
    assert evaluator(trace(functools.partial(base, gain=0.5)))(2.0)[0] == 1.0
    assert evaluator(trace(Callable()))(2.0)[0] == 6.0


def test_numbers_that_change_make_no_guards(monkeypatch):
    monkeypatch.undo()  # the fixture traces twice
    reuse.clear()
    made, real = [], watch._Writer.guard
    monkeypatch.setattr(watch._Writer, "guard", lambda self, *args: made.append(self) or real(self, *args))

    def scaled(g):
        return lambda s, b, h, q, k: s * g
    for n in range(50):
        trace(scaled(0.5 + n))
    assert not made
    for _ in range(3):
        trace(scaled(0.5))
    assert len(made) == 1


def test_guards_are_bounded():
    reuse.clear()
    for n in range(watch._LIMIT + 40):
        mod = eval("lambda s, b, h, q, k: s + %d" % n)
        trace(mod), trace(mod)
        assert len(watch._pairs) <= watch._LIMIT
    for n in range(40):
        mod = (lambda g: lambda s, b, h, q, k: s * g)(float(n + 1))
        trace(mod), trace(mod)
        pair = watch._pairs[id(mod.__code__), None, ("torch", None, None)]
        assert len(pair.guards) <= watch._MOST
        assert (entry.known(mod, None) is not None) == (n < watch._TRIES)
