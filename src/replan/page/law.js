/* A law that `replan fit` wrote, as a model of the page: RateLaw and ShareLaw of the library. Both
   are modes that relax, x' = gain − rate x, in closed form over the pieces of a schedule. Rates and
   gains are linear in features: the shares of domains, or powers of the learning rate over its peak.
   Losses are sums of floors and terms, [loss, weight, mode, power, another mode if any], weight ×
   mode^power × other. All laws of the file stand side by side, with weights divided by their number. */

const [KAPPA, SLOWING, LEAST] = [2, 0.25, 1e-9]; // of rate_law.py
const [OVERFIT, LEAST_RATE] = [3, 1e-12]; // of share_law.py
const TINY = 1e-30; // the rate of what does not relax, and the least positive number
const FASTER = 2; // times the fastest change of a pilot's rate: how fast those of plans may change
const STEPS = 250; // of a pilot's schedule
const REFUSAL = "The file must be a law, whole, as `replan fit … --out law.toml` writes it";

const filled = (count, at) => Array.from({ length: count }, (_, i) => at(i));
const spaced = (low, high, count) => filled(count, (i) => low * (high / low) ** (i / (count - 1)));
const [RATE_MODES, SHARE_MODES] = [spaced(0.003, 10, 6), spaced(1e-4, 3000, 16)];
const normed = (values) => values.map((x) => x / values.reduce((total, y) => total + y));

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < b.length; i++) total += a[i] * b[i];
  return total;
}

/** The law in the text of a file that `replan fit … --out` wrote, TOML or JSON. */
export function readLaw(text) {
  let file = null;
  try {
    file = JSON.parse(asJson(text), (key, x) => (key || x?.model ? x : undefined));
  } catch {
    // refused below
  }
  const kind = { __proto__: null, "rate-law": rateLaw, "share-law": shareLaw }[file?.model?.kind];
  if (!kind) throw new Error(`${REFUSAL}.`);
  const keys = Object.keys({ ...file.limits, ...file.objective, ...file.training });
  const other = keys.find((key) => !["weights", "duration", "steps", "lr"].includes(key));
  if (other)
    throw new Error(`\`${other}\` must be absent, as it is from what \`replan fit\` writes.`);
  try {
    return new Law(file, kind);
  } catch (error) {
    throw error instanceof TypeError ? new Error(`${REFUSAL} (${error.message})`) : error;
  }
}

/* TOML as replan writes it, as JSON: keys in quotes, and sections as objects that begin with an
   empty key, as their whole does. In both, numbers that are not finite become null. */
function asJson(text) {
  const tokens =
    /("(?:[^"\\\n]|\\.)*")|#.*|^\[(\w+)\]|^(\w+)\s*=|(\w+)\s*=|-?\b(?:inf|nan|Infinity|NaN)\b/gm;
  const body = text.replace(tokens, (token, string, section, first, key) => {
    if (section) return `},"${section}":{"":0`;
    if (first) return `,"${first}":`;
    return string ?? (key ? `"${key}":` : token.startsWith("#") ? "" : "null");
  });
  return text.trimStart().startsWith("{") ? body : `{"":{"":0${body}}}`;
}

/* What is at a path of the file, nested as the sizes say (n: any number): numbers of at least this,
   or names, which are at least "". */
function found(file, path, least, ...sizes) {
  const value = path.split(".").reduce((section, key) => section?.[key], file);
  const isRow = (x, size) => Array.isArray(x) && x.length > 0 && [x.length, "n"].includes(size);
  const isItem = (x) => typeof x === typeof least && x >= least && x !== Infinity;
  const fits = (x, [size, ...inner]) =>
    size ? isRow(x, size) && x.every((y) => fits(y, inner)) : isItem(x);
  if (fits(value, sizes)) return value;
  const noun = least === "" ? "names" : `finite number${sizes.length ? "s" : ""}`;
  const bound = least > 0 ? " above 0" : least === 0 ? " of at least 0" : "";
  throw new Error(`\`${path}\` must be ${sizes.join(" × ") || "a"} ${noun}${bound}.`);
}

/* The number at a place, linear between those known at ascending xs. */
function interpolate(place, xs, ys) {
  const i = xs.findIndex((x) => x > place);
  if (i <= 0) return ys.at(i);
  return ys[i - 1] + ((ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])) * (place - xs[i - 1]);
}

class Law {
  constructor(file, kind) {
    const read = (...what) => found(file, ...what);
    const free = (x) => (x ? (x === "constant" || x.constant ? "constant" : "curve") : "given");
    this.notes = [file.fit?.warnings ?? []].flat().map(String);
    this.text = JSON.stringify({ ...file, fit: { warnings: this.notes } });
    this.unit = read("model.unit", TINY);
    this.horizon = read("model.covered.horizon", TINY);
    this.begin = read("model.covered.starts_at", 0);
    this.error = read("model.covered.error", 0);
    this.duration = read("training.duration", TINY);
    this.steps = read("training.steps", 1); // of plans
    this.freeShares = free(file.control?.tasks);
    this.freeRates = free(file.control?.lr);
    Object.assign(this, kind(read, file));
    this.tasks = this.taskNames.length;
    this.weights = read("objective.weights", 0, this.lossNames.length);
    this.start = Float64Array.from(read("start.state", 0, this.modes.length));
    const drawn = ({ duration, times, rates }) =>
      filled(STEPS, (k) => interpolate(((k + 0.5) / STEPS) * duration, times, rates));
    const { best, curves = [] } = file.model.covered;
    this.pilots = curves.map((pilot) => {
      const measured = pilot.steps.map((step, i) => [step, pilot.losses[i]]);
      return { ...pilot, rates: drawn(pilot), measured };
    });
    const shares = filled(STEPS * this.tasks, () => 1 / this.tasks);
    const rates = filled(STEPS, () => this.full);
    this.full = Math.max(this.full, ...this.pilots.flatMap((pilot) => pilot.rates));
    this.best = { shares, rates, ...this.pilots.find(({ run }) => run === best?.run) };
  }

  integrate(start, schedule) {
    const states = [start, ...this.relax(start, schedule).map(({ to }) => to)];
    const losses = states.flatMap((state) => this.end(state, this.weights).losses);
    return { losses: Float64Array.from(losses) };
  }

  /* The pieces of a schedule: states where each begins and ends, and how the modes move in it. */
  relax(start, schedule) {
    let to = start;
    return Array.from(schedule.lengths, (steps, k) => {
      const [from, length] = [to, steps / this.unit];
      const { features, slopes } = this.features(schedule, k);
      const rates = this.modes.map((mode) => mode.rest + dot(mode.rates, features));
      const targets = this.modes.map((mode, i) => dot(mode.gains, features) / rates[i]);
      const parts = rates.map((rate) => -Math.expm1(-rate * length));
      to = from.map((x, i) => x + parts[i] * (targets[i] - x));
      return { from, to, length, rates, targets, parts, slopes };
    });
  }

  gradient(start, schedule, weights) {
    const pieces = this.relax(start, schedule).reverse();
    const { losses, slopes: adjoint } = this.end(pieces[0].to, weights);
    const slopes = pieces.map(({ from, length, rates, targets, parts, slopes }) => {
      const by = slopes[0].map(() => 0);
      this.modes.forEach((mode, i) => {
        const byGain = (adjoint[i] * parts[i]) / rates[i];
        adjoint[i] *= 1 - parts[i];
        const byRate = adjoint[i] * length * (targets[i] - from[i]) - byGain * targets[i];
        for (let f = 0; f < by.length; f++)
          by[f] += byRate * mode.rates[f] + byGain * mode.gains[f];
      });
      return slopes.map((slope) => dot(slope, by));
    });
    const none = { byShares: [], byRates: [] }; // of what does not matter
    return { value: dot(losses, weights), ...none, [this.by]: slopes.reverse().flat() };
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

function rateLaw(read, { control, model: { covered } }) {
  const laws = read("model.laws", -Number.MAX_VALUE, "n", 7);
  const peak = read("model.peak", TINY);
  const [rise, fall] = read("model.covered.changes", 0, 2);
  const range = control?.lr ? ["min", "max"].map((end) => read(`control.lr.${end}`, 0)) : undefined;
  const powers = [1, 1 + SLOWING, ...laws.map((law) => 1 + SLOWING + law[6])];
  const only = (f, x) => powers.map((_, i) => (i === f ? x : 0));
  const modes = [{ rest: TINY, rates: only(0, 0), gains: only(0, 1) }]; // S; then the noise
  const [terms, floors] = [[], [0]];
  laws.forEach(([floor, signal, exponent, noise, pace, spread], p) => {
    const [learnt, weight] = [signal / laws.length, noise / laws.length];
    const shape = normed(RATE_MODES.map((x) => x ** spread * Math.exp(-x)));
    floors[0] += floor / laws.length;
    terms.push([0, learnt, 0, -exponent]);
    RATE_MODES.map((x) => pace * x).forEach((rate, z) => {
      const at = modes.length;
      terms.push([0, weight, at, 1], [0, KAPPA * signal * weight, 0, -exponent, at]);
      modes.push({ rest: TINY, rates: only(1, rate), gains: only(2 + p, rate * shape[z]) });
    });
  });
  return {
    ...{ taskNames: ["training"], lossNames: ["loss"], by: "byRates", peak, range },
    ...{ modes, terms, floors, changes: [FASTER * fall, FASTER * rise] },
    ...{ axis: `training ${covered.axis}s`, full: range?.[1] ?? read("training.lr", 0) }, // the largest rate
    features({ rates }, k) {
      const x = rates[k] / peak;
      const slope = (power) => (x > LEAST || power === 1 ? (power * x ** (power - 1)) / peak : 0);
      const features = powers.map((power) => Math.max(x, power > 1 ? LEAST : 0) ** power);
      return { features, slopes: [powers.map(slope)] };
    },
  };
}

function shareLaw(read) {
  const [domains, lossNames] = [read("model.domains", "", "n"), read("model.losses", "", "n")];
  const [D, L] = [domains.length, lossNames.length];
  const laws = read("model.laws", 0, "n", L, 5 + 3 * D);
  const mixtures = read("model.mixtures", 0, "n", D);
  const repeats = read("model.repeats", 0, D);
  const [modes, terms, floors] = [[], [], lossNames.map(() => 0)];
  laws.flat().forEach(([floor, signal, exponent, memorising, fading, ...others], i) => {
    const [transfer, forgetting, overfit] = filled(3, (j) => others.slice(j * D, (j + 1) * D));
    const add = (weight, power, rest, rates, gains) => {
      terms.push([i % L, weight / laws.length, modes.length, power]);
      modes.push({ rest: rest + LEAST_RATE, rates, gains });
    };
    floors[i % L] += floor / laws.length;
    const shape = normed(SHARE_MODES.map((x) => x ** exponent));
    const rates = (x) => forgetting.map((lost, d) => lost + x * transfer[d]);
    SHARE_MODES.forEach((x, z) => add(signal * shape[z], 1, 0, rates(x), forgetting));
    const seen = repeats.map((passes) => memorising * passes);
    const own = (d, x) => filled(D, (other) => (other === d ? x : 0));
    overfit.forEach((x, d) => add(x, OVERFIT, fading, own(d, seen[d] - fading), own(d, seen[d])));
  });
  const columns = domains.map((_, d) => mixtures.map((mixture) => mixture[d]));
  const percent = (x, d) => x && `${+(100 * x).toPrecision(3)} % ${domains[d]}`;
  const nameOf = (row) => domains[row.indexOf(1)] ?? row.map(percent).filter(Boolean).join(" + ");
  return {
    ...{ taskNames: mixtures.map(nameOf), lossNames, by: "byShares", peak: null, full: 1 },
    ...{ modes, terms, floors, axis: "progress of the training" },
    features({ shares }, k) {
      const row = shares.subarray(k * mixtures.length);
      return { features: columns.map((column) => dot(row, column)), slopes: mixtures };
    },
  };
}
