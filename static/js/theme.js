// Runs before the first paint, so that a dark page does not flash white. A classic script, because modules are deferred.
(function () {
  var root = document.documentElement;
  var system = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try { return localStorage.getItem("theme") || "system"; } catch { return "system"; }
  }

  function apply() {
    var choice = stored();
    root.dataset.themeChoice = choice;
    root.dataset.theme = choice === "system" ? (system.matches ? "dark" : "light") : choice;
    document.dispatchEvent(new CustomEvent("theme", { detail: root.dataset.theme }));
  }

  window.trainyardTheme = function (choice) {
    try { localStorage.setItem("theme", choice); } catch { /* private mode: the choice lasts for this page */ }
    apply();
  };
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  apply();
})();
