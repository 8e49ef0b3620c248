# SPDX-License-Identifier: Apache-2.0
"""The shards of a sequence on the P processes of a group: the positions of local rows and keys, and a check whether a
mask leaves any pair between the rows of one process and the keys of another.

* contiguous: process r has the r-th part of the sequence. With the order "contiguous", the parts of the processes may
  have different lengths.
* zigzag: the sequence has 2 * P chunks; process r has the r-th chunk and the r-th from the end, so that causal masks
  give all processes the same work. With the order "zigzag", the parts of all processes have the same, even length.
* striped: process r of P processes has positions r, r + P, r + 2 * P, ... With the order "striped", the lengths of the
  parts differ by at most one; earlier processes have the longer parts.
"""
import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ... import _abi
from ..._errors import ArgumentError
from ..._library import lib
from ..._options import with_hints
from ..._program import Program

ORDERS = ("contiguous", "zigzag", "striped")
QUERIES, KEYS = 2, 3  # coordinates of maps in `config` (torch_call.h)
_TILE_EMPTY = _abi.TILE_EMPTY


class Segment(NamedTuple):
    """A range of `size` local indices from `begin` on, whose positions are base, base + step, base + 2 * step, ..."""

    begin: int
    base: int
    step: int
    size: int


class Shards:
    """The shards of one axis (rows or keys) of the entire sequence: their order, and the lengths on all processes."""

    def __init__(self, what: str, order: str, lengths: Sequence[int]) -> None:
        self.order, self.lengths, self.total = order, lengths, sum(lengths)
        if order == "zigzag" and (len(set(lengths)) > 1 or lengths[0] % 2):
            raise ArgumentError("order \"zigzag\" needs %s of one even length on all processes; their lengths are %s"
                                % (what, list(lengths)))
        dealt = [len(range(r, self.total, len(lengths))) for r in range(len(lengths))]
        if order == "striped" and list(lengths) != dealt:
            raise ArgumentError("order \"striped\" needs lengths of %s that differ by one at most, longer ones first; "
                                "they are %s" % (what, list(lengths)))

    def segments(self, rank: int) -> Tuple[Segment, ...]:
        """Returns the positions of the local indices of process `rank`, as segments."""
        count, size = self.lengths[rank], len(self.lengths)
        if self.order == "contiguous" or count == 0:
            return (Segment(0, sum(self.lengths[:rank]), 1, count),)
        if self.order == "striped":
            return (Segment(0, rank, size, count),)
        half = count // 2
        return (Segment(0, rank * half, 1, half), Segment(half, (2 * size - 1 - rank) * half, 1, half))

    def map_of(self, which: int, rank: int) -> List[int]:
        """Returns the ints to append to `config` (torch_call.h has its layout) that map each local row or key index of
        process `rank` to its position in the entire sequence. `which` selects the rows (QUERIES) or the keys (KEYS)."""
        segments = self.segments(rank)
        if len(segments) == 1:
            return [which, _abi.MAP_AFFINE, 0, segments[0].base, segments[0].step, 0]
        flat = [number for segment in segments for number in segment[:3]]
        return [which, _abi.MAP_SEGMENTS, 0, 0, 0, len(segments), *flat]


class Mask:
    """The mask of a program, for checks whether any row of one process attends to a key of another process. An object
    of this class serves one call, because it depends on the values of params. Captured tensors are not read: their
    elements are assumed to have any value."""

    def __init__(self, text: str, params: Optional[Sequence[float]], batch: int, heads: int, rows: Shards,
                 keys: Shards) -> None:
        self.rows, self.keys = rows, keys
        self.program = Program.from_text(text) if text else None
        self.params = None if params is None else (ctypes.c_double * max(len(params), 1))(*params)
        self.box = _abi.TileBounds()
        for name, low, high in (("B", 0, batch - 1), ("H", 0, heads - 1), ("Q_LEN", rows.total, rows.total),
                                ("K_LEN", keys.total, keys.total), ("HEADS", heads, heads),
                                ("Q_ROW", 0, max(0, *rows.lengths) - 1), ("K_ROW", 0, max(0, *keys.lengths) - 1)):
            self._bound(name, low, high)

    def _bound(self, name: str, low: int, high: int) -> None:
        place = getattr(_abi, "INPUT_" + name)
        self.box.lo[place], self.box.hi[place] = low, high

    def leaves(self, rank: int, other: int) -> bool:
        """Returns False if it is certain that no row of process `rank` attends to a key of process `other`; else
        True."""
        if self.program is None:
            return self.rows.lengths[rank] > 0 and self.keys.lengths[other] > 0
        for a in self.rows.segments(rank):
            for b in self.keys.segments(other):
                if a.size == 0 or b.size == 0:
                    continue
                self._bound("Q", a.base, a.base + a.step * (a.size - 1))
                self._bound("K", b.base, b.base + b.step * (b.size - 1))
                if lib.program_classify(self.program._handle, ctypes.byref(self.box), self.params, None) != _TILE_EMPTY:
                    return True
        return False


@with_hints
def split_sequence(tensor: Tensor, rank: int, size: int, order: str = "contiguous", dim: int = 2) -> Tensor:
    """Returns the part of `tensor` that process `rank` of `size` processes has along dimension `dim`. `order` is
    contiguous, zigzag or striped. If the parts have different lengths, earlier processes have the longer parts."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise ArgumentError("the tensor has shape %s and no dimension %d, along which it is split; dim says another"
                            % (tuple(tensor.shape), dim))
    if not 0 <= rank < size:
        raise ArgumentError("rank is %d of size %d; 0 to size - 1 are accepted" % (rank, size))
    length = tensor.shape[dim]
    if order == "contiguous":
        lengths = [length // size + (r < length % size) for r in range(size)]
    elif order == "striped":
        lengths = [len(range(r, length, size)) for r in range(size)]
    elif order == "zigzag":
        if length % (2 * size):
            raise ArgumentError("order \"zigzag\" needs a length that is a multiple of twice the processes, %d; it is "
                                "%d" % (2 * size, length))
        lengths = [length // size] * size
    else:
        raise ArgumentError("order is %r; %s are accepted" % (order, ", ".join(ORDERS)))
    parts: List[Any] = [torch.arange(s.base, s.base + s.step * s.size, s.step, device=tensor.device)
                        for s in Shards("the sequence", order, lengths).segments(rank)]
    return tensor.index_select(dim, torch.cat(parts))
