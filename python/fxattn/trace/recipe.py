# SPDX-License-Identifier: Apache-2.0
"""Lists what a function can read, by one pass over the bytecode of the function. The file reuse.py reads the present
values of the globals and attributes that a function can read.

A code object that has an unknown instruction or uses an unknown builtin has no Recipe (the list of what code reads): a
function whose code has no Recipe is traced at every call.
"""
import dis
import enum
import functools
import sys
import threading
import types
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

from .torch_table import TORCH

CALLS = frozenset(["float", "abs"])  # allowed in a function that reaches tensors; float of a literal only
FREE_CALLS = CALLS | frozenset(
    "int bool range len min max sum isinstance enumerate zip reversed tuple list round".split())
_CONSTANTS = frozenset("""inf pi e nan nn functional special linalg math float16 float32 float64 bfloat16 int8 int16
    int32 int64 uint8 bool float half double int long short newaxis tensor exp2 log2 floor ceil sqrt""".split())
# Functions of traced values that return a tensor's shape, type or value to Python.
_TELLING = frozenset("size dim ndimension numel nelement is_floating_point is_complex is_tensor detach".split())
_ATTRIBUTES: FrozenSet[str] = (frozenset(TORCH) | _CONSTANTS) - _TELLING

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
_LIMIT = 2048


class Unsure(Exception):
    """Raised for a function that may depend on a value that the cache does not compare."""


class Recipe:
    """What a code object reads: `names` has the names of globals, and `attributes` the names of attributes. `unknown`
    is the subset of `attributes` that may read state of a tensor or of an object. `straight` is True if the code has no
    branch and no call that reads a value."""

    __slots__ = ("names", "attributes", "unknown", "straight")

    def __init__(self, code: types.CodeType) -> None:
        names: Set[str] = set()
        attributes: Set[str] = set()
        self.straight = _look_through(code, names, attributes)
        self.names = tuple(sorted(names))
        self.attributes = dict.fromkeys(sorted(attributes))
        self.unknown = attributes - _ATTRIBUTES


def _look_through(code: types.CodeType, names: Set[str], attributes: Set[str]) -> bool:
    straight = True
    after_float = False  # True between the load of `float` and its operand
    for op, value in steps_of(code):
        role = _ROLES.get(op)
        if role is None:
            raise Unsure
        if after_float and op not in _BEFORE_OPERAND:
            straight = straight and op in ("LOAD_CONST", "LOAD_SMALL_INT")
            after_float = False
        if role is _Role.NONE:
            continue
        if role is _Role.ATTRIBUTE:
            attributes.add(value)
        elif role is _Role.GLOBAL:
            names.add(value)
            after_float = value == "float"
        elif role is _Role.CONSTANT:
            if type(value) is types.CodeType:
                straight = _look_through(value, names, attributes) and straight
            elif type(value) is tuple and not all(type(x) is str for x in value):
                straight = False
        elif role is _Role.BRANCH:
            straight = False
        elif value not in code.co_cellvars:  # STORE_DEREF
            raise Unsure
    return straight


def builtins_of(function: types.FunctionType) -> Dict[str, Any]:
    """Returns the builtins of a function, in which names are looked up that the globals of the function do not have.
    From Python 3.10 on, the builtins of a function are fixed when the function is created."""
    found: Any = getattr(function, "__builtins__", None)
    if found is None:
        found = function.__globals__.get("__builtins__", {})
    found = found if isinstance(found, dict) else vars(found)
    if type(found) is not dict:
        raise Unsure
    return found


# ---- Instructions ----------------------------------------------------------------------------------------------------

class _Role(enum.Enum):
    """Classes of bytecode instructions, by which _look_through() decides what an instruction may read."""

    NONE, ATTRIBUTE, GLOBAL, CONSTANT, BRANCH, STORE = range(6)


_NAMED = {"LOAD_ATTR": _Role.ATTRIBUTE, "LOAD_METHOD": _Role.ATTRIBUTE, "LOAD_GLOBAL": _Role.GLOBAL,
          "LOAD_CONST": _Role.CONSTANT, "STORE_DEREF": _Role.STORE}
_ROLES: Dict[str, _Role] = {
    op: _NAMED.get(op) or (_Role.BRANCH if op.startswith(_BRANCHING) else _Role.NONE) for op in dis.opname
    if op in _NAMED or op in _STRAIGHT or op.startswith((*_BRANCHING, *_SIGNS))}
_BEFORE_OPERAND = frozenset(["PUSH_NULL", "PRECALL", "CACHE"])

# True if the low bit of the instruction's operand is a flag and the upper bits index co_names in this Python version.
_SHIFTED = {"LOAD_GLOBAL": sys.version_info >= (3, 11), "LOAD_ATTR": sys.version_info >= (3, 12), "LOAD_METHOD": False}


def _quick_steps(code: types.CodeType) -> List[Tuple[str, Any]]:
    """Returns (instruction, value) pairs: the value is the name or constant that an instruction in _NAMED uses, and
    None for other instructions. The module `dis` would also compute lines, labels and descriptions, and take six times
    as long."""
    found: List[Tuple[str, Any]] = []
    raw, names, constants, opname, extended = code.co_code, code.co_names, code.co_consts, dis.opname, 0
    for at in range(0, len(raw), 2):
        op, operand = opname[raw[at]], raw[at + 1] | extended
        extended = operand << 8 if op == "EXTENDED_ARG" else 0
        value = None
        if op in _SHIFTED:
            value = names[operand >> 1 if _SHIFTED[op] else operand]
        elif op == "LOAD_CONST":
            value = constants[operand]
        elif op == "STORE_DEREF":
            value = (code._varname_from_oparg(operand) if sys.version_info >= (3, 11)  # type: ignore[attr-defined]
                     else (code.co_cellvars + code.co_freevars)[operand])
        found.append((op, value))
    return found


def _slow_steps(code: types.CodeType) -> List[Tuple[str, Any]]:
    return [(step.opname, step.argval if step.opname in _NAMED else None) for step in dis.get_instructions(code)]


def plain_steps(steps: Iterable[Tuple[str, Any]]) -> List[Tuple[str, Any]]:
    """Returns the instructions without CACHE and EXTENDED_ARG."""
    return [step for step in steps if step[0] not in ("CACHE", "EXTENDED_ARG")]


def _sample(a: Any, b: int = 2) -> Any:
    """A sample function for a test: its code contains every instruction in _NAMED that the running version of Python
    has."""
    def inner() -> Any:
        nonlocal b
        b = len(a.x.y(1.5)) + abs(a.z)
        return a, b
    return inner


@functools.lru_cache(maxsize=1)
def _steps() -> Callable[[types.CodeType], List[Tuple[str, Any]]]:
    """Returns _quick_steps if _quick_steps and dis agree on _sample, else _slow_steps: another version of Python may
    encode instructions differently."""
    try:
        codes = [_sample.__code__, *(c for c in _sample.__code__.co_consts if type(c) is types.CodeType)]
        if all(plain_steps(_quick_steps(code)) == plain_steps(_slow_steps(code)) for code in codes):
            return _quick_steps
    except (AttributeError, IndexError):
        pass
    return _slow_steps


def steps_of(code: types.CodeType) -> List[Tuple[str, Any]]:
    """Returns a pair (instruction, value) for each instruction of a code object, where the value is the name or
    constant that the instruction uses."""
    return _steps()(code)


_recipes: Dict[types.CodeType, Optional[Recipe]] = {}
_lock = threading.Lock()


def recipe_of(code: types.CodeType) -> Recipe:
    """Returns the Recipe of a code object (the list of what the code reads); Recipes are cached. Raises Unsure for code
    with unknown instructions or unknown builtins."""
    try:
        found = _recipes[code]
    except KeyError:
        try:
            found = Recipe(code)
        except Unsure:
            found = None
        with _lock:
            if len(_recipes) >= _LIMIT:
                _recipes.clear()
            _recipes[code] = found
    if found is None:
        raise Unsure
    return found


def forget_recipes() -> None:
    with _lock:
        _recipes.clear()
