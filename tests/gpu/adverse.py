# SPDX-License-Identifier: Apache-2.0
"""Rows that the forward kernels could get wrong: maxima that pass a frozen one by just so much, scores of 1e30, rows whose
every key has the largest penalty, V near the end of its type, and V that is not finite where weights are 0
(docs/cuda-kernels.md, Numbers). O and LSE are judged element by element: what is not finite must be so, and the same.

The Hopper forward is compiled with FXA_COUNT_REDO, which counts rows that were flagged, tiles that were computed again
and visits for infinities: a case says whether there must be some, or none."""
import math

import torch

from reference import REFERENCE, context, keep

GAINS = (1.0, -1.0, 0.5, 0.0, 0.75, 1.0, 0.25)  # scores of neighbouring rows grow, fall, stay


def put(pr, side, t, b, rows):
    """rows [n, ...] to the rows of entry b in all heads; pages hold them in pieces."""
    if side == "q" or pr.pages is None:
        pr.own(side, t, b)[:] = rows.to(t.dtype)
        return
    for i, page in enumerate(pr.pages[b].tolist()):
        piece = rows[i * pr.paged:(i + 1) * pr.paged].to(t.dtype)
        t[page, :, :piece.shape[0]] = piece


def scores(pr, of_key):
    """Scores are of_key(k) times the gain of the row: one column of Q and K has them, the others of Q are 0."""
    for b in range(pr.B):
        q = torch.zeros(pr.length("q", b), pr.D, device=pr.q.device)
        q[:, 0] = torch.tensor(GAINS, device=q.device)[torch.arange(q.shape[0], device=q.device) % len(GAINS)]
        k = torch.randn(pr.length("k", b), pr.D, device=q.device)
        k[:, 0] = of_key(torch.arange(k.shape[0], device=q.device)) / pr.scale
        put(pr, "q", pr.q, b, q)
        put(pr, "k", pr.k, b, k)


def values(pr, of_key):
    """of_key(k, v) changes V of an entry, [n, dv]."""
    for b in range(pr.B):
        v = torch.randn(pr.length("k", b), pr.Dv, device=pr.q.device)
        put(pr, "k", pr.v, b, of_key(torch.arange(v.shape[0], device=v.device)[:, None], v))


def largest(pr):
    return {torch.bfloat16: 1e38, torch.float16: 6e4, torch.float32: 1e38}[pr.dtype]


# ---- Cases: each changes a problem ------------------------------------------------------------------------------------

def steps(pr, each):
    """Every 64 keys `each` more: below and above what a maximum may lag, 8 ln 2. Not the last tile, which comes first."""
    scores(pr, lambda k: torch.where(k < 896, (k // 64) * each, 0.0))


def rise(pr, by):
    """The amounts by which scores exceed a fixed maximum: below and above 15 ln 2 and 64 ln 2."""
    scores(pr, lambda k: torch.where(k // 4 == 75, by, 0.0))


def single(pr):
    """One key has all the weight of a row."""
    scores(pr, lambda k: torch.where(k == 700, 1000.0, 0.0))


def huge(pr):
    """1e30 for some keys, -1e30 for others: rows attend to one kind alone."""
    most = 1e30 if pr.dtype != torch.float16 else 4e3
    scores(pr, lambda k: torch.where(k % 3 == 0, most, -most) * (k > 100))


def late(pr, level):
    """Nothing but -inf for 400 keys, then scores that a maximum of 0 would lose."""
    pr.dense.zero_()
    pr.dense[..., :400] = -math.inf
    pr.dense[..., 400:] = level


def penalty(pr):
    """All keys of two rows in three have the largest penalty that storage holds."""
    scores(pr, lambda k: k * 0.0)
    pr.dense.zero_()
    least = torch.finfo(pr.dtype).min
    pr.dense[:, :, ::3] = least
    pr.dense[:, :, 1::3, 5:] = least
    pr.dense[:, :, 2::3] = -1e9 if pr.dtype != torch.float16 else -6e4


def large(pr, by):
    rise(pr, by)
    values(pr, lambda k, v: torch.sign(v) * largest(pr))


def equal(pr):
    """All weights and all values alike: sums of V overflow, O does not."""
    scores(pr, lambda k: k * 0.0)
    values(pr, lambda k, v: v * 0 + largest(pr))


def poisoned(pr):
    """Keys that most rows give no weight: later ones are masked, or their score is -2000 (of rows with gain -1: 2000)."""
    scores(pr, lambda k: torch.where(k % 97 == 50, -2000.0, (k % 7) * 0.1))
    put_poison(pr, lambda k: k % 97 == 50)


def future(pr):
    """V past the middle is not finite; scores are random."""
    put_poison(pr, lambda k: k >= pr.Sk // 2)


def put_poison(pr, where):
    """+inf, -inf, NaN and all of them in different columns, one in five left as it is."""
    def change(k, v):
        kinds = torch.tensor([math.inf, -math.inf, math.nan], device=v.device)
        column = torch.arange(v.shape[1], device=v.device)[None] % 5
        return torch.where(where(k) & (column < 4), kinds[torch.where(column < 3, column, k % 3)], v)
    values(pr, change)


def control(pr):
    """Nothing to do again."""


def nan_key(pr):
    """A NaN in an odd key: every row that attends to it is NaN."""
    for b in range(pr.B):
        pr.own("k", pr.k, b)[:, 131, 3] = math.nan


def capped(pr):
    """A soft cap far above what exponentials of f32 hold."""
    pr.cap = 200.0
    scores(pr, lambda k: torch.where(k % 64 == 33, 400.0, 0.0))


# ---- What is right -----------------------------------------------------------------------------------------------------

def expected(pr, b, h):
    """O, LSE and what an element of each may be off by, f64."""
    c = context(pr, b, h)
    kv, (value, mask) = h * pr.Hkv // pr.H, REFERENCE[pr.program]
    q = pr.own("q", pr.q, b)[h].double()
    k, v = pr.own("k", pr.k, b)[kv].double(), pr.own("k", pr.v, b)[kv].double()
    new = value(q @ k.T * pr.scale, c)
    if mask:
        new = new.masked_fill(~mask(c).expand_as(new), -math.inf)
    sink = new.new_full((c.q_len, 1), -math.inf if pr.sink is None else float(pr.sink[h]))
    top = torch.cat((new, sink), 1).amax(1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    e = torch.exp(new - top)
    total = e.sum(1, keepdim=True) + torch.exp(sink - top)
    weight = torch.where(total == 0, 0.0, e / total)
    if pr.drop:
        weight = weight * keep(pr.seed, pr.drop, b, h, c.q, c.k).double() / (1 - pr.drop)
    finite = torch.where(v.isfinite(), v, 0.0)
    o = weight @ finite
    some = (weight > 2.0 ** -100).double()
    up, down = (some @ (~(v < math.inf)).double()) > 0, (some @ (~(v > -math.inf)).double()) > 0
    o = torch.where(up & down, math.nan, torch.where(up, math.inf, torch.where(down, -math.inf, o)))
    o = torch.where(total.isnan(), math.nan, o)
    size, unit = weight @ finite.abs(), {torch.bfloat16: 2.0 ** -9, torch.float16: 2.0 ** -12}.get(pr.dtype, 2.0 ** -22)
    far = torch.where(weight > 0, (new - top).abs(), 0.0)
    allowed = 3 * unit * size + 2.0 ** -20 * ((weight * far) @ finite.abs())
    if pr.dtype == torch.float16:  # weights below 2^-14 of the largest are rounded by 2^-25 of it
        allowed = allowed + 2.0 ** -24 * finite.abs().sum(0, keepdim=True) / total.clamp_min(1e-30)
    lse = torch.where(total == 0, -math.inf, top + torch.log(total))[:, 0]
    return o, lse, allowed, 1e-5 + lse.abs() * 2.0 ** -20


def off(x, ref, allowed):
    """The largest distance as a share of what is allowed; NaN where another kind of number stands."""
    x, finite = x.double(), ref.isfinite()
    same = (x == ref) | (x.isnan() & ref.isnan())
    if not (torch.where(finite, x.isfinite(), same)).all():
        return math.nan
    share = ((x - ref).abs() / allowed.clamp_min(1e-300))[finite & (x != ref)]
    return float(share.max()) if share.numel() else 0.0


def redone(tests, modules, clear=False):
    """Rows that were flagged, tiles computed again, visits for infinities; None: this kernel has no counter."""
    driver = tests.driver
    at, size, counts = driver.p(), driver.C.c_size_t(), (driver.C.c_uint * 3)()
    if "sm90/forward" not in modules:
        return None
    driver.check(driver.cuda.cuModuleGetGlobal_v2(driver.C.byref(at), driver.C.byref(size), modules["sm90/forward"],
                                                  b"fxa_redone"), "fxa_redone")
    if clear:
        driver.check(driver.cuda.cuMemcpyHtoD_v2(at, counts, size), "fxa_redone")
    driver.check(driver.cuda.cuMemcpyDtoH_v2(counts, at, size), "fxa_redone")
    return list(counts)


def compare(pr, fw, spec):
    """Shares of what O and LSE may be off by; NaN is the largest of all."""
    worst = [0.0, 0.0]
    for b in range(pr.B):
        for h in range(pr.H):
            o, lse, allowed, allowed_lse = expected(pr, b, h)
            if spec.fast and "softcap" in spec.program:  # tanh is off by 2^-11 of its value
                allowed, allowed_lse = allowed + 2.0 ** -6 * (1 + o.abs()), allowed_lse + 2.0 ** -10 * pr.cap
            shares = off(pr.own("q", fw.o, b)[h], o, allowed), off(pr.own_row(fw.lse, b)[h], lse, allowed_lse)
            worst = [max(x, y, key=lambda z: (z != z, z)) for x, y in zip(worst, shares)]
    return worst


def run(tests, spec):
    pr, modules, fw = tests.make(spec)
    globals()[spec.adverse[0]](pr, *spec.adverse[1:])
    if spec.adverse[0] == "capped":
        pr.capped(fw.a, pr.cap)
    torch.cuda.synchronize()
    redone(tests, modules, clear=True)
    fw.run()
    tests.driver.sync()
    counts, worst = redone(tests, modules), compare(pr, fw, spec)
    good, said = worst[0] <= 1 and worst[1] <= 1, "O %.2f lse %.2f" % tuple(worst)
    if counts is not None:
        said += " flagged %d rows, again %d tiles, for infinities %d" % tuple(counts)
        good = good and (spec.again is None or (counts[1] > 0) == spec.again)
    first = fw.o.clone()
    fw.run()
    tests.driver.sync()
    if not tests.same(first, fw.o):
        good, said = False, said + " second run differs"
    if int(fw.counter) or int(fw.redo.abs().max()):
        good, said = False, said + " counters not left at zero"
    return good, said
