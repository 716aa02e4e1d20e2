/* The page: one state, drawn anew after every change. */

import { LEVERS, core, inWorker, serve } from "./work.js";
import { FILES } from "./files.js";
import {
  MOST_TIME,
  STEPS,
  UNIT,
  bestKey,
  fromAddress,
  lawState,
  newest,
  oneRate,
} from "./state.js";
import { parsed, pilotState, problemKey, repeated, rounded, toAddress } from "./state.js";
import { ACCURATE, QUICK, amounts, rollOut, training } from "./training.js";
import { layout, picture } from "./picture.js";
import { paintable } from "./paint.js";

const SEEDS = Array.from({ length: 20 }, (_, i) => i + 1);
const UNDO = 200; // states kept
const PAUSE = 250; // milliseconds without a change before what takes longer is computed
const FILM = 8000; // milliseconds
const WINDOW = 8; // steps on both sides that a mean is over

const element = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const short = (number) => (Number.isFinite(number) ? numbers.format(number) : "diverged");

class Page {
  constructor(built) {
    this.core = built;
    this.past = [];
    this.jobs = {}; // what ends each, by its name
    document.body.classList.toggle("embedded", window.top !== window);
    this.open(location.hash);
    this.connect();
  }

  // The state and what follows from it

  /** Go to the state of an address, without the results of another. */
  open(address) {
    this.best = null; // { key, shares, rates, losses, drawn }
    this.film = null;
    this.played = STEPS;
    element("told").textContent = "";
    try {
      this.state = fromAddress(address);
    } catch (error) {
      this.state = fromAddress("");
      element("told").textContent =
        `This link is damaged or incomplete (${error.message}). This is the first step instead.`;
    }
    this.stop("");
    this.changed();
  }

  /** Go to another state; `keep`: undo comes back to this one. */
  set(changes, keep = true) {
    if (keep) this.past = [...this.past, this.state].slice(-UNDO);
    this.state = { ...this.state, ...changes };
    this.changed();
  }

  undo() {
    if (this.past.length === 0) return;
    this.state = this.past.pop();
    this.changed();
  }

  changed() {
    const { state } = this;
    clearTimeout(this.pause);
    this.accuracy = QUICK;
    this.crosses = null;
    this.many = []; // the losses from all starts
    this.end("sgd");
    if (this.searched !== bestKey(state)) this.end("solve");
    if (this.levered !== this.leverKey()) this.end("levers");
    if (!this.searching) element("solving").textContent = "";
    element("link").textContent = "Copy the link";
    this.redraw();
    this.pause = setTimeout(() => this.settled(), PAUSE);
  }

  /** What need not keep up with the hand. */
  settled() {
    clearTimeout(this.pause);
    this.accuracy = ACCURATE;
    const { state, it } = this;
    history.replaceState(null, "", toAddress(state));
    if (state.luck) this.many = SEEDS.map((seed) => this.run(amounts(state, it.full), seed).losses);
    this.draw();
    element("announced").textContent = element("reading").textContent;
    const isOutdated = this.best && this.best.key !== bestKey(state);
    if (!this.jobs.solve && (this.searching || isOutdated)) this.solve();
    if (state.law) return;
    if (state.dimension) this.start("sgd", (losses) => this.showCrosses(losses));
    if (state.levers && this.levered !== this.leverKey()) this.compareLevers();
  }

  /** What is trained. */
  get it() {
    const key = problemKey(this.state) + this.accuracy;
    if (this.trained?.key !== key)
      this.trained = { key, ...training(this.core, this.state, this.accuracy) };
    return this.trained;
  }

  run(controls, seed = this.state.seed) {
    return rollOut(this.it, controls, this.state.duration, seed);
  }

  // Drawing

  redraw() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = null;
    const { state, it, many, crosses, played } = this;
    const mine = amounts(state, it.full);
    const { losses, states } = this.run(mine);
    this.losses = losses;
    const isDrawn = this.best?.shares.length === state.shares.length;
    const best = isDrawn ? { ...this.best, outdated: this.best.key !== bestKey(state) } : null;
    const units = state.units && !state.law ? this.cosines(states) : null;
    const { clientWidth: width, offsetTop } = element("frame");
    this.parts = layout(width, innerHeight - offsetTop, { ...state, best, units });
    const svg = element("picture");
    svg.setAttribute("viewBox", `0 0 ${width} ${this.parts.height}`);
    svg.style.height = `${this.parts.height}px`;
    const pilot = it.model.pilots?.[state.pilot];
    const content = { it, losses, many, best, crosses, pilot, played, units };
    svg.innerHTML = picture(this.parts, state, content) + this.cursorBox();
    this.place("paint-shares", this.parts.bar);
    this.place("paint-rates", this.parts.rates);
    const words = this.reading(best);
    if (element("reading").textContent !== words) element("reading").textContent = words;
    element("take").hidden = !best || best.outdated;
    this.showControls();
  }

  place(id, part) {
    element(id).hidden = !part;
    const { left, right } = this.parts;
    const style = { left, top: part?.top, width: right - left, height: part?.height };
    for (const [name, value] of Object.entries(style)) element(id).style[name] = `${value}px`;
  }

  cursorBox() {
    if (!this.cursor) return "";
    const { left, right, [this.cursor.part]: part } = this.parts;
    const [from, to] = this.cursor.steps.map((step) => left + ((right - left) * step) / STEPS);
    return `<rect class="cursor" x="${from}" y="${part.top}" width="${to - from}" height="${part.height}"/>`;
  }

  /** How alike the hidden units are to the teachers (K × T), where the film is. */
  cosines(states) {
    const { hidden: K, tasks: T } = this.state;
    const { size } = this.it.model;
    const now = states.subarray(this.played * size, (this.played + 1) * size);
    const long = (i) => Math.sqrt(now[Math.floor(i / T) * (K + 1)]);
    return now.slice(K * K, K * (K + T)).map((overlap, i) => overlap / long(i));
  }

  mean(losses) {
    const { weights } = this.it;
    const last = losses.slice(-weights.length);
    return weights.reduce((sum, weight, i) => sum + weight * last[i], 0);
  }

  /** The sentence above the picture. */
  reading(best) {
    const { state, it } = this;
    const last = this.losses.slice(-it.losses.length);
    const each = it.losses.map((name, i) => `${name}: ${short(last[i])}`).join(", ");
    const mine = this.mean(this.losses);
    const parts = last.length > 1 ? ` (${each})` : "";
    const words = [`Your training ends at a loss of ${short(mine)}${parts}.`];
    if (state.law) words[0] = `Predicted final loss: ${+mine.toPrecision(5)}${parts}.`;
    if (state.law && state.duration + it.model.begin > 1.01 * it.model.horizon)
      words.push("That is longer than the pilots: the law extrapolates.");
    if (best?.outdated) words.push("The best shown is that of the earlier settings.");
    else if (best) words.push(this.compared(mine, this.mean(best.losses)));
    if (this.many.length) {
      const ends = this.many.map((losses) => this.mean(losses)).sort((a, b) => a - b);
      const middle = short((ends[SEEDS.length / 2 - 1] + ends[SEEDS.length / 2]) / 2);
      const range = `from ${short(ends[0])} to ${short(ends.at(-1))}`;
      words.push(`Over the twenty starts: median ${middle}, ${range}.`);
    }
    if (Number.isNaN(this.crosses?.at(-1))) words.push(`SGD with N = ${state.dimension} diverged.`);
    return words.join(" ");
  }

  compared(mine, best) {
    const means = this.best.drawn.isMean ? " (one task per step; drawn as means)" : "";
    const value = this.state.law ? +best.toPrecision(5) : short(best);
    const ratio = mine / best;
    const words = [
      [Number.isNaN(ratio), "diverged"],
      [ratio < 0.999, "is even lower"],
      [ratio < 1.001, "matches it to within 0.1 %"],
      [ratio < 2, `is ${short(100 * (ratio - 1))} % higher`],
      [true, `is ${short(ratio)} times as high`],
    ];
    return `The best found ends at ${value}${means}: yours ${words.find(([isSo]) => isSo)[1]}.`;
  }

  showControls() {
    const { state, it } = this;
    const rate = oneRate(state);
    element("rate").max = it.most / UNIT;
    for (const input of all("[data-state]")) {
      const value = input.id === "rate" ? (rate ?? UNIT) / UNIT : state[input.id];
      if (input.type === "checkbox") input.checked = value;
      else if (input !== this.held) input.value = value;
    }
    for (const name of ["seed", "similarity", "luck"])
      element(name).disabled = state.start !== null;
    const [law, network] = [state.law !== null, state.law === null];
    const present = { law, network, rate: it.most > 0, shares: state.tasks > 1 };
    for (const box of all("[data-of]")) box.hidden = !present[box.dataset.of];
    element("seed-value").textContent = state.start ? "from your file" : `number ${state.seed}`;
    element("similarity-value").textContent = `γ = ${state.similarity}`;
    element("rate-value").textContent = rate === null ? "drawn" : short((rate * it.full) / UNIT);
    element("new-tasks").textContent = state.tasks > 2 ? `tasks 2 to ${state.tasks}` : "task 2";
    element(state.ratesShown ? "paint-rates" : "paint-shares").append(element("hint"));
    element("undo").disabled = this.past.length === 0;
    element("play").textContent = this.played < STEPS ? "■ Stop" : "▶ Play";
    element("notes").textContent = (it.model.notes ?? []).join("\n");
    element("lever-list").hidden = !state.levers || law;
    element("brushes").hidden = state.tasks < (law ? 2 : 3);
    element("duration").max = law ? 1e9 : MOST_TIME;
    this.showChoices("brushes", it.names, state.brush, (brush) => this.set({ brush }, false));
    const pilots = it.model.pilots?.map(({ run }) => run) ?? [];
    this.showChoices("pilots", pilots, state.pilot, (pilot) => this.set(pilotState(state, pilot)));
    this.showLead();
  }

  /** A button for each name, in a box. */
  showChoices(id, names, chosen, choose) {
    const box = element(id);
    while (box.children.length < names.length) box.append(document.createElement("button"));
    [...box.children].forEach((button, i) => {
      button.hidden = i >= names.length;
      button.textContent = names[i];
      button.onclick = () => choose(i);
      button.setAttribute("aria-pressed", i === chosen);
    });
  }

  /** The step's sentence; its controls beside it, and the others below. */
  showLead() {
    const items = [...element("steps").children];
    const [item, next] = [items[this.state.step - 1], items[this.state.step % items.length]];
    if (this.led === item) return;
    this.led = item;
    const { textContent, dataset } = item.querySelector("p");
    element("say").textContent = textContent;
    element("next").textContent = `Next: ${next.querySelector("span").textContent} →`;
    element("next").href = next.querySelector("a").href;
    for (const { firstChild: link } of items) link.removeAttribute("aria-current");
    item.firstChild.setAttribute("aria-current", "step");
    this.boxes ??= [...element("all-controls").children];
    for (const box of this.boxes) {
      const id = box.querySelector("input, select").id;
      const atHand = dataset.controls?.split(" ").includes(id);
      element(atHand ? "at-hand" : "all-controls").append(box);
    }
  }

  // Painting

  connect() {
    const share = (step) => this.state.shares[step * this.state.tasks + this.state.brush] / UNIT;
    const rate = (step) => this.state.rates[step] / this.it.most;
    const paintRate = (step, level) =>
      (this.state.rates[step] = Math.round(level * 100) * (this.it.most / 100));
    const rateAt = (step) => `rate ${short(rate(step) * (this.it.most / UNIT) * this.it.full)}`;
    const paintShare = (step, level) => this.paintShare(step, level);
    this.paintable("bar", "paint-shares", share, paintShare, (step) => this.sharesAt(step));
    this.paintable("rates", "paint-rates", rate, paintRate, rateAt);
    this.connectControls();
    this.connectFiles();
  }

  /** Let one paint on a part of the picture. level(step): what is there; write(step, level). */
  paintable(part, id, level, write, words) {
    const { state } = this;
    const time = (step) => `time ${short((step * state.duration) / STEPS)} of ${state.duration}`;
    paintable(element(id), STEPS, {
      level,
      begin: () => {
        const { shares, rates } = this.state;
        this.set({ shares: shares.slice(), rates: rates.slice() });
        element("hint").hidden = true;
      },
      paint: (from, to, a, b) => {
        for (let step = from; step <= to; step++)
          write(step, from === to ? b : a + ((b - a) * (step - from)) / (to - from));
        this.changed();
      },
      describe: (step) => `${time(step)}: ${words(step)}`,
      moved: (steps) => {
        this.cursor = steps && { part, steps };
        this.redraw();
      },
    });
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
    return row.map((x, t) => `${this.it.names[t]} ${x / 10} %`).join(", ");
  }

  // Buttons and sliders

  connectControls() {
    const click = (id, act) => element(id).addEventListener("click", act);
    for (const input of all("[data-state]")) {
      input.addEventListener("input", () => {
        if (input.validity.valid) this.choose(input, input !== this.held);
        this.held = input; // one state to undo, and no other value, for as long as it is held
      });
      input.addEventListener("change", () => {
        this.held = null;
        element("told").textContent = input.validationMessage;
        this.redraw();
      });
    }
    click("best", () => (this.searching ? this.stop("Cancelled.") : this.solve()));
    click("take", () => this.set(rounded(this.best, this.state.tasks, this.it.full)));
    click("undo", () => this.undo());
    click("play", () => this.play());
    addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "z" || event.shiftKey) return;
      if (event.target.type === "number") return;
      event.preventDefault();
      this.undo();
    });
    addEventListener("hashchange", () => this.open(location.hash));
    addEventListener("resize", () => this.redraw());
  }

  choose({ id, type, checked, value: word }, keep) {
    const { state } = this;
    if (id === "rate") return this.set({ rates: repeated([Math.round(word * UNIT)]) }, keep);
    const value = parsed(id, type === "checkbox" ? String(Number(checked)) : word);
    const changes = { [id]: value };
    if (["tasks", "hidden", "activation"].includes(id)) changes.start = null; // fits no other size
    if (id === "tasks") {
      const hidden = Math.max(value, state.hidden);
      Object.assign(changes, { hidden, shares: repeated(newest(value)), brush: 0 });
    }
    if (id === "freeRates" && value !== "given") changes.ratesShown = 1;
    if (id === "ratesShown" && !value) changes.rates = repeated([oneRate(state) ?? UNIT]);
    this.set(changes, keep);
  }

  /** Play the training as a film, or end it. */
  play() {
    const begin = performance.now();
    const next = (now) => {
      if (this.film !== begin) return;
      this.played = Math.max(1, Math.min(STEPS, Math.round(((now - begin) / FILM) * STEPS)));
      this.draw();
      if (this.played < STEPS) requestAnimationFrame(next);
    };
    this.film = this.played < STEPS ? null : begin;
    this.played = STEPS;
    requestAnimationFrame(this.film ? next : () => this.draw());
  }

  // Long work

  end(job) {
    this.jobs[job]?.();
    delete this.jobs[job];
  }

  start(job, done, told) {
    this.end(job);
    const { state } = this;
    this.jobs[job] = inWorker(job, state, this.it.start(state.seed), done, told);
  }

  solve() {
    const { freeShares, freeRates } = this.state;
    if (freeShares === "given" && freeRates === "given")
      return this.stop("Nothing to search over: choose below what the best may change.");
    const key = (this.searched = bestKey(this.state));
    this.searching = true;
    element("best").textContent = "Cancel";
    element("solving").textContent = "searching …";
    const told = (value) => (element("solving").textContent = `searching … ${short(value)} so far`);
    this.start("solve", (found) => this.solved(key, found), told);
  }

  solved(key, found) {
    this.stop(found.error ? `The search failed: ${found.error}` : "");
    if (found.error) return;
    const { losses } = this.run(found);
    this.best = { ...found, key, losses, drawn: smooth(found, this.state.tasks) };
    this.draw();
  }

  /** End the search, without an outdated best that would begin it again. */
  stop(words) {
    this.end("solve");
    this.searching = false;
    if (this.best && this.best.key !== bestKey(this.state)) this.best = null;
    element("best").textContent = "Show me the best";
    element("solving").textContent = words;
    this.redraw();
  }

  showCrosses(losses) {
    this.crosses = losses.error ? null : losses;
    this.redraw();
  }

  /** What the levers depend on. */
  leverKey() {
    const { seed, rates } = this.state;
    return JSON.stringify([problemKey(this.state), seed, [...rates]]);
  }

  /** Fill in the list of the levers, one after another. */
  compareLevers() {
    this.levered = this.leverKey();
    const list = element("lever-list");
    const row = (name, words) => `<li><span>${name}</span>${words}</li>`;
    list.innerHTML = LEVERS.map(([name]) => row(name, "…")).join("");
    const values = [];
    const told = (value) => {
      const i = values.push(value) - 1;
      const ratio = values[0] / value;
      const bar = `<i style="width:${2 * Math.log2(Math.max(1, ratio))}em"></i>`;
      const words = `${bar}${short(value)}${i ? `, ${short(ratio)} times lower` : ""}`;
      list.children[i].outerHTML = row(LEVERS[i][0], words);
    };
    this.start("levers", () => {}, told);
  }

  // Files

  connectFiles() {
    for (const button of all("[data-file]"))
      button.addEventListener("click", () => this.download(button.dataset.file));
    element("link").addEventListener("click", async () => {
      history.replaceState(null, "", toAddress(this.state));
      const copied = navigator.clipboard?.writeText(location.href) ?? Promise.reject();
      const isCopied = await copied.then(
        () => true,
        () => false,
      );
      element("link").textContent = isCopied ? "Copied" : "Copy it from the address bar";
    });
    const input = element("file");
    input.addEventListener("change", () => this.read(input.files[0]));
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      this.read(event.dataTransfer.files[0]);
    });
  }

  async download(name) {
    this.settled(); // however soon it is asked for
    const { state, it, losses, parts } = this;
    const content = await FILES[name]({ state, it, losses, parts, svg: element("picture") });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content]));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  /** Show the law in a file. */
  async read(file) {
    if (!file) return;
    try {
      const law = lawState(await file.text());
      this.best = null;
      this.set(law);
      element("told").textContent = `${file.name} is open. It stays on this computer.`;
    } catch (error) {
      element("told").textContent = `${file.name}: ${error.message}`;
    }
  }
}

/* What is drawn of a best: where tasks alternate so often that only means over a while matter, these. */
function smooth({ shares, rates }, T) {
  const changes = shares.filter((share, i) => Math.abs(share - shares[i - T]) > 0.5);
  if (changes.length <= STEPS / 5) return { shares, rates };
  const means = (values, width) =>
    values.map((_, i) => {
      const near = values.filter((_, j) => {
        const apart = Math.abs(Math.floor(j / width) - Math.floor(i / width));
        return j % width === i % width && apart <= WINDOW;
      });
      return near.reduce((sum, x) => sum + x, 0) / near.length;
    });
  return { shares: means(shares, T), rates: means(rates, 1), isMean: true };
}

if (typeof document === "undefined") serve();
else core().then((built) => (window.page = new Page(built)));
