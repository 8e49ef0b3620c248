/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda engine: kernels of this library, with the score program inlined. Its map, in the order of a call:
 *
 *   host/engine.c        table of the engine; instances, of a device or of a device description
 *   host/support.c       problem -> refusal, or the choice (fxa__cu_choice): which kernels, with which settings
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

typedef enum fxa__cu_family { FXA__CU_SM90, FXA__CU_SM80, FXA__CU_SIMT } fxa__cu_family;

/* Source files that are compiled on their own; which one a family has for it: host/code.c. */
typedef enum fxa__cu_unit {
    FXA__CU_FORWARD,
    FXA__CU_BACKWARD,
    FXA__CU_GRAD_Q,
    FXA__CU_ENDS,
    FXA__CU_LISTS,
    FXA__CU_DIAGONAL,
    FXA__CU_DECODE,
    FXA__CU_CAPTURED,
    FXA__CU_STAGE,
    FXA__CU_PAGES,
    FXA__CU_UNIT_COUNT
} fxa__cu_unit;

/* Which kernels a problem runs and what they are compiled with: by the problem alone (and the architecture), before
 * anything is compiled. Everything in it is in the key of the code; nothing else of shapes is. */
typedef struct fxa__cu_choice {
    fxa__cu_family family;
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
} fxa__cu_choice;

/* A compiled unit. Without a device (a profile): cubin alone. */
typedef struct fxa__cu_module {
    uint8_t *cubin;
    size_t size;
    void *module;
    void *function[6];     /* the kernels of the file, in its order: host/code.c has their names */
    struct FxaShape shape; /* of the first, where it has one */
} fxa__cu_module;

typedef struct fxa__cu_table fxa__cu_table; /* host/plan_tables.c */

typedef struct fxa__cu_code {
    fxa__host *host;
    fxa__cu_choice choice;
    fxa__cuda_program program; /* what the host has to give: params, words, diagonal, dense, sums, scatter */
    fxa__cu_module unit[FXA__CU_UNIT_COUNT];
    int32_t processors; /* of the device that it was made on or for */
    struct fxa__cu_maker {
        int32_t major, minor; /* of the NVRTC that compiled it, here or elsewhere */
        int32_t arch;         /* which it compiled it for: the device's own, or the newest of its family that it knew */
    } maker;
    char detail[256];
    _Atomic(fxa__cu_table *) tables; /* of its problems, which come and go */
} fxa__cu_code;

typedef struct fxa__cu_kept fxa__cu_kept; /* host/compile.c */

/* Memory of the device for counters (host/counters.c). */
enum { FXA__CU_PARTS = 256, FXA__CU_PART_WORDS = 4096 };

typedef struct fxa__cu_self {
    fxa__gpu gpu; /* first: see gpu/gpu_memory.c */
    fxa__host *host;
    int32_t arch; /* of the device */
    int32_t processors;
    bool on_device;
    bool fast_math; /* FXA_FAST_MATH=1 */
    bool lines;     /* FXA_CUDA_LINES=1 */
    int32_t forced; /* fxa__cu_family, by FXA_CUDA_FAMILY; -1: none */
    fxa__lock lock; /* of the compiler: the first who compiles something looks for it */
    char *folder;   /* FXA_NVRTC_PATH, or NULL */
    bool looked;
    fxa_error no_compiler; /* why there is none */
    fxa__nvrtc nvrtc;
    _Atomic(fxa__cu_kept *) kept;            /* compiled units that programs share */
    _Atomic(void *) counters;                /* [FXA__CU_PARTS, FXA__CU_PART_WORDS], once there is code */
    _Atomic(uintptr_t) owner[FXA__CU_PARTS]; /* whose part it is: a workspace; 0: nobody's yet */
} fxa__cu_self;

/* host/support.c. E_UNSUPPORTED with the reason. program: made for the answer, the caller frees it in any case. A run
 * gets what a plan has of its numbers as bound->constants, by param of the program (code is shared by problems that
 * differ in them). It looks that the scale is above 0 where the choice is plain. */
fxa_status fxa__cu_choose(const fxa__cu_self *self, const fxa__problem *p, fxa__cu_choice *out,
                          fxa__cuda_program *program, fxa_error *err);
/* The types that kernels read operands and write results in: those of the problem where all of them are of one type
 * that kernels have, else f32, and what is otherwise goes through the workspace. */
fxa_dtype fxa__cu_dtype_in(const fxa_problem *p);
fxa_dtype fxa__cu_dtype_out(const fxa_problem *p);
/* For the words on a plan: why a device that could has not the fastest family, which nothing else tells; "" where it
 * has, and for f32. */
const char *fxa__cu_not_sm90(const fxa__cu_self *self, const fxa_problem *p, const fxa__cu_choice *choice,
                             const fxa__cuda_program *program);
/* The why of a row of the support table, NULL past its end: for tests. */
const char *fxa__cu_support_why(size_t row);

/* codegen/assumptions.c: what codegen/codegen.h has to be told of a problem. derivative: of program; NULL: forward.
 * own: or NULL.
 */
int32_t fxa__cu_dense_tensor(const fxa__problem *p, const fxa_program *program);
bool fxa__cu_words_fit(const fxa__problem *p, const fxa_program *program);
bool fxa__cu_is_plain(fxa__host *host, const fxa_program *program, const fxa_program *derivative,
                      const fxa_program *own);
/* Whether the factor of the score is above 0 with these numbers and any scale above 0. */
bool fxa__cu_factor_is_positive(const fxa__cuda_program *program);

/* Tensors, by bits, that are as large as the text counts on; bits of none are set. */
uint64_t fxa__cu_fitting(const fxa__problem *p, const fxa__cuda_program *program);

/* codegen/coordinates.c: the program with the coordinates and lengths that the problem says; its tensors past the
 * caller's are arrays of slots. Whether coordinates are other than local indices, which dropout in kernels does not
 * know. */
fxa_status fxa__cu_coordinates(const fxa__problem *p, fxa_program *program, fxa_program **out, fxa_error *err);
bool fxa__cu_coordinates_move(const fxa_problem *p);
/* codegen/score_masks.c: the same with conditions of the mask that read the score in the score; p itself, retained,
 * where there are none. */
fxa_status fxa__cu_scored(fxa__host *host, fxa_program *p, fxa_program **out, fxa_error *err);
/* codegen/user_backward.c: the caller's backward program as kernels have it beside the score program; NULL: there is
 * none. */
fxa_status fxa__cu_own(const fxa__problem *p, fxa_program **out, fxa_error *err);
/* The slot of such a tensor; -1: the caller's. */
int32_t fxa__cu_coordinates_slot(const fxa_program *program, int32_t tensor);

/* host/code.c. Fills the units that the choice has: compiles them, or takes cubins that are there; on a device it
 * loads them. Free in any case, when nothing on the device uses them any more. */
fxa_status fxa__cu_build(fxa__cu_self *self, fxa__cu_code *code, fxa_error *err);
void fxa__cu_build_free(const fxa__cu_self *self, fxa__cu_code *code);
/* The source file of a unit, without its ending; NULL: the family has none. */
const char *fxa__cu_unit_file(const fxa__cu_choice *choice, fxa__cu_unit unit);
const char *fxa__cu_family_name(fxa__cu_family family); /* "sm90", "sm80", "simt" */

/* host/compile.c: cubins of the units that the choice has. Without a compiler, or where it makes no code for the
 * device, E_UNSUPPORTED with the reason. */
fxa_status fxa__cu_compile(fxa__cu_self *self, fxa__cu_code *code, fxa_error *err);
/* Looks for the compiler, once. */
fxa_status fxa__cu_compiler(fxa__cu_self *self, fxa_error *err);
/* What an instance has for it; `folder` is copied. E_MEMORY. */
fxa_status fxa__cu_compiler_init(fxa__cu_self *self, const char *folder, fxa_error *err);
void fxa__cu_compiler_end(fxa__cu_self *self);

/* host/cubin.c: the bytes of a symbol of a cubin, NULL: it has none. A kernel's are its code. */
const uint8_t *fxa__cu_cubin_find(const uint8_t *cubin, size_t size, const char *name, size_t *bytes);

/* host/saved.c */
void fxa__cu_saved_write(const fxa__cu_code *code, fxa__writer *w);
/* Fills cubins of the code's units, which fxa__cu_build then takes. E_BYTES: they are none of these units. */
fxa_status fxa__cu_saved_read(fxa__reader *r, fxa__cu_code *code, fxa_error *err);

/* host/decode.c: CTAs of a cluster, 0: none are clusters. */
int32_t fxa__cu_decode_cluster(const fxa__cu_self *self, const fxa__cu_choice *choice, const fxa_problem *p);

/* host/cost.c: seconds of a run, about. */
double fxa__cu_cost(int32_t processors, const fxa__cu_choice *choice, const fxa__problem *p);

/* host/listing.c: the program's text and tiles for people. */
void fxa__cu_dump(const void *code, const fxa__problem *p, fxa__writer *w);

/* Functions of units that have several: fxa__cu_module.function. */
enum { FXA__CU_PREPARE, FXA__CU_FINISH, FXA__CU_SUMS, FXA__CU_SINK }; /* ENDS: finish is not there with f32 */
enum { FXA__CU_VECTOR, FXA__CU_TILES, FXA__CU_RANGE };                /* LISTS */
enum { FXA__CU_FILL, FXA__CU_REDUCE };                                /* DIAGONAL */
enum { FXA__CU_KEYS, FXA__CU_QUERIES };                               /* BACKWARD of SIMT: fxa_backward, fxa_grad_q */

enum { FXA__CU_COPY, FXA__CU_JOIN, FXA__CU_PLACES }; /* STAGE */

/* PAGES */
enum {
    FXA__CU_PAGES_FETCH,
    FXA__CU_PAGES_COUNT,
    FXA__CU_PAGES_ROOM,
    FXA__CU_PAGES_LIST,
    FXA__CU_PAGES_SORT,
    FXA__CU_PAGES_STORE
};

/* CAPTURED */
enum { FXA__CU_TOTALS, FXA__CU_TO_SUMS, FXA__CU_TO_DIAGONAL, FXA__CU_STORE, FXA__CU_TO_DENSE, FXA__CU_TO_PARAMS };

/* host/workspace.c: rows of tiles of the kernels, as the sources have them (a test and every build compare them with
 * the constants of the cubins). shared_bytes is 0: the cubin alone says it. */
struct FxaShape fxa__cu_shape(const fxa__cu_choice *choice, const fxa__cuda_program *program, fxa__cu_unit unit);
/* Whether the shared memory of a Hopper CTA has room for the forward, for the backward with dQ beside dK and dV. */
bool fxa__cu_forward_fits(const fxa__cu_choice *choice, const fxa__cuda_program *program);
bool fxa__cu_joint_fits(const fxa__cu_choice *choice, const fxa__cuda_program *program);
/* Exact bytes of a run's workspace; UINT64_MAX: more than there are. program: of the code or made for the question. */
uint64_t fxa__cu_workspace(const fxa__cu_self *self, const fxa__cu_choice *choice, const fxa__cuda_program *program,
                           const fxa__problem *p);

/* host/convert.c: whether an operand goes through the workspace; any of them. */
bool fxa__cu_stage_is_needed(const fxa_problem *p, fxa_slot slot);
bool fxa__cu_stage_is_any(const fxa_problem *p);
/* The type that kernels have an operand in. */
fxa_dtype fxa__cu_stage_type(const fxa_problem *p, fxa_slot slot);

/* host/plan_tables.c: fxa__engine.prepare, for plans on a device. */
void fxa__cu_tables_make(void *self, const void *code, const fxa__problem *p, const double *numbers);
void fxa__cu_tables_free(const fxa__cu_self *self, fxa__cu_code *code);

/* host/counters.c: on a device, with the first code. */
fxa_status fxa__cu_counters_load(fxa__cu_self *self, fxa_error *err);
void fxa__cu_counters_free(fxa__cu_self *self);

/* host/run.c */
/* engine->zones. */
void fxa__cu_zones(void *self, const void *code, const fxa__problem *p, const void *workspace);
fxa_status fxa__cu_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                       fxa_error *err);

#endif
