/* SPDX-License-Identifier: Apache-2.0
 *
 * Function tables of the two libraries that PyTorch's operators call: libtorch's stable C interface (torch 2.10 and
 * newer) and libfxattn. The functions are found at run time, so this object links to neither library, needs no header
 * of PyTorch, and one build works with every version.
 *
 * fxa__torch_resolve fills both tables once, before an operator is registered; they never change after that.
 */
#ifndef FXATTN_TORCH_API_H
#define FXATTN_TORCH_API_H

#include "fxattn/fxattn.h"

#include <stdbool.h>

/* A value of the dispatcher's stack: a number's bits, or a handle. A kernel owns the handles of its n_in arguments. It
 * writes n_out results from stack[0] on, which the dispatcher then owns. */
typedef uint64_t fxa__torch_value;
typedef void (*fxa__torch_kernel)(fxa__torch_value *stack, uint64_t n_in, uint64_t n_out);

/* Functions that return int32_t return 0 for success. Pointers to sizes and strides belong to the tensor. */
#define FXA__TORCH_MAP(X)                                                                                              \
    X(int32_t, aoti_torch_library_init_fragment, (const char *, const char *, uint32_t, void **))                      \
    X(int32_t, aoti_torch_library_init_impl, (const char *, const char *, const char *, uint32_t, void **))            \
    X(int32_t, aoti_torch_library_def, (void *, const char *))                                                         \
    X(int32_t, aoti_torch_library_impl, (void *, const char *, fxa__torch_kernel))                                     \
    X(int32_t, aoti_torch_get_data_ptr, (void *, void **))                                                             \
    X(int32_t, aoti_torch_get_dim, (void *, int64_t *))                                                                \
    X(int32_t, aoti_torch_get_sizes, (void *, int64_t **))                                                             \
    X(int32_t, aoti_torch_get_strides, (void *, int64_t **))                                                           \
    X(int32_t, aoti_torch_get_dtype, (void *, int32_t *))                                                              \
    X(int32_t, aoti_torch_get_device_type, (void *, int32_t *))                                                        \
    X(int32_t, aoti_torch_get_device_index, (void *, int32_t *))                                                       \
    X(int32_t, aoti_torch_empty_strided,                                                                               \
      (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **))                                 \
    X(int32_t, aoti_torch_zero_, (void *))                                                                             \
    X(int32_t, aoti_torch_copy_, (void *, void *, int32_t))                                                            \
    X(int32_t, aoti_torch_delete_tensor_object, (void *))                                                              \
    X(void, aoti_torch_check, (bool, const char *, const char *, uint32_t, const char *))                              \
    X(int32_t, aoti_torch_device_type_cpu, (void))                                                                     \
    X(int32_t, aoti_torch_device_type_cuda, (void))                                                                    \
    X(int32_t, aoti_torch_dtype_float64, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_float32, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_float16, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                      \
    X(int32_t, aoti_torch_dtype_int64, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int32, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int16, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int8, (void))                                                                          \
    X(int32_t, aoti_torch_dtype_uint8, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_bool, (void))                                                                          \
    X(int32_t, aoti_torch_dtype_float8_e4m3fn, (void))                                                                 \
    X(int32_t, aoti_torch_dtype_float8_e5m2, (void))                                                                   \
    X(int32_t, torch_list_size, (void *, size_t *))                                                                    \
    X(int32_t, torch_list_get_item, (void *, size_t, fxa__torch_value *))                                              \
    X(int32_t, torch_new_list_reserve_size, (size_t, void **))                                                         \
    X(int32_t, torch_list_push_back, (void *, fxa__torch_value))                                                       \
    X(int32_t, torch_delete_list, (void *))                                                                            \
    X(int32_t, torch_string_length, (void *, size_t *))                                                                \
    X(int32_t, torch_string_c_str, (void *, const char **))                                                            \
    X(int32_t, torch_delete_string, (void *))                                                                          \
    X(int32_t, torch_parallel_for, (int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *), void *))            \
    X(int32_t, torch_get_num_threads, (uint32_t *))

#define FXA__TORCH_LIBRARY_MAP(X)                                                                                      \
    X(fxa_context_create)                                                                                              \
    X(fxa_program_parse_texts)                                                                                         \
    X(fxa_program_retain)                                                                                              \
    X(fxa_program_destroy)                                                                                             \
    X(fxa_program_param_count)                                                                                         \
    X(fxa_program_param)                                                                                               \
    X(fxa_program_tensor_count)                                                                                        \
    X(fxa_program_tensor)                                                                                              \
    X(fxa_dtype_name)                                                                                                  \
    X(fxa_slot_name)                                                                                                   \
    X(fxa_plan_create)                                                                                                 \
    X(fxa_plan_retain)                                                                                                 \
    X(fxa_plan_destroy)                                                                                                \
    X(fxa_plan_workspace)                                                                                              \
    X(fxa_plan_run)                                                                                                    \
    X(fxa_cache_get_stats)                                                                                             \
    X(fxa_cache_clear)

typedef struct fxa__torch_functions {
#define FXA__TORCH_FIELD(result, name, arguments) result(*name) arguments;
    FXA__TORCH_MAP(FXA__TORCH_FIELD)
#undef FXA__TORCH_FIELD
#define FXA__TORCH_FIELD(name) __typeof__(name) *name;
    FXA__TORCH_LIBRARY_MAP(FXA__TORCH_FIELD)
#undef FXA__TORCH_FIELD
} fxa__torch_functions;

/* The tables; members are NULL before fxa__torch_resolve. */
extern fxa__torch_functions fxa__torch;

/* Fills both tables. `folder`: the folder of libtorch, in which functions of CUDA builds are searched later. `library`:
 * the path of libfxattn. Returns 0, or -1 with a message that names what is missing in `text`. */
int fxa__torch_resolve(const char *folder, const char *library, char *text, size_t capacity);

/* Returns the address of a symbol of libc10, for a thread-local variable that of this thread; NULL if not found. */
const void *fxa__torch_core_find(const char *name);

/* Convert between PyTorch's dtype codes and fxa_dtype. Return FXA_DTYPE_NONE or -1 if the other library has no such
 * dtype. */
fxa_dtype fxa__torch_dtype_ours(int32_t code);
int32_t fxa__torch_dtype_theirs(fxa_dtype dtype);

/* Reads PyTorch's current stream of device `index`, and whether it is being captured into a CUDA graph. Returns 0, or
 * -1 if this build of PyTorch has no CUDA. */
int fxa__torch_cuda_stream(int32_t index, void **stream, bool *captured);

#endif
