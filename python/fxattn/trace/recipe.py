# SPDX-License-Identifier: Apache-2.0
"""What a function can read at all, found by looking through its code once. reuse.py asks what is there now.

A code that has an instruction which is not known here, or asks a builtin that is not, has no Recipe: functions of it
are traced at every call.
"""
import dis
import threading
import types
from typing import Dict, FrozenSet, Optional, Set

from .torch_table import TORCH

CALLS = frozenset(["float", "abs"])  # with tensors about: float of a literal only
FREE_CALLS = CALLS | frozenset(
    "int bool range len min max sum isinstance enumerate zip reversed tuple list round".split())
_CONSTANTS = frozenset("""inf pi e nan nn functional special linalg math float16 float32 float64 bfloat16 int8 int16
    int32 int64 uint8 bool float half double int long short newaxis tensor exp2 log2 floor ceil sqrt""".split())
# Of the functions that traced values know, those that tell something about a tensor to Python.
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
    """The function may depend on something that is not compared."""


class Recipe:
    """What a code reads besides its cells: names of globals and of attributes, `unknown` those of them that may read
    something of a tensor or of an object. `straight` when it takes no branch and calls nothing that reads a value."""

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
    after_float = False  # whether float was loaded just now, and its operand comes
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
            attributes.add(value)
        elif op == "LOAD_GLOBAL":
            names.add(value)
        elif op == "LOAD_CONST":
            if type(value) is types.CodeType:
                straight = _look_through(value, names, attributes) and straight
            elif type(value) is tuple and not all(type(x) is str for x in value):
                straight = False
        if after_float and op not in ("PUSH_NULL", "PRECALL", "CACHE"):
            straight = straight and op in ("LOAD_CONST", "LOAD_SMALL_INT")
            after_float = False
        after_float = after_float or op == "LOAD_GLOBAL" and value == "float"
    return straight


_recipes: Dict[types.CodeType, Optional[Recipe]] = {}
_lock = threading.Lock()


def recipe_of(code: types.CodeType) -> Recipe:
    """The recipe of a code, from those kept; raises Unsure where there is none."""
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
