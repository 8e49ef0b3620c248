#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the long campaigns and writes what they reached into docs/reliability.md; nothing there is written by hand.

    tools/reliability.py [--fuzz SECONDS] [--scale FACTOR] [--tests BUILD]
    tools/reliability.py --coverage BUILD

--fuzz      seconds per fuzz target (0: leave out), with clang, ASan and UBSan
--scale     iterations of the random tests, as a multiple of the default run
--coverage  writes the coverage section only: what the tests of that build (make coverage) have reached, by gcovr

Each of the two leaves the other's section as it is."""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "reliability.md")
COVERAGE = "## Coverage"
FOLDERS = ("base", "program", "problem", "plan", "engine", "engine/ref", "engine/cpu")


def run(command, **env):
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ, **env), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, errors="replace")
    return done.returncode, done.stdout


def lines_of(*folders):
    total = 0
    for folder in folders:
        for base, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith((".c", ".h", ".def", ".inc", ".py")):
                    with open(os.path.join(base, name), errors="replace") as file:
                        total += sum(1 for _ in file)
    return total


def machine():
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = re.search(r"model name\s*:\s*(.*)", file.read()).group(1)
    except (OSError, AttributeError):
        pass
    return "%s, %d cores" % (model, os.cpu_count())


def test_campaign(build, scale):
    code, out = run(["ctest", "--test-dir", build, "-V"], FXA_TEST_SCALE=str(scale))
    rows = re.findall(r"^\d+: (\d+) passed, (\d+) failed(?:, (\d+) skipped)?", out, re.M)
    passed, failed, skipped = (sum(int(row[i] or 0) for row in rows) for i in range(3))
    programs = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", out)
    return code, passed, failed, skipped, programs.group(3) if programs else "?"


def fuzz_campaign(seconds):
    code, out = run(["make", "fuzz", "SECONDS=%d" % seconds])
    rows = []
    for block in re.split(r"^== ", out, flags=re.M)[1:]:
        name = block.split(",")[0]
        count = re.search(r"number_of_executed_units: (\d+)", block)
        rows.append((name, int(count.group(1)) if count else None))
    return code, rows


def read_sections():
    """The page as (campaigns, coverage), each with its heading; empty where there is none."""
    if not os.path.exists(PAGE):
        return "", ""
    with open(PAGE) as file:
        campaigns, mark, coverage = file.read().partition(COVERAGE)
    return campaigns, mark + coverage


def write_sections(campaigns, coverage):
    with open(PAGE, "w") as file:
        file.write("\n\n".join(part.strip() for part in (campaigns, coverage) if part.strip()) + "\n")


def percent(covered, total):
    """Rounded down, so that 100 means all of it."""
    return "%.1f %%" % (covered * 1000 // total / 10) if total else "-"


def coverage_rows(build):
    code, out = run(["gcovr", "--root", ROOT, "--object-directory", build, "--filter", os.path.join(ROOT, "src", ""),
                     "--exclude-unreachable-branches", "--json-summary"])
    if code != 0:
        sys.exit("reliability.py: gcovr failed:\n" + out)
    summary = json.loads(out[out.index("{"):])
    sums = {folder: [0, 0, 0, 0] for folder in FOLDERS}
    for entry in summary["files"]:
        folder = os.path.dirname(entry["filename"])[len("src/"):]
        for i, key in enumerate(("line_covered", "line_total", "branch_covered", "branch_total")):
            sums[folder][i] += entry[key]
    return ["| src/%s | %s of %d | %s of %d |" % (folder, percent(*sums[folder][:2]), sums[folder][1],
                                                  percent(*sums[folder][2:]), sums[folder][3]) for folder in FOLDERS]


def coverage_section(build):
    commit = run(["git", "rev-parse", "--short", "HEAD"])[1].strip()
    return "\n".join([COVERAGE, "", "Written by `make coverage` on %s, commit %s: every test at its default size, without "
                      "asserts. Kernels (isa_*.c, kern_*.inc) are not counted." % (datetime.date.today().isoformat(), commit), "", "Machine: %s." % machine(), "",
                      "| folder | lines | branches |", "|---|---|---|"] + coverage_rows(build))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fuzz", type=int, default=600)
    options.add_argument("--scale", type=float, default=20)
    options.add_argument("--tests", default="build")
    options.add_argument("--coverage", metavar="BUILD")
    given = options.parse_args()
    campaigns, coverage = read_sections()
    if given.coverage:
        coverage = coverage_section(given.coverage)
        write_sections(campaigns, coverage)
        print(coverage)
        return 0
    commit = run(["git", "rev-parse", "--short", "HEAD"])[1].strip()
    code, passed, failed, skipped, programs = test_campaign(given.tests, given.scale)
    text = ["# Reliability", "",
            "Written by `tools/reliability.py --fuzz %d --scale %g` on %s, commit %s." %
            (given.fuzz, given.scale, datetime.date.today().isoformat(), commit), "", "Machine: %s." % machine(), "",
            "| campaign | size | findings |", "|---|---|---|",
            "| tests, random ones at %g times their default size | %s test programs, %d cases, %d skipped | %s |" %
            (given.scale, programs, passed + failed, skipped, "none" if code == 0 else "%d failed" % failed)]
    if given.fuzz:
        code_fuzz, rows = fuzz_campaign(given.fuzz)
        code |= code_fuzz
        for name, count in rows:
            size = "{:,} executions in {} s".format(count, given.fuzz) if count else "stopped"
            text.append("| %s, ASan and UBSan | %s | %s |" % (name, size, "none" if count else "yes"))
    text += ["", "Lines: %d of library, %d of command, %d of tests and fuzz targets." %
             (lines_of("src", "include"), lines_of("cli"), lines_of("tests", "fuzz")), ""]
    write_sections("\n".join(text), coverage)
    print("\n".join(text))
    return code != 0


if __name__ == "__main__":
    sys.exit(main())
