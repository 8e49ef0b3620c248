#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Julia front end, runtests.jl, with the Julia that `make deps-julia` unpacked below the build folder,
or the one that FXA_JULIA names, on the package that the target `julia` assembled. Without a Julia: skipped, by name."""
import os
import subprocess
import sys

BUILD, SOURCE = os.environ["FXA_BUILD"], os.environ["FXA_SOURCE"]
JULIA = os.environ.get("FXA_JULIA") or os.path.join(BUILD, "deps", "julia", "julia")


def main():
    if not os.path.exists(JULIA):
        print("skipped: Julia was not found (make deps-julia fetches it; FXA_JULIA names another), so the tests of "
              "julia/FXAttn cannot run")
        return 77
    env = dict(os.environ, JULIA_LOAD_PATH=os.path.join(BUILD, "julia") + ":@stdlib", JULIA_NUM_THREADS="8")
    shim = os.path.join(BUILD, "tests", "eight_cpus.so")
    if os.path.exists(shim):
        env["LD_PRELOAD"] = shim
    # Without optimisation: nearly all of the time is compiling what runs once.
    return subprocess.run([JULIA, "-O0", os.path.join(SOURCE, "tests", "julia", "runtests.jl"), *sys.argv[1:]],
                          env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
