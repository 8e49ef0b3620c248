# SPDX-License-Identifier: Apache-2.0
"""Decides which models of transformers accept attn_implementation="fxattn".

Models that call transformers' AttentionInterface accept the name "fxattn". Some models that do not call
AttentionInterface select the class of their attention layers from a table of names. If a model's table of attention
layers has a class for SDPA, a subclass whose scaled_dot_product_attention is fxattn's is added to the table under the
name "fxattn". Models that neither call AttentionInterface nor have a class for SDPA in a table of attention layers
would ignore the name "fxattn". Creating a model that would ignore the name "fxattn" raises an error; transformers
raises a similar error for "sdpa" if a model has no SDPA.
"""
import copy
import functools
import sys
from typing import Any, Callable, Dict, Optional

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._errors import ArgumentError
from .model_mask import note_model

Attend = Callable[..., Tensor]
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # modules that call AttentionInterface import this name
_OWN = ("bloom", "mpt")  # alibi_models.py wraps their attention layers


# ---- Layers selected from a table ------------------------------------------------------------------------------------

class _OurAttention(TorchFunctionMode):
    """Computes scaled_dot_product_attention by fxattn during the forward of a module."""

    def __init__(self, module: Any, attend: Attend) -> None:
        super().__init__()
        self.module, self.attend = module, attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention and args[0].dim() == 4:
            return self.ours(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def ours(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
             is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:
        if isinstance(attn_mask, Tensor) and attn_mask.dim() < 4:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        if is_causal and query.shape[2] == 1:  # SDPA aligns the row to the first key, attend() to the last
            key, value = key[:, :, :1], value[:, :, :1]
        return self.attend(self.module, query, key, value, attn_mask, dropout=dropout_p, scaling=scale,
                           is_causal=is_causal)


def _adopted(original: Any, attend: Attend) -> Any:
    """Returns a subclass of `original` that computes attention by fxattn. `original` is the class for SDPA in a model's
    table of attention layers."""
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original.__init__(self, *args, **kwargs)
        if hasattr(self, "config"):  # some layers compare the implementation's name in forward()
            self.config = copy.copy(self.config)
            self.config._attn_implementation_internal = "sdpa"

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _OurAttention(self, attend):
            return original.forward(self, *args, **kwargs)

    forward = functools.wraps(original.forward)(forward)
    return type("FXAttn" + original.__name__, (original,), {"__init__": init, "forward": forward, "_fxattn": True,
                                                            "__module__": original.__module__})


def _check_tables(name: str, model: Any, attend: Attend, is_new: bool) -> None:
    for table, known in vars(sys.modules[type(model).__module__]).items():
        if not table.endswith("ATTENTION_CLASSES") or not isinstance(known, dict) or name in known:
            continue
        if "sdpa" in known and is_new:
            known[name] = _adopted(known["sdpa"], attend)
        else:
            raise ArgumentError(
                "attn_implementation=%r is not for %s: it takes its attention from %s (%s) and does not ask "
                "transformers' AttentionInterface" % (name, type(model).__name__, table, ", ".join(known)))


# ---- The check when a model is made ----------------------------------------------------------------------------------

def _has_own_attention(model: Any) -> bool:
    """Returns True for models that neither call AttentionInterface nor have SDPA; such models would ignore the name
    "fxattn"."""
    if getattr(model, "_supports_sdpa", False) or getattr(model.config, "model_type", None) in _OWN:
        return False
    modules = (sys.modules.get(base.__module__) for base in type(model).__mro__ if base.__module__.rpartition(".")[2]
               not in ("modeling_utils", "module", "builtins"))
    return not any(hasattr(module, _INTERFACE) for module in modules)


def check_models(name: str, model_base: Any, attend: Attend) -> None:
    """Extends transformers' check of attn_implementation by an error for models that cannot use the implementation
    `name`."""
    original = getattr(model_base, "_check_and_adjust_attn_implementation", None)
    if original is None:  # this version of transformers has no check to extend
        return
    import transformers
    is_new = not transformers.__version__.startswith("4.")

    @functools.wraps(original)
    def check(self: Any, attn_implementation: Any, *args: Any, **kwargs: Any) -> Any:
        if attn_implementation == name:
            _check_tables(name, self, attend, is_new)
            if is_new and _has_own_attention(self):
                raise ArgumentError(
                    "attn_implementation=%r is not for %s: it computes attention by itself, if it has any, and does "
                    "not ask transformers' AttentionInterface; \"eager\" is accepted" % (name, type(self).__name__))
            note_model(type(self.config), bool(getattr(self, "_supports_sdpa", False)))
        return original(self, attn_implementation, *args, **kwargs)

    if name not in getattr(original, "_fxattn", ()):
        check._fxattn = (*getattr(original, "_fxattn", ()), name)  # type: ignore[attr-defined]
        model_base._check_and_adjust_attn_implementation = check
