# SPDX-License-Identifier: Apache-2.0
"""One set of option names: signatures of numpy, torch and jax, docs/names.md against them, the headers, the command and
Julia, and what a name of another library raises."""
import functools
import inspect
import os
import re

import pytest

import fxattn
from fxattn._options import CALLED, called_here

np = pytest.importorskip("numpy")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OWN = ("q k v score_mod mask_mod layout scale is_causal window bottom_right q_lengths k_lengths cu_q cu_k max_q max_k "
       "pages q_start sinks dropout_p seed params tensors style score_mod_bprop bprop_params bprop_tensors return_lse "
       "return_row_max lse_dtype deterministic bounds_check engine threads").split()
ALONE = {"numpy": "kv_layout coordinates global_q_len global_k_len global_heads out plan plans wrt dout lse dlse".split(),
         "torch": "group order".split(),
         "jax": ("segment_ids sequence_descriptor causal lengths dropout dropout_key score_mod_tensors "
                 "score_mod_bprop_tensors axis_name order method").split()}
LACKING = {"numpy": [], "torch": ["engine", "threads"],
           "jax": ["pages", "return_row_max", "lse_dtype", "threads"]}
Q = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
FRONTS = ("numpy", "torch", "jax")


def front(name):
    pytest.importorskip(name)
    __import__("fxattn." + name)
    return getattr(fxattn, name)


@functools.lru_cache(maxsize=None)
def arrays(name):
    if name == "torch":
        return tuple([front("torch") and __import__("torch").from_numpy(Q)] * 3)
    return (Q,) * 3


def call(name, *functions, **options):
    if name == "jax":
        options.setdefault("layout", "bhsd")
    return front(name).attention(*arrays(name), *functions, **options)


def functions_of(name):
    names = {"numpy": ("attention", "vjp", "backward", "plan", "plan_vjp"), "torch": ("attention", "ring_attention"),
             "jax": ("attention", "ring_attention")}[name]
    return [getattr(front(name), one) for one in names]


@pytest.mark.parametrize("name", FRONTS)
def test_signatures_have_one_set_of_names(name):
    for function in functions_of(name):
        found = inspect.signature(function).parameters
        assert not [p for p in found.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        assert [one for one in found if one not in (*OWN, *ALONE[name])] == []
    found = inspect.signature(front(name).attention).parameters
    assert [one for one in OWN if one not in found] == LACKING[name]
    order = [one for one in found if one in OWN]
    assert order[:5] == OWN[:5] and all(found[one].kind == inspect.Parameter.POSITIONAL_OR_KEYWORD for one in OWN[:5])


@pytest.mark.parametrize("name", FRONTS)
def test_a_name_of_another_library_is_told(name):
    for function in functions_of(name):
        accepted = inspect.signature(function).parameters
        required = [None for p in accepted.values() if p.default is p.empty]
        for other in CALLED:
            here = called_here(other, accepted)
            if other in accepted or not here:
                continue
            words = "%s (is called .*|is no argument .*|is of the modules .*)" % (other + "=?")
            with pytest.raises(TypeError, match=words) as caught:
                function(*required, **{other: None})
            assert isinstance(caught.value, fxattn.Error)


BEFORE = [("sink", "sinks"), ("positions", "q_start"), ("strict_index", "bounds_check"), ("return_max", "return_row_max"),
          ("bprop", "score_mod_bprop")]


@pytest.mark.parametrize("name, old, new", [(name, *names) for name in FRONTS for names in BEFORE
                                            if names[1] not in LACKING[name]])
def test_a_name_of_before_is_told(name, old, new):
    with pytest.raises(TypeError, match=r"^(attention: )?%s= is called %s=$" % (old, new)):
        call(name, **{old: None})


def test_other_functions_tell_names_too():
    for function in (fxattn.explain, fxattn.program):
        with pytest.raises(TypeError, match="^mask= is called mask_mod=; unexpected keyword nothing; accepted are score"):
            function("score", mask="q >= k", nothing=1)
    torch = front("torch")
    with pytest.raises(TypeError, match="^layout= is called order=$"):
        torch.split_sequence(arrays("torch")[0], 0, 2, layout="zigzag")


@pytest.mark.parametrize("name", FRONTS)
def test_windows_have_one_rule(name):
    def same(one, other):
        np.testing.assert_array_equal(np.asarray(call(name, window=one)), np.asarray(call(name, window=other)))
    same((2, None), (2, -1))
    same((None, 1), (-1, 1))
    same((None, None), (-1, -1))
    text = r"\(left, right\) is accepted: two ints >= 0, where None or -1 means that the side is not limited"
    for wrong, kind in (((-2, 0), ValueError), ((0, -5), ValueError), ("ab", TypeError), ((1.5, 0), TypeError),
                        ((True, 0), TypeError), ((1, 2, 3), TypeError)):
        with pytest.raises(kind, match=text):
            call(name, window=wrong)


@pytest.mark.parametrize("name", FRONTS)
@pytest.mark.parametrize("option", ["is_causal", "bottom_right", "deterministic", "bounds_check", "return_lse"])
def test_switches_are_true_or_false(name, option):
    for wrong in ("yes", 2, [], None, np.ones(3, bool)):
        with pytest.raises(TypeError, match="%s is .*; True or False is accepted" % option):
            call(name, **{option: wrong})
    for right in (1, 0, np.bool_(True)):
        call(name, **{option: right})


@pytest.mark.parametrize("name", FRONTS)
def test_options_of_one_name_mean_the_same(name):
    """Each value gives what NumPy's front end gives: dropout by a seed drops the same pairs everywhere."""
    tensors, text = {"t": np.arange(8, dtype=np.float32)}, "score * a + t[h]"
    taken = tensors
    if name == "torch":
        taken = {"t": pytest.importorskip("torch").from_numpy(tensors["t"])}
    for options in ({"dropout_p": 0.4, "seed": 7}, {"dropout_p": 0.4, "seed": (5 << 32) + 1}, {"is_causal": True},
                    {"q_lengths": np.array([4]), "k_lengths": np.array([3])}, {"q_start": np.array([2]), "is_causal": True},
                    {"sinks": "zero"}, {"engine": None} if name != "torch" else {}):
        want = fxattn.numpy.attention(Q, Q, Q, text, params={"a": 2.0}, tensors=tensors, **options)
        got = call(name, text, params={"a": 2.0}, tensors=taken, **options)
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("name", FRONTS)
def test_values_of_a_backward_program_have_names(name):
    call(name, "score", score_mod_bprop="param c : float\ndscore = dscore * c", bprop_params={"c": 2.0})
    with pytest.raises(ValueError, match="bprop_params.* without score_mod_bprop"):
        call(name, "score", bprop_params={"c": 2.0})


@pytest.mark.parametrize("name", FRONTS)
def test_an_index_outside_is_an_error_where_it_is_asked_for(name):
    table = np.ones(4, np.float32)
    taken = pytest.importorskip("torch").from_numpy(table) if name == "torch" else table
    call(name, "score + t[k]", tensors={"t": taken})
    with pytest.raises(Exception, match="index 4 is outside axis 0 of tensor 't'.*bounds_check"):
        np.asarray(call(name, "score + t[k]", tensors={"t": taken}, bounds_check=True))


def test_numpy_options_and_defaults_are_those_of_the_signature():
    from fxattn import _numpy_call, _numpy_memo
    found = inspect.signature(front("numpy").attention).parameters
    shown = [one for one in found if one in _numpy_call.OPTIONS]
    assert shown == list(_numpy_call.OPTIONS)
    assert _numpy_memo.defaults == tuple(found[one].default for one in _numpy_memo.KEPT)
    source = inspect.getsource(front("numpy").attention)
    listed = re.search(r"\) else \((.*?)\)", source, re.S)
    tested = re.search(r"options = None if \((.*?)\n    \) else", source, re.S)[1]
    assert set(re.findall(r"(\w+)\)? (?:is|==) ", tested)) == set(_numpy_memo.KEPT)
    assert tuple(re.findall(r"\w+", listed[1])) == _numpy_memo.KEPT


def test_threads_of_a_call():
    fn = front("numpy")
    want = fn.attention(Q, Q, Q, is_causal=True)
    for threads in (1, 2, 0):
        np.testing.assert_array_equal(fn.attention(Q, Q, Q, is_causal=True, threads=threads), want)
        out, pullback = fn.vjp(Q, Q, Q, is_causal=True, threads=threads)
        assert pullback(out)[0].shape == Q.shape
    for wrong, kind in (("two", TypeError), (True, TypeError), (-1, ValueError)):
        with pytest.raises(kind, match="number of threads"):
            fn.attention(Q, Q, Q, threads=wrong)
    with pytest.raises(ValueError, match="threads is given beside a plan"):
        fn.attention(Q, Q, Q, plan=fn.plan(Q, Q, Q), threads=1)


def test_longest_sequences_in_numpy():
    fn = front("numpy")
    x = np.random.default_rng(1).standard_normal((7, 2, 8))
    given = dict(layout="thd", cu_q=[0, 3, 7])
    want = fn.attention(x, x, x, **given)
    np.testing.assert_array_equal(fn.attention(x, x, x, max_q=5, max_k=4, **given), want)
    with pytest.raises(ValueError, match="cu_q"):
        fn.attention(x, x, x, max_q=2, **given)
    with pytest.raises(ValueError, match="max_q is given and the layout is bhsd"):
        fn.attention(Q, Q, Q, max_q=6)


# ---- docs/names.md ---------------------------------------------------------------------------------------------------

def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def rows():
    """The table of options: four lists of names a row, and the front ends that the Python column names."""
    text = read("docs", "names.md").partition("<!-- options -->")[2].partition("<!-- options end -->")[0]
    found = []
    for line in text.strip().split("\n")[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        fronts = re.findall(r"\b(?:numpy|torch|jax)\b", re.sub(r"`[^`]*`", "", cells[2])) or list(FRONTS)
        found.append(([re.findall(r"`([^`]*)`", cell) for cell in cells], fronts))
    return found


def test_the_table_has_every_option_of_python():
    shown = {name: set() for name in FRONTS}
    for (_, _, python, _), fronts in rows():
        for option in python:
            for name in fronts:
                shown[name].add(option.partition("=")[0])
    for name in FRONTS:
        found = set(inspect.signature(front(name).attention).parameters)
        others = set(ALONE[name]) - set(ALONE["numpy"]) | {"plan"}
        assert shown[name] - found == set() and found - shown[name] - others == set()


def test_the_table_has_names_of_c_and_of_the_command():
    headers = "".join(read("include", "fxattn", one) for one in os.listdir(os.path.join(ROOT, "include", "fxattn")))
    words, options = set(re.findall(r"\w+", headers)), set(re.findall(r'OPT\(\w+,\s*"\w+",\s*"([\w-]+)"',
                                                                     read("cli", "opts.def")))
    # Flags and slots are made by macros of their lists.
    words |= {"FXA_SLOT_" + one for one in words} | {"FXA_" + one for one in words}
    for (c, command, _, _), _ in rows():
        assert [one for one in c if one not in words] == []
        assert [one for one in command if one[2:] not in options] == []


def test_the_table_has_every_option_of_julia():
    code = "".join(read("julia", "FXAttn", "src", one) for one in ("call.jl", "attention.jl"))
    names = re.findall(r"(?m)^    (\w+)::", re.search(r"(?s)struct Options\n(.*?)\nend", code)[1])
    shown = {option.partition(" ")[0] for (_, _, _, julia), _ in rows() for option in julia}
    assert set(names) | {"q", "k", "v", "return_lse", "return_row_max", "lse_dtype"} == shown
    assert all(one + "::Bool" in code or one + " = nothing" in code for one in ("return_row_max", "lse_dtype"))


def test_the_page_tells_names_as_the_errors_do():
    """A name of another library whose row has one name of ours is called that in errors too."""
    text = read("docs", "names.md").partition("<!-- options end -->")[2]
    for line in re.findall(r"(?m)^\| `.*\|$", text):
        theirs, ours = line.strip("|").split("|", 1)
        for name in re.findall(r"`(\w+)`", theirs):
            if name in CALLED and re.fullmatch(r" `\w+`(?: and `\w+`)? ", ours):
                assert list(CALLED[name]) == re.findall(r"`(\w+)`", ours), name
