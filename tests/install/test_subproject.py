#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fxattn inside another project's tree, by add_subdirectory and by FetchContent from a local path: the includer's warnings,
build type, tests and install rules stay its own, nothing but what it links is built, and its programs run (R-115). The second
way is configured only: what it would build is the same sources with the same flags, and a minute more. What is built is
compiled at -O0, for a quarter of the time; which optimisation was asked for is read from the commands."""
import json
import os
import sys
import tempfile

from consumer import SOURCE, check, check_outputs, finish, run, write_consumer

HEAD = """cmake_minimum_required(VERSION 3.20)
project(includer C)
enable_testing()
"""
BY_FOLDER = HEAD + """add_subdirectory("%s" fxattn)
add_executable(outside main.c)
target_link_libraries(outside fxattn::static)
add_test(NAME own COMMAND outside)
install(TARGETS outside)
""" % SOURCE
BY_FETCH = HEAD + """include(FetchContent)
FetchContent_Declare(fxattn SOURCE_DIR "%s")
FetchContent_MakeAvailable(fxattn)
add_executable(outside main.c)
target_link_libraries(outside fxattn::fxattn)
""" % SOURCE


def configure(folder, cmake, *flags):
    """Configures the includer; the result is its build folder."""
    write_consumer(folder, cmake)
    out = os.path.join(folder, "b")
    run("cmake", "-S", folder, "-B", out, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *flags)
    return out


def quick_compiler(folder):
    """A flag of CMake with a launcher that adds the last word on optimisation to each command."""
    path = os.path.join(folder, "quick.sh")
    with open(path, "w") as f:
        f.write('exec "$@" -O0\n')
    return "-DCMAKE_C_COMPILER_LAUNCHER=sh;" + path


def commands(out):
    """What compiles each file, but for those that the build writes, which are text and no code."""
    found = {x["file"]: x["command"] for x in json.load(open(os.path.join(out, "compile_commands.json")))}
    return {file: command for file, command in found.items() if not file.startswith(out)}


def has_debug_info(compiled):
    """Whether our files are compiled with debug information: all or none of them are."""
    found = {"-g" in command.split() for file, command in compiled.items() if not file.endswith("main.c")}
    check(len(found) == 1, "some files have debug information")
    return found.pop()


def check_includer(out, prefix):
    """Targets that the including project did not request do not exist."""
    cache = open(os.path.join(out, "CMakeCache.txt")).read()
    check("CMAKE_BUILD_TYPE:STRING=\n" in cache, "the build type is the includer's")
    tests = run("ctest", "--test-dir", out, "-N")
    check("Total Tests: 1\n" in tests, "the includer has its own tests only: " + tests)
    built = {name for _, _, names in os.walk(out) for name in names}
    check("libfxattn.a" in built and not {"libfxattn.so", "fxattn.1", "test_plan"} & built, "only what is linked is built")
    run("cmake", "--install", out, "--prefix", prefix)
    installed = sorted(name for _, _, names in os.walk(prefix) for name in names)
    check(installed == ["outside"], "installed: %s" % installed)


def check_optimised(compiled):
    """The includer says no build type: its code is as it wants it, and ours is optimised all the same, its arithmetic
    exact."""
    for file, command in compiled.items():
        ours, flags = not file.endswith("main.c"), command.split()
        check(any(x in ("-O2", "-O3") for x in flags) == ours and not any(x in ("-O0", "-O1") for x in flags), command)
        exact = "-fno-fast-math" in flags and flags.index("-fno-fast-math") > flags.index("-ffast-math")
        check(exact == ours, command)


def main():
    if os.environ.get("FXA_SANITIZE"):
        print("skipped: the includer's build has no sanitizer, so it shows here what it shows in a plain build")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        # an includer that wants its own arithmetic fast gets ours as it is
        out = configure(os.path.join(folder, "by_folder"), BY_FOLDER, "-DCMAKE_C_FLAGS=-ffast-math", quick_compiler(folder))
        run("cmake", "--build", out, "-j2")
        check_outputs(run(os.path.join(out, "outside")))
        check_includer(out, os.path.join(folder, "prefix"))
        compiled = commands(out)
        check_optimised(compiled)
        fetched = commands(configure(os.path.join(folder, "by_fetch"), BY_FETCH, "-DCMAKE_C_FLAGS=-ffast-math",
                                     "-DFXA_DEBUG_INFO=ON"))
        check(has_debug_info(fetched) and not has_debug_info(compiled), "FXA_DEBUG_INFO is for our files, and off by default")
        check(set(fetched) - set(compiled) == {os.path.join(folder, "by_fetch", "main.c")}, "the same sources")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
