# SPDX-License-Identifier: Apache-2.0
# The tests of julia/FXAttn: one process for all, since most of its time is Julia's compiler. Run by run_julia.py with
# FXA_BUILD (the build folder) and FXA_SOURCE in the environment, eight threads, and the package in the load path. Arguments name
# some of the files to run alone.
using FXAttn
using FXAttn: LibFXA
using Random
using Test

const BUILD = ENV["FXA_BUILD"]
const SOURCE = ENV["FXA_SOURCE"]
const ALL = ["abi", "trace", "captures", "forward", "sizes", "backward", "arrays", "errors", "plans", "command", "rules", "threads", "docs"]
Random.seed!(1)

include("dense.jl")
@testset "FXAttn" begin
    for name in (isempty(ARGS) ? ALL : ARGS)
        elapsed = @elapsed @testset "$name" begin
            include("test_$name.jl")
        end
        println(rpad(name, 10), round(elapsed; digits = 1), " s")
    end
end
