# SPDX-License-Identifier: Apache-2.0
"""One attention problem on the GPU: its tensors, the kernels' runs, and the same in f64 by torch."""
import math

import torch

import driver
from driver import C, Args, Cut, Kernel, Maps, encode, i32, ll, p, view
from programs import REFERENCE

CAP, DEV = 20.0, "cuda"
LOG2E = 1.4426950408889634
MASKED = ("causal", "window", "documents", "per_head")


def up(x, to):
    return (x + to - 1) // to * to


class Context:
    """What a reference program sees of one (b, h)."""


class Problem:
    def __init__(self, program, B=1, H=2, Hkv=None, Sq=512, Sk=None, D=128, dtype=torch.bfloat16, window=1024, docs=8,
                 lens=False, layout="bhsd", gain=1.0, ramp=0.0, dense_b=True):
        self.program, self.B, self.H, self.Hkv, self.Sq, self.Sk = program, B, H, Hkv or H, Sq, Sk or Sq
        self.D, self.dtype, self.window, self.scale = D, dtype, window, 1 / math.sqrt(D)
        self.masked = any(m in program for m in MASKED)
        self.kind = program.split("_")[0] if program != "per_head" and program != "head_table" else program
        self.q, self.grad_o = self.make(self.H, self.Sq, layout) * gain, self.make(self.H, self.Sq, layout)
        self.k, self.v = self.make(self.Hkv, self.Sk, layout), self.make(self.Hkv, self.Sk, layout)
        if ramp:  # scores that grow along the keys, so that a frozen maximum is passed by far
            self.k *= torch.linspace(0, ramp, self.Sk, device=DEV)[:, None].to(dtype)
        self.q_lens = self.k_lens = None
        if lens:
            self.q_lens = torch.randint(0, self.Sq + 1, (B,), device=DEV, dtype=torch.int32)
            self.k_lens = torch.randint(1, self.Sk + 1, (B,), device=DEV, dtype=torch.int32)
        self.captures(docs, dense_b)

    def make(self, heads, length, layout):
        shape = (self.B, heads, length, self.D) if layout == "bhsd" else (self.B, length, heads, self.D)
        t = torch.randn(*shape, device=DEV).to(self.dtype)
        return t if layout == "bhsd" else t.transpose(1, 2)

    def pairs(self, batch):
        """[b, h, q, k] with rows of a multiple of 16 bytes, as TMA wants them."""
        return torch.empty(batch, self.H, self.Sq, up(self.Sk, 8), device=DEV, dtype=self.dtype)[..., :self.Sk]

    def poison(self, like):
        t = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=DEV)
        return t.fill_(float("nan"))

    def captures(self, docs, dense_b):
        self.tensor = self.dense = self.ids = None
        if self.kind == "alibi":
            self.tensor = torch.exp2(-8.0 * torch.arange(1, self.H + 1, device=DEV) / self.H)
        if self.kind == "relative":
            self.tensor = torch.randn(self.H, self.Sq + self.Sk - 1, device=DEV)
        if self.kind == "key":
            self.tensor = torch.randn(self.H, self.Sk, device=DEV)
        if self.kind == "head_table":
            self.tensor = torch.randn(self.H, 64, device=DEV)
        if self.kind == "dense":
            self.dense = self.pairs(self.B if dense_b else 1).normal_()
        if self.kind == "documents":
            rows = []
            for _ in range(self.B):
                starts = torch.zeros(self.Sk, dtype=torch.int32)
                if docs > 0:  # so many of equal length
                    starts[torch.arange(1, docs) * self.Sk // docs] = 1
                else:
                    starts[torch.randint(0, self.Sk, (-docs,))] = 1
                rows.append(torch.cumsum(starts, 0).int())
            self.ids = torch.stack(rows).to(DEV).contiguous()

    # ---- arguments -----------------------------------------------------------------------------------------------

    def arguments(self):
        a = Args()
        a.q, a.k, a.v = view(self.q), view(self.k), view(self.v)
        a.batch, a.heads, a.kv_heads, a.group = self.B, self.H, self.Hkv, self.H // self.Hkv
        a.q_len, a.k_len, a.q_pad = self.Sq, self.Sk, up(self.Sq, 128)
        a.scale, a.scale_log2 = self.scale, self.scale * LOG2E
        a.f[0], a.f[1], a.i[0] = CAP * LOG2E, self.scale / CAP, self.window
        if self.q_lens is not None:
            a.q_lens, a.k_lens = self.q_lens.data_ptr(), self.k_lens.data_ptr()
        if self.tensor is not None:
            t = a.tensor[0]
            t.data, t.rank = self.tensor.data_ptr(), self.tensor.dim()
            for i in range(t.rank):
                t.stride[i], t.size[i] = self.tensor.stride(i), self.tensor.shape[i]
        if self.dense is not None:
            a.dense = view(self.dense)
            a.dense.b *= self.dense.shape[0] > 1
        return a

    def prepare(self, modules, a):
        """The pre-passes of the program: padded words, their ranges, tabulated diagonals. Each kernel has its own."""
        self.prepasses = []
        self.keep = getattr(self, "keep", [])
        if self.ids is not None:
            self.vector(modules, a.q_vector, self.ids[:, None])
            self.vector(modules, a.k_vector, self.ids[:, None])
        if self.kind == "key":
            self.vector(modules, a.q_vector, torch.zeros(1, 1, self.Sq, dtype=torch.int32, device=DEV))
            self.vector(modules, a.k_vector, self.tensor.view(torch.int32)[None])
        if self.kind == "relative":
            zero = up(self.Sk, 128) + 127
            pitch = up(zero + up(self.Sq, 192) + 256, 4)
            self.rows = torch.full((self.H, pitch), float("nan"), device=DEV)
            self.keep.append(self.rows)
            kernel = Kernel(modules["diagonal"], "fxa_diagonal_fill", False)
            self.prepasses.append(kernel.call((up(pitch, 256) // 256, self.H, 1),
                                              [a, p(self.rows.data_ptr()), ll(pitch), i32(zero)], 256))
            a.diagonal.data, a.diagonal.h, a.diagonal.zero = self.rows.data_ptr(), pitch, zero
        for call in self.prepasses:
            call()

    def vector(self, modules, to, words):
        """words [b or 1, h or 1, length] into padded rows."""
        B, H, length = words.shape
        pitch = up(length, 128) + 128
        data = torch.empty(B, H, pitch, dtype=torch.int32, device=DEV)
        ranges = torch.empty(B, H, pitch // 64, 2, dtype=torch.int32, device=DEV)
        self.keep += [words, data, ranges]
        self.prepasses.append(Kernel(modules["tile_lists"], "fxa_vector_prepare", False).call(
            (up(pitch, 512) // 512, H, B),
            [p(words.data_ptr()), ll(words.stride(0)), ll(words.stride(1)), ll(1), p(data.data_ptr()),
             p(ranges.data_ptr()), ll(pitch), i32(length)], 256))
        to.data, to.ranges = data.data_ptr(), ranges.data_ptr()
        to.b, to.ranges_b = (H * pitch, H * pitch // 64) if B > 1 else (0, 0)
        to.h, to.ranges_h = (pitch, pitch // 64) if H > 1 else (0, 0)

    def lists(self, modules, a, q_rows, k_rows, by_key):
        """Writes a tile list by the device and points a at it; none for programs without a mask."""
        if not self.masked:
            return None
        rows, columns = up(self.Sq, q_rows) // q_rows, up(self.Sk, k_rows) // k_rows
        if by_key:
            rows, columns = columns, rows
        per_b = self.kind == "documents" or self.q_lens is not None
        B, H = self.B if per_b else 1, self.H if self.kind == "per_head" else 1
        items = torch.full((B, H, rows, columns), -1, dtype=torch.int32, device=DEV)
        counts = torch.full((B, H, rows, 2), -1, dtype=torch.int32, device=DEV)
        call = Kernel(modules["tile_lists"], "fxa_tile_lists", False).call(
            (up(rows, 8) // 8, H, B),
            [a, Cut(q_rows, k_rows, rows, columns, by_key), p(items.data_ptr()), p(counts.data_ptr()), ll(columns)],
            256)
        call()
        a.list.items, a.list.counts, a.list.pitch = items.data_ptr(), counts.data_ptr(), columns
        a.list.h_rows = rows if H > 1 else 0
        a.list.b_rows = rows * H if B > 1 else 0
        self.keep += [items, counts]
        return call

    def order(self, a, q_rows):
        a.q_tiles = up(self.Sq, q_rows) // q_rows
        a.tiles = a.q_tiles * self.B * self.H
        a.section, a.reverse = 1, int(self.masked)
        while self.masked and a.section * 2 * self.Sk * self.D * 4 <= 32 << 20:
            a.section *= 2
        a.section = min(a.section, self.B * self.H)

    # ---- the reference -------------------------------------------------------------------------------------------

    def context(self, b, h):
        c = Context()
        c.h, c.b, c.cap, c.window, c.k_size = h, b, CAP, self.window, self.Sk
        c.q_len = self.Sq if self.q_lens is None else int(self.q_lens[b])
        c.k_len = self.Sk if self.k_lens is None else int(self.k_lens[b])
        c.q = torch.arange(c.q_len, device=DEV)[:, None]
        c.k = torch.arange(c.k_len, device=DEV)[None, :]
        c.tensor = None if self.tensor is None else self.tensor.double()
        c.dense = None if self.dense is None else self.dense[b % self.dense.shape[0], h].double()
        if self.ids is not None:
            c.q_ids, c.k_ids = self.ids[b][:c.q_len], self.ids[b][:c.k_len]
        return c

    def reference(self, b, h):
        """O, LSE, dQ, and this head's share of dK, dV, and the score gradient, all in f64."""
        c = self.context(b, h)
        kv, (value, mask) = h * self.Hkv // self.H, REFERENCE[self.program]
        q, grad_o = self.q[b, h, :c.q_len].double(), self.grad_o[b, h, :c.q_len].double()
        k, v = self.k[b, kv, :c.k_len].double(), self.v[b, kv, :c.k_len].double()
        s = ((q @ k.T) * self.scale).requires_grad_(True)
        new = value(s, c)
        slope = torch.autograd.grad(new.sum(), s)[0]
        new = new.detach()
        if mask:
            new = new.masked_fill(~mask(c).expand_as(new), -math.inf)
        lse = torch.logsumexp(new, 1)
        weights = torch.exp(new - torch.where(lse == -math.inf, 0, lse)[:, None])
        o = weights @ v
        c.grad_new = weights * (grad_o @ v.T - (grad_o * o).sum(1, keepdim=True))
        grad_s = c.grad_new * slope
        # What rounding dS, and O inside delta, to storage amounts to: squared terms, as they err independently.
        terms = grad_s ** 2 + (weights * slope) ** 2 * ((grad_o * o) ** 2).sum(1, keepdim=True)
        c.noise_q, c.noise_k = (terms @ k ** 2).sum() * self.scale ** 2, (terms.T @ q ** 2).sum() * self.scale ** 2
        c.o, c.lse, c.grad_q = o, lse, grad_s @ k * self.scale
        c.grad_k, c.grad_v = grad_s.T @ q * self.scale, weights.T @ grad_o
        c.attended = float((mask(c).expand_as(new)).sum()) if mask else float(new.numel())
        return c


def error(x, ref, noise=0.0):
    """L2 distance relative to the reference, or to sqrt(noise) where cancellation makes the reference the smaller."""
    if not torch.isfinite(x).all():
        return math.nan
    norm = max(float(ref.norm()), math.sqrt(noise))
    return float((x.double() - ref).norm()) / (norm if norm > 0 else 1)


class Forward:
    """entry: kernel file and function."""

    def __init__(self, problem, modules, file="forward_sm90", name="fxa_forward"):
        self.problem, pr = problem, problem
        self.a, self.maps = pr.arguments(), Maps()
        a, maps = self.a, self.maps
        kernel = Kernel(modules[file], name)
        shape = kernel.shape
        self.o, self.lse = pr.poison(pr.q), torch.full((pr.B, pr.H, pr.Sq), math.nan, device=DEV)
        pr.prepare(modules, a)
        self.list_call = pr.lists(modules, a, shape.q_rows, shape.k_rows, 0)
        pr.order(a, shape.q_rows)
        a.o, a.lse, a.lse_b, a.lse_h = view(self.o), self.lse.data_ptr(), pr.H * pr.Sq, pr.Sq
        self.counter = torch.zeros(1, dtype=torch.int32, device=DEV)
        self.redo = torch.zeros(max(1, a.tiles), dtype=torch.int32, device=DEV)
        a.next_tile, a.redo = self.counter.data_ptr(), self.redo.data_ptr()
        if shape.store_rows:
            encode(maps.q, pr.q, shape.q_rows)
            encode(maps.k, pr.k, shape.k_rows)
            encode(maps.v, pr.v, shape.k_rows)
            encode(maps.o, self.o, shape.store_rows)
            if pr.dense is not None:
                encode(maps.dense, pr.dense, shape.q_rows)
        grid = (min(driver.SMS, a.tiles), 1, 1) if shape.persistent else (a.q_tiles, pr.H, pr.B)
        self.run = kernel.call(grid, [maps, a] if shape.store_rows else [a])


class Backward:
    """prepare, the main kernel, and dQ by conversion of the sum or by its own kernel."""

    def __init__(self, problem, modules, o, lse, file="backward_sm90", name="fxa_backward", separate=None):
        self.problem, pr = problem, problem
        self.a, self.maps = pr.arguments(), Maps()
        a, maps = self.a, self.maps
        kernel = Kernel(modules[file], name)
        shape = kernel.shape
        pr.prepare(modules, a)
        pr.lists(modules, a, shape.q_rows, shape.k_rows, 1)
        self.keep = [o, lse]
        rows = pr.B * pr.H * a.q_pad
        self.grad_q, self.grad_k, self.grad_v = pr.poison(pr.q), pr.poison(pr.k), pr.poison(pr.v)
        self.stats = torch.full((2, rows), math.nan, device=DEV)
        self.sum = None if separate else torch.full((rows * pr.D,), math.nan, device=DEV)
        a.o, a.grad_o, a.lse, a.lse_b, a.lse_h = view(o), view(pr.grad_o), lse.data_ptr(), pr.H * pr.Sq, pr.Sq
        a.grad_q, a.grad_k, a.grad_v = view(self.grad_q), view(self.grad_k), view(self.grad_v)
        a.lse2, a.delta = self.stats[0].data_ptr(), self.stats[1].data_ptr()
        a.grad_q_sum = self.sum.data_ptr() if self.sum is not None else 0
        self.zero, self.after = [], []
        self.captured(modules, a, shape)
        if shape.store_rows:
            for name_, t, n in (("q", pr.q, shape.q_rows), ("grad_o", pr.grad_o, shape.q_rows),
                                ("k", pr.k, shape.k_rows), ("v", pr.v, shape.k_rows),
                                ("grad_k", self.grad_k, 16), ("grad_v", self.grad_v, 16)):
                encode(getattr(maps, name_), t, n)
            if pr.dense is not None:
                encode(maps.dense, pr.dense, shape.q_rows)
            if self.grad_dense is not None:
                encode(maps.grad_dense, self.grad_dense, shape.q_rows)
        ends = Kernel(modules["backward_ends"], "fxa_backward_prepare")
        self.first = ends.call((a.q_pad // ends.shape.q_rows, pr.H, pr.B), [a])
        self.main = kernel.call((up(pr.Sk, shape.k_rows) // shape.k_rows, pr.Hkv, pr.B),
                                [maps, a] if shape.store_rows else [a])
        if separate:
            self.last = self.separate(modules, separate)
        else:
            self.last = Kernel(modules["backward_ends"], "fxa_grad_q_finish").call((a.q_pad // 64, pr.H, pr.B), [a])

    def separate(self, modules, file):
        """dQ by its own kernel, which has its own lists by query tiles."""
        pr = self.problem
        self.a2, self.maps2 = Args.from_buffer_copy(self.a), Maps.from_buffer_copy(self.maps)
        kernel = Kernel(modules[file], "fxa_grad_q")
        shape, a, maps = kernel.shape, self.a2, self.maps2
        pr.lists(modules, a, shape.q_rows, shape.k_rows, 0)
        pr.order(a, shape.q_rows)
        self.counter = torch.zeros(1, dtype=torch.int32, device=DEV)
        a.next_tile = self.counter.data_ptr()
        for name, t, n in (("q", pr.q, shape.q_rows), ("grad_o", pr.grad_o, shape.q_rows), ("k", pr.k, shape.k_rows),
                           ("v", pr.v, shape.k_rows), ("grad_q", self.grad_q, 16)):
            encode(getattr(maps, name), t, n)
        if pr.dense is not None:
            encode(maps.dense, pr.dense, shape.q_rows)
        return kernel.call((min(driver.SMS, a.tiles), 1, 1), [maps, a])

    def captured(self, modules, a, shape):
        """Gradients of captured tensors."""
        pr = self.problem
        self.grad_dense = self.grad_rows = None
        if pr.program in ("dense_grad", "dense_causal"):
            self.grad_dense = pr.pairs(pr.B).fill_(math.nan)
            a.grad_dense = view(self.grad_dense)
            if pr.masked or pr.q_lens is not None:
                self.zero.append(self.grad_dense)  # tiles that no list names are not written
        if pr.kind == "relative":
            tiles, size = up(pr.Sk, shape.k_rows) // shape.k_rows, up(pr.Sq, 128) + 128
            self.parts = torch.empty(pr.B, pr.H, tiles, size, device=DEV)
            self.grad_rows = torch.full((pr.H, pr.Sq + pr.Sk - 1), math.nan, device=DEV)
            self.zero.append(self.parts)
            g = a.grad_diagonal
            g.data, g.b, g.h, g.n = self.parts.data_ptr(), pr.H * tiles * size, tiles * size, size
            g.zero, g.zero_step, g.size = shape.k_rows - 1, shape.k_rows, size
            self.after.append(Kernel(modules["diagonal"], "fxa_diagonal_reduce", False).call(
                (up(pr.Sq + pr.Sk - 1, 128) // 128, pr.H, 1),
                [g, p(self.grad_rows.data_ptr()), i32(pr.B), i32(tiles), i32(pr.Sq + pr.Sk - 1), i32(pr.Sk - 1)], 128))

    def run(self):
        for t in self.zero:
            t.zero_()
        self.first()
        self.main()
        self.last()
        for call in self.after:
            call()


class Decode:
    """Few queries, keys split over CTAs."""

    def __init__(self, problem, modules, splits):
        self.problem, pr = problem, problem
        self.a, self.maps = pr.arguments(), Maps()
        a, maps = self.a, self.maps
        kernel = Kernel(modules["decode_sm90"], "fxa_decode")
        shape = kernel.shape
        pr.prepare(modules, a)
        pr.lists(modules, a, pr.Sq, shape.k_rows, 0)
        groups = up(pr.Sq * a.group, shape.q_rows) // shape.q_rows
        rows = pr.B * pr.Hkv * groups
        self.o, self.lse = pr.poison(pr.q), torch.full((pr.B, pr.H, pr.Sq), math.nan, device=DEV)
        a.o, a.lse, a.lse_b, a.lse_h = view(self.o), self.lse.data_ptr(), pr.H * pr.Sq, pr.Sq
        self.redo = torch.zeros(rows, dtype=torch.int32, device=DEV)
        self.counter = torch.zeros(1, dtype=torch.int32, device=DEV)
        self.partial = torch.full((rows * splits * shape.q_rows * (pr.D + 2),), math.nan, device=DEV)
        a.redo, a.splits, a.partial = self.redo.data_ptr(), splits, self.partial.data_ptr()
        a.partial_ml = a.partial + 4 * rows * splits * shape.q_rows * pr.D
        encode(maps.k, pr.k, shape.store_rows)
        encode(maps.v, pr.v, shape.store_rows)
        self.run = kernel.call((splits, pr.Hkv * groups, pr.B), [maps, a])
