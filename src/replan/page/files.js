/* What the visitor takes along: files for the command line, and the picture. */

import { STEPS, UNIT, oneRate, rowsOf } from "./state.js";
import { amounts, isLibrarys } from "./training.js";

const CONTROL = { given: "false", constant: '"constant"', curve: "true" };
/** The command that finds the best of the state, where there is one. */
export function solveCommand({ freeShares, freeRates, ...state }) {
  if (freeRates === "given" && (freeShares === "given" || oneRate(state) === null)) return "";
  const protocol = freeShares === "given" ? " --protocol protocol.json" : "";
  return `replan solve problem.toml${protocol}`;
}

const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font"];

/** Files by name. page: { state, it: what is trained, losses, svg, parts: the layout } */
export const FILES = {
  "problem.toml": problemFile,
  "law.json": lawFile,
  "protocol.json": protocolFile,
  "curves.csv": curvesFile,
  "picture.svg": svgFile,
  "picture.png": pngFile,
};

/* The law, for the duration on the page. */
function lawFile({ state: { law, duration } }) {
  const file = JSON.parse(law);
  return JSON.stringify({ ...file, training: { ...file.training, duration } });
}

/* As the command line reads it. */
function problemFile({ state, it }) {
  const { hidden: K, tasks: T, similarity, activation, noise, duration, seed } = state;
  const start = it.start(seed);
  const array = (from, to, width) => JSON.stringify(rowsOf(start.subarray(from, to), width));
  const [M, V] = [K * K, K * (K + T)];
  const begin = isLibrarys(state)
    ? `pretrain = { task = 1, duration = 1000.0, lr = 1.0, seed = ${seed} }`
    : `Q = ${array(0, M, K)}\nM = ${array(M, V, T)}\nV = ${array(V, start.length, K)}`;
  const constant = state.freeRates === "constant" ? ", constant = true" : "";
  const lr = `{ min = 0.0, max = 5.0, shared = true${constant} }`;
  const rate = oneRate(state);
  const notes = ["From the page: replan evaluate problem.toml --protocol protocol.json"];
  notes.push(solveCommand(state) || "What was painted cannot be kept by `replan solve`.");
  if (rate === null) notes.push("The learning rate that was drawn is in protocol.json alone.");
  return `# ${notes.join("\n# ")}
[model]
kind = "teacher-student"
hidden = ${K}
tasks = ${T}
similarity = ${similarity}
activation = "${activation}"
noise = ${noise}

[start]
${begin}

[training]
duration = ${duration}
steps = ${STEPS}
lr = ${(rate ?? UNIT) / UNIT}

[control]
tasks = ${CONTROL[state.freeShares]}
lr = ${state.freeRates === "given" ? "false" : lr}
`;
}

function protocolFile({ state, it: { full, most } }) {
  const { shares, rates } = amounts(state, full);
  const lr = most ? { lr: Array.from(rates) } : {};
  return JSON.stringify({ duration: state.duration, shares: rowsOf(shares, state.tasks), ...lr });
}

/* Time, losses, and the shares and rate of the step that begins there. */
function curvesFile({ state, it: { losses: lossNames, names, full }, losses }) {
  const { shares, rates } = amounts(state, full);
  const [T, L] = [names.length, lossNames.length];
  const numbered = (name, count) => Array.from({ length: count }, (_, t) => `${name}_${t + 1}`);
  const lines = rowsOf(losses, L).map((row, i) => {
    const step = Math.min(i, STEPS - 1);
    const controls = [...shares.subarray(step * T, (step + 1) * T), rates[step]];
    return [(i * state.duration) / STEPS, ...row, ...controls];
  });
  const header = ["time", ...numbered("loss", L), ...numbered("share", T), "lr"];
  return [header, ...lines, ""].join("\n");
}

/* The picture with its looks written into it. */
function svgFile({ svg, parts }) {
  const copy = svg.cloneNode(true);
  const originals = svg.querySelectorAll("*");
  [...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const look of LOOKS) node.style.setProperty(look, style.getPropertyValue(look));
  });
  copy.setAttribute("width", parts.width);
  copy.setAttribute("height", parts.height);
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}

/* The same at twice the pixels. */
async function pngFile(page) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([svgFile(page)], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: 2 * page.parts.width, height: 2 * page.parts.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
