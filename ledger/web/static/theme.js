// Before anything is drawn, so that a dark page does not flash white. Not a module: those wait for the document.
"use strict";
(() => {
  const themes = ["auto", "light", "dark"];
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[theme];
  };
  let theme = "auto";
  try {
    const kept = localStorage.getItem("theme");
    if (themes.includes(kept)) theme = kept;
  } catch { /* storage may be forbidden; the system's theme is good */ }
  apply(theme);
  addEventListener("DOMContentLoaded", () => {
    apply(theme);
    document.getElementById("theme")?.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      apply(theme);
      try { localStorage.setItem("theme", theme); } catch { /* then it lasts for this page */ }
    });
  });
})();
