// Name suggestions while typing: <input list="names" data-suggest="/address.json">. The browser shows the list.

import { $$, h } from "./dom.js";

const TYPING = 250; // milliseconds without a key
const LEAST = 2; // characters; the server answers shorter ones with nothing

for (const input of $$("[data-suggest]")) {
  let timer, asked = "";
  input.addEventListener("input", () => {
    clearTimeout(timer);
    const text = input.value.trim();
    if (text.length < LEAST || text === asked) return;
    timer = setTimeout(async () => {
      asked = text;
      const response = await fetch(`${input.dataset.suggest}?q=${encodeURIComponent(text)}`, { headers: { Accept: "application/json" } });
      if (response.ok) input.list.replaceChildren(...(await response.json()).names.map((value) => h("option", { value })));
    }, TYPING);
  });
}
