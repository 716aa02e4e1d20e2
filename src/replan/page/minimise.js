/* The relaxed problem: shares of every step in the simplex, rates in a box. The best of several
   starts on a coarse grid is improved on the fine one by projected quasi-Newton, as in the
   library's quasi_newton.py; the core minimises the model of the objective over the controls. */

import { Random } from "./random.js";

const COARSE = 32; // steps of the coarse grid
const COARSE_ITERATIONS = 60;
const RANDOM_STARTS = 12;
const STAYS = 8; // of a random start, about
const FINE_DESCENTS = 3; // from random starts
const PROMISING = 1.05; // times the best value on the coarse grid, from where the fine one is tried
const SAME = 2e-3; // relative: values that differ by less count as the same optimum
const ACCURACY = 1e-4; // of the integrator, relative
const MOST_SUBSTEPS = 32;
const TOLERANCE = 1e-3; // of the value: what may be left to gain to first order
const PATIENCE = 20; // iterations that must between them gain a tenth of the tolerance
const PAIRS = 20; // moves and changes of the gradient that the model of the objective keeps
const ARMIJO = 1e-4; // of the predicted gain, which a step must reach
const TRIALS = 25; // of a line search
const DOMAIN = 14; // integers, which a domain of projection.c takes

/** Minimise the weighted final losses from a state. settings: duration; steps; substeps; weights
    (T); the shares (steps × T) and rates (steps) to begin with, or to keep; freeShares, whether the
    shares may change; freeRates, the range [low, high] of the rates, or null; iterations, at most,
    of a descent. onProgress is told of every better result; where cancelled() is true, the search
    ends. */
export function minimise(model, start, settings, onProgress = () => {}, cancelled = () => false) {
  settings = {
    ...settings,
    freeShares: settings.freeShares !== "given",
    freeRates: settings.freeRates === "given" ? null : settings.range,
  };
  const { steps, substeps, freeShares, freeRates, iterations = 300 } = settings;
  const fine = grid(model, start, settings, steps, substeps);
  const coarse = steps > 2 * COARSE ? grid(model, start, settings, COARSE, 1) : fine;
  let best = new Descent(fine, fine.join(settings));
  const result = () => ({ ...fine.split(best.x), value: best.value });

  const onCoarseGrid = (controls) => {
    const descent = new Descent(coarse, coarse.join(resampled(controls, coarse.steps)));
    for (let i = 0; i < COARSE_ITERATIONS && !descent.finished && !cancelled(); i++) descent.step();
    return descent;
  };
  const onFineGrid = (controls) => {
    const descent = new Descent(fine, fine.join(controls));
    for (let i = 0; i < iterations && !cancelled(); i++) {
      if (descent === best || descent.value < best.value) {
        best = descent;
        onProgress(result());
      }
      if (descent.finished) break;
      descent.step();
    }
  };

  const ascending = (descents) => descents.sort((a, b) => a.value - b.value);
  const [first, ...others] = ascending(starts(model, start, settings).map(onCoarseGrid));
  const refined = ({ x }) => resampled(coarse.split(x), steps);
  onFineGrid(refined(first));
  const random = new Random(0);
  for (let i = 0; i < RANDOM_STARTS && !cancelled(); i++)
    others.push(onCoarseGrid(randomStart(model, settings, random)));
  const most = PROMISING * Math.min(first.value, ...others.map(({ value }) => value));
  const tried = [first];
  for (const descent of ascending(others)) {
    const isNew = tried.every(({ value }) => Math.abs(descent.value - value) > SAME * value);
    if (tried.length > FINE_DESCENTS || descent.value > most || cancelled()) break;
    if (!isNew) continue;
    tried.push(descent);
    onFineGrid(refined(descent));
  }
  if (freeShares && freeRates) onFineGrid(oneTaskPerStep(result(), model.tasks));
  return result();
}

/* The objective on as few RK4 steps as are accurate at the largest rates. */
function grid(model, start, settings, steps, substeps) {
  const { rates, freeRates } = settings;
  const largest = rates.map((rate) => (freeRates ? freeRates[1] : rate));
  const controls = resampled({ ...settings, rates: largest }, steps);
  const at = (count) => new Objective(model, start, settings, steps, count);
  const value = (objective) => objective.evaluate(objective.join(controls)).value;
  let objective = at(substeps);
  for (let last = value(objective); objective.substeps < MOST_SUBSTEPS;) {
    const finer = at(2 * objective.substeps);
    const next = value(finer);
    if (Math.abs(next - last) <= ACCURACY * next) break;
    [objective, last] = [finer, next];
  }
  return objective;
}

/* The controls given; interleaving; and what has still to be learnt, alone and then mixed. */
function starts(model, start, { steps, shares, rates, freeShares, freeRates }) {
  const T = model.tasks;
  const losses = model.losses(start);
  const mean = losses.reduce((sum, loss) => sum + loss, 0) / T;
  const fresh = losses.map((loss) => Number(loss >= mean));
  const focus = fresh.map((x) => x / fresh.reduce((sum, y) => sum + y, 0));
  const mixed = new Float64Array(T).fill(1 / T);
  const rows = (rowOf) => Float64Array.from({ length: steps * T }, (_, i) => rowOf(i)[i % T]);
  const until = (part) => rows((i) => (i < part * steps * T ? focus : mixed));
  const allShares = freeShares ? [shares, until(0), until(0.5), until(1)] : [shares];
  const allRates = [rates];
  if (freeRates) {
    const [low, high] = freeRates;
    const falling = (_, i) => low + (high - low) * 0.8 * (1 - i / steps);
    allRates.push(Float64Array.from({ length: steps }, falling));
  }
  return allShares.flatMap((s) => allRates.map((r) => ({ shares: s, rates: r })));
}

/* One task at a time, in stays of random lengths, at a random rate. */
function randomStart(model, { steps, rates, shares, freeShares, freeRates }, random) {
  const T = model.tasks;
  const pick = () => Math.floor(T * random.uniform());
  const stays = new Float64Array(steps * T);
  for (let i = 0, task = pick(); i < steps; i++) {
    if (random.uniform() < STAYS / steps) task = pick();
    stays[i * T + task] = 1;
  }
  const [low, high] = freeRates ?? [0, 0];
  const rate = low + (high - low) * random.uniform();
  return { shares: freeShares ? stays : shares, rates: freeRates ? rates.map(() => rate) : rates };
}

/* Controls with one task per step, by sum-up rounding: so each task can have a rate of its own. */
function oneTaskPerStep({ shares, rates }, T) {
  const lags = new Float64Array(T);
  const rounded = new Float64Array(shares.length);
  for (let i = 0; i < shares.length; i += T) {
    lags.forEach((_, t) => (lags[t] += shares[i + t]));
    const chosen = lags.indexOf(Math.max(...lags));
    lags[chosen] -= 1;
    rounded[i + chosen] = 1;
  }
  return { shares: rounded, rates };
}

/* Controls on another number of steps, linear between the middles of steps. */
function resampled({ shares, rates }, steps) {
  const old = rates.length;
  const rows = (values) => {
    const width = values.length / old;
    return Float64Array.from({ length: steps * width }, (_, i) => {
      const at = ((Math.floor(i / width) + 0.5) * old) / steps - 0.5;
      const first = Math.max(0, Math.min(old - 1, Math.floor(at)));
      const next = Math.min(old - 1, first + 1);
      const part = Math.max(0, Math.min(1, at - first));
      return (
        (1 - part) * values[first * width + (i % width)] + part * values[next * width + (i % width)]
      );
    });
  };
  return { shares: rows(shares), rates: rows(rates) };
}

const dot = (a, b) => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
};

/* The objective as a function of a vector: free shares, then free rates in units of their range. */
class Objective {
  constructor(model, start, settings, steps, substeps) {
    const { weights, duration, freeShares, freeRates } = settings;
    Object.assign(this, { model, start, weights, steps, substeps, freeShares });
    this.lengths = new Float64Array(steps).fill(duration / steps);
    this.fixed = resampled(settings, steps);
    this.freeRates = freeRates;
    this.end = freeShares ? steps * model.tasks : 0; // where the rates begin
    this.size = this.end + (freeRates ? steps : 0);
  }

  join({ shares, rates }) {
    const x = new Float64Array(this.size);
    if (this.freeShares) x.set(shares);
    if (this.freeRates) {
      const [low, high] = this.freeRates;
      x.set(
        rates.map((rate) => (rate - low) / (high - low)),
        this.end,
      );
    }
    return x;
  }

  split(x) {
    const { end, fixed, freeRates } = this;
    const shares = this.freeShares ? x.slice(0, end) : fixed.shares;
    if (!freeRates) return { shares, rates: fixed.rates };
    const [low, high] = freeRates;
    return { shares, rates: x.slice(end).map((part) => low + (high - low) * part) };
  }

  evaluate(x) {
    const { model, start, lengths, substeps, weights } = this;
    const schedule = { ...this.split(x), lengths, substeps };
    const { value, byShares, byRates } = model.gradient(start, schedule, weights);
    const gradient = new Float64Array(this.size);
    if (this.freeShares) gradient.set(byShares);
    if (this.freeRates) {
      const width = this.freeRates[1] - this.freeRates[0];
      gradient.set(
        byRates.map((slope) => width * slope),
        this.end,
      );
    }
    return { value, gradient };
  }

  /** The gain still possible to first order: that of the linear model's best controls. */
  residual(x, gradient) {
    const T = this.model.tasks;
    let gain = dot(x, gradient);
    for (let i = 0; i < this.end; i += T) gain -= Math.min(...gradient.subarray(i, i + T));
    for (let i = this.end; i < this.size; i++) gain -= Math.min(gradient[i], 0);
    return gain;
  }

  /* Write the domain of the controls to the core's memory; its address and scratch space. */
  _domain(core) {
    const T = this.model.tasks;
    const rows = this.end / T;
    const [low, high] = [core.floats(T), core.floats(new Array(T).fill(1))];
    const place = core.integers(new Array(DOMAIN).fill(0));
    const sizes = [T, this.size - this.end, 0, 0, 0, rows].map(BigInt);
    core.exports.replan_set_domain(...sizes, 0, low, high, 0, 0, 0, 0, 0, 0, place);
    return { place, room: rows * (2 * T + 1) + 5 * T };
  }

  project(x) {
    const { core } = this.model;
    core.begin();
    const { place, room } = this._domain(core);
    const out = core.floats(x.length);
    core.exports.replan_project(place, core.floats(x), out, core.floats(room), core.never);
    return core.copy(out, x.length);
  }

  /** About the minimum over the controls of a quadratic model around x; see spectral.py. */
  modelMinimum(x, gradient, pairs) {
    const { core } = this.model;
    const { scale, sides, inverse } = hessian(pairs);
    const [n, p] = [x.length, sides.length];
    core.begin();
    const { place, room } = this._domain(core);
    const packed = core.floats(n * p);
    sides.forEach((side, i) => core.view(packed, n * p).set(side, i * n));
    const [moved, slope] = [core.floats(x), core.floats(gradient)];
    const work = core.floats(3 * n + 2 * p + room);
    core.exports.replan_descend(
      place,
      BigInt(n),
      BigInt(p),
      scale,
      packed,
      core.floats(inverse.flat()),
      moved,
      slope,
      work,
      core.never,
    );
    return core.copy(moved, n);
  }
}

/* The parts of the Hessian scale × 1 − sides' inverse sides: limited-memory BFGS in its compact
   form, of Byrd, Nocedal and Schnabel (1994). */
function hessian(pairs) {
  const count = pairs.length;
  const { change } = pairs[count - 1];
  const scale = dot(change, change) / dot(change, pairs[count - 1].move);
  const sides = [
    ...pairs.map(({ move }) => move.map((x) => scale * x)),
    ...pairs.map((p) => p.change),
  ];
  const middle = sides.map(() => new Array(2 * count).fill(0));
  for (let i = 0; i < count; i++)
    for (let j = 0; j < count; j++) {
      middle[i][j] = dot(sides[i], pairs[j].move);
      const product = dot(pairs[i].move, pairs[j].change);
      if (i > j) middle[i][count + j] = middle[count + j][i] = product;
      if (i === j) middle[count + i][count + i] = -product;
    }
  return { scale, sides, inverse: inverted(middle) };
}

/* The inverse of a matrix, by Gauss and Jordan with the largest pivots. */
function inverted(matrix) {
  const size = matrix.length;
  const rows = matrix.map((row, i) => [...row, ...row.map((_, j) => Number(i === j))]);
  for (let i = 0; i < size; i++) {
    let pivot = i;
    for (let j = i; j < size; j++) if (Math.abs(rows[j][i]) > Math.abs(rows[pivot][i])) pivot = j;
    [rows[i], rows[pivot]] = [rows[pivot], rows[i]];
    rows[i] = rows[i].map((x) => x / rows[i][i]);
    for (let j = 0; j < size; j++) {
      const factor = rows[j][i];
      if (j !== i && factor !== 0) rows[j] = rows[j].map((x, k) => x - factor * rows[i][k]);
    }
  }
  return rows.map((row) => row.slice(size));
}

/* A minimisation, as in quasi_newton.py: `x`, `value` and `gradient` are the best so far. */
class Descent {
  constructor(objective, x) {
    this.objective = objective;
    this.x = objective.project(x);
    Object.assign(this, objective.evaluate(this.x));
    this.pairs = [];
    this.values = [];
    this.stalled = !Number.isFinite(this.value);
  }

  get finished() {
    const gained = this.values[0] - this.value;
    const slow = this.values.length > PATIENCE && gained < 0.1 * TOLERANCE * this.value;
    const left = this.stalled ? 0 : this.objective.residual(this.x, this.gradient);
    return this.stalled || slow || left <= TOLERANCE * this.value;
  }

  step() {
    const { objective, x, value, gradient, pairs } = this;
    const size = Math.max(1e-300, Math.sqrt(dot(gradient, gradient)));
    const target = pairs.length
      ? objective.modelMinimum(x, gradient, pairs)
      : objective.project(x.map((a, i) => a - gradient[i] / size));
    const direction = target.map((a, i) => a - x[i]);
    const slope = dot(gradient, direction);
    const isDescent = slope < -1e-16 * Math.abs(value);
    for (let length = 1, trial = 0; isDescent && trial < TRIALS; trial++) {
      const moved = x.map((a, i) => a + length * direction[i]);
      const next = objective.evaluate(moved);
      if (next.value <= value + ARMIJO * length * slope) {
        this.remember(moved, next.gradient);
        this.values = [...this.values, value].slice(-PATIENCE - 1);
        return Object.assign(this, { x: moved }, next);
      }
      // the minimum of the parabola through both values and the slope, within bounds
      const best = (-slope * length * length) / (2 * (next.value - value - length * slope));
      length = Math.min(Math.max(best, 0.1 * length), 0.5 * length);
    }
    this.stalled = pairs.length === 0;
    this.pairs = []; // a poor model: begin again from the gradient alone
  }

  remember(x, gradient) {
    let move = x.map((a, i) => a - this.x[i]);
    let change = gradient.map((a, i) => a - this.gradient[i]);
    const size = Math.sqrt(dot(move, move)); // the model does not depend on the scale of a pair
    if (dot(move, change) <= 1e-10 * size * Math.sqrt(dot(change, change))) return;
    move = move.map((a) => a / size);
    change = change.map((a) => a / size);
    this.pairs = [...this.pairs, { move, change }].slice(-PAIRS);
  }
}
