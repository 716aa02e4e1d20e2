/* The picture, as one SVG: curves on top, the painted bars below, the best behind both. It draws what
   it is given; colours are CSS variables, so that dark mode needs no redrawing. */

import { STEPS, UNIT } from "./problem.js";

const LEFT = 56;
const RIGHT = 66;
const GAP = 30;
const UNITS = 46; // pixels of the bars of the hidden units
const TICKS = 5;
const CROSSES = 10; // steps from one cross of SGD to the next

/** Where the parts of the picture are, for a width and a screen `tall` pixels. */
export function layout(width, tall, { sharesShown, ratesShown, unitsShown, best }) {
  const within = (low, high, ...sizes) => Math.max(low, Math.min(high, ...sizes));
  const both = sharesShown && ratesShown;
  const curves = within(170, 560, width * 0.36, tall * (both ? 0.24 : 0.31));
  const bar = within(84, 200, width * 0.2, tall * 0.13);
  const parts = { width, left: LEFT, right: width - RIGHT };
  let y = 0;
  const add = (name, gap, height) => {
    parts[name] = { top: y + gap, height };
    y += gap + height;
  };
  add("curves", 14, curves);
  if (sharesShown) add("bar", GAP, bar);
  if (sharesShown && best) add("best", 8, 26);
  if (ratesShown) add("rates", GAP, bar);
  parts.axis = y;
  y += 40;
  if (unitsShown) add("units", 26, UNITS + 16);
  parts.height = y;
  return parts;
}

/** The picture as the inside of an svg. content: { it: what is trained, losses, many: [losses],
    best: { losses, drawn: { shares, rates }, outdated }, crosses: losses of SGD, measured: [{ steps,
    losses }], played: the step up to which the training was played, units: K × T cosines } */
export function picture(parts, state, content) {
  const { left, right, bar, best: bestBar, rates } = parts;
  const { it, best, played } = content;
  const x = (step) => left + ((right - left) * step) / STEPS;
  const y = state.law ? linear(parts.curves, content) : decades(parts.curves, content);
  const draw = (losses, look) => curves(losses, it.losses.length, x, y.at, look);
  const out = [...axes(parts, y, state)];
  for (const losses of content.many) out.push(draw(losses, "faint"));
  const look = best?.outdated ? "best outdated" : "best";
  if (best) out.push(draw(best.losses, look));
  out.push(
    `<clipPath id="played"><rect x="0" y="0" width="${x(played)}" height="9999"/></clipPath>`,
  );
  out.push(`<g clip-path="url(#played)">${draw(content.losses, "yours")}</g>`);
  for (const { steps, losses } of content.measured)
    out.push(...dots(losses, (i) => x((STEPS * steps[i]) / state.duration), y.at));
  if (content.crosses) out.push(...crosses(content.crosses, it.losses.length, x, y.at, played));
  out.push(...endLabels(content.losses, it.losses, right, y.at, parts));
  if (bar) out.push(shareBar(bar, state.shares, UNIT, it.names.length, state.brush, x));
  if (bar) out.push(...barLabels(parts, it.names, state.brush));
  if (bar && best) {
    const shares = shareBar(bestBar, best.drawn.shares, 1, it.names.length, state.brush, x);
    out.push(`<g class="${look}">${shares}</g>`);
    const word = best.outdated ? "outdated" : "the best";
    out.push(text(right + 6, bestBar.top + 17, word, "small"));
  }
  if (rates) out.push(...rateCurves(parts, state, it, best && { ...best, look }, x));
  if (parts.units) out.push(...units(parts, content.units, it.names.length));
  if (played < STEPS) out.push(line(x(played), 14, x(played), parts.axis, "cursor"));
  return out.join("");
}

const round = (number) => Math.round(number * 10) / 10;

function text(x, y, words, look, anchor = "start") {
  return `<text x="${round(x)}" y="${round(y)}" class="${look}" text-anchor="${anchor}">${words}</text>`;
}

function line(x1, y1, x2, y2, look) {
  return `<path class="${look}" d="M${round(x1)} ${round(y1)}L${round(x2)} ${round(y2)}"/>`;
}

// Scales: { at: height of a loss, ticks: [[loss, label]] }

/* The decades that hold all curves of networks. */
function decades({ top, height }, { losses, best, many }) {
  const ends = many.map((one) => one.slice(-one.length / (STEPS + 1)));
  const all = [losses, best?.losses ?? [], ...ends].flatMap((one) =>
    Array.from(one).filter((loss) => loss > 0 && loss < 100),
  );
  const floor = Math.max(-8, Math.floor(Math.log10(Math.min(1e-2, ...all))));
  const low = 10 ** floor;
  const high = Math.max(100 * low, 1.3 * Math.max(0, ...all));
  const within = (loss) => Math.max(low, Math.min(high, loss));
  const at = (loss) => top + height * (1 - Math.log(within(loss) / low) / Math.log(high / low));
  const ticks = [];
  for (let power = floor; 10 ** power <= high; power++)
    ticks.push([10 ** power, power === 0 ? "1" : `10${superscript(power)}`]);
  return { at, ticks };
}

const superscript = (power) =>
  [...String(power)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻").join("");

/* Curves of laws, whose beginning would leave no room for the rest. */
function linear({ top, height }, { losses, best, it }) {
  const early = Math.round(STEPS / 12) * it.losses.length;
  const all = [...losses.subarray(early), ...(best?.losses.subarray(early) ?? [])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const margin = 0.06 * (high - low) || 1;
  const part = (loss) => (loss - low + margin) / (high - low + 2 * margin);
  const at = (loss) => (part(loss) > 1 ? NaN : top + height * (1 - Math.max(0, part(loss))));
  const unit = 10 ** Math.floor(Math.log10((high - low) / 2 || 1));
  const ticks = [];
  for (let i = Math.ceil(low / unit); i * unit <= high && ticks.length < 20; i++)
    ticks.push([i * unit, String(+(i * unit).toPrecision(6))]);
  return { at, ticks };
}

function axes({ left, right, axis }, { at, ticks }, { duration, law }) {
  const out = ticks.flatMap(([loss, label]) => [
    line(left, at(loss), right, at(loss), "rule"),
    text(left - 6, at(loss) + 4, label, "small", "end"),
  ]);
  for (let i = 0; i <= TICKS; i++) {
    const x = left + ((right - left) * i) / TICKS;
    out.push(line(x, axis, x, axis + 5, "tick"));
    const time = String(+((i * duration) / TICKS).toPrecision(4));
    out.push(text(x, axis + 18, time, "small", "middle"));
  }
  const time = law ? "training steps" : "training time α";
  out.push(text((left + right) / 2, axis + 34, time, "small", "middle"));
  out.push(
    text(left, 10, law ? "loss, without its beginning" : "loss (error on each task)", "small"),
  );
  return out;
}

// Curves

function curves(losses, count, x, y, look) {
  const paths = new Array(count).fill("");
  losses.forEach((loss, i) => {
    const [t, height] = [i % count, y(loss)];
    if (!Number.isFinite(height)) return;
    paths[t] += `${paths[t] ? "L" : "M"}${round(x(Math.floor(i / count)))} ${round(height)}`;
  });
  return paths.map((d, t) => `<path class="curve ${look} task${t + 1}" d="${d}"/>`).join("");
}

function crosses(losses, count, x, y, played) {
  const paths = new Array(count).fill("");
  for (let step = CROSSES; step <= played; step += CROSSES)
    for (let t = 0; t < count; t++) {
      const height = y(losses[step * count + t]);
      if (Number.isFinite(height))
        paths[t] += `M${round(x(step) - 4)} ${round(height - 4)}l8 8m0 -8l-8 8`;
    }
  return paths.map((d, t) => `<path class="cross task${t + 1}" d="${d}"/>`);
}

const dots = (losses, x, y) =>
  Array.from(losses, (loss, i) => [x(i), y(loss)])
    .filter(([, b]) => Number.isFinite(b))
    .map(([a, b]) => `<circle class="dot" cx="${round(a)}" cy="${round(b)}" r="1.5"/>`);

/* Names at the ends of the curves, moved apart where they would overlap. */
function endLabels(losses, names, right, y, { curves: { top, height } }) {
  const last = losses.slice(-names.length);
  const ends = names.map((name, t) => {
    const at = Number.isFinite(y(last[t])) ? y(last[t]) + 4 : top + 10;
    return { name, at, look: `label task${t + 1}` };
  });
  ends.sort((a, b) => a.at - b.at);
  for (let i = 1; i < ends.length; i++) ends[i].at = Math.max(ends[i].at, ends[i - 1].at + 14);
  const over = Math.max(0, ends.at(-1).at - (top + height + 4));
  return ends.map(({ name, at, look }) => text(right + 6, at - over, name, look));
}

// Bars

/* Stacked shares, the brush's task at the bottom. */
function shareBar({ top, height }, shares, unit, T, brush, x) {
  const order = [brush, ...Array.from({ length: T }, (_, t) => t).filter((t) => t !== brush)];
  const paths = new Array(T).fill("");
  const row = (i) => shares.subarray(i * T, (i + 1) * T);
  for (let i = 0, to; i < STEPS; i = to) {
    for (to = i + 1; to < STEPS && row(to).every((share, t) => share === row(i)[t]);) to++;
    let bottom = top + height;
    for (const t of order) {
      const tall = (height * row(i)[t]) / unit;
      if (tall > 1e-3)
        paths[t] +=
          `M${round(x(i))} ${round(bottom)}H${round(x(to))}v${-round(tall)}H${round(x(i))}z`;
      bottom -= tall;
    }
  }
  return paths.map((path, t) => `<path class="share task${t + 1}" d="${path}"/>`).join("");
}

function barLabels({ left, right, bar }, names, brush) {
  const rest = names.length === 2 ? `the rest is ${names[1 - brush]}` : "the others above";
  return [
    ...[0, 50, 100].map((percent) =>
      text(
        left - 6,
        bar.top + bar.height * (1 - percent / 100) + 4,
        `${percent} %`,
        "small",
        "end",
      ),
    ),
    text(left, bar.top - 8, `share of ${names[brush]}; ${rest}`, "small"),
    text(right + 6, bar.top + bar.height / 2 + 4, "yours", "small"),
  ];
}

function rateCurves({ left, right, rates: { top, height } }, { rates }, { full, most }, best, x) {
  const y = (rate) => top + height * (1 - (rate * UNIT) / full / most);
  const path = (values, unit, look) => {
    const parts = Array.from(
      values,
      (v, i) => `L${round(x(i))} ${round(y(v * unit))}H${round(x(i + 1))}`,
    );
    return `<path class="rate ${look}" d="M${parts.join("").slice(1)}"/>`;
  };
  const highest = (most * full) / UNIT;
  const out = [
    `<rect class="plain" x="${left}" y="${top}" width="${right - left}" height="${height}"/>`,
  ];
  for (let i = 0; i <= TICKS; i++) {
    const rate = (highest * i) / TICKS;
    if (i % TICKS) out.push(line(left, y(rate), right, y(rate), "rule"));
    out.push(text(left - 6, y(rate) + 4, String(+rate.toPrecision(3)), "small", "end"));
  }
  if (best) out.push(path(best.drawn.rates, 1, best.look));
  if (best) out.push(text(right + 6, top + height / 2 + 20, "- - the best", "small"));
  out.push(path(rates, full / UNIT, "yours"));
  out.push(text(left, top - 8, "learning rate: the size of every step", "small"));
  out.push(text(right + 6, top + height / 2 + 4, "yours", "small"));
  return out;
}

/* For every hidden unit how alike it is to every teacher: bars of the size of their cosine. */
function units({ left, right, units: { top } }, cosines, T) {
  const K = cosines.length / T;
  const group = Math.min(130, (right - left) / K);
  const wide = Math.min(22, (group - 8) / T);
  const out = [text(left, top - 10, "hidden units: similarity to each teacher", "small")];
  cosines.forEach((cosine, i) => {
    const from = left + group * Math.floor(i / T) + wide * (i % T);
    const tall = UNITS * Math.min(1, Math.abs(cosine));
    const box = `x="${round(from)}" width="${round(wide - 2)}"`;
    out.push(`<rect class="plain" ${box} y="${top}" height="${UNITS}"/>`);
    const bar = `y="${round(top + UNITS - tall)}" height="${round(tall)}"`;
    out.push(`<rect class="share task${(i % T) + 1}" ${box} ${bar}/>`);
    if (i % T === 0) out.push(text(from, top + UNITS + 14, `unit ${i / T + 1}`, "small"));
  });
  return out;
}
