#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README.md and the quickstart typed in: the shell lines of a page run in order, in an empty home, its C becomes the file that its
first line names and is compiled by them, the CMake lines of the quickstart make a project. README's program parses, and the links
and pictures of all documents are there."""
import os
import re
import shutil
import sys
import tempfile

from consumer import BUILD, SOURCE, check, finish, run
from doc_links import check_links

# Commands that a test cannot run inside itself, and the tests of the suite that run them.
ELSEWHERE = {
    "make demo": "examples/demo.sh, below",
    "make test": "this suite",
    "make julia": "the target julia and its test",
    "apt-get install ": "make chroot-test",
}


def text_of(page):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as file:
        return file.read()


def blocks(text):
    """(language, text) of every fenced block, in order."""
    return re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", text)


def shell_lines(block):
    return [re.sub(r"\s+# .*", "", line).strip() for line in block.splitlines() if line.strip()]


def type_in(page, home, files):
    """One shell for all lines, so that exports hold; files that C blocks name are written first."""
    text, script, lines = text_of(page), ["set -eu"], 0
    for language, block in blocks(text):
        if language == "c":
            name = re.match(r"/\* (\w+\.c) \*/\n", block)
            check(name, "a block of C begins with the name of its file")
            with open(os.path.join(home, name.group(1)), "w") as file:
                file.write(block)
        for line in shell_lines(block) if language == "sh" else ():
            elsewhere = next((why for start, why in ELSEWHERE.items() if line.startswith(start)), None)
            if elsewhere:
                print("not typed in: %s (%s)" % (line, elsewhere))
                continue
            script.append(re.sub(r"^make ", "make -s -C '%s' BUILD='%s' " % (SOURCE, BUILD), line))
            lines += 1
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    out = run("sh", "-c", "\n".join(script), cwd=home, env=dict(env, HOME=home))
    check(lines >= 8, page + " has commands to type in")
    check("row 3 of head 0: " in out, "the C program ran: " + out)
    for name in files:
        check(os.path.exists(os.path.join(home, name)), "the commands wrote " + name)


def by_cmake(page, home):
    """The CMake lines in the project that they leave out, with the package that the shell lines installed."""
    lines = "".join(block for language, block in blocks(text_of(page)) if language == "cmake")
    find, rest = lines.split("\n", 1)
    with open(os.path.join(home, "CMakeLists.txt"), "w") as file:
        file.write("cmake_minimum_required(VERSION 3.20)\nproject(typed C)\n%s\n"
                   "add_executable(first first.c)\n%s" % (find, rest))
    run("cmake", "-S", home, "-B", os.path.join(home, "b"), "-DCMAKE_PREFIX_PATH=" + os.path.join(home, ".local"))
    run("cmake", "--build", os.path.join(home, "b"))
    check("row 3 of head 0: " in run(os.path.join(home, "b", "first")), "the CMake project ran")


def program_parses(home):
    program = re.search(r"(?m)(?:^    .*\n)*^    score = .*\n(?:^    .*\n)*", text_of("README.md")).group(0)
    with open(os.path.join(home, "readme.fxa"), "w") as file:
        file.write(re.sub(r"(?m)^    ", "", program))
    run(os.path.join(BUILD, "fxattn"), "explain", "--program", os.path.join(home, "readme.fxa"))


def run_demo(folder):
    """Every file that the demo names at its end exists, the picture last, and one command to try follows."""
    said = run("sh", os.path.join(SOURCE, "examples", "demo.sh"), os.path.join(BUILD, "fxattn"), folder)
    named, following = said.split("== files:")[1].split("== next, try")
    files = [line.strip() for line in named.splitlines()[1:] if line.strip()]
    check(len(following.split("\n\n")[1].splitlines()) == 1, "the demo ends with one command to try: %s" % following)
    check(set(map(os.path.basename, files)) == set(os.listdir(folder)) and len(files) == 11, "the demo names its files: %s" % files)
    check(all(os.path.getsize(file) > 0 for file in files) and files[-1].endswith("mask.svg"), "the demo ends with a picture")


def main():
    if os.environ.get("FXA_SANITIZE"):
        print("skipped: an installed sanitizer build needs the sanitizer's runtime")
        return 77
    for tool in ("make", "cc", "pkg-config"):
        if not shutil.which(tool):
            print("skipped: the README's lines need %s, which is not installed" % tool)
            return 77
    with tempfile.TemporaryDirectory() as home:
        type_in("README.md", home, ("mask.svg", "o.npy"))
        program_parses(home)
        run_demo(os.path.join(home, "demo results"))
    quickstart = os.path.join("docs", "guide", "quickstart.md")
    with tempfile.TemporaryDirectory() as home:
        type_in(quickstart, home, ())
        by_cmake(quickstart, home)
    check_links(SOURCE)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
