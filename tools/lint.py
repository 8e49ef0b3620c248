#!/usr/bin/env python3
"""House rules that a compiler does not check: include directions, unique names, file and line lengths, words that the
library must not contain, the layout of C; the rule of lint_order.py; and the prose rules of lint_prose.py. Prints each finding as file:line: text.
Rules whose tool (clang-format, git) or input (a build, the history) is missing are left out."""
import os
import re
import shutil
import subprocess
import sys

import lint_order
import lint_prose
import public_header

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
findings = []

# Folders that may be included: base <- program <- problem <- plan -> engine.h <- engines; problem <- lower <- engines;
# base <- gpu <- engines.
LAYERS = {
    "base": {"base"},
    "program": {"base", "program"},
    "problem": {"base", "program", "problem"},
    "lower": {"base", "program", "problem", "lower"},
    "gpu": {"base", "gpu"},
    "engine": {"base", "program", "problem", "lower", "gpu", "engine"},
    "plan": {"base", "program", "problem", "engine", "plan"},
}
FORBIDDEN = re.compile(r"\b(abort|exit|printf|puts|perror|signal|setlocale|malloc|calloc|realloc|free|alloca)\s*\(")
# Layers without threads. tests/CMakeLists.txt leaves their tests out of the ThreadSanitizer build.
THREADLESS = ("program", "problem", "lower")
THREADS = re.compile(r"\b(pthread_\w+|fxa__pool_\w+|fxa__host_pool)\s*\(")
FILE_LINES, FUNCTION_LINES = 400, 60  # of src and cli
FORMATTED = ("src", "include", "cli", "tests", "fuzz", "bench", "examples", "python")
FORMAT_VERSION = 14  # other versions format some expressions differently
ALLOWED = {"src/base/host.c": {"realloc", "free"}, "src/base/invariant.c": {"abort"}}
# Public functions without floating-point arithmetic. All others start with FXA__FLOAT_SCOPE (base/float_state.h).
FLOAT_FREE = set("""
    fxa_version fxa_status_name fxa_status_text fxa_error_render fxa_dtype_name fxa_dtype_size fxa_dtype_find
    fxa_slot_name fxa_flag_name fxa_property_name fxa_device_name fxa_builder_error fxa_builder_type fxa_engine_name fxa_engine_device
    fxa_device_description fxa_op_syntax fxa_input_name
    fxa_context_create fxa_context_destroy fxa_context_threads fxa_cache_get_stats fxa_cache_limit fxa_cache_clear
    fxa_program_retain fxa_program_destroy fxa_program_hash fxa_program_get_kind fxa_program_node_count
    fxa_program_param_count fxa_program_tensor_count fxa_program_param fxa_program_tensor fxa_program_param_find
    fxa_program_param_default fxa_program_tensor_find fxa_program_save fxa_tensor_scan
    fxa_builder_create fxa_builder_destroy fxa_builder_float fxa_builder_int fxa_builder_bool fxa_builder_input
    fxa_builder_param fxa_builder_tensor fxa_builder_op1 fxa_builder_op2 fxa_builder_op3
    fxa_plan_retain fxa_plan_destroy fxa_plan_engine fxa_plan_description fxa_plan_workspace fxa_plan_is_deterministic
    fxa_plan_key fxa_plan_problem
""".split())


def say(path, line, text):
    findings.append("%s:%d: %s" % (os.path.relpath(path, ROOT), line, text))


def sources(folder, *endings):
    for base, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.join(base, name)


def layer_of(path):
    parts = os.path.relpath(path, os.path.join(ROOT, "src")).split(os.sep)
    return parts[0] if len(parts) > 1 else None


def check_includes():
    for path in sources("src", ".c", ".h", ".inc", ".def"):
        layer = layer_of(path)
        for number, line in enumerate(open(path), 1):
            match = re.match(r'\s*#include "([^"]+)"', line)
            if not match or match.group(1).startswith("fxattn/"):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), match.group(1)))
            other = layer_of(target)
            if not os.path.exists(target):
                say(path, number, "includes a file that is not there: " + match.group(1))
            elif other not in LAYERS.get(layer, set()):
                say(path, number, "%s may not include %s" % (layer, other))
            if layer == "engine" and other == "engine":
                mine = os.path.relpath(path, os.path.join(ROOT, "src", "engine")).split(os.sep)
                theirs = os.path.relpath(target, os.path.join(ROOT, "src", "engine")).split(os.sep)
                if len(theirs) > 1 and mine[0] != theirs[0]:
                    say(path, number, "an engine may not include another")
    for folder in ("cli", "examples"):
        for path in sources(folder, ".c", ".h"):
            for number, line in enumerate(open(path), 1):
                match = re.match(r'\s*#include "([^"]+)"', line)
                if match and match.group(1) != "fxattn/fxattn.h":
                    root = os.path.join(ROOT, "cli") if folder == "cli" else os.path.dirname(path)
                    if not os.path.exists(os.path.join(root, match.group(1))) or ".." in match.group(1):
                        say(path, number, "uses more than the public header: " + match.group(1))


def check_names():
    files, statics = {}, {}
    for folder in FORMATTED:
        for path in sources(folder, ".c", ".h", ".inc", ".cu", ".cuh"):
            name = "/".join(path.split(os.sep)[-2:])
            if name in files:
                say(path, 1, "folder and file name also at " + files[name])
            files[name] = os.path.relpath(path, ROOT)
    for folder in ("src", "cli", "python"):
        for path in sources(folder, ".c"):
            text = open(path).read()
            for match in re.finditer(r"^static (?!inline)[\w \*]*?\b(\w+)\(", text, re.M):
                name = match.group(1)
                where = statics.setdefault((folder, name), path)
                if where != path:
                    say(path, text[: match.start()].count("\n") + 1,
                        "static %s is also in %s" % (name, os.path.relpath(where, ROOT)))


def check_text():
    for folder in FORMATTED:
        for path in sources(folder, ".c", ".h", ".inc", ".def"):
            lines = open(path, errors="replace").read().split("\n")
            if not path.endswith(".def") and not lines[0].startswith("/* SPDX-License-Identifier: Apache-2.0"):
                say(path, 1, "does not open with the SPDX line")
            limit = FILE_LINES if folder in ("src", "cli") else 500 if folder == "python" else 1000
            if "Generated by tools/" in "".join(lines[1:4]):
                limit = len(lines)
            if len(lines) - 1 > limit:
                say(path, len(lines), "%d lines: split it (limit %d)" % (len(lines) - 1, limit))
            for number, line in enumerate(lines, 1):
                if len(line) > 120 and not path.endswith(".def"):
                    say(path, number, "line of %d columns (120)" % len(line))
                if "\t" in line or line.rstrip() != line:
                    say(path, number, "tab or white space at the end")
                if re.search(r"\b(TODO|FIXME|XXX)\b", line):
                    say(path, number, "unfinished: " + line.strip())


def check_functions():
    """Checks the lengths of functions, from the line of the opening brace's signature to the closing brace."""
    for path in [path for folder in ("src", "cli") for path in sources(folder, ".c", ".h", ".inc", ".cu", ".cuh")]:
        start, signature = 0, ""
        for number, line in enumerate(open(path, errors="replace"), 1):
            line = line.rstrip()
            if line == "}" and "(" in signature:
                if number - start + 1 > FUNCTION_LINES:
                    say(path, start, "function of %d lines: split it (limit %d)" % (number - start + 1, FUNCTION_LINES))
                signature = ""
            elif re.match(r"[A-Za-z_]", line):
                more = signature and not signature.endswith(("{", ";", "}"))
                start, signature = (start, signature + line) if more else (number, line)
                if re.match(r"(namespace|struct|enum|union|typedef)\b[^(]*\{$|static const\b.*=", signature):
                    signature = ""


def check_package(folder, opening, *suffixes, limit=500):
    """Checks modules of a front end's package, or kernels. Scripts and tests are exempt."""
    for path in sources(folder, *suffixes):
        lines = open(path, encoding="utf-8").read().split("\n")
        if lines[0] != opening + " SPDX-License-Identifier: Apache-2.0":
            say(path, 1, "does not open with the SPDX line")
        if len(lines) - 1 > limit:
            say(path, len(lines), "%d lines: split it (limit %d)" % (len(lines) - 1, limit))
        for number, line in enumerate(lines, 1):
            if len(line) > 120:
                say(path, number, "line of %d columns (120)" % len(line))
            if "\t" in line or line.rstrip() != line:
                say(path, number, "tab or white space at the end")


def check_packages():
    check_package("python", "#", ".py")
    check_package("julia", "#", ".jl")
    check_package("src/engine/cuda", "/*", ".cu", ".cuh", limit=FILE_LINES)


def check_assembly():
    """Checks that assembly is in the files ptx*.cuh only, which tests/model replaces."""
    for path in sources("src/engine/cuda", ".cu", ".cuh"):
        for number, line in enumerate(open(path), 1):
            if re.search(r"\basm\b", line) and not os.path.basename(path).startswith("ptx"):
                say(path, number, "assembly outside of ptx*.cuh")


def check_recipes():
    """Checks that the cuda engine tests architectures and families only where it lists them: in the recipe table on the
    host, and in ptx*.cuh, which wrap instructions, on the device."""
    number = r"(0x)?\d+"
    host = re.compile(r"\barch\w* *([=!]=|[<>]=?) *%s|\b%s *([=!]=|[<>]=?) *[\w>.-]*\barch\w*\b|"
                      r"\bstrn?cmp\([^;]*\bfamily\b|\bfamily(\[0\])? *[=!]=" % (number, number))
    for path in sources("src/engine/cuda", ".c", ".h", ".cu", ".cuh"):
        device = os.path.relpath(path, ROOT).startswith("src/engine/cuda/kernels")
        if os.path.basename(path) == "recipes.c" or os.path.basename(path).startswith("ptx"):
            continue
        for number_of_line, line in enumerate(open(path), 1):
            if (re.search(r"\b__CUDA_ARCH__\b", line) if device else host.search(line)):
                say(path, number_of_line, "a test of an architecture or family outside of host/recipes.c")


def check_forbidden():
    for path in sources("src", ".c", ".h"):
        relative = os.path.relpath(path, ROOT)
        text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), open(path).read(), flags=re.S)
        text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
        for match in FORBIDDEN.finditer(text):
            if match.group(1) not in ALLOWED.get(relative, set()):
                say(path, text[: match.start()].count("\n") + 1, "the library never calls %s" % match.group(1))
        for match in THREADS.finditer(text) if layer_of(path) in THREADLESS else ():
            where = text[: match.start()].count("\n") + 1
            say(path, where, "%s has no threads, and calls %s" % (layer_of(path), match.group(1)))


def check_float_state():
    declared = public_header.functions()
    for path in sources("src", ".c"):
        text = open(path).read()
        for match in re.finditer(r"^\w[\w \*]*?\b(fxa_[a-z0-9_]+)\([^;{]*\{\s*(\w+)", text, re.M):
            if match.group(1) in declared - FLOAT_FREE and match.group(2) != "FXA__FLOAT_SCOPE":
                say(path, text[: match.start()].count("\n") + 1,
                    "%s does not open with FXA__FLOAT_SCOPE" % match.group(1))


def check_exports():
    library = os.path.join(ROOT, "build", "libfxattn.so")
    if not os.path.exists(library):
        return
    out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True)
    exported = {line.split()[-1].split("@")[0] for line in out.stdout.splitlines() if " T " in line}
    declared = public_header.functions()
    for name in sorted(exported - declared):
        findings.append("exported but not in the header: " + name)
    for name in sorted(declared - exported):
        findings.append("in the header but not exported: " + name)
    asserts = re.search(r"^FXA_ASSERT:BOOL=ON$", open(os.path.join(ROOT, "build", "CMakeCache.txt")).read(), re.M)
    out = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True)
    if not asserts and re.search(r" (abort|__assert_fail)\b", out.stdout):
        findings.append("the library can abort: asserts are in a build without FXA_ASSERT")


def check_format():
    """Checks the layout of C by .clang-format. Versions differ in details, so FORMAT_VERSION is required."""
    program = next((p for p in ("clang-format-%d" % FORMAT_VERSION, "clang-format") if shutil.which(p)), None)
    if not program:
        print("lint: skipped: clang-format was not found")
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    if "version %d." % FORMAT_VERSION not in version:
        print("lint: skipped: clang-format %d was not found, only %s" % (FORMAT_VERSION, version.strip()))
        return
    paths = [path for folder in FORMATTED for path in sources(folder, ".c", ".h", ".inc")]
    out = subprocess.run([program, "--dry-run"] + paths, capture_output=True, text=True, cwd=ROOT)
    found = re.findall(r"^(.*?):(\d+):\d+: warning: code should be clang-formatted", out.stderr, re.M)
    for path, line in dict.fromkeys(found):
        say(path, int(line), "not as clang-format writes it; run: %s -i %s" % (program, os.path.relpath(path, ROOT)))


def check_order():
    paths = [path for folder in ("src", "tests", "fuzz", "bench") for path in sources(folder, ".c", ".h")]
    for path, line, text in lint_order.check({os.path.relpath(path, ROOT): open(path).read() for path in paths}):
        say(os.path.join(ROOT, path), line, text)


def check_prose():
    for check in lint_prose.CHECKS:
        for path, line, text in check(ROOT):
            say(os.path.join(ROOT, path), line, text)


def main():
    for check in (check_includes, check_names, check_text, check_functions, check_packages, check_assembly,
                  check_recipes, check_forbidden, check_float_state, check_exports, check_order, check_prose, check_format):
        check()
    print("\n".join(findings) if findings else "lint: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
