# SPDX-License-Identifier: Apache-2.0
"""Whether the results of a run are good: relative L2 errors of 16-bit results, shares of what docs/numerics.md allows of
f32 ones, LSE row by row, and that nothing was written which nobody owns."""
import math


def larger(x, y):
    """NaN is the largest of all."""
    return x if x != x or x > y else y


class Judge:
    """A part of run_gpu.Tests."""

    def units(self, spec):
        """Bounds of relative L2 errors of O and the gradients, and of LSE. 16 bits: P, O and the gradients are rounded
        to storage once each, dS once or twice; fast tanh is off by 2^-11 of its value, the fast exponential by less
        than storage. f32: O, LSE, dQ, dK and dV have bounds of their own (reference.allow)."""
        loose = 2.0 ** -9 if spec.fast and "softcap" in spec.program else 0
        u = 2.0 ** (-11 if spec.f16 else -9)
        return 3 * u + loose, 5 * u + 2 * loose, (2e-2 if loose else 5e-4)

    def captured_bound(self, spec, refs):
        """Of gradients of captured tensors; f32: a score is a dot product of D terms, and an exponent as large as LSE
        holds 2^-24 of itself."""
        if not spec.f32:
            return self.units(spec)[1]
        most = max([float(c.lse[c.lse.isfinite()].abs().max()) for c in refs.values() if c.lse.isfinite().any()],
                   default=0.0)
        return 2.0 ** -23 * (spec.D + 16 + most) + (2.0 ** -8 if spec.fast and "softcap" in spec.program else 0)

    def heads(self, pr, all_of_them):
        if all_of_them:
            return [(b, h) for b in range(pr.B) for h in range(pr.H)]
        g = pr.H // pr.Hkv
        if pr.q_starts is not None:  # entries differ in what they attend to
            return [(b, i) for b in range(pr.B) for i in range(g)]
        return [(b, kv * g + i) for b, kv in {(0, 0), (pr.B - 1, pr.Hkv - 1)} for i in range(g)]

    def alone(self, pr, side, t):
        """Rows that belong to no entry are zeros in a padded tensor, and unchanged in a packed tensor."""
        rest = pr.others(side, t)
        return not rest.numel() or bool(rest.isnan().all() if pr.q_starts is not None else (rest == 0).all())

    def same(self, x, y):
        """Compares bit for bit, NaN too, which outputs keep where no kernel writes."""
        kind = self.torch.int32 if x.dtype == self.torch.float32 else self.torch.int16
        return self.torch.equal(x.contiguous().view(kind), y.contiguous().view(kind))

    def lse_off(self, spec, ours, c):
        """How far LSE is off, beyond what its own size excuses: f32 holds 2^-24 of a score, in its maximum, that times
        the unit, the logarithm added, that times ln 2, and in ln 2 itself."""
        inf = self.torch.isinf(c.lse)
        if not self.torch.equal(ours[inf], c.lse[inf]) or not self.torch.isfinite(ours[~inf]).all():
            return math.nan
        held = c.allowed_lse[~inf] if spec.f32 else c.lse[~inf].abs() * 5 * 2.0 ** -24
        return float(((ours - c.lse)[~inf].abs() - held).max()) if (~inf).any() else 0.0

    def judge_forward(self, spec, pr, fw, refs):
        worst, worst_lse = 0.0, 0.0
        bound, _, bound_lse = (1, 0, 0) if spec.f32 else self.units(spec)
        for (b, h), c in refs.items():
            o = pr.own("q", fw.o, b)[h]
            worst = larger(self.share(o, c.o, c.allowed["o"]) if spec.f32 else self.error(o, c.o), worst)
            worst_lse = larger(self.lse_off(spec, pr.own_row(fw.lse, b)[h].double(), c), worst_lse)
        rest = pr.others("q", fw.lse[..., None])
        if not self.alone(pr, "q", fw.o) or not (
                rest.isnan().all() if pr.q_starts is not None else (rest == -math.inf).all()):
            worst = math.nan
        return worst <= bound and worst_lse <= bound_lse, "O %.1e lse %.1e" % (worst, worst_lse)

    def judge_backward(self, spec, pr, bw, refs):
        errors, kv = {}, {}
        bound = self.captured_bound(spec, refs)
        worse = lambda name, x: errors.__setitem__(name, larger(x, errors.get(name, 0.0)))
        for (b, h), c in refs.items():
            grad_q = pr.own("q", bw.grad_q, b)[h]
            worse("q", self.share(grad_q, c.grad_q, c.allowed["q"]) if spec.f32 else self.error(
                grad_q, c.grad_q, c.noise_q))
            kv.setdefault((b, h * pr.Hkv // pr.H), []).append(c)
            if bw.grad_dense is not None:
                worse("dense", self.error(bw.grad_dense[b, h, :c.q_len, :c.k_len], c.grad_new))
        for (b, h), group in kv.items():
            for name, t in (("k", bw.grad_k), ("v", bw.grad_v)):
                ours, ref = pr.own("k", t, b)[h], sum(getattr(c, "grad_" + name) for c in group)
                if spec.f32:
                    worse(name, self.share(ours, ref, [sum(c.allowed[name][i] for c in group) for i in (0, 1)]))
                else:
                    worse(name, self.error(ours, ref, sum(c.noise_k for c in group) if name == "k" else 0.0))
        for side, t in (("q", bw.grad_q), ("k", bw.grad_k), ("k", bw.grad_v)):
            if not self.alone(pr, side, t):
                worse(side, math.nan)
        if len(refs) == pr.B * pr.H:
            self.judge_shared(pr, bw, refs, worse)
        good = all(x <= (1 if spec.f32 and name in "qkv" else bound) for name, x in errors.items())
        return good, " ".join("d%s %.1e" % i for i in errors.items())

    def judge_shared(self, pr, bw, refs, worse):
        """Gradients to which several heads or entries add."""
        if bw.grad_rows is not None:
            rows = self.torch.zeros_like(bw.grad_rows, dtype=self.torch.float64)
            for (b, h), c in refs.items():
                rows[h].index_add_(0, (c.q - c.k + pr.Sk - 1).reshape(-1), c.grad_new.reshape(-1))
            worse("rows", self.error(bw.grad_rows, rows))
        if bw.grad_sums is not None:
            sums = self.torch.zeros(2, *bw.grad_sums.shape, dtype=self.torch.float64, device=bw.grad_sums.device)
            for (b, h), c in refs.items():
                sums[0, h] += self.torch.tensor([x for x, _ in c.sums], device=sums.device)
                sums[1, h] += self.torch.tensor([x for _, x in c.sums], device=sums.device)
            for i in range(sums.shape[2]):
                worse("sum%d" % i, self.error(bw.grad_sums[:, i], sums[0, :, i], float(sums[1, :, i].sum())))
        if bw.grad_table is not None:
            table, noise, pairs = self.torch.zeros_like(bw.grad_table, dtype=self.torch.float64), 0.0, 0.0
            for (b, h), c in refs.items():
                table[h] += c.table
                noise += c.noise_table
                pairs += c.attended / pr.H
            # every atomic addition of an element rounds its running sum, which grows as their random walk does
            worse("table", self.error(bw.grad_table, table, noise) - 2.0 ** -24 * math.sqrt(pairs))
        if bw.grad_sink is not None:
            sums = self.torch.zeros(2, pr.H, dtype=self.torch.float64, device=bw.grad_sink.device)
            for (b, h), c in refs.items():
                sums[0, h] += c.grad_sink
                sums[1, h] += c.noise_sink
            worse("sink", self.error(bw.grad_sink, sums[0], float(sums[1].sum())))
