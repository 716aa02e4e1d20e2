/* Long work in a worker of its own, made from this script's text so that file:// works: cancelling
   is ending the worker. */

import { loadCore } from "./kernels.js";
import { minimise, resampled } from "./minimise.js";
import { WASM } from "./data.js";
import { STEPS, UNIT, bytesOf, equal, repeated } from "./state.js";
import { amounts, finalMean, rollOut, training } from "./training.js";

export async function core() {
  const packed = new Blob([bytesOf(WASM)]).stream();
  const stream = packed.pipeThrough(new DecompressionStream("deflate-raw"));
  return loadCore(await new Response(stream).arrayBuffer());
}

/** Run a job on a state. Calls `told` with { progress }, { result } or { error }; returns a function
    that cancels. */
export function inWorker(job, state, start, told) {
  const text = document.getElementById("script").textContent;
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  const worker = new Worker(url);
  worker.onmessage = ({ data }) => told(data);
  worker.onerror = ({ message }) => told({ error: message });
  worker.postMessage({ job, state, start });
  URL.revokeObjectURL(url);
  return () => worker.terminate();
}

/** In the worker: wait for the job. */
export function serve() {
  self.onmessage = async ({ data: { job, state, start } }) => {
    try {
      const it = training(await core(), state);
      const result = JOBS[job](it, state, start, (progress) => self.postMessage({ progress }));
      self.postMessage({ result });
    } catch ({ message }) {
      self.postMessage({ error: message });
    }
    self.close();
  };
}

/** What may be free, by itself: its words, and the freedom of shares and rates. */
export const LEVERS = [
  ["nothing: equal shares", "given", "given"],
  ["constant shares", "constant", "given"],
  ["timing: shares over time", "curve", "given"],
  ["a constant learning rate", "given", "constant"],
  ["a learning rate over time", "given", "curve"],
  ["shares and rate over time", "curve", "curve"],
];

const FASTER = 2; // times the fastest rise and fall of a pilot's rate: those of a law's plans
export const JOBS = { solve, levers, luck, sgd };
export const SEEDS = Array.from({ length: 20 }, (_, i) => i + 1);

/* The best protocol; see minimise.js. A law plans on steps of its own. */
function solve({ model, full, most, weights }, state, start, told) {
  const { freeShares, duration, tasks: T } = state;
  const { steps = STEPS, changes, range = [0, (most * full) / UNIT] } = model;
  const drawn = amounts(state, full);
  const isFixed = state.freeRates === "curve" && changes?.every((change) => change === 0);
  let freeRates = isFixed ? "constant" : state.freeRates;
  if (freeRates !== "given" && range[0] === range[1]) {
    freeRates = "given";
    drawn.rates.fill(range[0]);
  }
  const largest = freeRates === "given" ? Math.max(1, ...drawn.rates) : range[1];
  const settings = {
    ...{ duration, steps, weights, freeShares, freeRates, range },
    shares: resampled(drawn.shares, T, steps),
    rates: resampled(drawn.rates, 1, steps),
    substeps: state.law ? 1 : Math.ceil((largest * duration) / 25),
  };
  const { shares, rates } = minimise(model, start, settings, ({ value }) => told(value));
  if (changes) calm(rates, ...changes.map((x) => (FASTER * x * duration) / steps));
  return { shares: resampled(shares, T, STEPS), rates: resampled(rates, 1, STEPS) };
}

/* The largest rates below those given that rise and fall no faster: as `replan solve` plans. */
function calm(rates, rise, fall) {
  for (let i = 1; i < rates.length; i++) rates[i] = Math.min(rates[i], rates[i - 1] + rise);
  for (let i = rates.length - 2; i >= 0; i--) rates[i] = Math.min(rates[i], rates[i + 1] + fall);
}

/* The losses from all starts. */
function luck(it, state) {
  return SEEDS.map((seed) => rollOut(it, amounts(state, it.full), state.duration, seed).losses);
}

/* The best losses with each lever alone, beside equal shares and the rates as drawn. */
function levers(it, state, start, told) {
  const plain = { ...state, shares: repeated(equal(state.tasks)) };
  const values = [];
  for (const [, freeShares, freeRates] of LEVERS) {
    const found = solve(it, { ...plain, freeShares, freeRates }, start, () => {});
    values.push(finalMean(it, rollOut(it, found, state.duration, state.seed).losses));
    told(values);
  }
  return values;
}

/* The losses of one run of SGD. */
function sgd({ model }, state, start) {
  const lengths = new Float64Array(STEPS).fill(state.duration / STEPS);
  return model.sgd(start, { ...amounts(state, 1), lengths }, state.sgd, state.seed);
}
