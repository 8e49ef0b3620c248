# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each kind of status, each also the built-in exception that Python users expect.

All derive from Error and have the library's status and text; errors of program text also have a position. Front ends
raise the same classes for mistakes that they find before a call of the library."""
from typing import Dict, Optional, Type


class Error(Exception):
    """Any failure of fxattn. `status` is the library's name of it ("E_PROGRAM"); `line`, `column` and `length` (from 1,
    in characters) say where in a program text, or are 0."""

    status: str = ""
    part: int = 0
    line: int = 0
    column: int = 0
    length: int = 0


class ArgumentError(Error, ValueError):
    """An argument is missing, out of range, or contradicts another."""

    status = "E_ARGUMENT"


class ArgumentTypeError(Error, TypeError):
    """An argument has a type that is not accepted."""

    status = "E_ARGUMENT"


class ProgramError(Error, ValueError):
    """A score program is wrong: syntax, names or types."""

    status = "E_PROGRAM"


class LimitError(Error, ValueError):
    """A limit of the library is exceeded."""

    status = "E_LIMIT"


class ProblemError(Error, ValueError):
    """Shapes, layouts and features contradict each other."""

    status = "E_PROBLEM"


class BindingError(Error, ValueError):
    """A tensor, scalar or length given to a run is wrong."""

    status = "E_BINDING"


class OutsideError(BindingError, IndexError):
    """An index leaves its captured tensor, and bounds_check is on; the text has tensor, axis, index, size and pair."""


class UnsupportedError(Error, NotImplementedError):
    """No engine supports the problem; the text has the reason of each."""

    status = "E_UNSUPPORTED"


class UnavailableError(Error, RuntimeError):
    """An engine, or a library that it needs, is not present."""

    status = "E_UNAVAILABLE"


class BytesError(Error, ValueError):
    """Bytes of a program or plan are damaged, or of another format."""

    status = "E_BYTES"


class VersionError(BytesError):
    """Bytes of a program or plan come from another version or device."""

    status = "E_VERSION"


class OutOfMemoryError(Error, MemoryError):
    """The library could not allocate."""

    status = "E_MEMORY"


class SystemRefusedError(Error, OSError):
    """The operating system refused a resource."""

    status = "E_SYSTEM"


class EngineError(Error, RuntimeError):
    """An engine failed while running."""

    status = "E_ENGINE"


class InternalError(Error, RuntimeError):
    """A bug in fxattn: please report it."""

    status = "E_INTERNAL"


class LibraryError(Error, ImportError):
    """The library itself cannot be loaded, or is not the one this package was built for."""


# By fxa_status. tests/python/test_library.py sees to it that none is forgotten.
BY_STATUS: Dict[int, Type[Error]] = {
    100: ArgumentError,
    101: InternalError,  # the structs are filled here, not by users
    110: ProgramError,
    111: LimitError,
    120: ProblemError,
    130: BindingError,
    131: BindingError,
    200: UnsupportedError,
    201: UnavailableError,
    300: BytesError,
    301: VersionError,
    400: OutOfMemoryError,
    401: SystemRefusedError,
    500: EngineError,
    501: InternalError,
}


def is_outside(text: str) -> bool:
    """Returns True if a message reports an index that leaves its captured tensor, found by bounds_check."""
    return "is outside axis" in text and ("FXA_BOUNDS_CHECK" in text or "bounds_check" in text)


def make_error(status: int, text: str, status_name: Optional[str] = None) -> Error:
    """Returns the exception of a status: an Error for a status that this package does not know."""
    error = OutsideError(text) if status == 130 and is_outside(text) else BY_STATUS.get(status, Error)(text)
    if status_name:
        error.status = status_name
    return error


def missing_library(error: ImportError, library: str, version: str) -> ImportError:
    """Returns the error of a front end whose library is missing or too old; any other error is returned unchanged."""
    if error.name is None or error.name.partition(".")[0] != library:
        return error
    words = "fxattn.{0} needs {0} {1} or newer: pip install \"fxattn[{0}]\" ({2})".format(library, version, error)
    return type(error)(words, name=error.name, path=error.path)
