#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: changes one thing of src/**/*.c at a time and runs the C tests that reach it.

    tools/mutants.py [--count 100] [--seed 1] [--folders cudnn,program] [--minutes M] [--work build-mutants]
    tools/mutants.py --again RESULTS           the survivors of RESULTS once more, with the tests of this tree
    tools/mutants.py --one FILE:LINE OLD NEW   one change by hand
    tools/mutants.py --summary                 the table of all results of WORK

WORK/tree is a clone of the working tree, changed in place and put back; WORK/build its build, where tests link a shared
library (cmake/mutants.cmake), so that a change costs one compilation and one link; WORK/covered.json the lines of src that
each test program runs, by gcov, and its seconds; WORK/mutants.jsonl one line per mutant. A mutant is tried against the
programs that run its line, in the order of past kills per second, at most --budget seconds of them.

Verdicts: killed (by which test), timeout (four times a test's CPU time; counts as killed), survived, unreached (no test runs
the line), same (the compiler makes the same code of it), uncompiled, gone (the text of --again is another by now). What WORK
has a result of is not drawn again. Survivors that tools/mutants_equivalent.txt lists with a reason count as equivalent;
tools/reliability.py --mutants RESULTS writes the table and the lists into docs/reliability.md."""
import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import reliability

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = {"compare": 20, "negate": 12, "remove": 14, "arith": 16, "constant": 14, "logic": 8, "swap": 7, "return": 5, "break": 4}
RELINKED = ("fxattn_checked", "test_dl", "test_system_refuses")

# ---- Changes ---------------------------------------------------------------------------------------------------------

# Comments, preprocessor lines and texts; and the arguments of asserts and messages, which are not changed either.
HIDDEN = re.compile(r"""/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""", re.S | re.M)
SILENT = re.compile(r"\b(?:FXA__ASSERT|FXA__HOLDS|_Static_assert|fxa__fail\w*|\w*printf)(?=\()")
FUNCTION = re.compile(r"^((?:\w+ )+\**)\w+\([^;{}]*\) \{(?: (.*) \}$|\n(.*?)^\})", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)([uUlLfF]*)(?![\w.\]}])")
STATEMENT = re.compile(r"""^\ +(?:(?:if|for|while)\ \(.*\)\ |else\ )?
    (\*?[a-z]\w*(?:(?:->|\.)\w+|\[[^]]*\])*\ (?:[-+*/%&|^]|<<|>>)?=\ [^{};]*|(?!return|sizeof)[a-z]\w*\([^{};]*\));$""",
                       re.M | re.X)
OTHER = dict(zip("< <= > >= == != + - * / % << >> & | ^ += -= *= /= %= <<= >>= &= |= ^= ++ -- && || true false".split(),
                 "<= < >= > != == - + / * / >> << | & | -= += /= *= /= >>= <<= |= &= |= -- ++ || && false true".split()))
WORD = re.compile(r"(?<=[ \n])(?:[-+*/%&|^]=?|(?:<<|>>)=?|[<>=!]=|[<>]|&&|\|\|)(?=[ \n])|\+\+|--|\b(?:true|false)\b")
SYMMETRIC = re.compile(r"min|max|add|mul|equal|same|memcmp")


def match(text, begin):
    """Returns the index behind the parenthesis that closes the one at begin."""
    depth = 0
    for found in re.finditer(r"[()]", text[begin:]):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return begin + found.end()
    return len(text)


def hide(text):
    """Returns the text, as long as it is, without what is not changed."""
    blank = lambda s: re.sub(r"[^\n]", "~", s)
    text = HIDDEN.sub(lambda m: blank(m.group()), text)
    for found in SILENT.finditer(text):
        begin, end = found.end(), match(text, found.end())
        text = text[:begin] + blank(text[begin:end]) + text[end:]
    return text


def prototypes(tree):
    """Returns the parameter types of every function of src, by name."""
    known = {}
    for path in sorted((tree / "src").rglob("*.[ch]")):
        for name, inside in re.findall(r"^[\w][\w \*]*?\b(\w+)\(([^()]*)\)\s*[;{]", hide(path.read_text()), flags=re.M):
            known[name] = [re.sub(r"\b\w+(\[\w*\])?$", r"\1", " ".join(p.split())).strip() for p in inside.split(",")]
    return known


def calls(text, known):
    """Yields swapped neighbours of one type among the arguments of calls."""
    for call in re.finditer(r"\b(\w+)\(", text):
        kinds, spans, begin, depth = known.get(call.group(1), []), [], call.end(), 0
        for at in range(call.end(), match(text, call.end() - 1)):
            depth += (text[at] in "([{") - (text[at] in ")]}")
            if depth < 0 or text[at] == "," and depth == 0:
                spans.append((begin + len(text[begin:at]) - len(text[begin:at].lstrip()), at))
                begin = at + 1
        if len(spans) != len(kinds) or SYMMETRIC.search(call.group(1)):
            continue
        for (b0, e0), (b1, e1), kind, other in zip(spans, spans[1:], kinds, kinds[1:]):
            if kind == other and text[b0:e0] != text[b1:e1]:
                yield "swap", b0, text[b0:e1], text[b1:e1] + text[e0:b1] + text[b0:e0]


def body_changes(text, returns, known):
    """Yields (kind, at, old, new) of a function's body."""
    for found in WORD.finditer(text):
        old = found.group()
        kind = "constant" if old.isalpha() else "logic" if old in ("&&", "||") else \
            "compare" if re.fullmatch(r"[<>]=?|[=!]=", old) else "arith"
        yield kind, found.start(), old, OTHER[old]
    for found in re.finditer(r"\b(?:if|while) (?=\()", text):
        old = text[found.end():match(text, found.end())]
        yield "negate", found.end(), old, f"(!{old})"
    for found in re.finditer(r"\b(?:break|continue)(?=;(\s+(?:case|default)\b)?)", text):
        falls = found.group(1) and found.group() == "break"
        yield "break", found.start(), found.group(), "__attribute__((fallthrough))" if falls else "(void)0"
    for found in STATEMENT.finditer(text):
        yield "remove", found.start(1), found.group(1), "(void)0"
    value = {"void": [""], "bool": [" true", " false"], "fxa_status": [" FXA_OK"]}.get(returns) or \
        ([" 0"] if re.search(r"int|size_t|float|double", returns) and "*" not in returns else [])
    for found in re.finditer(r"(?<=[;}]\n) +(?=[a-z*(])(?!case|default|else)", text):
        yield from (("return", found.end(), "", f"return{v}; ") for v in value)
    yield from calls(text, known)


def places(text, known):
    """Yields every change of one thing in a file, as (kind, at, old, new, whether in a function)."""
    hidden, inside = hide(text), []
    for found in FUNCTION.finditer(hidden):
        group = 2 if found.group(2) is not None else 3
        inside.append(found.span(group))
        returns = re.sub(r"\b(?:static|inline|const|_Noreturn) ", "", found.group(1)).strip()
        for kind, at, old, new in body_changes(found.group(group), returns, known):
            at += found.start(group)
            if "~" not in old + new: # else a text of its own is put back
                yield kind, at, old, new, True
            elif kind in ("negate", "remove"):
                old = text[at:at + len(old)]
                yield kind, at, old, f"(!{old})" if kind == "negate" else new, True
    for found in NUMBER.finditer(hidden):
        digits, suffix = found.groups()
        whole = not re.search(r"[.eE]", digits) or digits[:2] in ("0x", "0X")
        values = [int(digits, 0) + 1, int(digits, 0) - 1] if whole else [float(digits) + 1]
        for value in [value for value in values if value >= 0]:
            within = any(begin <= found.start() < end for begin, end in inside)
            yield "constant", found.start(), found.group(), str(value) + suffix, within


def draw(tree, folders, seed):
    """Yields changes without end of the files, drawn by their length and by kind; no place twice."""
    rng, known, seen = random.Random(seed), prototypes(tree), set()
    files = [p for p in sorted((tree / "src").rglob("*.c")) if not p.name.startswith("isa_")]
    files = [p for p in files if not folders or any(f in str(p.parent.relative_to(tree)) for f in folders)]
    if not files:
        sys.exit(f"mutants.py: no folder of src is named like {', '.join(folders)}")
    texts, found, misses = {p: p.read_text() for p in files}, {}, 0
    while misses < 2000:
        path = rng.choices(files, [texts[p].count("\n") for p in files])[0]
        if path not in found:
            found[path] = {}
            for kind, *change in places(texts[path], known):
                found[path].setdefault(kind, []).append(change)
        kinds = [k for k in WEIGHTS if k in found[path]]
        kind = rng.choices(kinds, [WEIGHTS[k] for k in kinds])[0] if kinds else None
        at, old, new, inside = rng.choice(found[path][kind]) if kind else (0, "", "", False)
        misses += 1
        if kind and (path, at) not in seen:
            seen.add((path, at))
            misses, line = 0, texts[path].count("\n", 0, at) + 1
            yield {"file": str(path.relative_to(tree)), "line": line, "at": at, "kind": kind, "old": old, "new": new,
                   "inside": inside, "text": texts[path].splitlines()[line - 1].strip()}


# ---- Build and tests -------------------------------------------------------------------------------------------------

def say(command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)


def prepare(work):
    """Clones the working tree, its changes included, and builds it. Ninja where it is found."""
    tree, build = work / "tree", work / "build"
    if not shutil.which("gcov"):
        sys.exit("mutants.py: gcov, which says what lines a test runs, was not found")
    commit = say(["git", "-C", ROOT, "stash", "create"]).stdout.strip() or \
        say(["git", "-C", ROOT, "rev-parse", "HEAD"]).stdout.strip()
    work.mkdir(parents=True, exist_ok=True)
    if not tree.exists():
        say(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, tree], check=True)
    say(["git", "-C", tree, "checkout", "--quiet", "--force", "--detach", commit], check=True)
    configure = ["cmake", "-S", tree, "-B", build, "-DFXA_PYTHON=OFF", "-DFXA_JULIA=OFF", "-DFXA_WERROR=OFF",
                 "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_PROJECT_INCLUDE={tree}/cmake/mutants.cmake"]
    configure += ["-G", "Ninja"] if not build.exists() and shutil.which("ninja") else []
    for command in (configure, ["cmake", "--build", build, "-j", os.cpu_count(), "--target", "tests/all"]):
        done = say(command)
        if done.returncode:
            sys.exit(f"mutants.py: {command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return tree, build


def run_test(test, limit, **env):
    """Returns (verdict, seconds of CPU, the line that names the failure); passed, skipped, failed or timeout."""
    def limits():
        for what, most in ((resource.RLIMIT_CPU, int(limit) + 1), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(what, (most, most))
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    begin = used()
    child = subprocess.Popen(test["command"], cwd=test["cwd"], env=dict(os.environ, **test["env"], **env), preexec_fn=limits,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said = child.communicate(timeout=10 * limit + 20)[0]
        verdict = {0: "passed", 77: "skipped", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}.get(child.returncode,
                                                                                                         "failed")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        said, verdict = child.communicate()[0], "timeout"
    lines = said.decode(errors="replace").splitlines()
    words = [line for line in lines if re.search(r"FAIL|fail|rror", line)] or lines[-1:]
    return verdict, used() - begin, words[0].strip()[:160] if words else f"exit {child.returncode}"


def counts_of(build):
    return [str(path) for path in (build / "CMakeFiles" / "fxattn_checked_objects.dir").rglob("*.gcda")]


def covered_lines(build, tree):
    """Returns {file: (hash of its text, bits of the lines that ran)} by the counts below the build."""
    out = {}
    for line in say(["gcov", "--json-format", "--stdout", *counts_of(build)]).stdout.splitlines():
        for entry in json.loads(line)["files"]:
            lines = sum({1 << row["line_number"] for row in entry["lines"] if row["count"]})
            file = re.search(r"(?:^|/)(src/\S+\.c)$", entry["file"])
            if lines and file:
                out[file.group(1)] = [hash_of(tree / file.group(1)), hex(lines)]
    return out


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def learn(work, tree, build, longest, skip):
    """Returns the C tests that pass, with seconds and lines. Runs those whose program is new or has changed."""
    kept = work / "covered.json"
    known, tests = json.loads(kept.read_text()) if kept.exists() else {}, []
    for t in json.loads(say(["ctest", "--show-only=json-v1"], cwd=build).stdout)["tests"]:
        command, properties = t.get("command"), {p["name"]: p["value"] for p in t.get("properties", [])}
        if not command or not command[0].startswith(str(build / "tests")) or skip and re.search(skip, t["name"]):
            continue # a script, or one to leave out
        test = {"name": t["name"], "command": command, "cwd": properties.get("WORKING_DIRECTORY", str(build)),
                "env": dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", [])), "hash": hash_of(Path(command[0]))}
        old = known.get(t["name"])
        if not old or any(old[key] != test[key] for key in ("hash", "command")):
            for scale in ("1", "0.1"):
                for path in counts_of(build):
                    os.remove(path)
                test["env"].setdefault("FXA_TEST_SCALE", scale)
                test["verdict"], test["seconds"], test["said"] = run_test(test, longest)
                test["lines"] = covered_lines(build, tree)
                if test["verdict"] != "timeout" or test["env"]["FXA_TEST_SCALE"] != scale:
                    break
                test["env"].pop("FXA_TEST_SCALE")
            old = known[t["name"]] = test
            kept.write_text(json.dumps(known))
            print(f"{test['seconds']:7.2f} s {test['verdict']:8} {test['name']}", flush=True)
        if old["verdict"] == "passed":
            tests.append(old)
    return tests


class Judge:
    def __init__(self, work, tree, build, tests, budget):
        self.work, self.tree, self.build, self.tests, self.budget = work, tree, build, tests, budget
        self.kills = {}

    def note(self, result):
        for place in (result["file"], os.path.dirname(result["file"])):
            self.kills[place, result["by"]] = self.kills.get((place, result["by"]), 0) + 1

    def reaching(self, mutant):
        """Returns the tests that run the line or one near it, which the compiler may count for it, or any of a file that has
        changed since; likeliest killers first."""
        def runs(test):
            known, lines = test["lines"].get(mutant["file"], (None, "0"))
            rows = ((2 << mutant["old"].count("\n") + 4) - 1) << max(mutant["line"] - 2, 0)
            return known and (known != self.hash or not mutant["inside"] or int(lines, 16) & rows)

        def chance(test):
            shared = set(re.split(r"[_/.]", mutant["file"])) & set(test["name"].split("_"))
            here, near = (self.kills.get((place, test["name"]), 0) for place in (mutant["file"], os.path.dirname(mutant["file"])))
            return (0.05 + len(shared) + 4 * here + 0.5 * near) / (test["seconds"] + 0.1)
        return sorted((t for t in self.tests if runs(t)), key=chance, reverse=True)

    def code(self, path, name):
        """Returns the object code of a file, optimised and without counts; None where it does not compile."""
        rows = json.loads((self.build / "compile_commands.json").read_text())
        row = next(r for r in rows if r["file"] == str(path) and "fxattn_checked_objects" in r["command"])
        words = re.sub(r"--coverage|-O1|-O3| -o \S+", "", row["command"]).split()
        done = say(words + ["-O2", "-w", "-o", name], cwd=row["directory"])
        return Path(name).read_bytes() if done.returncode == 0 else None

    def judge(self, mutant):
        path, begin = self.tree / mutant["file"], time.monotonic()
        original, at, end = path.read_text(), mutant["at"], mutant["at"] + len(mutant["old"])
        result = dict(mutant, verdict="survived", by=None, said=None, ran=0, left=0, seconds=0)
        if original[at:end] != mutant["old"]:
            return dict(result, verdict="gone")
        self.hash = hash_of(path)
        try:
            before = self.code(path, self.work / "before.o")
            path.write_text(original[:at] + mutant["new"] + original[end:])
            after = self.code(path, self.work / "after.o")
            if after is None or before == after:
                result["verdict"] = "uncompiled" if after is None else "same"
            else:
                self.run(result)
        finally:
            path.write_text(original)
        result["seconds"] = round(time.monotonic() - begin, 1)
        return result

    def run(self, result):
        """Builds the changed library and runs tests until one fails."""
        if say(["cmake", "--build", self.build, "-j1", "--target", *RELINKED]).returncode:
            result["verdict"] = "uncompiled"
            return
        spent, counts = 0, self.work / "counts"
        for test in self.reaching(result):
            if spent + test["seconds"] > self.budget:
                result["left"] += 1
                continue
            verdict, seconds, said = run_test(test, 4 * test["seconds"] + 3, GCOV_PREFIX=str(counts))
            spent += seconds
            result["ran"] += 1
            if verdict in ("failed", "timeout"):
                result.update(verdict="killed" if verdict == "failed" else "timeout", by=test["name"], said=said)
                self.note(result)
                break
        shutil.rmtree(counts, ignore_errors=True)
        if result["verdict"] == "survived" and not result["ran"]:
            result["verdict"] = "unreached"


# ---- The command -----------------------------------------------------------------------------------------------------

def by_hand(tree, given):
    """Returns the change that --one names: FILE:LINE OLD NEW, the first OLD of that line."""
    (file, line), old, new = given[0].rsplit(":", 1), given[1], given[2]
    text = (tree / file).read_text()
    at = text.find(old, sum(len(row) + 1 for row in text.split("\n")[:int(line) - 1]))
    if at < 0:
        sys.exit(f"mutants.py: {file} has no '{old}' from line {line} on")
    line = text.count("\n", 0, at) + 1
    return {"file": file, "line": line, "at": at, "kind": "one", "old": old, "new": new, "inside": True,
            "text": text.split("\n")[line - 1].strip()}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=ROOT / "build-mutants")
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folders", default="", help="parts of names of folders of src, by commas")
    options.add_argument("--budget", type=float, default=60, help="seconds of tests for one mutant")
    options.add_argument("--longest", type=float, default=20, help="seconds of one test; of a longer one a tenth is run, or none")
    options.add_argument("--skip", default="", help="tests of names like this regular expression are not run")
    options.add_argument("--minutes", type=float, default=1e9, help="no mutant begins after that")
    options.add_argument("--again", type=Path)
    options.add_argument("--one", nargs=3, metavar=("FILE:LINE", "OLD", "NEW"))
    options.add_argument("--summary", action="store_true")
    given = options.parse_args()
    work, end, done = given.work.resolve(), time.monotonic() + 60 * given.minutes, 0
    results, folders = work / "mutants.jsonl", [f for f in given.folders.split(",") if f]
    if given.summary:
        print(reliability.mutants_section(list(reliability.mutants_read(results).values())))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutants.py: ended")) # what was changed is put back
    tree, build = prepare(work)
    judge = Judge(work, tree, build, learn(work, tree, build, given.longest, given.skip), given.budget)
    known = reliability.mutants_read(results)
    for r in known.values():
        judge.note(r)
    if given.one:
        todo = iter([by_hand(tree, given.one)])
    elif given.again:
        todo = (r for r in reliability.mutants_read(given.again).values() if r["verdict"] in reliability.MISSED)
    else:
        todo = (m for m in draw(tree, folders, given.seed) if (m["file"], m["text"], m["at"], m["new"]) not in known)
    for mutant in todo:
        if done >= given.count or time.monotonic() > end:
            break
        r = judge.judge(mutant)
        done += r["verdict"] in reliability.SEEN + reliability.MISSED
        with results.open("a") as file:
            file.write(json.dumps(r) + "\n")
        print("%6.1f s %-10s %-26s %s:%d: %s" % (r["seconds"], r["verdict"], r["by"] or "", r["file"], r["line"],
                                                 reliability.mutant_text(r)), flush=True)
    say(["cmake", "--build", build, "-j1", "--target", *RELINKED])
    print(reliability.mutants_section(list(reliability.mutants_read(results).values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
