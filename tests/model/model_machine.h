/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the files of the GPU emulator: fibers and what they wait for (model_threads.c), asynchronous
 * jobs (model_later.c), CTAs and launches (model_machine.c), modules (model_module.c). All state is in `machine`; a
 * process runs one launch at a time.
 */
#ifndef FXA_TESTS_MODEL_MACHINE_H
#define FXA_TESTS_MODEL_MACHINE_H

#include "model.h"

#include <pthread.h>
#include <signal.h>

enum {
    FIBER_STACK = 256 * 1024,
    MACHINE_STATICS = 16,          /* maximum number of static shared variables of a kernel */
    MACHINE_STATIC = 48 * 1024,    /* and their bytes */
    MACHINE_ALIGN = 1024,          /* alignment of dynamic shared memory; as many bytes before it are checked */
    MACHINE_REGISTERS = 64 * 1024, /* of a multiprocessor */
    MACHINE_GROUP = 4,             /* warps of a group */
    MACHINE_FILL = 0xff            /* byte of unwritten memory: NaN in every float type */
};

#if defined(__x86_64__)
typedef void *fiber_context; /* top of the fiber's stack */
#else
#include <ucontext.h>
typedef ucontext_t fiber_context;
#endif

typedef enum fiber_wait {
    FIBER_READY,
    FIBER_MEETS,
    FIBER_BARRIER,
    FIBER_LOOKS,
    FIBER_CLUSTER,
    FIBER_DONE,
    FIBER_WAITS
} fiber_wait;

typedef struct fiber_job {
    model_job job;
    bool done; /* true: completed, but in its queue until a thread waits for it */
    struct fiber_job *next;
} fiber_job;

typedef struct fiber_queue {
    fiber_job *first, *last;
} fiber_queue;

typedef struct fiber {
    fiber_context context;
    char *stack;
    fiber_wait wait;
    int barrier;          /* barrier at which the fiber waits */
    const uint32_t *word; /* word whose change the fiber awaits */
    uint32_t mask, same;
    model_dim thread;
    bool launched;          /* true: the fiber has waited for the preceding launch */
    int group[MODEL_KINDS]; /* commits so far */
    fiber_queue queue[MODEL_KINDS];
} fiber;

typedef struct fiber_meeting {
    uint32_t mask, here;
    void (*all)(void **slot, uint32_t mask);
} fiber_meeting;

typedef struct fiber_barrier {
    int threads, here;
    uint32_t waiting[MODEL_WARPS];
} fiber_barrier;

typedef struct fiber_warp {
    uint32_t ready, looks, gone; /* sets of lanes; gone: ended, or beyond the CTA */
    uint32_t active;             /* bits of `meeting` in use; meetings with different masks coexist */
    fiber_meeting meeting[MODEL_WARP];
    void *slot[MODEL_WARP];
    uint64_t products; /* hash of the products, which must be equal in all warps of a warpgroup */
    int registers;     /* of a thread */
    uint32_t asks;     /* registers requested for each thread; 0 = no request */
} fiber_warp;

/* When jobs complete: at once, as late as possible, or at any time. */
typedef enum machine_mode { MACHINE_PROMPT, MACHINE_LATE, MACHINE_ANY } machine_mode;

typedef struct machine_state {
    model_machine face;
    fiber fibers[MODEL_THREADS];
    fiber_warp warps[MODEL_WARPS];
    fiber_barrier barriers[MODEL_BARRIERS];
    int n_threads, n_warps, n_done;
    int n_jobs;         /* on their way */
    int cluster;        /* CTAs of the cluster that has met; 0 = none */
    int n_aside;        /* threads that wait for the cluster */
    bool *seen;         /* [CTA] true: ran as a part of an earlier CTA's cluster */
    int free_registers; /* free registers per thread, times warps */
    fiber_job *unused;
    struct {
        void *data;
        size_t bytes;
    } statics[MACHINE_STATICS];
    int n_statics;
    fiber_context host, scheduler;
    char *scheduler_stack;
    uint8_t *memory, *memory_end; /* memory for dynamic shared memory; an inaccessible page follows */
    machine_mode mode;
    uint64_t state;
    bool ok, hidden;
    void (*hide)(bool hidden); /* model_launch() */
    char error[512];
    const void *fault;
    pthread_t thread; /* that launches */
    struct sigaction before;
    void (*run)(void **params);
    void **params;
} machine_state;

extern machine_state machine;

static inline fiber *fiber_now(void) { return &machine.fibers[machine.face.number]; }
static inline fiber_warp *warp_now(void) { return &machine.warps[machine.face.number / MODEL_WARP]; }

/* ---- model_threads.c --------------------------------------------------------------------------------------------- */

/* Implement meet, barrier, look, registers, launched, fail and random of model_machine. */
void machine_meet(uint32_t mask, void *mine, void (*all)(void **slot, uint32_t mask));
void machine_barrier(int id, int threads, int whole, int wait);
void machine_look(const uint32_t *word, uint32_t mask, uint32_t same);
void machine_registers(int count, int up);
void machine_launched(int waits);
void machine_hide(bool hidden);
void machine_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
uint32_t machine_random(void);
int machine_draw(int n); /* 0 to n - 1 */
void machine_mix(uint64_t x);

void model_switch(fiber_context *from, const fiber_context *to);
void fiber_make(fiber_context *context, char *stack, void (*entry)(void));
char *fiber_stack(void); /* NULL: no memory */
void fiber_main(void);   /* what a thread runs */
void fiber_enter(int i);
void fiber_leave(fiber_wait wait);

/* ---- model_later.c ----------------------------------------------------------------------------------------------- */

/* Implement later, commit and await of model_machine. */
void machine_later(const model_job *job);
void machine_commit(int kind);
void machine_await(int kind, int pending);

/* Completes a job, in random order except that a warp's products keep their order. needed: not a product, because no
 * thread can be waiting for one. Returns false if there is no such job. */
bool machine_arrive(bool needed);
/* Removes j from its queue; `before` is the job before j, NULL if j is the first. */
void job_drop(fiber_queue *q, fiber_job *before, fiber_job *j);

/* Completes copies by cp.async at the end of a CTA; fails if other jobs are left. */
void machine_end_all(void);

/* ---- model_cluster.c --------------------------------------------------------------------------------------------- */

/* Implement cluster and near of model_machine. */
void machine_cluster(int ctas);
const uint8_t *machine_near(int rank);

/* Runs the cluster of CTA `at`, which waits for it, until all of its CTAs have ended. seen: [CTA of the grid] receives
 * true. */
void machine_cluster_run(bool *seen, uint64_t all, uint64_t at);

/* ---- model_machine.c --------------------------------------------------------------------------------------------- */

/* machine_cta runs CTA `at` of the grid until its threads have ended or all wait for their cluster. machine_look_after
 * checks what the CTA leaves behind. */
void machine_cta(uint64_t at);
void machine_place(uint64_t at);
void machine_block(void);
bool machine_is_aside(void);
void machine_look_after(void);

model_machine *model_face(void); /* returns the functions and state that modules receive when loaded */

#endif
