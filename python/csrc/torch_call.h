/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of an operator, from the dispatcher's stack to a run of the library.
 *
 *     stack -> fxa__torch_call (what was given, owned) -> fxa_problem, fxa_args -> plan -> run -> results
 *
 * Both operators begin with the same ten arguments (python/fxattn/torch/_operators.py has the schemas):
 *     0..2 q, k, v       [B,H,S,D], any strides; packed rows [1,H,T,D]; pages [n_pages,H,page_size,D]
 *     3 tensors          captured by the program, then by the backward program
 *     4 extras           one per bit of config[SLOTS], in order of the slots: sink, lengths, offsets, pages, tables
 *     5 scalars          none, or one f64 tensor: on the host the float params, where they have gradients or vary; with
 *                        FXA_SCALARS_IN_MEMORY all params of the program, where q lies (and scale and seed in `extras`)
 *     6 ints             the int params
 *     7 floats           scale (NaN: the default), dropout_p, then the float params unless `scalars` has them
 *     8 config           see fxa__torch_field; missing ones are 0; then the coordinate maps
 *     9 program          text; the backward program's follows at config[BPROP_TEXT] when that is not 0
 * One tensor of more than FXA_MAX_RANK dimensions in 3, 4 or 5 stands for none: AOTInductor's executor of exported
 * programs leaves empty lists out. For its sake ints that no param takes are left unread.
 * The backward operator goes on:
 *     10, 11 out, lse    of the forward pass
 *     12 grads           dout, and dlse when there is one
 *     13 want            which gradients, in the order of the results (fxa__torch_want)
 */
#ifndef FXATTN_TORCH_CALL_H
#define FXATTN_TORCH_CALL_H

#include "torch_api.h"

#define FXA__TORCH_N_FORWARD 10
#define FXA__TORCH_N_BACKWARD 14
#define FXA__TORCH_MAX_CONFIG 256
#define FXA__TORCH_MAX_WANT (FXA_MAX_TENSORS + 5)

/* Where things are in `config`. After MAPS, for each map: which (0 b, 1 h, 2 q, 3 k), kind, offset, base, step, number
 * of segments, and three numbers per segment. */
typedef enum fxa__torch_field {
    FXA__TORCH_FLAGS = 0,
    FXA__TORCH_SLOTS,
    FXA__TORCH_SQ, /* packed: the longest sequences */
    FXA__TORCH_SK, /* packed or paged */
    FXA__TORCH_WINDOW_LEFT,
    FXA__TORCH_WINDOW_RIGHT,
    FXA__TORCH_PAGE_SIZE,
    FXA__TORCH_Q_LEN,
    FXA__TORCH_K_LEN,
    FXA__TORCH_HEADS,
    FXA__TORCH_BPROP_TEXT,    /* bytes of the program's own text */
    FXA__TORCH_BPROP_TENSORS, /* how many of `tensors` are the program's own, when there is a backward program */
    FXA__TORCH_WIDE,          /* not 0: out and gradients of 16-bit tensors are f32: parts of a sum that follows */
    FXA__TORCH_MAPS
} fxa__torch_field;

typedef enum fxa__torch_want {
    FXA__TORCH_DQ = 0,
    FXA__TORCH_DK,
    FXA__TORCH_DV,
    FXA__TORCH_DSINK,
    FXA__TORCH_DSCALARS,
    FXA__TORCH_DTENSORS /* and up: of that captured tensor */
} fxa__torch_want;

typedef struct fxa__torch_tensor {
    void *handle; /* NULL: none */
    void *data;
    const int64_t *size, *stride;
    int64_t rank;
    fxa_dtype dtype;
    int32_t device, index; /* in PyTorch's codes */
} fxa__torch_tensor;

/* Big, and on the stack of the caller: the 2 x FXA_MAX_TENSORS descriptions are most of it. Clearing all of it would
 * take longer than the rest of a small call, so only what stands before the arrays is; these have their counts. */
typedef struct fxa__torch_call {
    bool backward;
    bool only_wanted; /* forward: lse and max that are not wanted are no tensors, instead of empty ones */
    fxa__torch_tensor q, k, v, out, lse, scalars, grads[2];
    size_t n_tensors, n_extras, n_scalars, n_ints, n_floats, n_config, n_grads, n_want;
    const char *text;
    size_t text_size;
    void *text_handle;
    fxa__torch_tensor tensors[2 * FXA_MAX_TENSORS], extras[FXA_SLOT_MAX];
    int64_t ints[2 * FXA_MAX_PARAMS], config[FXA__TORCH_MAX_CONFIG], want[FXA__TORCH_MAX_WANT];
    double floats[2 * FXA_MAX_PARAMS + 2];
    fxa_error err;
} fxa__torch_call;

/* A call of nothing yet. */
void fxa__torch_call_clear(fxa__torch_call *call, bool backward);
/* Takes everything off the stack: whatever the answer is, fxa__torch_call_end gives it back. */
fxa_status fxa__torch_call_begin(fxa__torch_call *call, const fxa__torch_value *stack, bool backward);
void fxa__torch_call_end(fxa__torch_call *call);

/* The whole run. Results are new tensors: forward out, lse, max; backward one per `want`. On failure none. */
fxa_status fxa__torch_call_forward(fxa__torch_call *call, void *results[3]);
fxa_status fxa__torch_call_backward(fxa__torch_call *call, void *results[FXA__TORCH_MAX_WANT]);

/* ---- Between torch_call.c and torch_problem.c ------------------------------------------------------------------- */

/* A new tensor like `like` but for sizes and strides. */
fxa_status fxa__torch_tensor_new(fxa__torch_call *call, const fxa__torch_tensor *like, fxa_dtype dtype, int64_t rank,
                                 const int64_t *size, const int64_t *stride, fxa__torch_tensor *out);
/* The same for a result: of packed rows it is cleared, since rows of no sequence are never written. On a failure the
 * caller has the tensor nevertheless, if its handle is there. */
fxa_status fxa__torch_result_new(fxa__torch_call *call, const fxa__torch_tensor *like, fxa_dtype dtype, int64_t rank,
                                 const int64_t *size, const int64_t *stride, fxa__torch_tensor *out);
fxa_status fxa__torch_result_clear(fxa__torch_call *call, const fxa__torch_tensor *result);
/* Strides of a dense tensor of these sizes whose dimensions are nested as those of `like`, features innermost. */
void fxa__torch_strides_like(const fxa__torch_tensor *like, const int64_t size[4], int64_t stride[4]);
/* The dtype of a result like a tensor of this one, by WIDE. */
fxa_dtype fxa__torch_result_dtype(const fxa__torch_call *call, fxa_dtype dtype);
/* Writes a message into call->err and returns its status. */
fxa_status fxa__torch_fail(fxa__torch_call *call, fxa_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A workspace on a device, as torch_pieces.c has it. */
typedef struct fxa__torch_piece {
    void *handle; /* a tensor; NULL: none */
    void *data;
    size_t size; /* 0: not one to keep */
    const void *stream;
    int32_t index;
} fxa__torch_piece;

/* A problem with what its pointers lead to. Cleared up to the arrays, as a call is. */
typedef struct fxa__torch_problem {
    fxa_problem problem;
    fxa_args args;
    fxa_program *program, *bprop;
    bool recorded;          /* the stream is being recorded into a graph */
    fxa__torch_piece piece; /* the workspace on a device, PyTorch's memory */
    void *host_workspace;   /* on the host: the thread's own (torch_state.h), which is quicker */
    fxa_capture captures[FXA_MAX_TENSORS], bprop_captures[FXA_MAX_TENSORS];
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    double params[FXA_MAX_PARAMS], bprop_params[FXA_MAX_PARAMS], dparams[FXA_MAX_PARAMS];
} fxa__torch_problem;

/* Everything but the outputs. */
fxa_status fxa__torch_problem_begin(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx);
void fxa__torch_problem_end(fxa__torch_problem *p);
/* An operand of rank 4, or a row such as LSE of rank 3. */
void fxa__torch_operand_set(fxa_operand *operand, const fxa__torch_tensor *tensor);
fxa_status fxa__torch_problem_run(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx);

/* The plan of a problem, one reference for the caller: that of an equal one of late, or the context's
 * (torch_plans.c). */
fxa_status fxa__torch_plan_get(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out, fxa_error *err);
void fxa__torch_plans_clear(void);
void fxa__torch_plans_forget(void); /* in a child */

/* ---- Of torch_device.c ------------------------------------------------------------------------------------------ */

bool fxa__torch_is_on_host(const fxa__torch_tensor *tensor);
/* Where the tensors are, which is one device, and the stream that is current there. */
fxa_status fxa__torch_device_begin(fxa__torch_problem *p, fxa__torch_call *call);
/* Whether it has no rows, on a device, whose engines need not be asked then. */
bool fxa__torch_is_nothing(const fxa__torch_problem *p, const fxa__torch_call *call);
/* The plan of a problem on a device, once all pointers are set. */
fxa_status fxa__torch_device_plan(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx, fxa_plan **out);
/* A workspace there for one run (torch_pieces.c), in p->piece, and back; forget: in a child, whose devices are lost. */
fxa_status fxa__torch_piece_take(fxa__torch_problem *p, fxa__torch_call *call, size_t size);
void fxa__torch_piece_give(fxa__torch_piece *piece);
void fxa__torch_pieces_clear(void);
void fxa__torch_pieces_forget(void);
/* Whether there are tensors of a device that engines do not like as they lie (expanded, unaligned, ...), which are
 * copies now: then another try may go better. For calls that own their handles. */
bool fxa__torch_call_tidy(fxa__torch_call *call);

#endif
