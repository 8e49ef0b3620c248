# SPDX-License-Identifier: Apache-2.0
"""attention() for JAX arrays.

attention() converts its arguments to a Spec (static properties) and Operands (arrays). The C library checks whether the
arguments fit together, and its message becomes the exception. Masks that arrays define (segment ids) become statements
at the end of the program.
"""
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import jax.numpy as jnp
import numpy as np

from .. import _abi
from .._errors import ArgumentError, ArgumentTypeError
from .._options import one_of_two
from ._autodiff import attend
from ._checks import (array_of, flag, offsets_of, rate_of, refuse_keywords, refuse_symbolic, seed_of,
                      signature_without_rest, size_of, window_of)
from ._mods import Mod, Named, Score, resolve
from ._sequences import Described, SequenceDescriptor, array_of_ints, described, in_32_bits, mask_text, same_ids
from ._spec import LAYOUTS, Operands, Spec, check

Window = Optional[Tuple[Optional[int], Optional[int]]]
_BY_FUNCTION = "write it as mask_mod, which may read it: mask_mod=lambda b, h, q, k: (k <= q) | ~causal"
_RANKS = {"bshd": 4, "bhsd": 4, "thd": 3}
_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


class Features:
    """The parts of a Spec (static properties of a call) that attention() collects from its options: flags, further
    input arrays by slot (their number in the C library), and other fields."""

    def __init__(self) -> None:
        self.flags = 0
        self.slots: Dict[int, Any] = {}
        self.fields: Dict[str, Any] = {}

    def integers(self, slot: int, values: Any, flag: int, shape: Tuple[int, ...], name: str) -> None:
        """Adds `values` (lengths, offsets, start positions) as the int32 input array with the number `slot` of the C
        library, and sets the bits `flag` of the flags; does nothing if `values` is None. Raises ArgumentError if the
        shape of `values` is not `shape`, ArgumentTypeError if `values` is no array of ints. `name`: the name of the
        option in errors."""
        if values is None:
            return
        array = array_of_ints(values)
        whole = jnp.issubdtype(array.dtype, jnp.integer)
        if not whole or array.shape != shape:
            raise (ArgumentError if whole else ArgumentTypeError)("%s is %s of shape %s; ints of shape %s are accepted"
                                                                  % (name, array.dtype, array.shape, shape))
        self.slots[slot] = in_32_bits(array)
        self.flags |= flag


def attention(q: Any, k: Any, v: Any, score_mod: Mod = None, mask_mod: Mod = None, *surplus: Any,
              layout: str = "bshd", scale: Any = None, is_causal: bool = False, window: Window = None,
              bottom_right: bool = False, q_lengths: Any = None, k_lengths: Any = None, cu_q: Any = None,
              cu_k: Any = None, max_q: Optional[int] = None, max_k: Optional[int] = None, segment_ids: Any = None,
              sequence_descriptor: Optional[SequenceDescriptor] = None, q_start: Any = None, sinks: Any = None,
              dropout_p: float = 0.0, seed: Any = None, params: Named = None, tensors: Named = None,
              style: Optional[str] = None, score_mod_bprop: Mod = None, bprop_params: Named = None,
              bprop_tensors: Named = None, return_lse: bool = False, deterministic: bool = False,
              bounds_check: bool = False, engine: Optional[str] = None, causal: Optional[bool] = None,
              lengths: Any = None, dropout: Optional[float] = None, dropout_key: Any = None,
              score_mod_tensors: Named = None, score_mod_bprop_tensors: Named = None, **unknown: Any) -> Any:
    """Returns softmax(f(scale * q k^T)) v, where f is score_mod, in the layout and dtype of q, with the head dim of v.
    With return_lse returns the pair (out, lse), where lse is [B,H,S] of float32, or of float64 if q is float64. Out and
    lse are differentiable.

    `q, k, v`: [B,S,H,D] (layout "bshd") or [B,H,S,D] ("bhsd"), or rank 3 without a batch. The number of heads of q is a
        multiple of that of k and v.
    `layout`: "bshd", "bhsd", or "thd" for packed rows [T,H,D].
    `cu_q, cu_k, max_q, max_k`: for packed rows, the offsets [N+1] of the sequences (cu_k None: cu_q) and the lengths of
        the longest sequences (None: all rows).
    `score_mod, mask_mod`: functions of (score, b, h, q, k) and (b, h, q, k), which may call jax.numpy. Arrays that the
        functions capture, tracers included, become operands of the call and get gradients. Program text, an expression
        or a Program is accepted too, with `params` and `tensors` by name.
    `style`: "flex" for score_mod(score, b, h, q, k) and mask_mod(b, h, q, k); "graph" for Transformer Engine's
        score_mod(graph, score, tensors), which gets `tensors`. By default, `style` is "graph" if score_mod has three
        arguments, else "flex".
    `score_mod_bprop`: a user-written derivative of score_mod: text or a Program with `bprop_params` and
        `bprop_tensors`, or score_mod_bprop(graph, dscore, tensors), which gets `bprop_tensors`.
    `scale`: a number, or an array of rank 0, which gets a gradient; by default 1 / sqrt(D).
    `is_causal, window`: built-in masks. Pairs with k <= q are attended with is_causal, and those with q - left <= k <=
        q + right with window=(left, right), where None or -1 means unlimited.
    `bottom_right`: True shifts the positions q so that the last row has the position of the last key: only in the
        built-in masks if there are any (is_causal, window), else in the q that score_mod and mask_mod get.
    `q_lengths, k_lengths`: [B], the number of rows and of keys of each batch entry.
    `segment_ids`: [B,S] for both sequences, or a pair (ids of q, ids of k). A row attends only to keys with the same
        segment id as the row; id 0 is an id like any other.
    `sequence_descriptor`: a SequenceDescriptor, which has lengths or segments. If the SequenceDescriptor has positions
        in segments, is_causal and window compare these positions.
    `q_start`: [B], the position q of the first row of each batch entry.
    `sinks`: "zero" adds a key of score 0; an array [H] adds a key with a learned score per query head.
    `dropout_p, seed`: dropout of softmax probabilities, with a 64-bit seed, or with dropout_key, a key of jax.random.
    `return_lse`: returns (out, lse).
    `deterministic`: requires the same bits in every run; raises an error if no engine can guarantee equal bits.
    `bounds_check`: on the CPU, an index of a program's text outside its captured array is an error of the run. Without
        bounds_check, such an index reads 0. Functions follow JAX's index modes instead (by default: the nearest
        element), so their indices are never outside.
    `engine`: the name of an engine; None selects the best one.

    Names of jax.nn, Flax and Transformer Engine are accepted as aliases: causal (is_causal), dropout (dropout_p),
    dropout_key (seed), lengths (both q_lengths and k_lengths, or a pair of them), score_mod_tensors (tensors),
    score_mod_bprop_tensors (bprop_tensors).

    Raises ArgumentError, ArgumentTypeError, UnsupportedError and TraceError when the call is traced. Errors that depend
    on values of arrays are raised by XLA when the call runs.
    """
    refuse_keywords("attention", surplus, unknown, _PARAMETERS)
    is_causal = flag(*one_of_two("is_causal", is_causal, "causal", causal, False), _BY_FUNCTION)
    rate = rate_of(*one_of_two("dropout_p", dropout_p, "dropout", dropout, 0.0))
    _, tensors = one_of_two("tensors", tensors, "score_mod_tensors", score_mod_tensors)
    _, bprop_tensors = one_of_two("bprop_tensors", bprop_tensors, "score_mod_bprop_tensors", score_mod_bprop_tensors)
    window = window_of(window)
    q, k, v, single = arranged(q, k, v, layout)
    if layout == "thd":
        refuse_symbolic("layout \"thd\"", q, k, v)
    features = Features()
    sizes = shape_of_scores(q, k, v, layout, cu_q)
    told = _told(sequence_descriptor, layout, sizes, bottom_right,
                 lengths_of(q_lengths, k_lengths, lengths, sizes, single), segment_ids)
    by_segment = told.positions is not None
    ready_masks(features, is_causal and not by_segment, None if by_segment else window, bottom_right)
    features.flags |= _abi.DETERMINISTIC if flag("deterministic", deterministic) else 0
    features.flags |= _abi.BOUNDS_CHECK if flag("bounds_check", bounds_check) else 0
    _tables(features, sizes, told.lengths, q_start, single)
    _packed(features, layout, q, k, cu_q, cu_k, max_q, max_k)
    sinks_and_dropout(features, sizes, sinks, rate, seed, dropout_key)
    score = resolve(score_mod, mask_mod, score_mod_bprop, tensors, bprop_tensors, params, sizes, q.dtype,
                    moved=q_start is not None or bottom_right, bprop_params=bprop_params, style=style)
    score = _with_segments(score, told.segment_ids, sequence_descriptor is not None, sizes, single)
    score = _with_positions(score, told.positions, is_causal, window, sizes, single)
    score, scales = with_scale(score, scale, q.dtype)
    spec, ops = call_of(features, score, layout, engine, (q, k, v), scales)
    check(spec, ops)
    out, lse = attend(spec, ops, flag("return_lse", return_lse))
    if single:
        out, lse = out[0], None if lse is None else lse[0]
    return (out, lse) if return_lse else out


_PARAMETERS = signature_without_rest(attention)


def call_of(features: Features, score: Score, layout: str, engine: Optional[str],
            arrays: Tuple[Any, Any, Any], scales: Tuple[Any, ...]) -> Tuple[Spec, Operands]:
    """Returns the Spec (static properties) and the Operands (arrays) of a call, which the JAX primitives take."""
    slots = tuple(sorted(features.slots))
    spec = Spec(score.program, score.bprop, layout, features.flags, slots, engine=engine, **features.fields)
    return spec, Operands(*arrays, score.tensors, tuple(features.slots[slot] for slot in slots), scales, score.params,
                          score.bprop_tensors, score.bprop_params)


# ---- Arguments -------------------------------------------------------------------------------------------------------

def arranged(q: Any, k: Any, v: Any, layout: str) -> Tuple[Any, Any, Any, bool]:
    """Returns q, k and v as arrays of one float dtype with the rank of `layout`, and a bool that is True if a batch
    axis was added to them. Raises ArgumentError for wrong ranks, ArgumentTypeError for dtypes that are not floats."""
    if layout not in LAYOUTS:
        raise ArgumentError("layout is %r; %s are accepted" % (layout, ", ".join(LAYOUTS)))
    arrays = [array_of(name, x) for name, x in zip("qkv", (q, k, v))]
    for name, x in zip("qkv", arrays):
        if x.dtype.name not in _FLOATS:
            raise ArgumentTypeError("%s has dtype %s; a float type is accepted: %s"
                                    % (name, x.dtype, ", ".join(_FLOATS)))
    if len({x.dtype for x in arrays}) > 1 and any(x.dtype.itemsize < 2 for x in arrays):
        raise ArgumentTypeError("q, k and v have dtypes %s; floats of 8 bits are not promoted, one type of all three "
                                "is accepted" % ", ".join(str(x.dtype) for x in arrays))
    ranks = {x.ndim for x in arrays}
    single = _RANKS[layout] == 4 and ranks == {3}
    if not single and ranks != {_RANKS[layout]}:
        raise ArgumentError("q, k and v have shapes %s; %s is accepted%s" % (
            ", ".join(str(x.shape) for x in arrays), "[%s]" % ",".join(layout.upper()),
            ", or all three without the batch" if _RANKS[layout] == 4 else ""))
    kind = jnp.promote_types(jnp.promote_types(arrays[0].dtype, arrays[1].dtype), arrays[2].dtype) if len(
        {x.dtype for x in arrays}) > 1 else arrays[0].dtype
    arrays = [x.astype(kind) for x in arrays]
    return (*(x[None] if single else x for x in arrays), single)  # type: ignore[return-value]


def shape_of_scores(q: Any, k: Any, v: Any, layout: str, cu_q: Any) -> Tuple[int, int, int, int]:
    """Returns the shape of the scores, (batch, heads, rows, keys). Raises ArgumentError if the shapes of q, k and v do
    not fit together."""
    if layout == "thd":
        if cu_q is None:
            raise ArgumentError("layout \"thd\" without cu_q, the offsets of its sequences")
        batch, rows, keys, heads, kv_heads = offsets_of("cu_q", cu_q), q.shape[0], k.shape[0], q.shape[1], k.shape[1]
        fits = k.shape[:2] == v.shape[:2] and q.shape[2] == k.shape[2]
    else:
        s, h = (1, 2) if layout == "bshd" else (2, 1)
        batch, rows, keys, heads, kv_heads = q.shape[0], q.shape[s], k.shape[s], q.shape[h], k.shape[h]
        fits = k.shape[:3] == v.shape[:3] and q.shape[3] == k.shape[3] and k.shape[0] == batch
    if not fits or (heads % kv_heads if kv_heads else heads):
        raise ArgumentError("q, k and v have shapes %s, %s and %s, in the layout %s; q, k and v must have one "
                            "batch size, q and k one head dim, k and v one length and one number of heads, and the "
                            "heads of q must be a multiple of that number"
                            % (q.shape, k.shape, v.shape, layout))
    return batch, heads, rows, keys


def ready_masks(f: Features, causal: bool, window: Any, bottom_right: bool) -> None:
    for bit, on in ((_abi.CAUSAL, causal), (_abi.BOTTOM_RIGHT, flag("bottom_right", bottom_right)),
                    (_abi.WINDOW, window is not None)):
        f.flags |= bit if on else 0
    if window is not None:
        f.fields["window"] = tuple(-1 if x is None else x for x in window)


def pair_of(value: Any, name: str, same: bool, single: bool) -> Tuple[Any, Any]:
    """Returns the pair (value of q, value of k) of an option, which is one value for both or a pair. `same`: True if q
    and k have equal lengths. `single`: True if the call has no batch axis. Raises ArgumentError if `value` may be meant
    for two batch entries or for q and k, or if one array is given for q and k of different lengths."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        if any(x is None or np.ndim(x) > 0 for x in value) or single:
            return value[0], value[1]
        if isinstance(value, tuple):
            raise ArgumentError("%s is %r, which may be meant for two batch entries or for q and k; give an array [B], "
                                "or a pair of arrays, (of q, of k)" % (name, value))
    if value is not None and not same:
        raise ArgumentError("%s is one array, and q and k have different lengths; give a pair, (of q, of k)" % name)
    return value, value


def lengths_of(q_lengths: Any, k_lengths: Any, lengths: Any, sizes: Tuple[int, int, int, int], single: bool) -> Any:
    """Returns the lengths that the options q_lengths and k_lengths, or their alias lengths, give for rows and keys: one
    array for both, a pair, or None. Raises ArgumentTypeError if `lengths` is given together with q_lengths or
    k_lengths."""
    if q_lengths is None and k_lengths is None:
        return lengths
    if lengths is not None:
        raise ArgumentTypeError("%s= and lengths= are both given, and are one option: give one of them"
                                % ("q_lengths" if q_lengths is not None else "k_lengths"))
    for name, values in (("q_lengths", q_lengths), ("k_lengths", k_lengths)):
        if values is not None and np.ndim(values) == 0 and not single:
            raise ArgumentError("%s is %r; ints of shape (%d,) are accepted" % (name, values, sizes[0]))
    return q_lengths, k_lengths


def _tables(f: Features, sizes: Tuple[int, int, int, int], lengths: Any, q_start: Any, single: bool) -> None:
    batch, _, rows, keys = sizes
    of_q, of_k = pair_of(lengths, "lengths", rows == keys, single)
    for slot, values, name in ((_abi.SLOT_Q_LENGTHS, of_q, "q_lengths"), (_abi.SLOT_K_LENGTHS, of_k, "k_lengths"),
                               (_abi.SLOT_Q_START, q_start, "q_start")):
        bit = _abi.Q_START if slot == _abi.SLOT_Q_START else _abi.PADDING
        values = jnp.reshape(values, (1,)) if single and values is not None and np.ndim(values) == 0 else values
        f.integers(slot, values, bit, (batch,), name)


def _packed(f: Features, layout: str, q: Any, k: Any, cu_q: Any, cu_k: Any, max_q: Optional[int],
            max_k: Optional[int]) -> None:
    if layout != "thd":
        given = [name for name, x in (("cu_q", cu_q), ("cu_k", cu_k), ("max_q", max_q), ("max_k", max_k))
                 if x is not None]
        if given:
            raise ArgumentError("%s with layout %r; packed rows have layout \"thd\"" % (", ".join(given), layout))
        return
    shape = (offsets_of("cu_q", cu_q) + 1,)
    f.integers(_abi.SLOT_CU_Q, cu_q, _abi.VARLEN, shape, "cu_q")
    f.integers(_abi.SLOT_CU_K, cu_q if cu_k is None else cu_k, _abi.VARLEN, shape, "cu_k")
    f.fields["longest"] = size_of("max_q", max_q, q.shape[0]), size_of("max_k", max_k, k.shape[0])


def sinks_and_dropout(f: Features, sizes: Tuple[int, int, int, int], sinks: Any, rate: float, seed: Any,
                      key: Any) -> None:
    if isinstance(sinks, str):
        if sinks != "zero":
            raise ArgumentError("sinks is %r; \"zero\", or an array of a score per query head, is accepted" % sinks)
        f.flags |= _abi.SINK_ZERO
    elif sinks is not None:
        array = array_of("sinks", sinks)
        real = jnp.issubdtype(array.dtype, jnp.floating)
        if not real or array.shape != (sizes[1],):
            raise (ArgumentError if real else ArgumentTypeError)(
                "sinks is %s of shape %s; floats of shape (%d,), one per query head, are accepted"
                % (array.dtype, array.shape, sizes[1]))
        f.flags |= _abi.SINKS
        f.slots[_abi.SLOT_SINKS] = array
    if rate:
        f.flags |= _abi.DROPOUT
        f.fields["dropout"] = rate
        f.slots[_abi.SLOT_SEED] = seed_of(seed, key)


def _told(given: Any, layout: str, sizes: Tuple[int, int, int, int], bottom_right: bool, lengths: Any,
          segment_ids: Any) -> Described:
    """Returns the lengths, segment ids and positions of the SequenceDescriptor `given`; if `given` is None, returns
    `lengths` and `segment_ids`. Raises ArgumentError if a SequenceDescriptor is combined with `lengths`, `segment_ids`
    or layout "thd", or if one with positions is combined with `bottom_right`."""
    if given is None:
        return Described(lengths, segment_ids)
    if lengths is not None or segment_ids is not None or layout == "thd":
        raise ArgumentError("sequence_descriptor beside %s; it says whose each row is"
                            % ("layout \"thd\"" if layout == "thd" else "lengths or segment_ids"))
    told = described(given, *sizes[2:])
    if told.positions is not None and bottom_right:
        raise ArgumentError("bottom_right with a sequence_descriptor that has positions in segments, which masks go by")
    return told


def ids_of(values: Any, name: str, sizes: Tuple[int, int, int, int], single: bool) -> List[Any]:
    """Returns [array of q, array of k], int arrays [B,S] and [B,T], from option `values`: one array for both, or a
    pair."""
    batch, _, rows, keys = sizes
    arrays = []
    for x, length in zip(map(array_of_ints, pair_of(values, name, rows == keys, False)), (rows, keys)):
        x = x[None] if single and x.ndim == 1 else x
        if x.shape != (batch, length) or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ArgumentError("%s are %s of shape %s; ints of shape (%d, %d) are accepted"
                                % (name, x.dtype, x.shape, batch, length))
        arrays.append(x)
    return arrays


def _with_segments(score: Score, ids: Any, padded: bool, sizes: Tuple[int, int, int, int], single: bool) -> Score:
    return score if ids is None else with_ids(score, ids_of(ids, "segment_ids", sizes, single), padded)


def with_ids(score: Score, ids: Sequence[Any], padded: bool = False, places: Tuple[str, str] = ("q_row", "k_row")
             ) -> Score:
    """Returns `score` with a mask that is true for pairs of equal ids. `ids`: int arrays [B,S] of q and [B,T] of k.
    `padded`: True if id 0 is padding, which attends to nothing.
    `places`: the two program expressions, one for a row and one for a key, that index `ids`, such as "q_row" and
        "k_row"."""
    of_q, of_k = same_ids(*ids)
    text = ("tensor zz_segment_k : {0}[2]\ntensor zz_segment_q : {0}[2]\n"
            "mask = mask && zz_segment_q[b, {q}] == zz_segment_k[b, {k}]{1}").format(
                {4: "i32", 8: "i64"}[of_q.dtype.itemsize], " && zz_segment_q[b, %s] != 0" % places[0] if padded else "",
                q=places[0], k=places[1])
    return score.appended(text, tensors={"zz_segment_q": of_q, "zz_segment_k": of_k})


def _with_positions(score: Score, positions: Any, causal: bool, window: Any, sizes: Tuple[int, int, int, int],
                    single: bool) -> Score:
    """Returns `score` with the masks `causal` and `window` over positions in segments."""
    text = None if positions is None else mask_text(causal, window)
    if text is None:
        return score
    of_q, of_k = map(in_32_bits, ids_of(positions, "positions in segments", sizes, single))
    return score.appended(text, tensors={"zz_pos_q": of_q, "zz_pos_k": of_k})


def with_scale(score: Score, scale: Any, dtype: Any) -> Tuple[Score, Tuple[Any, ...]]:
    """Returns `score` with `scale` applied, and the tuple Operands.scale. If `scale` is a number, Operands.scale
    contains it; an array becomes a param of the program, so that the array gets a gradient."""
    if scale is None:
        return score, ()
    if isinstance(scale, (int, float, np.number)) and not isinstance(scale, bool):
        if not math.isfinite(scale):
            raise ArgumentError("scale is %s; a finite number is accepted" % scale)
        return score, (number(scale, dtype),)
    array = None if isinstance(scale, str) else array_of("scale", scale)
    if array is None:
        raise ArgumentTypeError("scale is %r; a number, or an array of rank 0, is accepted" % scale)
    if array.ndim or not jnp.issubdtype(array.dtype, jnp.floating) and not jnp.issubdtype(array.dtype, jnp.integer):
        raise ArgumentError("scale is %s of shape %s; a number, or an array of rank 0 of them, is accepted"
                            % (array.dtype, array.shape))
    array = array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(number(0, dtype).dtype)
    text = "param zz_scale : float\nscore = score * zz_scale"
    return score.appended(text, params={"zz_scale": array}, before=True).scaled(array), (number(1.0, dtype),)


def number(value: Any, dtype: Any) -> Any:
    """Returns `value` as an array of rank 0: float64 if `dtype`, that of q, is float64; else float32."""
    return jnp.asarray(value, "float64" if dtype == jnp.dtype("float64") else "float32")
