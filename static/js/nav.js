// The numbers beside the navigation follow the feed: asked for again when jobs, projects or nodes came or went.

import { $$, setText } from "./dom.js";
import { number } from "./format.js";
import { feed } from "./live.js";

const EVERY = 1000; // milliseconds between two questions
let seen = null, askedAt = 0, timer = null;

// what cannot stay the same when something came or went
const signature = ({ totals, projects, nodes }) =>
  [totals.all.jobs_running, totals.all.jobs_queued, Object.keys(projects ?? {}).length, Object.keys(nodes ?? {}).length].join();

function look(state) {
  const now = signature(state);
  if (now === seen || timer) return;
  timer = setTimeout(ask, Math.max(0, askedAt + EVERY - Date.now()), state);
}

async function ask(state) {
  seen = signature(state);
  askedAt = Date.now();
  try {
    const response = await fetch("/counts.json", { headers: { Accept: "application/json" } });
    if (!response.ok || !response.headers.get("Content-Type")?.startsWith("application/json")) return;
    const counts = await response.json();
    for (const node of $$("[data-nav-count]")) setText(node, number(counts[node.dataset.navCount]));
  } catch {
    seen = null; // out of touch, which the live dot says: the next frame asks again
  } finally {
    timer = null;
  }
}

/** Follow the overview for the numbers; the page has drawn the first ones. */
export function navCounts() {
  feed().subscribe("overview", { state: look, change: look });
}
