/* The state as the address after #: short, for anybody. */

import { EXAMPLE } from "./data.js";
import { readLaw } from "./law.js";
import { stateOf } from "./training.js";
import {
  BEGINNING,
  MOST_TASKS,
  STEPS,
  UNIT,
  constant,
  newest,
  oneRate,
  segments,
} from "./problem.js";

const FREE = ["given", "constant", "curve"];
/* Of each part of the state but shares and rates: its key, and the words or [low, high] it may be. */
const PARTS = {
  step: ["p", [1, 11]],
  law: ["w"], // or "example"
  similarity: ["g", [0, 0.99]],
  hidden: ["k", [2, 6]],
  tasks: ["t", [1, MOST_TASKS]],
  activation: ["a", "erf", "relu", "linear"],
  noise: ["n", [0, 2]],
  duration: ["d", [1, 1e9]],
  seed: ["s", [1, 20]],
  start: ["x"],
  brush: ["b", [0, MOST_TASKS - 1]],
  ratesShown: ["lr", [0, 1]],
  freeShares: ["fr", ...FREE],
  freeRates: ["fl", ...FREE],
  luck: ["u", [0, 1]],
  levers: ["e", [0, 1]],
  units: ["v", [0, 1]],
  dimension: ["N", [0, 20000]],
};
const WHOLE = ["step", "hidden", "tasks", "seed", "brush", "dimension"];

/** The address of a state: only what differs from the beginning, but always the protocol. */
export function toAddress(state) {
  const { tasks: T, shares, rates } = state;
  const words = new URLSearchParams();
  for (const [name, [key]] of Object.entries(PARTS))
    if (state[name] !== BEGINNING[name]) words.set(key, +state[name] || state[name]);
  if (state.law === readLaw(EXAMPLE).text) words.set("w", "example");
  const column = (t) => runs(shares.filter((_, i) => i % T === t));
  words.set("r", Array.from({ length: T - 1 }, (_, t) => column(t)).join("~"));
  if (state.law || oneRate(state) !== UNIT) words.set("l", runs(rates));
  return `#${words}`;
}

/** The state of an address; what it lacks or has wrong is as at the beginning. */
export function fromAddress(address) {
  const words = new URLSearchParams(address.replace(/^#/, ""));
  const text = words.get("w") === "example" ? EXAMPLE : words.get("w");
  const law = text ? stateOf(readLaw(text)) : {};
  const state = { ...BEGINNING, ...law };
  for (const [name, [key, ...allowed]] of Object.entries(PARTS)) {
    const word = words.get(key);
    if (word === null) continue;
    if (!Array.isArray(allowed[0])) {
      if (allowed.length === 0 || allowed.includes(word)) state[name] = word;
      continue;
    }
    const [[low, high]] = allowed;
    const number = WHOLE.includes(name) ? Math.round(word) : Number(word);
    const isFlag = typeof BEGINNING[name] === "boolean";
    if (number >= low && number <= high) state[name] = isFlag ? number === 1 : number;
  }
  state.law = law.law ?? null;
  state.tasks = law.tasks ?? Math.max(2, Math.min(5, state.tasks));
  state.brush = Math.min(state.brush, state.tasks - 1);
  state.rates = fromRuns(words.get("l") ?? "") ?? state.rates ?? constant(UNIT);
  if (words.has("r") || !state.law) state.shares = sharesFrom(words.get("r") ?? "", state.tasks);
  return state;
}

function sharesFrom(text, T) {
  const columns = text
    .split("~")
    .slice(0, T - 1)
    .map(fromRuns);
  const shares = segments(T, [newest(T), 1]);
  if (columns.length < T - 1 || columns.includes(null)) return shares;
  for (let i = 0; i < STEPS; i++) {
    const row = columns.map((column) => column[i]);
    const left = UNIT - row.reduce((sum, x) => sum + x, 0);
    if (left >= 0) shares.set([...row, left], i * T);
  }
  return shares;
}

/* Numbers in runs: "90.0_160.dw" is 90 times 0, then 160 times 500, in base 36. */
function runs(values) {
  const parts = [];
  for (let i = 0, from = 0; i < values.length; i++)
    if (i + 1 === values.length || values[i + 1] !== values[i]) {
      parts.push(`${(i + 1 - from).toString(36)}.${values[i].toString(36)}`);
      from = i + 1;
    }
  return parts.join("_");
}

function fromRuns(text) {
  const values = text.split("_").flatMap((part) => {
    const [count, value] = part.split(".").map((x) => parseInt(x, 36));
    const ok = count > 0 && count <= STEPS && value >= 0 && value <= 5 * UNIT;
    return ok ? new Array(count).fill(value) : [];
  });
  return values.length === STEPS ? Int16Array.from(values) : null;
}
