# SPDX-License-Identifier: Apache-2.0
# Sizes of 0: results of the right sizes, rows without keys as documented, scores of 0 where q has no features.
for sizes in ((h = 0, hkv = 0), (h = 0, hkv = 2), (h = 4, hkv = 2, dv = 0), (d = 0, dv = 3), (d = 0, dv = 0), (b = 0,), (sq = 0, sk = 5),
              (sq = 5, sk = 0), (h = 0, hkv = 0, sq = 0, sk = 0, d = 0, b = 0)), engine in (nothing, "ref")
    q, k, v = inputs(; sizes...)
    o, lse = attention(q, k, v; mask_mod = "q >= k", return_lse = true, engine = engine)
    wanted, rows = dense(q, k, v; m = (b, h, i, j) -> i >= j)
    @test near(o, wanted) && size(lse) == size(rows) && near(replace(lse, -Inf => 9), replace(rows, -Inf => 9))
    grads = attention_backward(ones(size(o)...), o, lse, q, k, v; mask_mod = "q >= k", engine = engine)
    @test map(size, (grads...,)) == (size(q), size(k), size(v))
    # Weights of a row with keys sum to 1. Scores have no gradient where there are no features.
    @test near([sum(grads.v)], [Float64(count(isfinite, lse) * size(v, 1))])
    size(v, 1) > 0 && size(q, 1) > 0 || @test all(iszero, grads.q) && all(iszero, grads.k)
end
let (q, k, v) = inputs(; h = 4, hkv = 2, dv = 0)
    o = similar(q, 0, 4, 5, 2)
    @test run!(plan(q, k, v), o, q, k, v) === o && any(verdict -> verdict.supported, support(q, k, v))
end
