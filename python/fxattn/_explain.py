# SPDX-License-Identifier: Apache-2.0
"""explain() reports what fxattn derives from a score function: the program, its derivative and properties, the support
of each engine, the tiles that a mask leaves unmasked, and a picture.

The command-line tool of the package (`fxattn explain`, `fxattn plot`) makes the report and the picture. explain()
passes the program and the arrays to the command-line tool as files in a temporary folder, and params as arguments."""
import html
import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from .__main__ import command_path
from ._errors import ArgumentError, ArgumentTypeError, make_error
from ._options import flag, window_sides, with_hints
from ._program import DTYPE_WORDS, DTYPES, Program
from ._source import ScoreLike, Source, described, mask_function, resolve

Shape = Union[str, Mapping[str, int], Sequence[int]]
_AXES = ("b", "h", "s", "d")
_DTYPE_WORDS = {**DTYPE_WORDS, "double": "f64", "float": "f32", "half": "f16"}


class Engine(NamedTuple):
    """A Verdict of explain(): states whether one engine supports one pass. `reason` says why the pass is not
    supported."""

    engine: str
    pass_: str
    supported: bool
    deterministic: bool
    workspace: int
    reason: str
    seconds: Optional[float] = None  # estimated time of a run; None: unknown


class Explanation:
    """Result of explain(). str() returns the report as text; a notebook shows the picture, the program, its derivative
    and a table of the engines."""

    def __init__(self, source: Source, text: str, data: Dict[str, Any], svg: str) -> None:
        self.program: Program = source.program if source.program is not None else Program()
        self.text = text
        self.json = data
        self.svg = svg

    @property
    def derivative(self) -> Program:
        """Returns the derivative of the program."""
        return self.program.derivative()

    @property
    def engines(self) -> List[Engine]:
        """Returns a list of Engine, one for each engine and pass, in order of preference."""
        return [Engine(e["engine"], e["pass"], e["supported"], e["deterministic"], e["workspace"], e["reason"],
                       e["seconds"]) for e in self.json["engines"]]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        sizes = ",".join("%s=%s" % item for item in self.json["shape"].items())
        names = ", ".join(sorted({e.engine for e in self.engines if e.supported})) or "no engine"
        return "<fxattn.Explanation of program %s, %s: %s>" % (self.program.hash[:8], sizes, names)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        verdicts = [(e.engine, e.pass_, "yes" if e.supported else "no: " + e.reason) for e in self.engines]
        rows = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(word) for word in row) for row in verdicts)
        parts = [self.svg[self.svg.index("<svg"):]]
        for title, text in (("program", self.program.text), ("derivative", self.derivative.text)):
            parts.append("<h4>%s</h4><pre>%s</pre>" % (title, html.escape(text)))
        parts.append("<h4>engines</h4><table><tr><th>engine</th><th>pass</th><th>supported</th></tr>%s</table>" % rows)
        parts.append("<details><summary>the whole report</summary><pre>%s</pre></details>" % html.escape(self.text))
        return '<div class="fxattn">%s</div>' % "".join(parts)


@with_hints
def explain(score_mod: ScoreLike = None, shape: Shape = (1, 1, 128, 64), mask_mod: ScoreLike = None, *,
            tensors: Optional[Mapping[str, Any]] = None, params: Optional[Mapping[str, Any]] = None, dtype: Any = "f32",
            is_causal: bool = False, window: Optional[Tuple[Optional[int], Optional[int]]] = None,
            bottom_right: bool = False, sinks: Optional[str] = None, dropout_p: float = 0.0,
            engine: Optional[str] = None, b: int = 0, h: int = 0, tile: Optional[Tuple[int, int]] = None,
            at: Optional[float] = None,
            style: str = "flex", lib: str = "torch", device: Optional[str] = None, target: Any = None,
            grads: Optional[str] = None) -> Explanation:
    """Returns an Explanation of a score function for a shape: the program, its derivative and properties, the support
    of each engine, the tiles that a mask leaves unmasked, and a picture.

    `shape`: (B, H, S, D), {"b": 1, "h": 8, "hkv": 2, "sq": 1, "sk": 4096, "d": 64}, or the command's "b=1,h=8,s=4096".
    `score_mod, mask_mod, tensors, params, style`: as in fxattn.numpy.attention; mask_mod may also be a BlockMask of
        create_block_mask.
    `is_causal, window, bottom_right, dropout_p, engine`: as in fxattn.numpy.attention.
    `sinks`: "zero" for a key of score 0 in every row; None for no sinks.
    `dtype`: the dtype of Q, K and V.
    `lib`: "torch", "numpy" or "jax": operators in a Python function follow the rules of this library.
    `device`: "host", "cuda" or "cuda:1"; the report covers the engines of this device.
    `target`: the file of a device description, which replaces the device; the described device need not be present.
    `grads`: "qkv" for the gradients of Q, K and V only, "all" for the gradients of Q, K, V and captured arrays.
    `b, h`: the batch entry and head whose tiles are counted and drawn.
    `tile`: the size of a tile, (queries, keys).
    `at`: the raw score for which the picture is drawn.

    Raises a subclass of fxattn.Error for each error that the command-line tool reports.
    """
    source = resolve(score_mod, mask_function(mask_mod), described, tensors=tensors, params=params, style=style,
                     lib=lib, sizes=_sizes(shape))
    options = ["--shape", _shape_text(shape), "--dtype", _dtype_text(dtype), "--b", str(b), "--h", str(h)]
    options += ["--causal"] * flag("is_causal", is_causal) + ["--bottom-right"] * flag("bottom_right", bottom_right)
    sides = window_sides(window)
    options += [] if sides is None else ["--window", "%d,%d" % sides]
    if sinks is not None and not (isinstance(sinks, str) and sinks == "zero"):
        raise ArgumentError("sinks is %r; None and \"zero\" are accepted here" % (sinks,))
    options += ["--sink-zero"] * (sinks is not None)
    for name, value in (("--dropout-p", dropout_p or None), ("--engine", engine), ("--device", device),
                        ("--grads", grads), ("--target", None if target is None else
        os.path.abspath(os.fspath(target)))): options += [name, str(value)] if value is not None else []
    if tile is not None:
        options += ["--tile", _pair_text("tile", tile)]
    with tempfile.TemporaryDirectory() as folder:
        files = _write_program(source, folder)
        data = json.loads(_run(["explain", *files, *options, "--json"], folder))
        text = _run(["explain", *files, *options], folder)
        shown = _without(options, "--sink-zero", "--dropout-p", "--engine", "--dtype", "--device", "--grads",
                         "--target")
        shown += ["--raw-score", repr(float(at))] if at is not None else []
        _run(["plot", *files, *shown, "--svg", "plot.svg"], folder)
        with open(os.path.join(folder, "plot.svg"), encoding="utf-8") as f:
            return Explanation(source, text, data, f.read())


def _without(options: List[str], *names: str) -> List[str]:
    """Returns `options` without the options in `names` and their values."""
    out, skip = [], False
    for option in options:
        if skip:
            skip = False
        elif option in names:
            skip = option != "--sink-zero"
        else:
            out.append(option)
    return out


def _run(arguments: List[str], folder: str) -> str:
    """Runs the command-line tool and returns its standard output. If the command-line tool fails, raises the exception
    for the status that the tool reports."""
    ran = subprocess.run([command_path(), *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if ran.returncode == 0:
        return ran.stdout.decode("utf-8")
    said = ran.stderr.decode("utf-8", "replace").strip()
    status, text = 0, said[8:] if said.startswith("fxattn: ") else said
    if "--json" in arguments and ran.stdout.startswith(b"{"):
        error = json.loads(ran.stdout)["error"]
        status, text = getattr(_abi, error.get("status", "")[4:], 0), error["text"]
    raise make_error(status or (_abi.E_ARGUMENT if ran.returncode == 2 else _abi.E_ENGINE), text)


def _write_program(source: Source, folder: str) -> List[str]:
    """Writes the program and the arrays to files in `folder`. Returns command-line options that name the files of the
    program and the arrays, and options with the values of the params."""
    program = source.program
    if program is None:
        return ["--score", "score"]
    with open(os.path.join(folder, "program.fxa"), "w", encoding="utf-8") as f:
        f.write(program.text)
    options = ["--program", "program.fxa"]
    for param, value in zip(program.params, source.params):
        options += ["--param", "%s=%s" % (param.name, int(value) if param.type == "int" else repr(value))]
    for i, (capture, tensor) in enumerate(zip(program.captures, source.tensors)):
        options += _write_tensor(capture.name, tensor, "t%d.npy" % i, folder)
    return options


def _write_tensor(name: str, tensor: Any, file: str, folder: str) -> List[str]:
    """Writes a tensor to the file `file` if NumPy is installed. Returns the command-line option for the tensor:
    --tensor with the name of the file or, without NumPy, --tensor-size with the shape of the tensor only."""
    try:
        import numpy as np

        from ._arrays import NOT_NUMPYS, as_array
    except ImportError:
        return ["--tensor-size", "%s=%s" % (name, ",".join(map(str, tensor.shape)))]
    array = as_array(tensor, "tensors[%r]" % name)
    own = array.dtype.name in NOT_NUMPYS  # .npy files lack these dtypes; unsigned ints are saved
    np.save(os.path.join(folder, file), array.view("u%d" % array.dtype.itemsize) if own else array)
    return ["--tensor", "%s=%s" % ("%s:%s" % (name, DTYPE_WORDS[array.dtype.name]) if own else name, file)]


def _pair_text(what: str, pair: Any) -> str:
    if len(pair) != 2 or not all(isinstance(n, int) for n in pair):
        raise ArgumentError("%s is %r; two ints are accepted" % (what, pair))
    return "%d,%d" % tuple(pair)


def _shape_text(shape: Any) -> str:
    if isinstance(shape, str):
        return shape
    given = shape if isinstance(shape, (Mapping, tuple, list)) else ()
    sizes = given if isinstance(given, Mapping) else dict(zip(_AXES, given)) if len(given) == len(_AXES) else {}
    if not sizes or not all(isinstance(n, int) for n in sizes.values()):
        raise ArgumentError("shape is %r; (B, H, S, D), a dictionary or text such as \"b=1,h=8,s=4096,d=64\" is "
                            "accepted" % (shape,))
    return ",".join("%s=%d" % item for item in sizes.items())


def _sizes(shape: Any) -> Tuple[Optional[int], ...]:
    """Returns the numbers of batch entries, heads, rows and keys in `shape`; None for each number that `shape`
    lacks."""
    words = (part.partition("=") for part in _shape_text(shape).split(","))
    known = {name.strip(): int(size) for name, _, size in words if size.strip().isdigit()}
    both = known.get("s")
    return known.get("b"), known.get("h", known.get("hq")), known.get("sq", both), known.get("sk", both)


def _dtype_text(dtype: Any) -> str:
    """Returns the storage type ("f32") of `dtype`, a dtype of NumPy, torch or JAX, or its name."""
    word = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    word = word.split(".")[-1]
    word = _DTYPE_WORDS.get(word, word)
    if word not in DTYPES:
        raise ArgumentTypeError("dtype is %r; f64, f32, f16, bf16, e4m3 and e5m2 are accepted" % (dtype,))
    return word
