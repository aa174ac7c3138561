// A form for the values of variables: random numbers, constants, or JSON.
import { field, freshId, h, mono, select, shape } from "./dom.js";

const MOST = 2_000_000;  // elements that a form makes; larger values belong into files
const WHOLE = /^u?int/, REAL = /^(b?float|float8)/;

export class FormMistake extends Error {
  constructor(message, control) { super(message); this.control = control; }
}

// A generator of uniform numbers in [0, 1) that repeats its numbers for equal seeds (mulberry32).
export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

function normal(random) {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

// { shape, data } of nested lists, or of one number. Throws FormMistake if the lists are ragged.
export function flattened(value, control) {
  const sizes = [];
  for (let each = value; Array.isArray(each); each = each[0]) sizes.push(each.length);
  const data = [];
  const walk = (each, depth) => {
    if (depth === sizes.length) {
      if (Array.isArray(each)) throw new FormMistake("the lists have different depths", control);
      data.push(each);
      return;
    }
    if (!Array.isArray(each) || each.length !== sizes[depth]) throw new FormMistake("the lists have different lengths", control);
    for (const inner of each) walk(inner, depth + 1);
  };
  walk(value, 0);
  return { shape: sizes, data };
}

// form: { element, values(seed) }. scale: of random numbers. open: the first value of sizes that the program leaves open.
export function tensorForm(title, variables, { scale = 1, open = 8, first = "random" } = {}) {
  const isOpen = variables.some((v) => v.shape.some((n) => n < 0));
  const size = h("input", { type: "number", min: "0", value: String(open), class: "short" });
  const rows = variables.map((v) => row(v, first, scale));
  const element = h("fieldset", { class: "tensors" }, h("legend", {}, title),
    isOpen ? field("Open sizes (?)", size) : null, rows.map((each) => each.element));
  return {
    element,
    values(seed) {
      const random = generator(seed), found = {};
      for (const each of rows) {
        const value = each.value(random, Number(size.value));
        if (value) found[each.name] = value;
      }
      return found;
    },
  };
}

function row(v, first, scale) {
  const whole = WHOLE.test(v.dtype), bool = v.dtype === "bool";
  const kinds = [["random", whole ? "random integers" : bool ? "random" : "random normal"], ["zeros", "zeros"], ["ones", "ones"], ["values", "values (JSON)"]];
  const id = freshId("t");
  const known = whole || bool || REAL.test(v.dtype);
  const kind = select(known ? kinds : kinds.slice(1), known ? first : "zeros", { "aria-label": `Kind of value of ${v.name}` });
  const amount = h("input", { type: "number", class: "short", value: whole ? "2" : String(scale), step: "any", "aria-label": whole ? `${v.name}: integers below` : `${v.name}: standard deviation` });
  const around = h("label", { class: "amount" }, whole ? "below" : "std", amount);
  const area = h("textarea", { rows: "3", spellcheck: "false", hidden: true, placeholder: "[[1, 2], [3, 4]]", "aria-label": `${v.name}: values as nested lists` });
  const told = h("p", { class: "wrong", id: `${id}w`, role: "alert" });
  const update = () => {
    area.hidden = kind.value !== "values";
    around.hidden = kind.value !== "random" || bool;
  };
  kind.addEventListener("change", update);
  update();
  const made = (random, size) => {
    if (kind.value === "values") {
      if (!area.value.trim()) throw new FormMistake(`${v.name} has no values`, area);
      let given;
      try { given = JSON.parse(area.value); } catch (error) { throw new FormMistake(`${v.name}: ${error.message}`, area); }
      const found = flattened(given, area), fixed = v.shape.every((n) => n >= 0);
      const isFlat = found.shape.length === 1 && v.shape.length !== 1;  // a flat list takes the declared shape
      return { dtype: v.dtype, shape: isFlat && fixed ? v.shape : found.shape, data: found.data };
    }
    const sizes = v.shape.map((n) => (n < 0 ? size : n)), count = sizes.reduce((a, b) => a * b, 1);
    if (count > MOST) throw new FormMistake(`${v.name} has ${count.toLocaleString("en")} elements, too many for a form`, kind);
    const value = bool ? { zeros: () => false, ones: () => true, random: () => random() < 0.5 }
      : { zeros: () => 0, ones: () => 1, random: () => (whole ? Math.floor(random() * Number(amount.value)) : Number((normal(random) * Number(amount.value)).toFixed(4))) };
    return { dtype: v.dtype, shape: sizes, data: Array.from({ length: count }, value[kind.value]) };
  };
  return {
    name: v.name,
    element: h("div", { class: "tensor" }, h("span", { class: "name" }, mono(v.name, v.name), " ", h("span", { class: "muted" }, shape(v))), kind, around, area, told),
    value(random, size) {
      told.textContent = "";
      try {
        return made(random, size);
      } catch (error) {
        if (error instanceof FormMistake) { told.textContent = error.message; error.control.focus(); }
        throw error;
      }
    },
  };
}
