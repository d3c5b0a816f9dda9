// Live regions: parts of a page that the server renders again when their topic changes, at most once a second. They
// are updated node by node, which keeps scroll position, selection, focus and open rows.
//
//   <section id="job-list" data-live="activity" data-live-only="jobs queue">
//   <div id="stop-cost" data-live="job:ID activity">

import { $$, fetchPage, glow } from "./dom.js";
import { localise, showSince } from "./format.js";
import { markProjects } from "./hover.js";
import { feed } from "./live.js";

const EVERY = 1000; // milliseconds between two fetches
const SLOWER = 5; // times as long as the last fetch took, at least: a slow server is asked less often
const AFTER_FAILURE = 5000; // milliseconds

// A navigation in progress must not be cancelled.
let isLeaving = false;
addEventListener("beforeunload", () => { isLeaving = true; });
addEventListener("pageshow", () => { isLeaving = false; });

/** Whether a navigation is in progress. Nothing more is requested then: the page's object may be deleted already. */
export function isLeavingPage() { return isLeaving; }

const followed = new Set();

/** Follow the topics of all live regions of the page; those in a dialog only while it is open. */
export function regions() {
  const [inside, page] = [true, false].map((is) => $$("[data-live]").filter((region) => Boolean(region.closest("dialog")) === is));
  follow(page);
  for (const [dialog, elements] of Map.groupBy(inside, (region) => region.closest("dialog"))) {
    let leave = null;
    new MutationObserver(() => {
      leave?.();
      leave = dialog.open ? follow(elements) : null;
    }).observe(dialog, { attributeFilter: ["open"] });
  }
}

/** Schedule an update of all live regions, after a change that their topics do not report. */
export function refreshRegions() { for (const region of followed) region.soon(); }

// data-live: one or more topics, separated by spaces.
function follow(elements) {
  const pairs = elements.flatMap((element) => element.dataset.live.split(" ").map((topic) => [topic, element]));
  const leaves = [...Map.groupBy(pairs, ([topic]) => topic)].map(([topic, found]) => {
    const region = new Region(found.map(([, element]) => element));
    followed.add(region);
    const leave = feed().subscribe(topic, region);
    return () => { leave(); followed.delete(region); };
  });
  return () => { for (const leave of leaves) leave(); };
}

class Region {
  constructor(elements) {
    this.ids = elements.map((element) => element.id);
    const only = elements.map((element) => element.dataset.liveOnly?.split(" "));
    this.only = only.includes(undefined) ? null : only.flat();
    this.seq = Math.max(...elements.map((element) => Number(element.dataset.liveSeq ?? -1)));
    this.earliest = 0;
    this.wanted = -1; // the last event that concerns these regions
  }

  // Changes may have occurred between the rendering of the page and this state, or while the feed was disconnected.
  state(state) {
    this.wanted = Math.max(this.wanted, ...Object.values(state.moved ?? {}).map((part) => part.seq));
    if (this.seq < 0 || this.wanted > this.seq) this.soon();
  }

  change(_, frame) {
    const moved = [...Object.keys(frame.upserts || {}), ...(frame.deletes || []).map(([collection]) => collection)];
    const parts = frame.upserts?.moved;
    if (parts) {
      this.wanted = Math.max(this.wanted, ...Object.values(parts).map((part) => part.seq));
      if (this.wanted <= this.seq) return; // drawn already
      moved.push(...Object.keys(parts));
    }
    if (!this.only || moved.some((collection) => this.only.includes(collection))) this.soon();
  }

  // The page's object was deleted: reload, so that the server's page explains it.
  error(frame) {
    if (frame.code === "gone") setTimeout(() => { if (!isLeaving) location.reload(); }, EVERY);
  }

  soon() {
    if (this.timer) { this.isStale = true; return; }
    this.timer = setTimeout(() => this.#update(), Math.max(0, this.earliest - Date.now()));
  }

  async #update() {
    const began = Date.now();
    let wait = EVERY;
    this.isStale = false;
    try {
      const fresh = isLeaving ? null : await redraw(this.ids, this.wanted);
      if (fresh) this.seq = Number(fresh.querySelector("[data-live-seq]")?.dataset.liveSeq ?? -1);
    } catch {
      this.isStale = true; // out of touch, which the live dot says
      wait = AFTER_FAILURE;
    } finally {
      this.earliest = began + Math.max(wait, SLOWER * (Date.now() - began));
      this.timer = null;
      if (this.isStale) this.soon();
    }
  }
}

// A region that waits for something that no topic reports, <section id="files" data-again="2">, is updated after that many
// seconds while it has the attribute.
function again(element) {
  if (element.dataset.again === undefined) return;
  setTimeout(async () => {
    if (!isLeaving) await redraw([element.id]).catch(() => null); // out of touch: tried again
    again(element);
  }, 1000 * Number(element.dataset.again));
}

/** Update parts of the page, by their ids, from a new request of the page's address; returns that page. It
    holds event `least` at the least, which lets the server draw once for many readers. An answer for an address that the page
    has left meanwhile is dropped, and null returned. */
export async function redraw(ids, least = -1) {
  const address = location.href;
  const fresh = await fetchPage(address, { "X-Live-Seq": String(least >= 0 ? least : Number.MAX_SAFE_INTEGER) });
  if (!fresh || address !== location.href) return null;
  const held = document.activeElement;
  for (const id of ids) {
    const old = document.getElementById(id), next = fresh.getElementById(id);
    if (old && next) { morph(old, next); localise(old); }
  }
  // Moving a row in the DOM removes the focus from it.
  if (held?.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
  markProjects();
  document.dispatchEvent(new Event("regions"));
  return fresh;
}

/** Make `old` like `next`, touching only what differs. */
export function morph(old, next) {
  if (old.isEqualNode(next)) return;
  if (old.dataset?.absolute !== undefined && old.dateTime === next.dateTime) return; // shown in the reader's zone already
  if (old.contains(document.activeElement) && old.matches("input, select, textarea")) return;
  attributes(old, next);
  if (old.hasAttribute?.("data-keep")) return; // what is inside draws itself
  if (old.dataset?.since !== undefined) { showSince(old); return; }
  const kept = new Set([...next.children].map((child) => child.dataset?.key));
  const keyed = new Map([...old.children].filter((child) => child.dataset?.key).map((child) => [child.dataset.key, child]));
  // Remove rows first, so that the remaining ones need not move: a moved row loses its focus.
  for (const [key, child] of keyed) if (!kept.has(key)) leave(child);
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

// The focus of a removed row passes to its neighbour.
function leave(row) {
  const neighbour = row.nextElementSibling ?? row.previousElementSibling;
  if (row.contains(document.activeElement) && neighbour?.dataset.key) { neighbour.tabIndex = 0; neighbour.focus({ preventScroll: true }); }
  row.remove();
}

const like = (old, wanted) => old && old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && !old.dataset?.key && old.id === wanted.id;

function one(old, wanted) {
  if (old.nodeType === 1) { morph(old, wanted); return; }
  if (old.nodeValue === wanted.nodeValue) return;
  const isText = old.nodeValue.trim() !== wanted.nodeValue.trim();
  old.nodeValue = wanted.nodeValue;
  // Measurements change continuously: no highlight.
  if (isText && old.parentElement && !old.parentElement.closest("svg, [data-quiet]")) glow(old.parentElement);
}

function attributes(old, next) {
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && !OWN.has(name) && name !== "class") old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (!OWN.has(name) && name !== "class" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = next.getAttribute("class") ?? "";
  const own = OWN_CLASSES.filter((name) => old.classList?.contains(name));
  const value = [wanted, ...own].join(" ").trim();
  if ((old.getAttribute("class") ?? "") !== value) old.setAttribute("class", value);
}

// Content that scripts of this page inserted.
const OWN = new Set(["tabindex", "style", "open"]);
const OWN_CLASSES = ["is-hovered", "glow"];

regions();
$$("[data-again]").forEach(again);
