# SPDX-License-Identifier: Apache-2.0
# Support for CuArrays: passes their pointers and the task's stream to the library, allocates workspaces from CUDA.jl's
# pool, and supports capture into CUDA graphs. Julia 1.9 and newer load this extension if CUDA.jl is installed. The
# extension is not tested: the machines that test this repository have no CUDA.jl.
module FXAttnCUDAExt

using CUDA
using FXAttn
using FXAttn: LibFXA

FXAttn.place(A::CuArray) = (Ptr{Cvoid}(reinterpret(UInt, pointer(A))), FXAttn.dense_strides(size(A)))
FXAttn.device(A::CuArray) = (LibFXA.FXA_CUDA, Int(CUDA.deviceid(CUDA.device(A))))
FXAttn.on_device(::CuArray, table) = CuArray(table)

# GPU engines need pointers that are multiples of 16. CUDA.jl allocates such pointers, but views may have others.
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
