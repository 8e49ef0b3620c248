# SPDX-License-Identifier: Apache-2.0
"""Score programs as Python objects. A Program is immutable and compared by content. A Builder makes a Program one
operation at a time; tracers use a Builder. The C library parses program text and loads saved programs."""
import ctypes
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._errors import ArgumentError, ArgumentTypeError
from ._library import Handle, address_of, call, context, error_of, lib, two_calls

KINDS = {"score": _abi.PROGRAM_SCORE, "bprop": _abi.PROGRAM_BPROP, "derivative": _abi.PROGRAM_DERIVATIVE}
KIND_NAMES = {code: name for name, code in KINDS.items()}
# A part of a program: a text of statements, or a pair of a target and an expression, such as ("mask", "q >= k").
Part = Union[str, Tuple[str, str]]
_TEXT_KINDS = {"": _abi.TEXT_STATEMENTS, "score": _abi.TEXT_SCORE, "mask": _abi.TEXT_MASK, "dscore": _abi.TEXT_DSCORE}
TYPES = {"float": _abi.FLOAT, "int": _abi.INT, "bool": _abi.BOOL}
TYPE_NAMES = {code: name for name, code in TYPES.items()}
DTYPES = {"f64": _abi.F64, "f32": _abi.F32, "f16": _abi.F16, "bf16": _abi.BF16, "i64": _abi.I64, "i32": _abi.I32,
          "i16": _abi.I16, "i8": _abi.I8, "u8": _abi.U8, "bool": _abi.B8,
          "e4m3": _abi.E4M3, "e5m2": _abi.E5M2}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
# Storage types by the dtype names of NumPy, torch and JAX.
DTYPE_WORDS = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
               "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
               "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def _with_prefix(prefix: str) -> Dict[str, int]:
    return {name[len(prefix):].lower(): value for name, value in vars(_abi).items()
            if name.startswith(prefix) and not name.endswith("_COUNT")}


OPS = _with_prefix("OP_")
INPUTS = _with_prefix("INPUT_")


class Param(NamedTuple):
    """A scalar argument of a program, whose value is given to each run. `type` is "float" or "int"; `default` is None
    if a run must give a value."""

    name: str
    type: str
    default: Optional[float]


class Capture(NamedTuple):
    """A captured tensor of a program, whose data is given to each run. `dtype` is a storage type, such as "f32"."""

    name: str
    dtype: str
    rank: int


def find(table: Mapping[str, int], what: str, name: Union[str, int]) -> int:
    """Returns the code of `name` in `table`; a `name` that is an int is a code already and is returned. `what` is the
    name of the argument in error messages. Raises ArgumentError if `table` does not have `name`."""
    if isinstance(name, str):
        code = table.get(name)
        if code is None:
            raise ArgumentError("%s is %r; one of %s is accepted" % (what, name, ", ".join(table)))
        return code
    if isinstance(name, bool) or not isinstance(name, int):
        raise ArgumentTypeError("%s is of type %s; a name is accepted" % (what, type(name).__name__))
    return name


class Program(Handle):
    """A score program: computes the new score of each (q, k) pair, and a mask of the pairs that are attended. A Program
    is immutable. Programs with the same canonical text are equal and have the same hash. `text` is program text; the
    empty text leaves scores unchanged."""

    __slots__ = ("_text", "_hash", "_params", "_captures", "_floats")
    _destroy = "program_destroy"

    def __init__(self, text: str = "") -> None:
        """Parses program text `text`; the empty text leaves scores unchanged. Raises ProgramError for wrong text."""
        self._hold(_parse(text, "score", {}, {}))

    @classmethod
    def _own(cls, handle: Optional[int]) -> "Program":
        """Returns a Program that owns the caller's reference to the fxa_program at address `handle`."""
        self = cls.__new__(cls)
        self._hold(handle)
        return self

    def _hold(self, handle: Optional[int]) -> None:
        Handle.__init__(self, handle)
        self._text: Optional[str] = None  # _text and the fields below are computed at first use
        self._hash: Optional[str] = None
        self._params: Optional[Tuple[Param, ...]] = None
        self._captures: Optional[Tuple[Capture, ...]] = None
        self._floats: Optional[bool] = None

    @classmethod
    def from_text(cls, text: Union[str, Sequence[Part]], *, kind: str = "score", params: Mapping[str, str] = {},
                  captures: Mapping[str, Tuple[str, int]] = {}) -> "Program":
        """Returns the program of a text, or of a list of texts that run one after the other. A text of the list may be
        a pair: ("score", expression) sets the score, ("dscore", expression) sets dscore, and ("mask", expression) joins
        the mask with an expression by &&. `params` ({"cap": "float"}) and `captures` ({"bias": ("f32", 4)}: dtype and
        rank) declare params and captured tensors, so the texts need no declarations of them. `kind` is "score", or
        "bprop" for a user-written backward program. Raises ProgramError for wrong text."""
        return cls._own(_parse(text, kind, params, captures))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Program":
        """Returns the program saved in `data` by `Program.bytes`. Raises BytesError for damaged or malicious bytes."""
        data = bytes(data)
        out = ctypes.c_void_p()
        call(lib.program_load, context(), data, len(data), ctypes.byref(out))
        return cls._own(out.value)

    @property
    def text(self) -> str:
        """Returns the canonical text, which parses to an equal program."""
        if self._text is None:
            self._text = two_calls(lib.program_print, self._handle).decode()
        return self._text

    @property
    def bytes(self) -> bytes:
        """Returns the program as bytes, which from_bytes() reads in any process."""
        return two_calls(lib.program_save, self._handle)

    @property
    def hash(self) -> str:
        """Returns the 128-bit hash of the program in hexadecimal. Equal programs have equal hashes on every machine."""
        if self._hash is None:
            out = ctypes.create_string_buffer(16)
            lib.program_hash(self._handle, out)
            self._hash = out.raw.hex()
        return self._hash

    @property
    def kind(self) -> str:
        """Returns "score", "bprop" or "derivative"."""
        return KIND_NAMES[lib.program_get_kind(self._handle)]

    @property
    def nodes(self) -> int:
        """Returns the number of distinct operations, constants, inputs, params and loads of the program."""
        return int(lib.program_node_count(self._handle))

    @property
    def params(self) -> Tuple[Param, ...]:
        """Returns the params (scalars), in the order in which a run takes their values (bytewise order of names)."""
        if self._params is None:
            self._params = tuple(map(self._param, range(lib.program_param_count(self._handle))))
        return self._params

    @property
    def takes_floats(self) -> bool:
        """Returns True if all params are floats."""
        if self._floats is None:
            self._floats = all(param.type == "float" for param in self.params)
        return self._floats

    def _param(self, index: int) -> Param:
        info, value = lib.program_param(self._handle, index), ctypes.c_double()
        has = lib.program_param_default(self._handle, index, ctypes.byref(value))
        return Param(ctypes.string_at(info.name).decode(), TYPE_NAMES[info.type], value.value if has else None)

    @property
    def captures(self) -> Tuple[Capture, ...]:
        """Returns the captured tensors, in the order in which a run takes their data (bytewise order of names)."""
        if self._captures is None:
            self._captures = tuple(map(self._capture, range(lib.program_tensor_count(self._handle))))
        return self._captures

    def _capture(self, index: int) -> Capture:
        info = lib.program_tensor(self._handle, index)
        return Capture(ctypes.string_at(info.name).decode(), DTYPE_NAMES[info.dtype], info.rank)

    def derivative(self) -> "Program":
        """Returns the derivative program that the backward pass runs. The derivative program computes the derivatives
        of the new score with respect to the score, each float param and each float tensor."""
        out = ctypes.c_void_p()
        call(lib.program_derivative, self._handle, ctypes.byref(out))
        return Program._own(out.value)

    def properties(self) -> Dict[str, Any]:
        """Returns a dictionary of the properties that the C library derives from the program. "names" has the names of
        properties, such as "causal" and "pure mask". "score_depends" and "mask_depends" are the inputs that score and
        mask depend on. "softcap" is the cap, or None if the program has no soft cap. "window" is the (left, right)
        window of the mask, with None for an open side."""
        if self.kind != "score":
            raise ArgumentError("properties are those of a score program; this is of kind %s" % self.kind)
        out = _abi.Properties()
        lib.program_properties(self._handle, ctypes.byref(out))
        bits = [1 << i for i in range(_abi.PROPERTY_COUNT) if out.flags >> i & 1]
        open_end = (1 << 31) - 1
        return {
            "names": [lib.property_name(bit).decode() for bit in bits],
            "score_depends": [name for name, i in INPUTS.items() if out.score_depends >> i & 1],
            "mask_depends": [name for name, i in INPUTS.items() if out.mask_depends >> i & 1],
            "softcap": out.softcap or None,
            "window": tuple(None if w == open_end else w for w in (out.window_left, out.window_right)),
        }

    def dump(self, what: str = "classes") -> str:
        """Returns a text about the program for debugging. `what` selects the text, as a section of `fxattn explain`:
        "classes" (how often values change), "conjuncts" (the conditions of the mask) or "fused" (score and derivative
        as one program)."""
        return two_calls(lib.program_dump, self._handle, find(_with_prefix("DUMP_"), "what", what)).decode()

    def __eq__(self, other: object) -> bool:
        return self.hash == other.hash if isinstance(other, Program) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.hash)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Program.from_bytes, (self.bytes,)

    def __copy__(self) -> "Program":
        return self

    def __deepcopy__(self, memo: Any) -> "Program":
        return self

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return "Program.from_bytes(...)" if self.kind == "derivative" else "Program.from_text(%r%s)" % (
            self.text, "" if self.kind == "score" else ", kind=%r" % self.kind)


def _parse(text: Union[str, Sequence[Part]], kind: str, params: Mapping[str, str],
           captures: Mapping[str, Tuple[str, int]]) -> Optional[int]:
    """Returns a new reference to the program that from_text() makes of `text`, `params`, `captures` and `kind`."""
    parts: List[Any] = [text] if isinstance(text, str) else list(text) if isinstance(text, (list, tuple)) else [None]
    pairs = [part if isinstance(part, tuple) and len(part) == 2 else ("", part) for part in parts]
    if not all(isinstance(part, str) for _, part in pairs):
        raise ArgumentTypeError("a program is given as %s; text (str), or a list of texts, is accepted"
                                % type(text).__name__)
    sources = [part.encode("utf-8", "surrogatepass") for _, part in pairs]
    text_kinds = (ctypes.c_uint32 * len(pairs))(*(find(_TEXT_KINDS, "what an expression is for", name)
                                                  for name, _ in pairs))
    texts = (_abi.Text * len(sources))()
    for entry, source in zip(texts, sources):
        entry.data, entry.size = address_of(source), len(source)
    names = [name.encode() for name in (*params, *captures)]  # the names must stay alive until the call is over
    declarations = (_abi.Declaration * len(names))()
    for entry, name in zip(declarations, names):
        entry.name = address_of(name)
    for entry, type_name in zip(declarations, params.values()):
        entry.type = find(TYPES, "the type of a param", type_name)
    for entry, (dtype, rank) in zip(declarations[len(params):], captures.values()):
        entry.dtype, entry.rank = find(DTYPES, "the dtype of a captured tensor", dtype), rank
    config = _abi.ParseConfig(
        struct_size=ctypes.sizeof(_abi.ParseConfig), kind=find(KINDS, "kind", kind), n_texts=len(texts),
        texts=ctypes.cast(texts, ctypes.c_void_p), n_declarations=len(names),
        declarations=ctypes.cast(declarations, ctypes.c_void_p), text_kinds=ctypes.cast(text_kinds, ctypes.c_void_p))
    out, error = ctypes.c_void_p(), _abi.Error()
    if lib.program_parse_texts(context(), ctypes.byref(config), ctypes.byref(out), ctypes.byref(error)):
        part = error.part if 0 <= error.part < len(sources) else 0
        raise error_of(error, sources[part] if sources else None)
    return out.value


class Builder(Handle):
    """Makes a program one operation at a time. Methods of a Builder return values: ints that are valid as operands of
    this builder only. Operations convert operand types as the program language does, and raise an error at once for
    wrong operands. Only one thread at a time may use a builder. A builder cannot be used after finish(). `kind` is
    "score" for a score program, or "bprop" for a backward program."""

    __slots__ = ()
    _destroy = "builder_destroy"

    def __init__(self, kind: str = "score") -> None:
        out = ctypes.c_void_p()
        call(lib.builder_create, context(), find(KINDS, "kind", kind), ctypes.byref(out))
        Handle.__init__(self, out.value)

    def _checked(self, value: int) -> int:
        if value < 0:
            self.check()
        return value

    def check(self) -> None:
        """Raises the exception of the first error of this builder, if there was one."""
        error = _abi.Error()
        if lib.builder_error(self._handle, ctypes.byref(error)):
            raise error_of(error)

    def const(self, value: Union[bool, int, float]) -> int:
        """Returns a constant. The Python type of `value` decides the type of the constant: bool,
        32-bit int or float."""
        if isinstance(value, bool):
            return self._checked(lib.builder_bool(self._handle, value))
        if isinstance(value, float):
            return self._checked(lib.builder_float(self._handle, value))
        if not isinstance(value, int):
            raise ArgumentTypeError("a constant is of type %s; bool, int and float are accepted" % type(value).__name__)
        if not -(1 << 31) <= value < 1 << 31:
            raise ArgumentError("an int constant is %d; ints of programs have 32 bits" % value)
        return self._checked(lib.builder_int(self._handle, value))

    def input(self, name: Union[str, int]) -> int:
        """Returns the input `name`: score, b, h, q, k, q_row, k_row, q_len, k_len or heads; in a backward program also
        dscore."""
        return self._checked(lib.builder_input(self._handle, find(INPUTS, "the input", name)))

    def param(self, name: str, kind: Union[str, int] = "float", default: Optional[float] = None) -> int:
        """Declares a param (a scalar argument) with `name`, type `kind` ("float" or "int") and an optional `default`.
        Returns the value of the param; a second call with an equal name returns the value of the first call."""
        value = self._checked(lib.builder_param(self._handle, name.encode(), find(TYPES, "the type of a param", kind)))
        if default is not None:
            lib.builder_set_default(self._handle, name.encode(), default)
            self.check()
        return value

    def tensor(self, name: str, dtype: Union[str, int], rank: int) -> int:
        """Declares a captured tensor with `name`, `dtype` ("f32") and `rank`. Returns the handle of the tensor, which
        load() takes."""
        code = find(DTYPES, "the dtype of a captured tensor", dtype)
        return self._checked(lib.builder_tensor(self._handle, name.encode(), code, rank))

    def load(self, tensor: int, *index: int) -> int:
        """Returns an element of captured tensor `tensor`. `index` has one int value for each dimension of the tensor.
        Negative indices count from the end; out-of-bounds indices load 0."""
        return self._checked(lib.builder_load(self._handle, tensor, (ctypes.c_int32 * len(index))(*index), len(index)))

    def op(self, op: Union[str, int], *values: int) -> int:
        """Returns the result of operation `op` on `values`. `op` is a name ("add", "tanh", "select") or a code
        (_abi.OP_ADD) of an operation."""
        code = find(OPS, "the operation", op)
        if len(values) == 2:
            return self._checked(lib.builder_op2(self._handle, code, *values))
        if len(values) == 1:
            return self._checked(lib.builder_op1(self._handle, code, *values))
        return self._checked(lib.builder_op(self._handle, code, (ctypes.c_int32 * len(values))(*values), len(values)))

    def type_of(self, value: int) -> str:
        """Returns the type of `value`: "float", "int" or "bool". Raises ArgumentError if `value` is no value of this
        builder."""
        code = lib.builder_type(self._handle, value)
        if code not in TYPE_NAMES:
            raise ArgumentError("%d is no value of this builder" % value)
        return TYPE_NAMES[code]

    def include(self, program: Program, score: int) -> Tuple[int, int]:
        """Adds all operations of the score program `program`, with the value `score` as the input score of that
        program. Returns two values: the new score and the mask that `program` computes."""
        out = (ctypes.c_int32 * 2)()
        at = ctypes.addressof(out)
        lib.builder_import(self._handle, program._handle, score, at, at + 4)
        self.check()
        return out[0], out[1]

    def set_score(self, value: int) -> None:
        """Makes `value` the new score that the program computes."""
        lib.builder_set_score(self._handle, value)
        self.check()

    def set_mask(self, value: int) -> None:
        """Makes `value` the mask of the program: a bool that is true for pairs that are attended."""
        lib.builder_set_mask(self._handle, value)
        self.check()

    def set_dscore(self, value: int) -> None:
        """Makes `value` the gradient of the score that a backward program computes."""
        lib.builder_set_dscore(self._handle, value)
        self.check()

    def finish(self) -> Program:
        """Returns the Program. Raises the exception of the first error of this builder, if there was one."""
        out = ctypes.c_void_p()
        call(lib.builder_finish, self._handle, ctypes.byref(out))
        return Program._own(out.value)


ProgramLike = Union[Program, str, None]


def as_program(program: ProgramLike, kind: str = "score") -> Optional[Program]:
    """Returns the Program of `program`, which is a Program or program text of kind `kind`; returns None for None."""
    if program is None or isinstance(program, Program):
        return program
    if isinstance(program, str):
        return Program.from_text(program, kind=kind)
    raise ArgumentTypeError("a program is given as %s; a Program or its text is accepted" % type(program).__name__)


