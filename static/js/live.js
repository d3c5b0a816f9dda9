// The live feed: one websocket, many topics, each resumed after the last number it has seen.
//
// A subscriber gets its topic's state as {collection: {key: record}} once, then the same object again after every
// change together with what changed. Frames are API.md's: state, change, error.

import { $, say, setText } from "./dom.js";
import { absolute, clock, learnClock } from "./format.js";

const FIRST_WAIT = 500, LONGEST_WAIT = 30000; // milliseconds
const QUIET = 12000; // without a word for this long, ask; without an answer, say so
const HIDDEN = 60000; // a hidden tab disconnects after a minute

export class Feed {
  constructor(path = "/ws/live") {
    this.url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
    this.topics = new Map();
    this.wait = FIRST_WAIT;
    this.heard = 0;
    this.socket = null;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.#visibility());
    addEventListener("online", () => this.#connect());
    addEventListener("pagehide", () => { if (this.socket?.readyState === WebSocket.OPEN) this.socket.close(); });
    setInterval(() => this.#watch(), 1000);
  }

  /** Connect even without topics, so that the page shows whether the server is reachable. */
  open() { this.#connect(); }

  /** Follow a topic. `subscriber` = {state(state), change(state, frame), error(frame)}, each optional. */
  subscribe(topic, subscriber) {
    const known = this.topics.get(topic);
    if (known) {
      known.subscribers.add(subscriber);
      if (known.seq !== null) subscriber.state?.(known.state);
    } else {
      this.topics.set(topic, { subscribers: new Set([subscriber]), seq: null, state: {} });
      if (this.socket?.readyState === WebSocket.OPEN) this.#ask(topic);
      else this.#connect();
    }
    return () => this.#leave(topic, subscriber);
  }

  #leave(topic, subscriber) {
    const known = this.topics.get(topic);
    known?.subscribers.delete(subscriber);
    if (!known || known.subscribers.size) return;
    this.topics.delete(topic);
    this.#send({ op: "unsubscribe", topic });
  }

  #connect() {
    clearTimeout(this.timer);
    if (this.socket && this.socket.readyState <= WebSocket.OPEN) return;
    if (document.hidden) return;
    const socket = new WebSocket(this.url);
    this.socket = socket;
    socket.onopen = () => {
      this.heard = Date.now();
      show("live", this.heard);
      for (const topic of this.topics.keys()) this.#ask(topic);
    };
    socket.onmessage = (message) => this.#receive(JSON.parse(message.data));
    socket.onclose = (event) => { if (this.socket === socket) this.#closed(event); };
  }

  #closed(event) {
    this.socket = null;
    show("lost", this.heard);
    if (event.code === 4401) { show("lost", this.heard, say("signed_out")); return; }
    const jittered = this.wait * (0.5 + Math.random());
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT);
    this.timer = setTimeout(() => this.#connect(), jittered);
  }

  #send(frame) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(frame));
  }

  #ask(topic) { this.#send({ op: "subscribe", topic, since: this.topics.get(topic).seq }); }

  #receive(frame) {
    this.heard = Date.now();
    this.wait = FIRST_WAIT;
    if (frame.at) learnClock(frame.at);
    show("live", this.heard);
    const topic = this.topics.get(frame.topic);
    if (!topic) return;
    if (frame.type === "state") this.#whole(topic, frame);
    else if (frame.type === "change") this.#part(topic, frame);
    else if (frame.type === "error") tell(topic, "error", frame);
  }

  #whole(topic, frame) {
    topic.seq = frame.seq;
    topic.state = frame.state;
    tell(topic, "state", topic.state);
  }

  #part(topic, frame) {
    if (topic.seq !== null && frame.seq < topic.seq) return; // an older number after a resume changes nothing
    topic.seq = frame.seq;
    merge(topic.state, frame);
    tell(topic, "change", topic.state, frame);
  }

  #watch() {
    if (!this.heard || document.hidden || !this.socket) return;
    const quiet = Date.now() - this.heard;
    if (quiet > QUIET) this.#send({ op: "ping" });
    if (quiet > 2 * QUIET) show("stale", this.heard);
    if (quiet > 4 * QUIET) this.socket.close(); // half-open: only a new socket will tell
  }

  #visibility() {
    clearTimeout(this.sleeper);
    if (!document.hidden) this.#connect();
    else this.sleeper = setTimeout(() => this.socket?.close(), HIDDEN);
  }
}

const tell = (topic, verb, ...told) => { for (const subscriber of topic.subscribers) subscriber[verb]?.(...told); };

/** Apply a change frame to a state in place. */
export function merge(state, frame) {
  for (const [collection, records] of Object.entries(frame.upserts || {})) {
    state[collection] = Object.assign(state[collection] || {}, records);
  }
  for (const [collection, key] of frame.deletes || []) delete state[collection]?.[key];
}

function show(state, heard, text = null) {
  const dot = $("#live");
  if (!dot) return;
  dot.dataset.state = state;
  document.body.toggleAttribute("data-stale", state !== "live");
  const since = heard ? clock(new Date(heard).toISOString()) : "–";
  setText($("span", dot), text ?? say(`feed_${state}`, { time: since }));
  if (heard) dot.title = say("feed_heard", { time: absolute(new Date(heard).toISOString()) });
}

let shared = null;
/** The page's one feed. */
export const feed = () => (shared ??= new Feed());
