# SPDX-License-Identifier: Apache-2.0
"""fxattn.numpy: a call that was made before takes the short way, and gives what the long way gives."""
import itertools
import os
import sys
import threading

import fxattn
import pytest

np = pytest.importorskip("numpy")
sys.path.insert(0, os.path.dirname(__file__))
import fxattn.numpy as fn  # noqa: E402
from dense import random_qkv  # noqa: E402
from fxattn import _numpy_memo  # noqa: E402

Q, K, V = random_qkv(1)
TABLE = np.linspace(-1.0, 1.0, Q.shape[1])


@pytest.fixture(autouse=True)
def nothing_known():
    _numpy_memo._calls.clear()


def known():
    return len(_numpy_memo._calls)


def long_way(*arguments, **keywords):
    return fn.attention(*arguments, return_lse=True, **keywords)[0]


def slope(amount):
    return lambda s, b, h, q, k: s + amount * (q - k)


CALLS = {
    "nothing": ((), {}),
    "text": (("score - 0.1 * abs(q - k)", "q >= k"), {}),
    "params": (("cap * tanh(score / cap) + n", None), {"params": {"n": 2, "cap": 3.0}}),
    "tensors": (("score + t[h] * k", None), {"tensors": {"t": TABLE}}),
    "program": ((fxattn.Program("score = 2 * score"), None), {"is_causal": True, "scale": 0.25}),
    "function": ((slope(0.5), lambda b, h, q, k: q >= k), {"window": (4, None)}),
    "captured": ((lambda s, b, h, q, k: s + TABLE[h] * q, None), {"dropout_p": 0.5, "seed": 3}),
}


KEPT = {name: int(name != "captured") for name in CALLS}  # functions with arrays of NumPy are traced each time


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_is_known(name):
    functions, keywords = CALLS[name]
    expected = long_way(Q, K, V, *functions, **keywords)
    for _ in range(4):
        assert np.array_equal(fn.attention(Q, K, V, *functions, **keywords), expected)
    assert known() == KEPT[name]
    other = [x + 1.0 for x in (Q, K, V)]
    assert np.array_equal(fn.attention(*other, *functions, **keywords), long_way(*other, *functions, **keywords))
    assert known() == KEPT[name]


def test_numbers_and_arrays_of_a_known_call_are_those_given():
    for cap, table in itertools.product((1.0, 5, np.float64(2.0)), (TABLE, TABLE * 3)):
        got = fn.attention(Q, K, V, "cap * tanh(score / cap) + t[h] * q", params={"cap": cap}, tensors={"t": table})
        want = long_way(Q, K, V, "cap * tanh(score / cap) + t[h] * q", params={"cap": cap}, tensors={"t": table})
        assert np.array_equal(got, want)
    for amount in (0.5, 0.5, 1.5, 2):
        assert np.array_equal(fn.attention(Q, K, V, slope(amount)), long_way(Q, K, V, slope(amount)))


def test_what_decides_a_call_is_in_its_key():
    """Every pair of these calls differs in one thing."""
    transposed = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (Q, K, V)]
    calls = [((Q, K, V), {}), ((Q[:, :, :5], K, V), {}), ((Q, K, V[..., :4]), {}), (transposed, {}),
             ([x.astype("f4") for x in (Q, K, V)], {}), ((Q, K, V), {"is_causal": True}), ((Q, K, V), {"scale": 0.5}),
             ((Q, K, V), {"scale": 0.0}), ((Q, K, V, "1 / score"), {"scale": 0.0}), ((Q, K, V, "1 / score"), {"scale": -0.0}),
             ((Q, K, V), {"window": (2, 1)}), ((Q, K, V), {"engine": "ref"}), ((Q, K, V, None, "q >= k"), {}),
             ((Q, K, V, "score + n", None), {"params": {"n": 1}}), ((Q, K, V, "score + n", None), {"params": {"n": 1.5}})]
    expected = [long_way(*arrays, **keywords) for arrays, keywords in calls]
    for _ in range(2):
        for (arrays, keywords), want in zip(calls, expected):
            assert np.array_equal(fn.attention(*arrays, **keywords), want, equal_nan=True)
    assert known() == len(calls)


@pytest.mark.parametrize("keywords", [
    {"k_lengths": [3, 5]}, {"q_start": [1, 2]}, {"coordinates": {"q": 3}}, {"sinks": np.zeros(Q.shape[1])},
    {"return_lse": True}, {"out": np.empty_like(Q)}, {"mask_mod": "q >= k", "tensors": {}, "bottom_right": True, "q_lengths": [1, 2]},
])
def test_what_has_arrays_of_its_own_is_not_kept(keywords):
    fn.attention(Q, K, V, **keywords)
    assert known() == 0


def test_arrays_that_must_be_copied():
    odd = np.frombuffer(b"x" + np.ascontiguousarray(Q).tobytes(), "u1")[1:].view(Q.dtype).reshape(Q.shape)
    assert not odd.flags.aligned
    for arrays in ((odd, K, V), (Q.astype(">f8"), K, V), (Q.tolist(), K, V)):
        assert np.array_equal(fn.attention(*arrays), long_way(Q, K, V))
        assert known() == 0
    fn.attention(Q, K, V)
    assert known() == 1
    assert np.array_equal(fn.attention(odd, K, V), long_way(Q, K, V))


def test_mistakes_are_found_in_known_calls_too():
    text = "param n : int\nscore = score + n"
    fn.attention(Q, K, V, text, params={"n": 2})
    with pytest.raises(ValueError, match="declares it as an int"):
        fn.attention(Q, K, V, text, params={"n": 2.5})
    fn.attention(Q, K, V, text, params={"n": 2.0})
    with pytest.raises(ValueError, match="declares it as an int"):
        fn.attention(Q, K, V, text, params={"n": 2.5})
    for extra in ({"params": {"n": 2, "m": 1}}, {"params": {}}):
        with pytest.raises(ValueError):
            fn.attention(Q, K, V, text, **extra)
    with pytest.raises(TypeError, match="seed is of type float"):
        fn.attention(Q, K, V, seed=1.0)
    fn.attention(Q, K, V, seed=1)
    with pytest.raises(TypeError, match="seed is of type float"):
        fn.attention(Q, K, V, seed=1.0)


@pytest.mark.parametrize("source", ["param c : float = 2\nscore = c * score",
                                    fxattn.Program("param c : float = 2\nscore = c * score")], ids=["text", "program"])
def test_defaults_of_params(source):
    expected = {c: long_way(Q, K, V, source, params={"c": c}) for c in (2.0, 4.0)}
    for _ in range(2):
        assert np.array_equal(fn.attention(Q, K, V, source), expected[2.0])
        assert np.array_equal(fn.attention(Q, K, V, source, params={"c": 4.0}), expected[4.0])
    # Of the same hash, with another default.
    assert np.array_equal(fn.attention(Q, K, V, fxattn.Program("param c : float = 4\nscore = c * score")), expected[4.0])


class Switch:
    """A setting whose value changes."""

    def __init__(self, value):
        self.value = value

    def __bool__(self):
        return bool(self.value)

    def __index__(self):
        return int(self.value)

    def __float__(self):
        return float(self.value)


@pytest.mark.parametrize("name, keywords", [
    ("scale", {}), ("seed", {"dropout_p": 0.5}), ("global_q_len", {"mask_mod": "k < q_len"}), ("window", {}),
])
def test_settings_that_change(name, keywords):
    switch = Switch(1)
    given = (switch, 0) if name == "window" else switch
    before = long_way(Q, K, V, **keywords, **{name: given})
    assert np.array_equal(fn.attention(Q, K, V, **keywords, **{name: given}), before)
    switch.value = 0
    after = long_way(Q, K, V, **keywords, **{name: given})
    assert not np.array_equal(after, before)
    assert np.array_equal(fn.attention(Q, K, V, **keywords, **{name: given}), after, equal_nan=True)


def test_settings_of_equal_value_are_not_the_same():
    for scale in (np.float64(0.0), np.float64(-0.0), np.float32(0.0), np.float32(-0.0), 0, False):
        want = long_way(Q, K, V, "1 / score", scale=scale)
        assert np.array_equal(fn.attention(Q, K, V, "1 / score", scale=scale), want, equal_nan=True)
    fn.attention(Q, K, V, window=(2, 1))
    with pytest.raises(TypeError, match=r"window is \(2.0, 1\)"):
        fn.attention(Q, K, V, window=(2.0, 1))
    fn.attention(Q, K, V, "score")
    for wrong in ([], 0):
        with pytest.raises(TypeError, match="params is of type"):
            fn.attention(Q, K, V, "score", params=wrong)
    with pytest.raises(TypeError, match="score_mod is of type list"):
        fn.attention(Q, K, V, ["score"])


def test_the_number_of_calls_is_bounded():
    for rows in range(1, 10):
        for keys in range(1, 10):
            for window in range(8):
                fn.attention(Q[:1, :1, :rows], K[:1, :1, :keys], V[:1, :1, :keys], window=(window, 0))
    assert known() <= _numpy_memo._MAX_CALLS


def test_threads():
    expected = {name: long_way(Q, K, V, *functions, **keywords) for name, (functions, keywords) in CALLS.items()}
    wrong = []

    def work():
        for _ in range(20):
            for name, (functions, keywords) in CALLS.items():
                if not np.array_equal(fn.attention(Q, K, V, *functions, **keywords), expected[name]):
                    wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_addresses_are_those_of_ctypes():
    data = np.arange(240, dtype=np.float32).reshape(2, 3, 5, 8)
    constant = data[1:]
    constant.flags.writeable = False
    for array in (data, data[:, ::-1], data[..., 3:], data.T, constant, data[:0], data.astype(np.float64),
                  np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32), np.array(3.0)):
        assert _numpy_memo.address(array) == array.ctypes.data
