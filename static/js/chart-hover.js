// The line under the pointer, in every chart of the same axis, and the list of all values at it. Plotly's own list
// omits every line that has no point at exactly this x, but step lines hold their value between points.

import { firstThat } from "./bisect.js";
import { $, $$, h, say } from "./dom.js";
import { absolute, number } from "./format.js";
import { hoverProject } from "./hover.js";

const LISTED = 16; // values in the list; more would not be read
const BEYOND = 0.02; // of the axis: further from its ends a line has no value
const NEAR = 9; // pixels from a line within which its project is meant

/** Follow the pointer over a chart. */
export function followPointer(chart) {
  const { plot } = chart;
  plot.addEventListener("pointermove", (event) => move(chart, event));
  plot.addEventListener("pointerdown", (event) => move(chart, event));
  for (const name of ["pointerleave", "pointercancel"]) plot.addEventListener(name, () => leave(chart));
}

/** Show the values again after a chart under a resting pointer was redrawn. */
export function atRest(chart) {
  if (chart.pointer) show(chart);
}

function move(chart, event) {
  if (event.target.closest?.("[data-hover]")) return;
  const box = chart.plot.getBoundingClientRect();
  chart.pointer = { left: event.clientX - box.left, top: event.clientY - box.top };
  show(chart);
}

function show(chart) {
  const axes = axesOf(chart.plot);
  if (!axes) return;
  const x = chart.pointer.left - axes.x._offset;
  if (x < 0 || x > axes.x._length) { leave(chart); return; }
  const at = axes.x.p2c(x);
  for (const other of sharing(chart)) mark(other, at);
  const values = valuesAt(chart, at);
  list(chart, at, values);
  const y = chart.pointer.top - axes.y._offset;
  const distances = values.filter(({ project }) => project).map((one) => [Math.abs(axes.y.c2p(one.drawn) - y), one.project]);
  const [nearest] = distances.sort(([a], [b]) => a - b);
  hoverProject(nearest && nearest[0] <= NEAR ? nearest[1] : null);
}

function leave(chart) {
  chart.pointer = null;
  for (const other of sharing(chart)) unmark(other);
  $(".chart-tip", chart.root)?.remove();
  hoverProject(null);
}

function sharing(chart) {
  const { axis } = chart.root.dataset;
  if (!axis) return [chart];
  return $$(`[data-chart][data-axis="${axis}"]`).map((root) => root.chart).filter((other) => other?.figure);
}

const axesOf = (plot) => plot._fullLayout?.xaxis && { x: plot._fullLayout.xaxis, y: plot._fullLayout.yaxis };

// `at`: a place on the axis as Plotly computes with it: a number, milliseconds on time axes
function mark(chart, at) {
  const axes = axesOf(chart.plot);
  if (!axes) return;
  const x = axes.x.c2p(at);
  if (!(x >= 0 && x <= axes.x._length)) { unmark(chart); return; }
  chart.line ??= h("div", { class: "chart-line" });
  chart.line.style.left = `${axes.x._offset + x}px`;
  chart.line.style.top = `${axes.y._offset}px`;
  chart.line.style.height = `${axes.y._length}px`;
  if (!chart.line.isConnected) chart.plot.append(chart.line);
}

function unmark(chart) {
  chart.line?.remove();
}

const numbers = new WeakMap(); // the x values of a trace as numbers, by their array
function xsOf(trace, axis) {
  const known = numbers.get(trace.x);
  if (known?.length === trace.x.length && known.last === trace.x.at(-1)) return known;
  const xs = trace.x.map((x) => axis.d2c(x));
  xs.last = trace.x.at(-1);
  numbers.set(trace.x, xs);
  return xs;
}

/** The value of every line at a position: {name, value, drawn, colour, project}, sorted descending where lines are comparable. */
function valuesAt(chart, at) {
  const { data, layout } = chart.figure, axis = axesOf(chart.plot).x;
  const [from, to] = axis.range.map((end) => axis.r2c(end)), slack = BEYOND * (to - from);
  const found = [];
  for (const trace of data) {
    const index = indexAt(xsOf(trace, axis), at, trace, slack);
    const drawn = trace.y[index], value = (trace.customdata ?? trace.y)[index];
    if (drawn === undefined || drawn === null) continue;
    const project = trace.meta?.key?.startsWith("project:") ? trace.meta.key.slice("project:".length) : null;
    found.push({ name: trace.name, value, drawn, project, colour: trace.line?.color ?? trace.marker?.color });
  }
  return layout.meta?.sorted ? found.sort((a, b) => b.value - a.value) : found;
}

// Steps and bars hold their value until the next point; other lines use the nearest point.
function indexAt(xs, at, trace, slack) {
  if (trace.meta?.key === "redone") return nearest(xs, at, slack);
  const after = firstThat(0, xs.length, (point) => xs[point] > at);
  if (trace.line?.shape === "hv") return after - 1;
  const width = trace.width ?? trace.meta?.width;
  if (width) return at - xs[after - 1] <= width ? after - 1 : -1;
  if (!xs.length || at < xs[0] - slack || at > xs.at(-1) + slack) return -1;
  if (after === xs.length) return after - 1;
  return after > 0 && at - xs[after - 1] <= xs[after] - at ? after - 1 : after;
}

// A later attempt repeats steps of an earlier one: the newest value counts.
function nearest(xs, at, slack) {
  let found = -1;
  xs.forEach((x, index) => { if (Math.abs(x - at) <= slack && (found < 0 || Math.abs(x - at) <= Math.abs(xs[found] - at))) found = index; });
  return found;
}

function list(chart, at, values) {
  const { meta } = chart.figure.layout;
  const tip = $(".chart-tip", chart.root) ?? chart.plot.appendChild(h("div", { class: "chart-tip", "aria-hidden": "true" }));
  const rows = values.slice(0, LISTED).map(({ name, value, colour }) => {
    const swatch = h("i", {});
    swatch.style.background = colour;
    return h("li", {}, swatch, h("span", {}, name), h("b", {}, written(value, meta?.unit)));
  });
  if (values.length > LISTED) rows.push(h("li", { class: "more" }, say("chart_more", { count: values.length - LISTED })));
  tip.replaceChildren(h("p", {}, place(chart, at)), h("ul", {}, ...rows));
  const { _offset: left, _length: width, c2p } = axesOf(chart.plot).x;
  const x = left + c2p(at), isRight = x > left + width / 2;
  tip.style.left = isRight ? "auto" : `${x + 12}px`;
  tip.style.right = isRight ? `${chart.plot.clientWidth - x + 12}px` : "auto";
  tip.hidden = !values.length;
}

function place(chart, at) {
  if (!chart.isTime) return `${chart.figure.layout.xaxis.title?.text ?? ""} ${number(Math.round(at))}`.trim();
  // Plotly treats times as UTC, but the axis is written in the reader's time zone.
  return absolute(new Date(new Date(at).toISOString().slice(0, -1)).toISOString());
}

function written(value, unit) {
  const text = unit === "%" || Math.abs(value) >= 100 ? number(Math.round(value * 10) / 10) : number(Number(value.toPrecision(4)));
  if (unit === "GPUs") return say(value === 1 ? "gpus_one" : "gpus_many", { gpus: text });
  return unit ? `${text}\u00a0${unit}` : text;
}
