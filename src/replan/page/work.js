/* Long work in a worker of its own, made from this script's text so that file:// works: cancelling
   is ending the worker. */

import { loadCore } from "./kernels.js";
import { minimise } from "./minimise.js";
import { WASM } from "./data.js";
import { STEPS, UNIT, bytesOf, constant, equal, oneRate, segments } from "./problem.js";
import { amounts, training } from "./training.js";

export async function core() {
  const packed = new Blob([bytesOf(WASM)]).stream();
  const stream = packed.pipeThrough(new DecompressionStream("deflate-raw"));
  return loadCore(await new Response(stream).arrayBuffer());
}

/** Run a job on a state. done(result) and progress(what) are called unless the returned function,
    which cancels, was called before. */
export function inWorker(job, state, start, done, progress = () => {}) {
  const text = document.getElementById("script").textContent;
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  const worker = new Worker(url);
  worker.onmessage = ({ data }) => {
    if ("progress" in data) return progress(data.progress);
    worker.terminate();
    done(data.result);
  };
  worker.onerror = (event) => {
    worker.terminate();
    done({ error: event.message });
  };
  worker.postMessage({ job, state, start });
  URL.revokeObjectURL(url);
  return () => worker.terminate();
}

/** In the worker: wait for the job. */
export function serve() {
  self.onmessage = async ({ data: { job, state, start } }) => {
    const it = training(await core(), state);
    const told = (progress) => self.postMessage({ progress });
    self.postMessage({ result: JOBS[job](it, state, start, told) });
  };
}

/** What may be free, by itself: its words, and the freedom of shares and rates. */
export const LEVERS = [
  ["nothing: equal shares, your rate", "given", "given"],
  ["one share for each task", "constant", "given"],
  ["when: shares over time", "curve", "given"],
  ["one learning rate", "given", "constant"],
  ["a learning rate over time", "given", "curve"],
  ["all of it", "curve", "curve"],
];

const JOBS = { solve, levers, sgd };

/* The best protocol; see minimise.js. */
function solve(it, state, start, told) {
  const { model, full, most, weights } = it;
  const { freeShares, freeRates, duration } = state;
  const { steps = STEPS, range = [0, (most * full) / UNIT], changes } = model; // a law has its own
  const { shares, rates } = amounts(state, full);
  const fastest = freeRates === "given" ? Math.max(1, ...rates) : full * (most / UNIT);
  const settings = {
    ...{ duration, steps, weights, freeShares, freeRates, range: range ?? [0, full] },
    substeps: state.law ? 1 : Math.ceil((fastest * duration) / 25),
    shares: onSteps(shares, STEPS, steps),
    rates: onSteps(rates, STEPS, steps),
  };
  const found = minimise(model, start, settings, ({ value }) => told(value));
  const best = {
    shares: onSteps(found.shares, steps, STEPS),
    rates: onSteps(found.rates, steps, STEPS),
  };
  if (changes) calm(best.rates, ...changes.map((change) => (change * duration) / STEPS));
  return { ...best, value: found.value };
}

/* Rows of pieces, on fewer or more of them. */
function onSteps(values, from, to) {
  const width = values.length / from;
  const at = (i) => Math.floor((Math.floor(i / width) * from) / to) * width + (i % width);
  return Float64Array.from({ length: to * width }, (_, i) => values[at(i)]);
}

/* The largest rates below those given that fall and rise no faster: as `replan solve` plans. */
function calm(rates, fall, rise) {
  for (let i = 1; i < STEPS; i++) rates[i] = Math.min(rates[i], rates[i - 1] + rise);
  for (let i = STEPS - 2; i >= 0; i--) rates[i] = Math.min(rates[i], rates[i + 1] + fall);
}

/* The best loss with each lever alone, all others at equal shares and one rate. */
function levers(it, state, start, told) {
  const plain = {
    ...state,
    shares: segments(state.tasks, [equal(state.tasks), 1]),
    rates: constant(oneRate(state) ?? UNIT),
  };
  for (const [, freeShares, freeRates] of LEVERS)
    told(solve(it, { ...plain, freeShares, freeRates }, start, () => {}).value);
}

/* The losses of one run of SGD. */
function sgd({ model }, { shares, rates, duration, dimension, seed }, start) {
  const lengths = new Float64Array(STEPS).fill(duration / STEPS);
  return model.sgd(start, { ...amounts({ shares, rates }, 1), lengths }, dimension, seed);
}
