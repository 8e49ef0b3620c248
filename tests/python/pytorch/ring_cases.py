# SPDX-License-Identifier: Apache-2.0
"""Problems for ring_attention, and the worker that four processes run (test_ring.py): each computes its part of every case
and writes it to a file. Nothing here is random but by seed, so that the test has the same numbers."""
import datetime
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

import parallel_models

import fxattn.torch as fx

SIZE = 4  # processes
GROUPS = ((0,), (1, 3), (0, 2, 3))
PAIR = (0, 1)  # of which models train


class Case(NamedTuple):
    layout: str
    mods: str  # a name in MODS
    dtype: torch.dtype = torch.float32
    sq: int = 32
    sk: int = 32
    heads: Tuple[int, int] = (4, 2)
    sink: bool = False
    dropout_p: float = 0.0
    keywords: str = ""  # a name in KEYWORDS


def _plain(learned: Sequence[Tensor]) -> Tuple[Any, Any]:
    return None, None


def _capped(learned: Sequence[Tensor]) -> Tuple[Any, Any]:
    return lambda s, b, h, i, j: 3.0 * torch.tanh(s / 3.0), lambda b, h, i, j: i >= j


def _learned(learned: Sequence[Tensor]) -> Tuple[Any, Any]:
    slopes, table, gain = learned
    return (lambda s, b, h, i, j: s - slopes[h] * (i - j).abs() + gain * table[h, (i * 5 + j * 3) % 16],
            lambda b, h, i, j: (i - j).abs() < 9)


def _documents(learned: Sequence[Tensor]) -> Tuple[Any, Any]:
    ids = torch.arange(64) // 11
    return None, lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j)


MODS: Dict[str, Callable[[Sequence[Tensor]], Tuple[Any, Any]]] = {
    "plain": _plain, "capped": _capped, "learned": _learned, "documents": _documents}

def _ready(learned: Sequence[Tensor]) -> Tuple[Any, Any]:
    return None, lambda b, h, i, j: (i >= j) & (i - j <= 5)


def _aligned(learned: Sequence[Tensor]) -> Tuple[Any, Any]:
    return None, lambda b, h, i, j: (j <= i + 24) & (j >= i + 24 - 9)


MODS.update(ready=_ready, aligned=_aligned)
# What a call is given in place of the functions, which then say what is meant.
KEYWORDS: Dict[str, Callable[[Sequence[Tensor]], Dict[str, Any]]] = {
    "ready": lambda learned: {"is_causal": True, "window": (5, None)},
    "aligned": lambda learned: {"is_causal": True, "window": (9, 3), "bottom_right": True},
    "far": lambda learned: {"window": (2**31 - 4, 2**31 - 1)},
    "far, aligned": lambda learned: {"window": (2**40, 2**31 - 4), "bottom_right": True},
    "capped, by text": lambda learned: {"score_mod": "cap * tanh(score / cap)", "params": {"cap": 3.0},
                                        "is_causal": True},
    "learned, by text": lambda learned: {
        "score_mod": "score - slopes[h] * abs(q - k) + gain * table[h, (q * 5 + k * 3) % 16]",
        "mask_mod": "abs(q - k) < 9", "params": {"gain": learned[2]},
        "tensors": {"slopes": learned[0], "table": learned[1]}},
}

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
CASES: Dict[str, Case] = {
    **{"capped, %s" % layout: Case(layout, "capped") for layout in ("contiguous", "zigzag", "striped")},
    **{"learned, %s" % layout: Case(layout, "learned", F64) for layout in ("contiguous", "zigzag", "striped")},
    "learned, f32": Case("zigzag", "learned", sq=16, sk=40),
    "bf16": Case("zigzag", "capped", BF16),
    "plain": Case("contiguous", "plain", heads=(3, 3)),
    "documents": Case("contiguous", "documents"),
    "uneven pieces": Case("contiguous", "capped", F64, sq=29, sk=27),
    "uneven stripes": Case("striped", "learned", F64, sq=30, sk=33),
    "fewer keys than processes": Case("contiguous", "plain", F64, sq=8, sk=3),
    "rows without keys": Case("zigzag", "learned", F64, sq=48, sk=16),
    "sinks": Case("zigzag", "capped", F64, sink=True),
    "dropout": Case("striped", "learned", F64, sink=True, dropout_p=0.4),
    "causal and window": Case("zigzag", "ready", F64, keywords="ready"),
    "aligned": Case("contiguous", "aligned", F64, sq=16, sk=40, keywords="aligned"),
    "window of 32 bits": Case("zigzag", "plain", keywords="far"),
    "window of 64 bits, aligned": Case("contiguous", "plain", sq=16, sk=40, keywords="far, aligned"),
    "capped, by text": Case("striped", "capped", keywords="capped, by text"),
    "learned, by text": Case("zigzag", "learned", F64, keywords="learned, by text"),
}
EMPTY: Dict[str, Case] = {"no rows": Case("zigzag", "learned", sq=0, sk=16),
                          "no keys": Case("zigzag", "learned", sq=16, sk=0),
                          "no heads": Case("contiguous", "capped", heads=(0, 0)),
                          "heads of keys alone": Case("striped", "plain", heads=(0, 2))}


def inputs(case: Case) -> Tuple[List[Tensor], List[Tensor], Optional[Tensor], Tensor, Tensor]:
    """q, k, v of the whole; what is learned; sink; directions of out and lse."""
    g = torch.Generator().manual_seed(len(case.mods) + case.sq)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g).to(case.dtype)

    h, hkv = case.heads
    qkv = [draw(2, h, case.sq, 8), draw(2, hkv, case.sk, 8), draw(2, hkv, case.sk, 6)]
    learned = [draw(h).abs() * 0.1, draw(h, 16), draw(1)[0]] if case.mods == "learned" else []
    return qkv, learned, draw(h) if case.sink else None, draw(2, h, case.sq, 6), draw(2, h, case.sq)


def run(case: Case, rank: int) -> Dict[str, Any]:
    """What one process finds: out, lse, gradients of its parts and of what all share; how many parts it computed."""
    qkv, learned, sink, dout, dlse = inputs(case)
    q, k, v = (fx.split_sequence(x, rank, SIZE, case.layout).requires_grad_() for x in qkv)
    shared = [x.requires_grad_() for x in (*learned, *([] if sink is None else [sink]))]
    before = fx.cache_stats()["runs"]
    mods = KEYWORDS[case.keywords](learned) if case.keywords else dict(zip(("score_mod", "mask_mod"),
                                                                          MODS[case.mods](learned)))
    out, lse = fx.ring_attention(q, k, v, order=case.layout, sinks=sink, return_lse=True, dropout_p=case.dropout_p,
                                 seed=77 if case.dropout_p else None, **mods)
    parts = fx.cache_stats()["runs"] - before
    dout, dlse = (fx.split_sequence(x, rank, SIZE, case.layout) for x in (dout, dlse))
    # rows that attend to nothing have lse -inf, of which nothing is to be added up
    loss = (out * dout).sum() + (torch.where(lse.isfinite(), lse, 0.0) * dlse.to(lse.dtype)).sum()
    grads = torch.autograd.grad(loss, [q, k, v, *shared])
    return {"out": out.detach(), "lse": lse.detach(), "parts": parts, "dq": grads[0], "dk": grads[1], "dv": grads[2],
            "shared": grads[3:]}


def refusals(rank: int) -> List[str]:
    """Messages of calls that do not fit, on this process."""
    x = torch.zeros(1, 2, 4, 8)
    odd = torch.zeros(1, 2, 3 + 2 * (rank == 1), 8)
    calls = (
        lambda: fx.ring_attention(odd, odd, odd, order="zigzag"),
        lambda: fx.ring_attention(odd, odd, odd, order="striped"),
        lambda: fx.ring_attention(*[x[:, :1 + (rank > 1)]] * 3),
        lambda: fx.ring_attention(x, x, x, lambda s, b, h, i, j: s + j if rank == 2 else s + i),
        lambda: fx.ring_attention(x.clone().requires_grad_(rank == 3), x, x),
        lambda: fx.ring_attention(x, x, x, order="diagonal"),
        lambda: fx.ring_attention(x, x[:, :, :, :4], x),
        lambda: fx.ring_attention(x, x, x, sinks=torch.zeros(3)),
        lambda: fx.ring_attention(x, x, x, bottom_right=True),
        lambda: fx.ring_attention(x, x, x, is_causal=rank == 1),
        lambda: fx.ring_attention(x, x, x, "score * gain"),
        lambda: fx.ring_attention(x, x[:, :0], x[:, :0]),
        lambda: fx.ring_attention(x, x, x, is_causal="yes"),
        lambda: fx.ring_attention(x, x, x, is_causal=True, window=(-2, 0)),
    )
    found = []
    for call in calls:
        try:
            call()
            found.append("")
        except (ValueError, TypeError) as error:
            found.append(str(error))
    return found


def alone(rank: int) -> List[str]:
    """What process 1 alone gives wrongly is an error on all of them, at once."""
    x, odd = torch.zeros(1, 2, 4, 8), rank == 1
    calls = (
        lambda: fx.ring_attention(x, x, x, lambda s, b, h, i, j: s / (0 if odd else 1) if not odd else 1 // 0),
        lambda: fx.ring_attention(*[x[0] if odd else x] * 3),
        lambda: fx.ring_attention(None if odd else x, x, x),
        lambda: fx.ring_attention(x, x, x, sinks=torch.zeros(3 if odd else 2)),
        lambda: fx.ring_attention(x, x, x, sinks=torch.zeros(2, dtype=torch.float64 if odd else torch.float32)),
        lambda: fx.ring_attention(x, x.half() if odd else x, x),
        lambda: fx.ring_attention(*[x.to(torch.complex64) if odd else x] * 3),
        lambda: fx.ring_attention(x, x, x, dropout_p=0.5 if odd else 0.0),
        lambda: fx.ring_attention(x, x, x, dropout_p=0.5, seed=3 if odd else None),
        lambda: fx.ring_attention(x, x, x, dropout_p=0.5, seed=3 if odd else 4),
        lambda: fx.ring_attention(*[torch.zeros(1, 1, 2, 600)] * 3),
        lambda: fx.ring_attention(*[x + rank] * 3, order="striped"),
    )
    found = []
    for call in calls:
        try:
            call()
            found.append("")
        except Exception as error:
            found.append("%s: %s" % (type(error).__name__, error))
    return found


def shared_alone(rank: int) -> List[Tensor]:
    """Gradients where nothing but what all share needs one: a sink, and as many captured tensors as there may be."""
    g = torch.Generator().manual_seed(3)
    q, k, v = (fx.split_sequence(torch.randn(1, 2, 8, 8, generator=g), rank, SIZE) for _ in range(3))
    sink = torch.zeros(2, requires_grad=True)
    many = [torch.full((), 1 + n / 1000, requires_grad=True) for n in range(64)]

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        for one in many:
            s = s * one
        return s

    one, = torch.autograd.grad(fx.ring_attention(q, k, v, sinks=sink).square().sum(), sink)
    return [one, *torch.autograd.grad(fx.ring_attention(q, k, v, score).square().sum(), many)]


def small_group(group: Any, rank: int, size: int) -> Dict[str, Any]:
    """In a group of fewer processes: out and gradients, one of them of a captured tensor."""
    g = torch.Generator().manual_seed(2)
    whole = [torch.randn(1, heads, 12, 8, generator=g, dtype=F64) for heads in (4, 2, 2)]
    slopes = torch.rand(4, generator=g, dtype=F64).requires_grad_()
    found = {}
    for layout in ("contiguous", "zigzag", "striped"):
        parts = [fx.split_sequence(x, rank, size, layout).requires_grad_() for x in whole]
        out = fx.ring_attention(*parts, lambda s, b, h, i, j: s - slopes[h] * (i - j), lambda b, h, i, j: i >= j,
                                order=layout, group=group)
        grads = torch.autograd.grad(out.sin().sum(), [*parts, slopes])
        found[layout] = [out.detach(), *grads]
    return found


def drawn_dropout(rank: int) -> Tensor:
    """Without a seed: the output of a call in which values tell which pairs were dropped."""
    g = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 2, 16, 8, generator=g) for _ in range(2))
    v = torch.eye(16).expand(1, 2, 16, 16)
    torch.manual_seed(rank)  # processes have generators of their own
    return fx.ring_attention(*(fx.split_sequence(x, rank, SIZE) for x in (q, k, v)), dropout_p=0.5)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=SIZE,
                            timeout=datetime.timedelta(seconds=60))
    found: Dict[str, Any] = {name: run(case, rank) for name, case in (*CASES.items(), *EMPTY.items())}
    found["refusals"], found["drawn"] = refusals(rank), drawn_dropout(rank)
    found["alone"], found["shared alone"] = alone(rank), shared_alone(rank)
    for ranks in GROUPS:
        group = dist.new_group(ranks)
        if rank in ranks:
            found[ranks] = small_group(group, ranks.index(rank), len(ranks))
    pair = dist.new_group(PAIR)
    if rank in PAIR:
        found.update(parallel_models.found(PAIR.index(rank), len(PAIR), pair))
    torch.save(found, os.path.join(folder, "found%d.pt" % rank))
    dist.destroy_process_group()
