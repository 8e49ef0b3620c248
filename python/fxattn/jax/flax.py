# SPDX-License-Identifier: Apache-2.0
"""Attention modules for flax.linen with the names and arguments of Transformer Engine. Callbacks (score_mod) are
arguments of the constructor, and tensors that callbacks use are arguments of the call.

    from fxattn.jax.flax import DotProductAttention, MultiHeadAttention

nnx.py has the same modules for flax.nnx. Both use _layers.py."""
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
    With transpose_batch_sequence the first two axes of all arrays are swapped ([S,B,H,D]).

    head_dim, num_attention_heads, num_gqa_groups: D, H and G.
    attention_dropout: the dropout probability. Dropout uses the RNG dropout_rng_name, and is off in calls with
        deterministic=True.
    attn_mask_type: no_mask, padding, causal, padding_causal, causal_bottom_right or padding_causal_bottom_right.
    attn_bias_type: no_bias, pre_scale_bias, post_scale_bias, or None: post_scale_bias if the call has a bias, else
        no_bias.
    qkv_layout: bshd_bshd_bshd, bshd_bs2hd (key contains key and value) or bs3hd (query contains all three).
    window_size: (left, right), where -1 is an open side.
    softmax_type: vanilla, off-by-one (one more key of score 0) or learnable (a learned score per head, the parameter
        softmax_offset).
    score_mod, score_mod_bprop, bounds_check: as in fxattn.jax.attention, in all their forms.

    parent and name are those of every Flax module.
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
        """Returns the attention output [B,S,H,D]. Mask types with padding require a SequenceDescriptor as
        `sequence_descriptor`, or a `mask`, which is True for pairs that are not attended. mask and bias broadcast to
        [B,H,S,T]. score_mod_tensors, score_mod_bprop_tensors: the tensors that the callbacks get."""
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
    inputs_kv [B,T,F] (None: inputs_q). With transpose_batch_sequence the first two axes of all arrays are swapped
    ([S,B,F]).

    use_bias, kernel_init, bias_init, dtype and param_dtype are those of the projections query, key, value and out.
    head_dim, num_attention_heads, num_gqa_groups, attention_dropout, attn_mask_type, attn_bias_type, dropout_rng_name,
    scale_factor, window_size, softmax_type, score_mod, score_mod_bprop and bounds_check are passed to
    DotProductAttention; parent and name are those of every Flax module. Unlike Transformer Engine's module it has no
    layer norm, rotary embeddings or cache.
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
        """Returns [B,S,F]. mask, bias, sequence_descriptor, deterministic, score_mod_tensors and
        score_mod_bprop_tensors are passed to DotProductAttention."""
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
