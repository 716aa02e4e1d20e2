/* What the visitor takes along: files for the command line, and the picture. */

import { STEPS, UNIT, oneRate, rowsOf } from "./state.js";
import { amounts } from "./training.js";

const CONTROL = { given: "false", constant: '"constant"', curve: "true" };
const LOOKS = "fill stroke stroke-width stroke-dasharray paint-order opacity font".split(" ");

/** Files by name, of a page: { state, it: what is trained, losses, svg, parts: the layout } */
export const FILES = {
  "problem.toml"({ state, it }) {
    const { hidden: K, tasks: T, similarity, activation, noise, duration, seed } = state;
    const start = it.start(seed);
    const array = (from, to, width) => JSON.stringify(rowsOf(start.subarray(from, to), width));
    const [M, V] = [K * K, K * (K + T)];
    const begin =
      T === 2 && !state.start // as the library's seeds do
        ? `pretrain = { task = 1, duration = 1000.0, lr = 1.0, seed = ${seed} }`
        : `Q = ${array(0, M, K)}\nM = ${array(M, V, T)}\nV = ${array(V, start.length, K)}`;
    const constant = state.freeRates === "constant";
    const lr = `{ min = 0.0, max = 5.0, shared = true, constant = ${constant} }`;
    return `# What was painted is in protocol.json:
# replan evaluate problem.toml --protocol protocol.json
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
  },

  /* For the duration on the page. */
  "law.json"({ state: { law, duration } }) {
    const { training, ...file } = JSON.parse(law);
    return JSON.stringify({ ...file, training: { ...training, duration } });
  },

  "protocol.json"({ state, it: { full, most } }) {
    const { shares, rates } = amounts(state, full);
    const lr = most ? Array.from(rates) : undefined; // laws of shares have no rates
    return JSON.stringify({ duration: state.duration, shares: rowsOf(shares, state.tasks), lr });
  },

  "curves.csv"({ state: { duration }, it, losses }) {
    const header = ["time", ...it.losses.map((_, i) => `loss_${i + 1}`)];
    const rows = rowsOf(losses, it.losses.length);
    const lines = rows.map((row, step) => [(step * duration) / STEPS, ...row]);
    return [header, ...lines, ""].join("\n");
  },

  /* The picture with its looks written into it, for programs that know no style sheets. */
  "picture.svg"({ svg, parts: { width, height } }) {
    const copy = svg.cloneNode(true);
    const originals = svg.querySelectorAll("*");
    copy.querySelectorAll("*").forEach(({ style }, i) => {
      const looks = getComputedStyle(originals[i]);
      for (const look of LOOKS) style.setProperty(look, looks.getPropertyValue(look));
    });
    for (const [name, size] of Object.entries({ width, height })) copy.setAttribute(name, size);
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    return new XMLSerializer().serializeToString(copy);
  },

  /* The same at twice the pixels. */
  async "picture.png"(page) {
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(FILES["picture.svg"](page))}`;
    await image.decode();
    const canvas = new OffscreenCanvas(2 * image.width, 2 * image.height);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.convertToBlob();
  },
};
