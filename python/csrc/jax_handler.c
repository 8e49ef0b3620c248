/* SPDX-License-Identifier: Apache-2.0
 *
 * The handlers that XLA calls: fxa_jax_cpu and fxa_jax_cuda, registered by python/fxattn/jax/_handlers.py under one
 * name for both platforms. No Python runs here, and the GIL is not taken.
 *
 * Stages: on the CPU the plan is made at instantiate, when an executable is built; on CUDA at initialize, when the
 * device is known. An execution looks the plan up. XLA's first call queries metadata; the handler returns the runtime's
 * own version, so that one build works with older and newer runtimes.
 */
#include "jax_call.h"
#include "slot_words.h"

#include <string.h>

FXA_API fxa__xla_error *fxa_jax_cpu(fxa__xla_frame *frame);
FXA_API fxa__xla_error *fxa_jax_cuda(fxa__xla_frame *frame);

static bool metadata_answer(const fxa__xla_frame *frame, bool cuda) {
    for (fxa__xla_extension *e = frame->extension; e; e = e->next) {
        if (e->type == FXA__XLA_EXTENSION_METADATA) {
            fxa__xla_metadata *metadata = ((fxa__xla_metadata_extension *)(void *)e)->metadata;
            int theirs = frame->api ? frame->api->version.minor : 1; /* FFI 0.1 queries metadata without an api */
            metadata->version.struct_size = FXA__XLA_SIZE(fxa__xla_version, minor);
            metadata->version.extension = NULL;
            metadata->version.major = 0;
            metadata->version.minor = theirs < FXA__XLA_MINOR ? theirs : FXA__XLA_MINOR;
            metadata->traits = cuda ? FXA__XLA_TRAIT_COMMAND_BUFFER : 0;
            if (frame->api && metadata->struct_size >= FXA__XLA_SIZE(fxa__xla_metadata, state_type)) {
                metadata->state_type = 0;
            }
            return true;
        }
    }
    return false;
}

static int32_t code_of_status(fxa_status status) {
    switch (status) {
    case FXA_E_UNSUPPORTED:
    case FXA_E_UNAVAILABLE: return FXA__XLA_UNIMPLEMENTED;
    case FXA_E_MEMORY:
    case FXA_E_SYSTEM: return FXA__XLA_RESOURCE_EXHAUSTED;
    case FXA_E_ENGINE:
    case FXA_E_INTERNAL: return FXA__XLA_INTERNAL;
    default: return FXA__XLA_INVALID_ARGUMENT;
    }
}

static fxa__xla_error *frame_handle(const fxa__xla_frame *frame, bool cuda) {
    fxa__jax_call call;
    fxa_status status = FXA_OK;
    if (metadata_answer(frame, cuda)) {
        return NULL;
    }
    memset(&call, 0, sizeof call);
    call.frame = frame;
    call.cuda = cuda;
    if (frame->stage == FXA__XLA_EXECUTE) {
        status = fxa__jax_call_run(&call);
    } else if (frame->stage == (cuda ? FXA__XLA_INITIALIZE : FXA__XLA_INSTANTIATE)) {
        status = fxa__jax_call_prepare(&call);
    }
    if (!status) {
        return NULL;
    }
    char text[640] = "fxattn: ";
    fxa__slot_words_put(text + strlen(text), sizeof text - strlen(text), call.err.text);
    fxa__xla_error_args args = {FXA__XLA_SIZE(fxa__xla_error_args, code), NULL, text, code_of_status(status)};
    return frame->api->error_create(&args);
}

fxa__xla_error *fxa_jax_cpu(fxa__xla_frame *frame) { return frame_handle(frame, false); }

fxa__xla_error *fxa_jax_cuda(fxa__xla_frame *frame) { return frame_handle(frame, true); }
