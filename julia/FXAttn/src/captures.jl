# SPDX-License-Identifier: Apache-2.0
# Replaces the values that a function holds: its closure, fields of callable objects, and callables inside of these.
#
# A copy of the function is built before it is traced: params replace its floats and TracedArrays its arrays of floats,
# if the types of its fields allow it (closures, and fields whose type is a type parameter). So a new value of a float
# needs no new plan, and there are gradients of these floats and arrays. Ints and bools stay values, because loops and
# sizes depend on them. The caller's objects are not modified.

const DEEPEST = 8

"""Returns a copy of the function with the values that it holds replaced at every depth, or the function itself if there
is nothing to replace."""
lifted(trace::Trace, @nospecialize(f), path) = lift(trace, f, path, 0, IdDict{Any, Any}())

function lift(trace::Trace, @nospecialize(x), path, depth, done)
    depth > DEEPEST && return x
    haskey(done, x) && return done[x]
    if x isa AbstractFloat && is_float(typeof(x))
        return param(trace, path, x)
    elseif x isa AbstractArray
        isbitstype(eltype(x)) || return lift_items(trace, x, path, depth, done)
        name_array(trace, x, path)
        return is_float(eltype(x)) && !(x isa AbstractRange) ? TracedArray(trace, x) : x
    elseif x isa Core.Box
        return lift_box(trace, x, path, depth, done)
    elseif x isa Union{Tuple, NamedTuple}
        new = Any[lift(trace, getfield(x, i), (path..., fieldname(typeof(x), i)), depth + 1, done)
                  for i in 1:fieldcount(typeof(x))]
        all(i -> new[i] === getfield(x, i), 1:length(new)) && return x
        return x isa Tuple ? Tuple(new) : NamedTuple{fieldnames(typeof(x))}(Tuple(new))
    elseif may_rebuild(x)
        return rebuilt(trace, x, path, depth, done)
    elseif x isa Union{AbstractDict, Task, IO} # may hold anything: is not replaced
        push!(trace.constants, path)
    end
    return x
end

"""Returns a vector with its items (arrays, functions) replaced."""
function lift_items(trace, @nospecialize(x), path, depth, done)
    if !(x isa Array) || length(x) > LibFXA.FXA_MAX_TENSORS || !all(i -> isassigned(x, i), eachindex(x))
        push!(trace.constants, path)
        return x
    end
    done[x] = x
    new = Any[lift(trace, x[i], (path..., i), depth + 1, done) for i in eachindex(x)]
    all(i -> new[i] === x[i], eachindex(x)) && return x
    return done[x] = reshape(new, size(x))
end

# Functions, Refs and objects of user types are rebuilt; objects of Base are not, since their fields are internal.
may_rebuild(x::Base.RefValue) = true
may_rebuild(x::Function) = fieldcount(typeof(x)) > 0
may_rebuild(x::Union{Number, AbstractString, Symbol, Module, Type, AbstractDict, Task, IO, Ptr,
                    Owner, Traced}) = false
may_rebuild(x) = isstructtype(typeof(x)) && fieldcount(typeof(x)) > 0 &&
    !(parentmodule(typeof(x)) in (Base, Core, FXAttn))

function lift_box(trace, box, path, depth, done)
    isdefined(box, :contents) || return box
    old = box.contents
    done[box] = box # ends the recursion for a function that refers to itself
    new = lift(trace, old, (path..., :contents), depth + 1, done)
    new === old && return box
    return done[box] = Core.Box(new)
end

function rebuilt(trace, @nospecialize(x), path, depth, done)
    kind = typeof(x)
    n = fieldcount(kind)
    all(i -> isdefined(x, i), 1:n) || return x
    ismutable_object(x) && (done[x] = x)
    fields = Any[getfield(x, i) for i in 1:n]
    declared = Base.unwrap_unionall(kind.name.wrapper)
    parameters = Any[kind.parameters...]
    new = copy(fields)
    taken = Dict{Int, Any}() # new types of type parameters, by the parameter's index
    for i in 1:n
        at = findfirst(p -> p === declared.types[i], collect(Any, declared.parameters))
        inside = (path..., fieldname(kind, i))
        if at === nothing && fields[i] isa AbstractFloat && !(Traced <: fieldtype(kind, i))
            push!(trace.constants, inside)
            continue
        end
        at === nothing && !may_hold(fieldtype(kind, i)) && !(fields[i] isa AbstractArray) && continue
        value = lift(trace, fields[i], inside, depth + 1, done)
        value === fields[i] && continue
        if at === nothing
            value isa fieldtype(kind, i) ? (new[i] = value) : dropped(trace, value)
        elseif typeof(value) <: declared.parameters[at].ub && get(taken, at, typeof(value)) === typeof(value)
            new[i], taken[at] = value, typeof(value)
        else
            dropped(trace, value)
        end
    end
    for (at, type) in taken
        parameters[at] = type
    end
    type = isempty(taken) ? kind : applied(kind.name.wrapper, parameters)
    # Fields that share a type parameter have the same type: if one keeps its value, all of them do.
    if type === nothing || !all(i -> new[i] isa fieldtype(type, i), 1:n)
        foreach(value -> dropped(trace, value), new)
        return x
    end
    all(i -> new[i] === fields[i], 1:n) && return x
    twin = GC.@preserve new ccall(:jl_new_structv, Any, (Any, Ptr{Any}, UInt32), type, new, n)
    ismutable_object(x) && (done[x] = twin)
    return twin
end

"""Drops the params of a replacement that does not fit its field. The floats of dropped params stay constants and have
no gradient."""
function dropped(trace, @nospecialize(x), depth = 0)
    if x isa Traced
        haskey(trace.lifted, x.value) && push!(trace.constants, trace.lifted[x.value])
    elseif depth <= DEEPEST && x isa Array{Any}
        foreach(i -> isassigned(x, i) && dropped(trace, x[i], depth + 1), eachindex(x))
    elseif depth <= DEEPEST && (x isa Union{Tuple, NamedTuple, Core.Box} || !(x isa AbstractArray) && may_rebuild(x))
        foreach(i -> isdefined(x, i) && dropped(trace, getfield(x, i), depth + 1), 1:fieldcount(typeof(x)))
    end
    return nothing
end

"""Returns true if a field of this type may hold a traced value, directly (an abstract type) or inside (a struct)."""
may_hold(T::Type) = !isconcretetype(T) || T === Core.Box || T <: Function || isstructtype(T)
ismutable_object(x) = !isimmutable(x)

function applied(wrapper, parameters)
    try
        return wrapper{parameters...}
    catch
        return nothing
    end
end

"""Returns a float of the function as a param, a number that is passed at run time."""
function param(trace::Trace, path, @nospecialize(x))
    if length(trace.params) >= LibFXA.FXA_MAX_PARAMS
        push!(trace.constants, path)
        return x
    end
    name = unused_name(trace, path_name(path))
    trace.paths[name] = path
    push!(trace.params, name => Float64(x))
    found = traced(trace, LibFXA.fxa_builder_param(live(trace), name, LibFXA.FXA_FLOAT))
    trace.lifted[found.value] = path
    return found
end

function name_array(trace::Trace, @nospecialize(A), path)
    haskey(trace.names, A) && return
    name = path_name(path)
    trace.names[A] = name
    trace.paths[name] = path
    return
end

# Returns the name of the innermost named field: `w` of a closure, `cap` of an object in it.
function path_name(path)
    for field in reverse(path)
        # Julia names a variable that shadows another #7#name.
        field isa Symbol && !(field in (:contents, :x)) && return replace(String(field), r"^#\d+#" => "")
    end
    return "x"
end
