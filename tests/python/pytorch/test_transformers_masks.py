# SPDX-License-Identifier: Apache-2.0
"""The mask of a pass where models read it as a tensor: every reading gives what the dense bool tensor of SDPA's mask gives, or
an error; slices that attention can take stay masks; masks of one row or key are broadcast; compiled models as eager ones."""
import copy
import math
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import fxattn.torch as fx  # noqa: E402
from fxattn.torch import model_mask  # noqa: E402
from fxattn.torch.transformers import _IGNORED, _REFUSED, ModelMask, attention_forward, attention_mask  # noqa: E402

fx.register_transformers()
pytestmark = pytest.mark.filterwarnings("ignore:.*reads its attention mask as a tensor")
B, SQ, SK = 2, 5, 9
REAL = torch.ones(B, SK, dtype=torch.bool)
REAL[1, [0, 1, 5]] = False


def mask_of(q_length=SQ, **more):
    return attention_mask(batch_size=B, q_length=q_length, kv_length=SK, q_offset=SK - q_length, attention_mask=REAL, **more)


def dense_of(q_length=SQ):
    q, k = torch.arange(q_length).view(-1, 1) + SK - q_length, torch.arange(SK)
    return ((k <= q) & REAL[:, None, None]).clone()


OTHER = torch.rand(B, 1, SQ, SK, generator=torch.Generator().manual_seed(1)) < 0.5
SCORES = torch.randn(B, 4, SQ, SK, generator=torch.Generator().manual_seed(2))
READINGS = {
    "batch": lambda m: m[:, 0], "entry": lambda m: m[1, 0, 2:], "new axis": lambda m: m[:, None], "keys": lambda m: m[..., 2:],
    "strided": lambda m: m[:, :, ::2], "not": lambda m: ~m, "and": lambda m: m & OTHER, "rand": lambda m: OTHER & m,
    "or": lambda m: m | OTHER, "xor": lambda m: m ^ OTHER, "equal": lambda m: m == 0, "unequal": lambda m: m != 0,
    "logical_not": lambda m: m.logical_not(), "where": lambda m: torch.where(m, 0.0, -1.0), "all": lambda m: torch.all(~m, 2),
    "cat": lambda m: torch.cat([m, OTHER], -1), "cat_": lambda m: torch.cat((OTHER, m[:, :, :, 1:]), dim=-1),
    "repeat": lambda m: m.repeat(1, 4, 1, 1), "reshape": lambda m: m.reshape(-1, SK), "expand": lambda m: m.expand(-1, 4, -1, -1),
    "long": lambda m: m.to(torch.int64), "int": lambda m: m.int(), "sum": lambda m: m.sum(-1), "any": lambda m: m.any(),
    "list": lambda m: torch.stack(list(m)), "pad": lambda m: torch.nn.functional.pad(m, (0, 3)), "T": lambda m: m.mT,
    "fill": lambda m: SCORES.masked_fill(~m, -1.0), "fill by a slice": lambda m: SCORES.masked_fill(m[:, :, :, :SK] == 0, -1.0),
    "keep": lambda m: SCORES * m, "keep from the left": lambda m: m * SCORES, "like": lambda m: torch.zeros_like(m),
    "type": lambda m: torch.tensor([m.dtype == torch.bool, m.ndim == 4, m.dim() == 4, m.size(2) == SQ, len(m) == B,
                                    not m.is_floating_point()]),
    "cast and multiply": lambda m: m[:, 0].to(SCORES.dtype) * SCORES[:, 0],
}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("compiled", [False, True])
def test_readings(name, compiled):
    read, expected = READINGS[name], READINGS[name](dense_of())
    if compiled:
        torch._dynamo.reset()
        # Dynamo has no unary operators of objects: a break of the graph there.
        read = torch.compile(read, backend="eager", fullgraph=name not in ("not", "all", "fill"))
    got = read(mask_of())
    got = got.dense() if isinstance(got, ModelMask) else got
    assert got.dtype == expected.dtype and torch.equal(got.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("index", [(slice(None),) * 4, (Ellipsis, slice(None, 7)), (slice(None), slice(None), slice(2, None)),
                                   (slice(None), slice(None), slice(-1, None), slice(None)), (Ellipsis, slice(1, 3), slice(0, 4))])
def test_slices_of_rows_and_first_keys_stay_masks(index):
    got, expected = mask_of()[index], dense_of()[index]
    assert isinstance(got, ModelMask) and "_dense" not in got.__dict__ and got.shape == expected.shape
    assert torch.equal(fx.create_mask(got.mask_mod, B, 1, *got.shape[2:], "cpu"), expected)


@pytest.mark.parametrize("add", [lambda m: SCORES + m, lambda m: m + SCORES, lambda m: SCORES + m[:, :, :, 1:],
                                 lambda m: torch.add(SCORES[..., 1:], m[..., 1:]), lambda m: SCORES[:, 0] + m[:, 0],
                                 lambda m: SCORES[:, 0] + m[:, 0].to(SCORES.dtype), lambda m: 1.0 - m, lambda m: SCORES - m,
                                 lambda m: SCORES.clone().add_(m), lambda m: 1.0 - m[:, 0].float()])
def test_true_is_never_added_as_one(add):
    with pytest.raises(TypeError, match="does not ask transformers' AttentionInterface|not supported"):
        add(mask_of())


def test_models_without_sdpa_read_what_eager_attention_adds():
    from transformers.models.deepseek_v4 import modeling_deepseek_v4  # noqa: F401
    config = transformers.DeepseekV4Config
    model_mask.note_model(config, has_sdpa=False)
    mask = mask_of(config=config(), dtype=torch.float32)  # its models test the type of their mask: dense
    expected = torch.where(dense_of(), 0.0, torch.finfo(torch.float32).min)
    assert isinstance(mask, torch.Tensor) and torch.equal(mask, expected)
    lazy = ModelMask(mask_of().mask_mod, B, 1, (SQ, SK), "cpu", (128, 128), ())
    lazy.dtype = torch.float32
    assert torch.equal(SCORES + lazy, SCORES + expected) and torch.equal(lazy[:, 0], expected[:, 0]) and lazy.is_floating_point()


def test_models_that_test_the_type_of_masks():
    assert model_mask.tests_masks(transformers.LlamaConfig) is False
    from transformers.models.doge import modeling_doge  # noqa: F401
    assert model_mask._reads_type_of_mask(Path(modeling_doge.__file__).read_text())
    reads = model_mask._reads_type_of_mask
    assert reads("if torch.is_tensor(attention_mask): pass") and reads("x = isinstance(mask, (dict, torch.Tensor))")
    assert not reads("x = isinstance(attention_mask, dict)") and not reads("x = isinstance(x, torch.Tensor)")


def test_dense_masks_are_bounded_and_warned_of_once():
    model_mask._warned.clear()
    with pytest.warns(UserWarning, match="a llama model reads its attention mask as a tensor.*: 90 bytes"):
        mask_of(config=transformers.LlamaConfig())[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask_of(config=transformers.LlamaConfig())[:, 0]
    bytes_before = model_mask.dense_bytes
    try:
        fx.register_transformers(dense_mask_bytes=89)
        with pytest.raises(ValueError, match=r"a llama model reads .* \(2, 1, 5, 9\) and take 90 bytes.* at most 89"):
            mask_of(config=transformers.LlamaConfig())[:, 0]
        with pytest.raises(ValueError, match="dense_mask_bytes is -1"):
            fx.register_transformers(dense_mask_bytes=-1)
    finally:
        fx.register_transformers(dense_mask_bytes=bytes_before)


def test_copies_are_masks():
    mask = mask_of()
    mask.dense()
    assert torch.equal(copy.deepcopy(mask).dense(), dense_of()) and torch.equal(copy.copy(mask)[:, 0], dense_of()[:, 0])


# ---- In attention ------------------------------------------------------------------------------------------------------

def operands(sq=SQ, sk=SK):
    g = torch.Generator().manual_seed(3)
    return [torch.randn(B, 4, n, 8, generator=g, dtype=torch.float64).requires_grad_() for n in (sq, sk, sk)]


def eager(q, k, v, keep):
    return (torch.softmax((q @ k.mT / 8 ** 0.5).masked_fill(~keep, -torch.inf), -1).nan_to_num(0.0) @ v).transpose(1, 2)


def same(got, expected, *inputs):
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = [torch.autograd.grad((x * direction).sum(), inputs, retain_graph=True) for x in (got, expected)]
    for a, b in ((got, expected), *zip(*grads)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


MODULE = SimpleNamespace(is_causal=True, training=False)


@pytest.mark.parametrize("rows, keys", [(SQ, 1), (1, SK), (1, 1)])
def test_masks_of_one_row_or_key_are_broadcast(rows, keys):
    mask = attention_mask(batch_size=B, q_length=rows, kv_length=keys, q_offset=4, attention_mask=REAL[:, :keys])
    x = operands()
    same(attention_forward(MODULE, *x, mask)[0], eager(*x, mask.dense().as_subclass(torch.Tensor)), *x)


WRITES = {
    "masked_fill_": lambda m: m.masked_fill_(OTHER, False), "logical_and_": lambda m: m.logical_and_(OTHER),
    "out": lambda m: torch.logical_and(m, OTHER, out=m), "copy_": lambda m: m.copy_(OTHER),
    "a view": lambda m: m[:, 0].logical_and_(OTHER[:, 0]),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_masks_that_a_model_writes_to(name, inference):
    mask, keep = mask_of(), dense_of()
    with torch.inference_mode(inference):
        for one in (mask, keep):
            WRITES[name](one)
    assert not torch.equal(keep, dense_of()) and torch.equal(mask[:, :, 1:, :-1], keep[:, :, 1:, :-1])
    assert torch.equal(mask.expand(B, 1, SQ, SK).to("cpu"), keep)
    x = operands()
    same(attention_forward(MODULE, *x, mask)[0], eager(*x, keep), *x)


def test_a_row_of_the_lowest_float_attends_to_nothing():
    """Its LSE would have no bits left for the number of keys, and gradients as many times too large."""
    x, keep = operands(), torch.ones(B, 1, SQ, SK, dtype=torch.bool)
    keep[0, 0, 2] = False
    bias = torch.full(keep.shape, torch.finfo(torch.float64).min, dtype=torch.float64).masked_fill(keep, 0.5)
    same(attention_forward(MODULE, *x, bias)[0], eager(*x, keep), *x)


def test_nan_in_a_float_mask_is_no_mask():
    """A NaN reaches its row, with and without elements of the lowest float in the mask."""
    x = operands()
    for lowest in (0.0, torch.finfo(torch.float64).min):
        bias = torch.zeros(B, 1, SQ, SK, dtype=torch.float64)
        bias[0, 0, 1, 2], bias[1, 0, 0, 0] = math.nan, lowest
        out = attention_forward(MODULE, *x, bias)[0]
        assert out[0, 1].isnan().all() and not out[0, 2:].isnan().any() and not out[1].isnan().any()


def test_keys_that_an_indexer_selected():
    x, g = operands(), torch.Generator().manual_seed(5)
    indices = torch.stack([torch.randperm(SK, generator=g)[:4] for _ in range(B * SQ)]).view(B, SQ, 4).int()
    indices[1, 2, 1:] = -1  # free places
    keep = torch.zeros(B, SQ, SK + 1, dtype=torch.bool).scatter(-1, torch.where(indices < 0, SK, indices).long(), True)
    same(attention_forward(MODULE, *x, mask_of(), indices=indices)[0], eager(*x, dense_of() & keep[:, None, :, :SK]), *x)
    blocks = torch.randint(-1, 3, (B, 2, SQ, 2), generator=g)
    module = SimpleNamespace(is_causal=True, indexer=SimpleNamespace(block_size=4))
    keep = torch.stack([(blocks == k // 4).any(-1) for k in range(SK)], -1).repeat_interleave(2, 1)
    same(attention_forward(module, *x, mask_of(), block_indices=blocks)[0], eager(*x, dense_of() & keep), *x)
    for keywords, words in (({"indices": indices[:1]}, "indices have shape"), ({"block_indices": blocks[:, :, 1:]}, "block_indices have"),
                            ({"sinks": torch.zeros(3)}, "sinks have shape")):
        with pytest.raises(ValueError, match=words):
            attention_forward(module, *x, mask_of(), **keywords)
    with pytest.raises(ValueError, match="no indexer.block_size"):
        attention_forward(MODULE, *x, mask_of(), block_indices=blocks)


def test_sinks_of_each_row():
    (q, k, v), sinks = operands(), torch.randn(B, 4, SQ, 1, dtype=torch.float64).requires_grad_()
    scores = (q @ k.mT / 8 ** 0.5).masked_fill(~dense_of(), -torch.inf)
    expected = (torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ v).transpose(1, 2)
    same(attention_forward(MODULE, q, k, v, mask_of(), sinks=sinks)[0], expected, q, k, v, sinks)


def test_keywords_that_models_give_their_attention_are_known():
    """By name, in the sources of this transformers: one that is not would be ignored."""
    import inspect
    known = set(inspect.signature(attention_forward).parameters) | set(_IGNORED) | set(_REFUSED)
    unknown = set()
    for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        for call in re.findall(r"= attention_interface\((.*?)\n        +\)\n", path.read_text(), re.S):
            unknown |= {(path.stem, name) for name in re.findall(r"^ +(\w+)=", call, re.M) if name not in known}
    assert not unknown
    with pytest.warns(UserWarning, match="does not read the keyword other, a tensor"):
        attention_forward(MODULE, *operands(), None, other=torch.zeros(1))


# ---- Compiled models ---------------------------------------------------------------------------------------------------

SMALL = dict(vocab_size=48, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)


@pytest.mark.parametrize("kind, more", [("Doge", dict(intermediate_size=40, num_key_value_heads=2, keep_window_size=4)),
                                        ("Falcon", dict(new_decoder_architecture=True, num_kv_heads=2)), ("Falcon", dict(alibi=True))])
def test_compiled_models_that_read_masks_or_have_a_table(kind, more):
    torch._dynamo.reset()
    config = getattr(transformers, kind + "Config")(**SMALL, **more)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="fxattn").eval()
    other = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
    other.load_state_dict(model.state_dict())
    ids, real = torch.arange(22).view(2, 11), torch.ones(2, 11, dtype=torch.long)
    real[0, :3] = 0
    with torch.no_grad():
        expected = other(input_ids=ids, attention_mask=real, use_cache=False).logits[real == 1]
        for forward in (model.forward, torch.compile(model.forward, backend="eager")):
            got = forward(input_ids=ids, attention_mask=real, use_cache=False).logits[real == 1]
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)  # f32 sums of the same few terms in another order


def test_exported_models():
    config = transformers.LlamaConfig(**SMALL, intermediate_size=40)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="fxattn").eval()
    inputs = {"input_ids": torch.arange(22).view(2, 11), "attention_mask": torch.ones(2, 11, dtype=torch.long), "use_cache": False}
    with torch.no_grad():
        exported = torch.export.export(model, (), inputs, strict=False)
        torch.testing.assert_close(exported.module()(**inputs).logits, model(**inputs).logits, rtol=1e-5, atol=1e-5)
