# SPDX-License-Identifier: Apache-2.0
"""Creates errors of tracing whose messages name a line of the user's function: the line that runs in the innermost
frame that belongs to no library.

All files of the tracer raise errors by the function `refuse`, so that each message ends with a file and a line.
"""
import sys
import types
from typing import Any, Iterable, NoReturn, Optional, Tuple

from .._errors import Error

# Packages whose frames may lie between the user's line and the tracer's.
LIBRARIES = frozenset("fxattn torch numpy jax jaxlib functools contextlib importlib".split())
EVALUATED = "<eval_with_key"  # prefix of the file names of code that torch.fx generates


class TraceError(Error, RuntimeError):
    """A Python function cannot be traced into a score program. `file` and `line` name a line of the user's function."""

    status = "E_PROGRAM"
    file: str = ""


class TraceTypeError(TraceError, TypeError):
    """An argument has a type that is not accepted, or a score function is not a function of the required arguments."""


class TraceKeyError(TraceError, KeyError):
    """A callback read a name that is not in the dictionary of tensors."""

    __str__ = Exception.__str__  # KeyError's __str__ would quote the text


class TraceAttributeError(TraceError, AttributeError):
    """A function read an attribute or method that traced values do not have."""


def is_users(frame: Any) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in LIBRARIES or frame.f_code.co_filename.startswith(EVALUATED)


def place() -> Optional[Tuple[str, int, str]]:
    """Returns (file, line, function) of the innermost user frame that is running; None if there is none."""
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def at_place_of(cause: BaseException, text: str, kind: type = TraceError) -> TraceError:
    """Returns an exception with `text` and the line of the user's code that raised `cause`."""
    at, where = cause.__traceback__, None
    while at is not None:
        if is_users(at.tb_frame):
            where = at.tb_frame.f_code.co_filename, at.tb_lineno, at.tb_frame.f_code.co_name
        at = at.tb_next
    return _made(text, where, kind)


def error_in(function: Any, text: str, kind: type = TraceError) -> TraceError:
    """Returns an exception with `text` and the position of the first line of `function`, which returned a wrong
    result."""
    for _ in range(4):  # looks inside partials, modules and callable objects
        code = getattr(function, "__code__", None)
        if code is not None:
            return _made(text, (code.co_filename, code.co_firstlineno, code.co_name), kind)
        function = next((getattr(function, name) for name in ("func", "forward") if hasattr(function, name)),
                        getattr(type(function), "__call__", None))
    return _made(text, None, kind)


def error(text: str, kind: type = TraceError) -> TraceError:
    """Returns an exception with `text` and the line of the user's code that is running."""
    return _made(text, place(), kind)


def _made(text: str, where: Optional[Tuple[str, int, str]], kind: type) -> TraceError:
    made = kind(text if where is None else "%s\n  at %s:%d, in %s" % (text, *where))
    if where is not None:
        made.file, made.line = where[0], where[1]
    return made


def refuse(text: str) -> NoReturn:
    raise error(text)


def like(name: str, table: Iterable[str]) -> str:
    """Returns the end of an error message about a name that a table lacks: the names in the table that resemble the
    lacking name."""
    import difflib  # imported only when a message needs difflib
    found = difflib.get_close_matches(name, [key for key in table if not key.startswith("_")], 4, 0.7)
    if not found:
        return "; docs/tracing.md lists what is"
    return "; near it are %s (docs/tracing.md has all)" % ", ".join(found)
