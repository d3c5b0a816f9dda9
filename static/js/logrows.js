// The rows of the log viewer that are on screen, as elements. An element stays as long as its line is on screen, so that
// focus, selection and hover survive new lines.

import { nodes } from "./ansi.js";
import { h, say } from "./dom.js";
import { clock, number } from "./format.js";
import { spelled } from "./progressline.js";

const KEPT_ROWS = 2000; // of a selection that is drawn out over many screens
const SAYS_ALL = "output may be missing"; // a gap's message that begins so needs no introduction

export class LogRows {
  /** `holder` contains the rows, `view` takes the focus of a row that leaves the screen. */
  constructor(holder, view) {
    Object.assign(this, { holder, view });
    this.shown = new Map(); // id -> {node, looks}
  }

  /** Show exactly these items, in order; `settings` = {isRaw, needle, target, hasAttempts}. */
  show(items, settings) {
    const before = this.shown;
    this.shown = new Map(items.map((item) => [item.id, this.#row(item, settings, before.get(item.id))]));
    const hadFocus = this.holder.contains(document.activeElement);
    for (const [id, { node }] of before) if (this.shown.get(id)?.node !== node) node.remove();
    let cursor = this.holder.firstChild;
    for (const { node } of this.shown.values()) {
      if (node === cursor) cursor = cursor.nextSibling;
      else this.holder.insertBefore(node, cursor);
    }
    if (hadFocus && !this.holder.contains(document.activeElement)) this.view.focus({ preventScroll: true });
  }

  node(item) { return this.shown.get(item.id).node; }

  /** While text is selected, extend the range by the selected rows: their elements must stay. */
  keepSelected({ first, last }, old) {
    const selection = getSelection();
    const isSelecting = selection && !selection.isCollapsed && this.holder.contains(selection.anchorNode);
    const isKept = isSelecting && old && first <= old.last && last >= old.first && old.last - old.first < KEPT_ROWS;
    return isKept ? { first: Math.min(first, old.first), last: Math.max(last, old.last) } : { first, last };
  }

  #row(item, settings, known) {
    const isTarget = settings.target?.attempt === item.section.attempt && settings.target.n === item.n;
    const looks = [Boolean(item.line), settings.isRaw, settings.needle ?? "", isTarget, settings.hasAttempts].join();
    if (known?.looks === looks && known.message === item.note?.message) return known;
    const node = item.note ? noteRow(item.note) : lineRow(item, settings, isTarget);
    return { node, looks, message: item.note?.message };
  }
}

function lineRow({ section, n, line }, settings, isTarget) {
  if (!line) return h("div", { class: "log-line" }, h("span", { class: "n" }, number(n)), h("span", { class: "t" }, "…"));
  const progress = settings.isRaw || line.partial ? "" : spelled(line.text);
  const classes = ["log-line", line.stream === "stderr" && "is-stderr", isTarget && "is-target"];
  return h("div", { class: classes.filter(Boolean).join(" ") },
    // Not in the tab order: a log has very many lines.
    h("a", { class: "n", tabindex: -1, href: address(section.attempt, n, settings.hasAttempts) }, number(n)),
    h("span", { class: "t" }, clock(line.time)),
    h("span", { class: "text" }, ...nodes(progress || line.text, settings.needle)));
}

function noteRow({ kind, time, message }) {
  const isGap = kind === "gap";
  const text = isGap && !message.startsWith(SAYS_ALL) ? say("log_gap", { detail: message }) : message;
  return h("div", { class: `log-line ${isGap ? "is-gap" : `is-event ${kind}`}` }, h("span", { class: "n" }),
    h("span", { class: "t" }, time ? clock(time) : ""), h("span", { class: "text" }, text));
}

/** The address of a line on the page: #L120, or #L2:120 where there are several attempts. */
const address = (attempt, n, hasAttempts) => (hasAttempts ? `#L${attempt}:${n}` : `#L${n}`);
