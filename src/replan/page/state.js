/* The state of the page: the problem, the protocol that the visitor painted, and what is shown. All of
   it stands in the address after #, so that a link restores it; a preset is a link.

   Shares and rates are whole thousandths, so that a link, a file and the page have the same numbers;
   a rate of 1000 is the learning rate `training().full`. shares: STEPS rows of T, each of sum 1000. */

import { EXAMPLE } from "./data.js";
import { readLaw } from "./law.js";

export const STEPS = 250;
export const UNIT = 1000;
export const MOST_TIME = 200; // of a network
const LAW_STEP = 11; // of the lead

// What a word of the address stands for, or undefined
const among =
  (...known) =>
  (word) =>
    known.find((x) => String(x) === word);
const number = (low, high) => (word) => [Number(word)].find((x) => low <= x && x <= high);
const whole = (low, high) => (word) => [number(low, high)(word)].find(Number.isInteger);
const text = (word) => word;
const free = among("given", "constant", "curve");

/* Of every part but the protocol: its key in the address, its value at the beginning, its words. */
const PARTS = {
  step: ["p", 1, whole(1, 11)], // of the lead
  law: ["w", null, text], // the text of a law's file, or null for a network
  similarity: ["g", 0.3, number(0, 0.99)],
  hidden: ["k", 2, whole(2, 6)],
  tasks: ["t", 2, whole(2, 5)],
  activation: ["a", "erf", among("erf", "relu", "linear")],
  noise: ["n", 0, number(0, 0.5)],
  duration: ["d", 25, number(1, 1e9)],
  start: ["x", null, text], // the overlaps themselves, where they are not those of the seed
  seed: ["s", 1, whole(1, 20)],
  brush: ["b", 0, whole(0, 11)], // the task whose share is painted
  pilot: ["i", -1, whole(0, 99)], // whose losses are shown beside the law's
  ratesShown: ["lr", 0, whole(0, 1)],
  freeShares: ["fr", "curve", free], // what the best may choose
  freeRates: ["fl", "given", free],
  luck: ["u", 0, whole(0, 1)],
  levers: ["e", 0, whole(0, 1)],
  units: ["v", 0, whole(0, 1)],
  dimension: ["N", 0, among(0, 100, 300, 1000, 3000, 10000)], // of SGD; 0: none
};
const PROBLEM = Object.keys(PARTS).slice(1, 9); // law to start
const BEGINNING = Object.fromEntries(
  Object.entries(PARTS).map(([name, [, value]]) => [name, value]),
);

/** A part's value in words, or undefined where they are none. */
export const parsed = (name, word) => PARTS[name][2](word);

/** What the protocol does not change. */
export const problemKey = (state) => JSON.stringify(PROBLEM.map((name) => state[name]));

/** What the best protocol depends on: a result for another key is outdated. */
export function bestKey(state) {
  const { seed, freeShares, freeRates, shares, rates } = state;
  const given = [freeShares === "given" && [...shares], freeRates === "given" && [...rates]];
  return JSON.stringify([problemKey(state), seed, freeShares, freeRates, ...given]);
}

/** Steps with the same rate or shares. */
export const repeated = (row) =>
  Int16Array.from({ length: STEPS * row.length }, (_, i) => row[i % row.length]);

/** Every task's share, as equal as thousandths allow. */
export function equal(tasks) {
  const part = Math.floor(UNIT / tasks);
  return [UNIT - part * (tasks - 1), ...new Array(tasks - 1).fill(part)];
}

/** No replay: the new tasks alone. */
export const newest = (tasks) => [0, ...equal(tasks - 1)];

/** Shares and rates as whole thousandths. */
export function rounded({ shares, rates }, tasks, full) {
  const whole = Int16Array.from(shares, (x) => Math.round(x * UNIT));
  for (let i = 0; i < whole.length; i += tasks) {
    const row = whole.subarray(i, i + tasks);
    row[row.indexOf(Math.max(...row))] += UNIT - row.reduce((sum, x) => sum + x, 0);
  }
  return { shares: whole, rates: Int16Array.from(rates, (x) => Math.round((x * UNIT) / full)) };
}

/** The learning rate in thousandths if it is the same throughout, or null. */
export const oneRate = ({ rates }) => (rates.every((x) => x === rates[0]) ? rates[0] : null);

/** The state that shows a law: its best pilot, and what its plan may choose. */
export function lawState(file) {
  const law = readLaw(file);
  const { text, tasks, duration, freeShares, freeRates, peak, best, full } = law;
  const state = { ...BEGINNING, law: text, step: LAW_STEP, tasks, duration, freeShares, freeRates };
  const pilot = law.pilots.findIndex(({ run }) => run === best.run);
  return { ...state, ratesShown: Number(peak !== null), pilot, ...rounded(best, tasks, full) };
}

/** What shows another pilot of a law. */
export function pilotState({ law, tasks }, pilot) {
  const { full, best, pilots } = readLaw(law);
  const { duration, rates } = pilots[pilot];
  return { pilot, duration, ...rounded({ shares: best.shares, rates }, tasks, full) };
}

/** The address of a state: what differs from the beginning, and always the protocol. */
export function toAddress(state) {
  const { tasks: T, shares, rates } = state;
  const words = new URLSearchParams();
  for (const [name, [key, value]] of Object.entries(PARTS))
    if (state[name] !== value) words.set(key, state[name]);
  if (state.law === readLaw(EXAMPLE).text) words.set("w", "example");
  const columns = Array.from({ length: T - 1 }, (_, t) => shares.filter((_, i) => i % T === t));
  words.set("r", columns.map(runs).join("~"));
  words.set("l", runs(rates));
  return `#${words}`;
}

/** The state of an address; what it lacks or has wrong is as at the beginning. */
export function fromAddress(address) {
  const words = new URLSearchParams(address.slice(1));
  const law = words.get("w") ?? (words.get("p") === String(LAW_STEP) ? "example" : null);
  const state = law ? lawState(law === "example" ? EXAMPLE : law) : { ...BEGINNING };
  const T = (state.tasks = law ? state.tasks : (parsed("tasks", words.get("t")) ?? state.tasks));
  for (const [name, [key, , parse]] of Object.entries(PARTS))
    if (words.has(key) && !["law", "tasks"].includes(name))
      state[name] = parse(words.get(key)) ?? state[name];
  if (state.start && floats(state.start).length !== state.hidden * (state.hidden + 2 * T))
    throw new Error("the start does not fit the network");
  if (!law) state.duration = Math.min(state.duration, MOST_TIME);
  state.rates = fromRuns(words.get("l")) ?? state.rates ?? repeated([UNIT]);
  state.shares = sharesFrom(words.get("r"), T) ?? state.shares ?? repeated(newest(T));
  state.brush = Math.min(state.brush, T - 1);
  return state;
}

/* The shares of T tasks from those of all but the last. */
function sharesFrom(word, T) {
  const columns = word?.split("~").map(fromRuns) ?? [];
  if (columns.length !== T - 1 || columns.includes(null)) return null;
  const last = repeated([UNIT]).map((x, i) =>
    columns.reduce((left, column) => left - column[i], x),
  );
  if (last.some((x) => x < 0)) return null;
  return repeated([...columns, last]).map((_, i) => [...columns, last][i % T][Math.floor(i / T)]);
}

/* Numbers in runs: "90.0_160.dw" is 90 times 0, then 160 times 500, in base 36. */
function runs(values) {
  const parts = [];
  for (let from = 0, to; from < values.length; from = to) {
    for (to = from + 1; values[to] === values[from];) to++;
    parts.push(`${(to - from).toString(36)}.${values[from].toString(36)}`);
  }
  return parts.join("_");
}

function fromRuns(word) {
  const values = (word ?? "").split("_").flatMap((part) => {
    const [count, value] = part.split(".").map((x) => parseInt(x, 36));
    const fits = count > 0 && count <= STEPS && value >= 0 && value <= 5 * UNIT;
    return fits ? new Array(count).fill(value) : [];
  });
  return values.length === STEPS ? Int16Array.from(values) : null;
}

/** Base64 as bytes, and as numbers. */
export const bytesOf = (word) => Uint8Array.from(atob(word), (letter) => letter.charCodeAt(0));
export const floats = (word) => new Float64Array(bytesOf(word).buffer);
