"use strict";
// Places the nodes of a program graph. It has no reference to the browser, so that it can be tested without one.
//
// A block is a column of layers: an op stands below the ops whose outputs it reads. In block 0 the backward pass is a
// second column, and each backward op stands in the layer of the op that it helps to differentiate. A block that is
// unfolded stands inside the node of the op that runs it.

export const NODE_HEIGHT = 26, GAP_X = 18, GAP_Y = 34, PAD = 14, TITLE = 20, COLUMN_GAP = 140;
export const FEW_OPS = 150;  // programs of more ops start with folded blocks

export function textWidth(text) {
  return Math.max(46, 7 * text.length + 16);
}

// The blocks by id, the nodes by id, and the adjoints: forward node -> backward nodes.
export function index(root) {
  const blocks = new Map(), nodes = new Map(), inner = new Map(), adjoints = new Map();
  const waiting = [root];
  let ops = 0;
  while (waiting.length) {
    const block = waiting.pop();
    blocks.set(block.id, block);
    for (const node of block.nodes) {
      nodes.set(node.id, { ...node, block: block.id });
      if (isOp(node)) ops++;
      for (const of of node.of || []) adjoints.set(of, [...(adjoints.get(of) || []), node.id]);
    }
    for (const each of block.blocks) {
      inner.set(each.owner, [...(inner.get(each.owner) || []), each]);
      waiting.push(each);
    }
  }
  return { root, blocks, nodes, inner, adjoints, ops };
}

// Ids of the ops whose blocks are shown at first.
export function firstUnfolded(graph) {
  return new Set(graph.ops <= FEW_OPS ? graph.inner.keys() : []);
}

// Ids of the ops around a node, outermost first.
export function around(graph, id) {
  const found = [];
  for (let node = graph.nodes.get(id); node; ) {
    const owner = graph.blocks.get(node.block).owner;
    if (!owner) break;
    found.unshift(owner);
    node = graph.nodes.get(owner);
  }
  return found;
}

// The placed graph: nodes with x, y, width, height and depth; edges between placed nodes; the size of the whole.
export function layout(graph, unfolded) {
  const placed = new Map(), edges = [];
  const sizes = new Map();  // of nodes, inner blocks first
  const order = [graph.root];
  for (const block of order) {
    for (const node of block.nodes) if (unfolded.has(node.id)) order.push(...(graph.inner.get(node.id) || []));
  }
  const plans = new Map();
  for (const block of order.reverse()) plans.set(block.id, plan(graph, block, unfolded, sizes, plans));
  const put = [[graph.root, 0, 0, 0]];
  for (const [block, left, top, depth] of put) {
    for (const { node, x, y } of plans.get(block.id).items) {
      const { width, height } = sizes.get(node.id);
      const folds = graph.inner.has(node.id), open = folds && unfolded.has(node.id);
      placed.set(node.id, { ...graph.nodes.get(node.id), x: left + x, y: top + y, width, height, depth, folds, open });
      if (!open) continue;
      let at = left + x + PAD;
      for (const each of graph.inner.get(node.id)) {
        put.push([each, at, top + y + TITLE + PAD, depth + 1]);
        at += plans.get(each.id).width + GAP_X;
      }
    }
    for (const edge of block.edges) if (edge.variable) edges.push(edge);
  }
  const { width, height } = plans.get(graph.root.id);
  return { nodes: placed, edges, width, height };
}

function plan(graph, block, unfolded, sizes, plans) {
  for (const node of block.nodes) sizes.set(node.id, size(graph, node, unfolded, plans));
  const two = block.owner === "" && block.nodes.some((n) => n.kind === "backward");
  const right = (n) => two && (n.kind === "backward" || n.kind === "gradient");
  const layer = layers(block, two);
  const rows = [];
  for (const node of block.nodes) {
    const row = (rows[layer.get(node.id)] ||= { left: [], right: [] });
    (right(node) ? row.right : row.left).push(node);
  }
  const used = rows.filter(Boolean);
  sortLayers(block, used);
  const wide = (nodes) => nodes.reduce((sum, n) => sum + sizes.get(n.id).width + GAP_X, -GAP_X);
  const leftWidth = Math.max(0, ...used.map((r) => wide(r.left)));
  const rightWidth = Math.max(0, ...used.map((r) => Math.max(0, ...chunks(r.right).map(wide))));
  const items = [];
  let y = 0;
  for (const row of used) {
    const lines = chunks(row.right);
    const tall = (nodes) => Math.max(0, ...nodes.map((n) => sizes.get(n.id).height));
    const rightHeight = lines.reduce((sum, line) => sum + tall(line) + GAP_Y / 2, -GAP_Y / 2);
    const height = Math.max(tall(row.left), rightHeight, NODE_HEIGHT);
    line(row.left, (leftWidth - wide(row.left)) / 2, y + (height - tall(row.left)) / 2);
    let at = y + (height - Math.max(0, rightHeight)) / 2;
    for (const each of lines) {
      line(each, leftWidth + COLUMN_GAP, at);
      at += tall(each) + GAP_Y / 2;
    }
    y += height + GAP_Y;
  }
  function line(nodes, x, top) {
    for (const node of nodes) {
      items.push({ node, x, y: top });
      x += sizes.get(node.id).width + GAP_X;
    }
  }
  const width = two ? leftWidth + COLUMN_GAP + rightWidth : leftWidth;
  return { items, width: Math.max(width, 60), height: Math.max(y - GAP_Y, NODE_HEIGHT) };
}

function size(graph, node, unfolded, plans) {
  const folds = graph.inner.get(node.id) || [];
  if (!folds.length || !unfolded.has(node.id)) {
    return { width: textWidth(node.label) + (folds.length ? 18 : 0), height: NODE_HEIGHT };
  }
  const inside = folds.map((each) => plans.get(each.id));
  return {
    width: inside.reduce((sum, p) => sum + p.width + GAP_X, -GAP_X) + 2 * PAD,
    height: Math.max(...inside.map((p) => p.height)) + TITLE + 2 * PAD,
  };
}

// Four backward ops of one layer stand in one line; the pass runs upwards, so the last ones stand at the top.
function chunks(nodes) {
  const lines = [];
  for (let i = 0; i < nodes.length; i += 4) lines.unshift(nodes.slice(i, i + 4));
  return lines;
}

// The layer of each node: an op stands below its inputs, a variable that enters the block above its first reader. With
// two columns, a backward op stands in the layer of its forward op, and a gradient in that of its variable.
function layers(block, two) {
  const inputs = new Map(), first = new Map(), found = new Map();
  for (const e of block.edges) if (e.variable) inputs.set(e.to, [...(inputs.get(e.to) || []), e.from]);
  const known = (ids) => (ids || []).map((id) => found.get(id)).filter((n) => n !== undefined);
  const late = (node) => two && (node.kind === "backward" || node.kind === "gradient");
  let deepest = 0;
  for (const node of block.nodes) {  // in program order, so inputs come first
    if (late(node)) continue;
    const at = Math.max(0, ...known(inputs.get(node.id)).map((n) => n + 1));
    found.set(node.id, at);
    deepest = Math.max(deepest, at);
    for (const id of inputs.get(node.id) || []) first.set(id, Math.min(first.get(id) ?? Infinity, at));
  }
  for (const node of block.nodes) {
    if (!isOp(node) && !inputs.has(node.id) && first.has(node.id)) found.set(node.id, first.get(node.id) - 1);
  }
  for (const node of block.nodes) {
    if (!late(node)) continue;
    const of = known(node.of), before = known(inputs.get(node.id));
    found.set(node.id, of.length ? Math.max(...of) : before.length ? Math.min(...before) : deepest);
  }
  return found;
}

export function isOp(node) {
  return node.kind === "forward" || node.kind === "backward";
}

// Order each layer by the mean position of the inputs, which keeps edges short.
function sortLayers(block, rows) {
  const inputs = new Map(), position = new Map();
  for (const e of block.edges) if (e.variable) inputs.set(e.to, [...(inputs.get(e.to) || []), e.from]);
  for (const row of rows) {
    for (const side of ["left", "right"]) {
      const key = new Map(row[side].map((node, i) => {
        const at = (inputs.get(node.id) || []).map((id) => position.get(id)).filter((p) => p !== undefined);
        return [node.id, at.length ? at.reduce((a, b) => a + b, 0) / at.length : i];
      }));
      if (side === "left") row[side].sort((a, b) => key.get(a.id) - key.get(b.id));
      row[side].forEach((node, i) => position.set(node.id, i - row[side].length / 2));
    }
  }
}

// The ends of the edges between placed nodes. Edges that run up or down share the borders of their nodes evenly; an edge
// to the other column, or within a layer, ends at the sides.
export function ends(placed) {
  const found = [], into = new Map(), out = new Map();
  for (const edge of placed.edges) {
    const a = placed.nodes.get(edge.from), b = placed.nodes.get(edge.to);
    if (!a || !b) continue;
    const crossing = a.kind !== "backward" && b.kind === "backward";  // a residual, or an operand of the pass
    const up = b.y + b.height / 2 < a.y;
    const beside = crossing || (!up && b.y < a.y + a.height);
    const end = { edge, a, b, crossing, up, beside };
    found.push(end);
    if (beside) {
      const right = b.x > a.x;
      Object.assign(end, { x1: right ? a.x + a.width : a.x, x2: right ? b.x : b.x + b.width });
      Object.assign(end, { y1: a.y + a.height / 2, y2: b.y + b.height / 2 });
    } else {
      Object.assign(end, { y1: up ? a.y : a.y + a.height, y2: up ? b.y + b.height : b.y });
      for (const [table, key] of [[out, `${a.id} ${up}`], [into, `${b.id} ${up}`]]) {
        table.set(key, [...(table.get(key) || []), end]);
      }
    }
  }
  const middle = (node) => node.x + node.width / 2;
  const spread = (table, node, other, x) => {
    for (const group of table.values()) {
      group.sort((p, q) => middle(p[other]) - middle(q[other]));
      group.forEach((end, i) => { end[x] = end[node].x + (end[node].width * (i + 1)) / (group.length + 1); });
    }
  };
  spread(out, "a", "b", "x1");
  spread(into, "b", "a", "x2");
  return found;
}

// Nodes whose label, output name or type contains the text, in program order.
export function search(graph, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  return [...graph.nodes.values()]
    .filter((n) => n.label.toLowerCase().includes(wanted) || (n.outputs || []).some((o) => o.toLowerCase().includes(wanted)))
    .map((n) => n.id);
}
