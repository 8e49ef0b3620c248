# SPDX-License-Identifier: Apache-2.0
# Score programs as Julia objects: immutable, compared by content, printed as their canonical text.

const TYPES = Dict(LibFXA.FXA_FLOAT => :float, LibFXA.FXA_INT => :int, LibFXA.FXA_BOOL => :bool)
const KINDS = Dict(:score => LibFXA.FXA_PROGRAM_SCORE, :bprop => LibFXA.FXA_PROGRAM_BPROP,
                   :derivative => LibFXA.FXA_PROGRAM_DERIVATIVE)

"""
    Program(text; kind = :score)
    Program(f, [mask])

A score program: computes the new value of each score, and which pairs are attended. A Program is made from program
text, or by tracing a function `f(score, b, h, q, k)` and a mask `mask(b, h, q, k)`. Programs are compared by content
(==, hash).
"""
mutable struct Program <: Owner
    handle::Ptr{Cvoid}
    entry::Ptr{UInt}
    # Takes ownership of one reference of the library.
    function Program(handle::Ptr{Cvoid})
        program = new(handle, release_entry(handle, 1))
        return finalizer(finish, program)
    end
end

function Program(text::AbstractString; kind::Symbol = :score)
    haskey(KINDS, kind) || refuse("kind is $(repr(kind)); :score and :bprop are accepted")
    return parse_texts([String(text)], kind)
end

"""Returns the program of several texts, joined. `kinds` has the fxa_text_kind of each text. `params` (name, :float or
:int) and `tensors` (name, (dtype, rank)) are declared: the texts may use them without a declaration."""
function parse_texts(texts::Vector{String}, kind::Symbol; kinds = zeros(UInt32, length(texts)), params = (),
                     tensors = ())
    names = Any[String(name) for (name, _) in params]
    append!(names, String(name) for (name, _) in tensors)
    declarations = LibFXA.fxa_declaration[]
    entries = LibFXA.fxa_text[]
    label = "program"
    out = Ref{Ptr{Cvoid}}(C_NULL)
    config = Filled{LibFXA.fxa_parse_config}()
    config.kind = KINDS[kind]
    GC.@preserve names texts kinds declarations entries label begin
        for (i, (_, type)) in enumerate(params)
            code = type === :int ? LibFXA.FXA_INT : LibFXA.FXA_FLOAT
            push!(declarations, LibFXA.fxa_declaration(pointer(names[i]), code, 0, 0))
        end
        for (i, (_, (code, rank))) in enumerate(tensors)
            push!(declarations, LibFXA.fxa_declaration(pointer(names[length(params) + i]), 0, code, rank))
        end
        for text in texts
            push!(entries, LibFXA.fxa_text(pointer(label), pointer(text), sizeof(text)))
        end
        config.texts, config.n_texts = pointer(entries), length(entries)
        config.text_kinds = pointer(kinds)
        config.declarations, config.n_declarations = pointer(declarations), length(declarations)
        err = Ref{LibFXA.fxa_error}()
        status = LibFXA.fxa_program_parse_texts(context(), struct_of(config), out, err)
        status == LibFXA.FXA_OK || throw(error_of(err, texts[clamp(err[].part + 1, 1, length(texts))]))
    end
    return Program(out[])
end

"""Returns the canonical text of a program, which parses to the same program."""
text(program::Program) = GC.@preserve program String(two_calls(LibFXA.fxa_program_print, handle_of(program)))

"""Returns the 128-bit hash of a program in hexadecimal, equal for equal programs on every machine."""
function program_hash(program::Program)
    out = zeros(UInt8, 16)
    GC.@preserve program LibFXA.fxa_program_hash(handle_of(program), out)
    return bytes2hex(out)
end

Base.:(==)(x::Program, y::Program) = program_hash(x) == program_hash(y)
Base.hash(x::Program, seed::UInt) = hash(program_hash(x), hash(:FXAttnProgram, seed))
Base.show(io::IO, program::Program) = print(io, "Program(\"\"\"\n", text(program), "\"\"\")")

"""Returns (name, :float or :int, default or nothing) of each param of a program, in its order."""
function params(program::Program)
    GC.@preserve program map(1:Int(LibFXA.fxa_program_param_count(handle_of(program)))) do i
        info = LibFXA.fxa_program_param(handle_of(program), i - 1)
        value = Ref{Cdouble}(0)
        has = LibFXA.fxa_program_param_default(handle_of(program), i - 1, value)
        (name = Symbol(unsafe_string(Ptr{UInt8}(info.name))), type = TYPES[info.type],
         default = has != 0 ? value[] : nothing)
    end
end

"""Returns (name, dtype, rank) of each captured tensor of a program, in its order; dtype as a text such as "f32"."""
function tensors(program::Program)
    GC.@preserve program map(1:Int(LibFXA.fxa_program_tensor_count(handle_of(program)))) do i
        info = LibFXA.fxa_program_tensor(handle_of(program), i - 1)
        (name = Symbol(unsafe_string(Ptr{UInt8}(info.name))), code = Int(info.dtype),
         dtype = unsafe_string(LibFXA.fxa_dtype_name(info.dtype)), rank = Int(info.rank))
    end
end

"""Returns the derivative of a program, a backward program."""
function derivative(program::Program)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve program call(LibFXA.fxa_program_derivative, handle_of(program), out)
    return Program(out[])
end

"""Returns the names of a program's properties, such as "causal" and "soft cap"."""
function properties(program::Program)
    out = Ref{LibFXA.fxa_properties}()
    GC.@preserve program LibFXA.fxa_program_properties(handle_of(program), out)
    named = (unsafe_string(LibFXA.fxa_property_name(UInt32(1) << bit))
             for bit in 0:(LibFXA.FXA_PROPERTY_COUNT - 1) if out[].flags >> bit & 1 == 1)
    return collect(String, named)
end

"""Returns a program as bytes for `load_program`, which throws for damaged or hostile bytes."""
save(program::Program) = GC.@preserve program two_calls(LibFXA.fxa_program_save, handle_of(program))
function load_program(bytes::AbstractVector{UInt8})
    data, out = Vector{UInt8}(bytes), Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve data call(LibFXA.fxa_program_load, context(), data, length(data), out)
    return Program(out[])
end
Serialization.deserialize(s::AbstractSerializer, ::Type{Program}) = load_program(deserialize(s))
