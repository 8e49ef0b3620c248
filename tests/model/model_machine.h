/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the files of the model's machine: fibers with what they wait for (model_threads.c), what arrives later
 * (model_later.c), CTAs and launches (model_machine.c), modules (model_module.c). All state is `machine`; one launch
 * runs at a time in a process.
 */
#ifndef FXA_TESTS_MODEL_MACHINE_H
#define FXA_TESTS_MODEL_MACHINE_H

#include "model.h"

#include <pthread.h>
#include <signal.h>

enum {
    FIBER_STACK = 256 * 1024,
    MACHINE_STATICS = 16,          /* variables in static shared memory of a kernel, */
    MACHINE_STATIC = 48 * 1024,    /* and their bytes */
    MACHINE_ALIGN = 1024,          /* of dynamic shared memory; as many bytes in front of it are looked at */
    MACHINE_REGISTERS = 64 * 1024, /* of a multiprocessor */
    MACHINE_GROUP = 4,             /* warps of a group */
    MACHINE_FILL = 0xff            /* of memory that nobody has written: NaN in every float type */
};

#if defined(__x86_64__)
typedef void *fiber_context; /* the top of its stack */
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
    bool done; /* it stays in its queue until somebody waits for it */
    struct fiber_job *next;
} fiber_job;

typedef struct fiber_queue {
    fiber_job *first, *last;
} fiber_queue;

typedef struct fiber {
    fiber_context context;
    char *stack;
    fiber_wait wait;
    int barrier;          /* that it waits at */
    const uint32_t *word; /* that it looks at */
    uint32_t mask, same;
    model_dim thread;
    bool launched;          /* it has waited for the launch before */
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
    uint32_t ready, looks, gone; /* lanes; gone: have ended, or never were */
    uint32_t active;             /* meetings, of several masks at a time */
    fiber_meeting meeting[MODEL_WARP];
    void *slot[MODEL_WARP];
    uint64_t products; /* what it had to do with the other warps of its group, as a hash */
    int registers;     /* of a thread */
    uint32_t asks;     /* for so many, 0: for none */
} fiber_warp;

/* When what is begun arrives: at once, as late as can be, at any time between. */
typedef enum machine_mode { MACHINE_PROMPT, MACHINE_LATE, MACHINE_ANY } machine_mode;

typedef struct machine_state {
    model_machine face;
    fiber fibers[MODEL_THREADS];
    fiber_warp warps[MODEL_WARPS];
    fiber_barrier barriers[MODEL_BARRIERS];
    int n_threads, n_warps, n_done;
    int n_jobs;         /* on their way */
    int cluster;        /* CTAs of the one that has met, 0: none has */
    int n_aside;        /* threads that wait for it */
    bool *seen;         /* CTAs of the grid that ran with their cluster */
    int free_registers; /* of a thread, times warps */
    fiber_job *unused;
    struct {
        void *data;
        size_t bytes;
    } statics[MACHINE_STATICS];
    int n_statics;
    fiber_context host, scheduler;
    char *scheduler_stack;
    uint8_t *memory, *memory_end; /* in which dynamic shared memory lies, against a page that is not there */
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

/* What model_machine says of meet, barrier, look, registers, fail, random. */
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

/* What model_machine says of later, commit, await. */
void machine_later(const model_job *job);
void machine_commit(int kind);
void machine_await(int kind, int pending);

/* Something arrives, in no order but that of a warp's products. `needed`: products do not count, whom nobody sees. */
bool machine_arrive(bool needed);
/* Takes it out of its queue; `before` is the one before it, NULL: it is the first. */
void job_drop(fiber_queue *q, fiber_job *before, fiber_job *j);

/* At the end of a CTA copies by cp.async arrive by themselves; that others are left is a mistake. */
void machine_end_all(void);

/* ---- model_cluster.c --------------------------------------------------------------------------------------------- */

/* What model_machine says of cluster and near. */
void machine_cluster(int ctas);
const uint8_t *machine_near(int rank);

/* CTA `at` waits for its cluster: all of that to their ends. seen: of all CTAs of the grid. */
void machine_cluster_run(bool *seen, uint64_t all, uint64_t at);

/* ---- model_machine.c --------------------------------------------------------------------------------------------- */

/* CTA `at` of the grid, until its threads have ended or all wait for their cluster; what it leaves behind. */
void machine_cta(uint64_t at);
void machine_place(uint64_t at);
void machine_block(void);
bool machine_is_aside(void);
void machine_look_after(void);

model_machine *model_face(void); /* what kernels are given when their module is loaded */

#endif
