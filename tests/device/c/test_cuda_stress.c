/* SPDX-License-Identifier: Apache-2.0
 *
 * Many launches of the cuda engine in a row, each with a cold L2 cache: no launch hangs, and O and LSE keep their bits.
 * One program for each way in which kernels read operands of pairs: none, packed row and key operands, a diagonal row,
 * a dense tensor. `make test-gpu` runs these launches on a device; ctest runs a few small ones on the GPU emulator.
 */
#define DEVICE_CUDA 1
#include "device_tensors.h"

enum { STRESS_RUNS = 300, STRESS_RUNS_STANDIN = 4, STRESS_WAIT = 50, STRESS_SIZE = 4096, STRESS_SIZE_STANDIN = 140 };
enum { STRESS_CACHE = 64 << 20 }; /* bytes, more than the L2 cache of any device */

static const char *const stress_texts[] = {
    "mask = k <= q",
    "tensor doc : i32[1]\nmask = doc[q] == doc[k]",
    "tensor t : f32[2]\nscore = score + t[h, q - k + 4096]\nmask = k <= q",
    "tensor w : bf16[4]\nscore = score + w[b, h, q, k]",
};
enum { STRESS_TEXTS = sizeof stress_texts / sizeof *stress_texts };

/* Both passes with tensors on the device. */
typedef struct stress {
    device *d;
    void *stream;
    fxa_context *ctx;
    attn_data x;
    attn_call call[2];
    fxa_plan *plan[2];
    side tensors;
    uintptr_t captured[2], cold;
    int size;
} stress;

static bool stress_data(stress *s, int text) {
    attn_spec spec = {.dtype = FXA_BF16, .flags = FXA_RETURN_LSE, .b = 1, .text = stress_texts[text]};
    s->size = device_is_standin() ? STRESS_SIZE_STANDIN : STRESS_SIZE;
    spec.hq = spec.hkv = device_is_standin() ? 2 : 16, spec.sq = spec.sk = s->size, spec.d = spec.dv = 128;
    const int64_t tensors[STRESS_TEXTS][4] = {
        {0}, {s->size}, {spec.hq, 2 * STRESS_SIZE}, {spec.b, spec.hq, s->size, (s->size + 7) / 8 * 8}};
    memcpy(spec.tensor[0], tensors[text], sizeof tensors[text]);
    if (!device_data_make(&s->x, s->ctx, &spec)) return false;
    s->x.backward_flags &= ~(uint32_t)FXA_DETERMINISTIC; /* dQ is added in any order */
    for (int64_t i = 0; text == 1 && i < s->size; i++) attn_set(&s->x.tensor[0], i, (double)(i * 5 / s->size));
    return true;
}

/* Allocates a captured tensor, or its gradient, on the device, and copies the contents. */
static uintptr_t stress_captured(const stress *s, const attn_tensor *t) {
    uintptr_t at = 0;
    T_INT(s->d->more.alloc(&at, side_bytes(t), s->stream), 0);
    if (at) T_INT(s->d->gpu.driver.copy_to(at, t->origin, side_bytes(t), s->stream), 0);
    return at;
}

static bool stress_begin(stress *s, device *d, int text) {
    fxa_error err;
    *s = (stress){.d = d, .ctx = t_context()};
    T_INT(d->more.stream_create(&s->stream, 0), 0);
    if (!stress_data(s, text)) return false;
    size_t workspace = 0;
    for (int i = 0; i < 2; i++) {
        device_call_make(&s->x, (fxa_pass)i, &s->call[i]);
        T_OK(fxa_plan_create(s->ctx, &s->call[i].p, &s->plan[i], &err));
        if (!s->plan[i]) return false;
        if (fxa_plan_workspace(s->plan[i]) > workspace) workspace = fxa_plan_workspace(s->plan[i]);
    }
    if (!side_make(&s->tensors, d, s->stream, &s->x, &s->call[1], workspace)) return false;
    fxa_args *forward = &s->call[0].args, *backward = &s->call[1].args;
    for (int i = 0; i < ATTN_SLOTS; i++) /* backward has all tensors that forward has */
        if (forward->slot[i]) forward->slot[i] = backward->slot[i];
    forward->workspace = backward->workspace, forward->workspace_size = backward->workspace_size;
    forward->stream = s->stream;
    if (s->x.n_tensors) {
        s->captured[0] = stress_captured(s, &s->x.tensor[0]);
        for (int i = 0; i < 2; i++) s->call[i].tensors[0] = (void *)s->captured[0];
    }
    if (s->x.n_tensors && s->call[1].dtensors[0]) {
        s->captured[1] = stress_captured(s, &s->x.dtensor[0]);
        s->call[1].dtensors[0] = (void *)s->captured[1];
    }
    T_INT(d->more.alloc(&s->cold, STRESS_CACHE, s->stream), 0);
    return s->cold != 0;
}

static void stress_end(stress *s) {
    side_give(&s->tensors, -1);
    for (int i = 0; i < 2; i++)
        if (s->captured[i]) T_INT(s->d->more.give(s->captured[i], s->stream), 0);
    if (s->cold) T_INT(s->d->more.give(s->cold, s->stream), 0);
    T_INT(s->d->gpu.driver.stream_wait(s->stream), 0);
    T_INT(s->d->more.stream_destroy(s->stream), 0);
    for (int i = 0; i < 2; i++) fxa_plan_destroy(s->plan[i]);
    attn_data_free(&s->x);
    fxa_context_destroy(s->ctx);
}

/* Runs forward and backward; every STRESS_WAIT runs, waits for the device and compares the outputs of forward. */
static void stress_run(stress *s, const char *text) {
    int runs = device_is_standin() ? STRESS_RUNS_STANDIN : STRESS_RUNS, wait = device_is_standin() ? 2 : STRESS_WAIT;
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    fxa_error err = {.status = FXA_OK};
    for (int i = 1; i <= runs && err.status == FXA_OK; i++) {
        T_INT(s->d->gpu.driver.fill(s->cold, (uint32_t)i, device_is_standin() ? 1 : STRESS_CACHE / 4, s->stream), 0);
        T_OK(fxa_plan_run(s->plan[0], &s->call[0].args, &err));
        if (err.status == FXA_OK) T_OK(fxa_plan_run(s->plan[1], &s->call[1].args, &err));
        if (i != 1 && i % wait) continue;
        alarm(DEVICE_SECONDS); /* ends the process if a launch hangs */
        side_get(&s->tensors, &s->x, FXA_FORWARD);
        alarm(0);
        const char *other = attn_other_bits(&s->x, FXA_FORWARD, &want);
        if (other) T_FAIL("%s: %s has other bits after %d runs\n", text, other, i);
    }
}

TEST(many_launches_with_a_cold_cache) {
    NEEDS_DEVICE;
    static stress s;
    device d;
    T_REQUIRE(device_open(&d));
    for (int i = 0; i < STRESS_TEXTS; i++) {
        if (stress_begin(&s, &d, i)) stress_run(&s, stress_texts[i]);
        stress_end(&s);
    }
    device_close(&d);
}

T_MAIN
