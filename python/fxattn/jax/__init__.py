# SPDX-License-Identifier: Apache-2.0
"""fxattn for JAX: fused attention with a user-written score function. The functions of fxattn.jax are differentiable in
reverse mode, and work under jit, vmap, grad and shard_map."""
from typing import List

from .._errors import missing_library

try:
    import jax as _jax
    if getattr(_jax, "__version_info__", ()) < (0, 9):
        raise ImportError("this is jax %s" % getattr(_jax, "__version__", "of no version"), name="jax")
except ImportError as error:
    raise missing_library(error, "jax", "0.9") from None

from ._attention import attention
from ._autodiff import OUT_NAME, STATS_NAME
from ._handlers import cache_clear, cache_stats
from ._nn import dot_product_attention
from ._ring import reorder_sequence, restore_sequence, ring_attention
from ._sequences import SequenceDescriptor

__all__ = ["OUT_NAME", "STATS_NAME", "SequenceDescriptor", "attention", "cache_clear", "cache_stats",
           "dot_product_attention", "reorder_sequence", "restore_sequence", "ring_attention"]


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
