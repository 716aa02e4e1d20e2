/* What the visitor takes along: files for the command line, and the picture. */

import { STEPS, UNIT, oneRate } from "./problem.js";
import { amounts, isLibrarys } from "./training.js";

const CONTROL = { given: "false", constant: '"constant"', curve: "true" };

/** The content of a file by its name. page: { state, it: what is trained, losses, start, svg,
    parts: the layout } */
export function fileOf(name, page) {
  const { state, it, losses, start } = page;
  const files = {
    "problem.toml": () => problemFile(state, start),
    "protocol.json": () => protocolFile(state, it),
    "curves.csv": () => curvesFile(state, it, losses),
    "schedule.csv": () => {
      const { shares, rates } = amounts(state, it.full);
      return it.model.scheduleFile(shares, rates, state.duration);
    },
    "picture.svg": () => svgFile(page),
    "picture.png": () => pngFile(page),
  };
  return files[name]();
}

const rows = (values, width) =>
  Array.from({ length: values.length / width }, (_, i) =>
    Array.from(values.subarray(i * width, (i + 1) * width)),
  );

/* problem.toml, as the command line reads it. */
function problemFile(state, start) {
  const { hidden: K, tasks: T, similarity, activation, noise, duration, seed } = state;
  const array = (from, to, width) => JSON.stringify(rows(start.subarray(from, to), width));
  const begin = isLibrarys(state)
    ? `pretrain = { task = 1, duration = 1000.0, lr = 1.0, seed = ${seed} }`
    : `Q = ${array(0, K * K, K)}\nM = ${array(K * K, K * (K + T), T)}
V = ${array(K * (K + T), start.length, K)}`;
  const constant = state.freeRates === "constant" ? ", constant = true" : "";
  const lr = `{ min = 0.0, max = 5.0, shared = true${constant} }`;
  return `# From the page: replan evaluate problem.toml --protocol protocol.json
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
lr = ${(oneRate(state) ?? UNIT) / UNIT}

[control]
tasks = ${CONTROL[state.freeShares]}
lr = ${state.freeRates === "given" ? "false" : lr}
`;
}

/* protocol.json, as the command line reads it. */
function protocolFile(state, { full, most }) {
  const { shares, rates } = amounts(state, full);
  const lr = most ? { lr: Array.from(rates) } : {};
  return JSON.stringify({ duration: state.duration, shares: rows(shares, state.tasks), ...lr });
}

/* The curves: time, losses, and the shares and rate of the step that begins there. */
function curvesFile(state, { losses: lossNames, names, full }, losses) {
  const { shares, rates } = amounts(state, full);
  const [T, L] = [names.length, lossNames.length];
  const numbered = (name, count) => Array.from({ length: count }, (_, t) => `${name}_${t + 1}`);
  const lines = [["time", ...numbered("loss", L), ...numbered("share", T), "lr"]];
  for (let i = 0; i <= STEPS; i++) {
    const step = Math.min(i, STEPS - 1);
    const row = losses.subarray(i * L, (i + 1) * L);
    const shown = shares.subarray(step * T, (step + 1) * T);
    lines.push([(i * state.duration) / STEPS, ...row, ...shown, rates[step]]);
  }
  return lines.join("\n") + "\n";
}

/* The picture with its looks written into it. */
function svgFile({ svg, parts }) {
  const copy = svg.cloneNode(true);
  const looks = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font"];
  const originals = svg.querySelectorAll("*");
  [...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const look of looks) node.style.setProperty(look, style.getPropertyValue(look));
  });
  copy.setAttribute("width", parts.width);
  copy.setAttribute("height", parts.height);
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}

/* The same at twice the pixels. */
async function pngFile(page) {
  const image = new Image();
  const svg = new Blob([svgFile(page)], { type: "image/svg+xml" });
  image.src = URL.createObjectURL(svg);
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * page.parts.width;
  canvas.height = 2 * page.parts.height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
