# SPDX-License-Identifier: Apache-2.0
"""Functions that derive a program from another by editing its canonical text: they add statements, change storage
types, or fold the batch axis of jax.vmap. The caches of derived programs are bounded."""
import functools
import re
from typing import Mapping, Optional, Tuple

from .._program import Program

_DECLARATION = re.compile(r"^tensor (\w+) : (\w+)\[(\d+)\]$", re.M)
_NAME = re.compile(r"\w+\[?|\[")


@functools.lru_cache(maxsize=512)
def appended(program: Optional[Program], text: str, before: bool = False) -> Program:
    """Returns `program` with the statements `text` at its end or, with `before`, at its beginning."""
    parts = [text] if program is None else [text, program.text] if before else [program.text, text]
    return Program.from_text(parts)


def retyped(program: Program, types: Mapping[str, str]) -> Program:
    """Returns the program with the storage types of captured tensors changed to `types`, {name: storage type}."""
    changed = tuple((c.name, types[c.name]) for c in program.captures if types.get(c.name, c.dtype) != c.dtype)
    return _retyped(program, changed) if changed else program


@functools.lru_cache(maxsize=512)
def _retyped(program: Program, types: Tuple[Tuple[str, str], ...]) -> Program:
    known = dict(types)
    text = _DECLARATION.sub(lambda m: "tensor %s : %s[%s]" % (m[1], known.get(m[1], m[2]), m[3]), program.text)
    return Program.from_text(text, kind=program.kind)


@functools.lru_cache(maxsize=512)
def scaled_bprop(program: Program, name: str) -> Program:
    """Returns backward program `program` for scores that are multiplied by the float param `name` first. In the
    returned program, (score * name) replaces score, and dscore is multiplied by the param `name`."""
    text = re.sub(r"\bscore\b", "(score * %s)" % name, program.text)
    return Program.from_text("param %s : float\n%s\ndscore = dscore * %s" % (name, text, name), kind="bprop")


@functools.lru_cache(maxsize=512)
def folded(program: Program, batch: int, spread: Tuple[str, ...]) -> Program:
    """Returns the program for a batch axis into which a mapped axis was merged: [V,B] as V * B, with B = `batch`. b is
    replaced by b % B, and captured tensors named in `spread` get the leading index b // B."""
    def declared(m: "re.Match[str]") -> str:
        return "tensor %s : %s[%d]" % (m[1], m[2], int(m[3]) + (m[1] in spread))

    def used(m: "re.Match[str]") -> str:
        if m[0] == "b":
            return "(b %% %d)" % batch
        if m[0][:-1] in spread and m[0].endswith("["):
            follows = text[m.end():m.end() + 1]
            return "%sb // %d%s" % (m[0], batch, "" if follows == "]" else ", ")
        return m[0]

    lines = []
    for text in program.text.split("\n"):
        lines.append(_DECLARATION.sub(declared, text) if _DECLARATION.match(text) else _NAME.sub(used, text))
    return Program.from_text("\n".join(lines), kind=program.kind)
