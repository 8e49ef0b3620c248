# SPDX-License-Identifier: Apache-2.0
"""Which rows and keys of a padded or packed batch are whose, as one object: Transformer Engine's SequenceDescriptor,
and what it means for a call of attention().

Lengths are the library's own. Segments are a mask of equal ids, of which those of padding equal none; with positions in
the segments, ready masks go by these, and are statements of the program.
"""
from typing import Any, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp

from .._errors import ArgumentError

Pair = Tuple[Any, Any]


@jax.tree_util.register_pytree_node_class
class SequenceDescriptor:
    """Which rows and keys of a padded or packed batch are whose: lengths, lengths with offsets, or segment ids with 0
    for padding. It may be an argument of jitted functions."""

    def __init__(self, seqlens: Optional[Pair] = None, seq_offsets: Optional[Pair] = None,
                 segment_ids: Optional[Pair] = None, segment_pos: Optional[Pair] = None) -> None:
        """Pairs (of q, of k and v): `seqlens` [B], or with `seq_offsets` [B,N] both, `segment_ids` [B,S], `segment_pos`
        [B,S], by which ready masks go where it is given. The from_... take one array for both as well."""
        self.seqlens, self.seq_offsets, self.segment_ids, self.segment_pos = (seqlens, seq_offsets, segment_ids,
                                                                              segment_pos)

    @classmethod
    def from_seqlens(cls, seqlens: Any) -> "SequenceDescriptor":
        """Of `seqlens`: [B], or a pair of them."""
        return cls(seqlens=_both(seqlens))

    @classmethod
    def from_seqlens_and_offsets(cls, seqlens: Any, seq_offsets: Any) -> "SequenceDescriptor":
        """Of N sequences at most in each row of the batch: `seqlens` [B,N], -1 where there is none, and where they
        begin, `seq_offsets` [B,N] or, with an end that is not read, [B,N+1]; or pairs of them."""
        return cls(seqlens=_both(seqlens), seq_offsets=_both(seq_offsets))

    @classmethod
    def from_segment_ids_and_pos(cls, segment_ids: Any, segment_pos: Any = None) -> "SequenceDescriptor":
        """Of `segment_ids` and, where ready masks need them, `segment_pos`: [B,S], or pairs of them."""
        return cls(segment_ids=_both(segment_ids), segment_pos=None if segment_pos is None else _both(segment_pos))

    def tree_flatten(self) -> Tuple[Tuple[Any, ...], None]:
        """For JAX: its arrays."""
        return (self.seqlens, self.seq_offsets, self.segment_ids, self.segment_pos), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Tuple[Any, ...]) -> "SequenceDescriptor":
        """For JAX: the same of other `children`; `aux` is nothing."""
        return cls(*children)


def _both(value: Any) -> Pair:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)  # type: ignore[return-value]


class Described(NamedTuple):
    """What a descriptor says, in the words of attention()."""

    lengths: Optional[Pair] = None
    segment_ids: Optional[Pair] = None
    positions: Optional[Pair] = None  # in their segments


def described(given: Any, rows: int, keys: int) -> Described:
    """Of a descriptor, for sequences of these lengths."""
    if not isinstance(given, SequenceDescriptor):
        raise ArgumentError("sequence_descriptor is of type %s; a SequenceDescriptor is accepted"
                            % type(given).__name__)
    ids, positions = given.segment_ids, given.segment_pos
    if given.seq_offsets is not None:
        if given.seqlens is None or ids is not None:
            raise ArgumentError("a SequenceDescriptor with seq_offsets has seqlens besides, and nothing else")
        found = [_segments(*x) for x in zip(given.seqlens, given.seq_offsets, (rows, keys))]
        ids, positions = (found[0][0], found[1][0]), (found[0][1], found[1][1])
    if ids is not None:
        of_q, of_k = (jnp.asarray(x) for x in ids)
        ids = jnp.where(of_q == 0, -1, of_q), jnp.where(of_k == 0, -2, of_k)
    return Described(None if given.seq_offsets is not None else given.seqlens, ids, positions)


def _segments(lengths: Any, offsets: Any, size: int) -> Pair:
    """Ids from 1, and positions in the segments, [B,size]."""
    lengths, offsets = jnp.asarray(lengths), jnp.asarray(offsets)
    if lengths.ndim != 2 or offsets.ndim != 2 or offsets.shape[1] - lengths.shape[1] not in (0, 1):
        raise ArgumentError("seqlens and seq_offsets have shapes %s and %s; [B,N], and [B,N] or [B,N+1], are accepted"
                            % (lengths.shape, offsets.shape))
    n = lengths.shape[1]
    begin = offsets[:, :n, None].astype(jnp.int32)
    at = jnp.arange(size, dtype=jnp.int32)
    inside = (begin >= 0) & (at >= begin) & (at < begin + lengths[:, :, None].astype(jnp.int32))
    ids = jnp.max(jnp.where(inside, jnp.arange(1, n + 1, dtype=jnp.int32)[:, None], 0), 1, initial=0)
    return ids, at - jnp.max(jnp.where(inside, begin, 0), 1, initial=0)


def mask_text(causal: bool, window: Optional[Tuple[Optional[int], Optional[int]]]) -> Optional[str]:
    """Ready masks by positions in the segments, as statements; None without a mask."""
    q, k = "zz_pos_q[b, q]", "zz_pos_k[b, k]"
    left, right = window if window is not None else (None, None)
    parts = [text for on, text in (
        (causal, "%s <= %s" % (k, q)), (left is not None, "%s >= %s - %d" % (k, q, left or 0)),
        (right is not None, "%s <= %s + %d" % (k, q, right or 0))) if on]
    if not parts:
        return None
    return "tensor zz_pos_k : i32[2]\ntensor zz_pos_q : i32[2]\nmask = mask && " + " && ".join(parts)
