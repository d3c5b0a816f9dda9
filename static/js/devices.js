// Device cells and allocation bars, drawn from live records exactly as the server's templates draw them.
// dashboards/reads/overview.py (cell) and dashboards/reads/projects.py (bar) are the twins.

import { $, h, say, setAttribute, svg } from "./dom.js";
import * as format from "./format.js";

const round = (value, places) => Math.round(value * 10 ** places) / 10 ** places;

/** A device as its cell shows it: shares side by side, filled to their utilisation. */
export function cellOf(device, state) {
  let x = 0;
  const parts = device.shares.map((share) => {
    const width = share.milli_gpus / 10, used = shareUse(device, share, state);
    const part = { x: round(x, 2), width: round(width, 2), y: round(100 - 100 * used, 1), height: round(100 * used, 1),
      project: share.project, colour: state.projects[share.project]?.palette_index ?? 0 };
    x += width;
    return part;
  });
  return { index: device.index, parts, isIdle: parts.length > 0 && device.utilization === 0, isForeign: device.is_foreign, title: titleOf(device, state) };
}

// a whole device shows its own utilisation; a fraction its job's, as far as it is known
function shareUse(device, share, state) {
  const own = share.milli_gpus < 1000 ? state.running[share.job]?.gpu_utilization : null;
  return own ?? device.utilization ?? 0;
}

function titleOf(device, state) {
  const names = device.shares.map((share) => (state.running[share.job]?.name ?? share.project)
    + (share.milli_gpus < 1000 ? ` (${format.number(share.milli_gpus / 1000)})` : ""));
  const use = format.percent(device.utilization);
  return `GPU ${device.index}: ${names.length ? `${names.join(", ")}, ${use}` : say(device.is_foreign ? "foreign" : "free")}`;
}

/** Bring one cell up to date. */
export function showCell(node, cell) {
  node.classList.toggle("is-idle", cell.isIdle);
  node.classList.toggle("is-off", cell.isForeign);
  if (node.title !== cell.title) { node.title = cell.title; setAttribute(node, "aria-label", cell.title); }
  const drawing = $("svg", node);
  const fresh = cell.parts.map(drawPart);
  const isSame = fresh.length === drawing.children.length && fresh.every((group, at) => like(group, drawing.children[at]));
  if (!isSame) drawing.replaceChildren(...fresh);
}

// hover classes come and go; everything else must be equal
function like(fresh, shown) {
  if (fresh.dataset.project !== shown.dataset.project || fresh.children.length !== shown.children.length) return false;
  return [...fresh.children].every((rect, at) => rect.isEqualNode(shown.children[at])) && fresh.classList[0] === shown.classList[0];
}

function drawPart(part) {
  const { x, width } = part;
  return svg("g", { class: `p-${part.colour}`, "data-project": part.project, "data-hover": "" },
    svg("rect", { class: "back", x, width, height: 100 }),
    svg("rect", { class: "fill", x, y: part.y, width, height: part.height }),
    part.x ? svg("rect", { class: "split", x, width: 1.5, height: 100 }) : null);
}

/** A node's row of cells, new. */
export function nodeRow(node) {
  const cells = node.devices.map((device) => h("a", { class: "cell", "data-idle": say("idle"), href: `/nodes/${encodeURIComponent(node.name)}` },
    svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }), h("span", { class: "index" }, String(device.index))));
  return h("div", { class: "node-row", "data-key": node.name },
    h("div", {}, h("a", { class: "name", href: `/nodes/${encodeURIComponent(node.name)}` }, node.name), h("div", { class: "under" })),
    h("div", { class: "cells" }, ...cells), h("div", { class: "sum" }, h("b"), ""));
}

/** The parts of a project's bar, in percent of `full` GPUs. */
export function showBar(drawing, project, full) {
  const percent = (part) => `${round((100 * part) / full, 2)}%`;
  const held = project.allocated_gpus, part = (name) => $(`[data-part=${name}]`, drawing);
  setAttribute(part("all"), "width", percent(held));
  setAttribute(part("borrowed"), "x", percent(project.gpu_quota));
  setAttribute(part("borrowed"), "width", percent(Math.max(0, held - project.gpu_quota)));
  setAttribute(part("quota"), "x", percent(project.gpu_quota));
  setAttribute(part("fair"), "x", percent(project.fair_share_gpus));
  setAttribute(part("fair"), "visibility", [0, project.gpu_quota].includes(project.fair_share_gpus) ? "hidden" : null);
  setAttribute(drawing, "aria-label", format.number(held));
}
