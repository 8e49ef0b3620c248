/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the recipe table: which problems each attention kernel runs, and how the host compiles and launches the
 * kernel. Rows of the same kernel differ in their architectures and in the shared memory of a CTA, which determines the
 * tile shape.
 */
#include "recipes.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

enum {
    /* maximum head dim of a backward with several sums of gradients if the derivative of the score is not 1 */
    RECIPE_SCORED = 96,
    RECIPE_DECODE_KEYS = 256, /* minimum keys of decode */
    RECIPE_DECODE_TILES = 4,  /* maximum tiles of 8 rows that a CTA computes */
    RECIPE_DECODE_GROUPS = 4  /* maximum row groups (sets of rows of a CTA) per KV head: work items stay below 2^31 */
};

/* ---- sm90 -------------------------------------------------------------------------------------------------------- */

/* Returns true if TMA can copy pages: the page size is 8, 16, 32, 64 or a multiple of 128 keys. Any page size fits the
 * backward: other kernels gather the pages into the workspace before it. */
static bool recipe_pages_fit(const fxa_problem *p) {
    return !(p->flags & FXA_PAGED) || p->pass == FXA_BACKWARD || p->page_size % 128 == 0 ||
           (p->page_size % 8 == 0 && 64 % p->page_size == 0);
}

/* Returns true if a tensor has no elements. Tensor maps require sizes > 0. */
static bool recipe_is_empty(const fxa_problem *p) {
    bool packed = p->flags & FXA_VARLEN, paged = p->flags & FXA_PAGED;
    return p->b < 1 || p->sq < 1 || p->sk < 1 || (packed && p->total_q < 1) || (packed && !paged && p->total_k < 1) ||
           (paged && p->n_pages < 1);
}

/* Returns the reason why no kernel of family sm90 runs the problem; NULL = a kernel may run it. The reason must hold
 * for all problems with the same code key. */
static const char *recipe_sm90(const fxa__cuda_case *c) {
    const fxa__cuda_self *s = c->self;
    if (c->traits.f32) return "";
    if (s->on_device && !s->gpu.driver.tensor_map) return "the driver has no tensor maps";
    if (recipe_is_empty(c->p)) return "empty";
    if (!c->traits.aligned) return "alignment is to be 16, strides multiples of 16 bytes above 0";
    if (c->traits.out_f32) return "a result has another type";
    if (c->traits.row_max) return "row maximum";
    if (!recipe_pages_fit(c->p)) return "the page size is to be 8, 16, 32, 64 or a multiple of 128";
    return NULL;
}

static const char *recipe_forward_sm90(const fxa__cuda_case *c) {
    const char *why = recipe_sm90(c);
    return why || fxa_forward_sm90(c->traits).fits ? why : "shared memory";
}

/* Returns the number of query rows that read the same keys: those of all query heads of a KV head. */
static int64_t recipe_decode_rows(const fxa_problem *p) { return p->sq * (p->hq / p->hkv); }

/* Returns how many tiles of 8 rows a CTA computes, limited by registers. */
static int32_t recipe_row_tiles(const fxa__cuda_case *c) {
    int64_t rows = recipe_decode_rows(c->p);
    return rows <= 8 ? 1 : rows <= 16 || fxa_is_wide(c->traits) ? RECIPE_DECODE_TILES / 2 : RECIPE_DECODE_TILES;
}

/* Returns NULL if decode runs the problem: few rows per KV head, many keys. The tile lists of decode have a row per KV
 * head, so the mask must be equal for all query heads of a KV head. */
static const char *recipe_decode_sm90(const fxa__cuda_case *c) {
    const fxa_problem *p = c->p;
    bool same = p->hq == p->hkv || !(c->program->operands.mask_inputs & 1u << FXA_INPUT_H);
    bool heads = c->traits.d == c->traits.dv && !fxa_is_wide(c->traits) && p->d_qk == p->d_v;
    bool fits = !recipe_sm90(c) && same && heads && !c->traits.dropout && p->sk >= RECIPE_DECODE_KEYS;
    return fits && recipe_decode_rows(p) <= 8 * RECIPE_DECODE_GROUPS * recipe_row_tiles(c) ? NULL : "";
}

static void recipe_settle_decode(const fxa__cuda_case *c, struct FxaTraits *t) {
    t->row_tiles = recipe_row_tiles(c);
    const struct FxaTileShape shape = fxa_decode_sm90(*t);
    t->cluster = fxa__cuda_decode_cluster(c->self, t, c->p, &shape);
}

/* Returns the reason why the backward for head dims up to 128 does not run the problem; NULL = it does. The kernel
 * computes gradients of captured tensors and params. If the derivative of the score is not 1, registers suffice for
 * one sum of gradients, or for several up to head dim 96, but not for scatter() or dropout. */
static const char *recipe_backward_sm90(const fxa__cuda_case *c) {
    const struct FxaTraits *t = &c->traits;
    const char *why = recipe_sm90(c);
    bool few = (t->d <= RECIPE_SCORED && t->dv <= RECIPE_SCORED) || t->grad_sums == 1;
    if (why) return why;
    if (fxa_is_wide(*t)) return "";
    if (t->user_backward) return "a backward program of the caller's";
    if (!t->derivative || !(t->grad_sums || t->grad_scatter)) return NULL;
    if (t->grad_scatter) return "scattered gradients beside a slope";
    if (t->dropout) return "gradients of params or tensors beside a slope and dropout";
    return few ? NULL : "several gradients of params or tensors beside a slope above 96 columns";
}

/* Returns the reason why the backward for head dims above 128 does not run the problem; NULL = it does. */
static const char *recipe_backward_wide_sm90(const fxa__cuda_case *c) {
    const struct FxaTraits *t = &c->traits;
    const char *why = recipe_sm90(c);
    if (why) return why;
    if (!fxa_is_wide(*t)) return "";
    if (t->user_backward) return "a backward program of the caller's";
    bool captured = t->grad_sums || t->grad_scatter || t->grad_diagonal || t->grad_dense;
    return captured ? "gradients of params or tensors above 128 columns" : NULL;
}

/* Returns true if a deterministic backward computes dQ in the backward kernel, by additions in a fixed order. That
 * order requires that every key tile visits every query block. The returned value does not depend on the number of
 * tiles, so that a batch entry has the same bits in any batch. Returns false with a dense tensor and with captured
 * tensors per query or key (pack_operands): no time was measured with them. */
static bool recipe_is_ordered(const struct FxaTraits *t) {
    return !t->mask && !t->varlen && !t->dense && !t->pack_operands && !t->grad_diagonal;
}

static fxa__cuda_dq recipe_dq_sm90(const fxa__cuda_case *c) {
    if (!(c->p->flags & FXA_GRAD_Q)) return FXA__CUDA_DQ_NONE;
    if (c->p->flags & FXA_DETERMINISTIC)
        return recipe_is_ordered(&c->traits) ? FXA__CUDA_DQ_ORDERED : FXA__CUDA_DQ_OWN_KERNEL;
    return fxa_fused_dq_fits(c->traits) ? FXA__CUDA_DQ_ANY_ORDER : FXA__CUDA_DQ_OWN_KERNEL;
}

static fxa__cuda_dq recipe_dq_apart(const fxa__cuda_case *c) {
    return c->p->flags & FXA_GRAD_Q ? FXA__CUDA_DQ_OWN_KERNEL : FXA__CUDA_DQ_NONE;
}

static const fxa__cuda_rate recipe_rates_forward_sm90[] = {{32, 342, 211, 227},  {64, 596, 365, 396},
                                                           {96, 679, 513, 529},  {128, 786, 581, 606},
                                                           {192, 780, 584, 602}, {256, 801, 598, 617}};
static const fxa__cuda_rate recipe_rates_backward_sm90[] = {{32, 376, 271, 288},  {64, 559, 404, 431},
                                                            {96, 541, 505, 493},  {128, 584, 551, 530},
                                                            {192, 491, 453, 442}, {256, 519, 480, 468}};

/* ---- sm80 and simt ----------------------------------------------------------------------------------------------- */

static const char *recipe_16_bits(const fxa__cuda_case *c) { return c->traits.f32 ? "" : NULL; }

/* Returns NULL if the backward of sm80 runs the problem, else "". The kernel adds to dQ, and to sums along diagonals,
 * in any order, so it is not deterministic. */
static const char *recipe_backward_sm80(const fxa__cuda_case *c) {
    bool by_pairs = (c->p->flags & FXA_GRAD_Q) || c->traits.grad_diagonal;
    return c->traits.f32 || ((c->p->flags & FXA_DETERMINISTIC) && by_pairs) ? "" : NULL;
}

static fxa__cuda_dq recipe_dq_any_order(const fxa__cuda_case *c) {
    (void)c;
    return FXA__CUDA_DQ_ANY_ORDER;
}

static const fxa__cuda_rate recipe_rates_forward_sm80[] = {{256, 301, 196, 224}};
static const fxa__cuda_rate recipe_rates_backward_sm80[] = {{256, 213, 165, 199}};
static const fxa__cuda_rate recipe_rates_forward_simt[] = {{256, 23, 20, 20}};
static const fxa__cuda_rate recipe_rates_backward_simt[] = {{256, 16, 14, 14}};

/* ---- Recipes ----------------------------------------------------------------------------------------------------- */

/* Members of a row for a family's kernel on devices of architectures `first` to `last`, with code for sm_NN`suffix` and
 * `kb` KB of shared memory per CTA. */
#define RECIPE_ON(kernels, of_pass, first, last, suffix, kb)                                                           \
    .family = kernels, .pass = of_pass, .arch_first = first, .arch_last = last, .arch_suffix = suffix, .shared_kb = kb
#define RECIPE_FORWARD_SM80(first, last, kb)                                                                           \
    {                                                                                                                  \
        .name = "forward_sm80", RECIPE_ON("sm80", FXA_FORWARD, first, last, "", kb), .refuses = recipe_16_bits,        \
        .main = {"sm80/forward", FXA__CUDA_FORWARD, 0, fxa_forward_sm80}, .launch = fxa__cuda_forward,                 \
        .rates = recipe_rates_forward_sm80, .is = FXA__CUDA_MATRIX_UNITS                                               \
    }
#define RECIPE_BACKWARD_SM80(first, last, kb)                                                                          \
    {                                                                                                                  \
        .name = "backward_sm80", RECIPE_ON("sm80", FXA_BACKWARD, first, last, "", kb),                                 \
        .refuses = recipe_backward_sm80, .dq = recipe_dq_any_order,                                                    \
        .main = {"sm80/backward", FXA__CUDA_BACKWARD, 0, fxa_backward_sm80}, .launch = fxa__cuda_backward,             \
        .rates = recipe_rates_backward_sm80, .is = FXA__CUDA_MATRIX_UNITS                                              \
    }

const fxa__cuda_recipe fxa__cuda_recipes[] = {
    {.name = "decode_sm90",
     RECIPE_ON("sm90", FXA_FORWARD, 90, 90, "a", 227),
     .refuses = recipe_decode_sm90,
     .settle = recipe_settle_decode,
     .main = {"sm90/decode", FXA__CUDA_DECODE, 0, fxa_decode_sm90},
     .launch = fxa__cuda_decode,
     .is = FXA__CUDA_MATRIX_UNITS},
    {.name = "forward_sm90",
     RECIPE_ON("sm90", FXA_FORWARD, 90, 90, "a", 227),
     .refuses = recipe_forward_sm90,
     .main = {"sm90/forward", FXA__CUDA_FORWARD, 0, fxa_forward_sm90},
     .launch = fxa__cuda_forward,
     .rates = recipe_rates_forward_sm90,
     .is = FXA__CUDA_MATRIX_UNITS},
    RECIPE_FORWARD_SM80(80, 80, 163),
    RECIPE_FORWARD_SM80(81, 89, 99),
    RECIPE_FORWARD_SM80(90, 99, 163),
    RECIPE_FORWARD_SM80(100, 119, 227),
    RECIPE_FORWARD_SM80(120, INT32_MAX, 99),
    {.name = "forward_simt",
     RECIPE_ON("simt", FXA_FORWARD, 80, INT32_MAX, "", 99),
     .main = {"simt/forward", FXA__CUDA_FORWARD, 0, fxa_forward_simt},
     .launch = fxa__cuda_forward,
     .rates = recipe_rates_forward_simt,
     .is = FXA__CUDA_ANY_ALIGNMENT},
    {.name = "backward_sm90",
     RECIPE_ON("sm90", FXA_BACKWARD, 90, 90, "a", 227),
     .refuses = recipe_backward_sm90,
     .dq = recipe_dq_sm90,
     .main = {"sm90/backward", FXA__CUDA_BACKWARD, 0, fxa_backward_sm90},
     .dq_kernel = {"sm90/dq", FXA__CUDA_DQ, 0, fxa_dq_sm90},
     .launch = fxa__cuda_backward,
     .rates = recipe_rates_backward_sm90,
     .is = FXA__CUDA_MATRIX_UNITS | FXA__CUDA_WHOLE_TILES | FXA__CUDA_DIAGONAL_ROUNDED},
    {.name = "backward_wide_sm90",
     RECIPE_ON("sm90", FXA_BACKWARD, 90, 90, "a", 227),
     .refuses = recipe_backward_wide_sm90,
     .dq = recipe_dq_apart,
     .main = {"sm90/backward_wide", FXA__CUDA_BACKWARD, 0, fxa_backward_wide_sm90},
     .dq_kernel = {"sm90/dq", FXA__CUDA_DQ, 0, fxa_dq_sm90},
     .launch = fxa__cuda_backward,
     .rates = recipe_rates_backward_sm90,
     .is = FXA__CUDA_MATRIX_UNITS | FXA__CUDA_DK_ROUNDED_TWICE},
    RECIPE_BACKWARD_SM80(80, 80, 163),
    RECIPE_BACKWARD_SM80(81, 89, 99),
    RECIPE_BACKWARD_SM80(90, 99, 163),
    RECIPE_BACKWARD_SM80(100, 119, 227),
    RECIPE_BACKWARD_SM80(120, INT32_MAX, 99),
    {.name = "backward_simt",
     RECIPE_ON("simt", FXA_BACKWARD, 80, INT32_MAX, "", 99),
     .dq = recipe_dq_apart,
     .main = {"simt/backward", FXA__CUDA_BACKWARD, FXA__CUDA_SIMT_DKV, fxa_backward_simt},
     .dq_kernel = {"simt/backward", FXA__CUDA_BACKWARD, FXA__CUDA_SIMT_DQ, fxa_forward_simt},
     .launch = fxa__cuda_backward,
     .rates = recipe_rates_backward_simt,
     .is = FXA__CUDA_ANY_ALIGNMENT},
};
const size_t fxa__cuda_recipe_count = sizeof fxa__cuda_recipes / sizeof *fxa__cuda_recipes;

/* ---- Units ------------------------------------------------------------------------------------------------------- */

const fxa__cuda_unit_row fxa__cuda_units[FXA__CUDA_UNIT_COUNT] = {
    [FXA__CUDA_FORWARD] = {NULL, {"fxa_forward"}, true, true},
    [FXA__CUDA_BACKWARD] = {NULL, {"fxa_backward", "fxa_grad_q"}, true, true},
    [FXA__CUDA_DQ] = {NULL, {"fxa_grad_q"}, true, true},
    [FXA__CUDA_PREPOST] = {"common/backward_prepost",
                           {"fxa_backward_prepare", "fxa_grad_q_finish", "fxa_grad_sink"},
                           true,
                           false},
    [FXA__CUDA_TILE_LISTS] = {"common/tile_lists",
                              {"fxa_operands_pack", "fxa_tile_lists", "fxa_range_table"},
                              false,
                              true},
    [FXA__CUDA_DIAGONAL_TABLE] = {"common/diagonal_table", {"fxa_diagonal_fill"}, false, true},
    [FXA__CUDA_DECODE] = {NULL, {"fxa_decode"}, true, true},
    [FXA__CUDA_CAPTURED_GRADS] = {"common/captured_grads",
                                  {"fxa_captured_totals", "fxa_captured_sums", "fxa_captured_diagonal",
                                   "fxa_captured_store", "fxa_captured_dense", "fxa_captured_params"},
                                  false,
                                  true},
    [FXA__CUDA_CONVERT] = {"common/convert",
                           {"fxa_convert_copy", "fxa_convert_merge", "fxa_coordinates_write"},
                           false,
                           false},
    [FXA__CUDA_PAGED_GRADS] = {"common/paged_grads",
                               {"fxa_pages_gather", "fxa_pages_count", "fxa_pages_offsets", "fxa_pages_list",
                                "fxa_pages_sort", "fxa_pages_scatter"},
                               false,
                               false},
};

const char *fxa__cuda_unit_source(const fxa__cuda_choice *choice, fxa__cuda_unit unit) {
    const fxa__cuda_recipe *r = choice->recipe;
    if (fxa__cuda_units[unit].source) return fxa__cuda_units[unit].source;
    return unit == r->main.unit ? r->main.source : unit == r->dq_kernel.unit ? r->dq_kernel.source : NULL;
}

struct FxaTileShape fxa__cuda_tile_shape(const fxa__cuda_choice *choice, fxa__cuda_unit unit) {
    const fxa__cuda_recipe *r = choice->recipe;
    if (unit == r->main.unit) return r->main.shape(choice->traits);
    if (r->dq_kernel.source && unit == r->dq_kernel.unit) return r->dq_kernel.shape(choice->traits);
    return unit == FXA__CUDA_PREPOST ? fxa_prepost(choice->traits.dv) : (struct FxaTileShape){0};
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static bool recipe_is_for(const fxa__cuda_recipe *r, int32_t arch, fxa_pass pass) {
    return r->pass == pass && r->arch_first <= arch && arch <= r->arch_last;
}

/* Returns the first recipe that runs the problem. Sets *better to the first preferred recipe that refuses the problem
 * with a reason that is not empty, and *why to this reason; without such a recipe both are unchanged. If
 * FXA_CUDA_FAMILY names a family, all rows before the first row of this family count as refusing. */
static const fxa__cuda_recipe *recipe_find(fxa__cuda_case *c, const fxa__cuda_recipe **better, const char **why) {
    const char *forced = c->self->forced;
    const fxa__cuda_recipe *r = fxa__cuda_recipes;
    for (;; r++) {
        FXA__ASSERT(r < fxa__cuda_recipes + fxa__cuda_recipe_count);
        if (!recipe_is_for(r, c->choice->arch, (fxa_pass)c->p->pass)) continue;
        if (forced && strcmp(forced, r->family) == 0) forced = NULL;
        c->traits.shared_kb = r->shared_kb;
        const char *reason = forced ? (c->traits.f32 ? "" : "FXA_CUDA_FAMILY") : r->refuses ? r->refuses(c) : NULL;
        if (!reason) return r;
        if (*reason && !*better) *better = r, *why = reason;
    }
}

/* Asserts which settings exclude each other, as static asserts of the kernels do. */
static void recipe_check(const fxa__cuda_recipe *r, const fxa__cuda_choice *c, const struct FxaTraits *t) {
    bool sm90 = r->arch_suffix[0], backward = r->pass == FXA_BACKWARD, decode = r->main.unit == FXA__CUDA_DECODE;
    FXA__ASSERT(t->d % 32 == 0 && t->d > 0 && t->d <= 256 && t->dv % 32 == 0 && t->dv > 0 && t->dv <= 256);
    FXA__ASSERT(t->dropout >= 0 && t->dropout <= 2 && !(t->o_f32 && t->f32));
    FXA__ASSERT(backward == (r->dq != NULL) && (backward || c->dq == FXA__CUDA_DQ_NONE));
    FXA__ASSERT(backward ? !t->paged && !t->row_max : !t->o_f32 && !t->ordered_dq && !t->separate_dq);
    FXA__ASSERT(!t->ordered_dq || !(t->separate_dq || t->varlen || t->mask || t->grad_diagonal));
    FXA__ASSERT(!sm90 || (t->aligned && !t->f32 && !t->out_f32 && !t->row_max && !t->user_backward));
    FXA__ASSERT(!(sm90 && backward && fxa_is_wide(*t)) ||
                !(t->grad_sums || t->grad_scatter || t->grad_diagonal || t->grad_dense));
    FXA__ASSERT(!t->dense || !t->f32);
    FXA__ASSERT(decode ? !t->dropout && t->d == t->dv && !fxa_is_wide(*t) : t->row_tiles == 0 && t->cluster == 0);
    FXA__ASSERT(!decode || t->row_tiles == 1 || t->row_tiles == 2 || t->row_tiles == 4);
    FXA__ASSERT(c->dq != FXA__CUDA_DQ_OWN_KERNEL || r->dq_kernel.shape);
    FXA__ASSERT(r->main.shape(*t).fits && r->main.shape(*t).launch.shared_bytes <= t->shared_kb * 1024);
}

void fxa__cuda_recipe_choose(fxa__cuda_case *c, fxa__cuda_choice *out) {
    const fxa__cuda_recipe *better = NULL;
    const char *why = NULL;
    const fxa__cuda_recipe *r = recipe_find(c, &better, &why);
    bool other = better && strcmp(better->family, r->family) != 0;
    out->recipe = r;
    out->better = other ? better->family : NULL;
    out->why_not = other ? why : NULL;
    out->dq = r->dq ? r->dq(c) : FXA__CUDA_DQ_NONE;
    if (r->is & FXA__CUDA_ANY_ALIGNMENT) c->traits.aligned = 0;
    out->traits = c->traits;
    bool separate = r->dq_kernel.source && r->dq_kernel.unit != r->main.unit;
    out->traits.ordered_dq = out->dq == FXA__CUDA_DQ_ORDERED;
    out->traits.separate_dq = separate && (out->dq == FXA__CUDA_DQ_OWN_KERNEL || out->dq == FXA__CUDA_DQ_NONE);
    if (r->settle) r->settle(c, &out->traits);
    recipe_check(r, out, &out->traits);
}

bool fxa__cuda_recipe_has_arch(int32_t arch) {
    bool any = false;
    for (size_t i = 0; i < fxa__cuda_recipe_count; i++)
        any = any || recipe_is_for(&fxa__cuda_recipes[i], arch, fxa__cuda_recipes[i].pass);
    return any;
}

const char *fxa__cuda_recipe_family(const char *name) {
    for (size_t i = 0; i < fxa__cuda_recipe_count; i++)
        if (strcmp(fxa__cuda_recipes[i].family, name) == 0 && !*fxa__cuda_recipes[i].arch_suffix)
            return fxa__cuda_recipes[i].family;
    return NULL;
}
