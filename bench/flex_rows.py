# SPDX-License-Identifier: Apache-2.0
"""The rows of gpu_rows.py for the peers of bench_gpu.py: PyTorch's attention through cuDNN, and compiled
FlexAttention, with torch.tanh or with the hardware's tanh.approx, a custom operator."""
import torch
from gpu_rows import CAP, ROWS, WINDOW, documents, slopes


def of_step(forward, inputs, also=()):
    """Returns forward and backward of a PyTorch function as two functions; each has run once."""
    def first():
        with torch.no_grad():
            return forward(*inputs)
    first()
    out = forward(*inputs)
    grad = torch.randn_like(out)
    wanted = tuple(inputs) + tuple(also)

    def second():
        return torch.autograd.grad(out, wanted, grad, retain_graph=True)
    second()
    return first, second


def inputs_of(z):
    make = lambda heads, d: torch.randn(z.b, heads, z.s, d, device="cuda", dtype=z.dtype, requires_grad=True)  # noqa: E731
    return (make(z.h, z.d).detach() * z.q).requires_grad_(), make(z.kv, z.d), make(z.kv, z.dv)


def of_sdpa(row, z):
    if ROWS[row].captured or ROWS[row].params or z.pairs not in ("full", "causal") or z.flags:
        return "-"
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def forward(*x):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=z.pairs == "causal",
                                                                    enable_gqa=z.kv != z.h)
    return of_step(forward, inputs_of(z))


def hardware_tanh():
    """Returns tanh.approx as an operator that inductor compiles to one instruction."""
    if hasattr(torch.ops.fxattn_bench, "tanh"):
        return Fast.apply
    from torch._inductor.lowering import make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    @torch.library.custom_op("fxattn_bench::tanh", mutates_args=())
    def tanh(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)

    tanh.register_fake(torch.empty_like)
    torch.library.register_vmap(tanh, lambda info, dims, x: (torch.ops.fxattn_bench.tanh(x), dims[0]))
    register_lowering(torch.ops.fxattn_bench.tanh.default)(
        lambda x: make_pointwise(lambda v: ops.inline_asm_elementwise(v, asm="tanh.approx.f32 $0, $1;"))(x))
    return Fast.apply


class Fast(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.ops.fxattn_bench.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensors
        return grad * (1 - y * y)


def of_flex(row, z, fast=False):
    if (fast and not ROWS[row].params) or z.packed or z.flags:
        return "-"
    from torch.nn.attention import flex_attention as flex
    torch._dynamo.reset()  # otherwise it stops compiling after some functions
    tanh = hardware_tanh() if fast else torch.tanh
    slope, document = slopes(z), documents(z)
    captured = ROWS[row].captured(z).requires_grad_(ROWS[row].gradient) if row.split("_")[0] in ("relative", "dense") else None
    scores = {"softcap": lambda x, b, h, i, j: CAP * tanh(x / CAP), "alibi": lambda x, b, h, i, j: x - slope[h] * (i - j),
              "relative": lambda x, b, h, i, j: x + captured[h, i - j + z.s - 1],
              "dense": lambda x, b, h, i, j: x + captured[b, h, i, j]}
    masks = {"causal": lambda b, h, i, j: j <= i, "window": lambda b, h, i, j: (j <= i) & (i - j < WINDOW),
             "documents": lambda b, h, i, j: (j <= i) & (document[i] == document[j])}
    score, mask = scores.get(row.split("_")[0]), masks.get(z.pairs)
    block = flex.create_block_mask(mask, None, None, z.s, z.s) if mask else None
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return of_step(lambda *x: compiled(*x, score_mod=score, block_mask=block, enable_gqa=z.kv != z.h), inputs_of(z),
                   (captured,) if ROWS[row].gradient else ())
