# SPDX-License-Identifier: Apache-2.0
# Results against attention written out, with every feature, for each type, on both host engines.
let slopes = Float32[0.5, 0.25], cap = 3.0
    f = (score, b, h, q, k) -> cap * tanh((score - slopes[h + 1] * abs(q - k)) / cap)
    m = (b, h, q, k) -> (q >= k) | (k == 2)
    for T in (Float64, Float32, Float16), engine in (nothing, "ref")
        q, k, v = inputs(T; sk = 7, dv = 3)
        o, lse, top = attention(f, q, k, v; mask_mod = m, return_lse = true, return_row_max = true, engine = engine)
        wanted, rows = dense(f, q, k, v; m = m)
        @test near(o, wanted, T) && near(lse, rows, T === Float16 ? Float32 : T) && eltype(o) === T
        @test eltype(lse) === (T === Float64 ? Float64 : Float32) && size(top) == size(lse)
        o2, lse2 = similar(o), similar(lse, Float64)
        @test attention!(f, o2, q, k, v; mask_mod = m, lse = lse2, engine = engine) === o2
        @test o2 == o && near(lse2, rows, T === Float16 ? Float32 : T)
        @test attention(q, k, v; score_mod = f, mask_mod = m, engine = engine) == o
    end
end
let (q, k, v) = inputs(; h = 4, hkv = 2, sq = 6)
    identity_score = (score, b, h, q, k) -> score
    @test near(attention(q, k, v), dense(q, k, v)[1])
    @test near(attention(q, k, v; scale = 0.3), dense(q, k, v; scale = 0.3)[1])
    @test near(attention(q, k, v; is_causal = true), dense(q, k, v; m = (b, h, q, k) -> q >= k)[1])
    @test near(attention(q, k, v; window = (2, nothing)), dense(q, k, v; m = (b, h, q, k) -> q - k <= 2)[1])
    @test near(attention(q, k, v; window = (2, 1), bottom_right = true), dense(q, k, v; m = (b, h, q, k) -> -1 <= q - k <= 2)[1])
    @test near(attention(q, k, v; k_lengths = [3, 5]), dense(q, k, v; m = (b, h, q, k) -> k < (3, 5)[b + 1])[1])
    o = attention(q, k, v; q_lengths = Int8[6, 2])
    @test near(o[:, :, :, 1], dense(q, k, v)[1][:, :, :, 1]) && all(iszero, o[:, :, 3:6, 2])
    sink = randn(4)
    @test near(attention(q, k, v; sinks = sink), dense(q, k, v; sink = sink)[1])
    @test near(attention(q, k, v; sinks = :zero), dense(q, k, v; sink = :zero)[1])
    @test near(attention(q, k, v; q_start = [3, 0], is_causal = true), dense(q, k, v; m = (b, h, q, k) -> q + (3, 0)[b + 1] >= k)[1])
    # Texts, expressions, programs.
    table = randn(4)
    wanted = dense((s, b, h, q, k) -> s * table[h + 1] + 0.5q, q, k, v; m = (b, h, q, k) -> q != k)[1]
    @test near(attention("score * t[h] + c * q", q, k, v; mask_mod = "q != k", tensors = (t = table,), params = (c = 0.5,)), wanted)
    program = Program("param c : float = 0.5\ntensor t : f64[1]\nscore = score * t[h] + c * q\nmask = q != k")
    @test near(attention(program, q, k, v; tensors = Dict("t" => table)), wanted)
    @test near(attention(q, k, v; mask_mod = (b, h, q, k) -> q != k, score_mod = (s, b, h, q, k) -> s * table[h + 1] + 0.5q), wanted)
    # One batch entry of K and V for all, no batch, no heads.
    k1, v1 = k[:, :, :, 1:1], v[:, :, :, 1:1]
    @test near(attention(q, k1, v1), dense(q, repeat(k1, 1, 1, 1, 2), repeat(v1, 1, 1, 1, 2))[1])
    @test attention(q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1]) == attention(q, k, v)[:, :, :, 1]
    @test near(attention(q[:, 1, :, 1], k[:, 1, :, 1], v[:, 1, :, 1]), dense(q[:, 1:1, :, 1:1], k[:, 1:1, :, 1:1], v[:, 1:1, :, 1:1])[1][:, 1, :, 1])
    # Parts of a whole.
    half = attention(identity_score, q[:, :, 4:6, :], k, v; mask_mod = (b, h, q, k) -> q >= k, coordinates = (q = 3,))
    @test near(half, attention(q, k, v; is_causal = true)[:, :, 4:6, :])
    @test near(attention(q[:, :, [2, 5], :], k, v; is_causal = true, coordinates = (q = [1, 4],)), attention(q, k, v; is_causal = true)[:, :, [2, 5], :])
    @test near(attention(q[:, :, [1, 2, 5], :], k, v; is_causal = true, coordinates = Dict(:q => [(0, 0, 1), (2, 4, 1)])),
               attention(q, k, v; is_causal = true)[:, :, [1, 2, 5], :])
    # Dropout: the same seed drops the same, and expectation stays.
    @test attention(q, k, v; window = (2, -1)) == attention(q, k, v; window = (2, nothing))
    a, b = attention(q, k, v; dropout_p = 0.5, seed = 7), attention(q, k, v; dropout_p = 0.5, seed = 8)
    @test a == attention(q, k, v; dropout_p = 0.5, seed = 7, engine = "cpu") && a != b && a != attention(q, k, v)
    # Indices outside: 0, or an error.
    short = [1.0, 2.0]
    lookup = (score, b, h, q, k) -> score + short[k + 1]
    @test near(attention(lookup, q, k, v), dense((s, b, h, q, k) -> s + (k < 2 ? short[k + 1] : 0), q, k, v)[1])
    @test occursin("short", message(() -> attention(lookup, q, k, v; bounds_check = true)))
end
# Packed sequences, and pages.
let (q, k, v) = inputs(; sq = 9, b = 1), cu = [0, 4, 4, 7]
    q, k, v = q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1]
    o, lse = attention(q, k, v; cu_q = cu, cu_k = cu, is_causal = true, return_lse = true)
    for (from, to) in ((1, 4), (5, 7))
        @test near(o[:, :, from:to], attention(q[:, :, from:to], k[:, :, from:to], v[:, :, from:to]; is_causal = true))
    end
    @test all(iszero, o[:, :, 8:9]) && size(lse) == (2, 9)
    kp, vp = randn(4, 2, 2, 5), randn(4, 2, 2, 5)  # five pages of two keys
    pages = Int32[4 0; 2 1]                         # of each batch entry, from 0
    whole(x) = cat((cat((x[:, :, :, p + 1] for p in pages[:, b])...; dims = 3) for b in 1:2)...; dims = 4)
    qq = randn(4, 2, 3, 2)
    @test near(attention(qq, kp, vp; pages = pages, k_lengths = [3, 4]), dense(qq, whole(kp), whole(vp); m = (b, h, q, k) -> k < (3, 4)[b + 1])[1])
end
# Nothing to do: no rows, no keys, no batch entries.
for sizes in ((sq = 0, sk = 3), (sq = 3, sk = 0), (b = 0,), (sq = 0, sk = 0))
    q, k, v = inputs(; sizes...)
    o, lse = attention(q, k, v; return_lse = true)
    @test size(o) == size(q) && all(iszero, o) && all(==(-Inf), lse)
end
