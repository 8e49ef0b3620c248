# SPDX-License-Identifier: Apache-2.0
"""Attaches operators and methods to the classes of traced values, from the tables of handlers, and the protocols by
which torch and NumPy dispatch functions to the tracer: __torch_function__, __array_ufunc__ and __array_function__.

In torch `x += y` modifies the tensor in place, so that all names of the tensor see the new value; `x += y` on traced
values of torch also has this effect. Scalars of NumPy are immutable: in NumPy `x += y` rebinds x to a new value."""
from typing import Any, Callable

from . import ops
from .arrays import Vec, View, elementwise
from .numpy_table import call_function, call_ufunc
from .place import refuse
from .products import matmul
from .symbol import Sym
from .tables import BINARY, OPERATORS, UNARY, Handler, h_permute, h_swap, not_taken
from .torch_handlers import h_astype, h_where_method
from .torch_table import TORCH, call

HIDDEN = frozenset("where getitem index radd rsub rmul rdiv rtruediv rfloordiv rmod rpow rand ror rxor rlshift rrshift "
                   "cat stack concat concatenate hstack and or xor pos invert linear embedding is_tensor tensor "
                   "as_tensor asarray scalar_tensor einsum dropout".split())


def _binary(fn: Callable[..., Sym]) -> Callable[..., Any]:
    def operator(self: Sym, other: Any) -> Any:
        kind = type(other)
        if kind is Sym and other.rec is self.rec or kind is int or kind is float or kind is bool:
            return fn(self.rec, self, other)
        return elementwise(fn, self.rec, (self, other))
    return operator


def _binary_wide(fn: Callable[..., Sym]) -> Callable[..., Any]:
    return lambda self, other: elementwise(fn, self.rec, (self, other))


def _reflected_wide(fn: Callable[..., Sym]) -> Callable[..., Any]:
    return lambda self, other: elementwise(fn, self.rec, (other, self))


def _reflected(fn: Callable[..., Sym]) -> Callable[..., Any]:
    def operator(self: Sym, other: Any) -> Any:
        kind = type(other)
        if kind is int or kind is float or kind is bool:
            return fn(self.rec, other, self)
        return elementwise(fn, self.rec, (other, self))
    return operator


def _in_place(fn: Callable[..., Sym], name: str) -> Callable[..., Any]:
    def operator(self: Any, other: Any) -> Any:
        made = elementwise(fn, self.rec, (self, other))
        if self.rec.lib == "numpy":
            return made
        if type(self) is View:
            refuse("%s= changes a captured tensor in place, which a score function must not; write x = x %s y"
                   % (name, name))
        if type(made) is not type(self) or type(self) is Vec and made.shape != self.shape:
            refuse("the result of %s= does not fit the tensor that it changes; write x = x %s y" % (name, name))
        pairs = [(self, made)] if type(self) is Sym else list(zip(self.elements, made.elements))
        if any(old.ty < new.ty for old, new in pairs):
            refuse("result type of %s= can't be cast to that of the tensor it changes; write x = x %s y" % (name, name))
        if type(self) is Sym:
            self.node = ops.cast(self.rec, made, self.ty).node
        else:
            self.elements = [ops.cast(self.rec, new, old.ty) for old, new in pairs]
        return self
    return operator


def _unary(fn: Callable[..., Sym]) -> Callable[..., Any]:
    def operator(self: Sym) -> Any:
        return fn(self.rec, self) if type(self) is Sym else elementwise(fn, self.rec, (self,))
    return operator


def _method(name: str, handler: Handler) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **rest: Any) -> Any:
        try:
            return handler(self.rec, self, *args, **rest)
        except TypeError as error:
            raise not_taken(error, name) from None
    return method


def _get(self: Sym, key: Any) -> Any:
    items = [item for item in (key if isinstance(key, tuple) else (key,)) if item is not Ellipsis]
    if any(item is not None for item in items):
        refuse("a traced value is a scalar: it has no dimension to index")
    return Vec(self.rec, (1,) * len(items), [self]) if items else self


def _attach(cls: Any) -> None:
    binary, reflected = (_binary, _reflected) if cls is Sym else (_binary_wide, _reflected_wide)
    for name in OPERATORS:
        setattr(cls, "__%s__" % name, binary(BINARY[name]))
        setattr(cls, "__r%s__" % name, reflected(BINARY[name]))
        setattr(cls, "__i%s__" % name, _in_place(BINARY[name], name))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(cls, "__%s__" % name, binary(BINARY[name]))
    for name in ("neg", "abs", "invert", "pos", "floor", "ceil", "trunc"):
        setattr(cls, "__%s__" % name, _unary(UNARY[name]))
    for name, handler in TORCH.items():
        if name not in HIDDEN and name not in cls.__dict__ and not name.startswith("_"):
            setattr(cls, name, _method(name, handler))
    cls.where = _method("where", h_where_method)
    cls.astype = _method("astype", h_astype)
    cls.__matmul__ = lambda self, other: matmul(self.rec, self, other)
    cls.__rmatmul__ = lambda self, other: matmul(self.rec, other, self)
    cls.__round__ = lambda self, digits=0: TORCH["round"](self.rec, self, digits or 0)
    cls.__divmod__ = lambda self, other: (self // other, self % other)
    cls.__rdivmod__ = lambda self, other: (other // self, other % self)
    cls.T = property(lambda self: h_permute(self.rec, self, tuple(range(len(self.shape)))[::-1]))
    cls.mT = property(lambda self: h_swap(self.rec, self))
    cls.real = property(lambda self: self)
    cls.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: call(func, args, kwargs))
    cls.__array_ufunc__ = lambda self, ufunc, method, *inputs, **rest: call_ufunc(ufunc, method, inputs, rest)
    cls.__array_function__ = lambda self, func, types, args, kwargs: call_function(func, args, kwargs)


def attach_all() -> None:
    """Attaches the operators and methods in the tables of handlers to the classes of traced values (Sym, View and
    Vec)."""
    for cls in (Sym, View, Vec):
        _attach(cls)
    setattr(Sym, "__getitem__", _get)
