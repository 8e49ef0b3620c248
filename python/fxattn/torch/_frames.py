# SPDX-License-Identifier: Apache-2.0
"""Functions that Dynamo leaves alone. After a graph break it compiles each frame that runs, those of this package too:
the tracer's and those of backward passes, which it cannot.

Private names of PyTorch: torch._C._dynamo.eval_frame and three in it, present without an import of Dynamo; where they
are missing, functions stay as they are.
"""
from typing import Any, Callable, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def leave(function: _Function) -> _Function:
    """The function, marked so that Dynamo compiles neither it nor what it calls where it runs by itself, after a graph
    break; a caller that is compiled may still inline it. Costs a call nothing."""
    hook: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(hook, "set_code_exec_strategy"):
        skip = hook._FrameAction.SKIP
        hook.set_code_exec_strategy(function.__code__, hook._FrameExecStrategy(skip, skip))
    return function
