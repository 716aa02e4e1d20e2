/* The library's C core, compiled to WebAssembly, for the page: roll-outs, exact gradients and SGD.
   Arrays are Float64Arrays in C's order; names are those of DESIGN.md and src/replan/core. T tasks,
   K hidden units, as many teacher units as tasks, states of n = K (K + 2 T): Q, M and V. */

const ROWS = 4; // of n numbers, the integrator's part of the scratch space

const zeros = (count) => new Float64Array(count);

/** Compile the core from the bytes of the module. */
export async function loadCore(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  instance.exports._initialize();
  return { teacherStudent: (settings) => new TeacherStudent(instance.exports, settings) };
}

/* Call a function of the core. It allocates nothing: the buffers of all arrays are copied to its
   memory, side by side, and back. */
function call(core, name, values) {
  const { memory } = core;
  const places = new Map();
  let top = core.__heap_base.value;
  for (const { buffer } of values) {
    if (!buffer || places.has(buffer)) continue;
    places.set(buffer, top);
    top += buffer.byteLength;
  }
  const missing = top - memory.buffer.byteLength;
  if (missing > 0) memory.grow(Math.ceil(missing / 65536));
  const there = (buffer) => new Uint8Array(memory.buffer, places.get(buffer), buffer.byteLength);
  for (const buffer of places.keys()) there(buffer).set(new Uint8Array(buffer));
  const passed = values.map((x) => (x.buffer ? places.get(x.buffer) + x.byteOffset : x));
  const result = core[name](...passed);
  for (const buffer of places.keys()) new Uint8Array(buffer).set(there(buffer));
  return Number(result);
}

class TeacherStudent {
  constructor(core, { hidden: K, tasks: T, overlaps, activation = "erf", noise = 0, accuracy }) {
    Object.assign(this, { core, hidden: K, tasks: T, accuracy, size: K * (K + 2 * T) });
    const labels = overlaps.flatMap((row, i) => row.map((_, j) => Number(i === j)));
    const known = [K, T, T, noise, 1, ...new Array(T).fill(1), ...labels, ...overlaps.flat()];
    this.model = [core[`replan_${activation}`].value, Float64Array.from(known)];
    const room = Number(core[`replan_${activation}_room`](...[K, T, T].map(BigInt)));
    this.work = [zeros(ROWS * this.size + room), new BigInt64Array(1)]; // a flag that stops nothing
  }

  /** Losses (steps + 1) × T and states of a training at rates of all tasks or of each (steps × T),
      each piece with as many steps of RK4 as it needs for half of them to change no loss by more
      than `accuracy`. NaN after a divergence. */
  integrate(start, schedule) {
    const { size: n, tasks: T, accuracy } = this;
    const { steps, states, controls } = this.prepared(start, schedule);
    const done = this.loop("integrate", [steps, T, n], ...controls, accuracy, states);
    return this.measured(states, done);
  }

  /** The same by `substeps` steps a piece; how many pieces were `done` before a divergence; and what
      the reverse takes. */
  rollOut(start, schedule) {
    const { size: n, tasks: T } = this;
    const { steps, states, controls } = this.prepared(start, schedule);
    controls.push(new BigInt64Array(steps).fill(BigInt(schedule.substeps)));
    const tapeSteps = steps * schedule.substeps;
    const tape = zeros(4 * tapeSteps * n);
    const arrays = [...controls, states, states.subarray(n), tape];
    const done = this.loop("roll_out", [steps, T, 3 * T, n, tapeSteps], ...arrays);
    return { ...this.measured(states, done), controls, tape, tapeSteps };
  }

  /** The weighted sum of the final losses, with its exact gradients; Infinity if it diverges. */
  gradient(start, schedule, weights) {
    const { size: n, tasks: T } = this;
    const steps = schedule.lengths.length;
    const { done, controls, tape, tapeSteps, ...run } = this.rollOut(start, schedule);
    const [byShares, byKnobs] = [zeros(steps * T), zeros(3 * steps * T)];
    const byRates = zeros(schedule.rates.length);
    if (done < steps) return { value: Infinity, byShares, byRates };
    const losses = run.losses.slice(steps * T);
    const value = losses.reduce((sum, loss, t) => sum + weights[t] * loss, 0);
    const byStates = zeros((steps + 1) * n); // cotangents, which the reverse replaces by adjoints
    const [end, byEnd] = [run.states, byStates].map((x) => x.subarray(steps * n));
    this.loop("losses_vjp", [1, n, T], end, Float64Array.from(weights), byEnd);
    const sizes = [steps, steps + 1, T, 3 * T, n, tapeSteps];
    this.loop("roll_out_vjp", sizes, ...controls, byStates, tape, byStates, byShares, byKnobs);
    this.eachRate(schedule, (rate, knob) => (byRates[rate] += byKnobs[knob]));
    return { value, losses, byShares, byRates };
  }

  /** The losses (steps + 1) × T of a run of SGD in `dimension` dimensions, exact in law; the task of
      every sample is drawn by the shares. NaN after a divergence. */
  sgd(start, schedule, dimension, seed) {
    const { steps, states, controls } = this.prepared(start, schedule);
    const done = this.loop("run_sgd", [steps], ...controls, dimension, seed, states);
    return this.measured(states, done).losses;
  }

  /* States (steps + 1) × n, of which the first is known, and the controls as the core takes them. */
  prepared(start, schedule) {
    const { shares, rates, lengths } = schedule;
    const steps = lengths.length;
    const states = zeros((steps + 1) * this.size);
    states.set(start);
    const knobs = zeros(3 * shares.length).fill(1); // lr, feature_lr, head_lr of each task
    this.eachRate(schedule, (rate, knob) => (knobs[knob] = rates[rate]));
    const controls = [shares, knobs, lengths].map((values) => Float64Array.from(values));
    return { steps, states, controls };
  }

  /* Where the rates, of all tasks or of each, stand among the knobs. */
  eachRate({ rates, lengths }, visit) {
    const width = rates.length / lengths.length;
    for (let i = 0; i < lengths.length; i++)
      for (let t = 0; t < this.tasks; t++) visit(i * width + (t % width), 3 * this.tasks * i + t);
  }

  /* States with their losses; NaN from a divergence on. */
  measured(states, done) {
    const { size: n, tasks: T } = this;
    const rows = states.length / n;
    const losses = zeros(rows * T);
    this.loop("losses", [rows, n, T], states, losses);
    for (const all of [losses, states]) all.fill(NaN, ((done + 1) * all.length) / rows);
    return { losses, states, done };
  }

  loop(name, sizes, ...values) {
    const all = [...this.model, ...sizes.map(BigInt), ...values, ...this.work];
    return call(this.core, `replan_${name}`, all);
  }
}
