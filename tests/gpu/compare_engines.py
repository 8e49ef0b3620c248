# SPDX-License-Identifier: Apache-2.0
"""Compares what run_gpu.py wrote (FXA_GPU_DUMP=FOLDER) with the library's own engines, without a GPU:
python3 compare_engines.py PATH/TO/fxattn FOLDER [engine ...]; cpu and ref when none is named. Inputs go through the
command line, so the score is read as the user writes it: text, ready masks, lengths, packed files, sinks, dropout."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

CAUSAL = ["--causal", "--bottom-right"]
# The programs of programs.py as options; {name} is a value of the problem.
OPTIONS = {
    "plain": [], "causal": CAUSAL,
    "softcap": ["--score", "20 * tanh(score / 20)"],
    "softcap_causal": ["--score", "20 * tanh(score / 20)"] + CAUSAL,
    "alibi": ["--score", "score + t[h] * (k - q)"],
    "alibi_causal": ["--score", "score + t[h] * (k - q)"] + CAUSAL,
    "learned_causal": ["--score", "score + t[h] * (k - q)"] + CAUSAL,
    "temperature_causal": ["--score", "t[h, 0] * score + t[h, 1] * (k % 2)"] + CAUSAL,
    "buckets": ["--score", "score + t[h, min(abs(q - k) // 16, 31)]"],
    "relative_causal": ["--score", "score + t[h, q - k + {last_key}]"] + CAUSAL,
    "head_table": ["--score", "score + t[h, k % 64]"],
    "window": ["--window", "{left},0", "--bottom-right"],
    "documents": ["--mask", "ids[b, q] == ids[b, k]"] + CAUSAL,
    "dense_causal": ["--score", "score + dense[b, h, q, k]"] + CAUSAL,
}
GRADIENTS = {"learned_causal": "t", "temperature_causal": "t", "buckets": "t", "relative_causal": "t"}


def as_float(x, bf16):
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) if bf16 else x.astype(np.float64)


def command(fxattn, engine, folder, data, meta):
    """The command line, its inputs written to the folder."""
    def put(name, array):
        path = os.path.join(folder, name + ".npy")
        np.save(path, array)
        return path

    words = [fxattn, "run", "--engine", engine, "--scale", repr(meta["scale"]), "--seed", str(meta["seed"])]
    words += [w.format(last_key=meta["Sk"] - 1, left=meta["window"] - 1) for w in OPTIONS[meta["program"]]]
    words += ["--layout", "bhsd"]  # which packed files need said
    words += ["--dtype", "bf16"] if meta["bf16"] else []
    words += ["--dropout-p", repr(meta["drop"])] if meta["drop"] else []
    for option, name in (("q", "q"), ("k", "k"), ("v", "v"), ("dout", "grad_o"), ("sinks", "sink"), ("dlse", "grad_lse"),
                         ("q-lengths", "q_lens"), ("k-lengths", "k_lens"), ("cu-q", "q_starts"), ("cu-k", "k_starts")):
        if name in data and (name != "grad_o" or "grad_q" in data):
            words += ["--" + option, put(name, data[name])]
    for name in ("tensor", "ids", "dense"):
        if name in data:
            kind = ":bf16" if name == "dense" and meta["bf16"] else ""
            words += ["--tensor", "%s%s=%s" % ("t" if name == "tensor" else name, kind, put(name, data[name]))]
    out = {"o": "out", "lse": "lse"}
    if "grad_q" in data:
        out.update(grad_q="dq", grad_k="dk", grad_v="dv")
    if "grad_sink" in data:
        out["grad_sink"] = "dsinks"
    for name, option in out.items():
        words += ["--" + option, os.path.join(folder, "out_" + name + ".npy")]
    if "grad_tensor" in data:
        out["grad_tensor"] = "dtensor"
        words += ["--dtensor", "t=" + os.path.join(folder, "out_grad_tensor.npy")]
    return words, list(out)


def compare(fxattn, engine, path):
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    meta = json.loads(str(data.pop("meta")))
    for side in ("q", "k"):  # the kernels clamp lengths to the room of an entry, the library refuses them
        if side + "_starts" in data and side + "_lens" in data:
            data[side + "_lens"] = np.minimum(data[side + "_lens"], np.diff(data[side + "_starts"]))
    unit = 2.0 ** (-9 if meta["bf16"] else -11 if data["q"].dtype == np.float16 else -24) * (
        1 if data["q"].dtype != np.float32 else meta["D"] + 16 + np.abs(data["lse"][np.isfinite(data["lse"])]).max())
    said, good = [], True
    with tempfile.TemporaryDirectory() as folder:
        words, names = command(fxattn, engine, folder, data, meta)
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return False, "%s failed: %s" % (engine, done.stderr.strip()[:400])
        for name in names:
            theirs = np.load(os.path.join(folder, "out_%s.npy" % name))
            narrow = name in ("o", "grad_q", "grad_k", "grad_v")
            x = as_float(data[name], meta["bf16"] and narrow)
            y = as_float(theirs, theirs.dtype == np.uint16).reshape(x.shape)
            there = ~np.isnan(x)  # rows that belong to no entry keep the poison
            x, y = x[there], y[there]
            if name == "lse":
                same = np.array_equal(np.isinf(x), np.isinf(y))
                x, y = x[np.isfinite(x)], y[np.isfinite(x)] if same else x
                off, bound = (float(np.abs(x - y).max()) if same and x.size else 0.0 if same else np.inf), 1e-3
            else:  # each side rounds to storage: P, O or dS and the gradient
                off = float(np.linalg.norm(x - y)) / max(float(np.linalg.norm(y)), 1e-30)
                bound = (6 if name == "o" else 10) * unit
            good &= bool(off <= bound)
            said.append("%s %.1e" % (name, off))
    return good, " ".join(said)


def main():
    fxattn, folder, engines = sys.argv[1], sys.argv[2], sys.argv[3:] or ["cpu", "ref"]
    bad = count = 0
    for name in sorted(os.listdir(folder)):
        for engine in engines if name.endswith(".npz") else []:
            good, said = compare(fxattn, engine, os.path.join(folder, name))
            count, bad = count + 1, bad + (not good)
            print("%s %s %s | %s" % ("ok  " if good else "BAD ", engine, name[:-4], said), flush=True)
    print("%d comparisons, %d bad" % (count, bad))
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
