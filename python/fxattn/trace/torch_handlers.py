# SPDX-License-Identifier: Apache-2.0
"""Handlers of torch's functions that have arguments besides operands; torch_table.py maps names to handlers. The
handler of a torch function takes a Recording and the arguments as the user gave them."""
import sys
from operator import index as as_int
from typing import Any, Callable, Optional

from . import activations, arrays, functions, ops, reductions
from .arrays import Vec, View, elementwise, vec
from .libraries import dtype_name, kind_of_dtype, library_of
from .place import refuse
from .record import Recording
from .symbol import NeedsJax, Sym
from .tables import Handler, check_rest, dims_of, h_concatenate, h_reshape, in_rows, is_plain
from .types import FLOAT

_OF_JAX_TOO = ("float32", "float64", "float", "int32", "bool")  # JAX converts to these dtypes as this tracer does
_BY_NAME = {"Float": float, "Double": float, "Half": float, "BFloat16": float, "Int": int, "Long": int, "Bool": bool}


# ---- choice and limits

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


def h_extreme(name: str, pair: Any) -> Handler:
    """Returns the handler of torch's max or min. The handler of max or min compares two tensors by `pair`, or reduces
    all elements of a tensor, or the elements along a dimension."""
    def go(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
        other = rest.get("other", args[0] if args and not isinstance(args[0], int) else None)
        if other is not None:
            return elementwise(pair, rec, (x, other))
        check_rest(name, {key: rest[key] for key in ("initial", "where") if key in rest})
        if "axis" in rest or "keepdims" in rest:  # a call of NumPy's method
            return reductions.reduce(rec, name, x, rest.get("axis"), rest.get("keepdims", False))
        dim = rest.get("dim", args[0] if args else None)
        return reductions.extreme(rec, name, x, dim, rest.get("keepdim", args[1] if len(args) > 1 else False))
    return go


def h_masked_fill(rec: Recording, x: Any, mask: Any, value: Any) -> Any:
    return elementwise(functions.masked_fill, rec, (x, mask, value))


def h_equal(rec: Recording, x: Any, y: Any, **rest: Any) -> Any:
    refuse("torch.equal and torch.allclose give a Python bool, which is not known while the function is traced; use == "
           "or torch.isclose, and all()")


# ---- arithmetic with options

def h_round(rec: Recording, x: Any, decimals: Any = 0, **rest: Any) -> Any:
    check_rest("round", rest)
    return elementwise(functions.round_to, rec, (x,), decimals=as_int(decimals))


def h_div(rec: Recording, x: Any, y: Any, rounding_mode: Optional[str] = None, **rest: Any) -> Any:
    check_rest("div", rest)
    return elementwise(functions.div_mode, rec, (x, y), rounding_mode=rounding_mode)


def h_alpha(fn: Callable[..., Sym]) -> Handler:
    def go(rec: Recording, x: Any, y: Any, alpha: Any = 1, **rest: Any) -> Any:
        check_rest("add", rest)
        return elementwise(fn, rec, (x, y, alpha))
    return go


def h_addc(fn: Callable[..., Sym]) -> Handler:
    def go(rec: Recording, x: Any, y: Any, z: Any, value: Any = 1, **rest: Any) -> Any:
        check_rest("addcmul", rest)
        return elementwise(lambda r, a, b, c, v: functions.added_term(r, fn, a, b, c, v), rec, (x, y, z, value))
    return go


def h_activation(fn: Callable[..., Sym], **defaults: Any) -> Handler:
    """Returns the handler of an activation `fn` that takes numbers besides its input; `defaults` has the defaults of
    the numbers."""
    def go(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
        given = dict(zip([*defaults, "inplace"], args), **rest)
        if given.pop("inplace", False):
            refuse("%s: inplace=True changes a tensor, which a score function must not" % fn.__name__)
        check_rest(fn.__name__, {key: value for key, value in given.items() if key not in defaults})
        numbers = [given[key] if key in given else functions.k(rec, value) if type(value) is float else value
                   for key, value in defaults.items()]
        return elementwise(fn, rec, (x, *numbers))
    return go


def h_gelu(rec: Recording, x: Any, approximate: str = "none") -> Any:
    return elementwise(activations.gelu, rec, (x,), approximate=approximate)


def h_softmin(rec: Recording, x: Any, dim: Any = -1, **rest: Any) -> Any:
    return reductions.softmax(rec, elementwise(ops.neg, rec, (x,)), dim)


def h_dropout(rec: Recording, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0:
        return x
    refuse("dropout in a score function would draw once for all scores; attention(..., dropout_p=...) drops attention "
           "weights, a mask_mod with a captured tensor hides scores")


def h_bucketize(rec: Recording, x: Any, boundaries: Any, right: bool = False, side: Optional[str] = None,
                out_int32: bool = False) -> Any:
    return reductions.bucketize(rec, x, boundaries, right if side is None else side == "right")


def h_searchsorted(rec: Recording, edges: Any, x: Any, out_int32: bool = False, right: bool = False,
                   side: Optional[str] = None, sorter: Any = None) -> Any:
    if sorter is not None or getattr(edges, "ndim", 1) != 1:
        refuse("searchsorted: one row of edges in ascending order is known to traced values, no sorter")
    return reductions.bucketize(rec, x, edges, right if side is None else side == "right")


def h_isin(rec: Recording, x: Any, elements: Any, assume_unique: bool = False, invert: bool = False,
           **rest: Any) -> Any:
    check_rest("isin", rest)
    found = reductions.isin(rec, x, elements)
    return elementwise(ops.logical_not, rec, (found,)) if invert else found


# ---- types and constants

def h_to(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
    target = rest.pop("dtype", None)
    other = rest.pop("other", None)
    for given in args if other is None else (*args, other):
        if type(given) in (Sym, Vec, View) or library_of(given) is not None:
            target = kind_of_value(rec, given)
        elif not isinstance(given, (bool, str, int)) and kind_of_dtype(given) is not None:
            target = given
        elif isinstance(given, str) and given.startswith("torch."):  # x.type("torch.FloatTensor")
            target = _BY_NAME.get(given[6:-6])
    if target is None:
        return x
    kind = target if type(target) is int else kind_of_dtype(target)
    if kind is None:
        refuse("a traced value cannot be converted to %s" % target)
    return _cast(rec, x, kind)


def h_astype(rec: Recording, x: Any, dtype: Any, *args: Any, **rest: Any) -> Any:
    """Handler of astype of NumPy and JAX, whose dtype may be given by name. Raises NeedsJax for a dtype that traced
    values do not have, so that JAX traces the function instead."""
    if isinstance(dtype, str) and kind_of_dtype(dtype) is None:  # "i4", "<f8"
        try:
            dtype = sys.modules["numpy"].dtype(dtype)
        except (KeyError, TypeError):
            refuse("astype: %r is the name of no dtype" % dtype)
    if rec.sizes is not None and dtype_name(dtype) not in _OF_JAX_TOO:
        raise NeedsJax()
    return h_to(rec, x, dtype=dtype)


def h_view(rec: Recording, x: Any, *sizes: Any, **rest: Any) -> Any:
    """Returns torch's view of x with other sizes. Raises an error for a view as another dtype, which would reinterpret
    the bits."""
    for given in (*sizes, rest.get("dtype")):
        if isinstance(given, str) or type(given) is not int and kind_of_dtype(given) is not None:
            refuse("view: the bits of a traced value cannot be read as %s; astype converts" % given)
    return h_reshape(rec, x, *sizes, **rest)


def kind_of_value(rec: Recording, x: Any) -> int:
    if library_of(x) is not None:
        return int(kind_of_dtype(x.dtype) or 0)
    return int(vec(rec, x).elements[0].ty)


def _cast(rec: Recording, x: Any, kind: int) -> Any:
    return elementwise(lambda r, y: ops.cast(r, y, kind), rec, (x,))


def h_cast(kind: int) -> Handler:
    return lambda rec, x, *args, **rest: _cast(rec, x, kind)


def h_filled(default: Any) -> Handler:
    """Returns the handler of new_zeros, new_ones or new_empty: an array of the constant `default`."""
    def go(rec: Recording, x: Any, *size: Any, dtype: Any = None, **rest: Any) -> Any:
        shape = dims_of(size) if size else tuple(rest.pop("size", ()) or ())
        check_rest("new_zeros", rest)
        return _full(rec, x, shape, default, dtype)
    return go


def _full(rec: Recording, x: Any, shape: Any, value: Any, dtype: Any) -> Any:
    kind = kind_of_value(rec, x) if dtype is None else kind_of_dtype(dtype)
    element = ops.cast(rec, ops.scalar(rec, value), FLOAT if kind is None else kind)
    shape = tuple(int(n) for n in ((shape,) if isinstance(shape, int) else shape))
    arrays.check_held(shape)
    return element if not shape else Vec(rec, shape, [element] * arrays.product(shape))


def h_new_full(rec: Recording, x: Any, size: Any, fill_value: Any, dtype: Any = None, **rest: Any) -> Any:
    check_rest("new_full", rest)
    return _full(rec, x, size, fill_value, dtype)


def h_full_like(rec: Recording, x: Any, fill_value: Any, dtype: Any = None, **rest: Any) -> Any:
    check_rest("full_like", rest)
    return _full(rec, x, tuple(x.shape), fill_value, dtype)


def h_like(value: Any) -> Handler:
    def go(rec: Recording, x: Any, dtype: Any = None, **rest: Any) -> Any:
        check_rest("zeros_like", rest)
        return _full(rec, x, tuple(x.shape), value, dtype)
    return go


def h_tensor(rec: Recording, data: Any, dtype: Any = None, **rest: Any) -> Any:
    """Returns torch.tensor or as_tensor of a traced value or of nested lists of traced values."""
    check_rest("tensor", rest)
    made = arrays.value(vec(rec, data))
    return made if dtype is None else h_to(rec, made, dtype=dtype)


def h_new_tensor(rec: Recording, x: Any, data: Any, dtype: Any = None, **rest: Any) -> Any:
    return h_tensor(rec, data, dtype, **rest)


def h_stop(rec: Recording, x: Any, *args: Any) -> Any:
    if any(e.ty == FLOAT for e in vec(rec, x).elements):
        refuse("detach() stops a gradient, which a program cannot; detach captured tensors before they are indexed")
    return x


# ---- shapes

def h_size(rec: Recording, x: Any, dim: Any = None) -> Any:
    return x.shape if dim is None else x.shape[as_int(dim)]


def h_numel(rec: Recording, x: Any) -> int:
    return arrays.product(x.shape)


def h_rank(rec: Recording, x: Any) -> int:
    return len(x.shape)


def h_flatten(rec: Recording, x: Any, start_dim: Any = 0, end_dim: int = -1, order: str = "C") -> Any:
    if isinstance(start_dim, str):  # NumPy's method flatten has an argument `order`, which is a string
        start_dim, order = 0, start_dim
    in_rows("flatten", order)
    shape = tuple(x.shape)
    first, last = (arrays.axis_of(as_int(d), len(shape)) for d in (start_dim, end_dim))
    return vec(rec, h_reshape(rec, x, (*shape[:first], -1, *shape[last + 1:])))


def h_as(fn: Handler) -> Handler:
    """Returns the handler of view_as or expand_as, which calls `fn` with the shape of another tensor."""
    return lambda rec, x, other: fn(rec, x, tuple(other.shape))


def h_hstack(rec: Recording, parts: Any, **rest: Any) -> Any:
    parts = [Vec(rec, part.shape or (1,), part.elements) for part in (vec(rec, x) for x in parts)]
    return h_concatenate(rec, parts, 0 if len(parts[0].shape) == 1 else 1, **rest)


def h_linalg_norm(rec: Recording, x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, **rest: Any) -> Any:
    """Returns the norm of a vector or of all elements. With an order and two dimensions torch and NumPy compute a
    matrix norm; the only accepted matrix norm is "fro"."""
    dim, keepdim = rest.pop("axis", dim), rest.pop("keepdims", keepdim)
    check_rest("linalg.norm", rest)
    of_matrix = getattr(x, "ndim", 0) == 2 if dim is None else isinstance(dim, (tuple, list)) and len(dim) == 2
    if of_matrix and ord not in (None, "fro"):
        refuse("linalg.norm: the norm of order %s of a matrix is not known to traced values; vector_norm is one of all "
               "elements" % (ord,))
    return reductions.norm(rec, x, ord, dim, keepdim)


def h_vector_norm(rec: Recording, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **rest: Any) -> Any:
    check_rest("vector_norm", rest)
    return reductions.norm(rec, x, ord, dim, keepdim)


def is_like_torch(func: Any, name: str) -> bool:
    """Returns True if a custom operator (such as an approximate tanh) gives nearly the values of torch's function of
    that name. The custom operator and torch's function are compared on sample points, outside the modes of compilers,
    because tensors in modes of compilers have no values."""
    torch = sys.modules["torch"]
    from torch.utils._python_dispatch import _disable_current_modes
    known = getattr(torch, name, None)
    try:
        with _disable_current_modes():
            points = torch.linspace(-3.0, 3.0, 25)
            return known is not None and torch.allclose(func(points), known(points), rtol=1e-2, atol=1e-3,
                                                        equal_nan=True)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
