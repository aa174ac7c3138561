// Facts of a program's document that several views use.
import { h } from "./dom.js";

// Names of the variables that ops of block 0 write, last first, likely losses before the others.
export function lossCandidates(program) {
  const written = [];
  for (const op of program.blocks[0].ops) {
    for (const names of Object.values(op.outputs || {})) written.push(...(Array.isArray(names) ? names : [names]));
  }
  const unique = [...new Set(written.reverse())].filter(Boolean);
  const likely = (name) => (name === "loss" ? 2 : /loss|cost|error/i.test(name) ? 1 : 0);
  return unique.sort((a, b) => likely(b) - likely(a));
}

// A text field with the candidates as suggestions.
export function lossField(program, chosen) {
  const names = program ? lossCandidates(program) : [];
  const list = h("datalist", { id: "losses" }, names.slice(0, 200).map((name) => h("option", { value: name })));
  const input = h("input", { list: "losses", value: chosen || names[0] || "", required: true, spellcheck: "false", id: "loss" });
  return { input, element: h("div", { class: "field" }, h("label", { for: "loss" }, "Loss"), input, list) };
}

export const variablesOf = (signature) => [...signature.feeds, ...signature.parameters, ...signature.states];

export const elements = (shape) => shape.reduce((a, b) => a * Math.max(b, 1), 1);
