#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/transformers.md of the outcomes of `make hf` (tests/python/pytorch/hf_outcomes.json).

    tools/hf_table.py [--check]     --check: exit status 1 where the document is another one"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUTCOMES = os.path.join(HERE, "..", "tests", "python", "pytorch", "hf_outcomes.json")
DOCUMENT = os.path.join(HERE, "..", "docs", "transformers.md")
STAGES = ("forward", "gradients", "dynamic", "static")
WIDTH = 100

HEAD = """# Architectures of Hugging Face transformers

`make hf` makes a small model of each model type that transformers registers, with random weights, and compares
`attn_implementation="fxattn"` with eager attention in f32: outputs, gradients of all parameters, `generate()` with a dynamic
and with a static cache. The bar of a model is 16 times the effect of moving its parameters by 2^-20 of their size. Rows that
attend to nothing are 0 in both. This page is made of the results by `tools/hf_table.py`.

transformers %(transformers)s, torch %(torch)s: %(all)d of %(registered)d model types.
"""


def wrapped(names):
    lines, line = [], ""
    for name in names:
        if line and len(line) + len(name) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += ("" if not line else " ") + name + ","
    return "\n".join([*lines, line.rstrip(",")])


def group_of(outcome):
    """Returns the worst outcome of an architecture's stages."""
    if outcome["made"] != "made":
        return {"refused": "refused", "crash": "crash"}.get(outcome["made"], "not made")
    stages = [outcome[stage] for stage in STAGES if stage in outcome]
    for bad in ("wrong", "crash", "refused", "no call", "as sdpa"):
        if bad in stages:
            return bad
    return "equal" if "equal" in stages else "not made"


def page(results):
    found, groups = results["outcomes"], {}
    for kind, outcome in found.items():
        groups.setdefault(group_of(outcome), []).append(kind)
    rows = ["| outcome | model types | |", "|---|---:|---|"]
    for name, words in (("equal", "every stage that eager attention runs is equal"),
                        ("as sdpa", "equal to SDPA; the model's eager attention differs from both"),
                        ("wrong", "a stage differs"), ("crash", "an error that is not fxattn's"),
                        ("refused", "a `ValueError` or `TypeError` that names fxattn, mostly when the model is made"),
                        ("no call", "nothing in the model asks for attention"),
                        ("not made", "no small model or input was made by rule, or eager attention does not run")):
        rows.append("| %s | %d | %s |" % (name, len(groups.get(name, ())), words))
    counts = ["| stage | equal | wrong | crash | refused |", "|---|---:|---:|---:|---:|"]
    for stage, words in zip(STAGES, ("forward", "gradients", "generate, dynamic cache", "generate, static cache")):
        got = [outcome.get(stage) for outcome in found.values()]
        counts.append("| %s | %s |" % (words, " | ".join(str(got.count(x)) for x in ("equal", "wrong", "crash", "refused"))))
    parts = [HEAD % {**results, "all": len(found)}, "\n".join(rows), "", "\n".join(counts)]
    for name in ("wrong", "crash", "as sdpa", "refused", "no call", "equal", "not made"):
        if groups.get(name):
            parts += ["", "## %s" % name.capitalize(), "", wrapped(sorted(groups[name]))]
    return "\n".join(parts) + "\n"


def main():
    with open(OUTCOMES, encoding="utf-8") as file:
        made = page(json.load(file))
    if "--check" in sys.argv[1:]:
        with open(DOCUMENT, encoding="utf-8") as file:
            sys.exit(0 if file.read() == made else "docs/transformers.md is not what tools/hf_table.py makes of the outcomes")
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(made)


if __name__ == "__main__":
    main()
