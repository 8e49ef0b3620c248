# SPDX-License-Identifier: Apache-2.0
"""Checks options that the front ends for numpy, torch and jax share. A table maps the names of options in other
libraries (docs/names.md) to the names in fxattn."""
import functools
import inspect
import operator
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, cast

from ._errors import ArgumentError, ArgumentTypeError

# Option names of other libraries (PyTorch, FlashAttention, xformers, Transformer Engine, cuDNN, jax.nn, Hugging Face)
# and of prereleases of this package, with the options of fxattn that mean the same. Error messages suggest these. A
# name that a front end accepts itself is not looked up, such as `causal` of fxattn.jax.
CALLED: Dict[str, Tuple[str, ...]] = {
    "score": ("score_mod",), "mask": ("mask_mod",), "attn_mask": ("mask_mod",), "attention_mask": ("mask_mod",),
    "block_mask": ("mask_mod",), "attn_bias": ("score_mod",), "bias": ("score_mod",),
    "causal": ("is_causal",), "use_causal_mask": ("is_causal",),
    "causal_bottom_right": ("is_causal", "bottom_right"), "use_causal_mask_bottom_right": ("is_causal", "bottom_right"),
    "window_size": ("window",), "local_window_size": ("window",), "sliding_window": ("window",),
    "sliding_window_length": ("window",), "softmax_scale": ("scale",), "sm_scale": ("scale",),
    "attn_scale": ("scale",), "scale_factor": ("scale",), "scaling": ("scale",),
    "dropout": ("dropout_p",), "p": ("dropout_p",), "dropout_rate": ("dropout_p",), "attention_dropout": ("dropout_p",),
    "dropout_key": ("seed",), "dropout_rng": ("seed",), "generator": ("seed",),
    "lengths": ("q_lengths", "k_lengths"), "seq_len_q": ("q_lengths",), "query_seq_lengths": ("q_lengths",),
    "seq_len_kv": ("k_lengths",), "key_value_seq_lengths": ("k_lengths",), "cache_seqlens": ("k_lengths",),
    "cu_seqlens_q": ("cu_q",), "cu_seq_lens_q": ("cu_q",), "cu_seqlens_k": ("cu_k",), "cu_seqlens_kv": ("cu_k",),
    "cu_seq_lens_k": ("cu_k",), "max_seqlen_q": ("max_q",), "max_seqlen_k": ("max_k",), "max_seqlen_kv": ("max_k",),
    "max_length_q": ("max_q",), "max_length_k": ("max_k",),
    "block_table": ("pages",), "page_table": ("pages",), "positions": ("q_start",),
    "sink": ("sinks",), "s_aux": ("sinks",), "sink_token": ("sinks",), "softmax_offset": ("sinks",),
    "softmax_type": ("sinks",),
    "bprop": ("score_mod_bprop",), "score_mod_tensors": ("tensors",), "score_mod_bprop_tensors": ("bprop_tensors",),
    "return_max": ("return_row_max",), "return_max_logit": ("return_row_max",), "return_residual": ("return_lse",),
    "return_softmax_lse": ("return_lse",), "return_attn_probs": ("return_lse",), "generate_stats": ("return_lse",),
    "strict_index": ("bounds_check",), "qkv_format": ("layout",), "qkv_layout": ("layout",),
    "q_len": ("global_q_len",), "k_len": ("global_k_len",), "heads": ("global_heads",),
    "num_threads": ("threads",), "backend": ("engine",), "implementation": ("engine",), "op": ("engine",),
}
# Further suggestions, by the name of an option. `order` is the order of the shards of a sequence in ring_attention.
_INSTEAD = {"layout": ("order",)}


def called_here(name: str, accepted: Iterable[str]) -> List[str]:
    """Returns the options in `accepted` that have the meaning of the option `name` of another library; an empty list if
    there is no such option."""
    accepted = set(accepted)
    wanted = (*CALLED.get(name, ()), *_INSTEAD.get(name, ()))
    return [one for one in wanted if one in accepted] if wanted else []


def unknown_keywords(unknown: Iterable[str], accepted: Iterable[str]) -> ArgumentTypeError:
    """Returns the error for `unknown` keywords of a function whose parameters are `accepted`. For a keyword of another
    library, the message suggests the option of fxattn with the same meaning; for any other keyword, the message lists
    all accepted names."""
    accepted = list(accepted)
    known: List[str] = []
    others: List[str] = []
    for name in unknown:
        same = called_here(name, accepted)
        if same:
            known.append("%s= is called %s" % (name, " and ".join("%s=" % one for one in same)))
        else:
            others.append(name)
    if others:
        known.append("unexpected keyword %s; accepted are %s" % (", ".join(others), ", ".join(accepted)))
    return ArgumentTypeError("; ".join(known))


_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_hints(function: _Function) -> _Function:
    """Decorator. Returns a wrapper of `function` that raises unknown_keywords() for keywords that `function` lacks."""
    accepted = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if not accepted.keys() >= keywords.keys():
            raise unknown_keywords([name for name in keywords if name not in accepted], accepted)
        return function(*args, **keywords)

    return cast(_Function, call)


def one_of_two(name: str, value: Any, alias: str, given: Any, default: Any = None) -> Tuple[str, Any]:
    """Returns (name, value) of an option, under the name that the caller used: `name` with value `value`, or its alias
    `alias` with value `given`. Raises ArgumentTypeError if the caller used both the name and the alias of the
    option."""
    if given is None:
        return name, value
    if value is not default:
        raise ArgumentTypeError("%s= and %s= are both given, and are one option: give one of them" % (name, alias))
    return alias, given


def flag(name: str, value: Any) -> bool:
    """Returns option `name` as a bool. Accepts True, False, 1, 0, and bool scalars of any array library; raises
    ArgumentTypeError for any other value."""
    if value is True or value is False:
        return bool(value)
    if isinstance(value, int) and value in (0, 1) or type(value).__name__ == "SymBool":
        return bool(value)
    if str(getattr(value, "dtype", "")).rpartition(".")[2] == "bool" and getattr(value, "ndim", None) == 0:
        return bool(value)
    raise ArgumentTypeError("%s is %r; True or False is accepted" % (name, value))


WINDOW_TEXT = "(left, right) is accepted: two ints >= 0, where None or -1 means that the side is not limited"


def window_sides(window: Any, whole: Callable[[Any], Any] = operator.index) -> Optional[Tuple[Any, Any]]:
    """Returns (left, right) of `window`, with -1 for an open side; None if `window` is None. The function `whole`
    converts a side of the window to an int, or raises TypeError.

    Raises ArgumentTypeError if `window` is not a pair of ints, and ArgumentError for a side below -1."""
    if window is None:
        return None
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ArgumentTypeError("window is %r; %s" % (window, WINDOW_TEXT))
    sides = []
    for given in window:
        try:
            if isinstance(given, bool):
                raise TypeError
            side = -1 if given is None else whole(given)
        except TypeError:
            raise ArgumentTypeError("window is %r; %s" % (window, WINDOW_TEXT)) from None
        if side < -1:
            raise ArgumentError("window is %r; %s" % (window, WINDOW_TEXT))
        sides.append(side)
    return sides[0], sides[1]
