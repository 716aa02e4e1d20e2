/* Classical RK4 and its exact reverse, over a table of a model's functions. */

#include <math.h>

#include "replan.h"

enum { STAGES = 4, ROWS = 4 }; /* the integrator's own rows of n numbers, before the model's work */

static void begin(const kernels *model, const double *p, double *work)
{
    if (model->prepare) model->prepare(p, work);
}

static void copy(int64_t n, const double *source, double *target)
{
    for (int64_t i = 0; i < n; i++) target[i] = source[i];
}

/* Roll out `substeps[i]` equal steps on piece i, from starts[i] to ends[i] (pieces x n); in a chain
   the two share memory, so that each piece starts where the last one ended. tape: (steps x 4 x n)
   the stages of all steps for the reverse, or a single row as scratch space. work: 4 n numbers and
   the model's. Returns how many pieces were completed before a number was no longer finite. */
EXPORT int64_t replan_roll_out(const kernels *model, const double *p, int64_t pieces, int64_t T,
                               int64_t C, int64_t n, int64_t steps, const double *shares,
                               const double *knobs, const double *lengths, const int64_t *substeps,
                               const double *starts, double *ends, double *tape, double *work,
                               flag *stop)
{
    static const double weight[STAGES] = {1.0, 2.0, 2.0, 1.0}, ahead[STAGES] = {0.5, 0.5, 1.0, 0.0};
    double *state = work, *slope = work + n, *total = work + 2 * n, *scratch = work + ROWS * n;
    begin(model, p, scratch);
    for (int64_t piece = 0; piece < pieces; piece++) {
        const double step = lengths[piece] / (double)substeps[piece];
        copy(n, starts + piece * n, state);
        for (int64_t sub = 0; sub < substeps[piece]; sub++) {
            if (*stop) return piece;
            copy(n, state, tape);
            for (int64_t j = 0; j < STAGES; j++) {
                model->rate(p, tape + j * n, shares + piece * T, knobs + piece * C, slope, scratch);
                for (int64_t i = 0; i < n; i++) {
                    total[i] = (j > 0 ? total[i] : 0.0) + weight[j] * slope[i];
                    if (j + 1 < STAGES)
                        tape[(j + 1) * n + i] = state[i] + ahead[j] * step * slope[i];
                }
            }
            double size = 0.0;
            for (int64_t i = 0; i < n; i++) {
                state[i] += step / 6.0 * total[i];
                size += fabs(state[i]);
            }
            if (!isfinite(size)) return piece;
            if (steps > 1) tape += STAGES * n;
        }
        copy(n, state, ends + piece * n);
    }
    return pieces;
}

/* Reverse of a roll-out: exact gradients of sum_i cotangents[i] . states[i] over its edges
   (pieces + 1). Fills in the adjoints (edges x n), the gradients by the state at each edge, and
   adds to those by shares and knobs. Returns how many pieces it went through. */
EXPORT int64_t replan_roll_out_vjp(const kernels *model, const double *p, int64_t pieces,
                                   int64_t edges, int64_t T, int64_t C, int64_t n, int64_t steps,
                                   const double *shares, const double *knobs,
                                   const double *lengths, const int64_t *substeps,
                                   const double *cotangents, const double *tape, double *adjoints,
                                   double *by_shares, double *by_knobs, double *work, flag *stop)
{
    double *cotangent = work, *total = work + n, *pulled = work + 2 * n, *back = work + 3 * n;
    double *scratch = work + ROWS * n;
    begin(model, p, scratch);
    copy(n, cotangents + (edges - 1) * n, back);
    copy(n, back, adjoints + (edges - 1) * n);
    tape += steps * STAGES * n;
    for (int64_t piece = pieces - 1; piece >= 0; piece--) {
        const double step = lengths[piece] / (double)substeps[piece];
        for (int64_t sub = 0; sub < substeps[piece]; sub++) {
            if (*stop) return pieces - 1 - piece;
            tape -= STAGES * n;
            /* x+ = x + h/6 (k1 + 2 k2 + 2 k3 + k4): the cotangent of each k in turn, over h */
            for (int64_t i = 0; i < n; i++) {
                cotangent[i] = back[i] / 6.0;
                total[i] = 0.0;
            }
            for (int64_t j = STAGES - 1; j >= 0; j--) {
                model->rate_vjp(p, tape + j * n, cotangent, shares + piece * T, knobs + piece * C,
                                step, pulled, by_shares + piece * T, by_knobs + piece * C, scratch);
                const double part = j == 1 ? 1.0 / 6.0 : 1.0 / 3.0, ahead = j == 3 ? 1.0 : 0.5;
                for (int64_t i = 0; i < n; i++) {
                    total[i] += step * pulled[i];
                    cotangent[i] = part * back[i] + ahead * step * pulled[i];
                }
            }
            for (int64_t i = 0; i < n; i++) back[i] += total[i];
        }
        for (int64_t i = 0; i < n; i++)
            adjoints[piece * n + i] = back[i] += cotangents[piece * n + i];
    }
    return pieces;
}

/* The rate (n) at a single state. */
EXPORT int64_t replan_rate(const kernels *model, const double *p, int64_t n, const double *state,
                           const double *shares, const double *knobs, double *out, double *work)
{
    begin(model, p, work + ROWS * n);
    model->rate(p, state, shares, knobs, out, work + ROWS * n);
    return 1;
}

/* All losses (rows x L) at states (rows x n). */
EXPORT int64_t replan_losses(const kernels *model, const double *p, int64_t rows, int64_t n,
                             int64_t L, const double *states, double *out, double *work, flag *stop)
{
    begin(model, p, work + ROWS * n);
    for (int64_t row = 0; row < rows; row++) {
        if (*stop) return row;
        model->losses(p, states + row * n, out + row * L, work + ROWS * n);
    }
    return rows;
}

/* Reverse of the losses: gradients (rows x n) by the states, for cotangents (rows x L). */
EXPORT int64_t replan_losses_vjp(const kernels *model, const double *p, int64_t rows, int64_t n,
                                 int64_t L, const double *states, const double *cotangents,
                                 double *out, double *work, flag *stop)
{
    begin(model, p, work + ROWS * n);
    for (int64_t row = 0; row < rows; row++) {
        if (*stop) return row;
        model->losses_vjp(p, states + row * n, cotangents + row * L, out + row * n,
                          work + ROWS * n);
    }
    return rows;
}
