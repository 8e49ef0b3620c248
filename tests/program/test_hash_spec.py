# SPDX-License-Identifier: Apache-2.0
"""Golden hashes once more, from the written rules and Python's own BLAKE2s instead of the library.

A node is hashed as: op, type (one byte each), its immediate, the hashes of its operands. A program as: a tag, kind,
counts, declarations, number of outputs, and for each output its kind and the hash of its node. Numbers are 32-bit
little-endian.
"""
import hashlib
import os
import re
import struct
import sys

FLOAT, INT, BOOL = 1, 2, 3
CONST, INPUT, PARAM, MUL, DIV, TANH, LE = 1, 2, 3, 12, 13, 36, 63
SCORE, Q, K = 0, 3, 4


def digest(data):
    return hashlib.blake2s(data, digest_size=16).digest()


def u32(x):
    return struct.pack("<I", x)


def node(op, kind, *parts):
    return digest(bytes([op, kind]) + b"".join(parts))


def param(name, kind):
    return u32(len(name)) + name.encode() + bytes([kind, 0, 0])


def program(score, mask, params=()):
    counts = u32(0) + u32(len(params)) + u32(0)
    return digest(b"fxattn program 1\0" + counts + b"".join(params) + u32(2) + u32(0) + score + u32(1) + mask).hex()


def main():
    score, true = node(INPUT, FLOAT, u32(SCORE)), node(CONST, BOOL, u32(1))
    q, k = node(INPUT, INT, u32(Q)), node(INPUT, INT, u32(K))
    cap = param("cap", FLOAT)
    cap_value, thirty = node(PARAM, FLOAT, cap), node(CONST, FLOAT, struct.pack("<d", 30.0))

    def capped(c):
        return node(MUL, FLOAT, node(TANH, FLOAT, node(DIV, FLOAT, score, c)), c)

    want = {
        "identity": program(score, true),
        "causal": program(score, node(LE, BOOL, k, q)),
        "softcap": program(capped(cap_value), true, [cap]),
        "softcap_constant": program(capped(thirty), true),
    }
    root = os.environ.get("FXA_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(root, "tests", "golden", "hashes.txt")) as f:
        golden = dict(re.findall(r"(?m)^(\w+) ([0-9a-f]{32})$", f.read()))
    bad = [name for name in want if golden.get(name) != want[name]]
    for name in bad:
        print(f"{name}: the file has {golden.get(name)}, the rules give {want[name]}")
    print(f"{len(want) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
