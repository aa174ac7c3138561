// Elements and the text of numbers. Text from the service only becomes text nodes, so it cannot become markup.

const SVG = new Set(["svg", "rect", "path", "line", "g"]);

// An element: h("a", { href: "#/", class: "x", on: { click } }, "text", child, [children]). null and false are no child.
export function h(tag, props = {}, ...children) {
  const made = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (["value", "checked", "disabled", "selected", "open", "htmlFor", "multiple"].includes(name)) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

// Replace the children of `element`.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

let ids = 0;
export const freshId = (prefix = "e") => `${prefix}${++ids}`;

// A label above its control, with an optional line of help.
export function field(label, control, help) {
  control.id ||= freshId("f");
  const told = help ? h("small", { id: freshId("f") }, help) : null;
  if (told) control.setAttribute("aria-describedby", told.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, told);
}

export function select(options, chosen, props = {}) {
  return h("select", props, options.map((each) => {
    const [value, text] = Array.isArray(each) ? each : [each, each];
    return h("option", { value, selected: value === chosen }, text);
  }));
}

// A table; `columns` are titles, or [title, "number"]. A row is a list of cells. empty: the text without rows.
export function table(columns, rows, { caption, empty = "Nothing here yet." } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const kinds = columns.map((each) => (Array.isArray(each) ? each[1] : null));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "Table" },
    h("table", {}, caption ? h("caption", { class: "hidden-text" }, caption) : null,
      h("thead", {}, h("tr", {}, columns.map((each, i) =>
        h("th", { scope: "col", class: kinds[i] }, Array.isArray(each) ? each[0] : each)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: kinds[i] }, cell ?? "")))))));
}

// Terms and their values, without those that are null.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

export function card(title, ...children) {
  const id = freshId("h");
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), ...children);
}

export const mono = (text, title) => h("code", { title: title || null }, text);

export const button = (text, act, props = {}) => h("button", { type: "button", ...props, on: { click: act } }, text);

export const link = (text, href, props = {}) => h("a", { href, ...props }, text);

export function badge(state) {
  const good = ["ready", "idle", "running", "succeeded", "journal", "active"], bad = ["lost", "failed", "aborted", "restarting", "expired"];
  const kind = good.includes(state) ? "good" : bad.includes(state) ? "bad" : ["busy", "pausing", "queued", "starting"].includes(state) ? "busy" : "";
  return h("span", { class: `badge ${kind}` }, state);
}

// --- text of numbers ---

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < 4; unit++) value /= 1024;
  return `${unit ? value.toFixed(value < 10 ? 1 : 0) : value} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${number(seconds * 1e6, 3)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3, 3)} ms`;
  if (seconds < 120) return `${number(seconds, 3)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

// A time in seconds since 1970, as an element with the distance from now.
export function when(seconds) {
  if (!seconds) return "–";
  const time = new Date(seconds * 1000), passed = Date.now() / 1000 - seconds;
  const text = passed < 5 && passed > -5 ? "now" : passed >= 0 ? `${duration(Math.round(passed))} ago` : `in ${duration(Math.round(-passed))}`;
  return h("time", { datetime: time.toISOString(), title: time.toLocaleString() }, text);
}

// Indented JSON in which a list of numbers or names is one line.
export const jsonText = (value) => JSON.stringify(value, null, 1).replace(/\[\n\s+([^[\]{}]*?)\n\s*\]/g, (_, inside) => `[${inside.replace(/\n\s+/g, " ")}]`);

export const shape = (type) => `${type.dtype}[${(type.shape || []).map((n) => (n < 0 ? "?" : n)).join(", ")}]`;

export const shortId = (id) => mono(id.length > 14 ? `${id.slice(0, 10)}…` : id, id);
