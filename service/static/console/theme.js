"use strict";
// Sets the theme before the first paint: the stored choice, or that of the system.
{
  const chosen = localStorage.getItem("backpass-theme");
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
