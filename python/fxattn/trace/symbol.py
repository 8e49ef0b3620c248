# SPDX-License-Identifier: Apache-2.0
"""The traced scalar, Sym: a user's function gets Syms as arguments, and every operation on a Sym returns a Sym.

A Sym holds a Recording, the number of a value in the Recording (`node`) and the type of the value (`ty`). To torch and
NumPy, a Sym looks like a tensor of rank 0. methods.py attaches the operators and methods of Sym from the tables.
Operations on a Sym that need the value itself raise an error, which names a remedy.
"""
import sys
from typing import Any, Dict, NoReturn, Optional, Tuple

from .libraries import dtype_name
from .place import TraceAttributeError, error, like, refuse
from .record import Recording
from .types import BOOL, FLOAT, I8, I16, INT, NAMES, U8

_DTYPES = {BOOL: "bool", U8: "uint8", I8: "int8", I16: "int16", INT: "int32", FLOAT: "float32"}
_CHOOSE = "use where(c, x, y) instead of if, `x if c else y`, and, or, not, min() and max(); & | ~ join conditions"


class Sym:
    """A value of a traced function, which is known only when the program runs."""

    __slots__ = ("rec", "node", "ty")
    __array_priority__ = 1000.0

    def __init__(self, rec: Recording, node: int, ty: int) -> None:
        self.rec = rec
        self.node = node
        self.ty = ty

    # ---- attributes of a tensor of rank 0

    @property
    def shape(self) -> Tuple[int, ...]:
        torch = sys.modules.get("torch")
        return torch.Size(()) if torch is not None and self.rec.lib == "torch" else ()

    @property
    def dtype(self) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or self.rec.lib != "torch":
            numpy = sys.modules.get("numpy")
            wide = self.ty == FLOAT and self.rec.dtype is not None and dtype_name(self.rec.dtype) == "float64"
            return None if numpy is None else numpy.dtype("float64" if wide else _DTYPES[self.ty])
        if self.ty == FLOAT and self.rec.dtype is not None:
            return self.rec.dtype
        return getattr(torch, _DTYPES[self.ty])

    @property
    def device(self) -> Any:
        torch = sys.modules.get("torch")
        return self.rec.device if self.rec.device is not None else torch.device("cpu") if torch else "cpu"

    ndim = 0
    requires_grad = False
    is_leaf = True
    is_sparse = is_nested = is_quantized = is_meta = is_cuda = False
    grad_fn = grad = None
    layout = property(lambda self: sys.modules["torch"].strided if "torch" in sys.modules else None)

    # ---- operations that need the value: refused

    def __bool__(self) -> bool:
        refuse("the truth of a traced value is not known while the function is traced; " + _CHOOSE)

    def __int__(self) -> int:
        refuse("a traced %s has no value yet, so it cannot become a Python int; x.int() or x.to(torch.int32) converts "
               "inside the program, and a Python list is indexed after it is made a tensor" % NAMES[self.ty])

    __index__ = __int__

    def __float__(self) -> float:
        refuse("a traced %s has no value yet, so it cannot become a Python float; x.float() converts inside the "
               "program, and torch.* or numpy functions take it where math.* cannot" % NAMES[self.ty])

    __complex__ = __float__

    def __hash__(self) -> int:
        refuse("a traced %s has no value yet, so it is no key of a dictionary and in no set; make a tensor of what is "
               "looked up and index it, or join comparisons with |" % NAMES[self.ty])

    def __len__(self) -> int:
        refuse("a traced value is a scalar and has no length")

    def __iter__(self) -> NoReturn:
        refuse("a traced value is a scalar: there is nothing to loop over; loop over range(n) with a Python int, or "
               "index a captured tensor with it")

    def __contains__(self, item: Any) -> bool:
        refuse("a traced value is a scalar and contains nothing; compare with ==, and join comparisons with |")

    def item(self) -> NoReturn:
        refuse("item() needs the value of a traced %s, which is known when the program runs; compute with the value "
               "itself" % NAMES[self.ty])

    tolist = numpy = item

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NeedsCapture()

    def __jax_array__(self) -> NoReturn:
        raise NeedsJax()

    def __setitem__(self, key: Any, value: Any) -> None:
        refuse("a traced value cannot be assigned into: a score function changes nothing; use where(c, x, y)")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_") and hasattr(type(self), name[:-1]):
            refuse("%s changes its tensor in place, which a score function must not; write x = x.%s(...)"
                   % (name, name[:-1]))
        raise error("traced values have no attribute or method '%s'%s; a table of it, made outside, may be indexed"
                    % (name, like(name, dir(type(self)))), TraceAttributeError)

    def __format__(self, spec: str) -> str:
        if spec:
            refuse("a traced %s has no value yet, so it cannot be formatted by %r; f\"{x}\" shows its type"
                   % (NAMES[self.ty], spec))
        return repr(self)

    def __repr__(self) -> str:
        return "<traced %s>" % NAMES[self.ty]


class NeedsCapture(BaseException):
    """Raised when NumPy reads the elements of a traced value. The tracer (entry.py) catches the exception and traces
    the function again, after the NumPy arrays that the function captured are wrapped (capture.py)."""


class NeedsJax(BaseException):
    """Raised when JAX requires an array in place of a traced value. The tracer (entry.py) catches the exception and
    calls JAX to trace the function."""


def recording_of(values: Any) -> Optional[Recording]:
    """Returns the recording of the first traced value among arguments, also inside lists and dictionaries; None if
    there is no traced value."""
    for value in values.values() if type(values) is dict else values:
        kind = type(value)
        if kind in TRACED:
            return value.rec
        if kind in _NESTED:
            inner = recording_of((value.start, value.stop, value.step) if kind is slice else value)
            if inner is not None:
                return inner
    return None


_NESTED = {tuple: True, list: True, dict: True, slice: True}
TRACED: Dict[type, bool] = {Sym: True}  # arrays.py adds View and Vec
