// When a queued job is expected to start, and what would start it: computed by a request of its own, because it
// takes seconds, and again when the job changes.

import { $, fetchPage } from "./dom.js";
import { localise } from "./format.js";
import { isLeavingPage } from "./regions.js";

const EVERY = 15_000; // milliseconds between two questions
const SLOWER = 5; // times as long as the last answer took, at least
let earliest = 0, timer = null, tallest = 0;

async function update() {
  const shown = $("#job-outlook"), began = Date.now();
  let fresh = null;
  if (shown && !isLeavingPage()) {
    try {
      fresh = await fetchPage(shown.dataset.outlook);
    } catch {
      // The connection is lost; the status dot shows that.
    }
  }
  earliest = began + Math.max(EVERY, SLOWER * (Date.now() - began));
  timer = null;
  if (!fresh || !shown.isConnected) return;
  shown.replaceChildren(...fresh.body.childNodes);
  localise(shown);
}

function soon() {
  if (timer === null && $("#job-outlook")) timer = setTimeout(update, Math.max(0, earliest - Date.now()));
}

// Keeps the height of the panel, so that the content below does not move when the job starts.
function keepRoom(panel) {
  tallest = Math.max(tallest, Math.ceil(panel.getBoundingClientRect().height));
  panel.parentElement.style.gridTemplateRows = `minmax(${tallest}px, auto)`;
}

const panel = $("#job-why");
new ResizeObserver(() => keepRoom(panel)).observe(panel);
document.addEventListener("regions", soon);
soon();
