#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables and charts of the documents from bench/results, and result files from the output of benchmarks.

    tools/bench_tables.py                    writes the tables of README.md and docs/, and docs/img/speed-*.svg
    tools/bench_tables.py --check            only compares; exit status 1 if something is out of date
    tools/bench_tables.py --import KIND FILE --id ID --date DATE --machine MACHINE [--command COMMAND]
                             [--version NAME=VERSION ...]
                                             writes bench/results/ID.json; KIND names the benchmark (IMPORTERS)

bench/results/README.md describes the format of the files. In a document, the lines between

    <!-- table: NAME -->
    <!-- end of table -->

are replaced by this script. NAME is a key of SELECTED; or ID/TABLE for a table of result file ID without changes; or
ID/TABLE/SHAPE for the rows of one shape of this table, with a column for each peer.
"""
import argparse
import html
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")
IMAGES = os.path.join(ROOT, "docs", "img")
CPU, GPU = "cpu-epyc-zen4-attention", "2026-11-18-h200-bench-gpu"
MARK = re.compile(r"(?ms)^<!-- table: (\S+) -->\n(.*?)^<!-- end of table -->$")


# ---- Result files ----------------------------------------------------------------------------------------------------

def load(name):
    """Returns the result file bench/results/NAME.json as a dictionary."""
    with open(os.path.join(RESULTS, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def table_of(name, table):
    """Returns table `table` of result file `name`."""
    return next(t for t in load(name)["tables"] if t["name"] == table)


def records(name, table):
    """Returns the rows of table `table` of result file `name`, as dictionaries {column: cell}."""
    found = table_of(name, table)
    return [dict(zip(found["columns"], row)) for row in found["rows"]]


def problems_of(result, name):
    """Returns the errors of a result file as texts: missing fields, rows of wrong length, cells of wrong type."""
    wrong = []
    for field, kinds in FIELDS.items():
        if not isinstance(result.get(field), kinds):
            wrong.append("%s: field '%s' is missing or of another type" % (name, field))
    if result.get("format") != 1 or result.get("id") != name:
        wrong.append("%s: 'format' must be 1 and 'id' the name of the file" % name)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d( and \d{4}-\d\d-\d\d)?", result.get("date") or "2000-01-01"):
        wrong.append("%s: 'date' must be YYYY-MM-DD or null" % name)
    for table in result.get("tables", []):
        width = len(table["columns"])
        for row in table["rows"]:
            if len(row) != width or not all(isinstance(cell, (int, float, str, type(None))) for cell in row):
                wrong.append("%s, table %s: row %s" % (name, table["name"], row))
    if not result.get("tables") and not result.get("remarks"):
        wrong.append("%s: neither tables nor remarks" % name)
    return wrong


FIELDS = {"format": int, "id": str, "date": (str, type(None)), "machine": str, "command": str, "versions": dict,
          "tables": list}


def dumped(result):
    """Returns the text of a result file: one line for each row of a table and each remark."""
    def listed(values, indent):
        return "[\n" + ",\n".join(indent + json.dumps(v, ensure_ascii=False) for v in values) + "\n" + indent[:-1] + "]"

    def members(pairs, indent):
        return ",\n".join("%s%s: %s" % (indent, json.dumps(k), v) for k, v in pairs)

    def table_text(table):
        pairs = [(k, listed(v, "    ") if k == "rows" and v else json.dumps(v, ensure_ascii=False))
                 for k, v in table.items()]
        return "  {\n" + members(pairs, "   ") + "\n  }"

    pairs = []
    for key, value in result.items():
        if key == "tables" and value:
            text = "[\n" + ",\n".join(map(table_text, value)) + "\n ]"
        elif key == "remarks" and value:
            text = listed(value, "  ")
        else:
            text = json.dumps(value, ensure_ascii=False)
        pairs.append((key, text))
    return "{\n" + members(pairs, " ") + "\n}\n"


# ---- Tables ----------------------------------------------------------------------------------------------------------

def shown(value, column=""):
    """Returns the text of a cell: "1.30x" for a ratio, "" for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if column.endswith("ratio"):
        return "%.2fx" % value
    if column.startswith("percent"):
        return "%.1f %%" % value
    return "{:,}".format(value) if isinstance(value, int) and value >= 10000 else str(value)


def markdown(columns, rows):
    """Returns a Markdown table. Columns that have only numbers are aligned to the right, except the first column."""
    def is_numeric(i):
        return i > 0 and all(re.fullmatch(r"[-\d.,/ x%]*", row[i]) for row in rows)

    rule = "|".join("---:" if is_numeric(i) else "---" for i in range(len(columns)))
    lines = ["| %s |" % " | ".join(columns), "|%s|" % rule] + ["| %s |" % " | ".join(row) for row in rows]
    return "\n".join(lines) + "\n"


def by_peer(found, shape):
    """Returns the rows of one shape of a table (shape, case, peer, forward, backward) with a column for each peer."""
    rows = [dict(zip(found["columns"], row)) for row in found["rows"]]
    rows = [row for row in rows if row["shape"] == shape]
    peers, cases = (list(dict.fromkeys(row[key] for row in rows)) for key in ("peer", "case"))
    cells = {(row["case"], row["peer"]): pair(row) for row in rows}
    return markdown(["case", *peers], [[case] + [cells.get((case, peer), "") for peer in peers] for case in cases])


def pair(row):
    """Returns the figures of a row as "forward/backward"; "" if it has none."""
    return "" if row["forward"] is None else "%s/%s" % (row["forward"], row["backward"])


def whole(name, table, shape=None):
    """Returns a table of a result file as Markdown: unchanged, or with `shape` by peer (by_peer)."""
    found = table_of(name, table)
    if shape:
        return by_peer(found, shape)
    columns = ["" if column == "case" else column for column in found["columns"]]
    rows = [[shown(cell, column) for cell, column in zip(row, found["columns"])] for row in found["rows"]]
    return markdown(columns, rows)


README_CPU = [("forward", "f32", "causal"), ("backward", "f32", "causal"), ("forward", "f32", "softcap"),
              ("forward", "bf16", "full")]
README_GPU = ["causal", "soft cap", "soft cap, near", "8 documents, by ids"]
README_DECODE = ["B32 S8192, D 64"]
NAMES = {"softcap": "soft cap", "alibi": "ALiBi", "bias": "dense bias", "gathered": "gathered bias",
         "bucketed": "bucketed bias", "documents": "8 documents", "mask": "dense mask", "dropout": "dropout 0.1",
         "soft cap, near": "soft cap, scores near the cap", "8 documents, by ids": "8 documents, causal"}


def readme_speed():
    """Returns the table of README.md: a few rows for the CPU and the H200, including rows in which a peer is faster."""
    rows = []
    cpu = {(r["pass"], r["dtype"], r["program"]): r for r in reversed(records(CPU, "attention"))
           if (r["S"], r["D"], r["threads"]) == (2048, 64, 1)}
    for case in README_CPU:
        row = cpu[case]
        rows.append(["CPU, %s %s, %s" % (row["dtype"], row["pass"], NAMES.get(row["program"], row["program"])),
                     "GFLOP/s", shown(row["fxattn"]), "", shown(row["SDPA"]), shown(row["FlexAttention"])])
    gpu = {(r["case"], r["peer"]): pair(r) for r in records(GPU, "attention") if r["shape"] == "A"}
    for case in README_GPU:
        peers = ["cuda", "cudnn", "PyTorch's cuDNN", "FlexAttention"]
        rows.append(["H200, bf16, " + NAMES.get(case, case), "TFLOP/s"] + [gpu.get((case, peer), "") for peer in peers])
    for row in records(GPU, "decode"):
        if row["case"] in README_DECODE:
            rows.append(["H200, bf16, decoding, " + row["case"], "GB/s", shown(row["cuda"]), shown(row["cudnn"]), "", ""])
    return markdown(["problem", "unit", "fxattn", "fxattn, engine cudnn", "PyTorch SDPA", "FlexAttention"], rows)


# Rows of the campaign table, in its order: {row of the result file: name in docs/reliability.md}.
HOST_CAMPAIGNS = {"all tests": "all tests",
                  "fuzz_bytes, ASan and UBSan": "fuzzing of plan, program and problem bytes, under ASan and UBSan",
                  "fuzz_tape, ASan and UBSan": "fuzzing of builder calls, under ASan and UBSan",
                  "fuzz_text, ASan and UBSan": "fuzzing of program text, under ASan and UBSan"}
EMULATED = {"any": "CUDA kernels on the GPU emulator, family chosen as on an H200",
            "sm80": "CUDA kernels on the GPU emulator, family sm80", "simt": "CUDA kernels on the GPU emulator, family simt"}


def campaigns():
    """Returns the table of test campaigns of docs/reliability.md: one row for each, with its command, day and commit."""
    rows = []

    def add(name, file, size, failures, command=None):
        result = load(file)
        day = result["date"] or result["note"].split(";")[0]
        rows.append([name, size, str(failures), "`%s`" % (command or result["command"]),
                     "%s, commit %s" % (day, result.get("commit", "not recorded"))])

    host, kernels, cuda, cudnn, lines = ("2026-11-15-campaign", "2026-11-17-model", "2026-11-18-h200-conformance",
                                         "h200-cudnn-conformance", "2026-11-16-coverage")
    for row in records(host, "campaign"):
        if row["campaign"] in HOST_CAMPAIGNS:
            add(HOST_CAMPAIGNS[row["campaign"]], host, row["size"], 0 if row["findings"] == "none" else row["findings"])
    for row in records(kernels, "cases"):
        passes = [row[name].split(" / ") for name in ("forward", "backward")]
        add(EMULATED[row["kernels"]], kernels, "%s cases of %s kinds right; passes right: %s forward, %s backward" % (
            row["cases right"], row["kinds"], passes[0][0], passes[1][0]), sum(int(counts[3]) for counts in passes))
    for at, name in ((1, "first"), (2, "second")):
        found = {row[0]: row[at] for row in table_of(cuda, "compare")["rows"]}
        add("the cuda engine on an H200, %s run" % name, cuda, "%s cases right, %s undecidable" % (
            found["cases right, of all"], found["of which nothing can be said"]), found["wrong"],
            "tests/device/python/run_cuda.py build --part compare")
    found = {row["quantity"]: row["count"] for row in records(cuda, "sanitize")}
    add("the cuda engine under compute-sanitizer on an H200: memcheck, racecheck, synccheck, initcheck", cuda,
        "%s cases of %s kinds with each tool" % (found["cases of each tool"], found["kinds of problems"]),
        found["reports that are not listed as false"], "tests/device/python/run_cuda.py build --part sanitize")
    columns = table_of(cudnn, "cases")["columns"]
    for at in range(1, len(columns)):
        found = {row[0]: row[at] for row in table_of(cudnn, "cases")["rows"]}
        add("the cudnn engine on an H200, " + columns[at], cudnn, "%s cases right, %s undecidable" % (
            found["cases in which a pass was right"], found["of which nothing could be said"]), found["wrong"])
    shares = [float(row["branches"].split()[0]) for row in records(lines, "coverage")]
    add("branches of `src`, without the GPU engines, that a test takes", lines,
        "%s %% to %s %%, depending on the folder" % (min(shares), max(shares)), "-")
    return markdown(["campaign", "size", "failures", "command", "day and commit"], rows)


SELECTED = {"readme-speed": readme_speed, "campaigns": campaigns}


def made(name):
    """Returns the text of the table that a marker names."""
    return SELECTED[name]() if name in SELECTED else whole(*name.split("/"))


def documents():
    """Returns the paths of README.md and of all documents of docs/."""
    found = [os.path.join(ROOT, "README.md")]
    for base, _, names in sorted(os.walk(os.path.join(ROOT, "docs"))):
        found += [os.path.join(base, name) for name in sorted(names) if name.endswith(".md")]
    return found


def with_tables(text):
    """Returns the text of a document with all marked tables regenerated."""
    return MARK.sub(lambda m: "<!-- table: %s -->\n%s<!-- end of table -->" % (m.group(1), made(m.group(1))), text)


# ---- Charts ----------------------------------------------------------------------------------------------------------

COLOURS = {"fxattn": "#2f86a6", "PyTorch SDPA": "#e8a33d", "FlexAttention": "#8a5fb0", "cudnn engine": "#5a9e5a"}


def bars(rates, y, left, scale, height):
    """Returns the SVG of the bars of one row of a chart, one below the other. `rates`: [(peer, rate)]."""
    out = []
    for peer, rate in rates:
        out.append('<rect x="%d" y="%.1f" width="%.1f" height="%d" rx="1.5" fill="%s"/>' %
                   (left, y, scale * rate, height - 2, COLOURS[peer]))
        out.append('<text class="v%s" x="%.1f" y="%.1f">%s</text>' %
                   (" b" if peer == "fxattn" else "", left + scale * rate + 6, y + height - 3.5, rate))
        y += height
    return out


def chart(title, rows):
    """Returns an SVG bar chart of rows (name, {peer: rate}); a peer without a rate has no bar."""
    rows = [(name, [(peer, rate) for peer, rate in rates.items() if rate]) for name, rates in rows]
    top = max(rate for _, rates in rows for _, rate in rates)
    width, left, bar, gap, y = 900, 190, 13, 14, 72
    height = y + sum(bar * len(rates) + gap for _, rates in rows) + 6
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">' %
           (width, height, width, height), "<title>%s</title>" % html.escape(title),
           "<style>text{font:14px sans-serif;fill:#333}.v{font-size:11px}.b{font-weight:bold}.p{fill:#fff}.r{text-anchor:end}"
           "@media(prefers-color-scheme:dark){.p{fill:#16181c}text{fill:#ddd}}</style>",
           '<rect class="p" width="%d" height="%d"/>' % (width, height),
           '<text x="20" y="24">%s</text>' % html.escape(title)]
    x = left
    for peer in [peer for peer in COLOURS if any(peer == p for _, rates in rows for p, _ in rates)]:
        out.append('<rect x="%d" y="37" width="12" height="12" rx="1.5" fill="%s"/><text x="%d" y="48">%s</text>' %
                   (x, COLOURS[peer], x + 18, peer))
        x += 46 + 8 * len(peer)
    for name, rates in rows:
        size = bar * len(rates)
        out.append('<text class="r" x="%d" y="%.1f">%s</text>' % (left - 12, y + size / 2 + 4, html.escape(name)))
        out += bars(rates, y, left, (width - left - 60) / top, bar)
        y += size + gap
    return "\n".join(out) + "\n</svg>\n"


def cpu_chart():
    rows = [(NAMES.get(r["program"], r["program"]), {"fxattn": r["fxattn"], "PyTorch SDPA": r["SDPA"],
                                                     "FlexAttention": r["FlexAttention"]})
            for r in records(CPU, "attention")
            if (r["pass"], r["dtype"], r["S"], r["D"], r["threads"]) == ("forward", "f32", 2048, 64, 1)]
    return chart("AMD EPYC (Zen 4), one thread: GFLOP/s, f32 forward, S 2048, D 64; longer is faster", rows)


GPU_CASES = ["full", "causal", "soft cap", "soft cap, near", "ALiBi, causal", "window 1024", "8 documents, by ids", "dense bias"]
GPU_PEERS = {"fxattn": "cuda", "cudnn engine": "cudnn", "PyTorch SDPA": "PyTorch's cuDNN", "FlexAttention": "FlexAttention"}


def gpu_chart():
    rates = {(r["case"], r["peer"]): r["forward"] for r in records(GPU, "attention") if r["shape"] == "A"}
    rows = [(case, {peer: rates.get((case, name)) for peer, name in GPU_PEERS.items()}) for case in GPU_CASES]
    return chart("NVIDIA H200: TFLOP/s, bf16 forward, B 4, H 16, S 4096, D 128; longer is faster", rows)


CHARTS = {"speed-cpu.svg": cpu_chart, "speed-h200.svg": gpu_chart}


# ---- Output of benchmarks --------------------------------------------------------------------------------------------

PEER = re.compile(r"(?:^|  )(cuda|cudnn|PyTorch's cuDNN|FlexAttention|with tanh\.approx) ")


def import_gpu(text):
    """Returns the result of bench_gpu.py from its output. Its rows become rates, its decoding steps GB/s, and all other
    lines remarks."""
    result, attention, decode, columns, remarks = {}, [], [], ["case"], []
    for line in text.splitlines():
        head = re.fullmatch(r"(.*), torch (\S+); TFLOP/s forward/backward", line)
        row = re.match(r"([A-Z]) (\S+) +(?=cuda |cudnn )(.*)", line)
        step = re.fullmatch(r"decode (.*?): (.*GB/s.*)", line)
        if head:
            result = {"machine": head.group(1), "versions": {"torch": head.group(2)}}
        elif row:
            parts = PEER.split(row.group(3))[1:]
            for peer, value in zip(parts[::2], parts[1::2]):
                rate = re.match(r"(\d+)/(\d+)", value.strip())
                name = "FlexAttention, tanh.approx" if peer.startswith("with") else peer
                attention.append([*row.groups()[:2], name, *(map(int, rate.groups()) if rate else (None, None))])
                if not rate and value.strip() != "-":
                    remarks.append("%s %s, %s: %s" % (*row.groups()[:2], name, value.strip()))
        elif step:
            found = dict(re.findall(r"(\w+) (\d+) GB/s", step.group(2)))
            columns += [engine for engine in found if engine not in columns]
            decode.append([step.group(1)] + [int(found[e]) if e in found else None for e in columns[1:]])
        elif line.strip():
            remarks.append(line.strip())
    tables = [{"name": "attention", "title": "bf16 attention, medians with a cold L2 cache, exact pairs counted",
               "unit": "TFLOP/s", "columns": ["shape", "case", "peer", "forward", "backward"], "rows": attention},
              {"name": "decode", "title": "Decoding", "unit": "GB/s of K and V", "columns": columns,
               "rows": [row + [None] * (len(columns) - len(row)) for row in decode]}]
    return dict(result, tables=[t for t in tables if t["rows"]], remarks=remarks)


PASS = {"fwd": "forward", "bwd": "backward"}


def import_attention(text):
    """Returns the result of bench_attention.py from the file that --json writes."""
    data = json.loads(text)
    rows, sparse = [], []
    for c in data["cases"]:
        ours, sdpa, flex = (c.get(name, {}) for name in ("fxattn", "sdpa", "flex"))
        is_decode = c["variant"] == "decode"
        rate, most = (ours.get(k) for k in (("gbytes_per_second", "copy_gbytes_per_second") if is_decode
                                            else ("gflops", "peak_gflops")))
        figures = [rate, rate and most and 100 * rate / most, sdpa.get("gflops"), sdpa.get("ratio"), flex.get("gflops"),
                   flex.get("ratio")]
        rounded = [x if x is None else round(x, 2 if i in (3, 5) else 1) for i, x in enumerate(figures)]
        rows.append([PASS.get(c["pass"], c["pass"]), c["dtype"], c["variant"], c["size"], c["dim"], c["threads"], *rounded])
        if "of_full" in c:
            sparse.append([c["variant"], round(c["of_full"], 3), round(c["share"], 3), rounded[5]])
    machine = data["machine"]
    tables = [{"name": "attention", "title": "Attention of the cpu engine beside PyTorch, B %d, H %d" % (
                   machine["batch"], machine["heads"]),
               "unit": "GFLOP/s; percent of the f32 multiply-adds that the same threads do in registers; ratio: the peer's "
                       "time by fxattn's (decode: GB/s, percent of a copy)",
               "columns": ["pass", "dtype", "program", "S", "D", "threads", "fxattn", "percent of f32 peak", "SDPA",
                           "SDPA ratio", "FlexAttention", "FlexAttention ratio"], "rows": rows},
              {"name": "sparse", "title": "Sparse masks", "unit": "time as a share of the dense time; share of tiles of 12 rows "
               "x 16 keys with an attended pair; ratio: the peer's time by fxattn's",
               "columns": ["mask", "time of dense", "tiles left", "FlexAttention ratio"], "rows": sparse}]
    return {"machine": "%s, %d CPUs" % (machine["cpu"], machine["cpus"]), "versions": {"torch": str(machine["torch"])},
            "tables": [t for t in tables if t["rows"]]}


def number(text):
    """Returns a cell of a printed table: a number if it looks like one, None if it is empty, else the text."""
    text = text.strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else text or None


def import_tables(text):
    """Returns the result of a benchmark that prints Markdown tables, like bench_torch.py. All other lines become
    remarks."""
    tables, remarks, lines = [], [], text.splitlines()
    for at, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("|") and at + 1 < len(lines) and re.fullmatch(r"\|[-:| ]+\|", lines[at + 1]):
            tables.append({"name": "table%d" % (len(tables) + 1), "title": cells[0],
                           "columns": ["case"] + cells[1:], "rows": []})
        elif line.startswith("|") and tables and not re.fullmatch(r"\|[-:| ]+\|", line):
            tables[-1]["rows"].append([number(cell) for cell in cells])
        elif line.strip() and not line.startswith("|"):
            remarks.append(line.strip())
    versions = dict(re.findall(r"\b(Python|torch|fxattn) (\d\S*?)(?=[,\s]|$)", remarks[0] if remarks else ""))
    machine = remarks[0].split(", load")[0] if remarks else "not stated"
    return {"machine": machine, "versions": versions, "tables": tables, "remarks": remarks}


def import_text(text):
    """Returns the result of a C benchmark, whose output lines become remarks."""
    return {"machine": "not stated", "versions": {}, "tables": [], "remarks": [x for x in text.splitlines() if x.strip()]}


# {KIND of --import: (reader of the output, default of --command)}.
IMPORTERS = {
    "gpu": (import_gpu, "bench/bench_gpu.py"),
    "attention": (import_attention, "bench/bench_attention.py"),
    "torch": (import_tables, "bench/bench_torch.py"),
    "text": (import_text, "not stated"),
}


def imported(options, text):
    """Returns the result file of a benchmark's output `text`. Command-line options replace values of the output."""
    read, command = IMPORTERS[options.kind]
    found = read(text)
    versions = dict(found.get("versions", {}), **dict(v.split("=", 1) for v in options.version))
    result = {"format": 1, "id": options.id, "date": options.date,
              "machine": options.machine or found.get("machine", "not stated"),
              "command": options.command or command, "versions": versions, "tables": found["tables"]}
    if found.get("remarks"):
        result["remarks"] = found["remarks"]
    return result


# ---- The command -----------------------------------------------------------------------------------------------------

def outdated(write):
    """Returns the paths of documents and charts that are out of date with bench/results. Updates them if `write` is
    true."""
    wanted = {}
    for path in documents():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        wanted[path] = (text, with_tables(text))
    for name, draw in CHARTS.items():
        path = os.path.join(IMAGES, name)
        text = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
        wanted[path] = (text, draw())
    differ = [path for path, (text, new) in wanted.items() if text != new]
    for path in differ if write else ():
        with open(path, "w", encoding="utf-8") as file:
            file.write(wanted[path][1])
    return [os.path.relpath(path, ROOT) for path in differ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--import", dest="kind", choices=IMPORTERS, help="make a result file of FILE")
    parser.add_argument("file", nargs="?", help="output of a benchmark")
    parser.add_argument("--id", help="name of the result file")
    parser.add_argument("--date", help="day of the run, YYYY-MM-DD")
    parser.add_argument("--machine", help="default: what the output says")
    parser.add_argument("--command", help="default: the benchmark's")
    parser.add_argument("--version", action="append", default=[], help="NAME=VERSION of a library or driver; may be repeated")
    options = parser.parse_args()
    if options.kind:
        if not (options.file and options.id and options.date):
            parser.error("--import needs FILE, --id and --date")
        with open(options.file, encoding="utf-8") as file:
            result = imported(options, file.read())
        wrong = problems_of(result, options.id)
        if wrong:
            sys.exit("\n".join(wrong))
        path = os.path.join(RESULTS, options.id + ".json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(dumped(result))
        print(os.path.relpath(path, ROOT))
        return 0
    differ = outdated(write=not options.check)
    print("\n".join(("out of date: %s" if options.check else "written: %s") % path for path in differ) or "all is current")
    return int(options.check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
