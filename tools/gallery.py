#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a page with a picture of every program of the gallery, and the picture in README.md.

    tools/gallery.py FXATTN FOLDER      make gallery

The page is FOLDER/index.html; its pictures are in the same folder. `fxattn plot` draws the program of README.md into
docs/img/mask.svg. tools/bench_tables.py writes the charts in docs/img."""
import html
import os
import re
import struct
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = os.path.join(ROOT, "examples", "programs")
IMAGES = os.path.join(ROOT, "docs", "img")
README = os.path.join(ROOT, "README.md")
S, B, H = 64, 1, 4
SHAPE = "b=%d,h=%d,s=%d" % (B, H, S)

# ---- Data that resembles real data, where random data shows little ------------------------------------------------------

LENGTHS = (10, 22, 7, 25)  # lengths of the parts of a sequence: documents or answers
PART = [i for i, n in enumerate(LENGTHS) for _ in range(n)]
IMAGE = [1 if 8 <= i < 24 else 2 if 40 <= i < 56 else 0 for i in range(S)]
PARENT = [-1] + [(i - 1) // 2 for i in range(1, S)]  # PARENT[i]: parent of node i in a binary tree, -1 for the root


def is_ancestor(q, k):
    while q > k:
        q = PARENT[q]
    return q == k


# {program: ({tensor: (element type code, shape, elements)}, {param: value})}
SAMPLES = {
    "document": ({"doc": ("i", (S,), PART)}, {}),
    "document_causal": ({"doc": ("i", (B, S), PART)}, {}),
    "packed_qna": ({"part": ("i", (B, S), PART)}, {}),
    "image_text_mix": ({"image": ("i", (B, S), IMAGE)}, {}),
    "head_windows": ({"window": ("i", (H,), [12, 24, 48, 64])}, {}),
    "padding_by_tensor": ({"length": ("i", (B,), [45])}, {}),
    "tree": ({"ancestor": ("?", (S, S), [is_ancestor(q, k) for q in range(S) for k in range(S)])}, {}),
    "key_mask": ({"real": ("?", (B, S), [i % 23 != 9 and i < 50 for i in range(S)])}, {}),
    "dense_bias": ({"bias": ("f", (B, H, S, S), [((q * k) % 17 - 8) / 4 for _ in range(H) for q in range(S)
                                                 for k in range(S)])}, {}),
    "routing": ({"cluster_q": ("i", (B, H, S), [(i * i // 9) % 5 for _ in range(H) for i in range(S)]),
                 "cluster_k": ("i", (B, H, S), [(i * i // 9) % 5 for _ in range(H) for i in range(S)])}, {}),
    "paged_positions": ({"position": ("i", (B, S), [(i + 24) % S if i < 52 else -1 for i in range(S)])},
                        {"window": 24}),
    "neighbourhood_2d": ({}, {"width": 8, "radius": 2}),
    "temperature_by_length": ({}, {"trained": 16}),
}
DESCR = {"i": "<i4", "f": "<f4", "?": "|b1"}


def write_npy(path, code, shape, values):
    text = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (DESCR[code], "".join("%d," % n for n in shape))
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode())
        file.write(struct.pack("<%d%s" % (len(values), code), *values))


def sample_options(name, folder):
    tensors, params = SAMPLES.get(name, ({}, {}))
    options = ["--param=%s=%s" % item for item in params.items()]
    for tensor, (code, shape, values) in tensors.items():
        path = os.path.join(folder, "%s-%s.npy" % (name, tensor))
        write_npy(path, code, shape, values)
        options.append("--tensor=%s=%s" % (tensor, path))
    return options


# ---- The page -----------------------------------------------------------------------------------------------------------

HEAD = """<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>fxattn: gallery of score programs</title>
<style>
body{font:15px/1.5 sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#333;background:#fff}
pre{background:#f4f4f2;padding:.8em 1em;overflow:auto}img{width:100%;height:auto}section{margin:3em 0}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181c}pre{background:#22252b}a{color:#7fc4dd}}
</style>
"""


def draw(fxattn, program, options, svg):
    """Draws a program file into `svg`. The title of the picture is the file name without its folder."""
    folder, name = os.path.split(program)
    options = ["--program", name, *options]
    done = subprocess.run([fxattn, "plot", *options, "--svg", svg], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode:
        sys.exit("gallery.py: %s\n%s" % (" ".join(options), done.stdout))


def section(fxattn, name, folder):
    """Draws program `name` of the gallery. Returns its section of the page, with the comment at the top of its file as
    text."""
    path = os.path.join(PROGRAMS, name + ".fxa")
    draw(fxattn, path, ["--shape", SHAPE, *sample_options(name, folder)], os.path.join(folder, name + ".svg"))
    with open(path) as file:
        lines = file.read().splitlines()
    about = [line[1:].strip() for line in lines if line.startswith("#")]
    code = "\n".join(line for line in lines if not line.startswith("#"))
    return '<section id="%s"><h2>%s</h2><p>%s</p><pre>%s</pre><img src="%s.svg" alt="mask, score and tiles of %s"></section>' % (
        name, name.replace("_", " "), html.escape(" ".join(about)), html.escape(code), name, name)


def write_page(fxattn, folder):
    names = sorted(name[:-4] for name in os.listdir(PROGRAMS) if name.endswith(".fxa"))
    sections = [section(fxattn, name, folder) for name in names]
    links = " · ".join('<a href="#%s">%s</a>' % (name, name.replace("_", " ")) for name in names)
    with open(os.path.join(folder, "index.html"), "w") as file:
        file.write(HEAD + "<h1>Score programs</h1><p>%d programs to start from, each as <code>fxattn plot</code> draws it for "
                   "%d rows and keys: what is attended and with which score, which tiles an engine computes, and the new "
                   "score over the raw one where it depends on nothing else.</p><p>%s</p>%s\n" %
                   (len(names), S, links, "\n".join(sections)))
    return len(names)


# ---- The picture of README.md -------------------------------------------------------------------------------------------

def readme_program():
    """Returns the first indented block of README.md that has a `score =` line."""
    with open(README) as file:
        blocks = re.findall(r"(?m)(?:^    .*\n)+", file.read())
    return next(block for block in blocks if re.search(r"(?m)^    score =", block))


def write_image(fxattn, folder):
    os.makedirs(IMAGES, exist_ok=True)
    program, slopes = os.path.join(folder, "readme.fxa"), os.path.join(folder, "readme-slopes.npy")
    with open(program, "w") as file:
        file.write(re.sub(r"(?m)^    ", "", readme_program()))
    write_npy(slopes, "f", (H,), [-2.0 ** -(i + 6) for i in range(H)])
    draw(fxattn, program, ["--shape", "b=1,h=%d,s=2048" % H, "--param=softcap=20", "--tensor=slopes=" + slopes],
         os.path.join(IMAGES, "mask.svg"))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    fxattn, folder = (os.path.abspath(path) for path in sys.argv[1:])
    os.makedirs(folder, exist_ok=True)
    count = write_page(fxattn, folder)
    write_image(fxattn, folder)
    print("%s: %d programs\ndocs/img/mask.svg" % (os.path.join(folder, "index.html"), count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
