# SPDX-License-Identifier: Apache-2.0
"""The handlers of libfxattn_jax (python/csrc/jax_handler.c) as XLA knows them: one name for all platforms.

What runs is plain C, without Python and without the GIL; a module that was exported runs in any process that has
imported this.
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
# Handlers by platform, and the stages at which XLA asks them: the plan is made before the first execution.
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
    """Returns a device for which calls are lowered, or None: modules for other machines have no workspace."""
    try:
        return int(jax.local_devices(backend="cuda")[0].local_hardware_id)
    except RuntimeError:
        return None


def workspace(problem: bytes) -> int:
    """Returns the bytes of device memory that a call needs; its plan is made here and cached for the run."""
    ordinal = cuda_ordinal()
    if ordinal is None:
        return 0
    found = ctypes.c_uint64()
    call(_library.fxa_jax_workspace, problem, ctypes.c_size_t(len(problem)), ordinal, ctypes.byref(found))
    return int(found.value)


def cache_stats() -> Dict[str, int]:
    """Returns counters of the plan cache of the handlers: builds, runs and so on; `plans` are those held now."""
    stats = _abi.CacheStats()
    _library.fxa_jax_cache_stats(ctypes.byref(stats))
    return {name: getattr(stats, name) for name, *_ in _abi.CacheStats._fields_ if name != "reserved"}


def cache_clear() -> None:
    """Empties the plan cache of the handlers; plans in use stay valid, others are made again when they are needed."""
    _library.fxa_jax_cache_clear()
