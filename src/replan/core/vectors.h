/* Loops over long vectors. */

#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>

/* a . b, as 16 sums side by side: a single one would wait for itself. */
static inline double dot(int64_t n, const double *restrict a, const double *restrict b)
{
    double sums[16], total = 0.0;
    int64_t i = 0;
    for (int64_t l = 0; l < 16; l++) sums[l] = 0.0;
    for (; i + 16 <= n; i += 16)
        for (int64_t l = 0; l < 16; l++) sums[l] += a[i + l] * b[i + l];
    for (; i < n; i++) total += a[i] * b[i];
    for (int64_t l = 0; l < 16; l++) total += sums[l];
    return total;
}

/* a += scale b */
static inline void add(int64_t n, double scale, const double *restrict b, double *restrict a)
{
    for (int64_t i = 0; i < n; i++) a[i] += scale * b[i];
}

#endif
