/* A law that `replan fit` wrote, as a model of the page: RateLaw and ShareLaw of the library. Both
   are modes that relax, x' = gain − rate x, in closed form over the pieces of a schedule. Rates and
   gains are linear in powers of the controls: the shares of tasks, or the learning rate over its
   peak. Losses are sums of floors and terms, [loss, weight, mode, power, another mode if any],
   weight × mode^power × other: the means of all P laws in the file, side by side. */

const [KAPPA, SLOWING, OVERFIT] = [2, 0.25, 3]; // of rate_law.py and share_law.py
const TINY = 1e-30; // the rate of what does not relax, and the least positive number
const STEPS = 250; // of a pilot's schedule
const REFUSAL = "The file must be a law, whole, as `replan fit … --out law.toml` writes it.";

const filled = (count, at) => Array.from({ length: count }, (_, i) => at(i));
const spaced = (low, high, count) => filled(count, (i) => low * (high / low) ** (i / (count - 1)));
const [RATE_MODES, SHARE_MODES] = [spaced(0.003, 10, 6), spaced(1e-4, 3000, 16)];
const normed = (values) => values.map((x) => x / values.reduce((total, y) => total + y));

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

/** The law in the text of a file that `replan fit … --out` wrote, TOML or JSON. */
export function readLaw(text) {
  try {
    return new Law(text.trimStart().startsWith("{") ? JSON.parse(text) : fromToml(text));
  } catch (error) {
    // Where something is missing or no JSON, JavaScript throws errors of other classes.
    throw error.constructor === Error ? error : new Error(REFUSAL);
  }
}

/* TOML as replan writes it: sections of lines with a key and its value, which is JSON but for keys. */
function fromToml(text) {
  const tokens = /("(?:[^"\\]|\\.)*")|(\w+)\s*=|#.*/g;
  const asJson = (_, string, key) => string ?? (key ? `"${key}":` : "");
  const parts = text.replace(tokens, asJson).split(/^\[(\w+)\]/m); // names and sections by turns
  const file = {};
  for (let i = 1; i < parts.length; i += 2)
    file[parts[i]] = JSON.parse(`{${parts[i + 1].trim().replace(/\s*\n\s*/g, ",")}}`);
  return file;
}

/* The numbers at a path of the file: of at least this, nested as the sizes say (n: any number). */
function numbers(file, path, least, ...sizes) {
  const value = path.split(".").reduce((section, key) => section?.[key], file);
  const isRow = (x, size) => Array.isArray(x) && x.length > 0 && [x.length, "n"].includes(size);
  const fits = (x, [size, ...inner]) =>
    size ? isRow(x, size) && x.every((y) => fits(y, inner)) : Number.isFinite(x) && x >= least;
  if (fits(value, sizes)) return value;
  const shape = sizes.length ? `${sizes.join(" × ")} finite numbers` : "a finite number";
  const bound = least > 0 ? " above 0" : least === 0 ? " of at least 0" : "";
  throw new Error(`\`${path}\` must be ${shape}${bound}.`);
}

/* The number at a place, linear between those known at ascending xs. */
function interpolate(place, xs, ys) {
  const i = xs.findIndex((x) => x > place);
  if (i <= 0) return ys.at(i);
  return ys[i - 1] + ((ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])) * (place - xs[i - 1]);
}

class Law {
  constructor(file) {
    const read = (...what) => numbers(file, ...what);
    const free = (x) => (x ? (x === "constant" || x.constant ? "constant" : "curve") : "given");
    const { model, control, fit, objective, training, limits } = file;
    Object.assign(this, { "rate-law": rateLaw, "share-law": shareLaw }[model.kind](read, model));
    this.notes = (fit?.warnings ?? []).map(String);
    this.text = JSON.stringify({ ...file, fit: { warnings: this.notes } });
    this.axis = this.peak ? `training ${model.covered.axis}s` : "progress of the training";
    this.unit = read("model.unit", TINY);
    this.horizon = read("model.covered.horizon", TINY);
    this.begin = read("model.covered.starts_at", 0);
    this.error = read("model.covered.error", 0);
    this.duration = read("training.duration", TINY);
    this.steps = read("training.steps", 1); // of plans
    this.freeShares = free(control.tasks);
    this.freeRates = free(control.lr);
    this.tasks = this.taskNames.length;
    this.weights = read("objective.weights", 0, this.lossNames.length);
    this.start = Float64Array.from(read("start.state", 0, this.modes.length));
    for (const key of Object.keys({ ...limits, ...objective, ...training }))
      if (!["weights", "duration", "steps", "lr"].includes(key))
        throw new Error(`\`${key}\` must be absent, as it is from what \`replan fit\` writes.`);
    const { best, curves = [] } = model.covered;
    this.pilots = curves.map(({ times, rates, ...pilot }) => ({
      ...pilot,
      rates: filled(STEPS, (k) => interpolate(((k + 0.5) / STEPS) * pilot.duration, times, rates)),
    }));
    const shares = filled(STEPS * this.tasks, () => 1 / this.tasks);
    const rates = filled(STEPS, () => this.range[1]);
    this.best = { shares, rates, ...this.pilots.find(({ run }) => run === best?.run) };
    this.full = Math.max(this.range[1], ...this.pilots.flatMap((pilot) => pilot.rates));
  }

  integrate(start, schedule) {
    const states = [start, ...this.relax(start, schedule).map(({ to }) => to)];
    const losses = states.flatMap((state) => this.end(state, this.weights).losses);
    return { losses: Float64Array.from(losses) };
  }

  /* The pieces of a schedule: states where each begins and ends, and how the modes move in it. */
  relax(start, { lengths, shares, rates }) {
    const { tasks, peak, powers, modes } = this;
    let to = start;
    return Array.from(lengths, (steps, k) => {
      const [from, length] = [to, steps / this.unit];
      const controls = powers.map((_, f) => (peak ? rates[k] / peak : shares[k * tasks + f]));
      const features = controls.map((x, f) => x ** powers[f]);
      const paces = modes.map((mode) => TINY + dot(mode.rates, features));
      const targets = modes.map((mode, i) => dot(mode.gains, features) / paces[i]);
      const parts = paces.map((pace) => -Math.expm1(-pace * length));
      to = from.map((x, i) => x + parts[i] * (targets[i] - x));
      return { from, to, length, controls, paces, targets, parts };
    });
  }

  gradient(start, schedule, weights) {
    const { peak, powers, modes } = this;
    const pieces = this.relax(start, schedule).reverse();
    const { losses, slopes: adjoint } = this.end(pieces[0].to, weights);
    const slopes = pieces.map(({ from, length, controls, paces, targets, parts }) => {
      const by = powers.map(() => 0);
      modes.forEach(({ rates, gains }, i) => {
        const byGain = (adjoint[i] * parts[i]) / paces[i];
        adjoint[i] *= 1 - parts[i];
        const byRate = adjoint[i] * length * (targets[i] - from[i]) - byGain * targets[i];
        for (let f = 0; f < by.length; f++) by[f] += byRate * rates[f] + byGain * gains[f];
      });
      return controls.map((x, f) => by[f] * powers[f] * x ** (powers[f] - 1));
    });
    const [value, rows] = [dot(losses, weights), slopes.reverse()];
    if (!peak) return { value, byShares: rows.flat(), byRates: [] };
    return { value, byShares: [], byRates: rows.map((row) => row.reduce((a, b) => a + b) / peak) };
  }

  /* The losses at a state, and the slopes of their weighted sum. */
  end(state, weights) {
    const [losses, slopes] = [this.floors.slice(), new Float64Array(state.length)];
    for (const [loss, weight, mode, power, other] of this.terms) {
      const [value, factor] = [weight * state[mode] ** power, other ? state[other] : 1];
      losses[loss] += value * factor;
      slopes[mode] += weights[loss] * weight * power * state[mode] ** (power - 1) * factor;
      if (other) slopes[other] += weights[loss] * value;
    }
    return { losses, slopes };
  }
}

function rateLaw(read) {
  const [peak, laws] = [read("model.peak", TINY), read("model.laws", -Infinity, "n", 7)];
  const range = ["min", "max"].map((end) => read(`control.lr.${end}`, 0));
  const changes = read("model.covered.changes", 0, 2);
  const [taskNames, lossNames, P] = [["training"], ["loss"], laws.length];
  const powers = [1, 1 + SLOWING, ...laws.map((law) => 1 + SLOWING + law[6])];
  const only = (f, x) => powers.map((_, i) => (i === f ? x : 0));
  const modes = [{ rates: only(0, 0), gains: only(0, 1) }]; // S; then the noise
  const [terms, floors] = [[], [0]];
  laws.forEach(([floor, signal, exponent, noise, pace, spread], p) => {
    floors[0] += floor / P;
    terms.push([0, signal / P, 0, -exponent]);
    normed(RATE_MODES.map((x) => x ** spread * Math.exp(-x))).forEach((weight, z) => {
      const [at, rate] = [modes.length, pace * RATE_MODES[z]];
      terms.push([0, noise / P, at, 1], [0, (KAPPA * signal * noise) / P, 0, -exponent, at]);
      modes.push({ rates: only(1, rate), gains: only(2 + p, rate * weight) });
    });
  });
  return { taskNames, lossNames, powers, modes, terms, floors, peak, range, changes };
}

function shareLaw(read, { domains, losses: lossNames }) {
  const [D, L] = [domains.length, lossNames.length];
  const laws = read("model.laws", -Infinity, "n", L, 5 + 3 * D);
  const mixtures = read("model.mixtures", 0, "n", D);
  const repeats = read("model.repeats", 0, D);
  const percent = (x, d) => x && `${+(100 * x).toPrecision(3)} % ${domains[d]}`;
  const nameOf = (row) => domains[row.indexOf(1)] ?? row.map(percent).filter(Boolean).join(" + ");
  const taskNames = mixtures.map(nameOf);
  const [P, powers] = [laws.length, mixtures.map(() => 1)];
  const [modes, terms, floors] = [[], [], lossNames.map(() => 0)];
  laws.flat().forEach(([floor, signal, exponent, memorising, fading, ...others], i) => {
    const [transfer, forgetting, overfit] = filled(3, (j) => others.slice(j * D, (j + 1) * D));
    const [learnt, lost] = [transfer, forgetting].map((x) => mixtures.map((row) => dot(row, x)));
    floors[i % L] += floor / P;
    normed(SHARE_MODES.map((x) => x ** exponent)).forEach((weight, z) => {
      terms.push([i % L, (signal * weight) / P, modes.length, 1]);
      modes.push({ rates: lost.map((x, t) => x + SHARE_MODES[z] * learnt[t]), gains: lost });
    });
    overfit.forEach((weight, d) => {
      const seen = mixtures.map((row) => memorising * repeats[d] * row[d]);
      const rates = mixtures.map((row, t) => seen[t] + fading * (1 - row[d])); // as shares sum to 1
      terms.push([i % L, weight / P, modes.length, OVERFIT]);
      modes.push({ rates, gains: seen });
    });
  });
  return { taskNames, lossNames, powers, modes, terms, floors, peak: null, range: [0, 1] };
}
