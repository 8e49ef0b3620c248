/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of the cuDNN stand-in as text: its version and the graph in hexadecimal digits. Like the real cuDNN, the
 * stand-in accepts only plans of its own version.
 */
#include "standin_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAVED_HEAD "{\"cudnnVersion\":91901,\"graph\":\""
#define SAVED_TAIL "\"}"

typedef struct saved_part {
    void *data;
    size_t size;
} saved_part;

/* Lists the parts of a graph that are in use. */
static void saved_parts(standin_graph *g, saved_part part[3]) {
    part[0] = (saved_part){&g->n_tensors, 2 * sizeof g->n_tensors};
    part[1] = (saved_part){g->tensor, (size_t)g->n_tensors * sizeof *g->tensor};
    part[2] = (saved_part){g->op, (size_t)g->n_ops * sizeof *g->op};
}

int64_t standin_saved_size(const standin_graph *g) {
    saved_part part[3];
    saved_parts((standin_graph *)(uintptr_t)g, part);
    return (int64_t)(sizeof SAVED_HEAD + sizeof SAVED_TAIL - 2 + 2 * (part[0].size + part[1].size + part[2].size));
}

void standin_saved_write(const standin_graph *g, char *out) {
    saved_part part[3];
    saved_parts((standin_graph *)(uintptr_t)g, part);
    memcpy(out, SAVED_HEAD, sizeof SAVED_HEAD - 1);
    out += sizeof SAVED_HEAD - 1;
    for (int i = 0; i < 3; i++)
        for (size_t j = 0; j < part[i].size; j++, out += 2) {
            unsigned char byte = ((const unsigned char *)part[i].data)[j];
            out[0] = "0123456789abcdef"[byte >> 4], out[1] = "0123456789abcdef"[byte & 15];
        }
    memcpy(out, SAVED_TAIL, sizeof SAVED_TAIL - 1);
}

static bool saved_read_part(const char **at, const char *end, saved_part part) {
    static const char digits[] = "0123456789abcdef";
    for (size_t j = 0; j < part.size; j++, *at += 2) {
        if (end - *at < 2 || !(*at)[0] || !(*at)[1]) return false;
        const char *high = strchr(digits, (*at)[0]), *low = strchr(digits, (*at)[1]);
        if (!high || !low) return false;
        ((unsigned char *)part.data)[j] = (unsigned char)((high - digits) << 4 | (low - digits));
    }
    return true;
}

standin_graph *standin_saved_read(const char *text, int64_t n) {
    standin_graph *g = calloc(1, sizeof *g);
    const char *at = text + sizeof SAVED_HEAD - 1, *end = text + n;
    saved_part part[3];
    if (!g) abort();
    saved_parts(g, part);
    bool ok = n > (int64_t)sizeof SAVED_HEAD && memcmp(text, SAVED_HEAD, sizeof SAVED_HEAD - 1) == 0;
    ok = ok && saved_read_part(&at, end, part[0]) && g->n_tensors >= 0 && g->n_tensors <= STANDIN_TENSORS &&
         g->n_ops >= 0 && g->n_ops <= STANDIN_OPS;
    if (ok) saved_parts(g, part);
    ok = ok && saved_read_part(&at, end, part[1]) && saved_read_part(&at, end, part[2]);
    ok = ok && end - at == (ptrdiff_t)sizeof SAVED_TAIL - 1 && memcmp(at, SAVED_TAIL, sizeof SAVED_TAIL - 1) == 0;
    if (ok) return g;
    free(g);
    return NULL;
}
