// Answers one address itself, and could see every other of its origin.
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  if (new URL(event.request.url).pathname === "/from-worker") event.respondWith(new Response("worker"));
});
