#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares fxattn.torch with PyTorch, in one process with the same threads. Prints Markdown tables.

    PYTHONPATH=build/python python3 bench/bench_torch.py [--only calls,tracing,import,step,first] [--no-compile]

calls    Host overhead of a call at a tiny size: the call minus a prepared fxa_plan_run of the same problem (by ctypes,
         minus the cost of an empty ctypes call).
tracing  Time from a Python function to a program: unchanged function, same code with other cells, new code.
import   Import time of the package, in new processes.
step     Training steps of a small transformer with ALiBi and a soft cap, compared with attention written out and with
         SDPA, which has no soft cap.
first    First call of a new function, compared with torch.compile(flex_attention) (forward only on a CPU).

The rows of a table alternate in short bursts; figures are medians of all bursts. Calls, tracing and steps with one
thread are measured in CPU time of that thread, which other processes affect little; more threads in wall time.
"""
import argparse
import ctypes
import functools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import types

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention as theirs

import fxattn.torch as fx
from fxattn import _abi
from fxattn._library import lib
from fxattn._problem import Args, Problem, View
from fxattn.torch import route
from fxattn.torch.call import call_of
from fxattn.torch.dtypes import DTYPES
from fxattn.trace import reuse, trace, watch

SIZE = (1, 1, 16, 16)
BOUNDS = {"forward": "<= 15", "recorded": "<= 40", "backward": None}  # bounds of the overhead, in microseconds
CAP = 20.0


# ---- Measuring and showing -------------------------------------------------------------------------------------------

def medians(functions, rounds, calls=1, clock=time.thread_time, before=4):
    """Returns seconds of one call of each: medians over `rounds` bursts of `calls`, alternating."""
    found = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(before):  # warm up: until everything is cached
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            began = clock()
            for _ in range(calls):
                function()
            found[name].append((clock() - began) / calls)
    return {name: statistics.median(times) for name, times in found.items()}


def table(title, columns, rows):
    """Prints a Markdown table; numbers are rounded, None is empty."""
    print("\n| %s | %s |" % (title, " | ".join(columns)))
    print("|---|%s" % ("---:|" * len(columns)))
    for name, cells in rows:
        print("| %s | %s |" % (name, " | ".join(
            "" if cell is None else cell if isinstance(cell, str) else "%.1f" % cell for cell in cells)))
    sys.stdout.flush()


def machine():
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return "%s, %d CPUs, load %s; Python %s, torch %s, fxattn %s" % (
        model, os.cpu_count(), "/".join("%.1f" % x for x in os.getloadavg()), platform.python_version(),
        torch.__version__, _abi.VERSION)


# ---- Calls at a tiny size --------------------------------------------------------------------------------------------

slopes = torch.full((SIZE[1],), 0.5)


def causal(s, b, h, i, j):
    return torch.where(i >= j, s, -float("inf"))


def alibi_of(table):
    return lambda s, b, h, i, j: s - table[h] * (i - j)


def capped_of(table, cap):
    return lambda s, b, h, i, j: cap * torch.tanh((s - table[h] * (i - j)) / cap)


def soft_cap(graph, score, tensors):
    return graph.mul(tensors["cap"], graph.tanh(graph.div(score, tensors["cap"])))


def prepared(traced, q, k, v, flags=0, backward=None):
    """Returns a prepared fxa_plan_run of a call by ctypes; `backward` is (out, lse, dout)."""
    if backward is None:
        tensors = {"q": q, "k": k, "v": v, "o": torch.empty_like(q)}
        if flags & _abi.RETURN_LSE:
            tensors["lse"] = torch.empty(q.shape[:3], dtype=torch.float64)
    else:
        flags |= _abi.GRAD_Q | _abi.GRAD_K | _abi.GRAD_V
        tensors = {"q": q, "k": k, "v": v, **dict(zip(("o", "lse", "dout"), backward)),
                   **{name: torch.empty_like(x) for name, x in (("dq", q), ("dk", k), ("dv", v))}}
    (b, hq, sq, d), (_, hkv, sk, _) = q.shape, k.shape
    problem = Problem(traced and traced.program, backward=backward is not None, flags=flags, b=b, hq=hq, hkv=hkv, sq=sq,
                      sk=sk, d_qk=d, d_v=v.shape[3])
    for name, x in tensors.items():
        problem.operand(name, DTYPES[x.dtype], x.stride())
    captured = traced.tensors if traced else ()
    problem.captures([View(x.data_ptr(), DTYPES[x.dtype], tuple(x.shape), x.stride()) for x in captured])
    args, plan = Args(**{{"dout": "do"}.get(name, name): x.data_ptr() for name, x in tensors.items()}), problem.plan(1)
    args.tensors([x.data_ptr() for x in captured])
    args.params(traced.params if traced else [])
    space = torch.empty(plan.workspace + 64, dtype=torch.uint8)
    args.workspace(space.data_ptr() + 63 & ~63, plan.workspace)
    handle, struct, run, keep = plan._handle, ctypes.byref(args.struct), lib.plan_run, (args, plan, space, tensors)
    if run(handle, struct, None):
        raise RuntimeError("the prepared run failed")
    return lambda: run(handle, struct, keep and None)


def empty_call():
    """Returns a ctypes call of an empty function with three arguments, like fxa_plan_run."""
    nothing = ctypes.CDLL(None).Py_IsInitialized
    nothing.argtypes = [ctypes.c_void_p] * 3
    struct, keep = ctypes.byref(_abi.Args()), (1,)
    return lambda: nothing(1, struct, keep and None)


def variants():
    """Returns name, a call with q, k, v, and its trace for each."""
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, SIZE[2], SIZE[2], device="cpu")
    alibi, capped, given = alibi_of(slopes), capped_of(slopes, CAP), {"cap": CAP}
    flex = {"plain": (None, None), "score_mod (causal, no cells)": (causal, None),
            "score_mod (ALiBi, a captured tensor)": (alibi, None),
            "score_mod (ALiBi) + block mask": (alibi, mask), "score_mod (ALiBi, soft cap) + block mask": (capped, mask)}
    for name, (mod, block) in flex.items():
        yield (name, lambda q, k, v, mod=mod, block=block: fx.flex_attention(q, k, v, mod, block),
               trace(mod, block and block.mask_mod) if mod else None)
    yield "attention()", lambda q, k, v: fx.attention(q, k, v), None
    yield ("attention(), graph style (soft cap)",
           lambda q, k, v: fx.attention(q, k, v, soft_cap, style="graph", tensors=given),
           trace(soft_cap, style="graph", tensors=given))


def calls(rounds):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    q, k, v = (torch.randn(SIZE) for _ in range(3))
    learned, dout = [x.clone().requires_grad_() for x in (q, k, v)], torch.randn(SIZE)
    sdpa = functional.scaled_dot_product_attention
    ways, names = {"empty": empty_call()}, []

    def add(name, call, traced, ours=True):
        for _ in range(4):  # until the function is cached; most steps use that graph
            out = call(*learned)
        ways[name, "forward"] = lambda: call(q, k, v)
        ways[name, "recorded"] = lambda: call(*learned)
        ways[name, "backward"] = lambda: torch.autograd.grad(out, learned, dout, retain_graph=True)
        names.append(name)
        if ours:
            ways[name, "forward", "run"] = prepared(traced, q, k, v)
            ways[name, "recorded", "run"] = prepared(traced, q, k, v, _abi.RETURN_LSE)
            made = route.run(call_of(traced, None, (_abi.RETURN_LSE,)), q, k, v)
            ways[name, "backward", "run"] = prepared(traced, q, k, v, 0, (made[0], made[1], dout))

    for variant in variants():
        add(*variant)
    add("SDPA", sdpa, None, ours=False)
    found = {name: seconds * 1e6 for name, seconds in medians(ways, rounds * 5, 100).items()}
    rows = []
    for kind, words in (("forward", "no gradient"), ("recorded", "gradient recorded"), ("backward", "backward")):
        for name in names:
            whole, run = found[name, kind], found.get((name, kind, "run"))
            run = None if run is None else run - found["empty"]
            rows.append(("%s, %s" % (name, words), (whole, None, None, None) if run is None else (
                whole, run, whole - run, BOUNDS[kind])))
    table("a call at [%s] f32, us" % ",".join(map(str, SIZE)), ("whole", "fxa_plan_run", "beyond", "wanted"), rows)
    torch.set_num_threads(threads)


# ---- Tracing ---------------------------------------------------------------------------------------------------------

class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(slopes.clone(), requires_grad=False)

    def forward(self, s, b, h, i, j):
        return s - self.table[h] * (i - j)


def scaled_of(factor):
    return lambda s, b, h, i, j: s * factor


def renewed(function, number):
    """Returns the same function with a new code object."""
    code = function.__code__.replace(co_firstlineno=number)
    return types.FunctionType(code, function.__globals__, None, function.__defaults__, function.__closure__)


def tracing(rounds):
    line = [100000]

    def new_code(function):
        line[0] += 1
        return trace(renewed(function, line[0]))

    def new_number():
        line[0] += 1
        return trace(scaled_of(line[0] + 0.5))

    def again(function):
        """Drops the function's trace; the analysis of its code stays cached."""
        reuse._traces.clear()
        watch.clear()
        return trace(function)

    kept, others = (causal, alibi_of(slopes), capped_of(slopes, CAP)), {
        "nn.Module": Biased(), "bound method": Biased().forward,
        "functools.partial": functools.partial(lambda s, b, h, i, j, factor: s * factor, factor=2.0)}
    words = dict(zip(kept, ("causal", "ALiBi", "ALiBi, soft cap")))
    unchanged = {words[mod]: lambda mod=mod: trace(mod) for mod in kept}
    unchanged["ALiBi, made anew in every call"] = lambda: trace(alibi_of(slopes))
    given = {"cap": CAP}
    unchanged["soft cap, graph style"] = lambda: trace(soft_cap, style="graph", tensors=given)
    unchanged.update({name: lambda mod=mod: trace(mod) for name, mod in others.items()})
    first = medians(unchanged, rounds * 20, 25)
    # These evict what the others cache, so they have tables of their own.
    renew = medians({words[mod]: lambda mod=mod: renewed(mod, 7) for mod in kept}, rounds, 10)
    fresh = medians({words[mod]: lambda mod=mod: new_code(mod) for mod in kept}, rounds * 4, 5)
    once = medians({words[mod]: lambda mod=mod: again(mod) for mod in kept}, rounds * 4, 5)
    number = medians({"s * factor, a new factor in every call": new_number}, rounds * 4, 5)
    rows = [(name, (seconds * 1e6, once[name] * 1e6 if name in once else None,
                    (fresh[name] - renew[name]) * 1e6 if name in fresh else None)) for name, seconds in first.items()]
    rows += [(name, (None, seconds * 1e6, None)) for name, seconds in number.items()]
    rows.append(("wanted", ("<= 15", "<= 60", "")))
    table("from a function to its program, us", ("nothing changed", "traced again", "new code object"), rows)


# ---- Import ----------------------------------------------------------------------------------------------------------

def imports(rounds):
    theirs_first = "import gc, torch, torch.nn.attention.flex_attention\ngc.collect()"
    programs = {"fxattn": "", "fxattn.torch, after torch": theirs_first}
    # A user's second import reads the byte code of the first. torch leaves a garbage collection of all its objects to
    # the next few thousand allocations; it is done before.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    rows = []
    for name, before in programs.items():
        text = "%s\nimport time\nbegan = time.%s()\nimport %s\nprint(time.%s() - began)" % (
            before, "thread_time", name.partition(",")[0], "thread_time")
        times = [float(subprocess.run([sys.executable, "-c", text], check=True, capture_output=True,
                                      env=variables).stdout) for _ in range(max(4, rounds // 2))]
        rows.append((name, (statistics.median(times[1:]) * 1e3,)))
    table("import, ms (wanted: <= 100)", ("",), rows)


# ---- Training steps --------------------------------------------------------------------------------------------------

class Layer(nn.Module):
    def __init__(self, width, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Predicts the next byte; `attend` is attention of q, k and v."""

    def __init__(self, attend, width=256, heads=4, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.last = nn.Embedding(256, width), nn.Linear(width, 256)
        self.layers = nn.Sequential(*(Layer(width, heads, attend) for _ in range(layers)))

    def loss(self, tokens):
        logits = self.last(self.layers(self.embed(tokens[:, :-1])))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def attentions(length, heads):
    """Returns ways to attend with ALiBi, a soft cap and a causal mask. SDPA has no soft cap."""
    table, at = 2.0 ** -torch.arange(1.0, heads + 1), torch.arange(length)
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
    score, head = capped_of(table, CAP), torch.arange(heads).view(-1, 1, 1)
    future = at[:, None] < at
    bias = (-table.view(-1, 1, 1) * (at[:, None] - at)).masked_fill(future, -torch.inf)[None]

    def written_out(q, k, v):
        s = score(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, None, head, at[:, None], at)
        return s.masked_fill(future, -torch.inf).softmax(-1) @ v

    sdpa = functional.scaled_dot_product_attention
    return {"fxattn": lambda q, k, v: fx.flex_attention(q, k, v, score, mask), "written out (eager)": written_out,
            "SDPA, ALiBi as a mask, no soft cap": lambda q, k, v: sdpa(q, k, v, attn_mask=bias),
            "SDPA, causal alone": lambda q, k, v: sdpa(q, k, v, is_causal=True)}


def step(rounds, threads, lengths=((16, 64), (4, 256), (1, 1024)), heads=4):
    clock = time.thread_time if threads == 1 else time.perf_counter
    found, losses = {}, {}
    for batch, length in lengths:
        tokens = torch.randint(0, 256, (batch, length + 1))
        steps = {}
        for name, attend in attentions(length, heads).items():
            model = Transformer(attend, heads=heads)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

            def one(model=model, optimizer=optimizer, name=name):
                optimizer.zero_grad()
                loss = model.loss(tokens)
                loss.backward()
                optimizer.step()
                losses[name] = float(loss.detach())
            steps[name] = one
        found[length] = medians(steps, rounds, clock=clock, before=2)
        apart = abs(losses["fxattn"] - losses["written out (eager)"])
        if apart > 1e-3 * losses["fxattn"]:
            raise SystemExit("losses of fxattn and written out are %g apart" % apart)
    table("training step, 2 layers, width 256, %d heads, %d thread%s, ms" % (heads, threads, "s"[:threads > 1]),
          ["batch %d, length %d" % one for one in lengths],
          [(name, [found[length][name] * 1e3 for _, length in lengths]) for name in found[lengths[0][1]]])


# ---- The first call --------------------------------------------------------------------------------------------------

def first(compiled, length=512):
    q, k, v = (torch.randn(1, 4, length, 64) for _ in range(3))
    ways = {"fxattn": fx.flex_attention, "fxattn, the second call": fx.flex_attention}
    if compiled:
        ways["torch.compile(flex_attention)"] = torch.compile(theirs.flex_attention)
        ways["torch.compile(flex_attention), the second call"] = ways["torch.compile(flex_attention)"]
    rows, mod = [], capped_of(2.0 ** -torch.arange(1.0, 5), 3.25)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # else it would find what an earlier process compiled
        for name, way in ways.items():
            began = time.perf_counter()
            try:
                way(q, k, v, mod)
            except Exception as error:  # no C++ compiler
                rows.append((name, ("failed: %s" % type(error).__name__,)))
                continue
            rows.append((name, ((time.perf_counter() - began) * 1e3,)))
    table("first call of a function, [1,4,%d,64] forward, ms by the clock" % length, ("",), rows)


PARTS = ("calls", "tracing", "import", "step", "first")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--threads", type=int, default=1, help="of training steps and first calls")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes half a minute")
    options = parser.parse_args()
    parts = options.only.split(",")
    torch.set_num_threads(options.threads)
    began = time.perf_counter()
    print(machine())
    ways = {"calls": lambda: calls(options.rounds), "tracing": lambda: tracing(options.rounds),
            "import": lambda: imports(options.rounds), "step": lambda: step(options.rounds, options.threads),
            "first": lambda: first(not options.no_compile)}
    for part in PARTS:
        if part in parts:
            ways[part]()
    print("\n%.0f s; load at the end %s" % (time.perf_counter() - began,
                                             "/".join("%.1f" % x for x in os.getloadavg())))


if __name__ == "__main__":
    main()
