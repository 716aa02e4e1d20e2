/* Kernels of ReLU networks, g(z) = max(z, 0), whose slope is the step O; all from Stein's identity.

   ReLU is homogeneous: with rho the correlations and l^2 the variances, a moment is the same one of
   units of variance 1, times the l of each g and each lambda in it. For those, with
   s = sqrt(1 - rho^2):

     I2 = E[a+ b+]           = (s_ab + rho_ab (pi/2 + asin rho_ab)) / 2 pi      (Cho & Saul 2009)
     I3 = E[n+ O_k lambda_h] = rho_hn P(n, k > 0) + rho_hk s_nk / 2 pi
     I4 = E[O_a O_b c+ d+]: see orthants.h.

   Where indices coincide, O_c c+ = c+ and O_a O_a = O_a, and two or three units are left. A unit of
   variance 0 is uncorrelated with all others, and nothing moves it.

   Weights v = w l hold the lengths l. Then E[Delta^2 g'_k g'_h] = sum_nm v_n v_m E[O_k O_h n+ m+]
   is a sum over sets of one to four units: each set is looked at once, for all the ways to choose
   steps and products from it and for all tasks. See network.h for the rest of the notation.

   Positions count the units and the tasks that matter now, hidden units first; in the losses and in
   the reverse they are all of them. Tasks are side by side: rows of tasks are whole vectors of four
   numbers, with 0 beyond the last task. */

#if !defined(__clang__)
#pragma GCC optimize("O3") /* takes two thirds of the time at O2; erf.c takes a tenth more at O3 */
#endif

#include "orthants.h"

#define TINY 1e-100 /* a length of 0 */

/* Two units of variance 1: rho, s, 1/s and asin(rho). */
typedef struct {
    double rho, sine, inverse, angle;
} pair;

typedef struct {
    network net;
    unsigned vectors;   /* in a row of tasks, W = 4 vectors; all below is by position: */
    int reverse;        /* whether derivatives are wanted */
    double *paces;      /* (W) s eta, */
    double *squared;    /* (W) s eta^2 */
    double *head_paces; /* (W) and s rho of each task */
    double *lengths;    /* (U) l */
    double *inverses;   /* (U) 1/l, or 0 */
    double *weights;    /* (U, W) w */
    double *scaled;     /* (U, W) v */
    double *moving;     /* (K, W) w of hidden units, or 0 for a unit without weights */
    double *packed;     /* correlations of all pairs, */
    pair *pairs;        /* (U, U) and what follows from them */
    double *row;        /* (U) something about one hidden unit and all units */
    double *drift;      /* (K, U) sum_t s eta V_tk E[Delta_t g'_k lambda_h], h by unit */
    double *squares;    /* (U, U, W) E[Delta_t^2 g'_k g'_h], k <= h */
    double *scales;     /* (U, U, W) what multiplies these in H; 0 but for k <= h < K */
    double *by_lengths; /* (U) */
    double *by_weights; /* (U, W) */
    double *by_scaled;  /* (U, W) */
    double *by_moving;  /* (K, W) */
    double *by_rho;     /* (U, U): the derivative by rho_ab is the sum of those at ab and ba */
    int64_t *meets;     /* (U, U) whether a task has both units in its error, at ab with a < b */
    quadruples fours;
} scratch;

static int64_t lay_out(int64_t K, int64_t P, int64_t T, scratch *w, double *memory)
{
    const int64_t U = K + P, W = 4 * ((T + 3) / 4);
    arena room = BEGIN(scratch, memory);
    take_network(K, P, T, &w->net, &room);
    w->paces = take(&room, W), w->squared = take(&room, W), w->head_paces = take(&room, W);
    w->lengths = take(&room, U), w->inverses = take(&room, U);
    w->weights = take(&room, U * W), w->scaled = take(&room, U * W);
    w->moving = take(&room, K * W);
    w->packed = take(&room, 2 * U * U + 12), w->pairs = (pair *)take(&room, 4 * U * U);
    w->row = take(&room, U), w->drift = take(&room, K * U);
    w->squares = take(&room, U * U * W), w->scales = take(&room, U * U * W);
    w->by_lengths = take(&room, U), w->by_weights = take(&room, U * W);
    w->by_scaled = take(&room, U * W), w->by_moving = take(&room, K * W);
    w->by_rho = take(&room, U * U);
    w->meets = take_integers(&room, U * U);
    return room.used;
}

static void set_lengths(int64_t first, int64_t last, scratch *w)
{
    for (int64_t n = first; n < last; n++) {
        w->lengths[n] = sqrt(at_least(0.0, w->net.cov[n * w->net.U + n]));
        w->inverses[n] = w->lengths[n] <= TINY ? 0.0 : 1.0 / w->lengths[n];
    }
}

static void prepare(const double *p, double *work)
{
    scratch *w = (scratch *)work;
    lay_out((int64_t)p[0], (int64_t)p[1], (int64_t)p[2], w, work);
    set_network(p, &w->net);
    const int64_t K = w->net.K, U = w->net.U;
    set_lengths(K, U, w);
    for (int64_t a = 0; a < U; a++) w->pairs[a * U + a] = (pair){1.0, 0.0, 0.0, 0.5 * PI};
    for (int64_t i = 0; i < K * U; i++) w->meets[i] = 1;
}

EXPORT int64_t replan_relu_room(int64_t K, int64_t P, int64_t T)
{
    scratch w;
    return lay_out(K, P, T, &w, 0);
}

/* Moments of up to three different units of variance 1, by what is known of their pairs. */

/* E[a+ b+]; its derivative by rho is P(a, b > 0). */
static inline double product(const pair *ab)
{
    return OVER_TWO_PI * (ab->sine + ab->rho * (0.5 * PI + ab->angle));
}

/* E[O_a b+^2]; its derivative by rho is s / pi. */
static inline double gated_own_square(const pair *ab)
{
    return two(ab->angle) + OVER_TWO_PI * ab->rho * ab->sine;
}

/* E[O_a b+ c+], p3 = P(a, b, c > 0); derivatives are p3 by rho_bc, and `crossing` by the rest. */
static inline double gated_product(const pair *ab, const pair *ac, const pair *bc, double p3)
{
    return bc->rho * p3 +
           0.5 * OVER_TWO_PI * (bc->sine + ac->rho * ab->sine + ab->rho * ac->sine);
}

/* E[O_a O_b c+^2]; derivatives are twice `crossing` by rho_ac and rho_bc, `meeting` by rho_ab. */
static inline double gated_square(const pair *ab, const pair *ac, const pair *bc, double p3)
{
    const double along = ab->rho * ac->rho, left = bc->rho - along;
    const double cross = ab->sine * ac->rho * (along + 2.0 * left) -
                         ab->rho * left * bounded(left * ab->inverse, 1.0);
    return p3 + 0.5 * OVER_TWO_PI * (cross + ac->rho * ac->sine + bc->rho * bc->sine);
}

/* E[D_i O_j d+] */
static inline double crossing(const pair *ij, const pair *id, const pair *jd)
{
    const double left = (jd->rho - ij->rho * id->rho) * ij->inverse;
    return 0.5 * OVER_TWO_PI * (bounded(left, id->sine) + id->sine);
}

/* E[D_a D_b c+^2] */
static inline double meeting(const pair *ab, const pair *ac, const pair *bc)
{
    const double left = bounded((bc->rho - ab->rho * ac->rho) * ab->inverse, ac->sine);
    return 0.5 * OVER_TWO_PI * (ac->sine * ac->sine - left * left) * ab->inverse;
}

/* What depends on the state. */

static void set_tasks(const double *shares, scratch *w)
{
    const network *net = &w->net;
    for (int64_t i = 0; i < 4 * w->vectors; i++) {
        const int64_t t = i < net->tasks ? net->active[i] : 0;
        const double share = i < net->tasks ? shares[t] : 0.0;
        w->paces[i] = share * net->rates[t];
        w->squared[i] = share * net->rates[t] * net->rates[t];
        w->head_paces[i] = share * net->head_rates[t];
    }
}

static void set_weights(scratch *w)
{
    const network *net = &w->net;
    const unsigned W = 4 * w->vectors;
    for (int64_t a = 0; a < net->selected; a++) {
        const int64_t n = net->units[a];
        const int alive = w->inverses[n] != 0.0;
        for (int64_t i = 0; i < W; i++) {
            const double weight = i < net->tasks ? net->weights[net->active[i] * net->U + n] : 0.0;
            w->weights[a * W + i] = weight;
            w->scaled[a * W + i] = weight * w->lengths[n];
            if (a < net->K) w->moving[a * W + i] = alive ? weight : 0.0;
        }
    }
}

/* Sines, their inverses and angles of 4 `vectors` correlations. */
static void set_angles(unsigned vectors, const double *restrict rho, double *restrict sines,
                       double *restrict inverses, double *restrict angles)
{
    EACH (i, 4 * vectors) {
        sines[i] = sine_of(rho[i]);
        inverses[i] = 1.0 / at_least(LEAST, sines[i]);
        angles[i] = arcsine(rho[i]);
    }
}

static void set_pairs(scratch *w)
{
    const network *net = &w->net;
    const int64_t U = net->U, units = net->selected;
    const unsigned vectors = vectors_of(units * (units - 1) / 2);
    double *rho = w->packed, *sines = rho + 4 * vectors, *inverses = sines + 4 * vectors;
    double *angles = inverses + 4 * vectors;
    int64_t at = 0;
    for (int64_t a = 0; a < units; a++)
        for (int64_t b = 0; b < a; b++) {
            const int64_t n = net->units[a], m = net->units[b];
            rho[at++] = bounded(net->cov[n * U + m] * w->inverses[n] * w->inverses[m], 1.0);
        }
    while (at < 4 * vectors) rho[at++] = 0.0;
    set_angles(vectors, rho, sines, inverses, angles);
    at = 0;
    for (int64_t a = 0; a < units; a++)
        for (int64_t b = 0; b < a; b++, at++)
            w->pairs[a * U + b] = w->pairs[b * U + a] =
                (pair){rho[at], sines[at], inverses[at], angles[at]};
}

static void set_all(scratch *w)
{
    w->vectors = vectors_of(w->net.tasks);
    set_lengths(0, w->net.K, w);
    set_weights(w);
    set_pairs(w);
}

/* The second-order part: squares and, in the reverse, derivatives of sum_tkh scales squares. */

/* A moment that multiplies v_n v_m in the squares x, y and z; n and m differ. Returns the
   derivative by the moment, or 0 where none is wanted. */
static double weigh_product(double moment, int64_t n, int64_t m, int64_t x, int64_t y, int64_t z,
                            scratch *w)
{
    const unsigned W = 4 * w->vectors;
    const double *v_n = w->scaled + n * W, *v_m = w->scaled + m * W;
    double *in_x = w->squares + x * W, *in_y = w->squares + y * W, *in_z = w->squares + z * W;
    EACH (t, W) {
        const double part = moment * v_n[t] * v_m[t];
        in_x[t] += part, in_y[t] += part, in_z[t] += part;
    }
    if (!w->reverse) return 0.0;
    const double *of_x = w->scales + x * W, *of_y = w->scales + y * W, *of_z = w->scales + z * W;
    double *by_n = w->by_scaled + n * W, *by_m = w->by_scaled + m * W, by_moment = 0.0;
    EACH (t, W) {
        const double scale = of_x[t] + of_y[t] + of_z[t];
        by_moment += scale * v_n[t] * v_m[t];
        by_n[t] += scale * moment * v_m[t];
        by_m[t] += scale * moment * v_n[t];
    }
    return by_moment;
}

/* A moment that multiplies v_n^2 in the squares x. */
static double weigh_square(double moment, int64_t n, int64_t x, scratch *w)
{
    const unsigned W = 4 * w->vectors;
    const double *v = w->scaled + n * W, *of_x = w->scales + x * W;
    double *in_x = w->squares + x * W, *by_v = w->by_scaled + n * W, by_moment = 0.0;
    EACH (t, W) in_x[t] += moment * v[t] * v[t];
    if (!w->reverse) return 0.0;
    EACH (t, W) {
        by_moment += of_x[t] * v[t] * v[t];
        by_v[t] += 2.0 * of_x[t] * moment * v[t];
    }
    return by_moment;
}

/* Sets of two units; the first is a hidden one. */
static void weigh_pair(int64_t a, int64_t b, scratch *w)
{
    const int64_t U = w->net.U, aa = a * U + a, bb = b * U + b, ab = a * U + b;
    const pair *of = w->pairs + ab;
    const double square = gated_own_square(of);
    const double by_product = 2.0 * weigh_product(2.0 * product(of), a, b, aa, bb, ab, w);
    double by_square = weigh_square(square, b, aa, w);
    if (b < w->net.K)
        by_square += weigh_square(square, b, ab, w) + weigh_square(square, a, bb, w) +
                     weigh_square(square, a, ab, w);
    if (!w->reverse) return;
    w->by_rho[ab] += by_square * of->sine / PI + by_product * two(of->angle);
}

/* Sets of three units; the first is a hidden one. */
static void weigh_triple(int64_t a, int64_t b, int64_t c, scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    const int64_t aa = a * U + a, bb = b * U + b, cc = c * U + c;
    const int64_t at_ab = a * U + b, at_ac = a * U + c, at_bc = b * U + c;
    const pair *ab = w->pairs + at_ab, *ac = w->pairs + at_ac, *bc = w->pairs + at_bc;
    const double p3 = three(ab->angle, ac->angle, bc->angle);
    double by_a, by_b = 0.0, by_c = 0.0, by_ab = 0.0, by_ac = 0.0, by_bc = 0.0;
    by_a = 2.0 * weigh_product(2.0 * gated_product(ab, ac, bc, p3), b, c, aa, at_ab, at_ac, w);
    if (b < K) {
        by_b = 2.0 * weigh_product(2.0 * gated_product(ab, bc, ac, p3), a, c, bb, at_ab, at_bc, w);
        by_ab = weigh_square(gated_square(ab, ac, bc, p3), c, at_ab, w);
    }
    if (c < K) {
        by_c = 2.0 * weigh_product(2.0 * gated_product(ac, bc, ab, p3), a, b, cc, at_ac, at_bc, w);
        by_ac = weigh_square(gated_square(ac, ab, bc, p3), b, at_ac, w);
        by_bc = weigh_square(gated_square(bc, ab, ac, p3), a, at_bc, w);
    }
    if (!w->reverse) return;
    const double a_c = crossing(ab, ac, bc), a_b = crossing(ac, ab, bc);
    const double b_c = crossing(ab, bc, ac), b_a = crossing(bc, ab, ac);
    const double c_b = crossing(ac, bc, ab), c_a = crossing(bc, ac, ab);
    w->by_rho[at_ab] += by_c * p3 + by_ab * meeting(ab, ac, bc) + by_a * a_c + by_b * b_c +
                        2.0 * (by_ac * a_b + by_bc * b_a);
    w->by_rho[at_ac] += by_b * p3 + by_ac * meeting(ac, ab, bc) + by_a * a_b + by_c * c_b +
                        2.0 * (by_ab * a_c + by_bc * c_a);
    w->by_rho[at_bc] += by_a * p3 + by_bc * meeting(bc, ab, ac) + by_b * b_a + by_c * c_a +
                        2.0 * (by_ab * b_c + by_ac * c_b);
}

/* Give four units a lane. */
static void set_lane(int64_t lane, const int64_t units[FOUR], scratch *w)
{
    quadruples *q = &w->fours;
    double angles = 0.0;
    for (int ab = 0; ab < PAIRS; ab++) {
        const pair *of = w->pairs + units[FIRST[ab]] * w->net.U + units[SECOND[ab]];
        q->rho[ab][lane] = of->rho;
        q->sines[ab][lane] = of->sine;
        q->inverses[ab][lane] = of->inverse;
        angles += of->angle;
    }
    q->angles[lane] = angles;
    for (int i = 0; i < FOUR; i++) q->units[i][lane] = units[i];
}

/* E[O_a O_b c+ d+] multiplies 2 v_c v_d in the square ab. */
static double weigh_four(int64_t lane, int ab, scratch *w)
{
    const quadruples *q = &w->fours;
    const unsigned W = 4 * w->vectors;
    const int64_t a = q->units[FIRST[ab]][lane], b = q->units[SECOND[ab]][lane];
    const int64_t c = q->units[FIRST[5 - ab]][lane], d = q->units[SECOND[5 - ab]][lane];
    if (b >= w->net.K) return 0.0;
    const double moment = 2.0 * q->moments[ab][lane];
    const double *v_c = w->scaled + c * W, *v_d = w->scaled + d * W;
    double *square = w->squares + (a * w->net.U + b) * W;
    EACH (t, W) square[t] += moment * v_c[t] * v_d[t];
    if (!w->reverse) return 0.0;
    const double *scale = w->scales + (a * w->net.U + b) * W;
    double *by_c = w->by_scaled + c * W, *by_d = w->by_scaled + d * W, by_moment = 0.0;
    EACH (t, W) {
        by_moment += scale[t] * v_c[t] * v_d[t];
        by_c[t] += scale[t] * moment * v_d[t];
        by_d[t] += scale[t] * moment * v_c[t];
    }
    return 2.0 * by_moment;
}

/* Sets of four units in all lanes that are taken; the first two are hidden ones. */
static void weigh_fours(int64_t count, scratch *w)
{
    quadruples *q = &w->fours;
    const unsigned vectors = vectors_of(count);
    set_quadruples(vectors, q);
    for (int64_t lane = 0; lane < count; lane++)
        for (int ab = 0; ab < PAIRS; ab++) q->by_moments[ab][lane] = weigh_four(lane, ab, w);
    if (!w->reverse) return;
    pull_quadruples(vectors, q);
    for (int64_t lane = 0; lane < count; lane++)
        for (int ab = 0; ab < PAIRS; ab++)
            w->by_rho[q->units[FIRST[ab]][lane] * w->net.U + q->units[SECOND[ab]][lane]] +=
                q->by_rho[ab][lane];
}

/* Whether a task has two units in its error; hidden ones are in all errors. */
static void set_meets(scratch *w)
{
    const unsigned W = 4 * w->vectors;
    for (int64_t a = w->net.K; a < w->net.selected; a++)
        for (int64_t b = a + 1; b < w->net.selected; b++) {
            int64_t found = 0;
            EACH (t, W)
                found |= w->scaled[a * W + t] * w->scaled[b * W + t] != 0.0;
            w->meets[a * w->net.U + b] = found;
        }
}

static void weigh_all_fours(scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U, units = w->net.selected;
    int64_t count = 0, set[FOUR];
    for (int64_t a = 0; a < K; a++)
        for (int64_t b = a + 1; b < K; b++)
            for (int64_t c = b + 1; c < units; c++)
                for (int64_t d = c + 1; d < units; d++) {
                    if (!w->meets[c * U + d]) continue;
                    set[0] = a, set[1] = b, set[2] = c, set[3] = d;
                    set_lane(count++, set, w);
                    if (count < LANES) continue;
                    weigh_fours(count, w);
                    count = 0;
                }
    if (!count) return;
    for (int64_t lane = count; lane % 4; lane++) set_lane(lane, set, w); /* whole vectors */
    weigh_fours(count, w);
}

static void set_squares(int reverse, scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U, units = w->net.selected;
    w->reverse = reverse;
    clear(U * U * 4 * w->vectors, w->squares);
    set_meets(w);
    for (int64_t a = 0; a < K; a++) {
        weigh_square(0.5, a, a * U + a, w);
        for (int64_t b = a + 1; b < units; b++) {
            weigh_pair(a, b, w);
            for (int64_t c = b + 1; c < units; c++)
                if (w->meets[b * U + c]) weigh_triple(a, b, c, w);
        }
    }
    weigh_all_fours(w);
}

/* The rate and the losses. */

/* Write V', the heads' part of the rate. */
static void write_head_rate(scratch *w, double *restrict out)
{
    const network *net = &w->net;
    const int64_t K = net->K;
    const unsigned W = 4 * w->vectors;
    clear(net->T * K, out);
    for (int64_t k = 0; k < K; k++) {
        for (int64_t b = 0; b < net->selected; b++) w->row[b] = product(w->pairs + k * net->U + b);
        for (int64_t i = 0; i < net->tasks; i++) {
            double total = 0.0;
            for (int64_t b = 0; b < net->selected; b++) total += w->row[b] * w->scaled[b * W + i];
            out[net->active[i] * K + k] = -w->head_paces[i] * w->lengths[k] * total;
        }
    }
}

/* Fill in drift_kh = sum_t s_t eta_t V_tk E[Delta_t g'_k lambda_h]. */
static void set_drift(scratch *w)
{
    const network *net = &w->net;
    const int64_t K = net->K, U = net->U;
    const unsigned W = 4 * w->vectors;
    for (int64_t k = 0; k < K; k++) {
        const double *restrict moving = w->moving + k * W;
        double *restrict drift = w->drift + k * U, along = 0.0;
        for (int64_t b = 0; b < net->selected; b++) {
            const pair *kb = w->pairs + k * U + b;
            const double *restrict weights = w->weights + b * W;
            double total = 0.0;
            EACH (t, W) total += w->paces[t] * moving[t] * weights[t];
            w->row[b] = total * two(kb->angle);
            along += total * w->lengths[net->units[b]] * kb->sine;
        }
        along *= w->inverses[k] * OVER_TWO_PI;
        for (int64_t h = 0; h < U; h++) drift[h] = along * net->cov[k * U + h];
        for (int64_t b = 0; b < net->selected; b++)
            for (int64_t h = 0; h < U; h++)
                drift[h] += w->row[b] * net->cov[net->units[b] * U + h];
    }
}

/* Write Q' and M' from the drift and the squares. */
static void write_feature_rate(const scratch *w, double *restrict out)
{
    const network *net = &w->net;
    const int64_t K = net->K, P = net->P, U = net->U;
    const unsigned W = 4 * w->vectors;
    const double *restrict drift = w->drift;
    for (int64_t k = 0; k < K; k++) {
        for (int64_t h = k; h < K; h++) {
            const double *squares = w->squares + (k * U + h) * W;
            const double *of_k = w->moving + k * W, *of_h = w->moving + h * W;
            const double slopes = net->noise * two(w->pairs[k * U + h].angle);
            double total = -drift[k * U + h] - drift[h * U + k];
            EACH (t, W)
                total += w->squared[t] * of_k[t] * of_h[t] * (squares[t] + slopes);
            out[k * K + h] = out[h * K + k] = total;
        }
        for (int64_t q = 0; q < P; q++) out[K * K + k * P + q] = -drift[k * U + K + q];
    }
}

static void rate(const double *p, const double *state, const double *shares, const double *knobs,
                 double *out, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    set_state(state, &w->net);
    set_rates(knobs, &w->net);
    select_trained(shares, &w->net);
    set_all(w);
    set_tasks(shares, w);
    write_head_rate(w, out + w->net.K * w->net.U);
    set_drift(w);
    set_squares(0, w);
    write_feature_rate(w, out);
}

/* epsilon_t = E[Delta_t^2] / 2 = sum_nm v_n v_m E[n+ m+] / 2 */
static void losses(const double *p, const double *state, double *restrict out, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    set_state(state, &w->net);
    select_all(&w->net);
    set_all(w);
    const int64_t T = w->net.T, U = w->net.U;
    const unsigned W = 4 * w->vectors;
    clear(T, out);
    for (int64_t n = 0; n < U; n++)
        for (int64_t m = 0; m <= n; m++) {
            const double moment = (m < n ? 1.0 : 0.5) * product(w->pairs + n * U + m);
            for (int64_t t = 0; t < T; t++)
                out[t] += moment * w->scaled[n * W + t] * w->scaled[m * W + t];
        }
}

/* The reverse: derivatives by correlations, lengths and scaled weights come first, those by C and w
   follow from them at the end. */

static void clear_derivatives(scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    const unsigned W = 4 * w->vectors;
    clear(U, w->by_lengths), clear(U * W, w->by_weights), clear(U * W, w->by_scaled);
    clear(K * W, w->by_moving), clear(U * U, w->by_rho);
}

/* V': D_t = - sum_kn p_tk l_k v_tn E[k+ n+] of units of variance 1. */
static void pull_heads(const double *cotangent, scratch *w)
{
    network *net = &w->net;
    const int64_t K = net->K, T = net->T, U = net->U;
    const unsigned W = 4 * w->vectors;
    for (int64_t k = 0; k < K; k++)
        for (int64_t n = 0; n < U; n++) {
            const pair *kn = w->pairs + k * U + n;
            const double *restrict v = w->scaled + n * W;
            const double moment = product(kn), length = w->lengths[k];
            double total = 0.0;
            for (int64_t t = 0; t < T; t++) {
                const double of_head = cotangent[t * K + k], pace = w->head_paces[t] * of_head;
                net->heads[t] -= net->trained[t] * of_head * length * v[t] * moment;
                w->by_scaled[n * W + t] -= pace * length * moment;
                total -= pace * v[t];
            }
            w->by_lengths[k] += total * moment;
            w->by_rho[k * U + n] += total * length * two(kn->angle);
        }
}

/* B_t = - sum_kn V_tk w_tn (row_n P(n, k > 0) + own l_n s_nk), with row_n = sum_h pull_kh C_hn and
   own = row_k / (2 pi l_k). */
static void pull_drift(scratch *w)
{
    network *net = &w->net;
    const int64_t K = net->K, U = net->U;
    const unsigned W = 4 * w->vectors;
    for (int64_t k = 0; k < K; k++) {
        const double *pull = net->pull + k * U, *moving = w->moving + k * W;
        const double inverse = w->inverses[k];
        double *by_moving = w->by_moving + k * W, along = 0.0;
        for (int64_t n = 0; n < U; n++) {
            w->row[n] = 0.0;
            for (int64_t h = 0; h < U; h++) w->row[n] += net->cov[n * U + h] * pull[h];
        }
        const double own = w->row[k] * inverse * OVER_TWO_PI;
        for (int64_t n = 0; n < U; n++) {
            const pair *kn = w->pairs + k * U + n;
            const double p2 = two(kn->angle), length = w->lengths[n];
            const double moment = w->row[n] * p2 + own * length * kn->sine;
            const double *weights = w->weights + n * W;
            double *by_weights = w->by_weights + n * W, coupling = 0.0;
            EACH (t, W) {
                net->linear[t] -= moving[t] * weights[t] * moment;
                by_moving[t] -= w->paces[t] * weights[t] * moment;
                by_weights[t] -= w->paces[t] * moving[t] * moment;
                coupling -= w->paces[t] * moving[t] * weights[t];
            }
            along += coupling * length * kn->sine;
            for (int64_t h = 0; h < U; h++) net->by_cov[n * U + h] += coupling * p2 * pull[h];
            w->by_lengths[n] += coupling * own * kn->sine;
            w->by_rho[k * U + n] +=
                coupling * (OVER_TWO_PI * w->row[n] - own * length * kn->rho) * kn->inverse;
        }
        along *= inverse * OVER_TWO_PI;
        for (int64_t h = 0; h < U; h++) net->by_cov[k * U + h] += along * pull[h];
        net->by_cov[k * U + k] -= 0.5 * along * w->row[k] * inverse * inverse;
    }
}

/* What multiplies E[Delta_t^2 g'_k g'_h] in H: s_t eta_t^2 V_tk V_th pull_kh, half where k = h. */
static void set_scales(scratch *w)
{
    const int64_t K = w->net.K, U = w->net.U;
    const unsigned W = 4 * w->vectors;
    for (int64_t k = 0; k < K; k++)
        for (int64_t h = k; h < K; h++) {
            const double *of_k = w->moving + k * W, *of_h = w->moving + h * W;
            const double both = (h > k ? 1.0 : 0.5) * w->net.pull[k * U + h];
            double *scales = w->scales + (k * U + h) * W;
            EACH (t, W) scales[t] = w->squared[t] * both * of_k[t] * of_h[t];
        }
}

/* G_t = sum_kh V_tk V_th pull_kh E[(Delta_t^2 + sigma^2) g'_k g'_h] / 2 over all k and h: what the
   scales depend on, and the noise. */
static void pull_scales(scratch *w)
{
    network *net = &w->net;
    const int64_t K = net->K, U = net->U;
    const unsigned W = 4 * w->vectors;
    for (int64_t k = 0; k < K; k++)
        for (int64_t h = 0; h < K; h++) {
            const pair *kh = w->pairs + k * U + h;
            const double *of_k = w->moving + k * W, *of_h = w->moving + h * W;
            const double *squares = w->squares + (k < h ? k * U + h : h * U + k) * W;
            const double both = net->pull[k * U + h], slopes = net->noise * two(kh->angle);
            double *by_moving = w->by_moving + k * W, total = 0.0;
            EACH (t, W) {
                const double part = both * of_h[t] * (squares[t] + slopes);
                net->quadratic[t] += 0.5 * of_k[t] * part;
                by_moving[t] += w->squared[t] * part;
                total += w->squared[t] * of_k[t] * of_h[t];
            }
            w->by_rho[k * U + h] += 0.5 * OVER_TWO_PI * net->noise * both * total * kh->inverse;
        }
}

/* Pull derivatives back to C and w, and write those by the state. */
static void pull_all(scratch *w, double *by_state)
{
    network *net = &w->net;
    const int64_t K = net->K, T = net->T, U = net->U;
    const unsigned W = 4 * w->vectors;
    const double *inverses = w->inverses;
    for (int64_t n = 0; n < U; n++) {
        double by_length = w->by_lengths[n];
        for (int64_t t = 0; t < T; t++) {
            const double by_scaled = w->by_scaled[n * W + t];
            by_length += by_scaled * w->weights[n * W + t];
            net->by_weights[t * U + n] = w->by_weights[n * W + t] + by_scaled * w->lengths[n];
            if (n < K && inverses[n] != 0.0)
                net->by_weights[t * U + n] += w->by_moving[n * W + t];
        }
        net->by_cov[n * U + n] += 0.5 * by_length * inverses[n];
        for (int64_t m = n + 1; m < U; m++) {
            const double by_rho = w->by_rho[n * U + m] + w->by_rho[m * U + n];
            const double turned = 0.5 * by_rho * w->pairs[n * U + m].rho;
            net->by_cov[n * U + m] += by_rho * inverses[n] * inverses[m];
            net->by_cov[n * U + n] -= turned * inverses[n] * inverses[n];
            net->by_cov[m * U + m] -= turned * inverses[m] * inverses[m];
        }
    }
    write_by_state(net, by_state);
}

static void rate_vjp(const double *p, const double *state, const double *cotangent,
                     const double *shares, const double *knobs, double scale, double *by_state,
                     double *by_shares, double *by_knobs, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    network *net = &w->net;
    set_state(state, net);
    set_rates(knobs, net);
    select_all(net);
    set_cotangent(cotangent, net);
    set_all(w);
    set_tasks(shares, w);
    clear_derivatives(w);
    pull_heads(cotangent + net->K * net->U, w);
    pull_drift(w);
    set_scales(w);
    set_squares(1, w);
    pull_scales(w);
    pull_all(w, by_state);
    add_by_controls(shares, knobs, scale, net, by_shares, by_knobs);
}

static void losses_vjp(const double *p, const double *state, const double *cotangent, double *out,
                       double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    set_state(state, &w->net);
    select_all(&w->net);
    set_all(w);
    const int64_t T = w->net.T, U = w->net.U;
    const unsigned W = 4 * w->vectors;
    clear(U * U, w->net.by_cov);
    clear_derivatives(w);
    for (int64_t n = 0; n < U; n++)
        for (int64_t m = 0; m < U; m++) {
            const pair *nm = w->pairs + n * U + m;
            const double moment = product(nm);
            double total = 0.0;
            for (int64_t t = 0; t < T; t++) {
                w->by_scaled[n * W + t] += cotangent[t] * w->scaled[m * W + t] * moment;
                total += cotangent[t] * w->scaled[n * W + t] * w->scaled[m * W + t];
            }
            w->by_rho[n * U + m] += 0.5 * total * two(nm->angle);
        }
    pull_all(w, out);
}

EXPORT const kernels replan_relu = {rate, rate_vjp, losses, losses_vjp, prepare};
