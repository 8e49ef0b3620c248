# SPDX-License-Identifier: Apache-2.0
"""Mutant schemata: one library that contains all mutants of a run. Used by tools/mutants.py.

A function with mutants contains its original body and one body for each mutant: `if (fxa__mutant == 3) {...} else
{...}`. The environment variable FXA_MUTANT selects the mutant when the library is loaded (mutants_schema.c). The
original body marks the mutants whose statements it reaches; a test run with FXA_REACHED records these marks. A mutant
outside of functions (a table, a constant) is compiled into a separate library."""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import mutants_changes as changes

STATEMENT = re.compile(r"(?<=[;{}]\n) +(?=[A-Za-z_*(+-])(?!\s*(?:else|case|default)\b)")
BLOCK = re.compile(r"(?:\) |else |do |: |^\s*)$")
RELINKED = ("test_dl", "test_system_refuses") # contain the library's objects: see cmake/mutants.cmake


def say(command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)


def statements(hidden):
    """Returns [(index, path)] of the statements of a body that a mark may precede; path: the open blocks' indices."""
    starts, stack, out = {m.end() for m in STATEMENT.finditer(hidden)}, [], []
    for at, c in enumerate(hidden):
        if at in starts and all(kind == "{" for kind, _ in stack):
            out.append((at, tuple(begin for _, begin in stack)))
        if c in "([{":
            block = c == "{" and BLOCK.search(hidden[hidden.rfind("\n", 0, at) + 1:at])
            stack.append(("{" if block else "(", at))
        elif c in ")]}" and stack:
            stack.pop()
    return out


def open_blocks(hidden, at):
    """Returns the indices of the braces and parentheses that are open at an index."""
    stack = []
    for i, c in enumerate(hidden[:at]):
        if c in "([{":
            stack.append(i)
        elif c in ")]}" and stack:
            stack.pop()
    return stack


def mark_at(hidden, at, places):
    """Returns the last statement before index `at` whose block is still open at `at`. It runs whenever `at` is
    reached."""
    here = open_blocks(hidden, at)
    return max((place for place, path in places if place <= at and list(path) == here[:len(path)]), default=0)


def copies(text, mutants, coarse):
    """Returns (source text with the bodies of `mutants` {number: mutant}, {line: mutant number} of these bodies). In
    functions of `coarse`, all marks are at the start of the function."""
    hidden, out, end = changes.hide(text), "", 0
    lines, found = {}, {n: changes.place(m, text) for n, m in mutants.items()}
    for function, group in changes.bodies(hidden):
        first, last = function.span(group)
        mine = {n: at for n, at in found.items() if at is not None and first <= at <= last}
        if not mine:
            continue
        body, labels = text[first:last], re.findall(r"\bgoto (\w+)", hidden[first:last])
        places, marks = statements(hidden[first:last]), {}
        for n, at in mine.items():
            marks.setdefault(0 if first in coarse else mark_at(hidden[first:last], at - first, places), []).append(n)
        out += text[end:first]
        for n, at in mine.items():
            m = mutants[n]
            changed = text[first:at] + m["new"] + text[at + len(m["old"]):last]
            for label in labels:
                changed = re.sub(rf"\b{label}\b", f"{label}_{n}", changed)
            out += "\n" if out else ""
            begin = out.count("\n") + 1
            out += f"if (fxa__mutant == {n}) {{\n{changed}\n}} else "
            for line in range(begin, out.count("\n") + 2):
                lines[line] = n
        begin, at = out.count("\n") + 2, 0
        out += "{\n"
        for place, numbers in sorted(marks.items()):
            out += body[at:place] + "".join(f"fxa__reached[{n}] = 1; " for n in numbers) + ("" if place else "\n")
            at = place
        out += body[at:] + "\n}\n"
        for line in range(begin, out.count("\n") + 1):
            lines[line] = -first
        end = last
    return out + text[end:], lines


def relinked(build, name, library):
    """Returns the path of test program `name` when it is linked with the objects of `library`. It is in the folder of
    the other tests, because some tests expect that."""
    return build / "tests" / f"{name}-{library.name}"


def kind_of(source):
    return "fxattn_kernels" if "/cpu/kernels/" in source or "/" not in source else "fxattn_checked_objects"


class Schema:
    def __init__(self, work, tree, build, jobs, sanitize):
        self.tree, self.build, self.jobs = tree, build, jobs
        self.sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitize else []
        self.folder, self.changed = work / "schema", work / "changed"
        rows = json.loads((build / "compile_commands.json").read_text())
        rows = [r for r in rows if re.search(r"/fxattn_(checked_objects|kernels)\.dir/", r["command"])]
        self.commands = {os.path.relpath(r["file"], tree if str(tree) in r["file"] else build): r["command"] for r in rows}
        self.objects = {}

    def command(self, unit, source, out, *flags):
        """Returns the command that compiles `source` in place of `unit`, a translation unit of the library, to
        `out`."""
        line = re.sub(r" -o \S+| -c \S+", "", self.commands[unit])
        return [*shlex.split(line), "-w", *flags, "-c", str(source), "-o", str(out)]

    def includers(self, file):
        """Returns the translation units that include `file`, or are it."""
        found, new = set(), {os.path.basename(file)}
        while new - found:
            found |= new
            new = {p.name for p, names in self.includes.items() if names & found}
        return [unit for unit in self.commands if os.path.basename(unit) in found]

    def make(self, mutants):
        """Builds the library with the mutants {number: mutant} that are in functions. Returns the numbers of mutants
        that do not compile."""
        say(["rm", "-rf", self.changed, self.folder])
        say(["mkdir", "-p", self.changed, self.folder], check=True)
        say(["cp", "-r", self.tree / "src", self.changed], check=True)
        self.includes = {p: {os.path.basename(n) for n in re.findall(r'#include "([^"]+)"', p.read_text())}
                         for p in (self.tree / "src").rglob("*.[chi]*")}
        files, bad, coarse = {}, set(), {}
        for n, m in mutants.items():
            if m["inside"]:
                files.setdefault(m["file"], {})[n] = m
        everything = {unit for file in files for unit in self.includers(file)}
        for flags in (("-fsyntax-only",), ()):
            units = everything
            while units:
                lines = self.write(files, bad, coarse)
                with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
                    errors = dict(zip(units, pool.map(lambda unit: self.compile(unit, *flags), units)))
                units = {unit for unit in units if errors[unit]}
                blamed = self.blame(errors.values(), lines, bad, coarse)
                if units and not blamed:
                    raise SystemExit("mutants.py: the mutants do not compile:\n" + "".join(errors.values())[:3000])
                units |= {unit for file in blamed if not file.endswith(".c") for unit in self.includers(file)}
        hook = self.folder / "mutants_schema.o"
        say(["cc", "-O1", "-fPIC", "-c", Path(__file__).with_name("mutants_schema.c"), "-o", hook,
             f"-DMUTANTS={max(mutants, default=0) + 1}"], check=True)
        for name in ("libfxattn_checked.so", *RELINKED):
            self.link(name, self.folder, self.objects, [hook, *self.sanitize])
        return bad

    def write(self, files, bad, coarse):
        """Writes the sources with their mutants, without those in `bad`. Returns {file: {line: mutant number}} of the
        bodies."""
        lines = {}
        for file, mine in files.items():
            text, lines[file] = copies((self.tree / file).read_text(), {n: m for n, m in mine.items() if n not in bad},
                                       coarse.get(file, set()))
            if (self.changed / file).read_text() != text:
                (self.changed / file).write_text(text)
        return lines

    def blame(self, errors, lines, bad, coarse):
        """Adds mutants that do not compile to `bad`, and functions whose marks do not compile to `coarse`. Returns
        their files."""
        files = set()
        for file, line in set(re.findall(rf"^{re.escape(str(self.changed))}/(\S+?):(\d+):\d+: error", "".join(errors), re.M)):
            n = lines.get(file, {}).get(int(line), 0)
            if n > 0:
                bad.add(n)
                files.add(file)
            elif n < 0 and -n not in coarse.setdefault(file, set()):
                coarse[file].add(-n)
                files.add(file)
        return files

    def compile(self, unit, *flags):
        """Compiles a translation unit with its mutants. Returns the compiler's errors."""
        out = self.objects[unit] = self.folder / (unit.replace("/", "-") + ".o")
        command = self.command(unit, self.changed / unit, out, *flags, *self.sanitize, "-include",
                               str(Path(__file__).with_name("mutants_schema.h")))
        done = say([word.replace(f"{self.tree}/src", f"{self.changed}/src") for word in command], cwd=self.build)
        return done.stderr or "failed" if done.returncode else ""

    def link(self, name, folder, objects, more):
        """Links target `name` of the build again into `folder`, with some of its objects replaced."""
        target = name if name not in RELINKED else f"tests/{name}"
        line = say(["ninja", "-C", self.build, "-t", "commands", target], check=True).stdout.splitlines()[-1]
        for unit, path in objects.items():
            line = line.replace(f"CMakeFiles/{kind_of(unit)}.dir/{unit}.o", str(path))
        out = folder / name if name not in RELINKED else relinked(self.build, name, folder)
        line = re.sub(r" -o \S+", f" -o {out}", line)
        words = shlex.split(line.removeprefix(": && ").removesuffix(" && :"))
        done = say([*words, *more], cwd=self.build)
        if done.returncode:
            raise SystemExit(f"mutants.py: {name} was not linked:\n{done.stderr[-2000:]}")

    def alone(self, mutant, folder):
        """Compiles a translation unit with one mutant in place of the original text. Returns "uncompiled", "same"
        (compiles to the same code) or None. The text of a CUDA kernel is part of a unit that CMake writes."""
        source, codes = self.tree / mutant["file"], []
        text, unit = source.read_text(), mutant["file"]
        at, changed = changes.place(mutant, text), folder / "changed" / mutant["file"]
        say(["rm", "-rf", folder / "changed"])
        say(["mkdir", "-p", changed.parent])
        if source.suffix in (".cu", ".cuh"):
            unit, flags = "cuda_sources.c", ["-I", str(self.tree / "src")]
            say(["cp", "-r", self.tree / "src", folder / "changed"])
        elif source.suffix != ".c":
            return None # a mutant in a header, which many units include
        else:
            flags = ["-iquote", str(source.parent)]
        for name, now in (("before", text), ("after", text[:at] + mutant["new"] + text[at + len(mutant["old"]):])):
            changed.write_text(now)
            if unit != mutant["file"]:
                say(["cmake", f"-DFOLDER={folder}/changed/src", f"-DOUTPUT={folder}/changed/{unit}",
                     "-P", self.tree / "cmake" / "embed_cuda.cmake"], check=True)
            command = self.command(unit, folder / "changed" / unit, folder / f"{name}.o", *flags)
            if say([word for word in command if word != "-O1"] + ["-O2"], cwd=self.build).returncode:
                return "uncompiled"
            codes.append((folder / f"{name}.o").read_bytes())
        for name in ("libfxattn_checked.so", *RELINKED):
            self.link(name, folder, {unit: folder / "after.o"}, [])
        return "same" if codes[0] == codes[1] else None
