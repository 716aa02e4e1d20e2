/* Random numbers with a seed: the same on every machine. */

export class Random {
  constructor(seed) {
    this.state = new Uint32Array([seed, 0x9e3779b9, 0x243f6a88, 1]);
    for (let i = 0; i < 20; i++) this.uniform();
  }

  /** In (0, 1); the generator sfc32 of PractRand. */
  uniform() {
    const s = this.state;
    const sum = (s[0] + s[1] + s[3]++) | 0;
    s[0] = s[1] ^ (s[1] >>> 9);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 21) | (s[2] >>> 11)) + sum;
    return ((sum >>> 0) + 0.5) / 2 ** 32;
  }

  /** Marsaglia's polar method. */
  normal() {
    if (this.spare !== undefined) {
      const spare = this.spare;
      this.spare = undefined;
      return spare;
    }
    let x, y, square;
    do {
      x = 2 * this.uniform() - 1;
      y = 2 * this.uniform() - 1;
      square = x * x + y * y;
    } while (square >= 1);
    const scale = Math.sqrt((-2 * Math.log(square)) / square);
    this.spare = y * scale;
    return x * scale;
  }

  /** Marsaglia and Tsang (2000), for 2 degrees of freedom or more. */
  chiSquare(freedom) {
    const d = freedom / 2 - 1 / 3;
    for (;;) {
      const x = this.normal();
      const v = (1 + x / Math.sqrt(9 * d)) ** 3;
      if (v > 0 && Math.log(this.uniform()) < (x * x) / 2 + d * (1 - v + Math.log(v)))
        return 2 * d * v;
    }
  }

  /** Fill in the draws of samples of SGD: normal numbers, the length of the remainder of the input,
      and a normal number for the label; see replan_draw in sgd.c. */
  draw(out, columns, freedom, noise) {
    for (let i = 0; i < out.length; i += columns) {
      for (let j = 0; j < columns - 2; j++) out[i + j] = this.normal();
      out[i + columns - 2] = Math.sqrt(this.chiSquare(freedom));
      out[i + columns - 1] = noise > 0 ? this.normal() : 0;
    }
  }
}
