# SPDX-License-Identifier: Apache-2.0
"""The graph style: Transformer Engine's cases, every pointwise method against its formula, and its derivative against
differences, scalars and tensors in every form, state shared by the two callbacks."""
import enum
import math

import numpy as np
import pytest

from fxattn import ArgumentError
from fxattn.trace import TraceError, trace
from fxattn.trace.record import PROGRAMS
from trace_support import Evaluator, same


class data_type(enum.Enum):  # as cudnn.data_type spells it
    FLOAT, HALF, BFLOAT16, INT32, BOOLEAN = range(5)


class scalar_type(enum.Enum):
    RUNTIME_PARAM, COMPILE_TIME_CONST = range(2)


def causal(graph, score, tensors):
    row = graph.gen_index(input=score, axis=2).set_data_type(data_type.INT32)
    column = graph.gen_index(input=score, axis=3, compute_data_type=data_type.INT32)
    column.set_data_type(data_type.INT32)
    keep = graph.cmp_ge(input=row, comparison=column, compute_data_type=data_type.BOOLEAN)
    keep.set_data_type(data_type.BOOLEAN)
    return graph.binary_select(input0=score, input1=tensors["fill"], mask=keep)


def post_scale_bias(graph, score, tensors):
    assert tensors == {}
    row, column = graph.gen_index(score, 2), graph.gen_index(score, -1)
    bias = graph.sub(a=row, b=column, compute_data_type=data_type.FLOAT).set_data_type(data_type.FLOAT)
    return graph.add(a=score, b=bias, compute_data_type=data_type.FLOAT, name="bias")


class Softcap:
    def forward(self, graph, score, tensors):
        self.before = graph.div(a=score, b=tensors["cap"], compute_data_type=data_type.FLOAT)
        self.before.set_data_type(data_type.FLOAT).set_name("before").set_output(False)
        return graph.mul(a=graph.tanh(input=self.before), b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        d = graph.mul(a=dscore, b=tensors["cap"])
        return graph.div(a=graph.tanh_backward(loss=d, input=self.before), b=tensors["cap"])


def forward(traced):
    return Evaluator(traced.program, traced.tensors, traced.params)


def backward(traced):
    return Evaluator(traced.bprop, traced.bprop_tensors, traced.bprop_params)


def test_identity_and_none():
    for mod in (lambda g, s, t: s, lambda g, s, t: None, None):
        assert trace(mod, style="graph").program.text.strip() == ""
    traced = trace(lambda g, s, t: None, style="graph", score_mod_bprop=lambda g, d, t: None)
    assert backward(traced)(dscore=2.5)[0] == 2.5


SCALARS = [-1e9, np.float32(-1e9), np.float64(-1e9), np.array(-1e9), np.array([-1e9]), np.full((1, 1, 1, 1), -1e9),
           np.full((1, 1, 1, 1), -1e9, np.float32)]


@pytest.mark.parametrize("fill", SCALARS, ids=lambda x: "%s%s" % (type(x).__name__, getattr(x, "shape", "")))
def test_causal(fill):
    traced = trace(causal, style="graph", score_mod_bprop=causal, tensors={"fill": fill}, bprop_tensors={"fill": 0.0})
    f, b = forward(traced), backward(traced)
    for q in range(4):
        for k in range(4):
            assert f(0.5, q=q, k=k)[0] == (0.5 if q >= k else np.float32(-1e9))
            assert b(0.5, q=q, k=k, dscore=3.0)[0] == (3.0 if q >= k else 0.0)


def test_torch_scalars():
    torch = pytest.importorskip("torch")
    for fill in (torch.tensor(-math.inf), torch.full((1,), -math.inf), torch.full((1, 1, 1, 1), -math.inf,
                                                                                  dtype=torch.float16)):
        traced = trace(causal, style="graph", tensors={"fill": fill})
        assert traced.tensors[0] is fill and forward(traced)(1.0, q=0, k=1)[0] == -math.inf


def test_post_scale_bias():
    f = forward(trace(post_scale_bias, style="graph"))
    assert f(0.5, q=2, k=7)[0] == -4.5


def test_softcap_keeps_its_node():
    """R-24: the forward is traced before its backward, which uses what the forward kept."""
    mod = Softcap()
    traced = trace(mod.forward, style="graph", score_mod_bprop=mod.backward, tensors={"cap": 0.8}, bprop_tensors={"cap": 0.8})
    for s in (-1.0, 0.1, 2.0):
        assert same(forward(traced)(s)[0], 0.8 * math.tanh(s / 0.8))
        assert same(backward(traced)(s, dscore=1.5)[0], 1.5 * (1 - math.tanh(s / 0.8) ** 2))
    assert traced.bprop.kind == "bprop"


def test_a_kept_node_thousands_of_operations_deep():
    class Deep:
        def forward(self, graph, score, tensors):
            x = score
            for n in range(4000):
                x = graph.add(x, tensors["step"]) if n % 2 else graph.mul(x, tensors["gain"])
            self.x = x
            return graph.tanh(x)

        def backward(self, graph, dscore, tensors):
            return graph.tanh_backward(dscore, self.x)

    mod, given = Deep(), {"step": np.array([0.001]), "gain": 0.9999}
    traced = trace(mod.forward, style="graph", score_mod_bprop=mod.backward, tensors=given)
    x = 0.3
    for n in range(4000):
        x = x + 0.001 if n % 2 else x * 0.9999
    assert same(forward(traced)(0.3)[0], math.tanh(x))
    assert abs(backward(traced)(0.3, dscore=1.5)[0] - 1.5 * (1 - math.tanh(x) ** 2)) < 1e-12
    assert len(traced.bprop_tensors) == 1 and len(traced.bprop_params) == 1


def test_scalar_values_build_nothing():
    mod = Softcap()
    builds = None
    for n in range(1000):
        cap = 0.5 + n / 100
        traced = trace(mod.forward, style="graph", score_mod_bprop=mod.backward, tensors={"cap": cap}, bprop_tensors={"cap": cap})
        builds = PROGRAMS.builds if builds is None else builds
        assert traced.params == (cap,)
    assert PROGRAMS.builds == builds


def test_node_of_another_trace_is_refused():
    mod = Softcap()
    trace(mod.forward, style="graph", tensors={"cap": 1.0})
    kept = mod.before
    with pytest.raises(TraceError, match="another trace"):
        trace(lambda g, s, t: g.add(s, kept), style="graph")


def test_broadcast_of_tensors():
    bias = np.arange(2 * 3 * 4 * 5, dtype=np.float64).reshape(2, 3, 4, 5)
    mod = lambda g, s, t: g.add(a=s, b=t["bias"])  # noqa: E731
    at = dict(b=1, h=2, q=3, k=4)
    for view, index in ((bias, (1, 2, 3, 4)), (bias[:, :1], (1, 0, 3, 4)), (bias[:1, :, :1], (0, 2, 0, 4)),
                        (bias[1, 2], (3, 4)), (bias[0, 0, 0], (4,))):
        traced = trace(mod, style="graph", tensors={"bias": view}, shape=(2, 3, 4, 5))
        assert forward(traced)(0.25, **at)[0] == 0.25 + view[index]
    with pytest.raises(TraceError, match="does not broadcast"):
        trace(mod, style="graph", tensors={"bias": bias.transpose(0, 1, 3, 2)}, shape=(2, 3, 4, 5))


def gelu(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


UNARY = {
    "abs": abs, "neg": lambda x: -x, "ceil": math.ceil, "floor": math.floor, "exp": math.exp, "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan, "erf": math.erf, "tanh": math.tanh, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "identity": lambda x: x,
    "reciprocal": lambda x: 1 / x, "relu": lambda x: max(x, 0.0), "elu": lambda x: x if x > 0 else math.expm1(x),
    "gelu": gelu,
    "gelu_approx_tanh": gelu_tanh, "softplus": lambda x: math.log1p(math.exp(x)),
    "swish": lambda x: x / (1 + math.exp(-x)),
}
POINTS = (-2.3, -0.4, 0.3, 1.7)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    f = forward(trace(lambda g, s, t: getattr(g, name)(input=s), style="graph"))
    assert all(same(f(x)[0], UNARY[name](x)) for x in POINTS)


def test_of_positive():
    for name, fn in (("sqrt", math.sqrt), ("rsqrt", lambda x: x ** -0.5), ("log", math.log)):
        f = forward(trace(lambda g, s, t: getattr(g, name)(input=s), style="graph"))
        assert same(f(2.5)[0], fn(2.5))


BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
          "add_square": lambda a, b: a + b * b}
COMPARE = {"cmp_eq": lambda a, b: a == b, "cmp_neq": lambda a, b: a != b, "cmp_gt": lambda a, b: a > b,
           "cmp_ge": lambda a, b: a >= b, "cmp_lt": lambda a, b: a < b, "cmp_le": lambda a, b: a <= b}


def test_binary():
    for name, fn in BINARY.items():
        f = forward(trace(lambda g, s, t: getattr(g, name)(a=s, b=t["y"]), style="graph", tensors={"y": 1.25}))
        assert all(same(f(x)[0], fn(x, 1.25)) for x in POINTS), name
    for name, fn in (("max", max), ("min", min), ("mod", math.fmod), ("pow", math.pow)):
        f = forward(trace(lambda g, s, t: getattr(g, name)(input0=s, input1=t["y"]), style="graph", tensors={"y": 2.0}))
        assert all(same(f(x)[0], fn(x, 2.0)) for x in POINTS), name
    for name, fn in COMPARE.items():
        f = forward(trace(lambda g, s, t: getattr(g, name)(input=s, comparison=t["y"]), style="graph",
                          tensors={"y": 0.3}))
        assert all(f(x)[0] == float(fn(x, 0.3)) for x in POINTS), name


def test_logic():
    def mod(g, s, t):
        low, high = g.cmp_gt(input=s, comparison=t["low"]), g.cmp_lt(s, t["high"])
        both, none = g.logical_and(a=low, b=high), g.logical_not(input=g.logical_or(a=low, b=high))
        return g.add(g.mul(both, t["two"]), none)
    f = forward(trace(mod, style="graph", tensors={"low": -0.5, "high": 1.0, "two": 2}))
    assert [f(x)[0] for x in POINTS] == [2.0 * (-0.5 < x < 1.0) + (not (x > -0.5 or x < 1.0)) for x in POINTS]


def clipped(x, slope=0.1, low=-1.0, high=1.5):
    return min(x, high) if x > low else low + slope * (x - low)


OPTIONS = {"negative_slope": 0.1, "lower_clip": -1.0, "upper_clip": 1.5}
BACKWARD = {**{name: (UNARY[name], {}) for name in ("relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh",
                                                    "softplus")},
            "swish": (lambda x: x / (1 + math.exp(-2.0 * x)), {"swish_beta": 2.0}),
            "leaky_relu": (lambda x: x if x > 0 else 0.2 * x, {"negative_slope": 0.2}), "relu": (clipped, OPTIONS)}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_is_the_slope(name):
    fn, options = BACKWARD[name]
    traced = trace(lambda g, s, t: getattr(g, name)(input=s, **options), style="graph")
    back = trace(lambda g, s, t: getattr(g, name + "_backward")(loss=t["loss"], input=s, **options), style="graph",
                 tensors={"loss": 1.5})
    for x in POINTS:
        assert same(forward(traced)(x)[0], fn(x))
        assert same(forward(back)(x)[0], 1.5 * (fn(x + 1e-6) - fn(x - 1e-6)) / 2e-6, 1e-6), x


def test_tensor_scalar():
    run = lambda g, s, t: g.mul(s, g.tensor_scalar(2.5, scalar_type.RUNTIME_PARAM))  # noqa: E731
    fixed = lambda g, s, t: g.mul(s, g.tensor_scalar(2.5, scalar_type.COMPILE_TIME_CONST))  # noqa: E731
    assert trace(run, style="graph").params == (2.5,) and trace(fixed, style="graph").params == ()
    assert forward(trace(run, style="graph"))(2.0)[0] == forward(trace(fixed, style="graph"))(2.0)[0] == 5.0


def test_enums_of_the_real_frontend():
    cudnn = pytest.importorskip("cudnn")

    def mod(graph, score, tensors):
        twice = graph.mul(a=score, b=graph.tensor_scalar(2.5, cudnn.scalar_type.RUNTIME_PARAM),
                          compute_data_type=cudnn.data_type.FLOAT)
        twice.set_data_type(cudnn.data_type.HALF).set_name("twice").set_output(False)
        return twice

    traced = trace(mod, style="graph")
    assert traced.params == (2.5,) and forward(traced)(2.0)[0] == 5.0


def test_operators_and_names_that_are_not_there():
    for mod, kind, words in ((lambda g, s, t: s * 2.0, TypeError, "no operators; graph.mul"),
                             (lambda g, s, t: 1.0 - s, TypeError, "no operators; graph.sub"),
                             (lambda g, s, t: s >= t["cap"], TypeError, "no operators; graph.cmp_ge"),
                             (lambda g, s, t: t["kap"], KeyError, "^score_mod_tensors has no 'kap'; it has 'cap'")):
        with pytest.raises(kind, match="(?s)%s.*test_trace_graph.py" % words):
            trace(mod, style="graph", tensors={"cap": 2.0})
    with pytest.raises(KeyError, match="score_mod_tensors has no 'cap'; none are given"):
        trace(lambda g, s, t: t["cap"], style="graph")


def test_functions_of_other_libraries():
    torch = pytest.importorskip("torch")
    for mod, words in ((lambda g, s, t: torch.tanh(s), "graph.tanh"), (lambda g, s, t: np.tanh(s), "graph.tanh"),
                       (lambda g, s, t: torch.where(g.cmp_ge(s, s), s, s), "graph.binary_select"),
                       (lambda g, s, t: np.float32(2) * s, "graph.mul"),
                       (lambda g, s, t: torch.ones(()) * s, "graph.mul"),
                       (lambda g, s, t: torch.clamp(s, -1.0, 1.0), "graph.max and graph.min"),
                       (lambda g, s, t: torch.nn.functional.gelu(s), "graph.gelu"),
                       (lambda g, s, t: np.where(s, s, s), "graph.binary_select"),
                       (lambda g, s, t: torch.erfinv(s), "the graph has abs, add"),
                       (lambda g, s, t: math.tanh(s), "is no number.*the graph has abs")):
        with pytest.raises(TypeError, match="(?s)%s.*test_trace_graph.py" % words):
            trace(mod, style="graph")


def test_misuse():
    for call, words in ((dict(score_mod_bprop=causal,
                              tensors={"x": 1.0}), "score_mod_bprop, score_mod_tensors given without score_mod"),
                        (dict(score_mod=causal, bprop_tensors={"x": 1.0}),
                         "score_mod_bprop_tensors requires score_mod_bprop"),
                        (dict(score_mod=3), "score_mod is of type int")):
        with pytest.raises(ArgumentError, match=words):
            trace(style="graph", **call)
    for mod, error, words in ((lambda g, s, t: 3.0, TraceError, "score_mod returned float"),
                              (lambda g, s, t: g.matmul(s, s), AttributeError,
                               "the graph has no 'matmul'; it has .*tanh"),
                              (lambda g, s, t: g.add(a=s), TypeError, "b is missing"),
                              (lambda g, s, t: g.add(a=s, b=s, c=s), TypeError, "c is not known"),
                              (lambda g, s, t: g.gen_index(s, 4), TraceError, "test_trace_graph.py"),
                              (lambda g, s, t: t["nothing"], KeyError, "nothing")):
        with pytest.raises(error, match=words):
            trace(mod, style="graph")


def test_unused_tensors_are_not_captured():
    traced = trace(lambda g, s, t: g.add(s, t["used"]), style="graph", tensors={"other": np.zeros(3),
                                                                                "used": np.ones(1), "x": 1.0})
    assert len(traced.tensors) == 1 and traced.params == ()


@pytest.mark.parametrize("words, mod", [
    ("the graph has no 'matmul'; it has abs, add", lambda g, s, t: g.matmul(s, s)),
    ("mul takes a, b, compute_data_type, name; b is missing", lambda g, s, t: g.mul(s)),
    ("mul takes .*; c is not known", lambda g, s, t: g.mul(s, s, c=1)),
    ("mul takes .*; a is given twice", lambda g, s, t: g.mul(s, a=s, b=s)),
    ("mul takes .*; 5 arguments are given", lambda g, s, t: g.mul(s, s, None, "", 1)),
    ("leaky_relu takes .*; negative_slope is missing", lambda g, s, t: g.leaky_relu(s)),
    ("a tensor of the graph has no attribute 'abs'", lambda g, s, t: s.abs()),
    ("an operand is of type str", lambda g, s, t: g.mul(s, "2")),
    ("score_mod returned float", lambda g, s, t: 1.0),
])
def test_errors_name_the_line(words, mod):
    with pytest.raises(TraceError, match=words) as caught:
        trace(mod, style="graph")
    assert caught.value.file == __file__ and caught.value.line == mod.__code__.co_firstlineno


def test_all_arguments_by_position():
    """In the frontend's order, which differs for one of them."""
    for mod in (lambda g, s, t: g.mul(s, s, "FLOAT", "twice"), lambda g, s, t: g.relu(s, None, None, None, "FLOAT"),
                lambda g, s, t: g.swish_backward(s, s, "FLOAT", 1.0, "back"), lambda g, s, t: g.leaky_relu(s, 0.5)):
        assert trace(mod, style="graph").program is not None
