// What a job's page can reach: its own data, and (so the test says) nothing of ours.
const read = async (url, options) => {
  try {
    return (await (await fetch(url, options)).json()).path || "answered";
  } catch {
    return "refused";
  }
};
let cookies;
try {
  cookies = document.cookie;
} catch {
  cookies = "refused";
}
Promise.all([
  read("data/x"),
  read("/api/v1/whoami", { credentials: "include" }),
  read("/", { credentials: "include" }),
]).then((found) => {
  document.title = [...found, cookies, window.origin].join(" ");
});
