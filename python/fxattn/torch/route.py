# SPDX-License-Identifier: Apache-2.0
"""The choice of the route that a call takes to the library; the package's docstring draws the four routes."""
from typing import Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from .call import Call, Results
from .frames import skip_frame
from .routes import autograd, bypass, compiled, direct, dispatcher

# Runs a call: (call, q, k, v) -> (out, LSE, row maxima). Only the direct route may return None: another must be taken.
Route = Callable[[Call, Tensor, Tensor, Tensor], Optional[Results]]
_tracing = torch._C._get_tracing_state


def route(call: Call, q: Tensor, k: Tensor, v: Tensor, plain: bool) -> Route:
    """Returns the route of a call. `plain`: the result of bypass.is_plain(q, k, v); False excludes the direct route."""
    if plain:
        return direct.run
    if torch.compiler.is_compiling():
        return compiled.run
    # Tensors under vmap do not report whether they require gradients. Dual numbers are refused by Forward.jvp.
    if call.needs_grad(q, k, v) or autograd.has_transforms() or _forward_ad._current_level >= 0:
        return autograd.run if _tracing() is None else dispatcher.run_entire
    return dispatcher.run


@skip_frame
def run(call: Call, q: Tensor, k: Tensor, v: Tensor, plain: Optional[bool] = None) -> Results:
    """Returns (out, LSE, row maxima) of a call, computed by the route that route() chooses. `plain`: the result of
    bypass.is_plain(q, k, v), or None to compute the result here."""
    chosen = route(call, q, k, v, bypass.is_plain(q, k, v) if plain is None else plain)
    if chosen is direct.run:
        found = direct.run(call, q, k, v)
        if found is not None:
            return found
        chosen = route(call, q, k, v, False)
    if chosen is not compiled.run:
        call.check_tensors(q, k, v)
    return chosen(call, q, k, v)  # type: ignore[return-value]
