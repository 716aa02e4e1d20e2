/* The relaxed problem: shares and rates at every step, or the same throughout. Spectral projected
   gradients from several starts on a coarse grid; the best go on with all steps. Any model will do
   that has tasks and a gradient. */

const COARSE = 50; // steps of the grid on which the starts are tried,
const TRIED = 60; // for so many iterations,
const KEPT = 3; // and how many of the best go on
const RATES = [1, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03]; // tried, in units of their range
const SAME = 2e-3; // relative: values that differ by less count as one optimum
const FIRST = 20; // iterations from the controls given, for a first answer
const ITERATIONS = 600; // at most, of a descent with all steps
const PATIENCE = 30; // iterations that must between them gain a part of the value:
const LEAST_GAIN = 2e-4;
const MEMORY = 10; // values, the largest of which a step may come up to
const ACCURACY = 1e-4; // of the integrator, relative
const MOST_SUBSTEPS = 64;

/** Minimise the weighted final losses of a model from a state: shares, rates and value. settings:
    duration; steps; substeps, to be doubled until accurate; weights (L); the shares (steps × T) and
    rates (steps) to begin with, or to keep; freeShares and freeRates, "given", "constant" or
    "curve"; range [low, high] of free rates. onProgress is told of every better result. */
export function minimise(model, start, settings, onProgress = () => {}) {
  const { steps, shares, rates, freeShares, freeRates } = settings;
  // With one task per step, each task has a rate of its own; so it has, at first, where tasks mix.
  const columns = freeShares === "curve" && freeRates === "curve" ? model.tasks : 1;
  const grid = (...size) => objectiveOf(model, start, settings, ...size);
  const coarse = grid(Math.min(COARSE, steps), columns);
  const finer = [Math.round(steps / 2), steps].map((count) => grid(count, columns));
  const last = grid(steps, 1);
  let best = { shares, rates, value: Infinity };
  const finish = (controls, iterations) => {
    const found = accurate(last, controls, iterations);
    if (found.value < best.value) onProgress((best = found));
  };
  finish(settings, FIRST);
  starts(coarse, settings, model.tasks)
    .map((controls) => descended(coarse, controls, TRIED))
    .sort((a, b) => a.value - b.value)
    .filter(({ value }, i, all) => i === 0 || value > all[i - 1].value * (1 + SAME))
    .slice(0, KEPT)
    .forEach((found) => {
      for (const objective of finer) found = accurate(objective, found);
      finish(columns > 1 ? rounded(found, columns) : found);
    });
  return best;
}

/* Tasks mixed, at rates as given and at constant ones; and each task alone at first or at last, at
   the best of these rates. */
function starts(coarse, { shares, rates, freeShares, freeRates, range: [low, high] }, T) {
  const mixed = freeShares === "given" ? shares : shares.map(() => 1 / T);
  const given = resampled(rates, 1, rates.length * coarse.columns); // the same for every column
  const constant = (part) => given.map(() => low + part * (high - low));
  const tried = [given, ...(freeRates === "given" ? [] : RATES.map(constant))];
  const found = tried.map((rates) => ({ shares: mixed, rates }));
  const values = found.map((controls) => coarse.evaluate(coarse.join(controls)).value);
  const best = found[values.indexOf(Math.min(...values))];
  const alone = (task, from, to) => {
    const only = (share, i) => (from <= i && i < to ? Number(i % T === task) : share);
    return { ...best, shares: mixed.map(only) };
  };
  for (let task = 0; task < T && freeShares === "curve"; task++)
    found.push(alone(task, 0, mixed.length / 2), alone(task, 0.7 * mixed.length, Infinity));
  return found;
}

/* The end of a descent, on as many substeps as it takes for that to be accurate. Where no number is
   enough, training itself diverges. */
function accurate(objective, controls, iterations) {
  const { substeps } = objective;
  for (; objective.substeps < MOST_SUBSTEPS; objective.substeps *= 2) {
    controls = descended(objective, controls, iterations);
    const { value } = objective.evaluate(objective.join(controls), 2);
    if (Math.abs(value - controls.value) <= ACCURACY * value) return controls;
  }
  objective.substeps = substeps;
  return controls;
}

/* Controls with one task per step, at its own rate, by sum-up rounding. */
function rounded({ shares, rates }, T) {
  const lags = new Float64Array(T);
  const alone = new Float64Array(shares.length);
  for (let i = 0; i < shares.length; i += T) {
    lags.forEach((lag, t) => (lags[t] = lag + shares[i + t]));
    const task = lags.indexOf(Math.max(...lags));
    lags[task] -= 1;
    alone[i + task] = 1;
  }
  return { shares: alone, rates: rates.filter((_, i) => alone[i]) };
}

/** Another number of rows: those at the middles of the new ones. */
export function resampled(values, width, rows) {
  const row = (i) => Math.floor(((Math.floor(i / width) + 0.5) * values.length) / width / rows);
  return new Float64Array(rows * width).map((_, i) => values[row(i) * width + (i % width)]);
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const plus = (a, b, factor = 1) => a.map((x, i) => x + factor * b[i]);

/* The objective as a function of a vector: rows of free shares, and of free rates in units of their
   range; as many rows as steps, or one where they are constant. */
function objectiveOf(model, start, settings, steps, columns) {
  const { duration, weights, shares, rates, freeShares, freeRates } = settings;
  const [T, low, span] = [model.tasks, settings.range[0], settings.range[1] - settings.range[0]];
  const rows = { given: 0, constant: 1, curve: steps };
  const [end, count] = [rows[freeShares] * T, rows[freeRates] * columns];
  const lengths = new Float64Array(steps).fill(duration / steps);
  const join = ({ shares, rates }) => {
    const parts = resampled(rates, columns, count / columns).map((rate) => (rate - low) / span);
    return Float64Array.of(...resampled(shares, T, end / T), ...parts);
  };
  const split = (x) => ({
    shares: resampled(end ? x.slice(0, end) : shares, T, steps),
    rates: resampled(count ? x.slice(end).map((part) => low + span * part) : rates, columns, steps),
  });
  const evaluate = (x, finer = 1) => {
    const schedule = { ...split(x), lengths, substeps: finer * objective.substeps };
    const { value, byShares, byRates } = model.gradient(start, schedule, weights);
    const gradient = new Float64Array(end + count); // where these are 0, there is no place i % 0
    byShares.forEach((slope, i) => (gradient[i % end] += slope));
    byRates.forEach((slope, i) => (gradient[end + (i % count)] += span * slope));
    return { value, gradient };
  };
  const project = (x) => projected(x, end, T);
  const objective = { columns, substeps: settings.substeps, join, split, evaluate, project };
  return objective;
}

/* The nearest vector whose rows of shares are in the simplex, and rates within their range. */
function projected(x, end, T) {
  const out = x.map((a) => Math.min(1, Math.max(0, a)));
  for (let i = 0; i < end; i += T) {
    const row = x.subarray(i, i + T);
    let [sum, level] = [-1, -Infinity];
    for (const [k, share] of row.slice().sort().reverse().entries())
      level = Math.max(level, (sum += share) / (k + 1));
    row.forEach((share, t) => (out[i + t] = Math.max(0, share - level)));
  }
  return out;
}

/* The best of spectral projected gradients, of Birgin, Martínez and Raydan (2000). */
function descended(objective, controls, iterations = ITERATIONS) {
  let x = objective.project(objective.join(controls));
  let { value, gradient } = objective.evaluate(x);
  let best = { x, value };
  let pace = 1 / Math.max(...gradient.map(Math.abs), 1e-300);
  const values = [value];
  const gain = () => Math.min(...values.slice(0, -PATIENCE)) - best.value;
  while (values.length <= iterations && value < Infinity && gain() >= LEAST_GAIN * best.value) {
    const direction = plus(objective.project(plus(x, gradient, -pace)), x, -1);
    if (dot(gradient, direction) > -1e-14 * Math.abs(value)) break;
    let [length, next] = [2];
    do {
      length /= 2;
      next = objective.evaluate(plus(x, direction, length));
    } while (!(next.value <= Math.max(...values.slice(-MEMORY))) && length > 1e-8);
    // the next pace is the inverse of the curvature that was met
    const bend = dot(direction, plus(next.gradient, gradient, -1));
    pace = bend > 0 ? (length * dot(direction, direction)) / bend : 10 * pace;
    x = plus(x, direction, length);
    ({ value, gradient } = next);
    values.push(value);
    if (value < best.value) best = { x, value };
  }
  return { ...objective.split(best.x), value: best.value };
}
