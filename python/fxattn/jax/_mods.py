# SPDX-License-Identifier: Apache-2.0
"""Turns score_mod and mask_mod (None, functions, callbacks (graph, score, tensors), text or a Program) into a Score: a
program with its captured tensors and values of params as JAX arrays, in the program's order.

JAX has no 64-bit types unless jax_enable_x64 is set. In a program for JAX, the storage types of captured tensors are
changed to the dtypes of the JAX arrays that hold the tensors."""
import inspect
import re
from typing import Any, Callable, Collection, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import jax.numpy as jnp
import numpy as np

from .._arrays import code_of
from .._errors import ArgumentError, ArgumentTypeError
from .._program import DTYPE_NAMES, Program
from .._source import STYLES, check_kinds, text_program
from ..trace import TraceError, trace
from ._checks import in_words_of_jax
from ._texts import appended, retyped, scaled_bprop

Mod = Union[None, str, Program, Callable[..., Any]]
Named = Optional[Mapping[str, Any]]


class Score(NamedTuple):
    """A program with its captured tensors and values of params, and optionally a user-written backward program with its
    own tensors and params."""

    program: Optional[Program] = None
    tensors: Tuple[Any, ...] = ()
    params: Tuple[Any, ...] = ()
    bprop: Optional[Program] = None
    bprop_tensors: Tuple[Any, ...] = ()
    bprop_params: Tuple[Any, ...] = ()

    def appended(self, text: str, tensors: Named = None, params: Named = None, before: bool = False) -> "Score":
        """Returns a Score whose program also runs the statements `text`: after the statements of the program or, if
        `before` is set, before these statements. `text` uses `tensors` and `params` by name."""
        old = self.program
        arrays = dict(zip([c.name for c in old.captures] if old else (), self.tensors))
        numbers = dict(zip([p.name for p in old.params] if old else (), self.params))
        for given, known in ((tensors, arrays), (params, numbers)):
            for name, value in (given or {}).items():
                own = _unused(name, {*arrays, *numbers})
                text = re.sub(r"\b%s\b" % name, own, text)
                known[own] = value
        made = appended(old, text, before)
        return self._replace(program=made, tensors=tuple(arrays[c.name] for c in made.captures),
                             params=tuple(numbers[p.name] for p in made.params))

    def scaled(self, scale: Any) -> "Score":
        """Returns a Score whose backward program fits a program that multiplies the score by `scale` first: in the
        backward program score becomes score * scale, and the result of the backward program is multiplied by `scale`.
        If this Score (a program with its arrays and numbers) has no backward program, returns it unchanged."""
        if self.bprop is None:
            return self
        numbers = dict(zip([p.name for p in self.bprop.params], self.bprop_params))
        name = _unused("zz_scale", {*numbers, *(c.name for c in self.bprop.captures)})
        made = scaled_bprop(self.bprop, name)
        numbers[name] = scale
        return self._replace(bprop=made, bprop_params=tuple(numbers[p.name] for p in made.params))


def _unused(name: str, names: Collection[str]) -> str:
    """Returns `name`, with letters "z" in front until the name is not in `names`, so that names that fxattn adds to a
    program differ from names of the caller."""
    while name in names:
        name = "z" + name
    return name


def is_graph_style(mod: Any) -> bool:
    """Returns True if `mod` has three positional parameters, like score_mod(graph, score, tensors) of Transformer
    Engine."""
    if not callable(mod) or isinstance(mod, Program):
        return False
    try:
        found = inspect.signature(mod).parameters.values()
    except (TypeError, ValueError):
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.kind in by_position and p.default is p.empty for p in found].count(True) == 3 and not any(
        p.kind is p.VAR_POSITIONAL for p in found)


def resolve(score_mod: Any, mask_mod: Mod, bprop: Mod, tensors: Named, bprop_tensors: Named, params: Named,
            shape: Sequence[int], dtype: Any, moved: bool = False, part: Optional[str] = None,
            bprop_params: Named = None, style: Optional[str] = None) -> Score:
    """Returns the Score of score_mod and mask_mod for scores of `shape` (batch, heads, rows, keys) and `dtype`; a Score
    as score_mod is returned unchanged. `moved`: True if q may differ from the row index. `part`: a value other than
    None if the call is a step of ring attention, which computes a part of the scores (trace_graph). `style` None
    selects "graph" if score_mod has three arguments, else "flex"."""
    if isinstance(score_mod, Score):
        return score_mod
    if style not in (None, *STYLES):
        raise ArgumentError("style is %r; \"flex\" and \"graph\" are accepted, None finds it" % (style,))
    for name, named in (("tensors", tensors), ("bprop_tensors", bprop_tensors), ("params", params),
                        ("bprop_params", bprop_params)):
        if named is not None and not isinstance(named, Mapping):
            raise ArgumentTypeError("%s is of type %s; a dictionary by name is accepted" % (name, type(named).__name__))
    tensors, bprop_tensors, params, bprop_params = map(_plain_arrays, (tensors, bprop_tensors, params, bprop_params))
    if score_mod is None and mask_mod is None:
        given = [name for name, value in (("score_mod_bprop", bprop), ("tensors", tensors),
                                          ("bprop_tensors", bprop_tensors), ("params", params),
                                          ("bprop_params", bprop_params)) if value]
        if given:
            raise ArgumentError("%s given without score_mod" % " and ".join(given))
        return Score()
    if bprop is None and (bprop_tensors or bprop_params):
        raise ArgumentError("%s given without score_mod_bprop" % ("bprop_tensors" if bprop_tensors else "bprop_params"))
    if any(isinstance(mod, (str, Program)) for mod in (score_mod, mask_mod)):
        check_kinds(score_mod=score_mod, mask_mod=mask_mod, score_mod_bprop=bprop)
        return _of_text(score_mod, mask_mod, bprop, tensors, bprop_tensors, params, bprop_params, dtype)
    check_kinds(score_mod=score_mod, mask_mod=mask_mod)
    graph = is_graph_style(score_mod) if style is None else style == "graph"
    _check_functions(graph, bprop, tensors, params or bprop_params)
    if bprop is not None:
        tensors, bprop_tensors = _numbers_as_arrays(tensors, dtype), _numbers_as_arrays(bprop_tensors, dtype)
    try:
        found = trace(score_mod, mask_mod, style="graph" if graph else "flex", score_mod_bprop=bprop, lib="numpy",
                      dtype=dtype,
                      tensors=tensors, bprop_tensors=bprop_tensors, shape=shape if graph else None,
                      sizes=(shape[0], shape[1], None if moved else shape[2], shape[3]), part=part)
    except TraceError as error:
        error.args = (in_words_of_jax(str(error)),)
        raise
    return Score(*_as_arrays(found.program, found.tensors, found.params, dtype),
                 *_as_arrays(found.bprop, found.bprop_tensors, found.bprop_params, dtype))


def _plain_arrays(named: Named) -> Named:
    """Returns the dictionary with nnx.Param and other values with __jax_array__ converted to JAX arrays; None for
    None."""
    return named if named is None else {name: jnp.asarray(x) if hasattr(x, "__jax_array__") else x
                                        for name, x in named.items()}


def _numbers_as_arrays(given: Named, dtype: Any) -> Named:
    """Returns the dictionary with floats converted to arrays of rank 0. With a backward program, floats are passed as
    arrays of rank 0, which become captured tensors: engines read params of a backward program on the host, but a float
    of JAX is on the device."""
    wide = "float64" if dtype == jnp.dtype("float64") else "float32"
    return given and {name: jnp.asarray(x, wide) if isinstance(x, (float, np.floating)) else x
                      for name, x in given.items()}


def _check_functions(graph: bool, bprop: Mod, tensors: Named, params: Named) -> None:
    if params or (tensors and not graph):
        raise ArgumentError("%s given beside a function, which brings what it uses by itself; they are for program text"
                            "%s" % ("params" if params else "tensors",
                                    "" if params else " and for score_mod(graph, score, tensors)"))
    if bprop is not None and not graph:
        raise ArgumentError("score_mod_bprop given beside a score_mod of (score, b, h, q, k), whose derivative is "
                            "known; it belongs to score_mod(graph, score, tensors)")
    if bprop is not None and not callable(bprop):
        raise ArgumentTypeError("score_mod_bprop is of type %s beside a function; a function is accepted"
                                % type(bprop).__name__)


def _described(name: str, value: Any) -> Tuple[str, int]:
    array = jnp.asarray(value)
    return DTYPE_NAMES[code_of(array, "tensors[%r]" % name)], array.ndim


def _of_text(score_mod: Mod, mask_mod: Mod, bprop: Mod, tensors: Named, bprop_tensors: Named, params: Named,
             bprop_params: Named, dtype: Any) -> Score:
    numbers = {name: _plain(value) for name, value in (params or {}).items()}
    params_of_both = {**(params or {}), **(bprop_params or {})}
    back_numbers = {name: _plain(value) for name, value in params_of_both.items()}
    program = text_program([(score_mod, "score"), (mask_mod, "mask")], "score", _described, tensors, numbers)
    back = text_program([(bprop, "dscore")], "bprop", _described, {**(tensors or {}), **(bprop_tensors or {})},
                        back_numbers)
    programs = [one for one in (program, back) if one is not None]
    for what, given, attribute in (("params", params, "params"), ("bprop_params", bprop_params, "params"),
                                   ("tensors", tensors, "captures"), ("bprop_tensors", bprop_tensors, "captures")):
        names = sorted({one.name for p in programs for one in getattr(p, attribute)})
        unknown = sorted(set(given or {}) - set(names))
        if unknown:
            raise ArgumentError("%s has %s, which the program does not use; it uses %s"
                                % (what, ", ".join(unknown), ", ".join(names) or "none"))
    assert program is not None
    both = {**(tensors or {}), **(bprop_tensors or {})}
    return Score(*_as_arrays(program, *_bound(program, tensors or {}, params or {}), dtype),
                 *_as_arrays(back, *_bound(back, both, params_of_both), dtype))


def _plain(value: Any) -> Any:
    """Returns a placeholder of the type of param `value`: 0 for ints, else 0.0."""
    return 0 if jnp.issubdtype(jnp.asarray(value).dtype, jnp.integer) else 0.0


def _bound(program: Optional[Program], tensors: Mapping[str, Any], params: Mapping[str, Any]) -> Tuple[Any, Any]:
    if program is None:
        return (), ()
    missing = [c.name for c in program.captures if c.name not in tensors]
    missing += [p.name for p in program.params if p.name not in params and p.default is None]
    if missing:
        raise ArgumentError("the program uses %s, of which no value is given" % ", ".join(missing))
    return ([tensors[c.name] for c in program.captures],
            [params[p.name] if p.name in params else p.default for p in program.params])


def _as_arrays(program: Optional[Program], tensors: Sequence[Any], params: Sequence[Any],
               dtype: Any) -> Tuple[Optional[Program], Tuple[Any, ...], Tuple[Any, ...]]:
    """Returns (program, tensors, params): the program with the storage types of its arrays, and the captured tensors
    and values of params as JAX arrays. Raises ArgumentError if a captured array has not the rank or type that the
    program declares."""
    if program is None:
        return None, (), ()
    arrays = [jnp.asarray(x) for x in tensors]
    for capture, x in zip(program.captures, arrays):
        if x.ndim != capture.rank:
            raise ArgumentError("%s has shape %s; the program declares it with rank %d"
                                % (capture.name, x.shape, capture.rank))
    types = {c.name: DTYPE_NAMES[code_of(x, c.name)] for c, x in zip(program.captures, arrays)}
    return retyped(program, types), tuple(arrays), tuple(_param(p, x, dtype) for p, x in zip(program.params, params))


def _param(declared: Any, value: Any, dtype: Any) -> Any:
    wide = "float64" if dtype == jnp.dtype("float64") else "float32"
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return jnp.asarray(value, wide if declared.type == "float" else "int32")
    array = jnp.asarray(value)
    if array.ndim or declared.type == "int" and not jnp.issubdtype(array.dtype, jnp.integer):
        raise ArgumentError("the param %s is %s of shape %s; %s is accepted" % (
            declared.name, array.dtype, array.shape, "an int" if declared.type == "int" else "a number"))
    return array
