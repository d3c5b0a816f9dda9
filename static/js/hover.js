// Hovering a project dims every element whose data-project is another one.

import { $$ } from "./dom.js";

let current = null;

/** Dim the elements of other projects; null ends it. */
export function hoverProject(project) {
  if (project === current) return;
  current = project;
  document.body.toggleAttribute("data-hover-project", current !== null);
  markProjects();
}

/** Apply the dimming to elements added since. */
export function markProjects(root = document) {
  for (const node of $$("[data-project]", root)) node.classList.toggle("is-hovered", current !== null && node.dataset.project === current);
}

addEventListener("mouseover", (event) => {
  if (event.target.closest?.(".chart-plot") && !event.target.closest("[data-hover]")) return; // a chart knows which line is meant
  hoverProject(event.target.closest?.("[data-hover]")?.dataset.project ?? null);
});
