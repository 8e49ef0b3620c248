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
REASONS = os.path.join(ROOT, "tools", "coverage_left.txt")
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


def coverage_lines(build):
    """What gcovr counts, by file: [(line number, times run, [times per branch])]."""
    code, out = run(["gcovr", "--root", ROOT, "--object-directory", build, "--filter", os.path.join(ROOT, "src", ""),
                     "--exclude-unreachable-branches", "--json"])
    if code != 0:
        sys.exit("reliability.py: gcovr failed:\n" + out)
    report = json.loads(out[out.index("{"):])
    return {entry["file"]: [(line["line_number"], line["count"], [branch["count"] for branch in line["branches"]])
                            for line in entry["lines"] if not line.get("gcovr/noncode")]
            for entry in report["files"]}


def read_reasons():
    """tools/coverage_left.txt as [(reason, file, text)]; see there."""
    reasons, reason, fresh = [], "", True
    with open(REASONS) as file:
        for line in file:
            entry = re.match(r"  (src/\S+): (.*)", line)
            if line.startswith("#") or not line.strip():
                fresh = True
            elif entry:
                reasons.append((reason, entry.group(1), entry.group(2).strip()))
            else:
                reason, fresh = (line.strip() if fresh else reason + " " + line.strip()), False
    return reasons


def coverage_left(files):
    """Branches that no test takes, as [(file, line number, branches, text, reason or "")], and entries that fit none."""
    left, reasons = [], read_reasons()
    used = set()
    for name in sorted(files):
        with open(os.path.join(ROOT, name)) as file:
            source = file.read().splitlines()
        for number, _, branches in files[name]:
            text = source[number - 1].strip()
            missing = sum(1 for count in branches if count == 0)
            fits = [i for i, (_, path, part) in enumerate(reasons) if path == name and part in text]
            if missing:
                used.update(fits)
                left.append((name, number, missing, text, reasons[fits[0]][0] if fits else ""))
    return left, [entry for i, entry in enumerate(reasons) if i not in used]


def coverage_rows(files, left):
    sums = {folder: [0] * 6 for folder in FOLDERS}
    for name, lines in files.items():
        row = sums[os.path.dirname(name)[len("src/"):]]
        row[0] += sum(1 for _, count, _ in lines if count)
        row[1] += len(lines)
        row[2] += sum(1 for _, _, branches in lines for count in branches if count)
        row[3] += sum(len(branches) for _, _, branches in lines)
    for name, _, missing, _, reason in left:
        sums[os.path.dirname(name)[len("src/"):]][4 if reason else 5] += missing
    return ["| src/%s | %s of %d | %s of %d | %s | %d | %d |" % (
        folder, percent(*row[:2]), row[1], percent(*row[2:4]), row[3], percent(row[2], row[3] - row[4]), row[4], row[5])
        for folder, row in ((folder, sums[folder]) for folder in FOLDERS)]


def left_section(left):
    """Branches left, with their reasons first; the others are for somebody to take or to give a reason."""
    text = []
    for reason in sorted({entry[4] for entry in left}, key=lambda reason: (not reason, reason)):
        entries = [entry for entry in left if entry[4] == reason]
        text += ["", "**%s** (%d branches)" % (reason or "No test takes these yet.", sum(entry[2] for entry in entries)),
                 ""]
        text += ["- %s:%d (%d): `%s`" % (name, number, missing, line) for name, number, missing, line, _ in entries]
    return text


def coverage_section(build):
    commit = run(["git", "rev-parse", "--short", "HEAD"])[1].strip()
    files = coverage_lines(build)
    left, unused = coverage_left(files)
    for reason, name, part in unused:
        print("reliability.py: tools/coverage_left.txt has an entry that fits nothing: %s: %s" % (name, part),
              file=sys.stderr)
    about = ("Written by `make coverage` on %s, commit %s: every test at its default size, without asserts. Kernels "
             "(isa_*.c, kern_*.inc) are not counted. A branch is one way out of one condition, each side of && and || "
             "counted. Reasons come from tools/coverage_left.txt." % (datetime.date.today().isoformat(), commit))
    return "\n".join([COVERAGE, "", about, "", "Machine: %s." % machine(), "",
                      "| folder | lines | branches | branches, those with a reason left out | left with a reason | left without |",
                      "|---|---|---|---|---|---|"] + coverage_rows(files, left) +
                     ["", "### Branches that no test takes"] + left_section(left))


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
