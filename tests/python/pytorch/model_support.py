# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers, and what they should compute.

The truth is the same model in f64 with its eager attention, whose norms and softmax then do not go through f32 as the models
write them. A result is as good as eager's when its mean distance from the truth is at most that of eager in the same dtype,
times BAR: the bar of PyTorch's own tests of flex_attention."""
import copy
from typing import Any, Dict, List, Optional, Tuple

import torch
import transformers
from torch import Tensor, nn

BAR = {torch.float32: 2.0, torch.bfloat16: 1.35}
VOCABULARY = 48
_LLAMA = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0)
_YARN = dict(rope_type="default", rope_theta=10000.0)

# class of the model, class of its configuration, settings
MODELS: Dict[str, Tuple[str, str, Dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", dict(_LLAMA, head_dim=8, sliding_window=5)),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(_LLAMA, head_dim=8, sliding_window=5, query_pre_attn_scalar=8,
                                                         attn_logit_softcapping=3.0)),
    # All experts for every token: which ones are taken must not depend on rounding.
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", dict(_LLAMA, head_dim=8, sliding_window=5, num_local_experts=2,
                                                          num_experts_per_tok=2, rope_parameters=_YARN)),
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
    "mpt": ("MptForCausalLM", "MptConfig", dict(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=64,
                                                expansion_ratio=2)),
    "bert": ("BertForMaskedLM", "BertConfig", dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
                                                   num_attention_heads=4, intermediate_size=40)),
    "t5": ("T5ForConditionalGeneration", "T5Config", dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=40, num_layers=2,
                                                          num_heads=4, decoder_start_token_id=0)),
}


def model_of(kind: str, implementation: str, dtype: torch.dtype, **settings: Any) -> nn.Module:
    """A model in eval mode; all of a kind have the same parameters, far enough from 0 for attention to matter."""
    model_class, config_class, own = MODELS[kind]
    config = getattr(transformers, config_class)(**{**copy.deepcopy(own), **settings})
    config._experts_implementation = "eager"  # others have no f64
    torch.manual_seed(7)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation=implementation)
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
            parameter.copy_(parameter.bfloat16())  # exact in every dtype
    return model.to(dtype).eval()


def _norm_in_f64(norm: nn.Module) -> Any:
    eps = next(getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name))
    shift = 1.0 if type(norm).__name__.startswith("Gemma") else 0.0
    return lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (norm.weight + shift)


def exact_of(kind: str, monkeypatch: Any, **settings: Any) -> nn.Module:
    """The truth, until monkeypatch is undone."""
    model = model_of(kind, "eager", torch.float64, **settings)
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")):
            module.forward = _norm_in_f64(module)
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim=-1, dtype=None, **_: torch.softmax(x, dim))
    return model


def tokens(kind: str, batch: int = 2, length: int = 11, padded: int = 3) -> Tuple[Tensor, Tensor]:
    """ids and attention_mask; the first sequence is padded on the left, or for MPT on the right: its eager attention makes
    NaN of rows that attend to nothing in f64."""
    ids = torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, :padded] = 0
    return ids, mask.flip(-1) if kind == "mpt" else mask


def step(model: nn.Module, ids: Tensor, mask: Optional[Tensor], **inputs: Any) -> List[Tensor]:
    """Logits where there are tokens, and the gradients of all parameters of a loss of them."""
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :7]
    logits = model(input_ids=ids, attention_mask=mask, **inputs).logits
    keep = torch.ones(logits.shape[:2]) if mask is None or logits.shape[1] != mask.shape[1] else mask
    logits = logits * keep.unsqueeze(-1).to(logits.dtype)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5)).to(logits.dtype)
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad((logits * direction).sum(), parameters, allow_unused=True)
    return [logits.detach(), torch.cat([g.double().reshape(-1) for g in grads if g is not None])]


def distance(got: Tensor, exact: Tensor) -> float:
    return (got.double() - exact.double()).abs().mean().item()
