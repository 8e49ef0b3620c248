#!/usr/bin/env python3
"""Compares attention of the cpu engine with PyTorch, in one run on one machine.

For every case `fxattn bench` runs first; if PyTorch can be imported, scaled_dot_product_attention (both passes)
and flex_attention (forward only on a CPU) follow on data of the same shape with the same number of threads. Rates count
attended pairs: 4 D operations each forward, 10 D backward, for all libraries. The percentage is relative to the f32
FMA rate in registers, which `fxattn bench` measures in the same run. Each figure is the best of several runs.

For sparse masks two ratios follow: the time relative to `full`, measured just before, and the share of tiles of 12 rows
x 16 keys with an attended pair, a lower bound for engines that work on such tiles. The bound column is the first ratio
divided by the second.

    bench_attention.py                                  a quick set, below two minutes
    bench_attention.py --all                            everything: hours on a small machine
    bench_attention.py --sizes 4096 --dims 128 --variants full,causal --passes fwd,bwd --dtypes f32,bf16 --threads 1
"""
import argparse
import contextlib
import json
import os
import platform
import random
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCUMENTS = 8
WINDOW = 512
CAP = 30.0
HEADS = 8

SIZES = [512, 1024, 2048, 4096, 8192, 16384]
DIMS = [64, 128, 256]
VARIANTS = ["full", "causal", "window", "softcap", "alibi", "bias", "lowrank", "gathered", "bucketed", "documents", "mask",
            "dropout"]
SPARSE = ["blocks64", "blocks256", "bigbird", "tree", "unsorted", "select"]  # sparse masks, some with holes
VARIANTS += SPARSE
SPARSE_SIZE = 4096
TILE = (12, 16)  # rows and keys
PASSES = ["fwd", "bwd"]
DTYPES = ["f32", "bf16"]
DENSE = ("bias", "bucketed", "mask")  # these have a captured tensor [S,S]
DENSE_MOST = 8192  # longer sequences would need gigabytes
BUCKETS = 32
RANK = 4  # rank of the bias of lowrank, a product of two thin tensors
DROPOUT = 0.1
DECODE_KEYS = [4096, 16384]
DECODE_HEADS = (32, 8, 128)  # query heads, key heads, features


def cpu_name():
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_count():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


# ---- Cases ---------------------------------------------------------------------------------------------------------


def case(variant, size, dim, direction="fwd", dtype="f32", threads=1):
    what = {"variant": variant, "size": size, "dim": dim, "pass": direction, "dtype": dtype, "threads": threads}
    return dict(what, peers=["sdpa", "flex"])


def quick_cases():
    """Returns the cases of the quick set. flex_attention compiles for seconds in each case, so it is a peer in some of
    them only."""
    every = cpu_count()
    both = ("full", "causal")
    cases = [case(v, 2048, 64) for v in VARIANTS if v not in SPARSE]
    cases += [case(v, 2048, 64, "fwd", "bf16") for v in both]
    cases += [case(v, SPARSE_SIZE, 64) for v in SPARSE]
    more = [case("full", 2048, 128), case("full", 4096, 64)]
    more += [case(v, 2048, 64, "bwd") for v in (*both, "softcap")] + [case(v, 2048, 64, "bwd", "bf16") for v in both]
    if every > 1:
        more += [case(v, 2048, 64, p, "f32", every) for p in PASSES for v in both]
    more += [case("decode", 16384, 128, "fwd", d, t) for d in DTYPES for t in sorted({1, every})]
    return cases + [dict(c, peers=["sdpa"]) for c in more]


def chosen_cases(options):
    cases = []
    for threads in options.threads:
        for dtype in options.dtypes:
            for direction in options.passes:
                for dim in options.dims:
                    for size in options.sizes:
                        for variant in options.variants:
                            if variant != "decode" and not (variant in DENSE and size > DENSE_MOST):
                                cases.append(case(variant, size, dim, direction, dtype, threads))
            if "decode" in options.variants:
                cases += [case("decode", keys, DECODE_HEADS[2], "fwd", dtype, threads) for keys in DECODE_KEYS]
    return cases


def document_ids(size):
    return [i * DOCUMENTS // size for i in range(size)]


def mask_bytes(size):
    """Returns a random mask that keeps seven of eight pairs."""
    return random.Random(0).randbytes(size * size).translate(bytes(b >= 32 for b in range(256)))


def block_table(size, block, density):
    """Returns which blocks of a head attend to which: [HEADS, size / block, size / block] bytes."""
    n, rng = size // block, random.Random(block)
    return n, bytes(rng.random() < density for _ in range(HEADS * n * n))


def unsorted_ids(size):
    """Returns ids of documents with 64 positions each, in random order."""
    ids = list(range(size // 64))
    random.Random(1).shuffle(ids)
    return [ids[i // 64] for i in range(size)]


def euler_tour(size):
    """Returns the tour of a random tree: node i is entered at time i and left at the returned time."""
    rng, left, path = random.Random(2), [size] * size, []
    for i in range(size):
        while len(path) > 1 and rng.random() < 0.48:
            left[path.pop()] = i
        path.append(i)
    return left


def sparse_tables(c):
    """Returns the tables of a sparse case by name: (dtype, shape, bytes)."""
    size, variant = c["size"], c["variant"]
    if variant in ("blocks64", "blocks256"):
        block, density = (64, 0.12) if variant == "blocks64" else (256, 0.15)
        n, data = block_table(size, block, density)
        return {"blk": ("|b1", (HEADS, n, n), data)}
    if variant == "bigbird":
        n, data = block_table(size, 64, 0.05)
        return {"blk": ("|b1", (HEADS, n, n), data)}
    if variant == "tree":
        ints = struct.pack("<%di" % size, *euler_tour(size))
        return {"left": ("<i4", (size,), ints)}
    if variant == "unsorted":
        return {"doc": ("<i4", (size,), struct.pack("<%di" % size, *unsorted_ids(size)))}
    return {}


SPARSE_TEXT = {
    "blocks64": "blk[h, q // 64, k // 64]",
    "blocks256": "blk[h, q // 256, k // 256]",
    "bigbird": "abs(q - k) < 128 || q < 64 || k < 64 || blk[h, q // 64, k // 64]",
    "tree": "k <= q && q < left[k]",
    "unsorted": "doc[q] == doc[k]",
}


def sparse_share(c):
    """Returns the share of tiles with an attended pair, counted from the mask; needs NumPy."""
    import numpy

    size, variant = c["size"], c["variant"]
    q, k = numpy.arange(size)[:, None], numpy.arange(size)[None, :]
    table = {n: numpy.frombuffer(d, t).reshape(s) for n, (t, s, d) in sparse_tables(c).items()}
    tiles = 0
    for h in range(HEADS):
        block = 256 if variant == "blocks256" else 64
        mask = k <= q
        if "blk" in table:
            mask = numpy.repeat(numpy.repeat(table["blk"][h].astype(bool), block, 0), block, 1)
        if variant == "bigbird":
            mask = mask | (abs(q - k) < 128) | (q < 64) | (k < 64)
        if variant == "tree":
            mask = mask & (q < table["left"][None, :])
        if variant == "unsorted":
            mask = table["doc"][:, None] == table["doc"][None, :]
        rows = -(-size // TILE[0])
        padded = numpy.zeros((rows * TILE[0], size), bool)
        padded[:size] = mask
        tiles += padded.reshape(rows, TILE[0], size // TILE[1], TILE[1]).any((1, 3)).mean()
    return tiles / HEADS


def alibi_slopes():
    return [2.0 ** -(8 * (h + 1) / HEADS) for h in range(HEADS)]


# ---- fxattn --------------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, command, engine, folder):
        self.command, self.engine, self.folder = command, engine, folder

    def tensor(self, name, kind, shape, data):
        """Returns the option for a captured tensor, which is written to a .npy file."""
        path = os.path.join(self.folder, name + ".npy")
        head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (kind, shape)
        head += " " * (-(len(head) + 11) % 64) + "\n"
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)
        return ["--tensor", "%s=%s" % (name, path)]

    def vector(self, name, kind, values):
        """Returns the option for a vector of int32 (i) or f32 (f)."""
        data = struct.pack("<%d%s" % (len(values), kind), *values)
        return self.tensor(name, "<%s4" % kind, "(%d,)" % len(values), data)

    def program(self, c):
        size = c["size"]
        return {
            "full": lambda: [],
            "causal": lambda: ["--causal"],
            "window": lambda: ["--window", "%d,0" % WINDOW],
            "softcap": lambda: ["--score", "%g * tanh(score / %g)" % (CAP, CAP)],
            "alibi": lambda: ["--score", "score - slope[h] * (q - k)", "--causal",
                              *self.vector("slope", "f", alibi_slopes())],
            "bias": lambda: ["--score", "score + bias[q, k]", "--tensor-size", "bias:f32=%d,%d" % (size, size)],
            "lowrank": lambda: ["--score", "score + sum(i, %d, u[h, q, i] * v[h, k, i])" % RANK,
                                "--tensor-size", "u:f32=%d,%d,%d" % (HEADS, size, RANK),
                                "--tensor-size", "v:f32=%d,%d,%d" % (HEADS, size, RANK)],
            "gathered": lambda: ["--score", "score + table[h, q - k + k_len - 1]", "--tensor-size",
                                 "table:f32=%d,%d" % (HEADS, 2 * size - 1)],
            "documents": lambda: ["--mask", "doc[q] == doc[k]", *self.vector("doc", "i", document_ids(size))],
            "bucketed": lambda: ["--score", "score + table[bucket[q, k], h]",
                                 "--tensor-size", "bucket:i32=%d,%d" % (size, size),
                                 "--tensor-size", "table:f32=%d,%d" % (BUCKETS, HEADS)],
            "mask": lambda: ["--mask", "keep[q, k]",
                             *self.tensor("keep", "|b1", "(%d, %d)" % (size, size), mask_bytes(size))],
            "dropout": lambda: ["--dropout-p", "%g" % DROPOUT],
            "select": lambda: ["--score", "k <= q ? score : -inf"],
            "decode": lambda: [],
        }.get(c["variant"], lambda: self.sparse(c))()  # fmt: skip

    def sparse(self, c):
        words = ["--mask", SPARSE_TEXT[c["variant"]]]
        for name, (kind, shape, data) in sparse_tables(c).items():
            words += self.tensor(name, kind, "(%s,)" % ", ".join(map(str, shape)), data)
        return words

    def run(self, c):
        shape = "b=1,h=%d,s=%d,d=%d" % (HEADS, c["size"], c["dim"])
        if c["variant"] == "decode":
            shape = "b=1,h=%d,hkv=%d,sq=1,sk=%d,d=%d" % (*DECODE_HEADS[:2], c["size"], c["dim"])
        words = [self.command, "bench", "--json", "--shape", shape, "--dtype", c["dtype"], "--pass", c["pass"]]
        words += ["--threads", str(c["threads"]), "--grads", "qkv", *self.program(c)]
        words += ["--engine", self.engine] if self.engine else []
        done = subprocess.run(words, capture_output=True, text=True)
        answer = json.loads(done.stdout or "{}")
        if done.returncode != 0:
            return {"error": answer.get("error", {}).get("text", done.stderr.strip())}
        return answer


# ---- PyTorch -------------------------------------------------------------------------------------------------------


class Torch:
    def __init__(self, flex):
        import torch
        import torch.nn.functional

        self.torch, self.sdpa = torch, torch.nn.functional.scaled_dot_product_attention
        self.version = torch.__version__
        self.flex = None
        if flex:
            with contextlib.suppress(ImportError):
                from torch.nn.attention import flex_attention

                self.flex = flex_attention

    def best(self, function):
        """Returns the best time of at least five runs and half a second, after two untimed runs, as fxattn bench
        does."""
        function(), function()
        times, end = [], time.perf_counter() + 0.5
        while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)

    def tensors(self, c):
        torch = self.torch
        torch.manual_seed(0)
        torch.set_num_threads(c["threads"])
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[c["dtype"]]
        rows, heads, key_heads = c["size"], HEADS, HEADS
        if c["variant"] == "decode":
            rows, (heads, key_heads) = 1, DECODE_HEADS[:2]
        grad = c["pass"] == "bwd"

        def draw(h, s):
            return (torch.rand(1, h, s, c["dim"]) * 3 - 1.5).to(dtype).requires_grad_(grad)

        return draw(heads, rows), draw(key_heads, c["size"]), draw(key_heads, c["size"])

    def keep(self, size):
        return self.torch.frombuffer(bytearray(mask_bytes(size)), dtype=self.torch.bool).reshape(size, size)

    def run_sdpa(self, c):
        """Runs SDPA on what it has an argument for: no mask, causal, a dense bias or mask, dropout, grouped heads."""
        torch, size = self.torch, c["size"]
        q, k, v = self.tensors(c)
        more = {
            "full": lambda: {},
            "causal": lambda: {"is_causal": True},
            "bias": lambda: {"attn_mask": torch.rand(size, size).to(q.dtype)},
            "mask": lambda: {"attn_mask": self.keep(size)},
            "dropout": lambda: {"dropout_p": DROPOUT},
            "decode": lambda: {"enable_gqa": True},
        }.get(c["variant"], lambda: None)()
        if more is None:
            return None
        if c["pass"] == "fwd":
            with torch.no_grad():
                return self.best(lambda: self.sdpa(q, k, v, **more))
        out = self.sdpa(q, k, v, **more)
        dout = torch.rand_like(out)
        return self.best(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))

    def flex_mods(self, c):
        """Returns score_mod and mask_mod of a case; False if flex_attention cannot run it."""
        torch, size = self.torch, c["size"]
        slope, table = torch.tensor(alibi_slopes()), torch.rand(HEADS, 2 * size - 1)
        document = torch.tensor(document_ids(size), dtype=torch.int32)
        bias = torch.rand(size, size) if c["variant"] == "bias" else None
        keep = self.keep(size) if c["variant"] == "mask" else None
        bucket = torch.randint(BUCKETS, (size, size)) if c["variant"] == "bucketed" else None
        buckets = torch.rand(BUCKETS, HEADS)
        left, right = torch.rand(HEADS, size, RANK), torch.rand(HEADS, size, RANK)
        product = lambda h, q, k: sum(left[h, q, i] * right[h, k, i] for i in range(RANK))  # noqa: E731
        return {
            "full": lambda: (None, None),
            "causal": lambda: (None, lambda b, h, q, k: k <= q),
            "window": lambda: (None, lambda b, h, q, k: (k <= q) & (q - k <= WINDOW)),
            "softcap": lambda: (lambda s, b, h, q, k: CAP * torch.tanh(s / CAP), None),
            "alibi": lambda: (lambda s, b, h, q, k: s - slope[h] * (q - k), lambda b, h, q, k: k <= q),
            "bias": lambda: (lambda s, b, h, q, k: s + bias[q, k], None),
            "lowrank": lambda: (lambda s, b, h, q, k: s + product(h, q, k), None),
            "gathered": lambda: (lambda s, b, h, q, k: s + table[h, q - k + size - 1], None),
            "bucketed": lambda: (lambda s, b, h, q, k: s + buckets[bucket[q, k], h], None),
            "documents": lambda: (None, lambda b, h, q, k: document[q] == document[k]),
            "mask": lambda: (None, lambda b, h, q, k: keep[q, k]),
            **self.flex_sparse(c),
        }.get(c["variant"], lambda: False)()

    def flex_sparse(self, c):
        torch, kinds = self.torch, {"|b1": self.torch.bool, "<i4": self.torch.int32}
        table = {n: torch.frombuffer(bytearray(d), dtype=kinds[t]).reshape(s)
                 for n, (t, s, d) in sparse_tables(c).items()}  # fmt: skip
        blk, left, doc = table.get("blk"), table.get("left"), table.get("doc")
        near = lambda q, k: ((q - k).abs() < 128) | (q < 64) | (k < 64)  # noqa: E731
        return {
            "blocks64": lambda: (None, lambda b, h, q, k: blk[h, q // 64, k // 64]),
            "blocks256": lambda: (None, lambda b, h, q, k: blk[h, q // 256, k // 256]),
            "bigbird": lambda: (None, lambda b, h, q, k: near(q, k) | blk[h, q // 64, k // 64]),
            "tree": lambda: (None, lambda b, h, q, k: (k <= q) & (q < left[k])),
            "unsorted": lambda: (None, lambda b, h, q, k: doc[q] == doc[k]),
            "select": lambda: (lambda s, b, h, q, k: torch.where(k <= q, s, -float("inf")), None),
        }

    def run_flex(self, c):
        if not self.flex or c["pass"] == "bwd":
            return None
        mods = self.flex_mods(c)
        if not mods:
            return None
        torch = self.torch
        q, k, v = self.tensors(c)
        torch._dynamo.reset()
        compiled = torch.compile(self.flex.flex_attention, dynamic=False)
        more = {"score_mod": mods[0]} if mods[0] else {}
        if mods[1]:
            heads = HEADS if c["variant"] in ("blocks64", "blocks256", "bigbird") else None
            more["block_mask"] = self.flex.create_block_mask(mods[1], None, heads, c["size"], c["size"], device="cpu")
        with torch.no_grad():
            return self.best(lambda: compiled(q, k, v, **more))


# ---- Running and telling -------------------------------------------------------------------------------------------


def measure(c, ours, peers):
    """Returns a copy of the case with seconds, rates and ratios of the engine and its peers."""
    dense = ours.run(dict(c, variant="full")).get("seconds") if c["variant"] in SPARSE else None
    row = dict(c, fxattn=ours.run(c))
    mine = row["fxattn"].get("seconds")
    if dense and mine:
        row["of_full"], row["share"] = mine / dense, sparse_share(c)
    for name, run in peers:
        if name not in c["peers"]:
            continue
        try:
            taken = run(c)
        except Exception as e:  # a failing peer must not end the run
            row[name] = {"error": "%s: %s" % (type(e).__name__, str(e).split("\n")[0][:200])}
            continue
        if taken is None:
            continue
        row[name] = {"seconds": taken}
        if mine:
            row[name]["gflops"] = row["fxattn"]["gflops"] * mine / taken
            row[name]["ratio"] = taken / mine
    return row


HEADER = "%-4s %-4s %-9s %6s %4s %3s | %8s %6s | %8s %6s | %8s %6s" % (
    *("pass", "type", "variant", "S", "D", "thr", "fxattn", "% peak", "sdpa", "ratio", "flex", "ratio"),
)


def row_text(row):
    ours = row["fxattn"]
    text = "%-4s %-4s %-9s %6d %4d %3d |" % (
        *(row["pass"], row["dtype"], row["variant"], row["size"], row["dim"], row["threads"]),
    )
    if "error" in ours:
        return "%s %s" % (text, ours["error"])
    if row["variant"] == "decode":
        rate, most = ours["gbytes_per_second"], ours["copy_gbytes_per_second"]
    else:
        rate, most = ours["gflops"], ours["peak_gflops"]
    text += " %8.1f %5.1f%%" % (rate, 100 * rate / most)
    for name in ("sdpa", "flex"):
        peer = row.get(name, {})
        known = "ratio" in peer
        text += " | %8.1f %5.2fx" % (rate / peer["ratio"], peer["ratio"]) if known else " | %15s" % ""
    if "of_full" in row:
        text += " | %.3f of full, %.3f of tiles: %.2f" % (row["of_full"], row["share"], row["of_full"] / row["share"])
    return text


def words(text):
    return [w for w in text.split(",") if w]


def numbers(text):
    return [int(w) for w in words(text)]


def read_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fxattn", default=os.path.join(ROOT, "build", "fxattn"), help="the command; default build/fxattn")
    p.add_argument("--engine", default="", help="default: the one that fxattn takes")
    p.add_argument("--all", action="store_true", help="every case there is")
    p.add_argument("--sizes", type=numbers, help="of %s" % SIZES)
    p.add_argument("--dims", type=numbers, help="of %s" % DIMS)
    p.add_argument("--variants", type=words, help="of %s" % ",".join(VARIANTS + ["decode"]))
    p.add_argument("--passes", type=words, help="of fwd,bwd")
    p.add_argument("--dtypes", type=words, help="of f32,bf16")
    p.add_argument("--threads", type=numbers, help="default 1 and all")
    p.add_argument("--peers", type=words, default=["sdpa", "flex"], help="of sdpa,flex; none: ours alone")
    p.add_argument("--json", help="file to write everything to")
    options = p.parse_args()
    lists = {"sizes": SIZES, "dims": DIMS, "variants": VARIANTS + ["decode"], "passes": PASSES, "dtypes": DTYPES}
    lists["threads"] = sorted({1, cpu_count()})
    options.quick = not options.all and all(getattr(options, name) is None for name in lists)
    for name, everything in lists.items():
        given = getattr(options, name)
        setattr(options, name, everything if given is None else given)
        if name not in ("sizes", "dims", "threads") and not set(given or []) <= set(everything):
            p.error("--%s: accepted are %s" % (name, ",".join(everything)))
    return options


def find_peers(options):
    wanted = [p for p in options.peers if p in ("sdpa", "flex")]
    if not wanted:
        return [], None
    try:
        torch = Torch("flex" in wanted)
    except ImportError as e:
        print("no peers: %s" % e)
        return [], None
    runs = {"sdpa": torch.run_sdpa, "flex": torch.run_flex}
    return [(name, runs[name]) for name in wanted], torch.version


def main():
    options = read_options()
    peers, version = find_peers(options)
    cases = quick_cases() if options.quick else chosen_cases(options)
    machine = {"cpu": cpu_name(), "cpus": cpu_count(), "torch": version, "heads": HEADS, "batch": 1}
    print("%s, %d CPUs%s; B 1, H %d" % (machine["cpu"], machine["cpus"], version and ", torch " + version or "", HEADS))
    print("GFLOP/s and % of f32 multiply-adds (decode: GB/s and % of a copy); ratio: the peer's time by ours")
    print(HEADER)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(options.fxattn, options.engine, folder)
        for c in cases:
            rows.append(measure(c, ours, peers))
            print(row_text(rows[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"machine": machine, "cases": rows}, f, indent=1)
            f.write("\n")
    return int(any("error" in row["fxattn"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
