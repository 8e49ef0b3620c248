#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a stub of the CUDA driver, with which cuDNN makes plans for a described device on machines without a GPU
(docs/gpu.md).

    python3 tools/stub_driver.py FOLDER CUDNN

writes libcuda.so.1 and libcublasLt.so.13 into FOLDER. The stub defines every driver function whose name is in the cuDNN
libraries in folder CUDNN, because cuDNN looks all of them up. The functions in ANSWERS return success without doing
anything; all others return CUDA_ERROR_NOT_SUPPORTED. The stub cannot run kernels. On a machine with a GPU, use its
driver and keep FOLDER out of the library path.
"""
import glob
import os
import re
import subprocess
import sys

# C source of the stub functions that return success.
ANSWERS = """
int cuLibraryLoadData(void **l, const void *c, void *a, void *b, unsigned n, void *d, void *e, unsigned m) { *l = l; return 0; }
int cuLibraryGetKernel(void **k, void *l, const char *n) { *k = l; return 0; }
int cuLibraryUnload(void *l) { return 0; }
int cuKernelGetFunction(void **f, void *k) { *f = k; return 0; }
int cuKernelSetAttribute(int a, int v, void *k, int d) { return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { return 0; }
int cuFuncGetAttribute(int *p, int a, void *f) { *p = 0; return 0; }
int cuKernelGetAttribute(int *p, int a, void *f, int d) { *p = 0; return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuGetErrorString(int e, const char **s) { *s = "a stub of the driver"; return 0; }
int cuGetErrorName(int e, const char **s) { *s = "a stub of the driver"; return 0; }
"""
REFUSED = "int %s(void) { return 801; }"  # CUDA_ERROR_NOT_SUPPORTED
BLAS = "unsigned long cublasLtGetVersion(void) { return 130000; }\n"


def make_library(folder, name, text):
    source = os.path.join(folder, name + ".c")
    with open(source, "w") as f:
        f.write(text)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", "-Wl,-soname," + name, "-o",
                    os.path.join(folder, name), source], check=True)
    os.remove(source)


def make_driver(folder, cudnn):
    names = set()
    for path in glob.glob(os.path.join(cudnn, "*.so.9")):
        with open(path, "rb") as f:
            names |= set(re.findall(rb"(?<=\0)cu[A-Z][A-Za-z0-9_]{2,60}(?=\0)", f.read()))
    if not names:
        sys.exit("there is no cuDNN in %s" % cudnn)
    known = set(re.findall(r"int (cu\w+)\(", ANSWERS))
    stubs = [REFUSED % n.decode() for n in sorted(names) if n.decode() not in known]
    os.makedirs(folder, exist_ok=True)
    make_library(folder, "libcuda.so.1", "\n".join(stubs) + ANSWERS)
    make_library(folder, "libcublasLt.so.13", BLAS)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make_driver(sys.argv[1], sys.argv[2])
