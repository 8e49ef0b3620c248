# SPDX-License-Identifier: Apache-2.0
"""Decoding steps for bench_gpu.py: few rows against many keys, contiguous or paged, on any engine of a GPU."""
from typing import NamedTuple

import torch
from fxattn import _abi
from fxattn._problem import Args, Problem


class Step(NamedTuple):
    b: int
    keys: int
    rows: int = 1
    heads: int = 64
    kv: int = 8
    d: int = 128
    page: int = 0
    warm: bool = False

    def __str__(self):
        said = "b %d, keys %d, rows %d, heads %d over %d, d %d" % self[:6]
        return said + ", pages of %d" % self.page * (self.page > 0) + ", warm" * self.warm


USUAL = [Step(1, 8192), Step(4, 8192), Step(32, 8192), Step(4, 131072), Step(4, 131072, 4)]
ALL = (USUAL + [Step(b, keys) for b, keys in ((1, 1024), (64, 1024), (1, 32768), (8, 32768), (1, 131072), (16, 2048))]
       + [Step(4, 32768, rows) for rows in (4, 16)] + [Step(8, 8192, 1, 32, kv) for kv in (32, 8, 4)]
       + [Step(b, 8192, d=64) for b in (1, 32)] + [Step(16, 8192, page=page) for page in (16, 64, 128)]
       + [Step(1, 1024, warm=True), Step(1, 8192, warm=True)])


class Data:
    """Tensors of a step, shared by all engines."""

    def __init__(self, z):
        def make(n, heads, rows):
            return torch.randn(n, heads, rows, z.d, device="cuda", dtype=torch.bfloat16)

        self.z, self.q = z, make(z.b, z.heads, z.rows)
        pages = z.b * z.keys // z.page if z.page else z.b
        self.k, self.v = (make(pages, z.kv, z.page or z.keys) for _ in range(2))
        self.pages = torch.randperm(pages, device="cuda").int() if z.page else None
        self.bytes = 2 * self.k.numel() * self.k.element_size()

    def on(self, engine):
        """Returns the step on an engine as a function."""
        z, out = self.z, torch.empty_like(self.q)
        more = dict(flags=_abi.PAGED, page_size=z.page, n_pages=self.k.shape[0]) if z.page else {}
        p = Problem(engine=engine, b=z.b, hq=z.heads, hkv=z.kv, sq=z.rows, sk=z.keys, d_qk=z.d, device=_abi.CUDA,
                    alignment=16, **more)
        for name in ("q", "k", "v", "o"):
            p.operand(name, _abi.BF16)
        plan = p.plan()
        args = Args(q=self.q.data_ptr(), k=self.k.data_ptr(), v=self.v.data_ptr(), o=out.data_ptr())
        if z.page:
            args.slot("pages", self.pages.data_ptr())
        workspace = torch.empty(max(plan.workspace, 1), device="cuda", dtype=torch.uint8)
        args.workspace(workspace.data_ptr() if plan.workspace else None, plan.workspace)
        args.struct.stream = torch.cuda.current_stream().cuda_stream
        args.keep += [out, workspace]
        return lambda: plan.run(args)
