/* The picture, as one SVG: curves on top, the painted bar below, the best behind both. It draws what
   it is given; colours are CSS variables, so that dark mode needs no redrawing. */

import { STEPS, UNIT, MAX_RATE } from "./problem.js";

const LEFT = 52;
const RIGHT = 62;
const GAP = 30;

/** Where the parts of the picture are, for a width and a screen `tall` pixels. */
export function layout(width, tall, { ratesShown, best }) {
  const part = (low, high, ...sizes) => Math.max(low, Math.min(high, ...sizes));
  const curves = part(170, 560, width * 0.36, tall * (ratesShown ? 0.24 : 0.31));
  const bar = part(84, 200, width * 0.2, tall * 0.13);
  const parts = { width, left: LEFT, right: width - RIGHT, curves: { top: 14, height: curves } };
  let y = 14 + curves + GAP;
  parts.bar = { top: y, height: bar };
  y += bar;
  if (best) {
    parts.best = { top: y + 8, height: 26 };
    y += 34;
  }
  if (ratesShown) {
    parts.rates = { top: y + GAP, height: bar };
    y += GAP + bar;
  }
  parts.axis = y;
  parts.height = y + 40;
  return parts;
}

/** The picture as the inside of an svg. content: { losses, many: [losses], best: { losses, shares,
    rates, outdated }, crosses: { losses, marks } }, each losses (steps + 1) × T. */
export function picture(parts, state, content) {
  const { left, right } = parts;
  const x = (step) => left + ((right - left) * step) / STEPS;
  const [low, high] = range(content);
  const { top, height } = parts.curves;
  const clipped = (loss) => Math.max(low, Math.min(high, loss));
  const y = (loss) => top + height * (1 - Math.log(clipped(loss) / low) / Math.log(high / low));
  const out = [];
  out.push(...grid(parts, low, high, y, state));
  for (const losses of content.many) out.push(...curves(losses, state.tasks, x, y, "faint"));
  const { best } = content;
  if (best) {
    const look = best.outdated ? "best outdated" : "best";
    out.push(...curves(best.losses, state.tasks, x, y, look));
    out.push(`<g class="${look}">${shareBar(parts.best, best.shares, 1, state, x)}</g>`);
    out.push(
      text(right + 6, parts.best.top + 17, best.outdated ? "outdated" : "the best", "small"),
    );
  }
  out.push(...curves(content.losses, state.tasks, x, y, "yours"));
  if (content.crosses) out.push(...crosses(content.crosses, state.tasks, x, y));
  out.push(...endLabels(content.losses, state.tasks, right, y, parts));
  out.push(shareBar(parts.bar, state.shares, UNIT, state, x), ...barLabels(parts, state));
  if (parts.rates) out.push(...rateCurves(parts.rates, state, best, x, parts));
  return out.join("");
}

/* The decades that hold all curves. */
function range({ losses, best, many }) {
  let low = Infinity;
  let high = 0;
  const ends = many.map((one) => one.slice(-one.length / (STEPS + 1)));
  for (const one of [losses, ...(best ? [best.losses] : []), ...ends])
    for (const loss of one)
      if (loss > 0 && loss < 100) {
        low = Math.min(low, loss);
        high = Math.max(high, loss);
      }
  if (low > high) return [1e-6, 1];
  const floor = Math.max(-8, Math.floor(Math.log10(low)));
  return [10 ** floor, Math.max(10 ** (floor + 2), high * 1.3)];
}

const round = (number) => Math.round(number * 10) / 10;

function text(x, y, words, look, anchor = "start") {
  return `<text x="${round(x)}" y="${round(y)}" class="${look}" text-anchor="${anchor}">${words}</text>`;
}

function line(x1, y1, x2, y2, look) {
  return `<path class="${look}" d="M${round(x1)} ${round(y1)}L${round(x2)} ${round(y2)}"/>`;
}

const SUPERSCRIPTS = {
  "-": "⁻",
  0: "⁰",
  1: "¹",
  2: "²",
  3: "³",
  4: "⁴",
  5: "⁵",
  6: "⁶",
  7: "⁷",
  8: "⁸",
};

function grid(parts, low, high, y, { duration }) {
  const { left, right, axis } = parts;
  const out = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); 10 ** power <= high; power++) {
    const height = y(10 ** power);
    const label =
      power === 0 ? "1" : `10${[...String(power)].map((x) => SUPERSCRIPTS[x]).join("")}`;
    out.push(
      line(left, height, right, height, "rule"),
      text(left - 6, height + 4, label, "small", "end"),
    );
  }
  const every = duration / 5;
  for (let i = 0; i <= 5; i++) {
    const at = left + ((right - left) * i) / 5;
    out.push(line(at, axis, at, axis + 5, "tick"));
    out.push(text(at, axis + 18, String(+(i * every).toFixed(1)), "small", "middle"));
  }
  out.push(text((left + right) / 2, axis + 34, "training time α", "small", "middle"));
  out.push(text(left, 10, "loss (error on each task)", "small"));
  return out;
}

function curves(losses, tasks, x, y, look) {
  return Array.from({ length: tasks }, (_, t) => {
    let path = "";
    for (let i = 0; i * tasks < losses.length; i++) {
      const loss = losses[i * tasks + t];
      if (!Number.isFinite(loss)) break;
      path += `${i === 0 ? "M" : "L"}${round(x(i))} ${round(y(loss))}`;
    }
    return `<path class="curve ${look} task${t + 1}" d="${path}"/>`;
  });
}

function crosses({ losses, marks }, tasks, x, y) {
  const out = [];
  for (let t = 0; t < tasks; t++) {
    let path = "";
    for (let i = 0; i < marks; i++) {
      const [a, b] = [x(((i + 1) * STEPS) / marks), y(losses[i * tasks + t])];
      if (Number.isFinite(b)) path += `M${round(a - 4)} ${round(b - 4)}l8 8m0 -8l-8 8`;
    }
    out.push(`<path class="cross task${t + 1}" d="${path}"/>`);
  }
  return out;
}

/* Names at the ends of the curves, moved apart where they would overlap. */
function endLabels(losses, tasks, right, y, { curves: { top, height } }) {
  const ends = Array.from({ length: tasks }, (_, t) => {
    const loss = losses[STEPS * tasks + t];
    return { t, at: Number.isFinite(loss) ? y(loss) + 4 : top + 10 };
  }).sort((a, b) => a.at - b.at);
  for (let i = 1; i < tasks; i++) ends[i].at = Math.max(ends[i].at, ends[i - 1].at + 14);
  const over = ends[tasks - 1].at - (top + height + 4);
  if (over > 0) for (const end of ends) end.at -= over;
  return ends.map(({ t, at }) => text(right + 6, at, `task ${t + 1}`, `label task${t + 1}`));
}

/* Stacked shares, the brush's task at the bottom. */
function shareBar({ top, height }, shares, unit, { tasks, brush }, x) {
  const order = [brush, ...Array.from({ length: tasks }, (_, t) => t).filter((t) => t !== brush)];
  const paths = new Array(tasks).fill("");
  for (let i = 0; i < STEPS; i++) {
    let to = i + 1;
    while (to < STEPS && same(shares, i, to, tasks)) to++;
    let bottom = top + height;
    for (const t of order) {
      const tall = (height * shares[i * tasks + t]) / unit;
      if (tall > 1e-3)
        paths[t] +=
          `M${round(x(i))} ${round(bottom)}H${round(x(to))}v${-round(tall)}H${round(x(i))}z`;
      bottom -= tall;
    }
    i = to - 1;
  }
  return paths.map((path, t) => `<path class="share task${t + 1}" d="${path}"/>`).join("");
}

function same(shares, i, j, tasks) {
  for (let t = 0; t < tasks; t++) if (shares[i * tasks + t] !== shares[j * tasks + t]) return false;
  return true;
}

function barLabels({ left, right, bar }, { tasks, brush }) {
  const out = [0, 50, 100].map((percent) =>
    text(left - 6, bar.top + bar.height * (1 - percent / 100) + 4, `${percent} %`, "small", "end"),
  );
  const rest = tasks === 2 ? "the rest is task 2" : "the others above";
  out.push(text(left, bar.top - 8, `share of task ${brush + 1}; ${rest}`, "small"));
  out.push(text(right + 6, bar.top + bar.height / 2 + 4, "yours", "small"));
  return out;
}

function rateCurves({ top, height }, { rates }, best, x, { left, right }) {
  const y = (rate) => top + height * (1 - rate / (MAX_RATE / UNIT));
  const path = (values, unit) => {
    let d = "";
    for (let i = 0; i < STEPS; i++)
      d += `${i === 0 ? "M" : "L"}${round(x(i))} ${round(y(values[i] / unit))}H${round(x(i + 1))}`;
    return d;
  };
  const out = [
    `<rect class="plain" x="${left}" y="${top}" width="${right - left}" height="${height}"/>`,
  ];
  for (const rate of [0, 1, 2, 3, 4, 5]) {
    if (rate % 5) out.push(line(left, y(rate), right, y(rate), "rule"));
    out.push(text(left - 6, y(rate) + 4, String(rate), "small", "end"));
  }
  if (best)
    out.push(
      `<path class="rate best${best.outdated ? " outdated" : ""}" d="${path(best.rates, 1)}"/>`,
    );
  out.push(`<path class="rate yours" d="${path(rates, UNIT)}"/>`);
  out.push(text(left, top - 8, "learning rate: the size of every step", "small"));
  out.push(text(right + 6, top + height / 2 + 4, "yours", "small"));
  return out;
}
