#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fxattn.jax on a GPU: python3 jax_cuda.py [--platform cuda] [--times], with the package on PYTHONPATH and
FXA_CUDNN_UNTRIED=1 where the engine asks for it. A line per check, BAD first where one fails, and exit status 1 then; 77
without such a device. --platform cpu runs the same on the host, to see that this file works.

Checked, against the CPU's engine in f32: results and gradients by q, k and v; the same from several threads at once, on
every device, with buffers donated and freed right after the call; a loop of executions as command buffers, with how
often the handler ran for them. --times: microseconds of forward and of forward and backward, beside jax.nn's
implementations in the same process.
"""
import argparse
import os
import sys
import threading
import time

# Custom calls are recorded into command buffers too: set before JAX is imported.
FLAGS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
if "cpu" not in sys.argv:
    os.environ["XLA_FLAGS"] = " ".join((FLAGS, os.environ.get("XLA_FLAGS", "")))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn.jax import attention  # noqa: E402

SHAPES = {"cuda": (2, 256, 8, 64), "cpu": (1, 16, 4, 8)}
BIG = {"cuda": (4, 4096, 16, 128), "cpu": (1, 64, 2, 16)}


def capped(cap):
    return lambda score, b, h, q, k: cap * jnp.tanh(score / cap)


def alibi(slopes):
    return lambda score, b, h, q, k: score - slopes[h] * (q - k)


CASES = {
    "plain": lambda q, k, v, x: attention(q, k, v),
    "causal": lambda q, k, v, x: attention(q, k, v, causal=True),
    "soft cap of a scalar on the device": lambda q, k, v, x: attention(q, k, v, score_mod=capped(2 + x[0]), causal=True),
    "slopes": lambda q, k, v, x: attention(q, k, v, score_mod=alibi(x), causal=True),
    "window": lambda q, k, v, x: attention(q, k, v, causal=True, window=(5, 0)),
    "scale on the device": lambda q, k, v, x: attention(q, k, v, scale=x[1]),
    "grouped": lambda q, k, v, x: attention(q, k[:, :, :2], v[:, :, :2], causal=True),
    "lengths": lambda q, k, v, x: attention(q, k, v, lengths=jnp.full(q.shape[0], q.shape[1] - 3)),
    "lse": lambda q, k, v, x: attention(q, k, v, return_lse=True)[0],
}


class Report:
    """Lines of what was found."""

    def __init__(self):
        self.bad = 0

    def __call__(self, name, fine, text=""):
        self.bad += not fine
        print("%-4s %s%s" % ("ok" if fine else "BAD", name, " " + text if text else ""), flush=True)


def inputs(shape, dtype="bfloat16"):
    drawn = [np.random.default_rng(n).standard_normal(shape).astype("float32") for n in range(4)]
    return [jnp.asarray(x, dtype) for x in drawn[:3]], jnp.asarray(drawn[3], dtype), jnp.arange(1.0, shape[2] + 1) / 8


def with_gradients(f, dout):
    def run(q, k, v, x):
        out, pull = jax.vjp(lambda *a: f(*a, x), q, k, v)
        return (out, *pull(dout.astype(out.dtype)))
    return run


def off(got, want):
    """The largest difference, in units of bf16 relative to the largest element."""
    got, want = (np.asarray(jax.device_get(x), np.float32) for x in (got, want))
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-9) * 2**8)


def check_cases(report, device, host, shape):
    arrays, dout, x = inputs(shape)
    for name, f in CASES.items():
        want = jax.jit(with_gradients(f, jax.device_put(dout.astype("float32"), host)))(
            *jax.device_put([a.astype("float32") for a in arrays], host), jax.device_put(x, host))
        try:
            got = jax.jit(with_gradients(f, jax.device_put(dout, device)))(*jax.device_put([*arrays, x], device))
        except Exception as error:  # whatever it is, the other cases are still of interest
            report(name, False, str(error).splitlines()[0][:300])
            continue
        worst = [off(a, b) for a, b in zip(got, want)]
        report(name, max(worst) < 6, "out, dq, dk, dv off by %s units" % ", ".join("%.1f" % w for w in worst))


def check_threads(report, device, shape):
    """Calls of several threads, whose arrays nobody holds when they have been given."""
    arrays, _, x = inputs(shape)
    arrays = [np.asarray(a) for a in (*arrays, x)]
    run = jax.jit(CASES["slopes"], donate_argnums=0)
    want, right = jax.device_get(run(*jax.device_put(arrays, device))), []

    def work():
        for _ in range(20):
            if np.array_equal(jax.device_get(run(*jax.device_put(arrays, device))), want):
                right.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report("threads", len(right) == 80, "%d of 4 x 20 calls, donated, are right" % len(right))


def check_loop(report, device, shape):
    """Executions of one function, which XLA may replay instead of asking the handler."""
    arrays, _, x = inputs(shape)
    run = jax.jit(lambda q, k, v, x: CASES["slopes"](q, k, v, x) + CASES["causal"](q, k, v, x))
    given = jax.device_put([*arrays, x], device)
    want, before = jax.device_get(run(*given)), fxattn.jax.cache_stats()["runs"]
    for n in range(100):
        other = jax.device_put(x * (1 + n % 2), device)
        got = run(*given[:3], other)
        if n % 2 == 0:
            same = np.array_equal(jax.device_get(got), want)
            if not same:
                break
    jax.block_until_ready(got)
    report("100 executions", same, "of two calls each; the handlers ran %d times"
           % (fxattn.jax.cache_stats()["runs"] - before))


def seconds_of(run, given, n):
    jax.block_until_ready(run(*given))
    taken = []
    for _ in range(n):
        start = time.perf_counter()
        jax.block_until_ready(run(*given))
        taken.append(time.perf_counter() - start)
    return sorted(taken)[n // 2]


def times(device, shape, platform):
    arrays, dout, x = inputs(shape)
    given = jax.device_put([*arrays, x], device)
    dout = jax.device_put(dout, device)
    rows = {"fxattn": CASES["causal"], "fxattn, slopes": CASES["slopes"]}
    for name in ("cudnn", "xla") if platform == "cuda" else ("xla",):
        rows["jax.nn " + name] = lambda q, k, v, x, name=name: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=name)
    for name, f in rows.items():
        try:
            taken = [1e6 * seconds_of(jax.jit(run), given, 20) for run in (f, with_gradients(f, dout))]
            print("time %-20s forward %9.1f us, forward and backward %9.1f us, %s causal" % (name, *taken, shape))
        except Exception as error:
            print("time %-20s %s" % (name, str(error).splitlines()[0][:200]))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--platform", default="cuda", choices=("cuda", "cpu"))
    options.add_argument("--times", action="store_true")
    given = options.parse_args()
    try:
        devices = jax.local_devices(backend=given.platform)
    except RuntimeError as error:
        print("skipped: JAX has no device of %s: %s" % (given.platform, error))
        return 77
    report, shape = Report(), SHAPES[given.platform]
    print("jax %s, %s, %s" % (jax.__version__, devices[0].device_kind, os.environ.get("XLA_FLAGS", "")))
    for device in devices:
        check_cases(report, device, jax.local_devices(backend="cpu")[0], shape)
        check_threads(report, device, shape)
        check_loop(report, device, shape)
    if given.times:
        times(devices[0], BIG[given.platform], given.platform)
    print("%d bad" % report.bad)
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
