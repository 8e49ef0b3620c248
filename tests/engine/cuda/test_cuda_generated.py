# SPDX-License-Identifier: Apache-2.0
"""Generated programs (src/engine/cuda/codegen/codegen.h) in the CUDA kernels: those of the gallery and random ones compile by
NVRTC for sm_80 and sm_90a, with spills within the listed budget and no wgmma that the compiler has to serialise; each once more in
another kernel, of another size and storage type and for another architecture; and one of many functions, whose code has a bound, because at every pair of a thread it would take minutes to compile. Default: a sample
that ends in a minute; FXA_CUDA_MATRIX=full: all. Skips by name where NVRTC is missing."""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kernels  # noqa: E402

TEXTS = os.path.join(os.environ.get("FXA_BUILD", os.path.join(kernels.ROOT, "build")), "tests", "cuda_texts")
SAMPLE, RANDOM = (14, 5), 24  # jobs of both lists
OTHERS, SIZES = ("80", "89", "100", "120"), (32, 64, 96, 128, 192, 256)
HERE = os.path.dirname(os.path.abspath(__file__))
MANY, MOST = [os.path.join(HERE, name) for name in ("many_functions.fxa", "many_members.fxa")], 16000  # instructions

# Rows of built_budgets.h: family, function, beginning of a program's name, bytes of spills that are known at head dim 64.
BUDGET = re.findall(r'{FAMILY_(\w+), "(\w+)", "(\w*)", \d+, (\d+), ', open(os.path.join(HERE, "built_budgets.h")).read())


def budget(kernel, name):
    """Returns the bytes that a kernel with a program may spill: none outside of the kernels of a family."""
    family, main = kernel.split("/")
    return max([int(n) for f, function, start, n in BUDGET
                if f == family.upper() and function == "fxa_" + main and name.startswith(start)], default=0)


def texts(random):
    """Texts by name, as tests/engine/cuda/cuda_texts.c prints them."""
    files = sorted(glob.glob(os.path.join(kernels.ROOT, "examples", "programs", "*.fxa")))
    out = subprocess.run([TEXTS, str(random), "grads"] + files, check=True, stdout=subprocess.PIPE, text=True).stdout
    parts = [part.split("\n", 1) for part in out.split("=== ")[1:]]
    return {name: text for name, text in parts if " refused: " not in name}


def many():
    """What is bounded: (instructions, name of the kernel) that are more than MOST."""
    out = subprocess.run([TEXTS, "0", "grads"] + MANY, check=True, stdout=subprocess.PIPE, text=True).stdout
    bad = []
    for name, text in [part.split("\n", 1) for part in out.split("=== ")[1:]]:
        backward = name.endswith("backward")
        for kernel, arch in (("sm90/backward", "90a"), ("sm80/backward", "80")) if backward else (("sm90/forward", "90a"),):
            built = kernels.build(kernels.find_nvrtc(), kernel, arch, text, dict(FXA_D=64, FXA_DV=64, FXA_F16=0))
            count = kernels.instructions(built.cubin) if not built.error else 0
            if "PROG_OUT_OF_LINE" not in text or not 0 < count <= MOST:
                bad.append("%s in %s has %d instructions, of %d\n%s" % (name, kernel, count, MOST, built.error[:500]))
    return bad


def jobs():
    """Two lists of (name, text, kernel, arch, d, settings, whether spills are listed): the usual ones, and all programs in
    other sizes. The Hopper backward has no registers for scatter() beside a slope, which is for sm_80."""
    out, others = [], []
    usual = (64, dict(FXA_F16=0), True)
    for i, (name, text) in enumerate(texts(RANDOM).items()):
        both = "PROG_DERIVATIVE" in text and "PROG_GRAD_SCATTER" in text
        which = "backward" if name.endswith("backward") else "forward"
        kernel = ("sm80/", "simt/")[i // 2 % 2] + which
        others.append((name, text, kernel, OTHERS[i % 4], SIZES[i % 6],
                       dict(FXA_F16=0, FXA_F32=1) if kernel.startswith("simt") else dict(FXA_F16=i % 2), False))
        if which == "backward":
            out += [] if both else [(name, text, "sm90/backward", "90a") + usual]
            out.append((name, text, "sm80/backward", "80") + usual)
            continue
        out += [(name, text, "sm90/forward", "90a") + usual, (name, text, "sm80/forward", "80") + usual]
        out += [(name, text, "common/tile_lists", "80") + usual] if "PROG_MASK" in text else []
        out += [(name, text, "common/diagonal_table", "80") + usual] if "PROG_DIAGONAL" in text else []
    return out, others


def run(job):
    name, text, kernel, arch, d, settings, listed = job
    built = kernels.build(kernels.find_nvrtc(), kernel, arch, text, dict(settings, FXA_D=d, FXA_DV=d))
    label = "%s in %s of %d columns for sm_%s" % (name, kernel, d, arch)
    said = ""
    if built.error:
        said = label + " does not compile:\n" + "\n".join(x for x in built.error.split("\n") if "error" in x)[:2000]
    elif built.serialised:
        said = label + ": " + built.serialised[0]
    elif listed and built.spill > budget(kernel, name):
        said = "%s: spills %d bytes, %d are listed" % (label, built.spill, budget(kernel, name))
    return said


def main():
    if not kernels.find_nvrtc():
        print("skipped: NVRTC was not found (FXA_NVRTC names it), so generated programs are not compiled here")
        return 77
    full = os.environ.get("FXA_CUDA_MATRIX") == "full"
    todo = sum((x if full else x[::len(x) // n] for x, n in zip(jobs(), SAMPLE)), [])
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        bad = many() + [said for said in pool.map(run, todo) if said]
    print("\n".join(bad + ["%d kernels with generated programs compiled, %d bad" % (len(todo), len(bad))]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
