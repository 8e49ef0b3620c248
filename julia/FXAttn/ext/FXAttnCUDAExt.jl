# SPDX-License-Identifier: Apache-2.0
# CuArrays: their pointers, the stream of the task, memory of CUDA.jl's pool as workspace, recording into graphs.
# Loaded by Julia 1.9 and newer where CUDA is there. It was not run: the machines that test this repository have no
# CUDA.jl.
module FXAttnCUDAExt

using CUDA
using FXAttn
using FXAttn: LibFXA

FXAttn.place(A::CuArray) = (Ptr{Cvoid}(reinterpret(UInt, pointer(A))), FXAttn.dense_strides(size(A)))
FXAttn.device(A::CuArray) = (LibFXA.FXA_CUDA, Int(CUDA.deviceid(CUDA.device(A))))
FXAttn.on_device(::CuArray, table) = CuArray(table)

# Engines of GPUs want pointers that are multiples of 16, which all of CUDA.jl's own are, but not every view.
const ALIGNMENT = 16

function FXAttn.execute_on_device(like::CuArray, it::FXAttn.Bound)
    problem, args = it.problem, it.args
    stream = CUDA.stream()
    CUDA.is_capturing(stream) && (problem.flags = problem.flags | LibFXA.FXA_GRAPH_CAPTURE)
    all(p -> UInt(p) % ALIGNMENT == 0, it.slots) && (problem.alignment = ALIGNMENT)
    out = Ref{Ptr{Cvoid}}(C_NULL)
    FXAttn.call(LibFXA.fxa_plan_create, FXAttn.context(), FXAttn.struct_of(problem), out)
    plan = FXAttn.Plan(out[])
    bytes = FXAttn.workspace(plan)
    space = CuArray{UInt8}(undef, bytes)
    args.workspace = bytes == 0 ? C_NULL : Ptr{Cvoid}(reinterpret(UInt, pointer(space)))
    args.workspace_size = bytes
    args.stream = Ptr{Cvoid}(stream.handle)
    GC.@preserve plan space it FXAttn.call(LibFXA.fxa_plan_run, FXAttn.handle_of(plan), FXAttn.struct_of(args))
    CUDA.unsafe_free!(space) # in the order of the stream: after the run
    return nothing
end

end
