# SPDX-License-Identifier: Apache-2.0
"""DTensors (torch.distributed.tensor) in ring_attention: converts arguments to their local parts, and results to
DTensors. All functions of fxattn.torch but ring_attention refuse DTensors with an error.

A DTensor specifies its process group and its sharding, which must be contiguous along the sequence.
"""
import sys
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from torch import Size, Tensor

from .._errors import ArgumentError, ArgumentTypeError

SEQUENCE = 2  # index of the sequence dimension in [B,H,S,D] and [B,H,S]


class Sharding(NamedTuple):
    """The sharding of q, k and v: mesh and placements of the DTensors, and the sizes of the entire result."""

    mesh: Any
    placements: Tuple[Any, ...]
    sizes: Tuple[int, ...]

    def dtensor_of(self, local: Tensor) -> Any:
        """Returns the DTensor of which `local` is this process's part."""
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
    """Raises ArgumentTypeError if one of `tensors` is a DTensor, because operators take tensors of one process."""
    for name, x in zip(names, tensors):
        if is_dtensor(x):
            raise ArgumentTypeError(
                "%s is a DTensor with placements %s; give local parts (to_local()) where batch or heads are sharded, "
                "whose b and h count from 0 on each process, and ring_attention where the sequence is"
                % (name, tuple(map(str, x.placements))))


def group_of(tensors: Sequence[Any], group: Any) -> Any:
    """Returns the process group of a call: `group`, or the group of the DTensors' mesh if `group` is None."""
    meshes = [x.device_mesh for x in tensors if is_dtensor(x) and x.device_mesh.ndim == 1]
    return meshes[0].get_group() if meshes and group is None else group


def local_parts(tensors: Sequence[Any], order: str, group: Any) -> Tuple[List[Tensor], Optional[Sharding]]:
    """Returns (local parts of q, k and v, their Sharding) for DTensors; (q, k and v, None) for ordinary tensors. Raises
    ArgumentError for DTensors that ring_attention does not support."""
    sharded = [is_dtensor(x) for x in tensors]
    if not any(sharded):
        return list(tensors), None
    if not all(sharded):
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
    return [x.to_local() for x in tensors], Sharding(mesh, placements, sizes)
