# SPDX-License-Identifier: Apache-2.0
"""A sample of `make hf`: models that read their mask, that choose layers from a table, that have indexers, sinks, biases, two
stacks, and one that is refused, against eager attention; and that the table in docs is of the results."""
import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

HERE = os.path.dirname(os.path.abspath(__file__))
OUTCOMES = os.path.join(HERE, "hf_outcomes.json")
SAMPLE = ("llama", "doge", "gpt2", "falcon", "deepseek_v32", "deepseek_v4", "minimax_m3_vl_text", "inkling2_text", "lasr_ctc",
          "data2vec-vision", "siglip2", "t5", "encoder-decoder", "canary", "recurrent_gemma")
REFUSED = ("deberta", "xlnet", "wavlm", "swinv2")


def test_a_sample_of_architectures(tmp_path):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    kinds = [kind for kind in SAMPLE + REFUSED if kind in CONFIG_MAPPING]
    out = tmp_path / "outcomes.json"
    ran = subprocess.run([sys.executable, os.path.join(HERE, "hf_walk.py"), str(out), "--only", ",".join(kinds)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert ran.returncode == 0, ran.stdout
    for kind, found in json.loads(out.read_text())["outcomes"].items():
        if kind in REFUSED:
            assert found["made"] == "refused" and "computes attention by itself" in found["why"], (kind, found)
        else:
            stages = [found.get(stage, "-") for stage in ("forward", "gradients", "dynamic", "static")]
            assert stages[:2] == ["equal", "equal"] and set(stages) <= {"equal", "-"}, (kind, found)


def table():
    path = os.path.join(HERE, "..", "..", "..", "tools", "hf_table.py")
    spec = importlib.util.spec_from_file_location("hf_table", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_of_the_outcomes_and_none_is_wrong():
    made = table()
    with open(OUTCOMES, encoding="utf-8") as file:
        results = json.load(file)
    for path, text in ((made.DOCUMENT, made.page(results)), (made.LISTS, made.lists(results))):
        with open(path, encoding="utf-8") as file:
            assert file.read() == text, "tools/hf_table.py makes %s of hf_outcomes.json" % os.path.basename(path)
    groups = {kind: made.group_of(outcome) for kind, outcome in results["outcomes"].items()}
    assert not [kind for kind, group in groups.items() if group in ("wrong", "crash")]
    assert all(groups[kind] == "equal" for kind in SAMPLE) and all(groups[kind] == "refused" for kind in REFUSED)
