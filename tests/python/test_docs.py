# SPDX-License-Identifier: Apache-2.0
"""Python in the documents runs as it is printed: the blocks of a page one after the other, in one namespace; each block of
README.md in its own, since a reader takes one of them."""
import os
import re

import pytest

SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PAGES = ("README.md", os.path.join("docs", "python.md"), os.path.join("docs", "tracing.md"))


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as f:
        blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", f.read())
    assert blocks, "the page has no Python"
    for library in ("numpy", "torch", "transformers", "jax", "flax"):
        if any(re.search(r"\b(import|from) (fxattn\.)?%s\b" % library, block) for block in blocks):
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    for block in blocks:
        space = {"__name__": "page"} if page == "README.md" else space
        exec(compile(block, page, "exec"), space)
    assert "Traceback" not in capsys.readouterr().out
