# SPDX-License-Identifier: Apache-2.0
# Arrays of every kind that lies in memory: no copy, any strides, outputs too; and those that do not.
primitive type BFloat16 <: AbstractFloat 16 end
to_bf16(x::Float32) = reinterpret(BFloat16, UInt16((reinterpret(UInt32, x) + 0x8000) >> 16))
from_bf16(x::BFloat16) = reinterpret(Float32, UInt32(reinterpret(UInt16, x)) << 16)

let (q, k, v) = inputs(; d = 4, sq = 6)
    wanted = attention(q, k, v; is_causal = true)
    same(x, y, z) = attention(x, y, z; is_causal = true) == wanted
    wide = zeros(8, 3, 12, 4)
    hole = view(wide, 3:6, 2:3, 1:2:12, 4:-2:1)              # gaps, steps, backwards
    hole .= q
    @test same(hole, k, v) && FXAttn.place(hole)[2] == [1, 8, 48, -576]
    # The features backwards: a stride below 0 there, and sums in another order.
    @test near(attention(view(q, 4:-1:1, :, :, :), view(k, 4:-1:1, :, :, :), v; is_causal = true), wanted)
    by_head = permutedims(q, (1, 3, 2, 4))                     # (d, s, h, b), as others have it
    @test same(PermutedDimsArray(by_head, (1, 3, 2, 4)), k, v)
    @test same(reshape(vec(q), 4, 2, 6, 2), k, reinterpret(Float64, reinterpret(UInt64, v)))
    @test same(view(PermutedDimsArray(by_head, (1, 3, 2, 4)), :, :, 1:6, :), k, v)
    @test same(reinterpret(Float64, vec(reinterpret(UInt8, vec(q)))) |> x -> reshape(x, size(q)), k, v)
    @test same(permutedims(q, (4, 3, 2, 1)) |> x -> PermutedDimsArray(x, (4, 3, 2, 1)), k, v)
    o = fill(NaN, 8, 2, 6, 2)
    attention!(view(o, 2:2:8, :, :, :), q, k, v; is_causal = true)
    @test o[2:2:8, :, :, :] == wanted && all(isnan, o[1:2:7, :, :, :])
    lse = zeros(2, 6, 2)
    attention!(similar(q), q, k, v; lse = PermutedDimsArray(permutedims(lse, (3, 2, 1)), (3, 2, 1)))
    row = q[:, :, :, 1]
    flat = reshape(permutedims(row[:, 1, :], (2, 1)), 6, 4)    # (s, d), and its transpose (d, s)
    @test near(attention(transpose(flat), transpose(flat), flat'), attention(row[:, 1, :], row[:, 1, :], row[:, 1, :]))
    @test occursin("with strides", message(() -> attention(view(q, [1, 2, 3, 4], :, :, :), k, v)))
    @test occursin("with strides", message(() -> attention(reshape(view(q, :, :, 1:2:6, :), 4, 2, 6, 1), k[:, :, :, 1:1], v[:, :, :, 1:1])))
    @test occursin("with strides", message(() -> attention(reshape(1.0:96.0, 4, 2, 6, 2), k, v)))
    # Gradients into views, captured views with gradients.
    table = zeros(4, 7)
    part = view(table, 2:2:4, 7:-1:2)
    part .= randn(2, 6)
    f = (score, b, h, q, k) -> score + part[h + 1, k + 1]
    plain = let part = Array(part); (score, b, h, q, k) -> score + part[h + 1, k + 1] end
    g, w = attention_pullback(f, q, k, v)[2](q), attention_pullback(plain, q, k, v)[2](q)
    @test g.q == w.q && FXAttn.of(g, part) == w.tensors[:part]
    into = fill(NaN, 8, 2, 6, 2)
    o, lse = attention(plain, q, k, v; return_lse = true, lse_dtype = Float64)
    attention_backward!(view(into, 8:-2:1, :, :, :), nothing, nothing, q, o, lse, q, k, v; score_mod = plain)
    @test into[8:-2:1, :, :, :] == w.q && all(isnan, into[1:2:7, :, :, :])
end
# bf16, of whatever package it comes.
let (q, k, v) = map(x -> to_bf16.(x), inputs(Float32))
    o = attention(q, k, v)
    @test eltype(o) === BFloat16 && near(from_bf16.(o), dense(map(x -> from_bf16.(x), (q, k, v))...)[1], Float16)
    g = attention_pullback((score, b, h, q, k) -> score * 2, q, k, v)[2](q)
    @test eltype(g.q) === BFloat16
end
# Types may differ, one problem has one width.
let (q, k, v) = inputs(Float32)
    @test near(attention(q, Float16.(k), v), attention(q, k, v), Float16)
    @test occursin("f64", message(() -> attention(q, Float64.(k), v)))
end
