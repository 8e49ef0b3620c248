# SPDX-License-Identifier: Apache-2.0
"""The attention mask of one pass through a model of transformers.

ModelMask is a mask_mod, so no array of size [S,S] is allocated. If a model uses its mask as a tensor (reads the dtype,
takes a slice, or calls torch.where or torch.cat), ModelMask makes the dense tensor that transformers itself would make.
For models with SDPA the dense mask is a bool tensor, True where a key is attended; for models without SDPA the dense
mask has the floats 0 and the lowest float, which eager attention adds to scores. The dense tensor that ModelMask makes
has a limited size, and causes one warning per model type. A dense bool mask is a MaskTensor, which refuses to be added
to scores, because True would be added as 1.

Models that test whether their mask is a Tensor or a BlockMask would take a ModelMask for a BlockMask, so such models
get the dense tensor from the start. tests_masks() finds the models that test the type, by the source text of their
modules.
"""
import ast
import inspect
import re
import sys
import warnings
from typing import Any, Callable, Dict, Optional, Set, Tuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from .._errors import ArgumentError, ArgumentTypeError
from .block_mask import DEFAULT_BLOCK, LazyBlockMask

dense_bytes = 1 << 30  # largest size of a dense mask, in bytes
_warned: Set[str] = set()  # model types that have been warned about
_tests: Dict[type, bool] = {}  # configuration class -> True if its models test the type of masks
_eager: Set[type] = set()  # configuration classes of models without SDPA, which read masks of floats

_ADDITIONS = frozenset(("add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__rsub__", "__isub__",
                        "sub_", "rsub", "subtract", "subtract_", "baddbmm", "baddbmm_", "addcmul", "addcdiv"))
_CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}


def _is_real(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, Tensor) and x.is_floating_point())


def _as_tensors(x: Any, mask: Any) -> Any:
    """Returns `x` with each ModelMask or MaskTensor m, also in nested lists and tuples, replaced by mask(m); `mask` is
    a function."""
    if isinstance(x, (ModelMask, MaskTensor)):
        return mask(x)
    if isinstance(x, (list, tuple)):
        made = [_as_tensors(y, mask) for y in x]
        return made if isinstance(x, list) else tuple(made)
    return x


def _refuse_addition() -> None:
    raise ArgumentTypeError("this model adds its mask to the scores by itself: it does not ask transformers' "
                            "AttentionInterface for its attention, and attn_implementation=\"fxattn\" is not for it")


def _check_addition(args: Any) -> None:
    if any(isinstance(x, ModelMask) and x.dtype == torch.bool for x in args):
        _refuse_addition()


def _in(dtype: torch.dtype, keep: Tensor) -> Tensor:
    """Returns the bool mask `keep` in `dtype`: unchanged for bool, else as floats to be added to scores."""
    if dtype == torch.bool:
        return keep
    zero = torch.zeros((), dtype=dtype, device=keep.device)
    return torch.where(keep, zero, torch.finfo(dtype).min)


class MaskTensor(Tensor):
    """A dense bool mask, True where a key is attended. Views of a MaskTensor, and results of bool operations on a
    MaskTensor, are MaskTensors. Adding a MaskTensor to floats raises an error. A conversion to float returns the mask
    unchanged: attention accepts the bool mask, and a float mask of ones and zeros would change scores by 1."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _ADDITIONS and any(_is_real(x) for x in args):
            _refuse_addition()
        if name in _CASTS or (name in ("to", "type") and any(_is_float_type(x) for x in (*args[1:], *kwargs.values()))):
            place = args[1] if len(args) > 1 and isinstance(args[1], (str, torch.device)) else None
            device = kwargs.get("device", place)
            return args[0] if device is None else args[0].to(device)
        if name == "type_as" and _is_real(args[1]):
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*_as_tensors(args, _plain), **{k: _as_tensors(x, _plain) for k, x in kwargs.items()})
            if isinstance(made, Tensor) and made.dtype == torch.bool and not isinstance(made, MaskTensor):
                made = made.as_subclass(MaskTensor)
        return made


def _guarded(name: str) -> Callable[..., Any]:
    """Returns a wrapper of Tensor's method `name` that first raises an error if the other operand is float. The wrapper
    raises the error outside Tensor's method, because Python's operators treat an error that is raised inside the method
    as an unsupported type."""
    original = getattr(Tensor, name)

    def method(self: Any, other: Any) -> Any:
        if _is_real(other):
            _refuse_addition()
        return original(self, other)

    method.__name__ = name
    return method


for _name in ("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"):
    setattr(MaskTensor, _name, _guarded(_name))


def _is_float_type(x: Any) -> bool:
    return (isinstance(x, torch.dtype) and x.is_floating_point) or _is_real(x)


def _plain(mask: Any) -> Tensor:
    """Returns a dense mask as an ordinary Tensor."""
    tensor: Tensor = mask.dense() if isinstance(mask, ModelMask) else mask
    return tensor.as_subclass(Tensor) if isinstance(tensor, MaskTensor) else tensor


class ModelMask(LazyBlockMask):
    """The mask [batch, 1, rows, keys] of one pass through a model. `owner`: the model type, for messages. `dtype`: the
    dtype that the model reads."""

    owner = "this"
    ndim = 4
    dtype = torch.bool  # or a float dtype, for masks that the model adds to scores
    requires_grad = False
    __hash__ = object.__hash__

    def dense(self) -> Tensor:
        """Returns the mask as a dense tensor of the mask's dtype, which is made once. Raises ArgumentError if the dense
        tensor would have more than dense_bytes bytes."""
        dense = self.__dict__.get("_dense")
        if dense is not None:
            return dense
        batch, _, rows, keys = self.shape
        count = batch * rows * keys * self.dtype.itemsize
        if count > dense_bytes:
            raise ArgumentError(
                "%s model reads its attention mask as a tensor, which would be %s and take %d bytes; "
                "attn_implementation=\"fxattn\" makes at most %d (register_transformers(dense_mask_bytes=...))"
                % (self.owner, (batch, 1, rows, keys), count, dense_bytes))
        if torch.compiler.is_compiling():
            return _in(self.dtype, create_mask(self.mask_mod, batch, 1, rows, keys, self.device))
        if self.owner not in _warned:
            _warned.add(self.owner)
            warnings.warn("%s model reads its attention mask as a tensor, which attn_implementation=\"fxattn\" makes "
                          "for it: %d bytes in this pass" % (self.owner, count), stacklevel=4)
        with torch.no_grad(), torch.inference_mode(False):
            made = _in(self.dtype, create_mask(self.mask_mod, batch, 1, rows, keys, self.device))
            made = made.as_subclass(MaskTensor) if self.dtype == torch.bool else made
        self.__dict__["_dense"], self.__dict__["_dense_version"] = made, made._version
        return made

    def current(self) -> Any:
        """Returns the dense tensor if the model has written to it (by masked_fill_, for example), else the mask
        itself."""
        dense = self.__dict__.get("_dense")
        return self if dense is None or dense._version == self.__dict__["_dense_version"] else dense

    # Methods of Tensor that need no dense mask.

    def dim(self) -> int:
        return 4

    def size(self, axis: Optional[int] = None) -> Any:
        return torch.Size(self.shape) if axis is None else self.shape[axis]

    def is_floating_point(self) -> bool:
        return self.dtype != torch.bool

    def contiguous(self) -> "ModelMask":
        return self

    def detach(self) -> "ModelMask":
        return self

    def expand(self, *sizes: Any) -> Any:
        given = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        if self.current() is self and len(given) == 4 and all(n in (-1, size) for n, size in zip(given, self.shape)):
            return self
        return self.dense().expand(*sizes)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the mask on another device. A conversion to an int dtype returns a dense tensor; a conversion to a
        float dtype leaves the mask unchanged."""
        types = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)]
        if types and not types[0].is_floating_point and types[0] != torch.bool:
            return self.dense().to(*args, **kwargs)
        places = [x for x in (*args[:1], kwargs.get("device")) if isinstance(x, (str, torch.device))]
        others = [x for x in (*args[:1], kwargs.get("other")) if isinstance(x, Tensor)]
        device = places[0] if places else others[0].device if others else None
        if device is None or torch.device(device) == self.device:
            return self
        return super().to(device) if self.current() is self else self.dense().to(device)

    def _copy(self, seq_lengths: Tuple[int, int], device: Any) -> "ModelMask":
        made: Any = super()._copy(seq_lengths, device)
        made.owner, made.dtype = self.owner, self.dtype
        return made

    def rows_from(self, first: int, count: int) -> "ModelMask":
        """Returns the mask of rows `first` to first + count - 1."""
        mod, (_, batch, heads, device, options) = self.mask_mod, self._fxattn
        # `start` is a tensor, so that prompts of all lengths use one program.
        start: Any = first if torch.compiler.is_compiling() else torch.tensor(first, dtype=torch.int32, device=device)
        moved = mod if first == 0 else lambda b, h, q_idx, kv_idx: mod(b, h, q_idx + start, kv_idx)
        made = type(self)(moved, batch, heads, (count, self.seq_lengths[1]), device, self.BLOCK_SIZE, options)
        made.owner, made.dtype = self.owner, self.dtype
        return made

    def __getitem__(self, index: Any) -> Any:
        """Returns a mask for a range of rows and a range of keys that starts at key 0; a dense tensor for any other
        index."""
        short = _slices(index, self.shape) if self.current() is self else None
        if short is None:
            return self.dense()[index]
        rows, keys = short
        made = self if keys == (0, self.shape[3]) else self._copy((self.shape[2], keys[1]), self.device)
        return made if rows == (0, self.shape[2]) else made.rows_from(rows[0], rows[1] - rows[0])

    # All other operations use the dense tensor.

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _ADDITIONS and any(_is_real(x) for x in args):
            _check_addition(args)
        return func(*_as_tensors(args, _dense), **{k: _as_tensors(x, _dense) for k, x in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            return super().__getattr__(name)
        return getattr(self.dense(), name)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter(self.dense())

    def __eq__(self, other: Any) -> Any:
        return NotImplemented if other is None or isinstance(other, BlockMask) else self.dense() == other

    def __ne__(self, other: Any) -> Any:
        return NotImplemented if other is None or isinstance(other, BlockMask) else self.dense() != other


def _dense(mask: Any) -> Tensor:
    return mask.dense() if isinstance(mask, ModelMask) else mask


def _forwarded(name: str) -> Callable[..., Any]:
    adds = name in _ADDITIONS

    def method(self: ModelMask, *args: Any) -> Any:
        if adds and any(_is_real(x) for x in args):
            _check_addition((self,))
        return getattr(self.dense(), name)(*(_as_tensors(x, _dense) for x in args))

    method.__name__ = name
    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "and", "rand", "or", "ror", "xor", "rxor", "invert", "lt",
              "le", "gt", "ge", "float", "int"):
    setattr(ModelMask, "__%s__" % _name, _forwarded("__%s__" % _name))


setattr(ModelMask, "bool", ModelMask.contiguous)  # a method named bool in the class would hide the type bool


def _slices(index: Any, shape: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, int], Tuple[int, int]]]:
    """Returns ((first row, end), (first key, end)) for an index of a mask that consists of slices and selects all batch
    entries and heads, and keys from 0 on. Returns None for an index of a mask that selects single batch entries or
    heads, or keys that do not start at 0."""
    if not isinstance(index, tuple) or any(x is not Ellipsis and not isinstance(x, slice) for x in index):
        return None
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *(slice(None),) * (5 - len(index)), *index[at + 1:])
    if len(index) > 4 or Ellipsis in index:
        return None
    parts = []
    for part, size in zip((*index, *(slice(None),) * (4 - len(index))), shape):
        if any(x is not None and not isinstance(x, int) for x in (part.start, part.stop, part.step)):
            return None
        start, stop, step = part.indices(size)
        if step != 1 or stop <= start:
            return None
        parts.append((start, stop))
    if parts[0] != (0, shape[0]) or parts[1] != (0, shape[1]) or parts[3][0] != 0:
        return None
    return parts[2], parts[3]


# ---- Models that test the type of their mask -------------------------------------------------------------------------

def _reads_type_of_mask(text: str) -> bool:
    """Returns True if the source text of a module has isinstance(mask, T), torch.is_tensor(mask) or type(mask), for a
    variable whose name contains "mask" and T a Tensor or BlockMask."""
    if not re.search(r"isinstance\(\s*[\w.]*mask\w*\s*,|is_tensor\(\s*[\w.]*mask|type\(\s*[\w.]*mask\w*\s*\)", text):
        return False
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not node.args or "mask" not in ast.unparse(node.args[0]).split(".")[-1]:
            continue
        called = ast.unparse(node.func)
        if called in ("type", "torch.is_tensor", "is_tensor"):
            return True
        if called == "isinstance" and len(node.args) == 2 and re.search("Tensor|BlockMask", ast.unparse(node.args[1])):
            return True
    return False


def tests_masks(config_class: type) -> bool:
    """Returns True if models of this configuration class test the type of their mask. Searches the modeling modules in
    the packages of the class and of its base classes."""
    known = _tests.get(config_class)
    if known is None:
        known, found = False, False
        for base in config_class.__mro__:
            package = base.__module__.rpartition(".")[0]
            if not package or package == "transformers":
                continue
            for name, module in list(sys.modules.items()):
                if name.startswith(package + ".modeling") and module is not None:
                    found = True
                    try:
                        known = known or _reads_type_of_mask(inspect.getsource(module))
                    except (OSError, TypeError, SyntaxError):  # the module has no source text to search
                        continue
        if found:  # else the models have not been imported yet
            _tests[config_class] = known
    return known


def note_model(config_class: type, has_sdpa: bool) -> None:
    """Records how a model reads masks. note_model() runs when the model is made, because a compiled forward cannot
    search source text."""
    tests_masks(config_class)
    if has_sdpa:
        _eager.discard(config_class)
    else:
        _eager.add(config_class)


def mask_of(mod: Callable[..., Any], batch: int, seq_lengths: Tuple[int, int], device: Any, config: Any,
            dtype: Any) -> Any:
    """Returns the mask of one pass through a model: a dense tensor for models that test the type of their mask, else a
    ModelMask."""
    made = ModelMask(mod, batch, 1, seq_lengths, device, (DEFAULT_BLOCK, DEFAULT_BLOCK), ())
    made.owner = "a %s" % (getattr(config, "model_type", None) or "transformers")
    if type(config) in _eager and dtype is not None:
        made.dtype = dtype
    if torch.compiler.is_compiling():
        return made.dense() if _tests.get(type(config)) else made
    return made.dense() if config is not None and tests_masks(type(config)) else made
