/* What is trained, in the terms that the page needs of a network and of a law alike. */

import { STARTS } from "./data.js";
import { readLaw } from "./law.js";
import { STEPS, UNIT, floats } from "./state.js";

const MOST_RATE = 5; // of a network
const PRETRAINING = 1000; // time on task 1, before the page begins
export const QUICK = 1e-5; // relative error of losses
export const ACCURATE = 1e-9;

/** { model, start(seed), names: of tasks, losses: names of losses,
    weights: of losses, full: the learning rate of a thousand thousandths, most: thousandths at most, 0
    where there is no rate } */
export const training = (core, state, accuracy = ACCURATE) =>
  state.law ? ofLaw(state) : ofNetwork(core, { ...state, accuracy });

/** Thousandths as shares, and as learning rates of which `full` is a thousand. */
export const amounts = ({ shares, rates }, full) => ({
  shares: Float64Array.from(shares, (x) => x / UNIT),
  rates: Float64Array.from(rates, (x) => (x * full) / UNIT),
});

/** The losses (STEPS + 1, L), and states, of a training from the start of a seed. */
export function rollOut({ model, start }, { shares, rates }, duration, seed) {
  const lengths = new Float64Array(STEPS).fill(duration / STEPS);
  return model.integrate(start(seed), { shares, rates, lengths });
}

function ofLaw({ law }) {
  const model = readLaw(law);
  const { start, taskNames: names, lossNames: losses, weights, full, peak } = model;
  const shown = { names, losses, weights, full, most: peak ? UNIT : 0 };
  return { model, ...shown, start: () => start };
}

function ofNetwork(core, state) {
  const { tasks, similarity } = state;
  const model = core.teacherStudent(settings(state, similarity));
  const names = Array.from({ length: tasks }, (_, t) => `task ${t + 1}`);
  const starts = new Map();
  const start = (seed) => {
    if (!starts.has(seed))
      starts.set(seed, state.start ? floats(state.start) : pretrained(core, model, state, seed));
    return starts.get(seed);
  };
  const weights = new Float64Array(tasks).fill(1 / tasks);
  const most = MOST_RATE * UNIT;
  return { model, start, names, losses: names, weights, full: 1, most };
}

function settings({ hidden, tasks, activation, noise, accuracy }, similarity) {
  const all = Array.from({ length: tasks }, (_, t) => t);
  const overlaps = all.map((s) => all.map((t) => (s === t ? 1 : similarity)));
  return { hidden, tasks, activation, noise, overlaps, accuracy };
}

/** Two tasks begin as the library's seeds; the files of others hold their start. */
export const isLibrarys = ({ tasks, start }) => tasks === 2 && !start;

const learnt = new Map(); // the students after task 1, beside unlike teachers

/* The overlaps after task 1 was learnt for a time of 1000. What a student has along directions that
   task 1 does not look at does not depend on the other teachers: it is computed beside unlike ones. */
function pretrained(core, model, state, seed) {
  const { hidden: K, tasks: T, similarity } = state;
  const own = { seed, similarity: isLibrarys(state) && similarity };
  const key = JSON.stringify({ ...settings(state, 0), ...own });
  if (!learnt.has(key)) {
    const unlike = core.teacherStudent(settings(state, 0));
    const first = isLibrarys(state) ? librarysFresh(K, similarity, seed) : unlike.fresh(seed);
    const times = [0, 1]; // further and further apart: learning slows down
    while (times.at(-1) < PRETRAINING) times.push(Math.min(1.25 * times.at(-1), PRETRAINING));
    const lengths = times.slice(1).map((time, i) => time - times[i]);
    const shares = Float64Array.from({ length: T * lengths.length }, (_, i) => Number(i % T === 0));
    const { states } = unlike.integrate(first, { shares, rates: lengths.map(() => 1), lengths });
    learnt.set(key, states.slice(-model.size));
  }
  return turned(learnt.get(key), K, T, similarity);
}

/* A state whose M is along orthogonal directions, beside T teachers of one similarity: teacher p is
   made of the directions before p, by as much as all later teachers are, and of its own. */
function turned(state, K, T, similarity) {
  const now = state.slice();
  for (let k = 0; k < K; k++)
    for (let p = 0, i = K * K + k * T, own = 1, common = similarity, sum = 0; p < T; p++, i++) {
      const part = common / Math.sqrt(own);
      now[i] = sum + Math.sqrt(own) * state[i];
      sum += part * state[i];
      own -= part * part;
      common -= part * part;
    }
  return now;
}

/* The library's fresh(seed) for two tasks: it draws along the teachers' difference and their sum. */
function librarysFresh(K, similarity, seed) {
  const size = K * (K + 4);
  const now = floats(STARTS[K]).slice((seed - 1) * size, seed * size);
  const [a, b] = [Math.sqrt((1 - similarity) / 2), Math.sqrt((1 + similarity) / 2)];
  for (let i = K * K; similarity && i < K * (K + 2); i += 2) {
    const [apart, together] = [now[i], now[i + 1]];
    now[i] = b * together - a * apart;
    now[i + 1] = a * together + b * apart;
  }
  return now;
}
