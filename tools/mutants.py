#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: makes random small changes (mutants) of src and runs the C tests that reach them.

    tools/mutants.py [--count 100] [--seed 1] [--only cudnn,program] [--minutes M] [--work build-mutants]
    tools/mutants.py --again [VERDICTS] [--sanitize]   the survivors of the results once more, with the tests of this
                                                       tree; or the mutants with these verdicts
    tools/mutants.py --move                    finds the mutants of the results in the present sources, runs no test
    tools/mutants.py --one FILE:LINE OLD NEW   one change by hand
    tools/mutants.py --summary | --page        prints the table of the results; writes docs/reliability-mutants.md

1. mutants_changes.py draws the mutants of a run.
2. mutants_schema.py compiles all of them into one library, which selects one mutant when it is loaded.
3. mutants_judge.py runs every test once on the unchanged code to record which mutants it reaches. Then it runs, for
each
   mutant, the tests that reach it, in the order of past kills per second, for at most --budget seconds.

WORK/tree is a clone of the working tree. WORK/build is its build, in which tests link a shared library
(cmake/mutants.cmake). The file --results has one line per mutant; mutants in it are not drawn again.

Verdicts: killed (with the test), timeout (a test took four times its CPU time; counts as killed), survived, unreached
(no test runs the statement), same (compiles to the same code), uncompiled (does not compile), gone (the line has been
removed; such mutants are deleted from the results). Survivors that tools/mutants_equivalent.txt lists with a reason are equivalent and are not counted."""
import argparse
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import mutants_changes as changes
import mutants_report as report
from mutants_judge import Judge
from mutants_moved import LIKE_ELSEWHERE, Moved, likeness, tokens
from mutants_schema import Schema, say

ROOT = Path(__file__).resolve().parent.parent


def prepare(work, targets):
    """Clones the working tree, its changes included, and builds its tests. Returns the clone and the build."""
    tree, build = work / "tree", work / "build"
    if not shutil.which("ninja"):
        sys.exit("mutants.py: ninja was not found")
    commit = say(["git", "-C", ROOT, "stash", "create"]).stdout.strip() or \
        say(["git", "-C", ROOT, "rev-parse", "HEAD"]).stdout.strip()
    work.mkdir(parents=True, exist_ok=True)
    if not tree.exists():
        say(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, tree], check=True)
    say(["git", "-C", tree, "checkout", "--quiet", "--force", "--detach", commit], check=True)
    configure = ["cmake", "-G", "Ninja", "-S", tree, "-B", build, "-DFXA_PYTHON=OFF", "-DFXA_JULIA=OFF", "-DFXA_WERROR=OFF",
                 "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG", "-DFXA_ISA_SLOW=-O1",
                 f"-DCMAKE_PROJECT_INCLUDE={tree}/cmake/mutants.cmake"]
    for command in (configure, ["cmake", "--build", build, "-j", os.cpu_count(), "--target", *targets]):
        done = say(command)
        if done.returncode:
            sys.exit(f"mutants.py: {command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return tree, build


def chosen(given, tree, known):
    """Returns the mutants of this run."""
    parts = [part for part in given.only.split(",") if part]
    if given.one:
        return [changes.by_hand(tree, *given.one)]
    out = []
    if given.again:
        rows = [r for r in report.with_reasons(known.values())[0] if r["verdict"] in given.again.split(",")]
        out = [{k: r.get(k) for k in report.KEPT if k not in ("verdict", "commit")} | {"inside": r["inside"]} for r in rows
               if not parts or any(re.search(part, r["file"]) for part in parts)]
    count = len(out) + (given.count if given.count is not None else 0 if given.again else 100)
    for mutant in changes.draw(tree, parts, given.seed):
        if len(out) >= count:
            break
        if changes.key(mutant) not in known:
            out.append(mutant)
    return out


def follow(known, tree, commit):
    """Returns the results with each mutant as it is in the sources of `tree`, at `commit`. Mutants whose lines have been
    removed are left out. The entries of the list of equivalent mutants follow theirs."""
    files, out, listed = Moved(ROOT, tree), {}, report.EQUIVALENT.read_text()
    for r in known.values():
        now = r if r["commit"] == commit else files.find(r)
        if now:
            out[changes.key(now)] = {**r, **now, "commit": commit}
            if likeness(tokens(r["text"]), tokens(now["text"])) >= LIKE_ELSEWHERE: # else the reason may not hold
                listed = listed.replace(f"  {report.entry(r)}\n", f"  {report.entry(now)}\n")
        else:
            print(f"gone: {r['verdict']} {r['file']}:{r['line']}: {report.change(r)}: {r['text']}")
    report.EQUIVALENT.write_text(listed)
    return out


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=ROOT / "build-mutants")
    options.add_argument("--results", type=Path, default=ROOT / "tests" / "mutants.jsonl")
    options.add_argument("--count", type=int, help="new mutants: 100, with --again 0")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="regular expressions of paths of src, by commas")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants side by side")
    options.add_argument("--scale", type=float, default=1, help="of random tests (FXA_TEST_SCALE)")
    options.add_argument("--budget", type=float, default=60, help="seconds of tests for one mutant")
    options.add_argument("--longest", type=float, default=20, help="seconds of one test; of a longer one a tenth is run, or less")
    options.add_argument("--skip", default="", help="tests of names like this regular expression are not run")
    options.add_argument("--targets", default="tests/all", help="targets to build, by commas; with --skip fewer are enough")
    options.add_argument("--minutes", type=float, default=1e9, help="no mutant begins after that")
    options.add_argument("--again", nargs="?", const=",".join(report.MISSED), metavar="VERDICTS")
    options.add_argument("--move", action="store_true")
    options.add_argument("--resume", action="store_true", help="a run with the same options that was ended before its time")
    options.add_argument("--sanitize", action="store_true", help="address and undefined behaviour, as in make asan: slower")
    options.add_argument("--one", nargs=3, metavar=("FILE:LINE", "OLD", "NEW"))
    options.add_argument("--summary", action="store_true")
    options.add_argument("--page", action="store_true")
    given = options.parse_args()
    work, end = given.work.resolve(), time.monotonic() + 60 * given.minutes
    known = report.read(given.results)
    if given.summary:
        print(report.report(known.values()))
        return 0
    if given.page:
        report.write_page(known.values(), given.results.resolve())
        return 0
    commit = say(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"]).stdout.strip()
    if given.move:
        report.write(given.results, follow(known, ROOT, commit).values())
        return 0
    tree, build = (work / "tree", work / "build") if given.resume else prepare(work, given.targets.split(","))
    if any(r["commit"] != commit for r in known.values()):
        known = follow(known, tree, commit)
    schema, results = Schema(work, tree, build, given.jobs, given.sanitize), dict(known)
    mutants = {n: dict(m, was=changes.key(m)) for n, m in enumerate(chosen(given, tree, known), 1)}
    bad = schema.make(mutants) if not given.resume else ()
    judge = Judge(work, schema, build, given)
    judge.learn(len(mutants))
    for r in known.values():
        if r["by"]:
            judge.note(r)
    for n in bad:
        mutant = mutants.pop(n)
        results.pop(mutant["was"], None)
        results[changes.key(mutant)] = dict(mutant, verdict="uncompiled", by=None)
    log = work / "log.jsonl"
    for line in log.read_text().splitlines() if given.resume else ():
        r = json.loads(line)
        done = [n for n, m in mutants.items() if changes.key(m) == changes.key(r)]
        for n in done:
            results.pop(mutants.pop(n)["was"], None)
            results[changes.key(r)] = r
            judge.note(r)
    with log.open("a" if given.resume else "w") as log:
        for r in judge.judge_all(mutants, end):
            before = results.pop(r["was"], r)
            if given.skip and r["verdict"] == "unreached": # only some of the tests ran
                r["verdict"] = before.get("verdict", r["verdict"])
            r["first"] = before.get("first") if r["was"] in known else r["verdict"]
            results[changes.key(r)] = r
            log.write(json.dumps(r) + "\n")
            log.flush()
            print("%6.1f s %-10s %-26s %s:%d: %s" % (r["seconds"], r["verdict"], r["by"] or "", r["file"], r["line"],
                                                     report.change(r)), flush=True)
    for m in mutants.values():
        if changes.key(m) in results:
            results[changes.key(m)].update(commit=commit, judged=commit)
    if not given.one:
        report.write(given.results, results.values())
    print(report.report(results.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
