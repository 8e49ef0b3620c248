# SPDX-License-Identifier: Apache-2.0
"""Arrays for the tests of the command line, in the standard library only: reading and writing .npy, and attention in
plain loops, forward and backward, as the expected result."""

import math
import struct

CODES = {
    "f8": "d",
    "f4": "f",
    "f2": "e",
    "i8": "q",
    "i4": "i",
    "i2": "h",
    "i1": "b",
    "u1": "B",
    "b1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
}


class Array:
    """A shape and its elements in C order."""

    def __init__(self, shape, values):
        self.shape, self.values = tuple(shape), list(values)
        assert len(self.values) == math.prod(self.shape)

    def offset(self, index):
        at = 0
        for size, i in zip(self.shape, index):
            at = at * size + i
        return at

    def __getitem__(self, index):
        return self.values[self.offset(index)]

    def add(self, index, x):
        self.values[self.offset(index)] += x

    def transposed(self, axes):
        """Returns a copy whose axis i is axis axes[i] of this array."""
        shape = [self.shape[a] for a in axes]
        out = []
        for flat in range(len(self.values)):
            index, rest = [0] * len(shape), flat
            for d in reversed(range(len(shape))):
                index[d], rest = rest % shape[d], rest // shape[d]
            source = [0] * len(shape)
            for d, a in enumerate(axes):
                source[a] = index[d]
            out.append(self[source])
        return Array(shape, out)


def zeros(shape):
    return Array(shape, [0.0] * math.prod(shape))


def random_array(random, shape):
    return Array(shape, [random.uniform(-1.5, 1.5) for _ in range(math.prod(shape))])


def header(descr, shape, fortran=False, version=1):
    text = "{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }" % (descr, fortran, "".join("%d," % s for s in shape))
    size = 2 if version == 1 else 4
    text += " " * (-(8 + size + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(size, "little") + text.encode()


def to_bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


# Nonnegative f8 numbers by code; higher codes are not numbers.
BYTES = {"e4m3": [((c & 7) + 8 * (c > 7)) * 2.0 ** (max(c >> 3, 1) - 10) for c in range(0x7F)],
         "e5m2": [((c & 3) + 4 * (c > 3)) * 2.0 ** (max(c >> 2, 1) - 17) for c in range(0x7C)]}


def to_byte(kind, x):
    """Returns the code of the nearest number; of two equally near ones, the even code."""
    near = min(range(len(BYTES[kind])), key=lambda c: (abs(BYTES[kind][c] - abs(x)), c & 1))
    return near | (0x80 if math.copysign(1, x) < 0 else 0)


def from_byte(kind, bits):
    return math.copysign(BYTES[kind][bits & 0x7F], -1 if bits & 0x80 else 1)


def save(path, array, kind="f8", fortran=False, order="<", version=1):
    values = array.values
    if fortran:
        values = array.transposed(tuple(reversed(range(len(array.shape))))).values
    mark = "|" if kind[1] == "1" else order
    with open(path, "wb") as f:
        f.write(header(mark + kind, array.shape, fortran, version))
        f.write(struct.pack((">" if order == ">" else "<") + CODES[kind] * len(values), *values))
    return path


def load(path):
    """Returns dtype and array of a .npy file of version 1.0 in C order, as the command writes it."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x93NUMPY\x01\x00"
    size = int.from_bytes(data[8:10], "little")
    assert (10 + size) % 64 == 0 and data[9 + size : 10 + size] == b"\n"
    fields = eval(data[10 : 10 + size].decode(), {"__builtins__": {}})
    assert set(fields) == {"descr", "fortran_order", "shape"} and fields["fortran_order"] is False
    kind = fields["descr"][1:]
    count = math.prod(fields["shape"])
    body = data[10 + size :]
    values = struct.unpack("<" + CODES[kind] * count, body)
    return kind, Array(fields["shape"], values)


def attention(q, k, v, f, dout=None, dlse=None, sinks=None, scale=None, k_lengths=None):
    """Computes attention on [B,H,S,D] arrays. f(score, b, h, q, k) returns None if the pair is masked, else (new score,
    derivative, gradients): d new / d score, and a list of (key, d new / d key). Returns arrays by name, sums by key."""
    B, H, Sq, D = q.shape
    Hkv, Sk, Dv = k.shape[1], k.shape[2], v.shape[3]
    scale = 1 / math.sqrt(D) if scale is None else scale
    r = {
        "o": zeros((B, H, Sq, Dv)),
        "lse": zeros((B, H, Sq)),
        "row_max": zeros((B, H, Sq)),
        "dq": zeros(q.shape),
        "dk": zeros(k.shape),
        "dv": zeros(v.shape),
        "dsinks": zeros((H,)),
    }
    sums = {}
    for b in range(B):
        for h in range(H):
            g = h * Hkv // H
            for i in range(Sq):
                pairs = []
                for j in range(Sk if k_lengths is None else k_lengths[b]):
                    raw = scale * sum(q[b, h, i, d] * k[b, g, j, d] for d in range(D))
                    new = f(raw, b, h, i, j)
                    if new is not None:
                        pairs.append((j,) + tuple(new))
                scores = [p[1] for p in pairs] + ([] if sinks is None else [sinks[h,]])
                top = max(scores, default=-math.inf)
                total = sum(math.exp(s - top) for s in scores)
                lse = top + math.log(total) if scores else -math.inf
                r["lse"].values[r["lse"].offset((b, h, i))] = lse
                r["row_max"].values[r["row_max"].offset((b, h, i))] = max((p[1] for p in pairs), default=-math.inf)
                for j, s, _, _ in pairs:
                    for d in range(Dv):
                        r["o"].add((b, h, i, d), math.exp(s - lse) * v[b, g, j, d])
                if dout is None:
                    continue
                delta = sum(dout[b, h, i, d] * r["o"][b, h, i, d] for d in range(Dv)) - (
                    dlse[b, h, i] if dlse and scores else 0
                )
                if sinks is not None:
                    r["dsinks"].add((h,), -math.exp(sinks[h,] - lse) * delta)
                for j, s, slope, gradients in pairs:
                    p = math.exp(s - lse)
                    ds = p * (sum(dout[b, h, i, d] * v[b, g, j, d] for d in range(Dv)) - delta)
                    for d in range(Dv):
                        r["dv"].add((b, g, j, d), p * dout[b, h, i, d])
                    for d in range(D):
                        r["dq"].add((b, h, i, d), ds * slope * scale * k[b, g, j, d])
                        r["dk"].add((b, g, j, d), ds * slope * scale * q[b, h, i, d])
                    for key, slope_of_key in gradients:
                        sums[key] = sums.get(key, 0.0) + ds * slope_of_key
    return r, sums
