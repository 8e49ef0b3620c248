/* SPDX-License-Identifier: Apache-2.0
 *
 * A small substitute for PyTorch, for the kernels of libfxattn_torch on a CUDA stand-in (tests/standin): implements the
 * functions of libtorch's C interface that these kernels call, for tensors in memory from the test or cuMemAlloc. Built
 * twice: as libtorch_cpu.so, and with MOCK_CUDA as libtorch_cuda.so. torch_device_calls.py calls the registered
 * kernels.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOCK __attribute__((visibility("default")))

#ifdef MOCK_CUDA
MOCK void *mock_streams[2];
MOCK int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **stream) {
    *stream = mock_streams[index & 1];
    return index > 1;
}
#else

enum { MOCK_RANK = 8, MOCK_CUDA_TYPE = 1 };

typedef struct mock_tensor {
    char *data;
    int64_t size[MOCK_RANK], stride[MOCK_RANK], rank, bytes;
    int32_t dtype, device, index;
    bool owns;
} mock_tensor;

typedef struct mock_list {
    size_t n, room;
    uint64_t *item;
} mock_list;

typedef struct mock_string {
    size_t n;
    char text[];
} mock_string;

typedef void (*mock_kernel)(uint64_t *stack, uint64_t n_in, uint64_t n_out);

/* Counts that the test reads, and options that it sets. */
MOCK int64_t mock_live, mock_copies, mock_zeroed,
    mock_made[3];          /* tensors; copies; allocations on the host, of device 0, of 1 */
MOCK int64_t mock_fail_at; /* the allocation or copy of that number fails, from 1 */
MOCK char mock_said[600];
MOCK mock_kernel mock_kernels[2][2];                    /* CPU, CUDA; fwd, bwd */
MOCK int (*mock_alloc)(int index, size_t, uintptr_t *); /* of a device */
static int mock_impl;

static int64_t mock_width(int32_t dtype) {
    static const int8_t width[] = {8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 1, 1};
    return width[dtype];
}

static bool mock_fails(void) { return mock_fail_at > 0 && --mock_fail_at == 0; }

MOCK void *mock_tensor_new(void *data, int64_t rank, const int64_t *size, const int64_t *stride, int32_t dtype,
                           int32_t device, int32_t index) {
    mock_tensor *t = calloc(1, sizeof *t);
    t->data = data;
    t->rank = rank;
    memcpy(t->size, size, (size_t)rank * 8);
    memcpy(t->stride, stride, (size_t)rank * 8);
    t->dtype = dtype, t->device = device, t->index = index;
    mock_live++;
    return t;
}

MOCK int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *size, const int64_t *stride, int32_t dtype,
                                      int32_t device, int32_t index, void **out) {
    int64_t last = 0;
    uintptr_t data = 0;
    bool empty = false;
    if (mock_fails()) return 1;
    for (int64_t i = 0; i < rank; i++) empty = empty || !size[i], last += (size[i] - 1) * stride[i];
    size_t bytes = empty ? 0 : (size_t)((last + 1) * mock_width(dtype));
    mock_made[device == MOCK_CUDA_TYPE ? 1 + index : 0]++;
    if (bytes && device == MOCK_CUDA_TYPE && mock_alloc(index, bytes, &data)) return 1;
    if (bytes && device != MOCK_CUDA_TYPE) data = (uintptr_t)aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (bytes) memset((void *)data, 0x7f, bytes); /* a pattern that shows unwritten memory */
    *out = mock_tensor_new((void *)data, rank, size, stride, dtype, device, index);
    ((mock_tensor *)*out)->bytes = (int64_t)bytes;
    ((mock_tensor *)*out)->owns = device != MOCK_CUDA_TYPE;
    return 0;
}

MOCK int32_t aoti_torch_delete_tensor_object(void *tensor) {
    mock_tensor *t = tensor;
    if (t->owns) free(t->data); /* memory of the stand-in is there until the end, as in a caching allocator */
    free(t);
    mock_live--;
    return 0;
}

MOCK int32_t aoti_torch_zero_(void *tensor) {
    mock_tensor *t = tensor;
    memset(t->data, 0, (size_t)t->bytes);
    mock_zeroed++;
    return 0;
}

MOCK int32_t aoti_torch_copy_(void *to, void *from, int32_t non_blocking) {
    mock_tensor *a = to, *b = from;
    int64_t at[MOCK_RANK] = {0}, n = 1, width = mock_width(a->dtype);
    (void)non_blocking;
    if (mock_fails()) return 1;
    mock_copies++;
    for (int64_t i = 0; i < a->rank; i++) n *= a->size[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t x = 0, y = 0;
        for (int64_t d = 0; d < a->rank; d++) x += at[d] * a->stride[d], y += at[d] * b->stride[d];
        memcpy(a->data + x * width, b->data + y * width, (size_t)width);
        for (int64_t d = a->rank - 1; d >= 0 && ++at[d] == a->size[d]; d--) at[d] = 0;
    }
    return 0;
}

#define MOCK_GET(name, type, value)                                                                                    \
    MOCK int32_t aoti_torch_get_##name(void *tensor, type *out) {                                                      \
        mock_tensor *t = tensor;                                                                                       \
        *out = value;                                                                                                  \
        return 0;                                                                                                      \
    }
MOCK_GET(data_ptr, void *, t->data)
MOCK_GET(dim, int64_t, t->rank)
MOCK_GET(sizes, int64_t *, t->size)
MOCK_GET(strides, int64_t *, t->stride)
MOCK_GET(dtype, int32_t, t->dtype)
MOCK_GET(device_type, int32_t, t->device)
MOCK_GET(device_index, int32_t, t->index)

MOCK int32_t aoti_torch_device_type_cpu(void) { return 0; }
MOCK int32_t aoti_torch_device_type_cuda(void) { return MOCK_CUDA_TYPE; }

#define MOCK_DTYPE(name, code)                                                                                         \
    MOCK int32_t aoti_torch_dtype_##name(void) { return code; }
MOCK_DTYPE(float64, 0)
MOCK_DTYPE(float32, 1)
MOCK_DTYPE(float16, 2)
MOCK_DTYPE(bfloat16, 3)
MOCK_DTYPE(int64, 4)
MOCK_DTYPE(int32, 5)
MOCK_DTYPE(int16, 6)
MOCK_DTYPE(int8, 7)
MOCK_DTYPE(uint8, 8)
MOCK_DTYPE(bool, 9)
MOCK_DTYPE(float8_e4m3fn, 10)
MOCK_DTYPE(float8_e5m2, 11)

/* The real one throws. */
MOCK void aoti_torch_check(bool fine, const char *function, const char *file, uint32_t line, const char *text) {
    (void)function, (void)file, (void)line;
    if (!fine) snprintf(mock_said, sizeof mock_said, "%s", text);
}

MOCK int32_t torch_new_list_reserve_size(size_t room, void **out) {
    mock_list *l = calloc(1, sizeof *l);
    l->item = calloc(room + 1, sizeof *l->item);
    l->room = room;
    *out = l;
    return 0;
}
MOCK int32_t torch_list_push_back(void *list, uint64_t value) {
    mock_list *l = list;
    l->item[l->n++] = value;
    return l->n > l->room;
}
MOCK int32_t torch_list_size(void *list, size_t *out) {
    *out = ((mock_list *)list)->n;
    return 0;
}
MOCK int32_t torch_list_get_item(void *list, size_t i, uint64_t *out) {
    *out = ((mock_list *)list)->item[i];
    return 0;
}
MOCK int32_t torch_delete_list(void *list) {
    free(((mock_list *)list)->item);
    free(list);
    return 0;
}

MOCK void *mock_string_new(const char *text, size_t n) {
    mock_string *s = malloc(sizeof *s + n + 1);
    s->n = n;
    memcpy(s->text, text, n);
    s->text[n] = '\0';
    return s;
}
MOCK int32_t torch_string_length(void *string, size_t *out) {
    *out = ((mock_string *)string)->n;
    return 0;
}
MOCK int32_t torch_string_c_str(void *string, const char **out) {
    *out = ((mock_string *)string)->text;
    return 0;
}
MOCK int32_t torch_delete_string(void *string) {
    free(string);
    return 0;
}

MOCK int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void (*f)(int64_t, int64_t, void *),
                                void *c) {
    (void)grain;
    f(begin, end, c);
    return 0;
}
MOCK int32_t torch_get_num_threads(uint32_t *out) {
    *out = 1;
    return 0;
}

MOCK int32_t aoti_torch_library_init_fragment(const char *name, const char *file, uint32_t line, void **out) {
    (void)name, (void)file, (void)line;
    *out = &mock_impl;
    return 0;
}
MOCK int32_t aoti_torch_library_init_impl(const char *name, const char *key, const char *file, uint32_t line,
                                          void **out) {
    (void)name, (void)file, (void)line;
    mock_impl = strcmp(key, "CUDA") == 0;
    *out = &mock_impl;
    return 0;
}
MOCK int32_t aoti_torch_library_def(void *library, const char *schema) {
    (void)library, (void)schema;
    return 0;
}
MOCK int32_t aoti_torch_library_impl(void *library, const char *name, mock_kernel kernel) {
    mock_kernels[*(int *)library][strcmp(name, "bwd") == 0] = kernel;
    return 0;
}
#endif
