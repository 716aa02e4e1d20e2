/* The state as the address after #, and as files for the command line. */

import { BEGINNING, MAX_RATE, STEPS, UNIT, constant, equal, oneRate, segments } from "./problem.js";

const KEYS = {
  ...{ step: "p", similarity: "g", hidden: "k", tasks: "t", activation: "a", noise: "n" },
  ...{ duration: "d", seed: "s", start: "x", shares: "r", rates: "l", brush: "b" },
  ...{ ratesShown: "lr", freeShares: "fr", freeRates: "fl", luck: "u", dimension: "N" },
};

/** Numbers in runs: "90.0_160.dw" is 90 times 0, then 160 times 500, in base 36. */
function runs(values) {
  const parts = [];
  for (let i = 0, from = 0; i < values.length; i++)
    if (i + 1 === values.length || values[i + 1] !== values[i]) {
      parts.push(`${(i + 1 - from).toString(36)}.${values[i].toString(36)}`);
      from = i + 1;
    }
  return parts.join("_");
}

function fromRuns(text, highest) {
  const values = text.split("_").flatMap((part) => {
    const [count, value] = part.split(".").map((x) => parseInt(x, 36));
    const ok = count > 0 && count <= STEPS && value >= 0 && value <= highest;
    return ok ? new Array(count).fill(value) : [];
  });
  return values.length === STEPS ? values : null;
}

/** The address of a state: only what differs from the beginning, but always the protocol. */
export function toAddress(state) {
  const words = [];
  for (const [name, key] of Object.entries(KEYS)) {
    const value = state[name];
    if (name === "shares") {
      const columns = Array.from({ length: state.tasks - 1 }, (_, t) =>
        runs(value.filter((_, i) => i % state.tasks === t)),
      );
      words.push(`${key}=${columns.join("~")}`);
    } else if (name === "rates") {
      if (oneRate(state) !== UNIT) words.push(`${key}=${runs(value)}`);
    } else if (value !== BEGINNING[name])
      words.push(`${key}=${encodeURIComponent(+value || value)}`);
  }
  return `#${words.join("&")}`;
}

const within = (text, low, high, or) => {
  const number = Number(text);
  return text !== null && number >= low && number <= high ? number : or;
};

/** The state of an address; what it lacks or has wrong is as at the beginning. */
export function fromAddress(address) {
  const words = new URLSearchParams(address.replace(/^#/, "").replaceAll("+", "%2B"));
  const get = (name) => words.get(KEYS[name]);
  const integer = (name, low, high) => Math.round(within(get(name), low, high, BEGINNING[name]));
  const yes = (name) => (get(name) === null ? BEGINNING[name] : get(name) === "1");
  const state = {
    ...BEGINNING,
    step: integer("step", 1, 9),
    similarity: within(get("similarity"), 0, 0.99, BEGINNING.similarity),
    hidden: integer("hidden", 2, 4),
    tasks: integer("tasks", 2, 3),
    activation: ["erf", "relu", "linear"].find((x) => x === get("activation")) ?? "erf",
    noise: within(get("noise"), 0, 2, 0),
    duration: within(get("duration"), 1, 200, BEGINNING.duration),
    seed: integer("seed", 1, 20),
    start: get("start"),
    brush: integer("brush", 0, 2),
    ratesShown: yes("ratesShown"),
    freeShares: get("freeShares") !== "false",
    freeRates: yes("freeRates"),
    luck: yes("luck"),
    dimension: integer("dimension", 0, 20000),
  };
  const { tasks: T } = state;
  if (!state.start) state.similarity = Math.round(state.similarity * 100) / 100;
  state.brush = Math.min(state.brush, T - 1);
  state.rates = Int16Array.from(
    (get("rates") && fromRuns(get("rates"), MAX_RATE)) || constant(UNIT),
  );
  state.shares = sharesFrom(get("shares"), T) ?? segments(T, [newest(T), 1]);
  return state;
}

function sharesFrom(text, T) {
  const columns = (text ?? "").split("~").map((column) => fromRuns(column, UNIT));
  if (columns.length !== T - 1 || columns.includes(null)) return null;
  const shares = new Int16Array(STEPS * T);
  for (let i = 0; i < STEPS; i++) {
    let left = UNIT;
    for (let t = 0; t < T - 1; t++) left -= shares[i * T + t] = columns[t][i];
    if (left < 0) return null;
    shares[i * T + T - 1] = left;
  }
  return shares;
}

/** No replay: the new tasks alone. */
export const newest = (T) => (T === 2 ? [0, UNIT] : [0, ...equal(T - 1)]);

/** problem.toml, as the command line reads it. */
export function problemFile(state, start) {
  const { hidden: K, tasks: T, similarity, activation, noise, duration } = state;
  const rows = (from, count, width) =>
    JSON.stringify(
      Array.from({ length: count }, (_, i) =>
        Array.from(start.subarray(from + i * width, from + (i + 1) * width)),
      ),
    );
  const begin = state.start
    ? `Q = ${rows(0, K, K)}\nM = ${rows(K * K, K, T)}\nV = ${rows(K * (K + T), T, K)}`
    : `pretrain = { task = 1, duration = 1000.0, lr = 1.0, seed = ${state.seed} }`;
  return `# From the page: replan evaluate problem.toml --protocol protocol.json
[model]
kind = "teacher-student"
hidden = ${K}
tasks = ${T}
similarity = ${similarity}
activation = "${activation}"
noise = ${noise}

[start]
${begin}

[training]
duration = ${duration}
steps = ${STEPS}
lr = ${(oneRate(state) ?? UNIT) / UNIT}

[control]
tasks = ${state.freeShares}
lr = ${state.freeRates ? "{ min = 0.0, max = 5.0 }" : "false"}
`;
}

/** protocol.json, as the command line reads it. */
export function protocolFile({ tasks: T, shares, rates, duration }) {
  const rows = Array.from({ length: STEPS }, (_, i) =>
    Array.from(shares.subarray(i * T, (i + 1) * T), (x) => x / UNIT),
  );
  return JSON.stringify({ duration, shares: rows, lr: Array.from(rates, (x) => x / UNIT) });
}

/** The curves: time, loss_1, …, and the shares and rate of the step that begins there. */
export function curvesFile({ tasks: T, shares, rates, duration }, losses) {
  const numbered = (name) => Array.from({ length: T }, (_, t) => `${name}_${t + 1}`);
  const lines = [["time", ...numbered("loss"), ...numbered("share"), "lr"].join(",")];
  for (let i = 0; i <= STEPS; i++) {
    const step = Math.min(i, STEPS - 1);
    lines.push(
      [
        (i * duration) / STEPS,
        ...losses.subarray(i * T, (i + 1) * T),
        ...Array.from(shares.subarray(step * T, (step + 1) * T), (x) => x / UNIT),
        rates[step] / UNIT,
      ].join(","),
    );
  }
  return lines.join("\n") + "\n";
}
