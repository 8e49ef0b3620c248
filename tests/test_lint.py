#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each rule of tools/lint.py reports a tree that breaks it and accepts the tree of CLEAN, which breaks none. lint and its
modules are copied into that tree, so that it is what they read."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("FXA_SOURCE", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODULES = ("lint.py", "lint_order.py", "lint_prose.py", "public_header.py")
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
KERNEL = "/* SPDX-License-Identifier: Apache-2.0\n *\n * A kernel. */\n"
CLEAN = {
    "include/fxattn/fxattn.h": SPDX + "FXA_API int fxa_sum(int a, int b);\n",
    "src/plan/sum.c": SPDX + '#include "../base/add.h"\n\nint fxa_sum(int a, int b) {\n    FXA__FLOAT_SCOPE;\n'
                             '    return fxa__add(a, b);\n}\n',
    "src/base/add.h": SPDX + "/* Returns the sum of two ints, wrapped to 32 bits. */\nint fxa__add(int a, int b);\n",
    "src/engine/cuda/kernel.cu": KERNEL,
    "README.md": "# A name\n\nA [guide](docs/guide.md#first-steps) and the [top](#a-name).\n",
    "docs/guide.md": "# Guide\n\n## First steps\n\nA sentence of at most 100 columns.\n\n| " + 120 * "x" + " |\n\n"
                     "```\n" + 120 * "x " + "\n```\n",
    "docs/glossary.md": "# Glossary\n\n**tile**: a rectangle of queries and keys.\n",
}
# 24 comments without a habit: one more comment that has it is 4 % of a folder.
GOOD = "".join("/* Returns the number of rows of part %d. */\nint rows_%d;\n" % (i, i) for i in range(24))


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


class Tree(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for name in MODULES:
            self.write("tools/" + name, read(ROOT, "tools", name))
        shutil.copy(os.path.join(ROOT, ".clang-format"), self.root)
        for path, text in CLEAN.items():
            self.write(path, text)

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def lint(self):
        run = subprocess.run([sys.executable, "-B", "tools/lint.py"], cwd=self.root, capture_output=True, text=True)
        self.assertEqual(run.stderr, "")
        self.assertEqual(run.returncode, "lint: nothing found" not in run.stdout, run.stdout)
        return run.stdout

    def assertFinds(self, *texts):
        found = self.lint()
        for text in texts:
            self.assertIn(text, found)

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=self.root, check=True,
                       capture_output=True)


class Code(Tree):
    def test_a_clean_tree_has_no_findings(self):
        self.assertIn("lint: nothing found", self.lint())

    def test_includes(self):
        self.write("src/base/low.h", SPDX + '#include "../plan/sum.h"\n#include "none.h"\n')
        self.write("src/plan/sum.h", SPDX)
        self.write("src/engine/cpu/here.h", SPDX + '#include "../ref/there.h"\n')
        self.write("src/engine/ref/there.h", SPDX)
        self.write("cli/command.c", SPDX + '#include "../src/base/add.h"\n')
        self.assertFinds("src/base/low.h:2: base may not include plan", "src/base/low.h:3: includes a file that is not there",
                         "src/engine/cpu/here.h:2: an engine may not include another",
                         "cli/command.c:2: uses more than the public header: ../src/base/add.h")

    def test_names(self):
        for path in ("src/base/one.c", "src/plan/two.c", "src/engine/plan/two.c", "src/gpu/two.c"):
            self.write(path, SPDX + "static int helper(void) { return 1; }\n")
        self.assertFinds(":2: static helper is also in src/", "plan/two.c:1: folder and file name also at src/")
        self.assertNotIn("src/gpu/two.c:1:", self.lint())

    def test_text(self):
        self.write("src/base/text.c", "int a;\nint %s;\n\tint b;\nint c; // TO" "DO\n" % (120 * "x") + 500 * "\n")
        self.assertFinds("src/base/text.c:1: does not open with the SPDX line", "src/base/text.c:2: line of 125 columns",
                         "src/base/text.c:3: tab or white space", "src/base/text.c:4: unfinished",
                         "lines: split it (limit 400)")

    def test_functions(self):
        body = "".join("    x += %d;\n" % i for i in range(57))
        self.write("src/base/short.c", SPDX + "int base_short(int x) {\n%s    return x;\n}\n" % body)
        self.write("src/base/long.c", SPDX + "int base_long(int x,\n              int y) {\n%s    return x;\n}\n" % body)
        self.write("cli/long.c", SPDX + "static const int a[] = {\n%s};\n\nint cli_long(int x) {\n%s    y();\n    z();\n}\n"
                   % (61 * "    1,\n", body))
        self.assertFinds("src/base/long.c:2: function of 61 lines: split it (limit 60)",
                         "cli/long.c:66: function of 61 lines: split it (limit 60)")
        self.assertNotIn("src/base/short.c", self.lint())

    def test_packages(self):
        self.write("python/fxattn/text.py", "a = 1 \n" + "b = '%s'\n" % (120 * "x") + 500 * "\n")
        self.assertFinds("python/fxattn/text.py:1: does not open", "python/fxattn/text.py:1: tab or white space",
                         "python/fxattn/text.py:2: line of 126 columns", "lines: split it (limit 500)")

    def test_assembly(self):
        self.write("src/engine/cuda/kernel.cu", KERNEL + 'asm("");\n')
        self.write("src/engine/cuda/kernels/sm90/ptx.cuh", KERNEL + 'asm("");\n')
        found = self.lint()
        self.assertIn("src/engine/cuda/kernel.cu:4: assembly outside of ptx*.cuh", found)
        self.assertNotIn("sm90/ptx.cuh", found)

    def test_forbidden_calls(self):
        self.write("src/problem/call.c", SPDX + 'void f(void) { /* free(1) */ free("puts(1)"); fxa__pool_run(0); }\n')
        found = self.lint()
        self.assertIn("src/problem/call.c:2: the library never calls free", found)
        self.assertIn("src/problem/call.c:2: problem has no threads, and calls fxa__pool_run", found)
        self.assertEqual(found.count("the library never calls"), 1)

    def test_float_state(self):
        self.write("src/plan/sum.c", CLEAN["src/plan/sum.c"].replace("    FXA__FLOAT_SCOPE;\n", ""))
        self.assertFinds("fxa_sum does not open with FXA__FLOAT_SCOPE")

    @unittest.skipUnless(shutil.which("cc") and shutil.which("nm"), "cc or nm was not found")
    def test_exports(self):
        self.write("lib.c", "int fxa_other(void) { return 0; }\n")
        self.write("build/CMakeCache.txt", "FXA_ASSERT:BOOL=OFF\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "build/libfxattn.so", "lib.c"], cwd=self.root, check=True)
        self.assertFinds("exported but not in the header: fxa_other", "in the header but not exported: fxa_sum")

    def test_format(self):
        self.write("src/base/add.h", SPDX + "int   fxa__add(int a,int b);\n")
        found = self.lint()
        if "lint: skipped: clang-format" in found:
            self.skipTest(found.split("\n", maxsplit=1)[0])
        self.assertIn("src/base/add.h:2: not as clang-format writes it", found)


class Prose(Tree):
    def test_shares_of_comments(self):
        bad = "/* Of a row, its maximum value. */\nint a;\n/* What the rows have in common. */\nint b;\n"
        self.write("src/base/rows.h", SPDX + GOOD + bad)
        found = self.lint()
        self.assertIn("src/base:1: 2 of 27 comments open with a fragment", found)
        self.assertIn("src/base/rows.h:50, src/base/rows.h:52", found)
        self.write("src/base/rows.h", SPDX + GOOD + "/* The engine wants a row here. */\nint a;\n// Somebody asked for\n// it.\nint b;\n")
        found = self.lint()
        self.assertIn("src/base:1: 2 of 27 comments speak of code as of a person", found)
        self.assertNotIn("fragment", found)

    def test_order_of_arguments(self):
        self.write("tests/draw.c", SPDX + "static int draw(t_rng *r) { return (int)t_next(r) + 1; }\n\n"
                                          "int pair(t_rng *r) {\n    return add(draw(r),\n               draw(r)); /* f(draw(r), draw(r)) */\n}\n\n"
                                          "int one(t_rng *r) {\n    int x = draw(r);\n    return add(x, draw(r));\n}\n")
        self.write("src/program/made.c", SPDX + "static int made_node(fxa_builder *b) { return fxa__builder_intern(b, 0); }\n\n"
                                                "int fxa__made(fxa_builder *b) {\n    return made_sum(made_node(b), 1, made_node(b));\n}\n")
        found = self.lint()
        self.assertIn("tests/draw.c:5: two arguments of add draw random numbers; the compiler chooses their order", found)
        self.assertIn("src/program/made.c:5: two arguments of made_sum make nodes of a program", found)
        self.assertEqual(found.count("two arguments of"), 2, found)

    def test_words_inside_a_sentence_are_no_openings(self):
        self.write("src/base/rows.h", SPDX + GOOD + 4 * "/* Returns what is left of a row where it ends. */\nint a;\n")
        self.assertIn("lint: nothing found", self.lint())

    def test_engines_that_are_left_out(self):
        self.write("src/engine/cuda/rows.h", SPDX + 9 * "/* What the engine wants to know of rows. */\nint a;\n")
        self.assertIn("lint: nothing found", self.lint())

    def test_history(self):
        self.write("src/base/rows.h", SPDX + GOOD + "/* The list is no longer sorted here. */\nint a;\n"
                                                    "/* A row is no longer than its tile. */\nint b;\n")
        found = self.lint()
        self.assertIn("src/base/rows.h:50: comments must not tell history", found)
        self.assertNotIn("rows.h:52", found)

    def test_wide_lines(self):
        self.write("docs/guide.md", CLEAN["docs/guide.md"] + "\nA sentence of more than 100 columns %s.\n" % ("and words " * 8))
        self.assertFinds("docs/guide.md:13: 1 lines of more than 100 columns")

    def test_links(self):
        self.write("README.md", CLEAN["README.md"] + "[x](docs/none.md) [y](docs/guide.md#none) [z](#none) [w](https://a.b/c)\n"
                                                     '<img src="docs/none.svg">\n    [code](none.md) `[code](none.md)`\n')
        found = self.lint()
        self.assertIn("README.md:4: a link to a file that is not there: docs/none.md", found)
        self.assertIn("README.md:4: a link to a heading that is not there: docs/guide.md#none", found)
        self.assertIn("README.md:4: a link to a heading that is not there: #none", found)
        self.assertIn("README.md:5: a link to a file that is not there: docs/none.svg", found)
        self.assertEqual(found.count("README.md:"), 4)

    def test_glossary(self):
        self.write("docs/guide.md", CLEAN["docs/guide.md"] + "\nThe ready masks of a problem.\n")
        self.assertFinds("docs/guide.md:13: 'ready masks' is not in docs/glossary.md")
        self.write("docs/glossary.md", CLEAN["docs/glossary.md"] + "\n**ready mask**: a mask by flag.\n")
        self.assertIn("lint: nothing found", self.lint())
        self.write("docs/glossary.md", CLEAN["docs/glossary.md"] + "\n**ready mask**\n")
        self.assertFinds("docs/glossary.md:5: 'ready mask' has no definition")
        os.remove(os.path.join(self.root, "docs/glossary.md"))
        self.assertIn("lint: nothing found", self.lint())

    @unittest.skipUnless(shutil.which("git"), "git was not found")
    def test_commit_subjects(self):
        self.git("init", "-q")
        self.assertIn("lint: nothing found", self.lint())  # no history
        self.git("commit", "-q", "--allow-empty", "-m", "base: first " + 80 * "x")
        since = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, capture_output=True, text=True).stdout.strip()
        self.assertIn("lint: nothing found", self.lint())  # a history without the commit to begin at
        prose = read(self.root, "tools", "lint_prose.py")
        self.write("tools/lint_prose.py", prose.replace("SUBJECTS_SINCE = ", "SUBJECTS_SINCE = %r  # " % since))
        self.git("commit", "-q", "--allow-empty", "-m", "base: %s" % (66 * "x"))
        self.assertIn("lint: nothing found", self.lint())
        self.git("commit", "-q", "--allow-empty", "-m", "base: %s" % (67 * "x"))
        found = self.lint()
        self.assertIn("a subject of 73 characters (72)", found)
        self.assertNotIn("first", found)
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        self.assertIn("lint: nothing found", self.lint())  # published


if __name__ == "__main__":
    unittest.main()
