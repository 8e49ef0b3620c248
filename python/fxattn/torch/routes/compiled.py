# SPDX-License-Identifier: Apache-2.0
"""flex_attention and attention under torch.compile: a higher-order operator that becomes a call of fxattn::fwd.

Dynamo captures the higher-order operator by the code that Dynamo has for PyTorch's own flex_attention. Dynamo's code
records score_mod and mask_mod on 0-d tensors, and turns captured intermediates, parameters and symbolic numbers into
operands. The higher-order operator, when it is called (by Dynamo on fake tensors, by AOT's trace, by backend "eager"),
traces the recorded graphs as eager calls trace functions, and calls fxattn::fwd. Compilers see only fxattn::fwd, whose
gradients are in routes/autograd.py.

The module uses private names of PyTorch: HigherOrderOperator, Dynamo's table of higher-order operators and one class in
this table. The table and the class are read when Dynamo looks up the operator, so that importing this module does not
import Dynamo. If the table or the class is missing, calls in a compiled function become graph breaks (`capturable`).
"""
import functools
import sys
from typing import Any, Callable, Dict, Tuple, TypeVar, cast

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from ... import _abi
from ...trace import trace
from ..call import call_of, told_of_scores

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NAME = "fxattn_flex"
_TABLE, _VARIABLE = "_hop_name_to_variable_class", "FlexAttentionHigherOrderVariable"


def _asked_for() -> Tuple[Any, Any]:
    """Returns Dynamo's table of higher-order operators and its class for flex_attention; None for each that is
    missing."""
    module = sys.modules.get("torch._dynamo.variables.higher_order_ops")
    return getattr(module, _TABLE, None), getattr(module, _VARIABLE, None)


def capturable() -> bool:
    """Returns False if Dynamo is imported but lacks the names that capturing the operator needs."""
    return "torch._dynamo.variables.higher_order_ops" not in sys.modules or None not in _asked_for()


# Makes Dynamo call the function instead of tracing it. torch.compiler.assume_constant_result sets the same attribute,
# but imports Dynamo.
capturable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enter() -> None:
    """Adds the operator to Dynamo's table. Dynamo must not trace this function, because changing the table is a side
    effect."""
    table, variable = _asked_for()
    if table is not None and variable is not None and _NAME not in table:
        table[_NAME] = _one_record(variable)


def _one_record(variable: Any) -> Any:
    """Returns a subclass of PyTorch's class `variable` that keeps Dynamo's record of side effects. After recording
    score_mod and mask_mod, PyTorch's class replaces the record by a copy. Objects made earlier would then write to the
    old record and read from the new one: in PyTorch 2.13 the second layer of a model lost the attributes of its
    cache."""
    def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        record = tx.output.side_effects
        result = variable._call_function(self, tx, *args, **kwargs)
        if tx.output.side_effects is not record:
            vars(record).update(vars(tx.output.side_effects))
            tx.output.side_effects = record
        return result

    if not hasattr(variable, "_call_function"):
        return variable
    return type(variable)("FxattnFlexVariable", (variable,), {"_call_function": call, "__module__": __name__})


def outside(function: _Function) -> _Function:
    """Returns a wrapper of `function` that Dynamo does not trace. torch.compiler.disable would import Dynamo in its
    first call, which takes a second or two; the wrapper imports nothing."""
    disabled = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or "torch._dynamo" in sys.modules:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(_Function, call)


class _Flex(HigherOrderOperator):
    """The higher-order operator, with the arguments that Dynamo's class for flex_attention expects: (q, k, v,
    score_mod, (*extras, mask_mod), scale, options). Dynamo adds two tuples of operands, for score_mod and mask_mod.
    `options`: a dictionary with the operator's config, dropout_p and VERSION."""

    def __init__(self) -> None:
        super().__init__(_NAME, cacheable=True)

    def _looked_up(self) -> str:
        _enter()
        return _NAME

    # Dynamo reads this name to search its table, so reading the name adds the operator to the table.
    __name__ = property(_looked_up, lambda self, name: None)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: Tuple[Any, ...], scale: float,
                 options: Dict[str, Any], score_extra: Tuple[Any, ...] = (), mask_extra: Tuple[Any, ...] = ()) -> Any:
        # score_extra and mask_extra are empty if Dynamo could not capture a function and the call runs eagerly.
        if "source" in options:
            from .callback_script import replay
            extras = len(block_mask) - 1 - options["operands"]
            given = replay(options["source"], block_mask[extras:-1], block_mask[-1])
            return given.call(q, k, scale, options["config"], options["dropout_p"], block_mask[:extras],
                              mask_extra).compiled(q, k, v)
        traced = trace(score_mod, block_mask[-1], score_extra=score_extra, mask_extra=mask_extra,
                       **told_of_scores(q))
        call = call_of(traced, scale, options["config"], options.get("dropout_p", 0.0), block_mask[:-1])
        return call.compiled(q, k, v)


flex = _Flex()
# VERSION is part of the graph, and thus of the keys of compilers' caches. The keys contain the recorded functions, but
# not the code of fxattn's tracer.
VERSION = "fxattn " + _abi.VERSION
