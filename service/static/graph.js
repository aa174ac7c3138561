"use strict";
// The page of one graph: draws the graph that the page carries.
import { graphView } from "./graph-view.js";

const byId = (id) => document.getElementById(id);
const colours = JSON.parse(byId("colours").textContent);
const named = (...ids) => Object.fromEntries(ids.map((id) => [id, byId(id)]));
const view = graphView({
  canvas: byId("drawing"), keys: document, buttons: named("in", "out", "fit", "fold", "unfold"),
  ...named("details", "found", "query", "search", "links"),
}, JSON.parse(byId("graph").textContent), colours);

for (const key of document.querySelectorAll(".key")) key.style.background = colours[key.dataset.kind];
window.addEventListener("resize", view.draw);
