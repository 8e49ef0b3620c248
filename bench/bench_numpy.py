#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Overhead of fxattn.numpy over the library call that it makes, for one row and four keys: best of many, in
microseconds. Also measures fxattn.torch if PyTorch is installed.

    PYTHONPATH=build/python python3 bench/bench_numpy.py
"""
import time

import fxattn.numpy as fn
import numpy as np
from fxattn._numpy_call import OPTIONS, Call

Q, K = np.ones((1, 1, 1, 8), np.float32), np.ones((1, 1, 4, 8), np.float32)


def distance(score, b, h, q, k):
    return score + q - k


CASES = {
    "no program": ((), {}),
    "text with a param": (("cap * tanh(score / cap)",), {"params": {"cap": 20.0}}),
    "function": ((distance,), {}),
}


def best(run, calls=200, rounds=50):
    """Returns the microseconds of a call, the minimum of the means of `rounds` bursts."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return min(times)


def library_call(arguments, options):
    named = {**{name: fn.attention.__kwdefaults__[name] for name in OPTIONS}, **options}
    ready = Call(Q, K, K, *arguments, *[None] * (2 - len(arguments)), named).forward()
    return best(ready.run)


def torch_call(arguments, options):
    try:
        import torch
    except ImportError:
        return None
    from fxattn.torch import attention
    q, k = torch.from_numpy(Q), torch.from_numpy(K)
    return best(lambda: attention(q, k, k, *arguments, **options))


def main():
    print("%-20s %10s %10s %10s %10s" % ("us a call", "library", "numpy", "more", "torch"))
    for name, (arguments, options) in CASES.items():
        library, ours = library_call(arguments, options), best(lambda: fn.attention(Q, K, K, *arguments, **options))
        theirs = torch_call(arguments, options)
        print("%-20s %10.1f %10.1f %10.1f %10s" % (name, library, ours, ours - library,
                                                 "-" if theirs is None else "%.1f" % theirs))


if __name__ == "__main__":
    main()
