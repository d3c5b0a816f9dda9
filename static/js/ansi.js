// Terminal colours of a log line as spans with classes. The text is never parsed as markup.

import { h } from "./dom.js";

const ESCAPE = /\u001b\[([0-9;]*)m/;
// every other control sequence, and stray control characters, are dropped
const NOISE = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])|[\u0000-\u0008\u000b-\u001a\u001c-\u001f\u007f]/g;

/** Split a line into [text, class list] parts. */
export function parts(line) {
  const shown = line.slice(line.replace(/\r+$/, "").lastIndexOf("\r") + 1); // a progress bar shows its last stroke
  const found = [];
  let classes = new Set();
  shown.split(ESCAPE).forEach((piece, index) => {
    if (index % 2) { classes = apply(classes, piece); return; }
    const text = piece.replace(NOISE, "");
    if (text) found.push([text, [...classes]]);
  });
  return found;
}

function apply(classes, codes) {
  const next = new Set(classes);
  for (const code of (codes || "0").split(";").map(Number)) {
    if (code === 0) next.clear();
    else if (code >= 1 && code <= 4) next.add(`a-${code}`);
    else if (code === 22) { next.delete("a-1"); next.delete("a-2"); }
    else if (code === 23 || code === 24) next.delete(`a-${code - 20}`);
    else if (code === 39 || (code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
      for (const name of [...next]) if (/^a-[39]\d$/.test(name)) next.delete(name);
      if (code !== 39) next.add(`a-${code}`);
    }
  }
  return next;
}

/** The line as nodes, with `needle` marked. */
export function nodes(line, needle = "") {
  return parts(line).flatMap(([text, classes]) => {
    const made = marked(text, needle);
    return classes.length ? [h("span", { class: classes.join(" ") }, ...made)] : made;
  });
}

function marked(text, needle) {
  if (!needle) return [document.createTextNode(text)];
  const made = [], lower = text.toLowerCase(), wanted = needle.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    made.push(text.slice(from, at), h("mark", {}, text.slice(at, at + needle.length)));
    from = at + needle.length;
  }
  return [...made, text.slice(from)];
}
