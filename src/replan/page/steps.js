/* The lead: one preset a step, each with a sentence. `set` makes what differs from the beginning. */

import { UNIT, constant, equal, newest, segments } from "./problem.js";

const HALF = [500, 500];
const focus = () => segments(2, [[0, UNIT], 0.36], [[460, 540], 1]);

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
    say: `Learn task 2 alone until both losses meet, and only then replay task 1. Forgetting in
      between does no harm: only the end counts. Ask for the best and compare.`,
    set: () => ({ shares: focus() }),
  },
  {
    name: "Similarity",
    controls: ["similarity"],
    say: `Move the slider. Very different tasks and nearly equal tasks are easy to
      keep; see where in between most is forgotten, and ask for the best at each end.`,
    set: () => ({ shares: segments(2, [newest(2), 1]), similarity: 0.6 }),
  },
  {
    name: "Learning rate",
    controls: ["rate", "freeRates"],
    say: `A second curve to draw: the learning rate. Plain interleaving at one well-chosen constant
      rate, as here, ends lower than the best timing at rate 1. Draw a rate that falls to 0.`,
    set: () => ({ shares: segments(2, [HALF, 1]), rates: constant(2000), ratesShown: true }),
  },
  {
    name: "Levers",
    controls: ["similarity"],
    say: `What is worth tuning? Each bar is what one lever saves by itself, beside plain
      interleaving. Change the problem and see whether the order of the levers changes.`,
    set: () => ({ shares: segments(2, [HALF, 1]), levers: true }),
  },
  {
    name: "Three tasks",
    controls: ["tasks"],
    say: `Task 1 is known, tasks 2 and 3 are new. Choose which task you paint; the others share
      what is left. Up to five tasks are possible.`,
    set: () => ({
      ...{ tasks: 3, hidden: 3, duration: 50 },
      shares: segments(3, [newest(3), 0.4], [equal(3), 1]),
    }),
  },
  {
    name: "ReLU",
    controls: ["activation"],
    say: `The same with ReLU units, as in most networks of today. The formulas differ; does the
      shape of the best protocol?`,
    set: () => ({ activation: "relu", shares: focus() }),
  },
  {
    name: "Luck",
    controls: ["seed"],
    say: `The same training from twenty random starts, drawn as thin lines: how a network
      begins can matter more than how you train it. Start 1, drawn thick, is a lucky one.`,
    set: () => ({ luck: true, shares: focus() }),
  },
  {
    name: "Real SGD",
    controls: ["dimension"],
    say: `Crosses: stochastic gradient descent, sample by sample, in N dimensions; lines: the theory
      for infinitely many. Choose N, press Play, and watch what the hidden units learn.`,
    set: () => ({ dimension: 1000, units: true, shares: focus() }),
  },
  {
    name: "Your runs",
    controls: ["file"],
    say: `From your own pilot trainings: drop the law that “replan fit” wrote here (law.toml or .json),
      draw a schedule against it and plan the best. The file stays on your machine.`,
    set: () => ({ shares: focus() }),
  },
];
