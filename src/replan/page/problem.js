/* What is on the page, as a plain object: what is trained, and the protocol that the visitor painted.

   Shares and rates are whole thousandths, so that a link, a file and the page have the same numbers;
   a rate of 1000 is the learning rate `training().full`. shares: STEPS rows of T, each of sum 1000. */

export const STEPS = 250;
export const UNIT = 1000; // of shares and rates
export const MOST_TASKS = 12; // of a law; of a network 5

export const BEGINNING = {
  step: 1, // of the lead
  law: null, // the text of a law's file, or null for a network
  similarity: 0.3,
  hidden: 2,
  tasks: 2,
  activation: "erf",
  noise: 0,
  duration: 25,
  seed: 1,
  start: null, // the overlaps themselves, where they are not those of the seed
  shares: null,
  rates: null,
  brush: 0, // the task whose share is painted
  ratesShown: false,
  freeShares: "curve", // what the best may choose: "given", "constant" or "curve"
  freeRates: "given",
  luck: false,
  levers: false,
  units: false,
  dimension: 0, // of SGD; 0: none
};

/** The problem alone, for anything that depends on no protocol. */
const PROBLEM = [
  "law",
  "similarity",
  "hidden",
  "tasks",
  "activation",
  "noise",
  "duration",
  "start",
];

export const problemKey = (state) => JSON.stringify(PROBLEM.map((name) => state[name]));

/** What the best protocol depends on: a result for another key is outdated. */
export function bestKey(state) {
  const given = (free, values) => (free === "given" ? [...values] : free);
  const { seed, freeShares, freeRates, shares, rates } = state;
  return JSON.stringify([
    problemKey(state),
    seed,
    given(freeShares, shares),
    given(freeRates, rates),
  ]);
}

/** Pieces of [task shares in thousandths, until which fraction of the time] as rows of shares. */
export function segments(tasks, ...pieces) {
  const shares = new Int16Array(STEPS * tasks);
  let from = 0;
  for (const [row, until] of pieces) {
    const to = Math.round(until * STEPS);
    for (let i = from; i < to; i++) shares.set(row, i * tasks);
    from = to;
  }
  return shares;
}

/** Every task's share, as equal as thousandths allow. */
export function equal(tasks) {
  const row = new Array(tasks).fill(Math.floor(UNIT / tasks));
  row[0] += UNIT - row[0] * tasks;
  return row;
}

/** No replay: the new tasks alone. */
export const newest = (tasks) => (tasks > 1 ? [0, ...equal(tasks - 1)] : [UNIT]);

export const constant = (rate) => new Int16Array(STEPS).fill(rate);

/** Shares and rates as whole thousandths. */
export function rounded({ shares, rates }, tasks, full) {
  const whole = Int16Array.from(shares, (x) => Math.round(x * UNIT));
  for (let i = 0; i < whole.length; i += tasks) {
    const row = whole.subarray(i, i + tasks);
    row[row.indexOf(Math.max(...row))] += UNIT - row.reduce((sum, x) => sum + x, 0);
  }
  return { shares: whole, rates: Int16Array.from(rates, (x) => Math.round((x * UNIT) / full)) };
}

/** Whether a best changes tasks so often that only its means over a while matter, and these means. */
export function alternates(shares, T) {
  let changes = 0;
  for (let i = T; i < shares.length; i++) changes += Math.abs(shares[i] - shares[i - T]) > 0.5;
  return changes > STEPS / 5;
}

export const averaged = (values, width) =>
  values.map((_, i) => {
    const rows = values.filter((_, j) => j % width === i % width);
    const step = Math.floor(i / width);
    const near = rows.slice(Math.max(0, step - 8), step + 9);
    return near.reduce((sum, x) => sum + x, 0) / near.length;
  });

/** The learning rate in thousandths if it is the same throughout, or null. */
export const oneRate = ({ rates }) => (rates.every((x) => x === rates[0]) ? rates[0] : null);

/** Numbers as base64, and back. */
export const floats = (text) => new Float64Array(bytesOf(text).buffer);

export const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
