/* What is on the page, as a plain object: the problem and the protocol that the visitor painted.

   Shares and rates are whole thousandths, so that a link, a file and the page have the same numbers.
   shares: steps rows of T, each with the sum 1000. */

import { STARTS } from "./data.js";

export const STEPS = 250;
export const UNIT = 1000; // of shares and rates
export const MAX_RATE = 5000;
const PRETRAINING = [
  [200, 5000], // time and RK4 steps on task 1, before the page begins: fine while it is learnt,
  [800, 3000], // coarser as little changes
];
const FINE = 4; // integrator steps a piece, at a rate of 1

export const BEGINNING = {
  step: 1,
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
  brush: 0,
  ratesShown: false,
  freeShares: true,
  freeRates: false,
  luck: false,
  dimension: 0, // of SGD; 0: none
};

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

export const constant = (rate) => new Int16Array(STEPS).fill(rate);

/** The learning rate in thousandths if it is the same throughout, or null. */
export const oneRate = ({ rates }) => (rates.every((x) => x === rates[0]) ? rates[0] : null);

/** What the best protocol depends on: a result for another key is outdated. */
export function problemKey(state) {
  const { similarity, hidden, tasks, activation, noise, duration, seed, start } = state;
  const fixed = [state.freeShares || [...state.shares], state.freeRates || [...state.rates]];
  return JSON.stringify([
    ...[similarity, hidden, tasks, activation, noise, duration, start ?? seed],
    fixed,
  ]);
}

/** The arguments of core.teacherStudent. */
export function modelSettings({ hidden, tasks, similarity, activation, noise }) {
  const overlaps = Array.from({ length: tasks }, (_, s) =>
    Array.from({ length: tasks }, (_, t) => (s === t ? 1 : similarity)),
  );
  return { hidden, tasks, overlaps, activation, noise };
}

/** The schedule of the protocol, fine enough for eight digits of the losses. */
export function schedule({ shares, rates, duration }) {
  return exact(
    Float64Array.from(shares, (x) => x / UNIT),
    Float64Array.from(rates, (x) => x / UNIT),
    duration,
  );
}

export function exact(shares, rates, duration) {
  const lengths = new Float64Array(STEPS).fill(duration / STEPS);
  const fast = Math.max(
    1,
    rates.reduce((a, b) => Math.max(a, b), 0),
  );
  return { shares, rates, lengths, substeps: Math.ceil((FINE * fast * duration) / 25) };
}

/** The overlaps after `replan`'s pretrain(task=0, duration=1000, seed=seed). */
export function pretrained(model, state, seed) {
  const { hidden: K, tasks: T } = state;
  const numbers = floats(STARTS.fresh[`${K},${T}`]).subarray(
    (seed - 1) * K * (K + 2 * T),
    seed * K * (K + 2 * T),
  );
  const Q = numbers.subarray(0, K * K);
  const along = numbers.subarray(K * K, K * (K + T));
  const place = Math.round(state.similarity * 100) * T * T;
  const frame = floats(STARTS.frames[T]).subarray(place, place + T * T);
  const M = new Float64Array(K * T);
  for (let k = 0; k < K; k++)
    for (let p = 0; p < T; p++)
      for (let j = 0; j < T; j++) M[k * T + p] += along[k * T + j] * frame[p * T + j];
  let now = Float64Array.from([...Q, ...M, ...numbers.subarray(K * (K + T))]);
  const shares = Float64Array.from({ length: T }, (_, t) => Number(t === 0));
  for (const [duration, substeps] of PRETRAINING) {
    const once = { shares, rates: [1], lengths: [duration], substeps };
    now = model.rollOut(now, once).states.slice(model.size);
  }
  return now;
}

/** Numbers that build.py or a link wrote as base64. */
export function floats(text) {
  return new Float64Array(bytesOf(text).buffer);
}

export function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
