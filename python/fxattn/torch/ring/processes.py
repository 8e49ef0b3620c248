# SPDX-License-Identifier: Apache-2.0
"""The processes of a ring_attention call: what they agree on before the call, and the transfers between neighbours.

Each process sends its part of K and V to the next process; the last process sends its part to process 0.
"""
import contextlib
from typing import Any, Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ... import _abi
from ..._errors import ArgumentError
from .. import operators as ops
from ..call import Call
from .shards import KEYS, QUERIES

# Before a call, each process sends N_INTS ints to all others: 1 if the process failed, else 0; the values that SAME
# names, which must be the same on all processes; the lengths of q and k; the drawn seed. Errors print the first
# _READABLE values of SAME; the other values are hashes or indices.
SAME = ("batch size", "query heads", "key heads", "head dim of q and k", "head dim of v", "dtypes", "order",
        "score function or a setting", "set of inputs that need gradients")
_FAILED, _FIRST, _READABLE = 0, 1, 5
ROWS, KEY_COUNT, SEED, N_INTS = range(_FIRST + len(SAME), _FIRST + len(SAME) + 4)


class Ring:
    """The process group of a call, and how rows and keys are sharded over its processes."""

    def __init__(self, group: Any) -> None:
        if not dist.is_initialized():
            raise ArgumentError("ring_attention is called before torch.distributed.init_process_group")
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ArgumentError("ring_attention: this process is not in the group")
        peers = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.next, self.previous = peers if group is None else (dist.get_global_rank(group, r) for r in peers)
        self.rows: Any = None
        self.keys: Any = None
        self.has_work: Sequence[bool] = ()  # [steps] False: the mask leaves no pair in this step

    def source(self, step: int) -> int:
        """Returns the process whose keys this process has in step `step` of the ring."""
        return (self.rank - step) % self.size

    def agree(self, own: Sequence[int], device: Any) -> List[List[int]]:
        """Exchanges lists of ints: returns the lists of all processes, where `own` is the list of this process. Raises
        ArgumentError on all processes if a process has failed or if values that must be the same differ."""
        mine = torch.tensor(own, dtype=torch.int64, device=device)
        received = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(received, mine, group=self.group)
        lists = [one.tolist() for one in received]
        failed = [str(rank) for rank, one in enumerate(lists) if one[_FAILED]]
        if failed:
            raise ArgumentError("ring_attention: process %s failed; its own error says why" % ", ".join(failed))
        for i, what in enumerate(SAME):
            for rank, one in enumerate(lists):
                mine, first = one[_FIRST + i], lists[0][_FIRST + i]
                if mine != first:
                    numbers = " (%d, %d)" % (mine, first) if i < _READABLE else ""
                    raise ArgumentError("ring_attention: the %s of process %d is another than that of process 0%s: all "
                                        "must be the same" % (what, rank, numbers))
        return lists

    def report(self, error: Optional[Exception], device: Any) -> None:
        """Reports to all processes whether this process failed: `error` is its error or None. If any process failed,
        this process raises `error`, or an ArgumentError with the names of the failed processes if `error` is None."""
        try:
            self.agree([error is not None] + [0] * (N_INTS - 1), device)
        except ArgumentError:
            if error is None:
                raise
        if error is not None:
            raise error

    def send(self, tensors: Sequence[Tensor], step: int, tag: int) -> "Transfer":
        """Starts to send `tensors` to the next process, and to receive the tensors that this process uses in the next
        step."""
        length = self.keys.lengths[self.source(step + 1)]
        return Transfer(self, tensors, [t.new_empty((*t.shape[:2], length, t.shape[3])) for t in tensors], tag)

    def call_of(self, call: Call, step: int) -> Call:
        """Returns the Call (the arguments besides q, k and v), without tensors, for step `step` of the ring. The Call
        contains the positions of the rows and keys that step `step` uses, and the sink in step 0 only."""
        config = [*call.config, *[0] * (ops.WIDE - len(call.config)), 1]
        config[ops.Q_LEN], config[ops.K_LEN] = self.rows.total, self.keys.total
        if step > 0:
            config[ops.FLAGS] &= ~_abi.SINKS
            config[ops.SLOTS] &= ~(1 << _abi.SLOT_SINKS)
        config += self.rows.map_of(QUERIES, self.rank) + self.keys.map_of(KEYS, self.source(step))
        extras = (None,) * bin(config[ops.SLOTS]).count("1")
        return Call(call.program, call.tensors, extras, call.scalars, call.ints, call.floats, config)


class Transfer:
    """A transfer: tensors that are sent to the next process, and tensors that are received from the previous one."""

    def __init__(self, ring: Ring, sent: Sequence[Tensor], received: List[Tensor], tag: int) -> None:
        self.sent, self.received = [t.resolve_neg().contiguous() for t in sent], received
        self.requests: List[Any] = []
        if ring.size == 1:
            self.received = self.sent
            return
        operations = []
        for i, (out, back) in enumerate(zip(self.sent, received)):
            if out.numel():
                operations.append(dist.P2POp(dist.isend, out, ring.next, ring.group, tag + i))
            if back.numel():
                operations.append(dist.P2POp(dist.irecv, back, ring.previous, ring.group, tag + i))
        if operations:
            self.requests = dist.batch_isend_irecv(operations)

    def wait(self) -> List[Tensor]:
        for request in self.requests:
            request.wait()
        return self.received


@contextlib.contextmanager
def finishing(*transfers: Optional[Transfer]) -> Iterator[None]:
    """Returns a context that waits for its transfers if a step fails, because otherwise a later call would receive the
    data of these transfers."""
    try:
        yield
    except BaseException:
        for transfer in transfers:
            if transfer is not None:
                transfer.wait()
        raise
