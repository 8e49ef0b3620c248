# SPDX-License-Identifier: Apache-2.0
"""ring_attention: attention over a sequence that is sharded over the processes of a torch.distributed group.

Each process has some rows of Q and some of K and V (shards.py defines which). The parts of K and V are passed around
the ring of processes. Each process attends its rows to each part and merges the result into out and lse (fxa_merge), so
that out and lse are those of the entire sequence. The next part is received while the current part is computed. In
the backward pass the parts of K and V travel around the ring again. The gradients of a part travel with it, and end at
the process that owns the part. The backward pass uses the LSE of the entire sequence, so that each part yields its
share of every gradient.

By coordinate maps of the library the program gets positions in the entire sequence, so any score_mod and mask_mod
works, and dropout too. Parts in which the mask leaves no pair are not computed. Partial results are f32 (f64 for f64
inputs) and are rounded once.
"""
import contextlib
import ctypes
import hashlib
from typing import Any, Dict, Iterator, List, Literal, Optional, Sequence, Tuple, Union, overload

import torch
import torch.distributed as dist
from torch import Tensor

from ... import _abi
from ..._errors import ArgumentError, ArgumentTypeError, OutsideError
from ..._library import call as call_library
from ..._library import context, lib
from ..._options import flag, with_hints
from ..._program import Program
from .. import operators as ops
from ..routes.autograd import Call, Plain, _below, _place, _wanted
from ..dtensors import group_of, local_parts
from ..routes.compiled import outside
from ..forward_mode import refuse_tangents, refuse_these
from .._plain import DTYPES
from ..score_arguments import Given, Mod, Named
from ..settings import Settings, drawn_seed, real_number, seed_tensor
from .shards import KEYS, ORDERS, QUERIES, Mask, Shards, split_sequence
from ..call import check_scale
from ..flex import autocast_inputs

__all__ = ["ring_attention", "split_sequence"]
Window = Optional[Tuple[Optional[int], Optional[int]]]
# Before a call, processes exchange a list of ints: whether the process failed; the values named in _SAME, which must be
# the same on all processes; the lengths of q and k; the drawn seed. Errors print the first _READABLE values of _SAME;
# the other values are hashes or indices.
_SAME = ("batch size", "query heads", "key heads", "head dim of q and k", "head dim of v", "dtypes", "order",
         "score function or a setting", "set of inputs that need gradients")
_FAILED, _FIRST, _READABLE = 0, 1, 5
_FAR = (1 << 31) - 1  # a window side of this size is unlimited
_ROWS, _KEYS, _SEED, _TOLD = range(_FIRST + len(_SAME), _FIRST + len(_SAME) + 4)


class _Ring:
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
        self.live: Sequence[bool] = ()

    def source(self, step: int) -> int:
        """Returns the process whose keys this process has in `step`."""
        return (self.rank - step) % self.size

    def agree(self, own: Sequence[int], device: Any) -> List[List[int]]:
        """Returns the lists of ints of all processes; `own` is that of this process. Raises ArgumentError on all
        processes if a process has failed or if values that must be the same differ."""
        mine = torch.tensor(own, dtype=torch.int64, device=device)
        told = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(told, mine, group=self.group)
        lists = [one.tolist() for one in told]
        failed = [str(rank) for rank, one in enumerate(lists) if one[_FAILED]]
        if failed:
            raise ArgumentError("ring_attention: process %s failed; its own error says "
                                "why" % ", ".join(failed))
        for i, what in enumerate(_SAME):
            for rank, one in enumerate(lists):
                mine, first = one[_FIRST + i], lists[0][_FIRST + i]
                if mine != first:
                    numbers = " (%d, %d)" % (mine, first) if i < _READABLE else ""
                    raise ArgumentError("ring_attention: the %s of process %d is another than that of process 0%s: all "
                                        "must be the same" % (what, rank, numbers))
        return lists

    def report(self, error: Optional[Exception], device: Any) -> None:
        """Raises the error of this process, or on the others an ArgumentError that names the processes that failed."""
        try:
            self.agree([error is not None] + [0] * (_TOLD - 1), device)
        except ArgumentError:
            if error is None:
                raise
        if error is not None:
            raise error

    def pass_on(self, tensors: Sequence[Tensor], step: int, tag: int) -> "_Journey":
        """Starts to send `tensors` to the next process, and to receive the tensors that this process uses in the next
        step."""
        length = self.keys.lengths[self.source(step + 1)]
        return _Journey(self, tensors, [t.new_empty((*t.shape[:2], length, t.shape[3])) for t in tensors], tag)

    def config(self, plain: Plain, step: int) -> Plain:
        """Returns the call of `step`: with the positions of its rows and keys, and with the sink in step 0 only."""
        config = [*plain.config, *[0] * (ops.WIDE - len(plain.config)), 1]
        config[ops.Q_LEN], config[ops.K_LEN] = self.rows.total, self.keys.total
        if step > 0:
            config[ops.FLAGS] &= ~_abi.SINKS
            config[ops.SLOTS] &= ~(1 << _abi.SLOT_SINKS)
        config += self.rows.map_of(QUERIES, self.rank) + self.keys.map_of(KEYS, self.source(step))
        extras = bin(config[ops.SLOTS]).count("1")
        return Plain(plain.n_tensors, extras, plain.n_scalars, plain.ints, plain.floats, config, plain.program)


class _Journey:
    """A transfer: tensors that are sent to the next process, and tensors that are received from the previous one."""

    def __init__(self, ring: _Ring, sent: Sequence[Tensor], received: List[Tensor], tag: int) -> None:
        self.sent, self.received = [t.resolve_neg().contiguous() for t in sent], received
        self.works: List[Any] = []
        if ring.size == 1:
            self.received = self.sent
            return
        moves = []
        for i, (out, back) in enumerate(zip(self.sent, received)):
            if out.numel():
                moves.append(dist.P2POp(dist.isend, out, ring.next, ring.group, tag + i))
            if back.numel():
                moves.append(dist.P2POp(dist.irecv, back, ring.previous, ring.group, tag + i))
        if moves:
            self.works = dist.batch_isend_irecv(moves)

    def wait(self) -> List[Tensor]:
        for work in self.works:
            work.wait()
        return self.received


@contextlib.contextmanager
def _arriving(*journeys: Optional[_Journey]) -> Iterator[None]:
    """Context: if a step fails, waits for its transfers, because a later call would otherwise receive their data."""
    try:
        yield
    except BaseException:
        for journey in journeys:
            if journey is not None:
                journey.wait()
        raise


_TAG_KEYS, _TAG_GRADS = 0, 2


def merge_(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merges the attention of the same rows over further keys, (part, part_lse), into out [B,H,S,D] and lse [B,H,S]."""
    args = _abi.MergeArgs(struct_size=ctypes.sizeof(_abi.MergeArgs))
    args.b, args.h, args.s, args.d = out.shape
    for name, tensor in (("o_a", out), ("lse_a", lse), ("o_b", part), ("lse_b", part_lse)):
        operand = getattr(args, name)
        operand.dtype, operand.layout = DTYPES[tensor.dtype], _abi.LAYOUT_STRIDED
        operand.stride[:tensor.dim()] = tensor.stride()
        setattr(args, name + "_data", tensor.data_ptr())
    if out.is_cuda:
        args.device, args.ordinal, args.ctx = _abi.CUDA, out.device.index, context()
        args.stream = torch.cuda.current_stream(out.device).cuda_stream
    call_library(lib.merge, ctypes.byref(args))


class _RingFunction(torch.autograd.Function):
    """The autograd Function (ring, plain, q, k, v, *tensors of the call) -> (out, lse in f64)."""

    @staticmethod
    def forward(ctx: Any, ring: _Ring, plain: Plain, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        part, out, lse = [k, v], q, q  # step 0 always runs and replaces out and lse
        outside: Optional[OutsideError] = None
        for step in range(ring.size):
            journey = ring.pass_on(part, step, _TAG_KEYS) if step + 1 < ring.size else None
            with _arriving(journey):
                if ring.live[step] and outside is None:
                    try:
                        with _below():
                            found = _step_call(ring, plain, step, rest).forward(q, part[0], part[1])
                        if step == 0:
                            out, lse = found[0], found[1]
                        else:
                            merge_(out, lse, found[0], found[1])
                    except OutsideError as error:  # raised after the last step, for which other processes wait
                        outside = error
            part = journey.wait() if journey is not None else part
        if plain.config[ops.FLAGS] & _abi.BOUNDS_CHECK:
            ring.report(outside, q.device)
        out = out.to(q.dtype)
        ctx.ring, ctx.plain = ring, plain
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *rest, out, lse)
        return out, lse

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_these(ctx.plain.n_tensors, tangents[2:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> Tuple[Any, ...]:
        *inputs, out, lse = ctx.saved_tensors
        grads = [torch.zeros_like(out) if dout is None else dout]
        if dlse is not None:
            grads.append(dlse.to(torch.float64 if out.dtype == torch.float64 else torch.float32))
        want = _wanted(ctx.needs_input_grad, ctx.plain, 2)
        total = _gradients(ctx.ring, ctx.plain, inputs, out, lse, grads, want)
        result: List[Any] = [None] * (2 + len(inputs))
        for one, grad in total.items():
            place = _place(one, ctx.plain)
            result[2 + place] = grad.to(inputs[place].dtype)
        return tuple(result)


def _step_call(ring: _Ring, plain: Plain, step: int, rest: Sequence[Tensor]) -> Call:
    """Returns the Call of `step` with its tensors. After step 0 the sink, which is the first extra tensor, is left
    out."""
    sink = plain.config[ops.SLOTS] >> _abi.SLOT_SINKS & 1 if len(plain.config) > ops.SLOTS else 0
    if step > 0 and sink:
        rest = [*rest[:plain.n_tensors], *rest[plain.n_tensors + 1:]]
    return ring.config(plain, step).call(rest)


def _gradients(ring: _Ring, plain: Plain, inputs: Sequence[Tensor], out: Tensor, lse: Tensor, grads: Sequence[Tensor],
               want: Sequence[int]) -> Dict[int, Tensor]:
    """Returns {value of `want`: gradient}: for q, k and v the gradients of this process's parts; for all other tensors
    the sum over the processes."""
    (q, k, v, *rest), part = inputs, list(inputs[1:3])
    moving = [one for one in want if one in (ops.WANT_K, ops.WANT_V)]
    total: Dict[int, Tensor] = {}
    home: Optional[_Journey] = None
    for step in range(ring.size):
        journey = ring.pass_on(part, step, _TAG_KEYS) if step + 1 < ring.size else None
        found: Dict[int, Tensor] = {}
        asked = [one for one in want if one != ops.WANT_SINK or step == 0]
        if ring.live[step] and asked:
            call = _step_call(ring, plain, step, rest)
            with _arriving(journey, home), _below():
                found = dict(zip(asked, call.backward(q, part[0], part[1], out, lse, grads, asked)))
        for one, grad in found.items():
            if one not in moving:
                total[one] = total[one].add_(grad) if one in total else grad
        if moving:
            # Gradients of the current keys, summed over the processes that the keys have visited so far.
            sums = [found[one] for one in moving] if home is None else home.wait()
            if home is not None and found:
                sums = [sum_.add_(found[one]) for sum_, one in zip(sums, moving)]
            home = ring.pass_on(sums, step, _TAG_GRADS)
        part = journey.wait() if journey is not None else part
    for one in want:
        if one > ops.WANT_V:
            dist.all_reduce(total[one], group=ring.group)
    if home is not None:
        total.update(zip(moving, home.wait()))
    return total


# ---- The call --------------------------------------------------------------------------------------------------------

def _number_of(content: Any) -> int:
    """Returns a 56-bit hash of repr(content)."""
    return int.from_bytes(hashlib.blake2b(repr(content).encode(), digest_size=7).digest(), "little")


def _told(q: Tensor, k: Tensor, v: Tensor, order: str, call: Call, seed: Optional[int]) -> List[int]:
    """Returns the list of ints that this process sends to all others before the call."""
    shapes = [(t.dtype, tuple(t.shape)) for t in (*call.tensors, *call.extras)]
    settings = call.program, list(call.ints), list(call.floats), list(call.config), shapes, seed
    inputs = (q, k, v, *call.all_tensors()) if torch.is_grad_enabled() else ()
    drawn = int(call.extras[-1]) if call.flags() & _abi.DROPOUT else 0
    return [0, q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], _number_of([x.dtype for x in (q, k, v)]),
            ORDERS.index(order), _number_of(settings), _number_of([t.requires_grad for t in inputs]), q.shape[2],
            k.shape[2], drawn]


def _params(call: Call) -> Optional[List[float]]:
    """Returns the values of the params in the program's order; None without a program, or if the values are on a
    device."""
    if not call.program or (call.scalars and call.scalars[0].is_cuda):
        return None
    program = Program.from_text(call.program)
    floats = iter(call.scalars[0].tolist() if call.scalars else call.floats[2:])
    ints = iter(call.ints)
    return [float(next(ints if p.type == "int" else floats)) for p in program.params]


def _ready_masks(device: Any, is_causal: bool, window: Window, bottom_right: bool) -> List[str]:
    """Returns the program statements of the built-in masks, in which q and k are positions in the entire sequence."""
    settings = Settings(device)
    settings.window(window)
    if not is_causal and window is None:
        if bottom_right:
            raise ArgumentError("bottom_right is given without is_causal and window, which it aligns; a score_mod sees "
                                "positions in the whole, and may add k_len - q_len to q by itself")
        return []
    row = "(q + (k_len - q_len))" if bottom_right else "q"
    left, right = (settings.fields.get(side, -1) for side in (ops.WINDOW_LEFT, ops.WINDOW_RIGHT))
    # Differences of positions cannot overflow. A bound that no difference reaches is left out.
    return ["mask = mask && %s" % bound for bound, given in (
        ("k <= " + row, is_causal), ("%s - k <= %d" % (row, left), 0 <= left < _FAR),
        ("k - %s <= %d" % (row, right), 0 <= right < _FAR)) if given]


def _extras(q: Tensor, sinks: Optional[Tensor], dropout_p: float, seed: Optional[int], bounds_check: bool
            ) -> Tuple[List[int], List[Tensor]]:
    """Returns config and extra tensors for sinks and dropout; the seed is the last extra tensor."""
    flags, slots, extras = _abi.RETURN_LSE | (_abi.BOUNDS_CHECK if bounds_check else 0), 0, []
    if sinks is not None:
        if not isinstance(sinks, Tensor):
            raise ArgumentTypeError("sinks is of type %s; a tensor of a score per query head is accepted"
                                    % type(sinks).__name__)
        if tuple(sinks.shape) != (q.shape[1],):
            raise ArgumentError("sinks has shape %s; one score per query head, (%d,), is accepted"
                                % (tuple(sinks.shape), q.shape[1]))
        flags, slots, extras = flags | _abi.SINKS, slots | 1 << _abi.SLOT_SINKS, [sinks]
    if dropout_p:
        drawn = drawn_seed() if seed is None else seed_tensor(seed).cpu()
        flags, slots, extras = flags | _abi.DROPOUT, slots | 1 << _abi.SLOT_SEED, [*extras, drawn]
    return [flags, slots] if slots else [flags], extras


def _check(q: Tensor, k: Tensor, v: Tensor, order: str) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError("%s is of type %s; a tensor is accepted" % (name, type(x).__name__))
        if not x.is_floating_point() or x.dtype not in DTYPES:
            raise ArgumentTypeError("%s has dtype %s; float64, float32, float16 and bfloat16 are accepted"
                                    % (name, x.dtype))
    if order not in ORDERS:
        raise ArgumentError("order is %r; %s are accepted" % (order, ", ".join(ORDERS)))
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] \
            or q.shape[3] != k.shape[3] or (q.shape[1] % k.shape[1] if k.shape[1] else q.shape[1]):
        raise ArgumentError("q, k and v have shapes %s, %s and %s; [B,H,S,D], [B,Hkv,Sk,D] and [B,Hkv,Sk,Dv] are "
                            "accepted, H a multiple of Hkv" % (tuple(q.shape), tuple(k.shape), tuple(v.shape)))


def _tell_failure(ring: _Ring, q: Any) -> None:
    """Reports to the other processes that this one has failed, so that they do not wait for it."""
    try:
        ring.agree([1] + [0] * (_TOLD - 1), q.device if isinstance(q, Tensor) else "cpu")
    except ArgumentError:
        pass  # the others raise this error; this process raises its own


@overload
def ring_attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = ..., mask_mod: Mod = ..., *, order: str = ...,
                   group: Any = ..., scale: Optional[float] = ..., is_causal: bool = ..., window: Window = ...,
                   bottom_right: bool = ..., sinks: Optional[Tensor] = ..., dropout_p: float = ...,
                   seed: Optional[int] = ..., params: Named = ..., tensors: Named = ...,
                   return_lse: Literal[False] = ..., bounds_check: bool = ...) -> Tensor: ...
@overload
def ring_attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = ..., mask_mod: Mod = ..., *, order: str = ...,
                   group: Any = ..., scale: Optional[float] = ..., is_causal: bool = ..., window: Window = ...,
                   bottom_right: bool = ..., sinks: Optional[Tensor] = ..., dropout_p: float = ...,
                   seed: Optional[int] = ..., params: Named = ..., tensors: Named = ..., return_lse: bool = ...,
                   bounds_check: bool = ...) -> Tuple[Tensor, Tensor]: ...


@outside
@with_hints
def ring_attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = None, mask_mod: Mod = None, *,
                   order: str = "contiguous", group: Any = None, scale: Optional[float] = None,
                   is_causal: bool = False, window: Window = None, bottom_right: bool = False,
                   sinks: Optional[Tensor] = None, dropout_p: float = 0.0, seed: Optional[int] = None,
                   params: Named = None, tensors: Named = None, return_lse: bool = False, bounds_check: bool = False
                   ) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Computes attention over sequences that are sharded over the processes of `group`. Returns this process's rows of
    softmax(score_mod(scale * Q K^T)) V, [B,H,S,Dv]. With return_lse, returns (out, lse), where lse [B,H,S] is
    differentiable.

    `q, k, v`: this process's parts, [B,H,S,D], [B,Hkv,Sk,D] and [B,Hkv,Sk,Dv]. The lengths of Q and K may differ.
        DTensors that are sharded along the sequence are accepted too: their mesh is the group, and the results are
        sharded in the same way.
    `order`: which positions each process has: contiguous, zigzag or striped (see split_sequence).
    `group`: the group of processes, by default all processes.
    `score_mod, mask_mod`: FlexAttention's functions, or program text or a Program with `params` and `tensors` by name;
        the same on all processes. Functions and programs get the positions q and k in the entire sequence.
    `scale`: the factor of Q K^T, by default 1 / sqrt(D).
    `is_causal, window`: built-in masks. Pairs with k <= q are attended with is_causal, and those with q - left <= k <=
        q + right with window=(left, right), where None or -1 means unlimited.
    `bottom_right`: aligns the built-in masks to the last row and key of the entire sequence.
    `sinks`: [H], a learned score per query head.
    `dropout_p, seed`: dropout drops the pairs that a single process would drop with this seed. Without `seed`, a seed
        is drawn and shared by all processes.
    `bounds_check`: an index outside its captured tensor raises an error. Without bounds_check, such an index reads 0.

    Each process has a copy of sinks and of the captured tensors. The gradients of these copies are summed over the
    group, so that each copy gets the gradient of the entire sequence. Gradients of q, k and v are those of this
    process's parts. All processes of the group must make the call and run its backward pass. Arguments that differ
    between processes raise ArgumentError on all processes.
    """
    ring = _Ring(group_of((q, k, v), group))
    try:
        (q, k, v), spread = local_parts((q, k, v), order, group)
        _check(q, k, v, order)
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError("ring_attention does not run inside of torch.func (grad, vmap, jvp): all "
                                      "processes take part in its backward pass; call backward() on its result")
        refuse_tangents(0, (q, k, v))
        check_scale(scale)
        dropout_p = real_number("dropout_p", dropout_p)
        q, k, v = autocast_inputs(q, k, v)
        is_causal, bottom_right = flag("is_causal", is_causal), flag("bottom_right", bottom_right)
        return_lse = flag("return_lse", return_lse)
        config, extras = _extras(q, sinks, dropout_p, seed, flag("bounds_check", bounds_check))
        given = Given(score_mod, mask_mod, params, tensors)
        given.check()
        call = given.call(q, k, scale, config, dropout_p, extras)
        call.program = "\n".join([call.program, *_ready_masks(q.device, is_causal, window, bottom_right)]).strip("\n")
        own = _told(q, k, v, order, call, seed)
    except Exception:
        _tell_failure(ring, q)
        raise
    told = ring.agree(own, q.device)
    if dropout_p and seed is None:
        extras[-1].fill_(told[0][_SEED])
    ring.rows = Shards("q", order, [one[_ROWS] for one in told])
    ring.keys = Shards("k", order, [one[_KEYS] for one in told])
    mask = Mask(call.program, _params(call), q.shape[0], q.shape[1], ring.rows, ring.keys)
    # Step 0 is never left out, because it makes the rows and includes the sink.
    ring.live = [step == 0 or mask.leaves(ring.rank, ring.source(step)) for step in range(ring.size)]
    out, lse = _RingFunction.apply(ring, call.plain(), q, k, v, *call.all_tensors())
    lse = lse.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    if spread is not None:
        out, lse = spread.whole(out), spread.whole(lse)
    return (out, lse) if return_lse else out
