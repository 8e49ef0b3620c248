/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a call in device memory, for tests that call fxa_plan_run with pointers of the device.
 */
#ifndef FXA_TESTS_DEVICE_TENSORS_H
#define FXA_TESTS_DEVICE_TENSORS_H

#include "device_driver.h"
#include "device_fixture.h"

/* Tensors of a call in device memory, with one stream-ordered allocation each. */
typedef struct side {
    device *d;
    void *stream;
    uintptr_t slot[ATTN_SLOTS], workspace;
    size_t bytes[ATTN_SLOTS], workspace_bytes;
} side;

static size_t side_bytes(const attn_tensor *t) { return (size_t)attn_tensor_places(t) * fxa_dtype_size(t->dtype); }

static void side_put(const side *s, const attn_data *x, int slot) {
    T_INT(s->d->gpu.driver.copy_to(s->slot[slot], x->t[slot].origin, s->bytes[slot], s->stream), 0);
    T_INT(s->d->gpu.driver.stream_wait(s->stream), 0);
}

static bool side_make(side *s, device *d, void *stream, const attn_data *x, attn_call *call, size_t workspace) {
    memset(s, 0, sizeof *s);
    s->d = d, s->stream = stream, s->workspace_bytes = workspace + FXA_WORKSPACE_ALIGN;
    int status = d->more.alloc(&s->workspace, s->workspace_bytes, stream);
    for (int i = 0; i < ATTN_SLOTS && status == 0; i++) {
        if (!call->args.slot[i]) continue;
        s->bytes[i] = side_bytes(&x->t[i]);
        status = d->more.alloc(&s->slot[i], s->bytes[i], stream);
        if (status == 0) side_put(s, x, i);
        call->args.slot[i] = (void *)s->slot[i];
    }
    call->args.workspace = workspace ? (void *)s->workspace : NULL, call->args.workspace_size = workspace;
    call->args.stream = stream;
    T_INT(status, 0);
    return status == 0;
}

/* Frees the tensor of one slot, or all remaining tensors. */
__attribute__((unused)) static void side_give(side *s, int slot) {
    for (int i = 0; i < ATTN_SLOTS; i++)
        if (s->slot[i] && (slot < 0 || slot == i)) {
            T_INT(s->d->more.give(s->slot[i], s->stream), 0);
            s->slot[i] = 0;
        }
    if (slot < 0 && s->workspace) {
        T_INT(s->d->more.give(s->workspace, s->stream), 0);
        s->workspace = 0;
    }
}

__attribute__((unused)) static void side_poison(const side *s, attn_data *x, fxa_pass pass) {
    const attn_tensor *t;
    for (int i = 0; (t = attn_output(x, pass, i)); i++) {
        size_t slot = (size_t)(t - x->t);
        T_INT(s->d->gpu.driver.fill(s->slot[slot], 0xffffffffu, s->bytes[slot] / 4, s->stream), 0);
    }
}

/* Copies the outputs from the device to x. */
static void side_get(const side *s, attn_data *x, fxa_pass pass) {
    const attn_tensor *t;
    for (int i = 0; (t = attn_output(x, pass, i)); i++) {
        size_t slot = (size_t)(t - x->t);
        T_INT(s->d->gpu.driver.copy_from(t->origin, s->slot[slot], s->bytes[slot], s->stream), 0);
    }
    T_INT(s->d->gpu.driver.stream_wait(s->stream), 0);
}

__attribute__((unused)) static bool side_is_poisoned(const side *s, attn_data *x, fxa_pass pass) {
    const attn_tensor *t;
    bool same = true;
    side_get(s, x, pass);
    for (int i = 0; (t = attn_output(x, pass, i)); i++)
        for (size_t j = 0; j < side_bytes(t); j++) same = same && t->origin[j] == 0xff;
    return same;
}

#endif
