// Charts: figures come from the server as Plotly JSON; the library loads after first paint and only when a chart is
// near the screen. Live points are appended in place; one hover line runs across charts of the same time axis.
//
//   <figure class="chart" data-chart="/charts/utilisation.json?span=3600" data-axis="time"> ... </figure>

import { learn, summaryOf, usageRows, withPoint } from "./chart-words.js";
import { $, $$, h, say, setText } from "./dom.js";
import { absolute, now, number } from "./format.js";
import { feed } from "./live.js";

const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], doubleClick: "reset" };
const APPEND_EVERY = 1000; // milliseconds between redraws of live points
const MOST_APPENDED = 120; // then the server thins the line again
const LABEL_GAP = 13; // pixels between labels at the line ends

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

// Plotly shows times as they are written: they are written in the reader's zone
function local(time) {
  const at = new Date(time);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, -1);
}

function intoReadersZone({ data, layout }) {
  for (const trace of data) trace.x = trace.x.map(local);
  if (layout.xaxis.range) layout.xaxis.range = layout.xaxis.range.map(local);
}

const theme = () => document.documentElement.dataset.theme;

export class Chart {
  constructor(root) {
    this.root = root;
    this.plot = $(".chart-plot", root);
    this.url = root.dataset.chart;
    this.appended = 0;
    this.figure = null;
    root.chart = this;
    const twin = $(`[data-chart-twin="${root.id}"]`) ?? $("[data-chart-twin]", root.closest(".panel") ?? root);
    twin?.addEventListener("click", () => this.#twin(twin));
    new IntersectionObserver((entries) => this.#seen(entries.at(-1).isIntersecting), { rootMargin: "120px" }).observe(this.plot);
    if (root.dataset.liveChart) feed().subscribe(root.dataset.liveChart, { change: (state) => this.#report(Object.values(state.job ?? {})[0]) });
    document.addEventListener("theme", () => this.figure && this.load());
  }

  #seen(isVisible) {
    this.isVisible = isVisible;
    if (isVisible && !this.figure) this.load();
    else if (isVisible && this.isDirty) this.#redraw();
  }

  /** Fetch the figure and draw it, in place when it is there already. */
  async load(url = this.url) {
    this.url = url;
    const separator = url.includes("?") ? "&" : "?";
    const asked = fetch(`${url}${separator}theme=${theme()}`, { headers: { Accept: "application/json" } });
    const [response, Plotly] = await Promise.all([asked, plotly()]);
    if (!response.ok || this.url !== url) return;
    const answer = await response.json();
    this.figure = answer.figure;
    this.isTime = this.figure.layout.xaxis.type === "date";
    if (this.isTime) intoReadersZone(this.figure);
    this.table = answer.table;
    this.appended = 0;
    this.#say(answer.summary);
    await this.#react(Plotly);
    this.#hover();
  }

  async #react(Plotly) {
    const isFirst = !this.plot.classList.contains("js-plotly-plot");
    const { data, layout } = this.figure;
    await Plotly.react(this.plot, data, { ...layout, datarevision: (this.revision = (this.revision ?? 0) + 1), uirevision: this.url }, CONFIG);
    if (isFirst) $("svg.preview", this.plot)?.remove();
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
      // keep one point before the edge, so that steps and lines enter from the side
      while (trace.x.length > 2 && trace.x[1] < start) { trace.x.shift(); trace.y.shift(); trace.customdata?.shift(); }
    }
  }

  #redraw() {
    if (this.pending) return;
    this.pending = setTimeout(async () => {
      this.pending = null;
      this.isDirty = false;
      if (this.appended > MOST_APPENDED) { await this.load(); return; }
      labelEnds(this.figure, this.plot.clientHeight);
      if (this.figure.layout.meta.usage) this.table.rows = usageRows(this.figure);
      this.#say(summaryOf(this.figure));
      await this.#react(await plotly());
    }, APPEND_EVERY);
  }

  // the sentence and the table say what is drawn; an open table keeps its place
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

  #hover() {
    const axis = this.root.dataset.axis;
    if (!axis || this.hasHover) return;
    this.hasHover = true;
    this.plot.on("plotly_hover", (event) => spread(axis, this, event.xvals?.[0]));
    this.plot.on("plotly_unhover", () => spread(axis, this, null));
  }

  /** Draw the shared hover line at an x value of this chart's axis (null takes it away). */
  mark(x) {
    this.line?.remove();
    this.line = null;
    const layout = this.plot._fullLayout;
    if (x === null || x === undefined || !layout?.xaxis) return;
    const at = layout.xaxis._offset + layout.xaxis.c2p(x);
    if (at < layout.xaxis._offset || at > layout.xaxis._offset + layout.xaxis._length) return;
    this.line = h("div", { class: "chart-line" });
    this.line.style.left = `${at}px`;
    this.plot.append(this.line);
  }
}

function spread(axis, origin, x) {
  for (const root of $$(`[data-chart][data-axis="${axis}"]`)) if (root.chart !== origin) root.chart?.mark(x);
}

const cellText = (value) => {
  if (value === null) return "–";
  return typeof value === "number" ? number(value) : /^\d{4}-\d\d-\d\dT/.test(value) ? absolute(value) : String(value);
};

function twinTable(table) {
  const head = h("tr", {}, ...table.columns.map((name, index) => h("th", { scope: "col", class: index ? "num" : null }, name)));
  const rows = table.rows.map((row) => h("tr", {}, ...row.map((value, index) => h("td", { class: index ? "num" : null }, cellText(value)))));
  return h("div", { class: "chart-table", tabindex: "0", role: "region", "aria-label": say("chart_table") },
    h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows)));
}

/** Move the labels at the line ends to the lines' last values, kept apart. dashboards/charts/labels.py is the twin. */
export function labelEnds(figure, height) {
  const { annotations = [], yaxis, margin } = figure.layout;
  const labels = annotations.filter((label) => label.name);
  if (!labels.length || !yaxis.range) return;
  const [low, high] = yaxis.range;
  const pixels = height - margin.t - margin.b;
  for (const label of labels) {
    const trace = figure.data.find((candidate) => candidate.meta?.key === label.name);
    if (!trace) continue;
    label.y = trace.y.at(-1);
    if (trace.meta.label) label.text = trace.meta.label.replace("{value}", String(Math.round(label.y)));
  }
  const perPixel = (high - low) / pixels;
  const gap = Math.min(LABEL_GAP, pixels / Math.max(labels.length - 1, 1)) * perPixel;
  const downwards = labels.toSorted((a, b) => b.y - a.y);
  let ceiling = high, floor = low;
  for (const label of downwards) {
    label.place = Math.min(label.y, ceiling);
    ceiling = label.place - gap;
  }
  for (const label of downwards.reverse()) {
    label.place = Math.max(label.place, floor);
    floor = label.place + gap;
    label.yshift = (label.place - label.y) / perPixel;
    delete label.place;
  }
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
