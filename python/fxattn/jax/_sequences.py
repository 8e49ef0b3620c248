# SPDX-License-Identifier: Apache-2.0
"""SequenceDescriptor of Transformer Engine, which describes the sequences of a padded or packed batch, and its
conversion to options of attention().

Lengths of a SequenceDescriptor are passed to the C library as lengths. Segments of a SequenceDescriptor become a mask
that is true for pairs of equal segment ids, where id 0 is padding. If a SequenceDescriptor has positions in the
segments, causal masks and windows become statements of the program that compare these positions.

64-bit and unsigned ints of a SequenceDescriptor keep their values: segment ids are compared in full; lengths and
positions are clipped to 32 bits, which no sequence exceeds. If JAX has no 64-bit types, 64-bit NumPy arrays are clipped
before they become JAX arrays.
"""
from typing import Any, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError

Pair = Tuple[Any, Any]
INT32 = np.iinfo(np.int32)


@jax.tree_util.register_pytree_node_class
class SequenceDescriptor:
    """Describes which sequence each row and key of a padded or packed batch belongs to: by lengths, by lengths and
    offsets, or by segment ids, where id 0 is padding. A SequenceDescriptor is a pytree, so it may be an argument of
    jitted functions."""

    def __init__(self, seqlens: Optional[Pair] = None, seq_offsets: Optional[Pair] = None,
                 segment_ids: Optional[Pair] = None, segment_pos: Optional[Pair] = None) -> None:
        """Each argument is a pair (array for q, array for k and v): `seqlens` [B], or [B,N] with `seq_offsets` [B,N];
        `segment_ids` [B,S]; `segment_pos` [B,S], positions for causal masks and windows. The from_... methods also
        accept one array in place of a pair, which is then used for q, k and v."""
        self.seqlens, self.seq_offsets, self.segment_ids, self.segment_pos = (seqlens, seq_offsets, segment_ids,
                                                                              segment_pos)

    @classmethod
    def from_seqlens(cls, seqlens: Any) -> "SequenceDescriptor":
        """Returns a descriptor of a padded batch. `seqlens`: the lengths [B], or a pair (of q, of k and v)."""
        return cls(seqlens=_both(seqlens))

    @classmethod
    def from_seqlens_and_offsets(cls, seqlens: Any, seq_offsets: Any) -> "SequenceDescriptor":
        """Returns a descriptor of a packed batch with up to N sequences in each batch entry. `seqlens` [B,N]: the
        lengths of the sequences, -1 for no sequence. `seq_offsets` [B,N] or [B,N+1]: the start positions of the
        sequences; the last of N+1 is ignored. `seqlens` and `seq_offsets` may each be a pair of arrays: the first is
        for q, the second for k and v."""
        return cls(seqlens=_both(seqlens), seq_offsets=_both(seq_offsets))

    @classmethod
    def from_segment_ids_and_pos(cls, segment_ids: Any, segment_pos: Any = None) -> "SequenceDescriptor":
        """Returns a descriptor of a packed batch. `segment_ids` [B,S]: the sequence of each position, 0 for padding.
        `segment_pos` [B,S]: positions in the sequences, for causal masks and windows. `segment_ids` and `segment_pos`
        may each be a pair of arrays: the first is for q, the second for k and v."""
        return cls(segment_ids=_both(segment_ids), segment_pos=None if segment_pos is None else _both(segment_pos))

    def tree_flatten(self) -> Tuple[Tuple[Any, ...], None]:
        """Returns (arrays, None), the pytree flattening for JAX."""
        return (self.seqlens, self.seq_offsets, self.segment_ids, self.segment_pos), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Tuple[Any, ...]) -> "SequenceDescriptor":
        """Returns a descriptor of the arrays `children`, for JAX; `aux` is None."""
        return cls(*children)


def _both(value: Any) -> Pair:
    if not isinstance(value, (tuple, list)):
        return value, value
    if len(value) != 2 or any(np.ndim(x) == 0 for x in value):
        raise ArgumentError("a SequenceDescriptor is of one array, or of a pair of them, (of q, of k); this is %r"
                            % (value,))
    return value[0], value[1]


class Described(NamedTuple):
    """The content of a SequenceDescriptor as options of attention()."""

    lengths: Optional[Pair] = None
    segment_ids: Optional[Pair] = None
    positions: Optional[Pair] = None  # positions in the segments


def described(given: Any, rows: int, keys: int) -> Described:
    """Returns the options of attention() that SequenceDescriptor `given` stands for, with `rows` rows of q and `keys`
    keys. Raises ArgumentError for wrong combinations of the descriptor's fields."""
    if not isinstance(given, SequenceDescriptor):
        raise ArgumentError("sequence_descriptor is of type %s; a SequenceDescriptor is accepted"
                            % type(given).__name__)
    ids, positions = given.segment_ids, given.segment_pos
    if (given.seqlens is None) == (ids is None):
        raise ArgumentError("a SequenceDescriptor with %s seqlens %s segment_ids; one of them is accepted, as "
                            "from_seqlens, from_seqlens_and_offsets and from_segment_ids_and_pos make it"
                            % (("neither", "nor") if ids is None else ("both", "and")))
    if positions is not None and ids is None:
        raise ArgumentError("a SequenceDescriptor with segment_pos and without segment_ids")
    if given.seq_offsets is not None:
        if given.seqlens is None or ids is not None:
            raise ArgumentError("a SequenceDescriptor with seq_offsets has seqlens besides, and nothing else")
        found = [_segments(*x) for x in zip(given.seqlens, given.seq_offsets, (rows, keys))]
        ids, positions = (found[0][0], found[1][0]), (found[0][1], found[1][1])
    if ids is not None:
        ids = tuple(array_of_ints(x) for x in ids)
    return Described(None if given.seq_offsets is not None else given.seqlens, ids, positions)


def _segments(lengths: Any, offsets: Any, size: int) -> Pair:
    """Returns (ids, positions), both [B,size], of segments with `lengths` and start `offsets`. Segment ids start at 1;
    the id 0 is padding."""
    lengths, offsets = array_of_ints(lengths), array_of_ints(offsets)
    if lengths.ndim != 2 or offsets.ndim != 2 or offsets.shape[1] - lengths.shape[1] not in (0, 1):
        raise ArgumentError("seqlens and seq_offsets have shapes %s and %s; [B,N], and [B,N] or [B,N+1], are accepted"
                            % (lengths.shape, offsets.shape))
    n = lengths.shape[1]
    begin, at = in_32_bits(offsets)[:, :n, None], jnp.arange(size, dtype=jnp.int32)
    inside = (begin >= 0) & (at >= begin) & (at - begin < in_32_bits(lengths)[:, :, None])
    ids = jnp.max(jnp.where(inside, jnp.arange(1, n + 1, dtype=jnp.int32)[:, None], 0), 1, initial=0)
    return ids, at - jnp.max(jnp.where(inside, begin, 0), 1, initial=0)


def array_of_ints(values: Any) -> Any:
    """Returns `values` as an array. 64-bit ints are returned as a NumPy array if JAX has no 64-bit types, else as a JAX
    array."""
    if isinstance(values, (np.ndarray, np.integer, list, tuple, int)) and not jax.config.jax_enable_x64:
        try:
            host = np.asarray(values)
        except jax.errors.TracerArrayConversionError:  # a list that contains tracers
            return jnp.asarray(values)
        if host.dtype in ("int64", "uint64"):
            return host
    return jnp.asarray(values)


def in_32_bits(values: Any) -> Any:
    """Returns `values` clipped to the range of int32, as an int32 JAX array."""
    if values.dtype in ("uint32", "uint64"):
        values = values.clip(max=INT32.max)
    elif values.dtype == "int64":
        values = values.clip(INT32.min, INT32.max)
    return jnp.asarray(values, "int32")


def same_ids(of_q: Any, of_k: Any) -> Any:
    """Returns [ids of q, ids of k] as JAX arrays of one signed type, in which ids are equal exactly if the given ids
    are. Raises ArgumentError if JAX has no type for the ids of q and of k."""
    both = [jnp.asarray(x, "int32") if isinstance(x, np.ndarray) and np.array_equal(x, x.astype("int32")) else x
            for x in (of_q, of_k)]
    kinds = [x.dtype for x in both] + ["int32" if any(x.dtype.kind == "i" for x in both) else "uint32"]
    kind = str(np.result_type(*kinds))
    if any(isinstance(x, np.ndarray) for x in both) and kind != "float64" and not any(
            isinstance(x, jax.core.Tracer) for x in both):  # replaces ids by their ranks, which preserves equality
        ranks = np.unique(np.concatenate([np.ravel(x) for x in both]), return_inverse=True)[1].astype("int32")
        return [jnp.asarray(part.reshape(x.shape)) for part, x in zip(np.split(ranks, [of_q.size]), both)]
    if kind not in (("int32", "uint32", "int64", "uint64") if jax.config.jax_enable_x64 else ("int32", "uint32")):
        raise ArgumentError("segment_ids are %s of q and %s of k, which JAX has no type of together now; one type is "
                            "accepted, and of 64 bits with jax_enable_x64" % (of_q.dtype, of_k.dtype))
    both = [jnp.asarray(x, kind) for x in both]
    return [jax.lax.bitcast_convert_type(x, kind[1:]) for x in both] if kind[0] == "u" else both


def mask_text(causal: bool, window: Optional[Tuple[Optional[int], Optional[int]]]) -> Optional[str]:
    """Returns program statements for the masks `causal` and `window` over positions in segments; None without a
    mask."""
    q, k = "zz_pos_q[b, q_row]", "zz_pos_k[b, k_row]"
    left, right = window if window is not None else (None, None)
    parts = [text for on, text in (
        (causal, "%s <= %s" % (k, q)), (left is not None, "%s >= %s - %d" % (k, q, left or 0)),
        (right is not None, "%s <= %s + %d" % (k, q, right or 0))) if on]
    if not parts:
        return None
    return "tensor zz_pos_k : i32[2]\ntensor zz_pos_q : i32[2]\nmask = mask && " + " && ".join(parts)
