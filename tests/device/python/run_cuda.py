# SPDX-License-Identifier: Apache-2.0
"""The cuda engine on a GPU: python3 run_cuda.py BUILD [--part P] [--jobs N] [--seconds S] [--family F] [--log FOLDER].

compare: kinds of problems in many shapes against the reference (test_cuda_device), cut into processes that run side by side,
since kernels take seconds to compile, for each family of kernels and each storage type that it has; what came of every case is
counted as it is printed, by feature, so that a hole is seen, and what is refused by reason, digits aside.
sanitize: a few small cases of every feature and family under compute-sanitizer's memcheck, racecheck, initcheck and synccheck;
what it reports that is not known (sanitizer.py) is wrong. --sanitizer names another one than that of the toolkit.
named: every test of the programs for a device that draw no kinds (features, gradients, adverse numbers, masks of tables, soft caps, decoding,
and the tests of the model), by each family.
alone: alone on the device, threads, recording, memory and equal bits (test_cuda_plans), launches with a cold cache (test_cuda_stress).
--model: on the model of a device that tests/model is, without a GPU; half of it in small shapes, nothing alone or sanitized.
--seconds bounds each of the first three: processes are ended then, and what they had said counts. A process that hangs is ended by
itself, and costs nothing else. Code is kept in a folder (--cache) that all processes share. Without a GPU, driver or NVRTC it
says so and exits with 77."""
import argparse
import collections
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from run_cudnn import SKIPPED, folders_of, libraries
from sanitizer import Reports

# Families with the storage types that they are run with, and which part of the processes they get.
FAMILIES = {"any": (("bf16", "f16"), 5), "sm80": (("f16", "bf16"), 3), "simt": (("f32", "bf16", "f32"), 2)}
KINDS, SHAPES = 3, 16  # kinds of a process, shapes of a kind
PAIRS, ALL_PAIRS = 0xf000, 36  # kinds from here on: every pair of widths
SANITIZED = 8  # processes of each family and tool, with the kinds of compare
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
ALONE = [("test_cuda_plans", name) for name in
         ("recorded_and_replayed", "given_back_right_after_the_call", "memory_is_back_after_200_plans",
          "eight_threads_whose_plans_come_and_go", "bits_of_many_runs")]
ALONE += [("test_cuda_stress", "many_launches_with_a_cold_cache")]
# Programs of part named, and whether families differ in them.
NAMED = {"test_cuda_features": True, "test_cuda_grads": True, "test_cuda_adverse": True, "test_cuda_odd": True,
         "test_cuda_tables": True, "test_cuda_caps": False, "test_cuda_decode": False, "test_model": False, "test_model_copies": False,
         "test_model_functions": False, "test_model_products": False}
# Tests of which a family has no kernels of its own: it would compile, and run, once more what another one does.
SAME = {"types_of_operands": ("sm80",), "mixed_types_and_strides": ("sm80", "simt"), "packed_rows_are_added": ("sm80",),
        "nothing_to_attend_to": ("sm80",)}
# Seconds of one CPU that tests take by NVRTC 13.4, about, by the family in which they take longest: these begin first.
LONG = {"every_class": 53, "nothing_to_attend_to": 45, "masks_of_documents": 45, "pages": 41, "masks_of_tables_0": 40,
        "much_for_shared_memory": 37, "masks_of_tables_3": 35, "masks_of_tables_6": 35, "masks_of_tables_9": 35,
        "same_bits_in_every_run": 35, "scales_of_zero_and_below": 33, "dq_by_turns": 30,
        "columns_behind_a_mask_that_end_within_16_bytes": 29, "columns_of_packed_rows_that_end_within_16_bytes": 28,
        "halves_of_key_tiles": 27}
# The words of test_cuda_device by which cases are counted.
FEATURES = """padded packed paged packed-and-paged sink sink-zero dropout causal window positions bottom-right scalars-in-memory maximum joined mixed-types
other-results lse-f64 own-backward dLSE dsink deterministic added-to added-to-captured some-gradients gradients-of-params gradients-of-captured lengths-seen
map-affine map-segments map-table map-dynamic captured params i64 narrow-words captured-strided pair-tensor pair-tensor-gradient
layouts pitched wild-strides gqa d!=dv odd-columns d<8 odd-lengths one-row one-key many-tiles decode unaligned values-small
values-large values-nan values-rising scale<0 scale=0 bits-again d:32 d:64 d:96 d:128 d:192 d:256""".split()
CASE = re.compile(r"case (0x\w+)\.(\d+) ([-\w]+)/([-\w]+) on ([-\w]+)/([-\w]+)((?: \w+ [-\w]+/[-\w]+)*) made ([\d.]+) "
                  r"checked ([\d.]+) worst ([\d.]+) (.*) (\S+)$")
REPORTED = 9  # the exit code of a process with reports


class Totals:
    """Results of a part of the cases."""

    def __init__(self):
        self.states = collections.Counter()  # (pass, state)
        self.ran = collections.Counter()  # kernels that a right pass ran
        self.others = collections.Counter()  # (engine, state), of both passes
        self.features = collections.defaultdict(lambda: [0, 0])  # right passes
        self.reasons = collections.Counter()
        self.made = self.checked = self.worst = 0.0
        self.cases = self.right = self.kinds = self.bad = self.cut = self.left = self.slow = 0

    def take(self, line):
        if line.startswith("kind "):
            self.kinds += 1
        if line.startswith("  refused: "):
            self.reasons[re.sub(r"\d+", "N", line[11:])] += 1
        found = CASE.match(line)
        if not found:
            return
        states, ran = found.group(3, 4), found.group(5, 6)
        self.cases += 1
        self.right += "right" in states and "WRONG" not in states
        for i in (0, 1):
            self.states[i, states[i]] += 1
            if states[i] == "right":
                self.ran[ran[i]] += 1
                for tag in found.group(12).split(","):
                    self.features[tag][i] += 1
        for engine, forward, backward in re.findall(r" (\w+) ([-\w]+)/([-\w]+)", found.group(7)):
            self.others[engine, forward] += 1
            self.others[engine, backward] += 1
        self.made += float(found.group(8))
        self.checked += float(found.group(9))
        self.worst = max(self.worst, float(found.group(10)))

    def text(self):
        s = self.states
        return ("%d cases right of %d, of %d kinds: forward %d right, %d refused, %d unsure, %d wrong; backward %d right, %d refused, "
                "%d unsure, %d wrong; worst %.2f of what is allowed; passes by %s; also right %s; %.0f s made, %.0f s checked; "
                "%d bad processes, %d kinds not compiled in time, %d ended, %d not begun"
                % (self.right, self.cases, self.kinds, *(s[i, state] for i in (0, 1) for state in
                                                         ("right", "refused", "unsure", "WRONG")),
                   self.worst, dict(self.ran), {e: n for (e, state), n in self.others.items() if state == "right"},
                   self.made, self.checked, self.bad, self.slow, self.cut, self.left))


class Runner:
    """Processes until a time, with all that they print in a log."""

    def __init__(self, chosen, seconds):
        self.chosen, self.until, self.lock = chosen, time.time() + seconds, threading.Lock()

    def run(self, name, command, env, take):
        """(code, what it said); None: there was no time to begin. take gets its lines as they come."""
        limit = min(self.chosen.limit, self.until - time.time())
        if limit <= 0:
            return None
        said, late = [], threading.Event()
        with subprocess.Popen(command, env=dict(self.chosen.env, **env), text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as process:
            def end():
                late.set()
                process.kill()
            watch = threading.Timer(limit, end)
            watch.start()
            for line in process.stdout:
                said.append(line)
                with self.lock:
                    take(line.rstrip("\n"))
            code = process.wait()
            code = 0 if code == SKIPPED else code
            watch.cancel()
        if late.is_set():
            code = "ended" if time.time() >= self.until - 0.5 else "not done after %d s" % limit
        if self.chosen.log:
            with self.lock, open(os.path.join(self.chosen.log, "cuda.log"), "a") as out:
                out.write("== %s: %s\n%s" % (name, code, "".join(said)))
        return code, "".join(said)


def environment(chosen, family, dtype, first, count, shapes, **more):
    env = {"FXA_TEST_SEED": str(chosen.seed), "FXA_TEST_DTYPE": dtype, "FXA_TEST_KINDS": "%d,%d" % (first, count),
           "FXA_TEST_SHAPES": str(shapes), "FXA_THREADS": "1", "FXA_TEST_REASONS": "1", "FXA_CACHE_DIR": chosen.cache, **more}
    if chosen.model:
        env.update(FXA_TEST_SECONDS="240", FXA_TEST_OTHERS="none", FXA_MODEL_SEED=str(chosen.seed + first), FXA_MODEL_CHECK="1")
        if first // KINDS % 2 == 0:  # the others have several tiles both ways
            env["FXA_TEST_SMALL"] = "1"
    return env if family == "any" else {**env, "FXA_CUDA_FAMILY": family}


def test(chosen):
    return [os.path.join(chosen.build, "tests", "test_cuda_device"), "kinds"]


def begun(said):
    """The last thing that it began or ended."""
    lines = [line for line in said.splitlines() if line.startswith(("kind ", "making ", "running ", "case "))]
    return lines[-1][:60] if lines else "nothing"


def show_bad(name, code, said):
    lines = [line for line in said.splitlines()
             if not line.startswith(("  refused:", "case ", "kind ", "making ", "running "))]
    print("BAD  %s: %s; last: %s\n%s" % (name, code, begun(said), "\n".join(lines)[-6000:]), flush=True)


# ---- Parts ------------------------------------------------------------------------------------------------------------

def shards(chosen):
    """(order, family, dtype, first kind): all families make progress together."""
    out = []
    for family, (dtypes, part) in FAMILIES.items():
        if chosen.family in ("all", family):
            n = max(1, round(chosen.processes * part / 10))
            for i in range(ALL_PAIRS // KINDS):
                out.append(((i + 0.5) / (ALL_PAIRS // KINDS), family, dtypes[0], PAIRS + KINDS * i))
            out += [((i + 0.5) / n, family, dtypes[i % len(dtypes)], 5000 * list(FAMILIES).index(family) + KINDS * i) for i in range(n)]
    return sorted(out)


def table(totals):
    """Right passes by feature and family."""
    names = sorted(set(tag for t in totals.values() for tag in t.features if tag.startswith("theme:"))) + FEATURES
    unknown = set(tag for t in totals.values() for tag in t.features) - set(names)
    print("%-24s%s" % ("right, forward/backward", "".join("%14s" % family for family in totals)))
    for tag in names + sorted(unknown):
        row = [totals[family].features.get(tag, [0, 0]) for family in totals]
        print("%-24s%s%s" % (tag, "".join("%14s" % ("%d/%d" % tuple(n)) for n in row), "" if any(map(sum, row)) else "   HOLE"))


def compare(chosen):
    """How many processes went wrong."""
    runner, began = Runner(chosen, chosen.seconds), time.time()
    totals = {family: Totals() for family in FAMILIES if chosen.family in ("all", family)}

    def one(shard):
        _, family, dtype, first = shard
        more = {} if first // KINDS % 2 == 0 else {"FXA_TEST_OTHERS": "cpu"}
        return shard, runner.run("%s %s kinds from %d" % (family, dtype, first), test(chosen),
                                 environment(chosen, family, dtype, first, KINDS, SHAPES, **more), totals[family].take)

    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, shard) for shard in shards(chosen)]):
            (_, family, dtype, first), result = done.result()
            total = totals[family]
            if result is None:
                total.left += 1
            elif result[0] == "ended":
                total.cut += 1
            elif result[0] != 0 and "FAIL" not in result[1] and begun(result[1]).startswith("making "):
                total.slow += 1
                print("slow %s %s: %s" % (family, dtype, begun(result[1])), flush=True)
            elif result[0] != 0:
                total.bad += 1
                show_bad("%s %s kinds from %d seed %d" % (family, dtype, first, chosen.seed), *result)
    table(totals)
    for family, total in totals.items():
        print("family %s: %s" % (family, total.text()), flush=True)
        for reason, n in total.reasons.most_common(30):
            print("  %6d %s" % (n, reason[:200]))
    print("all: %d cases right of %d, with a backward pass %d, in %.0f s" % (
        sum(t.right for t in totals.values()), sum(t.cases for t in totals.values()),
        sum(t.states[1, "right"] for t in totals.values()), time.time() - began), flush=True)
    return sum(t.bad for t in totals.values())


def sanitize(chosen):
    """How many processes went wrong. Kinds are those of compare; code knows its lines, and the first tool has it made."""
    if not shutil.which(chosen.sanitizer):
        print("skipped: compute-sanitizer was not found")
        return 0
    runner, totals = Runner(chosen, chosen.seconds), {tool: Totals() for tool in TOOLS}
    known, unknown = collections.Counter(), collections.Counter()

    def one(shard):
        """Runs all tools, one after the other."""
        _, family, dtype, first = shard
        env = environment(chosen, family, dtype, first, KINDS, 2, FXA_TEST_OTHERS="none", FXA_TEST_SMALL="1", FXA_TEST_SECONDS="240",
                          FXA_CUDA_LINES="1")
        out = []
        for tool in TOOLS:
            name = "%s %s %s kinds from %d seed %d" % (tool, family, dtype, first, chosen.seed)
            command = [chosen.sanitizer, "--tool", tool, "--print-limit", "100000", "--show-backtrace", "no",
                       "--error-exitcode", str(REPORTED), *test(chosen)]
            out.append((tool, name, runner.run(name, command, env, totals[tool].take)))
        return out

    def judge(tool, name, code, said):
        reports = Reports()
        for line in said.splitlines():
            reports.take(line)
        reports.end()
        for reason, n in reports.known.items():
            known[tool, reason] += n
        unknown[tool] += len(reports.unknown)
        if code not in (0, REPORTED) or " 0 failed" not in said or reports.unknown:
            totals[tool].bad += 1
            own = "\n".join(line for line in said.splitlines() if not line.startswith("====="))
            show_bad(name, code, own + "\n" + "\n".join(reports.unknown[:20]))

    chosen_shards = [shard for family in FAMILIES for shard in
                     [s for s in shards(chosen) if s[1] == family and s[3] < PAIRS][:SANITIZED]]
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, shard) for shard in sorted(chosen_shards)]):
            for tool, name, result in done.result():
                if result is None or result[0] == "ended":
                    totals[tool].left += result is None
                    totals[tool].cut += result is not None
                else:
                    judge(tool, name, *result)
    for tool in TOOLS:
        print("%s: %d reports that are not known; %s" % (tool, unknown[tool], totals[tool].text()))
    for (tool, reason), n in sorted(known.items()):
        print("  %6d known of %s: %s" % (n, tool, reason), flush=True)
    return sum(total.bad for total in totals.values())


def tests_of(program):
    """Returns the names of a program's tests, from its source in tests/device/c or tests/model."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(here, "..", "c"), os.path.join(here, "..", "..", "model")):
        path = os.path.join(folder, program + ".c")
        if os.path.exists(path):
            with open(path) as source:
                return re.findall(r"(?m)^TEST\((\w+)\)", source.read())
    return []


def named_work(families):
    """(program, test, family) in the order in which they begin."""
    work = [(program, test, family) for program, by_family in NAMED.items() for test in tests_of(program) if "cpu_engine" not in test
            for family in (families if by_family else families[:1]) if len(families) == 1 or family not in SAME.get(test, ())]
    count, seen = collections.Counter(program for program, _, _ in work), collections.Counter()
    order = {}
    for item in work:  # long ones first, since the last to end are waited for; of the others all programs make progress together
        seen[item[0]] += 1
        order[item] = (-LONG.get(item[1], 0), seen[item[0]] / count[item[0]])
    return sorted(work, key=order.get)


def named(chosen):
    """How many processes went wrong."""
    runner, counts, began = Runner(chosen, chosen.seconds), collections.Counter(), time.time()
    work = named_work(list(FAMILIES) if chosen.family == "all" else [chosen.family])
    nvrtc = folders_of("libnvrtc.so.13", "cu13", "cuda_nvrtc") + ["/usr/local/cuda/lib64"]

    def one(item):
        program, test, family = item
        env = {"FXA_CACHE_DIR": chosen.cache, "FXA_THREADS": "2"}
        if program.startswith("test_model"):
            env.update(FXA_TEST_MODEL="device", FXA_NVRTC_PATH=nvrtc[0])
        elif family not in ("all", "any") or program == "test_cuda_grads":  # which else goes through all of them
            env["FXA_CUDA_FAMILY"] = family
        return item, runner.run("%s %s %s" % item, [os.path.join(chosen.build, "tests", program), test], env, lambda line: None)

    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, item) for item in work]):
            item, result = done.result()
            state = ("not begun" if result is None else "ended" if result[0] == "ended" else "BAD" if result[0] != 0 else
                     "skipped" if "\nok " not in "\n" + result[1] else "right")
            counts[item[0], state] += 1
            if state == "BAD":
                show_bad("%s %s %s" % item, *result)
    for (program, state), n in sorted(counts.items()):
        print("%s: %d %s" % (program, n, state), flush=True)
    print("named: %d processes in %.0f s" % (len(work), time.time() - began), flush=True)
    return sum(n for (_, state), n in counts.items() if state == "BAD")


def alone(chosen):
    """How many of them went wrong."""
    bad = 0
    for program, name in ALONE:
        began = time.time()
        try:
            done = subprocess.run([os.path.join(chosen.build, "tests", program), name], text=True,
                                  capture_output=True, timeout=chosen.limit)
            said, code = done.stdout + done.stderr, 0 if done.returncode == SKIPPED else done.returncode
        except subprocess.TimeoutExpired as late:
            said, code = (late.stdout or b"").decode() + "not done after %d s\n" % chosen.limit, 1
        bad += code != 0
        print("%s%s (%.1f s)" % ("" if code == 0 else "BAD  ", said[-3000:], time.time() - began), flush=True)
    return bad


PARTS = {"alone": alone, "compare": compare, "named": named, "sanitize": sanitize}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 2))
    parser.add_argument("--seconds", type=float, default=600, help="of compare, named and sanitize each")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a process")
    parser.add_argument("--processes", type=int, default=120, help="of compare, with %d kinds each" % KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=("all", *FAMILIES), default="all")
    parser.add_argument("--part", choices=("all", *PARTS), default="all")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="of part sanitize")
    parser.add_argument("--model", action="store_true", help="without a GPU")
    parser.add_argument("--cache", help="a folder for compiled code; else one that is removed in the end")
    parser.add_argument("--log", help="a folder for all that is printed")
    chosen = parser.parse_args()
    if chosen.model:
        standin = os.path.join(os.path.abspath(chosen.build), "tests", "standin")
        chosen.part, chosen.env = "compare", dict(os.environ, LD_LIBRARY_PATH=standin, FXA_NVRTC_PATH=os.path.join(standin, "model"))
    else:
        version, chosen.env = max(libraries().items())  # version of cuDNN, which is queried as well
        print("cuDNN %s" % version)
    own = tempfile.mkdtemp(prefix="fxa_cuda_")
    if not chosen.cache:
        chosen.cache = os.path.join(own, "cache")
        os.mkdir(chosen.cache)
    if chosen.model:  # files that ended processes leave are removed with this folder
        chosen.env["TMPDIR"] = own
    try:
        said = Runner(chosen, 60).run("first", test(chosen), environment(chosen, "any", "f32", 0, 0, 0), lambda line: None)[1]
        missing = re.search(r"skipped \w+: (.*)", said)
        if missing:
            print("skipped: test-gpu: %s" % missing.group(1))
            return 77
        return 1 if sum(part(chosen) for name, part in PARTS.items() if chosen.part in ("all", name)) else 0
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
