/* SPDX-License-Identifier: Apache-2.0
 *
 * Compilation by the cuda engine, on stand-ins for the driver and NVRTC: the options of every kernel choice, modules
 * that programs share and the number of cached ones, and kernels that a cubin lacks.
 */
#include "cuda_engine_fixture.h"

/* Makes the plan of a problem that differs from box_start's. Returns false, with a failed check, if there is none. */
static bool compile_plan(fxa_context *ctx, const box *b, fxa_plan **plan) {
    fxa_error err;
    fxa__problem *p = NULL;
    const fxa__cuda_self self = {.arch = box_arch, .processors = 132};
    fxa__cuda_program_free(&box_program);
    T_OK(fxa__problem_create(fxa__context_host(box_ctx), &b->p, &p, &err));
    if (p) T_OK(fxa__cuda_choose(&self, p, &box_choice, &box_program, &err)); /* the stand-in's kernel shapes */
    if (p) fxa__problem_release(p);
    fxa_status status = fxa_plan_create(ctx, &b->p, plan, &err);
    T_OK(status);
    return status == FXA_OK;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static void with_nothing(fxa_problem *p) { p->flags |= 0; }
static void with_f16(fxa_problem *p) { p->q.dtype = FXA_F16; }
static void with_f32(fxa_problem *p) { p->q.dtype = FXA_F32; }
static void with_columns(fxa_problem *p) { p->d_qk = 72, p->d_v = 136; }
static void with_lengths(fxa_problem *p) { p->flags |= FXA_PADDING; }
static void with_dropout(fxa_problem *p) { p->flags |= FXA_DROPOUT, p->dropout_p = 0.5; }
static void with_moved_dropout(fxa_problem *p) { with_dropout(p), p->map_q.base = 5; }
static void with_pages(fxa_problem *p) { p->flags |= FXA_PAGED, p->page_size = 64, p->n_pages = 32; }
static void with_no_alignment(fxa_problem *p) { p->alignment = 0; }
static void with_row_max(fxa_problem *p) { p->flags |= FXA_RETURN_ROW_MAX; }
static void with_wide_results(fxa_problem *p) { p->o.dtype = FXA_F32; }
static void with_no_mask(fxa_problem *p) { p->program = NULL, p->captures = NULL, p->n_captures = 0; }
static void with_any_order(fxa_problem *p) { p->flags &= ~(uint32_t)FXA_DETERMINISTIC; }
static void with_one_row(fxa_problem *p) { with_no_mask(p), p->sq = 1, p->sk = 1024, p->b = 1; }
static void with_many_rows(fxa_problem *p) { with_one_row(p), p->sq = 12, p->b = 64; }

/* Every setting of kernels/common/traits.h is an option with the value of the problem. */
TEST(options_say_what_the_problem_needs) {
    NEEDS_BOX;
    static const char usual[] =
        "-DFXA_D=64 -DFXA_DV=64 -DFXA_F16=0 -DFXA_F32=0 -DFXA_OUT_F32=0 -DFXA_O_F32=0 -DFXA_VARLEN=0 -DFXA_DROPOUT=0 "
        "-DFXA_PAGED=0 -DFXA_ALIGNED=1 -DFXA_FAST_MATH=0 -DFXA_SEPARATE_DQ=0 -DFXA_DQ_ORDERED=0 "
        "-DFXA_RETURN_ROW_MAX=0 -DFXA_ROW_TILES=0 -DFXA_CLUSTER=0 ";
    static const struct {
        fxa_pass pass;
        void (*make)(fxa_problem *p);
        const char *option, *other; /* the one that differs, and what else is given; NULL: as usual */
    } rows[] = {
        {FXA_FORWARD, with_nothing, NULL, NULL},
        {FXA_FORWARD, with_f16, "-DFXA_F16=1 ", NULL},
        {FXA_FORWARD, with_f32, "-DFXA_F32=1 ", "-DFXA_ALIGNED=0 "},
        {FXA_FORWARD, with_columns, "-DFXA_D=96 ", "-DFXA_DV=192 "},
        {FXA_FORWARD, with_lengths, "-DFXA_VARLEN=1 ", NULL},
        {FXA_FORWARD, with_dropout, "-DFXA_DROPOUT=1 ", NULL},
        {FXA_FORWARD, with_moved_dropout, "-DFXA_DROPOUT=2 ", NULL},
        {FXA_FORWARD, with_pages, "-DFXA_PAGED=1 ", NULL},
        {FXA_BACKWARD, with_pages, "-DFXA_PAGED=0 ", "-DFXA_SEPARATE_DQ=1 "},
        {FXA_FORWARD, with_no_alignment, "-DFXA_ALIGNED=0 ", NULL},
        {FXA_FORWARD, with_row_max, "-DFXA_RETURN_ROW_MAX=1 ", NULL},
        {FXA_FORWARD, with_wide_results, "-DFXA_OUT_F32=1 ", NULL},
        {FXA_BACKWARD, with_wide_results, "-DFXA_O_F32=1 ", "-DFXA_SEPARATE_DQ=1 "},
        {FXA_BACKWARD, with_nothing, "-DFXA_SEPARATE_DQ=1 ", NULL},
        {FXA_BACKWARD, with_no_mask, "-DFXA_DQ_ORDERED=1 ", NULL},
        {FXA_BACKWARD, with_any_order, NULL, NULL},
        {FXA_FORWARD, with_one_row, "-DFXA_ROW_TILES=1 ", "-DFXA_CLUSTER=2 "},
        {FXA_FORWARD, with_many_rows, "-DFXA_ROW_TILES=4 ", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa_context *ctx = box_context();
        fxa_plan *plan = NULL;
        box b;
        box_start(&b, rows[i].pass, NULL);
        rows[i].make(&b.p);
        if (compile_plan(ctx, &b, &plan)) {
            const char *given = box_options, *extra[] = {rows[i].option, rows[i].other};
            T_HAS(given,
                  family_of(&box_choice) == FAMILY_SM90 ? "--gpu-architecture=sm_90a " : "--gpu-architecture=sm_90 ");
            T_HAS(given, "--std=c++17 -default-device -DFXA_D=");
            char want[1024] = "";
            for (const char *at = usual, *end; *at; at = end + 1) { /* usual ones, or those that replace them */
                end = strchr(at, ' ');
                size_t name = (size_t)(strchr(at, '=') + 1 - at), size = (size_t)(end + 1 - at);
                for (int k = 0; k < 2; k++)
                    if (extra[k] && strncmp(extra[k], at, name) == 0) at = extra[k], size = strlen(at), extra[k] = NULL;
                (void)strncat(want, at, size);
            }
            for (int k = 0; k < 2; k++)
                if (extra[k]) (void)strcat(want, extra[k]);
            static const char *const shared[] = {[FAMILY_SM90] = "-DFXA_SHARED_KB=227 ",
                                                 [FAMILY_SM80] = "-DFXA_SHARED_KB=163 ",
                                                 [FAMILY_SIMT] = "-DFXA_SHARED_KB=99 "};
            (void)strcat(want, shared[family_of(&box_choice)]);
            T_STR(strstr(given, "-DFXA_D="), want);
        }
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        box_end(&b);
        box_check_end();
    }
}

/* Lines of sources are given to profilers where the environment asks for them. */
TEST(lines_and_functions_by_the_environment) {
    NEEDS_BOX;
    static const char *const rows[][2] = {{"FXA_CUDA_LINES", "-lineinfo "}, {"FXA_FAST_MATH", "-DFXA_FAST_MATH=1 "}};
    for (int i = 0; i < 2; i++) {
        fxa_plan *plan = NULL;
        box b;
        setenv(rows[i][0], "1", 1);
        fxa_context *ctx = box_context();
        box_start(&b, FXA_FORWARD, NULL);
        if (compile_plan(ctx, &b, &plan)) {
            T_HAS(box_options, rows[i][1]);
            T_CHECK(!strstr(box_options, rows[!i][1]));
        }
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        unsetenv(rows[i][0]);
        box_end(&b);
        box_check_end();
    }
}

/* ---- Units ------------------------------------------------------------------------------------------------------- */

static size_t compile_calls(fxa_context *ctx, int d, int dv, const char *text) {
    fxa_plan *plan = NULL;
    fxa_program *program = NULL;
    fxa_error err;
    box b;
    box_start(&b, FXA_BACKWARD, NULL);
    T_OK(fxa_program_parse(box_ctx, text, SIZE_MAX, &program, &err));
    b.p.program = program, b.p.captures = NULL, b.p.n_captures = 0, b.p.d_qk = d, b.p.d_v = dv;
    size_t before = box_nvrtc->calls;
    (void)compile_plan(ctx, &b, &plan);
    size_t calls = box_nvrtc->calls - before;
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    box_end(&b);
    return calls;
}

/* Units without a program's text are kept for other programs, 64 of them: the first are, those past them are not. */
TEST(so_many_units_are_kept) {
    NEEDS_BOX;
    static const int columns[] = {32, 64, 96, 128, 192, 256};
    fxa_context *ctx = box_context();
    for (int arrays = 0; arrays < 2; arrays++) /* bf16, then rows that are not aligned, which are other options */
        for (int i = 0; i < 36; i++) {
            int odd = arrays ? 1 : 0, d = columns[i / 6] - odd, dv = columns[i % 6] - odd;
            size_t first = compile_calls(ctx, d, dv, "score = tanh(score)");
            size_t second = compile_calls(ctx, d, dv, "score = score * score");
            bool kept = 36 * arrays + i < 64;
            if ((first - second >= 4) != kept) /* create, compile, size and code */
                T_FAIL("unit %d: %zu calls, then %zu\n", 36 * arrays + i, first, second);
        }
    fxa_context_destroy(ctx);
    box_check_end();
}

/* A kernel is taken from the driver where its cubin has it: the stand-in's have the first four. */
TEST(kernels_that_a_cubin_lacks) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan = NULL;
    box b;
    box_start(&b, FXA_BACKWARD, NULL);
    with_pages(&b.p);
    T_REQUIRE(compile_plan(ctx, &b, &plan));
    const fxa__cuda_module *m = &((const fxa__cuda_code *)plan->code->code)->unit[FXA__CUDA_PAGED_GRADS];
    for (int i = 0; i < 6; i++) T_INT(m->function[i] != NULL, i < 4);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

static void with_captured(fxa_problem *p) { p->captures = NULL, p->n_captures = 0, p->param_grads = 1; }
static void with_other_types(fxa_problem *p) { with_captured(p), p->param_grads = 0, p->v.dtype = FXA_F32; }
static void with_a_program(fxa_problem *p) { with_captured(p), p->param_grads = 0; }
static void with_pages_and_program(fxa_problem *p) { with_a_program(p), with_pages(p); }

/* Every kind of unit is built: the cubins of some have a shape, which the engine compares, others have none. */
TEST(units_with_and_without_shapes) {
    NEEDS_BOX;
    static const struct {
        fxa_pass pass;
        const char *text;
        void (*make)(fxa_problem *p);
        uint32_t units;
    } rows[] = {
        {FXA_FORWARD, "mask = k <= q", with_a_program, 1u << FXA__CUDA_FORWARD | 1u << FXA__CUDA_TILE_LISTS},
        {FXA_FORWARD, "score = score - exp(0.25 * float(abs(q - k)))", with_a_program,
         1u << FXA__CUDA_FORWARD | 1u << FXA__CUDA_DIAGONAL_TABLE},
        {FXA_FORWARD, "score = tanh(score)", with_other_types, 1u << FXA__CUDA_FORWARD | 1u << FXA__CUDA_CONVERT},
        {FXA_BACKWARD, "param a : float\nscore = a * score", with_captured,
         1u << FXA__CUDA_BACKWARD | 1u << FXA__CUDA_PREPOST | 1u << FXA__CUDA_CAPTURED_GRADS},
        {FXA_BACKWARD, "score = tanh(score)", with_pages_and_program,
         1u << FXA__CUDA_PAGED_GRADS | 1u << FXA__CUDA_CONVERT},
        {FXA_BACKWARD, "mask = k <= q", with_a_program, 1u << FXA__CUDA_DQ | 1u << FXA__CUDA_TILE_LISTS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa_context *ctx = box_context();
        fxa_plan *plan = NULL;
        fxa_program *program = NULL;
        box b;
        box_start(&b, rows[i].pass, NULL);
        T_OK(fxa_program_parse(box_ctx, rows[i].text, SIZE_MAX, &program, &err));
        b.p.program = program;
        rows[i].make(&b.p);
        if (compile_plan(ctx, &b, &plan)) {
            const fxa__cuda_code *code = plan->code->code;
            T_INT(code->choice.units & rows[i].units, rows[i].units);
            for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++)
                T_INT(code->unit[unit].function[0] != NULL, code->choice.units >> unit & 1);
        }
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        fxa_program_destroy(program);
        box_end(&b);
        box_check_end();
    }
}

T_MAIN
