/* The library's C core, compiled to WebAssembly, for the page: roll-outs, exact gradients and SGD.
   Arrays are Float64Arrays in C's order; names are those of DESIGN.md and src/replan/core. T tasks,
   K hidden units, as many teacher units as tasks, states of n = K (K + 2 T): Q, M and V. */

const NUMBER = 8; // bytes
const ROWS = 4; // of n numbers, which the integrator takes of the scratch space
const SGD_BLOCK = 256; // of sgd.c
const ACTIVATIONS = ["erf", "relu", "linear"]; // in the order of library.py

/** Compile the core from the bytes of the module. */
export async function loadCore(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  instance.exports._initialize();
  const core = new Core(instance.exports);
  return { teacherStudent: (settings) => new TeacherStudent(core, settings) };
}

/* The memory of the core. It allocates nothing: every call lays out its arrays from one end. */
class Core {
  constructor(exports) {
    this.exports = exports;
  }

  /** Forget all arrays. */
  begin() {
    this.top = Math.ceil(this.exports.__heap_base.value / 16) * 16;
    this.never = this.integers([0]); // the flag that nobody sets
  }

  take(count) {
    const { memory } = this.exports;
    const address = this.top;
    this.top += Math.ceil((count * NUMBER) / 16) * 16;
    const missing = this.top - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / 65536));
    return address;
  }

  /** Place numbers, or zeros where given a count; returns their address. */
  floats(values) {
    const count = values.length ?? values;
    const address = this.take(count);
    if (values === count) this.view(address, count).fill(0);
    else this.view(address, count).set(values);
    return address;
  }

  /** Place integers of 64 bits. */
  integers(values) {
    const address = this.take(values.length);
    new BigInt64Array(this.exports.memory.buffer, address).set(big(...values));
    return address;
  }

  /** The numbers at an address, until the next array is placed. */
  view(address, count) {
    return new Float64Array(this.exports.memory.buffer, address, count);
  }
}

const big = (...sizes) => sizes.map(BigInt);

class TeacherStudent {
  constructor(core, { hidden, tasks, overlaps, activation = "erf", noise = 0 }) {
    Object.assign(this, { core, hidden, tasks, overlaps, activation, noise });
    this.lossCount = tasks;
    this.size = hidden * (hidden + 2 * tasks);
    const identity = overlaps.flatMap((row, i) => row.map((_, j) => Number(i === j)));
    const trained = new Array(tasks).fill(1);
    this.parameters = [hidden, tasks, tasks, noise, 1, ...trained, ...identity, ...overlaps.flat()];
    this.room = Number(core.exports[`replan_${activation}_room`](...big(hidden, tasks, tasks)));
  }

  /** A random state, beside orthogonal teachers. */
  fresh(seed) {
    const { core, size, hidden: K, tasks: T } = this;
    core.begin();
    const state = core.floats(size);
    core.exports.replan_fresh(seed, ...big(K, T), state, core.floats(K * (K + T)));
    return core.view(state, size).slice();
  }

  /** Train by RK4 with `substeps` steps a piece, at rates of all tasks or of each (steps × T). After
      a divergence, when `done` pieces were completed, losses (steps + 1) × T and states are NaN. */
  rollOut(start, schedule) {
    const { core, size: n, tasks: T } = this;
    const run = this.run(start, schedule, 1);
    const losses = this.losses(run, run.states, run.steps + 1).fill(NaN, (run.done + 1) * T);
    const states = core.view(run.states, (run.steps + 1) * n).slice();
    states.fill(NaN, (run.done + 1) * n);
    return { losses, states, done: run.done };
  }

  /** The weighted sum of the final losses, with its exact gradients; Infinity if it diverges. */
  gradient(start, schedule, weights) {
    const { core, size: n, tasks: T } = this;
    const run = this.run(start, schedule, schedule.lengths.length * schedule.substeps);
    const { steps, head, tail } = run;
    const byShares = new Float64Array(steps * T);
    const byRates = new Float64Array(schedule.rates.length);
    if (run.done < steps) return { value: Infinity, losses: null, byShares, byRates };
    const end = run.states + steps * n * NUMBER;
    const losses = this.losses(run, end, 1);
    const value = losses.reduce((sum, loss, t) => sum + weights[t] * loss, 0);
    const cotangents = core.floats((steps + 1) * n);
    const slopes = [(steps + 1) * n, steps * T, 3 * steps * T].map((count) => core.floats(count));
    const { replan_losses_vjp: lossesVjp, replan_roll_out_vjp: rollOutVjp } = core.exports;
    const last = cotangents + steps * n * NUMBER;
    lossesVjp(...head, ...big(1, n, T), end, core.floats(weights), last, ...tail);
    const sizes = big(steps, steps + 1, T, 3 * T, n, run.tapeSteps);
    rollOutVjp(...head, ...sizes, ...run.controls, cotangents, run.tape, ...slopes, ...tail);
    byShares.set(core.view(slopes[1], steps * T));
    const byKnobs = core.view(slopes[2], 3 * steps * T);
    const width = byRates.length / steps;
    for (let i = 0; i < steps; i++)
      for (let t = 0; t < T; t++) byRates[i * width + (t % width)] += byKnobs[3 * T * i + t];
    return { value, losses, byShares, byRates };
  }

  /** The losses (steps + 1) × T of a run of SGD in `dimension` dimensions, exact in law; the task of
      every sample is drawn by the shares. NaN after a divergence. */
  sgd(start, { shares, rates, lengths }, dimension, seed) {
    const { core, size: n, tasks: T, hidden: K, activation, noise, overlaps } = this;
    const steps = lengths.length;
    const calls = this.begin();
    const states = core.floats((steps + 1) * n);
    core.view(states, n).set(start);
    const network = [...big(ACTIVATIONS.indexOf(activation), K, T), dimension, noise];
    const schedule = [shares, rates, lengths].map((values) => core.floats(values));
    const known = [core.floats(overlaps.flat()), states, seed, BigInt(steps), ...schedule];
    const work = core.floats(4 * (K + T) ** 2 + SGD_BLOCK * (K + T + 4));
    const done = core.exports.replan_run_sgd(...network, ...known, states + n * NUMBER, work);
    return this.losses(calls, states, steps + 1).fill(NaN, (Number(done) + 1) * T);
  }

  /* What every loop of the core takes at first, and at last. */
  begin() {
    const { core, activation, parameters, size, room } = this;
    core.begin();
    const table = core.exports[`replan_${activation}`].value;
    const work = core.floats(ROWS * size + room);
    return { head: [table, core.floats(parameters)], tail: [work, core.never] };
  }

  losses({ head, tail }, states, rows) {
    const { core, size: n, tasks: T } = this;
    const out = core.floats(rows * T);
    core.exports.replan_losses(...head, ...big(rows, n, T), states, out, ...tail);
    return core.view(out, rows * T).slice();
  }

  run(start, { shares, rates, lengths, substeps }, tapeSteps) {
    const { core, size: n, tasks: T } = this;
    const steps = lengths.length;
    const { head, tail } = this.begin();
    const knobs = new Float64Array(3 * steps * T).fill(1); // lr, feature_lr, head_lr of each task
    const width = rates.length / steps;
    for (let i = 0; i < steps; i++)
      for (let t = 0; t < T; t++) knobs[3 * T * i + t] = rates[i * width + (t % width)];
    const counts = core.integers(new Array(steps).fill(substeps));
    const controls = [...[shares, knobs, lengths].map((x) => core.floats(x)), counts];
    const states = core.floats((steps + 1) * n);
    core.view(states, n).set(start);
    const tape = core.floats(4 * tapeSteps * n);
    const sizes = big(steps, T, 3 * T, n, tapeSteps);
    const after = states + n * NUMBER;
    const rollOut = core.exports.replan_roll_out;
    const done = Number(rollOut(...head, ...sizes, ...controls, states, after, tape, ...tail));
    return { head, tail, steps, states, tape, tapeSteps, controls, done };
  }
}
