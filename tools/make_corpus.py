#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz corpora from the gallery and from saved plans: tools/make_corpus.py BUILD_FOLDER.
To be run again when a byte format changes; inputs that once failed are kept beside the seeds under names of their own.

What fuzzing found is one file for each target, found.bundle: tools/make_corpus.py pack TARGET FOLDER makes it of a
folder that libFuzzer minimised (-merge=1), smallest inputs first, unpack TARGET FOLDER writes them out again."""
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXTS = {
    "operators": "score = -score ** 2 / (1 + q % 3) - (h << 1) * 0x1F // 4 & 7\n",
    "loops": "tensor w : f16[2]\nscore = sum(i, 4, w[h, i] * cos(0.1 * (q - k) * i))\nmask = any(j, 3, all(i, 2, q % (i + 2) == j))\n",
    "casts": "param n : int\nscore = where(float(q) / 2 < n, int(score), 1.5e-3)\nmask = !(q == k) || true ^ false\n",
    "specials": "score = clamp(score, -inf, inf) + (score == nan ? 0 : pi) + abs(-2147483648)\n",
    "broken": "let x = (score + \nmask = q >= \n",
    "deep": "score = " + "(" * 300 + "score" + ")" * 300 + "\n",
    "rank": "tensor t : bf16[0]\ntensor u : i8[5]\nscore = score + t[] + u[b, h, q, k, -1]\n",
}
BUNDLE = 160_000  # maximum bytes
PLANS = [
    ("causal", ["--causal", "--shape", "b=1,h=2,s=8,d=4"]),
    ("backward", ["--score", "c * tanh(score / c)", "--param", "c=9", "--pass", "bwd", "--shape", "s=4,d=2", "--dtype", "bf16"]),
    ("sink", ["--sink-zero", "--dropout-p", "0.5", "--window", "3,0", "--shape", "b=2,h=4,hkv=2,sq=3,sk=5,d=1"]),
]


def write(target, name, data):
    folder = os.path.join(ROOT, "fuzz", "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "seed_" + name), "wb") as file:
        file.write(data)


def sections(plan):
    """Returns the sections of plan bytes, by the table of docs/plan-bytes.md."""
    header, = struct.unpack_from("<I", plan, 12)
    return plan[header:]


def problem_of_later_format(problem, version):
    """Rewrites a problem of format 1 in format 2 (with heads) or 3 (with the host's alignment and workspace limit
    too)."""
    sizes_end = 5 * 4 + 4 * 8 + 8 * 8
    more = struct.pack("<q", 64) + (struct.pack("<IiIQ", 0, 0, 64, 1 << 20) if version == 3 else b"")
    return struct.pack("<I", version) + problem[4:sizes_end] + more + problem[sizes_end:]


def program_with_default(program, name, default):
    """Rewrites a program of format 1 whose only param is the float `name` in format 2."""
    head = program[:12] + struct.pack("<II", 1, len(name)) + name + b"\1"
    assert program.startswith(head)
    whole = program[:4] + struct.pack("<I", 2) + head[8:] + b"\1" + struct.pack("<d", default) + program[len(head):]
    return whole + hashlib.blake2s(whole, digest_size=16).digest()[:8]


def later_formats(build, name, options, problem):
    """Writes seeds in formats that the command itself does not write."""
    write("fuzz_bytes", name + "_problem_heads", b"\2" + problem_of_later_format(problem, 2))
    write("fuzz_bytes", name + "_problem_place", b"\2" + problem_of_later_format(problem, 3))
    if "--score" not in options:
        return
    where = options.index("--score")
    out = subprocess.run([os.path.join(build, "fxattn"), "explain", "--json", *options[where:where + 4]], check=True,
                         stdout=subprocess.PIPE).stdout
    hash = bytes.fromhex(json.loads(out)["canonical"]["hash"])
    start = problem.find(b"FXAP")
    program = problem[start:problem.index(hash, start) + len(hash)]
    write("fuzz_bytes", name + "_program_whole", b"\1" + program)
    write("fuzz_bytes", name + "_program_default", b"\1" + program_with_default(program, b"c", 20.0))


def bundle_of(target):
    return os.path.join(ROOT, "fuzz", "corpus", target, "found.bundle")


def pack(target, folder):
    inputs = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            inputs.append(file.read())
    whole = b""
    for data in sorted(set(inputs), key=lambda x: (len(x), x)):
        if len(whole) + 4 + len(data) <= BUNDLE:
            whole += struct.pack("<I", len(data)) + data
    with open(bundle_of(target), "wb") as file:
        file.write(whole)


def unpack(target, folder):
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(bundle_of(target)):
        return
    with open(bundle_of(target), "rb") as file:
        whole = file.read()
    at = 0
    while at < len(whole):
        size, = struct.unpack_from("<I", whole, at)
        data = whole[at + 4:at + 4 + size]
        with open(os.path.join(folder, hashlib.blake2s(data, digest_size=8).hexdigest()), "wb") as file:
            file.write(data)
        at += 4 + size


def npy_seeds():
    """Writes files of every element type, byte order, version and kind of shape."""
    kinds = [("<f8", 8), (">f4", 4), ("<f2", 2), ("|u1", 1), ("|b1", 1), (">i8", 8), ("<u2", 2), ("=u8", 8), ("<i4", 4)]
    shapes = [("(3, 2)", 6), ("()", 1), ("(0, 4)", 0), ("(2L,)", 2)]
    for i, (descr, width) in enumerate(kinds):
        for j, (shape, count) in enumerate(shapes):
            text = ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, bool(j & 1), shape)).encode()
            version = 1 + i % 3
            head = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text))
            write("fuzz_npy", "%s_%d" % (descr[1:], j), bytes([i]) + head + text + bytes(range(count * width)))


def plan_seeds():
    """Writes descriptions of problems in which many bytes select defaults."""
    tape = random.Random(5)
    for size in (60, 120, 240):
        for i in range(8):
            few = bytes(tape.choice([0, 0, 1, 2, 3, tape.randrange(256)]) for _ in range(size))
            write("fuzz_plan", "%d_%d" % (size, i), b"\1" + few)


def main(build):
    npy_seeds()
    plan_seeds()
    gallery = os.path.join(ROOT, "examples", "programs")
    for name in sorted(os.listdir(gallery))[::3]:
        with open(os.path.join(gallery, name), "rb") as file:
            write("fuzz_text", name.replace(".fxa", ""), b"\0" + file.read())
    for name, text in TEXTS.items():
        write("fuzz_text", name, b"\0" + text.encode())
    write("fuzz_text", "bprop", b"\1param c : float\nlet t = tanh(score / c)\ndscore = dscore * (1 - t * t)\n")
    write("fuzz_text", "derivative", b"\2tensor t : f32[1]\ndscore = mulz(dscore, t[h])\ngrad t[h] += mulz(dscore, score)\n")
    tape = random.Random(1)
    for size in (4, 16, 40, 80, 160, 320):
        for flags in (0, 1, 2, 32):
            write("fuzz_tape", "%d_%d" % (size, flags), bytes([flags]) + bytes(tape.randrange(256) for _ in range(size)))
    for name, options in PLANS:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan")
            subprocess.run([os.path.join(build, "fxattn"), "plan", "save", path] + options, check=True,
                           stdout=subprocess.DEVNULL)
            with open(path, "rb") as file:
                plan = file.read()
        problem = sections(plan)
        write("fuzz_bytes", name + "_plan", b"\0" + plan)
        write("fuzz_bytes", name + "_problem", b"\2" + problem)
        write("fuzz_plan", name, b"\0\0\0\0\0" + problem)  # follows an empty engine name
        start = problem.find(b"FXAP")
        if start >= 0:  # the program and the rest of the problem: refused, but a program if the end is cut off
            write("fuzz_bytes", name + "_program", b"\1" + problem[start:])
        later_formats(build, name, options, problem)


if __name__ == "__main__":
    if sys.argv[1] in ("pack", "unpack"):
        {"pack": pack, "unpack": unpack}[sys.argv[1]](sys.argv[2], sys.argv[3])
    else:
        main(sys.argv[1])
