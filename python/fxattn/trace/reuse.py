# SPDX-License-Identifier: Apache-2.0
"""Cache of traces: a function is not traced again if its code, cells, defaults and globals are unchanged.

A trace may be cached only if the trace depends on nothing but the code, cells, defaults and globals of its functions.
The file recipe.py checks the code of a function once: the code must consist of known instructions, and use only
attributes and builtins that read no value. Through its cells, globals and defaults, a cacheable function reaches only
numbers, strings, cacheable functions, modules of a short list, and tensors. A lookup in the trace cache compares the
values that a function reaches as follows:

- A lookup in the trace cache compares numbers by value.

- A lookup compares tensors by dtype, by rank, and by which tensors are the same object. A trace is cached only if it
  captured the tensors themselves and passed no value of a tensor to Python (modes.py detects values that are passed). A
  function that has a branch and reaches a tensor is not cached.

- A lookup compares modules by the attributes that the traced functions may read from the modules.

A function is traced at every call if it reaches an attribute of an object, function or tensor, a dictionary, or an
array that is neither a torch.Tensor or Parameter nor an array of JAX.

JAX's arrays are immutable, so arrays of JAX are compared by identity. A function that reaches only arrays of JAX may
branch, read sizes and elements of the arrays, and compute further arrays. Callbacks of the style "graph" get a
dictionary of tensors and numbers. The cache key of a callback contains everything that the callback can read from its
dictionary of tensors; a callback must reach no tensor outside this dictionary.

Keys of the trace cache consist of values; a key contains no tensor and no address.
"""
import functools
import math
import sys
import threading
import types
import weakref
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from . import watch
from .libraries import library_of
from .pointwise import POINTWISE
from .recipe import CALLS, FREE_CALLS, Unsure, builtins_of, forget_recipes, recipe_of

_PLAIN = {int: True, bool: True, str: True, type(None): True}
_MODULES = frozenset("""torch math numpy torch.nn torch.nn.functional torch.special torch.linalg jax jax.numpy jax.nn
    jax.lax""".split())
_OWN = frozenset("torch numpy math jax jaxlib".split())
_GRAPH_NAMES = frozenset([*POINTWISE, *"gen_index tensor_scalar get keys values items".split()])
# Settings of JAX that change the jaxprs that JAX makes.
_JAX_SETTINGS = tuple("jax_" + name for name in """enable_x64 explicit_x64_dtypes numpy_dtype_promotion
    numpy_rank_promotion softmax_custom_jvp disable_jit default_prng_impl random_seed_offset""".split())
_DEEPEST, _LONGEST, _MOST_PARTS, _LIMIT = 4, 16, 64, 512
_MAX_DERIVED = 65536  # max bytes of an array computed by a function of JAX and held with its trace

Part = Tuple[Any, Tuple[Any, ...], Tuple[Any, ...]]  # a program, the tensors it captured, its params


class _Reader:
    """Collects the values that a function reads, as they are now."""

    __slots__ = ("parts", "tensors", "arrays", "straight", "numbers", "modules", "attributes", "unknown", "jax")

    def __init__(self) -> None:
        self.modules: List[types.ModuleType] = []
        self.attributes: Dict[str, None] = {}  # a dict keeps the order in which functions name attributes
        self.unknown: Set[str] = set()
        self.parts: List[Any] = []
        self.tensors: List[Any] = []
        self.arrays: List[Any] = []  # arrays of JAX
        self.jax = False  # True if a function uses JAX
        self.straight = True
        self.numbers = False  # True if a function reaches a list of numbers, which a tensor could index

    def mod(self, mod: Any) -> None:
        if type(mod) is types.FunctionType:
            self.function(mod, 0)
        elif type(mod).__name__ == "PjitFunction":
            self.parts.append("jit")
            self.function(mod.__wrapped__, 0)
        else:
            self.value(mod, 0)

    def function(self, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        recipe = recipe_of(code)
        parts = self.parts
        parts.append(code)
        if function.__dict__:
            raise Unsure
        self.attributes.update(recipe.attributes)
        if recipe.unknown:
            self.unknown |= recipe.unknown
        self.straight = self.straight and recipe.straight
        if function.__closure__:
            for cell in function.__closure__:
                self.value(cell.cell_contents, depth)
        if recipe.names:
            names = function.__globals__
            if type(names) is not dict:  # a subclass of dict may return different values each time
                raise Unsure
            for name in recipe.names:
                if name in names:
                    self.value(names[name], depth)
                else:
                    self.builtin(name, builtins_of(function))
        defaults, by_keyword = function.__defaults__ or (), function.__kwdefaults__ or {}
        if defaults or by_keyword:
            parts.append((len(defaults), len(by_keyword)))
            for value in defaults:
                self.value(value, depth)
            for key, value in by_keyword.items():
                parts.append(key)
                self.value(value, depth)

    def builtin(self, name: str, builtins: Dict[str, Any]) -> None:
        if name not in FREE_CALLS:
            raise Unsure
        if name not in CALLS:
            self.straight = False
        self.parts.append(builtins.get(name))

    def value(self, value: Any, depth: int) -> None:
        kind = type(value)
        parts = self.parts
        if kind is float:
            parts.append(value if value != 0.0 else math.copysign(1.0, value) * 5e-324)
            parts.append(float)
        elif kind in _PLAIN:
            parts.append(value)
            parts.append(kind)
        elif kind in _tensor_types:
            if value.__dict__ or value.layout is not _tensor_types[kind]:
                raise Unsure
            parts.append(value.dtype)
            parts.append(value.ndim or (0 if value.is_cpu else -1))  # a tensor of rank 0 on the host may be a param
            self.place(value, self.tensors)
        elif kind is types.FunctionType and depth < _DEEPEST and not str(value.__module__).startswith("jax."):
            self.function(value, depth + 1)
        elif kind is types.ModuleType and value.__name__ in _MODULES:
            parts.append(value)
            if value not in self.modules:
                self.modules.append(value)
                self.jax = self.jax or value.__name__.startswith("jax")
        else:
            self.compound(value, depth)

    def compound(self, value: Any, depth: int) -> None:
        """Adds a value of a rare kind to the cache key: an array or function of JAX, a tuple or list, a partial."""
        kind = type(value)
        parts = self.parts
        if kind.__name__ == "ArrayImpl" and library_of(value) == "jax":
            self.jax = True
            parts.append("jax")
            self.place(value, self.arrays)
        elif callable(value) and str(getattr(value, "__module__", "")).startswith("jax."):  # for example jax.nn.relu
            self.jax = True
            self.unknown.add(str(getattr(value, "__name__", "")))
            parts.append(value)
        elif (kind is tuple or kind is list) and len(value) <= _LONGEST and depth < _DEEPEST:
            parts.append(kind)
            parts.append(len(value))
            for item in value:
                self.numbers = self.numbers or type(item) is not types.FunctionType
                self.value(item, depth + 1)
        elif kind is functools.partial and depth < _DEEPEST:
            parts.append(len(value.keywords))
            self.value(value.func, depth + 1)
            self.value(value.args, depth + 1)
            for key, item in value.keywords.items():
                parts.append(key)
                self.value(item, depth + 1)
        else:
            raise Unsure

    def place(self, value: Any, among: List[Any]) -> None:
        """Adds the index of the array `value` in the list `among` to the cache key; if the list lacks the array, adds
        None to the cache key and appends the array to the list."""
        found = next((at for at, other in enumerate(among) if other is value), None)
        self.parts.append(found)
        if found is None:
            among.append(value)

    def given(self, tensors: Mapping[str, Any]) -> None:
        """Adds the dictionary of a callback of the style "graph" to the key. Shapes of the tensors in the dictionary
        are part of the key, because dimensions of size 1 are broadcast."""
        parts = self.parts
        parts.append(len(tensors))
        for name, value in tensors.items():
            parts.append(name)
            library = library_of(value)
            if library is None:
                plain = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
                if type(plain) not in (int, float, bool):
                    raise Unsure
                parts.append(type(value))
                self.value(plain, 0)
                continue
            if type(value) not in _tensor_types and type(value).__name__ not in ("ndarray", "ArrayImpl"):
                raise Unsure
            parts += library, value.dtype, tuple(value.shape)
            if library == "torch":
                parts.append(value.layout)
            elif library == "numpy":
                parts.append(any(step % value.itemsize for step in value.strides))
            self.place(value, self.tensors)

    def taken(self) -> None:
        """Adds the attributes that the functions may read from modules to the key, because users may replace attributes
        of modules."""
        parts, names = self.parts, self.attributes
        for module in self.modules:  # grows meanwhile
            held = module.__dict__
            for name in names:
                found = held.get(name)
                if type(found) is types.ModuleType and found.__name__.partition(".")[0] in _OWN:
                    if found not in self.modules:
                        self.modules.append(found)
                elif not _is_theirs(found):
                    raise Unsure
                parts.append(found)


def _is_theirs(found: Any) -> bool:
    """Returns True if an attribute of a module is a constant or function of the library itself, which reads no value
    that may change."""
    kind = type(found)
    if kind is types.BuiltinFunctionType or kind is float or found is None:
        return True
    if kind is types.FunctionType:
        home = found.__globals__.get("__name__", "")
    else:
        home = getattr(found, "__module__", None) or kind.__module__
    return kind not in _tensor_types and home.partition(".")[0] in _OWN


_tensor_types: Dict[type, Any] = {}  # class of tensor -> required layout
_lock = threading.Lock()
_traces: Dict[Any, Tuple[Any, ...]] = {}


def _know_tensors() -> None:
    """Registers the classes torch.Tensor and Parameter, whose tensors the trace cache compares by dtype and rank. Other
    subclasses of torch.Tensor than Parameter may hold further state and are not registered."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):  # False while torch is being imported
        _tensor_types.update({torch.Tensor: torch.strided, torch.nn.Parameter: torch.strided})


def tensor_types() -> Dict[type, Any]:
    """Returns a dictionary of the classes of tensors that are compared by dtype and rank: class -> required layout."""
    return _tensor_types


@functools.lru_cache(maxsize=1)
def _jax_names(jax: Any) -> FrozenSet[str]:
    """Returns the names of JAX that a cacheable function may use: the names of JAX's modules and the attributes of
    jax.Array, without functions whose result depends on more than their arguments (random state, files, axes of a
    shard_map or vmap)."""
    found = {*dir(jax.numpy), *dir(jax.nn), *dir(jax.lax), *dir(jax.Array), "numpy", "nn", "lax"}
    return frozenset(found - {"random", "load", "fromfile", "axis_index", "axis_size", "psum", "psum_scatter",
                               "all_gather"})


class Lookup:
    """A lookup in the trace cache. `key` has the values that the functions read now, and `tensors` the tensors that the
    functions reach. `as_objects` is True if the tensors are compared by identity (arrays of JAX)."""

    __slots__ = ("key", "tensors", "as_objects")

    def __init__(self, key: Tuple[Any, ...], tensors: List[Any], as_objects: bool = False) -> None:
        self.key, self.tensors, self.as_objects = key, tensors, as_objects

    def find(self) -> Optional[Tuple[Any, ...]]:
        """Returns (program, tensors, params) of the cached trace, followed by (program, tensors, params) of a
        user-written backward, if there is one; None if no trace is cached."""
        found = _traces.get(self.key)
        if found is None:
            return None
        tensors = self.tensors
        if self.as_objects:
            same, derived = found[-1]
            if any(ref() is not x for ref, x in zip(same, tensors)):
                return None
            tensors = tensors + derived
        program, slots, params = found[:3]
        made = program, tuple([tensors[at] for at in slots]), params
        return made if len(found) < 6 else (*made, found[3], tuple([tensors[at] for at in found[4]]), found[5])

    def keep(self, *made: Any) -> None:
        """Caches a trace, for the method find() of later calls. A trace is cached only if each captured tensor can be
        found again through closures, globals or attributes of the functions. With JAX, a captured tensor may also be a
        small array that the functions computed, which the cache then holds. A trace is not cached if one of its params
        is a tensor in host memory (in a call on a device), because the value of the tensor is not part of the key."""
        if any(library_of(number) is not None for params in made[2::3] for number in params):
            return
        tensors = self.tensors
        derived: List[Any] = []
        kept: List[Any] = []
        for program, captured, params in zip(made[::3], made[1::3], made[2::3]):
            slots = []
            for tensor in captured:
                at = next((n for n, other in enumerate([*tensors, *derived]) if other is tensor), None)
                if at is None:
                    if not self.as_objects or not _is_kept(tensor):
                        return
                    at = len(tensors) + len(derived)
                    derived.append(tensor)
                slots.append(at)
            kept += program, tuple(slots), params
        if self.as_objects:
            kept.append(([weakref.ref(x) for x in tensors], derived))
        with _lock:
            if len(_traces) >= _LIMIT:
                for key in list(_traces)[:_LIMIT // 4]:
                    del _traces[key]
            _traces[self.key] = tuple(kept)


def _is_kept(derived: Any) -> bool:
    """Returns True if the cache may hold an array that a function of JAX computed: the array must be small, and must be
    no tracer, because a tracer is invalid after its jit."""
    return (not isinstance(derived, sys.modules["jax"].core.Tracer)
            and getattr(derived, "nbytes", _MAX_DERIVED + 1) <= _MAX_DERIVED)


def lookup(score_mod: Any, mask_mod: Any, rest: Tuple[Any, ...]) -> Optional[Lookup]:
    """Returns the lookup in the trace cache (a Lookup) for score_mod and mask_mod; None if it is uncertain what
    score_mod or mask_mod reads."""
    if not _tensor_types:
        _know_tensors()
    reader = _Reader()
    parts = reader.parts
    parts.extend(rest)
    try:
        for mod in (score_mod, mask_mod):
            reader.value(None, 0) if mod is None else reader.mod(mod)
        if reader.jax:
            return _lookup_of_jax(reader)
        if reader.unknown:
            return None
        reader.taken()
    except (Unsure, ValueError):  # ValueError: an empty cell
        return None
    if reader.tensors and (reader.numbers or not reader.straight) or len(parts) > _MOST_PARTS:
        return None
    return Lookup(tuple(parts), reader.tensors)


def _lookup_of_jax(reader: _Reader) -> Optional[Lookup]:
    jax = sys.modules["jax"]
    if reader.tensors or not reader.unknown <= _jax_names(jax):
        return None
    reader.taken()
    reader.parts.extend([getattr(jax.config, name, None) for name in _JAX_SETTINGS])
    return Lookup(tuple(reader.parts), reader.arrays, as_objects=True)


def graph_lookup(score_mod: Any, bprop: Any, tensors: Optional[Mapping[str, Any]],
                   bprop_tensors: Optional[Mapping[str, Any]], shape: Optional[Sequence[int]],
                   part: Optional[str] = None) -> Optional[Lookup]:
    """Returns the lookup in the trace cache (a Lookup) for callbacks of the style "graph"; None if it is uncertain
    what a callback reads."""
    if not _tensor_types:
        _know_tensors()
    reader = _Reader()
    reader.parts += "graph", None if shape is None else tuple(shape), part
    try:
        for mod in (score_mod, bprop):
            reader.value(None, 0) if mod is None else reader.mod(mod)
        if reader.tensors or reader.jax or any(
                name not in _GRAPH_NAMES and not name.startswith(("set_", "get_")) for name in reader.unknown):
            return None
        reader.taken()
        reader.given(tensors or {})
        reader.given(bprop_tensors or {})
    except (Unsure, ValueError):
        return None
    return Lookup(tuple(reader.parts), reader.tensors)


def clear() -> None:
    """Drops all cached traces."""
    with _lock:
        _traces.clear()
    watch.clear()
    forget_recipes()
