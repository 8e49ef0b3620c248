# SPDX-License-Identifier: Apache-2.0
"""Calls of fxattn::fwd and fxattn::bwd that bypass PyTorch's dispatcher, which takes most of the time of a small call.

    Call.run -> is_plain -> forward -> python/csrc/torch_direct.c -> the kernel's C code
    backward of an autograd Function -> backward -> python/csrc/torch_direct.c -> the kernel's C code

A call bypasses the dispatcher only if the dispatcher would call nothing but autograd before the operator's kernel. The
function is_plain (python/csrc/torch_plain.c) checks that the tensors have PyTorch's own classes and no lazy negation,
and that no mode is on in this thread: autocast, torch.func, fake and functional tensors, tracing, __torch_dispatch__
and __torch_function__ modes, dual numbers, a profiler.

No property of a tensor is cached between calls.

A direct call raises no errors. If a direct call is impossible or fails, the caller calls the operator, whose error is
raised.
"""
import ctypes
from typing import Any, Callable, List, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from ... import _abi
from .. import operators as ops

Results = Tuple[Tensor, Tensor, Tensor]
ANYTHING = (0, 0, 0, 0, 0, 0)  # for `expected`: no conditions


# ---- Conditions of a direct call -------------------------------------------------------------------------------------

def _bits(*names: str) -> int:
    """Returns the bits of the dispatch keys `names`."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


def _keys_on() -> bool:
    """Returns True if a mode is on in this thread, by the thread's dispatch keys as Python objects."""
    return bool(_included().raw_repr() & _MODES) or _autocast()


def _trust_keys() -> bool:
    """Lets torch_plain.c read a thread's dispatch keys as numbers in memory, after verifying the numbers: switching
    inference mode and autocast must change the numbers exactly as it changes PyTorch's Python objects. Returns True if
    the numbers are verified."""
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
    """Returns the functions is_plain, forward, backward and keys of torch_direct.c. Returns an empty tuple if this
    build of PyTorch, this Python or the library lacks something that these functions need."""
    if not ops.by_shim or not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return ()
    begin = ctypes.PyDLL(ops.library._name).fxa_torch_direct_begin
    begin.argtypes, begin.restype = [ctypes.py_object], ctypes.py_object
    return begin((Tensor.__dlpack_c_exchange_api__, torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, Tensor,
                  torch.nn.Parameter, Tensor.is_neg, _keys_on, torch._C._len_torch_function_stack,
                  torch._C._autograd._profiler_enabled, vars(_forward_ad), "_current_level"))


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns True if only autograd stands between a call with these tensors and the operator's kernel. This
    placeholder always returns False; the C function is_plain replaces it if torch_direct.c can be used."""
    return False


try:
    _included, _autocast = torch._C._dispatch_tls_local_include_set, torch._C._is_any_autocast_enabled
    _MODES = ~_bits("BackendSelect", "ADInplaceOrView")  # all keys except those that every thread includes
    _functions = _begin()
except (AttributeError, ValueError):  # a private name or a function is missing in this PyTorch or Python
    _functions = ()
possible, trusted = len(_functions) > 0, False
if possible:
    is_plain, _run, _run_back, _keys = _functions
    try:
        trusted = _trust_keys()
    except (AttributeError, TypeError, ValueError):  # torch_plain.c then calls _keys_on instead
        pass


# ---- Direct calls ----------------------------------------------------------------------------------------------------

_nothing = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def forward(call: Any, q: Tensor, k: Tensor, v: Tensor, config: Sequence[int], expected: Sequence[int]
            ) -> Sequence[Tensor]:
    """Returns out, and lse and max if requested; an empty tuple if the call must go through the operator. Requires
    is_plain(q, k, v). `config` replaces call.config. `expected`: ints (direct_expected in torch_direct.c) that
    state what the C function must find in q, k and v: alike shapes and dtypes, and the sizes and device of the mask. If
    it finds something else, the call must go through the operator."""
    return _run(q, k, v, call.tensors, call.extras, call.scalars, call.ints, call.floats, config, call.program,
                expected)


def backward(call: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grads: Sequence[Tensor],
             want: Sequence[int]) -> Sequence[Tensor]:
    """Returns the gradients of `want`, which has at least one element; an empty tuple if the call must go through the
    operator. The C function checks all tensors, because hooks on saved tensors may have replaced them."""
    if not possible or torch.compiler.is_dynamo_compiling():  # Dynamo traces a compiled backward pass
        return ()
    return _run_back(q, k, v, call.tensors, call.extras, call.scalars, call.ints, call.floats, call.config,
                     call.program, out, lse, grads, want)


def all_results(made: Sequence[Tensor], config: Sequence[int]) -> Results:
    """Returns (out, lse, max) as the operator does: lse and max are empty tensors if not requested."""
    flags = config[ops.FLAGS] if config else 0
    out = made[0]
    lse = made[1] if flags & _abi.RETURN_LSE else _nothing[torch.float64]
    if flags & _abi.RETURN_ROW_MAX:
        return out, lse, made[-1]
    return out, lse, _nothing[torch.float64 if out.dtype is torch.float64 else torch.float32]

