// Tables by keyboard: arrows move between rows, Enter opens the row's link, Home and End jump. One row is in the
// tab order at a time. Works on rows that live updates add later, because it listens on the table.

import { $$ } from "./dom.js";

const ROWS = "tbody > tr[data-key]";

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
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (to !== undefined && rows[to]) { rows[to].focus(); event.preventDefault(); }
  if (event.key === "Enter" && event.target === row) open(row);
}

function open(row) {
  row?.querySelector("a[href]")?.click();
}
