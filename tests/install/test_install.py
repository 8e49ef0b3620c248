#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the build into a folder, moves that folder, and builds an outside program against it: by find_package and by
pkg-config, with the shared and with the static library (R-115). Also looks at the SONAME and at what is exported."""
import ctypes
import os
import re
import shutil
import sys
import tempfile

from consumer import BUILD, SOURCE, check, check_outputs, finish, run, write_consumer
from doc_links import check_links

sys.path.insert(0, os.path.join(SOURCE, "tools"))
import public_header  # noqa: E402

CMAKE = """cmake_minimum_required(VERSION 3.20)
project(outside C)
find_package(fxattn 0.1 CONFIG REQUIRED)
add_executable(outside_default main.c)
target_link_libraries(outside_default fxattn::fxattn)
add_executable(outside_shared main.c)
target_link_libraries(outside_shared fxattn::shared)
add_executable(outside_static main.c)
target_link_libraries(outside_static fxattn::static)
"""


PLUGIN = """#include <fxattn/fxattn.h>
const char *plugin_version(void);
const char *plugin_version(void) {
    fxa_context *ctx;
    fxa_error err;
    if (fxa_context_create(NULL, &ctx, &err) != FXA_OK) return "none";
    fxa_context_destroy(ctx);
    return fxa_version();
}
"""


def option_is_on(name):
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return re.search(r"(?m)^%s:BOOL=(ON|TRUE|1|YES|Y)$" % name, file.read()) is not None


def find(prefix, name):
    for base, _, names in os.walk(prefix):
        if name in names:
            return os.path.join(base, name)
    sys.exit("not installed: " + name)


def by_cmake(prefix, work):
    run("cmake", "-S", work, "-B", os.path.join(work, "b"), "-DCMAKE_PREFIX_PATH=" + prefix)
    run("cmake", "--build", os.path.join(work, "b"))
    for kind in ("default", "shared", "static"):
        check_outputs(run(os.path.join(work, "b", "outside_" + kind)))


def by_pkg_config(prefix, work):
    if not shutil.which("pkg-config"):
        print("skipped: pkg-config is not installed")
        return
    pc = os.path.dirname(find(prefix, "fxattn.pc"))
    lib = os.path.dirname(find(prefix, "libfxattn.a"))
    env = dict(os.environ, PKG_CONFIG_PATH=pc, LD_LIBRARY_PATH=lib)
    source, out = os.path.join(work, "main.c"), os.path.join(work, "by_pc")
    compiler = os.environ.get("CC", "cc")
    flags = run("pkg-config", "--cflags", "--libs", "fxattn", env=env).split()
    run(compiler, source, "-o", out, *flags)
    check_outputs(run(out, env=env))
    flags = run("pkg-config", "--static", "--cflags", "--libs", "fxattn", env=env).split()
    static = [find(prefix, "libfxattn.a") if flag == "-lfxattn" else flag for flag in flags]
    run(compiler, source, "-o", out + "_static", *static)
    check_outputs(run(out + "_static"))


def exports_of(shared):
    return {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", shared).splitlines()
            if re.search(r" [TDRBVW] ", line)}


def linked_into_a_plugin(prefix, work):
    """A shared object that links all of the static library has its own exports alone."""
    source, out = os.path.join(work, "plugin.c"), os.path.join(work, "plugin.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write(PLUGIN)
    archive = find(prefix, "libfxattn.a")
    include = os.path.dirname(os.path.dirname(find(prefix, "fxattn.h")))
    run(os.environ.get("CC", "cc"), "-shared", "-fPIC", "-I" + include, source, "-Wl,--whole-archive", archive,
        "-Wl,--no-whole-archive", "-o", out, "-lm", "-lpthread", "-ldl")
    check(exports_of(out) == {"plugin_version"}, "a plugin exports %s" % sorted(exports_of(out)))
    loaded = ctypes.CDLL(out).plugin_version
    loaded.restype = ctypes.c_char_p
    check(loaded() == b"0.1.0", "the plugin runs")


def without_warnings(prefix, work):
    """R-41: each header stands alone, in C++ too. R-15: it adds no warning to callers who want none."""
    headers = os.path.dirname(find(prefix, "fxattn.h"))
    include = os.path.dirname(headers)
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-fsyntax-only", "-I" + include]
    sources = [os.path.join(work, "main.c")]
    for name in os.listdir(headers):
        sources.append(os.path.join(work, "only_" + name[:-1] + "c"))
        with open(sources[-1], "w", encoding="utf-8") as f:
            f.write("#include <fxattn/%s>\n#include <fxattn/fxattn.h>\n" % name)
    run(os.environ.get("CC", "cc"), "-std=c11", "-Wstrict-prototypes", *flags, *sources)
    if not shutil.which("c++"):
        print("skipped: there is no C++ compiler")
        return
    run("c++", "-std=c++11", "-x", "c++", *flags, *sources)


def check_documented(header):
    """R-09 for C: score program, backward program and the tensors of each, described and bound, say what they are."""
    for field in ("program", "bprop", "captures", "bprop_captures", "tensors", "bprop_tensors"):
        trailing = r"(?m)^ +const [^;\n]*\*%s; +/\* [\[\w]" % field
        above = r"(?m)^ +/\* \w[^\n]*\*/\n +const [^;\n]*\*%s;$" % field
        check(re.search(trailing, header) or re.search(above, header), "no comment on the member " + field)


def check_library(prefix):
    shared = os.path.realpath(find(prefix, "libfxattn.so"))
    dynamic = run("readelf", "-d", shared)
    check("libfxattn.so.0.1" in dynamic, "SONAME is libfxattn.so.0.1")
    needed = re.findall(r"NEEDED.*\[(.*?)\]", dynamic)  # the C library and nothing else
    check(all(re.match(r"(libc|libm|libpthread|libdl|ld-linux.*)\.", name) for name in needed), "needs %s" % needed)
    debug = ".debug_info" in run("readelf", "-S", shared)
    check(debug == option_is_on("FXA_DEBUG_INFO"), "debug information is installed if FXA_DEBUG_INFO is on")
    exported = exports_of(shared)
    headers = os.path.dirname(find(prefix, "fxattn.h"))
    check_documented(public_header.text(headers))
    declared = public_header.functions(headers)
    check(exported == declared, "exports and header differ: %s" % sorted(exported ^ declared))


def main():
    if os.environ.get("FXA_COVERAGE") == "ON":
        print("skipped: an installed library that counts needs the runtime of gcov")
        return 77
    if os.environ.get("FXA_SANITIZE"):
        print("skipped: an installed sanitizer build needs the sanitizer's runtime")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        first, prefix, work = (os.path.join(folder, name) for name in ("first", "moved", "work"))
        run("cmake", "--install", BUILD, "--prefix", first)
        os.rename(first, prefix)  # the installed tree must not contain the path of the build
        write_consumer(work, CMAKE)
        check_library(prefix)
        by_cmake(prefix, work)
        by_pkg_config(prefix, work)
        linked_into_a_plugin(prefix, work)
        without_warnings(prefix, work)
        for name in ("fxattn.1", "_fxattn", "fxattn.fish", "program.md", "alibi.fxa"):
            check(find(prefix, name), name)
        check(run(os.path.join(prefix, "bin", "fxattn"), "version").strip(), "the installed command runs")
        docs = os.path.join(prefix, "share", "doc", "fxattn")
        examples = ("examples/forward.c", "examples/decode.c", "examples/targets/h200.json")
        for name in ("LICENSE", "README.md", "docs/numerics.md", *examples):
            check(os.path.isfile(os.path.join(docs, name)), name + " is installed")
        check_links(docs)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
