# SPDX-License-Identifier: Apache-2.0
"""flex_attention, with the signature, argument checks and results of PyTorch's function. A program that uses PyTorch's
flex_attention changes only its import, to `from fxattn.torch import flex_attention, create_block_mask`.

Differences from PyTorch's function:
* fxattn fuses eager and compiled calls; PyTorch fuses only compiled calls.
* fxattn has a backward pass on the CPU and on GPUs.
* fxattn returns LSE and row maxima on every device.
* fxattn computes gradients of captured tensors for all kinds of indexing.
* `kernel_options` are checked and then ignored, because they are options of PyTorch's kernels.
"""
import warnings
from typing import Any, Callable, Dict, Literal, NoReturn, Optional, Set, Tuple, Union, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn.attention import flex_attention as _theirs
from torch.nn.attention.flex_attention import AuxOutput as AuxOutput
from torch.nn.attention.flex_attention import AuxRequest as AuxRequest

from .. import _abi
from .._program import Program
from ..trace import trace
from .block_mask import UNBOUNDED_BLOCK, LazyBlockMask, mask_mod_of, noop_mask
from .call import call_of, score_attributes
from .dtypes import FLOAT8, autocast_inputs, mixed_inputs
from .frames import skip_frame
from .route import run
from .routes import bypass, compiled
from .routes.bypass import ALIKE, ALIKE_GROUPED
from .routes.direct import known_output
from .settings import check_scale

ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]
_BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
# Codes of the devices of masks, for `expected` of bypass.forward. _device_code adds CUDA devices with an index.
_DEVICE_CODES = {"cpu": -1, torch.device("cpu"): -1, "cuda": -2, torch.device("cuda"): -2}
_NO_FLAGS, _STRICT = (0,), (_abi.BOUNDS_CHECK,)  # configs of the operators
skip_frame(trace)  # Dynamo must not compile the tracer after a graph break
_warned: Set[str] = set()  # names of warnings that were given; each is given once in a process


def _warn_once(what: str, message: str, category: Any = UserWarning) -> None:
    # While PyTorch compiles, `_warned` is not read: its content would become a guard of the compiled function.
    if not torch.compiler.is_compiling() and what not in _warned:
        _warned.add(what)
        warnings.warn(message, category, stacklevel=4)  # the line that calls flex_attention


# ---- Checks, in the order of PyTorch's -------------------------------------------------------------------------------

def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.is_nested or key.is_nested or value.is_nested:
        raise NotImplementedError("flex_attention does not support NestedTensor inputs, including "
                                  "torch.compile(flex_attention) with jagged NestedTensor inputs. Convert inputs to "
                                  "dense tensors before calling flex_attention.")
    if query.device != key.device or query.device != value.device:
        raise ValueError(f"Expected query, key, and value to have the same device type, but got query.device: "
                         f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead.")
    if query.device.type == "meta":
        raise ValueError("FlexAttention is only supported on CUDA or CPU devices. Found input tensors on meta device.")
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        raise ValueError(f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
                         f"{query.dim()}, key.dim: {key.dim()} and value.dim: {value.dim()} instead.")
    if query.size(-1) != key.size(-1):
        raise ValueError(f"Expect query and key/value to have the same embedding dimension but got "
                         f"E={query.size(-1)} and E={key.size(-1)}.")
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if key.size(0) != value.size(0) or key.size(1) != value.size(1) or key.size(2) != value.size(2):
        raise ValueError(f"Expect key and value to have the same batch size, heads and length but got "
                         f"key of shape {tuple(key.shape)} and value of shape {tuple(value.shape)}.")


def _has_usual_shapes(query: Tensor, key: Tensor, value: Tensor, q: Any, k: Any, v: Any) -> bool:
    """Returns True if a few comparisons prove that _check_tensors and _check_heads would find no error; False if these
    two checks must run."""
    return (len(q) == 4 and len(k) == 4 and len(v) == 4 and q[3] == k[3] and q[1] == k[1] and k[:3] == v[:3]
            and not query.is_meta and query.device == key.device == value.device)


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    heads, kv_heads = query.size(1), key.size(1)
    if not enable_gqa and heads != kv_heads:
        raise ValueError(f"Expect query and key/value to have the same number of heads but got Hq={heads} and "
                         f"Hkv={kv_heads}. Try setting enable_gqa=True for GQA.")
    if enable_gqa and heads and (kv_heads == 0 or heads % kv_heads != 0):
        raise ValueError(f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and "
                         f"Hkv={kv_heads}.")


def _mask_batch(block_mask: Any) -> int:
    return block_mask.shape[0] if isinstance(block_mask, LazyBlockMask) else block_mask.kv_num_blocks.size(0)


def _check_batch(query: Tensor, key: Tensor, block_mask: Any) -> None:
    batch, kv_batch = query.size(0), key.size(0)
    if block_mask is None:
        raise ValueError(f"Expect query and key/value to have the same batch size, or non-none block_mask, but got "
                         f"block_mask=None, Bq={batch}, and Bkv={kv_batch}.")
    mask_batch = _mask_batch(block_mask)
    if mask_batch != batch:
        raise ValueError(f"Expect query and key/value to have the same batch size, or block_mask and query to have the "
                         f"same batch size, but got Bq={batch}, Bkv={kv_batch}, B_block_mask={mask_batch}.")
    if kv_batch != 1:
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={kv_batch}")


def _refuse_lengths(query: Tensor, key: Tensor, block_mask: Any) -> NoReturn:
    given = (f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={query.size(-2)} and "
             f"kv_len={key.size(-2)}. ")
    if query.size(-2) > block_mask.shape[-2] or key.size(-2) > block_mask.shape[-1]:
        raise ValueError(given + "As the block mask was created for a smaller length than you're using it for, you "
                         "likely need to create a new block mask.")
    raise ValueError(given + "As the block mask was created for a larger length than you're using it for, you can "
                     "either 1. create a new block mask with the correct length, or 2. 'adjust' the existing block "
                     "mask to the correct length by calling block_mask._adjust(q_len, kv_len). This essentially "
                     "'crops' the block mask to the upper left corner, which does not work for all mask_mods!")


def _check_entries(query: Tensor, batch: int, heads: int) -> None:
    """Raises ValueError if the mask has fewer batch entries or heads than the query, but more than 1, because PyTorch's
    kernels disagree about the meaning: GPU kernels use the mask's entries cyclically, CPU kernels divide the index. A
    mask with more batch entries or heads than the query is accepted; the surplus entries of the mask are ignored."""
    if 1 < batch < query.size(0) or 1 < heads < query.size(1) or not batch or not heads:
        raise ValueError(f"Expect block_mask and query to have the same batch size and the same number of heads, or "
                         f"block_mask to have 1, but got Bq={query.size(0)}, Hq={query.size(1)}, "
                         f"B_block_mask={batch} and H_block_mask={heads}.")


def _check_mask(query: Tensor, key: Tensor, block_mask: Any) -> None:
    if not isinstance(block_mask, _theirs.BlockMask):
        raise TypeError(f"block_mask is of type {type(block_mask).__name__}; a BlockMask is accepted, which "
                        f"create_block_mask(mask_mod, B, H, {query.size(-2)}, {key.size(-2)}, device=...) makes of a "
                        f"function mask_mod(b, h, q_idx, kv_idx)")
    if block_mask.mask_mod is getattr(_theirs, "_sliced_mask_mod_error", ...):
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")
    size = block_mask.BLOCK_SIZE
    if not (size[0] == UNBOUNDED_BLOCK and size[1] == UNBOUNDED_BLOCK):
        lengths = block_mask.seq_lengths
        if query.size(-2) != lengths[0] or key.size(-2) != lengths[1]:
            _refuse_lengths(query, key, block_mask)
        batch, heads = (1, 1, *block_mask.shape[:-2])[-2:]
        if batch not in (1, query.size(0)) or heads not in (1, query.size(1)):
            _check_entries(query, batch, heads)
    device = block_mask.device if isinstance(block_mask, LazyBlockMask) else block_mask.kv_num_blocks.device
    if query.device != device and (query.device.type != device.type or device.index is not None):
        raise RuntimeError(f"Expect q/k/v and block_mask to be on the same device but got {query.device} and {device}.")


def _check_options(options: Dict[str, Any]) -> None:
    if "BACKEND" in options and options.get("FORCE_USE_FLEX_ATTENTION", False):
        raise RuntimeError("BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION. BACKEND supersedes the "
                           "legacy knob; please drop FORCE_USE_FLEX_ATTENTION and only specify the desired BACKEND.")
    if "BACKEND" in options and options["BACKEND"] not in _BACKENDS:
        raise ValueError(f"Invalid BACKEND value '{options['BACKEND']}'. Must be one of {_BACKENDS}")
    _warn_once("kernel_options", "fxattn.torch.flex_attention takes kernel_options and does not use them: they are for "
              "PyTorch's kernels")


def _check_self_contained(traced: Any) -> None:
    """Raises ValueError if a score_mod or mask_mod given as program text uses tensors, or params without a default."""
    lacking = [c.name for c in traced.program.captures] + [p.name for p in traced.program.params if p.default is None]
    if lacking:
        raise ValueError(f"score_mod uses {', '.join(lacking)}, which flex_attention has no argument for; give them to "
                         f"fxattn.torch.attention by name, as params and tensors")


def _check_aux(return_lse: bool, return_aux: Optional[AuxRequest]) -> None:
    if return_lse and return_aux is not None:
        raise ValueError("Cannot specify both return_lse and return_aux. return_lse is deprecated, please use "
                         "return_aux=AuxRequest(lse=True) instead.")
    if return_lse:
        _warn_once("return_lse", "return_lse is deprecated and will be removed in v2.10. Please use "
                  "return_aux=AuxRequest(lse=True) instead.", FutureWarning)


# ---- The call --------------------------------------------------------------------------------------------------------

def _device_code(device: Any) -> Optional[int]:
    """Returns the int that stands for a device in the C code of the direct route (for a CUDA device its index), or None
    for a device without such an int. The table _DEVICE_CODES has these ints; CUDA devices with an index are added to
    the table."""
    where = torch.device(device)
    if where.type == "cuda" and where.index is not None:
        _DEVICE_CODES[device] = where.index
    return _DEVICE_CODES.get(device)


def _known_output(query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: Any,
                  enable_gqa: bool) -> Optional[Tensor]:
    """Returns the output of a call if its functions were traced in an earlier call and no check would find an error in
    its arguments. The C code of the direct route checks the shapes of query, key and value. Returns None if a function
    is untraced or an argument may be wrong; flex_attention then checks and traces the call. _known_output() may be
    called only if bypass.is_plain(query, key, value) is True, and raises no errors."""
    mask_mod, expected = None, ALIKE_GROUPED if enable_gqa else ALIKE
    if block_mask is not None:
        if type(block_mask) is not LazyBlockMask or block_mask._read is not None:
            return None
        mask_mod, batch, heads, device, _ = block_mask._fxattn
        code = _DEVICE_CODES.get(device)
        if code is None:
            code = _device_code(device)
        if block_mask.mask_mod is not mask_mod or code is None:
            return None
        expected = (expected[0], batch, heads, *block_mask.seq_lengths, code)
        mask_mod = None if mask_mod is noop_mask else mask_mod
    config = _NO_FLAGS if score_mod is None and mask_mod is None or not query.is_cpu else _STRICT
    return known_output(query, key, value, score_mod, mask_mod, scale, config, expected)


def _is_recorded() -> bool:
    """Returns True while PyTorch compiles, exports or traces. Indices into captured tensors are checked in eager calls
    only."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


@overload
def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[ScoreMod] = ...,
                   block_mask: Optional[_theirs.BlockMask] = ..., scale: Optional[float] = ...,
                   enable_gqa: bool = ..., return_lse: Literal[False] = ...,
                   kernel_options: Optional[Dict[str, Any]] = ..., *, return_aux: None = ...) -> Tensor: ...
@overload
def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[ScoreMod] = ...,
                   block_mask: Optional[_theirs.BlockMask] = ..., scale: Optional[float] = ...,
                   enable_gqa: bool = ..., return_lse: bool = ..., kernel_options: Optional[Dict[str, Any]] = ..., *,
                   return_aux: None = ...) -> Tuple[Tensor, Tensor]: ...
@overload
def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[ScoreMod] = ...,
                   block_mask: Optional[_theirs.BlockMask] = ..., scale: Optional[float] = ...,
                   enable_gqa: bool = ..., return_lse: bool = ..., kernel_options: Optional[Dict[str, Any]] = ..., *,
                   return_aux: AuxRequest) -> Tuple[Tensor, AuxOutput]: ...


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[ScoreMod] = None,
                   block_mask: Optional[_theirs.BlockMask] = None, scale: Optional[float] = None,
                   enable_gqa: bool = False, return_lse: bool = False,
                   kernel_options: Optional[Dict[str, Any]] = None, *, return_aux: Optional[AuxRequest] = None
                   ) -> Union[Tensor, Tuple[Tensor, Tensor], Tuple[Tensor, AuxOutput]]:
    """Returns softmax(score_mod(scale * query key^T, b, h, q, kv)) value, over the pairs that block_mask leaves.

    `query, key, value`: [B,Hq,L,E], [B,Hkv,S,E] and [B,Hkv,S,Ev], with any strides. The result [B,Hq,L,Ev] has the
        dtype of query and its order of strides. Key and value may have other dtypes than query, also float8. If key and
        value have batch size 1, all batch entries use this key and value, and a block_mask of query's batch size is
        required.
    `score_mod`: score_mod(score, b, h, q_idx, kv_idx) returns the new score; None leaves the score unchanged.
    `block_mask`: the mask, made by create_block_mask; None means that all pairs are attended.
    `scale`: the factor of query key^T, by default 1 / sqrt(E).
    `enable_gqa`: True allows Hq to be a multiple of Hkv.
    `return_aux`: with AuxRequest(lse, max_scores), returns (out, AuxOutput). LSE is differentiable.
    `return_lse`: returns (out, lse); deprecated in PyTorch.
    `kernel_options`: checked and not used.

    Rows that attend to no key are 0, with lse -inf.
    """
    plain = not is_dynamo_compiling() and bypass.is_plain(query, key, value)
    if plain and return_aux is None and not return_lse and not kernel_options:
        found = _known_output(query, key, value, score_mod, block_mask, scale, enable_gqa)
        if found is not None:
            return found
    if not plain:
        for name, given in (("query", query), ("key", key), ("value", value)):
            if not isinstance(given, Tensor):
                raise TypeError("%s is of type %s; a tensor is accepted (fxattn.numpy takes arrays)"
                                % (name, type(given).__name__))
    nested = query.is_nested or key.is_nested or value.is_nested  # the shape of a nested tensor cannot be read
    if nested or not _has_usual_shapes(query, key, value, query.shape, key.shape, value.shape):
        _check_tensors(query, key, value)
        _check_heads(query, key, enable_gqa)
    if scale is not None:
        check_scale(scale)
    if query.size(0) != key.size(0):
        _check_batch(query, key, block_mask)
        key, value = key.expand(query.size(0), -1, -1, -1), value.expand(query.size(0), -1, -1, -1)
    if block_mask is not None:
        _check_mask(query, key, block_mask)
    if return_lse or return_aux is not None:
        _check_aux(return_lse, return_aux)
    if kernel_options:
        _check_options(kernel_options)
    want_lse = return_lse or (return_aux is not None and return_aux.lse)
    want_max = return_aux is not None and return_aux.max_scores
    flags = (_abi.RETURN_LSE if want_lse else 0) | (_abi.RETURN_ROW_MAX if want_max else 0)
    query, key, value = autocast_inputs(query, key, value)
    stored = query.dtype
    if stored in FLOAT8 or key.dtype is not stored or value.dtype is not stored:
        query, key, value = mixed_inputs(query, key, value)
    mask_mod = mask_mod_of(block_mask)
    if is_dynamo_compiling():
        if not compiled.is_capturable():
            torch._dynamo.graph_break()
        out, lse, rows = compiled.call_in_graph(query, key, value, score_mod, (mask_mod,), scale, config=(flags,))
    else:
        traced = None if score_mod is None and mask_mod is None else trace(score_mod, mask_mod,
                                                                           **score_attributes(query))
        if isinstance(score_mod, (str, Program)):
            _check_self_contained(traced)
        strict = traced is not None and query.is_cpu and not _is_recorded()
        call = call_of(traced, scale, (flags | _abi.BOUNDS_CHECK if strict else flags,))
        out, lse, rows = run(call, query, key, value, plain)
    if stored in FLOAT8:
        out = out.to(stored)
    if not flags and return_aux is None:
        return out
    shown = lse.to(rows.dtype)
    if return_aux is None:
        return out, shown
    return out, AuxOutput(lse=shown if want_lse else None, max_scores=rows if want_max else None)
