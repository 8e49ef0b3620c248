# SPDX-License-Identifier: Apache-2.0
"""The command line `fxattn run` against attention written in NumPy f64, forward and every gradient.

Nothing is shared with the library: score functions are Python functions next to the program text that says the same,
and their derivatives come from complex steps (f(x + ih).imag / h, exact to rounding), so none is written twice.
f64 results must agree to 1e-12 of the largest element; narrower ones must be the rounding of such a value.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("FXA_BUILD", os.path.join(HERE, "..", "..", "..", "build"))
ENVIRONMENT = os.path.join(BUILD, "python-tests")  # made by tests/python/environment.py
try:
    import numpy as np
except ImportError:  # only tests that need the module are skipped, and they report it
    python = os.path.join(ENVIRONMENT, "bin", "python")
    if os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(ENVIRONMENT):
        os.execv(python, [python, *sys.argv])
    print("skipped: NumPy is neither in python3 nor in %s" % os.path.basename(ENVIRONMENT))
    sys.exit(77)

FXATTN = os.path.join(BUILD, "fxattn")
TINY = 1e-200  # the complex step
TOLERANCE = 1e-12


# ---- Score functions: (x, at, p, t) -> (new score, mask); real parts decide comparisons ------------------------------

def wave(s, at, p, t):
    return s + p["gain"] * np.sin(0.3 * (at.q - at.k)) * np.exp(-s * s), True


def two_tensors(s, at, p, t):
    return s * t["w"][at.h % 3] + t["table"][at.q % 5, at.k % 3], True


def sieve(s, at, p, t):
    u = t["u"][at.b]
    return np.tanh(s) / (1 + u * u), ((at.q * 7 + at.k * 3) % 5 != 0) | (at.k == 0)


def gated(s, at, p, t):
    return s / (1 + np.exp(-p["a"] * s)) + np.log(1 + np.exp(p["c"] * s)), True


def signed_root(s, at, p, t):
    positive = s.real > 0
    safe = np.where(positive, s, -s)  # either branch is analytic on its side
    root = np.sqrt(1 + safe) - 1
    return np.where(positive, root, -root), True


def cosines(s, at, p, t):
    for i in range(4):
        s = s + t["basis"][i, at.h % 2] * np.cos((i + 1) * 0.1 * (at.q - at.k))
    return s, True


def documents(s, at, p, t):
    doc = t["doc"]
    return s * 0.5, doc[at.q % 6] == doc[at.k % 6]


def lengths(s, at, p, t):
    return s - p["slope"] * np.abs(at.q + at.k_len - at.q_len - at.k) * 0.125, at.k < at.k_len - 1


PROGRAMS = {
    "wave": (wave, ["--score", "score + gain * sin(0.3 * float(q - k)) * exp(-score * score)"], {"gain": 0.7}, {}),
    "two_tensors": (two_tensors, ["--score", "score * w[h % 3] + table[q % 5, k % 3]"],
                    {}, {"w": (3,), "table": (5, 3)}),
    "sieve": (sieve, ["--score", "tanh(score) / (1 + u[b] * u[b])", "--mask", "(q * 7 + k * 3) % 5 != 0 || k == 0"],
              {}, {"u": (4,)}),
    "gated": (gated, ["--score", "score * sigmoid(a * score) + log(1 + exp(c * score))"], {"a": 1.5, "c": -0.5}, {}),
    "signed_root": (signed_root, ["--score", "score > 0 ? sqrt(1 + score) - 1 : 1 - sqrt(1 - score)"], {}, {}),
    "cosines": (cosines, ["--score", "score + sum(i, 4, basis[i, h % 2] * cos(float(i + 1) * 0.1 * float(q - k)))"],
                {}, {"basis": (4, 2)}),
    "documents": (documents, ["--score", "score * 0.5", "--mask", "doc[q % 6] == doc[k % 6]"], {}, {"doc": "ids"}),
    "lengths": (lengths, ["--score", "score - slope * float(abs(q + k_len - q_len - k)) * 0.125",
                          "--mask", "k < k_len - 1"], {"slope": 0.25}, {}),
}


class At:
    """Coordinates of one head of one batch entry, as arrays [Sq,Sk]."""

    def __init__(self, b, h, sq, sk):
        self.b, self.h, self.q_len, self.k_len = b, h, sq, sk
        self.q, self.k = np.meshgrid(np.arange(sq), np.arange(sk), indexing="ij")


# ---- Attention -------------------------------------------------------------------------------------------------------

def philox(counter, seed):
    """Philox4x32-10 of an array of counters [4,...]."""
    c = [x.astype(np.uint64) for x in counter]
    low, key = np.uint64(0xFFFFFFFF), [seed & 0xFFFFFFFF, seed >> 32]
    for i in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        k0, k1 = (np.uint64((key[j] + i * step) & 0xFFFFFFFF) for j, step in ((0, 0x9E3779B9), (1, 0xBB67AE85)))
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & low]
    return c


class Attention:
    """One problem; q, k, v, dout are [B,H,S,D] in f64, whatever the files hold."""

    def __init__(self, q, k, v, program, params, tensors, scale, options):
        self.q, self.k, self.v, self.fn = q, k, v, program
        self.params, self.tensors, self.scale, self.options = params, tensors, scale, options
        self.group = q.shape[1] // k.shape[1]

    def ready(self, at):
        o = self.options
        q = at.q + (at.k_len - at.q_len if o.get("bottom_right") else 0)
        mask = np.ones(at.q.shape, bool)
        if o.get("causal"):
            mask &= at.k <= q
        if "window" in o:
            left, right = o["window"]
            mask &= (at.k >= q - left) if left >= 0 else True
            mask &= (at.k <= q + right) if right >= 0 else True
        return mask

    def keep(self, at):
        p = self.options.get("dropout", 0.0)
        if not p:
            return np.ones(at.q.shape)
        ones = np.ones_like(at.q)
        words = philox([at.k >> 2, at.q, ones * at.h, ones * at.b], self.options["seed"])
        word = np.choose(at.k & 3, words)
        return np.where(word >= np.uint64(int(p * 2.0**32)), 1 / (1 - p), 0.0)

    def heads(self):
        for b in range(self.q.shape[0]):
            sq, sk = self.options.get("lens", [(self.q.shape[2], self.k.shape[2])] * self.q.shape[0])[b]
            for h in range(self.q.shape[1]):
                yield b, h, h // self.group, At(b, h, sq, sk), slice(0, sq), slice(0, sk)

    def score(self, s, at, params=None, tensors=None):
        new, mask = self.fn(s, at, params or self.params, tensors or self.tensors)
        return new, np.broadcast_to(mask, s.shape) & self.ready(at)

    def sink(self, h):
        return self.options["sink"][h] if "sink" in self.options else -np.inf

    def forward(self):
        o = np.zeros(self.q.shape[:3] + self.v.shape[3:])
        lse = np.full(self.q.shape[:3], -np.inf)
        for b, h, g, at, rows, keys in self.heads():
            s = self.scale * (self.q[b, h, rows] @ self.k[b, g, keys].T)
            new, mask = self.score(s.astype(complex), at)
            new = np.where(mask, new.real, -np.inf)
            m = np.maximum(new.max(axis=1, initial=-np.inf), self.sink(h))
            alive = m > -np.inf
            m = np.where(alive, m, 0)
            weight = np.exp(new - m[:, None])
            total = weight.sum(axis=1) + np.exp(self.sink(h) - m)
            with np.errstate(divide="ignore"):
                lse[b, h, rows] = np.where(alive, m + np.log(total), -np.inf)
            o[b, h, rows] = (weight / np.where(alive, total, 1)[:, None] * self.keep(at)) @ self.v[b, g, keys]
        return o, lse

    def backward(self, o, lse, dout, dlse):
        grad = {"dq": np.zeros_like(self.q), "dk": np.zeros_like(self.k), "dv": np.zeros_like(self.v),
                "dsink": np.zeros(self.q.shape[1])}
        dparam = {n: 0.0 for n in self.params}
        dtensor = {n: np.zeros(t.shape) for n, t in self.tensors.items() if t.dtype.kind == "f"}
        for b, h, g, at, rows, keys in self.heads():
            q, k, v = self.q[b, h, rows], self.k[b, g, keys], self.v[b, g, keys]
            s = self.scale * (q @ k.T)
            new, mask = self.score(s + 1j * TINY, at)
            alive = lse[b, h, rows] > -np.inf
            log_sum = np.where(alive, lse[b, h, rows], 0)[:, None]
            p = np.where(mask & alive[:, None], np.exp(np.where(mask, new.real, 0) - log_sum), 0)
            r = self.keep(at)
            row = dlse[b, h, rows] - (dout[b, h, rows] * o[b, h, rows]).sum(axis=1)
            grad["dv"][b, g, keys] += (p * r).T @ dout[b, h, rows]
            dnew = p * (r * (dout[b, h, rows] @ v.T) + row[:, None])
            ds = dnew * new.imag / TINY * self.scale
            grad["dq"][b, h, rows] += ds @ k
            grad["dk"][b, g, keys] += ds.T @ q
            if "sink" in self.options:
                grad["dsink"][h] += (np.exp(self.sink(h) - log_sum[:, 0]) * row * alive).sum()
            self.captured(s, at, dnew, dparam, dtensor)
        return grad, dparam, dtensor

    def captured(self, s, at, dnew, dparam, dtensor):
        """Adds one head's part of the gradients of params and tensors, one complex step per element."""
        for n in dparam:
            moved = dict(self.params)
            moved[n] = moved[n] + 1j * TINY
            dparam[n] += (dnew * self.score(s.astype(complex), at, params=moved)[0].imag / TINY).sum()
        for n in dtensor:
            for i in np.ndindex(*dtensor[n].shape):
                moved = dict(self.tensors)
                moved[n] = moved[n].astype(complex)
                moved[n][i] += 1j * TINY
                dtensor[n][i] += (dnew * self.score(s.astype(complex), at, tensors=moved)[0].imag / TINY).sum()


# ---- One comparison --------------------------------------------------------------------------------------------------

AXES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}


def to_file(x, layout):
    return np.ascontiguousarray(x.transpose(AXES[layout]))


def from_file(x, layout):
    return x.transpose(np.argsort(AXES[layout]))


def near(name, got, want):
    """Every element of `got` lies between the roundings of `want` - `tolerance` and `want` + `tolerance`."""
    assert got.shape == want.shape, f"{name} has shape {got.shape}, not {want.shape}"
    finite = np.isfinite(want)
    assert (got[~finite] == want[~finite]).all(), f"{name} has other infinities"
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
    low, high = ((want + e * TOLERANCE * scale).astype(got.dtype) for e in (-1, 1))
    bad = finite & ~((got >= low) & (got <= high))
    if bad.any():
        i = tuple(int(j[0]) for j in np.nonzero(bad))
        raise AssertionError(f"{name}{list(i)} is {got[i]!r}, not {want[i]!r} ({int(bad.sum())} of {bad.size} differ)")


def command(options, layout, scale, params, tensors, path):
    args = ["--layout", layout, "--scale", repr(scale), "--engine", "ref"]
    for n, value in params.items():
        args += ["--param", f"{n}={value!r}"]
    for n in tensors:
        args += ["--tensor", f"{n}={path(n)}"]
        args += ["--dtensor", f"{n}={path('d_' + n)}"] if tensors[n].dtype.kind == "f" else []
    for n in params:
        args += ["--dparam", f"{n}={path('d_' + n)}"]
    for flag in ("causal", "bottom_right"):
        args += ["--" + flag.replace("_", "-")] if options.get(flag) else []
    if "window" in options:
        args += ["--window", "%d,%d" % options["window"]]
    if "dropout" in options:
        args += ["--dropout-p", repr(options["dropout"]), "--seed", str(options["seed"])]
    if "lens" in options:
        args += ["--q-lengths", path("lens_q"), "--k-lengths", path("lens_k")]
    if "sink" in options:
        args += ["--sinks", path("sink"), "--dsinks", path("dsink")]
    for n in ("q", "k", "v", "dout", "dlse", "out", "lse", "dq", "dk", "dv"):
        args += ["--" + n, path(n)]
    return args


def compare(rng, folder, name, shape, layout="bhsd", dtype=np.float64, options=None):
    b, hq, hkv, sq, sk, d, dv = shape
    options = dict(options or {})
    fn, text, params, tensor_shapes = PROGRAMS[name]
    path = lambda n: os.path.join(folder, n + ".npy")
    data = {"q": (b, hq, sq, d), "k": (b, hkv, sk, d), "v": (b, hkv, sk, dv), "dout": (b, hq, sq, dv)}
    data = {n: rng.standard_normal(s).astype(dtype) for n, s in data.items()}
    tensors = {n: rng.integers(0, 2, 6).astype(np.int32) if s == "ids" else rng.standard_normal(s)
               for n, s in tensor_shapes.items()}
    dlse = rng.standard_normal((b, hq, sq)).astype(np.float64 if dtype == np.float64 else np.float32)
    if options.get("sink"):
        options["sink"] = rng.standard_normal(hq)
        np.save(path("sink"), options["sink"])
    if options.get("lens"):
        options["lens"] = [(int(rng.integers(1, sq + 1)), int(rng.integers(1, sk + 1))) for _ in range(b)]
        for i, n in enumerate(("lens_q", "lens_k")):
            np.save(path(n), np.array([x[i] for x in options["lens"]], np.int32))
    for n, x in data.items():
        np.save(path(n), to_file(x, layout))
    for n, x in tensors.items():
        np.save(path(n), x)
    np.save(path("dlse"), dlse)
    scale = float(rng.uniform(0.3, 0.8))
    args = [FXATTN, "run", *text, *command(options, layout, scale, params, tensors, path)]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}\n  {' '.join(args)}"

    wide = {n: x.astype(np.float64) for n, x in data.items()}
    a = Attention(wide["q"], wide["k"], wide["v"], fn, params, tensors, scale, options)
    o, lse = a.forward()
    got_o, got_lse = from_file(np.load(path("out")), layout), np.load(path("lse"))
    near("O", got_o, o)
    near("LSE", got_lse, lse)
    # backward starts from O and LSE as they were stored
    grad, dparam, dtensor = a.backward(got_o.astype(np.float64), got_lse.astype(np.float64), wide["dout"],
                                       dlse.astype(np.float64))
    for n in ("dq", "dk", "dv"):
        near(n, from_file(np.load(path(n)), layout), grad[n])
    if "sink" in options:
        near("dsink", np.load(path("dsink")), grad["dsink"])
    for n, x in dtensor.items():
        near("d" + n, np.load(path("d_" + n)), x)
    for n, x in dparam.items():
        near("d" + n, np.load(path("d_" + n)).reshape(1), np.array([x]))


CASES = [(name, (2, 4, 2, 7, 9, 5, 3), {}) for name in PROGRAMS] + [
    ("wave", (1, 1, 1, 1, 1, 1, 1), {}),
    ("wave", (1, 6, 2, 5, 33, 17, 64), {"layout": "bshd"}),
    ("two_tensors", (2, 6, 1, 8, 6, 4, 4), {"layout": "sbhd", "options": {"causal": True}}),
    ("sieve", (3, 2, 2, 11, 13, 8, 8), {"options": {"window": (4, 2)}}),
    ("gated", (2, 2, 1, 6, 10, 4, 4), {"layout": "bshd", "options": {"causal": True, "bottom_right": True}}),
    ("gated", (2, 2, 1, 9, 5, 4, 4), {"options": {"window": (2, -1), "bottom_right": True}}),  # rows without a key
    ("cosines", (2, 4, 2, 8, 9, 3, 5), {"options": {"dropout": 0.3, "seed": 12345678901234567}}),
    ("two_tensors", (2, 4, 4, 8, 9, 3, 5), {"options": {"sink": True}}),
    ("lengths", (3, 2, 2, 8, 9, 3, 5), {"options": {"lens": True, "causal": True}}),
    ("signed_root", (2, 2, 1, 5, 6, 8, 8), {"dtype": np.float32}),
    ("wave", (2, 2, 1, 5, 6, 8, 8), {"dtype": np.float16, "layout": "sbhd"}),
    ("cosines", (2, 4, 1, 6, 7, 4, 4),
     {"options": {"dropout": 0.5, "seed": 3, "sink": True, "lens": True, "window": (5, 3)}}),
]


def main():
    rng = np.random.default_rng(int(os.environ.get("FXA_TEST_SEED", "20261115")))
    failed = 0
    for name, shape, more in CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                compare(rng, folder, name, shape, **more)
                print("ok  ", name, shape, more or "")
            except AssertionError as e:
                failed += 1
                print("FAIL", name, shape, more or "", "\n    ", e)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
