#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz corpora from the gallery and from saved plans: tools/make_corpus.py BUILD_FOLDER.
To be run again when a byte format changes; inputs that once failed are kept beside the seeds under names of their own."""
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
PLANS = [
    ("causal", ["--causal", "--shape", "b=1,h=2,s=8,d=4"]),
    ("backward", ["--score", "c * tanh(score / c)", "--param", "c=9", "--pass", "bwd", "--shape", "s=4,d=2", "--dtype", "bf16"]),
    ("sink", ["--sink-zero", "--dropout", "0.5", "--window", "3,0", "--shape", "b=2,h=4,hkv=2,sq=3,sk=5,d=1"]),
]


def write(target, name, data):
    folder = os.path.join(ROOT, "fuzz", "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "seed_" + name), "wb") as file:
        file.write(data)


def sections(plan):
    """The problem inside plan bytes, by the table of docs/plan-bytes.md."""
    header, = struct.unpack_from("<I", plan, 12)
    return plan[header:]


def main(build):
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
        start = problem.find(b"FXAP")
        if start >= 0:  # with what follows it in the problem: refused as it is, one cut away from a program
            write("fuzz_bytes", name + "_program", b"\1" + problem[start:])


if __name__ == "__main__":
    main(sys.argv[1])
