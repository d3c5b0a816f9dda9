// Live regions: parts of a page that the server draws again when their topic moves, at most once a second, and that
// are brought up to date node by node, so that scroll, selection, focus and open rows stay.
//
//   <section id="job-list" data-live="overview" data-live-only="running queued">

import { $$, glow } from "./dom.js";
import { localise, showSince } from "./format.js";
import { feed } from "./live.js";

const EVERY = 1000; // milliseconds between two fetches

// a page that is on its way elsewhere must not be called back
let isLeaving = false;
addEventListener("beforeunload", () => { isLeaving = true; });
addEventListener("pageshow", () => { isLeaving = false; });

/** Follow the topics of all live regions of the page. */
export function regions() {
  const byTopic = Map.groupBy($$("[data-live]"), (region) => region.dataset.live);
  for (const [topic, elements] of byTopic) feed().subscribe(topic, new Region(elements));
}

class Region {
  constructor(elements) {
    this.ids = elements.map((element) => element.id);
    this.only = elements[0].dataset.liveOnly?.split(" ");
    this.fetchedAt = 0;
  }

  // something may have happened between the drawing of the page and this state, or while the feed was away
  state() { this.soon(); }

  change(_, frame) {
    const moved = [...Object.keys(frame.upserts || {}), ...(frame.deletes || []).map(([collection]) => collection)];
    if (!this.only || moved.some((collection) => this.only.includes(collection))) this.soon();
  }

  // what the page is about is gone: the server says so better
  error(frame) {
    if (frame.code === "gone") setTimeout(() => { if (!isLeaving) location.reload(); }, EVERY);
  }

  soon() {
    if (this.timer) return;
    this.timer = setTimeout(() => this.#update(), Math.max(0, this.fetchedAt + EVERY - Date.now()));
  }

  async #update() {
    this.fetchedAt = Date.now();
    if (isLeaving) return;
    try {
      await redraw(this.ids);
    } finally {
      this.timer = null;
    }
  }
}

/** Draw parts of the page again, by their ids, as the server draws the page's address now. An answer for an address that
    the page has left meanwhile is dropped. */
export async function redraw(ids) {
  const address = location.href;
  const response = await fetch(address, { headers: { Accept: "text/html" } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  if (address !== location.href) return;
  const held = document.activeElement;
  for (const id of ids) {
    const old = document.getElementById(id), next = fresh.getElementById(id);
    if (old && next) { morph(old, next); localise(old); }
  }
  // moving a row takes the focus out of it
  if (held?.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
}

/** Make `old` like `next`, touching only what differs. */
export function morph(old, next) {
  if (old.isEqualNode(next)) return;
  if (old.dataset?.absolute !== undefined && old.dateTime === next.dateTime) return; // shown in the reader's zone already
  if (old.contains(document.activeElement) && old.matches("input, select, textarea")) return;
  attributes(old, next);
  if (old.hasAttribute?.("data-keep")) return; // what is inside draws itself
  if (old.dataset?.since) { showSince(old); return; }
  const keyed = new Map([...old.children].filter((child) => child.dataset?.key).map((child) => [child.dataset.key, child]));
  // first what goes, so that the rows below it need not move
  const stays = new Set([...next.children].map((child) => child.dataset?.key));
  for (const [key, child] of keyed) if (!stays.has(key)) child.remove();
  let cursor = old.firstChild;
  for (const wanted of [...next.childNodes]) {
    const match = wanted.dataset?.key ? keyed.get(wanted.dataset.key) : like(cursor, wanted) ? cursor : null;
    if (match) {
      if (match !== cursor) old.insertBefore(match, cursor);
      else cursor = cursor.nextSibling;
      one(match, wanted);
    } else {
      const made = document.importNode(wanted, true);
      old.insertBefore(made, cursor);
      if (made.nodeType === 1 && made.dataset.key) glow(made);
    }
  }
  while (cursor) { const gone = cursor; cursor = cursor.nextSibling; gone.remove(); }
}

const like = (old, wanted) => old && old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && !old.dataset?.key && old.id === wanted.id;

function one(old, wanted) {
  if (old.nodeType === 1) { morph(old, wanted); return; }
  if (old.nodeValue === wanted.nodeValue) return;
  const isText = old.nodeValue.trim() !== wanted.nodeValue.trim();
  old.nodeValue = wanted.nodeValue;
  if (isText && old.parentElement && !old.parentElement.closest("svg")) glow(old.parentElement);
}

function attributes(old, next) {
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && !OWN.has(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (!OWN.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
}

// what scripts of this page put there
const OWN = new Set(["tabindex", "style", "open"]);

regions();
