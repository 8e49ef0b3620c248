# SPDX-License-Identifier: Apache-2.0
"""Checks of torch_cuda.py on entire models: training loops, data parallelism, graphs of modules, models of Hugging Face
transformers that generate."""
import os
import tempfile

import torch
from torch.nn import functional

import fxattn.torch as fx


class Layer(torch.nn.Module):
    def __init__(self, attend, width=128, heads=2):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.attend = heads, attend
        self.embed, self.qkv = torch.nn.Embedding(64, width), torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(x + self.attend(q, k, v).transpose(1, 2).flatten(-2))


def tokens_of(device):
    return torch.randint(0, 64, (4, 129), generator=torch.Generator().manual_seed(1)).to(device)


def loss_of(model, tokens, dtype):
    with torch.autocast(tokens.device.type, dtype):
        logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def losses(attend, device, dtype, steps=12, wrap=lambda model: model):
    """Checks a training loop with autocast, and for f16 a scaler of gradients."""
    model, kind = wrap(Layer(attend).to(device)), torch.device(device).type
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16 and kind == "cuda")
    tokens, found = tokens_of(device), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, tokens, dtype)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(float(loss.detach()))
    return found


def causal_attention(device):
    mask = fx.create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=device)
    return lambda q, k, v: fx.flex_attention(q, k, v, None, mask)


def apart_of(ours, others):
    return max(abs(a - b) / b for a, b in zip(ours, others))


def check_training(report, name, device, dtype, shape):
    ours = losses(causal_attention(device), device, dtype)
    sdpa = losses(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), device, dtype)
    report(name, apart_of(ours, sdpa) < 0.02 and ours[-1] < ours[0], "loss %.3f to %.3f; at most %.1e apart from SDPA's"
           % (ours[0], ours[-1], apart_of(ours, sdpa)))


def check_parallel(report, name, device, dtype, shape):
    """DistributedDataParallel in one process: its hooks run beside the backward pass, on streams of their own."""
    group = torch.distributed
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        group.init_process_group(backend, init_method="file://" + os.path.join(folder, "meet"), rank=0, world_size=1)
        try:
            wrapped = losses(causal_attention(device), device, dtype,
                             wrap=lambda model: torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05))
        finally:
            group.destroy_process_group()
    alone = losses(causal_attention(device), device, dtype)
    report(name, apart_of(wrapped, alone) < 1e-3, "losses %.1e apart from those without it" % apart_of(wrapped, alone))


def check_graphed(report, name, device, dtype, shape):
    """torch.cuda.make_graphed_callables: forward and backward of a module as graphs, in a training loop."""
    def attention_alone(q, k, v):
        return fx.flex_attention(q, k, v, lambda s, b, h, i, j: 5.0 * torch.tanh(s / 5.0))
    sample = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    graphed, worst = torch.cuda.make_graphed_callables(attention_alone, tuple(sample)), 0.0
    for n in range(3):
        given = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        dout = torch.randn(shape, device=device, dtype=dtype)
        got, want = (torch.autograd.grad(f(*given), given, dout) for f in (graphed, attention_alone))
        worst = max([worst, *(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want))])
    report(name, worst < 2.0 ** -7, "gradients at most %.1e apart from eager ones" % worst)


def check_transformers(report, name, device, dtype, shape):
    """A small model of each kind, of which batches with left padding are computed and continued, beside SDPA's."""
    try:
        import transformers
        fx.register_transformers()
    except ImportError as error:
        return report.none(name, str(error))
    sizes = dict(vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, max_position_embeddings=256, pad_token_id=0)
    tokens = torch.randint(1, 64, (2, 96), generator=torch.Generator().manual_seed(2)).to(device)
    real = torch.ones_like(tokens)
    real[1, :20] = 0
    for kind, more in {"Llama": {}, "Mistral": {"sliding_window": 17}, "Gemma2": {"sliding_window": 17,
                                                                                  "attn_logit_softcapping": 5.0}}.items():
        logits, said = {}, []
        for way in ("fxattn", "eager"):
            torch.manual_seed(0)
            config = getattr(transformers, kind + "Config")(**sizes, **more)
            model = getattr(transformers, kind + "ForCausalLM")._from_config(config, attn_implementation=way)
            model = model.to(device=device, dtype=dtype).eval()
            with torch.no_grad():
                logits[way] = model(tokens, attention_mask=real).logits[real.bool()].float()
                if way == "fxattn":
                    try:
                        model.generate(tokens, attention_mask=real, max_new_tokens=4, do_sample=False)
                    except RuntimeError as error:
                        said.append(" ".join(str(error).split()))
        apart = float((logits["fxattn"] - logits["eager"]).abs().max() / logits["eager"].abs().max())
        report("%s, %s" % (name, kind), apart < 2.0 ** -5, "logits at most %.1e apart from eager's" % apart)
        if said:
            report.none("%s, %s, generate" % (name, kind), said[0][:300])


def run(report, device, dtype, shape):
    report.run("training", check_training, device, dtype, shape)
    report.run("training, f16", check_training, device, torch.float16, shape)
    report.run("DistributedDataParallel", check_parallel, device, dtype, shape)
    report.run("transformers", check_transformers, device, dtype, shape)
    if torch.device(device).type == "cuda":
        report.run("make_graphed_callables", check_graphed, device, dtype, shape)
