// What a job's page can do at home, and (so the test says) cannot do to the control plane at OWN.
const attempt = async (act) => {
  try {
    return await act();
  } catch {
    return "refused";
  }
};
const opened = (url) =>
  new Promise((resolve) => {
    const socket = new WebSocket(url);
    socket.onopen = () => socket.send("hello");
    socket.onmessage = (event) => resolve(event.data);
    socket.onerror = () => resolve("refused");
  });
const framed = (url) =>
  new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.onload = () => resolve(attempt(() => (frame.contentDocument ? "shown" : "refused")));
    frame.src = url;
    document.body.append(frame);
  });
const run = async () => {
  document.cookie = "mine=1; path=/";
  document.cookie = "yard_session=evil; path=/; domain=localhost";
  document.cookie = "yard_session=evil; path=/; domain=127.0.0.1";
  localStorage.setItem("kept", "yes");
  await navigator.serviceWorker.register("/worker.js");
  await navigator.serviceWorker.ready;
  while (!navigator.serviceWorker.controller) await new Promise((resolve) => setTimeout(resolve, 50));
  const own = { credentials: "include" };
  return {
    cookie: document.cookie,
    storage: localStorage.getItem("kept"),
    worker: await (await fetch("/from-worker")).text(),
    socket: await opened(`ws://${location.host}/echo`),
    whoami: await attempt(async () => (await fetch("OWN/api/v1/whoami", own)).text()),
    blind: await attempt(async () => (await fetch("OWN/logout", { ...own, method: "POST", mode: "no-cors" })).type),
    live: await opened("OWN/ws/live".replace("http", "ws")),
    frame: await framed("OWN/jobs"),
    sibling: await attempt(async () => (await fetch(location.origin.replace("-5555", "-8888"), own)).text()),
    siblingSocket: await opened(location.origin.replace("-5555", "-6006").replace("http", "ws")),
    origin: window.origin,
  };
};
run().then(
  (found) => (document.title = JSON.stringify(found)),
  (error) => (document.title = `failed ${error}`),
);
