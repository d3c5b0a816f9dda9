// Lists: filters, sort headers and pages update in place and are kept in the URL; selected rows are counted.

import { $, $$, followedLink, say, setText, speak } from "./dom.js";
import { redraw } from "./regions.js";

const TYPING = 250; // milliseconds without a key before a text filter acts

function filters(form) {
  const parts = form.dataset.filters.split(" ");
  let timer;
  const act = () => { clearTimeout(timer); go(addressOf(form), parts, "replaceState"); };
  form.addEventListener("input", (event) => {
    if (event.target.matches("select")) return;
    clearTimeout(timer);
    timer = setTimeout(act, TYPING);
  });
  form.addEventListener("change", act);
  form.addEventListener("submit", (event) => { event.preventDefault(); act(); });
  const list = document.getElementById(parts[0]);
  list.addEventListener("click", (event) => {
    const link = followedLink(event, "th a, .pager a");
    if (!link) return;
    event.preventDefault();
    go(link.href, parts, "pushState");
    if (link.matches(".pager a")) list.closest("section").scrollIntoView({ block: "nearest" });
  });
  addEventListener("popstate", () => { refill(form); redraw(parts); });
}

/** The list's address under the form's filters: its first page. */
function addressOf(form) {
  const address = new URL(location.href), sort = address.searchParams.get("sort");
  const fields = [...new FormData(form)].filter(([name, value]) => name !== "sort" && value !== "");
  address.search = new URLSearchParams(sort ? [...fields, ["sort", sort]] : fields);
  return address.href;
}

async function go(address, parts, how) {
  if (address === location.href) return;
  history[how](null, "", address);
  await redraw(parts);
  speak($(".list-head p", document.getElementById(parts[0]).closest("section"))?.firstChild?.textContent.trim() ?? "");
}

function refill(form) {
  const asked = new URLSearchParams(location.search);
  for (const field of form.elements) if (field.name) field.value = asked.get(field.name) ?? "";
}

/** The rows that are selected on this page. Live updates keep the rows, and with them what is selected. */
class Picked {
  constructor(form) {
    this.form = form;
    this.last = null;
    this.list = document.getElementById(form.dataset.list);
    this.list.addEventListener("click", (event) => this.#click(event));
    this.list.addEventListener("change", () => this.count());
    this.list.addEventListener("keydown", (event) => this.#key(event));
    new MutationObserver(() => this.count()).observe(this.list, { childList: true, subtree: true });
    this.count();
  }

  get boxes() { return $$("td.pick input", this.list); }

  count() {
    const { boxes } = this, picked = boxes.filter((box) => box.checked).length;
    const all = $("[data-pick-all]", this.list);
    if (all) { all.checked = picked > 0 && picked === boxes.length; all.indeterminate = picked > 0 && picked < boxes.length; }
    setText($("[data-picked-count]", this.form), say("picked", { count: picked, all: boxes.length }));
    for (const button of $$("button", this.form)) button.disabled = picked === 0;
  }

  #click(event) {
    const { boxes } = this, box = event.target;
    if (box.matches?.("[data-pick-all]")) for (const other of boxes) other.checked = box.checked;
    if (!box.matches?.("td.pick input")) return;
    const from = boxes.indexOf(this.last), to = boxes.indexOf(box);
    if (event.shiftKey && from >= 0) for (const other of boxes.slice(Math.min(from, to), Math.max(from, to))) other.checked = box.checked;
    this.last = box;
    this.count();
  }

  // the space key selects the row that has the focus
  #key(event) {
    const box = event.key === " " && event.target.matches("tr") ? $("td.pick input", event.target) : null;
    if (!box) return;
    event.preventDefault();
    box.checked = !box.checked;
    this.count();
  }
}

for (const form of $$("form[data-filters]")) filters(form);
for (const form of $$("form.picked")) new Picked(form);
