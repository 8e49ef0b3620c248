/* SPDX-License-Identifier: Apache-2.0
 *
 * BLAKE2s (RFC 7693), unkeyed: used for every content hash of the library. The hash must be cryptographic because plan
 * bytes may come from an untrusted source, and a forged collision would select a wrong plan.
 */
#ifndef FXA_BASE_BLAKE2S_H
#define FXA_BASE_BLAKE2S_H

#include <stddef.h>
#include <stdint.h>

typedef struct fxa__blake2s {
    uint32_t h[8];
    uint64_t count;
    uint8_t block[64];
    uint32_t fill, out_size;
} fxa__blake2s;

void fxa__blake2s_start(fxa__blake2s *s, uint32_t out_size); /* out_size: size of the hash in bytes, 1 to 32 */
void fxa__blake2s_add(fxa__blake2s *s, const void *data, size_t size);
void fxa__blake2s_end(fxa__blake2s *s, uint8_t *out); /* writes out_size bytes */
void fxa__blake2s_128(const void *data, size_t size, uint8_t out[16]);

#endif
