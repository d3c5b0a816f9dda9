// Records into the page, in place. The server renders rows with data-field slots; the same slots are filled again
// when a record changes, and a <template> with the same markup makes rows for records that are new.
//
//   <tr data-key="..."><td><a data-field="name" data-href="/jobs/{id}"></a></td><td data-field="gpus" data-as="number">

import { $$, glow, say, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";

const SHOW = {
  text: (node, value) => setText(node, value ?? format.NOTHING),
  number: (node, value) => setText(node, format.number(value)),
  gpus: (node, value) => setText(node, say(value === 1 ? "gpus_one" : "gpus_many", { gpus: format.number(value) })),
  percent: (node, value) => setText(node, format.percent(value)),
  barePercent: (node, value) => setText(node, format.percent(value).replace(/\u00a0%$/, "")),
  figure: (node, value) => setText(node, format.figure(value)),
  duration: (node, value) => setText(node, format.duration(value)),
  mebibytes: (node, value) => setText(node, format.mebibytes(value)),
  since(node, value) {
    setAttribute(node, "data-since", value);
    setAttribute(node, "datetime", value);
    if (value) { node.title = format.absolute(value); format.showSince(node); }
    else setText(node, format.NOTHING);
    return false; // time passing is not a change
  },
  meter(node, value) {
    const share = Math.max(0, Math.min(1, value ?? 0));
    setAttribute(node.querySelector(".fill"), "width", `${Math.round(share * 100)}%`);
    setAttribute(node, "aria-label", format.percent(value));
    if (node.dataset.warnBelow) {
      const idle = value !== null && value !== undefined && value < Number(node.dataset.warnBelow);
      node.classList.toggle("warning", idle);
      node.classList.toggle("good", !idle);
    }
    return false;
  },
  // {"step", "total_steps"}: a bar while the end is known, a word when it is not
  progress(node, value, record) {
    const share = format.fraction(value);
    const done = node.querySelector("[data-done]"), open = node.querySelector("[data-open]");
    done.hidden = share === null;
    open.hidden = share !== null;
    if (share === null) { setText(open, record.kind === "interactive" ? say("until_stopped") : format.NOTHING); return false; }
    SHOW.meter(done.querySelector(".meter"), share);
    setText(done.querySelector(".value"), format.percent(share));
    return false; // it moves all the time: no glow
  },
  project(node, value, record, context) {
    const colour = record.palette_index ?? context.palette?.[value] ?? 0;
    if (!node.classList.contains(`p-${colour}`)) {
      node.className = node.className.replace(/\bp-\d+\b/g, "").trim();
      node.classList.add(`p-${colour}`);
    }
    node.dataset.project = value ?? "";
    return setText(node, value ?? "");
  },
  state(node, value, record, context) {
    const look = context.looks?.[value] ?? { label: value, colour: "second" };
    setAttribute(node, "class", `badge ${look.colour}`);
    setAttribute(node, "data-state", value);
    return setText(node, look.label);
  },
  // shown only while there is a value
  presence: (node, value) => { node.hidden = value === null || value === undefined || value === ""; return false; },
};

const pluck = (record, path) => path.split(".").reduce((value, name) => value?.[name], record);

/** Fill every slot inside `root` from `record`; changed ones glow unless `quiet`. */
export function fill(root, record, context = {}, quiet = false) {
  const slots = $$("[data-field]", root);
  if (root.dataset?.field) slots.unshift(root);
  for (const node of slots) {
    const changed = SHOW[node.dataset.as || "text"](node, pluck(record, node.dataset.field), record, context);
    if (changed && !quiet) glow(node);
  }
  const links = $$("[data-href]", root);
  if (root.dataset?.href) links.push(root);
  for (const node of links) {
    setAttribute(node, "href", node.dataset.href.replace(/\{([\w.]+)\}/g, (_, path) => encodeURIComponent(pluck(record, path) ?? "")));
  }
  if (record.project && root.dataset) root.dataset.project = record.project;
}

/** A collection of records shown as children of one element, each with data-key. */
export class Collection {
  /** `order` = (a, b) => number over records; `template` = the <template> with one child. */
  constructor(container, template, { order, context = {}, decorate = null, limit = Infinity }) {
    Object.assign(this, { container, template, order, context, decorate, limit });
  }

  /** Show exactly these records, touching only what differs. Focus, selection and scroll stay where they are. */
  show(records, changedKeys = null) {
    const wanted = Object.entries(records).sort(([, a], [, b]) => this.order(a, b)).slice(0, this.limit);
    const present = new Map($$(":scope > [data-key]", this.container).map((node) => [node.dataset.key, node]));
    let previous = null;
    for (const [key, record] of wanted) {
      const node = this.#row(present, key, record, changedKeys);
      this.#place(node, previous);
      present.delete(key);
      previous = node;
    }
    for (const node of present.values()) this.#remove(node);
  }

  #row(present, key, record, changedKeys) {
    let node = present.get(key);
    const isNew = !node;
    if (isNew) {
      node = this.template.content.firstElementChild.cloneNode(true);
      node.dataset.key = key;
    }
    if (isNew || !changedKeys || changedKeys.has(key)) {
      fill(node, record, this.context, isNew || !changedKeys);
      this.decorate?.(node, record);
      if (isNew && changedKeys) glow(node);
    }
    return node;
  }

  #place(node, previous) {
    const expected = previous ? nextKeyed(previous) : firstKeyed(this.container);
    if (expected === node) return;
    if (node.parentNode && node.contains(document.activeElement)) return; // never pull a row from under the hands
    if (previous) previous.after(node);
    else this.container.prepend(node);
  }

  #remove(node) {
    if (node.contains(document.activeElement)) (nextKeyed(node) ?? this.container).focus?.();
    node.remove();
  }
}

const firstKeyed = (container) => [...container.children].find((child) => child.dataset.key) ?? null;
function nextKeyed(node) {
  let next = node.nextElementSibling;
  while (next && !next.dataset.key) next = next.nextElementSibling;
  return next;
}
