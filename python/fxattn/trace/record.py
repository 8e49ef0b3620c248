# SPDX-License-Identifier: Apache-2.0
"""Records a trace as a flat list of instructions, with the tensors and numbers that the instructions read, and makes a
program of the list.

The list of instructions is the key of the program cache, so tracing a function again makes no call into C. Tensors and
params are named by position (t00, p00), so programs that differ only in the user's names share plans. Keys of the
program cache contain no addresses; `id` identifies only objects that the running trace holds.

The values of a trace are numbered: first the inputs (codes of fxa_input), then the instructions in order. An
instruction of a trace is one of these tuples:

- `(op, value, ...)` is an operation of fxa_op.

- `(LOAD, tensor, value, ...)` is an element of a captured tensor.

- `(CONST, type, value)` is a constant; -0.0, 0.0 and nan are strings, since -0.0 == 0.0 and nan != nan.

- `(PARAM, number)` is a number given at run time.
"""
import math
import threading
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from .. import _abi
from .._program import Builder, Program
from .libraries import storage_of
from .literals import literals_of
from .place import error_in, refuse
from .types import FLOAT, HIGHEST, INT, LOWEST, PROGRAM_TYPE, wrapped

CONST, INPUT, PARAM, LOAD = 1, 2, 3, 4
FIRST = _abi.INPUT_COUNT  # number of the first value that is not an input
MAX_TENSORS, MAX_PARAMS, MAX_RANK, MAX_NODES = 64, 64, 5, 16384
MAX_LIFTED = 48  # max params made of a function's floats; the other params are for numbers that must be params

Instruction = Tuple[Any, ...]


class Recording:
    """A Recording is one trace: the operations of one or two functions, recorded for one program."""

    __slots__ = ("code", "tensors", "storage", "kinds", "params", "param_types", "mods", "literals", "lib", "device",
                 "dtype", "sizes", "sized", "parent", "part", "_places", "_numbers", "_copies")

    def __init__(self, mods: Tuple[Any, ...] = (), lib: str = "torch", device: Any = None, dtype: Any = None,
                 parent: Optional["Recording"] = None) -> None:
        self.code: List[Instruction] = []
        self.tensors: List[Any] = []  # captured arrays of any library
        self.storage: List[Tuple[int, int]] = []  # (code of fxa_dtype, rank) of each tensor
        self.kinds: List[int] = []  # type of the elements of each tensor
        self.params: List[Any] = []  # numbers, also symbolic ones
        self.param_types: List[int] = []
        self.mods = mods  # the functions that are traced
        self.literals: Optional[FrozenSet[int]] = None  # ids of the mods' float literals; None: not computed yet
        self.lib = lib
        self.device = device
        self.dtype = dtype
        self.sizes: Optional[Sequence[Optional[int]]] = None  # [batch, heads, rows, keys], None where unknown
        self.sized = False  # True if the code depends on sizes of captured tensors
        self.parent = parent  # recording of the forward function, whose values a backward function may use
        self.part: Optional[str] = None  # style "graph": see trace_graph; None: the call computes all scores
        self._places: Dict[int, int] = {}
        self._numbers: Dict[int, int] = {}
        self._copies: Dict[int, int] = {}

    def emit(self, *instruction: Any) -> int:
        self.code.append(instruction)
        return len(self.code) + (FIRST - 1)

    def boolean(self, value: bool) -> int:
        return self.emit(CONST, 3, bool(value))

    def integer(self, value: int, kind: int = INT) -> int:
        """Returns the node of a constant int. An int too large for a narrow type is wrapped (torch) or refused (NumPy).
        """
        value = int(value)
        if not LOWEST[kind] <= value <= HIGHEST[kind]:
            if kind == INT:
                refuse("the int %d does not fit: ints of score functions have 32 bits; use a float, or take a "
                       "difference first" % value)
            if self.lib == "numpy":
                refuse("Python integer %d out of bounds for %s" % (value, {1: "uint8", 2: "int8", 3: "int16"}[kind]))
            value = wrapped(value, kind)
        return self.emit(CONST, 2, value)

    def constant(self, value: float) -> int:
        """Returns the node of a float that is a constant of the program."""
        value = float(value)
        if value == 0.0:
            return self.emit(CONST, 1, "-0.0" if math.copysign(1.0, value) < 0.0 else "0.0")
        return self.emit(CONST, 1, value if value == value else "nan")

    def number(self, value: float) -> int:
        """Returns the node of a float that the function computes with. A float literal of the function's source is a
        constant. A finite float that is no literal of the source (from a closure, global, attribute or default) becomes
        a param, so that a changed value needs no new program. Once the program has MAX_LIFTED params, further floats
        are constants."""
        if value - value != 0.0 or self.is_literal(value) or len(self.params) >= MAX_LIFTED:
            return self.constant(value)
        return self.param(value, FLOAT)

    def is_literal(self, value: float) -> bool:
        """Returns True if a float is a literal in the source of the traced function."""
        if self.literals is None:
            self.literals = literals_of(*self.mods)
        return id(value) in self.literals

    def whole(self, value: int) -> int:
        """Returns the node of a Python int in an operation whose other operand is a float; an int beyond 32 bits
        becomes a float constant."""
        return self.emit(CONST, 2, value) if LOWEST[INT] <= value <= HIGHEST[INT] else self.constant(float(value))

    def param(self, value: Any, kind: int) -> int:
        """Returns the node of a param, a number that is passed at run time. Two calls with the same number object
        return the same param."""
        at = self._numbers.get(id(value))
        if at is None:
            if len(self.params) >= MAX_PARAMS:
                refuse("more than %d numbers are given at run time; put them into a tensor" % MAX_PARAMS)
            at = self._numbers[id(value)] = self.emit(PARAM, len(self.params))
            self.params.append(value)
            self.param_types.append(kind)
        return at

    def capture(self, array: Any) -> int:
        """Returns the index of a captured array among the tensors of the program."""
        at = self._places.get(id(array))
        if at is None:
            kept, code, kind, rank = storage_of(array)
            if rank > MAX_RANK:
                refuse("a captured tensor has %d dimensions, shape %s; at most %d can be indexed: take a view of fewer "
                       "first" % (rank, tuple(array.shape), MAX_RANK))
            if len(self.tensors) >= MAX_TENSORS:
                refuse("more than %d tensors are captured; stack them and index the stack" % MAX_TENSORS)
            at = self._places[id(array)] = len(self.tensors)
            self.tensors.append(array)
            self.storage.append((code, rank))
            self.kinds.append(kind)
            if kept is not array:
                self._places[id(kept)] = at
                self.tensors[at] = _Converted(array, kept)
        return at

    def save(self) -> Tuple[int, int, int]:
        """Returns the present state of the recording, for restore()."""
        return len(self.code), len(self.tensors), len(self.params)

    def restore(self, state: Tuple[int, int, int]) -> None:
        """Drops all instructions that were recorded after the save() that returned `state`."""
        code, tensors, params = state
        del self.code[code:], self.params[params:], self.param_types[params:]
        del self.tensors[tensors:], self.storage[tensors:], self.kinds[tensors:]
        self._places = {key: at for key, at in self._places.items() if at < tensors}
        self._numbers = {key: at for key, at in self._numbers.items() if at < code + FIRST}

    def copy_of(self, at: int) -> int:
        """Returns the node, in this recording, of a value of the parent recording. The instructions of the parent
        recording that compute a value are copied into this recording once."""
        assert self.parent is not None
        code, open_ = self.parent.code, [at]
        needed: Set[int] = set()
        while open_:  # no recursion: a program may be thousands of operations deep
            one = open_.pop()
            if one >= FIRST and one not in self._copies and one not in needed:
                needed.add(one)
                op, *rest = code[one - FIRST]
                open_ += [] if op in (CONST, PARAM) else rest[1:] if op == LOAD else rest
        for one in sorted(needed):
            self._copies[one] = self._copied(code[one - FIRST])
        return self._copies.get(at, at)

    def _copied(self, instruction: Instruction) -> int:
        """Copies an instruction of the parent recording, whose operands are copied already, into this recording.
        Returns the node of the copied instruction."""
        parent, (op, *rest) = self.parent, instruction
        assert parent is not None
        if op == CONST:
            return self.emit(op, *rest)
        if op == PARAM:
            return self.param(parent.params[rest[0]], parent.param_types[rest[0]])
        copies = [self._copies.get(one, one) for one in (rest[1:] if op == LOAD else rest)]
        if op == LOAD:
            held = parent.tensors[rest[0]]
            return self.emit(op, self.capture(held.original if type(held) is _Converted else held), *copies)
        return self.emit(op, *copies)

    def arrays(self) -> Tuple[Any, ...]:
        """Returns the captured arrays, in the order of the program's captures."""
        return tuple([t.kept if type(t) is _Converted else _original(t) for t in self.tensors])

    def forget(self) -> None:
        """Drops the captured arrays and numbers, because values that a callback stored may outlive the trace and hold a
        reference to this recording."""
        for held in (self.tensors, self.params, self._places, self._numbers):  # type: Any
            held.clear()

    def key(self, kind: str, score: Optional[int], mask: Optional[int]) -> Tuple[Any, ...]:
        return (kind, score, mask, tuple(self.storage), tuple(self.param_types), tuple(self.code))

    def program(self, kind: str, score: Optional[int], mask: Optional[int]) -> Program:
        """Returns the program of the recording, from the cache or newly built. `score` is the node of the new score, or
        in a backward program of the new dscore; `mask` is the node of the mask."""
        key = self.key(kind, score, mask)
        found = PROGRAMS.find(key)
        if found is None:
            if len(self.code) > 4 * MAX_NODES:
                raise error_in(next((mod for mod in self.mods if mod is not None), None),
                               "the function is %d operations long; a program has at most %d"
                               % (len(self.code), MAX_NODES))
            found = PROGRAMS.keep(key, _build(key))
        return found


def _original(array: Any) -> Any:
    """Returns the user's array if `array` is a wrapper (capture.py) with an original, else `array` itself."""
    found = getattr(array, "original", None) if type(array).__name__ == "Captured" else None
    return array if found is None else found


class _Converted:
    """A captured array (`original`), and a copy of the array in another storage type (`kept`), because fxattn lacks the
    storage type of the original. The reference to the original array keeps the id() of the original valid."""

    __slots__ = ("original", "kept")

    def __init__(self, original: Any, kept: Any) -> None:
        self.original, self.kept = original, kept


def _build(key: Tuple[Any, ...]) -> Program:
    """Returns the program for the key of a recording; calls a Builder once for each instruction."""
    kind, score, mask, storage, param_types, code = key
    builder = Builder(kind)
    tensors = [builder.tensor("t%02d" % n, dtype, rank) for n, (dtype, rank) in enumerate(storage)]
    params = [builder.param("p%02d" % n, PROGRAM_TYPE[of]) for n, of in enumerate(param_types)]
    values: Dict[int, int] = {}

    def value(at: int) -> int:
        if at not in values:  # an input is declared at its first use
            values[at] = builder.input(at)
        return values[at]

    for at, (op, *rest) in enumerate(code, FIRST):
        if op == CONST:
            values[at] = builder.const(float(rest[1]) if rest[0] == 1 else rest[1])
        elif op == PARAM:
            values[at] = params[rest[0]]
        elif op == LOAD:
            values[at] = builder.load(tensors[rest[0]], *map(value, rest[1:]))
        else:
            values[at] = builder.op(op, *map(value, rest))
    if score is not None:
        (builder.set_score if kind == "score" else builder.set_dscore)(value(score))
    if mask is not None:
        builder.set_mask(value(mask))
    return builder.finish()


class Programs:
    """Bounded cache of programs by content, in two dictionaries of limit / 2 entries each: the young and the old
    generation. When the young generation of the cache is full, it becomes the old generation, and the previous old
    generation is dropped. A program in the young generation of the cache is found by one dictionary access."""

    def __init__(self, limit: int = 1024) -> None:
        self.limit = limit
        self.builds = 0
        self._lock = threading.Lock()
        self._young: Dict[Any, Program] = {}
        self._old: Dict[Any, Program] = {}

    def find(self, key: Any) -> Optional[Program]:
        found = self._young.get(key)
        if found is None:
            with self._lock:
                found = self._old.pop(key, None)
                if found is not None:
                    self._insert(key, found)
        return found

    def keep(self, key: Any, program: Program) -> Program:
        with self._lock:
            self.builds += 1
            self._insert(key, program)
        return program

    def _insert(self, key: Any, program: Program) -> None:
        if len(self._young) >= self.limit // 2:
            self._old, self._young = self._young, {}
        self._young[key] = program

    def clear(self) -> None:
        with self._lock:
            self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


PROGRAMS = Programs()
