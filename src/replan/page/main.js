/* The page: one state, drawn anew after every change. */

import { core, inWorker, serve } from "./work.js";
import {
  curvesFile,
  fromAddress,
  newest,
  problemFile,
  protocolFile,
  toAddress,
} from "./address.js";
import { STEPS, UNIT, MAX_RATE, BEGINNING, constant, equal, exact } from "./problem.js";
import { floats, modelSettings, oneRate, pretrained, problemKey } from "./problem.js";
import { schedule, segments } from "./problem.js";
import { layout, picture } from "./picture.js";
import { paintable } from "./paint.js";
import { LEAD } from "./steps.js";

const STARTS_SHOWN = 20;
const MARKS = 25; // crosses of SGD
const UNDO = 200; // states kept
const PAUSE = 250; // milliseconds without a change before SGD runs
const CHOICES = ["tasks", "hidden", "activation", "duration", "noise", "dimension"];
const PROBLEM = ["tasks", "hidden", "activation", "duration", "noise", "similarity", "seed"];

const element = (id) => document.getElementById(id);
const short = (number) => (Number.isFinite(number) ? String(+number.toPrecision(3)) : "diverged");

class Page {
  constructor(built) {
    this.core = built;
    this.past = [];
    this.best = null; // { key, shares, rates, losses }
    this.crosses = null;
    this.cancel = null; // ends the search that is running
    this.models = new Map(); // a model with its starts, by problem
    this.state = fromAddress(location.hash);
    this.connect();
    this.changed();
  }

  // The state and what follows from it

  /** Go to another state; `keep`: undo comes back to this one. */
  set(changes, keep = true) {
    if (keep) this.remember();
    this.state = { ...this.state, ...changes };
    this.changed();
  }

  remember() {
    this.past.push({
      ...this.state,
      shares: this.state.shares.slice(),
      rates: this.state.rates.slice(),
    });
    if (this.past.length > UNDO) this.past.shift();
  }

  changed() {
    this.crosses = null;
    this.endSgd?.();
    clearTimeout(this.pause);
    if (this.cancel && this.searching !== problemKey(this.state))
      this.stop("The problem has changed: the search was ended.");
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
    this.pause = setTimeout(() => this.settled(), PAUSE);
  }

  /** What need not keep up with the hand: the address, and SGD. */
  settled() {
    history.replaceState(null, "", toAddress(this.state));
    if (this.state.dimension) this.runSgd();
  }

  problem() {
    const { state } = this;
    const key = JSON.stringify(["start", ...PROBLEM].map((name) => name !== "seed" && state[name]));
    if (!this.models.has(key)) {
      this.models.clear();
      const model = this.core.teacherStudent(modelSettings(state));
      this.models.set(key, { model, starts: new Map() });
    }
    return this.models.get(key);
  }

  startOf(seed) {
    const { model, starts } = this.problem();
    const { start } = this.state;
    if (!starts.has(seed))
      starts.set(seed, start ? floats(start) : pretrained(model, this.state, seed));
    return starts.get(seed);
  }

  curves(controls, seed = this.state.seed) {
    return this.problem().model.rollOut(this.startOf(seed), controls).losses;
  }

  // Drawing

  draw() {
    this.frame = 0;
    const { state } = this;
    const { best } = this;
    this.losses = this.curves(schedule(state));
    const outdated = best && best.key !== problemKey(state);
    const many = [];
    if (state.luck && !state.start)
      for (let seed = 1; seed <= STARTS_SHOWN; seed++)
        many.push(this.curves(schedule(state), seed));
    const alike = best && best.shares.length === state.shares.length;
    const shown = alike ? { ...best, outdated } : null;
    const width = element("frame").clientWidth;
    this.parts = layout(width, innerHeight, { ratesShown: state.ratesShown, best: shown });
    const svg = element("picture");
    svg.setAttribute("viewBox", `0 0 ${width} ${this.parts.height}`);
    svg.style.height = `${this.parts.height}px`;
    const content = { losses: this.losses, many, best: shown, crosses: this.crosses };
    svg.innerHTML = picture(this.parts, state, content) + this.cursorBox();
    this.place("paint-shares", this.parts.bar);
    this.place("paint-rates", this.parts.rates);
    element("reading").textContent = this.reading(many, shown);
    element("take").hidden = !shown || outdated;
    this.controls();
    performance.mark("drawn");
  }

  place(id, part) {
    const box = element(id);
    box.hidden = !part;
    if (!part) return;
    const { left, right } = this.parts;
    const style = { left, top: part.top, width: right - left, height: part.height };
    for (const [name, value] of Object.entries(style)) box.style[name] = `${value}px`;
  }

  cursorBox() {
    if (!this.cursor) return "";
    const { bar, rates, left, right } = this.parts;
    const { top, height } = this.cursor.box === "paint-rates" && rates ? rates : bar;
    const [from, to] = this.cursor.steps.map((step) => left + ((right - left) * step) / STEPS);
    return `<rect class="cursor" x="${from}" y="${top}" width="${to - from}" height="${height}"/>`;
  }

  mean(losses) {
    return losses.slice(-this.state.tasks).reduce((sum, x) => sum + x, 0) / this.state.tasks;
  }

  /** The sentence below the picture. */
  reading(many, best) {
    const { tasks } = this.state;
    const each = Array.from(this.losses.slice(-tasks), (loss, t) => `task ${t + 1} ${short(loss)}`);
    const mine = this.mean(this.losses);
    const words = [`Your training ends at a loss of ${short(mine)} (${each.join(", ")}).`];
    if (best?.outdated) words.push("The best shown belongs to another problem: outdated.");
    else if (best) {
      const ratio = mine / this.mean(best.losses);
      words.push(`The best found ends at ${short(this.mean(best.losses))}:`);
      if (!Number.isFinite(ratio)) words.push("yours diverged.");
      else if (ratio < 0.999) words.push("yours is even lower.");
      else if (ratio < 1.001) words.push("yours is as low, to a thousandth.");
      else if (ratio < 2) words.push(`yours is ${short(100 * (ratio - 1))} % above it.`);
      else words.push(`yours is ${short(ratio)} times as high.`);
    }
    if (many.length) {
      const ends = many.map((losses) => this.mean(losses)).sort((a, b) => a - b);
      const middle = (ends[ends.length / 2 - 1] + ends[ends.length / 2]) / 2;
      words.push(
        `Over twenty starts: median ${short(middle)}, from ${short(ends[0])} to ${short(ends.at(-1))}.`,
      );
    }
    return words.join(" ");
  }

  controls() {
    const { state } = this;
    for (const name of CHOICES) element(name).value = String(state[name]);
    for (const name of ["luck", "ratesShown"]) element(name).checked = state[name];
    for (const name of ["seed", "similarity", "luck"])
      element(name).disabled = Boolean(state.start);
    element("seed").value = state.seed;
    element("seed-value").textContent = state.start ? "from your file" : `number ${state.seed}`;
    element("similarity").value = state.similarity;
    element("similarity-value").textContent = `γ = ${state.similarity}`;
    const rate = oneRate(state);
    element("rate-value").textContent = rate === null ? "drawn" : String(rate / UNIT);
    if (rate !== null) element("rate").value = rate / UNIT;
    element("free").value = state.freeRates ? (state.freeShares ? "both" : "rates") : "shares";
    element("undo").disabled = this.past.length === 0;
    const step = LEAD[state.step - 1];
    if (element("say").textContent !== step.say) element("say").textContent = step.say;
    element("next").textContent =
      state.step < LEAD.length ? `Next: ${LEAD[state.step].name} →` : "Begin again";
    [...element("steps").children].forEach((item, i) =>
      item.firstChild.toggleAttribute("aria-current", i + 1 === state.step),
    );
    if (this.led !== state.step) this.handOver(step.controls ?? []);
    element("brushes").hidden = state.tasks === 2;
    for (const input of element("brushes").querySelectorAll("input")) {
      input.checked = Number(input.value) === state.brush;
      input.parentElement.hidden = input.value >= state.tasks;
    }
  }

  /** Put the controls that the step is about beside its sentence, and the others below. */
  handOver(names) {
    this.led = this.state.step;
    this.boxes ??= [...element("all-controls").children];
    for (const box of this.boxes) {
      const atHand = names.includes(box.querySelector("input, select").id);
      element(atHand ? "at-hand" : "all-controls").append(box);
    }
  }

  // Painting

  connect() {
    const share = (step) => this.state.shares[step * this.state.tasks + this.state.brush] / UNIT;
    const rate = (step) => this.state.rates[step] / MAX_RATE;
    const time = (step) =>
      `time ${short((step * this.state.duration) / STEPS)} of ${this.state.duration}`;
    const begin = () => {
      this.remember();
      element("hint").hidden = true;
    };
    const bar = (id, level, write, words) =>
      paintable(element(id), STEPS, {
        begin,
        level,
        paint: (from, to, a, b) => {
          for (let step = from; step <= to; step++)
            write(step, from === to ? b : a + ((b - a) * (step - from)) / (to - from));
          this.changed();
        },
        describe: (step) => `${time(step)}: ${words(step)}`,
        moved: (steps) => {
          this.cursor = steps && { box: id, steps };
          if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
        },
      });
    bar(
      "paint-shares",
      share,
      (step, to) => this.paintShare(step, to),
      (step) => this.sharesAt(step),
    );
    const writeRate = (step, to) => {
      this.state.rates[step] = Math.round(to * 100) * (MAX_RATE / 100);
    };
    bar("paint-rates", rate, writeRate, (step) => `rate ${this.state.rates[step] / UNIT}`);
    this.connectControls();
  }

  /** Give the brush's task this share; the others keep their proportions. */
  paintShare(step, level) {
    const { shares, tasks: T, brush } = this.state;
    const row = shares.subarray(step * T, (step + 1) * T);
    const share = Math.round(100 * level) * (UNIT / 100);
    const before = UNIT - row[brush];
    let left = UNIT - share;
    const others = Array.from(row.keys()).filter((t) => t !== brush);
    others.forEach((t, i) => {
      const part = before > 0 ? row[t] / before : 1 / others.length;
      row[t] = i + 1 === others.length ? left : Math.min(left, Math.round((UNIT - share) * part));
      left -= row[t];
    });
    row[brush] = share;
  }

  sharesAt(step) {
    const { shares, tasks: T } = this.state;
    const row = Array.from(shares.subarray(step * T, (step + 1) * T));
    return row.map((x, t) => `task ${t + 1} ${x / 10} %`).join(", ");
  }

  // Buttons and sliders

  connectControls() {
    const on = (id, type, act) => element(id).addEventListener(type, act);
    LEAD.forEach(({ name }, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.innerHTML = `${i + 1} <span>${name}</span>`;
      button.addEventListener("click", () => this.goTo(i + 1));
      const item = document.createElement("li");
      item.append(button);
      element("steps").append(item);
    });
    on("next", "click", () => this.goTo((this.state.step % LEAD.length) + 1));
    for (let t = 0; t < 3; t++) {
      const label = document.createElement("label");
      label.innerHTML = `<input type="radio" name="brush" value="${t}"> task ${t + 1}`;
      label.firstChild.addEventListener("change", () => this.set({ brush: t }, false));
      element("brushes").append(label);
    }
    for (const name of ["hidden", "duration", "noise", "dimension"])
      on(name, "change", () =>
        this.set({ [name]: Number(element(name).value), ...this.fromSeed(name) }),
      );
    on("activation", "change", () =>
      this.set({ activation: element("activation").value, start: null }),
    );
    on("tasks", "change", () => {
      const tasks = Number(element("tasks").value);
      const hidden = Math.max(tasks, this.state.hidden);
      this.set({
        tasks,
        hidden,
        brush: 0,
        start: null,
        shares: segments(tasks, [newest(tasks), 0.4], [equal(tasks), 1]),
      });
    });
    for (const name of ["luck", "ratesShown"])
      on(name, "change", () => this.set({ [name]: element(name).checked }));
    this.slider("similarity", (similarity) => ({ similarity }));
    this.slider("seed", (seed) => ({ seed }));
    this.slider("rate", (rate) => ({ rates: constant(Math.round(rate * UNIT)) }));
    on("free", "change", () => {
      const free = element("free").value;
      this.set({
        freeShares: free !== "rates",
        freeRates: free !== "shares",
        ratesShown: this.state.ratesShown || free !== "shares",
      });
    });
    on("best", "click", () => (this.cancel ? this.stop("Cancelled.") : this.solve()));
    on("take", "click", () => this.take());
    on("undo", "click", () => this.undo());
    on("link", "click", () => this.copyLink());
    document.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.shiftKey) {
        event.preventDefault();
        this.undo();
      }
    });
    for (const button of document.querySelectorAll("[data-file]"))
      button.addEventListener("click", () => this.download(button.dataset.file));
    addEventListener("hashchange", () => {
      this.remember();
      this.state = fromAddress(location.hash);
      this.changed();
    });
    new ResizeObserver(
      () => this.parts && element("frame").clientWidth !== this.parts.width && this.draw(),
    ).observe(element("frame"));
  }

  /** Overlaps of a file fit only its own sizes. */
  fromSeed(name) {
    return name === "hidden" ? { start: null } : {};
  }

  /** A slider: one state to undo for each time it is held. */
  slider(id, changes) {
    const input = element(id);
    let held = false;
    input.addEventListener("input", () => {
      this.set(changes(Number(input.value)), !held);
      held = true;
    });
    input.addEventListener("change", () => {
      held = false;
    });
  }

  goTo(step) {
    const changes = LEAD[step - 1].set();
    this.set({ ...BEGINNING, rates: constant(UNIT), ...changes, step });
  }

  undo() {
    if (this.past.length === 0) return;
    this.state = this.past.pop();
    this.changed();
  }

  // Long work

  solve() {
    const { state } = this;
    const key = problemKey(state);
    const { shares, rates, lengths } = schedule(state);
    const T = state.tasks;
    const settings = { steps: STEPS, duration: state.duration, shares, rates, lengths };
    settings.substeps = Math.ceil(
      ((state.freeRates ? 4 : Math.max(1, ...rates)) * state.duration) / 25,
    );
    settings.weights = new Float64Array(T).fill(1 / T);
    settings.freeShares = state.freeShares;
    settings.freeRates = state.freeRates ? [0, MAX_RATE / UNIT] : null;
    settings.iterations = 300;
    const job = {
      job: "solve",
      model: modelSettings(state),
      start: this.startOf(state.seed),
      settings,
    };
    this.searching = key;
    element("best").textContent = "Cancel";
    element("solving").textContent = "searching …";
    const told = (value) => {
      element("solving").textContent = `searching … ${short(value)} so far`;
    };
    this.cancel = inWorker(job, (found) => this.solved(key, found), told);
  }

  solved(key, found) {
    this.stop(found.error ? `The search failed: ${found.error}` : "");
    if (found.error) return;
    const controls = exact(found.shares, found.rates, this.state.duration);
    this.best = { key, ...controls, losses: this.curves(controls) };
    this.draw();
    performance.mark("solved");
  }

  stop(words) {
    this.cancel?.();
    this.cancel = null;
    element("best").textContent = "Show me the best";
    element("solving").textContent = words;
  }

  /** Make the best the visitor's own, in thousandths. */
  take() {
    const { shares, rates } = this.best;
    const { tasks: T } = this.state;
    const whole = Int16Array.from(shares, (x) => Math.round(x * UNIT));
    for (let i = 0; i < whole.length; i += T) {
      const row = whole.subarray(i, i + T);
      row[row.indexOf(Math.max(...row))] += UNIT - row.reduce((sum, x) => sum + x, 0);
    }
    this.set({ shares: whole, rates: Int16Array.from(rates, (x) => Math.round(x * UNIT)) });
  }

  runSgd() {
    const { state } = this;
    const { shares, rates } = schedule(state);
    const { duration, dimension, seed } = state;
    const job = {
      job: "sgd",
      model: modelSettings(state),
      start: this.startOf(seed),
      shares,
      rates,
    };
    this.endSgd = inWorker({ ...job, duration, dimension, seed, marks: MARKS }, (losses) => {
      if (losses.error) return;
      this.crosses = { losses, marks: MARKS };
      this.draw();
    });
  }

  // Files

  async copyLink() {
    history.replaceState(null, "", toAddress(this.state));
    await navigator.clipboard.writeText(location.href);
    element("link").textContent = "Copied";
  }

  async download(name) {
    const { state } = this;
    const content = {
      "problem.toml": () => problemFile(state, this.startOf(state.seed)),
      "protocol.json": () => protocolFile(state),
      "curves.csv": () => curvesFile(state, this.losses),
      "picture.svg": () => this.svg(),
      "picture.png": () => this.png(),
    }[name]();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await content]));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  /** The picture with its looks written into it. */
  svg() {
    const svg = element("picture").cloneNode(true);
    const looks = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font"];
    const originals = element("picture").querySelectorAll("*");
    [...svg.querySelectorAll("*")].forEach((node, i) => {
      const style = getComputedStyle(originals[i]);
      for (const look of looks) node.style.setProperty(look, style.getPropertyValue(look));
    });
    svg.setAttribute("width", this.parts.width);
    svg.setAttribute("height", this.parts.height);
    svg.style.background = getComputedStyle(document.body).backgroundColor;
    return new XMLSerializer().serializeToString(svg);
  }

  /** The same at twice the pixels. */
  async png() {
    const image = new Image();
    const url = URL.createObjectURL(new Blob([this.svg()], { type: "image/svg+xml" }));
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * this.parts.width;
    canvas.height = 2 * this.parts.height;
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
}

if (typeof document === "undefined") serve();
else core().then((built) => (window.page = new Page(built)));
