# SPDX-License-Identifier: Apache-2.0
"""fxattn::fwd and fxattn::bwd without PyTorch's dispatcher, where that is the same: a small call would spend most of
its time there.

    Call.run -> is_plain -> forward -> python/csrc/torch_direct.c -> what the operator does
    a gradient's backward -> backward -> the same

Invariants:
- This way is taken only where the dispatcher would come to the operator's kernel and, autograd aside, to nothing before
  it: with tensors of PyTorch's own classes that are what their memory says, while no mode is on in this thread:
  autocast, torch.func, fake and functional tensors, tracing, modes of __torch_dispatch__ and __torch_function__, dual
  numbers, a profiler (is_plain, python/csrc/torch_plain.c).
- Nothing is kept between calls: what a tensor is, is read in every call.
- This way raises nothing. A call that it cannot take, or that fails, is made again by the operator, whose words are
  those that are raised.
"""
import ctypes
from typing import Any, Callable, List, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from .. import _abi
from . import _operators as ops

Results = Tuple[Tensor, Tensor, Tensor]
ANYTHING = (0, 0, 0, 0, 0, 0)  # is expected


# ---- When ------------------------------------------------------------------------------------------------------------

def _bits(*names: str) -> int:
    """Those of dispatch keys."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


def _keys_on() -> bool:
    """Whether dispatch keys of this thread say that a mode is on, as Python is told of them."""
    return bool(_included().raw_repr() & _MODES) or _autocast()


def _trust_keys() -> bool:
    """Has the dispatch keys of threads read as numbers (torch_plain.c), if they are seen to be what they are taken for:
    they change as the objects of Python do, by inference mode and by autocast. Whether they are."""
    def look() -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
        objects = _included().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()
        read = _keys()
        return read, tuple([a ^ b for a, b in zip(objects, read)])

    seen, cast = [look()], torch.is_autocast_enabled("cpu")
    with torch.inference_mode(not torch.is_inference_mode_enabled()):
        seen.append(look())
    torch.set_autocast_enabled("cpu", not cast)
    seen.append(look())
    torch.set_autocast_enabled("cpu", cast)
    casts = _bits(*(name for name in torch._C.DispatchKey.__members__ if name.startswith("Autocast")))
    (now, usual), (inferring, _), (casting, _) = seen
    if (now and all(one[1] == usual for one in seen) and now[0] != inferring[0] and now[0] == casting[0]
            and now[1] ^ casting[1] == _bits("AutocastCPU") and not usual[0] & _MODES and usual[1] & casts == casts):
        _keys(_MODES & (1 << 64) - 1, casts)
        return True
    return False


def _begin() -> Sequence[Callable[..., Any]]:
    """is_plain, forward, backward and keys of torch_direct.c, if this build of PyTorch, this Python and the library go
    together."""
    if not ops.by_shim or not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return ()
    begin = ctypes.PyDLL(ops.library._name).fxa_torch_direct_begin
    begin.argtypes, begin.restype = [ctypes.py_object], ctypes.py_object
    return begin((Tensor.__dlpack_c_exchange_api__, torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, Tensor,
                  torch.nn.Parameter, Tensor.is_neg, _keys_on, torch._C._len_torch_function_stack,
                  torch._C._autograd._profiler_enabled, vars(_forward_ad), "_current_level"))


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing but autograd stands between a call with these tensors and the kernel."""
    return False


try:
    _included, _autocast = torch._C._dispatch_tls_local_include_set, torch._C._is_any_autocast_enabled
    _MODES = ~_bits("BackendSelect", "ADInplaceOrView")  # which every thread has included
    _functions = _begin()
except (AttributeError, ValueError):  # of these private names, in another PyTorch; of a function that Python lacks
    _functions = ()
possible, trusted = len(_functions) > 0, False
if possible:
    is_plain, _run, _run_back, _keys = _functions
    try:
        trusted = _trust_keys()
    except (AttributeError, TypeError, ValueError):  # then _keys_on is asked
        pass


# ---- How -------------------------------------------------------------------------------------------------------------

_nothing = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def forward(call: Any, q: Tensor, k: Tensor, v: Tensor, config: Sequence[int], expected: Sequence[int]
            ) -> Sequence[Tensor]:
    """out, and lse and max where they are wanted, of a call that is plain; none of them: ask the operator. `config` is
    in place of the call's own; `expected` is what direct_expected says in torch_direct.c."""
    return _run(q, k, v, call.tensors, call.extras, call.scalars, call.ints, call.floats, config, call.program,
                expected)


def backward(call: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grads: Sequence[Tensor],
             want: Sequence[int]) -> Sequence[Tensor]:
    """The wanted gradients, at least one, of tensors that saved ones may have become: whatever they are is looked at
    there. None of them: ask the operator."""
    if not possible or torch.compiler.is_dynamo_compiling():  # which traces backward passes that are compiled
        return ()
    return _run_back(q, k, v, call.tensors, call.extras, call.scalars, call.ints, call.floats, call.config,
                     call.program, out, lse, grads, want)


def all_results(made: Sequence[Tensor], config: Sequence[int]) -> Results:
    """out, lse and max as the operator gives them: empty where they are not wanted."""
    flags = config[ops.FLAGS] if config else 0
    out = made[0]
    lse = made[1] if flags & _abi.RETURN_LSE else _nothing[torch.float64]
    if flags & _abi.RETURN_ROW_MAX:
        return out, lse, made[-1]
    return out, lse, _nothing[torch.float64 if out.dtype is torch.float64 else torch.float32]

