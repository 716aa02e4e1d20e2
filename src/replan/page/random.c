/* What SGD on the page draws: seeded random numbers, the same on every machine. */

#include <math.h>

#include "../core/replan.h"

int64_t replan_draw(void *generator, double (*normal)(void *), double (*chi_square)(void *, double),
                    int64_t samples, int64_t columns, double freedom, double noise, double *draws);

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

EXPORT void replan_seed(uint32_t seed, uint32_t *generator)
{
    const uint32_t first[4] = {seed, 0x9e3779b9, 0x243f6a88, 1};
    for (int i = 0; i < 4; i++) generator[i] = first[i];
    for (int i = 0; i < 20; i++) uniform(generator);
}

/* Draw the task of each sample by the shares (T), and what replan_advance_reduced needs. */
EXPORT void replan_draw_samples(uint32_t *generator, int64_t samples, int64_t T,
                                const double *shares, int64_t columns, double freedom, double noise,
                                int64_t *tasks, double *draws)
{
    for (int64_t i = 0; i < samples; i++) {
        double rest = uniform(generator);
        for (tasks[i] = 0; tasks[i] < T - 1 && (rest -= shares[tasks[i]]) >= 0.0;) tasks[i]++;
    }
    replan_draw(generator, normal, chi_square, samples, columns, freedom, noise, draws);
}
