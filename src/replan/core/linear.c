/* Kernels of linear networks, g(z) = z: the moments are the covariances themselves, with
   E[Delta_t lambda_h] = (C w_t)_h and E[Delta_t^2 g'_k g'_h] = w_t . C w_t. See network.h. */

#include "network.h"

typedef struct {
    network net;
    double *errors;     /* (T, U) C w_t */
    double *squares;    /* (T) E[Delta_t^2] */
    double *by_errors;  /* (T, U) */
    double *by_squares; /* (T) */
} scratch;

static int64_t lay_out(int64_t K, int64_t P, int64_t T, scratch *w, double *memory)
{
    const int64_t U = K + P;
    arena room = BEGIN(scratch, memory);
    take_network(K, P, T, &w->net, &room);
    w->errors = take(&room, T * U), w->squares = take(&room, T);
    w->by_errors = take(&room, T * U), w->by_squares = take(&room, T);
    return room.used;
}

static void prepare(const double *p, double *work)
{
    scratch *w = (scratch *)work;
    lay_out((int64_t)p[0], (int64_t)p[1], (int64_t)p[2], w, work);
    set_network(p, &w->net);
}

EXPORT int64_t replan_linear_room(int64_t K, int64_t P, int64_t T)
{
    scratch w;
    return lay_out(K, P, T, &w, 0);
}

static void set_errors(const double *state, scratch *w)
{
    set_state(state, &w->net);
    const int64_t T = w->net.T, U = w->net.U;
    for (int64_t t = 0; t < T; t++) {
        const double *restrict weights = w->net.weights + t * U;
        w->squares[t] = 0.0;
        for (int64_t h = 0; h < U; h++) {
            double total = 0.0;
            for (int64_t n = 0; n < U; n++) total += w->net.cov[h * U + n] * weights[n];
            w->errors[t * U + h] = total;
            w->squares[t] += total * weights[h];
        }
    }
}

static void rate(const double *p, const double *state, const double *shares, const double *knobs,
                 double *restrict out, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    network *net = &w->net;
    const int64_t K = net->K, P = net->P, T = net->T, U = net->U;
    set_errors(state, w);
    set_rates(knobs, net);
    clear(K * U, out);
    for (int64_t t = 0; t < T; t++) {
        const double *restrict weights = net->weights + t * U, *restrict errors = w->errors + t * U;
        const double pace = shares[t] * net->rates[t];
        const double square = pace * net->rates[t] * (w->squares[t] + net->noise);
        for (int64_t k = 0; k < K; k++) {
            for (int64_t h = 0; h < K; h++)
                out[k * K + h] += square * weights[k] * weights[h] -
                                  pace * (weights[k] * errors[h] + weights[h] * errors[k]);
            for (int64_t q = 0; q < P; q++)
                out[K * K + k * P + q] -= pace * weights[k] * errors[K + q];
            out[K * U + t * K + k] = -shares[t] * net->head_rates[t] * errors[k];
        }
    }
}

static void losses(const double *p, const double *state, double *out, double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    set_errors(state, w);
    for (int64_t t = 0; t < w->net.T; t++) out[t] = 0.5 * w->squares[t];
}

/* Pull derivatives by errors and squares back to C and w, and write those by the state. */
static void pull_errors(scratch *w, double *by_state)
{
    network *net = &w->net;
    const int64_t T = net->T, U = net->U;
    for (int64_t t = 0; t < T; t++) {
        const double *restrict weights = net->weights + t * U, *restrict errors = w->errors + t * U;
        double *restrict by_weights = net->by_weights + t * U;
        for (int64_t h = 0; h < U; h++) {
            const double by_error = w->by_errors[t * U + h];
            const double by_cov = by_error + w->by_squares[t] * weights[h];
            by_weights[h] += 2.0 * w->by_squares[t] * errors[h];
            for (int64_t n = 0; n < U; n++) {
                net->by_cov[h * U + n] += by_cov * weights[n];
                by_weights[n] += by_error * net->cov[h * U + n];
            }
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
    const int64_t K = net->K, T = net->T, U = net->U;
    set_errors(state, w);
    set_rates(knobs, net);
    set_cotangent(cotangent, net);
    clear(T * U, w->by_errors);
    for (int64_t t = 0; t < T; t++) {
        const double *restrict weights = net->weights + t * U, *restrict errors = w->errors + t * U;
        double *restrict by_weights = net->by_weights + t * U;
        double *restrict by_errors = w->by_errors + t * U;
        const double pace = shares[t] * net->rates[t], noisy = w->squares[t] + net->noise;
        const double square = pace * net->rates[t] * noisy;
        double first = 0.0, both = 0.0, heads = 0.0;
        /* H = s (-eta first + eta^2 (E[Delta^2] + sigma^2) both - rho heads) */
        for (int64_t k = 0; k < K; k++) {
            const double *restrict pull = net->pull + k * U;
            for (int64_t h = 0; h < U; h++) {
                first += pull[h] * weights[k] * errors[h];
                by_errors[h] -= pace * pull[h] * weights[k];
                by_weights[k] -= pace * pull[h] * errors[h];
            }
            for (int64_t h = 0; h < K; h++) {
                both += 0.5 * pull[h] * weights[k] * weights[h];
                by_weights[k] += square * pull[h] * weights[h];
            }
            const double of_head = cotangent[K * U + t * K + k];
            heads += of_head * net->trained[t] * errors[k];
            by_errors[k] -= shares[t] * net->head_rates[t] * of_head;
        }
        w->by_squares[t] = pace * net->rates[t] * both;
        net->linear[t] = -first;
        net->quadratic[t] = noisy * both;
        net->heads[t] = -heads;
    }
    pull_errors(w, by_state);
    add_by_controls(shares, knobs, scale, net, by_shares, by_knobs);
}

static void losses_vjp(const double *p, const double *state, const double *cotangent, double *out,
                       double *work)
{
    (void)p;
    scratch *w = (scratch *)work;
    const int64_t T = w->net.T, U = w->net.U;
    set_errors(state, w);
    clear(U * U, w->net.by_cov), clear(T * U, w->net.by_weights), clear(T * U, w->by_errors);
    for (int64_t t = 0; t < T; t++) w->by_squares[t] = 0.5 * cotangent[t];
    pull_errors(w, out);
}

EXPORT const kernels replan_linear = {rate, rate_vjp, losses, losses_vjp, prepare};
