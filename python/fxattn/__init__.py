# SPDX-License-Identifier: Apache-2.0
"""fxattn: fused attention with your own score function inside.

    O = softmax( f( scale * Q K^T ; b, h, q, k, your tensors, your scalars ) ) V

The front ends are fxattn.numpy and fxattn.torch; this module has what they share. Attributes are found at first use, so
that importing it costs little and imports none of numpy, torch and jax.
"""
import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from ._errors import (ArgumentError, ArgumentTypeError, BindingError, BytesError, EngineError, Error, InternalError,
                          LibraryError, LimitError, OutOfMemoryError, ProblemError, ProgramError, SystemRefusedError,
                          UnavailableError, UnsupportedError, VersionError)
    from ._explain import Explanation, explain
    from ._library import cache_clear, cache_limit, cache_stats, get_num_threads, set_num_threads
    from ._program import Builder, Capture, Param, Program
    from ._source import program

__version__: str

_ERRORS = ("Error ArgumentError ArgumentTypeError BindingError BytesError EngineError InternalError LibraryError "
           "LimitError OutOfMemoryError ProblemError ProgramError SystemRefusedError UnavailableError UnsupportedError "
           "VersionError").split()
# Where each public name lives.
_HOMES = {
    **dict.fromkeys(_ERRORS, "_errors"),
    **dict.fromkeys("cache_stats cache_limit cache_clear get_num_threads set_num_threads".split(), "_library"),
    **dict.fromkeys("explain Explanation".split(), "_explain"),
    "program": "_source",
    **dict.fromkeys("Program Builder Param Capture".split(), "_program"),
}
_MODULES = ("numpy", "torch", "trace")

__all__ = sorted(_HOMES) + ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("._abi", __name__).VERSION
    elif name in _HOMES:
        value = getattr(importlib.import_module("." + _HOMES[name], __name__), name)
    elif name in _MODULES:
        value = importlib.import_module("." + name, __name__)
    else:
        raise AttributeError("module 'fxattn' has no attribute %r" % name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(__all__) | set(_MODULES))
