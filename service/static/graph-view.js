"use strict";
// A view of a program's graph: only the visible part, on a canvas, so that large programs stay fluid.
import { around, ends, firstUnfolded, index, isOp, layout, search, TITLE } from "./graph-layout.js";

const TEXT_FROM = 0.4, TYPES_FROM = 0.75;  // scales from which labels and types can be read

export const LIGHT = {
  frame: "#ffffff", ink: "#1f2328", border: "#8a8f98", selected: "#111111", match: "#be123c", edge: "#4b6b9b",
  backward: "#c2751f", crossing: "#9aa1ac", label: "rgba(255,255,255,0.88)", text: "#3d444d",
};
export const DARK = {
  frame: "#20262e", ink: "#1f2328", border: "#8a8f98", selected: "#ffffff", match: "#ff7a90", edge: "#8fb0e0",
  backward: "#e2a45c", crossing: "#76808d", label: "rgba(24,28,34,0.88)", text: "#d3dae3",
};

// Draws `data`, the JSON form of a graph, in the elements of `parts`: canvas, details, found, query, search (the form),
// links (a checkbox), keys (the element whose keys move the view) and buttons {in, out, fit, fold, unfold}.
// colours: kind of node -> fill. palette: returns LIGHT, DARK or other colours; asked at each drawing.
export function graphView(parts, data, colours, palette = () => LIGHT) {
  const graph = index(data);
  const { canvas } = parts, paper = canvas.getContext("2d");
  let unfolded = firstUnfolded(graph), placed, selected = null, matches = [], match = -1, waiting = false, ink = palette();
  const view = { x: 0, y: 0, scale: 1 };

  function arrange() {
    placed = layout(graph, unfolded);
    placed.list = [...placed.nodes.values()].sort((a, b) => a.depth - b.depth);
    placed.ends = ends(placed);
    draw();
  }

  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; paint(); });
  }

  function paint() {
    ink = palette();
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
      canvas.width = width * ratio;
      canvas.height = height * ratio;
    }
    paper.setTransform(ratio, 0, 0, ratio, 0, 0);
    paper.clearRect(0, 0, width, height);
    paper.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, -view.x * view.scale * ratio, -view.y * view.scale * ratio);
    const seen = { left: view.x, top: view.y, right: view.x + width / view.scale, bottom: view.y + height / view.scale };
    const near = selected ? neighbours(selected) : null;
    for (const node of placed.list) if (node.open && visible(node, seen)) paintNode(node, near);
    const labels = [];
    for (const each of placed.ends) paintEdge(each, seen, near, labels);
    for (const node of placed.list) if (!node.open && visible(node, seen)) paintNode(node, near);
    paintLinks(seen);
    paintLabels(labels, seen);
  }

  function visible(node, seen) {
    return node.x < seen.right && node.x + node.width > seen.left && node.y < seen.bottom && node.y + node.height > seen.top;
  }

  function neighbours(id) {
    const found = new Set([id]);
    for (const { edge } of placed.ends) {
      if (edge.from === id) found.add(edge.to);
      if (edge.to === id) found.add(edge.from);
    }
    for (const each of partners(id)) found.add(each);
    return found;
  }

  // The adjoints of a forward op; the forward ops of a backward op.
  function partners(id) {
    return [...(graph.adjoints.get(id) || []), ...(graph.nodes.get(id).of || [])];
  }

  function paintNode(node, near) {
    const far = near && !near.has(node.id) && !node.open;
    paper.globalAlpha = far ? 0.35 : 1;
    paper.fillStyle = node.open ? ink.frame : colours[node.kind];
    paper.strokeStyle = node.id === selected ? ink.selected : matches.includes(node.id) ? ink.match : ink.border;
    paper.lineWidth = node.id === selected || matches.includes(node.id) ? 2.5 : 1;
    paper.beginPath();
    paper.roundRect(node.x, node.y, node.width, node.height, isOp(node) ? 4 : 12);
    paper.fill();
    paper.stroke();
    if (node.open) {  // the frame of an unfolded block has a title in the colour of its op
      paper.fillStyle = colours[node.kind];
      paper.fillRect(node.x + 1, node.y + 1, node.width - 2, TITLE);
    }
    if (view.scale >= TEXT_FROM || node.open) {
      paper.fillStyle = ink.ink;
      paper.font = (isOp(node) ? "" : "bold ") + "12px system-ui, sans-serif";
      paper.textAlign = "center";
      paper.textBaseline = "middle";
      const label = node.folds ? (node.open ? "\u25be " : "\u25b8 ") + node.label : node.label;
      paper.fillText(label, node.x + node.width / 2, node.y + (node.open ? TITLE / 2 + 1 : node.height / 2), node.width - 6);
    }
    paper.globalAlpha = 1;
  }

  function paintEdge({ edge, a, b, crossing, up, beside, x1, y1, x2, y2 }, seen, near, labels) {
    if (Math.max(x1, x2) < seen.left || Math.min(x1, x2) > seen.right) return;
    if (Math.max(y1, y2) < seen.top || Math.min(y1, y2) > seen.bottom) return;
    const touched = selected && (edge.from === selected || edge.to === selected);
    if (crossing && !touched && placed.ends.length > 3000 && view.scale < TEXT_FROM) return;
    const colour = crossing ? ink.crossing : a.kind === "backward" ? ink.backward : ink.edge;
    paper.globalAlpha = near && !touched ? 0.15 : crossing ? 0.45 : 0.9;
    paper.strokeStyle = touched ? ink.selected : colour;
    paper.lineWidth = touched ? 2 : 1.1;
    paper.beginPath();
    paper.moveTo(x1, y1);
    if (beside) paper.bezierCurveTo((x1 + x2) / 2, y1, (x1 + x2) / 2, y2, x2, y2);
    else paper.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
    paper.stroke();
    arrow(x2, y2, beside ? Math.sign(x2 - x1) : 0, up ? -1 : 1);
    paper.globalAlpha = 1;
    if (touched || (view.scale >= TYPES_FROM && !near && !crossing)) {
      const text = touched ? (edge.type ? `${edge.variable}: ${edge.type}` : edge.variable) : edge.type;
      const x = (x1 + x2) / 2, y = (y1 + y2) / 2;
      if (text && (!beside || touched || Math.abs(x2 - x1) > 7 * text.length)) labels.push({ text, x, y, touched });
    }
  }

  // Types and names on edges. A label that would cover another one is left out: the details of a node have them all.
  function paintLabels(labels, seen) {
    const taken = new Map(), cell = 40;  // boxes of nodes and labels, by the cells of a grid that they touch
    const take = (box) => { for (const each of cellsOf(box)) taken.set(each, [...(taken.get(each) || []), box]); };
    function cellsOf([left, top, right, bottom]) {
      const found = [];
      for (let i = Math.floor(left / cell); i <= right / cell; i++) {
        for (let j = Math.floor(top / cell); j <= bottom / cell; j++) found.push(`${i} ${j}`);
      }
      return found;
    }
    if (!labels.length) return;
    for (const n of placed.list) if (!n.open && visible(n, seen)) take([n.x, n.y, n.x + n.width, n.y + n.height]);
    paper.font = "10px system-ui, sans-serif";
    paper.textAlign = "center";
    paper.textBaseline = "middle";
    for (const { text, x, y, touched } of labels.sort((a, b) => (b.touched || 0) - (a.touched || 0))) {
      const half = paper.measureText(text).width / 2 + 2, box = [x - half, y - 6, x + half, y + 6];
      const covers = ([l, t, r, b]) => l < box[2] && r > box[0] && t < box[3] && b > box[1];
      if (cellsOf(box).some((each) => (taken.get(each) || []).some(covers)) && !touched) continue;
      take(box);
      paper.fillStyle = ink.label;
      paper.fillRect(box[0], box[1], 2 * half, 12);
      paper.fillStyle = touched ? ink.selected : ink.text;
      paper.fillText(text, x, y);
    }
  }

  function arrow(x, y, sideways, down) {
    paper.fillStyle = paper.strokeStyle;
    paper.beginPath();
    paper.moveTo(x, y);
    if (sideways) { paper.lineTo(x - 6 * sideways, y - 3); paper.lineTo(x - 6 * sideways, y + 3); }
    else { paper.lineTo(x - 3, y - 6 * down); paper.lineTo(x + 3, y - 6 * down); }
    paper.fill();
  }

  // Dashed lines between ops and their adjoints: of the selected op, or of all.
  function paintLinks(seen) {
    const all = parts.links.checked;
    paper.setLineDash([5, 4]);
    paper.strokeStyle = ink.match;
    for (const node of all ? placed.list : selected && placed.nodes.has(selected) ? [placed.nodes.get(selected)] : []) {
      for (const id of all ? node.of || [] : partners(node.id)) {
        const other = placed.nodes.get(id);
        if (!other || !(visible(node, seen) || visible(other, seen))) continue;
        const [a, b] = node.x < other.x ? [node, other] : [other, node];
        paper.lineWidth = all ? 1 : 1.8;
        paper.beginPath();
        paper.moveTo(a.x + a.width, a.y + Math.min(a.height, 26) / 2);
        paper.lineTo(b.x, b.y + Math.min(b.height, 26) / 2);
        paper.stroke();
      }
    }
    paper.setLineDash([]);
  }

  // --- moving ---

  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.min(4, Math.max(0.02, view.scale * factor));
    view.x += x / view.scale - x / scale;
    view.y += y / view.scale - y / scale;
    view.scale = scale;
    draw();
  }

  function fit() {
    const margin = 24, width = canvas.clientWidth, height = canvas.clientHeight;
    view.scale = Math.min(1.2, width / (placed.width + 2 * margin), height / (placed.height + 2 * margin));
    view.x = placed.width / 2 - width / 2 / view.scale;
    view.y = placed.height / 2 - height / 2 / view.scale;
    draw();
  }

  // At the start: everything if it can be read so, else the beginning of the program.
  function start() {
    fit();
    if (view.scale >= 0.55) return;
    view.scale = Math.max(0.55, Math.min(1, canvas.clientWidth / (placed.width + 48)));
    view.x = placed.width / 2 - canvas.clientWidth / 2 / view.scale;
    view.y = -24;
    draw();
  }

  function centre(node) {
    view.scale = Math.max(view.scale, 0.9);
    view.x = node.x + node.width / 2 - canvas.clientWidth / 2 / view.scale;
    view.y = node.y + Math.min(node.height, 60) / 2 - canvas.clientHeight / 2 / view.scale;
  }

  // --- selection, folding, search ---

  function select(id, show = true) {
    selected = id;
    if (id && !placed.nodes.has(id)) {
      for (const owner of around(graph, id)) unfolded.add(owner);
      arrange();
    }
    if (id && show) centre(placed.nodes.get(id));
    describe();
    draw();
  }

  function toggle(id) {
    if (!graph.inner.has(id)) return;
    const node = placed.nodes.get(id), x = node.x, y = node.y;
    if (!unfolded.delete(id)) unfolded.add(id);
    arrange();
    const moved = placed.nodes.get(id);  // the op stays where the reader looks at it
    view.x += moved.x - x;
    view.y += moved.y - y;
    describe();
  }

  function describe() {
    const panel = parts.details;
    panel.replaceChildren();
    if (!selected) return;
    const node = graph.nodes.get(selected);
    const add = (tag, text) => { const e = document.createElement(tag); e.textContent = text; panel.append(e); return e; };
    add("h2", node.label);
    const at = /_o(\d+)$/.exec(node.id);
    add("p", `${node.kind}${isOp(node) ? " op" : ""}, ${graph.blocks.get(node.block).label}${at ? `, op ${at[1]}` : ""}`);
    const list = (title, entries, jump) => {
      if (!entries.length) return;
      add("h3", title);
      for (const [text, id] of entries) {
        const e = add(jump ? "button" : "p", text);
        if (jump) e.addEventListener("click", () => select(id));
      }
    };
    const block = graph.blocks.get(node.block);
    const typed = (e) => (e.type ? `${e.variable}: ${e.type}` : e.variable);
    list("reads", block.edges.filter((e) => e.to === node.id && e.variable).map((e) => [typed(e), e.from]), true);
    list("writes", (node.outputs || []).map((text) => [text]), false);
    list("read by", block.edges.filter((e) => e.from === node.id && e.variable)
      .map((e) => [`${graph.nodes.get(e.to).label} (${e.variable})`, e.to]), true);
    const named = (id) => [`${graph.nodes.get(id).label}, ${graph.blocks.get(graph.nodes.get(id).block).label}`, id];
    const own = (node.of || []).map(named), back = (graph.adjoints.get(node.id) || []).map(named);
    list(node.kind === "gradient" ? "gradient of" : "adjoint of", own, true);
    list(isOp(node) ? "adjoint ops" : "gradient", back, true);
  }

  function find(text) {
    matches = search(graph, text);
    match = -1;
    nextMatch();
  }

  function nextMatch() {
    parts.found.textContent = matches.length ? "" : parts.query.value ? "nothing found" : "";
    if (!matches.length) return draw();
    match = (match + 1) % matches.length;
    parts.found.textContent = `${match + 1} of ${matches.length}`;
    select(matches[match]);
  }

  function step(by) {
    const ops = [...graph.nodes.keys()].filter((id) => placed.nodes.has(id));
    const at = ops.indexOf(selected);
    select(ops[(at + by + ops.length) % ops.length] ?? ops[0]);
  }

  function setAll(open) {
    unfolded = new Set(open ? graph.inner.keys() : []);
    selected = selected && around(graph, selected).every((id) => unfolded.has(id)) ? selected : null;
    arrange();
    describe();
    start();
  }

  // --- events ---

  function nodeAt(event) {
    const x = view.x + event.offsetX / view.scale, y = view.y + event.offsetY / view.scale;
    return [...placed.list].reverse()
      .find((n) => x >= n.x && x <= n.x + n.width && y >= n.y && y <= n.y + (n.open ? TITLE : n.height));
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    view.x -= dx / view.scale;
    view.y -= dy / view.scale;
    drag = { x: event.clientX, y: event.clientY, moved: true };
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const clicked = drag && !drag.moved;
    drag = null;
    if (clicked) select(nodeAt(event)?.id ?? null, false);
  });
  canvas.addEventListener("dblclick", (event) => { const node = nodeAt(event); if (node) toggle(node.id); });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 500), event.offsetX, event.offsetY);
  }, { passive: false });

  const far = () => 80 / view.scale;
  const KEYS = {
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fit,
    ArrowLeft: () => { view.x -= far(); }, ArrowRight: () => { view.x += far(); },
    ArrowUp: () => { view.y -= far(); }, ArrowDown: () => { view.y += far(); },
    n: () => step(1), p: () => step(-1), f: () => setAll(false), u: () => setAll(true),
    a: () => { const [id] = selected ? partners(selected) : []; if (id) select(id); },
    l: () => parts.links.click(),
    Enter: () => selected && toggle(selected), " ": () => selected && toggle(selected),
    Escape: () => { matches = []; select(null); },
  };
  parts.keys.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, button")) return;
    if (event.key === "/") {
      parts.query.focus();
    } else if (KEYS[event.key]) {
      KEYS[event.key]();
      draw();
    } else {
      return;
    }
    event.preventDefault();
  });
  parts.query.addEventListener("keydown", (event) => {
    if (event.key === "Escape") canvas.focus();
  });
  parts.search.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = parts.query.value;
    if (matches.length && matches.of === text) nextMatch();
    else { find(text); matches.of = text; }
  });
  for (const [name, act] of Object.entries({
    in: () => zoom(1.25), out: () => zoom(0.8), fit, fold: () => setAll(false), unfold: () => setAll(true),
  })) parts.buttons[name].addEventListener("click", act);
  parts.links.addEventListener("change", draw);

  arrange();
  start();
  return { draw, start, select, unfold: () => setAll(true) };
}
