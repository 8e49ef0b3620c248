/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU emulator: runs the kernels of src/engine/cuda on a machine without a GPU. model_nvrtc.c compiles the kernels'
 * own source for the host. model_cuda.h provides what CUDA adds to C++, and ptx*.h in its folders replace ptx*.cuh,
 * which contain all inline assembly. This file declares what kernels need of a device: threads, barriers, shared
 * memory, asynchronous copies and products. model_machine.c implements it, and the stand-in for the driver
 * (tests/standin) calls it.
 *
 * The threads of a CTA are fibers of one host thread, so the host sees no data race. A fiber runs until it waits for
 * other fibers. The order of fibers, the completion of copies and products, and the order of CTAs are drawn at random
 * (FXA_MODEL_SEED), so code that relies on an order that a device does not guarantee fails in some runs.
 *
 * The emulator ends a launch with a message for errors at which a device would hang or fault, or which it would not
 * report: threads that wait for each other, lanes of a warp at different instructions, barriers used with different
 * counts, uninitialized mbarriers, accesses outside of shared memory, misaligned copies, plain stores that TMA or wgmma
 * reads without a fence, copies and products that no thread waited for, warps of a warpgroup with different products,
 * registers that no warp released. The tests in this folder have a kernel for each of these errors.
 *
 * Not emulated: speed; caches; the number of registers that code needs; concurrent CTAs (CTAs run one after the other,
 * those of a cluster from one cluster barrier to the next, and later CTAs see all stores of earlier ones); the time at
 * which a TMA store that has read shared memory reaches the tensor; the last bits of exp2, log2, tanh and products,
 * whose sums are f32 in the order of k.
 */
#ifndef FXA_TESTS_MODEL_H
#define FXA_TESTS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MODEL_WARP = 32,
    MODEL_THREADS = 1024,
    MODEL_WARPS = MODEL_THREADS / MODEL_WARP,
    MODEL_BARRIERS = 16,
    MODEL_CLUSTER = 8,
    MODEL_SHARED = 227 * 1024,
    MODEL_SHARED_BASE = 1024, /* 32-bit address of the first byte of dynamic shared memory */
    MODEL_CHUNK = 16,         /* bytes of shared memory for which the emulator records the last store */
    MODEL_REGION = 30,        /* bits of an address within a region of device memory */
    MODEL_REGIONS = 1 << 18,
    MODEL_PAGE = 12 /* bits of an address within a page (model_known.c) */
};

typedef struct model_dim {
    unsigned x, y, z;
} model_dim;

/* Kinds of asynchronous work that a thread (for products: a warp) has started: loads whose completion an mbarrier in
 * shared memory counts, stores and copies that are committed in groups, and products. */
enum { MODEL_LOAD, MODEL_STORE, MODEL_COPY, MODEL_PRODUCT, MODEL_KINDS };

/* A copy or product that has started: the emulator calls `run` at any time until a thread waits for it. */
typedef struct model_job {
    void (*run)(const struct model_job *job);
    int kind;
    int owner, group;              /* set by the emulator: starting thread's index; number of earlier commits */
    uint32_t shared, barrier;      /* addresses */
    int bytes, at[4];              /* copy: size; coordinates in the tensor */
    const void *map, *memory;      /* copy: tensor map, or address in device memory */
    uint64_t left, right;          /* of a product: descriptors */
    int columns, transposed, keep; /* product: keep = 1: adds to the accumulators */
    float *sum[MODEL_WARP];        /* product: registers of the lanes, read and written when `run` executes */
    const uint32_t *word[MODEL_WARP];
} model_job;

/* The emulator's functions and state for kernels. Every function except `random`, `begin` and `registers` may run other
 * threads before it returns. */
typedef struct model_machine {
    model_dim thread, block, block_dim, grid; /* indices and sizes of the running thread */
    int number;                               /* index of the running thread in its CTA */
    uint8_t *shared;                          /* dynamic shared memory */
    uint32_t shared_bytes;

    /* [chunk] thread and time of the last plain store (model_wrote); [thread] time of its last fence. */
    uint64_t *written;
    uint32_t now, fenced[MODEL_THREADS];

    uint8_t **
        *known; /* [region][page] one byte for each byte of device memory: written or not; NULL: no device memory */

    /* Waits until all lanes of `mask` that have not ended have called meet. The last lane calls all(slot, mask), where
     * slot[lane] is the lane's `mine`. All lanes must pass the same `all`, which identifies the instruction. */
    void (*meet)(uint32_t mask, void *mine, void (*all)(void **slot, uint32_t mask));
    /* Barrier `id` of `threads` threads; 0: all threads that have not ended. whole: the lanes of a warp arrive
     * together. */
    void (*barrier)(int id, int threads, int whole, int wait);
    /* Waits until *word differs from `same` in a bit of `mask`. */
    void (*look)(const uint32_t *word, uint32_t mask, uint32_t same);
    /* cluster: barrier of all threads of a cluster of `ctas` CTAs. near: shared memory of CTA `rank` of the cluster. */
    void (*cluster)(int ctas);
    const uint8_t *(*near)(int rank);
    void (*later)(const model_job *job);
    void (*commit)(int kind);
    void (*await)(int kind, int pending);    /* waits until at most `pending` groups of this thread are incomplete */
    void (*registers)(int count, int up);    /* sets the registers of each thread of this warp */
    void (*launched)(int waits);             /* allows the next launch to start, or waits for the previous launch */
    void (*begin)(void *data, size_t bytes); /* fills static shared memory, when called by the first thread of a CTA */
    uint32_t (*random)(void);
    void (*fail)(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
} model_machine;

/* Marks functions whose reads are not checked (model_known.h). */
#ifdef MODEL_CHECKED
#define MODEL_UNSEEN __attribute__((no_sanitize("thread")))
#else
#define MODEL_UNSEEN
#endif

/* Returns the address of the byte that records if the byte at `at` was written; NULL if `at` is not in device memory or
 * accesses are not checked. */
MODEL_UNSEEN static inline uint8_t *model_known(const model_machine *m, uintptr_t at) {
    const uintptr_t region = at >> MODEL_REGION, page = at >> MODEL_PAGE & ((1 << (MODEL_REGION - MODEL_PAGE)) - 1);
    uint8_t **pages = m && m->known && region < MODEL_REGIONS ? m->known[region] : NULL;
    uint8_t *bytes = pages ? pages[page] : NULL;
    return bytes ? bytes + (at & ((1 << MODEL_PAGE) - 1)) : NULL;
}

#ifdef __cplusplus
}
#else
/* ---- For the stand-in of the driver ------------------------------------------------------------------------------ */

#include <stdbool.h>

/* Code that model_nvrtc.c compiled. model_load returns NULL, with a message on stderr, if the code cannot be loaded. */
typedef struct model_module model_module;
bool model_is_module(const void *image);
model_module *model_load(const void *image);
void model_unload(model_module *module);
void *model_find(model_module *module, const char *kernel);
/* Returns the maximum number of threads of a CTA in the kernel's launch bounds; 0 = no launch bounds. */
int model_bound(model_module *module, const char *kernel);
/* Returns true if the module's code checks reads of unwritten device memory and records its writes. */
bool model_checks(const model_module *module);

/* Track device memory, if FXA_MODEL_CHECK is set: model_know_memory adds entire pages that are not written yet,
 * model_know_written marks bytes as written, model_know_nothing removes memory that was freed. */
void model_know_memory(const void *from, size_t bytes);
void model_know_written(const void *from, size_t bytes);
void model_know_nothing(const void *from, size_t bytes);

/* Runs a kernel to its end. On an error returns false; model_error then returns the message, and model_fault the
 * address outside of device memory that the kernel accessed, or NULL. hide: for a launch that may start before the
 * preceding launch has ended. Each thread must then wait for the preceding launch, and no thread may access memory
 * before launch_next() or launch_wait(): hide(true) makes the memory inaccessible until a thread of the first CTA has
 * called one of both. NULL: any other launch. */
bool model_launch(void *kernel, model_dim grid, model_dim block, uint32_t shared_bytes, void (*hide)(bool hidden),
                  void **params);
const char *model_error(void);
const void *model_fault(void);
#endif

#endif
