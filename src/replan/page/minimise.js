/* The relaxed problem: shares and rates at every step, or the same throughout. A projected
   quasi-Newton method from several starts on a coarse grid; the best goes on with all steps. Any
   model will do that has tasks and a gradient. */

const COARSE = 50; // steps of the grid on which the starts are tried,
const ROUND = 10; // for so many iterations before the worse half of them is given up,
const FEW = 2; // until so many are left
const RATES = [1, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03]; // tried, in units of their range
const ITERATIONS = 600; // at most, of a descent that goes on to its end:
const LEAST = 1e-3; // until no more than this part of the value is left to gain to first order,
const [PATIENCE, LEAST_GAIN] = [30, 2e-4]; // or so many iterations gain less than that part
const PAIRS = 20; // of the quasi-Newton method's memory
const ACCURACY = 1e-4; // of the integrator, relative
const MOST_SUBSTEPS = 64;

/** Minimise the weighted final losses of a model from a state: shares, rates and value. settings:
    duration; steps; substeps of a 25th of the duration, to be doubled until accurate; weights (L);
    the shares (steps × T) and rates (steps) to begin with, or to keep; freeShares and freeRates,
    "given", "constant" or "curve"; range [low, high] of free rates. onProgress is told of every
    better result. */
export function minimise(model, start, settings, onProgress = () => {}) {
  const { steps, shares, rates, freeShares, freeRates } = settings;
  // With one task per step, each task has a rate of its own; so it has, at first, where tasks mix.
  const columns = freeShares === "curve" && freeRates === "curve" ? model.tasks : 1;
  const grid = (...size) => objectiveOf(model, start, settings, ...size);
  const coarse = grid(Math.min(COARSE, steps), columns);
  const middle = grid(Math.round(steps / 2), columns);
  const last = grid(steps, 1);
  let best = { shares, rates, value: Infinity };
  const finish = (controls, iterations) => {
    const found = accurate(last, controls, iterations);
    if (found.value < best.value) onProgress((best = found));
  };
  finish(settings, 0);
  let tried = starts(coarse, settings, model.tasks);
  const descend = (objective, iterations) => {
    tried = tried.map((controls) => descended(objective, controls, iterations));
    tried.sort((a, b) => a.value - b.value);
  };
  while (tried.length > FEW) {
    descend(coarse, ROUND);
    tried.length = Math.ceil(tried.length / 2);
  }
  for (const objective of [coarse, middle]) descend(objective);
  const [found] = tried;
  finish(columns > 1 ? rounded(descended(grid(steps, columns), found), columns) : found);
  return best;
}

/* As given; tasks mixed, at rates as given and at constant ones; and each task alone at first or at
   last, at the best of these rates. */
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
  return [...found, { shares, rates: given }];
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

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function plus(a, b, factor = 1) {
  const sum = Float64Array.from(a);
  for (let i = 0; i < a.length; i++) sum[i] += factor * b[i];
  return sum;
}

/* The objective as a function of a vector: rows of free shares, and of free rates in units of their
   range; as many rows as steps, or one where they are constant. */
function objectiveOf(model, start, settings, steps, columns) {
  const { duration, weights, shares, rates, freeShares, freeRates } = settings;
  const [T, low, span] = [model.tasks, settings.range[0], settings.range[1] - settings.range[0]];
  const rows = { given: 0, constant: 1, curve: steps };
  const [end, count] = [rows[freeShares] * T, rows[freeRates] * columns];
  const lengths = new Float64Array(steps).fill(duration / steps);
  const project = (x) => projected(x, end, T);
  const join = ({ shares, rates }) => {
    const parts = resampled(rates, columns, count / columns).map((rate) => (rate - low) / span);
    return project(Float64Array.of(...resampled(shares, T, end / T), ...parts));
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
    return { x, value, gradient };
  };
  const substeps = Math.ceil((COARSE * settings.substeps) / steps);
  const tangent = (x, move) => tangentPart(x, move, end, T);
  const objective = { columns, substeps, project, tangent, join, split, evaluate };
  return objective;
}

/* The nearest vector whose rows of shares are in the simplex, and rates within their range. Shares
   fall by the same amount; one that falls below 0 no longer counts. (Michelot 1986) */
function projected(x, end, T) {
  const out = x.map((a) => Math.min(1, Math.max(0, a)));
  for (let i = 0; i < end; i += T) {
    let [level, count, before] = [-Infinity, Infinity];
    do {
      let sum = -1;
      [before, count] = [count, 0];
      for (let j = i; j < i + T; j++) if (x[j] > level) [sum, count] = [sum + x[j], count + 1];
      level = sum / count;
    } while (count < before);
    for (let j = i; j < i + T; j++) out[j] = Math.max(0, x[j] - level);
  }
  return out;
}

/* The part of a move from x that leaves numbers at their bounds, and sums of shares, as they are. */
function tangentPart(x, move, end, T) {
  const part = new Float64Array(move.length);
  for (let i = 0; i < part.length; i++) if (0 < x[i] && x[i] < 1) part[i] = move[i];
  for (let i = 0; i < end; i += T) {
    let [sum, count] = [0, 0];
    for (let j = i; j < i + T; j++) {
      sum += part[j];
      count += Number(0 < x[j] && x[j] < 1);
    }
    for (let j = i; j < i + T; j++) if (0 < x[j] && x[j] < 1) part[j] -= sum / count;
  }
  return part;
}

/* Where a descent from controls ends, its value, and the pairs with which it may go on: moves, and how
   the gradient changed with them. A projected gradient step says which numbers go to their bounds;
   the others take a quasi-Newton step (two-metric projection, Bertsekas 1982). */
function descended(objective, controls, iterations = ITERATIONS) {
  const { evaluate, project, tangent } = objective;
  let at = evaluate(objective.join(controls));
  let pairs = controls.objective === objective ? controls.pairs : [];
  const values = [at.value];
  while (values.length <= iterations && at.value < Infinity) {
    const { x, value, gradient } = at;
    const largest = Math.max(...gradient.map(Math.abs), 1e-300);
    const linear = project(gradient.map((slope) => (-1e9 * slope) / largest)); // where g · x is least
    const gain = values.at(-1 - PATIENCE) - value; // NaN at first
    if (dot(gradient, plus(x, linear, -1)) <= LEAST * value || gain < LEAST_GAIN * value) break;
    const [move, change] = pairs.at(-1) ?? [[1], [largest]];
    const pace = dot(move, change) / dot(change, change);
    const plain = project(plus(x, gradient, -pace));
    const along = (v) => tangent(plain, v);
    const near = pairs.map((pair) => pair.map(along)).filter((pair) => dot(...pair) > 0);
    const step = plus(newton(near, pace, along(gradient)), along(plus(plain, x, -1)));
    const next = lower(objective, at, plus(project(plus(plain, step, -1)), x, -1));
    if (next) {
      const pair = [plus(next.x, x, -1), plus(next.gradient, gradient, -1)];
      if (dot(...pair) > 0) pairs = [...pairs, pair].slice(-PAIRS);
      values.push(next.value);
      at = next;
    } else if (pairs.length) {
      pairs = []; // a poor model of the objective
    } else break;
  }
  return { ...objective.split(at.x), value: at.value, objective, pairs };
}

/* The inverse Hessian of limited-memory BFGS times a vector. (Nocedal 1980) */
function newton(pairs, pace, vector) {
  if (!pairs.length) return vector.map((a) => pace * a);
  const [move, change] = pairs.at(-1);
  const bend = dot(move, change);
  const part = dot(move, vector) / bend;
  const rest = newton(pairs.slice(0, -1), pace, plus(vector, change, -part));
  return plus(rest, move, part - dot(change, rest) / bend);
}

/* The first of ever shorter steps that gains enough, if any does. */
function lower({ evaluate }, { x, value, gradient }, direction) {
  const slope = dot(gradient, direction);
  for (let length = 1; slope < -1e-16 * value && length > 1e-8; length /= 2) {
    const next = evaluate(plus(x, direction, length));
    if (next.value <= value + 1e-4 * length * slope) return next;
  }
  return null;
}
