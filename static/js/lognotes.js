// Rows between the lines of a log: where output is missing, and what happened to the job. A note stands after a line,
// or before the first (after line 0).

const same = (one, other) => one.at === other.at && one.message === other.message;

export class LogNotes {
  /** `changed(n)` is called when the notes after line n change. */
  constructor(changed) {
    this.changed = changed;
    this.gaps = new Map(); // line -> its gaps, in order
    this.events = new Map();
  }

  /** The notes after line n: {id, kind, time, message}. */
  after(n) { return [...(this.gaps.get(n) ?? []), ...(this.events.get(n) ?? [])]; }

  /** Add the gaps of a page, {after, at, time, message}, in the page's order. */
  takeGaps(gaps) {
    for (const n of new Set(gaps.map((gap) => gap.after))) this.#merge(n, gaps.filter((gap) => gap.after === n));
  }

  /** Replace all events, {after, id, kind, time, message}, in order. */
  setEvents(events) {
    const known = this.events;
    this.events = Map.groupBy(events, (event) => event.after);
    for (const n of new Set([...known.keys(), ...this.events.keys()])) this.changed(n);
  }

  // A page orders its own gaps; gaps of other pages are ordered by time.
  #merge(n, page) {
    const known = this.gaps.get(n) ?? [];
    const fresh = page.filter((gap, at) => page.findIndex((other) => same(other, gap)) === at);
    const others = known.filter((gap) => !fresh.some((other) => same(other, gap)));
    const isEarlier = (gap) => gap.at <= fresh[0].at;
    const all = [...others.filter(isEarlier), ...fresh, ...others.filter((gap) => !isEarlier(gap))];
    this.gaps.set(n, all);
    if (all.length !== known.length) this.changed(n);
  }
}
