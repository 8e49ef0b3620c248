/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of random problems on the GPU engines, compared by digests with tests/golden/cuda_random.txt and
 * tests/golden/cudnn_random.txt. A text is that of test_cuda_plan_texts.c or test_cudnn_graphs.c, or the reason of a
 * refusal. Problems do not depend on FXA_TEST_SEED. After an intended change of an engine or of the generator,
 * FXA_TEST_UPDATE=1 writes the digests; with FXA_TEST_TEXTS=FOLDER the test also writes the texts, which shows how
 * those of two versions differ.
 */
#include "engine/cuda/cuda_plan_text.h"
#include "engine/cudnn/cudnn_graph_text.h"
#include "gpu_any_problem.h"
#include "support/fixtures/golden.h"

/* Floats have few digits, because the last ones depend on the C library. */
enum { RANDOM_DIGITS = 4 };

static uint64_t random_digest(const fxa__writer *w) {
    uint64_t x = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < w->size; i++) x = (x ^ w->data[i]) * UINT64_C(0x100000001b3);
    return x;
}

/* Writes the line of a problem, and its text to the folder of FXA_TEST_TEXTS. */
static void random_line(const char *engine, int number, const fxa__writer *text, fxa__writer *w) {
    const char *folder = getenv("FXA_TEST_TEXTS");
    char path[512];
    fxa__write_format(w, "%d: %zu bytes, %016llx\n", number, text->size, (unsigned long long)random_digest(text));
    if (!folder) return;
    (void)snprintf(path, sizeof path, "%s/%s_%d.txt", folder, engine, number);
    FILE *f = fopen(path, "w");
    T_REQUIRE(f);
    (void)fwrite(text->data, 1, text->size, f);
    (void)fclose(f);
}

/* Writes the text of a problem on the cuda engine. */
static void random_cuda(any_case *c, fxa__writer *w) {
    static bed x;
    fxa_error err = {.status = FXA_OK};
    if (bed_open(&x, &c->p, c->forced, &err)) {
        any_slots(&x);
        plan_write(&x, RANDOM_DIGITS, w);
    } else {
        fxa__write_format(w, "%s\n", err.text);
    }
    bed_close(&x);
}

/* Makes most problems ones that cuDNN supports. */
static void random_tame(t_rng *r, any_case *c) {
    fxa_problem *p = &c->p;
    fxa_operand *const all[] = {&p->q, &p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv};
    uint32_t dtype = any_in(r, 2) ? FXA_BF16 : FXA_F16;
    if (any_in(r, 8)) return;
    for (int i = 0; i < 8; i++) {
        all[i]->dtype = dtype;
        if (all[i]->layout == FXA_LAYOUT_STRIDED) all[i]->layout = FXA_LAYOUT_BHSD;
    }
    p->alignment = 16, p->d_qk = 8 * t_int(r, 1, 16), p->d_v = any_in(r, 3) ? 8 * t_int(r, 1, 16) : p->d_qk;
    p->flags &= ~(uint32_t)FXA_DROPOUT, p->dropout_p = 0, p->param_grads = 0;
    if (p->pass == FXA_BACKWARD) p->flags &= ~(uint32_t)(FXA_PAGED | FXA_ACCUMULATE_DTENSORS | FXA_ACCUMULATE_DPARAMS);
    for (size_t i = 0; i < p->n_captures; i++) c->captures[i].grad = c->captures[i].grad_dtype = 0;
    if (!any_in(r, 4)) p->flags &= ~(uint32_t)(FXA_RETURN_ROW_MAX | FXA_SINKS | FXA_SINK_ZERO | FXA_GRAD_SINKS);
    if (p->sq == 0) p->sq = 9;
    if (p->sk == 0) p->sk = 9;
    if (p->flags & FXA_VARLEN) p->total_q = p->b * p->sq, p->total_k = p->b * p->sk;
}

/* Writes the text of a problem on the cudnn engine. */
static void random_cudnn(any_case *c, fxa__writer *w) {
    static fxa__dnn_attention a;
    static fxa__dnn_code code;
    static const int64_t versions[] = {91901, 91400, 91800};
    fxa__problem *p = NULL;
    fxa_error err = {.status = FXA_OK};
    fxa__writer listing = {.host = fxa__context_host(ctx)};
    code.level = (fxa__dnn_level){versions[c->forced > 0 ? c->forced : 0], c->p.b == 4 ? 80 : 90};
    T_OK(fxa__problem_create(listing.host, &c->p, &p, &err));
    fxa_status status = p ? fxa__dnn_attention_make(p, code.level, &a, &err) : FXA_E_PROBLEM;
    if (status == FXA_OK) {
        fxa__dnn_dump(&code, p, &listing);
        fxa__write_u8(&listing, 0);
        graph_write(&a, (const char *)listing.data, w);
    } else {
        fxa__write_format(w, "%s\n", err.text);
    }
    fxa__dnn_attention_free(&a);
    fxa__writer_free(&listing);
    fxa__problem_release(p);
}

/* Compares the texts of n random problems with a golden file. */
static void random_check(const char *engine, int n, void (*tame)(t_rng *r, any_case *c),
                         void (*write)(any_case *c, fxa__writer *w)) {
    T_ENDED(fxa__writer_free) fxa__writer all = {.host = fxa__context_host(ctx)};
    char name[64];
    graph_digits = RANDOM_DIGITS;
    for (int i = 0; i < n; i++) {
        static any_case c;
        t_rng r = {1000 * (uint64_t)n + (uint64_t)i};
        fxa__writer text = {.host = all.host};
        any_make(&r, &c);
        if (tame) tame(&r, &c);
        if (any_is_problem(&c.p)) {
            write(&c, &text);
            random_line(engine, i, &text, &all);
        }
        fxa__writer_free(&text);
        fxa_program_destroy(c.program);
        fxa_program_destroy(c.own);
    }
    fxa__write_u8(&all, 0);
    (void)snprintf(name, sizeof name, "%s_random", engine);
    golden_check(".", name, (const char *)all.data);
}

TEST(texts_of_cuda) {
    if (!FXA_ASSERT) T_SKIP("the texts contain the red zones of workspaces, which this build does not have");
    random_check("cuda", 500, NULL, random_cuda);
}

TEST(texts_of_cudnn) {
    if (!FXA_ASSERT) T_SKIP("the texts contain the red zones of workspaces, which this build does not have");
    random_check("cudnn", 1500, random_tame, random_cudnn);
}

T_MAIN
