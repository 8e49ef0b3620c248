# SPDX-License-Identifier: Apache-2.0
"""FlexAttention-style functions, as people write them: each is traced, and the program is held against the function
itself, called by torch on scalars in float64, at random pairs."""
import enum
import functools
import math
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks  # noqa: E402

from fxattn.trace import trace  # noqa: E402
from autograd_tanh import tanh_function  # noqa: E402
from trace_support import evaluator, same  # noqa: E402

B, H, S = 2, 4, 16
g = torch.Generator().manual_seed(0)


def rand(*shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


slopes = torch.exp2(-torch.arange(1, H + 1, dtype=torch.float64))
bias4, bias2, row_bias, table = rand(B, H, S, S), rand(S, S), rand(S), rand(H, 2 * S)
doc, offsets, lengths = torch.arange(S) // 5, torch.tensor([0, 5, 10, 15]), torch.tensor([9, 13])
doc2 = torch.stack([torch.arange(S) // 5, torch.arange(S) // 7])
u8, i8, i16 = (torch.randint(lo, hi, (S,), generator=g).to(t) for lo, hi, t in
               ((0, 256, torch.uint8), (-128, 128, torch.int8), (-32768, 32768, torch.int16)))
flags, coords, scalar0 = torch.rand(S, generator=g) > 0.5, rand(S, 3), torch.tensor(0.37, dtype=torch.float64)
gain = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
wide = rand(H, S, 4)
embedding = nn.Embedding(32, H, dtype=torch.float64)
landmarks = torch.randint(0, S, (4,), generator=g)
allowed = torch.rand(S, 4, generator=g) > 0.4
bits = torch.randint(0, 1 << 30, (S,), generator=g, dtype=torch.int32)


np_half, np_three, np_single = np.float64(0.5), np.int64(3), np.float32(1.25)


class Level(enum.IntEnum):
    TWO = 2


class Cap(nn.Module):
    def __init__(self):
        super().__init__()
        self.cap, self.weight = 7.5, nn.Parameter(rand(H))

    def forward(self, score, b, h, q, k):
        return self.cap * torch.tanh((score + self.weight[h]) / self.cap)

    def method(self, score, b, h, q, k):
        return score * self.weight[h].sigmoid()


Tanh = tanh_function(torch.tanh)


class TanhLater(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        return grad


early_tanh, later_tanh = Tanh.apply, TanhLater.apply


def t5_bucket(distance, buckets=32, longest=16):
    small = buckets // 2
    n = torch.clamp(distance, min=0)
    large = small + (torch.log(n.float() / small) / math.log(longest / small) * (buckets - small)).to(torch.int64)
    return torch.where(n < small, n, torch.minimum(large, torch.full_like(large, buckets - 1)))


def natten(b, h, q, k, side=4, size=3):
    qx, qy, kx, ky = q // side, q % side, k // side, k % side
    cx = qx.clamp(size // 2, (side - 1) - size // 2)
    cy = qy.clamp(size // 2, (side - 1) - size // 2)
    return ((cx - kx).abs() <= size // 2) & ((cy - ky).abs() <= size // 2)


def scaled(score, b, h, q, k, factor=0.25, *, shift=1.5):
    return score * factor + shift


def sequential(score, b, h, q, k):
    score += slopes[h] * (q - k)
    other = score
    score *= 2
    return score + other


def helper(x):
    return torch.where(x > 0, x, 0.01 * x)


def loop(score, b, h, q, k):
    for i in range(3):
        score = score + wide[h, q, i] * (i + 1)
    return score


def silu_mul(score, b, h, q, k):
    return F.silu(score) * F.sigmoid(score) + F.gelu(score) - F.softplus(score) + F.elu(score) + F.leaky_relu(score)


module = Cap()
SCORE = {
    "identity": lambda s, b, h, q, k: s,
    "times_two": lambda s, b, h, q, k: s * 2,
    "squared": lambda s, b, h, q, k: s * s,
    "power": lambda s, b, h, q, k: s ** 2 + s.abs() ** 1.5 + torch.pow(s, 3),
    "relative": lambda s, b, h, q, k: s + (q - k),
    "relative_float": lambda s, b, h, q, k: s + (q - k).to(torch.float64) * 0.1,
    "absolute_distance": lambda s, b, h, q, k: s - torch.abs(q - k),
    "causal": lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")),
    "causal_module_level": lambda s, b, h, q, k: torch.where(q >= k, s, -math.inf),
    "inverse_causal": lambda s, b, h, q, k: torch.where(q <= k, s, -float("inf")),
    "alibi": lambda s, b, h, q, k: s + slopes[h] * (k - q),
    "alibi_causal": lambda s, b, h, q, k: torch.where(q >= k, s + (k - q) * slopes[h], -torch.inf),
    "alibi_computed": lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / H)) * (k - q),
    "softcap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "softcap_method": lambda s, b, h, q, k: (s / 20.0).tanh() * 20.0,
    "full_bias": lambda s, b, h, q, k: s + bias4[b, h, q, k],
    "chained_bias": lambda s, b, h, q, k: s + bias4[b][h, q][k],
    "bias_of_slice": lambda s, b, h, q, k: s + bias4[1, :, 2:, ::2][h, q // 2, k // 2],
    "slice_beside_symbols": lambda s, b, h, q, k: s + bias4[b, h, q, 0:3].sum(),
    "ellipsis": lambda s, b, h, q, k: s + bias4[..., k][b, h, q] + bias4[b, ..., 0][h, q],
    "strided_view": lambda s, b, h, q, k: s + bias2.t()[q, k] + bias2[::2, 1::3][q // 2, k // 4],
    "expanded_view": lambda s, b, h, q, k: s + row_bias[None, :].expand(S, S)[q, k],
    "toeplitz": lambda s, b, h, q, k: s + table[h, q - k + S],
    "negative_index": lambda s, b, h, q, k: s + row_bias[-1 - k] + row_bias[-1],
    "row_and_column": lambda s, b, h, q, k: s * row_bias[q] + row_bias[k],
    "zero_d": lambda s, b, h, q, k: s * scalar0 + gain,
    "learnable": lambda s, b, h, q, k: gain * s,
    "head_scale": lambda s, b, h, q, k: s * (h + 1),
    "batch_offset": lambda s, b, h, q, k: s + 2 * b - h,
    "trigonometric": lambda s, b, h, q, k: torch.sin(s) * torch.cos(s) + 0.2 * b,
    "logs": lambda s, b, h, q, k: torch.log(s.abs() + 1) + torch.log2(q + 1) + torch.log1p(k) + (q + 1).sqrt().log10(),
    "exps": lambda s, b, h, q, k: torch.exp(-s.abs()) + torch.exp2(-k * 0.5) + torch.expm1(s * 1e-3) + s.sigmoid(),
    "clamps": lambda s, b, h, q, k: (
        s.clamp(-1, 1) + torch.clamp(q - k, min=-3) + (q - k).clamp(max=2)
        + torch.clip(s, min=0.5)),
    "minmax": lambda s, b, h, q, k: (
        torch.minimum(s, q.float()) + torch.maximum(s, torch.tensor(0.5)) + torch.max(q, k)
        - torch.min(q, k)),
    "rounding": lambda s, b, h, q, k: (
        s.floor() + torch.ceil(s) * 2 + torch.round(s) * 3 + s.trunc() * 4
        + (q / 3).floor()),
    "floor_division": lambda s, b, h, q, k: s + (q - k) // 3 + (q - k) % 3 + (k - q) // 2 * 0.5 + s // 0.7 + s % 0.7,
    "trunc_division": lambda s, b, h, q, k: (
        s + torch.div(q - k, 3, rounding_mode="trunc") + torch.fmod(k - q, 4)
        + torch.fmod(s, 0.3)),
    "int_power": lambda s, b, h, q, k: s + q ** 2 + (q - k) ** 3 + 2 ** (k % 5) + (q - k) ** h + 3 ** b,
    "score_plus_bool": lambda s, b, h, q, k: s + (q > k) + (q == k) * 2.5,
    "bool_plus_bool": lambda s, b, h, q, k: s + ((q > k) + (q == k)) + ((q > 2) * (k > 2)).float() * 3,
    "bools_counted": lambda s, b, h, q, k: s * ((q > k).int() + (k > 3).long()),
    "where_of_ints": lambda s, b, h, q, k: s + torch.where(q > k, 1, 0) + torch.where(q > 3, 2.5, h),
    "method_where": lambda s, b, h, q, k: s.where(q >= k, -s) + s.masked_fill(q < k, 0.25),
    "narrow_u8": lambda s, b, h, q, k: s + u8[q] * u8[k] + (u8[q] - 7) + (u8[k] + 300) + ~u8[q] + -u8[k] + (u8[q] << 3),
    "narrow_signed": lambda s, b, h, q, k: (
        s + i8[q] * i8[k] + i16[q] * i16[k] + i8[q] * u8[k] + i8[q] ** 2
        + i8[k].abs()),
    "narrow_compared": lambda s, b, h, q, k: s + (u8[q] < 300) + (u8[q] > i8[k]) * 2 + (i16[q] // 7) + i8[q] % 5,
    "narrow_cast": lambda s, b, h, q, k: (
        s + (q * 77).to(torch.uint8) + (q * 77).byte() + (k * 50).to(torch.int8)
        + bits[q].short()),
    "division_of_ints": lambda s, b, h, q, k: s + q / (k + 1) + 1 / (q + 1) + 7 // (k + 1) + 7 % (k + 1),
    "shifts": lambda s, b, h, q, k: s + (1 << (q % 8)) + (bits[q] >> h) + ((q << 3) ^ k) + (bits[k] & 255 | 1),
    "embedding": lambda s, b, h, q, k: s + embedding(t5_bucket(q - k))[h],
    "t5": lambda s, b, h, q, k: s + embedding.weight[t5_bucket(torch.abs(q - k)), h],
    "module": module, "method": module.method,
    "function_apply": lambda s, b, h, q, k: 5.0 * Tanh.apply(s / 5.0),
    "function_apply_later": lambda s, b, h, q, k: 5.0 * TanhLater.apply(s / 5.0),
    "function_apply_taken_early": lambda s, b, h, q, k: early_tanh(s) + later_tanh(s),
    "defaults": scaled, "partial": functools.partial(scaled, factor=0.5, shift=scalar0),
    "in_place": sequential, "helper": lambda s, b, h, q, k: helper(s) + helper(-s), "loop": loop,
    "distance": lambda s, b, h, q, k: s - (coords[q] - coords[k]).pow(2).sum(-1).sqrt(),
    "norms": lambda s, b, h, q, k: (
        s - torch.linalg.vector_norm(coords[q] - coords[k])
        - (coords[q] - coords[k]).abs().max()),
    "dot": lambda s, b, h, q, k: (
        s + torch.dot(coords[q], coords[k]) + coords[q] @ coords[k]
        + (coords[q] * coords[k]).mean(-1)),
    "rbf": lambda s, b, h, q, k: s + torch.exp(-((q - k).unsqueeze(-1) - wide[h, q]).pow(2)).sum(dim=-1),
    "wide_index": lambda s, b, h, q, k: (
        s + row_bias[(q + torch.arange(3)) % S].sum()
        + wide[h, q, torch.tensor([0, 2])].prod()),
    "stacked": lambda s, b, h, q, k: torch.stack([s, s * 2, s * 3]).amax(0) + torch.stack([q, k])[h % 2],
    "new_tensors": lambda s, b, h, q, k: (
        s + s.new_zeros(()) + q.new_ones(1).sum() + torch.full_like(s, 2.5)
        + torch.zeros_like(q)),
    "activations": silu_mul,
    "nested_captures": lambda s, b, h, q, k: s + row_bias[offsets[doc[q]]] + table[h, offsets[doc[k]] + 1],
    "unused_nan": lambda s, b, h, q, k: torch.where(s > 0, torch.log(s), s),
    "reciprocal": lambda s, b, h, q, k: 1 / s + s.reciprocal() + torch.rsqrt(s * s + 1) + torch.square(q),
    "logic_functions": lambda s, b, h, q, k: (
        s + torch.logical_and(q, k) + torch.logical_not(q)
        + torch.logical_xor(q > 1, k > 1)),
    "nan_handling": lambda s, b, h, q, k: (
        torch.where(torch.isnan(s / 0 * 0), 1.0, s) + torch.isinf(s / 0)
        + torch.nan_to_num(s)),
    "inverse_trig": lambda s, b, h, q, k: (
        torch.atan(s) + torch.asin(s.tanh()) + torch.acos(s.tanh())
        + torch.atan2(s, q - 3.5)),
    "hyperbolic": lambda s, b, h, q, k: (
        torch.sinh(s) + torch.cosh(s) + torch.asinh(s) + torch.atanh(s.tanh())
        + torch.erf(s)),
    "bucketize": lambda s, b, h, q, k: s + torch.bucketize(q, torch.tensor([1, 4, 9])),
    "lerp_addcmul": lambda s, b, h, q, k: (
        torch.lerp(s, s * 2, 0.25) + torch.addcmul(s, s, s, value=0.5)
        + torch.add(s, q, alpha=2)),
    "numpy_numbers": lambda s, b, h, q, k: (
        s * np_half + q * np_half + (q + np_three) // 2 + q * np_single + Level.TWO * q),
    "shape_methods": lambda s, b, h, q, k: (
        s.reshape(()) + s.view(1).squeeze() + s.expand(3).sum() + len(s.shape)
        + s.dim()),
    "builtins": lambda s, b, h, q, k: s + abs(s) + (-q) // 3,
}
MASK = {
    "causal": lambda b, h, q, k: q >= k,
    "noop": noop_mask,
    "always": lambda b, h, q, k: True,
    "window": lambda b, h, q, k: (q - k).abs() <= 3,
    "sliding_causal": lambda b, h, q, k: (q >= k) & (q - k <= 4),
    "prefix": lambda b, h, q, k: (k < 4) | (q >= k),
    "prefix_per_batch": lambda b, h, q, k: (k < lengths[b]) | (q >= k),
    "documents": lambda b, h, q, k: doc[q] == doc[k],
    "documents_causal": lambda b, h, q, k: (doc[q] == doc[k]) & (q - offsets[doc[q]] >= k - offsets[doc[k]]),
    "documents_per_batch": lambda b, h, q, k: doc2[b, q] == doc2[b][k],
    "padding": lambda b, h, q, k: (q < lengths[b]) & (k < lengths[b]),
    "and_masks": and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 5),
    "or_masks": or_masks(lambda b, h, q, k: q == k, lambda b, h, q, k: k < 2),
    "nested_masks": and_masks(or_masks(lambda b, h, q, k: k < 2, lambda b, h, q, k: q >= k), noop_mask),
    "dilated": lambda b, h, q, k: ((q - k) % 3 == 0) & ~(q < k),
    "strided": lambda b, h, q, k: (q // 4 == k // 4) | (k % 4 == 3),
    "natten": natten, "natten_partial": functools.partial(natten, size=1),
    "per_head": lambda b, h, q, k: torch.where(h % 2 == 0, q >= k, q <= k),
    "where_false_true": lambda b, h, q, k: torch.where(q > k, False, True),
    "flags": lambda b, h, q, k: flags[q] & ~flags[k] | (q == k),
    "flags_xor": lambda b, h, q, k: flags[q] ^ flags[k],
    "flags_added": lambda b, h, q, k: flags[q] + flags[k],
    "allowed_any": lambda b, h, q, k: (landmarks[None, :] == k).any(-1).any() | allowed[q, :2].any(dim=-1),
    "allowed_all": lambda b, h, q, k: allowed[q].all() | (allowed[k] & allowed[q]).any(dim=-1),
    "bitset": lambda b, h, q, k: (bits[q] >> k) & 1 == 1,
    "chunked": lambda b, h, q, k: (q // 4 == k // 4) & (q >= k),
    "to_bool": lambda b, h, q, k: ((q - k) & 1).bool() | (q * 0).to(torch.bool),
    "float_compare": lambda b, h, q, k: (q > 2.5) & (k / 2 <= 3.25) & (q != 7),
    "u8_compare": lambda b, h, q, k: u8[q] > u8[k],
    "bool_compare": lambda b, h, q, k: (q > 3) == (k > 3),
    "tree": lambda b, h, q, k: (landmarks[q % 4] == k) | (q == k),
}


def pairs(seed, n=40):
    draw = random.Random(seed)
    for _ in range(n):
        score = draw.choice([draw.gauss(0, 2), 0.75, -1.25])
        yield score, draw.randrange(B), draw.randrange(H), draw.randrange(S), draw.randrange(S)


def ints(*values):
    return [torch.tensor(v, dtype=torch.int32) for v in values]


@pytest.mark.parametrize("name", SCORE)
def test_score(name):
    mod = SCORE[name]
    run = evaluator(trace(mod, dtype=torch.float64))
    for s, b, h, q, k in pairs(name):
        with torch.no_grad():
            expect = mod(torch.tensor(s, dtype=torch.float64), *ints(b, h, q, k))
        assert same(run(s, b, h, q, k)[0], expect, 2e-6), (name, s, b, h, q, k)


@pytest.mark.parametrize("name", MASK)
def test_mask(name):
    mod = MASK[name]
    run = evaluator(trace(None, mod))
    for _, b, h, q, k in pairs(name):
        assert run(0.0, b, h, q, k)[1] == bool(mod(*ints(b, h, q, k))), (name, b, h, q, k)


def test_counts():
    assert len(SCORE) + len(MASK) >= 60


def test_both_together():
    traced = trace(SCORE["alibi"], MASK["documents"])
    assert len(traced.tensors) == 2 and traced.tensors[0] is slopes and traced.tensors[1] is doc
    assert traced.program.text.count("mask =") == 1
