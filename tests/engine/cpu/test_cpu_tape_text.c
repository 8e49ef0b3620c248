/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_plan_dump: the cpu engine's bytecode as text. Every kind of instruction is in the table; random programs are
 * listed completely, with names for everything read and written; and the function follows the rules of two-call
 * output.
 */
#include "t.h"

#include "program/program.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/gen.h"
#include "support/fixtures/tiny.h"

/* Returns the text of fxa_plan_dump for a plan of the program, in backward with all gradients; "" on failure. */
static const char *listing_of(fxa_context *ctx, fxa_program *program, fxa_program *bprop, fxa_pass pass) {
    static char text[1 << 18];
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_capture captures[FXA_MAX_TENSORS], of_bprop[FXA_MAX_TENSORS];
    t_plan *plan = NULL;
    fxa_error err;
    size_t needed = 0;
    memset(captures, 0, sizeof captures);
    memset(of_bprop, 0, sizeof of_bprop);
    p.program = program, p.bprop = pass == FXA_BACKWARD ? bprop : NULL, p.engine = "cpu";
    p.b = 1, p.hq = 2, p.sq = p.sk = 8, p.d_qk = 4, p.pass = (uint32_t)pass, p.q.dtype = FXA_F32;
    p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    p.bprop_captures = of_bprop, p.n_bprop_captures = p.bprop ? fxa_program_tensor_count(bprop) : 0;
    if (pass == FXA_BACKWARD) p.flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    for (size_t i = 0; i < FXA_MAX_TENSORS; i++)
        for (int d = 0; d < FXA_MAX_RANK; d++) captures[i].size[d] = of_bprop[i].size[d] = 8;
    for (size_t i = 0; i < p.n_captures && pass == FXA_BACKWARD; i++)
        captures[i].grad = program->tensors[i].type == FXA_FLOAT;
    for (size_t i = 0; i < fxa_program_param_count(program) && pass == FXA_BACKWARD; i++)
        if (program->params[i].type == FXA_FLOAT) p.param_grads |= UINT64_C(1) << i;
    *text = 0;
    fxa_status status = fxa_plan_create(ctx, &p, &plan, &err);
    if (status == FXA_OK) status = fxa_plan_dump(plan, text, sizeof text, &needed, &err);
    if (status != FXA_OK) T_FAIL("%s\n", err.text);
    T_CHECK(status != FXA_OK || needed == strlen(text));
    return text;
}

static fxa_program *listing_parse(fxa_context *ctx, const char *text, fxa_program_kind kind) {
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_text one = {.data = text, .size = SIZE_MAX};
    fxa_program *p = NULL;
    fxa_error err;
    config.kind = (uint32_t)kind, config.texts = &one, config.n_texts = 1;
    if (fxa_program_parse_texts(ctx, &config, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", text, err.text);
    return p;
}

static const struct {
    const char *text, *bprop;
    fxa_pass pass;
    const char *want;
} listings[] = {
    {"", NULL, FXA_FORWARD, "score: nothing to compute\n"},
    {"", NULL, FXA_BACKWARD, "score: nothing to compute\nderivative: nothing to compute\n"},
    {"score = score * 1.5", NULL, FXA_FORWARD, "score\n  for each pair\n    out = score * 1.5\n"},
    {"param cap : float\nscore = cap * tanh(score / cap)", NULL, FXA_FORWARD,
     "score\n  for each pair\n    out = tanh(score / cap) * cap\n"},
    {"param cap : float\nscore = cap * tanh(score / cap)", NULL, FXA_BACKWARD,
     "score and derivative\n  for each pair\n    x0 = score / cap\n    x1 = tanh(x0)\n    out = x1 * cap\n"
     "  for each pair, derivative\n    x2 = mulz(dscore, cap)\n    x2 = mulz(x2, 1 - x1 * x1)\n"
     "    x2 = divz(x2, cap)\n"
     "    x3 = mulz(x2, x0)\n    x3 = -x3\n    x4 = mulz(dscore, x1)\n    x4 = x3 + x4\n    grad cap += x4\n"
     "    out = x2\n"},
    {"tensor t : f32[2]\ntensor u : f32[1]\nscore = score + t[h, k] * u[q]", NULL, FXA_FORWARD,
     "score\n  for each row\n    r2 = u[q]\n  for each head and key\n    s0 = t[h, k]\n"
     "  for each pair\n    out = s0 * r2 + score\n"},
    {"tensor t : f32[1]\nscore = score + t[clamp(q - k, -3, 3) + 3]", NULL, FXA_FORWARD,
     "score\n  for each batch entry\n    u4 = 0 + 3\n  for each row\n    r1 = q - 0\n"
     "  for each pair\n    x0 = t[clamp(-k + r1, -3, 3) + u4]\n    out = score + x0\n"},
    {"score = score + 0.5 * (q - k)", NULL, FXA_FORWARD,
     "score\n  for each row\n    r1 = q - 0\n  for each pair\n    out = score\n"
     "    out += 0.5 * float(r1 - k)\n"},
    {"mask = k <= q && b == 0", NULL, FXA_FORWARD,
     "mask\n  for each batch entry\n    u2 = b == 0\n  for each row, 64 pairs at a time\n"
     "    mask = (k <= q && u2)\n"
     "score: nothing to compute\n"},
    {"mask = !(abs(q - k) < 3) && (h > 1 ? k < q : k == 4)", NULL, FXA_FORWARD,
     "mask\n  for each row\n    r1 = 1 < h\n    r3 = q - 0\n  for each row, 64 pairs at a time\n"
     "    mask = ((r1 ? k < q : k == 4) && !(abs(-k + r3) < 3))\nscore: nothing to compute\n"},
    {"mask = (k > 2) ^ (k * q % 3 == 1)", NULL, FXA_FORWARD,
     "mask\n  for each pair, for m0 (true where out is 0)\n    x0 = q * k\n    x0 = x0 % 3\n    out = 0\n"
     "    out = x0 == 1 ? out : -inf\n  for each row, 64 pairs at a time\n    mask = (m0 xor 2 < k)\n"
     "score: nothing to compute\n"},
    {"mask = score > 0.0 && k < 5 && b > 0", NULL, FXA_FORWARD,
     "score: nothing to compute\nscore and mask\n  for each batch entry\n    u2 = 0 < b\n  for each pair\n"
     "    x0 = 0 < score\n    out = score\n    out = -inf unless k < 5\n    out = x0 ? out : -inf\n"
     "    out = -inf in the entire row unless u2\n"},
    {"tensor d : i64[1]\nmask = d[q] == d[k]", NULL, FXA_FORWARD,
     "mask\n  for each row\n    r1 = d[q] (bytes 0-3)\n    r2 = d[q] (bytes 4-7)\n  for each key\n"
     "    c0 = d[k] (bytes 0-3)\n"
     "    c1 = d[k] (bytes 4-7)\n  for each pair, for m0 (true where out is 0)\n    out = 0\n"
     "    out = c0 == r1 ? out : -inf\n"
     "  for each pair, for m1 (true where out is 0)\n    out = 0\n    out = c1 == r2 ? out : -inf\n"
     "  for each row, 64 pairs at a time\n"
     "    mask = (m0 && m1)\nscore: nothing to compute\n"},
    {"param c : float\ntensor t : f32[2]\nscore = score + t[k, h] * c", "param g : float\ndscore = dscore * g + 1.0",
     FXA_BACKWARD,
     "score\n  for each head and key\n    s0 = t[k, h]\n  for each pair\n    out = s0 * c + score\n"
     "derivative\n  for each head and key\n    s0 = t[k, h]\n  for each pair\n    x0 = mulz(dscore, s0)\n"
     "    x1 = mulz(dscore, c)\n    grad c += x0\n    grad t[k, h] += x1\n"
     "backward of your own\n  for each pair\n    x0 = dscore * g + 1\n    out = dscore == 0 ? 0 : x0\n"},
};

/* A listing with instructions begins with a line that says what the letters of registers mean. */
CONTEXT_TEST(tapes_as_written_here) {
    static const char key[] = "registers: u per batch entry, r per row, c per key, s per head and key, x per pair\n";
    for (size_t i = 0; i < sizeof listings / sizeof *listings; i++) {
        t_program *p = listing_parse(ctx, listings[i].text, FXA_PROGRAM_SCORE);
        t_program *own = listings[i].bprop ? listing_parse(ctx, listings[i].bprop, FXA_PROGRAM_BPROP) : NULL;
        T_REQUIRE(p);
        const char *text = listing_of(ctx, p, own, listings[i].pass);
        bool computes = strstr(listings[i].want, "\n    ") != NULL, keyed = strncmp(text, key, strlen(key)) == 0;
        T_INT(keyed, computes);
        if (keyed) text += strlen(key);
        if (strcmp(text, listings[i].want) != 0)
            T_FAIL("%s:\n%s--- wanted\n%s", listings[i].text, text, listings[i].want);
    }
}

/* Returns true if the lines of a listing are indented by 0, 2 or 4 and all brackets are balanced. */
static bool listing_is_sound(const char *text) {
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        size_t indent = strspn(line, " "), n = strcspn(line, "\n");
        int round = 0, square = 0;
        for (size_t i = 0; i < n; i++) {
            round += (line[i] == '(') - (line[i] == ')');
            square += (line[i] == '[') - (line[i] == ']');
            if (round < 0 || square < 0) return false;
        }
        bool assigns = strstr(line, " = ") || strstr(line, " += ");
        if (n == 0 || line[n] != '\n' || indent > 4 || indent % 2 || round || square || (indent == 4) > assigns)
            return false;
    }
    return *text && !strstr(text, "null");
}

CONTEXT_TEST(random_programs_are_listed) {
    t_rng rng = {t_seed()};
    for (int i = 0; i < t_scaled(400) && !t_failures; i++) {
        static const unsigned flags[] = {0, GEN_SMOOTH, GEN_AFFINE_MASK, GEN_NO_SPECIAL};
        uint8_t tape[200];
        for (size_t k = 0; k < sizeof tape; k++) tape[k] = (uint8_t)t_next(&rng);
        t_program *p = gen_program(ctx, tape, sizeof tape, flags[i % 4]);
        T_REQUIRE(p);
        for (int pass = 0; pass < 2; pass++) {
            const char *text = listing_of(ctx, p, NULL, (fxa_pass)pass);
            if (!listing_is_sound(text)) T_FAIL("%s", text);
        }
    }
}

TEST(the_two_calls) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&f);
    tiny t;
    char text[4096], small[8] = "before";
    T_REQUIRE(ctx);
    T_OK(tiny_forward(ctx, &t, &err));
    for (int ref = 0; ref < 2; ref++) {
        t_plan *plan = NULL;
        size_t needed = 77;
        t.problem.engine = ref ? "ref" : "cpu";
        T_OK(fxa_plan_create(ctx, &t.problem, &plan, &err));
        T_OK(fxa_plan_dump(plan, NULL, 0, &needed, &err));
        T_OK(fxa_plan_dump(plan, text, needed + 1, NULL, &err));
        T_INT(needed, strlen(text));
        T_CHECK((needed == 0) == ref);
        T_STATUS(fxa_plan_dump(plan, NULL, 0, NULL, &err), FXA_E_ARGUMENT);
        if (!ref) {
            T_STATUS(fxa_plan_dump(plan, small, sizeof small, &needed, &err), FXA_E_ARGUMENT);
            T_STR(small, "before");
            T_INT(needed, strlen(text));
            size_t before = f.live_bytes;
            fail_alloc_arm(&f, 1, false);
            T_STATUS(fxa_plan_dump(plan, text, sizeof text, &needed, &err), FXA_E_MEMORY);
            fail_alloc_arm(&f, 0, false);
            T_INT(f.live_bytes, before);
        }
    }
    T_STATUS(fxa_plan_dump(NULL, text, sizeof text, NULL, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "plan is NULL");
    tiny_end(&t);
    fxa_context_destroy(ctx);
    T_INT(f.live_bytes, 0);
}

T_MAIN
