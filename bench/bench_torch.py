#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fxattn.torch beside PyTorch, in one run with the same threads: best of several, all of a row taken in turns.

    PYTHONPATH=build/python python3 bench/bench_torch.py [--length 512] [--threads 1] [--compile]

A step (forward and backward) of attention with ALiBi and a soft cap against the same written out, and against SDPA,
which has neither; calls at a tiny size, of which the host's part is what they take beyond the library's own run, and
the stages of that part; the first call of a new function, with --compile also that of torch.compile(flex_attention),
forward alone, since it has no backward on a CPU.
"""
import argparse
import ctypes
import time

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as theirs

import fxattn.torch as fx
from fxattn import _abi
from fxattn._library import lib
from fxattn._problem import Args, Problem
from fxattn.torch import _direct, _plain
from fxattn.torch._traced import call_of
from fxattn.trace import trace

HEADS, WIDTH, CAP = 8, 64, 20.0


def best(functions, rounds, calls=1):
    """Seconds of one call of each, the best of `rounds`, in turns."""
    found = {name: float("inf") for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            began = time.perf_counter()
            for _ in range(calls):
                function()
            found[name] = min(found[name], (time.perf_counter() - began) / calls)
    return found


def show(title, rows, unit, scale):
    print(title)
    for name, seconds in rows.items():
        print("    %-52s %8.1f %s" % (name, seconds * scale, unit))


def made(length, grad):
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=grad) for _ in range(3)]


def step(length, rounds):
    q, k, v = made(length, True)
    slopes, at = 2.0 ** -torch.arange(1.0, HEADS + 1), torch.arange(length)
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")

    def score(s, b, h, i, j):
        return CAP * torch.tanh((s - slopes[h] * (i - j)) / CAP)

    def written_out():
        s = score(q @ k.transpose(-1, -2) / WIDTH ** 0.5, None, torch.arange(HEADS).view(-1, 1, 1), at[:, None], at)
        return s.masked_fill(at[:, None] < at, -torch.inf).softmax(-1) @ v

    ways = {"fxattn": lambda: fx.flex_attention(q, k, v, score, mask), "written out": written_out,
            "SDPA, causal alone": lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)}
    return best({name: lambda way=way: way().sum().backward() for name, way in ways.items()}, rounds)


def run_of(q, k, v, traced):
    """The library's run alone, everything prepared, by one call of ctypes."""
    problem = Problem(traced and traced.program, b=1, hq=q.shape[1], hkv=q.shape[1], sq=q.shape[2], sk=q.shape[2],
                      d=q.shape[3], dv=q.shape[3])
    for name in "qkvo":
        problem.operand(name, _abi.F32, q.stride())
    out = torch.empty_like(q)
    args = Args(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=out.data_ptr())
    if traced is not None:
        problem.captures([_plain.view(x) for x in traced.tensors])
        args.tensors([x.data_ptr() for x in traced.tensors])
        args.params(traced.params)
    plan = problem.plan(1)
    space = torch.empty(plan.workspace + 64, dtype=torch.uint8)
    args.workspace(space.data_ptr() + 63 & ~63, plan.workspace)
    args.keep += problem, plan, space, out, q, k, v
    handle, struct, run = plan._handle, ctypes.byref(args.struct), lib.plan_run
    return lambda: run(handle, struct, args.keep and None)


def tiny(rounds):
    """Calls at [1,2,16,16], and their stages; bursts are short, so that some meet a quiet moment."""
    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    learned = [x.clone().requires_grad_() for x in (q, k, v)]
    slopes = torch.rand(2)
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")

    def score(s, b, h, i, j):
        return CAP * torch.tanh((s - slopes[h] * (i - j)) / CAP)

    cases = {"": (None, None), ", score_mod": (score, None), ", score_mod and mask": (score, mask)}
    ways = {"SDPA": lambda: functional.scaled_dot_product_attention(q, k, v),
            "SDPA, gradients": lambda: functional.scaled_dot_product_attention(*learned),
            "is it plain": lambda: _direct.is_plain(q, k, v)}
    for name, (mod, masked) in cases.items():
        traced = trace(mod, masked and masked.mask_mod) if mod else None
        call = call_of(traced, None, (0,))
        ways["fxattn" + name] = lambda mod=mod, masked=masked: fx.flex_attention(q, k, v, mod, masked)
        ways["fxattn, gradients" + name] = lambda mod=mod, masked=masked: fx.flex_attention(*learned, mod, masked)
        ways["run" + name] = run_of(q, k, v, traced)
        ways["direct" + name] = lambda call=call: _direct.forward(call, q, k, v, (0,), _direct.ANYTHING)
        ways["operator" + name] = lambda call=call: call.run(q, k, v, False)
        if mod:
            ways["tracer" + name] = lambda mod=mod, masked=masked: trace(mod, masked and masked.mask_mod)
    found = best(ways, rounds * 10, 100)
    for name in cases:
        for kind in ("fxattn", "fxattn, gradients"):
            found["beyond the run: " + kind + name] = found[kind + name] - found["run" + name]
    return found


def first(length, compiled):
    q, k, v = made(length, False)
    ways = {"fxattn": fx.flex_attention}
    if compiled:
        ways["torch.compile(flex_attention)"] = torch.compile(theirs.flex_attention)
    rows = {}
    for name, way in ways.items():
        began = time.perf_counter()
        way(q, k, v, lambda s, b, h, i, j: torch.tanh(s) * 3.25 + i * 0.5)
        rows[name] = time.perf_counter() - began
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the tiny calls alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("torch %s, %d threads, length %d" % (torch.__version__, options.threads, options.length))
    show("a call of [1,2,16,16]", tiny(options.rounds), "us", 1e6)
    if options.tiny:
        raise SystemExit(0)
    show("a step with ALiBi, soft cap and causal mask", step(options.length, options.rounds), "ms", 1e3)
    show("the first call of a function", first(options.length, options.compile), "ms", 1e3)
