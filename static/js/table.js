// Tables by keyboard: arrows (or j and k) move between rows, Enter opens the row's link, Home and End jump. One row is in the
// tab order at a time. Works on rows that live updates add later, because it listens on the table.

import { $$ } from "./dom.js";

const ROWS = "tbody > tr[data-key]";
const STEPS = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };

/** Focus a row of the page's only table: the last focused one, else the first. */
export function enterRows(key) {
  const shown = $$("table[data-rows]").filter((table) => table.checkVisibility() && $$(ROWS, table).length);
  if (!(key in STEPS) || shown.length !== 1) return false;
  const rows = $$(ROWS, shown[0]);
  (rows.find((row) => row.tabIndex === 0) ?? rows[0]).focus();
  return true;
}

export function tables() {
  for (const table of $$("table[data-rows]")) {
    table.addEventListener("keydown", onKey);
    table.addEventListener("focusin", onFocus);
    table.addEventListener("dblclick", (event) => open(event.target.closest(ROWS)));
    arm(table);
    new MutationObserver(() => arm(table)).observe(table, { childList: true, subtree: true });
  }
}

function arm(table) {
  const rows = $$(ROWS, table);
  if (!rows.length || rows.some((row) => row.tabIndex === 0 && row.hasAttribute("tabindex"))) {
    for (const row of rows) if (!row.hasAttribute("tabindex")) row.tabIndex = -1;
    return;
  }
  rows.forEach((row, index) => { row.tabIndex = index === 0 ? 0 : -1; });
}

function onFocus(event) {
  const row = event.target.closest(ROWS);
  if (!row) return;
  for (const other of $$(ROWS, row.closest("table"))) other.tabIndex = other === row ? 0 : -1;
}

function onKey(event) {
  const row = event.target.closest(ROWS);
  if (!row || event.target.matches("input, select, textarea, button, summary")) return;
  const rows = $$(ROWS, row.closest("table"));
  const at = rows.indexOf(row);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const to = { Home: 0, End: rows.length - 1 }[event.key] ?? (event.key in STEPS ? at + STEPS[event.key] : undefined);
  if (to !== undefined && rows[to]) { rows[to].focus(); event.preventDefault(); }
  if (event.key === "Enter" && event.target === row) open(row);
}

function open(row) {
  row?.querySelector("a[href]")?.click();
}
