# SPDX-License-Identifier: Apache-2.0
"""Errors of tracing, with the place in the user's own function: the innermost frame that belongs to no library.

Everything in this folder raises through `refuse`, so that each message ends with a file and a line.
"""
import sys
import types
from typing import Any, Iterable, NoReturn, Optional, Tuple

from .._errors import Error

# Frames of these packages are between the user's line and ours.
LIBRARIES = frozenset("fxattn torch numpy jax jaxlib functools contextlib importlib".split())
EVALUATED = "<eval_with_key"  # the name of files that torch.fx makes


class TraceError(Error, RuntimeError):
    """A Python function cannot be made into a score program. `file` and `line` are those of the user's function."""

    status = "E_PROGRAM"
    file: str = ""


class TraceTypeError(TraceError, TypeError):
    """Arguments that a function of the graph style does not take; or what is no score function by its own."""


class TraceKeyError(TraceError, KeyError):
    """A name that no tensor was given by."""

    __str__ = Exception.__str__  # KeyError's quotes its text


class TraceAttributeError(TraceError, AttributeError):
    """An attribute or method that traced values do not have."""


def is_users(frame: Any) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in LIBRARIES or frame.f_code.co_filename.startswith(EVALUATED)


def place() -> Optional[Tuple[str, int, str]]:
    """File, line and function of the user's code that is running, None when there is none."""
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def at_place_of(cause: BaseException, text: str, kind: type = TraceError) -> TraceError:
    """The exception that says `text` and where in the user's code another one came from."""
    at, where = cause.__traceback__, None
    while at is not None:
        if is_users(at.tb_frame):
            where = at.tb_frame.f_code.co_filename, at.tb_lineno, at.tb_frame.f_code.co_name
        at = at.tb_next
    return _made(text, where, kind)


def error_in(function: Any, text: str, kind: type = TraceError) -> TraceError:
    """The exception that says `text` and where a function begins that gave a wrong result."""
    for _ in range(4):  # partials, modules, objects that are called
        code = getattr(function, "__code__", None)
        if code is not None:
            return _made(text, (code.co_filename, code.co_firstlineno, code.co_name), kind)
        function = next((getattr(function, name) for name in ("func", "forward") if hasattr(function, name)),
                        getattr(type(function), "__call__", None))
    return _made(text, None, kind)


def error(text: str, kind: type = TraceError) -> TraceError:
    """The exception that says `text` and where."""
    return _made(text, place(), kind)


def _made(text: str, where: Optional[Tuple[str, int, str]], kind: type) -> TraceError:
    made = kind(text if where is None else "%s\n  at %s:%d, in %s" % (text, *where))
    if where is not None:
        made.file, made.line = where[0], where[1]
    return made


def refuse(text: str) -> NoReturn:
    raise error(text)


def like(name: str, table: Iterable[str]) -> str:
    """Words for the names of a table that are near a name that is not in it."""
    import difflib  # needed for a message only
    found = difflib.get_close_matches(name, [key for key in table if not key.startswith("_")], 4, 0.7)
    if not found:
        return "; docs/tracing.md lists what is"
    return "; near it are %s (docs/tracing.md has all)" % ", ".join(found)
