# SPDX-License-Identifier: Apache-2.0
# The same data through `fxattn run`: the same bits, forward and backward, of NumPy's files that this writes and reads.

function write_npy(path, A::Array{T}) where {T <: Union{Float32, Float64}}
    shape = join(reverse(size(A)), ", ") * (ndims(A) == 1 ? "," : "")
    head = "{'descr': '<f$(sizeof(T))', 'fortran_order': False, 'shape': ($shape), }"
    head *= " "^(mod(-(length(head) + 11), 64)) * "\n"
    open(path, "w") do io
        write(io, UInt8[0x93], "NUMPY", UInt8[1, 0], UInt16(length(head)), head, A)
    end
end

function read_npy(path)
    bytes = read(path)
    n = Int(bytes[9]) + 256 * Int(bytes[10])
    head = String(bytes[11:(10 + n)])
    T = occursin("<f8", head) ? Float64 : Float32
    sizes = parse.(Int, (m.match for m in eachmatch(r"\d+", match(r"'shape': \(([^)]*)\)", head)[1])))
    return reshape(reinterpret(T, bytes[(11 + n):end]), reverse(sizes)...) |> Array
end

mktempdir() do folder
    file(name) = joinpath(folder, name * ".npy")
    q, k, v = inputs(Float32; d = 8, h = 4, hkv = 2, sq = 9, sk = 13)
    dout, slopes = randn(Float32, size(q)...), Float32[0.5, 0.25, 0.125, 0.0625]
    for (name, A) in (("q", q), ("k", k), ("v", v), ("do", dout))
        write_npy(file(name), permutedims(A, (1, 3, 2, 4)))  # the command's files are [B,H,S,D]
    end
    write_npy(file("slopes"), slopes)
    cap = 20.0
    f = (score, b, h, q, k) -> cap * tanh((score - slopes[h + 1] * abs(q - k)) / cap)
    text = "cap * tanh((score - slopes[h] * abs(q - k)) / cap)"
    arguments = `--q $(file("q")) --k $(file("k")) --v $(file("v")) --score $text --param cap=$cap --tensor slopes=$(file("slopes"))`
    run(pipeline(`$(joinpath(BUILD, "fxattn")) run $arguments --causal --out $(file("o")) --lse $(file("lse")) --dout $(file("do"))
        --dq $(file("dq")) --dk $(file("dk")) --dv $(file("dv")) --dtensor slopes=$(file("dslopes"))`, stdout = devnull))
    o, lse = attention(f, q, k, v; is_causal = true, return_lse = true, lse_dtype = Float64)
    grads = attention_backward(dout, o, lse, q, k, v; score_mod = f, is_causal = true)
    @test permutedims(read_npy(file("o")), (1, 3, 2, 4)) == o
    @test permutedims(read_npy(file("lse")), (2, 1, 3)) == lse
    for (name, found) in (("dq", grads.q), ("dk", grads.k), ("dv", grads.v))
        @test permutedims(read_npy(file(name)), (1, 3, 2, 4)) == found
    end
    @test read_npy(file("dslopes")) == FXAttn.of(grads, slopes)
end
