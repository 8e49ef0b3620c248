# SPDX-License-Identifier: Apache-2.0
# Traces a Julia function as a score program: the function is called once, on traced values, and never per score.

"""Result of a trace: the program, its arrays and numbers by name, and the path of each in the function. `exact` is true
if every captured float was traced, so that gradients are complete; else `why` has the reason."""
struct TracedProgram
    program::Program
    tensors::Dict{Symbol, Any}    # (array, Memory)
    params::Dict{Symbol, Float64}
    paths::Dict{Symbol, Tuple}
    constants::Vector{Tuple}
    exact::Bool
    why::String
end

const ANYWHERE = ((Int64(0), Int64(2)^30 - 1), (Int64(0), Int64(2)^30 - 1), (LOWEST, HIGHEST), (LOWEST, HIGHEST))

"""
    trace(score, mask, bounds) -> TracedProgram

Traces `score(score, b, h, q, k)` and `mask(b, h, q, k)`; either may be nothing. `bounds` are (lo, hi) of b, h, q and k.
By default the coordinates are unbounded, because a stored program may run where q and k are negative (bottom_right,
coordinates).
"""
function trace(@nospecialize(score), @nospecialize(mask), bounds = ANYWHERE)
    try
        return trace_once(score, mask, bounds, true, "")
    catch first_error
        # The function may need the value of a captured number while it is traced (`if cap > 0`, a method for Float64
        # only). Such a function is traced again with captured numbers as constants.
        first_error isa Union{InterruptException, OutOfMemoryError} && rethrow()
        why = sprint(showerror, first_error)
        return try
            trace_once(score, mask, bounds, false, why)
        catch e
            throw(explained(e, catch_backtrace(), score, mask))
        end
    end
end

function trace_once(@nospecialize(score), @nospecialize(mask), bounds, lift_captured, why)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    call(LibFXA.fxa_builder_create, context(), LibFXA.FXA_PROGRAM_SCORE, out)
    t = Trace(out[], IdDict{Any, String}(), Dict(), Pair{String, Any}[], Pair{String, Float64}[], Dict(), Set{String}(),
              Tuple[], Dict())
    try
        place_of = map(input_value(t), (LibFXA.FXA_INPUT_B, LibFXA.FXA_INPUT_H, LibFXA.FXA_INPUT_Q, LibFXA.FXA_INPUT_K),
                       bounds)
        score === nothing || trace_score(t, lift_captured, score, place_of)
        mask === nothing || trace_mask(t, lift_captured, mask, place_of)
        program = Ref{Ptr{Cvoid}}(C_NULL)
        call(LibFXA.fxa_builder_finish, out[], program)
        named(pairs) = Dict{Symbol, Any}(Symbol(name) => value for (name, value) in pairs)
        return TracedProgram(Program(program[]), named(t.tensors), Dict{Symbol, Float64}(named(t.params)),
                             Dict{Symbol, Tuple}(named(t.paths)), t.constants, lift_captured, why)
    finally
        t.builder = C_NULL
        LibFXA.fxa_builder_destroy(out[])
    end
end

input_value(t) = (input, bounds) -> traced(t, LibFXA.fxa_builder_input(t.builder, input), bounds...)

prepared(t, lift_captured, @nospecialize(f), root) = lift_captured ? lifted(t, f, (root,)) : named_only(t, f, root)
function named_only(t, @nospecialize(f), root)
    for i in 1:fieldcount(typeof(f))
        isdefined(f, i) && getfield(f, i) isa AbstractArray || continue
        name_array(t, getfield(f, i), (root, fieldname(typeof(f), i)))
    end
    return f
end

function trace_score(t, lift_captured, @nospecialize(f), place_of)
    score = traced(t, LibFXA.fxa_builder_input(t.builder, LibFXA.FXA_INPUT_SCORE))
    result = prepared(t, lift_captured, f, :score)(score, place_of...)
    result isa Real || refuse("the score function gives a value of type $(typeof(result)); a number is accepted")
    type_of(plain(result)) == BOOL && refuse("the score function gives a bool; a mask is given as `mask_mod`")
    LibFXA.fxa_builder_set_score(t.builder, value_of(t, plain(result), true))
    builder_check(t)
end

function trace_mask(t, lift_captured, @nospecialize(f), place_of)
    result = prepared(t, lift_captured, f, :mask)(place_of...)
    result isa Real && type_of(plain(result)) == BOOL ||
        refuse("the mask function gives $(result isa Traced ? result : typeof(result)); a bool is accepted")
    LibFXA.fxa_builder_set_mask(t.builder, value_of(t, plain(result)))
    builder_check(t)
end

function builder_check(t)
    err = Ref{LibFXA.fxa_error}()
    LibFXA.fxa_builder_error(t.builder, err) == LibFXA.FXA_OK || throw(error_of(err))
    return nothing
end

# ---- Errors of a user's function, with its line and the remedy -------------------------------------------------------

const CHOOSE = "use ifelse(c, x, y) instead of if, ?: and chained comparisons, and & | ! instead of && and ||"

function explained(e, trace, @nospecialize(score), @nospecialize(mask))
    of_mask = any(frame -> frame.func === :trace_mask, stacktrace(trace))
    words = if e isa TypeError && e.got isa Traced && e.expected === Bool
        "the truth of a traced value is not known while the function is traced; " * CHOOSE *
            (Base.ifelse isa Core.Builtin ? " (ifelse of FXAttn: `using FXAttn: ifelse`)" : "")
    elseif e isa StackOverflowError
        "a function that it calls is none of those that are traced, and ends in itself; a table of it, computed " *
            "before, may be indexed"
    elseif e isa MethodError && e.f === (of_mask ? mask : score)
        "it is called as $(of_mask ? "mask(b, h, q, k)" : "f(score, b, h, q, k)"), and has no method for that: " *
            sprint(showerror, e)
    elseif e isa MethodError && any(x -> x isa Traced || x isa TracedArray, arguments_of(e))
        "$(e.f) has no method for traced values: " * sprint(showerror, e)
    else
        return e
    end
    return ArgumentError("the $(of_mask ? "mask" : "score") function" * user_line(trace) * ": " * words)
end

arguments_of(e) = e.args isa Tuple ? e.args : ()

"""Returns " (file:line)" of the innermost frame in user code, "" if there is none."""
function user_line(trace)
    for frame in stacktrace(trace)
        file = String(frame.file)
        frame.from_c || startswith(file, ".") || startswith(file, @__DIR__) && continue
        (frame.from_c || startswith(file, ".") || occursin("boot.jl", file)) && continue
        return " ($(basename(file)):$(frame.line))"
    end
    return ""
end

Program(score, mask = nothing) = trace(score, mask).program
