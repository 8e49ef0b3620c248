#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soft-capped causal attention with learned slopes on an NVIDIA GPU, forward and backward, compared with attention
written out in PyTorch. Without a GPU it prints each engine's support report for an H200, for which cuda and cudnn need
NVIDIA's libraries (pip install nvidia-cuda-nvrtc nvidia-cudnn-cu13). With the argument "cpu" it runs on the CPU.

    python3 examples/gpu_attention.py [DEVICE]
"""
import os
import sys

import torch

import fxattn
from fxattn.torch import attention

BATCH, HEADS, LENGTH, WIDTH, CAP = 2, 8, 512, 64, 20.0
PROFILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "targets", "h200.json")


def make_score(slopes):
    """Returns a score function with an ALiBi slope per head and a soft cap."""
    return lambda score, b, h, q, k: CAP * torch.tanh((score - slopes[h] * (q - k)) / CAP)


def written_out(q, k, v, slopes):
    at, head = torch.arange(LENGTH, device=q.device), torch.arange(HEADS, device=q.device).view(-1, 1, 1)
    scores = make_score(slopes)(q @ k.transpose(-1, -2) / WIDTH ** 0.5, None, head, at[:, None], at)
    return scores.masked_fill(at[:, None] < at, -torch.inf).softmax(-1) @ v


def run_on(device):
    inputs = [torch.randn(BATCH, HEADS, LENGTH, WIDTH, device=device, dtype=torch.bfloat16) for _ in range(3)]
    inputs.append(2.0 ** -torch.arange(1.0, HEADS + 1, device=device))
    fused = [x.requires_grad_() for x in inputs]
    plain = [x.detach().double().requires_grad_() for x in inputs]
    q, k, v, slopes = fused
    out = attention(q, k, v, make_score(slopes), is_causal=True)
    expected = written_out(*plain)
    pairs = zip(("O", "dQ", "dK", "dV", "dslopes"), (out.detach(), *torch.autograd.grad(out.sum(), fused)),
                (expected.detach(), *torch.autograd.grad(expected.sum(), plain)))
    for name, got, want in pairs:
        print("%-8s differs by %.1e of its largest element" % (name, (got - want).abs().max() / want.abs().max()))


def explain_for_h200():
    slopes = 2.0 ** -torch.arange(1.0, HEADS + 1)
    found = fxattn.explain(make_score(slopes), (BATCH, HEADS, LENGTH, WIDTH), dtype="bf16", is_causal=True, target=PROFILE,
                           grads="all")
    print("no GPU here; on an H200:")
    for engine in found.engines:
        print("%-6s %-9s %s" % (engine.engine, engine.pass_, "runs it" if engine.supported else engine.reason))


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else None
    explain_for_h200() if device is None else run_on(device)
