/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the backward pass never add to the same element of a partial sum. Random programs load one tensor at
 * several places with permuted, shifted, reversed and folded coordinates, with coordinate maps of every kind, at sizes
 * that cover each way of partitioning: one sum for all threads, one for each, none; by batch entry, head and chunk;
 * pages. The first part counts: of the elements of all pairs, no two threads may add to one element of a shared sum,
 * and no two pairs to one element of a gradient written without a sum. The second part runs: the same bits with any
 * number of threads. ThreadSanitizer detects a race in the second part even if the bits agree.
 */
#include "engine/cpu/backward/backward.h"
#include "support/fixtures/attn_data.h"
#include "t.h"

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

enum { LANES_B, LANES_H, LANES_Q, LANES_K, LANES_COORDS }; /* coordinates, in the order of fxa_input */
enum { LANES_PLAIN, LANES_PLUS, LANES_BACK, LANES_HALF, LANES_DISTANCE, LANES_ZERO, LANES_FORMS };
enum { LANES_LOADS = 3, LANES_RANK = 4 };

/* An index of a load: a coordinate, or an expression of a coordinate. */
typedef struct lanes_index {
    int form, coord;
} lanes_index;

typedef struct lanes_program {
    int rank, loads;
    lanes_index index[LANES_LOADS][LANES_RANK];
    char text[512];
} lanes_program;

static const char lanes_name[] = "bhqk";

static int32_t lanes_value(lanes_index x, const int32_t *at) {
    int32_t c = at[x.coord];
    switch (x.form) {
    case LANES_PLAIN: return c;
    case LANES_PLUS: return c + 1;
    case LANES_BACK: return -1 - c;
    case LANES_HALF: return c >= 0 ? c / 2 : -((1 - c) / 2); /* // rounds down */
    case LANES_DISTANCE: return at[LANES_Q] - at[LANES_K];
    default: return 0;
    }
}

static void lanes_write_index(char *text, size_t room, lanes_index x) {
    char c = lanes_name[x.coord];
    switch (x.form) {
    case LANES_PLAIN: (void)snprintf(text, room, "%c", c); break;
    case LANES_PLUS: (void)snprintf(text, room, "%c + 1", c); break;
    case LANES_BACK: (void)snprintf(text, room, "-1 - %c", c); break;
    case LANES_HALF: (void)snprintf(text, room, "%c // 2", c); break;
    case LANES_DISTANCE: (void)snprintf(text, room, "q - k"); break;
    default: (void)snprintf(text, room, "0"); break;
    }
}

static void lanes_write(lanes_program *p) {
    size_t room = sizeof p->text;
    int n = snprintf(p->text, room, "tensor t : f32[%d]\nscore = score", p->rank);
    for (int i = 0; i < p->loads; i++)
        for (int j = 0; j < p->rank; j++) {
            char index[16];
            lanes_write_index(index, sizeof index, p->index[i][j]);
            n += snprintf(p->text + n, room - (size_t)n, "%s%s%s", j ? ", " : " + 0.1 * t[", index,
                          j + 1 == p->rank ? "]" : "");
        }
}

/* Draws a program. The first load usually has plain coordinates as indices; later loads often permute these. */
static lanes_program lanes_draw(t_rng *rng) {
    lanes_program p = {.rank = (int)t_int(rng, 1, LANES_RANK), .loads = (int)t_int(rng, 1, LANES_LOADS)};
    int order[LANES_COORDS] = {LANES_B, LANES_H, LANES_Q, LANES_K};
    for (int i = 0; i < p.loads; i++) {
        bool permuted = i == 0 || t_int(rng, 0, 3) > 0;
        for (int j = LANES_COORDS - 1; permuted && j > 0; j--) {
            int with = (int)t_int(rng, 0, j), kept = order[j];
            order[j] = order[with], order[with] = kept;
        }
        for (int j = 0; j < p.rank; j++)
            p.index[i][j] =
                (lanes_index){t_int(rng, 0, 9) < 8 ? LANES_PLAIN : (int)t_int(rng, 0, LANES_FORMS - 1), order[j]};
    }
    lanes_write(&p);
    return p;
}

/* ---- Shapes and maps --------------------------------------------------------------------------------------------- */

/* Draws a shape. D of 512 makes blocks short, so that few keys are several chunks. Tensors are large enough for one
 * shared sum (over 2^18 elements), or small. */
static attn_spec lanes_shape(t_rng *rng, const lanes_program *program) {
    static const int64_t sizes[LANES_RANK][LANES_RANK] = {{300000}, {520, 520}, {270, 200, 5}, {200, 190, 3, 3}};
    attn_spec s = {.b = t_int(rng, 1, 3), .hkv = t_int(rng, 1, 3), .sq = t_int(rng, 1, 5), .d = 512, .dv = 8};
    bool large = t_int(rng, 0, 3) > 0;
    int rank = program->rank, turn = (int)t_int(rng, 0, rank - 1);
    s.dtype = FXA_F64;
    s.hq = s.hkv * t_int(rng, 1, 2);
    s.sk = t_int(rng, 0, 2) ? t_int(rng, 192, 260) : t_int(rng, 1, 40);
    if (t_int(rng, 0, 5) == 0) s.page_size = 16;
    if (t_int(rng, 0, 5) == 0) s.flags = FXA_BOTTOM_RIGHT; /* coordinates of rows start anywhere, also below 0 */
    for (int i = 0; i < rank; i++) {
        int64_t size = sizes[rank - 1][(i + turn) % rank];
        s.tensor[0][i] = large ? size + t_int(rng, 0, 3) : t_int(rng, 1, size < 20 ? size : 20);
    }
    s.text = program->text;
    return s;
}

/* Returns one of the ways in which coordinates may follow from indices; some maps give two indices the same coordinate,
 * or coordinates below 0. */
static fxa_index_map lanes_map(t_rng *rng, int64_t n) {
    fxa_index_map map = {.kind = FXA_MAP_AFFINE};
    switch (t_int(rng, 0, 9)) {
    case 0: map.base = t_int(rng, 0, 3), map.step = 2; break;
    case 1:
        map.base = -t_int(rng, 1, 3);
        map.step = 1;
        break;
    case 2: map.base = n - 1, map.step = -1; break;
    case 3:
        map.kind = FXA_MAP_SEGMENTS, map.n_segments = 2;
        map.segment[1] = (fxa_segment){(n + 1) / 2, 0, 1}; /* the second half has the coordinates of the first */
        if (n < 2) map.n_segments = 1;
        break;
    default: break; /* identity */
    }
    return map;
}

static void lanes_set_maps(fxa_problem *p, t_rng *rng) {
    p->map_b = lanes_map(rng, p->b);
    p->map_h = lanes_map(rng, p->hq);
    p->map_q = lanes_map(rng, p->sq);
    p->map_k = lanes_map(rng, p->sk);
}

/* ---- By counting ------------------------------------------------------------------------------------------------- */

typedef struct lanes_paths {
    int shared, once, own, chunks, pool, by[FXA__CPU_CHAIN_BY_ALL + 1];
} lanes_paths;

typedef struct lanes_count {
    const lanes_program *program;
    const fxa__problem *p;
    fxa__cpu_backward_split split;
    uint8_t *seen; /* [element] 1 + the thread that wrote it, 0 = none */
    int meetings;
} lanes_count;

static int64_t lanes_element(const lanes_count *c, const lanes_index *index, const int32_t *at) {
    int64_t element = 0;
    for (int j = 0; j < c->program->rank; j++) {
        int64_t size = c->p->in.captures[0].size[j], x = lanes_value(index[j], at);
        if (x < 0) x += size;
        if (x < 0 || x >= size) return -1;
        element = element * size + x;
    }
    return element;
}

/* Returns true for the first of equal loads, which count as one load. */
static bool lanes_is_first(const lanes_program *p, int load) {
    for (int i = 0; i < load; i++)
        if (memcmp(p->index[i], p->index[load], sizeof p->index[i]) == 0) return false;
    return true;
}

/* Marks the elements that a pair adds to as written by thread `lane`. */
static void lanes_touch(lanes_count *c, int64_t lane, const int32_t *at) {
    for (int i = 0; i < c->program->loads; i++) {
        if (!lanes_is_first(c->program, i)) continue;
        int64_t element = lanes_element(c, c->program->index[i], at);
        if (element < 0) continue;
        if (c->seen[element] && ((c->split.one_pair_per_element & 1) || c->seen[element] != lane + 1)) c->meetings++;
        c->seen[element] = (uint8_t)(lane + 1);
    }
}

static void lanes_touch_item(lanes_count *c, int64_t item) {
    const fxa_problem *p = &c->p->in;
    const fxa__cpu_backward_split *split = &c->split;
    fxa__bound_args bound = {.scale = 1};
    int64_t group = item % split->groups, chunk = item / split->groups, heads = p->hq / p->hkv;
    int64_t lane = fxa__cpu_backward_chain_of(split, p, item), b = group / p->hkv, hkv = group % p->hkv;
    fxa__seq seq = fxa__seq_get(c->p, &bound, b);
    for (int64_t h = hkv * heads; h < (hkv + 1) * heads; h++)
        for (int64_t q = 0; q < p->sq; q++)
            for (int64_t k = chunk * split->split_keys; k < (chunk + 1) * split->split_keys && k < p->sk; k++) {
                int32_t at[LANES_COORDS] = {
                    fxa__coord(c->p, &bound, FXA_INPUT_B, b), fxa__coord(c->p, &bound, FXA_INPUT_H, h),
                    fxa__row_coord(c->p, &bound, &seq, q), fxa__coord(c->p, &bound, FXA_INPUT_K, k)};
                lanes_touch(c, lane, at);
            }
}

static void lanes_note(lanes_paths *paths, const fxa__cpu_backward_split *split, const fxa_problem *p) {
    int64_t many = split->chains > 1;
    if (split->one_pair_per_element & 1)
        paths->once++;
    else if (split->shared & 1)
        paths->shared += many != 0;
    else
        paths->own += many != 0;
    paths->chunks += split->key_splits > 1;
    paths->pool += split->pool;
    uint32_t axes = (p->b > 1 ? FXA__CPU_CHAIN_BY_BATCH : 0u) | (p->hkv > 1 ? FXA__CPU_CHAIN_BY_HEAD : 0u) |
                    (split->key_splits > 1 ? FXA__CPU_CHAIN_BY_SPLIT : 0u);
    if (many && (split->shared & 1)) paths->by[split->chain_axes & axes]++;
}

/* Returns the shape as a problem without data, because partitioning needs no data. */
static fxa_problem lanes_problem(const attn_spec *s, fxa_program *program, fxa_capture *capture) {
    fxa_problem p = attn_spec_problem(s);
    p.pass = FXA_BACKWARD;
    p.flags |= FXA_GRAD_Q | FXA_GRAD_K;
    if (p.page_size) p.n_pages = 20;
    memcpy(capture->size, s->tensor[0], sizeof s->tensor[0]);
    capture->grad = 1;
    p.program = program, p.captures = capture, p.n_captures = 1;
    return p;
}

static int lanes_count_meetings(const lanes_program *program, const fxa__problem *p, lanes_paths *paths) {
    bool usable;
    fxa__cpu_code code = {.kernels = fxa__cpu_set(0, sizeof(double), &usable), .width = 2};
    fxa_error err;
    T_OK(fxa_program_derivative(p->program, &code.by_score, &err));
    lanes_count c = {.program = program, .p = p, .split = fxa__cpu_backward_split_make(&code, p)};
    int64_t n = 1;
    for (int i = 0; i < program->rank; i++) n *= p->in.captures[0].size[i];
    lanes_note(paths, &c.split, &p->in);
    c.seen = calloc((size_t)n, 1);
    if (!c.seen) abort();
    for (int64_t item = 0; ((c.split.one_pair_per_element | c.split.shared) & 1) && item < c.split.tasks; item++)
        lanes_touch_item(&c, item);
    free(c.seen);
    fxa_program_destroy(code.by_score);
    return c.meetings;
}

static void lanes_count_case(fxa_context *ctx, t_rng *rng, lanes_paths *paths) {
    lanes_program program = lanes_draw(rng);
    attn_spec s = lanes_shape(rng, &program);
    fxa_error err;
    t_program *parsed = NULL;
    fxa_capture capture = {.grad = 0};
    fxa__problem *p = NULL;
    T_OK(fxa_program_parse(ctx, s.text, SIZE_MAX, &parsed, &err));
    fxa_problem problem = lanes_problem(&s, parsed, &capture);
    lanes_set_maps(&problem, rng);
    T_OK(fxa__problem_create(fxa__context_host(ctx), &problem, &p, &err));
    int meetings = p ? lanes_count_meetings(&program, p, paths) : 0;
    if (meetings) T_FAIL("%d meetings:\n%s\n", meetings, s.text);
    fxa__problem_release(p);
}

TEST(lanes_never_meet) {
    lanes_paths paths = {0};
    t_rng rng = {t_seed()};
    fxa_context *ctx = t_context();
    for (int i = 0; i < t_scaled_up(800); i++) lanes_count_case(ctx, &rng, &paths);
    fxa_context_destroy(ctx);
    T_CHECK(paths.shared > 20 && paths.once > 5 && paths.own > 20 && paths.chunks > 50 && paths.pool > 5);
    T_CHECK(paths.by[FXA__CPU_CHAIN_BY_BATCH] > 2 && paths.by[FXA__CPU_CHAIN_BY_HEAD] > 2 &&
            paths.by[FXA__CPU_CHAIN_BY_SPLIT] > 2);
}

/* ---- By running -------------------------------------------------------------------------------------------------- */

/* Runs backward in a new context with that many threads: the bits must equal those in *kept. */
static void lanes_run(const attn_spec *s, uint64_t seed, uint32_t threads, attn_kept *kept) {
    fxa_error err = {0};
    t_ctx *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    attn_owned x = {0};
    const char *other;
    t_rng rng = {seed};
    config.threads = threads;
    T_OK(fxa_context_create(&config, &ctx, &err));
    T_REQUIRE(attn_data_make(&x, ctx, s, seed, &err) == FXA_OK);
    if (seed % 3 == 0) lanes_set_maps(&x.problem, &rng);
    T_OK(attn_data_run(&x, ctx, "cpu", FXA_FORWARD, &err));
    for (int run = 0; run < (threads > 1 ? 2 : 1); run++) {
        T_OK(attn_data_run(&x, ctx, "cpu", FXA_BACKWARD, &err));
        if ((other = attn_other_bits(&x, FXA_BACKWARD, kept)))
            T_FAIL("%s has other bits with %u threads, run %d:\n%s\n", other, threads, run, s->text);
    }
}

static void lanes_compare(attn_spec *s, uint64_t seed) {
    T_ENDED(attn_drop) attn_kept kept = {{NULL}};
    s->around = ATTN_PAGE_BEHIND;
    lanes_run(s, seed, 1, &kept);
    lanes_run(s, seed, 2, &kept);
    lanes_run(s, seed, 5, &kept);
}

/* Loads whose threads have collided in the past; threads divided by chunk, by head, by batch entry. */
TEST(permuted_loads_give_the_same_bits) { /* */
    static const struct {
        const char *loads;
        int64_t tensor[FXA_MAX_RANK];
    } cases[] = {
        {"t[q, k] + t[k, q]", {520, 520}},
        {"t[h, k] + t[k, h]", {520, 520}},
        {"t[b, h, k] + t[h, b, k]", {16, 80, 210}},
        {"t[b, h, q] + t[b, q, h]", {4, 260, 260}},
        {"t[b, h, q, k] + t[b, h, k, q]", {3, 4, 200, 200}},
        {"t[k, q] * t[k, k] + t[k, q + 1]", {520, 520}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128];
        attn_spec s = {.b = 2, .hq = 4, .hkv = 2, .sq = 16, .sk = 200, .d = 512, .dv = 8, .dtype = FXA_F64};
        int rank = 0;
        while (rank < FXA_MAX_RANK && cases[i].tensor[rank]) rank++;
        (void)snprintf(text, sizeof text, "tensor t : f32[%d]\nscore = score + %s", rank, cases[i].loads);
        memcpy(s.tensor[0], cases[i].tensor, sizeof s.tensor[0]);
        s.text = text;
        lanes_compare(&s, 1);
    }
}

TEST(random_loads_give_the_same_bits) {
    t_rng rng = {t_seed() + 1};
    for (int i = 0; i < 4 + t_scaled(30); i++) {
        lanes_program program = lanes_draw(&rng);
        attn_spec s = lanes_shape(&rng, &program);
        s.sq *= 3;
        lanes_compare(&s, t_next(&rng));
    }
}

T_MAIN
