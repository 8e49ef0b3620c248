# SPDX-License-Identifier: Apache-2.0
"""torch's functions and tensor methods, by name. torch itself is not imported: its functions come to us.

`call` is where __torch_function__ and the mode of modes.py end. Operators of ATen, as Dynamo writes them, have the same
names before the dot of their overload.
"""
import re
import sys
from typing import Any, Dict, Optional

from . import arrays, functions, ops, reductions
from .arrays import Vec, View, elementwise, vec
from .libraries import kind_of_dtype, library_of
from .place import like, refuse
from .record import Recording
from .symbol import Sym, recording_of
from .tables import (COMMON, Handler, check_rest, dims_of, h_concatenate, h_expand, h_permute, h_reduce,
                     h_reshape, h_stack,
                     h_swap, h_unsqueeze, is_plain, one, same, turned)
from .types import BOOL, FLOAT, I8, I16, INT, U8

INPLACE = re.compile(r"[a-z]\w*[a-z0-9]_|__setitem__|"
                     r"__i(add|sub|mul|truediv|div|floordiv|mod|pow|and|or|xor|lshift|rshift)__")


def h_where(rec: Recording, condition: Any, *branches: Any, **rest: Any) -> Any:
    if len(branches) == 2 and is_plain(rec, condition) and is_plain(rec, branches[0]) and is_plain(rec, branches[1]):
        return ops.where(rec, condition, *branches)
    found = [*branches, *(rest[key] for key in ("input", "self", "other") if key in rest)]
    if len(found) != 2:
        refuse("torch.where with a condition alone gives a shape that depends on values; give both branches")
    x, y = found
    return elementwise(ops.where, rec, (condition, x, y))


def h_where_method(rec: Recording, x: Any, condition: Any, other: Any) -> Any:
    return elementwise(ops.where, rec, (condition, x, other))


def h_clamp(rec: Recording, x: Any, min: Any = None, max: Any = None, **rest: Any) -> Any:
    check_rest("clamp", rest)
    return elementwise(functions.clamp, rec, (x, min, max))


def h_to(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
    target = rest.pop("dtype", None)
    rest.pop("other", None)
    for given in args:
        if type(given) in (Sym, Vec, View) or library_of(given) is not None:
            target = _kind_of_value(rec, given)
        elif not isinstance(given, (bool, str, int)) and kind_of_dtype(given) is not None:
            target = given
        elif isinstance(given, str) and given.startswith("torch."):  # x.type("torch.FloatTensor")
            target = {"Float": float, "Double": float, "Half": float, "Int": int, "Long": int,
                      "Bool": bool}.get(given[6:-6])
    if target is None:
        return x
    kind = target if type(target) is int else kind_of_dtype(target)
    if kind is None:
        refuse("a traced value cannot be converted to %s" % target)
    return _cast(rec, x, kind)


def _kind_of_value(rec: Recording, x: Any) -> int:
    if library_of(x) is not None:
        return int(kind_of_dtype(x.dtype) or 0)
    return int(vec(rec, x).elements[0].ty)


def _cast(rec: Recording, x: Any, kind: int) -> Any:
    return elementwise(lambda r, y: ops.cast(r, y, kind), rec, (x,))


def h_cast(kind: int) -> Handler:
    return lambda rec, x, *args, **rest: _cast(rec, x, kind)


def h_filled(default: Any) -> Handler:
    """new_zeros, ones_like and their like: constants of a type and a shape."""
    def go(rec: Recording, x: Any, *size: Any, dtype: Any = None, like: bool = False, **rest: Any) -> Any:
        shape = dims_of(size) if size else tuple(rest.pop("size", ()) or ())
        check_rest("this function", rest)
        return _full(rec, x, shape, default, dtype)
    return go


def _full(rec: Recording, x: Any, shape: Any, value: Any, dtype: Any) -> Any:
    kind = _kind_of_value(rec, x) if dtype is None else kind_of_dtype(dtype)
    element = ops.cast(rec, ops.scalar(rec, value), FLOAT if kind is None else kind)
    shape = tuple(int(n) for n in ((shape,) if isinstance(shape, int) else shape))
    return element if not shape else Vec(rec, shape, [element] * arrays.product(shape))


def h_new_full(rec: Recording, x: Any, size: Any, fill_value: Any, dtype: Any = None, **rest: Any) -> Any:
    return _full(rec, x, size, fill_value, dtype)


def h_full_like(rec: Recording, x: Any, fill_value: Any, dtype: Any = None, **rest: Any) -> Any:
    return _full(rec, x, _shape(rec, x), fill_value, dtype)


def h_like(value: Any) -> Handler:
    return lambda rec, x, dtype=None, **rest: _full(rec, x, _shape(rec, x), value, dtype)


def _shape(rec: Recording, x: Any) -> Any:
    return () if type(x) is Sym else tuple(x.shape)


def h_new_tensor(rec: Recording, x: Any, data: Any, dtype: Any = None, **rest: Any) -> Any:
    made = vec(rec, data)
    return arrays.value(made) if dtype is None else _cast(rec, arrays.value(made), kind_of_dtype(dtype) or 0)


def h_getitem(rec: Recording, x: Any, key: Any) -> Any:
    return x[key] if type(x) in (Sym, Vec, View) else arrays.index(rec, x, None, key)


def h_aten_index(rec: Recording, x: Any, indices: Any) -> Any:
    """aten.index: None stands for a whole dimension, where t[None] would be a new one."""
    return h_getitem(rec, x, tuple(slice(None) if i is None else i for i in indices))


def h_select(rec: Recording, x: Any, dim: int, index: Any) -> Any:
    rank = x.ndim
    return h_getitem(rec, x, (slice(None),) * (dim % rank) + (index,))


def h_index_select(rec: Recording, x: Any, dim: int, index: Any) -> Any:
    return h_getitem(rec, x, (slice(None),) * (dim % x.ndim) + (arrays.vec(rec, index),))


def h_take(rec: Recording, x: Any, index: Any) -> Any:
    return h_getitem(rec, x.reshape(-1), index)


def h_gather(rec: Recording, x: Any, dim: int, index: Any, **rest: Any) -> Any:
    if x.ndim != 1:
        refuse("gather on %d dimensions is not known to traced values; index with t[i, j]" % x.ndim)
    return h_getitem(rec, x, index)


def h_embedding(rec: Recording, input: Any, weight: Any, *args: Any, **rest: Any) -> Any:
    return h_getitem(rec, weight, input)


def h_linear(rec: Recording, x: Any, weight: Any, bias: Any = None) -> Any:
    turned_weight = arrays.permute(vec(rec, weight), (1, 0))
    made = reductions.matmul(rec, x, turned_weight)
    return made if bias is None else elementwise(ops.add, rec, (made, bias))


def h_extreme(name: str, pair: Any) -> Handler:
    """max and min: of two tensors, of all elements, along a dimension."""
    def go(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
        other = rest.get("other", args[0] if args and not isinstance(args[0], int) else None)
        if other is not None:
            return elementwise(pair, rec, (x, other))
        if "axis" in rest or "keepdims" in rest:  # NumPy's method
            return reductions.reduce(rec, name, x, rest.get("axis"), rest.get("keepdims", False))
        dim = rest.get("dim", args[0] if args else None)
        return reductions.extreme(rec, name, x, dim, rest.get("keepdim", args[1] if len(args) > 1 else False))
    return go


def h_round(rec: Recording, x: Any, decimals: int = 0, **rest: Any) -> Any:
    return elementwise(functions.round_to, rec, (x,), decimals=decimals)


def h_div(rec: Recording, x: Any, y: Any, rounding_mode: Optional[str] = None, **rest: Any) -> Any:
    return elementwise(functions.div_mode, rec, (x, y), rounding_mode=rounding_mode)


def h_alpha(fn: Any) -> Handler:
    def go(rec: Recording, x: Any, y: Any, alpha: Any = 1, **rest: Any) -> Any:
        check_rest("add", rest)
        return elementwise(fn, rec, (x, y, alpha))
    return go


def h_addc(fn: Any) -> Handler:
    def go(rec: Recording, x: Any, y: Any, z: Any, value: Any = 1, **rest: Any) -> Any:
        return elementwise(lambda r, a, b, c, v: functions.added(r, a, fn(r, b, c), v), rec, (x, y, z, value))
    return go


def h_stop(rec: Recording, x: Any, *args: Any) -> Any:
    if any(e.ty == FLOAT for e in vec(rec, x).elements):
        refuse("detach() stops a gradient, which a program cannot; detach captured tensors before they are indexed")
    return x


def h_size(rec: Recording, x: Any, dim: Optional[int] = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


def h_numel(rec: Recording, x: Any) -> int:
    return arrays.product(x.shape)


def h_glu_like(fn: Any, **defaults: Any) -> Handler:
    """Activations with numbers beside their input."""
    def go(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
        rest.pop("inplace", None)
        given = dict(zip(defaults, args), **rest)
        numbers = [given[key] if key in given else functions.k(rec, value) if type(value) is float else value
                   for key, value in defaults.items()]
        return elementwise(fn, rec, (x, *numbers))
    return go


def _hardtanh(rec: Recording, x: Any, low: Any, high: Any) -> Sym:
    return functions.clamp(rec, x, low, high)


def _masked_fill(rec: Recording, x: Any, mask: Any, value: Any) -> Any:
    return elementwise(functions.masked_fill, rec, (x, mask, value))


def h_equal(rec: Recording, x: Any, y: Any) -> Any:
    refuse("torch.equal gives a Python bool, which is not known while the function is traced; use == and all()")


TORCH: Dict[str, Handler] = {
    **COMMON, "equal": h_equal,
    "add": h_alpha(functions.added), "sub": h_alpha(functions.subtracted), "subtract": h_alpha(functions.subtracted),
    "rsub": h_alpha(functions.rsub), "div": h_div, "divide": h_div, "where": h_where, "clamp": h_clamp, "clip": h_clamp,
    "clamp_min": lambda rec, x, min: h_clamp(rec, x, min), "clamp_max": lambda rec, x, max: h_clamp(rec, x, None, max),
    "max": h_extreme("max", ops.maximum), "min": h_extreme("min", ops.minimum), "round": h_round,
    "masked_fill": _masked_fill,
    "lerp": lambda rec, x, y, w: elementwise(functions.lerp, rec, (x, y, w)),
    "addcmul": h_addc(ops.mul), "addcdiv": h_addc(ops.div),
    "isin": lambda rec, x, elements, **rest: reductions.isin(rec, x, elements), "bucketize": lambda rec, x, edges,
    right=False, **rest: reductions.bucketize(rec, x, edges, right),
    "searchsorted": lambda rec, edges, x, right=False, **rest: reductions.bucketize(rec, x, edges, right),
    "silu": h_glu_like(functions.silu), "gelu": lambda rec, x, approximate="none": elementwise(
        functions.gelu, rec, (x,), approximate=approximate),
    "elu": h_glu_like(functions.elu, alpha=None), "leaky_relu": h_glu_like(functions.leaky_relu, negative_slope=0.01),
    "softplus": h_glu_like(functions.softplus, beta=1, threshold=20), "logsigmoid": one(functions.log_sigmoid),
    "log_sigmoid": one(functions.log_sigmoid), "hardtanh": h_glu_like(_hardtanh, min_val=-1.0, max_val=1.0),
    "relu6": lambda rec, x, **rest: h_clamp(rec, x, 0, 6), "embedding": h_embedding, "linear": h_linear,
    "to": h_to, "type": h_to, "type_as": h_to, "float": h_cast(FLOAT), "double": h_cast(FLOAT), "half": h_cast(FLOAT),
    "bfloat16": h_cast(FLOAT), "int": h_cast(INT), "long": h_cast(INT), "short": h_cast(I16), "char": h_cast(I8),
    "byte": h_cast(U8), "bool": h_cast(BOOL), "_to_copy": h_to, "convert_element_type": h_to,
    "new_zeros": h_filled(0), "new_ones": h_filled(1), "new_empty": h_filled(0), "new_full": h_new_full,
    "new_tensor": h_new_tensor, "zeros_like": h_like(0), "ones_like": h_like(1), "empty_like": h_like(0),
    "full_like": h_full_like, "scalar_tensor": lambda rec, x, dtype=None, **rest: h_to(rec, x, dtype=dtype),
    "getitem": h_getitem, "index": h_aten_index, "_unsafe_index": h_aten_index, "select": h_select,
    "index_select": h_index_select, "take": h_take, "gather": h_gather,
    "view": h_reshape, "flatten": lambda rec, x, *args, **rest: h_reshape(rec, x, -1), "ravel": lambda rec,
    x: h_reshape(rec, x, -1),
    "unsqueeze": h_unsqueeze, "expand": h_expand, "expand_as": lambda rec, x, y: h_expand(rec, x, tuple(y.shape)),
    "broadcast_to": h_expand, "view_as": lambda rec, x, y: h_reshape(rec, x, tuple(y.shape)),
    "reshape_as": lambda rec, x, y: h_reshape(rec, x, tuple(y.shape)), "permute": h_permute, "transpose": h_swap,
    "swapaxes": h_swap,
    "t": h_swap, "cat": h_concatenate, "concat": h_concatenate, "stack": h_stack, "hstack": h_concatenate,
    "mm": reductions.matmul, "mv": reductions.matmul, "bmm": reductions.matmul,
    "vector_norm": lambda rec, x, ord=2, dim=None, keepdim=False, **rest: reductions.norm(rec, x, ord, dim, keepdim),
    "linalg_norm": lambda rec, x, ord=None, dim=None, keepdim=False, **rest: reductions.norm(rec, x, ord, dim, keepdim),
    "linalg_vector_norm": lambda rec, x, ord=2, dim=None, keepdim=False,
    **rest: reductions.norm(rec, x, ord, dim, keepdim),
    "clone": same, "contiguous": same, "alias": same, "lift_fresh_copy": same, "positive": one(functions.positive),
    "detach": h_stop,
    "requires_grad_": same, "size": h_size, "dim": lambda rec, x: len(x.shape), "ndimension": lambda rec,
    x: len(x.shape),
    "numel": h_numel, "nelement": h_numel, "is_floating_point": lambda rec, x: _kind_of_value(rec, x) == FLOAT,
    "is_complex": lambda rec, x: False, "is_tensor": lambda rec, x: True, "rdiv": turned(ops.div),
    "logit": one(functions.logit), "sinc": one(functions.sinc),
}

_handlers: Dict[Any, Handler] = {}


def name_of(func: Any) -> str:
    """The plain name of a function, method or operator: add of Tensor.__add__ and of aten.add.Tensor."""
    name = str(getattr(func, "__name__", func)).partition(".")[0]
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def find(func: Any) -> Handler:
    handler = _handlers.get(func)
    if handler is None:
        full = str(getattr(func, "__name__", func)).partition(".")[0]
        if INPLACE.fullmatch(full) and full != "requires_grad_":
            refuse("%s changes a tensor in place, which a score function must not; compute a new value instead"
                   % full.strip("_"))
        name = name_of(func)
        handler = TORCH.get(name)
        if handler is not None and _is_foreign(func) and not _is_like_torch(func, name):
            refuse("the operator %s is not torch's own; write the function with torch's" % func)
        if handler is None:
            refuse("torch's %s is not known to score functions%s" % (name, like(name, TORCH)))
        _handlers[func] = handler
    return handler


def _is_foreign(func: Any) -> bool:
    """An operator of somebody's own, by its namespace."""
    space = getattr(func, "namespace", None) or str(getattr(func, "_qualified_op_name", "aten::")).partition("::")[0]
    return space not in ("aten", "prims")


def _is_like_torch(func: Any, name: str) -> bool:
    """Whether an operator of somebody's own (an approximate tanh) gives what torch's function of its name gives."""
    torch = sys.modules["torch"]
    known = getattr(torch, name, None)
    points = torch.linspace(-3.0, 3.0, 25)
    try:
        return known is not None and torch.allclose(func(points), known(points), rtol=1e-2, atol=1e-3, equal_nan=True)
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def call(func: Any, args: Any, kwargs: Optional[Dict[str, Any]], rec: Optional[Recording] = None) -> Any:
    """A function of torch with a traced value among its arguments."""
    handler = _handlers.get(func) or find(func)
    rec = rec or recording_of(args) or recording_of(kwargs or {})
    if not kwargs:
        return handler(rec, *args)
    if args:
        kwargs = {key: value for key, value in kwargs.items() if key not in ("out", "generator") or value is not None}
        if "other" in kwargs and len(args) == 1 and "input" not in kwargs:
            args = (*args, kwargs.pop("other"))
        return handler(rec, *args, **kwargs)
    return _by_keyword(handler, rec, dict(kwargs))


def _by_keyword(handler: Handler, rec: Any, kwargs: Dict[str, Any]) -> Any:
    """All arguments by keyword: input and other come first, as everywhere in torch."""
    first = [kwargs.pop(key) for key in ("condition", "input", "self", "tensors", "tensor", "x1", "x2", "other",
                                         "exponent")
             if key in kwargs]
    return handler(rec, *first, **kwargs)
