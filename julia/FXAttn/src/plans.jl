# SPDX-License-Identifier: Apache-2.0
# Plans, their serialization, support reports of the engines, and counters of the plan cache.

"""
    plan([f,] q, k, v; backward = false, return_lse = false, lse_dtype, keywords...) -> Plan

Returns the plan of a call with these arrays, from the cache or newly compiled. `run!(plan, o, q, k, v; ...)` runs the
plan, with `lse` if return_lse is true. A plan is immutable and may be used by several threads at the same time.
"""
mutable struct Plan <: Owner
    handle::Ptr{Cvoid}
    entry::Ptr{UInt}
    function Plan(handle::Ptr{Cvoid})
        made = new(handle, release_entry(handle, 2))
        return finalizer(finish, made)
    end
end

"""Returns the Bound problem of the forward or backward pass, with outputs as `attention` allocates them."""
function described_problem(call::Call, backward::Bool, return_lse::Bool, lse_dtype = nothing)
    if !backward
        it = bound(call, false, return_lse ? LibFXA.FXA_RETURN_LSE : 0)
        bind(call, it, :o, LibFXA.FXA_SLOT_O, memory(similar(call.q.keep, out_size(call)), "the output"))
        return_lse || return it
        lse = similar(call.q.keep, FXAttn.lse_dtype(call, lse_dtype), rows_size(call))
        bind(call, it, :lse, LibFXA.FXA_SLOT_LSE, memory(lse, "lse"); rows = true)
        return it
    end
    it = bound(call, true, LibFXA.FXA_GRAD_Q | LibFXA.FXA_GRAD_K | LibFXA.FXA_GRAD_V)
    o = memory(similar(call.q.keep, out_size(call)), "the output")
    lse = memory(similar(call.q.keep, Float64, rows_size(call)), "lse")
    bind(call, it, :o, LibFXA.FXA_SLOT_O, o)
    bind(call, it, :dout, LibFXA.FXA_SLOT_DO, o)
    bind(call, it, :lse, LibFXA.FXA_SLOT_LSE, lse; rows = true)
    bind_gradients(call, it, new_targets(call, (:q, :k, :v)))
    return it
end

function plan(q::AbstractArray, k::AbstractArray, v::AbstractArray; backward::Bool = false, return_lse::Bool = false,
              lse_dtype = nothing, options...)
    call = Call(q, k, v, Options(options))
    it = described_problem(call, backward, return_lse, lse_dtype)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve call it FXAttn.call(LibFXA.fxa_plan_create, context(), struct_of(it.problem), out)
    return Plan(out[])
end
plan(score, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    plan(q, k, v; with_score(score, options)...)

engine(p::Plan) = GC.@preserve p unsafe_string(LibFXA.fxa_plan_engine(handle_of(p)))
"""Returns the engine's description of how it runs the plan: "avx512, 2 threads"."""
detail(p::Plan) = GC.@preserve p unsafe_string(LibFXA.fxa_plan_description(handle_of(p)))
workspace(p::Plan) = GC.@preserve p Int(LibFXA.fxa_plan_workspace(handle_of(p)))
deterministic(p::Plan) = GC.@preserve p LibFXA.fxa_plan_is_deterministic(handle_of(p)) != 0
function key(p::Plan)
    out = zeros(UInt8, 16)
    GC.@preserve p LibFXA.fxa_plan_key(handle_of(p), out)
    return bytes2hex(out)
end
Base.show(io::IO, p::Plan) = print(io, "Plan(", engine(p), ", ", detail(p), ", key ", first(key(p), 8), ")")

"""Returns a plan as bytes for `load_plan`, which loads them on the same kind of machine. On another kind of machine
`load_plan` throws, or with `rebuild` compiles the plan again. `load_plan` throws for damaged or hostile bytes."""
save(p::Plan) = GC.@preserve p two_calls(LibFXA.fxa_plan_save, handle_of(p))
function load_plan(bytes::AbstractVector{UInt8}; rebuild::Bool = false)
    data, out = Vector{UInt8}(bytes), Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve data call(LibFXA.fxa_plan_load_flags, context(), data, length(data),
                           rebuild ? LibFXA.FXA_LOAD_REBUILD : 0, out)
    return Plan(out[])
end

Serialization.deserialize(s::AbstractSerializer, ::Type{Plan}) = load_plan(deserialize(s))

"""
    run!(plan, [f,] o, q, k, v; lse = nothing, keywords...)

Runs a forward plan of the host. Throws an ArgumentError if the arrays or keywords have another program, size, stride or
flag than those that the plan was made for. Returns `o`.
"""
function run!(p::Plan, o::AbstractArray, q::AbstractArray, k::AbstractArray, v::AbstractArray; lse = nothing,
              options...)
    call = Call(q, k, v, Options(options))
    it = bound(call, false, lse === nothing ? 0 : LibFXA.FXA_RETURN_LSE)
    bind(call, it, :o, LibFXA.FXA_SLOT_O, check_array(call, o, "the output", out_size(call)))
    bind_rows(call, it, :lse, LibFXA.FXA_SLOT_LSE, lse)
    it.args.slot = Tuple(it.slots)
    GC.@preserve p call it begin
        # The plan of a call with the given arrays must have the key of the given plan.
        out = Ref{Ptr{Cvoid}}(C_NULL)
        FXAttn.call(LibFXA.fxa_plan_create, context(), struct_of(it.problem), out)
        asked = Plan(out[])
        key(asked) == key(p) || refuse(
            "the arrays and keywords ask for another plan ($(asked)) than this one ($(p)); run! takes the function " *
            "and keywords of `plan` again, whose captured arrays have the same names")
        bytes = workspace(p)
        space = zeros(UInt8, bytes + LibFXA.FXA_WORKSPACE_ALIGN)
        GC.@preserve space begin
            at = UInt(pointer(space))
            it.args.workspace = Ptr{Cvoid}(at + mod(-at, LibFXA.FXA_WORKSPACE_ALIGN))
            it.args.workspace_size = bytes
            FXAttn.call(LibFXA.fxa_plan_run, handle_of(p), struct_of(it.args))
        end
    end
    return o
end
run!(p::Plan, score, o::AbstractArray, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    run!(p, o, q, k, v; with_score(score, options)...)

"""An engine's report on a call: whether it supports the call, and the reason if it does not."""
struct Verdict
    engine::String
    supported::Bool
    deterministic::Bool
    workspace::Int
    reason::String
    seconds::Float64 # estimate of a run; 0 = unknown
end
Base.show(io::IO, v::Verdict) = print(io, v.engine, v.supported ? ": yes" : ": no: ", v.reason)

"""
    support([f,] q, k, v; backward = false, keywords...) -> Vector{Verdict}

Returns the report of each engine on the call, in order of preference. Runs nothing.
"""
function support(q::AbstractArray, k::AbstractArray, v::AbstractArray; backward::Bool = false, return_lse::Bool = false,
                 options...)
    call = Call(q, k, v, Options(options))
    it = described_problem(call, backward, return_lse)
    reports, count = Vector{LibFXA.fxa_support}(undef, 16), Ref{Csize_t}(16)
    GC.@preserve call it reports FXAttn.call(LibFXA.fxa_support_query, context(), struct_of(it.problem), reports, count)
    return [Verdict(unsafe_string(Ptr{UInt8}(r.engine)), r.supported != 0, r.deterministic != 0, Int(r.workspace),
                    chars_to_string(r.reason), r.seconds) for r in reports[1:min(count[], 16)]]
end
support(score, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    support(q, k, v; with_score(score, options)...)

"""
    explain([io,] [f,] q, k, v; keywords...)

Prints the program that a call runs, its derivative, its properties, and the report of each engine on both passes, with
the reason of each refusal.
"""
function explain(io::IO, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...)
    call = Call(q, k, v, Options(options))
    it = described_problem(call, false, true)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve call it FXAttn.call(LibFXA.fxa_problem_program, context(), struct_of(it.problem), out)
    program = Program(out[])
    println(io, "program ", program_hash(program), "\n", text(program), "\nderivative\n", text(derivative(program)))
    println(io, "\nproperties: ", join(properties(program), ", "))
    for backward in (false, true)
        println(io, backward ? "backward" : "forward")
        foreach(verdict -> println(io, "  ", verdict), support(q, k, v; backward = backward, options...))
    end
end
explain(io::IO, score, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    explain(io, q, k, v; with_score(score, options)...)
explain(q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) = explain(stdout, q, k, v; options...)
explain(score, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    explain(stdout, q, k, v; with_score(score, options)...)

# ---- The plan cache --------------------------------------------------------------------------------------------------

const STATISTICS = Tuple(name for name in fieldnames(LibFXA.fxa_cache_stats) if name !== :reserved)

"""Returns the counters of all plan caches of this process, summed. hits, misses, builds, refusals, evictions, runs,
queries and query_hits count from the start of the process; plans and bytes are held now, at most max_plans and
max_bytes."""
function cache_stats()
    context()
    total = zeros(Int, length(STATISTICS))
    for handle in lock(() -> collect(values(contexts)), LOCK)
        out = Ref{LibFXA.fxa_cache_stats}()
        LibFXA.fxa_cache_get_stats(handle, out)
        total .+= [Int(getfield(out[], name)) for name in STATISTICS]
    end
    return NamedTuple{STATISTICS}(Tuple(total))
end

"""Sets the maximum number of plans and of bytes of each plan cache of this process, and evicts plans beyond. With 0 the
caches hold no plans."""
function cache_limit(max_plans::Integer, max_bytes::Integer)
    context()
    for handle in lock(() -> collect(values(contexts)), LOCK)
        LibFXA.fxa_cache_limit(handle, max_plans, max_bytes)
    end
end

"""Empties the plan caches of this process; plans that are in use stay valid."""
cache_clear() = foreach(LibFXA.fxa_cache_clear, lock(() -> collect(values(contexts)), LOCK))
