// A lineage that is wider than its panel scrolls, or is scaled to the width of the panel by a button.
import { $ } from "./dom.js";

const graph = $(".lineage"), picture = $("svg", graph), button = $("[data-lineage-fit]"), tools = button.closest("[hidden]");

// The width of the picture as drawn, whether it is scaled or not.
const width = picture.viewBox.baseVal.width;

button.addEventListener("click", () => {
  const fits = graph.classList.toggle("fits");
  button.setAttribute("aria-pressed", fits);
  if (!fits) $(".start", graph)?.scrollIntoView({ block: "nearest", inline: "nearest" });
});

new ResizeObserver(() => { tools.hidden = width <= graph.clientWidth; }).observe(graph);
