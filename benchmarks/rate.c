/* The kernel `rate` of src/replan/core/erf.c written plainly: a peer of
 * rate.py. Same formulas and layout of the state [Q, M, V], but one pair of hidden units after the
 * other. */
#include <math.h>
#include <stdlib.h>

static const double TWO_OVER_PI = 0.63661977236758134308;

static inline double norm(double variance) { return 1.0 / sqrt(1.0 + variance); }

/* work: cov U*U, once U*U, weights T*U, norms U, norms_once U, norms_twice U, push U, coef T;
 * the teachers' entries of cov and weights are filled in by the caller. */
void rate(const double *state, const double *shares, const double *lr, double noise,
          const double *head_lr, int K, int P, int T, double *work, int *units, int *active,
          double *out)
{
    const int U = K + P;
    double *cov = work, *once = cov + U * U, *weights = once + U * U, *norms = weights + T * U;
    double *norms_once = norms + U, *norms_twice = norms_once + U, *push = norms_twice + U;
    double *coef = push + U;
    const double *M = state + K * K, *V = M + K * P;
    double *dQ = out, *dM = out + K * K, *dV = dM + K * P;

    for (int k = 0; k < K; k++) {
        for (int h = 0; h < K; h++) cov[k * U + h] = state[k * K + h];
        for (int p = 0; p < P; p++) cov[k * U + K + p] = cov[(K + p) * U + k] = M[k * P + p];
    }
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) weights[t * U + k] = V[t * K + k];
    for (int a = 0; a < U; a++) norms[a] = norm(cov[a * U + a]);

    int tasks = 0, count = K;
    for (int t = 0; t < T; t++)
        if (shares[t] != 0.0) active[tasks++] = t;
    for (int k = 0; k < K; k++) units[k] = k;
    for (int p = K; p < U; p++)
        for (int i = 0; i < tasks; i++)
            if (weights[active[i] * U + p] != 0.0) {
                units[count++] = p;
                break;
            }

    for (int i = 0; i < K * K + K * P + T * K; i++) out[i] = 0.0;
    for (int k = 0; k < K; k++)
        for (int j = k; j < count; j++) {
            const int n = units[j];
            const double moment = TWO_OVER_PI * asin(cov[k * U + n] * norms[k] * norms[n]);
            for (int i = 0; i < tasks; i++) {
                const int t = active[i];
                const double pace = shares[t] * lr[t] * head_lr[t] * moment;
                dV[t * K + k] -= pace * weights[t * U + n];
                if (k < n && n < K) dV[t * K + n] -= pace * weights[t * U + k];
            }
        }

    for (int k = 0; k < K; k++) {
        const double inverse = norms[k] * norms[k];
        for (int a = 0; a < U; a++) {
            for (int b = 0; b <= a; b++)
                once[a * U + b] = once[b * U + a] =
                    cov[a * U + b] - cov[a * U + k] * cov[b * U + k] * inverse;
            norms_once[a] = norm(once[a * U + a]);
        }
        for (int j = 0; j < count; j++) {
            const int n = units[j];
            double sum = 0.0;
            for (int i = 0; i < tasks; i++) {
                const int t = active[i];
                sum += shares[t] * lr[t] * weights[t * U + k] * weights[t * U + n];
            }
            push[j] = TWO_OVER_PI * norms[k] * sum * norms_once[n];
        }
        for (int h = 0; h < U; h++) {
            double drift = 0.0;
            for (int j = 0; j < count; j++) drift += push[j] * once[units[j] * U + h];
            if (h < K) {
                dQ[k * K + h] -= drift;
                dQ[h * K + k] -= drift;
            } else {
                dM[k * P + h - K] -= drift;
            }
        }
        for (int h = k; h < K; h++) {
            const double inv = 1.0 / (1.0 + once[h * U + h]);
            double total = 0.0;
            for (int i = 0; i < tasks; i++) {
                const int t = active[i];
                coef[i] = shares[t] * lr[t] * lr[t] * weights[t * U + k] * weights[t * U + h];
                total += coef[i] * noise * noise;
            }
            for (int j = 0; j < count; j++) {
                const int n = units[j];
                const double c = once[n * U + h];
                norms_twice[n] = norm(once[n * U + n] - c * c * inv);
            }
            for (int j = 0; j < count; j++) {
                const int n = units[j];
                for (int j2 = 0; j2 <= j; j2++) {
                    const int m = units[j2];
                    double weight = 0.0;
                    for (int i = 0; i < tasks; i++)
                        weight += coef[i] * weights[active[i] * U + n] * weights[active[i] * U + m];
                    if (weight == 0.0) continue;
                    if (j2 < j) weight *= 2.0;
                    const double overlap =
                        once[n * U + m] - once[n * U + h] * once[m * U + h] * inv;
                    total += weight * TWO_OVER_PI * asin(overlap * norms_twice[n] * norms_twice[m]);
                }
            }
            total *= TWO_OVER_PI * norms[k] * norms_once[h];
            dQ[k * K + h] += total;
            if (h != k) dQ[h * K + k] += total;
        }
    }
}

/* `calls` evaluations in a row, each fed a state that depends on the last. */
void repeat_rate(long calls, double *state, const double *shares, const double *lr, double noise,
                 const double *head_lr, int K, int P, int T, const double *teacher_overlaps,
                 const double *teacher_heads, double *out)
{
    const int U = K + P, size = K * K + K * P + T * K;
    double *work = calloc(2 * U * U + T * U + 4 * U + T, sizeof(double));
    int *units = calloc(U, sizeof(int)), *active = calloc(T, sizeof(int));
    for (int p = 0; p < P; p++)
        for (int q = 0; q < P; q++) work[(K + p) * U + K + q] = teacher_overlaps[p * P + q];
    for (int t = 0; t < T; t++)
        for (int p = 0; p < P; p++) work[2 * U * U + t * U + K + p] = -teacher_heads[t * P + p];
    for (long c = 0; c < calls; c++) {
        rate(state, shares, lr, noise, head_lr, K, P, T, work, units, active, out);
        for (int i = 0; i < size; i++) state[i] += 1e-12 * out[i];
    }
    free(work);
    free(units);
    free(active);
}

/* Classical RK4 with one step on each piece: replan_roll_out of src/replan/core/rk4.c.
 * states: (pieces + 1) rows, the first of which is the start. */
void roll_out(int pieces, double *states, const double *shares, const double *lr,
              const double *lengths, double noise, const double *head_lr, int K, int P, int T,
              const double *teacher_overlaps, const double *teacher_heads)
{
    const int U = K + P, n = K * K + K * P + T * K;
    double *work = calloc(2 * U * U + T * U + 4 * U + T, sizeof(double));
    double *stage = calloc(3 * n, sizeof(double)), *slope = stage + n, *total = slope + n;
    int *units = calloc(U, sizeof(int)), *active = calloc(T, sizeof(int));
    for (int p = 0; p < P; p++)
        for (int q = 0; q < P; q++) work[(K + p) * U + K + q] = teacher_overlaps[p * P + q];
    for (int t = 0; t < T; t++)
        for (int p = 0; p < P; p++) work[2 * U * U + t * U + K + p] = -teacher_heads[t * P + p];
    for (int piece = 0; piece < pieces; piece++) {
        const double *x = states + piece * n, h = lengths[piece];
        const double ahead[4] = {0.5 * h, 0.5 * h, h, 0.0}, part[4] = {1.0, 2.0, 2.0, 1.0};
        for (int i = 0; i < n; i++) stage[i] = x[i], total[i] = 0.0;
        for (int s = 0; s < 4; s++) {
            rate(stage, shares + piece * T, lr + piece * T, noise, head_lr, K, P, T, work, units,
                 active, slope);
            for (int i = 0; i < n; i++) {
                total[i] += part[s] * slope[i];
                stage[i] = x[i] + ahead[s] * slope[i];
            }
        }
        for (int i = 0; i < n; i++) states[(piece + 1) * n + i] = x[i] + h / 6.0 * total[i];
    }
    free(work);
    free(stage);
    free(units);
    free(active);
}
