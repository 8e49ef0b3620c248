/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table whose entries are also linked in the order of their last use, for the caches of a context. A node is a
 * member of a struct that the caller allocates, so no function here allocates memory or fails. Keys are hashes of 16
 * bytes, the first two of which select the bucket. A node is in the table from insert to remove. The node enters the
 * order of last use at its first touch: a node that was never touched (a plan that is being built) is never the oldest
 * one. The caller locks the table.
 */
#ifndef FXA_PLAN_LRU_H
#define FXA_PLAN_LRU_H

#include <stddef.h>
#include <stdint.h>

/* Number of buckets. The number is fixed, so that a lookup under a lock never rehashes. With thousands of entries a
 * bucket has a few nodes. */
#define FXA__LRU_BUCKETS 1024

typedef struct fxa__lru_node {
    uint8_t key[16];
    struct fxa__lru_node *chain; /* next node in the same bucket */
    /* neighbours in the order of last use; NULL = there is no such neighbour, or the node is not in the order */
    struct fxa__lru_node *newer, *older;
} fxa__lru_node;

typedef struct fxa__lru {
    fxa__lru_node *bucket[FXA__LRU_BUCKETS];
    fxa__lru_node *newest, *oldest;
    size_t count; /* number of nodes in the order of last use */
} fxa__lru;

/* Returns the node with this key; NULL if there is none. Does not change the order of last use. */
fxa__lru_node *fxa__lru_find(const fxa__lru *lru, const uint8_t key[16]);
/* Adds a node to the table. node->key must be set, and no node in the table may have this key. */
void fxa__lru_insert(fxa__lru *lru, fxa__lru_node *node);
/* Makes the node the newest in the order of last use. */
void fxa__lru_touch(fxa__lru *lru, fxa__lru_node *node);
void fxa__lru_remove(fxa__lru *lru, fxa__lru_node *node);
/* Removes all nodes that are in the order of last use. Returns the removed nodes, linked by `chain`; NULL if there are
 * none. */
fxa__lru_node *fxa__lru_empty(fxa__lru *lru);

#endif
