// Asking first: a link or a form with data-ask leads to a page that says what will happen. With scripts that page's form
// is shown as a dialog over the page that one is on.

import { $, fetchPage, followedLink, h } from "./dom.js";
import { localise } from "./format.js";

addEventListener("click", (event) => {
  const link = followedLink(event, "a[data-ask]");
  if (!link) return;
  event.preventDefault();
  ask(link.href);
});

addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form[data-ask]")) return;
  event.preventDefault();
  const fields = new FormData(form, event.submitter);
  if (fields.has("back")) fields.set("back", location.pathname + location.search);
  ask(`${form.action}?${new URLSearchParams(fields)}`);
});

async function ask(address) {
  const form = (await fetchPage(address))?.getElementById("ask");
  if (!form) { location.assign(address); return; } // the page says what is the matter
  form.classList.remove("panel");
  const dialog = h("dialog", { "aria-labelledby": "ask-title" }, document.importNode(form, true));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  localise(dialog);
  dialog.showModal();
  // A question that has a field, as for a name, is answered there; others must not be answered by accident.
  const field = $("select, input:not([type=hidden])", dialog);
  (field ?? $("[data-close]", dialog)).focus();
  if (field?.matches("input")) field.select();
}
