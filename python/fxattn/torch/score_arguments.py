# SPDX-License-Identifier: Apache-2.0
"""The score and mask arguments of attention(): FlexAttention's functions; program text with params and tensors by name;
or callbacks (graph, score, tensors) with their tensors. The class ScoreArguments checks the score and mask arguments
and makes a Call, the arguments of the operators besides q, k and v.

In an eager call, the class ScoreArguments gets the arguments of attention(). In a compiled call, the class
ScoreArguments gets the data that routes/callback_script.py has recorded.
"""
import math
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _theirs

from .. import _abi
from .._program import DTYPE_NAMES, Program
from .._source import STYLES, check_kinds, text_program
from ..trace import Traced, trace
from . import operators as ops
from .call import (SYMBOLIC, Call, as_tensor, call_of, call_on_device, floats_as_tensor, has_scalars_on_device,
                   score_attributes, split_params)
from .dtypes import DTYPES
from .settings import check_mappings, param_number, shape_of_scores

Mod = Union[None, str, Program, Callable[..., Any]]
Named = Optional[Mapping[str, Any]]
_TEXT = (str, Program)
_AT_RUN_TIME = (Tensor, *SYMBOLIC)


def numbers_of_host(q: Tensor, named: Named) -> Named:
    """Returns `named` with one-element tensors on the host replaced by numbers if q is on a device, as PyTorch's
    operators and cuDNN's graphs treat such tensors. A tensor that requires a gradient is not replaced; route.run()
    later refuses this tensor, because it is on another device than q."""
    if q.is_cpu or not named or torch.compiler.is_compiling():
        return named
    return {name: x.item() if isinstance(x, Tensor) and x.is_cpu and x.numel() == 1 and not x.requires_grad else x
            for name, x in named.items()}


class ScoreArguments:
    """The arguments of attention() that define scores and masks. ScoreArguments is no NamedTuple, because Dynamo of
    torch 2.10 cannot read properties of a NamedTuple."""

    def __init__(self, score_mod: Mod, mask_mod: Mod, params: Named = None, tensors: Named = None, style: str = "flex",
                 bprop: Mod = None, bprop_tensors: Named = None, bprop_params: Named = None) -> None:
        self.score_mod, self.mask_mod, self.style, self.bprop = score_mod, mask_mod, style, bprop
        self.params, self.tensors = params, tensors
        self.bprop_params, self.bprop_tensors = bprop_params, bprop_tensors

    @property
    def is_functions(self) -> bool:
        """True if score_mod and mask_mod are FlexAttention's functions or None."""
        return self.style == "flex" and self.bprop is None and not self.is_text

    @property
    def is_text(self) -> bool:
        """True if score_mod or mask_mod is program text or a Program, which have the same meaning in the styles "flex"
        and "graph"."""
        return isinstance(self.score_mod, _TEXT) or isinstance(self.mask_mod, _TEXT)

    @property
    def is_graph(self) -> bool:
        """True if style is "graph" and the functions are callbacks (graph, score, tensors) as in Transformer Engine,
        not program text."""
        return self.style == "graph" and not self.is_text

    def check(self) -> None:
        """Raises ValueError or TypeError for arguments that exclude each other or have a wrong type."""
        if isinstance(self.mask_mod, _theirs.BlockMask):
            raise TypeError("mask_mod is a BlockMask; give its mask_mod, or call flex_attention with it as block_mask")
        if self.style not in STYLES:
            raise ValueError("style is %r; %s are accepted"
                             % (self.style, " and ".join('"%s"' % one for one in STYLES)))
        if self.bprop is not None and self.score_mod is None and self.mask_mod is None:
            raise ValueError("score_mod_bprop is given without score_mod")
        if self.style == "flex" and callable(self.bprop):
            raise ValueError("score_mod_bprop is a function, beside FlexAttention's score_mod, whose derivative is "
                             "known; style=\"graph\" takes one")
        named = {"params": self.params, "tensors": self.tensors, "bprop_params": self.bprop_params,
                 "bprop_tensors": self.bprop_tensors}
        check_mappings(named)
        unused = [name for name, given in named.items()
                  if given and (self.is_functions or (self.is_graph and name in ("params", "bprop_params")))]
        if unused:
            raise ValueError("%s given beside a function, which brings what it uses by itself" % " and ".join(unused))

    def call(self, q: Tensor, k: Tensor, scale: Any, config: Sequence[int], dropout_p: float,
             extras: Sequence[Tensor], mask_extra: Sequence[Any] = ()) -> Call:
        """Returns a Call: the arguments, besides q, k and v, of the operators fxattn::fwd and fxattn::bwd.
        `mask_extra`: tensors and numbers that a mask_mod recorded by Dynamo takes as further arguments."""
        if self.is_functions:
            traced = None if self.score_mod is None and self.mask_mod is None else trace(
                self.score_mod, self.mask_mod, **score_attributes(q))
            return call_of(traced, scale, config, dropout_p, extras)
        if self.is_graph:
            traced = trace(self.score_mod, self.mask_mod, style="graph", score_mod_bprop=self.bprop,
                           tensors=numbers_of_host(q, self.tensors) or {},
                           bprop_tensors=numbers_of_host(q, self.bprop_tensors), mask_extra=mask_extra,
                           shape=shape_of_scores(config, extras, q, k))
            return with_bprop(call_of(traced, scale, config, dropout_p, extras), traced)
        traced = self._traced_text()
        call = _call_of_text(traced, scale, config, dropout_p, extras, self.params or {}, self.tensors or {}, q.device)
        return with_bprop(call, traced)

    def _traced_text(self) -> Traced:
        check_kinds(score_mod=self.score_mod, mask_mod=self.mask_mod, score_mod_bprop=self.bprop)
        if self.bprop is None and self.bprop_params:
            raise ValueError("bprop_params is given without score_mod_bprop")
        params, tensors = self.params or {}, {**(self.tensors or {}), **(self.bprop_tensors or {})}
        program = text_program([(self.score_mod, "score"), (self.mask_mod, "mask")], "score", _described, self.tensors,
                               params)
        traced = Traced(Program() if program is None else program)
        params = {**params, **(self.bprop_params or {})}
        backward = text_program([(self.bprop, "dscore")], "bprop", _described, tensors, params)
        if backward is None:
            return traced
        unknown = sorted(set(self.bprop_params or {}) - {p.name for p in backward.params})
        if unknown:
            raise ValueError("bprop_params are given for %s; score_mod_bprop has %s" % (
                ", ".join(unknown), ", ".join(p.name for p in backward.params) or "none"))
        values = _named("params", params, [p.name for p in backward.params],
                        {p.name: p.default for p in backward.params})
        captured = _named("tensors", tensors, [c.name for c in backward.captures], {})
        numbers = tuple(param_number(p.name, p.type, x) for p, x in zip(backward.params, values))
        return traced._replace(bprop=backward, bprop_params=numbers, bprop_tensors=tuple(captured))


def _named(kind: str, given: Mapping[str, Any], names: Sequence[str], defaults: Mapping[str, Any]) -> List[Any]:
    """Returns the values of `names`, the params or tensors of a program. Raises ValueError if a param or tensor of the
    program has neither a value nor a default."""
    missing = [name for name in names if name not in given and defaults.get(name) is None]
    if missing:
        raise ValueError("the program has %s %s, of which no value is given for %s"
                         % (kind, ", ".join(names), ", ".join(missing)))
    return [given[name] if name in given else defaults[name] for name in names]


def _check_names(traced: Any, params: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Raises ValueError if `params` or `tensors` has a name that neither program uses."""
    for kind, given, declared in (("params", params, "params"), ("tensors", tensors, "captures")):
        programs = [p for p in (traced.program, traced.bprop) if p is not None]
        names = {one.name for program in programs for one in getattr(program, declared)}
        unknown = sorted(set(given) - names)
        if unknown:
            raise ValueError("%s are given for %s; the program has %s"
                             % (kind, ", ".join(unknown), ", ".join(sorted(names)) or "none"))


def _described(name: str, tensor: Any) -> Tuple[str, int]:
    """Returns (storage type, rank) of a tensor that program text uses by name."""
    if getattr(tensor, "dtype", None) not in DTYPES:
        raise TypeError("tensors[%r] is %s; a tensor of %s is accepted" % (
            name, getattr(tensor, "dtype", "of type " + type(tensor).__name__), ", ".join(map(str, DTYPES))))
    return DTYPE_NAMES[DTYPES[tensor.dtype]], tensor.dim()


def _call_of_text(traced: Any, scale: Any, config: Sequence[int], dropout_p: float, extras: Sequence[Tensor],
                  params: Mapping[str, Any], tensors: Mapping[str, Any], device: torch.device) -> Call:
    """Returns the Call (the operators' arguments besides q, k and v) of a program whose params and tensors are given by
    name. Params may be tensors, which get gradients."""
    program = traced.program
    _check_names(traced, params, tensors)
    values = _named("params", params, [p.name for p in program.params], {p.name: p.default for p in program.params})
    captured = _named("tensors", tensors, [c.name for c in program.captures], {})
    numbered = [param_number(p.name, p.type, x) for p, x in zip(program.params, values)]
    if has_scalars_on_device(scale, numbered, config, extras):
        return call_on_device(program.text, captured, scale, numbered, config, dropout_p, extras, device)
    ints, floats = split_params(program, numbered)
    scalars = [floats_as_tensor(floats)] if any(isinstance(x, _AT_RUN_TIME) for x in floats) else []
    numbers = [math.nan if scale is None else scale, dropout_p, *([] if scalars else floats)]
    return Call(program.text, captured, extras, scalars, ints, numbers, config)


def with_bprop(call: Call, traced: Any) -> Call:
    """Returns `call` with the user-written backward program of `traced`, or `call` itself if there is none."""
    if traced.bprop is None:
        return call
    ints, floats = split_params(traced.bprop, traced.bprop_params)
    ints = [x if isinstance(x, torch.SymInt) else int(x) for x in ints]
    scalars, numbers = call.scalars, [*call.floats]
    in_memory = call.flags() & _abi.SCALARS_IN_MEMORY  # even then, params of a backward program are numbers
    if floats and not in_memory and (len(scalars) or any(isinstance(x, _AT_RUN_TIME) for x in floats)):
        own = scalars[0] if len(scalars) else torch.tensor(numbers[2:], dtype=torch.float64, device="cpu")
        scalars, numbers, floats = [torch.cat([own, floats_as_tensor(floats).detach()])], numbers[:2], []
    config = [*call.config, *[0] * (ops.MAPS - len(call.config))]
    own_text = call.program or "\n"  # length 0 would mean that there is no backward program
    config[ops.BPROP_TEXT], config[ops.BPROP_TENSORS] = len(own_text.encode()), len(call.tensors)
    tensors = [*call.tensors, *map(as_tensor, traced.bprop_tensors)]
    return Call(own_text + traced.bprop.text, tensors, call.extras, scalars, [*call.ints, *ints],
                [*numbers, *map(float, floats)], config)
