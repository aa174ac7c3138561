// The console: navigation between views, theme, shortcuts, the API key, and the state of the service.
import { onUnauthorized, Problem, storedKey, storeKey } from "./api.js";
import { field, fill, h } from "./dom.js";
import { dialog, note, problemBox, say } from "./messages.js";

const VIEWS = [  // [path, title in the navigation, module, key after "g"]
  ["", "Overview", "overview", "o"],
  ["programs", "Programs", "programs", "p"],
  ["sessions", "Sessions", "sessions", "s"],
  ["jobs", "Jobs", "jobs", "j"],
  ["datasets", "Datasets", "datasets", "d"],
  ["compare", "Compare", "compare", "c"],
  ["gradient", "Gradient", "gradient", "g"],
  ["ops", "Ops", "ops", "a"],
  ["keys", "Keys and usage", "keys", "k"],
];
const byId = (id) => document.getElementById(id);
const main = byId("main");
let leave = null, shown = 0;

// --- views ---

function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/").map(decodeURIComponent);
  return { view, rest, query: new URLSearchParams(search || "") };
}

async function show() {
  const { view, rest, query } = place();
  const found = VIEWS.find(([path]) => path === view);
  const turn = ++shown;
  leave?.();
  const stopped = new AbortController();
  leave = () => stopped.abort();
  for (const each of byId("nav").querySelectorAll("a")) {
    if (each.dataset.path === view) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  closeMenu();
  const page = h("div", { class: "view" });
  const context = {
    page, rest, query, signal: stopped.signal,
    // The title of the view: of the document, of the page, and announced.
    title(text, ...beside) {
      document.title = `${text} · Backpass`;
      say(text);
      return h("div", { class: "title" }, h("h1", {}, text), ...beside);
    },
    // Run `act` now and then every `ms` while the view is shown and visible. Errors show once, above the page.
    every(ms, act) {
      const run = async () => {
        if (stopped.signal.aborted) return;
        try {
          if (!document.hidden) await act();
        } catch (error) {
          if (error instanceof Problem && error.status && error.status < 500) { failed(error, page, stopped); return; }
        }
        if (!stopped.signal.aborted) setTimeout(run, ms);
      };
      return run();
    },
  };
  fill(main, h("p", { class: "loading" }, "Loading…"));
  try {
    if (!found) throw new Problem(404, { title: "Not found", detail: `there is no view ${view}` });
    const module = await import(`./views/${found[2]}.js`);
    await module.show(context);
    if (turn === shown) { fill(main, page); window.scrollTo(0, 0); }
  } catch (error) {
    if (turn !== shown || error.name === "AbortError") return;
    if (!(error instanceof Problem)) console.error(error);
    document.title = "Problem · Backpass";
    fill(main, h("div", { class: "view" }, h("div", { class: "title" }, h("h1", {}, "Problem")), problemBox(error)));
  }
  main.dispatchEvent(new CustomEvent("shown"));
}

function failed(error, page, stopped) {
  if (!stopped.signal.aborted) page.prepend(problemBox(error));
}

// --- frame ---

function closeMenu() {
  document.body.classList.remove("menu");
  byId("menu").setAttribute("aria-expanded", "false");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
  document.dispatchEvent(new Event("themechange"));
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("backpass-theme", theme);
  setTheme(theme);
}

async function health() {
  try {
    const answer = await fetch(new URL("healthz/ready", document.baseURI.split("#")[0]), { cache: "no-store" });
    await answer.text();  // ends the request
    const ready = answer.status === 200;
    tellHealth(ready ? "ready" : "not ready", ready);
  } catch {
    tellHealth("no answer", false);
  }
}

function tellHealth(text, good) {
  if (byId("health").textContent === text) return;
  byId("health").className = good ? "good" : "bad";
  byId("health").textContent = text;
}

async function askForKey(refused) {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const given = await dialog(storedKey() ? "Change the API key" : "API key", [
    refused ? h("p", { class: "wrong", role: "alert" }, "The service refused this key.") : null,
    h("p", {}, "The key stays in this tab and is sent to this service only."),
    field("Key", input),
  ], [["Use key", () => input.value.trim()], ...(storedKey() ? [["Forget key", () => "\u0000"]] : [])]);
  if (!given) return false;
  storeKey(given === "\u0000" ? "" : given);
  return given !== "\u0000";
}

const SHORTCUTS = [
  ["g, then a letter", VIEWS.map(([, title, , key]) => `${key}: ${title}`).join(", ")],
  ["/", "Search or filter the view"],
  ["t", "Light or dark"],
  ["?", "This list"],
  ["Charts", "Left and right: read points. + and -: zoom. 0: all. Drag: zoom to a range. Double click: all"],
  ["Graph", "Arrows: move. + and -: zoom. 0: all. n, p: next and previous op. Enter: fold. a: adjoint. /: search"],
];

const tellShortcuts = () => dialog("Keyboard shortcuts", [
  h("dl", { class: "shortcuts" }, SHORTCUTS.map(([key, text]) => [h("dt", {}, key), h("dd", {}, text)]))], []);

let waiting = false;  // for the letter after "g"
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select, [role=application]") || document.querySelector("dialog[open]")) return;
  const found = waiting && VIEWS.find(([, , , key]) => key === event.key);
  waiting = !waiting && event.key === "g";
  if (found) location.hash = `#/${found[0]}`;
  else if (event.key === "?") tellShortcuts();
  else if (event.key === "t") switchTheme();
  else if (event.key === "/" && main.querySelector("[type=search]")) main.querySelector("[type=search]").focus();
  else return;
  event.preventDefault();
});

fill(byId("nav"), h("ul", {}, VIEWS.map(([path, title]) => h("li", {}, h("a", { href: `#/${path}`, "data-path": path }, title)))));
byId("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
byId("menu").addEventListener("click", () => {
  byId("menu").setAttribute("aria-expanded", document.body.classList.toggle("menu"));
});
byId("theme").addEventListener("click", switchTheme);
byId("shortcuts").addEventListener("click", tellShortcuts);
byId("key").addEventListener("click", async () => { if (await askForKey(false)) { note("The key is used from now on."); show(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!localStorage.getItem("backpass-theme")) setTheme(event.matches ? "dark" : "light");
});
onUnauthorized(askForKey);
setTheme(document.documentElement.dataset.theme);
window.addEventListener("hashchange", async () => { await show(); main.focus({ preventScroll: true }); });
health();
setInterval(() => document.hidden || health(), 10000);
show();
