// The lines of one pod's log that this page knows, and where to find the others. The store pages by byte offset and
// numbers lines; between known (line, offset) pairs the place of a line is guessed and the guess is narrowed.

import { LogGaps } from "./loggaps.js";

const PAGE = 1000, KEPT = 20000, GUESSES = 12;

export class LogLines {
  /** `fetchPage({offset, tail, search, limit})` answers what GET /jobs/{id}/logs answers. `inserted(row, count)` is told
   *  of rows that have come between others: gaps are known when their page is. */
  constructor(fetchPage, inserted) {
    this.fetchPage = fetchPage;
    this.lines = new Map();
    this.gaps = new LogGaps((n, count) => inserted(this.rowOf(n) + 1, count));
    this.anchors = [{ n: 1, offset: 0 }];
    this.end = 0; // the offset up to which the store has been read
    this.last = 0;
    this.complete = false;
  }

  /** Lines and gaps together. */
  get rows() { return this.last + this.gaps.places.length; }

  /** The row of a line; rows count from 0. */
  rowOf(n) { return n - 1 + this.gaps.before(n); }

  /** What a row is: {n} for a line, {n, gap} for a gap after line n. */
  at(row) {
    let n = 0; // the last line that begins at this row or before it
    for (let beyond = this.last + 1; beyond - n > 1;) {
      const middle = (n + beyond) >> 1;
      if (this.rowOf(middle) <= row) n = middle;
      else beyond = middle;
    }
    return { n, gap: this.gaps.after.get(n)?.[row - this.rowOf(n) - 1] };
  }

  /** Load the end of the log. */
  async start() {
    this.#take(await this.fetchPage({ tail: PAGE }));
  }

  /** Take lines from the live feed. Returns true when they leave a hole behind the last known line. */
  add(lines) {
    const before = this.last;
    let lowest = Infinity;
    for (const line of lines) { this.#keep(line); lowest = Math.min(lowest, line.n); }
    return lines.length > 0 && lowest > before + 1 && before > 0;
  }

  /** Ask the store what came after the last line it gave us. */
  async refresh() {
    const offset = this.end;
    const page = await this.fetchPage({ offset, limit: PAGE });
    this.#take(page, offset);
    return page.lines.length + page.gaps.length >= PAGE;
  }

  /** Make sure that lines from..to are here, as far as they exist. Returns whether anything new came. */
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

  /** All lines that contain `search`, up to `most`. */
  async search(search, most = 2000) {
    const found = [];
    for (let offset = 0; found.length < most;) {
      const page = await this.fetchPage({ offset, search, limit: PAGE });
      found.push(...page.lines);
      if (page.complete || page.next_offset <= offset) break;
      offset = page.next_offset;
    }
    return found;
  }

  #take(page, offset = null) {
    const rows = this.rows, isNew = page.lines.some((line) => !this.lines.has(line.n));
    for (const line of page.lines) this.#keep(line);
    const before = (page.lines[0]?.n ?? this.last + 1) - 1;
    const gaps = page.gaps.map((gap) => placed(gap, before));
    for (const gap of gaps) this.last = Math.max(this.last, gap.after); // the line itself may be damaged
    this.gaps.take(gaps);
    this.complete ||= Boolean(page.complete);
    if ((offset ?? 0) <= this.end) this.end = Math.max(this.end, page.next_offset);
    if (page.lines.length) this.#remember(page, offset);
    return isNew || this.rows > rows;
  }

  #keep(line) {
    this.lines.set(line.n, line);
    this.last = Math.max(this.last, line.n);
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

  // a little before where the line should be: pages read forwards
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

  // what is far from here can be had again
  #forget(near) {
    if (this.lines.size <= KEPT) return;
    for (const n of [...this.lines.keys()]) {
      if (Math.abs(n - near) > KEPT / 2 && n < this.last - PAGE) this.lines.delete(n);
    }
  }
}

// a damaged record has no time, and in front of a page's first line no number either
function placed({ after, time, message }, before) {
  const at = Date.parse(time);
  return { after: after || (at ? 0 : before), at, time: at ? time : null, message };
}
