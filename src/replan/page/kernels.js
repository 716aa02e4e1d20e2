/* The library's C core, compiled to WebAssembly, for the page: models, roll-outs, exact gradients,
   SGD and the relaxed solver. Arrays are Float64Arrays in C's order; names are those of DESIGN.md
   and src/replan/core. T tasks, K hidden units, as many teacher units as tasks, states of n. */

import { Random } from "./random.js";
import { minimise } from "./minimise.js";

const NUMBER = 8; // bytes
const ROWS = 4; // of n numbers, which the integrator takes of the scratch space
const ACTIVATIONS = ["erf", "relu", "linear"]; // in the order of library.py
const BLOCK = 2 ** 16; // numbers drawn at once for SGD

/** Compile the core from the bytes of the module. */
export async function loadCore(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  instance.exports._initialize();
  const core = new Core(instance.exports);
  return { teacherStudent: (settings) => new TeacherStudent(core, settings) };
}

/* The memory of the core. It allocates nothing: every call lays out its arrays from one end. */
export class Core {
  constructor(exports) {
    this.exports = exports;
    this.begin();
  }

  /** Forget all arrays. */
  begin() {
    this.top = Math.ceil(this.exports.__heap_base.value / 16) * 16;
    this.never = this.integers([0]); // the flag that nobody sets
  }

  take(bytes) {
    const { memory } = this.exports;
    const address = this.top;
    this.top += Math.ceil(bytes / 16) * 16;
    const missing = this.top - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / 65536));
    return address;
  }

  /** Place numbers, or zeros where given a count; returns their address. */
  floats(values) {
    const count = values.length ?? values;
    const address = this.take(count * NUMBER);
    const view = this.view(address, count);
    if (values.length === undefined) view.fill(0);
    else view.set(values);
    return address;
  }

  /** Place integers of 64 bits. */
  integers(values) {
    const address = this.take(values.length * NUMBER);
    const view = new BigInt64Array(this.exports.memory.buffer, address, values.length);
    for (let i = 0; i < values.length; i++) view[i] = BigInt(values[i]);
    return address;
  }

  /** The numbers at an address, until the next array is placed. */
  view(address, count) {
    return new Float64Array(this.exports.memory.buffer, address, count);
  }

  copy(address, count) {
    return this.view(address, count).slice();
  }
}

const big = (...sizes) => sizes.map(BigInt);

class TeacherStudent {
  constructor(core, { hidden, tasks, overlaps, activation = "erf", noise = 0 }) {
    Object.assign(this, { core, hidden, tasks, overlaps, activation, noise });
    this.size = hidden * (hidden + 2 * tasks);
    const identity = overlaps.map((row, i) => row.map((_, j) => Number(i === j)));
    const trained = new Array(tasks).fill(1);
    this.parameters = [hidden, tasks, tasks, noise, 1, ...trained, ...identity.flat()];
    this.parameters.push(...overlaps.flat());
    this.frame = cholesky(overlaps);
    this.room = Number(core.exports[`replan_${activation}_room`](...big(hidden, tasks, tasks)));
  }

  /** A state from nested arrays Q (K × K), M (K × T), V (T × K). */
  pack({ Q, M, V }) {
    return Float64Array.from([Q, M, V].flat(2));
  }

  /** Random initial overlaps: TeacherStudent.fresh of the library, with other random numbers. */
  fresh(seed, { dimension = 20000, weightVariance = 1e-3, headVariance = 1e-2 } = {}) {
    const { hidden: K, tasks: T, frame } = this;
    const random = new Random(seed);
    const normals = (count) => Array.from({ length: count }, () => random.normal());
    const scale = Math.sqrt(weightVariance / dimension);
    const students = Array.from({ length: K }, (_, k) => [
      ...normals(T + k),
      Math.sqrt(random.chiSquare(dimension - T - k)),
    ]);
    const dot = (a, b) => a.slice(0, b.length).reduce((sum, x, i) => sum + x * b[i], 0);
    const Q = students.map((a, k) =>
      students.map((b, h) => scale ** 2 * (h > k ? dot(b, a) : dot(a, b))),
    );
    const M = students.map((a) => frame.map((b) => scale * dot(a, b)));
    const V = Array.from({ length: T }, () => normals(K).map((x) => Math.sqrt(headVariance) * x));
    return this.pack({ Q, M, V });
  }

  /** The losses (rows × T) at states (rows × n). */
  losses(states) {
    this.core.begin();
    return this._losses(this._model(), this.core.floats(states), states.length / this.size);
  }

  /** Train by RK4 with `substeps` steps a piece. Where it diverges, `done` pieces were completed
      and the rest is NaN. */
  rollOut(start, schedule) {
    const { core, size: n, tasks: T } = this;
    core.begin();
    const model = this._model();
    const run = this._rollOut(model, start, schedule, 1);
    const states = new Float64Array((run.steps + 1) * n).fill(NaN);
    const losses = new Float64Array((run.steps + 1) * T).fill(NaN);
    losses.set(this._losses(model, run.states, run.done + 1));
    states.set(core.view(run.states, (run.done + 1) * n));
    return { states, losses, done: run.done };
  }

  /** The weighted sum of the final losses, with its exact gradients; Infinity if it diverges. */
  gradient(start, schedule, weights) {
    const { core, size: n, tasks: T } = this;
    core.begin();
    const model = this._model();
    const steps = schedule.lengths.length;
    const run = this._rollOut(model, start, schedule, steps * schedule.substeps);
    const byShares = new Float64Array(steps * T);
    const byRates = new Float64Array(schedule.rates.length);
    if (run.done < steps) return { value: Infinity, losses: null, byShares, byRates };
    const end = run.states + steps * n * NUMBER;
    const losses = this._losses(model, end, 1);
    const value = losses.reduce((sum, loss, t) => sum + weights[t] * loss, 0);
    const cotangents = core.floats((steps + 1) * n);
    const adjoints = core.floats((steps + 1) * n);
    const shareSlopes = core.floats(steps * T);
    const knobSlopes = core.floats(3 * steps * T);
    const { replan_losses_vjp: lossesVjp, replan_roll_out_vjp: rollOutVjp } = core.exports;
    const last = cotangents + steps * n * NUMBER;
    lossesVjp(...model.head, ...big(1, n, T), end, core.floats(weights), last, ...model.tail);
    rollOutVjp(
      ...model.head,
      ...big(steps, steps + 1, T, 3 * T, n, run.tapeSteps),
      ...run.controls,
      cotangents,
      run.tape,
      adjoints,
      shareSlopes,
      knobSlopes,
      ...model.tail,
    );
    byShares.set(core.view(shareSlopes, steps * T));
    const byKnobs = core.view(knobSlopes, 3 * steps * T);
    const width = schedule.rates.length / steps;
    for (let i = 0; i < steps; i++)
      for (let t = 0; t < T; t++) byRates[i * width + (t % width)] += byKnobs[3 * T * i + t];
    return { value, losses, byShares, byRates };
  }

  /** The losses (marks × T) after `marks` samples of SGD in N dimensions, exact in law; `tasks` and
      `rates` of each sample. NaN after a divergence. */
  sgd(start, { tasks, rates }, dimension, seed, marks) {
    const { core, size: n, tasks: T, hidden: K, noise } = this;
    const states = new Float64Array(marks.length * n).fill(NaN);
    const random = new Random(seed);
    const columns = T + K + 2;
    const block = Math.floor(BLOCK / columns);
    const freedom = dimension - K - T;
    core.begin();
    const { along, rest, heads } = coordinates(start, this.frame, K);
    const chain = [along, rest, heads].map((values) => core.floats(values));
    const known = [this.frame, identity(T)].map((rows) => core.floats(rows.flat()));
    const work = core.floats(K * (T + K + 4) + 1);
    const state = core.floats(start);
    const draws = core.floats(block * columns);
    const sizes = [...big(K, T, T, T, columns, 1, n), BigInt(ACTIVATIONS.indexOf(this.activation))];
    const room = core.top;
    let done = 0;
    for (let i = 0; i < marks.length; i++) {
      while (done < marks[i]) {
        const count = Math.min(block, marks[i] - done);
        const part = [done, done + count];
        core.top = room;
        const sampleTasks = core.integers(tasks.subarray(...part));
        const sampleRates = core.floats(rates.subarray(...part));
        const mark = core.integers([count]);
        random.draw(core.view(draws, count * columns), columns, freedom, noise);
        const advanced = core.exports.replan_advance_reduced(
          BigInt(count),
          ...sizes,
          dimension,
          noise,
          ...chain,
          sampleTasks,
          sampleRates,
          sampleRates,
          ...known,
          draws,
          mark,
          state,
          work,
        );
        if (Number(advanced) < count) return this.losses(states);
        done += count;
      }
      states.set(core.view(state, n), i * n);
    }
    return this.losses(states);
  }

  /** Minimise the weighted final losses over shares and rates; see `minimise`. */
  solve(start, settings, onProgress, cancelled) {
    return minimise(this, start, settings, onProgress, cancelled);
  }

  /* What every loop of the core takes at first, and at last. */
  _model() {
    const { core, activation, parameters, size, room } = this;
    const table = core.exports[`replan_${activation}`].value;
    const work = core.floats(ROWS * size + room);
    return { head: [table, core.floats(parameters)], tail: [work, core.never] };
  }

  _losses(model, states, rows) {
    const { core, size: n, tasks: T } = this;
    const out = core.floats(rows * T);
    core.exports.replan_losses(...model.head, ...big(rows, n, T), states, out, ...model.tail);
    return core.copy(out, rows * T);
  }

  _rollOut(model, start, { shares, rates, lengths, substeps }, tapeSteps) {
    const { core, size: n, tasks: T } = this;
    const steps = lengths.length;
    const knobs = new Float64Array(3 * steps * T).fill(1); // lr, feature_lr, head_lr of each task
    const width = rates.length / steps; // 1, or T: a rate for each task
    for (let i = 0; i < steps; i++)
      for (let t = 0; t < T; t++) knobs[3 * T * i + t] = rates[i * width + (t % width)];
    const counts = core.integers(new Array(steps).fill(substeps));
    const controls = [...[shares, knobs, lengths].map((x) => core.floats(x)), counts];
    const states = core.floats((steps + 1) * n);
    core.view(states, n).set(start);
    const tape = core.floats(4 * tapeSteps * n);
    const done = core.exports.replan_roll_out(
      ...model.head,
      ...big(steps, T, 3 * T, n, tapeSteps),
      ...controls,
      states,
      states + n * NUMBER,
      tape,
      ...model.tail,
    );
    return { steps, states, tape, tapeSteps, controls, done: Number(done) };
  }
}

const identity = (size) =>
  Array.from({ length: size }, (_, i) => Array.from({ length: size }, (_, j) => Number(i === j)));

/* The lower triangular L with A = L L'; a row within the span of the earlier ones ends in 0. */
function cholesky(A) {
  const L = A.map((row) => row.map(() => 0));
  for (let i = 0; i < A.length; i++)
    for (let j = 0; j <= i; j++) {
      let rest = A[i][j];
      for (let k = 0; k < j; k++) rest -= L[i][k] * L[j][k];
      if (i === j) L[i][i] = rest > 1e-13 * A[i][i] ? Math.sqrt(rest) : 0;
      else L[i][j] = L[j][j] > 0 ? rest / L[j][j] : 0;
    }
  return L;
}

/* The students of a state beside the teachers' `frame`, for sgd.c: along (K × T), rest (K × K). */
function coordinates(state, frame, K) {
  const T = frame.length;
  const rows = (first, count, width) =>
    Array.from({ length: count }, (_, i) =>
      Array.from(state.subarray(first + i * width, first + (i + 1) * width)),
    );
  const Q = rows(0, K, K);
  const along = rows(K * K, K, T).map((fields) => {
    const row = [];
    for (let j = 0; j < T; j++) {
      let rest = fields[j];
      for (let i = 0; i < j; i++) rest -= frame[j][i] * row[i];
      row.push(frame[j][j] > 0 ? rest / frame[j][j] : 0);
    }
    return row;
  });
  const left = Q.map((row, k) =>
    row.map((q, h) => q - along[k].reduce((sum, x, j) => sum + x * along[h][j], 0)),
  );
  return { along: along.flat(), rest: cholesky(left).flat(), heads: state.subarray(K * (K + T)) };
}
