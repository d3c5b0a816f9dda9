// The command palette (Ctrl K): places first, then jobs, projects and nodes that the server finds.

import { $, h, say } from "./dom.js";

let dialog = null, input, list, timer, chosen = 0, latest = 0;

export function openPalette() {
  dialog ??= make();
  if (dialog.open) return;
  input.value = "";
  dialog.showModal();
  search();
}

function make() {
  input = h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list",
    "aria-label": say("palette"), placeholder: say("palette"), autocomplete: "off", spellcheck: "false" });
  list = h("ul", { id: "palette-list", role: "listbox", "aria-label": say("palette") });
  const made = h("dialog", { class: "palette", "aria-label": say("palette") }, input, list);
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 80); });
  input.addEventListener("keydown", onKey);
  made.addEventListener("click", (event) => { if (event.target === made) made.close(); });
  document.body.append(made);
  return made;
}

async function search() {
  const query = input.value.trim();
  const mine = ++latest;
  const response = await fetch(`/search.json?q=${encodeURIComponent(query)}`, { headers: { Accept: "application/json" } });
  if (mine !== latest || !response.ok) return;
  draw((await response.json()).results);
}

function draw(results) {
  chosen = 0;
  list.replaceChildren(...results.map((result, index) => h("li", {
    role: "option", id: `palette-${index}`, "data-url": result.url, onclick: () => go(result.url), onmousemove: () => choose(index),
  }, h("span", {}, result.label), h("span", { class: "kind" }, result.kind))));
  if (!results.length) list.append(h("li", { class: "empty" }, say("palette_empty")));
  choose(0);
}

function choose(index) {
  const options = [...list.querySelectorAll("[role=option]")];
  if (!options.length) return;
  chosen = (index + options.length) % options.length;
  options.forEach((option, at) => option.setAttribute("aria-selected", at === chosen));
  options[chosen].scrollIntoView({ block: "nearest" });
  input.setAttribute("aria-activedescendant", options[chosen].id);
}

function onKey(event) {
  if (event.key === "ArrowDown") choose(chosen + 1);
  else if (event.key === "ArrowUp") choose(chosen - 1);
  else if (event.key === "Enter") { const option = $("[aria-selected=true]", list); if (option) go(option.dataset.url); }
  else return;
  event.preventDefault();
}

function go(url) {
  dialog.close();
  location.assign(url);
}
