# SPDX-License-Identifier: Apache-2.0
"""Problem, Plan and Args by ctypes, without a tensor library: arrays are the standard library's."""
import array
import ctypes

import fxattn
import pytest
from fxattn import Program, _abi
from fxattn._problem import SLOTS, Args, Plan, Problem, View

B, H, S, D = 1, 2, 4, 8


def floats(count, start=0.0):
    return array.array("f", [start + 0.1 * (i % 7) for i in range(count)])


def address(data):
    return data.buffer_info()[0]


class Case:
    """A small problem with its arrays."""

    def __init__(self, program=None, **keywords):
        self.arrays = {name: floats(B * H * S * D, i) for i, name in enumerate("qkv")}
        self.arrays["o"] = floats(B * H * S * D, 9)
        self.problem = Problem(program, b=B, hq=H, sq=S, sk=S, d_qk=D, **keywords)
        self.args = Args(**{name: address(data) for name, data in self.arrays.items()})

    def out(self):
        return list(self.arrays["o"])


def test_a_run_by_the_easy_way_and_by_a_plan():
    easy, planned = Case(), Case()
    easy.problem.run(easy.args)
    plan = planned.problem.plan()
    space = ctypes.create_string_buffer(plan.workspace + _abi.WORKSPACE_ALIGN)
    planned.args.workspace(-(-ctypes.addressof(space) // _abi.WORKSPACE_ALIGN) * _abi.WORKSPACE_ALIGN, plan.workspace)
    plan.run(planned.args)
    assert easy.out() == planned.out() != list(floats(B * H * S * D, 9))
    assert plan.engine == "cpu" and plan.deterministic and len(plan.key) == 32 and plan.detail


def test_plans_as_bytes():
    case = Case(Program("score = 2 * score"))
    plan = case.problem.plan()
    again = Plan.load(plan.save())
    assert (again.key, again.engine) == (plan.key, plan.engine) == (Plan.load(plan.save(), rebuild=True).key, "cpu")
    with pytest.raises(fxattn.BytesError):
        Plan.load(plan.save()[:-1])
    data = case.problem.save()
    out = ctypes.c_void_p()
    fxattn._library.call(fxattn._library.lib.plan_create_from_problem, fxattn._library.context(), data, len(data), -1,
                         ctypes.byref(out))
    assert Plan(out.value).key == plan.key


def test_captures_params_and_strides():
    case = Case(Program("param a : float\ntensor t : f32[1]\nscore = a * score + t[h]"))
    table = floats(4, 3)
    case.problem.captures([View(address(table), _abi.F32, (2,), (2,))])
    case.args.tensors([address(table)])
    case.args.params([2.0])
    case.problem.operand("o", _abi.F32, (H * S * D, D, H * D, 1))  # [B,S,H,D]
    case.problem.run(case.args)
    turned = case.out()
    plain = Case(Program("score = 2 * score + (h == 0 ? %r : %r)" % (table[0], table[2])))
    plain.problem.run(plain.args)
    want = [plain.out()[(h * S + s) * D + d] for s in range(S) for h in range(H) for d in range(D)]
    assert turned == pytest.approx(want, rel=1e-6)


def test_what_engines_say():
    case = Case(flags=_abi.CAUSAL)
    assert [(v.engine, v.supported) for v in case.problem.support()][:1] == [("cpu", True)]
    assert case.problem.program() == Program("mask = q >= k")
    with pytest.raises(fxattn.UnsupportedError, match="workspace") as caught:
        Case(max_workspace=1, flags=_abi.DETERMINISTIC).problem.plan()
    assert isinstance(caught.value, NotImplementedError) and caught.value.status == "E_UNSUPPORTED"


def test_index_maps():
    shifted = Case(Program("mask = q >= k"))
    shifted.problem.index_map("q", base=2)
    parts = Case(Program("mask = q >= k"))
    parts.problem.index_map("q", segments=[(0, 2, 1), (2, 4, 1)])
    for case in (shifted, parts):
        case.problem.run(case.args)
    assert shifted.out() == parts.out()
    with pytest.raises(fxattn.ArgumentError, match="17 segments; at most 16"):
        parts.problem.index_map("q", segments=[(i, i, 1) for i in range(17)])


def test_mistakes_are_the_library_s_to_tell():
    for wrong, kind, words in ((dict(d_qk=600), fxattn.ProblemError, "600"), (dict(hkv=3), fxattn.ProblemError, "hkv"),
                               (dict(engine="nonsense"), ValueError, "nonsense")):
        fields = {**dict(b=B, hq=H, sq=S, sk=S, d_qk=D), **wrong}
        with pytest.raises(kind, match=words):
            Problem(**fields).plan()
    case = Case()
    case.args.slot("k", None)
    with pytest.raises(fxattn.BindingError, match="K"):
        case.problem.run(case.args)
    with pytest.raises(AttributeError):
        Problem().operand("nonsense", _abi.F32)
    with pytest.raises(TypeError, match="nonsense"):
        Problem(nonsense=1)
    with pytest.raises(KeyError):
        Args(nonsense=1)
    rank = Case(Program("tensor t : f32[1]\nscore = t[q]"))
    with pytest.raises(fxattn.ArgumentError, match="rank 6"):
        rank.problem.captures([View(0, _abi.F32, (1,) * 6, (1,) * 6)])
    assert len(SLOTS) == _abi.SLOT_COUNT
