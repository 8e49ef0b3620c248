# SPDX-License-Identifier: Apache-2.0
"""First level of the trace cache: finds the trace of a score_mod and a mask_mod in about 1 us, by a generated check.

reuse.py collects all dependences of the functions into a key, which takes about 5 us. A check of this file compares
each dependence of the cached trace (code, cells, globals, defaults, attributes of modules) with its present value: is
it still one object, an equal number, or a tensor of equal class, dtype and rank? The comparisons of a check are fixed
for a cached trace, so the comparisons are compiled into a Python function, which returns the trace with the present
tensors.

Invariants:

- A check, which is a generated Python function, compares everything that _Reader in reuse.py reads, so functions that a
  check accepts have the key of the cached trace. Functions with dependences that a check cannot compare (lists,
  partials, arrays of JAX, ...) get no check. Functions that a check rejects are looked up in reuse.py. A check changes
  only the time of a lookup in the trace cache, not the result of the lookup.

- A check is made when a trace is found in reuse.py, not when the trace is stored there: functions whose numbers change
  in every call get no check.

- A check is looked up by the addresses of the code of its two functions, and then compares the code objects of the
  functions with those that the check holds. A check holds no tensor and no dictionary of globals.
"""
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from .recipe import FREE_CALLS, Unsure, builtins_of, recipe_of

_LIMIT, _MOST, _TRIES = 512, 4, 16  # max pairs of functions, checks held for a pair, checks made for a pair
_DEEPEST = 4
Check = Callable[[Any, Any], Any]


class _Unknown(Exception):
    """Raised for a value that a check cannot compare."""


class _Writer:
    """Generates the check of two functions in their present state. The variables in the text of a check are named in
    order: x0, x1, ..."""

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
        """Adds a condition to the text of the check. In `condition`, {0} stands for `name`, {1} and up for `values`."""
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
        """Adds a condition for each attribute that the functions may read from modules."""
        for module in self.modules:  # grows meanwhile
            held = module.__dict__
            get = self.constant(held.get)
            for name in self.attributes:
                found = held.get(name)
                self.ask("{0}({1}) is {2}", get, name, found)
                if type(found) is types.ModuleType and found not in self.modules:
                    self.modules.append(found)

    def check(self, mods: Tuple[Any, Any], traced: Any) -> Check:
        """Returns the check, a function of (score_mod, mask_mod). The check returns the cached trace, with the present
        tensors of the functions, or None if a dependence has changed."""
        for name, mod in zip(("score_mod", "mask_mod"), mods):
            if mod is not None:
                self.function(name, mod, 0)
        self.taken()
        names = [name for tensor in traced.tensors for name, seen in self.tensors if seen is tensor]
        if len(names) != len(traced.tensors):
            raise _Unknown
        # The check builds the trace, a named tuple of the program, the tensors and further fields, by tuple.__new__.
        program, _, *after = traced
        made = "{0}({1}, ({2}, (%s), %s))" % ("".join(name + ", " for name in names),
                                              "".join("{%d}, " % (3 + n) for n in range(len(after))))
        values = [traced] if not names else [tuple.__new__, type(traced), program, *after]
        self.lines.append("return " + (made if names else "{0}").format(*map(self.constant, values)))
        text = "def check(score_mod, mask_mod):\n    %s\n" % "\n    ".join(self.lines)
        exec(compile(text, "<check of a trace>", "exec"), self.constants)
        return self.constants["check"]


class _Pair:
    """The checks of a pair of functions, the latest check first."""

    __slots__ = ("checks", "made")

    def __init__(self) -> None:
        self.checks: Tuple[Check, ...] = ()
        self.made = 0


_pairs: Dict[Tuple[Any, ...], _Pair] = {}
_lock = threading.Lock()


def find(score_mod: Any, mask_mod: Any, rest: Tuple[Any, ...]) -> Any:
    """Returns the cached trace of two functions if a check proves them unchanged, else None. `rest` has the other
    arguments that a trace depends on: library, device, dtype and sizes."""
    try:  # AttributeError: callables without __code__ have no check
        pair = _pairs.get((None if score_mod is None else id(score_mod.__code__),
                           None if mask_mod is None else id(mask_mod.__code__), rest))
    except AttributeError:
        return None
    if pair is not None:
        try:
            for check in pair.checks:
                found = check(score_mod, mask_mod)
                if found is not None:
                    return found
        except ValueError:  # an empty cell
            return None
    return None


def watch(score_mod: Any, mask_mod: Any, rest: Tuple[Any, ...], traced: Any, tensor_types: Dict[type, Any],
          still: Callable[[], bool]) -> None:
    """Makes a check of two functions whose trace was just found in reuse.py. `still` is called when the check is
    written, and returns True if the functions still have the trace: another thread may have changed a dependence
    meanwhile."""
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
        check = _Writer(tensor_types).check(mods, traced)
    except (_Unknown, Unsure, ValueError):
        pair.made = _TRIES
        return
    if still():
        pair.checks = (check, *pair.checks[:_MOST - 1])


def clear() -> None:
    """Drops all checks."""
    with _lock:
        _pairs.clear()
