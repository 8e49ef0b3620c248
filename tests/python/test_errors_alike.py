# SPDX-License-Identifier: Apache-2.0
"""One cause is one kind of exception, in whichever front end: what is refused before a run."""
import pytest

np = pytest.importorskip("numpy")

Q = np.zeros((2, 4, 6, 8), np.float32)
INTS, ROW = np.zeros((2, 4, 6, 8), np.int32), np.zeros(4, np.float32)
TEXT = "param c : float\nscore = score * c"
# Kind, arrays (q, k, v), keywords by the names of fxattn.numpy.
CAUSES = {
    "ints for q": (TypeError, (INTS, Q, Q), {}),
    "no array": (TypeError, ("q", Q, Q), {}),
    "global_heads": (ValueError, (Q[:, :3], Q[:, :2], Q[:, :2]), {}),
    "features": (ValueError, (Q, Q[..., :4], Q), {}),
    "keys": (ValueError, (Q, Q[:, :, :3], Q), {}),
    "axes": (ValueError, (Q[0], Q, Q), {}),
    "a layout": (ValueError, (Q, Q, Q), {"layout": "xyz"}),
    "a text that ends": (ValueError, (Q, Q, Q), {"score_mod": "score +"}),
    "a name that is nothing": (ValueError, (Q, Q, Q), {"score_mod": "score + nothing"}),
    "a param without a value": (ValueError, (Q, Q, Q), {"score_mod": TEXT}),
    "a param that is text": (TypeError, (Q, Q, Q), {"score_mod": TEXT, "params": {"c": "x"}}),
    "a tensor that no text has": (ValueError, (Q, Q, Q), {"score_mod": "score * 2", "tensors": {"t": ROW}}),
    "a condition on a score": (RuntimeError, (Q, Q, Q), {"score_mod": lambda s, b, h, q, k: s if s > 0 else -s}),
    "a window that is text": (TypeError, (Q, Q, Q), {"window": "a"}),
    "a window of three": (TypeError, (Q, Q, Q), {"window": (1, 2, 3)}),
    "dropout of everything": (ValueError, (Q, Q, Q), {"dropout_p": 1.0}),
    "dropout that is text": (TypeError, (Q, Q, Q), {"dropout_p": "x"}),
    "floats for lengths": (TypeError, (Q, Q, Q), {"k_lengths": np.zeros(2, np.float32)}),
    "too many lengths": (ValueError, (Q, Q, Q), {"k_lengths": np.zeros(3, np.int32)}),
    "too many positions": (ValueError, (Q, Q, Q), {"q_start": np.zeros(3, np.int32)}),
    "ints for a sink": (TypeError, (Q, Q, Q), {"sinks": np.zeros(4, np.int32)}),
    "too few sinks": (ValueError, (Q, Q, Q), {"sinks": np.zeros(3, np.float32)}),
    "a scale that is text": (TypeError, (Q, Q, Q), {"scale": "a"}),
    "a keyword that is none": (TypeError, (Q, Q, Q), {"nothing": 1}),
}


def numpy_call(arrays, given):
    import fxattn.numpy
    return fxattn.numpy.attention(*arrays, **given)


def torch_call(arrays, given):
    torch = pytest.importorskip("torch")
    import fxattn.torch
    names = {"score_mod": "score_mod", "dropout_p": "dropout_p"}
    taken = {"tensors": lambda x: {name: torch.tensor(one) for name, one in x.items()}}

    def convert(x):
        return torch.tensor(x) if isinstance(x, np.ndarray) else x

    return fxattn.torch.attention(*map(convert, arrays), **{
        names.get(name, name): taken.get(name, convert)(x) for name, x in given.items()})


def jax_call(arrays, given):
    pytest.importorskip("jax")
    import fxattn.jax
    names = {"score_mod": "score_mod", "tensors": "score_mod_tensors", "sinks": "sinks", "k_lengths": "lengths"}
    given = {names.get(name, name): x for name, x in given.items()}
    if "dropout" in given:
        import jax
        given["dropout_key"] = jax.random.key(0)
    if "lengths" in given:
        given["lengths"] = None, given["lengths"]
    return fxattn.jax.attention(*arrays, **{"layout": "bhsd", **given})


@pytest.mark.parametrize("call", [numpy_call, torch_call, jax_call])
@pytest.mark.parametrize("cause", CAUSES)
def test_one_cause_is_one_kind_of_exception(cause, call):
    kind, arrays, given = CAUSES[cause]
    with pytest.raises(kind) as caught:
        call(arrays, given)
    kinds = [one for one in (TypeError, ValueError, RuntimeError) if isinstance(caught.value, one)]
    assert kinds == [kind]
