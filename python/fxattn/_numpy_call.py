# SPDX-License-Identifier: Apache-2.0
"""Call: one attention call on NumPy arrays. A Call checks the options against the shapes, and makes the fxa_problem and
fxa_args of the forward and backward pass. The public functions of the NumPy front end are in fxattn.numpy.

A Call is built once and run any number of times. A Call keeps references to its input arrays for the backward pass."""
import math
import operator
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from . import _abi
from ._arrays import FLOATS, Layout, as_array, code_of, describe, index_array, parse_layout, view_of
from ._errors import ArgumentError, ArgumentTypeError
from ._library import check_threads
from ._options import flag, window_sides
from ._problem import Args, Plan, Problem, Sizes
from ._program import DTYPE_NAMES, Program
from ._source import resolve

MAX_SEED = (1 << 64) - 1
WRT = ("q", "k", "v", "sinks", "tensors", "params")
# Keyword options that attention(), vjp(), backward(), plan() and plan_vjp() of fxattn.numpy have in common.
OPTIONS = ("layout", "kv_layout", "scale", "is_causal", "window", "bottom_right", "q_lengths", "k_lengths", "cu_q",
           "cu_k", "max_q", "max_k", "pages", "q_start", "sinks", "dropout_p", "seed", "params", "tensors", "style",
           "score_mod_bprop", "bprop_params", "bprop_tensors", "coordinates", "global_q_len", "global_k_len",
           "global_heads", "deterministic", "bounds_check", "engine", "threads")


def _int(value: Any, what: str, highest: int = (1 << 63) - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError("%s is of type %s; an int is accepted" % (what, type(value).__name__)) from None
    if not -(1 << 63) <= number <= highest:  # ctypes would truncate larger values silently
        raise ArgumentError("%s is %d; 64 bits are accepted" % (what, number))
    return number


def _size(value: Any, what: str) -> int:
    number = _int(value, what)
    if number < 0:
        raise ArgumentError("%s is %d; an int from 0 is accepted" % (what, number))
    return number


def _float(value: Any, what: str) -> float:
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError("%s is of type %s; a number is accepted" % (what, type(value).__name__)) from None


def _captured(program: Optional[Program], tensors: Sequence[Any], what: str) -> List[np.ndarray]:
    """Returns the captured arrays `tensors` of a program as NumPy arrays. Raises ArgumentError if a dtype or rank
    differs from the program's declaration; the C library gets only addresses and could not detect the difference."""
    arrays = []
    for capture, tensor in zip(program.captures if program is not None else (), tensors):
        name = "%s[%r]" % (what, capture.name)
        array = as_array(tensor, name)
        if (capture.dtype, capture.rank) != (DTYPE_NAMES[code_of(array, name)], array.ndim):
            raise ArgumentError("%s has dtype %s and rank %d; the program declares it as %s[%d]"
                                % (name, array.dtype, array.ndim, capture.dtype, capture.rank))
        arrays.append(array)
    return arrays


class Forward(NamedTuple):
    """A forward pass that is ready to run, with the arrays that the pass writes: out, LSE and row maxima. threads: the
    number of threads; None for the number that set_num_threads() set."""

    problem: Problem
    args: Args
    threads: Optional[int]
    out: np.ndarray
    lse: Optional[np.ndarray]
    maxima: Optional[np.ndarray]

    def run(self, plan: Optional[Plan] = None) -> None:
        """Runs the forward pass with `plan`. If `plan` is None, the plan comes from the cache or is compiled."""
        _run(self, plan)


class Backward(NamedTuple):
    """A backward pass that is ready to run, with the arrays that the pass writes. `grads` has the gradient arrays by
    name of the input; `params` has the gradients of those params for which `wanted_params` is true."""

    problem: Problem
    args: Args
    threads: Optional[int]
    grads: Dict[str, Any]
    params: np.ndarray
    wanted_params: List[bool]


def _run(ready: Any, plan: Optional[Plan]) -> None:
    if plan is None:
        ready.problem.run(ready.args, ready.threads)
    elif ready.threads is not None:
        raise ArgumentError("threads is given beside a plan, which has the number that it was made with")
    elif isinstance(plan, Plan):
        plan.run_on_host(ready.problem, ready.args)
    else:
        raise ArgumentTypeError("plan is of type %s; a Plan is accepted" % type(plan).__name__)


class Call:
    """The inputs and options of one attention call, checked and converted."""

    def __init__(self, q: Any, k: Any, v: Any, score_mod: Any, mask_mod: Any, options: Mapping[str, Any]) -> None:
        self.q, self.k, self.v = (as_array(x, name, FLOATS) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        self.options = options
        self.layout = parse_layout(options["layout"], "layout")
        self.kv_layout = self._kv_layout()
        self.threads = None if options["threads"] is None else check_threads(options["threads"])
        self.flags = 0
        self.tables: Dict[str, np.ndarray] = {}
        self.fields: Dict[str, Any] = {}
        self.shape = self._shape()
        self._features()
        self._coordinates()
        shape = self.shape
        wide = self.q.dtype if self.q.dtype == np.float64 else None
        sources = ("tensors", "params", "score_mod_bprop", "bprop_tensors", "bprop_params", "style")
        self.source = resolve(score_mod, mask_mod, describe, shape=(shape.b, shape.hq, shape.sq, shape.sk), dtype=wide,
                              **{name: options[name] for name in sources})
        self.tensors = _captured(self.source.program, self.source.tensors, "tensors")
        self.bprop_tensors = _captured(self.source.bprop, self.source.bprop_tensors, "bprop_tensors")

    # ---- Shapes ------------------------------------------------------------------------------------------------------

    def _kv_layout(self) -> Layout:
        given = self.options["kv_layout"]
        if given is None and self.layout.packed and self.options["pages"] is not None:
            given = "bhsd"
        return self.layout if given is None else parse_layout(given, "kv_layout")

    def _shape(self) -> Sizes:
        for name, layout in (("q", self.layout), ("k", self.kv_layout), ("v", self.kv_layout)):
            array = getattr(self, name)
            if array.ndim != len(layout.name):
                raise ArgumentError("%s has shape %s; %d axes are accepted, those of the layout %s"
                                    % (name, array.shape, len(layout.name), layout.name))
        (b, hq, sq, d), (kb, hkv, sk, kd), (vb, vh, vs, dv) = (
            self.layout.sizes(self.q), self.kv_layout.sizes(self.k), self.kv_layout.sizes(self.v))
        if kd != d or (vb, vh, vs) != (kb, hkv, sk):
            raise ArgumentError("q has shape %s, k %s and v %s; k must have the head dim of q, and v the batch "
                                "size, heads and length of k"
                                % (self.q.shape, self.k.shape, self.v.shape))
        if hkv == 0 and hq:  # the C library reads hkv = 0 as hkv = hq
            raise ArgumentError("q has shape %s and k %s: k has 0 heads; heads of q are a multiple of those of k, and "
                                "of 0 heads that is 0" % (self.q.shape, self.k.shape))
        self.spread = False
        if self.options["pages"] is not None:
            return self._paged(b, hq, hkv, sq, d, dv, kb, sk)
        if self.layout.packed != self.kv_layout.packed:
            raise ArgumentError("layout is %s and kv_layout %s: both are packed, or none is, unless there are pages"
                                % (self.layout.name, self.kv_layout.name))
        if self.layout.packed:
            return self._packed(hq, hkv, sq, sk, d, dv)
        self._no_cu()
        if kb not in (b, 1):
            raise ArgumentError("q has a batch of %d and k of %d; the same, or 1, is accepted" % (b, kb))
        self.spread = kb != b
        return Sizes(b, hq, hkv, sq, sk, d, dv)

    def _cu(self, name: str, default: Optional[np.ndarray] = None) -> Tuple[np.ndarray, int]:
        """Returns the offsets `name` ("cu_q", "cu_k") of packed sequences, and the length of the longest sequence. If
        the caller gave no offsets, `default` is used as the offsets."""
        value = self.options[name]
        if value is None and default is None:
            raise ArgumentError("%s is missing: packed sequences begin and end by it" % name)
        cu = default if value is None else index_array(value, name, (None,))
        if cu is None or cu.size < 1:
            raise ArgumentError("%s is empty; one offset more than there are sequences is accepted" % name)
        self.tables[name] = cu
        longest = self.options["max_q" if name == "cu_q" else "max_k"]
        if longest is None:
            return cu, int(np.diff(cu.astype(np.int64)).max()) if cu.size > 1 else 0
        return cu, _size(longest, "max_q" if name == "cu_q" else "max_k")

    def _no_cu(self) -> None:
        for name in ("cu_q", "cu_k", "max_q", "max_k"):
            if self.options[name] is not None:
                raise ArgumentError("%s is given and the layout is %s; thd and htd are those of packed sequences"
                                    % (name, self.layout.name))

    def _packed(self, hq: int, hkv: int, total_q: int, total_k: int, d: int, dv: int) -> Sizes:
        self.flags |= _abi.VARLEN
        cu_q, longest_q = self._cu("cu_q")
        cu_k, longest_k = self._cu("cu_k", cu_q)
        if cu_k.size != cu_q.size:
            raise ArgumentError("cu_q has %d offsets and cu_k %d; the same number is accepted" % (cu_q.size, cu_k.size))
        return Sizes(cu_q.size - 1, hq, hkv, longest_q, longest_k, d, dv, total_q, total_k)

    def _paged(self, b: int, hq: int, hkv: int, sq: int, d: int, dv: int, n_pages: int, page_size: int) -> Sizes:
        self.flags |= _abi.PAGED
        total_q = 0
        if self.kv_layout.packed or self.kv_layout.axes[0] is None:
            raise ArgumentError("kv_layout is %s; pages have a layout with b, which counts them" % self.kv_layout.name)
        if self.layout.packed:
            self.flags |= _abi.VARLEN
            cu, longest = self._cu("cu_q")
            b, sq, total_q = cu.size - 1, longest, sq
            for name in ("cu_k", "max_k"):
                if self.options[name] is not None:
                    raise ArgumentError("%s is given beside pages, whose lengths are k_lengths" % name)
        else:
            self._no_cu()
        self.tables["pages"] = pages = index_array(self.options["pages"], "pages", (b, None))
        if self.options["k_lengths"] is None:
            raise ArgumentError("pages is given without k_lengths, the number of keys that each batch entry has in its "
                                "pages")
        return Sizes(b, hq, hkv, sq, pages.shape[1] * page_size, d, dv, total_q, 0, n_pages, page_size)

    # ---- Features ----------------------------------------------------------------------------------------------------

    def _features(self) -> None:
        options, b = self.options, self.shape.b
        for name, bit in (("is_causal", _abi.CAUSAL), ("bottom_right", _abi.BOTTOM_RIGHT),
                          ("bounds_check", _abi.BOUNDS_CHECK), ("deterministic", _abi.DETERMINISTIC)):
            self.flags |= bit if flag(name, options[name]) else 0
        for name, bit in (("q_lengths", _abi.PADDING), ("k_lengths", _abi.PADDING), ("q_start", _abi.Q_START)):
            if options[name] is not None:
                self.flags |= bit
                self.tables[name] = index_array(options[name], name, (b,))
        window = window_sides(options["window"], lambda side: _int(side, "window"))
        if window is not None:
            self.flags |= _abi.WINDOW
            self.fields["window_left"], self.fields["window_right"] = window
        dropout_p = _float(options["dropout_p"], "dropout_p")
        if not 0 <= dropout_p < 1:
            raise ArgumentError("dropout_p is %r; 0 <= dropout_p < 1 is accepted" % options["dropout_p"])
        if dropout_p:
            self.flags |= _abi.DROPOUT
            self.fields["dropout_p"] = dropout_p
        self.seed = _int(options["seed"], "seed", MAX_SEED)
        if not 0 <= self.seed <= MAX_SEED:
            raise ArgumentError("seed is %d; 0 to 2^64 - 1 are accepted" % self.seed)
        self._sinks(options["sinks"])
        scale = options["scale"]
        self.scale = None if scale is None else _float(scale, "scale")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ArgumentError("scale is %r; a finite number is accepted, None for 1 / sqrt(d)" % scale)

    def _sinks(self, sinks: Any) -> None:
        self.sinks: Optional[np.ndarray] = None
        if isinstance(sinks, str):
            if sinks != "zero":
                raise ArgumentError("sinks is %r; \"zero\", or an array of a score per query head, is accepted" % sinks)
            self.flags |= _abi.SINK_ZERO
        elif sinks is not None:
            self.sinks = as_array(sinks, "sinks", FLOATS)
            if self.sinks.shape != (self.shape.hq,):
                raise ArgumentError("sinks has shape %s; (%d,), a score per query head, is accepted"
                                    % (self.sinks.shape, self.shape.hq))
            self.flags |= _abi.SINKS

    def _coordinates(self) -> None:
        """Checks the option `coordinates`, which maps indices of a shard to indices in the entire problem, and fills
        self.maps. For each axis, `coordinates` has an offset (int), an array with an entry for each index, or segments
        (begin, base, step): from index `begin` of the shard on, the indices are base, base + step, ..."""
        sizes = {"b": self.shape.b, "h": self.shape.hq, "q": self.shape.sq, "k": self.shape.sk}
        self.maps: Dict[str, Dict[str, Any]] = {}
        given = {} if self.options["coordinates"] is None else self.options["coordinates"]
        if not isinstance(given, Mapping):
            raise ArgumentTypeError("coordinates is of type %s; a dictionary is accepted" % type(given).__name__)
        for axis, value in given.items():
            what = "coordinates[%r]" % axis
            if axis not in sizes:
                raise ArgumentError("coordinates has %r; b, h, q and k are accepted" % axis)
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)):
                segments = [tuple(_int(number, what) for number in segment) for segment in value]
                if any(len(segment) != 3 for segment in segments):
                    raise ArgumentError("%s has segments %r; (begin, base, step) each is accepted" % (what, value))
                self.maps[axis] = {"segments": segments}
            elif np.ndim(value) == 0:
                self.maps[axis] = {"base": _int(value, what)}
            else:
                self.tables["map_" + axis] = index_array(value, what, (sizes[axis],))
                self.maps[axis] = {"table": True}
        if self.options["style"] == "graph":
            self._arrays_beside(set(given))
        for name in ("global_q_len", "global_k_len", "global_heads"):
            if self.options[name] is not None:
                self.fields[name] = _int(self.options[name], name)

    def _arrays_beside(self, moved: Set[str]) -> None:
        """Raises ArgumentError if a callback (graph, score, tensors) gets an array with more than one entry along the
        axis "b" or "h", and `moved`, the axes in the option `coordinates`, has this axis. The array is refused, because
        the program would index the array by b and h of the entire problem."""
        for option in ("tensors", "bprop_tensors"):
            named = self.options[option]
            for name, array in named.items() if isinstance(named, Mapping) else ():
                sizes = (1, 1, 1, 1, *np.shape(array))[-4:]
                for axis, size in zip("bh", sizes):
                    if axis in moved and size != 1:
                        raise ArgumentError("coordinates of %s beside %s[%r] of shape %s, which has %d along that "
                                            "axis; 1 is accepted there, or a function or text that indexes it by %s"
                                            % (axis, option, name, np.shape(array), size, axis))

    # ---- Problems ----------------------------------------------------------------------------------------------------

    def problem(self, backward: bool, flags: int) -> Tuple[Problem, Args]:
        source = self.source
        problem = Problem(source.program, bprop=source.bprop if backward else None, backward=backward,
                          flags=self.flags | flags, engine=self.options["engine"], **self.shape._asdict(),
                          **self.fields)
        args = Args(scale=self.scale, seed=self.seed)
        for axis, index_map in self.maps.items():
            problem.index_map(axis, **index_map)
        for name, table in self.tables.items():
            args.slot(name, table.ctypes.data)
        for name, layout in (("q", self.layout), ("k", self.kv_layout), ("v", self.kv_layout)):
            self.bind(problem, args, name, getattr(self, name), layout)
        if self.sinks is not None:
            problem.operand("sinks", code_of(self.sinks, "sinks"), (0, view_of(self.sinks, "sinks").stride[0]))
            args.slot("sinks", self.sinks.ctypes.data)
        views = [view_of(t, "captured tensor") for t in self.tensors]
        problem.captures(views)
        args.tensors([view.data for view in views])
        args.params(source.params)
        if backward and source.bprop is not None:
            views = [view_of(t, "captured tensor of score_mod_bprop") for t in self.bprop_tensors]
            problem.bprop_captures(views)
            args.tensors([view.data for view in views], bprop=True)
            args.params(source.bprop_params, bprop=True)
        return problem, args

    def bind(self, problem: Problem, args: Args, name: str, array: np.ndarray, layout: Layout, slot: str = "") -> None:
        """Sets dtype and strides of operand `name` in `problem`, and the address of `array` in slot `slot` of
        `args`."""
        strides = layout.strides(array)
        if self.spread and name in ("k", "v"):
            strides = (0, *strides[1:])
        problem.operand(name, code_of(array, name), strides)
        args.slot(slot or name, array.ctypes.data)

    def out_shape(self) -> Tuple[int, ...]:
        """Returns the shape of the output: the shape of q, with the head dim of v."""
        b, h, s, _ = self.layout.sizes(self.q)
        return self.layout.shape((b, h, s, self.shape.d_v))

    def rows_shape(self) -> Tuple[int, ...]:
        """Returns the shape of LSE and row maxima: the shape of q without the feature axis."""
        return self.layout.rows().shape(self.layout.sizes(self.q))

    def row_dtype(self) -> np.dtype:
        return np.dtype(np.float64 if self.q.dtype == np.float64 else np.float32)

    @staticmethod
    def result(given: Optional[np.ndarray], what: str, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns the array that a result is written to: the caller's array `given`, or a new array if `given` is None.
        Raises ArgumentError if `given` has another shape or cannot be written in place."""
        if given is None:
            return np.empty(shape, dtype)
        if not isinstance(given, np.ndarray):
            raise ArgumentTypeError("%s is of type %s; a NumPy array is accepted" % (what, type(given).__name__))
        code_of(given, what, FLOATS)
        if given.shape != shape:
            raise ArgumentError("%s has shape %s; %s, that of the result, is accepted" % (what, given.shape, shape))
        if not given.flags.writeable or as_array(given, what) is not given:
            raise ArgumentError("%s cannot be written: it is read-only, of foreign byte order or not aligned" % what)
        return given

    def forward(self, out: Optional[np.ndarray] = None, want_lse: Any = False, want_max: bool = False) -> Forward:
        """Returns a Forward: the forward pass of this call, ready to run. `want_lse` is the dtype of LSE, or False for
        no LSE."""
        flags = (_abi.RETURN_LSE if want_lse else 0) | (_abi.RETURN_ROW_MAX if want_max else 0)
        problem, args = self.problem(False, flags)
        target = self.result(out, "out", self.out_shape(), self.q.dtype)
        inputs = [self.q, self.k, self.v, *self.tensors, *self.tables.values(), self.sinks]
        if out is not None and any(x is not None and np.may_share_memory(out, x) for x in inputs):
            target = np.empty(target.shape, target.dtype)  # out overlaps an input, which must not change during the run
        if self.layout.packed:
            target[...] = 0  # the C library does not write rows outside the sequences
        self.bind(problem, args, "o", target, self.layout)
        rows, maxima = None, None
        if want_lse:
            rows = np.zeros(self.rows_shape(), want_lse)
            self.bind(problem, args, "lse", rows, self.layout.rows())
        if want_max:
            maxima = np.zeros(self.rows_shape(), self.row_dtype())
            self.bind(problem, args, "row_max", maxima, self.layout.rows())
        return Forward(problem, args, self.threads, target, rows, maxima)

    def run_forward(self, out: Optional[np.ndarray] = None, want_lse: Any = False, want_max: bool = False,
                    plan: Optional[Plan] = None
                    ) -> Tuple[np.ndarray, Optional[np.ndarray], Optional[np.ndarray]]:
        """Runs the forward pass with `plan`, or with a plan from the cache if `plan` is None. Returns output, LSE and
        row maxima; LSE and row maxima are None if they are not wanted."""
        ready = self.forward(out, want_lse, want_max)
        ready.run(plan)
        if out is None:
            return ready.out, ready.lse, ready.maxima
        if ready.out is not out:
            out[...] = ready.out
        return out, ready.lse, ready.maxima

    # ---- Backward ----------------------------------------------------------------------------------------------------

    def backward(self, dout: np.ndarray, dlse: Optional[np.ndarray], out: np.ndarray, lse: np.ndarray,
                 wrt: Sequence[str]) -> Backward:
        flags = sum(flag for name, flag in (("q", _abi.GRAD_Q), ("k", _abi.GRAD_K), ("v", _abi.GRAD_V)) if name in wrt)
        wants_sinks = self.sinks is not None and "sinks" in wrt
        flags |= (_abi.GRAD_SINKS if wants_sinks else 0) | (_abi.READ_DLSE if dlse is not None else 0)
        problem, args = self.problem(True, flags)
        rows = self.layout.rows()
        for name, array, layout, slot in (("o", out, self.layout, ""), ("lse", lse, rows, ""),
                                          ("dout", dout, self.layout, "do"), ("dlse", dlse, rows, "")):
            if array is not None:
                self.bind(problem, args, name, array, layout, slot)
        grads: Dict[str, Any] = {}
        for name, target in (("q", "dq"), ("k", "dk"), ("v", "dv")):
            if name in wrt:
                grads[name], layout = self._gradient(name, self.layout if name == "q" else self.kv_layout)
                self.bind(problem, args, target, grads[name], layout, "dv" if name == "v" else "")
        if wants_sinks:
            grads["sinks"] = np.empty(self.sinks.shape, self.sinks.dtype)  # type: ignore[union-attr]
            problem.operand("dsinks", code_of(grads["sinks"], "sinks"), (0, 1))
            args.slot("dsinks", grads["sinks"].ctypes.data)
        grads["tensors"] = self._captured_gradients(problem, args, "tensors" in wrt)
        params, wanted = self._param_gradients(problem, args, "params" in wrt)
        return Backward(problem, args, self.threads, grads, params, wanted)

    def run_backward(self, dout: np.ndarray, dlse: Optional[np.ndarray], out: np.ndarray, lse: np.ndarray,
                     wrt: Sequence[str], plan: Optional[Plan] = None) -> Dict[str, Any]:
        """Runs the backward pass with `plan`, or with a plan from the cache if `plan` is None. Returns a dictionary of
        gradients: arrays for q, k, v and sinks; lists for tensors and params, with None where a gradient is not
        computed."""
        ready = self.backward(dout, dlse, out, lse, wrt)
        _run(ready, plan)
        grads = ready.grads
        grads["params"] = [float(value) if want else None for value, want in zip(ready.params, ready.wanted_params)]
        for name in {"k", "v"} & set(grads) if self.spread else ():
            summed = grads[name].sum(axis=0 if self.kv_layout.axes[0] is None else self.kv_layout.axes[0])
            array = getattr(self, name)
            grads[name] = summed.reshape(array.shape).astype(array.dtype)
        return grads

    def _gradient(self, name: str, layout: Layout) -> Tuple[np.ndarray, Layout]:
        """Returns an array for the gradient of input `name`, and the layout of the array. If K and V have batch 1 and
        serve all batch entries of q, the array has the batch size of q, and the caller sums over the batch entries."""
        array = getattr(self, name)
        if not self.spread or name == "q":
            return (np.zeros if layout.packed else np.empty)(array.shape, array.dtype), layout
        _, *sizes = layout.sizes(array)
        if layout.axes[0] is None:
            layout = parse_layout("b" + layout.name, "kv_layout")
        dtype = array.dtype if array.dtype == np.float64 else np.float32
        return np.empty(layout.shape((self.shape.b, *sizes)), dtype), layout

    def _captured_gradients(self, problem: Problem, args: Args, wanted: bool) -> List[Optional[np.ndarray]]:
        """Returns a list with an array for the gradient of each captured float tensor, and None for other tensors; if
        `wanted` is False, the list has only None. Stores the shapes of the gradient arrays in `problem` and their
        addresses in `args`."""
        grads = [np.empty(t.shape, t.dtype) if wanted and code_of(t, "captured tensor") in FLOATS else None
                 for t in self.tensors]
        views = [None if grad is None else view_of(grad, "gradient") for grad in grads]
        problem.captures([view_of(t, "captured tensor") for t in self.tensors], views)
        args.dtensors([None if view is None else view.data for view in views])
        return grads

    def _param_gradients(self, problem: Problem, args: Args, wanted: bool) -> Tuple[np.ndarray, List[bool]]:
        """Returns an array for the gradients of the params, and a list that is True for each param whose gradient is
        computed (float params, if `wanted`)."""
        params = self.source.program.params if self.source.program is not None else ()
        wants = [wanted and p.type == "float" for p in params]
        problem.struct.param_grads = sum(1 << i for i, want in enumerate(wants) if want)
        grads = np.zeros(len(params))
        args.dparams(grads.ctypes.data, len(params))
        return grads, wants
