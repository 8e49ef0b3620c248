#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cudnn or the cuda engine on a GPU, next to PyTorch's cuDNN attention and FlexAttention in the same run.

    PYTHONPATH=build/python python3 bench/bench_gpu.py [--engine cuda] [--flex] [--shapes ABC] [--rows causal,...] [--prepare]

TFLOP/s forward and backward, medians of CUDA events with the L2 cache flushed before each run, exact pairs counted
(4 D and 10 D operations for a pair of features D); then what a plan, an answer, a restore and the host's part of a run
take. --prepare compiles all of it and times nothing: with FXA_CACHE_DIR and PyTorch's own folders the next process has
less to do. Without torch or a GPU it says so and exits with 77.
"""
import argparse
import ctypes
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print("skipped: bench-gpu: torch is not there")
    sys.exit(77)
from fxattn import _abi
from fxattn._library import cache_clear, context, lib
from fxattn._problem import Args, Plan, Problem, View
from fxattn._program import Program

SHAPES = {"A": (4, 16, 4096, 128), "B": (1, 16, 16384, 128), "C": (4, 32, 4096, 64)}
ENGINE = "cudnn"
CAP, WINDOW, DOCUMENTS = 20.0, 1024, 8
SOFTCAP = "param cap : float\nscore = cap * tanh(score / cap)\n"
ALIBI = "tensor slope : f32[1]\nscore = score - slope[h] * (q - k)\n"
CAUSAL = "mask = k <= q\n"
# name: (text, params, captured tensors)
ROWS = {
    "full": ("", (), ""),
    "causal": (CAUSAL, (), ""),
    "softcap": (SOFTCAP, (CAP,), ""),
    "softcap_causal": (SOFTCAP + CAUSAL, (CAP,), ""),
    "alibi_causal": (ALIBI + CAUSAL, (), "slope"),
    "window": ("mask = k <= q && q - k < %d\n" % WINDOW, (), ""),
    "documents": (CAUSAL, (), ""),
}


def pairs_of(row, shape):
    b, h, s, _ = shape
    if row in ("full", "softcap"):
        return b * h * s * s
    if row == "window":
        return b * h * (WINDOW * s - WINDOW * (WINDOW - 1) // 2)
    n = s // DOCUMENTS if row == "documents" else s
    return b * h * (s // n) * (n * (n + 1) // 2)


class Runner:
    """A row of the table at one shape: tensors, plans and arguments of both passes."""

    def __init__(self, row, shape):
        self.row, self.shape = row, shape
        b, h, s, d = shape
        text, self.params, captured = ROWS[row]
        self.program = Program.from_text(text) if text else None
        make = lambda: torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        self.t = {name: make() for name in ("q", "k", "v", "do")}
        self.t.update({name: torch.empty_like(self.t["q"]) for name in ("o", "dq", "dk", "dv")})
        self.t["lse"] = torch.empty(b, h, s, device="cuda", dtype=torch.float32)
        self.captured = [torch.exp2(-8.0 * torch.arange(1, h + 1, device="cuda") / h)] if captured else []
        self.plans = {}
        for backward in (False, True):
            self.plans[backward] = self.prepare(backward)

    def problem(self, backward):
        b, h, s, d = self.shape
        flags = _abi.GRAD_Q | _abi.GRAD_K | _abi.GRAD_V if backward else _abi.WANT_LSE
        fields = dict(b=b, hq=h, hkv=h, sq=s, sk=s, d=d, device=_abi.CUDA, alignment=16)
        if self.row == "documents":
            n = s // DOCUMENTS
            flags |= _abi.VARLEN
            fields.update(b=b * DOCUMENTS, sq=n, sk=n, total_q=b * s, total_k=b * s)
            self.t["cu"] = torch.arange(0, b * s + 1, n, device="cuda", dtype=torch.int32)
        p = Problem(self.program, backward=backward, flags=flags, engine=ENGINE, **fields)
        names = ("q", "k", "v", "o") + (("dout", "dq", "dk", "dv_grad") if backward else ())
        for name in names:
            stride = (0, d, h * d, 1) if self.row == "documents" else ()  # packed: [T,H,D]
            p.operand(name, _abi.BF16, stride)
        if self.row == "documents":
            p.operand("lse", _abi.F32, (0, 1, h) if ENGINE == "cudnn" else (0, b * s, 1))
        p.captures([View(t.data_ptr(), _abi.F32, tuple(t.shape), t.stride()) for t in self.captured])
        return p

    def prepare(self, backward):
        began = time.perf_counter()
        plan = self.problem(backward).plan()
        seconds = time.perf_counter() - began
        t = self.t
        slots = dict(q=t["q"], k=t["k"], v=t["v"], o=t["o"], lse=t["lse"])
        if backward:
            slots.update(do=t["do"], dq=t["dq"], dk=t["dk"], dv=t["dv"])
        if self.row == "documents":
            slots.update(cu_q=t["cu"], cu_k=t["cu"])
        args = Args(**{name: tensor.data_ptr() for name, tensor in slots.items()})
        args.params(self.params)
        args.tensors([c.data_ptr() for c in self.captured])
        workspace = torch.empty(max(plan.workspace, 1), device="cuda", dtype=torch.uint8)
        args.workspace(workspace.data_ptr() if plan.workspace else None, plan.workspace)
        args.keep.append(workspace)
        args.struct.stream = torch.cuda.current_stream().cuda_stream
        return plan, args, seconds

    def run(self, backward):
        plan, args, _ = self.plans[backward]
        plan.run(args)


FLUSH = None


PREPARE = False


def milliseconds(function, rounds=30):
    """The median of one call by events, the cache flushed before each."""
    global FLUSH
    if PREPARE:
        function()
        torch.cuda.synchronize()
        return 1.0
    if FLUSH is None:
        FLUSH = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    for _ in range(3):
        function()
    took = []
    for _ in range(rounds):
        FLUSH.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        took.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in took)


def rates(row, shape, forward_ms, backward_ms):
    pairs, d = pairs_of(row, shape), shape[3]
    return 4e-9 * pairs * d / forward_ms, 10e-9 * pairs * d / backward_ms


def of_ours(row, shape):
    try:
        runner = Runner(row, shape)
    except Exception as error:  # noqa: BLE001 - the reason belongs into the table
        return str(error)[:150]
    return rates(row, shape, milliseconds(lambda: runner.run(False)), milliseconds(lambda: runner.run(True)))


def of_step(forward, q, k, v, row, shape):
    """Rates of a function of PyTorch, its backward pass by itself."""
    with torch.no_grad():
        forward_ms = milliseconds(lambda: forward(q, k, v))
    out = forward(q, k, v)
    grad = torch.randn_like(out)
    return rates(row, shape, forward_ms,
                 milliseconds(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)))


def of_sdpa(row, shape):
    if row not in ("full", "causal"):
        return "-"
    from torch.nn.attention import SDPBackend, sdpa_kernel
    b, h, s, d = shape
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return of_step(lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, is_causal=row == "causal"),
                       q, k, v, row, shape)


def of_flex(row, shape):
    from torch.nn.attention import flex_attention as flex
    torch._dynamo.reset()  # which else stops compiling after some functions
    b, h, s, d = shape
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    slope = torch.exp2(-8.0 * torch.arange(1, h + 1, device="cuda") / h)
    document = torch.arange(s, device="cuda") // (s // DOCUMENTS)
    scores = {"softcap": lambda x, b, h, i, j: CAP * torch.tanh(x / CAP),
              "alibi": lambda x, b, h, i, j: x - slope[h] * (i - j)}
    masks = {"causal": lambda b, h, i, j: j <= i, "window": lambda b, h, i, j: (j <= i) & (i - j < WINDOW),
             "documents": lambda b, h, i, j: (j <= i) & (document[i] == document[j])}
    score = next((f for name, f in scores.items() if row.startswith(name)), None)
    mask = next((f for name, f in masks.items() if row.endswith(name)), None)
    block = flex.create_block_mask(mask, None, None, s, s) if mask else None
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return of_step(lambda *x: compiled(*x, score_mod=score, block_mask=block), q, k, v, row, shape)


def tried(function, row, shape):
    try:
        return function(row, shape)
    except Exception as error:  # noqa: BLE001 - what others cannot do is no reason to stop
        return str(error).split("\n")[0][:80]


def show(value):
    return value if isinstance(value, str) else "%.0f/%.0f" % value


def host_times(shape=(2, 4, 512, 128)):
    """Microseconds of the host's part of a run, milliseconds of plans, answers and restores."""
    runner = Runner("softcap_causal", shape)
    for backward, name in ((False, "forward"), (True, "backward")):
        plan, args, seconds = runner.plans[backward]
        run, handle, pointer = lib.plan_run, plan._handle, ctypes.byref(args.struct)
        for flags, how in ((0, "by ctypes"), (1, "by ctypes, pointers trusted")):
            args.struct.flags = flags
            best = float("inf")
            for _ in range(200):
                torch.cuda.synchronize()
                began = time.perf_counter()
                failed = [run(handle, pointer, None) for _ in range(20)]
                best = min(best, (time.perf_counter() - began) / 20)
            torch.cuda.synchronize()
            if any(failed):
                print("%s: a run failed" % name)
            print("%s: plan %.0f ms, run %.1f us on the host (%s)" % (name, seconds * 1e3, best * 1e6, how))
        args.struct.flags = 0
        saved = plan.save()
        cache_clear()
        began = time.perf_counter()
        Plan.load(saved)
        print("%s: %d bytes saved, load %.1f ms" % (name, len(saved), (time.perf_counter() - began) * 1e3))
    for cap in ("again", "other"):
        text = SOFTCAP if cap == "again" else "score = 2.0 * tanh(score * 0.5)"
        began = time.perf_counter()
        p = Problem(Program.from_text(text), engine=ENGINE, flags=_abi.WANT_LSE, b=2, hq=4, hkv=4, sq=640, sk=640,
                    d=128, device=_abi.CUDA, alignment=16)
        for name in ("q", "k", "v", "o"):
            p.operand(name, _abi.BF16)
        p.support()
        first = time.perf_counter() - began
        began = time.perf_counter()
        p.support()
        print("answer: %.2f ms, again %.1f us" % (first * 1e3, (time.perf_counter() - began) * 1e6), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("cudnn", "cuda"), default="cudnn")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too, compiled for every row")
    parser.add_argument("--shapes", default="".join(SHAPES))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--prepare", action="store_true", help="compile everything, time nothing")
    chosen = parser.parse_args()
    global PREPARE, ENGINE
    PREPARE, ENGINE = chosen.prepare, chosen.engine
    if not torch.cuda.is_available():
        print("skipped: bench-gpu: no GPU is there")
        return 77
    context()
    if not PREPARE:
        host_times()
    print("%s, torch %s; TFLOP/s forward/backward" % (torch.cuda.get_device_name(), torch.__version__))
    for name in chosen.shapes:
        for row in chosen.rows.split(","):
            found = [tried(of_ours, row, SHAPES[name]), tried(of_sdpa, row, SHAPES[name])]
            found.append(tried(of_flex, row, SHAPES[name]) if chosen.flex else "-")
            print("%s %-16s fxattn %-9s  PyTorch's cuDNN %-9s  FlexAttention %s" % ((name, row) + tuple(map(show, found))),
                  flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
