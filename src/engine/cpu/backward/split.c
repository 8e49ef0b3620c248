/* SPDX-License-Identifier: Apache-2.0
 *
 * Divides a backward run: computes the sizes of tiles and blocks, the key splits, the tasks, and the chains of tasks
 * that add to the same sums.
 */
#include "backward.h"

#include "../mask/bits.h"
#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../lower/grad_class.h"
#include "../../../problem/scales.h"
#include "../../../problem/work_estimate.h"

/* Limits of memory, and of the numbers of tasks and of chains (sequences of tasks that add to the same sums); untuned.
 * The memory limits are about what a large problem needs anyway, the numbers about the threads of a large machine. */
#define BACKWARD_PARTS_BYTES ((int64_t)512 << 20) /* maximum bytes of the dQs of all key splits */
/* Maximum bytes, over all chains, of the gradient sums that are not shared by the chains. */
#define BACKWARD_SUM_BYTES ((int64_t)64 << 20)
enum {
    BACKWARD_TASKS = 32, /* keys are split until there are about this many tasks */
    /* Maximum number of key splits. On Zen 3 with H 1, S 4096, D 64 and one thread, 4 key splits are not measurably
     * slower than none. */
    BACKWARD_KEY_SPLITS = 8,
    /* Maximum number of chains (sequences of tasks that add to the same sums) if gradients of captured tensors or of
     * params are requested. */
    BACKWARD_CHAINS = 32,
    /* Maximum keys of a block, and maximum bytes of one matrix [keys,D]: head dim 128 gets 384 keys in f32. Found by
     * measurement. */
    BACKWARD_KEYS = 384,
    BACKWARD_BLOCK_BYTES = 196608,
};

int64_t fxa__cpu_backward_size_mul(int64_t a, int64_t b) {
    int64_t x;
    return fxa__mul_i64(a, b, &x) ? x : INT64_MAX / 4;
}

/* ---- Sizes and key splits ---------------------------------------------------------------------------------------- */

/* Sets the sizes of key blocks and tiles, and the row pitches. */
static void split_sizes(fxa__cpu_backward_split *s, const fxa__cpu_kernels *kernels, const fxa_problem *p) {
    int64_t mr = kernels->mr, nr = kernels->nr, wide = fxa__max_i64(1, fxa__max_i64(p->d_qk, p->d_v));
    int64_t step = nr % mr == 0 ? nr : nr * 3, heads = p->hq / fxa__max_i64(p->hkv, 1);
    FXA__ASSERT(step % mr == 0); /* `step` is a multiple of mr and nr for the kernels of every instruction set */
    int64_t keys = BACKWARD_BLOCK_BYTES / (wide * (int64_t)kernels->real_size);
    keys = fxa__max_i64(step, fxa__min_i64(keys, BACKWARD_KEYS) / step * step);
    s->block_keys = fxa__min_i64(keys, fxa__round_up(fxa__max_i64(p->sk, 1), nr));
    s->rows = s->entries ? fxa__cpu_backward_size_mul(heads, p->sq) : 0;
    s->tile_rows = fxa__max_i64(1, fxa__min_i64(FXA__CPU_BACKWARD_TILE_ROWS, s->rows));
    s->tiles = s->rows == 0 ? 0 : fxa__cpu_backward_size_mul(heads, fxa__div_up(p->sq, s->tile_rows));
    s->ld_d = fxa__round_up(p->d_qk, nr);
    s->ld_v = fxa__round_up(p->d_v, nr);
    s->ld = s->block_keys + 16;
    s->ones = fxa__max_i64(wide, fxa__max_i64(s->tile_rows, s->block_keys));
    FXA__ASSERT(s->block_keys % nr == 0 && s->block_keys <= FXA__CPU_KEY_BLOCK);
}

/* Divides the keys so that there are enough tasks for the threads, within the memory for one dQ per key split. */
static void split_keys_divide(fxa__cpu_backward_split *s, const fxa__cpu_kernels *kernels, const fxa_problem *p) {
    int64_t blocks = fxa__div_up(fxa__max_i64(p->sk, 1), s->block_keys);
    s->groups = fxa__cpu_backward_size_mul(s->entries, p->hkv);
    s->key_splits = 1;
    if (s->groups > 0 && !s->pool) {
        s->key_splits = fxa__min_i64(BACKWARD_KEY_SPLITS, fxa__div_up(BACKWARD_TASKS, s->groups));
        s->key_splits = fxa__max_i64(1, fxa__min_i64(s->key_splits, blocks / 2));
        int64_t part = fxa__cpu_backward_size_mul(fxa__cpu_backward_size_mul(s->rows, s->ld_d),
                                                  fxa__cpu_backward_size_mul(s->groups, (int64_t)kernels->real_size));
        while (s->want_q && s->key_splits > 1 && s->key_splits > BACKWARD_PARTS_BYTES / fxa__max_i64(part, 1))
            s->key_splits--;
    }
    int64_t blocks_per_split = fxa__div_up(blocks, s->key_splits);
    s->key_splits = fxa__div_up(blocks, blocks_per_split);
    s->split_keys = blocks_per_split * s->block_keys;
    s->tasks = fxa__cpu_backward_size_mul(s->key_splits, s->groups);
    FXA__ASSERT(s->key_splits >= 1 && s->split_keys >= 1);
}

void fxa__cpu_backward_min_sub_block(const fxa__cpu_kernels *kernels, int32_t *rows, int32_t *keys) {
    *rows = (int32_t)fxa__cpu_backward_max_rows(kernels);
    *keys = (int32_t)fxa__max_i64(fxa__cpu_granule(kernels), kernels->nr); /* sub-blocks start at multiples of nr */
}

/* ---- Chains ------------------------------------------------------------------------------------------------------ */

/* Returns true if the map is injective: coordinates are >= 0 and increase with the mapped index. They do not wrap
 * around, because the check of the problem rejects such maps. */
static bool split_map_is_plain(const fxa_index_map *map) {
    return map->kind == FXA_MAP_AFFINE && !map->has_offset && map->base >= 0 && map->step > 0;
}

/* Returns the axes (FXA__CPU_CHAIN_BY_x) that separate tasks: tasks with different indices along such an axis never add
 * to the same element of tensor t. */
static uint32_t split_tensor_axes(const fxa__problem *p, const fxa_program *d, int32_t t) {
    const fxa_problem *in = &p->in;
    uint32_t separators = fxa__lower_grad_separators(d, t), axes = 0;
    const struct {
        fxa_input input;
        uint32_t axis;
        bool plain;
    } each[] = {{FXA_INPUT_B, FXA__CPU_CHAIN_BY_BATCH, split_map_is_plain(&in->map_b)},
                {FXA_INPUT_H, FXA__CPU_CHAIN_BY_HEAD, split_map_is_plain(&in->map_h)},
                {FXA_INPUT_K, FXA__CPU_CHAIN_BY_SPLIT, split_map_is_plain(&in->map_k)},
                {FXA_INPUT_K_ROW, FXA__CPU_CHAIN_BY_SPLIT, true}};
    for (size_t e = 0; e < sizeof each / sizeof each[0]; e++)
        if (each[e].plain && separators >> each[e].input & 1) axes |= each[e].axis;
    return axes;
}

/* Returns true if q coordinates may be shifted. A shift may give negative coordinates, which count from the end of an
 * axis. */
static bool split_has_q_shift(const fxa_problem *p) {
    int64_t lo, hi;
    fxa__q_shift_range(p, &lo, &hi);
    return lo != 0 || hi != 0;
}

/* Returns true if different query rows access different elements of a tensor. Bit i of `inputs`: one of the tensor's
 * indices is fxa_input i. */
static bool split_has_own_rows(const fxa_problem *p, uint32_t inputs) {
    if (p->sq <= 1 || inputs & 1u << FXA_INPUT_Q_ROW) return true;
    return inputs & 1u << FXA_INPUT_Q && split_map_is_plain(&p->map_q) && !split_has_q_shift(p);
}

/* Returns true if different (query, key) pairs access different elements of tensor t, and the elements that one query
 * row accesses are evenly spaced, because the index along one axis is the key coordinate k. */
static bool split_has_one_pair_per_element(const fxa__problem *p, const fxa_program *d, int32_t t) {
    const fxa_problem *in = &p->in;
    uint32_t wanted = (in->b > 1 ? 1u << FXA_INPUT_B : 0u) | (in->hq > 1 ? 1u << FXA_INPUT_H : 0u);
    const uint32_t keys = 1u << FXA_INPUT_K | 1u << FXA_INPUT_K_ROW;
    uint32_t found;
    if (!split_map_is_plain(&in->map_b) || !split_map_is_plain(&in->map_h) || !split_map_is_plain(&in->map_k))
        return false;
    if (!fxa__lower_grad_is_injective(d, t, &found) || (found & wanted) != wanted) return false;
    return (found & keys) == 1u << FXA_INPUT_K && split_has_own_rows(in, found);
}

static int64_t split_tensor_bytes(const fxa__problem *p, int32_t t) {
    int64_t n = sizeof(double);
    for (int32_t i = 0; i < p->program->tensors[t].rank; i++)
        n = fxa__cpu_backward_size_mul(n, p->in.captures[t].size[i]);
    return n;
}

/* Returns the number of chains (sequences of tasks that add to the same sums) if tasks with different indices along one
 * of the `axes` (FXA__CPU_CHAIN_BY_x) are in different chains. */
static int64_t split_chains(const fxa__cpu_backward_split *s, const fxa_problem *p, uint32_t axes) {
    int64_t groups = fxa__cpu_backward_size_mul(axes & FXA__CPU_CHAIN_BY_BATCH ? p->b : 1,
                                                axes & FXA__CPU_CHAIN_BY_HEAD ? p->hkv : 1);
    return fxa__cpu_backward_size_mul(groups, axes & FXA__CPU_CHAIN_BY_SPLIT ? s->key_splits : 1);
}

/* Determines the chains (sequences of tasks that add to the same sums) for a problem with summed gradients:
 *   - Each chain has its own sum of a small tensor.
 *   - All chains share the sum of a large tensor: tasks that may add to the same element of it are in one chain.
 *   - If this puts all tasks in one chain, each chain has its own sum of every tensor instead, and there are as many
 *     chains as memory allows. */
static void split_sums(fxa__cpu_backward_split *s, const fxa__problem *p, const fxa_program *d) {
    int64_t all = 0, small = 0;
    uint32_t axes = s->chain_axes;
    for (int32_t t = 0; t < p->program->n_tensors; t++) {
        if (p->in.captures[t].grad && split_has_one_pair_per_element(p, d, t)) {
            s->one_pair_per_element |= UINT64_C(1) << t;
            continue;
        }
        int64_t bytes = p->in.captures[t].grad ? split_tensor_bytes(p, t) : 0;
        all = fxa__min_i64(INT64_MAX / 4, all + bytes);
        if (small + bytes <= BACKWARD_SUM_BYTES / BACKWARD_CHAINS) {
            small += bytes;
            continue;
        }
        s->shared |= UINT64_C(1) << t;
        axes &= split_tensor_axes(p, d, t);
    }
    if (s->shared && split_chains(s, &p->in, axes) == 1 && !s->pool) {
        s->shared = 0;
        s->chains = fxa__max_i64(1, fxa__min_i64(BACKWARD_CHAINS, BACKWARD_SUM_BYTES / fxa__max_i64(all, 1)));
        s->chains = fxa__max_i64(1, fxa__min_i64(s->chains, s->tasks));
        return;
    }
    s->chain_axes = axes;
    s->chains = fxa__max_i64(1, fxa__min_i64(BACKWARD_CHAINS, split_chains(s, &p->in, axes)));
}

fxa__cpu_backward_split fxa__cpu_backward_split_make(const fxa__cpu_code *code, const fxa__problem *p) {
    const fxa_problem *in = &p->in;
    fxa__cpu_backward_split s = {
        .want_q = in->flags & FXA_GRAD_Q && in->d_qk > 0,
        .want_k = in->flags & FXA_GRAD_K && in->d_qk > 0,
        .want_v = in->flags & FXA_GRAD_V && in->d_v > 0,
        .entries = fxa__entries_with_work(p),
    };
    s.want_sums = in->param_grads != 0;
    for (int32_t t = 0; t < p->program->n_tensors; t++) s.want_sums = s.want_sums || in->captures[t].grad;
    s.want_ds = s.want_q || s.want_k || s.want_sums || fxa__scale_use_of(in, FXA_SLOT_AMAX_DS) == FXA__SCALE_WRITTEN;
    s.pool = (in->flags & FXA_PAGED) && (s.want_k || s.want_v);
    s.pool_rows = s.pool ? fxa__cpu_backward_size_mul(in->n_pages, in->page_size) : 0;
    s.keeps_scores = s.want_ds && (code->joined || code->derivative || code->bprop);
    split_sizes(&s, code->kernels, in);
    split_keys_divide(&s, code->kernels, in);
    s.chain_axes = s.pool ? FXA__CPU_CHAIN_BY_HEAD : FXA__CPU_CHAIN_BY_ALL;
    s.chains = s.pool ? fxa__max_i64(1, in->hkv) : s.tasks;
    if (s.want_sums) split_sums(&s, p, code->by_score);
    return s;
}

int64_t fxa__cpu_backward_chain_of(const fxa__cpu_backward_split *split, const fxa_problem *p, int64_t task) {
    int64_t group = task % split->groups, number = 0;
    if (split->chain_axes & FXA__CPU_CHAIN_BY_SPLIT) number = task / split->groups;
    if (split->chain_axes & FXA__CPU_CHAIN_BY_BATCH) number = number * p->b + group / p->hkv;
    if (split->chain_axes & FXA__CPU_CHAIN_BY_HEAD) number = number * p->hkv + group % p->hkv;
    FXA__ASSERT(0 <= task && task < split->tasks);
    return number % split->chains;
}
