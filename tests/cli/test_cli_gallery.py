# SPDX-License-Identifier: Apache-2.0
"""The gallery of the command: every program of examples/programs by its name, wherever the command is installed."""

import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import FXATTN, SOURCE, Cli

PROGRAMS = os.path.join(SOURCE, "examples", "programs")


class Gallery(Cli):
    def names(self):
        return sorted(name[:-4] for name in os.listdir(PROGRAMS) if name.endswith(".fxa"))

    def test_every_program_is_there_as_it_is(self):
        programs = self.run_json("gallery")["programs"]
        self.assertEqual([p["name"] for p in programs], self.names())
        for p in programs:
            with open(os.path.join(PROGRAMS, p["name"] + ".fxa"), encoding="utf-8") as f:
                text = f.read()
            self.assertEqual(p["text"], text)
            comment = " ".join(x[2:] for x in text.split("\n") if x.startswith("#"))
            self.assertTrue(p["about"] and comment.startswith(p["about"]), p["about"])
            self.assertTrue(p["about"].endswith("."), p["about"])

    def test_text(self):
        out = self.run_cli("gallery")
        self.assertTrue(all(len(line) <= 100 for line in out.splitlines()))
        words = out.split()
        for name in self.names():
            self.assertEqual(words.count("@" + name), 1)
        with open(os.path.join(PROGRAMS, "alibi.fxa")) as f:
            text = f.read()
        self.assertEqual(self.run_cli("gallery", "alibi"), text)
        self.assertEqual(self.run_cli("gallery", "@alibi"), text)
        self.assertEqual(self.run_json("gallery", "alibi")["programs"][0]["text"], text)
        self.assertEqual(len(self.run_json("gallery", "alibi")["programs"]), 1)

    def test_the_same_as_its_file(self):
        for name in ("alibi", "block_diffusion", "time_decay"):
            ours = self.run_json("explain", "--program", "@" + name)
            file = self.run_json("explain", "--program", os.path.join(PROGRAMS, name + ".fxa"))
            self.assertEqual(ours["canonical"], file["canonical"])
            self.assertEqual(ours["program"][0]["name"], "@" + name)

    def test_joins_with_other_texts(self):
        e = self.run_json("explain", "--program", "@softcap", "--param", "cap=20", "--mask", "k <= q")
        self.assertIn("tanh", e["canonical"]["text"])
        self.assertIn("causal", e["properties"]["flags"])

    def test_wherever_the_command_lies(self):
        moved = os.path.join(self.folder.name, "fxattn")
        shutil.copy(FXATTN, moved)
        p = subprocess.run([moved, "explain", "--program=@causal"], capture_output=True, cwd=self.folder.name)
        self.assertEqual((p.returncode, p.stderr), (0, b""))

    def test_wrong_names(self):
        self.fails("explain", "--program", "@alibbi", says="did you mean @alibi?")
        self.fails("explain", "--program", "@window", says=["did you mean one of ", "@causal_window, ", "fxattn gallery"])
        self.fails("explain", "--program", "@xyzzy", says="no program 'xyzzy'; 'fxattn gallery' lists all")
        self.fails("explain", "--program", "@", says=["a name of the gallery", "--program @", "fxattn gallery"])
        self.fails("explain", "--program", "alibi", says="is @alibi")
        self.fails("explain", "--bprop", "@alibi", says="score programs only")
        self.fails("gallery", "alibbi", says="did you mean @alibi?")
        self.fails("gallery", "alibi", "causal", says="one name, not 2")
        self.fails("explain", "--program", "@alibbi", "--json")
        self.assertIn("cannot be read", self.fails("explain", "--program", "./@alibi"))

    def test_a_file_of_such_a_name(self):
        file = self.write("@alibi", "score = 2 * score\n")
        self.assertIn("score = 2.0 * score", self.run_json("explain", "--program", file)["canonical"]["text"])

    def test_bash_completion(self):
        complete = self.bash_completion()
        # the words into which bash splits `--program @tr`, `--program=@tr`, `--program @` and `--program `
        self.assertEqual(complete("fxattn", "explain", "--program", "@", "tr"), ["@tree"])
        self.assertEqual(complete("fxattn", "explain", "--program", "=@", "tr"), ["@tree"])
        self.assertIn("@tree", complete("fxattn", "explain", "--program", "@"))
        self.assertIn("@tree", complete("fxattn", "explain", "--program", "=@"))
        self.assertLessEqual({"@tree", "complete.bash"}, set(complete("fxattn", "explain", "--program", "")))
        self.assertEqual(complete("fxattn", "gallery", "tr"), ["tree"])
        for shell in ("zsh", "fish"):
            self.assertIn(" @tree ", self.run_cli("completion", shell))


if __name__ == "__main__":
    unittest.main(verbosity=1)
