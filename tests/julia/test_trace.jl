# SPDX-License-Identifier: Apache-2.0
# A function gives the same called with numbers and traced, at every pair: each operation, and what is made of several.
using FXAttn: erf, with_grad, ifelse, relu, rsqrt, sigmoid, softplus

const TABLE = Float32[0.5, -1.25, 2, 3]
const GRID = Float64.(reshape(1:12, 3, 4))
const IDS = Int64[3, 1, 4, 1, 5, 9, 2, 6]

const FUNCTIONS = Any[
    (s, b, h, q, k) -> s + b - 2h * q / (k + 1),
    (s, b, h, q, k) -> 3 - s + 0.5f0 * s - 1 // 2 + π * s,
    (s, b, h, q, k) -> -s * abs(s) + abs2(s) + inv(s + 5) + sign(s),
    (s, b, h, q, k) -> exp(s) + exp2(s) + exp10(s / 4) + expm1(s) + log(abs(s)) + log2(abs(s)) + log10(abs(s)) + log1p(abs(s)),
    (s, b, h, q, k) -> sqrt(abs(s)) + rsqrt(abs(s)) + sin(s) + cos(s) + tan(s) + tanh(s) + sinh(s) + cosh(s),
    (s, b, h, q, k) -> atan(s, q - k) + atan(q - k, s) + atan(1, s) + atan(s, -2) + cbrt(s) + sum(sincos(s)) + TABLE[(q >> 1) + 1],
    (s, b, h, q, k) -> atan(s) + asin(tanh(s)) + acos(tanh(s)) + hypot(s, 2.0),
    (s, b, h, q, k) -> sigmoid(s) + erf(s) + relu(s) + softplus(s) + with_grad(s, 0.0),
    (s, b, h, q, k) -> min(s, 0.3) + max(q, k) + min(q, k, h) + clamp(s, -0.5, 0.5) + clamp(q, k, 3) + clamp(2, q, k),
    (s, b, h, q, k) -> floor(s) + ceil(s) + trunc(s) + round(s) + round(Int, s) + floor(Int, s) * 2 + Int(trunc(s)),
    (s, b, h, q, k) -> round(s, RoundDown) + round(s, RoundUp) + float(q) / 2 + Float32(k) + Float64(s),
    (s, b, h, q, k) -> (q - k) ÷ 2 + (q - k) % 3 + mod(q - k, 3) + fld(q - k, 2) + cld(q - k, 2) + q ÷ 2 + q % 3,
    (s, b, h, q, k) -> rem(s, 0.7) + mod(s, 0.7) + div(s, 0.7) + fld(s, 0.7) + mod1(q - k, 3) + divrem(q, 3)[2] + fldmod(k, 2)[1],
    (s, b, h, q, k) -> s^2 + s^3 + s^7 + abs(s)^1.5 + q^2 + q^3 + 2.0^q + abs(s)^k + s^0 + s^1 + abs(s)^-1 + abs(s)^-2 + ℯ^s,
    (s, b, h, q, k) -> ifelse(q < k, s, -s) + ifelse((q >= k) & !(h == 1), 1, 2) + ifelse((q == k) | (s > 0), s, 0),
    (s, b, h, q, k) -> (q <= k) * s + s * (q != k) + (q > 2) * q + (q > 2) * (k > 2) + ((q < 3) + (k < 3)) - (q < 3),
    (s, b, h, q, k) -> (q & 3) + (q | 8) + xor(q, k) + ~q + (q << 2) + (k >> 1) + (q << k) + ((q - 9) >> 1) + (1 << q) + (q >> 40),
    (s, b, h, q, k) -> ifelse(isodd(q), s, 0) + ifelse(iseven(k), 1, s) + ifelse(isnan(s), 0, s) + ifelse(iszero(h), 1, 0),
    (s, b, h, q, k) -> ifelse(in(k, (0, 3)), 1.5, s) + ifelse(q in 2:4, 1, 0) + ifelse(k ∈ [1, 2], 2, 0) + ifelse(isfinite(s), 1, 2),
    (s, b, h, q, k) -> TABLE[h + 1] * s + GRID[h + 1, b + 1] + GRID[q + 1] + IDS[k + 1] + IDS[IDS[2] + q - q],
    (s, b, h, q, k) -> sum(GRID[i, h + 1] * GRID[i, b + 1] for i in 1:3) + muladd(s, 2, q) + prod((s, q, 2)),
    (s, b, h, q, k) -> ifelse(xor(q > 2, k > 2), one(s), zero(s)) + oftype(s, 2) + (isless(q, k) & true) * 1.0,
    (s, b, h, q, k) -> maximum((s, q, k)) + minimum([s, 1.0 * q]) + minmax(q, k)[1] + reduce(+, [s, s, 1]) + (q, k)[1],
    (s, b, h, q, k) -> 1.5,
    (s, b, h, q, k) -> q,
    (s, b, h, q, k) -> s - Inf * (k > 9),
]
for (i, f) in enumerate(FUNCTIONS)
    t = FXAttn.trace(f, nothing)
    for (score, b, h, q, k) in ((0.7, 0, 1, 3, 2), (-1.3, 1, 0, 0, 5), (2.4, 1, 2, 5, 5), (-0.2, 0, 0, 2, 0))
        wanted, found = Float64(f(score, b, h, q, k)), evaluate(t, score, b, h, q, k)[1]
        # Functions that are composed of others round a few times more.
        @test (i, found) == (i, wanted) || isapprox(found, wanted; rtol = 1e-13, atol = 1e-13)
    end
end

# Masks.
for m in Any[(b, h, q, k) -> q >= k, (b, h, q, k) -> (IDS[q + 1] == IDS[k + 1]) & (abs(q - k) < 3), (b, h, q, k) -> true,
             (b, h, q, k) -> (k == 0) | (q - k < 2) & !iszero(k & 1)]
    t = FXAttn.trace(nothing, m)
    for q in 0:5, k in 0:5
        @test evaluate(t, 0.0, 0, 0, q, k)[2] == m(0, 0, q, k)
    end
end

# An index that is not below 1 needs no guard, others do not count from the end.
@test !occursin("where", FXAttn.text(Program((s, b, h, q, k) -> s + TABLE[h + 1])))
let t = FXAttn.trace((s, b, h, q, k) -> s + TABLE[q - k + 1], nothing)
    @test evaluate(t, 0.0, 0, 0, 3, 1)[1] == 2
    @test evaluate(t, 0.0, 0, 0, 1, 2)[1] == 0 # where Julia has no element
    @test evaluate(t, 0.0, 0, 0, 9, 1)[1] == 0
end
@test !occursin("where", FXAttn.text(FXAttn.trace((s, b, h, q, k) -> TABLE[(q >> 7 & 3 | 1) + k ÷ 64 % 2 + 1], nothing,
                                                   ntuple(i -> (0, 2^20), 4)).program))
# A program that is kept runs where q is negative, and what clamp gives lies within its bounds.
let (q, k, v) = inputs(; sq = 7, sk = 5), bias = randn(9)
    f = (score, b, h, q, k) -> score + bias[q + 1] * k
    for more in ((bottom_right = true,), (coordinates = (q = -3,),))
        @test attention(f, q, k, v; more...) == attention(Program(f), q, k, v; tensors = (bias = bias,), more...)
    end
    t = FXAttn.trace((s, b, h, q, k) -> s + bias[8 - (clamp(q, 10, 20) | 0)], nothing, ntuple(i -> (0, 5), 4))
    @test evaluate(t, 1.0, 0, 0, 2, 0)[1] == 1
end
for f in ((s, b, h, q, k) -> s + (13 << (q - k)) + (-77 >> (q - k)), (s, b, h, q, k) -> s + ((q - 9) << k) + ((q * 99) >> k))
    t = FXAttn.trace(f, nothing)
    @test all(evaluate(t, 0.5, 0, 0, q, k)[1] == f(0.5, 0, 0, q, k) for q in (0, 3, 70), k in (0, 2, 5))
end
# Ranges too long to be compared with are an error before they are made. A value that outlives its trace is one.
@test occursin("16384", message(() -> Program((s, b, h, q, k) -> s + (q in 0:2:2 * 10^13))))
let kept = Ref{Any}(nothing)
    Program((s, b, h, q, k) -> (kept[] = q; s))
    for use in (x -> x + 1, x -> x * x, x -> TABLE[x], x -> -x, x -> x == 2)
        @test occursin("after its trace", message(() -> use(kept[])))
    end
end
@test !occursin("where", FXAttn.text(FXAttn.trace((s, b, h, q, k) -> TABLE[q - k + 4], nothing, ((0, 0), (0, 0), (0, 3), (0, 3))).program))

# Numbers that have not met a traced value.
@test FXAttn.plain(zero(FXAttn.Traced) + one(FXAttn.Traced) * 3) === 3
@test FXAttn.plain(convert(FXAttn.Traced, 0.5) * 2) === 1.0
@test Program((s, b, h, q, k) -> s) == Program("")
@test hash(Program("score = score + 1")) == hash(Program((s, b, h, q, k) -> 1 + s))
@test sprint(show, FXAttn.Traced(2)) == "2"
