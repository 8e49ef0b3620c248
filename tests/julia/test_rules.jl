# SPDX-License-Identifier: Apache-2.0
# The rules of ext/FXAttnChainRulesCoreExt.jl, on a stand-in of ChainRulesCore (standin_chainrules.jl); that of CUDA is
# only read, since nothing here can run it.
include("standin_chainrules.jl")
using .ChainRulesCore
let text = read(joinpath(SOURCE, "julia", "FXAttn", "ext", "FXAttnChainRulesCoreExt.jl"), String)
    include_string(Main, replace(text, r"using ChainRulesCore" => "using Main.ChainRulesCore"))
end
let text = read(joinpath(SOURCE, "julia", "FXAttn", "ext", "FXAttnCUDAExt.jl"), String)
    @test Meta.parse("begin\n$text\nend").head === :block
end

let (q, k, v) = inputs(), w = [0.5, 2.0], cap = 3.0, inner = (table = randn(5), n = 1)
    f = Both((score, b, h, q, k) -> score * w[h + 1] + inner.table[k + 1], SoftCap(cap))
    o, pullback = rrule(attention, f, q, k, v; is_causal = true)
    @test o == attention(f, q, k, v; is_causal = true)
    dout = randn(size(o)...)
    none, df, dq, dk, dv = pullback(ChainRulesCore.@thunk(dout))
    grads = attention_pullback(f, q, k, v; is_causal = true)[2](dout)
    @test none isa NoTangent && unthunk(dq) == grads.q && unthunk(dk) == grads.k && unthunk(dv) == grads.v
    df = unthunk(df)
    @test df.first.w == FXAttn.of(grads, w) && df.second.cap == grads.params[:cap]
end
let (q, k, v) = inputs()
    (o, lse), pullback = rrule(attention, q, k, v; return_lse = true)
    none, dq, dk, dv = pullback((ZeroTangent(), ones(size(lse)...)))
    @test unthunk(dq) == attention_pullback(q, k, v; return_lse = true)[2](zero(o), ones(size(lse)...)).q
    o, pullback = rrule(attention, q, k, v)
    @test unthunk(pullback(Base.ReshapedArray(1.0:length(o), size(o), ()))[2]) isa Array    # a gradient that is no Array
    fixed = FixedFields(Float32[1, 2], 5.0)
    df = unthunk(rrule(attention, fixed, Float32.(q), Float32.(k), Float32.(v))[2](Float32.(o))[2])
    @test df.cap isa ChainRulesCore.NotImplemented && df.slopes isa Vector{Float32}
    needs_value = let c = 2.0; (score, b, h, q, k) -> c > 1 ? score * c : score end
    @test unthunk(rrule(attention, needs_value, q, k, v)[2](o)[2]) isa ChainRulesCore.NotImplemented
    @test unthunk(rrule(attention, (score, b, h, q, k) -> 2score, q, k, v)[2](o)[2]) isa NoTangent
end
