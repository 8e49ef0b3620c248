# SPDX-License-Identifier: Apache-2.0
"""The cuda engine on a GPU: python3 run_cuda.py BUILD [--jobs N] [--seconds S] [--scale X] [--family F] [--log FOLDER].

Random problems against the reference (test_cuda_device), cut into processes that run side by side, since kernels take seconds
to compile, for each family of kernels and each storage type that it has. What is refused is counted by reason, digits
aside. Then, alone on the device, threads, recording, memory and equal bits (test_cuda_plans). --seconds: what was not begun by then is left out. A process that hangs is ended, and costs nothing else. Without a
GPU, driver or NVRTC it says so and exits with 77."""
import argparse
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import time

# Groups of test_cuda_device by their number of programs, each of which has several shapes.
GROUPS = {"no_program": 20, "small_programs": 60, "smooth_programs": 50, "only_masks": 60, "programs_with_masks": 50,
          "every_operation": 40, "gallery": 60, "sparse_masks": 60, "dense_tensors": 6}
FAMILIES = {"any": ("bf16", "f16", "bf16"), "sm80": ("f16", "bf16"), "simt": ("f32",)}
SHARD = 2  # programs of a process
ALONE = ("recorded_and_replayed", "given_back_right_after_the_call", "memory_is_back_after_200_plans",
         "eight_threads_whose_plans_come_and_go", "bits_of_many_runs")
COUNTS = re.compile(r"(\d+) cases: forward (\d+) right, (\d+) refused; backward (\d+) right, (\d+) refused; "
                    r"(\d+) unsure; worst ([\d.]+)")


class Totals:
    """Of a family."""

    def __init__(self):
        self.counts, self.worst, self.bad, self.left = [0] * 6, 0.0, 0, 0
        self.reasons = collections.Counter()

    def take(self, said):
        for found in COUNTS.findall(said):
            self.counts = [a + int(b) for a, b in zip(self.counts, found[:6])]
            self.worst = max(self.worst, float(found[6]))
        for reason in re.findall(r"  refused: (.*)", said):
            self.reasons[re.sub(r"\d+", "N", reason)] += 1

    def text(self):
        return ("%d cases: forward %d right, %d refused; backward %d right, %d refused; %d unsure; worst %.2f of what is "
                "allowed; %d bad processes, %d not begun" % (*self.counts, self.worst, self.bad, self.left))


def run(chosen, group, family, dtype, seed, scale):
    """What it printed, and whether it went well."""
    env = dict(os.environ, FXA_TEST_SEED=str(seed), FXA_TEST_SCALE=scale, FXA_TEST_DTYPE=dtype, FXA_THREADS="1",
               FXA_TEST_REASONS="1")
    if family != "any":
        env["FXA_CUDA_FAMILY"] = family
    try:
        done = subprocess.run([os.path.join(chosen.build, "tests", "test_cuda_device"), group], env=env, text=True,
                              capture_output=True, timeout=chosen.limit)
        said, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        said, code = (late.stdout or b"").decode() + "not done after %d s\n" % chosen.limit, 1
    if chosen.log:
        with open(os.path.join(chosen.log, "cuda.log"), "a") as out:
            out.write("== %s %s %s seed %d scale %s: %d\n%s" % (group, family, dtype, seed, scale, code, said))
    return said, code


def alone(chosen):
    """How many of them went wrong."""
    bad = 0
    for test in ALONE:
        began = time.time()
        try:
            done = subprocess.run([os.path.join(chosen.build, "tests", "test_cuda_plans"), test], text=True,
                                  capture_output=True, timeout=chosen.limit)
            said, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            said, code = (late.stdout or b"").decode() + "not done after %d s\n" % chosen.limit, 1
        bad += code != 0
        print("%s%s (%.1f s)" % ("" if code == 0 else "BAD  ", said[-3000:], time.time() - began), flush=True)
    return bad


def shards(chosen):
    """(order, group, family, dtype, seed, scale): all families and groups make progress together."""
    out = []
    for family, dtypes in FAMILIES.items():
        if chosen.family not in ("all", family):
            continue
        for group, programs in GROUPS.items():
            n = max(1, round(programs * chosen.scale / SHARD))
            out += [((i + 0.5) / n, group, family, dtypes[i % len(dtypes)], i + chosen.seed,
                     "%.9f" % (SHARD / programs)) for i in range(n)]
    return sorted(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--limit", type=float, default=300, help="seconds of a process")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=("all", *FAMILIES), default="all")
    parser.add_argument("--part", choices=("all", "compare", "alone"), default="all")
    parser.add_argument("--log", help="a folder for all that is printed")
    chosen = parser.parse_args()
    said, _ = run(chosen, "no_program", "any", "f32", 1, "0.01")
    missing = re.search(r"skipped \w+: (.*)", said)
    if missing:
        print("skipped: test-gpu: %s" % missing.group(1))
        return 77
    wrong = alone(chosen) if chosen.part != "compare" else 0
    if chosen.part == "alone":
        return 1 if wrong else 0
    totals = collections.defaultdict(Totals)
    until = time.time() + chosen.seconds

    def one(shard):
        return shard, (run(chosen, *shard[1:]) if time.time() < until else None)

    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, shard) for shard in shards(chosen)]):
            shard, result = done.result()
            _, group, family, dtype, seed, scale = shard
            total = totals[family]
            if result is None:
                total.left += 1
                continue
            total.take(result[0])
            if result[1]:
                total.bad += 1
                print("BAD  %s %s %s seed %d scale %s: %d\n%s" % (group, family, dtype, seed, scale, result[1],
                      "\n".join(line for line in result[0][-6000:].splitlines() if "refused:" not in line)), flush=True)
    for family, total in totals.items():
        print("family %s: %s" % (family, total.text()), flush=True)
        for reason, n in total.reasons.most_common(40):
            print("  %6d %s" % (n, reason[:200]))
    return 1 if wrong or any(total.bad for total in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
