// The text alternative of a chart, its sentence and its table, updated with live points.
// The server (dashboards/charts) renders both and sends the sentence's pattern, so the wording exists once.

const share = (value) => `${Math.round(value)}%`;
const short = (value) => String(Number(value.toPrecision(4)));
const plain = (value) => String(Number(value.toFixed(6)));

// Lines that are drawn slightly apart to be distinguishable carry their exact values separately.
const valuesOf = (trace) => (trace.customdata ?? trace.y).filter((value) => value !== null);
const projectsOf = (data) => data.filter((trace) => trace.meta?.key?.startsWith("project:"));

/** The sentence of a figure as it is drawn now; null if the server's is still valid. */
export function summaryOf({ data, layout }) {
  const says = layout.meta?.says;
  if (!says || !data.some((trace) => trace.x.length)) return null;
  const [first, second] = data.map(valuesOf), write = layout.meta.rounds === "share" ? share : short;
  const slots = {
    last: () => write(first.at(-1)), low: () => write(low(first)), high: () => write(high(first)),
    mean: () => write(layout.meta.mean), second: () => (second?.length ? write(second.at(-1)) : "–"),
    each: () => projectsOf(data).map((trace) => `${trace.name} ${plain(valuesOf(trace).at(-1))}`).join(", "),
  };
  return says.replace(/\{(\w+)\}/g, (_, name) => slots[name]());
}

const low = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const high = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** Add a live point to the running mean of the first line. */
export function learn(meta, value) {
  if (meta?.mean === undefined) return;
  meta.mean = (meta.mean * meta.points + value) / (meta.points + 1);
  meta.points += 1;
}

/** The rows of the table with a live point first: its recorded x, and the value of every line. */
export function withPoint(table, at, figure) {
  const row = [at, ...figure.data.map((trace) => Number((valuesOf(trace).at(-1) ?? 0).toPrecision(5)))];
  table.rows = [row, ...table.rows.filter(([x]) => x !== at)];
}

/** The rows of step lines, one a line: GPU hours, mean and peak of what is drawn now. */
export function usageRows({ data, layout }) {
  const [start, end] = layout.xaxis.range.map((time) => Date.parse(time));
  return projectsOf(data).map((trace) => [trace.name, ...usage(trace.x.map((time) => Date.parse(time)), valuesOf(trace), start, end)]);
}

function usage(times, values, start, end) {
  let area = 0, peak = 0;
  times.forEach((time, at) => {
    const from = Math.max(time, start), to = Math.min(times[at + 1] ?? end, end);
    if (to < start || to < from) return;
    area += values[at] * (to - from);
    peak = Math.max(peak, values[at]);
  });
  const span = end - start;
  return [area / 3600000, span > 0 ? area / span : 0, peak].map((value) => Number(value.toFixed(2)));
}
