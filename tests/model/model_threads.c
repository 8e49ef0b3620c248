/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the GPU emulator (model.h): fibers, what they wait for, exchanges between lanes, register counts. A fiber
 * that waits switches to the scheduler (model_machine.c); the fiber that ends the wait marks it as ready. A fiber that
 * fails switches to the host's stack.
 */
#define _GNU_SOURCE
#include "model_machine.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Fibers ------------------------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
/* Saves the registers that a call preserves, and switches the stack. */
__asm__(".text\n.globl model_switch\n.hidden model_switch\n.type model_switch,@function\nmodel_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov (%rsi), %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size model_switch,.-model_switch\n");

void fiber_make(fiber_context *context, char *stack, void (*entry)(void)) {
    void **top = (void **)(stack + FIBER_STACK) - 8; /* words that model_switch pops; aligned as after a call */
    memset(top, 0, 8 * sizeof *top);
    memcpy(&top[6], &entry, sizeof entry);
    *context = top;
}
#else
void model_switch(fiber_context *from, const fiber_context *to) { (void)swapcontext(from, to); }

void fiber_make(fiber_context *context, char *stack, void (*entry)(void)) {
    (void)getcontext(context);
    context->uc_stack.ss_sp = stack, context->uc_stack.ss_size = FIBER_STACK, context->uc_link = NULL;
    makecontext(context, entry, 0);
}
#endif

uint32_t machine_random(void) {
    machine.state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = machine.state;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 32);
}

int machine_draw(int n) { return (int)(machine_random() % (uint32_t)n); }

/* Returns the name of the running kernel, by the symbol that model_module.c found. */
static const char *machine_kernel(void) {
    static const char before[] = "model_run_";
    Dl_info info;
    void *run = NULL;
    memcpy(&run, &machine.run, sizeof run);
    bool found = run && dladdr(run, &info) && info.dli_sname && !strncmp(info.dli_sname, before, sizeof before - 1);
    return found ? info.dli_sname + sizeof before - 1 : "a kernel";
}

void machine_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    const model_dim t = machine.face.thread, b = machine.face.block;
    int n = snprintf(machine.error, sizeof machine.error, "%s, CTA %u,%u,%u, thread %u,%u,%u: ", machine_kernel(), b.x,
                     b.y, b.z, t.x, t.y, t.z);
    (void)vsnprintf(machine.error + n, sizeof machine.error - (size_t)n, format, args);
    va_end(args);
    fiber_context left;
    model_switch(&left, &machine.host);
    abort(); /* never reached: no fiber switches back */
}

void fiber_leave(fiber_wait wait) {
    fiber *f = fiber_now();
    f->wait = wait;
    model_switch(&f->context, &machine.scheduler);
}

void fiber_enter(int i) {
    fiber *f = &machine.fibers[i];
    machine.face.number = i;
    machine.face.thread = f->thread;
    f->wait = FIBER_READY;
    model_switch(&machine.scheduler, &f->context);
}

char *fiber_stack(void) {
    void *stack = mmap(NULL, FIBER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) return NULL;
    (void)mprotect(stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE); /* an overflow of the stack faults */
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

/* Returns the meeting of these lanes, or an unused one. There is always one, since meetings have disjoint lanes. */
static fiber_meeting *meeting_find(fiber_warp *w, uint32_t mask) {
    for (uint32_t left = w->active; left; left &= left - 1)
        if (w->meeting[__builtin_ctz(left)].mask == mask) return &w->meeting[__builtin_ctz(left)];
    const int unused = __builtin_ctz(~w->active);
    w->active |= UINT32_C(1) << unused;
    return &w->meeting[unused];
}

void machine_meet(uint32_t mask, void *mine, void (*all)(void **slot, uint32_t mask)) {
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

void machine_barrier(int id, int threads, int whole, int wait) {
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

void machine_look(const uint32_t *word, uint32_t mask, uint32_t same) {
    fiber *f = fiber_now();
    if ((*word & mask) != same) return;
    f->word = word, f->mask = mask, f->same = same;
    warp_now()->looks |= UINT32_C(1) << machine.face.number % MODEL_WARP;
    fiber_leave(FIBER_LOOKS);
}

void machine_hide(bool hidden) {
    if (!machine.hide || machine.hidden == hidden) return;
    machine.hidden = hidden;
    machine.hide(hidden);
}

void machine_launched(int waits) {
    machine_hide(false);
    if (waits) fiber_now()->launched = true;
}

/* Body of a fiber: runs the kernel, then ends the thread; threads that waited only for this one become ready. */
void fiber_main(void) {
    machine.run(machine.params);
    if (!fiber_now()->launched) machine_fail("a thread that has not waited for the launch before");
    fiber_warp *w = warp_now();
    machine.n_done++;
    w->gone |= UINT32_C(1) << machine.face.number % MODEL_WARP;
    for (int i = 0; i < MODEL_WARP; i++) (void)meeting_end(&w->meeting[i], w);
    for (int i = 0; i < MODEL_BARRIERS; i++)
        if (!machine.barriers[i].threads) (void)barrier_end(&machine.barriers[i]);
    fiber_leave(FIBER_DONE);
    abort(); /* never reached: no fiber switches back */
}

/* ---- Registers --------------------------------------------------------------------------------------------------- */

void machine_mix(uint64_t x) {
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

void machine_registers(int count, int up) {
    if (count % 8 || count < 24 || count > 256) machine_fail("%d registers of a thread", count);
    if (machine.face.number % MODEL_WARP == 0) machine_mix((uint64_t)count << 1 | (uint64_t)(up != 0));
    machine_meet(~UINT32_C(0), &count, up ? registers_up_meets : registers_down_meets);
    registers_grant();
    fiber_warp *w = warp_now();
    if (w->asks) machine_look(&w->asks, ~UINT32_C(0), w->asks);
}
