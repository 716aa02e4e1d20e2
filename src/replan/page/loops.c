/* Loops of the page: training to an accuracy, and SGD, with the same random numbers on every
   machine. K and T are at most MOST. */

#include <math.h>
#include <string.h>

#include "../core/replan.h"

enum { MOST = 6, STATE = 3 * MOST * MOST, MOST_SUBSTEPS = 1 << 15, BLOCK = 256 };

extern const kernels replan_erf, replan_relu;

int64_t replan_roll_out(const kernels *model, const double *p, int64_t pieces, int64_t T, int64_t C,
                        int64_t n, int64_t steps, const double *shares, const double *knobs,
                        const double *lengths, const int64_t *substeps, const double *starts,
                        double *ends, double *tape, double *work, flag *stop);

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

/* Whether two runs end at the same state, up to a part of 1 or of larger numbers, and at the same
   losses, which are differences of numbers near 1. */
static int agree(int64_t n, int64_t T, const double *a, const double *b, double accuracy)
{
    for (int64_t i = 0; i < n + T; i++)
        if (!(fabs(a[i] - b[i]) <= accuracy * fmax(fabs(b[i]), i < n) + 1e-15)) return 0;
    return 1;
}

/* Train from the first of states (pieces + 1, n), each piece with as many steps of RK4 as it takes
   for half of them, or standing still, to end alike. Writes the other states; returns how many pieces were
   completed before a divergence. */
EXPORT int64_t replan_integrate(const kernels *model, const double *p, int64_t pieces, int64_t T,
                                int64_t n, const double *shares, const double *knobs,
                                const double *lengths, double accuracy, double *states,
                                double *work, flag *stop)
{
    double before[STATE + MOST], now[STATE + MOST] = {NAN}; /* a state, then its losses */
    double tape[4 * STATE];
    for (int64_t i = 0, substeps = 1; i < pieces; i++, states += n) {
        int agreed;
        substeps = substeps > 8 ? substeps / 8 : 1;
        do {
            memcpy(before, now, sizeof now);
            if (!replan_roll_out(model, p, 1, T, 3 * T, n, 1, shares + i * T, knobs + 3 * i * T,
                                 lengths + i, &substeps, states, now, tape, work, stop))
                now[0] = NAN;
            replan_losses(model, p, 1, n, T, now, now + n, work, stop);
            substeps *= 2;
            agreed = agree(n, T, before, now, accuracy);
        } while (!agreed && substeps <= MOST_SUBSTEPS);
        if (!agreed) return i;
        memcpy(states + n, now, (size_t)n * sizeof(double));
    }
    return pieces;
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

/* Train a network with parameters p from the first of states (pieces + 1, n) by the pieces of a
   schedule, with samples whose tasks are drawn by the shares (pieces, T). Writes the other states;
   returns how many pieces were completed before a divergence. */
EXPORT int64_t replan_run_sgd(const kernels *model, const double *p, int64_t pieces,
                              const double *shares, const double *knobs, const double *lengths,
                              double dimension, uint32_t seed, double *states, double *work,
                              flag *stop)
{
    static double overlaps[4 * MOST * MOST], frame[MOST * MOST], along[MOST * MOST];
    static double rest[MOST * MOST], draws[BLOCK * (2 * MOST + 2)], paces[BLOCK];
    static int64_t tasks[BLOCK];
    const int64_t K = (int64_t)p[0], T = (int64_t)p[2], size = T + K, n = K * (size + T);
    const int64_t activation = model == &replan_erf ? 0 : model == &replan_relu ? 1 : 2;
    const double noise = p[3], *labels = p + 5 + T;
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
    for (int64_t i = 0, done = 0; i < pieces && !*stop; i++, states += n) {
        double *next = states + n, *heads = next + K * size;
        memcpy(next, states, (size_t)n * sizeof(double));
        time += lengths[i];
        for (const int64_t end = (int64_t)(time * dimension + 0.5); done < end;) {
            const int64_t count = end - done < BLOCK ? end - done : BLOCK;
            for (int64_t j = 0; j < count; j++) {
                double left = uniform(generator);
                for (tasks[j] = 0; tasks[j] < T - 1; tasks[j]++)
                    if ((left -= shares[i * T + tasks[j]]) < 0.0) break;
                paces[j] = knobs[3 * T * i + tasks[j]];
            }
            replan_draw(generator, normal, chi_square, count, size + 2, dimension - (double)size,
                        noise, draws);
            if (replan_advance_reduced(count, K, T, T, T, size + 2, 1, n, activation, dimension,
                                       noise, along, rest, heads, tasks, paces, paces, frame,
                                       labels, draws, &count, next, work) < count)
                return i;
            done += count;
        }
    }
    return pieces;
}
