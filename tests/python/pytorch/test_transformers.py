# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fxattn" in models of transformers: logits and gradients of all parameters, with padding, windows, soft
caps, sinks, ALiBi and biases; decoding with caches; training with dropout; torch.compile."""
import random

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="4.57")  # 4.53 is served too, but has other caches

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from model_support import BAR, MODELS, distance, exact_of, model_of, step, tokens  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn.torch.transformers import ModelMask, attention_forward, attention_mask  # noqa: E402

fx.register_transformers()
fx.register_transformers()  # a second time changes nothing
FOUR = transformers.__version__.startswith("4.")
if FOUR:  # its BERT chooses from a table, its MPT makes a mask in f64 of numbers that f32 does not have
    MODELS = {kind: model for kind, model in MODELS.items() if kind not in ("bert", "mpt")}
CACHED = [kind for kind in MODELS if kind not in ("bert", "t5")]


@pytest.fixture
def exact(monkeypatch):
    """exact(kind, use): what `use` makes of the exact model of a kind."""
    def run(kind, use, **settings):
        with monkeypatch.context() as patch:
            return use(exact_of(kind, patch, **settings))
    return run


STEPS = [*((kind, torch.float32) for kind in MODELS), *((kind, torch.bfloat16) for kind in CACHED)]


@pytest.mark.parametrize("kind, dtype", STEPS, ids=str)
def test_logits_and_gradients(kind, dtype, exact):
    ids, mask = tokens(kind)
    truth = exact(kind, lambda model: step(model, ids, mask))
    eager = step(model_of(kind, "eager", dtype), ids, mask)
    ours = step(model_of(kind, "fxattn", dtype), ids, mask)
    for name, a, b, t in zip(("logits", "gradients"), ours, eager, truth):
        assert distance(a, t) <= BAR[dtype] * distance(b, t), name


@pytest.mark.parametrize("seed", range(8))
def test_random_configurations(seed, exact):
    """Heads, their groups and widths, windows, caps, lengths and padding are drawn."""
    draw = random.Random(seed)
    kind = draw.choice([kind for kind in ("llama", "mistral", "gemma2", "gpt_oss", "bloom", "mpt") if kind in MODELS])
    own, groups, kv_heads, width = MODELS[kind][2], draw.choice((1, 2, 3)), draw.choice((1, 2)), draw.choice((4, 8, 24))
    heads = groups * kv_heads
    drawn = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width,
             "hidden_size": heads * width, "num_hidden_layers": draw.choice((1, 3)), "sliding_window": draw.choice((2, 4, 9)),
             "attn_logit_softcapping": draw.choice((1.0, 10.0)), "n_head": heads, "n_heads": heads,
             "n_layer": draw.choice((1, 3)), "n_layers": draw.choice((1, 3)), "d_model": heads * width}
    settings = {name: value for name, value in drawn.items() if name in own or (name == "head_dim" and kind == "llama")}
    ids, mask = tokens(kind, batch=draw.choice((1, 3)), length=draw.choice((5, 17, 33)), padded=draw.choice((0, 2, 4)))
    with_truth = exact(kind, lambda model: step(model, ids, mask), **settings)
    eager, ours = (step(model_of(kind, name, torch.float32, **settings), ids, mask) for name in ("eager", "fxattn"))
    for name, a, b, t in zip(("logits", "gradients"), ours, eager, with_truth):
        assert distance(a, t) <= BAR[torch.float32] * distance(b, t), (kind, name, settings)


# ---- Decoding ----------------------------------------------------------------------------------------------------------

def decode(model, ids, mask, cache):
    """Logits of a prompt, of two tokens one by one, and of the rest at once, by a cache."""
    logits, at = [], 0
    with torch.no_grad():
        for count in (5, 1, 1, ids.shape[1] - 7):
            part = slice(at, at + count)
            known = mask[:, :part.stop]
            positions = (known.cumsum(-1) - 1).clamp(min=0)[:, part]
            inputs = {} if model.config.model_type in ("bloom", "mpt") else {"position_ids": positions}
            logits.append(model(input_ids=ids[:, part], attention_mask=known, past_key_values=cache, use_cache=True,
                                **inputs).logits)
            at = part.stop
    return torch.cat(logits, 1) * mask.unsqueeze(-1)


def whole(model, ids, mask):
    inputs = {} if model.config.model_type in ("bloom", "mpt") else {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, **inputs).logits * mask.unsqueeze(-1)


def caches(model):
    yield "dynamic", transformers.DynamicCache(config=model.config)
    yield "static", transformers.StaticCache(config=model.config, max_cache_len=16)


@pytest.mark.parametrize("kind", CACHED)
def test_caches(kind, exact):
    ids, mask = tokens(kind)
    truth = exact(kind, lambda model: whole(model, ids, mask))
    eager, ours = (model_of(kind, name, torch.float32) for name in ("eager", "fxattn"))
    bar = BAR[torch.float32] * distance(whole(eager, ids, mask), truth)
    for name, cache in caches(ours):
        if kind == "bloom" and name == "static":
            continue  # makes ALiBi of the length of the mask: only generate() pads that to the length of the cache
        assert distance(decode(ours, ids, mask, cache), truth) <= bar, name


@pytest.mark.parametrize("kind", ["mistral", "gpt_oss", "bloom"])
def test_generate(kind):
    ids, mask = tokens("left")
    results = []
    for implementation in ("eager", "fxattn"):
        model = model_of(kind, implementation, torch.float32)
        for cache in ("dynamic", "static"):
            results.append(model.generate(ids, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False,
                                          pad_token_id=0, cache_implementation=cache, disable_compile=True))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_steps_of_decoding_share_plans():
    model = model_of("mistral", "fxattn", torch.float32)
    ids, mask = tokens("left", length=40)
    cache = transformers.DynamicCache(config=model.config)
    counts = []
    with torch.no_grad():
        for at in range(40):
            model(input_ids=ids[:, at:at + 1], attention_mask=mask[:, :at + 1], past_key_values=cache)
            counts.append(fx.cache_stats()["builds"])
    assert counts[-1] == counts[12]


# ---- Masks -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("pattern", ["left", "right", "holes", "none left", "all there"])
def test_padding_is_never_made_dense(pattern):
    real = torch.ones(2, 12, dtype=torch.bool)
    if pattern != "all there":
        real[1, {"left": slice(0, 4), "right": slice(7, 12), "holes": slice(2, 11, 3), "none left": slice(0, 12)}[pattern]] = 0
    mask = attention_mask(batch_size=2, q_length=5, kv_length=9, q_offset=6, kv_offset=2, attention_mask=real)
    q, k = torch.arange(5).view(5, 1) + 6, torch.arange(9) + 2
    assert torch.equal(fx.create_mask(mask.mask_mod, 2, 1, 5, 9, "cpu")[:, 0], (k <= q) & real[:, None, 2:11])
    assert "kv_num_blocks" not in mask.__dict__
    fours = attention_mask(batch_size=2, kv_length=9, kv_offset=2, attention_mask=real, cache_position=torch.arange(6, 11))
    assert torch.equal(*(fx.create_mask(m.mask_mod, 2, 1, 5, 9, "cpu") for m in (mask, fours))) and fours.shape == mask.shape


def test_the_model_keeps_the_mask_as_it_is(monkeypatch):
    seen = []
    monkeypatch.setattr(fx.transformers.ModelMask, "_lists", lambda self: seen.append(self))
    for kind in ("mistral", "bloom", *([] if FOUR else ["mpt"])):
        step(model_of(kind, "fxattn", torch.float32), *tokens(kind))
    assert not seen


def test_models_that_do_not_ask_the_interface_are_told():
    mask = attention_mask(batch_size=1, q_length=2, kv_length=2)
    assert isinstance(mask, ModelMask) and mask.to(torch.bool) is mask and mask.contiguous() is mask
    assert mask.to("cpu").shape == mask.shape == (1, 1, 2, 2)
    with pytest.raises(TypeError, match="does not ask transformers' AttentionInterface"):
        torch.zeros(1, 1, 2, 2) + mask
    with pytest.raises(ValueError, match="without q_length or cache_position"):
        attention_mask(batch_size=1, kv_length=2)
    own = "attn_implementation='fxattn' is not for "
    refused = [(transformers.GPTNeoConfig(hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]),
                transformers.AutoModelForCausalLM, "GPTNeo.*GPT_NEO_ATTENTION_CLASSES .eager, .*AttentionInterface")]
    if not FOUR:
        refused += [(transformers.DebertaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8),
                     transformers.AutoModel, "DebertaModel: it computes attention by itself"),
                    (transformers.XLNetConfig(d_model=32, n_layer=1, n_head=4), transformers.AutoModel, "XLNetModel: it computes")]
    for config, made_by, words in refused:
        with pytest.raises(ValueError, match=own + words):
            made_by.from_config(config, attn_implementation="fxattn")
        assert made_by.from_config(config, attn_implementation="eager") is not None


# ---- Training and compiling --------------------------------------------------------------------------------------------

def test_dropout_is_repeated_by_checkpointing():
    ids, mask = tokens("llama")
    results = []
    for checkpoint in (False, True):
        model = model_of("llama", "fxattn", torch.float32, attention_dropout=0.5).train()
        if checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(11)
        results.append(step(model, ids, mask, use_cache=False))
    without = step(model_of("llama", "fxattn", torch.float32), ids, mask)
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert not torch.allclose(results[0][0], without[0], atol=0.1)


@pytest.mark.parametrize("kind, layers", [("mistral", {"num_hidden_layers": 1}), ("mpt", {"n_layers": 1})])
def test_compiled_models(kind, layers):
    ids, mask = tokens(kind)
    model = model_of(kind, "fxattn", torch.float32, **layers)
    expected = step(model, ids, mask, use_cache=False)
    model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    got = step(model, ids, mask, use_cache=False)
    # The same operations, but that compiled the table of padding is read too: the same bits.
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


def test_compiled_layers_that_fill_a_cache():
    """The defaults of a model: use_cache, two layers, one graph."""
    torch._dynamo.reset()
    ids, mask = tokens("mistral")
    model = model_of("mistral", "fxattn", torch.float32, num_hidden_layers=2)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, use_cache=True)
        got = torch.compile(model.forward, fullgraph=True, backend="eager")(input_ids=ids, attention_mask=mask, use_cache=True)
    assert torch.equal(got.logits, expected.logits)
    assert torch.equal(got.past_key_values.layers[1].keys, expected.past_key_values.layers[1].keys)


def test_compiled_steps_of_decoding():
    """As generate() has them: the mask is made outside, for a static cache. One compilation, and one more when Dynamo sees
    that the length of a table of padding changes."""
    model = model_of("mistral", "fxattn", torch.float32, num_hidden_layers=1)
    ids, mask = tokens("left")
    cache, counter = transformers.StaticCache(config=model.config, max_cache_len=16), CompileCounterWithBackend("aot_eager")
    forward = torch.compile(model.forward, fullgraph=True, backend=counter)
    kept = {"past_key_values": cache, "is_first_iteration": False}
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
        logits = [model(input_ids=ids[:, :5], attention_mask=mask[:, :5], past_key_values=cache).logits]
        for at in range(5, ids.shape[1]):
            here = {"cache_position": torch.tensor([at])} if FOUR else {}
            made = model.prepare_inputs_for_generation(ids[:, at:at + 1], attention_mask=mask[:, :at + 1], **kept,
                                                       **here)["attention_mask"]
            logits.append(forward(input_ids=ids[:, at:at + 1], attention_mask=made, past_key_values=cache, **here).logits)
    assert counter.frame_count <= 2
    # f32 sums of the same few terms in another order
    torch.testing.assert_close(torch.cat(logits, 1)[mask == 1], expected[mask == 1], rtol=1e-5, atol=1e-5)


def test_a_causal_mask_further_on_is_a_bound_of_the_distance():
    """As which engines of devices take it, where the number of tokens before is one that the run reads."""
    from fxattn.trace import trace
    from transformers import masking_utils
    real = torch.tensor([[1] * 8, [0, 0] + [1] * 6])
    for padding in (None, real):
        mask = attention_mask(2, 8, 1, q_offset=7, mask_function=masking_utils.causal_mask_function, attention_mask=padding)
        traced = trace(None, mask.mask_mod)
        assert "t00[] >= k - q" in traced.program.text and int(traced.tensors[0]) == 7
        assert len(traced.tensors) == (1 if padding is None else 3)
    whole = attention_mask(1, 8, 8, mask_function=masking_utils.causal_mask_function)
    assert trace(None, whole.mask_mod).program.text == "mask = q >= k\n"


def test_no_heads():
    """Which a share of a model may have: empty results; query heads beside no heads of keys are refused."""
    none, some = torch.zeros(2, 0, 3, 8), torch.zeros(2, 4, 3, 8)
    for mask in (None, torch.zeros(2, 1, 3, 3)):
        for key in (none, some):
            out, weights = attention_forward(torch.nn.Module(), none, key, key, mask)
            assert out.shape == (2, 3, 0, 8) and weights is None
        with pytest.raises(ValueError, match="query has 4 heads, which is no multiple of the 0 of key"):
            attention_forward(torch.nn.Module(), some, none, none, mask)


def test_block_indices_without_heads():
    module = torch.nn.Module()
    module.indexer = torch.nn.Module()
    module.indexer.block_size = 2
    some = torch.zeros(2, 4, 3, 8)
    with pytest.raises(ValueError, match="block_indices have shape"):
        attention_forward(module, some, some, some, block_indices=torch.zeros(2, 0, 3, 1, dtype=torch.int64))
