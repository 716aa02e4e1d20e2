/* Loops of the page: training to an accuracy, its gradients, and SGD, with the same random numbers on
   every machine. K and T are at most MOST. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../core/replan.h"

enum { MOST = 6, STATE = 3 * MOST * MOST, MOST_SUBSTEPS = 1 << 15, BLOCK = 256 };

extern const kernels replan_erf, replan_relu, replan_linear;

int64_t replan_erf_room(int64_t K, int64_t P, int64_t T);
int64_t replan_relu_room(int64_t K, int64_t P, int64_t T);
int64_t replan_linear_room(int64_t K, int64_t P, int64_t T);

int64_t replan_roll_out(const kernels *model, const double *p, int64_t pieces, int64_t T, int64_t C,
                        int64_t n, int64_t steps, const double *shares, const double *knobs,
                        const double *lengths, const int64_t *substeps, const double *starts,
                        double *ends, double *tape, double *work, flag *stop);

int64_t replan_roll_out_vjp(const kernels *model, const double *p, int64_t pieces, int64_t edges,
                            int64_t T, int64_t C, int64_t n, int64_t steps, const double *shares,
                            const double *knobs, const double *lengths, const int64_t *substeps,
                            const double *cotangents, const double *tape, double *adjoints,
                            double *by_shares, double *by_knobs, double *work, flag *stop);

int64_t replan_losses_vjp(const kernels *model, const double *p, int64_t rows, int64_t n, int64_t L,
                          const double *states, const double *cotangents, double *out, double *work,
                          flag *stop);

int64_t replan_losses(const kernels *model, const double *p, int64_t rows, int64_t n, int64_t L,
                      const double *states, double *out, double *work, flag *stop);

int64_t replan_draw(void *generator, double (*normal)(void *), double (*chi_square)(void *, double),
                    int64_t samples, int64_t columns, double freedom, double noise, double *draws);

int64_t replan_advance_reduced(int64_t samples, int64_t K, int64_t r, int64_t P, int64_t T,
                               int64_t columns, int64_t m, int64_t n, int64_t activation,
                               double dimension, double noise, double *along, double *rest,
                               double *heads, const int64_t *tasks, const double *rates,
                               const double *head_rates, const double *frame,
                               const double *teacher_heads, const double *draws,
                               const int64_t *marks, double *states, double *work);

/* As replan_advance_reduced numbers them. */
static const kernels *const MODELS[] = {&replan_erf, &replan_relu, &replan_linear};
static int64_t (*const ROOMS[])(int64_t, int64_t, int64_t) = {
    replan_erf_room, replan_relu_room, replan_linear_room};
static flag GO_ON = 0;

/* Where callers put arrays, and find results. */
EXPORT double replan_arrays[1 << 17];

/* A network with parameters p (see network.h), a schedule for it, and scratch space. knobs: (pieces, 3 T)
   of which each task's learning rate comes first. */
typedef struct {
    const kernels *model;
    const double *p, *shares, *lengths;
    double *knobs, *work;
    int64_t pieces, T, n;
} training;

static double *numbers(int64_t count)
{
    return calloc((size_t)count, sizeof(double));
}

/* rates: (pieces, width), of all tasks or of each. */
static training begin(int activation, const double *p, int pieces, int width, const double *shares,
                      const double *rates, const double *lengths)
{
    const int64_t K = (int64_t)p[0], T = (int64_t)p[2], n = K * (K + 2 * T);
    double *work = numbers(4 * n + ROOMS[activation](K, T, T)), *knobs = numbers(3 * T * pieces);
    for (int64_t i = 0; i < pieces; i++)
        for (int64_t j = 0; j < 3 * T; j++)
            knobs[3 * T * i + j] = j < T ? rates[i * width + j % width] : 1.0;
    return (training){MODELS[activation], p, shares, lengths, knobs, work, pieces, T, n};
}

static void end(training it)
{
    free(it.knobs);
    free(it.work);
}

/* The weighted sum of the final losses of a training by `substeps` steps of RK4 a piece, with exact
   gradients by shares and rates; infinity, without gradients, after a divergence. */
EXPORT double replan_gradient(int activation, const double *p, int pieces, int width,
                              const double *shares, const double *rates, const double *lengths,
                              const double *start, int substeps, const double *weights,
                              double *by_shares, double *by_rates)
{
    const training it = begin(activation, p, pieces, width, shares, rates, lengths);
    const int64_t T = it.T, n = it.n, steps = (int64_t)pieces * substeps;
    double *states = numbers((pieces + 1) * n), *adjoints = numbers((pieces + 1) * n);
    double *tape = numbers(4 * steps * n), *by_knobs = numbers(3 * T * pieces);
    int64_t *counts = calloc((size_t)pieces, sizeof(int64_t));
    double losses[MOST], value = INFINITY;
    for (int64_t i = 0; i < pieces; i++) counts[i] = substeps;
    memcpy(states, start, (size_t)n * sizeof(double));
    memset(by_shares, 0, (size_t)(pieces * T) * sizeof(double));
    memset(by_rates, 0, (size_t)(pieces * width) * sizeof(double));
    if (replan_roll_out(it.model, p, pieces, T, 3 * T, n, steps, shares, it.knobs, lengths, counts,
                        states, states + n, tape, it.work, &GO_ON) == pieces) {
        const double *last = states + pieces * n;
        replan_losses(it.model, p, 1, n, T, last, losses, it.work, &GO_ON);
        replan_losses_vjp(it.model, p, 1, n, T, last, weights, adjoints + pieces * n, it.work,
                          &GO_ON);
        replan_roll_out_vjp(it.model, p, pieces, pieces + 1, T, 3 * T, n, steps, shares, it.knobs,
                            lengths, counts, adjoints, tape, adjoints, by_shares, by_knobs,
                            it.work, &GO_ON);
        for (int64_t i = 0; i < pieces * T; i++)
            by_rates[i / T * width + i % T % width] += by_knobs[i / T * 3 * T + i % T];
        value = 0.0;
        for (int64_t t = 0; t < T; t++) value += weights[t] * losses[t];
    }
    free(states), free(adjoints), free(tape), free(by_knobs), free(counts);
    end(it);
    return value;
}

/* The losses (pieces + 1, T) at states (pieces + 1, n); NaN in both after a divergence. */
static void measure(training it, int64_t done, double *states, double *losses)
{
    const int64_t rows = it.pieces + 1;
    replan_losses(it.model, it.p, done + 1, it.n, it.T, states, losses, it.work, &GO_ON);
    for (int64_t i = (done + 1) * it.n; i < rows * it.n; i++) states[i] = NAN;
    for (int64_t i = (done + 1) * it.T; i < rows * it.T; i++) losses[i] = NAN;
}

/* Whether two runs end at the same state, up to a part of 1 or of larger numbers, and at the same
   losses, which are differences of numbers near 1. */
static int agree(int64_t n, int64_t T, const double *a, const double *b, double accuracy)
{
    for (int64_t i = 0; i < n + T; i++)
        if (!(fabs(a[i] - b[i]) <= accuracy * fmax(fabs(b[i]), i < n) + 1e-15)) return 0;
    return 1;
}

/* Train on piece i from the first of two states to the second, with as many steps of RK4 as it takes
   for half of them to end alike, from a quarter of `substeps` on. Returns whether any number is
   enough. */
static int train(training it, int64_t i, double accuracy, int64_t *substeps, double *states)
{
    double before[STATE + MOST], now[STATE + MOST] = {NAN}; /* a state, then its losses */
    double tape[4 * STATE];
    const int64_t n = it.n, T = it.T;
    for (*substeps = (*substeps + 3) / 4; *substeps <= MOST_SUBSTEPS; *substeps *= 2) {
        memcpy(before, now, sizeof now);
        if (!replan_roll_out(it.model, it.p, 1, T, 3 * T, n, 1, it.shares + i * T,
                             it.knobs + 3 * i * T, it.lengths + i, substeps, states, now, tape,
                             it.work, &GO_ON))
            now[0] = NAN;
        replan_losses(it.model, it.p, 1, n, T, now, now + n, it.work, &GO_ON);
        memcpy(states + n, now, (size_t)n * sizeof(double));
        if (agree(n, T, before, now, accuracy)) return 1;
    }
    return 0;
}

/* Train from the first of states to an accuracy. Writes the other states, and losses. */
EXPORT void replan_integrate(int activation, const double *p, int pieces, int width,
                             const double *shares, const double *rates, const double *lengths,
                             double accuracy, double *states, double *losses)
{
    const training it = begin(activation, p, pieces, width, shares, rates, lengths);
    int64_t done = 0, substeps = 1;
    while (done < pieces && train(it, done, accuracy, &substeps, states + done * it.n)) done++;
    measure(it, done, states, losses);
    end(it);
}

/* The generator sfc32 of PractRand; in (0, 1). */
static double uniform(void *generator)
{
    uint32_t *s = generator;
    const uint32_t sum = s[0] + s[1] + s[3]++;
    s[0] = s[1] ^ (s[1] >> 9);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 21) | (s[2] >> 11)) + sum;
    return (sum + 0.5) / 4294967296.0;
}

/* Box and Muller (1958), one of the two. */
static double normal(void *generator)
{
    const double radius = sqrt(-2.0 * log(uniform(generator)));
    return radius * cos(6.283185307179586 * uniform(generator));
}

/* Marsaglia and Tsang (2000), for 2 degrees of freedom or more. */
static double chi_square(void *generator, double freedom)
{
    const double d = freedom / 2.0 - 1.0 / 3.0;
    for (;;) {
        const double x = normal(generator), root = 1.0 + x / sqrt(9.0 * d), v = root * root * root;
        if (v > 0.0 && log(uniform(generator)) < x * x / 2.0 + d * (1.0 - v + log(v)))
            return 2.0 * d * v;
    }
}

/* Copy a block of a matrix to another; their rows have `width` and `room` numbers. */
static void copy(int64_t rows, int64_t columns, const double *from, int64_t width, double *to,
                 int64_t room)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[i * room + j] = from[i * width + j];
}

/* Replace A by its lower factor L, A = L L'; a row within the span of those before ends in 0. */
static void factor(int64_t size, double *A)
{
    for (int64_t i = 0; i < size; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double rest = A[i * size + j];
            for (int64_t k = 0; k < j; k++) rest -= A[i * size + k] * A[j * size + k];
            const double pivot = A[j * size + j], least = 1e-13 * A[i * size + i];
            if (i == j)
                A[i * size + i] = rest > least ? sqrt(rest) : 0.0;
            else
                A[i * size + j] = pivot > 0.0 ? rest / pivot : 0.0;
        }
        for (int64_t j = i + 1; j < size; j++) A[i * size + j] = 0.0;
    }
}

/* Train the first of states in so many dimensions by single samples, whose tasks are drawn by the
   shares: exact in law. Returns how many pieces were completed before a divergence. */
static int64_t run(training it, int activation, double dimension, uint32_t seed, double *states)
{
    static double overlaps[4 * MOST * MOST], frame[MOST * MOST], along[MOST * MOST];
    static double rest[MOST * MOST], draws[BLOCK * (2 * MOST + 2)], paces[BLOCK];
    static int64_t tasks[BLOCK];
    const int64_t K = (int64_t)it.p[0], T = it.T, size = T + K, n = it.n;
    const double noise = it.p[3], *labels = it.p + 5 + T;
    uint32_t generator[4] = {seed, 0x9e3779b9, 0x243f6a88, 1};
    for (int i = 0; i < 20; i++) uniform(generator);
    /* Teachers and students in an orthonormal frame: the factor of all their overlaps. */
    double *students = overlaps + T * size;
    copy(T, T, labels + T * T, T, overlaps, size);
    copy(K, T, states + K * K, T, students, size);
    copy(K, K, states, K, students + T, size);
    factor(size, overlaps);
    copy(T, T, overlaps, size, frame, T);
    copy(K, T, students, size, along, T);
    copy(K, K, students + T, size, rest, K);
    double time = 0.0;
    for (int64_t i = 0, done = 0; i < it.pieces; i++, states += n) {
        double *next = states + n, *heads = next + K * size;
        memcpy(next, states, (size_t)n * sizeof(double));
        time += it.lengths[i];
        for (const int64_t last = (int64_t)(time * dimension + 0.5); done < last;) {
            const int64_t count = last - done < BLOCK ? last - done : BLOCK;
            for (int64_t j = 0; j < count; j++) {
                double left = uniform(generator);
                for (tasks[j] = 0; tasks[j] < T - 1; tasks[j]++)
                    if ((left -= it.shares[i * T + tasks[j]]) < 0.0) break;
                paces[j] = it.knobs[3 * T * i + tasks[j]];
            }
            replan_draw(generator, normal, chi_square, count, size + 2, dimension - (double)size,
                        noise, draws);
            if (replan_advance_reduced(count, K, T, T, T, size + 2, 1, n, activation, dimension,
                                       noise, along, rest, heads, tasks, paces, paces, frame,
                                       labels, draws, &count, next, it.work) < count)
                return i;
            done += count;
        }
    }
    return it.pieces;
}

/* Train as by SGD. Writes the other states, and losses. */
EXPORT void replan_run_sgd(int activation, const double *p, int pieces, int width,
                           const double *shares, const double *rates, const double *lengths,
                           double dimension, uint32_t seed, double *states, double *losses)
{
    const training it = begin(activation, p, pieces, width, shares, rates, lengths);
    measure(it, run(it, activation, dimension, seed, states), states, losses);
    end(it);
}
