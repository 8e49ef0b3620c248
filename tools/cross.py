#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cross-compiles for other processors and runs the C tests under qemu-user (cmake/cross.cmake).

    tools/cross.py BUILD [--short] [ARCHITECTURE...]

builds in BUILD/cross/ARCHITECTURE. --short, for CI, builds only the library and the tests in SHORT, and only for s390x,
which is big-endian. Without --short all tests run, with FXA_TEST_SCALE (default here: 0.02). The exit status is 1 if a
build or test failed, and 77 if no tests could run. It needs the Debian packages gcc-TRIPLET, libc6-dev-*-cross and
qemu-user. Tests that compile C++ are skipped without g++-TRIPLET."""
import os
import re
import shutil
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRIPLETS = {"s390x": "s390x-linux-gnu", "i386": "i686-linux-gnu", "riscv64": "riscv64-linux-gnu",
            "aarch64": "aarch64-linux-gnu", "armv7": "arm-linux-gnueabihf", "ppc64le": "powerpc64le-linux-gnu"}
QEMU = {"armv7": "qemu-arm"}
NATIVE = "/usr/i686-linux-gnu/lib/ld-linux.so.2"  # most x86-64 kernels run 32-bit x86 programs without qemu
# These tests cover bytes, hashes, storage types, values of programs, and the cpu engine compared with ref.
SHORT = ["test_bytes", "test_dtype", "test_golden_hash", "test_program_bytes", "test_eval", "test_problem_bytes",
         "test_problem_key", "test_bound_args", "test_region", "test_plan_bytes", "test_plan", "test_cpu_kernels", "test_cpu_storage",
         "test_ref_philox", "test_rules_rows", "test_whole", "test_edges"]
FLAGS = ["-DFXA_PYTHON=OFF", "-DFXA_JULIA=OFF", "-DFXA_ASSERT=ON", "-DCMAKE_C_FLAGS_RELEASE=-O1"]


def is_native(name):
    """Returns True if the kernel of this machine runs programs of architecture `name` without qemu."""
    return name == "i386" and os.uname().machine == "x86_64" and os.path.exists(NATIVE) and run(NATIVE, "--version")[0] == 0


def missing(name):
    """Returns the missing ones of cross compiler, C library and qemu as text; "" if all are installed."""
    triplet = TRIPLETS[name]
    needs = [(triplet + "-gcc", "gcc-" + triplet), (QEMU.get(name, "qemu-" + name), "qemu-user")]
    for command, package in needs[:1] if is_native(name) else needs:
        if not shutil.which(command):
            return "%s was not found (Debian's package %s)" % (command, package)
    if not os.path.exists("/usr/%s/include/stdio.h" % triplet):
        return "/usr/%s has no C library (Debian's package libc6-dev-*-cross)" % triplet
    return ""


def run(*command, **environment):
    """Returns (exit status, output). The status is 127 if the kernel cannot execute the file."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                              env=dict(os.environ, **environment))
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def build(name, folder, targets):
    """Builds `targets` for architecture `name`. Returns "" or, if a step failed, the end of its output."""
    werror = "-DFXA_WERROR=" + (os.environ.get("FXA_WERROR") or "OFF")
    configure = ["cmake", "-S", SOURCE, "-B", folder, "--toolchain", os.path.join(SOURCE, "cmake", "cross.cmake"),
                 "-DFXA_CROSS=" + name, "-DFXA_CROSS_RUN=" + ("native" if is_native(name) else "qemu"), werror] + FLAGS
    jobs = "-j%d" % (os.cpu_count() or 2)
    for command in (configure, ["cmake", "--build", folder, jobs] + (["--target"] + targets if targets else [])):
        status, out = run(*command)
        if status:
            return "\n".join(out.splitlines()[-40:])
    return ""


def test(folder, only):
    """Runs the tests `only` (empty: all). Returns (number passed, number skipped, failures as text)."""
    command = ["ctest", "--test-dir", folder, "--timeout", "1800", "--output-on-failure", "-j%d" % (os.cpu_count() or 2)]
    if only:
        command += ["-R", "^(%s)$" % "|".join(only)]
    status, out = run(*command, FXA_TEST_SCALE=os.environ.get("FXA_TEST_SCALE") or "0.02")
    passed, skipped = len(re.findall(r"  +Passed +[0-9]", out)), len(re.findall(r"\*\*\*Skipped", out))
    if not status and (passed == 0 or (only and passed + skipped != len(only))):
        return passed, skipped, "the tests were not found:\n" + out
    return passed, skipped, out if status else ""


def cross(root, name, only):
    """Builds and tests one architecture. The result is None if a package is missing, else True for success."""
    lacks = missing(name)
    if lacks:
        print("skipped: %s: %s" % (name, lacks), flush=True)
        return None
    start, folder = time.time(), os.path.join(root, "cross", name)
    failed = build(name, folder, only)
    built = time.time()
    passed, skipped, failed = (0, 0, failed) if failed else test(folder, only)
    print("%s%s: %d tests passed, %d skipped, built in %.0f s, run in %.0f s" % (failed and failed + "\n", name, passed,
          skipped, built - start, time.time() - built), flush=True)
    return not failed


def main():
    words = [word for word in sys.argv[1:] if word != "--short"]
    short = len(words) != len(sys.argv) - 1
    unknown = [word for word in words[1:] if word not in TRIPLETS]
    if not words or unknown:
        sys.exit("usage: cross.py BUILD [--short] [%s]...%s" % ("|".join(TRIPLETS), unknown and ", not %s" % unknown[0] or ""))
    names = words[1:] or (["s390x"] if short else list(TRIPLETS))
    results = [cross(words[0], name, SHORT if short else []) for name in names]
    sys.exit(1 if False in results else 0 if True in results else 77)


if __name__ == "__main__":
    main()
