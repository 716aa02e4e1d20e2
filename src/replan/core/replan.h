/* The compiled core of replan: the notation, and the functions that Python calls.

   T tasks, C columns of knobs, states of n numbers, L losses. A schedule has `pieces` rows of
   shares (pieces x T), knobs (pieces x C), lengths (pieces) and integrator steps (pieces).

   Arrays are C-contiguous; integers have 64 bits. Nothing here allocates memory, prints or knows
   Python: callers pass scratch space as `work`, and library.py checks types, shapes and sizes
   before every call. Of the C library only the mathematics is used, and what compilers make
   of loops that copy or clear. */

#ifndef REPLAN_H
#define REPLAN_H

#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* The functions of a model. `p` are its parameters, `work` its scratch space.
   - rate: write sum_t shares[t] f_t(state, knobs) to out (n).
   - rate_vjp: write the gradient of cotangent . rate by the state to by_state (n); add `scale`
     times those by shares and knobs to by_shares (T) and by_knobs (C).
   - losses: write all losses to out (L).
   - losses_vjp: write the gradient of cotangent . losses by the state to out (n).
   - prepare: fill in what the parameters alone determine, once before a loop; may be null. */
typedef struct {
    void (*rate)(const double *p, const double *state, const double *shares, const double *knobs,
                 double *out, double *work);
    void (*rate_vjp)(const double *p, const double *state, const double *cotangent,
                     const double *shares, const double *knobs, double scale, double *by_state,
                     double *by_shares, double *by_knobs, double *work);
    void (*losses)(const double *p, const double *state, double *out, double *work);
    void (*losses_vjp)(const double *p, const double *state, const double *cotangent, double *out,
                       double *work);
    void (*prepare)(const double *p, double *work);
} kernels;

/* Set by Python on Ctrl-C; loops look at it once in every step and then return early. */
typedef const volatile int64_t flag;

#endif
