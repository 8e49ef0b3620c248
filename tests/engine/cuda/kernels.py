# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels by NVRTC, without a GPU and without headers of the toolkit: source files and the program
are given by name. Reads registers, spills and warnings off the compiler's log."""
import ctypes
import glob
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
SOURCE = os.path.join(ROOT, "src", "engine", "cuda", "kernels")


def find_nvrtc():
    """The library, or None: FXA_NVRTC, the loader's path, a wheel of this Python, `make deps-cudnn`, the toolkit."""
    names = [os.environ.get("FXA_NVRTC", ""), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    for base in sys.path + [os.path.join(os.environ.get("FXA_BUILD", ""), "deps", "cudnn")]:
        names += sorted(glob.glob(os.path.join(base, "nvidia", "*", "lib", "libnvrtc.so.*")))
    names += sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.*"))
    for name in names:
        try:
            if name:
                return ctypes.CDLL(name)
        except OSError:
            pass
    return None


class Built:
    """One cubin and the messages of the compiler."""

    def __init__(self, cubin, log, text=""):
        self.cubin, self.log = cubin, log
        self.registers = [int(x) for x in re.findall(r"Used (\d+) registers", log)]
        self.spill = sum(int(x) for x in re.findall(r"(\d+) bytes spill stores", log))
        self.serialised = re.findall(r"\(C75\d\d\)[^\n]*", log)
        self.error = text


def instructions(cubin):
    """How many a cubin has: its sections of code are an ELF file's, of 16 bytes each."""
    word = lambda at, size: int.from_bytes(cubin[at:at + size], "little")  # noqa: E731
    rows = [word(0x28, 8) + 64 * i for i in range(word(0x3C, 2))]
    names = word(rows[word(0x3E, 2)] + 24, 8)
    return sum(word(row + 32, 8) // 16 for row in rows if cubin.startswith(b".text", names + word(row, 4)))


def defaults(name):
    """Returns {macro: default} of a list of traits.h: FXA_SETTINGS or FXA_SWITCHES."""
    text = open(os.path.join(SOURCE, "common", "traits.h")).read()
    lines = text[text.index("#define " + name):].split("\n\n")[0]
    return dict(re.findall(r"X\(\w+, (\w+), (\w+),", lines))


def headers(program):
    unset = ["#ifndef %s\n#define %s %s\n#endif\n" % (macro, macro, x) for macro, x in defaults("FXA_SWITCHES").items()]
    out = {"program.cuh": program + "\n" + "".join(unset)}
    shared = [os.path.join(ROOT, "src", *name) for name in (("lower", "program_ops.h"), ("program", "interval_rules.h"))]
    for path in glob.glob(os.path.join(SOURCE, "*", "*.cuh")) + glob.glob(os.path.join(SOURCE, "*", "*.h")):
        out[os.path.relpath(path, SOURCE)] = open(path).read()
    for path in shared:
        out[os.path.basename(path)] = open(path).read()
    return out


def source_of(kernel):
    """Returns the text of the engine's <folder>/<name>.cu."""
    return open(os.path.join(SOURCE, kernel + ".cu")).read()


def build(nvrtc, kernel, arch, program, defines):
    """Compiles <kernel>.cu for arch (90a, 80, ...) with the program's text."""
    source = source_of(kernel)
    named = headers(program)
    count = len(named)
    texts = (ctypes.c_char_p * count)(*[t.encode() for t in named.values()])
    names = (ctypes.c_char_p * count)(*[n.encode() for n in named])
    handle = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(handle), source.encode(), (kernel + ".cu").encode(), count, texts, names)
    options = ["--gpu-architecture=sm_" + arch, "--std=c++17", "--ptxas-options=-v", "-default-device", "-lineinfo"]
    shared = 227 if kernel.startswith("sm90/") else 163 if arch in ("80", "90", "90a", "100") else 99
    options += ["-D%s=%s" % item for item in {**defaults("FXA_SETTINGS"), "FXA_SHARED_KB": shared, **defines}.items()]
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    status = nvrtc.nvrtcCompileProgram(handle, len(options), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    nvrtc.nvrtcGetProgramLog(handle, log)
    text = log.value.decode(errors="replace")
    cubin = b""
    if status == 0:
        nvrtc.nvrtcGetCUBINSize(handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(handle, data)
        cubin = data.raw
    nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
    return Built(cubin, text, "" if status == 0 else text)
