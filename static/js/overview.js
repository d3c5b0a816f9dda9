// The first page, kept true by the topic `overview`: the state is the same that the server drew the page from.

import { Collection, fill } from "./bind.js";
import { charts } from "./charts.js";
import { cellOf, nodeRow, showBar, showCell } from "./devices.js";
import { $, $$, block, glow, say, setText } from "./dom.js";
import * as format from "./format.js";
import { feed } from "./live.js";

const context = { looks: block("looks"), palette: {} };
const mine = block("mine"); // the projects whose pages the reader may open; null: all
const ROWS_MOST = 200; // what controlplane/live/state.py sends of each
const newestFirst = (a, b) => (a.started_at === null) - (b.started_at === null) || Date.parse(b.started_at) - Date.parse(a.started_at) || (a.name < b.name ? -1 : 1);
const inLine = (a, b) => (a.queue_position ?? Infinity) - (b.queue_position ?? Infinity) || Date.parse(a.queued_at) - Date.parse(b.queued_at);

const running = new Collection($("#running"), templateOf("#running-template", "tr"), { order: newestFirst, context });
const queued = new Collection($("#queued"), templateOf("#queued-template", "li"), { order: inLine, context });

// a table row inside a <template> needs its table around it; a collection wants the row alone
function templateOf(id, row) {
  const holder = document.createElement("template");
  holder.content.append($(row, $(id).content).cloneNode(true));
  return holder;
}

feed().subscribe("overview", {
  state: (state) => show(state, null),
  change: (state, frame) => show(state, frame),
});

function show(state, frame) {
  const moved = (name) => !frame || frame.upserts?.[name] || frame.deletes?.some(([collection]) => collection === name);
  const keys = (name) => (frame ? new Set(Object.keys(frame.upserts?.[name] ?? {})) : null);
  context.palette = Object.fromEntries(Object.values(state.projects ?? {}).map((project) => [project.name, project.palette_index]));
  for (const name of ["projects", "running", "queued", "nodes"]) state[name] ??= {};
  if (moved("totals")) fill($("#totals"), state.totals.all, context, !frame);
  if (moved("running")) list("running", running, state, keys("running"));
  if (moved("queued")) list("queued", queued, state, keys("queued"));
  if (moved("nodes") || moved("running") || moved("projects")) devices(state);
  if (moved("projects") || moved("totals")) shares(state, Boolean(frame));
  sentences(state);
  if (frame?.upserts?.series) append(state.series.latest);
}

function list(name, collection, state, changed) {
  const count = Object.keys(state[name]).length;
  collection.show(state[name], changed);
  $(`#${name}-empty`).hidden = count > 0;
  if ($(`#${name}-wrap`)) $(`#${name}-wrap`).hidden = count === 0;
  setText($(`#${name}-count`), say(count === 1 ? "job_count" : "jobs_count", { count: format.number(count) }));
}

function devices(state) {
  const container = $("#devices");
  const rows = new Map($$(":scope > [data-key]", container).map((row) => [row.dataset.key, row]));
  for (const node of Object.values(state.nodes).sort((a, b) => (a.name < b.name ? -1 : 1))) {
    let row = rows.get(node.name);
    if (!row || $$(".cell", row).length !== node.devices.length) {
      const made = nodeRow(node);
      if (row) row.replaceWith(made);
      else container.append(made);
      row = made;
    }
    rows.delete(node.name);
    row.classList.toggle("is-away", !node.is_reachable);
    $$(".cell", row).forEach((cell, at) => showCell(cell, cellOf(node.devices[at], state)));
    setText($(".under", row), aboutNode(node));
    setText($(".sum b", row), format.number(node.allocated));
    row.querySelector(".sum b").nextSibling.nodeValue = `/${node.gpus}`;
  }
  for (const gone of rows.values()) gone.remove();
  $("#devices-empty").hidden = container.children.length > 0;
}

function aboutNode(node) {
  if (!node.is_reachable) return say("not_reachable");
  if (!node.is_ready) return say("not_ready_node");
  if (node.is_cordoned) return say("cordoned");
  const [first] = node.devices;
  return first ? [first.model, format.mebibytes(first.memory_mib)].filter(Boolean).join(" · ") : "";
}

function shares(state, mayGlow) {
  const container = $("#shares");
  const projects = Object.values(state.projects);
  const full = Math.max(1e-9, ...projects.map((project) => Math.max(project.gpu_quota, project.allocated_gpus, project.fair_share_gpus))) || 1;
  const rows = new Map($$(":scope > [data-key]", container).map((row) => [row.dataset.key, row]));
  let previous = null;
  for (const project of projects.sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const row = rows.get(project.name) ?? shareRow(project);
    const expected = previous ? previous.nextElementSibling : container.firstElementChild;
    if (expected !== row) container.insertBefore(row, expected);
    previous = row;
    rows.delete(project.name);
    showBar($(".share-bar", row), project, full);
    if (setText($("b", row), format.number(project.allocated_gpus)) && mayGlow) glow($("b", row));
    setText($("[data-quota]", row), say("of_quota", { gpus: format.number(project.gpu_quota) }));
  }
  for (const gone of rows.values()) gone.remove();
  $("#shares-empty").hidden = projects.length > 0;
  $("#shares-legend").hidden = projects.length === 0;
  setText($("#in-use"), say("in_use", { gpus: format.number(state.totals.all.gpus_allocated) }));
}

function shareRow(project) {
  const row = $("#share-template").content.firstElementChild.cloneNode(true);
  row.dataset.key = row.dataset.project = project.name;
  row.className = `share-row p-${project.palette_index}`;
  const link = $("a", row);
  if (!mine || mine.includes(project.name)) link.href = `/projects/${encodeURIComponent(project.name)}`;
  else link.removeAttribute("href");
  link.textContent = project.name;
  return row;
}

function sentences(state) {
  const totals = state.totals.all;
  const share = $("[data-allocated-share]");
  setText(share, totals.gpus ? format.percent(totals.gpus_allocated / totals.gpus) : "");
  $("#utilisation-unit").hidden = totals.gpu_utilization === null;
  $("#idle-figure").classList.toggle("is-warning", totals.gpus_idle_allocated > 0);
  for (const name of ["running", "queued"]) setText($(`[data-empty=${name}]`), say(hidden(state, name) ? `empty_${name}_yours` : `empty_${name}`));
  for (const [name, text] of Object.entries(underFigures(state, totals))) setText($(`[data-under=${name}]`), text);
}

// dashboards/reads/overview.py says the same sentences
function underFigures(state, totals) {
  const all = Object.values(state.nodes).flatMap((node) => node.devices);
  const borrowed = Object.values(state.projects).reduce((sum, project) => sum + Math.max(0, project.allocated_gpus - project.gpu_quota), 0);
  const busy = all.map((device) => device.utilization).filter(Boolean);
  const waits = Object.values(state.queued).map((job) => format.secondsSince(job.queued_at));
  return {
    nodes: nodeStates(state, totals) || say("all_ready"),
    gpus: tally(all.map((device) => [device.model, format.mebibytes(device.memory_mib)].filter(Boolean).join(" "))).slice(0, 2).map(([name]) => name).join(", ") || format.NOTHING,
    gpus_allocated: borrowed ? say("over_quota", { gpus: format.number(borrowed) }) : say("within_quota"),
    gpus_idle_allocated: idleJobs(all, state),
    gpu_utilization: busy.length ? say("of_busy", { share: format.percent(busy.reduce((a, b) => a + b, 0) / busy.length) }) : say(all.length && all.every((device) => device.utilization === null) ? "no_measure" : "no_busy"),
    jobs_running: hidden(state, "running") ?? (tally(Object.values(state.running).map((job) => job.kind)).map(([kind, count]) => `${count} ${kind}`).join(", ") || say("nothing_runs")),
    jobs_queued: hidden(state, "queued") ?? (waits.length ? say("longest", { time: format.duration(Math.max(...waits)) }) : say("nobody_waits")),
  };
}

function nodeStates(state, totals) {
  const cordoned = Object.values(state.nodes).filter((node) => node.is_reachable && node.is_ready && node.is_cordoned).length;
  const counts = [["not_ready", totals.nodes - totals.nodes_ready], ["cordoned_nodes", cordoned]];
  return counts.filter(([, count]) => count).map(([word, count]) => say(word, { count })).join(", ");
}

// jobs of projects that are not the reader's are counted but not listed; the state leaves some out for their number
function hidden(state, name) {
  const shown = Object.keys(state[name]).length;
  return shown < Math.min(state.totals.all[`jobs_${name}`], ROWS_MOST) ? yours(shown) : null;
}

function yours(count) {
  return count ? say("of_yours", { count }) : say("none_of_yours");
}

function idleJobs(all, state) {
  const names = new Set(all.filter((device) => device.utilization === 0).flatMap((device) => device.shares)
    .map((share) => state.running[share.job]?.name).filter(Boolean));
  const sorted = [...names].sort();
  if (sorted.length) return sorted.slice(0, 2).join(", ") + (sorted.length > 2 ? "…" : "");
  return state.totals.all.gpus_idle_allocated ? yours(0) : say("all_busy");
}

// [what, how often], the most frequent first
function tally(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1));
}

function append(latest) {
  if (!latest?.at) return;
  const values = { gpu_utilization: latest.gpu_utilization, gpu_memory_utilization: latest.gpu_memory_utilization };
  for (const [name, gpus] of Object.entries(latest.projects ?? {})) values[`project:${name}`] = gpus;
  for (const root of $$("[data-chart]")) root.chart?.append(latest.at, values);
}

setInterval(() => {
  const waiting = feed().topics.get("overview")?.state;
  if (waiting?.totals) sentences(waiting);
}, 1000);
charts();
