/* SPDX-License-Identifier: Apache-2.0
 *
 * fxattn: fused attention with a score function of your own.
 *
 *     O = softmax( f( scale * Q K^T ; b, h, q, k, your tensors, your scalars ) ) V
 *
 * This is the file to include. It needs C11 or C++ and the headers of the C library. The interface is in four parts:
 *
 *     common.h             status and errors, context, storage types
 *     score_program.h      f: programs from text or builder, derivatives, properties, evaluation
 *     attention_problem.h  shapes, layouts, features, device; support queries; tiles
 *     attention_plan.h     compiled problems, runs, saving, merging, plan cache
 *
 *     text --parse--> fxa_program --+
 *                                   +--> fxa_problem --fxa_plan_create--> fxa_plan --fxa_plan_run(fxa_args)--> O
 *     shapes, layouts, features ----+
 *
 * Example: causal attention with a soft cap, without error handling (examples/forward.c is a complete program):
 *
 *     fxa_program_parse(ctx, "score = 20 * tanh(score / 20)", SIZE_MAX, &program, &err);
 *     fxa_problem problem = FXA_PROBLEM_INIT;
 *     problem.program = program, problem.flags = FXA_CAUSAL;
 *     problem.b = 1, problem.hq = 8, problem.sq = problem.sk = 1024, problem.d_qk = 64;
 *     fxa_args args = FXA_ARGS_INIT;
 *     args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = k, args.slot[FXA_SLOT_V] = v, args.slot[FXA_SLOT_O] = o;
 *     fxa_attention(ctx, &problem, &args, &err);
 *
 * Rules for all functions
 *
 * Errors      A function that can fail returns fxa_status. Its last argument is an optional fxa_error of the caller,
 *             which receives the reason. On failure no output is written, `*out` of a created object is NULL, and
 *             nothing leaks.
 * References  _create, _parse, _load, _finish and the other functions that make an object return one reference,
 *             _retain adds one, _destroy drops one and accepts NULL. Objects can be destroyed in any order: programs
 *             and plans outlive their context.
 * Arguments   Structs, arrays and strings of the caller are read during the call and copied if they are needed later.
 * Threads     Programs, plans and contexts can be used by several threads at the same time: programs and plans are
 *             immutable, a context locks internally. A builder belongs to one thread at a time.
 * Two-call    Functions with (out, capacity, needed) write text or bytes of unknown size. With out NULL such a function
 *             only sets *needed; otherwise it writes, and fails with E_ARGUMENT if capacity is too small. Text is
 *             NUL-terminated: capacity includes the NUL, *needed does not. needed may be NULL if out is not.
 * Effects     The library never prints, exits, aborts or changes global or thread-local state. Rounding mode, flushed
 *             denormals and trapped exceptions of the calling thread do not change results and are restored
 *             (docs/ownership.md).
 */
#ifndef FXATTN_FXATTN_H
#define FXATTN_FXATTN_H

#include "common.h"
#include "score_program.h"
#include "attention_problem.h"
#include "attention_plan.h"

#endif
