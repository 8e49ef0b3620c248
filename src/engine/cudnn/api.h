/* SPDX-License-Identifier: Apache-2.0
 *
 * cuDNN's backend interface as this engine uses it: a table of its functions, and the constants that the engine sets or
 * reads. All declarations are our own; tests/engine/cudnn/test_cudnn_header.py compares the values with a real header
 * of cuDNN.
 *
 * X(name, value): the constant CUDNN_name.
 */
#ifndef FXA_ENGINE_CUDNN_API_H
#define FXA_ENGINE_CUDNN_API_H

#include "../engine.h"

#define FXA__CUDNN_CONSTANTS(X)                                                                                        \
    X(STATUS_SUCCESS, 0)                                                                                               \
    X(STATUS_NOT_SUPPORTED, 3000)                                                                                      \
    X(STATUS_INTERNAL_ERROR, 4000)                                                                                     \
    X(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003)                                                              \
    X(DATA_FLOAT, 0)                                                                                                   \
    X(DATA_HALF, 2)                                                                                                    \
    X(DATA_INT32, 4)                                                                                                   \
    X(DATA_BFLOAT16, 9)                                                                                                \
    X(DATA_INT64, 10)                                                                                                  \
    X(DATA_BOOLEAN, 11)                                                                                                \
    X(DATA_FP8_E4M3, 12)                                                                                               \
    X(DATA_FP8_E5M2, 13)                                                                                               \
    X(TYPE_HANDLE, 0)                                                                                                  \
    X(TYPE_DATA_TYPE, 1)                                                                                               \
    X(TYPE_BOOLEAN, 2)                                                                                                 \
    X(TYPE_INT64, 3)                                                                                                   \
    X(TYPE_FLOAT, 4)                                                                                                   \
    X(TYPE_VOID_PTR, 6)                                                                                                \
    X(TYPE_HEUR_MODE, 8)                                                                                               \
    X(TYPE_POINTWISE_MODE, 14)                                                                                         \
    X(TYPE_BACKEND_DESCRIPTOR, 15)                                                                                     \
    X(TYPE_REDUCTION_OPERATOR_TYPE, 18)                                                                                \
    X(TYPE_CHAR, 24)                                                                                                   \
    X(HEUR_MODE_A, 3)                                                                                                  \
    X(REDUCE_TENSOR_ADD, 0)                                                                                            \
    X(REDUCE_TENSOR_MAX, 3)                                                                                            \
    X(REDUCE_TENSOR_AMAX, 4)                                                                                           \
    X(BACKEND_POINTWISE_DESCRIPTOR, 0)                                                                                 \
    X(BACKEND_ENGINECFG_DESCRIPTOR, 3)                                                                                 \
    X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                                                                                \
    X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                                                                            \
    X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                                                                      \
    X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                                                                           \
    X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                                                                             \
    X(BACKEND_TENSOR_DESCRIPTOR, 17)                                                                                   \
    X(BACKEND_MATMUL_DESCRIPTOR, 18)                                                                                   \
    X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)                                                                         \
    X(BACKEND_REDUCTION_DESCRIPTOR, 21)                                                                                \
    X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)                                                                      \
    X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31)                                                                        \
    X(BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR, 35)                                                               \
    X(BACKEND_DEVICEPROP_DESCRIPTOR, 38)                                                                               \
    X(ATTR_POINTWISE_MODE, 0)                                                                                          \
    X(ATTR_POINTWISE_MATH_PREC, 1)                                                                                     \
    X(ATTR_POINTWISE_AXIS, 9)                                                                                          \
    X(ATTR_ENGINEHEUR_MODE, 200)                                                                                       \
    X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                                                                            \
    X(ATTR_ENGINEHEUR_RESULTS, 202)                                                                                    \
    X(ATTR_ENGINEHEUR_DEVICEPROP, 204)                                                                                 \
    X(ATTR_ENGINECFG_WORKSPACE_SIZE, 303)                                                                              \
    X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                                                                          \
    X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                                                                         \
    X(ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, 405)                                                                    \
    X(ATTR_EXECUTION_PLAN_DEVICEPROP, 407)                                                                             \
    X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                                                                     \
    X(ATTR_OPERATION_POINTWISE_XDESC, 751)                                                                             \
    X(ATTR_OPERATION_POINTWISE_BDESC, 752)                                                                             \
    X(ATTR_OPERATION_POINTWISE_YDESC, 753)                                                                             \
    X(ATTR_OPERATION_POINTWISE_ALPHA1, 754)                                                                            \
    X(ATTR_OPERATION_POINTWISE_ALPHA2, 755)                                                                            \
    X(ATTR_OPERATION_POINTWISE_TDESC, 758)                                                                             \
    X(ATTR_OPERATIONGRAPH_OPS, 801)                                                                                    \
    X(ATTR_TENSOR_BYTE_ALIGNMENT, 900)                                                                                 \
    X(ATTR_TENSOR_DATA_TYPE, 901)                                                                                      \
    X(ATTR_TENSOR_DIMENSIONS, 902)                                                                                     \
    X(ATTR_TENSOR_STRIDES, 903)                                                                                        \
    X(ATTR_TENSOR_UNIQUE_ID, 906)                                                                                      \
    X(ATTR_TENSOR_IS_VIRTUAL, 907)                                                                                     \
    X(ATTR_TENSOR_IS_BY_VALUE, 908)                                                                                    \
    X(ATTR_TENSOR_RAGGED_OFFSET_DESC, 913)                                                                             \
    X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                                                                              \
    X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                                                                           \
    X(ATTR_VARIANT_PACK_WORKSPACE, 1003)                                                                               \
    X(ATTR_MATMUL_COMP_TYPE, 1500)                                                                                     \
    X(ATTR_OPERATION_MATMUL_ADESC, 1520)                                                                               \
    X(ATTR_OPERATION_MATMUL_BDESC, 1521)                                                                               \
    X(ATTR_OPERATION_MATMUL_CDESC, 1522)                                                                               \
    X(ATTR_OPERATION_MATMUL_DESC, 1523)                                                                                \
    X(ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, 1525)                                                                \
    X(ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, 1526)                                                                \
    X(ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, 1527)                                                                \
    X(ATTR_REDUCTION_OPERATOR, 1600)                                                                                   \
    X(ATTR_REDUCTION_COMP_TYPE, 1601)                                                                                  \
    X(ATTR_OPERATION_REDUCTION_XDESC, 1610)                                                                            \
    X(ATTR_OPERATION_REDUCTION_YDESC, 1611)                                                                            \
    X(ATTR_OPERATION_REDUCTION_DESC, 1612)                                                                             \
    X(ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC, 1950)                                                            \
    X(ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, 1951)                                                                     \
    X(ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC, 1952)                                                             \
    X(ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, 1953)                                                           \
    X(ATTR_OPERATION_RESHAPE_XDESC, 2200)                                                                              \
    X(ATTR_OPERATION_RESHAPE_YDESC, 2201)                                                                              \
    X(ATTR_DEVICEPROP_HANDLE, 2701)                                                                                    \
    X(ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)                                                                       \
    X(POINTWISE_ADD, 0)                                                                                                \
    X(POINTWISE_MUL, 1)                                                                                                \
    X(POINTWISE_MIN, 2)                                                                                                \
    X(POINTWISE_MAX, 3)                                                                                                \
    X(POINTWISE_SQRT, 4)                                                                                               \
    X(POINTWISE_DIV, 6)                                                                                                \
    X(POINTWISE_MOD, 7)                                                                                                \
    X(POINTWISE_POW, 8)                                                                                                \
    X(POINTWISE_SUB, 9)                                                                                                \
    X(POINTWISE_ABS, 10)                                                                                               \
    X(POINTWISE_CEIL, 11)                                                                                              \
    X(POINTWISE_COS, 12)                                                                                               \
    X(POINTWISE_EXP, 13)                                                                                               \
    X(POINTWISE_FLOOR, 14)                                                                                             \
    X(POINTWISE_LOG, 15)                                                                                               \
    X(POINTWISE_NEG, 16)                                                                                               \
    X(POINTWISE_RSQRT, 17)                                                                                             \
    X(POINTWISE_SIN, 18)                                                                                               \
    X(POINTWISE_TAN, 19)                                                                                               \
    X(POINTWISE_ERF, 20)                                                                                               \
    X(POINTWISE_IDENTITY, 21)                                                                                          \
    X(POINTWISE_RECIPROCAL, 22)                                                                                        \
    X(POINTWISE_ATAN2, 23)                                                                                             \
    X(POINTWISE_TANH_FWD, 101)                                                                                         \
    X(POINTWISE_SIGMOID_FWD, 102)                                                                                      \
    X(POINTWISE_CMP_EQ, 300)                                                                                           \
    X(POINTWISE_CMP_NEQ, 301)                                                                                          \
    X(POINTWISE_CMP_GT, 302)                                                                                           \
    X(POINTWISE_CMP_GE, 303)                                                                                           \
    X(POINTWISE_CMP_LT, 304)                                                                                           \
    X(POINTWISE_CMP_LE, 305)                                                                                           \
    X(POINTWISE_LOGICAL_AND, 400)                                                                                      \
    X(POINTWISE_LOGICAL_OR, 401)                                                                                       \
    X(POINTWISE_LOGICAL_NOT, 402)                                                                                      \
    X(POINTWISE_GEN_INDEX, 501)                                                                                        \
    X(POINTWISE_BINARY_SELECT, 601)

/* clang-format off */
enum {
#define FXA__CUDNN_ENUM(name, value) CUDNN_##name = value,
    FXA__CUDNN_CONSTANTS(FXA__CUDNN_ENUM)
#undef FXA__CUDNN_ENUM
    CUDNN_SUPPORT_STATUSES = 1000 /* number of statuses from 3000 on that mean "not supported" */
};
/* clang-format on */

typedef struct fxa__cudnn_api {
    size_t (*version)(void);
    const char *(*error_string)(int status);
    void (*last_error)(char *text, size_t size);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*descriptor_create)(int type, void **out);
    int (*descriptor_destroy)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *elements);
    int (*get)(void *descriptor, int name, int type, int64_t capacity, int64_t *count, void *elements);
    int (*finalize)(void *descriptor);
    int (*execute)(void *handle, void *plan, void *pack);
    int (*graph_check)(void); /* never called; non-NULL if cuDNN consists of several libraries */
} fxa__cudnn_api;

/* The loaded cuDNN, and the loaded libraries that it needs. */
typedef struct fxa__cudnn_library {
    fxa__cudnn_api api;
    /* dlopen handles. graph NULL: cuDNN is one library; compiler (NVRTC) NULL: not found */
    void *handle, *graph, *blas, *compiler;
    int64_t version; /* 91901 = 9.19.1 */
} fxa__cudnn_library;

/* Loads cuDNN. `folder` is searched first; NULL = none. Fails with E_UNAVAILABLE and the reason, and then leaves
 * nothing loaded. */
fxa_status fxa__cudnn_library_open(fxa__host *host, const char *folder, fxa__cudnn_library *out, fxa_error *err);
void fxa__cudnn_library_close(fxa__cudnn_library *library);

/* Writes cuDNN's message about this thread's last failed call to text[size], as one line. */
void fxa__cudnn_last(const fxa__cudnn_api *api, char *text, size_t size);
/* Returns the error for a failed call of cuDNN: E_UNSUPPORTED if `status` means "not supported", E_MEMORY if memory ran
 * out, else E_ENGINE. The message includes cuDNN's own text. `doing`: what the call does, such as "a plan is built". */
fxa_status fxa__cudnn_fail(const fxa__cudnn_api *api, int status, const char *doing, fxa_error *err);

#endif
