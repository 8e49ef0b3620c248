# SPDX-License-Identifier: Apache-2.0
# Julia's functions on traced numbers, with Julia's semantics. A function is one operation of the library if there is an
# equal one; else it is composed of several, because Julia rounds or signs differently (div, rem, shifts, powers of
# ints). Methods are generated from tables, one for each operand position of a traced value.

const Plain = Union{AbstractFloat, Integer, Rational, AbstractIrrational}

"""Defines methods of the functions in `table` for two numbers, at least one of them a Traced. `body(x, y)` is called
only if at least one operand is a value of a builder; the other may be a plain number."""
function define_binary(table)
    for (name, body) in table
        home = isdefined(Base, name) ? :Base : :FXAttn
        @eval $home.$name(x::Traced, y::Traced) = on_numbers($name, $body, x, y)
        @eval $home.$name(x::Traced, y::Plain) = on_numbers($name, $body, x, y)
        @eval $home.$name(x::Plain, y::Traced) = on_numbers($name, $body, x, y)
    end
end

function on_numbers(f, body, operands...)
    given = map(plain, operands)
    all(is_number, given) && return Traced(f(given...))
    return body(given...)
end

# ---- Arithmetic ------------------------------------------------------------------------------------------------------

function added(x, y)
    is_offset(x, y) && return moved(x, y)
    is_offset(y, x) && return moved(y, x)
    return emit(LibFXA.FXA_OP_ADD, x, y; lo = low(x) + low(y), hi = high(x) + high(y))
end
subtracted(x, y) = is_offset(x, y) ? moved(x, -y) :
    emit(LibFXA.FXA_OP_SUB, x, y; lo = low(x) - high(y), hi = high(x) - low(y))

function multiplied(x, y)
    tx, ty = type_of(x), type_of(y)
    tx == BOOL && ty == BOOL && return emit(LibFXA.FXA_OP_AND, x, y)
    # In Julia false is a strong zero: false * NaN is 0.
    tx == BOOL && return select(x, y, ty == FLOAT ? 0.0 : 0)
    ty == BOOL && return select(y, x, tx == FLOAT ? 0.0 : 0)
    corners = (low(x) * low(y), low(x) * high(y), high(x) * low(y), high(x) * high(y))
    return emit(LibFXA.FXA_OP_MUL, x, y; lo = minimum(corners), hi = maximum(corners))
end

lesser(x, y) = both_bool(x, y) ? emit(LibFXA.FXA_OP_AND, x, y) :
    emit(LibFXA.FXA_OP_MIN, x, y; lo = min(low(x), low(y)), hi = min(high(x), high(y)))
greater(x, y) = both_bool(x, y) ? emit(LibFXA.FXA_OP_OR, x, y) :
    emit(LibFXA.FXA_OP_MAX, x, y; lo = max(low(x), low(y)), hi = max(high(x), high(y)))
both_bool(x, y) = type_of(x) == BOOL && type_of(y) == BOOL
is_floating(x, y) = type_of(x) == FLOAT || type_of(y) == FLOAT

function floored(x, y)
    bounded = !is_floating(x, y) && low(y) > 0
    lo = bounded ? min(fld(low(x), low(y)), fld(low(x), high(y))) : LOWEST
    hi = bounded ? max(fld(high(x), low(y)), fld(high(x), high(y))) : HIGHEST
    return emit(LibFXA.FXA_OP_FLOORDIV, x, y; lo = lo, hi = hi)
end
function modulo(x, y)
    lo, hi = !is_floating(x, y) && low(y) > 0 ? (Int64(0), high(y) - 1) : (LOWEST, HIGHEST)
    return emit(LibFXA.FXA_OP_MOD, x, y; lo = lo, hi = hi)
end

"""Returns Julia's x ÷ y, rounded towards zero. If neither operand can be negative, rounds down, which gives the same
result."""
function quotient(x, y)
    is_floating(x, y) && return round((x - remainder(x, y)) / y)
    low(x) >= 0 && low(y) >= 0 && return floored(x, y)
    size = fld(abs(x), abs(y))
    return select(xor(x < 0, y < 0), -size, size)
end
function remainder(x, y)
    !is_floating(x, y) && low(x) >= 0 && low(y) >= 0 && return modulo(x, y)
    size = mod(abs(x), abs(y))
    return select(x < 0, -size, size)
end

divided(x, y) = emit(LibFXA.FXA_OP_DIV, x, y)
divides(x, y) = divided(y, x)
ceiled(x, y) = -fld(-x, y)
define_binary(((:+, added), (:-, subtracted), (:*, multiplied), (:/, divided), (:\, divides), (:min, lesser),
               (:max, greater), (:fld, floored), (:mod, modulo), (:div, quotient), (:rem, remainder), (:cld, ceiled)))
Base.fld1(x::Traced, y::Traced) = fld(x - 1, y) + 1
Base.mod1(x::Traced, y::Traced) = mod(x - 1, y) + 1
Base.divrem(x::Traced, y::Real) = (div(x, y), rem(x, y))
Base.fldmod(x::Traced, y::Real) = (fld(x, y), mod(x, y))
Base.minmax(x::Traced, y::Traced) = (min(x, y), max(x, y))
Base.muladd(x::Traced, y::Traced, z::Traced) = x * y + z
Base.fma(x::Traced, y::Traced, z::Traced) = x * y + z

Base.:+(x::Traced) = x
Base.:-(x::Traced) = unary(x, -) do x
    emit(LibFXA.FXA_OP_NEG, x; lo = -high(x), hi = -low(x))
end
Base.abs(x::Traced) = unary(x, abs) do x
    low(x) >= 0 && type_of(x) != FLOAT && return x
    emit(LibFXA.FXA_OP_ABS, x; lo = 0, hi = max(abs(low(x)), abs(high(x))))
end
Base.abs2(x::Traced) = x * x
Base.inv(x::Traced) = 1 / x
Base.sign(x::Traced) = unary(x -> emit(LibFXA.FXA_OP_SIGN, x; lo = -1, hi = 1), x, sign)

unary(body, x, f) = is_number(x) ? Traced(f(plain(x))) : body(x)

function Base.clamp(x::Traced, lo::Real, hi::Real)
    # If the bounds may be in the wrong order, the result follows Julia's own definition of clamp.
    ordered = is_number(lo) && is_number(hi) && plain(lo) <= plain(hi)
    if ordered && !is_number(x)
        within(n) = clamp(n, low(lo), high(hi))
        return emit(LibFXA.FXA_OP_CLAMP, x, plain(lo), plain(hi); lo = within(low(x)), hi = within(high(x)))
    end
    return select(x > hi, hi, select(x < lo, lo, x))
end
Base.clamp(x::Plain, lo::Traced, hi::Real) = clamp(Traced(x), lo, hi)
Base.clamp(x::Plain, lo::Plain, hi::Traced) = clamp(Traced(x), lo, hi)

# ---- Powers ----------------------------------------------------------------------------------------------------------

function powered(x, y)
    if type_of(y) == FLOAT
        return emit(LibFXA.FXA_OP_POW, x, y)
    elseif y isa Traced
        return emit(LibFXA.FXA_OP_POW, type_of(x) == FLOAT ? x : float(Traced(x)), y)
    elseif y < 0
        type_of(x) == FLOAT || refuse("an int is raised to the power $y; write float(x)^$y")
        return 1 / powered(x, -y)
    end
    type_of(x) == FLOAT && y > 4 && return emit(LibFXA.FXA_OP_POW, x, Float64(y))
    return y == 0 ? one(x) : by_squares(x, Int(y))
end

function by_squares(x, exponent)
    result, square = nothing, x
    while exponent > 0
        isodd(exponent) && (result = result === nothing ? square : result * square)
        exponent >>= 1
        exponent > 0 && (square = square * square)
    end
    return result
end

Base.:^(x::Traced, y::Traced) = on_numbers(^, powered, x, y)
Base.:^(x::Traced, y::Integer) = on_numbers(^, powered, x, y)
Base.:^(x::Traced, y::Union{AbstractFloat, AbstractIrrational}) = on_numbers(^, powered, x, Float64(y))
Base.:^(x::Traced, y::Rational) = on_numbers(^, powered, x, Float64(y))
Base.:^(x::Plain, y::Traced) = on_numbers(^, powered, x, y)
Base.:^(::Irrational{:ℯ}, y::Traced) = exp(y)

# ---- Functions of floats ---------------------------------------------------------------------------------------------

for (name, op) in ((:sqrt, :SQRT), (:exp, :EXP), (:exp2, :EXP2), (:log, :LOG), (:log2, :LOG2), (:log1p, :LOG1P),
                   (:tanh, :TANH), (:sin, :SIN), (:cos, :COS), (:tan, :TAN), (:atan, :ATAN))
    code = getproperty(LibFXA, Symbol(:FXA_OP_, op))
    @eval Base.$name(x::Traced) = unary(x -> emit($code, x), x, $name)
end

Base.exp10(x::Traced) = 10.0^x
Base.log10(x::Traced) = log(x) * 0.4342944819032518
Base.expm1(x::Traced) = tanh(x / 2) * (exp(x) + 1)
Base.sinh(x::Traced) = select(abs(x) < 1, expm1(x) * (1 + exp(-x)) / 2, (exp(x) - exp(-x)) / 2)
Base.cosh(x::Traced) = (exp(x) + exp(-x)) / 2
Base.asin(x::Traced) = atan(x / sqrt((1 - x) * (1 + x)))
Base.acos(x::Traced) = pi / 2 - asin(x)
function Base.atan(y::Traced, x::Traced)
    turned = atan(y / x)
    left = select(y >= 0, turned + pi, turned - pi)
    straight = select(y > 0, pi / 2, select(y < 0, -pi / 2, 0.0))
    return select(x > 0, turned, select(x < 0, left, straight))
end
Base.atan(y::Traced, x::Plain) = atan(y, Traced(x))
Base.atan(y::Plain, x::Traced) = atan(Traced(y), x)
Base.cbrt(x::Traced) = sign(x) * abs(x)^(1 / 3)
Base.sincos(x::Traced) = (sin(x), cos(x))
Base.hypot(x::Traced, y::Traced) = sqrt(x * x + y * y)
Base.float(x::Traced) = x.type == FLOAT ? x : unary(x -> emit(LibFXA.FXA_OP_FLOAT, x), x, float)
Base.AbstractFloat(x::Traced) = float(x)
Base.Float64(x::Traced) = float(x)
Base.Float32(x::Traced) = float(x)
Base.Float16(x::Traced) = float(x)

# Functions that Base lacks. On traced values each is one operation of the library; on numbers it is computed here.
"""    sigmoid(x) = 1 / (1 + exp(-x))"""
sigmoid(x::Real) = 1 / (1 + exp(-x))
"""    softplus(x) = log(1 + exp(x))"""
softplus(x::Real) = max(x, 0) + log1p(exp(-abs(x)))
"""    relu(x) = max(x, 0), with derivative 0 at 0"""
relu(x::Real) = x <= 0 ? zero(x) : x
"""    rsqrt(x) = 1 / sqrt(x)"""
rsqrt(x::Real) = 1 / sqrt(x)
"""    erf(x), the error function"""
erf(x::Real) = ccall((:erf, Base.Math.libm), Float64, (Float64,), x)
"""    with_grad(x, y) = x, with the gradient of y; with_grad(x, 0) has no gradient"""
with_grad(x::Real, y::Real) = x
"""    stop_gradient(x) = x, without a gradient"""
stop_gradient(x::Real) = x
for (name, op) in ((:sigmoid, :SIGMOID), (:softplus, :SOFTPLUS), (:relu, :RELU), (:rsqrt, :RSQRT), (:erf, :ERF),
                    (:stop_gradient, :STOP_GRADIENT))
    code = getproperty(LibFXA, Symbol(:FXA_OP_, op))
    @eval $name(x::Traced) = unary(x -> emit($code, x), x, $name)
end
traced_with_grad(x, y) = emit(LibFXA.FXA_OP_WITH_GRAD, x, y)
define_binary(((:with_grad, traced_with_grad),))

# ---- Rounding --------------------------------------------------------------------------------------------------------

for (name, op) in ((:floor, :FLOOR), (:ceil, :CEIL), (:trunc, :TRUNC), (:round, :ROUND))
    code = getproperty(LibFXA, Symbol(:FXA_OP_, op))
    @eval Base.$name(x::Traced) = x.type != FLOAT ? x : unary(x -> emit($code, x), x, $name)
    @eval Base.$name(::Type{T}, x::Traced) where {T <: Integer} = to_int($name(x))
end
Base.round(x::Traced, ::RoundingMode{:Nearest}) = round(x)
Base.round(x::Traced, ::RoundingMode{:Down}) = floor(x)
Base.round(x::Traced, ::RoundingMode{:Up}) = ceil(x)
Base.round(x::Traced, ::RoundingMode{:ToZero}) = trunc(x)
function to_int(x::Traced)
    x.type == INT && return x
    lo, hi = x.type == BOOL ? (0, 1) : (LOWEST, HIGHEST)
    return unary(x -> emit(LibFXA.FXA_OP_INT, x; lo = lo, hi = hi), x, Int)
end
Base.Int64(x::Traced) = to_int(x)
Base.Int32(x::Traced) = to_int(x)
Base.Integer(x::Traced) = to_int(x)

# ---- Comparisons, logic, bits ----------------------------------------------------------------------------------------

is_same(x, y) = emit(LibFXA.FXA_OP_EQ, x, y)
is_other(x, y) = emit(LibFXA.FXA_OP_NE, x, y)
is_less(x, y) = emit(LibFXA.FXA_OP_LT, x, y)
is_at_most(x, y) = emit(LibFXA.FXA_OP_LE, x, y)
define_binary(((:(==), is_same), (:!=, is_other), (:<, is_less), (:<=, is_at_most)))
Base.isless(x::Traced, y::Traced) = x < y
Base.isequal(x::Traced, y::Traced) = x == y
Base.isnan(x::Traced) = x != x
Base.isinf(x::Traced) = abs(x) == Inf
Base.isfinite(x::Traced) = abs(x) < Inf
Base.iszero(x::Traced) = x == 0
Base.isone(x::Traced) = x == 1
Base.isodd(x::Traced) = x & 1 == 1
Base.iseven(x::Traced) = x & 1 == 0
Base.signbit(x::Traced) = x < 0
Base.:(==)(x::Traced, y::AbstractIrrational) = x == Float64(y)
Base.:(==)(x::AbstractIrrational, y::Traced) = Float64(x) == y
Base.in(x::Traced, items::Union{Tuple, Array}) = is_one_of(x, items)
Base.in(x::Traced, items::AbstractRange{<:Integer}) = is_one_of(x, items)
Base.in(x::Traced, items::AbstractRange{<:AbstractFloat}) = is_one_of(x, items)
# Adds one item at a time, so that for a long range the builder's limit on nodes throws before memory runs out.
function is_one_of(x, items)
    is_number(x) && items isa AbstractRange && return Traced(plain(x) in items)
    found = Traced(false)
    for (i, y) in enumerate(items)
        found = i == 1 ? x == y : found | (x == y)
    end
    return found
end
function Base.in(x::Traced, items::AbstractUnitRange{<:Integer})
    x.type == FLOAT && return is_one_of(x, items)
    return (x >= first(items)) & (x <= last(items))
end

function on_bits(op, x, y)
    is_floating(x, y) && refuse("&, | and xor take ints and bools, not floats; compare a float first")
    if op != LibFXA.FXA_OP_AND
        # If both operands are non-negative, the result has at most as many binary digits as the larger one.
        positive = low(x) >= 0 && low(y) >= 0
        digits = ndigits(max(high(x), high(y)); base = 2)
        return positive ? emit(op, x, y; lo = 0, hi = Int64(2)^digits - 1) : emit(op, x, y)
    end
    # x & y sets no bit that a non-negative operand lacks.
    whole(z) = low(z) >= 0 ? high(z) : HIGHEST
    return emit(op, x, y; lo = low(x) >= 0 || low(y) >= 0 ? 0 : LOWEST, hi = min(whole(x), whole(y)))
end
bits_and(x, y) = on_bits(LibFXA.FXA_OP_AND, x, y)
bits_or(x, y) = on_bits(LibFXA.FXA_OP_OR, x, y)
bits_xor(x, y) = on_bits(LibFXA.FXA_OP_XOR, x, y)
define_binary(((:&, bits_and), (:|, bits_or), (:xor, bits_xor)))
Base.:~(x::Traced) = unary(x -> emit(LibFXA.FXA_OP_NOT, x), x, ~)
Base.:!(x::Traced) = x.type == BOOL ? unary(x -> emit(LibFXA.FXA_OP_NOT, x), x, !) :
    refuse("! takes a bool, not $x; compare it, as in x == 0")

"""Returns Julia's shift of x by n: a count above 31 gives 0, or the sign for >>; a negative count shifts in the other
direction. The library's own shifts take the count modulo 32."""
function shifted(op, x, n)
    type_of(x) == FLOAT && refuse("shifts take ints, not floats")
    if n isa Integer && 0 <= n < 32
        return op == LibFXA.FXA_OP_SHR ? emit(op, x, n; lo = low(x) >> n, hi = high(x) >> n) : emit(op, x, n)
    end
    other = op == LibFXA.FXA_OP_SHL ? LibFXA.FXA_OP_SHR : LibFXA.FXA_OP_SHL
    n isa Integer && n < 0 && return shifted(other, x, -n)
    rest(op) = op == LibFXA.FXA_OP_SHL ? 0 : select(x < 0, -1, 0)
    n isa Integer && return Traced(rest(op))
    here = select(n < 32, emit(op, x, n), rest(op))
    return low(n) >= 0 ? here : select(n < 0, select(n > -32, emit(other, x, -n), rest(other)), here)
end
for (name, op) in ((:<<, :SHL), (:>>, :SHR))
    code = getproperty(LibFXA, Symbol(:FXA_OP_, op))
    @eval Base.$name(x::Traced, n::Traced) = on_numbers($name, (x, n) -> shifted($code, x, n), x, n)
    @eval Base.$name(x::Traced, n::Int) = on_numbers($name, (x, n) -> shifted($code, x, n), x, n)
    @eval Base.$name(x::Traced, n::Unsigned) = $name(x, Int(n))
    @eval Base.$name(x::Integer, n::Traced) = on_numbers($name, (x, n) -> shifted($code, x, n), x, n)
end

# ---- Choice ----------------------------------------------------------------------------------------------------------

"""Returns x if the condition c is true, else y. Both operands are computed."""
function select(c, x::Real, y::Real)
    c = plain_any(c)
    c isa Bool && return c ? x : y
    c isa Traced && type_of(c) == BOOL || refuse("ifelse takes a condition, not $c; compare it, as in x != 0")
    x, y = plain(x), plain(y)
    return emit(LibFXA.FXA_OP_SELECT, c, x, y; lo = min(low(x), low(y)), hi = max(high(x), high(y)))
end
plain_any(c) = c isa Traced ? plain(c) : c

# Before Julia 1.8 Base.ifelse takes only a Bool and is a builtin without methods. So FXAttn.ifelse is defined, which
# takes Bools and traced values.
if Base.ifelse isa Core.Builtin
    ifelse(c, x, y) = Core.ifelse(c, x, y)
else
    import Base: ifelse
end
ifelse(c::Traced, x, y) = select(c, x, y)
