#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference: one page per front end, from the comments of the public headers and the docstrings of the package.

    tools/gen_reference.py            writes docs/reference/*.md
    tools/gen_reference.py --check    only compares; exit status 1 when a page is out of date

Headers are read as text and Python modules as syntax trees, so no front end has to be installed."""
import ast
import functools
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "docs", "reference")
WIDTH = 100
NOTE = "<!-- Made by tools/gen_reference.py: change the sources that it reads, then run it. -->\n"


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def headers():
    """Returns the names of the public headers: fxattn.h and the headers that it includes."""
    return ["fxattn.h"] + re.findall(r'(?m)^#include "(\w+\.h)"', read("include", "fxattn", "fxattn.h"))


# Text: what comments and docstrings have in common --------------------------------------------------------------------

def identifiers_as_code(text):
    """Returns `text` with backticks around names that have an underscore or a leading star, which Markdown would read
    as emphasis."""
    parts = re.split(r"(`[^`]*`)", text)
    name = r"(?<![\w/.:*-])(\*?\w*_\w+(?:\.(?:\w+))*(?:\(\))?|\*[a-z]\w*)(?![\w(*=])"
    parts[::2] = [re.sub(name, r"`\1`", one) for one in parts[::2]]
    return "".join(parts)


def wrap(text, first="", rest=""):
    text = identifiers_as_code(text)
    text = re.sub(r"(?<!\]\()(?<!/)docs/([\w-]+\.md)", r"[\1](../\1)", " ".join(text.split()))
    lines = textwrap.wrap(text, WIDTH - 1, initial_indent=first, subsequent_indent=rest,
                          break_long_words=False, break_on_hyphens=False)
    # Escapes -, + and * at the start of a line, which Markdown would read as a bullet.
    return "\n".join(lines[:1] + [re.sub(r"^( *)([-+*] )", r"\1\\\2", line) for line in lines[1:]])


NAMED = re.compile(r"((?:[A-Z][A-Z0-9_]+, )*[A-Z][A-Z0-9_]+(?: and the like)?): +(\S.*)")
ARGUMENTS = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?:: +|  +)(\S.*)")
COLUMNS = re.compile(r"([\w*][\w*,. ()/<>-]{0,24}?)   *(\S.*)")


def item_of(line, names):
    """Returns (bullet, text) of a line that starts a list item, else None. `names`: arguments that an item may
    describe."""
    if re.match(r"[-*] ", line):
        return "", line[2:].strip()
    told = ARGUMENTS.fullmatch(re.sub(r"^`([\w*, ]+)`(?=: )", r"\1", line))
    if told and all(name.strip(" *") in names for name in told.group(1).split(",")):
        return ", ".join("`%s`" % name.strip(" *") for name in told.group(1).split(",")) + ": ", told.group(2)
    told = NAMED.fullmatch(line)
    if told:
        return re.sub(r"[A-Z][A-Z0-9_]+", r"`\g<0>`", told.group(1)) + ": ", told.group(2)
    told = COLUMNS.fullmatch(line)
    return ("**%s** " % told.group(1), told.group(2)) if told and "  " in line else None


def as_markdown(text, names=()):
    """Returns a docstring or comment as Markdown. It may have paragraphs, lists and indented code. A list item starts
    with a hyphen, with NAME:, with `argument`: or with a name in a column of its own; indented lines below continue it.
    Other indented lines are code."""
    blocks = []  # [kind, bullet, text]
    for line in text.strip("\n").split("\n"):
        line = line.rstrip()
        last = blocks[-1] if blocks else ["blank", "", ""]
        item = item_of(line, names)
        if not line:
            blocks.append(["blank", "", ""])
        elif last[0] == "item" and line.startswith("  "):
            last[2] += " " + line.strip()
        elif line.startswith("    ") and last[0] in ("blank", "code"):
            blocks.append(["code", "", line])
        elif item:
            blocks.append(["item", *item])
        elif last[0] == "text" and not (line.startswith("    ") and last[2].endswith(":")):
            last[2] += " " + line.strip()
        else:
            blocks.append(["code" if line.startswith("    ") else "text", "", line if line.startswith("    ") else line.strip()])
    made, before = [], "blank"
    for i, (kind, bullet, words) in enumerate(blocks):
        if kind != "blank":
            if before not in ("blank", kind) or kind == "text":
                made.append("")
            title = kind == "text" and len(words) < 70 and words[-1:].isalnum() and i + 1 < len(blocks)
            made.append(words if kind == "code" else wrap(bullet + words, "- ", "  ") if kind == "item" else
                        "**%s**" % words if title else wrap(words))
        elif before not in ("blank",):
            made.append("")
        before = kind
    return re.sub(r"\n{3,}", "\n\n", "\n".join(made)).strip("\n")


# C ----------------------------------------------------------------------------------------------------------------------

def uncomment(comment):
    """Returns the text of a C comment without its delimiters."""
    text = re.sub(r"^/\*\s?|\s*\*/$", "", comment.strip())
    return "\n".join(re.sub(r"^ \* ?", "", line.rstrip()) for line in text.split("\n"))


def map_rows(code):
    """Returns (name, value, quoted text, comment) of each row of an X macro."""
    body = re.sub(r"\s*\\\n", "\n", code)
    rows = []
    for name, rest, comment in re.findall(r"X\((\w+), (.*?)\)[ \t]*(?:/\*(.*?)\*/)?(?=\s*(?:X\(|$))", body, re.S):
        values = re.findall(r'"(?:[^"\\]|\\.)*"|[^,\s]+', rest)
        texts = [value.strip('"') for value in values if value.startswith('"')]
        comment = " ".join(comment.replace("\n", " ").split())
        rows.append((name, values[0], "; ".join(one for one in (*texts, comment) if one)))
    return rows


def declared(code):
    """Returns the names that a part of a header declares, for its heading."""
    bare = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    found = re.findall(r"\b(fxa_\w+)\((?=[^*])", bare)
    found += re.findall(r"typedef (?:struct|enum) (fxa_\w+)", bare)
    found += re.findall(r"typedef \S+ \*?\(\*(fxa_\w+)\)", bare)
    found += re.findall(r"typedef \w+ (fxa_\w+);", bare)
    found += re.findall(r"#define (FXA_\w+)", bare)
    found += [] if found else re.findall(r"\b(FXA_\w+) =", bare)
    return [name for name in dict.fromkeys(found) if not re.search(r"_ENUM$|^FXA_SIZED$|_fn$", name) or name.endswith("_fn")]


def pieces(text):
    """Returns the list of (comment, code) of a section of a header. A comment belongs to all code up to the next
    comment."""
    text = re.sub(r"/\* clang-format (?:on|off) \*/\n", "", text)
    found = []
    for chunk in re.split(r"\n[ \t]*\n", text):
        at = re.split(r"(?m)^(/\*.*?\*/)[ \t]*$", "\n" + chunk.strip("\n"), flags=re.S)
        if at[0].strip():
            found.append(("", at[0].strip("\n")))
        found += [(at[i], at[i + 1].strip("\n")) for i in range(1, len(at), 2)]
    return found


def c_entry(comment, code):
    names = declared(code)
    title = ", ".join("`%s`" % name for name in names)
    title = title if len(title) < WIDTH - 4 else "`%s` to `%s`" % (names[0], names[-1])
    out = ["### %s\n" % title] if names else []
    if comment:
        out.append(as_markdown(uncomment(comment)) + "\n")
    if re.match(r"#define FXA_\w+_MAP\(X\)", code):
        out[:1] = ["### `%s`\n" % re.match(r"#define (\w+)", code).group(1)]
        out.append("| name | value | meaning |\n|---|---|---|")
        out += ["| `%s` | %s | %s |" % (name, value, about.replace("|", "\\|")) for name, value, about in map_rows(code)]
        return "\n".join(out) + "\n"
    code = re.sub(r"FXA_API (?:FXA_CHECKED )?", "", code)
    code = re.sub(r",?(\n *| )\w+_FORCE_INT32 = 0x7fffffff", "", code)
    if "_ENUM(name" in code:  # an enum that the X macro above generates
        code = re.sub(r"(?m)^#define .*_ENUM.*\n|^#undef.*\n|^.*_MAP\(.*_ENUM\)\n", "", code)
        code = code.replace("{\n", "{ /* one for each name of the table above */\n", 1)
    return "\n".join(out) + "\n```c\n%s\n```\n" % code.strip("\n")


def c_page():
    out = ["# C reference\n", NOTE, wrap("The public interface of [`<fxattn/fxattn.h>`](../c.md). A name in the first column of a "
           "table is written with a prefix: `FXA_CAUSAL`, `FXA_SLOT_Q`, `FXA_E_PROBLEM`.") + "\n"]
    for header in headers():
        text = read("include", "fxattn", header)
        top, body = text.split("#include", 1)[0], text
        about = uncomment(re.match(r"/\*.*?\*/", top, re.S).group(0)).split("\n", 2)[-1]
        out.append("## %s\n\n%s\n" % (header, as_markdown(about)))
        body = body.split("#include")[-1].split("\n", 1)[1]
        for conditional in (r"#ifdef __cplusplus.*?(?:#else\n(.*?))?#endif\n", r"/\*[^/]*?\*/\n#if defined\(__GNUC__\).*?()\n#endif\n(?=\n)"):
            body = re.sub("(?s)" + conditional, lambda m: m.group(1) or "", body)
        body = re.sub(r"(?s)\n#endif\s*$", "", body)
        sections = ["Basics"] + re.split(r"/\* ---- (.*?) -+ \*/\n", body)
        for i in range(0, len(sections), 2):
            if not pieces(sections[i + 1]):
                continue
            out.append("## %s\n" % sections[i])
            for comment, code in pieces(sections[i + 1]):
                if code or comment:
                    out.append(c_entry(comment, code) if code else as_markdown(uncomment(comment)) + "\n")
    return "\n".join(out)


# Python -----------------------------------------------------------------------------------------------------------------

def module_path(name):
    base = os.path.join("python", *name.split("."))
    package = os.path.join(base, "__init__.py")
    return package if os.path.exists(os.path.join(ROOT, package)) else base + ".py"


@functools.lru_cache(maxsize=None)
def tree_of(name):
    source = read(module_path(name))
    tree, lines = ast.parse(source), source.encode().splitlines(True)
    for node in ast.walk(tree):
        node.lines = lines
    return tree


def written(node):
    """Returns the source text of an expression. ast.unparse is not used, because it differs between Python versions."""
    lines = node.lines[node.lineno - 1:node.end_lineno]
    lines[-1] = lines[-1][:node.end_col_offset]
    lines[0] = lines[0][node.col_offset:]
    return " ".join(b"".join(lines).decode().split())


def public_names(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
    return []


def find(name, module, seen=()):
    """Returns the definition of a public name, in `module` or the module that it imports the name from; None if it is
    made at run time."""
    tree, package = tree_of(module), module_path(module).endswith("__init__.py")
    found = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name]
    if found:
        return found[-1]  # the last definition follows the overloads
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and any((a.asname or a.name) == name for a in node.names):
            parts = module.split(".")
            home = ".".join(parts[:len(parts) - node.level + package] + ([node.module] if node.module else []))
            if home not in seen and os.path.exists(os.path.join(ROOT, module_path(home))):
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                return find(original, home, (*seen, module))
    return None


def plain(annotation):
    return re.sub(r"\b(?:typing|_typing)\.", "", written(annotation))


def signature(function, name, method=False):
    """Returns the signature of a function, with one argument a line if it does not fit on one. Private arguments,
    *surplus and **unknown are left out."""
    spec, shown = function.args, []
    plain_args = spec.posonlyargs + spec.args
    defaults = [None] * (len(plain_args) - len(spec.defaults)) + list(spec.defaults)

    def one(arg, default):
        text = arg.arg + (": " + plain(arg.annotation) if arg.annotation and plain(arg.annotation) != "Any" else "")
        if default is not None:
            text += (" = " if ":" in text else "=") + written(default)
        return text
    shown += [one(arg, default) for arg, default in list(zip(plain_args, defaults))[1 if method else 0:]]
    if spec.kwonlyargs:
        shown.append("*")
    shown += [one(arg, default) for arg, default in zip(spec.kwonlyargs, spec.kw_defaults) if not arg.arg.startswith("_")]
    if spec.kwarg and spec.kwarg.arg in ("options", "kwargs"):
        shown.append("**" + spec.kwarg.arg)
    result = " -> " + plain(function.returns) if function.returns and plain(function.returns) != "Any" else ""
    line = "%s(%s)%s" % (name, ", ".join(shown), result)
    if len(line) <= WIDTH:
        return line
    return "%s(\n%s\n)%s" % (name, "\n".join("    %s," % one if one != "*" else "    *," for one in shown), result)


def argument_names(function):
    spec = function.args
    return {arg.arg for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg] if arg}


def has_decorator(function, *names):
    return any(written(one).split("(")[0].split(".")[-1] in names for one in function.decorator_list)


def py_entry(node, shown):
    if isinstance(node, ast.FunctionDef):
        about = as_markdown(ast.get_docstring(node) or "", argument_names(node))
        return "### `%s`\n\n```py\n%s\n```\n\n%s\n" % (shown, signature(node, shown), about)
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    init = next((one for one in methods if one.name == "__init__"), None)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    names = set(argument_names(init) if init else ()) | {one.target.id for one in fields}
    names |= {a for one in methods for a in argument_names(one)}
    out = ["### `%s`\n" % shown]
    bases = [written(base) for base in node.bases]
    if init and not any("Exception" in base or "Error" in base for base in bases):
        out.append("```py\n%s\n```\n" % signature(init, shown, True))
    elif fields:
        listed = ["    " + written(one) for one in fields if not one.target.id.startswith("_")]
        out.append("```py\nclass %s(%s):\n%s\n```\n" % (shown, ", ".join(bases), "\n".join(listed)))
    for text in (ast.get_docstring(node), ast.get_docstring(init) if init else None):
        if text:
            out.append(as_markdown(text, names) + "\n")
    for method in methods:
        if method.name.startswith("_") and method.name != "__call__" or has_decorator(method, "overload", "setter"):
            continue
        text = ast.get_docstring(method)
        if not text:
            continue
        if has_decorator(method, "property", "cached_property"):
            head = "`%s.%s`%s" % (node.name, method.name, " (%s)" % plain(method.returns) if method.returns else "")
        else:
            line = " ".join(signature(method, node.name + "." + method.name, True).split())
            head = "`%s`" % line.replace("( ", "(").replace(", )", ")")
        if len(head) > WIDTH - 6:
            head, code = "`%s.%s`" % (node.name, method.name), signature(method, node.name + "." + method.name, True)
            head += "**\n\n```py\n%s\n```" % code
        else:
            head += "**"
        out.append("**%s\n\n%s\n" % (head, as_markdown(text, argument_names(method))))
    return "\n".join(out)


def py_page(title, modules, about):
    out, shown = ["# %s\n" % title, NOTE, wrap(about) + "\n"], {}
    for module in modules:
        tree = tree_of(module)
        if len(modules) > 1:
            out.append("## %s\n" % module)
        out.append(as_markdown(ast.get_docstring(tree) or "") + "\n")
        for name in public_names(tree):
            node = find(name, module)
            if node in shown:
                out.append("### `%s.%s`\n\nThe same as `%s`.\n" % (module, name, shown[node]))
            elif node is not None:
                shown[node] = module + "." + name
                out.append(py_entry(node, module + "." + name if module != "fxattn" else "fxattn." + name))
            elif not name.startswith("_"):
                out.append("### `%s.%s`\n\n%s\n" % (module, name, constant_or_import(name, module)))
    return "\n".join(out)


def constant_or_import(name, module):
    """Returns the text for a public name that is a constant, or is imported from another library."""
    for node in tree_of(module).body:
        for one in ast.walk(node):
            if isinstance(one, ast.ImportFrom) and any((a.asname or a.name) == name for a in one.names):
                if not one.level:
                    return "PyTorch's `%s.%s`." % (one.module, name)
                home = module + "." + one.module if module_path(module).endswith("__init__.py") else \
                    module.rsplit(".", 1)[0] + "." + one.module
                return constant_or_import(name, home)
            if isinstance(one, (ast.Assign, ast.AnnAssign)):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                for target in targets:
                    named = [t.id for t in ast.walk(target) if isinstance(t, ast.Name)]
                    if name in named and one.value is not None:
                        value = one.value
                        if isinstance(value, ast.Tuple) and len(named) == len(value.elts):
                            value = value.elts[named.index(name)]
                        return "Constant, `%s`." % written(value)
    return "See its module."


PAGES = {
    "c.md": c_page,
    "numpy.md": lambda: py_page("NumPy reference", ("fxattn.numpy", "fxattn", "fxattn.trace"),
                                "[fxattn.numpy](../numpy.md), and the modules that all Python front ends share: `fxattn` "
                                "(programs, plans, errors, the cache) and `fxattn.trace` ([tracing](../tracing.md))."),
    "torch.md": lambda: py_page("PyTorch reference", ("fxattn.torch",),
                                "[fxattn.torch](../torch.md). What all Python front ends share is in [the reference of "
                                "NumPy](numpy.md)."),
    "jax.md": lambda: py_page("JAX reference", ("fxattn.jax", "fxattn.jax.flax", "fxattn.jax.nnx"),
                              "[fxattn.jax](../jax.md). What all Python front ends share is in [the reference of "
                              "NumPy](numpy.md)."),
}


def pages():
    """Returns {file name: text} of all pages."""
    return {name: re.sub(r"\n{3,}", "\n\n", make()).rstrip("\n") + "\n" for name, make in PAGES.items()}


def out_of_date():
    """Returns the file names of pages that are out of date with their sources."""
    return [name for name, text in pages().items()
            if not os.path.exists(os.path.join(FOLDER, name)) or read("docs", "reference", name) != text]


def main():
    if sys.argv[1:] == ["--check"]:
        old = out_of_date()
        if old:
            sys.exit("docs/reference is out of date (%s): run tools/gen_reference.py" % ", ".join(old))
        return
    os.makedirs(FOLDER, exist_ok=True)
    for name, text in pages().items():
        with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    main()
