# SPDX-License-Identifier: Apache-2.0
"""Wrappers of the C structs of problems, plans and runs, for front ends that call the C library through ctypes.

Problem (fxa_problem) describes shapes, layouts and options; Args (fxa_args) has the pointers and scalars of one run.
Problem and Args own the memory that their structs point to, except the data of arrays, which the caller keeps alive.
The C library checks a problem and reports what is wrong; Problem and Args check little. A View describes an array of
any front end."""
import ctypes
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from ._errors import ArgumentError, ArgumentTypeError
from ._library import Handle, address_of, call, context, lib, two_calls
from ._program import Program

_BYREF = ctypes.byref
PASSES = {"forward": _abi.FORWARD, "backward": _abi.BACKWARD}
SLOTS = {name[5:].lower(): value for name, value in vars(_abi).items()
         if name.startswith("SLOT_") and name not in ("SLOT_COUNT", "SLOT_MAX")}
_FIELDS = frozenset(field[0] for field in _abi.Problem._fields_)
NAN = float("nan")


class View(NamedTuple):
    """An array in memory: address, storage type (_abi.F32), sizes, and strides in elements."""

    data: int
    dtype: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


class Verdict(NamedTuple):
    """States whether one engine supports a problem. `reason` says why the problem is not supported."""

    engine: str
    supported: bool
    deterministic: bool
    workspace: int
    reason: str
    seconds: float = 0.0  # estimated time of a run; 0: unknown


class Sizes(NamedTuple):
    """Sizes of a problem, named like the fields of fxa_problem. total_q and total_k are the numbers of rows of packed
    arrays."""

    b: int
    hq: int
    hkv: int
    sq: int
    sk: int
    d_qk: int
    d_v: int
    total_q: int = 0
    total_k: int = 0
    n_pages: int = 0
    page_size: int = 0


class Problem:
    """A wrapper of the C struct fxa_problem, which is the attribute `struct`. Scalar fields of fxa_problem are keyword
    arguments of the constructor of Problem (sq=128); methods of Problem set the fields that are structs."""

    __slots__ = ("struct", "_keep")

    def __init__(self, program: Optional[Program] = None, *, bprop: Optional[Program] = None, backward: bool = False,
                 flags: int = 0, engine: Optional[str] = None, **fields: Any) -> None:
        self.struct = _abi.Problem(struct_size=ctypes.sizeof(_abi.Problem), flags=flags)
        self.struct.pass_ = _abi.BACKWARD if backward else _abi.FORWARD
        self._keep: Dict[str, Any] = {"program": program, "bprop": bprop}
        self.struct.program = program._handle if program is not None else None
        self.struct.bprop = bprop._handle if bprop is not None else None
        if engine is not None:
            if not isinstance(engine, str):
                raise ArgumentTypeError("engine is of type %s; a name is accepted" % type(engine).__name__)
            self._keep["engine"] = name = engine.encode()
            self.struct.engine = address_of(name)
        for field, value in fields.items():
            if field not in _FIELDS:
                raise TypeError("fxa_problem has no field %r" % field)  # ctypes would set a Python attribute silently
            setattr(self.struct, field, _abi.D_V_ZERO if field == "d_v" and value == 0 else value)

    def operand(self, name: str, dtype: int, stride: Sequence[int] = ()) -> None:
        """Sets storage type and strides of the operand `name`, which is q, k, v, o, dout, dq, dk, dv, lse, row_max,
        dlse, sinks or dsinks. `stride` has strides in elements, in the order batch, head, position, feature; empty for
        a dense [B,H,S,D] array. Strides of trailing axes that the operand lacks are omitted: lse has strides for batch,
        head and position; sinks, which have no batch axis, have (0, stride of heads)."""
        operand = getattr(self.struct, name)
        operand.dtype = dtype
        if stride:
            operand.layout = _abi.LAYOUT_STRIDED
            operand.stride[:len(stride)] = tuple(stride)

    def captures(self, views: Sequence[View], grads: Optional[Sequence[Optional[View]]] = None) -> None:
        """Sets the captured tensors of the program to `views`, in the program's order. For a backward pass, `grads` has
        a View for the gradient of each tensor, or None if the gradient is not computed."""
        self._keep["captures"] = entries = _capture_array(views, grads)
        self.struct.captures = ctypes.cast(entries, ctypes.c_void_p)
        self.struct.n_captures = len(views)

    def bprop_captures(self, views: Sequence[View]) -> None:
        """Sets the captured tensors of the backward program to `views`, in the order of the backward program."""
        self._keep["bprop_captures"] = entries = _capture_array(views, None)
        self.struct.bprop_captures = ctypes.cast(entries, ctypes.c_void_p)
        self.struct.n_bprop_captures = len(views)

    def index_map(self, axis: str, *, base: int = 0, step: int = 1, segments: Iterable[Tuple[int, int, int]] = (),
                  table: bool = False, offset: bool = False) -> None:
        """Sets how index i along `axis` ("b", "h", "q" or "k") of this problem, which is a shard, maps to an index in
        the entire problem. The mapped index is base + step * i; or, with `segments` (begin, base, step), it starts at
        base for i = begin and grows by step; or, with `table`, it is entry i of an array that each run gets. If
        `offset` is true, each run also gets an int32 that is added to the mapped index."""
        entry, segments = getattr(self.struct, "map_" + axis), tuple(segments)
        if len(segments) > _abi.MAX_SEGMENTS:
            raise ArgumentError("map_%s has %d segments; at most %d are accepted"
                                % (axis, len(segments), _abi.MAX_SEGMENTS))
        entry.kind = _abi.MAP_TABLE if table else _abi.MAP_SEGMENTS if segments else _abi.MAP_AFFINE
        entry.base, entry.step, entry.has_offset, entry.n_segments = base, step, bool(offset), len(segments)
        for target, segment in zip(entry.segment, segments):
            target.begin, target.base, target.step = segment

    def program(self) -> Program:
        """Returns the program that engines run: the given program, combined with the built-in masks that flags select
        (causal, window)."""
        out = ctypes.c_void_p()
        call(lib.problem_program, context(), _BYREF(self.struct), _BYREF(out))
        return Program._own(out.value)

    def support(self) -> List[Verdict]:
        """Returns a Verdict for each engine, in order of preference."""
        reports, count = (_abi.Support * 16)(), ctypes.c_size_t(16)
        call(lib.support_query, context(), _BYREF(self.struct), reports, _BYREF(count))
        return [Verdict(ctypes.string_at(r.engine).decode(), bool(r.supported), bool(r.deterministic), r.workspace,
                        r.reason.decode("utf-8", "replace"), r.seconds) for r in reports[:count.value]]

    def plan(self, threads: Optional[int] = None) -> "Plan":
        """Returns the plan of this problem for `threads` threads (None: the number that set_num_threads() set). The
        returned plan comes from the cache or is compiled."""
        out = ctypes.c_void_p()
        call(lib.plan_create, context(threads), _BYREF(self.struct), _BYREF(out))
        return Plan(out.value)

    def save(self) -> bytes:
        """Returns the problem as bytes, with its programs and captures, for fxa_plan_create_from_problem."""
        return _save(self.struct)

    def run(self, args: "Args", threads: Optional[int] = None) -> None:
        """Runs `args` in host memory with a plan from the cache. The library allocates the workspace of the run."""
        call(lib.attention, context(threads), _BYREF(self.struct), _BYREF(args.struct))


def _save(struct: Any) -> bytes:
    return two_calls(lib.problem_save, context(), _BYREF(struct))


def _save_of_any_engine(struct: Any) -> bytes:
    copy = _abi.Problem.from_buffer_copy(struct)
    copy.engine = None
    return _save(copy)


class Plan(Handle):
    """A compiled problem. A Plan is immutable, and threads may share it. save() and load() transfer a plan to another
    process."""

    __slots__ = ()
    _destroy = "plan_destroy"

    def __repr__(self) -> str:
        return "<fxattn.Plan %s of engine %s, workspace of %d bytes>" % (self.key[:8], self.engine, self.workspace)

    @property
    def engine(self) -> str:
        return lib.plan_engine(self._handle).decode()

    @property
    def detail(self) -> str:
        """Returns a text of the engine that describes how the engine runs the plan."""
        return lib.plan_description(self._handle).decode()

    @property
    def workspace(self) -> int:
        return int(lib.plan_workspace(self._handle))

    @property
    def deterministic(self) -> bool:
        return bool(lib.plan_is_deterministic(self._handle))

    @property
    def key(self) -> str:
        out = ctypes.create_string_buffer(16)
        lib.plan_key(self._handle, out)
        return out.raw.hex()

    def save(self) -> bytes:
        """Returns the plan as bytes, for load() on a machine of the same kind."""
        return two_calls(lib.plan_save, self._handle)

    @classmethod
    def load(cls, data: bytes, *, rebuild: bool = False, threads: Optional[int] = None) -> "Plan":
        """Returns the plan saved in `data` by save(), for runs with `threads` threads (None: the number that
        set_num_threads() set). Raises BytesError if `data` is damaged. A plan of another version or device is compiled
        again if `rebuild` is true; otherwise VersionError is raised."""
        data, out = bytes(data), ctypes.c_void_p()
        flags = _abi.LOAD_REBUILD if rebuild else 0
        call(lib.plan_load_flags, context(threads), data, len(data), flags, _BYREF(out))
        return cls(out.value)

    def run(self, args: "Args") -> None:
        """Runs the plan with `args`, which must have a workspace."""
        call(lib.plan_run, self._handle, _BYREF(args.struct))

    def run_on_host(self, problem: Problem, args: "Args") -> None:
        """Runs the plan with `args`, which are in host memory, and allocates the workspace. Raises ArgumentError if
        `problem` is not the problem that the plan was compiled for."""
        own = _abi.Problem(struct_size=ctypes.sizeof(_abi.Problem))
        lib.plan_problem(self._handle, _BYREF(own))
        if _save_of_any_engine(own) != _save_of_any_engine(problem.struct):
            raise ArgumentError("the plan is of another problem: %s" % _difference(own, problem.struct))
        size = self.workspace
        space = ctypes.create_string_buffer(size + _abi.WORKSPACE_ALIGN)
        begin = -(-ctypes.addressof(space) // _abi.WORKSPACE_ALIGN) * _abi.WORKSPACE_ALIGN
        args.workspace(begin if size else 0, size)
        self.run(args)


def _pass_words(number: int) -> str:
    return next(name for name, value in PASSES.items() if value == number)


def _flag_words(flags: int) -> str:
    names = [lib.flag_name(1 << bit).decode() for bit in range(_abi.FLAG_COUNT) if flags >> bit & 1]
    return ", ".join(names) or "none"


def _difference(own: Any, given: Any) -> str:
    """Returns a text that describes the first difference between `own`, the fxa_problem of a plan, and `given`, the
    fxa_problem of a call."""
    for name in ("pass_", "b", "hq", "hkv", "sq", "sk", "d_qk", "d_v", "total_q", "total_k", "n_pages", "page_size",
                 "flags", "window_left", "window_right", "dropout_p", "global_q_len", "global_k_len", "global_heads",
                 "param_grads", "n_captures"):
        if getattr(own, name) != getattr(given, name) and (
                getattr(given, name) or name in ("pass_", "flags")):  # 0 in any other field selects a default
            show = {"pass_": _pass_words, "flags": _flag_words}.get(name, str)
            return "%s is %s there and %s in this call" % (name.strip("_"), show(getattr(own, name)),
                                                           show(getattr(given, name)))
    for name in ("q", "k", "v", "o", "dout", "dq", "dk", "dv", "lse", "row_max", "dlse", "sinks", "dsinks"):
        if getattr(given, name).dtype not in (0, getattr(own, name).dtype):
            return "the dtype of %s differs" % name
    return "strides, captured tensors, coordinates or the program differ"


class Args:
    """A wrapper of the C struct fxa_args (the attribute `struct`), which has the addresses of the inputs and outputs of
    one run. The caller must keep the arrays of an Args alive until the run is over, for example in the list `keep`."""

    __slots__ = ("struct", "keep")

    def __init__(self, *, scale: Optional[float] = None, seed: int = 0, **slots: Optional[int]) -> None:
        """`slots` has the addresses of arrays by name (q=address, lse=address)."""
        self.struct = _abi.Args(struct_size=ctypes.sizeof(_abi.Args), scale=NAN if scale is None else scale, seed=seed)
        self.keep: List[Any] = []
        for name, address in slots.items():
            self.struct.slot[SLOTS[name]] = address

    def slot(self, name: str, address: Optional[int]) -> None:
        self.struct.slot[SLOTS[name]] = address

    def params(self, values: Sequence[float], bprop: bool = False) -> None:
        """Sets the values of the params of the program or, if `bprop` is true, of the backward program, in the order in
        which that program lists its params."""
        self._array("bprop_params" if bprop else "params", ctypes.c_double, values)

    def tensors(self, addresses: Sequence[Optional[int]], bprop: bool = False) -> None:
        """Sets the addresses of the captured tensors of the program or, if `bprop` is true, of the backward program, in
        the order in which that program lists its tensors."""
        self._array("bprop_tensors" if bprop else "tensors", ctypes.c_void_p, addresses)

    def dtensors(self, addresses: Sequence[Optional[int]]) -> None:
        """Sets the addresses of the gradients of captured tensors; an address is None if the gradient is not
        computed."""
        self._array("dtensors", ctypes.c_void_p, addresses)

    def dparams(self, address: int, count: int) -> None:
        """Sets the address of the array for the gradients of params: `count` f64 values."""
        self.struct.dparams, self.struct.n_dparams = address, count

    def workspace(self, address: int, size: int) -> None:
        self.struct.workspace, self.struct.workspace_size = address, size

    def _array(self, field: str, kind: Any, values: Sequence[Any]) -> None:
        entries = (kind * len(values))(*values)
        self.keep.append(entries)
        setattr(self.struct, field, ctypes.cast(entries, ctypes.c_void_p))
        setattr(self.struct, "n_" + field, len(values))


def _capture_array(views: Sequence[View], grads: Optional[Sequence[Optional[View]]]) -> Any:
    entries = (_abi.Capture * max(len(views), 1))()
    for i, view in enumerate(views):
        entry, rank = entries[i], len(view.size)
        if rank > _abi.MAX_RANK:
            raise ArgumentError("captured tensor %d has rank %d; at most %d is accepted" % (i, rank, _abi.MAX_RANK))
        entry.size[:rank], entry.stride[:rank], entry.strided = view.size, view.stride, 1
        grad = grads[i] if grads is not None else None
        if grad is not None:
            entry.grad, entry.grad_dtype, entry.grad_strided = 1, grad.dtype, 1
            entry.grad_stride[:rank] = grad.stride
    return entries
