# SPDX-License-Identifier: Apache-2.0
"""The two JAX primitives of fxattn, fxattn_forward and fxattn_backward, and their lowering to calls of fxattn's XLA
handlers.

* `fxattn_forward` takes the operands of the call. With the flag ACCUMULATE_O, fxattn_forward also takes out and stats
  (LSE in f64) of an earlier run over other keys, and merges them into the results. The results of fxattn_forward are
  out; lse if `lse` is set; and the LSE in f64 if `stats` is set.
* `fxattn_backward` takes the operands of the call, out, stats (LSE in f64), dout, and dlse if `dlse` is set. The
  results of fxattn_backward are the gradients that its parameter `want` lists.

The array stats, the LSE in f64, is for the backward pass: gradients of programs with large slopes need LSE in f64
(docs/numerics.md). The array stats is stored as uint32 [..., 2], because f64 is disabled in JAX by default. The scalars
of a call (scale, params, seed) are passed as one f64 vector, which the lowering packs. The batching rules of fxattn's
primitives are in _batching.py, the sharding rules in _partition.py. fxattn_forward and fxattn_backward have no
derivative rules; attend() in _autodiff.py is differentiable.
"""
import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import jax
import numpy as np
from jax import lax
from jax._src import dispatch
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from .. import _abi
from .._errors import UnsupportedError
from . import _batching, _handlers
from ._linear import refuse
from ._partition import partitioned, result_specs
from ._spec import (BPROP_TENSORS, DPARAMS, ALIAS, SCALARS, TENSORS, WANT_K, WANT_PARAMS, WANT_Q, WANT_SINK,
                    WANT_TENSORS, WORKSPACE, Operands, Spec, forward_rest, gather, has_scalars, is_symbolic, problem_of,
                    result_dtype, row_dtype, rows_shape)

forward_p = core.Primitive("fxattn_forward")
backward_p = core.Primitive("fxattn_backward")
forward_p.multiple_results = backward_p.multiple_results = True
_SLOT_OF_WANT = {WANT_Q: _abi.SLOT_DQ, WANT_K: _abi.SLOT_DK, 2: _abi.SLOT_DV, WANT_SINK: _abi.SLOT_DSINKS}
_F64 = np.dtype("float64")


def forward(spec: Spec, ops: Operands, *before: Any, lse: bool = False, stats: bool = False) -> List[Any]:
    """Returns [out], followed by lse if `lse` is True, and by stats (LSE in f64) if `stats` is True. `before`: out and
    stats (LSE in f64) of an earlier run over other keys, which are merged into the results."""
    flat = ops.forward().flat()
    return forward_p.bind(*flat, *before, spec=spec.forward(), has_scale=bool(ops.scale), lse=lse, stats=stats)


def backward(spec: Spec, ops: Operands, out: Any, stats: Any, grads: Sequence[Any], want: Tuple[int, ...]) -> List[Any]:
    """Returns the gradients whose codes (WANT_Q, WANT_K, ...) are in `want`. The gradient of params is one vector with
    an element for each float param. `grads`: dout, and optionally dlse."""
    return backward_p.bind(*ops.flat(), out, stats, *grads, spec=spec, has_scale=bool(ops.scale), want=want,
                           dlse=len(grads) > 1)


# ---- Shapes of results -----------------------------------------------------------------------------------------------

Shape = Tuple[Tuple[int, ...], Any]  # (shape, dtype)


def _forward_shapes(spec: Spec, ops: Operands, lse: bool, stats: bool) -> List[Shape]:
    rows = rows_shape(spec, ops)
    found: List[Shape] = [((*ops.q.shape[:-1], ops.v.shape[-1]), result_dtype(spec, ops.q.dtype))]
    found += [(rows, row_dtype(ops))] if lse else []
    return found + ([((*rows, 2), np.dtype("uint32"))] if stats else [])


def _backward_shapes(spec: Spec, ops: Operands, want: Sequence[int]) -> List[Shape]:
    found: List[Shape] = []
    for one in want:
        if one == WANT_PARAMS:
            found.append(((sum(p.type == "float" for p in spec.params()),), row_dtype(ops)))
            continue
        like = ((ops.q, ops.k, ops.v)[one] if one < WANT_SINK else ops.tensors[one - WANT_TENSORS]
                if one >= WANT_TENSORS else ops.extras[spec.slots.index(_abi.SLOT_SINKS)])
        found.append((like.shape, like.dtype if one == WANT_SINK else result_dtype(spec, like.dtype)))
    return found


def _avals(like: Any, shapes: Sequence[Shape], specs: Optional[Sequence[Any]]) -> List[Any]:
    if specs is None:
        return [like.update(shape=shape, dtype=dtype, weak_type=False) for shape, dtype in shapes]
    return [like.update(shape=shape, dtype=dtype, weak_type=False, sharding=like.sharding.update(spec=spec))
            for (shape, dtype), spec in zip(shapes, specs)]


@forward_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _forward_abstract(*flat: Any, **params: Any) -> List[Any]:
    spec: Spec = params["spec"]
    ops = gather(spec, params["has_scale"], flat, False)
    return _avals(ops.q, _forward_shapes(spec, ops, params["lse"], params["stats"]), result_specs(False, params, flat))


@backward_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _backward_abstract(*flat: Any, **params: Any) -> List[Any]:
    spec: Spec = params["spec"]
    ops = gather(spec, params["has_scale"], flat, True)
    return _avals(ops.q, _backward_shapes(spec, ops, params["want"]), result_specs(True, params, flat))


# ---- Calls of the handlers -------------------------------------------------------------------------------------------

def _call(problem: Any, operands: List[Tuple[int, Any]], results: List[Tuple[int, Tuple[int, ...], Any]],
          packed: bool, before: Sequence[Any] = ()) -> List[Any]:
    """Calls fxattn's XLA handler with `operands`, a list of (role, array), where the role is the number of a C library
    input, or a code such as SCALARS. Returns the arrays that `results`, a list of (role, shape, dtype), describes.
    `before` has the initial contents of the results. With packed rows (`packed`), the initial contents of the results
    are zeros by default, because the library does not write rows outside of the sequences."""
    if packed and not before:
        before = [lax.full(shape, np.zeros((), dtype)) for _, shape, dtype in results]
    aliases = {len(operands) + i: i for i in range(len(before))}
    operands = [*operands, *((ALIAS, x) for x in before)]
    data, given = problem.save(), len(results)
    size = _handlers.workspace(data) if problem.struct.device == _abi.CUDA else 0
    # XLA allocates the workspace as a result, so the handler allocates nothing, and CUDA graphs can capture the call.
    if size:
        results = [*results, (WORKSPACE, (size,), np.dtype("uint8"))]
    more = {}
    if any(is_symbolic(x.shape) for _, x in operands):
        if problem.struct.device == _abi.CUDA:
            raise UnsupportedError("symbolic shapes (jax.export) for CUDA, where workspaces are part of a module; "
                                   "export for each shape, of ints")
        more["follow"] = np.array([problem.struct.q.layout], np.int64)
    run: Any = jax.ffi.ffi_call(_handlers.TARGET, [jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in results],
                                input_output_aliases=aliases, vmap_method="sequential")
    found = run(*[x for _, x in operands], problem=data, operands=np.array([role for role, _ in operands], np.int64),
                results=np.array([role for role, *_ in results], np.int64), **more)
    return list(found[:given])


def _common_operands(spec: Spec, ops: Operands) -> List[Tuple[int, Any]]:
    found = [(_abi.SLOT_Q, ops.q), (_abi.SLOT_K, ops.k), (_abi.SLOT_V, ops.v)]
    found += [(TENSORS + i, x) for i, x in enumerate(ops.tensors)]
    found += [(BPROP_TENSORS + i, x) for i, x in enumerate(ops.bprop_tensors)]
    found += list(zip(spec.slots, ops.extras))
    if has_scalars(spec, ops):
        numbers = [*(ops.scale or [np.float64("nan")]), *ops.params, *ops.bprop_params]
        rows = [lax.reshape(lax.convert_element_type(x, _F64), (1,)) for x in numbers]
        found.append((SCALARS, lax.concatenate(rows, 0)))
    return found


def forward_call(platform: str, spec: Spec, ops: Operands, before: Sequence[Any], lse: bool, stats: bool) -> List[Any]:
    """Returns [out, lse, stats] of a call of fxattn's XLA handler for `platform`, where stats is the LSE in f64. The
    result has lse only if the argument `lse` is True, and stats only if `stats` is True. forward_call() requires JAX's
    x64 mode."""
    shapes = _forward_shapes(spec, ops, lse, stats)
    rows = rows_shape(spec, ops)
    kept = _F64 if stats else row_dtype(ops)
    words = stats and is_symbolic(rows)
    held = ((*rows, 2), np.dtype("uint32")) if words else (rows, kept)
    results = [(_abi.SLOT_O, *shapes[0])] + ([(_abi.SLOT_LSE, *held)] if lse or stats else [])
    problem = problem_of(spec, ops, platform, lse=kept.name if lse or stats else None)
    joined = [before[0], lax.bitcast_convert_type(before[1], _F64)] if before else ()
    found = _call(problem, _common_operands(spec, ops), results, spec.layout == "thd", joined)
    out = [found[0]]
    if lse:
        out.append(lax.convert_element_type(_of_words(found[1]) if words else found[1], row_dtype(ops)))
    return out + ([found[1] if words else lax.bitcast_convert_type(found[1], np.uint32)] if stats else [])


def _of_words(pairs: Any) -> Any:
    """Returns f64 values from uint32 pairs [..., 2]. For symbolic shapes XLA does not support the bitcast [..., 2] ->
    [...], so the two 32-bit words of an f64 value are joined by a shift."""
    low, high = (lax.convert_element_type(lax.index_in_dim(pairs, i, pairs.ndim - 1, False), np.uint64) for i in (0, 1))
    return lax.bitcast_convert_type(lax.bitwise_or(lax.shift_left(high, lax.full_like(high, 32)), low), _F64)


def backward_call(platform: str, spec: Spec, ops: Operands, rest: Sequence[Any], want: Tuple[int, ...],
                  dlse: bool) -> List[Any]:
    out, stats, *grads = rest
    operands = [*_common_operands(spec, ops), (_abi.SLOT_O, out),
                (_abi.SLOT_LSE, stats if is_symbolic(stats.shape) else lax.bitcast_convert_type(stats, _F64)),
                (_abi.SLOT_DO, grads[0])]
    operands += [(_abi.SLOT_DLSE, grads[1])] if dlse else []
    results: List[Tuple[int, Tuple[int, ...], Any]] = []
    for one, (shape, dtype) in zip(want, _backward_shapes(spec, ops, want)):
        if one == WANT_PARAMS:
            results.append((DPARAMS, (len(spec.params()),), _F64))
        else:
            results.append((_SLOT_OF_WANT.get(one, TENSORS + one - WANT_TENSORS), shape, dtype))
    problem = problem_of(spec, ops, platform, lse="float64", want=want, dlse=dlse, backward=True)
    found = _call(problem, operands, results, spec.layout == "thd")
    for i, one in enumerate(want):
        if one == WANT_PARAMS:
            floats = [n for n, p in enumerate(spec.params()) if p.type == "float"]
            vector = lax.concatenate([lax.slice(found[i], (n,), (n + 1,)) for n in floats], 0)
            found[i] = lax.convert_element_type(vector, row_dtype(ops))
    return found


def local_forward(platform: str, *flat: Any, spec: Spec, has_scale: bool, lse: bool, stats: bool) -> List[Any]:
    end = len(flat) - forward_rest(spec)
    with jax.enable_x64(True):
        return forward_call(platform, spec, gather(spec, has_scale, flat[:end], False), flat[end:], lse, stats)


def local_backward(platform: str, *flat: Any, spec: Spec, has_scale: bool, want: Tuple[int, ...],
                   dlse: bool) -> List[Any]:
    end = len(flat) - (4 if dlse else 3)
    with jax.enable_x64(True):
        ops = gather(spec, has_scale, flat[:end], True)
        return backward_call(platform, spec, ops, flat[end:], want, dlse)


# ---- Rules -----------------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=1024)
def _jitted(primitive: Any, params: Tuple[Tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(functools.partial(primitive.bind, **dict(params)))


def _eager(primitive: Any) -> Callable[..., Any]:
    def run(*flat: Any, **params: Any) -> Any:
        with jax.disable_jit(False):  # a primitive is compiled even under disable_jit
            return _jitted(primitive, tuple(sorted(params.items(), key=lambda item: item[0])))(*flat)
    return run


forward_p.def_impl(_eager(forward_p))
backward_p.def_impl(_eager(backward_p))
for _primitive in (forward_p, backward_p):
    ad.primitive_jvps[_primitive] = refuse(
        "fxattn has no second derivative (jax.hessian, a gradient penalty): attention is differentiated once, in "
        "reverse (jax.grad, jax.vjp, jax.jacrev). Compute that part with plain JAX operations, or stop the gradient "
        "of the first one")
batching.fancy_primitive_batchers[forward_p] = functools.partial(_batching.forward_rule, forward_p)
batching.fancy_primitive_batchers[backward_p] = functools.partial(_batching.backward_rule, backward_p)


def _lowering(run: Callable[..., Any], is_backward: bool) -> Callable[..., Any]:
    spread = mlir.lower_fun(functools.partial(partitioned, run, is_backward), True)

    def rule(ctx: Any, *flat: Any, **params: Any) -> Any:
        with jax.enable_x64(True):
            return spread(ctx, *flat, **params)
    return rule


for _primitive, _run in ((forward_p, local_forward), (backward_p, local_backward)):
    mlir.register_lowering(_primitive, refuse(
        "fxattn has engines for cpu and cuda, and no other platform of JAX; jax.nn.dot_product_attention runs there, "
        "and arrays on jax.devices(\"cpu\") are computed here"))
    for _platform in ("cpu", "cuda"):
        mlir.register_lowering(_primitive, _lowering(functools.partial(_run, _platform), _primitive is backward_p),
                               platform=_platform)
# Lowering a custom_partitioning requires the devices. JAX provides them only for primitives in this set.
dispatch.prim_requires_devices_during_lowering.update((forward_p, backward_p))
