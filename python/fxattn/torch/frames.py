# SPDX-License-Identifier: Apache-2.0
"""Marks functions that Dynamo must not compile. After a graph break Dynamo compiles each frame that runs, also frames
of this package; compiling the tracer's frames and those of backward passes fails.

The module uses private names of torch._C._dynamo.eval_frame, which exist without importing Dynamo. If PyTorch lacks the
private names of torch._C._dynamo.eval_frame, no function is marked, and Dynamo may compile frames of this package.
"""
from typing import Any, Callable, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def skip_frame(function: _Function) -> _Function:
    """Returns `function`, marked as not to be compiled: after a graph break, Dynamo compiles neither the frame of
    `function` nor the frames of the functions that `function` calls. Marking `function` does not stop a compiled caller
    from inlining `function`, and adds no time to a call of `function`."""
    hook: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(hook, "set_code_exec_strategy"):
        skip = hook._FrameAction.SKIP
        hook.set_code_exec_strategy(function.__code__, hook._FrameExecStrategy(skip, skip))
    return function
