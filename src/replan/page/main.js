/* The page: one state, drawn anew after every change. */

import { JOBS, LEVERS, SEEDS, core, inWorker, serve } from "./work.js";
import { FILES } from "./files.js";
import { MOST_TIME, STEPS, UNIT, fromAddress, keyOf, lawState, newest } from "./state.js";
import { oneRate, parsed, proportional, repeated, rounded, toAddress } from "./state.js";
import { ACCURATE, QUICK, amounts, finalMean, rollOut, training } from "./training.js";
import { layout, picture } from "./picture.js";
import { paintable } from "./paint.js";

const PAUSE = 250; // milliseconds without a change before what takes longer is computed
const FILM = 8000; // milliseconds
const ROUNDING = 1e-14; // of losses, which are differences of numbers near 1
const WINDOW = 8; // steps on both sides that a mean is over
const OWN = { textContent: "A problem of your own. Paint on the bar, or ask for the best." };

const element = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const short = (number) => (Number.isFinite(number) ? numbers.format(number) : "diverged");

function tell(words) {
  element("told").textContent = words;
}

class Page {
  constructor(built) {
    this.core = built;
    this.past = [];
    this.begun = {}; // { key, cancel, progress, result } of each job
    document.body.classList.toggle("embedded", window.top !== window);
    this.open();
    this.connectBars();
    this.connectControls();
    this.connectFiles();
  }

  // The state and what follows from it

  /** Go to the state of the address, without the results of another. */
  open() {
    clearInterval(this.film);
    Object.assign(this, { asked: false, played: STEPS });
    const preset = (begin) =>
      all("#steps a").find(({ hash }) => hash.startsWith(`${begin}&`))?.hash;
    try {
      this.set(fromAddress(preset(location.hash || "#p=1") ?? location.hash), !!this.state);
    } catch {
      this.set(fromAddress(preset("#p=1")), !!this.state);
      tell("This link is damaged or incomplete. This is the first step instead.");
    }
  }

  /** Go to another state; `keep`: undo comes back to this one. */
  set(changes, keep = true) {
    if (keep) this.past.push(this.state);
    this.state = { ...this.state, ...changes };
    this.changed();
  }

  undo() {
    this.set(this.past.pop() ?? {}, false);
  }

  changed() {
    clearTimeout(this.pause);
    this.pause = setTimeout(() => this.settled(), PAUSE);
    this.accuracy = QUICK;
    for (const [job, { key }] of Object.entries(this.begun))
      if (key !== keyOf(job, this.state) || !this.wants(job)) this.end(job);
    element("link").textContent = "Copy the link";
    tell("");
    this.redraw();
  }

  /** What need not keep up with the hand. */
  settled() {
    clearTimeout(this.pause);
    this.accuracy = ACCURATE;
    const { freeShares, freeRates } = this.state;
    if (this.asked && freeShares === "given" && freeRates === "given") {
      this.stop();
      tell("Nothing to search over: choose below what the best may change.");
    }
    history.replaceState(null, "", toAddress(this.state));
    for (const job of Object.keys(JOBS)) if (this.wants(job) && !this.begun[job]) this.begin(job);
    this.draw();
    element("announced").textContent = element("reading").textContent;
    for (const say of this.says ?? []) say();
  }

  /** What is trained. */
  get it() {
    return training(this.core, this.state, this.accuracy);
  }

  run(controls) {
    return rollOut(this.it, controls, this.state.duration, this.state.seed);
  }

  mean(losses) {
    return finalMean(this.it, losses);
  }

  // Long work, in a worker

  wants(job) {
    return job === "solve" ? this.asked : this.state[job] && !this.state.law;
  }

  begin(job) {
    const { state } = this;
    const work = (this.begun[job] = { key: keyOf(job, state) });
    work.cancel = inWorker(job, state, this.it.start(state.seed), (message) => {
      if (this.begun[job] !== work) return;
      Object.assign(work, message);
      if (work.error) tell(`The computation failed: ${work.error}`);
      if (job === "solve" && work.error) this.stop();
      if (work.result) this.settled();
      else this.redraw();
    });
  }

  end(job) {
    this.begun[job]?.cancel();
    delete this.begun[job];
  }

  /** The best of these settings, where it was asked for and is found. */
  get best() {
    const { result, ...work } = this.begun.solve ?? {};
    if (!result || work.best) return work.best;
    const drawn = smooth(result, this.state.tasks);
    return (this.begun.solve.best = { ...result, losses: this.run(result).losses, drawn });
  }

  get searching() {
    return this.asked && !this.best;
  }

  stop() {
    this.asked = false;
    this.end("solve");
    this.redraw();
  }

  // Drawing

  redraw() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = null;
    const { state, it, best, played } = this;
    const { losses, states } = this.run(amounts(state, it.full));
    this.losses = losses;
    this.showWords();
    this.showControls();
    this.showLead();
    const units = state.units && !state.law ? this.cosines(states) : null;
    const { clientWidth: width, offsetTop } = element("frame");
    const ratesShown = state.ratesShown || oneRate(state) === null;
    const shown = { ...state, ratesShown, best, units };
    const parts = (this.parts = layout(width, innerHeight - offsetTop, shown));
    const svg = element("picture");
    svg.setAttribute("viewBox", `0 0 ${width} ${parts.height}`);
    svg.style.height = `${parts.height}px`;
    const { luck, sgd } = this.begun;
    const results = { many: luck?.result ?? [], crosses: sgd?.result };
    svg.innerHTML = picture(parts, state, { it, losses, best, played, units, ...results });
    this.place("paint-shares", parts.bar);
    this.place("paint-rates", parts.rates);
  }

  place(id, part) {
    element(id).hidden = !part;
    const { left, right } = this.parts;
    const [width, top, height] = [right - left, part?.top, part?.height];
    for (const [name, value] of Object.entries({ left, width, top, height }))
      element(id).style[name] = `${value}px`;
  }

  /** How alike the hidden units are to the teachers (K × T), where the film is. */
  cosines(states) {
    const { hidden: K, tasks: T } = this.state;
    const { size } = this.it.model;
    const now = states.subarray(this.played * size, (this.played + 1) * size);
    const long = (i) => Math.sqrt(now[Math.floor(i / T) * (K + 1)]);
    return now.slice(K * K, K * (K + T)).map((overlap, i) => overlap / long(i));
  }

  showWords() {
    element("reading").textContent = this.reading();
    const progress = this.begun.solve?.progress;
    const sofar = progress === undefined ? "" : ` ${short(progress)} so far`;
    element("solving").textContent = this.searching ? `searching …${sofar}` : "";
    const next = this.best ? "Make the best mine" : "Show me the best";
    element("best").textContent = this.searching ? "Cancel" : next;
    this.showLevers(this.begun.levers?.progress ?? []);
  }

  /** The sentences above the picture. */
  reading() {
    const { state, it, losses, best } = this;
    const last = losses.slice(-it.losses.length);
    const each = it.losses.map((name, i) => `${name}: ${short(last[i])}`).join(", ");
    const parts = last.length > 1 ? ` (${each})` : "";
    const mine = this.mean(losses);
    const words = [`Your training ends at a loss of ${short(mine)}${parts}.`];
    if (state.law) {
      const error = `give or take ${+(100 * it.model.error).toPrecision(2)}\u00a0%`;
      words[0] = `Predicted final loss: ${+mine.toPrecision(5)}${parts}, ${error}.`;
      if (state.duration + it.model.begin > 1.01 * it.model.horizon)
        words.push("That is longer than the pilots: the law extrapolates.");
    }
    if (best) words.push(this.compared(mine, this.mean(best.losses)));
    if (this.begun.luck?.result) words.push(this.spread(this.begun.luck.result));
    if (Number.isNaN(this.begun.sgd?.result?.at(-1)))
      words.push(`SGD with N = ${state.sgd} diverged.`);
    return words.join(" ");
  }

  spread(many) {
    const ends = many.map((one) => this.mean(one)).sort((a, b) => a - b);
    const middle = short((ends[SEEDS.length / 2 - 1] + ends[SEEDS.length / 2]) / 2);
    const range = `from ${short(ends[0])} to ${short(ends.at(-1))}`;
    return `Over the twenty starts: median ${middle}, ${range}.`;
  }

  compared(mine, best) {
    const value = this.state.law ? +best.toPrecision(5) : short(best);
    const means = this.best.drawn.isMean ? " (one task per step; drawn as means)" : "";
    const ratio = (mine + ROUNDING) / (best + ROUNDING);
    let words = `is ${short(ratio)} times as high`;
    if (Number.isNaN(ratio)) words = "diverged";
    else if (ratio < 0.999) words = "is even lower";
    else if (ratio < 1.001) words = "matches it to within 0.1 %";
    else if (ratio < 2) words = `is ${short(100 * (ratio - 1))}\u00a0% higher`;
    if (Math.abs(ratio - 1) < this.it.model.error) words += ", which is within the law's error";
    return `The best found ends at ${value}${means}: yours ${words}.`;
  }

  /** The best losses with each lever alone, as far as they are there. */
  showLevers(values) {
    element("lever-list").hidden = !this.state.levers || this.state.law !== null;
    const words = LEVERS.map(([name], i) => {
      const ratio = values[0] / values[i];
      const bar = `<span><i style="width:${20 * Math.log2(Math.max(1, ratio))}%"></i></span>`;
      const value = i ? `${short(values[i])}&nbsp;(÷&nbsp;${short(ratio)})` : short(values[i]);
      return `<li><span>${name}</span>${i < values.length ? bar + value : "…"}</li>`;
    });
    element("lever-list").innerHTML = words.join("");
  }

  showControls() {
    const { state, it } = this;
    const rate = oneRate(state);
    const law = state.law !== null;
    element("rate").max = it.most / UNIT;
    for (const input of all("[data-state]")) {
      const value = input.id === "rate" ? (rate ?? UNIT) / UNIT : state[input.id];
      if (input.type === "checkbox") input.checked = value;
      else if (input.type !== "number" || input !== document.activeElement) input.value = value;
    }
    for (const name of ["seed", "similarity", "luck"])
      element(name).disabled = state.start !== null;
    const hasRate = it.most > 0;
    const present = { law, network: !law, rate: hasRate, shares: state.tasks > 1 };
    present["rate-law"] = law && hasRate;
    present.solve = state.freeRates !== "given" || (state.freeShares !== "given" && rate !== null);
    for (const box of all("[data-of]")) box.hidden = !present[box.dataset.of];
    element("seed-value").textContent = state.start ? "from your file" : state.seed;
    element("similarity-value").textContent = `γ = ${state.similarity}`;
    const constant = rate === null ? "as drawn" : short((rate * it.full) / UNIT);
    element("rate-value").textContent = element("rate").ariaValueText = constant;
    element("new-tasks").textContent = state.tasks > 2 ? `${state.tasks - 1} more tasks` : "task 2";
    element("undo").disabled = this.past.length === 0;
    element("play").textContent = this.played < STEPS ? "■ Stop" : "▶ Play";
    element("notes").textContent = (it.model.notes ?? []).join("\n");
    element("brushes").hidden = state.tasks < (law ? 2 : 3);
    const times = law ? { min: 1e-30, max: 1e30 } : { min: 1, max: MOST_TIME };
    Object.assign(element("duration"), times);
    this.showChoices("brushes", it.names, state.brush, (brush) => this.set({ brush }, false));
    const pilots = it.model.pilots?.map(({ run }) => run) ?? [];
    this.showChoices("pilots", pilots, state.pilot, (pilot) =>
      this.set(lawState(state.law, pilot)),
    );
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
    const { step } = this.state;
    if (this.led === step) return;
    this.led = step;
    const [item, next] = [items[step - 1], items[step % items.length]];
    const { textContent, dataset } = item?.querySelector("p") ?? OWN;
    element("say").textContent = textContent;
    const first = step === items.length ? "Again" : "Next";
    element("next").textContent = `${first}: ${next.querySelector("span").textContent} →`;
    element("next").href = next.querySelector("a").href;
    for (const { firstChild: link } of items) link.removeAttribute("aria-current");
    item?.firstChild.setAttribute("aria-current", "step");
    this.boxes ??= [...element("all-controls").children];
    for (const box of this.boxes) {
      const id = box.querySelector("input, select").id;
      const atHand = dataset?.controls?.split(" ").includes(id);
      element(atHand ? "at-hand" : "all-controls").append(box);
    }
  }

  // Painting

  connectBars() {
    const begin = () => {
      const { shares, rates } = this.state;
      this.set({ shares: shares.slice(), rates: rates.slice(), pilot: -1 });
    };
    const undo = () => this.undo();
    const painted = () => this.changed();
    const time = (step) => short((step * this.state.duration) / STEPS);
    const bar = (id, level, write, words) => {
      const describe = (step) => `time ${time(step)} of ${this.state.duration}: ${words(step)}`;
      return paintable(element(id), STEPS, { begin, level, write, painted, undo, describe });
    };
    const sayShare = bar(
      "paint-shares",
      (step) => this.shares(step)[this.state.brush] / UNIT,
      (step, level) => this.paintShare(step, level),
      (step) => this.it.names.map((name, t) => `${name} ${this.shares(step)[t] / 10} %`).join(", "),
    );
    const sayRate = bar(
      "paint-rates",
      (step) => this.state.rates[step] / this.it.most,
      (step, level) => (this.state.rates[step] = Math.round(level * 100) * (this.it.most / 100)),
      (step) => `rate ${short((this.state.rates[step] / UNIT) * this.it.full)}`,
    );
    this.says = [sayShare, sayRate];
  }

  /** The shares of a step, to be read or written. */
  shares(step) {
    const { shares, tasks: T } = this.state;
    return shares.subarray(step * T, (step + 1) * T);
  }

  /** Give the brush's task this share; the others keep their proportions. */
  paintShare(step, level) {
    const { brush, tasks } = this.state;
    const row = this.shares(step);
    const share = Math.round(100 * level) * (UNIT / 100);
    const before = this.past.at(-1).shares.slice(step * tasks, (step + 1) * tasks); // the stroke
    const others = Array.from(before).toSpliced(brush, 1);
    const parts = before[brush] < UNIT ? others : others.fill(1);
    row.set(proportional(parts, UNIT - share).toSpliced(brush, 0, share));
  }

  // Buttons and sliders

  connectControls() {
    const click = (id, act) => element(id).addEventListener("click", act);
    for (const input of all("[data-state]")) {
      input.addEventListener("input", () => {
        if (input.type !== "range") return;
        this.choose(input, input !== this.held);
        this.held = input; // one state to undo for as long as it is held
      });
      input.addEventListener("change", () => {
        this.held = null;
        if (!input.validity.valid)
          tell(`${input.labels[0].firstChild.data.trim()}: ${input.validationMessage}`);
        else if (input.type !== "range") this.choose(input);
        this.redraw();
      });
    }
    click("best", () => {
      if (this.searching) return this.stop();
      const { best, state, it } = this;
      if (best) return this.set({ ...rounded(best, state.tasks, it.full), pilot: -1 });
      this.asked = true;
      this.settled();
    });
    click("undo", () => this.undo());
    click("play", () => this.play());
    addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "z" || event.shiftKey) return;
      if (event.target.type === "number") return;
      event.preventDefault();
      this.undo();
    });
    addEventListener("hashchange", () => this.open());
    addEventListener("resize", () => this.redraw());
    addEventListener("pointerdown", () => {
      tell("");
      this.held = null;
    });
  }

  choose({ id, type, checked, value: word }, keep = true) {
    const { state } = this;
    if (id === "rate")
      return this.set({ rates: repeated([Math.round(word * UNIT)]), pilot: -1 }, keep);
    const value = parsed(id, type === "checkbox" ? String(Number(checked)) : word);
    const changes = { [id]: value };
    if (["tasks", "hidden", "activation"].includes(id)) changes.start = null; // fits no other size
    if (id === "tasks") {
      Object.assign(changes, { hidden: value, shares: repeated(newest(value)), brush: 0 });
    }
    if (id === "duration") changes.pilot = -1; // it had another
    if (id === "freeRates" && value !== "given") changes.ratesShown = 1;
    if (id === "ratesShown" && !value) changes.rates = repeated([oneRate(state) ?? UNIT]);
    this.set(changes, keep);
    if (id === "levers") element("lever-list").scrollIntoView({ block: "nearest" });
  }

  /** Play the training as a film, or end it. */
  play() {
    clearInterval(this.film);
    this.played = this.played < STEPS ? STEPS : 1;
    if (this.played < STEPS)
      this.film = setInterval(() => {
        this.played += 1;
        if (this.played === STEPS) clearInterval(this.film);
        this.redraw();
      }, FILM / STEPS);
    this.draw();
  }

  // Files

  connectFiles() {
    for (const button of all("[data-file]"))
      button.addEventListener("click", () => this.download(button.dataset.file));
    element("link").addEventListener("click", async ({ target }) => {
      history.replaceState(null, "", toAddress(this.state));
      try {
        await navigator.clipboard.writeText(location.href);
        target.textContent = "Copied";
      } catch {
        target.textContent = "Copy it from the address bar";
      }
    });
    element("file").addEventListener("change", async ({ target }) => {
      await this.read(target.files[0]);
      target.value = ""; // whatever happens to it later, the state is what is open
    });
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
  }

  /** Show the law in a file. */
  async read(file) {
    if (!file) return;
    try {
      const law = lawState(await file.text());
      this.asked = false;
      this.set(law);
      tell(`${file.name} is open. It stays on this computer.`);
    } catch (error) {
      tell(`${file.name}: ${error.message}`);
    }
  }
}

/* What is drawn of a best: where tasks alternate so often that only means over a while matter, these. */
function smooth({ shares, rates }, T) {
  const changes = shares.filter((share, i) => Math.abs(share - shares[i - T]) > 0.5);
  if (changes.length <= STEPS / 5) return { shares, rates };
  const means = (values, width) =>
    values.map((_, i) => {
      const near = [];
      for (let j = -WINDOW; j <= WINDOW; j++) near.push(values[i + j * width] ?? []);
      return near.flat().reduce((sum, x) => sum + x) / near.flat().length;
    });
  return { shares: means(shares, T), rates: means(rates, 1), isMean: true };
}

if (typeof document === "undefined") serve();
else core().then((built) => (window.page = new Page(built)));
