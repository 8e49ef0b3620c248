# SPDX-License-Identifier: Apache-2.0
"""Which models of transformers can take attn_implementation="fxattn".

Models that call transformers' AttentionInterface do. Some choose a class for their layers from a table of names; where
that has one for SDPA, it is given a class of ours, whose scaled_dot_product_attention is fxattn's. All others would
ignore the name: they are refused when they are made, as transformers refuses "sdpa" for models without it.
"""
import copy
import functools
import sys
from typing import Any, Callable, Dict, Optional

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._errors import ArgumentError
from ._model_mask import note_model

Attend = Callable[..., Tensor]
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # what modules that call AttentionInterface import
_OWN = ("bloom", "mpt")  # served by _alibi.py


# ---- Layers chosen from a table --------------------------------------------------------------------------------------

class _OurAttention(TorchFunctionMode):
    """Computes scaled_dot_product_attention by fxattn inside a forward."""

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
        if is_causal and query.shape[2] == 1:  # the first row: transformers' own calls mean the last
            key, value = key[:, :, :1], value[:, :, :1]
        return self.attend(self.module, query, key, value, attn_mask, dropout=dropout_p, scaling=scale,
                           is_causal=is_causal)


def _adopted(original: Any, attend: Attend) -> Any:
    """A class of layers like a table's for SDPA, with fxattn's attention in it."""
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original.__init__(self, *args, **kwargs)
        if hasattr(self, "config"):  # some compare the name of the implementation in their forward
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


# ---- The check of a model that is made -------------------------------------------------------------------------------

def _has_own_attention(model: Any) -> bool:
    """True for models that neither call AttentionInterface nor have SDPA: the name would change nothing in them."""
    if getattr(model, "_supports_sdpa", False) or getattr(model.config, "model_type", None) in _OWN:
        return False
    modules = (sys.modules.get(base.__module__) for base in type(model).__mro__ if base.__module__.rpartition(".")[2]
               not in ("modeling_utils", "module", "builtins"))
    return not any(hasattr(module, _INTERFACE) for module in modules)


def check_models(name: str, model_base: Any, attend: Attend) -> None:
    """Adds to transformers' check of attn_implementation=name what it does not know: models that cannot take it."""
    original = getattr(model_base, "_check_and_adjust_attn_implementation", None)
    if original is None:  # another transformers: its own errors come then
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
