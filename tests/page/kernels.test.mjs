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
