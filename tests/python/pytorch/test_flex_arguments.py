# SPDX-License-Identifier: Apache-2.0
"""flex_attention's arguments: what is refused, by PyTorch's exception types and words, and what comes back."""
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch_support import eager, inputs  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn.torch import flex as flex_module  # noqa: E402


def randn(*shape, **options):
    return torch.randn(shape, **options)


def causal(b, h, q, k):
    return q >= k


X = randn(2, 4, 8, 16)
REFUSED = [
    (ValueError, "same embedding dimension but got E=16 and E=8", lambda: fx.flex_attention(X, X[..., :8], X)),
    (NotImplementedError, "must be 4D", lambda: fx.flex_attention(X[0], X[0], X[0])),
    (ValueError, "at least 2 dimensional", lambda: fx.flex_attention(X[0, 0, 0], X, X)),
    (ValueError, "Hq=4 and Hkv=2. Try setting enable_gqa=True for GQA",
     lambda: fx.flex_attention(X, X[:, :2], X[:, :2])),
    (ValueError, "multiple of kv heads for GQA but got Hq=4 and Hkv=3",
     lambda: fx.flex_attention(X, X[:, :3], X[:, :3], enable_gqa=True)),
    (ValueError, "block_mask=None, Bq=2, and Bkv=1", lambda: fx.flex_attention(X, X[:1], X[:1])),
    (ValueError, "B_block_mask=1", lambda: fx.flex_attention(
        X, X[:1], X[:1], block_mask=fx.create_block_mask(causal, None, None, 8, 8, device="cpu"))),
    (ValueError, r"block_mask was created for block_mask.shape=\(1, 1, 4, 8\) but got q_len=8 and kv_len=8.*smaller",
     lambda: fx.flex_attention(X, X, X, block_mask=fx.create_block_mask(causal, None, None, 4, 8, device="cpu"))),
    (ValueError, r"block_mask was created for block_mask.shape=\(1, 1, 8, 9\) but got q_len=8 and kv_len=8.*_adjust",
     lambda: fx.flex_attention(X, X, X, block_mask=fx.create_block_mask(causal, None, None, 8, 9, device="cpu"))),
    (RuntimeError, "sliced BlockMask", lambda: fx.flex_attention(
        X, X, X, block_mask=fx.create_block_mask(causal, 2, 4, 8, 8, device="cpu")[0])),
    (RuntimeError, "same device but got cpu and meta", lambda: fx.flex_attention(
        X, X, X, block_mask=fx.create_block_mask(causal, None, None, 8, 8, device="meta"))),
    (ValueError, "Cannot specify both return_lse and return_aux",
     lambda: fx.flex_attention(X, X, X, return_lse=True, return_aux=fx.AuxRequest(lse=True))),
    (ValueError, "Invalid BACKEND value 'x'", lambda: fx.flex_attention(X, X, X, kernel_options={"BACKEND": "x"})),
    (RuntimeError, "BACKEND cannot be combined", lambda: fx.flex_attention(
        X, X, X, kernel_options={"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True})),
    (AssertionError, "requires a mask_mod function", lambda: fx.create_block_mask(lambda s, b, h, q, k: s, 1, 1, 8, 8)),
    (AssertionError, "Expected 4 or 5 positional args, got 3",
     lambda: fx.create_block_mask(lambda b, h, q: b, 1, 1, 8, 8)),
    (RuntimeError, "All inputs should be callable mask_mods", lambda: fx.and_masks(causal, 3)),
    (RuntimeError, "dtype that fxattn has not", lambda: fx.flex_attention(*[X.to(torch.complex64)] * 3)),
]


@pytest.mark.parametrize("kind, words, call", REFUSED, ids=[words[:40] for _, words, _ in REFUSED])
def test_refused(kind, words, call):
    with pytest.raises(kind, match="(?s)" + words):
        call()


def test_what_is_no_tensor_and_no_function():
    x = torch.randn(1, 2, 8, 4)
    with pytest.raises(TypeError, match="key is of type ndarray; a tensor is accepted .fxattn.numpy takes arrays"):
        fx.flex_attention(x, x.numpy(), x)
    with pytest.raises(TypeError, match="score_mod is of type Tensor; a function of .score, b, h, q.*index"):
        fx.flex_attention(x, x, x, torch.randn(8, 8))
    with pytest.raises(TypeError, match="mask_mod is of type Tensor; a function of .b, h, q_idx, kv_idx."):
        fx.attention(x, x, x, None, torch.ones(8, 8, dtype=torch.bool))
    with pytest.raises(TypeError, match="score_mod is called with 5 arguments.* and takes .b, h, q, k."):
        fx.flex_attention(x, x, x, lambda b, h, q, k: q >= k)


def test_results_by_request():
    q, k, v = inputs(2, 4, 4, 8, 8, 16, 16, torch.float32)
    out, lse = eager(q, k, v)
    plain = fx.flex_attention(q, k, v)
    assert isinstance(plain, torch.Tensor)
    torch.testing.assert_close(plain, out)
    got, aux = fx.flex_attention(q, k, v, return_aux=fx.AuxRequest(lse=True, max_scores=True))
    assert isinstance(aux, fx.AuxOutput) and aux.lse.dtype == aux.max_scores.dtype == torch.float32
    torch.testing.assert_close(aux.lse, lse)
    torch.testing.assert_close(aux.max_scores, (q @ k.transpose(-1, -2) / 4).amax(-1))
    assert aux.lse.requires_grad and not aux.max_scores.requires_grad
    assert fx.flex_attention(q, k, v, return_aux=fx.AuxRequest())[1] == fx.AuxOutput(None, None)
    assert fx.flex_attention(q, k, v, return_aux=fx.AuxRequest(max_scores=True))[1].lse is None


def test_deprecated_lse_and_unused_options_say_so_once():
    flex_module._warned.clear()
    with pytest.warns(FutureWarning, match="return_lse is deprecated"):
        out, lse = fx.flex_attention(X, X, X, return_lse=True)
    with pytest.warns(UserWarning, match="kernel_options"):
        fx.flex_attention(X, X, X, kernel_options={"BLOCK_M": 64})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fx.flex_attention(X, X, X, return_lse=True, kernel_options={"BLOCK_M": 64})


def test_rows_that_attend_to_nothing():
    q, k, v = inputs(1, 2, 2, 6, 6, 4, 4, torch.float32)
    mask = fx.create_block_mask(lambda b, h, q, k: (q != 2) & (k <= q), None, None, 6, 6, device="cpu")
    out, aux = fx.flex_attention(q, k, v, block_mask=mask, return_aux=fx.AuxRequest(lse=True))
    assert (out[:, :, 2] == 0).all() and (aux.lse[:, :, 2] == -torch.inf).all()
    out.sum().backward()
    assert (q.grad[:, :, 2] == 0).all() and all(torch.isfinite(x.grad).all() for x in (q, k, v))


STRIDES = {
    "bshd": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sbhd": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "features first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "every second": lambda x: torch.stack([x, -x], -1)[..., 0],
    "offset": lambda x: torch.cat([x[:, :, :1], x], 2)[:, :, 1:],
    "expanded": lambda x: x[:1, :1].expand(x.shape),
}


@pytest.mark.parametrize("name", STRIDES)
def test_any_strides(name):
    q, k, v = (STRIDES[name](x.detach()).requires_grad_() for x in inputs(2, 3, 3, 7, 7, 8, 8, torch.float32))
    copies = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in (q, k, v)]
    out, want = fx.flex_attention(q, k, v), fx.flex_attention(*copies)
    torch.testing.assert_close(out, want)
    order = sorted(range(3), key=lambda i: (q.stride(i), -i))
    assert out.stride(3) == 1 and sorted(range(3), key=lambda i: (out.stride(i), -i)) == order
    direction = torch.randn(1, 3, 1, 8).expand(out.shape)  # of which most strides are 0
    for x, y in zip(torch.autograd.grad(out, (q, k, v), direction), torch.autograd.grad(want, copies, direction)):
        torch.testing.assert_close(x, y)


def test_output_strides_are_those_of_pytorch():
    for shape, order in (((2, 3, 5, 8), (0, 1, 2, 3)), ((2, 3, 5, 8), (0, 2, 1, 3)), ((2, 1, 5, 8), (2, 0, 1, 3)),
                         ((1, 4, 1, 8), (3, 1, 0, 2)), ((2, 3, 1, 8), (0, 2, 1, 3))):
        x = torch.randn([shape[i] for i in order]).permute([order.index(i) for i in range(4)])
        if x.stride(3) != 1 and torch.__version__ < (2, 13):
            continue  # there the last dimension was not always the innermost of the result
        theirs = torch.nn.attention.flex_attention.flex_attention
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = theirs(x, x, x).stride()
        got = fx.flex_attention(x, x, x).stride()
        assert [s for s, n in zip(got, shape) if n > 1] == [s for s, n in zip(want, shape) if n > 1], (shape, order)


def test_shared_keys_of_one_batch_entry():
    q, k, v = inputs(3, 2, 2, 5, 9, 8, 8, torch.float32)
    k1, v1 = (x[:1].detach().requires_grad_() for x in (k, v))
    mask = fx.create_block_mask(lambda b, h, q, k: k < 4 + b * 2, 3, None, 5, 9, device="cpu")
    out = fx.flex_attention(q, k1, v1, block_mask=mask)
    want = eager(q, k1, v1, mask_mod=mask.mask_mod)[0]
    torch.testing.assert_close(out, want)
    exact = torch.autograd.grad(want.sin().sum(), (q, k1, v1))
    for x, y in zip(torch.autograd.grad(out.sin().sum(), (q, k1, v1)), exact):
        torch.testing.assert_close(x, y)


def test_mixed_dtypes_and_other_value_width():
    q, k, v = inputs(1, 2, 2, 5, 9, 8, 12, torch.float32)
    out = fx.flex_attention(q, k.to(torch.bfloat16), v.to(torch.float16))
    assert out.shape == (1, 2, 5, 12) and out.dtype == torch.float32
    want = eager(q, k.to(torch.bfloat16).float(), v.to(torch.float16).float())[0]
    torch.testing.assert_close(out, want)


def test_empty_lengths():
    for sq, sk in ((0, 5), (5, 0), (0, 0)):
        q, k, v = inputs(1, 2, 2, sq, sk, 8, 8, torch.float32)
        out, aux = fx.flex_attention(q, k, v, return_aux=fx.AuxRequest(lse=True))
        assert out.shape == (1, 2, sq, 8) and (out == 0).all() and (aux.lse == -torch.inf).all()
        out.sum().backward()
        assert (q.grad == 0).all() and (k.grad == 0).all()


def test_what_lies_on_another_device_is_refused():
    """The dispatcher would otherwise take a kernel of that device, whose results nobody wrote."""
    away = torch.randn(4, device="meta")
    with pytest.raises(ValueError, match=r"query is on cpu, a captured tensor of shape \(4,\) on meta"):
        fx.flex_attention(X, X, X, lambda s, b, h, q, k: s + away[h])
    with pytest.raises(ValueError, match="query is on cpu, key on meta; all must be on one device"):
        fx.attention(X, X.to("meta"), X)
    with pytest.raises(ValueError, match="sinks is on meta, q on cpu"):
        fx.attention(X, X, X, sinks=away)
    far = X.to("meta")
    with pytest.raises(ValueError, match="only supported on .* Found input tensors on meta device"):
        fx.flex_attention(far, far, far)
    assert fx.attention(far, far, far, is_causal=True).device.type == "meta"


def test_mistakes_have_their_remedy():
    for wrong in (causal, torch.ones(8, 8, dtype=torch.bool)):
        with pytest.raises(TypeError, match=r"a BlockMask is accepted, which create_block_mask\(mask_mod, B, H, 8, 8"):
            fx.flex_attention(X, X, X, block_mask=wrong)
    learned = torch.tensor(0.3, requires_grad=True)
    for call in (fx.flex_attention, fx.attention):
        with pytest.raises(ValueError, match="multiply in the score_mod"):
            call(X, X, X, scale=learned)
        with pytest.raises(TypeError, match="scale is 'a'; a number is accepted"):
            call(X, X, X, scale="a")
        torch.testing.assert_close(call(X, X, X, scale=learned.detach()), call(X, X, X, scale=0.3))


def test_warnings_point_at_the_caller(monkeypatch):
    monkeypatch.setattr(flex_module, "_warned", set())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fx.flex_attention(X, X, X, kernel_options={"BLOCK_M": 16}, return_lse=True)
    assert len(found) == 2 and all(one.filename == __file__ for one in found)


def test_expressions_are_score_mods():
    torch.testing.assert_close(fx.flex_attention(X, X, X, "score * 2"), eager(X, X, X, lambda s, *_: s * 2)[0])


def test_names_that_models_import():
    """One import line is changed, with all the names that are on it: the public ones, and those that examples of
    FlexAttention annotate their functions with."""
    from torch.nn.attention import flex_attention as theirs
    annotations = ["_mask_mod_signature", "_score_mod_signature", "_DEFAULT_SPARSE_BLOCK_SIZE"]
    assert [name for name in [*theirs.__all__, *annotations] if not hasattr(fx, name)] == []
    assert all(getattr(fx, name) == getattr(theirs, name) for name in annotations)


def compiled(*args, **options):
    """Dynamo compiles a function anew for other dtypes and needs of gradients, eight times in a process and no more:
    what earlier tests did is forgotten."""
    torch._dynamo.reset()
    return torch.compile(fx.flex_attention, backend="aot_eager", fullgraph=True)(*args, **options)


@pytest.mark.parametrize("call, float8", [(fx.flex_attention, torch.float8_e4m3fn), (compiled, torch.float8_e4m3fn),
                                          (fx.flex_attention, torch.float8_e4m3fnuz),
                                          (fx.flex_attention, torch.float8_e5m2),
                                          (fx.flex_attention, torch.float8_e5m2fnuz)],
                         ids=["e4m3fn", "e4m3fn compiled", "e4m3fnuz", "e5m2", "e5m2fnuz"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, None], ids=str)
def test_float8(call, float8, dtype):
    """It is converted exactly: the result is that of the converted tensors, bit for bit, rounded once where query has
    8 bits too."""
    k, v = randn(1, 2, 24, 16).to(float8), randn(1, 2, 24, 16).to(float8)
    q = randn(1, 2, 24, 16).to(dtype or float8)
    key_scale = torch.tensor([0.5, 2.0])

    def dequantized(s, b, h, i, j):
        return s * key_scale[h]

    out, aux = call(q, k, v, dequantized, return_aux=fx.AuxRequest(lse=True))
    wide = [x.to(dtype or torch.float32) for x in (q, k, v)]
    want, rows = fx.flex_attention(*wide, dequantized, return_aux=fx.AuxRequest(lse=True))
    assert out.dtype == q.dtype and torch.equal(out.float(), want.to(q.dtype).float())
    assert aux.lse.dtype == torch.float32 and torch.equal(aux.lse, rows.lse)


def test_float8_has_no_gradient():
    q, k, v = (randn(1, 2, 8, 16).requires_grad_() for _ in range(3))
    narrow = k.to(torch.float8_e4m3fn)
    out = fx.flex_attention(q, narrow, v)
    torch.autograd.grad(out.sum(), (q, v), retain_graph=True)
    with pytest.raises(ValueError, match="Backward pass with mixed query, key, and value dtype is not supported"):
        out.sum().backward()
    with pytest.raises(Exception, match="Backward pass with mixed query, key, and value dtype is not supported"):
        compiled(q, narrow, v)


@pytest.mark.parametrize("q_type, k_type, v_type", [
    (torch.float64, torch.float32, torch.float16), (torch.float32, torch.float64, torch.float64),
    (torch.bfloat16, torch.float64, torch.float32), (torch.float64, torch.float64, torch.float8_e5m2),
    (torch.float16, torch.float32, torch.bfloat16)], ids=str)
def test_other_dtypes_of_key_and_value(q_type, k_type, v_type):
    """f64 where query is, as PyTorch's; f32 elsewhere, and key and value are not rounded to less."""
    xs = [randn(1, 2, 16, 8).to(dtype) for dtype in (q_type, k_type, v_type)]
    working = torch.float64 if q_type == torch.float64 else torch.float32
    out, want = fx.flex_attention(*xs), eager(*(x.to(working) for x in xs))[0]
    assert out.dtype == q_type
    torch.testing.assert_close(out, want.to(q_type))
    if v_type != torch.float8_e5m2:
        xs = [x.requires_grad_() for x in xs]
        fx.flex_attention(*xs).sum().backward()
        assert all(x.grad.dtype == x.dtype for x in xs)
