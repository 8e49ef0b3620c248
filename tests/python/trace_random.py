# SPDX-License-Identifier: Apache-2.0
"""Random score functions as Python source, in the words of torch, NumPy or jax.numpy: what the oracle of the tracer
draws.

Expressions are typed, so that each is legal in its library. Where libraries leave a value open (division of ints by 0,
conversion of huge floats, sums that leave 32 bits) operands are kept away from it, and nothing else is.
"""
import random

HEADS, LENGTH = 3, 12
NARROW = ("u8", "i8", "i16")
# What the libraries call the same thing.
WORDS = {
    "torch": dict(lib="torch", where="torch.where", minimum="torch.minimum", maximum="torch.maximum",
                  clip="torch.clamp",
                  f64="torch.float64", i32="torch.int32", u8="torch.uint8", i8="torch.int8", i16="torch.int16", to="to",
                  b="torch.bool",
                  unary="exp log1p sqrt tanh sin cos atan erf sigmoid expm1 log2 floor ceil round trunc sign square "
                        "rsqrt".split()),
    "numpy": dict(lib="np", where="np.where", minimum="np.minimum", maximum="np.maximum", clip="np.clip",
                  f64="np.float64",
                  i32="np.int32", u8="np.uint8", i8="np.int8", i16="np.int16", to="astype", b="np.bool_",
                  unary="exp log1p sqrt tanh sin cos arctan expm1 log2 floor ceil rint trunc sign square".split()),
    "jax": dict(lib="jnp", where="jnp.where", minimum="jnp.minimum", maximum="jnp.maximum", clip="jnp.clip",
                f64="jnp.float64",
                i32="jnp.int32", u8="jnp.uint8", i8="jnp.int8", i16="jnp.int16", to="astype", b="jnp.bool_",
                unary="exp log1p sqrt tanh sin cos arctan expm1 log2 floor ceil round trunc sign square".split()),
}
POSITIVE = ("log1p", "sqrt", "log2", "rsqrt")


class Source:
    """One function. `floats` and `ints` are closures' values, by name."""

    def __init__(self, seed, flavour, depth=4):
        self.draw = random.Random("%s %s" % (flavour, seed))
        self.words, self.flavour = WORDS[flavour], flavour
        self.floats = {"c%d" % n: round(self.draw.uniform(-2, 2), 3) for n in range(3)}
        self.ints = {"n%d" % n: self.draw.randrange(-5, 9) for n in range(2)}
        self.score = "def score_mod(s, b, h, q, k):\n    x = %s\n    y = %s\n    return %s" % (
            self.f(depth - 1), self.i(depth - 1), self.f(depth))
        self.mask = "def mask_mod(b, h, q, k):\n    s = q * c0\n    return %s" % self.b(depth)

    def pick(self, *makers):
        return self.draw.choice(makers)()

    def f(self, depth):
        """A float of moderate size."""
        w, d = self.words, depth - 1
        if depth <= 0 and self.flavour == "numpy" and self.draw.random() < 0.1:
            return self.draw.choice(["np.float64(1.25)", "np.float32(-0.5)", "np.float64(c0)"])
        if depth <= 0:
            return self.draw.choice(["s", "s", "c0", "c1", "c2", "%.2f" % self.draw.uniform(-3, 3), "f1[q]", "f1[k]",
                                     "f2[h, k]",
                                     "f2[h][q]", "f0"])
        return self.pick(
            lambda: "(%s %s %s)" % (self.f(d), self.draw.choice("+-*"), self.draw.choice([self.f, self.i])(d)),
            lambda: "(%s %s %s)" % (self.f(d), self.draw.choice("+*"), self.b(d)),  # torch has no float - bool
            lambda: "(%s %s %s)" % (self.draw.choice([self.i, self.u])(d), self.draw.choice("+-*"), self.f(d)),
            lambda: "(%s / (%s + 2.5))" % (self.draw.choice([self.f, self.i])(d), self.size(d)),
            lambda: "(%s %s (%s + 0.75))" % (self.f(d), self.draw.choice(["//", "%"]), self.size(d)),
            lambda: self.unary(d),
            lambda: "%s(%s, %s, %s)" % (w["where"], self.b(d), self.f(d), self.draw.choice([self.f, self.i])(d)),
            lambda: "%s(%s, %s)" % (w[self.draw.choice(["minimum", "maximum"])], self.traced(d), self.traced(d)),
            lambda: "%s(%s, -1.5, %s)" % (w["clip"], self.traced(d), "2.5"),
            lambda: "abs(%s)" % self.f(d),
            lambda: "(-%s)" % self.f(d),
            lambda: "(%s ** %s)" % (self.bounded(d), self.draw.choice(["2", "3", "2.0"])),
            lambda: "(%s + 0.5) ** %s" % (self.size(d), self.draw.choice(["0.5", "1.5", "c0"])),
            lambda: "f1[%s]" % self.place(d), lambda: "f2[%s, %s]" % (self.place(d, HEADS), self.place(d)),
            lambda: "(%s / %s)" % (self.traced_int(d), self.draw.choice(["4", "3.5", "-2"])),
            lambda: "%s.%s(%s)" % (self.traced_int(d), w["to"], w["f64"]),
            lambda: "(f2[h] * f2[b]).sum()" if self.flavour != "numpy" else "f2[h, 0]",
        )

    def traced(self, depth):
        """A float that is certainly an array of the library, not a Python number."""
        return "(s * 1.0 + %s)" % self.f(depth)

    def traced_int(self, depth):
        return "(q + %s)" % self.i(depth)

    def size(self, depth):
        return "abs(%s)" % self.bounded(depth)

    def bounded(self, depth):
        return "%s(%s, -8.0, 8.0)" % (self.words["clip"], self.traced(depth))

    def unary(self, depth):
        name = self.draw.choice(self.words["unary"])
        if name in POSITIVE:
            return "%s.%s(%s + 0.25)" % (self.words["lib"], name, self.size(depth))
        if self.flavour == "torch" and self.draw.random() < 0.4:
            return "%s.%s()" % (self.bounded(depth), name)
        return "%s.%s(%s)" % (self.words["lib"], name, self.bounded(depth))

    def i(self, depth):
        """An int, kept small so that nothing leaves 32 bits."""
        w, d = self.words, depth - 1
        if depth <= 0 and self.flavour == "numpy" and self.draw.random() < 0.1:
            return self.draw.choice(["np.int64(3)", "np.int32(-2)", "np.bool_(True)"])
        if depth <= 0:
            return self.draw.choice(["b", "h", "q", "k", "n0", "n1", "%d" % self.draw.randrange(-4, 12), "i1[q]",
                                     "i1[k]", "q", "k"])
        return self.pick(
            lambda: "((q + %s) %s %s) %% 97" % (self.i(d), self.draw.choice("+-*"), self.i(d)),
            lambda: "((k - %s) %s %s)" % (self.i(d), self.draw.choice(["//", "%"]),
                                          self.draw.choice(["3", "-5", "(h + 2)"])),
            lambda: "(%s %s %s)" % (self.traced_int(d), self.draw.choice("&|^"), self.i(d)),
            lambda: "(%s %s %s)" % (self.traced_int(d), self.draw.choice(["<<", ">>"]),
                                    self.draw.choice(["1", "3", "(h % 4)"])),
            lambda: "(%s %% 23) ** %s" % (self.traced_int(d), self.draw.choice(["2", "3", "0", "1"])),
            lambda: "(2 ** (%s %% 9))" % self.traced_int(d),
            lambda: "((%s %% 5) ** (k %% 4))" % self.traced_int(d),
            lambda: "abs(%s)" % self.traced_int(d), lambda: "(-%s)" % self.traced_int(d),
            lambda: "(~%s)" % self.traced_int(d),
            lambda: "%s(%s, %s, %s)" % (w["where"], self.b(d), self.traced_int(d), self.i(d)),
            lambda: "%s(%s, %s)" % (w[self.draw.choice(["minimum", "maximum"])], self.traced_int(d),
                                    self.traced_int(d)),
            lambda: "%s(%s, -3, 7)" % (w["clip"], self.traced_int(d)),
            lambda: "i1[%s]" % self.place(d), lambda: "i1[i1[%s] %% %d]" % (self.place(d), LENGTH),
            lambda: "(%s.%s(%s))" % (self.b(d), w["to"], w["i32"]),
            lambda: "(%s + %s)" % (self.traced_int(d), self.b(d)), lambda: "(%s + %s)" % (self.traced_int(d),
                                                                                          self.u(d)),
            lambda: "%s.%s(%s)" % (self.bounded(d), w["to"], w["i32"]),
        )

    def place(self, depth, size=LENGTH):
        return "%s %% %d" % (self.traced_int(depth), size)

    def u(self, depth):
        """A narrow int: arithmetic wraps."""
        w, d = self.words, depth - 1
        kind = self.draw.choice(NARROW)
        if depth <= 0:
            return self.draw.choice(["%s[q]" % kind, "%s[k]" % kind])
        return self.pick(
            lambda: "(%s %s %s)" % (self.u(d), self.draw.choice("+-*"), self.u(d)),
            lambda: "(%s %s %d)" % (self.u(d), self.draw.choice("+-*&|^"), self.draw.randrange(1, 100)),
            lambda: "(%s %s %d)" % (self.u(d), self.draw.choice(["//", "%"]), self.draw.choice([3, 7, 11])),
            lambda: "(-%s)" % self.u(d), lambda: "(~%s)" % self.u(d), lambda: "(%s << 2)" % self.u(d),
            lambda: "(%s ** 2)" % self.u(d),
            lambda: "%s(%s, %s, %s)" % (w["where"], self.b(d), self.u(d), self.u(d)),
            lambda: "%s.%s(%s)" % (self.traced_int(d), w["to"], w[kind]),
        )

    def b(self, depth):
        """A bool that is traced."""
        w, d = self.words, depth - 1
        if depth <= 0:
            return self.draw.choice(["(q >= k)", "(q < 5)", "(k != h)", "b1[q]", "b1[k]", "(q == k)"])
        sign = self.draw.choice(["<", "<=", ">", ">=", "==", "!="])
        return self.pick(
            lambda: "(%s %s %s)" % (self.traced_int(d), sign, self.i(d)),
            lambda: "(%s %s %s)" % (self.traced(d), sign.replace("=", "") if sign in ("==", "!=") else sign, self.f(d))
            if sign not in ("==", "!=") else "(%s < %s)" % (self.traced(d), self.f(d)),
            lambda: "(%s %s %s)" % (self.traced_int(d), sign, "2.5"),
            lambda: "(%s %s %s)" % (self.b(d), self.draw.choice("&|^"), self.b(d)), lambda: "(~%s)" % self.b(d),
            lambda: "(%s %s %s)" % (self.b(d), self.draw.choice("+*"), self.b(d)),
            lambda: "%s(%s, %s, %s)" % (w["where"], self.b(d), self.b(d), self.b(d)),
            lambda: "%s(%s, %s, %s)" % (w["where"], self.b(d), *self.draw.choice([("False", "True"),
                                                                                  ("True", "False")]))
            if self.flavour == "torch" else "b1[%s]" % self.place(d),
            lambda: "(%s == %s)" % (self.b(d), self.b(d)), lambda: "(%s > %s)" % (self.u(d), self.u(d)),
            lambda: "%s.%s(%s)" % (self.traced_int(d), w["to"], w["b"]), lambda: "b1[%s]" % self.place(d),
            lambda: "(%s.logical_and(%s, %s))" % (w["lib"], self.traced_int(d), self.b(d)),
        )

    def functions(self, names):
        """The two functions, with `names` for globals."""
        scope = {**names, **self.floats, **self.ints}
        exec(compile(self.score + "\n" + self.mask, "<random %s>" % self.flavour, "exec"), scope)
        return scope["score_mod"], scope["mask_mod"]


def arrays(numpy):
    """The captured arrays of all functions, as NumPy's."""
    draw = numpy.random.default_rng(5)
    return {"f0": numpy.array(0.625), "f1": draw.standard_normal(LENGTH), "f2": draw.standard_normal((HEADS, LENGTH)),
            "i1": draw.integers(-9, 30, LENGTH), "u8": draw.integers(0, 256, LENGTH).astype("uint8"),
            "i8": draw.integers(-128, 128, LENGTH).astype("int8"), "i16": draw.integers(-32768, 32768,
                                                                                        LENGTH).astype("int16"),
            "b1": draw.integers(0, 2, LENGTH).astype("bool")}


def pairs(seed, n=12):
    draw = random.Random(seed)
    return [(draw.gauss(0, 1.5), draw.randrange(2), draw.randrange(HEADS), draw.randrange(LENGTH),
             draw.randrange(LENGTH))
            for _ in range(n)]
