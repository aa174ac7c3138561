// The catalogue of ops, with search.
import { get, listed } from "../api.js";
import { badge, card, facts, field, fill, h, jsonText, link, mono, select, table } from "../dom.js";

export async function show(context) {
  return context.rest[0] ? one(context, context.rest[0]) : list(context);
}

async function list({ page, title, query, signal }) {
  const search = h("input", { type: "search", value: query.get("search") || "", placeholder: "matmul, BatchNorm2d, cumulative …" });
  const place = h("div", { role: "region", "aria-label": "Ops found" }), count = h("p", { class: "muted", role: "status" });
  const first = await get("v1/ops", { page_size: 1 }, { signal });
  const family = select([["", "all families"], ...Object.entries(first.families).map(([name, n]) => [name, `${name} (${n})`])], query.get("family") || "");
  const kind = select([["", "with and without gradient"], ["true", "differentiable"], ["false", "without gradient"]], "");
  let turn = 0, timer = null;
  const draw = async () => {
    const mine = ++turn;
    const asked = { search: search.value.trim(), family: family.value, differentiable: kind.value };
    const found = await listed("v1/ops", "ops", { query: asked, signal });
    if (mine !== turn) return;
    history.replaceState(null, "", `#/ops?${new URLSearchParams(Object.entries(asked).filter(([, v]) => v))}`);
    count.textContent = `${found.length} ${found.length === 1 ? "op" : "ops"}`;
    fill(place, table(["Op", "Family", "Kind", "Gradient", "Meaning"], found.map((op) => [
      link(mono(op.type), `#/ops/${op.type}`), op.family, op.kind, op.differentiable ? "yes" : "no", prose(op.summary)]),
    { caption: "Ops", empty: "No op matches." }));
  };
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => draw().catch(() => {}), 200); });
  for (const each of [family, kind]) each.addEventListener("change", () => draw().catch(() => {}));
  page.append(title("Ops"), h("div", { class: "row" }, field("Search", search), field("Family", family), field("Gradient", kind)), count, place);
  await draw();
}

// Text with ``code`` and `code` marked.
function prose(text) {
  return text.split(/(``[^`]+``|`[^`]+`)/).map((each) => (each.startsWith("`") ? mono(each.replaceAll("`", "")) : each));
}

function typeText(schema) {
  if (schema.anyOf) return schema.anyOf.map(typeText).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const bounds = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"]].filter(([name]) => name in schema).map(([name, sign]) => `${sign} ${schema[name]}`);
  return [schema.type === "array" ? `list of ${typeText(schema.items || {})}` : schema.type || "any", ...bounds].join(" ");
}

async function one({ page, title, signal }, type) {
  const op = await get(`v1/ops/${type}`, {}, { signal });
  const attributes = Object.entries(op.attributes.properties);
  page.append(title(op.type, link("All ops", "#/ops", { class: "button" })),
    facts([["family", link(op.family, `#/ops?family=${op.family}`)], ["kind", op.kind], ["gradient", op.differentiable ? badge("differentiable") : op.no_gradient || "none"]]),
    card("Meaning", ...op.documentation.split("\n\n").map((each) => (each.startsWith("- ")
      ? h("ul", {}, each.split(/\n- |^- /).filter(Boolean).map((item) => h("li", {}, prose(item)))) : h("p", {}, prose(each))))),
    h("div", { class: "grid" },
      card("Slots", table(["Slot", "Direction", ""], [...op.inputs.map((s) => [mono(s.name), "input", [s.optional && "optional", s.variadic && "any number"].filter(Boolean).join(", ")]),
        ...op.outputs.map((s) => [mono(s.name), "output", s.variadic ? "any number" : ""])], { caption: "Slots" })),
      card("Attributes", table(["Attribute", "Type", "Default"], attributes.map(([name, schema]) => [mono(name), typeText(schema), "default" in schema ? mono(JSON.stringify(schema.default)) : op.attributes.required.includes(name) ? "required" : ""]),
        { caption: "Attributes", empty: "It has no attributes." }))),
    op.examples.length ? card("Examples", op.examples.slice(0, 5).map((each, i) => h("details", { open: i === 0 }, h("summary", {}, `Example ${i + 1}`), h("pre", { class: "json-text", tabindex: "0" }, jsonText(each))))) : null);
}
