/* What is trained, in the terms that the page needs of a network and of a law alike. */

import { STARTS } from "./data.js";
import { readLaw } from "./law.js";
import { MOST, STEPS, UNIT, floats, keyOf } from "./state.js";

const PRETRAINING = 1000; // time on task 1, before the page begins
export const QUICK = 1e-5; // relative error of losses
export const ACCURATE = 1e-9;

/** { model, start(seed), names: of tasks, losses: names of losses,
    weights: of losses, full: the learning rate of a thousand thousandths, most: thousandths at most, 0
    where there is no rate } */
export function training(core, state, accuracy = ACCURATE) {
  const key = keyOf("problem", state) + accuracy;
  made[key] ??= state.law ? ofLaw(state) : ofNetwork(core, { ...state, accuracy });
  return made[key];
}
const made = {}; // each once: what is painted changes none of it

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

/** The weighted mean of the losses at the end. */
export function finalMean({ weights }, losses) {
  const last = losses.slice(-weights.length);
  return weights.reduce((sum, weight, i) => sum + weight * last[i], 0);
}

function ofLaw({ law }) {
  const model = readLaw(law);
  const { start, taskNames: names, lossNames: losses, weights, full, peak } = model;
  const shown = { names, losses, weights, full, most: peak ? UNIT : 0 };
  return { model, ...shown, start: () => start };
}

function ofNetwork(core, { hidden, tasks, similarity, activation, noise, accuracy, start }) {
  const names = Array.from({ length: tasks }, (_, t) => `task ${t + 1}`);
  const overlaps = names.map((s) => names.map((t) => (s === t ? 1 : similarity)));
  const model = core.teacherStudent({ hidden, tasks, overlaps, activation, noise, accuracy });
  const learnt = []; // the students after task 1, by their seed
  const afterTask1 = (seed) =>
    (learnt[seed] ??= pretrained(model, fresh(hidden, tasks, similarity, seed)));
  const weights = new Float64Array(tasks).fill(1 / tasks);
  const shown = { names, losses: names, weights, full: 1, most: MOST };
  return { model, ...shown, start: start ? () => floats(start) : afterTask1 };
}

/* The state after a time of 1000 on task 1 alone, by pieces that grow: learning slows down. */
function pretrained(model, start) {
  const times = [0, 1];
  while (times.at(-1) < PRETRAINING) times.push(Math.min(1.25 * times.at(-1), PRETRAINING));
  const lengths = times.slice(1).map((time, i) => time - times[i]);
  const rates = lengths.map(() => 1);
  const shares = lengths.flatMap(() => [1, ...new Array(model.tasks - 1).fill(0)]);
  return model.integrate(start, { shares, rates, lengths }).states.slice(-model.size);
}

/* The overlaps of random weights. Those beside two teachers are the library's fresh(seed), which draws
   along their difference and their sum, or along themselves if they are orthogonal. More teachers
   share a direction, and take what the next seeds draw for two. */
function fresh(K, T, similarity, seed) {
  const starts = [0, 1, 2].map((i) => STARTS[K][(seed - 1 + i) % STARTS[K].length].map(floats));
  const draws = starts.flatMap(([, x, y]) => [x, y]);
  const [x, y, , , , common] = draws;
  const [apart, shared] = [Math.sqrt(1 - similarity), Math.sqrt(similarity)];
  const M = Array.from({ length: K }, (_, k) => {
    if (T > 2 || similarity === 0)
      return draws.slice(0, T).map((own) => apart * own[k] + shared * common[k]);
    const [difference, sum] = [apart * x[k], Math.sqrt(1 + similarity) * y[k]];
    return [sum - difference, sum + difference].map((overlap) => Math.SQRT1_2 * overlap);
  });
  const V = starts.flatMap(([, , , heads]) => Array.from(heads)).slice(0, T * K);
  return Float64Array.of(...starts[0][0], ...M.flat(), ...V);
}
