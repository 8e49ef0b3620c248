/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products by AMX tiles, and the state of the tiles. The process requests permission for tile registers from the
 * operating system once. Each thread sets the shapes of its tiles before its products, and releases the tiles after
 * them, so that they are not saved while the thread sleeps.
 */
#define _DEFAULT_SOURCE 1 /* declares syscall */

#include "bf16.h"

#include "../../../base/num.h"

#include <immintrin.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Barrier for compilers that do not model AMX loads as memory reads: stores before the barrier are complete when a tile
 * is loaded. */
#define AMX_MEMORY __asm__ volatile("" ::: "memory")
#define AMX_ZERO(t) _tile_zero(t)
#define AMX_LOAD(t, p, bytes)                                                                                          \
    do {                                                                                                               \
        AMX_MEMORY;                                                                                                    \
        _tile_loadd(t, p, bytes);                                                                                      \
    } while (0)
#define AMX_STORE(t, p, bytes)                                                                                         \
    do {                                                                                                               \
        _tile_stored(t, p, bytes);                                                                                     \
        AMX_MEMORY;                                                                                                    \
    } while (0)
#define AMX_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#define AMX_FUNCTION(name) void fxa__amx_##name
#include "body/amx.inc"

bool fxa__amx_permit(void) {
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* Operand of LDTILECFG: palette 1, bytes per row of each tile, and rows of each tile. */
typedef struct amx_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} amx_shapes;
_Static_assert(sizeof(amx_shapes) == 64, "as the processor reads it");

void fxa__amx_enter(void) {
    _Alignas(64) amx_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = AMX_WORDS * 4, shapes.rows[i] = AMX_MR;
    AMX_MEMORY;
    _tile_loadconfig(&shapes);
}

void fxa__amx_leave(void) { _tile_release(); }
