/* The library's C core, compiled to WebAssembly, for the page: see loops.c. Arrays are Float64Arrays
   in C's order; names are those of DESIGN.md and src/replan/core. T tasks, K hidden units, as many
   teacher units as tasks, states of n = K (K + 2 T): Q, M and V. */

const ACTIVATIONS = ["erf", "relu", "linear"]; // as loops.c numbers them

/** Compile the core from the bytes of the module. */
export async function loadCore(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  instance.exports._initialize();
  return { teacherStudent: (settings) => new TeacherStudent(instance.exports, settings) };
}

class TeacherStudent {
  constructor(core, { hidden: K, tasks: T, overlaps, activation = "erf", noise = 0, accuracy }) {
    Object.assign(this, { core, hidden: K, tasks: T, accuracy, size: K * (K + 2 * T) });
    const labels = overlaps.flatMap((row, i) => row.map((_, j) => Number(i === j)));
    this.parameters = [K, T, T, noise, 1, ...new Array(T).fill(1), ...labels, ...overlaps.flat()];
    this.activation = ACTIVATIONS.indexOf(activation);
  }

  /** Losses (steps + 1) × T and states of a training at rates of all tasks or of each (steps × T),
      each piece with as many steps of RK4 as it needs for half of them to change no loss by more
      than `accuracy`. NaN after a divergence. */
  integrate(start, schedule) {
    return this.trained("integrate", start, schedule, [this.accuracy]);
  }

  /** The same for a run of SGD in `dimension` dimensions, exact in law; the task of every sample is
      drawn by the shares. */
  sgd(start, schedule, dimension, seed) {
    return this.trained("run_sgd", start, schedule, [dimension, seed]).losses;
  }

  /** The weighted sum of the final losses, with its exact gradients, by `substeps` steps of RK4 a
      piece; Infinity if it diverges. */
  gradient(start, schedule, weights) {
    const { shares, rates, substeps } = schedule;
    const [byShares, byRates] = [shares, rates].map(({ length }) => new Float64Array(length));
    const inputs = [start, substeps, weights];
    return {
      value: this.call("gradient", schedule, inputs, [byShares, byRates]),
      byShares,
      byRates,
    };
  }

  trained(name, start, schedule, settings) {
    const rows = schedule.lengths.length + 1;
    const [states, losses] = [this.size, this.tasks].map((width) => new Float64Array(rows * width));
    states.set(start);
    this.call(name, schedule, settings, [states, losses]);
    return { states, losses };
  }

  /* Call a function of loops.c. Numbers are passed as they are; arrays side by side in its memory,
     from which the results are copied back. */
  call(name, { shares, rates, lengths }, inputs, results) {
    const { memory, replan_arrays: arrays } = this.core;
    let top = arrays.value;
    const put = (value) => {
      if (!value.length) return value;
      new Float64Array(memory.buffer, top, value.length).set(value);
      top += 8 * value.length;
      return top - 8 * value.length;
    };
    const width = rates.length / lengths.length;
    const known = [this.activation, this.parameters, lengths.length, width, shares, rates, lengths];
    const passed = [...known, ...inputs].map(put);
    const places = results.map(put);
    const value = this.core[`replan_${name}`](...passed, ...places);
    results.forEach((all, i) => all.set(new Float64Array(memory.buffer, places[i], all.length)));
    return value;
  }
}
