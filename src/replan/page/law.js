/* A law that `replan fit` wrote, as a model of the page: RateLaw and ShareLaw of the library. Both
   are modes that relax, x' = gain − rate x, in closed form over the pieces of a schedule. Rates and
   gains are linear in features, powers of the controls (shares, or a rate over the peak); losses
   are sums of terms, weight × mode^power, perhaps times another mode. All laws of the file stand
   side by side, with terms divided by their number. n modes, F features. */

const [KAPPA, SLOWING, LEAST] = [2, 0.25, 1e-9]; // of rate_law.py
const [OVERFIT, LEAST_RATE] = [3, 1e-12]; // of share_law.py
const TINY = 1e-30; // the rate of what does not relax, and the least positive number
const FASTER = 2; // times the fastest change of a pilot's rate: how fast those of plans may change
const BEST = 250; // steps of the best pilot's schedule
const FITTED = ["", "weights", "duration", "steps", "lr"]; // keys of problems that are heeded here

const filled = (count, at) => Float64Array.from({ length: count }, (_, i) => at(i));
const spaced = (low, high, count) => filled(count, (i) => low * (high / low) ** (i / (count - 1)));
const [RATE_MODES, SHARE_MODES] = [spaced(0.003, 10, 6), spaced(1e-4, 3000, 16)];
const sum = (values) => values.reduce((total, x) => total + x, 0);
const dot = (a, b) => a.reduce((total, x, i) => total + x * b[i], 0);
const rowOf = (values, width, i) => values.subarray(i * width, (i + 1) * width);
export const rowsOf = (values, width) =>
  Array.from({ length: values.length / width }, (_, i) => rowOf(values, width, i));

/** The law in the text of a file that `replan fit … --out` wrote, TOML or JSON. */
export function readLaw(text) {
  const kinds = { "rate-law": rateLaw, "share-law": shareLaw };
  let file = null;
  try {
    file = JSON.parse(asJson(text));
  } catch {
    // refused below
  }
  if (!Object.hasOwn(kinds, file?.model?.kind))
    throw new Error("The file must be a law, whole, as `replan fit … --out law.toml` writes it.");
  const keys = Object.keys({ ...file.limits, ...file.objective, ...file.training });
  const other = keys.find((key) => !FITTED.includes(key));
  if (other)
    throw new Error(`\`${other}\` must be absent, as it is from what \`replan fit\` writes.`);
  return new Law(file, kinds[file.model.kind]);
}

/* TOML as replan writes it, as JSON: keys in quotes, sections as objects that begin with an empty
   key. In both, numbers that are not finite become null. */
function asJson(text) {
  const tokens =
    /("(?:[^"\\\n]|\\.)*")(\s*=)?|#.*|^\[([a-z]+)\]|([\w-]+)\s*=|-?\b(?:inf|nan|Infinity|NaN)\b/gm;
  const body = text.replace(tokens, (token, quoted, equals, section, bare, at) => {
    if (section) return `},"${section}":{"":0`;
    if (!equals && !bare) return quoted ?? (token.startsWith("#") ? "" : "null");
    return `${"\n".includes(text.charAt(at - 1)) ? "," : ""}${quoted ?? `"${bare}"`}:`;
  });
  return text.trimStart().startsWith("{") ? body : `{"":{"":0${body}}}`;
}

/* The numbers at a path of the file, nested as the sizes say (n: any number), as one array. */
function numbers(file, path, least, ...sizes) {
  const flat = (x, [size, ...inner]) => {
    const fits = size ? x?.length > 0 && [x.length, "n"].includes(size) : Number.isFinite(x);
    const expected = sizes.length ? `${sizes.join(" × ")} finite numbers` : "a finite number";
    const bound = least > 0 ? " above 0" : least === 0 ? " of at least 0" : "";
    if (!fits || x < least) throw new Error(`\`${path}\` must be ${expected}${bound}.`);
    return size ? Array.from(x).flatMap((y) => flat(y, inner)) : x;
  };
  const found = path.split(".").reduce((section, key) => section?.[key], file);
  const value = flat(found, sizes);
  return sizes.length ? Float64Array.from(value) : value;
}

/* The number at a place, linear between those known at ascending xs. */
export function interpolate(place, xs, ys) {
  const i = xs.findIndex((x) => x > place);
  if (i <= 0) return ys.at(i);
  return ys[i - 1] + ((ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])) * (place - xs[i - 1]);
}

class Law {
  constructor(file, kind) {
    const read = (...what) => numbers(file, ...what);
    Object.assign(this, { kind: file.model.kind, notes: file.fit?.warnings ?? [] });
    // short, for a link: without what only other runs need, and numbers of no use
    const covered = { ...file.model.covered, fitted: undefined, history: undefined };
    const model = { ...file.model, covered };
    this.text = JSON.stringify({ ...file, model, fit: { warnings: this.notes } });
    this.unit = read("model.unit", TINY);
    this.horizon = read("model.covered.horizon", TINY);
    this.begin = read("model.covered.starts_at", 0);
    this.duration = read("training.duration", TINY);
    this.freeShares = { true: "curve", constant: "constant" }[file.control?.tasks] ?? "given";
    Object.assign(this, { peak: null, lr: 1, freeRates: "given", range: null, changes: null });
    Object.assign(this, kind(file, read));
    this.tasks = this.taskNames.length;
    this.weights = read("objective.weights", 0, this.lossNames.length);
    this.start = read("start.state", 0, this.modes.length);
    this.full = this.range?.[1] ?? this.lr; // the largest rate of plans
    this.pilots = (covered.curves ?? []).map((pilot) => this.pilot(pilot));
    for (const key of ["rest", "rates", "gains"])
      this[key] = Float64Array.from(this.modes.flatMap((mode) => Array.from(mode[key])));
  }

  integrate(start, schedule) {
    const { states } = this.relax(start, schedule);
    const losses = rowsOf(states, start.length).flatMap((state) => Array.from(this.end(state)[0]));
    return { losses: Float64Array.from(losses), states };
  }

  /* The states at the edges of pieces, and what `gradient` needs: features and their slopes by
     the controls, and of each mode in each piece its rate and gain, decay and growth by a gain. */
  relax(start, { shares, rates: lr, lengths }) {
    const [n, F, count] = [start.length, this.powers.length, lengths.length];
    const arrays = Array.from({ length: 4 }, () => new Float64Array(count * n));
    const [rates, gains, decays, growths] = arrays;
    const [features, slopes] = [new Float64Array(count * F), new Float64Array(count * F)];
    const states = new Float64Array((count + 1) * n);
    states.set(start);
    for (let k = 0, j = 0; k < count; k++) {
      for (let f = 0, at = k * F; f < F; f++, at++) {
        const [power, least] = [this.powers[f], this.powers[f] === 1 ? -1 : LEAST];
        const control = this.peak ? lr[k] / this.peak : shares[at];
        features[at] = Math.max(control, least) ** power;
        slopes[at] = control > least ? (power * control ** (power - 1)) / (this.peak ?? 1) : 0;
      }
      for (let i = 0; i < n; i++, j++) {
        let [rate, gain] = [this.rest[i], 0];
        for (let f = 0; f < F; f++) {
          rate += this.rates[i * F + f] * features[k * F + f];
          gain += this.gains[i * F + f] * features[k * F + f];
        }
        const length = lengths[k] / this.unit;
        const decay = Math.exp(-rate * length);
        const growth = decay === 1 ? length : (1 - decay) / rate;
        states[j + n] = decay * states[j] + growth * gain;
        [rates[j], gains[j], decays[j], growths[j]] = [rate, gain, decay, growth];
      }
    }
    return { states, features, slopes, rates, gains, decays, growths };
  }

  gradient(start, schedule, weights) {
    const [n, F, count] = [start.length, this.powers.length, schedule.lengths.length];
    const { states, slopes, rates, gains, decays, growths } = this.relax(start, schedule);
    const [losses, adjoint] = this.end(states.subarray(count * n), weights);
    const [byShares, byRates] = [this.tasks, 1].map((width) => new Float64Array(count * width));
    for (let k = count - 1; k >= 0; k--)
      for (let i = 0, j = k * n; i < n; i++, j++) {
        const [length, target] = [schedule.lengths[k] / this.unit, gains[j] / rates[j]];
        const byGain = adjoint[i] * growths[j];
        adjoint[i] *= decays[j];
        const byRate = adjoint[i] * length * (target - states[j]) - byGain * target;
        for (let f = 0, at = k * F; f < F; f++, at++) {
          const byFeature = byRate * this.rates[i * F + f] + byGain * this.gains[i * F + f];
          if (this.peak) byRates[k] += byFeature * slopes[at];
          else byShares[at] += byFeature * slopes[at];
        }
      }
    return { value: dot(losses, weights), losses, byShares, byRates };
  }

  /* The losses at a state, and the slopes of their weighted sum if there are weights. */
  end(state, weights) {
    const [losses, slopes] = [this.floors.slice(), new Float64Array(state.length)];
    for (const { loss, weight, at, power, other } of this.terms) {
      const [value, factor] = [weight * state[at] ** power, other ? state[other] : 1];
      losses[loss] += value * factor;
      if (!weights) continue;
      slopes[at] += weights[loss] * weight * power * state[at] ** (power - 1) * factor;
      if (other) slopes[other] += weights[loss] * value;
    }
    return [losses, slopes];
  }

  /** A pilot from where plans begin: its rates on BEST steps, and what it measured. */
  pilot({ run, schedule: [times, values], losses: [measured, losses] }) {
    const duration = times.at(-1) - this.begin;
    const at = (k) => interpolate(this.begin + ((k + 0.5) / BEST) * duration, times, values);
    return {
      run,
      duration,
      rates: filled(BEST, at),
      steps: measured.map((x) => x - this.begin),
      losses,
    };
  }

  /** What trainers execute, as `replan solve --csv` writes it: each row holds from its step on. */
  scheduleFile({ shares, rates }, duration) {
    const { columns, progress, steps } = this.course;
    const count = rates.length;
    const at = (k) => this.begin + duration * interpolate(k / count, progress, steps);
    const [exact, whole] = [filled(count + 1, at), filled(count + 1, (k) => Math.round(at(k)))];
    const shown = new Set(whole).size > count ? whole : exact; // they ascend
    const rows = Array.from(shown, (step, i) => {
      const k = Math.min(i, count - 1);
      return [step, ...(this.peak ? [rates[k]] : this.mix(rowOf(shares, this.tasks, k)))];
    });
    return [["step", ...columns], ...rows, ""].join("\n");
  }
}

function rateLaw({ control, model: { covered } }, read) {
  const laws = rowsOf(read("model.laws", -Infinity, "n", 7), 7);
  if (laws.some((law) => law.some((x, i) => x < 0 && i !== 0 && i !== 5)))
    throw new Error("`model.laws` must be numbers of at least 0, but for floors and spreads.");
  const only = (f, x) => filled(2 + laws.length, (i) => (i === f ? x : 0));
  const powers = [1, 1 + SLOWING, ...laws.map((law) => 1 + SLOWING + law[6])];
  const modes = [{ rest: [TINY], rates: only(0, 0), gains: only(0, 1) }]; // S; then the noise
  const terms = [];
  laws.forEach(([, signal, exponent, noise, pace, spread], p) => {
    const rest = { loss: 0, weight: signal / laws.length, at: 0, power: -exponent };
    terms.push(rest);
    const shape = RATE_MODES.map((x) => x ** spread * Math.exp(-x));
    RATE_MODES.forEach((x, z) => {
      const [rates, gains] = [only(1, pace * x), only(2 + p, (pace * x * shape[z]) / sum(shape))];
      const [other, weight] = [modes.length, noise / laws.length];
      modes.push({ rest: [TINY], rates, gains });
      terms.push({ loss: 0, weight, at: other, power: 1 });
      terms.push({ ...rest, weight: KAPPA * signal * weight, other });
    });
  });
  const [rise, fall] = read("model.covered.changes", 0, 2);
  const times = read("model.covered.best.times", 0, "n");
  const rates = read("model.covered.best.rates", 0, times.length);
  const best = filled(BEST, (k) => interpolate((k + 0.5) / BEST, times, rates));
  const floors = [sum(laws.map(([floor]) => floor / laws.length))];
  const law = { powers, modes, terms, floors, taskNames: ["training"], lossNames: ["loss"] };
  law.peak = read("model.peak", TINY);
  law.lr = read("training.lr", 0);
  if (control?.lr) {
    law.freeRates = control.lr.constant ? "constant" : "curve";
    law.range = ["min", "max"].map((end) => read(`control.lr.${end}`, 0));
  }
  law.changes = [FASTER * fall, FASTER * rise];
  law.best = { run: covered.best?.run, shares: best.map(() => 1), rates: best };
  law.course = { columns: ["lr"], progress: [0, 1], steps: [0, 1] };
  return law;
}

function shareLaw({ model: { domains, losses } }, read) {
  for (const [key, words] of Object.entries({ domains, losses }))
    if (!Array.isArray(words) || !words.every((word) => typeof word === "string"))
      throw new Error(`\`model.${key}\` must be a list of names.`);
  const [D, L] = [domains.length, losses.length];
  const mixtures = rowsOf(read("model.mixtures", 0, "n", D), D);
  const laws = rowsOf(read("model.laws", 0, "n", L, 5 + 3 * D), 5 + 3 * D);
  const repeats = read("model.repeats", 0, D);
  const columns = domains.map((_, d) => mixtures.map((row) => row[d]));
  const mix = (shares) => columns.map((column) => dot(shares, column));
  const byTask = (of) => mixtures.map((row) => dot(row, filled(D, of)));
  const [modes, terms, floors] = [[], [], losses.map(() => 0)];
  laws.forEach((law, i) => {
    const [floor, signal, exponent, memorising, fading] = law;
    const [transfer, forgetting, overfit] = rowsOf(law.subarray(5), D);
    const [loss, part] = [i % L, L / laws.length];
    const add = (rest, rates, gains, weight, power) => {
      terms.push({ loss, weight: part * weight, at: modes.length, power });
      modes.push({ rest: [rest + LEAST_RATE], rates: byTask(rates), gains: byTask(gains) });
    };
    floors[loss] += part * floor;
    const shape = SHARE_MODES.map((x) => x ** exponent);
    SHARE_MODES.forEach((x, z) => {
      const rates = (d) => x * transfer[d] + forgetting[d];
      add(0, rates, (d) => forgetting[d], (signal * shape[z]) / sum(shape), 1);
    });
    overfit.forEach((weight, d) => {
      const own = (x) => (other) => (other === d ? x : 0);
      const seen = memorising * repeats[d];
      add(fading, own(seen - fading), own(seen), weight, OVERFIT);
    });
  });
  const progress = read("model.covered.best.progress", 0, "n");
  const steps = read("model.covered.best.steps", 0, progress.length);
  const powers = mixtures.map(() => 1);
  const law = { powers, modes, terms, floors, mix, lossNames: losses };
  law.taskNames = mixtures.map((row) => nameOf(row, domains));
  law.best = {
    shares: filled(BEST * mixtures.length, () => 1 / mixtures.length),
    rates: filled(BEST, () => 1),
  };
  law.course = { columns: domains.map((name) => `share_${name}`), progress, steps };
  return law;
}

/* A mixture's name: a domain, or shares in percent. */
function nameOf(row, domains) {
  const parts = domains.map((name, d) => `${Number((100 * row[d]).toPrecision(3))} % ${name}`);
  return domains.find((_, d) => row[d] === 1) ?? parts.filter((_, d) => row[d] > 0).join(" + ");
}
