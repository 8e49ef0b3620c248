/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor maps of a run's operands. The driver makes them on the host, of addresses, sizes and strides alone; those that
 * were made last are kept in the instance, since who runs a plan again mostly does so on the same memory.
 *
 * A kept map is a row of words behind a number that is odd while somebody writes there: who reads takes the row only if
 * the number is even and the same before and after, and else asks the driver; who finds another one writing keeps
 * nothing. So nobody waits, and a row is never torn.
 */
#include "cuda_run.h"

#include "../../base/num.h"

#include <string.h>

enum { MAPS_F16 = 6, MAPS_BF16 = 9, MAPS_SWIZZLE_128 = 3, MAPS_L2_256 = 3, MAPS_COLUMNS = 64 };

/* What a map is made of: address, sizes and strides in bytes from the last axis on, rows of a box and type. */
typedef union maps_key {
    struct {
        uint64_t data, size[4], stride[3];
        uint32_t rows, type;
    } of;
    uint64_t word[FXA__CU_MAP_KEY];
} maps_key;
_Static_assert(sizeof(maps_key) == FXA__CU_MAP_KEY * sizeof(uint64_t), "a key has no holes");

static fxa__cu_kept_map *maps_place(const fxa__cu_self *self, const maps_key *key) {
    uint64_t hash = key->of.rows;
    for (int i = 0; i < FXA__CU_MAP_KEY - 1; i++) hash = (hash ^ key->word[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return &((fxa__cu_self *)(uintptr_t)self)->maps[(hash >> 32) % FXA__CU_MAPS];
}

static bool maps_find(fxa__cu_kept_map *at, const maps_key *key, struct FxaMap *out) {
    unsigned turn = atomic_load_explicit(&at->turn, memory_order_acquire);
    bool same = turn && turn % 2 == 0;
    for (int i = 0; same && i < FXA__CU_MAP_KEY; i++)
        same = atomic_load_explicit(&at->key[i], memory_order_acquire) == key->word[i];
    for (int i = 0; same && i < FXA__CU_MAP_WORDS; i++)
        out->opaque[i] = atomic_load_explicit(&at->map[i], memory_order_acquire);
    return same && atomic_load_explicit(&at->turn, memory_order_relaxed) == turn;
}

static void maps_keep(fxa__cu_kept_map *at, const maps_key *key, const struct FxaMap *map) {
    unsigned turn = atomic_load_explicit(&at->turn, memory_order_relaxed);
    if (turn % 2 || !atomic_compare_exchange_strong(&at->turn, &turn, turn + 1)) return;
    for (int i = 0; i < FXA__CU_MAP_KEY; i++) atomic_store_explicit(&at->key[i], key->word[i], memory_order_release);
    for (int i = 0; i < FXA__CU_MAP_WORDS; i++)
        atomic_store_explicit(&at->map[i], map->opaque[i], memory_order_release);
    atomic_store_explicit(&at->turn, turn + 2, memory_order_release);
}

/* Of 16-bit elements; size and stride: b, h, s, d. Strides of axes with one element mean nothing. */
static fxa_status maps_make(fxa__cu_call *c, const void *data, const int64_t size[4], const int64_t stride[3],
                            int32_t rows, struct FxaMap *out) {
    static const uint32_t ones[4] = {1, 1, 1, 1};
    const uint32_t box[4] = {MAPS_COLUMNS, (uint32_t)rows, 1, 1};
    maps_key key = {.of = {.data = (uintptr_t)data, .rows = (uint32_t)rows}};
    key.of.type = c->code->choice.dtype == FXA_F16 ? MAPS_F16 : MAPS_BF16;
    for (int i = 0; i < 4; i++) key.of.size[i] = (uint64_t)size[3 - i];
    for (int i = 0; i < 3; i++)
        key.of.stride[i] = size[2 - i] > 1 ? 2 * (uint64_t)stride[2 - i] : 2 * (uint64_t)fxa__round_up(size[3], 8);
    fxa__cu_kept_map *at = maps_place(c->self, &key);
    if (maps_find(at, &key, out)) return FXA_OK;
    int status = c->self->gpu.driver.tensor_map(out, (int)key.of.type, 4, (uintptr_t)data, key.of.size, key.of.stride,
                                                box, ones, 0, MAPS_SWIZZLE_128, MAPS_L2_256, 0);
    if (status == FXA__CUDA_OK) maps_keep(at, &key, out);
    return fxa__gpu_status(&c->self->gpu, status, "cuTensorMapEncodeTiled", c->err);
}

fxa_status fxa__cu_map(fxa__cu_call *c, fxa_slot slot, int32_t rows, struct FxaMap *out) {
    fxa__cu_tensor t = fxa__cu_tensor_of(c, slot);
    return maps_make(c, t.view.data, t.size, (const int64_t[3]){t.view.b, t.view.h, t.view.s}, rows, out);
}

fxa_status fxa__cu_map_dense(fxa__cu_call *c, const struct FxaView *view, bool whole, int32_t rows,
                             struct FxaMap *out) {
    const fxa_problem *p = &c->p->in;
    const int64_t size[4] = {whole || view->b ? p->b : 1, whole || view->h ? p->hq : 1, p->sq, p->sk};
    return maps_make(c, view->data, size, (const int64_t[3]){view->b, view->h, view->s}, rows, out);
}
