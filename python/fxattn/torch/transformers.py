# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fxattn" in Hugging Face transformers.

After fxattn.torch.register_transformers(), models of transformers accept attn_implementation="fxattn".

transformers calls two functions that are registered under the name of the implementation. The function attention_mask()
makes the mask of a pass: a ModelMask, which is a mask_mod, so that no array of size [S,S] is allocated for padding,
causal masks and windows (model_mask.py). The function attention_forward() computes the attention of a layer as one
fused call, for all combinations of window, soft cap, sinks, biases, sparse indices, dropout and grouped heads. The file
supported_models.py finds the models that can use attn_implementation="fxattn"; alibi_models.py replaces the attention
layers of models with ALiBi.
"""
import warnings
from typing import Any, Callable, Optional, Set, Tuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .._errors import ArgumentError, ArgumentTypeError
from . import alibi_models, flex, model_mask, supported_models
from .attention import attention
from .model_mask import MaskTensor, ModelMask, mask_of
from .block_mask import mask_mod_of

NAME = "fxattn"
# Keywords of some models that would change the result and that fxattn does not support.
_REFUSED = {"cache": "a paged cache (continuous batching)", "head_mask": "head_mask"}
# Keywords for other implementations, which are ignored without a warning.
_IGNORED = frozenset(("position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q",
                      "max_length_k", "seq_idx", "num_items_in_batch", "deterministic", "output_attentions"))
_warned: Set[str] = set()  # warnings that have been given, each once in a process


def register_transformers(name: str = NAME, dense_mask_bytes: Optional[int] = None) -> None:
    """Registers attn_implementation=`name` in transformers (4.53 or newer), also for BLOOM and MPT of transformers.
    Models that read their mask as a tensor get a dense mask of at most `dense_mask_bytes` bytes (None: the limit stays
    as it is; at first it is 1 GiB)."""
    if dense_mask_bytes is not None:
        if not isinstance(dense_mask_bytes, int) or dense_mask_bytes < 0:
            raise ArgumentError("dense_mask_bytes is %r; a number of bytes, 0 or more, is accepted"
                                % (dense_mask_bytes,))
        model_mask.dense_bytes = dense_mask_bytes
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    except ImportError as missing:
        raise ImportError("register_transformers() needs transformers 4.53 or newer, which has AttentionInterface and "
                          "AttentionMaskInterface: %s" % missing) from missing
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    supported_models.check_models(name, PreTrainedModel, attend)
    alibi_models.install(ModelMask, attend)


# ---- Masks -----------------------------------------------------------------------------------------------------------

def _causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx


def _both(first: Optional[Callable[..., Any]], second: Optional[Callable[..., Any]]) -> Optional[Callable[..., Any]]:
    """Returns the mask_mod that is True where `first` and `second` are; None if both are None, which masks nothing."""
    if first is None or second is None:
        return second if first is None else first
    return lambda b, h, q_idx, kv_idx: first(b, h, q_idx, kv_idx) & second(b, h, q_idx, kv_idx)


def _padding_mod(real: Tensor) -> Optional[Callable[..., Any]]:
    """Returns the mask_mod of `real`, bool [B,keys], True for tokens; None if all keys are tokens. Comparisons with the
    first and last token of each batch entry let engines skip entire tiles. The mask_mod reads `real`, the table of
    tokens that are not padding, only if there is padding between tokens, or if PyTorch compiles, when the values of
    `real` are unknown."""
    has_values = not torch.compiler.is_compiling()
    if has_values and bool(real.all()):
        return None
    keys = real.shape[-1]
    first = real.to(torch.int32).argmax(-1).to(torch.int32)
    last = keys - 1 - real.flip(-1).to(torch.int32).argmax(-1).to(torch.int32)
    if has_values and bool((last - first + 1 == real.sum(-1)).all()):
        return lambda b, h, q_idx, kv_idx: (kv_idx >= first[b]) & (kv_idx <= last[b])
    return lambda b, h, q_idx, kv_idx: (kv_idx >= first[b]) & (kv_idx <= last[b]) & real[b, kv_idx]


def _offset(value: Any, device: Any) -> Any:
    """Returns an offset of row or key indices as a tensor, so that all steps of decoding use one program; an int 0
    stays an int. An offset of row or key indices that is a tensor is copied, because a static cache increments the
    tensor in place before the mask is read."""
    if isinstance(value, Tensor):
        return value.to(torch.int32, copy=True)
    if isinstance(value, int) and value != 0 and not torch.compiler.is_compiling():
        return torch.tensor(value, dtype=torch.int32, device=device)
    return value


def _shifted(mod: Callable[..., Any], q_offset: Any, kv_offset: Any) -> Callable[..., Any]:
    """Returns the mask_mod `mod` with q_offset added to the index of the row, and kv_offset to the index of the key."""
    if isinstance(q_offset, int) and q_offset == 0 and isinstance(kv_offset, int) and kv_offset == 0:
        return mod
    return lambda b, h, q_idx, kv_idx: mod(b, h, q_idx + q_offset, kv_idx + kv_offset)


def _shifted_causal(q_offset: Any, kv_offset: Any) -> Callable[..., Any]:
    """Returns the causal mask with offsets, as a bound of kv_idx - q_idx. GPU engines treat a bound of kv_idx - q_idx
    as a band along the diagonal, for every value of the offsets."""
    if isinstance(q_offset, int) and isinstance(kv_offset, int) and q_offset == kv_offset:
        return _causal
    most = q_offset - kv_offset
    return lambda b, h, q_idx, kv_idx: kv_idx - q_idx <= most


def _is_causal(mask_function: Any) -> bool:
    home = str(getattr(mask_function, "__module__", ""))
    return mask_function is _causal or (home == "transformers.masking_utils"
                                        and getattr(mask_function, "__name__", "") == "causal_mask_function")


def attention_mask(batch_size: int, kv_length: int, q_length: Optional[int] = None, q_offset: Any = 0,
                   kv_offset: Any = 0, mask_function: Callable[..., Any] = _causal,
                   attention_mask: Optional[Tensor] = None, device: Any = None,
                   cache_position: Optional[Tensor] = None, config: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Makes the mask of a pass for transformers: a ModelMask, or a dense tensor for models that test the type of their
    mask. `attention_mask`: the padding mask [B,keys], True for tokens. `cache_position`: the positions of the rows,
    which transformers 4 passes in place of q_length and q_offset. Keywords that this docstring does not name are hints,
    and are ignored."""
    if q_length is None:
        if cache_position is None:
            raise ArgumentError("the mask of attn_implementation=\"fxattn\" was asked for without q_length or "
                                "cache_position")
        q_length, q_offset, device = cache_position.shape[0], cache_position[0], device or cache_position.device
    if device is None:
        device = "cpu" if attention_mask is None else attention_mask.device
    places = _offset(q_offset, device), _offset(kv_offset, device)
    mod: Any = _shifted_causal(*places) if _is_causal(mask_function) else _shifted(mask_function, *places)
    if attention_mask is not None:
        missing = kv_length + kv_offset - attention_mask.shape[-1]
        real = attention_mask.to(device=device, dtype=torch.bool)
        padding = _padding_mod(torch.nn.functional.pad(real, (0, missing)) if missing > 0 else real)
        mod = _both(mod, None if padding is None else _shifted(padding, 0, places[1]))  # padding masks keys only
    return mask_of(mod, batch_size, (q_length, kv_length), device, config, dtype)


# ---- Attention -------------------------------------------------------------------------------------------------------

def _reader(table: Tensor, what: str, sizes: Tuple[int, ...]) -> Callable[..., Any]:
    """Returns a function (b, h, q, k) -> element of `table`, which has four dimensions and broadcasts to `sizes`. Keys
    of `table` beyond the number of keys, sizes[3], are cut off."""
    table = table[..., :sizes[3]]
    if table.dim() != 4 or any(n != 1 and n != size for n, size in zip(table.shape, sizes)):
        raise ArgumentError("%s has shape %s; one that broadcasts to %s is accepted (batch, heads, rows, keys)"
                            % (what, tuple(table.shape), tuple(sizes)))
    axes = tuple(i for i in range(4) if table.shape[i] != 1)
    table = table.reshape([table.shape[i] for i in axes])
    return lambda *place: table[tuple(place[i] for i in axes)] if axes else table


def _without_mask(module: Any, sizes: Tuple[int, ...], is_causal: Optional[bool], window: Optional[int]) -> Any:
    """Returns the mask_mod for attention_mask=None, with the meaning that SDPA has in transformers: causal if the
    module is causal, aligned to the first row and key; a single row is the last row. If the module is causal and has a
    sliding window, the mask includes the window."""
    rows, keys = sizes[2], sizes[3]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not causal or (rows == 1 and window is None):
        return None
    if window is None:
        return _causal
    shift = keys - 1 if rows == 1 else 0
    return lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx + shift) & (kv_idx > q_idx + shift - window)


def _of_model_mask(mask: ModelMask, query: Tensor, key: Tensor) -> Optional[Callable[..., Any]]:
    """Returns the mask_mod of `mask`, a ModelMask that attention_mask() has made. A mask of one row or one key is
    broadcast, as eager attention does."""
    (rows, keys), mod = mask.seq_lengths, mask_mod_of(mask)
    sizes = (rows if query.shape[2] == rows else 1, keys if key.shape[2] == keys else 1)
    if mod is None or sizes != (rows, keys) or (rows, keys) == (query.shape[2], key.shape[2]):
        flex._check_mask(query, key, mask)
        return mod
    if mask.shape[0] not in (1, query.shape[0]) or mask.device.type != query.device.type:
        flex._check_mask(query, key, mask)
    one_row, one_key = rows != query.shape[2], keys != key.shape[2]
    return lambda b, h, q_idx, kv_idx: mod(b, h, q_idx * 0 if one_row else q_idx, kv_idx * 0 if one_key else kv_idx)


def _listed(indices: Tensor, count: int) -> Tensor:
    """Returns a bool table [..., count] that is True at the listed indices. Negative indices are ignored."""
    place = torch.where(indices < 0, count, indices).long()
    table = torch.zeros((*indices.shape[:-1], count + 1), dtype=torch.bool, device=indices.device)
    return table.scatter(-1, place, True)


def _selected(module: Any, indices: Optional[Tensor], block_indices: Optional[Tensor], query: Tensor, key: Tensor
              ) -> Optional[Callable[..., Any]]:
    """Returns the mask_mod of the keys that an indexer selected; None without a selection. `indices` [B,Sq,n]: keys.
    `block_indices` [B,heads,Sq,n]: blocks of module.indexer.block_size keys, where heads divides the number of query
    heads."""
    batch, heads, rows, keys = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    if indices is not None:
        if indices.dim() != 3 or tuple(indices.shape[:2]) != (batch, rows):
            raise ArgumentError("indices have shape %s; (%d, %d, keys of each row) is accepted"
                                % (tuple(indices.shape), batch, rows))
        table = _listed(indices, keys)
        return lambda b, h, q_idx, kv_idx: table[b, q_idx, kv_idx]
    if block_indices is None:
        return None
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if not isinstance(size, int):
        raise ArgumentError("block_indices were given by a module that has no indexer.block_size, the keys of a block")
    if block_indices.dim() != 4 or (block_indices.shape[0], block_indices.shape[2]) != (batch, rows) \
            or (heads % block_indices.shape[1] if block_indices.shape[1] else heads) != 0:
        raise ArgumentError("block_indices have shape %s; (%d, heads, %d, blocks of each row) is accepted, heads a "
                            "divisor of %d" % (tuple(block_indices.shape), batch, rows, heads))
    blocks, group = _listed(block_indices, -(-keys // size)), heads // max(block_indices.shape[1], 1)
    return lambda b, h, q_idx, kv_idx: blocks[b, h // group, q_idx, kv_idx // size]


def _masks(module: Any, mask: Any, query: Tensor, key: Tensor, is_causal: Optional[bool], window: Optional[int]
           ) -> Tuple[Optional[Callable[..., Any]], Optional[Callable[..., Any]]]:
    """Returns (mask_mod, bias) of an attention_mask in any accepted form; bias(b, h, q, k) is added to scores."""
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if mask is None:
        return _without_mask(module, sizes, is_causal, window), None
    if isinstance(mask, ModelMask):
        mask = mask.current()
    if isinstance(mask, ModelMask):
        return _of_model_mask(mask, query, key), None
    if isinstance(mask, BlockMask):
        flex._check_mask(query, key, mask)
        return mask_mod_of(mask), None
    if isinstance(mask, MaskTensor):
        mask = mask.as_subclass(Tensor)
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 4):
        raise ArgumentTypeError("attention_mask is %s; None, a tensor of 2 or 4 dimensions or a BlockMask is accepted"
                                % (tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__,))
    if mask.dim() == 2:
        if mask.shape[0] != sizes[0] or mask.shape[1] < sizes[3]:
            raise ArgumentError("attention_mask has shape %s; that of padding, %s, is accepted" % (tuple(mask.shape),
                                                                                                 (sizes[0], sizes[3])))
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        aligned = _shifted(_causal, _offset(sizes[3] - sizes[2], mask.device), 0) if causal else None
        return _both(aligned, _padding_mod(mask[:, :sizes[3]].to(torch.bool))), None
    reader = _reader(mask, "attention_mask", sizes)
    if mask.dtype == torch.bool:
        return reader, None
    if not mask.is_floating_point():
        raise ArgumentTypeError("attention_mask of 4 dimensions is %s; bool (true: attended) or a float to be added is "
                                "accepted" % mask.dtype)
    low = torch.finfo(mask.dtype).min / 2
    if not torch.compiler.is_compiling() and not bool((mask.detach() <= low).any()):
        return None, reader
    # Pairs with a bias near the lowest float are masked. If only added, the bias would leave no bits of the scores in
    # the LSE of a row whose pairs all have it, and the backward pass computes gradients from LSE. A NaN masks nothing.
    return (lambda b, h, q_idx, kv_idx: ~(reader(b, h, q_idx, kv_idx) <= low)), reader


def _score_mod(softcap: Optional[float], *biases: Optional[Callable[..., Any]]) -> Optional[Callable[..., Any]]:
    """Returns the score function that applies the soft cap and then adds the biases; None without soft cap and
    biases."""
    added = [bias for bias in biases if bias is not None]
    if softcap is None and not added:
        return None

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        for bias in added:
            score = score + bias(b, h, q_idx, kv_idx)
        return score

    return score_mod


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *, dropout: float = 0.0,
           scaling: Optional[float] = None, is_causal: Optional[bool] = None, window: Optional[int] = None,
           softcap: Optional[float] = None, bias: Optional[Tensor] = None, sinks: Optional[Tensor] = None,
           indices: Optional[Tensor] = None, block_indices: Optional[Tensor] = None, row_sinks: Optional[Tensor] = None
           ) -> Tensor:
    """Returns the attention of a layer, [B,H,S,D]. The seed of dropout is drawn from PyTorch's generator, so gradient
    checkpointing drops the same pairs again."""
    if (query.shape[1] % key.shape[1] if key.shape[1] else query.shape[1]) != 0:
        raise ArgumentError("query has %d heads, which is no multiple of the %d of key"
                            % (query.shape[1], key.shape[1]))
    mask_mod, added = _masks(module, mask, query, key, is_causal, window)
    mask_mod = _both(mask_mod, _selected(module, indices, block_indices, query, key))
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    score_mod = _score_mod(softcap, added, None if bias is None else _reader(bias, "position_bias", sizes))
    if sinks is not None and sinks.numel() != query.shape[1]:
        raise ArgumentError("sinks have %d elements; one per query head, %d, is accepted"
                            % (sinks.numel(), query.shape[1]))
    if row_sinks is not None:
        return _with_row_sinks(row_sinks, sizes, sinks, attention(
            query, key, value, score_mod, mask_mod, scale=scaling, dropout_p=dropout, return_lse=True))
    return attention(query, key, value, score_mod, mask_mod, scale=scaling, dropout_p=dropout,
                     sinks=None if sinks is None else sinks.reshape(-1))


def _with_row_sinks(row_sinks: Tensor, sizes: Tuple[int, ...], sinks: Optional[Tensor], made: Any) -> Tensor:
    """Returns the attention with one additional score per row, `row_sinks` [B,H,Sq,1], in the softmax. `made`: (out,
    lse) of the attention without `row_sinks`."""
    if sinks is not None or row_sinks.dim() != 4 or row_sinks.shape[3] != 1 or any(
            n not in (1, size) for n, size in zip(row_sinks.shape, sizes[:3])):
        raise ArgumentError("sinks have shape %s; one that broadcasts to %s, without s_aux, is accepted"
                            % (tuple(row_sinks.shape), (*sizes[:3], 1)))
    out, lse = made[0], made[1]
    return out * torch.sigmoid(lse.unsqueeze(-1) - row_sinks.to(lse.dtype)).to(out.dtype)


def attention_forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None,
                      dropout: float = 0.0, scaling: Optional[float] = None, is_causal: Optional[bool] = None,
                      sliding_window: Optional[int] = None, softcap: Optional[float] = None,
                      position_bias: Optional[Tensor] = None, s_aux: Optional[Tensor] = None,
                      indices: Optional[Tensor] = None, block_indices: Optional[Tensor] = None,
                      sinks: Optional[Tensor] = None, **kwargs: Any) -> Tuple[Tensor, None]:
    """Computes the attention of a layer for transformers. Returns (out [B,S,H,D], None). The options is_causal and
    sliding_window are used only if attention_mask is None; otherwise the mask includes them. Keywords that would change
    the result and are not supported raise ArgumentError. Keywords for other implementations, such as position_ids, are
    ignored."""
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise ArgumentError("attn_implementation=\"fxattn\" does not have %s (keyword %s)" % (what, name))
    for name, given in kwargs.items() if not torch.compiler.is_compiling() else ():
        if isinstance(given, Tensor) and name not in _IGNORED and name not in _warned:
            _warned.add(name)
            warnings.warn("attn_implementation=\"fxattn\" does not read the keyword %s, a tensor that %s gives its "
                          "attention" % (name, type(module).__name__), stacklevel=2)
    if kwargs.get("output_attentions") and not torch.compiler.is_compiling() and "output_attentions" not in _warned:
        _warned.add("output_attentions")
        warnings.warn("attn_implementation=\"fxattn\" makes no attention weights: output_attentions gives None; use "
                      "\"eager\" for them", stacklevel=2)
    out = attend(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
                 window=sliding_window, softcap=softcap, bias=position_bias, sinks=s_aux, indices=indices,
                 block_indices=block_indices, row_sinks=sinks)
    return out.transpose(1, 2).contiguous(), None
