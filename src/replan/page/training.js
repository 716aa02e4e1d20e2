/* What is trained, in the terms that the page needs of a network and of a law alike:
   { model, start(seed), starts: by seed as far as computed, names: of tasks, losses: names of losses, weights: of losses, full: the
   learning rate of a thousand thousandths, most: thousandths at most, 0 where there is no rate, substeps(rates) }. */

import { STARTS } from "./data.js";
import { readLaw } from "./law.js";
import { BEGINNING, STEPS, UNIT, floats, rounded } from "./problem.js";

const MOST_RATE = 5; // of a network
const FINE = 4; // RK4 steps a piece for 25 units of time at a rate of 1
const PRETRAINING = [
  [200, 5000], // time and RK4 steps on task 1, before the page begins: fine while it is learnt,
  [800, 3000], // coarser as little changes
];

export const training = (core, state) => (state.law ? ofLaw(state) : ofNetwork(core, state));

/** Thousandths as shares, and as learning rates of which `full` is a thousand. */
export const amounts = ({ shares, rates }, full) => ({
  shares: Float64Array.from(shares, (x) => x / UNIT),
  rates: Float64Array.from(rates, (x) => (x * full) / UNIT),
});

/** The losses (STEPS + 1, L), and states, of a training from the start of a seed. */
export function rollOut({ model, start, substeps }, { shares, rates }, duration, seed) {
  const lengths = new Float64Array(STEPS).fill(duration / STEPS);
  const schedule = { shares, rates, lengths, substeps: substeps(rates) };
  return model.rollOut(start(seed), schedule);
}

/** The state that shows a law: the schedule of its best pilot, and what its plan may choose. */
export function stateOf(law) {
  const { tasks, duration, freeShares, freeRates, text } = law;
  return {
    ...{ ...BEGINNING, law: text, tasks, duration, freeShares, freeRates },
    ...rounded(law.best, tasks, fullOf(law)),
    ratesShown: law.peak !== null,
  };
}

const fullOf = (law) => (law.range ? law.range[1] : law.lr);

function ofLaw({ law }) {
  const model = readLaw(law);
  const { start, taskNames: names, lossNames: losses, weights } = model;
  return {
    ...{ model, names, losses, weights, full: fullOf(model), most: model.peak ? UNIT : 0 },
    ...{ start: () => start, starts: new Map(), substeps: () => 1 },
  };
}

function ofNetwork(core, state) {
  const { tasks, duration } = state;
  const model = core.teacherStudent(settings(state, state.similarity));
  const names = Array.from({ length: tasks }, (_, t) => `task ${t + 1}`);
  const starts = new Map();
  const start = (seed) => {
    if (!starts.has(seed))
      starts.set(seed, state.start ? floats(state.start) : pretrained(core, model, state, seed));
    return starts.get(seed);
  };
  const largest = (rates) => rates.reduce((a, b) => Math.max(a, b), 1);
  const substeps = (rates) => Math.ceil((FINE * largest(rates) * duration) / 25);
  const weights = new Float64Array(tasks).fill(1 / tasks);
  const most = MOST_RATE * UNIT;
  return { model, start, starts, names, losses: names, weights, full: 1, most, substeps };
}

function settings({ hidden, tasks, activation, noise }, similarity) {
  const row = (s) => Array.from({ length: tasks }, (_, t) => (s === t ? 1 : similarity));
  return {
    hidden,
    tasks,
    activation,
    noise,
    overlaps: Array.from({ length: tasks }, (_, s) => row(s)),
  };
}

/** Two tasks begin as the library's seeds; the files of others hold their start. */
export const isLibrarys = ({ tasks, start }) => tasks === 2 && !start;

const learnt = new Map(); // the students after task 1, beside unlike teachers

/* The overlaps after task 1 was learnt for a time of 1000. What a student has along directions that
   task 1 does not look at does not depend on the other teachers: it is computed beside unlike ones. */
function pretrained(core, model, state, seed) {
  const { hidden: K, tasks: T, activation, noise, similarity } = state;
  const key = JSON.stringify([K, T, activation, noise, seed, isLibrarys(state) && similarity]);
  if (!learnt.has(key)) {
    const unlike = core.teacherStudent(settings(state, 0));
    let now = isLibrarys(state) ? librarysFresh(K, similarity, seed) : unlike.fresh(seed);
    const shares = Float64Array.from({ length: T }, (_, t) => Number(t === 0));
    for (const [time, substeps] of PRETRAINING) {
      const once = { shares, rates: [1], lengths: [time], substeps };
      now = unlike.rollOut(now, once).states.slice(model.size);
    }
    learnt.set(key, now);
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
