# SPDX-License-Identifier: Apache-2.0
"""The kernels' arguments as ctypes structs, and launches through the CUDA driver. Mirrors
src/engine/cuda/kernel_args.cuh; every call compares the sizes with what the compiler saw."""
import ctypes as C
import os
import time

import torch

p, ll, i32, f32 = C.c_void_p, C.c_longlong, C.c_int, C.c_float


def struct(name, *fields):
    return type(name, (C.Structure,), {"_fields_": [(n, t) for names, t in fields for n in names.split()]})


View = struct("View", ("data", p), ("b h s", ll))
Capture = struct("Capture", ("data", p), ("stride", ll * 5), ("size", i32 * 5), ("rank", i32))
TileList = struct("TileList", ("items counts", p), ("pitch b_rows h_rows", ll))
Diagonal = struct("Diagonal", ("data", p), ("b h", ll), ("zero", i32))
DiagonalGrad = struct("DiagonalGrad", ("data", p), ("b h n", ll), ("zero zero_step size", i32))
Sums = struct("Sums", ("data", p), ("b h", ll))
Vector = struct("Vector", ("data ranges", p), ("b h ranges_b ranges_h", ll))
Args = struct(
    "Args", ("q k v o grad_o grad_q grad_k grad_v", View), ("lse grad_lse", p), ("lse_b lse_h lse_s grad_lse_b grad_lse_h grad_lse_s", ll),
    ("lse2 delta grad_q_sum next_tile redo q_lens k_lens q_starts k_starts pages", p), ("pages_b", ll),
    ("page_size n_pages", i32), ("sink grad_sink", p), ("list", TileList),
    ("diagonal", Diagonal),
    ("grad_diagonal", DiagonalGrad), ("q_vector k_vector", Vector), ("dense grad_dense", View), ("tensor", Capture * 16),
    ("grad_tensor", p * 16), ("sums", Sums),
    ("f", f32 * 42), ("i", i32 * 32), ("batch heads kv_heads group d dv q_len k_len q_pad", i32),
    ("q_total k_total pad_rows q_tiles tiles section reverse splits", i32), ("scale scale_log2", f32), ("turned", i32),
    ("partial partial_ml", p), ("seed", C.c_uint * 2), ("drop_below", C.c_uint), ("keep_inverse", f32),
    ("scale_at params_at seed_at place_b place_h place_q place_k row_max", p), ("max_b max_h max_s", ll))
Map = struct("Map", ("opaque", C.c_ulonglong * 16))
Maps = struct("Maps", ("q k v o grad_o grad_q grad_k grad_v dense grad_dense", Map))
Shape = struct("Shape", ("threads shared_bytes q_rows k_rows store_rows persistent sum_rows parts", i32))
Cut = struct("Cut", ("q_rows k_rows rows columns by_key", i32))

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
