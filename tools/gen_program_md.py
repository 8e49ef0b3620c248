#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/program.md, the reference of the program language, from src/program/ops.def and the public header.

    tools/gen_program_md.py            writes docs/program.md
    tools/gen_program_md.py --check    only compares; exit status 1 when the page is out of date

The content of the tables is read from the sources. After adding an operation to ops.def, run this script again.
"""
import os
import re
import sys
import textwrap

import public_header

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "program.md")

# Text for each derivative rule of ops.def: the gradient of an operand from the gradient g of the result r.
RULES = {
    "ZERO": "none",
    "ADD": "g to both operands",
    "SUB": "g to x, -g to y",
    "MUL": "g * y to x, g * x to y",
    "DIV": "g / y to x, -(g / y) * r to y",
    "MOD": "g to x, -g * (x // y) to y",
    "NEG": "-g",
    "ABS": "g where x > 0, -g where x < 0, 0 at 0",
    "MIN": "g to the smaller operand; g / 2 to each if they are equal",
    "MAX": "g to the larger operand; g / 2 to each if they are equal",
    "CLAMP": "g to x where lo <= x <= hi, else to the bound that is the result",
    "POW": "g * y * x ** (y - 1) to x (0 where y = 0), g * r * log(x) to y (0 where x = 0 and y >= 0)",
    "SQRT": "g / (2 * r)",
    "RSQRT": "g * (-0.5 * r / x)",
    "EXP": "g * r",
    "EXP2": "g * r * log(2)",
    "LOG": "g / x",
    "LOG1P": "g / (1 + x)",
    "LOG2": "g / (x * log(2))",
    "ATAN": "g / (1 + x * x)",
    "BUILT": "the gradient of its rewritten form",
    "TANH": "g * (1 - r * r)",
    "SIGMOID": "g * r * (1 - r)",
    "ERF": "g * (2 / sqrt(pi)) * exp(-x * x)",
    "SIN": "g * cos(x)",
    "COS": "g * -sin(x)",
    "TAN": "g * (1 + r * r)",
    "WITH_GRAD": "g to y",
    "SELECT": "g to the selected operand",
    "FLOAT": "g if x is a float; ints and bools have no gradient",
}

SIGNATURES = {
    "ARITH": ("ints or floats", "the operands' type"),
    "REAL": ("floats", "float"),
    "BITS": ("ints or bools", "the operands' type"),
    "SHIFT": ("ints", "int"),
    "CMP": ("ints or floats", "bool"),
    "CHOICE": ("a bool, then two operands of any type", "the type of x and y"),
    "TOF": ("any", "float"),
    "TOI": ("any", "int"),
}

# Examples of errors on the page, which tests/test_program_md.py runs: (program, line, column, length, message).
ERRORS = [
    ("score = scroe + 1", 1, 9, 5, "unknown name 'scroe'; did you mean 'score'?"),
    ("mask = q and k > 0", 1, 10, 3,
     "expected an operator or the end of the statement, found 'and'; write && for 'and'"),
    ("mask = q = k", 1, 10, 1, "expected an operator or the end of the statement, found '='; write == to compare"),
    ("mask = 0 < q < k", 1, 14, 1, "comparisons do not chain; for a < b < c write a < b && b < c"),
    ("mask = q && k > 0", 1, 8, 1, "'&&' needs a bool, this is an int; compare it, as in x != 0"),
    ("score = score & 1", 1, 15, 1, "'&' takes ints or bools, not float and int"),
    ("score = (score + 1", 1, 9, 1, "this '(' is never closed"),
    ("tensor bias : f32[2]\nscore = score + bias[q]", 2, 17, 7,
     "tensor 'bias' has rank 2, so it takes 2 indices; 1 given"),
    ("tensor bias : f32[2]\nscore = bias", 2, 9, 4, "'bias' is a tensor of rank 2; read it as bias[i, j]"),
    ("score = clamp(score, 1)", 1, 9, 15, "'clamp' takes 3 arguments; 2 given"),
    ("score = sum(i, q, 1)", 1, 16, 1,
     "the count of a loop is a constant int; no float, input, param or tensor can be in it"),
    ("fn gate(x) = x & 1\n\nscore = gate(score)", 1, 16, 1,
     "'&' takes ints or bools, not float and int; in gate, called at line 3"),
    ("fn cap(x, c) = c * tanh(x / c)\nscore = cap(score)", 2, 9, 10, "'cap' takes 2 arguments, cap(x, c); 1 given"),
    ("score = torch.where(q > k, score, 0)", 1, 9, 11, "there are no modules; write where instead of torch.where"),
    ("param cap = 20", 1, 7, 3, "the type of param 'cap' is missing; write param cap : float = ..."),
    ("score = score ^ 2", 1, 15, 1, "'^' takes ints or bools, not float and int; powers are written x ** y"),
    ("score = 1e999", 1, 9, 5, "this number is too large for a float; write inf"),
    ("score = score @ 2", 1, 15, 1, "stray character '@'; names have letters, digits and '_'"),
]


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def fields(row):
    """Returns the arguments of one OP(...) row, split at commas outside of brackets and strings."""
    out, depth, start, quoted = [], 0, 0, False
    for i, c in enumerate(row):
        if c == '"':
            quoted = not quoted
        elif not quoted and c in "([":
            depth += 1
        elif not quoted and c in ")]":
            depth -= 1
        elif c == "," and depth == 0 and not quoted:
            out.append(row[start:i].strip())
            start = i + 1
    return out + [row[start:].strip()]


def operations():
    ops = []
    for row in re.findall(r"^OP\((.*)\)$", read("src", "program", "ops.def"), re.M):
        code, ident, text, form, prec, arity, sig, flags, exact, _, _, _, rule, about = fields(row)
        if rule not in RULES:
            sys.exit("gen_program_md.py: derivative rule %s of %s has no text here" % (rule, ident))
        ops.append({"code": int(code), "id": ident, "text": text.strip('"'), "form": form, "prec": prec,
                    "arity": int(arity), "sig": sig, "flags": flags, "exact": exact, "rule": rule,
                    "about": about.strip('"')})
    if not ops:
        sys.exit("gen_program_md.py: no operations found in ops.def")
    return ops


def limits():
    found = re.findall(r"^#define FXA_(MAX_\w+) +\(?(\d+)u?(?: << (\d+))?", public_header.text(), re.M)
    return {name: int(value) << int(shift or 0) for name, value, shift in found}


def dtypes():
    header = public_header.text()
    return re.findall(r'^    X\(\w+, \d+, "(\w+)", (\d), (FLOAT|INT|BOOL)\)', header, re.M)


def cell(text):
    return text.replace("|", "\\|")


def spelling(op):
    names = {"CLAMP": ["x", "lo", "hi"], "SELECT": ["c", "x", "y"]}.get(op["id"], ["x", "y"])
    if op["form"] == "INFIX":
        return "x %s y" % op["text"]
    if op["form"] == "PREFIX":
        return "%sx" % op["text"]
    return "%s(%s)" % (op["text"], ", ".join(names[:op["arity"]]))


def operation_rows(ops, chosen):
    rows = ["| syntax | operands | result | meaning |", "|---|---|---|---|"]
    for op in ops:
        if op["form"] != "SPECIAL" and chosen(op):
            takes, gives = SIGNATURES[op["sig"]]
            rows.append("| `%s` | %s | %s | %s |" % (cell(spelling(op)), takes, gives, cell(op["about"])))
    return "\n".join(rows)


def derivative_rows(ops):
    rows = ["| operation | gradient of its operands, with g the gradient of its result r |", "|---|---|"]
    for op in ops:
        if op["form"] != "SPECIAL" and op["rule"] != "ZERO":
            rows.append("| `%s` | %s |" % (cell(spelling(op)), RULES[op["rule"]]))
    flat = ["`%s`" % spelling(op) for op in ops if op["form"] != "SPECIAL" and op["rule"] == "ZERO"]
    words = "These operations pass no gradient to their operands: " + ", ".join(one.replace(" ", "\xa0") for one in flat) + "."
    words = "\n".join(textwrap.wrap(words, 100, break_on_hyphens=False)).replace("\xa0", " ")
    return "\n".join(rows) + "\n\n" + words


def precedence_rows(ops):
    """Returns a table row for each PREC of ops.def with its spellings, and rows for the three syntax forms without an
    operation."""
    table = read("src", "program", "ops.def")
    spellings = [(op["prec"], op["text"]) for op in ops if op["form"] in ("INFIX", "PREFIX")]
    spellings += [(prec, text) for text, form, prec in re.findall(r'^ALSO\(\w+, +"(.*?)", +(\w+), +(\w+),', table, re.M)
                  if form != "CALL"]
    rows = ["| operators, from lowest to highest precedence | associativity | operands |", "|---|---|---|",
            "| `c ? x : y` | right | c is a bool |"]
    for ident, groups, note in re.findall(r'^PREC\((\w+), +"(.*?)", +"(.*?)"\)$', table, re.M):
        texts = [text for prec, text in spellings if prec == ident]
        if ident == "PREFIX":
            texts = texts + ["+ before a value"]
        if ident == "ATOM":
            texts = ["t[i, j] f(x) ( )"]
        rows.append("| `%s` | %s | %s |" % (cell(" ".join(texts)), groups, note))
    return "\n".join(rows)


def limit_rows(found):
    what = [
        ("MAX_TEXT", "bytes of text in one parse, all texts together"),
        ("MAX_NESTING", "nested levels of an expression, the expression itself included: parentheses, calls, indices, prefixes, powers and conditionals"),
        ("MAX_NODES", "distinct operations of a program"),
        ("MAX_PARAMS", "params"),
        ("MAX_TENSORS", "tensors"),
        ("MAX_RANK", "indices of a tensor, its rank"),
        ("MAX_NAME", "bytes of a name"),
        ("MAX_LOOP", "iterations of a loop"),
    ]
    rows = ["| maximum | quantity | constant in C |", "|---|---|---|"]
    rows += ["| %s | %s | `FXA_%s` |" % (found[name], text, name) for name, text in what]
    return "\n".join(rows)


def error_blocks():
    blocks = []
    for text, line, column, length, message in ERRORS:
        shown = text.split("\n")[line - 1]
        blocks.append("    program.fxa:%d:%d: error: %s\n      %s\n      %s%s" %
                      (line, column, message, shown, " " * (column - 1), "^" * length))
    return "\n\n".join(blocks)


def dtype_rows():
    rows = ["| storage type | bytes | type when read |", "|---|---|---|"]
    rows += ["| `%s` | %s | %s |" % (name, size, kind.lower()) for name, size, kind in dtypes()]
    return "\n".join(rows)


TEMPLATE = """\
<!-- Written by tools/gen_program_md.py from src/program/ops.def and the public header. Change those, not this. -->
# The program language

A score program defines how the score of one pair (query q, key k) changes, and whether the pair is
attended:

    param  softcap : float               # run-time scalar: changing it never recompiles
    tensor slopes  : f32[1]              # captured tensor of rank 1: data is bound at run time
    let    dist = q - k
    score = softcap * tanh((score + slopes[h] * dist) / softcap)
    mask  = q >= k && dist < 1024        # pairs where mask is false are not attended

A program is typed, has no side effects, and applies to all pairs. Names of program files end in
`.fxa`. The C builder (`fxa_builder_*`) creates programs without text, and [tracing](tracing.md)
creates them from Python functions. `examples/programs` has many examples.

A program is data and not a callback, so the library can derive from it the backward pass, the
gradients of params and captured tensors, the tiles without an attended pair, and a cache key. These
commands show what the library derives from a program:

    fxattn explain --program @softcap_causal_window    # canonical text, derivative, tiles, engines
    fxattn check --program @softcap_causal_window      # compares gradients with finite differences
    fxattn plot --program @softcap_causal_window       # the mask and the score

## Statements

Statements are separated by newlines or `;`. `#` starts a comment. A newline inside `( )` or `[ ]`,
or after an operator, does not end a statement. Statements run in order.

| statement | meaning |
|---|---|
| `param NAME : float` or `int` | a scalar argument of each run; `= VALUE` adds a default |
| `tensor NAME : DTYPE[RANK]` | a captured tensor of rank 0 to @MAX_RANK@; its data is bound at run time |
| `let NAME = expr` | a name for a value; a later `let` of the same name replaces it for the statements after it |
| `fn NAME(x, y) = expr` | a function, see [below](#functions-of-a-text) |
| `score = expr` | the new score, a float (an int is converted); `score` starts as scale * q.k |
| `mask = expr` | whether the pair is attended, a bool; `mask` starts as `true` |

The param `param cap : float = 20` has a default, which front ends use if no value is given; the
command `fxattn` reports that it used a default. A default is a constant expression, of type int for
an int param. Defaults are part of a program's text and bytes (`fxa_program_param_default`), but not
of its hash. Engines always receive a value for every param.

`score` and `mask` may be assigned several times. In an expression, `score` and `mask` mean their
current values, so programs compose by concatenation (`mask = mask && doc[q] == doc[k]`). A param or
tensor may be declared again with the same type. The empty program leaves scores unchanged and masks
nothing.

Two more kinds of program use the language of score programs:

| kind | reads | writes |
|---|---|---|
| score program | `score`, coordinates, params, tensors | `score =`, `mask =` |
| user-written backward program (bprop) | `score`, coordinates, params, tensors, and `dscore`, the gradient of the new score | `dscore =` |
| derivative, created by the library | the same as a bprop | `dscore =`, `grad PARAM += expr`, `grad TENSOR[i, j] += expr` |

In a bprop and a derivative, `score` is the score before the program; an expression that reads
`dscore` gets the value that earlier statements have assigned to `dscore`.

## Values

A value is a `float`, an `int` of 32 bits or a `bool`. Floats are f64 in the reference engine and
for f64 problems, and f32 otherwise. Constants and params are stored in f64 and rounded once;
elements of `f64` tensors are rounded when they are read. Unless Q is f64, a float cannot represent
a time in seconds, or a count beyond 2^24, exactly. Store times and large counts in an int tensor
and compute differences of ints, or subtract an offset before you store them as floats.

| name | type | meaning |
|---|---|---|
| `score` | float | the score, already scaled |
| `b`, `h`, `q`, `k` | int | batch entry, query head, query position, key position |
| `q_len`, `k_len` | int | lengths of the two sequences of this batch entry |
| `heads` | int | number of query heads; for a shard, the number of heads of the entire problem (`fxa_problem.global_heads`) |
| `q_row`, `k_row` | int | index of the row and of the key in memory |
| `dscore` | float | the gradient of the new score; only in backward programs |
| `true`, `false` | bool | constants |
| `inf`, `nan`, `pi` | float | constants |

The positions q and k count from 0 in each sequence of a batch; index maps give the parts of a
larger problem their positions in the entire problem. If the first row is not at position 0
(decoding, chunks of a prompt), `FXA_Q_START` passes the q of the first row of each batch entry.
`FXA_BOTTOM_RIGHT` with neither `FXA_CAUSAL` nor `FXA_WINDOW` aligns the last row with the last key:
q becomes q + k_len - q_len. With `FXA_Q_START` or `FXA_BOTTOM_RIGHT`, one program serves prefill,
chunks and decoding (see the rule for [coordinates](numerics.md#coordinates)). Coordinates wrap at
32 bits, as all ints do.

The inputs q and k are logical positions, for masks and distances. `q_row` and `k_row` are storage
indices: the index of the row and of the key along its axis in this problem, from 0 in each sequence
(also if packed or paged), not affected by maps, `FXA_Q_START` and alignment. Use `q_row` and
`k_row` to index an array that is stored like the rows: `ids[b, q_row] == ids[b, k_row]`, `bias[b,
h, q_row, k_row]`. If a problem does not shift or map q, `q_row` equals q, and the library replaces
`q_row` by q.

Numbers like `12` and `0x1F` are ints: decimal up to 2147483647, also -2147483648; hexadecimal up to
0xFFFFFFFF, as a bit pattern. Numbers like `1.5`, `.5`, `5.` and `1e-3` are floats, which the parser
rounds correctly in every locale.

### Conversions

Implicit conversions only widen: in an operation of a bool and an int, the bool becomes 0 or 1; in
an operation of a float and an int or bool, the int or bool becomes a float. Arithmetic counts bools
as ints, so `(q < 4) + (k < 4)` is an int. `float(x)` and `int(x)` are explicit; `int` of a float
truncates towards zero, saturates, and is 0 for NaN. Nothing becomes a bool implicitly: write `x !=
0`.

### Tensors

`t[i, j]` reads an element, and `t[]` reads the element of a tensor of rank 0. An index is any int
expression, for example a loaded value. A negative index counts from the end. An index outside the
tensor on either side reads 0 (or false) and adds no gradient.

Reading 0 for an index outside the tensor can hide a mistake, such as a transposed table.
`fxa_bounds_check` counts out-of-bounds indices by tensor and axis; `fxattn run`, `check` and
`explain` report them. A run of a problem with `FXA_BOUNDS_CHECK` fails if an index is out of
bounds. The check of `FXA_BOUNDS_CHECK` costs nothing if sizes, masks and conditions prove that all
indices are in bounds; if an index cannot be proven in bounds, each run evaluates the indices of all
pairs. `fxa_bounds_check` and `FXA_BOUNDS_CHECK` check only loads that the result needs: loads of
the mask at every existing pair, loads of the score where the mask is true, and loads in the branch
that a `select` takes. A load in one operand of `&&` or `||` is not checked if the other operand
decides the result. For example, `k < n && t[k] > 0` and `d < n ? t[d] : 0` pass the check of
`FXA_BOUNDS_CHECK` even if k or d is out of bounds of t. Loads of a user-written backward program
are checked at attended pairs. Loads in the second operand of `with_grad` are checked in backward
passes with the derived backward, since the gradient passes through them.

@dtypes@

## Operators

@precedence@

Bit operators bind tighter than comparisons, as in Python and unlike C: `q & 1 == 0` means `(q & 1)
== 0`.

## Operations

Arithmetic:

@arithmetic@

`min` and `max` take two or more operands and apply from left to right. `pow(x, y)` is `x ** y`.
Derivatives that the library creates use the product `mulz(x, y)` and the quotient `divz(x, y)`,
which are 0 where x is 0. `with_grad(x, y)` has the value of x and the gradient of y
(straight-through estimator): `with_grad(round(score), score)` is the rounded score with the
gradient of the unrounded score. `with_grad` does not compute the value of y. `stop_gradient(x)` is
`with_grad(x, 0.0)`: x without a gradient.

Functions of floats:

@functions@

`relu`, `sign`, `stop_gradient` and `softplus` are rewritten when a program is built and never
appear in canonical text. A param, tensor, let or `fn` with the name `relu`, `sign`, `stop_gradient`
or `softplus` hides the function. The names of all functions but `relu`, `sign`, `stop_gradient` and
`softplus` are reserved.

Bits and logic:

@bits@

Comparisons, choice and conversions:

@choices@

`c ? x : y` is `where(c, x, y)`; the operand that is not selected affects neither the result nor
gradients.

### Loops

`sum(i, n, expr)` adds `expr` for i = 0, 1, ..., n - 1, from left to right. `any(i, n, cond)` and
`all(i, n, cond)` join `cond` for i = 0, 1, ..., n - 1 with `||` and `&&`. The count n of a loop is
a constant int expression of 0 to @MAX_LOOP@. The variable `i` is local to the loop and may hide a let.
Loops can be nested, and the count of an inner loop may depend on the variables of outer loops.
Loops are unrolled when the program is built. A loop with a count of 0 has no terms: its `sum` is 0
of the type of `expr`, its `any` is `false` and its `all` is `true`. A sum of bools is the number of
true bools.

    mask = any(i, 4, blocks[q // 64, i] == k // 64)

### Functions of a text

    fn cap(x, c)    = c * tanh(x / c)
    fn near(i, j)   = abs(i - j) < 128 || j < 4
    score = cap(score, 20)
    mask  = k <= q && near(q, k)

`fn NAME(x, y) = expr` names an expression with 0 to @PARAMETERS@ parameters. The parser replaces a call of a
function by the function's expression, so functions are not part of programs and hashes. Each
argument of a function call is computed once. A parameter has the type of its argument, so a
function can be called with ints and with floats.

Names in the body of a function that are not parameters refer to lets, params, tensors and functions
that precede the definition, so a function cannot call itself. A `let` after the definition of a
function, or a parameter or loop around a call of the function, does not change the meaning of names
in the function's body. Loop variables in the body of a function are local to the body. In the body
of a function, `score`, `mask` and `dscore` have the values that they have at the call. A parameter
of a function may hide a let. A second `fn` with the name of a function replaces the function for
the statements after the second `fn`.

Errors in the body of a function that do not depend on arguments (syntax, names, numbers of
arguments) are reported at the definition, even if the function is never called. Types and loop
counts in the body of a function are checked at each call of the function; the error message names
the line of the call.

## What every engine must agree on

- Ints wrap at 32 bits. `x // 0` and `x % 0` are 0. `>>` is arithmetic; shift counts are taken
  modulo 32. An `i64` element beyond 32 bits saturates when it is read, except in `==` and `!=` of
  two loads of `i64` tensors. `==` and `!=` of two `i64` loads, from the same tensor or from two
  tensors, compare all 64 bits, so `doc[q] == doc[k]` is exact for ids of any size. In `==` and
  `!=`, the name of a `let` whose value is a load counts as a load. All expressions other than `==`
  and `!=` of two `i64` loads, like `doc[q] <= doc[k]`, `doc[q] - doc[k] == 0` and equality with an
  int that is no load, use the saturated 32 bits.
- `//` rounds down and `%` has the sign of the divisor, for ints and floats. `round` rounds halves
  to even. `min`, `max` and `clamp` with a NaN give NaN.
- Comparisons with a NaN are false, except `!=`, which is true.
- If a program jumps (`int(log(x))` near a whole number), the precision of floats may decide on
  which side a value falls.
- Engines compute in f64 or f32, and their math functions (exp, tanh, ...) may differ in the last
  digits.

The page [numerics](numerics.md) defines the softmax of the new scores, rows that attend to nothing,
and NaN.

## Derivatives

The library computes the derivatives of the new score by `score`, by every float param and by every
load of a float tensor. The mask has no derivative.

@derivatives@

Zero wins: a gradient that is exactly 0 stays 0 through every operation, even if it is multiplied by
an infinity or NaN. Because a gradient of 0 stays 0, a NaN in a branch that is not taken, or in a
pair that the mask excludes, does not affect any gradient.

## Canonical form

The library brings a program into canonical form: constants are folded in f64, common subexpressions
are merged, commutative operands are sorted, and operations that no output needs are removed. White
space, names of lets and the order of declarations are not part of canonical form. Names of params
and tensors, and unused declarations, are part of canonical form, because callers bind data by name.
Functions that C libraries round differently (exp, log, tanh, sin, ... and inexact powers) are not
folded, because the hash must be the same on every machine; engines compute functions of constants
once per run. The 128-bit hash of a program is computed from its canonical form: equal programs have
equal hashes in every process and on every machine. `fxa_program_print` returns the canonical text,
with lets `t0`, `t1`, ... for values that are used more than once. Parsing canonical text returns a
program with the same hash and the same canonical text.

## Limits

@limits@

The limits of a program also apply to the expansion of its loops and calls. A program that exceeds a
limit is refused with `FXA_E_LIMIT`, line and column.

## Errors

Except for exceeded limits, errors of a program are `FXA_E_PROGRAM`, with line, column and length in
UTF-8 characters (`fxa_error_render` draws the caret). Comments may contain any character; the rest
of a program text must be ASCII.

@errors@

## Grammar

    program   = { statement ( newline | ";" ) } .
    statement = [ "param" NAME ":" ( "float" | "int" ) [ "=" expr ]
                | "tensor" NAME ":" DTYPE "[" INT "]"
                | "let" NAME "=" expr
                | "fn" NAME "(" [ NAME { "," NAME } ] ")" "=" expr
                | ( "score" | "mask" | "dscore" ) "=" expr
                | "grad" NAME [ "[" [ list ] "]" ] "+=" expr ] .
    expr      = binary [ "?" expr ":" expr ] .
    binary    = prefix { OPERATOR prefix } .                  (by the table above)
    prefix    = { "-" | "+" | "!" | "~" } power .
    power     = primary [ "**" prefix ] .
    primary   = INT | FLOAT | NAME | NAME "[" [ list ] "]" | NAME "(" [ list ] ")" | "(" expr ")"
              | ( "sum" | "any" | "all" ) "(" NAME "," expr "," expr ")" .
    list      = expr { "," expr } .
"""


def page():
    ops, found = operations(), limits()
    arithmetic = lambda op: op["sig"] == "ARITH" or op["id"] in ("DIV", "POW", "MULZ", "DIVZ")
    parts = {
        "dtypes": dtype_rows(),
        "precedence": precedence_rows(ops),
        "arithmetic": operation_rows(ops, arithmetic),
        "functions": operation_rows(ops, lambda op: op["sig"] == "REAL" and not arithmetic(op)),
        "bits": operation_rows(ops, lambda op: op["sig"] in ("BITS", "SHIFT")),
        "choices": operation_rows(ops, lambda op: op["sig"] in ("CMP", "CHOICE", "TOF", "TOI")),
        "derivatives": derivative_rows(ops),
        "limits": limit_rows(found),
        "errors": error_blocks(),
        "PARAMETERS": re.search(r"PARSE_MAX_PARAMETERS (\d+)", read("src", "program", "parse.h")).group(1),
        "MAX_RANK": str(found["MAX_RANK"]),
        "MAX_LOOP": str(found["MAX_LOOP"]),
    }
    return re.sub(r"@(\w+)@", lambda m: parts[m.group(1)], TEMPLATE)


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        current = read("docs", "program.md") if os.path.exists(PAGE) else ""
        if current != text:
            sys.exit("docs/program.md is out of date: run tools/gen_program_md.py")
        return
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
