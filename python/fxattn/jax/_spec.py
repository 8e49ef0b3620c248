# SPDX-License-Identifier: Apache-2.0
"""Spec and Operands of a call. A Spec has the static properties of a call, and is a hashable parameter of the JAX
primitives of fxattn. Operands are the arrays of a call, as a pytree. The function problem_of() makes a Problem of a
Spec and Operands; XLA's handlers get the Problem as bytes."""
import functools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import jax

from .. import _abi
from .._arrays import code_of
from .._errors import UnsupportedError
from .._problem import Problem, Sizes, View
from .._program import Program

# Roles of handler buffers that are not slots: fxa__jax_role of python/csrc/jax_call.h.
SCALARS, DPARAMS, WORKSPACE, ALIAS, TENSORS, BPROP_TENSORS = 64, 65, 66, 67, 128, 256
# Codes of the gradients that the backward primitive can return. WANT_TENSORS + i is that of captured tensor i.
WANT_Q, WANT_K, WANT_V, WANT_SINK, WANT_PARAMS, WANT_TENSORS = range(6)
LAYOUTS = {"bhsd": _abi.LAYOUT_BHSD, "bshd": _abi.LAYOUT_BSHD, "thd": _abi.LAYOUT_BSHD}
_INT_SLOTS = {_abi.SLOT_Q_LENGTHS: _abi.PADDING, _abi.SLOT_K_LENGTHS: _abi.PADDING, _abi.SLOT_Q_START: _abi.Q_START}
NARROW = ("float16", "bfloat16")


class Map(NamedTuple):
    """A Map states how indices of a shard along `axis` ("b", "h", "q" or "k") map to the entire problem: see
    Problem.index_map()."""

    axis: str
    base: int = 0
    step: int = 1
    segments: Tuple[Tuple[int, int, int], ...] = ()
    table: bool = False
    offset: bool = False


class Spec(NamedTuple):
    """A Spec has the properties of a call that are known while the call is traced: program, flags, layout and others. A
    Spec is hashable and compared by content."""

    program: Optional[Program] = None
    bprop: Optional[Program] = None
    layout: str = "bshd"
    flags: int = 0
    slots: Tuple[int, ...] = ()  # the slot of each array in Operands.extras
    window: Tuple[int, int] = (0, 0)
    dropout: float = 0.0
    longest: Tuple[int, int] = (0, 0)  # packed rows: lengths of the longest sequences of q and k
    lengths: Tuple[int, int] = (0, 0)  # values of q_len and k_len in the program; 0: the sizes of q and k
    heads: int = 0  # value of heads in the program; 0: the heads of q
    maps: Tuple[Map, ...] = ()
    wide: bool = False  # results for 16-bit arrays are f32, because the caller adds them up
    engine: Optional[str] = None

    def captures(self) -> Tuple[Any, ...]:
        return self.program.captures if self.program is not None else ()

    def bprop_captures(self) -> Tuple[Any, ...]:
        return self.bprop.captures if self.bprop is not None else ()

    def params(self) -> Tuple[Any, ...]:
        return self.program.params if self.program is not None else ()

    def bprop_params(self) -> Tuple[Any, ...]:
        return self.bprop.params if self.bprop is not None else ()

    def forward(self) -> "Spec":
        """Returns the Spec without its backward program, for the forward primitive."""
        return self._replace(bprop=None)

    def reads(self, name: str) -> bool:
        """Returns True if a program of the call depends on input `name` ("b", "h", ...)."""
        for program in (self.program, self.bprop):
            if program is not None and (program.kind != "score" or name in _dependences(program)):
                return True
        return False


@functools.lru_cache(maxsize=1024)
def _dependences(program: Program) -> Tuple[str, ...]:
    properties = program.properties()
    return tuple({*properties["score_depends"], *properties["mask_depends"]})


class Operands(NamedTuple):
    """Operands are the arrays of a call. The field `scale` of Operands has at most one element; the elements of the
    fields scale, params and bprop_params have rank 0."""

    q: Any
    k: Any
    v: Any
    tensors: Tuple[Any, ...] = ()
    extras: Tuple[Any, ...] = ()
    scale: Tuple[Any, ...] = ()
    params: Tuple[Any, ...] = ()
    bprop_tensors: Tuple[Any, ...] = ()
    bprop_params: Tuple[Any, ...] = ()

    def forward(self) -> "Operands":
        return self._replace(bprop_tensors=(), bprop_params=())

    def flat(self) -> List[Any]:
        return list(jax.tree.leaves(self, is_leaf=lambda x: x is None))


def gather(spec: Spec, has_scale: bool, flat: Sequence[Any], backward: bool) -> Operands:
    """Returns Operands from `flat`, a list that the method Operands.flat() returned: the inverse of flat(). `backward`:
    True if `flat` includes operands of the backward program."""
    parts, at = [], 3
    sizes = [len(spec.captures()), len(spec.slots), int(has_scale), len(spec.params()),
             len(spec.bprop_captures()) if backward else 0, len(spec.bprop_params()) if backward else 0]
    for size in sizes:
        parts.append(tuple(flat[at:at + size]))
        at += size
    return Operands(*flat[:3], *parts)


def forward_rest(spec: Spec) -> int:
    """Returns how many operands the forward primitive has besides those of Operands.flat(): 2 if the run merges its
    results with an earlier out and LSE, else 0."""
    return 2 if spec.flags & _abi.ACCUMULATE_O else 0


_UNKNOWN = 8  # placeholder for a symbolic size; python/csrc/jax_follow.c reads the size from the buffers


def is_symbolic(shape: Sequence[Any]) -> bool:
    """Returns True if `shape` has symbolic sizes, which jax.export may use."""
    return not all(isinstance(n, int) for n in shape)


def known(x: Any) -> Any:
    """Returns the ShapeDtypeStruct of `x`, with _UNKNOWN for symbolic sizes."""
    return jax.ShapeDtypeStruct(tuple(n if isinstance(n, int) else _UNKNOWN for n in x.shape), x.dtype)


# ---- Shapes ----------------------------------------------------------------------------------------------------------

def sizes_of(spec: Spec, ops: Operands) -> Sizes:
    q, k, v = ops.q.shape, ops.k.shape, ops.v.shape
    if spec.layout == "thd":
        batch = ops.extras[spec.slots.index(_abi.SLOT_CU_Q)].shape[0] - 1
        return Sizes(batch, q[1], k[1], *spec.longest, q[2], v[2], q[0], k[0])
    s, h = (1, 2) if spec.layout == "bshd" else (2, 1)
    return Sizes(q[0], q[h], k[h], q[s], k[s], q[3], v[3])


def rows_shape(spec: Spec, ops: Operands) -> Tuple[int, ...]:
    """Returns the shape of LSE: [B,H,S], or [H,T] for packed rows."""
    sizes = sizes_of(spec, ops)
    return (sizes.hq, sizes.total_q) if spec.layout == "thd" else (sizes.b, sizes.hq, sizes.sq)


def result_dtype(spec: Spec, dtype: Any) -> Any:
    return jax.numpy.dtype("float32") if spec.wide and dtype.name in NARROW else dtype


def row_dtype(ops: Operands) -> Any:
    return jax.numpy.dtype("float64" if ops.q.dtype.name == "float64" else "float32")


def has_scalars(spec: Spec, ops: Operands) -> bool:
    """Returns True if the call has scalars (scale, params, seed), which engines read from device memory."""
    return bool(ops.scale or ops.params or ops.bprop_params or spec.flags & _abi.DROPOUT)


# ---- Problems --------------------------------------------------------------------------------------------------------

def _view(array: Any, name: str, dtype: Any = None) -> View:
    code = code_of(array, name) if dtype is None else code_of(jax.ShapeDtypeStruct((), dtype), name)
    strides, step = [], 1
    for size in reversed(array.shape):
        strides.append(step)
        step *= max(size, 1)
    return View(0, code, tuple(array.shape), tuple(reversed(strides)))


def problem_of(spec: Spec, ops: Operands, platform: str, *, lse: Optional[str] = None, want: Sequence[int] = (),
               dlse: bool = False, backward: bool = False) -> Problem:
    """Returns the Problem of a call; `ops` may be arrays or ShapeDtypeStructs. `lse`: the dtype of the LSE that is
    written (forward) or read (backward), None for no LSE. `want`: the gradients to compute, codes WANT_... ."""
    ops = jax.tree.map(known, ops)
    sizes = sizes_of(spec, ops)
    flags = spec.flags | (_abi.SCALARS_IN_MEMORY if has_scalars(spec, ops) else 0)
    if platform != "cpu":
        flags |= _abi.GRAPH_CAPTURE
        if ops.bprop_params:  # engines read params of a backward program on the host
            raise UnsupportedError("score_mod_bprop has params (%s) on %s; give them as arrays of rank 0, which the "
                                   "program declares as tensors" % (", ".join(p.name for p in spec.bprop_params()),
                                                                    platform))
    flags |= 0 if backward or lse is None else _abi.RETURN_LSE
    flags |= _abi.READ_DLSE if dlse else 0
    for one, flag in ((WANT_Q, _abi.GRAD_Q), (WANT_K, _abi.GRAD_K), (WANT_V, _abi.GRAD_V),
                      (WANT_SINK, _abi.GRAD_SINKS)):
        flags |= flag if one in want else 0
    problem = Problem(spec.program, bprop=spec.bprop if backward else None, backward=backward, flags=flags,
                      engine=spec.engine, window_left=spec.window[0], window_right=spec.window[1],
                      dropout_p=spec.dropout, global_q_len=spec.lengths[0], global_k_len=spec.lengths[1],
                      global_heads=spec.heads,
                      device=_abi.HOST if platform == "cpu" else _abi.CUDA, alignment=0 if platform == "cpu" else 16,
                      **sizes._asdict())
    _describe(problem, spec, ops, lse, dlse, want, backward)
    grads = [_view(x, "a captured array", result_dtype(spec, x.dtype)) if WANT_TENSORS + i in want else None
             for i, x in enumerate(ops.tensors)]
    problem.captures([_view(x, "a captured array") for x in ops.tensors], grads)
    if backward and spec.bprop is not None:
        problem.bprop_captures([_view(x, "a captured array") for x in ops.bprop_tensors])
    if WANT_PARAMS in want:
        problem.struct.param_grads = sum(1 << i for i, p in enumerate(spec.params()) if p.type == "float")
    for place in spec.maps:
        problem.index_map(**place._asdict())
    return problem


def _describe(problem: Problem, spec: Spec, ops: Operands, lse: Optional[str], dlse: bool, want: Sequence[int],
              backward: bool) -> None:
    """Sets storage types and layouts of all operands of `problem`. LSE and row maxima are [B,H,S] in every layout."""
    layout = LAYOUTS[spec.layout]
    wide = {name: result_dtype(spec, x.dtype) for name, x in (("q", ops.q), ("k", ops.k), ("v", ops.v))}
    dtypes: Dict[str, Any] = {"q": ops.q.dtype, "k": ops.k.dtype, "v": ops.v.dtype, "o": wide["q"]}
    if backward:
        dtypes.update(o=ops.q.dtype, dout=ops.q.dtype, dq=wide["q"], dk=wide["k"], dv=wide["v"])
    for name, dtype in dtypes.items():
        problem.operand(name, code_of(jax.ShapeDtypeStruct((), dtype), name))
        getattr(problem.struct, name).layout = layout
    if lse is not None:
        problem.operand("lse", {"float64": _abi.F64, "float32": _abi.F32}[lse])
    if dlse:
        problem.operand("dlse", code_of(jax.ShapeDtypeStruct((), row_dtype(ops)), "dlse"))
    if _abi.SLOT_SINKS in spec.slots:
        sink = ops.extras[spec.slots.index(_abi.SLOT_SINKS)]
        problem.operand("sinks", code_of(sink, "sinks"))
        problem.operand("dsinks", code_of(sink, "sinks"))


def check(spec: Spec, ops: Operands) -> None:
    """Raises an exception if no CPU engine supports the call. CPU engines support every valid problem, so check() finds
    invalid calls while they are traced, with the caller's line in the traceback."""
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ops.flat())
    _check(spec, bool(ops.scale), shapes)


@functools.lru_cache(maxsize=1024)
def _check(spec: Spec, has_scale: bool, shapes: Tuple[Any, ...]) -> None:
    ops = gather(spec, has_scale, shapes, True)
    verdicts = problem_of(spec.forward(), ops.forward(), "cpu", lse="float64").support()
    if not any(one.supported for one in verdicts):
        raise UnsupportedError("no engine can do this: %s" % "; ".join("%s: %s" % (v.engine, v.reason)
                                                                       for v in verdicts))
