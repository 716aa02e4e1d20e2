/* Sequences of one task per step: the cheapest within limits, and the nearest to shares. */

#include <math.h>

#include "replan.h"

static const double TIE = 1e-9; /* in steps; smaller differences are rounding errors */

/* The cheapest path, by dynamic programming. A node is (step, task t, switches so far s, counts so
   far c, replay so far r). Stays are at least `dwell` steps long: either a stay continues for a
   step, or a new one of `dwell` steps follows it. */
typedef struct {
    int64_t steps, T, S, C, R, dwell, switches;
    const uint8_t *old;     /* (steps, T) whether a task is replay at a step */
    const uint8_t *begins;  /* (steps) whether an interval between arrivals begins there */
    const int64_t *replays; /* (steps) how much replay the interval may hold */
    const int64_t *low;     /* (T) bounds on how often a task occurs */
    const int64_t *high;
    const int64_t *sizes;   /* (T) how many different counts are tracked, 0 for none; counts of */
    const int64_t *strides; /* (T) all tasks form one mixed-radix number c */
} limits;

/* Place of a node in the layer of its step. */
static inline int64_t place(const limits *w, int64_t t, int64_t s, int64_t c, int64_t r)
{
    return ((t * w->S + s) * w->C + c) * w->R + r;
}

/* Return how much replay there may be before steps `first` to `last` on a task; -1 if none may.
   replay: how much there may be with them, in the interval that the last of them lies in. */
static int64_t left(const limits *w, int64_t replay, int64_t first, int64_t last, int64_t task)
{
    for (int64_t i = last - 1; i >= first; i--) {
        replay -= w->old[i * w->T + task] != 0;
        if (replay < 0) return -1;
        if (w->begins[i]) replay = i > 0 ? w->replays[i - 1] : 0;
    }
    return replay;
}

/* Reach `count` nodes from others at a cost, where that is cheaper; they lie R apart. */
static void reach(int64_t count, int64_t R, const double *restrict from, double cost,
                  int64_t task, double *restrict to, int16_t *restrict came)
{
    for (int64_t j = 0; j < count * R; j += R) {
        const double value = from[j] + cost;
        const int better = value < to[j];
        to[j] = better ? value : to[j];
        came[j] = better ? (int16_t)task : came[j];
    }
}

/* Fill in the nodes of task t after i steps that have replay r. before, jump: the layers of one and
   `dwell` steps ago; many: how much replay there may be before a new stay, -1 if none may end. */
static void fill(const limits *w, int64_t i, int64_t t, int64_t r, int64_t many, double cost,
                 double stay, const double *before, const double *jump, double *layer,
                 int16_t *came)
{
    const int64_t stride = w->strides[t], block = w->sizes[t] ? w->sizes[t] * stride : w->C;
    const int64_t one = left(w, r, i - 1, i, t), whole = w->dwell * stride;
    if (many >= 0 && i == w->dwell && whole < block) {
        layer[place(w, t, 0, whole, r)] = stay;
        came[place(w, t, 0, whole, r)] = (int16_t)t;
    }
    for (int64_t s = 0; s < w->S; s++) {
        const int64_t earlier = w->switches >= 0 ? s - 1 : s;
        for (int64_t c = 0; c < w->C; c += block) { /* within a block, t's count goes from 0 up */
            if (one >= 0 && stride < block) {
                const int64_t to = place(w, t, s, c + stride, r);
                reach(block - stride, w->R, before + place(w, t, s, c, one), cost, t, layer + to,
                      came + to);
            }
            if (many < 0 || earlier < 0 || whole >= block) continue;
            const int64_t to = place(w, t, s, c + whole, r);
            for (int64_t other = 0; other < w->T; other++)
                if (other != t)
                    reach(block - whole, w->R, jump + place(w, other, earlier, c, many), stay,
                          other, layer + to, came + to);
        }
    }
}

/* Whether final counts keep the budgets. */
static int keeps(const limits *w, int64_t c)
{
    int64_t rest = w->steps, most = 0, least = 0;
    for (int64_t t = 0; t < w->T; t++) {
        if (w->sizes[t] > 0) {
            const int64_t taken = (c / w->strides[t]) % w->sizes[t];
            if (taken < w->low[t] || taken > w->high[t]) return 0;
            rest -= taken;
        } else {
            most += w->high[t] < w->steps ? w->high[t] : w->steps;
            least += w->low[t];
        }
    }
    return least <= rest && rest <= most;
}

/* Write the tasks along the cheapest way to the last layer; return their number, 0 if none. */
static int64_t trace(const limits *w, const double *last, const int16_t *came, int64_t *tasks)
{
    int64_t task = -1, used = 0, count = 0, replay = w->replays[w->steps - 1];
    double least = INFINITY;
    for (int64_t t = 0; t < w->T; t++)
        for (int64_t s = 0; s < w->S; s++)
            for (int64_t c = 0; c < w->C; c++) {
                const double cost = last[place(w, t, s, c, replay)];
                if (cost < least && keeps(w, c)) task = t, used = s, count = c, least = cost;
            }
    if (task < 0) return 0;
    for (int64_t i = w->steps; i > 0;) {
        const int64_t layer = i * w->T * w->S * w->C * w->R;
        const int64_t other = came[layer + place(w, task, used, count, replay)];
        const int64_t length = other == task && i > w->dwell ? 1 : w->dwell;
        replay = left(w, replay, i - length, i, task);
        count -= length * w->strides[task];
        for (int64_t j = 0; j < length; j++) tasks[--i] = task;
        if (other != task && w->switches >= 0) used--;
        task = other;
    }
    return w->steps;
}

/* Write the tasks (steps) of least total cost within the limits; return their number, 0 if no
   sequence fits. costs: (steps, T), and their cumulative sums (edges, T); available: (steps, T);
   best: the last dwell + 1 layers in turn, infinite at first; came: the previous task of each node;
   stays: (T) how long each task has been available, 0 at first. */
EXPORT int64_t replan_cheapest_path(int64_t steps, int64_t edges, int64_t T, int64_t S, int64_t C,
                                    int64_t R, int64_t dwell, int64_t switches, const double *costs,
                                    const double *sums, const uint8_t *available,
                                    const uint8_t *old, const uint8_t *begins,
                                    const int64_t *replays, const int64_t *low,
                                    const int64_t *high, const int64_t *sizes,
                                    const int64_t *strides, double *best, int16_t *came,
                                    int64_t *tasks, int64_t *stays, flag *stop)
{
    const limits w = {steps, T, S, C, R, dwell, switches, old, begins, replays, low, high, sizes,
                      strides};
    const int64_t size = T * S * C * R, layers = dwell + 1;
    for (int64_t i = 1; i < edges; i++) {
        double *layer = best + i % layers * size;
        for (int64_t t = 0; t < T; t++) stays[t] = available[(i - 1) * T + t] ? stays[t] + 1 : 0;
        if (i < dwell) continue;
        const double *before = best + (i - 1) % layers * size;
        const double *jump = best + (i - dwell) % layers * size;
        for (int64_t j = 0; j < size; j++) layer[j] = INFINITY;
        for (int64_t t = 0; t < T && !*stop; t++) {
            const double stay = sums[i * T + t] - sums[(i - dwell) * T + t];
            for (int64_t r = 0; stays[t] > 0 && r <= replays[i - 1]; r++) {
                const int64_t many = stays[t] >= dwell ? left(&w, r, i - dwell, i, t) : -1;
                fill(&w, i, t, r, many, costs[(i - 1) * T + t], stay, before, jump, layer,
                     came + i * size);
            }
        }
        if (*stop) return 0;
    }
    return trace(&w, best + steps % layers * size, came, tasks);
}

/* Continue sum-up rounding from `lag` (T), how far each task lags, which is updated: write one task
   per step (steps) for shares (steps, T) and lengths (steps). Every step goes to the task that lags
   its integrated share most. With `patience` a task continues until another lags by that many steps
   more. Tasks that are not `there` (steps, T) do not catch up. Returns the number of steps before
   one at which no task is there. */
EXPORT int64_t replan_follow(int64_t steps, int64_t T, double patience,
                             const double *restrict shares, const double *restrict lengths,
                             const uint8_t *restrict there, double *restrict lag,
                             int64_t *restrict chosen, flag *stop)
{
    for (int64_t i = 0; i < steps && !*stop; i++, shares += T, there += T) {
        int64_t best = -1;
        double most = -INFINITY;
        for (int64_t t = 0; t < T; t++) {
            const double lags = lag[t] += shares[t] * lengths[i];
            if (there[t] && (best < 0 || lags > most + TIE * lengths[i])) best = t, most = lags;
        }
        if (best < 0) return i;
        if (patience > 0.0 && i > 0) {
            const int64_t before = chosen[i - 1];
            if (there[before] && lag[best] <= lag[before] + patience * lengths[i]) best = before;
        }
        lag[best] -= lengths[i];
        chosen[i] = best;
    }
    return steps;
}
