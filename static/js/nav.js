// The counts in the navigation, fetched again when what they count changes.

import { $$, setText } from "./dom.js";
import { number } from "./format.js";
import { feed } from "./live.js";

const EVERY = 1000; // milliseconds between two questions
const COUNTED = ["jobs", "nodes", "projects", "datasets", "volumes"];
let askedAt = 0, timer = null, isStale = false;

function look(_, frame) {
  if (frame && !COUNTED.some((part) => frame.upserts?.moved?.[part])) return;
  if (timer) { isStale = true; return; }
  timer = setTimeout(ask, Math.max(0, askedAt + EVERY - Date.now()));
}

async function ask() {
  askedAt = Date.now();
  isStale = false;
  try {
    const response = await fetch("/counts.json", { headers: { Accept: "application/json" } });
    if (!response.ok || !response.headers.get("Content-Type")?.startsWith("application/json")) return;
    const counts = await response.json();
    for (const node of $$("[data-nav-count]")) setText(node, number(counts[node.dataset.navCount]));
  } catch {
    isStale = true; // out of touch, which the live dot says
  } finally {
    timer = null;
    if (isStale) look();
  }
}

/** Update the counts from the feed; the page renders the first ones. */
export function navCounts() {
  feed().subscribe("activity", { state: look, change: look });
}
