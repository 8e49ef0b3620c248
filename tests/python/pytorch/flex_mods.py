# SPDX-License-Identifier: Apache-2.0
"""Score and mask functions as people write them for FlexAttention: biases, soft caps, windows, documents, learned
tables.

Each entry of MODS makes, for a problem size, what flex_attention is given: a score_mod or None, a mask_mod or None, and
the tensors in them that want gradients. All of them work on scalars of a trace and, by broadcasting, on whole index
tensors, which is how tests compute what is right.
"""
import functools
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn


class Size(NamedTuple):
    b: int
    h: int
    q: int
    k: int
    dtype: torch.dtype  # that values are rounded to
    exact: bool = False  # store them in f64 all the same, so that gradients are not rounded

    def stored(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).to(torch.float64 if self.exact else self.dtype)

    def randn(self, *shape: int, seed: int = 1, learned: bool = False) -> Tensor:
        x = self.stored(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
        return x.requires_grad_() if learned else x


class Mods(NamedTuple):
    score: Optional[Callable[..., Any]] = None
    mask: Optional[Callable[..., Any]] = None
    learned: List[Tensor] = []


MODS: Dict[str, Callable[[Size], Mods]] = {}


def mods(make: Callable[[Size], Mods]) -> Callable[[Size], Mods]:
    MODS[make.__name__] = make
    return make


def simple(name: str, score: Optional[Callable[..., Any]] = None, mask: Optional[Callable[..., Any]] = None) -> None:
    MODS[name] = lambda size: Mods(score, mask)


# ---- Functions of the score and the indices alone --------------------------------------------------------------------

simple("identity", lambda s, b, h, q, k: s)
simple("times_two", lambda s, b, h, q, k: s * 2)
simple("squared", lambda s, b, h, q, k: s * s)
simple("causal_by_score", lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")))
simple("inverse_causal_by_score", lambda s, b, h, q, k: torch.where(q <= k, s, -float("inf")))
simple("relative_bias", lambda s, b, h, q, k: s + (q - k) * 0.05)
simple("relative_causal", lambda s, b, h, q, k: torch.where(q >= k, s + (q - k) * 0.05, -float("inf")))
simple("alibi", lambda s, b, h, q, k: s + (k - q) * torch.exp2(-((h + 1) * 8.0 / 4)))
simple("alibi_symmetric", lambda s, b, h, q, k: s - (q - k).abs() * 2.0 ** -(h + 1))
simple("softcap_tanh", lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0))
simple("trigonometry", lambda s, b, h, q, k: torch.sin(torch.cos(s)) + torch.tan(b * 0.1))
simple("two_branches", lambda s, b, h, q, k: torch.cos(s) * torch.sin(s) + torch.tan(b * 0.1))
simple("even_keys_dampened", lambda s, b, h, q, k: torch.where(k % 2 == 0, s, s * 0.5))
simple("head_temperature", lambda s, b, h, q, k: s / (1.0 + h))
simple("log_distance", lambda s, b, h, q, k: s - torch.log((q - k).abs() + 1.0))
simple("distance_squared", lambda s, b, h, q, k: s - ((q - k) / 16.0) ** 2)
simple("sigmoid_gate", lambda s, b, h, q, k: s * torch.sigmoid(s))
simple("relu_scores", lambda s, b, h, q, k: torch.relu(s) - 0.1)
simple("clamped", lambda s, b, h, q, k: torch.clamp(s, -1.5, 1.5))
simple("clamp_method", lambda s, b, h, q, k: s.clamp(min=-1.0).clamp(max=2.0))
simple("minimum_of_two", lambda s, b, h, q, k: torch.minimum(s, 1.0 - s * 0.25))
simple("exp_then_log", lambda s, b, h, q, k: torch.log(torch.exp(s) + 1.0))
simple("activation_by_log", lambda s, b, h, q, k: torch.log(nn.functional.silu(s) + 1.0))
simple("square_root", lambda s, b, h, q, k: torch.sqrt(s * s + 1.0))
simple("gelu_by_erf", lambda s, b, h, q, k: 0.5 * s * (1.0 + torch.erf(s / math.sqrt(2.0))))
simple("floats_and_casts", lambda s, b, h, q, k: s + (q.float() - k.to(torch.float32)) / 64.0)
simple("floor_divided_blocks", lambda s, b, h, q, k: torch.where(q // 4 == k // 4, s, s - 1.0))
simple("batch_dependent_sign", lambda s, b, h, q, k: torch.where(b % 2 == 0, s, -s))
simple("checkerboard", lambda s, b, h, q, k: torch.where((q + k) % 2 == 0, s - 1.0, s + 1.0))
simple("constant_row", lambda s, b, h, q, k: s * 0.0 + (q + k) * 0.01)
simple("nested_where", lambda s, b, h, q, k: torch.where(
    q > k, torch.where(q - k > 8, s - 2.0, s), torch.where(h > 1, s, -s)))

# ---- Masks -----------------------------------------------------------------------------------------------------------

simple("causal", mask=lambda b, h, q, k: q >= k)
simple("sliding_window", mask=lambda b, h, q, k: (q >= k) & (q - k <= 9))
simple("local_both_sides", mask=lambda b, h, q, k: (q - k).abs() <= 5)
simple("prefix_lm", mask=lambda b, h, q, k: (k < 7) | (q >= k))
simple("dilated_window", mask=lambda b, h, q, k: ((q - k).abs() <= 12) & ((q - k) % 2 == 0))
simple("strided", mask=lambda b, h, q, k: (q % 5 == k % 5) | (k == 0))
simple("global_tokens", mask=lambda b, h, q, k: (k < 3) | (q < 3) | (q - k).abs().le(4))
simple("block_causal", mask=lambda b, h, q, k: q // 8 >= k // 8)
simple("head_windows", mask=lambda b, h, q, k: (q - k).abs() <= (h + 1) * 3)
simple("not_diagonal", mask=lambda b, h, q, k: ~(q == k) | (q == 0))
simple("causal_with_softcap", lambda s, b, h, q, k: 3.0 * torch.tanh(s / 3.0), lambda b, h, q, k: k <= q)
simple("upper_left_quarter", mask=lambda b, h, q, k: torch.logical_and(q < 16, k < 16))
simple("nothing_for_some_rows", mask=lambda b, h, q, k: (q > 4) & (k <= q))


@mods
def and_of_masks(size: Size) -> Mods:
    from fxattn.torch import and_masks
    return Mods(mask=and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 11))


@mods
def or_of_masks(size: Size) -> Mods:
    from fxattn.torch import or_masks
    return Mods(mask=or_masks(lambda b, h, q, k: k < 5, lambda b, h, q, k: q == k))


@mods
def document_mask(size: Size) -> Mods:
    document = torch.arange(max(size.q, size.k)) // 7
    return Mods(mask=lambda b, h, q, k: (document[q] == document[k]) & (q >= k))


@mods
def document_positions(size: Size) -> Mods:
    document, offsets = torch.arange(max(size.q, size.k)) // 7, torch.arange(40) * 7
    slopes = torch.tensor([0.5 ** (i + 1) for i in range(size.h)])

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        q_in, k_in = q - offsets[document[q]], k - offsets[document[k]]
        return s + slopes[h] * (k_in - q_in)

    return Mods(score, lambda b, h, q, k: document[q] == document[k])


@mods
def padding_by_length(size: Size) -> Mods:
    lengths = torch.arange(size.b) * 3 + size.k // 2
    return Mods(mask=lambda b, h, q, k: k < lengths[b])


@mods
def natten_2d(size: Size) -> Mods:
    width = 6

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ((q // width - k // width).abs() <= 2) & ((q % width - k % width).abs() <= 2)

    return Mods(mask=mask)


@mods
def window_held_inside(size: Size) -> Mods:
    width = 6

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        row, column = (q // width).clamp(1, width - 2), (q % width).clamp(1, width - 2)
        return ((row - k // width).abs() <= 1) & ((column - k % width).abs() <= 1) | (k == 0)

    return Mods(mask=mask)


@mods
def z_order(size: Size) -> Mods:
    """A window of a picture whose pixels lie along a curve: every second bit of an index is a coordinate."""
    def gathered(bits: Any) -> Any:
        bits = bits & 0x5555
        bits = (bits | (bits >> 1)) & 0x3333
        bits = (bits | (bits >> 2)) & 0x0F0F
        return (bits | (bits >> 4)) & 0x00FF

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ((gathered(q) - gathered(k)).abs() <= 1) & ((gathered(q >> 1) - gathered(k >> 1)).abs() <= 2)

    return Mods(mask=mask)


@mods
def noised_and_clean_halves(size: Size) -> Mods:
    half = (size.k + 1) // 2

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        q_noised, k_noised, q_block, k_block = q < half, k < half, q % half // 4, k % half // 4
        within = (q_block == k_block) & (q_noised == k_noised)
        return within | (q_block > k_block) & q_noised & ~k_noised | (q_block >= k_block) & ~q_noised & ~k_noised

    return Mods(mask=mask)


@mods
def tree_behind_a_prefix(size: Size) -> Mods:
    prefix, nodes = 5, max(size.k - 5, 1)
    ancestors = torch.eye(max(size.q, nodes), dtype=torch.bool)
    for node in range(1, len(ancestors)):
        ancestors[node] |= ancestors[(node - 1) // 2]

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k < prefix) | (k >= prefix) & ancestors[q, (k - prefix).clamp(min=0, max=nodes - 1)]

    return Mods(mask=mask)


@mods
def prefix_of_several_answers(size: Size) -> Mods:
    document = (torch.arange(max(size.q, size.k)) // 7).to(torch.int32)
    offsets, prefix_of = (torch.arange(40) * 7).to(torch.int32), (torch.arange(40) // 3 * 3).to(torch.int32)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        mine, prefix = document[q], prefix_of[document[q]]
        shared = (mine != prefix) & (k >= offsets[prefix]) & (k < offsets[prefix + 1])
        return (k >= offsets[mine]) & (q >= k) | shared

    return Mods(mask=mask)


@mods
def tiles_from_a_list(size: Size) -> Mods:
    tiles = (max(size.q, size.k) + 7) // 8
    drawn = torch.rand(size.b, size.h, tiles, tiles, generator=torch.Generator().manual_seed(4))
    chosen = drawn.argsort(-1)[..., :2].to(torch.int32)
    return Mods(mask=lambda b, h, q, k: (chosen[b, h, q // 8] == (k // 8).unsqueeze(-1)).any(dim=-1))


# ---- Captured tensors ------------------------------------------------------------------------------------------------

@mods
def head_offset(size: Size) -> Mods:
    w = size.randn(size.h, learned=True)
    return Mods(lambda s, b, h, q, k: s * w[h], learned=[w])


@mods
def full_bias(size: Size) -> Mods:
    bias = size.randn(size.b, size.h, size.q, size.k, learned=True)
    return Mods(lambda s, b, h, q, k: s + bias[b, h, q, k], learned=[bias])


@mods
def relative_table(size: Size) -> Mods:
    table = size.randn(size.h, size.q + size.k, learned=True)
    return Mods(lambda s, b, h, q, k: s + table[h, q - k + size.k], learned=[table])


@mods
def relative_clamped(size: Size) -> Mods:
    table = size.randn(17, learned=True)
    return Mods(lambda s, b, h, q, k: s + table[torch.clamp(q - k, -8, 8) + 8], learned=[table])


@mods
def per_query_gate(size: Size) -> Mods:
    gate = size.randn(size.b, size.h, size.q, learned=True)
    return Mods(lambda s, b, h, q, k: s * torch.sigmoid(gate[b, h, q]), learned=[gate])


@mods
def per_key_bias(size: Size) -> Mods:
    bias = size.randn(size.b, size.k, learned=True)
    return Mods(lambda s, b, h, q, k: s + bias[b, k], learned=[bias])


@mods
def one_tensor_twice(size: Size) -> Mods:
    table = size.randn(max(size.q, size.k), learned=True)
    return Mods(lambda s, b, h, q, k: s + table[k] - table[q] * 0.3, learned=[table])


@mods
def learned_scalar(size: Size) -> Mods:
    temperature = size.randn(learned=True)
    return Mods(lambda s, b, h, q, k: s * temperature, learned=[temperature])


@mods
def learned_softcap(size: Size) -> Mods:
    cap = size.stored(torch.tensor(4.0)).requires_grad_()
    return Mods(lambda s, b, h, q, k: cap * torch.tanh(s / cap), learned=[cap])


@mods
def strided_view(size: Size) -> Mods:
    store = size.randn(size.q * 2, size.h, learned=True)
    view = store[::2].t()
    return Mods(lambda s, b, h, q, k: s + view[h, q], learned=[store])


@mods
def expanded_view(size: Size) -> Mods:
    row = size.randn(1, size.k, learned=True)
    view = row.expand(size.q, size.k)
    return Mods(lambda s, b, h, q, k: s + view[q, k], learned=[row])


@mods
def computed_before(size: Size) -> Mods:
    raw = size.randn(size.h, learned=True)
    slopes = torch.exp2(-(raw if size.exact else raw.float()).exp())
    return Mods(lambda s, b, h, q, k: s + slopes[h] * (k - q), learned=[raw])


class _Bias(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bias = nn.Parameter(size.randn(size.h, max(size.q, size.k)))
        self.gain = nn.Parameter(size.stored(torch.tensor(0.7)))
        self.cap = 6.0

    def score(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.cap * torch.tanh((s + self.bias[h, (q - k).abs()] * self.gain) / self.cap)


@mods
def module_method(size: Size) -> Mods:
    module = _Bias(size)
    return Mods(module.score, learned=list(module.parameters()))


@mods
def partial_by_keyword(size: Size) -> Mods:
    w = size.randn(size.h, learned=True)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any, *, table: Tensor, gain: float) -> Any:
        return s + table[h] * gain

    return Mods(functools.partial(score, table=w, gain=2.0), learned=[w])


@mods
def small_integers(size: Size) -> Mods:
    kinds = (torch.arange(size.k) % 3).to(torch.int8)
    gains = size.randn(3, learned=True)
    return Mods(lambda s, b, h, q, k: s + gains[kinds[k].long()], learned=[gains])


@mods
def bool_table(size: Size) -> Mods:
    keep = torch.rand(size.q, size.k, generator=torch.Generator().manual_seed(3)) > 0.3
    keep[:, 0] = True
    return Mods(mask=lambda b, h, q, k: keep[q, k])


@mods
def rotary_part_beside(size: Size) -> Mods:
    """Scores of rows of their own, which keys share among heads, as latent attention adds them."""
    rows, keys = (size.randn(size.b, n, s, 6, seed=i, learned=True) for i, (n, s) in enumerate(((size.h, size.q),
                                                                                              (1, size.k))))
    return Mods(lambda s, b, h, q, k: s + 0.3 * (rows[b, h, q] * keys[b, h // size.h, k]).sum(-1), learned=[rows, keys])


@mods
def types_along_a_path(size: Size) -> Mods:
    """A mean of learned numbers of the edges of a path, as transformers of graphs have it."""
    g = torch.Generator().manual_seed(6)
    types = torch.randint(0, 5, (size.b, size.q, size.k, 3), generator=g, dtype=torch.int32)
    lengths = torch.randint(0, 4, (size.b, size.q, size.k), generator=g, dtype=torch.int32)
    table = size.randn(size.h, 3, 5, learned=True)
    hops = [table[:, n] for n in range(3)]

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        length, total = lengths[b, q, k], 0.0
        for n, hop in enumerate(hops):
            total = total + torch.where(length > n, hop[h, types[b, q, k, n]], 0.0)
        return s + total / torch.clamp(length, min=1)

    return Mods(score, learned=[table])


@mods
def cosines_of_distance(size: Size) -> Mods:
    last = size.k - 1
    waves = torch.cos((torch.arange(size.q + size.k) - last)[:, None] / 100.0 ** (torch.arange(8) / 8)).sum(-1)
    gains = size.h / (8.0 * torch.arange(1, size.h + 1))
    return Mods(lambda s, b, h, q, k: s + waves[q - k + last] * gains[h], lambda b, h, q, k: q >= k)
