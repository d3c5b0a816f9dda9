// Live checks of the submit form: errors at their fields, the equivalent command, and the expected start.

import { $, $$, csrfToken, setText } from "./dom.js";

const form = $("#job-form");
const touched = new Set();
let timer, latest = 0;

for (const event of ["input", "change"]) {
  form.addEventListener(event, (occurred) => {
    if (occurred.target.name) touched.add(occurred.target.name);
    clearTimeout(timer);
    timer = setTimeout(preview, 250);
  });
}

async function preview() {
  const mine = ++latest;
  const response = await fetch(form.dataset.preview, { method: "POST", body: new FormData(form), headers: { "X-CSRFToken": csrfToken() } });
  if (!response.ok || mine !== latest) return;
  const { command, errors, hint } = await response.json();
  setText($("#job-command"), command);
  setText($("#job-hint"), hint);
  for (const node of $$("[data-error]", form)) show(node, touched.has(node.dataset.error) ? errors[node.dataset.error] : "");
}

function show(node, text) {
  if (text && node.hidden) node.closest("details")?.setAttribute("open", "");
  setText(node, text ?? "");
  node.hidden = !text;
  const field = form.elements[node.dataset.error];
  if (text) field?.setAttribute?.("aria-invalid", "true");
  else field?.removeAttribute?.("aria-invalid");
}
