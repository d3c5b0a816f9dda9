// What every page runs: the theme switch, menus, keyboard, palette, tables, ticking times, confirmations, copying.

import { $, $$, say, speak, toast } from "./dom.js";
import { absolute, learnClock, localise, tick } from "./format.js";
import { feed } from "./live.js";
import "./ask.js";
import { keys } from "./keys.js";
import { navCounts } from "./nav.js";
import { openPalette } from "./palette.js";
import "./hover.js";
import "./regions.js";
import { tables } from "./table.js";

const SPEAK_AFTER = 500; // milliseconds

learnClock(document.documentElement.dataset.now);
for (const node of $$("[data-since]")) node.title = absolute(node.dateTime);
localise();
setInterval(tick, 1000);
feed().open();
navCounts();
tables();
keys(openPalette);

// What a form has done is on the page from the start. Screen readers speak a live region only when it changes, once they
// have read the page.
const done = $$("[data-spoken]").map((message) => message.textContent.trim()).join(" ");
if (done) addEventListener("load", () => setTimeout(() => speak(done), SPEAK_AFTER));

for (const button of $$("[data-palette]")) button.addEventListener("click", openPalette);
for (const button of $$("[data-theme-choice]", $(".topbar") ?? document.body)) {
  button.addEventListener("click", () => { window.trainyardTheme(button.dataset.themeChoice); showTheme(); });
}
showTheme();

function showTheme() {
  for (const button of $$("button[data-theme-choice]")) {
    button.setAttribute("aria-pressed", button.dataset.themeChoice === document.documentElement.dataset.themeChoice);
  }
}

$(".nav-toggle")?.addEventListener("click", (event) => {
  const open = $(".nav").classList.toggle("open");
  event.currentTarget.setAttribute("aria-expanded", open);
});

// Close a menu on a click elsewhere or when the focus leaves it.
addEventListener("click", (event) => {
  for (const menu of $$("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of $$("details.menu[open]")) { menu.open = false; $("summary", menu).focus(); }
});

// A destructive button asks for confirmation in a dialog: <button data-dialog="stop-dialog">
addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) { event.preventDefault(); document.getElementById(opener.dataset.dialog)?.showModal(); }
  const closer = event.target.closest("[data-close]");
  if (closer) { event.preventDefault(); closer.closest("dialog")?.close(); }
});

addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
  toast(say("copied"));
});

// Forms with one choice are submitted on change; without scripts they have a button.
for (const form of $$("form[data-auto]")) {
  for (const field of $$("select", form)) field.addEventListener("change", () => form.requestSubmit());
}
