#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/transformers.md and docs/generated/transformers-models.md from the outcomes of `make hf`
(tests/python/pytorch/hf_outcomes.json).

    tools/hf_table.py [--check]     --check: only compares; exit status 1 if a document is out of date"""
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

One call, `register_transformers()`, makes `attn_implementation="fxattn"` available to the models of
transformers: in training and in generation, eager and under `torch.compile`, on the CPU and on
GPUs. After `register_transformers()`, each attention layer makes one fused call. Masks are
functions, so no array of size [S,S] is allocated.

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

`from_pretrained(..., attn_implementation="fxattn")` loads a pretrained model that uses fxattn.

## What a model may use

| feature of a model | how fxattn supports it |
|---|---|
| causal masks, sliding windows, chunks, packed sequences | the mask function of transformers is traced |
| padding | becomes the positions of the first and last token of each sequence; for padding between tokens, or under `torch.compile`, a table [B,S] is used, too |
| an `attention_mask` of your own | a padding mask [B,S]; a mask [B,H,Sq,Sk] (axes may have size 1), of bools or of floats to add to the scores; a `BlockMask` |
| dynamic and static caches | all decoding steps use the same plan for each kind of layer |
| keys selected by an indexer (DeepSeek V3.2, GLM MoE DSA, MiniMax M3) | `indices` [B,Sq,n] of keys, or `block_indices` of blocks, become a bool table with an element for each row and key, or row and block |
| soft caps (Gemma 2), sinks (GPT-OSS), `position_bias` (T5), grouped heads | supported, with gradients of learned parameters |
| `attention_dropout` | counter-based dropout, with a seed from PyTorch's generator; gradient checkpointing drops the same pairs again |
| ALiBi in the model's own attention layers (BLOOM, MPT) | supported with transformers 5; pass `attn_implementation` when the model is created, because `set_attn_implementation` refuses these models |
| attention classes selected from a table by name (Falcon, SAM) | the class for SDPA is used, with fxattn's attention |

Some models read their mask as a tensor (indexers, pooling heads, a `torch.cat` of two masks). For
models that read the mask as a tensor, fxattn makes the dense mask that transformers would make, and
warns once for each model type. fxattn refuses dense masks above 1 GiB; another limit is set by
`register_transformers(dense_mask_bytes=...)`.

## What differs from eager attention

- The output is 0 for rows that attend to no key, such as left padding, as with SDPA; eager
  attention returns an average of all values for such rows. With left padding, set the label of the
  first token of a sequence to -100, because the model predicts the first token from a padding row.
- Attention weights are not available: `output_attentions=True` returns None, with a warning.
- A row attends to no key if all elements of a float mask for this row are below half of the lowest
  float.

## Options

`register_transformers(name="fxattn", dense_mask_bytes=...)` registers the attention and mask
functions under a name; [the reference](reference/torch.md) describes its arguments. All options of
attention that `register_transformers` does not take are in the model's configuration.

## Errors

| cause | exception |
|---|---|
| a model that computes attention itself and has no hook (GPT-J, DeBERTa, XLNet, WavLM, Swin v2) | `ValueError` when the model is created, as for `"sdpa"` |
| `head_mask`, continuous batching, a bool mask that the model adds to floats | `ValueError` or `TypeError` that names the cause |
| keywords of other implementations (`position_ids`, `cu_seq_lens_q`) | none, because these keywords are ignored; any other keyword that is a tensor is ignored with a warning |

## Limits

The [limits of `fxattn.torch`](torch.md#limits) also hold for models that use fxattn. Under
`torch.compile`, the expression `~mask` in a model causes a graph break. With transformers 4, BLOOM
and MPT use their own attention, not fxattn's.

## Which architectures

`make hf` creates a small model of each model type that transformers registers, with random weights,
and runs the model in f32 with fxattn and with eager attention. Between fxattn and eager attention,
`make hf` compares the outputs, the gradients of all parameters, and the results of `generate()`
with a dynamic and with a static cache. `make hf` accepts a difference between fxattn and eager
attention of up to 16 times the change that the result shows if each parameter changes by 2^-20 of
its size. The page [Model types](generated/transformers-models.md) says for each model type whether
the results of fxattn agreed with those of eager attention. The script `tools/hf_table.py` writes
docs/transformers.md and the page of model types from the results of `make hf`.

The results in the next tables were measured with transformers %(transformers)s and torch
%(torch)s, for %(all)d of the %(registered)d registered model types.
"""
MODELS = """# Model types of Hugging Face transformers

The outcome of each model type, made from the results of `make hf` by `tools/hf_table.py`. The
meaning of each outcome is on [the page of transformers](../transformers.md#which-architectures).
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
    """Returns the worst outcome among the stages of a model type."""
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
    """Returns the text of docs/generated/transformers-models.md: the model types of each outcome."""
    groups, parts = grouped(results), [MODELS.rstrip("\n")]
    for name in ("wrong", "crash", "as sdpa", "refused", "no call", "equal", "not made"):
        if groups.get(name):
            parts += ["", "## %s" % name.capitalize(), "", wrapped(sorted(groups[name]))]
    return "\n".join(parts) + "\n"


def page(results):
    """Returns the text of docs/transformers.md: instructions, and the number of model types of each outcome."""
    found, groups = results["outcomes"], grouped(results)
    rows = ["| outcome | model types | meaning |", "|---|---:|---|"]
    for name, words in (("equal", "equal to eager attention in every stage that eager attention can run"),
                        ("as sdpa", "equal to SDPA; the model's eager attention differs from both"),
                        ("wrong", "a stage differs from eager attention"), ("crash", "an error that fxattn did not raise"),
                        ("refused", "a `ValueError` or `TypeError` that names fxattn, mostly when the model is made"),
                        ("no call", "nothing in the model calls attention"),
                        ("not made", "the test could not make a small model or input, or eager attention does not run")):
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
