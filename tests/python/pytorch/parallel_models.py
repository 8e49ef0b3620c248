# SPDX-License-Identifier: Apache-2.0
"""Training by several processes, for test_ring.py's workers: DistributedDataParallel with many buckets, fully_shard
(FSDP2), tensor parallel heads, and ring_attention on DTensors. Each gives what it found beside what one process finds."""
from typing import Any, Dict, List

import torch
from torch import Tensor, nn

import fxattn.torch as fx


class Net(nn.Module):
    """Four layers; every one has slopes of its own, and all a soft cap."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(4))
        self.slopes = nn.ParameterList(nn.Parameter(torch.rand(4)) for _ in range(4))
        self.cap = nn.Parameter(torch.tensor([5.0]))  # FSDP2 takes no parameters of rank 0

    def forward(self, x: Tensor) -> Tensor:
        cap = self.cap[0]
        mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, x.shape[1], x.shape[1], "cpu")
        for layer, slopes in zip(self.layers, self.slopes):
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            out = fx.flex_attention(q, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap) - slopes[h] * (i - j), mask)
            x = x + out.transpose(1, 2).flatten(-2)
        return x


def _data() -> Tensor:
    return torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(5))


def _alone() -> Dict[str, Tensor]:
    net = Net()
    net(_data()).square().mean().backward()
    return {name: p.grad for name, p in net.named_parameters()}


def _difference(net: nn.Module, grad) -> float:
    wanted = _alone()
    return max((grad(p) - wanted[name]).abs().max().item() for name, p in net.named_parameters())


def data_parallel(rank: int, size: int, group: Any) -> float:
    """The largest difference of a gradient; twice, since buckets are made anew after the first step."""
    net = Net()
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.002, process_group=group)
    for _ in range(2):
        model.zero_grad()
        model(_data()[rank::size]).square().mean().backward()
    return _difference(net, lambda p: p.grad)


def fully_sharded(rank: int, size: int, group: Any) -> float:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    net, mesh = Net(), DeviceMesh.from_group(group, "cpu")
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    net(_data()[rank::size]).square().mean().backward()
    return _difference(net, lambda p: p.grad.full_tensor())


class Heads(nn.Module):
    """A layer whose heads may lie on several processes: first is the number of the first one here."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.slopes, self.first = nn.Parameter(torch.rand(4)), 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = fx.flex_attention(q, k, v, lambda s, b, h, i, j: s - self.slopes[h + self.first] * (i - j))
        return self.out(out.transpose(1, 2).flatten(-2))


def tensor_parallel(rank: int, size: int, group: Any) -> float:
    """Heads by columns of the projections; what all share, such as slopes, has a gradient of the heads here."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    alone, net, mesh = Heads(), Heads(), DeviceMesh.from_group(group, "cpu")
    net.first = rank * 4 // size
    parallelize_module(net, mesh, {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(),
                                   "out": RowwiseParallel()})
    for model in (alone, net):
        model(_data()).square().mean().backward()
    torch.distributed.all_reduce(net.slopes.grad, group=group)
    grads = {name: p.grad if name == "slopes" else p.grad.full_tensor() for name, p in net.named_parameters()}
    return max((grads[name] - p.grad).abs().max().item() for name, p in alone.named_parameters())


def refused_dtensors(group: Any) -> List[str]:
    """What is said where q is a DTensor, and where a function captures one."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh, x, said = DeviceMesh.from_group(group, "cpu"), torch.zeros(1, 2, 4, 8), []
    spread, slopes = distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(torch.ones(2), mesh, [Replicate()])
    for call in (lambda: fx.flex_attention(spread, spread, spread), lambda: fx.attention(spread, spread, spread),
                 lambda: fx.flex_attention(x, x, x, lambda s, b, h, i, j: s * slopes[h])):
        try:
            call()
            said.append("nothing")
        except TypeError as error:
            said.append(str(error))
    return said


def ring_of_dtensors(group: Any) -> List[float]:
    """Differences of out, lse and gradients; 9 rows are uneven on two processes."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh, g = DeviceMesh.from_group(group, "cpu"), torch.Generator().manual_seed(9)
    whole = [torch.randn(1, 2, 9, 8, generator=g, dtype=torch.float64) for _ in range(3)]
    parts = [distribute_tensor(x, mesh, [Shard(2)]).requires_grad_() for x in whole]
    out, lse = fx.ring_attention(*parts, lambda s, b, h, i, j: s + 0.1 * i, lambda b, h, i, j: i >= j, return_lse=True)
    grads = torch.autograd.grad((out.square().sum() + lse.sum()), parts)
    leaves = [x.requires_grad_() for x in whole]
    want = fx.attention(*leaves, lambda s, b, h, i, j: s + 0.1 * i, lambda b, h, i, j: i >= j, return_lse=True)
    wanted = torch.autograd.grad(want.out.square().sum() + want.lse.sum(), leaves)
    pairs = zip((out, lse, *grads), (want.out, want.lse, *wanted))
    return [(x.full_tensor() - y).abs().max().item() for x, y in pairs]


def found(rank: int, size: int, group: Any) -> Dict[str, Any]:
    return {"data parallel": data_parallel(rank, size, group), "fully sharded": fully_sharded(rank, size, group),
            "tensor parallel": tensor_parallel(rank, size, group), "refused": refused_dtensors(group),
            "dtensors": ring_of_dtensors(group)}
