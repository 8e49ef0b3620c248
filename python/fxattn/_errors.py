# SPDX-License-Identifier: Apache-2.0
"""Exceptions of fxattn: one class for each kind of status of the C library. Each class of exception derives from Error
and from the matching built-in exception (ValueError, TypeError, ...).

An exception has the status and message of the C library; an error in program text also has a position. Front ends raise
the classes of this module also for mistakes that they find before they call the C library."""
from typing import Dict, Optional, Type


class Error(Exception):
    """Base class of all exceptions of fxattn. `status` is the name of the status that the C library returned, such as
    "E_PROGRAM". For an error in program text, `line`, `column` and `length` (from 1, in characters) are the position of
    the error in text number `part` (from 0). For errors outside program text, `line`, `column` and `length` are 0."""

    status: str = ""
    part: int = 0
    line: int = 0
    column: int = 0
    length: int = 0


class ArgumentError(Error, ValueError):
    """An argument is missing, out of range, or contradicts another argument."""

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
    """Shapes, layouts and options contradict each other."""

    status = "E_PROBLEM"


class BindingError(Error, ValueError):
    """A tensor, scalar or length given to a run is wrong."""

    status = "E_BINDING"


class OutsideError(BindingError, IndexError):
    """The option bounds_check found an index out of bounds. The message of the error has the tensor, axis, index, size
    and (q, k) pair."""


class UnsupportedError(Error, NotImplementedError):
    """No engine supports the problem; the message has the reason of each engine."""

    status = "E_UNSUPPORTED"


class UnavailableError(Error, RuntimeError):
    """An engine, or a library that the engine needs, is not present."""

    status = "E_UNAVAILABLE"


class BytesError(Error, ValueError):
    """Saved bytes of a program or plan are damaged or have another format."""

    status = "E_BYTES"


class VersionError(BytesError):
    """Saved bytes of a program or plan come from another version of fxattn or another device."""

    status = "E_VERSION"


class OutOfMemoryError(Error, MemoryError):
    """The library could not allocate memory."""

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
    """The C library cannot be loaded, or its version is not the version that this package was built for."""


# Exception classes by fxa_status. tests/python/test_library.py checks that every status is listed.
BY_STATUS: Dict[int, Type[Error]] = {
    100: ArgumentError,
    101: InternalError,  # E_STRUCT: this package fills the structs, so a wrong struct is a bug of the package
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
    """Returns True if a message reports an index outside its captured tensor, which bounds_check found."""
    return "is outside axis" in text and ("FXA_BOUNDS_CHECK" in text or "bounds_check" in text)


def make_error(status: int, text: str, status_name: Optional[str] = None) -> Error:
    """Returns the exception for `status` with the message `text`. A status without an exception class of its own gives
    a plain Error."""
    error = OutsideError(text) if status == 130 and is_outside(text) else BY_STATUS.get(status, Error)(text)
    if status_name:
        error.status = status_name
    return error


def missing_library(error: ImportError, library: str, version: str) -> ImportError:
    """Returns an error for a failed import of `library`, with the needed `version` and the pip command in the message.
    If another module than `library` failed to import, returns the caught exception `error` unchanged."""
    if error.name is None or error.name.partition(".")[0] != library:
        return error
    words = "fxattn.{0} needs {0} {1} or newer: pip install \"fxattn[{0}]\" ({2})".format(library, version, error)
    return type(error)(words, name=error.name, path=error.path)
