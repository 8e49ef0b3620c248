# SPDX-License-Identifier: Apache-2.0
"""Masks with PyTorch's names: create_block_mask, BlockMask, create_mask, and_masks, or_masks, noop_mask.

BlockMask is PyTorch's class: a mask_mod, a list of blocks in which the mask_mod decides, and a list of full blocks. The
function create_block_mask returns a LazyBlockMask, which evaluates nothing: the library finds the tiles to compute by
analysing the traced mask_mod, and the lists of blocks are made when a list is read. Any other BlockMask (one that is no
LazyBlockMask) masks the pairs that PyTorch's kernels mask by its lists and its mask_mod together (`mask_mod_of`).
"""
import inspect
import warnings
from contextlib import nullcontext
from typing import Any, Callable, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _theirs
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_mask, noop_mask, or_masks

from ..trace import trace

__all__ = ["BlockMask", "create_block_mask", "create_mask", "and_masks", "or_masks", "noop_mask"]

MaskMod = Callable[[Any, Any, Any, Any], Any]
DEFAULT_BLOCK = 128
MAX_PAIRS = 1 << 22  # with more pairs, PyTorch's evaluation of all pairs takes too much memory
UNBOUNDED_BLOCK = 1 << 30  # block size of PyTorch's BlockMask that masks nothing

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
          "full_q_num_blocks", "full_q_indices", "dq_write_order", "dq_write_order_full", "dq_kv_order",
          "dq_kv_order_spt")
_KNOWN = frozenset(inspect.signature(_theirs.create_block_mask).parameters)


def default_device() -> Union[str, torch.device]:
    accelerator = getattr(torch, "accelerator", None)
    return (accelerator.current_accelerator() if accelerator is not None else None) or "cpu"


class LazyBlockMask(BlockMask):
    """A BlockMask that makes its lists of blocks when a list is read."""

    def __init__(self, mask_mod: MaskMod, batch: int, heads: int, seq_lengths: Tuple[int, int],
                 device: Union[str, torch.device], block_size: Tuple[int, int],
                 options: Tuple[Tuple[str, Any], ...]) -> None:
        # The constructor of BlockMask is not called, because it requires the lists.
        self._mask_mod, self._is_replaced = mask_mod, False
        self.seq_lengths = seq_lengths
        self.BLOCK_SIZE = block_size
        self._fxattn = (mask_mod, batch, heads, device, options)
        self._read: Optional[Tuple[Any, ...]] = None  # lists and versions (_lists_of); None before the lists are made

    @property
    def mask_mod(self) -> MaskMod:
        return self._mask_mod

    @mask_mod.setter
    def mask_mod(self, mask_mod: MaskMod) -> None:
        # is_its_mask_mod reads this flag, because Dynamo cannot compare every kind of callable.
        self._mask_mod, self._is_replaced = mask_mod, True

    @property
    def shape(self) -> Tuple[int, ...]:
        if self._read is not None:
            return (*self.kv_indices.shape[:-2], *self.seq_lengths)
        return (self._fxattn[1], self._fxattn[2], *self.seq_lengths)

    @property
    def device(self) -> torch.device:
        return torch.device(self._fxattn[3])

    def _lists(self) -> BlockMask:
        mask_mod, batch, heads, device, options = self._fxattn
        rows, keys = self.seq_lengths

        def four_arguments(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # PyTorch counts the arguments of mask_mod
            return mask_mod(b, h, q_idx, kv_idx)

        with torch.no_grad(), _ordinary_tensors():
            if torch.compiler.is_compiling():
                return self._all_pairs(four_arguments)
            try:
                if options or batch * heads * rows * keys <= MAX_PAIRS:
                    return self._all_pairs(four_arguments)
                from .block_lists import block_lists
                return block_lists(mask_mod, batch, heads, (rows, keys), self.BLOCK_SIZE, device)
            except Exception:
                trace(None, mask_mod)  # raises an error that explains more
                raise

    def _all_pairs(self, mask_mod: MaskMod) -> BlockMask:
        _, batch, heads, device, options = self._fxattn
        return _theirs.create_block_mask(mask_mod, batch, heads, *self.seq_lengths, device=device,
                                         BLOCK_SIZE=self.BLOCK_SIZE, **dict(options))

    def __getattr__(self, name: str) -> Any:
        # Python calls this method for missing attributes. The first read of a list makes all lists.
        if name not in _LISTS:
            raise AttributeError("%s has no attribute %r" % (type(self).__name__, name))
        made = self._lists()
        for attribute in _LISTS:
            self.__dict__.setdefault(attribute, getattr(made, attribute, None))
        self._read = _lists_of(self)
        return self.__dict__[name]

    def is_its_mask_mod(self) -> bool:
        """Returns True if the mask_mod was not replaced and no list was changed."""
        return not self._is_replaced and (self._read is None or _are_unchanged(self._read, _lists_of(self)))

    @classmethod
    def from_kv_blocks(cls, *args: Any, **kwargs: Any) -> BlockMask:  # type: ignore[override]
        """Returns a BlockMask with the given lists, as BlockMask.from_kv_blocks of PyTorch does."""
        return BlockMask.from_kv_blocks(*args, **kwargs)

    def _copy(self, seq_lengths: Tuple[int, int], device: Union[str, torch.device]) -> "LazyBlockMask":
        mask_mod, batch, heads, _, options = self._fxattn
        return type(self)(mask_mod, batch, heads, seq_lengths, device, self.BLOCK_SIZE, options)

    def _adjust(self, new_q_len: int, new_kv_len: int) -> Any:
        if not self.is_its_mask_mod():
            return super()._adjust(new_q_len, new_kv_len)
        return self._copy((new_q_len, new_kv_len), self._fxattn[3])

    def to(self, device: Union[str, torch.device]) -> BlockMask:
        """Returns the mask for tensors on `device`."""
        return self._copy(self.seq_lengths, device) if self.is_its_mask_mod() else super().to(device)

    @classmethod
    def _unflatten(cls, leaves: Tuple[Any, ...], context: Tuple[Any, ...]) -> Any:
        return BlockMask._unflatten(leaves, context)


def positional_arity(mod: Callable[..., Any]) -> int:
    """Returns the number of positional arguments of `mod` that have no default."""
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
                      dq_kv_order: bool = True) -> LazyBlockMask:
    """Returns the BlockMask of mask_mod(b, h, q_idx, kv_idx). Nothing is evaluated: the BlockMask stores the function.

    `B, H`: batch size and number of heads of the mask; None if the mask is the same for all batch entries or heads.
    `Q_LEN, KV_LEN`: the numbers of rows and keys of the attention.
    `device`: the device of the attention's tensors, by default the current accelerator or else the CPU.
    `BLOCK_SIZE, separate_full_blocks, compute_dq_write_order, dq_kv_order`: determine the lists of blocks in the
        attributes that PyTorch's BlockMask has; fxattn does not use these lists of blocks.
    `_compile`: has no effect.
    """
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
    for name, _ in options:
        if name not in _KNOWN:
            raise TypeError("create_block_mask() got an unexpected keyword argument %r: PyTorch %s, which makes the "
                            "lists, does not have it" % (name, torch.__version__))
    return LazyBlockMask(mask_mod, 1 if B is None else B, 1 if H is None else H, (Q_LEN, KV_LEN),
                         default_device() if device is None else device, sizes, options)


# ---- Conversion of a BlockMask to a mask_mod -------------------------------------------------------------------------

class _CachedMod:
    """The mask_mod that was made from the lists of a mask, stored as an attribute of the mask. In pickled and deep
    copies of the mask, the mask_mod that was made from its lists is None."""

    def __init__(self, lists: Tuple[Any, ...], mod: Any, sizes: Tuple[Any, ...], made: Optional[MaskMod]) -> None:
        self.lists, self.mod, self.sizes, self.made = lists, mod, sizes, made

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(None), ()


def _ordinary_tensors() -> Any:
    """Returns a context without torch.inference_mode, because tensors of inference mode cannot be saved for
    gradients."""
    return nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(False)


def _lists_of(mask: BlockMask) -> Tuple[Any, ...]:
    """Returns the tensors that list the blocks of a BlockMask, followed by the version of each tensor (None for tensors
    of inference mode, which have none). While PyTorch compiles, returns only the tensors, without versions."""
    lists = (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)
    if torch.compiler.is_compiling():
        return lists
    return (*lists, *(None if x is None or x.is_inference() else x._version for x in lists))


def _are_unchanged(one: Tuple[Any, ...], other: Tuple[Any, ...]) -> bool:
    """Returns True if two results of _lists_of() have the same tensors, with the same versions. Returns False if a
    tensor has no version counter (tensors of inference mode), because changes of such a tensor cannot be detected."""
    known = all(x is None or version is not None for x, version in zip(one[:4], one[4:]))
    return known and all(x is y for x, y in zip(one[:4], other)) and one[4:] == other[4:]


def _dense_blocks(mask: BlockMask, count: Optional[Tensor], indices: Optional[Tensor]) -> Optional[Tensor]:
    """Returns a bool table [B or 1, H or 1, rows, columns] that is True for the listed blocks; None without a list."""
    if count is None or indices is None:
        return None
    size = mask.BLOCK_SIZE[1]
    columns = max(indices.shape[-1], (mask.seq_lengths[1] + size - 1) // size)
    inside = torch.arange(indices.shape[-1], device=indices.device) < count.unsqueeze(-1)
    column = torch.where(inside & (indices < columns), indices, columns).long()
    table = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    table = table.scatter(-1, column, True)[..., :columns]
    while table.dim() < 4:
        table = table.unsqueeze(0)
    return table


def _table_mod(blocks: Tensor, size: Tuple[int, int]) -> MaskMod:
    """Returns the mask_mod of a bool table of blocks."""
    (q_block, kv_block), per_batch, per_head = size, blocks.shape[0] > 1, blocks.shape[1] > 1
    table = blocks if per_batch else blocks[0]
    table = table if per_head else table.select(1 if per_batch else 0, 0)

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        row, column = q_idx // q_block, kv_idx // kv_block
        if per_batch and per_head:
            return table[b, h, row, column]
        return table[b, row, column] if per_batch else table[h, row, column] if per_head else table[row, column]

    return listed


def _combined(mod: Optional[MaskMod], some: Optional[MaskMod], full: Optional[MaskMod]) -> MaskMod:
    """Returns a mask_mod that is True in the blocks of `full`, and where `mod` is True in the blocks of `some` (in all
    blocks if `some` is None)."""
    def both(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        keep = mod(b, h, q_idx, kv_idx) if mod is not None else None
        if some is not None:
            block = some(b, h, q_idx, kv_idx)
            keep = block if keep is None else keep & block
        return keep if full is None else keep | full(b, h, q_idx, kv_idx)

    return both


def _is_equal_to_mod(mod: MaskMod, mask: BlockMask, some: Tensor, full: Optional[Tensor]) -> bool:
    """Returns True if `mod` alone is equal to the BlockMask `mask`: the lists of `mask` contain each block in which
    `mod` is True for some pair, and `mod` is True for all pairs of each block in the list of full blocks. Comparing
    `mod` with the lists of a BlockMask takes as long as making the lists; the comparison saves time on GPUs, where a
    mask_mod without tables of blocks runs faster."""
    batch, heads = (1, 1, *mask.kv_indices.shape[:-2])[-2:]
    try:
        depends = trace(None, mod).program.properties()["mask_depends"]
        if batch == 1 and "b" in depends or heads == 1 and "h" in depends:  # one list for all differs from `mod`
            return False
        sizes = (int(mask.BLOCK_SIZE[0]), int(mask.BLOCK_SIZE[1]))
        made = LazyBlockMask(mod, batch, heads, mask.seq_lengths, mask.kv_indices.device, sizes, ())._lists()
        own = _dense_blocks(made, made.kv_num_blocks, made.kv_indices)
        attends_all = _dense_blocks(made, made.full_kv_num_blocks, made.full_kv_indices)
        full = torch.zeros_like(some) if full is None else full
        if own is None or attends_all is None or own.shape != some.shape or full.shape != some.shape:
            return False
        return bool((some | full | ~(own | attends_all)).all() & (attends_all | ~full).all())
    except Exception:  # errors of the mask_mod, which a later trace reports
        return False


def _mod_of_lists(mask: BlockMask) -> Optional[MaskMod]:
    """Returns the mask_mod that a mask's lists and its mask_mod define together; None if no pair is masked."""
    mod = None if mask.mask_mod is None or mask.mask_mod is noop_mask else mask.mask_mod
    some = _dense_blocks(mask, mask.kv_num_blocks, mask.kv_indices)
    full = _dense_blocks(mask, mask.full_kv_num_blocks, mask.full_kv_indices)
    assert some is not None
    if mod is not None and not some.is_cpu and not torch.compiler.is_compiling() \
            and _is_equal_to_mod(mod, mask, some, full):
        return mod
    if mod is None and full is not None and some.shape == full.shape:
        some, full = some | full, None
    if not torch.compiler.is_compiling():  # the values of the lists are known
        if full is not None and bool(full.all()):
            return None
        full = full if full is not None and bool(full.any()) else None
        some = None if bool(some.all()) else some
        if some is None and (mod is None or full is None):
            return mod
    tables = [None if x is None else _table_mod(x, mask.BLOCK_SIZE) for x in (some, full)]
    return _combined(mod, *tables)


def mask_mod_of(mask: Optional[BlockMask]) -> Optional[MaskMod]:
    """Returns a mask_mod with the meaning of a BlockMask; None if the BlockMask masks nothing."""
    if mask is None:
        return None
    lazy = isinstance(mask, LazyBlockMask) and mask.is_its_mask_mod()
    if lazy or mask.BLOCK_SIZE[0] == UNBOUNDED_BLOCK:
        return None if mask.mask_mod is noop_mask else mask.mask_mod
    if torch.compiler.is_compiling():
        return _mod_of_lists(mask)
    cached, lists = mask.__dict__.get("_fxattn_cached"), _lists_of(mask)
    sizes = (mask.seq_lengths, mask.BLOCK_SIZE)
    if cached is None or cached.mod is not mask.mask_mod or cached.sizes != sizes \
            or not _are_unchanged(cached.lists, lists):
        with torch.no_grad(), _ordinary_tensors():
            cached = _CachedMod(lists, mask.mask_mod, sizes, _mod_of_lists(mask))
        mask.__dict__["_fxattn_cached"] = cached
    return cached.made
