# SPDX-License-Identifier: Apache-2.0
"""attention() given what nobody should give: numbers beside their range, tables of other types and ranks, sizes of 0.
None of it is silently read as something else."""
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fxattn import _abi
from fxattn.torch import operators as ops
from fxattn.torch import attention, flex_attention


def qkv(b=2, h=2, s=5, d=4):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(b, h, s, d, generator=g, dtype=torch.float64) for _ in range(3)]


ROWS = torch.zeros(6, 2, 4)
CACHE = torch.zeros(3, 2, 2, 4, dtype=torch.float64)
BEYOND = 1 << 32  # 0 in 32 bits
REFUSED = {
    "length beyond 32 bits": (RuntimeError, r"k_lengths\[0\] is 2147483647", dict(k_lengths=[BEYOND + 1, 3])),
    "length of floats": (TypeError, r"k_lengths is of torch.float32; ints", dict(k_lengths=[2.7, 3.2])),
    "length of bools": (TypeError, r"q_lengths is of torch.bool; ints", dict(q_lengths=[True, False])),
    "page beyond 32 bits": (RuntimeError, r"pages\[1,1\] is 2147483647", dict(pages=[[0, 1], [2, BEYOND]], k_lengths=[4, 4])),
    "page of floats": (TypeError, "pages is of torch.float32; ints", dict(pages=[[0.5, 1.0], [1.0, 2.0]])),
    "pages of rank 1": (ValueError, r"pages has shape \(2,\); 2 dimensions", dict(pages=[0, 1])),
    "pages without lengths": (ValueError, "pages is given without k_lengths", dict(pages=[[0, 1], [2, 3]])),
    "offsets beyond 32 bits": (RuntimeError, r"cu_q\[1\] is 2147483647", dict(cu_q=[0, BEYOND + 6])),
    "offsets of rank 2": (ValueError, r"cu_q has shape \(1, 2\); 1 dimension", dict(cu_q=[[0, 6]])),
    "offsets of rank 0": (ValueError, r"cu_q has shape \(\); 1 dimension", dict(cu_q=0)),
    "max_q of a float": (TypeError, "max_q is 6.0; an int", dict(cu_q=[0, 6], max_q=6.0)),
    "window of a float": (TypeError, r"window is \(1.5, 2\)", dict(window=(1.5, 2))),
    "window beyond 64 bits": (ValueError, "window", dict(window=(1 << 70, 1))),
    "sink of rank 2": (ValueError, r"sinks has shape \(2, 1\); \(2,\)", dict(sinks=torch.ones(2, 2)[:, :1])),
    "sink of NumPy": (ValueError, "sinks is array", dict(sinks=np.ones(2))),
    "scale of nan": (ValueError, "scale is nan; a finite number", dict(scale=math.nan)),
    "scale that is complex": (TypeError, "scale is 1j; a number", dict(scale=1j)),
    "dropout of a string": (TypeError, "dropout_p is 'x'; a number", dict(dropout_p="x")),
    "seed of a float": (TypeError, "seed is 1.5; an int", dict(dropout_p=0.5, seed=1.5)),
    "seed of floats": (TypeError, "seed is of torch.float32; an int", dict(dropout_p=0.5, seed=torch.tensor(3.7))),
    "seed of two": (ValueError, "seed has 2 elements; one", dict(dropout_p=0.5, seed=torch.tensor([1, 2]))),
    "seed beyond 64 bits": (ValueError, "seed is 18446744073709551616", dict(dropout_p=0.5, seed=1 << 64)),
    "int param of a float": (ValueError, r"params\['n'\] is 2.5; the program declares it as an int",
                             dict(score_mod="param n : int = 3\nscore = score * n", params={"n": 2.5})),
    "param of two": (ValueError, r"params\['c'\] has 2 elements", dict(score_mod="score * c",
                                                                      params={"c": torch.ones(2)})),
    "param of None": (TypeError, r"params\['c'\] is of type NoneType; a number", dict(score_mod="score * c",
                                                                                     params={"c": None})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    error, match, given = REFUSED[name]
    with pytest.raises(error, match=match):
        if "cu_q" in given:
            attention(ROWS, ROWS, ROWS, layout="thd", **given)
        elif "pages" in given:
            attention(qkv()[0], CACHE, CACHE, **given)
        else:
            attention(*qkv(), **given)


def test_scale_of_nan_for_flex_attention():
    """Also where the call is one that is known: nan is the default to the library."""
    def double(score, b, h, q, k):
        return score * 2.0

    for mod in (None, double, double, double):
        with pytest.raises(ValueError, match="scale is nan"):
            flex_attention(*qkv(), mod, scale=math.nan)
        flex_attention(*qkv(), mod, scale=0.5)


def test_arrays_for_tensors():
    with pytest.raises(TypeError, match="k is of type ndarray; a tensor is accepted"):
        attention(qkv()[0], np.zeros((2, 2, 5, 4)), qkv()[2])


def test_seeds_are_those_of_64_bits():
    q, k, v = qkv()
    for seed, same in ((1 << 63, -(1 << 63)), ((1 << 64) - 1, -1)):
        torch.testing.assert_close(attention(q, k, v, dropout_p=0.5, seed=seed),
                                   attention(q, k, v, dropout_p=0.5, seed=torch.tensor(same)), rtol=0, atol=0)


def test_positions_wrap_as_coordinates_do():
    q, k, v = qkv()
    got = attention(q, k, v, "score + q * 1.0e-9", q_start=[BEYOND + 3, BEYOND - 1])
    torch.testing.assert_close(got, attention(q, k, v, "score + q * 1.0e-9", q_start=[3, -1]), rtol=0, atol=0)


def test_no_page_at_all():
    got = attention(qkv()[0], CACHE, CACHE, pages=torch.zeros(2, 0, dtype=torch.int32), k_lengths=[0, 0])
    assert got.shape == (2, 2, 5, 4) and not got.any()


def test_no_heads_of_keys():
    """0 would be "as q has" to the library."""
    q, k, v = qkv(1, 1, 1, 1)
    for call in (lambda: attention(q, k[:, :0], v[:, :0]),
                 lambda: ops.fwd(q, k[:, :0], v[:, :0], [], [], [], [], [], [], "")):
        with pytest.raises((ValueError, RuntimeError), match="k has 0 heads"):
            call()


ZERO_SIZES = [(0, 2, 2, 3, 5, 4, 6), (2, 0, 0, 3, 5, 4, 6), (2, 0, 2, 3, 5, 4, 6), (2, 4, 2, 0, 5, 4, 6),
              (2, 4, 2, 3, 0, 4, 6), (2, 4, 2, 3, 5, 0, 6), (2, 4, 2, 3, 5, 4, 0), (2, 4, 2, 3, 5, 0, 0),
              (0, 0, 0, 0, 0, 0, 0), (2, 0, 0, 3, 0, 4, 0), (0, 4, 2, 3, 5, 0, 6)]


@pytest.mark.parametrize("sizes", ZERO_SIZES)
@pytest.mark.parametrize("through", ["attention", "text", "flex", "callback"])
def test_sizes_of_zero_are_those_of_sdpa(sizes, through):
    """What PyTorch's own attention gives, gradients too."""
    b, h, hkv, sq, sk, d, dv = sizes
    drawn = [torch.randn(*s, dtype=torch.float64) for s in ((b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv))]
    calls = {"attention": attention, "text": lambda q, k, v: attention(q, k, v, "score + 0.0 * b * q"),
             "flex": lambda q, k, v: flex_attention(q, k, v, enable_gqa=True),
             "callback": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, q, k: s + 0 * b, enable_gqa=True)}

    def sdpa(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    results = []
    for call in (calls[through], sdpa):
        q, k, v = (x.clone().requires_grad_() for x in drawn)
        out = call(q, k, v)
        out.sum().backward()
        results.append((out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in (q, k, v))))
    for got, want in zip(*results):
        torch.testing.assert_close(got, want)


def test_log_sums_of_rows_without_features():
    """With values of no features they are what they are with some; without features of keys the logarithm of how many
    there are."""
    q, k, v = qkv()
    none, whole = attention(q, k, v[..., :0], return_lse=True), attention(q, k, v, return_lse=True)
    assert none[0].shape == (*q.shape[:3], 0)
    torch.testing.assert_close(none[1], whole[1])
    lse = attention(q[..., :0], k[..., :0], v, return_lse=True)[1]
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(k.shape[2])))


WRONG_CALLS = {  # tensors, extras, scalars, ints, floats, config, program: what follows q, k and v
    "short lengths": ([], [torch.tensor([3], dtype=torch.int32)], [], [], [], [_abi.PADDING, 1 << _abi.SLOT_K_LENGTHS], ""),
    "long lengths": ([], [torch.tensor([3] * 3)], [], [], [], [_abi.PADDING, 1 << _abi.SLOT_K_LENGTHS], ""),
    "q_start": ([], [torch.zeros(1, dtype=torch.int32)], [], [], [], [_abi.Q_START, 1 << _abi.SLOT_Q_START], ""),
    "pages": ([], [torch.zeros(1, 2, dtype=torch.int32)], [], [], [],
              [_abi.PAGED, 1 << _abi.SLOT_PAGES, 0, 10], ""),
    "lengths with gaps": ([], [torch.zeros(4, dtype=torch.int32)[::2]], [], [], [],
                          [_abi.PADDING, 1 << _abi.SLOT_K_LENGTHS], ""),
    "sink with gaps": ([], [torch.ones(2, 2)[:, :1]], [], [], [], [_abi.SINKS, 1 << _abi.SLOT_SINKS], ""),
    "no sink": ([], [], [], [], [], [_abi.SINKS, 1 << _abi.SLOT_SINKS], ""),
    "a sink for nobody": ([], [torch.ones(2)], [], [], [], [0], ""),
    "another dtype": ([torch.ones(2, dtype=torch.float16)], [], [], [], [], [], "tensor t : f32[1]\nscore = t[h]"),
    "another rank": ([torch.ones(2, 2)], [], [], [], [], [], "tensor t : f32[1]\nscore = t[h]"),
    "no tensor": ([], [], [], [], [], [], "tensor t : f32[1]\nscore = t[h]"),
    "no param": ([], [], [], [], [], [], "param p : float\nscore = score * p"),
    "negative dropout": ([], [], [], [], [math.nan, -0.5], [_abi.DROPOUT], ""),
    "scalars in memory of another size": ([], [torch.zeros(1, dtype=torch.int32)], [], [], [],
                                          [_abi.SCALARS_IN_MEMORY, 1 << _abi.SLOT_SCALE], ""),
    "an output for an extra tensor": ([], [torch.zeros(1, dtype=torch.int32)], [], [], [], [0, 1 << _abi.SLOT_O], ""),
    "keys beyond 32 bits in pages": ([], [torch.zeros(1, dtype=torch.int32)], [], [], [],
                                     [_abi.PAGED, 1 << _abi.SLOT_PAGES, 0, (1 << 63) - 1], ""),
    "a map that is cut off": ([], [], [], [], [], [0] * 13 + [2, 1, 0], ""),
    "a map of too many segments": ([], [], [], [], [], [0] * 13 + [2, 1, 0, 0, 1, 1 << 60], ""),
    "a backward program outside the text": ([], [], [], [], [], [0] * 10 + [5], ""),
    "a backward program before the text": ([], [], [], [], [], [0] * 10 + [-5], ""),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls_of_the_operator(name):
    """An error, and nothing beyond a tensor is read."""
    with pytest.raises(RuntimeError, match="^fxattn: "):
        ops.fwd(*qkv(), *WRONG_CALLS[name])
