# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators fxattn::fwd and fxattn::bwd.

The module defines two autograd Functions with setup_context, which functorch requires; a shorter Function for calls
that bypass PyTorch's dispatcher (routes/direct.py); and the kernels that the dispatcher calls for tensors that require
gradients.

Call.run is how the rest of the package calls the operators. A Call has all inputs of a run besides q, k and v. The
tensors of a Call are inputs of the Functions, so that autograd computes gradients of captured tensors, of sinks and of
params given as tensors, and detects captured tensors that are changed in place between the passes.

LSE is a differentiable output; the row maxima are not. A second derivative raises an error.
"""
import contextlib
import math
from typing import Any, ContextManager, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from ... import _abi
from ..._errors import OutsideError, is_outside
from . import direct
from .. import operators as ops
from ..dtensors import refuse_dtensors
from ..forward_mode import refuse_tangents, refuse_these
from ..frames import leave

Results = Tuple[Tensor, Tensor, Tensor]
_below = torch._C._AutoDispatchBelowAutograd
_functorch = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_WANT_QKV = (ops.WANT_Q, ops.WANT_K, ops.WANT_V)
_NOTHING = contextlib.nullcontext()
_NEEDS_QKV = (False, False, True, True, True)  # needs_input_grad of _Over if q, k and v are its only tensors


def _training_flags(q: Tensor) -> int:
    """Returns the flags that a call with gradients adds: RETURN_LSE, because the backward pass reads LSE, and on a
    device DETERMINISTIC if torch.use_deterministic_algorithms() is on without warn_only. Runs on the host are always
    deterministic."""
    if q.is_cpu or not torch.are_deterministic_algorithms_enabled():
        return _abi.RETURN_LSE
    return _abi.RETURN_LSE | (0 if torch.is_deterministic_algorithms_warn_only_enabled() else _abi.DETERMINISTIC)


class Call:
    """The arguments of a call of the operators besides q, k and v; torch_call.h describes each."""

    __slots__ = ("tensors", "extras", "scalars", "ints", "floats", "config", "program")

    def __init__(self, program: str = "", tensors: Sequence[Tensor] = (), extras: Sequence[Tensor] = (),
                 scalars: Sequence[Tensor] = (), ints: Sequence[int] = (), floats: Sequence[float] = (),
                 config: Sequence[int] = ()) -> None:
        self.program, self.config = program, config
        self.tensors, self.extras, self.scalars = tensors, extras, scalars
        self.ints, self.floats = ints, floats

    def arguments(self) -> Tuple[Any, ...]:
        """Returns the arguments that follow q, k and v in a call of either operator."""
        return self.tensors, self.extras, self.scalars, self.ints, self.floats, self.config, self.program

    def all_tensors(self) -> Tuple[Tensor, ...]:
        return (*self.tensors, *self.extras, *self.scalars)

    def needs_grad(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Returns True if autograd must record the call: gradients are enabled, and a tensor of the call requires
        one."""
        if not torch.is_grad_enabled():
            return False
        if q.requires_grad or k.requires_grad or v.requires_grad:
            return True
        for t in self.tensors:
            if t.requires_grad:
                return True
        return any(t.requires_grad for t in (*self.extras, *self.scalars)) if self.extras or self.scalars else False

    @leave
    def run(self, q: Tensor, k: Tensor, v: Tensor, plain: Optional[bool] = None) -> Results:
        """Returns (out, lse, max), by the fastest path that the call allows; while PyTorch compiles or exports, by the
        operator itself. `plain`: the result of direct.is_plain(q, k, v), if the caller has it."""
        if plain is None:
            plain = direct.is_plain(q, k, v)
        if plain:
            found = self.run_direct(q, k, v)
            if found is not None:
                return found
        if torch.compiler.is_compiling():
            return self.compiled(q, k, v)
        refuse_dtensors(("q", "k", "v"), (q, k, v))
        refuse_dtensors(("a captured tensor",) * len(self.tensors), self.tensors)
        device = q.device
        if k.device != device or v.device != device or any(t.device != device for t in self.tensors):
            self._refuse_devices(q, k, v)
        # Tensors under vmap do not report whether they require gradients. Dual numbers are refused by Forward.jvp.
        if self.needs_grad(q, k, v) or _functorch() or _forward_ad._current_level >= 0:
            # torch.jit.trace cannot save an autograd Function, but can save the operator.
            return self.recorded(q, k, v) if _tracing() is None else self.forward(q, k, v)
        with _below():
            return self.forward(q, k, v)

    def run_direct(self, q: Tensor, k: Tensor, v: Tensor) -> Optional[Results]:
        """Returns (out, lse, max) of a call that bypasses the dispatcher; None if the call must go through the
        operator. Requires direct.is_plain(q, k, v)."""
        if self.needs_grad(q, k, v):
            return self.recorded_direct(q, k, v)
        made = direct.forward(self, q, k, v, self.config, direct.ANYTHING)
        return direct.all_results(made, self.config) if made else None

    def recorded_direct(self, q: Tensor, k: Tensor, v: Tensor) -> Optional[Results]:
        """Does the work of run_direct for a call with gradients: runs the call, then records the finished run in
        autograd's graph."""
        plain = self.plain(_training_flags(q))
        made = direct.forward(self, q, k, v, plain.config, direct.ANYTHING)
        if not made:
            return None
        plain.results = direct.all_results(made, plain.config)
        return _apply(plain, q, k, v, *self.tensors, *self.extras, *self.scalars)

    def output_direct(self, q: Tensor, k: Tensor, v: Tensor, expected: Sequence[int]) -> Optional[Tensor]:
        """Returns the output of a call that bypasses the dispatcher and requests neither LSE nor row maxima; None if
        the call must go through the operator. `expected`: conditions on shapes and device (direct_expected in
        torch_direct.c)."""
        if not self.needs_grad(q, k, v):
            made = direct.forward(self, q, k, v, self.config, expected)
            return made[0] if made else None
        plain = self.plain(_training_flags(q))
        made = direct.forward(self, q, k, v, plain.config, expected)
        return _apply_over(made, plain, q, k, v, *self.all_tensors()) if made else None

    def _refuse_devices(self, q: Tensor, k: Tensor, v: Tensor) -> NoReturn:
        """Raises ValueError with the names of the tensors that are not on the device of q. Without the error the
        dispatcher would run the kernel of one device on tensors of another."""
        captured = [("a captured tensor of shape %s" % (tuple(t.shape),), t) for t in self.tensors]
        away = [(name, t) for name, t in [("key", k), ("value", v), *captured] if t.device != q.device]
        raise ValueError("query is on %s, %s; all must be on one device"
                         % (q.device, ", ".join("%s on %s" % (name, t.device) for name, t in away)))

    def recorded(self, q: Tensor, k: Tensor, v: Tensor) -> Results:
        """Runs the call as an autograd Function. LSE is computed in every case, because the backward pass reads LSE."""
        apply = Forward.apply if _functorch() else _apply
        return apply(self.plain(_training_flags(q)), q, k, v, *self.tensors, *self.extras, *self.scalars)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Results:
        """Calls the operator fxattn::fwd. Raises OutsideError, an IndexError as in PyTorch, for an index outside a
        captured tensor."""
        try:
            return ops.fwd(q, k, v, *self.arguments())
        except RuntimeError as error:
            if not is_outside(str(error)):
                raise
            raise OutsideError(str(error).partition("fxattn: ")[2].partition("\n")[0]) from None

    def compiled(self, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Calls the operator inside a graph that is compiled or exported. Packages of AOTInductor can hold neither NaN,
        which stands for the default scale, nor empty lists; both are replaced (torch_call.h). The program becomes one
        line, because Inductor writes the program into comments of Triton kernels, where a second line would be code."""
        self.program = self.program.replace("\n", ";")
        d = q.shape[3]
        if isinstance(d, int) and d > 0 and len(self.floats) and isinstance(self.floats[0], float) \
                and math.isnan(self.floats[0]):
            self.floats = [1 / math.sqrt(max(d, 1)), *self.floats[1:]]
        if torch.compiler.is_exporting():
            none = [q.new_empty((0,) * (_abi.MAX_RANK + 1))]
            self.tensors, self.extras, self.scalars = self.tensors or none, self.extras or none, self.scalars or none
            self.ints = self.ints or [0]
        return self.forward(q, k, v)

    def backward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grads: Sequence[Tensor],
                 want: Sequence[int]) -> Sequence[Tensor]:
        """Returns the gradients of `want`, in a run that autograd does not record."""
        made = direct.backward(self, q, k, v, out, lse, grads, want)
        if made:
            return made
        if torch.compiler.is_dynamo_compiling():  # Dynamo compiles the backward pass
            return ops.bwd(q, k, v, *self.arguments(), out, lse, grads, want)
        with _below():
            return ops.bwd(q, k, v, *self.arguments(), out, lse, grads, want)

    def flags(self) -> int:
        return self.config[ops.FLAGS] if len(self.config) else 0

    def plain(self, flags: int = 0) -> "Plain":
        """Returns this call without its tensors, with `flags` added to its flags."""
        return Plain(len(self.tensors), len(self.extras), len(self.scalars), self.ints, self.floats,
                     (self.flags() | flags, *self.config[1:]), self.program)


class Plain:
    """A Plain is a Call without its tensors. An autograd Function stores a Plain, and functorch passes a Plain as one
    opaque argument."""

    __slots__ = ("n_tensors", "n_extras", "n_scalars", "ints", "floats", "config", "program", "results")

    def __init__(self, n_tensors: int, n_extras: int, n_scalars: int, ints: Any, floats: Any, config: Any,
                 program: str) -> None:
        self.n_tensors, self.n_extras, self.n_scalars = n_tensors, n_extras, n_scalars
        self.ints, self.floats, self.config, self.program = ints, floats, config, program
        self.results: Optional[Results] = None  # results of a finished direct run, which Forward.forward returns

    def call(self, rest: Sequence[Tensor]) -> Call:
        a, b = self.n_tensors, self.n_tensors + self.n_extras
        return Call(self.program, rest[:a], rest[a:b], rest[b:], self.ints, self.floats, self.config)


def _wanted(needs: Sequence[bool], plain: Plain, first: int) -> Tuple[int, ...]:
    """Returns the values of `want` for the inputs that need gradients. `needs` has one bool for each input: q, at index
    `first`, then k, v, tensors, extras, scalars."""
    if needs[first] and needs[first + 1] and needs[first + 2]:
        want: Tuple[int, ...] = _WANT_QKV
    else:
        want = tuple([i for i in range(3) if needs[first + i]])
    if len(needs) == first + 3:
        return want
    tensors, config = first + 3, plain.config
    slots = config[ops.SLOTS] if len(config) > ops.SLOTS else 0
    own = plain.n_tensors
    if len(config) > ops.BPROP_TEXT and config[ops.BPROP_TEXT]:
        own = config[ops.BPROP_TENSORS]
    if plain.n_extras and slots >> _abi.SLOT_SINKS & 1 and needs[tensors + plain.n_tensors + ops.sink_place(slots)]:
        want += ops.WANT_SINK,
    if plain.n_scalars and needs[-1]:
        want += ops.WANT_SCALARS,
    return want + tuple([ops.WANT_TENSORS + i for i in range(own) if needs[tensors + i]])


def _place(one: int, plain: Plain) -> int:
    """Returns the index, in the list (q, k, v, tensors, extras, scalars), of the input whose gradient is `one`, a value
    of `want`."""
    if one <= ops.WANT_V:
        return one
    if one == ops.WANT_SINK:
        return 3 + plain.n_tensors + ops.sink_place(plain.config[ops.SLOTS])
    return 3 + plain.n_tensors + plain.n_extras if one == ops.WANT_SCALARS else 3 + one - ops.WANT_TENSORS


def _gradients(ctx: Any, saved: Sequence[Tensor], dout: Optional[Tensor], dlse: Optional[Tensor],
               first: int) -> Tuple[Any, ...]:
    """Returns the gradients of the arguments of an autograd Function, None for an argument without a gradient. Argument
    `first` is q. `saved` is ctx.saved_tensors, which may be read only once."""
    plain, needs = ctx.plain, ctx.needs_input_grad
    inputs, out, lse = saved[:-2], saved[-2], saved[-1]
    result: List[Any] = [None] * len(needs)
    want = _wanted(needs, plain, first)
    if (dout is None and dlse is None) or not want:
        return tuple(result)
    grads: Tuple[Tensor, ...] = (torch.zeros_like(out) if dout is None else dout,)
    if dlse is not None:
        grads += dlse.to(torch.float64 if out.dtype == torch.float64 else torch.float32),
    if torch.is_grad_enabled() or _functorch():
        got: Sequence[Tensor] = Backward.apply(plain, list(want), len(grads), *saved, *grads)
    else:
        got = plain.call(inputs[3:]).backward(*inputs[:3], out, lse, grads, want)
    for one, grad in zip(want, got):
        result[first + _place(one, plain)] = grad
    return tuple(result)


@contextlib.contextmanager
def _modes_on() -> Iterator[None]:
    with torch.enable_grad(), _forward_ad._set_fwd_grad_enabled(True):
        yield


def _outer_levels() -> ContextManager[None]:
    """Returns a context for the body of Function.forward. PyTorch runs forward() with reverse and forward mode
    disabled, so that in nested functorch transforms the outer transforms would treat the result as a constant. The
    context enables both modes again."""
    return _modes_on() if _functorch() else _NOTHING


class Forward(torch.autograd.Function):
    """The autograd Function of the operator fxattn::fwd."""

    @staticmethod
    def forward(plain: Plain, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Results:
        if plain.results is not None:
            results, plain.results = plain.results, None  # breaks the reference cycle results -> graph -> plain
            return results
        with _below(), _outer_levels():
            return plain.call(rest).forward(q, k, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        plain, *tensors = inputs
        ctx.plain = plain
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[0], output[1])

    @staticmethod
    @leave
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], _: Any) -> Tuple[Any, ...]:
        return _gradients(ctx, ctx.saved_tensors, dout, dlse, 1)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        refuse_these(ctx.plain.n_tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: Tuple[Any, ...], plain: Plain, *tensors: Tensor) -> Tuple[Any, Any]:
        from ..vmap import forward_batched
        return forward_batched(info.batch_size, in_dims[1:], plain, tensors)


# _apply skips Function.apply, whose inspect.signature takes longer than the rest of a small call. Function.apply binds
# default arguments for functorch; Forward.forward has no default arguments.
_apply = super(torch.autograd.Function, Forward).apply


class _Over(torch.autograd.Function):
    """The autograd Function of a direct run that has finished. The Function takes out, lse and possibly max of the run,
    and returns only out."""

    @staticmethod
    def forward(ctx: Any, made: Sequence[Tensor], plain: Plain, *tensors: Tensor) -> Tensor:
        ctx.plain = plain
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, made[0], made[1])
        return made[0]

    @staticmethod
    @leave
    def backward(ctx: Any, dout: Optional[Tensor]) -> Tuple[Any, ...]:
        plain, saved = ctx.plain, ctx.saved_tensors
        if len(saved) == 5 and dout is not None and not torch.is_grad_enabled() \
                and ctx.needs_input_grad == _NEEDS_QKV:  # the usual case: q, k and v are the only tensors
            q, k, v, out, lse = saved
            made = direct.backward(Call(plain.program, (), (), (), plain.ints, plain.floats, plain.config), q, k, v,
                                    out, lse, (dout,), _WANT_QKV)
            if made:
                return None, None, *made
        return _gradients(ctx, saved, dout, None, 2)


_apply_over = super(torch.autograd.Function, _Over).apply


def recorded_at_once(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], floats: Sequence[float],
                     config: Tuple[int, ...], program: str, expected: Sequence[int]) -> Optional[Tensor]:
    """Returns the result of Call.output_direct for a call with gradients that has only these arguments, without making
    a Call."""
    config = (config[0] | _training_flags(q), *config[1:])
    made = direct._run(q, k, v, tensors, (), (), (), floats, config, program, expected)
    if not made:
        return None
    return _apply_over(made, Plain(len(tensors), 0, 0, (), floats, config, program), q, k, v, *tensors)


class Backward(torch.autograd.Function):
    """The autograd Function of the operator fxattn::bwd. The Function is used only if autograd records the backward
    pass itself (create_graph=True)."""

    @staticmethod
    def forward(plain: Plain, want: List[int], n_grads: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        (q, k, v, *rest), out, lse, grads = split_backward(n_grads, tensors)
        with _outer_levels():
            return tuple(plain.call(rest).backward(q, k, v, out, lse, grads, want))

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        ctx.n_tensors = inputs[0].n_tensors

    @staticmethod
    @leave
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(
            "fxattn has no second derivative: its backward pass was differentiated (create_graph=True, gradgradcheck, "
            "a gradient penalty). Compute that part with plain PyTorch operations, or detach the first gradient")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_these(ctx.n_tensors, tangents[3:])

    @staticmethod
    def vmap(info: Any, in_dims: Tuple[Any, ...], plain: Plain, want: List[int], n_grads: int, *tensors: Tensor) -> Any:
        from ..vmap import backward_batched
        return backward_batched(info.batch_size, in_dims[3:], plain, want, n_grads, tensors)


class _Parts(NamedTuple):
    inputs: Sequence[Tensor]
    out: Tensor
    lse: Tensor
    grads: Sequence[Tensor]


def split_backward(n_grads: int, tensors: Sequence[Any]) -> _Parts:
    """Splits the tensors of Backward into the inputs of the forward pass, out, lse and the incoming gradients."""
    end = len(tensors) - n_grads
    return _Parts(tensors[:end - 2], tensors[end - 2], tensors[end - 1], tensors[end:])


_apply_backward = super(torch.autograd.Function, Backward).apply


# ---- The dispatcher's kernels for tensors that may require gradients: compiled graphs, exports, direct calls ---------

def _one_level() -> ContextManager[None]:
    """Returns a context in which an autograd Function may be applied inside a kernel that functorch calls for one of
    its levels. Operators called in the context go to the next level, as in PyTorch's own Autograd kernels."""
    if not _functorch():
        return _NOTHING
    from torch._functorch.utils import enable_single_level_autograd_function
    return enable_single_level_autograd_function()  # type: ignore[no-any-return]


def _forward_kernel(q: Tensor, k: Tensor, v: Tensor, tensors: Any, extras: Any, scalars: Any, ints: Any, floats: Any,
                    config: Any, program: str) -> Results:
    call = Call(program, tensors, extras, scalars, ints, floats, config)
    refuse_tangents(len(tensors), (q, k, v, *call.all_tensors()))
    if call.needs_grad(q, k, v):
        with _one_level():
            out, lse, rows = _apply(call.plain(_training_flags(q)), q, k, v, *call.all_tensors())
        # If LSE was not requested, lse is empty, as in the fake implementation (operators.py).
        return out, lse if call.flags() & _abi.RETURN_LSE else q.new_empty(0, dtype=torch.float64), rows
    with _below():
        return call.forward(q, k, v)


def _backward_kernel(q: Tensor, k: Tensor, v: Tensor, tensors: Any, extras: Any, scalars: Any, ints: Any, floats: Any,
                     config: Any, program: str, out: Tensor, lse: Tensor, grads: Any, want: Any) -> List[Tensor]:
    call = Call(program, tensors, extras, scalars, ints, floats, config)
    inputs = (q, k, v, *call.all_tensors(), out, lse, *grads)
    refuse_tangents(len(tensors), inputs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        with _one_level():
            return list(_apply_backward(call.plain(), list(want), len(grads), *inputs))
    return list(call.backward(q, k, v, out, lse, grads, want))


def _batched_kernel(q: Tensor, k: Tensor, v: Tensor, tensors: Any, extras: Any, scalars: Any, ints: Any, floats: Any,
                    config: Any, program: str, out: Tensor, lse: Tensor, grads: Any, want: Any) -> List[Tensor]:
    """The kernel of fxattn::bwd for gradients that torch.autograd.grad(is_grads_batched=True) has wrapped by its
    vmap."""
    from ..vmap import backward_of_batched
    call = Call(program, tensors, extras, scalars, ints, floats, config)
    return backward_of_batched(call.plain(), want, grads, (q, k, v, *call.all_tensors(), out, lse, *grads))


def _forward_of_vmap(*args: Any) -> Any:
    from ..vmap import forward_of_vmap
    return forward_of_vmap(*args)


def _backward_of_vmap(*args: Any) -> Any:
    from ..vmap import backward_of_vmap
    return backward_of_vmap(*args)


_kernels = torch.library.Library("fxattn", "IMPL")
if hasattr(torch.library, "register_vmap"):
    torch.library.register_vmap("fxattn::fwd", _forward_of_vmap, lib=_kernels)
    torch.library.register_vmap("fxattn::bwd", _backward_of_vmap, lib=_kernels)
_kernels.impl("bwd", _batched_kernel, "Batched")
_kernels.impl("fwd", _forward_kernel, "Autograd")
_kernels.impl("bwd", _backward_kernel, "Autograd")
