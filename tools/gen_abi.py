#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what bindings must know of include/fxattn/ as JSON: constants, and of each struct the size, alignment
and the offset, size and type of its fields. Names come from the header as the preprocessor leaves it, numbers from a
program that the C compiler makes of them, so that nothing is counted here.

    gen_abi.py [--cc CC] [--out FILE]
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import public_header

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = os.path.join(ROOT, "include")
MACRO = re.compile(r"#define (FXA_(?:MAX|VERSION|WORKSPACE)\w*)[ \t]+\S")
FIELD = re.compile(r"^(?P<type>.*?[\s*])(?P<names>\w+(?:\[[^\]]*\])*(?:\s*,\s*\**\w+(?:\[[^\]]*\])*)*)$", re.S)


def preprocessed(cc):
    command = [cc, "-E", "-P", "-I", INCLUDE, "-x", "c", "-std=c11", "-"]
    text = subprocess.run(command, input="#include <fxattn/fxattn.h>\n", stdout=subprocess.PIPE, check=True,
                          universal_newlines=True).stdout
    return text[text.index("fxa_status {") - 100:]


def enumerators(text):
    """Every name of every enum of the header."""
    names = []
    for body in re.findall(r"\benum\s*\w*\s*\{([^{}]*)\}", text):
        names += [n for n in re.findall(r"(\w+)\s*=", body) if n.startswith("FXA_")]
    return names


def fields_of(body):
    """(name, type, dimensions) of each field of a struct."""
    for statement in filter(None, (" ".join(s.split()) for s in body.split(";"))):
        pointer = re.match(r".*\(\*(\w+)\)\(.*\)$", statement)
        if pointer:
            yield pointer.group(1), "pointer", ""
            continue
        match = FIELD.match(statement)
        base = match.group("type").strip()
        for name in re.split(r"\s*,\s*", match.group("names")):
            is_pointer = base.endswith("*") or name.startswith("*")
            bare = re.match(r"\**(\w+)", name).group(1)
            yield bare, "pointer" if is_pointer else base.replace("const ", ""), "".join(re.findall(r"\[[^\]]*\]", name))


def structs(text):
    for name, body in re.findall(r"typedef struct (fxa_\w+)\s*\{([^{}]*)\}\s*\1\s*;", text):
        yield name, list(fields_of(body))


def program(constants, layouts):
    out = ["#include <fxattn/fxattn.h>", "#include <stdio.h>", "#include <stddef.h>", "int main(void) {"]
    out += ['    printf("c %s %%lld\\n", (long long)%s);' % (name, name) for name in constants]
    for name, fields in layouts:
        out.append('    printf("s %s %%zu %%zu\\n", sizeof(%s), _Alignof(%s));' % (name, name, name))
        out += ['    printf("f %s %%zu %%zu\\n", offsetof(%s, %s), sizeof(((%s *)0)->%s));' % (f, name, f, name, f)
                for f, _, _ in fields]
    return "\n".join(out + ["    return 0;", "}", ""])


def measured(cc, source):
    with tempfile.TemporaryDirectory() as folder:
        c, binary = os.path.join(folder, "abi.c"), os.path.join(folder, "abi")
        with open(c, "w", encoding="utf-8") as f:
            f.write(source)
        subprocess.run([cc, "-std=c11", "-I", INCLUDE, c, "-o", binary], check=True)
        return subprocess.run([binary], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout


def abi(cc):
    text = preprocessed(cc)
    macros = [m for m in MACRO.findall(public_header.text()) if m != "FXA_VERSION_STRING"]
    constants = macros + [n for n in enumerators(text) if not n.endswith("_FORCE_INT32")]
    layouts = list(structs(text))
    types = {(s, f): (t, d) for s, fields in layouts for f, t, d in fields}
    result, current = {"constants": {}, "structs": {}}, None
    for kind, name, *numbers in (line.split() for line in measured(cc, program(constants, layouts)).splitlines()):
        if kind == "c":
            result["constants"][name] = int(numbers[0])
        elif kind == "s":
            current = name
            result["structs"][name] = {"size": int(numbers[0]), "align": int(numbers[1]), "fields": []}
        else:
            base, dimensions = types[current, name]
            result["structs"][current]["fields"].append(
                {"name": name, "type": base + dimensions, "offset": int(numbers[0]), "size": int(numbers[1])})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--out", help="file to write; default standard output")
    options = parser.parse_args()
    text = json.dumps(abi(options.cc), indent=1) + "\n"
    if not options.out:
        sys.stdout.write(text)
        return
    with open(options.out, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
