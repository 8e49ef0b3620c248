"""The rule of lint.py about the order of evaluation: at most one argument of a call changes state on which results
depend. Compilers evaluate arguments in different orders, so two such arguments give a test other random numbers, or a
program other node numbers, with another compiler."""
import re

HIDDEN = re.compile(r"""/\*.*?\*/|//[^\n]*|^[ ]*\#(?:[^\n\\]|\\\n)*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""", re.S | re.M)
FUNCTION = re.compile(r"^(?:\w+[ *]+)+(\w+)\([^;{}]*\) \{(.*?)(?:^\}| \}$)", re.M | re.S)
NAME = re.compile(r"\b([A-Za-z_]\w*)\(")
# Folders, and functions that change the state: the random numbers of a test, the nodes of a program.
STATES = ((("tests", "fuzz", "bench"), "draw random numbers", {"t_next", "gen_byte"}),
          (("src",), "make nodes of a program", {"fxa__builder_intern"}))


def arguments(text, begin):
    """Returns the arguments of the call whose opening parenthesis ends at index `begin`."""
    out, depth, first = [], 0, begin
    for at in range(begin, len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth < 0 or (text[at] == "," and depth == 0):
            out.append(text[first:at])
            first = at + 1
        if depth < 0:
            break
    return out


def closure(seed, texts):
    """Returns the names of the functions in `texts` that call a function of `seed`, directly or not."""
    called = {}
    for text in texts:
        for name, body in FUNCTION.findall(text):
            called.setdefault(name, set()).update(NAME.findall(body))
    found, before = set(seed), None
    while before != len(found):
        before = len(found)
        found |= {name for name, names in called.items() if names & found}
    return found


def check(files):
    """Yields (path, line, text) for each call with two arguments that change the same state. files: {path relative to
    the root: text}."""
    for folders, what, seed in STATES:
        texts = {path: HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text) for path, text in files.items()
                 if path.split("/")[0] in folders}
        change = closure(seed, texts.values())
        for path, text in texts.items():
            for call in NAME.finditer(text):
                if call.group(1).isupper() or call.group(1) in ("if", "for", "while", "switch"):
                    continue
                if sum(bool(change & set(NAME.findall(a))) for a in arguments(text, call.end())) > 1:
                    yield path, text.count("\n", 0, call.start()) + 1, (
                        "two arguments of %s %s; the compiler chooses their order" % (call.group(1), what))
