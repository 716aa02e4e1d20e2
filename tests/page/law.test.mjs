// Run by test_law.py, which writes the library's numbers to the file EXPECTED.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { readLaw } from "../../src/replan/page/law.js";

const cases = JSON.parse(readFileSync(process.env.EXPECTED));
const pilots = readFileSync(process.env.PILOTS, "utf8");

const floats = (values) => Float64Array.from(values);

const plain = (law) => JSON.stringify({ ...law, notes: null, text: null });

/** Whether numbers agree, relative to each, or to the largest. */
function agree(got, expected, accuracy, each = true) {
  const largest = expected.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  assert.equal(got.length, expected.length);
  expected.forEach((x, i) => {
    const scale = each ? Math.abs(x) : largest;
    assert.ok(Math.abs(got[i] - x) <= accuracy * scale, `${got[i]}, not ${x}, at ${i}`);
  });
}

const scheduleOf = ({ shares, rates, lengths }) => ({
  shares: floats(shares),
  rates: floats(rates),
  lengths: floats(lengths),
  substeps: 2,
});

test("losses and gradients equal the library's", () => {
  for (const expected of cases) {
    const law = readLaw(expected.toml);
    const schedule = scheduleOf(expected);
    const { losses } = law.integrate(law.start, schedule);
    const states = [law.start, ...law.relax(law.start, schedule).map(({ to }) => to)];
    // the library's slowest rates are 1e-9 of the peak, and 1e-12 for shares; the page's are 0
    agree(
      states.flatMap((state) => [...state]),
      expected.states,
      1e-9,
      false,
    );
    agree(losses, expected.losses, 1e-9);
    const end = losses.subarray(-law.lossNames.length);
    const gradient = law.gradient(law.start, schedule, floats(expected.weights));
    const value = end.reduce((sum, loss, i) => sum + expected.weights[i] * loss, 0);
    agree([gradient.value], [value], 1e-14);
    agree(gradient.byRates, expected.byRates, 1e-8, false);
    if (expected.peak) continue;
    const [byShares, others] = [gradient.byShares, expected.byShares].map((slopes) =>
      slopes.map((slope, i) => slope - slopes[i - (i % law.tasks)]),
    ); // as shares have the sum 1, only differences matter
    agree(byShares, others, 1e-9, false);
  }
});

test("a law is read from TOML and JSON", () => {
  for (const expected of cases) {
    const law = readLaw(expected.toml);
    const file = JSON.parse(expected.json);
    assert.deepEqual([law.taskNames, law.lossNames], expected.names);
    assert.deepEqual(
      [law.tasks, law.lossNames.length],
      expected.names.map((names) => names.length),
    );
    assert.deepEqual(Array.from(law.start), expected.start);
    assert.deepEqual(Array.from(law.weights), file.objective.weights);
    assert.equal(law.duration, file.training.duration);
    assert.deepEqual(law.notes, []);
    assert.deepEqual(readLaw(expected.json).notes, ["A WARNING"]);
    const [asJson, edited] = [expected.json, `# edited\n${expected.toml.replaceAll("\n", "\r\n")}`];
    for (const text of [asJson, edited]) {
      assert.equal(plain(readLaw(text)), plain(law));
      const { fit, ...sections } = JSON.parse(readLaw(text).text); // for the command line
      assert.deepEqual({ ...sections, fit: file.fit }, { ...file, fit: file.fit });
      assert.deepEqual(fit.warnings, readLaw(text).notes);
    }
  }
});

test("a law of rates has the library's bounds", () => {
  for (const expected of cases) {
    const law = readLaw(expected.toml);
    if (!expected.peak) {
      assert.deepEqual([law.peak, law.full], [null, 1]);
      assert.deepEqual([law.freeShares, law.freeRates], ["curve", "given"]);
      continue;
    }
    assert.deepEqual([law.freeShares, law.freeRates], ["given", "curve"]);
    assert.deepEqual([law.peak, law.range], [expected.peak, expected.range]);
    const largest = law.pilots.map(({ rates }) => Math.max(...rates));
    assert.equal(law.full, Math.max(expected.range[1], ...largest)); // all can be drawn
    assert.deepEqual(law.changes, expected.changes);
    agree(law.best.rates, expected.best, 1e-4, false); // its times are rounded there
  }
});

test("a drawn schedule is evaluated as by the library", () => {
  for (const expected of cases) {
    const law = readLaw(expected.toml);
    const { shares, rates } = scheduleOf(expected);
    const { losses } = law.integrate(law.start, { shares, rates, lengths: floats(expected.even) });
    agree(losses.subarray(-law.lossNames.length), expected.evaluated, 1e-9);
  }
});

/** Check that an error is one plain sentence that mentions what is expected. */
function refused(read, word) {
  assert.throws(read, ({ message }) => {
    assert.match(message, /^[^\n]+\.$/);
    assert.ok(!/[.!?] [A-Z]/.test(message) && message.includes(word), `${message} ${word}`);
    return true;
  });
}

test("other files are refused in a sentence", () => {
  const others = [
    "",
    "hello",
    pilots,
    "[1, 2]",
    "null",
    "{}",
    "3",
    '{"model": {"kind": "teacher-student"}}',
  ];
  for (const text of others) refused(() => readLaw(text), "replan fit");
  for (const { toml, json } of cases) {
    for (let end = 1; end < toml.indexOf("[limits]") - 3; end += 101)
      refused(() => readLaw(toml.slice(0, end)), "must be");
    for (let end = 1; end < json.length; end += 101)
      refused(() => readLaw(json.slice(0, end)), "replan fit");
    const first = /laws = (\[+)[^,]+/;
    for (const number of ["nan", "-inf"])
      // replan writes none
      refused(() => readLaw(toml.replace(first, `laws = $1${number}`)), "must be a law");
    for (const number of ["1e999", '"a"', "true", "[0.1]"])
      refused(() => readLaw(toml.replace(first, `laws = $1${number}`)), "`model.laws` must be");
    refused(() => readLaw(toml.replace(first, "laws = $10.5, 0.5")), "`model.laws` must be n × ");
    refused(() => readLaw(toml.replace("state = [", "state = [1.0, ")), "`start.state` must be");
    refused(() => readLaw(toml.replace(/unit = \S+/, "unit = 0")), "`model.unit` must be");
    refused(() => readLaw(`${toml}max_replay = 0.3\n`), "`max_replay` must be absent");
    const edit = (change) => () => {
      const file = JSON.parse(json);
      change(file);
      return readLaw(JSON.stringify(file));
    };
    refused(
      edit((file) => delete file.training),
      "`training.duration` must be",
    );
    refused(
      edit((file) => delete file.model.covered),
      "`model.covered.",
    );
    refused(
      edit((file) => (file.model.covered.horizon = "3")),
      "`model.covered.",
    );
    refused(
      edit((file) => (file.model.domains = file.model.peak = [3])),
      "`model.",
    );
    refused(
      edit((file) => file.objective.weights.push(1)),
      "`objective.weights` must be",
    );
    refused(
      edit((file) => (file.objective.goal = "worst")),
      "`goal` must be absent",
    );
  }
});

test("pilots are drawn as they were logged", () => {
  for (const { json, runs } of cases) {
    const { pilots, begin } = readLaw(json);
    assert.deepEqual(
      pilots.map(({ run }) => run),
      runs.map(({ run }) => run),
    );
    pilots.forEach(({ duration, rates, steps, losses }, i) => {
      assert.equal(begin + duration, runs[i].end);
      agree(rates, runs[i].rates, 1e-3, false); // at most 60 corners are kept
      assert.ok(steps.length > 15 && steps[0] >= 0 && steps.at(-1) === duration);
      assert.ok(Math.abs(losses.at(-1) / runs[i].loss - 1) < 1e-4);
    });
  }
});
