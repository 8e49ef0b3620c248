# SPDX-License-Identifier: Apache-2.0
"""dot_product_attention(): attention() with the signature of jax.nn.dot_product_attention."""
from typing import Any, Dict, List, Optional, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError, ArgumentTypeError
from ._attention import attention
from ._checks import array_of, flag, refuse_keywords, signature_without_rest
from ._sequences import array_of_ints, in_32_bits


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: Any = None,
                          is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
                          local_window_size: Union[None, int, Tuple[int, int]] = None,
                          implementation: Optional[str] = None, return_residual: bool = False, **unknown: Any) -> Any:
    """Returns softmax(scale * q k^T + bias) v as [B,T,N,H], for query [B,T,N,H], key and value [B,S,K,H]. The batch
    axis B may be missing from query, key, value and the result. The function dot_product_attention() can replace
    jax.nn.dot_product_attention.

    `bias, mask`: arrays of rank 4 or less that broadcast to [B,N,T,S]. `mask` is True for pairs that are attended;
        `bias` gets a gradient.
    `is_causal, query_seq_lengths, key_value_seq_lengths`: masks by position and by length, as in jax.nn.
    `local_window_size`: a window, as an int or (left, right).
    `scale`: a number, or an array of rank 0, which gets a gradient; by default 1 / sqrt(H).
    `implementation`: None or "fxattn", which both select fxattn; any other name is refused.
    `return_residual`: also returns LSE, [B,T,N], with the dtype of query and without a gradient, as jax.nn does.

    For a row that attends to nothing, the output is 0 and the residual (LSE) is -inf; jax.nn.dot_product_attention
    returns the mean of all values for such a row.
    """
    refuse_keywords("dot_product_attention", (), unknown, _PARAMETERS, _REMEDIES)
    if implementation not in (None, "fxattn"):
        raise ArgumentError("implementation is %r; None or \"fxattn\" is accepted, and is fxattn's own on every "
                            "device: jax.nn.dot_product_attention has \"xla\" and \"cudnn\"" % (implementation,))
    is_causal = flag("is_causal", is_causal, "give it as mask")
    shape = _shape_of_scores(query, key)
    texts: Dict[str, Optional[str]] = {"bias": None, "mask": None}
    tensors = {}
    for name, array, kinds in (("bias", bias, jnp.floating), ("mask", mask, jnp.bool_)):
        if array is not None:
            tensors["given_" + name], index = _broadcast(name, array, kinds, shape)
            texts[name] = "given_%s[%s]" % (name, index)
    window, beyond = _window(local_window_size)
    texts["mask"] = " && ".join(text for text in (texts["mask"], *beyond) if text) or None
    found = attention(query, key, value, score_mod=None if texts["bias"] is None else "score + " + texts["bias"],
                      mask_mod=texts["mask"], tensors=tensors or None, scale=scale, is_causal=is_causal,
                      window=window, lengths=_lengths(query_seq_lengths, key_value_seq_lengths, shape),
                      return_lse=return_residual)
    if not return_residual:
        return found
    out, lse = found
    return out, jax.lax.stop_gradient(jnp.swapaxes(lse, -1, -2).astype(out.dtype))


_PARAMETERS = signature_without_rest(dot_product_attention)
_OTHER = "is no argument of jax.nn's; fxattn.jax.attention has it"
_REMEDIES = {**dict.fromkeys("score_mod mask_mod window lengths q_lengths k_lengths segment_ids sinks dropout_p seed "
                             "dropout dropout_key return_lse bounds_check".split(), _OTHER)}


def _lengths(of_q: Any, of_k: Any, shape: Tuple[int, ...]) -> Any:
    """Returns the pair (lengths of q, lengths of k) clipped to [0, size], as in jax.nn; None if both are None."""
    if of_q is None and of_k is None:
        return None
    given = [None if x is None else array_of_ints(x) for x in (of_q, of_k)]
    return tuple(x if x is None or not jnp.issubdtype(x.dtype, jnp.integer) else jnp.clip(in_32_bits(x), 0, size)
                 for x, size in zip(given, shape[2:]))


def _window(given: Any) -> Tuple[Any, List[str]]:
    """Returns the option `window` of attention(), and a list of mask expressions for negative sides, which attention()
    does not accept."""
    if given is None:
        return None, []
    sides = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    if len(sides) != 2 or not all(isinstance(x, (int, np.integer)) for x in sides):
        raise ArgumentError("local_window_size is %r; an int, or (left, right), is accepted" % (given,))
    masks = [text % min(-x, 1 << 30) for x, text in zip(sides, ("k >= q + %d", "k <= q - %d")) if x < 0]
    window = tuple(None if x < 0 else int(x) for x in sides)
    return None if window == (None, None) else window, masks


def _shape_of_scores(query: Any, key: Any) -> Tuple[int, ...]:
    q, k = (array_of(name, x).shape for name, x in (("query", query), ("key", key)))
    if len(q) not in (3, 4) or len(k) != len(q):
        raise ArgumentError("query and key have shapes %s and %s; [B,T,N,H] and [B,S,K,H], or both without the batch, "
                            "are accepted" % (q, k))
    return q[0] if len(q) == 4 else 1, q[-2], q[-3], k[-3]


def _broadcast(name: str, array: Any, kinds: Any, shape: Tuple[int, ...]) -> Tuple[Any, str]:
    """Returns `array` reshaped to rank 4, and the list of index expressions with which a program loads the array's
    element of a (q, k) pair; the expression of an axis of size 1 is "0"."""
    array = array_of(name, array)
    if name == "bias" and jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype("float32")
    if not jnp.issubdtype(array.dtype, kinds):
        raise ArgumentTypeError("%s has dtype %s; %s is accepted"
                                % (name, array.dtype, "bool" if name == "mask" else "a float or int type"))
    full = (1,) * (4 - array.ndim) + array.shape
    if len(full) != 4 or any(size not in (1, whole) for size, whole in zip(full, shape)):
        raise ArgumentError("%s has shape %s, which does not broadcast to the scores' %s" % (name, array.shape, shape))
    axes = ("b", "h", "q_row", "k_row")
    return array.reshape(full), ", ".join(axis if size != 1 else "0" for axis, size in zip(axes, full))
