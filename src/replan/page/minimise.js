/* The relaxed problem: shares and rates at every step, or the same throughout. Spectral projected
   gradients from several starts on a coarse grid; the best go on with all steps. Any model will do
   that has tasks and a gradient. */

const ROUNDS = [
  [40, 6], // iterations from every start, and how many of the best go on
  [100, 3],
];
const COARSE = 50; // steps of the grid on which the starts are tried
const RUNGS = [1, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03]; // rates tried, in units of their range
const SAME = 2e-3; // relative: values that differ by less count as one optimum
const FIRST = 20; // iterations from the controls given, for a first answer
const ITERATIONS = 600; // at most, of a descent with all steps
const PATIENCE = 30; // iterations that must between them gain a part of the value:
const LEAST_GAIN = 3e-4;
const MEMORY = 10; // values, the largest of which a step may come up to
const ARMIJO = 1e-4; // of the predicted gain, which a step must reach
const TRIALS = 25; // of a line search
const ACCURACY = 1e-4; // of the integrator, relative
const MOST_SUBSTEPS = 64;

/** Minimise the weighted final losses of a model from a state: shares, rates and value. settings:
    duration; steps; substeps, which are doubled until they are accurate; weights (L); the shares
    (steps × T) and rates (steps) to begin with, or to keep; freeShares and freeRates, "given",
    "constant" or "curve"; range [low, high] of free rates. onProgress is told of every better
    result. */
export function minimise(model, start, settings, onProgress = () => {}) {
  const { steps, shares, rates, freeShares, freeRates } = settings;
  const T = model.tasks;
  // With one task per step, each task has a rate of its own; so it has, at first, where tasks mix.
  const both = T > 1 && freeShares === "curve" && freeRates === "curve";
  const grid = (count, columns) => new Objective(model, start, settings, count, columns);
  const sizes = [COARSE, steps / 2].map((count) => Math.round(Math.max(count, COARSE)));
  const counts = sizes.filter((count) => count <= steps / 2);
  const [coarse = grid(steps, both ? T : 1), ...finer] = counts.map((n) => grid(n, both ? T : 1));
  if (both) finer.push(grid(steps, T));
  const last = grid(steps, 1);
  let best = { shares, rates, value: Infinity };
  const finish = (controls, iterations) => {
    const found = descended(last, controls, iterations);
    if (found.value < best.value) onProgress((best = found));
  };
  finish(settings, FIRST);
  let pool = starts(coarse, settings).map((controls) => new Descent(coarse, controls));
  for (const [iterations, kept] of ROUNDS) {
    pool.forEach((descent) => descent.run(iterations));
    pool.sort((a, b) => a.least - b.least);
    const isNew = ({ least }, i) => i === 0 || least > pool[i - 1].least * (1 + SAME);
    pool = pool.filter(isNew).slice(0, kept);
  }
  for (const descent of pool) {
    let controls = coarse.split(descent.best);
    for (const objective of finer) controls = descended(objective, controls, ITERATIONS);
    finish(both ? oneTaskPerStep(controls, T) : controls, ITERATIONS);
  }
  return best;
}

/* The end of a descent, on as many substeps as it takes for that to be accurate. */
function descended(objective, controls, iterations) {
  for (;;) {
    const descent = new Descent(objective, controls);
    descent.run(iterations);
    controls = { ...objective.split(descent.best), value: descent.least };
    if (!objective.refined(descent.best)) return controls;
  }
}

/* All tasks mixed, and each alone at first or at last; at rates as given, and the best constant, or
   all where shares give few starts. */
function starts(coarse, { freeShares, freeRates }) {
  const { steps, given, low, span } = coarse;
  const T = given.shares.length / steps;
  const alone = (task, from, to) =>
    given.shares.map((_, i) =>
      from * steps * T <= i && i < to * steps * T ? Number(i % T === task) : 1 / T,
    );
  const shares = [freeShares === "given" ? given.shares : alone(0, 0, 0)];
  for (let t = 0; freeShares === "curve" && t < T; t++)
    shares.push(alone(t, 0, 0.5), alone(t, 0.7, 1));
  const rates = [given.rates];
  if (freeRates !== "given") {
    const ladder = RUNGS.map((part) => given.rates.map(() => low + span * part));
    const value = (rung) => coarse.evaluate(coarse.join({ shares: shares[0], rates: rung })).value;
    const values = ladder.map(value);
    const least = ladder[values.indexOf(Math.min(...values))];
    rates.push(...(freeShares === "curve" ? [least] : ladder));
  }
  return shares.flatMap((s) => rates.map((r) => ({ shares: s, rates: r })));
}

/* Controls with one task per step, at its own rate, by sum-up rounding. */
function oneTaskPerStep({ shares, rates }, T) {
  const lags = new Float64Array(T);
  const rounded = new Float64Array(shares.length);
  const chosenRates = rates
    .filter((_, i) => i % T === 0)
    .map((_, step) => {
      lags.forEach((_, t) => (lags[t] += shares[step * T + t]));
      const chosen = lags.indexOf(Math.max(...lags));
      lags[chosen] -= 1;
      rounded[step * T + chosen] = 1;
      return rates[step * T + chosen];
    });
  return { shares: rounded, rates: chosenRates };
}

/* Rows on another number of steps: those at the middles of steps. */
function resampled(values, old, steps) {
  const width = values.length / old;
  const row = (i) => Math.floor(((Math.floor(i / width) + 0.5) * old) / steps);
  return new Float64Array(steps * width).map((_, i) => values[row(i) * width + (i % width)]);
}

const dot = (a, b) => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
};

/* The objective as a function of a vector: rows of shares, then rates in units of their range. */
class Objective {
  constructor(model, start, settings, steps, columns) {
    const { duration, substeps, weights, shares, rates, freeShares, freeRates } = settings;
    const [low, high] = settings.range;
    const rows = { given: 0, constant: 1, curve: steps };
    Object.assign(this, { model, start, steps, columns, substeps, weights, low, span: high - low });
    this.end = model.tasks > 1 ? rows[freeShares] * model.tasks : 0; // where the rates begin
    this.size = this.end + rows[freeRates] * columns;
    this.lengths = new Float64Array(steps).fill(duration / steps);
    const onGrid = (values) => resampled(values, settings.steps, steps);
    this.given = { shares: onGrid(shares), rates: onGrid(rates) };
    this.refined(this.join(this.given));
  }

  /* The vector of controls, which may have other numbers of steps and of columns. */
  join({ shares, rates }) {
    const { model, steps, columns, end, size, low, span } = this;
    const old = shares.length / model.tasks;
    const [rows, narrow] = [shares, rates].map((values) => resampled(values, old, steps));
    const x = new Float64Array(size);
    for (let i = 0; end && i < rows.length; i++) x[i % end] += (rows[i] * end) / rows.length;
    const [count, all] = [size - end, steps * columns];
    for (let i = 0; count && i < all; i++) {
      const rate = narrow[Math.floor((i * narrow.length) / all)];
      x[end + (i % count)] += (((rate - low) / span) * count) / all;
    }
    return x;
  }

  split(x) {
    const { end, size, given, steps, columns, low, span } = this;
    let { shares, rates } = given;
    if (end) shares = shares.map((_, i) => x[i % end]);
    const rateAt = (_, i) => low + span * x[end + (i % (size - end))];
    if (size > end) rates = new Float64Array(steps * columns).map(rateAt);
    return { shares, rates };
  }

  evaluate(x) {
    const { model, start, end, lengths, substeps, weights, span } = this;
    const schedule = { ...this.split(x), lengths, substeps };
    const { value, byShares, byRates } = model.gradient(start, schedule, weights);
    const gradient = new Float64Array(x.length);
    const [shares, rates] = [gradient.subarray(0, end), gradient.subarray(end)];
    byShares.forEach((slope, i) => (shares[i % end] += slope));
    byRates.forEach((slope, i) => (rates[i % rates.length] += span * slope));
    return { value, gradient };
  }

  /* Double the substeps until the value at a vector is accurate; whether that changed them. Where
     no number is enough, training itself diverges. */
  refined(x) {
    const { substeps } = this;
    let [value, finer] = [NaN, this.evaluate(x).value];
    do {
      value = finer;
      this.substeps *= 2;
      finer = this.evaluate(x).value;
    } while (this.substeps < MOST_SUBSTEPS && !(Math.abs(finer - value) <= ACCURACY * finer));
    this.substeps = finer < Infinity ? this.substeps / 2 : substeps;
    return this.substeps > substeps;
  }

  /* The nearest vector whose rows of shares are in the simplex, and rates within their range. */
  project(x) {
    const T = this.model.tasks;
    const out = x.map((a) => Math.min(1, Math.max(0, a)));
    for (let i = 0; i < this.end; i += T) {
      const row = x.subarray(i, i + T);
      let [sum, level] = [-1, -Infinity];
      for (const [k, share] of row.slice().sort().reverse().entries())
        level = Math.max(level, (sum += share) / (k + 1));
      row.forEach((share, t) => (out[i + t] = Math.max(0, share - level)));
    }
    return out;
  }
}

/* Spectral projected gradients, of Birgin, Martínez and Raydan (2000); `best` has the `least`. */
class Descent {
  constructor(objective, controls) {
    this.objective = objective;
    this.x = this.best = objective.project(objective.join(controls));
    Object.assign(this, objective.evaluate(this.x));
    this.least = this.value;
    this.pace = 1 / this.gradient.reduce((most, slope) => Math.max(most, Math.abs(slope)), 1e-300);
    this.values = [this.value];
    this.leasts = [];
    this.stalled = this.value === Infinity;
  }

  run(iterations) {
    for (let i = 0; i < iterations && !this.stalled; i++) {
      this.leasts.unshift(this.least);
      this.stalled = !this.step() || this.leasts[PATIENCE] - this.least < LEAST_GAIN * this.least;
    }
  }

  /* Whether a step could be made. */
  step() {
    const { objective, x, gradient, value, pace } = this;
    const target = objective.project(x.map((a, i) => a - pace * gradient[i]));
    const direction = target.map((a, i) => a - x[i]);
    const slope = dot(gradient, direction);
    if (slope > -1e-14 * Math.abs(value)) return false;
    const most = Math.max(...this.values);
    for (let length = 1, trial = 0; trial < TRIALS; trial++) {
      const moved = x.map((a, i) => a + length * direction[i]);
      const next = objective.evaluate(moved);
      if (next.value <= most + ARMIJO * length * slope) return this.moveTo(moved, next);
      // the minimum of the parabola through both values and the slope, within bounds
      const least = (-slope * length * length) / (2 * (next.value - value - length * slope));
      length = Math.min(Math.max(least, 0.1 * length), 0.5 * length);
    }
    return false;
  }

  /* The next pace is the inverse of the curvature that was met. */
  moveTo(x, next) {
    const move = x.map((a, i) => a - this.x[i]);
    const bend = dot(move, next.gradient) - dot(move, this.gradient);
    this.pace = bend > 0 ? dot(move, move) / bend : 10 * this.pace;
    this.values = [next.value, ...this.values].slice(0, MEMORY);
    Object.assign(this, { x }, next);
    if (next.value < this.least) Object.assign(this, { best: x, least: next.value });
    return true;
  }
}
