// Where output is missing: notes that stand after a line, or before the first (after line 0), and are rows of their own.

const same = (one, other) => one.at === other.at && one.message === other.message;

export class LogGaps {
  /** `inserted(n, count)` is told that `count` rows more stand after line n. */
  constructor(inserted) {
    this.inserted = inserted;
    this.after = new Map(); // line -> its gaps, in order
    this.places = []; // the line of every gap, ascending
  }

  /** Take the gaps of a page, {after, at, message}, in the page's order. */
  take(gaps) {
    for (const n of new Set(gaps.map((gap) => gap.after))) this.#merge(n, gaps.filter((gap) => gap.after === n));
  }

  /** How many stand before line n. */
  before(n) {
    let low = 0, high = this.places.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.places[middle] < n) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // a page knows the order of its own; what only another page had goes by its time
  #merge(n, page) {
    const known = this.after.get(n) ?? [];
    const fresh = page.filter((gap, at) => page.findIndex((other) => same(other, gap)) === at);
    const others = known.filter((gap) => !fresh.some((other) => same(other, gap)));
    const isEarlier = (gap) => gap.at <= fresh[0].at;
    const all = [...others.filter(isEarlier), ...fresh, ...others.filter((gap) => !isEarlier(gap))];
    this.after.set(n, all);
    if (all.length === known.length) return;
    this.places = [...this.after].flatMap(([line, gaps]) => gaps.map(() => line)).sort((a, b) => a - b);
    this.inserted(n, all.length - known.length);
  }
}
