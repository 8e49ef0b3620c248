# SPDX-License-Identifier: Apache-2.0
"""attend(): the primitives with their gradient, over the Operands of a call: a custom_jvp for the results, whose linear
half is the backward pass (_linear.py).

Statistics are computed and kept only where something is differentiated, and only the gradients that somebody asked for
are computed: JAX says which operands are perturbed. What is kept has names for checkpoint policies (OUT_NAME,
STATS_NAME). In shard_map every operand is made to vary over the axes that any of them does, outside of the rule, so
that JAX itself sums the cotangents of what was replicated.
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
Keys = Tuple[int, ...]  # of operands that are differentiated: WANT_Q and so on, and _PARAM - i of a param
_PARAM = -1


def attend(spec: Spec, ops: Operands, lse: bool = False) -> Tuple[Any, Any]:
    """Returns out, and lse where it is wanted, else None."""
    return _attend(spec, lse, together(ops))


def together(ops: Any) -> Any:
    """Returns arrays of a shard_map as varying over all axes that one of them varies over."""
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


# ---- What the ring has in common with it -----------------------------------------------------------------------------

def differentiated(run: Callable[..., Any], static: Any, spec: Spec, kept: Any, tangents: Operands,
                   results: Tuple[Any, Any]) -> Any:
    """Returns the results of a custom_jvp rule: out and lse or None, and their tangents, whose transpose is
    `run`((static, keys), kept, cotangents), the gradients of the keys."""
    moved = [(key, x) for key, x in _differentiable(spec, tangents) if not isinstance(x, SymbolicZero)]
    there = [x for x in results if x is not None]
    if moved:
        found = tangents_of(run, (static, tuple(key for key, _ in moved)), kept, [x for _, x in moved], there)
    else:
        found = [SymbolicZero.from_primal_value(x) for x in there]
    return results, (found[0], None if results[1] is None else found[1])


def _differentiable(spec: Spec, ops: Operands) -> List[Tuple[int, Any]]:
    """Returns the operands that have gradients, by key, in the order of the backward primitive."""
    found = list(zip((WANT_Q, WANT_K, WANT_V), ops[:3]))
    if _abi.SLOT_SINKS in spec.slots:
        found.append((WANT_SINK, ops.extras[spec.slots.index(_abi.SLOT_SINKS)]))
    found += [(_PARAM - i, x) for i, (p, x) in enumerate(zip(spec.params(), ops.params)) if p.type == "float"]
    return found + [(WANT_TENSORS + i, x) for i, (c, x) in enumerate(zip(spec.captures(), ops.tensors))
                    if c.dtype in ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")]


def wanted(keys: Keys) -> Tuple[int, ...]:
    """Returns the gradients that the backward primitive computes."""
    return tuple(dict.fromkeys(WANT_PARAMS if key <= _PARAM else key for key in keys))


def given_gradients(out: Any, cotangents: Sequence[Any]) -> List[Any]:
    """Returns dout and, where it is given, dlse."""
    dout, dlse = (*cotangents, None)[:2]
    return [jnp.zeros_like(out) if dout is None else dout] + ([] if dlse is None else [dlse])


def gradients(spec: Spec, ops: Operands, keys: Keys, found: Mapping[int, Any]) -> List[Any]:
    """Returns the results of the backward primitive by key, in the types of the operands."""
    floats = [i for i, p in enumerate(spec.params()) if p.type == "float"]
    operands = dict(_differentiable(spec, ops))
    made = [found[WANT_PARAMS][floats.index(_PARAM - key)] if key <= _PARAM else found[key] for key in keys]
    return [x.astype(operands[key].dtype) for key, x in zip(keys, made)]
