/* SPDX-License-Identifier: Apache-2.0
 *
 * Random problems and programs on a driver that only records calls: all parts of the workspace are inside it and
 * disjoint, and the driver accepts the arguments (cuda_run_fixture.h). Problems have any strides, dtypes, sizes of
 * captured tensors, coordinates and backward programs.
 */
#include "engine/all/gpu_any_problem.h"

enum { ANY_RUNS = 4000 };

TEST(whatever_is_taken_runs) {
    t_rng r = {t_seed()};
    int run = 0, refused = 0, none = 0;
    for (int i = 0; i < t_scaled(ANY_RUNS) && !t_failures; i++) {
        static any_case c;
        static bed x;
        any_make(&r, &c);
        if (!any_is_problem(&c.p)) {
            none++;
        } else if (bed_open(&x, &c.p, c.forced, &err)) {
            any_slots(&x);
            T_OK(bed_run(&x, &err));
            touch_check(&x);
            run++;
            if (t_failures) printf("  problem %d\n", i);
            bed_close(&x);
        } else {
            if (err.status != FXA_E_UNSUPPORTED) T_FAIL("%s\n", err.text);
            refused++;
            bed_close(&x);
        }
        fxa_program_destroy(c.program);
        fxa_program_destroy(c.own);
    }
    printf("  %d run, %d refused, %d are no problems\n", run, refused, none);
    T_CHECK(run > 2 * refused && run > none);
}

T_MAIN
