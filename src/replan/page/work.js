/* Long work in a worker of its own, made from this script's text so that file:// works: cancelling
   is ending the worker. */

import { loadCore } from "./kernels.js";
import { minimise } from "./minimise.js";
import { WASM } from "./data.js";
import { STEPS, UNIT, bytesOf, equal, repeated } from "./state.js";
import { amounts, training } from "./training.js";

export async function core() {
  const packed = new Blob([bytesOf(WASM)]).stream();
  const stream = packed.pipeThrough(new DecompressionStream("deflate-raw"));
  return loadCore(await new Response(stream).arrayBuffer());
}

/** Run a job on a state. told({ progress } or { result } or { error }) is called unless the
    returned function, which cancels, was called before. */
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
    const it = training(await core(), state);
    const result = JOBS[job](it, state, start, (progress) => self.postMessage({ progress }));
    self.postMessage({ result });
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

const JOBS = { solve, levers, sgd };

/* The best protocol; see minimise.js. */
function solve({ model, full, most, weights }, state, start, told) {
  const { freeShares, duration } = state;
  const { shares, rates } = amounts(state, full);
  const isFixed = state.freeRates === "curve" && model.changes?.every((change) => change === 0);
  const freeRates = isFixed ? "constant" : state.freeRates;
  const fastest = (most * full) / UNIT;
  const largest = freeRates === "given" ? Math.max(1, ...rates) : fastest;
  const settings = {
    ...{ duration, steps: STEPS, weights, shares, rates, freeShares, freeRates },
    range: model.range ?? [0, fastest],
    substeps: state.law ? 1 : Math.ceil((largest * duration) / 25),
  };
  const found = minimise(model, start, settings, ({ value }) => told(value));
  if (model.changes) calm(found.rates, ...model.changes.map((x) => (x * duration) / STEPS));
  return found;
}

/* The largest rates below those given that fall and rise no faster: as `replan solve` plans. */
function calm(rates, fall, rise) {
  for (let i = 1; i < STEPS; i++) rates[i] = Math.min(rates[i], rates[i - 1] + rise);
  for (let i = STEPS - 2; i >= 0; i--) rates[i] = Math.min(rates[i], rates[i + 1] + fall);
}

/* The best losses with each lever alone, beside equal shares and the rates as drawn. */
function levers(it, state, start, told) {
  const plain = { ...state, shares: repeated(equal(state.tasks)) };
  const values = [];
  for (const [, freeShares, freeRates] of LEVERS) {
    values.push(solve(it, { ...plain, freeShares, freeRates }, start, () => {}).value);
    told(values);
  }
}

/* The losses of one run of SGD. */
function sgd({ model }, state, start) {
  const lengths = new Float64Array(STEPS).fill(state.duration / STEPS);
  return model.sgd(start, { ...amounts(state, 1), lengths }, state.dimension, state.seed);
}
