# SPDX-License-Identifier: Apache-2.0
# Turns score_mod and mask_mod (nothing, a function, a Program, text) into one program, with the arrays and numbers of a
# run in the program's order.

"""A program (nothing: the identity) with its arrays and numbers in the program's order. `tensors` are pairs (array,
Memory)."""
struct Source
    program::Union{Program, Nothing}
    names::Vector{Symbol}
    tensors::Vector{Any}
    param_names::Vector{Symbol}
    param_types::Vector{Symbol}
    params::Vector{Float64}
    paths::Dict{Symbol, Tuple}
    constants::Vector{Tuple}
    exact::Bool
    why::String
end

const STATEMENT = r"^\s*(?:param|tensor|let|fn)\b|^\s*(?:score|mask|dscore)\s*=(?!=)"m

"""Returns the fxa_text_kind of a text: statements, or an expression for `target`, like those of the command's --score
and --mask."""
function text_kind(text::AbstractString, target)
    bare = replace(text, r"#[^\n]*" => "")
    (isempty(strip(bare)) || occursin(STATEMENT, bare)) && return LibFXA.FXA_TEXT_STATEMENTS
    return target == "mask" ? LibFXA.FXA_TEXT_MASK : target == "score" ? LibFXA.FXA_TEXT_SCORE : LibFXA.FXA_TEXT_DSCORE
end

is_text(x) = x isa Union{AbstractString, Program}

"""Returns the Source of score and mask. The arrays and numbers of a function are those that the function captures; the
arrays and numbers of a Program or a text are passed by name in `tensors` and `params`. `bounds`: (lo, hi) of b, h, q
and k."""
function resolve(@nospecialize(score), @nospecialize(mask), @nospecialize(tensors), @nospecialize(params), bounds)
    score === nothing && mask === nothing && return named_source(nothing, tensors, params, "")
    functions = [x for x in (score, mask) if x !== nothing && !is_text(x)]
    for x in functions
        x isa Function || !isempty(methods(x)) ||
            refuse("score_mod or mask_mod is of type $(typeof(x)); a function, a Program or its text is accepted")
    end
    if isempty(functions)
        program = text_program([(score, "score"), (mask, "mask")], :score, tensors, params)
        return named_source(program, tensors, params, "")
    end
    if is_text(score) || is_text(mask)
        refuse("score_mod and mask_mod are a function and a program; give both as functions, or none")
    end
    isempty(pairs_of(tensors, "tensors")) && isempty(pairs_of(params, "params")) ||
        refuse("tensors and params are given beside a function, which brings what it uses by itself; they are for a ",
               "Program or text")
    found = trace(score, mask, bounds)
    names = [t.name for t in FXAttn.tensors(found.program)]
    numbers = FXAttn.params(found.program)
    return Source(found.program, names, [found.tensors[name] for name in names], [p.name for p in numbers],
                  [p.type for p in numbers], [found.params[p.name] for p in numbers], found.paths, found.constants,
                  found.exact, found.why)
end

function pairs_of(@nospecialize(named), what)
    named === nothing && return Pair{Symbol, Any}[]
    named isa NamedTuple && return Pair{Symbol, Any}[name => getfield(named, name) for name in keys(named)]
    named isa AbstractDict && return Pair{Symbol, Any}[Symbol(name) => value for (name, value) in named]
    refuse("$what is of type $(typeof(named)); a NamedTuple or a Dict by name is accepted")
end

function text_program(parts, kind, tensors, params)
    given = [(source, target) for (source, target) in parts if source !== nothing]
    length(given) == 1 && given[1][1] isa Program && return given[1][1]
    texts = [source isa Program ? text(source) : String(source) for (source, _) in given]
    kinds = UInt32[source isa Program ? LibFXA.FXA_TEXT_STATEMENTS : text_kind(source, target)
                   for (source, target) in given]
    type_name(value) = value isa Integer && !(value isa Bool) ? :int : :float
    types = [name => type_name(value) for (name, value) in pairs_of(params, "params")]
    captures = [name => described(value, name) for (name, value) in pairs_of(tensors, "tensors")]
    return parse_texts(texts, kind; kinds = kinds, params = types, tensors = captures)
end

function described(value, name)
    value isa AbstractArray || refuse("tensors has $name of type $(typeof(value)); an array is accepted")
    code = eltype(value) <: Unsigned && dtype(eltype(value)) == 0 ? LibFXA.FXA_I64 : dtype(eltype(value))
    return code, ndims(value)
end

"""Returns the Source of a program whose arrays and numbers are passed by name."""
function named_source(program, tensors, params, prefix)
    given, numbers = Dict(pairs_of(tensors, prefix * "tensors")), Dict(pairs_of(params, prefix * "params"))
    wanted = program === nothing ? [] : FXAttn.tensors(program)
    scalars = program === nothing ? [] : FXAttn.params(program)
    names, param_names = Symbol[t.name for t in wanted], Symbol[p.name for p in scalars]
    check_names(prefix * "tensors", names, keys(given), names)
    check_names(prefix * "params", param_names, keys(numbers), Symbol[p.name for p in scalars if p.default === nothing])
    arrays = Any[]
    for t in wanted
        found = readable_memory(given[t.name], "tensors.$(t.name)")
        (found.dtype, length(found.size)) == (t.code, t.rank) ||
            refuse("tensors.$(t.name) has elements of type $(eltype(given[t.name])) and $(length(found.size)) ",
                   "dimensions; the program declares it as $(t.dtype)[$(t.rank)]")
        push!(arrays, (given[t.name], found))
    end
    values = Float64[number(get(numbers, p.name, p.default), p, prefix) for p in scalars]
    types = Symbol[p.type for p in scalars]
    return Source(program, names, arrays, param_names, types, values, Dict(), Tuple[], true, "")
end

function number(value, p, prefix)
    value isa Real || refuse("$(prefix)params.$(p.name) is of type $(typeof(value)); a number is accepted")
    p.type === :int && !isinteger(value) &&
        refuse("$(prefix)params.$(p.name) is $value; the program declares it as an int")
    return Float64(value)
end

function check_names(what, known, given, needed)
    unknown = sort!([String(name) for name in given if !(name in known)])
    isempty(unknown) || refuse("$what has $(join(unknown, ", ")), which the program does not use; it uses ",
        isempty(known) ? "none" : join(known, ", "))
    missing_names = [name for name in needed if !(name in given)]
    isempty(missing_names) || refuse("$what lacks $(join(missing_names, ", ")), which the program uses")
    return nothing
end
