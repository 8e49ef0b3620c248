# SPDX-License-Identifier: Apache-2.0
"""ring_attention: four processes against attention over the whole sequence, written out in f64.

What is allowed is the bound of docs/numerics.md ("Error bounds"), element by element: an error of the scores and of the
program that is passed on, and rounding of sums in proportion to the magnitudes of their terms; and for each of the merges 8
units more (two weights, two products, a sum, a quotient). Partial sums are at most the sum of magnitudes."""
import math
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import torch.multiprocessing  # noqa: E402
from ring_cases import CASES, GROUPS, PAIR, EMPTY, MODS, SIZE, inputs, work  # noqa: E402
from torch_support import indices  # noqa: E402
from torch_support import inputs as operands  # noqa: E402

import fxattn.torch as fx  # noqa: E402
from fxattn import _abi  # noqa: E402
from fxattn.torch import operators as ops  # noqa: E402

PROGRAM = 20  # units: tanh has 12, a quotient 2, every other operation 1


class Near(NamedTuple):
    """A value, and how far from it a result may be."""

    value: torch.Tensor
    bound: torch.Tensor


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process found."""
    folder = str(tmp_path_factory.mktemp("ring"))
    torch.multiprocessing.spawn(work, (folder,), nprocs=SIZE)
    return [torch.load("%s/found%d.pt" % (folder, rank)) for rank in range(SIZE)]


def dropout_of(case, q, k, learned, sink):
    """Factors of the probabilities, by the library over the whole sequence."""
    if not case.dropout_p:
        return torch.ones(())
    ones = torch.eye(case.sk, dtype=q.dtype).expand(2, case.heads[1], case.sk, case.sk)
    kept = fx.attention(q, k, ones, *MODS[case.mods](learned), sinks=sink, dropout_p=case.dropout_p, seed=77) != 0
    return kept.double() / (1 - case.dropout_p)


class Truth:
    """Attention over the whole in f64, with all bounds."""

    def __init__(self, case):
        (q, k, v), learned, sink, dout, dlse = inputs(case)
        self.r = dropout_of(case, q, k, learned, sink).double()
        self.case, self.group, self.scale = case, case.heads[0] // case.heads[1], 1 / math.sqrt(8)
        self.u = 2.0 ** -52 if case.dtype == torch.float64 else 2.0 ** -24
        self.narrow = case.dtype == torch.bfloat16
        self.q, self.dout, self.dlse = q.double(), dout.double(), dlse.double().unsqueeze(-1)
        self.k, self.v = (x.double().repeat_interleave(self.group, 1) for x in (k, v))
        self.learned, self.sink = [x.double() for x in learned], None if sink is None else sink.double().view(1, -1, 1, 1)
        self._scores()
        self._rows()
        self._gradients()

    def _dot(self, a, b):
        """Error of the products of rows."""
        return self.u * (math.sqrt(a.shape[-1]) + 2) * (a.abs() @ b.abs().transpose(-1, -2))

    def _near(self, value, size, error, terms):
        bound = 2 * error + (16 + 2 * math.sqrt(terms) + 8 * SIZE) * self.u * size
        if self.narrow:  # products in bf16, and the result
            bound = bound + 2.0 ** -8 * size + 2.0 ** -9 * value.abs()
        return Near(value, bound)

    def _scores(self):
        s = (self.q @ self.k.transpose(-1, -2) * self.scale).requires_grad_()
        places = indices(*s.shape)
        score, mask = MODS[self.case.mods](self.learned)
        new = s if score is None else score(s, *places)
        self.slope, = torch.autograd.grad(new.sum(), s, create_graph=True)
        curve = torch.autograd.grad(self.slope.sum(), s)[0] if self.slope.requires_grad else torch.zeros_like(s)
        self.slope, self.new, s = self.slope.detach(), new.detach(), s.detach()
        error = self.scale * self._dot(self.q, self.k) + self.u * s.abs()
        # What is added counts by magnitude: a program of positive numbers.
        self.sizes = [-x.abs() if i == 0 else x.abs() for i, x in enumerate(self.learned)]
        whole = s.abs() if score is None else MODS[self.case.mods](self.sizes)[0](s.abs(), *places)
        self.score_error = self.slope.abs() * error + (PROGRAM * self.u * (whole.abs() + s.abs()) if score else 0)
        self.slope_error = curve.abs() * error + PROGRAM * self.u * self.slope.abs()
        self.keep = torch.ones((), dtype=torch.bool) if mask is None else mask(*places)
        self.new = torch.where(self.keep, self.new, -math.inf)

    def _rows(self):
        all_scores = self.new if self.sink is None else torch.cat([self.new, self.sink.expand(*self.new.shape[:3], 1)], -1)
        m = all_scores.amax(-1, keepdim=True)
        self.lse = torch.logsumexp(all_scores, -1, keepdim=True)
        self.p = torch.where(self.lse == -math.inf, 0.0, torch.exp(self.new - self.lse))
        e = torch.where(self.p > 0, self.score_error + self.u * (self.new - m).abs(), 0.0)
        self.mean = (self.p * e).sum(-1, keepdim=True)
        self.e = e + self.mean
        w = self.p * self.r
        self.out = self._near(w @ self.v, w @ self.v.abs(), (w * self.e) @ self.v.abs(), self.case.sk)
        self.rows = self._near(self.lse.squeeze(-1), (m.abs() + (self.lse - m).abs() + 1).squeeze(-1),
                               self.mean.squeeze(-1), self.case.sk)
        self.dlse = torch.where(self.lse == -math.inf, 0.0, self.dlse)

    def _gradients(self):
        p, r, out = self.p, self.r, self.out.value
        dp = r * (self.dout @ self.v.transpose(-1, -2))
        delta = (self.dout * out).sum(-1, keepdim=True)
        # out as it was found: with its own error
        delta_error = (self._dot(self.dout, out).diagonal(dim1=-1, dim2=-2).unsqueeze(-1)
                       + (self.dout.abs() * self.out.bound).sum(-1, keepdim=True))
        dnew = p * (dp - delta + self.dlse)
        size = p * (dp.abs() + delta.abs() + self.dlse.abs())
        error = size * self.e + p * (r * self._dot(self.dout, self.v) + delta_error) + 4 * self.u * size
        ds, ds_size = self.slope * dnew, self.slope.abs() * size
        ds_error = self.slope.abs() * error + dnew.abs() * self.slope_error
        k, q, w = self.scale * self.k, self.scale * self.q, p * r
        self.dq = self._near(ds @ k, ds_size @ k.abs(), ds_error @ k.abs(), self.case.sk)
        self.dk = self._keys(ds, ds_size, ds_error, q)
        self.dv = self._keys(w, w, w * self.e, self.dout)
        self.shared = self._learned(dnew, size, error)
        if self.sink is not None:
            z = torch.exp(self.sink - self.lse)
            parts = z * (self.dlse - delta), z * (self.dlse.abs() + delta.abs())
            errors = z * delta_error + parts[1] * (self.mean + self.rows.bound.unsqueeze(-1))
            self.shared.append(self._near(*(x.sum((0, 2, 3)) for x in (*parts, errors)), 2 * self.case.sq))

    def _keys(self, value, size, error, rows):
        value, size, error = (x.transpose(-1, -2) @ y for x, y in ((value, rows), (size, rows.abs()), (error, rows.abs())))
        value, size, error = (x.unflatten(1, (-1, self.group)).sum(2) for x in (value, size, error))
        return self._near(value, size, error, self.case.sq * self.group)

    def _learned(self, dnew, size, error):
        if not self.learned:
            return []
        places, shape = indices(*dnew.shape), dnew.shape
        leaves = [x.clone().requires_grad_() for x in (*self.learned, *self.sizes)]
        score, whole = (MODS[self.case.mods](x)[0](torch.zeros(shape), *places).expand(shape).double()
                        for x in (leaves[:3], leaves[3:]))
        values = torch.autograd.grad(score, leaves[:3], dnew)
        sizes, errors = (torch.autograd.grad(whole, leaves[3:], x, retain_graph=True) for x in (size, error + 4 * self.u * size))
        return [self._near(v, s.abs(), e.abs(), dnew.numel()) for v, s, e in zip(values, sizes, errors)]


def together(parts, layout, length):
    """The whole of what processes have."""
    size = len(parts)
    places = [fx.split_sequence(torch.arange(length).view(1, 1, -1), r, size, layout).flatten() for r in range(size)]
    return torch.cat(parts, 2)[:, :, torch.cat(places).argsort()]


def test_what_cannot_be_split():
    with pytest.raises(ValueError, match=r"the tensor has shape \(3, 4\) and no dimension 2.*; dim says another"):
        fx.split_sequence(torch.ones(3, 4), 0, 2)
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank is %d of size %d" % (rank, size)):
            fx.split_sequence(torch.ones(1, 1, 4, 4), rank, size)


def close(name, got, near):
    got, same = got.double(), got.double() == near.value  # -inf is -inf
    far = torch.where(same, 0.0, (got - near.value).abs() - near.bound)
    assert got.shape == near.value.shape and not far.isnan().any() and far.max() <= 0, (name, far.max())


@pytest.mark.parametrize("name", CASES)
def test_the_whole(found, name):
    case, truth = CASES[name], Truth(CASES[name])
    for what, near, length in (("out", truth.out, case.sq), ("lse", truth.rows, case.sq), ("dq", truth.dq, case.sq),
                               ("dk", truth.dk, case.sk), ("dv", truth.dv, case.sk)):
        parts = [one[name][what] for one in found]
        assert what == "lse" or all(part.dtype == case.dtype for part in parts)
        close(what, together(parts, case.layout, length), near)
    for one in found:  # every process has the gradient of the whole, to the bit the same
        assert len(one[name]["shared"]) == len(truth.shared)
        for i, (got, near) in enumerate(zip(one[name]["shared"], truth.shared)):
            close("shared %d" % i, got, near)
            assert torch.equal(got, found[0][name]["shared"][i])


@pytest.mark.parametrize("name", EMPTY)
def test_empty_sequences(found, name):
    for one in (process[name] for process in found):
        assert one["out"].shape[2] == EMPTY[name].sq // SIZE and (one["lse"] == -math.inf).all()
        assert not any(x.any() for x in (one["out"], one["dq"], one["dk"], one["dv"], *one["shared"]))


def test_bounds_tell_something():
    """What is allowed is small beside what is computed, in f32 and in f64."""
    for name, share in (("capped, zigzag", 1e-3), ("learned, striped", 1e-10)):
        truth = Truth(CASES[name])
        for near in (truth.out, truth.dq, truth.dk, truth.dv, *truth.shared):
            assert near.bound.mean() < share * near.value.abs().mean()


@pytest.mark.parametrize("name, parts", [("capped, contiguous", [1, 2, 3, 4]), ("learned, contiguous", [2, 3, 3, 2]),
                                         ("capped, zigzag", [4, 4, 4, 4])])
def test_parts_without_a_pair_are_left_out(found, name, parts):
    assert [one[name]["parts"] for one in found] == parts


def test_a_seed_is_shared(found):
    """Rows of different processes drop by one seed, and so as one run over the whole does: about half, in no process alike."""
    kept = torch.cat([one["drawn"] for one in found], 2) != 0
    assert abs(kept.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(kept.numel())


@pytest.mark.parametrize("ranks", GROUPS, ids=len)
def test_groups_of_one_to_three(found, ranks):
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, h, 12, 8, generator=g, dtype=torch.float64).requires_grad_() for h in (4, 2, 2))
    slopes = torch.rand(4, generator=g, dtype=torch.float64).requires_grad_()
    out = fx.attention(q, k, v, lambda s, b, h, i, j: s - slopes[h] * (i - j), lambda b, h, i, j: i >= j)
    wanted = [out, *torch.autograd.grad(out.sin().sum(), [q, k, v, slopes])]
    for layout in ("contiguous", "zigzag", "striped"):
        parts = [found[rank][ranks][layout] for rank in ranks]
        for i, want in enumerate(wanted[:4]):
            got = together([part[i] for part in parts], layout, 12)
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        for part in parts:
            torch.testing.assert_close(part[4], wanted[4], rtol=1e-12, atol=1e-12)


def test_training_by_several_processes(found):
    """Means over the parts of a batch, in f32: a rounding of each of a few terms."""
    for one in (found[rank] for rank in PAIR):
        assert max(one["data parallel"], one["fully sharded"], one["tensor parallel"]) < 1e-6
        assert max(one["dtensors"]) < 1e-12


def test_dtensors_are_refused_where_nothing_is_known_of_them(found):
    for said in found[PAIR[0]]["refused"][:2]:
        assert said.startswith("q is a DTensor with placements ") and "ring_attention where the sequence is" in said
    assert found[PAIR[0]]["refused"][2].startswith("a captured tensor is a DTensor")


def test_a_call_before_there_is_a_group():
    x = torch.zeros(1, 1, 2, 8)
    with pytest.raises(ValueError, match="before torch.distributed.init_process_group"):
        fx.ring_attention(x, x, x)


@pytest.mark.parametrize("place, words", list(enumerate((
    "order \"zigzag\" needs q of one even length on all processes; their lengths are [3, 5, 3, 3]",
    "order \"striped\" needs lengths of q that differ by one at most, longer ones first; they are [3, 5, 3, 3]",
    "the query heads of process 2 is another than that of process 0 (2, 1)",
    "the score function or a setting of process 2 is another than that of process 0",
    "the set of inputs that need gradients of process 3 is another than that of process 0",
    "order is 'diagonal'; contiguous, zigzag, striped are accepted",
    "[B,H,S,D], [B,Hkv,Sk,D] and [B,Hkv,Sk,Dv] are accepted",
    "sinks has shape (3,); one score per query head, (2,), is accepted",
    "bottom_right is given without is_causal and window, which it aligns",
    "the score function or a setting of process 1 is another than that of process 0",
    "unknown name 'gain'",
    "shapes (1, 2, 4, 8), (1, 0, 4, 8) and (1, 0, 4, 8); [B,H,S,D], [B,Hkv,Sk,D] and [B,Hkv,Sk,Dv] are accepted, H a multiple of Hkv",
    "is_causal is 'yes'; True or False is accepted",
    "window is (-2, 0); (left, right) is accepted"))))
def test_refusals(found, place, words):
    assert all(words in one["refusals"][place] for one in found)


@pytest.mark.parametrize("place, own, others", [(n, *words) for n, words in enumerate((
    ("ZeroDivisionError", "process 1 failed"),
    ("q, k and v have shapes (2, 4, 8)", "process 1 failed"),
    ("q is of type NoneType", "process 1 failed"),
    ("sinks has shape (3,)", "process 1 failed"),
    ("the score function or a setting of process 1", "the score function or a setting of process 1"),
    ("the dtypes of process 1", "the dtypes of process 1"),
    ("q has dtype torch.complex64", "process 1 failed"),
    ("the score function or a setting of process 1", "the score function or a setting of process 1"),
    ("the score function or a setting of process 1", "the score function or a setting of process 1"),
    ("the score function or a setting of process 1", "the score function or a setting of process 1"),
    ("d_qk is 600", "d_qk is 600"),  # all of them, with a part on its way, and then the next call
    ("", "")))])
def test_one_process_that_fails(found, place, own, others):
    """Nobody waits for it."""
    for rank, one in enumerate(found):
        words = own if rank == 1 else others
        assert words in one["alone"][place] and bool(words) == bool(one["alone"][place])


def test_gradients_of_nothing_but_what_is_shared(found):
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 8, 8, generator=g).double() for _ in range(3))
    s = q @ k.transpose(-1, -2) / math.sqrt(8)
    sink, gain = torch.zeros(2, dtype=torch.float64, requires_grad=True), torch.ones(64, dtype=torch.float64)
    gain = (gain + torch.arange(64) / 1000).requires_grad_()
    p = torch.softmax(torch.cat([s, sink.view(1, 2, 1, 1).expand(1, 2, 8, 1)], -1), -1)[..., :8]
    want = [torch.autograd.grad((p @ v).square().sum(), sink)[0]]
    want += torch.autograd.grad((torch.softmax(s * gain.prod(), -1) @ v).square().sum(), gain)[0]
    for one in found:
        for got, expected in zip(one["shared alone"], want):
            torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


def test_partial_results_are_wide():
    """Operators with WIDE: results of 16-bit inputs in f32, which rounded are those without it."""
    q, k, v = (x.detach() for x in operands(2, 4, 2, 5, 7, 8, 8, torch.bfloat16))
    table = torch.randn(7).to(torch.bfloat16)
    text, flags = "tensor t : bf16[1]\nscore = score + t[k]\n", [_abi.RETURN_LSE]
    wide = flags + [0] * (ops.WIDE - 1) + [1]
    rest = [[table], [], [], [], [math.nan, 0.0]]
    narrow, ours = (ops.fwd(q, k, v, *rest, config, text) for config in (flags, wide))
    assert ours[0].dtype == torch.float32 and torch.equal(ours[0].bfloat16(), narrow[0])
    tail = [narrow[0], narrow[1], [torch.ones_like(q)], [ops.WANT_Q, ops.WANT_K, ops.WANT_V, ops.WANT_TENSORS]]
    narrow, ours = (ops.bwd(q, k, v, *rest, config, text, *tail) for config in (flags, wide))
    for a, b in zip(narrow, ours):
        assert b.dtype == torch.float32 and torch.equal(b.bfloat16(), a)
    torch.library.opcheck(ops.fwd, (q, k, v, *rest, wide, text), test_utils="test_faketensor")
    torch.library.opcheck(ops.bwd, (q, k, v, *rest, wide, text, *tail), test_utils="test_faketensor")
