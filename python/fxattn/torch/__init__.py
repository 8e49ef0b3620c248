# SPDX-License-Identifier: Apache-2.0
"""fxattn for PyTorch: fused attention with a user-written score function.

`flex_attention`, `create_block_mask` and the types that they use have PyTorch's names and meaning, so a program changes
only its import. `attention` has every feature of the library. `DotProductAttention` and `MultiheadAttention` have the
arguments of Transformer Engine's modules. `ring_attention` computes attention over sequences that are sharded over
processes. `register_transformers` adds attn_implementation="fxattn" to Hugging Face transformers.

Each public function of fxattn.torch makes a Call (call.py), and route.py chooses one of four routes for the Call:
direct, autograd, dispatcher or compiled. On each of the four routes, torch_call.c (python/csrc) runs the C library.
"""
# The way of a call through the files of this folder and of python/csrc:
#
# flex.py   attention.py <- dot_product.py <- multihead.py     transformers.py
#    |           |    options: settings.py, score_arguments.py       |
#    +-----------+---------------------------------------------------+
#                v
# call.py: Call, the arguments besides q, k and v
#                v
# route.py: route(call, q, k, v) chooses
#    |                 |                     |                      |
# direct            autograd              dispatcher             compiled
# eager; nothing    gradients under a     no gradients, and a    torch.compile,
# between the call  mode: torch.func,     mode is on; calls of   torch.export: a node
# and the kernel    dispatch modes        torch.ops.fxattn       of the graph
#    |                 |                     |                      |
#    |                 +---------------------+----------------------+
#    v                                       v
# torch_direct.c                   operators.py: fxattn::fwd, fxattn::bwd
#    |                                       v
#    |                                 torch_shim.c
#    +---------------------------------------+
#                v
# torch_call.c (python/csrc): a run of the library
from typing import List

from .._errors import missing_library

try:
    from torch.nn.attention.flex_attention import (  # noqa: F401
        _DEFAULT_SPARSE_BLOCK_SIZE, AuxOutput, AuxRequest, FlexKernelOptions, _mask_mod_signature, _score_mod_signature)
except ImportError as error:
    raise missing_library(error, "torch", "2.10") from None

from .attention import AttentionOutput, attention
from .block_mask import BlockMask, and_masks, create_block_mask, create_mask, noop_mask, or_masks
from .dot_product import DotProductAttention
from .flex import flex_attention
from .multihead import MultiheadAttention
from .operators import cache_clear, cache_stats
from .ring import ring_attention, split_sequence
from .transformers import register_transformers

__all__ = ["AttentionOutput", "AuxOutput", "AuxRequest", "BlockMask", "DotProductAttention",
           "FlexKernelOptions", "MultiheadAttention",
           "and_masks", "attention", "cache_clear", "cache_stats", "create_block_mask", "create_mask",
           "flex_attention", "noop_mask", "or_masks", "register_transformers", "ring_attention",
           "split_sequence"]


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
