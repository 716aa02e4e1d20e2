/* Long work in a worker of its own, made from this script's text so that file:// works: cancelling
   is ending the worker. */

import { loadCore } from "./kernels.js";
import { Random } from "./random.js";
import { WASM } from "./data.js";
import { bytesOf } from "./problem.js";

export const core = () => loadCore(bytesOf(WASM));

/** Run a job. done(result) and progress(what) are called unless the returned function, which
    cancels, was called before. */
export function inWorker(job, done, progress = () => {}) {
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
  worker.postMessage(job);
  URL.revokeObjectURL(url);
  return () => worker.terminate();
}

/** In the worker: wait for the job. */
export function serve() {
  self.onmessage = async ({ data }) => {
    const model = (await core()).teacherStudent(data.model);
    self.postMessage({ result: JOBS[data.job](model, data) });
  };
}

const JOBS = {
  /* The best protocol; see minimise.js. */
  solve(model, { start, settings }) {
    const told = ({ value }) => self.postMessage({ progress: value });
    return model.solve(start, settings, told, () => false);
  },
  /* One run of SGD, with the task of every sample drawn by the shares. */
  sgd(model, { start, shares, rates, duration, dimension, seed, marks }) {
    const T = model.tasks;
    const steps = rates.length;
    const random = new Random(seed + 1000);
    const samples = Math.round(duration * dimension);
    const tasks = new Int32Array(samples);
    const sampleRates = new Float64Array(samples);
    for (let i = 0; i < samples; i++) {
      const step = Math.floor((i * steps) / samples);
      let left = random.uniform();
      let task = 0;
      while (task < T - 1 && (left -= shares[step * T + task]) >= 0) task++;
      tasks[i] = task;
      sampleRates[i] = rates[step];
    }
    const places = Array.from({ length: marks }, (_, i) => Math.round(((i + 1) * samples) / marks));
    return model.sgd(start, { tasks, rates: sampleRates }, dimension, seed, places);
  },
};
