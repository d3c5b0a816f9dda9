// Hovering one project dims the others everywhere: whatever has data-project is either of the hovered one or dimmed.

import { $$ } from "./dom.js";

let current = null;

/** Let everything of other projects recede; null: nothing is hovered any more. */
export function hoverProject(project) {
  if (project === current) return;
  current = project;
  document.body.toggleAttribute("data-hover-project", current !== null);
  markProjects();
}

/** Bring elements that were drawn since into line. */
export function markProjects(root = document) {
  for (const node of $$("[data-project]", root)) node.classList.toggle("is-hovered", current !== null && node.dataset.project === current);
}

addEventListener("mouseover", (event) => {
  if (event.target.closest?.(".chart-plot") && !event.target.closest("[data-hover]")) return; // a chart knows which line is meant
  hoverProject(event.target.closest?.("[data-hover]")?.dataset.project ?? null);
});
