/* The lead: one preset a step, each with a sentence. `set` makes what differs from the beginning. */

import { EXAMPLE } from "./data.js";
import { readLaw } from "./law.js";
import { stateOf } from "./training.js";
import { UNIT, constant, equal, newest, segments } from "./problem.js";

const HALF = [500, 500];
const focus = (until) => segments(2, [[0, UNIT], until], [[460, 540], 1]);

export const LEAD = [
  {
    name: "Forgetting",
    say: `The network knows task 1; now it sees task 2 only. Watch the orange curve climb: that is
      forgetting. Paint some orange on the bar, early or late, and see what it saves.`,
    set: () => ({ shares: segments(2, [newest(2), 1]) }),
  },
  {
    name: "Interleaving",
    say: `The plain cure: half of all samples come from task 1 again, all the time. Little is
      forgotten, but task 2 is learnt more slowly. Can you do better?`,
    set: () => ({ shares: segments(2, [HALF, 1]) }),
  },
  {
    name: "Focus, then replay",
    say: `Learn task 2 alone until both losses come close, and only then replay task 1. Forgetting in
      between does no harm: only the end counts. Paint the moment at which replay begins earlier or
      later, then ask for the best.`,
    set: () => ({ shares: focus(0.6) }),
  },
  {
    name: "Similarity",
    controls: ["similarity"],
    say: `Move the slider. Nearly equal tasks are easy to keep; most is forgotten in between, near 0.6,
      where tasks are alike enough to disturb each other. Ask for the best in several places.`,
    set: () => ({ shares: segments(2, [newest(2), 1]), similarity: 0.4 }),
  },
  {
    name: "Learning rate",
    controls: ["rate", "freeRates"],
    say: `A second curve to draw: the learning rate. Plain interleaving at one well-chosen constant
      rate, as here, ends lower than the best timing at rate 1. Draw a rate that falls gently, say
      from 3 to 1.5; then one that falls to 0, and too little is learnt in the end.`,
    set: () => ({
      ...{ shares: segments(2, [HALF, 1]), rates: constant(2000), ratesShown: true },
      ...{ freeShares: "given", freeRates: "curve" },
    }),
  },
  {
    name: "Levers",
    controls: ["similarity"],
    say: `What is worth tuning? Each bar is what the best choice of one thing saves, beside plain
      interleaving. Move the slider: what does timing still save when the tasks are nearly equal?`,
    set: () => ({ shares: segments(2, [HALF, 1]), levers: true }),
  },
  {
    name: "Three tasks",
    controls: ["tasks"],
    say: `Task 1 is known, the others are new. Choose which task you paint; the others share what is
      left. Ask for the best: the more tasks, the more there is to plan.`,
    set: () => ({
      ...{ tasks: 3, hidden: 3, duration: 50 },
      shares: segments(3, [newest(3), 0.4], [equal(3), 1]),
    }),
  },
  {
    name: "ReLU",
    controls: ["activation"],
    say: `The same with ReLU units, as in most networks of today. Other formulas, and replay that
      begins earlier: ask for the best, and compare its shape with that of the erf network.`,
    set: () => ({ activation: "relu", shares: focus(0.36) }),
  },
  {
    name: "Luck",
    controls: ["seed"],
    say: `The same training from twenty random starts, as thin lines; the thick one is yours. How a
      network begins can matter more than how you train it: start 1, which all other steps show, is
      the luckiest of the twenty.`,
    set: () => ({ luck: true, shares: focus(0.36) }),
  },
  {
    name: "Real SGD",
    controls: ["dimension"],
    say: `Crosses: stochastic gradient descent, sample by sample, with N inputs; lines: the theory for
      N → ∞. Choose N and see when they agree. Press Play: one hidden unit goes over to task 2, the
      other stays with task 1.`,
    set: () => ({ dimension: 1000, units: true, shares: focus(0.36) }),
  },
  {
    name: "Your runs",
    controls: ["file"],
    say: `A law predicts the loss of a training from its schedule; “replan fit” fits one to a few short
      trainings of yours, the pilots. This is an example: draw the learning rate, ask for the best,
      then choose your own law.toml, or drop it anywhere on the page.`,
    set: () => stateOf(readLaw(EXAMPLE)),
  },
];
