# SPDX-License-Identifier: Apache-2.0
"""Program and Builder: content decides what is equal, text and bytes come back, mistakes are told where they are
made."""
import copy
import gc
import os
import pickle

import fxattn
import pytest
from fxattn import Builder, Program

TEXT = """
param cap : float = 20
param shift : int
tensor slopes : f32[1]
score = cap * tanh((score + slopes[h] * (q - k + shift)) / cap)
mask = q >= k
"""


def test_text_bytes_pickle_and_copies_are_the_same_program():
    program = Program(TEXT)
    for other in (Program.from_text(program.text), Program.from_bytes(program.bytes), copy.copy(program),
                  pickle.loads(pickle.dumps(program)), copy.deepcopy({"p": program})["p"], eval(repr(program))):
        assert other == program and hash(other) == hash(program) and other.text == program.text
    assert program != Program("mask = q > k") and program != "text" and len({program, Program(TEXT)}) == 1
    assert len(program.hash) == 32 and str(program) == program.text


def test_what_a_program_says_of_itself():
    program = Program(TEXT)
    assert program.params == (("cap", "float", 20.0), ("shift", "int", None))
    assert program.captures == (("slopes", "f32", 1),)
    assert program.kind == "score" and program.nodes > 5
    properties = program.properties()
    assert properties["names"] == ["soft cap", "causal"] and properties["window"] == (None, 0)
    assert properties["mask_depends"] == ["q", "k"]
    derivative = program.derivative()
    assert derivative.kind == "derivative" and "grad slopes[h]" in derivative.text
    assert "slopes" in program.dump("classes") and "causal" in program.dump("conjuncts")
    with pytest.raises(fxattn.ArgumentError, match="kind"):
        derivative.properties()
    with pytest.raises(fxattn.ArgumentError, match="classes"):
        program.dump("nonsense")


def test_texts_compose_and_names_may_be_declared_outside():
    program = Program.from_text(["mask = q >= k", "mask = mask && doc[q] == doc[k]", "score = score * scale"],
                                params={"scale": "float", "unused": "int"}, captures={"doc": ("i32", 1)})
    assert [p.name for p in program.params] == ["scale"] and program.captures == (("doc", "i32", 1),)
    assert Program.from_text("dscore = 2 * dscore", kind="bprop").kind == "bprop"
    assert Program() == Program.from_text([]) == Program("score = score")


def test_mistakes_in_texts_have_a_place():
    with pytest.raises(fxattn.ProgramError) as caught:
        Program.from_text(["mask = q >= k", "score = score +\nscore * "])
    error = caught.value
    assert (error.part, error.line, error.status) == (1, 2, "E_PROGRAM") and "^" in str(error)
    with pytest.raises(ValueError, match="unknown name 'slope'"):
        Program("score = slope[h]")
    with pytest.raises(TypeError, match="str"):
        Program.from_text(3)
    with pytest.raises(TypeError, match="str"):
        Program.from_text([b"score = score"])
    for keywords in ({"kind": "nonsense"}, {"params": {"a": "double"}}, {"captures": {"a": ("f31", 1)}}):
        with pytest.raises(fxattn.ArgumentError, match="is accepted"):
            Program.from_text("", **keywords)
    with pytest.raises(fxattn.Error):
        Program("score = \0")
    with pytest.raises(fxattn.Error):
        Program("score = \ud800")


def test_damaged_bytes():
    data = Program(TEXT).bytes
    for wrong in (b"", data[:-1], data[:20] + bytes([data[20] ^ 1]) + data[21:], os.urandom(200)):
        with pytest.raises(fxattn.BytesError):
            Program.from_bytes(wrong)
    assert Program.from_bytes(bytearray(data)).bytes == data == Program.from_bytes(memoryview(data)).bytes


def test_builder_makes_what_text_makes():
    b = Builder()
    q, k, h = b.input("q"), b.input("k"), b.input("h")
    cap = b.param("cap", "float", 20.0)
    distance = b.op("add", b.op("sub", q, k), b.param("shift", "int"))
    biased = b.op("add", b.input("score"), b.op("mul", b.load(b.tensor("slopes", "f32", 1), h), distance))
    b.set_score(b.op("mul", cap, b.op("tanh", b.op("div", biased, cap))))
    b.set_mask(b.op("ge", q, k))
    assert b.type_of(q) == "int" and b.type_of(cap) == "float"
    assert b.finish() == Program(TEXT)


def test_builder_includes_programs_and_other_kinds():
    b = Builder()
    score, mask = b.include(Program("score = score * 2\nmask = q >= k"), b.op("add", b.input("score"), b.const(1)))
    b.set_score(b.op("select", b.const(True), score, b.const(0.0)))
    b.set_mask(mask)
    assert b.finish() == Program("score = (score + 1) * 2\nmask = q >= k")
    b = Builder("bprop")
    b.set_dscore(b.op("clamp", b.input("dscore"), b.const(-1.0), b.const(1.0)))
    assert b.finish() == Program.from_text("dscore = clamp(dscore, -1, 1)", kind="bprop")


@pytest.mark.parametrize("mistake, kind", [
    (lambda b: b.op("add", b.input("q"), 99), ValueError),
    (lambda b: b.op("no such", 0), ValueError),
    (lambda b: b.op("add", b.input("q")), ValueError),
    (lambda b: b.op(True, 0), TypeError),
    (lambda b: b.input("dscore"), ValueError),
    (lambda b: b.const(1 << 31), ValueError),
    (lambda b: b.const("1"), TypeError),
    (lambda b: b.load(b.tensor("t", "f32", 2), b.input("q")), ValueError),
    (lambda b: b.load(b.tensor("t", "f32", 1), b.input("score")), ValueError),
    (lambda b: b.tensor("t", "f32", 6), ValueError),
    (lambda b: b.set_mask(b.input("score")), ValueError),
    (lambda b: b.type_of(7), ValueError),
    (lambda b: b.param("two words"), ValueError),
    (lambda b: b.param("p", "bool"), ValueError)])
def test_builder_tells_mistakes_at_once(mistake, kind):
    with pytest.raises(kind) as caught:
        mistake(Builder())
    assert isinstance(caught.value, fxattn.Error)


def test_program_of_functions_texts_and_expressions():
    want = Program("score = score * 2\nmask = q >= k")
    assert fxattn.program("score * 2", "q >= k") == fxattn.program(want) == want and fxattn.program() == Program()
    assert fxattn.program("fn f(x) = x * 2; score = f(score)", "q >= k") == want
    assert fxattn.program("\ufeffscore = score * 2", "\ufeffq >= k") == want
    pytest.importorskip("fxattn.trace")
    assert fxattn.program(lambda s, b, h, q, k: s * 2, lambda b, h, q, k: q >= k) == want


def test_ten_thousand_programs_come_and_go():
    """Memory is bounded: what is gone is released."""
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc/self/statm here")
    for i in range(1000):
        Program("score = score * %d" % i).derivative()
    gc.collect()
    before = resident()
    for i in range(9000):
        Program("score = score * %d + q" % i).derivative()
    gc.collect()
    assert resident() - before < 8 << 20
