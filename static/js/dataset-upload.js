// A version of a dataset made of files that the browser reads: the same requests as of `yard dataset sync`. Files are
// read in pieces, and contents that the server has are not sent, so an interrupted upload continues.

import { $, setText, say } from "./dom.js";
import { pathBelow } from "./folder.js";
import { bytePath, decode, encode, packIndex } from "./manifest.js";
import { Refused, send, sendJson } from "./requests.js";
import { hex, sha256 } from "./sha256.js";
import { Progress } from "./upload-progress.js";

const PACK_BYTES = 16 << 20, CONTENT_MOST_BYTES = 8 << 20, PART_BYTES = 16 << 20;
const BATCH_FILES = 1000, TRIES_OF_A_FILE = 3;
const FILE = 0, LINK = 2;

const form = $("#upload");
const dataset = form.dataset.upload;
const progress = new Progress($("#upload-progress"));
const digests = new WeakMap();
let stop = null;

for (const input of form.querySelectorAll("input[type=file]")) input.addEventListener("change", () => chosen(input));
form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
$("#upload-stop").addEventListener("click", () => stop?.abort());
addEventListener("beforeunload", (event) => { if (stop) event.preventDefault(); });

function chosen(input) {
  for (const other of form.querySelectorAll("input[type=file]")) if (other !== input) other.value = "";
  const files = [...input.files];
  const size = files.reduce((sum, file) => sum + file.size, 0);
  progress.reset(files.length, size);
  $("#upload-go").disabled = !files.length;
}

async function start() {
  const files = [...form.querySelectorAll("input[type=file]")].flatMap((input) => [...input.files]);
  stop = new AbortController();
  const { signal } = stop;
  lock(true);
  try {
    progress.begin(files.length, files.reduce((sum, file) => sum + file.size, 0));
    const address = await upload(files, signal);
    // `assign` asks "beforeunload" before it returns: a finished upload must not hold the page.
    stop = null;
    if (address) location.assign(address);
  } catch (error) {
    progress.fail(signal.aborted ? say("upload_stopped") : sentence(error));
  } finally {
    stop = null;
    lock(false);
  }
}

function lock(isBusy) {
  for (const field of form.elements) field.disabled = isBusy && field.id !== "upload-stop";
  $("#upload-stop").hidden = !isBusy;
  setText($("#upload-go"), isBusy ? say("upload_going") : form.dataset.go);
}

const sentence = (error) => (error instanceof Refused || error instanceof Unreadable ? error.message : say("upload_broken"));

/** A file that cannot be read, or that changes while it is read. */
class Unreadable extends Error {
  constructor(file) {
    super(say("upload_unreadable", { path: file.webkitRelativePath || file.name }));
  }
}

/** Send files, make the version, and return the address of its page; "" if nothing changed, which is shown. */
async function upload(files, signal) {
  const options = { signal, waits: (seconds, reason) => progress.waits(seconds, reason) };
  const entries = new Map(files.map((file) => [pathOf(file), { file, kind: FILE, size: file.size }]));
  const state = await sendJson("GET", `datasets/${dataset}`, undefined, options);
  const before = state.latest ? await manifestOf(state.latest_id, options) : new Map();
  for (const batch of batches([...entries.values()])) await sendBatch(batch, options);
  for (const [path, entry] of entries) {
    // Browsers do not expose file modes: an unchanged file keeps its mode.
    const old = before.get(path);
    if (old && old.kind !== LINK && hex(old.digest) === hex(entry.digest)) entry.kind = old.kind;
  }
  const all = form.elements.keep.value === "yes" ? new Map([...before, ...entries]) : entries;
  const stored = await encode([...all].map(([path, entry]) => ({ ...entry, path })));
  const sent = await (await send("PUT", `datasets/${dataset}/content/manifests`, { ...options, body: stored })).json();
  if (sent.lacking) throw new Refused(409, { detail: say("upload_lacking", { count: sent.lacking }) });
  const version = { manifest: sent.manifest, parent: state.latest, message: form.elements.message.value };
  const made = await sendJson("POST", `datasets/${dataset}/versions`, version, options);
  if (made.number !== state.latest) return `${form.dataset.files}?version=${made.number}`;
  progress.fail(say("upload_unchanged", { version: made.number }));
  return "";
}

function pathOf(file) {
  try {
    return bytePath(pathBelow(file));
  } catch {
    throw new Unreadable(file);
  }
}

async function manifestOf(version, options) {
  const stored = await (await send("GET", `versions/${version}/manifest`, options)).arrayBuffer();
  return new Map((await decode(stored)).map((entry) => [entry.path, entry]));
}

/** Yield runs of small files that fit into one pack, and large files alone. */
function* batches(entries) {
  let batch = [], size = 0;
  for (const entry of entries) {
    if (entry.size > CONTENT_MOST_BYTES) { yield [entry]; continue; }
    if (batch.length === BATCH_FILES || size + entry.size > PACK_BYTES) { yield batch; batch = []; size = 0; }
    batch.push(entry);
    size += entry.size;
  }
  if (batch.length) yield batch;
}

async function sendBatch(batch, options) {
  for (let attempt = 1; ; attempt++) {
    for (const entry of batch) entry.digest = await digestOf(entry.file, options.signal);
    const lacking = await lackingOf(batch, options);
    try {
      if (batch[0].size > CONTENT_MOST_BYTES) { for (const entry of lacking) await sendParts(entry, options); }
      else if (lacking.length) await sendPack(lacking, options);
      progress.sent(batch);
      return;
    } catch (error) {
      // It changed after it was hashed; hash it again.
      if (!["bad_pack", "content_damaged"].includes(error.code)) throw error;
      if (attempt === TRIES_OF_A_FILE) throw new Unreadable(lacking[0].file);
      for (const entry of batch) digests.delete(entry.file);
    }
  }
}

async function digestOf(file, signal) {
  if (digests.has(file)) return digests.get(file);
  try {
    const digest = await sha256(file, signal, (bytes) => progress.read(bytes));
    digests.set(file, digest);
    return digest;
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Unreadable(file);
  }
}

async function lackingOf(batch, options) {
  const unique = [...new Map(batch.map((entry) => [hex(entry.digest), entry])).values()];
  const body = new Blob(unique.map((entry) => entry.digest));
  const { lacking } = await (await send("POST", `datasets/${dataset}/content/lacking`, { ...options, body })).json();
  return lacking.map((place) => unique[place]);
}

async function sendPack(entries, options) {
  const body = new Blob([...entries.map((entry) => entry.file), packIndex(entries)]);
  await send("PUT", `datasets/${dataset}/content/packs`, { ...options, body });
}

async function sendParts(entry, options) {
  const path = `datasets/${dataset}/content/parts/${hex(entry.digest)}`;
  let { size_bytes: at } = await sendJson("GET", path, undefined, options);
  do {
    const body = entry.file.slice(at, at + PART_BYTES);
    const answer = await send("PUT", `${path}?offset=${at}&size=${entry.size}`, { ...options, body });
    at = (await answer.json()).size_bytes;
    progress.part(at);
  } while (at < entry.size);
}
