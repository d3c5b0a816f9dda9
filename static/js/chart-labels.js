// Labels at the ends of lines: at the lines' last values, without overlap, shortened to the available width.

const LABEL_GAP = 13; // pixels between labels
const LABEL_INDENT = 10; // between the plot and a label
const measure = document.createElement("canvas").getContext("2d");

/** Move the labels to the lines' last values without overlap, as dashboards/charts/labels.py does. */
export function labelEnds(figure, height) {
  const { annotations = [], yaxis, margin } = figure.layout;
  const labels = annotations.filter((label) => label.name);
  if (!labels.length || !yaxis.range) return;
  const [low, high] = yaxis.range;
  const pixels = height - margin.t - margin.b;
  for (const label of labels) {
    const trace = traceOf(figure, label);
    if (!trace) continue;
    label.y = trace.y.at(-1);
    label.text = fitted(fullText(trace), margin.r - LABEL_INDENT, label.font?.size ?? 11);
  }
  const perPixel = (high - low) / pixels;
  const gap = Math.min(LABEL_GAP, pixels / Math.max(labels.length - 1, 1)) * perPixel;
  const downwards = labels.toSorted((a, b) => b.y - a.y);
  const places = new Map();
  let ceiling = high, floor = low;
  for (const label of downwards) {
    places.set(label, Math.min(label.y, ceiling));
    ceiling = places.get(label) - gap;
  }
  for (const label of downwards.reverse()) {
    const place = Math.max(places.get(label), floor);
    floor = place + gap;
    label.yshift = (place - label.y) / perPixel;
  }
}

/** The full text of a label, before it was shortened. */
export function fullText(trace) {
  const value = trace.y.findLast((one) => one !== null) ?? 0;
  return (trace.meta.label ?? trace.name).replace("{value}", String(Math.round(value)));
}

/** The trace that a label belongs to. */
export const traceOf = (figure, label) => figure.data.find((trace) => trace.meta?.key === label.name);

function fitted(text, pixels, size) {
  measure.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  if (measure.measureText(text).width <= pixels) return text;
  const letters = [...text];
  while (letters.length > 1 && measure.measureText(`${letters.join("")}…`).width > pixels) letters.pop();
  return `${letters.join("").trimEnd()}…`;
}
