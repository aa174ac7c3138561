"use strict";
// Draws the Graphviz text that the page carries.
window.addEventListener("load", async () => {
  const drawing = document.getElementById("drawing");
  const source = document.getElementById("source").textContent;
  try {
    const viz = await Viz.instance();
    drawing.replaceChildren(viz.renderSVGElement(source));
  } catch (error) {
    drawing.textContent = "The graph could not be drawn: " + error.message;
  }
});
