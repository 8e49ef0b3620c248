# SPDX-License-Identifier: Apache-2.0
"""ring_attention: checks its arguments, collects the arguments of the operators in a Call, compares the arguments with
those of the other processes, and runs the forward and backward pass."""
import hashlib
from typing import Any, List, Literal, Optional, Tuple, Union, overload

import torch
from torch import Tensor

from ... import _abi
from ..._errors import ArgumentError, ArgumentTypeError
from ..._options import flag, with_hints
from ..._program import Program
from .. import operators as ops
from ..call import Call
from ..dtensors import group_of, local_parts
from ..dtypes import DTYPES, autocast_inputs
from ..forward_mode import refuse_tangents
from ..routes.compiled import untraced
from ..score_arguments import ScoreArguments, Mod, Named
from ..settings import Settings, check_scale, drawn_seed, real_number, seed_tensor
from .passes import RingFunction
from .processes import KEY_COUNT, N_INTS, ROWS, SEED, Ring
from .shards import ORDERS, Mask, Shards

Window = Optional[Tuple[Optional[int], Optional[int]]]
_FAR = (1 << 31) - 1  # a window side of this size is unlimited


def _hash_of(content: Any) -> int:
    """Returns a 56-bit hash of repr(content)."""
    return int.from_bytes(hashlib.blake2b(repr(content).encode(), digest_size=7).digest(), "little")


def _ints_of(q: Tensor, k: Tensor, v: Tensor, order: str, call: Call, seed: Optional[int]) -> List[int]:
    """Returns the list of ints that this process sends to all other processes, which compare their arguments before the
    ring starts."""
    shapes = [(t.dtype, tuple(t.shape)) for t in (*call.tensors, *call.extras)]
    settings = call.program, list(call.ints), list(call.floats), list(call.config), shapes, seed
    inputs = (q, k, v, *call.all_tensors()) if torch.is_grad_enabled() else ()
    drawn = int(call.extras[-1]) if call.flags() & _abi.DROPOUT else 0
    return [0, q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], _hash_of([x.dtype for x in (q, k, v)]),
            ORDERS.index(order), _hash_of(settings), _hash_of([t.requires_grad for t in inputs]), q.shape[2],
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


def _builtin_masks(device: Any, is_causal: bool, window: Window, bottom_right: bool) -> List[str]:
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
    """Returns (ints, extra tensors) for the arguments of fxattn::fwd and fxattn::bwd: the ints begin `config` and are
    the flags and, if there are extra tensors, a bit set of their kinds; the extra tensors are the sinks and the seed of
    dropout, if given."""
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


def _report_failure(ring: Ring, q: Any) -> None:
    """Reports to the other processes that this process has failed, so that the other processes do not wait for this
    one."""
    try:
        ring.agree([1] + [0] * (N_INTS - 1), q.device if isinstance(q, Tensor) else "cpu")
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


@untraced
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
    `is_causal, window`: built-in masks, for positions q and k in the entire sequence. Pairs with k <= q are attended
        with is_causal, and those with q - left <= k <= q + right with window=(left, right), where None or -1 means
        unlimited.
    `bottom_right`: aligns the built-in masks to the last row and key of the entire sequence.
    `sinks`: [H], a learned score per query head.
    `dropout_p, seed`: dropout drops the pairs that a single process would drop with this seed. Without `seed`, a seed
        is drawn and shared by all processes.
    `bounds_check`: an index outside its captured tensor raises an error. Without bounds_check, an index outside its
        captured tensor reads 0.

    Each process has a copy of sinks and of the captured tensors. The gradients of sinks and captured tensors are summed
    over the group, so that each copy gets the gradient of the entire sequence. The gradients of q, k and v are the
    gradients of this process's parts. All processes of the group must call ring_attention and run its backward pass.
    Arguments that differ between processes raise ArgumentError on all processes.
    """
    ring = Ring(group_of((q, k, v), group))
    try:
        (q, k, v), sharding = local_parts((q, k, v), order, group)
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
        given = ScoreArguments(score_mod, mask_mod, params, tensors)
        given.check()
        call = given.call(q, k, scale, config, dropout_p, extras)
        call.program = "\n".join([call.program, *_builtin_masks(q.device, is_causal, window, bottom_right)]).strip("\n")
        own = _ints_of(q, k, v, order, call, seed)
    except Exception:
        _report_failure(ring, q)
        raise
    lists = ring.agree(own, q.device)
    if dropout_p and seed is None:
        extras[-1].fill_(lists[0][SEED])
    ring.rows = Shards("q", order, [one[ROWS] for one in lists])
    ring.keys = Shards("k", order, [one[KEY_COUNT] for one in lists])
    mask = Mask(call.program, _params(call), q.shape[0], q.shape[1], ring.rows, ring.keys)
    # Step 0 is never left out, because it makes the rows and includes the sink.
    ring.has_work = [step == 0 or mask.leaves(ring.rank, ring.source(step)) for step in range(ring.size)]
    out, lse = RingFunction.apply(ring, call.without_tensors(), q, k, v, *call.all_tensors())
    lse = lse.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    if sharding is not None:
        out, lse = sharding.dtensor_of(out), sharding.dtensor_of(lse)
    return (out, lse) if return_lse else out
