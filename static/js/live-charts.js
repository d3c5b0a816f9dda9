// Charts of the overview: every update of the page carries the newest point, which is appended. The heat map of many
// nodes, which may appear while the page is open, brings its script.

import { charts } from "./charts.js";
import { $, $$ } from "./dom.js";

let at = "";

function append() {
  const latest = $("#latest");
  if (!latest?.value || latest.value === at) return;
  at = latest.value;
  const values = JSON.parse(latest.textContent);
  for (const root of $$("[data-chart]")) root.chart?.append(at, values);
}

function heatMap() { if ($(".heat-map")) import("./heat-map.js"); }

document.addEventListener("regions", append);
document.addEventListener("regions", heatMap);
heatMap();
charts();
