# SPDX-License-Identifier: Apache-2.0
"""Loads libfxattn_jax and registers its FFI handlers (python/csrc/jax_handler.c) with XLA, under one target name for
all platforms.

XLA's handlers of fxattn are C code that runs without Python and the GIL. A module of jax.export runs in any process
that has imported this Python module.
"""
import ctypes
import os
from typing import Any, Dict, Optional

import jax

from .. import _abi
from .._errors import LibraryError
from .._library import call, library_path

TARGET = "fxattn"
NAMES = ("libfxattn_jax.so", "libfxattn_jax.dylib")
# The handler's C function by platform, with the XLA stages that call it. The first stage compiles the plan.
_HANDLERS = {"cpu": ("fxa_jax_cpu", ("instantiate", "execute")), "CUDA": ("fxa_jax_cuda", ("initialize", "execute"))}


def _load() -> Any:
    folder = os.path.dirname(os.path.abspath(library_path()))
    path = next((p for p in (os.path.join(folder, name) for name in NAMES) if os.path.exists(p)), None)
    if path is None:
        raise LibraryError("%s is not in %s, beside the fxattn library: install the package with it"
                           % (NAMES[0], folder))
    handlers = ctypes.CDLL(path)
    text = ctypes.create_string_buffer(600)
    if handlers.fxa_jax_open(os.path.abspath(library_path()).encode(), text, ctypes.c_size_t(len(text))):
        raise LibraryError(text.value.decode("utf-8", "replace"))
    for platform, (name, stages) in _HANDLERS.items():
        capsule = jax.ffi.pycapsule(getattr(handlers, name))
        jax.ffi.register_ffi_target(TARGET, dict.fromkeys(stages, capsule), platform=platform)
    return handlers


_library = _load()


def cuda_ordinal() -> Optional[int]:
    """Returns the ordinal of the CUDA device that calls are lowered for; None if this machine has no CUDA device."""
    try:
        return int(jax.local_devices(backend="cuda")[0].local_hardware_id)
    except RuntimeError:
        return None


def workspace(problem: bytes) -> int:
    """Returns the workspace size [bytes] of a saved problem on the CUDA device, 0 without a device. Compiles the plan
    of the problem, which the handler later finds in its cache."""
    ordinal = cuda_ordinal()
    if ordinal is None:
        return 0
    found = ctypes.c_uint64()
    call(_library.fxa_jax_workspace, problem, ctypes.c_size_t(len(problem)), ordinal, ctypes.byref(found))
    return int(found.value)


def cache_stats() -> Dict[str, int]:
    """Returns the counters of the plan cache of XLA's handlers by name: hits, builds, runs and others; `plans` is the
    number of cached plans."""
    stats = _abi.CacheStats()
    _library.fxa_jax_cache_stats(ctypes.byref(stats))
    return {name: getattr(stats, name) for name, *_ in _abi.CacheStats._fields_ if name != "reserved"}


def cache_clear() -> None:
    """Removes all plans from the handlers' plan cache. A removed plan stays valid for a run that uses it, and is
    compiled again when a later run needs it."""
    _library.fxa_jax_cache_clear()
