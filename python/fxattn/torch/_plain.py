# SPDX-License-Identifier: Apache-2.0
"""The kernels of fxattn::fwd and fxattn::bwd by ctypes, for use without libfxattn_torch (operators.py). The kernels do
in Python what python/csrc/torch_call.c and torch_problem.c do in C, for CPU tensors only."""
import ctypes
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

import torch
from torch import Tensor

from .. import _abi
from .._errors import ArgumentError, Error
from .._library import in_keywords
from .._problem import Args, Problem, View
from .._program import DTYPE_NAMES, Program
from . import operators as ops

DTYPES = {torch.float64: _abi.F64, torch.float32: _abi.F32, torch.float16: _abi.F16, torch.bfloat16: _abi.BF16,
          torch.int64: _abi.I64, torch.int32: _abi.I32, torch.int16: _abi.I16, torch.int8: _abi.I8,
          torch.uint8: _abi.U8, torch.bool: _abi.B8, torch.float8_e4m3fn: _abi.E4M3, torch.float8_e5m2: _abi.E5M2}
SLOT_NAMES = {value: name[5:].lower() for name, value in vars(_abi).items()
              if name.startswith("SLOT_") and name not in ("SLOT_COUNT", "SLOT_MAX")}
_MAX_PROGRAMS = 1024
Result = TypeVar("Result")
_programs: Dict[Tuple[str, str], Program] = {}


def _program(text: str, kind: str) -> Program:
    """Returns the Program of `text`, from a cache. When the cache is full, the older half of its programs is
    removed."""
    found = _programs.get((kind, text))
    if found is None:
        if len(_programs) >= _MAX_PROGRAMS:
            for key in list(_programs)[:_MAX_PROGRAMS // 2]:
                _programs.pop(key, None)
        found = _programs[kind, text] = Program.from_text(text, kind=kind)
    return found


def _refusing(kernel: Callable[..., Result]) -> Callable[..., Result]:
    """Returns `kernel`, wrapped so that it raises the same RuntimeError as the operators in C."""
    @functools.wraps(kernel)
    def call(*args: Any) -> Result:
        try:
            return kernel(*args)
        except Error as error:
            raise RuntimeError("fxattn: %s" % in_keywords(str(error))) from error
    return call


def view(tensor: Tensor) -> View:
    if tensor.dtype not in DTYPES:
        raise ArgumentError("a tensor has dtype %s; %s are taken" % (tensor.dtype, ", ".join(map(str, DTYPES))))
    return View(tensor.data_ptr(), DTYPES[tensor.dtype], tuple(tensor.shape), tensor.stride())


def _listed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns `tensors`; an empty list if `tensors` is the placeholder of an empty list (torch_call.h)."""
    return () if len(tensors) == 1 and tensors[0].dim() > _abi.MAX_RANK else tensors


def _short_name(dtype: torch.dtype) -> str:
    return DTYPE_NAMES[DTYPES[dtype]] if dtype in DTYPES else str(dtype)


def _check_captures(program: Program, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != len(program.captures):
        raise ArgumentError("%d captured tensors are given, the program has %d" % (len(tensors), len(program.captures)))
    for capture, tensor in zip(program.captures, tensors):
        if (_short_name(tensor.dtype), tensor.dim()) != (capture.dtype, capture.rank):
            raise ArgumentError("captured tensor %s is %s[%d], the program has %s[%d]" % (
                capture.name, _short_name(tensor.dtype), tensor.dim(), capture.dtype, capture.rank))


def _params(program: Program, ints: Iterator[int], floats: Iterator[float]) -> List[float]:
    """Returns the values of the params of `program`. Takes the values from the iterators `ints` and `floats`."""
    values = []
    for param in program.params:
        value = next(ints, None) if param.type == "int" else next(floats, None)
        if value is None:
            raise ArgumentError("param %s of the program has no value" % param.name)
        values.append(float(value))
    return values


class _Call:
    """One call of an operator: problem and arguments of the library, and references to the tensors that they point
    to."""

    def __init__(self, backward: bool, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor],
                 extras: Sequence[Tensor], scalars: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float],
                 config: Sequence[int], program: str) -> None:
        if q.device.type != "cpu":
            raise ArgumentError("tensors are on %s; without libfxattn_torch those of the CPU are taken" % q.device)
        self.config = [*config, *[0] * (ops.MAPS - len(config))]
        flags, cut = self.config[ops.FLAGS], self.config[ops.BPROP_TEXT]
        tensors, extras, scalars = _listed(tensors), _listed(extras), _listed(scalars)
        own = self.config[ops.BPROP_TENSORS] if cut else len(tensors)
        text = program.encode()
        if not (0 <= cut <= len(text) and 0 <= own <= len(tensors)):
            raise ArgumentError("the backward program begins outside the text")
        self.program = _program((text[:cut] if cut else text).decode(), "score")
        self.bprop = _program(text[cut:].decode(), "bprop") if cut and backward else None
        if backward:
            flags &= ~(_abi.RETURN_LSE | _abi.RETURN_ROW_MAX)
        self.problem = Problem(self.program, bprop=self.bprop, backward=backward, flags=flags,
                               **self._sizes(q, k, v, flags))
        self.args = Args(scale=floats[0] if len(floats) else None)
        self.problem.struct.dropout_p = floats[1] if len(floats) > 1 else 0.0
        self.q, self.scalars, self.extras, self.tensors = q, scalars, extras, tensors[:own]
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            self.operand(name, name, tensor)
        self._extras(extras)
        self._maps()
        self.in_memory = bool(flags & _abi.SCALARS_IN_MEMORY)
        numbers = iter(scalars[0].tolist() if len(scalars) and not self.in_memory else floats[2:])
        self._bind(self.tensors, iter(ints), numbers, tensors[own:])

    def _sizes(self, q: Tensor, k: Tensor, v: Tensor, flags: int) -> Dict[str, Any]:
        c, packed, paged = self.config, flags & _abi.VARLEN, flags & _abi.PAGED
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.dim() != 4:
                raise ArgumentError("%s has %d dimensions, not 4" % (name, x.dim()))
        sizes = dict(b=q.shape[0], hq=q.shape[1], hkv=k.shape[1], sq=c[ops.SQ] if packed else q.shape[2],
                     sk=c[ops.SK] if packed or paged else k.shape[2], d_qk=q.shape[3], d_v=v.shape[3],
                     window_left=c[ops.WINDOW_LEFT], window_right=c[ops.WINDOW_RIGHT], global_q_len=c[ops.Q_LEN],
                     global_k_len=c[ops.K_LEN], global_heads=c[ops.HEADS])
        alone = not packed and not paged
        if k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3] or (alone and k.shape[0] != q.shape[0]):
            raise ArgumentError("q %s, k %s and v %s do not fit" % (tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        if k.shape[1] == 0 and q.shape[1]:  # the library takes hkv = 0 for the number of heads of q
            raise ArgumentError("k has 0 heads and q has %d; 0 is accepted where q has none" % q.shape[1])
        if packed:
            sizes.update(total_q=q.shape[2], total_k=0 if paged else k.shape[2])
        if paged:
            sizes.update(n_pages=k.shape[0], page_size=k.shape[2])
        return sizes

    def operand(self, name: str, slot: str, tensor: Tensor) -> None:
        self.problem.operand(name, view(tensor).dtype, tensor.stride())
        self.args.slot(slot, tensor.data_ptr())

    def _extras(self, extras: Sequence[Tensor]) -> None:
        slots, rest = self.config[ops.SLOTS], iter(extras)
        at = ops.extra_place(slots, _abi.SLOT_CU_Q)
        if slots >> _abi.SLOT_CU_Q & 1 and at < len(extras) and extras[at].dim() == 1:
            self.problem.struct.b = extras[at].numel() - 1  # offsets: one more than sequences
        for slot in (s for s in sorted(SLOT_NAMES) if slots >> s & 1):
            tensor = next(rest, None)
            if tensor is None:
                raise ArgumentError("there are fewer extra tensors than slots for them")
            self._check_extra(slot, tensor)
            if slot == _abi.SLOT_SEED and not self.problem.struct.flags & _abi.SCALARS_IN_MEMORY:
                self.args.struct.seed = int(tensor.item()) & (1 << 64) - 1
                continue
            if slot == _abi.SLOT_SINKS:
                self.problem.operand("sinks", DTYPES[tensor.dtype], (0, tensor.stride(0) if tensor.dim() == 1 else 1))
            self.args.slot(SLOT_NAMES[slot], tensor.data_ptr())
        if next(rest, None) is not None:
            raise ArgumentError("there are more extra tensors than slots for them")

    def _check_extra(self, slot: int, tensor: Tensor) -> None:
        """Raises ArgumentError if an extra tensor has a wrong size, dtype or strides, which the library cannot check,
        because it gets a bare pointer."""
        p, name = self.problem.struct, SLOT_NAMES[slot]
        in_range = p.page_size and p.b < 1 << 31 and 0 <= p.sk < 1 << 31
        counts = {"sinks": p.hq, "map_h": p.hq, "map_b": p.b, "q_lengths": p.b, "k_lengths": p.b, "q_start": p.b,
                  "cu_q": p.b + 1, "cu_k": p.b + 1, "map_q": p.sq, "map_k": p.sk, "offset_b": 1, "offset_h": 1,
                  "offset_q": 1, "offset_k": 1, "pages": p.b * -(-p.sk // p.page_size) if in_range else 0, "seed": 1}
        if p.flags & _abi.SCALARS_IN_MEMORY:
            counts["scale"] = 1
        if name not in counts:
            raise ArgumentError("%s is no slot of an extra tensor" % name.upper())
        need = counts[name]
        dtype = {"sinks": tensor.dtype, "seed": torch.int64, "scale": torch.float64}.get(name, torch.int32)
        dense = tensor.is_contiguous() or name == "sinks" and tensor.dim() == 1
        if tensor.numel() != need or tensor.dtype != dtype or not dense:
            raise ArgumentError("%s has %d elements of %s%s; %d dense ones of %s are accepted" % (
                name.upper(), tensor.numel(), _short_name(tensor.dtype), "" if dense else " with gaps", need,
                _short_name(dtype)))

    def _maps(self) -> None:
        rest = self.config[ops.MAPS:]
        while rest:
            which, kind, offset, base, step, count = rest[:6] if len(rest) >= 6 else [-1] * 6
            if not (0 <= which <= 3 and 0 <= count <= min(_abi.MAX_SEGMENTS, (len(rest) - 6) // 3)):
                raise ArgumentError("the settings of coordinate maps are cut off")
            segments = [(rest[i], rest[i + 1], rest[i + 2]) for i in range(6, 6 + 3 * count, 3)]
            self.problem.index_map("bhqk"[which], base=base, step=step, segments=segments, table=kind == _abi.MAP_TABLE,
                                   offset=bool(offset))
            rest = rest[6 + 3 * count:]

    def _bind(self, tensors: Sequence[Tensor], ints: Any, floats: Any, bprop_tensors: Sequence[Tensor]) -> None:
        """Passes captured tensors and params of both programs to the library's problem and arguments."""
        _check_captures(self.program, tensors)
        self.problem.captures([view(t) for t in tensors])
        self.args.tensors([t.data_ptr() for t in tensors])
        if self.in_memory:
            self._point_params()
        else:
            self.args.params(_params(self.program, ints, floats))
        if self.bprop is not None:
            _check_captures(self.bprop, bprop_tensors)
            self.problem.bprop_captures([view(t) for t in bprop_tensors])
            self.args.tensors([t.data_ptr() for t in bprop_tensors], bprop=True)
            self.args.params(_params(self.bprop, ints, floats), bprop=True)

    def _point_params(self) -> None:
        """Passes params as a pointer, for values that only the run reads (FXA_SCALARS_IN_MEMORY)."""
        count, given = len(self.program.params), self.scalars[0] if len(self.scalars) else None
        size = 0 if given is None or given.dim() != 1 else given.numel()
        if size != count or given is not None and not (given.dtype == torch.float64 and given.is_contiguous()):
            raise ArgumentError("params in memory are to be a dense tensor of %d elements of f64 beside q" % count)
        self.args.slot("params", given.data_ptr() if given is not None and count else None)

    def run(self) -> None:
        self.problem.run(self.args, torch.get_num_threads())


@_refusing
def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor]:
    """The kernel of fxattn::fwd."""
    call = _Call(False, q, k, v, *rest)
    flags = call.config[ops.FLAGS]
    out, lse, rows = ops.results_of_forward(q, v, call.config)
    call.operand("o", "o", out)
    if flags & _abi.RETURN_LSE:
        call.operand("lse", "lse", lse)
    if flags & _abi.RETURN_ROW_MAX:
        call.operand("row_max", "row_max", rows)
    call.run()
    return out, lse, rows


@_refusing
def backward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> List[Tensor]:
    """The kernel of fxattn::bwd."""
    *shared, out, lse, grads, want = rest
    call = _Call(True, q, k, v, *shared)
    results = ops.results_of_backward(q, k, v, call.tensors, call.extras, call.scalars, call.config, want)
    for name, slot, tensor in (("o", "o", out), ("lse", "lse", lse), ("dout", "do", grads[0])):
        call.operand(name, slot, tensor)
    problem = call.problem.struct
    if len(grads) > 1:
        problem.flags |= _abi.READ_DLSE
        call.operand("dlse", "dlse", grads[1])
    captured: List[Optional[Tensor]] = [None] * len(call.tensors)
    params = (ctypes.c_double * _abi.MAX_PARAMS)()
    for one, made in zip(want, results):
        if one <= ops.WANT_V:
            problem.flags |= _abi.GRAD_Q << one
            call.operand(("dq", "dk", "dv")[one], ("dq", "dk", "dv")[one], made)
        elif one == ops.WANT_SINK:
            problem.flags |= _abi.GRAD_SINKS
            call.operand("dsinks", "dsinks", made.view(1, -1))
        elif one == ops.WANT_SCALARS:
            problem.param_grads = sum(1 << i for i, p in enumerate(call.program.params) if p.type == "float")
            where = made.zero_().data_ptr() if call.in_memory else ctypes.addressof(params)  # 0 for ints
            call.args.dparams(where, len(call.program.params))
        else:
            captured[one - ops.WANT_TENSORS] = made
    if any(t is not None for t in captured):
        call.problem.captures([view(t) for t in call.tensors], [None if t is None else view(t) for t in captured])
        call.args.dtensors([None if t is None else t.data_ptr() for t in captured])
    call.run()
    for one, made in zip(want, results):
        if one == ops.WANT_SCALARS and not call.in_memory:
            values = [params[i] for i, p in enumerate(call.program.params) if p.type == "float"]
            made.copy_(torch.tensor(values + [0.0] * (made.numel() - len(values)), dtype=torch.float64,
                                    device=made.device))
    return results
