# SPDX-License-Identifier: Apache-2.0
"""Draws mutants at random. A mutant is one small change of the text of a source file. Used by tools/mutants.py."""
import random
import re
import sys

WEIGHTS = {"compare": 20, "negate": 12, "remove": 14, "arith": 16, "constant": 14, "logic": 8, "swap": 7, "return": 5, "break": 4}

# Comments, preprocessor lines and texts are not changed, nor are the arguments of asserts and messages.
HIDDEN = re.compile(r"""/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""", re.S | re.M)
SILENT = re.compile(r"\b(?:FXA__ASSERT|FXA__HOLDS|_Static_assert|fxa__fail\w*|\w*printf)(?=\()")
FUNCTION = re.compile(r"^((?:\w+ )+\**)(?:KERN_NAME\()?\w+\)?\([^;{}]*\) \{(?: ([^\n]*) \}$|\n(.*?)^\})", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)([uUlLfF]*)(?![\w.\]}])")
STATEMENT = re.compile(r"""^\ +(?:(?:if|for|while)\ \(.*\)\ |else\ )?
    (\*?[a-z]\w*(?:(?:->|\.)\w+|\[[^]]*\])*\ (?:[-+*/%&|^]|<<|>>)?=\ [^{};]*|(?!return|sizeof)[a-z]\w*\([^{};]*\));$""",
                       re.M | re.X)
OTHER = dict(zip("< <= > >= == != + - * / % << >> & | ^ += -= *= /= %= <<= >>= &= |= ^= ++ -- && || true false".split(),
                 "<= < >= > != == - + / * / >> << | & | -= += /= *= /= >>= <<= |= &= |= -- ++ || && false true".split()))
WORD = re.compile(r"(?<=[ \n])(?:[-+*/%&|^]=?|(?:<<|>>)=?|[<>=!]=|[<>]|&&|\|\|)(?=[ \n])|\+\+|--|\b(?:true|false)\b")
SYMMETRIC = re.compile(r"min|max|add|mul|equal|same|memcmp|alloc_array")


def match(text, begin):
    """Returns the index after the parenthesis that closes the one at index `begin`."""
    depth = 0
    for found in re.finditer(r"[()]", text[begin:]):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return begin + found.end()
    return len(text)


def hide(text):
    """Returns the text with the same length, in which parts that mutants must not change are replaced by ~."""
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
    """Yields the changes that swap two neighbouring arguments of the same type in a call."""
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
    """Yields the changes (kind, index, old text, new text) of a function body."""
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


def bodies(hidden):
    """Yields the match of each function and the group that is its body."""
    for found in FUNCTION.finditer(hidden):
        yield found, 2 if found.group(2) is not None else 3


def places(path, text, known):
    """Yields every possible mutant of a file as (kind, index, old text, new text, True if in a function). All text of
    CUDA kernels counts as outside of functions, because the tests compile it."""
    hidden, inside = hide(text), []
    if path.suffix in (".cu", ".cuh"):
        yield from ((*change, False) for change in body_changes(hidden, "", known) if "~" not in change[2])
    for found, group in bodies(hidden) if path.suffix in (".c", ".h", ".inc") else ():
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
            if within or path.suffix != ".h": # tests have a header's constants compiled in
                yield "constant", found.start(), found.group(), str(value) + suffix, within


def named(file, text, at, kind, old, new, inside=True):
    """Returns the dictionary of a mutant. It has the text of the line, the column, and the number of equal lines above,
    with which place() finds the mutant in a file that has changed elsewhere."""
    rows, begin = text.split("\n"), text.rfind("\n", 0, at) + 1
    line = text.count("\n", 0, at)
    row = rows[line].strip()
    return {"file": file, "line": line + 1, "text": row, "column": at - begin - len(rows[line]) + len(rows[line].lstrip()),
            "above": sum(other.strip() == row for other in rows[:line]), "kind": kind, "old": old, "new": new,
            "inside": inside}


def place(mutant, text):
    """Returns the index in `text` of the text that a mutant replaces; None if its line has changed or is missing."""
    left = mutant["above"]
    for found in re.finditer(r"^[ ]*(.*?)[ ]*$", text, re.M):
        if found.group(1) == mutant["text"]:
            at = found.start(1) + mutant["column"]
            if left == 0:
                return at if text[at:at + len(mutant["old"])] == mutant["old"] else None
            left -= 1
    return None


def key(mutant):
    return tuple(mutant[part] for part in ("file", "text", "above", "column", "old", "new"))


def sources(tree, only):
    """Returns the files of src from which mutants are drawn; with `only`, those whose path matches a pattern in it.
    Excludes ptx*.cuh, which the tests replace, and tables and generated files (engine/cpu/kernels/*.c, helper_kernels*)."""
    files = [p for p in sorted((tree / "src").rglob("*.*")) if p.suffix in (".c", ".h", ".inc", ".cu", ".cuh") and
             not re.match(r"ptx|helper_kernels", p.name) and not p.match("cpu/kernels/*.c")]
    files = [p for p in files if not only or any(re.search(part, str(p.relative_to(tree))) for part in only)]
    if not files:
        sys.exit(f"mutants.py: no file of src is named like {', '.join(only)}")
    return files


def draw(tree, only, seed):
    """Yields different random mutants of the sources. Files are weighted by their lines of code, and kinds by
    WEIGHTS."""
    rng, known, seen, files = random.Random(seed), prototypes(tree), set(), sources(tree, only)
    texts, found, misses = {p: p.read_text() for p in files}, {}, 0
    code = [len(re.findall(r"^.*[^\s~].*$", hide(texts[p]), re.M)) for p in files]
    while misses < 2000:
        path = rng.choices(files, code)[0]
        if path not in found:
            found[path] = {}
            for kind, *change in places(path, texts[path], known):
                found[path].setdefault(kind, []).append(change)
        kinds = [k for k in WEIGHTS if k in found[path]]
        kind = rng.choices(kinds, [WEIGHTS[k] for k in kinds])[0] if kinds else None
        at, old, new, inside = rng.choice(found[path][kind]) if kind else (0, "", "", False)
        misses += 1
        if kind and (path, at) not in seen:
            seen.add((path, at))
            misses = 0
            yield named(str(path.relative_to(tree)), texts[path], at, kind, old, new, inside)


def by_hand(tree, place_of, old, new):
    """Returns the mutant that --one names: FILE:LINE OLD NEW, the first OLD from that line on."""
    file, line = place_of.rsplit(":", 1)
    text = (tree / file).read_text()
    at = text.find(old, sum(len(row) + 1 for row in text.split("\n")[:int(line) - 1]))
    if at < 0:
        sys.exit(f"mutants.py: {file} has no '{old}' from line {line} on")
    return named(file, text, at, "one", old, new)
