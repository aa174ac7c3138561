// The graph of a program inside the console: the view of ../graph-view.js with the colours of the theme.
import { DARK, graphView, LIGHT } from "../graph-view.js";
import { button, fill, h } from "./dom.js";

export const COLOURS = {
  forward: "#dbeafe", backward: "#fee2c8", parameter: "#d1fae5", feed: "#ede9fe", state: "#cffafe", variable: "#f3f4f6",
  loss: "#fecaca", gradient: "#fde68a",
};
const LEGEND = {
  parameter: "parameter", feed: "feed", state: "state", variable: "block input", forward: "forward op", loss: "loss",
  backward: "backward op", gradient: "gradient",
};

// graph: { element, draw(data) }.
export function programGraph(signal) {
  const canvas = h("canvas", { class: "drawing", tabindex: "0", role: "application", "aria-label": "Graph of the program. Arrow keys move, plus and minus zoom, n and p go from op to op, Enter folds." });
  const parts = {
    canvas, keys: canvas, details: h("aside", { class: "details", "aria-live": "polite", "aria-label": "Selected node" }),
    found: h("output", {}), query: h("input", { type: "search", placeholder: "op, variable or type", "aria-label": "Search the graph" }),
    links: h("input", { type: "checkbox" }),
    buttons: Object.fromEntries([["in", "+", "Zoom in"], ["out", "−", "Zoom out"], ["fit", "Fit", "Show all"], ["fold", "Fold", "Fold all blocks"], ["unfold", "Unfold", "Unfold all blocks"]]
      .map(([name, text, label]) => [name, button(text, () => {}, { class: "small", "aria-label": label, title: label })])),
  };
  parts.search = h("form", { role: "search" }, parts.query, h("button", { class: "small" }, "Find"), parts.found);
  const legend = h("ul", { class: "legend" });
  const stage = h("div", { class: "stage" }, canvas, parts.details);
  const element = h("div", { class: "graph" }, h("div", { class: "graph-tools" }, parts.search, h("span", {}, Object.values(parts.buttons)),
    h("label", {}, parts.links, "link ops and adjoints")), stage, legend);
  let view = null, sized = false;
  const redraw = () => {
    if (!view) return;
    if (!sized && canvas.clientWidth) { sized = true; view.start(); }
    view.draw();
  };
  const watching = new ResizeObserver(redraw);
  watching.observe(canvas);
  document.addEventListener("themechange", redraw, { signal });
  signal.addEventListener("abort", () => watching.disconnect());
  return {
    element,
    draw(data) {
      const kinds = new Set(), waiting = [data];
      for (const block of waiting) { block.nodes.forEach((node) => kinds.add(node.kind)); waiting.push(...block.blocks); }
      fill(legend, Object.entries(LEGEND).filter(([kind]) => kinds.has(kind)).map(([kind, text]) => {
        const swatch = h("span", { class: "swatch" });
        swatch.style.background = COLOURS[kind];
        return h("li", {}, swatch, text);
      }));
      sized = false;
      view = graphView(parts, data, COLOURS, () => (document.documentElement.dataset.theme === "dark" ? DARK : LIGHT));
      redraw();
    },
  };
}
