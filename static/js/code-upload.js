// The submit form's folder: its files become the code tree that the job runs, by the requests of `yard submit --code`.

import { $, say, setText } from "./dom.js";
import { pathBelow } from "./folder.js";
import { number, size } from "./format.js";
import { codeFiles } from "./ignore.js";
import { Refused, send, sendJson } from "./requests.js";
import { hex, sha256 } from "./sha256.js";

const PART_BYTES = 32 << 20, BLOCK = 512, FOLDERS_NAMED = 5;

const input = $("#tree-folder"), tree = $("#f-code"), shown = $("#tree-state"), form = $("#job-form");
const most = { files: Number(input.dataset.files), bytes: Number(input.dataset.bytes) };
let running = null;

input.addEventListener("change", start);
form.elements.project.addEventListener("change", () => { if (input.files.length) start(); });

async function start() {
  running?.abort();
  const mine = (running = new AbortController());
  const all = [...input.files].map((file) => ({ file, path: pathBelow(file) }));
  lock(all.length > 0);
  fill("");
  if (!all.length) return state("");
  try {
    const files = await codeFiles(all);
    check(files);
    const name = await bring(files, form.elements.project.value, mine.signal);
    fill(name);
    state(say("code_there", { files: number(files.length), size: size(sum(files)), left: number(all.length - files.length) }));
  } catch (error) {
    if (mine.signal.aborted) return;
    state(error instanceof Refused ? error.message : say("upload_broken"), true);
  }
  if (running === mine) lock(false);
}

function lock(isBusy) {
  for (const button of form.querySelectorAll("button.primary")) button.disabled = isBusy;
  shown.setAttribute("aria-busy", isBusy);
}

function fill(name) {
  tree.value = name;
  tree.dispatchEvent(new Event("input", { bubbles: true }));
}

function state(text, isBad = false) {
  setText(shown, text);
  shown.classList.toggle("bad", isBad);
}

const sum = (files) => files.reduce((total, { file }) => total + file.size, 0);

/** Throw Refused for what cannot be code, with the folders that hold most of it. */
function check(files) {
  const bytes = sum(files);
  const wrong = !files.length ? say("code_empty")
    : files.length > most.files ? say("code_many", { files: number(files.length), most: number(most.files) })
    : bytes > most.bytes ? say("code_large", { bytes: number(bytes), most: number(most.bytes) }) : "";
  if (!wrong) return;
  const isMany = files.length > most.files;
  throw new Refused(400, { detail: files.length ? `${wrong} ${largest(files, isMany)} ${say("code_hint")}` : wrong });
}

function largest(files, isCount) {
  const totals = new Map();
  for (const { path, file } of files) {
    const parts = path.split("/").slice(0, -1).slice(0, 2);
    const name = parts.length ? `${parts.join("/")}/` : path;
    totals.set(name, (totals.get(name) ?? 0) + (isCount ? 1 : file.size));
  }
  const found = [...totals].sort((one, two) => two[1] - one[1]).slice(0, FOLDERS_NAMED);
  return `${found.map(([name, total]) => `${name} (${isCount ? number(total) : size(total)})`).join(", ")}.`;
}

/** Send what the server lacks of the files, and return the name of their tree. */
async function bring(files, project, signal) {
  const options = { signal, waits: (seconds, reason) => { if (seconds) state(`${reason} ${say("upload_waits", { seconds: number(seconds) })}`.trim(), true); } };
  let read = 0;
  for (const entry of files) {
    entry.hash = hex(await sha256(entry.file, signal));
    state(say("code_reading", { done: number(++read), files: number(files.length) }));
  }
  const listed = files.map(({ path, file, hash, isExecutable }) => ({ path, size: file.size, hash, ...(isExecutable && { executable: true }) }));
  const base = `projects/${encodeURIComponent(project)}/code`;
  const begun = await sendJson("POST", base, { files: listed }, options);
  const wanted = new Map(files.map((entry) => [entry.hash, entry]));
  const missing = begun.missing.map((hash) => wanted.get(hash));
  let sent = 0;
  for (const part of parts(missing)) {
    state(say("code_sending", { done: number(sent), files: number(missing.length) }));
    await send("PUT", `${base}/${begun.tree}/content`, { ...options, body: archive(part), type: "application/x-tar" });
    sent += part.length;
  }
  await sendJson("POST", `${base}/${begun.tree}/commit`, {}, options);
  return begun.tree;
}

function* parts(files) {
  let part = [], bytes = 0;
  for (const entry of files) {
    if (part.length && bytes + entry.file.size > PART_BYTES) { yield part; part = []; bytes = 0; }
    part.push(entry);
    bytes += entry.file.size;
  }
  if (part.length) yield part;
}

/** A tar (POSIX ustar) of files named by their hash. */
function archive(files) {
  const pieces = files.flatMap(({ file, hash }) => [header(hash, file.size), file, new Uint8Array(-file.size & (BLOCK - 1))]);
  return new Blob([...pieces, new Uint8Array(2 * BLOCK)]);
}

function header(name, bytes) {
  const block = new Uint8Array(BLOCK);
  const put = (at, text) => block.set(new TextEncoder().encode(text), at);
  put(0, name);
  put(100, "0000644\0" + "0000000\0".repeat(2) + `${bytes.toString(8).padStart(11, "0")}\0` + "00000000000\0" + " ".repeat(8) + "0");
  put(257, "ustar\x0000");
  const total = block.reduce((one, two) => one + two, 0);
  put(148, `${total.toString(8).padStart(6, "0")}\0 `);
  return block;
}
