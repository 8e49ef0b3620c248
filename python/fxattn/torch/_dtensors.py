# SPDX-License-Identifier: Apache-2.0
"""Sequences as DTensors of torch.distributed.tensor, for ring_attention: their local parts, and results as DTensors.
Everywhere else they are refused, in words.

A DTensor knows its group and how it lies there: along the sequence, in contiguous pieces.
"""
import sys
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from torch import Size, Tensor

from .._errors import ArgumentError, ArgumentTypeError

SEQUENCE = 2  # dimension of [B,H,S,D] and [B,H,S]


class Spread(NamedTuple):
    """Where DTensors lie: the mesh, and sizes of the whole result."""

    mesh: Any
    placements: Tuple[Any, ...]
    sizes: Tuple[int, ...]

    def whole(self, local: Tensor) -> Any:
        """A result of this process as a part of a DTensor."""
        from torch.distributed.tensor import DTensor
        size, stride = list(self.sizes[:local.dim()]), [1] * local.dim()
        for i in range(local.dim() - 1, 0, -1):
            stride[i - 1] = stride[i] * size[i]
        return DTensor.from_local(local.contiguous(), self.mesh, self.placements, run_check=False, shape=Size(size),
                                  stride=tuple(stride))


def is_dtensor(x: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def refuse_dtensors(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """An operator takes tensors of one process."""
    for name, x in zip(names, tensors):
        if is_dtensor(x):
            raise ArgumentTypeError(
                "%s is a DTensor with placements %s; give local parts (to_local()) where batch or heads are sharded, "
                "whose b and h count from 0 on each process, and ring_attention where the sequence is"
                % (name, tuple(map(str, x.placements))))


def group_of(tensors: Sequence[Any], group: Any) -> Any:
    """The group that processes talk in: that of a mesh where there is one."""
    meshes = [x.device_mesh for x in tensors if is_dtensor(x) and x.device_mesh.ndim == 1]
    return meshes[0].get_group() if meshes and group is None else group


def local_parts(tensors: Sequence[Any], order: str, group: Any) -> Tuple[List[Tensor], Optional[Spread]]:
    """q, k and v of this process, and how they are spread; other tensors as they are."""
    spread = [is_dtensor(x) for x in tensors]
    if not any(spread):
        return list(tensors), None
    if not all(spread):
        raise ArgumentError("of q, k and v some are DTensors and some are not; give all as DTensors, or parts of each")
    mesh, placements = tensors[0].device_mesh, tensors[0].placements
    for name, x in zip("qkv", tensors):
        if x.device_mesh.ndim != 1 or not x.placements[0].is_shard(SEQUENCE):
            raise ArgumentError("%s is a DTensor with placements %s on a mesh of %d dimensions; Shard(%d), the "
                                "sequence, on a mesh of one dimension is accepted"
                                % (name, tuple(map(str, x.placements)), x.device_mesh.ndim, SEQUENCE))
        if x.device_mesh != mesh:
            raise ArgumentError("q and %s are DTensors on different meshes" % name)
    if order != "contiguous" or group is not None:
        raise ArgumentError("order is %r and group is %s beside DTensors, which are contiguous on their mesh's group"
                            % (order, "None" if group is None else "given"))
    q, _, v = tensors
    sizes = (*q.shape[:3], *v.shape[3:])
    return [x.to_local() for x in tensors], Spread(mesh, placements, sizes)
