// The extra rows of wrapped log lines; most lines have none.

import { firstThat } from "./bisect.js";

export class Extras {
  constructor() {
    this.counts = new Map();
    this.total = 0;
    this.places = null; // built when it is needed: the lines that take more, ascending, and the sums up to each
  }

  /** Set the number of extra rows of line n. Returns whether it changed. */
  set(n, count) {
    const known = this.counts.get(n) ?? 0;
    if (known === count) return false;
    this.total += count - known;
    if (count) this.counts.set(n, count);
    else this.counts.delete(n);
    this.places = null;
    return true;
  }

  /** The sum over all lines before n. */
  before(n) {
    if (!this.places) this.#sum();
    return this.sums[firstThat(0, this.places.length, (place) => this.places[place] >= n)];
  }

  #sum() {
    this.places = [...this.counts.keys()].sort((a, b) => a - b);
    this.sums = [0];
    for (const n of this.places) this.sums.push(this.sums.at(-1) + this.counts.get(n));
  }
}
