/* SPDX-License-Identifier: Apache-2.0
 *
 * Records which bytes of device memory were written (model.h): one byte of state per byte, found by the address in two
 * table lookups, because kernels query it at every access. If the tables cannot be allocated, accesses are not
 * checked.
 */
#include "model_machine.h"

#include <stdlib.h>
#include <string.h>

static const size_t known_page = (size_t)1 << MODEL_PAGE;

/* Returns the table entry for the page of an address; NULL if the address has no table. */
static uint8_t **known_slot(uintptr_t at) {
    model_machine *f = &machine.face;
    const uintptr_t region = at >> MODEL_REGION, pages = (uintptr_t)1 << (MODEL_REGION - MODEL_PAGE);
    if (!f->known) f->known = calloc(MODEL_REGIONS, sizeof *f->known);
    if (!f->known || region >= MODEL_REGIONS) return NULL;
    if (!f->known[region]) f->known[region] = calloc(pages, sizeof **f->known);
    return f->known[region] ? &f->known[region][at >> MODEL_PAGE & (pages - 1)] : NULL;
}

void model_know_memory(const void *from, size_t bytes) {
    const char *check = getenv("FXA_MODEL_CHECK");
    if (!check || !*check) return;
    for (size_t i = 0; i < bytes; i += known_page) {
        uint8_t **slot = known_slot((uintptr_t)from + i);
        if (slot && !*slot) *slot = malloc(known_page);
        if (slot && *slot) memset(*slot, 0, known_page);
    }
}

void model_know_written(const void *from, size_t bytes) {
    const uintptr_t end = (uintptr_t)from + bytes;
    for (uintptr_t at = (uintptr_t)from, next; at < end; at = next) {
        next = (at / known_page + 1) * known_page;
        if (next > end) next = end;
        uint8_t *known = model_known(&machine.face, at);
        if (known) memset(known, 1, next - at);
    }
}

void model_know_nothing(const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes && machine.face.known; i += known_page) {
        uint8_t **slot = known_slot((uintptr_t)from + i);
        if (!slot) continue;
        free(*slot);
        *slot = NULL;
    }
}
