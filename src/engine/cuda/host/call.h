/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the files of a run: where its workspace lies (host/workspace.c), the arguments of its kernels
 * (host/arguments.c), and its launches (host/launch.c, host/forward.c, host/backward.c, host/decode.c). Everything here
 * is on the stack of the run: nothing is allocated.
 */
#ifndef FXA_ENGINE_CUDA_HOST_CALL_H
#define FXA_ENGINE_CUDA_HOST_CALL_H

#include "../../../base/carve.h"
#include "../cuda.h"

/* Tiles as fxa_tile_lists has them: its struct ListShape. */
typedef struct fxa__cuda_list_shape {
    int32_t q_rows, k_rows, rows, columns, by_key, parts;
} fxa__cuda_list_shape;

/* A tile list: rows for `heads` heads (1: shared by all) of `batch` entries. items NULL: there is no mask. */
typedef struct fxa__cuda_tile_list {
    int32_t *items, *counts;
    fxa__cuda_list_shape cut;
    int32_t heads, batch, pitch; /* pitch: ints of a row */
    bool kept;                   /* it is written already: host/plan_tables.c */
} fxa__cuda_tile_list;

/* A row of words per position, of `heads` heads and `batch` entries; node: the load, -1: zeroes. */
typedef struct fxa__cuda_packed_operand {
    int32_t *data, *ranges;
    int64_t pitch, length;
    int32_t heads, batch, node;
} fxa__cuda_packed_operand;

typedef struct fxa__cuda_diagonal_rows {
    float *data;
    int64_t pitch;
    int32_t heads, batch, zero;
    bool kept;
} fxa__cuda_diagonal_rows;

/* Gradients of captured tensors and params on their way. */
typedef struct fxa__cuda_captured_sums {
    float *sums; /* [b, h, sum_rows, n_sums]: of warps */
    int64_t sum_rows;
    double *totals;          /* [b, h, n_sums] */
    struct FxaExact *params; /* [n_sums] */
    void *parts; /* [b, h, part_rows, part_size]: along diagonals, a row for each key tile, or of sq + sk for all of
                    them where there are many or the order must not show; then FxaExact, else f32 */
    int32_t tiles, part_rows, part_size;
    bool one_row;
    bool direct;     /* pairs of the dense tensor go to the caller; else: */
    uint16_t *dense; /* [b, h, q, pitch]: of pairs */
    int64_t pitch;
    float *tensor[FXA_CUDA_TENSORS]; /* dense, in f32 or FxaExact */
    int64_t count[FXA_CUDA_TENSORS]; /* elements */
} fxa__cuda_captured_sums;

/* b, h, q, k. */
enum { FXA__CUDA_AXES = 4 };

/* Operands that may lie in the workspace, in the order of fxa__cuda_copy_of_slot(). */
enum { FXA__CUDA_COPIES = 8 };

/* Who uses a page, in the backward pass: common/paged_grads.cu. */
typedef struct fxa__cuda_page_users {
    int32_t *count, *used; /* [n_pages], [1]: 0 before the first launch */
    int32_t *end, *list;   /* [n_pages], [places of the table] */
} fxa__cuda_page_users;

/* The workspace of a run. */
typedef struct fxa__cuda_buffers {
    void *zero; /* so many words from here on are 0 before the first launch */
    size_t zero_words;
    size_t counter_words; /* of them: those that kernels leave at 0, from zero on */
    uint32_t *next_tile;  /* of the forward, of dQ */
    int32_t *redo;
    float *no_sink;                   /* a sink of score 0 for every head */
    fxa__cuda_packed_operand word[2]; /* of queries, of keys */
    fxa__cuda_diagonal_rows diagonal;
    int32_t *ranges[FXA_CUDA_RANGES];  /* tables of the program's; NULL: too large a tensor */
    fxa__cuda_tile_list queries, keys; /* lists of query tiles, of key tiles */
    float *lse, *lse2, *delta, *grad_q_sum;
    int32_t *first_share;
    uint32_t *sent;
    float *sink, *grad_sink;       /* as kernels have them, where the caller's are otherwise */
    void *spare[FXA__CUDA_COPIES]; /* what goes through the workspace, and dK and dV that nobody asked for */
    float *partial, *partial_ml;
    int *places[FXA__CUDA_AXES];                           /* coordinates, for dropout */
    int32_t splits, run, items, cut[FXA_CUDA_DECODE_CUTS]; /* of decode */
    fxa__cuda_captured_sums grads;
    fxa__cuda_page_users users;
    int32_t q_pad, pad_rows;
} fxa__cuda_buffers;

/* With base NULL it is only counted: bytes in all, UINT64_MAX where there are not so many. */
uint64_t fxa__cuda_buffers_make(const fxa__cuda_self *self, const fxa__cuda_choice *choice,
                                const fxa__cuda_program *program, const fxa__problem *p, fxa__carver c,
                                fxa__cuda_buffers *out);

/* One run. */
typedef struct fxa__cuda_call {
    const fxa__cuda_self *self;
    const fxa__cuda_code *code;
    const fxa__problem *p;
    const fxa__bound_args *bound;
    fxa_error *err;
    bool early; /* the stream's last work is a kernel of this run: the next one need not wait for its end to begin */
    bool words_due; /* the next list is written with the words that it reads */
    fxa__cuda_buffers at;
    fxa_view tensors[FXA_CUDA_TENSORS]; /* of the program: the caller's, then arrays of slots */
    _Alignas(128) struct FxaMaps maps;  /* the driver wants 64 */
    struct FxaArgs a;
} fxa__cuda_call;

/* Which operand, with its sizes, as kernels and maps take it. */
typedef struct fxa__cuda_operand {
    struct FxaView view;
    int64_t size[4]; /* b, h, s, d */
} fxa__cuda_operand;

/* host/plan_tables.c: lists and diagonal rows of earlier, where nothing that a run is given decides over them. */
void fxa__cuda_plan_tables_use(fxa__cuda_call *c);

/* host/counters.c: counters that are 0 already, where the instance has a part for the workspace. */
void fxa__cuda_counters_use(fxa__cuda_call *c);

/* The scale that units are made of: above 0 where the choice is plain. */
double fxa__cuda_unit_scale(const fxa__cuda_call *c);
/* host/arguments.c: all but the lists, and what single launches add. */
void fxa__cuda_args_make(fxa__cuda_call *c);
/* The operand of a slot as the caller gave it; that, or what stands in for it. */
fxa__cuda_operand fxa__cuda_operand_given(const fxa__cuda_call *c, fxa_slot slot);
fxa__cuda_operand fxa__cuda_operand_of(const fxa__cuda_call *c, fxa_slot slot);
/* host/tensor_maps.c: a map of a slot with boxes of so many rows. */
fxa_status fxa__cuda_tensor_map(fxa__cuda_call *c, fxa_slot slot, int32_t rows, struct FxaMap *out);
fxa_status fxa__cuda_tensor_map_dense(fxa__cuda_call *c, const struct FxaView *view, bool whole, int32_t rows,
                                      struct FxaMap *out);
/* Points the arguments to a list, or to none. */
void fxa__cuda_args_tile_list(fxa__cuda_call *c, const fxa__cuda_tile_list *list);
/* For divisions by this number; 1 for those by 0, of what is empty. */
struct FxaDivisor fxa__cuda_divisor(int64_t by);
/* How many query tiles of so many rows there are, and in which order they are taken. */
void fxa__cuda_args_query_order(fxa__cuda_call *c, int32_t q_rows);
/* In which order key tiles are taken where they add by turns. */
void fxa__cuda_args_dq_order(fxa__cuda_call *c);

typedef struct fxa__cuda_grid {
    int64_t x, y, z;
} fxa__cuda_grid;

/* host/launch.c: a kernel of the code, with the shape of its unit's first or so many threads. */
fxa_status fxa__cuda_launch(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid, int32_t threads,
                            void **params);
/* So many words from there on are 0 for launches after it. */
fxa_status fxa__cuda_clear(fxa__cuda_call *c, void *at, size_t words);
/* A kernel that takes (maps and) arguments. */
fxa_status fxa__cuda_launch_main(fxa__cuda_call *c, fxa__cuda_unit unit, int function, fxa__cuda_grid grid);
/* By query tiles: the forward, dQ. */
fxa_status fxa__cuda_launch_query_tiles(fxa__cuda_call *c, fxa__cuda_unit unit, int function);
/* Zeroes, words, diagonal rows: before everything else. first: the list that is written next, words perhaps with it. */
fxa_status fxa__cuda_prepasses(fxa__cuda_call *c, const fxa__cuda_tile_list *first);
fxa_status fxa__cuda_diagonal_write(fxa__cuda_call *c, const fxa__cuda_diagonal_rows *rows);
fxa_status fxa__cuda_tile_list_write(fxa__cuda_call *c, const fxa__cuda_tile_list *list);

/* host/dropout_coordinates.c: elements of an array of coordinates; what writes those that dropout needs. */
int64_t fxa__cuda_coordinate_count(const fxa_problem *p, int axis);
fxa_status fxa__cuda_dropout_coordinates_write(fxa__cuda_call *c);

/* host/convert.c: the place of a slot among spares, -1: none; its b, h, s, d. Copies before and after the kernels. */
int fxa__cuda_copy_of_slot(fxa_slot slot);
fxa_slot fxa__cuda_slot_of_copy(int spare);
void fxa__cuda_operand_sizes(const fxa_problem *p, fxa_slot slot, int64_t size[4]);
fxa_status fxa__cuda_convert_inputs(fxa__cuda_call *c);
fxa_status fxa__cuda_convert_results(fxa__cuda_call *c);

/* host/paged_grads.c: whether the pass has keys entry by entry in the workspace; K or V to there; lists of who uses a
 * page; dK or dV to the pool. */
bool fxa__cuda_has_gathered_pages(const fxa_problem *p);
fxa_status fxa__cuda_pages_gather(fxa__cuda_call *c, struct FxaConvert *s);
fxa_status fxa__cuda_page_users_list(fxa__cuda_call *c);
fxa_status fxa__cuda_pages_scatter(fxa__cuda_call *c, struct FxaConvert *s);

/* host/captured_grads.c: what the arguments of the backward kernels say of such gradients; and where those go after
 * them. */
void fxa__cuda_captured_grads_args(fxa__cuda_call *c);
/* Whether the kernel writes the gradient of the dense tensor where the caller wants it. */
bool fxa__cuda_is_dense_grad_direct(const fxa__cuda_choice *choice, const fxa__cuda_program *program,
                                    const fxa_problem *p);
fxa_status fxa__cuda_captured_grads_begin(fxa__cuda_call *c);
fxa_status fxa__cuda_captured_grads_store(fxa__cuda_call *c);

fxa_status fxa__cuda_forward(fxa__cuda_call *c);
fxa_status fxa__cuda_backward(fxa__cuda_call *c);
fxa_status fxa__cuda_decode(fxa__cuda_call *c);
/* splits, run and items of it, whose tiles are of this shape. */
void fxa__cuda_decode_split(const fxa__cuda_self *self, const fxa__cuda_choice *choice, const fxa_problem *p,
                            const struct FxaShape *shape, fxa__cuda_buffers *out);

#endif
