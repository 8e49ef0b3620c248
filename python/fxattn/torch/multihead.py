# SPDX-License-Identifier: Apache-2.0
"""MultiheadAttention: projections around DotProductAttention (dot_product.py), with the names, arguments and parameters
of Transformer Engine's module.

The parameters have the names and the row order of Transformer Engine's module: qkv interleaved by KV group, query and
key_value for cross attention, and proj. A state_dict of Transformer Engine's module loads unchanged. A state_dict of
torch.nn.MultiheadAttention is rearranged when it is loaded.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .dot_product import ANY, DotProductAttention, others_refused, raise_if_any

# Arguments of Transformer Engine for features that fxattn lacks, and their accepted values, which disable the feature.
_INIT_OTHERS: Dict[str, Optional[Tuple[Any, ...]]] = {
    "layernorm_epsilon": ANY, "tp_group": (None,), "tp_size": (1,), "fuse_wgrad_accumulation": (False,),
    "get_rng_state_tracker": (None,), "sequence_parallel": (False,), "return_bias": (False,),
    "return_layernorm_output": (False,), "input_layernorm": (False,), "set_parallel_mode": ANY, "fuse_qkv_params": ANY,
    "zero_centered_gamma": (False,), "rotary_pos_interleaved": ANY, "ub_overlap_ag": (False,),
    "ub_overlap_rs": (False,), "ub_overlap_rs_dgrad": (False,), "ub_bulk_dgrad": (False,), "ub_bulk_wgrad": (False,),
    "normalization": ANY,
    "name": ANY, "qk_norm_type": (None,), "qk_norm_eps": ANY, "qk_norm_before_rope": ANY, "seq_length": ANY,
    "micro_batch_size": ANY}
_FORWARD_OTHERS: Dict[str, Optional[Tuple[Any, ...]]] = {"is_first_microbatch": ANY, "rotary_pos_emb": (None,)}
# Hints for users of torch.nn.MultiheadAttention: names of its arguments, and what to write instead.
_HINTS = {"embed_dim": "; it is hidden_size here", "num_heads": "; it is num_attention_heads here",
          "dropout": "; it is attention_dropout here", "dtype": "; it is params_dtype here",
          "batch_first": "; qkv_format=\"bshd\" is batch first, \"sbhd\" is not", "add_zero_attn":
          "; softmax_type=\"off-by-one\" has a key of score 0", "kdim": "; keys have hidden_size features",
          "vdim": "; values have hidden_size features", "add_bias_kv": "", "need_weights":
          "; there are no weights", "key_padding_mask": "; attention_mask [B,1,1,S] with attn_mask_type=\"padding\"",
          "attn_mask": "; attention_mask with attn_mask_type=\"arbitrary\", or core_attention_bias", "is_causal":
          "; attn_mask_type=\"causal\""}


class MultiheadAttention(nn.Module):
    """DotProductAttention with linear projections before and after it. Maps hidden_states, [s,b,hidden] (sbhd) or
    [b,s,hidden] (bshd), to a tensor of the same shape.

    `hidden_size`: the size of the last dimension of input and output.
    `num_attention_heads, kv_channels`: the number of query heads, and the head dim, by default hidden_size /
        num_attention_heads.
    `num_gqa_groups`: the number of heads of keys and values, by default num_attention_heads.
    `attention_type`: "self", or "cross", which computes keys and values from encoder_output.
    `bias`: True gives all projections a bias.
    `qkv_format`: sbhd or bshd.
    `init_method, output_layer_init_method`: functions that fill the weights of the input projections, and of the output
        projection.
    `params_dtype, device`: dtype and device of the parameters.
    `qkv_weight_interleaved`: True orders the rows of qkv by KV group, each with its query heads, key and value, as
        Transformer Engine does; False orders the rows as queries, keys, values.
    `attention_dropout`: the dropout probability, by default 0.0 (Transformer Engine: 0.1).
    `layer_number, attn_mask_type, window_size, bottom_right_diagonal`: passed to DotProductAttention.
    `softmax_scale, softmax_type, softcap, bounds_check`: passed to DotProductAttention.
    `others`: the other arguments of Transformer Engine's module. In `others`, only a value that switches the argument's
        feature off (such as None or False) is accepted; every other value raises an error that names the argument.

    score_mod, score_mod_bprop and their tensors are arguments of forward().
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: Optional[int] = None,
                 num_gqa_groups: Optional[int] = None, attention_type: str = "self", bias: bool = True,
                 qkv_format: str = "sbhd", init_method: Optional[Callable[[Tensor], Any]] = None,
                 output_layer_init_method: Optional[Callable[[Tensor], Any]] = None,
                 params_dtype: Optional[torch.dtype] = None, device: Union[None, str, torch.device] = None,
                 qkv_weight_interleaved: bool = True, attention_dropout: float = 0.0,
                 layer_number: Optional[int] = None, attn_mask_type: str = "causal",
                 window_size: Optional[Tuple[int, int]] = None, bottom_right_diagonal: Optional[bool] = None,
                 softmax_scale: Optional[float] = None, softmax_type: str = "vanilla",
                 softcap: Optional[float] = None, bounds_check: bool = False, **others: Any) -> None:
        super().__init__()
        self.heads, self.attention_type, self.interleaved = num_attention_heads, attention_type, qkv_weight_interleaved
        self.groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.channels = hidden_size // num_attention_heads if kv_channels is None else kv_channels
        rules = ((attention_type not in ("self", "cross"), "attention_type is %r, not self or cross" % attention_type),
                 (qkv_format not in ("sbhd", "bshd"), "qkv_format is %r, not sbhd or bshd" % qkv_format),
                 (kv_channels is None and hidden_size % num_attention_heads != 0,
                  "hidden_size is %d, no multiple of num_attention_heads %d" % (hidden_size, num_attention_heads)))
        raise_if_any("MultiheadAttention", [text for wrong, text in rules if wrong]
                     + others_refused("MultiheadAttention", others, _INIT_OTHERS, _HINTS))
        made: Dict[str, Any] = {"bias": bias, "dtype": params_dtype, "device": device}
        self.core_attention = DotProductAttention(
            num_attention_heads, self.channels, self.groups, attention_dropout=attention_dropout,
            qkv_format=qkv_format, attn_mask_type=attn_mask_type, window_size=window_size,
            bottom_right_diagonal=bottom_right_diagonal, layer_number=layer_number, softmax_scale=softmax_scale,
            softmax_type=softmax_type, softcap=softcap, bounds_check=bounds_check).to(device)
        rows, keys = self.heads * self.channels, 2 * self.groups * self.channels
        if attention_type == "self":
            self.qkv = nn.Linear(hidden_size, rows + keys, **made)
        else:
            self.query, self.key_value = nn.Linear(hidden_size, rows, **made), nn.Linear(hidden_size, keys, **made)
        self.proj = nn.Linear(rows, hidden_size, **made)
        with torch.no_grad():
            for layer in (self.qkv,) if attention_type == "self" else (self.query, self.key_value):
                if init_method is not None:
                    init_method(layer.weight)
            if output_layer_init_method is not None:
                output_layer_init_method(self.proj.weight)

    def forward(self, hidden_states: Tensor, attention_mask: Union[None, Tensor, Tuple[Tensor, Tensor]] = None,
                encoder_output: Optional[Tensor] = None, score_mod: Any = None, score_mod_bprop: Any = None,
                score_mod_tensors: Any = None, score_mod_bprop_tensors: Any = None,
                attn_mask_type: Optional[str] = None, window_size: Optional[Tuple[int, int]] = None,
                bottom_right_diagonal: Optional[bool] = None, core_attention_bias_type: Optional[str] = None,
                core_attention_bias: Optional[Tensor] = None, alibi_slopes: Optional[Tensor] = None,
                cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_kv: Optional[Tensor] = None,
                max_seqlen_q: Optional[int] = None, max_seqlen_kv: Optional[int] = None, **others: Any) -> Tensor:
        """Returns a tensor of the shape of hidden_states.

        `hidden_states`: the input of the query projection, and for self attention of the key and value projections.
        `encoder_output`: the input of the key and value projections for cross attention.
        `attention_mask, attn_mask_type, window_size, bottom_right_diagonal`: passed to DotProductAttention.forward.
        `score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors`: passed to DotProductAttention.forward.
        `core_attention_bias_type, core_attention_bias, alibi_slopes`: passed to DotProductAttention.forward.
        `cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv`: passed to DotProductAttention.forward.
        `others`: further arguments of DotProductAttention.forward. The argument rotary_pos_emb raises an error: rotate
            queries and keys in a module of your own.
        """
        problems = others_refused("MultiheadAttention.forward", {
            name: others.pop(name) for name in list(others) if name in _FORWARD_OTHERS or name in _HINTS},
            _FORWARD_OTHERS, _HINTS)
        if (self.attention_type == "cross") != (encoder_output is not None):
            problems.append("attention_type %s %s encoder_output" % (
                self.attention_type, "without" if encoder_output is None else "with"))
        raise_if_any("MultiheadAttention", problems)
        query, key, value = self._projected(hidden_states, encoder_output)
        return self.proj(self.core_attention(
            query, key, value, attention_mask, score_mod=score_mod, score_mod_bprop=score_mod_bprop,
            score_mod_tensors=score_mod_tensors, score_mod_bprop_tensors=score_mod_bprop_tensors,
            attn_mask_type=attn_mask_type, window_size=window_size, bottom_right_diagonal=bottom_right_diagonal,
            core_attention_bias_type=core_attention_bias_type, core_attention_bias=core_attention_bias,
            alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
            max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, **others))

    def _projected(self, hidden_states: Tensor, encoder_output: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, each [...,heads,channels]."""
        if encoder_output is None:
            return self._parted(self.qkv(hidden_states).unflatten(-1, (-1, self.channels)), -2)
        query = self.query(hidden_states).unflatten(-1, (self.heads, self.channels))
        both = self.key_value(encoder_output).unflatten(-1, (-1, self.channels))
        if not self.interleaved:
            key, value = both.chunk(2, -2)
            return query, key, value
        key, value = both.unflatten(-2, (self.groups, 2)).unbind(-2)
        return query, key, value

    def _parted(self, rows: Tensor, dim: int) -> Tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values from `rows`, which has the heads of all three along dimension `dim`
        (negative)."""
        if not self.interleaved:
            query, key, value = rows.split([self.heads, self.groups, self.groups], dim)
            return query, key, value
        each = self.heads // self.groups
        grouped = rows.unflatten(dim, (self.groups, each + 2))
        query = grouped.narrow(dim, 0, each).flatten(dim - 1, dim)
        return query, grouped.select(dim, each), grouped.select(dim, each + 1)

    def _joined(self, parts: List[Tensor], names: Tuple[str, ...]) -> Dict[str, Tensor]:
        """Returns {layer name: parameter} of this module, joined from `parts`: the parameters [rows,...] of the query,
        key and value projections."""
        query, key, value = (x.unflatten(0, (-1, self.channels)) for x in parts)
        if not self.interleaved:
            both, whole = torch.cat([key, value]), torch.cat([query, key, value])
        else:
            both = torch.stack([key, value], 1).flatten(0, 1)
            whole = torch.cat([query.unflatten(0, (self.groups, -1)), key.unsqueeze(1), value.unsqueeze(1)],
                              1).flatten(0, 1)
        made = {"qkv": whole} if "qkv" in names else {"query": query, "key_value": both}
        return {name: x.flatten(0, 1) for name, x in made.items()}

    def _load_from_state_dict(self, state_dict: Dict[str, Any], prefix: str, *rest: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix) and key.endswith("_extra_state")]:
            del state_dict[key]  # Transformer Engine stores scales of fp8 here
        names = ("qkv",) if self.attention_type == "self" else ("query", "key_value")
        for kind in ("weight", "bias"):
            if prefix + "in_proj_" + kind in state_dict:  # a state_dict of torch.nn.MultiheadAttention
                parts = list(state_dict.pop(prefix + "in_proj_" + kind).chunk(3))
                for name, value in self._joined(parts, names).items():
                    state_dict["%s%s.%s" % (prefix, name, kind)] = value
            if "%sout_proj.%s" % (prefix, kind) in state_dict:
                state_dict["%sproj.%s" % (prefix, kind)] = state_dict.pop("%sout_proj.%s" % (prefix, kind))
        super()._load_from_state_dict(state_dict, prefix, *rest)
