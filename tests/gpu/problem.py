# SPDX-License-Identifier: Apache-2.0
"""One attention problem on the GPU: its tensors, the kernels' arguments, the pre-passes.

Rows that no entry owns (past a length, between packed entries) hold NaN in the inputs, and outputs are poisoned with
NaN before every run, so that whatever reads or writes too much is seen."""
import math

import torch

import programs
from arguments import divisor
from driver import Args, Cut, Kernel, WordPair, Words, i32, ll, p, view

CAP, DEV = 20.0, "cuda"
LOG2E = 1.4426950408889634
MASKED = ("causal", "window", "documents", "per_head")


def up(x, to):
    return (x + to - 1) // to * to


class Problem:
    def __init__(self, program, B=1, H=2, Hkv=None, Sq=512, Sk=None, D=128, Dv=None, dtype=torch.bfloat16, window=1024,
                 docs=8, lens=False, layout="bhsd", gain=1.0, ramp=0.0, dense_b=True, packed=False, sink=False,
                 drop=0.0, grad_lse=False, shift=0, paged=0, pitch=0):
        self.program, self.B, self.H, self.Hkv, self.Sq, self.Sk = program, B, H, Hkv or H, Sq, Sk or Sq
        self.D, self.Dv, self.dtype, self.window, self.scale = D, Dv or D, dtype, window, 1 / math.sqrt(D)
        self.cap, self.layout, self.shift, self.drop, self.seed = CAP, layout, shift, drop, 0x0123456789ABCDEF
        self.masked = any(m in program for m in MASKED)
        self.kind = program.split("_")[0] if program != "per_head" and program != "head_table" else program
        self.q_lens = self.k_lens = self.q_starts = self.k_starts = None
        self.pages, self.paged, self.pitch = None, paged, pitch  # pitch: most tiles of a list's row; 0: all of them
        if paged:  # the pages in any order, with unused pages between them
            count = up(self.Sk, paged) // paged
            self.pages = torch.randperm(B * count + 3, device=DEV)[:B * count].view(B, count).int().contiguous()
        if packed:
            self.pack()
        if lens:
            self.q_lens = torch.randint(0, self.Sq + 1, (B,), device=DEV, dtype=torch.int32)
            self.k_lens = torch.randint(1, self.Sk + 1, (B,), device=DEV, dtype=torch.int32)
        self.q, self.grad_o = self.make("q", self.H, self.D, gain), self.make("q", self.H, self.Dv)
        self.k, self.v = self.make("k", self.Hkv, self.D), self.make("k", self.Hkv, self.Dv)
        if ramp:  # scores that grow along the keys, so that a frozen maximum is passed by far
            self.k *= torch.linspace(0, ramp, self.Sk, device=DEV)[:, None].to(dtype)
        self.sink = torch.randn(self.H, device=DEV) * 3 if sink else None
        self.grad_lse = torch.randn(self.lse_shape(), device=DEV) if grad_lse else None
        self.captures(docs, dense_b)

    def pack(self):
        """Entries of random lengths one behind the other: an empty one, one of a single row, the longest first."""
        for side, longest in (("q", self.Sq), ("k", self.Sk)):
            lengths = torch.randint(0, longest + 1, (self.B,))
            lengths[0] = longest
            if self.B > 2:
                lengths[1], lengths[2] = 1, 0
            # the first three rows belong to no entry
            starts = torch.cat((torch.tensor([3]), 3 + torch.cumsum(lengths, 0))).int()
            setattr(self, side + "_starts", starts.to(DEV))
            setattr(self, side + "_ends", starts.tolist())

    def total(self, side):
        """Rows of a packed tensor: five more than the entries have."""
        return getattr(self, side + "_ends")[-1] + 5

    def length(self, side, b):
        n = self.Sq if side == "q" else self.Sk
        if self.q_starts is not None:
            ends = getattr(self, side + "_ends")
            n = ends[b + 1] - ends[b]
        lens = getattr(self, side + "_lens")
        return n if lens is None else min(n, int(lens[b]))

    def own(self, side, t, b):
        """The rows of entry b: [h, rows, d]."""
        n = self.length(side, b)
        if side == "k" and self.pages is not None:
            return t[self.pages[b].long()].transpose(0, 1).flatten(1, 2)[:, :n]
        if self.q_starts is None:
            return t[b, :, :n]
        first = getattr(self, side + "_ends")[b]
        return t[0, :, first:first + n]

    def own_row(self, t, b):
        """Returns the rows of LSE of entry b, [h, rows], like own()."""
        return self.own("q", t[..., None], b)[..., 0]

    def others(self, side, t):
        """Returns the elements that no entry owns, as one row of numbers."""
        owned = torch.zeros(t.shape[0], t.shape[2], dtype=torch.bool, device=DEV)
        for b in range(self.B):
            self.own(side, owned[:, None, :, None], b)[:] = True
        return t.transpose(1, 2)[~owned].reshape(-1)

    def lse_shape(self):
        return (self.B, self.H, self.Sq) if self.q_starts is None else (1, self.H, self.total("q"))

    def empty(self, batch, heads, rows, columns):
        """[batch, heads, rows, columns] in the problem's layout; shift: so many elements from where alignment is."""
        flat = torch.empty(batch * heads * rows * columns + self.shift, device=DEV, dtype=self.dtype)[self.shift:]
        if self.layout == "bhsd":
            return flat.view(batch, heads, rows, columns)
        return flat.view(batch, rows, heads, columns).transpose(1, 2)

    def make(self, side, heads, columns, gain=1.0):
        length = self.Sq if side == "q" else self.Sk
        batch, rows = (self.B, length) if self.q_starts is None else (1, self.total(side))
        pitch = columns if self.shift or self.dtype == torch.float32 else up(columns, 8)  # TMA: 16 bytes
        if side == "k" and self.pages is not None:
            return self.make_pages(heads, columns, pitch)
        t = self.empty(batch, heads, rows, pitch).fill_(math.nan)[..., :columns]
        for b in range(self.B):
            self.own(side, t, b).normal_()
        return t.mul_(gain)

    def make_pages(self, heads, columns, pitch):
        """[pages, heads, page size, columns]; what follows the last key of an entry is NaN."""
        t = self.empty(self.pages.numel() + 3, heads, self.paged, pitch).fill_(math.nan)[..., :columns]
        for b in range(self.B):
            for i, page in enumerate(self.pages[b].tolist()):
                t[page, :, :max(0, self.length("k", b) - i * self.paged)] = 0
        return t.add_(torch.randn(t.shape, device=DEV).to(self.dtype))

    def poison(self, like, columns=None):
        """An output of that layout, whole of NaN."""
        pitch = like.stride(2) if self.layout == "bhsd" else like.stride(1)
        t = self.empty(*like.shape[:3], pitch) if columns is None or columns == like.shape[3] else self.empty(
            *like.shape[:3], columns if self.shift or self.dtype == torch.float32 else up(columns, 8))
        return t.fill_(math.nan)[..., :columns or like.shape[3]]

    def pairs(self, batch):
        """[b, h, q, k] with rows of a multiple of 16 bytes, as TMA requires."""
        return torch.empty(batch, self.H, self.Sq, up(self.Sk, 8), device=DEV, dtype=self.dtype)[..., :self.Sk]

    def captures(self, docs, dense_b):
        self.tensor = self.dense = self.ids = None
        if self.kind == "alibi":
            self.tensor = torch.exp2(-8.0 * torch.arange(1, self.H + 1, device=DEV) / self.H)
        if self.kind == "learned":
            self.tensor = torch.rand(self.H, device=DEV) * 0.1
        if self.kind == "temperature":
            self.tensor = 1 + torch.randn(self.H, 2, device=DEV) * 0.3
        if self.kind == "buckets":
            self.tensor = torch.randn(self.H, 32, device=DEV)
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

    def capped(self, a, cap):
        """Numbers of a soft cap (programs.SOFTCAP)."""
        a.f[0], a.f[1] = cap * LOG2E, self.scale / cap
        a.f[2:8] = [0.6 / a.f[1]] + [c * a.f[1] ** (2 * i + 1) for i, c in enumerate(programs.TANH)]
        a.f[9] = 2 * LOG2E * a.f[1]
        a.f[8] = 28 / a.f[9] if cap <= 64 else 0

    def arguments(self):
        a = Args()
        a.q, a.k, a.v = view(self.q), view(self.k), view(self.v)
        a.batch, a.heads, a.kv_heads, a.group = self.B, self.H, self.Hkv, self.H // self.Hkv
        a.d, a.dv, a.q_len, a.k_len, a.q_pad = self.D, self.Dv, self.Sq, self.Sk, up(self.Sq, 128)
        a.pad_rows = a.q_pad * self.B
        a.scale, a.scale_log2 = self.scale, self.scale * LOG2E
        a.i[0] = self.window
        self.capped(a, CAP)
        self.scalars(a, True)
        shape = self.lse_shape()
        a.lse_b, a.lse_h, a.lse_s = shape[1] * shape[2], shape[2], 1
        for name in ("q_lens", "k_lens", "q_starts", "k_starts", "sink", "grad_lse"):
            if getattr(self, name) is not None:
                setattr(a, name, getattr(self, name).data_ptr())
        if self.q_starts is not None:
            a.q_total, a.k_total = self.total("q"), self.total("k")
            a.pad_rows, a.lse_b = (a.q_total // 128 + self.B) * 128, 0
            for t in (a.q, a.k, a.v):
                t.b = 0
        a.grad_lse_b, a.grad_lse_h, a.grad_lse_s = a.lse_b, a.lse_h, a.lse_s
        if self.pages is not None:
            a.pages, a.pages_b, a.page_size = self.pages.data_ptr(), self.pages.shape[1], self.paged
            a.n_pages = self.k.shape[0]
        if self.drop:
            a.seed[0], a.seed[1] = self.seed & 0xFFFFFFFF, self.seed >> 32
            a.drop_below, a.keep_inverse = int(self.drop * 2 ** 32), 1 / (1 - self.drop)
        captured = self.tensor if self.tensor is not None else self.ids
        if captured is not None:
            t = a.tensor[0]
            t.data, t.rank = captured.data_ptr(), captured.dim()
            for i in range(t.rank):
                t.stride[i], t.size[i] = captured.stride(i), captured.shape[i]
        if self.dense is not None:
            a.dense = view(self.dense)
            a.dense.b *= self.dense.shape[0] > 1
        return a

    def scalars(self, a, forward):
        """f[] and i[] that the generated text of a pass reads."""
        own = {"scale": self.scale, "cap": CAP, "window": self.window}
        for to, names in zip((a.f, a.i), programs.ARGUMENTS.get((self.program, forward), ())):
            for i, name in enumerate(names):
                to[i] = eval(name, {"abs": abs}, own)

    def for_prepass(self, a):
        """The arguments with the scalars of a forward pass, with which preprocess kernels are compiled."""
        copy = Args.from_buffer_copy(a)
        self.scalars(copy, True)
        self.keep.append(copy)
        return copy

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
        if "PROG_DIAGONAL 1" in programs.text_of(self.program, True):
            zero = up(self.Sk, 128) + 127
            pitch = up(zero + up(self.Sq, 192) + 256, 4)
            self.rows = torch.full((self.H, pitch), float("nan"), device=DEV)
            self.keep.append(self.rows)
            kernel = Kernel(modules["common/diagonal_table"], "fxa_diagonal_fill", False)
            self.prepasses.append(kernel.call((up(pitch, 256) // 256, self.H, 1),
                                              [self.for_prepass(a), p(self.rows.data_ptr()), ll(pitch), i32(zero)], 256))
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
        self.prepasses.append(Kernel(modules["common/tile_lists"], "fxa_operands_pack", False).call(
            (up(pitch, 512) // 512, H, B),
            [Words(words.data_ptr(), words.stride(0), words.stride(1), 1, data.data_ptr(), ranges.data_ptr(), pitch,
                   length, 1)], 256))
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
        per_b = self.kind == "documents" or self.q_lens is not None or self.q_starts is not None
        B, H = self.B if per_b else 1, self.H if self.kind == "per_head" else 1
        pitch = min(columns, self.pitch or columns)
        items = torch.full((B, H, rows, pitch), -1, dtype=torch.int32, device=DEV)
        counts = torch.full((B, H, rows, 2), -1, dtype=torch.int32, device=DEV)
        call = Kernel(modules["common/tile_lists"], "fxa_tile_lists", False).call(
            (up(rows, 8) // 8, H, B),
            [self.for_prepass(a), Cut(q_rows, k_rows, rows, columns, by_key), p(items.data_ptr()), p(counts.data_ptr()), ll(pitch),
             WordPair()], 256)
        call()
        a.list.items, a.list.counts, a.list.pitch = items.data_ptr(), counts.data_ptr(), pitch
        a.list.h_rows = rows if H > 1 else 0
        a.list.b_rows = rows * H if B > 1 else 0
        self.keep += [items, counts]
        return call

    def order(self, a, q_rows):
        """Tiles of the launch and their order."""
        batch = self.B if self.q_starts is None else 1
        a.q_tiles = up(self.Sq, q_rows) // q_rows if self.q_starts is None else self.total("q") // q_rows + self.B
        a.tiles = a.q_tiles * batch * self.H
        a.section, a.reverse = 1, int(self.masked)
        while self.masked and a.section * 2 * self.Sk * (self.D + self.Dv) * 2 <= 32 << 20:
            a.section *= 2
        a.section = min(a.section, batch * self.H)
        a.by_order, a.by_section = divisor(a.section * a.q_tiles), divisor(a.section)
        a.by_last, a.by_heads, a.by_group = divisor(batch * self.H % a.section or 1), divisor(self.H), divisor(a.group)
