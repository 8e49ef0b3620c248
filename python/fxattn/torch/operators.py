# SPDX-License-Identifier: Apache-2.0
"""The operators fxattn::fwd and fxattn::bwd in PyTorch: schemas, kernels and fake implementations.

The kernels are in libfxattn_torch (python/csrc), which registers itself through libtorch's stable C interface. A call
of an operator thus runs no Python code, and compiled and exported programs can run without Python. If this library or
the C interface is missing (PyTorch before 2.10), _plain.py provides the same operators by ctypes, with slower calls.

torch_call.h (python/csrc) describes the arguments of the operators.
routes/autograd.py has the gradients of the operators.
"""
import ctypes
import os
import warnings
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

from .. import _abi
from .._library import library_path

_COMMON = ("(Tensor q, Tensor k, Tensor v, Tensor[] tensors, Tensor[] extras, Tensor[] scalars, SymInt[] ints, "
           "float[] floats, SymInt[] config, str program")
FORWARD = "fwd" + _COMMON + ") -> (Tensor, Tensor, Tensor)"
BACKWARD = "bwd" + _COMMON + ", Tensor out, Tensor lse, Tensor[] grads, int[] want) -> Tensor[]"

# Indices of the fields of `config`, and the values of `want`, as in torch_call.h. Trailing fields may be missing.
(FLAGS, SLOTS, SQ, SK, WINDOW_LEFT, WINDOW_RIGHT, PAGE_SIZE, Q_LEN, K_LEN, HEADS, BPROP_TEXT, BPROP_TENSORS,
 WIDE, MAPS) = range(14)
WANT_Q, WANT_K, WANT_V, WANT_SINK, WANT_SCALARS, WANT_TENSORS = range(6)

_NARROW = (torch.float16, torch.bfloat16)
SHIM_NAMES = ("libfxattn_torch.so", "libfxattn_torch.dylib")
library: Any = None  # torch.library.Library, or the loaded libfxattn_torch; never released


def _load_shim() -> Any:
    """Loads libfxattn_torch, which registers the operators. Returns the library; None if it is missing, or, with a
    warning, if it cannot register the operators."""
    folder = os.path.dirname(os.path.abspath(library_path()))
    path = next((p for p in (os.path.join(folder, name) for name in SHIM_NAMES) if os.path.exists(p)), None)
    if path is None:
        return None
    shim = ctypes.CDLL(path)
    shim.fxa_torch_register.argtypes = [ctypes.c_char_p] * 4 + [ctypes.c_char_p, ctypes.c_size_t]
    theirs = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    text = ctypes.create_string_buffer(600)
    arguments = (theirs.encode(), os.path.abspath(library_path()).encode(), FORWARD.encode(), BACKWARD.encode())
    if shim.fxa_torch_register(*arguments, text, len(text)):
        warnings.warn("fxattn.torch calls the library by ctypes, which costs some 20 us a call: %s"
                      % text.value.decode("utf-8", "replace"))
        return None
    return shim


def _define() -> Any:
    shim = _load_shim()
    if shim is not None:
        return shim
    from . import _plain
    library = torch.library.Library("fxattn", "FRAGMENT")
    library.define(FORWARD)
    library.define(BACKWARD)
    for key in ("CPU", "CUDA"):
        library.impl("fwd", _plain.forward, key)
        library.impl("bwd", _plain.backward, key)
    return library


# ---- Shapes of results, for fake implementations and for kernels -----------------------------------------------------

def strides_like(strides: Sequence[int], size: Sequence[int]) -> List[int]:
    """Returns strides of a dense tensor of `size` that has the dimension order of a tensor with `strides`, except that
    the last dimension is always innermost. Of two equal strides the later dimension is the inner one, as in PyTorch's
    flex_attention."""
    last = len(size) - 1
    order = [last]
    for dim in range(last - 1, -1, -1):
        at = 1
        while at < len(order) and strides[order[at]] <= strides[dim]:
            at += 1
        order.insert(at, dim)
    out, following = [0] * len(size), 1
    for dim in order:
        out[dim] = following
        following = following * (size[dim] if size[dim] != 0 else 1)
    return out


def _field(config: Sequence[int], field: int) -> int:
    return config[field] if len(config) > field else 0


def _result_dtype(like: Tensor, config: Sequence[int]) -> torch.dtype:
    return torch.float32 if like.dtype in _NARROW and _field(config, WIDE) else like.dtype


def _clear_packed(results: Sequence[Tensor], config: Sequence[int]) -> None:
    """Sets results of packed rows to 0, because kernels never write rows that belong to no sequence."""
    if _field(config, FLAGS) & _abi.VARLEN:
        for result in results:
            result.zero_()


def results_of_forward(q: Tensor, v: Tensor, config: Sequence[int]) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns new tensors for out, lse and max. lse and max have no elements if they are not requested."""
    size, flags = [q.shape[0], q.shape[1], q.shape[2], v.shape[3]], _field(config, FLAGS)
    out = q.new_empty_strided(size, strides_like(q.stride(), size), dtype=_result_dtype(q, config))
    lse = q.new_empty(size[:3] if flags & _abi.RETURN_LSE else [0], dtype=torch.float64)
    rows = torch.float64 if q.dtype == torch.float64 else torch.float32
    found = out, lse, q.new_empty(size[:3] if flags & _abi.RETURN_ROW_MAX else [0], dtype=rows)
    _clear_packed(found, config)
    return found


def results_of_backward(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], extras: Sequence[Tensor],
                        scalars: Sequence[Tensor], config: Sequence[int], want: Sequence[int]) -> List[Tensor]:
    """Returns new tensors for the gradients of `want`."""
    results = []
    for one in want:
        if one <= WANT_V:
            like = (q, k, v)[one]
            results.append(like.new_empty_strided(like.shape, strides_like(like.stride(), like.shape),
                                                  dtype=_result_dtype(like, config)))
        elif one >= WANT_TENSORS:
            like = tensors[one - WANT_TENSORS]
            results.append(like.new_empty(like.shape, dtype=_result_dtype(like, config)))
        else:
            like = extras[sink_place(_field(config, SLOTS))] if one == WANT_SINK else scalars[0]
            results.append(like.new_empty(like.shape))
    _clear_packed(results, config)
    return results


def extra_place(slots: int, slot: int) -> int:
    """Returns the index of the tensor of `slot` among the extra tensors. `slots`: a bit for each slot in use."""
    return bin(slots & ((1 << slot) - 1)).count("1")


def sink_place(slots: int) -> int:
    """Returns the index of the sink tensor among the extra tensors."""
    return extra_place(slots, _abi.SLOT_SINKS)


def _check_there(q: Tensor, *others: Any) -> None:
    """Raises RuntimeError if q has values but another tensor of the call is on the device meta. The dispatcher runs the
    fake implementation for such a call, whose result would be uninitialized memory."""
    if q.device.type != "meta" and any(t.device.type == "meta" for part in others for t in part):
        raise RuntimeError("q is on %s, and another tensor of the call on meta, which has no values" % q.device)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, tensors: Any, extras: Any, scalars: Any, ints: Any, floats: Any,
                  config: Any, program: str) -> Tuple[Tensor, Tensor, Tensor]:
    _check_there(q, (k, v), tensors, extras, scalars)
    return results_of_forward(q, v, config)


def _backward_fake(q: Tensor, k: Tensor, v: Tensor, tensors: Any, extras: Any, scalars: Any, ints: Any, floats: Any,
                   config: Any, program: str, out: Tensor, lse: Tensor, grads: Any, want: Any) -> List[Tensor]:
    _check_there(q, (k, v, out, lse), tensors, extras, scalars, grads)
    return results_of_backward(q, k, v, tensors, extras, scalars, config, want)


library = _define()
by_shim = isinstance(library, ctypes.CDLL)
fwd = torch.ops.fxattn.fwd.default
bwd = torch.ops.fxattn.bwd.default
torch.library.register_fake("fxattn::fwd", _forward_fake)
torch.library.register_fake("fxattn::bwd", _backward_fake)


def cache_stats() -> Dict[str, int]:
    """Returns the counters of the plan cache of PyTorch's operators by name: builds, hits, runs and others."""
    if not by_shim:
        from .._library import cache_stats as plain_stats
        return plain_stats()
    stats = _abi.CacheStats()
    library.fxa_torch_cache_stats(ctypes.byref(stats))
    return {field[0]: getattr(stats, field[0]) for field in _abi.CacheStats._fields_ if field[0] != "reserved"}


def cache_clear() -> None:
    """Removes all plans from the plan cache of PyTorch's operators. Plans in use stay valid."""
    if by_shim:
        library.fxa_torch_cache_clear()
    else:
        from .._library import cache_clear as plain_clear
        plain_clear()
