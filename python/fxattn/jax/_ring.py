# SPDX-License-Identifier: Apache-2.0
"""ring_attention(): attention over a sequence that is sharded over a mesh axis of a shard_map; and the orders of the
sequence on the devices.

* Method "ring": in each step a device computes the attention of its rows over the part of K and V that it holds, merges
  the result into out and lse (flag ACCUMULATE_O), and passes the part on (ppermute). In method "ring", the backward
  pass sends the parts of K and V around again together with their gradients. In method "ring", one derivative rule
  covers all steps, and only the first step adds the sink to the softmax.
* Method "all_gather": every device gets all keys and values.
* Method "ulysses": by an all-to-all, every device gets all rows and keys for some of the heads. With method "ulysses",
  a second all-to-all returns the rows of the output to their devices.

The score program of ring_attention gets positions in the entire sequence, through coordinate maps of the library that
read the device's offset at run time, so any score_mod, any mask_mod and dropout work.
"""
import functools
import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from .. import _abi
from .._errors import ArgumentError
from .._options import one_of_two
from ._attention import (Features, Window, arranged, call_of, ids_of, lengths_of, pair_of, ready_masks, shape_of_scores,
                         sinks_and_dropout, with_ids, with_scale)
from ._autodiff import (OUT_NAME, STATS_NAME, Keys, attend, differentiated, given_gradients, gradients, together,
                        wanted)
from ._checks import flag, rate_of, refuse_keywords, refuse_symbolic, signature_without_rest, window_of
from ._mods import Mod, Named, Score, resolve
from ._primitives import backward, forward
from ._sequences import same_ids
from ._spec import WANT_K, WANT_SINK, WANT_V, Map, Operands, Spec, check

ORDERS = ("contiguous", "zigzag", "striped")
METHODS = ("ring", "all_gather", "ulysses")


# ---- The order of a sequence on the devices --------------------------------------------------------------------------

def _positions(length: int, size: int, order: str) -> np.ndarray:
    """Returns the global positions of a sequence in `order`: those of device 0, then those of device 1, and so on."""
    if order == "striped":
        return np.arange(length).reshape(-1, size).T.reshape(-1)
    if order == "zigzag":
        chunks = np.arange(length).reshape(2 * size, -1)
        return np.concatenate([chunks[[r, 2 * size - 1 - r]].reshape(-1) for r in range(size)])
    return np.arange(length)


def check_order(order: str, length: int, size: int) -> None:
    if order not in ORDERS:
        raise ArgumentError("order is %r; %s are accepted" % (order, ", ".join(ORDERS)))
    parts = 2 * size if order == "zigzag" else size
    if length % parts:
        raise ArgumentError("order \"%s\" on %d devices needs a length that is a multiple of %d; it is %d"
                            % (order, size, parts, length))


def reorder_sequence(x: Any, size: int, order: str, axis: int = 1) -> Any:
    """Returns array `x` with its sequence axis `axis` rearranged for ring_attention on `size` devices. Shard the
    returned array along `axis`. With `order` "contiguous", x is unchanged. With "zigzag", device r gets the r-th of 2 *
    size chunks and the r-th from the end; with "striped", device r gets positions r, r + size, r + 2 * size, ... Raises
    ArgumentError if the length is not a multiple of the number of chunks or devices."""
    check_order(order, x.shape[axis], size)
    return _taken(x, _positions(x.shape[axis], size, order), axis)


def restore_sequence(x: Any, size: int, order: str, axis: int = 1) -> Any:
    """Returns array `x`, which is in `order` on `size` devices, with its sequence axis `axis` in the original order:
    the inverse of reorder_sequence()."""
    check_order(order, x.shape[axis], size)
    return _taken(x, np.argsort(_positions(x.shape[axis], size, order)), axis)


def _taken(x: Any, at: Any, axis: int) -> Any:
    x = jnp.asarray(x)
    if not any(getattr(getattr(jax.typeof(x), "sharding", None), "spec", ())):
        return jnp.take(x, at, axis)
    # On a mesh with explicit axes JAX requires the sharding of the result, which is that of x.
    return x.at[(slice(None),) * (axis % x.ndim) + (at,)].get(out_sharding=jax.typeof(x).sharding)


def _here(order: str, size: int, rank: Any, length: int) -> Any:
    """Returns the global positions of the part of device `rank` (an int or a tracer), which has `length` positions."""
    local = jnp.arange(length, dtype=jnp.int32)
    if order == "zigzag":
        half = length // 2
        found = jnp.where(local < half, rank * half + local, (2 * size - 1 - rank) * half + local - half)
    else:
        found = local * size + rank if order == "striped" else local + rank * length
    return found.astype(jnp.int32)


class _Place(NamedTuple):
    """The positions of a device's part in the entire sequence: a coordinate map, the array that the map reads at run
    time, and the number (slot) of the array among the arguments of a run."""

    map: Map
    slot: int
    array: Any


_SLOTS = {"q": (_abi.SLOT_OFFSET_Q, _abi.SLOT_MAP_Q), "k": (_abi.SLOT_OFFSET_K, _abi.SLOT_MAP_K)}


def _part(axis: str, order: str, size: int, rank: Any, length: int) -> _Place:
    """Returns the positions in the entire sequence, along `axis` ("q" or "k"), of the part of device `rank` (an int or
    a tracer)."""
    dynamic, table = _SLOTS[axis]
    if order == "zigzag":
        return _Place(Map(axis, table=True), table, _here(order, size, rank, length))
    begin = rank * length if order == "contiguous" else rank
    return _Place(Map(axis, step=size if order == "striped" else 1, offset=True), dynamic,
                  jnp.reshape(begin, (1,)).astype(jnp.int32))


def _whole(axis: str, order: str, size: int, length: int) -> Optional[_Place]:
    """Returns the positions in the entire sequence, along `axis` ("q" or "k"), of the gathered parts of all devices, in
    the order of the devices; None if the positions are the indices in the gathered array."""
    if order == "contiguous":
        return None
    return _Place(Map(axis, table=True), _SLOTS[axis][1], jnp.asarray(_positions(length, size, order), jnp.int32))


def _placed_at(spec: Spec, ops: Operands, places: Sequence[Optional[_Place]]) -> Tuple[Spec, Operands]:
    """Returns the call with `places`, positions in the entire sequence, added: the Spec gets the coordinate maps of the
    places, the Operands get the arrays that the maps read."""
    given = [place for place in places if place is not None]
    return (spec._replace(maps=(*spec.maps, *(place.map for place in given)),
                          slots=(*spec.slots, *(place.slot for place in given))),
            together(ops._replace(extras=(*ops.extras, *(place.array for place in given)))))


# ---- The ring --------------------------------------------------------------------------------------------------------

class _Ring(NamedTuple):
    """Static properties of ring_attention: name and size of the mesh axis, order of the sequence, and Spec (static
    properties) of the attention call in each step."""

    axis: str
    size: int
    order: str
    spec: Spec

    def step(self, n: int, ops: Operands, part: Sequence[Any]) -> Tuple[Spec, Operands]:
        """Returns Spec and Operands of step `n` of ring_attention, which uses `part`, the (K, V) that the device holds
        in step `n`."""
        rank = lax.axis_index(self.axis)
        at = self.spec.layout.index("s")
        rows = _part("q", self.order, self.size, rank, ops.q.shape[at])
        keys = _part("k", self.order, self.size, (rank - n) % self.size, ops.k.shape[at])
        spec, ops = self.spec, ops._replace(k=part[0], v=part[1])
        if n > 0:  # only the first step includes the sink
            kept = [i for i, slot in enumerate(spec.slots) if slot != _abi.SLOT_SINKS]
            ops = ops._replace(extras=tuple(ops.extras[i] for i in kept))
            spec = spec._replace(flags=spec.flags & ~(_abi.SINKS | _abi.SINK_ZERO),
                                 slots=tuple(spec.slots[i] for i in kept))
        return _placed_at(spec, ops, [rows, keys])

    def pass_on(self, arrays: Sequence[Any]) -> List[Any]:
        around = [(i, (i + 1) % self.size) for i in range(self.size)]
        return [lax.ppermute(x, self.axis, around) for x in arrays]


def _run(ring: _Ring, ops: Operands) -> Tuple[Any, Any, Any]:
    """Runs all steps of ring_attention, one after the other. Returns (out, lse, stats) over all keys, where stats is
    the LSE in f64. The output is rounded to the dtype of q only after the last step."""
    part, found = [ops.k, ops.v], []  # type: ignore[var-annotated]
    for n in range(ring.size):
        spec, here = ring.step(n, ops, part)
        part = ring.pass_on(part) if n + 1 < ring.size else part
        spec = spec._replace(flags=spec.flags | (_abi.ACCUMULATE_O if n else 0))
        found = forward(spec, here, *(found[0], found[-1]) if n else (), lse=n + 1 == ring.size, stats=True)
    out, lse, stats = found
    return out.astype(ops.q.dtype), lse, stats


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _ring(ring: _Ring, ops: Operands) -> Tuple[Any, Any]:
    return _run(ring, ops)[:2]


def _ring_rule(ring: _Ring, given: Tuple[Operands], tangents: Tuple[Operands]) -> Any:
    out, lse, stats = _run(ring, given[0])
    kept = given[0], checkpoint_name(out, OUT_NAME), checkpoint_name(stats, STATS_NAME)
    return differentiated(_ring_backward, ring, ring.spec, kept, tangents[0], (out, lse))


def _ring_backward(static: Tuple[_Ring, Keys], kept: Any, cotangents: Sequence[Any]) -> List[Any]:
    (ring, keys), (ops, out, stats), want = static, kept, wanted(static[1])
    grads = given_gradients(out, cotangents)
    moving = [one for one in want if one in (WANT_K, WANT_V)]
    total: Dict[int, Any] = {}
    home: Dict[int, Any] = {}
    part = [ops.k, ops.v]
    for n in range(ring.size):
        spec, here = ring.step(n, ops, part)
        part = ring.pass_on(part) if n + 1 < ring.size else part
        asked = tuple(one for one in want if n == 0 or one != WANT_SINK)
        for one, grad in zip(asked, backward(spec, here, out, stats, grads, asked)):
            sums = home if one in moving else total
            sums[one] = sums[one] + grad if one in sums else grad
        home = dict(zip(moving, ring.pass_on([home[one] for one in moving])))
    return gradients(ring.spec, ops, keys, {**total, **home})


_ring.defjvp(_ring_rule, symbolic_zeros=True)


# ---- The methods all_gather and ulysses ------------------------------------------------------------------------------

def _gathered(axis: str, size: int, order: str, spec: Spec, ops: Operands) -> Tuple[Any, Any]:
    at = spec.layout.index("s")
    rows = _part("q", order, size, lax.axis_index(axis), ops.q.shape[at])
    k, v = (lax.all_gather(x, axis, axis=at, tiled=True) for x in (ops.k, ops.v))
    return attend(*_placed_at(spec, ops._replace(k=k, v=v), [rows, _whole("k", order, size, k.shape[at])]), lse=True)


def _ulysses(axis: str, size: int, order: str, spec: Spec, ops: Operands) -> Tuple[Any, Any]:
    at, heads = spec.layout.index("s"), spec.layout.index("h")
    if ops.q.shape[heads] % size:
        raise ArgumentError("method \"ulysses\" on %d devices needs heads of q that are a multiple of that, and there "
                            "are %d; \"ring\" and \"all_gather\" take any number" % (size, ops.q.shape[heads]))
    # Each head of k and v is repeated `copies` times, so that the number of heads is a multiple of the devices.
    copies = size // math.gcd(ops.k.shape[heads], size)
    if copies > 1:
        ops = ops._replace(k=jnp.repeat(ops.k, copies, heads), v=jnp.repeat(ops.v, copies, heads))
    mine = ops.q.shape[heads] // size
    first = lax.axis_index(axis) * mine
    q, k, v = (lax.all_to_all(x, axis, heads, at, tiled=True) for x in (ops.q, ops.k, ops.v))
    extras = tuple(lax.dynamic_slice_in_dim(x, first, mine) if slot == _abi.SLOT_SINKS else x
                   for slot, x in zip(spec.slots, ops.extras))
    of_heads = _Place(Map("h", offset=True), _abi.SLOT_OFFSET_H, jnp.reshape(first, (1,)).astype(jnp.int32))
    spec, ops = _placed_at(spec._replace(heads=ops.q.shape[heads]), ops._replace(q=q, k=k, v=v, extras=extras),
                           [_whole("q", order, size, q.shape[at]), _whole("k", order, size, k.shape[at]), of_heads])
    out, lse = attend(spec, ops, lse=True)
    return lax.all_to_all(out, axis, at, heads, tiled=True), lax.all_to_all(lse, axis, 2, 1, tiled=True)


# ---- Lengths and segments --------------------------------------------------------------------------------------------

def _gathered_ids(ids: Any, axis: str, size: int, order: str, sizes: Tuple[int, int, int, int],
                  single: bool) -> List[Any]:
    """Returns the segment ids of the entire sequences of q and k in their original order, gathered from all devices."""
    found = []
    # same_ids() may replace ids of host arrays by ranks, which are equal on all devices.
    for x in same_ids(*ids_of(ids, "segment_ids", sizes, single)):
        whole = lax.all_gather(x, axis, axis=1, tiled=True)
        found.append(jnp.take(whole, np.argsort(_positions(whole.shape[1], size, order)), 1))
    return found


def _with_lengths(score: Score, lengths: Any, ready: Tuple[bool, Any, bool], whole: Tuple[int, int, int, int],
                  single: bool) -> Tuple[Score, Any]:
    """Returns the Score with a mask by `lengths`, the lengths of the entire sequences, and the lengths of q. `ready` is
    (causal, window, bottom_right). If bottom_right is True, the masks causal and window are added as program
    statements, because with bottom_right these masks depend on the lengths."""
    causal, window, bottom_right = ready
    given = pair_of(lengths, "lengths", whole[2] == whole[3], single)
    batch, (rows, keys) = whole[0], whole[2:]
    f = Features()
    for slot, x in zip((_abi.SLOT_Q_LENGTHS, _abi.SLOT_K_LENGTHS), given):
        x = jnp.reshape(x, (1,)) if single and x is not None and np.ndim(x) == 0 else x
        f.integers(slot, x, 0, (batch,), "lengths")
    of_q, of_k = (f.slots.get(slot, jnp.full((batch,), length, jnp.int32))
                  for slot, length in ((_abi.SLOT_Q_LENGTHS, rows), (_abi.SLOT_K_LENGTHS, keys)))
    parts = ["q < zz_length_q[b]", "k < zz_length_k[b]"]
    if bottom_right:
        if not causal and window is None:
            raise ArgumentError("bottom_right beside lengths and without is_causal or window; those are aligned by it")
        at = "(q + (zz_length_k[b] - zz_length_q[b]))"
        left, right = (None, None) if window is None else window
        # The comparisons use differences of positions, which cannot overflow 32 bits.
        parts += [text for text, on in (
            ("k <= " + at, causal), ("%s - k <= %d" % (at, left or 0), left is not None),
            ("k - %s <= %d" % (at, right or 0), right is not None)) if on]
    if score.program is not None and re.search(r"\b[qk]_len\b", score.program.text):
        raise ArgumentError("lengths with a program that reads q_len or k_len, which are those of the whole here; give "
                            "them to it as a tensor")
    text = "tensor zz_length_k : i32[1]\ntensor zz_length_q : i32[1]\nmask = mask && " + " && ".join(parts)
    return score.appended(text, tensors={"zz_length_q": of_q, "zz_length_k": of_k}), of_q


def _size_of(axis: Any) -> int:
    try:
        return int(lax.axis_size(axis))
    except NameError:
        raise ArgumentError("axis_name is %r, which is no axis around this call: ring_attention is called inside of a "
                            "jax.shard_map over a mesh that has it" % (axis,)) from None


# ---- The call --------------------------------------------------------------------------------------------------------

def ring_attention(q: Any, k: Any, v: Any, axis_name: str, *surplus: Any, score_mod: Mod = None, mask_mod: Mod = None,
                   layout: str = "bshd", order: str = "contiguous", method: str = "ring", scale: Any = None,
                   is_causal: bool = False, window: Window = None, bottom_right: bool = False, q_lengths: Any = None,
                   k_lengths: Any = None, segment_ids: Any = None, sinks: Any = None, dropout_p: float = 0.0,
                   seed: Any = None, params: Named = None, tensors: Named = None, style: Optional[str] = None,
                   score_mod_bprop: Mod = None, bprop_params: Named = None, bprop_tensors: Named = None,
                   return_lse: bool = False, bounds_check: bool = False, causal: Optional[bool] = None,
                   lengths: Any = None, dropout: Optional[float] = None, dropout_key: Any = None,
                   score_mod_tensors: Named = None, score_mod_bprop_tensors: Named = None, **unknown: Any) -> Any:
    """Computes attention over sequences that are sharded over the mesh axis `axis_name` of a shard_map. Call
    ring_attention inside the shard_map. Returns this device's part of the result of attention() for the entire
    sequences.

    `q, k, v`: the device's parts, [B,S,H,D] (layout "bshd") or [B,H,S,D] ("bhsd"), with the same S on all devices.
    `layout`: "bshd" or "bhsd".
    `order`: the order of the sequence on the devices: "contiguous", or "zigzag" or "striped", which balance the work of
        causal masks. The function reorder_sequence() rearranges an array into the order "zigzag" or "striped".
    `method`: "ring" passes the parts of k and v from device to device. "all_gather" gives every device all keys and
        values. "ulysses" gives every device all rows and keys for some of the heads; the number of heads of q must be a
        multiple of the number of devices, and heads of k and v are copied if necessary.
    `q_lengths, k_lengths`: [B], the lengths of the entire sequences, the same on every device.
    `segment_ids`: the segment ids of the device's part, [B,S], or a pair (ids of q, ids of k). A row attends only to
        keys with the same segment id as the row.
    `score_mod, mask_mod`: as in attention(); q and k are positions in the entire sequence.
    `scale, is_causal, window, bottom_right, sinks, dropout_p, seed, params, tensors`: as in attention().
    `style, score_mod_bprop, bprop_params, bprop_tensors, return_lse, bounds_check`: as in attention().
    `causal, lengths, dropout, dropout_key, score_mod_tensors, score_mod_bprop_tensors`: alternative names as in
        attention().

    Captured arrays, sinks and dropout keys are replicated on every device. JAX sums the gradients of replicated arrays.

    Raises ArgumentError if there is no mesh axis `axis_name` around the call, or if the length of the sequence is not a
    multiple of what `order` requires (see reorder_sequence).
    """
    refuse_keywords("ring_attention", surplus, unknown, _PARAMETERS, _REMEDIES)
    is_causal = flag(*one_of_two("is_causal", is_causal, "causal", causal, False))
    rate = rate_of(*one_of_two("dropout_p", dropout_p, "dropout", dropout, 0.0))
    _, tensors = one_of_two("tensors", tensors, "score_mod_tensors", score_mod_tensors)
    _, bprop_tensors = one_of_two("bprop_tensors", bprop_tensors, "score_mod_bprop_tensors", score_mod_bprop_tensors)
    window = window_of(window)
    if method not in METHODS:
        raise ArgumentError("method is %r; %s are accepted" % (method, ", ".join(METHODS)))
    if layout == "thd":
        raise ArgumentError("layout is \"thd\"; bshd and bhsd are accepted")
    q, k, v, single = arranged(q, k, v, layout)
    refuse_symbolic("a ring", q, k, v)
    size = _size_of(axis_name)
    batch, heads, rows, keys = shape_of_scores(q, k, v, layout, None)
    whole = batch, heads, rows * size, keys * size
    for length in whole[2:]:
        check_order(order, length, size)
    features = Features()
    lengths = lengths_of(q_lengths, k_lengths, lengths, whole, single)
    by_length = lengths is not None and flag("bottom_right", bottom_right)
    ready_masks(features, is_causal and not by_length, None if by_length else window,
                bottom_right and not by_length)
    features.flags |= _abi.BOUNDS_CHECK if flag("bounds_check", bounds_check) else 0
    sinks_and_dropout(features, whole, sinks, rate, seed, dropout_key)
    aligned = features.flags & (_abi.BOTTOM_RIGHT | _abi.CAUSAL | _abi.WINDOW) == _abi.BOTTOM_RIGHT  # q is shifted
    score = resolve(score_mod, mask_mod, score_mod_bprop, tensors, bprop_tensors, params, whole, q.dtype,
                    moved=bottom_right, part="aligned" if aligned else "moved", bprop_params=bprop_params, style=style)
    rows_of = None
    if lengths is not None:
        score, rows_of = _with_lengths(score, lengths, (is_causal, window, bottom_right), whole, single)
    if segment_ids is not None:
        score = with_ids(score, _gathered_ids(segment_ids, axis_name, size, order, (batch, heads, rows, keys), single),
                         places=("q + q_len - k_len" if aligned else "q", "k"))
    score, scales = with_scale(score, scale, q.dtype)
    spec, ops = call_of(features, score, layout, None, (q, k, v), scales)
    check(spec, ops)
    spec = spec._replace(lengths=whole[2:], wide=method == "ring")
    if method == "ring":
        out, lse = _ring(_Ring(axis_name, size, order, spec), together(ops))
    else:
        out, lse = {"all_gather": _gathered, "ulysses": _ulysses}[method](axis_name, size, order, spec, ops)
    if rows_of is not None:  # padding rows have lse -inf, also with a sink
        here = _here(order, size, lax.axis_index(axis_name), rows)
        lse = jnp.where(here < rows_of[:, None, None], lse, -jnp.inf)
    out, lse = (out[0], lse[0]) if single else (out, lse)
    return (out, lse) if return_lse else out


_PARAMETERS = signature_without_rest(ring_attention)
_WHOLE = "is no argument of a ring; q_lengths, k_lengths and segment_ids are"
_REMEDIES = {**dict.fromkeys(("cu_q", "cu_k", "max_q", "max_k", "sequence_descriptor"), _WHOLE),
             "q_start": "is no argument of a ring; q and k of a mask_mod are positions in the whole",
             "axis": "is called axis_name=", "engine": "is no argument of a ring: the best engine runs each step",
             "deterministic": "is no argument of a ring: its sums have one order on every device"}
