# SPDX-License-Identifier: Apache-2.0
"""Times of torch_cuda.py --times: TFLOP/s of fxattn.torch beside SDPA and compiled FlexAttention in one run (CUDA events,
medians, L2 flushed), and what a call costs the host beyond fxa_plan_run of the same problem, which is called by ctypes
with everything ready, as bench/bench_torch.py does it.

The host's part: bursts of 100 calls, the call and fxa_plan_run one right after the other, many times in turns with all
else; what is beyond is the median of the differences of neighbours. A loop of nothing but Python is timed in the same
turns, by the clock and in CPU time: by it machines and their clocks can be told apart."""
import ctypes
import math
import os
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as theirs
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fxattn.torch as fx
from fxattn import _abi
from fxattn._library import context, lib
from fxattn._problem import Args, Problem
from fxattn.trace import trace, watch
from torch_cases import capped, causal, inputs

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bench"))
from bench_gpu import milliseconds  # noqa: E402

SHAPES = {"A": (4, 16, 4096, 128), "C": (4, 32, 4096, 64)}
SMALL = (1, 4, 128, 64)
CAP = 20.0


def backed(backend):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return sdpa(q, k, v, is_causal=True)
    return attend


def ways(shape, device):
    """(row, library): a function of q, k and v."""
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
                    forward = milliseconds(lambda: attend(q, k, v), 20)
                out = attend(*leaves)
                backward = milliseconds(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), 20)
                print("time %s %s %-17s %-14s TFLOP/s forward %4.0f backward %4.0f; ms %.3f %.3f" % (
                    letter, shape, row, who, 4e-9 * pairs * d / forward, 10e-9 * pairs * d / backward, forward,
                    backward), flush=True)
            except Exception as error:
                print("time %s %-17s %-14s %s" % (letter, row, who, " ".join(str(error).split())[:160]), flush=True)


# ---- The host's part -------------------------------------------------------------------------------------------------

def problem_of(program, shape, backward):
    b, h, s, d = shape
    flags = _abi.GRAPH_CAPTURE | (_abi.GRAD_Q | _abi.GRAD_K | _abi.GRAD_V if backward else 0)
    return Problem(program, backward=backward, flags=flags, b=b, hq=h, hkv=h, sq=s, sk=s, d_qk=d, device=_abi.CUDA,
                   alignment=16)


def prepared(mod, q, k, v, backward=None):
    """fxa_plan_run of a call, plan and arguments ready; backward: out, lse and dout."""
    traced = trace(mod, device=q.device) if mod else None
    problem = problem_of(traced and traced.program, q.shape, bool(backward))
    tensors = dict(q=q, k=k, v=v, o=torch.empty_like(q))
    if backward:
        tensors.update(zip(("o", "lse", "dout"), backward))
        tensors.update({name: torch.empty_like(q) for name in ("dq", "dk", "dv")})
    for name, x in tensors.items():
        problem.operand(name, _abi.F64 if name == "lse" else _abi.BF16, x.stride())
    slots = {{"dout": "do"}.get(name, name): x.data_ptr() for name, x in tensors.items()}
    args, plan = Args(**slots), problem.plan(1)
    args.params(traced.params if traced else [])
    space = torch.empty(plan.workspace + 64, dtype=torch.uint8, device=q.device)
    args.workspace(space.data_ptr() if plan.workspace else None, plan.workspace)
    args.struct.stream = torch.cuda.current_stream().cuda_stream
    args.struct.flags = _abi.SKIP_POINTER_CHECKS
    handle, struct, run, keep = plan._handle, ctypes.byref(args.struct), lib.plan_run, (args, plan, space, tensors)
    if run(handle, struct, None):
        raise RuntimeError("the prepared run failed")
    return lambda: run(handle, struct, keep and None)


def calibration():
    """Some work of Python alone, a burst of which is about as long as one of calls."""
    total = 0
    for i in range(20):
        total += i * i
    return total


def bursts(functions, rounds=30, calls=100):
    """Microseconds of one call, by function and round: of the thread's CPU time, of backward passes, which have another
    thread here, by the clock; the device is idle when a burst begins. Of the calibration both."""
    functions = {**functions, ("calibration", "CPU"): calibration, ("calibration", "clock"): calibration}
    found = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(5):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            torch.cuda.synchronize()
            clock = time.perf_counter if "backward" in name or "clock" in name else time.thread_time
            began = clock()
            for _ in range(calls):
                function()
            found[name].append(1e6 * (clock() - began) / calls)
    torch.cuda.synchronize()
    both = [found.pop(("calibration", name)) for name in ("CPU", "clock")]
    print("host calibration, a loop of 20 in Python: CPU %.2f us (%.2f to %.2f), clock %.2f us (%.2f to %.2f)" % tuple(
        f(times) for times in both for f in (statistics.median, min, max)))
    return found


def medians(functions):
    return {name: statistics.median(taken) for name, taken in bursts(functions).items()}


class Nothing(torch.autograd.Function):
    """What a Function of Python costs that does nothing but make room: autograd's and PyTorch's part of a call."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.set_materialize_grads(False)
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx, dout):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


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
             "SDPA, cuDNN": (backed(SDPBackend.CUDNN_ATTENTION), "SDPA"), "SDPA": (lambda *x: sdpa(*x), "SDPA"),
             "a Function of nothing": (lambda *x: Nothing.apply(*x), "SDPA")}
    nothing = ctypes.CDLL(None).Py_IsInitialized
    nothing.argtypes = [ctypes.c_void_p] * 3
    struct, found = ctypes.byref(_abi.Args()), {"empty": lambda: nothing(1, struct, None)}
    for name, (call, mod) in calls.items():
        try:
            for _ in range(4):  # until the function is known: the graph is then that of most steps
                out = call(*learned)
            compared = mod != "SDPA" and name in ("plain", "soft cap", "attention()")
            found[name, "no gradient"] = lambda call=call: call(q, k, v)
            if compared:
                found[name, "no gradient", "run"] = prepared(mod, q, k, v)
            found[name, "recorded"] = lambda call=call: call(*learned)
            found[name, "backward"] = lambda out=out: torch.autograd.grad(out, learned, dout, retain_graph=True)
            if compared:
                lse = fx.attention(q, k, v, mod, return_lse=True).lse.double()
                found[name, "backward", "run"] = prepared(mod, q, k, v, (out.detach(), lse, dout))
        except Exception as error:
            print("host %-22s %s" % (name, " ".join(str(error).split())[:200]))
    taken = bursts(found)
    empty = statistics.median(taken["empty"])
    for key in found:
        if key == "empty" or len(key) == 3:
            continue
        run, text = taken.get((*key, "run")), ""
        if run is not None:
            beyond = [a - b + empty for a, b in zip(taken[key], run)]
            text = "; fxa_plan_run %.1f, beyond %.1f (quarters %.1f, %.1f)" % (
                statistics.median(run) - empty, *(statistics.quantiles(beyond, n=4)[i] for i in (1, 0, 2)))
        print("host %-22s %-12s %6.1f us%s" % (*key, statistics.median(taken[key]), text))


def pieces(device):
    """What of the host's part is PyTorch's and Python's: memory for a result and for a workspace, the call by its parts."""
    from fxattn.torch.call import Call
    from fxattn.torch.routes.direct import output
    from fxattn.torch.routes import bypass
    q, k, v, _ = inputs(SMALL, device, torch.bfloat16)
    call = Call(floats=(math.nan, 0.0), config=(0,))
    given, cap = (q, k, v, (), (), (), (), (math.nan, 0.0), (0,), "", bypass.ANYTHING), capped(CAP)
    like, told = ctypes.c_void_p(), ("torch", q.device, None)
    four = ctypes.c_int64 * 4
    torch_c = ctypes.PyDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    sizes = four(*q.shape), four(*q.stride())
    where_it_is = (torch_c.aoti_torch_dtype_bfloat16(), torch_c.aoti_torch_device_type_cuda(), q.device.index or 0)

    def made():
        torch_c.aoti_torch_empty_strided(ctypes.c_int64(4), *sizes, *where_it_is, ctypes.byref(like))
        torch_c.aoti_torch_delete_tensor_object(like)
    for _ in range(5):
        fx.flex_attention(q, k, v, cap)
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
        "the same in C, by ctypes": made, "an empty call, by ctypes": lambda: torch_c.aoti_torch_device_type_cuda(),
        "is_plain": lambda: bypass.is_plain(q, k, v), "a known function": lambda: watch.find(cap, None, told),
        "refused at once": lambda: bypass.forward(*given[:-1], (1, 1, 1, 7, 7, 7)),
        "direct, in C": lambda: bypass.forward(*given),
        "direct": lambda: output(call, q, k, v, bypass.ANYTHING),
        "flex_attention": lambda: fx.flex_attention(q, k, v), "soft cap": lambda: fx.flex_attention(q, k, v, cap),
        "fxa_plan_run, by ctypes": prepared(None, q, k, v)})
    for name, taken in found.items():
        print("host piece %-34s %6.1f us" % (name, taken))


def run(device, which):
    with torch.cuda.device(device):
        pieces(device)
        overhead(device)
        if which == "all":
            speeds(device)
