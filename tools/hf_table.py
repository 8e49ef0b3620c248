#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/transformers.md and docs/generated/transformers-models.md of the outcomes of `make hf`
(tests/python/pytorch/hf_outcomes.json).

    tools/hf_table.py [--check]     --check: exit status 1 where a document is another one"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUTCOMES = os.path.join(HERE, "..", "tests", "python", "pytorch", "hf_outcomes.json")
DOCUMENT = os.path.join(HERE, "..", "docs", "transformers.md")
LISTS = os.path.join(HERE, "..", "docs", "generated", "transformers-models.md")
STAGES = ("forward", "gradients", "dynamic", "static")
WIDTH = 100

HEAD = """# fxattn for Hugging Face transformers

One line makes `attn_implementation="fxattn"` work in the models of transformers: in training and in
generation, eager and under `torch.compile`, on the CPU and on GPUs. Attention becomes one fused
call; masks are functions, so nothing of size [S,S] is made.

## Install

    pip install '.[torch]' transformers   # in a checkout; transformers 4.53 or newer, 5 for all of it

## First example

```python
import fxattn.torch
from transformers import AutoModelForCausalLM, MistralConfig

fxattn.torch.register_transformers()
config = MistralConfig(vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                       num_attention_heads=4, num_key_value_heads=2, sliding_window=16)
model = AutoModelForCausalLM.from_config(config, attn_implementation="fxattn")
```

`from_pretrained(..., attn_implementation="fxattn")` works in the same way.

## What a model may use

| feature | how |
|---|---|
| causal masks, sliding windows, chunks, packed sequences | the mask function of transformers is traced |
| padding | the first and last token of each sequence; a table [B,S] as well where there are holes, or under `torch.compile` |
| an `attention_mask` of your own | [B,S] of padding; [B,H,Sq,Sk] (or 1 where it is the same), bool or a float that is added; a `BlockMask` |
| dynamic and static caches | steps of decoding share one plan for each kind of layer |
| keys selected by an indexer (DeepSeek V3.2, GLM MoE DSA, MiniMax M3) | `indices` [B,Sq,n] of keys, `block_indices` of blocks: a bool table [B,Sq,Sk] or of blocks |
| soft caps (Gemma 2), sinks (GPT-OSS), `position_bias` (T5), grouped heads | with gradients of what is learned |
| `attention_dropout` | by counter, from a seed of PyTorch's generator; gradient checkpointing repeats it |
| ALiBi in layers of the model's own (BLOOM, MPT) | with transformers 5; give `attn_implementation` when the model is made, `set_attn_implementation` refuses these models |
| layers chosen from a table by name (Falcon, SAM) | the class for SDPA, with fxattn's attention |

Models that read their mask as a tensor (indexers, pooling heads, a `torch.cat` of two masks) get
the dense mask that transformers would have made, when they read it, with one warning per model
type; masks above 1 GiB are refused (`register_transformers(dense_mask_bytes=...)`).

## What differs from eager attention

- Rows that attend to nothing, such as left padding, are 0, as SDPA's are; eager attention returns
  an average of all values. Set the label of the first token of a sequence to -100,
  because the model predicts that token from the padding row before it.
- There are no attention weights: `output_attentions=True` returns None, with a warning.
- Rows of a float mask whose elements are all below half the lowest float count as rows that attend
  to nothing.

## Options

`register_transformers(name="fxattn", dense_mask_bytes=...)` registers the attention and mask
functions under a name; [the reference](reference/torch.md) has it. Everything else is the model's
configuration.

## What raises

| when | raises |
|---|---|
| a model that computes attention by itself and has no hook (GPT-J, DeBERTa, XLNet, WavLM, Swin v2) | `ValueError` when it is made, as for `"sdpa"` |
| `head_mask`, continuous batching, a bool mask that the model adds to floats | `ValueError` or `TypeError` that names it |
| keywords of other implementations (`position_ids`, `cu_seq_lens_q`) | ignored; any other tensor with a warning |

## Limits

Those of [fxattn.torch](torch.md#limits). Under `torch.compile` a `~mask` in a model breaks the
graph. With transformers 4 BLOOM and MPT compute as they always do.

## Which architectures

`make hf` makes a small model of each model type that transformers registers, with random weights,
and compares it with eager attention in f32: outputs, gradients of all parameters, `generate()` with
a dynamic and with a static cache. A difference is accepted up to 16 times the effect of moving the
parameters by 2^-20 of their size. [The list of model types](generated/transformers-models.md) has
the outcome of each; both pages are made from the results by `tools/hf_table.py`.

transformers %(transformers)s, torch %(torch)s: %(all)d of %(registered)d model types.
"""
MODELS = """# Model types of Hugging Face transformers

The outcome of each model type, made from the results of `make hf` by `tools/hf_table.py`. What the
outcomes mean is said [there](../transformers.md#which-architectures).
"""


def wrapped(names):
    lines, line = [], ""
    for name in names:
        if line and len(line) + len(name) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += ("" if not line else " ") + name + ","
    return "\n".join([*lines, line.rstrip(",")])


def group_of(outcome):
    """Returns the worst outcome of an architecture's stages."""
    if outcome["made"] != "made":
        return {"refused": "refused", "crash": "crash"}.get(outcome["made"], "not made")
    stages = [outcome[stage] for stage in STAGES if stage in outcome]
    for bad in ("wrong", "crash", "refused", "no call", "as sdpa"):
        if bad in stages:
            return bad
    return "equal" if "equal" in stages else "not made"


def grouped(results):
    groups = {}
    for kind, outcome in results["outcomes"].items():
        groups.setdefault(group_of(outcome), []).append(kind)
    return groups


def lists(results):
    """docs/generated/transformers-models.md: the names of each outcome."""
    groups, parts = grouped(results), [MODELS.rstrip("\n")]
    for name in ("wrong", "crash", "as sdpa", "refused", "no call", "equal", "not made"):
        if groups.get(name):
            parts += ["", "## %s" % name.capitalize(), "", wrapped(sorted(groups[name]))]
    return "\n".join(parts) + "\n"


def page(results):
    """docs/transformers.md: how to use it, and how many model types have which outcome."""
    found, groups = results["outcomes"], grouped(results)
    rows = ["| outcome | model types | meaning |", "|---|---:|---|"]
    for name, words in (("equal", "every stage that eager attention runs is equal"),
                        ("as sdpa", "equal to SDPA; the model's eager attention differs from both"),
                        ("wrong", "a stage differs"), ("crash", "an error that is not fxattn's"),
                        ("refused", "a `ValueError` or `TypeError` that names fxattn, mostly when the model is made"),
                        ("no call", "nothing in the model calls attention"),
                        ("not made", "no small model or input was made by rule, or eager attention does not run")):
        rows.append("| %s | %d | %s |" % (name, len(groups.get(name, ())), words))
    counts = ["| stage | equal | wrong | crash | refused |", "|---|---:|---:|---:|---:|"]
    for stage, words in zip(STAGES, ("forward", "gradients", "generate, dynamic cache", "generate, static cache")):
        got = [outcome.get(stage) for outcome in found.values()]
        counts.append("| %s | %s |" % (words, " | ".join(str(got.count(x)) for x in ("equal", "wrong", "crash", "refused"))))
    return "\n".join([HEAD % {**results, "all": len(found)}, "\n".join(rows), "", "\n".join(counts)]) + "\n"


def main():
    with open(OUTCOMES, encoding="utf-8") as file:
        results = json.load(file)
    for path, made in ((DOCUMENT, page(results)), (LISTS, lists(results))):
        if "--check" in sys.argv[1:]:
            with open(path, encoding="utf-8") as file:
                if file.read() != made:
                    sys.exit("%s is not what tools/hf_table.py makes of the outcomes" % os.path.relpath(path))
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(made)


if __name__ == "__main__":
    main()
