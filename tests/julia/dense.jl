# SPDX-License-Identifier: Apache-2.0
# Attention written out, in Float64, with a Julia function called by numbers: what a traced one must be equal to.

"""(o, lse) of q, k, v (d, h, s, b); `f(score, b, h, q, k)` and `m(b, h, q, k)` as they are given to attention."""
dense(f, q, k, v; m = (b, h, q, k) -> true, scale = 1 / sqrt(max(size(q, 1), 1)), sink = nothing) = written_out(f, m, q, k, v, scale, sink)
# Compiled once, not for every function.
function written_out(@nospecialize(f), @nospecialize(m), @nospecialize(q), @nospecialize(k), @nospecialize(v), scale, @nospecialize(sink))
    (d, hq, sq, nb), (dv, hkv, sk, _) = size(q), size(v)
    o, lse = zeros(dv, hq, sq, nb), fill(-Inf, hq, sq, nb)
    for b in 1:nb, h in 1:hq, i in 1:sq
        g = cld(h, hq ÷ hkv)
        kept = [j for j in 1:sk if m(b - 1, h - 1, i - 1, j - 1)]
        scores = [Float64(f(scale * sum(Float64[q[x, h, i, b] * Float64(k[x, g, j, b]) for x in 1:d]), b - 1, h - 1, i - 1, j - 1))
                  for j in kept]
        all_scores = sink === nothing ? scores : [scores; Float64(sink === :zero ? 0 : sink[h])]
        isempty(all_scores) && continue
        top = maximum(all_scores)
        top == -Inf && continue
        total = sum(exp.(all_scores .- top))
        lse[h, i, b] = top + log(total)
        for (j, s) in zip(kept, scores)
            o[:, h, i, b] .+= exp(s - top) / total .* Float64.(v[:, g, j, b])
        end
    end
    return o, lse
end
dense(q, k, v; more...) = dense((score, b, h, q, k) -> score, q, k, v; more...)

inputs(T = Float64; d = 4, h = 2, hkv = h, sq = 5, sk = sq, b = 2, dv = d) =
    (randn(d, h, sq, b), randn(d, hkv, sk, b), randn(dv, hkv, sk, b)) .|> x -> T.(x)

# Roundings of the arithmetic and of the storage, with room for the length of the sums.
tolerance(T) = T === Float64 ? 1e-12 : T === Float32 ? 1e-5 : 5e-3
near(x, y, T = Float64) = size(x) == size(y) && (isempty(x) ||
    maximum(abs.(Float64.(x) .- Float64.(y))) <= tolerance(T) * (1 + maximum(abs.(Float64.(y)))))

"""The value and the mask of a traced program at one pair, as the library evaluates it."""
function evaluate(t, score, b, h, q, k)
    at = Float64[score, b, h, q, k, 64, 64, 0, 8]
    params = Float64[t.params[p.name] for p in FXAttn.params(t.program)]
    memories = [t.tensors[x.name][2] for x in FXAttn.tensors(t.program)]
    views = LibFXA.fxa_view[LibFXA.fxa_view(m.address, m.dtype, length(m.size), FXAttn.padded(5, m.size),
                                            FXAttn.padded(5, m.stride)) for m in memories]
    value, mask = Ref{Cdouble}(0), Ref{Cint}(0)
    GC.@preserve t views memories FXAttn.call(LibFXA.fxa_program_eval, FXAttn.handle_of(t.program), at, params, views, value, mask)
    return value[], mask[] != 0
end

"""The message of the error that f throws, of the type given."""
function message(f, kind = ArgumentError)
    try
        f()
    catch e
        e isa kind || rethrow()
        return sprint(showerror, e)
    end
    return "nothing was thrown"
end
