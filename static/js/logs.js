// The log viewer: a numbered virtual list that follows the end until the reader scrolls up, fills gaps from REST,
// searches on the server and links to lines (#L120). Only the rows on screen exist as elements.

import { nodes } from "./ansi.js";
import { $, $$, h, say, setText } from "./dom.js";
import { clock, number } from "./format.js";
import { feed } from "./live.js";
import { LogLines } from "./loglines.js";
import { LogScroll } from "./logscroll.js";

const ROW = 20, SPARE = 12, NEAR_END = 50, POLL = 2000;
const ABOVE = 5; // rows that are shown before a line that somebody goes to
const KEPT_ROWS = 2000; // of a selection that is drawn out over many screens
const SAYS_ALL = "output may be missing"; // a gap's message that begins so needs no introduction

export class LogViewer {
  constructor(root) {
    this.root = root;
    this.view = $(".log-view", root);
    this.space = h("div", { class: "log-space" });
    this.rows = h("div", { class: "log-rows" });
    this.space.append(this.rows);
    this.view.replaceChildren(this.space);
    this.scroll = new LogScroll(this.view, this.space, () => this.draw());
    this.following = !location.hash.startsWith("#L");
    this.matches = null;
    this.view.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.view);
    $("[data-log-follow]", root)?.addEventListener("click", () => this.follow());
    $("[data-log-search]", root)?.addEventListener("input", (event) => this.#search(event.target.value));
    for (const select of $$("select", root)) select.addEventListener("change", () => this.open());
    addEventListener("hashchange", () => this.#target());
    setInterval(() => this.#poll(), POLL);
    const heard = (state) => this.#attempted(Object.values(state.job ?? {})[0]?.status.attempt);
    feed().subscribe(`job:${root.dataset.job}`, { state: heard, change: heard });
    this.open();
  }

  /** Open the chosen attempt and rank from the start. */
  async open() {
    const { job } = this.root.dataset;
    this.rank = $("[data-log-rank]", this.root)?.value ?? "0";
    this.attempt = $("[data-log-attempt]", this.root)?.value ?? "";
    this.leave?.();
    this.shown = null;
    const mine = (this.lines = new LogLines((query) => this.#fetch(query), (row, count) => this.#inserted(row, count)));
    await mine.start();
    if (mine !== this.lines) return;
    this.draw();
    this.#target();
    this.leave = feed().subscribe(`job:${job}:logs:${this.rank}`, {
      state: (state) => this.#receive(state),
      change: (_, frame) => this.#receive(frame.upserts ?? {}),
    });
  }

  // a new attempt has a log of its own; who looks at the newest one moves on with it
  #attempted(number) {
    const latest = this.root.dataset.latestAttempt;
    if (!number || String(number) === latest) return;
    this.root.dataset.latestAttempt = number;
    delete this.root.dataset.ended;
    const select = $("[data-log-attempt]", this.root);
    if (select) {
      select.prepend(h("option", { value: number }, say("log_attempt", { number })));
      if (select.value === latest) select.value = String(number);
    }
    if (!select || select.value === String(number)) this.open();
  }

  follow() {
    this.following = true;
    this.draw();
  }

  async #fetch(query) {
    const asked = new URLSearchParams({ rank: this.rank });
    if (this.attempt) asked.set("attempt", this.attempt);
    for (const [name, value] of Object.entries(query)) asked.set(name, value);
    const response = await fetch(`/api/v1/jobs/${this.root.dataset.job}/logs?${asked}`, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`logs: ${response.status}`);
    return response.json();
  }

  #receive(news) {
    const latest = this.root.dataset.latestAttempt;
    if (this.attempt && latest && this.attempt !== latest) return;
    const hasHole = this.lines.add(Object.values(news.lines ?? {}));
    // the feed keeps one gap a line, the store all of them in order
    if (news.gaps || (hasHole && this.following)) this.#catchUp();
    this.draw();
  }

  // the feed brings lines at once; this asks the store when the feed is away, and for the end of the log
  async #poll() {
    if (document.hidden || this.reading || !this.lines || this.lines.complete) return;
    if (this.following || this.awaited || this.scroll.isNearEnd(NEAR_END)) await this.#catchUp();
  }

  // who asks while it reads has it read once more
  async #catchUp() {
    this.unread = true;
    if (this.reading) return;
    this.reading = true;
    const mine = this.lines;
    try {
      while (this.unread && mine === this.lines) {
        this.unread = false;
        this.unread = await mine.refresh() || this.unread;
        this.draw();
      }
    } finally { this.reading = false; }
  }

  #search(text) {
    clearTimeout(this.searching);
    this.searching = setTimeout(async () => {
      const needle = (this.needle = text.trim());
      const found = needle ? await this.lines.search(needle) : null;
      if (needle === this.needle) this.#match(found);
    }, 200);
  }

  // matches from the first on; afterwards the log is where it was
  #match(found) {
    if (!this.matches) this.left = this.scroll.top;
    this.matches = found;
    this.shown = null;
    this.scroll.go(found ? 0 : this.left);
    this.draw();
  }

  #target() {
    const n = Number(/^#L(\d+)$/.exec(location.hash)?.[1]);
    if (!n) return;
    this.following = false;
    this.target = this.awaited = n;
    this.draw();
  }

  // a line that the log has not reached yet is gone to when it does
  #reach() {
    if (!this.awaited || this.matches || this.lines.last < this.awaited) return;
    this.scroll.go((this.lines.rowOf(this.awaited) - ABOVE) * ROW);
    this.awaited = null;
  }

  // the least step up stops the following, the way down need not be gone to the last pixel
  #scrolled() {
    const by = this.scroll.moved();
    if (!by) return;
    if (!this.matches) this.following = this.scroll.isNearEnd(by > 0 ? NEAR_END : 1);
    this.draw();
  }

  // what is read stays where it is when a gap comes to light above it
  #inserted(row, count) {
    this.shown = null;
    if (this.matches) return;
    if (row * ROW < this.scroll.top) this.scroll.top += count * ROW;
  }

  /** Redraw on the next frame. */
  draw() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.#draw(); });
  }

  #draw() {
    const rows = this.matches ? this.matches.length : this.lines.rows;
    this.scroll.resize(rows * ROW);
    this.#reach();
    if (this.following && !this.matches) this.scroll.go(Infinity);
    this.scroll.settle();
    const { top } = this.scroll;
    const first = Math.max(0, Math.floor(top / ROW) - SPARE);
    const last = Math.min(rows, Math.ceil((top + this.view.clientHeight) / ROW) + SPARE);
    this.#show(first, last);
    this.rows.style.setProperty("--digits", number(this.lines.last).length);
    this.rows.style.insetBlockStart = `${this.scroll.place(this.shown.first * ROW)}px`;
    if (!this.matches && last > first) this.#fill(Math.max(1, this.lines.at(first).n), this.lines.at(last - 1).n);
    this.#foot(rows);
  }

  // replacing rows would drop the reader's selection: rows are added to it instead
  #show(first, last) {
    const old = this.shown;
    const isKept = old && this.#selecting() && first <= old.last && last >= old.first && old.last - old.first < KEPT_ROWS;
    if (isKept) {
      this.rows.prepend(...this.#built(first, old.first));
      this.rows.append(...this.#built(old.last, last));
      this.shown = { first: Math.min(first, old.first), last: Math.max(last, old.last) };
    } else {
      this.rows.replaceChildren(...this.#built(first, last));
      this.shown = { first, last };
    }
  }

  #selecting() {
    const selection = getSelection();
    return selection && !selection.isCollapsed && this.rows.contains(selection.anchorNode);
  }

  #built(first, last) {
    const rows = [];
    for (let row = first; row < last; row++) rows.push(this.#row(row));
    return rows;
  }

  #row(row) {
    if (this.matches) return this.#line(this.matches[row]);
    const { n, gap } = this.lines.at(row);
    return gap ? this.#gap(gap) : this.#line(this.lines.lines.get(n), n);
  }

  #line(line, n) {
    if (!line) return h("div", { class: "log-line" }, h("a", { class: "n" }, number(n)), h("span", { class: "t" }, "…"));
    const classes = ["log-line", line.stream === "stderr" ? "is-stderr" : "", this.target === line.n ? "is-target" : ""];
    return h("div", { class: classes.join(" ").trim() },
      h("a", { class: "n", href: `#L${line.n}`, tabindex: "-1" }, number(line.n)),
      h("span", { class: "t" }, clock(line.time)),
      h("span", { class: "text" }, ...nodes(line.text, this.needle)));
  }

  #gap({ time, message }) {
    return h("div", { class: "log-line is-gap" }, h("span", { class: "n" }), h("span", { class: "t" }, time ? clock(time) : ""),
      h("span", { class: "text" }, message.startsWith(SAYS_ALL) ? message : say("log_gap", { detail: message })));
  }

  #fill(from, to) {
    clearTimeout(this.filling);
    this.filling = setTimeout(async () => { if (await this.lines.need(from, to)) this.draw(); }, 60);
  }

  #foot(rows) {
    const foot = $(".log-foot span", this.root), count = this.matches ? rows : this.lines.last;
    if (foot) setText(foot, this.matches ? say("log_matches", { count: number(count) }) : say(count === 1 ? "log_line" : "log_lines", { count: number(count) }));
    const button = $("[data-log-follow]", this.root);
    button?.setAttribute("aria-pressed", this.following);
    const empty = $("[data-log-empty]", this.root);
    if (empty) this.#sayEmpty(empty, !this.matches && !rows);
  }

  // nothing yet, or nothing at all
  #sayEmpty(empty, isEmpty) {
    empty.hidden = !isEmpty;
    const isOver = this.lines.complete || "ended" in this.root.dataset;
    $("[data-log-waits]", empty).hidden = isOver;
    $("[data-log-silent]", empty).hidden = !isOver;
  }
}

for (const root of $$("[data-log]")) root.viewer = new LogViewer(root);
