# SPDX-License-Identifier: Apache-2.0
"""Score programs in the form that src/lower will emit them: the text of program.cuh, and the same function in torch.

Run-time values: f[0], f[1] floats, i[0] the window or other int, tensor[0] a captured tensor. `reference(s, c)` gets
the scaled scores [Sq, Sk] in f64 with autograd and the context c (b, h, q, k as index tensors, lengths, captures)."""

import os
import subprocess
import tempfile

CAUSAL = """
    int reach;
    FXA_INLINE void head(const FxaArgs &a, int b, int h, int q_len, int k_len) { shift = k_len - q_len; HEAD }
    FXA_INLINE void tile(const FxaArgs &a, int q, int k) { reach = q - k + shift; TILE }
    int shift;
"""
CAUSAL_MASK = "FXA_INLINE bool mask(const FxaArgs &a, const Pair &p) const { return p.k_off <= reach + p.q_off; }\n"
CAUSAL_CLASS = """
    static FXA_INLINE int tile_class(const FxaArgs &a, int b, int h, int q0, int q1, int k0, int k1)
    {
        const int shift = k_length(a, b) - q_length(a, b);
        if (k0 > q1 + shift) return TILE_EMPTY;
        return k1 <= q0 + shift ? TILE_FULL : TILE_PARTIAL;
    }
"""


def program(body, causal=False, head="", tile="", own_class=None, own_mask=None, **switches):
    text = "".join("#define PROG_%s %d\n" % (k.upper(), v) for k, v in switches.items())
    if causal or own_mask or own_class:
        text += "#define PROG_MASK 1\n"
    text += "struct Program : ProgramBase {\n"
    if causal or own_mask:
        text += CAUSAL.replace("HEAD", head).replace("TILE", tile)
    elif head or tile:
        text += """
    FXA_INLINE void head(const FxaArgs &a, int b, int h, int q_len, int k_len) { %s }
    FXA_INLINE void tile(const FxaArgs &a, int q, int k) { %s }
""" % (head, tile)
    text += own_mask or (CAUSAL_MASK if causal else "")
    text += own_class or (CAUSAL_CLASS if causal else "")
    return text + body + "};\n"


# Soft cap: cap * tanh(s / cap); the cap is part of the unit. f[0] = cap * log2(e), f[1] = scale / cap, f[2] where that
# is near 0, and the terms of tanh there, f[8] how far pairs are bent four at a time, f[9] the factor of their exponents.
SOFTCAP = """
#define PROG_SOFTCAP 1
    static FXA_INLINE float unit(const FxaArgs &a) { return a.f[0]; }
    FXA_INLINE float bend(const FxaArgs &a, float s) const { return score_tanh(s * a.f[1]); }
    FXA_INLINE float value(const FxaArgs &a, float t, const Pair &p) const { return t; }
    FXA_INLINE float value(const FxaArgs &a, float t, const Pair &p, float &slope) const
    {
        slope = 1.f - t * t;
        return t;
    }
#if !FXA_FAST_MATH
#define PROG_SOFTCAP_SERIES 1
    FXA_INLINE float series_limit(const FxaArgs &a) const { return a.f[2]; }
    FXA_INLINE float softcap_series(const FxaArgs &a, float s) const { return score_softcap_series(s, a.f + 3); }
    FXA_INLINE float exp_limit(const FxaArgs &a) const { return a.f[8]; }
    FXA_INLINE Bend softcap_exp(const FxaArgs &a) const { return {a.f[9], -0.5f, 1.f}; }
#endif
"""
TANH = (0.9999999268692358, -0.33332309972578855, 0.1331017362435341, -0.05210147853455042, 0.015475425267545645)
# ALiBi: slope[h] * (k - q), in scaled units: everything is multiplied by log2(e) once per head.
ALIBI = """
    float rise, base;
    static FXA_INLINE float unit(const FxaArgs &a) { return 1.f; }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const
    {
        return __fmaf_rn(s, a.scale_log2, __fmaf_rn(rise, (float)(p.k_off - p.q_off), base));
    }
"""
ALIBI_HEAD = "rise = __ldg((const float *)a.tensor[0].data + h * a.tensor[0].stride[0]) * LOG2E;"
ALIBI_TILE = "base = rise * (float)(k - q);"
# A table per head: s + t[h, k % 64]. Loads that are the same all run long go through __ldg, so that they may move.
HEAD_TABLE = """
    static FXA_INLINE float unit(const FxaArgs &a) { return LOG2E; }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const
    {
        const FxaCapture &t = a.tensor[0];
        const int i = p.k & 63;
        return __fmaf_rn(s, a.scale, __ldg((const float *)t.data + table_head * t.stride[0] + i * t.stride[1]));
    }
    int table_head;
"""
# A bias per head and key, f32, as words that travel with K.
KEY_BIAS = """
    static FXA_INLINE float unit(const FxaArgs &a) { return LOG2E; }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const
    {
        return __fmaf_rn(s, a.scale, __int_as_float(p.k_word));
    }
"""
RELATIVE = """
    static FXA_INLINE float unit(const FxaArgs &a) { return LOG2E; }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const { return __fmaf_rn(s, a.scale, p.diagonal); }
    static FXA_INLINE float diagonal(const FxaArgs &a, int b, int h, int d)
    {
        const FxaCapture &t = a.tensor[0];
        const int i = d + a.k_len - 1;
        return (unsigned)i < (unsigned)t.size[1] ? ((const float *)t.data)[h * t.stride[0] + i * t.stride[1]] : 0.f;
    }
"""
DENSE = """
    static FXA_INLINE float unit(const FxaArgs &a) { return LOG2E; }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const { return __fmaf_rn(s, a.scale, p.dense); }
"""
# Causal window: q - i[0] < k <= q.
WINDOW_MASK = """
    FXA_INLINE bool mask(const FxaArgs &a, const Pair &p) const
    {
        return p.k_off <= reach + p.q_off && p.k_off > reach + p.q_off - a.i[0];
    }
"""
WINDOW_CLASS = """
    static FXA_INLINE int tile_class(const FxaArgs &a, int b, int h, int q0, int q1, int k0, int k1)
    {
        const int shift = k_length(a, b) - q_length(a, b);
        if (k0 > q1 + shift || k1 <= q0 + shift - a.i[0]) return TILE_EMPTY;
        return k1 <= q0 + shift && k0 > q1 + shift - a.i[0] ? TILE_FULL : TILE_PARTIAL;
    }
"""
# Documents and causal: ids as words that travel with the tiles.
DOCUMENT_MASK = """
    FXA_INLINE bool mask(const FxaArgs &a, const Pair &p) const
    {
        return p.k_off <= reach + p.q_off && p.q_word == p.k_word;
    }
    FXA_INLINE bool uniform_mask(const FxaArgs &a, const Pair &p) const { return p.k_off <= reach + p.q_off; }
"""
DOCUMENT_CLASS = """
    static FXA_INLINE int tile_class(const FxaArgs &a, int b, int h, int q0, int q1, int k0, int k1)
    {
        const int shift = k_length(a, b) - q_length(a, b);
        if (k0 > q1 + shift) return TILE_EMPTY;
        const Int2 x = operand_range(a.q_vector, b, h, q0, q1), y = operand_range(a.k_vector, b, h, k0, k1);
        if (x.x > y.y || y.x > x.y) return TILE_EMPTY;
        return k1 <= q0 + shift && x.x == x.y && y.x == y.y ? TILE_FULL : TILE_PARTIAL;
    }
"""
# ALiBi with learned slopes: their gradients are sums over pairs.
LEARNED = ALIBI + """
    FXA_INLINE void partials(const FxaArgs &a, float s, const Pair &p, float (&g)[1]) const
    {
        g[0] = (float)(p.k - p.q);
    }
"""
# w[h, 0] * score + w[h, 1] * (k is odd): two sums, one of which needs the score.
TEMPERATURE = """
    float heat, odd;
    static FXA_INLINE float unit(const FxaArgs &a) { return LOG2E; }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const
    {
        return __fmaf_rn(s * a.scale, heat, p.k & 1 ? odd : 0.f);
    }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p, float &slope) const
    {
        slope = heat;
        return value(a, s, p);
    }
    FXA_INLINE void partials(const FxaArgs &a, float s, const Pair &p, float (&g)[2]) const
    {
        g[0] = s * a.scale;
        g[1] = p.k & 1 ? 1.f : 0.f;
    }
"""
TEMPERATURE_HEAD = """
    heat = __ldg((const float *)a.tensor[0].data + h * a.tensor[0].stride[0]);
    odd = __ldg((const float *)a.tensor[0].data + h * a.tensor[0].stride[0] + a.tensor[0].stride[1]);
"""
# A bias by distance, in buckets of 16: its gradient is scattered.
BUCKETS = """
    int table_head;
    static FXA_INLINE float unit(const FxaArgs &a) { return LOG2E; }
    static FXA_INLINE int bucket(const Pair &p) { return min((p.q > p.k ? p.q - p.k : p.k - p.q) >> 4, 31); }
    FXA_INLINE float value(const FxaArgs &a, float s, const Pair &p) const
    {
        const FxaCapture &t = a.tensor[0];
        return __fmaf_rn(s, a.scale, __ldg((const float *)t.data + table_head * t.stride[0] + bucket(p) * t.stride[1]));
    }
    FXA_INLINE void scatter(const FxaArgs &a, int b, int h, float s, const Pair &p, float ds) const
    {
        const FxaCapture &t = a.tensor[0];
        atomicAdd(a.grad_tensor[0] + h * t.stride[0] + bucket(p) * t.stride[1], ds);
    }
"""
# A mask that differs per head: head h sees a window of 64 * (h + 1) keys on both sides.
PER_HEAD_MASK = """
    FXA_INLINE bool mask(const FxaArgs &a, const Pair &p) const
    {
        const int d = p.q - p.k;
        return d < wide && d > -wide;
    }
    int wide;
"""
PER_HEAD_CLASS = """
    static FXA_INLINE int tile_class(const FxaArgs &a, int b, int h, int q0, int q1, int k0, int k1)
    {
        const int wide = 64 * (h + 1);
        if (q0 - k1 >= wide || q1 - k0 <= -wide) return TILE_EMPTY;
        return q1 - k0 < wide && q0 - k1 > -wide ? TILE_FULL : TILE_PARTIAL;
    }
"""

PROGRAMS = {
    "plain": program(""),
    "causal": program("", causal=True),
    "softcap": program(SOFTCAP, value=1, slope=1, bounded=1),
    "softcap_causal": program(SOFTCAP, causal=True, value=1, slope=1, bounded=1),
    "alibi": program(ALIBI, head=ALIBI_HEAD, tile=ALIBI_TILE, value=1),
    "alibi_causal": program(ALIBI, causal=True, head=ALIBI_HEAD, tile=ALIBI_TILE, value=1),
    "window": program("", own_mask=WINDOW_MASK, own_class=WINDOW_CLASS),
    "documents": program("", own_mask=DOCUMENT_MASK, own_class=DOCUMENT_CLASS, vector=1, same=1),
    "relative": program(RELATIVE, value=1, diagonal=1, grad_diagonal=1),
    "relative_causal": program(RELATIVE, causal=True, value=1, diagonal=1, grad_diagonal=1),
    "dense": program(DENSE, value=1, dense=1),
    "dense_grad": program(DENSE, value=1, dense=1, grad_dense=1),
    "dense_causal": program(DENSE, causal=True, value=1, dense=1, grad_dense=1),
    "per_head": program("", own_mask=PER_HEAD_MASK, own_class=PER_HEAD_CLASS, head="wide = 64 * (h + 1);"),
    "key_bias": program(KEY_BIAS, value=1, vector=2),
    "key_bias_causal": program(KEY_BIAS, causal=True, value=1, vector=2),
    "head_table": program(HEAD_TABLE, head="table_head = h;", value=1),
    "learned_causal": program(LEARNED, causal=True, head=ALIBI_HEAD, tile=ALIBI_TILE, value=1, grad_sums=1),
    "temperature_causal": program(TEMPERATURE, causal=True, head=TEMPERATURE_HEAD, value=1, slope=1, grad_sums=2),
    "buckets": program(BUCKETS, head="table_head = h;", value=1, grad_scatter=1),
}


def _causal(c):
    return c.k <= c.q + c.k_len - c.q_len


def _cap(s, c):
    return c.cap * (s / c.cap).tanh()


def _alibi(s, c):
    return s + c.tensor[c.h] * (c.k - c.q)


def _bucket(c):
    return ((c.q - c.k).abs() >> 4).clamp(max=31)


# The program in torch: the new score from the scaled score, and the mask.
REFERENCE = {
    "plain": (lambda s, c: s, None),
    "causal": (lambda s, c: s, _causal),
    "softcap": (_cap, None),
    "softcap_causal": (_cap, _causal),
    "alibi": (_alibi, None),
    "alibi_causal": (_alibi, _causal),
    "window": (lambda s, c: s, lambda c: _causal(c) & (c.k > c.q + c.k_len - c.q_len - c.window)),
    "documents": (lambda s, c: s, lambda c: _causal(c) & (c.q_ids[:, None] == c.k_ids[None, :])),
    "relative": (lambda s, c: s + c.tensor[c.h][c.q - c.k + c.k_size - 1], None),
    "relative_causal": (lambda s, c: s + c.tensor[c.h][c.q - c.k + c.k_size - 1], _causal),
    "dense": (lambda s, c: s + c.dense[:c.q_len, :c.k_len], None),
    "dense_grad": (lambda s, c: s + c.dense[:c.q_len, :c.k_len], None),
    "dense_causal": (lambda s, c: s + c.dense[:c.q_len, :c.k_len], _causal),
    "per_head": (lambda s, c: s, lambda c: (c.q - c.k).abs() < 64 * (c.h + 1)),
    "key_bias": (lambda s, c: s + c.tensor[c.h][:c.k_len], None),
    "key_bias_causal": (lambda s, c: s + c.tensor[c.h][:c.k_len], _causal),
    "head_table": (lambda s, c: s + c.tensor[c.h][c.k % 64], None),
    "learned_causal": (_alibi, _causal),
    "temperature_causal": (lambda s, c: c.tensor[c.h, 0] * s + c.tensor[c.h, 1] * (c.k % 2), _causal),
    "buckets": (lambda s, c: s + c.tensor[c.h][_bucket(c)], None),
}

# The same for the library, which generates the text (FXA_GPU_GENERATED names tests/cuda_texts of a build): run_gpu.py then
# runs that in place of the text above, with the arguments that it asks for.
SHIFTED = "mask = k <= q + k_len - q_len"
SOURCE = {
    "plain": "score = score",
    "causal": SHIFTED,
    "softcap": "param cap : float\nscore = cap * tanh(score / cap)",
    "softcap_causal": "param cap : float\nscore = cap * tanh(score / cap)\n" + SHIFTED,
    "alibi": "tensor t : f32[1]\nscore = score + t[h] * (k - q)",
    "alibi_causal": "tensor t : f32[1]\nscore = score + t[h] * (k - q)\n" + SHIFTED,
    "window": "param window : int\n" + SHIFTED + " && k > q + k_len - q_len - window",
    "documents": "tensor ids : i32[2]\n" + SHIFTED + " && ids[b, q] == ids[b, k]",
    "relative": "tensor t : f32[2]\nscore = score + t[h, q - k + k_len - 1]",
    "relative_causal": "tensor t : f32[2]\nscore = score + t[h, q - k + k_len - 1]\n" + SHIFTED,
    "per_head": "mask = abs(q - k) < 64 * (h + 1)",
    "key_bias": "tensor t : f32[2]\nscore = score + t[h, k]",
    "key_bias_causal": "tensor t : f32[2]\nscore = score + t[h, k]\n" + SHIFTED,
    "head_table": "tensor t : f32[2]\nscore = score + t[h, k % 64]",
    "learned_causal": "tensor t : f32[1]\nscore = score + t[h] * (k - q)\n" + SHIFTED,
    "temperature_causal": "tensor w : f32[2]\nscore = w[h, 0] * score + w[h, 1] * (k % 2)\n" + SHIFTED,
}
ARGUMENTS = {}  # names or numbers of f[] and i[] of generated programs, by name and pass
FORWARD = {}  # generated programs of forward passes, where they have a text of their own
SUMS = {}  # the order in which partials() of generated programs has the terms of PARTIALS


def generate(command):
    """Replaces texts in PROGRAMS by generated ones."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SOURCE.items():
            with open(os.path.join(folder, name), "w") as out:
                out.write(text)
            grads = "grads" if "GRAD_" in PROGRAMS[name] else "alone"
            said = subprocess.run([command, "0", grads, os.path.join(folder, name)], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            for which, text in zip((FORWARD, PROGRAMS), (part.split("\n", 1)[1] for part in said.split("=== ")[1:])):
                floats, rest = text.split("\n")[0].split(" f:")[1].split(" i:")
                ints, sums = rest.split(" sums:")
                which[name] = text
                ARGUMENTS[name, which is FORWARD] = floats.split(), ints.split()
                SUMS[name] = [int(place) for place in sums.split()]


def text_of(name, forward):
    return FORWARD.get(name, PROGRAMS[name]) if forward else PROGRAMS[name]


if os.environ.get("FXA_GPU_GENERATED"):
    generate(os.environ["FXA_GPU_GENERATED"])

# The terms of partials(), from the scaled score; and where scatter() adds, in the rows of [H, size].
PARTIALS = {
    "learned_causal": lambda s, c: [(c.k - c.q).double()],
    "temperature_causal": lambda s, c: [s, (c.k % 2).double().expand_as(s)],
}
SCATTER = {"buckets": lambda c: _bucket(c)}
