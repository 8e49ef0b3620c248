/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the device that kernels of src/engine/cuda run on, for machines without one. The kernels' own text is
 * compiled for the host (model_nvrtc.c): what CUDA adds to C++ is model_cuda.h, and in place of ptx*.cuh, which has all
 * assembly, there are model_ptx*.h. What they need of a device is here: threads that meet, shared memory, copies that
 * arrive later. model_machine.c does it, below the stand-in for the driver.
 *
 * Threads of a CTA are fibers of one thread of the host, so nothing is a race to the host, and a fiber goes on until it
 * waits for others. In which order they go, when copies and products arrive, and in which order CTAs come is drawn at
 * random (FXA_MODEL_SEED): what counts on an order that the device does not promise fails now and then.
 *
 * Mistakes that a device would hang or fault over, or be silent about, end a launch with words: threads that wait for
 * each other, lanes that meet at different instructions, barriers of other counts, mbarriers that nobody has begun,
 * shared memory that was not asked for, misaligned copies, plain stores that TMA or wgmma read without a fence, copies
 * and products that nobody waited for, warps of a group with other products, registers that nobody gave up.
 * The tests here have a kernel for each of these promises.
 *
 * Not modelled: speed, caches, how many registers code needs; CTAs at once (they run one after the other, those of a
 * cluster from one of its barriers to the next, and what one has stored all that come later see); when a store that has
 * read shared memory reaches the tensor; the last bits of exp2, log2, tanh and of products, whose sums are f32 in order
 * of k.
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
    MODEL_SHARED_BASE = 1024, /* the 32-bit address of the first byte of dynamic shared memory */
    MODEL_CHUNK = 16,         /* bytes of shared memory of which it is known who wrote them last */
    MODEL_REGION = 30,        /* bits of an address within a region, */
    MODEL_REGIONS = 1 << 18,
    MODEL_PAGE = 12 /* and within a page: see model_known.c */
};

typedef struct model_dim {
    unsigned x, y, z;
} model_dim;

/* What a thread, of products a warp, has begun and waits for: loads that a barrier in shared memory hears of, stores
 * and copies in groups, products. */
enum { MODEL_LOAD, MODEL_STORE, MODEL_COPY, MODEL_PRODUCT, MODEL_KINDS };

/* A copy or product on its way: `run` does it, at any time until somebody waits for it. */
typedef struct model_job {
    void (*run)(const struct model_job *job);
    int kind;
    int owner, group;              /* the machine's: whose it is, and how many commits came before */
    uint32_t shared, barrier;      /* addresses */
    int bytes, at[4];              /* of a copy: at, coordinates in the tensor */
    const void *map, *memory;      /* of a copy: a tensor's map, or plain memory */
    uint64_t left, right;          /* of a product: descriptors */
    int columns, transposed, keep; /* keep: adds to what is there */
    float *sum[MODEL_WARP];        /* registers of the lanes, read and written when it is done */
    const uint32_t *word[MODEL_WARP];
} model_job;

/* What the machine does for kernels. Every function but `random` and those of statics and registers' names may let
 * other threads go on. */
typedef struct model_machine {
    model_dim thread, block, block_dim, grid; /* of the thread that runs */
    int number;                               /* of that thread in its CTA */
    uint8_t *shared;                          /* dynamic shared memory */
    uint32_t shared_bytes;

    /* Of each chunk who wrote it last by a plain store, and when (model_wrote); when each thread had its last fence. */
    uint64_t *written;
    uint32_t now, fenced[MODEL_THREADS];

    uint8_t **
        *known; /* by region and page, of each byte of device memory whether it was written; NULL: nothing there */

    /* All lanes of `mask` that still run meet; the last one to come calls all(slot, mask), where slot[lane] is what
     * each of them brought. Those that meet bring the same `all`, which names the instruction. */
    void (*meet)(uint32_t mask, void *mine, void (*all)(void **slot, uint32_t mask));
    /* Barrier `id` of so many threads, 0: of all that still run. whole: lanes of a warp come together. */
    void (*barrier)(int id, int threads, int whole, int wait);
    /* Until *word has other bits than `same` in `mask`. */
    void (*look)(const uint32_t *word, uint32_t mask, uint32_t same);
    /* All threads of that many neighbours among CTAs; the shared memory of one of them since they have met. */
    void (*cluster)(int ctas);
    const uint8_t *(*near)(int rank);
    void (*later)(const model_job *job);
    void (*commit)(int kind);
    void (*await)(int kind, int pending);    /* until at most so many groups of this thread are on their way */
    void (*registers)(int count, int up);    /* of each thread of this warp from now on */
    void (*launched)(int waits);             /* lets the next launch begin, or waits for the one before */
    void (*begin)(void *data, size_t bytes); /* static shared memory: filled by the first thread of a CTA that comes */
    uint32_t (*random)(void);
    void (*fail)(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
} model_machine;

/* Code that is not looked at for what it reads: see model_known.h. */
#ifdef MODEL_CHECKED
#define MODEL_UNSEEN __attribute__((no_sanitize("thread")))
#else
#define MODEL_UNSEEN
#endif

/* What is known of a byte at an address; NULL: it is no memory of the device, or nobody looks at that. */
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

/* Code that model_nvrtc.c made. Loading: NULL with words on stderr where it cannot be. */
typedef struct model_module model_module;
bool model_is_module(const void *image);
model_module *model_load(const void *image);
void model_unload(model_module *module);
void *model_find(model_module *module, const char *kernel);
/* How many threads of a CTA a kernel is compiled for at most, by its launch bounds; 0: as many as any. */
int model_bound(model_module *module, const char *kernel);
/* Whether its code looks at what nobody has written, and writes down what it writes. */
bool model_checks(const model_module *module);

/* Memory of the device, in whole pages, that nobody has written (with FXA_MODEL_CHECK, else it is not looked at); what
 * somebody has; what is memory no more. */
void model_know_memory(const void *from, size_t bytes);
void model_know_written(const void *from, size_t bytes);
void model_know_nothing(const void *from, size_t bytes);

/* Runs a kernel to its end. False: it went wrong, and model_error says how; model_fault is the address that it touched
 * where no memory is, NULL: it was something else. hide: of a launch that may begin before the one before it has ended:
 * each of its threads has to wait for that one, and before launch_next() or launch_wait() none touches memory, which
 * this hides until one of the first CTA has come there. NULL: of any other launch. */
bool model_launch(void *kernel, model_dim grid, model_dim block, uint32_t shared_bytes, void (*hide)(bool hidden),
                  void **params);
const char *model_error(void);
const void *model_fault(void);
#endif

#endif
