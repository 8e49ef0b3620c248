# SPDX-License-Identifier: Apache-2.0
"""Computes lower and upper bounds of the ints of a trace from the sizes of the call. The bounds prove that an index is
in bounds or that a 64-bit int fits into 32 bits. The computed interval of an int may be wider than the range of its
values, never narrower."""
from typing import Callable, Dict, Tuple

from .. import _abi
from .record import CONST, FIRST, LOAD, PARAM, Recording
from .types import BOOL, HIGHEST, INT, LOWEST

Span = Tuple[int, int]
ALL: Span = (LOWEST[INT], HIGHEST[INT])
_AXES = (_abi.INPUT_B, _abi.INPUT_H, _abi.INPUT_Q, _abi.INPUT_K)
_DEEPEST = 60


def _products(x: Span, y: Span) -> Span:
    found = [a * b for a in x for b in y]
    return min(found), max(found)


def _quotient(x: Span, y: Span) -> Span:
    return (x[0] // y[0], x[1] // y[0]) if y[0] == y[1] > 0 else ALL


def _remainder(x: Span, y: Span) -> Span:
    if y[0] <= 0:
        return ALL
    return x if 0 <= x[0] and x[1] < y[0] else (0, y[1] - 1)


def _and(x: Span, y: Span) -> Span:
    whole = [z[1] for z in (x, y) if z[0] >= 0]
    return (0, min(whole)) if whole else ALL


def _right(x: Span, y: Span) -> Span:
    return (x[0] >> y[0], x[1] >> y[0]) if 0 <= y[0] == y[1] < 32 else ALL


def _magnitude(x: Span) -> Span:
    return 0 if x[0] <= 0 <= x[1] else min(map(abs, x)), max(map(abs, x))


_RULES: Dict[int, Callable[..., Span]] = {
    _abi.OP_ADD: lambda x, y: (x[0] + y[0], x[1] + y[1]), _abi.OP_SUB: lambda x, y: (x[0] - y[1], x[1] - y[0]),
    _abi.OP_MUL: _products, _abi.OP_NEG: lambda x: (-x[1], -x[0]), _abi.OP_ABS: _magnitude,
    _abi.OP_MIN: lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    _abi.OP_MAX: lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    _abi.OP_CLAMP: lambda x, y, z: (min(max(x[0], y[0]), z[0]), min(max(x[1], y[1]), z[1])),
    _abi.OP_FLOORDIV: _quotient, _abi.OP_MOD: _remainder, _abi.OP_AND: _and, _abi.OP_SHR: _right,
    _abi.OP_SIGN: lambda x: (-1 if x[0] < 0 else 0, 1 if x[1] > 0 else 0)}


def span(rec: Recording, at: int) -> Span:
    """Returns the bounds of the int node `at` of the trace; ALL if the int has no known bounds."""
    return _span(rec, at, {}, 0)


def _span(rec: Recording, at: int, found: Dict[int, Span], deep: int) -> Span:
    """Returns the bounds of the node `at`. `found` caches the bounds of nodes, so that the bounds of each node are
    computed once."""
    if at not in found:
        found[at] = _looked_at(rec, at, found, deep)
    return found[at]


def _looked_at(rec: Recording, at: int, found: Dict[int, Span], deep: int) -> Span:
    if at < FIRST:
        size = rec.sizes[_AXES.index(at)] if rec.sizes is not None and at in _AXES else None
        return (0, max(size - 1, 0)) if isinstance(size, int) else ALL  # a size may be symbolic
    op, *parts = rec.code[at - FIRST]
    if op == CONST:
        return (int(parts[1]), int(parts[1])) if parts[0] != 1 else ALL
    if op == LOAD:
        kind = rec.kinds[parts[0]]
        return (LOWEST[kind], HIGHEST[kind]) if kind in LOWEST else ALL
    if op == PARAM or deep > _DEEPEST:
        return ALL
    if op == _abi.OP_SELECT:
        x, y = (_span(rec, part, found, deep + 1) for part in parts[1:])
        return min(x[0], y[0]), max(x[1], y[1])
    if op == _abi.OP_INT:
        return (0, 1) if _is_bool(rec, parts[0]) else ALL
    made = _RULES[op](*[_span(rec, part, found, deep + 1) for part in parts]) if op in _RULES else ALL
    return made if LOWEST[INT] <= made[0] and made[1] <= HIGHEST[INT] else ALL  # the result may wrap


def _is_bool(rec: Recording, at: int) -> bool:
    """Returns True if a node is proven to be a bool: a comparison, or an element of an array of bools."""
    if at >= FIRST and rec.code[at - FIRST][0] == LOAD:
        return rec.kinds[rec.code[at - FIRST][1]] == BOOL
    return at >= FIRST and rec.code[at - FIRST][0] in (_abi.OP_EQ, _abi.OP_NE, _abi.OP_LT, _abi.OP_LE, _abi.OP_GT,
                                                       _abi.OP_GE)
