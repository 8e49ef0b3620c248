# SPDX-License-Identifier: Apache-2.0
"""flex_attention on functions as people write them: output and all gradients are as near to f64 as eager PyTorch in the
same dtype is, by the strict form of FlexAttention's own bar (torch_support.assert_within_bar)."""
import copy

import pytest

torch = pytest.importorskip("torch")

from flex_mods import MODS, Size  # noqa: E402
from torch_support import assert_within_bar, eager_step, gradients, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPE = dict(b=2, h=4, sq=37, sk=37)


def run(name, dtype, fused, leaves, hkv=4, **shape):
    """Output and gradients of q, k, v and what is learned. `leaves` are q, k, v in the dtype they are drawn in."""
    size = Size(shape["b"], shape["h"], shape["sq"], shape["sk"], leaves[0].dtype, dtype == torch.float64)
    mods = MODS[name](size)
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves)
    direction = torch.randn((*q.shape[:3], v.shape[3]), generator=torch.Generator().manual_seed(5)).to(leaves[0].dtype)
    if not fused:
        return eager_step(q, k, v, mods.score, mods.mask, mods.learned, direction)
    mask = None if mods.mask is None else fx.create_block_mask(mods.mask, size.b, size.h, size.q, size.k, device="cpu")
    out = fx.flex_attention(q, k, v, mods.score, mask, enable_gqa=hkv != size.h)
    return gradients(out, direction, [q, k, v, *mods.learned])


def check(name, dtype, hkv=4, **shape):
    """Errors are means, of a gradient of few elements over eight problems: those of one say little."""
    few = any(x.numel() < 64 for x in MODS[name](Size(shape["b"], shape["h"], shape["sq"], shape["sk"], dtype)).learned)
    found = []
    for seed in range(8 if few else 1):
        leaves = inputs(shape["b"], shape["h"], hkv, shape["sq"], shape["sk"], 16, 16, dtype, seed)
        found.append([run(name, kind, fused, leaves, hkv, **shape)
                      for kind, fused in ((dtype, True), (dtype, False), (torch.float64, False))])
    assert_within_bar(name, dtype, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(MODS))
def test_function(name, dtype):
    check(name, dtype, **SHAPE)


@pytest.mark.parametrize("name", ["alibi", "softcap_tanh", "causal", "full_bias", "relative_clamped", "document_mask"])
@pytest.mark.parametrize("shape", [
    dict(b=1, h=4, hkv=2, sq=19, sk=19), dict(b=3, h=4, hkv=1, sq=33, sk=33), dict(b=2, h=4, hkv=4, sq=1, sk=65),
    dict(b=2, h=4, hkv=2, sq=3, sk=130), dict(b=1, h=4, hkv=4, sq=129, sk=17), dict(b=1, h=4, hkv=2, sq=1, sk=1)],
    ids=lambda s: "-".join(map(str, s.values())))
def test_shapes(name, shape):
    check(name, torch.float32, **copy.copy(shape))
