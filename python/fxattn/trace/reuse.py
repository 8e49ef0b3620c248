# SPDX-License-Identifier: Apache-2.0
"""Traces that need not be repeated: those of functions whose code, cells, defaults and globals are as before.

A trace may be used again only where nothing else can have changed it. So a function is looked through once (Recipe): it
must consist of known instructions, name only attributes and builtins that read no value, and reach (through cells,
globals and defaults) only numbers, strings, functions of the same kind, modules of a short list, and tensors. Numbers
are compared by value; tensors by dtype, rank and which of them are one object, and the trace must have captured them as
they are and told nothing of their contents to Python (modes.py sees it). Of modules, what the functions may take is
compared. A function that branches must reach no tensor at all. Whatever is not certain is traced again: attributes of
objects, functions and tensors, dictionaries, other classes of arrays.

Keys are content, and hold no tensor and no address.
"""
import dis
import functools
import math
import threading
import types
from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

from .torch_table import TORCH

_PLAIN = {int: True, bool: True, str: True, type(None): True}
_MODULES = frozenset("torch math numpy torch.nn torch.nn.functional torch.special torch.linalg".split())
_OWN = frozenset(["torch", "numpy", "math"])
_CALLS = frozenset(["float", "abs"])  # with tensors about: float of a literal only
_FREE_CALLS = _CALLS | frozenset(
    "int bool range len min max sum isinstance enumerate zip reversed tuple list round".split())
_CONSTANTS = frozenset("""inf pi e nan nn functional special linalg math float16 float32 float64 bfloat16 int8 int16
    int32 int64 uint8 bool float half double int long short newaxis tensor exp2 log2 floor ceil sqrt""".split())
# Of the functions that traced values know, those that tell something about a tensor to Python.
_TELLING = frozenset("size dim ndimension numel nelement is_floating_point is_complex is_tensor detach".split())
ATTRIBUTES: FrozenSet[str] = (frozenset(TORCH) | _CONSTANTS) - _TELLING

_STRAIGHT = frozenset("""RESUME CACHE NOP EXTENDED_ARG COPY_FREE_VARS PUSH_NULL PRECALL KW_NAMES POP_TOP COPY SWAP
    DUP_TOP DUP_TOP_TWO ROT_TWO ROT_THREE ROT_FOUR ROT_N LOAD_CONST LOAD_SMALL_INT LOAD_FAST LOAD_FAST_CHECK
    LOAD_FAST_BORROW LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_DEREF LOAD_CLASSDEREF LOAD_GLOBAL
    LOAD_ATTR LOAD_METHOD STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST DELETE_FAST BINARY_OP BINARY_SUBSCR
    BINARY_SLICE BUILD_SLICE BUILD_TUPLE BUILD_LIST LIST_EXTEND LIST_TO_TUPLE COMPARE_OP IS_OP UNARY_NEGATIVE
    UNARY_POSITIVE UNARY_INVERT CALL CALL_KW CALL_FUNCTION CALL_FUNCTION_KW CALL_METHOD CALL_FUNCTION_EX
    CALL_INTRINSIC_1 RETURN_VALUE RETURN_CONST MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE LOAD_CLOSURE MAKE_CELL GET_ITER
    FOR_ITER END_FOR POP_ITER JUMP_ABSOLUTE JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD UNPACK_SEQUENCE
    NOT_TAKEN LIST_APPEND LOAD_FAST_AND_CLEAR GEN_START""".split())
_SIGNS = ("BINARY_", "INPLACE_")  # one instruction for each operator before Python 3.11
_BRANCHING = ("POP_JUMP", "JUMP_IF", "UNARY_NOT", "TO_BOOL", "CONTAINS_OP")
_DEEPEST, _LONGEST, _MOST_PARTS = 4, 16, 64


class Unsure(Exception):
    """The function may depend on something that is not compared."""


class Recipe:
    """What a code reads besides its cells: names of globals and of attributes. `straight` when it takes no branch and
    calls nothing that reads a value."""

    __slots__ = ("names", "attributes", "straight")

    def __init__(self, code: types.CodeType) -> None:
        names: Set[str] = set()
        attributes: Set[str] = set()
        self.straight = _look_through(code, names, attributes)
        self.names = tuple(sorted(names))
        self.attributes = dict.fromkeys(sorted(attributes))


def _look_through(code: types.CodeType, names: Set[str], attributes: Set[str]) -> bool:
    straight = True
    before = ""  # the builtin that was loaded just now
    for step in dis.get_instructions(code):
        op, value = step.opname, step.argval
        if op.startswith(_BRANCHING):
            straight = False
        elif op == "STORE_DEREF":
            if value not in code.co_cellvars:
                raise Unsure
        elif op not in _STRAIGHT and not op.startswith(_SIGNS):
            raise Unsure
        if op in ("LOAD_ATTR", "LOAD_METHOD"):
            if value not in ATTRIBUTES:
                raise Unsure
            attributes.add(value)
        elif op == "LOAD_GLOBAL":
            names.add(value)
        elif op == "LOAD_CONST":
            if type(value) is types.CodeType:
                straight = _look_through(value, names, attributes) and straight
            elif type(value) is tuple and not all(type(x) is str for x in value):
                straight = False
        if before and op not in ("PUSH_NULL", "PRECALL", "CACHE"):
            straight = straight and op in ("LOAD_CONST", "LOAD_SMALL_INT") if before == "float" else straight
            before = ""
        if op == "LOAD_GLOBAL" and value == "float":
            before = value
    return straight


class _Reader:
    """Gathers what a function depends on, now."""

    __slots__ = ("parts", "tensors", "straight", "numbers", "modules", "attributes")

    def __init__(self) -> None:
        self.modules: List[types.ModuleType] = []
        self.attributes: Dict[str, None] = {}  # in the order of the functions
        self.parts: List[Any] = []
        self.tensors: List[Any] = []
        self.straight = True
        self.numbers = False  # a tuple or list of numbers, which a tensor could index

    def function(self, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        recipe = _recipe(code)
        parts = self.parts
        parts.append(code)
        if function.__dict__:
            raise Unsure
        self.attributes.update(recipe.attributes)
        self.straight = self.straight and recipe.straight
        if function.__closure__:
            for cell in function.__closure__:
                self.value(cell.cell_contents, depth)
        if recipe.names:
            names, builtins = function.__globals__, None
            for name in recipe.names:
                if name in names:
                    self.value(names[name], depth)
                else:
                    builtins = builtins or _builtins_of(names)
                    self.builtin(name, builtins)
        defaults, by_keyword = function.__defaults__ or (), function.__kwdefaults__ or {}
        if defaults or by_keyword:
            parts.append((len(defaults), len(by_keyword)))
            for value in defaults:
                self.value(value, depth)
            for key, value in by_keyword.items():
                parts.append(key)
                self.value(value, depth)

    def builtin(self, name: str, builtins: Dict[str, Any]) -> None:
        if name not in _FREE_CALLS:
            raise Unsure
        if name not in _CALLS:
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
            if value.__dict__:
                raise Unsure
            parts.append(value.dtype)
            parts.append(value.ndim)
            place = next((at for at, other in enumerate(self.tensors) if other is value), None)
            parts.append(place)
            if place is None:
                self.tensors.append(value)
        elif kind is types.FunctionType and depth < _DEEPEST:
            self.function(value, depth + 1)
        elif kind is types.ModuleType and value.__name__ in _MODULES:
            parts.append(value)
            if value not in self.modules:
                self.modules.append(value)
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

    def taken(self) -> None:
        """What the functions may take from modules, which somebody may have replaced."""
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
    """Whether what a module holds is the library's own: a constant, or a function that depends on nothing else."""
    kind = type(found)
    if kind is types.BuiltinFunctionType or kind is float or found is None:
        return True
    if kind is types.FunctionType:
        home = found.__globals__.get("__name__", "")
    else:
        home = found.__module__ if kind is type else kind.__module__
    return kind not in _tensor_types and home.partition(".")[0] in _OWN


_tensor_types: Dict[type, bool] = {}
_recipes: Dict[types.CodeType, Optional[Recipe]] = {}
_lock = threading.Lock()
_traces: Dict[Any, Tuple[Any, Tuple[int, ...], Tuple[Any, ...]]] = {}
_LIMIT = 512


def know_tensors(torch: Any) -> None:
    """The classes whose objects are compared by dtype and rank: subclasses may hide more."""
    _tensor_types[torch.Tensor] = _tensor_types[torch.nn.Parameter] = True


def _builtins_of(names: Dict[str, Any]) -> Dict[str, Any]:
    found = names.get("__builtins__", {})
    return found if isinstance(found, dict) else vars(found)


def _recipe(code: types.CodeType) -> Recipe:
    try:
        found = _recipes[code]
    except KeyError:
        try:
            found = Recipe(code)
        except Unsure:
            found = None
        with _lock:
            if len(_recipes) >= 4 * _LIMIT:
                _recipes.clear()
            _recipes[code] = found
    if found is None:
        raise Unsure
    return found


class Question:
    """What two functions depend on now, as a key, and the tensors that they reach."""

    __slots__ = ("key", "tensors")

    def __init__(self, key: Tuple[Any, ...], tensors: List[Any]) -> None:
        self.key, self.tensors = key, tensors

    def answer(self) -> Optional[Tuple[Any, Tuple[Any, ...], Tuple[Any, ...]]]:
        """Program, tensors and params of the trace that was kept."""
        found = _traces.get(self.key)
        if found is None:
            return None
        program, slots, params = found
        tensors = self.tensors
        return program, tuple([tensors[at] for at in slots]), params

    def keep(self, program: Any, tensors: Tuple[Any, ...], params: Tuple[Any, ...]) -> None:
        """Keeps a trace, if each tensor that it captured is one that the functions reach."""
        slots = []
        for tensor in tensors:
            at = next((n for n, other in enumerate(self.tensors) if other is tensor), None)
            if at is None:
                return
            slots.append(at)
        with _lock:
            if len(_traces) >= _LIMIT:
                for key in list(_traces)[:_LIMIT // 4]:
                    del _traces[key]
            _traces[self.key] = program, tuple(slots), params


def question(score_mod: Any, mask_mod: Any, rest: Tuple[Any, ...]) -> Optional[Question]:
    """The question for two functions; None where something is not certain."""
    reader = _Reader()
    parts = reader.parts
    parts.extend(rest)
    try:
        for mod in (score_mod, mask_mod):
            if mod is None:
                parts.append(None)
            elif type(mod) is types.FunctionType:
                reader.function(mod, 0)
            else:
                reader.value(mod, 0)
        reader.taken()
    except (Unsure, ValueError):  # ValueError: a cell that is not filled
        return None
    if reader.tensors and (reader.numbers or not reader.straight) or len(parts) > _MOST_PARTS:
        return None
    return Question(tuple(parts), reader.tensors)


def clear() -> None:
    """Forgets all traces."""
    with _lock:
        _traces.clear()
        _recipes.clear()
