# SPDX-License-Identifier: Apache-2.0
"""Changes torch while a function is traced: a mode intercepts operators without a traced operand, and a replaced
autograd.Function.apply calls the forward method of the function.

The torch mode of a trace and the replaced autograd.Function.apply are removed when the trace ends. Threads that trace
nothing are not affected: torch modes are per thread, and the replaced autograd.Function.apply passes calls without
traced values to the original method.
"""
import contextlib
import sys
import threading
from typing import Any, Iterable, Iterator, Optional

from . import torch_table
from .indexing import index
from .place import refuse
from .symbol import Sym, recording_of

_mode_class: Optional[type] = None
_apply_lock = threading.RLock()
_ASKED_HERE = frozenset(["__get__"])  # the tracer itself reads dtype, layout and shape


def _has(tensor: type, values: Iterable[Any]) -> bool:
    """Returns True if a tensor is among the values, or in a tuple or list among the values."""
    for x in values:
        if isinstance(x, tensor) or type(x) in (tuple, list) and _has(tensor, x):
            return True
    return False


def _is_place(key: Any) -> bool:
    """Returns True if an index is one or more traced scalars and nothing else."""
    if type(key) is tuple and not key:
        return False
    for x in key if type(key) is tuple else (key,):
        if type(x) is not Sym:
            return False
    return True


def _make_mode(torch: Any) -> type:
    tensor, getitem = torch.Tensor, torch.Tensor.__getitem__

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """`told` is True if a value or length of an untraced tensor was passed to Python code."""

        told = False

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is getitem and _is_place(args[1]):  # the usual case: indexing passes no value to Python
                return index((args[1][0] if type(args[1]) is tuple else args[1]).rec, args[0], None, args[1])
            rec = recording_of(args)
            if rec is None and kwargs:
                rec = recording_of(kwargs)
            if rec is not None:
                if not _has(tensor, args) and not (kwargs and _has(tensor, kwargs.values())):
                    return torch_table.call(func, args, kwargs, rec)
                with self:  # keeps the mode active in the handler, to detect a handler that reads a tensor's value
                    return torch_table.call(func, args, kwargs, rec)
            name = getattr(func, "__name__", "")
            torch_table.check_name(name)
            result = func(*args, **(kwargs or {}))
            if type(result) is not tensor and not isinstance(result, tensor) and name not in _ASKED_HERE:
                self.told = True
            return result
    return Mode


def torch_mode() -> Any:
    """Returns a new TorchFunctionMode for one trace, or a null context if torch is not loaded."""
    global _mode_class
    torch = sys.modules.get("torch")
    if torch is None:
        return contextlib.nullcontext()
    if _mode_class is None:
        _mode_class = _make_mode(torch)
    return _mode_class()


class Context:
    """The argument ctx of the forward method of an autograd.Function while the method is traced. The ctx object stores
    any attribute; no attribute is read."""

    def __init__(self) -> None:
        self.saved_tensors: Any = ()
        self.needs_input_grad: Any = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        refuse("mark_dirty: a score function changes nothing in place")


@contextlib.contextmanager
def functions_by_forward() -> Iterator[None]:
    """Makes autograd.Function.apply on traced values call the forward method of the function; fxattn computes the
    derivative. The method that is replaced is `apply` of the base class of autograd.Function, which Function.apply
    calls, so that an `apply` that was bound before the trace calls the replacement too."""
    function = sys.modules["torch"].autograd.Function
    below = function.__mro__[1]
    with _apply_lock:
        original = below.apply

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if recording_of(args) is None and recording_of(kwargs) is None:
                return original.__func__(cls, *args, **kwargs) if hasattr(original, "__func__") else super(
                    below, cls).apply(*args, **kwargs)
            if cls.setup_context is not function.setup_context:
                return cls.forward(*args, **kwargs)
            return cls.forward(Context(), *args, **kwargs)
        below.apply = classmethod(apply)
        try:
            yield
        finally:
            del below.apply
