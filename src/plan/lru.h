/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table with an order of use, for both caches of a context. Intrusive: nodes live inside the entries of their
 * owner, so nothing here allocates or fails. Keys are BLAKE2s digests: their first bits are the bucket. A node is in
 * the table from insert to remove; it takes part in the order only once it has been touched, so what has never been
 * touched (a plan that is still being built) is never the oldest. No lock: the owner's.
 */
#ifndef FXA_PLAN_LRU_H
#define FXA_PLAN_LRU_H

#include <stddef.h>
#include <stdint.h>

/* Fixed, so that a lookup under a lock never rehashes; thousands of entries still mean chains of a few nodes. */
#define FXA__LRU_BUCKETS 1024

typedef struct fxa__lru_node {
    uint8_t key[16];
    struct fxa__lru_node *chain;         /* next of the bucket */
    struct fxa__lru_node *newer, *older; /* NULL at the ends, and while not in the order */
} fxa__lru_node;

typedef struct fxa__lru {
    fxa__lru_node *bucket[FXA__LRU_BUCKETS];
    fxa__lru_node *newest, *oldest;
    size_t count; /* of nodes in the order */
} fxa__lru;

fxa__lru_node *fxa__lru_find(const fxa__lru *lru, const uint8_t key[16]); /* NULL: none; the order stays */
void fxa__lru_insert(fxa__lru *lru, fxa__lru_node *node);                 /* node->key is set and not in the table */
void fxa__lru_touch(fxa__lru *lru, fxa__lru_node *node);                  /* makes it the newest */
void fxa__lru_remove(fxa__lru *lru, fxa__lru_node *node);
fxa__lru_node *fxa__lru_empty(fxa__lru *lru); /* removes all nodes of the order: chained, NULL when there is none */

#endif
