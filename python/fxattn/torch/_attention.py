# SPDX-License-Identifier: Apache-2.0
"""attention(): everything that the library has, for PyTorch tensors; flex_attention is it with PyTorch's arguments.

What a call may have is turned into settings and extra tensors of the operators (_settings.py); the functions, into a
program.
"""
import math
from typing import (TYPE_CHECKING, Any, Callable, Dict, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple,
                    Union, overload)

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _theirs

from .. import _abi
from .._program import DTYPE_NAMES, Program
from .._source import check_kinds, text_program
from ..trace import Traced, trace
from . import _dynamo
from . import _operators as ops
from ._autograd import Call
from ._plain import DTYPES
from ._settings import Settings, check_mappings, param_number, shape_of_scores
from ._traced import as_tensor, call_of, check_scale, floats_as_tensor, split_params
from .flex import _identity, autocast_inputs

Mod = Union[None, str, Program, Callable[..., Any]]

# To [B,H,S,D] (packed rows [1,H,T,D]) and back, by the order of dimensions.
_TO_BHSD: Dict[str, Callable[[Tensor], Tensor]] = {
    "bhsd": lambda x: x,
    "bshd": lambda x: x.transpose(1, 2),
    "sbhd": lambda x: x.permute(1, 2, 0, 3),
    "thd": lambda x: x.transpose(0, 1).unsqueeze(0),
    "htd": lambda x: x.unsqueeze(0),
}
_FROM_BHSD: Dict[str, Callable[[Tensor], Tensor]] = {
    "bhsd": lambda x: x,
    "bshd": lambda x: x.transpose(1, 2),
    "sbhd": lambda x: x.permute(2, 0, 1, 3),
    "thd": lambda x: x.squeeze(0).transpose(0, 1),
    "htd": lambda x: x.squeeze(0),
}
PACKED = ("thd", "htd")
STYLES = ("flex", "graph")


class AttentionOutput(NamedTuple):
    """The output, and what was asked for besides. lse and max are [B,H,S], of packed rows [H,T]."""

    out: Tensor
    lse: Optional[Tensor] = None
    max: Optional[Tensor] = None


if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Keywords(TypedDict, total=False):
        """The keywords of attention() that do not change what it returns."""

        scale: Optional[float]
        layout: str
        is_causal: bool
        window: Optional[Tuple[Optional[int], Optional[int]]]
        bottom_right: bool
        q_lengths: Any
        k_lengths: Any
        cu_q: Any
        cu_k: Any
        max_q: Optional[int]
        max_k: Optional[int]
        pages: Any
        positions: Any
        sink: Union[None, str, Tensor]
        dropout_p: float
        seed: Union[None, int, Tensor]
        params: Optional[Mapping[str, Any]]
        tensors: Optional[Mapping[str, Any]]
        style: str
        score_mod_bprop: Mod
        bprop_tensors: Optional[Mapping[str, Any]]
        deterministic: bool
        strict_index: bool


def _named(kind: str, given: Mapping[str, Any], names: Sequence[str], defaults: Mapping[str, Any]) -> List[Any]:
    """Values of a program's params or tensors, by name."""
    missing = [name for name in names if name not in given and defaults.get(name) is None]
    if missing:
        raise ValueError("the program has %s %s, of which no value is given for %s"
                         % (kind, ", ".join(names), ", ".join(missing)))
    return [given[name] if name in given else defaults[name] for name in names]


def _check_names(traced: Any, params: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Nothing is given that neither program has."""
    for kind, given, declared in (("params", params, "params"), ("tensors", tensors, "captures")):
        programs = [p for p in (traced.program, traced.bprop) if p is not None]
        names = {one.name for program in programs for one in getattr(program, declared)}
        unknown = sorted(set(given) - names)
        if unknown:
            raise ValueError("%s are given for %s; the program has %s"
                             % (kind, ", ".join(unknown), ", ".join(sorted(names)) or "none"))


def _described(name: str, tensor: Any) -> Tuple[str, int]:
    """Storage type and rank of a tensor that text uses by its name."""
    if getattr(tensor, "dtype", None) not in DTYPES:
        raise TypeError("tensors[%r] is %s; a tensor of %s is accepted" % (
            name, getattr(tensor, "dtype", "of type " + type(tensor).__name__), ", ".join(map(str, DTYPES))))
    return DTYPE_NAMES[DTYPES[tensor.dtype]], tensor.dim()


def _call_of_text(traced: Any, scale: Any, config: Sequence[int], dropout_p: float, extras: Sequence[Tensor],
                  params: Optional[Mapping[str, Any]], tensors: Optional[Mapping[str, Any]]) -> Call:
    """The call of a program whose params and tensors are given by name; params may be tensors, which get gradients."""
    params, tensors, program = params or {}, tensors or {}, traced.program
    _check_names(traced, params, tensors)
    values = _named("params", params, [p.name for p in program.params], {p.name: p.default for p in program.params})
    captured = _named("tensors", tensors, [c.name for c in program.captures], {})
    numbered = [param_number(p.name, p.type, x) for p, x in zip(program.params, values)]
    ints, floats = split_params(program, numbered)
    scalars = [floats_as_tensor(floats)] if any(isinstance(x, Tensor) for x in floats) else []
    numbers = [math.nan if scale is None else scale, dropout_p, *([] if scalars else floats)]
    return Call(program.text, captured, extras, scalars, ints, numbers, config)


def _with_bprop(call: Call, traced: Any) -> Call:
    """The same with a backward program of the user's."""
    if traced.bprop is None:
        return call
    values = list(zip(traced.bprop.params, traced.bprop_params))
    floats, scalars = [float(x) for p, x in values if p.type == "float"], call.scalars
    if floats and len(scalars):
        scalars, floats = [torch.cat([scalars[0], torch.tensor(floats, dtype=torch.float64)])], []
    config = [*call.config, *[0] * (ops.MAPS - len(call.config))]
    config[ops.BPROP_TEXT], config[ops.BPROP_TENSORS] = len(call.program.encode()), len(call.tensors)
    tensors = [*call.tensors, *map(as_tensor, traced.bprop_tensors)]
    return Call(call.program + traced.bprop.text, tensors, call.extras, scalars,
                [*call.ints, *(int(x) for p, x in values if p.type == "int")], [*call.floats, *floats], config)


# For type checkers: a tensor, or an AttentionOutput with return_lse or return_max. tests/python/test_types.py holds the
# keywords against those of the function.
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = ..., mask_mod: Mod = ..., *,
              return_lse: Literal[False] = ..., return_max: Literal[False] = ...,
              **keywords: "Unpack[_Keywords]") -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = ..., mask_mod: Mod = ..., *, return_lse: bool = ...,
              return_max: bool = ..., **keywords: "Unpack[_Keywords]") -> AttentionOutput: ...


def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = None, mask_mod: Mod = None, *,
              scale: Optional[float] = None, layout: str = "bhsd", is_causal: bool = False,
              window: Optional[Tuple[Optional[int], Optional[int]]] = None, bottom_right: bool = False,
              q_lengths: Any = None, k_lengths: Any = None, cu_q: Any = None, cu_k: Any = None,
              max_q: Optional[int] = None, max_k: Optional[int] = None, pages: Any = None, positions: Any = None,
              sink: Union[None, str, Tensor] = None, dropout_p: float = 0.0, seed: Union[None, int, Tensor] = None,
              params: Optional[Mapping[str, Any]] = None, tensors: Optional[Mapping[str, Any]] = None,
              style: str = "flex", score_mod_bprop: Mod = None, bprop_tensors: Optional[Mapping[str, Any]] = None,
              return_lse: bool = False, return_max: bool = False, deterministic: bool = False,
              strict_index: bool = False) -> Union[Tensor, AttentionOutput]:
    """softmax(f(scale * q k^T)) v.

    score_mod, mask_mod  FlexAttention's functions; program text or a Program, with `params` and `tensors` by name (a
                         param may be a tensor of one element, and gets a gradient); with style="graph" Transformer
                         Engine's score_mod(graph, score, tensors) and score_mod_bprop(graph, dscore, tensors),
                         which get `tensors` and `bprop_tensors`
    layout               bhsd, bshd, sbhd, where a batch of 1 in k and v serves all; of packed rows thd or htd, with
                         cu_q and cu_k (offsets, [B+1]; cu_k None: the same) and max_q, max_k, the longest sequences
                         (found from the offsets where they are not given); rows of no sequence are 0
    is_causal, window    ready masks: k <= q; q - left <= k <= q + right, None is open. bottom_right: they (or, without
                         them, the rows) are aligned with the last key
    q_lengths, k_lengths lengths per batch entry
    pages                [B, blocks] of a cache: k and v are [pages,H,page_size,D] then, with layout bshd and thd
                         [pages,page_size,H,D]
    positions            where the rows of each batch entry begin, [B]
    sink                 "zero": a key of score 0; a tensor [H]: a learned score per head
    dropout_p, seed      of probabilities; without a seed one is drawn from PyTorch's generator
    return_lse, return_max   give an AttentionOutput
    deterministic        the same bits in every run, or an error; strict_index: so are indices outside captured tensors
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError("%s is of type %s; a tensor is accepted" % (name, type(x).__name__))
    if layout not in _TO_BHSD:
        raise ValueError("layout is %r; %s are accepted" % (layout, ", ".join(_TO_BHSD)))
    q, k, v = autocast_inputs(q, k, v)
    q, k, v = _arranged(q, k, v, layout, pages is not None)
    _check_offsets(layout, cu_q, cu_k)
    cu_k = cu_q if cu_k is None and pages is None else cu_k
    check_scale(scale)
    s = Settings(q.device)
    s.flag(_abi.CAUSAL, is_causal)
    s.flag(_abi.BOTTOM_RIGHT, bottom_right)
    s.flag(_abi.DETERMINISTIC, deterministic)
    s.flag(_abi.STRICT_INDEX, strict_index)
    s.flag(_abi.WANT_LSE, return_lse)
    s.flag(_abi.WANT_MAX, return_max)
    s.window(window)
    s.integers("q_lengths", _abi.SLOT_LEN_Q, q_lengths, _abi.PADDING)
    s.integers("k_lengths", _abi.SLOT_LEN_K, k_lengths, _abi.PADDING)
    s.integers("cu_q", _abi.SLOT_CU_Q, cu_q, _abi.VARLEN)
    s.integers("cu_k", _abi.SLOT_CU_K, cu_k, _abi.VARLEN)
    s.integers("pages", _abi.SLOT_PAGES, pages, _abi.PAGED)
    s.integers("positions", _abi.SLOT_POS_Q, positions, _abi.POSITIONS)
    s.sizes_of_packed(k, max_q, max_k)
    s.sink(sink, q.shape[1])
    dropout_p = s.dropout(dropout_p, seed)
    out, lse, rows = _run(s, q, k, v, score_mod, mask_mod, scale, dropout_p, params, tensors, style, score_mod_bprop,
                          bprop_tensors)
    out = _FROM_BHSD[layout](out)
    if not (return_lse or return_max):
        return out
    packed = layout in PACKED
    lse, rows = (x.squeeze(0) if packed and x.dim() == 3 else x for x in (lse.to(rows.dtype), rows))
    return AttentionOutput(out, lse if return_lse else None, rows if return_max else None)


def _arranged(q: Tensor, k: Tensor, v: Tensor, layout: str, paged: bool) -> Tuple[Tensor, Tensor, Tensor]:
    """q, k and v as [B,H,S,D], of shapes that fit. Packed rows have one batch entry, pages are those of k and v."""
    kv_layout = {"thd": "bshd", "htd": "bhsd"}.get(layout, layout) if paged else layout
    for name, x, its in (("q", q, layout), ("k", k, kv_layout), ("v", v, kv_layout)):
        if x.dim() != len(its):
            raise ValueError("%s has shape %s; %d dimensions are accepted, in the order %s"
                             % (name, tuple(x.shape), len(its), its))
    q, k, v = _TO_BHSD[layout](q), _TO_BHSD[kv_layout](k), _TO_BHSD[kv_layout](v)
    batch, apart = q.shape[0], paged or layout in PACKED
    rules = ((k.shape[:3] != v.shape[:3], "k and v must be alike but for the size of a row"),
             (k.shape[3] != q.shape[3], "rows of q and k must have one size"),
             (not apart and k.shape[0] != batch and k.shape[0] != 1, "k and v must have the batch size of q, or 1"),
             (k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0, "heads of q must be a multiple of those of k"))
    for wrong, text in rules:
        if wrong:
            raise ValueError("%s; given are, in the order bhsd, q %s, k %s and v %s"
                             % (text, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
    if not apart and k.shape[0] != batch:
        k, v = k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)
    return q, k, v


def _check_offsets(layout: str, cu_q: Any, cu_k: Any) -> None:
    given = ", ".join(name for name, offsets in (("cu_q", cu_q), ("cu_k", cu_k)) if offsets is not None)
    if given and layout not in PACKED:
        raise ValueError("layout %r with %s; packed rows are %s" % (layout, given, " or ".join(PACKED)))
    if cu_q is None and layout in PACKED:
        raise ValueError("layout %r without cu_q, the offsets of its sequences" % layout)


def _run(s: Settings, q: Tensor, k: Tensor, v: Tensor, score_mod: Mod, mask_mod: Mod, scale: Optional[float],
         dropout_p: float, params: Any, tensors: Any, style: str, bprop: Mod, bprop_tensors: Any) -> Tuple[Tensor, ...]:
    config, extras = s.config(), s.extras()
    functions = style == "flex" and bprop is None and not isinstance(score_mod, (str, Program)) \
        and not isinstance(mask_mod, (str, Program))
    _check_sources(functions, style, score_mod, mask_mod, bprop,
                   {"params": params, "tensors": tensors, "bprop_tensors": bprop_tensors})
    if functions and torch.compiler.is_dynamo_compiling():
        # Not None: one that is a default argument has a place in the caller, where Dynamo would look for a function.
        mask = _theirs.noop_mask if mask_mod is None else mask_mod
        return _dynamo.flex(q, k, v, _identity if score_mod is None else score_mod, (*extras, mask),
                            math.nan if scale is None else scale,
                            {"config": config, "dropout_p": dropout_p, "version": _dynamo.VERSION})
    return _run_eagerly(config, extras, q, k, v, score_mod, mask_mod, scale, dropout_p, params, tensors, style, bprop,
                        bprop_tensors, functions)


def _check_sources(functions: bool, style: str, score_mod: Mod, mask_mod: Mod, bprop: Mod,
                   named: Mapping[str, Any]) -> None:
    if isinstance(mask_mod, _theirs.BlockMask):
        raise TypeError("mask_mod is a BlockMask; give its mask_mod, or call flex_attention with it as block_mask")
    if style not in STYLES:
        raise ValueError("style is %r; %s are accepted" % (style, " and ".join('"%s"' % one for one in STYLES)))
    if bprop is not None and score_mod is None and mask_mod is None:
        raise ValueError("score_mod_bprop is given without score_mod")
    if style == "flex" and callable(bprop):
        raise ValueError("score_mod_bprop is a function, beside FlexAttention's score_mod, whose derivative is known; "
                         "style=\"graph\" takes one")
    check_mappings(named)
    graph = _is_graph(style, score_mod, mask_mod)
    unused = [name for name, given in named.items() if given and (functions or (graph and name == "params"))]
    if unused:
        raise ValueError("%s given beside a function, which brings what it uses by itself" % " and ".join(unused))


def _is_graph(style: str, score_mod: Mod, mask_mod: Mod) -> bool:
    """Whether callbacks of the graph style are given; text means the same in both styles."""
    return style == "graph" and not isinstance(score_mod, (str, Program)) and not isinstance(mask_mod, (str, Program))


@_dynamo.outside
def _run_eagerly(config: Any, extras: Any, q: Tensor, k: Tensor, v: Tensor, score_mod: Mod, mask_mod: Mod, scale: Any,
                 dropout_p: float, params: Any, tensors: Any, style: str, bprop: Mod, bprop_tensors: Any,
                 functions: bool) -> Tuple[Tensor, ...]:
    if functions:
        traced = None if score_mod is None and mask_mod is None else trace(score_mod, mask_mod)
        return call_of(traced, scale, config, dropout_p, extras).run(q, k, v)
    if _is_graph(style, score_mod, mask_mod):
        traced = trace(score_mod, mask_mod, style="graph", bprop=bprop, tensors=tensors or {},
                       bprop_tensors=bprop_tensors, shape=shape_of_scores(config, extras, q, k))
        return _with_bprop(call_of(traced, scale, config, dropout_p, extras), traced).run(q, k, v)
    check_kinds(score_mod=score_mod, mask_mod=mask_mod, score_mod_bprop=bprop)
    program = text_program([(score_mod, "score"), (mask_mod, "mask")], "score", _described, tensors, params)
    backward = text_program([(bprop, "dscore")], "bprop", _described, {**(tensors or {}), **(bprop_tensors or {})},
                            params)
    traced = Traced(Program() if program is None else program, bprop=backward)
    call = _call_of_text(traced, scale, config, dropout_p, extras, params, tensors)
    if traced.bprop is not None:
        values = _named("params", params or {}, [p.name for p in traced.bprop.params],
                        {p.name: p.default for p in traced.bprop.params})
        captured = _named("tensors", {**(tensors or {}), **(bprop_tensors or {})},
                          [c.name for c in traced.bprop.captures], {})
        numbers = tuple(param_number(p.name, p.type, x) for p, x in zip(traced.bprop.params, values))
        traced = traced._replace(bprop_params=numbers, bprop_tensors=tuple(captured))
    return _with_bprop(call, traced).run(q, k, v)
