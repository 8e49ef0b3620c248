/* SPDX-License-Identifier: Apache-2.0
 *
 * The mutant that runs, and the mutants whose statements a run without one has reached (tools/mutants_schema.py).
 */
extern int fxa__mutant;
extern unsigned char *fxa__reached;
