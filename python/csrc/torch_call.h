/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of an operator, from the dispatcher's stack to a run of the library.
 *
 *     stack -> fxa__torch_call (owns the arguments) -> fxa_problem, fxa_args -> plan -> run -> results
 *
 * Both operators begin with the same ten arguments (python/fxattn/torch/operators.py has the schemas):
 *     0..2 q, k, v       [B,H,S,D], any strides; packed rows [1,H,T,D]; pages [n_pages,H,page_size,D]
 *     3 tensors          captured by the program, then by the backward program
 *     4 extras           one per bit of config[SLOTS], in order of the slots: sink, lengths, offsets, pages, tables
 *     5 scalars          none, or one f64 tensor. On the host: the float params, if they have gradients or vary. With
 *                        FXA_SCALARS_IN_MEMORY: all params of the program, on q's device (scale, seed are in `extras`)
 *     6 ints             the int params
 *     7 floats           scale (NaN: the default), dropout_p, then the float params unless `scalars` has them
 *     8 config           fields of fxa__torch_field, 0 if missing, then the coordinate maps
 *     9 program          text; the backward program's text follows at byte config[BPROP_TEXT] if that is not 0
 * One tensor of more than FXA_MAX_RANK dimensions in 3, 4 or 5 stands for an empty list, because AOTInductor's executor
 * of exported programs drops empty lists. For the same reason `ints` may have more values than there are int params.
 * The backward operator has further arguments:
 *     10, 11 out, lse    of the forward pass
 *     12 grads           dout, then dlse if there is one
 *     13 want            requested gradients (fxa__torch_want), in the order of the results
 */
#ifndef FXATTN_TORCH_CALL_H
#define FXATTN_TORCH_CALL_H

#include "torch_api.h"

#define FXA__TORCH_N_FORWARD 10
#define FXA__TORCH_N_BACKWARD 14
#define FXA__TORCH_MAX_CONFIG 256
#define FXA__TORCH_MAX_WANT (FXA_MAX_TENSORS + 5)

/* Indices into `config`. From MAPS on, for each coordinate map: coordinate (0 b, 1 h, 2 q, 3 k), kind, offset, base,
 * step, number of segments, and three numbers per segment. */
typedef enum fxa__torch_field {
    FXA__TORCH_FLAGS = 0,
    FXA__TORCH_SLOTS,
    FXA__TORCH_SQ, /* packed: length of the longest sequence of q */
    FXA__TORCH_SK, /* packed or paged */
    FXA__TORCH_WINDOW_LEFT,
    FXA__TORCH_WINDOW_RIGHT,
    FXA__TORCH_PAGE_SIZE,
    FXA__TORCH_Q_LEN,
    FXA__TORCH_K_LEN,
    FXA__TORCH_HEADS,
    FXA__TORCH_BPROP_TEXT,    /* bytes of the forward program's text, 0 = no backward program */
    FXA__TORCH_BPROP_TENSORS, /* how many of `tensors` the forward program captures; 0 without a backward program */
    FXA__TORCH_WIDE,          /* not 0: out and gradients of 16-bit tensors are f32, to be summed by the caller */
    FXA__TORCH_MAPS
} fxa__torch_field;

typedef enum fxa__torch_want {
    FXA__TORCH_DQ = 0,
    FXA__TORCH_DK,
    FXA__TORCH_DV,
    FXA__TORCH_DSINK,
    FXA__TORCH_DSCALARS,
    FXA__TORCH_DTENSORS /* + i: gradient of captured tensor i */
} fxa__torch_want;

typedef struct fxa__torch_tensor {
    void *handle; /* NULL: none */
    void *data;
    const int64_t *size, *stride;
    int64_t rank;
    fxa_dtype dtype;
    int32_t device, index; /* type and index of the device, as PyTorch numbers them */
} fxa__torch_tensor;

/* The arguments of a call, on the caller's stack. Clearing all 2 x FXA_MAX_TENSORS tensors would take longer than the
 * rest of a small call, so only the members before the arrays are cleared; elements of an array beyond its count are
 * not set. */
typedef struct fxa__torch_call {
    bool backward;
    bool only_wanted; /* forward: lse and max that are not requested are NULL handles, not empty tensors */
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

/* Initializes a call without arguments. */
void fxa__torch_call_clear(fxa__torch_call *call, bool backward);
/* Takes ownership of all handles on the stack and reads them into the call. fxa__torch_call_end releases the handles,
 * also after a failure. */
fxa_status fxa__torch_call_begin(fxa__torch_call *call, const fxa__torch_value *stack, bool backward);
void fxa__torch_call_end(fxa__torch_call *call);

/* Run a call. Results are new tensors: out, lse, max in forward; one per requested gradient in backward. On failure
 * there are no results. */
fxa_status fxa__torch_call_forward(fxa__torch_call *call, void *results[3]);
fxa_status fxa__torch_call_backward(fxa__torch_call *call, void *results[FXA__TORCH_MAX_WANT]);

/* ---- Between torch_call.c and torch_problem.c ------------------------------------------------------------------- */

/* Creates a tensor on the device of `like` with the given dtype, sizes and strides. */
fxa_status fxa__torch_tensor_new(fxa__torch_call *call, const fxa__torch_tensor *like, fxa_dtype dtype, int64_t rank,
                                 const int64_t *size, const int64_t *stride, fxa__torch_tensor *out);
/* Creates a result tensor as fxa__torch_tensor_new does. A result of packed rows is cleared, because rows outside all
 * sequences are never written. If clearing fails, out->handle is set and the caller must release it. */
fxa_status fxa__torch_result_new(fxa__torch_call *call, const fxa__torch_tensor *like, fxa_dtype dtype, int64_t rank,
                                 const int64_t *size, const int64_t *stride, fxa__torch_tensor *out);
fxa_status fxa__torch_result_clear(fxa__torch_call *call, const fxa__torch_tensor *result);
/* Computes strides of a dense tensor of these sizes whose dimensions are ordered as in `like`, head dim innermost. */
void fxa__torch_strides_like(const fxa__torch_tensor *like, const int64_t size[4], int64_t stride[4]);
/* Returns the dtype of out, or of the gradient, of a tensor of this dtype: f32 for 16-bit dtypes if WIDE is set. */
fxa_dtype fxa__torch_result_dtype(const fxa__torch_call *call, fxa_dtype dtype);
/* Writes status and message into call->err. Returns `status`. */
fxa_status fxa__torch_fail(fxa__torch_call *call, fxa_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A workspace on a device (torch_device_workspace.c). */
typedef struct fxa__torch_workspace {
    void *handle; /* PyTorch's tensor that owns the memory; NULL: no workspace */
    void *data;
    size_t size; /* bytes; 0: not to be cached */
    const void *stream;
    int32_t index; /* device */
} fxa__torch_workspace;

/* A problem, the arguments of its run, and the arrays that both point to. Only the members before the arrays are
 * cleared, as in fxa__torch_call. */
typedef struct fxa__torch_problem {
    fxa_problem problem;
    fxa_args args;
    fxa_program *program, *bprop;
    bool captured;                  /* the stream is being captured into a CUDA graph */
    fxa__torch_workspace workspace; /* workspace on a device, allocated by PyTorch */
    void *host_workspace;           /* workspace on the host, cached per thread (torch_state.h) */
    fxa_capture captures[FXA_MAX_TENSORS], bprop_captures[FXA_MAX_TENSORS];
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    double params[FXA_MAX_PARAMS], bprop_params[FXA_MAX_PARAMS], dparams[FXA_MAX_PARAMS];
} fxa__torch_problem;

/* Sets the problem and arguments of a call, except the outputs. fxa__torch_problem_end releases what they hold. */
fxa_status fxa__torch_problem_begin(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx);
void fxa__torch_problem_end(fxa__torch_problem *p);
/* Describes a tensor as an operand: rank 4, or rank 3 for rows such as LSE. */
void fxa__torch_operand_set(fxa_operand *operand, const fxa__torch_tensor *tensor);
fxa_status fxa__torch_problem_run(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx);

/* Sets *out to the plan of a problem, with one reference for the caller. Looks it up among the plans of recent calls
 * (torch_plans.c), then in the context. */
fxa_status fxa__torch_plan_get(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out, fxa_error *err);
void fxa__torch_plans_clear(void);
void fxa__torch_plans_forget(void); /* drops the entries without releasing them; for a child after fork */

/* ---- Of torch_device.c ------------------------------------------------------------------------------------------ */

bool fxa__torch_is_on_host(const fxa__torch_tensor *tensor);
/* Sets the problem's device and stream: the one device that all tensors are on, and PyTorch's current stream there. */
fxa_status fxa__torch_device_begin(fxa__torch_problem *p, fxa__torch_call *call);
/* Returns true if the call is on a device and has no rows: nothing is to be computed, and no plan is needed. */
bool fxa__torch_has_no_rows(const fxa__torch_problem *p, const fxa__torch_call *call);
/* Sets *out to the plan of a problem on a device. All pointers of the arguments must be set. */
fxa_status fxa__torch_device_plan(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx, fxa_plan **out);
/* Sets p->workspace to a device workspace of `size` bytes for one run (torch_device_workspace.c). */
fxa_status fxa__torch_device_workspace_acquire(fxa__torch_problem *p, fxa__torch_call *call, size_t size);
/* Puts a workspace into the cache, or frees it if it is not to be cached. */
void fxa__torch_device_workspace_release(fxa__torch_workspace *workspace);
/* Frees all cached workspaces. */
void fxa__torch_device_workspaces_clear(void);
/* Empties the cache without freeing, in a child after fork, which has lost its devices. */
void fxa__torch_device_workspaces_forget(void);
/* Replaces tensors on a device that engines may reject (expanded, unaligned, ...) by dense copies. Returns true if it
 * copied one: the caller should try again. The call must own its handles. */
bool fxa__torch_call_make_dense(fxa__torch_call *call);

#endif
