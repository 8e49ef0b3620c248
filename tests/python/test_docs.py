# SPDX-License-Identifier: Apache-2.0
"""Python in the documents runs as it is printed. Blocks of a reference page run one after the other, in one namespace. In README.md
and docs/guide, a block that imports something begins an example of its own, which the blocks below continue; an example is
skipped where its library is missing."""
import glob
import os
import re

import pytest

SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LIBRARIES = ("numpy", "torch", "transformers", "jax", "flax")


def blocks_of(page):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as f:
        return re.findall(r"(?ms)^```python\n(.*?)^```$", f.read())


def examples_of(page):
    """Returns lists of blocks that share a namespace."""
    found = []
    for block in blocks_of(page):
        starts = re.match(r"(import|from) ", block) and page.startswith(("README", os.path.join("docs", "guide")))
        if starts or not found:
            found.append([])
        found[-1].append(block)
    return found


def all_examples():
    pages = [glob.glob(os.path.join(SOURCE, *where)) for where in (("README.md",), ("docs", "*.md"), ("docs", "guide", "*.md"))]
    for path in (path for paths in pages for path in sorted(paths)):
        page = os.path.relpath(path, SOURCE)
        for number, blocks in enumerate(examples_of(page), 1):
            yield pytest.param(page, blocks, id="%s-%d" % (page, number))


@pytest.mark.parametrize("page, blocks", list(all_examples()))
def test_blocks_run(page, blocks, tmp_path, monkeypatch, capsys):
    for library in LIBRARIES:
        if any(re.search(r"\b(import|from) (fxattn\.)?%s\b" % library, block) for block in blocks):
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), space)
    assert "Traceback" not in capsys.readouterr().out
