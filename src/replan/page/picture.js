/* The picture, as one SVG: curves on top, the painted bars below, the best behind both. It draws what
   it is given; colours are CSS variables, so that dark mode needs no redrawing. */

import { STEPS, UNIT } from "./state.js";

const GAP = 32; // between parts, for a caption
const [BEST, UNITS] = [26, 46]; // heights of the bars of the best, and of the hidden units

const round = (number) => Math.round(number * 10) / 10;

/** Where the parts of the picture are, for a width and the height that the window has for them;
    x(step): where a step begins. */
export function layout(width, room, { tasks, ratesShown, units, best }) {
  const within = (low, high, ...sizes) => Math.round(Math.max(low, Math.min(high, ...sizes)));
  const bar = within(64, 200, width * 0.2, room * 0.18);
  const hasBar = tasks > 1;
  const bars = [
    ["bar", GAP, hasBar && bar],
    ["best", 8, hasBar && best && BEST],
    ["rates", GAP, ratesShown && bar],
    ["axis", 0, 40],
    ["units", GAP, units && UNITS + 20],
  ].filter(([, , height]) => height);
  const later = hasBar && !best ? 8 + BEST : 0; // so that the bar does not move when it comes
  const rest = bars.reduce((sum, [, gap, height]) => sum + gap + height, GAP + later);
  const curves = within(144, 560, Math.max(220, width * 0.36), room - rest);
  const parts = { width, height: 0, left: 56, right: width - 64 };
  parts.x = (step) => round(parts.left + ((parts.right - parts.left) * step) / STEPS);
  for (const [name, gap, height] of [["curves", 26, curves], ...bars]) {
    parts[name] = { top: parts.height + gap, height };
    parts.height += gap + height;
  }
  return parts;
}

/** The picture as the inside of an svg. content: { it: what is trained, losses, many: [losses],
    best: { losses, drawn: { shares, rates } }, crosses: losses of SGD, played: the step up to which
    the training was played, units: K × T cosines } */
export function picture(parts, state, content) {
  const { it, losses, many, best, crosses, played } = content;
  const { x, curves, bar, axis } = parts;
  const { law, brush } = state;
  const [T, count] = [it.names.length, it.losses.length];
  const upToNow = (values) => values.subarray(0, (played + 1) * count);
  const { at, ticks } = lossScale(curves, law, content);
  const draw = (look, values, shape = line) =>
    it.losses.map((_, t) => {
      const own = values.filter((_, i) => i % count === t);
      const places = Array.from(own, (loss, step) => [x(step), at(loss)]);
      return shape(`${look} ${colour(t)}`, places);
    });
  const pilot = it.model.pilots?.[state.pilot];
  const measured = (pilot?.steps ?? [])
    .filter((step) => step <= state.duration)
    .map((step, i) => [x((STEPS * step) / state.duration), at(pilot.losses[i])]);
  const caption = law ? "loss (the beginning is cut off)" : "loss (error on each task)";
  const rest = T === 2 ? `the rest is ${it.names[1 - brush]}` : "the others are above it";
  const drawn = [
    timeAxis(parts, state, it.model),
    frame(parts, curves, best ? `${caption}; dashed: the best` : caption, ticks),
    many.map((values) => draw("curve faint", values)),
    best && draw("curve best", best.losses),
    draw("curve", upToNow(losses)),
    crosses && draw("cross", upToNow(crosses), crossed),
    marks("dot", "m-2 0a2 2 0 0 0 4 0a2 2 0 0 0-4 0", measured),
    endLabels(parts, it.losses, losses.subarray(played * count), at, x(played)),
    bar && frame(parts, bar, `share of ${it.names[brush]}; ${rest}`, percents(bar)),
    bar && stacked(parts, bar, state.shares, UNIT, brush, "yours"),
    parts.best && stacked(parts, parts.best, best.drawn.shares, 1, brush, "best"),
    parts.rates && rateCurves(parts, state.rates, it, best),
    parts.units && unitBars(parts, content.units, T),
    played < STEPS && path("cursor", `M${x(played)} ${curves.top}V${axis.top}`),
  ];
  return drawn.flat(Infinity).filter(Boolean).join("");
}

const colour = (t) => `task${(t % 5) + 1}`;
const path = (look, d) => `<path class="${look}" d="${d}"/>`;

/* Words whose middle is at the height y. Names come from files, where they may be markup. */
function text(x, y, words, anchor = "start", look = "") {
  const safe = String(words).replace(/[<&]/g, (letter) => `&#${letter.charCodeAt()};`);
  return `<text class="${look}" x="${x}" y="${y}" dy=".35em" text-anchor="${anchor}">${safe}</text>`;
}

const inside = (places) => places.filter(([, y]) => Number.isFinite(y));
const isTenth = (_, step) => step % 10 === 5; // none of them on an axis
const line = (look, places) => path(look, inside(places).join("L").replace(/^./, "M$&"));
const marks = (look, d, places) => inside(places).map((place) => path(look, `M${place}${d}`));
const crossed = (look, places) => marks(look, "m-4-4l8 8m0-8l-8 8", places.filter(isTenth));

/* About `count` round numbers from low to high. */
function rounds(low, high, count) {
  const least = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(least));
  const unit = [1, 2, 5, 10].find((x) => x * power >= 0.999 * least) * power;
  const [from, to] = [Math.ceil(low / unit - 1e-9), Math.floor(high / unit + 1e-9)];
  return Array.from({ length: to - from + 1 }, (_, i) => +((from + i) * unit).toPrecision(6));
}

/* { at: the height of a value, NaN well above `high`, ticks: [[height, label]] } */
function scale({ top, height }, low, high, count, label = String) {
  const part = (value) => Math.max(0, (value - low) / (high - low));
  const at = (value) => (part(value) > 1.001 ? NaN : round(top + height * (1 - part(value))));
  return { at, ticks: rounds(low, high, count).map((value) => [at(value), label(value)]) };
}

/* Decades for networks. Laws begin so high that their beginning would leave no room for the rest. */
function lossScale(part, isLaw, { losses, best, many, it }) {
  const all = [losses, best?.losses ?? [], ...many].map((values) => Array.from(values));
  if (isLaw) {
    const later = all.flatMap((values) => values.slice(20 * it.losses.length));
    const [least, most] = [Math.min(...later), Math.max(...later)];
    const margin = 0.06 * (most - least) || 1;
    return scale(part, least - margin, most + margin, 5);
  }
  const powers = all.flat().map(Math.log10);
  const shown = powers.filter((power) => power > -12 && power < 2);
  const low = Math.floor(Math.min(-2, ...shown));
  const high = Math.max(low + 2, 0.1 + Math.max(...shown));
  const raised = (power) => "10" + String(power).replace(/./g, (x) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[x] ?? "⁻");
  const { at, ticks } = scale(part, low, high, Math.min(8, high - low), raised);
  return { at: (loss) => at(Math.log10(loss)), ticks };
}

/* A part's caption, and its rules with their labels. */
function frame({ left, right }, { top }, caption, ticks) {
  const rule = (y) => path("rule", `M${left} ${y}H${right}`);
  const rules = ticks.map(([y, label]) => rule(y) + text(left - 6, y, label, "end"));
  return [text(left, top - 13, caption), rules];
}

const percents = (bar) => scale(bar, 0, 100, 2, (percent) => `${percent} %`).ticks;

function timeAxis({ left, right, x, curves, axis: { top } }, { duration }, { axis }) {
  const words = axis ?? "training time α, in samples per input";
  const times = rounds(0, duration, right - left > 400 ? 5 : 3).map((time) => {
    const place = x((time / duration) * STEPS);
    const rule = path("rule", `M${place} ${curves.top}V${top + 5}`);
    return [rule, text(place, top + 14, time, "middle")];
  });
  return [times, text((left + right) / 2, top + 30, words, "middle")];
}

/* Names at the ends of the curves, moved apart where they would overlap. */
function endLabels({ curves: { top, height } }, names, losses, at, x) {
  const ends = names.map((name, t) => ({ name, t, y: at(losses[t]) || top }));
  ends.sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 14);
  const over = Math.max(0, ends.at(-1).y - (top + height));
  return ends.map(({ name, t, y }) => text(x + 8, y - over, name, "start", `label ${colour(t)}`));
}

/* Areas on top of each other, the brush's at the bottom; each covers the lower part of the next. */
function stacked({ left, right, x }, { top, height }, shares, unit, brush, look) {
  const [T, bottom] = [shares.length / STEPS, top + height];
  const order = [...Array(T).keys()].sort((a, b) => (b === brush) - (a === brush));
  const sums = new Array(STEPS).fill(0);
  const areas = order.map((t) => {
    sums.forEach((sum, step) => (sums[step] = sum + shares[step * T + t] / unit));
    const stair = (sum, step) => `V${round(bottom - height * sum)}H${x(step + 1)}`;
    return path(`share ${colour(t)}`, `M${left} ${bottom}${sums.map(stair).join("")}V${bottom}z`);
  });
  const name = text(right + 6, top + height / 2, look);
  return [`<g class="${look}">`, areas.reverse(), "</g>", name];
}

function rateCurves({ left, right, x, rates: part }, rates, { full, most }, best) {
  const { at, ticks } = scale(part, 0, (most * full) / UNIT, part.height < 80 ? 3 : 5);
  const curve = (values, unit, look) => {
    const places = Array.from(values, (value, step) => [x(step + 0.5), at(value * unit)]);
    return line(`rate ${look}`, places);
  };
  return [
    path("rule", `M${left} ${part.top}H${right}v${part.height}H${left}z`),
    frame({ left, right }, part, "learning rate: the size of every step", ticks),
    best && curve(best.drawn.rates, 1, "best"),
    curve(rates, full / UNIT, "yours"),
  ];
}

/* For every hidden unit how alike it is to every teacher. */
function unitBars({ left, right, units: { top } }, cosines, T) {
  const { at, ticks } = scale({ top, height: UNITS }, 0, 1, 1);
  const wide = Math.min(22, (right - left) / (cosines.length * (1 + 1 / T)));
  const bars = Array.from(cosines, (cosine, i) => {
    const [x, y] = [left + wide * (i + Math.floor(i / T)), at(Math.abs(cosine))];
    const size = `x="${x}" y="${y}" width="${wide - 2}" height="${top + UNITS - y}"`;
    const name = i % T ? "" : text(x, top + UNITS + 10, `unit ${i / T + 1}`);
    return `<rect class="share ${colour(i % T)}" ${size}/>${name}`;
  });
  return [frame({ left, right }, { top }, "hidden units: similarity to each teacher", ticks), bars];
}
