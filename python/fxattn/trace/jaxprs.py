# SPDX-License-Identifier: Apache-2.0
"""Traces functions that use jax.numpy: JAX traces such a function into a jaxpr, which this file evaluates on symbols.

JAX's functions accept only JAX's own arrays, so a function that uses JAX runs under jax.make_jaxpr. The jaxpr of a
function contains JAX's promotion, weak types and rounding. Operations without a traced operand are executed by JAX, so
that gradients and outer transformations keep working (a captured array may be a tracer of an enclosing jit). The file
primitives.py has the table of primitives on traced values."""
import os
import sys
import types
from typing import Any, Callable, Dict, FrozenSet, List, Sequence, Tuple

from .. import _abi
from . import ops, unsigned
from .arrays import Vec, View, elementwise, stack, vec
from .libraries import dtype_name, kind_of_dtype, library_of
from .literals import float_values, names_of
from .place import TraceError, at_place_of, like, refuse
from .primitives import INLINED, JITTED, PRIMITIVES, Held, settled
from .record import MAX_LIFTED, Recording
from .rules import RULED, bound, stopped, with_rule
from .symbol import Sym
from .types import BOOL, FLOAT, HIGHEST, INT, LOWEST, wrapped

TRACED = (Sym, Vec, View, Held)
MAX_UNROLLED = 64


class NotJaxs(TraceError):
    """Raised for a function that JAX cannot trace, and that may be written for another library."""


def mentions_jax(mod: Any, depth: int = 0) -> bool:
    """Returns True if a function, or an object in the closure of the function, uses JAX."""
    if "jax" not in sys.modules or depth > 3:
        return False
    if _is_of_jax(mod):  # for example the result of jax.jit
        return True
    function = getattr(mod, "func", mod)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        inner = getattr(type(mod), "__call__", None)
        return type(inner) is types.FunctionType and mentions_jax(inner, depth + 1)
    found = [function.__globals__[name] for name in names_of(code) if name in function.__globals__]
    found += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return any(_is_of_jax(x) or type(x) is types.FunctionType and x is not function and mentions_jax(x, depth + 1)
               for x in found)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_of_jax(x: Any) -> bool:
    name = x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None) or type(x).__module__
    return str(name).partition(".")[0] in ("jax", "jaxlib")


def run_by_jax(mod: Callable[..., Any], rec: Recording, arguments: Sequence[Any]) -> Any:
    """Returns the result of a function on symbols, computed from the jaxpr of the function."""
    jax = sys.modules["jax"]
    rec.lib = "jax"
    score = "float64" if rec.dtype is not None and dtype_name(rec.dtype) == "float64" else "float32"
    shapes = [jax.ShapeDtypeStruct((), score if x.ty == FLOAT else "int32") if type(x) is Sym else x for x in arguments]
    symbols = [x for x in arguments if type(x) is Sym]
    rest = [x for x in arguments if type(x) is not Sym]
    inputs = [s for s in shapes if not _is_rest(s, rest)]
    try:
        try:
            closed = jax.make_jaxpr(lambda *inputs: mod(*inputs, *rest))(*inputs)
        except jax.errors.TracerArrayConversionError:
            other = _on_jax_arrays(mod)
            if other is None:
                raise
            closed = jax.make_jaxpr(lambda *inputs: other(*inputs, *rest))(*inputs)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise at_place_of(error,
                          "a traced value is not known while the function is traced; use jnp.where instead of if, "
                          "jax.numpy's functions instead of Python's and NumPy's, and jnp.asarray(x)[i] of NumPy's "
                          "arrays", NotJaxs) from error
    except OverflowError as error:
        raise at_place_of(error, "%s: ints of score functions have 32 bits" % error) from error
    _check_draws(closed.jaxpr)
    player = _Player(rec, float_values(mod))
    results = player.play(closed.jaxpr, closed.consts, symbols)
    return player.traced(results[0]) if len(results) == 1 else tuple(map(player.traced, results))


def _on_jax_arrays(mod: Any) -> Any:
    """Returns a copy of a function with JAX arrays in place of NumPy arrays, because NumPy arrays cannot take traced
    indices. Returns None if the function uses no NumPy array."""
    if type(mod) is not types.FunctionType:
        return None
    asarray, ndarray = sys.modules["jax"].numpy.asarray, sys.modules["numpy"].ndarray

    def changed(value: Any) -> Any:
        return asarray(value) if type(value) is ndarray and value.dtype.kind in "biuf" else value
    cells = [cell.cell_contents if _is_filled(cell) else None for cell in mod.__closure__ or ()]
    names = {name: mod.__globals__[name] for name in names_of(mod.__code__) if name in mod.__globals__}
    if not any(changed(value) is not value for value in (*cells, *names.values())):
        return None
    closure = [cell if changed(value) is value else types.CellType(changed(value))
               for cell, value in zip(mod.__closure__ or (), cells)]
    space = {**mod.__globals__, **{name: changed(value) for name, value in names.items()}}
    made = types.FunctionType(mod.__code__, space, mod.__name__, mod.__defaults__, tuple(closure))
    made.__kwdefaults__ = mod.__kwdefaults__
    return made


def _check_draws(jaxpr: Any) -> None:
    """Raises an error if the jaxpr draws random numbers: one draw would be used for all scores."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name.startswith(("random_", "rng_", "threefry")):
            text = ("jax.random (%s) inside of a score function would draw once for all scores; use dropout and "
                    "dropout_key, or draw an array outside and index it" % name)
            raise _at_equation(TraceError(text), equation)
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr") or equation.params.get("body_jaxpr")
        for one in equation.params.get("branches", () if inner is None else (inner,)):
            _check_draws(getattr(one, "jaxpr", one))


def _is_rest(shape: Any, rest: Sequence[Any]) -> bool:
    return any(shape is x for x in rest)


class _Player:
    """Evaluates the equations of a jaxpr: on arrays by JAX, on traced values by the handlers of primitives.py."""

    def __init__(self, rec: Recording, literals: FrozenSet[float]) -> None:
        self.rec, self.literals = rec, literals
        self.avals: Sequence[Any] = ()  # avals of the operands of the present equation
        self.bits: Dict[int, Any] = {}  # id -> (uint32 array, its int32 bitcast)
        self.along_rule = False  # True in a derivative rule, where only tangents have gradients
        self.lifted: Dict[float, float] = {}  # value -> one float object, so that equal floats share a param

    def play(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> List[Any]:
        values: Dict[Any, Any] = {}
        for variables, given in ((jaxpr.constvars, consts), (jaxpr.invars, arguments)):
            for variable, value in zip(variables, given):
                values[variable] = value

        def read(atom: Any) -> Any:
            return _literal(atom) if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            if all(type(variable).__name__ == "DropVar" for variable in equation.outvars):
                continue
            try:
                results = self.equation(equation, [read(atom) for atom in equation.invars])
            except TraceError as error:
                raise _at_equation(error, equation) from None
            for variable, value in zip(equation.outvars, results):
                values[variable] = value
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, operands: List[Any]) -> Sequence[Any]:
        name = equation.primitive.name
        if name == "pvary":  # pvary marks axes of a shard_map; see _alike
            return operands
        if name == "dim_as_value":
            return [sys.modules["jax"].numpy.asarray(equation.params["dim"])]
        if not any(isinstance(x, TRACED) for x in operands):
            return _by_jax_itself(equation, operands)
        if name not in RULED or self.along_rule:
            return self.values(equation, operands)
        operands = [settled(x) for x in operands]
        return with_rule(self, equation, operands, self.values(equation, operands))

    def along(self, closed: Any, arguments: Sequence[Any]) -> List[Any]:
        """Evaluates the tangent jaxpr of an equation (rules.py). The constants of a tangent jaxpr get no gradient."""
        self.along_rule = True
        try:
            return self.play(closed.jaxpr, [stopped(self.rec, x) for x in closed.consts], arguments)
        finally:
            self.along_rule = False

    def values(self, equation: Any, operands: List[Any]) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if name in JITTED and _is_jax_numpys(equation):  # fxattn has one operation for the function
            return [elementwise(INLINED[params["name"]], self.rec, [self.traced(settled(x)) for x in operands])]
        inner = params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")
        if inner is not None and name not in ("while", "scan"):
            return self.inner(inner, operands)
        if name == "cond":
            return self.choice(params["branches"], operands)
        if name == "scan":
            return self.loop(equation, operands)
        if name == "while":
            return self.repeated(params, operands)
        handler = PRIMITIVES.get(name)
        if handler is None:
            refuse("JAX's %s is not known to score functions%s" % (name, like(name, PRIMITIVES)))
        if name not in ("squeeze", "reshape"):  # the handlers of squeeze and reshape accept a Held
            operands = [settled(x) for x in operands]
        operands = [self.as_bits(x) for x in operands]
        self.avals = [atom.aval for atom in equation.invars]
        result = unsigned.exact(self, name, equation, operands)
        if result is None:
            result = handler(self, operands, params, equation.outvars[0].aval)
        results = result if isinstance(result, list) else [result]
        return [unsigned.in_range(self, name, atom.aval, x) for atom, x in zip(equation.outvars, results)]

    def choice(self, branches: Sequence[Any], operands: List[Any]) -> List[Any]:
        """Evaluates lax.cond and lax.switch: evaluates all branches and selects among their results."""
        which, rest = self.traced(operands[0]), operands[1:]
        results = [self.inner(branch, rest) for branch in branches]
        chosen = results[-1]
        for n in range(len(results) - 2, -1, -1):
            def pick(rec: Recording, at: Any, x: Any, y: Any, n: int = n) -> Sym:
                return ops.choose(rec, ops.compare(_abi.OP_LE)(rec, at, n), x, y)
            chosen = [elementwise(pick, self.rec, [which, self.traced(x), self.traced(y)])
                      for x, y in zip(results[n], chosen)]
        return chosen

    def inner(self, closed: Any, operands: Sequence[Any]) -> List[Any]:
        """Evaluates a jaxpr nested in another one. From JAX 0.11 on, nested jaxprs hold no constants."""
        return self.play(getattr(closed, "jaxpr", closed), getattr(closed, "consts", ()), operands)

    def loop(self, equation: Any, operands: List[Any]) -> List[Any]:
        """Evaluates lax.scan and fori_loop of a fixed count, unrolled. In every version of JAX, a scanned value has one
        dimension more outside the body than inside, and a constant or a carry has the same rank outside and inside."""
        params, body = equation.params, equation.params["jaxpr"]
        own, length = getattr(body, "jaxpr", body), params["length"]
        kept, still = ([one.aval.shape == inner.aval.shape for one, inner in zip(*pair)].count(True)
                       for pair in ((equation.outvars, own.outvars), (equation.invars, own.invars)))
        fixed = still - kept
        if length > MAX_UNROLLED:
            refuse("a loop of %d steps is too long to be unrolled; at most %d are" % (length, MAX_UNROLLED))
        carry, rows = operands[fixed:fixed + kept], [settled(x) for x in operands[fixed + kept:]]
        given: List[List[Any]] = []
        for n in reversed(range(length)) if params["reverse"] else range(length):
            results = self.inner(body, [*operands[:fixed], *carry, *[x[n] for x in rows]])
            carry = results[:kept]
            given.append(results[kept:])
        steps = given[::-1] if params["reverse"] else given
        columns = [[self.elements(x) for x in column] for column in zip(*steps)]
        return [*carry, *[stack(self.rec, column, 0) for column in columns]]

    def repeated(self, params: Dict[str, Any], operands: List[Any]) -> List[Any]:
        """Evaluates lax.while_loop, unrolled. The condition of the loop must be known while the function is traced."""
        fixed, own = params["cond_nconsts"], params["body_nconsts"]
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        carry = operands[fixed + own:]
        for _ in range(MAX_UNROLLED + 1):
            on = self.inner(test, [*operands[:fixed], *carry])[0]
            if isinstance(on, TRACED) or library_of(on) == "jax":
                refuse("a while loop ends by a traced value; run it a fixed number of times, with jnp.where inside")
            if not on:
                return carry
            carry = self.inner(body, [*operands[fixed:fixed + own], *carry])
        refuse("a while loop of more than %d steps is too long to be unrolled" % MAX_UNROLLED)

    def traced(self, value: Any) -> Any:
        """Returns a value as an operand: a literal becomes a constant or a param; JAX arrays and traced values are
        returned unchanged."""
        value = settled(value)
        if isinstance(value, TRACED) or library_of(value) == "jax":
            return value
        kind = kind_of_dtype(value.dtype)
        if value.ndim:
            return Vec(self.rec, value.shape, [self.traced(x) for x in value.reshape(-1)])
        number = value.item()
        if kind == FLOAT:
            lifted = number - number == 0.0 and number not in self.literals and len(self.rec.params) < MAX_LIFTED
            if lifted:
                return Sym(self.rec, self.rec.param(self.lifted.setdefault(number, number), FLOAT), FLOAT)
            return Sym(self.rec, self.rec.constant(number), FLOAT)
        if kind == BOOL:
            return Sym(self.rec, self.rec.boolean(number), BOOL)
        kind = INT if kind is None else kind
        return Sym(self.rec, self.rec.integer(wrapped(number, kind), kind), kind)

    def apply(self, fn: Callable[..., Any], operands: Sequence[Any]) -> Any:
        return elementwise(fn, self.rec, [self.traced(x) for x in operands])

    def as_bits(self, x: Any) -> Any:
        """Returns a uint32 array as int32 with the same bits; any other value unchanged."""
        if isinstance(x, TRACED) or getattr(x, "dtype", None) != "uint32":
            return x
        if library_of(x) != "jax":
            return sys.modules["numpy"].asarray(x).view("int32")[()]
        if id(x) not in self.bits:
            self.bits[id(x)] = x, sys.modules["jax"].lax.bitcast_convert_type(x, "int32")
        return self.bits[id(x)][1]

    def is_unsigned(self, operand: int) -> bool:
        return bool(self.avals[operand].dtype.kind == "u")

    def elements(self, value: Any) -> Vec:
        return vec(self.rec, self.traced(value))


def _is_jax_numpys(equation: Any) -> bool:
    """Returns True if a jitted function is a function of jax.numpy, not a user's function with the name of one."""
    name = equation.params.get("name")
    if name not in INLINED or any(atom.aval.dtype == "uint32" for atom in equation.invars):
        return False
    jax = sys.modules["jax"]
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    try:
        own = jax.make_jaxpr(getattr(jax.numpy, name))(*shapes)
    except TypeError:  # the user's function takes other arguments
        return False
    return any(_primitives(one.params["jaxpr"]) == _primitives(equation.params["jaxpr"]) for one in own.jaxpr.eqns
               if one.primitive.name in JITTED)


def _primitives(closed: Any) -> List[str]:
    """Returns the primitives of a jaxpr and of its nested jaxprs, in order. Primitives that convert types are left out
    of the list, because conversions depend on weak types."""
    found: List[str] = []
    for equation in getattr(closed, "jaxpr", closed).eqns:
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        found += _primitives(inner) if inner is not None else [equation.primitive.name]
    return [name for name in found if name != "convert_element_type"]


def _literal(atom: Any) -> Any:
    """Returns the value of a literal in the jaxpr. Raises an error for a user's int beyond 32 bits; ints that JAX
    computes wrap around."""
    found = sys.modules["numpy"].asarray(atom.val, dtype=atom.aval.dtype)[()]
    whole = kind_of_dtype(found.dtype) == INT and not found.ndim and found.dtype != "uint32"
    if whole and not LOWEST[INT] <= int(found) <= HIGHEST[INT]:
        refuse("the int %d does not fit: ints of score functions have 32 bits" % found)
    return found


def _at_equation(error: TraceError, equation: Any) -> TraceError:
    """Returns the error with the line of user code that JAX recorded for the equation of the jaxpr."""
    if error.file and getattr(error, "by_equation", False):
        return error
    text = str(error).partition("\n  at ")[0]
    for frame in getattr(getattr(equation.source_info, "traceback", None), "frames", ()):
        name, line = frame.file_name, getattr(frame, "line_num", getattr(frame, "start_line", 0))
        if not name.startswith(_library_folders()):
            made = TraceError("%s\n  at %s:%d, in %s" % (text, name, line, frame.function_name))
            made.file, made.line, made.by_equation = name, line, True  # type: ignore[attr-defined]
            return made
    return TraceError(text)


def _library_folders() -> Tuple[str, ...]:
    """Returns the complete paths of the folders of JAX and of this tracer. Names of folders would not suffice, because
    a user's folder may have the name jax too."""
    files = [__file__, *(sys.modules[name].__file__ or "" for name in ("jax", "jaxlib") if name in sys.modules)]
    return tuple(os.path.join(os.path.dirname(file), "") for file in files if file)


def _by_jax_itself(equation: Any, operands: List[Any]) -> Sequence[Any]:
    """Evaluates an equation of a jaxpr that has no traced operand. If all operands are literals, the result is computed
    while the function is traced. The equation axis_index has no operands, but the result depends on the device and is
    computed at run time."""
    numpy, jax = sys.modules["numpy"], sys.modules["jax"]
    known = equation.primitive.name != "axis_index" and not any(library_of(x) == "jax" for x in operands)
    operands = operands if known else _alike(jax, operands)
    with jax.ensure_compile_time_eval() if known else _Nothing():
        results = bound(equation, operands)
    return [numpy.asarray(x)[()] for x in results] if known else results


def varying_axes(x: Any) -> FrozenSet[Any]:
    """Returns the axes of the enclosing shard_map over which an array varies; without a shard_map there are none."""
    kind = sys.modules["jax"].typeof(x)
    axes = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return frozenset(getattr(kind, "vma", ()) if axes is None else axes)


def _alike(jax: Any, operands: List[Any]) -> List[Any]:
    """Returns the operands, cast so that all operands vary over the same axes of a shard_map, as JAX requires. The
    equations pvary of the jaxpr are not evaluated, because pvary would turn literals into arrays."""
    axes = [varying_axes(x) for x in operands]
    every: FrozenSet[Any] = frozenset().union(*axes)
    return [x if mine == every else jax.lax.pcast(x, tuple(every - mine), to="varying")
            for x, mine in zip(operands, axes)]


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass
