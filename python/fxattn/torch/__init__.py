# SPDX-License-Identifier: Apache-2.0
"""fxattn for PyTorch.

    from fxattn.torch import flex_attention, create_block_mask

flex_attention and its masks are PyTorch's by name and meaning (flex.py, block_mask.py); names of its types are here as
well, so that one import line changes and nothing else. attention has what the library has (_attention.py),
DotProductAttention and MultiheadAttention are Transformer Engine's (_modules.py, _multihead.py). All call the operators
fxattn::fwd and fxattn::bwd (_operators.py), whose gradients are in _autograd.py. register_transformers makes
attn_implementation="fxattn" work in Hugging Face transformers (transformers.py); ring_attention is for sequences that
are spread over processes (ring.py).
"""
from typing import List

from .._errors import missing_library

try:
    from torch.nn.attention.flex_attention import (  # noqa: F401
        _DEFAULT_SPARSE_BLOCK_SIZE, AuxOutput, AuxRequest, FlexKernelOptions, _mask_mod_signature, _score_mod_signature)
except ImportError as error:
    raise missing_library(error, "torch", "2.10") from None

from ._operators import cache_clear, cache_stats
from ._attention import AttentionOutput, attention
from ._modules import DotProductAttention
from ._multihead import MultiheadAttention
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
