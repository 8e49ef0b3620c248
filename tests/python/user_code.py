# SPDX-License-Identifier: Apache-2.0
"""A user's file, for type checkers (test_types.py): not run. Lines that must be refused say so."""
from typing import Tuple

import numpy as np
from torch import Tensor

import fxattn
import fxattn.numpy
import fxattn.torch
from fxattn.torch import (AuxRequest, DotProductAttention, MultiheadAttention, and_masks, attention, create_block_mask,
                          flex_attention, ring_attention)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - 0.1 * (q - k).abs()


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def uses_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = flex_attention(q, k, v, alibi, create_block_mask(and_masks(causal), None, None, 8, 8)).sum()
    both, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True))
    whole: Tuple[Tensor, Tensor] = flex_attention(q, k, v, return_lse=True)
    plain: Tensor = attention(q, k, v, "score * 2", is_causal=True, window=(4, None), params={"cap": 20.0})
    wide = attention(q, k, v, alibi, causal, return_lse=True, return_row_max=True)
    assert wide.lse is not None and aux.lse is not None
    ring = ring_attention(q, k, v, alibi, order="zigzag").sum() + ring_attention(q, k, v, return_lse=True)[1].sum()
    layer = MultiheadAttention(64, 8, attn_mask_type="causal")
    core = DotProductAttention(8, 8, softcap=20.0)
    attention(q, k, v, windows=3)  # type: ignore[call-overload]
    flex_attention(q, k)  # type: ignore[call-overload]
    stats: int = fxattn.torch.cache_stats()["builds"]
    return out + both + whole[1] + plain + wide.out + wide.lse + ring + layer(q) + core(q, k, v) + stats


def uses_numpy(q: "np.ndarray") -> float:
    out = fxattn.numpy.attention(q, q, q, "score * 2", is_causal=True).sum()
    _, lse = fxattn.numpy.attention(q, q, q, return_lse=True)
    _, pullback = fxattn.numpy.vjp(q, q, q)
    dq, _, _ = pullback(q)
    found: fxattn.Explanation = fxattn.explain("score", (1, 1, 8, 8))
    names = [engine.engine for engine in found.engines] + [found.program.text]
    program: fxattn.Program = fxattn.program(alibi, causal)
    program.hash = "x"  # type: ignore[misc]
    try:
        fxattn.Program("score = ")
    except fxattn.ProgramError as error:
        names.append("%d %s" % (error.line, error.status))
    return float(out + lse.sum() + dq.sum() + len(names))
