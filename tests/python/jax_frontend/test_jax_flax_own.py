# SPDX-License-Identifier: Apache-2.0
"""MultiHeadAttention of fxattn.jax.flax and fxattn.jax.nnx against Flax's own with the same weights, and under Flax's own
transformations; what has __jax_array__ (nnx.Param) wherever an array may be given."""
import inspect

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import linen as nn  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_support import all_close, close, loss_of, qkv, rand  # noqa: E402

import fxattn.jax.flax as linen  # noqa: E402
import fxattn.jax.nnx as modules  # noqa: E402
from fxattn.jax import attention  # noqa: E402

X = rand(1, 2, 8, 16)
KEY = jax.random.key(0)
CAUSAL = nn.make_causal_mask(jnp.ones((2, 8)))


def far(score, b, h, q, k):
    return score - 0.1 * (q - k)


@pytest.mark.parametrize("dtype, param_dtype", [(None, "float32"), ("bfloat16", "float32"), ("float16", "float16"),
                                                (None, "bfloat16")])
def test_linen_with_the_same_weights(dtype, param_dtype):
    dtype, param_dtype = None if dtype is None else jnp.dtype(dtype), jnp.dtype(param_dtype)
    theirs = nn.MultiHeadDotProductAttention(4, dtype=dtype, param_dtype=param_dtype, qkv_features=32, out_features=16)
    ours = linen.MultiHeadAttention(8, 4, use_bias=True, dtype=dtype, param_dtype=param_dtype)
    params = theirs.init(KEY, X)
    same = jax.eval_shape(ours.init, KEY, X)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), same)
    got, want = ours.apply(params, X), theirs.apply(params, X, mask=CAUSAL)
    assert got.dtype == want.dtype
    if dtype is None:
        assert close(got, want, 60)
    else:  # theirs rounds scores, probabilities and their products with v: eight roundings, of sums of 32 in the end
        unit = float(jnp.finfo(dtype).eps)
        assert np.abs(np.asarray(got, "float32") - np.asarray(want, "float32")).max() < 8 * unit * np.abs(want).max()
    if dtype is None and param_dtype == jnp.float32:
        grads = [jax.jit(jax.grad(loss_of(lambda p, run=run: run(p))))(params) for run in (
            lambda p: ours.apply(p, X), lambda p: theirs.apply(p, X, mask=CAUSAL))]
        assert all_close(*grads, 400)
        other = rand(2, 2, 5, 16)
        free = linen.MultiHeadAttention(8, 4, use_bias=True, attn_mask_type="no_mask")
        assert close(free.apply(params, X, other), theirs.apply(params, X, other), 60)


def test_nnx_with_the_same_weights():
    theirs = nnx.MultiHeadAttention(4, 16, 32, decode=False, rngs=nnx.Rngs(0))
    ours = modules.MultiHeadAttention(16, 8, 4, use_bias=True, rngs=nnx.Rngs(1))
    for name in ("query", "key", "value", "out"):
        for part in ("kernel", "bias"):
            getattr(getattr(ours, name), part).set_value(getattr(getattr(theirs, name), part)[...])
    assert close(ours(X), theirs(X, mask=CAUSAL), 60)
    graph, state = nnx.split(ours)
    assert np.array_equal(nnx.merge(graph, state)(X), ours(X))
    grads = nnx.jit(nnx.grad(lambda m: m(X).sum()))(ours)
    again = nnx.grad(lambda m: nnx.remat(lambda m, x: m(x))(m, X).sum())(ours)
    assert all_close(jax.tree.leaves(again), jax.tree.leaves(grads), 40)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return x + linen.MultiHeadAttention(8, 4, score_mod=far, softmax_type="learnable")(x), None


def test_linen_transformations():
    layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)()
    params = jax.jit(layers.init)(KEY, X, None)

    def in_turn(params):
        x = X
        for n in range(2):
            x, _ = Block().apply(jax.tree.map(lambda p, n=n: p[n], params), x)
        return x
    both = [jax.jit(jax.value_and_grad(loss_of(run)))(params)
            for run in (lambda p: layers.apply(p, X, None)[0], in_turn)]
    assert all_close(*both, 2000)
    parts = linen.MultiHeadAttention(8, 4, kernel_init=nn.with_partitioning(nn.initializers.ones, (None, "tp", None)))
    specs = nn.get_partition_spec(jax.eval_shape(parts.init, KEY, X))
    assert specs["params"]["query"]["kernel"] == P(None, "tp", None)


def test_nnx_layers_in_a_scan_and_modes():
    @nnx.vmap(in_axes=0, out_axes=0)
    def made(key):
        return modules.MultiHeadAttention(16, 8, 4, rngs=nnx.Rngs(key), score_mod=far, softmax_type="learnable")
    layers = made(jax.random.split(KEY, 2))

    def scanned(layers):
        return nnx.scan(lambda x, m: m(x) + x, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(X, layers)

    def in_turn(layers):
        x, (graph, state) = X, nnx.split(layers)
        for n in range(2):
            x = nnx.merge(graph, jax.tree.map(lambda p, n=n: p[n], state))(x) + x
        return x
    assert close(scanned(layers), in_turn(layers), 200)
    grads = [jax.tree.leaves(nnx.grad(lambda m, run=run: run(m).sum())(layers)) for run in (scanned, in_turn)]
    assert all_close(*grads, 2000)
    drops = modules.MultiHeadAttention(16, 8, 4, rngs=nnx.Rngs(0), attention_dropout=0.5)
    assert not np.array_equal(drops(X), drops(X))
    drops.eval()
    assert np.array_equal(drops(X), drops(X))


def test_what_jax_takes_for_arrays():
    q, k, v = qkv(4)
    slopes, cap = nnx.Param(rand(5, 4)), nnx.Param(jnp.float32(1.5))
    plain = slopes[...]
    want = attention(q, k, v, score_mod=lambda s, b, h, i, j: (s + plain[h]) * 1.5)
    assert close(attention(q, k, v, score_mod=lambda s, b, h, i, j: (s + slopes[h]) * cap), want, 20)
    assert close(attention(nnx.Param(q), k, v, score_mod="(score + t[h]) * c", score_mod_tensors={"t": slopes},
                           params={"c": cap}), want, 20)
    by_graph = attention(q, k, v, score_mod=lambda g, s, t: g.mul(a=g.add(a=s, b=t["t"]), b=t["c"]),
                         score_mod_tensors={"t": nnx.Param(plain.reshape(1, 4, 1, 1)), "c": cap})
    assert close(by_graph, want, 20)
    assert close(attention(q, k, v, scale=cap, sinks=slopes), attention(q, k, v, scale=1.5, sinks=plain), 20)


TABLE = np.linspace(-1, 1, 9)


def test_arrays_of_numpy_beside_functions_of_jax():
    q, k, v = qkv(6)
    heads = np.arange(4)

    def mod(score, b, h, i, j):
        return jnp.tanh(score) + TABLE[i] * heads[h]
    want = attention(q, k, v, score_mod=lambda s, b, h, i, j: jnp.tanh(s) + jnp.asarray(TABLE)[i] * jnp.asarray(heads)[h])
    assert np.array_equal(attention(q, k, v, score_mod=mod), want)
    heads[:] = heads[::-1].copy()  # is read again
    assert not np.array_equal(attention(q, k, v, score_mod=mod), want)


@pytest.mark.parametrize("module", [linen.DotProductAttention, linen.MultiHeadAttention, modules.DotProductAttention,
                                    modules.MultiHeadAttention])
def test_arguments_of_other_libraries(module):
    sizes = {"head_dim": 8, "num_attention_heads": 4}
    if module is modules.MultiHeadAttention:
        sizes.update(in_features=16, rngs=nnx.Rngs(0))
    for name, words in (("float32_logits", "float32 or wider"), ("enable_rotary_pos_emb", "rotate query and key"),
                        ("context_parallel_axis", "ring_attention"), ("decode", "keep keys and values yourself"),
                        ("num_heads", "num_attention_heads here"), ("widow_size", "accepted are .*window_size")):
        with pytest.raises(TypeError, match="%s: .*%s.*%s" % (module.__name__, name, words)):
            module(**sizes, **{name: 1})
    with pytest.raises(TypeError, match="num_heads is num_attention_heads here"):  # rather than what is missing then
        module(num_heads=4)
    shown = inspect.signature(module.__init__).parameters
    assert {"score_mod", "score_mod_bprop", "window_size", "softmax_type"} <= set(shown)
    assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())


def test_shapes_and_types_of_modules():
    q, k, v = qkv(7, s=8)
    with pytest.raises(ValueError, match=r"inputs_q has shape \(8, 16\), not \[B,S,F\]"):
        modules.MultiHeadAttention(16, 8, 4, rngs=nnx.Rngs(0))(X[0])
    bias = np.arange(8)
    got = linen.DotProductAttention(8, 4).apply({}, q, k, v, bias=bias)
    assert np.array_equal(got, linen.DotProductAttention(8, 4).apply({}, q, k, v, bias=bias.astype("float32")))
    narrow = linen.DotProductAttention(8, 4).apply({}, q, k, v, bias=jnp.asarray(bias, "float8_e5m2"))
    assert np.array_equal(narrow, linen.DotProductAttention(8, 4).apply(
        {}, q, k, v, bias=jnp.asarray(bias, "float8_e5m2").astype("float32")))
    with pytest.raises(TypeError, match="attention_dropout is 'x'"):
        modules.DotProductAttention(8, 4, attention_dropout="x")


class _Learned(nnx.Module):
    """Slopes of its own, that a function reads: given to the constructor, made in the call, given as an array."""

    def __init__(self, how):
        self.how, self.slopes, self.factor = how, nnx.Param(jnp.asarray([0.5, 0.25, 0.1, 0.0])), 0.5
        mods = {"method": self.mod, "closed": lambda s, b, h, q, k: s - self.slopes[h] * (q - k), "number": self.scaled,
                "text": "score - slopes[h] * (q - k)", "array": by_array(self.slopes[...])}
        self.core = modules.DotProductAttention(8, 4, score_mod=mods.get(how))

    def mod(self, s, b, h, q, k):
        return s - self.slopes[h] * (q - k)

    def scaled(self, s, b, h, q, k):
        return s * self.factor

    def __call__(self, q, k, v):
        if self.how == "made":
            return modules.DotProductAttention(8, 4, score_mod=self.mod)(q, k, v)
        return self.core(q, k, v, **{"score_mod_tensors": {"slopes": self.slopes}} if self.how == "text" else {})


def by_array(slopes):
    return lambda s, b, h, q, k: s - slopes[h] * (q - k)


@pytest.mark.parametrize("how", ["method", "closed", "made", "text", "number", "array"])
def test_functions_that_read_what_a_module_learns(how):
    module, (q, k, v) = _Learned(how), qkv(8, s=8)
    want = attention(q, k, v, score_mod=module.scaled if how == "number" else by_array(module.slopes[...]), causal=True)
    for call in (module, jax.jit(lambda *a: module(*a))):  # as it is, and as a constant
        assert all_close(call(q, k, v), want, 8)
    train = nnx.jit(nnx.grad(lambda m: m(q, k, v).sum()))
    if how in ("method", "closed"):
        with pytest.raises(ValueError, match="score_mod reads an nnx.Param of when the module was made.*score_mod_tensors"):
            train(module)
    else:
        assert (np.asarray(train(module).slopes[...]) != 0).any() == (how in ("made", "text"))
        nnx.jit(lambda m: jax.checkpoint(lambda q: m(q, k, v))(q))(module)
