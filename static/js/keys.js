// Keyboard shortcuts of every page: g then a letter goes somewhere, / filters, ? explains.

import { $, h, say } from "./dom.js";
import { enterRows } from "./table.js";

const PLACES = { o: "/", j: "/jobs", p: "/projects", n: "/nodes", a: "/analytics", u: "/users" };
const typing = (node) => node.matches?.("input, select, textarea, [contenteditable], .xterm *");
let armed = 0;

export function keys(openPalette) {
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
    if (event.key === "Escape" && event.target.matches?.("[data-filter]")) { event.target.blur(); return; }
    if (typing(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (Date.now() - armed < 1200 && PLACES[event.key]) { armed = 0; location.assign(PLACES[event.key]); return; }
    armed = event.key === "g" ? Date.now() : 0;
    if (event.key === "/") focusFilter(event, openPalette);
    if (event.key === "?") explain();
    // Without a focused element the arrow keys move between rows, except in scrollable elements.
    if (!event.defaultPrevented && (event.target === document.body || event.target.id === "page") && enterRows(event.key)) event.preventDefault();
  });
}

function focusFilter(event, openPalette) {
  event.preventDefault();
  const filter = $("[data-filter]");
  if (filter) filter.focus();
  else openPalette();
}

function explain() {
  const rows = [["Ctrl K", say("key_palette")], ["g o", say("key_overview")], ["g j", say("key_jobs")], ["g p", say("key_projects")],
    ["g n", say("key_nodes")], ["g a", say("key_analytics")], ["/", say("key_filter")], ["↑ ↓ j k Enter", say("key_rows")], ["?", say("key_help")]];
  const list = h("dl", { class: "facts" }, ...rows.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]));
  const close = h("button", { class: "button", value: "close" }, say("close"));
  const dialog = h("dialog", { "aria-label": say("key_help") }, list, h("form", { method: "dialog", class: "actions" }, close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
