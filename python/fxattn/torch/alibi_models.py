# SPDX-License-Identifier: Apache-2.0
"""The attention layers of BLOOM and MPT for attn_implementation="fxattn".

BLOOM and MPT add ALiBi in attention layers of their own, which do not call transformers' AttentionInterface. install()
wraps the forward() of the attention layers of BLOOM and MPT. The wrapper of a layer's forward() computes attention by
fxattn if the mask of the pass is a ModelMask, which only attn_implementation="fxattn" makes; otherwise the wrapper
calls the original forward(). In transformers 4, BLOOM and MPT do not make their masks by AttentionMaskInterface, so
fxattn's wrapper of their forward() always calls the original forward().
"""
import functools
import importlib
from typing import Any, Callable, Tuple

from torch import Tensor

from .._errors import ArgumentError

Attend = Callable[..., Tensor]


def _bloom(attend: Attend, self: Any, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Any,
           layer_past: Any = None, **_: Any) -> Tuple[Any, Any]:
    from transformers.models.bloom.modeling_bloom import dropout_add
    if self.pretraining_tp > 1 and self.slow_but_exact:
        raise ArgumentError("attn_implementation=\"fxattn\" does not have slow_but_exact=True with pretraining_tp > 1")
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    out = attend(self, query, key, value, attention_mask, scaling=self.inv_norm_factor,
                 bias=alibi.view(query.shape[0], self.num_heads, 1, -1),
                 dropout=self.attention_dropout.p if self.training else 0.0)
    out = self.dense(out.transpose(1, 2).reshape(hidden_states.shape))
    return dropout_add(out, residual, self.hidden_dropout, self.training), None


def _mpt(attend: Attend, self: Any, hidden_states: Tensor, position_bias: Any, past_key_values: Any = None,
         attention_mask: Any = None, **_: Any) -> Tuple[Any, Any]:
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2) for x in qkv.chunk(3, dim=2))
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    if position_bias is not None:  # [heads,1,longest sequence]; the elements of the last keys are used
        position_bias = position_bias[:, :, max(0, position_bias.size(2) - key.shape[-2]):].unsqueeze(0)
    out = attend(self, query, key, value, attention_mask, scaling=self.softmax_scale, bias=position_bias,
                 dropout=self.attn_dropout_p if self.training else 0.0)
    return self.out_proj(out.transpose(1, 2).reshape(hidden_states.shape)), None


_MODELS = (("transformers.models.bloom.modeling_bloom", "BloomAttention", _bloom),
           ("transformers.models.mpt.modeling_mpt", "MptAttention", _mpt))


def _before(original: Any, ours: Any, mask_type: type, attend: Attend) -> Any:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("attention_mask"), mask_type):
            return ours(attend, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    forward._fxattn = True  # type: ignore[attr-defined]
    return forward


def install(mask_type: type, attend: Attend) -> None:
    """Wraps the forward() of BLOOM's and MPT's attention layers. A layer that is already wrapped is left unchanged."""
    for module, name, ours in _MODELS:
        try:
            attention = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # this version of transformers lacks the model
            continue
        if not hasattr(attention.forward, "_fxattn"):
            attention.forward = _before(attention.forward, ours, mask_type, attend)
