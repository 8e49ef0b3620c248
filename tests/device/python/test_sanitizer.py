# SPDX-License-Identifier: Apache-2.0
"""Which reports of compute-sanitizer are known, and which are not (sanitizer.py): needs nothing but the kernels' sources."""
import glob
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sanitizer  # noqa: E402


def place(function):
    """FILE:LINE inside a function of ptx*.cuh."""
    for path in ("common/ptx.cuh", "sm90/ptx.cuh"):
        with open(os.path.join(sanitizer.SOURCES, path)) as source:
            for number, line in enumerate(source, 1):
                if re.search(r"FXA_INLINE.*\b%s\(" % function, line):
                    return "%s:%d" % (path, number + 2)
    raise LookupError(function)


def race(first, *others):
    """A report of accesses that are "Read function" and "Write function"."""
    at = []
    for i, (kind, _, function) in enumerate(x.partition(" ") for x in (first, *others)):
        at.append("%s access at %s+0x1%d0%s" % (kind, function + "(unsigned int, float (&)[4])" if function else "fxa_backward", i,
                                                " in " + place(function) if function else ""))
    return ["========= Error: Race reported between " + at[0], *("=========     and %s [64 hazards]" % x for x in at[1:]), "========= "]


def read(kernel, function=None):
    return ["========= Uninitialized __global__ memory read of size 2 bytes",
            "=========     at %s+0x1750%s" % (kernel, " in " + place(function) if function else ""),
            "=========     by thread (96,0,0) in block (8,0,0)", "=========     Address 0x7fcb1542b780", "========= "]


def dropped():
    return ["========= Warning: Error buffer overflow has been detected. Some records have been dropped", "========= "]


def skipped():
    return ["========= 19238 errors were skipped (error buffer overflow)."]


def case(ran="sm90/sm90"):
    return ["case 0x7c315d75fa510004.0 right/right on %s made 0.72 checked 1.0 worst 0.4 smooth d:192" % ran]


def errors(n):
    return ["========= ERROR SUMMARY: %d error%s" % (n, "" if n == 1 else "s")]


def races(n):
    return ["========= RACECHECK SUMMARY: %d hazards displayed (%d errors, 0 warnings)" % (n, n)]


# (lines, known, not known)
CASES = {
    "nothing": (case() + errors(0), 0, 0),
    "no summary": (case(), 0, 1),
    "copies by a ring": (race("Write bulk_load", "Read load_shared_float2", "Read load_shared") + case() + races(1), 1, 0),
    "words by a ring": (race("Read take_word", "Write put_word") + case() + races(1), 1, 0),
    "one of several": (race("Write bulk_load", "Read load_shared_float2", "Write store_shared_float4") + races(1), 0, 1),
    "words that are no ring's": (race("Write put_word", "Read load_shared") + races(1), 0, 1),
    "rows cleared beside a read": (race("Write store_shared_float4", "Read load_matrix_transposed") + races(1), 0, 1),
    "two writes": (race("Write bulk_load", "Write bulk_load") + races(1), 0, 1),
    "without lines": (race("Write", "Read") + races(1), 0, 1),
    "no other access": (race("Write bulk_load") + races(1), 0, 1),
    "not all printed": (race("Read take_word", "Write put_word") + ["========= RACECHECK SUMMARY: 1 hazards displayed (7 errors, 0 warnings)"], 1, 1),
    "flags": (read("fxa_decode", "load_flag") + case() + errors(1), 1, 0),
    "what TMA has stored": (2 * read("fxa_pages_scatter") + case() + errors(2), 2, 0),
    "the same of a function": (read("<unnamed>::convert_load(const FxaConvertArray &, long long)") + case() + errors(1), 1, 0),
    "the same of other kernels": (read("fxa_pages_scatter") + case("sm80/sm80") + errors(1), 0, 1),
    "of no case": (read("fxa_pages_scatter") + errors(1), 0, 1),
    "list rows": (read("fxa_forward", "load_shared") + case() + errors(1), 0, 1),
    "more than is kept": (256 * read("fxa_pages_scatter") + dropped() + case() + errors(257) + skipped(), 258, 0),
    "more than is kept, of other kernels": (256 * read("fxa_pages_scatter") + dropped() + case("sm80/sm80") + errors(257), 0, 257),
    "more than is kept, of two": (255 * read("fxa_pages_scatter") + read("fxa_decode", "load_flag") + dropped() + case() + errors(257) + skipped(),
                                  256, 2),
    "dropped beside few": (5 * read("fxa_pages_scatter") + dropped() + case() + errors(6), 5, 1),
    "another tool": (["========= Invalid __global__ write of size 4 bytes", "=========     at fxa_forward+0x10", "========= "] + errors(1), 0, 1),
}


def main():
    bad = 0
    for name, (lines, known, unknown) in CASES.items():
        reports = sanitizer.Reports()
        for line in ["========= COMPUTE-SANITIZER"] + lines:
            reports.take(line)
        reports.end()
        got = sum(reports.known.values()), len(reports.unknown)
        if got != (known, unknown):
            bad += 1
            print("FAIL %s: %d known and %d not, wanted %d and %d\n%s" % (name, *got, known, unknown, "\n".join(reports.unknown)))
    for function in (*sanitizer.RACES, *sanitizer.READS, "take_word"):  # every name must be in the sources
        path, line = place(function).split(":")
        bad += sanitizer.function_of(path, line) != function
    kernels = "".join(open(path).read() for path in glob.glob(os.path.join(sanitizer.SOURCES, "*", "*.cu*")))
    bad += sum(" %s(" % kernel not in kernels for kernel in sanitizer.READ_FROM_TMA)
    print("%d kinds of reports, %d wrong" % (len(CASES), bad))
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
