/* SPDX-License-Identifier: Apache-2.0
 *
 * Score programs and their twins in C with derivatives written by hand. The oracle uses the twins instead of the
 * library's parser, evaluator and derivative. Params and tensors are numbered in the order of their names, as in the
 * library.
 */
#include "attn_oracle.h"

#include <math.h>
#include <stddef.h>

static int64_t oracle_index(int32_t i, int64_t size) {
    int64_t at = i < 0 ? (int64_t)i + size : i;
    return at >= 0 && at < size ? at : -1;
}

double oracle_load(const oracle_pair *in, oracle_value *out, int tensor, int32_t i, int32_t j) {
    const oracle_tensor *t = &in->tensor[tensor];
    int64_t a = t->rank > 0 ? oracle_index(i, t->size[0]) : 0, b = t->rank > 1 ? oracle_index(j, t->size[1]) : 0;
    int64_t at = a < 0 || b < 0 ? -1 : a * (t->rank > 1 ? t->size[1] : 1) + b;
    out->load[out->n_loads].tensor = tensor;
    out->load[out->n_loads].at = at;
    out->load[out->n_loads++].by = 0;
    return at < 0 ? 0 : t->data[at];
}

/* Returns x modulo y as the language defines it, with the sign of y; requires y > 0. */
static int32_t twin_mod(int32_t x, int32_t y) { return (x % y + y) % y; }

static void twin_softcap_alibi(const oracle_pair *in, oracle_value *out) {
    double cap = in->param[0], distance = in->q - in->k, slope = oracle_load(in, out, 0, in->h, 0);
    double x = in->score + slope * distance, t = tanh(x / cap), slant = 1 - t * t;
    out->score = cap * t;
    out->by_score = slant;
    out->by_param[0] = t - slant * x / cap;
    out->load[0].by = slant * distance;
    out->mask = in->q >= in->k && in->q - in->k < 5;
}

static void twin_relative_bias(const oracle_pair *in, oracle_value *out) {
    out->score = in->score + oracle_load(in, out, 0, in->h, in->q - in->k + 2);
    out->load[0].by = 1;
}

static void twin_documents(const oracle_pair *in, oracle_value *out) {
    double doc_q = oracle_load(in, out, 0, in->q, 0), doc_k = oracle_load(in, out, 0, in->k, 0);
    out->mask = doc_q == doc_k;
}

/* Biases indexed by q_row and k_row, together with q and k that maps and start positions shift. */
static void twin_stored(const oracle_pair *in, oracle_value *out) {
    double moved = 1 + 0.125 * twin_mod((int32_t)((uint32_t)in->q - (uint32_t)in->q_row), 3);
    out->score = in->score + oracle_load(in, out, 0, in->q_row, in->k_row) * moved;
    out->load[0].by = moved;
    out->mask = in->k <= in->q || twin_mod((int32_t)((uint32_t)in->q_row + (uint32_t)in->k), 3) != 0;
}

static void twin_stored_documents(const oracle_pair *in, oracle_value *out) {
    double gain = in->param[0], apart = tanh(0.25 * (int32_t)((uint32_t)in->k - (uint32_t)in->k_row));
    out->score = in->score + gain * apart;
    out->by_param[0] = apart;
    out->mask = oracle_load(in, out, 0, in->q_row, 0) == oracle_load(in, out, 0, in->k_row, 0);
}

static void twin_polynomial(const oracle_pair *in, oracle_value *out) {
    double a = in->param[0], c = in->param[1], s = in->score;
    double t = oracle_load(in, out, 0, in->b, in->k), u = oracle_load(in, out, 1, 0, 0);
    out->score = a * s + c * s * s * 0.125 + t * u;
    out->by_score = a + c * s * 0.25;
    out->by_param[0] = s;
    out->by_param[1] = s * s * 0.125;
    out->load[0].by = u;
    out->load[1].by = t;
    out->mask = (in->q + in->k) % 3 != 0 || in->k_len > in->q_len;
}

static void twin_holes(const oracle_pair *in, oracle_value *out) {
    bool hole = ((in->q ^ in->k) & 1) != 0 && in->q != 2;
    out->score = hole || in->q == 3 ? -INFINITY : in->score * 1.5;
    out->by_score = hole || in->q == 3 ? 0 : 1.5;
}

static void twin_two_loads(const oracle_pair *in, oracle_value *out) {
    double w_q = oracle_load(in, out, 0, in->q, 0), w_k = oracle_load(in, out, 0, in->k, 0);
    out->score = in->score * w_q + w_k;
    out->by_score = w_q;
    out->load[0].by = in->score;
    out->load[1].by = 1;
}

static void twin_gate(const oracle_pair *in, oracle_value *out) {
    double f = twin_mod(in->k, 4), g = 1 / (1 + exp(in->score - f));
    out->score = in->score * g;
    out->by_score = g - in->score * g * (1 - g);
    out->mask = in->k < (int32_t)in->param[0] || in->q > in->k;
}

static void twin_lengths(const oracle_pair *in, oracle_value *out) {
    double gain = in->param[0], f = 0.25 * (in->k_len - in->q_len) * sin((double)in->q);
    out->score = in->score + gain * f;
    out->by_param[0] = f;
    out->mask = in->k <= in->q + in->k_len - in->q_len;
}

/* ALiBi slopes, 2 ** (-8 * (h + 1) / heads). Distances are bounded, because positions may be far away, and scores of a
 * billion have no digits left to compare. */
static void twin_heads(const oracle_pair *in, oracle_value *out) {
    double slope = pow(2, -8.0 * (in->h + 1) / in->heads);
    int32_t distance = (int32_t)((uint32_t)in->q - (uint32_t)in->k);
    out->score = in->score - slope * fmin(fabs((double)distance), 50);
    out->mask = in->k <= in->q || twin_mod(in->h, in->heads) == twin_mod(in->k, in->heads);
}

static void twin_selects(const oracle_pair *in, oracle_value *out) {
    double w = oracle_load(in, out, 0, in->h, 0), s = in->score;
    bool positive = s > 0;
    out->score = positive ? s * w : s / (1 + s * s);
    out->by_score = positive ? w : (1 - s * s) / ((1 + s * s) * (1 + s * s));
    out->load[0].by = positive ? s : 0;
}

const oracle_twin oracle_twins[] = {
    {.name = "identity", .text = "# as it comes\n", .smooth = true},
    {.name = "softcap_alibi",
     .text = "param cap : float\ntensor slopes : %s[1]\n"
             "score = cap * tanh((score + slopes[h] * (q - k)) / cap)\nmask = q >= k && q - k < 5",
     .n_params = 1,
     .n_tensors = 1,
     .smooth = true,
     .rank = {1},
     .fn = twin_softcap_alibi},
    {.name = "relative_bias",
     .text = "tensor bias : %s[2]\nscore = score + bias[h, q - k + 2]",
     .n_tensors = 1,
     .smooth = true,
     .rank = {2},
     .fn = twin_relative_bias},
    {.name = "documents",
     .text = "tensor doc : i32[1]\nmask = doc[q] == doc[k]",
     .n_tensors = 1,
     .int_tensor = true,
     .smooth = true,
     .rank = {1},
     .fn = twin_documents},
    {.name = "stored",
     .text = "tensor bias : %s[2]\nlet moved = 1 + 0.125 * float((q - q_row) %% 3)\n"
             "score = score + bias[q_row, k_row] * moved\nmask = k <= q || (q_row + k) %% 3 != 0",
     .n_tensors = 1,
     .smooth = true,
     .rank = {2},
     .fn = twin_stored},
    {.name = "stored_documents",
     .text = "param gain : float\ntensor doc : i32[1]\nscore = score + gain * tanh(0.25 * (k - k_row))\n"
             "mask = doc[q_row] == doc[k_row]",
     .n_params = 1,
     .n_tensors = 1,
     .int_tensor = true,
     .smooth = true,
     .rank = {1},
     .fn = twin_stored_documents},
    {.name = "polynomial",
     .text = "param a : float\nparam c : float\ntensor t : %s[2]\ntensor u : f64[0]\n"
             "score = a * score + c * score * score * 0.125 + t[b, k] * u[]\nmask = (q + k) %% 3 != 0 || k_len > q_len",
     .n_params = 2,
     .n_tensors = 2,
     .smooth = true,
     .rank = {2, 0},
     .fn = twin_polynomial},
    {.name = "holes",
     .text = "let hole = (q ^ k) & 1 != 0 && q != 2\nscore = hole || q == 3 ? -inf : score * 1.5",
     .smooth = true,
     .fn = twin_holes},
    {.name = "two_loads",
     .text = "tensor w : %s[1]\nscore = score * w[q] + w[k]",
     .n_tensors = 1,
     .smooth = true,
     .rank = {1},
     .fn = twin_two_loads},
    {.name = "gate",
     .text = "param n : int\nscore = score * sigmoid(float(k %% 4) - score)\nmask = k < n || q > k",
     .n_params = 1,
     .int_param = true,
     .smooth = true,
     .fn = twin_gate},
    {.name = "lengths",
     .text = "param gain : float\nscore = score + gain * (0.25 * float(k_len - q_len) * sin(float(q)))\n"
             "mask = k <= q + k_len - q_len",
     .n_params = 1,
     .smooth = true,
     .fn = twin_lengths},
    {.name = "heads",
     .text =
         "score = score - 2 ** (-8 * (h + 1) / heads) * min(abs(q - k), 50)\nmask = k <= q || h %% heads == k %% heads",
     .smooth = true,
     .fn = twin_heads},
    {.name = "selects",
     .text = "tensor w : %s[1]\nscore = score > 0 ? score * w[h] : score / (1 + score * score)",
     .n_tensors = 1,
     .rank = {1},
     .fn = twin_selects},
};
const int oracle_twin_count = (int)(sizeof oracle_twins / sizeof oracle_twins[0]);
