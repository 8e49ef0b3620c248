# SPDX-License-Identifier: Apache-2.0
"""Examples in documents work as printed: those of the man page, of `fxattn` alone, of docs/shell.md, of docs/guide and
the last line of the demo are run, the program of docs/c.md is compiled and run, programs of docs/ are parsed, and the
message of docs/errors.md is compared. (README.md and the quickstart: tests/install/test_readme.py; Python in docs/:
tests/python/test_docs.py; the messages of docs/program.md: tests/test_program_md.py.)"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import npy_text as npy
from cli_case import FXATTN, PATIENCE, SOURCE, Cli


def text_of(*path):
    with open(os.path.join(SOURCE, *path)) as f:
        return f.read()


class Examples(Cli):
    def shell(self, line):
        """Runs a line in the test's folder. Returns what it prints."""
        path = os.path.dirname(FXATTN) + ":" + os.environ["PATH"]
        p = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder.name,
            env={**os.environ, "PATH": path},
            capture_output=True,
            timeout=PATIENCE,
        )
        self.assertEqual((p.returncode, p.stderr), (0, b""), line)
        return p.stdout.decode()

    def test_man_page(self):
        page = text_of("man", "fxattn.1").split(".Sh EXAMPLES")[1].split(".Sh ")[0]
        lines = re.findall(r"(?m)^(?:\.Dl )?\$ ((?:.*\\e\n)*.*)", page)
        self.assertGreaterEqual(len(lines), 5)
        self.shell("fxattn random --shape h=2,s=16,d=4 --q q.npy --k k.npy --v v.npy --dout do.npy")
        npy.save(self.path("slopes.npy"), npy.Array((2,), [0.5, 0.25]), "f4")
        npy.save(self.path("doc.npy"), npy.Array((4096,), [i // 100 for i in range(4096)]), "i8")
        for line in lines:
            self.shell(line.replace("\\e\n", "\\\n"))
        for name in ("o.npy", "dq.npy", "dslopes.npy", "doc.svg"):
            self.assertTrue(os.path.exists(self.path(name)), name)

    def test_guide(self):
        folder = os.path.join(SOURCE, "docs", "guide")
        pages = [name for name in sorted(os.listdir(folder)) if name.endswith(".md") and name != "quickstart.md"]
        blocks = [block for name in pages for block in re.findall(r"(?ms)^```sh\n(.*?)^```$", text_of("docs", "guide", name))]
        self.assertGreaterEqual(len(blocks), 2)
        for block in blocks:
            self.assertNotEqual(self.shell("set -e\n" + block), "", block)

    def test_first_words(self):
        for text, least in ((self.run_cli(), 3), (text_of("examples", "demo.sh").split('say "next, try')[1], 1)):
            lines = re.findall(r'(?m)^ +fxattn (.*)$|^echo " +\$fxattn (.*)"$', text)
            lines = [first or second for first, second in lines]
            self.assertGreaterEqual(len(lines), least)
            for line in lines:
                self.assertNotEqual(self.shell("fxattn " + line), "", line)

    def test_shell_page(self):
        blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", text_of("docs", "shell.md"))
        lines = re.findall(r"(?m)^fxattn (?:.*\\\n)*.*", "".join(blocks))
        self.assertGreaterEqual(len(lines), 10)
        for line in lines:
            self.shell(line)
        for name in ("o.npy", "dq.npy", "dslope.npy", "documents.svg", "softcap.plan"):
            self.assertTrue(os.path.exists(self.path(name)), name)

    @unittest.skipIf(os.environ.get("FXA_SANITIZE"), "a program outside needs the sanitizer's runtime")
    @unittest.skipUnless(shutil.which("cc"), "no C compiler named cc")
    def test_c_page(self):
        (block,) = re.findall(r"(?ms)^```c\n(.*?)^```$", text_of("docs", "c.md"))
        self.write("alibi.c", block)
        build = os.path.dirname(FXATTN)
        self.shell("cc -std=c11 -Wall -Werror alibi.c -I%s -L%s -lfxattn -o alibi" % (os.path.join(SOURCE, "include"), build))
        self.assertRegex(self.shell("LD_LIBRARY_PATH=%s ./alibi" % build), r"^o \d\.\d+, dslopes -?\d")

    def test_programs_of_the_language_page(self):
        found = re.findall(r"(?m)(?:^    .*\n)+", text_of("docs", "program.md"))
        programs = [textwrap.dedent(x) for x in found if re.search(r"(?m)^    (score|mask) +=", x)]
        self.assertGreaterEqual(len(programs), 3)
        for text in programs:
            if "blocks[" in text:
                text = "tensor blocks : i32[2]\n" + text
            self.run_cli("explain", "--program", self.write("shown.fxa", text))

    def test_message_of_the_error_page(self):
        shown = re.search(r"(?m)^ +alibi\.fxa:3:17: error.*\n.*\n.*\n", text_of("docs", "errors.md")).group(0)
        text = "tensor slopes : f32[1]\nmask = k <= q\n" + shown.splitlines()[1].strip() + "\n"
        self.write("alibi.fxa", text)
        p = subprocess.run(
            [FXATTN, "explain", "--program", "alibi.fxa"], cwd=self.folder.name, capture_output=True, timeout=PATIENCE
        )
        self.assertEqual(p.stderr.decode(), textwrap.dedent(shown))


if __name__ == "__main__":
    unittest.main(verbosity=1)
