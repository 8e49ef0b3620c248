/* SPDX-License-Identifier: Apache-2.0
 *
 * Clusters of the GPU emulator (model.h). CTAs still run one after the other. When all threads of a CTA wait at the
 * cluster barrier, the CTA is suspended and its shared memory saved, and the other CTAs of the cluster run to the same
 * barrier; then each CTA continues in turn. CTAs read each other's shared memory from the saved copies. The size of the
 * cluster is an argument of its barrier.
 */
#include "model_machine.h"

#include <stdlib.h>
#include <string.h>

typedef struct cluster_cta {
    fiber fibers[MODEL_THREADS];
    fiber_warp warps[MODEL_WARPS];
    fiber_barrier barriers[MODEL_BARRIERS];
    int n_done, n_jobs, free_registers;
    _Alignas(16) uint8_t shared[MODEL_SHARED + MACHINE_ALIGN]; /* dynamic */
    uint64_t written[MODEL_SHARED / MODEL_CHUNK + 1];
    uint32_t now, fenced[MODEL_THREADS];
    bool aside, ended;
} cluster_cta;

static cluster_cta *cluster; /* MODEL_CLUSTER of them */

static void cluster_meets(void **slot, uint32_t mask) { (void)slot, (void)mask; }

void machine_cluster(int ctas) {
    if (ctas < 2 || ctas > MODEL_CLUSTER) machine_fail("a cluster of %d CTAs", ctas);
    if (machine.cluster && machine.cluster != ctas)
        machine_fail("a cluster of %d CTAs, and of %d", machine.cluster, ctas);
    machine_meet(~UINT32_C(0), NULL, cluster_meets);
    machine.cluster = ctas;
    machine.n_aside++;
    fiber_leave(FIBER_CLUSTER);
}

const uint8_t *machine_near(int rank) {
    if (!machine.cluster) machine_fail("shared memory of another CTA before the cluster has met");
    if (rank < 0 || rank >= machine.cluster) machine_fail("CTA %d of a cluster of %d", rank, machine.cluster);
    if (rank == (int)(machine.face.block.x % (unsigned)machine.cluster)) return machine.face.shared;
    if (cluster[rank].ended) machine_fail("shared memory of CTA %d of the cluster, which has ended", rank);
    return cluster[rank].shared;
}

static void cluster_swap(cluster_cta *c) {
    for (int i = 0; i < machine.n_threads; i++) {
        fiber f = machine.fibers[i];
        machine.fibers[i] = c->fibers[i];
        c->fibers[i] = f;
    }
}

/* Exchanges the state of the running CTA with that of a suspended CTA: saves it if `aside`, else restores it. */
static void cluster_move(cluster_cta *c, bool aside) {
    model_machine *f = &machine.face;
    const size_t chunks = (f->shared_bytes + MODEL_CHUNK - 1) / MODEL_CHUNK;
#define MOVE(x, y, bytes) memcpy(aside ? (void *)(y) : (void *)(x), aside ? (void *)(x) : (void *)(y), bytes)
    cluster_swap(c);
    MOVE(machine.warps, c->warps, sizeof c->warps);
    MOVE(machine.barriers, c->barriers, sizeof c->barriers);
    MOVE(&machine.n_done, &c->n_done, sizeof c->n_done);
    MOVE(&machine.n_jobs, &c->n_jobs, sizeof c->n_jobs);
    MOVE(&machine.free_registers, &c->free_registers, sizeof c->free_registers);
    MOVE(f->shared, c->shared, f->shared_bytes);
    MOVE(f->written, c->written, chunks * sizeof *f->written);
    MOVE(&f->now, &c->now, sizeof f->now);
    MOVE(f->fenced, c->fenced, sizeof f->fenced);
#undef MOVE
    c->aside = aside;
}

/* Called when the running CTA has come to the cluster barrier or has ended. */
static void cluster_stop(cluster_cta *c) {
    c->ended = !machine_is_aside();
    if (c->ended) {
        machine_look_after();
        return;
    }
    if (machine.n_statics) machine_fail("static shared memory in a cluster: not modelled");
    cluster_move(c, true);
}

static void cluster_go_on(cluster_cta *c) {
    cluster_move(c, false);
    machine.n_aside = 0;
    for (int i = 0; i < machine.n_threads; i++)
        if (machine.fibers[i].wait == FIBER_CLUSTER)
            machine.warps[i / MODEL_WARP].ready |= UINT32_C(1) << i % MODEL_WARP;
    machine_block();
    cluster_stop(c);
}

void machine_cluster_run(bool *seen, uint64_t all, uint64_t at) {
    const int n = machine.cluster, mine = (int)(at % (uint64_t)n);
    const uint64_t first = at - (uint64_t)mine;
    if (first + (uint64_t)n > all || machine.face.grid.x % (unsigned)n)
        machine_fail("clusters of %d CTAs in a grid of %u", n, machine.face.grid.x);
    if (!cluster && !(cluster = calloc(MODEL_CLUSTER, sizeof *cluster))) machine_fail("no memory for a cluster");
    for (int i = 0; i < n; i++) cluster[i].aside = cluster[i].ended = false;
    cluster_stop(&cluster[mine]);
    for (int i = 1; i < n; i++) {
        const int rank = (mine + i) % n;
        seen[first + (uint64_t)rank] = true;
        machine_cta(first + (uint64_t)rank);
        cluster_stop(&cluster[rank]);
    }
    for (bool any = true; any;) {
        any = false;
        for (int i = 0, from = machine_draw(n); i < n; i++) {
            cluster_cta *c = &cluster[(from + i) % n];
            if (!c->aside) continue;
            machine_place(first + (uint64_t)((from + i) % n));
            cluster_go_on(c);
            any = true;
        }
    }
    machine.cluster = 0;
}
