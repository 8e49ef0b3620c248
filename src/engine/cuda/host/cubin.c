/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds kernels and constants of a cubin by name. A cubin is a 64-bit little-endian ELF file. Every offset is checked,
 * because the cubin may come from plan bytes. Reading the file needs no device.
 */
#include "../cuda.h"

#include <string.h>

/* Offsets and sizes of the ELF format. */
enum {
    CUBIN_HEADER = 64,
    CUBIN_SECTIONS = 0x28, /* position in the file's header of the offset of the section headers */
    CUBIN_SECTION_SIZE = 0x3a,
    CUBIN_SECTION_COUNT = 0x3c,
    CUBIN_SECTION = 64, /* bytes of a section header */
    CUBIN_TYPE = 4,
    CUBIN_OFFSET = 0x18,
    CUBIN_SIZE = 0x20,
    CUBIN_LINK = 0x28,
    CUBIN_SYMTAB = 2, /* section types */
    CUBIN_NOBITS = 8,
    CUBIN_SYMBOL = 24, /* bytes of a symbol */
    CUBIN_SYMBOL_SECTION = 6,
    CUBIN_SYMBOL_VALUE = 8,
    CUBIN_SYMBOL_SIZE = 16
};

typedef struct cubin_part {
    const uint8_t *data;
    size_t size;
} cubin_part;

static uint64_t cubin_read(const uint8_t *at, int bytes) {
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | at[i];
    return x;
}

/* Returns the header of section `index`; NULL = the file has no such section. */
static const uint8_t *cubin_header(cubin_part file, uint64_t index) {
    uint64_t first = cubin_read(file.data + CUBIN_SECTIONS, 8), count = cubin_read(file.data + CUBIN_SECTION_COUNT, 2);
    if (cubin_read(file.data + CUBIN_SECTION_SIZE, 2) != CUBIN_SECTION || index >= count) return NULL;
    if (first > file.size || (file.size - first) / CUBIN_SECTION < count) return NULL;
    return file.data + first + index * CUBIN_SECTION;
}

static bool cubin_section(cubin_part file, uint64_t index, cubin_part *out) {
    const uint8_t *header = cubin_header(file, index);
    if (!header || cubin_read(header + CUBIN_TYPE, 4) == CUBIN_NOBITS) return false;
    uint64_t offset = cubin_read(header + CUBIN_OFFSET, 8), size = cubin_read(header + CUBIN_SIZE, 8);
    if (offset > file.size || size > file.size - offset) return false;
    *out = (cubin_part){file.data + offset, (size_t)size};
    return true;
}

static bool cubin_is_named(cubin_part strings, const uint8_t *symbol, const char *name) {
    uint64_t at = cubin_read(symbol, 4);
    size_t n = strlen(name) + 1;
    return at < strings.size && strings.size - at >= n && memcmp(strings.data + at, name, n) == 0;
}

static const uint8_t *cubin_symbol(cubin_part file, cubin_part table, cubin_part strings, const char *name,
                                   size_t *bytes) {
    cubin_part section;
    for (size_t at = 0; at + CUBIN_SYMBOL <= table.size; at += CUBIN_SYMBOL) {
        const uint8_t *symbol = table.data + at;
        if (!cubin_is_named(strings, symbol, name)) continue;
        uint64_t value = cubin_read(symbol + CUBIN_SYMBOL_VALUE, 8), size = cubin_read(symbol + CUBIN_SYMBOL_SIZE, 8);
        if (!cubin_section(file, cubin_read(symbol + CUBIN_SYMBOL_SECTION, 2), &section)) return NULL;
        if (value > section.size || size > section.size - value) return NULL;
        *bytes = (size_t)size;
        return section.data + value;
    }
    return NULL;
}

const uint8_t *fxa__cuda_cubin_find(const uint8_t *cubin, size_t size, const char *name, size_t *bytes) {
    const cubin_part file = {cubin, size};
    cubin_part table, strings;
    if (size < CUBIN_HEADER || memcmp(cubin, "\177ELF\2\1", 6) != 0) return NULL;
    for (uint64_t i = 0; cubin_header(file, i); i++) {
        const uint8_t *header = cubin_header(file, i);
        if (cubin_read(header + CUBIN_TYPE, 4) != CUBIN_SYMTAB || !cubin_section(file, i, &table)) continue;
        if (!cubin_section(file, cubin_read(header + CUBIN_LINK, 4), &strings)) return NULL;
        return cubin_symbol(file, table, strings, name, bytes);
    }
    return NULL;
}
