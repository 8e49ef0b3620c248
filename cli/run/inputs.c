/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the .npy files of `run` and checks that they match each other, with file names in the messages. The library
 * receives only sizes and strides that the files really have.
 */
#include "run/run.h"

#include <inttypes.h>
#include <string.h>

/* Reads the order of the axes: --layout, where packed sequences are [T,H,D] (or [H,T,D]). */
static int run_read_layout(cli *c, run_state *r) {
    static const int whole[3][AXIS_COUNT] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 2, 0, 3}};
    static const int packed[2][AXIS_COUNT] = {{-1, 0, 1, 2}, {-1, 1, 0, 2}};
    int which = FXA_LAYOUT_BHSD, rc = job_read_layout(c, &which);
    if (rc != CLI_OK) return rc;
    r->packed = opt_has(c, OPT_CU_Q) || opt_has(c, OPT_CU_K);
    r->paged = opt_has(c, OPT_PAGES);
    if (r->packed && !opt_has(c, OPT_CU_Q)) return cli_fail(c, CLI_BAD_INPUT, "--cu-k needs --cu-q");
    if (r->paged && opt_has(c, OPT_CU_K))
        return cli_fail(c, CLI_BAD_INPUT, "--pages and --cu-k do not go together; give lengths by --k-lengths");
    for (int keys = 0; keys < 2; keys++) {
        bool flat = r->packed && !(keys && r->paged);
        r->rank[keys] = flat ? 3 : 4;
        memcpy(r->axis[keys], flat ? packed[!opt_has(c, OPT_LAYOUT) || which > 0] : whole[which], sizeof r->axis[keys]);
    }
    return CLI_OK;
}

/* Returns true if the file has the .npy type that stores `dtype`, which .npy lacks. */
static bool run_stores_dtype(const npy *a, fxa_dtype dtype) {
    return dtype == FXA_BF16 ? a->unsigned_bytes == 2 : a->dtype == FXA_U8;
}

/* Reads Q, K, V or dO: a float array of the right rank. Each operand may have its own dtype, which must agree with the
 * options. */
static int run_read_operand(cli *c, cli_option_id id, int rank, npy *out) {
    bool own = (id == OPT_K || id == OPT_V) && opt_has(c, OPT_KV_DTYPE);
    cli_option_id says = own ? OPT_KV_DTYPE : OPT_DTYPE;
    const char *path = opt_get(c, id), *dtype = opt_get(c, says);
    if (!path) return cli_fail(c, CLI_BAD_INPUT, "--%s FILE is missing", cli_options[id].name);
    int rc = npy_read(c, path, out);
    fxa_dtype said = dtype ? fxa_dtype_find(dtype) : FXA_DTYPE_NONE;
    const char *stored = npy_stored_as(said);
    if (rc == CLI_OK && stored && run_stores_dtype(out, said)) rc = npy_as_stored(c, out, said);
    if (rc != CLI_OK) return rc;
    if (dtype && !dtype_is_float(said))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.20s: accepted are f64, f32, f16, bf16, e4m3, e5m2",
                        cli_options[says].name, dtype);
    if (!dtype_is_float(out->dtype) || (dtype && said != out->dtype))
        return cli_fail(c, CLI_BAD_INPUT, "--%s: %.200s holds %s; %s", cli_options[id].name, path, npy_describe(c, out),
                        dtype ? cli_format(c, "--%s says %s%s%s", cli_options[says].name, dtype,
                                           stored ? ", which is stored as " : "", stored ? stored : "")
                        : id == OPT_K || id == OPT_V
                            ? "f64, f32, f16, uint16 with --kv-dtype bf16, or uint8 with --kv-dtype e4m3 or e5m2 are "
                              "accepted (--dtype in place of --kv-dtype if Q has the same type)"
                            : "f64, f32, f16, uint16 with --dtype bf16, or uint8 with --dtype e4m3 or e5m2 are "
                              "accepted");
    if (out->rank != rank)
        return cli_fail(c, CLI_BAD_INPUT, "--%s: %.200s holds %s; %d axes are expected (%s)", cli_options[id].name,
                        path, npy_describe(c, out), rank, rank == 3 ? "packed: T,H,D" : "see --layout");
    return CLI_OK;
}

static int64_t run_size(const run_state *r, const npy *a, int axis) {
    const int *at = r->axis[a == &r->k || a == &r->v];
    return at[axis] < 0 ? 1 : a->size[at[axis]];
}

void run_file_sizes(const run_state *r, int64_t batch, int64_t head, int64_t position, int64_t feature, int64_t *size) {
    const int64_t value[AXIS_COUNT] = {batch, head, position, feature};
    for (int i = 0; i < AXIS_COUNT; i++)
        if (r->axis[0][i] >= 0) size[r->axis[0][i]] = value[i];
}

fxa_operand run_operand(const run_state *r, bool keys, fxa_dtype dtype, const int64_t *stride) {
    fxa_operand o = {(uint32_t)dtype, FXA_LAYOUT_STRIDED, {0}};
    for (int i = 0; i < AXIS_COUNT; i++) o.stride[i] = r->axis[keys][i] < 0 ? 0 : stride[r->axis[keys][i]];
    return o;
}

static int run_same(cli *c, const run_state *r, const npy *a, const npy *b, int axis, const char *what) {
    int64_t x = run_size(r, a, axis), y = run_size(r, b, axis);
    if (x == y) return CLI_OK;
    return cli_fail(c, CLI_BAD_INPUT, "%.150s has %" PRId64 " %s, %.150s has %" PRId64 "; they must be alike", b->path,
                    y, what, a->path, x);
}

/* Fails if K has no heads, because hkv = 0 in a problem means as many heads as Q has. */
static int run_require_heads(cli *c, const run_state *r) {
    if (run_size(r, &r->k, AXIS_HEAD) || !run_size(r, &r->q, AXIS_HEAD)) return CLI_OK;
    return cli_fail(c, CLI_BAD_INPUT, "%.200s holds %s, which is 0 heads, and %.200s %s: that of Q must be 0 too",
                    r->k.path, npy_describe(c, &r->k), r->q.path, npy_describe(c, &r->q));
}

static int run_read_qkv(cli *c, run_state *r) {
    fxa_problem *p = &r->forward_problem;
    int rc = run_read_operand(c, OPT_Q, r->rank[0], &r->q);
    if (rc == CLI_OK) rc = run_read_operand(c, OPT_K, r->rank[1], &r->k);
    if (rc == CLI_OK) rc = run_read_operand(c, OPT_V, r->rank[1], &r->v);
    if (rc == CLI_OK && !r->paged) rc = run_same(c, r, &r->q, &r->k, AXIS_BATCH, "batch entries");
    if (rc == CLI_OK) rc = run_same(c, r, &r->q, &r->k, AXIS_HEAD_DIM, "head dims");
    if (rc == CLI_OK) rc = run_same(c, r, &r->k, &r->v, AXIS_BATCH, r->paged ? "pages" : "batch entries");
    if (rc == CLI_OK) rc = run_same(c, r, &r->k, &r->v, AXIS_HEAD, "heads");
    if (rc == CLI_OK) rc = run_same(c, r, &r->k, &r->v, AXIS_POSITION, "keys");
    if (rc == CLI_OK) rc = run_require_heads(c, r);
    if (rc != CLI_OK) return rc;
    p->b = run_size(r, &r->q, AXIS_BATCH);
    p->hq = run_size(r, &r->q, AXIS_HEAD);
    p->hkv = run_size(r, &r->k, AXIS_HEAD);
    p->sq = run_size(r, &r->q, AXIS_POSITION);
    p->sk = run_size(r, &r->k, AXIS_POSITION);
    p->d_qk = run_size(r, &r->q, AXIS_HEAD_DIM);
    p->d_v = run_size(r, &r->v, AXIS_HEAD_DIM);
    if (p->d_v == 0) p->d_v = FXA_D_V_ZERO;
    p->q = run_operand(r, false, r->q.dtype, r->q.stride);
    p->k = run_operand(r, true, r->k.dtype, r->k.stride);
    p->v = run_operand(r, true, r->v.dtype, r->v.stride);
    r->args.slot[FXA_SLOT_Q] = r->q.data;
    r->args.slot[FXA_SLOT_K] = r->k.data;
    r->args.slot[FXA_SLOT_V] = r->v.data;
    return CLI_OK;
}

/* Reads an int array of `rank` axes for a slot. The first axis must have `first` elements, unless `first` is
 * negative. */
static int run_read_ints(cli *c, cli_option_id id, int rank, int64_t first, npy *a, int32_t **out) {
    int rc = npy_read(c, opt_get(c, id), a);
    if (rc != CLI_OK) return rc;
    if (a->rank != rank || (first >= 0 && a->size[0] != first)) {
        const char *axes = rank == 1 ? "one axis is" : "two axes are";
        const char *batch =
            first < 0 ? "" : cli_format(c, ", %sas long as the batch, %" PRId64, rank == 1 ? "" : "the first ", first);
        return cli_fail(c, CLI_BAD_INPUT, "--%s: %.200s holds %s; %s expected%s", cli_options[id].name, a->path,
                        npy_describe(c, a), axes, batch);
    }
    return npy_as_int32(c, a, id, out);
}

static int64_t run_longest(const int32_t *offsets, int64_t n) {
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t length = (int64_t)offsets[i + 1] - offsets[i];
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* Sets batch and maximum lengths of packed sequences from their offsets. */
static int run_read_packed(cli *c, run_state *r) {
    fxa_problem *p = &r->forward_problem;
    int32_t *cu[2];
    npy a[2];
    int rc = run_read_ints(c, OPT_CU_Q, 1, -1, &a[0], &cu[0]);
    cu[1] = cu[0];
    a[1] = a[0];
    if (rc == CLI_OK && opt_has(c, OPT_CU_K)) rc = run_read_ints(c, OPT_CU_K, 1, -1, &a[1], &cu[1]);
    if (rc != CLI_OK) return rc;
    if (a[0].size[0] < 1 || a[0].size[0] != a[1].size[0])
        return cli_fail(c, CLI_BAD_INPUT,
                        "--cu-q and --cu-k hold %" PRId64 " and %" PRId64
                        " offsets; both must hold one more than there are sequences",
                        a[0].size[0], a[1].size[0]);
    p->flags |= FXA_VARLEN;
    p->total_q = p->sq;
    p->b = a[0].size[0] - 1;
    p->sq = run_longest(cu[0], p->b);
    r->args.slot[FXA_SLOT_CU_Q] = cu[0];
    if (r->paged) return CLI_OK;
    p->total_k = p->sk;
    p->sk = run_longest(cu[1], p->b);
    r->args.slot[FXA_SLOT_CU_K] = cu[1];
    return CLI_OK;
}

static int run_read_pages(cli *c, run_state *r) {
    fxa_problem *p = &r->forward_problem;
    int64_t page = p->sk, asked = p->sk;
    int32_t *table;
    npy a;
    int rc = opt_int(c, OPT_PAGE_SIZE, 1, INT32_MAX, &asked);
    if (rc == CLI_OK) rc = run_read_ints(c, OPT_PAGES, 2, p->b, &a, &table);
    if (rc != CLI_OK) return rc;
    if (asked != page || page < 1)
        return cli_fail(c, CLI_BAD_INPUT, "--page-size %" PRId64 ", but the pages of %.200s hold %" PRId64 " keys",
                        asked, r->k.path, page);
    p->flags |= FXA_PAGED;
    p->page_size = (uint32_t)page;
    p->n_pages = run_size(r, &r->k, AXIS_BATCH);
    p->sk = r->job->shape.given[SHAPE_SK] ? r->job->shape.value[SHAPE_SK] : a.size[1] * page;
    if (p->sk > a.size[1] * page || p->sk <= (a.size[1] - 1) * page)
        return cli_fail(c, CLI_BAD_INPUT, "--pages: %" PRId64 " pages of %" PRId64 " keys do not fit sk=%" PRId64,
                        a.size[1], page, p->sk);
    r->args.slot[FXA_SLOT_PAGES] = table;
    return CLI_OK;
}

/* Returns the maximum of the n given sequence lengths. */
static int64_t run_longest_length(const int32_t *lengths, int64_t n) {
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    return longest;
}

static int run_read_positions(cli *c, run_state *r) {
    int32_t *positions;
    npy a;
    const char *other = opt_has(c, OPT_DECODE) ? "decode" : opt_has(c, OPT_BOTTOM_RIGHT) ? "bottom-right" : NULL;
    if (opt_has(c, OPT_DECODE) && r->forward_problem.sq > 1)
        return cli_fail(c, CLI_BAD_INPUT,
                        "--decode: %.200s has %" PRId64 " rows, and a step has one; several align by "
                        "--bottom-right",
                        r->q.path, r->forward_problem.sq);
    if (!opt_has(c, OPT_Q_START)) return CLI_OK;
    if (other)
        return cli_fail(c, CLI_BAD_INPUT, "--q-start and --%s both set the q of the rows; give one of them", other);
    int rc = run_read_ints(c, OPT_Q_START, 1, r->forward_problem.b, &a, &positions);
    if (rc != CLI_OK) return rc;
    r->forward_problem.flags |= FXA_Q_START;
    r->args.slot[FXA_SLOT_Q_START] = positions;
    return CLI_OK;
}

static int run_read_lengths(cli *c, run_state *r) {
    static const struct {
        cli_option_id id;
        fxa_slot slot;
    } ends[] = {{OPT_Q_LENGTHS, FXA_SLOT_Q_LENGTHS}, {OPT_K_LENGTHS, FXA_SLOT_K_LENGTHS}};
    for (int i = 0; i < 2; i++) {
        int32_t *lengths;
        npy a;
        if (!opt_has(c, ends[i].id)) continue;
        int rc = run_read_ints(c, ends[i].id, 1, r->forward_problem.b, &a, &lengths);
        if (rc != CLI_OK) return rc;
        r->forward_problem.flags |= FXA_PADDING;
        r->args.slot[ends[i].slot] = lengths;
        if (!r->packed || (i == 1 && r->paged)) continue;
        *(i ? &r->forward_problem.sk : &r->forward_problem.sq) = run_longest_length(lengths, r->forward_problem.b);
    }
    return CLI_OK;
}

static int run_read_sink(cli *c, run_state *r) {
    fxa_problem *p = &r->forward_problem;
    const char *path = opt_get(c, OPT_SINKS), *dtype = opt_get(c, OPT_DTYPE);
    npy a;
    if (!path) return opt_has(c, OPT_DSINKS) ? cli_fail(c, CLI_BAD_INPUT, "--dsinks needs --sinks") : CLI_OK;
    int rc = npy_read(c, path, &a);
    fxa_dtype said = dtype ? fxa_dtype_find(dtype) : FXA_DTYPE_NONE;
    if (rc == CLI_OK && npy_stored_as(said) && run_stores_dtype(&a, said)) rc = npy_as_stored(c, &a, said);
    if (rc != CLI_OK) return rc;
    if (!dtype_is_float(a.dtype) || a.rank != 1 || a.size[0] != p->hq)
        return cli_fail(c, CLI_BAD_INPUT,
                        "--sinks: %.200s holds %s; %" PRId64 " floats are expected, one per query head", path,
                        npy_describe(c, &a), p->hq);
    p->flags |= FXA_SINKS;
    p->sinks.dtype = p->dsinks.dtype = (uint32_t)a.dtype;
    r->args.slot[FXA_SLOT_SINKS] = a.data;
    return CLI_OK;
}

/* Fails if sizes in --shape differ from those of the files. */
static int run_compare_shape(cli *c, const run_state *r) {
    const fxa_problem *p = &r->forward_problem;
    const int64_t real[SHAPE_COUNT] = {p->b, p->hq, p->hkv, p->sq, p->sq, p->sk, p->d_qk, problem_dv(p)};
    for (int i = 0; i < SHAPE_COUNT; i++)
        if (i != SHAPE_S && r->job->shape.given[i] && r->job->shape.value[i] != real[i])
            return cli_fail(c, CLI_BAD_INPUT, "--shape says %s=%" PRId64 ", the files say %" PRId64, shape_keys[i],
                            r->job->shape.value[i], real[i]);
    return CLI_OK;
}

int run_read_inputs(cli *c, run_state *r) {
    r->forward_problem = r->job->problem;
    r->args = (fxa_args)FXA_ARGS_INIT;
    int rc = run_read_layout(c, r);
    if (rc == CLI_OK) rc = run_read_qkv(c, r);
    if (rc == CLI_OK && r->packed) rc = run_read_packed(c, r);
    if (rc == CLI_OK && r->paged) rc = run_read_pages(c, r);
    if (rc == CLI_OK) rc = run_read_lengths(c, r);
    if (rc == CLI_OK) rc = run_read_positions(c, r);
    if (rc == CLI_OK) rc = run_read_sink(c, r);
    if (rc == CLI_OK) rc = run_compare_shape(c, r);
    if (rc == CLI_OK && opt_has(c, OPT_DOUT)) rc = run_read_operand(c, OPT_DOUT, r->rank[0], &r->dout);
    if (rc == CLI_OK) rc = opt_double(c, OPT_SCALE, &r->args.scale);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &r->args.seed);
    r->row_dtype = r->q.dtype == FXA_F64 ? FXA_F64 : FXA_F32;
    return rc;
}
