# SPDX-License-Identifier: Apache-2.0
"""Attention modules for flax.linen with the names and arguments of Transformer Engine. Callbacks (score_mod) are
arguments of the constructor, and tensors that callbacks use are arguments of the call.

The public modules are `fxattn.jax.flax.DotProductAttention` and `fxattn.jax.flax.MultiHeadAttention`.

The file nnx.py has the same modules for flax.nnx; both files use _layers.py.
"""
from typing import Any, Callable, List, Mapping, Optional, Tuple

import jax.numpy as jnp
from flax import linen as nn

from ._layers import Given, Settings, refuse, run, told
from ._mods import Mod
from ._sequences import SequenceDescriptor

__all__ = ["DotProductAttention", "MultiHeadAttention", "SequenceDescriptor"]


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


@told
class DotProductAttention(nn.Module):
    """Computes softmax(score_mod(scale_factor * q k^T)) v as [B,S,H,D] from query [B,S,H,D], key and value [B,T,G,D].

    `head_dim, num_attention_heads, num_gqa_groups`: head dim D, number of query heads H, and number of KV heads G.
    `attention_dropout`: the dropout probability; calls with deterministic=True have no dropout.
    `dropout_rng_name`: the name of the RNG that dropout uses.
    `attn_mask_type`: no_mask, padding, causal, padding_causal, causal_bottom_right or padding_causal_bottom_right.
    `attn_bias_type`: no_bias, pre_scale_bias or post_scale_bias; None means post_scale_bias if the call has a bias,
        else no_bias.
    `qkv_layout`: bshd_bshd_bshd, bshd_bs2hd (key contains key and value) or bs3hd (query contains all three).
    `scale_factor`: the factor of q k^T, by default 1 / sqrt(D).
    `transpose_batch_sequence`: True swaps the first two axes of all arrays ([S,B,H,D]).
    `window_size`: (left, right), where -1 means unlimited.
    `softmax_type`: vanilla, off-by-one (a key of score 0) or learnable (a key with a learned score per head, the
        parameter softmax_offset).
    `score_mod, score_mod_bprop, bounds_check`: as in fxattn.jax.attention, in all their forms.

    The arguments parent and name are those of every Flax module.
    """

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: Optional[int] = None
    attention_dropout: float = 0.0
    attn_mask_type: str = "causal"
    attn_bias_type: Optional[str] = None
    dropout_rng_name: str = "dropout"
    qkv_layout: str = "bshd_bshd_bshd"
    scale_factor: Optional[float] = None
    transpose_batch_sequence: bool = False
    window_size: Optional[Tuple[int, int]] = None
    softmax_type: str = "vanilla"
    score_mod: Mod = None
    score_mod_bprop: Mod = None
    bounds_check: bool = False

    @nn.compact
    def __call__(self, query: Any, key: Any = None, value: Any = None, sequence_descriptor: Any = None,
                 bias: Any = None, *, deterministic: bool = False, mask: Any = None,
                 score_mod_tensors: Optional[Mapping[str, Any]] = None,
                 score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None) -> Any:
        """Returns the attention output [B,S,H,D].

        `query, key, value`: the inputs, in the layout `qkv_layout`.
        `sequence_descriptor`: a SequenceDescriptor. Mask types with padding require a sequence_descriptor or a `mask`.
        `bias, mask`: arrays that broadcast to [B,H,S,T]. `mask` is True for pairs that are not attended.
        `deterministic`: True disables dropout.
        `score_mod_tensors, score_mod_bprop_tensors`: the tensors that the callbacks get.
        """
        settings = Settings(*(getattr(self, name) for name in Settings._fields))
        settings.check("DotProductAttention")
        sinks = self.param("softmax_offset", nn.initializers.zeros, (self.num_attention_heads,), jnp.float32) \
            if self.softmax_type == "learnable" else None
        drops = self.attention_dropout > 0.0 and not deterministic
        return run(settings, query, key, value,
                   Given(sequence_descriptor, bias, mask, score_mod_tensors, score_mod_bprop_tensors), sinks,
                   self.make_rng(self.dropout_rng_name) if drops else None)


@told
class MultiHeadAttention(nn.Module):
    """DotProductAttention with linear projections before and after it. Computes [B,S,F] from inputs_q [B,S,F] and
    inputs_kv [B,T,F] (None: inputs_q). Unlike Transformer Engine's module, this module has no layer norm, rotary
    embeddings or cache.

    `use_bias, kernel_init, bias_init, dtype, param_dtype`: arguments of the projections query, key, value and out.
    `transpose_batch_sequence`: True swaps the first two axes of all arrays ([S,B,F]).
    `head_dim, num_attention_heads, num_gqa_groups, attention_dropout`: passed to DotProductAttention.
    `attn_mask_type, attn_bias_type, dropout_rng_name, scale_factor`: passed to DotProductAttention.
    `window_size, softmax_type, score_mod, score_mod_bprop, bounds_check`: passed to DotProductAttention.

    The arguments parent and name are those of every Flax module.
    """

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: Optional[int] = None
    attention_dropout: float = 0.0
    attn_mask_type: str = "causal"
    attn_bias_type: Optional[str] = None
    dropout_rng_name: str = "dropout"
    use_bias: bool = False
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Any] = nn.initializers.zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    scale_factor: Optional[float] = None
    transpose_batch_sequence: bool = False
    window_size: Optional[Tuple[int, int]] = None
    softmax_type: str = "vanilla"
    score_mod: Mod = None
    score_mod_bprop: Mod = None
    bounds_check: bool = False

    @nn.compact
    def __call__(self, inputs_q: Any, inputs_kv: Any = None, mask: Any = None, bias: Any = None, *,
                 sequence_descriptor: Any = None, deterministic: bool = False,
                 score_mod_tensors: Optional[Mapping[str, Any]] = None,
                 score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None) -> Any:
        """Returns [B,S,F].

        `inputs_q`: the input of the query projection, [B,S,F].
        `inputs_kv`: the input of the key and value projections, [B,T,F], by default inputs_q.
        `mask, bias, sequence_descriptor, deterministic`: passed to DotProductAttention.
        `score_mod_tensors, score_mod_bprop_tensors`: passed to DotProductAttention.
        """
        groups = self.num_attention_heads if self.num_gqa_groups is None else self.num_gqa_groups
        if inputs_q.ndim != 3:
            refuse("MultiHeadAttention", ["inputs_q has shape %s, not [B,S,F]" % (inputs_q.shape,)])
        inputs_kv = inputs_q if inputs_kv is None else inputs_kv

        def projected(name: str, x: Any, heads: int) -> Any:
            return nn.DenseGeneral((heads, self.head_dim), axis=-1, use_bias=self.use_bias, dtype=self.dtype,
                                   param_dtype=self.param_dtype, kernel_init=self.kernel_init,
                                   bias_init=self.bias_init, name=name)(x)
        query = projected("query", inputs_q, self.num_attention_heads)
        key, value = (projected(name, inputs_kv, groups) for name in ("key", "value"))
        shared = {name: getattr(self, name) for name in (*Settings._fields, "dropout_rng_name")
                  if name != "qkv_layout"}
        out = DotProductAttention(**shared, name="core")(
            query, key, value, sequence_descriptor, bias, deterministic=deterministic, mask=mask,
            score_mod_tensors=score_mod_tensors, score_mod_bprop_tensors=score_mod_bprop_tensors)
        return nn.DenseGeneral(inputs_q.shape[-1], axis=(-2, -1), use_bias=self.use_bias, dtype=self.dtype,
                               param_dtype=self.param_dtype, kernel_init=self.kernel_init, bias_init=self.bias_init,
                               name="out")(out)
