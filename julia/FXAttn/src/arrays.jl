# SPDX-License-Identifier: Apache-2.0
# Describes arrays to the library: address, storage type, sizes and strides. Arrays with strides in memory are not
# copied. Arrays without strides (ranges, BitArray, sparse arrays) are copied if they are only read (captures), else
# refused.

# Returns the storage type (fxa_dtype) of an element type; 0 if there is none. bf16 is any 16-bit primitive type that is
# called BFloat16.
dtype(::Type{Float64}) = LibFXA.FXA_F64
dtype(::Type{Float32}) = LibFXA.FXA_F32
dtype(::Type{Float16}) = LibFXA.FXA_F16
dtype(::Type{Int64}) = LibFXA.FXA_I64
dtype(::Type{Int32}) = LibFXA.FXA_I32
dtype(::Type{Int16}) = LibFXA.FXA_I16
dtype(::Type{Int8}) = LibFXA.FXA_I8
dtype(::Type{UInt8}) = LibFXA.FXA_U8
dtype(::Type{Bool}) = LibFXA.FXA_B8
dtype(::Type{T}) where {T} =
    isprimitivetype(T) && sizeof(T) == 2 && nameof(T) === :BFloat16 ? LibFXA.FXA_BF16 : LibFXA.FXA_DTYPE_NONE

is_float(T::Type) = isconcretetype(T) && dtype(T) in (LibFXA.FXA_F64, LibFXA.FXA_F32, LibFXA.FXA_F16, LibFXA.FXA_BF16)
is_wide(T::Type) = T === Float64
row_type(T::Type) = is_wide(T) ? Float64 : Float32

"""
    place(array) -> (address, strides) or nothing

Returns the address of an array and its strides in elements; nothing if it has no strides in memory. A package may add a
method for its own array type; if the arrays are on a device, it also adds a method of `device`.
"""
place(::AbstractArray) = nothing
place(A::Array{T}) where {T} = isbitstype(T) ? (Ptr{Cvoid}(pointer(A)), dense_strides(size(A))) : nothing

"""Returns the device of an array's memory: (value of fxa_device, ordinal)."""
device(A::AbstractArray) = parent(A) === A ? (LibFXA.FXA_HOST, 0) : device(parent(A))

"""Returns the array that owns the memory of a view."""
root(A::AbstractArray) = parent(A) === A ? A : root(parent(A))

function dense_strides(sizes)
    strides = Vector{Int}(undef, length(sizes))
    step = 1
    for (i, n) in enumerate(sizes)
        strides[i] = step
        step *= n
    end
    return strides
end

"""Returns true if the elements are contiguous in column-major order; the stride of an axis of size 1 is ignored."""
is_dense(sizes, strides) = any(iszero, sizes) ||
    all(n == 1 || s == d for (n, s, d) in zip(sizes, strides, dense_strides(sizes)))

function place(A::SubArray{T}) where {T}
    found = place(parent(A))
    indices = parentindices(A)
    found === nothing && return nothing
    length(indices) == ndims(parent(A)) || return nothing
    # If a vector was shortened after a view of it was made, the view reaches beyond the vector's end.
    checkbounds(Bool, parent(A), indices...) || return nothing
    address, strides, offset = found[1], Int[], 0
    for (axis, index) in enumerate(indices)
        stride = found[2][axis]
        if index isa Integer
            offset += (index - first(axes(parent(A), axis))) * stride
        elseif index isa AbstractRange
            isempty(index) || (offset += (first(index) - first(axes(parent(A), axis))) * stride)
            push!(strides, stride * step(index))
        else
            return nothing
        end
    end
    return isempty(A) ? address : address + offset * sizeof(T), strides
end

function place(A::PermutedDimsArray{T, N, order}) where {T, N, order}
    found = place(parent(A))
    return found === nothing ? nothing : (found[1], [found[2][axis] for axis in order])
end

place(A::Union{Transpose{T}, Adjoint{T}}) where {T <: Real} = turned(place(parent(A)), ndims(parent(A)))
turned(::Nothing, n) = nothing
turned(found, n) = (found[1], n == 2 ? reverse(found[2]) : [0, found[2][1]])

function place(A::Base.ReshapedArray)
    found = place(parent(A))
    (found === nothing || !is_dense(size(parent(A)), found[2])) && return nothing
    return found[1], dense_strides(size(A))
end

function place(A::Base.ReinterpretArray{T, N, S}) where {T, N, S}
    found = place(parent(A))
    (found === nothing || ndims(parent(A)) != N) && return nothing
    sizeof(T) == sizeof(S) && return found
    (N == 0 || found[2][1] != 1) && return nothing
    bytes = found[2] .* sizeof(S)
    all(iszero, bytes[2:end] .% sizeof(T)) || return nothing
    return found[1], [1; bytes[2:end] .÷ sizeof(T)]
end

"""Address, storage type, sizes and strides of a caller's array. `keep` must stay alive while the address is used."""
struct Memory
    address::Ptr{Cvoid}
    dtype::Int
    size::Vector{Int}
    stride::Vector{Int}
    device::Tuple{Int, Int}
    keep::Any
end

function memory(@nospecialize(A), what)
    A isa AbstractArray || refuse("$what is of type $(typeof(A)); an array is accepted")
    code = dtype(eltype(A))
    code == LibFXA.FXA_DTYPE_NONE && refuse("$what has elements of type $(eltype(A)); Float64, Float32, Float16, ",
        "BFloat16, Int64, Int32, Int16, Int8, UInt8 and Bool are accepted")
    found = place(A)
    found === nothing && refuse("$what is a $(nameof(typeof(A))) that does not lie in memory with strides; copy it ",
        "into an Array")
    return Memory(found[1], code, collect(Int, size(A)), found[2], device(A), A)
end

"""Returns the Memory of an array that is only read. Copies an array without strides, or of an unsigned type that the
library lacks."""
function readable_memory(@nospecialize(A::AbstractArray), what)
    dtype(eltype(A)) == LibFXA.FXA_DTYPE_NONE && eltype(A) <: Unsigned && return memory(saturated(A), what)
    return memory(place(A) === nothing && isconcretetype(eltype(A)) ? Array(A) : A, what)
end

saturated(A) = Int64[min(x, typemax(Int64)) for x in A]

"""Returns `values` (lengths, offsets, pages or maps) as an array of Int32. Refuses values that do not fit, and arrays
whose sizes are not `sizes`."""
function index_table(@nospecialize(values), what, sizes)
    values isa AbstractArray && eltype(values) <: Integer && !(eltype(values) <: Bool) ||
        refuse("$what is of type $(typeof(values)); an array of integers is accepted")
    device(values)[1] == LibFXA.FXA_HOST || refuse("$what lies on a device; an array of the host is accepted")
    fits = ndims(values) == length(sizes) && all(n === nothing || n == m for (n, m) in zip(sizes, size(values)))
    fits || refuse("$what has size $(size(values)); $(size_text(sizes)) is accepted")
    for x in values
        typemin(Int32) <= x <= typemax(Int32) || refuse("$what has $x; integers of 32 bits are accepted")
    end
    return Array{Int32}(values)
end

size_text(sizes) = "(" * join([n === nothing ? "any" : string(n) for n in sizes], ", ") *
                   (length(sizes) == 1 ? ",)" : ")")
