#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the GPU engines with PyTorch's cuDNN attention and FlexAttention in one run.

    PYTHONPATH=build/python python3 bench/bench_gpu.py [--flex] [--engines cuda,cudnn] [--shapes ABC] [--rows ...] [--decode]
                                                       [--prepare]

Prints, for each engine:
  - times of plans, support queries, loads and the host's part of a run
  - TFLOP/s forward and backward: medians of CUDA events, L2 cache flushed before each run, exact pairs (gpu_rows.py)
  - GB/s of K and V in decoding steps
FlexAttention runs with torch.tanh and with tanh.approx; FXA_FAST_MATH=1 selects the latter for the cuda engine too.
--prepare compiles everything and measures nothing: with FXA_CACHE_DIR and PyTorch's own caches a later process starts
faster. Without torch or a GPU the exit status is 77.
"""
import argparse
import ctypes
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print("skipped: bench-gpu: torch was not found")
    sys.exit(77)
from fxattn import _abi
from fxattn._library import cache_clear, context, lib
from fxattn._problem import Plan, Problem
from fxattn._program import Program
from decode_rows import ALL as ALL_STEPS, USUAL as USUAL_STEPS, Data
from flex_rows import of_flex, of_sdpa
from gpu_rows import ROWS, SHAPES, SOFTCAP, USUAL, Runner, Sizes, rates, sizes_of

FLUSH = None


PREPARE = False


def race(functions, rounds=30, warm=False):
    """Returns the median time of a call of each, measured by events with the L2 cache flushed before every call. The
    calls alternate, because the clock rate of a device depends on its recent load. The device waits until the host has
    submitted the entire call."""
    global FLUSH
    if PREPARE:
        for function in functions:
            function()
        torch.cuda.synchronize()
        return [1.0] * len(functions)
    if FLUSH is None:
        FLUSH = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    took = [[] for _ in functions]
    for turn in range(rounds + 3):
        for function, times in zip(functions, took):
            torch.cuda._sleep(500_000)
            if not warm:
                FLUSH.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            function()
            end.record()
            times += [(begin, end)] if turn >= 3 else []
    torch.cuda.synchronize()
    return [statistics.median(begin.elapsed_time(end) for begin, end in times) for times in took]


def milliseconds(function, rounds=30):
    return race([function], rounds)[0]


def of_ours(engine, row, z):
    """Returns both passes as functions."""
    runner = Runner(engine, row, z)
    return lambda: runner.run(False), lambda: runner.run(True)


def tried(function, *args):
    try:
        return function(*args)
    except Exception as error:  # the table shows the reason, and the next row is tried
        return str(error).split("\n")[0][:120]


def timed(found, z):
    """Replaces functions by rates, where they ran."""
    ran = [i for i, (_, value) in enumerate(found) if not isinstance(value, str)]
    took = [race([found[i][1][backward] for i in ran]) for backward in (0, 1)]
    for i, forward_ms, backward_ms in zip(ran, *took):
        found[i] = (found[i][0], rates(z, forward_ms, backward_ms))
    return found


def show(value):
    return value if isinstance(value, str) else "%.0f/%.0f" % value


def best_of(call, bursts=200, calls=20):
    """Returns the microseconds of a call, best of many bursts, and its result."""
    best, said = float("inf"), []
    for _ in range(bursts):
        torch.cuda.synchronize()
        began = time.perf_counter()
        said = [call() for _ in range(calls)]
        best = min(best, (time.perf_counter() - began) / calls)
    torch.cuda.synchronize()
    return best * 1e6, said


EMPTY_PTX = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .align 128 .b8 p[3760]) { ret; }\n\0"


def host_floor():
    """Measures the host's lower bound of a run: a ctypes call that does nothing, and a driver launch of an empty kernel
    with as many argument bytes as the engine's kernels. A slow host shows in these."""
    plain = best_of(lambda: lib.plan_run(None, None, None))[0]  # refused at once
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    room = ctypes.create_string_buffer(4096)
    params = (ctypes.c_void_p * 1)((ctypes.addressof(room) + 127) // 128 * 128)
    torch.zeros(1, device="cuda")  # makes the context current
    if driver.cuModuleLoadData(ctypes.byref(module), EMPTY_PTX) or driver.cuModuleGetFunction(
            ctypes.byref(function), module, b"k"):
        return plain, float("nan")
    one, launch = ctypes.c_uint(1), driver.cuLaunchKernel
    launched, said = best_of(lambda: launch(function, one, one, one, one, one, one, 0, None, params, None))
    return plain, float("nan") if any(said) else launched - plain


def host_times(engine):
    """Measures microseconds of the host's part of a run, and milliseconds of plans, support queries and loads."""
    runner = Runner(engine, "softcap_causal", Sizes(2, 4, 512, 128, 128, 4, pairs="causal"))
    plain, launch = host_floor()
    print("%s host: a call by ctypes %.1f us, the driver's launch of an empty kernel %.1f us" % (engine, plain, launch))
    for backward, name in ((False, "forward"), (True, "backward")):
        plan, args, seconds = runner.plans[backward]
        run, handle, pointer = lib.plan_run, plan._handle, ctypes.byref(args.struct)
        for flags, how in ((0, "by ctypes"), (1, "by ctypes, pointers trusted")):
            args.struct.flags = flags
            best, failed = best_of(lambda: run(handle, pointer, None))
            if any(failed):
                print("%s: a run failed" % name)
            print("%s %s: plan %.0f ms, run %.1f us on the host (%s), %.1f without ctypes and one launch" % (
                engine, name, seconds * 1e3, best, how, best - plain - launch))
        args.struct.flags = 0
        saved = plan.save()
        cache_clear()
        began = time.perf_counter()
        Plan.load(saved)
        print("%s %s: %d bytes saved, load %.1f ms" % (engine, name, len(saved), (time.perf_counter() - began) * 1e3))
    for cap in ("again", "other"):
        text = SOFTCAP if cap == "again" else "score = 2.0 * tanh(score * 0.5)"
        began = time.perf_counter()
        p = Problem(Program.from_text(text), engine=engine, flags=_abi.RETURN_LSE, b=2, hq=4, hkv=4, sq=640, sk=640,
                    d_qk=128, device=_abi.CUDA, alignment=16)
        for name in ("q", "k", "v", "o"):
            p.operand(name, _abi.BF16)
        p.support()
        first = time.perf_counter() - began
        began = time.perf_counter()
        p.support()
        print("%s answer: %.2f ms, again %.1f us" % (engine, first * 1e3, (time.perf_counter() - began) * 1e6), flush=True)


def decoding(engines, z):
    """Measures GB/s of K and V in a step with few rows, for the engines in turn."""
    data = Data(z)
    found = [(engine, tried(data.on, engine)) for engine in engines]
    ran = [i for i, (_, value) in enumerate(found) if not isinstance(value, str)]
    for i, took in zip(ran, race([found[i][1] for i in ran], warm=z.warm)):
        found[i] = (found[i][0], "%.0f GB/s, %.1f us" % (1e-6 * data.bytes / took, took * 1e3))
    return "; ".join("%s %s" % pair for pair in found)


def copying():
    """Measures GB/s of a copy on the device, read and written."""
    a = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2e-6 * a.numel() / milliseconds(lambda: b.copy_(a))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flex", action="store_true", help="FlexAttention too, compiled for every row")
    parser.add_argument("--engines", default="cuda,cudnn")
    parser.add_argument("--shapes", default="".join(SHAPES))
    parser.add_argument("--rows", default="")
    parser.add_argument("--decode", action="store_true", help="steps of decoding alone, many of them")
    parser.add_argument("--prepare", action="store_true", help="compile everything, time nothing")
    chosen = parser.parse_args()
    global PREPARE
    PREPARE = chosen.prepare
    if not torch.cuda.is_available():
        print("skipped: bench-gpu: no GPU is there")
        return 77
    context()
    engines = chosen.engines.split(",")
    for engine in engines if not PREPARE and not chosen.decode else ():
        tried(host_times, engine)
    print("%s, torch %s; TFLOP/s forward/backward" % (torch.cuda.get_device_name(), torch.__version__))
    for name in chosen.shapes if not chosen.decode else "":
        for row in chosen.rows.split(",") if chosen.rows else (ROWS if name == "A" else USUAL):
            z = sizes_of(row, name)
            found = [(engine, tried(of_ours, engine, row, z)) for engine in engines]
            found.append(("PyTorch's cuDNN", tried(of_sdpa, row, z)))
            if chosen.flex:
                found += [("FlexAttention", tried(of_flex, row, z)), ("with tanh.approx", tried(of_flex, row, z, True))]
            print("%s %-16s " % (name, row) + "  ".join("%s %-8s" % (n, show(v)) for n, v in timed(found, z)), flush=True)
            del found
            torch.cuda.empty_cache()
    if chosen.decode or (not chosen.rows and not PREPARE):
        print("copy %.0f GB/s" % copying())
        for z in ALL_STEPS if chosen.decode else USUAL_STEPS:
            print("decode %s: %s" % (z, tried(decoding, engines, z)), flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
