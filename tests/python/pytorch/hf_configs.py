# SPDX-License-Identifier: Apache-2.0
"""Small models of every architecture that transformers registers, and inputs for them.

A configuration is made from the defaults of its class: sizes are cut by the names of their fields, so that widths, heads
and lengths agree wherever models compare them, and layers are picked so that each kind of layer is there. What cannot be
made this way is reported as such (hf_walk.py), with the reason."""
import inspect
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH, HEADS, HEAD_DIM, VOCABULARY, POSITIONS = 64, 4, 16, 128, 128
FIRST_TOKEN = 64  # special tokens are below
LENGTH, BATCH = 11, 2

# A field with this name gets at most this value; the first expression that matches counts.
_RULES: Tuple[Tuple[str, int], ...] = (
    (r"vocab_size(_per_layer_input)?$|^(text|speech|semantic)_vocab_size$", VOCABULARY),
    (r"^(max|n|left_max)_?(position|ctx|pos_emb).*|^(max_seq_len|max_sequence_length|n_positions|max_length|n_ctx|context_length"
     r"|model_max_length|max_(source|target|text|speech|mel|2d)_(positions|tokens|position_embeddings))$", POSITIONS),
    (r"key_value_heads|kv_heads|num_key_value|num_attention_groups|multi_query_group_num", 2),
    (r"topk_group$", 1),
    (r"experts_per_tok|top_?k_experts|moe_topk|moe_k$|n_shared_experts|num_experts_shared", 2),
    (r"(routed|local|num|n)_experts$|num_experts|moe_num_experts|^n_routed", 4),
    (r"n_group$", 1),
    (r"index_topk$", 4),
    (r"^d_head$", HEAD_DIM),
    (r"context_size$", 16),
    (r"attention_heads$|(^|_)n?_?heads?$|num_heads|^n_head|attn_heads|linear_num_(key|value)_heads|mamba_n(um)?_heads", HEADS),
    (r"^(num_)?(hidden_|encoder_|decoder_|text_|vision_)*layers$|_layers$|^n_layers?$|^depth$|num_blocks$", 2),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"qk_nope_head_dim", 8),
    (r"qk_head_dim|v_head_dim|head_dim|d_kv|dim_head|head_size|attention_key_channels", HEAD_DIM),
    (r"sliding_window|attention_window|local_attention|window_size|attention_chunk_size", 4),
    (r"_rank$|lora", 16),
    (r"(image|img|input|crop|pretrain_image|global)_(size|res|resolution)$|^resolution$", 32),
    (r"patch_size$", 8),
    (r"num_(query_tokens|queries|latents|image_tokens|registers?)|n_latents|mm_tokens_per_image|image_seq_length", 4),
    (r"num_frames$", 4),
    (r"block_size$|chunk_length$|n_window", 4),
    (r"(d_model|d_ff|n_embd|n_inner|ffn_dim|hidden_dim|mlp_dim|embed_dim|embedding_dim|projection_dim|intermediate_size"
     r"|hidden_size|embedding_size|projection_size|ffn|project_dim|output_dim|proj_dim|_channels|_dim|_units|filter_size|_hidden_size)$"
     r"|^(hidden|intermediate|dim|embed|ffn|d_)", WIDTH),
)
_KEPT = re.compile(r"num_channels|^in_channels|sampling_rate|token|num_mel|dropout|n_mels|feature_size|^in_chans|input_channels"
                   r"|audio_channels|num_labels|num_feat_extract_layers|stride|kernel|_id$|_index$|groups$")
_TOKEN = re.compile(r"_token(_id|_index|_idx)?s?$|_token_id_|^(im|image|video|audio)_(start|end|patch)_id$|_token_id$|_token_index$"
                    r"|^blank_id$|_start_id$|_end_id$")


def architectures() -> Dict[str, str]:
    """Model type -> the class that is tried: one that generates where there is one."""
    first = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT", "CAUSAL_LM", "MULTIMODAL_LM", "TEXT_TO_WAVEFORM")
    names = ["MODEL_FOR_%s_MAPPING_NAMES" % name for name in first] + ["MODEL_MAPPING_NAMES"]
    names += sorted(name for name in vars(modeling_auto) if name.endswith("_MAPPING_NAMES") and name not in names
                    and name != "CONFIG_MAPPING_NAMES")
    found: Dict[str, str] = {}
    for name in names:
        for kind, model in getattr(modeling_auto, name, {}).items():
            found.setdefault(kind, model if isinstance(model, str) else model[0])
    return {kind: found[kind] for kind in sorted(found) if kind in CONFIG_MAPPING}


# ---- Configurations --------------------------------------------------------------------------------------------------

class _Tokens:
    """Special tokens in their order, each another number below FIRST_TOKEN."""

    def __init__(self) -> None:
        self.known: Dict[str, int] = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 1}

    def number(self, name: str) -> int:
        stem = re.sub(r"_(token|id|index|idx)s?", "", name)
        return self.known.setdefault(stem, 3 + len(self.known))


def _layers(config: Dict[str, Any]) -> Optional[Tuple[int, List[int]]]:
    """(number of layers, those that are kept): the first of each type, two at least."""
    count = next((config[name] for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers",
                                            "encoder_layers", "depth") if isinstance(config.get(name), int)), None)
    lists = [x for x in config.values() if isinstance(x, (list, tuple)) and count and len(x) == count]
    if not lists or count is None or count < 3:
        return None
    seen, kept = set(), []
    for i in range(count):
        kind = tuple(repr(x[i]) for x in lists if isinstance(x[i], str))
        if kind not in seen:
            seen.add(kind)
            kept.append(i)
    extra = [i for i in range(count) if i not in kept]
    return count, sorted(kept + extra[:max(0, 2 - len(kept))])


def _number(name: str, value: int) -> int:
    if _KEPT.search(name) and not name.endswith(("num_query_tokens", "num_image_tokens", "mm_tokens_per_image")):
        return value
    for pattern, most in _RULES:
        if re.search(pattern, name):
            if most == WIDTH and value >= 16:
                return WIDTH
            if most == HEADS and value > 1:
                return HEADS
            if most in (HEAD_DIM, 8) and value > 8 and "window" not in name:
                return most
            return min(value, most)
    return value


def _shrink(config: Dict[str, Any], tokens: _Tokens) -> Dict[str, Any]:
    picked, small = None if "stage_names" in config else _layers(config), {}
    heads = config.get("num_attention_heads")
    for name, value in config.items():
        if name == "per_layer_config" and isinstance(value, dict):
            layers = picked[1] if picked is not None else [0, 1]
            small[name] = {layers.index(int(i)): _shrink(x, tokens) for i, x in value.items() if int(i) in layers}
        elif isinstance(value, dict):
            small[name] = _shrink(value, tokens) if name not in ("id2label", "label2id") else value
        elif isinstance(value, bool) or value is None or isinstance(value, str):
            small[name] = value
        elif _TOKEN.search(name) and isinstance(value, int) and value >= 0:
            small[name] = tokens.number(name)
        elif _TOKEN.search(name) and isinstance(value, (list, tuple)) and value and type(value[0]) is int:
            small[name] = [tokens.number("%s%d" % (name, i)) for i in range(len(value))]
        elif isinstance(value, int) and "stage_names" in config and name in ("num_hidden_layers", "depth", "num_layers"):
            small[name] = value  # features are read from layers by number
        elif name in ("embed_dim", "hidden_size") and isinstance(config.get("num_heads", config.get("num_attention_heads")), (list, tuple)):
            small[name] = value  # a multiple of the heads of each stage
        elif name == "num_key_value_heads" and value == heads:
            small[name] = HEADS
        elif isinstance(value, int):
            small[name] = _number(name, value)
        elif isinstance(value, (list, tuple)) and picked is not None and len(value) == picked[0]:
            small[name] = [value[i] for i in picked[1]]
        elif name == "mrope_section":
            total = sum(value)
            small[name] = [max(1, x * HEAD_DIM // 2 // total) for x in value]
            small[name][0] += HEAD_DIM // 2 - sum(small[name])
        elif name in ("conv_dim", "tdnn_dim") and isinstance(value, (list, tuple)):
            small[name] = [min(x, WIDTH) for x in value]
        elif name in ("image_size", "patch_size") and isinstance(value, (list, tuple)):
            small[name] = [_number(name, x) for x in value]
        else:
            small[name] = value
    if "qk_rope_head_dim" in small:  # of which these are made
        small.pop("qk_head_dim", None)
        if config.get("head_dim") == config["qk_rope_head_dim"]:
            small.pop("head_dim", None)
    if "block_types" in small and "num_hidden_layers" in small:
        small["num_hidden_layers"] = len(small["block_types"])
    if "attn_layer_indices" in small:
        small["attn_layer_indices"] = [1]
    if "attn_layer_period" in small:
        small["attn_layer_period"], small["attn_layer_offset"] = 2, 1
    expand = small.get("mamba_expand", small.get("expand"))
    for name in ("mamba_d_head", "mamba_head_dim"):
        if name in small and isinstance(expand, int):
            small[name] = expand * WIDTH // HEADS
    rope = small.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "dynamic":
        rope.update(rope_type="default", rope_theta=10000.0)
    if isinstance(rope, dict) and "rope_type" in rope:
        half = int(HEAD_DIM * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [half - 2 * (half // 4), half // 4, half // 4]
    if picked is not None:
        for name, value in config.items():
            if value == picked[0] and not isinstance(value, bool) and re.search(r"layers?$|depth", name):
                small[name] = len(picked[1])
    return small


# What has no default that a model can be made of.
_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": HEAD_DIM, "indexer_budget": 4, "indexer_compress_ratio": 2}
_OVERRIDES: Dict[str, Dict[str, Any]] = {
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0, "mask_token_id": 3},
    "dots1": {"n_routed_experts": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {"vocabulary_map": {"<image>": 5}},
}

_DROPPED = ("transformers_version", "architectures", "_name_or_path", "model_type", "dtype", "torch_dtype", "max_window_layers",
            "initializer_range", "init_std", "initializer_factor")


def small_config(kind: str) -> Any:
    """A configuration of a model type, with all sub-configurations."""
    config_class = CONFIG_MAPPING[kind]
    full = config_class()
    small = {name: value for name, value in _shrink(full.to_dict(), _Tokens()).items() if name not in _DROPPED}
    for name, sub in list(small.items()):
        if isinstance(sub, dict) and name.endswith("config") and getattr(full, name, None) is None:
            small.pop(name)
    for name, value in _OVERRIDES.get(kind, {}).items():
        small[name] = {**small[name], **value} if isinstance(small.get(name), dict) and name.endswith("config") else value
    config = config_class(**small)
    for one in (config, *_sub_configs(config)):
        one._experts_implementation = "eager"
        for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
            if hasattr(one, name):
                setattr(one, name, 0.0)
    return config


def _sub_configs(config: Any) -> Iterator[Any]:
    for value in list(vars(config).values()):
        if isinstance(value, transformers.PreTrainedConfig):
            yield value
            yield from _sub_configs(value)


# ---- Models ----------------------------------------------------------------------------------------------------------

def small_model(kind: str, name: str, implementation: str) -> nn.Module:
    """The model in eval mode; all of a kind have the same parameters, large enough for attention to matter."""
    torch.manual_seed(7)
    model_class = getattr(transformers, name)
    model = model_class._from_config(small_config(kind), attn_implementation=implementation)
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_((parameter.float().nan_to_num().clamp(-2, 2) + noise * (0.1 if parameter.dim() > 1 else 0.05)))
    return model.float().eval()


# ---- Inputs ----------------------------------------------------------------------------------------------------------

def _first(config: Any, names: Tuple[str, ...], otherwise: Any) -> Any:
    for one in (config, *_sub_configs(config)):
        for name in names:
            value = getattr(one, name, None)
            if value is not None:
                return value
    return otherwise


def _pixels(config: Any) -> Tuple[int, ...]:
    size = _first(config, ("image_size",), 32)
    size = (size["height"], size["width"]) if isinstance(size, dict) else size
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return (_first(config, ("num_channels", "in_channels", "in_chans"), 3), height, width)


def inputs_of(kind: str, model: nn.Module, padded: str = "right") -> Dict[str, Any]:
    """Keywords of a forward: what the model's main input is, and what else it has no default for. Of two sequences the
    first is padded by two tokens: then every row has a key to attend to, also in chunks and windows of 4."""
    config, parameters = model.config, inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(3)

    def floats(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    vocabulary = min(VOCABULARY, _first(config, ("vocab_size",), VOCABULARY))

    def ids(batch: int = BATCH, length: int = LENGTH) -> Tensor:
        return torch.randint(min(FIRST_TOKEN, vocabulary // 2), vocabulary, (batch, length), generator=generator)

    needed = [name for name, p in parameters.items() if p.default is inspect.Parameter.empty
              and p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)]
    main = getattr(model, "main_input_name", "input_ids")
    if isinstance(main, str) and main in parameters and main not in needed:
        needed.insert(0, main)
    if "input_ids" in parameters and "input_ids" not in needed and main not in ("pixel_values", "input_features", "input_values"):
        needed.append("input_ids")
    given: Dict[str, Any] = {}
    mels = _first(config, ("num_mel_bins", "n_mels", "num_mels", "feature_size", "input_feat_per_channel", "input_dim"), 80)
    frames = _first(config, ("max_source_positions",), 32)
    for name in needed:
        if name == "input_ids":
            given[name] = ids()
        elif name == "decoder_input_ids":
            given[name] = ids(length=7)
        elif name in ("pixel_values", "images"):
            given[name] = floats(BATCH, *_pixels(config))
        elif name in ("pixel_values_videos", "pixel_values_video"):
            given[name] = floats(BATCH, _first(config, ("num_frames", "frames_per_clip"), 4), *_pixels(config))
        elif name in ("input_features", "input_values") and name == "input_features":
            given[name] = floats(BATCH, mels, 2 * frames) if kind in ("whisper", "moonshine_streaming") or "whisper" in kind \
                else floats(BATCH, 64, mels)
        elif name == "input_values":
            given[name] = floats(BATCH, 2000)
        elif name == "bbox":
            given[name] = torch.randint(0, 20, (BATCH, LENGTH, 4), generator=generator).sort(-1).values
        elif name in ("inputs_embeds", "hidden_states"):
            given[name] = floats(BATCH, LENGTH, _first(config, ("hidden_size", "d_model", "n_embd"), WIDTH))
        elif name == "past_values":
            given[name] = floats(BATCH, _first(config, ("context_length",), 32), _first(config, ("num_input_channels",), 1))
    grid = next((name for name in needed if name in ("grid_thw", "image_grid_thw")), None)
    if grid is not None and "input_ids" not in given:
        patch = _first(config, ("patch_size",), 8)
        size = _first(config, ("in_channels", "in_chans", "num_channels"), 3) * patch * patch \
            * _first(config, ("temporal_patch_size",), 1)
        given = {grid: torch.tensor([[1, 4, 4], [1, 2, 4]]), next(iter(needed)): floats(24, size)}
    if "spatial_shapes" in parameters and "pixel_values" in parameters:  # images as patches, padded
        patch = _first(config, ("patch_size",), 8)
        real = torch.ones(BATCH, 16, dtype=torch.long)
        real[1, 12:] = 0
        given.update(pixel_values=floats(BATCH, 16, _first(config, ("num_channels",), 3) * patch * patch),
                     pixel_attention_mask=real, spatial_shapes=torch.tensor([[4, 4], [4, 3]]))
    if "input_values" in given and hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        given["input_values"] = floats(BATCH, config.max_length, config.num_mel_bins)
    if "input_ids" in given and "attention_mask" in parameters:
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[0, slice(LENGTH - 2, None) if padded == "right" else slice(0, 2)] = 0
        given["attention_mask"] = mask
    elif "input_features" in given and "attention_mask" in parameters and parameters["attention_mask"].default \
            is not inspect.Parameter.empty and given["input_features"].shape[1] == 64:
        mask = torch.ones(BATCH, 64, dtype=torch.long)
        mask[0, 48:] = 0
        given["attention_mask"] = mask
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters and "decoder_input_ids" not in given:
        given["decoder_input_ids"] = ids(length=7)
    if "bbox" in parameters and "bbox" not in given and "input_ids" in given:
        given["bbox"] = torch.randint(0, 20, (BATCH, LENGTH, 4), generator=generator).sort(-1).values
    if "pixel_values" in parameters and "pixel_values" not in given and main == "input_ids" \
            and hasattr(config, "vision_config") and kind_is_dual(model):
        given["pixel_values"] = floats(BATCH, *_pixels(config))
    return given


def kind_is_dual(model: nn.Module) -> bool:
    """True for models like CLIP, which need texts and images in one call."""
    return hasattr(model, "logit_scale") or hasattr(model, "get_image_features") and not hasattr(model, "lm_head") \
        and hasattr(model, "text_projection")
