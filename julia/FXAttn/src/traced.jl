# SPDX-License-Identifier: Apache-2.0
# The traced number: the argument of a user's function, and the result of every operation on it.
#
# A Traced is a typed value in a builder of the library, or a plain number that was not yet combined with such a value
# (from zero(x) or promotion). An int has bounds: if an index from 1 is proven to be at least 1, it is converted to an
# index from 0 without a guard. Operations have Julia's semantics, on floats of the problem's width and 32-bit ints, so
# a traced function gives the results that it returns for numbers.

"""State of a trace: the builder, the arrays that were captured and the floats that became params."""
mutable struct Trace
    builder::Ptr{Cvoid}
    names::IdDict{Any, String}               # array or Ref that the function holds -> name
    handles::Dict{Tuple{UInt, Bool}, Int32}  # (objectid of array, true if indexed as a vector) -> tensor of the builder
    tensors::Vector{Pair{String, Any}}       # name => array, of the builder's tensors
    params::Vector{Pair{String, Float64}}
    paths::Dict{String, Tuple}               # name -> path of the array or float in the function
    used::Set{String}
    constants::Vector{Tuple}                 # paths of floats that could not become params
    lifted::Dict{Int32, Tuple}               # builder's value of a param -> path of its float
end

"""Returns the builder of a trace. Throws if the trace has ended and its builder is freed."""
live(trace::Trace) = trace.builder != C_NULL ? trace.builder :
    refuse("a value of a traced function is used after its trace; compute it there again")

struct Traced <: Real
    trace::Union{Trace, Nothing}  # nothing: a plain number
    value::Int32
    type::Int32
    lo::Int64
    hi::Int64
    number::Float64
    base::Int32   # an int is base + offset modulo 2^32, so i + 1 - 1 simplifies to i
    offset::Int64
end

const FLOAT, INT, BOOL = Int32(LibFXA.FXA_FLOAT), Int32(LibFXA.FXA_INT), Int32(LibFXA.FXA_BOOL)
const LOWEST, HIGHEST = Int64(typemin(Int32)), Int64(typemax(Int32))

Traced(x::Traced) = x
Traced(x::Bool) = Traced(nothing, 0, BOOL, x, x, x, 0, 0)
Traced(x::Integer) = Traced(nothing, 0, INT, clamp(x, LOWEST, HIGHEST), clamp(x, LOWEST, HIGHEST), Float64(x), 0, 0)
Traced(x::Real) = Traced(nothing, 0, FLOAT, LOWEST, HIGHEST, Float64(x), 0, 0)
Base.promote_rule(::Type{Traced}, ::Type{<:Real}) = Traced
Base.promote_rule(::Type{Bool}, ::Type{Traced}) = Traced

"""Returns the number if x is a Traced that holds a plain number, else x."""
plain(x::Real) = x
function plain(x::Traced)
    x.trace === nothing || return x
    return x.type == FLOAT ? x.number : x.type == BOOL ? x.number != 0 : Int64(x.number)
end

trace_of() = nothing
trace_of(x, rest...) = trace_of(rest...)
trace_of(x::Traced, rest...) = x.trace === nothing ? trace_of(rest...) : x.trace

type_of(x::Traced) = x.type
type_of(::Bool) = BOOL
type_of(::Integer) = INT
type_of(::Real) = FLOAT
low(x::Traced) = x.lo
low(x::Real) = x isa Integer ? Int64(clamp(x, LOWEST, HIGHEST)) : LOWEST
high(x::Traced) = x.hi
high(x::Real) = x isa Integer ? Int64(clamp(x, LOWEST, HIGHEST)) : HIGHEST

"""Returns the builder's value of an operand. `float`: true if another operand is a float; then an int beyond 32 bits is
converted to a float."""
function value_of(trace::Trace, x::Traced, float = false)
    x.trace === nothing && return value_of(trace, plain(x), float)
    x.trace === trace || refuse("a value of one traced function is used in another; compute it there again")
    return x.value
end
value_of(trace::Trace, x::Bool, float = false) = LibFXA.fxa_builder_bool(live(trace), x)
function value_of(trace::Trace, x::Integer, float = false)
    LOWEST <= x <= HIGHEST && return LibFXA.fxa_builder_int(live(trace), x)
    float && return LibFXA.fxa_builder_float(live(trace), Float64(x))
    refuse("the integer $x meets an int of a traced function, which has 32 bits")
end
value_of(trace::Trace, x::Real, float = false) = LibFXA.fxa_builder_float(live(trace), Float64(x))

"""Returns a value of the builder as a Traced, with bounds lo and hi. Throws the builder's error if `value` is negative.
"""
function traced(trace::Trace, value::Int32, lo = LOWEST, hi = HIGHEST)
    if value < 0
        err = Ref{LibFXA.fxa_error}()
        LibFXA.fxa_builder_error(live(trace), err)
        throw(error_of(err))
    end
    type = Int32(LibFXA.fxa_builder_type(live(trace), value))
    lo < LOWEST || hi > HIGHEST ? (lo, hi) = (LOWEST, HIGHEST) : nothing # the value may wrap
    type == BOOL ? (lo, hi) = (0, 1) : nothing
    return Traced(trace, value, type, lo, hi, NaN, value, 0)
end

"""Returns x + n for an int x. Offsets are merged: (x + 1) + 2 becomes x + 3."""
function moved(x::Traced, n::Integer)
    trace = x.trace::Trace
    offset = x.offset + n
    by = LibFXA.fxa_builder_int(live(trace), offset % Int32)
    value = offset == 0 ? x.base : LibFXA.fxa_builder_op2(live(trace), LibFXA.FXA_OP_ADD, x.base, by)
    at = traced(trace, value, low(x) + n, high(x) + n)
    return Traced(trace, value, at.type, at.lo, at.hi, NaN, x.base, offset)
end
is_offset(x, n) = x isa Traced && x.type == INT && n isa Integer && !(n isa Bool) && LOWEST <= n <= HIGHEST

"""Adds an operation to the builder and returns its result, a Traced. At least one operand must be a value of a builder.
"""
function emit(op::Integer, operands::Real...; lo = LOWEST, hi = HIGHEST)
    trace = trace_of(operands...)::Trace
    float = any(x -> type_of(x) == FLOAT, operands)
    values = Int32[value_of(trace, x, float) for x in operands]
    return traced(trace, LibFXA.fxa_builder_op(live(trace), op, values, length(values)), lo, hi)
end

is_number(x::Traced) = x.trace === nothing
is_number(x::Real) = true

# Functions that need the value of a traced number throw an error that names the remedy.
Base.show(io::IO, x::Traced) =
    is_number(x) ? print(io, plain(x)) : print(io, "<traced ", TYPES[Int(x.type)], ">")
Base.hash(x::Traced, seed::UInt) =
    refuse("a traced value is no key of a Dict and in no Set: it is known when the program runs")

Base.zero(::Type{Traced}) = Traced(0)
Base.one(::Type{Traced}) = Traced(1)
Base.zero(x::Traced) = x.type == FLOAT ? Traced(0.0) : Traced(0)
Base.one(x::Traced) = x.type == FLOAT ? Traced(1.0) : Traced(1)
Base.oneunit(x::Traced) = one(x)
Base.isinteger(x::Traced) = x.type != FLOAT || x == floor(x)
Base.isreal(::Traced) = true
Base.real(x::Traced) = x

# ---- Loads -----------------------------------------------------------------------------------------------------------

"""Replaces an array that a function captured. Reading an element, also by a plain index, is a load of the program, so
the array has a gradient."""
struct TracedArray{T, N, A <: AbstractArray{T, N}} <: AbstractArray{Traced, N}
    trace::Trace
    parent::A
end
Base.size(A::TracedArray) = size(A.parent)
Base.axes(A::TracedArray) = axes(A.parent)
Base.IndexStyle(::Type{<:TracedArray}) = IndexCartesian()
Base.getindex(A::TracedArray, index::Integer...) = load(A.trace, A.parent, index)
Base.getindex(A::TracedArray{T, N}, index::Vararg{Int, N}) where {T, N} = load(A.trace, A.parent, index)

# An array that was not replaced by a TracedArray is captured if one of its indices is a traced value.
const PLAIN = Union{Integer, Colon, AbstractArray}
Base.getindex(A::AbstractArray, i::Traced, rest...) = load_any(A, (i, rest...))
Base.getindex(A::AbstractArray, i::PLAIN, j::Traced, rest...) = load_any(A, (i, j, rest...))
Base.getindex(A::AbstractArray, i::PLAIN, j::PLAIN, k::Traced, rest...) = load_any(A, (i, j, k, rest...))
Base.getindex(A::AbstractArray, i::PLAIN, j::PLAIN, k::PLAIN, l::Traced, rest...) = load_any(A, (i, j, k, l, rest...))
Base.getindex(A::AbstractArray, i::PLAIN, j::PLAIN, k::PLAIN, l::PLAIN, m::Traced, rest...) =
    load_any(A, (i, j, k, l, m, rest...))
Base.getindex(t::Tuple, i::Traced) = not_an_array(t)
Base.getindex(t::NamedTuple, i::Traced) = not_an_array(t)
not_an_array(t) = refuse("a $(nameof(typeof(t))) cannot be indexed by a traced value; make an Array of it")

load_any(A::TracedArray, index) = load(A.trace, A.parent, index)

# Views of TracedArrays, and arrays that a function made of traced values.
function load_any(A::SubArray{Traced}, index)
    length(index) == ndims(A) || refuse("a view of $(ndims(A)) dimensions is indexed by $(length(index)) values")
    inside, at = Any[], 0
    for i in parentindices(A)
        i isa Integer || (at += 1)
        push!(inside, i isa AbstractRange ? first(i) + (index[at] - 1) * step(i) : i isa Integer ? i : i[index[at]])
    end
    return load_any(parent(A), Tuple(inside))
end
load_any(A::Union{Adjoint{Traced, <:AbstractMatrix}, Transpose{Traced, <:AbstractMatrix}}, index::Tuple{Any, Any}) =
    load_any(parent(A), reverse(index))
function load_any(A::Array{Traced}, index)
    length(A) <= LibFXA.FXA_MAX_LOOP ||
        refuse("an array of $(length(A)) traced values is indexed by a traced value; at most $(LibFXA.FXA_MAX_LOOP) ",
               "are accepted")
    length(index) == 1 && (A = vec(A))
    length(index) == ndims(A) || refuse("an array of $(ndims(A)) dimensions is indexed by $(length(index)) values")
    found = zero(Traced)
    for place in CartesianIndices(A)
        found = select(reduce(&, [index[i] == place[i] for i in 1:ndims(A)]), A[place], found)
    end
    return found
end
function load_any(A, index)
    index = map(i -> i isa Traced ? plain(i) : i, index)
    trace = trace_of(index...)
    return trace === nothing ? A[index...] : load(trace, A, index)
end

function load(trace::Trace, @nospecialize(A::AbstractArray), index)
    index = map(i -> i isa Traced ? plain(i) : i, index)
    for i in index
        i isa Integer || i isa Traced && type_of(i) == INT ||
            refuse("an array is indexed by $(i isa Traced ? i : typeof(i)) beside traced values; integers, which give ",
                   "one element, are accepted")
    end
    isempty(index) && length(A) == 1 && (index = ntuple(i -> first(axes(A, i)), ndims(A)))
    whole = length(index) == ndims(A) || length(index) > ndims(A) && all(isequal(1), index[(ndims(A) + 1):end])
    as_vector = !whole && length(index) == 1
    whole || as_vector || refuse("an array of $(ndims(A)) dimensions is indexed by $(length(index)) values; ",
        "$(ndims(A)) or 1 are accepted")
    sizes = as_vector ? (length(A),) : size(A)
    firsts = as_vector ? (firstindex(A),) : map(first, axes(A))
    handle = tensor(trace, A, as_vector)
    places = Int32[value_of(trace, from_zero(trace, index[i], firsts[i], sizes[i], A)) for i in 1:length(sizes)]
    lo, hi = bounds_of(eltype(A))
    return traced(trace, LibFXA.fxa_builder_load(live(trace), handle, places, length(places)), lo, hi)
end

bounds_of(T) = T <: Integer && sizeof(T) < 4 ? (Int64(typemin(T)), Int64(typemax(T))) : (LOWEST, HIGHEST)

"""Returns the library's index, from 0, for an index of Julia. To the library a negative index counts from the end; in
Julia a negative index is out of bounds. Because of this difference, an index that may be negative is mapped to an index
beyond the end, whose load gives 0, or with bounds_check an error."""
function from_zero(trace, i, first, n, A)
    if i isa Integer
        0 <= i - first < n || throw(BoundsError(A, i))
        return i - first
    end
    at = i - first
    return low(at) >= 0 ? at : select(at < 0, HIGHEST, at)
end

"""Returns the builder's tensor of an array, declared at the first use of the array."""
function tensor(trace::Trace, @nospecialize(A::AbstractArray), as_vector::Bool)
    key = (objectid(A), as_vector && ndims(A) != 1)
    get!(trace.handles, key) do
        length(trace.tensors) < LibFXA.FXA_MAX_TENSORS ||
            refuse("the function captures more than $(LibFXA.FXA_MAX_TENSORS) arrays")
        found = readable_memory(A, "a captured array")
        if key[2]
            is_dense(found.size, found.stride) ||
                refuse("a captured array that is a view with gaps is indexed by one value; give one for each dimension")
            found = Memory(found.address, found.dtype, [length(A)], [1], found.device, found.keep)
        end
        given = get(trace.names, A, "t")
        name = unused_name(trace, given)
        haskey(trace.paths, given) && name != given && (trace.paths[name] = trace.paths[given])
        push!(trace.tensors, name => (A, found))
        LibFXA.fxa_builder_tensor(live(trace), name, found.dtype, length(found.size))
    end
end

"""Returns a unique name that the program language accepts, derived from a name of Julia."""
function unused_name(trace::Trace, name::AbstractString)
    plain = replace(String(name), r"[^A-Za-z0-9_]" => "_")
    plain = isempty(plain) || isdigit(plain[1]) ? "x" * plain : first(plain, 48)
    name in trace.used && plain == name || (plain in reserved_words() && (plain *= "_"))
    candidate, n = plain, 1
    while candidate in trace.used
        n += 1
        candidate = string(plain, "_", n)
    end
    push!(trace.used, candidate)
    return candidate
end

const words = Set{String}()
function reserved_words()
    lock(LOCK) do
        isempty(words) || return words
        union!(words, ["param", "tensor", "let", "fn", "mask", "true", "false", "inf", "nan", "pi", "grad", "sum",
                       "any", "all", "float", "int", "bool", "where", "pow"])
        union!(words, [unsafe_string(LibFXA.fxa_input_name(i)) for i in 0:(LibFXA.FXA_INPUT_COUNT - 1)])
        for i in 0:1000
            spelling = LibFXA.fxa_op_syntax(i)
            spelling.text == C_NULL && break
            push!(words, unsafe_string(Ptr{UInt8}(spelling.text)))
        end
        words
    end
end
