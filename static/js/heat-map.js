// The heat map of devices: the node at the pointer, or at the arrow keys, is marked and shown on a card with the jobs that
// hold its devices. Enter, or a click, opens the node's page.
//
//   <div class="heat-map" tabindex="0"><svg data-columns data-pitch-x data-pitch-y data-nodes>...</svg><div data-keep></div></div>

import { $, fetchPage, h } from "./dom.js";

const PATIENCE = 120; // milliseconds that the pointer rests on a node before its card is asked for
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

class HeatMap {
  constructor(root) {
    this.root = root;
    this.over = $("[data-keep]", root);
    this.mark = h("div", { class: "heat-mark", hidden: true });
    this.card = h("div", { class: "heat-card", role: "status", hidden: true });
    this.over.append(this.mark, this.card);
    root.addEventListener("pointermove", (event) => this.#point(event));
    root.addEventListener("pointerleave", () => this.#leave());
    root.addEventListener("click", (event) => this.#click(event));
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("focusout", (event) => { if (!root.contains(event.relatedTarget)) this.#leave(); });
    this.at = null;
  }

  /** Update the card after the map was redrawn. */
  redrawn() { if (this.at !== null) this.#show(this.at); }

  // Queried on every use, because the SVG is replaced when nodes are added or removed.
  get grid() {
    const svg = $("svg", this.root), { columns, pitchX, pitchY, nodes } = svg.dataset;
    const [, , width] = svg.getAttribute("viewBox").split(" ").map(Number);
    const scale = svg.clientWidth / width;
    return { names: nodes ? nodes.split(" ") : [], columns: Number(columns), x: pitchX * scale, y: Number(pitchY) };
  }

  #point(event) {
    if (this.card.contains(event.target)) return;
    const box = $("svg", this.root).getBoundingClientRect(), { names, columns, x, y } = this.grid;
    const column = Math.floor((event.clientX - box.left) / x), row = Math.floor((event.clientY - box.top) / y);
    const at = row * columns + column;
    if (column < 0 || column >= columns || row < 0 || at >= names.length) return;
    if (at !== this.at) this.#show(at, PATIENCE);
  }

  #click(event) {
    if (event.target.closest("a") || this.at === null) return;
    const name = this.grid.names[this.at];
    if (event.pointerType === "mouse") location.href = `/nodes/${encodeURIComponent(name)}`;
    else this.#show(this.at); // a finger has no way to hover: the first touch shows the card, whose head is the link
  }

  #key(event) {
    if (event.target !== this.root || event.ctrlKey || event.metaKey || event.altKey) return;
    const { names, columns } = this.grid, step = STEPS[event.key];
    if (step) {
      const at = this.at === null ? 0 : this.at + step[0] + step[1] * columns;
      if (names[at]) this.#show(at, PATIENCE);
      event.preventDefault();
    } else if (event.key === "Enter" && this.at !== null) location.href = `/nodes/${encodeURIComponent(names[this.at])}`;
    else if (event.key === "Escape") this.#leave();
  }

  #leave() {
    clearTimeout(this.timer);
    this.at = null;
    this.mark.hidden = this.card.hidden = true;
  }

  #show(at, wait = 0) {
    const { names, columns, x, y } = this.grid;
    if (!names[at]) { this.#leave(); return; }
    const isOther = at !== this.at;
    this.at = at;
    const left = (at % columns) * x, top = Math.floor(at / columns) * y;
    Object.assign(this.mark.style, { left: `${left - 2}px`, top: `${top - 2}px`, width: `${x}px`, height: `${y + 2}px` });
    this.mark.hidden = false;
    if (isOther) this.card.hidden = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#load(at, names[at], { left, top: top + y }), wait);
  }

  async #load(at, name, place) {
    const fresh = await fetchPage(`/nodes/${encodeURIComponent(name)}/card`);
    if (!fresh || this.at !== at) return;
    this.card.replaceChildren(...fresh.body.childNodes);
    this.card.hidden = false;
    const room = this.root.clientWidth - this.card.offsetWidth;
    Object.assign(this.card.style, { left: `${Math.max(0, Math.min(place.left, room))}px`, top: `${place.top}px` });
  }
}

// The map may appear while the page is open: the first node may be reported later.
let map = null;
function find() {
  const root = $(".heat-map");
  if (root !== map?.root) map = root && new HeatMap(root);
  else map?.redrawn();
}
document.addEventListener("regions", find);
find();
