// A line chart on a canvas: zoom, reading of points, log scale, smoothing, and the same numbers as a table.
import { button, fill, freshId, h, number, table } from "./dom.js";
import { logTicks, nearest, pixels, range, smoothed, ticks } from "./scale.js";

const LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 26, HEIGHT = 220, ROWS = 50;
const colour = (element, name) => getComputedStyle(element).getPropertyValue(name).trim();

// chart: { element, set(series), destroy() }. A series is { name, xs, ys }; xs increase, null in ys is a gap.
export function lineChart({ title, x = "step", log = false, smooth = 0, digits = 4 }) {
  const canvas = h("canvas", { class: "curve", tabindex: "0", role: "application", "aria-roledescription": "line chart" });
  const reading = h("output", { class: "reading", "aria-live": "polite" });
  const legend = h("ul", { class: "legend" });
  const numbers = h("div", {});
  const logBox = h("input", { type: "checkbox", checked: log, id: freshId("c") });
  const slider = h("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: String(smooth), "aria-label": `Smoothing of ${title}` });
  const asTable = h("details", { class: "numbers", on: { toggle: () => writeTable() } }, h("summary", {}, "Numbers"), numbers);
  const id = freshId("h");
  const element = h("figure", { class: "chart card", "aria-labelledby": id },
    h("figcaption", {}, h("h2", { id }, title),
      h("span", { class: "chart-tools" },
        h("label", { for: logBox.id }, logBox, "log"), h("label", {}, "smooth", slider),
        button("All", () => zoomTo(null), { class: "small", "aria-label": `Show all of ${title}` }))),
    canvas, h("div", { class: "under" }, legend, reading), asTable);
  let series = [], zoom = null, hover = null, drag = null, waiting = false, box = null, at = null;

  const draw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; paint(); });
  };

  const shownOf = (each) => {
    const ys = smoothed(each.ys, Number(slider.value));
    if (!zoom) return { ...each, ys };
    const inside = [];
    for (let i = 0; i < each.xs.length; i++) if (each.xs[i] >= zoom[0] && each.xs[i] <= zoom[1]) inside.push(i);
    return { ...each, xs: inside.map((i) => each.xs[i]), ys: inside.map((i) => ys[i]), raw: inside.map((i) => each.ys[i]) };
  };

  function paint() {
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== HEIGHT * ratio) {
      canvas.width = Math.round(width * ratio);
      canvas.height = HEIGHT * ratio;
    }
    const paper = canvas.getContext("2d");
    paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    paper.clearRect(0, 0, width, HEIGHT);
    paper.font = "12px system-ui, sans-serif";
    const ink = colour(element, "--muted"), line = colour(element, "--line");
    const all = series.map(shownOf);
    const log = logBox.checked;
    const spanX = zoom || range(all.flatMap((each) => (each.xs.length ? [each.xs[0], each.xs[each.xs.length - 1]] : [])));
    const lows = all.map((each) => range(each.ys, log)).filter(Boolean);
    box = null;
    if (!spanX || !lows.length) {
      paper.fillStyle = ink;
      paper.textAlign = "center";
      paper.fillText(all.some((each) => each.xs.length) ? (log ? "no positive values" : "no values") : "no steps yet", width / 2, HEIGHT / 2);
      return;
    }
    const spanY = range(lows.flat(), log), pad = log ? 0 : (spanY[1] - spanY[0]) * 0.06;
    const [low, high] = log ? spanY.map(Math.log10) : [spanY[0] - pad, spanY[1] + pad];
    const right = width - RIGHT, bottom = HEIGHT - BOTTOM;
    const toX = (value) => LEFT + ((value - spanX[0]) / (spanX[1] - spanX[0])) * (right - LEFT);
    const toY = (value) => bottom - (((log ? (value > 0 ? Math.log10(value) : NaN) : value) - low) / (high - low)) * (bottom - TOP);
    const fromX = (pixel) => spanX[0] + ((pixel - LEFT) / (right - LEFT)) * (spanX[1] - spanX[0]);
    box = { toX, toY, fromX, spanX, right, bottom, all };
    paper.strokeStyle = line;
    paper.fillStyle = ink;
    paper.lineWidth = 1;
    paper.textAlign = "right";
    paper.textBaseline = "middle";
    for (const tick of log ? logTicks(spanY[0], spanY[1], 5) : ticks(low, high, 5)) {
      const y = Math.round(toY(tick)) + 0.5;
      paper.beginPath();
      paper.moveTo(LEFT, y);
      paper.lineTo(right, y);
      paper.stroke();
      paper.fillText(number(tick, 3), LEFT - 6, y);
    }
    paper.textAlign = "center";
    paper.textBaseline = "top";
    for (const tick of ticks(spanX[0], spanX[1], Math.max(2, Math.floor(width / 110)))) {
      if (Number.isInteger(tick) || x !== "step") paper.fillText(number(tick, 5), Math.min(toX(tick), right - 10), bottom + 7);
    }
    paper.save();
    paper.beginPath();
    paper.rect(LEFT, 0, right - LEFT, bottom + 2);
    paper.clip();
    all.forEach((each, i) => {
      paper.strokeStyle = paper.fillStyle = colour(element, `--series-${(i % 8) + 1}`);
      paper.setLineDash(i >= 8 ? [5, 3] : []);
      paper.lineWidth = 1.8;
      paper.lineJoin = "round";
      paper.beginPath();
      let pen = false;
      const points = pixels(each.xs, each.ys, toX, toY);
      points.forEach((point, k) => {
        if (!point) { pen = false; return; }
        if (!pen && !points[k + 1]) { paper.moveTo(point[0] + 2, point[1]); paper.arc(point[0], point[1], 2, 0, 7); }
        if (pen) paper.lineTo(point[0], point[1]);
        else paper.moveTo(point[0], point[1]);
        pen = true;
      });
      paper.stroke();
    });
    paper.restore();
    paper.setLineDash([]);
    if (drag) {
      paper.fillStyle = colour(element, "--accent");
      paper.globalAlpha = 0.15;
      paper.fillRect(Math.min(drag.from, drag.to), TOP, Math.abs(drag.to - drag.from), bottom - TOP);
      paper.globalAlpha = 1;
    } else if (hover !== null) {
      const px = toX(hover);
      paper.strokeStyle = ink;
      paper.beginPath();
      paper.moveTo(px, TOP);
      paper.lineTo(px, bottom);
      paper.stroke();
    }
  }

  // Show the numbers of the point nearest to `value` on the x axis.
  function read(value) {
    hover = null;
    at = null;
    if (value !== null && box) {
      const longest = box.all.reduce((a, b) => (b.xs.length > a.xs.length ? b : a));
      at = nearest(longest.xs, value);
      if (at >= 0) hover = longest.xs[at];
    }
    reading.textContent = hover === null ? "" : [`${x} ${number(hover)}`, ...box.all.map((each) => {
      const i = nearest(each.xs, hover);
      if (i < 0 || each.xs[i] !== hover) return null;
      return `${box.all.length > 1 ? `${each.name} ` : ""}${number(each.ys[i], digits)}`;
    }).filter(Boolean)].join("  ·  ");
    draw();
  }

  function zoomTo(span) {
    zoom = span && span[1] > span[0] ? span : null;
    read(null);
    label();
  }

  function zoomBy(factor) {
    if (!box) return;
    const [low, high] = box.spanX, middle = hover ?? (low + high) / 2;
    zoomTo([middle - (middle - low) * factor, middle + (high - middle) * factor]);
  }

  function move(by) {
    const longest = box?.all.reduce((a, b) => (b.xs.length > a.xs.length ? b : a));
    if (!longest?.xs.length) return;
    const next = Math.max(0, Math.min(longest.xs.length - 1, (at ?? (by > 0 ? -1 : longest.xs.length)) + by));
    read(longest.xs[next]);
  }

  const KEYS = {
    ArrowLeft: () => move(-1), ArrowRight: () => move(1), PageUp: () => move(-20), PageDown: () => move(20),
    Home: () => move(-1e9), End: () => move(1e9), "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2),
    0: () => zoomTo(null), Escape: () => read(null),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    KEYS[event.key]();
    event.preventDefault();
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return;  // touch scrolls the page
    drag = { from: event.offsetX, to: event.offsetX };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) { drag.to = event.offsetX; draw(); }
    else if (box) read(box.fromX(event.offsetX));
  });
  canvas.addEventListener("pointerup", () => {
    const done = drag;
    drag = null;
    if (done && box && Math.abs(done.to - done.from) > 5) zoomTo([done.from, done.to].sort((a, b) => a - b).map(box.fromX));
    else draw();
  });
  canvas.addEventListener("pointerleave", () => { if (!drag) read(null); });
  canvas.addEventListener("dblclick", () => zoomTo(null));
  logBox.addEventListener("change", draw);
  slider.addEventListener("input", draw);

  function label() {
    const told = series.filter((each) => each.xs.length).map((each) => {
      const span = range(each.ys), last = each.ys[each.ys.length - 1];
      return `${each.name}: ${each.xs.length} points${span ? `, from ${number(Math.min(...span))} to ${number(Math.max(...span))}, last ${number(last)}` : ""}`;
    });
    canvas.setAttribute("aria-label", `${title} by ${x}. ${told.join(". ") || "No points"}${zoom ? `. Zoomed to ${x} ${number(zoom[0])} to ${number(zoom[1])}` : ""}`);
    canvas.dataset.points = String(series.reduce((sum, each) => sum + each.xs.length, 0));
  }

  function writeTable() {
    if (!asTable.open) return;
    const xs = [...new Set(series.flatMap((each) => each.xs))].sort((a, b) => b - a).slice(0, ROWS);
    const maps = series.map((each) => new Map(each.xs.map((value, i) => [value, each.ys[i]])));
    fill(numbers, table([[x, "number"], ...series.map((each) => [each.name, "number"])],
      xs.map((value) => [number(value), ...maps.map((each) => (each.has(value) ? number(each.get(value), 6) : ""))]),
      { caption: `The last ${xs.length} points of ${title}`, empty: "No points yet." }));
  }

  const watching = new ResizeObserver(draw);
  watching.observe(canvas);
  document.addEventListener("themechange", draw);
  return {
    element,
    set(given) {
      series = given;
      fill(legend, series.length > 1 ? series.map((each, i) => h("li", {}, h("span", { class: `swatch series-${(i % 8) + 1}` }), each.name)) : []);
      label();
      writeTable();
      draw();
    },
    destroy() {
      watching.disconnect();
      document.removeEventListener("themechange", draw);
    },
  };
}
