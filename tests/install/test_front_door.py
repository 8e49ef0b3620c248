#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Output of `make`, `make demo` and `make test`: one line for a build (tools/build.sh) and one for the tests
(tools/run_tests.sh), details only of what fails, and the reasons of skipped tests."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("FXA_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

CMAKE = """cmake_minimum_required(VERSION 3.20)
project(small C)
enable_testing()
add_compile_options(-Wall)
include_directories("%s/include" "%s/tests")
foreach(name some none broken)
  add_executable(${name} ${name}.c library.c)
  target_link_libraries(${name} m)
  add_test(NAME ${name} COMMAND ${name})
endforeach()
add_test(NAME one COMMAND some that_passes)
add_test(NAME filtered COMMAND some such_a_name)
add_test(NAME script COMMAND sh -c "echo skipped: there is no cow, so this cannot run: x.py && exit 77")
add_test(NAME pytest COMMAND sh -c "printf 'SKIPPED [5] tests/x.py:20: no bird\\\\nSKIPPED [2] tests/y.py: no cow\\\\n'")
add_test(NAME other_script COMMAND sh -c "echo skipped: there is no cow")
get_property(tests DIRECTORY PROPERTY TESTS)
set_tests_properties(${tests} PROPERTIES SKIP_RETURN_CODE 77)
""" % (SOURCE, SOURCE)
with open(os.path.join(SOURCE, "tests", "t.h"), encoding="utf-8") as header:
    CALLED = sorted(set(re.findall(r"\b(fxa_\w+)\(", header.read())))
SOURCES = {
    "library.c": "".join("void %s(void) {}\n" % name for name in CALLED),  # no test of these programs calls the library
    "some.c": """#include "t.h"
TEST(that_passes) { T_CHECK(1); }
TEST(that_needs_a_cow) { T_SKIP("there is no cow"); }
T_MAIN
""",
    "none.c": """#include "t.h"
TEST(first) { T_SKIP("there is no dog: none at all"); }
TEST(second) { T_SKIP("there is no cow"); }
T_MAIN
""",
    "broken.c": """#include "t.h"
TEST(skipped) { T_SKIP("there is no cow"); }
TEST(wrong) { T_CHECK(0); }
T_MAIN
""",
}


class FrontDoor(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in {**SOURCES, "CMakeLists.txt": CMAKE}.items():
            self.write(name, text)
        self.script("cmake", "-S", self.folder, "-B", os.path.join(self.folder, "b"))

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
            f.write(text)

    def script(self, *words, code=0, **variables):
        env = {name: value for name, value in os.environ.items() if name not in ("V", "MAKEFLAGS", "FXA_TEST_SEED")}
        ran = subprocess.run(words, env={**env, **variables}, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             universal_newlines=True, timeout=300, check=False)
        self.assertEqual(ran.returncode, code, ran.stdout)
        return ran.stdout

    def build(self, *targets, **more):
        return self.script("sh", os.path.join(SOURCE, "tools", "build.sh"), "b", "2", *targets, **more)

    def test_builds(self):
        self.assertRegex(self.build(), r"\Abuilding in b \.\.\. \d+ steps in \d+ s\n\Z")
        self.assertEqual(self.build(), "")
        self.write("some.c", SOURCES["some.c"] + "int unused(void) { int x; return 0; }\n")
        said = self.build("some")
        self.assertRegex(said, r"\Abuilding in b \.\.\. \d steps in \d+ s\n")
        self.assertIn("warning: unused variable", said)
        self.write("some.c", SOURCES["some.c"] + "#error a cow\n")
        said = self.build("none", "some", code=2)
        self.assertRegex(said, r"\Abuilding in b \.\.\. failed\n")
        self.assertRegex(said, "error: .*a cow")
        self.assertIn("all of its output is in b/build.log", said)
        self.assertNotIn("Building", said)
        self.write("some.c", SOURCES["some.c"])
        self.assertIn("Building C object", self.build(V="1"))
        self.assertIn("no_such_target", self.build("no_such_target", code=2))

    def run_tests(self, *words, **more):
        return self.script("sh", os.path.join(SOURCE, "tools", "run_tests.sh"), "b", *words, **more)

    def test_tests(self):
        self.build()
        said = self.run_tests(code=8)
        listed, reasons = said.split("\nSkipped:\n")
        self.assertRegex(listed, r"\Atesting in b \.\.\. failed\n")
        for name in ("broken", "filtered"):
            self.assertRegex(listed, r"(?m)^.* Test +#\d+: %s \.+ *\*\*\*Failed" % name)
        self.assertNotIn("Passed", listed)
        self.assertIn("no test has 'such_a_name' in its name", listed)
        self.assertIn("all of ctest's output is in b/tests.log", listed)
        self.assertEqual(sorted(reasons.splitlines()), [
            "  no bird: 5 tests in pytest",
            "  no cow: 2 tests in pytest",
            "  there is no cow: 5 tests in some, none, broken, script and 1 more",
            "  there is no dog: none at all: 1 test in none",
        ])
        listed = self.run_tests(code=8, V="1")
        for name, verdict in (("some", "Passed"), ("none", r"\*\*\*Skipped"), ("broken", r"\*\*\*Failed"), ("one", "Passed"),
                              ("filtered", r"\*\*\*Failed"), ("script", r"\*\*\*Skipped")):
            self.assertRegex(listed, r"(?m)^.* Test +#\d+: %s \.+ *%s" % (name, verdict))
        self.assertRegex(self.run_tests("-R", "^one$"), r"\Atesting in b \.\.\. 1 test passed, 0 skipped in \d+ s\n\Z")


if __name__ == "__main__":
    if os.environ.get("FXA_SANITIZE"):
        print("skipped: the scripts of a sanitizer build are those of a plain one")
        sys.exit(77)
    unittest.main()
