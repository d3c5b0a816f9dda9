// Where the log viewer's lines come from: which attempts there are and what happened in them (log-index.json), pages of
// the log store (REST), and new lines (the live feed, which knows the newest attempt).

import { say } from "./dom.js";
import { feed } from "./live.js";
import { LogBook } from "./logbook.js";
import { LogLines } from "./loglines.js";
import { isLeavingPage, refreshRegions } from "./regions.js";

const EVENTS_PAUSE = 300; // milliseconds in which events gather before they are fetched
const EVENTS_MOST = 20_000; // milliseconds that lines wait for the events before them

export class LogSource {
  /** `changed()` is called when there is something new to draw, `began(attempt)` when an attempt begins. */
  constructor(job, latest, { changed, began }) {
    Object.assign(this, { job, latest: Math.max(1, latest), hasStarted: latest > 0, changed, began });
    this.book = new LogBook([]);
    const moved = (state, frame) => this.#moved(state, frame);
    feed().subscribe(`job:${job}`, { state: moved, change: moved });
  }

  /** Read these anew: one attempt, or all (null), of a rank. */
  async open(attempt, rank) {
    Object.assign(this, { attempt, rank, isKnown: false });
    this.leave?.();
    const mine = (this.book = new LogBook([]));
    await this.#index();
    if (mine !== this.book) return;
    this.leave = feed().subscribe(`job:${this.job}:logs:${rank}`, {
      state: (state) => this.#receive(state),
      change: (_, frame) => this.#receive(frame.upserts ?? {}),
    });
  }

  /** The section that grows, if it is among those that are shown. */
  get growing() {
    const newest = this.book.sections.at(-1);
    return newest?.attempt === this.latest && !newest.complete ? newest : null;
  }

  // An event is drawn between lines. Lines that come while one is fetched wait for it: it would push them down.
  get isAwaitingEvents() { return Date.now() < (this.awaitsUntil ?? 0); }

  /** Ask the store for what came after the last line. One call at a time; a second has the first read once more. */
  async catchUp() {
    this.isUnread = true;
    if (this.isReading || this.isAwaitingEvents) return;
    this.isReading = true;
    try {
      for (let section; this.isUnread && (section = this.growing);) {
        this.isUnread = false;
        const wasSilent = !section.last;
        this.isUnread = await section.refresh() || this.isUnread;
        this.#spoke(section, wasSilent);
        this.changed();
      }
    } catch { /* the next poll tries again */ } finally { this.isReading = false; }
  }

  async #index() {
    const mine = this.book;
    const index = await this.#get(`/jobs/${this.job}/log-index.json?rank=${this.rank}`).catch(() => null);
    if (!index || mine !== this.book) return;
    this.hasStarted = index.latest > 0;
    for (; this.latest < index.latest; this.began(this.latest)) this.latest++;
    if (mine !== this.book) return; // the new attempt is shown alone
    for (const found of index.attempts) if (!this.attempt || this.attempt === found.number) await this.#section(mine, found);
    this.isKnown = true;
    this.changed();
  }

  async #section(book, { number, lines, size, notes }) {
    const known = book.section(number), section = known ?? new LogLines(number, (query) => this.#page(number, query));
    if (number < this.latest && !section.complete) section.span(lines, size);
    const heading = { id: "attempt", kind: "attempt", after: 0, time: null, message: say("log_attempt_heading", { number }) };
    section.setEvents([...(this.latest > 1 && !this.attempt ? [heading] : []), ...notes]);
    if (!known && number === this.latest) {
      await section.start().catch(() => {}); // the poll tries again
      this.#spoke(section, true);
    }
    if (!book.section(number)) book.add(section);
  }

  #moved(state, frame) {
    const attempt = Object.values(state.job ?? {})[0]?.status.attempt ?? 0;
    if (!frame?.upserts?.events && attempt <= this.latest) return;
    this.awaitsUntil ??= Date.now() + EVENTS_MOST;
    this.pending ??= setTimeout(async () => {
      this.pending = null;
      await this.#index();
      if (this.pending) return;
      this.awaitsUntil = null;
      if (this.isUnread) this.catchUp();
    }, EVENTS_PAUSE);
  }

  // the feed keeps one gap a line, the store all of them in order
  #receive(news) {
    const attempt = news.log?.all.attempt;
    if (attempt > this.latest) { this.#moved({}, { upserts: { events: {} } }); return; }
    const section = this.growing;
    if (!section) return;
    if (this.isAwaitingEvents) { this.isUnread = true; return; }
    const wasSilent = !section.last;
    const hasHole = section.add(Object.values(news.lines ?? {}));
    this.#spoke(section, wasSilent);
    if (news.gaps || hasHole) this.catchUp();
    this.changed();
  }

  // the first output is a step of the start, and no event: however it came, a page that waits for it is drawn again
  #spoke(section, wasSilent) {
    if (wasSilent && section.last && document.querySelector(".steps .is-now")) refreshRegions();
  }

  #page(attempt, query) {
    const asked = new URLSearchParams({ rank: this.rank, ...query });
    if (this.hasStarted) asked.set("attempt", attempt);
    return this.#get(`/api/v1/jobs/${this.job}/logs?${asked}`);
  }

  async #get(address) {
    if (isLeavingPage()) throw new Error("leaving the page");
    const response = await fetch(address, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`${address}: ${response.status}`);
    return response.json();
  }
}
