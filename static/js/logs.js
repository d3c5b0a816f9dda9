// The log viewer: a numbered virtual list that follows the end until the reader scrolls up, fills gaps from REST,
// searches on the server and links to lines (#L120). Only the rows on screen exist as elements.

import { nodes } from "./ansi.js";
import { $, $$, h, say, setText } from "./dom.js";
import { clock, number } from "./format.js";
import { feed } from "./live.js";
import { LogLines } from "./loglines.js";

const ROW = 20, SPARE = 12, NEAR_END = 50, POLL = 2000;

export class LogViewer {
  constructor(root) {
    this.root = root;
    this.view = $(".log-view", root);
    this.space = h("div", { class: "log-space" });
    this.rows = h("div", { class: "log-rows" });
    this.space.append(this.rows);
    this.view.replaceChildren(this.space);
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
    const mine = (this.lines = new LogLines((query) => this.#fetch(query)));
    await mine.start();
    if (mine !== this.lines) return;
    this.draw();
    this.#target();
    this.leave = feed().subscribe(`job:${job}:logs:${this.rank}`, {
      state: (state) => this.#receive(Object.values(state.lines || {})),
      change: (_, frame) => this.#receive(Object.values(frame.upserts?.lines || {})),
    });
  }

  // a new attempt has a log of its own; who looks at the newest one moves on with it
  #attempted(number) {
    const latest = this.root.dataset.latestAttempt;
    if (!number || String(number) === latest) return;
    this.root.dataset.latestAttempt = number;
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

  #receive(lines) {
    const latest = this.root.dataset.latestAttempt;
    if (!lines.length || (this.attempt && latest && this.attempt !== latest)) return;
    const hasHole = this.lines.add(lines);
    if (hasHole && this.following) this.lines.refresh().then(() => this.draw());
    this.draw();
  }

  // the feed brings lines at once; this asks the store when the feed is away, and for the end of the log
  async #poll() {
    if (document.hidden || this.polling || !this.lines || this.lines.complete) return;
    if (!this.following && !this.awaited && !this.#nearEnd()) return;
    this.polling = true;
    try { while (await this.lines.refresh()) this.draw(); } finally { this.polling = false; }
    this.draw();
  }

  async #search(text) {
    clearTimeout(this.searching);
    this.searching = setTimeout(async () => {
      this.needle = text.trim();
      this.matches = this.needle ? await this.lines.search(this.needle) : null;
      if (!this.needle && !this.following) this.view.scrollTop = 0;
      this.draw();
    }, 200);
  }

  #target() {
    const n = Number(/^#L(\d+)$/.exec(location.hash)?.[1]);
    if (!n) return;
    this.following = false;
    this.target = this.awaited = n;
    this.draw();
  }

  // a line that the log has not reached yet is gone to when it does
  #reach(count) {
    if (!this.awaited || this.matches || count < this.awaited) return;
    this.moving = true;
    this.view.scrollTop = Math.max(0, (this.awaited - 6) * ROW);
    this.awaited = null;
  }

  #nearEnd() { return this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight <= NEAR_END; }

  #scrolled() {
    if (this.moving) { this.moving = false; return; }
    this.following = this.#nearEnd();
    this.draw();
  }

  /** Redraw on the next frame. */
  draw() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.#draw(); });
  }

  #draw() {
    const count = this.matches ? this.matches.length : this.lines.last;
    this.space.style.blockSize = `${count * ROW}px`;
    this.#reach(count);
    if (this.following && !this.matches && !this.#atBottom()) {
      this.moving = true;
      this.view.scrollTop = this.view.scrollHeight;
    }
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - SPARE);
    const last = Math.min(count, Math.ceil((this.view.scrollTop + this.view.clientHeight) / ROW) + SPARE);
    const rows = [];
    for (let index = first; index < last; index++) rows.push(this.#row(this.matches ? this.matches[index] : this.lines.lines.get(index + 1), index + 1));
    this.rows.style.insetBlockStart = `${first * ROW}px`;
    if (!this.#selecting()) this.rows.replaceChildren(...rows);
    if (!this.matches && last > first) this.#fill(first + 1, last);
    this.#foot(count);
  }

  #atBottom() { return this.view.scrollTop + this.view.clientHeight >= this.view.scrollHeight - 1; }

  // replacing rows would drop the reader's selection
  #selecting() {
    const selection = getSelection();
    return selection && !selection.isCollapsed && this.rows.contains(selection.anchorNode);
  }

  #row(line, n) {
    if (!line) return h("div", { class: "log-line" }, h("a", { class: "n" }, String(n)), h("span", { class: "t" }, "…"));
    const gap = this.lines.gaps.get(line.n);
    const classes = ["log-line", line.stream === "stderr" ? "is-stderr" : "", this.target === line.n ? "is-target" : ""];
    return h("div", { class: classes.join(" ").trim() },
      h("a", { class: "n", href: `#L${line.n}` }, number(line.n)),
      h("span", { class: "t" }, clock(line.time)),
      h("span", { class: "text" }, ...nodes(line.text, this.needle)),
      gap === undefined ? null : h("span", { class: "warning" }, say("log_gap", { detail: gap })));
  }

  #fill(from, to) {
    clearTimeout(this.filling);
    this.filling = setTimeout(async () => { if (await this.lines.need(from, to)) this.draw(); }, 60);
  }

  #foot(count) {
    const foot = $(".log-foot span", this.root);
    if (foot) setText(foot, this.matches ? say("log_matches", { count: number(count) }) : say(count === 1 ? "log_line" : "log_lines", { count: number(count) }));
    const button = $("[data-log-follow]", this.root);
    button?.setAttribute("aria-pressed", this.following);
    const empty = $("[data-log-empty]", this.root);
    if (empty) empty.hidden = count > 0;
  }
}

for (const root of $$("[data-log]")) root.viewer = new LogViewer(root);
