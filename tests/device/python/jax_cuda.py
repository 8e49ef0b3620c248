#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fxattn.jax on a GPU: python3 jax_cuda.py [--platform cuda] [--times], with the package on PYTHONPATH and
FXA_CUDNN_UNTRIED=1 where the engine asks for it. A line per check, BAD first where one fails, and exit status 1 then; 77
without such a device. --platform cpu runs the same on the host, to see that this file works.

Checked, against the CPU's engine in f32: results and gradients by q, k and v; the same from several threads at once, on
every device by its number, with buffers donated and freed right after the call; a loop of executions as command
buffers, whose arrays and scalars are others each time, with how often the handler ran for them; what is said where no
engine can. --times: TFLOP/s of forward and of backward, beside jax.nn's implementations in the same process.
"""
import argparse
import faulthandler
import os
import sys
import threading
import time

# Custom calls are recorded into command buffers too: set before JAX is imported.
FLAGS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
if "cpu" not in sys.argv:
    os.environ["XLA_FLAGS"] = " ".join((FLAGS, os.environ.get("XLA_FLAGS", "")))

try:
    import jax  # noqa: E402
except ImportError:
    print("skipped: jax_cuda.py: jax is not there")
    sys.exit(77)
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from soft_cap import SoftCap  # noqa: E402

import fxattn.jax  # noqa: E402
from fxattn.jax import attention  # noqa: E402

SHAPES = {"cuda": (2, 256, 8, 64), "cpu": (1, 16, 4, 8)}
BIG = {"cuda": (4, 4096, 16, 128), "cpu": (1, 64, 2, 16)}
SECONDS = 180  # watchdog from check to check: a check that hangs is reported with its position, and the process ends


def capped(cap):
    return lambda score, b, h, q, k: cap * jnp.tanh(score / cap)


def alibi(slopes):
    return lambda score, b, h, q, k: score - slopes[h] * (q - k)


def documents(length):
    ids = jnp.arange(length, dtype=jnp.int32) // (length // 3)
    return lambda b, h, q, k: ids[q] == ids[k]


def packed(q, k, v):
    b, s = q.shape[:2]
    rows = [x.reshape(b * s, *x.shape[2:]) for x in (q, k, v)]
    cu = jnp.arange(0, b * s + 1, s, dtype=jnp.int32)
    return attention(*rows, layout="thd", cu_q=cu, max_q=s, max_k=s, causal=True).reshape(q.shape)


def graph_style(q, k, v):
    mod, numbers = SoftCap(), {"cap": 2.5}
    return attention(q, k, v, score_mod=mod.forward, score_mod_bprop=mod.backward, score_mod_tensors=numbers,
                     score_mod_bprop_tensors=numbers)


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
    "documents": lambda q, k, v, x: attention(q, k, v, causal=True, mask_mod=documents(q.shape[1])),
    "packed": lambda q, k, v, x: packed(q, k, v),
    "vmap": lambda q, k, v, x: jax.vmap(lambda *one: attention(*(a[None] for a in one), score_mod=capped(2.5))[0])(q, k, v),
    "graph style with a backward of its own": lambda q, k, v, x: graph_style(q, k, v),
    "jax.nn's signature": lambda q, k, v, x: fxattn.jax.dot_product_attention(q, k, v, is_causal=True),
    "remat": lambda q, k, v, x: jax.checkpoint(lambda *a: attention(*a, score_mod=capped(2.5)))(q, k, v),
    "scan": lambda q, k, v, x: jax.lax.scan(lambda c, _: (attention(c, k, v, score_mod=alibi(x)), None), q, None, 2)[0],
}


class Report:
    """Lines of what was found."""

    def __init__(self):
        self.bad = 0
        faulthandler.dump_traceback_later(SECONDS, exit=True)

    def __call__(self, name, fine, text=""):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
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
    """Calls of several threads whose arrays have no other reference when they are passed."""
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


def check_loop(report, device, host, shape):
    """Executions of one function, which XLA may replay instead of asking the handler: arrays, a captured scalar, slopes
    and the scale are others each time, and lie on the device."""
    arrays, _, x = inputs(shape)

    def both(q, k, v, x, cap):
        one = attention(q, k, v, score_mod=capped(cap), scale=cap / 16, causal=True)
        return one + CASES["slopes"](q, k, v, x)
    run, want = jax.jit(both), jax.jit(both)
    given = [jax.device_put([a * (1 + n / 8) for a in arrays], device) for n in range(2)]
    worst, before, kept = 0.0, None, []
    for n in range(100):
        cap, slopes = jnp.float32(1 + n % 5), x * (1 + n % 3)
        got = run(*given[n % 2], *jax.device_put([slopes, cap], device))
        if n == 3:  # the first ones are recorded
            before = fxattn.jax.cache_stats()["runs"]
        if n % 9 == 0:
            kept.append((got, n, slopes, cap))
    ran = fxattn.jax.cache_stats()["runs"] - before
    for got, n, slopes, cap in kept:
        there = jax.device_put([a.astype("float32") for a in given[n % 2]], host)
        worst = max(worst, off(got, want(*there, *jax.device_put([slopes, cap], host))))
    report("100 executions", worst < 6, "of two calls each, off by %.1f units; the handlers ran %d times in the last 96"
           % (worst, ran))


def check_said(report, name, call, words):
    try:
        jax.block_until_ready(call())
    except Exception as error:
        said = " ".join(str(error).split())
        report(name, all(word in said for word in words), said[:300])
    else:
        report(name, False, "nothing is said")


def refusals(report, device, shape):
    q, k, v = jax.device_put(inputs(shape)[0], device)
    check_said(report, "too many features", lambda: jax.jit(attention)(*(jnp.tile(x, 5) for x in (q, k, v))), ("cudnn", "cuda", "256"))


def as_on_the_host(report, device, host, shape):
    """Calls that cudnn refuses and cuda supports: the results on the GPU and on the host are compared."""
    arrays, _, x = inputs(shape)
    calls = {
        "dropout": lambda q, k, v, x: attention(q, k, v, dropout=0.5, dropout_key=jax.random.key(0)),
        "gradients of slopes": lambda q, k, v, x: jax.grad(lambda x: CASES["slopes"](q, k, v, x).astype("float32").sum())(x)}
    for name, call in calls.items():
        for kind, most in (("float32", 1e-5), (arrays[0].dtype, 2e-2)):
            with jax.default_device(device):
                there = call(*jax.device_put([a.astype(kind) for a in arrays] + [x], device))
            with jax.default_device(host):
                here = call(*jax.device_put([a.astype("float32") for a in arrays] + [x], host))
            a, b = (jnp.asarray(jax.device_put(t, host), "float32") for t in (there, here))
            worst = float(jnp.linalg.norm(a - b) / (jnp.linalg.norm(b) + 1e-6))
            report("%s, %s" % (name, kind), worst < most, "off by %.1e" % worst)


def seconds_of(run, given, n):
    jax.block_until_ready(run(*given))
    taken = []
    for _ in range(n):
        start = time.perf_counter()
        jax.block_until_ready(run(*given))
        taken.append(time.perf_counter() - start)
    return sorted(taken)[n // 2]


def times(device, shape, platform):
    """Times of a forward pass, and of forward and backward minus the forward pass."""
    arrays, dout, x = inputs(shape)
    given = jax.device_put([*arrays, x, dout], device)
    rows = {"fxattn": CASES["causal"], "fxattn, slopes": CASES["slopes"],
            "fxattn, soft cap": lambda q, k, v, x: attention(q, k, v, score_mod=capped(20.0), causal=True)}
    for name in ("cudnn", "xla") if platform == "cuda" else ("xla",):
        rows["jax.nn " + name] = lambda q, k, v, x, name=name: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=name)
    b, s, h, d = shape
    pairs = b * h * s * (s + 1) / 2
    for name, f in rows.items():
        try:
            whole = jax.jit(lambda q, k, v, x, dout, f=f: with_gradients(f, dout)(q, k, v, x))
            forward, both = seconds_of(jax.jit(f), given[:4], 20), seconds_of(whole, given, 20)
            print("time %-18s TFLOP/s forward %4.0f backward %4.0f; us forward %7.1f, forward and backward %7.1f; %s causal"
                  % (name, 4e-12 * pairs * d / forward, 10e-12 * pairs * d / (both - forward), 1e6 * forward, 1e6 * both,
                     shape), flush=True)
        except Exception as error:
            print("time %-18s %s" % (name, str(error).splitlines()[0][:200]), flush=True)


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
    host = jax.local_devices(backend="cpu")[0]
    for device in devices:
        check_cases(report, device, host, shape)
        check_threads(report, device, shape)
        check_loop(report, device, host, shape)
        if given.platform == "cuda":
            refusals(report, device, shape)
            as_on_the_host(report, device, host, shape)
    faulthandler.cancel_dump_traceback_later()
    if given.times:
        times(devices[0], BIG[given.platform], given.platform)
    print("%d bad" % report.bad)
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
