#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs of the cuDNN engine given to the real cuDNN, without a GPU: for profiles of several devices, what the engine writes
finds an engine of cuDNN and compiles (tests/engine/cudnn_builds.c). cuDNN and NVRTC are looked for in FXA_CUDNN_DEPS, else
in deps/cudnn of the build folder, where `make deps-cudnn` puts them; where they are not, this is skipped, by name.

cuDNN makes plans without a GPU as long as there is a driver with all functions that it looks up: a library of stubs is made
here of the names that cuDNN itself has in it, with the few that load code answering as if they had.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = os.environ["FXA_BUILD"]
DEPS = os.environ.get("FXA_CUDNN_DEPS") or os.path.join(BUILD, "deps", "cudnn")

# Functions of the driver that are asked for something, as C; all others say "not supported" (801).
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
int cuGetErrorString(int e, const char **s) { *s = "stub"; return 0; }
int cuGetErrorName(int e, const char **s) { *s = "stub"; return 0; }
"""

H200 = {
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "pciDeviceId": 6, "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 150109880320,
    "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0, "deviceVer": 900,
    "driverVer": 13000, "deviceName": "NVIDIA H200"}
# What is another of other devices. Plans are compiled for the first alone: each takes a second.
PROFILES = [
    ("h200", {}, 3),
    ("a100", {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 166912}, 0),
    ("l40", {"deviceVer": 890, "multiProcessorCount": 142, "maxSharedMemoryPerBlockOptin": 101376, "maxThreadsPerSM": 1536}, 0),
    ("b200", {"deviceVer": 1000, "multiProcessorCount": 148}, 0),
    ("rtx", {"deviceVer": 1200, "multiProcessorCount": 188, "maxSharedMemoryPerBlockOptin": 101376, "maxThreadsPerSM": 1536}, 0),
]


def skip(why):
    print("skipped: %s" % why)
    sys.exit(77)


def libraries():
    folders = [os.path.join(DEPS, "nvidia", part, "lib") for part in ("cudnn", "cu13")]
    for folder, name in zip(folders, ("libcudnn.so.9", "libnvrtc.so.13")):
        if not os.path.exists(os.path.join(folder, name)):
            skip("there is no %s in %s (make deps-cudnn fetches it)" % (name, folder))
    return folders


def make_library(folder, name, text):
    source = os.path.join(folder, name + ".c")
    with open(source, "w") as f:
        f.write(text)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", "-o", os.path.join(folder, name), source], check=True)


def make_driver(folder, cudnn):
    names = set()
    for path in glob.glob(os.path.join(cudnn, "*.so.9")):
        with open(path, "rb") as f:
            names |= set(re.findall(rb"(?<=\0)cu[A-Z][A-Za-z0-9_]{2,60}(?=\0)", f.read()))
    known = set(re.findall(r"int (cu\w+)\(", ANSWERS))
    stubs = ["int %s(void) { return 801; }" % n.decode() for n in sorted(names) if n.decode() not in known]
    make_library(folder, "libcuda.so.1", "\n".join(stubs) + ANSWERS)
    make_library(folder, "libcublasLt.so.13", "unsigned long cublasLtGetVersion(void) { return 130000; }\n")


def main():
    if not shutil.which(os.environ.get("CC", "cc")):
        skip("there is no C compiler to make a stub of the driver with")
    program = os.path.join(BUILD, "tests", "cudnn_builds")
    if os.environ.get("FXA_SANITIZE"):
        skip("cuDNN is not built for sanitizers")
    cudnn, nvrtc = libraries()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        make_driver(folder, cudnn)
        env = dict(os.environ, FXA_CUDNN_PATH=cudnn, LD_LIBRARY_PATH=os.pathsep.join([folder, cudnn, nvrtc]))
        for name, other, plans in PROFILES:
            path = os.path.join(folder, name + ".json")
            with open(path, "w") as f:
                json.dump(dict(H200, **other), f)
            done = subprocess.run([program], env=dict(env, FXA_TEST_PROFILE=path, FXA_TEST_PLANS=str(plans)))
            failed = failed or done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
