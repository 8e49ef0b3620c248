# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels through the CUDA driver. Every call compares the sizes of the arguments with what the compiler
saw."""
import ctypes as C
import os
import time

import torch

from arguments import Args, Cut, Maps, Shape, View, WordPair, Words, f32, i32, ll, p  # noqa: F401

cuda = C.CDLL("libcuda.so.1")
torch.zeros(1, device="cuda")
SMS = torch.cuda.get_device_properties(0).multi_processor_count


def check(status, what):
    if status:
        raise RuntimeError("driver error %d: %s" % (status, what))


class Kernel:
    """A function of a module, with its shape where it has one."""

    def __init__(self, module, name, shaped=True):
        self.function, self.name = p(), name
        check(cuda.cuModuleGetFunction(C.byref(self.function), module, name.encode()), name)
        self.shape = Shape()
        at, size = C.c_ulonglong(), C.c_size_t()
        if shaped:
            constant = (name + "_shape").encode()
            check(cuda.cuModuleGetGlobal_v2(C.byref(at), C.byref(size), module, constant), constant)
            assert size.value == C.sizeof(Shape)
            check(cuda.cuMemcpyDtoH_v2(C.byref(self.shape), at, size), "shape of " + name)
            if self.shape.shared_bytes > 48 << 10:
                check(cuda.cuFuncSetAttribute(self.function, 8, self.shape.shared_bytes), "shared memory of " + name)

    def call(self, grid, args, threads=0):
        return Call(self, grid, args, threads or self.shape.threads)


class Call:
    """A launch ready to be repeated; keeps its arguments alive."""

    def __init__(self, kernel, grid, args, threads):
        self.kernel, self.grid, self.args, self.threads = kernel, [max(1, g) for g in grid], args, threads
        offset, size = C.c_size_t(), C.c_size_t()
        for n, arg in enumerate(args):  # the structs here and those of the compiler
            check(cuda.cuFuncGetParamInfo(kernel.function, C.c_size_t(n), C.byref(offset), C.byref(size)), kernel.name)
            assert size.value == C.sizeof(arg), (kernel.name, n, size.value, C.sizeof(arg))
        self.pointers = (p * len(args))(*[C.cast(C.pointer(a), p) for a in args])

    def __call__(self):
        check(cuda.cuLaunchKernel(self.kernel.function, *[i32(g) for g in self.grid], i32(self.threads), 1, 1,
                                  i32(self.kernel.shape.shared_bytes), p(torch.cuda.current_stream().cuda_stream),
                                  self.pointers, p(0)), "launch of " + self.kernel.name)


def load_module(cubin):
    module = p()
    check(cuda.cuModuleLoadData(C.byref(module), cubin), "module")
    return module


def view(t):
    """[b, h, s, d] in any order of strides, d contiguous."""
    return View(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))


def encode(to, t, rows):
    """A tensor map of t = [b, h, s, d] with boxes of rows x 64."""
    b, h, s, d = t.shape
    kind = 6 if t.dtype == torch.float16 else 9
    check(cuda.cuTensorMapEncodeTiled(
        C.byref(to), i32(kind), i32(4), p(t.data_ptr()), (C.c_ulonglong * 4)(d, s, h, b),
        (C.c_ulonglong * 3)(t.stride(2) * 2, t.stride(1) * 2, t.stride(0) * 2), (C.c_uint * 4)(64, rows, 1, 1),
        (C.c_uint * 4)(1, 1, 1, 1), i32(0), i32(3), i32(3), i32(0)), "tensor map of %s" % (tuple(t.shape),))


def sync(limit=6.0):
    """Waits, but not for ever: a kernel that hangs costs its process."""
    limit *= float(os.environ.get("FXA_GPU_PATIENCE", "1"))
    event = torch.cuda.Event()
    event.record()
    start = time.time()
    while not event.query():
        if time.time() - start > limit:
            print("HANG", flush=True)
            os._exit(5)


_flush = []


def milliseconds(f, warm=60, rep=120, cool=0.1):
    """Median over runs with a cold L2 cache."""
    if not _flush:
        _flush.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    a, b = torch.cuda.Event(True), torch.cuda.Event(True)
    f()
    sync()
    a.record()
    for _ in range(3):
        f()
    b.record()
    sync()
    once = a.elapsed_time(b) / 3
    time.sleep(cool)
    for _ in range(min(500, max(1, int(warm / once)))):
        f()
    runs = max(7, min(300, int(rep / (once + .08))))
    events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(runs)]
    for x, y in events:
        _flush[0].zero_()
        x.record()
        f()
        y.record()
    sync(20)
    times = sorted(x.elapsed_time(y) for x, y in events)
    return times[len(times) // 2]
