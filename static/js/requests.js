// Requests to the REST API that are repeated after a broken connection or a temporary refusal.

import { csrfToken } from "./dom.js";

const TRIES = 8, LONGEST_PAUSE_SECONDS = 30;
// Codes that stay until an operator corrects a setting (FINAL of controlplane/http_client.py).
const FINAL = ["not_trusted", "no_bucket", "not_writable", "not_mounted"];

/** A refused request: `code` and `message` of the problem document. */
export class Refused extends Error {
  constructor(status, problem) {
    super((problem.errors ?? []).map((error) => error.detail).join(" ") || problem.detail || problem.title || String(status));
    this.status = status;
    this.code = problem.code ?? "";
  }
}

/** Send a request below /api/v1/ and return the response. `waits(seconds, reason)` is called before each pause, with 0
 * once it is answered; `reason` is the server's, "" without an answer. Safe for what may be repeated: all requests of an upload. */
export async function send(method, path, { body, type = "application/octet-stream", signal, waits = () => {} } = {}) {
  const headers = { "X-CSRFToken": csrfToken(), Accept: "application/json, application/octet-stream" };
  if (body !== undefined) headers["Content-Type"] = type;
  for (let attempt = 1; ; attempt++) {
    let pause = Math.min(2 ** (attempt - 1), LONGEST_PAUSE_SECONDS), reason = "";
    try {
      const response = await fetch(`/api/v1/${path}`, { method, body, headers, signal });
      if (response.ok) return response;
      const problem = await response.json().catch(() => ({}));
      // Removing old content keeps a lake busy for minutes at most.
      const passes = [429, 502, 503, 504].includes(response.status) || problem.code === "in_use";
      if (attempt === TRIES || !passes || FINAL.includes(problem.code)) throw new Refused(response.status, problem);
      reason = problem.detail ?? "";
      pause = Math.min(Number(response.headers.get("Retry-After")) || pause, LONGEST_PAUSE_SECONDS);
    } catch (error) {
      // fetch() reports a body file that has become unreadable like a network error.
      if (error instanceof Refused || signal?.aborted || attempt === TRIES) throw error;
    }
    waits(pause, reason);
    await new Promise((wake) => setTimeout(wake, 1000 * pause));
    signal?.throwIfAborted();
    waits(0);
  }
}

/** Send JSON and return the JSON of the answer. */
export async function sendJson(method, path, document, options = {}) {
  const body = document === undefined ? undefined : JSON.stringify(document);
  return (await send(method, path, { ...options, body, type: "application/json" })).json();
}
