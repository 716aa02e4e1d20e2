/* The steps of SGD at finite N: of the reduced chain of overlaps, and plain ones.

   Reduced. Inputs are Gaussian, so only their components along the teachers and students matter.
   Notation: the teachers span r dimensions, with coordinates `frame` (P, r), S = frame frame';
   student k, over sqrt(N), is `along` (K, r) in that span plus `rest` (K, K), lower triangular in
   an orthonormal frame beside it. An input has r + K standard normal components there; the
   remainder lies along one new direction, and its length is chi distributed with N - K - r degrees
   of freedom. After an update the rest reaches into the new direction; a rotation of the frame
   makes it triangular again. No matrix is inverted, so nothing becomes singular when a student
   aligns with a teacher.

   Plain. With batches of b samples and momentum beta, a velocity u accumulates the gradients. Each
   batch makes u <- beta u + (1/b) sum_i lr_i grad_i over its samples, which may be of several
   tasks, each at its rate, and all weights and heads move by -u. */

#include <math.h>

#include "network.h"
#include "vectors.h"

/* A run diverges where the error on a sample, or that times lr / N, exceeds this. */
static const double LARGE = 1e10;

/* g(z) and g'(z), known to the compiler wherever they are called: see ALWAYS_INLINE. */
typedef double function(double);

static inline double erf_value(double z) { return erf(z * sqrt(0.5)); }
static inline double erf_slope(double z) { return sqrt(TWO_OVER_PI) * exp(-0.5 * z * z); }
static inline double relu_value(double z) { return z < 0.0 ? 0.0 : z; }
static inline double relu_slope(double z) { return z > 0.0 ? 1.0 : 0.0; } /* 0 at 0, as trained */
static inline double linear_value(double z) { return z; }
static inline double linear_slope(double z) { return (void)z, 1.0; }

enum { ERF, RELU, LINEAR }; /* the order of ACTIVATIONS in library.py */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Fill a block of draws (samples x (r + K + 2)) with numpy's own functions, in their usual order:
   for every sample r + K normal numbers, the length of the remainder, and a normal number for the
   label. Where freedom or noise is 0, the last two are 0 and not drawn. */
EXPORT int64_t replan_draw(void *generator, double (*normal)(void *),
                           double (*chi_square)(void *, double), int64_t samples, int64_t columns,
                           double freedom, double noise, double *draws)
{
    for (int64_t sample = 0; sample < samples; sample++, draws += columns) {
        for (int64_t j = 0; j < columns - 2; j++) draws[j] = normal(generator);
        draws[columns - 2] = freedom > 0.0 ? sqrt(chi_square(generator, freedom)) : 0.0;
        draws[columns - 1] = noise > 0.0 ? normal(generator) : 0.0;
    }
    return samples;
}

static inline int diverges(double error, double pace, double head_pace)
{
    return !(fabs(error) < LARGE && fabs(pace) < LARGE && fabs(head_pace) < LARGE);
}

/* A reduced chain, and samples to advance it with; see replan_advance_reduced. */
typedef struct {
    int64_t samples, K, r, P, columns;
    double dimension, noise;
    double *students; /* (r + K + 1, K): along, rest and a column of zeros, transposed */
    double *heads;
    const int64_t *tasks;
    const double *rates, *head_rates, *frame, *teacher_heads, *draws;
    double *fields, *push, *norms; /* (K), (K), (K + 1) */
} reduced;

/* Turn two directions of the frame: the students' coordinates (K) there, from one of them on. */
ALWAYS_INLINE void turn(int64_t K, int64_t first, double c, double s, double *restrict left,
                        double *restrict right)
{
    for (int64_t k = first - first % 4; k < K; k++) { /* zeros stay, and whole vectors are fast */
        const double a = left[k], b = right[k];
        left[k] = c * a + s * b;
        right[k] = c * b - s * a;
    }
}

/* Make rest' + outer push' triangular again by rotations of the frame. rest' (K + 1, K) is upper
   triangular, its last row zero. First the frame is turned so that `outer` (K + 1) points along its
   first direction, which brings rest' one diagonal down; the update then touches the first row
   only, and a second turn removes that diagonal. norms: (K + 1) of `outer` from each entry on. */
ALWAYS_INLINE void add_outer(int64_t K, const double *outer, const double *push, double *rest,
                             double *norms)
{
    double square = outer[K] * outer[K];
    norms[K] = outer[K];
    for (int64_t i = K - 1; i >= 0; i--) norms[i] = sqrt(square += outer[i] * outer[i]);
    for (int64_t i = K - 1; i >= 0; i--) {
        double *row = rest + i * K, *next = row + K;
        if (norms[i] > 0.0) turn(K, i, outer[i] / norms[i], norms[i + 1] / norms[i], row, next);
    }
    for (int64_t k = 0; k < K; k++) rest[k] += push[k] * norms[0];
    for (int64_t i = 0; i < K; i++) {
        double *row = rest + i * K, *next = row + K;
        const double length = sqrt(row[i] * row[i] + next[i] * next[i]), scale = 1.0 / length;
        if (length > 0.0) turn(K, i, row[i] * scale, next[i] * scale, row, next);
        next[i] = 0.0;
    }
}

ALWAYS_INLINE int64_t advance(function g, function slope, int64_t K, const reduced *c)
{
    const int64_t r = c->r, P = c->P;
    double *restrict students = c->students, *restrict fields = c->fields, *restrict push = c->push;
    for (int64_t sample = 0; sample < c->samples; sample++) {
        const int64_t t = c->tasks[sample];
        const double *x = c->draws + sample * c->columns, *labels = c->teacher_heads + t * P;
        double *restrict heads = c->heads + t * K, error = -c->noise * x[r + K + 1];
        for (int64_t q = 0; q < P; q++) {
            if (labels[q] == 0.0) continue;
            double field = 0.0;
            for (int64_t j = 0; j < r; j++) field += c->frame[q * r + j] * x[j];
            error -= labels[q] * g(field);
        }
        for (int64_t k = 0; k < K; k++) fields[k] = 0.0;
        for (int64_t j = 0; j < r + K; j++)
            for (int64_t k = 0; k < K; k++) fields[k] += x[j] * students[j * K + k];
        for (int64_t k = 0; k < K; k++) {
            push[k] = g(fields[k]); /* holds the activation, for now */
            error += heads[k] * push[k];
        }
        const double pace = c->rates[sample] / c->dimension * error;
        const double head_pace = c->head_rates[sample] / c->dimension * error;
        if (diverges(error, pace, head_pace)) return sample;
        for (int64_t k = 0; k < K; k++) {
            const double active = push[k];
            push[k] = -pace * heads[k] * slope(fields[k]);
            heads[k] -= head_pace * active;
        }
        for (int64_t j = 0; j < r; j++)
            for (int64_t k = 0; k < K; k++) students[j * K + k] += push[k] * x[j];
        add_outer(K, x + r, push, students + r * K, c->norms);
    }
    return c->samples;
}

/* Copy along (K, r) and rest (K, K) to the chain's own coordinates, or back. */
static void copy_students(const reduced *c, double *along, double *rest, int back)
{
    const int64_t K = c->K, r = c->r;
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < r + K; j++) {
            double *outside = j < r ? along + k * r + j : rest + k * K + j - r;
            double *inside = c->students + j * K + k;
            *(back ? outside : inside) = back ? *inside : *outside;
        }
    for (int64_t k = 0; k < K; k++) c->students[(r + K) * K + k] = 0.0;
}

/* The compiler makes one for K = 2 and one for the other numbers of hidden units. */
#define ADVANCE(g, slope) (K == 2 ? advance(g, slope, 2, c) : advance(g, slope, K, c))

static int64_t advance_any(int64_t activation, int64_t K, const reduced *c)
{
    return activation == ERF    ? ADVANCE(erf_value, erf_slope)
           : activation == RELU ? ADVANCE(relu_value, relu_slope)
                                : ADVANCE(linear_value, linear_slope);
}

/* Write the overlaps: Q (K, K), M (K, P) and the heads (T, K). */
static void measure(const reduced *c, int64_t T, double *out)
{
    const int64_t K = c->K, r = c->r, P = c->P;
    for (int64_t k = 0; k < K; k++)
        for (int64_t i = 0; i < K + P; i++) {
            const double *with = i < K ? c->students + i : c->frame + (i - K) * r;
            double sum = 0.0;
            for (int64_t j = 0; j < (i < K ? r + K : r); j++)
                sum += c->students[j * K + k] * with[i < K ? j * K : j];
            *(i < K ? out + k * K + i : out + K * K + k * P + i - K) = sum;
        }
    for (int64_t i = 0; i < T * K; i++) out[K * (K + P) + i] = c->heads[i];
}

/* Make one SGD step of the reduced chain for every sample, in place; return the number before a
   divergence. draws: see replan_draw; tasks, rates, head_rates: (samples) of each sample;
   teacher_heads: (T, P). states: (m, n) after each of the numbers `marks` (m) of samples, which
   rise. work: (r + K + 1) K + 3 K + 1 numbers. */
EXPORT int64_t replan_advance_reduced(int64_t samples, int64_t K, int64_t r, int64_t P, int64_t T,
                                      int64_t columns, int64_t m, int64_t n, int64_t activation,
                                      double dimension, double noise, double *along, double *rest,
                                      double *heads, const int64_t *tasks, const double *rates,
                                      const double *head_rates, const double *frame,
                                      const double *teacher_heads, const double *draws,
                                      const int64_t *marks, double *states, double *work)
{
    double *fields = work + (r + K + 1) * K;
    reduced c = {
        .samples = samples, .K = K, .r = r, .P = P, .columns = columns, .dimension = dimension,
        .noise = noise, .students = work, .heads = heads, .frame = frame,
        .teacher_heads = teacher_heads, .fields = fields, .push = fields + K,
        .norms = fields + 2 * K};
    copy_students(&c, along, rest, 0);
    int64_t done = 0;
    for (int64_t i = 0, end = 0; i <= m && done == end; i++) {
        end = i < m ? marks[i] : samples;
        c.samples = end - done;
        c.tasks = tasks + done;
        c.rates = rates + done;
        c.head_rates = head_rates + done;
        c.draws = draws + done * columns;
        done += advance_any(activation, K, &c);
        if (i < m && done == end) measure(&c, T, states + i * n);
    }
    copy_students(&c, along, rest, 1);
    return done;
}

/* A network with N inputs, and samples to train it on; see replan_train. */
typedef struct {
    int64_t samples, K, N, P, T, batch, filled;
    double momentum;
    double *weights, *heads, *velocity, *head_velocity;
    const int64_t *tasks;
    const double *rates, *head_rates, *teachers, *teacher_heads, *inputs, *noise;
} plain;

/* Return prediction minus label of sample i; fill in the fields (K) and activations (K). */
ALWAYS_INLINE double error_of(function g, const plain *n, int64_t i, double *fields,
                              double *activations)
{
    const int64_t K = n->K, N = n->N, P = n->P, t = n->tasks[i];
    const double *x = n->inputs + i * N, scale = 1.0 / sqrt((double)N);
    double error = -n->noise[i];
    for (int64_t q = 0; q < P; q++)
        error -= n->teacher_heads[t * P + q] * g(dot(N, n->teachers + q * N, x) * scale);
    for (int64_t k = 0; k < K; k++) {
        fields[k] = dot(N, n->weights + k * N, x) * scale;
        activations[k] = g(fields[k]);
        error += n->heads[t * K + k] * activations[k];
    }
    return error;
}

static inline void multiply(int64_t n, double scale, double *restrict a)
{
    for (int64_t j = 0; j < n; j++) a[j] *= scale;
}

/* A step for every batch of samples; without a velocity, for every sample. */
ALWAYS_INLINE int64_t train(function g, function slope, plain n, double *work)
{
    const int64_t K = n.K, N = n.N;
    double *fields = work, *activations = work + K;
    for (int64_t i = 0; i < n.samples; i++) {
        const int64_t t = n.tasks[i];
        const double error = error_of(g, &n, i, fields, activations);
        const double share = error / ((double)n.batch * (double)N);
        const double pace = n.rates[i] * share, head_pace = n.head_rates[i] * share;
        if (diverges(error, pace, head_pace)) return i;
        if (n.velocity && n.filled == 0) {
            multiply(K * N, n.momentum, n.velocity);
            multiply(n.T * K, n.momentum, n.head_velocity);
        }
        double *weights = n.velocity ? n.velocity : n.weights;
        double *heads = n.velocity ? n.head_velocity : n.heads;
        const double sign = n.velocity ? 1.0 : -1.0;
        for (int64_t k = 0; k < K; k++) {
            const double push = pace * sqrt((double)N) * n.heads[t * K + k] * slope(fields[k]);
            heads[t * K + k] += sign * head_pace * activations[k];
            add(N, sign * push, n.inputs + i * N, weights + k * N);
        }
        if (n.velocity && ++n.filled == n.batch) {
            add(K * N, -1.0, n.velocity, n.weights);
            add(n.T * K, -1.0, n.head_velocity, n.heads);
            n.filled = 0;
        }
    }
    return n.samples;
}

/* Make an SGD step for every batch of inputs (samples x N), in place; return the number of samples
   before a divergence. weights: (K, N), heads: (T, K), teachers: (P, N), noise: (samples) of the
   labels. velocity: (K, N) and head_velocity (T, K) already hold the first `filled` samples of a
   batch; without rows, every sample is a batch and there is no momentum. work: 2 K numbers. */
EXPORT int64_t replan_train(int64_t samples, int64_t K, int64_t N, int64_t P, int64_t T,
                            int64_t moving, int64_t activation, int64_t batch, int64_t filled,
                            double momentum, double *weights, double *heads, double *velocity,
                            double *head_velocity, const double *inputs, const double *noise,
                            const int64_t *tasks, const double *rates, const double *head_rates,
                            const double *teachers, const double *teacher_heads, double *work)
{
    const plain n = {
        .samples = samples, .K = K, .N = N, .P = P, .T = T, .batch = batch, .filled = filled,
        .momentum = momentum, .weights = weights, .heads = heads, .velocity = moving ? velocity : 0,
        .head_velocity = head_velocity, .tasks = tasks, .rates = rates, .head_rates = head_rates,
        .teachers = teachers, .teacher_heads = teacher_heads, .inputs = inputs, .noise = noise};
    return activation == ERF    ? train(erf_value, erf_slope, n, work)
           : activation == RELU ? train(relu_value, relu_slope, n, work)
                                : train(linear_value, linear_slope, n, work);
}
