# SPDX-License-Identifier: Apache-2.0
"""fxattn::fwd and fxattn::bwd without PyTorch's dispatcher, where that is the same: a small call would spend most of
its time there.

    Call.run -> is_plain -> forward -> fxa_torch_forward (python/csrc/torch_direct.c) -> what the operator does
    a gradient's backward -> backward -> fxa_torch_backward

Invariants:
- This way is taken only where the dispatcher would come to the operator's kernel and, autograd aside, to nothing before
  it: with tensors of PyTorch's own classes that are what their memory says (is_plain), while no mode is on in this
  thread: autocast, torch.func, fake and functional tensors, tracing, modes of __torch_dispatch__ and
  __torch_function__, dual numbers, a profiler.
- Nothing is kept between calls: what a tensor is, is read in every call.
- This way raises nothing. A call that it cannot take, or that fails, is made again by the operator, whose words are
  those that are raised.
"""
import ctypes
from typing import Any, Iterable, List, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from .. import _abi
from . import _operators as ops

Results = Tuple[Tensor, Tensor, Tensor]
ANYTHING = (0, 0, 0, 0, 0, 0)  # is expected
_KINDS = frozenset([Tensor, torch.nn.Parameter])


def _begin() -> bool:
    """Whether this build of PyTorch, this Python and the library go together."""
    if not ops.by_shim or not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return False
    begin = ctypes.PyDLL(ops.library._name).fxa_torch_direct_begin
    begin.argtypes = [ctypes.py_object]
    return begin(Tensor.__dlpack_c_exchange_api__) == 0


def _keys(*names: str) -> int:
    """The bits of dispatch keys."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


try:
    _included, _autocast = torch._C._dispatch_tls_local_include_set, torch._C._is_any_autocast_enabled
    _function_modes, _profiled = torch._C._len_torch_function_stack, torch._C._autograd._profiler_enabled
    _MODES = ~_keys("BackendSelect", "ADInplaceOrView")  # which every thread has included
    _adopt = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs  # the one for a single tensor leaks it
    possible = _begin()
except AttributeError:  # of these private names, in another PyTorch
    possible = False


# ---- When ------------------------------------------------------------------------------------------------------------

def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing but autograd stands between a call with these tensors and the kernel."""
    return (type(q) in _KINDS and type(k) in _KINDS and type(v) in _KINDS and possible
            and not _included().raw_repr() & _MODES and not _autocast() and not _function_modes()
            and not _profiled() and _forward_ad._current_level < 0
            and not q.is_neg() and not k.is_neg() and not v.is_neg())


def _are_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether these are what their memory says."""
    for t in tensors:
        if type(t) not in _KINDS or t.is_neg():
            return False
    return True


# ---- How -------------------------------------------------------------------------------------------------------------

_nothing = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def forward(call: Any, q: Tensor, k: Tensor, v: Tensor, config: Sequence[int], expected: Sequence[int]
            ) -> List[Tensor]:
    """out, and lse and max where they are wanted, of a call that is plain; none of them: ask the operator. `config` is
    in place of the call's own; `expected` is what direct_expected says in torch_direct.c."""
    if not _are_plain(call.all_tensors() if call.extras or call.scalars else call.tensors):
        return []
    return _adopt(_run((q, k, v, call.tensors, call.extras, call.scalars, call.ints, call.floats, config, call.program,
                        expected)))


def backward(call: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grads: Sequence[Tensor],
             want: Sequence[int]) -> List[Tensor]:
    """The wanted gradients, at least one, of tensors that saved ones may have become: whatever they are is looked at
    here. None of them: ask the operator."""
    if not is_plain(q, k, v) or not _are_plain((*call.all_tensors(), out, lse, *grads)):
        return []
    return _adopt(_run_back((q, k, v, call.tensors, call.extras, call.scalars, call.ints, call.floats, call.config,
                             call.program, out, lse, grads, want)))


def all_results(made: Sequence[Tensor], config: Sequence[int]) -> Results:
    """out, lse and max as the operator gives them: empty where they are not wanted."""
    flags = config[ops.FLAGS] if config else 0
    out = made[0]
    lse = made[1] if flags & _abi.WANT_LSE else _nothing[torch.float64]
    if flags & _abi.WANT_MAX:
        return out, lse, made[-1]
    return out, lse, _nothing[torch.float64 if out.dtype is torch.float64 else torch.float32]


if possible:
    _run, _run_back = (ctypes.PyDLL(ops.library._name)[name] for name in ("fxa_torch_forward", "fxa_torch_backward"))
    for _function in (_run, _run_back):
        _function.argtypes, _function.restype = [ctypes.py_object], ctypes.py_object
