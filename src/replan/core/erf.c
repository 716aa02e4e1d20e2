/* Kernels of networks with g(z) = erf(z/sqrt 2), all from one identity. See network.h.

   g'(z) = sqrt(2/pi) exp(-z^2/2), so multiplying by g'(lambda_k) tilts a centred Gaussian of
   covariance C into another one:

     E_C[g'(lambda_k) F(lambda)] = sqrt(2/pi) (1 + C_kk)^(-1/2) E_{C^k}[F],
     C^k = C - C_.k C_k. / (1 + C_kk).

   With the norm of a unit (1 + C_aa)^(-1/2), I2 = E[g_a g_b] = (2/pi) asin(C_ab norm_a norm_b) is
   then the only special function (Saad & Solla 1995); E[g_n g'_k lambda_h] is one tilt and one
   derivative (Stein's lemma), E[g_n g_m g'_k g'_h] is two tilts and I2. The paper's Lambda formulas
   give the same numbers.

   Loops run over numbers side by side, so that they are vectorised: the lanes are the pairs of
   hidden units k <= h. Arrays have room for whole vectors of 4; lanes beyond the pairs stay 0 in
   `first`, `second` and `scales`, and so count for nothing. */

#include "network.h"

typedef struct {
    network net;
    unsigned vectors;    /* of 4 lanes; unsigned, so that compilers see that none are left over */
    double *norms;       /* (U) of C */
    double *sides;       /* (U, K) C_nk norm_k */
    double *moments;     /* (U, K) I2(n, k) */
    double *norms_once;  /* (U, K) of C tilted by k */
    double *push;        /* (U) what multiplies C^k_nh in the drift of k */
    double *paces;       /* (T) s_t eta_t V_tk of the trained tasks, for one k */
    double *drift;       /* (K, U) sum_t s_t eta_t V_tk E[Delta_t g'_k lambda_h] */
    double *first;       /* (U, lanes) what tilting by k takes from C */
    double *second;      /* (U, lanes) what tilting by h takes next */
    double *norms_twice; /* (U, lanes) of C tilted by k and h */
    double *angles;      /* (lanes) arcsines of the correlations of two units */
    double *squares;     /* (T, lanes) E[Delta^2] of C tilted twice */
    double *by_sides, *by_first, *by_second; /* derivatives of H, see network.h */
    double *stretch;     /* (U, lanes) by the logarithms of norms_twice */
    double *row;         /* (U) sum_h pull_kh C^k_nh norm_nk */
    double *both;        /* (lanes) what multiplies w_tk w_th E[Delta_t^2] of C tilted twice */
    double *scales;      /* (T, lanes) what multiplies E[Delta_t^2] there */
    double *slopes;      /* (lanes) by the correlations of two units */
    double *turns;       /* (lanes) these correlations, then by the logarithms of norms */
} scratch;

static int64_t lay_out(int64_t K, int64_t P, int64_t T, scratch *w, double *memory)
{
    const int64_t U = K + P;
    arena room = BEGIN(scratch, memory);
    take_network(K, P, T, &w->net, &room);
    w->vectors = vectors_of(K * (K + 1) / 2);
    const int64_t lanes = 4 * w->vectors;
    w->norms = take(&room, U), w->sides = take(&room, U * K), w->moments = take(&room, U * K);
    w->norms_once = take(&room, U * K), w->push = take(&room, U), w->paces = take(&room, T);
    w->drift = take(&room, K * U);
    w->first = take(&room, U * lanes), w->second = take(&room, U * lanes);
    w->norms_twice = take(&room, U * lanes);
    w->angles = take(&room, lanes), w->squares = take(&room, T * lanes);
    w->by_sides = take(&room, U * K), w->by_first = take(&room, U * lanes);
    w->by_second = take(&room, U * lanes), w->stretch = take(&room, U * lanes);
    w->row = take(&room, U), w->both = take(&room, lanes), w->scales = take(&room, T * lanes);
    w->slopes = take(&room, lanes), w->turns = take(&room, lanes);
    return room.used;
}

static void prepare(const double *p, double *work)
{
    scratch *w = (scratch *)work;
    lay_out((int64_t)p[0], (int64_t)p[1], (int64_t)p[2], w, work);
    set_network(p, &w->net);
}

EXPORT int64_t replan_erf_room(int64_t K, int64_t P, int64_t T)
{
    scratch w;
    return lay_out(K, P, T, &w, 0);
}

static inline double norm(double variance)
{
    return 1.0 / sqrt(1.0 + variance);
}

static inline void set_norms(const double *state, scratch *w)
{
    set_state(state, &w->net);
    const int64_t U = w->net.U;
    for (int64_t n = 0; n < U; n++) w->norms[n] = norm(w->net.cov[n * U + n]);
}

/* Tilt C by each hidden unit k, C^k_nm = C_nm - sides_nk sides_mk; I2 of every unit with k. */
static inline void tilt_once(scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U, units = w->net.selected;
    const double *restrict norms = w->norms;
    double *restrict moments = w->moments, *restrict norms_once = w->norms_once;
    for (int64_t j = 0; j < units; j++) {
        const int64_t n = w->net.units[j];
        const double *restrict cov = w->net.cov + n * U;
        double *restrict sides = w->sides + j * K;
        for (int64_t k = 0; k < K; k++) {
            const double side = cov[k] * norms[k];
            sides[k] = side;
            moments[j * K + k] = side * norms[n];
            norms_once[j * K + k] = cov[n] - side * side;
        }
    }
    const unsigned whole = 4 * vectors_of(units * K);
    for (unsigned at = (unsigned)(units * K); at < whole; at++) moments[at] = norms_once[at] = 0.0;
    EACH (at, whole) {
        moments[at] = TWO_OVER_PI * arcsine(moments[at]);
        norms_once[at] = norm(norms_once[at]);
    }
}

/* Tilt C by all pairs of hidden units: C^kh_nm = C_nm - first_n first_m - second_n second_m. */
static inline void tilt_twice(scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    const unsigned lanes = 4 * w->vectors;
    const double *restrict sides = w->sides, *restrict norms_once = w->norms_once;
    for (int64_t j = 0; j < w->net.selected; j++) {
        const int64_t n = w->net.units[j];
        const double *restrict cov = w->net.cov + n * U;
        double *restrict first = w->first + j * lanes, *restrict second = w->second + j * lanes;
        double *restrict norms_twice = w->norms_twice + j * lanes;
        int64_t at = 0;
        for (int64_t k = 0; k < K; k++) {
            const double side = sides[j * K + k];
            for (int64_t h = k; h < K; h++, at++) {
                first[at] = side;
                second[at] = (cov[h] - side * sides[h * K + k]) * norms_once[h * K + k];
            }
        }
        EACH (i, lanes)
            norms_twice[i] = norm(cov[n] - (first[i] * first[i] + second[i] * second[i]));
    }
}

/* V': the heads' part of the rate. */
static inline void head_rate(const double *restrict shares, const scratch *w, double *restrict out)
{
    const network *net = &w->net;
    const int64_t K = net->K, U = net->U;
    double *restrict heads = out + K * U;
    clear(net->T * K, heads);
    for (int64_t i = 0; i < net->tasks; i++) {
        const int64_t t = net->active[i];
        const double *restrict weights = net->weights + t * U, *restrict moments = w->moments;
        const double pace = shares[t] * net->head_rates[t];
        for (int64_t k = 0; k < K; k++) {
            double total = 0.0;
            for (int64_t j = 0; j < net->selected; j++)
                total += weights[net->units[j]] * moments[j * K + k];
            heads[t * K + k] = -pace * total;
        }
    }
}

static inline void set_drift(const double *restrict shares, scratch *w)
{
    const network *net = &w->net;
    const int64_t K = net->K, U = net->U, units = net->selected;
    const double *restrict cov = net->cov, *restrict weights = net->weights;
    double *restrict push = w->push;
    for (int64_t k = 0; k < K; k++) {
        double *restrict drift = w->drift + k * U, along = 0.0;
        double *restrict paces = w->paces;
        for (int64_t i = 0; i < net->tasks; i++) {
            const int64_t t = net->active[i];
            paces[i] = shares[t] * net->rates[t] * weights[t * U + k];
        }
        for (int64_t j = 0; j < units; j++) {
            const int64_t n = net->units[j];
            double total = 0.0;
            for (int64_t i = 0; i < net->tasks; i++)
                total += paces[i] * weights[net->active[i] * U + n];
            push[j] = TWO_OVER_PI * w->norms[k] * total * w->norms_once[j * K + k];
            along += push[j] * w->sides[j * K + k];
        }
        along *= w->norms[k];
        for (int64_t h = 0; h < U; h++) drift[h] = push[0] * cov[h] - along * cov[k * U + h];
        for (int64_t j = 1; j < units; j++) {
            const double *restrict row = cov + net->units[j] * U;
            for (int64_t h = 0; h < U; h++) drift[h] += push[j] * row[h];
        }
    }
}

/* The correlations of the units at two positions under all C^kh, and their arcsines, which are
   added to squares with a weight. */
static inline void correlate(int64_t j, int64_t j2, double overlap, double weight,
                             double *restrict squares, scratch *w)
{
    const unsigned lanes = 4 * w->vectors;
    const double *restrict first_n = w->first + j * lanes, *restrict first_m = w->first + j2 * lanes;
    const double *restrict second_n = w->second + j * lanes;
    const double *restrict second_m = w->second + j2 * lanes;
    const double *restrict norms_n = w->norms_twice + j * lanes;
    const double *restrict norms_m = w->norms_twice + j2 * lanes;
    double *restrict turns = w->turns, *restrict angles = w->angles;
    EACH (i, lanes) {
        const double left = overlap - first_n[i] * first_m[i] - second_n[i] * second_m[i];
        const double turn = left * norms_n[i] * norms_m[i], angle = arcsine(turn);
        turns[i] = turn;
        angles[i] = angle;
        squares[i] += weight * angle;
    }
}

/* E[Delta^2] of each trained task under C tilted by all pairs of hidden units. */
static inline void set_squares(scratch *w)
{
    const network *net = &w->net;
    const unsigned lanes = 4 * w->vectors;
    clear(net->tasks * lanes, w->squares);
    for (int64_t j = 0; j < net->selected; j++)
        for (int64_t j2 = 0; j2 <= j; j2++) {
            const int64_t n = net->units[j], m = net->units[j2];
            const double twice = j2 == j ? TWO_OVER_PI : 2.0 * TWO_OVER_PI;
            int known = 0;
            for (int64_t i = 0; i < net->tasks; i++) {
                const double *weights = net->weights + net->active[i] * net->U;
                const double weight = twice * weights[n] * weights[m];
                if (weight == 0.0) continue; /* teacher units of other tasks, or a head of 0 */
                double *squares = w->squares + i * lanes;
                if (known)
                    add(lanes, weight, w->angles, squares);
                else
                    correlate(j, j2, net->cov[n * net->U + m], weight, squares, w);
                known = 1;
            }
        }
}

/* Q' and M' from the first-order parts and the squares. */
static inline void feature_rate(const double *restrict shares, const scratch *w,
                                double *restrict out)
{
    const network *net = &w->net;
    const int64_t K = net->K, P = net->P, U = net->U, lanes = 4 * w->vectors;
    const double *restrict drift = w->drift;
    int64_t lane = 0;
    for (int64_t k = 0; k < K; k++) {
        for (int64_t h = k; h < K; h++, lane++) {
            double total = 0.0;
            for (int64_t i = 0; i < net->tasks; i++) {
                const int64_t t = net->active[i];
                const double *weights = net->weights + t * U;
                total += shares[t] * net->rates[t] * net->rates[t] * weights[k] * weights[h] *
                         (w->squares[i * lanes + lane] + net->noise);
            }
            total *= TWO_OVER_PI * w->norms[k] * w->norms_once[h * K + k];
            out[k * K + h] = out[h * K + k] = total - drift[k * U + h] - drift[h * U + k];
        }
        for (int64_t p = 0; p < P; p++) out[K * K + k * P + p] = -drift[k * U + K + p];
    }
}

static void rate(const double *p, const double *state, const double *shares, const double *knobs,
                 double *out, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    set_norms(state, w);
    set_rates(knobs, &w->net);
    select_trained(shares, &w->net);
    tilt_once(w);
    head_rate(shares, w, out);
    set_drift(shares, w);
    tilt_twice(w);
    set_squares(w);
    feature_rate(shares, w, out);
}

/* eps_t = 1/2 E[Delta_t^2] = 1/2 sum_nm w_tn w_tm I2(n, m). */
static void losses(const double *p, const double *state, double *restrict out, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    const int64_t T = w->net.T, U = w->net.U;
    set_norms(state, w);
    clear(T, out);
    for (int64_t n = 0; n < U; n++)
        for (int64_t m = 0; m <= n; m++) {
            const double z = w->net.cov[n * U + m] * w->norms[n] * w->norms[m];
            const double moment = (n == m ? 0.5 : 1.0) * TWO_OVER_PI * arcsine(z);
            for (int64_t t = 0; t < T; t++)
                out[t] += w->net.weights[t * U + n] * w->net.weights[t * U + m] * moment;
        }
}

/* V': D_t -= sum_kn p_tk w_tn I2(k, n), with p the cotangent of the rate. */
static inline void pull_heads(const double *restrict cotangent, const double *restrict shares,
                              scratch *w)
{
    network *net = &w->net;
    const int64_t K = net->K, T = net->T, U = net->U;
    const double *restrict weights = net->weights, *restrict of_heads = cotangent + K * U;
    for (int64_t n = 0; n < U; n++) {
        double total = 0.0;
        for (int64_t k = 0; k < K; k++) {
            const double moment = w->moments[n * K + k], z = w->sides[n * K + k] * w->norms[n];
            double bar = 0.0;
            for (int64_t t = 0; t < T; t++) {
                const double p = of_heads[t * K + k], pace = shares[t] * net->head_rates[t] * p;
                net->heads[t] -= net->trained[t] * p * weights[t * U + n] * moment;
                net->by_weights[t * U + n] -= pace * moment;
                bar -= pace * weights[t * U + n];
            }
            bar *= TWO_OVER_PI / sqrt(1.0 - z * z);
            w->by_sides[n * K + k] += bar * w->norms[n];
            total += bar * z;
        }
        net->by_cov[n * U + n] -= 0.5 * total * w->norms[n] * w->norms[n];
    }
}

/* The first-order part of hidden unit k: B_t -= (2/pi) norm_k w_tk sum_n w_tn row_n. The drift's
   array holds the derivatives by C^k_nh over pull_kh. */
static inline void pull_drift_of(int64_t k, const double *restrict shares, scratch *w)
{
    network *net = &w->net;
    const int64_t K = net->K, T = net->T, U = net->U;
    const double *restrict pull = net->pull + k * U, *restrict cov = net->cov;
    const double *restrict norms_once = w->norms_once, *restrict sides = w->sides;
    double *restrict row = w->row, *restrict by_sides = w->by_sides;
    const double scale = TWO_OVER_PI * w->norms[k];
    double along = 0.0, total = 0.0, back = 0.0;
    for (int64_t h = 0; h < U; h++) along += sides[h * K + k] * pull[h];
    for (int64_t n = 0; n < U; n++) {
        double left = 0.0;
        for (int64_t h = 0; h < U; h++) left += cov[n * U + h] * pull[h];
        row[n] = (left - sides[n * K + k] * along) * norms_once[n * K + k];
    }
    for (int64_t t = 0; t < T; t++) {
        const double *restrict weights = net->weights + t * U;
        double *restrict by_weights = net->by_weights + t * U;
        const double pace = scale * shares[t] * net->rates[t];
        double inner = 0.0;
        for (int64_t n = 0; n < U; n++) inner += weights[n] * row[n];
        net->linear[t] -= scale * weights[k] * inner;
        by_weights[k] -= pace * inner;
        total -= pace * weights[k] * inner;
        for (int64_t n = 0; n < K; n++) by_weights[n] -= pace * weights[k] * row[n];
    }
    net->by_cov[k * U + k] -= 0.5 * total * w->norms[k] * w->norms[k];
    for (int64_t n = 0; n < U; n++) {
        const double side = sides[n * K + k], size = norms_once[n * K + k];
        double bar = 0.0;
        for (int64_t t = 0; t < T; t++)
            bar -= shares[t] * net->rates[t] * net->weights[t * U + k] * net->weights[t * U + n];
        bar *= scale;
        const double longer = -0.5 * bar * row[n] * size * size;
        net->by_cov[n * U + n] += longer;
        by_sides[n * K + k] -= bar * size * along + 2.0 * longer * side;
        back -= bar * size * side;
        w->drift[k * U + n] = bar * size;
    }
    for (int64_t h = 0; h < U; h++) by_sides[h * K + k] += back * pull[h];
}

static inline void pull_drift(const double *shares, scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    for (int64_t k = 0; k < K; k++) pull_drift_of(k, shares, w);
    for (int64_t k = 0; k < K; k++)
        for (int64_t n = 0; n < U; n++)
            add(U, w->drift[k * U + n], w->net.pull + k * U, w->net.by_cov + n * U);
}

/* What multiplies E[Delta_t^2] + sigma^2 of C tilted by k and h in G_t. */
static inline void set_scales(scratch *w)
{
    const int64_t K = w->net.K, T = w->net.T, U = w->net.U, lanes = 4 * w->vectors;
    int64_t lane = 0;
    for (int64_t k = 0; k < K; k++)
        for (int64_t h = k; h < K; h++, lane++) {
            const double pull = (h > k ? 1.0 : 0.5) * w->net.pull[k * U + h];
            const double both = pull * TWO_OVER_PI * w->norms[k] * w->norms_once[h * K + k];
            w->both[lane] = both;
            for (int64_t t = 0; t < T; t++)
                w->scales[t * lanes + lane] =
                    both * w->net.weights[t * U + k] * w->net.weights[t * U + h];
        }
}

/* Whether a task's error has two units, or could: a head of exactly 0 still has a derivative. */
static inline int meet(int64_t n, int64_t m, const network *net)
{
    int found = m < net->K;
    for (int64_t t = 0; t < net->T && !found; t++)
        found = net->weights[t * net->U + n] * net->weights[t * net->U + m] != 0.0;
    return found;
}

/* Pull derivatives by the correlations of units n and m, in `slopes`, back to C and its tilts. */
static inline void pull_correlations(int64_t n, int64_t m, scratch *w)
{
    const unsigned lanes = 4 * w->vectors;
    const double *restrict norms_n = w->norms_twice + n * lanes;
    const double *restrict norms_m = w->norms_twice + m * lanes;
    double *restrict slopes = w->slopes, *restrict turns = w->turns, total = 0.0;
    EACH (i, lanes) {
        const double z = turns[i], slope = slopes[i] / sqrt(1.0 - z * z);
        turns[i] = slope * z;
        slopes[i] = slope * norms_n[i] * norms_m[i];
        total += slopes[i];
    }
    w->net.by_cov[n * w->net.U + m] += total;
    for (int side = 0; side < 2; side++) {
        const int64_t a = (side ? m : n) * lanes, b = (side ? n : m) * lanes;
        const double *restrict first = w->first + b, *restrict second = w->second + b;
        double *restrict by_first = w->by_first + a, *restrict by_second = w->by_second + a;
        double *restrict stretch = w->stretch + a;
        EACH (i, lanes) {
            by_first[i] -= slopes[i] * first[i];
            by_second[i] -= slopes[i] * second[i];
            stretch[i] += turns[i];
        }
    }
}

/* Second-order part: E[Delta_t^2] of every C^kh, and derivatives by what it depends on. */
static inline void pull_squares_of(int64_t n, int64_t m, const double *restrict shares, scratch *w)
{
    network *net = &w->net;
    const int64_t U = net->U;
    const unsigned lanes = 4 * w->vectors;
    const double twice = n == m ? TWO_OVER_PI : 2.0 * TWO_OVER_PI;
    const double *restrict angles = w->angles;
    double *restrict slopes = w->slopes;
    int moved = 0;
    correlate(n, m, net->cov[n * U + m], 0.0, w->squares, w);
    EACH (i, lanes) slopes[i] = 0.0;
    for (int64_t t = 0; t < net->T; t++) {
        const double *restrict weights = net->weights + t * U;
        if (weights[n] == 0.0 && weights[m] == 0.0) continue;
        const double *restrict scales = w->scales + t * lanes;
        double *restrict squares = w->squares + t * lanes, along = 0.0;
        const double pace = twice * shares[t] * net->rates[t] * net->rates[t];
        const double weight = weights[n] * weights[m];
        moved |= pace * weight != 0.0;
        EACH (i, lanes) {
            along += scales[i] * angles[i];
            squares[i] += twice * weight * angles[i];
            slopes[i] += pace * weight * scales[i];
        }
        net->by_weights[t * U + n] += pace * weights[m] * along;
        net->by_weights[t * U + m] += pace * weights[n] * along;
    }
    if (moved) pull_correlations(n, m, w);
}

static inline void pull_squares(const double *shares, scratch *w)
{
    const int64_t T = w->net.T, U = w->net.U, lanes = 4 * w->vectors;
    clear(T * lanes, w->squares);
    clear(U * lanes, w->by_first), clear(U * lanes, w->by_second), clear(U * lanes, w->stretch);
    for (int64_t n = 0; n < U; n++)
        for (int64_t m = 0; m <= n; m++)
            if (meet(n, m, &w->net)) pull_squares_of(n, m, shares, w);
}

/* What the scales of E[Delta_t^2] + sigma^2 depend on; `slopes` are now by log norms_once. */
static inline void pull_scales(const double *restrict shares, scratch *w)
{
    network *net = &w->net;
    const int64_t K = net->K, T = net->T, U = net->U, lanes = 4 * w->vectors;
    int64_t at = 0;
    clear(lanes, w->slopes);
    for (int64_t k = 0; k < K; k++)
        for (int64_t h = k; h < K; h++, at++) {
            double total = 0.0;
            for (int64_t t = 0; t < T; t++) {
                const double square = w->squares[t * lanes + at] + net->noise;
                const double pace = shares[t] * net->rates[t] * net->rates[t] * square;
                const double scale = w->scales[t * lanes + at];
                net->quadratic[t] += scale * square;
                net->by_weights[t * U + k] += pace * w->both[at] * net->weights[t * U + h];
                net->by_weights[t * U + h] += pace * w->both[at] * net->weights[t * U + k];
                total += pace * scale;
            }
            net->by_cov[k * U + k] -= 0.5 * total * w->norms[k] * w->norms[k];
            w->slopes[at] = total;
        }
}

/* Pull derivatives by the tilts and norms of unit n back to its sides and C. */
static inline void pull_tilts_of(int64_t n, scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    const unsigned lanes = 4 * w->vectors;
    const double *restrict first = w->first + n * lanes, *restrict second = w->second + n * lanes;
    const double *restrict norms = w->norms_twice + n * lanes, *restrict norms_once = w->norms_once;
    const double *restrict stretch = w->stretch + n * lanes, *restrict sides = w->sides;
    double *restrict by_first = w->by_first + n * lanes, *restrict slopes = w->slopes;
    double *restrict by_second = w->by_second + n * lanes, *restrict by_sides = w->by_sides;
    double *restrict by_cov = w->net.by_cov + n * U, total = 0.0;
    EACH (i, lanes) {
        const double longer = -0.5 * stretch[i] * norms[i] * norms[i];
        total += longer;
        by_first[i] -= 2.0 * longer * first[i];
        by_second[i] -= 2.0 * longer * second[i];
        slopes[i] += by_second[i] * second[i];
    }
    by_cov[n] += total;
    int64_t at = 0;
    for (int64_t k = 0; k < K; k++) {
        double side = 0.0;
        for (int64_t h = k; h < K; h++, at++) {
            const double bar = by_second[at] * norms_once[h * K + k];
            by_cov[h] += bar;
            side += by_first[at] - bar * sides[h * K + k];
            by_sides[h * K + k] -= bar * sides[n * K + k];
        }
        by_sides[n * K + k] += side;
    }
}

/* norms_once by C and sides, and sides_nk = C_nk norm_k. */
static inline void pull_sides(scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    const double *restrict norms = w->norms, *restrict sides = w->sides;
    double *restrict by_cov = w->net.by_cov, *restrict by_sides = w->by_sides;
    int64_t at = 0;
    for (int64_t k = 0; k < K; k++)
        for (int64_t h = k; h < K; h++, at++) {
            const double size = w->norms_once[h * K + k];
            const double longer = -0.5 * w->slopes[at] * size * size;
            by_cov[h * U + h] += longer;
            by_sides[h * K + k] -= 2.0 * longer * sides[h * K + k];
        }
    for (int64_t n = 0; n < U; n++)
        for (int64_t k = 0; k < K; k++) {
            const double bar = by_sides[n * K + k];
            by_cov[n * U + k] += bar * norms[k];
            by_cov[k * U + k] -= 0.5 * bar * sides[n * K + k] * norms[k] * norms[k];
        }
}

static void rate_vjp(const double *p, const double *state, const double *cotangent,
                     const double *shares, const double *knobs, double scale, double *by_state,
                     double *by_shares, double *by_knobs, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    set_norms(state, w);
    set_rates(knobs, &w->net);
    select_all(&w->net);
    set_cotangent(cotangent, &w->net);
    clear(w->net.U * w->net.K, w->by_sides);
    tilt_once(w);
    tilt_twice(w);
    pull_heads(cotangent, shares, w);
    pull_drift(shares, w);
    set_scales(w);
    pull_squares(shares, w);
    pull_scales(shares, w);
    for (int64_t n = 0; n < w->net.U; n++) pull_tilts_of(n, w);
    pull_sides(w);
    write_by_state(&w->net, by_state);
    add_by_controls(shares, knobs, scale, &w->net, by_shares, by_knobs);
}

static void losses_vjp(const double *p, const double *state, const double *cotangent, double *out,
                       double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    network *net = &w->net;
    const int64_t T = net->T, U = net->U;
    set_norms(state, w);
    clear(U * U, net->by_cov), clear(T * U, net->by_weights);
    for (int64_t n = 0; n < U; n++)
        for (int64_t m = 0; m < U; m++) {
            const double z = net->cov[n * U + m] * w->norms[n] * w->norms[m];
            const double moment = TWO_OVER_PI * arcsine(z);
            double bar = 0.0;
            for (int64_t t = 0; t < T; t++) {
                const double scaled = cotangent[t] * net->weights[t * U + n];
                net->by_weights[t * U + m] += scaled * moment;
                bar += 0.5 * scaled * net->weights[t * U + m];
            }
            bar *= TWO_OVER_PI / sqrt(1.0 - z * z);
            net->by_cov[n * U + m] += bar * w->norms[n] * w->norms[m];
            net->by_cov[n * U + n] -= bar * z * w->norms[n] * w->norms[n]; /* by both norms */
        }
    write_by_state(net, out);
}

EXPORT const kernels replan_erf = {rate, rate_vjp, losses, losses_vjp, prepare};
