# SPDX-License-Identifier: Apache-2.0
# Gradients against finite differences of attention written out in Float64, against the reference engine, and in place.

"""Central differences of the sum of o .* dout + lse .* dlse by each element of x, which `run` reads."""
function differences(run, x, dout, dlse; step = 1e-5)
    total() = (r = run(); sum(r[1] .* dout) + sum(r[2] .* dlse))
    map(CartesianIndices(x)) do i
        old = x[i]
        x[i] = old + step
        up = total()
        x[i] = old - step
        down = total()
        x[i] = old
        (up - down) / 2step
    end
end
close(x, y) = maximum(abs.(x .- y)) < 1e-7 * (1 + maximum(abs.(y))) # second order in the step, and roundings by it

let (q, k, v) = inputs(; d = 2, h = 2, hkv = 1, sq = 3, sk = 4, dv = 3, b = 2), slopes = [0.5, -0.25], cap = [2.0], offset = Ref(0.3)
    f = (score, b, h, q, k) -> cap[1] * tanh((score - slopes[h + 1] * (q - k)) / cap[1]) + offset[] * k
    m = (b, h, q, k) -> q + 1 >= k
    sink = randn(2)
    dout, dlse = randn(3, 2, 3, 2), randn(2, 3, 2)
    run() = dense(f, q, k, v; m = m, sink = sink)
    (o, lse), back = attention_pullback(f, q, k, v; mask_mod = m, sinks = sink, return_lse = true)
    @test near(o, run()[1]) && near(lse, run()[2])
    grads = back(dout, dlse)
    for (found, x) in ((grads.q, q), (grads.k, k), (grads.v, v), (grads.sinks, sink), (FXAttn.of(grads, slopes), slopes),
                       (FXAttn.of(grads, cap), cap))
        @test close(found, differences(run, x, dout, dlse))
    end
    at = fill(offset[])
    by_offset = differences(() -> (offset[] = at[]; run()), at, dout, dlse)
    offset[] = at[]
    @test close([grads.params[:offset]], by_offset)
    dq, dk, dv = grads
    @test dq === grads.q && dv === grads[3] && length(grads) == 3

    # The passes apart, with the same bits; the reference engine; in place, also by parts and added up.
    options = (score_mod = f, mask_mod = m, sinks = sink)
    o, lse = attention(q, k, v; return_lse = true, options...)
    again = attention_backward(dout, o, lse, q, k, v; dlse = dlse, options...)
    @test (again.q, again.k, again.v, again.sinks) == (grads.q, grads.k, grads.v, grads.sinks) && again.params == grads.params
    ref = attention_backward(dout, o, lse, q, k, v; dlse = dlse, engine = "ref", options...)
    @test near(ref.q, grads.q) && near(FXAttn.of(ref, slopes), FXAttn.of(grads, slopes)) && isapprox(ref.params[:offset], grads.params[:offset])
    dq, dk, dv, dsink, dslopes = similar(q), similar(k), similar(v), similar(sink), similar(slopes)
    placed = attention_backward!(dq, dk, dv, dout, o, lse, q, k, v; dlse = dlse, dsinks = dsink, dtensors = (slopes = dslopes,), options...)
    @test (dq, dk, dv, dsink, dslopes) == (grads.q, grads.k, grads.v, grads.sinks, FXAttn.of(grads, slopes))
    @test placed.q === dq && placed.tensors[:slopes] === dslopes && placed.tensors[:cap] == FXAttn.of(grads, cap)
    attention_backward!(dq, nothing, dv, dout, o, lse, q, k, v; dlse = dlse, accumulate = true, options...)
    @test near(dq, 2 .* grads.q) && near(dv, 2 .* grads.v) && dk == grads.k
    some = attention_backward(dout, o, lse, q, k, v; dlse = dlse, wrt = (:v,), options...)
    @test some.q === nothing && some.v == grads.v && some.tensors[:slopes] === nothing && some.params[:offset] === nothing
end
# One batch entry of K and V for all: gradients are sums.
let (q, k, v) = inputs(; b = 3, sq = 3)
    k1, v1, dout = k[:, :, :, 1:1], v[:, :, :, 1:1], randn(size(q)...)
    grads = attention_pullback(q, k1, v1)[2](dout)
    whole = attention_pullback(q, repeat(k1, 1, 1, 1, 3), repeat(v1, 1, 1, 1, 3))[2](dout)
    @test near(grads.k, sum(whole.k; dims = 4)) && near(grads.v, sum(whole.v; dims = 4)) && grads.q == whole.q
end
# Float32 and Float16, packed sequences, a backward of one's own.
let
    for T in (Float32, Float16)
        q, k, v = inputs(T)
        dout = T.(randn(size(q)...))
        bias = T.(randn(5, 5))
        f = (score, b, h, q, k) -> score + bias[q + 1, k + 1]
        grads = attention_pullback(f, q, k, v)[2](dout)
        wide = attention_pullback(Float64.(q), Float64.(k), Float64.(v); score_mod = let w = Float64.(bias); (s, b, h, q, k) -> s + w[q + 1, k + 1] end)[2](Float64.(dout))
        @test near(grads.q, wide.q, T) && near(FXAttn.of(grads, bias), wide.tensors[:w], T) && eltype(FXAttn.of(grads, bias)) === T
    end
    q, k, v = map(x -> x[:, :, :, 1], inputs(; sq = 6, b = 1))
    dout = randn(size(q)...)
    grads = attention_pullback(q, k, v; cu_q = [0, 4, 5], cu_k = [0, 4, 5])[2](dout)
    alone = attention_pullback(q[:, :, 1:4], k[:, :, 1:4], v[:, :, 1:4])[2](dout[:, :, 1:4])
    @test near(grads.q[:, :, 1:4], alone.q) && all(iszero, grads.k[:, :, 6])
    twice = attention_pullback(q, k, v; score_mod = "2 * score", score_mod_bprop = "dscore = c * dscore", bprop_params = (c = 4.0,))[2](dout)
    @test near(twice.q, 2 .* attention_pullback(q, k, v; score_mod = "2 * score")[2](dout).q)
end
# If a function needs a number while it is traced, gradients of its captured arrays do not exist, and the result states
# why.
let (q, k, v) = inputs(), cap = 2.0, w = [1.0, 2.0]
    f = (score, b, h, q, k) -> cap > 0 ? score * w[h + 1] : score
    grads = attention_pullback(f, q, k, v)[2](q)
    @test grads.tensors[:w] === nothing && occursin("boolean", grads.why)
    @test occursin("not there", message(() -> FXAttn.of(grads, w)))
end
# Where gradients are written that the library does not see as they are: of an array that is indexed by one value, and of k and v
# that serve all batch entries.
let (q, k, v) = inputs(), w = randn(4, 5), f = (score, b, h, q, k) -> score + w[q + k + 1]
    o, lse = attention(f, q, k, v; return_lse = true, lse_dtype = Float64)
    into(dw) = attention_backward!(nothing, nothing, nothing, q, o, lse, q, k, v; score_mod = f, dtensors = (w = dw,))
    dense_dw = zeros(4, 5)
    into(dense_dw)
    @test dense_dw == FXAttn.of(attention_backward(q, o, lse, q, k, v; score_mod = f), w)
    for dw in (PermutedDimsArray(zeros(5, 4), (2, 1)), view(zeros(9, 5), 2:2:9, :))
        @test occursin("dense", message(() -> into(dw))) && all(iszero, dw)
    end
    k1, v1 = k[:, :, :, 1:1], v[:, :, :, 1:1]
    o, lse = attention(q, k1, v1; return_lse = true, lse_dtype = Float64)
    same, k_before = zeros(size(k1)), copy(k1)
    for (dk, dv) in ((same, same), (k1, nothing), (nothing, view(q, :, :, :, 2:2)))
        @test occursin("overlaps", message(() -> attention_backward!(nothing, dk, dv, o, o, lse, q, k1, v1)))
    end
    @test all(iszero, same) && k1 == k_before
end
