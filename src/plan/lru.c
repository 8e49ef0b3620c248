/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements lru.h: a hash table whose entries are also linked in the order of their last use, for the caches of a
 * context.
 */
#include "lru.h"

#include "../base/invariant.h"

#include <stdbool.h>
#include <string.h>

static size_t lru_bucket(const uint8_t key[16]) { return (key[0] | (size_t)key[1] << 8) % FXA__LRU_BUCKETS; }

/* Returns true if the node is linked in the order of last use. */
static bool lru_is_ordered(const fxa__lru *lru, const fxa__lru_node *node) {
    return node->newer || node->older || lru->newest == node;
}

static void lru_unlink(fxa__lru *lru, fxa__lru_node *node) {
    if (!lru_is_ordered(lru, node)) return;
    *(node->newer ? &node->newer->older : &lru->newest) = node->older;
    *(node->older ? &node->older->newer : &lru->oldest) = node->newer;
    FXA__ASSERT(lru->count > 0);
    node->newer = node->older = NULL;
    lru->count--;
}

fxa__lru_node *fxa__lru_find(const fxa__lru *lru, const uint8_t key[16]) {
    fxa__lru_node *node = lru->bucket[lru_bucket(key)];
    while (node && memcmp(node->key, key, 16) != 0) node = node->chain;
    return node;
}

void fxa__lru_insert(fxa__lru *lru, fxa__lru_node *node) {
    fxa__lru_node **bucket = &lru->bucket[lru_bucket(node->key)];
    FXA__ASSERT(!fxa__lru_find(lru, node->key));
    node->newer = node->older = NULL;
    node->chain = *bucket;
    *bucket = node;
}

void fxa__lru_touch(fxa__lru *lru, fxa__lru_node *node) {
    lru_unlink(lru, node);
    node->older = lru->newest;
    *(lru->newest ? &lru->newest->newer : &lru->oldest) = node;
    lru->newest = node;
    lru->count++;
}

void fxa__lru_remove(fxa__lru *lru, fxa__lru_node *node) {
    fxa__lru_node **at = &lru->bucket[lru_bucket(node->key)];
    while (*at != node) {
        FXA__ASSERT(*at); /* the node must be in the table */
        at = &(*at)->chain;
    }
    *at = node->chain;
    node->chain = NULL;
    lru_unlink(lru, node);
}

fxa__lru_node *fxa__lru_empty(fxa__lru *lru) {
    fxa__lru_node *all = NULL;
    while (lru->oldest) {
        fxa__lru_node *node = lru->oldest;
        fxa__lru_remove(lru, node);
        node->chain = all;
        all = node;
    }
    FXA__ASSERT(lru->count == 0 && !lru->newest);
    return all;
}
