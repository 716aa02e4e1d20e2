/* The library's C core, compiled to WebAssembly, for the page: roll-outs, exact gradients and SGD.
   Arrays are Float64Arrays in C's order; names are those of DESIGN.md and src/replan/core. T tasks,
   K hidden units, as many teacher units as tasks, states of n = K (K + 2 T): Q, M and V. */

const NUMBER = 8; // bytes
const ROWS = 4; // of n numbers, which the integrator takes of the scratch space
const SGD_BLOCK = 256; // of sgd.c
const MOST_SUBSTEPS = 2 ** 14; // of a piece
const ACTIVATIONS = ["erf", "relu", "linear"]; // in the order of library.py

const big = (...sizes) => sizes.map(BigInt);

/* Whether two runs end alike; losses are differences of numbers near 1. */
const agree = (a, b, accuracy) =>
  b.losses.every((loss, i) => Math.abs(a.losses[i] - loss) <= accuracy * loss + 1e-15) &&
  b.states.every((x, i) => Math.abs(a.states[i] - x) <= accuracy * Math.max(1, Math.abs(x)));

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
  }

  /** Place numbers, or zeros where given a count; returns their address. */
  floats(values) {
    const { memory } = this.exports;
    const count = values.length ?? values;
    const address = this.top;
    this.top += Math.ceil((count * NUMBER) / 16) * 16;
    const missing = this.top - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / 65536));
    if (values === count) this.view(address, count).fill(0);
    else this.view(address, count).set(values);
    return address;
  }

  /** Place integers of 64 bits. */
  integers(values) {
    const address = this.floats(values.length);
    new BigInt64Array(this.exports.memory.buffer, address).set(big(...values));
    return address;
  }

  /** The numbers at an address, until the next array is placed. */
  view(address, count) {
    return new Float64Array(this.exports.memory.buffer, address, count);
  }
}

class TeacherStudent {
  constructor(core, { hidden: K, tasks: T, overlaps, activation = "erf", noise = 0, accuracy }) {
    Object.assign(this, { core, hidden: K, tasks: T, overlaps, activation, noise, accuracy });
    this.size = K * (K + 2 * T);
    const identity = overlaps.flatMap((row, i) => row.map((_, j) => Number(i === j)));
    const trained = new Array(T).fill(1);
    this.parameters = [K, T, T, noise, 1, ...trained, ...identity, ...overlaps.flat()];
    this.room = Number(core.exports[`replan_${activation}_room`](...big(K, T, T)));
  }

  /** A random state, beside orthogonal teachers. */
  fresh(seed) {
    const { core, size, hidden: K, tasks: T } = this;
    core.begin();
    const state = core.floats(size);
    core.exports.replan_fresh(seed, ...big(K, T), state, core.floats(K * (K + T)));
    return core.view(state, size).slice();
  }

  /** Losses (steps + 1) × T and states of a training, each piece with as many steps of RK4 as it
      needs for half of them to change no loss by more than `accuracy`. NaN after a divergence. */
  integrate(start, { shares, rates, lengths }) {
    const { size: n, tasks: T } = this;
    const states = new Float64Array((lengths.length + 1) * n).fill(NaN);
    const losses = new Float64Array((lengths.length + 1) * T).fill(NaN);
    let [now, substeps] = [start, 1];
    for (const [i, length] of lengths.entries()) {
      const own = { shares: shares.subarray(i * T, (i + 1) * T), rates: [rates[i]] };
      const run = (substeps) => this.rollOut(now, { ...own, lengths: [length], substeps });
      let [coarse, fine] = [run(substeps), run(2 * substeps)];
      while (!agree(coarse, fine, this.accuracy) && substeps < MOST_SUBSTEPS) {
        substeps *= 2;
        [coarse, fine] = [fine, run(2 * substeps)];
      }
      losses.set(fine.losses, i * T);
      states.set(fine.states, i * n);
      if (!fine.done) break;
      now = fine.states.subarray(n);
      substeps = Math.max(1, substeps / 2);
    }
    return { losses, states };
  }

  /** The same by `substeps` steps of RK4 a piece, at rates of all tasks or of each (steps × T); and
      how many pieces were `done` before a divergence. */
  rollOut(start, schedule) {
    const { core, size: n, tasks: T } = this;
    const run = this.run(start, schedule, 1);
    const losses = this.losses(run, run.states, run.steps + 1).fill(NaN, (run.done + 1) * T);
    const states = core.view(run.states, (run.steps + 1) * n).slice();
    return { losses, states: states.fill(NaN, (run.done + 1) * n), done: run.done };
  }

  /** The weighted sum of the final losses, with its exact gradients; Infinity if it diverges. */
  gradient(start, schedule, weights) {
    const { core, size: n, tasks: T } = this;
    const run = this.run(start, schedule, schedule.lengths.length * schedule.substeps);
    const { steps, head, tail } = run;
    const byRates = new Float64Array(schedule.rates.length);
    if (run.done < steps)
      return { value: Infinity, byShares: new Float64Array(steps * T), byRates };
    const last = steps * n * NUMBER;
    const losses = this.losses(run, run.states + last, 1);
    const value = losses.reduce((sum, loss, t) => sum + weights[t] * loss, 0);
    const counts = [(steps + 1) * n, (steps + 1) * n, steps * T, 3 * steps * T];
    const [cotangents, ...slopes] = counts.map((count) => core.floats(count));
    const { replan_losses_vjp: lossesVjp, replan_roll_out_vjp: rollOutVjp } = core.exports;
    const by = [core.floats(weights), cotangents + last];
    lossesVjp(...head, ...big(1, n, T), run.states + last, ...by, ...tail);
    const sizes = big(steps, steps + 1, T, 3 * T, n, run.tapeSteps);
    rollOutVjp(...head, ...sizes, ...run.controls, cotangents, run.tape, ...slopes, ...tail);
    const byKnobs = core.view(slopes[2], 3 * steps * T);
    run.knobs((rate, knob) => (byRates[rate] += byKnobs[knob]));
    return { value, losses, byShares: core.view(slopes[1], steps * T).slice(), byRates };
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

  /* What every loop of the core takes at first, and at last: scratch space and a flag never set. */
  begin() {
    const { core, activation, parameters, size, room } = this;
    core.begin();
    const table = core.exports[`replan_${activation}`].value;
    const tail = [core.floats(ROWS * size + room), core.integers([0])];
    return { head: [table, core.floats(parameters)], tail };
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
    const width = rates.length / steps;
    const knobs = (pair) => {
      for (let i = 0; i < steps; i++)
        for (let t = 0; t < T; t++) pair(i * width + (t % width), 3 * T * i + t);
    };
    const values = new Float64Array(3 * steps * T).fill(1); // lr, feature_lr, head_lr of each task
    knobs((rate, knob) => (values[knob] = rates[rate]));
    const counts = core.integers(new Array(steps).fill(substeps));
    const controls = [...[shares, values, lengths].map((x) => core.floats(x)), counts];
    const states = core.floats((steps + 1) * n);
    core.view(states, n).set(start);
    const tape = core.floats(4 * tapeSteps * n);
    const sizes = big(steps, T, 3 * T, n, tapeSteps);
    const after = states + n * NUMBER;
    const rollOut = core.exports.replan_roll_out;
    const done = Number(rollOut(...head, ...sizes, ...controls, states, after, tape, ...tail));
    return { head, tail, steps, states, tape, tapeSteps, controls, knobs, done };
  }
}
