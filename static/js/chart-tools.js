// The toolbar of a chart: buttons in the head of its panel, so never over the lines. One tab stop;
// the arrow keys move inside it. Plotly's own bar is off: it offers to upload charts and cannot be styled by our tokens.

import { $, $$, h, say } from "./dom.js";

const ZOOM = 0.5; // of the range that is left by one step

/** Put the bar of a chart into the head of its panel. */
export function addTools(chart) {
  const head = $(".panel-head", chart.root.closest(".panel") ?? chart.root);
  if (!head || $(".chart-tools", head)) return;
  const tools = [["in", "+"], ["out", "−"], ["reset", "⟲"], ["image", "⤓"]].map(([name, sign], at) =>
    h("button", { type: "button", "data-tool": name, title: say(`chart_${name}`), "aria-label": say(`chart_${name}`), tabindex: at ? "-1" : "0", onclick: () => TOOLS[name](chart) }, sign));
  const bar = h("div", { class: "chart-tools", role: "toolbar", "aria-label": say("chart_tools"), onkeydown: walk }, ...tools);
  const twin = $(".chart-twin", head);
  if (twin) twin.before(bar);
  else head.append(bar);
}

function walk(event) {
  const buttons = $$("button", event.currentTarget), at = buttons.indexOf(event.target);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const direction = document.dir === "rtl" || document.documentElement.dir === "rtl" ? -step : step;
  const next = buttons[(at + direction + buttons.length) % buttons.length];
  for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
  next.focus();
}

const TOOLS = {
  in: (chart) => scale(chart, ZOOM),
  out: (chart) => scale(chart, 1 / ZOOM),
  reset: (chart) => chart.zoomTo(null),
  // Rendered and saved in the browser; nothing is uploaded.
  image: async (chart) => {
    const Plotly = await chart.library();
    const name = $("h2, h3", chart.root.closest(".panel") ?? document)?.textContent.trim() || document.title;
    await Plotly.downloadImage(chart.plot, { format: "png", scale: 2, filename: name, width: chart.plot.clientWidth, height: chart.plot.clientHeight });
  },
};

// Zoom around the centre, in Plotly's axis units.
function scale(chart, factor) {
  const axis = chart.plot._fullLayout?.xaxis;
  if (!axis) return;
  const [low, high] = axis.range.map((end) => axis.r2c(end));
  const middle = (low + high) / 2, half = ((high - low) / 2) * factor;
  chart.zoomTo([axis.c2r(middle - half), axis.c2r(middle + half)]);
}
