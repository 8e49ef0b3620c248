# SPDX-License-Identifier: Apache-2.0
# Mistakes are ArgumentErrors that say what was wrong, and leave outputs as they were.
using FXAttn: ifelse
let (q, k, v) = inputs()
    says(words, f) = @test occursin(words, message(f))
    says("k must have the head dim of q", () -> attention(q, randn(3, 2, 5, 2), v))
    says("k must have the head dim of q", () -> attention(q, k, randn(4, 2, 6, 2)))
    says("k must have the head dim of q", () -> attention(q, k, randn(4, 1, 5, 2)))
    says("batch of q", () -> attention(q, randn(4, 2, 5, 3), randn(4, 2, 5, 3)))
    says("number of dimensions", () -> attention(q, k[:, :, :, 1], v[:, :, :, 1]))
    says("(d, h, s, b)", () -> attention(randn(3), k, v))
    says("hq", () -> attention(randn(4, 3, 5, 2), k, v))
    says("a float type", () -> attention(ones(Int, 4, 2, 5, 2), k, v))
    says("Complex", () -> attention(complex(q), k, v))
    says("is accepted", () -> attention!(zeros(4, 2, 4, 2), q, k, v))
    says("lse", () -> attention!(similar(q), q, k, v; lse = zeros(5, 2, 2)))
    says("Float32 and Float64", () -> attention(q, k, v; return_lse = true, lse_dtype = Float16))
    # Outputs over inputs, over one another, over themselves: the library's own words, and nothing is written.
    q2 = copy(q)
    says("overlap", () -> attention!(q2, q2, k, v))
    @test q2 == q
    both = zeros(4, 2, 5, 3)
    says("overlap", () -> attention!(view(both, :, :, :, 1:2), q, k, view(both, :, :, :, 2:3)))
    says("overlap", () -> attention_backward!(q2, q2, nothing, q, q, zeros(2, 5, 2), q, k, v))
    says("overlap", () -> attention_backward!(q2, nothing, nothing, q2, q, zeros(2, 5, 2), q, k, v))
    @test all(iszero, both) && q2 == q
    # Keywords.
    says("window", () -> attention(q, k, v; window = 3))
    says("k_lengths", () -> attention(q, k, v; k_lengths = [1, 2, 3]))
    says("k_lengths", () -> attention(q, k, v; k_lengths = [1, 99]))
    says("integers", () -> attention(q, k, v; k_lengths = [1.0, 2.0]))
    says("32 bits", () -> attention(q, k, v; q_start = [2^40, 0]))
    says("dropout_p is 1.5", () -> attention(q, k, v; dropout_p = 1.5))
    says("causal is called is_causal", () -> attention(q, k, v; causal = true))
    says("softmax_scale is called scale", () -> attention(q, k, v; softmax_scale = 1.0))
    for window in ((-2, 0), (0, -5), (true, 0), (1.5, 0), (1, 2, 3), 3)
        says("nothing or -1 means that the side is not limited", () -> attention(q, k, v; window = window))
    end
    says("q_start and bottom_right are both set", () -> attention(q, k, v; q_start = [0, 0], bottom_right = true))
    says("dropout", () -> attention(q, k, v; dropout_p = NaN))
    says("seed", () -> attention(q, k, v; seed = -1))
    says("scale", () -> attention(q, k, v; scale = Inf))
    says("sink", () -> attention(q, k, v; sinks = [1.0]))
    says("sink", () -> attention(q, k, v; sinks = :one))
    says("packed sequences", () -> attention(q, k, v; cu_q = [0, 5], cu_k = [0, 5]))
    says("together", () -> attention(q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1]; cu_q = [0, 5]))
    says("cu_q", () -> attention(q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1]; cu_q = [0, 9], cu_k = [0, 5]))
    says("cu_q", () -> attention(q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1]; cu_q = [0, 4, 2], cu_k = [0, 5, 5]))
    says("coordinates", () -> attention(q, k, v; coordinates = (x = 1,)))
    says("wrt", () -> attention_pullback(q, k, v; wrt = (:o,)))
    says("wrt", () -> attention_pullback(q, k, v; wrt = :o))
    @test string(attention_pullback(q, k, v; wrt = :k)[2](q)) == "Gradients(k)"
    says("dq, dk, dv", () -> attention_backward!(nothing, nothing, nothing, q, q, zeros(2, 5, 2), q, k, v))
    # Entries are counted as Julia does, also where the library counts from 0.
    says("k_lengths[2] is 99", () -> attention(q, k, v; k_lengths = [1, 99]))
    says("cu_q[3] is 9", () -> attention(q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1]; cu_q = [0, 4, 9], cu_k = [0, 4, 5]))
    says("pages[1,2] is 7", () -> attention(q, k, v; pages = [0 7], k_lengths = [1, 1]))
    says("pages is given without k_lengths", () -> attention(q, k, v; pages = [0 0]))
    let t = [1.0, 2.0]
        says("count from 0", () -> attention((s, b, h, q, k) -> s + t[h], q, k, v; bounds_check = true))
        says("below 1", () -> attention((s, b, h, q, k) -> s + t[h], q, k, v; bounds_check = true))
    end
    # A plan is of its arrays' names too.
    says("the function and keywords of `plan`", () -> run!(plan(q, k, v; is_causal = true), similar(q), q, k, v))
    says("dsink", () -> attention_backward!(nothing, nothing, nothing, q, q, zeros(2, 5, 2), q, k, v; dsinks = zeros(2)))
    says("nonesuch", () -> attention(q, k, v; engine = "nonesuch"))
    says("lacks t", () -> attention("tensor t : f32[1]\nscore = score + t[h]", q, k, v))
    says("does not use", () -> attention("score", q, k, v; params = (c = 1,)))
    says("beside a function", () -> attention((s, b, h, q, k) -> s, q, k, v; params = (c = 1,)))
    says("a function, a Program", () -> attention(q, k, v; mask_mod = [true, false]))
    says("a function, a Program", () -> attention(3, q, k, v))
    says("512", () -> attention(zeros(600, 2, 5, 2), zeros(600, 2, 5, 2), v))
    says("multiple of 8 bytes", () -> attention(reshape(reinterpret(Float64, view(zeros(UInt8, 641), 2:641)), 4, 2, 5, 2), k, v))
    says("device host", () -> attention(q, k, v; engine = "cudnn"))
    says("give both", () -> attention((s, b, h, q, k) -> s, q, k, v; mask_mod = "q > k"))
    says("declares it as f32[1]", () -> attention("tensor t : f32[1]\nscore = score + t[h]", q, k, v; tensors = (t = [1.0],)))
    says("as an int", () -> attention("param n : int\nscore = score + n", q, k, v; params = (n = 1.5,)))
    # Programs: the line, and a caret.
    says("^", () -> Program("score = scor + 1"))
    says("program:2:", () -> Program("let a = 1\nscore = a +"))
    says("kind", () -> Program("score = 1"; kind = :other))
    # Functions.
    truth = "ifelse"
    says(truth, () -> Program((s, b, h, q, k) -> s > 0 ? s : 0))
    says(truth, () -> Program((s, b, h, q, k) -> (q < k && k < 3) * s))
    says(truth, () -> Program((s, b, h, q, k) -> (0 < q < k) * s))
    says("test_errors.jl:", () -> Program((s, b, h, q, k) -> s > 0 ? s : 0))
    says("bool", () -> Program((s, b, h, q, k) -> q > k))
    says("a bool is accepted", () -> Program(nothing, (b, h, q, k) -> q - k))
    says("a number is accepted", () -> Program((s, b, h, q, k) -> "x"))
    says("dimensions", () -> (A = ones(2, 2, 2); Program((s, b, h, q, k) -> A[h + 1, q + 1])))
    says("one element", () -> (A = ones(2, 2); Program((s, b, h, q, k) -> sum(A[:, q + 1]))))
    says("one element", () -> (A = ones(2, 2); Program((s, b, h, q, k) -> A[s, 1])))
    says("make an Array", () -> (A = (1.0, 2.0); Program((s, b, h, q, k) -> A[h + 1])))
    says("32 bits", () -> Program((s, b, h, q, k) -> s + (q + 2^40)))
    says("elements of type", () -> (A = [1.0im]; Program((s, b, h, q, k) -> s + real(A[h + 1]))))
    says("not floats", () -> Program((s, b, h, q, k) -> s & 1))
    says("traced", () -> Program((s, b, h, q, k) -> sinpi(s)))
    leaked = Ref{Any}(0)
    Program((s, b, h, q, k) -> (leaked[] = s; s))
    says("another", () -> Program((s, b, h, q, k) -> s + leaked[]))
    @test_throws BoundsError Program((s, b, h, q, k) -> s + (A = [1.0, 2.0]; A[3]))
    says("no method", () -> Program((s, b) -> s))
    # The function that is wrong is named, with what it is called with.
    says("f(score, b, h, q, k)", () -> Program((s, b) -> s))
    says("mask(b, h, q, k)", () -> Program(nothing, (q, k) -> q >= k))
    says("the mask function (test_errors.jl:", () -> Program(nothing, (b, h, q, k) -> q >= k && k > 0))
    says("the mask function (test_errors.jl:", () -> Program((s, b, h, q, k) -> s, (b, h, q, k) -> 0 <= q - k < 3))
    says("the score function (test_errors.jl:", () -> Program((s, b, h, q, k) -> s > 0 ? s : 0, (b, h, q, k) -> q >= k))
    says("causal is 1", () -> attention(q, k, v; is_causal = 1))
    says("unexpected keyword", () -> attention(q, k, v; casual = true))
    @test_throws DivideError Program((s, b, h, q, k) -> s + 1 ÷ 0)
end
# Vectors that were resized after the forward pass, and views of one that became shorter: nothing is read behind them.
let (q, k, v) = inputs(), w = [1.0, 2.0], long = randn(100), part = view(long, 1:80)
    f = (score, b, h, q, k) -> score * w[h + 1]
    o, back = attention_pullback(f, q, k, v)
    append!(w, ones(1000))
    @test occursin("resized", message(() -> back(o)))
    wide = reshape(part, 4, 2, 5, 2)
    @test attention(wide, k, v) isa Array
    resize!(long, 10)
    @test occursin("with strides", message(() -> attention(wide, k, v)))
    p = Program("score = 2 * score")
    finalize(p)
    @test occursin("finalized", message(() -> attention(p, q, k, v))) && occursin("finalized", message(() -> FXAttn.text(p)))
    @test occursin("first argument", message(() -> attention("score", q, k, v; score_mod = "score")))
end
# 0 heads of k, which the library would take for those of q.
let (q, k, v) = inputs(; h = 1, sq = 1, b = 1)
    @test occursin("k has 0 heads and q 1", message(() -> attention(q, k[:, 1:0, :, :], v[:, 1:0, :, :])))
end
let (q, k, v) = inputs()
    @test occursin("64 bits", message(() -> attention(q, k, v; coordinates = (q = big(2)^70,))))
end
# Bytes that are not ours, damaged ones, and what no engine can.
@test message(() -> FXAttn.load_plan(rand(UInt8, 100)), FXAttnError) != "nothing was thrown"
@test occursin("E_BYTES", message(() -> FXAttn.load_program(zeros(UInt8, 64)), FXAttnError))
@test occursin("threads", message(() -> FXAttn.set_num_threads(-1)))
