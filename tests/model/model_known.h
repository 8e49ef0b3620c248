/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects reads of device memory that was never written, like compute-sanitizer's initcheck. In checked code
 * (FXA_MODEL_CHECK) the compiler calls the functions below at every load and store that may leave the stack:
 * -fsanitize=thread inserts these calls, and nothing else of that sanitizer is linked. Stores are recorded in the
 * tables of model.h, and a load of an unwritten byte ends the launch. Reads through tensor maps are not checked,
 * because boxes include rows outside of every sequence, which kernels set to 0 in shared memory.
 *
 * The message names the kernel and the address in its code, for addr2line: unit.so in the folder that FXA_MODEL_KEEP=1
 * keeps. Line numbers need a compiler in FXA_MODEL_CXX that adds -g.
 */
#ifndef FXA_TESTS_MODEL_KNOWN_H
#define FXA_TESTS_MODEL_KNOWN_H

#ifdef MODEL_CHECKED
/* Address at which the library of this source is loaded; defined by the linker. */
extern "C" const char __ehdr_start __attribute__((visibility("hidden")));

#define MODEL_CALLED(result, name, ...)                                                                                \
    extern "C" inline __attribute__((used, noinline, no_sanitize("thread"))) result __tsan_##name(__VA_ARGS__)
#define MODEL_CALLER ((size_t)((const char *)__builtin_return_address(0) - &__ehdr_start))

MODEL_UNSEEN static inline void model_read(const void *from, size_t bytes, size_t by) {
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t *known = model_known(model, (uintptr_t)from + i);
        if (!known) return;
        if (!*known)
            model->fail("%zu bytes of device memory at %p, byte %zu of which nobody has written, are read at %#zx",
                        bytes, from, i, by);
    }
}

MODEL_UNSEEN static inline void model_write(const void *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        uint8_t *known = model_known(model, (uintptr_t)to + i);
        if (!known) return;
        *known = 1;
    }
}

#define MODEL_CALLED_OF(bytes)                                                                                         \
    MODEL_CALLED(void, read##bytes, void *at) { model_read(at, bytes, MODEL_CALLER); }                                 \
    MODEL_CALLED(void, unaligned_read##bytes, void *at) { model_read(at, bytes, MODEL_CALLER); }                       \
    MODEL_CALLED(void, write##bytes, void *at) { model_write(at, bytes); }                                             \
    MODEL_CALLED(void, unaligned_write##bytes, void *at) { model_write(at, bytes); }
/* clang-format off */
MODEL_CALLED_OF(1) MODEL_CALLED_OF(2) MODEL_CALLED_OF(4) MODEL_CALLED_OF(8) MODEL_CALLED_OF(16)
/* clang-format on */
#undef MODEL_CALLED_OF
    MODEL_CALLED(void, read_range, const void *at, size_t bytes) {
    model_read(at, bytes, MODEL_CALLER);
}
MODEL_CALLED(void, write_range, void *at, size_t bytes) { model_write(at, bytes); }
MODEL_CALLED(void, init, void) {}
MODEL_CALLED(void, func_entry, void *) {}
MODEL_CALLED(void, func_exit, void) {}

/* clang calls these functions, __tsan_memcpy and others, in place of the C library's. */
MODEL_CALLED(void *, memcpy, void *to, const void *from, size_t bytes) {
    model_read(from, bytes, MODEL_CALLER);
    model_write(to, bytes);
    return memcpy(to, from, bytes);
}

MODEL_CALLED(void *, memmove, void *to, const void *from, size_t bytes) {
    model_read(from, bytes, MODEL_CALLER);
    model_write(to, bytes);
    return __builtin_memmove(to, from, bytes);
}

MODEL_CALLED(void *, memset, void *to, int byte, size_t bytes) {
    model_write(to, bytes);
    return memset(to, byte, bytes);
}

/* Checks the source of a copy that the emulator executes later. */
#define MODEL_READ(from, bytes) __tsan_read_range(from, bytes)
#else
#define MODEL_READ(from, bytes) ((void)0)
#endif

#endif
