# SPDX-License-Identifier: Apache-2.0
"""Loads the C library, calls the functions of the library, converts errors to exceptions, and owns the contexts of this
process.

All modules of the package call C through `lib`: lib.plan_run is fxa_plan_run, with argument types from the generated
module _abi. The C library is loaded at the first call.

Invariants:

- The package passes no Python callback to the C library, so no thread waits for the GIL inside the library.

- A context (the object of the C library that has the threads and the plan cache of runs) belongs to one process. After
  fork() the child creates its own contexts. After a fork, the child neither uses nor releases the contexts of its
  parent, because another thread may have been using a context during the fork. Programs are immutable and stay usable
  in a child process. A child process does not destroy handles that were made before the fork (see Handle).

- Contexts of the C library are never destroyed, because daemon threads may still run functions of the C library when
  the interpreter ends."""
import ctypes
import os
import re
import threading
from typing import Any, Callable, Dict, Optional, Tuple

from . import _abi
from ._errors import ArgumentError, ArgumentTypeError, Error, LibraryError, make_error

ENVIRONMENT = "FXATTN_LIBRARY"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib")
# The SONAME of the C library; the command-line tool links to the same file.
NAME = "libfxattn.so.%d.%d" % (_abi.VERSION_MAJOR, _abi.VERSION_MINOR)

# Functions that are called with the GIL held: these never block, and releasing the GIL costs more than the call.
_QUICK_PREFIXES = ("builder_", "program_param", "program_tensor", "program_hash", "program_get", "program_node",
                   "program_retain", "plan_retain", "plan_engine", "plan_detail", "plan_workspace", "plan_is",
                   "plan_key", "dtype_", "status_", "slot_", "flag_", "fact_", "input_", "device_", "engine_")
_SLOW = ("builder_finish", "builder_import")


def library_path() -> str:
    """Returns the path of the C library: the value of FXATTN_LIBRARY if it is set, else the path of the file in the
    package. Raises LibraryError if the package has no library file."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        return given
    path = os.path.join(FOLDER, NAME)
    if os.path.exists(path):
        return path
    raise LibraryError("the fxattn library is not in %s: install the package, or name the file in %s"
                       % (FOLDER, ENVIRONMENT))


class _Library:
    """The functions of the C library as attributes, which are created at first use: lib.plan_run is fxa_plan_run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: Optional[Tuple[ctypes.CDLL, ctypes.CDLL]] = None

    def _load(self) -> Tuple[ctypes.CDLL, ctypes.CDLL]:
        with self._lock:
            if self._loaded is None:
                path = library_path()
                try:
                    files = ctypes.CDLL(path), ctypes.PyDLL(path)
                except OSError as error:
                    raise LibraryError("cannot load the fxattn library %s: %s" % (path, error)) from None
                _check_version(files[0], path)
                self._loaded = files
            return self._loaded

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or "fxa_" + name not in _abi.FUNCTIONS:
            raise AttributeError("fxattn.h has no function fxa_%s" % name)
        released, held = self._loaded or self._load()
        quick = name.startswith(_QUICK_PREFIXES) and name not in _SLOW
        function = getattr(held if quick else released, "fxa_" + name)
        function.restype, function.argtypes = _abi.FUNCTIONS["fxa_" + name]
        setattr(self, name, function)
        return function


def _check_version(library: ctypes.CDLL, path: str) -> None:
    """Raises LibraryError if the major or minor version of `library` differs from that of the package, because struct
    layouts depend on these versions."""
    try:
        function = library.fxa_version
    except AttributeError:
        raise LibraryError("%s is not a library of fxattn: it has no fxa_version" % path) from None
    function.restype = ctypes.c_char_p
    found = function().decode()
    if found.split(".")[:2] != _abi.VERSION.split(".")[:2]:
        raise LibraryError("%s is version %s; this package is built for %s" % (path, found, _abi.VERSION))


lib: Any = _Library()


# ---- Errors ----------------------------------------------------------------------------------------------------------

def call(function: Callable[..., int], *arguments: Any, source: Optional[bytes] = None, name: str = "program") -> None:
    """Calls a C function that returns a status and takes an fxa_error as its last argument. Raises the exception for
    the status that the C function returns, unless the status is OK. `source`: the program text that `function` parses,
    if it parses one. `name`: what the error message calls the text `source`. The message of the exception shows the
    wrong line of `source` with a caret."""
    error = _abi.Error()
    if function(*arguments, ctypes.byref(error)):
        raise error_of(error, source, name)


# Names of Python options (docs/names.md), by the C library's name of the slot or flag that an option sets.
_KEYWORDS = {"Q_LENGTHS": "q_lengths", "K_LENGTHS": "k_lengths", "CU_Q": "cu_q", "CU_K": "cu_k", "Q_START": "q_start",
             "PAGES": "pages", "SINKS": "sinks", "FXA_CAUSAL": "is_causal", "FXA_WINDOW": "window",
             "FXA_BOTTOM_RIGHT": "bottom_right", "FXA_Q_START": "q_start", "FXA_PAGED": "pages",
             "FXA_SINKS": "sinks", "FXA_SINK_ZERO": "sinks=\"zero\"", "FXA_DROPOUT": "dropout_p",
             "FXA_DETERMINISTIC": "deterministic", "FXA_BOUNDS_CHECK": "bounds_check",
             "FXA_RETURN_LSE": "return_lse", "FXA_RETURN_ROW_MAX": "return_row_max"}
_WORD = re.compile(r"\b(?:%s)\b" % "|".join(_KEYWORDS))


def in_keywords(text: str) -> str:
    """Returns a message of the C library in which the names of inputs and flags (Q_LENGTHS, FXA_CAUSAL) are replaced by
    the names of Python options (q_lengths, is_causal)."""
    return _WORD.sub(lambda m: _KEYWORDS[m[0]], text)


def error_of(error: "_abi.Error", source: Optional[bytes] = None, name: str = "program") -> Error:
    """Returns the exception that corresponds to an fxa_error. `source` is the program text that the C function parsed,
    and `name` is what the message calls this text."""
    text = error.text.decode("utf-8", "replace")
    if source is not None and error.line > 0:
        text = _render(error, source, name)
    else:
        text = in_keywords(text)
    raised = make_error(error.status, text, lib.status_name(error.status).decode()[4:])
    raised.part, raised.line, raised.column, raised.length = error.part, error.line, error.column, error.length
    return raised


def _render(error: "_abi.Error", source: bytes, name: str) -> str:
    arguments = (ctypes.byref(error), name.encode(), source, len(source))
    needed = lib.error_render(*arguments, None, 0)
    out = ctypes.create_string_buffer(needed + 1)
    lib.error_render(*arguments, out, len(out))
    return out.value.decode("utf-8", "replace").rstrip("\n")


def two_calls(function: Callable[..., int], *arguments: Any) -> bytes:
    """Returns the bytes that the C function `function`, with the arguments (..., out, capacity, needed, error), writes
    to the buffer out. Calls `function` twice: first for the number of bytes, then for the bytes."""
    needed = ctypes.c_size_t()
    call(function, *arguments, None, 0, ctypes.byref(needed))
    out = ctypes.create_string_buffer(needed.value + 1)
    call(function, *arguments, out, len(out), ctypes.byref(needed))
    return out.raw[:needed.value]


def address_of(data: bytes) -> Optional[int]:
    """Returns the address of `data`, for a field of a struct. The caller keeps `data` alive as long as the struct is
    used."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value


# ---- Contexts and handles --------------------------------------------------------------------------------------------

class _Process:
    """The state of fxattn in this process. `contexts` maps a number of threads to the address of the context.
    `generation` counts the forks between the process that loaded the package and this process."""

    def __init__(self) -> None:
        self.generation = 0
        self.threads = 0
        self.limit: Optional[Tuple[int, int]] = None
        self.lock = threading.Lock()
        self.contexts: Dict[int, int] = {}

    def after_fork(self) -> None:
        self.generation += 1
        self.lock = threading.Lock()
        self.contexts = {}
        lib._lock = threading.Lock()


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.after_fork)


def context(threads: Optional[int] = None) -> int:
    """Returns the address of this process's context for runs with `threads` threads (0: the default of the C library;
    None: the number that set_num_threads() set). Each number of threads has its own context and plan cache."""
    number = _process.threads if threads is None else threads
    found = _process.contexts.get(number)
    return found if found is not None else _make_context(number)


def _make_context(threads: int) -> int:
    with _process.lock:
        if threads not in _process.contexts:
            config = _abi.ContextConfig(struct_size=ctypes.sizeof(_abi.ContextConfig), threads=threads)
            out = ctypes.c_void_p()
            call(lib.context_create, ctypes.byref(config), ctypes.byref(out))
            if _process.limit is not None:
                lib.cache_limit(out, *_process.limit)
            _process.contexts[threads] = out.value or 0
        return _process.contexts[threads]


def check_threads(threads: Any) -> int:
    """Returns `threads`. Raises ArgumentTypeError if `threads` is not an int, and ArgumentError if `threads` is out of
    range."""
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise ArgumentTypeError("the number of threads is %s, of type %s; an int is accepted"
                                % (threads, type(threads).__name__))
    if not 0 <= threads <= _abi.MAX_THREADS:
        raise ArgumentError("the number of threads is %d; 0 to %d are accepted" % (threads, _abi.MAX_THREADS))
    return threads


def set_num_threads(threads: int) -> None:
    """Sets the maximum number of threads of a run in this process, including the calling thread. `threads` = 0 selects
    the value of FXA_THREADS, or the number of CPUs. Results do not depend on the number of threads. Each number of
    threads has its own plan cache."""
    _process.threads = check_threads(threads)


def get_num_threads() -> int:
    """Returns the maximum number of threads of a run. After set_num_threads(0), returns the number of threads that the
    C library chose."""
    return int(lib.context_threads(context()))


class Handle:
    """Owns one reference to an object of the C library and releases it in __del__. `_destroy` of a subclass is the name
    of the function in `lib` that releases the object."""

    __slots__ = ("_handle", "_generation", "__weakref__")
    _destroy = ""

    def __init__(self, handle: Optional[int]) -> None:
        self._handle = handle
        self._generation = _process.generation
        getattr(lib, self._destroy)  # loads the function now, because __del__ may run when the module is gone

    # Default arguments keep what __del__ uses, because module globals may be gone when the interpreter ends.
    def __del__(self, _process: _Process = _process, _lib: Any = lib, _getattr: Any = getattr) -> None:
        handle = _getattr(self, "_handle", None)
        if handle and self._generation == _process.generation:
            self._handle = None
            _getattr(_lib, self._destroy)(handle)


def cache_stats() -> Dict[str, int]:
    """Returns the counters of the plan caches, summed over all caches of this process: hits, misses, builds, refusals,
    evictions, runs, queries and query_hits since the process began; the number and size of the cached plans (plans,
    bytes); and the bounds max_plans and max_bytes."""
    names = [field[0] for field in _abi.CacheStats._fields_ if field[0] != "reserved"]
    total = dict.fromkeys(names, 0)
    for handle in list(_process.contexts.values()) or [context()]:
        stats = _abi.CacheStats()
        lib.cache_get_stats(handle, ctypes.byref(stats))
        for name in names:
            total[name] += getattr(stats, name)
    return total


def cache_limit(max_plans: int, max_bytes: int) -> None:
    """Bounds each plan cache of this process (one for each number of threads) to `max_plans` plans with a total size of
    `max_bytes`, and evicts plans beyond the two bounds. If max_plans or max_bytes is 0, no plan is cached. Raises
    ArgumentError for a bound outside 0 to 2^64 - 1."""
    for name, value in (("max_plans", max_plans), ("max_bytes", max_bytes)):
        if not 0 <= value < 1 << 64:
            raise ArgumentError("%s is %d; 0 to 2^64 - 1 are accepted" % (name, value))
    with _process.lock:
        _process.limit = max_plans, max_bytes
        for handle in _process.contexts.values():
            lib.cache_limit(handle, max_plans, max_bytes)


def cache_clear() -> None:
    """Removes all plans from the plan caches of this process. A removed plan stays valid for runs and Plan objects that
    still use it."""
    for handle in list(_process.contexts.values()):
        lib.cache_clear(handle)


