# SPDX-License-Identifier: Apache-2.0
"""trace(), the tracer's entry point, and Traced, its result."""
import re
import types
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .. import _abi
from .._program import Program
from .._source import as_part
from . import reuse, watch
from .arrays import Vec, View, vec
from .capture import wrapped_arrays
from .jaxprs import NotJaxs, mentions_jax, run_by_jax
from .libraries import library_of
from .methods import attach_all
from .modes import functions_by_forward, torch_mode
from .ops import RunInt, as_sym, cast, scalar
from .place import TraceError, TraceTypeError, at_place_of, error_in
from .record import Recording
from .symbol import NeedsCapture, NeedsJax, Sym
from .types import BOOL, FLOAT, INT, NAMES

Callback = Optional[Callable[..., Any]]
Source = Union[None, str, Program, Callable[..., Any]]
MAX_ROUTES = 1024
attach_all()


class Traced(NamedTuple):
    """The result of a trace: a program, its captured arrays (`tensors`) and its numbers (`params`), in the program's
    order. `bprop`, `bprop_tensors` and `bprop_params` are the program, arrays and numbers of a user-written backward.
    In a Traced that known() returns, `text` is the program's text, and `floats` is `params` if all params are
    floats."""

    program: Program
    tensors: Tuple[Any, ...] = ()
    params: Tuple[Any, ...] = ()
    bprop: Optional[Program] = None
    bprop_tensors: Tuple[Any, ...] = ()
    bprop_params: Tuple[Any, ...] = ()
    text: str = ""
    floats: Optional[Tuple[float, ...]] = None


def known(score_mod: Any, mask_mod: Any, lib: str = "torch", device: Any = None, dtype: Any = None,
          sizes: Any = None) -> Optional[Traced]:
    """Returns the cached trace of functions of the style "flex" if a quick check proves the functions unchanged; else
    None."""
    return watch.find(score_mod, mask_mod, (lib, device, dtype) if sizes is None else (lib, device, dtype, sizes))


def trace(score_mod: Source = None, mask_mod: Source = None, *, style: str = "flex",
          score_mod_bprop: Source = None, tensors: Optional[Mapping[str, Any]] = None,
          bprop_tensors: Optional[Mapping[str, Any]] = None,
          score_extra: Sequence[Any] = (), mask_extra: Sequence[Any] = (), lib: str = "torch", device: Any = None,
          dtype: Any = None, shape: Optional[Sequence[int]] = None,
          sizes: Optional[Tuple[Optional[int], ...]] = None, part: Optional[str] = None) -> Traced:
    """Returns the program of a score function and a mask function, with the arrays and numbers that the functions
    captured.

    `style`: "flex" for score_mod(score, b, h, q, kv) and mask_mod(b, h, q, kv), as in FlexAttention; "graph" for
        score_mod(graph, score, tensors) and score_mod_bprop(graph, dscore, tensors), as in Transformer Engine and
        cuDNN's frontend, with a mask_mod of FlexAttention.
    `score_mod, mask_mod`: functions with the arguments that `style` states, program text or a Program.
    `score_extra, mask_extra`: further arguments of the functions of style "flex"; numbers among them become params.
    `tensors, bprop_tensors`: dictionaries passed to the callbacks of style "graph".
    `shape`: (batch, heads, rows, keys), the shape of the scores, to which `tensors` must broadcast.
    `part`: set if the call computes a part of the scores, see trace_graph.
    `lib`: "torch" or "numpy", the library whose semantics operators follow where torch and NumPy differ.
    `device, dtype`: the values of the attributes `device` and `dtype` of the symbols.
    `sizes`: the sizes of b, h, q and k, None if unknown; the sizes prove that indices of JAX's functions are in bounds.

    Raises TraceError or TraceTypeError for a function that cannot be traced."""
    if style == "flex" and not score_extra and not mask_extra:
        found = known(score_mod, mask_mod, lib, device, dtype, sizes)
        if found is not None:
            return found
    if isinstance(score_mod, (str, Program)) or isinstance(mask_mod, (str, Program)):
        return _from_text(score_mod, mask_mod, score_mod_bprop)
    if style == "graph":
        from .graph import trace_graph
        masked = None if mask_mod is None else _Flex(None, mask_mod, (), tuple(mask_extra), lib, device, dtype,
                                                     sizes).mask
        return Traced(*trace_graph(score_mod, masked, score_mod_bprop, tensors, bprop_tensors, shape, part))
    if style != "flex":
        raise ValueError("style is %r; \"flex\" and \"graph\" are accepted" % (style,))
    return _Flex(score_mod, mask_mod, tuple(score_extra), tuple(mask_extra), lib, device, dtype, sizes).trace()


def _from_text(score_mod: Source, mask_mod: Source, bprop: Source) -> Traced:
    parts = [part for part in (score_mod, mask_mod) if part is not None]
    if any(not isinstance(part, (str, Program)) for part in parts):
        raise TypeError("a program as text and a Python function cannot be mixed; give both as text, or both as "
                        "functions")
    if len(parts) == 1 and isinstance(parts[0], Program):
        program = parts[0]
    else:
        program = Program.from_text([part.text if isinstance(part, Program) else as_part(part, target)
                                     for part, target in ((score_mod, "score"), (mask_mod, "mask"))
                                     if isinstance(part, (str, Program))])
    if bprop is not None and not isinstance(bprop, (str, Program)):
        raise TypeError("a program as text and a bprop that is a Python function cannot be mixed; give both as text")
    back = Program.from_text([as_part(bprop, "dscore")], kind="bprop") if isinstance(bprop, str) else bprop
    defaults = tuple(param.default for param in program.params)
    return Traced(program, params=() if None in defaults else defaults, bprop=back)


class _Flex:
    """A _Flex is one trace of FlexAttention's functions. A function is traced by one of several routes: by a direct
    call, by a call with wrapped arrays, or by JAX. The way to trace a function (its route) is found by trial, and is
    cached under the code of the function."""

    routes: Dict[Any, str] = {}

    def __init__(self, score_mod: Callback, mask_mod: Callback, score_extra: Tuple[Any, ...],
                 mask_extra: Tuple[Any, ...],
                 lib: str, device: Any, dtype: Any, sizes: Any = None) -> None:
        self.score_mod, self.mask_mod = score_mod, mask_mod
        self.extra = score_extra, mask_extra
        self.lib, self.device, self.dtype, self.sizes = lib, device, dtype, sizes
        self.rest = (lib, device, dtype) if sizes is None else (lib, device, dtype, sizes)

    def lookup(self) -> Any:
        return reuse.lookup(self.score_mod, self.mask_mod, self.rest)

    def trace(self) -> Traced:
        asked = None
        if not self.extra[0] and not self.extra[1]:
            asked = self.lookup()
            found = None if asked is None else asked.find()
            if found is not None:
                traced = Traced(*found)
                if not asked.as_objects:
                    usual = traced.program.takes_floats and all(type(x) is float for x in traced.params)
                    traced = traced._replace(text=traced.program.text, floats=traced.params if usual else None)
                    watch.watch(self.score_mod, self.mask_mod, self.rest, traced,
                                reuse.tensor_types(), lambda: getattr(self.lookup(), "key", None) == asked.key)
                return traced
        rec = Recording((self.score_mod, self.mask_mod), self.lib, self.device, self.dtype)
        rec.sizes = self.sizes
        with torch_mode() as mode:
            score = None if self.score_mod is None else self.run(rec, self.score_mod, _SCORE_ARGUMENTS, self.extra[0])
            mask = None if self.mask_mod is None else self.run(rec, self.mask_mod, _MASK_ARGUMENTS, self.extra[1])
        score_node = None if self.score_mod is None else score_result(rec, score, self.score_mod)
        mask_node = None if self.mask_mod is None else mask_result(rec, mask, self.mask_mod)
        made = Traced(rec.program("score", score_node, mask_node), rec.arrays(), tuple(rec.params))
        if asked is not None and not (mode and mode.told) and (
                rec.lib in ("jax", self.lib) if asked.as_objects else not rec.sized and rec.lib == self.lib):
            asked.keep(*made[:3])
        return made

    def mask(self, rec: Recording) -> int:
        """Traces mask_mod into a recording that already has a score of the style "graph". Returns the node of the
        mask."""
        rec.mods, rec.literals, rec.lib, rec.device = (self.mask_mod,), None, self.lib, self.device
        rec.sizes = self.sizes
        assert self.mask_mod is not None
        with torch_mode():
            mask = self.run(rec, self.mask_mod, _MASK_ARGUMENTS, self.extra[1])
        return mask_result(rec, mask, self.mask_mod)

    def run(self, rec: Recording, mod: Callable[..., Any], inputs: Sequence[Tuple[int, int]],
            extra: Sequence[Any]) -> Any:
        """Calls the function `mod` on symbols by the route by which it was traced before, and by other routes after an
        error. Returns the result of `mod`."""
        kind = _kind_of(mod)
        kind = kind and (*kind, self.sizes is None)  # with sizes (a call from JAX) another route may be needed
        route = self.routes.get(kind) or ("jax" if self.sizes is not None and mentions_jax(mod) else "plain")
        on_trial = route != "plain"  # a cached route worked for another function with this key
        first: Optional[Exception] = None  # error of the direct route, before the JAX route is tried
        for _ in range(5):
            state = rec.save()
            arguments = [Sym(rec, at, ty) for at, ty in inputs] + [lifted(x) for x in extra]
            try:
                return _ROUTES[route](mod, rec, arguments)
            except (Exception, NeedsCapture, NeedsJax) as error:
                if first is not None:  # JAX failed too: raises JAX's error only if the function itself required JAX
                    raise (error if "__jax_array__" in str(first) else first) from None
                if isinstance(error, TypeError):
                    _check_call(mod, arguments, inputs is _MASK_ARGUMENTS)
                if on_trial and isinstance(error, TraceError) and not isinstance(error, NotJaxs):
                    raise
                if self.sizes is not None and not on_trial and route != "jax" and isinstance(error, Exception):
                    first, route = error, "jax"
                else:
                    route, on_trial = "plain" if on_trial else self.next_route(route, error, mod), False
            rec.restore(state)
            if kind is not None and first is None and len(self.routes) < MAX_ROUTES:
                self.routes[kind] = route
        raise TraceError("the function mixes libraries in a way that cannot be traced")

    @staticmethod
    def next_route(route: str, error: BaseException, mod: Callable[..., Any]) -> str:
        """Returns another way (route) to trace a function that raised the error `error`. Raises `error` if no route is
        left by which the function could be traced."""
        if isinstance(error, NeedsCapture):
            return _Flex.other(route, "captured", error)
        if isinstance(error, NeedsJax):
            return _Flex.other(route, "jax", error)
        found = _route_of(route, error, mod)
        if found is None and isinstance(error, TypeError) and _NO_OPERAND.search(str(error)):
            raise at_place_of(error, "%s: no function of torch, NumPy or jax.numpy sees a traced value there; "
                              "write x.abs() or torch.abs(x), not torch.Tensor.abs(x)" % error) from None
        if found is None:
            raise error
        return found

    @staticmethod
    def other(route: str, wanted: str, need: BaseException) -> str:
        if route == wanted:
            raise at_place_of(need, "an array is indexed by, or made of, a traced value in a way that cannot be seen; "
                              "index it as a[i, j], in the function itself, or make it a torch tensor") from None
        return wanted


def _kind_of(mod: Callable[..., Any]) -> Any:
    """Returns the key under which the route of a function is cached: the code of the function and the types of the
    objects that the code names. The key contains the types, because functions that share one code must be traced by
    different routes if their arrays are of torch, NumPy or JAX. Returns None for a value that is no function."""
    if type(mod) is not types.FunctionType:
        return None
    names, sorts = mod.__globals__, []
    for cell in mod.__closure__ or ():
        try:
            sorts.append(_sort_of(cell.cell_contents))
        except ValueError:  # an empty cell
            sorts.append(None)
    return mod.__code__, tuple(sorts), tuple([_sort_of(names.get(name)) for name in mod.__code__.co_names])


def _sort_of(value: Any) -> Any:
    return value.__code__ if type(value) is types.FunctionType else type(value)


def _route_of(route: str, error: BaseException, mod: Callable[..., Any]) -> Optional[str]:
    """Returns the route by which to trace a function that raised `error`; None if no other route would avoid the
    error."""
    if route != "jax" and ("__jax_array__" in str(error) or mentions_jax(mod)):
        return "jax"
    if route == "plain" and isinstance(error, TypeError) and "save_for_backward" in str(error):
        return "by_forward"
    return None


def _check_call(mod: Any, arguments: Sequence[Any], masks: bool) -> None:
    """Raises a TraceTypeError if `mod` cannot be called with the arguments of a score_mod (of a mask_mod if `masks` is
    True). The message of the TraceTypeError names the arguments that `mod` must accept."""
    what, wanted = ("mask_mod", "(b, h, q_idx, kv_idx)") if masks else ("score_mod", "(score, b, h, q_idx, kv_idx)")
    if not callable(mod):
        own = "; give its mask_mod" if hasattr(mod, "mask_mod") else ""
        if not own and hasattr(mod, "shape"):
            own = "; a function may index it, as in bias[q_idx, kv_idx]"
        raise TraceTypeError("%s is of type %s; a function of %s, a Program or its text is accepted%s"
                             % (what, type(mod).__name__, wanted, own))
    import inspect  # imported only when a message needs inspect
    try:
        signature = inspect.signature(mod)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise error_in(mod, "%s is called with %d arguments, %s, and takes %s: %s"
                       % (what, len(arguments), wanted, signature, error), TraceTypeError) from None


_NO_OPERAND = re.compile(r"'(Sym|View|Vec)' object")
_SCORE_ARGUMENTS = ((_abi.INPUT_SCORE, FLOAT), (_abi.INPUT_B, INT), (_abi.INPUT_H, INT), (_abi.INPUT_Q, INT),
                    (_abi.INPUT_K, INT))
_MASK_ARGUMENTS = _SCORE_ARGUMENTS[1:]


def _plain(mod: Callable[..., Any], rec: Recording, arguments: Sequence[Any]) -> Any:
    return mod(*arguments)


def _captured(mod: Callable[..., Any], rec: Recording, arguments: Sequence[Any]) -> Any:
    rec.lib = "numpy"
    return wrapped_arrays(mod)(*arguments)


def _by_forward(mod: Callable[..., Any], rec: Recording, arguments: Sequence[Any]) -> Any:
    with functions_by_forward():
        return mod(*arguments)


def _by_jax(mod: Callable[..., Any], rec: Recording, arguments: Sequence[Any]) -> Any:
    return run_by_jax(mod, rec, arguments)


_ROUTES = {"plain": _plain, "captured": _captured, "by_forward": _by_forward, "jax": _by_jax}


def lifted(x: Any) -> Any:
    """Returns an extra argument of a score or mask function in the form in which the traced function gets the argument.
    An int is wrapped as a RunInt, so that the int becomes a param; a float becomes a param without a wrapper."""
    return RunInt(x) if type(x) is int else x


def _single(rec: Recording, result: Any, what: str, mod: Any) -> Any:
    if isinstance(result, (tuple, list)) and len(result) == 1:
        result = result[0]
    if result is None:
        raise error_in(mod, "%s returned None; it must return a value" % what)
    if type(result) in (View, Vec) or library_of(result) is not None and result.ndim:
        elements = vec(rec, result).elements
        if len(elements) != 1:
            raise error_in(mod, "%s returned a tensor of shape %s; it must return a scalar"
                           % (what, tuple(result.shape)))
        return elements[0]
    try:
        return as_sym(rec, scalar(rec, result))
    except TraceError as cause:
        if type(result) is Sym:
            raise
        raise error_in(mod, "%s returned a value of type %s; it must return a scalar"
                       % (what, type(result).__name__)) from cause


def score_result(rec: Recording, result: Any, mod: Any) -> int:
    return int(cast(rec, _single(rec, result, "score_mod", mod), FLOAT).node)


def mask_result(rec: Recording, result: Any, mod: Any) -> int:
    found = _single(rec, result, "mask_mod", mod)
    if found.ty != BOOL:
        raise error_in(mod, "mask_mod returned a value of type %s; it must return a bool: compare it, as in x != 0"
                       % NAMES[found.ty])
    return int(found.node)
