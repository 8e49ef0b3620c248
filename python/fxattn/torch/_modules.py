# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention and MultiheadAttention, with the names and shapes of Transformer Engine's modules, for any
score_mod.

Both take the four arguments score_mod, score_mod_bprop, score_mod_tensors and score_mod_bprop_tensors in forward();
callback objects written for Transformer Engine run unchanged, here together with masks, windows, dropout, lengths and
grouped heads. What cannot go together is collected and refused in one error (_refuse).
"""
import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from ._attention import attention
from .block_mask import positional_arity

# The ready masks of the library that stand for each mask type of Transformer Engine.
MASK_TYPES: Dict[str, Dict[str, bool]] = {
    "no_mask": {},
    "padding": {"padding": True},
    "causal": {"causal": True},
    "padding_causal": {"padding": True, "causal": True},
    "causal_bottom_right": {"causal": True, "bottom_right": True},
    "padding_causal_bottom_right": {"padding": True, "causal": True, "bottom_right": True},
    "arbitrary": {"arbitrary": True},
}
FORMATS = ("sbhd", "bshd", "thd")


def _refuse(who: str, problems: List[str]) -> None:
    if problems:
        raise ValueError("%s cannot do this: %s" % (who, "; ".join(problems)))


def is_graph_style(score_mod: Any) -> bool:
    """Whether a callable is Transformer Engine's score_mod(graph, score, tensors) rather than FlexAttention's."""
    if not callable(score_mod):
        return False
    if hasattr(score_mod, "__wrapped__"):  # by functools.wraps, whose code takes anything
        return [p.kind for p in inspect.signature(score_mod).parameters.values()
                if p.default is p.empty].count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == 3
    return positional_arity(score_mod) == 3


def _pick(table: Tensor, b: Any, h: Any, q: Any, k: Any) -> Any:
    """An element of a tensor [B or 1, H or 1, Sq or 1, Sk]."""
    b, h, q = (at if size > 1 else 0 for at, size in zip((b, h, q), table.shape))
    return table[b, h, q, k]


def _own_score(softcap: Optional[float], slopes: Optional[Tensor],
               bias: Optional[Tensor]) -> Optional[Callable[..., Any]]:
    """The score function of softcap, alibi_slopes and core_attention_bias; None when there is none of them."""
    if softcap is None and slopes is None and bias is None:
        return None

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        if bias is not None:
            s = s + _pick(bias, b, h, q, k)
        if slopes is not None:
            s = s + (slopes[b, h] if slopes.dim() == 2 else slopes[h]) * -(q - k).abs()
        return s if softcap is None else softcap * torch.tanh(s / softcap)

    return score


def _side(width: int) -> Optional[int]:
    """A side of a window; Transformer Engine's open one is -1."""
    return None if width < 0 else width


def _mask_function(hidden: Tensor) -> Callable[..., Any]:
    """The mask_mod of a tensor [B or 1, H or 1, Sq or 1, Sk] that is True where nothing is attended."""

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ~_pick(hidden, b, h, q, k)

    return mask


class DotProductAttention(nn.Module):
    """softmax(score_mod(softmax_scale * q k^T)) v of q [s,b,h,d] (sbhd), [b,s,h,d] (bshd) or [t,h,d] (thd); heads and
    features of the result are one dimension, as in Transformer Engine.

    num_attention_heads: heads of q. qkv_format: the order of dimensions, as above. kv_channels: features of q and k, or
    (of q and k, of v). num_gqa_groups: heads of k and v. attn_mask_type: no_mask, padding, causal, padding_causal, the
    last two with _bottom_right, or arbitrary. window_size (left, right), -1 is open. softcap: softcap * tanh(score /
    softcap). softmax_type: vanilla, off-by-one (a key of score 0) or learnable (a score per head, the parameter
    softmax_offset). attention_dropout is at work while training. layer_number is kept for callers.
    """

    def __init__(self, num_attention_heads: int, kv_channels: Any, num_gqa_groups: Optional[int] = None,
                 attention_dropout: float = 0.0, qkv_format: str = "sbhd", attn_mask_type: str = "causal",
                 window_size: Optional[Tuple[int, int]] = None, layer_number: Optional[int] = None,
                 softmax_scale: Optional[float] = None, softcap: Optional[float] = None,
                 softmax_type: str = "vanilla") -> None:
        super().__init__()
        problems = []
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        if groups < 1 or num_attention_heads % groups:
            problems.append("num_attention_heads is %d, no multiple of num_gqa_groups %d"
                            % (num_attention_heads, groups))
        if qkv_format not in FORMATS:
            problems.append("qkv_format is %r, not one of %s" % (qkv_format, ", ".join(FORMATS)))
        if attn_mask_type not in MASK_TYPES:
            problems.append("attn_mask_type is %r, not one of %s" % (attn_mask_type, ", ".join(MASK_TYPES)))
        if softmax_type not in ("vanilla", "off-by-one", "learnable"):
            problems.append("softmax_type is %r, not one of vanilla, off-by-one, learnable" % softmax_type)
        _refuse("DotProductAttention", problems)
        self.num_attention_heads, self.num_gqa_groups = num_attention_heads, groups
        self.kv_channels = kv_channels if isinstance(kv_channels, tuple) else (kv_channels, kv_channels)
        self.attention_dropout, self.qkv_format, self.attn_mask_type = attention_dropout, qkv_format, attn_mask_type
        self.window_size, self.layer_number, self.softmax_scale = window_size, layer_number, softmax_scale
        self.softcap, self.softmax_type = softcap, softmax_type
        self.softmax_offset = nn.Parameter(torch.zeros(num_attention_heads)) if softmax_type == "learnable" else None

    def forward(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor,
                attention_mask: Optional[Tensor] = None, qkv_format: Optional[str] = None,
                cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_kv: Optional[Tensor] = None,
                max_seqlen_q: Optional[int] = None, max_seqlen_kv: Optional[int] = None,
                attn_mask_type: Optional[str] = None, window_size: Optional[Tuple[int, int]] = None,
                core_attention_bias: Optional[Tensor] = None, alibi_slopes: Optional[Tensor] = None,
                score_mod: Any = None, score_mod_bprop: Any = None,
                score_mod_tensors: Optional[Mapping[str, Any]] = None,
                score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None) -> Tensor:
        """query_layer, key_layer, value_layer: of the shapes that qkv_format (by default the module's) says.
        cu_seqlens_q and cu_seqlens_kv: offsets of the sequences of thd, [B+1]; max_seqlen_q and max_seqlen_kv: the
        longest of these, found from the offsets where they are not given. attention_mask: True where nothing is
        attended; [B,1,1,Sk] for padding (of which the length is taken: padding is at the end), anything that broadcasts
        to [B,H,Sq,Sk] for arbitrary. core_attention_bias likewise is added to the scaled score, alibi_slopes [H] or
        [B,H] times -|q - k|.

        score_mod: FlexAttention's function of five arguments, or Transformer Engine's score_mod(graph, score, tensors)
        with score_mod_bprop(graph, dscore, tensors), which may be left out: the derivative is known. score_mod_tensors
        and score_mod_bprop_tensors are what those get as `tensors`; they are in the order of the program, so equal
        callbacks share plans and different ones never do."""
        layout = self.qkv_format if qkv_format is None else qkv_format
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        window = self.window_size if window_size is None else window_size
        graph = is_graph_style(score_mod)
        self._check(layout, kind, query_layer, key_layer, value_layer, attention_mask, cu_seqlens_q, cu_seqlens_kv,
                    core_attention_bias, alibi_slopes, score_mod, score_mod_bprop, score_mod_tensors,
                    score_mod_bprop_tensors)
        ready = MASK_TYPES[kind]
        lengths = None
        if ready.get("padding") and attention_mask is not None:
            lengths = (~attention_mask).reshape(attention_mask.shape[0], -1).sum(-1)
        packed: Dict[str, Any] = {"cu_q": cu_seqlens_q, "cu_k": cu_seqlens_kv, "max_q": max_seqlen_q,
                                  "max_k": max_seqlen_kv}
        out = attention(
            query_layer, key_layer, value_layer,
            score_mod if score_mod is not None else _own_score(self.softcap, alibi_slopes, core_attention_bias),
            _mask_function(_four(attention_mask)) if ready.get("arbitrary") and attention_mask is not None else None,
            scale=self.softmax_scale, layout=layout, is_causal=ready.get("causal", False),
            window=None if window is None else (_side(window[0]), _side(window[1])),
            bottom_right=ready.get("bottom_right", False), k_lengths=lengths,
            sink={"vanilla": None, "off-by-one": "zero"}.get(self.softmax_type, self.softmax_offset),
            dropout_p=self.attention_dropout if self.training else 0.0, style="graph" if graph else "flex",
            score_mod_bprop=score_mod_bprop, tensors=score_mod_tensors, bprop_tensors=score_mod_bprop_tensors,
            **(packed if layout == "thd" else {}))
        return out.flatten(-2)

    def _check(self, layout: str, kind: str, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], cu_q: Any,
               cu_k: Any, bias: Any, slopes: Any, score_mod: Any, bprop: Any, tensors: Any, bprop_tensors: Any) -> None:
        rank = 3 if layout == "thd" else 4
        graph = is_graph_style(score_mod)
        ready = MASK_TYPES.get(kind, {})
        shaped = all(x.dim() == rank for x in (q, k, v))
        own = {"softcap": self.softcap, "alibi_slopes": slopes, "core_attention_bias": bias}
        own_names = [name for name, given in own.items() if given is not None]
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
            (layout != "thd" and (cu_q is not None or cu_k is not None), "cu_seqlens with qkv_format %s" % layout),
            (bool(ready.get("arbitrary")) and mask is None, "attn_mask_type arbitrary without attention_mask"),
            (mask is not None and not (ready.get("arbitrary") or ready.get("padding")),
             "attention_mask with attn_mask_type %s" % kind),
            (mask is not None and layout == "thd", "attention_mask with qkv_format thd"),
            (score_mod is not None and bool(own_names),
             "score_mod with %s: write them into score_mod" % " and ".join(own_names)),
            (score_mod is None and bprop is not None, "score_mod_bprop without score_mod"),
            (score_mod is None and (tensors is not None or bprop_tensors is not None),
             "score_mod_tensors without score_mod"),
            (callable(score_mod) and not graph and bprop is not None,
             "score_mod_bprop with a score_mod of FlexAttention's form, whose derivative is known"),
            (callable(score_mod) and not graph and tensors is not None,
             "score_mod_tensors with a score_mod of FlexAttention's form, which captures its tensors"),
            (bprop is None and bprop_tensors is not None, "score_mod_bprop_tensors without score_mod_bprop"),
        ]
        _refuse("DotProductAttention", [text for wrong, text in rules if wrong])


def _four(mask: Tensor) -> Tensor:
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask


class MultiheadAttention(nn.Module):
    """Projections around DotProductAttention: hidden_states [s,b,hidden] (sbhd) or [b,s,hidden] (bshd) to the same
    shape.

    hidden_size: features of the input and the output; num_attention_heads heads of kv_channels features each
    (hidden_size / num_attention_heads by default), num_gqa_groups of them for keys and values; bias: of all
    projections; qkv_format: sbhd or bshd.

    attention_type "cross" takes keys and values from encoder_output. The four score_mod arguments of forward() go to
    DotProductAttention as they are; its other keywords, **core (softcap, window_size, softmax_type, ...), to its
    constructor.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: Optional[int] = None,
                 num_gqa_groups: Optional[int] = None, attention_type: str = "self", bias: bool = True,
                 qkv_format: str = "sbhd", **core: Any) -> None:
        super().__init__()
        if attention_type not in ("self", "cross"):
            _refuse("MultiheadAttention", ["attention_type is %r, not self or cross" % attention_type])
        if qkv_format not in ("sbhd", "bshd"):
            _refuse("MultiheadAttention", ["qkv_format is %r, not sbhd or bshd" % qkv_format])
        self.channels = hidden_size // num_attention_heads if kv_channels is None else kv_channels
        self.heads, self.attention_type = num_attention_heads, attention_type
        self.groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.query = nn.Linear(hidden_size, self.heads * self.channels, bias=bias)
        self.key_value = nn.Linear(hidden_size, 2 * self.groups * self.channels, bias=bias)
        self.core_attention = DotProductAttention(num_attention_heads, self.channels, self.groups,
                                                  qkv_format=qkv_format, **core)
        self.proj = nn.Linear(self.heads * self.channels, hidden_size, bias=bias)

    def forward(self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None,
                encoder_output: Optional[Tensor] = None, attn_mask_type: Optional[str] = None,
                window_size: Optional[Tuple[int, int]] = None, core_attention_bias: Optional[Tensor] = None,
                alibi_slopes: Optional[Tensor] = None, score_mod: Any = None, score_mod_bprop: Any = None,
                score_mod_tensors: Optional[Mapping[str, Any]] = None,
                score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None) -> Tensor:
        """attention_mask, attn_mask_type, window_size, core_attention_bias, alibi_slopes, score_mod, score_mod_bprop,
        score_mod_tensors and score_mod_bprop_tensors are those of DotProductAttention.forward."""
        if (self.attention_type == "cross") != (encoder_output is not None):
            _refuse("MultiheadAttention", ["attention_type %s %s encoder_output" % (
                self.attention_type, "without" if encoder_output is None else "with")])
        source = hidden_states if encoder_output is None else encoder_output
        query = self.query(hidden_states).unflatten(-1, (self.heads, self.channels))
        key, value = self.key_value(source).unflatten(-1, (2, self.groups, self.channels)).unbind(-3)
        return self.proj(self.core_attention(
            query, key, value, attention_mask, attn_mask_type=attn_mask_type, window_size=window_size,
            core_attention_bias=core_attention_bias, alibi_slopes=alibi_slopes, score_mod=score_mod,
            score_mod_bprop=score_mod_bprop, score_mod_tensors=score_mod_tensors,
            score_mod_bprop_tensors=score_mod_bprop_tensors))
