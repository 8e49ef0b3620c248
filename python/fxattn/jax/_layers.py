# SPDX-License-Identifier: Apache-2.0
"""Code shared by the modules for linen (flax.py) and nnx (nnx.py): run() turns the arguments of Transformer Engine's
modules into a call of attention().

Settings has the arguments of a module's constructor, including callbacks; Given has the arguments of a call, including
tensors. All conflicts between arguments are reported in one error."""
import functools
import inspect
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import jax.numpy as jnp
import numpy as np

from .._arrays import code_of
from .._errors import ArgumentError
from .._program import DTYPE_NAMES
from ._attention import arranged, attention, shape_of_scores
from ._checks import array_of, rate_of, refuse_keywords
from ._mods import Mod, Score, resolve

# Options of attention() for each mask type of Transformer Engine. padding: the call must give lengths or a mask.
MASK_TYPES: Dict[str, Dict[str, bool]] = {
    "no_mask": {}, "padding": {"padding": True}, "causal": {"is_causal": True},
    "padding_causal": {"padding": True, "is_causal": True}, "causal_padding": {"padding": True, "is_causal": True},
    "causal_bottom_right": {"is_causal": True, "bottom_right": True},
    "padding_causal_bottom_right": {"padding": True, "is_causal": True, "bottom_right": True},
}
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias")
LAYOUTS = ("bshd_bshd_bshd", "bshd_bs2hd", "bs3hd")
SOFTMAX_TYPES = ("vanilla", "off-by-one", "learnable")


# Arguments of the modules of Transformer Engine and Flax that the modules of fxattn lack, with the error message.
_RING = "is not here: fxattn.jax.ring_attention, in a shard_map, spreads sequences over devices"
_NORM = "is not here: a LayerNorm of Flax before the module does it"
_ROTARY = "is not here: rotate query and key, and give them to DotProductAttention"
_CACHE = "is not here: keep keys and values yourself, with lengths in a sequence_descriptor"
REMEDIES = {
    **dict.fromkeys(("context_parallel_axis", "context_parallel_causal_load_balanced", "context_parallel_strategy",
                     "stripe_size"), _RING),
    **dict.fromkeys(("input_layernorm", "layernorm_type", "layernorm_epsilon", "return_layernorm_output",
                     "zero_centered_gamma", "normalize_qk"), _NORM),
    **dict.fromkeys(("enable_rotary_pos_emb", "rotary_pos_emb_windows", "rotary_pos_emb_group_method"), _ROTARY),
    **dict.fromkeys(("decode", "init_cache"), _CACHE),
    "float32_logits": "is not needed: scores are of float32 or wider, always",
    "max_segments_per_seq": "is not needed: there may be any number",
    "context_checkpoint_name": "is not here: results have the names fxattn.jax.OUT_NAME and STATS_NAME",
    "dtype": "is not here: computed is in the type of query, key and value", "param_dtype": "is not here",
    "num_heads": "is num_attention_heads here", "dropout_rate": "is attention_dropout here",
    "qkv_features": "is head_dim * num_attention_heads here", "broadcast_dropout": "is not here: each probability is "
    "dropped by itself", "attention_fn": "is not here: score_mod changes scores", "precision": "is not here",
}


def told(module: Any) -> Any:
    """Class decorator. Returns the module with a constructor that raises ArgumentTypeError for unknown arguments; the
    message says what replaces an argument of Transformer Engine or Flax."""
    made, known = module.__init__, inspect.signature(module.__init__).parameters

    @functools.wraps(made)
    def init(self: Any, *given: Any, **named: Any) -> None:
        refuse_keywords(module.__name__, (), [name for name in named if name not in known], {
            name: one for name, one in known.items() if name != "self"}, REMEDIES)
        made(self, *given, **named)
    module.__init__ = init
    return module


class Settings(NamedTuple):
    """The arguments of the constructor of DotProductAttention."""

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: Optional[int] = None
    attention_dropout: float = 0.0
    attn_mask_type: str = "causal"
    attn_bias_type: Optional[str] = None
    qkv_layout: str = "bshd_bshd_bshd"
    scale_factor: Optional[float] = None
    transpose_batch_sequence: bool = False
    window_size: Optional[Tuple[int, int]] = None
    softmax_type: str = "vanilla"
    score_mod: Mod = None
    score_mod_bprop: Mod = None
    bounds_check: bool = False

    def check(self, who: str) -> None:
        groups = self.num_attention_heads if self.num_gqa_groups is None else self.num_gqa_groups
        names = (("attn_mask_type", self.attn_mask_type, MASK_TYPES), ("qkv_layout", self.qkv_layout, LAYOUTS),
                 ("softmax_type", self.softmax_type, SOFTMAX_TYPES))
        rules = [(value not in known, "%s is %r, not one of %s" % (name, value, ", ".join(known)))
                 for name, value, known in names]
        rules += [(self.attn_bias_type not in (None, *BIAS_TYPES),
                   "attn_bias_type is %r, not one of %s" % (self.attn_bias_type, ", ".join(BIAS_TYPES))),
                  (groups < 1 or self.num_attention_heads % max(groups, 1) != 0,
                   "num_attention_heads is %d, no multiple of num_gqa_groups %d" % (self.num_attention_heads, groups))]
        window = self.window_size
        if window is not None and not (isinstance(window, (tuple, list)) and len(window) == 2 and all(
                isinstance(side, (int, np.integer)) for side in window)):
            rules.append((True, "window_size is %r, not (left, right): two ints, where -1 does not limit a side"
                          % (window,)))
        rate_of("attention_dropout", self.attention_dropout)
        refuse(who, [text for wrong, text in rules if wrong])


class Given(NamedTuple):
    """The arguments of a call of DotProductAttention after query, key and value."""

    sequence_descriptor: Any = None
    bias: Any = None
    mask: Any = None
    score_mod_tensors: Optional[Mapping[str, Any]] = None
    score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None


def refuse(who: str, problems: List[str]) -> None:
    if problems:
        raise ArgumentError("%s cannot do this: %s" % (who, "; ".join(problems)))


def run(settings: Settings, query: Any, key: Any, value: Any, given: Given, sinks: Any, dropout_key: Any) -> Any:
    """Returns the output of DotProductAttention. `sinks`: the learned softmax_offset [H], or None. `dropout_key`: None
    for no dropout."""
    ready = MASK_TYPES[settings.attn_mask_type]
    _check_call(settings, given, bool(ready.get("padding")))
    q, k, v = _separate(settings, query, key, value)
    q, k, v, _ = arranged(q, k, v, "bshd")
    shape = shape_of_scores(q, k, v, "bshd", None)
    heads = shape[1], k.shape[2], q.shape[3]
    groups = settings.num_gqa_groups or settings.num_attention_heads
    if heads != (settings.num_attention_heads, groups, settings.head_dim):
        raise ArgumentError("heads of q, heads of k and features are %s; the module has %s"
                            % (heads, (settings.num_attention_heads, groups, settings.head_dim)))
    score = resolve(settings.score_mod, None, settings.score_mod_bprop, given.score_mod_tensors,
                    given.score_mod_bprop_tensors, None, shape, q.dtype)
    score = _with_bias(score, settings, given.bias, shape)
    score = _with_mask(score, given.mask, shape)
    options: Dict[str, Any] = {name: on for name, on in ready.items() if name != "padding"}
    out = attention(q, k, v, score_mod=score if score.program is not None else None,  # type: ignore[arg-type]
                    window=settings.window_size, sinks={"off-by-one": "zero"}.get(settings.softmax_type, sinks),
                    scale=settings.scale_factor,
                    dropout_p=0.0 if dropout_key is None else settings.attention_dropout, dropout_key=dropout_key,
                    sequence_descriptor=given.sequence_descriptor, bounds_check=settings.bounds_check, **options)
    return jnp.swapaxes(out, 0, 1) if settings.transpose_batch_sequence else out


def _check_call(settings: Settings, given: Given, padding: bool) -> None:
    bias_type = settings.attn_bias_type or ("no_bias" if given.bias is None else "post_scale_bias")
    whose = given.sequence_descriptor is not None or given.mask is not None
    rules = [
        ((bias_type == "no_bias") != (given.bias is None),
         "attn_bias_type %s %s bias" % (bias_type, "without" if given.bias is None else "with")),
        (padding and not whose, "attn_mask_type %s without sequence_descriptor or mask" % settings.attn_mask_type),
        (not padding and whose, "sequence_descriptor or mask with attn_mask_type %s" % settings.attn_mask_type),
        (given.sequence_descriptor is not None and given.mask is not None, "sequence_descriptor and mask together"),
        (settings.score_mod is not None and given.bias is not None, "score_mod with bias: write it into score_mod"),
        (settings.score_mod is None and settings.score_mod_bprop is not None, "score_mod_bprop without score_mod"),
        (settings.score_mod is None and given.score_mod_tensors is not None, "score_mod_tensors without score_mod"),
        (settings.score_mod_bprop is None and given.score_mod_bprop_tensors is not None,
         "score_mod_bprop_tensors without score_mod_bprop"),
    ]
    refuse("DotProductAttention", [text for wrong, text in rules if wrong])


def _separate(settings: Settings, query: Any, key: Any, value: Any) -> Tuple[Any, Any, Any]:
    """Returns q, k and v as [B,S,H,D] from arrays in settings.qkv_layout, which may be packed into one array or
    transposed."""
    want = {"bs3hd": 1, "bshd_bs2hd": 2, "bshd_bshd_bshd": 3}[settings.qkv_layout]
    if any((x is None) != (n >= want) for n, x in enumerate((query, key, value))):
        raise ArgumentError("qkv_layout %s takes %s, and no more" % (
            settings.qkv_layout, ("query alone", "query and key", "query, key and value")[want - 1]))
    arrays = [jnp.swapaxes(x, 0, 1) if settings.transpose_batch_sequence else x
              for x in (query, key, value) if x is not None]
    packed = arrays[-1] if want < 3 else None
    if packed is not None and (packed.ndim != 5 or packed.shape[2] != 4 - want):
        raise ArgumentError("qkv_layout %s has an array of shape %s; [B,S,%d,H,D] is accepted"
                            % (settings.qkv_layout, packed.shape, 4 - want))
    parts = [] if packed is None else [packed[:, :, n] for n in range(4 - want)]
    return tuple([*arrays[:want - 1], *parts] if packed is not None else arrays)  # type: ignore[return-value]


def _indices(name: str, array: Any, shape: Tuple[int, ...]) -> Tuple[Any, str]:
    """Returns `array` reshaped to rank 4, and the list of index expressions with which a program loads the array's
    element of a (q, k) pair; the expression of an axis of size 1 is "0". Raises ArgumentError if `array` does not
    broadcast to `shape`."""
    full = (1,) * (4 - array.ndim) + array.shape
    if len(full) != 4 or any(size not in (1, whole) for size, whole in zip(full, shape)):
        raise ArgumentError("%s has shape %s, which does not broadcast to the scores' %s" % (name, array.shape, shape))
    return array.reshape(full), ", ".join(axis if size != 1 else "0" for axis, size in zip("bhqk", full))


def _with_bias(score: Score, settings: Settings, bias: Any, shape: Tuple[int, ...]) -> Score:
    if bias is None:
        return score
    bias = array_of("bias", bias)
    if not jnp.issubdtype(bias.dtype, jnp.floating):
        bias = bias.astype("float32")
    if settings.attn_bias_type == "pre_scale_bias":
        scale = settings.head_dim**-0.5 if settings.scale_factor is None else settings.scale_factor
        bias = bias * jnp.asarray(scale, bias.dtype)
    bias, index = _indices("bias", bias, shape)
    kind = DTYPE_NAMES[code_of(bias, "bias")]
    return score.appended("tensor zz_bias : %s[4]\nscore = score + zz_bias[%s]" % (kind, index), {"zz_bias": bias})


def _with_mask(score: Score, mask: Any, shape: Tuple[int, ...]) -> Score:
    if mask is None:
        return score
    mask, index = _indices("mask", jnp.asarray(mask).astype(bool), shape)
    return score.appended("tensor zz_hidden : bool[4]\nmask = mask && !zz_hidden[%s]" % index, {"zz_hidden": mask})
