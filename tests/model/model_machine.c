/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of model.h: modules, launches, fibers and what they wait for. One launch runs at a time in a process.
 *
 * A fiber waits by giving the processor to the scheduler with the reason in its state; the scheduler goes over all
 * fibers, from another place each time, and lets those run whose reason is gone. When none can go on, something that is
 * on its way arrives; when nothing is, the launch has failed.
 */
#define _GNU_SOURCE
#include "model.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { FIBER_STACK = 256 * 1024, FIBER_JOBS = 1024 };

typedef enum fiber_wait { FIBER_RUNS, FIBER_MEETS, FIBER_BARRIER, FIBER_YIELDS, FIBER_DONE } fiber_wait;

typedef struct fiber {
    void *stack_pointer;
    ucontext_t context;
    char *stack;
    fiber_wait wait;
    int barrier;
    unsigned turn; /* of the meeting or barrier it waits for */
    model_dim thread;
    int group[MODEL_KINDS]; /* commits so far */
} fiber;

typedef struct fiber_meeting {
    uint32_t mask, here;
    unsigned turn;
    void (*all)(void **slot, uint32_t mask);
    void *slot[MODEL_WARP];
} fiber_meeting;

typedef struct fiber_barrier {
    int threads, here;
    unsigned turn;
} fiber_barrier;

static struct {
    model_machine face;
    fiber fibers[MODEL_THREADS];
    int n_threads, n_done, current;
    fiber_meeting meeting[MODEL_THREADS / MODEL_WARP];
    uint32_t gone[MODEL_THREADS / MODEL_WARP]; /* lanes that have ended */
    fiber_barrier barrier[MODEL_BARRIERS];
    model_job job[FIBER_JOBS];
    int n_jobs;
    ucontext_t scheduler;
    void *scheduler_pointer;
    jmp_buf failure;
    char error[512];
    uint64_t state;
    bool prompt; /* what is asked for arrives at once, in this launch */
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

/* ---- Fibers ------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Registers that a call preserves, and the stack. */
__asm__(".text\n.type model_switch,@function\nmodel_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size model_switch,.-model_switch\n");
void model_switch(void **from, void *to);
#define FIBER_OWN_SWITCH 1
#else
#define FIBER_OWN_SWITCH 0
#endif

static fiber *fiber_now(void) { return &machine.fibers[machine.current]; }

static void fiber_leave(void) {
#if FIBER_OWN_SWITCH
    model_switch(&fiber_now()->stack_pointer, machine.scheduler_pointer);
#else
    swapcontext(&fiber_now()->context, &machine.scheduler);
#endif
}

static void fiber_enter(int i) {
    machine.current = i;
    machine.face.thread = machine.fibers[i].thread;
    machine.fibers[i].wait = FIBER_RUNS;
#if FIBER_OWN_SWITCH
    model_switch(&machine.scheduler_pointer, machine.fibers[i].stack_pointer);
#else
    swapcontext(&machine.scheduler, &machine.fibers[i].context);
#endif
}

static void fiber_main(void) {
    machine.run(machine.params);
    fiber *f = fiber_now();
    f->wait = FIBER_DONE;
    machine.n_done++;
    machine.gone[machine.current / MODEL_WARP] |= 1u << machine.current % MODEL_WARP;
    fiber_leave();
    abort(); /* nobody goes on with it */
}

static bool fiber_begin(int i) {
    fiber *f = &machine.fibers[i];
    if (!f->stack) {
        void *stack = mmap(NULL, FIBER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) return false;
        (void)mprotect(stack, 4096, PROT_NONE); /* so that one which is too small faults */
        f->stack = stack;
    }
    const model_dim d = machine.face.block_dim;
    f->thread = (model_dim){(unsigned)i % d.x, (unsigned)i / d.x % d.y, (unsigned)i / d.x / d.y};
    f->wait = FIBER_YIELDS;
    memset(f->group, 0, sizeof f->group);
#if FIBER_OWN_SWITCH
    void **top = (void **)(f->stack + FIBER_STACK) - 8; /* what a switch pops, and where it returns to; aligned as after a call */
    memset(top, 0, 8 * sizeof *top);
    top[6] = (void *)fiber_main;
    f->stack_pointer = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack, f->context.uc_stack.ss_size = FIBER_STACK;
    makecontext(&f->context, fiber_main, 0);
#endif
    return true;
}

static void machine_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void machine_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    const model_dim t = machine.face.thread, b = machine.face.block;
    int n = snprintf(machine.error, sizeof machine.error, "CTA %u,%u,%u, thread %u: ", b.x, b.y, b.z, t.x);
    (void)vsnprintf(machine.error + n, sizeof machine.error - (size_t)n, format, args);
    va_end(args);
    longjmp(machine.failure, 1); /* stacks of fibers are left as they are, and begun again by the next launch */
}

/* ---- Meetings and barriers ----------------------------------------------------------------------------------------- */

static void meeting_check(fiber_meeting *m, int warp) {
    if (!m->here || (m->here & m->mask) != (m->mask & ~machine.gone[warp])) return;
    uint32_t mask = m->here;
    m->here = 0;
    m->turn++;
    if (m->all) m->all(m->slot, mask);
}

static void machine_meet(uint32_t mask, void *mine, void (*all)(void **slot, uint32_t mask)) {
    int warp = machine.current / MODEL_WARP, lane = machine.current % MODEL_WARP;
    fiber_meeting *m = &machine.meeting[warp];
    if (m->here && m->all != all) machine_fail("lanes of a warp meet at different instructions");
    if (m->here && m->mask != mask) machine_fail("lanes of a warp meet with masks %x and %x", m->mask, mask);
    m->mask = mask, m->all = all, m->slot[lane] = mine;
    m->here |= 1u << lane;
    fiber *f = fiber_now();
    f->turn = m->turn;
    meeting_check(m, warp);
    while (m->turn == f->turn) {
        f->wait = FIBER_MEETS;
        fiber_leave();
    }
}

static void barrier_check(fiber_barrier *b) {
    int wanted = b->threads ? b->threads : machine.n_threads - machine.n_done;
    if (!b->here || b->here < wanted) return;
    b->here = 0;
    b->turn++;
}

static void machine_barrier(int id, int threads, int whole, int wait) {
    if (whole) machine_meet(~0u, NULL, NULL);
    fiber_barrier *b = &machine.barrier[id];
    if (b->here && b->threads != threads) machine_fail("barrier %d of %d threads, and of %d", id, b->threads, threads);
    b->threads = threads;
    b->here++;
    fiber *f = fiber_now();
    f->turn = b->turn, f->barrier = id;
    barrier_check(b);
    while (wait && b->turn == f->turn) {
        f->wait = FIBER_BARRIER;
        fiber_leave();
    }
}

static void machine_yield(void) {
    fiber_now()->wait = FIBER_YIELDS;
    fiber_leave();
}

static bool fiber_is_ready(int i) {
    const fiber *f = &machine.fibers[i];
    switch (f->wait) {
    case FIBER_MEETS: return machine.meeting[i / MODEL_WARP].turn != f->turn;
    case FIBER_BARRIER: return machine.barrier[f->barrier].turn != f->turn;
    case FIBER_DONE: return false;
    default: return true;
    }
}

/* ---- What arrives later -------------------------------------------------------------------------------------------- */

static void job_do(int i) {
    model_job job = machine.job[i];
    memmove(machine.job + i, machine.job + i + 1, (size_t)(--machine.n_jobs - i) * sizeof job);
    job.run(&job);
}

static int job_owner(int kind) { return kind == MODEL_PRODUCT ? machine.current & ~(MODEL_WARP - 1) : machine.current; }

static void machine_later(const model_job *job) {
    model_job mine = *job;
    mine.owner = job_owner(job->kind);
    mine.group = machine.fibers[mine.owner].group[job->kind];
    if (machine.prompt || machine.n_jobs == FIBER_JOBS)
        mine.run(&mine);
    else
        machine.job[machine.n_jobs++] = mine;
}

static void machine_commit(int kind) { machine.fibers[job_owner(kind)].group[kind]++; }

/* In the order in which they were begun. */
static void machine_await(int kind, int pending) {
    int me = job_owner(kind), last = machine.fibers[me].group[kind] - pending;
    for (int i = 0; i < machine.n_jobs;) {
        const model_job *j = &machine.job[i];
        if (j->owner == me && j->kind == kind && j->group < last)
            job_do(i);
        else
            i++;
    }
}

/* ---- Launches ------------------------------------------------------------------------------------------------------ */

/* Copies arrive in any order; products wait for who waits for them. */
static bool machine_arrive(void) {
    int first = machine.n_jobs ? (int)(machine_random() % (unsigned)machine.n_jobs) : 0;
    for (int n = 0; n < machine.n_jobs; n++) {
        int i = (first + n) % machine.n_jobs;
        if (machine.job[i].kind == MODEL_PRODUCT) continue;
        job_do(i);
        return true;
    }
    return false;
}

static const char *machine_waits(char *text, size_t room) {
    static const char *const names[] = {"run", "meet", "wait at a barrier", "look again", "are done"};
    int count[5] = {0}, first[5] = {0};
    for (int i = machine.n_threads - 1; i >= 0; i--) count[machine.fibers[i].wait]++, first[machine.fibers[i].wait] = i;
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < 5 && n < room; i++)
        if (count[i]) n += (size_t)snprintf(text + n, room - n, " %d %s (first %d)", count[i], names[i], first[i]);
    return text;
}

enum { MACHINE_LOOKS = 20000 }; /* rounds in which nothing happens but that fibers look again */

static void machine_block(void) {
    int idle = 0;
    char text[256];
    while (machine.n_done < machine.n_threads) {
        int first = (int)(machine_random() % (unsigned)machine.n_threads), done = machine.n_done;
        bool back = machine_random() & 1, progress = false;
        for (int n = 0; n < machine.n_threads; n++) {
            int i = back ? (first - n + machine.n_threads) % machine.n_threads : (first + n) % machine.n_threads;
            if (!fiber_is_ready(i)) continue;
            bool looked = machine.fibers[i].wait == FIBER_YIELDS;
            fiber_enter(i);
            progress = progress || !looked || machine.fibers[i].wait != FIBER_YIELDS;
        }
        if (machine.n_done != done) {
            for (int w = 0; w < (machine.n_threads + 31) / 32; w++) meeting_check(&machine.meeting[w], w);
            for (int b = 0; b < MODEL_BARRIERS; b++) barrier_check(&machine.barrier[b]);
        }
        bool arrived = (machine_random() % 4 == 0 || !progress) && machine_arrive();
        idle = progress || arrived ? 0 : idle + 1;
        if (idle > 2 && machine.n_jobs == 0) machine_fail("all wait for each other:%s", machine_waits(text, sizeof text));
        if (idle > MACHINE_LOOKS) machine_fail("nothing goes on:%s", machine_waits(text, sizeof text));
    }
    while (machine_arrive()) {}
    if (machine.n_jobs) machine_fail("%d products that nobody waited for", machine.n_jobs);
}

static bool machine_cta(void) {
    machine.n_done = machine.n_jobs = 0;
    memset(machine.meeting, 0, sizeof machine.meeting), memset(machine.barrier, 0, sizeof machine.barrier);
    memset(machine.gone, 0, sizeof machine.gone);
    for (int i = machine.n_threads; i % MODEL_WARP; i++) machine.gone[i / MODEL_WARP] |= 1u << i % MODEL_WARP;
    memset(machine.face.shared, 0xff, machine.face.shared_bytes);
    for (int i = 0; i < machine.n_threads; i++)
        if (!fiber_begin(i)) return false;
    machine_block();
    return true;
}

static bool machine_grid(void) {
    const model_dim g = machine.face.grid;
    uint64_t all = (uint64_t)g.x * g.y * g.z, first = machine_random() % all;
    bool back = machine_random() & 1;
    for (uint64_t n = 0; n < all; n++) {
        uint64_t i = back ? (first + all - n) % all : (first + n) % all;
        machine.face.block = (model_dim){(unsigned)(i % g.x), (unsigned)(i / g.x % g.y), (unsigned)(i / g.x / g.y)};
        if (!machine_cta()) return false;
    }
    return true;
}

static uint64_t machine_seed(void) {
    const char *text = getenv("FXA_MODEL_SEED");
    return text && *text ? strtoull(text, NULL, 0) : 1;
}

static bool machine_prepare(model_dim grid, model_dim block, uint32_t shared_bytes) {
    model_machine *f = &machine.face;
    if (!f->meet) {
        machine.state = machine_seed();
        *f = (model_machine){.meet = machine_meet,
                             .barrier = machine_barrier,
                             .yield = machine_yield,
                             .later = machine_later,
                             .commit = machine_commit,
                             .await = machine_await,
                             .random = machine_random,
                             .fail = machine_fail};
        if (posix_memalign((void **)&f->shared, 1024, MODEL_SHARED)) return f->shared = NULL, false;
    }
    f->grid = grid, f->block_dim = block, f->shared_bytes = shared_bytes;
    machine.n_threads = (int)(block.x * block.y * block.z);
    machine.prompt = machine_random() % 4 == 0;
    return f->shared != NULL;
}

bool model_launch(void *kernel, model_dim grid, model_dim block, uint32_t shared_bytes, void **params) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    pthread_mutex_lock(&machine_lock);
    machine.error[0] = 0;
    volatile bool ok = threads > 0 && threads <= MODEL_THREADS && shared_bytes <= MODEL_SHARED && grid.x && grid.y &&
                       grid.z && machine_prepare(grid, block, shared_bytes);
    if (!ok) snprintf(machine.error, sizeof machine.error, "no such launch");
    if (ok) {
        machine.run = (void (*)(void **))kernel, machine.params = params;
        ok = !setjmp(machine.failure) && machine_grid();
    }
    pthread_mutex_unlock(&machine_lock);
    if (!ok) fprintf(stderr, "model: %s\n", machine.error);
    return ok;
}

const char *model_error(void) { return machine.error; }

/* ---- Modules ------------------------------------------------------------------------------------------------------- */

struct model_module {
    void *library;
};

static uint64_t module_number(const uint8_t *at, int bytes) {
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | at[i];
    return x;
}

/* An object file of the host, type 1, ends with its section headers. */
static size_t module_size(const uint8_t *image) {
    if (memcmp(image, "\177ELF", 4) != 0 || module_number(image + 0x10, 2) != 1) return 0;
    return (size_t)(module_number(image + 0x28, 8) + module_number(image + 0x3c, 2) * 64);
}

model_module *model_load(const void *image) {
    size_t size = module_size(image);
    char folder[] = "/tmp/fxattn_model_XXXXXX", object[64], shared[64], command[256];
    if (!size || !mkdtemp(folder)) return NULL;
    snprintf(object, sizeof object, "%s/unit.o", folder), snprintf(shared, sizeof shared, "%s/unit.so", folder);
    FILE *f = fopen(object, "wb");
    bool ok = f && fwrite(image, 1, size, f) == size;
    if (f) ok = fclose(f) == 0 && ok;
    snprintf(command, sizeof command, "c++ -shared -o %s %s", shared, object);
    void *library = ok && system(command) == 0 ? dlopen(shared, RTLD_NOW | RTLD_LOCAL) : NULL;
    (void)unlink(object), (void)unlink(shared), (void)rmdir(folder);
    model_machine **face = library ? dlsym(library, "model") : NULL;
    model_module *m = face ? malloc(sizeof *m) : NULL;
    if (m) {
        *face = &machine.face;
        m->library = library;
    } else if (library) {
        dlclose(library);
    }
    return m;
}

void model_unload(model_module *module) {
    dlclose(module->library);
    free(module);
}

void *model_find(model_module *module, const char *kernel) {
    char name[128];
    snprintf(name, sizeof name, "model_run_%s", kernel);
    return dlsym(module->library, name);
}
