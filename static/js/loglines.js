// The lines of one pod's log that this page knows, and where to find the others. The store pages by byte offset and
// numbers lines; the offset of an unknown line is interpolated between known (line, offset) pairs and then refined.

import { firstThat } from "./bisect.js";
import { Extras } from "./logextras.js";
import { LogNotes } from "./lognotes.js";
import { spelled } from "./progressline.js";

const PAGE = 1000, KEPT = 20000, GUESSES = 12;
const SPELLED = /^[\w ./+-]+$/; // what a progress line that is spelled out may contain
const MOST_PAGES = 20; // of progress lines that a search looks through

export class LogLines {
  /** `fetchPage({offset, tail, search, limit})` answers what GET /jobs/{id}/logs answers. `version` grows with every
   *  change of which row is where. */
  constructor(attempt, fetchPage) {
    this.attempt = attempt;
    this.fetchPage = fetchPage;
    this.lines = new Map();
    this.notes = new LogNotes((n) => this.#count(n));
    this.heights = new Map(); // rows of a line (by number) or a note (by id) that takes more than one
    this.extras = new Extras();
    this.anchors = [{ n: 1, offset: 0 }];
    this.end = 0; // the offset up to which the store has been read
    this.last = 0;
    this.complete = false;
    this.version = 0;
  }

  /** Lines and notes together. */
  get rows() { return this.last + this.extras.total; }

  /** The first row of a line; rows count from 0. */
  rowOf(n) { return n - 1 + this.extras.before(n); }

  /** The item at a row: {key, n, start, height} of a line, with `note` if it is a note after line n. */
  at(row) {
    // The last line that begins at this row or before it.
    const n = firstThat(1, this.last + 1, (line) => this.rowOf(line) > row) - 1;
    let start = this.rowOf(n), height = this.heights.get(n) ?? 1;
    const line = { key: n, n, start, height };
    if (n && row < start + height) return line;
    for (const note of this.notes.after(n)) {
      start += height;
      height = this.heights.get(note.id) ?? 1;
      if (row < start + height) return { key: note.id, n, note, start, height };
    }
    return line;
  }

  /** Set the number of rows of line n, or of the note `key` after line n. */
  setHeight(key, n, height) {
    if (height > 1) this.heights.set(key, height);
    else this.heights.delete(key);
    this.#count(n);
  }

  /** Reset the height of every line and note to one row. */
  forgetHeights() {
    const wide = [...this.extras.counts.keys()];
    this.heights.clear();
    for (const n of wide) this.#count(n);
  }

  /** Set the events of the job: {after, id, kind, time, message}, in order. */
  setEvents(events) {
    for (const { after } of events) this.#reach(after);
    this.notes.setEvents(events);
  }

  /** Set the size of the log in lines and bytes without reading it. */
  span(lines, size) {
    if (!lines || size <= this.end) return;
    this.#reach(lines);
    this.#anchor(lines + 1, size);
    this.end = size;
    this.complete = true;
  }

  #reach(n) {
    if (n <= this.last) return;
    this.last = n;
    this.version++;
  }

  #count(n) {
    const notes = this.notes.after(n).reduce((sum, note) => sum + (this.heights.get(note.id) ?? 1), 0);
    if (this.extras.set(n, notes + (this.heights.get(n) ?? 1) - 1)) this.version++;
  }

  /** Load the end of the log. */
  async start() {
    this.#take(await this.fetchPage({ tail: PAGE }));
  }

  /** Add lines from the live feed. Returns true if lines are missing between them and the last known line. */
  add(lines) {
    const before = this.last;
    let lowest = Infinity;
    for (const line of lines) { this.#keep(line); lowest = Math.min(lowest, line.n); }
    return lines.length > 0 && lowest > before + 1 && before > 0;
  }

  /** Fetch the lines after the last fetched one. */
  async refresh() {
    const offset = this.end;
    const page = await this.fetchPage({ offset, limit: PAGE });
    this.#take(page, offset);
    return page.lines.length + page.gaps.length >= PAGE;
  }

  /** Fetch the lines from..to that exist and are not here. Returns whether any was added. */
  async need(from, to) {
    let came = false;
    for (let n = from, tries = 0; tries < GUESSES; tries++) {
      while (n <= to && this.lines.has(n)) n++;
      if (n > to || n > this.last) return came;
      const offset = this.#guess(n);
      const page = await this.fetchPage({ offset, limit: PAGE });
      came = this.#take(page, offset) || came;
      if (!page.lines.length) return came;
    }
    return came;
  }

  /** All lines that contain `search` as they are shown, up to `most`: progress lines spelled out unless `isRaw`. */
  async search(search, { most, isRaw }) {
    const found = await this.#containing(search, most);
    if (isRaw || !SPELLED.test(search)) return found;
    const isShown = ({ text }) => !spelled(text) || spelled(text).includes(search.toLowerCase());
    const reports = (await this.#containing('"trainyard"', Infinity, MOST_PAGES)).filter(({ text }) => spelled(text));
    const all = new Map([...found, ...reports].filter(isShown).map((line) => [line.n, line]));
    return [...all.values()].sort((a, b) => a.n - b.n).slice(0, most);
  }

  async #containing(search, most, pages = Infinity) {
    const found = [];
    for (let offset = 0, page = 0; found.length < most && page < pages; page++) {
      const answer = await this.fetchPage({ offset, search, limit: PAGE });
      found.push(...answer.lines);
      if (answer.complete || answer.next_offset <= offset) break;
      offset = answer.next_offset;
    }
    return found;
  }

  #take(page, offset = null) {
    const rows = this.rows, isNew = page.lines.some((line) => !this.lines.has(line.n));
    for (const line of page.lines) this.#keep(line);
    const before = (page.lines[0]?.n ?? this.last + 1) - 1;
    const gaps = page.gaps.map((gap) => placed(gap, before));
    for (const gap of gaps) this.#reach(gap.after); // the line itself may be damaged
    this.notes.takeGaps(gaps);
    this.complete ||= Boolean(page.complete);
    if ((offset ?? 0) <= this.end) this.end = Math.max(this.end, page.next_offset);
    if (page.lines.length) this.#remember(page, offset);
    return isNew || this.rows > rows;
  }

  #keep(line) {
    this.lines.set(line.n, line);
    this.#reach(line.n);
  }

  #remember(page, offset) {
    if (offset !== null) this.#anchor(page.lines[0].n, offset);
    this.#anchor(page.lines.at(-1).n + 1, page.next_offset);
    this.#forget(page.lines[0].n);
  }

  #anchor(n, offset) {
    const at = this.anchors.findIndex((anchor) => anchor.n >= n);
    if (at >= 0 && this.anchors[at].n === n) this.anchors[at].offset = Math.min(this.anchors[at].offset, offset);
    else if (at < 0) this.anchors.push({ n, offset });
    else this.anchors.splice(at, 0, { n, offset });
  }

  // Start a little before the expected offset, because pages are read forwards.
  #guess(n) {
    let low = this.anchors[0], high = this.anchors.at(-1);
    for (const anchor of this.anchors) {
      if (anchor.n <= n) low = anchor;
      else { high = anchor; break; }
    }
    if (n - low.n < PAGE || high.n <= low.n) return low.offset;
    const share = Math.max(0, n - low.n - PAGE / 4) / (high.n - low.n);
    return Math.floor(low.offset + share * (high.offset - low.offset));
  }

  // Lines far from here are dropped; they can be fetched again.
  #forget(near) {
    if (this.lines.size <= KEPT) return;
    for (const n of [...this.lines.keys()]) {
      if (Math.abs(n - near) > KEPT / 2 && n < this.last - PAGE) this.lines.delete(n);
    }
  }
}

// A damaged record has no time and, before a page's first line, no number.
function placed({ after, time, message }, before) {
  const at = Date.parse(time);
  return { id: `gap ${at} ${message}`, kind: "gap", after: after || (at ? 0 : before), at, time: at ? time : null, message };
}
