/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of model.h: launches, fibers and what they wait for. One launch runs at a time in a process.
 *
 * A fiber that waits gives the processor to the scheduler, and whoever ends its wait writes it down as ready. The
 * scheduler, a fiber itself, takes a warp at random, lets its lanes go on one after the other, for a few rounds, and
 * goes on to another one. When nobody is ready, something that is on its way arrives; when nothing is, the launch has
 * failed. Who fails leaves for the host's own stack, and all fibers are begun again by the next CTA.
 */
#define _GNU_SOURCE
#include "model_machine.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    FIBER_STACK = 256 * 1024,
    MACHINE_STATICS = 16,          /* variables in static shared memory of a kernel, */
    MACHINE_STATIC = 48 * 1024,    /* and their bytes */
    MACHINE_ALIGN = 1024,          /* of dynamic shared memory; as many bytes in front of it are looked at */
    MACHINE_REGISTERS = 64 * 1024, /* of a multiprocessor */
    MACHINE_GROUP = 4,             /* warps of a group */
    MACHINE_FILL = 0xff            /* of memory that nobody has written: NaN in every float type */
};

/* ---- Fibers ------------------------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
/* Registers that a call preserves, and the stack. */
__asm__(".text\n.globl model_switch\n.hidden model_switch\n.type model_switch,@function\nmodel_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov (%rsi), %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size model_switch,.-model_switch\n");
typedef void *fiber_context; /* the top of its stack */
__attribute__((visibility("hidden"))) void model_switch(fiber_context *from, const fiber_context *to);

static void fiber_make(fiber_context *context, char *stack, void (*entry)(void)) {
    void **top = (void **)(stack + FIBER_STACK) - 8; /* what a switch pops; aligned as behind a call */
    memset(top, 0, 8 * sizeof *top);
    memcpy(&top[6], &entry, sizeof entry);
    *context = top;
}
#else
#include <ucontext.h>
typedef ucontext_t fiber_context;
static void model_switch(fiber_context *from, const fiber_context *to) { (void)swapcontext(from, to); }

static void fiber_make(fiber_context *context, char *stack, void (*entry)(void)) {
    (void)getcontext(context);
    context->uc_stack.ss_sp = stack, context->uc_stack.ss_size = FIBER_STACK, context->uc_link = NULL;
    makecontext(context, entry, 0);
}
#endif

typedef enum fiber_wait { FIBER_READY, FIBER_MEETS, FIBER_BARRIER, FIBER_LOOKS, FIBER_DONE, FIBER_WAITS } fiber_wait;

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

static struct {
    model_machine face;
    fiber fibers[MODEL_THREADS];
    fiber_warp warps[MODEL_WARPS];
    fiber_barrier barriers[MODEL_BARRIERS];
    int n_threads, n_warps, n_done;
    int n_jobs;         /* on their way */
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
    bool ok;
    char error[512];
    const void *fault;
    pthread_t thread; /* that launches */
    struct sigaction before;
    void (*run)(void **params);
    void **params;
} machine;

static pthread_mutex_t machine_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t machine_random(void) {
    machine.state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = machine.state;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 32);
}

static int machine_draw(int n) { return (int)(machine_random() % (uint32_t)n); }

static void machine_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void machine_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    const model_dim t = machine.face.thread, b = machine.face.block;
    int n =
        snprintf(machine.error, sizeof machine.error, "CTA %u,%u,%u, thread %u,%u,%u: ", b.x, b.y, b.z, t.x, t.y, t.z);
    (void)vsnprintf(machine.error + n, sizeof machine.error - (size_t)n, format, args);
    va_end(args);
    fiber_context left;
    model_switch(&left, &machine.host);
    abort(); /* nobody goes on with it */
}

static fiber *fiber_now(void) { return &machine.fibers[machine.face.number]; }
static fiber_warp *warp_now(void) { return &machine.warps[machine.face.number / MODEL_WARP]; }

static void fiber_leave(fiber_wait wait) {
    fiber *f = fiber_now();
    f->wait = wait;
    model_switch(&f->context, &machine.scheduler);
}

static void fiber_enter(int i) {
    fiber *f = &machine.fibers[i];
    machine.face.number = i;
    machine.face.thread = f->thread;
    f->wait = FIBER_READY;
    model_switch(&machine.scheduler, &f->context);
}

static char *fiber_stack(void) {
    void *stack = mmap(NULL, FIBER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) return NULL;
    (void)mprotect(stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE); /* one that is too small faults */
    return stack;
}

/* ---- Meetings and barriers --------------------------------------------------------------------------------------- */

static bool meeting_end(fiber_meeting *m, fiber_warp *w) {
    uint32_t mask = m->here;
    if (!mask || mask != (m->mask & ~w->gone)) return false;
    m->here = 0;
    w->active &= ~(UINT32_C(1) << (m - w->meeting));
    w->ready |= mask;
    if (m->all) m->all(w->slot, mask);
    return true;
}

/* Of these lanes, or one that is not used: there is one, since each has a lane that is in no other. */
static fiber_meeting *meeting_find(fiber_warp *w, uint32_t mask) {
    for (uint32_t left = w->active; left; left &= left - 1)
        if (w->meeting[__builtin_ctz(left)].mask == mask) return &w->meeting[__builtin_ctz(left)];
    const int unused = __builtin_ctz(~w->active);
    w->active |= UINT32_C(1) << unused;
    return &w->meeting[unused];
}

static void machine_meet(uint32_t mask, void *mine, void (*all)(void **slot, uint32_t mask)) {
    const int lane = machine.face.number % MODEL_WARP;
    const uint32_t me = UINT32_C(1) << lane;
    fiber_warp *w = warp_now();
    if (!(mask & me)) machine_fail("lane %d meets those of %x", lane, mask);
    fiber_meeting *m = meeting_find(w, mask);
    if (m->here && m->all != all) machine_fail("lanes of a warp meet at different instructions");
    m->mask = mask, m->all = all, w->slot[lane] = mine;
    m->here |= me;
    if (meeting_end(m, w))
        w->ready &= ~me;
    else
        fiber_leave(FIBER_MEETS);
}

static bool barrier_end(fiber_barrier *b) {
    if (!b->here || b->here < (b->threads ? b->threads : machine.n_threads - machine.n_done)) return false;
    b->here = 0;
    for (int w = 0; w < machine.n_warps; w++) machine.warps[w].ready |= b->waiting[w], b->waiting[w] = 0;
    return true;
}

static void barrier_meets(void **slot, uint32_t mask) { (void)slot, (void)mask; }

static void machine_barrier(int id, int threads, int whole, int wait) {
    if (id < 0 || id >= MODEL_BARRIERS) machine_fail("barrier %d", id);
    if (threads < 0 || threads % MODEL_WARP || threads > machine.n_warps * MODEL_WARP)
        machine_fail("barrier %d of %d threads, of %d", id, threads, machine.n_threads);
    if (whole) machine_meet(~UINT32_C(0), NULL, barrier_meets);
    fiber_barrier *b = &machine.barriers[id];
    if (b->here && b->threads != threads) machine_fail("barrier %d of %d threads, and of %d", id, b->threads, threads);
    b->threads = threads;
    b->here++;
    if (barrier_end(b) || !wait) return;
    b->waiting[machine.face.number / MODEL_WARP] |= UINT32_C(1) << machine.face.number % MODEL_WARP;
    fiber_now()->barrier = id;
    fiber_leave(FIBER_BARRIER);
}

static void machine_look(const uint32_t *word, uint32_t mask, uint32_t same) {
    fiber *f = fiber_now();
    if ((*word & mask) != same) return;
    f->word = word, f->mask = mask, f->same = same;
    warp_now()->looks |= UINT32_C(1) << machine.face.number % MODEL_WARP;
    fiber_leave(FIBER_LOOKS);
}

/* A thread has come to its end: who has waited for it alone goes on. */
static void fiber_main(void) {
    machine.run(machine.params);
    fiber_warp *w = warp_now();
    machine.n_done++;
    w->gone |= UINT32_C(1) << machine.face.number % MODEL_WARP;
    for (int i = 0; i < MODEL_WARP; i++) (void)meeting_end(&w->meeting[i], w);
    for (int i = 0; i < MODEL_BARRIERS; i++)
        if (!machine.barriers[i].threads) (void)barrier_end(&machine.barriers[i]);
    fiber_leave(FIBER_DONE);
    abort(); /* nobody goes on with it */
}

/* ---- Registers --------------------------------------------------------------------------------------------------- */

static void machine_mix(uint64_t x) {
    fiber_warp *w = warp_now();
    w->products = (w->products ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    w->products ^= w->products >> 29;
}

static void registers_grant(void) {
    for (int i = 0; i < machine.n_warps; i++) {
        fiber_warp *w = &machine.warps[i];
        int more = (int)w->asks - w->registers;
        if (!w->asks || more > machine.free_registers) continue;
        machine.free_registers -= more;
        w->registers += more, w->asks = 0;
    }
}

static void registers_down_meets(void **slot, uint32_t mask) {
    fiber_warp *w = warp_now();
    const int count = **(int **)slot;
    (void)mask;
    if (count > w->registers) machine_fail("%d registers are given up down to %d", w->registers, count);
    machine.free_registers += w->registers - count;
    w->registers = count;
}

static void registers_up_meets(void **slot, uint32_t mask) {
    fiber_warp *w = warp_now();
    const int count = **(int **)slot;
    (void)mask;
    if (count < w->registers) machine_fail("%d registers are raised to %d", w->registers, count);
    w->asks = (uint32_t)count;
}

static void machine_registers(int count, int up) {
    if (count % 8 || count < 24 || count > 256) machine_fail("%d registers of a thread", count);
    if (machine.face.number % MODEL_WARP == 0) machine_mix((uint64_t)count << 1 | (uint64_t)(up != 0));
    machine_meet(~UINT32_C(0), &count, up ? registers_up_meets : registers_down_meets);
    registers_grant();
    fiber_warp *w = warp_now();
    if (w->asks) machine_look(&w->asks, ~UINT32_C(0), w->asks);
}

/* ---- What arrives later ------------------------------------------------------------------------------------------ */

static bool job_stays(int kind) { return kind == MODEL_STORE || kind == MODEL_PRODUCT; }

static fiber *job_owner(int kind) {
    return &machine.fibers[kind == MODEL_PRODUCT ? machine.face.number & ~(MODEL_WARP - 1) : machine.face.number];
}

static void job_do(fiber_job *j) {
    if (j->done) return;
    j->done = true;
    machine.n_jobs--;
    j->job.run(&j->job);
}

/* Takes it out of its queue; `before` is the one before it, NULL: it is the first. */
static void job_drop(fiber_queue *q, fiber_job *before, fiber_job *j) {
    *(before ? &before->next : &q->first) = j->next;
    if (q->last == j) q->last = before;
    j->next = machine.unused;
    machine.unused = j;
}

static void machine_later(const model_job *job) {
    fiber *f = job_owner(job->kind);
    fiber_queue *q = &f->queue[job->kind];
    fiber_job *j = machine.unused;
    if (j)
        machine.unused = j->next;
    else if (!(j = malloc(sizeof *j)))
        machine_fail("no memory");
    *j = (fiber_job){.job = *job};
    j->job.owner = (int)(f - machine.fibers), j->job.group = f->group[job->kind];
    fiber_job *before = q->last;
    *(before ? &before->next : &q->first) = j;
    q->last = j;
    machine.n_jobs++;
    if (job->kind == MODEL_PRODUCT) {
        machine_mix(job->left), machine_mix(job->right);
        machine_mix((uint64_t)job->columns << 2 | (uint64_t)(job->transposed != 0) << 1 | (uint64_t)(job->keep != 0));
    }
    if (machine.mode != MACHINE_PROMPT) return;
    job_do(j);
    if (!job_stays(job->kind)) job_drop(q, before, j);
}

static void machine_commit(int kind) { job_owner(kind)->group[kind]++; }

/* In the order in which they were begun. */
static void machine_await(int kind, int pending) {
    fiber *f = job_owner(kind);
    fiber_queue *q = &f->queue[kind];
    while (q->first && q->first->job.group < f->group[kind] - pending) {
        job_do(q->first);
        job_drop(q, NULL, q->first);
    }
}

/* One of a queue, among the first few; of products the first that is not done. False: there is none. */
static bool queue_arrive(fiber_queue *q, int kind) {
    fiber_job *before = NULL, *j = q->first;
    int far = kind == MODEL_PRODUCT ? 0 : machine_draw(8);
    while (j && (j->done || (far > 0 && j->next && !j->next->done))) far -= !j->done, before = j, j = j->next;
    if (!j) return false;
    job_do(j);
    if (!job_stays(kind)) job_drop(q, before, j);
    return true;
}

/* Something arrives, in no order but that of a warp's products. `needed`: products do not count, whom nobody sees. */
static bool machine_arrive(bool needed) {
    int first = machine_draw(machine.n_threads), kind = machine_draw(MODEL_KINDS);
    for (int n = 0; n < machine.n_threads && machine.n_jobs; n++) {
        fiber *f = &machine.fibers[(first + n) % machine.n_threads];
        for (int k = 0; k < MODEL_KINDS; k++) {
            int which = (kind + k) % MODEL_KINDS;
            if (needed && which == MODEL_PRODUCT) continue;
            if (f->queue[which].first && queue_arrive(&f->queue[which], which)) return true;
        }
    }
    return false;
}

/* ---- A CTA ------------------------------------------------------------------------------------------------------- */

/* Who looks at something that has changed is ready. */
static bool machine_see(void) {
    bool any = false;
    for (int w = 0; w < machine.n_warps; w++)
        for (uint32_t left = machine.warps[w].looks; left; left &= left - 1) {
            const fiber *f = &machine.fibers[w * MODEL_WARP + __builtin_ctz(left)];
            if ((*f->word & f->mask) == f->same) continue;
            uint32_t lane = left & -left;
            machine.warps[w].looks &= ~lane, machine.warps[w].ready |= lane;
            any = true;
        }
    return any;
}

/* A warp with a lane that is ready, -1: there is none. */
static int machine_pick(void) {
    int first = machine_draw(machine.n_warps);
    for (int n = 0; n < machine.n_warps; n++) {
        int w = first + n < machine.n_warps ? first + n : first + n - machine.n_warps;
        if (machine.warps[w].ready) return w;
    }
    return -1;
}

/* All lanes that are ready, each until it waits. */
static void machine_turn(int warp) {
    fiber_warp *w = &machine.warps[warp];
    uint32_t draw = machine_random(), left = w->ready;
    int first = (int)(draw & 31), back = (int)(draw >> 5 & 1);
    w->ready = 0;
    left = first ? left >> first | left << (32 - first) : left;
    while (left) {
        int i = back ? 31 - __builtin_clz(left) : __builtin_ctz(left);
        left &= ~(UINT32_C(1) << i);
        fiber_enter(warp * MODEL_WARP + ((i + first) & 31));
    }
}

static void machine_stuck(void) {
    static const char *const names[] = {"are ready", "meet", "wait at a barrier", "look at a word", "have ended"};
    char text[256] = "";
    size_t n = 0;
    for (int wait = FIBER_READY; wait < FIBER_WAITS && n < sizeof text; wait++) {
        int count = 0, first = -1;
        for (int i = machine.n_threads - 1; i >= 0; i--)
            if ((int)machine.fibers[i].wait == wait) count++, first = i;
        if (!count) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %d %s (first %d", n ? ";" : "", count, names[wait], first);
        if (n < sizeof text && wait == FIBER_BARRIER)
            n += (size_t)snprintf(text + n, sizeof text - n, ", barrier %d", machine.fibers[first].barrier);
        if (n < sizeof text) n += (size_t)snprintf(text + n, sizeof text - n, ")");
    }
    machine_fail("all wait for each other:%s", text);
}

static void machine_block(void) {
    while (machine.n_done < machine.n_threads) {
        if (machine_draw(4) == 0) (void)machine_see();
        int warp = machine_pick();
        if (warp < 0) {
            if (!machine_see() && !machine_arrive(true)) machine_stuck();
            continue;
        }
        for (int n = machine_draw(8); n >= 0 && machine.warps[warp].ready; n--) machine_turn(warp);
        if (machine.mode == MACHINE_ANY && machine.n_jobs && machine_draw(2)) (void)machine_arrive(false);
    }
}

/* What is left at the end of a CTA: copies by cp.async arrive by themselves. */
static void machine_look_after(void) {
    static const char *const names[MODEL_KINDS] = {"loads", "stores", "", "products"};
    for (int i = 0; i < machine.n_threads; i++) {
        fiber *f = &machine.fibers[i];
        while (f->queue[MODEL_COPY].first) (void)queue_arrive(&f->queue[MODEL_COPY], MODEL_COPY);
        for (int kind = 0; kind < MODEL_KINDS; kind++)
            if (f->queue[kind].first) machine_fail("%s of thread %d that nobody waited for", names[kind], i);
    }
    for (int w = 0; w < machine.n_warps; w++) {
        const int first = w - w % MACHINE_GROUP;
        const uint64_t mine = machine.warps[w].products;
        if (mine != machine.warps[first].products || (mine && first + MACHINE_GROUP > machine.n_warps))
            machine_fail("warp %d has other products or registers than its group", w);
    }
    for (const uint8_t *p = machine.face.shared - MACHINE_ALIGN; p < machine.memory_end; p++) {
        if (p == machine.face.shared) p += machine.face.shared_bytes;
        if (p < machine.memory_end && *p != MACHINE_FILL)
            machine_fail("shared memory at %td of %u was written", p - machine.face.shared, machine.face.shared_bytes);
    }
}

/* Dynamic shared memory ends at the end of what there is, up to its alignment. */
static void machine_clear(void) {
    model_machine *f = &machine.face;
    f->shared = machine.memory_end - (f->shared_bytes + MACHINE_ALIGN - 1) / MACHINE_ALIGN * MACHINE_ALIGN;
    memset(f->shared - MACHINE_ALIGN, MACHINE_FILL, (size_t)(machine.memory_end - f->shared) + MACHINE_ALIGN);
    memset(f->written, 0, (f->shared_bytes + MODEL_CHUNK - 1) / MODEL_CHUNK * sizeof *f->written);
    memset(f->fenced, 0, sizeof f->fenced);
    f->now = 1;
    memset(machine.warps, 0, (size_t)machine.n_warps * sizeof *machine.warps);
    memset(machine.barriers, 0, sizeof machine.barriers);
    machine.n_done = machine.n_jobs = machine.n_statics = 0;
}

static bool fiber_begin(int i) {
    fiber *f = &machine.fibers[i];
    if (!f->stack && !(f->stack = fiber_stack())) return false;
    const model_dim d = machine.face.block_dim;
    const unsigned n = (unsigned)i;
    f->thread = (model_dim){n % d.x, n / d.x % d.y, n / d.x / d.y};
    f->wait = FIBER_READY;
    memset(f->group, 0, sizeof f->group);
    for (int k = 0; k < MODEL_KINDS; k++) /* of a launch that failed */
        while (f->queue[k].first) job_drop(&f->queue[k], NULL, f->queue[k].first);
    fiber_make(&f->context, f->stack, fiber_main);
    return true;
}

static void machine_cta(void) {
    machine_clear();
    int registers = MACHINE_REGISTERS / (machine.n_warps * MODEL_WARP) / 8 * 8;
    for (int w = 0; w < machine.n_warps; w++) {
        int lanes = machine.n_threads - w * MODEL_WARP;
        machine.warps[w].registers = registers < 248 ? registers : 248;
        machine.warps[w].ready = lanes >= MODEL_WARP ? ~UINT32_C(0) : (UINT32_C(1) << lanes) - 1;
        machine.warps[w].gone = ~machine.warps[w].ready;
    }
    machine.free_registers = 0;
    for (int i = 0; i < machine.n_threads; i++)
        if (!fiber_begin(i)) machine_fail("no memory for a stack");
    machine_block();
    machine_look_after();
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static uint64_t machine_divisor(uint64_t x, uint64_t y) { return y ? machine_divisor(y, x % y) : x; }

/* CTAs one after the other, in an order that counts through them by a number that has no divisor with them. */
static void machine_grid(void) {
    const model_dim g = machine.face.grid;
    const uint64_t all = (uint64_t)g.x * g.y * g.z;
    uint64_t at = machine_random() % all, by = 1 + machine_random() % all;
    while (machine_divisor(by, all) != 1) by++;
    for (uint64_t n = 0; n < all; n++, at = (at + by) % all) {
        machine.face.block = (model_dim){(unsigned)(at % g.x), (unsigned)(at / g.x % g.y), (unsigned)(at / g.x / g.y)};
        machine_cta();
    }
    machine.ok = true;
    model_switch(&machine.scheduler, &machine.host);
    abort(); /* nobody goes on with it */
}

/* The first thread that comes to the variable finds what nobody has written. */
static void machine_begin(void *data, size_t bytes) {
    size_t all = bytes;
    for (int i = 0; i < machine.n_statics; i++) {
        if (machine.statics[i].data == data) return;
        all += machine.statics[i].bytes;
    }
    if (machine.n_statics == MACHINE_STATICS || all > MACHINE_STATIC || all + machine.face.shared_bytes > MODEL_SHARED)
        machine_fail("%zu bytes of static shared memory beside %u", all, machine.face.shared_bytes);
    machine.statics[machine.n_statics].data = data;
    machine.statics[machine.n_statics++].bytes = bytes;
    memset(data, MACHINE_FILL, bytes);
}

static uint64_t machine_seed(void) {
    const char *text = getenv("FXA_MODEL_SEED");
    return text && *text ? strtoull(text, NULL, 0) : 1;
}

static bool machine_memory(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (MODEL_SHARED + MACHINE_ALIGN + page - 1) / page * page;
    void *memory = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    machine.memory = memory, machine.memory_end = machine.memory + room;
    return mprotect(machine.memory_end, page, PROT_NONE) == 0;
}

static bool machine_prepare(void) {
    model_machine *f = &machine.face;
    if (f->meet) return true;
    machine.state = machine_seed();
    f->barrier = machine_barrier, f->look = machine_look, f->registers = machine_registers, f->begin = machine_begin;
    f->later = machine_later, f->commit = machine_commit, f->await = machine_await;
    f->random = machine_random, f->fail = machine_fail;
    if (!machine.memory && !machine_memory()) return false;
    if (!f->written && !(f->written = calloc(MODEL_SHARED / MODEL_CHUNK + 1, sizeof *f->written))) return false;
    if (!machine.scheduler_stack && !(machine.scheduler_stack = fiber_stack())) return false;
    f->meet = machine_meet;
    return true;
}

static void machine_run(model_dim grid, model_dim block, uint32_t shared_bytes) {
    model_machine *f = &machine.face;
    f->grid = grid, f->block_dim = block, f->shared_bytes = shared_bytes;
    f->block = f->thread = (model_dim){0, 0, 0};
    machine.n_threads = (int)(block.x * block.y * block.z);
    machine.n_warps = (machine.n_threads + MODEL_WARP - 1) / MODEL_WARP;
    const int mode = machine_draw(8);
    machine.mode = mode < 2 ? MACHINE_PROMPT : mode < 5 ? MACHINE_LATE : MACHINE_ANY;
    machine.ok = false;
    fiber_make(&machine.scheduler, machine.scheduler_stack, machine_grid);
    model_switch(&machine.host, &machine.scheduler);
}

/* A kernel that touches memory which is not there: as any other mistake. Of others it is not ours. */
static void machine_on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (!pthread_equal(pthread_self(), machine.thread)) {
        (void)sigaction(signal, &machine.before, NULL);
        return;
    }
    machine.fault = info->si_addr;
    machine_fail("memory at %p, where there is none", info->si_addr);
}

/* With faults in our hands. SA_NODEFER: nobody returns from the handler. */
static void machine_run_guarded(model_dim grid, model_dim block, uint32_t shared_bytes) {
    struct sigaction ours = {.sa_sigaction = machine_on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)sigemptyset(&ours.sa_mask);
    machine.thread = pthread_self();
    bool set = sigaction(SIGSEGV, &ours, &machine.before) == 0;
    machine_run(grid, block, shared_bytes);
    if (set) (void)sigaction(SIGSEGV, &machine.before, NULL);
}

bool model_launch(void *kernel, model_dim grid, model_dim block, uint32_t shared_bytes, void **params) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    pthread_mutex_lock(&machine_lock);
    machine.error[0] = 0;
    machine.fault = NULL;
    if (!threads || threads > MODEL_THREADS || shared_bytes > MODEL_SHARED || !grid.x || !grid.y || !grid.z) {
        machine.ok = false;
        (void)snprintf(machine.error, sizeof machine.error, "no launch has %llu threads and %u bytes of shared memory",
                       (unsigned long long)threads, shared_bytes);
    } else if (!machine_prepare()) {
        machine.ok = false;
        (void)snprintf(machine.error, sizeof machine.error, "no memory");
    } else {
        memcpy(&machine.run, &kernel, sizeof machine.run);
        machine.params = params;
        machine_run_guarded(grid, block, shared_bytes);
    }
    bool ok = machine.ok;
    pthread_mutex_unlock(&machine_lock);
    return ok;
}

const char *model_error(void) { return machine.error; }
const void *model_fault(void) { return machine.fault; }

model_machine *model_face(void) { return &machine.face; }
