/* The kernel `rate` of replan/dynamics/teacher_student/_kernels.py in C: a peer of rate.py.
 * Same loops over lanes, the pairs of hidden units k <= h side by side, and the same layout of the
 * state [Q, M, V]. With -Ofast, gcc vectorises them and takes asin from glibc's libmvec. */
#include <math.h>
#include <stdlib.h>

static const double TWO_OVER_PI = 0.63661977236758134308;

typedef struct {
    int K, P, T, U;
    unsigned vectors; /* of 4 lanes */
    double noise;     /* squared */
    double *rates, *head_rates, *cov, *weights, *norms, *sides, *moments, *norms_once, *push;
    double *drift, *first, *second, *norms_twice, *angles, *squares;
    int *units, *active;
} work_t;

static inline double norm(double variance) { return 1.0 / sqrt(1.0 + variance); }

/* Vectors that hold so many numbers. Unsigned: in a loop to 4 times as many, gcc then sees that no
 * numbers are left over. */
static inline unsigned vectors_of(unsigned count) { return (count + 3) / 4; }

static void unpack(const double *restrict state, work_t *w)
{
    const int K = w->K, P = w->P, T = w->T, U = w->U;
    const double *M = state + K * K, *V = M + K * P;
    double *restrict cov = w->cov, *restrict weights = w->weights, *restrict norms = w->norms;
    for (int k = 0; k < K; k++) {
        for (int h = 0; h < K; h++) cov[k * U + h] = state[k * K + h];
        for (int p = 0; p < P; p++) cov[k * U + K + p] = cov[(K + p) * U + k] = M[k * P + p];
    }
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) weights[t * U + k] = V[t * K + k];
    for (int a = 0; a < U; a++) norms[a] = norm(cov[a * U + a]);
}

/* List the tasks that have a share and the units in their errors. */
static void select_units(const double *shares, work_t *w, int *tasks, int *units)
{
    const int K = w->K, U = w->U;
    *tasks = 0, *units = K;
    for (int t = 0; t < w->T; t++)
        if (shares[t] != 0.0) w->active[(*tasks)++] = t;
    for (int k = 0; k < K; k++) w->units[k] = k;
    for (int p = K; p < U; p++)
        for (int i = 0; i < *tasks; i++)
            if (w->weights[w->active[i] * U + p] != 0.0) {
                w->units[(*units)++] = p;
                break;
            }
}

/* One unit's covariances with the K hidden units, tilted by them. */
static inline void tilt_row(int K, double variance, double norm_n, const double *restrict cov,
                            const double *restrict norms, double *restrict sides,
                            double *restrict moments, double *restrict norms_once)
{
    for (int k = 0; k < K; k++) {
        const double side = cov[k] * norms[k];
        sides[k] = side;
        moments[k] = side * norm_n;
        norms_once[k] = variance - side * side;
    }
}

static inline void finish_once(unsigned vectors, double *restrict moments,
                               double *restrict norms_once)
{
    for (unsigned at = 0; at < 4 * vectors; at++) {
        moments[at] = TWO_OVER_PI * asin(moments[at]);
        norms_once[at] = norm(norms_once[at]);
    }
}

static void tilt_once(int units, work_t *w)
{
    const int K = w->K, U = w->U;
    for (int j = 0; j < units; j++) {
        const int n = w->units[j];
        tilt_row(K, w->cov[n * U + n], w->norms[n], w->cov + n * U, w->norms, w->sides + j * K,
                 w->moments + j * K, w->norms_once + j * K);
    }
    finish_once(vectors_of(units * K), w->moments, w->norms_once);
}

static inline void spread_row(int K, const double *restrict cov, const double *restrict sides,
                              const double *restrict row, const double *restrict norms_once,
                              double *restrict first, double *restrict second)
{
    int at = 0;
    for (int k = 0; k < K; k++)
        for (int h = k; h < K; h++, at++) {
            first[at] = row[k];
            second[at] = (cov[h] - row[k] * sides[h * K + k]) * norms_once[h * K + k];
        }
}

static inline void finish_twice(unsigned vectors, double variance, const double *restrict first,
                                const double *restrict second, double *restrict norms_twice)
{
    for (unsigned at = 0; at < 4 * vectors; at++)
        norms_twice[at] = norm(variance - (first[at] * first[at] + second[at] * second[at]));
}

static void tilt_twice(int units, work_t *w)
{
    const int K = w->K, U = w->U, lanes = 4 * w->vectors;
    for (int j = 0; j < units; j++) {
        const double *cov = w->cov + w->units[j] * U;
        double *first = w->first + j * lanes, *second = w->second + j * lanes;
        spread_row(K, cov, w->sides, w->sides + j * K, w->norms_once, first, second);
        finish_twice(w->vectors, cov[w->units[j]], first, second, w->norms_twice + j * lanes);
    }
}

static void head_rate(const double *restrict shares, int tasks, int units, const work_t *w,
                      double *restrict dV)
{
    const int K = w->K, U = w->U;
    const double *restrict weights = w->weights, *restrict moments = w->moments;
    for (int i = 0; i < w->T * K; i++) dV[i] = 0.0;
    for (int i = 0; i < tasks; i++) {
        const int t = w->active[i];
        for (int k = 0; k < K; k++) {
            double total = 0.0;
            for (int j = 0; j < units; j++)
                total += weights[t * U + w->units[j]] * moments[j * K + k];
            dV[t * K + k] = -shares[t] * w->head_rates[t] * total;
        }
    }
}

static inline void add(unsigned count, double factor, const double *restrict row,
                       double *restrict out)
{
    for (unsigned i = 0; i < count; i++) out[i] += factor * row[i];
}

/* What the first-order step of hidden unit k does to all overlaps. */
static inline void drift_of(int k, const double *restrict shares, int tasks, int units, work_t *w)
{
    const int K = w->K, U = w->U;
    const double *restrict weights = w->weights;
    double *restrict push = w->push, *restrict drift = w->drift + k * U, along = 0.0;
    for (int j = 0; j < units; j++) {
        const int n = w->units[j];
        double total = 0.0;
        for (int i = 0; i < tasks; i++) {
            const int t = w->active[i];
            total += shares[t] * w->rates[t] * weights[t * U + k] * weights[t * U + n];
        }
        push[j] = TWO_OVER_PI * w->norms[k] * total * w->norms_once[j * K + k];
        along += push[j] * w->sides[j * K + k];
    }
    along *= w->norms[k];
    for (int h = 0; h < U; h++) drift[h] = push[0] * w->cov[h] - along * w->cov[k * U + h];
    for (int j = 1; j < units; j++) add(U, push[j], w->cov + w->units[j] * U, drift);
}

/* The arcsines of the correlations of units n and m, added with their weight. */
static inline void add_angles(unsigned vectors, double overlap, double weight,
                              const double *restrict first_n, const double *restrict first_m,
                              const double *restrict second_n, const double *restrict second_m,
                              const double *restrict norms_n, const double *restrict norms_m,
                              double *restrict angles, double *restrict squares)
{
    for (unsigned at = 0; at < 4 * vectors; at++) {
        const double left = overlap - first_n[at] * first_m[at] - second_n[at] * second_m[at];
        const double angle = asin(left * norms_n[at] * norms_m[at]);
        angles[at] = angle;
        squares[at] += weight * angle;
    }
}

/* The part of one pair of units in E[error^2] of each trained task. */
static inline void square_pair(int j, int j2, int tasks, work_t *w)
{
    const int U = w->U, lanes = 4 * w->vectors, n = w->units[j], m = w->units[j2];
    const int a = j * lanes, b = j2 * lanes;
    const double twice = j2 == j ? TWO_OVER_PI : 2.0 * TWO_OVER_PI;
    int known = 0;
    for (int i = 0; i < tasks; i++) {
        const double *weights = w->weights + w->active[i] * U;
        const double weight = twice * weights[n] * weights[m];
        if (weight == 0.0) continue; /* two teacher units that the task does not combine */
        if (known)
            add(4 * w->vectors, weight, w->angles, w->squares + i * lanes);
        else
            add_angles(w->vectors, w->cov[n * U + m], weight, w->first + a, w->first + b,
                       w->second + a, w->second + b, w->norms_twice + a, w->norms_twice + b,
                       w->angles, w->squares + i * lanes);
        known = 1;
    }
}

static void square(int tasks, int units, work_t *w)
{
    for (unsigned i = 0; i < 4 * w->vectors * tasks; i++) w->squares[i] = 0.0;
    for (int j = 0; j < units; j++)
        for (int j2 = 0; j2 <= j; j2++) square_pair(j, j2, tasks, w);
}

static void feature_rate(const double *restrict shares, int tasks, const work_t *w,
                         double *restrict out)
{
    const int K = w->K, P = w->P, U = w->U, lanes = 4 * w->vectors;
    const double *restrict weights = w->weights, *restrict drift = w->drift;
    double *restrict dM = out + K * K;
    int lane = 0;
    for (int k = 0; k < K; k++) {
        for (int h = k; h < K; h++, lane++) {
            double total = 0.0;
            for (int i = 0; i < tasks; i++) {
                const int t = w->active[i];
                const double both = weights[t * U + k] * weights[t * U + h];
                total += shares[t] * w->rates[t] * w->rates[t] * both *
                         (w->squares[i * lanes + lane] + w->noise);
            }
            total *= TWO_OVER_PI * w->norms[k] * w->norms_once[h * K + k];
            out[k * K + h] = out[h * K + k] = total - drift[k * U + h] - drift[h * U + k];
        }
        for (int p = 0; p < P; p++) dM[k * P + p] = -drift[k * U + K + p];
    }
}

static void rate(const double *state, const double *shares, const double *lr,
                 const double *head_lr, work_t *w, double *out)
{
    int tasks, units;
    unpack(state, w);
    for (int t = 0; t < w->T; t++) {
        w->rates[t] = lr[t];
        w->head_rates[t] = lr[t] * head_lr[t];
    }
    select_units(shares, w, &tasks, &units);
    tilt_once(units, w);
    head_rate(shares, tasks, units, w, out + w->K * (w->K + w->P));
    for (int k = 0; k < w->K; k++) drift_of(k, shares, tasks, units, w);
    tilt_twice(units, w);
    square(tasks, units, w);
    feature_rate(shares, tasks, w, out);
}

static double *take(double **from, int count)
{
    double *taken = *from;
    *from += 4 * vectors_of(count);
    return taken;
}

/* Hand out the scratch arrays; returns what is to be freed. */
static double *make_work(work_t *w)
{
    const int K = w->K, T = w->T, U = w->U, lanes = 4 * w->vectors;
    const int size = 2 * T + U * U + T * U + 2 * U + 4 * K * U + 3 * U * lanes + (1 + T) * lanes;
    double *room = calloc(size + 15 * 3, sizeof(double)), *next = room;
    w->rates = take(&next, T), w->head_rates = take(&next, T);
    w->cov = take(&next, U * U), w->weights = take(&next, T * U), w->norms = take(&next, U);
    w->sides = take(&next, K * U), w->moments = take(&next, K * U);
    w->norms_once = take(&next, K * U), w->push = take(&next, U), w->drift = take(&next, K * U);
    w->first = take(&next, U * lanes), w->second = take(&next, U * lanes);
    w->norms_twice = take(&next, U * lanes);
    w->angles = take(&next, lanes), w->squares = take(&next, T * lanes);
    w->units = calloc(U, sizeof(int)), w->active = calloc(T, sizeof(int));
    return room;
}

/* `calls` evaluations in a row, each fed a state that depends on the last. */
void repeat_rate(long calls, double *state, const double *shares, const double *lr, double noise,
                 const double *head_lr, int K, int P, int T, const double *teacher_overlaps,
                 const double *teacher_heads, double *out)
{
    work_t w = {.K = K, .P = P, .T = T, .U = K + P, .vectors = vectors_of(K * (K + 1) / 2)};
    double *room = make_work(&w);
    w.noise = noise * noise;
    for (int p = 0; p < P; p++) {
        for (int q = 0; q < P; q++) w.cov[(K + p) * w.U + K + q] = teacher_overlaps[p * P + q];
        for (int t = 0; t < T; t++) w.weights[t * w.U + K + p] = -teacher_heads[t * P + p];
    }
    for (long c = 0; c < calls; c++) {
        rate(state, shares, lr, head_lr, &w, out);
        for (int i = 0; i < K * K + K * P + T * K; i++) state[i] += 1e-12 * out[i];
    }
    free(room);
    free(w.units);
    free(w.active);
}
