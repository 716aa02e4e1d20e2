/* The state of the page: the problem, the protocol that the visitor painted, and what is shown. All of
   it stands in the address after #, so that a link restores it; a preset is a link.

   Shares and rates are whole thousandths, so that a link, a file and the page have the same numbers;
   a rate of 1000 is the learning rate `training().full`. shares: STEPS rows of T, each of sum 1000. */

import { EXAMPLE } from "./data.js";
import { readLaw } from "./law.js";

export const STEPS = 250;
export const UNIT = 1000;
export const MOST_TIME = 200; // of a network
export const MOST = 5 * UNIT; // of a share or rate
const LAW_STEP = 11; // of the lead

// What a word of the address stands for, or undefined
const among =
  (...known) =>
  (word) =>
    known.find((x) => String(x) === word);
const number = (low, high) => (word) => [Number(word)].find((x) => low <= x && x <= high);
const whole = (low, high) => (word) => [number(low, high)(word)].find(Number.isInteger);
const text = (word) => word || undefined;
const free = among("given", "constant", "curve");

/* Of every part but the protocol: its key in the address, its value at the beginning, its words. */
const PARTS = {
  step: ["p", 0, whole(0, 11)], // of the lead; 0: none
  law: ["w", null, text], // the text of a law's file, or null for a network
  similarity: ["g", 0.3, number(0, 0.99)],
  hidden: ["k", 2, whole(2, 6)],
  tasks: ["t", 2, whole(2, 5)],
  activation: ["a", "erf", among("erf", "relu", "linear")],
  noise: ["n", 0, number(0, 0.5)],
  duration: ["d", 25, number(1e-30, 1e30)],
  start: ["x", null, text], // the overlaps themselves, where they are not those of the seed
  seed: ["s", 1, whole(1, 20)],
  brush: ["b", 0, whole(0, 1e6)], // the task whose share is painted
  pilot: ["i", -1, whole(-1, 1e6)], // whose losses are shown beside the law's
  ratesShown: ["lr", 0, whole(0, 1)],
  freeShares: ["fr", "curve", free], // what the best may choose
  freeRates: ["fl", "given", free],
  luck: ["u", 0, whole(0, 1)],
  levers: ["e", 0, whole(0, 1)],
  units: ["v", 0, whole(0, 1)],
  sgd: ["N", 0, among(0, 100, 300, 1000, 3000, 10000)], // its dimension; 0: none
};
const BEGINNING = Object.fromEntries(
  Object.entries(PARTS).map(([name, [, value]]) => [name, value]),
);

/** A part's value in words, or undefined where they are none. */
export const parsed = (name, word) => PARTS[name][2](word);

// What the results of long work depend on, beside the problem
const PROBLEM = Object.keys(PARTS).slice(1, 9);
const DEPENDS = {
  problem: [],
  levers: ["seed", "rates"],
  luck: ["rates", "shares"],
  sgd: ["seed", "rates", "shares", "sgd"],
};

/** A result for another key is outdated. */
export function keyOf(job, state) {
  const { freeShares, freeRates } = state;
  const kept = [freeShares === "given" && "shares", freeRates === "given" && "rates"];
  const parts = DEPENDS[job] ?? ["seed", "freeShares", "freeRates", ...kept];
  return JSON.stringify([...PROBLEM, ...parts].map((name) => state[name]));
}

/** Rows of numbers that are one after the other. */
export const rowsOf = (values, width) =>
  Array.from({ length: values.length / width }, (_, i) => [
    ...values.slice(i * width, (i + 1) * width),
  ]);

/** Steps with the same rate or shares. */
export const repeated = (row) => Int16Array.from(new Array(STEPS).fill(row).flat());

/** Parts of a whole in the same proportions, as whole numbers of that sum. */
export function proportional(parts, sum = UNIT) {
  const total = parts.reduce((a, b) => a + b);
  const row = Array.from(parts, (part) => Math.round((part / total) * sum));
  row[row.indexOf(Math.max(...row))] += row.reduce((left, x) => left - x, sum);
  return row;
}

/** The same share of every task; and no replay: the new tasks alone. */
export const equal = (tasks) => proportional(new Array(tasks).fill(1));
export const newest = (tasks) => [0, ...equal(tasks - 1)];

/** Shares and rates as whole thousandths. */
export const rounded = ({ shares, rates }, tasks, full) => ({
  shares: Int16Array.from(rowsOf(shares, tasks).flatMap((row) => proportional(row))),
  rates: Int16Array.from(rates, (x) => Math.round((x * UNIT) / full)),
});

/** The learning rate in thousandths if it is the same throughout, or null. */
export const oneRate = ({ rates }) => (rates.every((x) => x === rates[0]) ? rates[0] : null);

/** The state that shows a law, and what its plan may choose: with the schedule of a pilot, or, for the
    duration in the file, of the best. */
export function lawState(file, pilot) {
  const { text, tasks, duration, freeShares, freeRates, peak, best, full, pilots } = readLaw(file);
  const shown = { ...best, duration, ...pilots[pilot] };
  const law = { law: text, step: LAW_STEP, tasks, duration: shown.duration, freeShares, freeRates };
  pilot ??= pilots.findIndex(({ run }) => run === best.run);
  const protocol = rounded(shown, tasks, full);
  return { ...BEGINNING, ...law, pilot, ratesShown: Number(peak !== null), ...protocol };
}

/** The address of a state: what differs from the beginning, or all for a law, and the protocol. */
export function toAddress(state) {
  const words = new URLSearchParams();
  for (const [name, [key, value]] of Object.entries(PARTS))
    if (state[name] !== null && (state.law || state[name] !== value)) words.set(key, state[name]);
  if (state.law === readLaw(EXAMPLE).text) words.set("w", "example");
  words.set("r", runs(rowsOf(state.shares, state.tasks).map((row) => row.slice(0, -1))));
  words.set("l", runs(rowsOf(state.rates, 1)));
  return `#${words}`;
}

/** The state of an address; what it lacks is as at the beginning. */
export function fromAddress(address) {
  const words = new URLSearchParams(address.slice(1));
  const law = words.get("w");
  const state = law ? lawState(law === "example" ? EXAMPLE : law) : { ...BEGINNING };
  for (const [name, [key, , parse]] of Object.entries(PARTS))
    if (words.has(key) && !(law && ["law", "tasks"].includes(name)))
      state[name] = found(parse(words.get(key)));
  const { tasks: T, hidden: K, start, duration, brush } = state;
  found(brush < T && (law || (duration >= 1 && duration <= MOST_TIME)));
  found(!start || floats(start).length === K * (K + 2 * T));
  state.rates = fromRuns(words.get("l"), 1) ?? state.rates ?? repeated([UNIT]);
  state.shares = fromRuns(words.get("r"), T, UNIT) ?? state.shares ?? repeated(newest(T));
  return state;
}

function found(value) {
  if (value === undefined || value === false) throw new Error("a damaged address");
  return value;
}

/* Rows in runs: "90.0_160.dw" is 90 rows of 0, then 160 of 500, in base 36. */
function runs(rows) {
  const words = rows.map((row) => row.map((x) => `.${x.toString(36)}`).join(""));
  const parts = [];
  for (let from = 0, to; from < STEPS; from = to) {
    for (to = from + 1; words[to] === words[from];) to++;
    parts.push((to - from).toString(36) + words[from]);
  }
  return parts.join("_");
}

/* The numbers of runs of rows, or null. Where the rows' sum is known, their last numbers are left out. */
function fromRuns(word, width, sum) {
  if (word === null) return null;
  const rows = word.split("_").flatMap((run) => {
    const [count, ...row] = run.split(".").map((x) => parseInt(x, 36));
    if (sum) row.push(row.reduce((left, x) => left - x, sum));
    const fits = row.length === width && row.every((x) => x >= 0 && x <= MOST);
    return fits && count > 0 && count <= STEPS ? new Array(count).fill(row) : [];
  });
  return Int16Array.from(found(rows.length === STEPS && rows).flat());
}

/** Base64 as bytes, and as numbers. */
export const bytesOf = (word) => Uint8Array.from(atob(word), (letter) => letter.charCodeAt(0));
export const floats = (word) => new Float64Array(bytesOf(word).buffer);
