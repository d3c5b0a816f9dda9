// The lines of one pod's log that this page knows, and where to find the others. The store pages by byte offset and
// numbers lines; between known (line, offset) pairs the place of a line is guessed and the guess is narrowed.

const PAGE = 1000, KEPT = 20000, GUESSES = 12;

export class LogLines {
  /** `fetchPage({offset, tail, search, limit})` answers what GET /jobs/{id}/logs answers. */
  constructor(fetchPage) {
    this.fetchPage = fetchPage;
    this.lines = new Map();
    this.gaps = new Map(); // after line n -> message
    this.anchors = [{ n: 1, offset: 0 }];
    this.last = 0;
    this.complete = false;
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
    return lowest > before + 1 && before > 0;
  }

  /** Ask the store what came after the last line it gave us. */
  async refresh() {
    const end = this.anchors.at(-1);
    const page = await this.fetchPage({ offset: end.offset, limit: PAGE });
    this.#take(page, end.offset);
    return page.lines.length === PAGE;
  }

  /** Make sure that lines from..to are here, as far as they exist. Returns whether anything came. */
  async need(from, to) {
    let came = false;
    for (let n = from, tries = 0; tries < GUESSES; tries++) {
      while (n <= to && this.lines.has(n)) n++;
      if (n > to || n > this.last) return came;
      const offset = this.#guess(n);
      const page = await this.fetchPage({ offset, limit: PAGE });
      this.#take(page, offset);
      came ||= page.lines.length > 0;
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
    for (const line of page.lines) this.#keep(line);
    for (const gap of page.gaps || []) this.gaps.set(gap.after_n ?? gap.after ?? 0, gap.message ?? gap.detail ?? "");
    this.complete ||= Boolean(page.complete);
    if (!page.lines.length) return;
    if (offset !== null) this.#anchor(page.lines[0].n, offset);
    this.#anchor(page.lines.at(-1).n + 1, page.next_offset);
    this.#forget(page.lines[0].n);
  }

  #keep(line) {
    this.lines.set(line.n, line);
    this.last = Math.max(this.last, line.n);
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
