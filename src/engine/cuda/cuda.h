/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda engine: kernels of this library, with the score program inlined. Its map, in the order of a call:
 *
 *   host/engine.c        table of the engine; instances, of a device or of a device description
 *   host/support.c       problem -> refusal, or the choice (fxa__cuda_choice): which kernels, with which settings
 *   host/recipes.c       table of attention kernels, their devices, conditions and tiles; table of source files
 *   codegen/             choice and program -> program.cuh, the text of the score program (codegen/generate.c)
 *   host/compile.c       kernel sources and program.cuh -> cubins, by NVRTC (gpu/nvrtc.h)
 *   host/code.c          cubins -> checked code, loaded if there is a device
 *   host/saved.c         cubins <-> bytes
 *   host/run.c           a run: host/workspace.c (buffers), host/arguments.c (FxaArgs), host/tensor_maps.c,
 *                        host/counters.c, then the launches of host/forward.c, host/backward.c or host/decode.c
 *   kernels/common/      headers of all kernels, and the kernels before and after the attention kernels
 *   kernels/sm90/        attention kernels (forward, decode, backward, dQ) by wgmma and TMA
 *   kernels/sm80/        attention kernels by mma.sync
 *   kernels/simt/        attention kernels without tensor cores
 */
#ifndef FXA_ENGINE_CUDA_CUDA_H
#define FXA_ENGINE_CUDA_CUDA_H

#include "../../gpu/launch.h"
#include "../../gpu/nvrtc.h"
#include "../gpu_pointers.h"
#include "codegen/codegen.h"
#include "kernels/common/args.h"
#include "kernels/common/traits.h"
#include "kernels/common/tile_shape.h"

/* A row of the recipe table: an attention kernel, the devices that it is for, and what it requires (host/recipes.h). */
typedef struct fxa__cuda_recipe fxa__cuda_recipe;

/* How a backward computes dQ. */
typedef enum fxa__cuda_dq {
    FXA__CUDA_DQ_NONE,      /* forward, or dQ is not requested */
    FXA__CUDA_DQ_ANY_ORDER, /* key tiles add to the sum of dQ in any order */
    FXA__CUDA_DQ_ORDERED,   /* key tiles add to the sum of dQ in a fixed order: ordered dQ */
    FXA__CUDA_DQ_OWN_KERNEL /* a separate kernel over query tiles computes dQ */
} fxa__cuda_dq;

/* Units: source files of kernels, each compiled separately to a cubin. host/recipes.c has their paths. */
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

/* Kernels of a problem and the settings that they are compiled with, chosen before anything is compiled. Depends on the
 * problem and the architecture alone. The key by which plans share compiled code contains these members, but no other
 * property of the problem's shape. */
typedef struct fxa__cuda_choice {
    const fxa__cuda_recipe *recipe;
    const char *better;  /* family that is preferred on the device but does not run the problem; NULL = none */
    const char *why_not; /* why `better` does not run the problem; NULL = `better` is NULL */
    fxa__cuda_dq dq;
    int32_t arch;              /* architecture of the device: 80, 90, ... */
    struct FxaTraits traits;   /* what kernels are compiled with; head dims are 32, 64, 96, 128, 192 or 256 */
    fxa_dtype dtype;           /* type in which kernels read Q, K, V and dO */
    fxa_dtype out_dtype;       /* type in which kernels write O and gradients: `dtype` or f32 */
    uint32_t units;            /* bit u set = the problem runs kernels of source file u (fxa__cuda_unit) */
    bool finite_factors;       /* params that are factors are finite and not 0; a factor of the entire score is > 0 */
    int32_t dense;             /* index of the captured tensor [.., q, k] that is read as pair.dense; -1 = none */
    bool operands_fit;         /* captured values per query or key (row and key operands) may be packed */
    bool converts;             /* Q, K, ... or results are converted through the workspace (host/convert.c) */
    bool rounds_before_adding; /* 16-bit results are rounded before they are added to the caller's results */
} fxa__cuda_choice;

/* A compiled source file. */
typedef struct fxa__cuda_module {
    uint8_t *cubin;        /* [size]; NULL = the problem runs no kernel of this source file */
    size_t size;           /* bytes of cubin */
    void *module;          /* CUmodule; NULL without a device */
    void *function[6];     /* CUfunctions in the order of fxa__cuda_units; NULL without a device */
    struct FxaShape shape; /* tile shape of the first kernel; zero if that kernel has none */
} fxa__cuda_module;

/* Tile lists and diagonal rows (tables of functions of q - k) that are stored with the code (host/plan_tables.c). */
typedef struct fxa__cuda_plan_table fxa__cuda_plan_table;

/* Compiled code. Plans whose keys (fxa__engine.key) are equal share it. */
typedef struct fxa__cuda_code {
    fxa__host *host;
    fxa__cuda_choice choice;
    fxa__cuda_program program; /* the generated text, and what the host computes or passes for it in each run */
    fxa__cuda_module unit[FXA__CUDA_UNIT_COUNT];
    int32_t processors; /* multiprocessors of the device */
    struct fxa__cuda_compiled_by {
        int32_t major, minor; /* version of the NVRTC that compiled the code, on this machine or another one */
        int32_t arch;         /* architecture of the code: the device's, or the newest older one that NVRTC supports */
    } maker;
    char detail[256];                       /* text of fxa_plan_description */
    _Atomic(fxa__cuda_plan_table *) tables; /* tile lists and diagonal rows of all problems that use the code */
} fxa__cuda_code;

/* A compiled source file that does not include the text of a program, so that programs share it (host/compile.c). */
typedef struct fxa__cuda_shared_unit fxa__cuda_shared_unit;

/* Counters of kernels in device memory: number of parts, of which each workspace uses one, and 32-bit words of a part
 * (host/counters.c). */
enum { FXA__CUDA_COUNTER_PARTS = 256, FXA__CUDA_COUNTER_WORDS = 4096 };

/* An instance of the engine: for a device, or for a device description. */
typedef struct fxa__cuda_self {
    fxa__gpu gpu; /* must be first: gpu/memory.c takes pointers to instances for pointers to `gpu` */
    fxa__host *host;
    int32_t arch;          /* architecture of the device */
    int32_t processors;    /* multiprocessors of the device */
    bool on_device;        /* false = the instance is for a device description, nothing can run */
    bool fast_math;        /* FXA_FAST_MATH=1 */
    bool with_lines;       /* FXA_CUDA_LINES=1: line numbers in compiled code */
    const char *forced;    /* kernel family that FXA_CUDA_FAMILY names; NULL = none */
    fxa__lock lock;        /* protects the search for NVRTC */
    char *nvrtc_folder;    /* FXA_NVRTC_PATH; NULL = not set */
    bool has_searched;     /* the search for NVRTC has ended, with the result in no_compiler */
    fxa_error no_compiler; /* FXA_OK, or why there is no NVRTC */
    fxa__nvrtc nvrtc;      /* the compiler; valid if no_compiler is FXA_OK after the search */
    _Atomic(fxa__cuda_shared_unit *) shared_units; /* list of cached cubins, which only grows; NULL = empty */
    _Atomic(void *) counters; /* device memory [parts][words of a part]; NULL = no code was created yet */
    _Atomic(uintptr_t) counter_owner[FXA__CUDA_COUNTER_PARTS]; /* [part of counters] workspace that uses it; 0 = free */
} fxa__cuda_self;

/* ---- host/support.c ---------------------------------------------------------------------------------------------- */

/* Chooses kernels for a problem and generates the program's text. Returns E_UNSUPPORTED with the reason if no kernel
 * runs the problem, E_MEMORY, or an error of the program. The caller frees *program in any case. */
fxa_status fxa__cuda_choose(const fxa__cuda_self *self, const fxa__problem *p, fxa__cuda_choice *out,
                            fxa__cuda_program *program, fxa_error *err);
/* Returns the type in which kernels read operands: the common type of Q, K, V and dO if it is f16 or bf16, else f32.
 * Operands of other types are converted through the workspace. */
fxa_dtype fxa__cuda_input_dtype(const fxa_problem *p);
/* Returns the type in which kernels write results: the input type if all results have it, else f32. */
fxa_dtype fxa__cuda_output_dtype(const fxa_problem *p);
/* Returns the reason in row `row` of the table of unsupported problems; NULL = the table is shorter. For tests. */
const char *fxa__cuda_refusal(size_t row);

/* ---- Code -------------------------------------------------------------------------------------------------------- */

/* host/code.c: sets code->unit. Compiles the source files of code->choice if `code` has no cubins, checks all cubins,
 * and loads them if the instance has a device. On failure the code must be released too. */
fxa_status fxa__cuda_code_make(fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err);
/* Unloads and frees the cubins. No launch of their kernels may be pending. */
void fxa__cuda_code_release(const fxa__cuda_self *self, fxa__cuda_code *code);
/* host/recipes.c: returns the path below kernels/ of a unit (source file of kernels), without ".cu"; NULL = no kernel
 * of the choice is in this unit. */
const char *fxa__cuda_unit_source(const fxa__cuda_choice *choice, fxa__cuda_unit unit);

/* host/compile.c: compiles the source files of code->choice. Returns E_UNSUPPORTED with the reason if there is no NVRTC
 * or NVRTC does not support the architecture. */
fxa_status fxa__cuda_compile(fxa__cuda_self *self, fxa__cuda_code *code, fxa_error *err);
/* Searches for NVRTC at the first call. Returns the result of the search, E_UNSUPPORTED or E_MEMORY with the reason. */
fxa_status fxa__cuda_compiler_find(fxa__cuda_self *self, fxa_error *err);
/* Initializes the NVRTC members of an instance; copies `folder`, which may be NULL. Returns E_MEMORY or OK. */
fxa_status fxa__cuda_compiler_init(fxa__cuda_self *self, const char *folder, fxa_error *err);
/* Closes NVRTC and frees what the NVRTC members of an instance own. */
void fxa__cuda_compiler_end(fxa__cuda_self *self);

/* host/cubin.c: returns the bytes of a symbol of a cubin, for a kernel its code; NULL = there is no such symbol or the
 * cubin is malformed. */
const uint8_t *fxa__cuda_cubin_find(const uint8_t *cubin, size_t size, const char *name, size_t *bytes);

/* host/saved.c: writes cubins, and reads them into code->unit. Reading returns E_BYTES if the bytes are not cubins
 * of the source files of code->choice. */
void fxa__cuda_saved_write(const fxa__cuda_code *code, fxa__writer *w);
fxa_status fxa__cuda_saved_read(fxa__reader *r, fxa__cuda_code *code, fxa_error *err);

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

/* host/cost.c: returns the estimated seconds of a run. */
double fxa__cuda_cost(int32_t processors, const fxa__cuda_choice *choice, const fxa__problem *p);

/* host/listing.c: writes source files, tiles, params and the program's text. */
void fxa__cuda_listing(const void *code, const fxa__problem *p, fxa__writer *w);

/* ---- Indices of a compiled source file's kernels in fxa__cuda_module.function ------------------------------------ */

enum { FXA__CUDA_SIMT_DKV, FXA__CUDA_SIMT_DQ }; /* unit BACKWARD of family simt */
/* unit PREPOST: kernels before and after the attention kernel of a backward */
enum { FXA__CUDA_PREPROCESS, FXA__CUDA_POSTPROCESS, FXA__CUDA_SINK_GRAD };
enum { FXA__CUDA_PACK_OPERANDS, FXA__CUDA_LIST_TILES, FXA__CUDA_RANGE_TABLE };         /* unit TILE_LISTS */
enum { FXA__CUDA_DIAGONAL_FILL };                                                      /* unit DIAGONAL_TABLE */
enum { FXA__CUDA_CONVERT_COPY, FXA__CUDA_CONVERT_MERGE, FXA__CUDA_WRITE_COORDINATES }; /* unit CONVERT */
/* unit PAGED_GRADS */
enum {
    FXA__CUDA_PAGES_GATHER,
    FXA__CUDA_PAGES_COUNT,
    FXA__CUDA_PAGES_OFFSETS,
    FXA__CUDA_PAGES_LIST,
    FXA__CUDA_PAGES_SORT,
    FXA__CUDA_PAGES_SCATTER
};
/* unit CAPTURED_GRADS */
enum {
    FXA__CUDA_CAPTURED_TOTALS,
    FXA__CUDA_CAPTURED_SUMS,
    FXA__CUDA_CAPTURED_DIAGONAL,
    FXA__CUDA_CAPTURED_STORE,
    FXA__CUDA_CAPTURED_DENSE,
    FXA__CUDA_CAPTURED_PARAMS
};

/* ---- Shapes and workspace ---------------------------------------------------------------------------------------- */

/* host/recipes.c: returns the tile shape of a unit's attention kernel (kernels/common/tile_shape.h); zero if the unit
 * has none. */
struct FxaTileShape fxa__cuda_tile_shape(const fxa__cuda_choice *choice, fxa__cuda_unit unit);
/* Returns the exact bytes of a run's workspace; UINT64_MAX = they do not fit in 64 bits. */
uint64_t fxa__cuda_workspace(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                             const fxa__cuda_program *program, const fxa__problem *p);

/* host/decode.c: returns the number of CTAs of a cluster of the decode kernel; 0 = no clusters. */
int32_t fxa__cuda_decode_cluster(const fxa__cuda_self *self, const struct FxaTraits *traits, const fxa_problem *p,
                                 const struct FxaTileShape *shape);

/* host/convert.c: returns true if the operand of a slot is converted through the workspace. */
bool fxa__cuda_is_converted(const fxa_problem *p, fxa_slot slot);
/* Returns true if the operand of any slot is converted through the workspace. */
bool fxa__cuda_has_conversions(const fxa_problem *p);
/* Returns the type in which kernels read or write the operand of a slot. */
fxa_dtype fxa__cuda_kernel_dtype(const fxa_problem *p, fxa_slot slot);

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* host/plan_tables.c: implements fxa__engine.prepare. Writes the tile lists and diagonal rows that no argument of a run
 * changes. If memory runs out, each run writes these tables itself. */
void fxa__cuda_plan_tables_make(void *self, const void *code, const fxa__problem *p, const double *numbers);
/* Frees the tile lists and diagonal rows that are stored with the code. */
void fxa__cuda_plan_tables_free(const fxa__cuda_self *self, fxa__cuda_code *code);

/* host/counters.c: allocates the instance's counters with the first code on a device. */
fxa_status fxa__cuda_counters_load(fxa__cuda_self *self, fxa_error *err);
/* Frees the instance's counters, if any. */
void fxa__cuda_counters_free(fxa__cuda_self *self);

/* host/run.c: implement fxa__engine.zones (red zones of the workspace, for tests) and fxa__engine.run. */
void fxa__cuda_zones(void *self, const void *code, const fxa__problem *p, const void *workspace);
fxa_status fxa__cuda_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                         fxa_error *err);

#endif
