# SPDX-License-Identifier: Apache-2.0
"""A linear primitive whose transpose is a backward pass, for functions that have a reverse mode only.

The rule of a jax.custom_jvp function computes the results of the function, and calls tangents_of() for their tangents.
In reverse mode, JAX transposes the linear primitive that computes the tangents, and the transpose runs the backward
pass. Unlike a custom_vjp function, a function whose tangents come from tangents_of() can be traced in a shard_map
without jit, and its forward-mode differentiation raises an error with a message of fxattn. Under vmap, JAX maps run(),
the backward pass that the linear primitive calls, over the batch axis. The parameters of the linear primitive are
hashable and compared by content, so that JAX can use the parameters as keys of its caches.
"""
import dataclasses
from typing import Any, Callable, List, Sequence, Tuple

import jax
from jax import lax
from jax._src import core as core_types
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from .._errors import UnsupportedError
from ._batching import is_unmapped, unmapped

linear_p = core.Primitive("fxattn_linear")
linear_p.multiple_results = True
FORWARD_MODE = ("fxattn has no forward mode (jax.jvp, jax.jacfwd, jax.linearize, the outer half of jax.hessian): "
                "attention is differentiated in reverse (jax.grad, jax.vjp, jax.jacrev), once")


@dataclasses.dataclass(frozen=True)
class _Backward:
    """A backward pass: calls run(static, residuals, cotangents), which returns gradients. A cotangent that is zero is
    passed to run() as None."""

    run: Callable[..., Sequence[Any]]
    static: Any
    tree: Any

    def __call__(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        return self.run(self.static, self.tree.unflatten(kept), cotangents)


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """The backward pass `inner` mapped by vmap over `size` entries; `dims` are the mapped axes of its residuals."""

    inner: Callable[..., Sequence[Any]]
    size: int
    dims: Tuple[Any, ...]

    def __call__(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        mapped = jax.vmap(self.inner, in_axes=(list(self.dims), 0), axis_size=self.size)
        return mapped(list(kept), list(cotangents))  # type: ignore[no-any-return]


def tangents_of(run: Callable[..., Sequence[Any]], static: Any, kept: Any, tangents: Sequence[Any],
                results: Sequence[Any]) -> List[Any]:
    """Returns the tangents of `results`. `tangents` are the tangents of the differentiated operands. When JAX
    transposes the tangents, run(static, kept, cotangents) computes the gradients of the differentiated operands in the
    order of `tangents`."""
    leaves, tree = jax.tree.flatten(kept)
    return linear_p.bind(*leaves, *tangents, backward=_Backward(run, static, tree), count=len(leaves),
                         types=tuple(jax.typeof(x).to_tangent_aval() for x in results))


@linear_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _abstract(*operands: Any, types: Any, **params: Any) -> List[Any]:
    return list(types)


def _transpose(cotangents: Sequence[Any], *operands: Any, backward: Any, count: int, types: Any) -> List[Any]:
    given = [None if type(x) is ad.Zero else x for x in cotangents]
    if all(x is None for x in given):
        return [None] * len(operands)
    return [None] * count + list(backward(operands[:count], given))


def _batched(axis: Any, operands: Sequence[Any], dims: Sequence[Any], *, backward: Any, count: int, types: Any) -> Any:
    if is_unmapped(dims):
        return unmapped(linear_p, operands, dict(backward=backward, count=count, types=types))

    def front(x: Any, dim: Any) -> Any:
        if dim is None:
            return lax.broadcast(x, (axis.size,))
        return lax.transpose(x, (dim, *[i for i in range(x.ndim) if i != dim]))
    tangents = [front(x, dim) for x, dim in zip(operands[count:], dims[count:])]
    mapped = _Mapped(backward, axis.size, tuple(dims[:count]))
    wider = tuple(core_types.unmapped_aval(axis.size, 0, one, axis.explicit_mesh_axis) for one in types)
    return linear_p.bind(*operands[:count], *tangents, backward=mapped, count=count, types=wider), [0] * len(types)


def refuse(text: str) -> Callable[..., Any]:
    def rule(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(text)
    return rule


linear_p.def_impl(refuse(FORWARD_MODE))
mlir.register_lowering(linear_p, refuse(FORWARD_MODE))
ad.primitive_jvps[linear_p] = refuse(FORWARD_MODE)
ad.primitive_transposes[linear_p] = _transpose
batching.fancy_primitive_batchers[linear_p] = _batched
