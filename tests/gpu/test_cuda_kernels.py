# SPDX-License-Identifier: Apache-2.0
"""Every CUDA kernel compiles, without a GPU: no error, spills within the listed budget, no wgmma that the compiler has
to serialise. Default: a sample that ends in a minute or two; FXA_CUDA_MATRIX=full: kernels x programs x head dimensions
x storage types x architectures. Skips by name where NVRTC is missing."""
import concurrent.futures
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kernels  # noqa: E402
import programs  # noqa: E402

HOPPER = ("forward_sm90", "backward_sm90", "dq_sm90", "decode_sm90")
ANY = ("forward_sm80", "backward_sm80", "backward_ends", "tile_lists", "diagonal")
OTHERS = ("80", "89", "100", "120")

# Bytes of spills that are known, by kernel, program ("" for all) and head dimension.
BUDGET = [("backward_sm90", "", 64, 16), ("backward_sm90", "", 128, 40), ("dq_sm90", "", 128, 64),
          ("forward_sm90", "softcap", 64, 120), ("forward_sm90", "head_table", 64, 120), ("forward_sm80", "", 128, 224),
          ("backward_sm80", "", 128, 136), ("decode_sm90", "", 128, 208), ("decode_sm90", "", 64, 24)]


def budget(kernel, program, d):
    return max([b for k, p, x, b in BUDGET if k == kernel and x == d and program.startswith(p)], default=0)


def jobs(full):
    """(kernel, arch, program, D, f16, more defines)"""
    out = []
    names = list(programs.PROGRAMS)
    for kernel in HOPPER:
        for i, name in enumerate(names if full else ("softcap_causal", "documents", "relative", "dense_grad")):
            for d in (64, 128):
                for f16 in (0, 1):
                    if full or (i + (d == 64)) % 2 == f16:
                        out.append((kernel, "90a", name, d, f16, {}))
    out += [("decode_sm90", "90a", "alibi_causal", 128, 0, {"FXA_ROW_TILES": n}) for n in (1, 2, 4)]
    out += [("backward_sm90", "90a", n, 128, 0, {"FXA_SEPARATE_DQ": 1}) for n in (names if full else ("causal",))]
    for arch in OTHERS + ("90a",):
        for kernel in ANY:
            for name in names if full else ("softcap_causal", "relative_causal")[arch == "80":]:
                out.append((kernel, arch, name, 64 if arch == "89" else 128, int(arch == "100"), {}))
    return out


def run(job):
    kernel, arch, name, d, f16, more = job
    defines = dict(FXA_D=d, FXA_F16=f16, FXA_FAST_MATH=1, **more)
    built = kernels.build(kernels.find_nvrtc(), kernel, arch, programs.PROGRAMS[name], defines)
    label = "%s sm_%s %s %s" % (kernel, arch, name, " ".join("%s=%d" % i for i in defines.items()))
    if built.error:
        return label + " does not compile:\n" + built.error[:2000]
    if built.serialised:
        return label + ": " + built.serialised[0]
    if built.spill > budget(kernel, name, d):
        return label + ": spills %d bytes, %d are listed" % (built.spill, budget(kernel, name, d))
    return ""


def main():
    if not kernels.find_nvrtc():
        print("skipped: NVRTC was not found (FXA_NVRTC names it), so the CUDA kernels are not compiled here")
        return 77
    todo = jobs(os.environ.get("FXA_CUDA_MATRIX") == "full")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        bad = [said for said in pool.map(run, todo) if said]
    print("\n".join(bad + ["%d kernels compiled, %d bad" % (len(todo), len(bad))]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
