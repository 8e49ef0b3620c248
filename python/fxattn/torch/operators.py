# SPDX-License-Identifier: Apache-2.0
"""The operators fxattn::fwd and fxattn::bwd in PyTorch: schemas, registration, fake implementations.

The file operators.py passes the schemas of the operators to libfxattn_torch, whose torch_shim.c (python/csrc) registers
the kernels for CPU and CUDA, and passes the fake implementations, which compilers use, to torch.library.

libfxattn_torch registers itself through libtorch's stable C interface. A call of fxattn::fwd or fxattn::bwd runs no
Python code, so compiled and exported programs can run without Python. torch_call.h (python/csrc) describes the
arguments of fxattn::fwd and fxattn::bwd. routes/autograd.py has the gradients of fxattn::fwd.
"""
import ctypes
import os
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

from .. import _abi
from .._errors import OutsideError, is_outside
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


def _load_shim() -> ctypes.CDLL:
    """Loads libfxattn_torch, which registers the operators fxattn::fwd and fxattn::bwd. Returns the library, which is
    never unloaded. Raises ImportError if libfxattn_torch is missing or cannot register the two operators."""
    main = os.path.abspath(library_path())
    folder = os.path.dirname(main)
    path = next((p for p in (os.path.join(folder, name) for name in SHIM_NAMES) if os.path.exists(p)), None)
    if path is None:
        raise ImportError("fxattn.torch needs %s, which has PyTorch's operators, beside %s" % (SHIM_NAMES[0], main))
    try:
        shim = ctypes.CDLL(path)
        register = shim.fxa_torch_register
    except (OSError, AttributeError) as error:
        raise ImportError("fxattn.torch cannot load %s: %s" % (path, error)) from error
    register.argtypes = [ctypes.c_char_p] * 4 + [ctypes.c_char_p, ctypes.c_size_t]
    theirs = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    text = ctypes.create_string_buffer(600)
    arguments = (theirs.encode(), main.encode(), FORWARD.encode(), BACKWARD.encode())
    if register(*arguments, text, len(text)):
        raise ImportError("fxattn.torch cannot register its operators in PyTorch %s by %s: %s"
                          % (torch.__version__, path, text.value.decode("utf-8", "replace")))
    return shim


# ---- Shapes of results, for fake implementations --------------------------------------------------------------------

def strides_like(strides: Sequence[int], size: Sequence[int]) -> List[int]:
    """Returns strides of a dense tensor of `size` that has the dimension order of a tensor with `strides`, except that
    the last dimension is always innermost. If two strides are equal, the later dimension is the inner one, as in
    PyTorch's flex_attention."""
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
    """Sets the new result tensors of a call with packed rows to 0, because kernels never write rows that belong to no
    sequence."""
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
    """Returns new tensors for the gradients of the inputs whose codes are in `want`."""
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
            like = extras[sink_index(_field(config, SLOTS))] if one == WANT_SINK else scalars[0]
            results.append(like.new_empty(like.shape))
    _clear_packed(results, config)
    return results


def extra_index(slots: int, slot: int) -> int:
    """Each kind of extra tensor (sinks, seed, lengths, ...) has a number, its slot. Returns the index of the tensor of
    `slot` among the extra tensors of a call; `slots` has a bit for each kind of extra tensor that the call has."""
    return bin(slots & ((1 << slot) - 1)).count("1")


def sink_index(slots: int) -> int:
    """Returns the index of the sink tensor in the list of a call's extra tensors (sinks, seed, lengths, ...)."""
    return extra_index(slots, _abi.SLOT_SINKS)


def _check_there(q: Tensor, *others: Any) -> None:
    """Raises RuntimeError if q has values but another tensor of the call is on the device meta. If one tensor of a call
    is on meta, the dispatcher runs the fake implementation, which does not initialize the results."""
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


library = _load_shim()
fwd = torch.ops.fxattn.fwd.default
bwd = torch.ops.fxattn.bwd.default
torch.library.register_fake("fxattn::fwd", _forward_fake)
torch.library.register_fake("fxattn::bwd", _backward_fake)


def forward(*arguments: Any) -> Tuple[Tensor, Tensor, Tensor]:
    """Calls fxattn::fwd with (q, k, v, *Call.arguments()). Returns (out, LSE, row maxima). Raises OutsideError, an
    IndexError as in PyTorch, for an index outside a captured tensor."""
    try:
        return fwd(*arguments)  # type: ignore[no-any-return]
    except RuntimeError as error:
        if not is_outside(str(error)):
            raise
        raise OutsideError(str(error).partition("fxattn: ")[2].partition("\n")[0]) from None


def cache_stats() -> Dict[str, int]:
    """Returns the counters of the plan cache of PyTorch's operators by name: builds, hits, runs and others."""
    stats = _abi.CacheStats()
    library.fxa_torch_cache_stats(ctypes.byref(stats))
    return {field[0]: getattr(stats, field[0]) for field in _abi.CacheStats._fields_ if field[0] != "reserved"}


def cache_clear() -> None:
    """Removes all plans from the plan cache of PyTorch's operators. A plan that a run is using stays valid after its
    removal."""
    library.fxa_torch_cache_clear()
