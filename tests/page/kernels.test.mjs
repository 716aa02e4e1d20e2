// Run by test_kernels.py, which writes the library's numbers to the file EXPECTED.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { loadCore } from "../../src/replan/page/kernels.js";

const core = await loadCore(readFileSync(process.env.CORE));
const cases = JSON.parse(readFileSync(process.env.EXPECTED));

const floats = (values) => Float64Array.from(values);
const largest = (values) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);

/** The largest difference, relative to the largest number. */
function distance(got, expected) {
  assert.equal(got.length, expected.length);
  return largest(floats(expected).map((x, i) => x - got[i])) / largest(expected);
}

/** Whether losses agree to 1e-8; they are differences of numbers near 1. */
function agree(got, expected) {
  assert.equal(got.length, expected.length);
  return expected.every((x, i) => Math.abs(x - got[i]) < 1e-8 * x + 1e-14);
}

const scheduleOf = ({ shares, rates, lengths, substeps }) => ({
  shares: floats(shares),
  rates: floats(rates),
  lengths: floats(lengths),
  substeps,
});

test("roll-outs and gradients equal the library's", () => {
  for (const expected of cases) {
    const { name, model: settings, start, lengths, weights } = expected;
    const model = core.teacherStudent(settings);
    const schedule = scheduleOf(expected);
    const run = model.rollOut(floats(start), schedule);
    assert.equal(run.done, lengths.length);
    assert.ok(distance(run.states, expected.states) < 1e-11, name);
    assert.ok(agree(run.losses, expected.losses), name);
    const gradient = model.gradient(floats(start), schedule, weights);
    assert.ok(agree([gradient.value], [expected.value]), name);
    assert.ok(distance(gradient.byShares, expected.byShares) < 1e-9, name);
    assert.ok(distance(gradient.byRates, expected.byRates) < 1e-9, name);
  }
});

test("reference losses of plain protocols", () => {
  for (const { hidden, teacher_overlaps: overlaps, start, ...problem } of cases) {
    const model = core.teacherStudent({ hidden, tasks: 2, overlaps });
    const { steps, duration, lr, final_losses_per_task: ends } = problem;
    const names = ["task 1 only", "task 2 only", "shares 1/2, 1/2"];
    names.push("alternating every step, task 1 first");
    const firsts = [() => 1, () => 0, () => 0.5, (i) => 1 - (i % 2)];
    firsts.forEach((first, j) => {
      const shares = new Float64Array(2 * steps).map((_, i) =>
        i % 2 ? 1 - first(i >> 1) : first(i >> 1),
      );
      const rates = new Float64Array(steps).fill(lr);
      const lengths = new Float64Array(steps).fill(duration / steps);
      const { losses } = model.rollOut(model.pack(start), { shares, rates, lengths, substeps: 4 });
      assert.ok(agree(losses.subarray(-2), ends[names[j]]), names[j]);
    });
  }
});

test("solve reaches the library's relaxed values", () => {
  for (const { model: settings, start, relaxed, duration, steps, weights, freeRates } of cases) {
    const model = core.teacherStudent(settings);
    const shares = new Float64Array(steps * model.tasks).fill(1 / model.tasks);
    const rates = new Float64Array(steps).fill(1);
    const { value, ...controls } = model.solve(floats(start), {
      ...{ duration, steps, substeps: 2, weights, shares, rates, freeShares: true, freeRates },
    });
    // On coarse steps with free rates, one task per step can beat all mixtures, which have one rate
    // for all tasks: the page does not always find it.
    const most = (freeRates ? 1.025 : 1.005) * relaxed;
    assert.ok(value < most, `${JSON.stringify(settings)}: ${value}, ${relaxed}`);
    const lengths = new Float64Array(steps).fill(duration / steps);
    const accurate = { ...controls, lengths, substeps: 8 };
    const again = model.gradient(floats(start), accurate, weights).value;
    const error = (again - value) / value;
    assert.ok(Math.abs(error) < 0.005, `${JSON.stringify(settings)}: integrator ${error}`);
    for (let i = 0; i < steps; i++) {
      const row = controls.shares.subarray(i * model.tasks, (i + 1) * model.tasks);
      const sum = row.reduce((total, share) => total + share, 0);
      assert.ok(Math.min(...row) >= 0 && Math.abs(sum - 1) < 1e-12);
    }
    const [low, high] = freeRates ?? [1, 1];
    assert.ok(controls.rates.every((rate) => rate >= low && rate <= high));
  }
});

test("SGD has the theory's mean", () => {
  const runs = 100;
  for (const { model: settings, start, dimension, marks, theory } of cases) {
    const model = core.teacherStudent(settings);
    const tasks = Int32Array.from({ length: marks.at(-1) }, (_, i) => i % model.tasks);
    const samples = { tasks, rates: new Float64Array(tasks.length).fill(1) };
    const all = Array.from({ length: runs }, (_, seed) =>
      model.sgd(floats(start), samples, dimension, seed, marks),
    );
    theory.forEach((loss, i) => {
      const mean = all.reduce((sum, losses) => sum + losses[i], 0) / runs;
      const squares = all.reduce((sum, losses) => sum + (losses[i] - mean) ** 2, 0);
      const error = Math.sqrt(squares / (runs - 1) / runs);
      // at N = 1000 the mean itself lies off the limit by about 1 / N of the loss
      const score = (mean - loss) / (error + (2 * loss) / dimension);
      assert.ok(Math.abs(score) < 4, `${settings.activation}: ${mean}, ${loss} at ${i}`);
    });
    const again = model.sgd(floats(start), samples, dimension, 0, marks);
    assert.deepEqual(again, all[0]);
  }
});

test("fresh starts have the library's moments", () => {
  for (const { model: settings, diagonal, heads } of cases) {
    const model = core.teacherStudent(settings);
    const states = Array.from({ length: 1000 }, (_, seed) => model.fresh(seed));
    const mean = (f) => states.reduce((sum, state) => sum + f(state), 0) / states.length;
    const { hidden: K, tasks: T } = settings;
    for (let k = 0; k < K; k++)
      assert.ok(Math.abs(mean((x) => x[k * K + k]) - diagonal) < 0.01 * diagonal);
    const V = K * K + K * T;
    assert.ok(Math.abs(mean((x) => x[V] ** 2) - heads) < 0.2 * heads);
    assert.ok(states.every((state) => model.losses(state).every((loss) => loss > 0)));
  }
});
