/* Random starts and runs of SGD on the page, with random numbers that are the same on every machine. */

#include <math.h>

#include "../core/replan.h"

enum { BLOCK = 256 }; /* samples drawn at once */

int64_t replan_draw(void *generator, double (*normal)(void *), double (*chi_square)(void *, double),
                    int64_t samples, int64_t columns, double freedom, double noise, double *draws);

int64_t replan_advance_reduced(int64_t samples, int64_t K, int64_t r, int64_t P, int64_t T,
                               int64_t columns, int64_t m, int64_t n, int64_t activation,
                               double dimension, double noise, double *along, double *rest,
                               double *heads, const int64_t *tasks, const double *rates,
                               const double *head_rates, const double *frame,
                               const double *teacher_heads, const double *draws,
                               const int64_t *marks, double *states, double *work);

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

static void begin(uint32_t *generator, uint32_t seed)
{
    const uint32_t first[4] = {seed, 0x9e3779b9, 0x243f6a88, 1};
    for (int i = 0; i < 4; i++) generator[i] = first[i];
    for (int i = 0; i < 20; i++) uniform(generator);
}

/* The state of random weights beside orthogonal teachers, as TeacherStudent.fresh of the library
   draws it. work: K (K + T) numbers. */
EXPORT void replan_fresh(uint32_t seed, int64_t K, int64_t T, double *state, double *work)
{
    const double dimension = 20000.0, weight_variance = 1e-3, head_variance = 1e-2;
    const double scale = sqrt(weight_variance / dimension);
    const int64_t size = T + K;
    uint32_t generator[4];
    begin(generator, seed);
    for (int64_t k = 0; k < K; k++) {
        double *row = work + k * size, *Q = state + k * K, *M = state + K * K + k * T;
        for (int64_t j = 0; j < size; j++) row[j] = j < T + k ? scale * normal(generator) : 0.0;
        row[T + k] = scale * sqrt(chi_square(generator, dimension - (double)(T + k)));
        for (int64_t j = 0; j < T; j++) M[j] = row[j];
        for (int64_t h = 0; h <= k; h++) {
            Q[h] = 0.0;
            for (int64_t j = 0; j < size; j++) Q[h] += row[j] * work[h * size + j];
            state[h * K + k] = Q[h];
        }
    }
    for (int64_t i = K * size; i < K * (size + T); i++)
        state[i] = sqrt(head_variance) * normal(generator);
}

/* Replace the lower half of A by L with A = L L'; a row within the span of those before ends in 0. */
static void factor(int64_t size, double *A)
{
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j <= i; j++) {
            double rest = A[i * size + j];
            for (int64_t k = 0; k < j; k++) rest -= A[i * size + k] * A[j * size + k];
            const double pivot = A[j * size + j], least = 1e-13 * A[i * size + i];
            if (i == j)
                A[i * size + i] = rest > least ? sqrt(rest) : 0.0;
            else
                A[i * size + j] = pivot > 0.0 ? rest / pivot : 0.0;
        }
}

/* Copy a block of a matrix in which there are `width` numbers a row. */
static double *take(double **work, int64_t rows, int64_t columns, const double *from, int64_t width)
{
    double *to = *work;
    *work += rows * columns;
    for (int64_t i = 0; i < rows * columns; i++) to[i] = from[i / columns * width + i % columns];
    return to;
}

/* Train a network of T teachers and labels from a state by the pieces of a schedule, with samples
   whose tasks are drawn by the shares (pieces, T). Writes the states (pieces, n) after the pieces;
   returns how many were completed before a divergence. work: (2 (K + T))^2 + BLOCK (K + T + 4)
   numbers. */
EXPORT int64_t replan_run_sgd(int64_t activation, int64_t K, int64_t T, double dimension,
                              double noise, const double *overlaps, const double *state,
                              uint32_t seed, int64_t pieces, const double *shares,
                              const double *rates, const double *lengths, double *states,
                              double *work)
{
    const int64_t size = T + K, columns = size + 2, n = K * (K + 2 * T);
    uint32_t generator[4];
    begin(generator, seed);
    /* Teachers and students in an orthonormal frame: the factor of all their overlaps. */
    double *L = work, *frame, *along, *rest, *heads, *labels;
    for (int64_t i = 0; i < size * size; i++) L[i] = 0.0;
    work += size * size;
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j <= i; j++) L[i * size + j] = overlaps[i * T + j];
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j <= T + k; j++)
            L[(T + k) * size + j] = j < T ? state[K * K + k * T + j] : state[k * K + j - T];
    factor(size, L);
    frame = take(&work, T, T, L, size);
    along = take(&work, K, T, L + T * size, size);
    rest = take(&work, K, K, L + T * size + T, size);
    heads = take(&work, T, K, state + K * (K + T), K);
    labels = take(&work, T, T, overlaps, T);
    for (int64_t i = 0; i < T * T; i++) labels[i] = i % (T + 1) == 0;
    double *draws = work, *paces = draws + BLOCK * columns;
    int64_t tasks[BLOCK], done = 0;
    double time = 0.0;
    for (int64_t i = 0; i < pieces; i++) {
        time += lengths[i];
        for (const int64_t end = (int64_t)(time * dimension + 0.5); done < end;) {
            const int64_t count = end - done < BLOCK ? end - done : BLOCK;
            for (int64_t j = 0; j < count; j++) {
                double left = uniform(generator);
                for (tasks[j] = 0; tasks[j] < T - 1; tasks[j]++)
                    if ((left -= shares[i * T + tasks[j]]) < 0.0) break;
                paces[j] = rates[i];
            }
            replan_draw(generator, normal, chi_square, count, columns, dimension - (double)size,
                        noise, draws);
            if (replan_advance_reduced(count, K, T, T, T, columns, 1, n, activation, dimension,
                                       noise, along, rest, heads, tasks, paces, paces, frame,
                                       labels, draws, &count, states + i * n,
                                       paces + BLOCK) < count)
                return i;
            done += count;
        }
    }
    return pieces;
}
