#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the ABI data of include/fxattn/ that bindings need: constants; sizes, alignments and fields (offset, size,
type) of structs; types of functions. The format is JSON, the Python module fxattn._abi or the Julia module LibFXA.
Names come from the preprocessed header. Numbers come from a program that the C compiler compiles, so this script
computes no layouts.

    gen_abi.py [--cc CC] [--format json|python|julia] [--out FILE]
"""
import argparse
import json
import keyword
import os
import re
import subprocess
import sys
import tempfile

import public_header

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = os.path.join(ROOT, "include")
MACRO = re.compile(r"#define (FXA_(?:MAX|VERSION|WORKSPACE)\w*)[ \t]+\S")
VERSION = re.compile(r'#define FXA_VERSION_STRING "([^"]+)"')
FUNCTION = re.compile(r'visibility\("default"\)\)\)(?:\s*__attribute__\(\(\w+\)\))?([^;()]*?)\b(fxa_\w+)\(([^;]*)\);')
# Names of ctypes by C type. Pointers are addresses, except const char *; enums have the size that their last enumerator
# forces.
CTYPES = {"char": "char", "double": "double", "int": "int", "int32_t": "int32", "int64_t": "int64", "uint8_t": "uint8",
          "uint32_t": "uint32", "uint64_t": "uint64", "size_t": "size_t", "fxa_value": "int32"}
FIELD = re.compile(r"^(?P<type>.*?[\s*])(?P<names>\w+(?:\[[^\]]*\])*(?:\s*,\s*\**\w+(?:\[[^\]]*\])*)*)$", re.S)


def preprocessed(cc):
    command = [cc, "-E", "-P", "-I", INCLUDE, "-x", "c", "-std=c11", "-"]
    text = subprocess.run(command, input="#include <fxattn/fxattn.h>\n", stdout=subprocess.PIPE, check=True,
                          universal_newlines=True).stdout
    return text


def enumerators(text):
    """Returns the names of all enumerators in the header."""
    names = []
    for body in re.findall(r"\benum\s*\w*\s*\{([^{}]*)\}", text):
        names += [n for n in re.findall(r"(\w+)\s*=", body) if n.startswith("FXA_")]
    return names


def fields_of(body):
    """Yields (name, type, dimensions) of each field of a struct, from the text between its braces."""
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
            dimensions = "".join(re.findall(r"\[[^\]]*\]", name))
            yield bare, "pointer" if is_pointer else base.replace("const ", ""), dimensions


def structs(text):
    for name, body in re.findall(r"typedef struct (fxa_\w+)\s*\{([^{}]*)\}\s*\1\s*;", text):
        yield name, list(fields_of(body))


def type_of(declaration):
    """Returns the type of a parameter or result: "pointer", "text" (const char *) or the name of the C type."""
    declaration = " ".join(declaration.split())
    if re.match(r"const char ?\*$|const char ?\*\w+$", declaration):
        return "text"
    if "*" in declaration or "[" in declaration:
        return "pointer"
    return declaration.replace("const ", "").split(" ")[0]


def functions(text):
    """Yields [name, result type, parameter types] of each function in the header."""
    for result, name, parameters in FUNCTION.findall(text):
        parameters = " ".join(parameters.split())
        types = [] if parameters == "void" else [type_of(p) for p in parameters.split(", ")]
        yield name, type_of(result.strip()), types


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
    result, current = {"version": VERSION.search(public_header.text()).group(1), "constants": {}, "structs": {}}, None
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
    result["functions"] = [list(f) for f in functions(text)]
    return result


# ---- The Python module ----------------------------------------------------------------------------------------------

def class_name(struct):
    return "".join(word.capitalize() for word in struct.split("_")[1:])


def field_name(name):
    return name + "_" if keyword.iskeyword(name) else name


def ctype(name, structs_known, enums):
    """Returns the ctypes spelling of a C type."""
    if name == "void":
        return "None"
    if name == "pointer" or name.endswith("_fn"):
        return "c.c_void_p"
    if name == "text":
        return "c.c_char_p"
    if name in structs_known:
        return class_name(name)
    return "c.c_" + CTYPES["int32_t" if name in enums else name]


def python_struct(name, struct, spell):
    out = ["", "", "class %s(c.Structure):" % class_name(name), "    _fields_ = ["]
    for field in struct["fields"]:
        base, dimensions = re.match(r"(.*?)((?:\[[^\]]*\])*)$", field["type"]).groups()
        kind = spell(base)
        if dimensions:
            kind = "%s * (%d // c.sizeof(%s))" % (kind, field["size"], kind)
        out.append('        ("%s", %s),' % (field_name(field["name"]), kind))
    return out + ["    ]"]


def python_module(result):
    """Returns the source of fxattn._abi. Names have no prefix there: FXA_OP_ADD is OP_ADD, fxa_problem is Problem."""
    enums = set(re.findall(r"typedef enum (fxa_\w+)", public_header.text()))

    def spell(name):
        return ctype(name, result["structs"], enums)

    out = ['"""Generated from fxattn.h by tools/gen_abi.py: constants, structs and functions of the library."""',
           "import ctypes as c", "", 'VERSION = "%s"' % result["version"], ""]
    out += ["%s = %d" % (name[4:], value) for name, value in result["constants"].items()]
    for name, struct in result["structs"].items():
        out += python_struct(name, struct, spell)
    out += ["", "", "# Of each struct: size, alignment, and of its fields the name, offset and size.", "LAYOUTS = {"]
    for name, struct in result["structs"].items():
        fields = ", ".join('("%s", %d, %d)' % (field_name(f["name"]), f["offset"], f["size"]) for f in struct["fields"])
        out.append("    %s: (%d, %d, (%s,))," % (class_name(name), struct["size"], struct["align"], fields))
    out += ["}", "", "# Of each function: the type of its result and those of its parameters.", "FUNCTIONS = {"]
    for name, kind, parameters in result["functions"]:
        out.append('    "%s": (%s, (%s)),' % (name, spell(kind), "".join(spell(p) + ", " for p in parameters)))
    return "\n".join(out + ["}", ""])


# ---- The Julia module -----------------------------------------------------------------------------------------------

JULIA_TYPES = {"char": "UInt8", "double": "Cdouble", "int": "Cint", "int32_t": "Int32", "int64_t": "Int64",
               "uint8_t": "UInt8", "uint32_t": "UInt32", "uint64_t": "UInt64", "size_t": "Csize_t",
               "fxa_value": "Int32", "void": "Cvoid", "pointer": "Ptr{Cvoid}", "text": "Cstring"}
JULIA_WORDS = {"begin", "end", "struct", "function", "module", "global", "local", "const", "let"}
JULIA_HEAD = """\
# Generated from fxattn.h by tools/gen_abi.py: constants, structs and functions of the library, by their names in C.
# Functions are called by their addresses, which `load` finds when the first one is called (library.jl sets it).
module LibFXA

const VERSION = "%s"
const load = Ref{Any}(nothing)
"""


def julia_name(name):
    return name + "_" if name in JULIA_WORDS else name


def julia_struct(name, struct, spell):
    out = ["", "struct %s" % name]
    for field in struct["fields"]:
        base, dimensions = re.match(r"(.*?)((?:\[[^\]]*\])*)$", field["type"]).groups()
        kind = spell(base)
        if dimensions:
            kind = "NTuple{%d ÷ sizeof(%s), %s}" % (field["size"], kind, kind)
        out.append("    %s::%s" % (julia_name(field["name"]), kind))
    return out + ["end"]


def julia_module(result):
    """Returns the source of LibFXA. Arrays in structs are tuples, pointers are Ptr{Cvoid}, enums are Int32."""
    enums = set(re.findall(r"typedef enum (fxa_\w+)", public_header.text()))

    def spell(name):
        if name in result["structs"]:
            return name
        if name.endswith("_fn"):
            return "Ptr{Cvoid}"
        return JULIA_TYPES["int32_t" if name in enums else name]

    out = [JULIA_HEAD % result["version"]]
    out += ["const %s = %d" % item for item in result["constants"].items()]
    for name, struct in result["structs"].items():
        out += julia_struct(name, struct, spell)
    out += ["", "# Of each struct: size, alignment, and of its fields the name, offset and size.", "const LAYOUTS = Any["]
    for name, struct in result["structs"].items():
        fields = ", ".join("(:%s, %d, %d)" % (julia_name(f["name"]), f["offset"], f["size"]) for f in struct["fields"])
        out.append("    (%s, %d, %d, Any[%s])," % (name, struct["size"], struct["align"], fields))
    out += ["]", "", "const NAMES = Symbol["] + ["    :%s," % name for name, _, _ in result["functions"]] + [
        "]", "const addresses = fill(C_NULL, length(NAMES))", "",
        "function address(i)", "    found = addresses[i]", "    found == C_NULL || return found",
        "    load[]()", "    return addresses[i]", "end", ""]
    for i, (name, kind, parameters) in enumerate(result["functions"], 1):
        letters = ["a%d" % j for j in range(1, len(parameters) + 1)]
        types = "".join(spell(p) + ", " for p in parameters)
        out.append("%s(%s) = ccall(address(%d), %s, (%s)%s)" % (name, ", ".join(letters), i, spell(kind), types.strip(),
                                                              "".join(", " + x for x in letters)))
    return "\n".join(out + ["", "end", ""])


WRITERS = {"json": lambda result: json.dumps(result, indent=1) + "\n", "python": python_module, "julia": julia_module}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--format", choices=tuple(WRITERS), default="json")
    parser.add_argument("--out", help="file to write; default standard output")
    options = parser.parse_args()
    result = abi(options.cc)
    text = WRITERS[options.format](result)
    if not options.out:
        sys.stdout.write(text)
        return
    with open(options.out, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
