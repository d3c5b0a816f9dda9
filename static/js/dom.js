// DOM helpers. Text is inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Make an HTML element: h("a", {href: "/"}, "Overview"). */
export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

/** Make an SVG element. */
export const svg = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

/** A translated sentence from the page's word lists, with {slots} filled. */
export function say(key, slots = {}) {
  words ??= Object.assign({}, ...$$("script[id^=words]").map((list) => JSON.parse(list.textContent)));
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => slots[name] ?? "");
}
let words = null;

/** Highlight an element whose value changed. */
export function glow(node) {
  node.classList.remove("glow");
  void node.getBoundingClientRect(); // restarts the animation
  node.classList.add("glow");
  node.addEventListener("animationend", () => node.classList.remove("glow"), { once: true });
}

/** Set text only when it differs; returns whether it did. */
export function setText(node, text) {
  if (node.textContent === text) return false;
  node.textContent = text;
  return true;
}

/** Set an attribute only when it differs. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** The CSRF token for requests that change something. */
// Behind TLS the name has a prefix, without which another host of the domain could set it.
export const csrfToken = () => ["__Host-yard_csrf", "yard_csrf"]
  .map((name) => document.cookie.match(new RegExp(`(?:^|;\\s*)${name}=([^;]+)`))?.[1])
  .find(Boolean) ?? "";

/** The page at an address, null when the server refuses it. */
export async function fetchPage(address, headers = {}) {
  const response = await fetch(address, { headers: { Accept: "text/html", ...headers } });
  return response.ok ? new DOMParser().parseFromString(await response.text(), "text/html") : null;
}

/** The link that matches `selector` and that a click follows in this window, else null. */
export function followedLink(event, selector) {
  return event.ctrlKey || event.metaKey || event.shiftKey ? null : event.target.closest(selector);
}

/** Have screen readers say a text that has changed on the page. */
export function speak(text) { setText($("#spoken"), text); }

/** Show a short message in the corner; it disappears by itself. */
export function toast(text, kind = "info") {
  const node = h("div", { class: `message ${kind}`, role: "status" }, h("span", {}, text));
  $("#toasts")?.append(node);
  setTimeout(() => node.remove(), 6000);
}
