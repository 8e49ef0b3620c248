/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention with dense matrices: S, P, R (dropout) of one (b, h) as [Sq,Sk], with all products as plain loops
 * (attn_oracle.h).
 */
#include "attn_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void oracle_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]};
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t left = 0xD2511F53ull * x[0], right = 0xCD9E8D57ull * x[2];
        uint32_t key0 = key[0] + round * 0x9E3779B9u, key1 = key[1] + round * 0xBB67AE85u;
        uint32_t next[4] = {(uint32_t)(right >> 32) ^ x[1] ^ key0, (uint32_t)right,
                            (uint32_t)(left >> 32) ^ x[3] ^ key1, (uint32_t)left};
        memcpy(x, next, sizeof x);
    }
    memcpy(out, x, sizeof x);
}

int32_t oracle_row_at(const oracle *x, int64_t b, int64_t q) {
    return (int32_t)((uint32_t)x->at_q[q] + (x->shift_q ? (uint32_t)x->shift_q[b] : 0u));
}

/* Matrices [Sq,Sk] of one (b, h). */
typedef struct oracle_head {
    oracle *x;
    int64_t b, h, hkv;
    int64_t rows, keys;
    double *score, *p, *r;
    oracle_value *value;
} oracle_head;

static double oracle_dropout_factor(const oracle_head *w, int64_t q, int64_t k) {
    const oracle *x = w->x;
    if (!x->dropout) return 1;
    uint32_t at_k = (uint32_t)x->at_k[k], key[2] = {(uint32_t)x->seed, (uint32_t)(x->seed >> 32)}, word[4];
    uint32_t counter[4] = {at_k / 4, (uint32_t)oracle_row_at(x, w->b, q), (uint32_t)x->at_h[w->h],
                           (uint32_t)x->at_b[w->b]};
    oracle_philox(counter, key, word);
    double below = floor(ldexp(x->dropout_p, 32));
    return (double)word[at_k % 4] < below ? 0 : 1 / (1 - x->dropout_p);
}

static bool oracle_ready_mask(const oracle *x, const oracle_pair *at) {
    int64_t q = at->q, k = at->k;
    if (x->bottom_right) q += (int64_t)at->k_len - at->q_len;
    if (x->causal && k > q) return false;
    if (x->window && x->left >= 0 && k < q - x->left) return false;
    if (x->window && x->right >= 0 && k > q + x->right) return false;
    return true;
}

static void oracle_pair_fill(const oracle_head *w, int64_t q, int64_t k) {
    const oracle *x = w->x;
    const double *row = x->q + ((w->b * x->hq + w->h) * x->sq + q) * x->d;
    const double *key = x->k + ((w->b * x->hkv + w->hkv) * x->sk + k) * x->d;
    oracle_pair at = {0,          x->at_b[w->b],   x->at_h[w->h],   oracle_row_at(x, w->b, q),
                      x->at_k[k], x->seen_q[w->b], x->seen_k[w->b], x->seen_heads ? x->seen_heads : (int32_t)x->hq,
                      (int32_t)q, (int32_t)k,      x->param,        x->tensor};
    for (int64_t i = 0; i < x->d; i++) at.score += row[i] * key[i];
    at.score *= x->scale;
    oracle_value *value = &w->value[q * w->keys + k];
    memset(value, 0, sizeof *value);
    value->score = at.score, value->by_score = 1, value->mask = true;
    if (x->fn) x->fn(&at, value);
    value->mask = value->mask && oracle_ready_mask(x, &at);
    w->score[q * w->keys + k] = value->mask ? value->score : -INFINITY;
    w->r[q * w->keys + k] = oracle_dropout_factor(w, q, k);
}

static oracle_head oracle_head_make(oracle *x, int64_t b, int64_t h) {
    oracle_head w = {.x = x, .b = b, .h = h, .hkv = h / (x->hq / x->hkv), .rows = x->q_len[b], .keys = x->k_len[b]};
    size_t n = (size_t)(w.rows * w.keys) + 1;
    w.score = calloc(3 * n, sizeof(double));
    w.value = calloc(n, sizeof *w.value);
    if (!w.score || !w.value) abort();
    w.p = w.score + n;
    w.r = w.p + n;
    for (int64_t q = 0; q < w.rows; q++)
        for (int64_t k = 0; k < w.keys; k++) oracle_pair_fill(&w, q, k);
    return w;
}

static void oracle_head_free(oracle_head *w) {
    free(w->score);
    free(w->value);
}

/* Returns the LSE of a row, in which the sink is one of the terms, and writes the maximum score of the row to *max. */
static double oracle_row_lse(const oracle_head *w, int64_t q, double *max) {
    const oracle *x = w->x;
    const double *s = w->score + q * w->keys;
    double m = x->sink ? x->sink_score[w->h] : -INFINITY, sum = 0;
    bool bad = m != m || m == INFINITY;
    *max = -INFINITY;
    for (int64_t k = 0; k < w->keys; k++) {
        if (s[k] != s[k] || *max != *max)
            *max = NAN;
        else if (s[k] > *max)
            *max = s[k];
        bad = bad || s[k] != s[k] || s[k] == INFINITY;
        if (s[k] > m) m = s[k];
    }
    if (bad) return NAN;
    if (m == -INFINITY) return -INFINITY;
    if (x->sink) sum += exp(x->sink_score[w->h] - m);
    for (int64_t k = 0; k < w->keys; k++) sum += exp(s[k] - m);
    return m + log(sum);
}

static void oracle_probabilities(const oracle_head *w, const double *lse) {
    for (int64_t q = 0; q < w->rows; q++)
        for (int64_t k = 0; k < w->keys; k++) {
            double s = w->score[q * w->keys + k];
            w->p[q * w->keys + k] = s == -INFINITY || lse[q] == -INFINITY ? 0 : exp(s > lse[q] ? 0 : s - lse[q]);
        }
}

void oracle_forward(oracle *x) {
    for (int64_t b = 0; b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++) {
            oracle_head w = oracle_head_make(x, b, h);
            int64_t row0 = (b * x->hq + h) * x->sq;
            for (int64_t q = 0; q < x->sq; q++) {
                x->lse[row0 + q] = x->max[row0 + q] = -INFINITY;
                if (q < w.rows) x->lse[row0 + q] = oracle_row_lse(&w, q, &x->max[row0 + q]);
            }
            oracle_probabilities(&w, x->lse + row0);
            const double *v = x->v + (b * x->hkv + w.hkv) * x->sk * x->dv;
            for (int64_t q = 0; q < x->sq; q++)
                for (int64_t i = 0; i < x->dv; i++) {
                    double sum = x->lse[row0 + q] != x->lse[row0 + q] ? NAN : 0;
                    for (int64_t k = 0; q < w.rows && k < w.keys; k++) {
                        double weight = w.p[q * w.keys + k] * w.r[q * w.keys + k];
                        if (weight != 0) sum += weight * v[k * x->dv + i];
                    }
                    x->o[(row0 + q) * x->dv + i] = sum;
                }
            oracle_head_free(&w);
        }
}

/* Adds the gradients of one attended pair. dnew: gradient by the new score of the pair. */
static void oracle_pair_back(const oracle_head *w, int64_t q, int64_t k, double dnew) {
    oracle *x = w->x;
    const oracle_value *value = &w->value[q * w->keys + k];
    int64_t row = ((w->b * x->hq + w->h) * x->sq + q) * x->d, key = ((w->b * x->hkv + w->hkv) * x->sk + k) * x->d;
    for (int i = 0; i < ORACLE_PARAMS; i++) x->dparam[i] += dnew * value->by_param[i];
    for (int i = 0; i < value->n_loads; i++)
        if (value->load[i].at >= 0) x->dtensor[value->load[i].tensor][value->load[i].at] += dnew * value->load[i].by;
    double ds = dnew * value->by_score * x->scale;
    for (int64_t i = 0; i < x->d && ds != 0; i++) {
        x->dq[row + i] += ds * x->k[key + i];
        x->dk[key + i] += ds * x->q[row + i];
    }
}

static void oracle_row_back(const oracle_head *w, int64_t q) {
    oracle *x = w->x;
    int64_t row = (w->b * x->hq + w->h) * x->sq + q;
    const double *dout = x->dout + row * x->dv, *o = x->o + row * x->dv;
    double through_row = x->dlse ? x->dlse[row] : 0;
    for (int64_t i = 0; i < x->dv; i++) through_row -= dout[i] * o[i];
    for (int64_t k = 0; k < w->keys; k++) {
        double p = w->p[q * w->keys + k], r = w->r[q * w->keys + k], dp = 0;
        int64_t value = ((w->b * x->hkv + w->hkv) * x->sk + k) * x->dv;
        for (int64_t i = 0; i < x->dv && p * r != 0; i++) {
            x->dv_grad[value + i] += p * r * dout[i];
            dp += r * dout[i] * x->v[value + i];
        }
        double dnew = p == 0 ? 0 : p * (dp + through_row);
        if (dnew != 0) oracle_pair_back(w, q, k, dnew);
    }
    double sink = x->sink ? x->sink_score[w->h] - x->lse[row] : -INFINITY;
    if (x->sink && x->lse[row] != -INFINITY) x->dsink[w->h] += exp(sink > 0 ? 0 : sink) * through_row;
}

void oracle_backward(oracle *x) {
    for (int64_t b = 0; b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++) {
            oracle_head w = oracle_head_make(x, b, h);
            oracle_probabilities(&w, x->lse + (b * x->hq + h) * x->sq);
            for (int64_t q = 0; q < w.rows; q++) oracle_row_back(&w, q);
            oracle_head_free(&w);
        }
}
