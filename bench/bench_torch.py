#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fxattn.torch beside PyTorch, in one run with the same threads: best of several, all of a row taken in turns.

    PYTHONPATH=build/python python3 bench/bench_torch.py [--length 512] [--threads 1] [--compile]

A step (forward and backward) of attention with ALiBi and a soft cap against the same written out, and against SDPA,
which has neither; a call at a tiny size, with and without gradients; the first call of a new function, with --compile
also that of torch.compile(flex_attention), forward alone, since it has no backward on a CPU.
"""
import argparse
import time

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as theirs

import fxattn.torch as fx

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
        print("    %-28s %10.1f %s" % (name, seconds * scale, unit))


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


def tiny(rounds):
    rows = {}
    for grad in (False, True):
        q, k, v = (torch.randn(1, 2, 16, 16, requires_grad=grad) for _ in range(3))
        kind = ", with gradients" if grad else ""
        rows["fxattn" + kind] = lambda q=q, k=k, v=v: fx.flex_attention(q, k, v)
        rows["SDPA" + kind] = lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v)
    return best(rows, rounds, 50)


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
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("torch %s, %d threads, length %d" % (torch.__version__, options.threads, options.length))
    show("a step with ALiBi, soft cap and causal mask", step(options.length, options.rounds), "ms", 1e3)
    show("a call of [1,2,16,16]", tiny(options.rounds), "us", 1e6)
    show("the first call of a function", first(options.length, options.compile), "ms", 1e3)
