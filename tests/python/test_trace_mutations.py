# SPDX-License-Identifier: Apache-2.0
"""Never stale, by attack: functions of random bodies whose numbers, tensors, lists, objects, helpers, defaults,
builtins and library functions are changed at random between traces. After each change the trace that may come from a
cache must be the one that is made with none. Then changes that such a walk does not meet."""
import builtins
import functools
import gc
import math
import random
import types

import pytest

from fxattn.trace import entry, recipe, reuse, trace, watch

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def outcome(mod, mask=None, **given):
    """What a trace is, or how it fails."""
    try:
        made = trace(mod, mask, **given)
    except Exception as error:
        return type(error), str(error).split("\n")[0]
    return made.program.text, list(map(content, made.tensors)), [(type(x), repr(x)) for x in made.params]


def content(array):
    """A captured array: by what it holds, since some are made of others in every trace."""
    return type(array), array.dtype, tuple(array.shape), repr(array.tolist())


def uncached(mod, mask=None, **given):
    kept = reuse.lookup, reuse.graph_lookup, watch.find
    reuse.lookup = reuse.graph_lookup = watch.find = lambda *_: None
    try:
        return outcome(mod, mask, **given)
    finally:
        reuse.lookup, reuse.graph_lookup, watch.find = kept


def agree(mod, mask=None, times=3, **given):
    """The trace with caches, several times so that checks are made, is that without them."""
    expected = uncached(mod, mask, **given)
    for _ in range(times):
        assert outcome(mod, mask, **given) == expected


# ---- A random walk ---------------------------------------------------------------------------------------------------

LINES = """s = s * {n}
s = s + {t}[h]
s = s + {t}[h] * {u}[q]
s = s - {t}.sum()
s = s + {t}[0]
s = {f}(s)
s = {f}(s) + {g}(s)
s = s + {o}.a
s = s + {o}.table[h]
s = torch.where(q >= k, s, {n})
s = s + {l}[0]
s = s + len({l})
s = s + sum(x for x in {l})
s = s * 2.0 if {n} else s
s = s + (1.5 if {n} > 1 else 0.5)
s = s + abs(q - k) * {n}
s = s + max({n}, 2)
s = s * math.exp(0.5) + math.pi
s = torch.tanh(s)
s = torch.nn.functional.silu(s) + {m}
s = s + {m} + float("2.5")
s = s * torch.tensor(0.1)
s = s + {p}(k)
s = s + k.to(torch.float32) * {n}""".split("\n")

HELPER = "def {name}(x, n=2.0):\n    return x * n + {name}_global\n"


def number(rng):
    return rng.choice([lambda: rng.choice([0.0, -0.0, 0.5, 1.0, 2.0, math.inf, math.nan]), lambda: rng.randint(-1, 3),
                       lambda: rng.random() < 0.5, lambda: torch.tensor(rng.choice([0.5, 2.0])),
                       lambda: np.float32(rng.choice([0.5, 2.0])), lambda: rng.uniform(0, 4)])()


def tensor(rng):
    return torch.rand(rng.choice([(4,), (4,), (1,), (2, 3), ()]), dtype=rng.choice([torch.float32, torch.float64]))


def helper(rng, name, names):
    exec(HELPER.format(name=name), names)
    names[name + "_global"] = rng.choice([0.5, 1.5, 3])
    return names[name]


def made_list(rng):
    return rng.choice([list, tuple])([number(rng) for _ in range(rng.randint(1, 3))])


class Walk:
    """A function `mod` and everything it reads; `values` are globals, or cells, or defaults."""

    def __init__(self, seed, monkeypatch):
        rng = self.rng = random.Random(seed)
        self.patch = monkeypatch
        torch.manual_seed(seed)
        self.names = {"torch": torch, "math": math}
        for name in "nm":
            self.names[name] = number(rng)
        for name in "tu":
            self.names[name] = tensor(rng)
        for name in "fg":
            helper(rng, name, self.names)
        self.names["l"] = made_list(rng)
        self.names["o"] = types.SimpleNamespace(a=0.5, table=torch.rand(4))
        self.names["p"] = functools.partial(lambda x, y: x * y, y=0.5)
        lines = rng.sample(LINES, rng.randint(1, 4))
        body = "".join("    %s\n" % line.format(**{x: x for x in "nmtufgolp"}) for line in lines)
        self.cells = [x for x in "nmtul" if rng.random() < 0.4]
        defaults = "" if rng.random() < 0.7 else ", extra=1.5"
        body += "    return s%s\n" % (" + extra" if defaults else "")
        text = "def make(%s):\n  def mod(s, b, h, q, k%s):\n%s  return mod\n" % (
            ", ".join(self.cells), defaults, body.replace("    ", "      "))
        self.text = text
        exec(text, self.names)
        self.mod = self.names["make"](*(self.names[x] for x in self.cells))

    def get(self, name):
        cells = dict(zip(self.mod.__code__.co_freevars, self.mod.__closure__ or ()))
        return cells[name].cell_contents if name in cells else self.names[name]

    def put(self, name, value):
        cells = dict(zip(self.mod.__code__.co_freevars, self.mod.__closure__ or ()))
        if name in cells:
            cells[name].cell_contents = value
        self.names[name] = value

    def change(self):
        rng = self.rng
        name = rng.choice("nnmmttuuffgollp+-*")
        if name in "nm":
            self.put(name, number(rng))
        elif name in "tu":
            self.change_tensor(name)
        elif name in "fg":
            self.change_helper(name)
        elif name == "l":
            held = self.get("l")
            if type(held) is list and rng.random() < 0.6:
                held[0] = number(rng)
            else:
                self.put("l", made_list(rng))
        elif name == "o":
            self.names["o"].a = number(rng)
            self.names["o"].table = rng.choice([torch.rand(4), self.get("t")])
        elif name == "p":
            self.names["p"].keywords["y"] = rng.choice([0.5, 2, 2.0])
        elif name == "+":
            self.patch.setattr(torch, "tanh", rng.choice([torch.sin, torch.abs, lambda x: x * self.names["m"]]))
        elif name == "-":
            self.patch.undo()
            self.names.pop("abs", None)
        elif rng.random() < 0.5:
            self.names["abs"] = rng.choice([lambda x: x * 2, builtins.abs, lambda x: x])
        elif self.mod.__defaults__:
            self.mod.__defaults__ = (rng.choice([1.5, 2, torch.tensor(0.5), -0.0]),)

    def change_tensor(self, name):
        rng, held = self.rng, self.get(name)
        kind = rng.randrange(8)
        if kind < 2:
            self.put(name, tensor(rng))
        elif kind == 2:
            self.put(name, self.get("u" if name == "t" else "t"))
        elif type(held) is not torch.Tensor:
            self.put(name, tensor(rng))
        elif kind == 3:
            held.mul_(2.0)
        elif kind == 4:
            held.resize_(rng.choice([(4,), (1,), (6,)]))
        elif kind == 5 and held.dim():
            held.unsqueeze_(0) if held.dim() < 2 else held.squeeze_(0)
        elif kind == 6:
            held.data = held.data.double() if held.dtype is torch.float32 else held.data.float()
        else:
            self.put(name, torch.nn.Parameter(held.detach().clone()))

    def change_helper(self, name):
        rng, held = self.rng, self.names[name]
        kind = rng.randrange(5)
        if kind == 0:
            self.names[name + "_global"] = number(rng)
        elif kind == 1:
            held.__defaults__ = (rng.choice([2.0, 3.0, 2]),)
        elif kind == 2:
            held.__code__ = (lambda x, n=2.0: x - n).__code__
        elif kind == 3:
            held.mark = rng.random()
        else:
            helper(rng, name, self.names)


@pytest.mark.parametrize("seed", range(150))
def test_random_changes(seed, monkeypatch):
    walk = Walk(seed, monkeypatch)
    for at in range(25):
        expected = uncached(walk.mod)
        for _ in range(walk.rng.choice([1, 2, 4])):
            assert outcome(walk.mod) == expected, (at, walk.text)
        walk.change()


def test_the_walk_meets_checks():
    """It would be no attack if nothing were ever found."""
    met, real = [], watch.find
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(watch, "find", lambda *args: met.append(real(*args)) or met[-1])
        for seed in range(30):
            walk = Walk(seed, patch)
            for _ in range(6):
                outcome(walk.mod)
    finally:
        patch.undo()
    assert 20 <= sum(x is not None for x in met) < len(met)


# ---- What such a walk does not meet ----------------------------------------------------------------------------------

class Biased(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.gain = torch.nn.Parameter(torch.rand(4)), 0.5

    def forward(self, s, b, h, q, k):
        return s * self.gain + self.table[h]


def test_modules_methods_and_what_they_hold():
    module = Biased()
    within = lambda s, b, h, q, k: s + module.table[h] * module.gain  # noqa: E731
    for change in (lambda: None, lambda: setattr(module, "table", torch.nn.Parameter(torch.rand(4))),
                   lambda: setattr(module, "gain", 2), lambda: setattr(module, "gain", torch.tensor(0.5)),
                   lambda: module.double(), lambda: setattr(Biased, "forward", lambda self, s, b, h, q, k: s + 1.0)):
        kept = Biased.forward
        try:
            change()
            for mod in (module, module.forward, module.__call__, within, functools.partial(Biased.forward, module)):
                agree(mod)
        finally:
            Biased.forward = kept


def test_partials_and_what_they_hold():
    def base(s, b, h, q, k, table, gain=1.0):
        return s * gain + table[0]

    table = [0.5, 1.5]
    mod = functools.partial(base, table=table)
    for change in (lambda: None, lambda: table.__setitem__(0, 2.0), lambda: table.__setitem__(0, torch.tensor(1.0)),
                   lambda: mod.keywords.__setitem__("gain", 3.0),
                   lambda: mod.keywords.__setitem__("table", torch.rand(2)),
                   lambda: setattr(base, "__defaults__", (4.0,)),
                   lambda: mod.__setstate__((base, (), {"table": (2,)}, {}))):
        change()
        agree(mod)


def test_one_code_in_many_globals():
    """As exec makes them: the code is one, and what it names is each time another thing."""
    code = compile("def mod(s, b, h, q, k):\n    return s * gain + abs(q - k) + table[h]\n", "x", "exec").co_consts[0]
    spaces = [{"gain": gain, "table": table, **more} for gain in (0.5, 2, torch.tensor(0.5))
              for table in (torch.rand(4), [1.0])
              for more in ({}, {"abs": lambda x: x * 2}, {"__builtins__": {"abs": lambda x: -x}})]
    mods = [types.FunctionType(code, space) for space in spaces]
    for _ in range(3):
        for mod in mods:
            agree(mod, times=2)
    spaces[0]["gain"], spaces[1]["table"] = 7.5, torch.rand(4)
    for space in spaces:
        space["__builtins__"] = {"abs": lambda x: x * 3}  # too late: a function keeps those that it was made with
    for mod in mods:
        agree(mod)


class Looking(dict):
    """Globals that answer otherwise than by what they hold."""

    answer = 0.5

    def __getitem__(self, name):
        return self.answer if name == "gain" else super().__getitem__(name)


def test_globals_that_are_no_plain_dictionary():
    plain = {"gain": 0.25}
    code = compile("def mod(s, b, h, q, k):\n    return s * gain\n", "x", "exec").co_consts[0]
    agree(types.FunctionType(code, plain))  # so that there is a check
    space = Looking(gain=0.25)
    mod = types.FunctionType(code, space)
    for answer in (0.5, 0.25, 2, torch.tensor(0.5)):
        Looking.answer = answer
        agree(mod)


def test_builtins_that_somebody_changed(monkeypatch):
    def mod(s, b, h, q, k):
        return s + abs(q - k)
    agree(mod)
    monkeypatch.setattr(builtins, "abs", lambda x: x * 2)
    agree(mod)
    monkeypatch.undo()
    agree(mod)


def test_addresses_that_are_used_again():
    """Functions, codes, tensors and numbers that die, so that others get their addresses."""
    for n in range(60):
        names = {"torch": torch, "t": torch.full((4,), float(n)), "g": 1.0 + n % 3}
        exec("def mod(s, b, h, q, k):\n    return s * g + t[h] * %d.5 %s q\n" % (n % 2, "+-"[n % 3 > 1]), names)
        agree(names["mod"], times=2)
        del names
        if n % 10 == 0:
            gc.collect()


def test_states_of_torch():
    def mod(s, b, h, q, k):
        return s * torch.tensor(0.1) + q * 0.1
    kept = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            agree(mod)
    finally:
        torch.set_default_dtype(kept)
    table = torch.rand(4)
    lifted = lambda s, b, h, q, k: s + table[h]  # noqa: E731
    agree(lifted)
    table.__class__ = type("Sub", (torch.Tensor,), {})
    agree(lifted)


def test_functions_that_change_themselves():
    count, seen = [0], []

    def counting(s, b, h, q, k):
        nonlocal_count[0] += 1
        return s * float(nonlocal_count[0])
    nonlocal_count = count
    assert outcome(counting) != outcome(counting)

    def mod(s, b, h, q, k, table=[0.5]):  # noqa: B006
        seen.append(table[0])
        return s * table[0]
    for _ in range(3):
        trace(mod)
    mod.__defaults__[0][0] = 2.0
    trace(mod)
    assert seen == [0.5, 0.5, 0.5, 2.0]


def test_the_graph_style():
    state = types.SimpleNamespace(gain=2.0)
    gain = 0.5

    def held(graph, score, tensors):
        return graph.mul(score, tensors["x"]) if tensors["x"] is not None else score

    def closed(graph, score, tensors):
        return graph.mul(score, gain)

    class Callback:
        gain = 3.0

        def forward(self, graph, score, tensors):
            return graph.mul(graph.mul(score, self.gain), state.gain)

    callback = Callback()
    values = [2.0, 2, True, 3.0, np.float32(2.0), torch.rand(1, 1, 1, 1), torch.rand(2, 1, 4, 4),
              torch.rand(1, 2, 4, 4), torch.rand(2, 1, 4, 4, dtype=torch.float64), np.ones((4, 4)),
              np.ones((4, 8))[:, ::2]]
    for _ in range(2):
        for value in values:
            agree(held, style="graph", tensors={"x": value}, shape=(2, 2, 4, 4))
    for gain in (0.5, 2, 0.75):
        agree(closed, style="graph")
    for change in (lambda: None, lambda: setattr(callback, "gain", 4.0), lambda: setattr(state, "gain", 5)):
        change()
        agree(callback.forward, style="graph")


# ---- Instructions ----------------------------------------------------------------------------------------------------

def codes_of(code):
    yield code
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from codes_of(constant)


def test_instructions_are_read_as_dis_reads_them():
    functions = [f for module in (functools, random, types, recipe, reuse, watch, entry, pytest, gc, math, builtins)
                 for holder in (module, *(x for x in vars(module).values() if isinstance(x, type)))
                 for f in vars(holder).values() if type(f) is types.FunctionType]
    codes = [code for f in functions for code in codes_of(f.__code__)]
    long = "def f(x):\n    return x%s\n" % "".join(" + v%d.w%d" % (n, n) for n in range(400))  # operands beyond a byte
    codes += codes_of(compile(long, "x", "exec"))
    assert len(codes) > 200
    for code in codes:
        assert recipe.plain_steps(recipe._quick_steps(code)) == recipe.plain_steps(recipe._slow_steps(code))
    assert recipe._steps() is recipe._quick_steps
