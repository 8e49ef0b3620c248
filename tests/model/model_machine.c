/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU emulator of model.h: CTAs and launches.
 *
 * The scheduler, a fiber itself, picks a warp at random, runs its lanes one after the other for a few rounds, and then
 * picks another warp. If no thread is ready, it completes an asynchronous job; if there is none either, the launch has
 * failed (deadlock). The next CTA reuses all fibers.
 */
#define _GNU_SOURCE
#include "model_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

machine_state machine;
static pthread_mutex_t machine_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- A CTA ------------------------------------------------------------------------------------------------------- */

/* Makes threads ready whose awaited word has changed. Returns true if there is any. */
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

/* Returns a random warp with a ready lane; -1 if there is none. */
static int machine_pick(void) {
    int first = machine_draw(machine.n_warps);
    for (int n = 0; n < machine.n_warps; n++) {
        int w = first + n < machine.n_warps ? first + n : first + n - machine.n_warps;
        if (machine.warps[w].ready) return w;
    }
    return -1;
}

/* Runs all ready lanes of a warp, each until it waits. */
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
    static const char *const names[] = {
        "are ready", "meet", "wait at a barrier", "look at a word", "wait for their cluster", "have ended"};
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

bool machine_is_aside(void) { return machine.n_aside && machine.n_aside + machine.n_done == machine.n_threads; }

void machine_block(void) {
    while (machine.n_done < machine.n_threads && !machine_is_aside()) {
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

/* Checks what a CTA leaves at its end: incomplete jobs, different products in a warpgroup, writes outside of shared
 * memory. */
void machine_look_after(void) {
    machine_end_all();
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

/* Resets the state for a new CTA. Dynamic shared memory is placed at the end of its pages, up to alignment. */
static void machine_clear(void) {
    model_machine *f = &machine.face;
    f->shared = machine.memory_end - (f->shared_bytes + MACHINE_ALIGN - 1) / MACHINE_ALIGN * MACHINE_ALIGN;
    memset(f->shared - MACHINE_ALIGN, MACHINE_FILL, (size_t)(machine.memory_end - f->shared) + MACHINE_ALIGN);
    memset(f->written, 0, (f->shared_bytes + MODEL_CHUNK - 1) / MODEL_CHUNK * sizeof *f->written);
    memset(f->fenced, 0, sizeof f->fenced);
    f->now = 1;
    memset(machine.warps, 0, (size_t)machine.n_warps * sizeof *machine.warps);
    memset(machine.barriers, 0, sizeof machine.barriers);
    machine.n_done = machine.n_jobs = machine.n_statics = machine.n_aside = 0;
}

static bool fiber_begin(int i) {
    fiber *f = &machine.fibers[i];
    if (!f->stack && !(f->stack = fiber_stack())) return false;
    const model_dim d = machine.face.block_dim;
    const unsigned n = (unsigned)i;
    f->thread = (model_dim){n % d.x, n / d.x % d.y, n / d.x / d.y};
    f->wait = FIBER_READY;
    f->launched = !machine.hide;
    memset(f->group, 0, sizeof f->group);
    for (int k = 0; k < MODEL_KINDS; k++) /* jobs of a launch that failed */
        while (f->queue[k].first) job_drop(&f->queue[k], NULL, f->queue[k].first);
    fiber_make(&f->context, f->stack, fiber_main);
    return true;
}

void machine_place(uint64_t at) {
    const model_dim g = machine.face.grid;
    machine.face.block = (model_dim){(unsigned)(at % g.x), (unsigned)(at / g.x % g.y), (unsigned)(at / g.x / g.y)};
}

void machine_cta(uint64_t at) {
    machine_place(at);
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
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static uint64_t machine_divisor(uint64_t x, uint64_t y) { return y ? machine_divisor(y, x % y) : x; }

/* Runs the CTAs one after the other, in the order at, at + by, at + 2 by, ... modulo their number, which has no common
 * divisor with `by`. */
static void machine_grid(void) {
    const model_dim g = machine.face.grid;
    const uint64_t all = (uint64_t)g.x * g.y * g.z;
    uint64_t at = machine_random() % all, by = 1 + machine_random() % all;
    while (machine_divisor(by, all) != 1) by++;
    for (uint64_t n = 0; n < all; n++, at = (at + by) % all) {
        if (machine.seen[at]) continue;
        machine.cluster = 0;
        machine_cta(at);
        if (machine_is_aside())
            machine_cluster_run(machine.seen, all, at);
        else
            machine_look_after();
    }
    machine.ok = true;
    model_switch(&machine.scheduler, &machine.host);
    abort(); /* never reached: no fiber switches back */
}

/* Fills a static shared variable with the pattern of unwritten memory when the first thread of a CTA reaches it. */
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
    f->launched = machine_launched;
    f->later = machine_later, f->commit = machine_commit, f->await = machine_await;
    f->cluster = machine_cluster, f->near = machine_near;
    f->random = machine_random, f->fail = machine_fail;
    if (!machine.memory && !machine_memory()) return false;
    if (!f->written && !(f->written = calloc(MODEL_SHARED / MODEL_CHUNK + 1, sizeof *f->written))) return false;
    if (!machine.scheduler_stack && !(machine.scheduler_stack = fiber_stack())) return false;
    f->meet = machine_meet;
    return true;
}

/* Frees memory when the stand-in is unloaded, for builds with a leak sanitizer. */
static void __attribute__((destructor)) machine_end(void) {
    free(machine.face.written);
    machine.face.written = NULL;
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
    if (!(machine.seen = calloc((size_t)grid.x * grid.y * grid.z, sizeof *machine.seen))) {
        (void)snprintf(machine.error, sizeof machine.error, "no memory");
        return;
    }
    fiber_make(&machine.scheduler, machine.scheduler_stack, machine_grid);
    model_switch(&machine.host, &machine.scheduler);
    free(machine.seen);
}

/* Turns a fault of the kernel's thread into an error message; faults of other threads go to the previous handler. */
static void machine_on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (!pthread_equal(pthread_self(), machine.thread)) {
        (void)sigaction(signal, &machine.before, NULL);
        return;
    }
    machine.fault = info->si_addr;
    machine_fail("memory at %p, where there is none", info->si_addr);
}

/* Runs a launch with the handler for faults installed. SA_NODEFER, because the handler does not return. */
static void machine_run_guarded(model_dim grid, model_dim block, uint32_t shared_bytes) {
    struct sigaction ours = {.sa_sigaction = machine_on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)sigemptyset(&ours.sa_mask);
    machine.thread = pthread_self();
    bool set = sigaction(SIGSEGV, &ours, &machine.before) == 0;
    machine_run(grid, block, shared_bytes);
    if (set) (void)sigaction(SIGSEGV, &machine.before, NULL);
}

bool model_launch(void *kernel, model_dim grid, model_dim block, uint32_t shared_bytes, void (*hide)(bool hidden),
                  void **params) {
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
        machine.hide = hide;
        machine_hide(true);
        machine_run_guarded(grid, block, shared_bytes);
        machine_hide(false);
    }
    bool ok = machine.ok;
    pthread_mutex_unlock(&machine_lock);
    return ok;
}

const char *model_error(void) { return machine.error; }
const void *model_fault(void) { return machine.fault; }

model_machine *model_face(void) { return &machine.face; }
