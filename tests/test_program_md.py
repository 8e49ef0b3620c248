#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/program.md is what tools/gen_program_md.py makes of ops.def, names all operations, shows errors as they are."""
import os
import re
import subprocess
import sys
import unittest

ROOT = os.environ.get("FXA_SOURCE", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import gen_program_md as gen  # noqa: E402

COMMAND = os.path.join(os.environ.get("FXA_BUILD", "build"), "fxattn")


class Page(unittest.TestCase):
    def test_is_up_to_date(self):
        with open(gen.PAGE, encoding="utf-8") as f:
            self.assertEqual(f.read(), gen.page(), "run tools/gen_program_md.py")

    def test_names_every_operation(self):
        """R-15: documentation comes with the operation."""
        page = gen.page()
        rows = len(re.findall(r"^OP\(", gen.read("src", "program", "ops.def"), re.M))
        operations = gen.operations()
        self.assertEqual(len(operations), rows)
        for op in operations:
            if op["form"] != "SPECIAL":
                self.assertIn("`%s`" % gen.cell(gen.spelling(op)), page, op["id"])

    def test_has_no_leftover_marks(self):
        self.assertNotRegex(gen.page(), r"@\w+@")

    @unittest.skipUnless(os.path.exists(COMMAND), "the command is not built")
    def test_errors_are_as_shown(self):
        for text, line, column, length, message in gen.ERRORS:
            with self.subTest(text=text):
                run = subprocess.run([COMMAND, "explain", "--program", "-"], input=text, capture_output=True, text=True,
                                     timeout=60, check=False)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(":%d:%d: error: %s\n" % (line, column, message), run.stderr)
                self.assertRegex(run.stderr, r"(?m)^ +%s$" % re.escape("^" * length))


if __name__ == "__main__":
    unittest.main()
