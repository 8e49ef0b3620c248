# SPDX-License-Identifier: Apache-2.0
"""The rows of bench_gpu.py: problems and sizes, as plans of this library's engines and, in flex_rows.py, as functions
for FlexAttention. bench_gpu.py imports it after checking for torch.

A row is a program with what it captures, and whatever it changes in the shape's sizes. Pairs are counted exactly: of
each, 2 (d + dv) operations forward and 2 (3 d + 2 dv) backward.
"""
import time
from typing import Callable, NamedTuple

import torch
from fxattn import _abi
from fxattn._problem import Args, Problem, View
from fxattn._program import Program

CAP, WINDOW, DOCUMENTS = 20.0, 1024, 8
SOFTCAP = "param cap : float\nscore = cap * tanh(score / cap)\n"
ALIBI = "tensor slope : f32[1]\nscore = score - slope[h] * (q - k)\n"
RELATIVE = "tensor table : f32[2]\nscore = score + table[h, q - k + %d]\n"
TEMPERATURE = "tensor t : f32[1]\nscore = score * t[h]\n"
SCATTER = "tensor table : f32[2]\nscore = score + table[h, (3 * q + 7 * k) & 255]\n"
DENSE = "tensor bias : bf16[4]\nscore = score + bias[b, h, q, k]\n"
SAME = "tensor document : i32[1]\nmask = k <= q && document[q] == document[k]\n"
CAUSAL = "mask = k <= q\n"
DTYPES = {torch.bfloat16: _abi.BF16, torch.float16: _abi.F16, torch.float32: _abi.F32, torch.int32: _abi.I32}


def slopes(z):
    return torch.exp2(-8.0 * torch.arange(1, z.h + 1, device="cuda") / z.h)


def documents(z):
    return (torch.arange(z.s, device="cuda") // (z.s // DOCUMENTS)).int()


def table(z):
    return torch.randn(z.h, 2 * z.s - 1, device="cuda")


def bias(z):
    return torch.randn(z.b, z.h, z.s, z.s, device="cuda", dtype=torch.bfloat16)


class Sizes(NamedTuple):
    b: int
    h: int
    s: int
    d: int
    dv: int = 0
    kv: int = 0  # 0 = h
    dtype: torch.dtype = torch.bfloat16
    flags: int = 0
    packed: bool = False
    pairs: str = "full"
    q: float = 1.0  # factor of Q


SHAPES = {"A": Sizes(4, 16, 4096, 128), "B": Sizes(1, 16, 16384, 128), "C": Sizes(4, 32, 4096, 64)}


class Row(NamedTuple):
    text: str = ""
    params: tuple = ()
    captured: Callable = None
    gradient: bool = False  # True: gradients of captured tensors too
    sizes: dict = {}


ROWS = {
    "full": Row(),
    "causal": Row(CAUSAL, sizes=dict(pairs="causal")),
    "softcap": Row(SOFTCAP, (CAP,)),
    "softcap_causal": Row(SOFTCAP + CAUSAL, (CAP,), sizes=dict(pairs="causal")),
    "alibi_causal": Row(ALIBI + CAUSAL, (), slopes, sizes=dict(pairs="causal")),
    "window": Row("mask = k <= q && q - k < %d\n" % WINDOW, sizes=dict(pairs="window")),
    "documents": Row(SAME, (), documents, sizes=dict(pairs="documents")),
    "packed": Row(CAUSAL, sizes=dict(pairs="documents", packed=True)),  # the documents of `documents` as packed sequences
    "relative": Row(RELATIVE, (), table, True),
    "dense": Row(DENSE, (), bias),
    "dense_grad": Row(DENSE, (), bias, True),
    "d96": Row(sizes=dict(d=96)),
    "d192": Row(sizes=dict(d=192, dv=128)),
    "d256": Row(sizes=dict(d=256, h=8)),
    "gqa_causal": Row(CAUSAL, sizes=dict(pairs="causal", h=32, kv=8)),
    "f16_causal": Row(CAUSAL, sizes=dict(pairs="causal", dtype=torch.float16)),
    "same_bits": Row(sizes=dict(flags=_abi.DETERMINISTIC)),
    "same_bits_causal": Row(CAUSAL, sizes=dict(pairs="causal", flags=_abi.DETERMINISTIC)),
    "relative_same_bits": Row(RELATIVE, (), table, True, dict(flags=_abi.DETERMINISTIC)),
    "softcap_near": Row(SOFTCAP, (CAP,), sizes=dict(q=8.0)),  # scores around the cap
    "softcap_near_causal": Row(SOFTCAP + CAUSAL, (CAP,), sizes=dict(pairs="causal", q=8.0)),
    "temperature_grad": Row(TEMPERATURE, (), slopes, True),
    "scatter_grad": Row(SCATTER, (), table, True),
    "scatter_grad_same_bits": Row(SCATTER, (), table, True, dict(flags=_abi.DETERMINISTIC)),
}
USUAL = tuple(ROWS)[:8]  # rows measured at all shapes; other rows are measured at the first shape only


def sizes_of(row, shape):
    z = SHAPES[shape]._replace(**ROWS[row].sizes)
    return z._replace(dv=z.dv or z.d, kv=z.kv or z.h)


def pairs_of(z):
    if z.pairs == "full":
        return z.b * z.h * z.s * z.s
    if z.pairs == "window":
        return z.b * z.h * (WINDOW * z.s - WINDOW * (WINDOW - 1) // 2)
    n = z.s // DOCUMENTS if z.pairs == "documents" else z.s
    return z.b * z.h * (z.s // n) * (n * (n + 1) // 2)


def rates(z, forward_ms, backward_ms):
    """Returns TFLOP/s of both passes."""
    return (2e-9 * pairs_of(z) * (z.d + z.dv) / forward_ms, 2e-9 * pairs_of(z) * (3 * z.d + 2 * z.dv) / backward_ms)


class Runner:
    """A row at one shape on one engine: tensors, plans and arguments of both passes."""

    def __init__(self, engine, row, z):
        self.engine, self.row, self.z = engine, ROWS[row], z
        text = self.row.text % (z.s - 1) if "%d" in self.row.text else self.row.text
        self.program = Program.from_text(text) if text else None
        make = lambda heads, d: torch.randn(z.b, heads, z.s, d, device="cuda", dtype=z.dtype)  # noqa: E731
        self.t = {"q": make(z.h, z.d) * z.q, "k": make(z.kv, z.d), "v": make(z.kv, z.dv), "do": make(z.h, z.dv)}
        for name, like in (("o", "do"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
            self.t[name] = torch.empty_like(self.t[like])
        self.t["lse"] = torch.empty(z.b, z.h, z.s, device="cuda", dtype=torch.float32)
        if z.packed:
            self.t["cu_q"] = self.t["cu_k"] = torch.arange(0, z.b * z.s + 1, z.s // DOCUMENTS, device="cuda",
                                                           dtype=torch.int32)
        self.captured = [self.row.captured(z)] if self.row.captured else []
        self.gradients = [torch.empty_like(t) for t in self.captured] if self.row.gradient else []
        self.plans = {backward: self.prepare(backward) for backward in (False, True)}

    def problem(self, backward):
        z = self.z
        flags = z.flags | (_abi.GRAD_Q | _abi.GRAD_K | _abi.GRAD_V if backward else _abi.RETURN_LSE)
        fields = dict(b=z.b, hq=z.h, hkv=z.kv, sq=z.s, sk=z.s, d_qk=z.d, d_v=z.dv, device=_abi.CUDA, alignment=16)
        if z.packed:
            n = z.s // DOCUMENTS
            flags |= _abi.VARLEN
            fields.update(b=z.b * DOCUMENTS, sq=n, sk=n, total_q=z.b * z.s, total_k=z.b * z.s)
        p = Problem(self.program, backward=backward, flags=flags, engine=self.engine, **fields)
        names = dict(q="q", k="k", v="v", o="o", dout="do", dq="dq", dk="dk", dv="dv")
        for name, tensor in list(names.items())[:8 if backward else 4]:
            heads, d = self.t[tensor].shape[1], self.t[tensor].shape[3]
            p.operand(name, DTYPES[z.dtype], (0, d, heads * d, 1) if z.packed else ())  # packed: [T,H,D]
        if z.packed:
            p.operand("lse", _abi.F32, (0, 1, z.h) if self.engine == "cudnn" else (0, z.b * z.s, 1))
        view = lambda t: View(t.data_ptr(), DTYPES[t.dtype], tuple(t.shape), t.stride())  # noqa: E731
        p.captures([view(t) for t in self.captured], [view(t) for t in self.gradients] if backward and self.gradients else None)
        return p

    def prepare(self, backward):
        began = time.perf_counter()
        plan = self.problem(backward).plan()
        seconds = time.perf_counter() - began
        names = ("q", "k", "v", "o", "lse") + (("do", "dq", "dk", "dv") if backward else ())
        names += ("cu_q", "cu_k") if self.z.packed else ()
        args = Args(**{name: self.t[name].data_ptr() for name in names})
        args.params(self.row.params)
        args.tensors([t.data_ptr() for t in self.captured])
        if backward and self.gradients:
            args.dtensors([t.data_ptr() for t in self.gradients])
        workspace = torch.empty(max(plan.workspace, 1), device="cuda", dtype=torch.uint8)
        args.workspace(workspace.data_ptr() if plan.workspace else None, plan.workspace)
        args.keep.append(workspace)
        args.struct.stream = torch.cuda.current_stream().cuda_stream
        return plan, args, seconds

    def run(self, backward):
        plan, args, _ = self.plans[backward]
        plan.run(args)
