// Numbers, units and times as people read them. dashboards/templatetags/ui.py says the same on the server:
// the first live frame must not change a single character of the page.

const language = document.documentElement.lang || "en";
const NBSP = "\u00a0";
const plain = new Intl.NumberFormat(language, { maximumFractionDigits: 3 });
const absoluteFormat = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const clockFormat = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const NOTHING = "–";

/** 1234.5 -> "1,234.5" */
export const number = (value) => (value === null || value === undefined ? NOTHING : plain.format(value));

/** 1234.5 -> "1,234.50": a column of numbers that align. */
export const decimals = (value, places) => (value === null || value === undefined ? NOTHING : fixed(places).format(value));
const fixed = (places) => new Intl.NumberFormat(language, { minimumFractionDigits: places, maximumFractionDigits: places });

/** 0.97 -> "97 %"; "0 %" is nothing at all */
export function percent(share) {
  if (share === null || share === undefined) return NOTHING;
  return `${share > 0 && share < 0.005 ? "<1" : Math.round(share * 100)}${NBSP}%`;
}

/** 32768 -> "32 GiB" */
export function mebibytes(mib) {
  if (mib === null || mib === undefined) return NOTHING;
  return mib >= 1024 ? `${plain.format(Math.round(mib / 102.4) / 10)}${NBSP}GiB` : `${plain.format(mib)}${NBSP}MiB`;
}

/** 4200000 -> "4.2 MB" */
export function size(bytes) {
  let amount = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (amount < 1000 || unit === "TB") {
      const isWhole = unit === "B" || (amount >= 100 && unit !== "TB");
      return `${isWhole ? plain.format(Math.floor(amount)) : fixed(1).format(amount)}${NBSP}${unit}`;
    }
    amount /= 1000;
  }
}

/** Seconds as the two units that matter: "41 s", "2 m 10 s", "43 m", "3 h 20 m", "2 d 4 h". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const s = Math.max(0, Math.floor(seconds));
  const part = (value, unit) => `${value}${NBSP}${unit}`;
  if (s < 60) return part(s, "s");
  if (s < 600) return `${part(Math.floor(s / 60), "m")} ${part(s % 60, "s")}`;
  if (s < 3600) return part(Math.floor(s / 60), "m");
  if (s < 86400) return `${part(Math.floor(s / 3600), "h")} ${part(Math.floor((s % 3600) / 60), "m")}`;
  return `${part(Math.floor(s / 86400), "d")} ${part(Math.floor((s % 86400) / 3600), "h")}`;
}

/** How much of a job is done, 0 to 1, from its progress record; null when unknown. */
export function fraction(progress) {
  if (!progress?.total_steps || progress.step === null || progress.step === undefined) return null;
  return Math.min(1, Math.max(0, progress.step / progress.total_steps));
}

/** Three significant figures for losses and the like: 0.08634 -> "0.0863". */
export function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return new Intl.NumberFormat(language, { maximumSignificantDigits: 3 }).format(value);
}

export const absolute = (iso) => absoluteFormat.format(new Date(iso));
export const clock = (iso) => clockFormat.format(new Date(iso));

let skew = 0; // server clock minus ours, in milliseconds: a wrong laptop clock must not bend run times
export function learnClock(iso) {
  const at = Date.parse(iso);
  if (Number.isFinite(at)) skew = at - Date.now();
}
export const now = () => Date.now() + skew;
export const secondsSince = (iso) => (now() - Date.parse(iso)) / 1000;

/** Rewrite every ticking time on the page; called once a second. */
export function tick(root = document) {
  for (const node of root.querySelectorAll("[data-since]")) showSince(node);
}

/** Show absolute times in the reader's zone and language. */
export function localise(root = document) {
  for (const node of root.querySelectorAll("time[data-absolute]")) {
    if (node.title === node.dateTime) continue;
    node.title = node.dateTime;
    node.textContent = absolute(node.dateTime);
  }
}

/** Update a time that ticks: <time datetime="ISO" data-since="ago">, "until" for one to come, "" for a duration. */
export function showSince(node) {
  const iso = node.dateTime;
  if (!iso) return;
  const seconds = secondsSince(iso);
  const text = ({ ago, until }[node.dataset.since] ?? duration)(seconds);
  if (node.textContent !== text) node.textContent = text;
  if (!node.title) node.title = absolute(iso);
}

/** "just now", "3 m ago"; without a second unit that is 0: "5 h ago" */
export function ago(seconds) {
  if (seconds < 5) return "just now";
  return `${withoutZero(seconds)} ago`;
}

/** "in 3 m", "now" once it has passed; `seconds` since it, negative before */
export function until(seconds) { return -seconds < 1 ? "now" : `in ${withoutZero(-seconds)}`; }

const withoutZero = (seconds) => duration(seconds).replace(/ 0\u00a0[smh]$/, "");
