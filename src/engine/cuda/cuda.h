/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda engine: kernels of this library, with the score program inlined. Its map, in the order of a call:
 *
 *   host/engine.c        table of the engine; instances, of a device or of a device description
 *   host/support.c       problem -> refusal, or the choice (fxa__cuda_choice): which kernels, with which settings
 *   codegen/             choice and program -> program.cuh, the text of the score program (codegen/generate.c)
 *   host/compile.c       kernel sources and program.cuh -> cubins, by NVRTC (gpu/gpu_nvrtc.h)
 *   host/code.c          cubins -> checked code, loaded if there is a device
 *   host/saved.c         cubins <-> bytes
 *   host/run.c           a run: host/workspace.c (buffers), host/arguments.c (FxaArgs), host/tensor_maps.c,
 *                        host/counters.c, then the launches of host/forward.c, host/backward.c or host/decode.c
 *   kernels/common/      headers of all kernels, and kernels before and after the main one
 *   kernels/sm90/        main kernels by wgmma and TMA
 *   kernels/sm80/        main kernels by mma.sync
 *   kernels/simt/        main kernels without tensor cores
 */
#ifndef FXA_ENGINE_CUDA_CUDA_H
#define FXA_ENGINE_CUDA_CUDA_H

#include "../../gpu/gpu_launch.h"
#include "../../gpu/gpu_nvrtc.h"
#include "../gpu_engine.h"
#include "codegen/codegen.h"
#include "kernels/common/args.h"

typedef enum fxa__cuda_family { FXA__CUDA_SM90, FXA__CUDA_SM80, FXA__CUDA_SIMT } fxa__cuda_family;

/* Source files that are compiled on their own; which one a family has for it: host/code.c. */
typedef enum fxa__cuda_unit {
    FXA__CUDA_FORWARD,
    FXA__CUDA_BACKWARD,
    FXA__CUDA_DQ,
    FXA__CUDA_PREPOST,
    FXA__CUDA_TILE_LISTS,
    FXA__CUDA_DIAGONAL_TABLE,
    FXA__CUDA_DECODE,
    FXA__CUDA_CAPTURED_GRADS,
    FXA__CUDA_CONVERT,
    FXA__CUDA_PAGED_GRADS,
    FXA__CUDA_UNIT_COUNT
} fxa__cuda_unit;

/* Which kernels a problem runs and what they are compiled with: by the problem alone (and the architecture), before
 * anything is compiled. Everything in it is in the key of the code; nothing else of shapes is. */
typedef struct fxa__cuda_choice {
    fxa__cuda_family family;
    int32_t arch;    /* of the device: 80, 90, ... */
    int32_t d, dv;   /* compiled: 32, 64, 96, 128, 192, 256 */
    fxa_dtype dtype; /* that kernels read Q, K, V, dO in; */
    fxa_dtype out;   /* and write O and gradients in: that, or f32 */
    bool wide_o;     /* backward: O is f32 all the same */
    uint32_t units;  /* by bits: those that the problem needs */
    bool spans, dropout, paged, aligned, fast_math, separate_dq, turns, plain;
    int32_t row_tiles; /* decode */
    int32_t cluster;   /* of decode: CTAs that share a row group, 0: any */
    int32_t dense;     /* the captured tensor that is read as pair.dense; -1 */
    bool words;
    bool maximum;      /* of rows is written */
    bool moved;        /* dropout goes by coordinates that are no indices: host/dropout_coordinates.c */
    bool staged, adds; /* host/convert.c: operands go through the workspace; are rounded before they are added */
} fxa__cuda_choice;

/* A compiled unit. Without a device (a profile): cubin alone. */
typedef struct fxa__cuda_module {
    uint8_t *cubin;
    size_t size;
    void *module;
    void *function[6];     /* the kernels of the file, in its order: host/code.c has their names */
    struct FxaShape shape; /* of the first, where it has one */
} fxa__cuda_module;

typedef struct fxa__cuda_plan_table fxa__cuda_plan_table; /* host/plan_tables.c */

typedef struct fxa__cuda_code {
    fxa__host *host;
    fxa__cuda_choice choice;
    fxa__cuda_program program; /* what the host has to give: params, words, diagonal, dense, sums, scatter */
    fxa__cuda_module unit[FXA__CUDA_UNIT_COUNT];
    int32_t processors; /* of the device that it was made on or for */
    struct fxa__cuda_compiled_by {
        int32_t major, minor; /* of the NVRTC that compiled it, here or elsewhere */
        int32_t arch;         /* which it compiled it for: the device's own, or the newest of its family that it knew */
    } maker;
    char detail[256];
    _Atomic(fxa__cuda_plan_table *) tables; /* of its problems, which come and go */
} fxa__cuda_code;

typedef struct fxa__cuda_shared_unit fxa__cuda_shared_unit; /* host/compile.c */

/* Memory of the device for counters (host/counters.c). */
enum { FXA__CUDA_COUNTER_PARTS = 256, FXA__CUDA_COUNTER_WORDS = 4096 };

typedef struct fxa__cuda_self {
    fxa__gpu gpu; /* first: see gpu/gpu_memory.c */
    fxa__host *host;
    int32_t arch; /* of the device */
    int32_t processors;
    bool on_device;
    bool fast_math; /* FXA_FAST_MATH=1 */
    bool lines;     /* FXA_CUDA_LINES=1 */
    int32_t forced; /* fxa__cuda_family, by FXA_CUDA_FAMILY; -1: none */
    fxa__lock lock; /* of the compiler: the first who compiles something looks for it */
    char *folder;   /* FXA_NVRTC_PATH, or NULL */
    bool looked;
    fxa_error no_compiler; /* why there is none */
    fxa__nvrtc nvrtc;
    _Atomic(fxa__cuda_shared_unit *) kept; /* compiled units that programs share */
    _Atomic(void *) counters;              /* [FXA__CUDA_COUNTER_PARTS, FXA__CUDA_COUNTER_WORDS], once there is code */
    _Atomic(uintptr_t) owner[FXA__CUDA_COUNTER_PARTS]; /* whose part it is: a workspace; 0: nobody's yet */
} fxa__cuda_self;

/* host/support.c. E_UNSUPPORTED with the reason. program: made for the answer, the caller frees it in any case. A run
 * gets what a plan has of its numbers as bound->constants, by param of the program (code is shared by problems that
 * differ in them). It looks that the scale is above 0 where the choice is plain. */
fxa_status fxa__cuda_choose(const fxa__cuda_self *self, const fxa__problem *p, fxa__cuda_choice *out,
                            fxa__cuda_program *program, fxa_error *err);
/* The types that kernels read operands and write results in: those of the problem where all of them are of one type
 * that kernels have, else f32, and what is otherwise goes through the workspace. */
fxa_dtype fxa__cuda_input_dtype(const fxa_problem *p);
fxa_dtype fxa__cuda_output_dtype(const fxa_problem *p);
/* For the words on a plan: why a device that could has not the fastest family, which nothing else tells; "" where it
 * has, and for f32. */
const char *fxa__cuda_why_not_sm90(const fxa__cuda_self *self, const fxa_problem *p, const fxa__cuda_choice *choice,
                                   const fxa__cuda_program *program);
/* The why of a row of the support table, NULL past its end: for tests. */
const char *fxa__cuda_refusal(size_t row);

/* codegen/assumptions.c: what codegen/codegen.h has to be told of a problem. derivative: of program; NULL: forward.
 * own: or NULL.
 */
int32_t fxa__cuda_dense_tensor(const fxa__problem *p, const fxa_program *program);
bool fxa__cuda_operands_fit(const fxa__problem *p, const fxa_program *program);
bool fxa__cuda_has_finite_factors(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                                  const fxa_program *own);
/* Whether the factor of the score is above 0 with these numbers and any scale above 0. */
bool fxa__cuda_factor_is_positive(const fxa__cuda_program *program);

/* Tensors, by bits, that are as large as the text counts on; bits of none are set. */
uint64_t fxa__cuda_tensors_fit(const fxa__problem *p, const fxa__cuda_program *program);

/* codegen/coordinates.c: the program with the coordinates and lengths that the problem says; its tensors past the
 * caller's are arrays of slots. Whether coordinates are other than local indices, which dropout in kernels does not
 * know. */
fxa_status fxa__cuda_coordinates_substitute(const fxa__problem *p, fxa_program *program, fxa_program **out,
                                            fxa_error *err);
bool fxa__cuda_has_mapped_coordinates(const fxa_problem *p);
/* codegen/score_masks.c: the same with conditions of the mask that read the score in the score; p itself, retained,
 * where there are none. */
fxa_status fxa__cuda_score_masks_move(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err);
/* codegen/user_backward.c: the caller's backward program as kernels have it beside the score program; NULL: there is
 * none. */
fxa_status fxa__cuda_user_backward_make(const fxa__problem *p, fxa_program **out, fxa_error *err);
/* The slot of such a tensor; -1: the caller's. */
int32_t fxa__cuda_coordinates_slot(const fxa_program *program, int32_t tensor);

/* host/code.c. Fills the units that the choice has: compiles them, or takes cubins that are there; on a device it
 * loads them. Free in any case, when nothing on the device uses them any more. */
fxa_status fxa__cuda_code_make(fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err);
void fxa__cuda_code_release(const fxa__cuda_self *self, fxa__cuda_code *code);
/* The source file of a unit, without its ending; NULL: the family has none. */
const char *fxa__cuda_unit_source(const fxa__cuda_choice *choice, fxa__cuda_unit unit);
const char *fxa__cuda_family_name(fxa__cuda_family family); /* "sm90", "sm80", "simt" */

/* host/compile.c: cubins of the units that the choice has. Without a compiler, or where it makes no code for the
 * device, E_UNSUPPORTED with the reason. */
fxa_status fxa__cuda_compile(fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err);
/* Looks for the compiler, once. */
fxa_status fxa__cuda_compiler_find(fxa__cuda_self *self, fxa_error *err);
/* What an instance has for it; `folder` is copied. E_MEMORY. */
fxa_status fxa__cuda_compiler_init(fxa__cuda_self *self, const char *folder, fxa_error *err);
void fxa__cuda_compiler_end(fxa__cuda_self *self);

/* host/cubin.c: the bytes of a symbol of a cubin, NULL: it has none. A kernel's are its code. */
const uint8_t *fxa__cuda_cubin_find(const uint8_t *cubin, size_t size, const char *name, size_t *bytes);

/* host/saved.c */
void fxa__cuda_saved_write(const fxa__cuda_code *code, fxa__writer *w);
/* Fills cubins of the code's units, which fxa__cuda_code_make then takes. E_BYTES: they are none of these units. */
fxa_status fxa__cuda_saved_read(fxa__reader *r, fxa__cuda_code *code, fxa_error *err);

/* host/decode.c: CTAs of a cluster, 0: none are clusters. */
int32_t fxa__cuda_decode_cluster(const fxa__cuda_self *self, const fxa__cuda_choice *choice, const fxa_problem *p);

/* host/cost.c: seconds of a run, about. */
double fxa__cuda_cost(int32_t processors, const fxa__cuda_choice *choice, const fxa__problem *p);

/* host/listing.c: the program's text and tiles for people. */
void fxa__cuda_listing(const void *code, const fxa__problem *p, fxa__writer *w);

/* Functions of units that have several: fxa__cuda_module.function. */
enum {
    FXA__CUDA_PREPROCESS,
    FXA__CUDA_POSTPROCESS,
    FXA__CUDA_SUMS_REDUCE,
    FXA__CUDA_SINK_GRAD
};                                                                             /* ENDS: finish is not there with f32 */
enum { FXA__CUDA_PACK_OPERANDS, FXA__CUDA_LIST_TILES, FXA__CUDA_RANGE_TABLE }; /* LISTS */
enum { FXA__CUDA_DIAGONAL_FILL, FXA__CUDA_DIAGONAL_REDUCE };                   /* DIAGONAL */
enum { FXA__CUDA_SIMT_DKV, FXA__CUDA_SIMT_DQ }; /* BACKWARD of SIMT: fxa_backward, fxa_grad_q */

enum { FXA__CUDA_CONVERT_COPY, FXA__CUDA_CONVERT_MERGE, FXA__CUDA_WRITE_COORDINATES }; /* STAGE */

/* PAGES */
enum {
    FXA__CUDA_PAGES_GATHER,
    FXA__CUDA_PAGES_COUNT,
    FXA__CUDA_PAGES_OFFSETS,
    FXA__CUDA_PAGES_LIST,
    FXA__CUDA_PAGES_SORT,
    FXA__CUDA_PAGES_SCATTER
};

/* CAPTURED */
enum {
    FXA__CUDA_CAPTURED_TOTALS,
    FXA__CUDA_CAPTURED_SUMS,
    FXA__CUDA_CAPTURED_DIAGONAL,
    FXA__CUDA_CAPTURED_STORE,
    FXA__CUDA_CAPTURED_DENSE,
    FXA__CUDA_CAPTURED_PARAMS
};

/* host/workspace.c: rows of tiles of the kernels, as the sources have them (a test and every build compare them with
 * the constants of the cubins). shared_bytes is 0: the cubin alone says it. */
struct FxaShape fxa__cuda_tile_shape(const fxa__cuda_choice *choice, const fxa__cuda_program *program,
                                     fxa__cuda_unit unit);
/* Whether the shared memory of a Hopper CTA has room for the forward, for the backward with dQ beside dK and dV. */
bool fxa__cuda_forward_fits(const fxa__cuda_choice *choice, const fxa__cuda_program *program);
bool fxa__cuda_fused_dq_fits(const fxa__cuda_choice *choice, const fxa__cuda_program *program);
/* Exact bytes of a run's workspace; UINT64_MAX: more than there are. program: of the code or made for the question. */
uint64_t fxa__cuda_workspace(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                             const fxa__cuda_program *program, const fxa__problem *p);

/* host/convert.c: whether an operand goes through the workspace; any of them. */
bool fxa__cuda_is_converted(const fxa_problem *p, fxa_slot slot);
bool fxa__cuda_has_conversions(const fxa_problem *p);
/* The type that kernels have an operand in. */
fxa_dtype fxa__cuda_kernel_dtype(const fxa_problem *p, fxa_slot slot);

/* host/plan_tables.c: fxa__engine.prepare, for plans on a device. */
void fxa__cuda_plan_tables_make(void *self, const void *code, const fxa__problem *p, const double *numbers);
void fxa__cuda_plan_tables_free(const fxa__cuda_self *self, fxa__cuda_code *code);

/* host/counters.c: on a device, with the first code. */
fxa_status fxa__cuda_counters_load(fxa__cuda_self *self, fxa_error *err);
void fxa__cuda_counters_free(fxa__cuda_self *self);

/* host/run.c */
/* engine->zones. */
void fxa__cuda_zones(void *self, const void *code, const fxa__problem *p, const void *workspace);
fxa_status fxa__cuda_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                         fxa_error *err);

#endif
