# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, made before a call is traced into primitives: arrays, options that must be known at trace time,
and keywords of other libraries. Each error message names the argument and what is accepted."""
import inspect
import operator
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _options
from .._errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ._spec import is_symbolic

_FAR = 2**31 - 1
# Keywords of other libraries that attention() does not have, with the end of the error message: what to write instead.
_ARRAYS = ("is no argument here: dot_product_attention takes arrays of it, and attention a function, "
           "%s=lambda %sb, h, q, k: ..., that reads them")
_MODULES = "is of the modules in fxattn.jax.flax and fxattn.jax.nnx; here it is %s"
REMEDIES = {
    "bias": _ARRAYS % ("score_mod", "score, "), "mask": _ARRAYS % ("mask_mod", ""),
    "attn_mask": _ARRAYS % ("mask_mod", ""), "attention_mask": _ARRAYS % ("mask_mod", ""),
    "block_mask": "is no argument here: mask_mod is enough, blocks are found from it",
    "local_window_size": "is called window=(left, right)", "rngs": "is called dropout_key=",
    "dropout_rng": "is called dropout_key=",
    "implementation": "is no argument here; engine names one of the library's",
    "pages": "is no argument here: keys and values of fxattn.jax are whole arrays",
    "return_row_max": "is no argument here; return_lse has what a merge of parts needs",
    "lse_dtype": "is no argument here: log-sum-exp is float32, and float64 of float64",
    "threads": "is no argument here: FXA_THREADS in the environment says how many threads run a call",
    "broadcast_dropout": "is no argument here: each probability is dropped by itself",
    "precision": "is no argument here: products are summed in float32, in float64 of float64",
    "enable_gqa": "is no argument here: heads of q may be any multiple of those of k and v",
    "attn_mask_type": _MODULES % "is_causal, bottom_right, q_lengths and k_lengths or segment_ids",
    "attn_bias_type": _MODULES % "score_mod", "attention_dropout": _MODULES % "dropout_p",
    "scale_factor": _MODULES % "scale", "window_size": _MODULES % "window",
    "softmax_type": _MODULES % "sinks", "qkv_layout": _MODULES % "layout", "softmax_offset": _MODULES % "sinks",
}


def array_of(name: str, value: Any) -> Any:
    """Returns `value` as a JAX array. Accepts arrays of JAX and NumPy, lists, nnx.Param and any value with
    __jax_array__. Raises ArgumentTypeError for a value that is no array, with `name` in the message."""
    if value is None:
        raise ArgumentTypeError("%s is None; an array is accepted" % name)
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError("%s is of type %s; an array is accepted (%s)"
                                % (name, type(value).__name__, str(error).partition("\n")[0])) from None


def refuse_symbolic(what: str, *arrays: Any) -> None:
    """Raises UnsupportedError if an array has symbolic sizes (of jax.export), which the feature `what` does not
    support."""
    for x in arrays:
        if is_symbolic(x.shape):
            raise UnsupportedError("an array has the symbolic shape %s, of jax.export, which %s cannot have; export "
                                   "for each shape, of ints, or for the largest one, with lengths of what is there"
                                   % (x.shape, what))


def _refuse_traced(name: str, value: Any, remedy: str) -> None:
    if isinstance(value, jax.core.Tracer):
        raise ArgumentTypeError("%s is traced, and part of what is compiled: give jax.jit "
                                "static_argnames=(\"%s\",), or %s" % (name, name, remedy))


def flag(name: str, value: Any, remedy: str = "a Python bool") -> bool:
    """Returns option `name` as a bool. Raises ArgumentTypeError, which suggests `remedy`, if `value` is a tracer."""
    _refuse_traced(name, value, remedy)
    return _options.flag(name, value)


def _count(value: Any) -> int:
    """Returns `value` as an int; -1 if it is not an int, or is a bool."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return -1


def size_of(name: str, value: Any, default: int) -> int:
    """Returns the number of rows `value`, or `default` if it is None. Raises ArgumentTypeError for tracers and values
    that are not ints from 0."""
    _refuse_traced(name, value, "a Python int; None is as long as all")
    if value is None:
        return default
    found = _count(value)
    if found < 0:
        raise ArgumentTypeError("%s is %r; an int from 0, or None, is accepted" % (name, value))
    return found


def window_of(window: Any) -> Optional[Tuple[Optional[int], Optional[int]]]:
    """Returns (left, right) of `window` with None for an open side; None without a window. Raises ArgumentTypeError for
    a tracer."""
    for given in (window, *(window if isinstance(window, (tuple, list)) else ())):
        _refuse_traced("window", given, _BY_MASK)
    sides = _options.window_sides(window)
    # Larger sides are reduced to _FAR, because no sequence is longer than _FAR.
    return None if sides is None else tuple(  # type: ignore[return-value]
        None if side < 0 else min(side, _FAR) for side in sides)


_BY_MASK = "write it as mask_mod, whose numbers may be traced: mask_mod=lambda b, h, q, k: q - k <= left"


def rate_of(name: str, value: Any) -> float:
    """Returns the dropout probability `value` as a float. Raises ArgumentTypeError if `value` is a tracer or not a
    number, and ArgumentError if `value` is outside [0, 1)."""
    _refuse_traced(name, value, "a Python number; a few rates can be branches of jax.lax.switch")
    try:
        rate = None if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        rate = None
    if rate is None or not 0.0 <= rate < 1.0:
        raise (ArgumentTypeError if rate is None else ArgumentError)("%s is %r; a number from 0 to below 1 is accepted"
                                                                     % (name, value))
    return rate


def seed_of(seed: Any, key: Any) -> Any:
    """Returns a 64-bit seed as a uint32 array of two words, low word first. `seed`: an int, or an array of rank 0; or
    `key`: a key of jax.random. Raises an error unless exactly one of `seed` and `key` is given."""
    if key is not None:
        if seed is not None:
            raise ArgumentTypeError("seed= and dropout_key= are both given, and are one option: give one of them")
        return _seed_of_key(key)
    if seed is None:
        raise ArgumentError("dropout_p without seed, an int, or dropout_key, a key of jax.random")
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if not -(1 << 63) <= seed < 1 << 64:
            raise ArgumentError("seed is %d; 64 bits are accepted" % seed)
        return jnp.asarray([int(seed) >> shift & 0xFFFFFFFF for shift in (0, 32)], "uint32")
    array = array_of("seed", seed) if not isinstance(seed, str) else None
    if array is None or array.ndim or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ArgumentTypeError("seed is %r; an int, or an array of rank 0 of ints, is accepted" % (seed,))
    if array.dtype.itemsize < 8:
        return jnp.stack([array.astype("uint32"), jnp.where(array < 0, np.uint32(0xFFFFFFFF), np.uint32(0))])
    return jnp.stack([(array >> shift).astype("uint32") for shift in (0, 32)])


def _seed_of_key(key: Any) -> Any:
    try:
        return jax.random.bits(key, (2,), "uint32")
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError("dropout_key is of type %s; one key of jax.random is accepted, as jax.random.key(0) "
                                "gives it (%s)" % (type(key).__name__, str(error).partition("\n")[0])) from None


def offsets_of(name: str, value: Any) -> int:
    """Returns the number of packed sequences: the size of their offsets `value` minus 1."""
    shape = np.shape(value)
    if len(shape) != 1 or shape[0] < 1:
        raise ArgumentError("%s has shape %s; ints of shape [N+1] are accepted, where N sequences begin and the last "
                            "one ends" % (name, shape))
    return int(shape[0]) - 1


def refuse_keywords(who: str, surplus: Sequence[Any], unknown: Iterable[str], accepted: Mapping[str, Any],
                    remedies: Optional[Mapping[str, str]] = None) -> None:
    """Raises ArgumentTypeError if function `who`, with the parameters `accepted`, was called with `surplus` positional
    arguments or `unknown` keywords. The message of the error says what to write instead of a keyword, if the dictionary
    `remedies` or REMEDIES has the keyword."""
    if surplus:
        first = [p.name for p in accepted.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        raise ArgumentTypeError("%s takes %s by position, and everything else by name, as is_causal=True; %d more "
                                "given, of type %s" % (who, ", ".join(first), len(surplus),
                                                       ", ".join(type(x).__name__ for x in surplus)))
    known = {**REMEDIES, **(remedies or {})}
    told = ["%s %s" % (name, known[name]) for name in unknown if name in known]
    rest = [name for name in unknown if name not in known]
    if rest:
        told.append(str(_options.unknown_keywords(rest, accepted)))
    if told:
        raise ArgumentTypeError("%s: %s" % (who, "; ".join(told)))


def signature_without_rest(function: Callable[..., Any]) -> Dict[str, inspect.Parameter]:
    """Removes *surplus and **unknown from the signature that help() shows for `function`. Returns the other parameters
    of `function`, by name."""
    found = inspect.signature(function)
    kept = [p for p in found.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    function.__signature__ = found.replace(parameters=kept)  # type: ignore[attr-defined]
    return {p.name: p for p in kept}


# Replacements in messages of the tracer, which suggest functions of PyTorch, by the functions of JAX.
_SPOKEN = (
    ("x.int() or x.to(torch.int32)", "x.astype(jnp.int32)"), (".int() or .to(torch.int32)", ".astype(jnp.int32)"),
    (".int()", ".astype(jnp.int32)"), ("x.float()", "x.astype(jnp.float32)"),
    ("torch.* or numpy functions", "jax.numpy's"),
    ("x.abs() or torch.abs(x), not torch.Tensor.abs(x)", "jnp.abs(x)"), ("a torch tensor", "a JAX array"),
    ("is made a tensor", "is made an array, jnp.asarray(x)"), ("make a tensor of", "make an array of"),
    ("is not supported by torch", "is not supported"), ("functions of torch and NumPy", "functions of JAX and NumPy"),
    ("function of torch, NumPy or jax.numpy", "function of jax.numpy or NumPy"), ("torch.", "jnp."),
)


def in_words_of_jax(text: str) -> str:
    """Returns a message of the tracer with functions of PyTorch replaced by functions of JAX."""
    for theirs, ours in _SPOKEN:
        text = text.replace(theirs, ours)
    return text
