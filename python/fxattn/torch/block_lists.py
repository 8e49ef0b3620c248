# SPDX-License-Identifier: Apache-2.0
"""Computes the lists of blocks of a large mask. The lists of blocks equal those of PyTorch's create_block_mask, which
evaluates all pairs at once and allocates 34 GB at 65,536 rows and keys.

The C library classifies rectangles of blocks as empty, full or mixed. The mask_mod is evaluated only in blocks that
stay mixed, a bounded number of pairs at a time.
"""
import ctypes
from typing import Any, Callable, List, Tuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from .. import _abi
from .._library import lib
from ..trace import trace
from .dtypes import DTYPES

PAIRS_AT_ONCE = 1 << 22  # pairs per evaluation; PyTorch's evaluation takes about 80 MB for this number
_EMPTY, _MIXED, _FULL = _abi.TILE_EMPTY, _abi.TILE_MIXED, _abi.TILE_FULL
_INT32_MAX = (1 << 31) - 1


class _Classes:
    """Classifies rectangles of (q, k) pairs by calls of the C library. A _Classes holds references to the captured
    tensors, because the C library reads the memory of the tensors."""

    def __init__(self, mask_mod: Callable[..., Any], lengths: Tuple[int, int], heads: int) -> None:
        traced = trace(None, mask_mod)
        self.program, self.tensors = traced.program, traced.tensors
        self.depends = set(self.program.properties()["mask_depends"])
        self.params = (ctypes.c_double * max(1, len(traced.params)))(*map(float, traced.params))
        self.views = (_abi.View * max(1, len(self.tensors)))()
        self.ranges = (_abi.TensorRange * max(1, len(self.tensors)))()
        for view, tensor, i in zip(self.views, self.tensors, range(len(self.tensors))):
            if tensor.device.type == "cpu" and tensor.dtype in DTYPES and tensor.dim() <= len(view.size):
                view.data, view.dtype, view.rank = tensor.data_ptr(), DTYPES[tensor.dtype], tensor.dim()
                view.size[:tensor.dim()], view.stride[:tensor.dim()] = tensor.shape, tensor.stride()
                self.ranges[i] = lib.tensor_scan(ctypes.byref(view))
        self.box = _abi.TileBounds()
        for at, value in ((_abi.INPUT_Q_LEN, lengths[0]), (_abi.INPUT_K_LEN, lengths[1]), (_abi.INPUT_HEADS, heads)):
            self.box.lo[at] = self.box.hi[at] = value

    def of(self, b: int, h: int, rows: Tuple[int, int], keys: Tuple[int, int]) -> int:
        for at, (low, high) in ((_abi.INPUT_B, (b, b)), (_abi.INPUT_H, (h, h)), (_abi.INPUT_Q, rows),
                                (_abi.INPUT_K, keys), (_abi.INPUT_Q_ROW, rows), (_abi.INPUT_K_ROW, keys)):
            self.box.lo[at], self.box.hi[at] = low, high
        return int(lib.program_classify(self.program._handle, ctypes.byref(self.box), self.params, self.ranges))


def _fill(table: Tensor, classes: _Classes, place: Tuple[int, int], size: Tuple[int, int],
          lengths: Tuple[int, int]) -> None:
    """Writes the classes of the blocks of one (b, h) into `table` [rows, columns]. Mixed rectangles are halved until
    they are single blocks."""
    left = [(0, table.shape[0], 0, table.shape[1])]
    while left:
        top, bottom, first, end = left.pop()
        found = classes.of(*place, (top * size[0], min(bottom * size[0], lengths[0]) - 1),
                           (first * size[1], min(end * size[1], lengths[1]) - 1))
        if found != _MIXED:
            table[top:bottom, first:end] = found
        elif bottom - top > 1 and bottom - top >= end - first:
            half = (top + bottom) // 2
            left += [(top, half, first, end), (half, bottom, first, end)]
        elif end - first > 1:
            half = (first + end) // 2
            left += [(top, bottom, first, half), (top, bottom, half, end)]


def _table(mask_mod: Callable[..., Any], batch: int, heads: int, lengths: Tuple[int, int], size: Tuple[int, int]
           ) -> Tensor:
    """Returns the class of each block, uint8 [B,H,rows,columns], without evaluating the mask_mod. Blocks that the
    library cannot classify are mixed."""
    shape = [-(-length // block) for length, block in zip(lengths, size)]
    table = torch.full((batch, heads, *shape), _MIXED, dtype=torch.uint8)
    if max(lengths) > _INT32_MAX:
        return table
    try:
        classes = _Classes(mask_mod, lengths, heads)
    except Exception:  # no trace: PyTorch evaluates the mask_mod, or raises its own error
        return table
    for b in range(batch if "b" in classes.depends else 1):
        for h in range(heads if "h" in classes.depends else 1):
            _fill(table[b, h], classes, (b, h), size, lengths)
    if "b" not in classes.depends:
        table[1:] = table[:1]
    if "h" not in classes.depends:
        table[:, 1:] = table[:, :1]
    return table


def _evaluate(mask_mod: Callable[..., Any], places: Tensor, size: Tuple[int, int], lengths: Tuple[int, int]
          ) -> Tuple[Tensor, Tensor]:
    """Evaluates the mask_mod in the blocks at `places` [n, 4] = (b, h, row, column). Returns two bool tensors [n]: the
    first is True for each block in which any pair is attended, the second for each block in which all pairs are
    attended."""
    b_of, h_of, row_of, column_of = places.unbind(1)

    def shown(n: Any, _: Any, q_idx: Any, kv_idx: Any) -> Any:
        q, k = row_of[n] * size[0] + q_idx, column_of[n] * size[1] + kv_idx
        inside = (q < lengths[0]) & (k < lengths[1])
        return inside & mask_mod(b_of[n], h_of[n], q.clamp(max=lengths[0] - 1), k.clamp(max=lengths[1] - 1))

    mask = create_mask(shown, len(places), 1, *size, device=str(places.device)).flatten(1)
    if mask.dtype != torch.bool:
        raise AssertionError("mask.dtype must be torch.bool, got %s" % mask.dtype)
    return mask.any(1), mask.all(1)


def block_lists(mask_mod: Callable[..., Any], batch: int, heads: int, lengths: Tuple[int, int], size: Tuple[int, int],
                device: Any) -> BlockMask:
    """Returns the BlockMask of a mask_mod, with its lists of blocks."""
    table = _table(mask_mod, batch, heads, lengths, size).to(device)
    some, full = table == _FULL, table == _FULL
    for side, (length, block) in enumerate(zip(lengths, size)):
        if length % block:  # a last block that ends beyond the length is not full, as in PyTorch
            full.select(2 + side, -1).fill_(False)
    places = (table == _MIXED).nonzero()
    for part in places.split(max(1, PAIRS_AT_ONCE // (size[0] * size[1]))) if len(places) else ():
        at = tuple(part.unbind(1))
        some[at], full[at] = _evaluate(mask_mod, part, size, lengths)
    lists: List[Tensor] = []
    for blocks in (some & ~full, full):
        lists += [blocks.sum(-1, dtype=torch.int32),
                  torch.argsort(blocks.int(), dim=-1, descending=True, stable=True).to(torch.int32)]
    some_count, some_at, full_count, full_at = lists
    return BlockMask.from_kv_blocks(some_count, some_at, full_count, full_at, BLOCK_SIZE=size, mask_mod=mask_mod,
                                    seq_lengths=lengths)
