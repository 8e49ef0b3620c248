# SPDX-License-Identifier: Apache-2.0
"""Runs tests on mutants and determines their verdicts. Used by tools/mutants.py."""
import concurrent.futures
import json
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from mutants_schema import RELINKED, relinked

PRELOADED = {} # the sanitizers' libraries, where the library of the mutants needs them
FAILURE = re.compile(rb"^FAIL |\[\w+, seed \d+\]$", re.M)


def cpu_of(pid):
    """Returns the CPU time [ticks] of a process and its ended children; None if the process has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]
    except OSError:
        return None


def run_test(test, limit, place, library, **env):
    """Runs a test in folder `place` with `library` in place of the library of the build, until its first failure.
    Returns (verdict, CPU time [s], the line of output that names the failure). Verdicts are passed, skipped, failed and
    timeout."""
    def limits():
        for what, most in ((resource.RLIMIT_CPU, int(limit) + 1), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(what, (most, most))
    command = list(test["command"])
    name = os.path.basename(command[0])
    if name in RELINKED:
        command[0] = str(relinked(Path(command[0]).parent.parent, name, library))
    paths = ":".join(filter(None, (str(library), test["env"].get("LD_LIBRARY_PATH"))))
    env = {**os.environ, **test["env"], **env, "LD_LIBRARY_PATH": paths, "TMPDIR": str(place), **PRELOADED}
    child = subprocess.Popen(command, cwd=place, env=env, preexec_fn=limits, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    said, verdict, end, used = b"", None, time.monotonic() + 6 * limit + 15, None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while verdict is None:
            if not selector.select(max(end - time.monotonic(), 0)):
                if cpu_of(child.pid) == used: # no CPU time was used: the test is deadlocked, not slow
                    verdict = "timeout"
                    break
                used, end = cpu_of(child.pid), time.monotonic() + 30
                continue
            part = os.read(child.stdout.fileno(), 1 << 16)
            said += part
            if not part:
                break
            if FAILURE.search(said[-len(part) - 200:]):
                verdict = "failed"
    if verdict:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    verdict = verdict or {0: "passed", 77: "skipped", -signal.SIGXCPU: "timeout",
                          -signal.SIGKILL: "timeout"}.get(child.returncode, "failed")
    lines = said.decode(errors="replace").splitlines()
    words = [line for line in lines if re.search(r"FAIL|fail|rror", line)] or lines[-1:]
    return verdict, usage.ru_utime + usage.ru_stime, words[0].strip()[:120] if words else f"exit {child.returncode}"


def tests_of(build, scale, skip):
    """Returns the C tests of a build, those with less than a scale of their own at that scale."""
    listed = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, text=True, check=True).stdout
    for t in json.loads(listed)["tests"]:
        command, properties = t.get("command"), {p["name"]: p["value"] for p in t.get("properties", [])}
        if command and command[0].startswith(str(build / "tests")) and not (skip and re.search(skip, t["name"])):
            env = {"FXA_TEST_SCALE": str(scale), **dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))}
            yield {"name": t["name"], "command": command, "env": env}


class Judge:
    def __init__(self, work, schema, build, given):
        self.work, self.schema, self.build, self.given = work, schema, build, given
        self.kills, self.tests, self.lock, self.local = {}, [], threading.Lock(), threading.local()
        self.workers = 0
        if schema.sanitize:
            find = lambda name: subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
            PRELOADED["LD_PRELOAD"] = f"{find('libasan.so')}:{find('libubsan.so')}"

    def place(self):
        """Returns the folder in which this thread runs tests."""
        if not hasattr(self.local, "place"):
            with self.lock:
                self.workers += 1
                self.local.place = self.work / f"place{self.workers}"
            shutil.rmtree(self.local.place, ignore_errors=True)
            self.local.place.mkdir()
        return self.local.place

    def learn(self, count):
        """Runs every test on the unchanged code. Stores those that pass, with their CPU time and the mutants that they
        reach, in a file that a resumed run reads."""
        learned = self.work / "learned.json"
        if self.given.resume and learned.exists():
            self.tests = [dict(test, reached=set(test["reached"])) for test in json.loads(learned.read_text())]
            return

        def one(test):
            reached = self.place() / "reached"
            for scale in (None, "0.1", "0.02"):
                if scale:
                    test["env"]["FXA_TEST_SCALE"] = scale
                reached.write_bytes(bytes(count + 1))
                verdict, test["seconds"], said = run_test(test, self.given.longest, self.place(), self.schema.folder,
                                                          FXA_REACHED=str(reached))
                if verdict != "timeout":
                    break
            test["reached"] = {n for n, mark in enumerate(reached.read_bytes()) if mark}
            if verdict == "passed":
                self.tests.append(test)
            print(f"{test['seconds']:7.2f} s {verdict:8} {test['name']} {'' if verdict == 'passed' else said}", flush=True)
        with concurrent.futures.ThreadPoolExecutor(self.given.jobs) as pool:
            list(pool.map(one, tests_of(self.build, self.given.scale, self.given.skip)))
        learned.write_text(json.dumps([dict(test, reached=sorted(test["reached"])) for test in self.tests]))

    def note(self, result):
        for place in (result["file"], os.path.dirname(result["file"])):
            self.kills[place, result["by"]] = self.kills.get((place, result["by"]), 0) + 1

    def reaching(self, n, mutant):
        """Returns the tests that reach a mutant: the one that killed it before, then by probability of killing it per
        second."""
        def chance(test):
            shared = set(re.split(r"[_/.]", mutant["file"])) & set(test["name"].split("_"))
            here, near = (self.kills.get((place, test["name"]), 0) for place in (mutant["file"], os.path.dirname(mutant["file"])))
            return mutant.get("by") == test["name"], (0.05 + len(shared) + 4 * here + 0.5 * near) / (test["seconds"] + 0.1)
        kernel = re.search(r"\.cuh?$", mutant["file"])
        some = [t for t in self.tests if n in t["reached"] or not mutant["inside"] and mutant["file"] in t["files"] or
                kernel and t["env"].get("FXA_NVRTC_PATH", "").endswith("/model")]
        return sorted(some, key=chance, reverse=True)

    def judge(self, n, mutant):
        begin, library, same = time.monotonic(), self.schema.folder, None
        result = dict(mutant, verdict="survived", said=None, ran=0, left=0)
        if not mutant["inside"]:
            library = self.place()
            same = self.schema.alone(mutant, library)
        if not same:
            self.run(n, result, library)
            if result["verdict"] in ("survived", "unreached") and mutant["inside"]:
                same = self.schema.alone(mutant, self.place())
        result["verdict"] = same or result["verdict"]
        return dict(result, seconds=round(time.monotonic() - begin, 1))

    def run(self, n, result, library):
        """Runs the tests that reach mutant number `n` until one fails or the time budget is spent."""
        spent, tests = 0, self.reaching(n, result)
        result["by"] = None
        for test in tests:
            if spent + test["seconds"] > self.given.budget:
                result["left"] += 1
                continue
            verdict, seconds, said = run_test(test, 4 * test["seconds"] + 3, self.place(), library, FXA_MUTANT=str(n))
            spent += seconds
            result["ran"] += 1
            if verdict in ("failed", "timeout"):
                result.update(verdict="killed" if verdict == "failed" else "timeout", said=said,
                              by=test["name"] + (" with sanitizers" if PRELOADED else ""))
                with self.lock:
                    self.note(result)
                return
        if not result["ran"] and not result["left"]:
            result["verdict"] = "unreached"

    def judge_all(self, mutants, end):
        """Yields the results of `mutants` {number: mutant} in the order in which they finish. Starts no mutant after
        time `end`."""
        for test in self.tests: # the files whose functions it reaches, for mutants outside of functions
            test["files"] = {mutants[n]["file"] for n in test["reached"] if n in mutants}
        with concurrent.futures.ThreadPoolExecutor(self.given.jobs) as pool:
            def one(item):
                return self.judge(*item) if time.monotonic() < end else None
            for done in concurrent.futures.as_completed([pool.submit(one, item) for item in mutants.items()]):
                if done.result():
                    yield done.result()
