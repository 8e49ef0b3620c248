# SPDX-License-Identifier: Apache-2.0
"""Program text and callbacks (graph, score, tensors) under torch.compile.

While Dynamo compiles, it runs record() in place of the tracer. Program text becomes a constant of the compiled graph.
Callbacks are called with a RecordedGraph, which records the operations that they call. Dynamo guards everything that a
callback reads (attributes of its object, closures, globals), so that a changed value causes a recompilation. The
recording of a callback is plain data, which is part of the compiled graph; tensors and numbers, which may change from
call to call, are operands. When the operator Flex runs (compiled.py), replay() makes a ScoreArguments (the score and
mask arguments of a call) from the recording of the callback and from the operands of the recording (tensors and
numbers). The ScoreArguments that replay() makes has callbacks that repeat the recorded operations, and the tracer
traces these callbacks like any other callbacks.

"""
import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ..._program import Program
from ...trace.graph import METHODS
from ..score_arguments import ScoreArguments

_SCORE, _DSCORE = "score", "dscore"
_WORDS = (str, bool, type(None))
_NUMBERS = (int, float)


def _program_text(program: Program) -> str:
    return program.text


# Makes Dynamo call the function while it compiles: the result is constant, because a Program never changes.
_program_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _Script:
    """A _Script has the recorded operations of callbacks, in order, and the operands that the operations use."""

    def __init__(self) -> None:
        self.steps: List[Tuple[Any, ...]] = []
        self.operands: List[Any] = []

    def operand(self, value: Any) -> int:
        self.operands.append(value)
        return len(self.operands) - 1

    def word(self, value: Any) -> Tuple[str, Any]:
        """Returns (kind, plain data) for `value`: ("node", index) for a node, ("operand", index among the operands) for
        a tensor or number, ("word", name) for an enum, and ("word", value) for a string."""
        if isinstance(value, RecordedNode):
            return "node", value.place
        if isinstance(value, _WORDS):
            return "word", value
        if isinstance(value, _NUMBERS) or hasattr(value, "dtype") or not hasattr(value, "name"):
            return "operand", self.operand(value)
        return "word", value.name  # a cuDNN enum

    def step(self, method: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> "RecordedNode":
        named = tuple([(name, self.word(value)) for name, value in keywords.items()])
        self.steps.append((method, tuple([self.word(value) for value in args]), named))
        return RecordedNode(self, len(self.steps) - 1, {"name": keywords.get("name", "")})


class RecordedNode:
    """A tensor of the recorded graph. The set_... methods return the node, so that calls can be chained."""

    def __init__(self, script: _Script, place: Any, known: Dict[str, Any]) -> None:
        self.script, self.place, self.known = script, place, known

    def set_data_type(self, data_type: Any) -> "RecordedNode":
        self.known["data_type"] = data_type
        self.place = self.script.step("set_data_type", (self, data_type), {}).place
        return self

    def _set(self, name: str, *values: Any) -> "RecordedNode":
        self.known[name] = values[0] if len(values) == 1 else values
        return self

    def _get(self, name: str) -> Any:
        return self.known.get(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return functools.partial(self._set, name[4:])
        if name.startswith("get_"):
            return functools.partial(self._get, name[4:])
        raise AttributeError("a graph tensor has no attribute '%s'" % name)


class RecordedGraph:
    """The graph that a callback gets while it is recorded. RecordedGraph has the same methods as the class Graph
    (trace/graph.py), which callbacks get from the tracer."""

    def __init__(self, script: _Script) -> None:
        self._script = script


def _method(name: str) -> Callable[..., RecordedNode]:
    def method(self: RecordedGraph, *args: Any, **keywords: Any) -> RecordedNode:
        return self._script.step(name, args, keywords)

    return method


for _name in METHODS:
    setattr(RecordedGraph, _name, _method(_name))


def _nodes(script: _Script, tensors: Optional[Mapping[str, Any]]) -> Dict[str, RecordedNode]:
    """Returns a node for each tensor of a callback. The tensors that a callback gets become operands of `script`, which
    records the operations of the callback."""
    found = {}
    for name, value in (tensors or {}).items():
        known = {}
        if not isinstance(value, _NUMBERS) and hasattr(value, "shape"):
            value = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")  # a NumPy array
            known = {"dim": list(value.shape), "data_type": value.dtype}
        found[name] = RecordedNode(script, ("tensor", name, script.operand(value)), known)
    return found


def _recorded_graph(given: ScoreArguments) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    script, ends = _Script(), []  # type: Any, List[Any]
    for callback, start, tensors in ((given.score_mod, _SCORE, given.tensors),
                                     (given.bprop, _DSCORE, given.bprop_tensors)):
        if callback is None:
            ends.append(None)
            continue
        nodes = _nodes(script, tensors)
        score: Any = RecordedNode(script, start, {"name": start})
        result = callback(RecordedGraph(script), score, nodes)  # type: ignore[operator]
        ends.append((len(script.steps), script.word(result), tuple([node.place for node in nodes.values()])))
    return ("graph", given.mask_mod is not None, tuple(script.steps), *ends), tuple(script.operands)


def _text_of(source: Any) -> Optional[str]:
    return _program_text(source) if isinstance(source, Program) else source


def _recorded_text(given: ScoreArguments) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    names, operands = [], []  # type: List[Any], List[Any]
    for named in (given.params, given.tensors, given.bprop_tensors, given.bprop_params):
        names.append(tuple((named or {}).keys()))
        operands += (named or {}).values()
    texts = _text_of(given.score_mod), _text_of(given.mask_mod), _text_of(given.bprop)
    return ("text", *texts, *names), tuple(operands)


def record(given: ScoreArguments) -> Tuple[Tuple[Any, ...], Tuple[Any, ...], Any]:
    """Returns (data, operands, mask_mod): the recording as plain data, its tensors and numbers, and a mask_mod that
    Dynamo must capture in addition, or None."""
    if given.is_graph:
        return (*_recorded_graph(given), given.mask_mod)
    return (*_recorded_text(given), None)


# ---- Replay, when the operator runs ----------------------------------------------------------------------------------

def replay(source: Tuple[Any, ...], operands: Sequence[Any], mask_mod: Any) -> ScoreArguments:
    """Returns the score and mask arguments of a call (a ScoreArguments) from their recording `source`, and from
    `operands`, the tensors and numbers of this call."""
    if source[0] == "text":
        score_mod, mask, bprop, *names = source[1:]
        rest = iter(operands)
        params, tensors, bprop_tensors, bprop_params = ({name: next(rest) for name in part} for part in names)
        return ScoreArguments(score_mod, mask, params, tensors, "flex", bprop, bprop_tensors, bprop_params)
    _, masked, steps, forward, backward = source
    table: Dict[Any, Any] = {}
    cut = forward[0] if forward else 0
    first, second = (_Replay(steps[:cut], 0, forward, operands, table),
                     _Replay(steps[cut:], cut, backward, operands, table))
    return ScoreArguments(first.callback(_SCORE), mask_mod if masked else None, None, first.tensors(), "graph",
                 second.callback(_DSCORE), second.tensors() if backward else None)


class _Replay:
    """Repeats the recorded operations of the forward or of the backward callback. Both callbacks share one table of
    nodes, because the backward may use nodes of the forward."""

    def __init__(self, steps: Sequence[Tuple[Any, ...]], begin: int, end: Optional[Tuple[Any, ...]],
                 operands: Sequence[Any], table: Dict[Any, Any]) -> None:
        self.steps, self.begin, self.end, self.operands, self.table = steps, begin, end, operands, table

    def tensors(self) -> Dict[str, Any]:
        return {name: self.operands[at] for _, name, at in self.end[2]} if self.end else {}

    def value(self, word: Tuple[str, Any]) -> Any:
        kind, what = word
        return self.table[what] if kind == "node" else self.operands[what] if kind == "operand" else what

    def run(self, graph: Any, start: Any, name: str, tensors: Mapping[str, Any]) -> Any:
        assert self.end is not None
        self.table[name] = start
        for place in self.end[2]:
            self.table[place] = tensors[place[1]]
        for i, (method, args, keywords) in enumerate(self.steps, self.begin):
            values = [self.value(word) for word in args]
            if method == "set_data_type":
                self.table[i] = values[0].set_data_type(values[1])
            else:
                self.table[i] = getattr(graph, method)(*values, **{key: self.value(word) for key, word in keywords})
        return self.value(self.end[1])

    def callback(self, name: str) -> Optional[Callable[..., Any]]:
        if self.end is None:
            return None

        def replayed(graph: Any, start: Any, tensors: Any) -> Any:
            return self.run(graph, start, name, tensors)

        replayed.recorded = self  # type: ignore[attr-defined]  # prevents reuse of its trace for another callback
        return replayed
