# SPDX-License-Identifier: Apache-2.0
"""Masks by PyTorch's names: create_block_mask, BlockMask, create_mask, and_masks, or_masks, noop_mask.

A mask here is its mask_mod: the library finds out from the traced program which tiles it leaves. So create_block_mask
computes nothing, and its BlockMask (a subclass of PyTorch's) makes the lists of blocks that PyTorch's class consists of
only when somebody reads one. A BlockMask that was made of lists alone, without a mask_mod, becomes one that looks the
block up in a table.
"""
import inspect
import warnings
from typing import Any, Callable, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _theirs
from torch.nn.attention.flex_attention import and_masks, create_mask, noop_mask, or_masks

__all__ = ["BlockMask", "create_block_mask", "create_mask", "and_masks", "or_masks", "noop_mask"]

MaskMod = Callable[[Any, Any, Any, Any], Any]
DEFAULT_BLOCK = 128
UNBOUNDED_BLOCK = 1 << 30  # PyTorch's size of a block of a mask that is none

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
          "full_q_num_blocks", "full_q_indices", "dq_write_order", "dq_write_order_full", "dq_kv_order",
          "dq_kv_order_spt")


def default_device() -> Union[str, torch.device]:
    accelerator = getattr(torch, "accelerator", None)
    return (accelerator.current_accelerator() if accelerator is not None else None) or "cpu"


class BlockMask(_theirs.BlockMask):
    """PyTorch's BlockMask, whose lists are made when they are read."""

    def __init__(self, mask_mod: MaskMod, batch: int, heads: int, seq_lengths: Tuple[int, int],
                 device: Union[str, torch.device], block_size: Tuple[int, int],
                 options: Tuple[Tuple[str, Any], ...]) -> None:
        # PyTorch's own constructor takes the lists.
        self.mask_mod = mask_mod
        self.seq_lengths = seq_lengths
        self.BLOCK_SIZE = block_size
        self._fxattn = (mask_mod, batch, heads, device, options)

    @property
    def shape(self) -> Tuple[int, ...]:
        return (self._fxattn[1], self._fxattn[2], *self.seq_lengths)

    @property
    def device(self) -> torch.device:
        return torch.device(self._fxattn[3])

    def _lists(self) -> _theirs.BlockMask:
        mask_mod, batch, heads, device, options = self._fxattn
        with torch.no_grad():
            return _theirs.create_block_mask(mask_mod, batch, heads, *self.seq_lengths, device=device,
                                             BLOCK_SIZE=self.BLOCK_SIZE, **dict(options))

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there: all lists are made together, at the first of them.
        if name not in _LISTS:
            raise AttributeError("%s has no attribute %r" % (type(self).__name__, name))
        made = self._lists()
        for attribute in _LISTS:
            self.__dict__.setdefault(attribute, getattr(made, attribute, None))
        return self.__dict__[name]

    @classmethod
    def from_kv_blocks(cls, *args: Any, **kwargs: Any) -> _theirs.BlockMask:  # type: ignore[override]
        """Lists given by the caller: PyTorch's own class."""
        return _theirs.BlockMask.from_kv_blocks(*args, **kwargs)

    def _again(self, seq_lengths: Tuple[int, int], device: Union[str, torch.device]) -> "BlockMask":
        _, batch, heads, _, options = self._fxattn
        return BlockMask(self.mask_mod, batch, heads, seq_lengths, device, self.BLOCK_SIZE, options)

    def _adjust(self, new_q_len: int, new_kv_len: int) -> "BlockMask":
        return self._again((new_q_len, new_kv_len), self._fxattn[3])

    def to(self, device: Union[str, torch.device]) -> "BlockMask":
        """The same for tensors on a device."""
        return self._again(self.seq_lengths, device)

    @classmethod
    def _unflatten(cls, leaves: Tuple[Any, ...], context: Tuple[Any, ...]) -> Any:
        return _theirs.BlockMask._unflatten(leaves, context)


def positional_arity(mod: Callable[..., Any]) -> int:
    """How many positional arguments without defaults a mod takes."""
    code = getattr(mod, "__code__", None)
    if code is not None:
        count = code.co_argcount - len(getattr(mod, "__defaults__", None) or ())
        return count - (1 if inspect.ismethod(mod) else 0)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(mod).parameters.values()
    return sum(p.default is inspect.Parameter.empty and p.kind in kinds for p in parameters)


def create_block_mask(mask_mod: MaskMod, B: Optional[int], H: Optional[int], Q_LEN: int, KV_LEN: int,
                      device: Union[str, torch.device, None] = None,
                      BLOCK_SIZE: Union[int, Tuple[int, int]] = DEFAULT_BLOCK, _compile: bool = False,
                      separate_full_blocks: bool = True, compute_dq_write_order: bool = False,
                      dq_kv_order: bool = True) -> BlockMask:
    """The mask of a mask_mod(b, h, q_idx, kv_idx). Nothing is evaluated: the mask is kept as the function it is. B and
    H None: the same for all; Q_LEN and KV_LEN are the lengths that attention will see, device is where its tensors are.
    BLOCK_SIZE, separate_full_blocks, compute_dq_write_order and dq_kv_order say how the lists look that PyTorch's
    attributes show; _compile does nothing."""
    if not torch.compiler.is_dynamo_compiling():
        arity = positional_arity(mask_mod)
        if arity not in (4, 5):
            raise AssertionError("Expected 4 or 5 positional args, got %d" % arity)
        if arity != 4:
            raise AssertionError("create-block_mask requires a mask_mod function! Got %s" % (mask_mod,))
        if _compile:
            warnings.warn("_compile flag on create_block_mask is not needed: fxattn compiles masks into the attention",
                          DeprecationWarning, stacklevel=2)
    if not isinstance(dq_kv_order, bool):
        raise ValueError("dq_kv_order must be a bool when using create_block_mask")
    sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else (BLOCK_SIZE[0], BLOCK_SIZE[1])
    options: Tuple[Tuple[str, Any], ...] = ()
    if not separate_full_blocks:
        options += (("separate_full_blocks", False),)
    if compute_dq_write_order:
        options += (("compute_dq_write_order", True), ("dq_kv_order", dq_kv_order))
    return BlockMask(mask_mod, 1 if B is None else B, 1 if H is None else H, (Q_LEN, KV_LEN),
                     default_device() if device is None else device, sizes, options)


# ---- What attention makes of a mask ----------------------------------------------------------------------------------

def _dense_blocks(count: Optional[Tensor], indices: Optional[Tensor]) -> Optional[Tensor]:
    """bool [..., rows, columns] of the blocks in a list of columns per row."""
    if count is None or indices is None:
        return None
    columns = indices.shape[-1]
    inside = torch.arange(columns, device=indices.device) < count.unsqueeze(-1)
    place = torch.where(inside, indices, columns).long()
    table = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    return table.scatter(-1, place, True)[..., :columns]


def blocks_of(mask: _theirs.BlockMask) -> Tensor:
    """bool [B or 1, H or 1, rows, columns]: the blocks that the lists of a mask name."""
    some = _dense_blocks(mask.kv_num_blocks, mask.kv_indices)
    full = _dense_blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert some is not None
    blocks = some if full is None else some | full
    while blocks.dim() < 4:
        blocks = blocks.unsqueeze(0)
    return blocks


def _table_mod(blocks: Tensor, q_block: int, kv_block: int) -> MaskMod:
    """The mask_mod of a table of blocks."""
    per_batch, per_head = blocks.shape[0] > 1, blocks.shape[1] > 1
    table = blocks if per_batch else blocks[0]
    table = table if per_head else table.select(1 if per_batch else 0, 0)

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        row, column = q_idx // q_block, kv_idx // kv_block
        if per_batch and per_head:
            return table[b, h, row, column]
        return table[b, row, column] if per_batch else table[h, row, column] if per_head else table[row, column]

    return listed


def mask_mod_of(mask: Optional[_theirs.BlockMask]) -> Optional[MaskMod]:
    """The mask_mod that a BlockMask stands for; None where it masks nothing."""
    if mask is None:
        return None
    mod = mask.mask_mod
    if mod is not None and mod is not noop_mask:
        return mod
    if isinstance(mask, BlockMask) or mask.BLOCK_SIZE[0] == UNBOUNDED_BLOCK:
        return None
    if torch.compiler.is_compiling():
        return _table_mod(blocks_of(mask), *mask.BLOCK_SIZE)
    lists = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    key = tuple(None if x is None else (x.data_ptr(), x._version) for x in lists)
    kept = mask.__dict__.get("_fxattn_table")
    if kept is None or kept[0] != key or any(x is not y for x, y in zip(kept[1], lists)):
        blocks = blocks_of(mask)
        kept = (key, lists, None if bool(blocks.all()) else _table_mod(blocks, *mask.BLOCK_SIZE))
        mask.__dict__["_fxattn_table"] = kept
    return kept[2]
