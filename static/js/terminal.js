// A terminal in a running pod, over /ws/shell/<job>: binary frames both ways, JSON text for resize and the end.

import { $, h, say, setText } from "./dom.js";

const root = $("[data-shell]");

/** xterm writes <style> elements, which our policy refuses; it gets a document whose styles are constructed sheets. */
function styledDocument() {
  const make = (name) => {
    if (name !== "style") return document.createElement(name);
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    const element = h("span", { hidden: true });
    Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
    return element;
  };
  return new Proxy(document, {
    get: (target, name) => {
      if (name === "createElement") return make;
      const value = target[name];
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}

function load(address) {
  return new Promise((resolve, reject) => {
    const script = h("script", { src: address, onload: resolve, onerror: () => reject(new Error(address)) });
    document.head.append(script);
  });
}

const theme = { background: "#0f1216", foreground: "#e8ebf0", cursor: "#7ea6ff", selectionBackground: "#2a303a" };

async function open() {
  await Promise.all([load(root.dataset.xterm), load(root.dataset.fit)]);
  const options = { documentOverride: styledDocument(), theme, fontSize: 13, scrollback: 5000,
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), screenReaderMode: true };
  const terminal = new window.Terminal(options);
  const fit = new window.FitAddon.FitAddon();
  terminal.loadAddon(fit);
  terminal.open(root);
  terminal.textarea.setAttribute("aria-describedby", "shell-leave");
  terminal.attachCustomKeyEventHandler(leave);
  fit.fit();
  const session = new Session(terminal);
  new ResizeObserver(() => { fit.fit(); session.resize(); }).observe(root);
  $("[data-shell-open]").addEventListener("click", () => session.start());
  $("[data-shell-rank]")?.addEventListener("change", () => session.start());
  session.start();
}

// Tab goes to the shell, so another key must move the focus out.
function leave(event) {
  if (event.key !== "F6" || !event.shiftKey) return true;
  if (event.type === "keydown") $("[data-copy=bash-command]").focus();
  event.preventDefault();
  return false;
}

class Session {
  constructor(terminal) {
    this.terminal = terminal;
    const encoder = new TextEncoder();
    terminal.onData((text) => this.#send(encoder.encode(text)));
    terminal.onBinary((text) => this.#send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  }

  start() {
    this.socket?.close();
    this.terminal.reset();
    this.terminal.focus(); // not when it opens: by then the user may have moved on
    const { cols, rows } = this.terminal;
    const rank = $("[data-shell-rank]")?.value ?? "0";
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/shell/${root.dataset.shell}?rank=${rank}&columns=${cols}&rows=${rows}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => tell("");
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#ended(JSON.parse(data)) : this.terminal.write(new Uint8Array(data)));
    socket.onclose = () => { if (this.socket === socket) tell($("#shell-state").textContent || say("shell_closed")); };
    this.socket = socket;
  }

  resize() {
    this.#send(JSON.stringify({ op: "resize", columns: this.terminal.cols, rows: this.terminal.rows }));
  }

  #send(data) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  #ended(frame) {
    tell(frame.op === "error" ? frame.detail : say("shell_exit", { code: frame.exit_code ?? "–" }));
  }
}

const tell = (text) => setText($("#shell-state"), text);

if (root) open();
