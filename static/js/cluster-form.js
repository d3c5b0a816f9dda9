// The contexts of the chosen or pasted kubeconfig are suggested; the file goes to the server only with the form.

import { $, h } from "./dom.js";

const file = $("#kubeconfig-file"), pasted = $("#kubeconfig"), context = $("#f-context");

file.addEventListener("change", async () => suggest(file.files.length ? await file.files[0].text() : ""));
pasted.addEventListener("input", () => suggest(pasted.value));

function suggest(text) {
  const { names, current } = contextsOf(text);
  $("#contexts").replaceChildren(...names.map((value) => h("option", { value })));
  context.placeholder = current;
}

// Parses what kubectl writes, or JSON. Contexts that it misses are only not suggested: the server parses the file fully.
function contextsOf(text) {
  try {
    const config = JSON.parse(text);
    return { names: config.contexts.map((entry) => entry.name), current: config["current-context"] ?? "" };
  } catch {
    const block = /^contexts:\s*\n((?:[ -].*\n?)*)/m.exec(text)?.[1] ?? "";
    const names = [...block.matchAll(/^(?:- | {2})name:\s*["']?([^"'\n]+?)["']?\s*$/gm)].map((found) => found[1]);
    return { names, current: /^current-context:\s*["']?([^"'\n]+?)["']?\s*$/m.exec(text)?.[1] ?? "" };
  }
}
