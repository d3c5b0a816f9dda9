// A lineage that is wider than its panel scrolls, from the start to its first object, or is scaled to the width of the panel
// by a button.
import { $ } from "./dom.js";

const graph = $(".lineage"), picture = $("svg", graph), button = $("[data-lineage-fit]"), tools = button.closest("[hidden]");

// The width of the picture as drawn, whether it is scaled or not.
const width = picture.viewBox.baseVal.width;

button.addEventListener("click", () => {
  const fits = graph.classList.toggle("fits");
  button.setAttribute("aria-pressed", fits);
  if (!fits) reveal();
});

/** Scroll the graph sideways to its start object; the page stays at its heading. */
function reveal() {
  const [start, view] = [$(".start", graph), graph].map((node) => node.getBoundingClientRect());
  graph.scrollLeft += Math.max(0, start.right - view.right) + Math.min(0, start.left - view.left);
}
reveal();

new ResizeObserver(() => { tools.hidden = width <= graph.clientWidth; }).observe(graph);
