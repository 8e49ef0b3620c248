# SPDX-License-Identifier: Apache-2.0
"""Derivatives by JAX's own rules: for jax.custom_jvp and custom_vjp (the user's and those inside jax.nn and jax.scipy),
and for primitives whose derivative at a corner differs from the derivative of the operations recorded here.

JAX computes the tangent of an equation as a jaxpr, which is linear in the tangents of the operands. The jaxpr of the
tangent is evaluated on two copies of the operands: copies with stopped gradients serve as primal values, and unchanged
copies serve as tangents. Because only the tangents have gradients, the gradient of the evaluated jaxpr is the gradient
that JAX's rule defines. The operation with_grad combines the value of an equation with the gradient that JAX's rule
defines. JAX obtains the tangent of a custom_vjp by transposing its backward function, which must be linear in the
incoming gradient.
"""
import sys
from typing import Any, Callable, List, Sequence

from .. import _abi
from .arrays import Vec, View, elementwise
from .libraries import library_of
from .place import TraceError, refuse
from .record import Recording
from .symbol import Sym
from .types import FLOAT

BY_TANGENT = frozenset("custom_jvp_call abs cbrt clamp reduce_max reduce_min cummax cummin".split())
BY_COTANGENT = frozenset("custom_vjp_call custom_vjp_call_jaxpr".split())
RULED = BY_TANGENT | BY_COTANGENT
_REMEDY = ("a gradient that no slope describes belongs into score_mod_bprop, beside program text or "
           "score_mod(graph, score, tensors)")


def with_grad(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns a Sym with the value of x and the gradient of y."""
    return Sym(rec, rec.emit(_abi.OP_WITH_GRAD, x.node, y.node), FLOAT)


def stop(rec: Recording, x: Any) -> Any:
    """Returns a scalar with its gradient stopped; ints and bools have no gradient and are returned unchanged."""
    return x if type(x) is not Sym or x.ty != FLOAT else Sym(
        rec, rec.emit(_abi.OP_WITH_GRAD, x.node, rec.constant(0.0)), FLOAT)


def stopped(rec: Recording, x: Any) -> Any:
    """Returns an operand with its gradient stopped; for an array of JAX, calls lax.stop_gradient."""
    if type(x) in (Sym, Vec):
        return elementwise(stop, rec, [x])
    if type(x) is View:
        return View(rec, stopped(rec, x.base), x.fixed)
    return sys.modules["jax"].lax.stop_gradient(x) if library_of(x) == "jax" else x


def with_rule(player: Any, equation: Any, operands: Sequence[Any], results: Sequence[Any]) -> List[Any]:
    """Returns the results of an equation, with the gradients that JAX's rule defines."""
    traced = [isinstance(x, (Sym, Vec, View)) or library_of(x) == "jax" for x in operands]
    moving = [i for i, atom in enumerate(equation.invars) if traced[i] and _is_float(atom.aval)]
    floats = [i for i, atom in enumerate(equation.outvars) if _is_float(atom.aval)]
    if not moving or not floats:
        return list(results)
    closed = _tangent(equation, moving, floats)
    still = [stopped(player.rec, x) for x in operands]
    try:
        slopes = player.along(closed, [*still, *(operands[i] for i in moving)])
    except TraceError as error:
        raise TraceError("the derivative rule of %s: %s" % (_name(equation), error)) from None
    found = list(results)
    for i, slope in zip(floats, slopes):
        found[i] = player.apply(with_grad, [results[i], slope])
    return found


def _is_float(aval: Any) -> bool:
    jax = sys.modules["jax"]
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.numpy.floating))


def _name(equation: Any) -> str:
    inner = equation.params.get("call_jaxpr") or equation.params.get("fun_jaxpr")
    info = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
    own = str(getattr(info, "func_src_info", "")).partition(" at ")[0]
    return "%s (%s)" % (own, equation.primitive.name) if own else str(equation.primitive.name)


def _tangent(equation: Any, moving: Sequence[int], floats: Sequence[int]) -> Any:
    """Returns the jaxpr of the tangents of an equation. The inputs of the jaxpr are all operands, then the tangents of
    the operands with the indices `moving`; the outputs are the tangents of the results with the indices `floats`."""
    jax = sys.modules["jax"]
    shapes = [_shape(jax, atom.aval) for atom in equation.invars]

    def run(*inputs: Any) -> Any:
        given = list(inputs[:len(shapes)])

        def call(*moved: Any) -> Any:
            for i, x in zip(moving, moved):
                given[i] = x
            results = bound(equation, given)
            return [results[i] for i in floats]
        points, tangents = [given[i] for i in moving], inputs[len(shapes):]
        if equation.primitive.name in BY_TANGENT:
            return jax.jvp(call, points, list(tangents))[1]
        out, back = jax.vjp(call, *points)
        return jax.linear_transpose(back, out)(tuple(tangents))[0]
    try:
        return jax.make_jaxpr(run)(*shapes, *(shapes[i] for i in moving))
    except NotImplementedError as error:
        refuse("the backward of %s is not linear in the gradient that it is given (%s); %s"
               % (_name(equation), error, _REMEDY))


def _shape(jax: Any, aval: Any) -> Any:
    axes = getattr(aval, "vma", None)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, **({"vma": axes} if axes else {}))


def bound(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Returns the results of an equation of a jaxpr on arrays, computed by JAX."""
    found = equation.primitive.get_bind_params(equation.params)
    subfuns, params = found if isinstance(found, tuple) else ((), found)
    results = equation.primitive.bind(*subfuns, *operands, **params)
    return results if equation.primitive.multiple_results else [results]
