/* The picture, as one SVG: curves on top, the painted bars below, the best behind both. It draws what
   it is given; colours are CSS variables, so that dark mode needs no redrawing. */

import { STEPS, UNIT } from "./state.js";

const LEFT = 56;
const RIGHT = 64;
const GAP = 32;
const UNITS = 46; // pixels of the bars of the hidden units
const CROSSES = 10; // steps from one cross of SGD to the next
const EARLY = 10; // steps whose losses may lie below the picture
const LOWEST = -12; // decade

/** Where the parts of the picture are, for a width and the height that the window has for them. */
export function layout(width, room, { tasks, ratesShown, units, best }) {
  const within = (low, high, ...sizes) => Math.max(low, Math.min(high, ...sizes));
  const bar = within(64, 200, width * 0.2, room * 0.2);
  const bars = [
    ["bar", tasks > 1, GAP, bar],
    ["best", tasks > 1 && best, 8, 26],
    ["rates", ratesShown, GAP, bar],
    ["axis", true, 0, 40],
    ["units", units, 26, UNITS + 16],
  ].filter(([, isShown]) => isShown);
  const rest = bars.reduce((sum, [, , gap, height]) => sum + gap + height, 0);
  const curves = within(150, 560, width * 0.36, room - rest - GAP);
  const parts = { width, height: 0, left: LEFT, right: width - RIGHT };
  for (const [name, , gap, height] of [["curves", true, 22, curves], ...bars]) {
    parts[name] = { top: parts.height + gap, height };
    parts.height += gap + height;
  }
  return parts;
}

/** The picture as the inside of an svg. content: { it: what is trained, losses, many: [losses],
    best: { losses, drawn: { shares, rates }, outdated }, crosses: losses of SGD, pilot: { steps,
    losses }, played: the step up to which the training was played, units: K × T cosines } */
export function picture(parts, state, content) {
  const { left, right, bar, best: bestBar, axis } = parts;
  const { it, best, played, losses, crosses, pilot } = content;
  const count = it.losses.length;
  const x = (step) => left + ((right - left) * step) / STEPS;
  const y = state.law ? linear(parts.curves, content) : decades(parts.curves, content);
  const draw = (values, look) => curves(values, count, x, y.at, look);
  const out = [...axes(parts, y, state, x)];
  for (const values of content.many) out.push(draw(values, "faint"));
  const look = best?.outdated ? "best outdated" : "best";
  if (best) out.push(draw(best.losses, look));
  out.push(draw(losses.subarray(0, (played + 1) * count), "yours"));
  if (pilot) out.push(...dots(pilot, (time) => x((STEPS * time) / state.duration), y.at));
  if (crosses) out.push(...crossed(crosses, count, x, y.at, played));
  out.push(...endLabels(losses.slice(played * count), it.losses, x(played), y.at, parts));
  if (bar) {
    out.push(shareBar(bar, state.shares, UNIT, it.names.length, state.brush, x));
    out.push(...barLabels(parts, it.names, state.brush));
  }
  if (bar && best) {
    const shares = shareBar(bestBar, best.drawn.shares, 1, it.names.length, state.brush, x);
    const word = best.outdated ? "outdated" : "the best";
    out.push(`<g class="${look}">${shares}</g>`, text(right + 6, bestBar.top + 17, word));
  }
  if (parts.rates) out.push(...rateCurves(parts, state, it, best && { ...best, look }, x));
  if (parts.units) out.push(...units(parts, content.units, it.names.length));
  if (played < STEPS) out.push(line(x(played), 14, x(played), axis.top, "cursor"));
  return out.join("");
}

const round = (number) => Math.round(number * 10) / 10;

const text = (x, y, words, anchor = "start", look = "") =>
  `<text x="${round(x)}" y="${round(y)}" class="${look}" text-anchor="${anchor}">${words}</text>`;

const line = (x1, y1, x2, y2, look) =>
  `<path class="${look}" d="M${round(x1)} ${round(y1)}L${round(x2)} ${round(y2)}"/>`;

/* About `count` round numbers from low to high. */
function ticks(low, high, count) {
  const least = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(least));
  const unit = [1, 2, 5, 10].find((x) => x * power >= 0.999 * least) * power;
  const [from, to] = [Math.ceil(low / unit - 1e-9), Math.floor(high / unit + 1e-9)];
  return Array.from({ length: to - from + 1 }, (_, i) => +((from + i) * unit).toPrecision(6));
}

// Scales: { at: height of a loss, ticks: [[loss, label]] }

/* The decades that hold all curves of networks. */
function decades({ top, height }, { losses, best, many }) {
  const rows = losses.length / (STEPS + 1);
  const shown = [losses, best?.losses ?? [], ...many].map((one) => one.slice(EARLY * rows));
  const all = shown.flatMap((one) => Array.from(one).filter((loss) => loss > 0 && loss < 100));
  const floor = Math.max(LOWEST, Math.floor(Math.log10(Math.min(1e-2, ...all))));
  const low = 10 ** floor;
  const high = Math.max(100 * low, 1.3 * Math.max(0, ...all));
  const within = (loss) => Math.max(low, Math.min(high, loss));
  const at = (loss) => top + height * (1 - Math.log(within(loss) / low) / Math.log(high / low));
  const powers = ticks(floor, Math.floor(Math.log10(high)), 8).filter(Number.isInteger);
  return { at, ticks: powers.map((power) => [10 ** power, power ? `10${raised(power)}` : "1"]) };
}

const raised = (power) => [...String(power)].map((x) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[x] ?? "⁻").join("");

/* Curves of laws, whose beginning would leave no room for the rest. */
function linear({ top, height }, { losses, best, it }) {
  const early = Math.round(STEPS / 12) * it.losses.length;
  const all = [...losses.subarray(early), ...(best?.losses.subarray(early) ?? [])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const margin = 0.06 * (high - low) || 1;
  const part = (loss) => (loss - low + margin) / (high - low + 2 * margin);
  const at = (loss) => (part(loss) > 1 ? NaN : top + height * (1 - Math.max(0, part(loss))));
  return { at, ticks: ticks(low, high, 5).map((loss) => [loss, loss]) };
}

function axes({ left, right, axis }, { at, ticks: marks }, { duration, law }, x) {
  const out = marks.flatMap(([loss, label]) => [
    line(left, at(loss), right, at(loss), "rule"),
    text(left - 6, at(loss) + 4, label, "end"),
  ]);
  for (const time of ticks(0, duration, right - left > 400 ? 5 : 3)) {
    const place = x((time / duration) * STEPS);
    out.push(line(place, axis.top, place, axis.top + 5, "tick"));
    out.push(text(place, axis.top + 18, time, "middle"));
  }
  const time = law ? "training steps" : "training time α";
  out.push(text((left + right) / 2, axis.top + 34, time, "middle"));
  out.push(text(left, 12, law ? "loss, without its beginning" : "loss (error on each task)"));
  return out;
}

// Curves

/* One path a task, through the places in each row that `mark` draws. */
function paths(losses, count, y, mark, look) {
  const parts = new Array(count).fill("");
  losses.forEach((loss, i) => {
    const [t, step, height] = [i % count, Math.floor(i / count), y(loss)];
    if (Number.isFinite(height)) parts[t] += mark(step, round(height), parts[t] === "");
  });
  return parts.map((d, t) => `<path class="${look} task${t + 1}" d="${d}"/>`).join("");
}

function curves(losses, count, x, y, look) {
  const mark = (step, height, isFirst) => `${isFirst ? "M" : "L"}${round(x(step))} ${height}`;
  return paths(losses, count, y, mark, `curve ${look}`);
}

function crossed(losses, count, x, y, played) {
  const mark = (step, height) =>
    step % CROSSES || step > played || step === 0
      ? ""
      : `M${round(x(step) - 4)} ${height - 4}l8 8m0 -8l-8 8`;
  return [paths(losses, count, y, mark, "cross")];
}

const dots = ({ steps, losses }, x, y) =>
  steps
    .map((step, i) => [x(step), y(losses[i])])
    .filter(([, height]) => Number.isFinite(height))
    .map(([a, b]) => `<circle class="dot" cx="${round(a)}" cy="${round(b)}" r="2"/>`);

/* Names at the ends of the curves, moved apart where they would overlap. */
function endLabels(losses, names, x, y, { curves: { top, height } }) {
  const ends = names.map((name, t) => {
    const at = Number.isFinite(y(losses[t])) ? y(losses[t]) + 4 : top + 10;
    return { name, at, look: `label task${t + 1}` };
  });
  ends.sort((a, b) => a.at - b.at);
  for (let i = 1; i < ends.length; i++) ends[i].at = Math.max(ends[i].at, ends[i - 1].at + 14);
  const over = Math.max(0, ends.at(-1).at - (top + height + 4));
  return ends.map(({ name, at, look }) => text(x + 6, at - over, name, "start", look));
}

// Bars

/* Stacked shares, the brush's task at the bottom. */
function shareBar({ top, height }, shares, unit, T, brush, x) {
  const order = [brush, ...Array.from({ length: T }, (_, t) => t).filter((t) => t !== brush)];
  const areas = new Array(T).fill("");
  const row = (i) => shares.subarray(i * T, (i + 1) * T);
  for (let i = 0, to; i < STEPS; i = to) {
    for (to = i + 1; to < STEPS && row(to).every((share, t) => share === row(i)[t]);) to++;
    let bottom = top + height;
    for (const t of order) {
      const tall = (height * row(i)[t]) / unit;
      const [from, end] = [round(x(i)), round(x(to))];
      if (tall > 1e-3) areas[t] += `M${from} ${round(bottom)}H${end}v${-round(tall)}H${from}z`;
      bottom -= tall;
    }
  }
  return areas.map((d, t) => `<path class="share task${t + 1}" d="${d}"/>`).join("");
}

function barLabels({ left, right, bar: { top, height } }, names, brush) {
  const rest = names.length === 2 ? `the rest is ${names[1 - brush]}` : "the others above";
  const percents = [0, 50, 100].map((percent) =>
    text(left - 6, top + height * (1 - percent / 100) + 4, `${percent} %`, "end"),
  );
  const caption = text(left, top - 9, `share of ${names[brush]}; ${rest}`);
  return [...percents, caption, text(right + 6, top + height / 2 + 4, "yours")];
}

function rateCurves({ left, right, rates: { top, height } }, { rates }, { full, most }, best, x) {
  const highest = (most * full) / UNIT;
  const y = (rate) => round(top + height * (1 - rate / highest));
  const path = (values, unit, look) => {
    const parts = Array.from(values, (v, i) => `L${round(x(i))} ${y(v * unit)}`);
    return `<path class="rate ${look}" d="M${parts.join("").slice(1)}H${right}"/>`;
  };
  const box = `x="${left}" y="${top}" width="${right - left}" height="${height}"`;
  const out = [`<rect class="plain" ${box}/>`];
  for (const rate of ticks(0, highest, 5))
    out.push(line(left, y(rate), right, y(rate), "rule"), text(left - 6, y(rate) + 4, rate, "end"));
  if (best) out.push(path(best.drawn.rates, 1, best.look));
  if (best) out.push(text(right + 6, top + height / 2 + 20, "- - best"));
  out.push(path(rates, full / UNIT, "yours"), text(right + 6, top + height / 2 + 4, "yours"));
  return [...out, text(left, top - 9, "learning rate: the size of every step")];
}

/* For every hidden unit how alike it is to every teacher: bars of the size of their cosine. */
function units({ left, right, units: { top } }, cosines, T) {
  const K = cosines.length / T;
  const group = Math.min(130, (right - left) / K);
  const wide = Math.min(22, (group - 8) / T);
  const out = [text(left, top - 10, "hidden units: similarity to each teacher")];
  cosines.forEach((cosine, i) => {
    const from = left + group * Math.floor(i / T) + wide * (i % T);
    const tall = UNITS * Math.min(1, Math.abs(cosine));
    const box = `x="${round(from)}" width="${round(wide - 2)}"`;
    out.push(`<rect class="plain" ${box} y="${top}" height="${UNITS}"/>`);
    const bar = `y="${round(top + UNITS - tall)}" height="${round(tall)}"`;
    out.push(`<rect class="share task${(i % T) + 1}" ${box} ${bar}/>`);
    if (i % T === 0) out.push(text(from, top + UNITS + 14, `unit ${i / T + 1}`));
  });
  return out;
}
