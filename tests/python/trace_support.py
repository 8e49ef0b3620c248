# SPDX-License-Identifier: Apache-2.0
"""The meaning of a traced program at one pair, by fxa_program_eval: what tests of the tracer hold functions against."""
import ctypes
import math

import numpy as np

from fxattn import _abi
from fxattn._library import call, lib
from fxattn._program import DTYPE_NAMES

NUMPY_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16",
                "i8": "int8", "u8": "uint8", "bool": "bool"}


def views_of(program, tensors):
    """fxa_view of each captured array, and what keeps their memory."""
    held, views = [], (_abi.View * max(1, len(tensors)))()
    assert len(program.captures) == len(tensors)
    for view, array, capture in zip(views, tensors, program.captures):
        if hasattr(array, "detach"):
            array = array.detach()
            shape, strides, data = array.shape, array.stride(), array.data_ptr()
        else:
            array = np.asarray(array)
            shape, data = array.shape, array.__array_interface__["data"][0]
            strides = [step // array.itemsize for step in array.strides]
        assert capture.rank == len(shape)
        held.append(array)
        view.data, view.rank = data, len(shape)
        view.dtype = {name: code for code, name in DTYPE_NAMES.items()}[capture.dtype]
        for d, (size, stride) in enumerate(zip(shape, strides)):
            view.size[d], view.stride[d] = size, stride
    return views, held


class Evaluator:
    """A program with its tensors and numbers, as a function of a pair."""

    def __init__(self, program, tensors=(), params=()):
        self.program = program
        self.views, self.held = views_of(program, tensors)
        assert len(program.params) == len(params)
        self.params = (ctypes.c_double * max(1, len(params)))(*[float(x) for x in params])

    def __call__(self, score=0.0, b=0, h=0, q=0, k=0, q_len=16, k_len=16, dscore=0.0, heads=4):
        inputs = (ctypes.c_double * _abi.INPUT_COUNT)()
        for at, x in ((_abi.INPUT_SCORE, score), (_abi.INPUT_B, b), (_abi.INPUT_H, h), (_abi.INPUT_Q, q),
                      (_abi.INPUT_K, k),
                      (_abi.INPUT_Q_LEN, q_len), (_abi.INPUT_K_LEN, k_len), (_abi.INPUT_DSCORE, dscore),
                      (_abi.INPUT_HEADS, heads), (_abi.INPUT_Q_ROW, q), (_abi.INPUT_K_ROW, k)):
            inputs[at] = x
        value, mask = ctypes.c_double(), ctypes.c_int()
        call(lib.program_eval, self.program._handle, inputs, self.params, self.views, ctypes.byref(value),
             ctypes.byref(mask))
        return value.value, bool(mask.value)


def evaluator(traced):
    return Evaluator(traced.program, traced.tensors, traced.params)


def same(x, y, tolerance=1e-9):
    """Equal up to rounding; NaN and infinities as they are."""
    x, y = float(x), float(y)
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    if math.isinf(x) or math.isinf(y):
        return x == y
    return abs(x - y) <= tolerance * max(1.0, abs(x), abs(y))
