// The log viewer: the lines of one rank over all attempts or of one, with what happened to the job between them. A
// virtual list that follows the end until the reader scrolls up, searches on the server and links to lines (#L120,
// #L2:120 in attempt 2). Only the rows on screen exist as elements.

import { $, $$, h, say, setText } from "./dom.js";
import { number } from "./format.js";
import { Matches } from "./logbook.js";
import { LogRows } from "./logrows.js";
import { LogScroll } from "./logscroll.js";
import { LogSource } from "./logsource.js";

const ROW = 20, SPARE = 12, NEAR_END = 50, POLL = 2000;
const ABOVE = 5; // rows that are shown before a line that was asked for
const ROUNDS = 4; // of measuring wrapped rows in one frame
const MOST_MATCHES = 2000;

export class LogViewer {
  constructor(root) {
    this.root = root;
    this.view = $(".log-view", root);
    this.space = h("div", { class: "log-space" });
    this.holder = h("div", { class: "log-rows" });
    this.space.append(this.holder);
    this.view.replaceChildren(this.space);
    this.rows = new LogRows(this.holder, this.view);
    this.scroll = new LogScroll(this.view, this.space, () => this.draw());
    this.following = !location.hash.startsWith("#L");
    this.matches = null;
    const { job, latestAttempt } = root.dataset;
    this.source = new LogSource(job, Number(latestAttempt), { changed: () => this.draw(), began: (attempt) => this.#began(attempt) });
    this.#listen();
    this.open();
  }

  #listen() {
    this.view.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#resized()).observe(this.view);
    $("[data-log-follow]", this.root).addEventListener("click", () => this.follow());
    $("[data-log-search]", this.root).addEventListener("input", (event) => this.#search(event.target.value));
    for (const select of $$("select", this.root)) select.addEventListener("change", () => this.open());
    for (const name of ["wrap", "raw"]) this.#toggle(name);
    addEventListener("hashchange", () => this.#target());
    setInterval(() => this.#poll(), POLL);
  }

  /** Open the chosen attempts and rank. */
  async open() {
    const rank = $("[data-log-rank]", this.root)?.value ?? "0", attempt = $("[data-log-attempt]", this.root).value;
    const download = $("[data-log-download]", this.root);
    const part = attempt || (this.source.latest > 1 ? "all" : 1);
    download.href = `${download.dataset.logDownload}?${new URLSearchParams({ rank, attempt: part })}`;
    this.drawn = null;
    await this.source.open(Number(attempt) || null, rank);
    this.#target();
    this.draw();
  }

  follow() {
    this.following = true;
    this.draw();
  }

  // If only the newest attempt is shown, follow a new attempt.
  #began(attempt) {
    const select = $("[data-log-attempt]", this.root);
    const wasNewest = Number(select.value) === attempt - 1;
    delete this.root.dataset.ended;
    if (!$(`option[value="${attempt}"]`, select)) $("option", select).after(h("option", { value: attempt }, say("log_attempt", { number: attempt })));
    if (!wasNewest) return;
    select.value = attempt;
    this.open();
  }

  #toggle(name) {
    const button = $(`[data-log-${name}]`, this.root), key = `trainyard-log-${name}`;
    const set = (isOn) => {
      this[name] = isOn;
      button.setAttribute("aria-pressed", isOn);
      this.view.classList.toggle(`is-${name}`, isOn);
      this.#forgetHeights();
    };
    button.addEventListener("click", () => { set(!this[name]); localStorage.setItem(key, this[name] ? "on" : ""); });
    set(localStorage.getItem(key) === "on");
  }

  // Another width wraps lines differently.
  #resized() {
    if (this.width !== this.view.clientWidth) this.#forgetHeights();
    this.width = this.view.clientWidth;
    this.draw();
  }

  #forgetHeights() {
    this.source.book.forgetHeights();
    this.matches?.forgetHeights();
    this.draw();
  }

  // The feed delivers lines at once; polling covers a disconnected feed and the end of the log.
  #poll() {
    if (document.hidden || !this.source.growing) return;
    if (this.following || this.target || this.scroll.isNearEnd(NEAR_END)) this.source.catchUp();
  }

  #search(text) {
    clearTimeout(this.searching);
    this.searching = setTimeout(async () => {
      const needle = (this.needle = text.trim());
      const found = needle ? await this.#find(needle) : null;
      if (needle === this.needle) this.#match(found);
    }, 200);
  }

  async #find(needle) {
    const found = [];
    for (const section of this.source.book.sections) {
      const lines = await section.search(needle, { most: MOST_MATCHES - found.length, isRaw: this.raw });
      found.push(...lines.map((line) => ({ section, line })));
    }
    return new Matches(found);
  }

  // Show matches from the first one; after the search restore the scroll position.
  #match(found) {
    if (!this.matches) this.left = this.scroll.top;
    this.matches = found;
    this.drawn = null;
    this.scroll.go(found ? 0 : this.left);
    this.draw();
  }

  #target() {
    const [, attempt, n] = /^#L(?:(\d+):)?(\d+)$/.exec(location.hash) ?? [];
    if (!n) return;
    this.following = false;
    this.target = { attempt: Number(attempt) || this.source.attempt || this.source.latest, n: Number(n) };
    this.awaited = this.target;
    if (this.source.attempt && this.source.attempt !== this.target.attempt) {
      $("[data-log-attempt]", this.root).value = "";
      this.open();
    }
    this.draw();
  }

  // A requested line that does not exist yet is shown when it is written.
  #reach() {
    const section = this.awaited && this.source.book.section(this.awaited.attempt);
    if (!section || this.matches || section.last < this.awaited.n) return;
    this.scroll.go((this.source.book.rowOf(section, this.awaited.n) - ABOVE) * ROW);
    this.reached = this.awaited;
    this.awaited = null;
  }

  // Any scroll up stops following; scrolling down resumes it a little before the last pixel.
  #scrolled() {
    const by = this.scroll.moved();
    if (!by) return;
    this.reached = null;
    if (!this.matches) this.following = this.scroll.isNearEnd(by > 0 ? NEAR_END : 1);
    this.draw();
  }

  /** Redraw on the next frame. */
  draw() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.#draw(); });
  }

  #draw() {
    const shown = this.matches ?? this.source.book;
    for (let round = 0; round < ROUNDS; round++) {
      const items = this.#place(shown);
      if (!this.wrap || !this.#measure(shown, items)) break;
    }
    if (!this.matches) this.#fill();
    this.#foot(shown);
  }

  #place(shown) {
    this.#stay(shown);
    this.scroll.resize(shown.rows * ROW);
    this.#reach();
    if (this.following && !this.matches) this.scroll.go(Infinity);
    this.scroll.settle();
    const items = this.#items(shown), settings = { isRaw: this.raw, needle: this.needle, target: this.target, hasAttempts: this.source.latest > 1 };
    this.rows.show(items, settings);
    this.holder.style.setProperty("--digits", number(this.source.book.longest).length);
    this.holder.style.insetBlockStart = `${this.scroll.place((items[0]?.start ?? 0) * ROW)}px`;
    this.#remember(shown, items);
    return items;
  }

  // Keep the visible lines in place when rows above them are added or grow.
  #stay(shown) {
    const { anchor } = this.drawn ?? {};
    if (!anchor || this.drawn.shown !== shown || this.drawn.version === shown.version) return;
    this.scroll.top += (shown.startOf(anchor) - anchor.start) * ROW;
  }

  // Until the first scroll keep the requested line in view: lines above it may be taller than estimated.
  #remember(shown, items) {
    const isReached = ({ note, n, section }) => !note && n === this.reached?.n && section.attempt === this.reached.attempt;
    const anchor = items.find(isReached) ?? items.find((item) => !item.note && item.start * ROW >= this.scroll.top);
    this.drawn = { shown, version: shown.version, anchor, items };
  }

  #items(shown) {
    const { top } = this.scroll, items = [];
    const asked = { first: Math.floor(top / ROW) - SPARE, last: Math.ceil((top + this.view.clientHeight) / ROW) + SPARE };
    const { first, last } = this.rows.keepSelected(asked, this.range);
    for (let row = Math.max(0, first), end = Math.min(shown.rows, last); row < end;) {
      const item = shown.at(row);
      items.push(item);
      row = item.start + item.height;
    }
    this.range = { first, last };
    return items;
  }

  // Measures wrapped lines; true if a height changed.
  #measure(shown, items) {
    const heights = items.map((item) => Math.max(1, Math.round(this.rows.node(item).offsetHeight / ROW)));
    const wrong = items.filter((item, at) => item.height !== heights[at]);
    items.forEach((item, at) => { if (item.height !== heights[at]) shown.setHeight(item, heights[at]); });
    return wrong.length > 0;
  }

  #fill() {
    clearTimeout(this.filling);
    this.filling = setTimeout(async () => {
      if (!this.drawn) return; // other attempts have been chosen meanwhile
      const missing = Map.groupBy(this.drawn.items.filter((item) => item.n && !item.line), (item) => item.section);
      for (const [section, items] of missing) {
        const came = await section.need(items[0].n, items.at(-1).n).catch(() => false);
        if (came) this.draw();
      }
    }, 60);
  }

  #foot(shown) {
    const lines = shown.lines, word = this.matches ? "log_matches" : lines === 1 ? "log_line" : "log_lines";
    // Before the first answer it is not known whether the job printed anything.
    const isKnown = Boolean(lines || this.matches || this.source.isKnown);
    setText($(".log-foot span", this.root), isKnown ? say(word, { count: number(lines) }) : "");
    $("[data-log-follow]", this.root).setAttribute("aria-pressed", this.following);
    const empty = $("[data-log-empty]", this.root), isOver = "ended" in this.root.dataset || this.source.book.newest?.complete;
    empty.hidden = Boolean(this.matches || lines) || !isKnown;
    $("[data-log-waits]", empty).hidden = isOver;
    $("[data-log-silent]", empty).hidden = !isOver;
  }
}

for (const root of $$("[data-log]")) root.viewer = new LogViewer(root);
