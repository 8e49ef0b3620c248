#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fxattn.torch on a GPU: python3 torch_cuda.py [--platform cuda] [--times [host]] [--compile] [--short] [--only WORD], with
the package on PYTHONPATH. A line per check, BAD first where one fails, and exit status 1 then; 77 without torch or such a
device. --platform cpu runs what the host has too, to see that this file works.

Checked: results and gradients against f64 (torch_reference.py) of every way to write a score (torch_cases.py); how
tensors may lie; calls that are recorded into graphs and replayed with other values; streams, threads, memory that is
given back at once; autocast, torch.compile, training; what is said where devices are mixed or no engine can. --times:
torch_times.py; host: of the host's part alone.
"""
import argparse
import faulthandler
import os
import re
import subprocess
import sys

try:
    import torch
except ImportError:
    print("skipped: torch_cuda.py: torch is not there")
    sys.exit(77)
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]
import fxattn.torch as fx  # noqa: E402
import torch_models  # noqa: E402
from torch_cases import CASES, World, capped, inputs  # noqa: E402
from torch_reference import Dense  # noqa: E402

SHAPE = {"cuda": (2, 4, 256, 64), "cpu": (2, 4, 64, 16)}
SECONDS = 180  # watchdog of a check: a check that hangs is reported with its position, and the process ends


class Report:
    """Lines of what was found. `refused`: no engine took it, which is no failure unless it must be there."""

    def __init__(self, only):
        self.bad, self.good, self.refused, self.only = 0, 0, 0, only

    def __call__(self, name, fine, text=""):
        self.bad += not fine
        self.good += bool(fine)
        print("%-4s %s%s" % ("ok" if fine else "BAD", name, ": " + text if text else ""), flush=True)

    def none(self, name, text):
        self.refused += 1
        print("none %s: %s" % (name, text), flush=True)

    def run(self, name, check, *given):
        """A check; what it raises is its failure."""
        if self.only and self.only not in name:
            return
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            check(self, name, *given)
        except Exception as error:  # whatever it is, the other checks are still of interest
            self(name, False, "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:400]))
        finally:
            faulthandler.cancel_dump_traceback_later()


def no_engine(error):
    return "no engine can run this problem" in str(error) or "cannot run this problem" in str(error)


# ---- Values ----------------------------------------------------------------------------------------------------------

def differences(dense, out, leaves, captured, dout):
    """Returns the errors as shares of the allowed errors, by result; a backward may be refused, then with its
    message."""
    worst = {"out": dense.worst("out", out)}
    names = ["dq", "dk", "dv", *("dcaptured%d" % i for i in range(len(captured)))]
    try:
        grads = torch.autograd.grad(out, [*leaves, *captured], dout.to(out.dtype), allow_unused=True)
    except RuntimeError as error:
        if not no_engine(error):
            raise
        return worst, str(error)
    worst.update({name: dense.worst(name, grad) for name, grad in zip(names, grads)})
    return worst, None


def told(worst):
    return ", ".join("%s %.2f" % item for item in worst.items()) + " of what is allowed"


def check_case(report, name, case, device, dtype, shape):
    q, k, v, dout = inputs(shape, device, dtype, case.heads)
    here, there = World(device), World("cpu", torch.float64)
    score, mask = case.dense(there, shape)
    dense = Dense(q, k, v, dout, score, mask, case.scale, there.learned)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    try:
        out = case.run(here, *leaves)
    except RuntimeError as error:
        if not no_engine(error) or case.must and device != "cpu":
            raise
        return report.none(name, " ".join(str(error).split()))
    worst, refused = differences(dense, out, leaves, here.learned, dout)
    if refused and (case.must or here.learned == []):
        return report(name, False, told(worst) + "; backward: " + refused)
    if refused:  # gradients of captured tensors: those of q, k and v must be there without them
        report.none(name + ", gradients of what it captures", " ".join(refused.split()))
        here = World(device, learn=False)
        worst, refused = differences(dense, case.run(here, *leaves), leaves, [], dout)
    report(name, refused is None and max(worst.values()) <= 1, told(worst))


def check_no_gradient(report, name, device, dtype, shape):
    q, k, v, dout = inputs(shape, device, dtype)
    want = fx.flex_attention(*(x.clone().requires_grad_() for x in (q, k, v)), capped(3.0))
    same = []
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            same.append(torch.equal(fx.flex_attention(q, k, v, capped(3.0)), want.detach()))
    lse = fx.flex_attention(q, k, v, return_aux=fx.AuxRequest(lse=True))[1].lse
    dense = Dense(q, k, v, dout)
    apart = float((lse.cpu().double() - dense.lse.detach()).abs().max())
    report(name, all(same) and apart < 1e-4, "bits equal those of a recorded call: %s; lse off by %.1e" % (same, apart))


# ---- How tensors lie -------------------------------------------------------------------------------------------------

def lying(x, how):
    """Equal values in other memory."""
    b, h, s, d = x.shape
    if how == "shifted by one element":
        out = torch.empty(x.numel() + 8, device=x.device, dtype=x.dtype)[1:x.numel() + 1].view(x.shape)
    elif how == "sliced features":
        out = torch.empty(b, h, s, d + 3, device=x.device, dtype=x.dtype)[..., 2:d + 2]
    elif how == "features first":
        out = torch.empty(b, h, d, s, device=x.device, dtype=x.dtype).transpose(2, 3)
    elif how == "packed qkv":
        out = torch.empty(b, s, 3, h, d, device=x.device, dtype=x.dtype)[:, :, 1].transpose(1, 2)
    else:  # every second row
        out = torch.empty(b, h, 2 * s, d, device=x.device, dtype=x.dtype)[:, :, ::2]
    return out.copy_(x)


LYING = ("shifted by one element", "sliced features", "features first", "packed qkv", "every second row")


def check_lying(report, name, how, device, dtype, shape):
    q, k, v, dout = inputs(shape, device, dtype)
    dense = Dense(q, k, v, dout, capped(3.0))
    leaves = [lying(x, how).detach().requires_grad_() for x in (q, k, v)]
    out = fx.flex_attention(*leaves, capped(3.0))
    worst, refused = differences(dense, out, leaves, [], lying(dout, how))
    report(name, not refused and max(worst.values()) <= 1, refused or told(worst))


def check_expanded(report, name, device, dtype, shape):
    """Gradients of sums are expanded, and so are keys that all entries share."""
    q, k, v, _ = inputs(shape, device, dtype)
    ones = torch.ones_like(q)
    k, v = (x[:1].expand(shape[0], -1, -1, -1).detach() for x in (k, v))
    dense = Dense(q, k, v, ones)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    fx.flex_attention(*leaves).sum().backward()
    worst = {n: dense.worst(n, x.grad) for n, x in zip(("dq", "dk", "dv"), leaves)}
    report(name, max(worst.values()) <= 1, told(worst))


def check_captured_view(report, name, device, dtype, shape):
    """A captured tensor that begins in the middle of its memory."""
    q, k, v, dout = inputs(shape, device, dtype)
    table = torch.arange(1.0, shape[1] + 2, device=device)[1:] / 8
    far = table.cpu().double()
    dense = Dense(q, k, v, dout, lambda s, b, h, i, j: s - far[h] * (i - j).abs())
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = fx.flex_attention(*leaves, lambda s, b, h, i, j: s - table[h] * (i - j).abs())
    worst, refused = differences(dense, out, leaves, [], dout)
    report(name, not refused and max(worst.values()) <= 1, refused or told(worst))


# ---- Modes, and what PyTorch's users do ------------------------------------------------------------------------------

def check_autocast(report, name, device, dtype, shape):
    q, k, v, dout = inputs(shape, device, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.autocast(torch.device(device).type, dtype):
        out = fx.flex_attention(*leaves, capped(3.0))
    dense = Dense(*(x.detach().to(dtype) for x in (q, k, v)), dout.to(dtype), capped(3.0))
    worst, refused = differences(dense, out, leaves, [], dout.to(dtype))
    grads = torch.autograd.grad(fx.flex_attention(*leaves, capped(3.0)).sum(), leaves) if device == "cpu" else leaves
    report(name, not refused and max(worst.values()) <= 1 and out.dtype == dtype
           and all(g.dtype == torch.float32 for g in grads), refused or told(worst))


def check_compiled(report, name, mode, device, dtype, shape):
    torch._dynamo.reset()
    slopes = torch.arange(1.0, shape[1] + 1, device=device) / 8

    def model(q, k, v, cap):
        return fx.flex_attention(q * 1.5, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap) - slopes[h] * (i - j),
                                 fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, shape[2], shape[2],
                                                      device=device)).sin()
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for n in range(4):
        q, k, v, dout = inputs(shape, device, dtype, seed=n)
        cap = torch.tensor(2.0 + n, device=device)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        got = torch.autograd.grad(compiled(*leaves, cap), leaves, dout)
        want = torch.autograd.grad(model(*leaves, cap), leaves, dout)
        apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want))
        if apart > 2.0 ** -6:
            break
    report(name, apart <= 2.0 ** -6, "after %d calls gradients are %.1e apart from eager ones" % (n + 1, apart))


def check_batched(report, name, device, dtype, shape):
    q, k, v, _ = inputs(shape, device, dtype)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = fx.flex_attention(*leaves, capped(3.0))
    many = torch.stack([inputs(shape, device, dtype, seed=n)[3] for n in range(3)])
    got = torch.autograd.grad(out, leaves, many, is_grads_batched=True, retain_graph=True)
    for i, one in enumerate(many):
        want = torch.autograd.grad(out, leaves, one, retain_graph=True)
        apart = max(float((a[i] - b).abs().max() / b.abs().max()) for a, b in zip(got, want))
        if apart > 2.0 ** -7:
            break
    report(name, apart <= 2.0 ** -7, "apart from one by one: %.1e" % apart)


def check_deterministic(report, name, device, dtype, shape):
    """torch.use_deterministic_algorithms: the same bits of dq, whose sums have no order else."""
    q, k, v, dout = inputs((1, 2, 2048, 64), device, dtype)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.use_deterministic_algorithms(True)
    try:
        runs = [torch.autograd.grad(fx.flex_attention(*leaves, capped(3.0)), leaves, dout) for _ in range(6)]
    finally:
        torch.use_deterministic_algorithms(False)
    others = [torch.autograd.grad(fx.flex_attention(*leaves, capped(3.0)), leaves, dout) for _ in range(6)]
    same, plain = (all(torch.equal(a, b) for run in some for a, b in zip(run, some[0])) for some in (runs, others))
    report(name, same, "6 runs have the same bits; without it they %s" % ("do too" if plain else "do not"))


def check_empty(report, name, device, dtype, shape):
    """A batch of nothing, and no rows: results of no elements, gradients of 0."""
    q, k, v, _ = inputs(shape, device, dtype)
    found = []
    for cut in ((slice(0, 0),), (slice(None), slice(None), slice(0, 0))):
        leaves = [q[cut].requires_grad_(), *(x[cut[:1]].requires_grad_() for x in (k, v))]
        out = fx.flex_attention(*leaves, capped(3.0))
        grads = torch.autograd.grad(out.sum(), leaves)
        found.append(out.numel() == 0 and all(g.shape == x.shape and not g.any() for g, x in zip(grads, leaves)))
    report(name, all(found), str(found))


def check_vmap(report, name, device, dtype, shape):
    q, k, v, _ = inputs(shape, device, dtype)
    many = torch.stack([q, k])
    got = torch.func.vmap(lambda x: fx.flex_attention(x, k, v, capped(3.0)))(many)
    same = [float((got[i] - fx.flex_attention(x, k, v, capped(3.0))).abs().max()) for i, x in enumerate(many)]
    report(name, max(same) <= 2.0 ** -7, "apart from one by one: %s" % same)


def check_checkpoint(report, name, device, dtype, shape):
    q, k, v, dout = inputs(shape, device, dtype)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = torch.utils.checkpoint.checkpoint(lambda *x: fx.flex_attention(*x, capped(3.0)), *leaves, use_reentrant=False)
    dense = Dense(q, k, v, dout, capped(3.0))
    worst, refused = differences(dense, out, leaves, [], dout)
    report(name, not refused and max(worst.values()) <= 1, refused or told(worst))


def check_module(report, name, device, dtype, shape):
    """DotProductAttention of lengths, and of a mask that is no padding, which must not be read as one."""
    b, h, s, d = shape
    q, k, v, dout = (x.transpose(1, 2).contiguous() for x in inputs(shape, device, dtype))
    module = fx.DotProductAttention(h, d, qkv_format="bshd", attn_mask_type="padding").to(device)
    hidden = torch.arange(s, device=device).view(1, 1, 1, s) >= torch.tensor([s - 8, s - 24], device=device).view(-1, 1, 1, 1)
    at = hidden.cpu()
    dense = Dense(*(x.transpose(1, 2) for x in (q, k, v, dout)), mask=lambda b, h, i, j: ~at[b, 0, 0, j])
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = module(*leaves, attention_mask=hidden)
    grads = torch.autograd.grad(out, leaves, dout.flatten(-2))
    worst = {n: dense.worst(n, x.unflatten(-1, (h, d)).transpose(1, 2) if n == "out" else x.transpose(1, 2))
             for n, x in zip(("out", "dq", "dk", "dv"), (out, *grads))}
    other = fx.DotProductAttention(h, d, qkv_format="bshd", attn_mask_type="arbitrary").to(device)
    left = hidden.flip(-1).expand(b, 1, s, s)
    try:
        got = other(*leaves, attention_mask=left)
        seen = ~left.cpu()
        by = Dense(*(x.transpose(1, 2) for x in (q, k, v, dout)), mask=lambda b, h, i, j: seen[b, 0, i, j])
        worst["left-padded, arbitrary"] = by.worst("out", got.unflatten(-1, (h, d)).transpose(1, 2))
    except RuntimeError as error:
        report.none(name + ", a mask as a tensor", " ".join(str(error).split()))
    report(name, max(worst.values()) <= 1, told(worst))


# ---- What is said ----------------------------------------------------------------------------------------------------

def check_said(report, name, call, words, kinds=(ValueError, RuntimeError, TypeError)):
    try:
        call()
    except kinds as error:
        said = " ".join(str(error).split())
        report(name, re.search(words, said) is not None, said[:300])
    else:
        report(name, False, "nothing is said")


LEFT_PADDED = """
import torch, fxattn.torch as fx
x = torch.zeros(2, 64, 2, 64, device="cuda", dtype=torch.bfloat16)
hidden = torch.arange(64, device="cuda").view(1, 1, 1, 64).expand(2, 1, 1, 64) < 3
fx.DotProductAttention(2, 64, qkv_format="bshd", attn_mask_type="padding")(x, x, x, attention_mask=hidden)
torch.cuda.synchronize()
"""


def check_left_padded(report, name):
    """It would be read as a length; a process of its own, since PyTorch stops the device."""
    ran = subprocess.run([sys.executable, "-c", LEFT_PADDED], capture_output=True, text=True, timeout=120)
    said = ran.stdout + ran.stderr
    report(name, ran.returncode != 0 and "padding is at the end" in said, " ".join(said.split())[-200:])


def refusals(report, device, dtype, shape):
    report.run("a left-padded mask as padding", check_left_padded)
    q, k, v, _ = inputs(shape, device, dtype)
    on_host, table = q.cpu(), torch.rand(shape[1])
    cases = {
        "k on the host": (lambda: fx.flex_attention(q, on_host, v), "device"),
        "k on the host, attention()": (lambda: fx.attention(q, on_host, v), "query is on cuda.*cpu"),
        "a captured tensor on the host": (lambda: fx.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h]),
                                          r"captured tensor.*on cpu|on cpu.*captured"),
        "a block mask of the host": (lambda: fx.flex_attention(q, k, v, None, fx.create_block_mask(
            lambda b, h, i, j: i >= j, None, None, shape[2], shape[2], device="cpu")), "same device"),
        "a sink on the host": (lambda: fx.attention(q, k, v, sinks=table), "sinks is on cpu"),
        "the operator, k on the host": (lambda: torch.ops.fxattn.fwd(q, on_host, v, [], [], [], [], [], [], ""),
                                        "another device"),
        "f64": (lambda: fx.flex_attention(q.double(), k.double(), v.double()), "no engine.*cudnn.*f16 and bf16.*cuda.*f64"),
    }
    for name, (call, words) in cases.items():
        report.run(name, check_said, call, words)


def as_on_the_host(report, device, dtype, shape):
    """Calls that cudnn refuses and cuda supports, f32 and f16 or bf16: results and gradients on the GPU and on the host
    are compared."""
    def flat(q, k, v, x):
        return fx.attention(q, k, v)

    def narrow(q, k, v, x):
        return fx.flex_attention(q[..., :20], k[..., :20], v[..., :20])

    def dropped(q, k, v, x):
        return fx.attention(q, k, v, dropout_p=0.5, seed=7, is_causal=True)

    def learned(q, k, v, x):
        return fx.flex_attention(q, k, v, lambda s, b, h, i, j: s - x[h] * (i - j))

    def check(report, name, call, kind):
        there = [t.detach().to(kind) for t in inputs(shape, device, dtype)[:3]] + [torch.linspace(0.01, 0.1, shape[1]).to(device)]
        here = [t.cpu().float() for t in there]
        worst = 0.0
        for group in (there, here):
            for t in group:
                t.requires_grad_()
            out = call(*group)
            out.backward(torch.ones_like(out))
        pairs = [(call(*there), call(*here))] + [(a.grad, b.grad) for a, b in zip(there, here) if b.grad is not None]
        for got, want in pairs:
            got, want = got.detach().cpu().double(), want.detach().double()
            worst = max(worst, float((got - want).norm() / (want.norm() + 1e-6)))
        report(name, worst < (1e-5 if kind is torch.float32 else 2e-2), "off by %.1e" % worst)

    for kind in (torch.float32, dtype):
        for call in (flat, narrow, dropped, learned):
            report.run("%s, %s" % (call.__name__, str(kind)[6:]), check, call, kind)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--times", nargs="?", const="all", choices=("all", "host"))
    parser.add_argument("--compile", action="store_true", help="torch.compile too: half a minute")
    parser.add_argument("--only", default="", help="checks with this in their name")
    parser.add_argument("--short", action="store_true", help="some of the cases, and no models")
    given = parser.parse_args()
    if given.platform == "cuda" and not torch.cuda.is_available():
        print("skipped: torch_cuda.py: PyTorch %s has no CUDA device" % torch.__version__)
        return 77
    report, shape = Report(given.only), SHAPE[given.platform]
    devices = ["cuda:%d" % i for i in range(torch.cuda.device_count())] if given.platform == "cuda" else ["cpu"]
    print("torch %s, %s, %d device%s" % (torch.__version__, torch.cuda.get_device_name() if given.platform == "cuda"
                                         else "host", len(devices), "s"[:len(devices) > 1]))
    for device in devices:  # device by ordinal; the current device stays the first
        for dtype in (torch.bfloat16, torch.float16):
            for name, case in list(CASES.items())[::5 if given.short else 1]:
                if dtype == torch.bfloat16 or case.both:
                    report.run("%s, %s, %s" % (name, str(dtype)[6:], device), check_case, case, device, dtype, shape)
        dtype = torch.bfloat16
        for how in LYING[:1 if given.short else None]:
            report.run(how, check_lying, how, device, dtype, shape)
        for name, check in {"expanded": check_expanded, "a captured view": check_captured_view,
                            "without gradients": check_no_gradient, "autocast": check_autocast,
                            "batched gradients": check_batched, "vmap": check_vmap, "deterministic": check_deterministic,
                            "empty": check_empty, "checkpoint": check_checkpoint,
                            "DotProductAttention": check_module}.items():
            report.run(name, check, device, dtype, shape)
        if not given.short:
            torch_models.run(report, device, dtype, shape)
        if device != "cpu":
            refusals(report, device, dtype, shape)
            as_on_the_host(report, device, dtype, shape)
            import torch_streams
            torch_streams.run(report, device, dtype, shape)
    if given.compile:
        for mode in (None, "reduce-overhead") if given.platform == "cuda" else (None,):
            report.run("torch.compile, %s" % (mode or "default"), check_compiled, mode, devices[0], torch.bfloat16, shape)
    if given.times:
        import torch_times
        torch_times.run(devices[0], given.times)
    print("%d right, %d taken by no engine\n%d bad" % (report.good, report.refused, report.bad))
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
