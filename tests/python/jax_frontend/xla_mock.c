/* SPDX-License-Identifier: Apache-2.0
 *
 * A small substitute for the XLA runtime, which calls the handlers of libfxattn_jax (its path is the only argument).
 * XLA versions older and newer than ours query metadata, and calls that lack an argument must return an error, not
 * crash. With XLA_HEADER defined, the declarations are compared with that header of XLA, and nothing is run.
 */
#ifdef XLA_HEADER
#include XLA_HEADER
#endif
#include "jax_abi.h"

#define PLACE(theirs, field, ours, name)                                                                               \
    _Static_assert(offsetof(theirs, field) == offsetof(ours, name), #theirs "." #field)
#define SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #theirs)
#define VALUE(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #theirs)

#ifdef XLA_HEADER
SIZE(XLA_FFI_CallFrame, fxa__xla_frame);
PLACE(XLA_FFI_CallFrame, extension_start, fxa__xla_frame, extension);
PLACE(XLA_FFI_CallFrame, api, fxa__xla_frame, api);
PLACE(XLA_FFI_CallFrame, ctx, fxa__xla_frame, context);
PLACE(XLA_FFI_CallFrame, stage, fxa__xla_frame, stage);
PLACE(XLA_FFI_CallFrame, args, fxa__xla_frame, operands);
PLACE(XLA_FFI_CallFrame, rets, fxa__xla_frame, results);
PLACE(XLA_FFI_CallFrame, attrs, fxa__xla_frame, attributes);
SIZE(XLA_FFI_Args, fxa__xla_buffers);
PLACE(XLA_FFI_Args, size, fxa__xla_buffers, count);
PLACE(XLA_FFI_Args, args, fxa__xla_buffers, values);
SIZE(XLA_FFI_Rets, fxa__xla_buffers);
PLACE(XLA_FFI_Rets, rets, fxa__xla_buffers, values);
SIZE(XLA_FFI_Attrs, fxa__xla_attributes);
PLACE(XLA_FFI_Attrs, size, fxa__xla_attributes, count);
PLACE(XLA_FFI_Attrs, types, fxa__xla_attributes, types);
PLACE(XLA_FFI_Attrs, names, fxa__xla_attributes, names);
PLACE(XLA_FFI_Attrs, attrs, fxa__xla_attributes, values);
SIZE(XLA_FFI_Buffer, fxa__xla_buffer);
PLACE(XLA_FFI_Buffer, dtype, fxa__xla_buffer, dtype);
PLACE(XLA_FFI_Buffer, data, fxa__xla_buffer, data);
PLACE(XLA_FFI_Buffer, rank, fxa__xla_buffer, rank);
PLACE(XLA_FFI_Buffer, dims, fxa__xla_buffer, size);
SIZE(XLA_FFI_ByteSpan, fxa__xla_bytes);
SIZE(XLA_FFI_Array, fxa__xla_array);
PLACE(XLA_FFI_Array, size, fxa__xla_array, size);
PLACE(XLA_FFI_Array, data, fxa__xla_array, data);
PLACE(XLA_FFI_Metadata, api_version, fxa__xla_metadata, version);
PLACE(XLA_FFI_Metadata, traits, fxa__xla_metadata, traits);
PLACE(XLA_FFI_Metadata_Extension, metadata, fxa__xla_metadata_extension, metadata);
PLACE(XLA_FFI_Api_Version, minor_version, fxa__xla_version, minor);
PLACE(XLA_FFI_Error_Create_Args, errc, fxa__xla_error_args, code);
PLACE(XLA_FFI_Error_Destroy_Args, error, fxa__xla_destroy_args, error);
PLACE(XLA_FFI_Stream_Get_Args, stream, fxa__xla_stream_args, stream);
PLACE(XLA_FFI_ThreadPool_Schedule_Args, task, fxa__xla_schedule_args, task);
PLACE(XLA_FFI_ThreadPool_Schedule_Args, data, fxa__xla_schedule_args, data);
PLACE(XLA_FFI_ThreadPool_NumThreads_Args, num_threads, fxa__xla_threads_args, count);
PLACE(XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal, fxa__xla_ordinal_args, ordinal);
PLACE(XLA_FFI_Api, api_version, fxa__xla_api, version);
PLACE(XLA_FFI_Api, XLA_FFI_Error_Create, fxa__xla_api, error_create);
PLACE(XLA_FFI_Api, XLA_FFI_Error_Destroy, fxa__xla_api, error_destroy);
PLACE(XLA_FFI_Api, XLA_FFI_Stream_Get, fxa__xla_api, stream_get);
PLACE(XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule, fxa__xla_api, pool_schedule);
PLACE(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads, fxa__xla_api, pool_threads);
PLACE(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get, fxa__xla_api, device_ordinal);
VALUE(XLA_FFI_Extension_Metadata, FXA__XLA_EXTENSION_METADATA);
VALUE(XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE, FXA__XLA_TRAIT_COMMAND_BUFFER);
VALUE(XLA_FFI_AttrType_ARRAY, FXA__XLA_ATTRIBUTE_ARRAY);
VALUE(XLA_FFI_AttrType_STRING, FXA__XLA_ATTRIBUTE_STRING);
VALUE(XLA_FFI_ExecutionStage_INSTANTIATE, FXA__XLA_INSTANTIATE);
VALUE(XLA_FFI_ExecutionStage_INITIALIZE, FXA__XLA_INITIALIZE);
VALUE(XLA_FFI_ExecutionStage_EXECUTE, FXA__XLA_EXECUTE);
VALUE(XLA_FFI_DataType_S64, FXA__XLA_S64);
VALUE(XLA_FFI_Error_Code_INVALID_ARGUMENT, FXA__XLA_INVALID_ARGUMENT);
VALUE(XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, FXA__XLA_RESOURCE_EXHAUSTED);
VALUE(XLA_FFI_Error_Code_UNIMPLEMENTED, FXA__XLA_UNIMPLEMENTED);
VALUE(XLA_FFI_Error_Code_INTERNAL, FXA__XLA_INTERNAL);

int main(void) { return 0; }

#else
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef fxa__xla_error *handler_fn(fxa__xla_frame *frame);

static char said[600];

static fxa__xla_error *error_note(fxa__xla_error_args *args) {
    snprintf(said, sizeof said, "%d %s", args->code, args->message);
    return (fxa__xla_error *)(void *)said;
}

static int metadata_ask(handler_fn *handler, fxa__xla_api *api, int minor, int expected, uint32_t traits) {
    fxa__xla_metadata metadata = {.struct_size = sizeof metadata, .state_type = 7};
    fxa__xla_metadata_extension extension = {{sizeof extension, FXA__XLA_EXTENSION_METADATA, NULL}, &metadata};
    fxa__xla_extension before = {sizeof before, 77, &extension.base};
    fxa__xla_frame frame = {.struct_size = sizeof frame, .extension = &before, .api = api, .stage = FXA__XLA_EXECUTE};
    if (api) api->version.minor = minor; /* 0.1 asks without one, and its struct ends before the state */
    if (!api) metadata.struct_size = 0xffff;
    return handler(&frame) != NULL || metadata.version.minor != expected || metadata.traits != traits ||
           metadata.state_type != (api ? 0 : 7);
}

int main(int argc, char **argv) {
    fxa__xla_api api = {.struct_size = sizeof api, .error_create = error_note};
    fxa__xla_frame frame = {.struct_size = sizeof frame, .api = &api, .stage = FXA__XLA_EXECUTE};
    void *library = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW), *found[2];
    handler_fn *cpu = NULL, *cuda = NULL;
    if (!library || !(found[0] = dlsym(library, "fxa_jax_cpu")) || !(found[1] = dlsym(library, "fxa_jax_cuda"))) {
        return printf("%s\n", dlerror()) ? 1 : 1;
    }
    memcpy(&cpu, &found[0], sizeof cpu);
    memcpy(&cuda, &found[1], sizeof cuda);
    for (int minor = 1; minor < 9; minor++) {
        int expected = minor < FXA__XLA_MINOR ? minor : FXA__XLA_MINOR;
        if (metadata_ask(cpu, &api, minor, expected, 0) || metadata_ask(cuda, &api, minor, expected, 1)) {
            return printf("metadata of a runtime 0.%d\n", minor) ? 1 : 1;
        }
    }
    if (metadata_ask(cpu, NULL, 1, 1, 0) || metadata_ask(cuda, NULL, 1, 1, 1)) {
        return printf("metadata of a runtime that brings no functions\n") ? 1 : 1;
    }
    if (!cpu(&frame) || !strstr(said, "3 fxattn: the call has no attribute `problem`")) {
        return printf("a call without attributes: %s\n", said) ? 1 : 1;
    }
    frame.stage = FXA__XLA_PREPARE;
    if (cpu(&frame)) {
        return printf("a stage that has nothing to do: %s\n", said) ? 1 : 1;
    }
    puts("ok");
    return 0;
}
#endif
