# SPDX-License-Identifier: Apache-2.0
"""Attention on NumPy arrays with a user-written score function, forward and backward.

The call `attention(q, k, v, lambda s, b, h, q, k: s - 0.1 * abs(q - k), is_causal=True)` computes causal attention.
The call `out, pullback = vjp(q, k, v, "score = tanh(score)")` returns the output and a pullback, and the call `dq, dk,
dv = pullback(dout)` of the pullback computes the gradients.

Arrays may have any strides. Arrays of other libraries are accepted if they are in host memory (__array__, DLPack). The
dtypes for bf16, e4m3 and e5m2 are bfloat16, float8_e4m3fn and float8_e5m2 of ml_dtypes. Score functions are traced
(fxattn.trace): a call runs the function at most once, on symbols, and compiles the recorded operations.
"""
import ctypes
import inspect
from typing import (TYPE_CHECKING, Any, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union,
                    overload)

from ._errors import ArgumentError, ArgumentTypeError, missing_library
from ._options import flag, unknown_keywords, with_hints

try:
    import numpy as np
except ImportError as error:
    raise missing_library(error, "numpy", "1.22") from None

from . import _abi, _numpy_memo
from ._arrays import FLOATS, as_array, code_of, view_of
from ._library import call as call_library
from ._library import lib
from ._numpy_call import OPTIONS, WRT, Call
from ._problem import Plan
from ._source import ScoreLike

__all__ = ["attention", "vjp", "backward", "merge", "plan", "plan_vjp", "Gradients", "Pullback"]
Result = Union[np.ndarray, Tuple[np.ndarray, ...]]
Named = Optional[Mapping[str, Any]]
Window = Optional[Tuple[Optional[int], Optional[int]]]
_BHSD, _FLEX = "bhsd", "flex"  # strings are interned like the literals of callers, so that `is` finds equal strings
_ROWS = {np.dtype(np.float32), np.dtype(np.float64)}


if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Keywords(TypedDict, total=False):
        """The keywords of attention() that do not change the type of the result."""

        layout: str
        kv_layout: Optional[str]
        scale: Optional[float]
        is_causal: bool
        window: Window
        bottom_right: bool
        q_lengths: Any
        k_lengths: Any
        cu_q: Any
        cu_k: Any
        max_q: Optional[int]
        max_k: Optional[int]
        pages: Any
        q_start: Any
        sinks: Any
        dropout_p: float
        seed: int
        params: Named
        tensors: Named
        style: str
        score_mod_bprop: ScoreLike
        bprop_params: Named
        bprop_tensors: Named
        coordinates: Named
        global_q_len: Optional[int]
        global_k_len: Optional[int]
        global_heads: Optional[int]
        lse_dtype: Any
        out: Optional[np.ndarray]
        plan: Optional[Plan]
        deterministic: bool
        bounds_check: bool
        engine: Optional[str]
        threads: Optional[int]


# Overloads for type checkers: with return_lse or return_row_max the result is a tuple, otherwise an array.
@overload
def attention(q: Any, k: Any, v: Any, score_mod: ScoreLike = ..., mask_mod: ScoreLike = ..., *,
              return_lse: Literal[False] = ..., return_row_max: Literal[False] = ...,
              **keywords: "Unpack[_Keywords]") -> np.ndarray: ...
@overload
def attention(q: Any, k: Any, v: Any, score_mod: ScoreLike = ..., mask_mod: ScoreLike = ..., *, return_lse: bool = ...,
              return_row_max: bool = ..., **keywords: "Unpack[_Keywords]") -> Tuple[np.ndarray, ...]: ...


def attention(q: Any, k: Any, v: Any, score_mod: ScoreLike = None, mask_mod: ScoreLike = None, *, layout: str = "bhsd",
              kv_layout: Optional[str] = None, scale: Optional[float] = None, is_causal: bool = False,
              window: Window = None, bottom_right: bool = False, q_lengths: Any = None, k_lengths: Any = None,
              cu_q: Any = None, cu_k: Any = None, max_q: Optional[int] = None, max_k: Optional[int] = None,
              pages: Any = None, q_start: Any = None, sinks: Any = None, dropout_p: float = 0.0, seed: int = 0,
              params: Named = None, tensors: Named = None, style: str = "flex", score_mod_bprop: ScoreLike = None,
              bprop_params: Named = None, bprop_tensors: Named = None, coordinates: Named = None,
              global_q_len: Optional[int] = None, global_k_len: Optional[int] = None,
              global_heads: Optional[int] = None, return_lse: bool = False, return_row_max: bool = False,
              lse_dtype: Any = None, out: Optional[np.ndarray] = None, plan: Optional[Plan] = None,
              deterministic: bool = False, bounds_check: bool = False, engine: Optional[str] = None,
              threads: Optional[int] = None, **unknown: Any) -> Result:
    """Returns softmax(f(scale * Q K^T)) V, where f is score_mod, as an array with the shape and dtype of q, but the
    head dim of v.

    With return_lse or return_row_max the result is a tuple: the output, then LSE if return_lse is true, then row maxima
    if return_row_max is true. LSE is the natural logarithm of the sum of the exponentials of a row's scores, -inf for a
    row that attends to nothing. A row maximum is the maximum of a row's scores. LSE and row maxima have the shape of q
    without the feature axis.

    `q, k, v`: arrays [B,H,S,D], or in the order that `layout` names. The number of heads of q is a multiple of the
        number of heads of k and v. If k and v have a batch of 1, all batch entries of q use the same k and v. The
        number of features of v may differ from that of q and k.
    `score_mod`: the score function, which computes the new score of each pair: a function score_mod(score, b, h, q, k)
        as in FlexAttention, which is traced; a Program; program text; or an expression ("score - 0.1 * abs(q - k)").
    `mask_mod`: the mask, true for each pair that is attended: a function mask_mod(b, h, q, k), a Program, program text,
        or an expression ("q >= k"). A program in score_mod may have a mask as well.
    `layout`: the order of the axes of q: "bhsd" (default), "bshd", "sbhd" or any other order; "hsd", "shd" or "sd"
        without batch or heads; "thd" or "htd" for packed sequences.
    `kv_layout`: the order of the axes of k and v; None: the value of layout.
    `cu_q, cu_k`: [B+1] ints, the offsets of packed sequences: sequence i has rows cu[i] to cu[i + 1] - 1. If cu_k is
        None, cu_q has the offsets of q, k and v.
    `max_q, max_k`: the lengths of the longest sequences; None: computed from the offsets.
    `scale`: the factor of Q K^T; None for 1 / sqrt(D).
    `is_causal`: True attends only to pairs with k <= q.
    `window`: (left, right) attends only to pairs with q - left <= k <= q + right; None or -1 is an open side.
    `bottom_right`: True shifts the positions q so that the last row has the position of the last key: only in the
        built-in masks if there are any (is_causal, window), else in the q that score_mod and mask_mod get.
    `q_lengths, k_lengths`: [B], the number of rows and keys of each batch entry.
    `q_start`: [B], the position of the first row of each batch entry.
    `pages`: [B,n], the page numbers of each batch entry. With pages, K and V are [pages,H,page size,D], and k_lengths
        is required.
    `sinks`: "zero" (one more key of score 0, softmax off by one), or an array [H] of a learned score per query head.
    `dropout_p`: the probability of dropout on the softmax probabilities.
    `seed`: the seed of the counter-based random generator of dropout.
    `tensors, params`: {name: array} and {name: number}, the arrays and numbers that a Program or text uses by name. A
        Python function needs neither `tensors` nor `params`, because it captures the arrays and numbers that it uses.
    `style`: "flex", or "graph" for callbacks score_mod(graph, score, tensors), which get `tensors`.
    `score_mod_bprop, bprop_tensors, bprop_params`: a user-written derivative of score_mod, see vjp().
    `coordinates`: for a shard of a larger problem, a map from an axis ("b", "h", "q" or "k") to the position of the
        shard in the entire problem: {"q": 512}. A position of a shard is an offset; or an array with the position of
        each index of the shard; or segments [(begin, base, step), ...]: from index `begin` of the shard on, the
        positions are base, base + step, ...
    `global_q_len, global_k_len, global_heads`: for a shard, the numbers of rows, keys and heads of the entire problem,
        which the program reads as q_len, k_len and heads.
    `deterministic`: uses only engines whose results are equal in every run; raises an error if there is no
        deterministic engine for the call.
    `bounds_check`: raises an error for an out-of-bounds index into a captured array; without bounds_check the load is
        0.
    `engine`: the name of an engine ("cpu", "ref"); None selects the best engine.
    `threads`: the maximum number of threads of the run; None: the number that set_num_threads() set.
    `return_lse, return_row_max`: return LSE and row maxima after the output.
    `lse_dtype`: the dtype of the returned LSE, float32 or float64.
    `out`: the array that the result is written to, of any float dtype and strides; None makes a new array.
    `plan`: a Plan that plan() made for the same call, or that Plan.load() loaded; None: the plan comes from the cache
        or is compiled.

    Raises subclasses of fxattn.Error; each subclass is a ValueError, TypeError or NotImplementedError as well.
    """
    # Fast path: most calls have default values of all options in the tuple, and `is` is cheaper than making a key.
    options = None if (
        layout is _BHSD and style is _FLEX and kv_layout is None and scale is None and is_causal is False
        and window is None and bottom_right is False and q_lengths is None and k_lengths is None and cu_q is None
        and cu_k is None and max_q is None and max_k is None and pages is None and q_start is None and sinks is None
        and type(dropout_p) is float and dropout_p == 0.0 and type(seed) is int and seed == 0
        and score_mod_bprop is None and bprop_params is None and bprop_tensors is None and coordinates is None
        and global_q_len is None and global_k_len is None and global_heads is None and deterministic is False
        and bounds_check is False and engine is None and threads is None
    ) else (layout, kv_layout, scale, is_causal, window, bottom_right, q_lengths, k_lengths, cu_q, cu_k, max_q, max_k,
            pages, q_start, sinks, dropout_p, seed, style, score_mod_bprop, bprop_params, bprop_tensors, coordinates,
            global_q_len, global_k_len, global_heads, deterministic, bounds_check, engine, threads)
    found = None
    if out is None and return_lse is False and return_row_max is False and plan is None and not unknown:
        found = _numpy_memo.find(q, k, v, score_mod, mask_mod, params, tensors, options)
        known = _numpy_memo.run(found, q, k, v, threads) if found is not None else None
        if known is not None:
            return known
    if unknown:
        raise unknown_keywords(unknown, inspect.signature(attention).parameters)
    call = _call(locals())
    if found is not None:
        ready = call.forward()
        ready.run()
        _numpy_memo.keep(found, call, ready, (q, k, v))
        return ready.out
    want_lse = _row_dtype(lse_dtype, call) if flag("return_lse", return_lse) else False
    result, lse, maxima = call.run_forward(out, want_lse, flag("return_row_max", return_row_max), plan)
    results = [x for x in (result, lse, maxima) if x is not None]
    return results[0] if len(results) == 1 else tuple(results)


@with_hints
def vjp(q: Any, k: Any, v: Any, score_mod: ScoreLike = None, mask_mod: ScoreLike = None, *, layout: str = "bhsd",
        kv_layout: Optional[str] = None, scale: Optional[float] = None, is_causal: bool = False, window: Window = None,
        bottom_right: bool = False, q_lengths: Any = None, k_lengths: Any = None, cu_q: Any = None, cu_k: Any = None,
        max_q: Optional[int] = None, max_k: Optional[int] = None, pages: Any = None, q_start: Any = None,
        sinks: Any = None, dropout_p: float = 0.0, seed: int = 0, params: Named = None, tensors: Named = None,
        style: str = "flex", score_mod_bprop: ScoreLike = None, bprop_params: Named = None, bprop_tensors: Named = None,
        coordinates: Named = None, global_q_len: Optional[int] = None, global_k_len: Optional[int] = None,
        global_heads: Optional[int] = None, return_lse: bool = False, lse_dtype: Any = None, wrt: Sequence[str] = WRT,
        plans: Optional[Tuple[Plan, Plan]] = None, deterministic: bool = False, bounds_check: bool = False,
        engine: Optional[str] = None, threads: Optional[int] = None) -> Tuple[Result, "Pullback"]:
    """Returns the result of attention() and a Pullback, like jax.vjp. The Pullback is a function that takes the
    gradient of the output and returns the gradients of q, k and v.

    After `out, pullback = vjp(q, k, v, score_mod)`, the call `dq, dk, dv = pullback(dout)` computes the gradients.
    After `(out, lse), pullback = vjp(..., return_lse=True)`, the call is `dq, dk, dv = pullback(dout, dlse)`.

    The pullback returns a Gradients, whose attributes have the gradients of captured arrays, params and learned sinks.
    The pullback holds the input arrays without copying them; changing an input array before the pullback runs changes
    the gradients.

    score_mod is differentiated automatically. score_mod_bprop replaces the derivative of score_mod. score_mod_bprop is
    text or a Program that computes a new dscore, with bprop_tensors and bprop_params by name. With style="graph",
    score_mod_bprop is a callback score_mod_bprop(graph, dscore, tensors) as in Transformer Engine and cuDNN's frontend.
    The callback score_mod_bprop(graph, dscore, tensors) gets bprop_tensors; the callback score_mod(graph, score,
    tensors) gets tensors.

    `wrt`: the inputs whose gradients are computed, of "q", "k", "v", "sinks", "tensors" and "params".
    `plans`: the result of plan_vjp() for equal arguments. The backward plan of plan_vjp() is used only if the pullback
        is called without dlse.

    q, k, v, return_lse, lse_dtype and the other keywords: as in attention().
    """
    call = _call(locals())
    ahead, back = _pair_of_plans(plans)
    # The backward pass gets LSE in f64: rounding to f32 would be visible in gradients of programs with large slopes.
    out, lse, _ = call.run_forward(None, np.float64, plan=ahead)
    pullback = Pullback(call, out, lse, _wanted(wrt), back)
    wanted = flag("return_lse", return_lse)
    return (out, np.array(lse, _row_dtype(lse_dtype, call))) if wanted else out, pullback


@with_hints
def plan(q: Any, k: Any, v: Any, score_mod: ScoreLike = None, mask_mod: ScoreLike = None, *, layout: str = "bhsd",
         kv_layout: Optional[str] = None, scale: Optional[float] = None, is_causal: bool = False, window: Window = None,
         bottom_right: bool = False, q_lengths: Any = None, k_lengths: Any = None, cu_q: Any = None, cu_k: Any = None,
         max_q: Optional[int] = None, max_k: Optional[int] = None, pages: Any = None, q_start: Any = None,
         sinks: Any = None, dropout_p: float = 0.0, seed: int = 0, params: Named = None, tensors: Named = None,
         style: str = "flex", score_mod_bprop: ScoreLike = None, bprop_params: Named = None,
         bprop_tensors: Named = None, coordinates: Named = None, global_q_len: Optional[int] = None,
         global_k_len: Optional[int] = None, global_heads: Optional[int] = None, return_lse: bool = False,
         return_row_max: bool = False, lse_dtype: Any = None, out: Optional[np.ndarray] = None,
         deterministic: bool = False, bounds_check: bool = False, engine: Optional[str] = None,
         threads: Optional[int] = None) -> Plan:
    """Compiles the plan that attention() uses for the same arguments, and returns the plan without running it. Pass the
    plan to attention(..., plan=...) with arrays of the same shapes, dtypes and strides. plan.save() returns the plan as
    bytes, and Plan.load(bytes) loads a saved plan in another process.

    q, k, v, out, return_lse, return_row_max, lse_dtype and the other keywords: as in attention().
    """
    call = _call(locals())
    lse = _row_dtype(lse_dtype, call) if flag("return_lse", return_lse) else False
    return call.forward(out, lse, flag("return_row_max", return_row_max)).problem.plan(call.threads)


@with_hints
def plan_vjp(q: Any, k: Any, v: Any, score_mod: ScoreLike = None, mask_mod: ScoreLike = None, *, layout: str = "bhsd",
             kv_layout: Optional[str] = None, scale: Optional[float] = None, is_causal: bool = False,
             window: Window = None, bottom_right: bool = False, q_lengths: Any = None, k_lengths: Any = None,
             cu_q: Any = None, cu_k: Any = None, max_q: Optional[int] = None, max_k: Optional[int] = None,
             pages: Any = None, q_start: Any = None, sinks: Any = None, dropout_p: float = 0.0, seed: int = 0,
             params: Named = None, tensors: Named = None, style: str = "flex", score_mod_bprop: ScoreLike = None,
             bprop_params: Named = None, bprop_tensors: Named = None, coordinates: Named = None,
             global_q_len: Optional[int] = None, global_k_len: Optional[int] = None, global_heads: Optional[int] = None,
             wrt: Sequence[str] = WRT, deterministic: bool = False, bounds_check: bool = False,
             engine: Optional[str] = None, threads: Optional[int] = None) -> Tuple[Plan, Plan]:
    """Returns a pair of plans for vjp(..., plans=...): the forward plan that vjp() runs with the same arguments, and
    the backward plan that its pullback runs.

    q, k, v, wrt and the other keywords: as in vjp().
    """
    call = _call(locals())
    ready = call.forward(None, np.float64)
    back = call.backward(np.empty_like(ready.out), None, ready.out, ready.lse, _wanted(wrt))  # type: ignore[arg-type]
    return ready.problem.plan(call.threads), back.problem.plan(call.threads)


def _pair_of_plans(plans: Any) -> Tuple[Optional[Plan], Optional[Plan]]:
    if plans is None:
        return None, None
    if not isinstance(plans, tuple) or len(plans) != 2:
        raise ArgumentTypeError("plans is of type %s; a pair of Plans is accepted, as plan_vjp returns it"
                                % type(plans).__name__)
    return plans


@with_hints
def backward(dout: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, score_mod: ScoreLike = None,
             mask_mod: ScoreLike = None, *, dlse: Any = None, layout: str = "bhsd", kv_layout: Optional[str] = None,
             scale: Optional[float] = None, is_causal: bool = False, window: Window = None, bottom_right: bool = False,
             q_lengths: Any = None, k_lengths: Any = None, cu_q: Any = None, cu_k: Any = None,
             max_q: Optional[int] = None, max_k: Optional[int] = None, pages: Any = None, q_start: Any = None,
             sinks: Any = None, dropout_p: float = 0.0, seed: int = 0, params: Named = None, tensors: Named = None,
             style: str = "flex", score_mod_bprop: ScoreLike = None, bprop_params: Named = None,
             bprop_tensors: Named = None, coordinates: Named = None, global_q_len: Optional[int] = None,
             global_k_len: Optional[int] = None, global_heads: Optional[int] = None, wrt: Sequence[str] = WRT,
             deterministic: bool = False, bounds_check: bool = False, engine: Optional[str] = None,
             threads: Optional[int] = None) -> "Gradients":
    """Runs the backward pass from the results of an earlier forward pass, and returns the Gradients.

    `out, lse`: the results of attention(); if k and v are a shard of the keys, the results over all keys.
    `dout, dlse`: the gradients of out and lse.
    `wrt`: as in vjp().

    q, k, v and the other keywords: as in attention().
    """
    call = _call(locals())
    rows = _float_rows(as_array(lse, "lse"), "lse")
    whole = as_array(out, "out", FLOATS)
    for array, what, shape in ((whole, "out", call.out_shape()), (rows, "lse", call.rows_shape())):
        if array.shape != shape:
            raise ArgumentError("%s has shape %s; that of the problem, %s, is accepted" % (what, array.shape, shape))
    return Pullback(call, whole, rows, _wanted(wrt))(dout, dlse)


class Gradients(Tuple[Any, Any, Any]):
    """The gradients (dq, dk, dv) as a tuple, with further gradients as attributes. `tensors` and `params` are {name:
    gradient} for the captured tensors and params of the program; a gradient is None for ints and for inputs that `wrt`
    leaves out. `sinks` is the gradient [H] of learned sinks. `captured` is {name: array}, the arrays that the score
    function captured."""

    tensors: Dict[str, Optional[np.ndarray]]
    params: Dict[str, Optional[float]]
    captured: Dict[str, np.ndarray]
    sinks: Optional[np.ndarray]

    @classmethod
    def _make(cls, call: Call, grads: Mapping[str, Any]) -> "Gradients":
        self = cls((grads.get("q"), grads.get("k"), grads.get("v")))
        program = call.source.program
        captures, params = (program.captures, program.params) if program is not None else ((), ())
        self.tensors = {c.name: grad for c, grad in zip(captures, grads["tensors"])}
        self.captured = {c.name: tensor for c, tensor in zip(captures, call.tensors)}
        self.params = {p.name: grad for p, grad in zip(params, grads["params"])}
        self.sinks = grads.get("sinks")
        return self

    def of(self, array: Any) -> np.ndarray:
        """Returns the gradient of a dense `array` that the function captured. If the function captured views of the
        array, adds up the gradients of the views. Raises ArgumentError if the function captured neither the array nor a
        view of it."""
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
    """Returns the index of the element of the dense array `array` at which the view `captured` starts; None if
    `captured` is not a view of `array`."""
    at = captured.ctypes.data - array.ctypes.data
    if not array.flags.c_contiguous or captured.dtype != array.dtype or at % array.itemsize or any(
            s % array.itemsize for s in captured.strides):
        return None
    low = at + sum(min(s * (n - 1), 0) for s, n in zip(captured.strides, captured.shape))
    high = at + sum(max(s * (n - 1), 0) for s, n in zip(captured.strides, captured.shape)) + captured.itemsize
    return at // array.itemsize if captured.size and 0 <= low and high <= array.nbytes else None


def _add_view(total: np.ndarray, at: int, captured: np.ndarray, grad: np.ndarray) -> None:
    """Adds `grad`, the gradient of view `captured`, to the elements of `total` that the view refers to. The view
    `captured` starts at element `at` of `total`, and may refer to an element more than once (sliding windows,
    broadcasts)."""
    places = np.arange(total.size)
    steps = [s // captured.itemsize * places.itemsize for s in captured.strides]
    shown = np.ndarray(captured.shape, places.dtype, places, at * places.itemsize, steps)
    np.add.at(total, shown, grad)


class Pullback:
    """The backward pass of one call of vjp(): a function of the gradient of the output."""

    def __init__(self, call: Call, out: np.ndarray, lse: Any, wrt: Sequence[str],
                 plan: Optional[Plan] = None) -> None:
        self._call, self._out, self._lse, self._wrt, self._plan = call, out, lse, wrt, plan

    def __call__(self, dout: Any, dlse: Any = None) -> Gradients:
        """Returns the Gradients for `dout`, the gradient of the output, and `dlse`, the gradient of LSE (None:
        zero)."""
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
        # A problem cannot mix f64 with narrower types, and NumPy's default dtype is f64: the gradient is converted.
        mixed = (array.dtype == np.float64) != (dtype == np.float64)
        return array.astype(dtype) if mixed else array


def merge(out_a: np.ndarray, lse_a: np.ndarray, out_b: Any, lse_b: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Merges two partial results of the same queries over disjoint sets of keys, (out_a, lse_a) and (out_b, lse_b).
    Returns (out, lse) over all keys in new arrays. out: [B,H,S,D], lse: [B,H,S]."""
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

def _call(given: Mapping[str, Any]) -> Call:
    """Returns the Call for a public function; `given` has the arguments of that function by name."""
    return Call(given["q"], given["k"], given["v"], given["score_mod"], given["mask_mod"],
                {name: given[name] for name in OPTIONS})


# cleandoc, because Python 3.13 removes the indentation of docstrings and older versions keep it.
_common = inspect.cleandoc(attention.__doc__ or "").partition("\n`score_mod")
_function: Any
for _function in (vjp, backward, plan, plan_vjp):
    _function.__doc__ = "%s\n\nAs in attention():\n%s" % (
        inspect.cleandoc(_function.__doc__ or ""), "".join(_common[1:]))
_signature = inspect.signature(attention)
_numpy_memo.defaults = tuple(_signature.parameters[_name].default for _name in _numpy_memo.KEPT)
# Removes **unknown from the signature that help() shows; **unknown only collects wrong keywords for an error.
attention.__signature__ = _signature.replace(  # type: ignore[attr-defined]
    parameters=[p for p in _signature.parameters.values() if p.kind is not p.VAR_KEYWORD])


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
