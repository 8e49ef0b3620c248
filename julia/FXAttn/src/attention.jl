# SPDX-License-Identifier: Apache-2.0
# attention and its backward pass, each into new arrays and in place.

# ---- Forward ---------------------------------------------------------------------------------------------------------

out_size(call::Call) = (size(call.v.keep, 1), size(call.q.keep)[2:end]...)
rows_size(call::Call) = size(call.q.keep)[2:end]

function check_array(call, @nospecialize(A), what, wanted)
    m = memory(A, what)
    size(A) == wanted || refuse("$what has size $(size(A)); $wanted is accepted")
    is_float(eltype(A)) || refuse("$what has elements of type $(eltype(A)); a float type is accepted")
    same_device(call, m, what)
    return m
end

function bind_rows(call, it, name, slot, @nospecialize(A))
    A === nothing || bind(call, it, name, slot, check_array(call, A, String(name), rows_size(call)); rows = true)
end

function run_forward(call::Call, @nospecialize(o), @nospecialize(lse), @nospecialize(row_max))
    flags = (lse === nothing ? 0 : LibFXA.FXA_RETURN_LSE) | (row_max === nothing ? 0 : LibFXA.FXA_RETURN_ROW_MAX)
    it = bound(call, false, flags)
    bind(call, it, :o, LibFXA.FXA_SLOT_O, check_array(call, o, "the output", out_size(call)))
    bind_rows(call, it, :lse, LibFXA.FXA_SLOT_LSE, lse)
    bind_rows(call, it, :row_max, LibFXA.FXA_SLOT_ROW_MAX, row_max)
    execute(call, it)
    return o
end

# The library does not write packed rows that belong to no sequence.
new_array(call, T, sizes) = (A = similar(call.q.keep, T, sizes); is_packed(call) ? fill!(A, 0) : A)

function lse_dtype(call, given)
    given === nothing && return row_type(eltype(call.q.keep))
    given in (Float32, Float64) || refuse("lse_dtype is $given; Float32 and Float64 are accepted")
    return given
end

"""
    attention([f,] q, k, v; keywords...)

Returns softmax(f(scale * Q'K)) V, an array like q with the head dim of v. With `return_lse` or `return_row_max`,
returns a tuple: the output; LSE, the log of the sum of the exponentials of each row (-Inf for a row that attends to no
key); the maximum of each row. LSE and row maxima are (h, s, b) arrays.

q, k and v are (d, h, s, b) arrays, (d, h, s) without a batch, (d, s) without heads, or (d, h, total) with `cu_q` and
`cu_k`. The number of heads of q is a multiple of that of k and v. `f`, also given as `score_mod`, computes the new
score: a function f(score, b, h, q, k), which is traced and may use arrays and numbers from outside; a `Program`;
program text, or an expression. `mask_mod`, mask_mod(b, h, q, k), is true for the pairs that are attended. **b, h, q and
k count from 0**; arrays are indexed from 1: `slopes[h + 1]`.

Keywords: tensors, params (by name, for a Program or text), scale, is_causal, window = (left, right), bottom_right,
q_lengths, k_lengths, cu_q, cu_k, pages, q_start, sinks (:zero or a vector), dropout_p, seed, coordinates, global_q_len,
global_k_len, global_heads, bounds_check, deterministic, engine, lse_dtype; docs/julia.md has each.
"""
attention(q::AbstractArray, k::AbstractArray, v::AbstractArray; return_lse::Bool = false, return_row_max::Bool = false,
          lse_dtype = nothing, options...) =
    new_attention(Call(q, k, v, Options(options)), return_lse, return_row_max, lse_dtype)

function new_attention(call::Call, return_lse, return_row_max, lse_dtype)
    q = call.q.keep
    o = new_array(call, eltype(q), out_size(call))
    lse = return_lse ? new_array(call, FXAttn.lse_dtype(call, lse_dtype), rows_size(call)) : nothing
    row_max = return_row_max ? new_array(call, row_type(eltype(q)), rows_size(call)) : nothing
    run_forward(call, o, lse, row_max)
    return_lse || return_row_max || return o
    return Tuple(x for x in (o, lse, row_max) if x !== nothing)
end
attention(score, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    attention(q, k, v; with_score(score, options)...)

"""Returns the keywords with `score` added as `score_mod`. Refuses a score function that is given twice."""
function with_score(@nospecialize(score), @nospecialize(options))
    haskey(options, :score_mod) && refuse("a score function is given as the first argument and as `score_mod`")
    return (score_mod = score, values(options)...)
end

"""
    attention!([f,] o, q, k, v; lse = nothing, row_max = nothing, keywords...)

Writes the result of `attention` to `o`, and to `lse` and `row_max` if they are given. These arrays may have any
strides, but must not overlap an input. Returns `o`.
"""
function attention!(o::AbstractArray, q::AbstractArray, k::AbstractArray, v::AbstractArray; lse = nothing,
                    row_max = nothing, options...)
    return run_forward(Call(q, k, v, Options(options)), o, lse, row_max)
end
attention!(score, o::AbstractArray, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    attention!(o, q, k, v; with_score(score, options)...)

# ---- Backward --------------------------------------------------------------------------------------------------------

const WRT = (:q, :k, :v, :sinks, :tensors, :params)

"""
Gradients of one backward pass: `q`, `k`, `v` (`dq, dk, dv = grads` unpacks them), `sinks`, and by name `tensors` and
`params`. A gradient that was not computed is nothing. `of(grads, array)` returns the gradient of an array that the
function captured. If the function needed the value of a captured number while it was traced, there are no gradients of
captured arrays and numbers, and `why` has the reason.
"""
struct Gradients
    q::Any
    k::Any
    v::Any
    sinks::Any
    tensors::Dict{Symbol, Any}
    params::Dict{Symbol, Union{Nothing, Float64}}
    why::String
    source::Source
end
Base.iterate(g::Gradients, i = 1) = i > 3 ? nothing : ((g.q, g.k, g.v)[i], i + 1)
Base.length(::Gradients) = 3
Base.getindex(g::Gradients, i::Integer) = (g.q, g.k, g.v)[i]
function Base.show(io::IO, g::Gradients)
    there(named) = [String(name) for (name, x) in named if x !== nothing]
    names = [there((:q => g.q, :k => g.k, :v => g.v, :sinks => g.sinks)); there(g.tensors); there(g.params)]
    print(io, "Gradients(", join(names, ", "), ")")
end

"""Returns the gradient of an array that the function captured. Throws an ArgumentError for an array that was not
captured."""
function of(g::Gradients, A::AbstractArray)
    isempty(g.why) || refuse("gradients of captured arrays are not there: ", g.why)
    total = nothing
    for (name, (array, _)) in zip(g.source.names, g.source.tensors)
        grad = array === A ? g.tensors[name] : nothing
        grad === nothing && continue
        total = total === nothing ? reshape(grad, size(A)) : total .+ reshape(grad, size(A))
    end
    total === nothing && refuse("the program captured no such array of floats: it captured ",
                                isempty(g.source.names) ? "none" : join(g.source.names, ", "))
    return total
end

"""Stands for the gradient of a captured number that was traced as a constant."""
struct Constant end

"""Returns the gradients of the objects that the score function (`root` is :score) or the mask holds, as nested Dicts by
field."""
function captured_tree(g::Gradients, root::Symbol)
    tree = Dict{Any, Any}()
    function put(path, value)
        path[1] === root || return
        at = tree
        for field in path[2:end-1]
            at = get!(() -> Dict{Any, Any}(), at, field)
        end
        at[path[end]] = haskey(at, path[end]) ? at[path[end]] .+ value : value
    end
    for (name, value) in Iterators.flatten((g.tensors, g.params))
        value === nothing || !haskey(g.source.paths, name) || put(g.source.paths[name], value)
    end
    foreach(path -> put(path, Constant()), g.source.constants)
    return tree
end

"""Returns the array that the library writes a gradient to. If K and V have one batch entry that all of q use, their
gradients go to a temporary array with all batch entries, which is summed later; else the array is the target."""
function room(call, name, target)
    call.spread && name !== :q || return target
    T = is_wide(eltype(target)) ? Float64 : Float32
    sizes = (size(target)[1:end-1]..., call.sizes[:b])
    return similar(target, T, sizes)
end

"""Refuses targets of summed gradients that overlap another array. The library cannot check the overlap, because
the library gets only the temporary arrays that are summed."""
function check_rooms(it, rooms)
    targets = [target for (target, whole) in rooms if target !== whole]
    for (i, target) in enumerate(targets), other in Iterators.flatten((it.keep, targets[(i + 1):end]))
        other isa AbstractArray && Base.mightalias(target, other) &&
            refuse("a gradient of k or v, of which one batch entry serves all, overlaps another array in memory")
    end
end
collect_room(target, whole) = target === whole ? target : (target .= sum(whole; dims = ndims(whole)))

function check_target(call, @nospecialize(target), what, @nospecialize(like))
    m = memory(target, what)
    size(target) == size(like) || refuse("$what has size $(size(target)); $(size(like)) is accepted")
    same_device(call, m, what)
    return m
end

function bind_gradients(call, it, @nospecialize(targets))
    rooms = Any[]
    for (name, field, slot, target, like) in ((:q, :dq, LibFXA.FXA_SLOT_DQ, targets.q, call.q.keep),
                                              (:k, :dk, LibFXA.FXA_SLOT_DK, targets.k, call.k.keep),
                                              (:v, :dv, LibFXA.FXA_SLOT_DV, targets.v, call.v.keep))
        target === nothing && continue
        check_target(call, target, "the gradient of $name", like)
        whole = room(call, name, target)
        bind(call, it, field, slot, memory(whole, "the gradient of $name"))
        push!(rooms, (target, whole))
    end
    if targets.sinks !== nothing
        m = check_target(call, targets.sinks, "the gradient of sinks", call.sinks.keep)
        it.problem.dsinks = LibFXA.fxa_operand(m.dtype, LibFXA.FXA_LAYOUT_STRIDED, padded(4, (0, m.stride[1])))
        put(it, LibFXA.FXA_SLOT_DSINKS, m)
    end
    return rooms
end

"""Returns the Memory that the gradient of a captured array is written to. If the function indexes the array by one
linear index, the Memory is a vector."""
function captured_target(call, @nospecialize(target), name, @nospecialize(array), m)
    found = check_target(call, target, "dtensors.$name", array)
    length(found.size) == length(m.size) && return found
    is_dense(found.size, found.stride) ||
        refuse("dtensors.$name is a view with gaps or in another order, and the array is indexed by one value; a ",
               "dense array is accepted")
    return Memory(found.address, found.dtype, m.size, [1], found.device, found.keep)
end

"""Returns the arrays for gradients of captured arrays, by name: those in `given`, and new ones if `wanted`."""
function captured_gradients(call, it, wanted, given)
    source = call.source
    check_names("dtensors", source.names, keys(given), Symbol[])
    grads = map(zip(source.names, source.tensors)) do (name, (array, m))
        haskey(given, name) && return captured_target(call, given[name], name, array, m)
        wanted && is_float(eltype(m.keep)) || return nothing
        memory(similar(m.keep, eltype(m.keep), Tuple(m.size)), "a gradient")
    end
    isempty(grads) && return Dict{Symbol, Any}()
    set_captures(it, :captures, [capture(m, grad) for ((_, m), grad) in zip(source.tensors, grads)])
    set_array(it, :dtensors, Ptr{Cvoid}[grad === nothing ? C_NULL : grad.address for grad in grads])
    append!(it.keep, (grad.keep for grad in grads if grad !== nothing))
    arrays = [grad === nothing ? nothing : grad.keep for grad in grads]
    return Dict{Symbol, Any}(zip(source.names, arrays))
end

function param_gradients(call, it, wanted)
    source, types = call.source, call.source.param_types
    seen(name) = haskey(source.paths, name) && source.paths[name] in source.constants
    wants = [wanted && type === :float && !seen(name) for (name, type) in zip(source.param_names, types)]
    it.problem.param_grads = reduce(|, (UInt64(want) << (i - 1) for (i, want) in enumerate(wants)); init = UInt64(0))
    values = fill!(similar(call.q.keep, Float64, (length(types),)), 0)
    m = memory(values, "gradients of params")
    push!(it.keep, values)
    it.args.dparams, it.args.n_dparams = m.address, length(types)
    return values, wants
end

"""Runs the backward pass of a call into `targets` (q, k, v, sinks: an array, or nothing). Returns Gradients."""
function run_backward(call::Call, @nospecialize(dout), @nospecialize(dlse), @nospecialize(o), @nospecialize(lse),
                      @nospecialize(targets), wrt, dtensors, accumulate)
    flag(x, bits) = x === nothing ? 0 : bits
    flags = flag(targets.q, LibFXA.FXA_GRAD_Q) | flag(targets.k, LibFXA.FXA_GRAD_K) |
            flag(targets.v, LibFXA.FXA_GRAD_V) | flag(targets.sinks, LibFXA.FXA_GRAD_SINKS) |
            flag(dlse, LibFXA.FXA_READ_DLSE)
    if accumulate
        call.spread && refuse("accumulate is given, and one batch entry of k and v serves all; add gradients yourself")
        flags |= flag(targets.q, LibFXA.FXA_ACCUMULATE_DQ) | flag(targets.k, LibFXA.FXA_ACCUMULATE_DK) |
                 flag(targets.v, LibFXA.FXA_ACCUMULATE_DV) | flag(targets.sinks, LibFXA.FXA_ACCUMULATE_DSINKS)
        isempty(dtensors) || (flags |= LibFXA.FXA_ACCUMULATE_DTENSORS)
    end
    it = bound(call, true, flags)
    bind(call, it, :o, LibFXA.FXA_SLOT_O, check_array(call, o, "the output", out_size(call)))
    bind(call, it, :dout, LibFXA.FXA_SLOT_DO, check_array(call, dout, "dout", out_size(call)))
    bind_rows(call, it, :lse, LibFXA.FXA_SLOT_LSE, lse)
    bind_rows(call, it, :dlse, LibFXA.FXA_SLOT_DLSE, dlse)
    rooms = bind_gradients(call, it, targets)
    exact = call.source.exact
    tensors = captured_gradients(call, it, :tensors in wrt && exact && !accumulate, dtensors)
    values, wants = param_gradients(call, it, :params in wrt && exact)
    check_rooms(it, rooms)
    all(isnothing, targets) && all(isnothing, Base.values(tensors)) && !any(wants) &&
        refuse("no gradient is asked for: dq, dk, dv, dsinks, dtensors are not given, or wrt names what is not there")
    execute(call, it)
    foreach(pair -> collect_room(pair...), rooms)
    numbers = any(wants) ? Array(values) : zeros(length(wants))
    params = Dict{Symbol, Union{Nothing, Float64}}(
        name => want ? x : nothing for (name, want, x) in zip(call.source.param_names, wants, numbers))
    return Gradients(targets.q, targets.k, targets.v, targets.sinks, tensors, params, call.source.why, call.source)
end

wanted(wrt::Symbol) = wanted((wrt,))
function wanted(wrt)
    unknown = [name for name in wrt if !(name in WRT)]
    isempty(unknown) || refuse("wrt has $(join(unknown, ", ")); of $(join(WRT, ", ")) some are accepted")
    return wrt
end

function new_targets(call, wrt)
    gradient(m, name) = name in wrt && m !== nothing ?
        (is_packed(call) ? fill!(similar(m.keep), 0) : similar(m.keep)) : nothing
    return (q = gradient(call.q, :q), k = gradient(call.k, :k), v = gradient(call.v, :v),
            sinks = gradient(call.sinks, :sinks))
end

"""
    attention_backward!(dq, dk, dv, dout, o, lse, q, k, v; dlse, dsinks, dtensors, accumulate = false, keywords...)

Runs the backward pass of `attention` for its output `o` and its `lse`. Writes the gradients to dq, dk and dv (arrays,
or nothing for no gradient), to `dsinks`, and to the arrays in `dtensors`, by name. With `accumulate` the gradients are
added to the contents of these arrays. `dout` and `dlse` are the gradients of o and lse. Returns Gradients. `wrt`
(:tensors, :params) selects gradients of captured arrays and numbers that are returned in new arrays. The keywords are
those of the call of attention, with the score function as `score_mod`.
"""
function attention_backward!(dq, dk, dv, dout, o, lse, q, k, v; dlse = nothing, dsinks = nothing, dtensors = nothing,
                             accumulate::Bool = false, wrt = (:tensors, :params), options...)
    call = Call(q, k, v, Options(options))
    dsinks === nothing || call.sinks !== nothing || refuse("dsinks is given without sinks")
    return run_backward(call, dout, dlse, o, lse, (q = dq, k = dk, v = dv, sinks = dsinks), wanted(wrt),
                        Dict(pairs_of(dtensors, "dtensors")), accumulate)
end

"""
    attention_backward(dout, o, lse, q, k, v; dlse, wrt = (:q, :k, :v, :sinks, :tensors, :params), keywords...)

Runs the backward pass of `attention` as `attention_backward!` does, into new arrays. Returns Gradients. An `lse` in
Float64 (`lse_dtype = Float64` of attention) avoids rounding between the passes.
"""
function attention_backward(dout, o, lse, q, k, v; dlse = nothing, wrt = WRT, options...)
    call = Call(q, k, v, Options(options))
    wrt = wanted(wrt)
    return run_backward(call, dout, dlse, o, lse, new_targets(call, wrt), wrt, Dict{Symbol, Any}(), false)
end

"""
    o, back = attention_pullback([f,] q, k, v; wrt, keywords...);  dq, dk, dv = back(dout)
    (o, lse), back = attention_pullback(...; return_lse = true);   dq, dk, dv = back(dout, dlse)

Returns the result of `attention` and the function `back`, which takes the gradient of the result, runs the backward
pass and returns Gradients. `back` holds references to the arrays, not copies.
"""
function attention_pullback(q::AbstractArray, k::AbstractArray, v::AbstractArray; return_lse::Bool = false, wrt = WRT,
                            options...)
    return pullback(Call(q, k, v, Options(options)), return_lse, wanted(wrt))
end
function pullback(call::Call, return_lse, wrt)
    q = call.q.keep
    o = new_array(call, eltype(q), out_size(call))
    # LSE in f64: the rounding of a narrower LSE would show in gradients of programs with large derivatives.
    lse = new_array(call, Float64, rows_size(call))
    run_forward(call, o, lse, nothing)
    back(dout, dlse = nothing) =
        run_backward(call, dout, dlse, o, lse, new_targets(call, wrt), wrt, Dict{Symbol, Any}(), false)
    return (return_lse ? (o, row_type(eltype(q)).(lse)) : o), back
end
attention_pullback(score, q::AbstractArray, k::AbstractArray, v::AbstractArray; options...) =
    attention_pullback(q, k, v; with_score(score, options)...)
