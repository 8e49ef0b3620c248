# SPDX-License-Identifier: Apache-2.0
"""The compiled route: calls under torch.compile and torch.export, which become calls of fxattn::fwd in the graph.

Under torch.compile, call_in_graph() makes Dynamo put the operator Flex into its graph, and Flex.__call__ traces the
score functions on fake tensors. Under torch.export without Dynamo and under make_fx, the front end traces the score
functions. With torch.compile, torch.export and make_fx alike, the graph of the compiler gets a call of fxattn::fwd.

Dynamo captures the higher-order operator Flex by the code that Dynamo has for PyTorch's own flex_attention. Dynamo's
code records score_mod and mask_mod on 0-d tensors, and turns captured intermediates, parameters and symbolic numbers
into operands. A call of Flex (by Dynamo on fake tensors, by AOT's trace, by backend "eager") traces the recorded
graphs, as an eager call traces functions, and then calls fxattn::fwd. Compilers see only fxattn::fwd, whose gradients
are in autograd.py.

The module uses private names of PyTorch: HigherOrderOperator, Dynamo's table of higher-order operators, and the class
for flex_attention in Dynamo's table. Dynamo's table of higher-order operators, and its class for flex_attention, are
read when Dynamo looks up the operator Flex, so that importing this module does not import Dynamo. If Dynamo lacks its
table of higher-order operators or its class for flex_attention, calls in a compiled function become graph breaks
(`is_capturable`).
"""
import functools
import math
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, TypeVar, cast

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from ... import _abi
from ...trace import trace
from .. import operators as ops
from ..call import Call, Results, call_of, score_attributes

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NAME = "fxattn_flex"
_TABLE, _VARIABLE = "_hop_name_to_variable_class", "FlexAttentionHigherOrderVariable"


def _names_of_dynamo() -> Tuple[Any, Any]:
    """Returns Dynamo's table of higher-order operators and its class for flex_attention; None for each that is
    missing."""
    module = sys.modules.get("torch._dynamo.variables.higher_order_ops")
    return getattr(module, _TABLE, None), getattr(module, _VARIABLE, None)


def is_capturable() -> bool:
    """Returns False if Dynamo is imported but lacks the names that capturing the operator Flex needs."""
    return "torch._dynamo.variables.higher_order_ops" not in sys.modules or None not in _names_of_dynamo()


# Makes Dynamo call the function instead of tracing it. torch.compiler.assume_constant_result sets the same attribute,
# but imports Dynamo.
is_capturable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enter() -> None:
    """Adds the operator Flex to Dynamo's table of higher-order operators. Dynamo must not trace _enter(), because
    changing Dynamo's table of operators is a side effect."""
    table, variable = _names_of_dynamo()
    if table is not None and variable is not None and _NAME not in table:
        table[_NAME] = _with_one_record(variable)


def _with_one_record(variable: Any) -> Any:
    """Returns a subclass of `variable`, Dynamo's class for flex_attention, that keeps Dynamo's record of side effects
    (writes to attributes in the compiled code). Dynamo's class for flex_attention replaces the record of side effects
    by a copy after it has recorded score_mod and mask_mod. Attributes that are written to the old record and read from
    the copy would be lost: in PyTorch 2.13, the attributes of the cache in the second layer of a model."""
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


def untraced(function: _Function) -> _Function:
    """Returns a wrapper of `function` that Dynamo does not trace. torch.compiler.disable would import Dynamo in its
    first call, which takes a second or two; the wrapper imports nothing."""
    disabled = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or "torch._dynamo" in sys.modules:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(_Function, call)


class Flex(HigherOrderOperator):
    """The higher-order operator, with the arguments that Dynamo's class for flex_attention expects: (q, k, v,
    score_mod, (*extras, mask_mod), scale, options). Dynamo appends two tuples to the arguments of a call: the operands
    of score_mod and those of mask_mod.
    `options`: a dictionary with the config and dropout_p of the operator fxattn::fwd, and VERSION."""

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
            arguments = replay(options["source"], block_mask[extras:-1], block_mask[-1])
            return run(arguments.call(q, k, scale, options["config"], options["dropout_p"], block_mask[:extras],
                                      mask_extra), q, k, v)
        traced = trace(score_mod, block_mask[-1], score_extra=score_extra, mask_extra=mask_extra,
                       **score_attributes(q))
        return run(call_of(traced, scale, options["config"], options.get("dropout_p", 0.0), block_mask[:-1]), q, k, v)


flex = Flex()
# VERSION is part of the graph, and thus of the keys of compilers' caches. The keys contain the recorded functions, but
# not the code of fxattn's tracer.
VERSION = "fxattn " + _abi.VERSION


def identity(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score


def call_in_graph(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, last: Tuple[Any, ...], scale: Optional[float],
                  **options: Any) -> Results:
    """Returns (out, LSE, row maxima) of a call that Dynamo compiles. `last`: a tuple of the extra tensors, of the
    operands (tensors and numbers) of a recorded callback, and of the mask_mod. Dynamo compiles the code of
    call_in_graph() as a part of the user's function."""
    return flex(q, k, v, identity if score_mod is None else score_mod, last,  # type: ignore[no-any-return]
                math.nan if scale is None else scale, {**options, "version": VERSION})


def run(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Results:
    """Returns (out, LSE, row maxima) of a call inside a graph that is compiled or exported. Packages of AOTInductor can
    hold neither NaN, which stands for the default scale, nor empty lists; run() replaces NaN by the number 1 /
    sqrt(head dim), and empty lists by the stand-ins that torch_call.h describes. The program becomes one line, because
    Inductor writes the program into comments of Triton kernels, where a second line would be code."""
    tensors, extras, scalars, ints, floats, config, program = call.arguments()
    width = q.shape[3]
    if isinstance(width, int) and width > 0 and len(floats) and isinstance(floats[0], float) and math.isnan(floats[0]):
        floats = [1 / math.sqrt(width), *floats[1:]]
    if torch.compiler.is_exporting():
        none: Sequence[Tensor] = [q.new_empty((0,) * (_abi.MAX_RANK + 1))]
        tensors, extras, scalars, ints = tensors or none, extras or none, scalars or none, ints or [0]
    return ops.forward(q, k, v, tensors, extras, scalars, ints, floats, config, program.replace("\n", ";"))
