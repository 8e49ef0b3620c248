# SPDX-License-Identifier: Apache-2.0
"""Runs of the kernels on a problem: forward, backward with its ends, decode."""
import math

import torch

import driver
from arguments import divisor
from driver import Args, Kernel, Maps, encode, i32, p, view
from problem import DEV, up
from programs import PARTIALS, SCATTER, SUMS


def grid_of_queries(pr, a, shape):
    if shape.persistent:
        return (min(driver.SMS, a.tiles), 1, 1)
    return (a.q_tiles, pr.H, pr.B if pr.q_starts is None else 1)


def grid_of_keys(pr, shape):
    if pr.k_starts is None:
        return (up(pr.Sk, shape.k_rows) // shape.k_rows * shape.parts, pr.Hkv, pr.B)
    return ((pr.total("k") // shape.k_rows + pr.B) * shape.parts, pr.Hkv, 1)


def output(a, pr, name, t):
    """Points an argument at an output; packed ones have no batch stride."""
    setattr(a, name, view(t))
    if pr.q_starts is not None:
        getattr(a, name).b = 0


class Forward:
    """entry: kernel file and function."""

    def __init__(self, problem, modules, file="sm90/forward", name="fxa_forward"):
        self.problem, pr = problem, problem
        self.a, self.maps = pr.arguments(), Maps()
        a, maps = self.a, self.maps
        kernel = Kernel(modules[file], name)
        shape = kernel.shape
        self.o, self.lse = pr.poison(pr.q, pr.Dv), torch.full(pr.lse_shape(), math.nan, device=DEV)
        pr.prepare(modules, a)
        self.list_call = pr.lists(modules, a, shape.q_rows, shape.k_rows, 0)
        pr.order(a, shape.q_rows)
        output(a, pr, "o", self.o)
        a.lse = self.lse.data_ptr()
        self.counter = torch.zeros(1, dtype=torch.int32, device=DEV)
        self.redo = torch.zeros(max(1, a.tiles), dtype=torch.int32, device=DEV)
        a.next_tile, a.redo = self.counter.data_ptr(), self.redo.data_ptr()
        if shape.store_rows:
            box = min(shape.k_rows, pr.paged or shape.k_rows)
            encode(maps.q, pr.q, shape.q_rows)
            encode(maps.k, pr.k, box)
            encode(maps.v, pr.v, box)
            encode(maps.o, self.o, shape.store_rows)
            if pr.dense is not None:
                encode(maps.dense, pr.dense, shape.q_rows)
        self.run = kernel.call(grid_of_queries(pr, a, shape), [maps, a] if shape.store_rows else [a])


class Backward:
    """prepare, the main kernel, dQ by conversion of the sum or by its own kernel, and the sink's gradient."""

    def __init__(self, problem, modules, o, lse, file="sm90/backward", columns=128, separate=None):
        self.problem, pr = problem, problem
        self.a, self.maps = pr.arguments(), Maps()
        a, maps = self.a, self.maps
        kernel = Kernel(modules[file], "fxa_backward")
        shape = kernel.shape
        pr.prepare(modules, a)
        pr.lists(modules, a, shape.q_rows, shape.k_rows, 1)
        pr.scalars(a, False)
        self.keep = [o, lse]
        rows = pr.H * a.pad_rows
        self.grad_q, self.grad_k = pr.poison(pr.q), pr.poison(pr.k)
        self.grad_v = pr.poison(pr.v)
        self.stats = torch.full((2, rows), math.nan, device=DEV)
        self.sum = None if separate else torch.full((rows * columns,), math.nan, device=DEV)
        for name, t in (("o", o), ("grad_o", pr.grad_o), ("grad_q", self.grad_q), ("grad_k", self.grad_k),
                        ("grad_v", self.grad_v)):
            output(a, pr, name, t)
        a.lse, a.lse2, a.delta = lse.data_ptr(), self.stats[0].data_ptr(), self.stats[1].data_ptr()
        a.grad_q_sum = self.sum.data_ptr() if self.sum is not None else 0
        self.zero, self.after, self.grad_sink = [], [], None
        self.captured(modules, a, shape)
        listed = pr.masked or pr.q_lens is not None or pr.q_starts is not None
        if self.sum is not None and file == "sm90/backward" and listed and self.grad_dense is None:
            self.first_share = torch.full((rows // 64,), -7, dtype=torch.int32, device=DEV)
            a.first_share = self.first_share.data_ptr()
        if pr.sink is not None:
            self.grad_sink = torch.full((pr.H,), math.nan, device=DEV)
            a.grad_sink = self.grad_sink.data_ptr()
        if shape.store_rows:
            for name, t, n in (("q", pr.q, shape.q_rows), ("grad_o", pr.grad_o, shape.q_rows),
                               ("k", pr.k, shape.k_rows), ("v", pr.v, shape.k_rows),
                               ("grad_k", self.grad_k, 16), ("grad_v", self.grad_v, 16)):
                encode(getattr(maps, name), t, n)
            if pr.dense is not None and shape.q_rows:
                encode(maps.dense, pr.dense, shape.q_rows)
            if self.grad_dense is not None:
                encode(maps.grad_dense, self.grad_dense, shape.q_rows)
        ends = Kernel(modules["common/backward_prepost"], "fxa_backward_prepare")
        self.first = ends.call((a.pad_rows // ends.shape.q_rows, pr.H, 1), [a])
        self.main = kernel.call(grid_of_keys(pr, shape), [maps, a] if shape.store_rows else [a])
        if separate:
            self.last = self.separate(modules, separate)
        else:
            self.last = Kernel(modules["common/backward_prepost"], "fxa_grad_q_finish").call((a.pad_rows // 64, pr.H, 1), [a])
        if pr.sink is not None:
            self.after.append(Kernel(modules["common/backward_prepost"], "fxa_grad_sink").call((pr.H, 1, 1), [a]))

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
        if not shape.store_rows:
            return kernel.call(grid_of_queries(pr, a, shape), [a])
        for name, t, n in (("q", pr.q, shape.q_rows), ("grad_o", pr.grad_o, shape.q_rows), ("k", pr.k, shape.k_rows),
                           ("v", pr.v, shape.k_rows), ("grad_q", self.grad_q, 16)):
            encode(getattr(maps, name), t, n)
        if pr.dense is not None:
            encode(maps.dense, pr.dense, shape.q_rows)
        return kernel.call(grid_of_queries(pr, a, shape), [maps, a])

    def captured(self, modules, a, shape):
        """Gradients of captured tensors."""
        pr = self.problem
        self.grad_dense = self.grad_rows = self.grad_sums = self.grad_table = None
        if pr.program in PARTIALS:
            rows, n = up(pr.Sk, shape.k_rows) // shape.k_rows * shape.sum_rows, pr.tensor[0].numel()
            self.sums = torch.empty(pr.B, pr.H, rows, n, device=DEV)
            self.grad_sums = torch.full((pr.H, n), math.nan, device=DEV)
            self.zero.append(self.sums)
            a.sums.data, a.sums.b, a.sums.h = self.sums.data_ptr(), pr.H * rows * n, rows * n
            self.after.append(Kernel(modules["common/backward_prepost"], "fxa_sums_reduce", False).call(
                (pr.H, n, 1), [a.sums, p(self.grad_sums.data_ptr()), i32(pr.B), i32(rows), i32(n)], 256))
            order = SUMS.get(pr.program)
            if order:  # from the order of the text to the order of PARTIALS
                self.after.append(lambda: self.grad_sums.copy_(self.grad_sums.clone()[:, [order.index(i) for i in range(n)]]))
        if pr.program in SCATTER:
            self.grad_table = torch.empty_like(pr.tensor)
            self.zero.append(self.grad_table)
            a.grad_tensor[0] = self.grad_table.data_ptr()
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
            self.after.append(Kernel(modules["common/diagonal_table"], "fxa_diagonal_reduce", False).call(
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

    def __init__(self, problem, modules, splits, columns):
        self.problem, pr = problem, problem
        self.a, self.maps = pr.arguments(), Maps()
        a, maps = self.a, self.maps
        kernel = Kernel(modules["sm90/decode"], "fxa_decode")
        shape = kernel.shape
        pr.prepare(modules, a)
        pr.lists(modules, a, pr.Sq, shape.k_rows, 0)
        groups = up(pr.Sq * a.group, shape.q_rows) // shape.q_rows
        rows = pr.B * pr.Hkv * groups
        self.o, self.lse = pr.poison(pr.q, pr.Dv), torch.full(pr.lse_shape(), math.nan, device=DEV)
        output(a, pr, "o", self.o)
        a.lse = self.lse.data_ptr()
        self.redo = torch.zeros(rows * splits * 3, dtype=torch.int32, device=DEV)
        self.counter = torch.zeros(1, dtype=torch.int32, device=DEV)
        self.partial = torch.full((rows * splits * shape.q_rows * (columns + 2),), math.nan, device=DEV)
        a.tiles, a.next_tile = rows * splits, self.counter.data_ptr()
        a.redo, a.splits, a.run, a.partial = self.redo.data_ptr(), splits, 1, self.partial.data_ptr()
        a.partial_ml = a.partial + 4 * rows * splits * shape.q_rows * columns
        a.by_splits, a.by_shares, a.by_row_groups = divisor(splits), divisor(splits), divisor(groups)
        a.by_kv_heads, a.by_group = divisor(a.kv_heads), divisor(a.group)
        box = min(shape.k_rows, pr.paged) if pr.paged else shape.store_rows
        encode(maps.k, pr.k, box)
        encode(maps.v, pr.v, box)
        grid = (min(rows * splits, driver.SMS), 1, 1) if shape.persistent else (splits, pr.Hkv * groups, pr.B)
        self.run = kernel.call(grid, [maps, a])
