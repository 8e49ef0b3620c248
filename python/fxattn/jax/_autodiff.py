# SPDX-License-Identifier: Apache-2.0
"""attend(): the primitives with their gradient, a custom_vjp over the Operands of a call.

Statistics are computed and kept only where something is differentiated, and only the gradients that somebody asked for
are computed: JAX says which operands are perturbed. What is kept has names for checkpoint policies (OUT_NAME,
STATS_NAME). In shard_map every operand is made to vary over the axes that any of them does, outside of the custom_vjp,
so that JAX itself sums the cotangents of what was replicated.
"""
import functools
from typing import Any, FrozenSet, List, Sequence, Tuple

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from .. import _abi
from ..trace.jaxprs import varying_axes
from ._primitives import backward, forward
from ._spec import (WANT_K, WANT_PARAMS, WANT_Q, WANT_SINK, WANT_TENSORS, WANT_V, Operands, Spec)

OUT_NAME, STATS_NAME = "fxattn_out", "fxattn_stats"


@jax.tree_util.register_static
class _Want(Tuple[int, ...]):
    """Which gradients are wanted: no array, so it travels beside the residuals."""


def attend(spec: Spec, ops: Operands, lse: bool = False) -> Tuple[Any, Any]:
    """out, and lse where it is asked for, else None."""
    return _attend(spec, lse, together(ops))


def together(ops: Any) -> Any:
    """Arrays of a shard_map as varying over all axes that one of them varies over."""
    leaves, tree = jax.tree.flatten(ops)  # type: Any, Any
    axes = [varying_axes(x) for x in leaves]
    union: FrozenSet[Any] = frozenset().union(*axes)
    if not union:
        return ops
    return tree.unflatten([x if mine == union else jax.lax.pcast(x, tuple(union - mine), to="varying")
                           for x, mine in zip(leaves, axes)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(spec: Spec, lse: bool, ops: Operands) -> Tuple[Any, Any]:
    out, *rest = forward(spec, ops, lse=lse)
    return out, rest[0] if lse else None


def _wanted(spec: Spec, perturbed: Operands) -> _Want:
    want = [one for one, on in zip((WANT_Q, WANT_K, WANT_V), perturbed[:3]) if on]
    if _abi.SLOT_SINK in spec.slots and perturbed.extras[spec.slots.index(_abi.SLOT_SINK)]:
        want.append(WANT_SINK)
    if any(on for on, p in zip(perturbed.params, spec.params()) if p.type == "float"):
        want.append(WANT_PARAMS)
    kinds = [c.dtype in ("f64", "f32", "f16", "bf16") for c in spec.captures()]
    return _Want([*want, *(WANT_TENSORS + i for i, on in enumerate(perturbed.tensors) if on and kinds[i])])


def _attend_forward(spec: Spec, lse: bool, given: Any) -> Any:
    ops, want = perturbed(spec, given)
    out, *rest = forward(spec, ops, lse=lse, stats=True)
    out, stats = checkpoint_name(out, OUT_NAME), checkpoint_name(rest[-1], STATS_NAME)
    return (out, rest[0] if lse else None), (want, ops, out, stats)


def perturbed(spec: Spec, given: Any) -> Tuple[Operands, _Want]:
    """The operands of a forward rule, and which gradients are wanted of them."""
    def is_one(x: Any) -> bool:
        return hasattr(x, "perturbed")
    return (jax.tree.map(lambda x: x.value, given, is_leaf=is_one),
            _wanted(spec, jax.tree.map(lambda x: x.perturbed, given, is_leaf=is_one)))


def given_gradients(out: Any, cotangents: Sequence[Any]) -> List[Any]:
    """dout and, where it is given, dlse; nothing where both are zero."""
    dout, dlse = (None if x is None or isinstance(x, SymbolicZero) else x for x in cotangents)
    if dout is None and dlse is None:
        return []
    return [jax.numpy.zeros_like(out) if dout is None else dout] + ([] if dlse is None else [dlse])


def _attend_backward(spec: Spec, lse: bool, kept: Any, cotangents: Any) -> Tuple[Any]:
    want, ops, out, stats = kept
    result, grads = jax.tree.map(lambda x: None, ops), given_gradients(out, cotangents)
    if not want or not grads:
        return (result,)
    found = dict(zip(want, backward(spec, ops, out, stats, grads, tuple(want))))
    return (placed(spec, ops, result, found),)


def placed(spec: Spec, ops: Operands, result: Operands, found: Any) -> Operands:
    """Gradients where their operands are."""
    extras, params = list(result.extras), list(result.params)
    if WANT_SINK in found:
        extras[spec.slots.index(_abi.SLOT_SINK)] = found[WANT_SINK]
    if WANT_PARAMS in found:
        floats = [i for i, p in enumerate(spec.params()) if p.type == "float"]
        for n, i in enumerate(floats):
            if jax.numpy.issubdtype(ops.params[i].dtype, jax.numpy.floating):
                params[i] = found[WANT_PARAMS][n].astype(ops.params[i].dtype)
    return result._replace(
        q=found.get(WANT_Q), k=found.get(WANT_K), v=found.get(WANT_V), extras=tuple(extras), params=tuple(params),
        tensors=tuple(found.get(WANT_TENSORS + i) for i in range(len(ops.tensors))))


_attend.defvjp(_attend_forward, _attend_backward, symbolic_zeros=True)
