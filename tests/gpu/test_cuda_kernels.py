# SPDX-License-Identifier: Apache-2.0
"""Every CUDA kernel compiles, without a GPU: no error, spills within the listed budget, no wgmma that the compiler has
to serialise. Default: a sample that ends in a minute or two; FXA_CUDA_MATRIX=full: kernels x programs x head dimensions
x storage types x architectures. Skips by name where NVRTC is missing."""
import concurrent.futures
import ctypes
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import arguments  # noqa: E402
import kernels  # noqa: E402
import programs  # noqa: E402

HOPPER = ("sm90/forward", "sm90/backward", "sm90/backward_wide", "sm90/dq", "sm90/decode")
ANY = ("sm80/forward", "sm80/backward", "simt/forward", "simt/backward", "common/backward_prepost", "common/tile_lists",
       "common/diagonal_table")
OTHERS = ("80", "89", "100", "120")
SIZES = ((32, 32), (64, 64), (96, 96), (128, 128), (64, 128), (128, 64), (192, 128), (192, 192), (256, 256))

# Bytes of spills that are known, by kernel, program ("" for all) and the larger head dimension ("" for all). Those of
# the mma.sync kernels and of decoding are outside their inner products; scatter() has a place for every pair of a thread.
BUDGET = [("sm90/backward", "", 64, 28), ("sm90/backward", "", 128, 92), ("sm90/backward", "buckets", "", 92),
          ("sm90/backward", "temperature", 96, 52),
          ("sm90/backward_wide", "", 256, 28), ("sm90/dq", "", 128, 64), ("sm90/dq", "", 256, 112),
          ("sm90/forward", "", 64, 120), ("sm90/forward", "", 256, 44), ("sm80/forward", "", "", 272),
          ("sm80/backward", "", "", 404), ("simt/backward", "", "", 100), ("simt/forward", "", "", 144),
          ("sm90/decode", "", 128, 64)]


def budget(kernel, program, d):
    return max([b for k, p, x, b in BUDGET if k == kernel and x in (d, "") and program.startswith(p)], default=0)


def takes(kernel, program, d, dv):
    """Whether a kernel is for such a problem."""
    if kernel == "sm90/decode":
        return d == dv and d <= 128
    if kernel == "sm90/backward_wide":
        return max(d, dv) > 128 and "GRAD_" not in programs.PROGRAMS[program]
    scored = program == "temperature_causal"  # two sums beside a slope
    return kernel != "sm90/backward" or max(d, dv) <= (96 if scored else 128)


def jobs(full):
    """(kernel, arch, program, D, D_v, f16, more defines)"""
    names = list(programs.PROGRAMS)
    some = ("softcap_causal", "documents", "relative", "dense_grad", "learned_causal")
    out = []
    for kernel in HOPPER:
        for i, name in enumerate(names if full else some):
            for d, dv in SIZES if full else (SIZES[2 * (i % 2) + 1], SIZES[(2 * i + len(kernel)) % len(SIZES)]):
                for f16 in (0, 1):
                    if full or (i + (d == 64)) % 2 == f16:
                        out.append((kernel, "90a", name, d, dv, f16, {}))
    for kernel in HOPPER[:4]:
        for d, dv in SIZES if full else ((96, 96), (256, 256)):
            out += [(kernel, "90a", n, d, dv, 0, {"FXA_DROPOUT": 1, "FXA_VARLEN": 1})
                    for n in (names if full else ("causal",))]
    out += [("sm90/decode", "90a", "alibi_causal", 128, 128, 0, {"FXA_ROW_TILES": n}) for n in (1, 2, 4)]
    out += [("sm90/backward", "90a", n, 128, 128, 0, {"FXA_SEPARATE_DQ": 1}) for n in (names if full else ("causal",))]
    out += [("sm90/backward", "90a", n, d, d, int(d == 96), {"FXA_DQ_ORDERED": 1}) for d in (32, 64, 96, 128)
            for n in (("plain", "softcap", "alibi", "head_table", "buckets") if full else ("plain", "softcap")[d % 64 > 0:])]
    out += [("sm80/backward", "80", "causal", d, dv, 0, {}) for d, dv in ((96, 192), (32, 256))]
    for arch in OTHERS + ("90a",):
        for i, kernel in enumerate(ANY):
            more = {"FXA_VARLEN": int(arch != "100")}
            if "simt" in kernel or (kernel == "common/backward_prepost" and arch == "80"):
                more["FXA_F32"] = 1
            for name in names if full else ("temperature_causal", "relative_causal")[arch == "80":]:
                for d, dv in SIZES if full else (SIZES[(len(arch) + i + int(arch[:2])) % len(SIZES)],):
                    out.append((kernel, arch, name, d, dv, int(arch == "100"), more))
    out += [(kernel, "90a", "causal", d, d, 0, {"FXA_PAGED": 1}) for kernel, d in
            (("sm90/forward", 128), ("sm90/decode", 64), ("sm80/forward", 96), ("simt/forward", 32))]
    out += [("sm80/forward", "89", "causal", 96, 96, 0, {"FXA_ALIGNED": 0, "FXA_DROPOUT": 1}),
            ("sm80/backward", "89", "causal", 256, 256, 0, {"FXA_ALIGNED": 0, "FXA_DROPOUT": 1})]
    out += [(kernel, arch, "causal", d, d, 0, more) for kernel, arch, d, more in (
        ("sm80/forward", "89", 96, {"FXA_OUT_F32": 1, "FXA_RETURN_ROW_MAX": 1}),
        ("sm80/backward", "90a", 128, {"FXA_OUT_F32": 1, "FXA_DROPOUT": 2}),
        ("simt/forward", "100", 64, {"FXA_OUT_F32": 1, "FXA_RETURN_ROW_MAX": 1, "FXA_DROPOUT": 2}),
        ("common/backward_prepost", "80", 64, {"FXA_OUT_F32": 1, "FXA_O_F32": 1}), ("common/convert", "80", 64, {"FXA_VARLEN": 1}),
        ("sm90/forward", "90a", 128, {"FXA_DROPOUT": 2}), ("sm90/backward", "90a", 128, {"FXA_DROPOUT": 2}),
        ("sm90/dq", "90a", 128, {"FXA_DROPOUT": 2}), ("sm90/backward_wide", "90a", 256, {"FXA_DROPOUT": 2}))]
    return [job for job in dict.fromkeys((k, a, n, d, v, f, tuple(m.items())) for k, a, n, d, v, f, m in out)
            if takes(job[0], job[2], job[3], job[4])]


def run(job):
    kernel, arch, name, d, dv, f16, more = job
    defines = dict(FXA_D=d, FXA_DV=dv, FXA_F16=f16, FXA_FAST_MATH=1, **dict(more))
    built = kernels.build(kernels.find_nvrtc(), kernel, arch, programs.PROGRAMS[name], defines)
    label = "%s sm_%s %s %s" % (kernel, arch, name, " ".join("%s=%d" % i for i in defines.items()))
    if built.error:
        return label + " does not compile:\n" + built.error[:2000]
    if built.serialised:
        return label + ": " + built.serialised[0]
    if built.spill > budget(kernel, name, max(d, dv)):
        return label + ": spills %d bytes, %d are listed" % (built.spill, budget(kernel, name, max(d, dv)))
    return ""


def arguments_differ():
    args = arguments.Args
    defines = dict(ARGS_BYTES=ctypes.sizeof(args), MAPS_BYTES=ctypes.sizeof(arguments.Maps),
                   SHAPE_BYTES=ctypes.sizeof(arguments.Shape), F_AT=args.f.offset, BATCH_AT=args.batch.offset,
                   LIST_AT=args.list.offset, SCALARS_AT=args.scale_at.offset)
    return kernels.build(kernels.find_nvrtc(), "arguments", "90a", "", defines).error[:500]


def main():
    if not kernels.find_nvrtc():
        print("skipped: NVRTC was not found (FXA_NVRTC names it), so the CUDA kernels are not compiled here")
        return 77
    todo = jobs(os.environ.get("FXA_CUDA_MATRIX") == "full")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        bad = [said for said in [arguments_differ(), *pool.map(run, todo)] if said]
    print("\n".join(bad + ["%d kernels compiled, %d bad" % (len(todo), len(bad))]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
