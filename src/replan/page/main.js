/* The page: one state, drawn anew after every change. */

import { LEVERS, core, inWorker, serve } from "./work.js";
import { fromAddress, toAddress } from "./address.js";
import { fileOf } from "./files.js";
import { interpolate, readLaw, readPilots } from "./law.js";
import { BEGINNING, MOST_TASKS, STEPS, UNIT, bestKey, constant, equal, newest } from "./problem.js";
import { alternates, averaged, oneRate, problemKey, rounded, segments } from "./problem.js";
import { amounts, rollOut, stateOf, training } from "./training.js";
import { layout, picture } from "./picture.js";
import { paintable } from "./paint.js";
import { LEAD } from "./steps.js";

const SEEDS = 20;
const UNDO = 200; // states kept
const PAUSE = 250; // milliseconds without a change before what takes longer is computed
const FILM = 8000; // milliseconds

const element = (id) => document.getElementById(id);
const short = (number) => (Number.isFinite(number) ? String(+number.toPrecision(3)) : "diverged");
const show = (id, shown) => (element(id).hidden = !shown);

class Page {
  constructor(built) {
    this.core = built;
    this.past = [];
    this.best = null; // { key, shares, rates, losses }
    this.measured = []; // of a pilot: [{ steps, losses }]
    this.played = STEPS;
    this.running = {}; // what ends the job, by its name
    this.state = fromAddress(location.hash);
    document.body.classList.toggle("embedded", window.top !== window);
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
    const { shares, rates } = this.state;
    this.past.push({ ...this.state, shares: shares.slice(), rates: rates.slice() });
    if (this.past.length > UNDO) this.past.shift();
  }

  undo() {
    if (this.past.length === 0) return;
    this.state = this.past.pop();
    this.changed();
  }

  changed() {
    this.crosses = null;
    this.end("sgd");
    clearTimeout(this.pause);
    if (this.running.solve && this.searching !== bestKey(this.state))
      this.stop("The problem has changed: the search was ended.");
    this.redraw();
    this.pause = setTimeout(() => this.settled(), PAUSE);
  }

  /** What need not keep up with the hand. */
  settled() {
    const { state, it } = this;
    history.replaceState(null, "", toAddress(state));
    if (state.dimension && !state.law) this.runSgd();
    if (state.levers && !state.law) this.runLevers();
    if (state.luck) for (let seed = 1; seed <= SEEDS; seed++) it.start(seed);
    if (state.luck) this.redraw();
  }

  /** What is trained. */
  get it() {
    const key = problemKey(this.state);
    if (this.trained?.key !== key) this.trained = { key, ...training(this.core, this.state) };
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
    const { state, it } = this;
    const mine = amounts(state, it.full);
    const { losses, states } = this.run(mine);
    this.losses = losses;
    const many = state.luck ? [...it.starts.keys()].map((seed) => this.run(mine, seed).losses) : [];
    const alike = this.best?.shares.length === state.shares.length;
    const best = alike ? { ...this.best, outdated: this.best.key !== bestKey(state) } : null;
    const shown = {
      ...{ best, sharesShown: state.tasks > 1, ratesShown: state.ratesShown },
      unitsShown: state.units && !state.law,
    };
    const width = element("frame").clientWidth;
    this.parts = layout(width, innerHeight, shown);
    const svg = element("picture");
    svg.setAttribute("viewBox", `0 0 ${width} ${this.parts.height}`);
    svg.style.height = `${this.parts.height}px`;
    const { crosses, measured, played } = this;
    const units = shown.unitsShown && this.cosines(states);
    const content = { it, losses, many, best, crosses, measured, played, units };
    svg.innerHTML = picture(this.parts, state, content) + this.cursorBox();
    this.place("paint-shares", this.parts.bar);
    this.place("paint-rates", this.parts.rates);
    element("reading").textContent = this.reading(many, best);
    show("take", best && !best.outdated);
    this.showControls();
    performance.mark("drawn");
  }

  place(id, part) {
    show(id, part);
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

  /** The sentence below the picture. */
  reading(many, best) {
    const { state, it } = this;
    const last = this.losses.slice(-it.losses.length);
    const each = it.losses.map((name, i) => `${name} ${short(last[i])}`).join(", ");
    const mine = this.mean(this.losses);
    const words = [`Your training ends at a loss of ${short(mine)} (${each}).`];
    if (state.law) {
      const parts = last.length > 1 ? ` (${each})` : "";
      words[0] = `The law says: your training ends at ${+mine.toPrecision(5)}${parts}.`;
      if (state.duration + it.model.begin > 1.01 * it.model.horizon)
        words.push("That is longer than the pilots: the law extrapolates.");
    }
    if (best?.outdated) words.push("The best shown belongs to another problem: outdated.");
    else if (best) words.push(this.compared(mine, this.mean(best.losses)));
    if (many.length === SEEDS) {
      const ends = many.map((losses) => this.mean(losses)).sort((a, b) => a - b);
      const middle = short((ends[SEEDS / 2 - 1] + ends[SEEDS / 2]) / 2);
      words.push(
        `Over twenty starts: median ${middle}, from ${short(ends[0])} to ${short(ends.at(-1))}.`,
      );
    }
    return words.join(" ");
  }

  compared(mine, best) {
    const { drawn, shares } = this.best;
    const means = drawn.shares === shares ? "" : " (one task per step; drawn as means)";
    const value = this.state.law ? +best.toPrecision(5) : short(best);
    const first = `The best found ends at ${value}${means}:`;
    const ratio = mine / best;
    if (!Number.isFinite(ratio)) return `${first} yours diverged.`;
    if (ratio < 0.999) return `${first} yours is even lower.`;
    if (ratio < 1.001) return `${first} yours is as low, to a thousandth.`;
    if (ratio < 2) return `${first} yours is ${short(100 * (ratio - 1))} % above it.`;
    return `${first} yours is ${short(ratio)} times as high.`;
  }

  showControls() {
    const { state, it } = this;
    for (const input of document.querySelectorAll("[data-state]"))
      input[input.type === "checkbox" ? "checked" : "value"] = state[input.id];
    for (const name of ["seed", "similarity", "luck"])
      element(name).disabled = state.start !== null;
    const [law, network] = [state.law !== null, state.law === null];
    const present = { law, network, rate: it.most > 0, shares: state.tasks > 1 };
    for (const box of document.querySelectorAll("[data-of]")) box.hidden = !present[box.dataset.of];
    element("seed").value = state.seed;
    element("seed-value").textContent = state.start ? "from your file" : `number ${state.seed}`;
    element("similarity").value = state.similarity;
    element("similarity-value").textContent = `γ = ${state.similarity}`;
    const rate = oneRate(state);
    element("rate-value").textContent = rate === null ? "drawn" : short((rate * it.full) / UNIT);
    if (rate !== null) element("rate").value = rate / UNIT;
    element("rate").max = it.most / UNIT;
    element("duration").max = state.law ? 1e9 : 200;
    element("new-tasks").textContent = state.tasks > 2 ? `tasks 2 to ${state.tasks}` : "task 2";
    element(state.ratesShown ? "paint-rates" : "paint-shares").append(element("hint"));
    element("undo").disabled = this.past.length === 0;
    element("notes").textContent = (it.model.notes ?? []).join("\n");
    element("lever-list").hidden = !state.levers || state.law !== null;
    this.showLead();
    const brushes = element("brushes");
    brushes.hidden = state.tasks < (state.law ? 2 : 3);
    for (const input of brushes.querySelectorAll("input")) {
      input.checked = Number(input.value) === state.brush;
      input.parentElement.hidden = input.value >= state.tasks;
      input.nextSibling.textContent = ` ${it.names[input.value] ?? ""}`;
    }
  }

  /** The step's sentence; its controls beside it, and the others below. */
  showLead() {
    const { step } = this.state;
    if (this.led === step) return;
    this.led = step;
    const { say, controls = [] } = LEAD[step - 1];
    element("say").textContent = say;
    element("next").textContent = step < LEAD.length ? `Next: ${LEAD[step].name} →` : "Begin again";
    [...element("steps").children].forEach((item, i) =>
      item.firstChild.toggleAttribute("aria-current", i + 1 === step),
    );
    this.boxes ??= [...element("all-controls").children];
    for (const box of this.boxes) {
      const atHand = controls.includes(box.querySelector("input, select").id);
      element(atHand ? "at-hand" : "all-controls").append(box);
    }
  }

  // Painting

  connect() {
    const share = (step) => this.state.shares[step * this.state.tasks + this.state.brush] / UNIT;
    const writeRate = (step, level) => {
      this.state.rates[step] = Math.round(level * 100) * (this.it.most / 100);
    };
    const rateAt = (step) => `rate ${short((this.state.rates[step] * this.it.full) / UNIT)}`;
    this.bar("bar", "paint-shares", share, this.paintShare, (step) => this.sharesAt(step));
    this.bar(
      "rates",
      "paint-rates",
      (step) => this.state.rates[step] / this.it.most,
      writeRate,
      rateAt,
    );
    this.connectControls();
    this.connectFiles();
  }

  /** Let one paint on a part of the picture. level(step): what is there; write(step, level). */
  bar(part, id, level, write, words) {
    const time = (step) =>
      `time ${short((step * this.state.duration) / STEPS)} of ${this.state.duration}`;
    paintable(element(id), STEPS, {
      level,
      begin: () => {
        this.remember();
        show("hint", false);
      },
      paint: (from, to, a, b) => {
        for (let step = from; step <= to; step++)
          write.call(this, step, from === to ? b : a + ((b - a) * (step - from)) / (to - from));
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
    LEAD.forEach(({ name }, i) => {
      const item = element("steps").appendChild(document.createElement("li"));
      item.innerHTML = `<button type="button">${i + 1} <span>${name}</span></button>`;
      item.firstChild.addEventListener("click", () => this.goTo(i + 1));
    });
    for (let t = 0; t < MOST_TASKS; t++) {
      const label = element("brushes").appendChild(document.createElement("label"));
      label.innerHTML = `<input type="radio" name="brush" value="${t}"> task`;
      label.firstChild.addEventListener("change", () => this.set({ brush: t }, false));
    }
    for (const input of document.querySelectorAll("[data-state]"))
      input.addEventListener("change", () => {
        const { type, checked, value } = input;
        if (!input.checkValidity()) return this.redraw(); // what was there before
        this.choose(input.id, type === "checkbox" ? checked : isNaN(value) ? value : Number(value));
      });
    this.slider("similarity", (similarity) => ({ similarity }));
    this.slider("seed", (seed) => ({ seed }));
    this.slider("rate", (rate) => ({ rates: constant(Math.round(rate * UNIT)) }));
    click("next", () => this.goTo((this.state.step % LEAD.length) + 1));
    click("best", () => (this.running.solve ? this.stop("Cancelled.") : this.solve()));
    click("take", () => this.set(rounded(this.best, this.state.tasks, this.it.full)));
    click("undo", () => this.undo());
    click("play", () => this.play());
    document.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "z" || event.shiftKey) return;
      event.preventDefault();
      this.undo();
    });
    addEventListener("hashchange", () => this.set(fromAddress(location.hash)));
    const { clientWidth: width } = element("frame");
    new ResizeObserver(() => width !== element("frame").clientWidth && this.redraw()).observe(
      element("frame"),
    );
  }

  choose(name, value) {
    const { state } = this;
    const changes = { [name]: value };
    if (["tasks", "hidden", "activation"].includes(name)) changes.start = null; // fits no other size
    if (name === "tasks") {
      changes.hidden = Math.max(value, state.hidden);
      changes.shares = segments(value, [newest(value), 0.4], [equal(value), 1]);
      changes.brush = 0;
    }
    if (name === "freeRates" && value !== "given") changes.ratesShown = true;
    this.set(changes);
  }

  /** A slider: one state to undo for each time it is held. */
  slider(id, changes) {
    let held = false;
    element(id).addEventListener("input", () => {
      this.set(changes(Number(element(id).value)), !held);
      held = true;
    });
    element(id).addEventListener("change", () => (held = false));
  }

  goTo(step) {
    this.best = null;
    this.measured = [];
    element("file").value = "";
    element("told").textContent = "";
    element("pilots").replaceChildren();
    this.set({ ...BEGINNING, rates: constant(UNIT), ...LEAD[step - 1].set(), step });
  }

  /** Play the training as a film, or end it. */
  play() {
    const playing = this.played < STEPS;
    const begin = performance.now();
    const next = () => {
      if (this.film !== begin) return;
      this.played = Math.min(STEPS, Math.round(((performance.now() - begin) / FILM) * STEPS));
      element("play").textContent = this.played < STEPS ? "■ Stop" : "▶ Play";
      this.draw();
      if (this.played < STEPS) requestAnimationFrame(next);
    };
    this.film = begin;
    if (!playing) return next();
    this.film = null;
    this.played = STEPS;
    element("play").textContent = "▶ Play";
    this.draw();
  }

  // Long work

  end(job) {
    this.running[job]?.();
    delete this.running[job];
  }

  start(job, done, told) {
    this.end(job);
    const { state } = this;
    this.running[job] = inWorker(job, state, this.it.start(state.seed), done, told);
  }

  solve() {
    const { freeShares, freeRates } = this.state;
    if (freeShares === "given" && freeRates === "given")
      return this.stop("Nothing is free: choose below what the search may change.");
    const key = bestKey(this.state);
    this.searching = key;
    element("best").textContent = "Cancel";
    element("solving").textContent = "searching …";
    this.start(
      "solve",
      (found) => this.solved(key, found),
      (value) => (element("solving").textContent = `searching … ${short(value)} so far`),
    );
  }

  solved(key, found) {
    this.stop(found.error ? `The search failed: ${found.error}` : "");
    if (found.error) return;
    const { tasks: T } = this.state;
    const drawn = alternates(found.shares, T)
      ? { shares: averaged(found.shares, T), rates: averaged(found.rates, 1) }
      : found;
    this.best = { ...found, key, drawn, losses: this.run(found).losses };
    this.draw();
    performance.mark("solved");
  }

  stop(words) {
    this.end("solve");
    element("best").textContent = "Show me the best";
    element("solving").textContent = words;
  }

  runSgd() {
    this.start("sgd", (losses) => {
      if (losses.error) return;
      this.crosses = losses;
      this.redraw();
    });
  }

  /** Fill in the table of the levers, one after another. */
  runLevers() {
    const { state } = this;
    const key = JSON.stringify([problemKey(state), state.seed, oneRate(state)]);
    if (this.levered === key) return;
    this.levered = key;
    const list = element("lever-list");
    const values = [];
    list.classList.add("outdated");
    this.start(
      "levers",
      () => {},
      (value) => {
        if (values.length === 0) list.replaceChildren();
        values.push(value);
        list.classList.remove("outdated");
        const saved = 100 * (1 - value / values[0]);
        const words = values.length === 1 ? "" : `, saves ${saved.toFixed(1)} %`;
        const item = list.appendChild(document.createElement("li"));
        item.innerHTML = `<span>${LEVERS[values.length - 1][0]}</span><i style="width:${Math.max(0, saved) * 0.4}%"></i>${short(value)}${words}`;
      },
    );
  }

  // Files

  connectFiles() {
    for (const button of document.querySelectorAll("[data-file]"))
      button.addEventListener("click", () => this.download(button.dataset.file));
    element("link").addEventListener("click", async () => {
      history.replaceState(null, "", toAddress(this.state));
      const copied = navigator.clipboard?.writeText(location.href) ?? Promise.reject();
      const words = await copied.then(
        () => "Copied",
        () => "Copy it from the address bar",
      );
      element("link").textContent = words;
    });
    const input = element("file");
    input.addEventListener("change", () => this.read(input.files));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.read(event.dataTransfer.files);
    });
  }

  async download(name) {
    const { state, it, losses, parts } = this;
    const start = it.start(state.seed);
    const content = fileOf(name, { state, it, losses, start, parts, svg: element("picture") });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await content]));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  /** Read a law, or the pilots to lay over it. */
  async read(files) {
    for (const file of files) {
      const text = await file.text();
      try {
        if (file.name.endsWith(".csv")) this.showPilots(readPilots(text));
        else this.set({ ...stateOf(readLaw(text)), step: LEAD.length });
        element("told").textContent = `${file.name} was read here; it was sent nowhere.`;
      } catch (error) {
        element("told").textContent = `${file.name}: ${error.message}`;
      }
    }
  }

  /** A button for each pilot: its schedule is drawn, and its losses beside those of the law. */
  showPilots(pilots) {
    if (!this.state.law) throw new Error("The law that was fitted to these pilots comes first.");
    const { model, full } = this.it;
    const buttons = pilots.map((pilot) => {
      const button = document.createElement("button");
      button.textContent = `pilot ${pilot.name}`;
      button.addEventListener("click", () => {
        const duration = pilot.steps.at(-1) - model.begin;
        const at = (i) =>
          interpolate(model.begin + ((i + 0.5) * duration) / STEPS, pilot.steps, pilot.rates);
        const rates = Int16Array.from({ length: STEPS }, (_, i) =>
          Math.round((at(i) / full) * UNIT),
        );
        this.measured = [
          { steps: pilot.steps.map((step) => step - model.begin), losses: pilot.losses },
        ];
        this.set({ duration, rates });
      });
      return button;
    });
    element("pilots").replaceChildren(...buttons);
    buttons[0].click();
  }
}

if (typeof document === "undefined") serve();
else core().then((built) => (window.page = new Page(built)));
