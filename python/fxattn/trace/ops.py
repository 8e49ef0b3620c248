# SPDX-License-Identifier: Apache-2.0
"""Operations on traced scalars, with the meaning that the libraries give them: promotion, bools, narrow ints, powers of
ints, shifts.

Functions take a Recording and operands that are Syms or Python numbers, and give a Sym. `elementwise` in arrays.py
extends them to small arrays; tables.py names them.
"""
import sys
from typing import Any, Callable, Optional, Tuple

from .._abi import (OP_ABS, OP_ADD, OP_AND, OP_DIV, OP_EQ, OP_FLOAT, OP_FLOORDIV, OP_GE, OP_GT, OP_INT, OP_LE, OP_LT,
                    OP_MAX, OP_MIN, OP_MOD, OP_MUL, OP_NE, OP_NEG, OP_NOT, OP_OR, OP_POW, OP_SELECT, OP_SHL, OP_SHR,
                    OP_SUB, OP_XOR)
from .libraries import library_of, plain_number, storage_of, symbolic_kind
from .place import refuse
from .record import FIRST, LOAD, Recording
from .symbol import NeedsJax, Sym
from .types import BESIDE_INT, BOOL, FLOAT, I8, I16, INT, NAMES, PROMOTE, U8

NARROW = (U8, I8, I16)
_SHIFT = {I8: 24, I16: 16}


class RunInt(int):
    """An int that a front end lifted out of the function: a param where it meets a traced value, an int elsewhere."""

    __slots__ = ()


def scalar(rec: Recording, x: Any) -> Any:
    """An operand as a Sym or a Python bool, int or float: numbers of other kinds and captured tensors of rank 0."""
    kind = type(x)
    if kind is Sym:
        return x if x.rec is rec else moved(rec, x)
    if kind is float or kind is int or kind is bool:
        return x
    if kind is RunInt:
        return Sym(rec, rec.param(x, INT), INT)
    library = library_of(x)
    if library is not None:
        if x.ndim:
            refuse("a scalar is wanted here, not a tensor of shape %s" % (tuple(x.shape),))
        if rec.device is not None and library == "torch" and x.device.type == "cpu" != rec.device.type:
            return _from_host(rec, x)
        at = rec.capture(x)
        return Sym(rec, rec.emit(LOAD, at), rec.kinds[at])
    found = plain_number(x)
    if type(found) is float:  # a NumPy scalar: one param, however often it is used
        return Sym(rec, rec.number(x), FLOAT)
    if found is not None:
        return found
    of = symbolic_kind(x)
    if of is not None:
        return Sym(rec, rec.param(x, of), of)
    if hasattr(x, "__jax_array__") and "jax" in sys.modules:  # nnx.Param and the like, which JAX takes for arrays
        raise NeedsJax()
    refuse("a score function computes with numbers and tensors, not with %s" % type(x).__name__)


def _from_host(rec: Recording, x: Any) -> Sym:
    """A tensor of rank 0 on the host, in a call on a device: a number given at run time, as torch has it."""
    kind = storage_of(x)[2]
    at = Sym(rec, rec.param(x, FLOAT if kind == FLOAT else INT), FLOAT if kind == FLOAT else INT)
    return truth(rec, at) if kind == BOOL else Sym(rec, at.node, kind)


def moved(rec: Recording, x: Sym) -> Sym:
    """A value of the forward trace inside the backward one: its instructions are repeated there."""
    if rec.parent is not x.rec:
        refuse("this value was made by another trace, so it means nothing here; compute it again in this function")
    return Sym(rec, rec.copy_of(x.node), x.ty)


def node(rec: Recording, x: Any, kind: int) -> int:
    """The number of an operand's value, a Python number converted for the type."""
    of = type(x)
    if of is Sym:
        return int(x.node)
    if of is bool:
        return rec.boolean(x)
    if of is float:
        return rec.number(x)
    return rec.whole(x) if kind == FLOAT else rec.integer(x, kind if kind != BOOL else INT)


def joint(x: Any, y: Any) -> int:
    """What two operands become together; a Python int beside a narrow int stays narrow."""
    tx, ty = type(x), type(y)
    if tx is Sym:
        if ty is Sym:
            return PROMOTE[x.ty][y.ty]
        return FLOAT if ty is float else int(x.ty) if ty is bool else BESIDE_INT[x.ty]
    if ty is Sym:
        return FLOAT if tx is float else int(y.ty) if tx is bool else BESIDE_INT[y.ty]
    return FLOAT if float in (tx, ty) else INT if int in (tx, ty) else BOOL


def kind_of_operand(x: Any) -> int:
    of = type(x)
    return int(x.ty) if of is Sym else FLOAT if of is float else BOOL if of is bool else INT


def narrowed(rec: Recording, at: int, kind: int) -> Sym:
    """A result brought back into the range of a narrow int."""
    if kind == U8:
        at = rec.emit(OP_AND, at, rec.integer(255))
    elif kind in _SHIFT:
        by = rec.integer(_SHIFT[kind])
        at = rec.emit(OP_SHR, rec.emit(OP_SHL, at, by), by)
    return Sym(rec, at, kind)


def emit(rec: Recording, op: int, kind: int, *operands: Any) -> Sym:
    """An operation on operands converted to the type, with a result of the type."""
    instruction = [op]
    for x in operands:
        instruction.append(x.node if type(x) is Sym else node(rec, x, kind))
    code = rec.code
    code.append(tuple(instruction))
    at = len(code) + (FIRST - 1)
    return Sym(rec, at, kind) if kind >= INT or kind == BOOL else narrowed(rec, at, kind)


# ---- arithmetic

def _make_arithmetic(op: int, of_bools: Optional[int]) -> Callable[[Recording, Any, Any], Sym]:
    """x op y; of two bools what the libraries have instead. Two traced values come first: nearly all operands are."""
    def go(rec: Recording, x: Any, y: Any) -> Sym:
        if type(x) is Sym and type(y) is Sym:
            kind = PROMOTE[x.ty][y.ty]
            if kind >= INT:
                code = rec.code
                code.append((op, x.node, y.node))
                return Sym(rec, len(code) + (FIRST - 1), kind)
        kind = joint(x, y)
        if kind == BOOL:
            if of_bools is None:
                refuse("subtraction, the `-` operator, of two bools is not supported by the libraries; use ^ or "
                       "logical_xor")
            return emit(rec, of_bools, kind, x, y)
        return emit(rec, op, kind, x, y)
    return go


add = _make_arithmetic(OP_ADD, OP_OR)
mul = _make_arithmetic(OP_MUL, OP_AND)
sub = _make_arithmetic(OP_SUB, None)
minimum = _make_arithmetic(OP_MIN, OP_AND)
maximum = _make_arithmetic(OP_MAX, OP_OR)


def div(rec: Recording, x: Any, y: Any) -> Sym:
    return Sym(rec, rec.emit(OP_DIV, node(rec, x, FLOAT), node(rec, y, FLOAT)), FLOAT)


def _of_bools(rec: Recording, name: str) -> int:
    if rec.lib != "numpy":
        refuse("%s of two bools is not supported by torch; convert one with .int()" % name)
    return I8


def floordiv(rec: Recording, x: Any, y: Any) -> Sym:
    kind = joint(x, y)
    return emit(rec, OP_FLOORDIV, _of_bools(rec, "floor division") if kind == BOOL else kind, x, y)


def mod(rec: Recording, x: Any, y: Any) -> Sym:
    kind = joint(x, y)
    return emit(rec, OP_MOD, _of_bools(rec, "the remainder") if kind == BOOL else kind, x, y)


def neg(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    if kind == BOOL:
        refuse("negation, the `-` operator, of a bool is not supported by the libraries; use ~ or logical_not")
    return emit(rec, OP_NEG, kind, x)


def absolute(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    if kind == BOOL and rec.lib != "numpy":
        refuse("abs of a bool is not supported by torch")
    return as_sym(rec, x) if kind in (BOOL, U8) else emit(rec, OP_ABS, kind, x)


# ---- powers

def power(rec: Recording, x: Any, y: Any) -> Sym:
    """Of ints by multiplication, so that it wraps as ints do; a float power otherwise."""
    kind = joint(x, y)
    if kind == FLOAT:
        if type(x) is Sym and x.ty == FLOAT and _is_two(rec, y):
            return emit(rec, OP_MUL, FLOAT, x, x)
        return Sym(rec, rec.emit(OP_POW, node(rec, x, FLOAT), node(rec, y, FLOAT)), FLOAT)
    if kind == BOOL:
        kind = _of_bools(rec, "a power")
    if type(y) is Sym:
        return _power_of_exponent(rec, x, y, kind)
    if y < 0:
        refuse("Integers to negative integer powers are not allowed; write x ** %.1f" % y)
    return power_by_squares(rec, x, int(y), kind)


def _is_two(rec: Recording, y: Any) -> bool:
    """An exponent that the function's text says is 2; a lifted one may be another next time."""
    return type(y) is int and y == 2 or type(y) is float and y == 2.0 and rec.is_literal(y)


def power_by_squares(rec: Recording, x: Any, exponent: int, kind: int) -> Sym:
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = as_sym(rec, square, kind) if result is None else emit(rec, OP_MUL, kind, result, square)
        exponent >>= 1
        if exponent:
            square = emit(rec, OP_MUL, kind, square, square)
    return Sym(rec, rec.integer(1), kind) if result is None else result


def _power_of_exponent(rec: Recording, x: Any, y: Sym, kind: int) -> Sym:
    """An exponent that is traced, bit by bit. A negative one gives what torch does: 0, unless x is 1 or -1."""
    if y.ty == BOOL:
        return choose(rec, y, x, Sym(rec, rec.integer(1), kind))
    bits = {U8: 8, I8: 7, I16: 15, INT: 31}[y.ty]
    base = as_sym(rec, x, kind)
    if type(x) is int and x == 2:
        inside = compare(OP_LT)(rec, y, 31 if kind == INT else 16)
        result = choose(rec, inside, emit(rec, OP_SHL, kind, 1, y), choose(rec, compare(OP_EQ)(rec, y, 31), -1 << 31, 0)
                        if kind == INT else 0)
    else:
        result, square = Sym(rec, rec.integer(1), kind), base
        for bit in range(bits):
            odd = compare(OP_NE)(rec, emit(rec, OP_AND, INT, y, 1 << bit), 0)
            result = choose(rec, odd, emit(rec, OP_MUL, kind, result, square), result)
            square = emit(rec, OP_MUL, kind, square, square)
    if y.ty == U8:
        return result
    odd = compare(OP_NE)(rec, emit(rec, OP_AND, INT, y, 1), 0)
    units = choose(rec, compare(OP_EQ)(rec, base, 1), 1,
                   choose(rec, compare(OP_EQ)(rec, base, -1 if kind != U8 else 255), choose(rec, odd, -1, 1), 0))
    return Sym(rec, choose(rec, compare(OP_LT)(rec, y, 0), units, result).node, kind)


# ---- comparisons, logic, bits

def compare(op: int) -> Callable[[Recording, Any, Any], Sym]:
    return _COMPARISONS[op]


def _make_comparison(op: int) -> Callable[[Recording, Any, Any], Sym]:
    def go(rec: Recording, x: Any, y: Any) -> Sym:
        if type(x) is Sym and type(y) is Sym:
            code = rec.code
            code.append((op, x.node, y.node))
            return Sym(rec, len(code) + (FIRST - 1), BOOL)
        kind = joint(x, y)
        if kind in NARROW and rec.lib == "numpy":
            kind = INT  # NumPy compares a Python int by its value, torch by what the narrow type makes of it
        return Sym(rec, rec.emit(op, node(rec, x, kind), node(rec, y, kind)), BOOL)
    return go


_COMPARISONS = {op: _make_comparison(op) for op in (OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE)}


def truth(rec: Recording, x: Any) -> Sym:
    """x != 0, as .bool(), logical_and and their like take their operands."""
    x = as_sym(rec, x)
    return x if x.ty == BOOL else Sym(rec, rec.emit(OP_NE, x.node, rec.integer(0)), BOOL)


def _make_bits(op: int, sign: str) -> Callable[[Recording, Any, Any], Sym]:
    def go(rec: Recording, x: Any, y: Any) -> Sym:
        kind = joint(x, y)
        if kind == FLOAT:
            refuse("`%s` takes ints and bools, not floats; compare a float first" % sign)
        return emit(rec, op, kind, x, y)
    return go


bit_and, bit_or, bit_xor = (_make_bits(op, sign) for op, sign in ((OP_AND, "&"), (OP_OR, "|"), (OP_XOR, "^")))


def _make_logic(op: int) -> Callable[[Recording, Any, Any], Sym]:
    return lambda rec, x, y: Sym(rec, rec.emit(op, truth(rec, x).node, truth(rec, y).node), BOOL)


logical_and, logical_or, logical_xor = (_make_logic(op) for op in (OP_AND, OP_OR, OP_XOR))


def logical_not(rec: Recording, x: Any) -> Sym:
    return Sym(rec, rec.emit(OP_NOT, truth(rec, x).node), BOOL)


def invert(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    if kind == FLOAT:
        refuse("`~` takes ints and bools, not floats")
    return emit(rec, OP_NOT, kind, x)


def _shift_operands(rec: Recording, x: Any, y: Any) -> Tuple[int, int, int]:
    kind = joint(x, y)
    if kind == FLOAT:
        refuse("shifts take ints, not floats")
    kind = INT if kind == BOOL else kind
    parts = [rec.emit(OP_INT, node(rec, z, BOOL)) if kind_of_operand(z) == BOOL else node(rec, z, kind) for z in (x, y)]
    return kind, parts[0], parts[1]


def _shift(rec: Recording, x: Any, y: Any, op: int) -> Sym:
    """Counts outside 0..31 leave nothing (of a right shift the sign), where the program's own are taken modulo 32."""
    kind, value, count = _shift_operands(rec, x, y)
    at = rec.emit(op, value, count)
    if type(y) is Sym or not 0 <= y < 32:
        inside = rec.emit(OP_EQ, rec.emit(OP_AND, count, rec.integer(-32)), rec.integer(0))
        rest = rec.integer(0) if op == OP_SHL else rec.emit(OP_SHR, value, rec.integer(31))
        at = rec.emit(OP_SELECT, inside, at, rest)
    return narrowed(rec, at, kind)


def shift_left(rec: Recording, x: Any, y: Any) -> Sym:
    return _shift(rec, x, y, OP_SHL)


def shift_right(rec: Recording, x: Any, y: Any) -> Sym:
    return _shift(rec, x, y, OP_SHR)


# ---- choice and conversions

def choose(rec: Recording, c: Any, x: Any, y: Any) -> Sym:
    """x where the bool c holds, else y."""
    kind = joint(x, y)
    first, second = node(rec, x, kind), node(rec, y, kind)
    if kind != BOOL and kind != FLOAT:  # a bool beside an int is one
        first = rec.emit(OP_INT, first) if kind_of_operand(x) == BOOL else first
        second = rec.emit(OP_INT, second) if kind_of_operand(y) == BOOL else second
    return Sym(rec, rec.emit(OP_SELECT, node(rec, c, BOOL), first, second), kind)


def where(rec: Recording, c: Any, x: Any, y: Any) -> Sym:
    kind = kind_of_operand(c)
    if kind != BOOL:
        if rec.lib != "numpy" and kind != U8:
            refuse("where expected condition to be a boolean, but got %s; compare it, as in x != 0" % NAMES[kind])
        c = truth(rec, c)
    return choose(rec, c, x, y)


def as_sym(rec: Recording, x: Any, kind: int = -1) -> Sym:
    """Any operand as a Sym, of the type if one is named (which it must convert to by itself)."""
    if type(x) is Sym:
        if kind in (-1, x.ty):
            return x
        return Sym(rec, rec.emit(OP_INT, x.node) if x.ty == BOOL and kind != FLOAT else x.node, kind)
    kind = kind_of_operand(x) if kind < 0 else kind
    return Sym(rec, node(rec, x, kind), kind)


def cast(rec: Recording, x: Any, kind: int) -> Sym:
    """A conversion that is written out: towards zero from a float, wrapping from a wider int."""
    x = as_sym(rec, x)
    if x.ty == kind:
        return x
    if kind == BOOL:
        return truth(rec, x)
    if kind == FLOAT:
        return Sym(rec, rec.emit(OP_FLOAT, x.node), FLOAT)
    at = rec.emit(OP_INT, x.node) if x.ty in (BOOL, FLOAT) else x.node
    fits = x.ty == BOOL or kind == INT or (x.ty in (U8, I8) and kind == I16)
    return Sym(rec, at, kind) if fits else narrowed(rec, at, kind)
