# SPDX-License-Identifier: Apache-2.0
"""What run_gpu.py runs: problems, the kernels they go through, and groups of them by name."""
import hashlib

import programs


class Spec:
    """One test: a problem and the kernels to run on it."""

    def __init__(self, what, program, D=128, f16=0, fast=1, family="sm90", separate=0, backward=True, **shape):
        self.what, self.program, self.D, self.f16, self.fast = what, program, D, f16, fast
        self.family, self.separate, self.backward, self.shape = family, separate, backward, shape
        self.splits = shape.pop("splits", 1)

    def files(self):
        if self.what == "tanh":
            return ["functions"]
        if self.family == "decode":
            return ["tile_lists", "diagonal", "decode_sm90"]
        out = ["tile_lists", "diagonal", "backward_ends", "forward_" + self.family]
        if self.backward:
            out += ["backward_" + self.family] + (["dq_sm90"] if self.separate else [])
        return out

    def defines(self, file):
        d = {"FXA_D": self.D, "FXA_F16": self.f16, "FXA_FAST_MATH": self.fast}
        if file == "backward_sm90" and self.separate:
            d["FXA_SEPARATE_DQ"] = 1
        if file == "decode_sm90":
            rows = self.shape["Sq"] * self.shape["H"] // self.shape["Hkv"]
            d["FXA_ROW_TILES"] = 1 if rows <= 8 else 2 if rows <= 16 else 4
        return d

    def key(self, file):
        parts = [file, self.program] + sorted("%s=%d" % i for i in self.defines(file).items())
        return hashlib.sha1(" ".join(parts).encode()).hexdigest()[:16]

    def label(self):
        words = [self.family, self.program, "D%d" % self.D, "f16" if self.f16 else "bf16"]
        words += ["exact"] * (not self.fast) + ["separate"] * self.separate
        words += ["splits%d" % self.splits] * (self.splits > 1)
        return " ".join(words + ["%s%s" % i for i in self.shape.items()])


ODD = (dict(B=2, H=3, Sq=700, Sk=904), dict(B=1, H=2, Sq=513, Sk=200), dict(B=2, H=4, Hkv=2, Sq=1500, layout="bshd"))
ALL = list(programs.PROGRAMS)


def check_specs(family="sm90"):
    out = []
    for D in (128, 64):
        for name in ALL:
            for shape in ODD:
                shape = dict(shape, window=300)
                if name == "documents":
                    shape = dict(shape, Sk=shape["Sq"], docs=-7)
                out.append(Spec("check", name, D, family=family, **shape))
        for name in ("causal", "softcap_causal", "relative", "dense_grad", "key_bias_causal"):
            out.append(Spec("check", name, D, f16=1, family=family, B=2, H=4, Hkv=1, Sq=700, Sk=904))
        out += [Spec("check", n, D, fast=0, family=family, B=1, H=2, Sq=700, Sk=904, gain=g)
                for n, g in (("softcap", 1.0), ("softcap_causal", 8.0))]  # near 0 and on both sides of its end
        for name in ("plain", "causal", "documents", "dense_grad"):
            out.append(Spec("check", name, D, family=family, B=5, H=4, Hkv=2, Sq=640, Sk=640, lens=True, docs=-5))
    out += [Spec("check", "plain", 128, family=family, B=1, H=1, Sq=1, Sk=1),
            Spec("check", "causal", 128, family=family, B=3, H=8, Hkv=1, Sq=129, Sk=129),
            Spec("check", "window", 128, family=family, B=1, H=2, Sq=300, Sk=1000, window=100)]
    return out


def separate_specs():
    out = []
    for D in (128, 64):
        for name in ("plain", "causal", "window", "documents", "softcap_causal", "alibi_causal", "relative",
                     "dense_grad", "key_bias_causal"):
            for shape in ODD[::2]:
                shape = dict(shape, window=300)
                if name == "documents":
                    shape = dict(shape, Sk=shape["Sq"], docs=-7)
                out.append(Spec("check", name, D, separate=1, **shape))
    out.append(Spec("check", "causal", 128, f16=1, separate=1, B=2, H=4, Hkv=1, Sq=700, Sk=904))
    return out


FIRST = dict(B=4, H=16, Sq=4096)
LONG = dict(B=1, H=16, Sq=16384)


def bench_specs():
    rows = [Spec("bench", name, **FIRST) for name in
            ("plain", "causal", "softcap", "softcap_causal", "alibi_causal", "window", "documents", "relative",
             "relative_causal", "dense", "dense_grad", "dense_causal", "key_bias", "head_table")]
    rows += [Spec("bench", "softcap", fast=0, **FIRST), Spec("bench", "causal", f16=1, **FIRST),
             Spec("bench", "causal", B=4, H=32, Hkv=8, Sq=4096)]
    rows += [Spec("bench", name, **LONG) for name in ("plain", "causal", "window", "documents", "softcap")]
    rows += [Spec("bench", name, D=64, B=4, H=32, Sq=4096) for name in
             ("plain", "causal", "softcap", "softcap_causal", "alibi_causal", "head_table")]
    return rows


def bench_separate_specs():
    return [Spec("bench", name, separate=1, **FIRST) for name in ("plain", "causal", "documents")]


def bench_ampere_specs():
    return [Spec("bench", name, D=D, family="sm80", B=4, H=16 * 128 // D, Sq=4096) for D in (128, 64)
            for name in ("plain", "causal", "softcap")]


def redo_specs():
    out = []
    for D in (128, 64):
        for f16 in (0, 1):
            out += [Spec("redo", "causal", D, f16=f16, B=1, H=2, Sq=1024, ramp=r, backward=False) for r in (8.0, 30.0)]
            out.append(Spec("redo", "plain", D, f16=f16, B=1, H=2, Sq=1024, ramp=30.0, backward=False))
    return out


def decode_specs():
    out = []
    for D in (128, 64):
        for i, name in enumerate(("plain", "causal", "softcap", "alibi_causal", "window", "relative_causal", "dense",
                                  "key_bias_causal")):
            out += [Spec("check", name, D, family="decode", backward=False, splits=s, B=2, H=16, Hkv=2, Sq=q, Sk=k,
                         window=300, f16=i % 2) for s, q, k in ((1, 1, 776), (5, 2, 4096), (9, 7, 2000), (40, 1, 1024))]
    few = dict(family="decode", backward=False)
    out.append(Spec("check", "plain", splits=3, B=4, H=5, Hkv=5, Sq=3, Sk=640, lens=True, **few))
    out.append(Spec("check", "plain", splits=2, B=1, H=64, Hkv=1, Sq=1, Sk=8, **few))
    return out


def bench_decode_specs():
    return [Spec("bench", name, family="decode", backward=False, splits=s, B=B, H=64, Hkv=8, Sq=1, Sk=k)
            for name, B, k, s in (("plain", 1, 8192, 16), ("plain", 16, 8192, 1), ("plain", 1, 32768, 16),
                                  ("plain", 8, 32768, 2), ("plain", 1, 131072, 16), ("plain", 4, 131072, 4),
                                  ("alibi_causal", 4, 32768, 4), ("softcap", 4, 32768, 4))]


GROUPS = {
    "functions": lambda: [Spec("tanh", "plain", fast=0)],
    "decode": decode_specs, "bench_decode": bench_decode_specs,
    "check": check_specs, "separate": separate_specs, "ampere": lambda: check_specs("sm80"), "bench": bench_specs,
    "bench_separate": bench_separate_specs, "bench_ampere": bench_ampere_specs, "redo": redo_specs,
    "stress": lambda: [Spec("stress", name, **FIRST) for name in
                       ("causal", "documents", "relative_causal", "dense_grad")],
}
