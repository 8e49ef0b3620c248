# SPDX-License-Identifier: Apache-2.0
"""Ways to call attention that torch_cuda.py compares with the same written out: each is a function of a World, which
makes the tensors that it captures, where the call runs (f32 on the device) and for the reference (f64 on the host)."""
import torch
from soft_cap import SoftCap
from torch.nn.attention import flex_attention as theirs

import fxattn.torch as fx


class World:
    """Tensors on one device, with equal values on all devices. `learned`: those whose gradients are requested."""

    def __init__(self, device, dtype=torch.float32, learn=True):
        self.device, self.dtype, self.learn, self.learned = device, dtype, learn, []
        self.reference = dtype == torch.float64

    def tensor(self, values, dtype=None, device=None):
        values = torch.as_tensor(values)
        if self.reference or dtype is None:
            dtype = self.dtype if values.is_floating_point() else values.dtype
        return values.to(device="cpu" if self.reference else device or self.device, dtype=dtype)

    def learnt(self, values, dtype=None):
        made = self.tensor(values, dtype)
        if self.learn:
            self.learned.append(made.requires_grad_())
        return made


def inputs(shape, device, dtype, heads=None, seed=0):
    """q, k, v, dout; keys may have fewer heads."""
    g = torch.Generator().manual_seed(seed)
    b, h, s, d = shape
    made = [torch.randn(b, heads if heads and i in (1, 2) else h, s, d, generator=g) for i in range(4)]
    return [x.to(device=device, dtype=dtype) for x in made]


def capped(cap):
    return lambda s, b, h, i, j: cap * torch.tanh(s / cap)


def causal(b, h, i, j):
    return i >= j


class Case:
    """score, mask: functions of a World that make FlexAttention's, for both sides. options: more arguments of
    attention(), by World and shape; `also`: what those mask, for the reference. way: how it is called."""

    def __init__(self, score=None, mask=None, way="flex", options=None, also=None, heads=None, scale=None, must=True,
                 both=False):
        self.score, self.mask, self.way, self.options, self.also = score, mask, way, options, also
        self.heads, self.scale, self.must, self.both = heads, scale, must, both

    def functions(self, world):
        return [None if make is None else make(world) for make in (self.score, self.mask)]

    def dense(self, world, shape):
        score, mask = self.functions(world)
        masks = [m for m in (mask, self.also and self.also(shape)) if m is not None]
        return score, None if not masks else lambda *at: torch.stack(
            torch.broadcast_tensors(*(m(*at) for m in masks))).all(0)

    def run(self, world, q, k, v):
        score, mask = self.functions(world)
        shape = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
        options = {} if self.options is None else self.options(world, q.shape)
        if self.way == "attention":
            return fx.attention(q, k, v, score, mask, scale=self.scale, **options)
        if self.way == "packed":
            return packed(world, q, k, v, score)
        make = theirs.create_block_mask if self.way == "lists" else fx.create_block_mask
        block = None if mask is None else make(mask, None, None, *shape[2:], device=world.device)
        return fx.flex_attention(q, k, v, score, block, self.scale, enable_gqa=q.shape[1] != k.shape[1])


def packed(world, q, k, v, score):
    """Rows of all entries behind each other; the entries have one length here."""
    b, h, s, d = q.shape
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    cu = torch.arange(0, b * s + 1, s, dtype=torch.int32, device=q.device)
    out = fx.attention(*rows, score, layout="thd", is_causal=True, cu_q=cu, max_q=s, max_k=s)
    return out.unflatten(0, (b, s)).transpose(1, 2)


def _slopes(w):
    table = w.tensor(torch.arange(1.0, 5.0) / 16)
    return lambda s, b, h, i, j: s - table[h] * (i - j).abs()


def _number_on_device(w):
    return capped(w.tensor(2.5))


def _number_on_host(w):
    return capped(w.tensor(2.5, device="cpu"))


def _learned_slopes(w):
    table = w.learnt(torch.arange(1.0, 5.0) / 16)
    return lambda s, b, h, i, j: s + table[h] * (i - j).abs() / -8


def _learned_bias(w):
    bias = w.learnt(torch.randn(4, 256, 256, generator=torch.Generator().manual_seed(7)).bfloat16().float(),
                    torch.bfloat16)
    return lambda s, b, h, i, j: s + bias[h, i, j]


def _documents(w, dtype=torch.int32):
    ids = w.tensor((torch.arange(256) // 40).to(dtype))
    return lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j)


class Graph(Case):
    """Callbacks of the graph style; `bprop`: with the backward one, too. cap: the number, of a World."""

    def __init__(self, bprop, cap=lambda w: 2.5):
        super().__init__(lambda w: capped(2.5))
        self.bprop, self.cap = bprop, cap

    def run(self, world, q, k, v):
        mod, given = SoftCap(), {"cap": self.cap(world)}
        own = {"score_mod_bprop": mod.backward, "bprop_tensors": given} if self.bprop else {}
        return fx.attention(q, k, v, mod.forward, style="graph", tensors=given, **own)


class Text(Case):
    """Program text, whose param is a number or, `there`, a tensor of the device."""

    def __init__(self, there):
        super().__init__(lambda w: capped(2.5))
        self.there = there

    def run(self, world, q, k, v):
        cap = world.tensor(2.5) if self.there else 2.5
        return fx.attention(q, k, v, "param cap : float\nscore = cap * tanh(score / cap)\n", params={"cap": cap})


def _lengths(w, shape):
    return {"k_lengths": torch.tensor([shape[2] - 5, 7], dtype=torch.int32, device=w.device)}


CASES = {
    "plain": Case(both=True),
    "plain, attention()": Case(way="attention"),
    "causal mask": Case(mask=lambda w: causal, both=True),
    "is_causal": Case(way="attention", options=lambda w, shape: {"is_causal": True}, also=lambda shape: causal),
    "lists of PyTorch's": Case(mask=lambda w: causal, way="lists"),
    "window": Case(way="attention", options=lambda w, shape: {"is_causal": True, "window": (9, 0)},
                   also=lambda shape: lambda b, h, i, j: (i >= j) & (i - j <= 9)),
    "window as a mask": Case(mask=lambda w: lambda b, h, i, j: (i >= j) & (i - j <= 9)),
    "documents": Case(mask=_documents),
    "documents, ids of 64 bits": Case(mask=lambda w: _documents(w, torch.int64), must=False),
    "soft cap of a number": Case(lambda w: capped(2.5), both=True),
    "soft cap, causal": Case(lambda w: capped(2.5), lambda w: causal),
    "soft cap of a 0-d tensor there": Case(_number_on_device),
    "soft cap of a 0-d tensor on the host": Case(_number_on_host),
    "ALiBi": Case(_slopes, lambda w: causal, both=True),
    "ALiBi whose slopes are learned": Case(_learned_slopes, must=False),
    "bias whose table is learned": Case(_learned_bias, must=False),
    "graph style": Graph(False),
    "graph style with a backward of its own": Graph(True),
    "graph style, a tensor there": Graph(True, lambda w: w.tensor(torch.full((1, 1, 1, 1), 2.5))),
    "graph style, a tensor of the host": Graph(True, lambda w: w.tensor(torch.full((1, 1, 1, 1), 2.5), device="cpu")),
    "text": Text(False),
    "text whose param is there": Text(True),
    "scale": Case(scale=0.3),
    "grouped heads": Case(mask=lambda w: causal, heads=2, both=True),
    "one head of keys": Case(lambda w: capped(2.5), heads=1),
    "lengths": Case(way="attention", options=_lengths, also=lambda shape: lambda b, h, i, j: j < torch.where(
        b == 0, shape[2] - 5, 7)),
    "packed": Case(lambda w: capped(2.5), way="packed", also=lambda shape: causal),
    "a bool table as a mask": Case(mask=lambda w: (lambda t: lambda b, h, i, j: t[i, j])(
        w.tensor(torch.rand(256, 256, generator=torch.Generator().manual_seed(3)) > 0.5)), must=False),
}
