// Run by test_kernels.py, which writes the library's numbers to the file EXPECTED.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { loadCore } from "../../src/replan/page/kernels.js";
import { minimise } from "../../src/replan/page/minimise.js";

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

test("gradients equal the library's", () => {
  for (const expected of cases) {
    const { name, model: settings, start, weights } = expected;
    const model = core.teacherStudent(settings);
    const gradient = model.gradient(floats(start), scheduleOf(expected), weights);
    assert.ok(agree([gradient.value], [expected.value]), name);
    assert.ok(distance(gradient.byShares, expected.byShares) < 1e-9, name);
    assert.ok(distance(gradient.byRates, expected.byRates) < 1e-9, name);
  }
});

test("trainings are as accurate as asked", () => {
  for (const { model: settings, start, states: ends, losses: expected, ...steps } of cases) {
    const model = core.teacherStudent(settings);
    const { losses, states } = model.integrate(floats(start), scheduleOf(steps));
    assert.ok(agree(losses, expected), JSON.stringify(settings));
    assert.ok(distance(states, ends) < 1e-8, JSON.stringify(settings));
  }
  const [{ model: settings, start, ...steps }] = cases;
  const wild = { ...scheduleOf(steps), rates: new Float64Array(100).fill(1e9) };
  const { losses } = core.teacherStudent(settings).integrate(floats(start), wild);
  assert.ok(losses.slice(0, settings.tasks).every(Number.isFinite) && Number.isNaN(losses.at(-1)));
});

test("a divergence ends a training", () => {
  const [{ model: settings, start, weights, ...schedule }] = cases;
  const steps = schedule.lengths.length;
  const wild = { ...scheduleOf(schedule), rates: new Float64Array(steps).fill(1e6) };
  const { value, byShares } = core.teacherStudent(settings).gradient(floats(start), wild, weights);
  assert.equal(value, Infinity);
  assert.ok(byShares.every((slope) => slope === 0));
});

test("reference losses of plain protocols", () => {
  for (const { hidden, teacher_overlaps: overlaps, start, ...problem } of cases) {
    const model = core.teacherStudent({ hidden, tasks: 2, overlaps, accuracy: 1e-10 });
    const { steps, duration, lr, final_losses_per_task: ends } = problem;
    const names = ["task 1 only", "task 2 only", "shares 1/2, 1/2"];
    names.push("alternating every step, task 1 first");
    const firsts = [() => 1, () => 0, () => 0.5, (i) => 1 - (i % 2)];
    const state = floats([start.Q, start.M, start.V].flat(2));
    firsts.forEach((first, j) => {
      const shares = new Float64Array(2 * steps).map((_, i) =>
        i % 2 ? 1 - first(i >> 1) : first(i >> 1),
      );
      const rates = new Float64Array(steps).fill(lr);
      const lengths = new Float64Array(steps).fill(duration / steps);
      const { losses } = model.integrate(state, { shares, rates, lengths });
      assert.ok(agree(losses.subarray(-2), ends[names[j]]), names[j]);
    });
  }
});

test("solutions have the library's relaxed values", () => {
  for (const { name, model: settings, start, relaxed, ...problem } of cases) {
    const model = core.teacherStudent(settings);
    const T = model.tasks;
    const { steps, duration, weights, freeShares, freeRates, range } = problem;
    const shares = new Float64Array(steps * T).fill(1 / T);
    const rates = new Float64Array(steps).fill(1);
    const told = [];
    const begin = { ...problem, substeps: 1, shares, rates };
    const { value, ...controls } = minimise(model, floats(start), begin, (x) => told.push(x.value));
    assert.ok(value < 1.005 * relaxed, `${name}: ${value}, ${relaxed}`);
    assert.ok(told.at(-1) === value && told.every((x, i) => i === 0 || x < told[i - 1]));
    const lengths = new Float64Array(steps).fill(duration / steps);
    const accurate = { ...controls, lengths, substeps: 16 };
    const again = model.gradient(floats(start), accurate, weights).value;
    assert.ok(Math.abs(again - value) < 1e-3 * value, `${name}: integrator ${again}, ${value}`);
    for (let i = 0; i < steps; i++) {
      const row = controls.shares.subarray(i * T, (i + 1) * T);
      const sum = row.reduce((total, share) => total + share, 0);
      assert.ok(Math.min(...row) >= 0 && Math.abs(sum - 1) < 1e-12, name);
    }
    assert.ok(controls.rates.every((rate) => rate >= range[0] && rate <= range[1]));
    if (freeShares === "given") assert.deepEqual(controls.shares, shares);
    if (freeShares === "constant")
      assert.ok(controls.shares.every((x, i, all) => x === all[i % T]));
    if (freeRates === "given") assert.deepEqual(controls.rates, rates);
    if (freeRates === "constant") assert.ok(controls.rates.every((x, i, all) => x === all[0]));
  }
});

test("SGD has the theory's mean", () => {
  const runs = 100;
  for (const { model: settings, start, dimension, marks, theory, ...steps } of cases) {
    const model = core.teacherStudent(settings);
    const schedule = scheduleOf(steps);
    const all = Array.from({ length: runs }, (_, seed) => {
      const losses = model.sgd(floats(start), schedule, dimension, seed);
      assert.equal(losses.length, (schedule.lengths.length + 1) * model.tasks);
      return floats(marks.flatMap((i) => Array.from({ length: 2 }, (_, t) => losses[2 * i + t])));
    });
    theory.forEach((loss, i) => {
      const mean = all.reduce((sum, losses) => sum + losses[i], 0) / runs;
      const squares = all.reduce((sum, losses) => sum + (losses[i] - mean) ** 2, 0);
      const error = Math.sqrt(squares / (runs - 1) / runs);
      // at N = 1000 the mean itself lies off the limit by about 1 / N of the loss
      const score = (mean - loss) / (error + (2 * loss) / dimension);
      assert.ok(Math.abs(score) < 4, `${settings.activation}: ${mean}, ${loss} at ${i}`);
    });
    const again = model.sgd(floats(start), schedule, dimension, 0);
    assert.ok(marks.every((mark, i) => again[2 * mark] === all[0][2 * i]));
    const still = { ...schedule, lengths: schedule.lengths.map(() => 1e-9) }; // without a sample
    const kept = model.sgd(floats(start), still, dimension, 0);
    assert.ok(kept.every((loss, i) => loss === kept[i % 2]));
    const wild = { ...schedule, rates: schedule.rates.map(() => 1e9) };
    assert.ok(Number.isNaN(model.sgd(floats(start), wild, dimension, 0).at(-1)));
  }
});
