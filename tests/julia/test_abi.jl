# SPDX-License-Identifier: Apache-2.0
# What tools/gen_abi.py wrote is what the C compiler has: sizes, alignments and offsets of every struct.
for (type, size, align, fields) in LibFXA.LAYOUTS
    @test sizeof(type) == size
    @test Base.datatype_alignment(type) == align
    @test fieldnames(type) == Tuple(name for (name, _, _) in fields)
    for (i, (name, offset, bytes)) in enumerate(fields)
        @test (type, name, fieldoffset(type, i), sizeof(fieldtype(type, i))) == (type, name, offset, bytes)
    end
end
@test length(LibFXA.LAYOUTS) > 15
@test length(LibFXA.NAMES) > 60
@test unsafe_string(LibFXA.fxa_version()) == LibFXA.VERSION
@test all(!=(C_NULL), LibFXA.addresses)

# Structs that travel by value, small and large.
let program = Program("param cap : float = 20\ntensor t : i16[2]\nscore = cap * score + t[q, k]")
    @test FXAttn.params(program) == [(name = :cap, type = :float, default = 20.0)]
    @test FXAttn.tensors(program)[1].dtype == "i16" && FXAttn.tensors(program)[1].rank == 2
    spelling = LibFXA.fxa_op_syntax(0)
    @test spelling.text != C_NULL && spelling.arity in 1:3
    @test LibFXA.fxa_op_syntax(100_000).text == C_NULL
end

# A struct to fill is zeroes with its size, and keeps what is set.
let filled = FXAttn.Filled{LibFXA.fxa_problem}()
    @test filled.struct_size == sizeof(LibFXA.fxa_problem) && filled.sq == 0 && filled.engine == C_NULL
    filled.sq, filled.dropout_p = 7, 0.25
    @test (filled.sq, filled.dropout_p, filled.sk) == (7, 0.25, 0)
end
# Operations on traced values are ambiguous with nothing of Base. (That of sparse and shared arrays by slices is refused.)
let ours(m) = parentmodule(m.module) === FXAttn || m.module === FXAttn
    found = [pair for pair in Test.detect_ambiguities(FXAttn, Base) if any(ours, pair)]
    @test isempty([pair for pair in found if all(m -> ours(m) || m.module in (Base, Core), pair)])
end
# Pkg of this Julia takes the package's project, as Pkg.develop does; what is weak is of the same UUID as an extra.
let project = Base.require(Base.PkgId(Base.UUID("44cfe95a-1eb2-52ea-b672-e2afdf69b78f"), "Pkg")).Types.read_project(
        joinpath(BUILD, "julia", "FXAttn", "Project.toml"))
    @test project.name == "FXAttn" && haskey(project.deps, "Libdl")
    @test sort!(collect(keys(project.extras))) == ["CUDA", "ChainRulesCore"]
end
