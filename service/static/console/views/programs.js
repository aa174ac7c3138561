// Programs: the list, registration with problems marked in place, and one program with graph, analysis and document.
import { call, get, json, listed } from "../api.js";
import { badge, bytes, button, card, facts, fill, h, jsonText, link, mono, number, shape, table, when } from "../dom.js";
import { jsonEditor } from "../json-editor.js";
import { confirmed, doing, note, problemBox } from "../messages.js";
import { programGraph } from "../program-graph.js";
import { lossField } from "../program-info.js";

const SAMPLE = {
  blocks: [{
    vars: [
      { name: "x", dtype: "float32", shape: [-1, 2], role: "feed" },
      { name: "y", dtype: "float32", shape: [-1, 1], role: "feed" },
      { name: "w", dtype: "float32", shape: [2, 1], role: "parameter" },
      { name: "b", dtype: "float32", shape: [1], role: "parameter" },
    ],
    ops: [
      { type: "matmul", inputs: { x: ["x"], y: ["w"] }, outputs: { out: ["xw"] } },
      { type: "add", inputs: { x: ["xw"], y: ["b"] }, outputs: { out: ["prediction"] } },
      { type: "mse_loss", inputs: { x: ["prediction"], y: ["y"] }, outputs: { out: ["loss"] } },
    ],
  }],
};

export async function show(context) {
  const [id] = context.rest;
  if (id === "new") return register(context);
  return id ? one(context, id) : list(context);
}

async function list({ page, title, signal }) {
  const programs = await listed("v1/programs", "programs", { signal });
  const place = h("div", {});
  const search = h("input", { type: "search", placeholder: "Filter by id, op or variable", "aria-label": "Filter programs" });
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = programs.filter((each) => !wanted || JSON.stringify([each.id, each.signature]).toLowerCase().includes(wanted));
    fill(place, table(["Program", "Feeds", "Parameters", ["Ops", "number"], ["Blocks", "number"], "Registered"], found.map((each) => [
      link(mono(each.id), `#/programs/${each.id}`, { class: "id" }), names(each.signature.feeds), names(each.signature.parameters),
      number(each.signature.ops), number(each.signature.blocks), when(each.created)]),
    { caption: "Programs", empty: wanted ? "No program matches." : "No programs are registered." }));
  };
  search.addEventListener("input", draw);
  draw();
  page.append(title("Programs", link("Register a program", "#/programs/new", { class: "button main" })), h("p", {}, search), place);
}

function names(variables) {
  const shown = variables.slice(0, 4).map((v) => v.name).join(", ");
  return h("span", { class: "clip", title: variables.map((v) => `${v.name}: ${shape(v)}`).join("\n") }, shown + (variables.length > 4 ? ` and ${variables.length - 4} more` : ""));
}

async function register({ page, title, signal }) {
  const editor = jsonEditor({ label: "Program (JSON)", value: "" });
  const place = h("div", {});
  const told = h("p", { role: "status", class: "muted" });
  let checking = null;
  const body = () => {
    const found = editor.parsed();
    if (found === undefined) return null;
    const isWhole = found && typeof found === "object" && !Array.isArray(found) && "program" in found;
    return { body: isWhole ? found : { program: found }, prefix: isWhole ? "" : "/program" };
  };
  const send = async (control, only) => {
    const given = body();
    if (!given) { editor.area.focus(); return; }
    fill(place);
    told.textContent = "";
    if (control) control.disabled = true;
    try {
      const answer = await asked(given, only);
      if (!answer) return;
      const { signature } = answer;
      if (only) told.textContent = `The program is valid: ${signature.ops} ops in ${signature.blocks} blocks, ${signature.parameters.length} parameters.`;
      else { note("The program is registered."); location.hash = `#/programs/${answer.id}`; }
    } catch (error) {
      if (error.name !== "AbortError") fill(place, problemBox(error));
    } finally {
      if (control) control.disabled = false;
    }
  };
  const asked = async (given, only) => {
    try {
      return await json("POST", "v1/programs", { body: given.body, query: only ? { validate_only: "true" } : {}, signal });
    } catch (error) {
      if (error.status === 422 && error.errors.length) {
        editor.mark(error.errors, given.prefix);
        told.textContent = `The program has ${error.errors.length} ${error.errors.length === 1 ? "mistake" : "mistakes"}${error.document.errors_truncated ? " or more" : ""}.`;
        return null;
      }
      throw error;
    }
  };
  editor.onInput = () => {
    told.textContent = "";
    clearTimeout(checking);
    if (editor.value.trim() && editor.value.length < 200000) checking = setTimeout(() => !signal.aborted && send(null, true), 600);
  };
  const file = h("input", { type: "file", accept: ".json,application/json", class: "hidden-text", id: "program-file", tabindex: "-1", "aria-hidden": "true", on: {
    change: async () => { if (file.files[0]) { editor.value = await file.files[0].text(); send(null, true); } },
  } });
  page.append(title("Register a program"), h("p", {}, "Paste a program. It is checked as you type; each mistake is marked at its place. ",
    link("The ops", "#/ops"), " have examples."),
  editor.element, told, place, h("div", { class: "actions" },
    button("Register", (event) => send(event.target, false), { class: "main" }), button("Check", (event) => send(event.target, true)),
    button("Insert an example", () => { editor.value = jsonText(SAMPLE); editor.area.focus(); }),
    button("Open a file", () => file.click()), file));
}

async function one({ page, title, query, signal }, id) {
  const stored = await get(`v1/programs/${id}`, {}, { signal });
  const { signature, program } = stored;
  const loss = lossField(program, query.get("loss"));
  loss.input.required = false;  // without a loss the graph is that of the forward pass
  const graph = h("div", {}), analysis = h("div", { class: "grid" });
  const remove = async (event) => {
    if (!await confirmed("Delete this program?", "Delete")) return;
    const done = await doing(event.target, () => call("DELETE", `v1/programs/${id}`, { signal }));
    if (done) { note("The program is deleted."); location.hash = "#/programs"; }
  };
  const ask = async (control) => {
    const chosen = { loss: loss.input.value.trim() };
    await doing(control, async () => {
      const data = await get(`v1/programs/${id}/graph`, chosen.loss ? chosen : {}, { signal });
      const drawn = programGraph(signal);
      fill(graph, drawn.element);
      drawn.draw(data);
    }, graph);
    if (chosen.loss) await doing(control, async () => fill(analysis, analysed(await get(`v1/programs/${id}/analysis`, chosen, { signal }))), analysis);
  };
  const form = h("form", { class: "row", on: { submit: (event) => { event.preventDefault(); ask(event.submitter); } } }, loss.element, h("button", {}, "Show the backward pass"));
  page.append(
    title("Program", link("Train", `#/sessions/new?program=${id}`, { class: "button main" }), link("Run a gradient", `#/gradient?program=${id}`, { class: "button" }), button("Delete", remove)),
    mono(id), facts([["ops", number(signature.ops)], ["blocks", number(signature.blocks)], ["registered", when(stored.created)]]),
    h("div", { class: "grid" }, card("Inputs", table(["Name", "Role", "Type"], [["feeds", "feed"], ["parameters", "parameter"], ["states", "state"]]
      .flatMap(([member, role]) => signature[member].map((v) => [mono(v.name), role + (role === "parameter" && !v.trainable ? ", frozen" : ""), mono(shape(v))])), { caption: "Inputs of the program" })),
    card("Ops", table(["Op", ["Number", "number"]], Object.entries(signature.op_types).sort((a, b) => b[1] - a[1]).map(([type, n]) => [link(type, `#/ops/${type}`), number(n)]), { caption: "Ops by type" }))),
    card("Graph and backward pass", form, graph), analysis,
    card("Document", h("details", {}, h("summary", {}, "JSON"), h("pre", { class: "json-text", tabindex: "0" }, jsonText(program).slice(0, 500000)))));
  ask(null);
}

function analysed(found) {
  const { memory, flops, missing, kept } = found;
  const policies = Object.entries(memory.by_loop_memory || {});
  return [
    card("Memory and work", facts([
      ["peak of a step", bytes(memory.peak)], ["parameters", bytes(memory.parameters)], ["feeds", bytes(memory.feeds)], ["states", bytes(memory.states)],
      ["kept for the backward pass", bytes(memory.kept)], ["floating-point operations", number(flops.total)],
      ["assumed trips of loops", flops.trips], ["open sizes", found.open_sizes.length ? found.open_sizes.join(", ") + " (counted as 1)" : null],
    ]), policies.length && new Set(policies.map(([, n]) => n)).size > 1 ? table(["Loop memory", ["Peak", "number"]], policies.map(([name, n]) => [name, bytes(n)]), { caption: "Peak by policy of loops" }) : null),
    card("Gradients", table(["Parameter", "Gradient"], [...Object.entries(found.ready_at || {}).map(([name, at]) => [mono(name), `final after op ${at}`]),
      ...Object.entries(missing || {}).map(([name, reason]) => [mono(name), h("span", {}, badge("none"), ` ${reason}`)])], { caption: "Gradients of the parameters" })),
    card("Values kept for the backward pass", table(["Variable", "Type", ["Size", "number"]], (kept || []).slice(0, 100).map((each) => [mono(each.variable), mono(each.type), bytes(each.bytes) + (each.each_trip ? " per trip" : "")]),
      { caption: "Values kept for the backward pass", empty: "None." })),
  ];
}
