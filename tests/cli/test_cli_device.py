# SPDX-License-Identifier: Apache-2.0
"""fxattn --device: refused with a reason where driver or library are missing; and on the mock device, whose memory faults
on any access by the host, the same bits as the reference engine (fxattn_mock is the command with that engine)."""

import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli_case
import npy_text as npy
from cli_case import Cli

MOCK = os.path.join(os.path.dirname(cli_case.FXATTN), "tests", "fxattn_mock")
PROGRAM = ("--score", "cap * tanh((score + slope[h] * (q - k)) / cap)", "--mask", "k < 9 || q == k", "--causal",
           "--param", "cap=1.5")
SIZES = ("--tensor-size", "slope:f32=2")
FILES = ("q", "k", "v", "dout", "dlse")


class NoDevice(Cli):
    def test_messages_name_options(self):
        """Messages name options, not the flags that the options set."""
        for words, says in ((("--decode", "--assume", "q-start"), "--assume q-start and --decode are both set"),
                            (("--bottom-right", "--assume", "q-start"), "--assume q-start and --bottom-right are both set"),
                            (("--sink-zero", "--assume", "sinks"), "--assume sinks and --sink-zero are both set")):
            self.assertNotIn("FXA_", self.fails("explain", *words, "--shape", "sq=1,sk=8", says=says))

    def test_words(self):
        accepted = "accepted are host, cuda, cuda:N, with N from 0"
        for word in ("", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:2147483648", "host:0", "cuda:1 "):
            self.fails("check", "--device", word, says=accepted)
        self.fails("check", "--device", "host", "--device", "cuda", says="--device")
        self.fails("plot", "--device", "cuda", says="'plot' has no option --device")
        self.assertEqual(self.bash_completion()("fxattn", "run", "--device", "c"), ["cuda"])
        self.assertIn("--device", self.run_cli("help", "run"))

    def test_host_is_what_it_was(self):
        here, there = (self.run_json("explain", "--causal", *words) for words in ((), ("--device", "host")))
        self.assertEqual(here, there)
        self.assertEqual(here["device"], "host")

    def test_a_profile_and_values(self):
        """Programs are evaluated on the host, also if the plan is for an absent device."""
        target = os.path.join(cli_case.SOURCE, "examples", "targets", "h200.json")
        doc = npy.save(self.path("doc.npy"), npy.Array((1000,), [i // 128 for i in range(1000)]), "i4")
        e = self.run_json("explain", "--target", target, "--dtype", "bf16", "--shape", "h=2,s=1000,d=128", "--program",
                          "@document", "--tensor", "doc=" + doc)
        self.assertEqual([e["tiles"][x] for x in ("empty", "mixed", "full")], [56, 0, 8])

    def test_profiles_that_are_none(self):
        """An unreadable target fails, whatever the sections are."""
        with open(os.path.join(cli_case.SOURCE, "examples", "targets", "h200.json")) as f:
            text = f.read()
        for wrong, says in ((text.replace("900", "-1"), "target has -1 for deviceVer: accepted are whole numbers from 500 to 9999"),
                            (text.replace("deviceVer", "deviceVersion"), 'target has a key "deviceVersion"'),
                            (text[:40], "target "), ("{", "target "), ("", "not a device description")):
            path = self.write("gpu.json", wrong)
            for section in ((), ("--section", "engines"), ("--section", "program"), ("--section", "problem"),
                            ("--section", "engines", "--engine", "cuda"), ("--section", "hints")):
                self.fails("explain", "--target", path, "--dtype", "bf16", "--causal", *section, says=says)
                self.fails("explain", "--target", path, *section, "--json", says=says)
        self.run_cli("explain", "--target", self.write("gpu.json", text), "--section", "problem")

    def test_engines_that_are_none_of_the_target(self):
        """An engine of another device fails, whatever the sections are."""
        target = os.path.join(cli_case.SOURCE, "examples", "targets", "h200.json")
        says = 'problem.engine is "%s", which does not compute in the memory of device %s; there: %s'
        for section in ((), ("--section", "engines"), ("--section", "properties"), ("--section", "problem", "--json")):
            for engine in ("cpu", "ref"):
                self.fails("explain", "--engine", engine, "--target", target, *section, says=says % (engine, "cuda", "cudnn, cuda"))
            self.fails("explain", "--engine", "cuda", *section, says=says % ("cuda", "host", "cpu, ref"))
        self.run_cli("explain", "--engine", "cuda", "--target", target, "--dtype", "bf16", "--section", "properties")

    def test_engines_of_another_device(self):
        self.fails("check", "--device", "cuda", "--engine", "ref", says="does not compute in the memory of device cuda")
        for device, others in (("cuda", "cpu, ref"), ("host", "cudnn, cuda")):
            lines = self.run_cli("explain", "--device", device, "--section", "engines").splitlines()
            other = "cuda" if device == "host" else "host"
            self.assertEqual(lines[-1], "  %s: for device %s (--device %s)" % (others, other, other))
            self.assertNotIn("computes in the memory of", "\n".join(lines))
            named = {x["engine"] for x in self.run_json("explain", "--device", device, "--section", "engines")["engines"]}
            self.assertEqual(named, {"cpu", "ref", "cudnn", "cuda"})


class Here(Cli):
    """Engines report which driver or library is missing: on this machine, and with the stand-ins of the tests."""

    def cudnn(self, **variables):
        """Returns what `engines` prints about cudnn, with a separate folder for the loader, and its environment."""
        env = {"LD_LIBRARY_PATH": self.folder.name, "FXA_CUDNN_PATH": self.folder.name, **variables}
        text = self.run_cli("engines", env=env)
        self.assertRegex(text, r"(?m)^cudnn    cuda, ")
        told = {e["name"]: e for e in self.run_json("engines", env=env)["engines"]}
        self.assertTrue(told["cpu"]["available"] and told["ref"]["available"])
        self.assertEqual(told["cudnn"]["available"], not told["cudnn"]["reason"])
        self.assertIn(told["cudnn"]["reason"], text)
        return told["cudnn"], env

    def bring(self, *names):
        for name in names:
            path = os.path.join(os.path.dirname(cli_case.FXATTN), "tests", "standin", name)
            if not os.path.exists(path):
                self.skipTest("this build has no %s" % path)
            shutil.copy(path, self.path(os.path.basename(name)))

    def fails_everywhere(self, reason, env):
        for command in ("check", "bench"):
            self.fails(command, "--device", "cuda:1", code=3, says=reason, env=env)
        self.fails("plan", "save", self.path("plan"), "--device", "cuda", code=3, says=reason, env=env)
        self.assertFalse(os.path.exists(self.path("plan")))
        e = self.run_json("explain", "--device", "cuda:1", "--causal", env=env)
        self.assertEqual(e["device"], "cuda:1")
        said = {x["engine"]: x for x in e["engines"]}
        self.assertFalse(any(x["supported"] for x in said.values()))
        self.assertIn("on device cuda", said["cpu"]["reason"])
        self.assertIn(reason, said["cudnn"]["reason"])
        self.assertIn(reason, e["tape"]["forward"]["reason"])
        text = self.run_cli("explain", "--device", "cuda:1", "--section", "problem", env=env)
        self.assertIn(", f32, on cuda:1\n", text)

    def test_no_driver(self):
        told, env = self.cudnn()
        if "libcuda.so.1" not in told["reason"]:
            self.skipTest("this machine has a driver")
        self.assertTrue(told["reason"].startswith("the CUDA driver cannot be used: "), told)
        self.fails_everywhere("the CUDA driver cannot be used: libcuda.so.1", env)

    def test_a_driver_and_no_cudnn(self):
        self.bring("libcuda.so.1")
        told, env = self.cudnn()
        if told["available"]:
            self.skipTest("this machine has cuDNN")
        self.fails_everywhere("FXA_CUDNN_PATH is %s: no folder with libcudnn.so.9 or libcublasLt" % self.folder.name, env)
        told, env = self.cudnn(FXA_CUDNN_PATH="")
        self.fails_everywhere("cuBLASLt, which cuDNN needs (FXA_CUDNN_PATH may name its folder), cannot be used: ", env)
        self.bring("libcublasLt.so.13")
        told, env = self.cudnn()
        self.fails_everywhere("cuDNN (FXA_CUDNN_PATH may name its folder) cannot be used: ", env)

    def test_cudnn_without_its_parts(self):
        """cuDNN ends the process if it does not find a part of itself, so the engine searches for the parts first."""
        self.bring("libcuda.so.1", "libcublasLt.so.13", "libcudnn_front.so.9")
        os.rename(self.path("libcudnn_front.so.9"), self.path("libcudnn.so.9"))
        told, env = self.cudnn()
        path = self.path("libcudnn_graph.so.9")
        self.fails_everywhere("libcudnn_graph, a part of cuDNN, cannot be used: %s is not loaded: cannot open" % path, env)

    def test_both(self):
        self.bring("libcuda.so.1", "libcublasLt.so.13", "libcudnn.so.9")
        told, env = self.cudnn()
        self.assertEqual((told["available"], told["reason"]), (True, ""))
        for folder in (self.path("nowhere"), self.path("libcudnn.so.9")):  # a named folder has no fallback
            self.assertIn("FXA_CUDNN_PATH is %s: " % folder, self.cudnn(FXA_CUDNN_PATH=folder)[0]["reason"])
        self.assertIn("cuDNN 9.19.1, sm_90", told["detail"])
        there = self.run_json("bench", "--device", "cuda:1", "--dtype", "bf16", "--shape", "h=2,s=32,d=16", "--reps", "2",
                              "--causal", env=env)
        self.assertEqual((there["engine"], there["device"]), ("cudnn", "cuda:1"))
        host = self.run_json("bench", "--shape", "s=32,d=8", "--reps", "2", env=env)
        self.assertEqual((host["engine"], host["device"]), ("cpu", "host"))  # a device is only used on request
        self.fails("bench", "--engine", "cudnn", "--shape", "s=32,d=8", env=env,
                   says="does not compute in the memory of device host")
        self.fails("check", "--device", "cuda:2", code=3, says="ordinal is 2: the CUDA driver has 2 devices", env=env)
        # `check` allows for rounding to 16 bits before products, and before sums over heads, in both dtypes
        for words in (("--dtype", "f16"), ("--dtype", "bf16"), ("--dtype", "f16", "--shape", "b=1,h=4,hkv=1,s=64,d=64"),
                      ("--dtype", "bf16", "--shape", "b=1,h=4,hkv=1,s=64,d=64")):
            shape = () if "--shape" in words else ("--shape", "b=1,h=2,s=64,d=64")
            told = self.run_json("check", "--device", "cuda", *words, *shape, "--causal", env=env)
            self.assertTrue(told["passed"], told)
        # this engine has no gradients of params: --grads qkv checks the others, and the derivative in any case
        cap = ("check", "--device", "cuda", "--dtype", "bf16", "--shape", "b=1,h=2,s=64,d=64", "--program", "@softcap",
               "--param", "cap=3")
        self.fails(*cap, code=3, says="gradients of params", env=env)
        found = {(x["check"], x["what"]) for x in self.run_json(*cap, "--grads", "qkv", env=env)["checks"]}
        self.assertTrue({("engine", "dV"), ("derivative", "d cap")} <= found, found)
        self.assertNotIn(("engine", "d cap"), found)
        self.assertIsNone(there["dense_gflops"])  # copies dominate the time


    def test_explain_has_what_plans_have(self):
        """Reports of the cuda engine: workspace of a forward with the requested LSE, and tiles of the requested batch
        entry and head, with the given values."""
        compiler = os.environ.get("FXA_MODEL_CXX") or "c++"
        if not shutil.which(compiler):
            self.skipTest("there is no C++ compiler (%s)" % compiler)
        self.bring("libcuda.so.1", "model/libnvrtc.so.13")
        _, env = self.cudnn(FXA_NVRTC_PATH=self.folder.name)
        ask = ("--engine", "cuda", "--device", "cuda", "--dtype", "bf16", "--shape", "b=2,h=4,s=1024,d=64")
        found = []
        for words in ((), ("--lse-dtype", "f32"), ("--lse-dtype", "f64")):
            told = self.run_json("explain", *ask, "--section", "engines", *words, env=env)["engines"]
            found += [x["workspace"] for x in told if x["engine"] == "cuda" and x["pass"] == "forward"]
        self.assertTrue(found[0] == found[1] < found[2], found)
        saved = self.run_json("plan", "save", self.path("plan"), *ask, env=env)
        self.assertEqual(saved["workspace"], found[0])
        window = (*ask, "--mask", "k <= q && q - k < w", "--param", "w:int=32", "--b", "1", "--h", "2")
        e = self.run_json("explain", *window, "--section", "engines", "--section", "tape", env=env)
        for x in [x for x in e["engines"] if x["engine"] == "cuda"]:
            counts = (x["tiles"]["empty"], x["tiles"]["mixed"], x["tiles"]["full"])
            self.assertIn("tiles of b 1, h 2: %d skipped, %d with the mask, %d without" % counts, e["tape"][x["pass"]]["lines"])
        file = self.write("w.fxa", "param w : int\nmask = k <= q && q - k < w\n")
        self.assertIn("tiles of b 0, h 0, for any params: ",
                      self.run_cli("explain", *ask, "--program", file, "--section", "tape", env=env))
        file = self.write("c.fxa", "param w : float\nscore = w * tanh(score / w)\nmask = k <= q\n")
        text = self.run_cli("explain", *ask, "--program", file, "--section", "tape", env=env)
        self.assertIn("tiles of b 0, h 0: ", text)  # the mask does not depend on params
        for place in ("a.f[2]: from the values above", "a.f[3]: the factor of the tanh", "a.f[4]: the factor of", "a.f[5] and on: limits"):
            self.assertIn(place, text)

    def test_packages_of_python(self):
        """cuDNN from NVIDIA's packages next to the command's package, and a cuBLASLt that cuDNN would not find."""
        self.bring("libcuda.so.1", "libcublasLt.so.13", "libcudnn.so.9")
        folders = [os.path.join(self.folder.name, *x) for x in (("fxattn", "_lib"), ("nvidia", "cu13", "lib"),
                                                                ("nvidia", "cudnn", "lib"))]
        for folder, name in zip(folders, (None, "libcublasLt.so.13", "libcudnn.so.9")):
            os.makedirs(folder)
            if name:
                os.rename(self.path(name), os.path.join(folder, name))
        told, _ = self.cudnn(FXA_CUDNN_PATH=folders[2])  # its cuBLASLt is in the neighbouring package
        self.assertEqual((told["available"], told["reason"]), (True, ""))
        shutil.copy(cli_case.FXATTN, folders[0])
        before, cli_case.FXATTN = cli_case.FXATTN, os.path.join(folders[0], "fxattn")
        self.addCleanup(setattr, cli_case, "FXATTN", before)
        told, _ = self.cudnn(FXA_CUDNN_PATH="")
        self.assertEqual((told["available"], told["reason"]), (True, ""))
        blas = os.path.join(folders[1], "libcublasLt.so.13")
        with open(blas, "rb") as f:
            data = f.read()
        self.assertIn(b"\0libcublasLt.so.13\0", data)
        with open(blas, "wb") as f:
            f.write(data.replace(b"\0libcublasLt.so.13\0", b"\0libcublasXt.so.13\0"))
        told, _ = self.cudnn(FXA_CUDNN_PATH="")
        self.assertIn("which cuDNN needs and looks for by its name, cannot be used", told["reason"])

    def warms_lengths(self, path, env):
        """plan precompile for several sizes; padded and packed problems are different plans."""
        sizes, env = self.write("sizes", "b=2,h=2,s=64,d=64  # the smallest\nb=2,h=2,s=128,d=64\n"), {
            **env, "FXA_CACHE_DIR": self.path("plans")}
        ask = ("plan", "precompile", sizes, "--target", path, "--dtype", "bf16", "--causal")
        for words in ((), ("--varlen", "packed"), ("--varlen", "padded"), ("--layout", "bshd"), ("--lse-dtype", "f64")):
            for result in ("compiled and written", "was there"):
                told = self.run_json(*ask, *words, env=env)["plans"]
                forward = [x["result"] for x in told if x["pass"] == "forward"]
                self.assertEqual((len(told), forward), (4, [result] * 2), words)
        self.fails("plan", "precompile", self.write("none", "# nothing\n\n"), "--target", path, env=env, says="has no shape in it")
        wrong = self.write("wrong", "s=8\n\ns=16,x=2\n")
        self.fails("plan", "precompile", wrong, "--target", path, env=env, says="%s:3: there is no 'x'; accepted are" % wrong,
                   prints=r"^b=1,h=1,hkv=1,sq=8,")
        file = self.write("file", "")  # not a folder: compiled, but not stored
        result = self.run_cli(*ask, "--pass", "fwd", env={**env, "FXA_CACHE_DIR": file}, code=1,
                              warns=["2 plans could not be kept in FXA_CACHE_DIR, %s: it must be a folder" % file])
        self.assertEqual(result.count("not written"), 2)
        for word, words in (("--varlen", "padded, packed"), ("--lse-dtype", "f32, f64"), ("--layout", "bhsd, bshd, sbhd")):
            self.fails(*ask, word, "some", says=words, env=env)

    def explains_gradients(self, path, env):
        """An engine without gradients of params and tensors is queried again without them; both are reported."""
        for words in (("--program", "@softcap"), ("--program", "@dense_bias"), ("--program", "@distance_decay")):
            ask = ("explain", "--target", path, "--dtype", "bf16", "--shape", "h=2,s=64,d=64", *words)
            said = [x for x in self.run_json(*ask, env=env)["engines"] if x["engine"] == "cudnn"]
            self.assertEqual([x["supported"] for x in said], [True, False])
            self.assertIn("gradients of ", said[1]["reason"])
            self.assertTrue(said[0]["seconds"] > 0 and said[1]["seconds"] is None, said)
            self.assertEqual((said[1]["grads_qkv"]["supported"], said[1]["grads_qkv"]["reason"]), (True, ""))
            self.assertIn("of Q, K and V alone (--grads qkv) yes", self.run_cli(*ask, "--section", "engines", env=env))
            alone = [x for x in self.run_json(*ask, "--grads", "qkv", env=env)["engines"] if x["engine"] == "cudnn"]
            self.assertTrue(all(x["supported"] and "grads_qkv" not in x for x in alone), alone)
        self.fails("plan", "save", self.path("plan"), "--target", path, "--dtype", "bf16", "--pass", "bwd", "--program",
                   "@softcap", "--param", "cap=3", code=3, says="gradients of params", env=env)
        self.run_cli("plan", "save", self.path("plan"), "--target", path, "--dtype", "bf16", "--pass", "bwd", "--program",
                     "@softcap", "--param", "cap=3", "--grads", "qkv", env=env)
        self.fails("explain", "--grads", "some", says="all, qkv")

    def explains_runs(self, path, env):
        """--assume adds further inputs of later runs to the query."""
        ask = ("explain", "--target", path, "--dtype", "bf16", "--shape", "b=2,h=2,s=64,d=64")
        for words, said in ((("--assume", "sinks"), ("", "")), (("--assume", "sinks", "--shape", "h=2,sq=1,sk=64,d=64"), ("no sink for one row", "")),
                            (("--page-size", "16"), ("", "no gradients of pages")),
                            (("--assume", "q-start", "--causal"), ("", "")),
                            (("--assume", "q-start", "--assume", "sinks", "--varlen", "padded"), ("beside lengths of entries", ""))):
            asked = ask[:-2] + words if "--shape" in words else ask + words
            found = [x["reason"] for x in self.run_json(*asked, env=env)["engines"] if x["engine"] == "cudnn"]
            for reason, expected in zip(found, said):
                self.assertTrue(expected in reason and bool(expected) == bool(reason), (words, found))
        self.fails(*ask, "--assume", "some", says="accepted are sinks, q-start, scales", env=env)
        self.fails(*ask, "--assume", "scales", says="no operand has 8 bits", env=env)

    def shows_what_is_not_here(self, plan, saved, env):
        """plan show of a plan whose device is absent: versions and problem, from the bytes alone."""
        nothing = {"LD_LIBRARY_PATH": "/nowhere", "FXA_CUDNN_PATH": ""}
        if "cannot be used" not in {e["name"]: e for e in self.run_json("engines", env=nothing)["engines"]}["cudnn"]["reason"]:
            return  # this machine has a driver
        shown = self.run_json("plan", "show", plan, env=nothing)
        for key in ("file", "bytes", "engine", "key", "pass", "shape"):
            self.assertEqual(shown[key], saved[key])
        here = self.run_json("plan", "show", plan, env=env)
        for key in ("dtype", "flags", "program", "operands", "tensors"):
            self.assertEqual(shown[key], here[key])
        self.assertTrue(0 < shown["code_bytes"] < shown["bytes"])
        self.assertIn("the CUDA driver cannot be used", shown["not_here"])
        text = self.run_cli("plan", "show", plan, env=nothing)
        self.assertRegex(text, r"(?m)^made for cudnn 9\.19\.1, sm_90, .*stand-in 0$")
        self.assertIn("\nb=1,h=2,hkv=2,sq=64,sk=64,d=64,d_v=64, bf16\n", text)
        self.assertRegex(text, r"(?m)^flags causal .*\nprogram$")
        self.fails("plan", "load", plan, code=3, says="the CUDA driver cannot be used", env=nothing)
        for action in ("load", "show"):
            self.fails("plan", action, plan, "--device", "cuda:1", says="'plan %s' has no option --device" % action)
        with open(plan, "rb") as f:
            data = f.read()
        for end in (7, 30, 60, 100, len(data) // 2, len(data) - 1):
            self.fails("plan", "show", self.write("cut.plan", data[:end]), env=nothing, says="cut.plan")

    def test_profiles(self):
        """A plan for an absent device, from a description of the command, and from texts that are not descriptions."""
        self.bring("libcuda.so.1", "libcublasLt.so.13", "libcudnn.so.9")
        _, env = self.cudnn()
        path, plan = self.path("gpu.json"), self.path("plan")
        text = self.run_cli("device", env=env)
        self.assertEqual(text, self.run_cli("device", "--device", "cuda:0", "--json", env=env))
        self.assertEqual(json.loads(text)["deviceName"], "stand-in 0")
        self.assertEqual(json.loads(self.run_cli("device", "--device", "cuda:1", env=env))["cudaDeviceId"], 1)
        self.fails("device", "--device", "cuda:2", code=3, says="ordinal is 2: the CUDA driver has 2 devices", env=env)
        self.fails("device", "--device", "host", code=3, says="has descriptions of device host", env=env)
        self.write("gpu.json", text)
        problem = ("--dtype", "bf16", "--shape", "h=2,s=64,d=64", "--causal")
        e = self.run_json("explain", "--target", path, *problem, env=env)
        self.assertEqual([x["supported"] for x in e["engines"] if x["engine"] == "cudnn"], [True, True])
        self.explains_gradients(path, env)
        self.explains_runs(path, env)
        self.warms_lengths(path, env)
        saved = self.run_json("plan", "save", plan, "--target", path, *problem, env=env)
        self.assertEqual((saved["engine"], saved["device"]), ("cudnn", "cuda:0"))
        self.assertEqual(self.run_json("plan", "load", plan, env=env)["key"], saved["key"])
        self.shows_what_is_not_here(plan, saved, env)
        more = ("--score", "c * score + t[h, k]", "--param", "c=2", "--tensor-size", "t:bf16=2,64", "--varlen", "padded")
        saved = self.run_json("plan", "save", plan, "--target", path, *problem, *more, "--grads", "qkv", "--pass", "bwd", env=env)
        self.shows_what_is_not_here(plan, saved, env)
        self.write("gpu.json", text.replace("stand-in 0", "another"))
        saved = self.run_json("plan", "save", plan, "--target", path, *problem, env=env)
        self.fails("plan", "load", plan, says=('driver 13000, another"; this is "', ", and --rebuild compiles it for this one"), env=env)
        here = self.run_json("plan", "load", plan, "--rebuild", env=env)
        self.assertEqual(here["engine"], "cudnn")
        self.assertNotEqual(here["key"], saved["key"])
        for action in ("save", "show", "precompile"):
            self.fails("plan", action, plan, "--rebuild", says="'plan %s' has no option --rebuild" % action)
        for wrong, says in ((text.replace("900", "-1"), "target has -1 for deviceVer: accepted are whole numbers from 500 to 9999"),
                            ("", "not a device description"), (text + "\0", "it is not text"), ("x" * 70000, "is larger than")):
            self.write("gpu.json", wrong)
            self.fails("plan", "save", plan, "--target", path, *problem, env=env, says=says)
        self.fails("plan", "save", plan, "--target", self.path("none.json"), says="cannot be read")
        self.fails("explain", "--device", "host", "--target", path, says="larger")
        self.write("gpu.json", text)
        self.fails("explain", "--device", "host", "--target", path, says="target is set on device host")
        self.fails("run", "--target", path, says="'run' has no option --target")


class Mock(Cli):
    """Tests with the command that has the mock device."""

    def setUp(self):
        super().setUp()
        if not os.path.exists(MOCK):
            self.skipTest("this build has no %s" % MOCK)
        before, cli_case.FXATTN = cli_case.FXATTN, MOCK
        self.addCleanup(setattr, cli_case, "FXATTN", before)

    def inputs(self, dtype="f32"):
        names = [x for f in FILES for x in ("--" + f, self.path(f + ".npy"))]
        self.run_cli("random", *names, "--shape", "b=2,h=4,hkv=2,sq=7,sk=11,d=5,d_v=3", "--dtype", dtype)
        self.run_cli("random", "--q", self.path("slope.npy"), "--shape", "b=1,h=1,s=1,d=4", "--seed", "3")
        with open(self.path("slope.npy"), "rb") as f:
            data = f.read().replace(b"(1, 1, 1, 4)", b"(4,)        ")
        self.write("slope.npy", data)
        return (*names, *PROGRAM, "--tensor", "slope=" + self.path("slope.npy"))

    def outputs(self, words, *where):
        names = ("out", "lse", "row_max", "dq", "dk", "dv", "dtensor", "dparam")
        keys = {"dtensor": "slope=", "dparam": "cap="}
        files = {name: self.path("%s%s.npy" % (name, len(where))) for name in names}
        told = self.run_json("run", *words, *where, *[x for n in names for x in ("--" + n.replace("_", "-"), keys.get(n, "") + files[n])])
        content = {}
        for name, path in files.items():
            with open(path, "rb") as f:
                content[name] = f.read()
        return told, content

    def test_run(self):
        words = self.inputs()
        host, want = self.outputs(words)
        self.assertEqual((host["engine"], host["device"]), ("ref", "host"))
        for ordinal in ("", ":0", ":1"):
            there, got = self.outputs(words, "--device", "cuda" + ordinal)
            self.assertEqual((there["engine"], there["device"]), ("mock", "cuda" + (ordinal or ":0")))
            self.assertEqual(got, want)
        text = self.run_cli("run", *words, "--device", "cuda", "--dq", self.path("o.npy"))
        self.assertIn(", f32, on cuda:0\n", text)
        self.fails("run", *words, "--device", "cuda:2", "--dq", self.path("o.npy"), code=3, says="ordinal")

    def test_check(self):
        told = self.run_json("check", "--device", "cuda:1", *PROGRAM, *SIZES)
        self.assertTrue(told["passed"])
        self.assertEqual(told["engine"], "mock")
        self.assertTrue(any(x["check"] == "engine" and x["verdict"] == "passed" for x in told["checks"]))

    def test_bench(self):
        words = ("--device", "cuda", "--causal", "--shape", "s=32,d=8", "--reps", "2")
        self.assertIn("on cuda:0, the way of all data there and back included\n", self.run_cli("bench", *words))
        for more in ((), ("--pass", "bwd")):
            told = self.run_json("bench", *words, *more)
            self.assertEqual((told["engine"], told["device"], told["peak_gflops"]), ("mock", "cuda:0", None))

    def test_explain_and_plan(self):
        e = self.run_json("explain", "--device", "cuda", *PROGRAM, *SIZES)
        self.assertEqual({x["engine"]: x["supported"] for x in e["engines"]}, {"mock": True, "ref": False})
        self.assertEqual(e["tape"]["backward"], {"engine": "mock", "lines": []})
        path = self.path("plan")
        saved = self.run_json("plan", "save", path, "--device", "cuda:1", "--causal")
        self.assertEqual((saved["engine"], saved["device"]), ("mock", "cuda:1"))
        self.assertEqual(self.run_json("plan", "show", path)["device"], "cuda:1")
        self.assertIn(", f32, on cuda:1\n", self.run_cli("plan", "load", path))

    def test_warm(self):
        folder, shapes = self.path("cache"), self.write("shapes", "# of a model\n\n  h=2,s=8,d=4 # small\nh=4,s=16,d=8\r\n")
        env = {"FXA_CACHE_DIR": folder}
        words = ("plan", "precompile", shapes, "--device", "cuda", "--score", "cap * tanh(score / cap)", "--param", "cap=2")
        for result in ("compiled and written", "was there"):
            told = self.run_json(*words, env=env)["plans"]
            self.assertEqual([(x["engine"], x["pass"], x["shape"]["sq"]) for x in told],
                             [("mock", w, s) for s in (8, 16) for w in ("forward", "backward")])
            self.assertEqual({x["result"] for x in told}, {result})
        self.assertEqual(len(os.listdir(folder)), 4)
        text = self.run_cli(*words, "--pass", "bwd", env=env)
        self.assertEqual(len(text.splitlines()), 2)
        self.assertIn("b=1,h=4,hkv=4,sq=16,sk=16,d=8,d_v=8, backward: mock, ", text)
        self.run_cli("plan", "precompile", shapes, "--target", self.write("target", "mock 1"), env=env)  # another identity
        self.assertEqual(len(os.listdir(folder)), 8)
        there = self.run_json("plan", "precompile", shapes, "--device", "cuda:1", env=env)["plans"]
        self.assertEqual(there[0]["result"], "was there")
        refused = self.run_json("plan", "precompile", shapes, "--device", "cuda:7", code=1, env=env)["plans"]
        self.assertIn("ordinal is 7", refused[0]["result"])
        host = self.run_json("plan", "precompile", shapes, env=env)["plans"]
        self.assertEqual((host[0]["engine"], host[0]["result"]), ("ref", "nothing to keep"))
        twice = self.run_json("plan", "precompile", self.write("twice", "s=8\ns=8\n"), "--device", "cuda", env=env)["plans"]
        self.assertEqual(twice[2]["result"], "has the code of a shape before")
        file = self.write("file", "")
        told = self.run_json(*words, env={"FXA_CACHE_DIR": file}, code=1, warns=["4 plans could not be kept"])
        self.assertEqual((told["plans"][0]["result"], len(told["warnings"])), ("not written", 1))
        self.fails(*words, env={"FXA_CACHE_DIR": ""}, says="'plan precompile' needs FXA_CACHE_DIR")
        self.fails(*words, "--shape", "s=4", env=env, says="has its shapes from")
        self.fails("plan", "precompile", self.path("none"), env=env, says="cannot be read")
        wrong = self.write("wrong", "s=4\nx=1\n")
        self.fails("plan", "precompile", wrong, env=env, says="%s:2: there is no 'x'" % wrong, prints=r"^b=1,.*\nb=1,.*\n$")
        wrong = self.write("wrong", "s=4\n\nh=2,hkv=3\ns=8\n")  # errors of the library have a line number too
        self.fails("plan", "precompile", wrong, env=env, says="%s:3: hq is 2 and hkv is 3" % wrong, prints=r"^b=1,.*\nb=1,.*\n$")
        self.fails("plan", "precompile", wrong, "--json", env=env, says="%s:3: hq is 2" % wrong)

    def test_strict_indices_are_of_the_host(self):
        self.fails("check", "--device", "cuda", "--bounds-check", says="--bounds-check looks at captured tensors")


if __name__ == "__main__":
    unittest.main()
