# SPDX-License-Identifier: Apache-2.0
# The few names of ChainRulesCore that ext/FXAttnChainRulesCoreExt.jl uses, with their meaning: the package itself cannot
# be had without a registry, and does not run on Julia 1.5.
module ChainRulesCore
export AbstractZero, NoTangent, Tangent, ZeroTangent, rrule, unthunk, @thunk

abstract type AbstractZero end
struct NoTangent <: AbstractZero end
struct ZeroTangent <: AbstractZero end
struct Tangent{P, T}
    backing::T
end
Tangent{P}(; named...) where {P} = (x = values(named); Tangent{P, typeof(x)}(x))
Tangent{P}(values...) where {P} = Tangent{P, typeof(values)}(values)
Base.getproperty(t::Tangent, name::Symbol) = getfield(getfield(t, :backing), name)
Base.getindex(t::Tangent, i::Int) = getfield(t, :backing)[i]
struct NotImplemented
    why::String
end
macro not_implemented(why)
    return :(NotImplemented($(esc(why))))
end
struct Thunk{F}
    f::F
end
macro thunk(body)
    return :(Thunk(() -> $(esc(body))))
end
unthunk(x) = x
unthunk(x::Thunk) = unthunk(x.f())
rrule(::Any, ::Any...; more...) = nothing
end
