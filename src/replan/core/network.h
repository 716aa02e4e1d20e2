/* What the teacher-student kernels of all activations share: how they read parameters, state and
   controls, and write derivatives.

   Notation: K hidden units, P teacher units, T tasks, U = K + P units in all, hidden ones first.
   The state is one vector [Q (K x K), M (K x P), V (T x K)]; C = [[Q, M], [M', S]] is the joint
   covariance of all units. Task t's error is Delta_t = sum_n w_tn g(lambda_n), w_t = (V_t, -A_t).
   With learning rates eta of the features and rho of the heads, and label noise sigma (paper,
   appendix A; the index order of I3 corrected):

     Q'_kh = - eta V_tk E[Delta g'_k lambda_h] - eta V_th E[Delta g'_h lambda_k]
             + eta^2 V_tk V_th E[(Delta^2 + sigma^2) g'_k g'_h]
     M'_kp = - eta V_tk E[Delta g'_k lambda*_p]
     V'_tk = - rho E[Delta g_k]

   Tasks mix linearly with their shares. The reverse differentiates the number H = cotangent . rate
   = sum_t s_t (eta_t B_t + eta_t^2 G_t + rho_t D_t); arrays named by_x hold the derivatives of H
   by x, with dH = sum_ab by_cov_ab dC_ab over all a, b. */

#ifndef NETWORK_H
#define NETWORK_H

#include <math.h>

#include "replan.h"
#include "vectors.h"

/* A loop over numbers side by side, none of which depends on another: it is vectorised. */
#if defined(__clang__)
#define EACH(i, count) \
    _Pragma("clang loop vectorize(assume_safety)") for (unsigned i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("GCC ivdep") for (unsigned i = 0; i < (count); i++)
#endif

#define PI 3.14159265358979323846
#define TWO_OVER_PI 0.63661977236758134308

/* Parameters are [K, P, T, sigma, pace, trained (T), A (T x P), S (P x P)]: pace is what batch size
   and momentum make of a learning rate of 1; trained is 1 where a head is trained, else 0. */
enum { NUMBERS = 5 };

typedef struct {
    int64_t K, P, T, U;
    double noise;           /* sigma^2 */
    double pace;
    const double *trained;  /* (T) */
    double *rates;          /* (T) eta of the features, on each task */
    double *head_rates;     /* (T) rho of the heads */
    double *cov;            /* (U, U) C */
    double *weights;        /* (T, U) w */
    double *by_cov;         /* (U, U) */
    double *by_weights;     /* (T, U) */
    double *linear;         /* (T) B */
    double *quadratic;      /* (T) G */
    double *heads;          /* (T) D */
    double *pull;           /* (K, U) what multiplies E[Delta g'_k lambda_h] in H */
    int64_t *active;        /* the tasks that have a share, */
    int64_t tasks;          /* their number, */
    int64_t *units;         /* the units in their errors, hidden ones first, */
    int64_t selected;       /* and their number */
} network;

/* Scratch space begins with a struct that says where all the arrays in the rest of it are. */
#define BEGIN(type, memory) {memory, (sizeof(type) + sizeof(double) - 1) / sizeof(double)}

/* How many vectors of 4 hold some numbers; unsigned, so that compilers see that none are left over
   in a loop to 4 times as many. */
static inline unsigned vectors_of(int64_t count)
{
    return (unsigned)((count + 3) / 4);
}

/* Hands out scratch space: whole vectors of 4 numbers each, set to 0. Without memory (null), it
   only counts. */
typedef struct {
    double *memory;
    int64_t used;
} arena;

static inline double *take(arena *from, int64_t count)
{
    double *taken = from->memory ? from->memory + from->used : 0;
    count = 4 * (int64_t)vectors_of(count);
    from->used += count;
    for (int64_t i = 0; taken && i < count; i++) taken[i] = 0.0;
    return taken;
}

static inline int64_t *take_integers(arena *from, int64_t count)
{
    return (int64_t *)take(from, count); /* as large as doubles */
}

static inline void take_network(int64_t K, int64_t P, int64_t T, network *net, arena *room)
{
    const int64_t U = K + P;
    net->K = K, net->P = P, net->T = T, net->U = U;
    net->rates = take(room, T), net->head_rates = take(room, T);
    net->cov = take(room, U * U), net->weights = take(room, T * U);
    net->by_cov = take(room, U * U), net->by_weights = take(room, T * U);
    net->linear = take(room, T), net->quadratic = take(room, T), net->heads = take(room, T);
    net->pull = take(room, K * U);
    net->active = take_integers(room, T), net->units = take_integers(room, U);
}

/* Fill in what the parameters determine. */
static inline void set_network(const double *p, network *net)
{
    const int64_t K = net->K, P = net->P, T = net->T, U = net->U;
    net->noise = p[3] * p[3], net->pace = p[4], net->trained = p + NUMBERS;
    const double *A = net->trained + T, *S = A + T * P;
    for (int64_t a = 0; a < P; a++) {
        for (int64_t b = 0; b < P; b++) net->cov[(K + a) * U + K + b] = S[a * P + b];
        for (int64_t t = 0; t < T; t++) net->weights[t * U + K + a] = -A[t * P + a];
    }
}

static inline void set_state(const double *restrict state, network *net)
{
    const int64_t K = net->K, P = net->P, T = net->T, U = net->U;
    const double *restrict M = state + K * K, *restrict V = M + K * P;
    double *restrict cov = net->cov, *restrict weights = net->weights;
    for (int64_t k = 0; k < K; k++) {
        for (int64_t h = 0; h < K; h++) cov[k * U + h] = state[k * K + h];
        for (int64_t p = 0; p < P; p++) cov[k * U + K + p] = cov[(K + p) * U + k] = M[k * P + p];
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) weights[t * U + k] = V[t * K + k];
}

/* Knobs (3 T) are the learning rate of each task, and its factors for features and heads. */
static inline void set_rates(const double *restrict knobs, network *net)
{
    const int64_t T = net->T;
    for (int64_t t = 0; t < T; t++) {
        const double lr = net->pace * knobs[t];
        net->rates[t] = lr * knobs[T + t];
        net->head_rates[t] = lr * knobs[2 * T + t] * net->trained[t];
    }
}

/* List the tasks that have a share and the units in their errors. */
static inline void select_trained(const double *restrict shares, network *net)
{
    const int64_t K = net->K, U = net->U;
    net->tasks = 0, net->selected = K;
    for (int64_t t = 0; t < net->T; t++)
        if (shares[t] != 0.0) net->active[net->tasks++] = t;
    for (int64_t k = 0; k < K; k++) net->units[k] = k;
    for (int64_t p = K; p < U; p++)
        for (int64_t i = 0; i < net->tasks; i++)
            if (net->weights[net->active[i] * U + p] != 0.0) {
                net->units[net->selected++] = p;
                break;
            }
}

/* List all tasks and units: losses and the reverse take all of them into account. */
static inline void select_all(network *net)
{
    net->tasks = net->T, net->selected = net->U;
    for (int64_t t = 0; t < net->T; t++) net->active[t] = t;
    for (int64_t n = 0; n < net->U; n++) net->units[n] = n;
}

static inline void clear(int64_t count, double *restrict numbers)
{
    for (int64_t i = 0; i < count; i++) numbers[i] = 0.0;
}

/* Begin a reverse: all derivatives are 0. */
static inline void set_cotangent(const double *restrict cotangent, network *net)
{
    const int64_t K = net->K, P = net->P, T = net->T, U = net->U;
    clear(U * U, net->by_cov), clear(T * U, net->by_weights);
    clear(T, net->linear), clear(T, net->quadratic), clear(T, net->heads);
    for (int64_t k = 0; k < K; k++) {
        for (int64_t h = 0; h < K; h++)
            net->pull[k * U + h] = cotangent[k * K + h] + cotangent[h * K + k];
        for (int64_t p = 0; p < P; p++) net->pull[k * U + K + p] = cotangent[K * K + k * P + p];
    }
}

/* Write the derivatives by Q, M and V. */
static inline void write_by_state(const network *net, double *restrict by_state)
{
    const int64_t K = net->K, P = net->P, T = net->T, U = net->U;
    const double *restrict by_cov = net->by_cov, *restrict by_weights = net->by_weights;
    double *restrict by_M = by_state + K * K, *restrict by_V = by_M + K * P;
    for (int64_t k = 0; k < K; k++) {
        for (int64_t h = 0; h < K; h++)
            by_state[k * K + h] = 0.5 * (by_cov[k * U + h] + by_cov[h * U + k]);
        for (int64_t p = 0; p < P; p++)
            by_M[k * P + p] = by_cov[k * U + K + p] + by_cov[(K + p) * U + k];
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) by_V[t * K + k] = by_weights[t * U + k];
}

/* Add `scale` times the derivatives by shares and knobs. */
static inline void add_by_controls(const double *restrict shares, const double *restrict knobs,
                                   double scale, const network *net, double *restrict by_shares,
                                   double *restrict by_knobs)
{
    const int64_t T = net->T;
    for (int64_t t = 0; t < T; t++) {
        const double rate = net->rates[t], lr = scale * net->pace * knobs[t];
        const double of_features = knobs[T + t], of_heads = knobs[2 * T + t];
        const double by_rate = shares[t] * (net->linear[t] + 2.0 * rate * net->quadratic[t]);
        const double by_head_rate = shares[t] * net->heads[t];
        by_shares[t] += scale * rate * (net->linear[t] + rate * net->quadratic[t]) +
                        lr * of_heads * net->heads[t];
        by_knobs[t] += scale * net->pace * (of_features * by_rate + of_heads * by_head_rate);
        by_knobs[T + t] += lr * by_rate;
        by_knobs[2 * T + t] += lr * by_head_rate;
    }
}

/* asin x to 4e-16, without branches and calls, so that loops over it are vectorised:
   asin s = s + s t f(t) with t = s^2 <= 1/4, where f is interpolated at 12 Chebyshev nodes;
   and asin |x| = pi/2 - 2 asin s with s^2 = (1 - |x|)/2 where |x| > 1/2: the smaller s^2 is meant,
   written so that gcc does not split it into cases. NaN beyond 1. */
static inline double arcsine(double x)
{
    const double size = fabs(x), square = x * x, rest = 0.5 - 0.5 * size;
    const double t = square < rest ? square : rest, s = sqrt(t);
    const double t2 = t * t, t4 = t2 * t2;
    const double low = (0.1666666666666665 + 0.07500000000020765 * t) +
                       (0.04464285710342321 + 0.030381947367126603 * t) * t2;
    const double middle = (0.022372047630842756 + 0.017355259972574907 * t) +
                          (0.013929652707668464 + 0.011875495831397978 * t) * t2;
    const double high = (0.007802942553252435 + 0.016035534893576755 * t) +
                        (-0.010749084786912803 + 0.028169243006249404 * t) * t2;
    const double f = low + (middle + high * t4) * t4;
    const double y = s + s * (t * f);
    return copysign(size <= 0.5 ? y : 0.5 * PI - 2.0 * y, x);
}

#endif
