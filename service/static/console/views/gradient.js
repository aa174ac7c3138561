// A gradient of a registered program, computed once from a form.
import { get, listed, post } from "../api.js";
import { card, facts, field, fill, h, link, number, select, table } from "../dom.js";
import { doing } from "../messages.js";
import { lossField } from "../program-info.js";
import { FormMistake, tensorForm } from "../tensor-form.js";
import { normOf, scalarOf, tensorTable } from "../tensors.js";

export async function show({ page, title, query, signal }) {
  const programs = await listed("v1/programs", "programs", { signal });
  if (!programs.length) {
    page.append(title("Gradient"), h("p", { class: "empty" }, "No programs are registered. ", link("Register one", "#/programs/new")));
    return;
  }
  const chosen = query.get("program") || programs[0].id;
  const pick = select(programs.map((each) => [each.id, `${each.id.slice(0, 12)}… (${each.signature.ops} ops: ${Object.keys(each.signature.op_types).slice(0, 3).join(", ")})`]), chosen);
  pick.addEventListener("change", () => { location.hash = `#/gradient?program=${pick.value}`; });
  const stored = await get(`v1/programs/${chosen}`, {}, { signal });
  const { signature } = stored;
  const loss = lossField(stored.program, query.get("loss"));
  const seed = h("input", { type: "number", min: "0", value: "0", class: "short" });
  const groups = [["feeds", "Feeds", { scale: 1, first: "random" }], ["parameters", "Parameters", { scale: 0.1, first: "random" }], ["states", "States", { first: "zeros" }]]
    .filter(([member]) => signature[member].length).map(([member, text, options]) => [member, tensorForm(text, signature[member], options)]);
  const place = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "card" }, h("div", { class: "row" }, field("Program", pick), loss.element, field("Seed of random values", seed)),
    groups.map(([, each]) => each.element), h("div", { class: "actions" }, h("button", { class: "main" }, "Compute the gradient")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    let body;
    try {
      body = { loss: loss.input.value.trim(), return_gradients: "all" };
      groups.forEach(([member, each], i) => { body[member] = each.values(Number(seed.value) + 7919 * i); });
    } catch (error) {
      if (error instanceof FormMistake) return;
      throw error;
    }
    doing(event.submitter, async () => fill(place, answered(await post(`v1/programs/${chosen}/gradients`, body, { signal }), body)), place);
  });
  page.append(title("Gradient"), h("p", {}, "Forward and backward pass of a program at the values of this form. Nothing is kept."), form, place);
}

function answered(answer, body) {
  const gradients = Object.entries(answer.gradients);
  return [
    card("Answer", facts([["loss", number(scalarOf(answer.loss), 7)], ["finite", answer.finite ? "yes" : h("span", { class: "wrong" }, "no: NaN or infinity")],
      ["time in the worker", `${number(answer.timing_ms.compute, 3)} ms`], ["compiled by this call", answer.compiled ? "yes" : "no"]]),
    table(["Parameter", ["Norm of the gradient", "number"]], [...gradients.map(([name, each]) => [name, number(normOf(each))]),
      ...Object.entries(answer.missing).map(([name, reason]) => [name, `none: ${reason}`])], { caption: "Norms of the gradients" })),
    card("Gradients", gradients.map(([name, each]) => tensorTable(name, each))),
    card("Request", h("details", {}, h("summary", {}, "JSON of the request"), h("pre", { class: "json-text", tabindex: "0" }, JSON.stringify(body).slice(0, 100000)))),
  ];
}
