# SPDX-License-Identifier: Apache-2.0
"""Turns score_mod and mask_mod (each None, a function, a Program or text) into one program, with its captured tensors
and the values of its params in the program's order. This module serves fxattn.numpy, explain() and program();
fxattn.torch and fxattn.jax turn functions into programs by modules of their own."""
import operator
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ._errors import ArgumentError, ArgumentTypeError
from ._options import with_hints
from ._program import DTYPE_WORDS, Part, Program

ScoreLike = Union[None, str, Program, Callable[..., Any]]
Named = Optional[Mapping[str, Any]]
# A function of (name, array) that returns storage type and rank, for example ("f32", 2).
Describe = Callable[[str, Any], Tuple[str, int]]
_STATEMENT = re.compile(r"^\ufeff?\s*(?:param|tensor|let|fn)\b|^\ufeff?\s*(?:score|mask|dscore)\s*=(?!=)", re.M)
_COMMENT = re.compile(r"#[^\n]*")
_MAX_PROGRAMS = 1024
LIBRARIES = ("torch", "numpy", "jax")
STYLES = ("flex", "graph")
_programs: Dict[Any, Program] = {}


class Source(NamedTuple):
    """A program with its captured tensors and values of params, and a user-written backward program, if there is one,
    with its captured tensors and values of params."""

    program: Optional[Program]
    tensors: Tuple[Any, ...] = ()
    params: Tuple[float, ...] = ()
    bprop: Optional[Program] = None
    bprop_tensors: Tuple[Any, ...] = ()
    bprop_params: Tuple[float, ...] = ()


def as_part(text: str, target: str) -> Part:
    """Returns `text` itself if the text has statements, and (target, text) if the text is an expression, as the options
    --score and --mask of the command-line tool do."""
    bare = _COMMENT.sub("", text)
    return text if not bare.strip() or _STATEMENT.search(bare) else (target, text)


def resolve(score_mod: ScoreLike, mask_mod: ScoreLike, describe: Describe, *, tensors: Named = None,
            params: Named = None, score_mod_bprop: ScoreLike = None, bprop_tensors: Named = None,
            bprop_params: Named = None, style: str = "flex", lib: str = "numpy",
            shape: Optional[Sequence[int]] = None, dtype: Any = None,
            sizes: Optional[Tuple[Optional[int], ...]] = None) -> Source:
    """Returns the Source of score_mod and mask_mod. Arrays and numbers that a function uses are captured when the
    function is traced; the arrays and numbers of a Program or text are given by name in `tensors` and `params`.
    The function describe(name, array) returns storage type and rank of an array, such as ("f32", 2). `shape` (batch,
    heads, rows, keys) and `dtype` are the shape and dtype of the scores, None if unknown. `sizes` are upper bounds of
    b, h, q and k; with these bounds, indices in functions that use JAX are proven to be in bounds. Raises ArgumentError
    or ArgumentTypeError if arguments contradict each other."""
    check_kinds(score_mod=score_mod, mask_mod=mask_mod, score_mod_bprop=score_mod_bprop)
    if lib not in LIBRARIES:
        raise ArgumentError("lib is %r; \"torch\", \"numpy\" and \"jax\" are accepted" % (lib,))
    if style not in STYLES:
        raise ArgumentError("style is %r; \"flex\" and \"graph\" are accepted" % (style,))
    for name, named in (("tensors", tensors), ("params", params), ("bprop_tensors", bprop_tensors),
                        ("bprop_params", bprop_params)):
        if named is not None and not isinstance(named, Mapping):
            raise ArgumentTypeError("%s is of type %s; a dictionary by name is accepted" % (name, type(named).__name__))
    _check_backward(score_mod is not None or mask_mod is not None, score_mod_bprop, bprop_tensors, bprop_params)
    if callable(score_mod) or callable(mask_mod) or callable(score_mod_bprop):
        return _traced(score_mod, mask_mod, score_mod_bprop, tensors, params, bprop_tensors, bprop_params, style, lib,
                       shape, dtype, sizes)
    program = text_program([(score_mod, "score"), (mask_mod, "mask")], "score", describe, tensors, params)
    backward = text_program([(score_mod_bprop, "dscore")], "bprop", describe, bprop_tensors, bprop_params)
    return Source(program, *_bound(program, tensors, params, ""), backward,
                  *_bound(backward, bprop_tensors, bprop_params, "bprop_"))


def _check_backward(has_forward: bool, bprop: ScoreLike, tensors: Named, params: Named) -> None:
    """Raises ArgumentError for a backward program without a forward program, and for `tensors` or `params` without a
    backward program (None counts as empty)."""
    if bprop is not None if not has_forward else bprop is None and (tensors or params):
        given = [name for name, value in (("score_mod_bprop", bprop), ("bprop_tensors", tensors),
                                          ("bprop_params", params)) if value]
        raise ArgumentError("%s %s without %s" % (" and ".join(given), "is given" if len(given) == 1 else "are given",
                                                 "score_mod" if bprop is not None else "score_mod_bprop"))


def mask_function(mask: Any) -> Any:
    """Returns the mask_mod of `mask` if it is a BlockMask of fxattn.torch that is defined by its mask_mod alone;
    returns every other value unchanged."""
    is_its_own = getattr(type(mask), "is_its_mask_mod", None)
    return mask.mask_mod if is_its_own is not None and is_its_own(mask) else mask


@with_hints
def program(score_mod: ScoreLike = None, mask_mod: ScoreLike = None, *, tensors: Named = None, params: Named = None,
            style: str = "flex", lib: str = "torch") -> Program:
    """Returns the Program that attention() compiles from score_mod and mask_mod, which are functions, texts or
    expressions. The returned Program can be printed, saved, and passed to attention() in place of score_mod and
    mask_mod.

    `mask_mod`: may be a BlockMask of create_block_mask.
    `tensors, params`: {name: array} and {name: number} for texts; with style="graph", `tensors` is passed to the
        callback.
    `lib`: "torch", "numpy" or "jax": operators in a function follow the rules of this library; a function that uses
        jax.numpy always follows the rules of JAX.

    Raises TraceError for a function that cannot be traced, ProgramError for wrong text."""
    found = resolve(score_mod, mask_function(mask_mod), described, tensors=tensors, params=params, style=style, lib=lib)
    return found.program if found.program is not None else Program()


def described(name: str, value: Any) -> Tuple[str, int]:
    """Returns storage type and rank of an array of any library; any other value is converted to a NumPy array first."""
    word = DTYPE_WORDS.get(str(getattr(value, "dtype", "")).rpartition(".")[2])
    if word is not None and isinstance(getattr(value, "ndim", None), int):
        return word, value.ndim
    from ._arrays import describe
    return describe(name, value)


def check_kinds(**sources: ScoreLike) -> None:
    for name, source in sources.items():
        if not (source is None or isinstance(source, (str, Program)) or callable(source)):
            raise ArgumentTypeError("%s is of type %s; a function, a Program or its text is accepted%s" % (
                name, type(source).__name__, ", as its mask_mod is" if hasattr(source, "mask_mod") else ""))
    functions = [name for name, source in sources.items() if callable(source)]
    others = [name for name, source in sources.items() if source is not None and not callable(source)]
    if functions and others:
        raise ArgumentTypeError("%s given as a function and %s as a program; give all as functions, or none"
                                % (" and ".join(functions), " and ".join(others)))


def _traced(score: Any, mask: Any, bprop: Any, tensors: Named, params: Named, bprop_tensors: Named, bprop_params: Named,
            style: str, lib: str, shape: Optional[Sequence[int]], dtype: Any,
            sizes: Optional[Tuple[Optional[int], ...]]) -> Source:
    from .trace import trace
    from .trace.jaxprs import mentions_jax
    extra = {"params": params, "bprop_params": bprop_params}
    if style == "flex":
        extra.update(tensors=tensors, bprop_tensors=bprop_tensors)
        if bprop is not None:
            raise ArgumentError("score_mod_bprop is given as a function beside FlexAttention's score_mod, which is "
                                "differentiated by itself; style=\"graph\" takes one")
    given = [name for name, value in extra.items() if value]
    if given:
        raise ArgumentError("%s given beside a function, which brings what it uses by itself; they are for a Program "
                            "or text" % " and ".join(given))
    of_jax = lib == "jax" or sizes is not None and any(map(mentions_jax, (score, mask)))
    traced = trace(score, mask, style=style, score_mod_bprop=bprop, tensors=tensors, bprop_tensors=bprop_tensors,
                   lib="numpy" if of_jax else lib, shape=shape, dtype=dtype, sizes=sizes if of_jax else None)
    return Source(traced.program, tuple(traced.tensors), tuple(map(float, traced.params)), traced.bprop,
                  tuple(traced.bprop_tensors), tuple(map(float, traced.bprop_params)))


def text_program(parts: List[Tuple[Any, str]], kind: str, describe: Describe, tensors: Named,
                  params: Named) -> Optional[Program]:
    """Returns one program of kind `kind` that combines all `parts`. A part of the program is a pair (source, target):
    the source is a Program, text or None; the target names the output that an expression sets: "score", "mask" or
    "dscore". Returns None if all sources are None. Programs are cached."""
    given = [(source, target) for source, target in parts if source is not None]
    if not given:
        return None
    if len(given) == 1 and isinstance(given[0][0], Program):
        if given[0][0].kind != kind:
            raise ArgumentError("a program of kind %s is given where one of kind %s is accepted"
                                % (given[0][0].kind, kind))
        return given[0][0]
    texts = tuple(s.text if isinstance(s, Program) else as_part(s, target) for s, target in given)
    types = {name: "int" if _is_int(value) else "float" for name, value in (params or {}).items()}
    captures = {name: describe(name, value) for name, value in (tensors or {}).items()}
    key = (kind, texts, tuple(types.items()), tuple(captures.items()))
    found = _programs.get(key)
    if found is None:
        found = Program.from_text(texts, kind=kind, params=types, captures=captures)
        if len(_programs) >= _MAX_PROGRAMS:
            for old in list(_programs)[:_MAX_PROGRAMS // 2]:
                _programs.pop(old, None)
        _programs[key] = found
    return found


def _is_int(value: Any) -> bool:
    """Returns True for ints of Python and other libraries, and False for bools and floats, including floats with
    integral values. Returns True for a symbolic int of PyTorch without reading the value of the int, because reading
    the value would specialize the code that PyTorch compiles."""
    if type(value).__name__ == "SymInt":
        return True
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except TypeError:
        return False


def _bound(program: Optional[Program], tensors: Named, params: Named,
           prefix: str) -> Tuple[Tuple[Any, ...], Tuple[float, ...]]:
    """Returns the captured tensors and the values of the params of `program`, in the program's order, from dictionaries
    by name. Raises ArgumentError for missing and unknown names; the message has `prefix` before "tensors" or
    "params"."""
    tensors, params = dict(tensors or {}), dict(params or {})
    names = [c.name for c in program.captures] if program else []
    scalars = program.params if program else ()
    numbers = [_number(prefix, p.name, params[p.name] if p.name in params else p.default, p.type) for p in scalars]
    _check_names(prefix + "tensors", names, tensors, names)
    _check_names(prefix + "params", [p.name for p in scalars], params, [p.name for p in scalars if p.default is None])
    return tuple(tensors[name] for name in names), tuple(numbers)


def _check_names(what: str, known: Sequence[str], given: Mapping[str, Any], needed: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentError("%s has %s, which the program does not use; it uses %s"
                            % (what, ", ".join(map(repr, unknown)), ", ".join(map(repr, known)) or "none"))
    missing = [name for name in needed if name not in given]
    if missing:
        raise ArgumentError("%s lacks %s, which the program uses" % (what, ", ".join(map(repr, missing))))


def _number(prefix: str, name: str, value: Any, kind: str) -> float:
    if value is None:
        return 0.0  # _check_names() reports all missing params together
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError("%sparams[%r] is of type %s; a number is accepted"
                                % (prefix, name, type(value).__name__)) from None
    if kind == "int" and not number.is_integer():
        raise ArgumentError("%sparams[%r] is %r; the program declares it as an int" % (prefix, name, value))
    return number
