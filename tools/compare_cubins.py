#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of the cuda engine's kernels with a table of hashes, to prove that a change of sources changed
no kernel. Compiles plans by NVRTC, without a GPU, through the public functions of the built library. The table
(tests/golden/machine_code.txt) has a line for each plan:

    PLAN: text=HASH FUNCTION=HASH ...

text is the hash of the program text that the engine generates. The hash of a function covers the sections .text.FUNCTION
and .nv.constant0.FUNCTION, and of its cubin .nv.constant3 and the code of out-of-line functions; names of functions,
symbols and the version of the kernel set are not in it. Hashes depend on the version of NVRTC, which the table's first
line names: with another version the command writes a table of the base line and compares with that.

    compare_cubins.py                      compares build/libfxattn.so with the table; exits with 1 on a difference
    compare_cubins.py --write              writes the table: after a change that changes code on purpose
    compare_cubins.py --full --table FILE  2,052 plans, three hours of one CPU, instead of the 68 of the table
    compare_cubins.py --only sm80 --jobs 1 plans with this word in their name
    compare_cubins.py --sources            also prints which sources each plan compiles
"""
import argparse
import concurrent.futures
import ctypes
import glob
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "tests", "golden", "machine_code.txt")
PROGRAMS = os.path.join(ROOT, "examples", "programs")
TARGETS = ("h200", "a100", "l40s", "b200", "rtx_pro_6000")
SIZE = 512
BPROP = "dscore = dscore * (1 - 0.01 * score)"

# Plans of the table: program, target, pass, storage type, d_qk, d_v, features. "+" adds a feature of FEATURES.
QUICK = """
    identity h200 fwd bf16 128 128
    identity h200 bwd bf16 128 128 noq
    identity h200 bwd f16 64 64 deterministic
    identity h200 bwd f16 128 128 deterministic
    softcap_causal_window h200 fwd bf16 64 64 causal gqa
    softcap h200 fwd f16 128 128 fast
    softcap h200 bwd bf16 64 64
    softcap h200 bwd bf16 128 128 fast dropout
    causal h200 fwd bf16 192 128 varlen dropout
    causal h200 fwd f16 64 64 dropout coordinates
    causal h200 bwd bf16 128 128 dropout coordinates
    causal h200 bwd bf16 96 96 varlen gqa
    causal_window h200 bwd bf16 256 256 dropout
    document_causal h200 fwd bf16 128 128 varlen
    document_causal h200 bwd bf16 128 128 deterministic
    relative_bias h200 fwd bf16 96 96 causal
    relative_bias h200 bwd bf16 64 64 grads
    bucketed_bias h200 bwd bf16 128 128 grads
    dense_bias h200 fwd f16 64 64
    dense_bias h200 bwd bf16 64 64 grads
    dense_bias h200 bwd f16 128 128 grads deterministic
    learned_head_scale h200 bwd bf16 64 64 grads deterministic
    learned_head_scale h200 bwd bf16 128 128 grads dropout
    alibi h200 fwd bf16 256 256
    alibi h200 bwd f16 192 192
    alibi h200 fwd bf16 128 128 paged padding gqa
    rotary_gain h200 fwd bf16 128 128
    routing h200 bwd bf16 96 96 grads
    tree h200 fwd bf16 32 32
    pair_bias h200 bwd bf16 40 72
    causal h200 fwd bf16 128 128 decode
    causal h200 fwd bf16 128 128 decode paged padding gqa batch
    softcap h200 fwd f16 64 64 decode rows8
    alibi h200 fwd bf16 64 64 decode rows32 varlen batch
    relative_bias h200 fwd bf16 96 96 decode rows16 sinks batch
    causal h200 fwd bf16 128 128 unaligned
    causal h200 bwd bf16 128 128 unaligned
    identity h200 fwd bf16 64 64 out32 rowmax
    identity h200 bwd bf16 64 64 out32
    sigmoid_gate h200 bwd bf16 128 128 own
    low_rank_bias h200 bwd bf16 64 64 accumulate
    identity h200 fwd bf16 128 128 accumulate
    identity h200 fwd bf16 64 64 fp8
    identity h200 bwd f16 64 64 paged padding
    identity h200 fwd f32 64 64 causal
    softcap h200 bwd f32 64 64 grads
    relative_bias h200 bwd bf16 96 96 sm80 grads
    softcap a100 fwd bf16 128 128 causal
    softcap a100 bwd bf16 128 128 gqa
    document a100 fwd f16 64 64 varlen dropout
    document_causal a100 bwd f16 256 256 varlen
    dense_bias a100 fwd bf16 96 96
    dense_bias a100 bwd bf16 64 64 grads
    time_decay a100 bwd bf16 64 64 grads
    alibi a100 fwd bf16 192 128 paged padding
    causal_window a100 bwd bf16 64 64 deterministic
    causal l40s fwd bf16 256 256
    causal l40s bwd bf16 128 128
    rbf_kernel l40s bwd bf16 64 64 grads
    relative_bias b200 fwd bf16 128 128
    relative_bias b200 bwd bf16 192 192 grads dropout
    causal b200 bwd bf16 256 256
    causal rtx_pro_6000 bwd bf16 192 192
    padding_by_tensor rtx_pro_6000 fwd bf16 128 128 padding
    temperature_by_length rtx_pro_6000 bwd bf16 64 64 grads
    forgetting rtx_pro_6000 bwd bf16 96 96
    shifted_window a100 bwd f32 32 32 grads
    global_tokens l40s fwd f32 256 256 rowmax
"""
SIZES = ((128, 128), (64, 64), (96, 96), (32, 32), (192, 128), (256, 256), (40, 72), (128, 64), (192, 192), (64, 256),
         (256, 32), (1, 1), (32, 192), (96, 160), (256, 128), (130, 256), (192, 64), (64, 32))
ROTATING = ("bf16", "f16 causal gqa", "bf16 padding causal gqa", "bf16 varlen dropout", "bf16 grads", "f32 sinks padding",
            "f16 deterministic", "bf16 dropout unaligned gqa", "f32 causal grads", "f16 paged padding gqa")
ENVIRONMENT = {"fast": ("FXA_FAST_MATH", "1"), "sm80": ("FXA_CUDA_FAMILY", "sm80"), "simt": ("FXA_CUDA_FAMILY", "simt")}


def full():
    """Every program with every size and both passes; targets and features rotate as in test_cuda_builds.c."""
    names = sorted(os.path.basename(path)[:-4] for path in glob.glob(os.path.join(PROGRAMS, "*.fxa")))
    for place in range(len(names) * len(SIZES) * 2):
        program = place // 2 % len(names)
        size = (7 * program + place // 2 // len(names)) % len(SIZES)
        target = TARGETS[(program + 3 * size + place % 2) % len(TARGETS)]
        dtype, *features = ROTATING[(program + size) % len(ROTATING)].split()
        yield " ".join([names[program], target, ("fwd", "bwd")[place % 2], dtype, *map(str, SIZES[size]), *features])


# ---- The library


def load_abi():
    """Returns the module that gen_abi.py writes of this tree's headers."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "_abi.py")
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "gen_abi.py"), "--format", "python", "--out", path],
                       check=True)
        spec = importlib.util.spec_from_file_location("_abi", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


class Library:
    """The functions of the C library that a plan needs, by their names without the prefix."""

    def __init__(self, path):
        self.abi, self.c = load_abi(), ctypes.CDLL(path)
        self.contexts, self.programs = {}, {}

    def call(self, name, *arguments):
        function, err = getattr(self.c, "fxa_" + name), self.abi.Error()
        function.restype, function.argtypes = self.abi.FUNCTIONS["fxa_" + name]
        status = function(*arguments, ctypes.addressof(err))
        return status, err.text.decode(errors="replace")

    def get(self, name, *arguments):
        status, text = self.call(name, *arguments)
        if status:
            raise RuntimeError("%s: %s" % (name, text))

    def plain(self, name, *arguments):
        function = getattr(self.c, "fxa_" + name)
        function.restype, function.argtypes = self.abi.FUNCTIONS["fxa_" + name]
        return function(*arguments)

    def context(self, settings):
        """Returns a context whose engines read these environment variables: when they are made, with the first plan."""
        os.environ.pop("FXA_FAST_MATH", None), os.environ.pop("FXA_CUDA_FAMILY", None)
        os.environ.update(settings)
        if settings not in self.contexts:
            config = self.abi.ContextConfig(struct_size=ctypes.sizeof(self.abi.ContextConfig), threads=1)
            out = ctypes.c_void_p()
            self.get("context_create", ctypes.addressof(config), ctypes.addressof(out))
            self.contexts[settings] = out.value
        return self.contexts[settings]

    def program(self, context, name, text, kind=0):
        if (context, name) not in self.programs:
            data = text.encode()
            part = self.abi.Text(data=ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value, size=len(data))
            config = self.abi.ParseConfig(struct_size=ctypes.sizeof(self.abi.ParseConfig), kind=kind,
                                          texts=ctypes.addressof(part), n_texts=1)
            out = ctypes.c_void_p()
            self.get("program_parse_texts", context, ctypes.addressof(config), ctypes.addressof(out))
            self.programs[context, name] = out.value
        return self.programs[context, name]

    def bytes_of(self, name, plan):
        needed = ctypes.c_size_t()
        self.get(name, plan, None, 0, ctypes.addressof(needed))
        out = ctypes.create_string_buffer(needed.value + 1)
        self.get(name, plan, ctypes.addressof(out), len(out), ctypes.addressof(needed))
        return out.raw[:needed.value]


def problem_of(library, context, program, plan):
    """Returns the problem of a plan of QUICK, and what it points to."""
    abi = library.abi
    _, target, which, dtype, d_qk, d_v, *features = plan
    p = abi.Problem(struct_size=ctypes.sizeof(abi.Problem), pass_=which == "bwd", program=program)
    on = set(features).__contains__
    rows = next((int(f[4:]) for f in features if f.startswith("rows")), 1)
    p.b, p.hq, p.hkv, p.sq, p.sk = 2, 4, 2 if on("gqa") else 4, SIZE - 16, SIZE
    if on("decode"):
        p.b, p.sq, p.sk = 64 if on("batch") else 1, rows, 8 * SIZE
    p.d_qk, p.d_v, p.alignment, p.device = int(d_qk), int(d_v), 2 if on("unaligned") else 16, abi.CUDA
    p.q.dtype = getattr(abi, dtype.upper())
    engine = ctypes.create_string_buffer(b"cuda")
    description = ctypes.create_string_buffer(open(os.path.join(ROOT, "examples", "targets", target + ".json"), "rb").read())
    p.engine, p.target = ctypes.addressof(engine), ctypes.addressof(description)
    for name in ("causal", "padding", "varlen", "dropout", "deterministic", "paged", "sinks"):
        p.flags |= getattr(abi, name.upper()) if on(name) else 0
    p.dropout_p = 0.25 if on("dropout") else 0
    if on("varlen"):
        p.total_q, p.total_k = p.b * p.sq, p.b * p.sk
    if on("paged"):
        p.n_pages, p.page_size = p.b * p.sk // 64 * 2, 64
    if on("coordinates"):
        p.map_q.kind, p.map_q.base, p.map_q.step = abi.MAP_AFFINE, 5, 2
    if which == "bwd":
        p.flags |= (0 if on("noq") else abi.GRAD_Q) | abi.GRAD_K | abi.GRAD_V
        p.dk.dtype = abi.F32 if on("out32") else 0
        p.flags |= abi.ACCUMULATE_DK if on("accumulate") else 0
    else:
        p.o.dtype = abi.F32 if on("out32") else 0
        p.flags |= (abi.RETURN_ROW_MAX if on("rowmax") else 0) | (abi.ACCUMULATE_O | abi.RETURN_LSE if on("accumulate") else 0)
    if on("fp8"):
        p.k.dtype = p.v.dtype = abi.E4M3
    if on("own"):
        p.bprop = library.program(context, "own", BPROP, abi.PROGRAM_BPROP)
    captures = captured(library, program, p, which == "bwd" and on("grads"))
    p.captures, p.n_captures = ctypes.addressof(captures), len(captures)
    if which == "bwd" and on("grads"):
        for i in range(library.plain("program_param_count", program)):
            p.param_grads |= 1 << i if library.plain("program_param", program, i).type == abi.FLOAT else 0
    return p, (engine, description, captures)


def captured(library, program, p, grads):
    """Captured tensors that are as large as the longest coordinate."""
    abi = library.abi
    n = library.plain("program_tensor_count", program)
    captures = (abi.Capture * n)()
    for i in range(n):
        tensor = library.plain("program_tensor", program, i)
        for axis in range(abi.MAX_RANK):
            captures[i].size[axis] = max(p.sk, SIZE) if tensor.rank < 4 else 8
        captures[i].grad = int(grads and tensor.dtype in (abi.F32, abi.F16, abi.BF16))
    return captures


# ---- Cubins


def digest(*parts):
    sums = hashlib.sha256()
    for part in parts:
        sums.update(len(part).to_bytes(8, "little") + part)
    return sums.hexdigest()[:12]


def cubins(data):
    """Yields the sections of each ELF file in the bytes of a plan, by name."""
    at = data.find(b"\x7fELF")
    while at >= 0:
        word = lambda offset, size: int.from_bytes(data[at + offset:at + offset + size], "little")  # noqa: E731
        rows = [word(0x28, 8) + 64 * i for i in range(word(0x3C, 2))]
        names = word(rows[word(0x3E, 2)] + 24, 8)
        sections = {}
        for row in rows:
            start = at + names + word(row, 4)
            name = data[start:data.index(b"\0", start)].decode()
            begin = at + word(row + 24, 8)
            sections[name] = b"" if word(row + 4, 4) == 8 else data[begin:begin + word(row + 32, 8)]
        yield sections
        at = data.find(b"\x7fELF", at + 64)


def functions(sections):
    """Returns (name, hash) of each kernel of a cubin: those that have arguments (.nv.constant0)."""
    kernels = sorted(name[len(".nv.constant0."):] for name in sections if name.startswith(".nv.constant0."))
    others = sorted(data for name, data in sections.items() if name.startswith(".text.") and name[6:] not in kernels)
    shared = [sections.get(".nv.constant3", b"")] + others
    return [(k, digest(sections[".text." + k], sections[".nv.constant0." + k], *shared)) for k in kernels]


def find_nvrtc():
    """Makes the engine find the NVRTC of make deps-cudnn, unless FXA_NVRTC_PATH is set. Returns its version or None."""
    folder = os.environ.get("FXA_NVRTC_PATH") or os.path.join(ROOT, "build", "deps", "cudnn", "nvidia", "cu13", "lib")
    for path in sorted(glob.glob(os.path.join(folder, "libnvrtc.so*"))):
        major, minor = ctypes.c_int(), ctypes.c_int()
        ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        os.environ["FXA_NVRTC_PATH"] = folder
        return "%d.%d" % (major.value, minor.value)
    return None


def start(path):
    global library
    for name in [name for name in os.environ if name.startswith("FXA_") and name != "FXA_NVRTC_PATH"]:
        del os.environ[name]
    library = Library(path)


def compile_plan(name):
    """Returns the line of a plan, and the names of the sources that were compiled."""
    plan = name.split()
    context = library.context(tuple(ENVIRONMENT[f] for f in plan[6:] if f in ENVIRONMENT))
    with open(os.path.join(PROGRAMS, plan[0] + ".fxa")) as file:
        program = library.program(context, plan[0], file.read())
    p, keep = problem_of(library, context, program, plan)
    out = ctypes.c_void_p()
    status, text = library.call("plan_create", context, ctypes.addressof(p), ctypes.addressof(out))
    del keep
    if status == library.abi.E_UNSUPPORTED:
        return "%s: refused" % name, [text]
    if status:
        raise RuntimeError("%s: %s" % (name, text))
    dump = library.bytes_of("plan_dump", out).decode()
    found = [f for sections in cubins(library.bytes_of("plan_save", out)) for f in functions(sections)]
    library.plain("plan_destroy", out)
    library.plain("cache_clear", context)
    parts = ["text=" + digest(dump[dump.index("program.cuh:\n"):].encode())] + ["%s=%s" % f for f in found]
    return "%s: %s" % (name, " ".join(parts)), re.findall(r"^(\S+\.cu): cubin", dump, re.M)


# ---- The table


def compare(lines, table):
    """Prints the differences between lines and a table. Returns their number."""
    before = dict(line.rstrip("\n").split(": ", 1) for line in open(table) if not line.startswith("#"))
    bad = 0
    for line in lines:
        name, now = line.split(": ", 1)
        old = dict(x.partition("=")[::2] for x in before.get(name, "").split())
        new = dict(x.partition("=")[::2] for x in now.split())
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        bad += bool(changed)
        if changed:
            print("%s: other %s" % (name, ", ".join(changed)) if name in before else "%s: not in the table" % name)
    return bad


def main():
    parser = argparse.ArgumentParser(description="compare the machine code of the cuda engine's kernels with a table")
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "libfxattn.so"))
    parser.add_argument("--table", default=TABLE)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    for flag in ("full", "write", "sources"):
        parser.add_argument("--" + flag, action="store_true")
    args = parser.parse_args()
    version = find_nvrtc()
    if not version or not os.path.exists(args.library):
        print("skipped: NVRTC or the library was not found (make deps-cudnn; make)")
        return 77
    header = "# Machine code of the cuda engine's kernels by NVRTC %s; tools/compare_cubins.py --write writes this file.\n" % version
    if not args.write and open(args.table).readline() != header:
        print("the table is not of NVRTC %s: write one of the base line first (--write --table FILE)" % version)
        return 1
    names = [" ".join(line.split()) for line in QUICK.strip().split("\n")] if not args.full else list(full())
    names = [name for name in names if args.only in name]
    with concurrent.futures.ProcessPoolExecutor(args.jobs, initializer=start, initargs=(args.library,)) as pool:
        results = list(pool.map(compile_plan, names))
    lines = [line for line, _ in results]
    print("%d plans, %d refused" % (len(lines), sum(line.endswith(": refused") for line in lines)))
    if args.sources:
        for line, sources in results:
            print(line.split(":")[0], "->", " ".join(sources))
    if args.write:
        with open(args.table, "w") as file:
            file.write(header + "".join(line + "\n" for line in sorted(lines)))
    else:
        bad = compare(lines, args.table)
        print("%d plans differ from %s" % (bad, os.path.relpath(args.table)))
        return 1 if bad else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
