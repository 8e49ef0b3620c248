# SPDX-License-Identifier: Apache-2.0
# The interface to the C library: finds its file, turns its errors into exceptions, fills its structs, creates contexts
# (which own plan caches), and releases its objects.
#
# Invariants:
# - The library never calls back into Julia, so it never waits for Julia's threads or garbage collector.
# - A finalizer takes no lock, allocates nothing and calls no function of the library: it pushes the object onto a list
#   by one compare-and-swap. The next call of a normal thread takes the list and destroys the objects on it.
# - Contexts are never destroyed: other threads may still be inside the library when Julia exits.

const ENVIRONMENT = "FXATTN_LIBRARY"
const FOLDER = joinpath(@__DIR__, "..", "lib")
const LIBRARY_NAME = "libfxattn." * Libdl.dlext
const LOCK = ReentrantLock()

"""A failure of the library that is not caused by wrong arguments. `status`: the name of the library's status, such as
"E_UNSUPPORTED"; `message`: the reason."""
struct FXAttnError <: Exception
    status::String
    message::String
end
Base.showerror(io::IO, e::FXAttnError) = print(io, "FXAttnError: ", e.message, " (", e.status, ")")

"""Returns the path of the library: FXATTN_LIBRARY if set, else the file in the package, else the name for the system's
search."""
function library_path()
    given = get(ENV, ENVIRONMENT, "")
    isempty(given) || return given
    inside = joinpath(FOLDER, LIBRARY_NAME)
    return isfile(inside) ? inside : LIBRARY_NAME
end

function load_library()
    lock(LOCK) do
        path = library_path()
        handle = try
            dlopen(path)
        catch e
            throw(FXAttnError("E_UNAVAILABLE", "cannot load the fxattn library $path: $(sprint(showerror, e)); " *
                              "name the file in $ENVIRONMENT"))
        end
        found = dlsym(handle, :fxa_version; throw_error = false)
        found === nothing && throw(FXAttnError("E_UNAVAILABLE", "$path is not a library of fxattn"))
        version = unsafe_string(ccall(found, Cstring, ()))
        # Struct layouts may differ between minor versions. The shared library's name contains the minor version too.
        if split(version, '.')[1:2] != split(LibFXA.VERSION, '.')[1:2]
            throw(FXAttnError("E_VERSION", "$path is version $version; this package is built for $(LibFXA.VERSION)"))
        end
        for (i, name) in enumerate(LibFXA.NAMES)
            LibFXA.addresses[i] = dlsym(handle, name)
        end
    end
    return nothing
end

# ---- Errors ----------------------------------------------------------------------------------------------------------

# Slots and flags of the library -> keywords of this package (docs/names.md).
const KEYWORDS = Dict("Q_LENGTHS" => "q_lengths", "K_LENGTHS" => "k_lengths", "CU_Q" => "cu_q", "CU_K" => "cu_k",
                      "Q_START" => "q_start", "PAGES" => "pages", "SINKS" => "sinks",
                      "FXA_CAUSAL" => "is_causal", "FXA_WINDOW" => "window", "FXA_BOTTOM_RIGHT" => "bottom_right",
                      "FXA_Q_START" => "q_start", "FXA_PAGED" => "pages", "FXA_SINKS" => "sinks",
                      "FXA_SINK_ZERO" => "sinks = :zero", "FXA_DROPOUT" => "dropout_p",
                      "FXA_DETERMINISTIC" => "deterministic", "FXA_RETURN_LSE" => "return_lse",
                      "FXA_RETURN_ROW_MAX" => "return_row_max")
const WORD = r"\b(?:FXA_)?[A-Z]+(?:_[A-Z]+)*\b"
const TABLE_ENTRY = r"\b(Q_LENGTHS|K_LENGTHS|CU_Q|CU_K|Q_START)\[(\d+)\]"
const PAGE_ENTRY = r"\bPAGES\[(\d+),(\d+)\]"
const STRICT = "(FXA_BOUNDS_CHECK)"

refuse(words...) = throw(ArgumentError(string(words...)))

chars_to_string(chars) = String(UInt8[c for c in Iterators.takewhile(!iszero, chars)])

"""Calls a C function that returns a status and takes an fxa_error last. Throws an ArgumentError for wrong arguments, an
FXAttnError for any other failure. `source`: the program text being parsed; the message shows the line of the error."""
function call(f::F, arguments...; source::Union{Nothing, String} = nothing) where {F}
    err = Ref{LibFXA.fxa_error}()
    f(arguments..., err) == LibFXA.FXA_OK || throw(error_of(err, source))
    return nothing
end

"""Returns a message of the library in Julia's terms: with keywords for slots and flags, and entries of tables counted
from 1."""
function in_julia(text)
    from_one(digits) = parse(Int, digits) + 1
    entry(found) = (m = match(TABLE_ENTRY, found); "$(m[1])[$(from_one(m[2]))]")
    page(found) = (m = match(PAGE_ENTRY, found); "PAGES[$(from_one(m[2])),$(from_one(m[1]))]")
    text = replace(replace(text, TABLE_ENTRY => entry), PAGE_ENTRY => page)
    text = replace(text, STRICT => "(bounds_check; index and axis count from 0 here, as in a program's text, and " *
                                   "$(typemax(Int32)) is one below 1 of an array in a Julia function)")
    return replace(text, WORD => word -> get(KEYWORDS, word, word))
end

function error_of(err, source = nothing)
    status = err[].status
    text = chars_to_string(err[].text)
    if source !== nothing && err[].line > 0
        text = rendered(err, source)
    else
        text = in_julia(text)
    end
    status < LibFXA.FXA_E_UNSUPPORTED && return ArgumentError(text)
    return FXAttnError(unsafe_string(LibFXA.fxa_status_name(status))[5:end], text)
end

function rendered(err, source)
    n = sizeof(source)
    needed = LibFXA.fxa_error_render(err, "program", source, n, C_NULL, 0)
    out = zeros(UInt8, needed + 1)
    LibFXA.fxa_error_render(err, "program", source, n, out, length(out))
    return rstrip(chars_to_string(out), '\n')
end

"""Returns the bytes that a C function f(..., out, capacity, needed, error) writes. Calls f first for the size, then
for the bytes."""
function two_calls(f::F, arguments...) where {F}
    needed = Ref{Csize_t}(0)
    call(f, arguments..., C_NULL, 0, needed)
    out = zeros(UInt8, needed[] + 1)
    call(f, arguments..., out, length(out), needed)
    return resize!(out, needed[])
end

# ---- Structs ---------------------------------------------------------------------------------------------------------

"""A struct of the library, initialized to zeros, whose fields are set by name: `s.sq = 128`."""
struct Filled{T}
    ref::Base.RefValue{T}
end

function Filled{T}() where {T}
    ref = Ref{T}()
    GC.@preserve ref ccall(:memset, Ptr{Cvoid}, (Ptr{Cvoid}, Cint, Csize_t), ref, 0, sizeof(T))
    filled = Filled{T}(ref)
    fieldname(T, 1) === :struct_size && (filled.struct_size = sizeof(T))
    return filled
end

struct_of(s::Filled) = getfield(s, :ref)
Base.getproperty(s::Filled, name::Symbol) = getproperty(struct_of(s)[], name)
function Base.setproperty!(s::Filled{T}, name::Symbol, value) where {T}
    i = Base.fieldindex(T, name)
    kind = fieldtype(T, i)
    ref = struct_of(s)
    kind <: Integer && value isa Integer && !(typemin(kind) <= value <= typemax(kind)) &&
        refuse("$name is $value; an integer of $(8 * sizeof(kind)) bits is accepted")
    at = Ptr{kind}(Base.unsafe_convert(Ptr{Cvoid}, ref) + fieldoffset(T, i))
    GC.@preserve ref unsafe_store!(at, convert(kind, value))
    return value
end

"""Returns a tuple of n integers: the values, padded with zeros."""
padded(n, values) = ntuple(i -> i <= length(values) ? Int64(values[i]) : Int64(0), n)

# ---- Contexts --------------------------------------------------------------------------------------------------------

const contexts = Dict{Int, Ptr{Cvoid}}()
const wanted_threads = Threads.Atomic{Int}(0)

"""Returns the context of this process for the number of threads of set_num_threads. Each number has its own context and
plan cache."""
function context()
    RELEASED[] == 0 || release()
    lock(LOCK) do
        threads = wanted_threads[]
        get!(contexts, threads) do
            config = Filled{LibFXA.fxa_context_config}()
            config.threads = threads
            out = Ref{Ptr{Cvoid}}(C_NULL)
            call(LibFXA.fxa_context_create, struct_of(config), out)
            out[]
        end
    end
end

"""Sets the maximum number of threads of a run, including the calling thread. 0 selects FXA_THREADS, or the number of
CPUs. The threads are the library's, not Julia's. Results do not depend on the number of threads."""
function set_num_threads(threads::Integer)
    0 <= threads <= LibFXA.FXA_MAX_THREADS ||
        refuse("the number of threads is $threads; 0 to $(LibFXA.FXA_MAX_THREADS) are accepted")
    wanted_threads[] = threads
    return nothing
end

"""Returns the maximum number of threads of a run; never 0, since the library resolves 0 to a number."""
get_num_threads() = Int(LibFXA.fxa_context_threads(context()))

# ---- Release of objects ----------------------------------------------------------------------------------------------

# Objects to release: a linked list of entries in C memory, each (next entry, object, index of its destroy function).
const RELEASED = Threads.Atomic{UInt}(0)
const ENTRY = 3 * sizeof(UInt)

"""Returns a new list entry for an object. The entry is allocated when the object is created, so the finalizer
allocates nothing."""
function release_entry(object::Ptr{Cvoid}, destroyer::Integer)
    entry = Ptr{UInt}(Libc.malloc(ENTRY))
    entry == C_NULL && throw(OutOfMemoryError())
    unsafe_store!(entry, UInt(object), 2)
    unsafe_store!(entry, UInt(destroyer), 3)
    return entry
end

function release_later(entry::Ptr{UInt})
    while true
        first = RELEASED[]
        unsafe_store!(entry, first, 1)
        Threads.atomic_cas!(RELEASED, first, UInt(entry)) == first && return nothing
    end
end

"""Destroys the objects that finalizers released. Called by normal threads only."""
function release()
    entry = Ptr{UInt}(Threads.atomic_xchg!(RELEASED, UInt(0)))
    while entry != C_NULL
        next, object, destroyer = unsafe_load(entry, 1), unsafe_load(entry, 2), unsafe_load(entry, 3)
        Libc.free(entry)
        destroyer == 1 ? LibFXA.fxa_program_destroy(Ptr{Cvoid}(object)) : LibFXA.fxa_plan_destroy(Ptr{Cvoid}(object))
        entry = Ptr{UInt}(next)
    end
    return nothing
end

"""The finalizer of programs and plans. The finalizer clears the handle, so a use after finalize() throws an
ArgumentError."""
function finish(object)
    object.handle = C_NULL
    return release_later(object.entry)
end

"""Returns the handle of a program or plan, which the caller must keep alive. Throws if the object was finalized or
created during precompilation, because such an object has no handle."""
handle_of(object) = object.handle != C_NULL ? object.handle :
    refuse("this $(nameof(typeof(object))) was finalized, or made by another process: make it in __init__")

# Objects of the library are immutable, so a copy is the object itself.
abstract type Owner end
Base.copy(x::Owner) = x
Base.deepcopy_internal(x::Owner, ::IdDict) = x

# Programs and plans are serialized as the bytes of save().
function Serialization.serialize(s::AbstractSerializer, x::Owner)
    Serialization.serialize_type(s, typeof(x))
    return serialize(s, save(x))
end
