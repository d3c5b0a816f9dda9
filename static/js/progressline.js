// A progress line of a job (workloads/common/progress.py) as `yard logs` shows it: "epoch 7/80  step 165/1920  loss
// 0.4022". controlplane/cli holds the same rule; both pass the vectors of tests/browser/samples.py.

/** A progress line's numbers for a reader, "" for every other line. */
export function spelled(text) {
  if (!text.startsWith("{") || !text.includes('"trainyard"')) return "";
  const report = parsed(text);
  return report?.trainyard === 1 ? [...counts(report), ...measures(report)].join("  ") || checkpoint(report) : "";
}

// Python writes and reads NaN and Infinity, which JSON does not have
const ODD = /"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g;
const ODDS = { NaN, Infinity, "-Infinity": -Infinity };

function parsed(text) {
  try { return JSON.parse(text); } catch { /* once more below */ }
  try {
    const marked = text.replace(ODD, (found) => (found in ODDS ? `{"odd": "${found}"}` : found));
    return marked === text ? null : JSON.parse(marked, (_, value) => (value?.odd in ODDS ? ODDS[value.odd] : value));
  } catch { return null; }
}

const given = (value) => typeof value === "number";

function counts(report) {
  const pairs = [["epoch", report.epoch, report.epochs], ["step", report.step, report.total_steps]];
  return pairs.filter(([, done]) => given(done))
    .map(([name, done, total]) => `${name} ${general(done, 12)}${given(total) && total !== 0 ? `/${general(total, 12)}` : ""}`);
}

function measures({ loss, accuracy, seconds_per_step: seconds }) {
  return [given(loss) && `loss ${general(loss, 4)}`, given(accuracy) && `accuracy ${general(accuracy, 3)}`,
    given(seconds) && `${general(seconds, 2)} s/step`].filter(Boolean);
}

/** What a line says that reports only a checkpoint. */
function checkpoint({ checkpoint_step: step }) {
  return given(step) ? `checkpoint at step ${general(step, 12)}` : "";
}

/** A number as C's and Python's %.<digits>g write it. */
function general(value, digits) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value < 0 ? "-inf" : "inf";
  if (value === 0) return "0";
  const [mantissa, exponent] = rounded(value, digits).toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < digits) return trimmed(rounded(value, digits).toFixed(digits - 1 - power));
  return `${trimmed(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

// toPrecision rounds exact halves up, Python to the even digit
function rounded(value, digits) {
  const exact = value.toExponential(40).split("e"), kept = exact[0].replace(/^(-?\d)\.?(\d*)$/, "$1$2");
  const start = kept.startsWith("-") ? 1 : 0, rest = kept.slice(start + digits);
  const isHalf = /^50*$/.test(rest), isEven = Number(kept[start + digits - 1]) % 2 === 0;
  if (!isHalf || !isEven) return Number(value.toPrecision(digits));
  return Number(`${exact[0].slice(0, start + digits + (digits > 1 ? 1 : 0))}e${exact[1]}`);
}

const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
