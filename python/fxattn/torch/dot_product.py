# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention: Transformer Engine's module, with the same names, shapes and arguments, for any score_mod.

forward() takes score_mod, score_mod_bprop, score_mod_tensors and score_mod_bprop_tensors. Callback objects written for
Transformer Engine run unchanged, also together with masks, windows, dropout, lengths and grouped heads. Arguments that
exclude each other are collected and refused in one error (raise_if_any).
"""
import inspect
import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .._options import flag
from .attention import attention
from .block_mask import positional_arity

# The built-in masks that implement each mask type of Transformer Engine.
MASK_TYPES: Dict[str, Dict[str, bool]] = {
    "no_mask": {},
    "padding": {"padding": True},
    "causal": {"causal": True},
    "padding_causal": {"padding": True, "causal": True},
    "causal_bottom_right": {"causal": True},
    "padding_causal_bottom_right": {"padding": True, "causal": True},
    "arbitrary": {"arbitrary": True},
}
FORMATS = ("sbhd", "bshd", "thd")


def raise_if_any(who: str, problems: List[str]) -> None:
    """Raises ValueError with all texts of `problems`, if there are any."""
    if problems:
        raise ValueError("%s cannot do this: %s" % (who, "; ".join(problems)))


def is_graph_style(score_mod: Any) -> bool:
    """Returns True if `score_mod` has the three arguments of Transformer Engine's score_mod(graph, score, tensors);
    FlexAttention's functions have five."""
    if not callable(score_mod):
        return False
    if hasattr(score_mod, "__wrapped__"):  # a wrapper made by functools.wraps, whose own code has other arguments
        return [p.kind for p in inspect.signature(score_mod).parameters.values()
                if p.default is p.empty].count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == 3
    return positional_arity(score_mod) == 3


def _element(table: Tensor, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Returns element (b, h, q, k) of `table`, [B or 1, H or 1, Sq or 1, Sk]."""
    b, h, q = (at if size > 1 else 0 for at, size in zip((b, h, q), table.shape))
    return table[b, h, q, k]


def _score_of(softcap: Optional[float], slopes: Optional[Tensor], bias: Optional[Tensor], factor: float = 1.0,
              shift: int = 0) -> Optional[Callable[..., Any]]:
    """Returns a score function that adds core_attention_bias (multiplied by `factor`) and ALiBi's terms to scores and
    then applies softcap; None if bias, slopes and softcap are all unset. `shift` is added to q in ALiBi's distance q -
    k."""
    if softcap is None and slopes is None and bias is None:
        return None

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        if bias is not None:
            s = s + _element(bias, b, h, q, k) * factor
        if slopes is not None:
            s = s + (slopes[b, h] if slopes.dim() == 2 else slopes[h]) * -(q + shift - k).abs()
        return s if softcap is None else softcap * torch.tanh(s / softcap)

    return score


def default_slopes(heads: int, device: torch.device) -> Tensor:
    """Returns the default ALiBi slopes of Transformer Engine."""
    n = 2 ** int(math.log2(heads))
    first, more = 2.0 ** (-8.0 / n), 2.0 ** (-4.0 / n)
    slopes = [first ** i for i in range(1, n + 1)] + [more ** i for i in range(1, 2 * (heads - n), 2)]
    return torch.tensor(slopes, device=device)


def _mask_function(hidden: Tensor) -> Callable[..., Any]:
    """Returns the mask_mod of tensor `hidden`, [B or 1, H or 1, Sq or 1, Sk], which is True for pairs that are not
    attended."""

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ~_element(hidden, b, h, q, k)

    return mask


ANY = None  # in the tables of arguments below: every value is accepted
# Arguments of Transformer Engine for features that fxattn lacks, and their accepted values, which disable the feature.
INIT_OTHERS: Dict[str, Optional[Tuple[Any, ...]]] = {
    "sequence_parallel": (False,), "tp_size": (1,), "get_rng_state_tracker": (None,), "tp_group": (None,),
    "attention_type": ("self", "cross"), "cp_group": (None,), "cp_global_ranks": (None,), "cp_stream": (None,),
    "cp_comm_type": ANY, "return_max_logit": (False, None), "name": ANY}
FORWARD_OTHERS: Dict[str, Optional[Tuple[Any, ...]]] = {
    "cu_seqlens_q_padded": (None,), "cu_seqlens_kv_padded": (None,), "checkpoint_core_attention": ANY,
    "fast_zero_fill": ANY, "inference_params": (None,), "pad_between_seqs": (None, False), "fp8_output": (False, None),
    "bf16_backward": (False, None), "num_splits": ANY, "qkv_layer": (None,), "kv_layer": (None,),
    "qkv_interleave_dim": ANY}
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")


def others_refused(who: str, given: Mapping[str, Any], table: Mapping[str, Optional[Tuple[Any, ...]]],
                   hints: Mapping[str, str]) -> List[str]:
    """Returns a message for each argument in `given` (name: value) whose value is not among the values that `table`
    accepts for the name. Raises TypeError for a name that is not in `table`; `hints` maps some unknown names to a text
    that is added to the message."""
    problems = []
    for name, value in given.items():
        if name not in table:
            raise TypeError("%s has no argument %r%s" % (who, name, hints.get(name, "")))
        allowed = table[name]
        if allowed is not None and not any(value is one for one in allowed):
            if not (isinstance(value, (int, str)) and value in allowed):
                problems.append("%s is given as %s; %s is accepted" % (
                    name, type(value).__name__ if hasattr(value, "shape") else repr(value),
                    " or ".join(map(repr, allowed))))
    return problems


def mask_kind(name: str) -> str:
    """Returns a mask type of Transformer Engine in the spelling of the keys of MASK_TYPES. Transformer Engine also
    accepts commas in the name of a mask type, and "causal,padding"."""
    kind = name.replace(",", "_") if isinstance(name, str) else name
    return "padding_causal" if kind == "causal_padding" else kind


class _ScoreTerms(NamedTuple):
    """What a call adds to scores: a bias tensor or ALiBi slopes, and `kind`, the argument core_attention_bias_type."""

    kind: Optional[str]
    bias: Optional[Tensor]
    slopes: Optional[Tensor]

    def problems(self) -> List[str]:
        rules = ((self.kind is not None and self.kind not in BIAS_TYPES,
                  "core_attention_bias_type is %r, not one of %s" % (self.kind, ", ".join(BIAS_TYPES))),
                 (self.kind in ("no_bias", "alibi") and self.bias is not None,
                  "core_attention_bias with core_attention_bias_type %s" % self.kind),
                 (self.kind in ("pre_scale_bias", "post_scale_bias") and self.bias is None,
                  "core_attention_bias_type %s without core_attention_bias" % self.kind),
                 (self.kind not in (None, "alibi") and self.slopes is not None,
                  "alibi_slopes with core_attention_bias_type %s" % self.kind))
        return [text for wrong, text in rules if wrong]


_NOT_AT_END = ("DotProductAttention cannot do this: attention_mask (True: hidden) of attn_mask_type padding hides "
               "positions before others that it shows, and padding is at the end; attn_mask_type=\"arbitrary\" takes "
               "such a mask")


def _lengths(mask: Any, cu_q: Optional[Tensor], cu_k: Optional[Tensor]) -> Dict[str, Any]:
    """Returns the sequence lengths as a dictionary with the keys q_lengths and k_lengths, computed from padding masks
    or, where a mask is missing, from the offsets cu_q and cu_k."""
    masks = mask if isinstance(mask, tuple) else (None, mask)
    found: Dict[str, Any] = {}
    for name, hidden, offsets in (("q_lengths", masks[0], cu_q), ("k_lengths", masks[1], cu_k)):
        if hidden is not None:
            shown = (~hidden).reshape(hidden.shape[0], -1)
            early = shown[:, 1:] & hidden.reshape(shown.shape)[:, :-1]
            if shown.is_cuda:  # an assertion on the device, because reading the value would wait
                torch._assert_async(~early.any(), _NOT_AT_END)
            elif shown.is_cpu and not torch.compiler.is_compiling() and bool(early.any()):
                raise ValueError(_NOT_AT_END)
            found[name] = shown.sum(-1)
        elif offsets is not None:
            found[name] = offsets[1:] - offsets[:-1]
    return found


class DotProductAttention(nn.Module):
    """Computes softmax(score_mod(softmax_scale * q k^T)) v for q [s,b,h,d] (sbhd), [b,s,h,d] (bshd) or [t,h,d] (thd).
    The result has heads and head dim in one dimension, as in Transformer Engine.

    `num_attention_heads`: the number of heads of q.
    `kv_channels`: the head dim of q, k and v, or the pair (head dim of q and k, head dim of v).
    `num_gqa_groups`: the number of heads of k and v, by default num_attention_heads.
    `attention_dropout`: the dropout probability in training mode.
    `qkv_format`: the order of dimensions: sbhd, bshd, or thd for packed rows.
    `attn_mask_type`: no_mask, padding, causal, padding_causal, causal_bottom_right, padding_causal_bottom_right or
        arbitrary.
    `window_size`: (left, right), where -1 means unlimited.
    `bottom_right_diagonal`: True aligns causal masks, window and ALiBi to the last row and key, False to the first;
        None means False if attn_mask_type is causal or padding_causal, else True.
    `layer_number`: stored for callers, otherwise unused.
    `softmax_scale`: the factor of q k^T; None means 1 / sqrt(head dim).
    `softmax_type`: vanilla, off-by-one (a key of score 0) or learnable (a key with a learned score per head, the
        parameter softmax_offset).
    `softcap`: replaces each score by softcap * tanh(score / softcap).
    `bounds_check`: an index outside a tensor of score_mod raises IndexError (not an argument of Transformer Engine).
    `others`: the other arguments of Transformer Engine's module, such as those of tensor and context parallelism. In
        `others`, only a value that switches the argument's feature off (such as None or False) is accepted; every other
        value raises an error that names the argument. For sequences that are sharded over processes use ring_attention.
    """

    def __init__(self, num_attention_heads: int, kv_channels: Any, num_gqa_groups: Optional[int] = None,
                 attention_dropout: float = 0.0, qkv_format: str = "sbhd", attn_mask_type: str = "causal",
                 window_size: Optional[Tuple[int, int]] = None, bottom_right_diagonal: Optional[bool] = None,
                 layer_number: Optional[int] = None, softmax_scale: Optional[float] = None,
                 softmax_type: str = "vanilla", softcap: Optional[float] = None, bounds_check: bool = False,
                 **others: Any) -> None:
        super().__init__()
        problems = others_refused("DotProductAttention", others, INIT_OTHERS, {})
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        if groups < 1 or num_attention_heads % groups:
            problems.append("num_attention_heads is %d, no multiple of num_gqa_groups %d"
                            % (num_attention_heads, groups))
        if qkv_format not in FORMATS:
            problems.append("qkv_format is %r, not one of %s" % (qkv_format, ", ".join(FORMATS)))
        if mask_kind(attn_mask_type) not in MASK_TYPES:
            problems.append("attn_mask_type is %r, not one of %s" % (attn_mask_type, ", ".join(MASK_TYPES)))
        if softmax_type not in ("vanilla", "off-by-one", "learnable"):
            problems.append("softmax_type is %r, not one of vanilla, off-by-one, learnable" % softmax_type)
        raise_if_any("DotProductAttention", problems)
        self.num_attention_heads, self.num_gqa_groups = num_attention_heads, groups
        self.kv_channels = kv_channels if isinstance(kv_channels, tuple) else (kv_channels, kv_channels)
        self.attention_dropout, self.qkv_format, self.attn_mask_type = attention_dropout, qkv_format, attn_mask_type
        self.window_size, self.layer_number, self.softmax_scale = window_size, layer_number, softmax_scale
        self.bottom_right_diagonal, self.softcap, self.softmax_type = bottom_right_diagonal, softcap, softmax_type
        self.softmax_offset = nn.Parameter(torch.zeros(num_attention_heads)) if softmax_type == "learnable" else None
        self.bounds_check = flag("bounds_check", bounds_check)

    def forward(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor,
                attention_mask: Union[None, Tensor, Tuple[Tensor, Tensor]] = None, qkv_format: Optional[str] = None,
                cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_kv: Optional[Tensor] = None,
                max_seqlen_q: Optional[int] = None, max_seqlen_kv: Optional[int] = None,
                attn_mask_type: Optional[str] = None, window_size: Optional[Tuple[int, int]] = None,
                bottom_right_diagonal: Optional[bool] = None, core_attention_bias_type: Optional[str] = None,
                core_attention_bias: Optional[Tensor] = None, alibi_slopes: Optional[Tensor] = None,
                score_mod: Any = None, score_mod_bprop: Any = None,
                score_mod_tensors: Optional[Mapping[str, Any]] = None,
                score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None, **others: Any) -> Tensor:
        """Returns the attention output, with heads and head dim in one dimension.

        `query_layer, key_layer, value_layer`: q, k and v in the order that `qkv_format` names.
        `qkv_format, attn_mask_type, window_size, bottom_right_diagonal`: replace the module's settings if given.
        `attention_mask`: True for pairs that are not attended. A padding mask is [B,1,1,S] for keys, or a pair (mask of
            rows, mask of keys); its masked positions must be at the end. A mask for attn_mask_type="arbitrary"
            broadcasts to [B,H,Sq,Sk].
        `cu_seqlens_q, cu_seqlens_kv`: with qkv_format thd, the offsets [B+1] of the sequences; with the other formats
            and a padding mask type, the differences of the offsets are the lengths of the sequences.
        `max_seqlen_q, max_seqlen_kv`: the lengths of the longest packed sequences, by default computed from the
            offsets.
        `core_attention_bias`: added to scores after scaling, or before with core_attention_bias_type="pre_scale_bias";
            broadcasts to [B,H,Sq,Sk].
        `core_attention_bias_type`: no_bias, pre_scale_bias, post_scale_bias or alibi. A bias of type "alibi" uses
            `alibi_slopes`, or by default the slopes of Transformer Engine.
        `alibi_slopes`: [H] or [B,H]; -slope * |q - k| is added to scores.
        `score_mod`: FlexAttention's function of five arguments, or Transformer Engine's score_mod(graph, score,
            tensors).
        `score_mod_bprop`: the backward callback score_mod_bprop(graph, dscore, tensors) that belongs to a score_mod in
            the style of Transformer Engine. Without score_mod_bprop, fxattn derives the backward program.
        `score_mod_tensors, score_mod_bprop_tensors`: the dictionaries that the callbacks get as `tensors`.
        `others`: the other arguments of Transformer Engine's forward. In `others`, hints for kernels are accepted and
            ignored; caches and fp8 raise an error.
        """
        layout = self.qkv_format if qkv_format is None else qkv_format
        kind = mask_kind(self.attn_mask_type if attn_mask_type is None else attn_mask_type)
        window = self.window_size if window_size is None else window_size
        graph = is_graph_style(score_mod)
        terms = _ScoreTerms(core_attention_bias_type, core_attention_bias, alibi_slopes)
        if others or attention_mask is not None or cu_seqlens_q is not None or cu_seqlens_kv is not None or not (
                self._is_simple(layout, kind, query_layer, key_layer, value_layer, terms, graph, score_mod,
                                score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors)):
            self._check(layout, kind, query_layer, key_layer, value_layer, attention_mask, cu_seqlens_q, cu_seqlens_kv,
                        terms, score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, others)
        masks = MASK_TYPES[kind]
        at_end = self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal
        at_end = kind not in ("causal", "padding_causal") if at_end is None else at_end
        causal = masks.get("causal", False)
        sinks: Any = {"vanilla": None, "off-by-one": "zero"}.get(self.softmax_type, self.softmax_offset)
        packed: Dict[str, Any] = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_kv, "max_q": max_seqlen_q,
                                  "max_k": max_seqlen_kv}
        if layout != "thd":
            packed = _lengths(attention_mask, cu_seqlens_q, cu_seqlens_kv) if masks.get("padding") else {}
        hidden = _four_dimensions(attention_mask) if masks.get("arbitrary") and attention_mask is not None else None
        out = attention(
            query_layer, key_layer, value_layer,
            score_mod if score_mod is not None else self._score_mod(terms, layout, query_layer, key_layer, at_end),
            None if hidden is None else _mask_function(hidden),
            scale=self.softmax_scale, layout=layout, is_causal=causal,
            window=window, bottom_right=at_end and (causal or window is not None), sinks=sinks,
            bounds_check=self.bounds_check, dropout_p=self.attention_dropout if self.training else 0.0,
            style="graph" if graph else "flex", score_mod_bprop=score_mod_bprop, tensors=score_mod_tensors,
            bprop_tensors=score_mod_bprop_tensors, **packed)
        return out.flatten(-2)

    def _score_mod(self, terms: _ScoreTerms, layout: str, q: Tensor, k: Tensor, at_end: bool
                   ) -> Optional[Callable[..., Any]]:
        """Returns a score function that adds the bias and ALiBi's terms and then applies softcap; None if softcap, bias
        and ALiBi are all unset."""
        slopes = terms.slopes
        if terms.kind == "alibi" and slopes is None:
            slopes = default_slopes(self.num_attention_heads, q.device)
        rows, keys = ((x.shape[0 if layout == "sbhd" else 1]) for x in (q, k))
        shift = keys - rows if at_end and layout != "thd" and slopes is not None else 0
        scale = 1 / math.sqrt(self.kv_channels[0]) if self.softmax_scale is None else self.softmax_scale
        factor = scale if terms.kind == "pre_scale_bias" else 1.0
        return _score_of(self.softcap, slopes, terms.bias, factor, shift)

    def _is_simple(self, layout: str, kind: str, q: Tensor, k: Tensor, v: Tensor, terms: _ScoreTerms, graph: bool,
                   score_mod: Any, bprop: Any, tensors: Any, bprop_tensors: Any) -> bool:
        """Returns True if a few comparisons prove that _check would find no error; False if _check must run.
        _is_simple() may be called only if the call of DotProductAttention has neither masks nor offsets."""
        if any(x is not None for x in terms) or layout not in ("sbhd", "bshd"):
            return False
        if kind not in MASK_TYPES or kind == "arbitrary" or "padding" in MASK_TYPES[kind]:
            return False
        if score_mod is None:
            has_functions = bprop is None and tensors is None and bprop_tensors is None
        else:
            has_functions = graph and self.softcap is None and (bprop is not None or bprop_tensors is None)
        width, wide = self.kv_channels
        return has_functions and q.dim() == 4 and k.dim() == 4 and v.dim() == 4 and (
            q.shape[2:] == (self.num_attention_heads, width) and k.shape[2:] == (self.num_gqa_groups, width)
            and v.shape[2:] == (self.num_gqa_groups, wide))

    def _check(self, layout: str, kind: str, q: Tensor, k: Tensor, v: Tensor, mask: Any, cu_q: Any, cu_k: Any,
               terms: _ScoreTerms, score_mod: Any, bprop: Any, tensors: Any, bprop_tensors: Any,
               others: Mapping[str, Any]) -> None:
        """Raises ValueError with all problems of a call's arguments."""
        rank = 3 if layout == "thd" else 4
        graph = is_graph_style(score_mod)
        masks = MASK_TYPES.get(kind, {})
        shaped = all(x.dim() == rank for x in (q, k, v))
        named = {"softcap": self.softcap, "alibi_slopes": terms.slopes, "core_attention_bias": terms.bias,
                 "core_attention_bias_type": None if terms.kind in (None, "no_bias") else terms.kind}
        names = [name for name, value in named.items() if value is not None]
        rules = [
            (layout not in FORMATS, "qkv_format is %r, not one of %s" % (layout, ", ".join(FORMATS))),
            (kind not in MASK_TYPES, "attn_mask_type is %r, not one of %s" % (kind, ", ".join(MASK_TYPES))),
            (not shaped, "qkv_format %s takes tensors of rank %d, given %s"
             % (layout, rank, ", ".join(str(tuple(x.shape)) for x in (q, k, v)))),
            (shaped and (q.shape[-2:] != (self.num_attention_heads, self.kv_channels[0])
                         or k.shape[-2:] != (self.num_gqa_groups, self.kv_channels[0])
                         or v.shape[-2:] != (self.num_gqa_groups, self.kv_channels[1])),
             "heads and features are %s, %s and %s; the module has %d heads, %d groups and %s channels"
             % (tuple(q.shape[-2:]), tuple(k.shape[-2:]), tuple(v.shape[-2:]), self.num_attention_heads,
                self.num_gqa_groups, self.kv_channels)),
            (layout == "thd" and (cu_q is None or cu_k is None),
             "qkv_format thd without cu_seqlens_q and cu_seqlens_kv"),
            (layout != "thd" and (cu_q is not None or cu_k is not None) and not masks.get("padding"),
             "cu_seqlens with qkv_format %s and attn_mask_type %s" % (layout, kind)),
            (isinstance(mask, tuple) and not masks.get("padding"), "a pair of masks with attn_mask_type %s" % kind),
            (bool(masks.get("arbitrary")) and mask is None, "attn_mask_type arbitrary without attention_mask"),
            (bool(masks.get("padding")) and layout != "thd" and mask is None and cu_q is None and cu_k is None,
             "attn_mask_type %s without attention_mask and cu_seqlens" % kind),
            (mask is not None and not (masks.get("arbitrary") or masks.get("padding")),
             "attention_mask with attn_mask_type %s" % kind),
            (mask is not None and layout == "thd", "attention_mask with qkv_format thd"),
            (score_mod is not None and bool(names),
             "score_mod with %s: write them into score_mod" % " and ".join(names)),
            (score_mod is None and bprop is not None, "score_mod_bprop without score_mod"),
            (score_mod is None and (tensors is not None or bprop_tensors is not None),
             "score_mod_tensors without score_mod"),
            (callable(score_mod) and not graph and bprop is not None,
             "score_mod_bprop with a score_mod of FlexAttention's form, whose derivative is known"),
            (callable(score_mod) and not graph and tensors is not None,
             "score_mod_tensors with a score_mod of FlexAttention's form, which captures its tensors"),
            (bprop is None and bprop_tensors is not None, "score_mod_bprop_tensors without score_mod_bprop"),
        ]
        problems = others_refused("DotProductAttention.forward", others, FORWARD_OTHERS, {}) + terms.problems()
        raise_if_any("DotProductAttention", [text for wrong, text in rules if wrong] + problems)


def _four_dimensions(mask: Any) -> Tensor:
    """Returns `mask` with dimensions of size 1 added in front."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask
