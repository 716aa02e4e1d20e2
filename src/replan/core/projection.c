/* Projection onto the relaxed controls, and the minimum of a quadratic model over them.

   A vector holds `rows` rows of shares (T each), each in the simplex, and then m numbers between 0
   and 1. Further limits are on means: of a task's share over all rows, of the share of old tasks
   (replay) over some of the rows, of the numbers. Each has a price, which is 0 unless it binds: the
   nearest point within the limit is that of a vector from which the price was taken off. */

#include <math.h>

#include "replan.h"
#include "vectors.h"

enum { CYCLES = 2000 }; /* through the prices of all tasks */
enum { TURNS = 200 };   /* at one of them */
enum { STEPS = 300 };   /* of a descent, at most */
enum { LANES = 4 };     /* rows projected side by side */
static const double EXACT = 1e-14;
static const double FAR = 1e18;    /* a price at which a task has all or nothing, to rounding */
static const double ENOUGH = 1e-3; /* the last step gains less than this fraction of the first */

/* See the class Domain in projection.py. */
typedef struct {
    int64_t rows, T, m, groups, spans;
    const uint8_t *available; /* (rows, T), or null where all tasks always are */
    const double *low;        /* (T) bounds on the mean share */
    const double *high;
    const double *weights;    /* (groups, m) */
    const double *least;      /* (groups) bounds on the mean of a group */
    const double *most;
    const uint8_t *old;       /* (rows, T) */
    const int64_t *span;      /* (spans, 2) */
    const double *caps;       /* (spans) */
} domain;

_Static_assert(sizeof(domain) <= 14 * sizeof(int64_t), "the size that library.py declares");

/* Write a domain to `place`, for the functions below; rows may be fewer than are `known`. */
EXPORT int64_t replan_set_domain(int64_t T, int64_t m, int64_t groups, int64_t spans,
                                 int64_t known, int64_t rows, const uint8_t *available,
                                 const double *low, const double *high, const double *weights,
                                 const double *least, const double *most, const uint8_t *old,
                                 const int64_t *span, const double *caps, int64_t *place)
{
    *(domain *)place = (domain){
        .rows = rows, .T = T, .m = m, .groups = groups, .spans = spans,
        .available = known ? available : 0, .low = low, .high = high,
        .weights = weights, .least = least, .most = most, .old = old, .span = span, .caps = caps};
    return 1;
}

static inline double within(double x, double low, double high)
{
    x = low > x ? low : x;
    return high < x ? high : x;
}

/* Raise the level of each lane to where its entries above the last one sum to 1 on top of it; count
   them. Return whether any level changed. */
static inline int raise_levels(int64_t T, const double *restrict entries, double *restrict level,
                               double *restrict count)
{
    double total[LANES], above[LANES];
    for (int64_t l = 0; l < LANES; l++) total[l] = -1.0, above[l] = 0.0;
    for (int64_t t = 0; t < T; t++)
        for (int64_t l = 0; l < LANES; l++) {
            const double entry = entries[t * LANES + l];
            total[l] += entry > level[l] ? entry : 0.0;
            above[l] += entry > level[l] ? 1.0 : 0.0;
        }
    int changed = 0;
    for (int64_t l = 0; l < LANES; l++) {
        const int fewer = above[l] < count[l] && above[l] > 0.0; /* else by rounding */
        level[l] = fewer ? total[l] / above[l] : level[l];
        count[l] = fewer ? above[l] : count[l];
        changed |= fewer;
    }
    return changed;
}

/* Write the nearest point of the simplex to every row minus `shift` (T), and how many of its
   entries are above zero (rows). All of these are lowered by the same amount; one that falls below
   zero leaves that set for good. (Michelot 1986) Some rows go side by side; entries: LANES T
   numbers of scratch space. */
static void project_rows(int64_t rows, int64_t T, const double *from, const double *shift,
                         double *out, double *above, double *restrict entries)
{
    for (int64_t i = 0; i < rows; i += LANES) {
        const int64_t lanes = rows - i < LANES ? rows - i : LANES;
        double level[LANES], count[LANES];
        for (int64_t l = 0; l < LANES; l++) {
            const int64_t row = i + (l < lanes ? l : 0);
            for (int64_t t = 0; t < T; t++) entries[t * LANES + l] = from[row * T + t] - shift[t];
            level[l] = -INFINITY;
            count[l] = (double)(T + 1);
        }
        while (raise_levels(T, entries, level, count)) continue;
        for (int64_t l = 0; l < lanes; l++) {
            for (int64_t t = 0; t < T; t++) {
                const double share = entries[t * LANES + l] - level[l];
                out[(i + l) * T + t] = 0.0 > share ? 0.0 : share;
            }
            above[i + l] = count[l];
        }
    }
}

/* A search for the price at which a mean, which falls with it, meets its bound. */
typedef struct {
    double price, lower, upper;
    int64_t turn;
} search;

static const search AT_ZERO = {0.0, -INFINITY, INFINITY, 0};

/* Move to the next guess; return 0 where there is no better one. excess: the mean minus its bound
   at the price; slope: how fast it falls there. The mean is linear between kinks, so Newton's step
   is exact near the end; others keep it within what is known. */
static int improve(search *at, double excess, double slope)
{
    const double price = at->price;
    if (fabs(excess) <= EXACT || at->turn == TURNS) return 0;
    *(excess > 0.0 ? &at->lower : &at->upper) = price;
    double next = price + excess / slope;
    if (!(at->turn % 4 < 3 && at->lower < next && next < at->upper)) {
        if (at->upper == INFINITY)
            next = fmax(1.0, 2.0 * price);
        else if (at->lower == -INFINITY)
            next = fmin(-1.0, 2.0 * price);
        else
            next = 0.5 * (at->lower + at->upper);
    }
    if (next == at->lower || next == at->upper || fabs(next) > FAR) return 0;
    at->price = next;
    at->turn++;
    return 1;
}

/* Return the mean share of task t at the prices `shift`; also how fast it falls with its own. */
static double mean_share(int64_t rows, int64_t T, int64_t t, const double *from,
                         const double *shift, double *out, double *scratch, double *slope)
{
    const double *above = scratch;
    project_rows(rows, T, from, shift, out, scratch, scratch + rows);
    double mean = 0.0, falls = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        mean += out[i * T + t];
        falls += out[i * T + t] > 0.0 ? 1.0 - 1.0 / above[i] : 0.0;
    }
    *slope = falls / (double)rows;
    return mean / (double)rows;
}

/* Return the mean share of old tasks at their price; also how fast it falls with that. moved: where
   to write the rows with the price taken off old tasks. */
static double mean_replay(int64_t rows, int64_t T, double price, const double *restrict from,
                          const uint8_t *restrict old, const double *shift, double *restrict moved,
                          double *restrict out, double *scratch, double *slope)
{
    const double *above = scratch;
    for (int64_t i = 0; i < rows * T; i++) moved[i] = old[i] ? from[i] - price : from[i];
    project_rows(rows, T, moved, shift, out, scratch, scratch + rows);
    double mean = 0.0, falls = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        double counted = 0.0;
        for (int64_t t = i * T; t < (i + 1) * T; t++) {
            const int replayed = out[t] > 0.0 && old[t];
            counted += replayed ? 1.0 : 0.0;
            mean += replayed ? out[t] : 0.0;
        }
        falls += counted * (1.0 - counted / above[i]);
    }
    *slope = falls / (double)rows;
    return mean / (double)rows;
}

/* Return the price of old tasks in span k at which their mean share is at most its cap. */
static double price_of_replay(const domain *d, int64_t k, const double *given, const double *shift,
                              double *moved, double *out, double *scratch, flag *stop)
{
    const int64_t first = d->span[2 * k], rows = d->span[2 * k + 1] - first, skip = first * d->T;
    search at = AT_ZERO;
    for (;;) {
        double slope;
        const double mean = mean_replay(rows, d->T, at.price, given + skip, d->old + skip, shift,
                                        moved + skip, out + skip, scratch, &slope);
        const double excess = mean - d->caps[k];
        if ((at.turn == 0 && excess < 0.0) || *stop || !improve(&at, excess, slope))
            return at.price;
    }
}

/* Set the price shift[t] of a task at which its budget is kept. */
static void set_price(const domain *d, int64_t t, const double *rows, double *shift, double *out,
                      double *scratch, flag *stop)
{
    search at = AT_ZERO;
    double slope, bound = 0.0;
    for (;;) {
        shift[t] = at.price;
        const double mean = mean_share(d->rows, d->T, t, rows, shift, out, scratch, &slope);
        if (at.turn == 0) bound = within(mean, d->low[t], d->high[t]);
        if (*stop || !improve(&at, mean - bound, slope)) return;
    }
}

/* Find the price `shift` of each task in turn at which its budget is kept, and of replay: a task's
   mean share falls with its own price. Replay has a price in each span, which comes on top.
   rows (rows x T): scratch space; shift (T + spans): 0, with the prices of replay at its end. */
static void project_with_budgets(const domain *d, const double *given, double *out, double *rows,
                                 double *shift, double *scratch, flag *stop)
{
    const int64_t size = d->rows * d->T;
    double *prices = shift + d->T;
    for (int64_t i = 0; i < size; i++) rows[i] = given[i];
    for (int64_t cycle = 0; cycle < CYCLES && !*stop; cycle++) {
        double moved = 0.0, largest = 0.0;
        for (int64_t k = 0; k < d->spans; k++) {
            const double before = prices[k];
            prices[k] = price_of_replay(d, k, given, shift, rows, out, scratch, stop);
            moved = fmax(moved, fabs(prices[k] - before));
            largest = fmax(largest, prices[k]);
        }
        for (int64_t t = 0; t < d->T; t++) {
            const double before = shift[t];
            set_price(d, t, rows, shift, out, scratch, stop);
            moved = fmax(moved, fabs(shift[t] - before));
            largest = fmax(largest, fabs(shift[t]));
        }
        if (moved <= 1e-12 * (1.0 + largest)) break;
    }
    project_rows(d->rows, d->T, rows, shift, out, scratch, scratch + d->rows);
}

/* Move a group within its box so that its mean is within bounds, to the nearest such point: that
   lowers every number by its weight times one price. `out` holds the box's nearest point. */
static void project_mean(int64_t m, double least, double most, const double *restrict x,
                         const double *restrict weights, double *restrict out)
{
    double largest = 0.0; /* the mean of ones, which rounding can leave below a bound of 1 */
    for (int64_t i = 0; i < m; i++) largest += weights[i];
    search at = AT_ZERO;
    double mean, slope, bound = 0.0;
    do {
        mean = slope = 0.0;
        for (int64_t i = 0; i < m; i++) {
            if (!(weights[i] > 0.0)) continue;
            const double moved = x[i] - at.price * weights[i];
            out[i] = within(moved, 0.0, 1.0);
            mean += weights[i] * out[i];
            slope += 0.0 < moved && moved < 1.0 ? weights[i] * weights[i] : 0.0;
        }
        if (at.turn == 0)
            bound = within(mean, fmax(least, 0.0), fmin(most, largest));
    } while (improve(&at, mean - bound, slope));
}

static int has_budgets(const domain *d)
{
    int found = d->spans > 0;
    for (int64_t t = 0; t < d->T; t++) found |= d->low[t] > 0.0 || d->high[t] < 1.0;
    return found;
}

/* Write the nearest vector of the domain. work: rows (2 T + 1) + 5 T + spans numbers. */
static void project(const domain *d, const double *x, double *out, double *work, flag *stop)
{
    const int64_t rows = d->rows, T = d->T, size = rows * T;
    const double *given = x;
    double *reachable = work, *moved = work + size, *prices = moved + size;
    double *scratch = prices + T + d->spans;
    if (d->available && rows) {
        for (int64_t i = 0; i < size; i++) reachable[i] = d->available[i] ? x[i] : -INFINITY;
        given = reachable;
    }
    for (int64_t i = 0; i < T + d->spans; i++) prices[i] = 0.0;
    if (rows && has_budgets(d))
        project_with_budgets(d, given, out, moved, prices, scratch, stop);
    else
        project_rows(rows, T, given, prices, out, scratch, scratch + rows);
    x += size, out += size;
    for (int64_t i = 0; i < d->m; i++) out[i] = within(x[i], 0.0, 1.0);
    for (int64_t g = 0; g < d->groups; g++)
        project_mean(d->m, d->least[g], d->most[g], x, d->weights + g * d->m, out);
}

EXPORT int64_t replan_project(const domain *d, const double *x, double *out, double *work,
                              flag *stop)
{
    project(d, x, out, work, stop);
    return 1;
}

/* Write the Hessian (scale - sides' inverse sides) of a limited-memory BFGS model times a vector;
   sides: (p, n). products: 2 p numbers of scratch space. */
static void multiply(int64_t n, int64_t p, double scale, const double *restrict sides,
                     const double *restrict inverse, const double *restrict vector,
                     double *restrict out, double *restrict products)
{
    for (int64_t j = 0; j < p; j++) products[j] = dot(n, sides + j * n, vector);
    for (int64_t j = 0; j < p; j++) products[p + j] = dot(p, inverse + j * p, products);
    for (int64_t i = 0; i < n; i++) out[i] = scale * vector[i];
    for (int64_t j = 0; j < p; j++) add(n, -products[p + j], sides + j * n, out);
}

/* Move x towards the minimum over the domain of a quadratic model with gradient `slope` at x, by
   spectral projected gradients; `slope` follows. work: 3 n + 2 p numbers, and those of `project`.
   Returns how many steps were made.
   Birgin, Martinez & Raydan, "Nonmonotone spectral projected gradient methods on convex sets"
   (2000); as the inner method of projected quasi-Newton: Schmidt, van den Berg, Friedlander &
   Murphy (2009). */
EXPORT int64_t replan_descend(const domain *d, int64_t n, int64_t p, double scale,
                              const double *sides, const double *inverse, double *restrict x,
                              double *restrict slope, double *work, flag *stop)
{
    double *restrict trial = work, *restrict direction = work + n, *restrict bent = work + 2 * n;
    double *products = work + 3 * n, *scratch = products + 2 * p;
    double pace = 1.0 / scale, enough = 0.0;
    for (int64_t step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < n; i++) trial[i] = x[i] - pace * slope[i];
        project(d, trial, direction, scratch, stop);
        for (int64_t i = 0; i < n; i++) direction[i] -= x[i];
        const double drop = dot(n, slope, direction);
        if (step == 0) enough = -ENOUGH * drop;
        if (*stop || drop >= -enough) return step;
        multiply(n, p, scale, sides, inverse, direction, bent, products);
        const double curvature = dot(n, direction, bent);
        double length = 1.0;
        if (curvature > 0.0) {
            length = fmin(1.0, -drop / curvature);
            pace = dot(n, direction, direction) / curvature;
        }
        add(n, length, direction, x);
        add(n, length, bent, slope);
    }
    return STEPS;
}
