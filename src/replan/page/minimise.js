/* The relaxed problem: shares and rates at every step, or the same throughout. Spectral projected
   gradients from several starts on a coarse grid; the best go on with all steps. Any model will do
   that has tasks and a gradient. */

const COARSE = 50; // steps of the grid on which the starts are tried,
const TRIED = 60; // for so many iterations,
const KEPT = 3; // and how many of the best go on
const RATES = [1, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03]; // tried, in units of their range
const SAME = 2e-3; // relative: values that differ by less count as one optimum
const FIRST = 20; // iterations from the controls given, for a first answer
const PATIENCE = 30; // iterations that must between them gain a part of the value:
const LEAST_GAIN = 2e-4;
const MEMORY = 10; // values, the largest of which a step may come up to
const SHORTEST = 1e-8; // part of a step that is tried
const ACCURACY = 1e-4; // of the integrator, relative
const MOST_SUBSTEPS = 64;

/** Minimise the weighted final losses of a model from a state: shares, rates and value. settings:
    duration; steps; substeps, which are doubled until they are accurate; weights (L); the shares
    (steps × T) and rates (steps) to begin with, or to keep; freeShares and freeRates, "given",
    "constant" or "curve"; range [low, high] of free rates. onProgress is told of every better
    result. */
export function minimise(model, start, settings, onProgress = () => {}) {
  const { steps, shares, rates, freeShares, freeRates } = settings;
  // With one task per step, each task has a rate of its own; so it has, at first, where tasks mix.
  const own = freeShares === "curve" && freeRates === "curve";
  const columns = own ? model.tasks : 1;
  const grid = (...size) => new Objective(model, start, settings, ...size);
  const [coarse, mixing] = [Math.min(COARSE, steps), steps].map((count) => grid(count, columns));
  const last = grid(steps, 1);
  let best = { shares, rates, value: Infinity };
  const finish = (controls, iterations) => {
    const found = accurate(last, controls, iterations);
    if (found.value < best.value) onProgress((best = found));
  };
  finish(settings, FIRST);
  starts(coarse, settings)
    .map((controls) => descended(coarse, controls, TRIED))
    .sort((a, b) => a.value - b.value)
    .filter(({ value }, i, all) => i === 0 || value > all[i - 1].value * (1 + SAME))
    .slice(0, KEPT)
    .forEach((found) => finish(own ? oneTaskPerStep(accurate(mixing, found), columns) : found));
  return best;
}

/* Tasks mixed, at rates as given and at constant ones; and each task alone at first or at last, at
   the best of these rates. */
function starts(coarse, { shares, rates, freeShares, freeRates }) {
  const { low, span, columns } = coarse;
  const [T, n] = [coarse.model.tasks, shares.length];
  const mixed = freeShares === "given" ? shares : shares.map(() => 1 / T);
  const given = Float64Array.from(
    { length: rates.length * columns },
    (_, i) => rates[Math.floor(i / columns)],
  );
  const tried =
    freeRates === "given" ? [] : RATES.map((part) => given.map(() => low + part * span));
  const found = [given, ...tried].map((rates) => ({ shares: mixed, rates }));
  const values = found.map((controls) => coarse.evaluate(coarse.join(controls)).value);
  const best = found[values.indexOf(Math.min(...values))];
  for (let task = 0; task < T && freeShares === "curve"; task++)
    for (const [from, to] of [
      [0, 0.5],
      [0.7, 1],
    ]) {
      const alone = (share, i) => (from * n <= i && i < to * n ? Number(i % T === task) : share);
      found.push({ ...best, shares: mixed.map(alone) });
    }
  return found;
}

/* The end of a descent, on as many substeps as it takes for that to be accurate. Where no number is
   enough, training itself diverges. */
function accurate(objective, controls, iterations) {
  const { substeps } = objective;
  for (; objective.substeps < MOST_SUBSTEPS; objective.substeps *= 2) {
    controls = descended(objective, controls, iterations);
    const { value } = objective.evaluate(objective.join(controls), 2 * objective.substeps);
    if (Math.abs(value - controls.value) <= ACCURACY * value) return controls;
  }
  objective.substeps = substeps;
  return controls;
}

/* Controls with one task per step, at its own rate, by sum-up rounding. */
function oneTaskPerStep({ shares, rates }, T) {
  const lags = new Float64Array(T);
  const rounded = new Float64Array(shares.length);
  for (let i = 0; i < shares.length; i += T) {
    lags.forEach((lag, t) => (lags[t] = lag + shares[i + t]));
    const task = lags.indexOf(Math.max(...lags));
    lags[task] -= 1;
    rounded[i + task] = 1;
  }
  return { shares: rounded, rates: rates.filter((_, i) => rounded[i]) };
}

/* Another number of rows: those at the middles of the new ones. */
function resampled(values, width, rows) {
  const scale = values.length / width / rows;
  const row = (i) => Math.floor((Math.floor(i / width) + 0.5) * scale);
  return new Float64Array(rows * width).map((_, i) => values[row(i) * width + (i % width)]);
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const plus = (a, b, factor = 1) => a.map((x, i) => x + factor * b[i]);

/* The objective as a function of a vector: rows of free shares, and of free rates in units of their
   range; as many rows as steps, or one where they are constant. */
class Objective {
  constructor(model, start, settings, steps, columns) {
    const [low, high] = settings.range;
    Object.assign(this, { ...settings, model, start, steps, columns, low, span: high - low });
    this.lengths = new Float64Array(steps).fill(settings.duration / steps);
    this.rows = { given: 0, constant: 1, curve: steps };
    this.end = this.rows[settings.freeShares] * model.tasks; // where the rates begin
  }

  join({ shares, rates }) {
    const { model, columns, rows, freeShares, freeRates, low, span } = this;
    const free = resampled(rates, columns, rows[freeRates]).map((rate) => (rate - low) / span);
    return Float64Array.of(...resampled(shares, model.tasks, rows[freeShares]), ...free);
  }

  split(x) {
    const { model, steps, columns, end, low, span } = this;
    const rates = x.slice(end).map((part) => low + span * part);
    return {
      shares: resampled(end ? x.subarray(0, end) : this.shares, model.tasks, steps),
      rates: resampled(rates.length ? rates : this.rates, columns, steps),
    };
  }

  evaluate(x, substeps = this.substeps) {
    const { model, start, end, lengths, weights, span } = this;
    const schedule = { ...this.split(x), lengths, substeps };
    const { value, byShares, byRates } = model.gradient(start, schedule, weights);
    const gradient = new Float64Array(x.length);
    if (end) byShares.forEach((slope, i) => (gradient[i % end] += slope));
    const rates = gradient.subarray(end);
    byRates.forEach((slope, i) => (rates[i % rates.length] += span * slope));
    return { value, gradient };
  }

  /* The nearest vector whose rows of shares are in the simplex, and rates within their range. */
  project(x) {
    const T = this.model.tasks;
    const out = x.map((a) => Math.min(1, Math.max(0, a)));
    for (let i = 0; i < this.end; i += T) {
      const row = x.subarray(i, i + T);
      let sum = -1;
      const levels = row
        .slice()
        .sort()
        .reverse()
        .map((share, k) => (sum += share) / (k + 1));
      const level = Math.max(...levels);
      row.forEach((share, t) => (out[i + t] = Math.max(0, share - level)));
    }
    return out;
  }
}

/* The best of spectral projected gradients, of Birgin, Martínez and Raydan (2000). */
function descended(objective, controls, iterations = Infinity) {
  let x = objective.project(objective.join(controls));
  let { value, gradient } = objective.evaluate(x);
  let best = { x, value };
  let pace = 1 / Math.max(...gradient.map(Math.abs), 1e-300);
  const values = [value];
  const gain = () => Math.min(...values.slice(0, -PATIENCE)) - best.value;
  while (values.length <= iterations && value < Infinity && !(gain() < LEAST_GAIN * best.value)) {
    const target = objective.project(plus(x, gradient, -pace));
    const direction = plus(target, x, -1);
    if (dot(gradient, direction) > -1e-14 * Math.abs(value)) break;
    const most = Math.max(...values.slice(-MEMORY));
    let [length, next] = [1, objective.evaluate(target)];
    for (; !(next.value <= most) && length > SHORTEST;) {
      length /= 2;
      next = objective.evaluate(plus(x, direction, length));
    }
    // the next pace is the inverse of the curvature that was met
    const bend = length * dot(direction, plus(next.gradient, gradient, -1));
    pace = bend > 0 ? (length * length * dot(direction, direction)) / bend : 10 * pace;
    x = plus(x, direction, length);
    ({ value, gradient } = next);
    values.push(value);
    if (value < best.value) best = { x, value };
  }
  return { ...objective.split(best.x), value: best.value };
}
