# SPDX-License-Identifier: Apache-2.0
"""Dtypes of tensors: their codes in the library, and the conversions of q, k and v before a call."""
from typing import Any, NoReturn, Tuple

import torch
from torch import Tensor

from .. import _abi

# The dtypes that the library supports, and their codes.
DTYPES = {torch.float64: _abi.F64, torch.float32: _abi.F32, torch.float16: _abi.F16, torch.bfloat16: _abi.BF16,
          torch.int64: _abi.I64, torch.int32: _abi.I32, torch.int16: _abi.I16, torch.int8: _abi.I8,
          torch.uint8: _abi.U8, torch.bool: _abi.B8, torch.float8_e4m3fn: _abi.E4M3, torch.float8_e5m2: _abi.E5M2}
FLOAT8 = {getattr(torch, name) for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
          if hasattr(torch, name)}


def autocast_inputs(query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns query, key and value in autocast's dtype if autocast is on. Captured tensors are not converted to
    autocast's dtype."""
    kind = query.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return query, key, value
    dtype = torch.get_autocast_dtype(kind)

    def cast(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x

    return cast(query), cast(key), cast(value)


def _refuse_gradient(gradient: Any) -> NoReturn:
    raise ValueError("Backward pass with mixed query, key, and value dtype is not supported: float8 tensors get no "
                     "gradients")


def mixed_inputs(query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns query, key and value of different dtypes, or of float8, converted for one call. As in PyTorch's formulas,
    arithmetic is in f64 if query is f64, else in f32. Float8 tensors are converted without rounding, and computing
    their gradients raises an error."""
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    narrow = working if query.dtype in FLOAT8 else query.dtype

    def convert(x: Tensor) -> Tensor:
        if x.dtype not in FLOAT8:
            return x.to(working) if (x.dtype == torch.float64) != (working == torch.float64) else x
        wide = x.to(narrow)
        if wide.requires_grad and torch.compiler.is_compiling():
            _refuse_gradient(wide)
        if wide.requires_grad:
            wide.register_hook(_refuse_gradient)
        return wide

    return convert(query), convert(key), convert(value)
