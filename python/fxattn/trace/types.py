# SPDX-License-Identifier: Apache-2.0
"""Types of traced values: the types of a program (bool, int of 32 bits, float), and the narrow ints of torch, NumPy and
JAX, whose arithmetic wraps around at their own width.

A narrow int is a 32-bit int of the program that is wrapped to the narrow width after each operation that may overflow
this width. torch, NumPy and JAX agree on the promotion of two types. torch, NumPy and JAX differ on a Python int that
does not fit the narrow type: torch wraps the int, NumPy refuses it.
"""
from typing import Dict, List, Tuple

BOOL, U8, I8, I16, INT, FLOAT = range(6)
NAMES = ("bool", "u8", "i8", "i16", "int", "float")
LOWEST: Dict[int, int] = {U8: 0, I8: -(1 << 7), I16: -(1 << 15), INT: -(1 << 31)}
HIGHEST: Dict[int, int] = {U8: (1 << 8) - 1, I8: (1 << 7) - 1, I16: (1 << 15) - 1, INT: (1 << 31) - 1}


def _together(x: int, y: int) -> int:
    if {x, y} == {U8, I8}:
        return I16
    return max(x, y)


# PROMOTE[x][y]: type of the result of an operation on types x and y.
PROMOTE: List[Tuple[int, ...]] = [tuple(_together(x, y) for y in range(6)) for x in range(6)]
# BESIDE_INT[x]: type of the result of an operation on type x and a Python int: x, but int if x is bool.
BESIDE_INT = (INT, U8, I8, I16, INT, FLOAT)
# PROGRAM_TYPE[x]: code of fxa_type that represents type x in a program.
PROGRAM_TYPE = (3, 2, 2, 2, 2, 1)

# Storage types by name: (code of fxa_dtype, type of an element).
STORAGE = {"f64": (1, FLOAT), "f32": (2, FLOAT), "f16": (3, FLOAT), "bf16": (4, FLOAT), "i64": (5, INT),
           "i32": (6, INT), "i16": (7, I16), "i8": (8, I8), "u8": (9, U8), "bool": (10, BOOL)}


def wrapped(value: int, kind: int) -> int:
    """Returns a Python int wrapped to the range of the int type `kind`."""
    span = HIGHEST[kind] - LOWEST[kind] + 1
    return (value - LOWEST[kind]) % span + LOWEST[kind]
