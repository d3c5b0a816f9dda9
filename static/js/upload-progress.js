// Progress of an upload: a bar with figures, and a shorter sentence for screen readers at longer intervals.

import { $, say, setText } from "./dom.js";
import { duration, number, size } from "./format.js";

const SHOWN_EVERY_MS = 200, SPOKEN_EVERY_MS = 10_000;

export class Progress {
  #root; #files = 0; #bytes = 0; #filesSent = 0; #bytesSent = 0; #bytesRead = 0; #part = 0; #began = 0; #shown = 0; #spoken = 0;

  constructor(root) {
    this.#root = root;
  }

  /** Show what was chosen. */
  reset(files, bytes) {
    this.#root.hidden = true;
    $("#upload-trouble").hidden = true;
    setText($("#upload-chosen"), files ? say("upload_chosen", { files: number(files), size: size(bytes) }) : "");
  }

  begin(files, bytes) {
    [this.#files, this.#bytes, this.#filesSent, this.#bytesSent, this.#bytesRead, this.#part] = [files, bytes, 0, 0, 0, 0];
    this.#began = performance.now();
    this.#root.hidden = false;
    $("#upload-trouble").hidden = true;
    this.#show(true);
  }

  read(bytes) {
    this.#bytesRead += bytes;
    this.#show();
  }

  /** Set the number of bytes of a large file that the server has received. */
  part(bytes) {
    this.#part = bytes;
    this.#show();
  }

  sent(entries) {
    this.#filesSent += entries.length;
    for (const entry of entries) this.#bytesSent += entry.size;
    this.#part = 0;
    this.#show(this.#filesSent === this.#files);
  }

  waits(seconds, reason = "") {
    setText($("#upload-trouble"), seconds ? `${reason} ${say("upload_waits", { seconds: number(seconds) })}`.trim() : "");
    $("#upload-trouble").hidden = !seconds;
  }

  fail(text) {
    setText($("#upload-trouble"), text);
    $("#upload-trouble").hidden = false;
  }

  #show(isDue = false) {
    const now = performance.now();
    if (!isDue && now - this.#shown < SHOWN_EVERY_MS) return;
    this.#shown = now;
    const sent = this.#bytesSent + this.#part;
    const share = this.#bytes ? sent / this.#bytes : this.#filesSent / Math.max(1, this.#files);
    const bar = $("progress", this.#root);
    bar.value = share;
    const rate = sent / Math.max(0.001, (now - this.#began) / 1000);
    const slots = { done: number(this.#filesSent), files: number(this.#files), sent: size(sent), size: size(this.#bytes), rate: size(rate) };
    const left = rate ? duration((this.#bytes - sent) / rate) : "–";
    setText($("#upload-figures"), say("upload_progress", { ...slots, left }));
    if (now - this.#spoken > SPOKEN_EVERY_MS || share === 1) {
      this.#spoken = now;
      setText($("#upload-spoken"), say("upload_spoken", slots));
    }
  }
}
