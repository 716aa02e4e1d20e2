/* The relaxed problem: a share of every task and a rate at every step, or the same throughout.
   Spectral projected gradients (Birgin, Martínez & Raydan 2000) from several starts on a coarse
   grid; the best go on with all steps. Any model will do that has tasks and a gradient. */

const COARSE = 40; // steps of the coarse grid
const ROUNDS = [
  [25, 8],
  [60, 3],
];
const SAME = 2e-3; // relative: values that differ by less count as one optimum
const ITERATIONS = 400; // at most, of a descent with all steps
const PATIENCE = 40; // iterations that must between them gain a part of the value:
const LEAST_GAIN = 3e-4;
const MEMORY = 10; // values, the largest of which a step may come up to
const ARMIJO = 1e-4; // of the predicted gain, which a step must reach
const TRIALS = 25; // of a line search
const ACCURACY = 1e-4; // of the integrator, relative
const MOST_SUBSTEPS = 32;

/** Minimise the weighted final losses of a model from a state. settings: duration; steps;
    weights (L); the shares (steps × T) and rates (steps) to begin with, or to keep; freeShares and
    freeRates: "given", "constant" or "curve"; range, of the rates; changes, [fall, rise] of the
    rate per unit of time at most, or null. onProgress is told of every better result. */
export function minimise(model, start, settings, onProgress = () => {}) {
  const { steps } = settings;
  let best = { value: Infinity };
  const descend = (descent, iterations) => {
    for (let i = 0; i < iterations && !descent.finished; i++) descent.step();
    return descent;
  };
  const finish = (fine, controls) => {
    for (let { substeps } = fine; ; substeps *= 2) {
      const descent = descend(new Descent(fine.with(substeps), controls), ITERATIONS);
      controls = descent.controls;
      const exact = fine.with(2 * substeps).evaluate(descent.best).value;
      if (substeps >= MOST_SUBSTEPS || Math.abs(exact - descent.least) <= ACCURACY * exact) {
        if (exact < best.value) onProgress((best = { ...controls, value: exact }));
        return;
      }
      fine = fine.with(2 * substeps);
    }
  };
  const both = settings.freeShares === "curve" && settings.freeRates === "curve";
  const width = both ? model.tasks : 1;
  const fine = new Objective(model, start, settings, steps, width);
  const single = new Objective(model, start, settings, steps, 1);
  const coarse = steps > 2 * COARSE ? new Objective(model, start, settings, COARSE, width) : fine;
  let pool = starts(model, coarse, settings).map((controls) => new Descent(coarse, controls));
  for (const [iterations, kept] of ROUNDS) {
    pool.forEach((descent) => descend(descent, iterations));
    pool.sort((a, b) => a.least - b.least);
    pool = pool.filter(({ least }, i) => !(i && least < pool[i - 1].least * (1 + SAME)));
    pool = pool.slice(0, kept);
  }
  for (const { controls } of pool) {
    let x = resampled(controls, steps, width, coarse.steps);
    if (both) {
      const d = descend(new Descent(fine, x), 150);
      globalThis.told?.(d.least);
      x = oneTaskPerStep(d.controls, model.tasks);
    }
    finish(single, x);
  }
  return best;
}

/* Every task alone at first, or at last, and all mixed; at the best of some constant rates. */
function starts({ tasks: T }, coarse, settings) {
  const { freeShares, freeRates, range } = settings;
  const { steps } = coarse;
  const given = coarse.fixed;
  const rows = (focus, from, to) =>
    Float64Array.from({ length: steps * T }, (_, i) =>
      i >= from * steps * T && i < to * steps * T ? Number(i % T === focus) : 1 / T,
    );
  const shares = [given.shares];
  if (freeShares !== "given" && T > 1) {
    shares.push(rows(0, 0, 0));
    for (let t = 0; freeShares === "curve" && t < T; t++)
      shares.push(rows(t, 0, 0.5), rows(t, 0.7, 1));
  }
  const rates = [given.rates];
  if (freeRates !== "given") {
    const ladder = [1, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06].map((part) => {
      const controls = { shares: shares.at(shares.length > 1 ? 1 : 0), rates: given.rates.map(() => range[0] + part * (range[1] - range[0])) };
      return { ...controls, value: coarse.evaluate(coarse.join(controls)).value };
    });
    rates.push(ladder.sort((a, b) => a.value - b.value)[0].rates);
  }
  return shares.flatMap((s) => rates.map((r) => ({ shares: s, rates: r })));
}

/* Controls with one task per step, by sum-up rounding: so each task can have a rate of its own. */
function oneTaskPerStep({ shares, rates }, T) {
  const lags = new Float64Array(T);
  const rounded = new Float64Array(shares.length);
  const own = new Float64Array(shares.length / T);
  for (let i = 0; i < shares.length; i += T) {
    lags.forEach((_, t) => (lags[t] += shares[i + t]));
    const chosen = lags.indexOf(Math.max(...lags));
    lags[chosen] -= 1;
    rounded[i + chosen] = 1;
    own[i / T] = rates[i + chosen];
  }
  return { shares: rounded, rates: own };
}

/* Controls on another number of steps, linear between the middles of steps. */
function resampled({ shares, rates }, steps, columns, old = rates.length) {
  const rows = (values, columns) => {
    const width = values.length / old;
    return Float64Array.from({ length: steps * width }, (_, i) => {
      const middle = ((Math.floor(i / width) + 0.5) * old) / steps - 0.5;
      const at = Math.max(0, Math.min(old - 1, middle));
      const [first, next] = [Math.floor(at), Math.ceil(at)].map((k) => values[k * width + (i % width)]);
      return first + (at - Math.floor(at)) * (next - first);
    });
  };
  const spread = rows(rates);
  const width = spread.length / steps;
  return {
    shares: rows(shares),
    rates: Float64Array.from({ length: steps * columns }, (_, i) => spread[Math.floor(i / columns) * width + (i % columns % width)]),
  };
}

const dot = (a, b) => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
};

/* The objective by a vector: rows of shares, then rates in units of their range. */
class Objective {
  constructor(model, start, settings, steps, width, substeps) {
    const { freeShares, freeRates, duration, range } = settings;
    const count = { given: 0, constant: 1, curve: steps };
    Object.assign(this, { model, start, settings, steps, width });
    this.end = model.tasks > 1 ? count[freeShares] * model.tasks : 0; // where the rates begin
    this.size = this.end + count[freeRates] * width;
    this.lengths = new Float64Array(steps).fill(duration / steps);
    this.low = range[0];
    this.span = range[1] - range[0];
    this.fixed = resampled(settings, steps, width);
    this.substeps = substeps ?? this.accurate();
  }

  with(substeps) {
    return new Objective(this.model, this.start, this.settings, this.steps, this.width, substeps);
  }

  accurate() {
    const x = this.join(this.fixed);
    let last;
    for (this.substeps = 1, last = this.evaluate(x).value; this.substeps < MOST_SUBSTEPS; ) {
      this.substeps *= 2;
      const next = this.evaluate(x).value;
      if (Math.abs(next - last) <= ACCURACY * next) return this.substeps / 2;
      last = next;
    }
    return this.substeps;
  }

  join({ shares, rates }) {
    const x = new Float64Array(this.size);
    const parts = [
      [x.subarray(0, this.end), shares],
      [x.subarray(this.end), rates.map((rate) => (rate - this.low) / this.span)],
    ];
    for (const [to, from] of parts)
      from.forEach((value, i) => (to[i % to.length] += (value * to.length) / from.length));
    return x;
  }

  split(x) {
    const { end, fixed, steps } = this;
    const spread = (part, values) => (part.length ? values.map((_, i) => part[i % part.length]) : values);
    const rates = x.subarray(end).map((part) => this.low + this.span * part);
    return { shares: spread(x.subarray(0, end), fixed.shares), rates: spread(rates, fixed.rates) };
  }

  evaluate(x) {
    const { model, start, end, lengths, substeps, settings } = this;
    const schedule = { ...this.split(x), lengths, substeps };
    const { value, byShares, byRates } = model.gradient(start, schedule, settings.weights);
    const gradient = new Float64Array(x.length);
    const [shares, rates] = [gradient.subarray(0, end), gradient.subarray(end)];
    byShares.forEach((slope, i) => (shares[i % end] += slope));
    byRates.forEach((slope, i) => (rates[i % rates.length] += this.span * slope));
    return { value, gradient };
  }

  /* The nearest vector whose rows are in the simplex, and numbers between 0 and 1. */
  project(x) {
    const T = this.model.tasks;
    const out = x.map((part) => Math.min(1, Math.max(0, part)));
    for (let i = 0; i < this.end; i += T) {
      const row = x.subarray(i, i + T);
      let sum = -1;
      let level = -Infinity;
      [...row].sort((a, b) => b - a).forEach((share, k) => {
        sum += share;
        level = Math.max(level, sum / (k + 1));
      });
      for (let t = 0; t < T; t++) out[i + t] = Math.max(0, row[t] - level);
    }
    return out;
  }
}

/* A minimisation; `best` is where the value was the least. */
class Descent {
  constructor(objective, controls) {
    this.objective = objective;
    this.x = this.best = objective.project(objective.join(controls));
    Object.assign(this, objective.evaluate(this.x));
    this.pace = 1 / this.gradient.reduce((most, slope) => Math.max(most, Math.abs(slope)), 1e-300);
    this.values = [this.value];
    this.leasts = [this.value];
    this.stalled = !Number.isFinite(this.value);
  }

  get least() {
    return this.leasts.at(-1);
  }

  get controls() {
    return this.objective.split(this.best);
  }

  get finished() {
    const before = this.leasts.at(-1 - PATIENCE) ?? Infinity;
    return this.stalled || before - this.least < LEAST_GAIN * this.least;
  }

  step() {
    const { objective, x, gradient, value, pace } = this;
    const target = objective.project(x.map((a, i) => a - pace * gradient[i]));
    const direction = target.map((a, i) => a - x[i]);
    const slope = dot(gradient, direction);
    this.stalled = slope > -1e-14 * Math.abs(value);
    const most = Math.max(...this.values);
    for (let length = 1, trial = 0; !this.stalled; trial++) {
      const moved = x.map((a, i) => a + length * direction[i]);
      const next = objective.evaluate(moved);
      if (next.value <= most + ARMIJO * length * slope) return this.move(moved, next);
      // the minimum of the parabola through both values and the slope, within bounds
      const least = (-slope * length * length) / (2 * (next.value - value - length * slope));
      length = Math.min(Math.max(least, 0.1 * length), 0.5 * length);
      this.stalled = trial === TRIALS;
    }
  }

  /* The next pace is the inverse of the curvature that was met. */
  move(x, next) {
    const move = x.map((a, i) => a - this.x[i]);
    const bend = dot(move, next.gradient) - dot(move, this.gradient);
    this.pace = bend > 0 ? dot(move, move) / bend : 10 * this.pace;
    this.values = [...this.values, next.value].slice(-MEMORY);
    this.leasts.push(Math.min(this.least, next.value));
    if (next.value < this.leasts.at(-2)) this.best = x;
    Object.assign(this, { x }, next);
  }
}
