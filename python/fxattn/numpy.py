# SPDX-License-Identifier: Apache-2.0
"""Attention on NumPy arrays, with your own score function inside, forward and backward.

    out = attention(q, k, v, lambda score, b, h, q, k: score - 0.1 * abs(q - k), causal=True)
    out, pullback = vjp(q, k, v, "score = cap * tanh(score / cap)", params={"cap": 20.0})
    dq, dk, dv = pullback(dout)

Arrays may have any strides, and may be those of another library that lie in memory of the host (__array__, DLPack).
bf16 is ml_dtypes.bfloat16, e4m3 and e5m2 are its float8_e4m3fn and float8_e5m2. Functions are traced (fxattn.trace):
they run once per call, on symbols, and never per score.
"""
import ctypes
import inspect
from typing import Any, Callable, Dict, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple, Union, overload

from ._errors import ArgumentError, ArgumentTypeError, missing_library, unknown_keywords

try:
    import numpy as np
except ImportError as error:
    raise missing_library(error, "numpy", "1.22") from None

from . import _abi, _numpy_memo
from ._arrays import FLOATS, as_array, code_of, view_of
from ._library import call as call_library
from ._library import lib
from ._numpy_call import WRT, Call
from ._problem import Plan
from ._source import ScoreLike

__all__ = ["attention", "vjp", "backward", "merge", "plan", "plan_vjp", "Gradients", "Pullback"]
Result = Union[np.ndarray, Tuple[np.ndarray, ...]]
_ROWS = {np.dtype(np.float32), np.dtype(np.float64)}


@overload
def attention(q: Any, k: Any, v: Any, score: ScoreLike = ..., mask: ScoreLike = ..., *, out: Optional[np.ndarray] = ...,
              return_lse: Literal[False] = ..., return_max: Literal[False] = ..., lse_dtype: Any = ...,
              plan: Optional[Plan] = ..., **options: Any) -> np.ndarray: ...
@overload
def attention(q: Any, k: Any, v: Any, score: ScoreLike = ..., mask: ScoreLike = ..., *, out: Optional[np.ndarray] = ...,
              return_lse: bool = ..., return_max: bool = ..., lse_dtype: Any = ...,
              plan: Optional[Plan] = ..., **options: Any) -> Tuple[np.ndarray, ...]: ...


def attention(q: Any, k: Any, v: Any, score: ScoreLike = None, mask: ScoreLike = None, *,
              out: Optional[np.ndarray] = None, return_lse: bool = False, return_max: bool = False,
              lse_dtype: Any = None, plan: Optional[Plan] = None, **options: Any) -> Result:
    """softmax(f(scale * Q K^T)) V: an array like q with the features of v, or a tuple of it and, as asked for, the log
    of the sum of the exponentials (LSE, in natural units; -inf for a row that attends to nothing) and the maximum of
    each row.

    q, k, v: [B,H,S,D] arrays, or as `layout` says. Heads of q are a multiple of those of k and v; a batch of 1 in k and
        v serves all; v may have features of its own number.
    score: what happens to each score. A function score(score, b, h, q, k) as FlexAttention's score_mod; a Program;
        program text, or an expression ("score - 0.1 * abs(q - k)").
    mask: which pairs are attended, in the same forms: mask(b, h, q, k), or "q >= k". A score program may say it as
        well.
    out: where the result goes, of any float dtype and strides.
    return_lse, return_max: what is returned besides; `lse_dtype` is float32 or float64.
    plan: that of plan() for the same call, made here or loaded; without one it comes from the cache or is compiled.
    """
    plain = out is None and not return_lse and not return_max and plan is None
    found = _numpy_memo.find(q, k, v, score, mask, options) if plain else None
    if found is not None:
        known = _numpy_memo.run(found, q, k, v)
        if known is not None:
            return known
    call = Call(q, k, v, score, mask, _options(options))
    if found is not None:
        ready = call.forward()
        ready.run()
        _numpy_memo.keep(found, call, ready, (q, k, v))
        return ready.out
    want_lse = _row_dtype(lse_dtype, call) if return_lse else False
    result, lse, maxima = call.run_forward(out, want_lse, return_max, plan)
    results = [x for x in (result, lse, maxima) if x is not None]
    return results[0] if len(results) == 1 else tuple(results)


def vjp(q: Any, k: Any, v: Any, score: ScoreLike = None, mask: ScoreLike = None, *, return_lse: bool = False,
        lse_dtype: Any = None, wrt: Sequence[str] = WRT, plans: Optional[Tuple[Plan, Plan]] = None,
        **options: Any) -> Tuple[Result, "Pullback"]:
    """attention(...) and its backward pass, as jax.vjp has it: what attention returns, and a function of its gradient.

        out, pullback = vjp(q, k, v, score);  dq, dk, dv = pullback(dout)
        (out, lse), pullback = vjp(..., return_lse=True);  dq, dk, dv = pullback(dout, dlse)

    What pullback returns are the gradients of q, k and v; gradients of captured tensors, params and a learned sink are
    its attributes (Gradients). `wrt` says which are wanted: of "q", "k", "v", "sink", "tensors", "params". The arrays
    are held,
    not copied: changing one before pullback changes its result.

    The backward of the score function is derived. `bprop` is one of your own instead: text or a Program over dscore,
    with bprop_tensors and bprop_params by name; with style="graph", score(graph, score, tensors) and bprop(graph,
    dscore, tensors) as Transformer Engine and cuDNN's frontend have them, `tensors` given by name.

    q, k, v, score, mask, return_lse, lse_dtype: as attention() has them. plans: those of plan_vjp() for the same call;
    its backward is that of a pullback without dlse.
    """
    call = Call(q, k, v, score, mask, _options(options))
    ahead, back = _pair_of_plans(plans)
    # LSE in f64 between the passes: what a narrower one loses, steep programs would show in their gradients.
    out, lse, _ = call.run_forward(None, np.float64, plan=ahead)
    pullback = Pullback(call, out, lse, _wanted(wrt), back)
    return (out, np.array(lse, _row_dtype(lse_dtype, call))) if return_lse else out, pullback


def plan(q: Any, k: Any, v: Any, score: ScoreLike = None, mask: ScoreLike = None, *, out: Optional[np.ndarray] = None,
         return_lse: bool = False, return_max: bool = False, lse_dtype: Any = None, **options: Any) -> Plan:
    """The plan that attention() of the same arguments (q, k, v, score, mask, out, return_lse, return_max, lse_dtype and
    the rest) runs, compiled and not run: for attention(..., plan=...), whose arrays have the same shapes, dtypes and
    strides. Its save() gives bytes, Plan.load(bytes) the plan in another process."""
    call = Call(q, k, v, score, mask, _options(options))
    return call.forward(out, _row_dtype(lse_dtype, call) if return_lse else False, return_max).problem.plan()


def plan_vjp(q: Any, k: Any, v: Any, score: ScoreLike = None, mask: ScoreLike = None, *, wrt: Sequence[str] = WRT,
             **options: Any) -> Tuple[Plan, Plan]:
    """The plans that vjp() of the same arguments (q, k, v, score, mask, wrt and the rest) and its pullback run, for
    vjp(..., plans=...)."""
    call = Call(q, k, v, score, mask, _options(options))
    ready = call.forward(None, np.float64)
    back = call.backward(np.empty_like(ready.out), None, ready.out, ready.lse, _wanted(wrt))  # type: ignore[arg-type]
    return ready.problem.plan(), back.problem.plan()


def _pair_of_plans(plans: Any) -> Tuple[Optional[Plan], Optional[Plan]]:
    if plans is None:
        return None, None
    if not isinstance(plans, tuple) or len(plans) != 2:
        raise ArgumentTypeError("plans is of type %s; a pair of Plans is accepted, as plan_vjp gives it"
                                % type(plans).__name__)
    return plans


def backward(dout: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, score: ScoreLike = None, mask: ScoreLike = None, *,
             dlse: Any = None, wrt: Sequence[str] = WRT, **options: Any) -> "Gradients":
    """The backward pass by itself, of an output `out` and LSE `lse` that are known: for a shard those of the whole row.
    `dout` and `dlse` are their gradients, `wrt` is as in vjp, q, k, v, score and mask are as in attention."""
    call = Call(q, k, v, score, mask, _options(options))
    rows = _float_rows(as_array(lse, "lse"), "lse")
    whole = as_array(out, "out", FLOATS)
    for array, what, shape in ((whole, "out", call.out_shape()), (rows, "lse", call.rows_shape())):
        if array.shape != shape:
            raise ArgumentError("%s has shape %s; that of the problem, %s, is accepted" % (what, array.shape, shape))
    return Pullback(call, whole, rows, _wanted(wrt))(dout, dlse)


class Gradients(Tuple[Any, Any, Any]):
    """(dq, dk, dv), and more by name: `tensors` and `params` {name: gradient} of what the program uses, None where
    there is none (ints, what was not asked for); `sink`. `captured` {name: array} is what the function captured."""

    tensors: Dict[str, Optional[np.ndarray]]
    params: Dict[str, Optional[float]]
    captured: Dict[str, np.ndarray]
    sink: Optional[np.ndarray]

    @classmethod
    def _make(cls, call: Call, grads: Mapping[str, Any]) -> "Gradients":
        self = cls((grads.get("q"), grads.get("k"), grads.get("v")))
        program = call.source.program
        captures, params = (program.captures, program.params) if program is not None else ((), ())
        self.tensors = {c.name: grad for c, grad in zip(captures, grads["tensors"])}
        self.captured = {c.name: tensor for c, tensor in zip(captures, call.tensors)}
        self.params = {p.name: grad for p, grad in zip(params, grads["params"])}
        self.sink = grads.get("sink")
        return self

    def of(self, array: Any) -> np.ndarray:
        """The gradient of an array that a function captured, whole or by views of it."""
        array = as_array(array, "the array")
        total = np.zeros(array.size)
        found = False
        for name, captured in self.captured.items():
            grad = self.tensors[name]
            at = _inside(array, captured)
            if at is None or grad is None:
                continue
            found = True
            _add_view(total, at, captured, grad)
        if not found:
            shapes = ", ".join("%s %s" % (name, c.shape) for name, c in self.captured.items())
            raise ArgumentError("the program captured no float array that lies in this one (it must be dense): it "
                                "captured %s" % (shapes or "none"))
        return total.reshape(array.shape).astype(array.dtype)


def _inside(array: np.ndarray, captured: np.ndarray) -> Optional[int]:
    """The element of a dense array at which a view of it begins; None when it is no view of it."""
    at = captured.ctypes.data - array.ctypes.data
    if not array.flags.c_contiguous or captured.dtype != array.dtype or at % array.itemsize or any(
            s % array.itemsize for s in captured.strides):
        return None
    low = at + sum(min(s * (n - 1), 0) for s, n in zip(captured.strides, captured.shape))
    high = at + sum(max(s * (n - 1), 0) for s, n in zip(captured.strides, captured.shape)) + captured.itemsize
    return at // array.itemsize if captured.size and 0 <= low and high <= array.nbytes else None


def _add_view(total: np.ndarray, at: int, captured: np.ndarray, grad: np.ndarray) -> None:
    """Adds the gradient of a view to the elements that it shows; windows and broadcasts show some more than once."""
    places = np.arange(total.size)
    steps = [s // captured.itemsize * places.itemsize for s in captured.strides]
    shown = np.ndarray(captured.shape, places.dtype, places, at * places.itemsize, steps)
    np.add.at(total, shown, grad)


class Pullback:
    """The backward pass of one call of vjp."""

    def __init__(self, call: Call, out: np.ndarray, lse: Any, wrt: Sequence[str],
                 plan: Optional[Plan] = None) -> None:
        self._call, self._out, self._lse, self._wrt, self._plan = call, out, lse, wrt, plan

    def __call__(self, dout: Any, dlse: Any = None) -> Gradients:
        """Gradients for a gradient of the output, and one of LSE."""
        if isinstance(dout, tuple) and dlse is None and len(dout) == 2:
            dout, dlse = dout
        call = self._call
        dout = self._like(dout, "dout", call.out_shape(), self._out.dtype)
        if dlse is not None:
            dlse = self._like(dlse, "dlse", call.rows_shape(), call.row_dtype())
            dlse = dlse.astype(call.row_dtype(), copy=False)
        return Gradients._make(call, call.run_backward(dout, dlse, self._out, self._lse, self._wrt, self._plan))

    @staticmethod
    def _like(value: Any, what: str, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        array = as_array(value, what, FLOATS)
        if array.shape != shape:
            raise ArgumentError("%s has shape %s; that of the result, %s, is accepted" % (what, array.shape, shape))
        # f64 and narrower types do not mix in a problem; NumPy's default is f64.
        mixed = (array.dtype == np.float64) != (dtype == np.float64)
        return array.astype(dtype) if mixed else array


def merge(out_a: np.ndarray, lse_a: np.ndarray, out_b: Any, lse_b: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Joins two partial results of the same queries over disjoint keys, out_a with lse_a and out_b with lse_b
    ([B,H,S,D] and [B,H,S]), into one (out, lse), in new arrays."""
    b, lse_other = as_array(out_b, "out_b", FLOATS), _float_rows(as_array(lse_b, "lse_b"), "lse_b")
    a, lse = np.array(as_array(out_a, "out_a", FLOATS)), np.array(_float_rows(as_array(lse_a, "lse_a"), "lse_a"))
    if a.ndim != 4 or b.shape != a.shape or lse.shape != a.shape[:3] or lse_other.shape != a.shape[:3]:
        raise ArgumentError("out_a, lse_a, out_b and lse_b have shapes %s, %s, %s and %s; [B,H,S,D] and [B,H,S] are "
                            "accepted" % (a.shape, lse.shape, b.shape, lse_other.shape))
    args = _abi.MergeArgs(struct_size=ctypes.sizeof(_abi.MergeArgs))
    args.b, args.h, args.s, args.d = a.shape
    for name, array in (("o_a", a), ("lse_a", lse), ("o_b", b), ("lse_b", lse_other)):
        operand = getattr(args, name)
        operand.dtype, operand.layout = code_of(array, name), _abi.LAYOUT_STRIDED
        operand.stride[:array.ndim] = view_of(array, name).stride
        setattr(args, name + "_data", array.ctypes.data)
    call_library(lib.merge, ctypes.byref(args))
    return a, lse


# ---- Options ---------------------------------------------------------------------------------------------------------

_HELP = """
    Keywords of attention, vjp and backward:

    tensors, params: {name: array} and {name: number} for a Program or text; functions bring what they use.
    layout, kv_layout: the order of axes, "bhsd" (default), "bshd", "sbhd" and so on, "hsd", "shd", "sd" without a batch
        or heads; "thd" or "htd" for packed sequences, which begin and end at cu_q[i] and cu_q[i + 1] (and cu_k).
    scale: of Q K^T; None for 1 / sqrt(D).
    causal, window=(left, right), bottom_right: ready masks; None (or -1) is an open side; bottom_right aligns to the
        last pair.
    q_lengths, k_lengths: [B], how many rows and keys each batch entry has. positions: [B], where its rows begin.
    pages: [B,n] indices of pages of K and V, which are [pages,H,page size,D].
    sink: "zero" (softmax off by one) or a learned score per query head. dropout, seed: of probabilities, by counter.
    coordinates: {"q": 512} and so on for b, h, q, k of a shard: an offset, an array with an entry per index, or
        segments [(begin, base, step), ...]; q_len, k_len, heads: what the program reads as such.
    strict_index: an index outside its captured tensor is an error; else such a load is 0.
    deterministic: refuse engines whose results may differ from run to run. engine: by name ("cpu", "ref").
    bprop, bprop_tensors, bprop_params, style: a backward of your own, see vjp.

    What cannot be is a subclass of fxattn.Error, which is a ValueError, TypeError or NotImplementedError as well.
    """


class _Options(NamedTuple):
    """The keywords that both passes have, with their defaults."""

    tensors: Optional[Mapping[str, Any]] = None
    params: Optional[Mapping[str, Any]] = None
    layout: str = "bhsd"
    kv_layout: Optional[str] = None
    scale: Optional[float] = None
    causal: bool = False
    window: Optional[Tuple[Optional[int], Optional[int]]] = None
    bottom_right: bool = False
    q_lengths: Any = None
    k_lengths: Any = None
    cu_q: Any = None
    cu_k: Any = None
    pages: Any = None
    positions: Any = None
    sink: Any = None
    dropout: float = 0.0
    seed: int = 0
    coordinates: Optional[Mapping[str, Any]] = None
    q_len: Optional[int] = None
    k_len: Optional[int] = None
    heads: Optional[int] = None
    strict_index: bool = False
    deterministic: bool = False
    engine: Optional[str] = None
    bprop: ScoreLike = None
    bprop_tensors: Optional[Mapping[str, Any]] = None
    bprop_params: Optional[Mapping[str, Any]] = None
    style: str = "flex"


def _options(given: Mapping[str, Any]) -> Dict[str, Any]:
    unknown = [name for name in given if name not in _Options._fields]
    if unknown:
        raise unknown_keywords(unknown, ("score", "mask", *_Options._fields))
    return _Options(**given)._asdict()


def _show_options(function: Callable[..., Any]) -> None:
    """Lets help() and completion show the keywords of _Options in place of **options."""
    function.__doc__ = (function.__doc__ or "").rstrip() + "\n" + _HELP
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, annotation in _Options.__annotations__.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation,
                                            default=_Options._field_defaults[name]))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


for _function in (attention, vjp, backward, plan, plan_vjp):
    _show_options(_function)


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _row_dtype(given: Any, call: Call) -> np.dtype:
    dtype = call.row_dtype() if given is None else np.dtype(given)
    if dtype not in _ROWS or call.q.dtype == np.float64 and dtype != np.float64:
        raise ArgumentError("lse_dtype is %s; %s is accepted" % (
            dtype, "float64" if call.q.dtype == np.float64 else "float32 or float64"))
    return dtype


def _float_rows(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype not in _ROWS:
        raise ArgumentTypeError("%s has dtype %s; float32 or float64 is accepted" % (what, array.dtype))
    return array


def _wanted(wrt: Any) -> Sequence[str]:
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    unknown = [name for name in names if name not in WRT]
    if unknown:
        raise ArgumentError("wrt has %s; accepted are %s" % (", ".join(map(repr, unknown)), ", ".join(WRT)))
    return names
