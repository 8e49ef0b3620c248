#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs long test campaigns and writes their results into docs/generated/reliability.md; nothing there is
written by hand. docs/reliability.md is the page for readers.

    tools/reliability.py [--fuzz SECONDS] [--scale FACTOR] [--seed NUMBER] [--tests BUILD]
    tools/reliability.py --model SECONDS [--seed NUMBER] [--tests BUILD]
    tools/reliability.py --coverage BUILD [--since COMMIT TESTS]

--fuzz      seconds per fuzz target (0: no fuzzing). The targets run in parallel, with clang, ASan and UBSan
--scale     iterations of the random tests, as a multiple of the default; campaigns in CAMPAIGNS multiply it by their
factor --seed      seed of the random tests
--tests     build folder of the tests; tests with the thread sanitizer are built in BUILD-tsan
--model     writes only the section of the CUDA kernels: runs problems on the GPU emulator (make test-model) for SECONDS
--coverage  writes only the coverage section: what the tests of build folder BUILD (make coverage) have reached, by
gcovr --since     COMMIT is the commit on which make coverage ran. Since then, only tests of the folders TESTS ran in
this build.
            Counts of unchanged sources include both runs, counts of changed sources the second run only

Each of the three commands leaves the sections of the others unchanged. tools/mutants.py --page writes the page of
mutants."""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "generated", "reliability.md")
COVERAGE = "## Coverage"
MODEL = "## CUDA kernels on the GPU emulator"
MUTANTS = "## Mutants"
REASONS = os.path.join(ROOT, "tools", "coverage_left.txt")
# Campaigns for areas in which only long runs found bugs: (title, tests, with the thread sanitizer, factor of --scale).
CAMPAIGNS = [
    ("gradients of tensors that are loaded at permuted coordinates, any number of threads",
     ("test_cpu_lanes", "test_conformance_bits", "test_threads"), False, 3),
    ("the same under the thread sanitizer", ("test_cpu_lanes", "test_conformance_bits", "test_threads"), True, 0.1),
    ("steep programs: as close as eager f32, the same scores in both passes",
     ("test_cpu_steep", "test_cpu_same_scores", "test_cpu_eager", "test_finite"), False, 2),
    ("the caller's floating point state, random programs and problems",
     ("test_float_state", "test_float_state_random"), False, 5),
    ("overlap of strided regions against brute force", ("test_region",), False, 10),
]
FOLDERS = ("base", "program", "problem", "lower", "plan", "gpu", "engine", "engine/ref", "engine/cpu", "engine/cudnn")


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


def build_tests(build, targets, *settings):
    """Configures and builds `targets` (empty: all targets) in folder `build`. Exits with a message if a step fails."""
    for command in (["cmake", "-S", ".", "-B", build] + list(settings),
                    ["cmake", "--build", build, "-j", str(os.cpu_count())] + (["--target"] + targets if targets else [])):
        code, out = run(command)
        if code != 0:
            sys.exit("reliability.py: %s failed:\n%s" % (" ".join(command), out[-4000:]))


def test_campaign(what, build, names, scale, seed):
    """Runs the tests `names` (empty: all). Returns (exit code, row of the table)."""
    only = ["-R", "^(%s)$" % "|".join(names)] if names else []
    began = time.monotonic()
    code, out = run(["ctest", "--test-dir", build, "-V", "-j", str(os.cpu_count()), "--timeout", "14400"] + only,
                    FXA_TEST_SCALE=str(scale), FXA_TEST_SEED=str(seed))
    seconds = time.monotonic() - began
    rows = re.findall(r"^\d+: (\d+) passed, (\d+) failed(?:, (\d+) skipped)?", out, re.M)
    passed, failed, skipped = (sum(int(row[i] or 0) for row in rows) for i in range(3))
    programs = re.search(r"\d+% tests passed, \d+ tests failed out of (\d+)", out)
    ran = int(programs.group(1)) if programs else 0
    bad = re.findall(r"^\s+\d+ - (\S+) \((?!Skipped)", out, re.M)
    if names and ran < len(names):
        code, bad = code or 1, bad + ["%d of %d test programs were found" % (ran, len(names))]
    if code != 0:
        print(out[-20000:], file=sys.stderr)
    size = "%d test programs, %d cases, %d skipped, %g times their default size, %d s" % (
        ran, passed + failed, skipped, scale, seconds)
    return code, "| %s | %s | %s |" % (what, size, "none" if code == 0 else ", ".join(bad) or "yes")


def test_campaigns(build, scale, seed):
    build_tests(build, [])
    build_tests(build + "-tsan", sorted({name for _, names, tsan, _ in CAMPAIGNS if tsan for name in names}),
                "-DFXA_SANITIZE=thread")
    code, rows = 0, []
    for what, names, tsan, factor in [("all tests", (), False, 1)] + CAMPAIGNS:
        failed, row = test_campaign(what, build + "-tsan" if tsan else build, names, scale * factor, seed)
        code, rows = code | failed, rows + [row]
        print(row, flush=True)
    return code, rows


def fuzz_campaign(seconds):
    code, out = run(["make", "fuzz", "SECONDS=%d" % seconds])
    rows = []
    for block in re.split(r"^== ", out, flags=re.M)[1:]:
        heading = block.splitlines()[0]
        done = re.search(r"^Done (\d+) runs in (\d+) second", block, re.M)
        size = "{:,} executions in {} s".format(int(done.group(1)), done.group(2)) if done else "stopped"
        fine = done and "a finding" not in heading
        rows.append("| %s, ASan and UBSan | %s | %s |" % (heading.split(",")[0], size, "none" if fine else "yes"))
    if not rows or code != 0:
        print(out[-20000:], file=sys.stderr)
    return code, rows or ["| fuzz targets | %s | - |" % (out.strip().splitlines() or ["nothing"])[-1]]


def model_section(build, seconds, seed):
    """Runs random problems on the GPU emulator. Returns (exit code, section of the page)."""
    build_tests(build, ["test_cuda_device", "standin_cuda", "model_nvrtc"])
    commit = run(["git", "describe", "--always", "--dirty=, with changes that were not committed"])[1].strip()
    code, out = run([sys.executable, "tests/device/python/run_cuda.py", build, "--model", "--seconds", str(seconds), "--seed", str(seed)])
    rows = []
    for family, right, cases, kinds, text in re.findall(r"^family (\w+): (\d+) cases right of (\d+), of (\d+) kinds: (.*)", out, re.M):
        passes = re.findall(r"(?:forward|backward) (\d+) right, (\d+) refused, (\d+) unsure, (\d+) wrong", text)
        worst = re.search(r"worst ([\d.]+)", text).group(1)
        rows.append("| %s | %s of %s | %s | %s | %s |" % (family, right, cases, kinds, " | ".join(" / ".join(p) for p in passes), worst))
    if code != 0 or not rows:
        print(out[-20000:], file=sys.stderr)
    about = ("Written by `tools/reliability.py --model %d --seed %d` on %s, commit %s. What it is: [the GPU emulator](../cuda.md#the-gpu-emulator). Kinds of problems in "
             "several shapes against the reference; `any` is what the engine takes on an H200, the others are forced. Right / refused / "
             "of which nothing can be said / wrong." % (seconds, seed, datetime.date.today().isoformat(), commit))
    return code, "\n".join([MODEL, "", about, "", "| kernels | cases right | kinds | forward | backward | worst, of what is allowed |",
                            "|---|---|---|---|---|---|"] + rows)


def read_sections():
    """Returns the sections [campaigns, model, mutants, coverage] of the page with their headings; "" for a missing
    section."""
    if not os.path.exists(PAGE):
        return ["", "", "", ""]
    with open(PAGE) as file:
        rest, mark, coverage = file.read().partition(COVERAGE)
    rest, mutants_mark, mutants = rest.partition(MUTANTS)
    campaigns, model_mark, model = rest.partition(MODEL)
    return [campaigns, model_mark + model, mutants_mark + mutants, mark + coverage]


def write_sections(*parts):
    with open(PAGE, "w") as file:
        file.write("\n\n".join(part.strip() for part in parts if part.strip()) + "\n")


def percent(covered, total):
    """Returns covered / total in percent as text, rounded down, so that 100.0 % means all; "-" if total is 0."""
    return "%.1f %%" % (covered * 1000 // total / 10) if total else "-"


def coverage_lines(build):
    """Returns the counts of gcovr: {file: [(line number, executions, [executions of each branch])]}."""
    code, out = run(["gcovr", "--root", ROOT, "--object-directory", build, "--filter", os.path.join(ROOT, "src", ""),
                     "--exclude-unreachable-branches", "--json"])
    if code != 0:
        sys.exit("reliability.py: gcovr failed:\n" + out)
    report = json.loads(out[out.index("{"):])
    return {entry["file"]: [(line["line_number"], line["count"], [branch["count"] for branch in line["branches"]])
                            for line in entry["lines"] if not line.get("gcovr/noncode")]
            for entry in report["files"]}


def read_reasons(path=REASONS):
    """Returns the entries [(reason, file, text)] of tools/coverage_left.txt or a list in this format, which that file
    describes."""
    reasons, reason, fresh = [], "", True
    with open(path) as file:
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
    """Returns (branches that no test takes: [(file, line number, branches, line, reason or "")], entries of the list
    that match none of them)."""
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
    found = {os.path.dirname(name)[len("src/"):] for name in files}
    folders = FOLDERS + tuple(sorted(found.difference(FOLDERS)))
    sums = {folder: [0] * 6 for folder in folders}
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
        for folder, row in ((folder, sums[folder]) for folder in folders) if row[1]]


def left_section(left):
    """Returns the lines of the list of branches in `left`: first those with a reason, then those without."""
    text = []
    for reason in sorted({entry[4] for entry in left}, key=lambda reason: (not reason, reason)):
        entries = [entry for entry in left if entry[4] == reason]
        text += ["", "**%s** (%d branches)" % (reason or "No test takes these yet.", sum(entry[2] for entry in entries)),
                 ""]
        text += ["- %s:%d (%d): `%s`" % (name, number, missing, line) for name, number, missing, line, _ in entries]
    return text


def coverage_section(build, since):
    commit = run(["git", "describe", "--always", "--dirty=, with changes that were not committed"])[1].strip()
    files = coverage_lines(build)
    left, unused = coverage_left(files)
    for reason, name, part in unused:
        print("reliability.py: tools/coverage_left.txt has an entry that fits nothing: %s: %s" % (name, part),
              file=sys.stderr)
    about = ("Written by `make coverage` on %s, commit %s: every test program, random ones at 0.3 of their default size, "
             "those that the Makefile names at all of it too, without asserts; scripts are not run. Kernels (kernels/*.c, "
             "kernels/body/*.inc) are not counted. A branch is one way out of one condition, each side of && and || counted. "
             "Reasons come from tools/coverage_left.txt." % (datetime.date.today().isoformat(), commit))
    if since:
        changed = run(["git", "diff", "--name-only", since[0], "--", "src"])[1].split()
        about += (" All of it was run on commit %s; since then only tests of %s were, by which alone these sources are "
                  "counted, which have changed: %s." % (since[0], since[1], ", ".join(changed) or "none"))
    return "\n".join([COVERAGE, "", about, "", "Machine: %s." % machine(), "",
                      "| folder | lines | branches | branches, those with a reason left out | left with a reason | left without |",
                      "|---|---|---|---|---|---|"] + coverage_rows(files, left) +
                     ["", "### Branches that no test takes"] + left_section(left))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fuzz", type=int, default=600)
    options.add_argument("--scale", type=float, default=20)
    options.add_argument("--seed", type=int, default=9)
    options.add_argument("--tests", default="build")
    options.add_argument("--model", type=int, metavar="SECONDS")
    options.add_argument("--coverage", metavar="BUILD")
    options.add_argument("--since", nargs=2, metavar=("COMMIT", "TESTS"))
    given = options.parse_args()
    campaigns, model, mutants, coverage = read_sections()
    if given.coverage:
        coverage = coverage_section(given.coverage, given.since)
        write_sections(campaigns, model, mutants, coverage)
        print(coverage)
        return 0
    if given.model:
        code, model = model_section(given.tests, given.model, given.seed)
        write_sections(campaigns, model, mutants, coverage)
        print(model)
        return code != 0
    commit = run(["git", "rev-parse", "--short", "HEAD"])[1].strip()
    code, rows = test_campaigns(given.tests, given.scale, given.seed)
    if given.fuzz:
        code_fuzz, fuzz_rows = fuzz_campaign(given.fuzz)
        code, rows = code | code_fuzz, rows + fuzz_rows
    text = ["# Reliability: results", "",
            "Written by `tools/reliability.py --fuzz %d --scale %g --seed %d` on %s, commit %s." %
            (given.fuzz, given.scale, given.seed, datetime.date.today().isoformat(), commit), "",
            "Machine: %s." % machine(), "", "| campaign | size | findings |", "|---|---|---|"] + rows
    text += ["", "Lines: %d of library, %d of command, %d of tests and fuzz targets." %
             (lines_of("src", "include"), lines_of("cli"), lines_of("tests", "fuzz")), ""]
    write_sections("\n".join(text), model, mutants, coverage)
    print("\n".join(text))
    return code != 0


if __name__ == "__main__":
    sys.exit(main())
