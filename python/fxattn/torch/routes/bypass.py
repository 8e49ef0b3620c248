# SPDX-License-Identifier: Apache-2.0
"""The operators' C code called without PyTorch's dispatcher, which takes most of the time of a small call
(python/csrc/torch_direct.c).

A call may bypass the dispatcher only if the dispatcher would call nothing but autograd before the kernel of fxattn::fwd
or fxattn::bwd. The function is_plain (python/csrc/torch_plain.c) checks in every call that the tensors have PyTorch's
own classes and no lazy negation, and that no mode is on in this thread: autocast, torch.func, fake and functional
tensors, tracing, __torch_dispatch__ and __torch_function__ modes, dual numbers, a profiler. No property of a tensor is
cached between calls.

The functions forward() and backward() of this file raise no errors. If a call cannot bypass the dispatcher, or fails,
forward() and backward() return an empty tuple; the caller then calls fxattn::fwd or fxattn::bwd, which raises the
error.
"""
import ctypes
from typing import Any, Callable, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from ... import _abi
from .. import operators as ops
from ..call import Results

# Values of `expected`, the conditions that forward() checks (direct_expected in torch_direct.c). ANYTHING: none. ALIKE:
# q, k and v have one dtype and shapes that fit. ALIKE_GROUPED: as ALIKE, but q may have a multiple of the heads of k.
ANYTHING, ALIKE, ALIKE_GROUPED = (0, 0, 0, 0, 0, 0), (1, 1, 1, -1, -1, -1), (2, 1, 1, -1, -1, -1)


# ---- Conditions ------------------------------------------------------------------------------------------------------

def _bits(*names: str) -> int:
    """Returns the bits of the dispatch keys `names`."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


def _is_mode_on() -> bool:
    """Returns True if a mode of PyTorch's dispatcher (such as autocast, functorch or tracing) is on in this thread.
    Reads the thread's dispatch keys from PyTorch's Python objects."""
    return bool(_included().raw_repr() & _MODES) or _autocast()


def _trust_keys() -> bool:
    """Lets torch_plain.c read a thread's dispatch keys as numbers in memory, after verifying the numbers: switching
    inference mode and autocast must change the numbers exactly as it changes PyTorch's Python objects. Returns True if
    the dispatch keys change as PyTorch's inference mode and autocast do, so that torch_plain.c may read the keys."""
    def read() -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
        objects = _included().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()
        numbers = _keys()
        return numbers, tuple([a ^ b for a, b in zip(objects, numbers)])

    seen, cast = [read()], torch.is_autocast_enabled("cpu")
    with torch.inference_mode(not torch.is_inference_mode_enabled()):
        seen.append(read())
    torch.set_autocast_enabled("cpu", not cast)
    seen.append(read())
    torch.set_autocast_enabled("cpu", cast)
    casts = _bits(*(name for name in torch._C.DispatchKey.__members__ if name.startswith("Autocast")))
    (now, usual), (inferring, _), (casting, _) = seen
    if (now and all(one[1] == usual for one in seen) and now[0] != inferring[0] and now[0] == casting[0]
            and now[1] ^ casting[1] == _bits("AutocastCPU") and not usual[0] & _MODES and usual[1] & casts == casts):
        _keys(_MODES & (1 << 64) - 1, casts)
        return True
    return False


def _functions_of_c() -> Sequence[Callable[..., Any]]:
    """Returns the functions is_plain, forward, backward and keys of torch_direct.c. Returns an empty tuple if this
    build of PyTorch, this Python or the library lacks something that torch_direct.c needs."""
    if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return ()
    begin = ctypes.PyDLL(ops.library._name).fxa_torch_direct_begin
    begin.argtypes, begin.restype = [ctypes.py_object], ctypes.py_object
    return begin((Tensor.__dlpack_c_exchange_api__, torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, Tensor,
                  torch.nn.Parameter, Tensor.is_neg, _is_mode_on, torch._C._len_torch_function_stack,
                  torch._C._autograd._profiler_enabled, vars(_forward_ad), "_current_level"))


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Returns True if, in a call with the given tensors, PyTorch runs nothing but autograd before the kernel of the
    operator. The Python function is_plain() is a placeholder that always returns False; the C function is_plain
    replaces the placeholder if torch_direct.c can be used."""
    return False


def forward(*arguments: Any) -> Sequence[Tensor]:
    """Calls fxattn::fwd with (q, k, v, *Call.arguments(), expected). Returns out, and LSE and row maxima if requested;
    or an empty tuple if the call cannot bypass the dispatcher and the caller must call fxattn::fwd. Requires
    is_plain(q, k, v).
    `expected`: ints that state what the C function must find in q, k and v: alike shapes and dtypes, and the sizes and
        device of the mask."""
    return ()


try:
    _included, _autocast = torch._C._dispatch_tls_local_include_set, torch._C._is_any_autocast_enabled
    _MODES = ~_bits("BackendSelect", "ADInplaceOrView")  # all keys except those that every thread includes
    _functions = _functions_of_c()
except (AttributeError, ValueError):  # a private name or a function is missing in this PyTorch or Python
    _functions = ()
possible, trusted = len(_functions) > 0, False
if possible:
    is_plain, forward, _backward, _keys = _functions
    try:
        trusted = _trust_keys()
    except (AttributeError, TypeError, ValueError):  # torch_plain.c then calls _is_mode_on instead
        pass


# ---- Calls -----------------------------------------------------------------------------------------------------------

_nothing = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def backward(*arguments: Any) -> Sequence[Tensor]:
    """Calls fxattn::bwd with (q, k, v, *Call.arguments(), out, lse, grads, want). Returns the gradients that `want`
    lists (`want` is not empty), or an empty tuple if the call cannot bypass the dispatcher and the caller must call the
    operator fxattn::bwd. The C code of backward() checks all tensors, because hooks on tensors that autograd saved may
    have replaced the tensors."""
    if not possible or torch.compiler.is_dynamo_compiling():  # Dynamo traces a compiled backward pass
        return ()
    return _backward(*arguments)  # type: ignore[no-any-return]


def all_results(made: Sequence[Tensor], config: Sequence[int]) -> Results:
    """Returns (out, LSE, row maxima) as fxattn::fwd does, from the result of forward(): LSE and row maxima are empty
    tensors if not requested."""
    flags = config[ops.FLAGS] if config else 0
    out = made[0]
    lse = made[1] if flags & _abi.RETURN_LSE else _nothing[torch.float64]
    if flags & _abi.RETURN_ROW_MAX:
        return out, lse, made[-1]
    return out, lse, _nothing[torch.float64 if out.dtype is torch.float64 else torch.float32]
