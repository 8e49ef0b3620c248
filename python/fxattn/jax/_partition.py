# SPDX-License-Identifier: Apache-2.0
"""Partitioning of fxattn's JAX primitives over sharded arrays under jit: each device computes its part of the batch and
heads.

Each call is wrapped in a custom_partitioning, whose Shardy rule allows only batch and head dimensions to be sharded. On
every device, the score program must get the batch index b and the head h of the entire problem. A device gets b and h
of the entire problem by one of two methods, chosen for b and for h separately.
* If the program uses b (or h) only as a direct index of captured arrays (bias[b, h, q, k], slopes[h]), these arrays are
  sharded along the indexed dimension, and the indices of the device's part are correct.
* If the program uses b (or h) in other ways than as a direct index of captured arrays, captured arrays are replicated
  on every device, and the run gets the offset of the device's part.

Gradients of arrays that are replicated on several devices are summed over these devices (psum).

If there are fewer heads of k and v than devices, k and v are replicated on the devices, and each device slices the head
it needs. On a mesh with explicit axes, where shardings are known when a call is lowered, the call becomes a shard_map
in which each device computes its part.
"""
import functools
import math
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard

from .. import _abi
from ._spec import (WANT_K, WANT_PARAMS, WANT_Q, WANT_SINK, WANT_TENSORS, WANT_V, Map, Operands, Spec,
                    forward_rest, gather, is_symbolic, sizes_of)

Dims = Tuple[str, ...]  # a name for each dimension of an array; "b", "h" and "g" (heads of k and v) may be sharded
_BATCH_SLOTS = (_abi.SLOT_Q_LENGTHS, _abi.SLOT_K_LENGTHS, _abi.SLOT_Q_START)
_LAYOUT_DIMS = {"bshd": "bshd", "bhsd": "bhsd", "thd": "shd"}


# ---- Which axes index captured arrays --------------------------------------------------------------------------------

def _loads(text: str) -> List[Tuple[str, Tuple[str, ...]]]:
    """Returns (tensor name, index expressions) of each load in the canonical text of a program."""
    found = []
    for m in re.finditer(r"(\w+)\[", re.sub(r"(?m)^tensor .*$", "", text)):
        body, depth, at, parts = m.string, 1, m.end(), [""]
        while depth:
            c = body[at]
            depth += (c in "[(") - (c in "])")
            if c == "," and depth == 1:
                parts.append("")
            elif depth:
                parts[-1] += c
            at += 1
        found.append((m[1], tuple(part.strip() for part in parts)))
    return found


@functools.lru_cache(maxsize=512)
def _direct(program: Any, axis: str) -> Optional[Dict[str, int]]:
    """Returns {captured tensor: dimension that `axis` indexes} if the program uses `axis` ("b" or "h") only as an index
    of captured tensors, and if all loads of a tensor use `axis` as the index of the same dimension; else None."""
    if program is None:
        return {}
    text = program.text
    uses = len(re.findall(r"\b%s\b" % axis, re.sub(r"(?m)^(?:tensor|param) .*$", "", text)))
    places: Dict[str, Set[Optional[int]]] = {}
    for name, index in _loads(text):
        at = [i for i, part in enumerate(index) if part == axis]
        uses -= len(at)
        places.setdefault(name, set()).add(at[0] if len(at) == 1 else None if not at else -1)
    if uses or any(-1 in at or len(at) > 1 for at in places.values()):
        return None
    return {name: place for name, at in places.items() for place in at if place is not None}


def _follows(spec: Spec, axis: str, size: int, shapes: Operands) -> bool:
    if spec.flags & _abi.DROPOUT or any(one.axis == axis for one in spec.maps):
        return False
    for program, arrays in ((spec.program, shapes.tensors), (spec.bprop, shapes.bprop_tensors)):
        direct = _direct(program, axis)
        if direct is None or program is not None and any(
                x.shape[direct[c.name]] != size for c, x in zip(program.captures, arrays) if c.name in direct):
            return False
    return True


def _captured_dims(spec: Spec, bprop: bool, shapes: Operands, local_b: bool, local_h: bool, start: int) -> List[Dims]:
    program, arrays = (spec.bprop, shapes.bprop_tensors) if bprop else (spec.program, shapes.tensors)
    found = []
    for n, (capture, x) in enumerate(zip(program.captures if program is not None else (), arrays)):
        dims = ["x%d_%d" % (start + n, d) for d in range(len(x.shape))]
        for axis, on in (("b", local_b), ("h", local_h)):
            direct = _direct(program, axis) or {}
            if on and capture.name in direct:
                dims[direct[capture.name]] = axis
        found.append(tuple(dims))
    return found


def _operand_dims(spec: Spec, shapes: Operands, local_b: bool, local_h: bool) -> Operands:
    q = tuple(_LAYOUT_DIMS[spec.layout])
    k = tuple({"s": "t", "h": "g"}.get(c, c) for c in q)
    extras = []
    for n, (slot, x) in enumerate(zip(spec.slots, shapes.extras)):
        dims = tuple("y%d_%d" % (n, d) for d in range(len(x.shape)))
        extras.append(("b",) if slot in _BATCH_SLOTS else ("h",) if slot == _abi.SLOT_SINKS else dims)
    return Operands(q, k, (*k[:-1], "e"), tuple(_captured_dims(spec, False, shapes, local_b, local_h, 0)),
                    tuple(extras), ((),) * len(shapes.scale), ((),) * len(shapes.params),
                    tuple(_captured_dims(spec, True, shapes, local_b, local_h, 100)), ((),) * len(shapes.bprop_params))


def _rows(spec: Spec) -> Dims:
    return ("h", "s") if spec.layout == "thd" else ("b", "h", "s")


class _Call:
    """A call of a primitive with its global shapes. The attributes `dims` and `results` name the dimensions of the
    operands and of the results of the call."""

    def __init__(self, backward: bool, params: Dict[str, Any], flat: Sequence[Any]) -> None:
        self.backward, self.params = backward, params
        self.spec: Spec = params["spec"]
        n_rest = (4 if params["dlse"] else 3) if backward else forward_rest(self.spec)
        self.end = len(flat) - n_rest
        self.shapes = gather(self.spec, params["has_scale"], flat[:self.end], backward)
        self.sizes = sizes_of(self.spec, self.shapes)
        self.local_b = _follows(self.spec, "b", self.sizes.b, self.shapes)
        self.local_h = _follows(self.spec, "h", self.sizes.hq, self.shapes)
        named = _operand_dims(self.spec, self.shapes, self.local_b, self.local_h)
        out = (*named.q[:-1], "e")
        rows = _rows(self.spec)
        rest = [out, (*rows, "two"), out, rows][:n_rest]
        self.dims: List[Dims] = [named.q, named.k, named.v, *named.tensors, *named.extras, *named.scale, *named.params,
                                 *named.bprop_tensors, *named.bprop_params, *rest]
        self.results: List[Dims] = [out]
        if backward:
            self.results = [self._gradient(one, named) for one in params["want"]]
        else:
            self.results += [rows] * params["lse"] + [(*rows, "two")] * params["stats"]

    def _gradient(self, one: int, named: Operands) -> Dims:
        if one in (WANT_Q, WANT_K, WANT_V):
            return named[one]
        if one == WANT_SINK:
            return ("h",)
        return ("floats",) if one == WANT_PARAMS else named.tensors[one - WANT_TENSORS]

    def rule(self, mesh: Any, *types: Any) -> Tuple[str, Dict[str, Any]]:
        """Returns the sharding rule for Shardy, and its keyword arguments. Heads of q factor into heads of k times a
        group, which are sharded together; if the heads of k are not divisible by the size of a mesh axis, the heads of
        k are replicated."""
        group = self.sizes.hq // self.sizes.hkv
        whole = any(self.sizes.hkv % n for n in mesh.shape.values())
        heads = "h" if whole else "g" if group == 1 else "(g r)"

        def side(all_dims: Sequence[Dims]) -> str:
            return ", ".join(" ".join(heads if d == "h" else d for d in dims) for dims in all_dims)
        sides = side(self.dims), side(self.results)
        # The factors, distinct and in the order of appearance, as Shardy requires.
        factors = dict.fromkeys(re.findall(r"\w+", " ".join(sides)))
        sizes = {"r": group} if heads == "(g r)" else {}
        fixed = tuple(one for one in factors if one not in ("b", "h", "r") and (one != "g" or whole))
        return "%s -> %s" % sides, {"need_replication_factors": fixed, **sizes}

    # ---- The part of one device ------------------------------------------------------------------------------------

    def axes(self, shardings: Sequence[Tuple[Dims, Any]], mesh: Any) -> Tuple[Tuple[str, ...], Tuple[str, ...], bool]:
        """Returns the mesh axes of the batch, the mesh axes of the heads, and the bool `together`. The mesh axes of a
        dimension are those of the first array that is sharded along the dimension; empty if a size is not divisible by
        the number of devices. `together` is True if the heads of k and v are divisible by the number of devices, so
        that they are sharded together with the heads of q."""
        found: Dict[str, Tuple[str, ...]] = {}
        for dims, sharding in shardings:
            for dim, names in zip(dims, tuple(getattr(sharding, "spec", ()))):
                if dim in ("b", "h") and names:
                    found.setdefault(dim, names if isinstance(names, tuple) else (names,))
        b, h = found.get("b", ()), found.get("h", ())
        b = () if self.sizes.b % self._count(mesh, b) or set(b) & set(h) else b
        n = self._count(mesh, h)
        group = self.sizes.hq // self.sizes.hkv
        together = self.sizes.hkv % n == 0
        apart = self.sizes.hq % n == 0 and group % max(self.sizes.hq // n, 1) == 0
        return b, h if together or apart else (), together

    @staticmethod
    def _count(mesh: Any, names: Sequence[str]) -> int:
        return math.prod(mesh.shape[name] for name in names)

    def shardings(self, mesh: Any, all_dims: Sequence[Dims], b: Any, h: Any, together: bool) -> List[Any]:
        names = {"b": b, "h": h, "g": h if together else ()}
        return [NamedSharding(mesh, P(*[names.get(d) or None for d in dims])) for dims in all_dims]

    def local(self, run: Callable[..., Any], mesh: Any, b: Any, h: Any, together: bool) -> Callable[..., Any]:
        """Returns the function that one device runs on its part of the operands."""
        def lower(*flat: Any) -> Tuple[Any, ...]:
            spec = self._spec(b, h)
            ops = gather(self.spec, self.params["has_scale"], flat[:self.end], self.backward)
            group = self.sizes.hq // self.sizes.hkv
            head = None
            if h and not together:
                head = lax.axis_index(h) * (self.sizes.hq // self._count(mesh, h)) // group
                place = spec.layout.index("h")
                ops = ops._replace(k=lax.dynamic_slice_in_dim(ops.k, head, 1, place),
                                   v=lax.dynamic_slice_in_dim(ops.v, head, 1, place))
            for axis, names, size in (("b", b, self.sizes.b), ("h", h, self.sizes.hq)):
                slot = {"b": _abi.SLOT_OFFSET_B, "h": _abi.SLOT_OFFSET_H}[axis]
                if slot in spec.slots and slot not in self.spec.slots:
                    begin = lax.axis_index(names) * (size // self._count(mesh, names))
                    ops = ops._replace(extras=(*ops.extras, lax.reshape(lax.convert_element_type(begin, jnp.int32),
                                                                        (1,))))
            results = run(*ops.flat(), *flat[self.end:], **{**self.params, "spec": spec})
            return tuple(results if not self.backward else self._summed(results, b, h, together, head))
        return lower

    def _spec(self, b: Any, h: Any) -> Spec:
        spec = self.spec
        dropout = bool(spec.flags & _abi.DROPOUT)
        for axis, names, local in (("b", b, self.local_b), ("h", h, self.local_h)):
            if names and (dropout or not local and spec.reads(axis)):
                spec = spec._replace(slots=(*spec.slots, {"b": _abi.SLOT_OFFSET_B, "h": _abi.SLOT_OFFSET_H}[axis]),
                                     maps=(*spec.maps, Map(axis, offset=True)))
        return spec._replace(heads=spec.heads or (self.sizes.hq if h else 0), wide=spec.wide or self.backward)

    def _summed(self, results: Sequence[Any], b: Any, h: Any, together: bool, head: Any) -> List[Any]:
        """Returns the gradients of a backward call; gradients of replicated operands are summed over the devices."""
        found = []
        for one, dims, x in zip(self.params["want"], self.results, results):
            axes = tuple(name for axis, names in (("b", b), ("h", h)) for name in names
                         if axis not in dims and not (axis == "h" and "g" in dims and together))
            if head is not None and one in (WANT_K, WANT_V):
                place = self.spec.layout.index("h")
                shape = [*x.shape]
                shape[place] = self.sizes.hkv
                x = lax.dynamic_update_slice_in_dim(lax.full(tuple(shape), 0, x.dtype), x, head, place)
            x = lax.psum(x, axes) if axes else x
            found.append(lax.convert_element_type(x, self._dtype(one, x)))
        return found

    def _dtype(self, one: int, x: Any) -> Any:
        if self.spec.wide or one in (WANT_SINK, WANT_PARAMS):
            return x.dtype
        like = (self.shapes.q, self.shapes.k, self.shapes.v)[one] if one < WANT_SINK else \
            self.shapes.tensors[one - WANT_TENSORS]
        return like.dtype


def result_specs(backward: bool, params: Dict[str, Any], flat: Sequence[Any]) -> Optional[List[Any]]:
    """Returns the PartitionSpec of each result on a mesh with explicit axes: out and lse are sharded like q, a gradient
    like its operand. Returns None if no operand is sharded."""
    specs = [tuple(getattr(getattr(x, "sharding", None), "spec", ())) for x in flat]
    if not any(axes for spec in specs for axes in spec):
        return None
    call = _Call(backward, params, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat])
    if backward:
        of = gather(call.spec, params["has_scale"], specs[:call.end], True)
        sink = of.extras[call.spec.slots.index(_abi.SLOT_SINKS)] if _abi.SLOT_SINKS in call.spec.slots else ()
        known = {WANT_Q: of.q, WANT_K: of.k, WANT_V: of.v, WANT_SINK: sink, WANT_PARAMS: ()}
        return [P(*(of.tensors[one - WANT_TENSORS] if one >= WANT_TENSORS else known[one])) for one in params["want"]]
    of_q = dict(zip(call.dims[0], specs[0]))
    return [P(*[None if dim == "e" else of_q.get(dim) for dim in dims]) for dims in call.results]


def _explicit(flat: Sequence[Any]) -> bool:
    return any(axes for x in flat for axes in tuple(getattr(getattr(jax.typeof(x), "sharding", None), "spec", ())))


def _sharded(run: Callable[..., Any], backward: bool, flat: Sequence[Any], params: Dict[str, Any]) -> Any:
    """Returns run(*flat, **params) on a mesh with explicit axes: a shard_map in which each device computes its part. On
    a mesh with explicit axes a custom_partitioning does not work, because its partitions would also be traced with
    explicit axes."""
    types = [jax.typeof(x) for x in flat]
    call = _Call(backward, params, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in types])
    mesh = next(x.sharding.mesh for x in types if any(x.sharding.spec))
    b, h, together = call.axes([(dims, x.sharding) for dims, x in zip(call.dims, types)], mesh)
    given, made = ([one.spec for one in call.shardings(mesh, dims, b, h, together)]
                   for dims in (call.dims, call.results))
    found = jax.shard_map(call.local(run, mesh, b, h, together), mesh=mesh, in_specs=tuple(given),
                          out_specs=tuple(made), check_vma=False)(*[reshard(x, one) for x, one in zip(flat, given)])
    wanted = result_specs(backward, params, types) or made
    return tuple(reshard(x, one) for x, one in zip(found, wanted))


@functools.lru_cache(maxsize=512)
def _partitioned(run: Callable[..., Any], backward: bool, params: Tuple[Tuple[str, Any], ...],
                 shapes: Tuple[Any, ...]) -> Callable[..., Any]:
    call = _Call(backward, dict(params), shapes)

    @custom_partitioning
    def whole(*flat: Any) -> Tuple[Any, ...]:
        return tuple(run(*flat, **call.params))

    def partition(mesh: Any, given: Any, result: Any) -> Any:
        known = [(dims, x.sharding) for dims, x in zip((*call.results, *call.dims), (*jax.tree.leaves(result), *given))]
        b, h, together = call.axes(known, mesh)
        return (mesh, call.local(run, mesh, b, h, together),
                tuple(call.shardings(mesh, call.results, b, h, together)),
                tuple(call.shardings(mesh, call.dims, b, h, together)))
    whole.def_partition(partition, sharding_rule=call.rule)
    return whole


def partitioned(run: Callable[..., Any], backward: bool, *flat: Any, **params: Any) -> Any:
    """Returns run(*flat, **params), in which each device computes its part of sharded operands."""
    if any(is_symbolic(x.shape) for x in flat):  # runs on one device: divisibility of symbolic sizes is unknown
        return run(*flat, **params)
    if _explicit(flat):
        return _sharded(run, backward, flat, params)
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat)
    return _partitioned(run, backward, tuple(sorted(params.items(), key=lambda item: item[0])), shapes)(*flat)

