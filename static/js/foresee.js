// A button that posts its form and shows, in the element that it names, what would happen. Nothing is written.
//
//   <button type="button" data-foresee="/projects/NAME/what-if" data-foresee-in="what-if">

import { $$, csrfToken } from "./dom.js";
import { localise } from "./format.js";

for (const button of $$("[data-foresee]")) button.addEventListener("click", () => foresee(button));

async function foresee(button) {
  const shown = document.getElementById(button.dataset.foreseeIn);
  button.disabled = true;
  shown.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(button.dataset.foresee, { method: "POST", body: new FormData(button.form), headers: { "X-CSRFToken": csrfToken(), Accept: "text/html" } });
    const text = await answer.text();
    if (answer.ok) shown.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    else say(shown, answer.headers.get("Content-Type")?.includes("json") ? JSON.parse(text).detail : `${answer.status} ${answer.statusText}`);
    localise(shown);
  } catch (error) {
    say(shown, String(error.message));
  } finally {
    shown.hidden = false;
    shown.removeAttribute("aria-busy");
    button.disabled = false;
  }
}

function say(shown, text) {
  const line = document.createElement("p");
  line.className = "bad";
  line.textContent = text;
  shown.replaceChildren(line);
}
