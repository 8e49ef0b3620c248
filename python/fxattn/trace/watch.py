# SPDX-License-Identifier: Apache-2.0
"""First level of the trace cache: finds the trace of a score_mod and a mask_mod in about 1 us, by a guard, a generated
Python function that tests whether a cached trace is still valid.

The guard of a cached trace compares each value that the traced functions read (code, cells, globals, defaults,
attributes of modules) with the value at the time of the trace: is it still one object, an equal number, or a tensor of
equal class, dtype and rank? If all values are unchanged, the guard returns the trace with the tensors that the
functions hold now. The second level of the trace cache, reuse.py, collects everything that the functions read into a
key, which takes about 5 us.

Invariants:

- A guard compares everything that _Reader in reuse.py reads, so functions that a guard accepts have the key of the
  cached trace. Functions that read values which a guard cannot compare (lists, partials, arrays of JAX, ...) get no
  guard. Functions that a guard rejects are looked up in reuse.py. A guard changes only the time of a lookup in the
  trace cache, not the result of the lookup.

- A guard is made when a trace is found in reuse.py, not when the trace is stored there: functions whose numbers change
  in every call get no guard.

- A guard is looked up by the addresses of the code of its two functions, and then compares the code objects of the
  functions with those that the guard holds. A guard holds no reference to a tensor or to the globals of a function: the
  cache would otherwise keep tensors in memory that the caller has dropped.
"""
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from .recipe import FREE_CALLS, Unsure, builtins_of, recipe_of

_LIMIT, _MOST, _TRIES = 512, 4, 16  # max pairs of functions, guards held for a pair, guards made for a pair
_DEEPEST = 4
Guard = Callable[[Any, Any], Any]


class _Unknown(Exception):
    """Raised for a value that a guard cannot compare."""


class _Writer:
    """Generates the guard of a cached trace for the present state of two functions. The variables in the text of a
    guard are named in order: x0, x1, ..."""

    def __init__(self, tensor_types: Dict[type, Any]) -> None:
        self.tensor_types = tensor_types
        self.lines: List[str] = []
        self.constants: Dict[str, Any] = {"missing": object()}
        self.tensors: List[Tuple[str, Any]] = []
        self.modules: List[types.ModuleType] = []
        self.attributes: Dict[str, None] = {}
        self.count = 0

    def constant(self, value: Any) -> str:
        name = "c%d" % len(self.constants)
        self.constants[name] = value
        return name

    def met(self, expression: str) -> str:
        name = "x%d" % self.count
        self.count += 1
        self.lines.append("%s = %s" % (name, expression))
        return name

    def ask(self, condition: str, name: str, *values: Any) -> None:
        """Adds a condition to the generated text of the guard. In `condition`, {0} stands for `name`, {1} and up for
        `values`."""
        self.lines.append("if not (%s): return None" % condition.format(name, *map(self.constant, values)))

    def function(self, name: str, function: types.FunctionType, depth: int) -> None:
        code, names = function.__code__, function.__globals__
        recipe = recipe_of(code)
        if recipe.unknown or function.__dict__ or function.__kwdefaults__ or depth > _DEEPEST:
            raise _Unknown
        self.attributes.update(recipe.attributes)
        self.ask("type({0}) is {1} and {0}.__code__ is {2} and {0}.__kwdefaults__ is None and not {0}.__dict__", name,
                 types.FunctionType, code)
        for kind, values in (("__closure__", function.__closure__), ("__defaults__", function.__defaults__)):
            if values is None:
                self.ask("{0} is None", name + "." + kind)
                continue
            held = self.met("%s.%s" % (name, kind))
            self.ask("{0} is not None and len({0}) == {1}", held, len(values))
            for at, value in enumerate(values):
                content = value.cell_contents if kind == "__closure__" else value
                self.value(self.met("%s[%d]%s" % (held, at, ".cell_contents" if kind == "__closure__" else "")),
                           content, depth)
        if not recipe.names:
            return
        self.ask("type({0}) is {1}", self.met(name + ".__globals__"), dict)
        get = self.met("x%d.get" % (self.count - 1))
        for one in recipe.names:
            if one in names:
                self.value(self.met("%s(%r, missing)" % (get, one)), names[one], depth)
            else:
                self.builtin(name, get, one, function)

    def builtin(self, function_name: str, get: str, name: str, function: types.FunctionType) -> None:
        held = builtins_of(function)
        if name not in FREE_CALLS or name not in held:
            raise _Unknown
        self.ask("{0}({1}, missing) is missing and {2}({1}) is {3}", get, name, held.get, held[name])
        if hasattr(function, "__builtins__"):
            self.ask("{0}.__builtins__ is {1}", function_name, held)
        else:
            self.ask("{0}('__builtins__') is {1}", get, function.__globals__.get("__builtins__"))

    def value(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is float:  # 0.0 equals -0.0
            self.ask("{0} is {1} or (type({0}) is {2} and {0} == {1} != 0.0)", name, value, kind)
        elif kind in (int, str):
            self.ask("{0} is {1} or (type({0}) is {2} and {0} == {1})", name, value, kind)
        elif value is None or kind is bool:
            self.ask("{0} is {1}", name, value)
        elif kind in self.tensor_types:
            self.tensor(name, value)
        elif kind is types.FunctionType and not str(value.__module__).startswith("jax."):
            self.function(name, value, depth + 1)
            self.ask("{0}.__module__ == {1}", name, value.__module__)
        elif kind is types.ModuleType:
            self.ask("{0} is {1}", name, value)
            if value not in self.modules:
                self.modules.append(value)
        else:
            raise _Unknown

    def tensor(self, name: str, tensor: Any) -> None:
        same = [other for other, seen in self.tensors if seen is tensor]
        if same:
            self.ask("{0} is " + same[0], name)
            return
        kind = type(tensor)
        others = "".join(" and {0} is not " + other for other, _ in self.tensors)
        if not tensor.ndim:  # a tensor of rank 0 on the host may be a param, not a captured tensor
            others += " and {0}.is_cpu" if tensor.is_cpu else " and not {0}.is_cpu"
        self.ask("type({0}) is {1} and {0}.dtype is {2} and {0}.ndim == {3} and {0}.layout is {4} and not {0}.__dict__"
                 + others, name, kind, tensor.dtype, tensor.ndim, self.tensor_types[kind])
        self.tensors.append((name, tensor))

    def taken(self) -> None:
        """Adds a condition to the guard for each attribute that the functions may read from modules."""
        for module in self.modules:  # grows meanwhile
            held = module.__dict__
            get = self.constant(held.get)
            for name in self.attributes:
                found = held.get(name)
                self.ask("{0}({1}) is {2}", get, name, found)
                if type(found) is types.ModuleType and found not in self.modules:
                    self.modules.append(found)

    def guard(self, mods: Tuple[Any, Any], traced: Any) -> Guard:
        """Returns the guard of the trace `traced`: a function of (score_mod, mask_mod) that tests whether the trace
        is still valid. The guard returns the cached trace, with the tensors that the functions hold now, or None if a
        value that the functions read has changed."""
        for name, mod in zip(("score_mod", "mask_mod"), mods):
            if mod is not None:
                self.function(name, mod, 0)
        self.taken()
        names = [name for tensor in traced.tensors for name, seen in self.tensors if seen is tensor]
        if len(names) != len(traced.tensors):
            raise _Unknown
        # The guard builds the trace, a named tuple of the program, the tensors and further fields, by tuple.__new__.
        program, _, *after = traced
        made = "{0}({1}, ({2}, (%s), %s))" % ("".join(name + ", " for name in names),
                                              "".join("{%d}, " % (3 + n) for n in range(len(after))))
        values = [traced] if not names else [tuple.__new__, type(traced), program, *after]
        self.lines.append("return " + (made if names else "{0}").format(*map(self.constant, values)))
        text = "def guard(score_mod, mask_mod):\n    %s\n" % "\n    ".join(self.lines)
        exec(compile(text, "<guard of a trace>", "exec"), self.constants)
        return self.constants["guard"]


class _Pair:
    """The guards (tests whether a cached trace is still valid) of a pair (score_mod, mask_mod), the latest guard
    first."""

    __slots__ = ("guards", "made")

    def __init__(self) -> None:
        self.guards: Tuple[Guard, ...] = ()
        self.made = 0


_pairs: Dict[Tuple[Any, ...], _Pair] = {}
_lock = threading.Lock()


def find(score_mod: Any, mask_mod: Any, rest: Tuple[Any, ...]) -> Any:
    """Returns the cached trace of two functions if a guard proves the functions unchanged, else None. `rest` has the
    arguments besides the functions on which a trace depends: library, device, dtype and sizes."""
    try:  # AttributeError: callables without __code__ have no guard
        pair = _pairs.get((None if score_mod is None else id(score_mod.__code__),
                           None if mask_mod is None else id(mask_mod.__code__), rest))
    except AttributeError:
        return None
    if pair is not None:
        try:
            for guard in pair.guards:
                found = guard(score_mod, mask_mod)
                if found is not None:
                    return found
        except ValueError:  # an empty cell
            return None
    return None


def watch(score_mod: Any, mask_mod: Any, rest: Tuple[Any, ...], traced: Any, tensor_types: Dict[type, Any],
          still: Callable[[], bool]) -> None:
    """Makes a guard (a generated test whether a cached trace is still valid) for two functions whose trace was just
    found in reuse.py. `still` is called after the guard was generated, and returns True if the cache still has this
    trace for the functions: another thread may have changed a value that the functions read."""
    mods = score_mod, mask_mod
    if any(mod is not None and type(mod) is not types.FunctionType for mod in mods):
        return
    place = (*(None if mod is None else id(mod.__code__) for mod in mods), rest)
    with _lock:
        pair = _pairs.get(place)
        if pair is None:
            if len(_pairs) >= _LIMIT:
                _pairs.clear()
            pair = _pairs[place] = _Pair()
        pair.made += 1
        if pair.made > _TRIES:
            return
    try:
        guard = _Writer(tensor_types).guard(mods, traced)
    except (_Unknown, Unsure, ValueError):
        pair.made = _TRIES
        return
    if still():
        pair.guards = (guard, *pair.guards[:_MOST - 1])


def clear() -> None:
    """Drops all guards."""
    with _lock:
        _pairs.clear()
