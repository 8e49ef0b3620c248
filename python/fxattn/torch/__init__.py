# SPDX-License-Identifier: Apache-2.0
"""fxattn for PyTorch: fused attention with a user-written score function.

    from fxattn.torch import flex_attention, create_block_mask

`flex_attention`, `create_block_mask` and the types that they use have PyTorch's names and meaning (flex.py,
block_mask.py), so a program changes only its import. `attention` has every feature of the library (attention.py).
`DotProductAttention` and `MultiheadAttention` have the arguments of Transformer Engine's modules (dot_product.py,
multihead.py). `ring_attention` computes attention over sequences that are sharded over processes (ring.py).
`register_transformers` adds attn_implementation="fxattn" to Hugging Face transformers (transformers.py). All attention
functions call the operators fxattn::fwd and fxattn::bwd (operators.py), whose gradients are in routes/autograd.py.
"""
from typing import List

from .._errors import missing_library

try:
    from torch.nn.attention.flex_attention import (  # noqa: F401
        _DEFAULT_SPARSE_BLOCK_SIZE, AuxOutput, AuxRequest, FlexKernelOptions, _mask_mod_signature, _score_mod_signature)
except ImportError as error:
    raise missing_library(error, "torch", "2.10") from None

from .operators import cache_clear, cache_stats
from .attention import AttentionOutput, attention
from .dot_product import DotProductAttention
from .multihead import MultiheadAttention
from .block_mask import BlockMask, and_masks, create_block_mask, create_mask, noop_mask, or_masks
from .flex import flex_attention
from .ring import ring_attention, split_sequence
from .transformers import register_transformers

__all__ = ["AttentionOutput", "AuxOutput", "AuxRequest", "BlockMask", "DotProductAttention",
           "FlexKernelOptions", "MultiheadAttention",
           "and_masks", "attention", "cache_clear", "cache_stats", "create_block_mask", "create_mask",
           "flex_attention", "noop_mask", "or_masks", "register_transformers", "ring_attention",
           "split_sequence"]


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
