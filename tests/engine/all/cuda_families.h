/* SPDX-License-Identifier: Apache-2.0
 *
 * Families of the cuda engine's kernels as numbers, for tables of tests.
 */
#ifndef FXA_TESTS_CUDA_FAMILIES_H
#define FXA_TESTS_CUDA_FAMILIES_H

#include "engine/cuda/host/recipes.h"

#include <stdio.h>
#include <string.h>

typedef enum cuda_family { FAMILY_SM90, FAMILY_SM80, FAMILY_SIMT } cuda_family;

static const char *const family_names[] = {"sm90", "sm80", "simt"};

/* Returns the family of a choice. */
__attribute__((unused)) static cuda_family family_of(const fxa__cuda_choice *c) {
    cuda_family family = FAMILY_SM90;
    while (strcmp(c->recipe->family, family_names[family]) != 0) family++;
    return family;
}

/* Returns the value of fxa__cuda_self.forced; -1 = no family is forced. */
__attribute__((unused)) static const char *family_forced(int family) {
    return family < 0 ? NULL : fxa__cuda_recipe_family(family_names[family]);
}

/* Returns the recipe with this name for an architecture. */
__attribute__((unused)) static const fxa__cuda_recipe *family_recipe(const char *name, int32_t arch) {
    const fxa__cuda_recipe *r = fxa__cuda_recipes;
    while (strcmp(r->name, name) != 0 || arch < r->arch_first || arch > r->arch_last) r++;
    return r;
}

/* Returns why another family does not run the problem, as the description of a plan says it. */
__attribute__((unused)) static const char *family_why(const fxa__cuda_choice *c) {
    static char text[160];
    if (!c->better) return "";
    (void)snprintf(text, sizeof text, ", not %s: %s", c->better, c->why_not);
    return text;
}

#endif
