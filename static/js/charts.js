// Charts: figures come from the server as Plotly JSON; the library loads after first paint and only when a chart is
// near the viewport. Live points are appended in place; charts of the same time axis share one hover line.
//
//   <figure class="chart" data-chart="/charts/utilisation.json?span=3600" data-axis="time"> ... </figure>

import { atRest, followPointer } from "./chart-hover.js";
import { fullText, labelEnds, traceOf } from "./chart-labels.js";
import { addTools } from "./chart-tools.js";
import { learn, summaryOf, usageRows, withPoint } from "./chart-words.js";
import { $, $$, h, say, setAttribute, setText, svg } from "./dom.js";
import { absolute, decimals, now } from "./format.js";
import { markProjects } from "./hover.js";
import { feed } from "./live.js";
import { isLeavingPage } from "./regions.js";

// No chart data may leave the machine, and the buttons over a chart are our own (chart-tools.js): Plotly's
// defaults bring a mode bar with a button that uploads the chart to its maker's servers, a logo that links there and
// boxes at the ends of the axes.
const CONFIG = {
  displayModeBar: false, displaylogo: false, watermark: false, showSendToCloud: false, plotlyServerURL: "",
  topojsonURL: `${location.origin}/`, editable: false, showTips: false, displayNotifier: false, typesetMath: false,
  showAxisDragHandles: false, showAxisRangeEntryBoxes: false, responsive: true, doubleClick: false,
};
const APPEND_EVERY = 1000; // milliseconds between redraws of live points
const MOST_APPENDED = 120; // then the server thins the line again
const isTouch = matchMedia("(hover: none)");

let library = null;
/** Plotly, loaded once. */
function plotly() {
  library ??= new Promise((resolve, reject) => {
    const script = h("script", { src: document.body.dataset.plotly });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The charting library did not load."));
    document.head.append(script);
  });
  return library;
}

// Plotly shows times as given, so they are converted to the reader's time zone.
function local(time) {
  const at = new Date(time);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, -1);
}

function intoReadersZone({ data, layout }) {
  for (const trace of data) trace.x = trace.x.map(local);
  if (layout.xaxis.range) layout.xaxis.range = layout.xaxis.range.map(local);
  for (const shape of layout.shapes ?? []) [shape.x0, shape.x1] = [local(shape.x0), local(shape.x1)];
  for (const label of layout.annotations ?? []) if (label.xref === "x") label.x = local(label.x);
  layout.xaxis.title.text = `${layout.xaxis.title.text}, ${zone()}`;
}

const theme = () => document.documentElement.dataset.theme;

const templates = new Map();
/** The template that a figure names, fetched once. */
function template(name) {
  const url = document.body.dataset.chartTemplate.replace("light", name.replace("trainyard-", ""));
  if (!templates.has(name)) templates.set(name, fetch(url).then((response) => response.json()));
  return templates.get(name);
}

// "UTC+01:00", of the zone in which time axes are written
function zone() {
  const minutes = -new Date().getTimezoneOffset(), size = Math.abs(minutes);
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return minutes ? `UTC${minutes < 0 ? "−" : "+"}${two(size / 60)}:${two(size % 60)}` : "UTC";
}

export class Chart {
  constructor(root) {
    this.root = root;
    this.plot = $(".chart-plot", root);
    this.url = root.dataset.chart;
    this.appended = 0;
    this.figure = null;
    this.zoom = null; // the range that was zoomed to, null: the figure's own
    root.chart = this;
    const twin = $(`[data-chart-twin="${root.id}"]`) ?? $("[data-chart-twin]", root.closest(".panel") ?? root);
    twin?.addEventListener("click", () => this.#twin(twin));
    new IntersectionObserver((entries) => this.#seen(entries.at(-1).isIntersecting), { rootMargin: "120px" }).observe(this.plot);
    if (root.dataset.liveChart) feed().subscribe(root.dataset.liveChart, { change: (state) => this.#report(Object.values(state.job ?? {})[0]) });
    document.addEventListener("theme", () => this.figure && this.load());
    if (root.dataset.refresh) setInterval(() => this.isVisible && this.figure && this.load(), root.dataset.refresh * 1000);
    addTools(this);
    followPointer(this);
  }

  library() { return plotly(); }

  #seen(isVisible) {
    this.isVisible = isVisible;
    if (isVisible && !this.figure) this.load();
    else if (isVisible && this.isDirty) this.#redraw();
  }

  /** Fetch the figure and draw it, in place when it is there already. */
  async load(url = this.url) {
    this.url = url;
    if (isLeavingPage()) return;
    const separator = url.includes("?") ? "&" : "?";
    const asked = fetch(`${url}${separator}theme=${theme()}`, { headers: { Accept: "application/json" } });
    const [response, Plotly] = await Promise.all([asked, plotly()]);
    if (!response.ok || this.url !== url) return;
    const { figure, summary, table } = await response.json();
    figure.layout.template = await template(figure.layout.template);
    if (this.url !== url) return;
    this.isTime = figure.layout.xaxis.type === "date";
    if (this.isTime) intoReadersZone(figure);
    figure.layout.margin.r = Math.min(figure.layout.margin.r, Math.round(this.plot.clientWidth * 0.28));
    figure.layout.xaxis.nticks = Math.max(2, Math.min(7, Math.floor(this.plot.clientWidth / 90)));
    if (isTouch.matches) figure.layout.dragmode = false; // a finger scrolls the page
    labelEnds(figure, figure.layout.height);
    Object.assign(this, { figure, table, appended: 0 });
    this.#say(summary);
    await this.#react(Plotly);
  }

  async #react(Plotly) {
    const isFirst = !this.plot.classList.contains("js-plotly-plot");
    const { data, layout } = this.figure;
    const xaxis = this.zoom ? { ...layout.xaxis, range: this.zoom, autorange: false } : layout.xaxis;
    await Plotly.react(this.plot, data, { ...layout, xaxis, datarevision: (this.revision = (this.revision ?? 0) + 1) }, CONFIG);
    this.#tag();
    atRest(this);
    if (!isFirst) return;
    $("svg.preview", this.plot)?.remove();
    this.plot.on("plotly_relayout", (change) => this.#dragged(change));
    this.plot.on("plotly_doubleclick", () => this.zoomTo(null));
    this.plot.on("plotly_afterplot", () => this.#tag());
  }

  /** Show a part of the x axis; null: all of it. */
  async zoomTo(range) {
    this.zoom = range;
    if (this.figure) await this.#react(await plotly());
  }

  #dragged(change) {
    if (change["xaxis.range[0]"] !== undefined) this.zoom = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  }

  // Lines and labels are dimmed with their project; a shortened label shows its full text on hover.
  #tag() {
    for (const node of $$(".scatterlayer .trace", this.plot)) {
      const key = node.__data__?.[0]?.trace?.meta?.key ?? "";
      setAttribute(node, "data-project", key.startsWith("project:") ? key.slice("project:".length) : null);
    }
    for (const node of $$(".annotation", this.plot)) {
      const label = this.figure.layout.annotations?.[node.dataset.index], trace = label && traceOf(this.figure, label);
      if (!trace) continue;
      if (label.name.startsWith("project:")) { node.dataset.project = label.name.slice("project:".length); node.dataset.hover = ""; }
      if (!$("title", node)) node.prepend(svg("title", {}, fullText(trace)));
    }
    markProjects(this.plot);
  }

  /** Append a live point: `at` an ISO time, `values` by trace key (trace.meta.key). */
  append(at, values) {
    if (!this.figure) return;
    const x = this.isTime ? local(at) : at;
    let isNew = false;
    for (const trace of this.figure.data) {
      const value = values[trace.meta?.key];
      if (value === undefined || value === null || x <= trace.x.at(-1)) continue;
      trace.x.push(x);
      const shown = value * (trace.meta.scale ?? 1);
      trace.y.push(shown + (trace.meta.offset ?? 0)); // lines with equal values stand a little apart
      trace.customdata?.push(shown);
      if (trace.x.length > 1) trace.mode = "lines";
      if (trace === this.figure.data[0]) learn(this.figure.layout.meta, shown);
      isNew = true;
      if (shown > this.figure.layout.yaxis.range[1]) this.appended = MOST_APPENDED; // the axis is too short: ask again
    }
    this.#slide(at);
    if (isNew && !this.figure.layout.meta.usage) withPoint(this.table, at, this.figure);
    this.appended += 1;
    this.isDirty = true;
    if (this.isVisible) this.#redraw();
  }

  // a job's own curves: progress by step, utilisation by time
  #report(job) {
    const { step, loss, accuracy } = job?.status.progress ?? {};
    // The chart was empty when it was drawn: fetch what was reported since.
    if (step !== undefined && this.figure && !this.figure.data.some((trace) => trace.x.length)) { this.load(); return; }
    if (this.root.dataset.axis === "time") this.append(new Date(now()).toISOString(), { gpu_utilization: job?.status.gpu_utilization });
    else if (step !== undefined) this.append(step, { loss, accuracy });
  }

  #slide(at) {
    const { xaxis, meta } = this.figure.layout;
    if (!meta?.span_seconds) return;
    const begin = new Date(Math.max(Date.parse(at) - meta.span_seconds * 1000, Date.parse(meta.since)));
    xaxis.range = [local(begin), local(at)];
    const [start] = xaxis.range;
    for (const trace of this.figure.data) {
      if (!trace.meta?.key) continue;
      // Keep one point before the visible range, so that lines start at its edge.
      while (trace.x.length > 2 && trace.x[1] < start) { trace.x.shift(); trace.y.shift(); trace.customdata?.shift(); }
    }
  }

  #redraw() {
    if (this.pending) return;
    this.pending = setTimeout(async () => {
      this.pending = null;
      this.isDirty = false;
      if (this.appended > MOST_APPENDED) { await this.load(); return; }
      labelEnds(this.figure, this.figure.layout.height);
      if (this.figure.layout.meta.usage) this.table.rows = usageRows(this.figure);
      this.#say(summaryOf(this.figure));
      await this.#react(await plotly());
    }, APPEND_EVERY);
  }

  // Update the sentence and the table; an open table keeps its scroll position.
  #say(summary) {
    if (summary !== null) {
      const shown = $(".chart-summary", this.root);
      if (shown) setText(shown, summary);
      this.plot.setAttribute("aria-label", summary);
    }
    const open = $(".chart-table", this.root);
    if (open) $("tbody", open).replaceWith($("tbody", twinTable(this.table)));
  }

  #twin(button) {
    const open = $(".chart-table", this.root);
    button.setAttribute("aria-expanded", !open);
    if (open) { open.remove(); return; }
    if (this.table) this.root.append(twinTable(this.table));
  }
}

const cellText = (value, places) => {
  if (typeof value === "number" || value === null) return decimals(value, places);
  return /^\d{4}-\d\d-\d\dT/.test(value) ? absolute(value) : String(value);
};

// As many decimals as the column's most precise number, so that decimal points align.
const placesOf = (rows, column) => Math.min(4, Math.max(0, ...rows.map((row) => (typeof row[column] === "number" ? String(row[column]).split(".")[1]?.length ?? 0 : 0))));

function twinTable(table) {
  const head = h("tr", {}, ...table.columns.map((name, index) => h("th", { scope: "col", class: index ? "num" : null }, name)));
  const places = table.columns.map((_, index) => placesOf(table.rows, index));
  const rows = table.rows.map((row) => h("tr", {}, ...row.map((value, index) => h("td", { class: index ? "num" : null }, cellText(value, places[index])))));
  return h("div", { class: "chart-table", tabindex: "0", role: "region", "aria-label": say("chart_table") },
    h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows)));
}

/** Start every chart on the page, after the first paint. */
export function charts() {
  const start = () => { for (const root of $$("[data-chart]")) if (!root.chart) new Chart(root); };
  requestAnimationFrame(() => setTimeout(start, 0));
}

// range buttons: <div class="segments" data-chart-span><button data-span="3600">
for (const group of $$("[data-chart-span]")) {
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-span]");
    if (!button) return;
    for (const other of $$("button", group)) other.setAttribute("aria-pressed", other === button);
    for (const root of $$(`[data-chart][data-span-group="${group.dataset.chartSpan}"]`)) {
      const url = new URL(root.chart?.url ?? root.dataset.chart, location.href);
      url.searchParams.set("span", button.dataset.span);
      root.chart?.load(url.pathname + url.search);
    }
  });
}

charts();
