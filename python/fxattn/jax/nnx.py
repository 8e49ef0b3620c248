# SPDX-License-Identifier: Apache-2.0
"""Attention modules for flax.nnx with the names and arguments of Transformer Engine. Callbacks (score_mod) are
arguments of the constructor, and tensors that callbacks use are arguments of the call.

The public modules are `fxattn.jax.nnx.DotProductAttention` and `fxattn.jax.nnx.MultiHeadAttention`.

The file flax.py has the same modules for flax.linen; both files use _layers.py.
"""
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple

import jax.numpy as jnp
from flax import nnx

from ._layers import Given, Settings, refuse, run, told
from ._mods import Mod
from ._sequences import SequenceDescriptor

__all__ = ["DotProductAttention", "MultiHeadAttention", "SequenceDescriptor"]


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _read_by(mod: Any) -> Iterator[nnx.Variable]:
    """Yields the nnx.Variables that function `mod` closes over, or reads from the module of which it is a method."""
    function = getattr(mod, "__func__", mod)
    held = [getattr(mod, "__self__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # the closure's cell is empty
            pass
    for x in held:
        if isinstance(x, nnx.Variable):
            yield x
        elif isinstance(x, nnx.Module):
            names = function.__code__.co_names
            yield from (value for name, value in vars(x).items() if name in names and isinstance(value, nnx.Variable))


def _traces_of(module: nnx.Module, mod: Any) -> Iterator[Tuple[Any, Any]]:
    """Yields (JAX trace that created the variable, JAX trace that created `module`) for each nnx.Variable that function
    `mod` reads. Yields nothing if the installed Flax does not record the trace of a variable or module."""
    own = getattr(getattr(module, "_pytree__state", None), "trace_state", None)
    for x in _read_by(mod):
        other = getattr(x, "_trace_state", None)
        if own is not None and other is not None:
            yield other, own


_COPIED = ("score_mod reads an nnx.Param of when the module was made: nnx.jit and nnx.grad copy modules, so that it "
           "would get no gradient and stay as it was compiled. Give it at call time, by score_mod_tensors to program "
           "text or score_mod(graph, score, tensors), or make the function in the __call__ of your module; a constant "
           "is captured as an array, x[...]")


@told
class DotProductAttention(nnx.Module):
    """Computes softmax(score_mod(scale_factor * q k^T)) v as [B,S,H,D] from query [B,S,H,D], key and value
    [B,T,G,D]."""

    def __init__(self, head_dim: int, num_attention_heads: int, num_gqa_groups: Optional[int] = None, *,
                 attention_dropout: float = 0.0, attn_mask_type: str = "causal", attn_bias_type: Optional[str] = None,
                 qkv_layout: str = "bshd_bshd_bshd", scale_factor: Optional[float] = None,
                 transpose_batch_sequence: bool = False, window_size: Optional[Tuple[int, int]] = None,
                 softmax_type: str = "vanilla", score_mod: Mod = None, score_mod_bprop: Mod = None,
                 bounds_check: bool = False, deterministic: bool = False, rngs: Optional[nnx.Rngs] = None) -> None:
        """`head_dim, num_attention_heads, num_gqa_groups`: as in fxattn.jax.flax.DotProductAttention.
        `attention_dropout, attn_mask_type, attn_bias_type, qkv_layout`: as in fxattn.jax.flax.DotProductAttention.
        `scale_factor, transpose_batch_sequence, window_size`: as in fxattn.jax.flax.DotProductAttention.
        `softmax_type, score_mod, score_mod_bprop, bounds_check`: as in fxattn.jax.flax.DotProductAttention.
        `deterministic`: True disables dropout in calls without their own `deterministic`.
        `rngs`: the RNGs of dropout in calls without their own `rngs`."""
        self.settings = Settings(head_dim, num_attention_heads, num_gqa_groups, attention_dropout, attn_mask_type,
                                 attn_bias_type, qkv_layout, scale_factor, transpose_batch_sequence, window_size,
                                 softmax_type, score_mod, score_mod_bprop, bounds_check)
        self.settings.check("DotProductAttention")
        self.deterministic = deterministic
        self.made_beside = all(other == own for other, own in _traces_of(self, score_mod))
        self.rngs = rngs.dropout.fork() if rngs is not None and self.settings.attention_dropout > 0.0 else None
        self.softmax_offset = nnx.Param(jnp.zeros(num_attention_heads, jnp.float32)) \
            if self.settings.softmax_type == "learnable" else None

    def __call__(self, query: Any, key: Any = None, value: Any = None, sequence_descriptor: Any = None,
                 bias: Any = None, *, deterministic: Optional[bool] = None, mask: Any = None,
                 score_mod_tensors: Optional[Mapping[str, Any]] = None,
                 score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None, rngs: Optional[nnx.Rngs] = None) -> Any:
        """Returns the attention output [B,S,H,D].

        `query, key, value, sequence_descriptor, bias, mask`: as in fxattn.jax.flax.DotProductAttention.
        `score_mod_tensors, score_mod_bprop_tensors`: as in fxattn.jax.flax.DotProductAttention.
        `deterministic, rngs`: replace the arguments of the constructor.
        """
        deterministic = self.deterministic if deterministic is None else deterministic
        if self.made_beside and any(other != own for other, own in _traces_of(self, self.settings.score_mod)):
            refuse("DotProductAttention", [_COPIED])
        key_of = None
        if self.settings.attention_dropout > 0.0 and not deterministic:
            stream = rngs.dropout if rngs is not None else self.rngs
            if stream is None:
                refuse("DotProductAttention", ["attention_dropout without rngs, in the constructor or in the call"])
            key_of = stream()  # type: ignore[misc]
        sinks = None if self.softmax_offset is None else self.softmax_offset[...]
        return run(self.settings, query, key, value,
                   Given(sequence_descriptor, bias, mask, score_mod_tensors, score_mod_bprop_tensors), sinks, key_of)


@told
class MultiHeadAttention(nnx.Module):
    """DotProductAttention with linear projections before and after it. Computes [B,S,F] from inputs_q [B,S,F] and
    inputs_kv [B,T,F] (None: inputs_q)."""

    def __init__(self, in_features: int, head_dim: int, num_attention_heads: int, num_gqa_groups: Optional[int] = None,
                 *, attention_dropout: float = 0.0, attn_mask_type: str = "causal",
                 attn_bias_type: Optional[str] = None, use_bias: bool = False,
                 kernel_init: Callable[..., Any] = nnx.initializers.lecun_normal(),
                 bias_init: Callable[..., Any] = nnx.initializers.zeros_init(), dtype: Any = None,
                 param_dtype: Any = jnp.float32, scale_factor: Optional[float] = None,
                 transpose_batch_sequence: bool = False, window_size: Optional[Tuple[int, int]] = None,
                 softmax_type: str = "vanilla", score_mod: Mod = None, score_mod_bprop: Mod = None,
                 bounds_check: bool = False, deterministic: bool = False, rngs: nnx.Rngs) -> None:
        """`in_features`: F, the size of the last dimension of input and output.
        `use_bias, kernel_init, bias_init, dtype, param_dtype`: arguments of the projections query, key, value and out.
        `head_dim, num_attention_heads, num_gqa_groups, attention_dropout`: passed to DotProductAttention.
        `attn_mask_type, attn_bias_type, scale_factor, transpose_batch_sequence`: passed to DotProductAttention.
        `window_size, softmax_type, score_mod, score_mod_bprop, bounds_check, deterministic`: passed to
            DotProductAttention.
        `rngs`: the RNGs that initialize the projections; also passed to DotProductAttention."""
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        common = dict(use_bias=use_bias, kernel_init=kernel_init, bias_init=bias_init, dtype=dtype,
                      param_dtype=param_dtype, rngs=rngs)
        self.query = nnx.LinearGeneral(in_features, (num_attention_heads, head_dim), **common)
        self.key = nnx.LinearGeneral(in_features, (groups, head_dim), **common)
        self.value = nnx.LinearGeneral(in_features, (groups, head_dim), **common)
        self.out = nnx.LinearGeneral((num_attention_heads, head_dim), in_features, axis=(-2, -1), **common)
        self.core = DotProductAttention(
            head_dim, num_attention_heads, num_gqa_groups, attention_dropout=attention_dropout,
            attn_mask_type=attn_mask_type, attn_bias_type=attn_bias_type, scale_factor=scale_factor,
            transpose_batch_sequence=transpose_batch_sequence, window_size=window_size, softmax_type=softmax_type,
            score_mod=score_mod, score_mod_bprop=score_mod_bprop, bounds_check=bounds_check,
            deterministic=deterministic, rngs=rngs)

    def __call__(self, inputs_q: Any, inputs_kv: Any = None, mask: Any = None, bias: Any = None, *,
                 sequence_descriptor: Any = None, deterministic: Optional[bool] = None,
                 score_mod_tensors: Optional[Mapping[str, Any]] = None,
                 score_mod_bprop_tensors: Optional[Mapping[str, Any]] = None, rngs: Optional[nnx.Rngs] = None) -> Any:
        """Returns [B,S,F].

        `inputs_q`: the input of the query projection, [B,S,F].
        `inputs_kv`: the input of the key and value projections, [B,T,F], by default inputs_q.
        `mask, bias, sequence_descriptor, deterministic, rngs`: passed to DotProductAttention.
        `score_mod_tensors, score_mod_bprop_tensors`: passed to DotProductAttention.
        """
        if inputs_q.ndim != 3:
            refuse("MultiHeadAttention", ["inputs_q has shape %s, not [B,S,F]" % (inputs_q.shape,)])
        inputs_kv = inputs_q if inputs_kv is None else inputs_kv
        return self.out(self.core(
            self.query(inputs_q), self.key(inputs_kv), self.value(inputs_kv), sequence_descriptor, bias,
            deterministic=deterministic, mask=mask, score_mod_tensors=score_mod_tensors,
            score_mod_bprop_tensors=score_mod_bprop_tensors, rngs=rngs))
