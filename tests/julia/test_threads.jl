# SPDX-License-Identifier: Apache-2.0
# Eight threads that trace, plan and run while the collector runs again and again: finalizers only hang objects onto a
# list, and the next call destroys them. Results are those of one thread.
@test Threads.nthreads() == 8
let (q, k, v) = inputs(Float32), slopes = Float32[0.5, 0.25], failures = Threads.Atomic{Int}(0), rounds = 12
    soft(cap) = (score, b, h, q, k) -> cap * tanh((score - slopes[h + 1] * (q - k)) / cap)
    wanted = [attention(soft(Float64(i)), q, k, v; is_causal = true) for i in 1:8]
    grads = [attention_pullback(soft(Float64(i)), q, k, v; is_causal = true)[2](q).q for i in 1:8]
    Threads.@threads for i in 1:8
        for round in 1:rounds
            f = soft(Float64(i))
            ok = attention(f, q, k, v; is_causal = true) == wanted[i]
            ok &= attention_pullback(f, q, k, v; is_causal = true)[2](q).q == grads[i]
            p = plan(f, q, k, v; is_causal = true)
            ok &= run!(p, f, similar(q), q, k, v; is_causal = true) == wanted[i]
            # Texts of their own, so that plans are built, dropped and destroyed meanwhile.
            text = Program("score = score + $(i + 8round)")
            ok &= FXAttn.load_program(FXAttn.save(text)) == text
            attention(text, q, k, v)
            round % 4 == i % 4 && GC.gc(round % 8 == 0)
            round % 3 == 0 && i == 1 && FXAttn.cache_clear()
            ok || Threads.atomic_add!(failures, 1)
        end
    end
    @test failures[] == 0
end
# A dropped object is destroyed by the next call and not before.
function drop_programs(n)
    for i in 1:n
        Program("score = score * $i")
    end
end
drop_programs(50)
GC.gc()
GC.gc()
@test FXAttn.RELEASED[] != 0
Program("")
@test FXAttn.RELEASED[] == 0
function entries()
    n, entry = 0, FXAttn.RELEASED[]
    while entry != 0
        n += 1
        entry = unsafe_load(Ptr{UInt}(entry))
    end
    return n
end
# Finalizers of many threads at the same time lose none.
held = [Program("score = score - $i") for i in 1:400]
let before = entries()
    Threads.@threads for i in 1:400
        finalize(held[i])
    end
    @test entries() == before + 400
end
held = nothing
Program("")
@test entries() == 0
