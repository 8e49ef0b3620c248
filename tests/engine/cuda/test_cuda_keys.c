/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of the cuda engine's code: which properties are part of the code, and which are arguments of a run. Also
 * compares estimated costs of runs with cudnn's.
 */
#include "cuda_choice_fixture.h"
#include "engine/cudnn/cudnn.h"

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static void choice_key(choice_case *c, uint8_t out[1 << 16], size_t *size, double numbers[FXA__MAX_CONSTANTS]) {
    fxa__cuda_self self = choice_hopper;
    fxa__problem *p = NULL;
    fxa__writer w = {.host = fxa__context_host(ctx)};
    fxa_error err;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &c->p, &p, &err));
    fxa__analysis a = {.engine = &fxa__engine_cuda, .self = &self, .problem = p};
    fxa__engine_cuda.key(&a, &w);
    T_OK(fxa__engine_cuda.constants(&a, numbers, &err));
    fxa__analysis_end(&a);
    T_CHECK(!w.failed && w.size < 1 << 16);
    memcpy(out, w.data, w.size);
    *size = w.size;
    fxa__writer_free(&w);
    fxa__problem_release(p);
    fxa_program_destroy(c->program);
}

static void key_length(fxa_problem *p) { p->sq = 77, p->sk = 1000, p->b = 5; }
static void key_heads(fxa_problem *p) { p->hq = 12, p->hkv = 3; }
static void key_strides(fxa_problem *p) { p->k.layout = FXA_LAYOUT_BSHD; }
static void key_columns(fxa_problem *p) { p->d_qk = p->d_v = 56; }
static void key_more_columns(fxa_problem *p) { p->d_qk = p->d_v = 72; }
static void key_dtype(fxa_problem *p) { p->q.dtype = FXA_F16; }
static void key_lengths(fxa_problem *p) { p->flags |= FXA_PADDING; }
static void key_dropout(fxa_problem *p) { p->flags |= FXA_DROPOUT, p->dropout_p = 0.5; }
static void key_mask(fxa_problem *p) { p->flags |= FXA_CAUSAL; }
static void key_nothing(fxa_problem *p) { (void)p; }

TEST(keys_are_what_code_depends_on) {
    static const char text[] = "score = 2.5 * tanh(score / 2.5)", other[] = "score = 7.5 * tanh(score / 7.5)";
    static const struct {
        void (*make)(fxa_problem *p);
        const char *text;
        bool same;
    } cases[] = {{key_nothing, text, true},
                 {key_nothing, other, true},
                 {key_length, text, true},
                 {key_heads, text, true},
                 {key_strides, text, true},
                 {key_columns, text, true},
                 {key_more_columns, text, false},
                 {key_dtype, text, false},
                 {key_lengths, text, false},
                 {key_dropout, text, false},
                 {key_mask, text, false},
                 {key_nothing, "score = -2.5 * tanh(score / 2.5)", false},
                 {key_nothing, "score = 2.5 * tanh(score)", false}};
    static uint8_t want[1 << 16], got[1 << 16];
    double numbers[FXA__MAX_CONSTANTS] = {0}, others[FXA__MAX_CONSTANTS] = {0};
    size_t n = 0, m = 0;
    choice_case c;
    choice_start(&c, FXA_FORWARD, text);
    choice_key(&c, want, &n, numbers);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choice_start(&c, FXA_FORWARD, cases[i].text);
        cases[i].make(&c.p);
        choice_key(&c, got, &m, others);
        if ((n == m && memcmp(want, got, n) == 0) != cases[i].same) T_FAIL("case %zu: key\n", i);
        if (cases[i].text == other) T_CHECK(memcmp(numbers, others, sizeof numbers) != 0);
    }
}

/* The text of the sums of two params may be the same, but their targets are part of the code, so keys differ. */
TEST(keys_tell_gradients_apart) {
    static const char text[] = "param x : float\nparam y : float\nscore = score + x + y";
    static uint8_t one[1 << 16], two[1 << 16];
    double numbers[FXA__MAX_CONSTANTS] = {0};
    size_t n = 0, m = 0;
    choice_case c;
    choice_start(&c, FXA_BACKWARD, text);
    c.p.param_grads = 1;
    choice_key(&c, one, &n, numbers);
    choice_start(&c, FXA_BACKWARD, text);
    c.p.param_grads = 2;
    choice_key(&c, two, &m, numbers);
    T_CHECK(n != m || memcmp(one, two, n) != 0);
}

static void key_pages_of_64(fxa_problem *p) { p->flags |= FXA_PAGED, p->page_size = 64, p->n_pages = 99; }
static void key_pages_of_24(fxa_problem *p) { p->flags |= FXA_PAGED, p->page_size = 24, p->n_pages = 99; }

/* Problems that differ in the family of their kernels alone, by the size of pages, have keys that differ. */
TEST(keys_tell_families_apart) {
    static uint8_t one[1 << 16], two[1 << 16];
    double numbers[FXA__MAX_CONSTANTS] = {0};
    size_t n = 0, m = 0;
    choice_case c;
    choice_start(&c, FXA_FORWARD, "score = tanh(score)");
    key_pages_of_64(&c.p);
    choice_key(&c, one, &n, numbers);
    choice_start(&c, FXA_FORWARD, "score = tanh(score)");
    key_pages_of_24(&c.p);
    choice_key(&c, two, &m, numbers);
    T_CHECK(n != m || memcmp(one, two, n) != 0);
}

/* Captured tensors are identified by their index, so all tensors stay in the rewritten program, read or not, and
 * targets of gradients keep their params. */
TEST(tensors_keep_their_places) {
    static const char *const texts[] = {
        "tensor a : f32[1]\ntensor z : f32[1]\nscore = score + z[k]",
        "tensor a : f32[1]\ntensor z : f32[1]\nscore = k <= q ? score + z[k] : -inf",
        "tensor a : f32[1]\ntensor z : f32[1]\nscore = k <= q ? score + z[k] : -inf\nmask = q < 0 && a[q] > 0.0",
    };
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        choice_start(&c, i % 2 ? FXA_BACKWARD : FXA_FORWARD, texts[i / 2]);
        T_INT(c.p.n_captures, 2);
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_INT(g.program->n_tensors, 2);
        if (g.program->n_tensors == 2) T_STR(g.program->tensors[1].name, "z");
    }
}

TEST(places_of_gradients_read_params_in_memory) {
    static const char *const texts[] = {"param o : int\ntensor t : f32[1]\nscore = score + t[q - k + o]",
                                        "param o : int\ntensor t : f32[1]\nscore = score + t[h + o]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        choice_case c;
        fxa__cuda_choice out;
        T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
        choice_start(&c, FXA_BACKWARD, texts[i]);
        c.captures[0].grad = 1, c.p.flags |= FXA_SCALARS_IN_MEMORY;
        T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
        T_CHECK(g.switches.grad_diagonal || g.switches.grad_sums);
        fxa__write_bytes(&g.text, "", 1);
        T_CHECK(strstr((const char *)g.text.data, "a.i[") == NULL); /* the text must not read the host value */
    }
}

/* Sums beyond the capacity become scattered gradients; sums of params cannot, so they are always among the sums. */
TEST(params_have_room_among_sums) {
    char text[512] = "param x : float\ntensor t : f32[2]\nscore = score + x";
    choice_case c;
    fxa__cuda_choice out;
    T_ENDED(fxa__cuda_program_free) fxa__cuda_program g = {.program = NULL};
    bool param = false;
    for (int i = 0; i <= FXA_CUDA_SUMS; i++) (void)sprintf(text + strlen(text), " + t[h, %d]", i);
    choice_start(&c, FXA_BACKWARD, text);
    c.captures[0].grad = 1, c.p.param_grads = 1;
    T_INT(choice_end(&c, &choice_hopper, &out, &g, &err), FXA_OK);
    T_INT(g.switches.grad_sums, FXA_CUDA_SUMS);
    T_CHECK(g.switches.grad_scatter);
    for (int32_t i = 0; i < g.switches.grad_sums; i++)
        param |= g.program->outputs[g.gradients.sums[i]].kind == FXA__OUT_DPARAM;
    T_CHECK(param);
}

/* ---- Costs ------------------------------------------------------------------------------------------------------- */

/* The engine that is faster on an H200 (measurements in docs/cuda.md), by kind of problem. */
TEST(costs_follow_the_figures) {
    static const struct {
        const char *text;
        int64_t b, hq, hkv, sq, sk, d;
        uint32_t flags;
        bool cuda[2]; /* [pass] true if cuda is faster */
    } rows[] = {
        {NULL, 4, 16, 16, 4096, 4096, 128, 0, {1, 1}},
        {NULL, 4, 16, 16, 4096, 4096, 128, FXA_CAUSAL, {1, 1}},
        {"score = 30 * tanh(score / 30)", 4, 16, 16, 4096, 4096, 128, 0, {1, 1}},
        {"score = 30 * tanh(score / 30)", 4, 32, 32, 4096, 4096, 64, 0, {1, 1}},
        {NULL, 4, 16, 16, 4096, 4096, 128, FXA_DETERMINISTIC, {1, 1}},
        {NULL, 4, 16, 16, 4096, 4096, 128, FXA_DETERMINISTIC | FXA_CAUSAL, {1, 1}},
        {NULL, 4, 32, 32, 4096, 4096, 64, FXA_DETERMINISTIC, {1, 1}},
        {"score = 30 * tanh(score / 30)\ntensor ids : i32[1]\nmask = ids[q] == ids[k]",
         4,
         32,
         32,
         4096,
         4096,
         64,
         0,
         {1, 1}},
        {"score = 30 * tanh(score / 30)\nmask = k % 64 < 32", 4, 32, 32, 4096, 4096, 64, 0, {1, 1}},
        {NULL, 1, 64, 8, 1, 1024, 128, 0, {1, 1}},
        {NULL, 1, 64, 8, 1, 8192, 128, 0, {1, 1}},
        {NULL, 1, 64, 8, 1, 131072, 128, 0, {1, 1}},
        {NULL, 2, 64, 8, 1, 8192, 128, 0, {1, 1}},
        {NULL, 4, 64, 8, 1, 8192, 128, 0, {1, 1}},
        {NULL, 8, 64, 8, 1, 32768, 128, 0, {1, 1}},
        {NULL, 4, 64, 8, 4, 131072, 128, 0, {1, 1}},
        {NULL, 16, 64, 8, 1, 8192, 128, FXA_PAGED, {1, 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pass = 0; pass < 2; pass++) {
            choice_case c;
            fxa_capture ids = {.size = {4096}};
            fxa__problem *p = NULL;
            fxa__cuda_choice choice;
            fxa__cuda_program program;
            choice_start(&c, (fxa_pass)pass, rows[i].text);
            c.p.b = rows[i].b, c.p.hq = rows[i].hq, c.p.hkv = rows[i].hkv, c.p.sq = rows[i].sq, c.p.sk = rows[i].sk;
            c.p.d_qk = rows[i].d, c.p.flags |= rows[i].flags;
            if (rows[i].flags & FXA_PAGED) c.p.page_size = 128, c.p.n_pages = c.p.b * c.p.sk / 128;
            if (rows[i].text && strstr(rows[i].text, "ids")) c.p.captures = &ids, c.p.n_captures = 1;
            T_OK(fxa__problem_create(fxa__context_host(ctx), &c.p, &p, &err));
            T_OK(fxa__cuda_choose(&choice_hopper, p, &choice, &program, &err));
            double cuda = fxa__cuda_cost(132, &choice, p), cudnn = fxa__dnn_cost(132, p);
            if (!(cuda > 0 && cudnn > 0) || (cuda < cudnn) != rows[i].cuda[pass])
                T_FAIL("row %zu, pass %d: %g and %g s\n", i, pass, cuda, cudnn);
            fxa__cuda_program_free(&program);
            fxa__problem_release(p);
            fxa_program_destroy(c.program);
        }
}

/* On an H200 these kernels were faster than cuDNN's at all head dims (docs/cuda-kernels.md, docs/gpu.md); kernels
 * without matrix instructions are slower. */
TEST(costs_order_engines_as_they_were_measured) {
    static const int32_t columns[] = {64, 96, 128, 192, 256};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
            choice_case c;
            fxa__problem *p = NULL;
            bool wide = columns[i] > 128;
            const char *name = !pass ? "forward_sm90" : wide ? "backward_wide_sm90" : "backward_sm90";
            fxa__cuda_choice choice = {.recipe = family_recipe(name, 90)};
            choice.traits.d = choice.traits.dv = columns[i];
            choice_start(&c, (fxa_pass)pass, NULL);
            c.p.d_qk = columns[i], c.p.sq = c.p.sk = 4096;
            T_OK(fxa__problem_create(fxa__context_host(ctx), &c.p, &p, &err));
            double cuda = fxa__cuda_cost(132, &choice, p), cudnn = fxa__dnn_cost(132, p);
            if (!(cuda > 0 && cuda < cudnn))
                T_FAIL("pass %d, %d columns: %g and %g s\n", pass, columns[i], cuda, cudnn);
            T_CHECK(fxa__cuda_cost(66, &choice, p) > cuda);
            choice.recipe = family_recipe(pass ? "backward_simt" : "forward_simt", 90);
            T_CHECK(fxa__cuda_cost(132, &choice, p) > cudnn);
            fxa__problem_release(p);
        }
}

T_MAIN
