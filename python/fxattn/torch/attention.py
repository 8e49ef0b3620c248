# SPDX-License-Identifier: Apache-2.0
"""attention(): fused attention for PyTorch tensors, with every feature of the library.

settings.py converts options to the integers, floats and extra tensors that PyTorch's operators take. Score and mask
functions become a program (score_arguments.py).
"""
import inspect
import itertools
from typing import TYPE_CHECKING, Any, Callable, Dict, Literal, Mapping, NamedTuple, Optional, Tuple, Union, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn.attention import flex_attention as _theirs
from torch.utils import _pytree

from .. import _abi
from .._errors import ArgumentError
from .._options import flag, unknown_keywords
from ..trace import Traced
from ..trace.graph import trace_graph
from .call import call_of
from .dtypes import autocast_inputs
from .forward_mode import refuse_tangents
from .route import run
from .routes import bypass, compiled
from .routes.bypass import ALIKE, ALIKE_GROUPED
from .routes.callback_script import record
from .routes.direct import known_output, output
from .score_arguments import ScoreArguments, Mod, numbers_of_host, with_bprop
from .settings import Settings, check_scale

# _TO_BHSD converts each layout to [B,H,S,D] (packed rows: [1,H,T,D]); _FROM_BHSD converts results back.
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
_UNPACKED = ("bhsd", "bshd", "sbhd")
# _FLAGS: the values of (is_causal, bottom_right, deterministic, bounds_check) -> flags of the problem.
_SWITCHES = (_abi.CAUSAL, _abi.BOTTOM_RIGHT, _abi.DETERMINISTIC, _abi.BOUNDS_CHECK)
_FLAGS = {ons: sum(flag for flag, on in zip(_SWITCHES, ons) if on)
          for ons in itertools.product((False, True), repeat=4)}


class AttentionOutput(NamedTuple):
    """The result of attention() with return_lse or return_row_max. LSE and row maxima are [B,H,S], or [H,T] for packed
    rows; None if not requested."""

    out: Tensor
    lse: Optional[Tensor] = None
    row_max: Optional[Tensor] = None


# torch.export.save writes the type of a program's result by this name.
_pytree._register_namedtuple(AttentionOutput, serialized_type_name="fxattn.torch.AttentionOutput")

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Keywords(TypedDict, total=False):
        """The keywords of attention() that do not change the type of its result."""

        layout: str
        scale: Optional[float]
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
        q_start: Any
        sinks: Union[None, str, Tensor]
        dropout_p: float
        seed: Union[None, int, Tensor]
        params: Optional[Mapping[str, Any]]
        tensors: Optional[Mapping[str, Any]]
        style: str
        score_mod_bprop: Mod
        bprop_params: Optional[Mapping[str, Any]]
        bprop_tensors: Optional[Mapping[str, Any]]
        lse_dtype: Optional[torch.dtype]
        deterministic: bool
        bounds_check: bool


# The overloads are for type checkers: attention() returns a Tensor, or an AttentionOutput with return_lse or
# return_row_max. tests/python/test_types.py checks that _Keywords has the keywords of attention().
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = ..., mask_mod: Mod = ..., *,
              return_lse: Literal[False] = ..., return_row_max: Literal[False] = ...,
              **keywords: "Unpack[_Keywords]") -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = ..., mask_mod: Mod = ..., *, return_lse: bool = ...,
              return_row_max: bool = ..., **keywords: "Unpack[_Keywords]") -> AttentionOutput: ...


def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod = None, mask_mod: Mod = None, *, layout: str = "bhsd",
              scale: Optional[float] = None, is_causal: bool = False,
              window: Optional[Tuple[Optional[int], Optional[int]]] = None, bottom_right: bool = False,
              q_lengths: Any = None, k_lengths: Any = None, cu_q: Any = None, cu_k: Any = None,
              max_q: Optional[int] = None, max_k: Optional[int] = None, pages: Any = None, q_start: Any = None,
              sinks: Union[None, str, Tensor] = None, dropout_p: float = 0.0, seed: Union[None, int, Tensor] = None,
              params: Optional[Mapping[str, Any]] = None, tensors: Optional[Mapping[str, Any]] = None,
              style: str = "flex", score_mod_bprop: Mod = None, bprop_params: Optional[Mapping[str, Any]] = None,
              bprop_tensors: Optional[Mapping[str, Any]] = None, return_lse: bool = False,
              return_row_max: bool = False, lse_dtype: Optional[torch.dtype] = None, deterministic: bool = False,
              bounds_check: bool = False, **unknown: Any) -> Union[Tensor, AttentionOutput]:
    """Returns softmax(f(scale * q k^T)) v, where f is score_mod, in the layout and dtype of q, with the head dim of v.

    With return_lse or return_row_max, returns an AttentionOutput(out, lse, row_max). LSE and row maxima are [B,H,S], or
    [H,T] for packed rows. All results except row_max are differentiable.

    `q, k, v`: [B,H,S,D], or in the order that `layout` names. The number of heads of q is a multiple of that of k and
        v.
    `score_mod, mask_mod`: functions as for FlexAttention; program text or a Program, with `params` and `tensors` by
        name (a param may be a tensor of one element, which gets a gradient); or, with style="graph", Transformer
        Engine's score_mod(graph, score, tensors).
    `score_mod_bprop`: a user-written backward: program text or a Program, with `bprop_params` and `bprop_tensors` by
        name; or, with style="graph", score_mod_bprop(graph, dscore, tensors), which gets `bprop_tensors`.
    `layout`: "bhsd", "bshd" or "sbhd"; for packed rows "thd" or "htd". If the rows are not packed, k and v of batch
        size 1 are used for every batch entry of q.
    `cu_q, cu_k, max_q, max_k`: for packed rows, the offsets [B+1] of the sequences (cu_k None: cu_q) and the lengths of
        the longest sequences (None: computed from the offsets). The output of rows that belong to no sequence is 0.
    `scale`: the factor of q k^T, by default 1 / sqrt(D).
    `is_causal, window`: built-in masks. Pairs with k <= q are attended with is_causal, and those with q - left <= k <=
        q + right with window=(left, right), where None or -1 means unlimited.
    `bottom_right`: True shifts the positions q so that the last row has the position of the last key: only in the
        built-in masks if there are any (is_causal, window), else in the q that score_mod and mask_mod get.
    `q_lengths, k_lengths`: [B], the number of rows and of keys of each batch entry.
    `pages`: [B,n], the numbers of the n pages of each batch entry; requires k_lengths. With pages, the shape of k and v
        is [pages,H,page_size,D], or with layouts "bshd" and "thd" [pages,page_size,H,D].
    `q_start`: [B], the position q of the first row of each batch entry.
    `sinks`: "zero" adds a key of score 0; a tensor [H] adds a key with a learned score per query head.
    `dropout_p, seed`: dropout of softmax probabilities. Without `seed`, a seed is drawn from PyTorch's generator.
    `return_lse, return_row_max`: add LSE or row maxima to the result.
    `lse_dtype`: the dtype of LSE, torch.float32 or torch.float64.
    `deterministic`: requires the same bits in every run; raises an error if no engine can guarantee equal bits.
    `bounds_check`: an index outside its captured tensor raises IndexError. Without bounds_check, an index outside its
        captured tensor reads 0.

    Raises ValueError, TypeError or NotImplementedError for an argument that is wrong or not supported. Error messages
    name the argument and what is accepted.
    """
    if unknown:
        raise unknown_keywords(unknown, _SIGNATURE.parameters)
    if (layout in _UNPACKED and return_lse is False and return_row_max is False and sinks is None
            and params is None and window is None and q_lengths is None and k_lengths is None and cu_q is None
            and cu_k is None and max_q is None and max_k is None and pages is None and q_start is None
            and seed is None and bprop_params is None and type(dropout_p) is float and dropout_p == 0.0
            and not is_dynamo_compiling() and bypass.is_plain(q, k, v)):
        flags = _FLAGS.get((_switch(is_causal), _switch(bottom_right), _switch(deterministic), _switch(bounds_check)))
        found = None if flags is None else _simple_output(q, k, v, layout, score_mod, mask_mod, scale, flags, style,
                                                    score_mod_bprop, tensors, bprop_tensors)
        if found is not None:
            return found
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError("%s is of type %s; a tensor is accepted" % (name, type(x).__name__))
        if not x.is_floating_point():
            raise TypeError("%s is of %s; floats are accepted" % (name, x.dtype))
    if not is_dynamo_compiling():
        refuse_tangents(0, (q, k, v))  # first, because linearize() cannot read offsets and lengths
    if layout not in _TO_BHSD:
        raise ValueError("layout is %r; %s are accepted" % (layout, ", ".join(_TO_BHSD)))
    q, k, v = autocast_inputs(q, k, v)
    q, k, v = _arranged(q, k, v, layout, pages is not None)
    _check_offsets(layout, cu_q, cu_k)
    cu_k = cu_q if cu_k is None and pages is None else cu_k
    check_scale(scale)
    s = Settings(q.device)
    return_lse, return_row_max = flag("return_lse", return_lse), flag("return_row_max", return_row_max)
    s.flag(_abi.CAUSAL, flag("is_causal", is_causal))
    s.flag(_abi.BOTTOM_RIGHT, flag("bottom_right", bottom_right))
    s.flag(_abi.DETERMINISTIC, flag("deterministic", deterministic))
    s.flag(_abi.BOUNDS_CHECK, flag("bounds_check", bounds_check))
    s.flag(_abi.RETURN_LSE, return_lse)
    s.flag(_abi.RETURN_ROW_MAX, return_row_max)
    s.window(window)
    entries = q.shape[0] if cu_q is None else None
    s.integers("q_lengths", _abi.SLOT_Q_LENGTHS, q_lengths, _abi.PADDING, entries)
    s.integers("k_lengths", _abi.SLOT_K_LENGTHS, k_lengths, _abi.PADDING, entries)
    s.integers("cu_q", _abi.SLOT_CU_Q, cu_q, _abi.VARLEN)
    s.integers("cu_k", _abi.SLOT_CU_K, cu_k, _abi.VARLEN)
    s.integers("pages", _abi.SLOT_PAGES, pages, _abi.PAGED)
    if pages is not None and k_lengths is None:
        raise ValueError("pages is given without k_lengths, the number of keys that each batch entry has in its pages")
    s.integers("q_start", _abi.SLOT_Q_START, q_start, _abi.Q_START, entries)
    s.sizes_of_packed(k, max_q, max_k)
    s.sinks(sinks, q.shape[1])
    dropout_p = s.dropout(dropout_p, seed)
    given = ScoreArguments(score_mod, mask_mod, params, tensors, style, score_mod_bprop, bprop_tensors, bprop_params)
    out, lse, rows = _run(s, q, k, v, scale, dropout_p, given)
    out = _FROM_BHSD[layout](out)
    if not (return_lse or return_row_max):
        return out
    packed = layout in PACKED
    lse = lse.to(_lse_dtype(lse_dtype, rows.dtype))
    lse, rows = (x.squeeze(0) if packed and x.dim() == 3 else x for x in (lse, rows))
    return AttentionOutput(out, lse if return_lse else None, rows if return_row_max else None)


def _lse_dtype(given: Optional[torch.dtype], usual: torch.dtype) -> torch.dtype:
    """Returns the dtype of the returned LSE: `given`, or `usual` if `given` is None. Raises ArgumentError if `given` is
    narrower than `usual`, or no float32 or float64."""
    if given is None:
        return usual
    if given not in (usual, torch.float64):
        raise ArgumentError("lse_dtype is %s; %s is accepted" % (
            given, "torch.float64" if usual == torch.float64 else "torch.float32 or torch.float64"))
    return given


def _switch(value: Any) -> Any:
    """Returns `value` if it is True or False, else None."""
    return value if value is True or value is False else None


# The signature that help() shows: without **unknown, which collects keywords that are refused.
_SIGNATURE = inspect.signature(attention)
_SIGNATURE = _SIGNATURE.replace(parameters=list(_SIGNATURE.parameters.values())[:-1])
attention.__signature__ = _SIGNATURE  # type: ignore[attr-defined]


def _simple_output(q: Tensor, k: Tensor, v: Tensor, layout: str, score_mod: Mod, mask_mod: Mod, scale: Any, flags: int,
             style: str, bprop: Mod, tensors: Any, bprop_tensors: Any) -> Optional[Tensor]:
    """Returns the output of a call that has only functions and flags, and that needs no further checks. Returns None
    for a call that has options besides functions and flags, or that needs further checks; attention() then handles the
    call in full. Requires bypass.is_plain(q, k, v)."""
    if layout != "bhsd":
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
            return None
        arrange = _TO_BHSD[layout]
        q, k, v = arrange(q), arrange(k), arrange(v)
    found = None
    if style == "flex" and bprop is None and tensors is None and bprop_tensors is None:
        found = known_output(q, k, v, score_mod, mask_mod, scale, (flags,), ALIKE_GROUPED)
    elif (style == "graph" and callable(score_mod) and mask_mod is None and scale is None
          and (tensors is None or type(tensors) is dict) and (bprop_tensors is None or type(bprop_tensors) is dict)):
        found = _graph_output(q, k, v, flags, score_mod, bprop, tensors, bprop_tensors)
    return found if found is None or layout == "bhsd" else _FROM_BHSD[layout](found)


@compiled.untraced
def _graph_output(q: Tensor, k: Tensor, v: Tensor, flags: int, score_mod: Callable[..., Any], bprop: Mod, tensors: Any,
                   bprop_tensors: Any) -> Optional[Tensor]:
    """Returns the output of a call with equal shapes of k and v whose only options are callbacks (graph, score,
    tensors). Returns None for a call that has options besides callbacks, or k and v of different shapes; attention()
    then handles the call in full and reports errors. Requires bypass.is_plain(q, k, v)."""
    sizes, keys = q.shape, k.shape
    if len(sizes) != 4 or len(keys) != 4 or keys != v.shape:
        return None
    batch, heads, rows, width = sizes
    if keys[0] != batch or keys[1] != heads or keys[3] != width:
        return None
    if not q.is_cpu:
        tensors, bprop_tensors = numbers_of_host(q, tensors), numbers_of_host(q, bprop_tensors)
    traced = Traced(*trace_graph(score_mod, None, bprop, tensors or {}, bprop_tensors, (batch, heads, rows, keys[2])))
    return output(with_bprop(call_of(traced, None, (flags,)), traced), q, k, v, ALIKE)


def _arranged(q: Tensor, k: Tensor, v: Tensor, layout: str, paged: bool) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v as [B,H,S,D]; packed rows have one batch entry, and pages are the batch of k and v. Raises
    ValueError if the shapes do not fit together."""
    kv_layout = {"thd": "bshd", "htd": "bhsd"}.get(layout, layout) if paged else layout
    for name, x, its in (("q", q, layout), ("k", k, kv_layout), ("v", v, kv_layout)):
        if x.dim() != len(its):
            raise ValueError("%s has shape %s; %d dimensions are accepted, in the order %s"
                             % (name, tuple(x.shape), len(its), its))
    q, k, v = _TO_BHSD[layout](q), _TO_BHSD[kv_layout](k), _TO_BHSD[kv_layout](v)
    batch, separate = q.shape[0], paged or layout in PACKED
    rules = ((k.shape[:3] != v.shape[:3], "k and v must be alike but for the size of a row"),
             (k.shape[3] != q.shape[3], "rows of q and k must have one size"),
             (not separate and k.shape[0] != batch and k.shape[0] != 1, "k and v must have the batch size of q, or 1"),
             (k.shape[1] == 0 and q.shape[1] != 0, "k has 0 heads and q has some"),
             (k.shape[1] != 0 and q.shape[1] % k.shape[1] != 0, "heads of q must be a multiple of those of k"))
    for wrong, text in rules:
        if wrong:
            raise ValueError("%s; given are, in the order bhsd, q %s, k %s and v %s"
                             % (text, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
    if not separate and k.shape[0] != batch:
        k, v = k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)
    return q, k, v


def _check_offsets(layout: str, cu_q: Any, cu_k: Any) -> None:
    given = ", ".join(name for name, offsets in (("cu_q", cu_q), ("cu_k", cu_k)) if offsets is not None)
    if given and layout not in PACKED:
        raise ValueError("layout %r with %s; packed rows are %s" % (layout, given, " or ".join(PACKED)))
    if cu_q is None and layout in PACKED:
        raise ValueError("layout %r without cu_q, the offsets of its sequences" % layout)


def _run(s: Settings, q: Tensor, k: Tensor, v: Tensor, scale: Optional[float], dropout_p: float,
         given: ScoreArguments) -> Tuple[Tensor, ...]:
    config, extras = s.config(), s.extras()
    given.check()
    if is_dynamo_compiling():
        options = {"config": config, "dropout_p": dropout_p}
        score_mod, mask_mod, operands = given.score_mod, given.mask_mod, ()
        if not given.is_functions:
            score_mod = None
            options["source"], operands, mask_mod = record(given)
            options["operands"] = len(operands)
        # Not None: Dynamo would look up the source of a default argument None, and expects a function there.
        mask = _theirs.noop_mask if mask_mod is None else mask_mod
        return compiled.call_in_graph(q, k, v, score_mod, (*extras, *operands, mask), scale, **options)
    return _run_eager(config, extras, q, k, v, scale, dropout_p, given)


@compiled.untraced
def _run_eager(config: Any, extras: Any, q: Tensor, k: Tensor, v: Tensor, scale: Any, dropout_p: float,
                 given: ScoreArguments) -> Tuple[Tensor, ...]:
    return run(given.call(q, k, scale, config, dropout_p, extras), q, k, v)
