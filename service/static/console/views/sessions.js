// Sessions: the list, a form to open one, and the choice of one to show.
import { get, listed, optional, post } from "../api.js";
import { checkpointTable } from "../checkpoint-table.js";
import { badge, bytes, card, fill, field, h, link, mono, number, select, table, when } from "../dom.js";
import { doing, note } from "../messages.js";
import { lossField } from "../program-info.js";
import { one } from "../session.js";

export async function show(context) {
  const [id] = context.rest;
  if (id === "new") return open(context);
  return id ? one(context, id) : list(context);
}

async function list({ page, title, every, signal }) {
  const place = h("div", {}), kept = h("div", {});
  page.append(title("Sessions", link("Open a session", "#/sessions/new", { class: "button main" })), place, kept);
  await every(4000, async () => {
    const sessions = await listed("v1/sessions", "sessions", { signal });
    fill(place, table(["Session", "State", ["Step", "number"], "Optimizer", ["Size", "number"], "Program", "Opened"], sessions.map((each) => [
      link(mono(each.name || each.id), `#/sessions/${each.id}`, { class: "id" }), badge(each.state), number(each.step), each.optimizer?.type || "",
      bytes(each.bytes), link(mono(`${each.program_id.slice(0, 10)}…`, each.program_id), `#/programs/${each.program_id}`), when(each.created)]),
    { caption: "Sessions", empty: "No session is open." }));
  });
  const checkpoints = await optional("v1/checkpoints", { page_size: 200 }, { signal });
  if (checkpoints) fill(kept, card("Checkpoints", checkpointTable(checkpoints.checkpoints)));
}

async function open({ page, title, query, signal }) {
  const checkpoint = query.get("checkpoint");
  const programs = await listed("v1/programs", "programs", { signal });
  const chosen = query.get("program") || programs[0]?.id;
  if (!chosen && !checkpoint) {
    page.append(title("Open a session"), h("p", { class: "empty" }, "No programs are registered. ", link("Register one", "#/programs/new")));
    return;
  }
  const [stored, ops] = await Promise.all([checkpoint ? null : get(`v1/programs/${chosen}`, {}, { signal }), optional("v1/ops", { family: "optimizers", page_size: 200 }, { signal })]);
  const types = (ops?.ops || []).map((op) => op.type);
  const pick = select([...new Set([chosen, ...programs.map((each) => each.id)])].map((id) => {
    const known = programs.find((each) => each.id === id);
    return [id, known ? `${id.slice(0, 12)}… (${known.signature.ops} ops: ${Object.keys(known.signature.op_types).slice(0, 3).join(", ")})` : id];
  }), chosen);
  pick.addEventListener("change", () => { location.hash = `#/sessions/new?program=${pick.value}`; });
  const loss = lossField(stored?.program, null);
  const optimizer = select(types.length ? types : ["sgd"], types.includes("adam") ? "adam" : types[0]);
  const rate = h("input", { type: "number", min: "0", step: "any", value: "0.01", class: "short", required: true });
  const seed = h("input", { type: "number", min: "0", step: "1", value: "0", class: "short" });
  const clip = h("input", { type: "number", min: "0", step: "any", class: "short", placeholder: "none" });
  const place = h("div", {});
  const form = h("form", { class: "card" },
    checkpoint ? h("p", {}, "From checkpoint ", mono(checkpoint)) : h("div", { class: "row" }, field("Program", pick), loss.element),
    checkpoint ? null : h("div", { class: "row" }, field("Optimizer", optimizer), field("Learning rate", rate), field("Clip the global norm at", clip), field("Seed", seed, "of first values and random ops")),
    place, h("div", { class: "actions" }, h("button", { class: "main" }, "Open the session")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    doing(event.submitter, async () => {
      const body = checkpoint ? { from_checkpoint: checkpoint } : {
        program_id: chosen, loss: loss.input.value.trim(), optimizer: { type: optimizer.value, learning_rate: Number(rate.value) },
        init: { seed: Number(seed.value) }, ...(clip.value ? { clip_norm: Number(clip.value) } : {}),
      };
      const made = await post("v1/sessions", body, { signal });
      note("The session is open.");
      location.hash = `#/sessions/${made.id}`;
    }, place);
  });
  page.append(title("Open a session"), form);
}
