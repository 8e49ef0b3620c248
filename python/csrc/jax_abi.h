/* SPDX-License-Identifier: Apache-2.0
 *
 * XLA's foreign function interface (FFI), declared here by its memory layout. So this object needs no header of XLA,
 * and one build works with every runtime from FFI 0.1 on. Only members that the handlers use are named. The layouts are
 * those of 64-bit systems; all versions so far share them, because XLA only appends to its structs.
 * tests/python/jax_frontend/test_jax_abi.py compares them with the header in jaxlib.
 */
#ifndef FXATTN_JAX_ABI_H
#define FXATTN_JAX_ABI_H

#include <stddef.h>
#include <stdint.h>

#define FXA__XLA_MINOR 5 /* newest version 0.x that the declarations were compared with */

/* Constants of the interface: values of `type` and `stage`, traits, error codes. */
enum {
    FXA__XLA_EXTENSION_METADATA = 1,
    FXA__XLA_TRAIT_COMMAND_BUFFER = 1,
    FXA__XLA_ATTRIBUTE_ARRAY = 1,
    FXA__XLA_ATTRIBUTE_STRING = 4,
    FXA__XLA_INSTANTIATE = 0,
    FXA__XLA_PREPARE = 1,
    FXA__XLA_INITIALIZE = 2,
    FXA__XLA_EXECUTE = 3,
    FXA__XLA_S64 = 5,
    FXA__XLA_INVALID_ARGUMENT = 3,
    FXA__XLA_RESOURCE_EXHAUSTED = 8,
    FXA__XLA_UNIMPLEMENTED = 12,
    FXA__XLA_INTERNAL = 13
};

typedef struct fxa__xla_error fxa__xla_error;     /* opaque */
typedef struct fxa__xla_context fxa__xla_context; /* opaque: one execution */

typedef struct fxa__xla_extension {
    size_t struct_size;
    int32_t type;
    struct fxa__xla_extension *next;
} fxa__xla_extension;

typedef struct fxa__xla_version {
    size_t struct_size;
    fxa__xla_extension *extension;
    int major, minor;
} fxa__xla_version;

typedef struct fxa__xla_metadata {
    size_t struct_size;
    fxa__xla_version version;
    uint32_t traits;
    int64_t state_type;
} fxa__xla_metadata;

typedef struct fxa__xla_metadata_extension {
    fxa__xla_extension base;
    fxa__xla_metadata *metadata;
} fxa__xla_metadata_extension;

typedef struct fxa__xla_bytes {
    const char *data;
    size_t size;
} fxa__xla_bytes;

typedef struct fxa__xla_array {
    int32_t dtype;
    size_t size;
    void *data;
} fxa__xla_array;

/* A dense row-major array. */
typedef struct fxa__xla_buffer {
    size_t struct_size;
    fxa__xla_extension *extension;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *size;
} fxa__xla_buffer;

typedef struct fxa__xla_buffers {
    size_t struct_size;
    fxa__xla_extension *extension;
    int64_t count;
    int32_t *types;
    void **values;
} fxa__xla_buffers;

typedef struct fxa__xla_attributes {
    size_t struct_size;
    fxa__xla_extension *extension;
    int64_t count;
    int32_t *types;
    fxa__xla_bytes **names;
    void **values;
} fxa__xla_attributes;

/* Arguments of the interface's functions. */
typedef struct fxa__xla_error_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    const char *message; /* copied */
    int32_t code;
} fxa__xla_error_args;

typedef struct fxa__xla_destroy_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_error *error;
} fxa__xla_destroy_args;

typedef struct fxa__xla_stream_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_context *context;
    void *stream; /* out */
} fxa__xla_stream_args;

typedef struct fxa__xla_memory_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_context *context;
    size_t size, alignment;
    void *data; /* out; XLA frees it after the execution */
} fxa__xla_memory_args;

typedef struct fxa__xla_schedule_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_context *context;
    void (*task)(void *data);
    void *data;
} fxa__xla_schedule_args;

typedef struct fxa__xla_threads_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_context *context;
    int64_t *count; /* out */
} fxa__xla_threads_args;

typedef struct fxa__xla_ordinal_args {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_context *context;
    int32_t ordinal; /* out */
} fxa__xla_ordinal_args;

typedef void fxa__xla_unused(void);

/* The runtime's functions. Those that return an error return NULL on success. An older runtime has fewer functions: its
 * table ends at struct_size. */
typedef struct fxa__xla_api {
    size_t struct_size;
    fxa__xla_extension *extension;
    fxa__xla_version version;
    const void *internal;
    fxa__xla_error *(*error_create)(fxa__xla_error_args *);
    fxa__xla_unused *error_text;
    void (*error_destroy)(fxa__xla_destroy_args *);
    fxa__xla_unused *handler_register;
    fxa__xla_error *(*stream_get)(fxa__xla_stream_args *);
    fxa__xla_unused *type_register;
    fxa__xla_unused *context_get;
    fxa__xla_unused *state_set;
    fxa__xla_unused *state_get;
    fxa__xla_error *(*memory_allocate)(fxa__xla_memory_args *);
    fxa__xla_unused *memory_free;
    fxa__xla_error *(*pool_schedule)(fxa__xla_schedule_args *);
    fxa__xla_error *(*pool_threads)(fxa__xla_threads_args *);
    fxa__xla_unused *future_create;
    fxa__xla_unused *future_available;
    fxa__xla_unused *future_error;
    fxa__xla_unused *run_id;
    fxa__xla_error *(*device_ordinal)(fxa__xla_ordinal_args *);
} fxa__xla_api;

/* One call of a handler. */
typedef struct fxa__xla_frame {
    size_t struct_size;
    fxa__xla_extension *extension;
    const fxa__xla_api *api;
    fxa__xla_context *context; /* NULL in the call that queries metadata */
    int32_t stage;
    fxa__xla_buffers operands, results;
    fxa__xla_attributes attributes;
    void *future;
} fxa__xla_frame;

/* True if a runtime's table contains a function. */
#define FXA__XLA_HAS(api, function)                                                                                    \
    ((api)->struct_size >= offsetof(fxa__xla_api, function) + sizeof((api)->function) && (api)->function != NULL)
/* Value of struct_size for a struct whose last member is `last`. */
#define FXA__XLA_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

#endif
