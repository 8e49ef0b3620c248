# SPDX-License-Identifier: Apache-2.0
"""What cannot be traced is refused, with the file and line of the user's function and a remedy; nothing is changed."""
import inspect
import math

import numpy as np
import pytest

import fxattn
from fxattn.trace import TraceError, trace

torch = pytest.importorskip("torch")
bias, ints, table = torch.zeros(2, 4), torch.arange(4), [1, 2, 3]


def branch(s, b, h, q, k):
    if s > 0:
        return s
    return -s


def conditional(s, b, h, q, k):
    return s if q >= k else -math.inf


def conjunction(s, b, h, q, k):
    return torch.where(q >= k and h > 0, s, 0.0)


def negation(s, b, h, q, k):
    return torch.where(not q >= k, s, 0.0)


def chained(s, b, h, q, k):
    return torch.where(0 < q < k, s, 0.0)


def builtin_max(s, b, h, q, k):
    return s + max(q, k)


def item(s, b, h, q, k):
    return s + q.item()


def to_int(s, b, h, q, k):
    return s + int(q)


def to_float(s, b, h, q, k):
    return s + math.exp(s)


def to_list(s, b, h, q, k):
    return s + q.tolist()


def list_index(s, b, h, q, k):
    return s + table[h]


def loop(s, b, h, q, k):
    return sum(x for x in s)


def traced_range(s, b, h, q, k):
    return sum(s for _ in range(q))


def length(s, b, h, q, k):
    return s + len(q)


def traced_slice(s, b, h, q, k):
    return s + bias[0, q:k].sum()


def bool_index(s, b, h, q, k):
    return s + bias[0][q > k].sum()


def float_index(s, b, h, q, k):
    return s + bias[0, s]


def in_place_captured(s, b, h, q, k):
    bias.add_(1)
    return s + bias[b, h]


def in_place_item(s, b, h, q, k):
    bias[0, 0] = 1
    return s + bias[b, h]


def in_place_augmented(s, b, h, q, k):
    held = bias
    held += 1
    return s + held[b, h]


def in_place_traced(s, b, h, q, k):
    return s.add_(1)


def in_place_by_traced(s, b, h, q, k):
    bias[b, h] = s
    return s


def wide_int(s, b, h, q, k):
    return s + q * 10000000000


def wide_compare(s, b, h, q, k):
    return torch.where(q < 1 << 40, s, 0.0)


def bools_subtracted(s, b, h, q, k):
    return s + ((q > k) - (q == k))


def unknown_function(s, b, h, q, k):
    return torch.digamma(s)


def unknown_method(s, b, h, q, k):
    return s.softcap()


def misspelt_function(s, b, h, q, k):
    return torch.special.i0(s)


def negative_power(s, b, h, q, k):
    return s + q ** -1


def condition_of_ints(s, b, h, q, k):
    return torch.where(q, s, 0.0)


def float_bits(s, b, h, q, k):
    return s & 1


def large_tensor(s, b, h, q, k):
    return s + (torch.zeros(5000) * s).sum()


def too_many_indices(s, b, h, q, k):
    return s + bias[b, h, q]


def string_operand(s, b, h, q, k):
    return s + "x"


def torch_equal(s, b, h, q, k):
    return s + torch.equal(q, k)


def stopped_gradient(s, b, h, q, k):
    return s.detach() + 1


def sparse(s, b, h, q, k):
    return s + torch.eye(4).to_sparse()[q, k]


def wide_rank(s, b, h, q, k):
    return s + torch.zeros(2, 2, 2, 2, 2, 2)[b, b, b, b, b, b]


REFUSED = {
    branch: "use where", conditional: "use where", conjunction: "& | ~ join conditions", negation: "use where",
    chained: "use where",
    builtin_max: "max", item: "known when the program runs", to_int: r"x.int\(\)", to_float: r"x.float\(\)",
    to_list: "known when the program runs", list_index: "made a tensor", loop: "nothing to loop over",
    traced_range: r"x.int\(\)",
    length: "no length", traced_slice: r"torch.arange\(3\)", bool_index: "a bool is no index",
    float_index: "must be an int",
    in_place_captured: "in place", in_place_item: "in place", in_place_augmented: "in place",
    in_place_traced: r"write x = x.add\(",
    in_place_by_traced: "in place", wide_int: "10000000000 does not fit", wide_compare: "1099511627776 does not fit",
    bools_subtracted: "use \\^", unknown_function: "digamma is not known",
    unknown_method: "no attribute or method 'softcap'",
    misspelt_function: "not known", negative_power: "negative integer powers", condition_of_ints: "boolean",
    float_bits: "not floats",
    large_tensor: "at most 1024 elements", too_many_indices: "too many indices", string_operand: "not with str",
    torch_equal: "Python bool", stopped_gradient: "stops a gradient", sparse: "layout", wide_rank: "6 dimensions",
}


@pytest.mark.parametrize("mod", REFUSED, ids=lambda mod: mod.__name__)
def test_refused(mod):
    before = bias.clone()
    with pytest.raises(TraceError, match=REFUSED[mod]) as caught:
        trace(mod)
    lines, first = inspect.getsourcelines(mod)
    assert caught.value.file == __file__ and first <= caught.value.line < first + len(lines)
    assert "%s:%d" % (__file__, caught.value.line) in str(caught.value)
    assert torch.equal(bias, before)


def test_is_an_error_of_the_package():
    with pytest.raises(fxattn.Error):
        trace(branch)
    with pytest.raises(RuntimeError):
        trace(branch)


@pytest.mark.parametrize("mod, words", [
    (lambda s, b, h, q, k: None, "score_mod returned None"), (lambda s, b, h, q, k: bias, r"shape \(2, 4\)"),
    (lambda s, b, h, q, k: "x", "score_mod returned a value of type str"),
    (lambda s, b, h, q, k: (s, s), "score_mod returned a value of type tuple"),
    ((lambda s, b, h, q, k: (yield s)), "score_mod returned a value of type generator"),
    (lambda s, b, h, q, k: sum((q * 0.5 for _ in range(60000)), s), "operations long")])
def test_results(mod, words):
    """With the place of the function, not of who asked for its trace."""
    with pytest.raises(TraceError, match=words) as error:
        trace(mod)
    assert error.value.line == mod.__code__.co_firstlineno


def test_mask_results():
    for mod, words in ((lambda b, h, q, k: q, "int; it must return a bool"), (lambda b, h, q, k: q * 1.0, "float"),
                       (lambda b, h, q, k: None, "returned None")):
        with pytest.raises(TraceError, match=words):
            trace(None, mod)


def test_operators_of_others():
    """An operator of somebody's own counts as torch's of the same name where it gives the same values, and no more."""
    lib = torch.library.Library("fxa_test_trace", "DEF")
    lib.define("tanh(Tensor x) -> Tensor")
    lib.define("sin(Tensor x) -> Tensor")
    lib.impl("tanh", lambda x: torch.tanh(x), "CompositeExplicitAutograd")
    lib.impl("sin", lambda x: x * 2, "CompositeExplicitAutograd")
    assert "tanh(score)" in trace(lambda s, b, h, q, k: torch.ops.fxa_test_trace.tanh(s)).program.text
    with pytest.raises(TraceError, match="not torch's own"):
        trace(lambda s, b, h, q, k: torch.ops.fxa_test_trace.sin(s))


def test_values_of_another_trace():
    """A value that outlived its trace means nothing in the next one."""
    kept = []
    trace(lambda s, b, h, q, k: kept.append(s * q) or s)
    old = kept[0]
    mods = [lambda s, b, h, q, k: s + old, lambda s, b, h, q, k: old * s, lambda s, b, h, q, k: old,
            lambda s, b, h, q, k: torch.where(q > k, s, old), lambda s, b, h, q, k: torch.minimum(s, old),
            lambda s, b, h, q, k: torch.tanh(old) + s, lambda s, b, h, q, k: s + bias[old.int(), h],
            lambda s, b, h, q, k: torch.stack([s, old]).sum()]
    for mod in mods:
        with pytest.raises(TraceError, match="another trace"):
            trace(mod)


def test_users_own_errors_pass():
    def mod(s, b, h, q, k):
        raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        trace(mod)
    with pytest.raises(TypeError):
        trace(lambda s, b, h: s)


def test_what_is_no_score_function():
    """Each says what was given, what is accepted and where it is."""
    def mask(b, h, q, k):
        return q >= k

    for mod, words in ((mask, r"score_mod is called with 5 arguments, \(score, b, h, q_idx, kv_idx\), and takes "
                              r"\(b, h, q, k\)"),
                       (lambda score, q, k: score, r"takes \(score, q, k\)")):
        with pytest.raises(TypeError, match="(?s)%s.*test_trace_errors.py:" % words):
            trace(mod)
    with pytest.raises(TypeError, match=r"mask_mod is called with 4 arguments, .* takes \(s, b, h, q, k\).*missing"):
        trace(None, lambda s, b, h, q, k: q >= k)
    with pytest.raises(TypeError, match=r"score_mod is of type ndarray; .*bias\[q_idx, kv_idx\]"):
        trace(np.zeros((4, 4)))
    with pytest.raises(TypeError, match="mask_mod is of type int; a function of .b, h, q_idx, kv_idx., a Program"):
        trace(None, 3)
    with pytest.raises(TypeError, match="my own"):
        trace(raises_a_type_error)
    with pytest.raises(TraceError, match="(?s)traced float has no value yet, .* formatted by '.2f'.*test_trace_errors"):
        trace(lambda s, b, h, q, k: s if f"{s:.2f}" else s)
    assert trace(lambda s, b, h, q, k: s * len(f"{q}")).program is not None


def raises_a_type_error(s, b, h, q, k):
    raise TypeError("my own")


def test_numpy_bounds():
    u8 = np.arange(4, dtype=np.uint8)
    with pytest.raises(TraceError, match="Python integer 300 out of bounds for uint8"):
        trace(lambda s, b, h, q, k: s + (u8[q] + 300), lib="numpy")
    objects = np.array([None, 1])
    with pytest.raises(TraceError, match="dtype object"):
        trace(lambda s, b, h, q, k: s + objects[q], lib="numpy")


def test_text_and_programs():
    traced = trace("score = score * 2")
    assert traced.program.text.strip() == "score = 2.0 * score" and traced.tensors == () == traced.params
    both = trace("score = score * 2", "mask = q >= k")
    assert "mask" in both.program.text and "score" in both.program.text
    program = fxattn.Program("mask = q >= k")
    assert trace(program).program is program and trace(None, program).program is program
    back = trace("score = score * score", score_mod_bprop="dscore = 2 * score * dscore")
    assert back.bprop.kind == "bprop"
    with pytest.raises(fxattn.ProgramError):
        trace("score = scroe")
    with pytest.raises(TypeError, match="cannot be mixed"):
        trace("score = score", lambda b, h, q, k: q >= k)
    assert trace().program.text.strip() == ""
    with pytest.raises(ValueError, match="style"):
        trace(branch, style="other")


def test_functions_of_others_while_one_is_traced_by_its_forward():
    """What replaces Function.apply for traced values passes everything else on, and is gone afterwards."""
    from fxattn.trace.modes import functions_by_forward

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def gradient():
        x = torch.rand(3, requires_grad=True)
        Twice.apply(x).sum().backward()
        return x.grad.tolist()
    with functions_by_forward():
        assert gradient() == [2.0, 2.0, 2.0]
    assert gradient() == [2.0, 2.0, 2.0] and "apply" not in vars(torch.autograd.Function.__mro__[1])


def test_limits():
    for mod, words in ((lambda s, b, h, q, k: sum((torch.ones(4)[h] for _ in range(70)), s), "more than 64 tensors"),
                       (lambda s, b, h, q, k: sum((torch.sin(s * i) for i in range(40000)), s), "operations long"),
                       (lambda s, b, h, q, k: s + torch.zeros(4, dtype=torch.complex64)[h], "complex64"),
                       (lambda s, b, h, q, k: s * 1j, "not with complex")):
        with pytest.raises(TraceError, match=words):
            trace(mod)
    assert len(trace(lambda s, b, h, q, k: sum((s * (1 / (i + 3)) for i in range(100)), s)).params) <= 64


def test_mode_is_left_after_an_error():
    with pytest.raises(TraceError):
        trace(in_place_captured)
    assert torch.zeros(2).add_(1).sum() == 2


def test_documentation_lists_the_tables():
    """docs/tracing.md has every function that is known, and no other."""
    import pathlib
    import re

    from fxattn.trace.numpy_table import NUMPY
    from fxattn.trace.pointwise import POINTWISE
    from fxattn.trace.primitives import PRIMITIVES
    from fxattn.trace.torch_table import TORCH
    text = (pathlib.Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
    for name, table in (("torch", TORCH), ("numpy", NUMPY), ("jax", PRIMITIVES), ("graph", POINTWISE)):
        listed = re.search(r"<!-- %s -->\n((?:    .*\n)+)" % name, text).group(1).split()
        assert set(listed) <= set(table) and listed == sorted(listed)
        missing = {key for key in table if not key.startswith("_")} - set(listed)
        # Left out: operators by their Python names, and what only graphs of torch.fx call.
        assert all(key in HIDDEN for key in missing), missing


HIDDEN = set("""radd rsub rmul rtruediv rdiv rfloordiv rmod rpow rand ror rxor rlshift rrshift getitem index and or xor
    truediv floordiv mod lshift rshift rmatmul pos invert convert_element_type scalar_tensor is_tensor alias
    lift_fresh equal""".split())


def _first_line(fn):
    return fn.__code__.co_firstlineno


def test_wrong_results_name_the_function():
    """A result has no line any more: the function's own is named."""
    import functools
    table = torch.zeros(5)

    class Module(torch.nn.Module):
        def forward(self, s, b, h, q, k):
            return None

    wide = lambda s, b, h, q, k: s + table  # noqa: E731
    bound = Module().forward
    for mod, fn in ((wide, wide), (Module(), Module.forward), (bound, Module.forward),
                    (functools.partial(wide), wide)):
        with pytest.raises(TraceError) as caught:
            trace(mod)
        assert caught.value.file == __file__ and caught.value.line == _first_line(fn)
    with pytest.raises(TraceError, match="must return a bool") as caught:
        trace(None, lambda b, h, q, k: q)
    assert caught.value.file == __file__


@pytest.mark.parametrize("mod", [lambda s, b, h, q, k: s + {0: 1.0}[h], lambda s, b, h, q, k: s + (q in {1, 2})])
def test_keys_and_sets(mod):
    with pytest.raises(TraceError, match="no key of a dictionary") as caught:
        trace(mod)
    assert caught.value.file == __file__ and caught.value.line == _first_line(mod)
