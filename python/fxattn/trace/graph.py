# SPDX-License-Identifier: Apache-2.0
"""Traces callbacks of the style "graph": score_mod(graph, score, tensors) and score_mod_bprop(graph, dscore, tensors),
as in Transformer Engine and cuDNN's frontend. The argument `graph` has the pointwise methods of cuDNN's frontend, with
the argument names of cuDNN's frontend. The methods of a Graph return Nodes, and setters of a Node return the Node.

The backward callback is traced after the forward callback, in a Recording whose parent is the Recording of the forward
callback. The backward callback may use nodes that the forward callback stored, such as the value before the tanh of a
soft cap: stored nodes are recomputed from the score."""
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import _abi
from .._errors import ArgumentError, ArgumentTypeError
from . import ops, reuse
from .arrays import load
from .libraries import library_of, plain_number, symbolic_kind
from .ops import cast
from .place import TraceAttributeError, TraceKeyError, TraceTypeError, error, error_in, refuse
from .pointwise import OPTIONS, ORDER, POINTWISE, TABLE_OF_TYPES
from .record import Recording
from .symbol import Sym
from .types import BOOL, FLOAT, HIGHEST, INT, LOWEST

AXES = (_abi.INPUT_B, _abi.INPUT_H, _abi.INPUT_Q, _abi.INPUT_K)  # results of gen_index: coordinates for masks
STORED = (_abi.INPUT_B, _abi.INPUT_H, _abi.INPUT_Q_ROW, _abi.INPUT_K_ROW)  # storage indices, for reading arrays
METHODS = sorted([*POINTWISE, "gen_index", "tensor_scalar"])
COMMON_OPTIONS = ("compute_data_type", "name")


class Node:
    """A tensor of the graph that a callback of the style "graph" builds: one value for each (query, key) pair. The
    setters of a Node return the Node itself."""

    __slots__ = ("_sym", "_make", "rec", "_known")

    def __init__(self, rec: Recording, sym: Optional[Sym] = None, make: Optional[Callable[[], Sym]] = None,
                 **known: Any) -> None:
        self.rec, self._sym, self._make, self._known = rec, sym, make, known

    @property
    def sym(self) -> Sym:
        """Returns the value of the node as a Sym. A tensor of the user is loaded at the first use of the node, so that
        unused tensors are not captured."""
        if self._sym is None:
            assert self._make is not None
            self._sym = self._make()
        return self._sym

    def forget(self) -> None:
        """Drops the node's reference to the user's tensor at the end of the trace: a callback may have stored the node,
        which would keep the tensor alive."""
        self._make = _read_too_late

    def set_data_type(self, data_type: Any) -> "Node":
        """Sets the type of the node to `data_type`, a value of cuDNN's enum or a name; the value of the node is
        converted to the type."""
        self._known["data_type"] = data_type
        kind = kind_of_type(data_type)
        if kind is not None and kind != self.sym.ty:
            self._sym = cast(self.rec, self.sym, kind)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            def setter(*values: Any) -> "Node":
                self._known[name[4:]] = values[0] if len(values) == 1 else values
                return self
            return setter
        if name.startswith("get_"):
            return lambda: self._known.get(name[4:])
        if name.startswith("__"):
            raise AttributeError(name)
        raise error("a tensor of the graph has no attribute '%s'; it has set_... and get_..., and the graph's methods "
                    "compute" % name, TraceAttributeError)

    def __bool__(self) -> bool:
        # The frontend's tensors are always true, and callbacks test `if tensor:`. The truth of a comparison is refused.
        if self.sym.ty == BOOL:
            refuse("a comparison is a tensor of the graph, whose values are not known while it is built; choose by it "
                   "with graph.binary_select(input0=..., input1=..., mask=...)")
        return True

    def __repr__(self) -> str:
        return "<graph tensor>"


# Python's operators -> methods of the graph. Tensors of cuDNN's frontend have no operators, so an operator of a Node
# raises an error, which names the method.
_OPERATORS = {"add": "add", "radd": "add", "sub": "sub", "rsub": "sub", "mul": "mul", "rmul": "mul", "truediv": "div",
              "rtruediv": "div", "pow": "pow", "rpow": "pow", "mod": "mod", "neg": "neg", "abs": "abs", "lt": "cmp_lt",
              "le": "cmp_le", "gt": "cmp_gt", "ge": "cmp_ge", "and": "logical_and", "or": "logical_or",
              "invert": "logical_not"}


def _without(method: str) -> Callable[..., Any]:
    def refused(self: Node, *others: Any) -> Any:
        raise error("a tensor of the graph has no operators; graph.%s(...) computes this, with graph.tensor_scalar(x) "
                    "for a number" % method, TraceTypeError)
    return refused


for _operator, _method in _OPERATORS.items():
    setattr(Node, "__%s__" % _operator, _without(_method))

# Functions of torch and NumPy -> methods of the graph, where the names differ.
_FUNCTIONS = {"absolute": "abs", "clamp": "max and graph.min", "clip": "max and graph.min", "divide": "div",
              "eq": "cmp_eq", "equal": "cmp_eq", "ge": "cmp_ge", "greater": "cmp_gt", "greater_equal": "cmp_ge",
              "gt": "cmp_gt", "le": "cmp_le", "less": "cmp_lt", "less_equal": "cmp_le", "lt": "cmp_lt",
              "maximum": "max", "minimum": "min", "multiply": "mul", "ne": "cmp_neq", "negative": "neg",
              "not_equal": "cmp_neq", "power": "pow", "remainder": "mod", "silu": "swish", "subtract": "sub",
              "true_divide": "div", "where": "binary_select"}


def _refuse_function(function: Any) -> Any:
    name = getattr(function, "__name__", str(function)).strip("_")
    name = _FUNCTIONS.get(name, _OPERATORS.get(name, name))
    raise error("functions of torch and NumPy do not take tensors of the graph; %s"
                % ("graph.%s(...) computes this" % name if name.split()[0] in METHODS
                   else "the graph has " + ", ".join(METHODS)), TraceTypeError)


def _no_number(self: Node) -> Any:
    raise error("a tensor of the graph is no number, whose value functions of math could take; the graph has "
                + ", ".join(METHODS), TraceTypeError)


setattr(Node, "__torch_function__", classmethod(lambda cls, function, types, args=(), kwargs=None:
                                                _refuse_function(function)))
setattr(Node, "__array_ufunc__", lambda self, function, method, *args, **rest: _refuse_function(function))
setattr(Node, "__array_function__", lambda self, function, types, args, rest: _refuse_function(function))
setattr(Node, "__float__", _no_number)
setattr(Node, "__int__", _no_number)


class _Named(Dict[str, Node]):
    """The dictionary of tensors that a callback gets, by name."""

    what = ""

    def __missing__(self, name: Any) -> Any:
        raise error("%s_tensors has no %r; %s" % (self.what, name, "it has " + ", ".join(map(repr, self)) if self
                                                  else "none are given"), TraceKeyError)


def _read_too_late() -> Sym:
    refuse("this tensor was given to a graph that is finished; tensors of a graph are used while it is built")


def kind_of_type(data_type: Any) -> Optional[int]:
    """Returns the type (types.py) for a data_type, which is a value of cuDNN's enum or a name; None if the data_type
    sets no type."""
    if data_type is None:
        return None
    name = str(getattr(data_type, "name", data_type)).rpartition(".")[2].upper()
    if name in TABLE_OF_TYPES:
        return TABLE_OF_TYPES[name]
    refuse("the data type %s is not known; %s are" % (data_type, ", ".join(sorted(TABLE_OF_TYPES))))


class Graph:
    """The `graph` argument of a callback. The methods of a Graph record pointwise operations and return Nodes."""

    def __init__(self, rec: Recording) -> None:
        self._rec = rec

    def gen_index(self, input: Any, axis: int, compute_data_type: Any = None, name: str = "") -> Node:
        """Returns the coordinate along an axis of the scores as a Node. Axes: 0 batch, 1 head, 2 row, 3 key."""
        if not -4 <= axis < 4:
            refuse("gen_index: axis is %s; -4 to 3 are accepted: batch, head, row, key" % axis)
        return Node(self._rec, Sym(self._rec, AXES[axis % 4], INT), name=name)

    def tensor_scalar(self, value: Any, scalar_type: Any = None, **rest: Any) -> Node:
        """Returns a number as a Node: a param, or a constant if scalar_type marks the number as compile-time."""
        if "COMPILE" in str(scalar_type).upper():
            number = plain_number(value)
            rec = self._rec
            node = rec.constant(number) if type(number) is float else ops.node(rec, number, INT)
            return Node(rec, Sym(rec, node, ops.kind_of_operand(number)))
        return given(self._rec, "tensor_scalar", value, None)

    def tensor(self, *args: Any, **rest: Any) -> Node:
        refuse("graph.tensor: tensors are given by score_mod_tensors and found in the third argument")

    tensor_like = tensor

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name not in POINTWISE:
            raise error("the graph has no '%s'; it has %s" % (name, ", ".join(METHODS)), TraceAttributeError)
        return lambda *args, **rest: self._call(name, args, rest)

    def _call(self, name: str, args: Tuple[Any, ...], rest: Dict[str, Any]) -> Node:
        names, fn = POINTWISE[name]
        order = ORDER.get(name) or names + OPTIONS.get(name, ()) + COMMON_OPTIONS
        twice = [key for key in order[:len(args)] if key in rest]
        values = {**dict(zip(order, args)), **rest}
        wanted = names + (("negative_slope",) if name.startswith("leaky_relu") else ())
        wrong = ["%s is missing" % key for key in wanted if key not in values]
        wrong += ["%s is not known" % key for key in values if key not in order]
        wrong += ["%s is given twice" % key for key in twice]
        wrong += ["%d arguments are given" % len(args)] if len(args) > len(order) else []
        if wrong:
            raise error("%s takes %s; %s" % (name, ", ".join(order), "; ".join(wrong)), TraceTypeError)
        compute = kind_of_type(values.get("compute_data_type"))
        rec = self._rec
        operands = [self._operand(values[key], compute) for key in names]
        options = {key: values[key] for key in OPTIONS.get(name, ()) if values.get(key) is not None}
        return Node(rec, ops.as_sym(rec, fn(rec, *operands, **options)), name=values.get("name", ""))

    def _operand(self, value: Any, compute: Optional[int]) -> Sym:
        rec = self._rec
        node = value if isinstance(value, Node) else given(rec, "an operand", value, None)
        sym = node.sym if node.rec is rec else ops.moved(rec, node.sym)
        return cast(rec, sym, compute) if compute in (INT, FLOAT) and sym.ty != compute else sym


def given(rec: Recording, name: str, value: Any, shape: Optional[Sequence[int]]) -> Node:
    """Returns a tensor or number of the user as a Node. A number of the user becomes a param; a tensor is broadcast
    over the scores."""
    if isinstance(value, Node):
        return value
    if library_of(value) is not None:
        return Node(rec, make=lambda: _broadcast(rec, name, value, shape), dim=list(value.shape), data_type=value.dtype)
    number, symbolic = plain_number(value), symbolic_kind(value)
    if number is None and symbolic is None:
        refuse("%s is of type %s; tensors, arrays and numbers are accepted" % (name, type(value).__name__))
    if type(number) is bool:
        return Node(rec, Sym(rec, rec.boolean(number), BOOL))
    kind = symbolic if symbolic is not None else FLOAT if isinstance(number, float) else INT
    if symbolic is None and kind == INT and not LOWEST[INT] <= number <= HIGHEST[INT]:
        refuse("%s is %d; ints have 32 bits: give it as a float" % (name, number))
    return Node(rec, make=lambda: Sym(rec, rec.param(value, kind), kind))


def _broadcast(rec: Recording, name: str, array: Any, shape: Optional[Sequence[int]]) -> Sym:
    """Returns the element of an array for the (query, key) pair of the score. The loaded array broadcasts to [batch,
    heads, rows, keys]: dimensions are aligned at the right, size 1 repeats. Unless the call computes a part of the
    scores, the array is indexed by the index of the row in q and of the key in k, whatever q_start and the alignment
    are."""
    if array.ndim > 4:
        refuse("%s has shape %s; at most 4 dimensions, [batch, heads, rows, keys], are accepted"
                         % (name, tuple(array.shape)))
    nodes = []
    for d, size in enumerate(array.shape):
        at = 4 - array.ndim + d
        if shape is not None and size not in (1, shape[at]):
            refuse("%s has shape %s, which does not broadcast to the scores' %s"
                             % (name, tuple(array.shape), tuple(shape)))
        nodes.append(_place(rec, at) if size != 1 else rec.integer(0))
    return load(rec, array, nodes)


def _place(rec: Recording, axis: int) -> int:
    """Returns the node of the index with which captured arrays are read along an axis of the scores. A step of ring
    attention computes a part of the scores, but captured arrays have the size of the full sequence. Therefore arrays
    are indexed by positions in the full sequence there: by the input q for rows and by the input k for keys. If
    bottom-right alignment has added k_len - q_len to q, arrays are indexed by q + q_len - k_len for rows."""
    if rec.part is None or axis < 2:
        return STORED[axis]
    if axis == 3:
        return _abi.INPUT_K
    if rec.part == "aligned":
        return rec.emit(_abi.OP_SUB, rec.emit(_abi.OP_ADD, _abi.INPUT_Q, _abi.INPUT_Q_LEN), _abi.INPUT_K_LEN)
    return _abi.INPUT_Q


def _result(rec: Recording, result: Any, callback: Any, what: str) -> Optional[int]:
    """Returns the node of the value that a callback returned; None if the callback returned None (no change)."""
    if result is None:
        return None
    if not isinstance(result, Node):
        raise error_in(callback, "%s returned %s; a tensor of the graph, or None for no change, is accepted"
                       % (what, type(result).__name__))
    sym = result.sym if result.rec is rec else ops.moved(rec, result.sym)
    return cast(rec, sym, FLOAT).node


def _run(rec: Recording, callback: Any, start: Sym, tensors: Optional[Mapping[str, Any]], shape: Any,
         what: str, kept: List[Node]) -> Optional[int]:
    nodes = _Named((name, given(rec, "tensor '%s'" % name, value, shape)) for name, value in (tensors or {}).items())
    nodes.what = what
    kept.extend(nodes.values())
    return _result(rec, callback(Graph(rec), Node(rec, start, name="score"), nodes), callback, what)


def check_arguments(score_mod: Any, bprop: Any, tensors: Any, bprop_tensors: Any) -> None:
    """Raises one error that lists all conflicts among the arguments."""
    wrong = []
    for name, value in (("tensors", tensors), ("bprop_tensors", bprop_tensors)):
        if value is not None and type(value) is not dict and not isinstance(value, Mapping):
            raise ArgumentTypeError("%s is of type %s; a dictionary by name is accepted" % (name, type(value).__name__))
    if score_mod is None:
        wrong += [name for name, value in (("score_mod_bprop", bprop), ("score_mod_tensors", tensors),
                                           ("score_mod_bprop_tensors", bprop_tensors)) if value]
        if wrong:
            raise ArgumentError("%s given without score_mod" % ", ".join(wrong))
    if bprop is None and bprop_tensors:
        raise ArgumentError("score_mod_bprop_tensors requires score_mod_bprop")
    for name, value in (("score_mod", score_mod), ("score_mod_bprop", bprop)):
        if value is not None and not callable(value):
            raise ArgumentError("%s is of type %s; a function is accepted" % (name, type(value).__name__))


def trace_graph(score_mod: Any, mask: Optional[Callable[[Recording], int]], bprop: Any,
                tensors: Optional[Mapping[str, Any]], bprop_tensors: Optional[Mapping[str, Any]],
                shape: Optional[Sequence[int]], part: Optional[str] = None) -> Tuple[Any, ...]:
    """Returns (program, tensors, params) of the score callback; with bprop, followed by (program, tensors, params) of
    bprop. `mask` is a function that traces a FlexAttention mask_mod into the recording of score_mod and returns the
    node of the mask. A trace with a mask is not cached, because the cache key of callbacks does not contain the
    mask_mod. `part` is set if the call computes a part of the scores, while arrays have the indices of the full scores.
    `part` "moved" means that q and k are coordinates of the full scores; `part` "aligned" means in addition that the
    alignment BOTTOM_RIGHT adds k_len - q_len to q."""
    check_arguments(score_mod, bprop, tensors, bprop_tensors)
    asked = None if mask else reuse.graph_lookup(score_mod, bprop, tensors, bprop_tensors, shape, part)
    found = None if asked is None else asked.find()
    if found is not None:
        return found
    rec = Recording((score_mod,), "graph")
    rec.part = part
    score, kept = None, []  # type: Optional[int], List[Node]
    if score_mod is not None:
        score = _run(rec, score_mod, Sym(rec, _abi.INPUT_SCORE, FLOAT), tensors, shape, "score_mod", kept)
    made: Tuple[Any, ...] = (rec.program("score", score, None if mask is None else mask(rec)), rec.arrays(),
                             tuple(rec.params))
    if bprop is not None:
        back = Recording((bprop,), "graph", parent=rec)
        back.part = part
        dscore = _run(back, bprop, Sym(back, _abi.INPUT_DSCORE, FLOAT), bprop_tensors, shape, "score_mod_bprop", kept)
        made += back.program("bprop", dscore, None), back.arrays(), tuple(back.params)
        back.forget()
    rec.forget()
    for node in kept:
        node.forget()
    if asked is not None:
        asked.keep(*made)
    return made
