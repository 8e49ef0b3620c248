# SPDX-License-Identifier: Apache-2.0
"""
Fused attention with your own score function inside, forward and backward, on the C library fxattn:

    O = softmax( f( scale * Q'K ; b, h, q, k, your arrays, your scalars ) ) V

    using FXAttn
    q, k, v = (randn(Float32, 64, 8, 256, 1) for _ in 1:3)               # (d, h, s, b)
    slopes = 2f0 .^ -(1:8)
    out = attention(q, k, v; is_causal = true) do score, b, h, q, k         # b, h, q, k count from 0
        score - slopes[h + 1] * (q - k)                                  # arrays are indexed from 1, as ever
    end

In a call, source.jl accepts score and mask in any form; trace.jl, traced.jl and captures.jl trace functions into a
program; call.jl turns arrays and keywords into a problem and its arguments; library.jl calls the C library.
tools/gen_abi.py generates LibFXA.jl from the C header when the package is assembled.
"""
module FXAttn

using Libdl
using LinearAlgebra: Adjoint, Transpose
using Serialization: Serialization, AbstractSerializer, deserialize, serialize

export attention, attention!, attention_backward, attention_backward!, attention_pullback
export Program, Plan, FXAttnError, Gradients, support, explain, plan, run!

include("LibFXA.jl")
using .LibFXA
include("library.jl")
include("arrays.jl")
include("program.jl")
include("traced.jl")
include("operations.jl")
include("captures.jl")
include("trace.jl")
include("source.jl")
include("call.jl")
include("attention.jl")
include("plans.jl")

function __init__()
    fill!(LibFXA.addresses, C_NULL)
    LibFXA.load[] = load_library
    empty!(contexts)
    RELEASED[] = UInt(0)
end

end
