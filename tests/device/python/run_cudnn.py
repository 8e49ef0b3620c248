# SPDX-License-Identifier: Apache-2.0
"""The cuDNN engine on a GPU: python3 run_cudnn.py BUILD [--jobs N] [--seconds S] [--scale X] [--part P] [--log FOLDER].

For each cuDNN that is found here: problems of all that it supports against the reference and the cpu engine
(test_cudnn_lowering, cut into processes that run side by side, since building a plan takes a second), what its functions
are off by (test_cudnn_functions), backward programs of the caller's (test_cudnn_bprop), gradients of captured tensors
(test_cudnn_bias), what is left out of backward passes (test_cudnn_common_factors), captured tensors of 8 bits, numbers as helper
kernels have them (test_gpu_kernels), Q, K and V of 8 bits (test_cudnn_fp8, test_cudnn_fp8_backward), then, alone on the device, threads, recording and memory (test_cudnn_device). Counts are printed by
group and summed. --seconds is the time for the comparisons with one cuDNN: what was not begun by then is left out. Without
a GPU, driver or cuDNN it says so and exits with 77."""
import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import time

# Groups of test_cudnn_lowering by their number of cases.
GROUPS = {"no_program": 60, "small_programs": 150, "smooth_programs": 150, "only_masks": 150, "programs_with_masks": 150,
          "every_operation": 200, "gallery": 150, "sparse_masks": 100, "own_backward": 100, "own_backward_of_masks": 100}
# Programs that are run as they are, by what they are called here: (program, test).
WHOLE = {"functions": ("test_cudnn_functions", ""),
         "own_programs": ("test_cudnn_bprop", "own_programs_are_those_of_the_reference"),
         "bias": ("test_cudnn_bias", "gradients_of_what_is_added"),
         "reuse": ("test_cudnn_common_factors", "pairs_that_are_masked_and_no_number"),
         "captured_bytes": ("test_cudnn_programs", "captured_floats_of_8_bits"),
         "kernels": ("test_gpu_kernels", "")}
# Programs whose cases processes share among them: (program, test, processes).
SHARED = {"forward_of_8_bits": ("test_cudnn_fp8", "many_on_a_device", 16),
          "backward_of_8_bits": ("test_cudnn_fp8_backward", "many_gradients_on_a_device", 16)}
SHARD = 10  # cases of a process
ALONE = ("recorded_and_replayed", "given_back_right_after_the_call", "memory_is_back_after_200_plans",
         "eight_threads_whose_plans_come_and_go", "bits_of_many_runs")
LEAST = 400
COUNTS = re.compile(r"(\d+) cases: forward (\d+) right, (\d+) refused; backward (\d+) right, (\d+) refused; "
                    r"(\d+) unsure; cpu (\d+) right; worst ([\d.]+)")
VERSION = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudnnGetVersion())"


def folders_of(name, *packages):
    """Returns the folders that have files of that name: NVIDIA's packages for Python first, then the folders of the
    loader."""
    found = []
    try:
        import nvidia
        found += [folder for root in nvidia.__path__ for package in packages
                  for folder in glob.glob(os.path.join(root, package, "lib"))]
    except ImportError:
        pass
    try:
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
        found += [os.path.dirname(line.split("=> ")[1]) for line in listed.splitlines() if line.split()[:1] == [name]]
    except OSError:
        pass
    found = [folder for folder in found if os.path.exists(os.path.join(folder, name))]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in found))


def libraries():
    """(version, environment) of each cuDNN; the environment as it is where nothing is found."""
    blas = folders_of("libcublasLt.so.13", "cu13", "cublas") + folders_of("libcublasLt.so.12", "cublas")
    old = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    given = os.environ.get("FXA_CUDNN_PATH")
    out = {}
    for folder in [given] if given else folders_of("libcudnn.so.9", "cudnn"):
        env = dict(os.environ, FXA_CUDNN_PATH=folder, LD_LIBRARY_PATH=":".join(filter(None, [folder] + blas + old)))
        asked = subprocess.run([sys.executable, "-c", VERSION, os.path.join(folder, "libcudnn.so.9")], env=env,
                               capture_output=True, text=True)
        if asked.returncode == 0:
            out.setdefault(asked.stdout.strip(), env)
    return out or {"as it is": dict(os.environ)}


SKIPPED = 77  # exit status of a test program all of whose tests were skipped (tests/t.h)


class Runner:
    def __init__(self, chosen, version, env):
        self.tests, self.log, self.version, self.env = os.path.join(chosen.build, "tests"), chosen.log, version, env
        self.totals, self.bad = [0] * 7 + [0.0], 0

    def run(self, program, test, limit, **more):
        """Returns the output of a process, and whether the process succeeded; a process that hangs is ended."""
        words = [os.path.join(self.tests, program), test]
        try:
            done = subprocess.run(words, env=dict(self.env, **more), capture_output=True, text=True, timeout=limit)
            said, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            said, code = (late.stdout or b"").decode() + "not done after %d s\n" % limit, 1
        if self.log:
            with open(os.path.join(self.log, "cudnn-%s.log" % self.version), "a") as out:
                out.write("== %s %s %s: %d\n%s" % (program, test, more, code, said))
        return said, code in (0, SKIPPED)

    def missing(self):
        said, _ = self.run("test_cudnn_functions", "a_weight_of_zero", 60)
        found = re.search(r"skipped \w+: (.*)", said)
        return found.group(1) if found else None

    def judge(self, name, said, good):
        if not good:
            self.bad += 1
            print("BAD  %s\n%s" % (name, said[-3000:]), flush=True)

    def compare(self, chosen):
        """The comparisons with the reference, side by side."""
        shards = []
        for group, cases in GROUPS.items():
            n = max(1, round(cases * chosen.scale / SHARD))
            shards += [((i + 0.5) / n, group, i, "%.9f" % (SHARD / cases)) for i in range(n)]
        shards = [(-1, name, 0, "1") for name in (*WHOLE, "bands_of_one_kind", "values_per_head", "quotients_by_params",
                                                "quotients_of_large_ints")] + sorted(shards)
        shards += [(2, name, i, "%.9f" % chosen.scale) for name in SHARED for i in range(SHARED[name][2])]
        until, left = time.time() + chosen.seconds, 0

        def one(shard):
            _, group, seed, scale = shard
            if time.time() > until:
                return group, None, True
            if group in WHOLE:
                return (group,) + self.run(*WHOLE[group], 300)
            if group in SHARED:
                program, test, of = SHARED[group]
                return (group,) + self.run(program, test, 300, FXA_TEST_SHARD="%d/%d" % (seed, of), FXA_TEST_SCALE=scale)
            dtype = "f16" if seed % 3 == 1 else "bf16"
            return (group,) + self.run("test_cudnn_lowering", group, 300, FXA_TEST_SEED=str(seed + 1),
                                       FXA_TEST_SCALE=scale, FXA_TEST_DTYPE=dtype, FXA_THREADS="1")

        with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
            for done in concurrent.futures.as_completed([pool.submit(one, shard) for shard in shards]):
                group, said, good = done.result()
                if said is None:
                    left += 1
                    continue
                self.judge(group, said, good)
                if group in WHOLE:
                    print(said, end="", flush=True)
                if group in SHARED:
                    skipped = re.search(r"skipped \w+: (.*)", said)
                    print("%s: %s" % (group, skipped.group(1) if skipped else "%d right, %d wrong" % (
                        len(re.findall("(?m)^right ", said)), len(re.findall("(?m)^WRONG ", said)))), flush=True)
                for counts in COUNTS.findall(said):
                    self.totals = [a + int(b) for a, b in zip(self.totals, counts[:7])] + [
                        max(self.totals[7], float(counts[7]))]
                    print("%s: %s cases, %d so far" % (group, counts[0], self.totals[0]), flush=True)
        if left:
            print("%d of %d processes were not begun in %d s" % (left, len(shards), chosen.seconds))
        print("cuDNN %s: %d cases: forward %d right, %d refused; backward %d right, %d refused; %d unsure; cpu %d right; "
              "worst %.2f of what is allowed; %d bad processes" % ((self.version,) + tuple(self.totals) + (self.bad,)),
              flush=True)

    def alone(self):
        for test in ALONE:
            began = time.time()
            said, good = self.run("test_cudnn_device", test, 120)
            self.judge(test, said, good)
            if good:
                print("%s(%.1f s)" % (said, time.time() - began), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--part", choices=("all", "compare", "alone"), default="all")
    parser.add_argument("--log", help="a folder for all that is printed")
    chosen = parser.parse_args()
    bad = 0
    for version, env in libraries().items():
        runner = Runner(chosen, version, env)
        missing = runner.missing()
        if missing:
            print("skipped: test-gpu: %s" % missing)
            return 77
        began = time.time()
        if chosen.part != "alone":
            runner.compare(chosen)
        if chosen.part != "compare":
            runner.alone()
        print("cuDNN %s: %.0f s" % (version, time.time() - began), flush=True)
        bad += runner.bad + (chosen.part != "alone" and chosen.scale >= 1 and runner.totals[0] < LEAST)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
