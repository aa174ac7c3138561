// A text area for JSON with line numbers, in which problems are marked where they are.
import { button, fill, freshId, h } from "./dom.js";
import { lineAndColumn, placeOf, places, SyntaxProblem } from "./json-place.js";

const MARKS_UP_TO = 300000;  // characters; larger texts show their problems in the list only

// editor: { element, value, parsed(), mark(errors, prefix), onInput }.
export function jsonEditor({ label, value = "", rows = 18 }) {
  const id = freshId("j");
  const area = h("textarea", { id, rows: String(rows), spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off", "aria-describedby": `${id}-list`, value });
  const behind = h("pre", { class: "behind", "aria-hidden": "true" });
  const gutter = h("pre", { class: "gutter", "aria-hidden": "true" });
  const list = h("div", { id: `${id}-list`, role: "status" });
  const element = h("div", { class: "field json" }, h("label", { for: id }, label),
    h("div", { class: "editor" }, gutter, h("div", { class: "sheet" }, behind, area)), list);
  let marks = [], timer = null;
  const api = { element, area, onInput: () => {} };

  function draw() {
    const text = area.value, lines = text.split("\n").length;
    const wrong = new Set(marks.map((each) => each.line));
    fill(gutter, ...Array.from({ length: lines }, (_, i) => h("span", { class: wrong.has(i + 1) ? "bad" : null }, `${i + 1}\n`)));
    const pieces = [];
    let at = 0;
    if (text.length <= MARKS_UP_TO) {
      for (const each of [...marks].sort((a, b) => a.start - b.start)) {
        if (each.start < at) continue;
        pieces.push(text.slice(at, each.start), h("mark", {}, text.slice(each.start, each.end) || " "));
        at = each.end;
      }
    }
    fill(behind, ...pieces, `${text.slice(at)}\n`);
    scrolled();
  }

  function scrolled() {
    behind.scrollTop = area.scrollTop;
    behind.scrollLeft = area.scrollLeft;
    gutter.scrollTop = area.scrollTop;
  }

  function jump(mark) {
    area.focus();
    area.setSelectionRange(mark.start, mark.end);
    area.scrollTop = Math.max(0, (mark.line - 4) * parseFloat(getComputedStyle(area).lineHeight));
    scrolled();
  }

  function tell(found) {
    marks = found;
    area.setAttribute("aria-invalid", String(found.length > 0));
    fill(list, found.length ? h("ul", { class: "mistakes" }, found.map((each) => h("li", {},
      button(`Line ${each.line}, column ${each.column}`, () => jump(each), { class: "link" }), `: ${each.text}`))) : []);
    draw();
  }

  const at = (start, end, text) => ({ start, end: Math.max(end, start + 1), text, ...lineAndColumn(area.value, start) });

  // The value, or undefined after marking a syntax error.
  api.parsed = () => {
    try {
      places(area.value);
      tell([]);
      return JSON.parse(area.value);
    } catch (error) {
      if (!(error instanceof SyntaxProblem)) throw error;
      tell([at(error.offset, error.offset + 1, error.message)]);
      return undefined;
    }
  };

  // Mark the errors of a problem document. prefix: the part of their pointers that leads to this text.
  api.mark = (errors, prefix = "") => {
    const found = places(area.value);
    tell(errors.map((each) => {
      const inside = (each.pointer || "").startsWith(prefix) ? each.pointer.slice(prefix.length) : "";
      const place = placeOf(found, inside), named = place.key && each.code === "unknown-member" ? place.key : [place.start, place.end];
      const end = area.value.indexOf("\n", named[0]);  // one line of a long value is enough
      return at(named[0], end < 0 ? named[1] : Math.min(named[1], end), each.detail + (each.suggestion ? ` (${each.suggestion})` : ""));
    }));
  };

  api.clear = () => tell([]);
  Object.defineProperty(api, "value", { get: () => area.value, set: (text) => { area.value = text; tell([]); } });
  area.addEventListener("scroll", scrolled);
  area.addEventListener("input", () => {
    marks = [];
    draw();
    clearTimeout(timer);
    timer = setTimeout(() => { if (area.value.trim()) api.parsed(); else tell([]); api.onInput(); }, 400);
  });
  area.addEventListener("keydown", (event) => {  // Escape lets Tab leave the field; Tab always leaves it
    if (event.key === "Escape") area.blur();
  });
  draw();
  return api;
}
