/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous copies and products of the GPU emulator (model.h). Each thread has a queue for every kind of job (each
 * warp, for products). A job may complete at any time until a thread waits for it.
 */
#include "model_machine.h"

#include <stdlib.h>

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

/* Removes j from its queue; `before` is the job before j, NULL if j is the first. */
void job_drop(fiber_queue *q, fiber_job *before, fiber_job *j) {
    *(before ? &before->next : &q->first) = j->next;
    if (q->last == j) q->last = before;
    j->next = machine.unused;
    machine.unused = j;
}

void machine_later(const model_job *job) {
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

void machine_commit(int kind) { job_owner(kind)->group[kind]++; }

/* Completes jobs in the order in which they were started. */
void machine_await(int kind, int pending) {
    fiber *f = job_owner(kind);
    fiber_queue *q = &f->queue[kind];
    while (q->first && q->first->job.group < f->group[kind] - pending) {
        job_do(q->first);
        job_drop(q, NULL, q->first);
    }
}

/* Completes one of the first few jobs of a queue, for products the first incomplete one. Returns false if there is
 * none. */
static bool queue_arrive(fiber_queue *q, int kind) {
    fiber_job *before = NULL, *j = q->first;
    int far = kind == MODEL_PRODUCT ? 0 : machine_draw(8);
    while (j && (j->done || (far > 0 && j->next && !j->next->done))) far -= !j->done, before = j, j = j->next;
    if (!j) return false;
    job_do(j);
    if (!job_stays(kind)) job_drop(q, before, j);
    return true;
}

bool machine_arrive(bool needed) {
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

void machine_end_all(void) {
    static const char *const names[MODEL_KINDS] = {"loads", "stores", "", "products"};
    for (int i = 0; i < machine.n_threads; i++) {
        fiber *f = &machine.fibers[i];
        while (f->queue[MODEL_COPY].first) (void)queue_arrive(&f->queue[MODEL_COPY], MODEL_COPY);
        for (int kind = 0; kind < MODEL_KINDS; kind++)
            if (f->queue[kind].first) machine_fail("%s of thread %d that nobody waited for", names[kind], i);
    }
}
