# SPDX-License-Identifier: Apache-2.0
"""Handlers of torch's functions and tensor methods, by name. This file does not import torch: the functions of torch
arrive as arguments.

The function `call` of this file evaluates one function of torch; __torch_function__ and the torch mode of modes.py call
`call`. Dynamo writes operators of ATen, whose handlers are found by the name without the overload: aten.add.Tensor as
"add".
"""
import re
from typing import Any, Dict, Optional

from . import activations, curves, functions, ops, products, reductions
from .arrays import elementwise
from .place import like, refuse
from .record import Recording
from .symbol import recording_of
from .tables import (COMMON, Handler, h_concatenate, h_expand, h_permute, h_reduce, h_reshape, h_stack, h_swap,
                     h_unsqueeze, not_taken, one, same, spread, turned, two)
from .taking import (h_aten_index, h_embedding, h_gather, h_getitem, h_index_select, h_narrow, h_select, h_take,
                     h_take_along)
from .torch_handlers import (h_activation, h_addc, h_alpha, h_as, h_bucketize, h_cast, h_clamp, h_div, h_dropout,
                             h_equal, h_extreme, h_filled, h_flatten, h_full_like, h_gelu, h_hstack, h_isin, h_like,
                             h_linalg_norm, h_masked_fill, h_new_full, h_new_tensor, h_numel, h_rank, h_round,
                             h_searchsorted, h_size, h_softmin, h_stop, h_tensor, h_to, h_vector_norm, h_view,
                             h_where, is_like_torch, kind_of_value)
from .types import BOOL, FLOAT, I8, I16, INT, U8

INPLACE = re.compile(r"[a-z]\w*[a-z0-9]_|__setitem__|"
                     r"__i(add|sub|mul|truediv|div|floordiv|mod|pow|and|or|xor|lshift|rshift)__")
# Functions that draw random numbers.
RANDOM = frozenset("""rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal poisson
    binomial gumbel_softmax rrelu alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d
    native_dropout""".split())

TORCH: Dict[str, Handler] = {**COMMON, **spread({
    "add": h_alpha(functions.added), "sub subtract": h_alpha(functions.subtracted), "rsub": h_alpha(functions.rsub),
    "div divide": h_div, "rdiv": turned(ops.div), "addcmul": h_addc(ops.mul), "addcdiv": h_addc(ops.div),
    "lerp": lambda rec, x, y, weight: elementwise(functions.lerp, rec, (x, y, weight)), "round": h_round,
    "where": h_where, "clamp clip": h_clamp, "clamp_min": lambda rec, x, min: h_clamp(rec, x, min),
    "clamp_max": lambda rec, x, max: h_clamp(rec, x, None, max), "max": h_extreme("max", ops.maximum),
    "min": h_extreme("min", ops.minimum), "masked_fill": h_masked_fill, "equal allclose": h_equal,
    "logit": lambda rec, x, eps=None: elementwise(curves.logit, rec, (x, eps)),
    "isin": h_isin, "bucketize": h_bucketize, "searchsorted": h_searchsorted,
    # activations
    "relu": h_activation(activations.relu), "silu": h_activation(activations.silu), "gelu": h_gelu,
    "elu": h_activation(activations.elu, alpha=None), "celu": h_activation(activations.celu, alpha=1),
    "selu": h_activation(activations.selu), "mish": h_activation(activations.mish),
    "leaky_relu": h_activation(activations.leaky_relu, negative_slope=0.01), "prelu": two(activations.prelu),
    "softplus": h_activation(activations.softplus, beta=1, threshold=20), "softsign": one(activations.softsign),
    "logsigmoid log_sigmoid": one(activations.log_sigmoid), "tanhshrink": one(activations.tanhshrink),
    "hardtanh": h_activation(activations.hardtanh, min_val=-1.0, max_val=1.0),
    "relu6": h_activation(activations.relu6), "hardsigmoid": h_activation(activations.hardsigmoid),
    "hardswish": h_activation(activations.hardswish), "hardshrink": h_activation(activations.hardshrink, lambd=0.5),
    "softshrink": h_activation(activations.softshrink, lambd=0.5),
    "threshold _threshold": lambda rec, x, threshold, value, inplace=False: h_activation(
        activations.threshold, threshold=None, value=None)(rec, x, threshold, value, inplace),
    "softmin": h_softmin, "dropout": h_dropout,
    # types and constants
    "to type type_as _to_copy convert_element_type": h_to, "float double half bfloat16": h_cast(FLOAT),
    "int long": h_cast(INT), "short": h_cast(I16), "char": h_cast(I8), "byte": h_cast(U8), "bool": h_cast(BOOL),
    "new_zeros new_empty": h_filled(0), "new_ones": h_filled(1), "new_full": h_new_full, "new_tensor": h_new_tensor,
    "zeros_like empty_like": h_like(0), "ones_like": h_like(1), "full_like": h_full_like,
    "tensor as_tensor asarray scalar_tensor": h_tensor,
    "clone contiguous alias lift_fresh requires_grad_ real conj conj_physical resolve_conj resolve_neg cpu": same,
    "detach": h_stop, "is_floating_point": lambda rec, x: kind_of_value(rec, x) == FLOAT,
    "is_complex": lambda rec, x: False, "is_tensor": lambda rec, x: True,
    # elements and shapes
    "getitem": h_getitem, "index _unsafe_index": h_aten_index, "select": h_select, "index_select": h_index_select,
    "narrow": h_narrow, "take": h_take, "gather": h_gather, "take_along_dim": h_take_along, "embedding": h_embedding,
    "view": h_view, "flatten": h_flatten, "ravel": h_flatten, "unsqueeze": h_unsqueeze,
    "expand broadcast_to": h_expand, "expand_as": h_as(h_expand), "view_as reshape_as": h_as(h_reshape),
    "permute": h_permute, "transpose swapaxes swapdims t": h_swap, "cat concat": h_concatenate, "stack": h_stack,
    "hstack": h_hstack, "size": h_size, "dim ndimension": h_rank, "numel nelement": h_numel,
    # products and norms
    "mm mv bmm": products.matmul, "vecdot linalg_vecdot": products.vecdot, "linear": products.linear,
    "vector_norm linalg_vector_norm": h_vector_norm, "linalg_norm": h_linalg_norm,
    **{name: h_reduce(name) for name in ("nansum", "nanmean")},
    "std": reductions.h_spread(True), "var": reductions.h_spread(False),
})}

_handlers: Dict[Any, Handler] = {}
_FIRST = ("condition", "input", "self", "tensors", "tensor", "x1", "x2", "other", "exponent")  # names of operands


def name_of(func: Any) -> str:
    """Returns the plain name of a function, method or operator: "add" for Tensor.__add__ and for aten.add.Tensor."""
    name = str(getattr(func, "__name__", func)).partition(".")[0]
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def _row(name: str) -> Optional[Handler]:
    """Returns the handler of a name; None if the name has no handler. A name may have the prefix "special_"
    (torch.special) or the suffix "_copy" (functionalized graphs)."""
    if name in TORCH:
        return TORCH[name]
    return TORCH.get(name[8:] if name.startswith("special_") else name[:-5] if name.endswith("_copy") else "")


def find(func: Any) -> Handler:
    handler = _handlers.get(func)
    if handler is None:
        full = str(getattr(func, "__name__", func)).partition(".")[0]
        check_name(full)
        name = name_of(func)
        handler = _row(name)
        if handler is not None and _is_foreign(func) and not is_like_torch(func, name):
            refuse("the operator %s is not torch's own; write the function with torch's" % func)
        if handler is None:
            refuse("torch's %s is not known to score functions%s; a table of it, made outside, may be indexed"
                   % (name, like(name, TORCH)))
        _handlers[func] = handler
    return handler


def check_name(name: str) -> None:
    """Raises an error for functions that modify a tensor or draw random numbers."""
    if INPLACE.fullmatch(name) and name != "requires_grad_":
        refuse("%s changes a tensor in place, which a score function must not; compute a new value instead"
               % name.strip("_"))
    if name in RANDOM:
        refuse("torch's %s draws numbers, which would be the same for all scores; draw a tensor outside of the "
               "function and index it, or use attention's dropout" % name)


def _is_foreign(func: Any) -> bool:
    """Returns True for a custom operator of a user, whose namespace is none of torch's namespaces."""
    space = getattr(func, "namespace", None) or str(getattr(func, "_qualified_op_name", "aten::")).partition("::")[0]
    return space not in ("aten", "prims")


def call(func: Any, args: Any, kwargs: Optional[Dict[str, Any]], rec: Optional[Recording] = None) -> Any:
    """Returns the result of a function of torch that has a traced value among its arguments."""
    handler = _handlers.get(func) or find(func)
    rec = rec or recording_of(args) or recording_of(kwargs or {})
    if kwargs:
        kwargs = {key: value for key, value in kwargs.items() if key not in ("out", "generator") or value is not None}
        if not args:
            args = [kwargs.pop(key) for key in _FIRST if key in kwargs]
        elif "other" in kwargs and len(args) == 1 and "input" not in kwargs:
            args = (*args, kwargs.pop("other"))
    try:
        return handler(rec, *args, **(kwargs or {}))
    except TypeError as error:
        raise not_taken(error, "torch's " + name_of(func)) from None
