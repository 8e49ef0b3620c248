/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces src/engine/cuda/kernels/sm90/ptx.cuh (common/ptx.h). The stand-in for the driver writes the tensor maps.
 */
#ifndef FXA_CUDA_SM90_PTX_CUH
#define FXA_CUDA_SM90_PTX_CUH

#include "common/ptx.cuh"

FXA_INLINE bool elected() {
    __syncwarp();
    return model_lane() == 0;
}

/* ---- mbarriers --------------------------------------------------------------------------------------------------- */

/* State of an mbarrier, in its eight bytes; unwritten memory is not a valid barrier. A phase ends when all arrivals and
 * all bytes have come. */
struct ModelBarrier {
    short arrivals, missing;
    u32 word; /* bit 31: phase; bits 0 to 30: pending bytes */

    u32 phase() const { return word >> 31; }
    int bytes() const { return (int)(word << 1) >> 1; }
    void change(int missing_, int bytes_) {
        if (missing_ < 0) model->fail("a barrier at which more arrive than the %d of its phase", arrivals);
        if (bytes_ <= -(1 << 20) || bytes_ >= 1 << 20) model->fail("a barrier that waits for %d bytes", bytes_);
        const bool ends = !missing_ && !bytes_;
        missing = ends ? arrivals : (short)missing_;
        word = ((u32)bytes_ & 0x7fffffffu) | (phase() ^ ends) << 31;
    }
};
static_assert(sizeof(ModelBarrier) == 8, "a barrier");

static inline ModelBarrier &model_barrier(u32 at) {
    ModelBarrier &b = *(ModelBarrier *)model_shared(at, 8, 8);
    if (b.arrivals <= 0 || b.missing < 0 || b.missing > b.arrivals)
        model->fail("no barrier was begun in shared memory at %u", at - MODEL_SHARED_BASE);
    return b;
}

FXA_INLINE void barrier_init(u32 at, u32 arrivals) {
    ModelBarrier &b = *(ModelBarrier *)model_shared(at, 8, 8);
    if (arrivals < 1 || arrivals > MODEL_THREADS) model->fail("a barrier of %u arrivals", arrivals);
    b.arrivals = b.missing = (short)arrivals;
    b.word = 0;
}

FXA_INLINE void barrier_init_done() {}

FXA_INLINE void barrier_expect(u32 at, u32 bytes) {
    ModelBarrier &b = model_barrier(at);
    b.change(b.missing - 1, b.bytes() + (int)bytes);
}

FXA_INLINE void barrier_arrive(u32 at) {
    ModelBarrier &b = model_barrier(at);
    b.change(b.missing - 1, b.bytes());
}

FXA_INLINE bool barrier_test(u32 at, u32 parity) { return model_barrier(at).phase() != parity; }

FXA_INLINE void barrier_wait(u32 at, u32 parity) {
    if (parity > 1) model->fail("a parity of %u", parity);
    model->look(&model_barrier(at).word, 1u << 31, parity << 31);
}

static inline void model_arrived(const model_job *job) {
    ModelBarrier &b = model_barrier(job->barrier);
    b.change(b.missing, b.bytes() - job->bytes);
}

/* ---- Clusters ---------------------------------------------------------------------------------------------------- */

template <int ctas> FXA_INLINE void cluster_arrive() {}
template <int ctas> FXA_INLINE void cluster_wait() { model->cluster(ctas); }

/* The rank is stored above the bits of a shared address. */
FXA_INLINE u32 cluster_address(u32 at, u32 rank) { return at | rank << 24; }

FXA_INLINE Float4 load_cluster_float4(u32 at) {
    const u32 own = at & 0xffffffu;
    return *(const Float4 *)(model->near((int)(at >> 24)) + (model_shared(own, 16, 16) - model->shared));
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* A tensor map of the stand-in: address, type, promotion, sizes, strides in bytes of all axes but the first, box. */
struct ModelMap {
    uint64_t data, type, promotion, size[4], stride[3], box[4];

    /* Returns the address of the element at these coordinates; 0 if they are outside of the tensor. */
    u16 *element(const int *at, int c, int s, int h, int b) const {
        const long long x[4] = {at[0] + c, at[1] + s, at[2] + h, at[3] + b};
        uint64_t from = data + (uint64_t)x[0] * 2;
        for (int i = 0; i < 4; i++) {
            if (x[i] < 0 || x[i] >= (long long)size[i]) return 0;
            if (i) from += (uint64_t)x[i] * stride[i - 1];
        }
        return (u16 *)from;
    }
    int bytes() const { return (int)(box[0] * box[1] * box[2] * box[3] * 2); }
};

/* Swizzles an address: in rows of 128 bytes, the index of a 16-byte chunk is XORed with the index of the row modulo
 * 8. */
static inline u32 model_swizzled(u32 at) { return at ^ (at >> 7 & 7) << 4; }

/* Calls visit(addresses of eight adjacent elements, 0 for those outside; their address in shared memory) for the entire
 * box. */
template <class F> static inline void model_box(const model_job *job, F visit) {
    const ModelMap &m = *(const ModelMap *)job->map;
    u32 to = job->shared;
    for (int b = 0; b < (int)m.box[3]; b++)
        for (int h = 0; h < (int)m.box[2]; h++)
            for (int s = 0; s < (int)m.box[1]; s++)
                for (int c = 0; c < (int)m.box[0]; c += 8, to += 16) {
                    u16 *x[8];
                    for (int i = 0; i < 8; i++) x[i] = m.element(job->at, c + i, s, h, b);
                    visit(x, model_swizzled(to));
                }
}

/* Reads an element without the check for unwritten memory, because boxes include rows outside of sequences
 * (model_known.h). */
MODEL_UNSEEN static inline u16 model_fetch(const u16 *from) { return *from; }

static inline void model_tma_load(const model_job *job) {
    model_box(job, [](u16 *const *from, u32 at) {
        u16 *to = (u16 *)model_shared(at, 16, 16);
        for (int i = 0; i < 8; i++) to[i] = from[i] ? model_fetch(from[i]) : 0;
    });
    model_arrived(job);
}

/* Stores by chunks of 16 bytes: a chunk that starts inside the tensor is written entirely, as observed on a device. */
static inline void model_tma_store(const model_job *job) {
    model_box(job, [](u16 *const *to, u32 at) {
        const u16 *from = (const u16 *)model_shared(at, 16, 16);
        for (int i = 0; i < 8 && to[0]; i++) to[0][i] = from[i];
    });
}

/* Checks that plain stores to shared memory that TMA reads or writes are fenced. */
static inline void model_proxy(u32 at, u32 bytes) {
    for (u32 i = 0; i < bytes; i += MODEL_CHUNK) model_fenced(at + i);
}

static inline model_job model_tma(void (*run)(const model_job *), int kind, const FxaMap *map, u32 shared, int c, int s,
                                  int h, int b) {
    model_job job = {};
    const ModelMap &m = *(const ModelMap *)map;
    if (m.box[0] * 2 != 128 || m.data % 16) model->fail("a tensor map that is none, or not of boxes of 128 bytes");
    (void)model_shared(shared, (u32)m.bytes(), 128);
    model_proxy(shared, (u32)m.bytes());
    job.run = run, job.kind = kind, job.map = map, job.shared = shared, job.bytes = m.bytes();
    job.at[0] = c, job.at[1] = s, job.at[2] = h, job.at[3] = b;
    return job;
}

/* On an H200 another first coordinate is an illegal instruction. */
FXA_INLINE void tma_load(u32 to, const FxaMap *map, u32 barrier, int c, int s, int h, int b, u64) {
    if (c % 8) model->fail("a box loaded from column %d: not a multiple of 16 bytes", c);
    model_job job = model_tma(model_tma_load, MODEL_LOAD, map, to, c, s, h, b);
    job.barrier = barrier;
    (void)model_barrier(barrier);
    model->later(&job);
}

FXA_INLINE void tma_prefetch(const FxaMap *) {}

FXA_INLINE void tma_store(const FxaMap *map, u32 from, int c, int s, int h, int b) {
    if (c < 0 || s < 0 || h < 0 || b < 0)
        model->fail("a store that begins before the tensor, at %d %d %d %d", c, s, h, b);
    const model_job job = model_tma(model_tma_store, MODEL_STORE, map, from, c, s, h, b);
    model->later(&job);
}

/* A prefetch may name coordinates that are never read, but its tensor map must be valid. */
FXA_INLINE void tma_fetch(const FxaMap *map, int, int, int, int) {
    const ModelMap &m = *(const ModelMap *)map;
    if (m.box[0] * 2 != 128 || m.data % 16) model->fail("a tensor map that is none, or not of boxes of 128 bytes");
}

FXA_INLINE u32 processors() { return 2; }

static inline model_job model_bulk(void (*run)(const model_job *), int kind, u32 shared, const void *memory,
                                   u32 bytes) {
    model_job job = {};
    if (bytes % 16 || (uintptr_t)memory % 16) model->fail("a bulk copy of %u bytes at %p", bytes, memory);
    (void)model_shared(shared, bytes, 16);
    model_proxy(shared, bytes);
    job.run = run, job.kind = kind, job.shared = shared, job.memory = memory, job.bytes = (int)bytes;
    return job;
}

static inline void model_bulk_load(const model_job *job) {
    memcpy(model_shared(job->shared, (u32)job->bytes, 16), job->memory, (size_t)job->bytes);
    model_arrived(job);
}

static inline void model_bulk_add(const model_job *job) {
    const float *from = (const float *)model_shared(job->shared, (u32)job->bytes, 16);
    MODEL_READ(job->memory, job->bytes); /* clang inserts no call for a read before a write of the same bytes */
    for (int i = 0; i < job->bytes / 4; i++) ((float *)job->memory)[i] += from[i];
}

FXA_INLINE void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier) {
    model_job job = model_bulk(model_bulk_load, MODEL_LOAD, to, from, bytes);
    MODEL_READ(from, bytes);
    job.barrier = barrier;
    (void)model_barrier(barrier);
    model->later(&job);
}

FXA_INLINE void bulk_add(float *to, u32 from, u32 bytes) {
    const model_job job = model_bulk(model_bulk_add, MODEL_STORE, from, to, bytes);
    model->later(&job);
}

static inline void model_bulk_store(const model_job *job) {
    const float *from = (const float *)model_shared(job->shared, (u32)job->bytes, 16);
    for (int i = 0; i < job->bytes / 4; i++) ((float *)job->memory)[i] = from[i]; /* model_known.h sees it */
}

FXA_INLINE void bulk_store(float *to, u32 from, u32 bytes) {
    const model_job job = model_bulk(model_bulk_store, MODEL_STORE, from, to, bytes);
    model->later(&job);
}

FXA_INLINE int flag_now(const int *at) { return *at; }
/* CTAs run one after the other. A word that no earlier CTA has set would, on a device, be awaited from a CTA that has
 * not started, and for ever if that CTA in turn waits for a free multiprocessor. */
FXA_INLINE void flag_await(const int *at, int value) {
    if (*at != value) model->fail("a word is %d and waited for to be %d: who sets it has not begun", *at, value);
}
FXA_INLINE void flag_set(int *at, int value) { *at = value; }
FXA_INLINE void count_up(unsigned *at) { ++*at; }

/* CTAs run one after the other and release their claims, so a CTA that finds a claim would wait for ever. */
FXA_INLINE int flag_claim(int *at, int value) {
    const int x = *at;
    if (x == value) model->fail("a word is claimed that was left claimed");
    if (!x) *at = value;
    return x;
}

FXA_INLINE void bulk_commit() { model->commit(MODEL_STORE); }
template <int pending> FXA_INLINE void bulk_wait_read() { model->await(MODEL_STORE, pending); }
FXA_INLINE void bulk_wait() { model->await(MODEL_STORE, 0); }
FXA_INLINE void async_fence() { model_fence(); }

template <bool transposed> static inline void model_store_matrix(u32 at, u32 r0, u32 r1, u32 r2, u32 r3) {
    ModelMatrix mine = {at, {r0, r1, r2, r3}};
    model->meet(~0u, &mine, ModelMatrix::move<transposed, true>);
}

FXA_INLINE void store_matrix(u32 at, u32 r0, u32 r1, u32 r2, u32 r3) { model_store_matrix<false>(at, r0, r1, r2, r3); }

FXA_INLINE u32 nan_if_nonfinite(u32 sum, u32 x) {
    const u32 exponent = FXA_F16 ? 0x7c00 : 0x7f80;
    for (int half = 0; half < 32; half += 16)
        if ((x >> half & exponent) == exponent) sum |= 0x7fffu << half;
    return sum;
}

FXA_INLINE void store_matrix_transposed(u32 at, u32 r0, u32 r1, u32 r2, u32 r3) {
    model_store_matrix<true>(at, r0, r1, r2, r3);
}

/* ---- Warps ------------------------------------------------------------------------------------------------------- */

FXA_INLINE void named_sync(int id, int threads) { model->barrier(id, threads, 1, 1); }
FXA_INLINE void named_arrive(int id, int threads) { model->barrier(id, threads, 1, 0); }

template <int id, int threads> FXA_INLINE void named_sync_apart() {
    __syncwarp();
    model->barrier(id, threads, 0, 1);
}

template <int count> FXA_INLINE void registers_down() { model->registers(count, 0); }
template <int count> FXA_INLINE void registers_up() { model->registers(count, 1); }

#endif
