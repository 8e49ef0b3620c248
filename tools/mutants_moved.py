# SPDX-License-Identifier: Apache-2.0
"""Finds mutants of an older commit in the present sources: follows renamed files, and lines whose identifiers or
comments have changed. Used by tools/mutants.py."""
import difflib
import re
import subprocess
from pathlib import Path

import mutants_changes as changes

TOKEN = re.compile(r"\w+|[^\w\s]")
WORD = re.compile(r"(?!(?:true|false|return|if|else|for|while|break|continue|case|const|sizeof|void|int|bool)$)[A-Za-z_]\w*$")
COMMENT = re.compile(r"\s*(?:/\*.*?(?:\*/|$)|//.*)")
NEAR = (-3, -2, -1, 1, 2, 3) # neighbours of a line that are compared too
LIKE, LIKE_ELSEWHERE = 0.65, 0.8 # least likeness of a line in the renamed file; in any other file of src
SHORT = 8 # tokens; shorter lines are not searched in other files


def tokens(row):
    return TOKEN.findall(COMMENT.sub("", row))


def likeness(mine, theirs):
    """Returns how alike two lists of tokens are, from 0 to 1."""
    return difflib.SequenceMatcher(None, mine, theirs, autojunk=False).ratio() if mine or theirs else 1.0


def pairs(mine, theirs):
    """Returns ({index of a token: index of its counterpart}, {word: renamed word}) of two lists of tokens."""
    where, names = {}, {}
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        if tag in ("equal", "replace") and i1 - i0 == j1 - j0:
            where.update(zip(range(i0, i1), range(j0, j1)))
            names.update((a, b) for a, b in zip(mine[i0:i1], theirs[j0:j1]) if WORD.match(a) and WORD.match(b))
    return where, names


class Moved:
    """The files of src in `tree` beside those of the commits that mutants name. `root` is a repository with these
    commits."""

    def __init__(self, root, tree):
        self.root, self.tree, self.renamed, self.before, self.now = root, tree, {}, {}, {}
        for path in changes.sources(tree, []):
            text = path.read_text()
            rows = [tokens(row) for row in text.split("\n")]
            self.now[str(path.relative_to(tree))] = text, rows, [frozenset(row) for row in rows]

    def git(self, *words):
        return subprocess.run(["git", "-C", str(self.root), *words], capture_output=True, text=True, check=True).stdout

    def names(self, commit, file):
        """Returns the path in `commit` and the present path of a file that had the path `file` at or after `commit`.
        Renames are followed commit by commit."""
        if commit not in self.renamed:
            chains = self.renamed[commit] = []
            for line in self.git("log", "--reverse", "-M40%", "--name-status", "--format=", f"{commit}..HEAD", "--", "src").splitlines():
                status, *paths = line.split("\t")
                if status.startswith("R"):
                    chain = next((chain for chain in chains if chain[-1] == paths[0]), None) or chains.append(paths[:1]) or chains[-1]
                    chain.append(paths[1])
        chain = next((chain for chain in self.renamed[commit] if file in chain), [file])
        return chain[0], chain[-1]

    def rows(self, commit, file):
        """Returns the tokens of each line of a file of `commit`."""
        if (commit, file) not in self.before:
            there = self.git("ls-tree", commit, "--", file)
            text = self.git("show", f"{commit}:{file}") if there else ""
            self.before[commit, file] = [tokens(row) for row in text.split("\n")]
        return self.before[commit, file]

    def candidates(self, mutant):
        """Yields lists of (likeness of line and neighbours, path, line) of present lines that resemble the mutant's line:
        the equal lines of its file, the most alike of its file and of other files, the others of its file."""
        before, name = self.names(mutant["commit"], mutant["file"])
        old, at, mine = self.rows(mutant["commit"], before), mutant["line"] - 1, tokens(mutant["text"])

        def rank(path, line, like):
            rows = self.now[path][1]
            near = [likeness(old[at + n], rows[line + n]) for n in NEAR if 0 <= at + n < len(old) and 0 <= line + n < len(rows)]
            return 2 * like + sum(near) / max(len(near), 1), path, line

        def search(path, least):
            _, rows, sets = self.now[path]
            for line, theirs in enumerate(rows):
                short, long = sorted((len(mine), len(theirs)))
                if 2 * short < least * (short + long) or 3 * len(sets[line] & set(mine)) < len(set(mine)):
                    continue
                like = likeness(mine, theirs)
                if like >= least:
                    yield rank(path, line, like)
        if name in self.now:
            yield [rank(name, line, 1) for line, theirs in enumerate(self.now[name][1]) if theirs == mine]
            yield search(name, LIKE_ELSEWHERE)
        others = [path for path in self.now if path != name and Path(path).suffix == Path(name).suffix and len(mine) >= SHORT]
        yield [found for path in others for found in search(path, LIKE_ELSEWHERE)]
        if name in self.now:
            yield search(name, LIKE)

    def find(self, mutant):
        """Returns a mutant adapted to the present sources; None if no line resembles its line."""
        if not mutant.get("commit"):
            return None
        for some in self.candidates(mutant):
            for _, path, line in sorted(some, reverse=True)[:3]:
                adapted = self.adapt(mutant, path, line)
                if adapted:
                    return adapted
        return None

    def adapt(self, mutant, path, line):
        """Returns the mutant in a given line; None if the line has no counterpart of the changed text."""
        text = self.now[path][0]
        row = text.split("\n")[line]
        where, names = pairs(tokens(mutant["text"]), tokens(row))
        rename = lambda part: re.sub(r"\w+", lambda m: names.get(m.group(), m.group()), part)
        first = len(tokens(mutant["text"][:mutant["column"]]))
        spans = [found.span() for found in TOKEN.finditer(COMMENT.sub(lambda m: " " * len(m.group()), row))]
        if where.get(first, len(spans)) >= len(spans):
            return None
        begin = sum(len(other) + 1 for other in text.split("\n")[:line])
        at, old, new = begin + spans[where[first]][0], rename(mutant["old"]), rename(mutant["new"])
        last = where.get(first + len(tokens(mutant["old"])) - 1, -1)
        if mutant["kind"] in ("negate", "remove") and where[first] <= last < len(spans):
            old = text[at:begin + spans[last][1]]
            new = f"(!{old})" if mutant["kind"] == "negate" else new
        if text[at:at + len(old)] != old or old == new:
            return None
        return changes.named(path, text, at, mutant["kind"], old, new, mutant["inside"])
