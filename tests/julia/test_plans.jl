# SPDX-License-Identifier: Apache-2.0
# Support with reasons, plans kept, saved and loaded, the cache's counters.
using Serialization
let (q, k, v) = inputs(Float32), slopes = Float32[0.5, 0.25]
    f = (score, b, h, q, k) -> score - slopes[h + 1] * (q - k)
    verdicts = support(f, q, k, v; is_causal = true)
    @test [x.engine for x in verdicts if x.supported] == ["cpu", "ref"]
    @test all(x -> x.supported || !isempty(x.reason), support(q, k, v; backward = true))
    asked = support(f, q, k, v; engine = "ref")
    @test any(x -> !x.supported, asked) && occursin("no: ", sprint(show, first(x for x in asked if !x.supported)))

    p = plan(f, q, k, v; is_causal = true)
    @test FXAttn.engine(p) == "cpu" && FXAttn.deterministic(p) && FXAttn.workspace(p) >= 0 && occursin("cpu", sprint(show, p))
    o = similar(q)
    @test run!(p, f, o, q, k, v; is_causal = true) == attention(f, q, k, v; is_causal = true)
    again = FXAttn.load_plan(FXAttn.save(p))
    @test FXAttn.key(again) == FXAttn.key(p)
    fill!(o, 0)
    @test run!(again, f, o, q, k, v; is_causal = true) == attention(f, q, k, v; is_causal = true)
    @test occursin("another plan", message(() -> run!(p, f, o, q, k, v)))
    @test FXAttn.key(plan(f, q, k, v; is_causal = true, backward = true)) != FXAttn.key(p)
    @test FXAttn.load_program(FXAttn.save(Program(f))) == Program(f)

    # Copies are the same object; through a file it is its bytes.
    @test deepcopy(p) === p && copy(Program(f)) == Program(f)
    io = IOBuffer()
    serialize(io, (Program(f), p))
    seekstart(io)
    program, other = deserialize(io)
    @test program == Program(f) && FXAttn.key(other) == FXAttn.key(p)

    # Another value of a captured number, and other arrays: the same plan.
    soft(cap, w) = (score, b, h, q, k) -> cap * tanh(score / cap) + w[h + 1]
    attention(soft(20.0, slopes), q, k, v)
    before = FXAttn.cache_stats()
    attention(soft(30.0, 2slopes), q, k, v)
    after = FXAttn.cache_stats()
    @test after.builds == before.builds && after.hits == before.hits + 1 && after.runs == before.runs + 1
    FXAttn.cache_clear()
    @test FXAttn.cache_stats().plans == 0
    attention(q, k, v)
    @test FXAttn.cache_stats().plans == 1
    FXAttn.set_num_threads(1)
    @test FXAttn.get_num_threads() == 1 && attention(f, q, k, v) isa Array
    FXAttn.set_num_threads(0)

    said = sprint(io -> explain(io, f, q, k, v; is_causal = true))
    @test all(words -> occursin(words, said), ("slopes", "causal", "derivative", "cpu: yes", "backward"))
    @test "soft cap" in FXAttn.properties(Program(soft(2.0, slopes))) || "additive bias" in FXAttn.properties(Program(f))
    @test occursin("grad", FXAttn.text(FXAttn.derivative(Program(f))))
end
# A plan with an LSE is the one of `attention` with it, in the type that it gives, or in the one that is asked for.
let (q, k, v) = Tuple(Float32.(x) for x in inputs())
    for (asked, T) in ((nothing, Float32), (Float64, Float64))
        o, lse = similar(q), zeros(T, 2, 5, 2)
        run!(plan(q, k, v; return_lse = true, lse_dtype = asked), o, q, k, v; lse = lse)
        @test (o, lse) == attention(q, k, v; return_lse = true, lse_dtype = asked)
    end
    @test occursin("lse_dtype", message(() -> plan(q, k, v; return_lse = true, lse_dtype = Float16)))
end
