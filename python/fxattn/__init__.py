# SPDX-License-Identifier: Apache-2.0
"""fxattn computes fused attention with your own score function f inside.

    O = softmax( f( scale * Q K^T ; b, h, q, k, your tensors, your scalars ) ) V

The front ends are fxattn.numpy, fxattn.torch and fxattn.jax; the module fxattn has the names that all front ends share.
Each name is imported at its first use, so `import fxattn` is cheap and imports none of numpy, torch and jax."""
import importlib as _importlib
import typing as _typing
from importlib.util import find_spec as _find_spec

if _typing.TYPE_CHECKING:
    from . import numpy, torch, trace
    from ._errors import (ArgumentError, ArgumentTypeError, BindingError, BytesError, EngineError, Error, InternalError,
                          LibraryError, LimitError, OutOfMemoryError, ProblemError, ProgramError, SystemRefusedError,
                          UnavailableError, UnsupportedError, VersionError)
    from ._explain import Explanation, explain
    from ._library import cache_clear, cache_limit, cache_stats, get_num_threads, set_num_threads
    from ._problem import Plan
    from ._program import Builder, Capture, Param, Program
    from ._source import program

__version__: str

# The list is literal, because type checkers read __all__ without running the module.
__all__ = [
    "ArgumentError", "ArgumentTypeError", "BindingError", "Builder", "BytesError", "Capture", "EngineError", "Error",
    "Explanation", "InternalError", "LibraryError", "LimitError", "OutOfMemoryError", "Param", "Plan", "ProblemError",
    "Program", "ProgramError", "SystemRefusedError", "UnavailableError", "UnsupportedError", "VersionError",
    "__version__", "cache_clear", "cache_limit", "cache_stats", "explain", "get_num_threads", "program",
    "set_num_threads"]
# Public names by the submodule that defines them. Names of __all__ that are not listed here are classes of _errors.
_HOMES = {
    "_library": ("cache_stats", "cache_limit", "cache_clear", "get_num_threads", "set_num_threads"),
    "_explain": ("explain", "Explanation"),
    "_source": ("program",),
    "_program": ("Program", "Builder", "Param", "Capture"),
    "_problem": ("Plan",),
}
_FRONT_ENDS = ("jax", "numpy", "torch")  # submodules, each named after the library that it serves
_MODULES = (*_FRONT_ENDS, "trace")  # submodules that are imported at first use


def __getattr__(name: str) -> _typing.Any:
    if name == "__version__":
        value: _typing.Any = _importlib.import_module("._abi", __name__).VERSION
    elif name in _MODULES:
        value = _importlib.import_module("." + name, __name__)
    elif name in __all__:
        home = next((home for home, names in _HOMES.items() if name in names), "_errors")
        value = getattr(_importlib.import_module("." + home, __name__), name)
    else:
        raise AttributeError("module 'fxattn' has no attribute %r" % name)
    globals()[name] = value
    return value


def _is_installed(library: str) -> bool:
    try:
        return _find_spec(library) is not None
    except ValueError:  # sys.modules has an entry without a spec, for example a test's fake module
        return False


def __dir__() -> _typing.List[str]:
    """Returns the public names of fxattn. A front end is listed only if its array library is installed, because help()
    imports every listed name."""
    front_ends = filter(_is_installed, _FRONT_ENDS)
    return sorted({*__all__, "trace", *front_ends, *(name for name in globals() if name.startswith("__"))})
