# SPDX-License-Identifier: Apache-2.0
"""Problems of run_gpu.py, the kernels that run them, and groups of problems by name."""
import hashlib

import programs


SIZES = (32, 64, 96, 128, 192, 256)


def size_for(d):
    """The compiled head dimension for d columns."""
    return min(s for s in SIZES if s >= d)


class Spec:
    """One test: a problem and the kernels to run on it."""

    def __init__(self, what, program, D=128, f16=0, f32=0, fast=1, family="sm90", separate=0, backward=True, splits=1,
                 adverse=None, again=None, **shape):
        # adverse: the case of adverse.py that changes the problem; again: whether tiles are recomputed
        self.adverse, self.again = adverse, again
        self.what, self.program, self.D, self.f16, self.f32, self.fast = what, program, D, f16, f32, fast
        self.family, self.backward, self.shape, self.splits = family, backward, shape, splits
        self.columns, self.columns_v = size_for(D), size_for(shape.get("Dv") or D)
        self.wide = max(self.columns, self.columns_v) > 128 and family == "sm90"
        scored = program == "temperature_causal" and family == "sm90" and max(self.columns, self.columns_v) > 96
        if scored or (self.wide and "GRAD_" in programs.PROGRAMS[program]):  # see common/score.cuh and host/support.c
            self.backward = False
        self.separate = separate or int(self.wide or family == "simt")

    def main_file(self):
        return "sm90/backward_wide" if self.wide else self.family + "/backward"

    def dq_file(self):
        return "simt/backward" if self.family == "simt" else "sm90/dq"

    def files(self):
        if self.what == "tanh":
            return ["functions"]
        if self.family == "decode":
            return ["common/tile_lists", "common/diagonal_table", "sm90/decode"]
        out = ["common/tile_lists", "common/diagonal_table", "common/backward_prepost", self.family + "/forward"]
        if self.backward:
            out += [self.main_file()] + ([self.dq_file()] if self.separate and self.family == "sm90" else [])
        return out

    def program_of(self, file):
        return "plain" if file == "common/backward_prepost" else self.program

    def text_of(self, file):
        backward = "backward" in file or file == "sm90/dq"
        return programs.text_of(self.program_of(file), not backward)

    def defines(self, file):
        spans = {"FXA_VARLEN": 1} if self.shape.get("lens") or self.shape.get("packed") else {}
        if file in ("common/tile_lists", "common/diagonal_table"):  # they know neither columns nor storage
            return dict(spans, FXA_D=64, FXA_F16=0)
        d = dict(spans, FXA_D=self.columns, FXA_DV=self.columns_v, FXA_F16=self.f16)
        if self.f32:
            d["FXA_F32"] = 1
        if file == "common/backward_prepost":
            return d
        d["FXA_FAST_MATH"] = self.fast
        if self.shape.get("drop"):
            d["FXA_DROPOUT"] = 1
        if self.shape.get("paged"):
            d["FXA_PAGED"] = 1
        if self.shape.get("shift") and self.family == "sm80":
            d["FXA_ALIGNED"] = 0
        if file == "sm90/backward" and self.separate:
            d["FXA_SEPARATE_DQ"] = 1
        if self.adverse and file == "sm90/forward":
            d["FXA_COUNT_REDO"] = 1
        if file == "sm90/decode":
            rows = self.shape["Sq"] * self.shape["H"] // self.shape["Hkv"]
            d["FXA_ROW_TILES"] = 1 if rows <= 8 else 2 if rows <= 16 or max(self.columns, self.columns_v) > 128 else 4
        return d

    def key(self, file):
        parts = [file, self.program_of(file)] + sorted("%s=%d" % i for i in self.defines(file).items())
        return hashlib.sha1(" ".join(parts).encode()).hexdigest()[:16]

    def label(self):
        words = [self.family, self.program, "D%d" % self.D, "f32" if self.f32 else "f16" if self.f16 else "bf16"]
        words += ["exact"] * (not self.fast) + ["separate"] * self.separate
        words += ["splits%d" % self.splits] * (self.splits > 1)
        words += [str(x) for x in self.adverse or ()]
        return " ".join(words + ["%s%s" % i for i in self.shape.items()])


ODD = (dict(B=2, H=3, Sq=700, Sk=904), dict(B=1, H=2, Sq=513, Sk=200), dict(B=2, H=4, Hkv=2, Sq=1500, layout="bshd"))
ALL = list(programs.PROGRAMS)


def check_specs(family="sm90", **more):
    out = []
    for D in (128, 64):
        for name in ALL:
            for shape in ODD:
                shape = dict(shape, window=300)
                if name == "documents":
                    shape = dict(shape, Sk=shape["Sq"], docs=-7)
                out.append(Spec("check", name, D, family=family, **shape, **more))
        for name in ("causal", "softcap_causal", "relative", "dense_grad", "key_bias_causal"):
            out.append(Spec("check", name, D, f16=1, family=family, B=2, H=4, Hkv=1, Sq=700, Sk=904, **more))
        out += [Spec("check", n, D, fast=0, family=family, B=1, H=2, Sq=700, Sk=904, gain=g, **more)
                for n, g in (("softcap", 1.0), ("softcap_causal", 8.0))]  # near 0 and on both sides of its end
        for name in ("plain", "causal", "documents", "dense_grad"):
            out.append(Spec("check", name, D, family=family, B=5, H=4, Hkv=2, Sq=640, Sk=640, lens=True, docs=-5,
                            **more))
    out += [Spec("check", "plain", 128, family=family, B=1, H=1, Sq=1, Sk=1, **more),
            Spec("check", "causal", 128, family=family, B=3, H=8, Hkv=1, Sq=129, Sk=129, **more),
            Spec("check", "window", 128, family=family, B=1, H=2, Sq=300, Sk=1000, window=100, **more)]
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


def size_specs(family="sm90", **more):
    """Head dimensions: compiled ones and others, D_qk not equal D_v, both passes; every third program of a list that
    goes on from size to size."""
    names = ("plain", "softcap_causal", "dense_causal", "documents", "relative_causal", "alibi_causal", "dense",
             "key_bias_causal", "causal", "head_table")
    out = []
    for i, (D, Dv) in enumerate(((32, 32), (24, 40), (96, 96), (80, 80), (100, 77), (64, 128), (128, 64), (192, 128),
                                 (192, 192), (130, 200), (256, 256), (225, 33), (90, 160), (20, 250))):
        for j in range(4):
            name = names[(3 * i + j) % len(names)]
            shape = dict(ODD[(i + j) % 3], window=300)
            if name == "documents":
                shape = dict(shape, Sk=shape["Sq"], docs=-7)
            out.append(Spec("check", name, D, Dv=Dv, family=family, f16=i % 2 if not more else 0, **shape, **more))
    return out


def row_specs(family="sm90", sizes=((128, 128), (64, 64), (80, 96), (192, 128), (256, 256)), **more):
    """Packed entries, lengths, sinks, dropout, gradients of LSE; rows that belong to no entry hold NaN."""
    out = []
    for D, Dv in sizes:
        common = dict(D=D, Dv=Dv, family=family, **more)
        for name in ("plain", "causal", "softcap_causal", "documents"):
            ids = dict(docs=-5)
            out.append(Spec("check", name, B=6, H=4, Hkv=2, Sq=500, Sk=500, packed=True, **ids, **common))
            out.append(Spec("check", name, B=5, H=2, Sq=300, Sk=300, packed=True, lens=True, layout="bshd", **ids,
                            **common))
            out.append(Spec("check", name, B=5, H=4, Hkv=2, Sq=640, Sk=640, lens=True, sink=True, **ids, **common))
        for name in ("plain", "causal", "softcap_causal"):
            out.append(Spec("check", name, B=2, H=4, Hkv=2, Sq=513, Sk=200, sink=True, grad_lse=True, **common))
            out.append(Spec("check", name, B=2, H=4, Hkv=2, Sq=300, Sk=333, drop=0.25, **common))
        out.append(Spec("check", "causal", B=6, H=4, Hkv=2, Sq=500, Sk=400, packed=True, sink=True, drop=0.1,
                        grad_lse=True, **common))
        for name in ("relative_causal", "learned_causal") if max(D, Dv) <= 128 or family != "sm90" else ("alibi",):
            out.append(Spec("check", name, B=3, H=2, Sq=200, Sk=300, packed=True, drop=0.5, **common))
    return out


def page_specs():
    """K and V in pages, forward and decode, lengths with and without."""
    out = []
    for family, D, sizes in (("sm90", 128, (8, 32, 128, 256)), ("sm90", 64, (64, 384)), ("sm90", 256, (16, 192)),
                             ("sm80", 96, (1, 7, 64)), ("simt", 40, (5, 128))):
        for i, size in enumerate(sizes):
            for name in ("plain", "softcap_causal", "alibi_causal"):
                out.append(Spec("check", name, D, family=family, f32=int(family == "simt"), backward=False, B=4, H=4,
                                Hkv=2, Sq=200, Sk=500, paged=size, lens=i % 2 == 0, sink=True))
    for size in (8, 16, 32, 128):
        out.append(Spec("check", "causal", 128, family="decode", backward=False, splits=3, B=3, H=8, Hkv=2, Sq=2,
                        Sk=900, paged=size, lens=size != 32))
    return out


def list_specs():
    """Rows of lists with less room than tiles: runs of whole ones, or all tiles with the mask."""
    out = []
    for family, D in (("sm90", 128), ("sm90", 64), ("sm90", 256), ("sm80", 64), ("simt", 32)):
        for name in ("causal", "window", "documents", "per_head", "alibi_causal"):
            for pitch in (2, 4):
                out.append(Spec("check", name, D, family=family, f32=int(family == "simt"),
                                separate=int(pitch == 4 and family == "sm90"),
                                B=2, H=4, Hkv=2, Sq=1500, window=600, docs=-3, pitch=pitch))
    out += [Spec("check", name, 128, family="decode", backward=False, splits=3, B=2, H=8, Hkv=2, Sq=2, Sk=3000,
                 window=1700, pitch=pitch) for name in ("causal", "window") for pitch in (2, 4)]
    return out


def shift_specs():
    """Addresses and strides that are multiples of nothing."""
    return [Spec("check", name, D, Dv=Dv, family="sm80", B=2, H=4, Hkv=2, Sq=300, Sk=333, shift=1, layout=layout,
                 packed=packed, f16=int(D % 2))
            for D, Dv in ((128, 128), (65, 65), (33, 20), (200, 255), (1, 1)) for name in ("plain", "softcap_causal")
            for layout, packed in (("bhsd", False), ("bshd", True))]


def simt_specs():
    out = [s for s in check_specs("simt", f32=1) if s.D == 64 and not s.f16]
    out += size_specs("simt", f32=1) + row_specs("simt", ((65, 33), (192, 128)), f32=1)
    out += [Spec("check", "softcap_causal", 65, Dv=31, family="simt", f16=f16, B=2, H=4, Hkv=2, Sq=300, Sk=333, shift=1)
            for f16 in (0, 1)]
    return out


def sanitize_specs():
    """A few small problems through every kernel, for compute-sanitizer."""
    few = dict(B=2, H=4, Hkv=2, Sq=200, Sk=300)
    out = [Spec("check", name, D, docs=-3, **dict(few, Sk=200 if name == "documents" else 300))
           for D in (128, 64) for name in ("causal", "documents", "relative_causal", "dense_causal")]
    out += [Spec("check", "causal", D, separate=1, **few) for D in (128, 256)]
    out += [Spec("check", "softcap_causal", D, lens=True, drop=0.1, sink=True, **few) for D in (96, 192)]
    out += [Spec("check", "causal", packed=True, family=family, **few) for family in ("sm90", "sm80")]
    out += [Spec("check", "relative_causal", 100, family="sm80", **few), Spec("check", "dense_causal", 200,
                                                                              family="sm80", shift=1, **few)]
    out += [Spec("check", name, 65, family="simt", f32=1, drop=0.1, **few) for name in ("causal", "relative_causal")]
    out += [Spec("check", "causal", family="decode", backward=False, splits=3, B=2, H=8, Hkv=2, Sq=3, Sk=600)]
    return out


def dump_specs():
    """Small problems of all kinds, to be compared with the library's other engines (compare_engines.py)."""
    few, out = dict(B=2, H=4, Hkv=2, Sq=100, Sk=100, window=30, docs=-3), []
    kinds = (dict(), dict(lens=True, sink=True), dict(packed=True), dict(drop=0.25, grad_lse=True),
             dict(packed=True, lens=True, sink=True, drop=0.1))
    names = ("plain", "causal", "softcap_causal", "alibi_causal", "window", "documents", "relative_causal",
             "learned_causal", "buckets", "head_table", "dense_causal", "temperature_causal")
    for i, name in enumerate(names):
        for j, (family, D) in enumerate((("sm90", 64), ("sm90", 128), ("sm80", 40), ("simt", 64), ("sm90", 192))):
            spec = Spec("check", name, D, Dv=72 if D == 64 else None, family=family, f32=int(family == "simt"),
                        f16=int((i + j) % 3 == 0 and family != "simt"), fast=0, **few, **kinds[(i + j) % len(kinds)])
            if spec.backward:
                out.append(spec)
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


def bench_text_specs():
    """Programs whose time is in their text: what generated ones are compared by."""
    rows = [Spec("bench", name, **FIRST) for name in
            ("causal", "window", "documents", "softcap", "alibi_causal", "head_table", "relative_causal", "per_head")]
    rows += [Spec("bench", "softcap", fast=0, **FIRST)]
    rows += [Spec("bench", name, **LONG) for name in ("window", "documents")]
    rows += [Spec("bench", name, D=64, B=4, H=32, Sq=4096) for name in
             ("plain", "softcap", "alibi_causal", "head_table")]
    return rows


def bench_size_specs():
    rows = [Spec("bench", name, D, Dv=Dv, B=4, H=H, Sq=4096) for D, Dv, H in
            ((96, 96, 16), (192, 128, 16), (256, 256, 8), (32, 32, 32)) for name in ("plain", "causal")]
    rows += [Spec("bench", "causal", drop=0.1, **FIRST), Spec("bench", "causal", sink=True, **FIRST),
             Spec("bench", "causal", packed=True, B=8, H=16, Sq=4096)]
    rows += [Spec("bench", "causal", D, f32=1, family="simt", B=2, H=16, Sq=2048) for D in (64, 128)]
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


def adverse_specs():
    """Names of adverse.py's cases, with their arguments; run_gpu.py finds the functions."""
    out, plain, dense = [], dict(B=1, H=2, Sq=200, Sk=904), dict(B=2, H=2, Sq=200, Sk=768)
    for family, D, kinds in (("sm90", 128, (0, 1)), ("sm90", 64, (0, 1)), ("sm90", 256, (0,)), ("sm80", 64, (0, 1)),
                             ("simt", 64, (2,)), ("decode", 128, (0, 1))):
        for kind in kinds:
            more = dict(family=family, D=D, f16=int(kind == 1), f32=int(kind == 2), fast=0, backward=False)
            more["splits"] = 3 if family == "decode" else 1
            few = dict(Sq=7, H=4, Hkv=2) if family == "decode" else {}

            def add(name, program, shape, again=None, *arguments, **extra):
                out.append(Spec("adverse", program, adverse=(name,) + arguments, again=again,
                                **{**more, **shape, **few, **extra}))

            limit = 10.4 if kind == 1 else 44.4
            add("control", "plain", plain, False)
            for each in (5.4, 5.7):
                add("steps", "plain", plain, None, each)
            for by in (limit - 3, limit + 1):
                add("rise", "plain", plain, by > limit, by)
            add("single", "plain", plain, True)
            add("huge", "plain", plain, kind != 1)
            if D <= 128:
                for level in (-300.0, -20.0):
                    add("late", "dense", dense, level < -50 or kind == 1, level)
                add("penalty", "dense", dense, kind != 1)
            add("large", "plain", plain, True, 30.0)
            add("equal", "plain", plain, kind == 0)
            add("poisoned", "causal", plain, True)
            add("future", "causal", dict(plain, Sq=904), True)
            if family != "decode":
                add("poisoned", "causal", dict(plain, B=3, H=4, Hkv=2, packed=True), True)
                add("poisoned", "plain", dict(plain, B=3, lens=True))
                add("poisoned", "plain", dict(plain, drop=0.3), True)
            add("poisoned", "plain", dict(plain, sink=True, paged=32), True)
            add("rise", "plain", dict(plain, sink=True), None, limit - 3)
    few = dict(B=1, H=2, Sq=200, Sk=904, backward=False)
    out += [Spec("adverse", "softcap", 64, fast=fast, adverse=(name,), again=again, **few)
            for fast in (0, 1) for name, again in (("control", False), ("nan_key", True), ("capped", True))]
    return out


def decode_specs():
    out = []
    for D in (128, 64):
        for i, name in enumerate(("plain", "causal", "softcap", "alibi_causal", "window", "relative_causal", "dense",
                                  "key_bias_causal")):
            out += [Spec("check", name, D, family="decode", backward=False, splits=s, B=2, H=16, Hkv=2, Sq=q, Sk=k,
                         window=300, f16=i % 2) for s, q, k in ((1, 1, 776), (5, 2, 4096), (9, 7, 2000), (40, 1, 1024))]
    few = dict(family="decode", backward=False)
    for i, (D, Dv) in enumerate(((256, 256), (192, 128), (64, 128), (72, 200), (128, 40))):
        out += [Spec("check", name, D, Dv=Dv, splits=s, B=2, H=8, Hkv=2, Sq=q, Sk=1500, lens=i % 2 > 0, f16=i % 2, **few)
                for name, s, q in (("plain", 3, 1), ("alibi_causal", 1, 3), ("softcap_causal", 7, 9))]
    out += [Spec("check", "causal", splits=s, B=3, H=8, Hkv=1, Sq=16, Sk=2000, packed=True, **few) for s in (1, 5)]
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
    "sizes": size_specs, "sizes80": lambda: size_specs("sm80"), "rows": row_specs, "pages": page_specs,
    "lists": list_specs,
    "rows80": lambda: row_specs("sm80", ((64, 96), (256, 192))), "shift": shift_specs, "simt": simt_specs,
    "bench_sizes": bench_size_specs, "bench_texts": bench_text_specs, "sanitize": sanitize_specs, "dump": dump_specs,
    "check": check_specs, "separate": separate_specs, "ampere": lambda: check_specs("sm80"), "bench": bench_specs,
    "bench_separate": bench_separate_specs, "bench_ampere": bench_ampere_specs, "redo": redo_specs, "adverse": adverse_specs,
    "stress": lambda: [Spec("stress", name, **FIRST) for name in
                       ("causal", "documents", "relative_causal", "dense_grad")],
}
