#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the outputs of the cpu engine, bit by bit, with those of another state of the source: for changes that keep all
results. `--write FILE` stores hashes of the outputs of random problems, for each instruction set of this machine and for
the emulated sets avx512-bf16 and amx. Without it, the hashes are computed again and compared with FILE.

    make -C build cpu_outputs cpu_outputs_emulated
    tools/compare_outputs.py --write build/outputs.txt       # before the change
    tools/compare_outputs.py build/outputs.txt               # after it

FILE is valid for one machine, compiler and C library: results depend on all three.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "build" / "tests"
SETS = [(name, "cpu_outputs") for name in ("scalar", "sse2", "avx2", "avx512", "avx512-bf16", "amx", "neon")]
SETS += [(name, "cpu_outputs_emulated") for name in ("avx512-bf16", "amx")]


def hashes(name, program, count, folder):
    """Returns the lines of all problems for one set; an empty list if this machine cannot run the set."""
    print("%s, %s" % (name, program), file=sys.stderr)
    out = subprocess.run([str(folder / program), str(count)], env=dict(os.environ, FXA_CPU=name), capture_output=True,
                         text=True, check=True)
    if all(line.endswith("refused") for line in out.stdout.splitlines()):
        print("  does not run here", file=sys.stderr)
        return []
    return ["%s %s %s" % (program, name, line) for line in out.stdout.splitlines()]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path)
    options.add_argument("--write", action="store_true")
    options.add_argument("--count", type=int, default=500)
    options.add_argument("--tests", type=Path, default=TESTS, help="folder of the programs")
    given = options.parse_args()
    lines = [line for name, program in SETS for line in hashes(name, program, given.count, given.tests)]
    if given.write:
        given.file.write_text("".join(line + "\n" for line in lines))
        return 0
    expected = set(given.file.read_text().splitlines())
    different = [line for line in lines if line not in expected]
    missing = len(expected) - len(lines)
    print("\n".join(different[:20] + ["%d of %d outputs differ" % (len(different), len(lines))]))
    if missing:
        print("%d outputs of the file were not computed" % missing)
    return 1 if different or missing or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
