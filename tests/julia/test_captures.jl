# SPDX-License-Identifier: Apache-2.0
# What functions hold: arrays and numbers of closures, objects that are called, functions inside of functions.
struct SoftCap{T}
    cap::T
end
(f::SoftCap)(score, b, h, q, k) = f.cap * tanh(score / f.cap)

struct Both{F, G}
    first::F
    second::G
end
(f::Both)(score, place...) = f.second(f.first(score, place...), place...)

struct FixedFields
    slopes::Vector{Float32}
    cap::Float64
end
(f::FixedFields)(score, b, h, q, k) = f.cap * tanh((score - f.slopes[h + 1] * (q - k)) / f.cap)

struct Shared{T}
    low::T
    high::T
end
(f::Shared)(score, b, h, q, k) = max(f.low, min(f.high, score))

mutable struct Learned{T}
    w::T
end
(f::Learned)(score, b, h, q, k) = score + f.w[1] + 0 * f.w[2]

names_of(t) = sort!(collect(keys(t.tensors))), sort!(collect(keys(t.params)))
function same_as_called(f, t = FXAttn.trace(f, nothing))
    all(isapprox(evaluate(t, s, 1, h, q, k)[1], f(s, 1, h, q, k); rtol = 1e-12, atol = 1e-12)
        for (s, h, q, k) in ((0.5, 1, 3, 2), (-2.0, 0, 1, 1)))
end
alibi(slopes) = (score, b, h, q, k) -> score - slopes[h + 1] * (q - k)

let slopes = Float32[0.5, 0.25]
    f = alibi(slopes)
    t = FXAttn.trace(f, nothing)
    @test same_as_called(f) && t.exact && names_of(t) == ([:slopes], Symbol[])
    @test t.tensors[:slopes][1] === slopes                    # no copy
    @test FXAttn.trace(alibi(Float32[1, 2]), nothing).program == t.program
    g = Both(f, SoftCap(20.0))
    t = FXAttn.trace(g, nothing)
    @test same_as_called(g) && t.exact && names_of(t) == ([:slopes], [:cap])
    h = (place...) -> g(place...) + slopes[1]                   # a plain index of a captured array is a load too
    t = FXAttn.trace(h, nothing)
    @test same_as_called(h) && t.exact && length(t.tensors) == 1
    @test occursin("slopes[0]", FXAttn.text(t.program))
    fixed = FixedFields(slopes, 5.0)                             # its types allow no param: a constant, and still right
    t = FXAttn.trace(fixed, nothing)
    @test same_as_called(fixed) && names_of(t) == ([:slopes], Symbol[])
end
@test same_as_called(Shared(-1.0, 1.0)) && names_of(FXAttn.trace(Shared(-1.0, 1.0), nothing))[2] == [:high, :low]
@test same_as_called(Learned([1.5, 2.0])) && FXAttn.trace(Learned([1.5, 2.0]), nothing).exact
@test FXAttn.trace(SoftCap(20.0), nothing).program == FXAttn.trace(SoftCap(30f0), nothing).program
@test FXAttn.trace(SoftCap(20), nothing).program != FXAttn.trace(SoftCap(30), nothing).program   # ints are constants

# Variables that are assigned again (boxes), Refs, arrays without dimensions, tuples, named tuples.
let cap = 3.0, ref = Ref(2.0), zero_d = fill(0.5), both = (1.5, [2.0, 3.0]), named = (w = Float32[1, 2],)
    cap += 1
    f = (score, b, h, q, k) -> cap * tanh(score / cap) + ref[] * zero_d[] + both[1] * both[2][h + 1] + named.w[2]
    cap += 1
    t = FXAttn.trace(f, nothing)
    @test same_as_called(f) && t.exact
    @test length(t.params) == 3 && length(t.tensors) == 3
end

# Captured numbers are constants where the value is needed while the function is traced.
let cap = 20.0
    f = (score, b, h, q, k) -> cap > 0 ? cap * tanh(score / cap) : score
    t = FXAttn.trace(f, nothing)
    @test same_as_called(f) && !t.exact && isempty(t.params) && occursin("boolean", t.why)
end

# Arrays that have no strides of their own: copied. Views, whole and with gaps.
let keep = BitVector([true, false, true, true]), range = 0.5:0.5:2, ids = UInt32[3, 1, 2, 7],
    A = reshape(collect(Float64, 1:24), 4, 6), V = view(A, 1:2:4, 6:-2:1), P = PermutedDimsArray(A, (2, 1)), T = transpose(A)
    f = (score, b, h, q, k) -> (keep[q + 1]) * score + range[k + 1] + ids[h + 1] + V[h + 1, b + 1] + P[k + 1, h + 1] + T[q + 1, h + 1] + A[q + 1]
    @test same_as_called(f) && length(FXAttn.trace(f, nothing).tensors) == 7
end
# Names: of another alphabet, of words of the language, twice the same, none.
let α = [1.0, 2.0], score = 2.0, q = [3.0], pair = ((w = [1.0],), (w = [2.0],))
    f = (s, b, h, i, j) -> s * score + α[h + 1] + q[1] + pair[1].w[1] + pair[2].w[1] + Float64[7, 8][h + 1]
    t = FXAttn.trace(f, nothing)
    @test same_as_called(f) && length(t.tensors) == 5
    @test :score_ in keys(t.params) && :q_ in keys(t.tensors) && :w_2 in keys(t.tensors)
end
# A function that holds itself, and one that holds more floats than a program has params.
let f = nothing
    f = (score, b, h, q, k) -> score + (f === nothing ? 0 : 1)
    @test same_as_called(f)
    many = ntuple(float, 70)
    g = (score, b, h, q, k) -> score + sum(many)
    @test same_as_called(g)
end
# Vectors of arrays and of functions, views and columns of captured arrays, elements of small arrays that it makes.
let ws = [[1.0, 2.0], [3.0, 4.0]], fs = Any[s -> 2s, sin], w = [1.0 2 3; 4 5 6], table = Dict(:a => 2.5)
    f = (score, b, h, q, k) -> ws[1][h + 1] * ws[2][1] + sum(g(score) for g in fs) + view(w, :, 2)[h + 1] + w[1, :][q + 1 - q] +
        transpose(w)[h + 1, b + 1] + w'[2, h + 1] + [2 * x for x in w][h + 1, b + 1] + view(w, 2:-1:1, 3)[h + 1] + table[:a]
    t = FXAttn.trace(f, nothing)
    @test same_as_called(f) && t.exact && length(t.tensors) == 3 && t.constants == [(:score, :table)]
    w2 = ones(2, 100)
    @test !FXAttn.trace((score, b, h, q, k) -> [2 * x for x in w2][h + 1, b + 1], nothing).exact
end
# Gradients of numbers in fields that cannot hold a traced one are not there, instead of 0; so are those of the whole where one
# field prevents it. Views by a vector of indices have whole gradients.
struct Narrow{T <: AbstractFloat}
    cap::T
end
(f::Narrow)(score, b, h, q, k) = f.cap * tanh(score / f.cap)
struct Holds
    inner::SoftCap{Float64}
end
(f::Holds)(score, place...) = f.inner(score, place...)
struct Mixed{T}
    cap::T
    w::Vector{T}
end
(f::Mixed)(score, b, h, q, k) = f.cap * score + f.w[h + 1]
let (q, k, v) = inputs(), w = randn(3), shuffled = view(w, [3, 1, 2])
    for f in (Narrow(2.0), Holds(SoftCap(2.0)), Mixed(2.0, w))
        grads = attention_pullback(f, q, k, v)[2](q)
        @test grads.params[:cap] === nothing
        @test FXAttn.captured_tree(grads, :score)[f isa Holds ? :inner : :cap] isa Union{FXAttn.Constant, Dict}
    end
    f(w) = (score, b, h, q, k) -> score * w[1] + w[h + 1] * k
    grads, same = (attention_pullback(f(x), q, k, v)[2](q) for x in (shuffled, collect(shuffled)))
    @test FXAttn.of(grads, shuffled) == same.tensors[:w]
    large = fill(typemax(UInt64), 5)
    @test attention((score, b, h, q, k) -> score * (large[k + 1] > 7), q, k, v) == attention(q, k, v)
end
