# SPDX-License-Identifier: Apache-2.0
"""Checks and times the CUDA kernels on a GPU: python3 run_gpu.py [group ...] [--limit S] [--only TEXT,...] [--cache DIR],
with the groups of cases.py; check when none is named. --cache keeps what was compiled; with --compile ARCH (90a) it
is filled and nothing is run, which needs no GPU.

The parent compiles what the tests need, on all cores, and runs them in a child that is replaced when a kernel hangs or
faults, so that one bad kernel costs seconds. FXA_GPU_WRAP is put before the child's command line (compute-sanitizer),
FXA_GPU_PATIENCE multiplies the seconds that a kernel may take, FXA_GPU_DUMP names a folder to which checked problems
and their results are written, for compare_engines.py. Without NVRTC, torch or a GPU it says so and exits
with 77."""
import concurrent.futures
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

import kernels
import programs
from cases import GROUPS
from judge import Judge


def compile_one(job):
    folder, cache, arch, spec, file = job
    path = os.path.join(folder, spec.key(file) + ".cubin")
    start = time.time()
    text, defines = spec.text_of(file), spec.defines(file)
    kept = os.path.join(cache, kernels.digest(file, arch, text, defines) + ".cubin") if cache else ""
    if os.path.exists(kept):
        shutil.copy(kept, path)
        return 0, None
    built = kernels.build(kernels.find_nvrtc(), file, arch, text, defines)
    took = time.time() - start
    if built.error:
        return took, "BAD  %s %s does not compile: %s" % (file, spec.label(), built.error[:800])
    with open(path, "wb") as out:
        out.write(built.cubin)
    if kept:
        shutil.copy(path, kept)
    if built.spill or built.serialised:
        return took, "NOTE %s %s %s: spills %d bytes %s" % (file, spec.program, defines, built.spill,
                                                            built.serialised[:1])
    return took, None


def compile_all(folder, cache, arch, specs):
    jobs = {}
    for spec in specs:
        for file in spec.files():
            jobs.setdefault(spec.key(file), (folder, cache, arch, spec, file))
    start = time.time()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile_one, jobs.values()))
    for _, said in results:
        if said:
            print(said, flush=True)
    slowest = sorted(zip([took for took, _ in results], ["%s %s" % (j[4], j[3].program) for j in jobs.values()]))[-3:]
    names = ", ".join("%s %.1f s" % (n, t) for t, n in slowest)
    print("%d modules compiled in %.1f s; slowest %s" % (len(jobs), time.time() - start, names), flush=True)


class Tests(Judge):
    """Runs in the child, where torch is."""

    def adverse(self, spec):
        """Rows that could be got wrong, and how many tiles were computed again (adverse.py, which needs torch)."""
        import adverse
        return adverse.run(self, spec)

    def __init__(self, folder):
        import torch

        import driver
        import problem
        import reference
        import runs
        self.torch, self.driver, self.problem, self.folder = torch, driver, problem, folder
        self.runs, self.error, self.results = runs, reference.error, reference.results
        self.share = reference.share
        torch.manual_seed(int(time.time()))
        self.modules = {}

    def load(self, spec):
        out = {}
        for file in spec.files():
            key = spec.key(file)
            if key not in self.modules:
                with open(os.path.join(self.folder, key + ".cubin"), "rb") as data:
                    self.modules[key] = self.driver.load_module(data.read())
            out[file] = self.modules[key]
        return out

    def make(self, spec):
        dtype = self.torch.float32 if spec.f32 else self.torch.float16 if spec.f16 else self.torch.bfloat16
        pr = self.problem.Problem(spec.program, D=spec.D, dtype=dtype, **spec.shape)
        pr.fast = spec.fast
        modules = self.load(spec)
        if spec.family == "decode":
            return pr, modules, self.runs.Decode(pr, modules, spec.splits, spec.columns_v)
        return pr, modules, self.runs.Forward(pr, modules, "forward_" + spec.family)

    def backward_of(self, spec, pr, modules, o, lse):
        return self.runs.Backward(pr, modules, o, lse, spec.main_file(), spec.columns,
                                  spec.dq_file() if spec.separate else None)

    def check(self, spec):
        pr, modules, fw = self.make(spec)
        fw.run()
        self.driver.sync()
        refs = {at: self.results(pr, *at) for at in self.heads(pr, True)}
        good, said = self.judge_forward(spec, pr, fw, refs)
        again = fw.o.clone()
        fw.o.fill_(math.nan)
        fw.run()
        self.driver.sync()
        if not self.same(again, fw.o):
            good, said = False, said + " second run differs"
        if int(fw.counter) or int(fw.redo.abs().max()):
            good, said = False, said + " counters not left at zero"
        if spec.backward and good:
            o, lse = fw.o.clone().fill_(math.nan), self.torch.full_like(fw.lse, math.nan)
            for (b, h), c in refs.items():
                pr.own("q", o, b)[h], pr.own_row(lse, b)[h] = c.o.to(o.dtype), c.lse.float()
            bw = self.backward_of(spec, pr, modules, o, lse)
            bw.run()
            self.driver.sync()
            fine, more = self.judge_backward(spec, pr, bw, refs)
            good, said = fine, said + " " + more
            self.dump(spec, pr, fw, bw)
            if spec.separate:
                first = [t.clone() for t in (bw.grad_q, bw.grad_k, bw.grad_v)]
                bw.run()
                self.driver.sync()
                if not all(map(self.same, first, (bw.grad_q, bw.grad_k, bw.grad_v))):
                    good, said = False, said + " not bit-stable"
        return good, said

    def dump(self, spec, pr, fw, bw):
        folder = os.environ.get("FXA_GPU_DUMP")
        if not folder:
            return
        import numpy
        tensors = dict(q=pr.q, k=pr.k, v=pr.v, grad_o=pr.grad_o, o=fw.o, lse=fw.lse, grad_q=bw.grad_q, grad_k=bw.grad_k,
                       grad_v=bw.grad_v, sink=pr.sink, grad_sink=bw.grad_sink, grad_lse=pr.grad_lse, q_lens=pr.q_lens,
                       k_lens=pr.k_lens, q_starts=pr.q_starts, k_starts=pr.k_starts, tensor=pr.tensor, ids=pr.ids,
                       dense=pr.dense)
        for grad in (bw.grad_sums, bw.grad_table, bw.grad_rows):
            if grad is not None:
                tensors["grad_tensor"] = grad.reshape(pr.tensor.shape)
        packed, out = pr.q_starts is not None, {}
        for name, t in tensors.items():
            if t is not None:
                t = t[0] if packed and t.dim() in (3, 4) and name not in ("dense",) else t
                t = t.contiguous()
                out[name] = (t.view(self.torch.uint16) if t.dtype == self.torch.bfloat16 else t).cpu().numpy()
        meta = dict(program=pr.program, scale=pr.scale, Sk=pr.Sk, D=pr.D, window=pr.window, drop=pr.drop, seed=pr.seed,
                    bf16=pr.dtype == self.torch.bfloat16)
        name = spec.label().replace(" ", "_").replace("/", "_")
        numpy.savez_compressed(os.path.join(folder, name + ".npz"), meta=json.dumps(meta), **out)

    def redo(self, spec):
        """The frozen maximum given up: scores grow so far along the keys that tiles are computed again."""
        pr, _, fw = self.make(spec)
        fw.run()
        self.driver.sync()
        refs = {at: self.results(pr, *at) for at in self.heads(pr, True)}
        good, said = self.judge_forward(spec, pr, fw, refs)
        slow = self.driver.milliseconds(fw.run, 5, 10, 0)
        spec.shape = dict(spec.shape, ramp=0.0)
        _, _, plain = self.make(spec)
        return good, said + " time %.2f of the unramped" % (slow / self.driver.milliseconds(plain.run, 5, 10, 0))

    def tanh(self, spec):
        """Largest error of score_tanh in ulps, over all floats from 2^-40 to 32 and their negatives, of a polynomial in
        place of it near 0, and of four pairs by one reciprocal."""
        terms = self.torch.tensor(programs.TANH, device="cuda", dtype=self.torch.float32)
        alone, near = self.worst_tanh(spec, 0), self.worst_tanh(spec, terms.data_ptr())
        four = max(self.worst_bend(spec, u) for u in (1.0, 0.0867, 0.5, 5.0, 20.0, 50.0, 64.0, -0.0867, -20.0, -64.0))
        said = "tanh within %.2f ulp, %.2f with terms, 2^-20 times %.2f by four pairs" % (alone, near, four)
        return max(alone, near) <= 4 and four <= 1, said

    def worst_bend(self, spec, cap):
        """Largest error of score_softcap_four, of 2^-20 of what a cap is in log2; a cap of 1 is taken as the backward does, by
        itself. All that may stand together: a sweep of the range beside itself backwards, shuffled, and the last of it."""
        torch, C, groups, log2e = self.torch, self.driver.C, 1 << 24, 1.4426950408889634
        u = cap if cap == 1.0 else cap * log2e
        numbers = torch.tensor([2 * log2e * 0.0884 / abs(cap), -0.5 / u, u], dtype=torch.float32)
        factor, inverse, u = (float(x) for x in numbers)
        sweep = torch.linspace(-1, 1, groups, device="cuda", dtype=torch.float64) * (28 / factor * (1 - 2.0 ** -20))
        ends = torch.where(torch.arange(groups, device="cuda") % 3 == 0, sweep[0], sweep[-1])
        s = torch.stack([sweep, sweep.flip(0), sweep[torch.randperm(groups, device="cuda")], ends], 1).float()
        s[:groups // 2, 3] = sweep[groups // 4:groups // 4 + groups // 2].float() / 64  # small ones beside large ones
        exact = torch.tanh(s.double() * (factor / (2 * log2e)))
        kernel = self.driver.Kernel(self.load(spec)["functions"], "fxa_try_bend", False)
        args = [self.driver.p(s.data_ptr()), self.driver.ll(groups)] + [C.c_float(x) for x in (factor, inverse, u)]
        kernel.call((1024, 1, 1), args, 256)()
        self.driver.sync()
        return float((s.double() / u - exact).abs().max()) * 2.0 ** 20

    def worst_tanh(self, spec, terms):
        kernel = self.driver.Kernel(self.load(spec)["functions"], "fxa_try_tanh", False)
        worst, C = 0.0, self.driver.C
        for sign in (0, 1 << 31):
            for first in range(0x2B800000, 0x42000000, 1 << 26):
                bits = self.torch.arange(first, first + (1 << 26), device="cuda", dtype=self.torch.int64) | sign
                x = bits.to(self.torch.int32).view(self.torch.float32)
                y = self.torch.empty_like(x)
                args = [self.driver.p(y.data_ptr()), C.c_uint(first | sign), self.driver.ll(1 << 26), self.driver.p(terms)]
                kernel.call((1024, 1, 1), args, 256)()
                self.driver.sync()
                exact = self.torch.tanh(x.double())
                ulp = self.torch.exp2(self.torch.floor(self.torch.log2(exact.abs())) - 23)
                error = ((y.double() - exact).abs() / ulp).max()
                worst = max(worst, float(error))
        return worst

    def bench(self, spec):
        pr, modules, fw = self.make(spec)
        fw.run()
        self.driver.sync()
        refs = {at: self.results(pr, *at) for at in self.heads(pr, False)}
        good, said = self.judge_forward(spec, pr, fw, refs)
        counts = [c.attended for c in refs.values()]
        pairs = sum(counts) / len(counts) * pr.B * pr.H
        ms = self.driver.milliseconds(fw.run)
        said += " | fwd %.3f ms %.0f TFLOP/s" % (ms, 2 * (pr.D + pr.Dv) * pairs / ms / 1e9)
        if spec.family == "decode":
            said += " %.0f GB/s" % (4 * pr.k.numel() / ms / 1e6)
        if spec.backward:
            bw = self.backward_of(spec, pr, modules, fw.o, fw.lse)
            bw.run()
            self.driver.sync()
            fine, more = self.judge_backward(spec, pr, bw, refs)
            ms = self.driver.milliseconds(bw.run)
            main = self.driver.milliseconds(bw.main, 20, 40, 0)
            good, said = good and fine, said + " bwd %.3f ms %.0f TFLOP/s (main %.3f) %s" % (
                ms, (6 * pr.D + 4 * pr.Dv) * pairs / ms / 1e9, main, more)
        if pr.ids is not None:
            us = self.driver.milliseconds(lambda: (pr.prepasses[0](), fw.list_call()), 10, 20, 0) * 1e3
            said += " pre-pass %.1f us" % us
        return good, said

    def stress(self, spec):
        """Many launches with a cold cache: no hang, and a forward that never changes."""
        pr, modules, fw = self.make(spec)
        fw.run()
        bw = self.backward_of(spec, pr, modules, fw.o, fw.lse)
        keep, flush, differs = fw.o.clone(), self.torch.empty(64 << 20, dtype=self.torch.uint8, device="cuda"), 0
        for i in range(300):
            flush.zero_()
            fw.run()
            bw.run()
            if i % 50 == 49:
                self.driver.sync(20)
                differs += not self.torch.equal(keep, fw.o)
        return not differs, "300 launches"


def child(folder, specs, start):
    tests, bad = Tests(folder), 0
    for i in range(start, len(specs)):
        with open(os.path.join(folder, "at"), "w") as out:
            out.write(str(i))
        spec = specs[i]
        try:
            good, said = getattr(tests, spec.what)(spec)
        except Exception as e:  # the rest must still run
            good, said = False, "%s: %s" % (type(e).__name__, str(e)[:300])
            if "CUDA" in said or "driver error" in said:
                print("BAD  %s %s" % (spec.label(), said), flush=True)
                os._exit(7)
        bad += not good
        print("%s %s | %s" % ("ok  " if good else "BAD ", spec.label(), said), flush=True)
        tests.torch.cuda.empty_cache()
    with open(os.path.join(folder, "bad"), "a") as out:
        out.write("%d\n" % bad)


def skip(why):
    print("skipped: " + why)
    return 77


def main():
    words = sys.argv[1:]
    only = words[words.index("--only") + 1] if "--only" in words else ""
    limit = float(words[words.index("--limit") + 1]) if "--limit" in words else 1e9
    cache = os.path.abspath(words[words.index("--cache") + 1]) if "--cache" in words else ""
    groups = [w for w in words if w in GROUPS] or ["check"]
    specs = [s for g in groups for s in GROUPS[g]() if any(x in s.label() for x in only.split(","))]
    if "--child" in words:
        at = words.index("--child")
        return child(words[at + 1], specs, int(words[at + 2]))
    if not kernels.find_nvrtc():
        return skip("NVRTC was not found (FXA_NVRTC names it)")
    if cache:
        os.makedirs(cache, exist_ok=True)
    if "--compile" in words:
        with tempfile.TemporaryDirectory() as folder:
            return compile_all(folder, cache, words[words.index("--compile") + 1], specs)
    probe = subprocess.run([sys.executable, "-c", "import torch; print('%d%d' % torch.cuda.get_device_capability())"],
                           capture_output=True, text=True)
    if probe.returncode:
        return skip("torch with a GPU was not found")
    arch = probe.stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        compile_all(folder, cache, arch + "a" if arch == "90" else arch, specs)
        at, end, failed = 0, time.time() + limit, 0
        while at < len(specs) and time.time() < end:
            command = os.environ.get("FXA_GPU_WRAP", "").split() + [sys.executable, "-u", os.path.abspath(__file__)]
            command += words + ["--child", folder, str(at)]
            try:
                code = subprocess.run(command, timeout=max(1, end - time.time())).returncode
            except subprocess.TimeoutExpired:
                print("BAD  out of time")
                return 1
            if code == 0:
                break
            at = int(open(os.path.join(folder, "at")).read()) + 1
            print("BAD  the child ended with %d in test %d" % (code, at - 1), flush=True)
            failed += 1
        bad = failed + sum(int(x) for x in open(os.path.join(folder, "bad"))) if os.path.exists(
            os.path.join(folder, "bad")) else failed
        print("%d tests, %d bad" % (len(specs), bad), flush=True)
        return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
