#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer with ALiBi and a soft cap on the CPU, with fxattn in place of PyTorch's flex_attention:
one import differs. The same model with attention written out in PyTorch is trained from the same weights on the same
data. Both losses are printed and must decrease together.

    python3 examples/train_transformer.py [STEPS]
"""
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from fxattn.torch import create_block_mask, flex_attention  # replaces torch.nn.attention.flex_attention

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH, CAP = 32, 64, 4, 2, 64, 8, 20.0


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Attention(nn.Module):
    def __init__(self, written_out):
        super().__init__()
        self.written_out = written_out
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.slopes = nn.Parameter(2.0 ** -torch.arange(1.0, HEADS + 1))  # trainable

    def score(self, score, b, h, q_idx, kv_idx):
        return CAP * torch.tanh((score - self.slopes[h] * (q_idx - kv_idx)) / CAP)

    def forward(self, x, block_mask):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if not self.written_out:
            attended = flex_attention(q, k, v, self.score, block_mask)
        else:
            at = torch.arange(x.shape[1])
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            scores = self.score(scores, None, torch.arange(HEADS).view(-1, 1, 1), at[:, None], at)
            attended = scores.masked_fill(at[:, None] < at, -torch.inf).softmax(-1) @ v
        return self.out(attended.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, written_out=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.attention = nn.ModuleList(Attention(written_out) for _ in range(LAYERS))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                               nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))

    def forward(self, tokens):
        x = self.embed(tokens)
        block_mask = create_block_mask(causal, None, None, tokens.shape[1], tokens.shape[1], device=tokens.device)
        for attention, mlp, norm in zip(self.attention, self.mlp, self.norms):
            x = x + attention(norm(x), block_mask)
            x = x + mlp(x)
        return self.head(x)


def batch(generator):
    """Returns sequences that ascend in steps of 1, 2 or 3; attention has to find the step."""
    start = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
    step = torch.randint(1, 4, (BATCH, 1), generator=generator)
    return (start + step * torch.arange(LENGTH)) % VOCABULARY


def train(model, steps):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses, began = [], time.perf_counter()
    for _ in range(steps):
        tokens = batch(generator)
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (time.perf_counter() - began) / steps


def main(steps):
    torch.manual_seed(0)
    ours, written_out = Transformer(), Transformer(written_out=True)
    written_out.load_state_dict(ours.state_dict())
    (losses, seconds), (others, other_seconds) = train(ours, steps), train(written_out, steps)
    for i in range(0, steps, max(1, steps // 10)):
        print("step %4d   loss %.6f   written out in PyTorch %.6f" % (i, losses[i], others[i]))
    print("last        loss %.6f   written out in PyTorch %.6f" % (losses[-1], others[-1]))
    print("a step takes %.1f ms, written out %.1f ms" % (1e3 * seconds, 1e3 * other_seconds))
    # The first steps differ by rounding only; training amplifies the differences later.
    early = max(abs(a - b) for a, b in zip(losses[:5], others[:5]))
    quarter = max(1, steps // 4)  # batches differ, so a single step says little
    gone_down = sum(losses[:quarter]) / quarter - sum(losses[-quarter:]) / quarter
    print("the mean loss of the last quarter is %.3f below that of the first" % gone_down)
    if early > 1e-4 or gone_down < 0.1:
        sys.exit("the losses differ by %g in the first steps, or did not go down" % early)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
