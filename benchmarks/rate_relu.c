/* The kernel `rate` of ReLU networks, replan/dynamics/teacher_student/_relu_kernels.py, written
 * plainly in C: a peer of rate.py. Same formulas and layout of the state [Q, M, V], but one set of
 * four units after the other. */
#include <math.h>
#include <stdlib.h>

static const double PI = 3.14159265358979323846;
#define OVER_TWO_PI (0.5 / PI)
static const int FIRST[6] = {0, 0, 0, 1, 1, 2}, SECOND[6] = {1, 2, 3, 2, 3, 3};
static const int PLACE[4][4] = {{0, 0, 1, 2}, {0, 0, 3, 4}, {1, 3, 0, 5}, {2, 4, 5, 0}};
static double NODES[3][32], WEIGHTS[3][32];
static const int COUNTS[3] = {8, 16, 32};

static inline double bounded(double x, double bound) { return fmax(-bound, fmin(bound, x)); }

/* Gauss-Legendre rules on [0, 1] by Newton's method. */
static void make_rules(void)
{
    for (int rule = 0; rule < 3; rule++)
        for (int i = 0, n = COUNTS[rule]; i < n; i++) {
            double x = cos(PI * (i + 0.75) / (n + 0.5)), slope = 0.0;
            for (int step = 0; step < 100; step++) {
                double p = 1.0, last = 0.0;
                for (int k = 1; k <= n; k++) {
                    const double next = ((2 * k - 1) * x * p - (k - 1) * last) / k;
                    last = p;
                    p = next;
                }
                slope = n * (x * p - last) / (x * x - 1.0);
                x -= p / slope;
            }
            NODES[rule][i] = 0.5 * (1.0 + x);
            WEIGHTS[rule][i] = 1.0 / ((1.0 - x * x) * slope * slope);
        }
}

static double integrands(double t, double given[3][6])
{
    double total = 0.0;
    const double square = t * t;
    for (int i = 0; i < 3; i++) {
        const double *g = given[i], left = fmax(1.0 - square * g[0] * g[0], 1e-16);
        const double both = g[1] * left - square * g[4] * g[5];
        const double one = fmax(g[2] * left - square * g[4] * g[4], 1e-28);
        const double other = fmax(g[3] * left - square * g[5] * g[5], 1e-28);
        total += g[0] * asin(bounded(both / sqrt(one * other), 1.0)) / sqrt(left);
    }
    return total;
}

/* P(all four > 0): choose d, then integrate. */
static double orthant(const double *rho, const double *s, double left[4][6], const double *minors,
                      const double *cofactors, double angles)
{
    double given[3][6], square = 0.0, total = 0.0;
    int d = 0;
    for (int i = 1; i < 4; i++)
        if (cofactors[i] < cofactors[d]) d = i;
    for (int step = 0; step < 3; step++) {
        const int i = (d + step + 1) % 4, j = (d + (step + 1) % 3 + 1) % 4;
        const int k = (d + (step + 2) % 3 + 1) % 4;
        const int di = PLACE[d][i], ij = PLACE[i][j], ik = PLACE[i][k];
        square += rho[di] * minors[di];
        given[step][0] = rho[di];
        given[step][1] = left[i][PLACE[j][k]];
        given[step][2] = s[ij] * s[ij];
        given[step][3] = s[ik] * s[ik];
        given[step][4] = left[i][PLACE[j][d]];
        given[step][5] = left[i][PLACE[k][d]];
    }
    const double R = sqrt(fmin(fmax(square, 0.0) / cofactors[d], 1.0)), end = sqrt(1.0 - R);
    const int rule = R <= 0.7 ? 0 : R <= 0.98 ? 1 : 2;
    const double depth = log(fmax(end, 1e-6));
    for (int node = 0; node < COUNTS[rule]; node++) {
        const double v = NODES[rule][node];
        if (rule < 2) {
            const double c = 1.0 - (1.0 - end) * v, t = v * (1.0 + c) / (1.0 + end);
            total += WEIGHTS[rule][node] * 2.0 * c / (1.0 + end) * integrands(t, given);
        } else {
            const double c = exp(depth * v), t = (1.0 - c * c) / R;
            total -= WEIGHTS[rule][node] * 2.0 * c * c * depth / R * integrands(t, given);
        }
    }
    return 0.0625 + 0.25 * OVER_TWO_PI * angles + OVER_TWO_PI * OVER_TWO_PI * total;
}

/* E[Theta Theta c+ d+] for the steps of all six pairs of four units. */
static void four_moments(const double *rho, const double *s, double angles, double *moments)
{
    double left[4][6], minors[6], cofactors[4], orthants[6], crossings[4][4];
    for (int pair = 0; pair < 6; pair++)
        for (int side = 0; side < 2; side++) {
            const int i = side ? SECOND[5 - pair] : FIRST[5 - pair];
            left[i][pair] = rho[pair] - rho[PLACE[i][FIRST[pair]]] * rho[PLACE[i][SECOND[pair]]];
        }
    for (int ab = 0; ab < 6; ab++) {
        const int a = FIRST[ab], b = SECOND[ab], i = FIRST[5 - ab], j = SECOND[5 - ab];
        const double by_i = left[i][PLACE[a][j]] * left[i][PLACE[b][j]];
        const double by_j = left[j][PLACE[a][i]] * left[j][PLACE[b][i]];
        const double square = s[5 - ab] * s[5 - ab];
        minors[ab] = fabs(by_i) < fabs(by_j) ? left[i][ab] * square - by_i
                                             : left[j][ab] * square - by_j;
    }
    for (int d = 0; d < 4; d++) {
        double least = 2.0;
        for (int step = 1; step < 4; step++) {
            const int i = (d + step) % 4, j = (d + step % 3 + 1) % 4;
            const int k = (d + (step + 1) % 3 + 1) % 4;
            const double size = pow(s[PLACE[i][j]] * s[PLACE[i][k]], 2);
            const double part = left[i][PLACE[j][k]];
            if (size < least) {
                least = size;
                cofactors[d] = fmax(fmax(size - part * part, 1e-15 * size), 1e-28);
            }
        }
    }
    for (int pair = 0; pair < 6; pair++) {
        const double size = sqrt(cofactors[FIRST[5 - pair]] * cofactors[SECOND[5 - pair]]);
        orthants[pair] = 0.25 + OVER_TWO_PI * asin(bounded(minors[5 - pair] / size, 1.0));
    }
    const double whole = orthant(rho, s, left, minors, cofactors, angles);
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 4; d++) {
            if (i == d) continue;
            const int pair = PLACE[i][d], j = FIRST[5 - pair], k = SECOND[5 - pair];
            const int ij = PLACE[i][j], ik = PLACE[i][k];
            double total = orthants[pair] * s[pair];
            total += orthants[ij] * bounded(left[i][PLACE[d][j]] / fmax(s[ij], 1e-8), s[pair]);
            total += orthants[ik] * bounded(left[i][PLACE[d][k]] / fmax(s[ik], 1e-8), s[pair]);
            crossings[i][d] = OVER_TWO_PI * total;
        }
    for (int ab = 0; ab < 6; ab++) {
        const int a = FIRST[ab], b = SECOND[ab], c = FIRST[5 - ab], d = SECOND[5 - ab];
        moments[ab] = rho[5 - ab] * whole + rho[PLACE[a][c]] * crossings[a][d] +
                      rho[PLACE[b][c]] * crossings[b][d] + crossings[c][d];
    }
}

/* E[Theta_a b+ c+] and E[Theta_a Theta_b c+ c+] of three units */
static inline double gated_product(double ab, double ac, double bc, double s_ab, double s_ac,
                                   double s_bc, double p3)
{
    return bc * p3 + 0.5 * OVER_TWO_PI * (s_bc + ac * s_ab + ab * s_ac);
}

static inline double gated_square(double ab, double ac, double bc, double s_ab, double s_ac,
                                  double s_bc, double p3)
{
    const double left = bc - ab * ac;
    const double cross = s_ab * ac * (ab * ac + 2.0 * left) -
                         ab * left * bounded(left / fmax(s_ab, 1e-8), 1.0);
    return p3 + 0.5 * OVER_TWO_PI * (cross + ac * s_ac + bc * s_bc);
}

/* work: cov U*U, rho U*U, sines U*U, angles U*U, weights T*U, scaled T*U, lengths U, drift K*U,
 * squares T*K*K; the teachers' entries of cov and weights are filled in by the caller. */
void rate(const double *state, const double *shares, const double *lr, double noise,
          const double *head_lr, int K, int P, int T, double *work, int *units, int *active,
          double *out)
{
    const int U = K + P;
    double *cov = work, *rho = cov + U * U, *sines = rho + U * U, *angles = sines + U * U;
    double *weights = angles + U * U, *scaled = weights + T * U, *lengths = scaled + T * U;
    double *drift = lengths + U, *squares = drift + K * U;
    const double *M = state + K * K, *V = M + K * P;
    double *dQ = out, *dM = out + K * K, *dV = dM + K * P;

    for (int k = 0; k < K; k++) {
        for (int h = 0; h < K; h++) cov[k * U + h] = state[k * K + h];
        for (int p = 0; p < P; p++) cov[k * U + K + p] = cov[(K + p) * U + k] = M[k * P + p];
    }
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) weights[t * U + k] = V[t * K + k];
    for (int a = 0; a < U; a++) lengths[a] = sqrt(cov[a * U + a]);

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

    for (int a = 0; a < count; a++) {
        const int n = units[a];
        for (int i = 0; i < tasks; i++) scaled[i * U + a] = weights[active[i] * U + n] * lengths[n];
        for (int b = 0; b < a; b++) {
            const int m = units[b];
            const double r = bounded(cov[n * U + m] / (lengths[n] * lengths[m]), 1.0);
            rho[a * U + b] = rho[b * U + a] = r;
            sines[a * U + b] = sines[b * U + a] = sqrt(fmax((1.0 - r) * (1.0 + r), 0.0));
            angles[a * U + b] = angles[b * U + a] = asin(r);
        }
        rho[a * U + a] = 1.0, sines[a * U + a] = 0.0, angles[a * U + a] = 0.5 * PI;
    }

    for (int i = 0; i < K * K + K * P + T * K; i++) out[i] = 0.0;
    for (int k = 0; k < K; k++) {
        double along = 0.0;
        for (int h = 0; h < U; h++) drift[k * U + h] = 0.0;
        for (int b = 0; b < count; b++) {
            const int n = units[b], at = k * U + b;
            const double moment =
                lengths[k] * OVER_TWO_PI * (sines[at] + rho[at] * (0.5 * PI + angles[at]));
            double coupling = 0.0;
            for (int i = 0; i < tasks; i++) {
                const int t = active[i];
                dV[t * K + k] -= shares[t] * lr[t] * head_lr[t] * scaled[i * U + b] * moment;
                coupling += shares[t] * lr[t] * weights[t * U + k] * weights[t * U + n];
            }
            const double push = coupling * (0.25 + OVER_TWO_PI * angles[at]);
            along += coupling * lengths[n] * sines[at];
            for (int h = 0; h < U; h++) drift[k * U + h] += push * cov[n * U + h];
        }
        for (int h = 0; h < U; h++)
            drift[k * U + h] += along / lengths[k] * OVER_TWO_PI * cov[k * U + h];
    }

    for (int i = 0; i < T * K * K; i++) squares[i] = 0.0;
#define SQUARE(i, k, h) squares[((i) * K + (k)) * K + (h)]
#define V_(i, a) scaled[(i) * U + (a)]
    for (int a = 0; a < K; a++) {
        for (int i = 0; i < tasks; i++) SQUARE(i, a, a) += 0.5 * V_(i, a) * V_(i, a);
        for (int b = a + 1; b < count; b++) {
            const int ab = a * U + b;
            const double product = OVER_TWO_PI * (sines[ab] + rho[ab] * (0.5 * PI + angles[ab]));
            const double square = 0.25 + OVER_TWO_PI * (angles[ab] + rho[ab] * sines[ab]);
            for (int i = 0; i < tasks; i++) {
                const double v = V_(i, a), w = V_(i, b), both = 2.0 * v * w * product;
                SQUARE(i, a, a) += w * w * square + both;
                if (b < K) {
                    SQUARE(i, b, b) += v * v * square + both;
                    SQUARE(i, a, b) += (v * v + w * w) * square + both;
                }
            }
            for (int c = b + 1; c < count; c++) {
                int meet = b < K;
                for (int i = 0; i < tasks; i++) meet = meet || V_(i, b) * V_(i, c) != 0.0;
                if (!meet) continue;
                const int ac = a * U + c, bc = b * U + c;
                const double x = rho[ab], y = rho[ac], z = rho[bc];
                const double s = sines[ab], u = sines[ac], r = sines[bc];
                const double p3 = 0.125 + 0.5 * OVER_TWO_PI * (angles[ab] + angles[ac] + angles[bc]);
                const double by_a = gated_product(x, y, z, s, u, r, p3);
                for (int i = 0; i < tasks; i++)
                    SQUARE(i, a, a) += 2.0 * V_(i, b) * V_(i, c) * by_a;
                if (b >= K) continue;
                const double by_b = gated_product(x, z, y, s, r, u, p3);
                const double by_ab = gated_square(x, y, z, s, u, r, p3);
                for (int i = 0; i < tasks; i++) {
                    const double v = V_(i, a), w = V_(i, b), q = V_(i, c);
                    SQUARE(i, b, b) += 2.0 * v * q * by_b;
                    SQUARE(i, a, b) += q * (q * by_ab + 2.0 * (w * by_a + v * by_b));
                }
                if (c < K) {
                    const double by_c = gated_product(y, z, x, u, r, s, p3);
                    const double by_ac = gated_square(y, x, z, u, s, r, p3);
                    const double by_bc = gated_square(z, x, y, r, s, u, p3);
                    for (int i = 0; i < tasks; i++) {
                        const double v = V_(i, a), w = V_(i, b), q = V_(i, c);
                        const double both = 2.0 * v * w * by_c;
                        SQUARE(i, c, c) += both;
                        SQUARE(i, a, c) += both + w * (w * by_ac + 2.0 * q * by_a);
                        SQUARE(i, b, c) += both + v * (v * by_bc + 2.0 * q * by_b);
                    }
                }
                for (int d = c + 1; d < count; d++) {
                    meet = c < K;
                    for (int i = 0; i < tasks; i++) meet = meet || V_(i, c) * V_(i, d) != 0.0;
                    if (!meet) continue;
                    const int four[4] = {a, b, c, d};
                    double correlations[6], lefts[6], moments[6], sum = 0.0;
                    for (int pair = 0; pair < 6; pair++) {
                        const int at = four[FIRST[pair]] * U + four[SECOND[pair]];
                        correlations[pair] = rho[at];
                        lefts[pair] = sines[at];
                        sum += angles[at];
                    }
                    four_moments(correlations, lefts, sum, moments);
                    for (int pair = 0; pair < 6; pair++) {
                        const int k = four[FIRST[pair]], h = four[SECOND[pair]];
                        const int n = four[FIRST[5 - pair]], m = four[SECOND[5 - pair]];
                        if (h < K)
                            for (int i = 0; i < tasks; i++)
                                SQUARE(i, k, h) += 2.0 * V_(i, n) * V_(i, m) * moments[pair];
                    }
                }
            }
        }
    }

    for (int k = 0; k < K; k++) {
        for (int h = k; h < K; h++) {
            const double slopes = noise * noise * (0.25 + OVER_TWO_PI * angles[k * U + h]);
            double total = -drift[k * U + h] - drift[h * U + k];
            for (int i = 0; i < tasks; i++) {
                const int t = active[i];
                const double pace = shares[t] * lr[t] * lr[t];
                total += pace * weights[t * U + k] * weights[t * U + h] * (SQUARE(i, k, h) + slopes);
            }
            dQ[k * K + h] = dQ[h * K + k] = total;
        }
        for (int p = 0; p < P; p++) dM[k * P + p] = -drift[k * U + K + p];
    }
}

/* `calls` evaluations in a row, each fed a state that depends on the last. */
void repeat_rate(long calls, double *state, const double *shares, const double *lr, double noise,
                 const double *head_lr, int K, int P, int T, const double *teacher_overlaps,
                 const double *teacher_heads, double *out)
{
    const int U = K + P, size = K * K + K * P + T * K;
    double *work = calloc(4 * U * U + 2 * T * U + U + K * U + T * K * K, sizeof(double));
    int *units = calloc(U, sizeof(int)), *active = calloc(T, sizeof(int));
    make_rules();
    for (int p = 0; p < P; p++)
        for (int q = 0; q < P; q++) work[(K + p) * U + K + q] = teacher_overlaps[p * P + q];
    for (int t = 0; t < T; t++)
        for (int p = 0; p < P; p++) work[4 * U * U + t * U + K + p] = -teacher_heads[t * P + p];
    for (long c = 0; c < calls; c++) {
        rate(state, shares, lr, noise, head_lr, K, P, T, work, units, active, out);
        for (int i = 0; i < size; i++) state[i] += 1e-12 * out[i];
    }
    free(work);
    free(units);
    free(active);
}
