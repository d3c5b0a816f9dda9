// What the log viewer shows, as rows: the logs of the chosen attempts one after the other, or the lines that a search
// found. Both answer `rows`, `version`, `at(row)` -> {id, section, key, n, line, note, start, height},
// `startOf(item)` and `setHeight(item, rows)`.

import { firstThat } from "./bisect.js";
import { Extras } from "./logextras.js";

export class LogBook {
  /** `sections` = LogLines, the oldest attempt first. */
  constructor(sections) { this.sections = sections; }

  get rows() { return this.sections.reduce((sum, section) => sum + section.rows, 0); }
  get version() { return this.sections.reduce((sum, section) => sum + section.version, this.sections.length); }
  get lines() { return this.sections.reduce((sum, section) => sum + section.last, 0); }
  get longest() { return Math.max(0, ...this.sections.map((section) => section.last)); }
  get newest() { return this.sections.at(-1); }

  /** Replace a section. */
  add(section) { this.sections = [...this.sections, section].sort((a, b) => a.attempt - b.attempt); }

  section(attempt) { return this.sections.find((section) => section.attempt === attempt); }

  at(row) {
    let first = 0;
    for (const section of this.sections) {
      if (row < first + section.rows) return this.#item(section, section.at(row - first), first);
      first += section.rows;
    }
    return null;
  }

  /** The first row of a line of a section. */
  rowOf(section, n) {
    const before = this.sections.slice(0, this.sections.indexOf(section));
    return before.reduce((sum, one) => sum + one.rows, section.rowOf(n));
  }

  startOf({ section, n }) { return this.rowOf(section, n); }
  setHeight(item, rows) { item.section.setHeight(item.key, item.n, rows); }
  forgetHeights() { for (const section of this.sections) section.forgetHeights(); }

  #item(section, item, first) {
    return { ...item, section, id: `${section.attempt} ${item.key}`, line: section.lines.get(item.n), start: first + item.start };
  }
}

export class Matches {
  /** `found` = [{section, line}] in order. */
  constructor(found) {
    this.found = found;
    this.extras = new Extras();
    this.version = 0;
  }

  get rows() { return this.found.length + this.extras.total; }
  get lines() { return this.found.length; }

  at(row) {
    // The last match that begins at this row or before it.
    const at = firstThat(1, this.found.length, (match) => match + this.extras.before(match) > row) - 1;
    const { section, line } = this.found[at];
    const height = 1 + (this.extras.counts.get(at) ?? 0);
    return { at, section, line, n: line.n, id: `${section.attempt} ${line.n}`, start: at + this.extras.before(at), height };
  }

  startOf({ at }) { return at + this.extras.before(at); }
  setHeight(item, rows) { if (this.extras.set(item.at, rows - 1)) this.version++; }
  forgetHeights() { for (const at of [...this.extras.counts.keys()]) this.setHeight({ at }, 1); }
}
