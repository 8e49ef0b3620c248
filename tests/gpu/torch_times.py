# SPDX-License-Identifier: Apache-2.0
"""Times of torch_cuda.py --times: TFLOP/s of fxattn.torch beside SDPA and compiled FlexAttention in one run (CUDA events,
medians, L2 flushed), and what a call costs the host beyond fxa_plan_run of the same problem, which is called by ctypes
with everything ready, as bench/bench_torch.py does it."""
import ctypes
import math
import os
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as theirs
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fxattn.torch as fx
from fxattn import _abi
from fxattn._library import context, lib
from fxattn._problem import Args, Problem
from fxattn.trace import trace
from torch_cases import capped, causal, inputs

SHAPES = {"A": (4, 16, 4096, 128), "C": (4, 32, 4096, 64)}
SMALL = (1, 4, 128, 64)
CAP = 20.0


def milliseconds(function, rounds=20):
    flush = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    for _ in range(3):
        function()
    took = []
    for _ in range(rounds):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        took.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in took)


def backed(backend):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return sdpa(q, k, v, is_causal=True)
    return attend


def ways(shape, device):
    """(row, who): a function of q, k and v."""
    s = shape[2]
    mask, score = fx.create_block_mask(causal, None, None, s, s, device=device), capped(CAP)
    lists = theirs.create_block_mask(causal, None, None, s, s, device=device)
    compiled = torch.compile(theirs.flex_attention)
    return {
        ("causal", "fxattn"): lambda q, k, v: fx.flex_attention(q, k, v, None, mask),
        ("causal", "SDPA, cuDNN"): backed(SDPBackend.CUDNN_ATTENTION),
        ("causal", "SDPA, flash"): backed(SDPBackend.FLASH_ATTENTION),
        ("causal", "FlexAttention"): lambda q, k, v: compiled(q, k, v, None, lists),
        ("soft cap, causal", "fxattn"): lambda q, k, v: fx.flex_attention(q, k, v, score, mask),
        ("soft cap, causal", "FlexAttention"): lambda q, k, v: compiled(q, k, v, score, lists),
    }


def speeds(device):
    for letter, shape in SHAPES.items():
        b, h, s, d = shape
        q, k, v, dout = inputs(shape, device, torch.bfloat16)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        pairs = b * h * s * (s + 1) / 2
        for (row, who), attend in ways(shape, device).items():
            try:
                with torch.no_grad():
                    forward = milliseconds(lambda: attend(q, k, v))
                out = attend(*leaves)
                backward = milliseconds(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))
                print("time %s %s %-17s %-14s TFLOP/s forward %4.0f backward %4.0f; ms %.3f %.3f" % (
                    letter, shape, row, who, 4e-9 * pairs * d / forward, 10e-9 * pairs * d / backward, forward,
                    backward), flush=True)
            except Exception as error:
                print("time %s %-17s %-14s %s" % (letter, row, who, " ".join(str(error).split())[:160]), flush=True)


# ---- The host's part -------------------------------------------------------------------------------------------------

def problem_of(program, shape, backward):
    b, h, s, d = shape
    flags = _abi.CAPTURE | (_abi.GRAD_Q | _abi.GRAD_K | _abi.GRAD_V if backward else 0)
    return Problem(program, backward=backward, flags=flags, b=b, hq=h, hkv=h, sq=s, sk=s, d=d, device=_abi.CUDA,
                   alignment=16)


def prepared(mod, q, k, v, backward=None):
    """fxa_plan_run of a call, plan and arguments ready; backward: out, lse and dout."""
    traced = trace(mod, device=q.device) if mod else None
    problem = problem_of(traced and traced.program, q.shape, bool(backward))
    tensors = dict(q=q, k=k, v=v, o=torch.empty_like(q))
    if backward:
        tensors.update(zip(("o", "lse", "dout"), backward))
        tensors.update({name: torch.empty_like(q) for name in ("dq", "dk", "dv_grad")})
    for name, x in tensors.items():
        problem.operand(name, _abi.F64 if name == "lse" else _abi.BF16, x.stride())
    slots = {{"dout": "do", "dv_grad": "dv"}.get(name, name): x.data_ptr() for name, x in tensors.items()}
    args, plan = Args(**slots), problem.plan(1)
    args.params(traced.params if traced else [])
    space = torch.empty(plan.workspace + 64, dtype=torch.uint8, device=q.device)
    args.workspace(space.data_ptr() if plan.workspace else None, plan.workspace)
    args.struct.stream = torch.cuda.current_stream().cuda_stream
    args.struct.flags = _abi.TRUSTED
    handle, struct, run, keep = plan._handle, ctypes.byref(args.struct), lib.plan_run, (args, plan, space, tensors)
    if run(handle, struct, None):
        raise RuntimeError("the prepared run failed")
    return lambda: run(handle, struct, keep and None)


def medians(functions, rounds=20, calls=100):
    """Microseconds of one call: the median of bursts in turns, of the thread's CPU time as bench/bench_torch.py takes it,
    of backward passes, which have another thread here, by the clock; the device is idle when a burst begins."""
    found = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(5):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            torch.cuda.synchronize()
            clock = time.perf_counter if "backward" in name else time.thread_time
            began = clock()
            for _ in range(calls):
                function()
            found[name].append((clock() - began) / calls)
    torch.cuda.synchronize()
    return {name: 1e6 * statistics.median(taken) for name, taken in found.items()}


def overhead(device):
    q, k, v, dout = inputs(SMALL, device, torch.bfloat16)
    learned = [x.clone().requires_grad_() for x in (q, k, v)]
    s = SMALL[2]
    mask = fx.create_block_mask(causal, None, None, s, s, device=device)
    table = torch.arange(1.0, SMALL[1] + 1, device=device) / 8
    cap, slopes = capped(CAP), (lambda s, b, h, i, j: s - table[h] * (i - j))  # noqa: E731
    calls = {"plain": (lambda *x: fx.flex_attention(*x), None), "soft cap": (lambda *x: fx.flex_attention(*x, cap), cap),
             "ALiBi": (lambda *x: fx.flex_attention(*x, slopes), None),
             "soft cap + block mask": (lambda *x: fx.flex_attention(*x, cap, mask), None),
             "attention()": (lambda *x: fx.attention(*x), None),
             "SDPA, cuDNN": (backed(SDPBackend.CUDNN_ATTENTION), "SDPA"), "SDPA": (lambda *x: sdpa(*x), "SDPA")}
    nothing = ctypes.CDLL(None).Py_IsInitialized
    nothing.argtypes = [ctypes.c_void_p] * 3
    struct, found = ctypes.byref(_abi.Args()), {"empty": lambda: nothing(1, struct, None)}
    for name, (call, mod) in calls.items():
        try:
            out = call(*learned)
            found[name, "no gradient"] = lambda call=call: call(q, k, v)
            found[name, "recorded"] = lambda call=call: call(*learned)
            found[name, "backward"] = lambda out=out: torch.autograd.grad(out, learned, dout, retain_graph=True)
            if mod != "SDPA" and name in ("plain", "soft cap", "attention()"):
                found[name, "no gradient", "run"] = prepared(mod, q, k, v)
                lse = fx.attention(q, k, v, mod, return_lse=True).lse.double()
                found[name, "backward", "run"] = prepared(mod, q, k, v, (out.detach(), lse, dout))
        except Exception as error:
            print("host %-22s %s" % (name, " ".join(str(error).split())[:200]))
    taken = medians(found)
    for key in found:
        if key == "empty" or len(key) == 3:
            continue
        run = taken.get((*key, "run"))
        print("host %-22s %-12s %6.1f us%s" % (*key, taken[key], "" if run is None else
              "; fxa_plan_run %.1f, beyond %.1f" % (run - taken["empty"], taken[key] - run + taken["empty"])))


def pieces(device):
    """What of the host's part is PyTorch's and Python's: memory for a result and for a workspace, the call by its parts."""
    from fxattn.torch import _autograd, _direct
    q, k, v, _ = inputs(SMALL, device, torch.bfloat16)
    call = _autograd.Call(floats=(math.nan, 0.0), config=(0,))
    given = (q, k, v, (), (), (), (), (math.nan, 0.0), (0,), "", _direct.ANYTHING)
    size, stride, problem = tuple(q.shape), q.stride(), problem_of(None, q.shape, False)
    for name in ("q", "k", "v", "o"):
        problem.operand(name, _abi.BF16, stride)
    out, struct, where = ctypes.c_void_p(), ctypes.byref(problem.struct), context(1)

    def planned():
        lib.plan_create(where, struct, ctypes.byref(out), None)
        lib.plan_destroy(out)
    driver, status = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    found = medians({
        "os.getpid": os.getpid, "fxa_plan_create again, by ctypes": planned,
        "cuStreamIsCapturing, by ctypes": lambda: driver.cuStreamIsCapturing(None, ctypes.byref(status)),
        "torch.empty_strided of the result": lambda: torch.empty_strided(size, stride, dtype=q.dtype, device=device),
        "torch.empty of 512 bytes": lambda: torch.empty(512, dtype=torch.uint8, device=device),
        "is_plain": lambda: _direct.is_plain(q, k, v), "direct, in C": lambda: _direct._adopt(_direct._run(given)),
        "direct": lambda: call.output_direct(q, k, v, _direct.ANYTHING),
        "flex_attention": lambda: fx.flex_attention(q, k, v), "fxa_plan_run, by ctypes": prepared(None, q, k, v)})
    for name, taken in found.items():
        print("host piece %-34s %6.1f us" % (name, taken))


def run(device):
    with torch.cuda.device(device):
        pieces(device)
        overhead(device)
        speeds(device)
