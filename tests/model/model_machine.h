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
    MACHINE_STATIC = 48 * 1024,    /* maximum bytes of a kernel's static shared variables */
    MACHINE_ALIGN = 1024,          /* alignment of dynamic shared memory; as many bytes before it are checked */
    MACHINE_REGISTERS = 64 * 1024, /* 32-bit registers of a multiprocessor */
    MACHINE_GROUP = 4,             /* warps of a warpgroup */
    MACHINE_FILL = 0xff            /* byte of unwritten memory: NaN in every float type */
};

#if defined(__x86_64__)
typedef void *fiber_context; /* top of the fiber's stack */
#else
#include <ucontext.h>
typedef ucontext_t fiber_context;
#endif

/* What a fiber waits for. */
typedef enum fiber_wait {
    FIBER_READY,
    FIBER_MEETS,   /* other lanes of its warp, at the same instruction */
    FIBER_BARRIER, /* other threads, at barrier fiber.barrier */
    FIBER_LOOKS,   /* a change of *fiber.word */
    FIBER_CLUSTER, /* other CTAs of the cluster */
    FIBER_DONE,    /* nothing: the thread has ended */
    FIBER_WAITS
} fiber_wait;

/* An asynchronous job in the queue of the fiber that started it. */
typedef struct fiber_job {
    model_job job;
    bool done; /* true: completed, but in its queue until a thread waits for it */
    struct fiber_job *next;
} fiber_job;

typedef struct fiber_queue {
    fiber_job *first, *last;
} fiber_queue;

/* A thread of the CTA. */
typedef struct fiber {
    fiber_context context;
    char *stack;
    fiber_wait wait;
    int barrier;            /* barrier at which the fiber waits */
    const uint32_t *word;   /* word whose change the fiber awaits */
    uint32_t mask, same;    /* the word has changed when it differs from `same` in a bit of `mask` */
    model_dim thread;       /* threadIdx */
    bool launched;          /* true: the fiber has waited for the preceding launch */
    int group[MODEL_KINDS]; /* number of the thread's commits */
    fiber_queue queue[MODEL_KINDS];
} fiber;

/* Lanes of a warp that wait for each other at an instruction: `mask` are expected, `here` have arrived. */
typedef struct fiber_meeting {
    uint32_t mask, here;
    void (*all)(void **slot, uint32_t mask);
} fiber_meeting;

typedef struct fiber_barrier {
    int threads, here;             /* numbers of threads: expected, arrived */
    uint32_t waiting[MODEL_WARPS]; /* [warp] set of waiting lanes */
} fiber_barrier;

typedef struct fiber_warp {
    uint32_t ready, looks, gone; /* sets of lanes; looks: in FIBER_LOOKS; gone: ended, or beyond the CTA */
    uint32_t active;             /* bits of `meeting` in use; meetings with different masks coexist */
    fiber_meeting meeting[MODEL_WARP];
    void *slot[MODEL_WARP]; /* [lane] argument of its last meeting */
    uint64_t products;      /* hash of the products; must be equal in all warps of a warpgroup */
    int registers;          /* registers of each thread */
    uint32_t asks;          /* registers requested for each thread; 0 = no request */
} fiber_warp;

/* When jobs complete: at once, as late as possible, or at any time. */
typedef enum machine_mode { MACHINE_PROMPT, MACHINE_LATE, MACHINE_ANY } machine_mode;

/* The state of the emulator and of its launch. */
typedef struct machine_state {
    model_machine face;
    fiber fibers[MODEL_THREADS];
    fiber_warp warps[MODEL_WARPS];
    fiber_barrier barriers[MODEL_BARRIERS];
    int n_threads, n_warps, n_done;
    int n_jobs;         /* jobs that have started and not completed */
    int cluster;        /* number of CTAs of the cluster whose barrier was reached; 0 = none */
    int n_aside;        /* number of threads in FIBER_CLUSTER */
    bool *seen;         /* [CTA] true: ran as a part of an earlier CTA's cluster */
    int free_registers; /* registers that no warp holds, counted for one lane */
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
    uint64_t state; /* state of the random numbers */
    bool ok, hidden;
    void (*hide)(bool hidden); /* argument of model_launch */
    char error[512];
    const void *fault;
    pthread_t thread; /* the thread that launches */
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
int machine_draw(int n); /* returns a random number from 0 to n - 1 */
void machine_mix(uint64_t x);

void model_switch(fiber_context *from, const fiber_context *to);
void fiber_make(fiber_context *context, char *stack, void (*entry)(void));
char *fiber_stack(void); /* returns NULL if memory is exhausted */
void fiber_main(void);   /* body of every fiber */
void fiber_enter(int i);
void fiber_leave(fiber_wait wait);

/* ---- model_later.c ----------------------------------------------------------------------------------------------- */

/* Implement later, commit and await of model_machine. */
void machine_later(const model_job *job);
void machine_commit(int kind);
void machine_await(int kind, int pending);

/* Completes a job, in random order except that a warp's products keep their order. needed: every thread waits, so the
 * job must be a copy: no thread can be waiting for a product. Returns false if there is no such job. */
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

/* machine_cta runs CTA `at` of the grid until all threads have ended or wait for their cluster. machine_look_after
 * checks the CTA for errors after its end. */
void machine_cta(uint64_t at);
void machine_place(uint64_t at);
void machine_block(void);
bool machine_is_aside(void);
void machine_look_after(void);

model_machine *model_face(void); /* returns the functions and state that modules receive when loaded */

#endif
