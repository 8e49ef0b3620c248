# SPDX-License-Identifier: Apache-2.0
"""attend(): a differentiable call of the forward primitive. attend() is a custom_jvp function whose tangents come from
a linear primitive (_linear.py); transposing this primitive runs the backward pass.

The LSE of the rows is computed and saved only if an operand is differentiated, and the backward pass computes the
gradients of differentiated operands only. Arrays that are saved for the backward pass have names (OUT_NAME,
STATS_NAME), by which checkpoint policies of JAX can select them. In a shard_map, together() first makes all operands
vary over the union of their mesh axes, so that JAX itself sums the cotangents of operands that are replicated.
"""
import functools
from typing import Any, Callable, FrozenSet, List, Mapping, Sequence, Tuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from .. import _abi
from ..trace.jaxprs import varying_axes
from ._linear import tangents_of
from ._primitives import backward, forward
from ._spec import (WANT_K, WANT_PARAMS, WANT_Q, WANT_SINK, WANT_TENSORS, WANT_V, Operands, Spec)

OUT_NAME, STATS_NAME = "fxattn_out", "fxattn_stats"
Keys = Tuple[int, ...]  # differentiated operands: a code WANT_..., or _PARAM - i for param i
_PARAM = -1


def attend(spec: Spec, ops: Operands, lse: bool = False) -> Tuple[Any, Any]:
    """Returns (out, lse) of a call. lse is None unless the argument `lse` is True."""
    return _attend(spec, lse, together(ops))


def together(ops: Any) -> Any:
    """Returns the pytree `ops` with all its arrays cast to vary over the union of their mesh axes; outside of a
    shard_map, returns `ops` itself."""
    leaves, tree = jax.tree.flatten(ops)  # type: Any, Any
    axes = [varying_axes(x) for x in leaves]
    union: FrozenSet[Any] = frozenset().union(*axes)
    if not union:
        return ops
    return tree.unflatten([x if mine == union else jax.lax.pcast(x, tuple(union - mine), to="varying")
                           for x, mine in zip(leaves, axes)])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _attend(spec: Spec, lse: bool, ops: Operands) -> Tuple[Any, Any]:
    out, *rest = forward(spec, ops, lse=lse)
    return out, rest[0] if lse else None


def _attend_rule(spec: Spec, lse: bool, given: Tuple[Operands], tangents: Tuple[Operands]) -> Any:
    (ops,) = given
    out, *rest = forward(spec, ops, lse=lse, stats=True)
    out, stats = checkpoint_name(out, OUT_NAME), checkpoint_name(rest[-1], STATS_NAME)
    return differentiated(_attend_backward, spec, spec, (ops, out, stats), tangents[0], (out, rest[0] if lse else None))


def _attend_backward(static: Tuple[Spec, Keys], kept: Any, cotangents: Sequence[Any]) -> List[Any]:
    (spec, keys), (ops, out, stats), want = static, kept, wanted(static[1])
    grads = given_gradients(out, cotangents)
    return gradients(spec, ops, keys, dict(zip(want, backward(spec, ops, out, stats, grads, want))))


_attend.defjvp(_attend_rule, symbolic_zeros=True)


# ---- Functions that ring_attention() uses too ------------------------------------------------------------------------

def differentiated(run: Callable[..., Any], static: Any, spec: Spec, kept: Any, tangents: Operands,
                   results: Tuple[Any, Any]) -> Any:
    """Returns the result of a custom_jvp rule: `results`, which are (out, lse or None), and their tangents. When JAX
    transposes the tangents, run((static, keys), kept, cotangents) computes the gradients of the differentiated
    operands, whose codes (WANT_Q, WANT_K, ...) are in the tuple keys.
    `kept`: the arrays that are saved for the backward pass. `tangents`: the tangents of the operands, which decide
    which operands are differentiated."""
    moved = [(key, x) for key, x in _differentiable(spec, tangents) if not isinstance(x, SymbolicZero)]
    there = [x for x in results if x is not None]
    if moved:
        found = tangents_of(run, (static, tuple(key for key, _ in moved)), kept, [x for _, x in moved], there)
    else:
        found = [SymbolicZero.from_primal_value(x) for x in there]
    return results, (found[0], None if results[1] is None else found[1])


def _differentiable(spec: Spec, ops: Operands) -> List[Tuple[int, Any]]:
    """Returns (key, operand) of each operand that can have a gradient, in the order of the backward primitive."""
    found = list(zip((WANT_Q, WANT_K, WANT_V), ops[:3]))
    if _abi.SLOT_SINKS in spec.slots:
        found.append((WANT_SINK, ops.extras[spec.slots.index(_abi.SLOT_SINKS)]))
    found += [(_PARAM - i, x) for i, (p, x) in enumerate(zip(spec.params(), ops.params)) if p.type == "float"]
    return found + [(WANT_TENSORS + i, x) for i, (c, x) in enumerate(zip(spec.captures(), ops.tensors))
                    if c.dtype in ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")]


def wanted(keys: Keys) -> Tuple[int, ...]:
    """Returns the codes (WANT_Q, WANT_K, ...) of the gradients that the backward primitive computes for the operands
    `keys`, without duplicates."""
    return tuple(dict.fromkeys(WANT_PARAMS if key <= _PARAM else key for key in keys))


def given_gradients(out: Any, cotangents: Sequence[Any]) -> List[Any]:
    """Returns [dout], or [dout, dlse] if lse has a cotangent. If out has no cotangent, dout is an array of zeros like
    `out`."""
    dout, dlse = (*cotangents, None)[:2]
    return [jnp.zeros_like(out) if dout is None else dout] + ([] if dlse is None else [dlse])


def gradients(spec: Spec, ops: Operands, keys: Keys, found: Mapping[int, Any]) -> List[Any]:
    """Returns the gradients of the operands `keys`, each in the dtype of its operand. `found` has the results of the
    backward primitive by code (WANT_Q, WANT_K, ...)."""
    floats = [i for i, p in enumerate(spec.params()) if p.type == "float"]
    operands = dict(_differentiable(spec, ops))
    made = [found[WANT_PARAMS][floats.index(_PARAM - key)] if key <= _PARAM else found[key] for key in keys]
    return [x.astype(operands[key].dtype) for key, x in zip(keys, made)]
