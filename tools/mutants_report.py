# SPDX-License-Identifier: Apache-2.0
"""Reads the results of mutants and makes docs/reliability-mutants.md from them. Used by tools/mutants.py."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mutants_changes as changes
import reliability

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability-mutants.md"
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.txt"
KEPT = ("file", "line", "text", "above", "column", "kind", "old", "new", "verdict", "by", "commit", "judged", "first")
SEEN, MISSED = ("killed", "timeout"), ("survived", "unreached")
VERDICTS = ("killed", "timeout", "survived", "unreached", "equivalent", "same", "uncompiled")


def read(path):
    """Returns {key of the mutant: result} of a results file, which has one result per line; empty if it does not
    exist."""
    rows = [{"inside": True, **json.loads(line)} for line in path.read_text().splitlines()] if path.exists() else []
    return {changes.key(r): {"judged": r["commit"], **r} for r in rows}


def write(path, results):
    rows = [{k: r.get(k) for k in KEPT if k != "first" or r.get(k)} | ({} if r["inside"] else {"inside": False}) for r in results]
    path.write_text("".join(json.dumps(r) + "\n" for r in sorted(rows, key=changes.key)))


def change(r):
    """Returns what a mutant changes, on one line."""
    return " -> ".join(" ".join(r[key].split()) or "nothing" for key in ("old", "new"))


def entry(r):
    """Returns the line of a mutant in the list of equivalent mutants."""
    return f"{r['file']}: {change(r)}: {r['text']}"


def with_reasons(rows):
    """Returns (rows, unused): the rows with verdict "equivalent" for those that tools/mutants_equivalent.txt lists, and
    the entries of this list that match no row."""
    out, used, reasons = [], set(), reliability.read_reasons(EQUIVALENT)
    for r in rows:
        fits = [i for i, (_, path, part) in enumerate(reasons)
                if r["verdict"] in MISSED and f"{path}: {part}" == entry(r)]
        used.update(fits)
        out.append(dict(r, verdict="equivalent", reason=reasons[fits[0]][0]) if fits else r)
    return out, [entry for i, entry in enumerate(reasons) if i not in used]


def table(rows):
    text = [f"| folder | mutants | seen | {' | '.join(VERDICTS)} |", "|---" * (3 + len(VERDICTS)) + "|"]
    for folder in sorted({os.path.dirname(r["file"]) for r in rows}) + ["all"]:
        mine = [r["verdict"] for r in rows if folder in (os.path.dirname(r["file"]), "all")]
        seen, missed = (sum(verdict in some for verdict in mine) for some in (SEEN, MISSED))
        text.append("| %s | %d | %s | %s |" % (folder, seen + missed, reliability.percent(seen, seen + missed),
                                               " | ".join(str(mine.count(verdict)) for verdict in VERDICTS)))
    return text


def line(cells):
    """Returns a line of a table of Markdown."""
    return "| %s |" % " | ".join(cell.replace("|", "\\|") for cell in cells)


def report(results):
    """Returns the table of verdicts by folder, and the lists of survived, unreached and equivalent mutants, as text."""
    rows, unused = with_reasons(results)
    for _, name, part in unused:
        print(f"mutants.py: tools/mutants_equivalent.txt has an entry that fits no survivor: {name}: {part}", file=sys.stderr)
    text = table(rows)
    for verdict, about in (("survived", "no test fails"), ("unreached", "no test runs the changed statement"),
                           ("equivalent", "no result can change")):
        some = sorted((r for r in rows if r["verdict"] == verdict), key=lambda r: (r.get("reason", ""), r["file"], r["line"]))
        if some:
            text += ["", f"**{len(some)} mutant{'s' * (len(some) != 1)} with the verdict {verdict}: {about}**", ""]
            reasons = verdict == "equivalent"
            text += [line(["line", "change", "statement"] + ["reason"] * reasons), "|" + "---|" * (3 + reasons)]
            text += [line([f"{r['file']}:{r['line']}", f"`{change(r)}`", f"`{r['text']}`"] + ([r["reason"]] if reasons else []))
                     for r in some]
    return "\n".join(text)


def first_trial(results):
    """Returns a sentence about the verdicts that mutants had when they were drawn (the value "first" of a result)."""
    rows, _ = with_reasons(dict(r, verdict=r["first"]) for r in results if r.get("first"))
    parts = []
    for kind, pattern in (("host code", r"\.(c|h|inc)$"), ("CUDA kernels", r"\.cuh?$")):
        mine = [r["verdict"] for r in rows if re.search(pattern, r["file"])]
        seen, missed = (sum(verdict in some for verdict in mine) for some in (SEEN, MISSED))
        if seen + missed:
            parts.append(f"{reliability.percent(seen, seen + missed)} of {seen + missed} mutants in {kind}")
    if not parts:
        return "The results contain no such verdicts."
    return "Before tests for surviving mutants were added, the tests detected\n" + " and\n".join(parts) + "."


def write_page(results, source):
    source = os.path.relpath(source, ROOT)
    commits, judged = (" or ".join(sorted({r[key] for r in results if r.get(key)})) for key in ("commit", "judged"))
    kinds = " and ".join(sorted({f"`{os.path.splitext(r['file'])[1]}`" for r in results}))
    text = f"""# Mutants

Written by `tools/mutants.py --page` from {source}. No part of this page is written by hand.

A mutant is a copy of the source with one random change: another operator, another constant, a
negated condition, a removed assignment, or two arguments in exchanged places. `make mutants` draws
mutants from `src` in proportion to the lines of its files, and runs the C tests that reach the
changed statement.

| verdict | meaning |
|---|---|
| killed | a test fails, so the tests detect the mutant |
| timeout | a test takes four times its usual time, so the tests detect the mutant |
| survived | no test fails: a test is missing, or the change costs only time |
| unreached | no test runs the changed statement |
| equivalent | no result can change, for a reason given in `tools/mutants_equivalent.txt` |
| same | the compiler makes the same code as without the change |
| uncompiled | the mutant does not compile |

Mutants with the verdicts killed, timeout, survived and unreached are counted in the column
"mutants". The column "seen" is the share of the counted mutants that the tests detect. Line numbers
are those of commit {commits}. Each mutant was tested with the tests of
commit {judged}. Mutants were drawn from files
whose names end in {kinds}.

Tests are added for mutants that survive, so the table may overstate the share of changes that the
tests detect. The verdicts of mutants when they were drawn, before such tests were added, do not
overstate the share of changes that the tests detect.
{first_trial(results)}

"""
    PAGE.write_text(text + report(results) + "\n")
