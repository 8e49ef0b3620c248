/* SPDX-License-Identifier: Apache-2.0
 *
 * Hash table with least-recently-used order, for the caches of a context. It is intrusive: nodes are part of the
 * entries of their owner, so nothing here allocates or fails. Keys are BLAKE2s digests, whose first bits select the
 * bucket. A node is in the table from insert to remove, but in the order of use only after its first touch: an
 * untouched node (a plan being built) is never the oldest. The owner provides the lock.
 */
#ifndef FXA_PLAN_LRU_H
#define FXA_PLAN_LRU_H

#include <stddef.h>
#include <stdint.h>

/* Number of buckets. It is fixed, so that a lookup under a lock never rehashes; with thousands of entries a bucket has
 * a few nodes. */
#define FXA__LRU_BUCKETS 1024

typedef struct fxa__lru_node {
    uint8_t key[16];
    struct fxa__lru_node *chain;         /* next node of the bucket */
    struct fxa__lru_node *newer, *older; /* neighbours in the order of use; NULL: end of the order, or not in it */
} fxa__lru_node;

typedef struct fxa__lru {
    fxa__lru_node *bucket[FXA__LRU_BUCKETS];
    fxa__lru_node *newest, *oldest;
    size_t count; /* number of nodes in the order */
} fxa__lru;

/* Returns the node with this key, NULL = none. The order does not change. */
fxa__lru_node *fxa__lru_find(const fxa__lru *lru, const uint8_t key[16]);
void fxa__lru_insert(fxa__lru *lru, fxa__lru_node *node); /* adds a node; node->key is set and not in the table */
void fxa__lru_touch(fxa__lru *lru, fxa__lru_node *node);  /* makes the node the newest */
void fxa__lru_remove(fxa__lru *lru, fxa__lru_node *node);
/* Removes all nodes of the order; returns them linked by `chain`, NULL = none. */
fxa__lru_node *fxa__lru_empty(fxa__lru *lru);

#endif
