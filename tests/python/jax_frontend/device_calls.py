# SPDX-License-Identifier: Apache-2.0
"""CUDA's side of fxattn.jax without a device: calls are lowered for CUDA as JAX does it, and the handler runs them on the
stand-ins of tests/standin (driver and cuDNN), called by xla_mock_device.c. Run by test_jax_device.py, which says where
both are, with the loader's path on the stand-ins.

    device_calls.py MOCK STANDINS CASE
"""
import ctypes
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import fxattn.jax
from fxattn import _abi
from fxattn.jax import _handlers, _primitives, _spec

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from soft_cap import SoftCap  # noqa: E402

INITIALIZE, EXECUTE = 2, 3
CODES = {"uint8": 6, "int32": 4, "uint32": 8, "float32": 11, "float64": 12, "bfloat16": 16}  # of XLA's types
STREAM = 0x5000


class Buffer(ctypes.Structure):
    _fields_ = [("role", ctypes.c_int64), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("size", ctypes.c_int64 * 8), ("data", ctypes.c_void_p)]


class Runtime(ctypes.Structure):
    _fields_ = [("ordinal", ctypes.c_int32), ("old", ctypes.c_int32), ("streamless", ctypes.c_int32),
                ("stream", ctypes.c_void_p), ("asked", ctypes.c_int64), ("threads", ctypes.c_int64),
                ("text", ctypes.c_char * 600)]


class Device:
    """Memory of the stand-in, which the host can read."""

    def __init__(self, folder, ordinal=0):
        self.driver = ctypes.CDLL(folder + "/libcuda.so.1")
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        assert self.driver.cuInit(0) == 0 and self.driver.cuDeviceGet(ctypes.byref(handle), ordinal) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle) == 0
        self.context = context

    def put(self, size):
        out = ctypes.c_size_t()
        assert self.driver.cuCtxPushCurrent_v2(self.context) == 0
        assert self.driver.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(max(size, 1))) == 0
        assert self.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
        return out.value

    def recorded(self, stream):
        """From now on that stream is being recorded into a graph."""
        state = ctypes.c_char.in_dll(self.driver, "standin_cuda")
        ctypes.c_void_p.from_address(ctypes.addressof(state) + 32).value = stream  # standin_state.recorded


class Call:
    """One call of the handler as it was lowered: problem, roles, shapes."""

    def __init__(self, results, operands, attributes):
        self.problem = attributes["problem"]
        self.operands = [(role, x.shape, x.dtype.name) for role, x in zip(attributes["operands"].tolist(), operands)]
        self.results = [(role, x.shape, np.dtype(x.dtype).name)
                        for role, x in zip(attributes["results"].tolist(), results)]

    def run(self, mock, stage, values, device, runtime, without=(), shift=0):
        """Runs with values by role, in memory so many bytes off; what it wrote is added to them."""
        sides = []
        for listed in (self.operands, [one for one in self.results if one[0] not in without]):
            buffers = (Buffer * len(listed))()
            for buffer, (role, shape, dtype) in zip(buffers, listed):
                size = int(np.prod(shape)) * np.dtype(jnp.dtype(dtype)).itemsize
                data = device.put(size + shift) + shift
                if listed is self.operands:
                    given = np.array(values[role], order="C")
                    assert given.shape == tuple(shape) and given.dtype.name == dtype, (role, shape, dtype)
                    ctypes.memmove(data, given.ctypes.data, size)
                buffer.role, buffer.dtype, buffer.rank, buffer.data = role, CODES[dtype], len(shape), data
                buffer.size[:len(shape)] = shape
            sides.append(buffers)
        failed = mock.mock_call(_handlers._library.fxa_jax_cuda, stage, self.problem,
                                ctypes.c_size_t(len(self.problem)), sides[0], ctypes.c_int64(len(sides[0])), sides[1],
                                ctypes.c_int64(len(sides[1])), ctypes.byref(runtime))
        assert runtime.asked == 0, "memory or threads of the runtime's were asked for"
        for buffer, (role, shape, dtype) in zip(sides[1], self.results):
            size = int(np.prod(shape)) * jnp.dtype(dtype).itemsize
            values[role] = np.frombuffer(ctypes.string_at(buffer.data, size), jnp.dtype(dtype)).reshape(shape)
        return runtime.text.decode() if failed else None


def lowered(f, *args):
    """The calls of f, as JAX lowers them for CUDA."""
    calls, real = [], jax.ffi.ffi_call

    def record(target, results, **options):
        run = real(target, results, **options)

        def bound(*operands, **attributes):
            calls.append(Call(results, operands, attributes))
            return run(*operands, **attributes)
        return bound
    jax.ffi.ffi_call = _primitives.jax.ffi.ffi_call = record
    try:
        jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",))
    finally:
        jax.ffi.ffi_call = _primitives.jax.ffi.ffi_call = real
    return calls


# ---- Cases -----------------------------------------------------------------------------------------------------------

def arrays(shape=(2, 16, 4, 16)):
    return [jnp.asarray(np.random.default_rng(n).standard_normal(shape), "bfloat16") for n in range(4)]


def capped(q, k, v, cap):
    return fxattn.jax.attention(q, k, v, score_mod="cap * tanh(score / cap)", params={"cap": cap}, causal=True)


def values_of(q, k, v, cap):
    return {_abi.SLOT_Q: np.asarray(q), _abi.SLOT_K: np.asarray(k), _abi.SLOT_V: np.asarray(v),
            _spec.SCALARS: np.asarray([np.nan, cap], np.float64)}


def near(got, want, what):
    """Both in bf16, of sums in f32, whichever engine's."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.abs(got - want).max() <= 2.0**-6 * max(np.abs(want).max(), 1), what


def training(mock, folder):
    """Forward and backward while the stream is recorded; the plan of the lowering is the one that runs."""
    q, k, v, dout = arrays()

    def loss(q, k, v, cap):
        return jnp.sum(capped(q, k, v, cap) * dout)
    calls = lowered(jax.grad(loss, (0, 1, 2)), q, k, v, jnp.float32(1.5))
    assert len(calls) == 2 and all(call.results[-1][0] == _spec.WORKSPACE for call in calls), calls
    for ordinal in (0, 1):
        device, runtime = Device(folder, ordinal), Runtime(ordinal=ordinal, stream=STREAM)
        values = {**values_of(q, k, v, 1.5), _abi.SLOT_DO: np.asarray(dout)}
        for call in calls:
            builds = fxattn.jax.cache_stats()["builds"]
            said = call.run(mock, INITIALIZE, dict(values), device, runtime)
            assert not said, said
            ready = fxattn.jax.cache_stats()["builds"]
            assert ordinal or ready == builds, "the plan was made when the call was lowered"
            device.recorded(STREAM)
            said = call.run(mock, EXECUTE, values, device, runtime)
            assert not said and fxattn.jax.cache_stats()["builds"] == ready, said
            device.recorded(None)
        near(values[_abi.SLOT_O], capped(q, k, v, jnp.float32(1.5)), "out")
        grads = jax.grad(loss, (0, 1, 2))(q, k, v, jnp.float32(1.5))
        for slot, grad in zip((_abi.SLOT_DQ, _abi.SLOT_DK, _abi.SLOT_DV), grads):
            near(values[slot], grad, slot)


def captures(mock, folder):
    """A function that captures arrays of rank 0 and 1, a scale, lengths and an int array, none of them known."""
    q, k, v, _ = arrays()
    cap, slopes, ids = jnp.float32(1.5), jnp.arange(4.0) / 8, jnp.asarray([0] * 7 + [1] * 9)
    lengths, scale = jnp.asarray([16, 5]), jnp.float32(0.3)

    def run(q, k, v, cap, slopes, ids, lengths, scale):
        def mod(score, b, h, i, j):
            return cap * jnp.tanh(score / cap) - slopes[h] * (i - j)
        return fxattn.jax.attention(q, k, v, score_mod=mod, mask_mod=lambda b, h, i, j: ids[i] == ids[j], scale=scale,
                                    lengths=(None, lengths))
    call, = lowered(run, q, k, v, cap, slopes, ids, lengths, scale)
    values = {**values_of(q, k, v, 0.3), _abi.SLOT_K_LENGTHS: np.asarray(lengths),
              _spec.SCALARS: np.asarray([1.0, 0.3], np.float64)}
    by_kind = {((), "float32"): cap, ((4,), "float32"): slopes, ((16,), "int32"): ids}
    values.update({role: np.asarray(by_kind[shape, dtype]) for role, shape, dtype in call.operands
                   if role >= _spec.TENSORS})
    said = call.run(mock, EXECUTE, values, Device(folder), Runtime(stream=STREAM))
    assert not said, said
    near(values[_abi.SLOT_O], run(q, k, v, cap, slopes, ids, lengths, scale), "out")


def bprop(mock, folder):
    """A backward program with numbers: it reads them where the arrays are. Text with params of its own cannot."""
    q, k, v, dout = arrays()

    def loss(q, k, v):
        mod, numbers = SoftCap(), {"cap": 1.5}
        out = fxattn.jax.attention(q, k, v, score_mod=mod.forward, score_mod_bprop=mod.backward,
                                   score_mod_tensors=numbers, score_mod_bprop_tensors=numbers)
        return jnp.sum(out * dout)
    calls = lowered(jax.grad(loss, (0, 1, 2)), q, k, v)
    values = {**values_of(q, k, v, 1.5), _abi.SLOT_DO: np.asarray(dout)}
    for call in calls:
        for role, shape, dtype in call.operands:
            if role >= _spec.TENSORS:
                assert (shape, dtype) == ((), "float32"), (role, shape, dtype)
                values[role] = np.asarray(1.5, "float32")
        said = call.run(mock, EXECUTE, values, Device(folder), Runtime(stream=STREAM))
        assert not said, said
    for slot, grad in zip((_abi.SLOT_DQ, _abi.SLOT_DK, _abi.SLOT_DV), jax.grad(loss, (0, 1, 2))(q, k, v)):
        near(values[slot], grad, slot)

    def text(q):
        return jnp.sum(fxattn.jax.attention(q, k, v, score_mod="cap * score", score_mod_bprop="cap * dscore",
                                            params={"cap": 2.0}) * dout)
    try:
        lowered(jax.grad(text), q)
    except fxattn.UnsupportedError as error:
        assert "cap" in str(error) and "rank 0" in str(error), error
    else:
        raise AssertionError("params of a backward program, in memory of a device")


def refusals(mock, folder):
    """What a runtime lacks, or a module from elsewhere, is an error in words."""
    q, k, v, _ = arrays()
    call, = lowered(capped, q, k, v, jnp.float32(2.0))
    device, values = Device(folder), values_of(q, k, v, 2.0)
    for runtime, without, words in (
            (Runtime(old=1, stream=STREAM), (), "does not say which device"),
            (Runtime(streamless=1), (), "no stream"),
            (Runtime(ordinal=7, stream=STREAM), (), "7"),
            (Runtime(stream=STREAM), (_spec.WORKSPACE,), "lower it on a machine that has one")):
        said = call.run(mock, EXECUTE, dict(values), device, runtime, without)
        assert said and words in said, (words, said)
    said = call.run(mock, EXECUTE, dict(values), device, Runtime(stream=STREAM), shift=8)  # then it is not trusted
    assert said and "alignment promises a multiple of 16" in said, said
    assert call.run(mock, EXECUTE, values, device, Runtime(stream=STREAM)) is None
    near(values[_abi.SLOT_O], capped(q, k, v, jnp.float32(2.0)), "out")
    _handlers.cuda_ordinal = lambda: None  # a machine without one
    there, = lowered(capped, q[:1], k[:1], v[:1], jnp.float32(2.0))
    assert [role for role, *_ in there.results] == [_abi.SLOT_O]


def unsupported(mock, folder):
    """What no engine of the device can do is said where the call is lowered, with each one's reason."""
    q = jnp.ones((1, 8, 2, 16))
    try:
        lowered(fxattn.jax.attention, q, q, q)
    except fxattn.UnsupportedError as error:
        assert "f16 and bf16" in str(error), error
    else:
        raise AssertionError("f32 on a device that has cuDNN alone")


def main():
    mock, folder, case = ctypes.CDLL(sys.argv[1]), sys.argv[2], sys.argv[3]
    _handlers.cuda_ordinal = lambda: 0  # JAX itself has no such device here
    {"training": training, "captures": captures, "refusals": refusals, "bprop": bprop, "unsupported": unsupported}[case](mock, folder)
    print("right")


if __name__ == "__main__":
    main()
