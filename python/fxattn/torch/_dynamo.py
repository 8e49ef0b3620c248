# SPDX-License-Identifier: Apache-2.0
"""flex_attention under torch.compile: an operator of higher order that translates itself away.

Dynamo captures it with the code that it has for PyTorch's own flex_attention: it records both mods on 0-d tensors, and
turns captured intermediates, parameters and symbolic numbers into operands. Wherever the operator is then called
(Dynamo's own run on fake tensors, AOT's trace, backend "eager") it runs the tracer that eager calls use on the recorded
graphs, and calls fxattn::fwd. Compilers see that operator alone, whose gradients are _autograd.py's.

Private names of PyTorch: HigherOrderOperator, Dynamo's table of such operators and one class in it. They are asked for
when Dynamo asks for ours, so that importing this imports no Dynamo; where they are missing, calls inside a compiled
function become graph breaks (`capturable`).
"""
import functools
import sys
from typing import Any, Callable, Dict, Tuple, TypeVar, cast

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from .. import _abi
from ..trace import trace
from ._traced import call_of, told_of_scores

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NAME = "fxattn_flex"
_TABLE, _VARIABLE = "_hop_name_to_variable_class", "FlexAttentionHigherOrderVariable"


def _asked_for() -> Tuple[Any, Any]:
    """Dynamo's table and class; None where they are missing."""
    module = sys.modules.get("torch._dynamo.variables.higher_order_ops")
    return getattr(module, _TABLE, None), getattr(module, _VARIABLE, None)


def capturable() -> bool:
    """Whether this PyTorch has what Dynamo needs to capture the operator."""
    return "torch._dynamo.variables.higher_order_ops" not in sys.modules or None not in _asked_for()


# What torch.compiler.assume_constant_result sets, which imports Dynamo: Dynamo calls the function instead of tracing
# into it.
capturable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enter() -> None:
    """Says to Dynamo how the operator is captured; never traced by it, to which that would be a side effect."""
    table, variable = _asked_for()
    if table is not None and variable is not None and _NAME not in table:
        table[_NAME] = _one_record(variable)


def _one_record(variable: Any) -> Any:
    """PyTorch's class, but that Dynamo has the same record of side effects afterwards. It goes back to a copy once
    the mods are recorded, and objects that were made before then write into the old one and read from the new (PyTorch
    2.13: the second layer of a model lost the attributes of its cache)."""
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
    """The function, which Dynamo does not enter. What torch.compiler.disable gives imports Dynamo, a second or two, in
    its first call; this does not where nothing else has."""
    disabled = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or "torch._dynamo" in sys.modules:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(_Function, call)


class _Flex(HigherOrderOperator):
    """(q, k, v, score_mod, (*extras, mask_mod), scale, options): what Dynamo's class takes. It adds two tuples of
    operands. options: config of the operator and dropout_p."""

    def __init__(self) -> None:
        super().__init__(_NAME, cacheable=True)

    def _looked_up(self) -> str:
        _enter()
        return _NAME

    # Dynamo looks its table up by this name: the moment to enter it.
    __name__ = property(_looked_up, lambda self, name: None)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: Tuple[Any, ...], scale: float,
                 options: Dict[str, Any], score_extra: Tuple[Any, ...] = (), mask_extra: Tuple[Any, ...] = ()) -> Any:
        # The two tuples are absent when a mod could not be captured and the call runs eagerly after all.
        if "source" in options:
            from ._recorded import replay
            extras = len(block_mask) - 1 - options["operands"]
            given = replay(options["source"], block_mask[extras:-1], block_mask[-1])
            return given.call(q, k, scale, options["config"], options["dropout_p"], block_mask[:extras],
                              mask_extra).compiled(q, k, v)
        traced = trace(score_mod, block_mask[-1], score_extra=score_extra, mask_extra=mask_extra,
                       **told_of_scores(q))
        call = call_of(traced, scale, options["config"], options.get("dropout_p", 0.0), block_mask[:-1])
        return call.compiled(q, k, v)


flex = _Flex()
# Part of the graph, and so of the keys of compilers' caches: the recorded mods are in those keys, our tracer is not.
VERSION = "fxattn " + _abi.VERSION
