# SPDX-License-Identifier: Apache-2.0
"""Traces a Python function of scores into a score program of the C library, which runs without Python.

The call `trace(score_mod, mask_mod)` traces FlexAttention's functions, which may use torch, NumPy or jax.numpy. The
call `trace(score_mod, style="graph", score_mod_bprop=score_mod_bprop, tensors={...})` traces the functions of
Transformer Engine. The call `trace("score = score * 2")` parses program text.

The traced function runs once, on symbols (symbol.py), and each operation on a symbol is recorded (record.py). Tracing
imports neither torch nor NumPy nor JAX."""
from typing import List

from .entry import Traced, trace
from .place import TraceAttributeError, TraceError

__all__ = ["trace", "Traced", "TraceError", "TraceAttributeError"]


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
