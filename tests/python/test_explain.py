# SPDX-License-Identifier: Apache-2.0
"""fxattn.explain: report, verdicts and pictures of functions, programs and texts; what notebooks show."""
import os
import subprocess
import sys
import types
import xml.dom.minidom

import fxattn
import pytest

TEXT = "param cap : float = 5\nscore = cap * tanh(score / cap)\nmask = q >= k"


def test_of_text():
    found = fxattn.explain(TEXT, (1, 4, 64, 16))
    assert found.program == fxattn.Program(TEXT) and found.derivative == found.program.derivative()
    assert "soft cap" in str(found) == found.text and found.json["canonical"]["hash"] == found.program.hash
    assert found.json["shape"] == {"b": 1, "h": 4, "hkv": 4, "sq": 64, "sk": 64, "d": 16, "d_v": 16}
    assert [(e.engine, e.pass_, e.supported) for e in found.engines if e.engine in ("cpu", "ref")] == [
        (name, way, True) for way in ("forward", "backward") for name in ("cpu", "ref")]
    assert found.program.hash[:8] in repr(found) and "cpu" in repr(found)


def test_of_nothing_programs_and_expressions():
    assert "identity" in str(fxattn.explain())
    assert fxattn.explain(fxattn.Program(TEXT)).program == fxattn.explain(TEXT).program
    assert fxattn.explain("score * a", mask_mod="q >= k", params={"a": 2}).json["params"][0]["value"] == 2
    assert fxattn.explain(is_causal=True, window=(3, None)).json["tiles"]["mixed"] == 1


def test_of_a_block_mask():
    torch = pytest.importorskip("torch")
    from fxattn.torch import create_block_mask
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu")
    assert fxattn.explain(mask_mod=mask).program == fxattn.program(mask_mod=mask) == fxattn.Program("mask = q >= k")
    mask.kv_indices.zero_()  # now its lists say something else
    for other in (mask, torch.nn.attention.flex_attention.create_block_mask(mask.mask_mod, None, None, 256, 256, "cpu")):
        with pytest.raises(TypeError, match="mask_mod is of type .*BlockMask.*as its mask_mod is"):
            fxattn.explain(mask_mod=other)


def test_shapes_and_dtypes_in_every_form():
    for shape in ({"b": 2, "h": 4, "hkv": 2, "sq": 1, "sk": 300, "d": 64}, "b=2,h=4,hkv=2,sq=1,sk=300,d=64"):
        assert fxattn.explain(shape=shape).json["shape"]["sk"] == 300
    for dtype in ("bf16", "bfloat16", "torch.bfloat16"):
        assert fxattn.explain(dtype=dtype).json["dtype"] == "bf16"
    np = pytest.importorskip("numpy")
    assert fxattn.explain(dtype=np.float64).json["dtype"] == fxattn.explain(dtype=np.dtype("f8")).json["dtype"] == "f64"


def test_of_functions_with_what_they_capture():
    np = pytest.importorskip("numpy")
    pytest.importorskip("fxattn.trace")
    slopes, ends = np.linspace(0.1, 1, 4), np.array([3, 60])

    def alibi(score, b, h, q, k):
        return score - slopes[h] * (q - k)
    found = fxattn.explain(alibi, (2, 4, 64, 16), lambda b, h, q, k: (q >= k) & (k < ends[b]), b=1, h=2, tile=(16, 16))
    assert [t["sizes"] for t in found.json["tensors"]] == [[4], [2]] and found.json["tiles"]["b"] == 1
    assert found.json["indices_outside"] == []
    wide = fxattn.explain(alibi, (2, 9, 64, 16))
    assert wide.json["indices_outside"]


def test_of_torch_tensors_and_bf16():
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    bias = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
    found = fxattn.explain(lambda s, b, h, q, k: s + bias[q, k], (1, 1, 64, 16))
    assert found.json["tensors"][0]["dtype"] == "bf16" and found.json["indices_outside"] == []


def test_of_a_device_that_may_be_missing():
    np = pytest.importorskip("numpy")
    slopes = np.ones(4, "float32")
    found = fxattn.explain(lambda s, b, h, q, k: s * slopes[h], (1, 4, 64, 64), dtype="bf16", device="cuda", grads="qkv")
    told = {e.engine: e for e in found.engines if e.pass_ == "forward"}
    assert "cpu" not in told or not told["cpu"].supported  # those of the host are not asked
    assert told["cudnn"].supported or told["cudnn"].reason and found.svg
    with pytest.raises(fxattn.Error, match="gpu.*host, cuda"):
        fxattn.explain(device="gpu")
    with pytest.raises(fxattn.Error, match="missing.json"):
        fxattn.explain(target="missing.json")


def test_of_functions_of_jax_as_they_run():
    jnp = pytest.importorskip("jax.numpy")
    slopes = jnp.ones(4)
    for lib in ("torch", "jax"):
        found = fxattn.explain(lambda s, b, h, q, k: jnp.exp(s) * slopes[h], (1, 4, 64, 64), lib=lib)
        assert "clamp" not in found.program.text  # all heads are seen to be inside


def test_pictures_are_documents():
    found = fxattn.explain("score < 3 ? score : 3", mask_mod="q - k < 10 && q >= k", at=2.0, tile=(8, 8))
    picture = xml.dom.minidom.parseString(found._repr_svg_())
    assert picture.documentElement.tagName == "svg"
    shown = found._repr_html_()
    assert shown.startswith("<div") and "<svg" in shown and "<?xml" not in shown and "score &lt; 3.0" in shown
    assert shown.count("<table>") == 1 and "<details>" in shown
    xml.dom.minidom.parseString(shown)


@pytest.mark.parametrize("keywords, kind, words", [
    ({"shape": "d=600"}, fxattn.ProblemError, "600"),
    ({"shape": (1, 2)}, fxattn.ArgumentError, "(B, H, S, D)"),
    ({"shape": 128}, fxattn.ArgumentError, "(B, H, S, D)"),
    ({"mask_mod": types.SimpleNamespace(mask_mod=None)}, fxattn.ArgumentTypeError, "as its mask_mod is"),
    ({"shape": {"h": 1.5}}, fxattn.ArgumentError, "(B, H, S, D)"),
    ({"shape": {"x": 1}}, fxattn.ArgumentError, "x"),
    ({"dtype": "f31"}, fxattn.ArgumentTypeError, "f31"),
    ({"dtype": "i32"}, fxattn.Error, "i32"),
    ({"engine": "nonsense"}, fxattn.ArgumentError, "nonsense"),
    ({"window": (1,)}, fxattn.ArgumentTypeError, "left, right"),
    ({"tile": (1, 2, 3)}, fxattn.ArgumentError, "two ints"),
    ({"sinks": "one"}, fxattn.ArgumentError, "zero"),
    ({"sinks": [1.0]}, fxattn.ArgumentError, "zero"),
    ({"score_mod": "score", "style": "foo"}, fxattn.ArgumentError, "style is 'foo'"),
    ({"score_mod": "score", "lib": "tensorflow"}, fxattn.ArgumentError, "lib is 'tensorflow'"),
    ({"score_mod": "nonsense"}, fxattn.ProgramError, "unknown name"),
    ({"b": 7}, fxattn.Error, "7")])
def test_mistakes(keywords, kind, words):
    with pytest.raises(kind) as caught:
        fxattn.explain(**keywords)
    assert words in str(caught.value)


def test_without_numpy():
    """Sizes are enough for a report."""
    folder = os.path.dirname(os.path.dirname(fxattn.__file__))
    source = "import fxattn; print(fxattn.explain('score * 2').engines[0].engine)"
    ran = subprocess.run([sys.executable, "-S", "-c", source],
                         env={"PYTHONPATH": folder}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert ran.stdout.strip() == b"cpu", ran.stdout
