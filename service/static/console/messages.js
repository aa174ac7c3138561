// What the console tells: notes, dialogs, problem documents, and announcements for screen readers.
import { button, fill, freshId, h, link, mono } from "./dom.js";
import { Problem } from "./api.js";

// Announce `text` to screen readers.
export const say = (text) => { document.getElementById("said").textContent = text; };

// A note that disappears after a while.
export function note(text, kind = "good") {
  const made = h("div", { class: `note ${kind}`, role: kind === "bad" ? "alert" : "status" }, text);
  document.getElementById("notes").append(made);
  setTimeout(() => made.remove(), 6000);
}

// A modal dialog; resolves to the value of the chosen action, or null. actions: [text, value() -> any][].
export function dialog(title, content, actions) {
  const id = freshId("d");
  return new Promise((resolve) => {
    let found = null;
    const form = h("form", { method: "dialog" }, h("h2", { id }, title), content, h("div", { class: "actions" },
      actions.map(([text, value], i) => h("button", {
        class: i ? "" : "main", formnovalidate: i > 0,
        on: { click: () => { if (i || form.checkValidity()) found = value(); } },
      }, text)),
      button(actions.length ? "Cancel" : "Close", () => box.close())));
    form.addEventListener("submit", (event) => { event.preventDefault(); if (found !== null) box.close(); });
    const box = h("dialog", { "aria-labelledby": id, on: { close: () => { box.remove(); resolve(found); } } }, form);
    document.body.append(box);
    box.showModal();
  });
}

export const confirmed = (question, action) => dialog(question, [], [[action, () => true]]);

// A problem document: its sentence, and each single error with its place. jump(pointer): shows a place, if it can.
export function problemBox(problem, jump) {
  const told = problem instanceof Problem ? problem.document : { title: "Fault of the console", detail: String(problem) };
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, told.title || "Problem"), told.detail ? `: ${told.detail}` : null),
    (told.errors || []).length ? h("ul", {}, told.errors.map((each) => h("li", {},
      each.pointer || each.parameter ? [jump && each.pointer ? button(each.pointer, () => jump(each.pointer), { class: "link" })
        : mono(each.pointer || each.parameter), " "] : null,
      each.detail, each.suggestion ? ` (${each.suggestion})` : null))) : null,
    told.errors_truncated ? h("p", {}, "There are more errors.") : null,
    told.request_id ? h("p", { class: "muted" }, "Request ", mono(told.request_id)) : null);
}

// Run `act` for a button: it is disabled meanwhile, and a problem is told in `place` (by default in a note).
export async function doing(control, act, place) {
  if (control) control.disabled = true;
  if (place) fill(place);
  try {
    return await act();
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    if (!(error instanceof Problem)) console.error(error);
    if (place) fill(place, problemBox(error));
    else note(error.message, "bad");
    return undefined;
  } finally {
    if (control) control.disabled = false;
  }
}

// In place of a view or a part whose route the service does not have.
export const unavailable = (what) => h("p", { class: "empty" },
  `${what} are not available on this service, or your key may not use them. `, link("API documentation", "docs"));
