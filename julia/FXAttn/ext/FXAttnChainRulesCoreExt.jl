# SPDX-License-Identifier: Apache-2.0
# Reverse rules (rrule) for attention: Zygote and other packages that use ChainRules differentiate attention by q, k and
# v and by the values that the score function captured. Julia 1.9 and newer load this extension if ChainRulesCore is
# installed. The tests of this repository run the extension with a stub of the few names of ChainRulesCore that the
# extension uses, not with the package itself.
module FXAttnChainRulesCoreExt

using ChainRulesCore
using ChainRulesCore: @not_implemented
using FXAttn
using FXAttn: Gradients, captured_tree

ChainRulesCore.rrule(::typeof(attention), q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    ruled(nothing, q, k, v; options...)
ChainRulesCore.rrule(::typeof(attention), f, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    ruled(f, q, k, v; options...)

function ruled(f, q, k, v; return_lse = false, return_row_max = false, lse_dtype = nothing, options...)
    return_row_max && throw(ArgumentError("the row maximum has no derivative here; leave return_row_max out"))
    out, back = attention_pullback(q, k, v; score_mod = f, return_lse = return_lse, options...)
    function pullback(tangent)
        # All gradients come from one backward pass, which runs when the first gradient is requested.
        pass = Ref{Any}(nothing)
        function grads()
            pass[] === nothing && (pass[] = backward_of(back, out, unthunk(tangent), return_lse))
            return pass[]
        end
        of_arrays = (@thunk(grads().q), @thunk(grads().k), @thunk(grads().v))
        f === nothing && return (NoTangent(), of_arrays...)
        return (NoTangent(), @thunk(tangent_of(f, captured_tree(grads(), :score), grads())), of_arrays...)
    end
    return out, pullback
end

dense(x, like) = x isa AbstractZero ? fill!(similar(like), 0) : collect_like(unthunk(x), like)
# A gradient without strides in memory, such as that of sum(o), is copied to an array.
collect_like(x, like) = FXAttn.place(x) === nothing ? copyto!(similar(like), x) : x

function backward_of(back, out, tangent, return_lse)
    return_lse || return back(dense(tangent, out))
    tangent isa AbstractZero && return back(dense(tangent, out[1]))
    dlse = unthunk(tangent[2])
    return back(dense(unthunk(tangent[1]), out[1]), dlse isa AbstractZero ? nothing : dense(dlse, out[2]))
end

"""Returns the tangent of a function, made of the tangents of the values that it holds."""
function tangent_of(x, tree, grads::Gradients)
    isempty(grads.why) || return @not_implemented(grads.why)
    tree isa Dict || return tree
    isempty(tree) && return fieldcount(typeof(x)) == 0 ? NoTangent() : ZeroTangent()
    parts = Dict(name => tangent_of(x isa AbstractArray ? x[name] : getfield(x, name), branch, grads)
                 for (name, branch) in tree)
    if x isa AbstractArray
        return [get(parts, i, ZeroTangent()) for i in eachindex(x)]
    elseif x isa Tuple
        return Tangent{typeof(x)}((get(parts, i, ZeroTangent()) for i in 1:length(x))...)
    end
    return Tangent{typeof(x)}(; (name => part for (name, part) in parts)...)
end
tangent_of(x, tree::FXAttn.Constant, grads::Gradients) =
    @not_implemented("it lies in a field of a fixed type, so the trace saw its value alone")

end
