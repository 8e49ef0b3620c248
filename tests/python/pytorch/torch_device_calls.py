# SPDX-License-Identifier: Apache-2.0
"""CUDA's side of fxattn.torch without a device, nor PyTorch: the kernels of libfxattn_torch over a libtorch in little
(torch_mock.c) run on the stand-ins of tests/standin (driver and cuDNN). Run by test_torch_device.py, which says where
all of them are, with the loader's path on the stand-ins.

    torch_device_calls.py MOCK STANDINS LIBRARIES CASE
"""
import ctypes
import sys

import numpy as np

from fxattn import _abi
from fxattn._library import NAME

I64, F64, BF16, F32 = 4, 0, 3, 1  # of torch_mock.c
CPU, CUDA = 0, 1
FLAGS, SLOTS, STREAM = 0, 1, 0x5000
CAP = b"param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q"


class Array:
    """Values of 16 bits (or others) in memory of a place, as a tensor of torch_mock.c lies there."""

    def __init__(self, world, values, dtype=BF16, place=(CPU, -1), shift=0, stride=None):
        self.values = np.ascontiguousarray(bits(values) if dtype == BF16 else values)
        self.size, self.dtype, self.place = values.shape, dtype, place
        width = self.values.itemsize
        dense = [int(np.prod(self.size[i + 1:])) for i in range(len(self.size))]
        self.stride = dense if stride is None else stride
        raw = np.zeros(int(np.prod(self.size)) * width + 64, np.uint8) if place[0] == CPU else None
        self.keep = raw
        base = (raw.ctypes.data + 63 & ~63) if place[0] == CPU else world.memory(place[1], self.values.nbytes + 64)
        self.data = base + shift
        if stride is None:
            ctypes.memmove(self.data, self.values.ctypes.data, self.values.nbytes)
        else:  # an expanded one: a value for all
            ctypes.memmove(self.data, self.values.ctypes.data, width)


def bits(values):
    """f32 as bf16, rounded to even."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((raw + 0x7fff + (raw >> 16 & 1)) >> 16).astype(np.uint16)


def floats(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


class Standin(ctypes.Structure):
    """standin_state of tests/standin/standin.h."""

    _fields_ = [("fail_at", ctypes.c_size_t), ("devices_gone", ctypes.c_bool), ("quiet", ctypes.c_bool), ("no_engine", ctypes.c_bool),
                ("tried", ctypes.c_int64), ("arch", ctypes.c_int), ("recorded", ctypes.c_void_p),
                ("pinned", ctypes.c_size_t), ("managed", ctypes.c_size_t), ("calls", ctypes.c_size_t),
                ("failures", ctypes.c_size_t), ("mistakes", ctypes.c_size_t), ("held", ctypes.c_size_t)]


class World:
    def __init__(self, mock, standins, libraries):
        self.driver, self.cudnn = (ctypes.CDLL(standins + name) for name in ("/libcuda.so.1", "/libcudnn.so.9"))
        self.contexts = []
        for ordinal in (0, 1):
            context, device = ctypes.c_void_p(), ctypes.c_int()
            assert self.driver.cuInit(0) == 0 and self.driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0
            assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
            self.contexts.append(context)
        assert self.driver.cuCtxPushCurrent_v2(self.contexts[0]) == 0  # CUDA's runtime has one, which stays the first
        self.torch, cuda = ctypes.CDLL(mock + "/libtorch_cpu.so"), ctypes.CDLL(mock + "/libtorch_cuda.so")
        self.streams = (ctypes.c_void_p * 2).in_dll(cuda, "mock_streams")
        self.streams[0], self.streams[1] = STREAM, STREAM + 16
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))(
            lambda index, size, out: self._alloc(index, size, out))
        ctypes.c_void_p.in_dll(self.torch, "mock_alloc").value = ctypes.cast(self.alloc, ctypes.c_void_p).value
        for name in ("mock_tensor_new", "mock_string_new"):
            getattr(self.torch, name).restype = ctypes.c_void_p
        self.ours = ctypes.CDLL(libraries + "/libfxattn_torch.so")
        text = ctypes.create_string_buffer(600)
        failed = self.ours.fxa_torch_register(mock.encode(), (libraries + "/" + NAME).encode(), b"fwd()", b"bwd()",
                                              text, ctypes.c_size_t(600))
        assert not failed, text.value

    def _alloc(self, index, size, out):
        out[0] = self.memory(index, size)
        return 0

    def memory(self, index, size):
        out = ctypes.c_size_t()
        assert self.driver.cuCtxPushCurrent_v2(self.contexts[index]) == 0
        assert self.driver.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(max(size, 1))) == 0
        assert self.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
        return out.value

    def recorded(self, stream):
        """From now on that stream is being recorded into a graph."""
        Standin.in_dll(self.driver, "standin_cuda").recorded = stream

    def held(self):
        """Descriptors and handles of cuDNN, once what nobody has any more is gone."""
        for _ in range(2):
            self.ours.fxa_torch_cache_clear()
        return Standin.in_dll(self.cudnn, "standin_cudnn").held

    def number(self, name, n=1):
        return (ctypes.c_int64 * n).in_dll(self.torch, name)

    def said(self):
        text = (ctypes.c_char * 600).in_dll(self.torch, "mock_said")
        found, text.value = text.value.decode(), b""
        return found

    def builds(self):
        stats = _abi.CacheStats()
        assert self.ours.fxa_torch_cache_stats(ctypes.byref(stats)) == 0
        return stats.builds

    # ---- Arguments ----

    def tensor(self, a):
        n = len(a.size)
        return self.torch.mock_tensor_new(ctypes.c_void_p(a.data), ctypes.c_int64(n), (ctypes.c_int64 * n)(*a.size),
                                          (ctypes.c_int64 * n)(*a.stride), a.dtype, *a.place)

    def list(self, values):
        out = ctypes.c_void_p()
        self.torch.torch_new_list_reserve_size(ctypes.c_size_t(len(values)), ctypes.byref(out))
        for value in values:
            self.torch.torch_list_push_back(out, ctypes.c_uint64(value))
        return out.value

    def call(self, which, q, k, v, config=(0,), text=CAP, floats=(np.nan, 0.0, 1.5), tensors=(), extras=(), scalars=(),
             more=()):
        """The tensors that a kernel of q's device gives, or what it said."""
        stack = (ctypes.c_uint64 * 16)()
        lists = [[self.tensor(t) for t in some] for some in (tensors, extras, scalars)]
        given = [self.tensor(q), self.tensor(k), self.tensor(v), *map(self.list, lists), self.list([]),
                 self.list([int(np.float64(x).view(np.uint64)) for x in floats]),
                 self.list([x & (1 << 64) - 1 for x in config]), self.torch.mock_string_new(text, ctypes.c_size_t(len(text)))]
        for x in more:
            given.append(self.tensor(x) if isinstance(x, Array) else self.list(
                [self.tensor(y) if isinstance(y, Array) else y for y in x]))
        stack[:len(given)] = given
        kernels = (ctypes.c_void_p * 4).in_dll(self.torch, "mock_kernels")
        kernel = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_uint64)(
            kernels[2 * (q.place[0] == CUDA) + (which == "bwd")])
        kernel(stack, len(given), 3)
        said = self.said()
        if said:
            return said
        if which == "fwd":
            return [self.taken(x) for x in stack[:3]]
        n, item = ctypes.c_size_t(), ctypes.c_uint64()
        listed = ctypes.c_void_p(stack[0])
        self.torch.torch_list_size(listed, ctypes.byref(n))
        found = []
        for i in range(n.value):
            self.torch.torch_list_get_item(listed, ctypes.c_size_t(i), ctypes.byref(item))
            found.append(self.taken(item.value))
        self.torch.torch_delete_list(listed)
        return found

    def taken(self, handle):
        """A result as an array of f32 or f64, given back."""
        handle, data, size, rank = ctypes.c_void_p(handle), ctypes.c_void_p(), ctypes.POINTER(ctypes.c_int64)(), ctypes.c_int64()
        dtype, strides = ctypes.c_int32(), ctypes.POINTER(ctypes.c_int64)()
        for name, out in (("data_ptr", data), ("sizes", size), ("strides", strides), ("dim", rank), ("dtype", dtype)):
            getattr(self.torch, "aoti_torch_get_" + name)(handle, ctypes.byref(out))
        shape = size[:rank.value]
        kind = {BF16: np.uint16, F64: np.float64, F32: np.float32}[dtype.value]
        n = int(np.prod(shape))
        flat = np.frombuffer(ctypes.string_at(data, n * np.dtype(kind).itemsize), kind) if n else np.zeros(0, kind)
        dense = np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides[:rank.value]]).copy()
        self.torch.aoti_torch_delete_tensor_object(handle)
        return floats(dense) if kind is np.uint16 else dense

    def live(self):
        """Tensors that nobody gave back, besides workspaces that are kept."""
        self.ours.fxa_torch_workspaces_clear()
        return self.number("mock_live")[0]


def values(seed, shape=(2, 4, 16, 16)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def near(got, want, what):
    assert got.shape == want.shape and np.abs(got - want).max() <= 2.0**-6 * max(np.abs(want).max(), 1), what


def trained(world, place, make=None, **more):
    """out, lse, dq, dk, dv of a forward and a backward pass there; make: how an array of a name lies."""
    lying = make or (lambda name, x: Array(world, x, place=place))
    q, k, v, dout = (lying(name, values(i)) for i, name in enumerate(("q", "k", "v", "dout")))
    found = world.call("fwd", q, k, v, (_abi.RETURN_LSE,), **more)
    assert not isinstance(found, str), found
    out, lse = Array(world, found[0], place=place), Array(world, found[1], F64, place=place)
    grads = world.call("bwd", q, k, v, (0,), more=(out, lse, [dout], [0, 1, 2]), **more)
    assert not isinstance(grads, str), grads
    return [found[0], found[1], *grads]


# ---- Cases -----------------------------------------------------------------------------------------------------------

def places(world):
    """Both devices, each with results, workspace and copies of its own, are what the host is."""
    want, now = trained(world, (CPU, -1)), world.builds()
    for index in (0, 1):
        before = list(world.number("mock_made", 3))
        got = trained(world, (CUDA, index))
        builds, now = now, world.builds()
        assert now > builds, "code of one device for another"
        made = [b - a for a, b in zip(before, world.number("mock_made", 3))]
        assert made[1 + index] >= 7 and made[0] == 0 and made[2 - index] == 0, made  # with a workspace for each pass
        for a, b, name in zip(got, want, ("out", "lse", "dq", "dk", "dv")):
            near(a, b, (index, name))
    assert world.live() == 0 and world.number("mock_copies")[0] == 0


def pieces(world):
    """A small workspace is kept for its stream and device, by threads in turns, and for no run that is recorded."""
    def made(place):
        before, live = list(world.number("mock_made", 3)), world.number("mock_live")[0]
        q, k, v = (Array(world, values(i), place=place) for i in range(3))
        found = world.call("fwd", q, k, v, (_abi.RETURN_LSE,))
        near(found[0], want, "out")
        return sum(b - a for a, b in zip(before, world.number("mock_made", 3))), world.number("mock_live")[0] - live

    streams, own = world.streams, list(world.streams)
    want = world.call("fwd", *(Array(world, values(i)) for i in range(3)))[0]
    assert made((CUDA, 0)) == (4, 1) and made((CUDA, 0)) == (3, 0), "out, lse, max, and once a workspace"
    assert made((CUDA, 1)) == (4, 1) and made((CUDA, 1)) == (3, 0), "each device has its own"
    world.recorded(own[0])
    assert made((CUDA, 0)) == (4, 0), "what is recorded has its own memory"
    world.recorded(None)
    assert made((CUDA, 0)) == (3, 0)
    streams[0] = 2  # which is another stream in every thread
    assert made((CUDA, 0)) == (4, 0)
    streams[0] = own[0]
    assert made((CUDA, 0)) == (3, 0)
    q, k, v = (Array(world, values(i, (2, 4, 48, 16)), place=(CUDA, 0)) for i in range(3))
    out, lse, _ = world.call("fwd", q, k, v, (_abi.RETURN_LSE,))
    rest = Array(world, out, place=(CUDA, 0)), Array(world, lse, F64, place=(CUDA, 0))
    for many in (4, 3):  # a larger one takes the place of the smaller, which is given back
        before, live = world.number("mock_made", 3)[1], world.number("mock_live")[0]
        found = world.call("bwd", q, k, v, (0,), more=(*rest, [rest[0]], [0, 1, 2]))
        assert len(found) == 3 and world.number("mock_made", 3)[1] - before == many
        assert world.number("mock_live")[0] == live
    before = world.number("mock_live")[0]
    for n in range(40):  # more streams than are kept
        streams[0] = 4096 + 16 * n
        assert made((CUDA, 0))[0] == 4
    assert world.number("mock_live")[0] <= 16 and before == 2
    streams[0] = own[0]
    world.ours.fxa_torch_cache_clear()
    assert world.number("mock_live")[0] == 0


def recording(world):
    """A run that warms up makes the plan of the recorded one, whose code is there after the cache was emptied."""
    trained(world, (CUDA, 0))
    held = world.held()
    trained(world, (CUDA, 0))
    builds = world.builds()
    world.recorded(STREAM + 16)  # that of the other device, of which a graph has nothing to do with this
    trained(world, (CUDA, 0))
    assert world.held() == held, "what was not recorded is kept"
    trained(world, (CUDA, 0))
    builds = world.builds()
    world.recorded(STREAM)
    trained(world, (CUDA, 0))
    assert world.builds() == builds, "something was built while the stream was recorded"
    world.recorded(None)
    kept = world.held()
    assert kept > held, "nothing is kept of what was recorded"
    trained(world, (CUDA, 0))
    assert world.held() == kept and world.live() == 0
    world.recorded(STREAM)
    for n in range(80):  # many, each twice
        q, k, v = (Array(world, values(i, (1, 1, 8 * (n % 40) + 8, 16)), place=(CUDA, 0)) for i in range(3))
        assert not isinstance(world.call("fwd", q, k, v), str)
    assert world.held() == kept + 40


def lying(world):
    """Pointers and strides that cuDNN does not take: the same values, from copies."""
    want = trained(world, (CUDA, 0))

    def shifted(name, x):
        return Array(world, x, place=(CUDA, 0), shift=2 if name in ("q", "dout") else 0)
    for a, b in zip(trained(world, (CUDA, 0), shifted), want):
        assert np.array_equal(a, b)
    copies = world.number("mock_copies")[0]
    assert copies == 3, copies  # q twice, dout once

    def expanded(name, x):
        return Array(world, np.full_like(x, 0.5), place=(CUDA, 0), stride=(0, 0, 0, 0)) if name == "dout" else Array(
            world, x, place=(CUDA, 0))
    got = trained(world, (CUDA, 0), expanded)
    for a, b in zip(got, trained(world, (CPU, -1), lambda name, x: Array(world, np.full_like(x, 0.5) if name == "dout"
                                                                         else x))):
        near(a, b, "expanded")
    assert world.live() == 0


def captured(world):
    """A captured tensor that begins at any element."""
    slopes = np.arange(5, dtype=np.float32) / 8
    text = b"tensor slopes : f32[1]\nscore = score - slopes[h] * (q - k)\n"
    q, k, v = (Array(world, values(i), place=(CUDA, 0)) for i in range(3))
    table = Array(world, slopes[:4], F32, (CUDA, 0), shift=4)
    got = world.call("fwd", q, k, v, text=text, floats=(), tensors=[table])
    host = [Array(world, values(i)) for i in range(3)]
    want = world.call("fwd", *host, text=text, floats=(), tensors=[Array(world, slopes[:4], F32)])
    near(got[0], want[0], "out")
    assert world.number("mock_copies")[0] == 1 and world.live() == 0


def scalars(world):
    """Scale and params in memory of the device."""
    q, k, v = (Array(world, values(i), place=(CUDA, 0)) for i in range(3))
    config = (_abi.SCALARS_IN_MEMORY, 1 << _abi.SLOT_SCALE)
    there = dict(extras=[Array(world, np.array([0.4]), F64, (CUDA, 0))],
                 scalars=[Array(world, np.array([0.75]), F64, (CUDA, 0))])
    got = world.call("fwd", q, k, v, config, floats=(np.nan, 0.0), **there)
    assert not isinstance(got, str), got
    want = world.call("fwd", *(Array(world, values(i)) for i in range(3)), floats=(0.4, 0.0, 0.75))
    near(got[0], want[0], "out")
    there["scalars"] = [Array(world, np.array([0.75]), F64)]
    said = world.call("fwd", q, k, v, config, floats=(np.nan, 0.0), **there)
    assert "beside q" in said, said
    assert world.live() == 0


def trusted(world):
    """PyTorch says that a tensor is on the device, and that is enough: the driver is not asked. Memory of the host has to
    do for it here, which the library would refuse as no memory of the device."""
    arrays = [Array(world, values(i)) for i in range(3)]
    want = world.call("fwd", *arrays)
    for a in arrays:
        a.place = (CUDA, 0)
    got = world.call("fwd", *arrays)
    assert not isinstance(got, str), got
    near(got[0], want[0], "out")


def refusals(world):
    """What is wrong is said, nothing is left behind, and the next call is right."""
    q, k, v = (Array(world, values(i), place=(CUDA, 0)) for i in range(3))
    host, other = Array(world, values(1)), Array(world, values(1), place=(CUDA, 1))
    out = Array(world, values(4), place=(CUDA, 0))
    lse = Array(world, values(5)[..., 0].astype(np.float64), F64, (CUDA, 0))
    wide = [Array(world, values(i), F32, (CUDA, 0)) for i in range(3)]
    cases = (("fwd", (q, host, v), {}, "k is on another device"), ("fwd", (q, k, other), {}, "v is on another device"),
             ("bwd", (q, k, v), {"more": (host, lse, [out], [0])}, "out is on another device"),
             ("bwd", (q, k, v), {"more": (out, lse, [host], [0])}, "the gradient of out is on another device"),
             ("fwd", wide, {}, "no engine can run this problem: cudnn:.*f16 and bf16.*torch.autocast"),
             ("fwd", (q, k, v), {"config": (_abi.DROPOUT, 1 << _abi.SLOT_SEED), "floats": (np.nan, 0.5, 1.5),
                                 "extras": [Array(world, np.array([3]), I64)]}, "cudnn: dropout"),
             ("fwd", (q, k, v), {"config": (_abi.DROPOUT, 1 << _abi.SLOT_SEED), "floats": (np.nan, 0.5, 1.5),
                                 "extras": [Array(world, np.array([3]), I64, (CUDA, 0))]}, "seed is on a device"),
             ("bwd", (q, k, v), {"more": (out, lse, [out], [4]), "floats": (np.nan, 0.0), "scalars": [
                 Array(world, np.array([1.5]), F64)]}, "capture a tensor that is there"))
    import re
    for which, tensors, more, words in cases:
        said = world.call(which, *tensors, **more)
        assert isinstance(said, str) and re.search(words, said), (words, said)
        assert world.live() == 0, words
    shifted = Array(world, values(0), place=(CUDA, 0), shift=2)
    for n in range(1, 7):  # memory for out, lse, max, the copy and the copying itself, which fail one by one
        world.number("mock_fail_at")[0] = n
        said = world.call("fwd", shifted, k, v)
        failed = world.number("mock_fail_at")[0] == 0
        world.number("mock_fail_at")[0] = 0
        assert isinstance(said, str) == failed and world.live() == 0, (n, said)
    assert n == 6 and failed
    near(world.call("fwd", q, k, v)[0], world.call("fwd", *(Array(world, values(i)) for i in range(3)))[0], "out")


def nothing(world):
    """Rows of none: results are there, gradients of keys are 0, and no engine is asked."""
    q, k, v = (Array(world, values(i, (2, 4, n, 16)), place=(CUDA, 0)) for i, n in enumerate((0, 16, 16)))
    out, lse, _ = world.call("fwd", q, k, v, (_abi.RETURN_LSE,))
    assert out.shape == (2, 4, 0, 16) and lse.shape == (2, 4, 0)
    empty = Array(world, out, place=(CUDA, 0)), Array(world, lse, F64, place=(CUDA, 0))
    dq, dk, dv = world.call("bwd", q, k, v, more=(*empty, [empty[0]], [0, 1, 2]))
    assert dq.shape == out.shape and dk.shape == (2, 4, 16, 16) and not dk.any() and not dv.any()
    assert world.builds() == 0 and world.live() == 0


def packed(world):
    """Rows of no sequence are 0; a workspace is not cleared, which takes longer than it helps."""
    rows = [Array(world, values(i, (1, 4, 24, 16)), place=(CUDA, 0)) for i in range(3)]
    config = (_abi.VARLEN, 1 << _abi.SLOT_CU_Q | 1 << _abi.SLOT_CU_K, 16, 16)
    offsets = Array(world, np.array([0, 16, 20], np.int32), 5, (CUDA, 0))
    before = world.number("mock_zeroed")[0]
    found = world.call("fwd", *rows, config, extras=[offsets, offsets])
    assert not isinstance(found, str), found
    assert world.number("mock_zeroed")[0] - before == 3, "out, lse and max"
    assert not found[0][0, :, 20:].any() and found[0][0, :, :20].all()
    assert world.live() == 0


def main():
    world = World(*sys.argv[1:4])
    {f.__name__: f for f in (places, pieces, recording, lying, captured, scalars, trusted, nothing, packed, refusals)}[sys.argv[4]](world)
    print("right")


if __name__ == "__main__":
    main()
