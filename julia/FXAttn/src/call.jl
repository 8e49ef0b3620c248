# SPDX-License-Identifier: Apache-2.0
# Turns arrays and keywords into the library's problem and arguments. Shapes are checked here, because the library gets
# only addresses; the library checks everything else, and its messages are shown to the user.
#
# Arrays are (d, h, s, b), (d, h, s) without a batch, (d, s) without heads, and (d, h, total) for packed sequences. In
# memory, (d, h, s, b) is the library's row-major [B,S,H,D]: nothing is permuted, and strides are passed on.

"""The keywords of every call; docs/julia.md describes each."""
struct Options
    score_mod::Any
    mask_mod::Any
    tensors::Any
    params::Any
    scale::Any
    is_causal::Bool
    window::Any
    bottom_right::Bool
    q_lengths::Any
    k_lengths::Any
    cu_q::Any
    cu_k::Any
    pages::Any
    q_start::Any
    sinks::Any
    dropout_p::Real
    seed::Integer
    coordinates::Any
    global_q_len::Any
    global_k_len::Any
    global_heads::Any
    bounds_check::Bool
    deterministic::Bool
    engine::Union{Nothing, AbstractString}
    score_mod_bprop::Any
    bprop_tensors::Any
    bprop_params::Any
end
# Default values of options. An option that is not listed defaults to nothing.
const DEFAULTS = Dict{Symbol, Any}(:is_causal => false, :bottom_right => false, :dropout_p => 0, :seed => 0,
                                   :bounds_check => false, :deterministic => false)
# Names of options in other libraries (docs/names.md), with the name of the option here.
const CALLED = Dict(:score => :score_mod, :mask => :mask_mod, :causal => :is_causal, :positions => :q_start,
                    :sink => :sinks, :dropout => :dropout_p, :strict_index => :bounds_check,
                    :bprop => :score_mod_bprop, :q_len => :global_q_len, :k_len => :global_k_len,
                    :heads => :global_heads, :softmax_scale => :scale, :window_size => :window,
                    :cu_seqlens_q => :cu_q, :cu_seqlens_k => :cu_k, :block_table => :pages)

"""Returns keywords as Options. Not specialized on the keywords' types, because each call would compile it again."""
function Options(@nospecialize(keywords))
    given, named = copy(DEFAULTS), values(keywords)
    for name in keys(named)
        haskey(CALLED, name) && refuse("$name is called $(CALLED[name])")
        name in fieldnames(Options) ||
            refuse("unexpected keyword $name; accepted are $(join(fieldnames(Options), ", "))")
        value, wanted = getfield(named, name), fieldtype(Options, name)
        value isa wanted || refuse("$name is $(repr(value)); a value of type $wanted is accepted")
        given[name] = value
    end
    return Options(Any[get(given, name, nothing) for name in fieldnames(Options)]...)
end

mutable struct Call
    options::Options
    q::Memory
    k::Memory
    v::Memory
    sizes::Dict{Symbol, Int}      # fields of the problem
    fields::Dict{Symbol, Any}     # further fields of the problem
    flags::UInt32
    tables::Dict{Int, Any}        # arrays of int32 by slot
    sinks::Union{Nothing, Memory}
    spread::Bool                  # K and V have one batch entry, which all batch entries of q use
    source::Source
    bprop::Source
end

function Call(@nospecialize(q), @nospecialize(k), @nospecialize(v), options::Options)
    call = Call(options, operand_memory(q, "q"), operand_memory(k, "k"), operand_memory(v, "v"), Dict{Symbol, Int}(),
                Dict{Symbol, Any}(), 0, Dict{Int, Any}(), nothing, false, identity_source(), identity_source())
    for (array, what) in ((call.k, "k"), (call.v, "v"))
        same_device(call, array, what)
    end
    set_sizes(call)
    set_features(call)
    set_coordinates(call)
    call.source = resolve(options.score_mod, options.mask_mod, options.tensors, options.params, coordinate_bounds(call))
    call.bprop = backward_source(options)
    foreach(t -> same_device(call, t[2], "a captured array"), call.source.tensors)
    return call
end

identity_source() = Source(nothing, [], [], [], [], [], Dict(), Tuple[], true, "")

function operand_memory(@nospecialize(A), what)
    found = memory(A, what)
    is_float(eltype(A)) || refuse("$what has elements of type $(eltype(A)); a float type is accepted")
    2 <= ndims(A) <= 4 || refuse("$what has size $(size(A)); (d, h, s, b), (d, h, s) and (d, s) are accepted")
    return found
end

device_text(place) = place[1] == LibFXA.FXA_HOST ? "the host" : "device $(place[2])"
same_device(call, array, what) = array.device == call.q.device ? nothing :
    refuse("$what lies on $(device_text(array.device)), q on $(device_text(call.q.device)); all arrays of a call ",
           "lie in one place")

function backward_source(options)
    if options.score_mod_bprop === nothing
        isempty(pairs_of(options.bprop_tensors, "bprop_tensors")) &&
            isempty(pairs_of(options.bprop_params, "bprop_params")) ||
            refuse("bprop_tensors or bprop_params are given without score_mod_bprop")
        return identity_source()
    end
    bprop = options.score_mod_bprop
    is_text(bprop) || refuse("score_mod_bprop is of type $(typeof(bprop)); a Program or its text is accepted: a ",
                             "function is differentiated by itself")
    program = text_program([(bprop, "dscore")], :bprop, options.bprop_tensors, options.bprop_params)
    return named_source(program, options.bprop_tensors, options.bprop_params, "bprop_")
end

# ---- Sizes -----------------------------------------------------------------------------------------------------------

"""Returns the sizes (d, h, s, b) of an array, 1 for each dimension that it lacks."""
four(m::Memory) = length(m.size) == 2 ? (m.size[1], 1, m.size[2], 1) : (m.size..., 1)[1:4]
size_words(m::Memory) = "(" * join(m.size, ", ") * ")"

function set_sizes(call)
    options = call.options
    n = length(call.q.size)
    (d, hq, sq, b), (dk, hkv, sk, bk), (dv, hv, sv, bv) = map(four, (call.q, call.k, call.v))
    together = "q, k and v have sizes $(size_words(call.q)), $(size_words(call.k)) and $(size_words(call.v))"
    paged = options.pages !== nothing
    paged || n == length(call.k.size) || refuse(together, "; the same number of dimensions is accepted")
    (dk, hv, sv, bv) == (d, hkv, sk, bk) && length(call.v.size) == length(call.k.size) ||
        refuse(together, "; k must have the head dim of q, and v the batch size, heads and length of k")
    # The library takes 0 heads of k for "as many as q has", and would read out of bounds.
    hkv > 0 || hq == 0 || refuse(together, "; k has 0 heads and q $hq: heads of q are a multiple of those of k")
    sizes = Dict(:b => b, :hq => hq, :hkv => hkv, :sq => sq, :sk => sk, :d_qk => d,
                 :d_v => dv > 0 ? dv : LibFXA.FXA_D_V_ZERO)
    call.sizes = sizes
    if paged
        set_pages(call, sk, bk)
    elseif options.cu_q !== nothing || options.cu_k !== nothing
        set_packed(call, sq, sk)
    elseif bk != b
        bk == 1 || refuse(together, "; k and v have the batch of q, or one entry that serves all")
        call.spread = true
    end
end

function offsets(call, name, given, total)
    n = length(call.q.size)
    n == 3 || refuse("$name is given and q has size $(size_words(call.q)); packed sequences are (d, h, total)")
    given === nothing && refuse("cu_q and cu_k are given together")
    table = index_table(given, name, (nothing,))
    isempty(table) && refuse("$name is empty; the offsets of n sequences are n + 1, from 0")
    longest = length(table) == 1 ? 0 : maximum(diff(Int64.(table)))
    return table, max(longest, 0)
end

function set_packed(call, total_q, total_k)
    options, sizes = call.options, call.sizes
    call.flags |= LibFXA.FXA_VARLEN
    cu_q, longest_q = offsets(call, "cu_q", options.cu_q, total_q)
    cu_k, longest_k = offsets(call, "cu_k", options.cu_k, total_k)
    length(cu_q) == length(cu_k) ||
        refuse("cu_q has $(length(cu_q)) offsets and cu_k $(length(cu_k)); the same number is accepted")
    merge!(sizes, Dict(:b => length(cu_q) - 1, :sq => longest_q, :sk => longest_k, :total_q => total_q,
                       :total_k => total_k))
    call.tables[LibFXA.FXA_SLOT_CU_Q], call.tables[LibFXA.FXA_SLOT_CU_K] = cu_q, cu_k
end

function set_pages(call, page_size, n_pages)
    options, sizes = call.options, call.sizes
    length(call.k.size) == 4 || refuse("k has size $(size_words(call.k)); pages are (d, h, page size, pages)")
    call.flags |= LibFXA.FXA_PAGED
    if options.cu_q !== nothing
        options.cu_k === nothing || refuse("cu_k is given beside pages, whose lengths are k_lengths")
        call.flags |= LibFXA.FXA_VARLEN
        total = sizes[:sq]
        cu_q, longest = offsets(call, "cu_q", options.cu_q, total)
        merge!(sizes, Dict(:b => length(cu_q) - 1, :sq => longest, :total_q => total))
        call.tables[LibFXA.FXA_SLOT_CU_Q] = cu_q
    end
    pages = index_table(options.pages, "pages", (nothing, sizes[:b]))
    call.tables[LibFXA.FXA_SLOT_PAGES] = pages
    options.k_lengths === nothing &&
        refuse("pages is given without k_lengths, the number of keys that each batch entry has in its pages")
    merge!(sizes, Dict(:sk => size(pages, 1) * page_size, :n_pages => n_pages, :page_size => page_size))
end

is_packed(call) = call.flags & LibFXA.FXA_VARLEN != 0

# ---- Features --------------------------------------------------------------------------------------------------------

function set_features(call)
    options, b = call.options, call.sizes[:b]
    for (set, flag) in ((options.is_causal, LibFXA.FXA_CAUSAL), (options.bottom_right, LibFXA.FXA_BOTTOM_RIGHT),
                        (options.bounds_check, LibFXA.FXA_BOUNDS_CHECK),
                        (options.deterministic, LibFXA.FXA_DETERMINISTIC), (options.dropout_p != 0, LibFXA.FXA_DROPOUT))
        set && (call.flags |= flag)
    end
    for (given, name, slot, flag) in ((options.q_lengths, "q_lengths", LibFXA.FXA_SLOT_Q_LENGTHS, LibFXA.FXA_PADDING),
                                      (options.k_lengths, "k_lengths", LibFXA.FXA_SLOT_K_LENGTHS, LibFXA.FXA_PADDING),
                                      (options.q_start, "q_start", LibFXA.FXA_SLOT_Q_START, LibFXA.FXA_Q_START))
        given === nothing && continue
        call.flags |= flag
        call.tables[slot] = index_table(given, name, (b,))
    end
    0 <= options.dropout_p < 1 || refuse("dropout_p is $(options.dropout_p); 0 <= dropout_p < 1 is accepted")
    call.fields[:dropout_p] = Float64(options.dropout_p)
    0 <= options.seed <= typemax(UInt64) || refuse("seed is $(options.seed); 0 to 2^64 - 1 are accepted")
    scale = options.scale
    scale === nothing || scale isa Real && isfinite(scale) ||
        refuse("scale is $(repr(scale)); a finite number is accepted, nothing for 1 / sqrt(d)")
    options.window === nothing || set_window(call, options.window)
    set_sinks(call, options.sinks)
end

function set_window(call, window)
    side(x) = x === nothing || x isa Integer && !(x isa Bool) && x >= -1
    window isa Tuple{Any, Any} && side(window[1]) && side(window[2]) ||
        refuse("window is $(repr(window)); (left, right) is accepted: two integers >= 0, where nothing or -1 ",
               "means that the side is not limited")
    call.flags |= LibFXA.FXA_WINDOW
    call.fields[:window_left], call.fields[:window_right] = map(x -> x === nothing ? -1 : x, window)
end

function set_sinks(call, sinks)
    sinks === nothing && return
    if sinks === :zero
        call.flags |= LibFXA.FXA_SINK_ZERO
        return
    end
    sinks isa AbstractArray ||
        refuse("sinks is $(repr(sinks)); :zero, or a vector of a score per query head, is accepted")
    call.sinks = memory(sinks, "sinks")
    same_device(call, call.sinks, "sinks")
    call.sinks.size == [call.sizes[:hq]] ||
        refuse("sinks has size $(size(sinks)); ($(call.sizes[:hq]),), a score per query head, is accepted")
    call.flags |= LibFXA.FXA_SINKS
end

const AXES = (:b, :h, :q, :k)
axis_size(call, axis) = call.sizes[axis === :b ? :b : axis === :h ? :hq : axis === :q ? :sq : :sk]
const MAP_SLOTS = Dict(:b => LibFXA.FXA_SLOT_MAP_B, :h => LibFXA.FXA_SLOT_MAP_H, :q => LibFXA.FXA_SLOT_MAP_Q,
                       :k => LibFXA.FXA_SLOT_MAP_K)

"""Sets the maps from local indices to coordinates of the full problem. A map is an integer (the first coordinate), a
vector with the coordinate of each index, or a vector of segments."""
function set_coordinates(call)
    for (axis, value) in pairs_of(call.options.coordinates, "coordinates")
        axis in AXES || refuse("coordinates has $axis; b, h, q and k are accepted")
        call.fields[Symbol(:map_, axis)] = index_map(call, axis, value)
    end
    for name in (:global_q_len, :global_k_len, :global_heads)
        value = getfield(call.options, name)
        value === nothing && continue
        value isa Integer || refuse("$name is $(repr(value)); an integer is accepted")
        call.fields[name] = value
    end
end

function index_map(call, axis, value)
    entry = Filled{LibFXA.fxa_index_map}()
    if value isa Integer
        entry.base, entry.step = value, 1
    elseif value isa AbstractVector && eltype(value) <: NTuple{3, Integer}
        length(value) <= LibFXA.FXA_MAX_SEGMENTS || refuse("coordinates.$axis has $(length(value)) segments; at most ",
                                                           "$(LibFXA.FXA_MAX_SEGMENTS) are accepted")
        entry.kind, entry.n_segments = LibFXA.FXA_MAP_SEGMENTS, length(value)
        entry.segment = ntuple(LibFXA.FXA_MAX_SEGMENTS) do i
            i <= length(value) ? LibFXA.fxa_segment(value[i]...) : LibFXA.fxa_segment(0, 0, 0)
        end
    else
        entry.kind = LibFXA.FXA_MAP_TABLE
        call.tables[MAP_SLOTS[axis]] = index_table(value, "coordinates.$axis", (axis_size(call, axis),))
    end
    return struct_of(entry)[]
end

"""Returns the bounds (lo, hi) of b, h, q and k in the program: 0 to size - 1, or the full range of Int32 if an axis has
a coordinate map or an offset (q_start, bottom_right)."""
function coordinate_bounds(call)
    moved = call.options.q_start !== nothing || call.options.bottom_right
    map(AXES) do axis
        mapped = haskey(call.fields, Symbol(:map_, axis)) || axis === :q && moved
        mapped ? (LOWEST, HIGHEST) : (Int64(0), Int64(max(axis_size(call, axis) - 1, 0)))
    end
end

# ---- Problems --------------------------------------------------------------------------------------------------------

"""A problem and its arguments, with references to every object that their addresses point into."""
struct Bound
    problem::Filled{LibFXA.fxa_problem}
    args::Filled{LibFXA.fxa_args}
    slots::Vector{Ptr{Cvoid}}
    keep::Vector{Any}
end

function bound(call::Call, backward::Bool, flags)
    it = Bound(Filled{LibFXA.fxa_problem}(), Filled{LibFXA.fxa_args}(), fill(C_NULL, LibFXA.FXA_SLOT_MAX), Any[call])
    problem, args = it.problem, it.args
    problem.pass = backward ? LibFXA.FXA_BACKWARD : LibFXA.FXA_FORWARD
    problem.flags = call.flags | flags
    problem.device, problem.ordinal = call.q.device
    for (name, value) in Iterators.flatten((call.sizes, call.fields))
        setproperty!(problem, name, value)
    end
    set_text(it, :engine, call.options.engine)
    args.scale = call.options.scale === nothing ? NaN : Float64(call.options.scale)
    args.seed = call.options.seed
    for (slot, table) in call.tables
        put(it, slot, memory(on_device(root(call.q.keep), table), "a table"))
    end
    bind(call, it, :q, LibFXA.FXA_SLOT_Q, call.q)
    bind(call, it, :k, LibFXA.FXA_SLOT_K, call.k)
    bind(call, it, :v, LibFXA.FXA_SLOT_V, call.v)
    if call.sinks !== nothing
        strides = padded(4, (0, call.sinks.stride[1]))
        problem.sinks = LibFXA.fxa_operand(call.sinks.dtype, LibFXA.FXA_LAYOUT_STRIDED, strides)
        put(it, LibFXA.FXA_SLOT_SINKS, call.sinks)
    end
    bind_source(it, call.source, :program, :captures, :tensors, :params)
    backward && call.bprop.program !== nothing &&
        bind_source(it, call.bprop, :bprop, :bprop_captures, :bprop_tensors, :bprop_params)
    return it
end

"""Returns a table (lengths, maps, ...) in memory of the device of `like`; here, the host. Packages for devices add
methods."""
on_device(like, table) = table

function set_text(it, field, text)
    text === nothing && return
    bytes = Vector{UInt8}(String(text) * "\0")
    push!(it.keep, bytes)
    setproperty!(it.problem, field, pointer(bytes))
end

"""Returns the address of an array. Throws an ArgumentError if the array was resized after its Memory was made."""
function address_of(m::Memory)
    found = place(m.keep)
    (found === nothing || found[1] != m.address || length(m.keep) != prod(m.size)) &&
        refuse("an array of size $(size_words(m)) has been resized since the call that it was given to")
    return m.address
end

function put(it::Bound, slot, m::Memory)
    push!(it.keep, m.keep)
    it.slots[slot + 1] = address_of(m)
end

"""Returns strides in the library's order: batch, head, position, head dim; for `rows` (LSE) without head dim."""
function library_strides(m::Memory, rows)
    n, s = length(m.size), m.stride
    rows && return padded(4, n == 1 ? (0, 0, s[1]) : n == 2 ? (0, s[1], s[2]) : (s[3], s[1], s[2]))
    return padded(4, n == 2 ? (0, 0, s[2], s[1]) : n == 3 ? (0, s[2], s[3], s[1]) : (s[4], s[2], s[3], s[1]))
end

function bind(call, it, name, slot, m::Memory; rows = false)
    strides = library_strides(m, rows)
    call.spread && name in (:k, :v) && (strides = (Int64(0), strides[2:4]...))
    setproperty!(it.problem, name, LibFXA.fxa_operand(m.dtype, LibFXA.FXA_LAYOUT_STRIDED, strides))
    put(it, slot, m)
end

function bind_source(it, source, program, captures, tensors, params)
    source.program === nothing && return
    setproperty!(it.problem, program, handle_of(source.program))
    set_captures(it, captures, [capture(m) for (_, m) in source.tensors])
    set_array(it, tensors, Ptr{Cvoid}[address_of(m) for (_, m) in source.tensors])
    set_array(it, params, source.params)
    append!(it.keep, (m.keep for (_, m) in source.tensors))
end

function capture(m::Memory, grad::Union{Nothing, Memory} = nothing)
    n = LibFXA.FXA_MAX_RANK
    length(m.size) <= n || refuse("a captured array has $(length(m.size)) dimensions; at most $n are accepted")
    return LibFXA.fxa_capture(padded(n, m.size), padded(n, m.stride), padded(n, grad === nothing ? () : grad.stride), 1,
                              grad === nothing ? 0 : 1, grad === nothing ? 0 : grad.dtype, grad === nothing ? 0 : 1,
                              (UInt64(0), UInt64(0)))
end

function set_captures(it, field, entries)
    entries = Vector{LibFXA.fxa_capture}(entries)
    push!(it.keep, entries)
    setproperty!(it.problem, field, pointer(entries))
    setproperty!(it.problem, Symbol(:n_, field), length(entries))
end

function set_array(it, field, values)
    push!(it.keep, values)
    setproperty!(it.args, field, pointer(values))
    setproperty!(it.args, Symbol(:n_, field), length(values))
end

"""Runs a bound problem. On the host the run uses a plan from the cache and a workspace of the library."""
function execute(call::Call, it::Bound)
    it.args.slot = Tuple(it.slots)
    GC.@preserve call it begin
        if call.q.device[1] == LibFXA.FXA_HOST
            FXAttn.call(LibFXA.fxa_attention, context(), struct_of(it.problem), struct_of(it.args))
        else
            execute_on_device(root(call.q.keep), it)
        end
    end
    return nothing
end

"""Starts a run on the device of the array `like`. A package extension (ext/FXAttnCUDAExt.jl) adds the method, which
uses the workspace memory and the stream of the device's package."""
execute_on_device(like, it) = refuse("q lies on a device, and no package for it is loaded: `using CUDA`")
