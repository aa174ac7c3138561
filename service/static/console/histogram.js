// The histogram of one parameter, as a drawing with a text of the same content.
import { facts, h, number } from "./dom.js";

const WIDTH = 240, HEIGHT = 70;

export function histogramFigure(found) {
  const most = Math.max(1, ...found.counts), wide = WIDTH / Math.max(1, found.counts.length);
  const odd = [["zeros", found.zeros], ["NaN", found.nan], ["infinite", found.infinite]].filter(([, count]) => count);
  const told = found.min === null ? "no finite elements"
    : `${number(found.count)} elements from ${number(found.min)} to ${number(found.max)}, mean ${number(found.mean)}, standard deviation ${number(found.std)}`;
  return h("figure", { class: "histogram" },
    h("figcaption", {}, h("strong", { title: found.name }, found.name), " ",
      h("span", { class: "muted" }, `${found.dtype}[${found.shape.join(", ")}]${found.role === "state" ? " state" : ""}`)),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${found.name}: ${told}`, preserveAspectRatio: "none" },
      found.counts.map((count, i) => count ? h("rect", {
        x: (i * wide).toFixed(2), width: Math.max(1, wide - 0.6).toFixed(2),
        y: (HEIGHT - (count / most) * HEIGHT).toFixed(2), height: ((count / most) * HEIGHT).toFixed(2),
      }) : null)),
    h("div", { class: "ends", "aria-hidden": "true" }, h("span", {}, number(found.min)), h("span", {}, number(found.max))),
    facts([["mean", number(found.mean)], ["std", number(found.std)], ...odd.map(([name, count]) => [name, h("span", { class: name === "zeros" ? "" : "wrong" }, number(count))])]));
}
