# SPDX-License-Identifier: Apache-2.0
"""The command line itself: commands, options, help, completion, streams, terminals, exit codes."""

import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import FXATTN, OTHER, SOURCE, UNSUPPORTED, Cli


class Front(Cli):
    """Commands, options, help, completion, man page."""

    def test_version(self):
        self.assertRegex(self.run_cli("version"), r"^fxattn \d+\.\d+\.\d+\n$")
        self.assertEqual(self.run_cli("--version"), self.run_cli("version"))
        self.assertEqual("fxattn %s\n" % self.run_json("version")["version"], self.run_cli("version"))

    def test_engines(self):
        lines = self.run_cli("engines", env={"FXA_CPU": "scalar", "FXA_THREADS": "1"}).splitlines()
        self.assertIn("ref      host", lines)
        self.assertIn("cpu      host, scalar, 1 thread", lines)
        listed = {e["name"]: e for e in self.run_json("engines", env={"FXA_CPU": "scalar", "FXA_THREADS": "1"})["engines"]}
        self.assertEqual(listed["cpu"], {"name": "cpu", "device": "host", "available": True,
                                         "detail": "scalar, 1 thread", "reason": ""})
        away = {e["name"]: e for e in self.run_json("engines", env={"FXA_CPU": "z80"})["engines"]}["cpu"]
        self.assertFalse(away["available"])
        self.assertIn("FXA_CPU=z80", away["reason"])
        self.assertRegex(self.run_cli("engines", env={"FXA_CPU": "z80"}), r"(?m)^cpu      host, not here: .*FXA_CPU=z80")
        self.assertEqual(self.bash_completion()("fxattn", "run", "--engine", "re"), ["ref"])
        self.assertEqual(self.bash_completion()("fxattn", "run", "--engine", "ho"), [])

    def test_help(self):
        overview = self.run_cli("help")
        self.assertEqual(overview, self.run_cli("--help"))
        for command in self.run_json("help")["commands"]:
            self.assertIn(command["name"], overview)
            text = self.run_cli("help", command["name"])
            self.assertEqual(text, self.run_cli(command["name"], "--help"))
            self.assertTrue(all(len(line) <= 100 for line in text.splitlines()))
            for option in command["options"]:
                self.assertIn("  --%s" % option["name"], text)

    def test_help_of_a_command_as_json(self):
        commands = self.run_json("help")["commands"]
        for command in commands:
            self.assertEqual(self.run_json("help", command["name"])["commands"], [command])
            self.assertEqual(self.run_json(command["name"], "--help")["commands"], [command])
            self.assertTrue(all(o["about"] and o["group"] for o in command["options"]))
        self.assertEqual(self.run_json("--help")["commands"], commands)

    def test_without_arguments(self):
        """Output without arguments: three commands that work as printed, and where to read on."""
        lines = [line.strip() for line in self.run_cli().splitlines() if line.startswith("  fxattn ")]
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.run_cli(*shlex.split(line)[1:])
        for where in re.findall("'fxattn ([^']*)'", self.run_cli()):
            self.run_cli(*where.split())

    def test_help_language(self):
        text, told = self.run_cli("help", "language"), self.run_json("help", "language")
        self.assertTrue(all(len(line) <= 100 for line in text.splitlines()))
        with open(os.path.join(SOURCE, "src", "program", "ops.def")) as f:
            rows = re.findall(r'^OP\(.*?, *(\w+), *"([^"]*)", *(INFIX|PREFIX|CALL), .*"([^"]*)"\)$', f.read(), re.M)
        self.assertGreater(len(rows), 40)
        listed = {(x["name"], x["about"]) for x in told["operators"] + told["functions"]}
        for _, spelling, _, about in rows:
            self.assertIn((spelling, about), listed)
        self.assertLessEqual({"&&", "||", "!"}, {x["name"] for x in told["operators"]})
        with open(os.path.join(SOURCE, "docs", "program.md")) as f:
            words = set(re.findall(r"`(\w+)`", f.read()))
        for x in told["inputs"]:
            self.assertIn(x["name"], words)
        for group in told.values():
            for x in group:
                self.assertTrue(x["about"], x)
                self.assertIn("  " + x.get("form", x.get("name")), text)
        self.fails("help", "langage", says="did you mean 'language'?")
        self.assertIn("language", self.bash_completion()("fxattn", "help", "lang"))

    def test_help_language_is_true(self):
        """help language: example and statements parse, operators bind in the order of the list."""
        text = self.run_cli("help", "language")
        example = text.split("\n\n")[1]
        self.run_cli("explain", "--program", "-", stdin=example.encode())
        for x in self.run_json("help", "language")["statements"]:
            line = x["form"].replace("DTYPE[RANK]", "f32[2]").replace("NAME", "x")
            line = line.replace("EXPR", "q < k" if line.startswith("mask") else "q * 0.5")
            self.run_cli("explain", "--bprop" if "dscore" in line else "--program", "-", stdin=line.encode())
        for x in self.run_json("help", "language")["loops"]:
            expr = {"sum": "sum(i, 4, i * q)", "any": "any(i, 4, i == q)", "all": "all(i, 4, i < q)"}[x["form"][:3]]
            self.run_cli("explain", "--score", "float(%s)" % expr)

    def table(self):
        """Returns the names in opts.def, without running the command."""
        with open(os.path.join(SOURCE, "cli", "opts.def")) as f:
            text = f.read()
        return re.findall(r'^CMD\(\w+,\s*"([^"]+)"', text, re.M), re.findall(
            r'^OPT\(\w+,\s*"[^"]+",\s*"([^"]+)"', text, re.M
        )

    def test_every_option_is_in_help_man_and_completion(self):
        """R-09: score program, backward program and the tensors of each are options."""
        commands, options = self.table()
        self.assertGreater(len(options), 40)
        self.assertLessEqual({"program", "bprop", "tensor", "bprop-tensor"}, set(options))
        described = {o["name"] for c in self.run_json("help")["commands"] for o in c["options"]}
        self.assertEqual(described, set(options))
        with open(os.path.join(SOURCE, "man", "fxattn.1")) as f:
            man = f.read()
        scripts = {shell: self.run_cli("completion", shell) for shell in ("bash", "zsh", "fish")}
        for option in options:
            self.assertRegex(man, r"(?m)^\.It Fl Fl %s\b" % re.escape(option))
            self.assertRegex(scripts["bash"], r" --%s[ \")]" % re.escape(option))
            self.assertRegex(scripts["zsh"], r"--%s=?\[" % re.escape(option))
            self.assertIn("-l %s " % option, scripts["fish"])
        for command in commands:
            self.assertRegex(man, r"(?m)^\.It Ic %s\b" % command)
            for script in scripts.values():
                self.assertIn(command, script)

    def test_bash_completion_works(self):
        complete = self.bash_completion()
        self.assertEqual(complete("fxattn", "exp"), ["explain"])
        self.assertEqual(complete("fxattn", "run", "--layout", "b"), ["bhsd", "bshd"])
        self.assertEqual(complete("fxattn", "run", "--layout", "=", "b"), ["bhsd", "bshd"])
        self.assertIn("complete.bash", complete("fxattn", "run", "--tensor", "t", "=", "comp"))
        self.assertEqual(complete("fxattn", "run", "--q-l"), ["--q-lengths"])
        self.assertEqual(complete("fxattn", "plan", "s"), ["save", "show"])
        self.assertIn("complete.bash", complete("fxattn", "run", "--q", "comp"))

    def test_fish_completion_works(self):
        if not shutil.which("fish"):
            self.skipTest("fish was not found")
        script = self.write("complete.fish", self.run_cli("completion", "fish"))

        def complete(line):
            p = subprocess.run(
                ["fish", "--no-config", "-c", "source %s; complete -C '%s'" % (shlex.quote(script), line)],
                capture_output=True,
                env={**os.environ, "PATH": os.path.dirname(FXATTN) + ":" + os.environ["PATH"]},
                timeout=60,
                check=True,
            )
            return [x.split("\t")[0] for x in p.stdout.decode().splitlines()]

        self.assertEqual(complete("fxattn exp"), ["explain"])
        self.assertEqual(complete("fxattn explain --program @ali"), ["@alibi", "@alibi_symmetric"])
        self.assertEqual(complete("fxattn explain --program=@alibi_"), ["--program=@alibi_symmetric"])
        self.assertEqual(complete("fxattn gallery alibi_"), ["alibi_symmetric"])
        self.assertEqual(complete("fxattn explain --engine r"), ["ref"])
        self.assertIn("language", complete("fxattn help lang"))

    def zsh(self, line, wants):
        """Returns what an interactive zsh prints after `line` and a tab, until the expected text or 30 s."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder.name)
            os.environ.update(PATH=os.path.dirname(FXATTN) + ":" + os.environ["PATH"], TERM="dumb")
            os.execvp("zsh", ["zsh", "-f", "-i"])
        seen, end = b"", time.monotonic() + 30
        setup = "autoload -Uz compinit; compinit -u -D; source ./_fxattn; stty columns 200; echo rea''dy\n"
        steps = [(b"ready", setup), (wants.encode(), line + "\t")]
        for until, text in steps:
            seen = b""
            os.write(terminal, text.encode())
            while until not in seen and time.monotonic() < end:
                if select.select([terminal], [], [], 0.2)[0]:
                    seen += os.read(terminal, 65536)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
        return seen.decode(errors="replace")

    def test_zsh_completion_works(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh was not found")
        self.write("_fxattn", self.run_cli("completion", "zsh"))
        self.write("values.npy", "")
        for line, rest in (
            ("fxattn exp", "lain"),
            ("fxattn explain --program @axi", "al_image"),
            ("fxattn explain --program=@axi", "al_image"),
            ("fxattn explain --tensor t=val", "ues.npy"),
            ("fxattn gallery axi", "al_image"),
            ("fxattn run --engine r", "ef"),
            ("fxattn help lang", "uage"),
        ):
            self.assertIn(line + rest, self.zsh(line, line + rest))

    def test_wrong_words(self):
        self.fails("explian", says="did you mean 'explain'?")
        self.fails("frobnicate", says="fxattn help")
        self.fails("--json", "explain", says="the command comes before its options")
        self.fails("run", "--laiout", "bhsd", says="did you mean --layout?")
        self.fails("explain", "--dq", "x", says="'explain' has no option --dq")
        self.fails("run", "-q", "x", says="two dashes")
        self.fails("explain", "extra", says="extra")
        self.fails("explain", "--causal=1", says="takes no value")
        self.fails("explain", "--shape", says="needs a value")
        self.fails("explain", "--shape", "b=1", "--shape", "b=2", says="given twice")
        self.fails("completion", "bsh", says="did you mean 'bash'?")
        self.fails("help", "polt", says="did you mean 'plot'?")
        self.fails("plan", "shwo", "x", says="did you mean 'show'?")
        self.fails("explain", "--engine", "rfe", says="did you mean 'ref'?")
        self.fails("explain", "--engine", "rfe", "--json")
        self.fails("explain", "--window", "3", says="two numbers")
        for command in ("explain", "plot"):
            self.fails(command, "--window", "3,-2", "--shape", "s=8,d=4",
                       says="window_right is -2: accepted are -1 to 2147483647 (-1 does not limit the window)")
        self.fails("explain", "--decode", "--shape", "sq=2", says="--decode has one row")
        self.fails("explain", "--tile", "0,4", says="from 1")
        self.fails("explain", "--dtype", "f8", says="bf16")
        self.fails("bench", "--pass", "up", says="fwd, bwd")
        self.fails("bench", "--reps", "0", says="from 1")
        self.fails("bench", "--grads", "some", says="all, qkv")
        self.fails("bench", "--threads", "0", says="from 1 to 1024")
        self.fails("run", "--threads", "1025", says="from 1 to 1024")
        self.fails("bench", env={"FXA_THREADS": "many"}, says="FXA_THREADS")
        self.fails("explain", "--dropout-p", "1.5", says="dropout")

    def test_shape_errors(self):
        self.fails("explain", "--shape", "b=1,w=2", says=["no 'w'", "b h hkv s sq sk d d_v"])
        self.fails("explain", "--shape", "b=x", says="b=x")
        self.fails("explain", "--shape", "b", says="key=number")
        self.fails("explain", "--shape", "b=-1", says="b=-1")
        self.fails("explain", "--shape", "b=1,b=2", says="given twice")
        self.fails("explain", "--shape", "d=99999", says="99999")
        self.fails("explain", "--shape", "h=3,hkv=2")
        self.fails("explain", "--shape", "b=99999999999999999999", says="b=")
        self.fails("bench", "--shape", "hkv=0", says=["hkv=0", "h=0"])
        self.fails("explain", "--shape", "h=2,hkv=0", says=["hkv=0", "h=0"])
        self.fails("explain", "--shape", "b=4611686018427387904,s=4611686018427387904")

    def test_full_device(self):
        with open("/dev/full", "w") as full:
            p = subprocess.run([FXATTN, "help"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(p.returncode, OTHER)
        self.assertIn(b"standard output", p.stderr)

    def test_reader_that_leaves(self):
        """A closed pipe is no error, as in fxattn help | head."""
        read, write = os.pipe()
        os.close(read)
        p = subprocess.run([FXATTN, "help"], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((p.returncode, p.stderr), (OTHER, b""))


class Terminal(Cli):
    """Output that only terminals get: colour, and progress after a second."""

    def on_terminal(self, args, stream, until=None, env=None, number=None, seconds=None):
        """Returns the output on a pseudo terminal: up to the end, up to `until`, or of some seconds. With a signal number,
        that signal is sent at `until`, and the output goes up to the end."""
        master, slave = pty.openpty()
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: slave}
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        p = subprocess.Popen([FXATTN, *args], **streams, env={**environment, **(env or {})})
        os.close(slave)
        seen = b""
        if seconds:
            time.sleep(seconds)
            self.assertIsNone(p.poll(), "too short to tell")
            p.terminate()
        while until is None or until not in seen or number:
            if number and until in seen:
                p.send_signal(number)
                until = None
                number = None
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        p.terminate()
        p.wait()
        os.close(master)
        return seen

    def test_colour(self):
        args = ["plot", "--score", "score * 0.5 ** (q - k)", "--causal", "--shape", "s=16"]
        self.assertIn(b"\033[38;2;", self.on_terminal(args, "stdout"))
        plain = self.on_terminal(args, "stdout", env={"NO_COLOR": "1"})
        self.assertNotIn(b"\033", plain)
        self.assertIn("\u2584".encode(), plain)

    def test_progress(self):
        long = ["bench", "--shape", "s=2048", "--reps", "1000"]
        self.assertIn(b"bench", self.on_terminal(long, "stderr", until=b" s"))
        self.assertEqual(self.on_terminal(["bench", "--shape", "s=8", "--reps", "1"], "stderr"), b"")

    def long_run(self):
        """Returns the options of a run of about ten seconds."""
        files = {name: self.path(name + ".npy") for name in "qkvo"}
        self.run_cli("random", "--shape", "h=4,s=4096,d=64", *(x for n in "qkv" for x in ("--" + n, files[n])))
        return ["run", "--engine", "ref", *(x for n in "qkv" for x in ("--" + n, files[n])), "--out", files["o"]]

    def test_run_shows_percent(self):
        long = self.long_run()
        seen = self.on_terminal(long, "stderr", until=b"% 2 s")
        shares = [int(x) for x in re.findall(rb"forward (\d+)% ", seen)]
        self.assertEqual(shares, sorted(shares))
        self.assertTrue(shares and 0 < shares[-1] < 100, seen)
        self.assertEqual(self.on_terminal([*long, "--json"], "stderr", seconds=1.6), b"")
        self.assertEqual(self.on_terminal(long, "stdout", seconds=1.6), b"")

    def test_interrupt_takes_the_line_away(self):
        long = ["bench", "--shape", "s=2048", "--reps", "100000"]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            seen = self.on_terminal(long, "stderr", until=b" s", number=number)
            self.assertRegex(seen, rb"bench(, first runs)? \d+% \d+ s")  # the speed of the machine decides which of the two is shown
            self.assertTrue(seen.endswith(b"\r\033[K"), seen)


class Unsupported(Cli):
    def test_exit_code(self):
        """An engine that refuses gives exit code 3 with its reason; an unknown engine is bad input."""
        problem = ("--device", "cuda", "--dtype", "f64", "--shape", "s=16,d=7")  # the engine is absent, or does not support f64
        refused = [x for x in self.run_json("explain", *problem)["engines"] if x["engine"] == "cudnn"]
        self.assertEqual([x["pass"] for x in refused], ["forward", "backward"])
        for x, way in zip(refused, ("fwd", "bwd")):
            self.fails("bench", *problem, "--engine", "cudnn", "--pass", way, code=UNSUPPORTED, says=x["reason"])
        self.fails("bench", "--shape", "s=8", env={"FXA_ENGINE": "nosuchengine"}, says="nosuchengine")


if __name__ == "__main__":
    unittest.main(verbosity=1)
