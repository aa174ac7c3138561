// One session: its curves, histograms of its parameters, memory against prediction, and actions.
import { call, get, optional, post, Problem } from "./api.js";
import { lineChart } from "./chart.js";
import { checkpointTable } from "./checkpoint-table.js";
import { badge, bytes, button, card, duration, facts, field, fill, h, link, mono, number, table, when } from "./dom.js";
import { follow, has, seriesOf, throughput } from "./follow.js";
import { histogramFigure } from "./histogram.js";
import { confirmed, dialog, doing, note, problemBox, say } from "./messages.js";
import { FormMistake, tensorForm } from "./tensor-form.js";
import { scalarOf, tensorTable } from "./tensors.js";

export async function one(context, id) {
  const { page, title, every, signal } = context;
  const path = `v1/sessions/${id}`;
  let session = await get(path, {}, { signal });
  const state = h("span", {}), about = h("div", {}), told = h("div", {});
  const curves = { loss: lineChart({ title: "Loss" }), gradient_norm: lineChart({ title: "Gradient norm" }), learning_rate: lineChart({ title: "Learning rate" }), ms: lineChart({ title: "Step time (ms)" }) };
  signal.addEventListener("abort", () => Object.values(curves).forEach((each) => each.destroy()));
  let columns = {};
  const refresh = async () => { session = await get(path, {}, { signal }); draw(); };
  const draw = () => {
    fill(state, badge(session.state));
    const rate = throughput(columns);
    fill(about, facts([
      ["step", h("span", { id: "step" }, number(session.step))], ["loss", lastOf(columns, "loss")], ["gradient norm", lastOf(columns, "gradient_norm")],
      ["steps per second", rate === null ? "–" : number(rate, 3)], ["durable until step", session.durable_step ?? null],
      ["optimizer", `${session.optimizer?.type || ""}${typeof session.optimizer?.learning_rate === "number" ? `, rate ${session.optimizer.learning_rate}` : ""}`],
      ["parameters and states", bytes(session.bytes)], ["program", link(mono(`${session.program_id.slice(0, 12)}…`, session.program_id), `#/programs/${session.program_id}`)],
      ["worker", session.worker ? mono(`${session.worker.slice(0, 10)}…`, session.worker) : null], ["durability", session.durability ?? null],
      ["opened", when(session.created)], ["idle time left", duration(session.lease_left_s)], ["reason", session.reason],
    ]));
  };
  draw();
  const actions = makeActions({ id, path, signal, told, refresh });
  const histograms = h("div", { class: "histograms" });
  const loadHistograms = (control) => doing(control, async () => {
    const found = await get(`${path}/histograms`, {}, { signal });
    fill(histograms, found.histograms.map(histogramFigure));
  }, null);
  const memory = h("div", {}), kept = h("div", {});
  page.append(
    title("Session", state, ...actions), mono(id), told, h("div", { "aria-live": "off" }, about),
    h("div", { class: "charts" }, Object.values(curves).map((each) => each.element)),
    h("div", { class: "grid" }, await workCard({ session, path, signal, refresh, columnsOf: () => columns }), memory),
    card("Parameters", button("Read again", (event) => loadHistograms(event.target), { class: "small" }), histograms), kept);
  const readable = session.state !== "lost";
  if (readable) loadHistograms(null);
  compareMemory({ session, signal, memory });
  const checkpoints = await optional(`${path}/checkpoints`, { page_size: 200 }, { signal });
  if (checkpoints) fill(kept, card("Checkpoints", checkpointTable(checkpoints.checkpoints)));
  follow(path, (found) => {
    columns = found;
    for (const [name, chart] of Object.entries(curves)) chart.set(found.step?.length && has(found, name) ? [seriesOf(name.replace("_", " "), found, name)] : []);
    draw();
  }, signal).catch((error) => { if (!(error instanceof Problem && error.status === 404) && error.name !== "AbortError") fill(told, problemBox(error)); });
  every(3000, refresh);
}

function lastOf(columns, name) {
  const values = columns[name] || [];
  for (let i = values.length - 1; i >= Math.max(0, values.length - 200); i--) if (values[i] !== null) return number(values[i], 5);
  return values.length ? "not finite or not computed" : "–";
}

function makeActions({ id, path, signal, told, refresh }) {
  const keep = async (event) => {
    const name = h("input", { maxlength: "128" });
    const given = await dialog("Keep a checkpoint", [field("Name", name, "may be empty")], [["Keep", () => ({ name: name.value.trim() })]]);
    if (!given) return;
    const made = await doing(event.target, () => post(`${path}/checkpoints`, given.name ? { name: given.name } : {}, { signal }), null);
    if (made) note(`Checkpoint ${made.id} is stored.`);
    refresh();
  };
  const fork = async (event) => {
    const made = await doing(event.target, () => post(`${path}/fork`, {}, { signal }), null);
    if (made) { note("The fork is open."); location.hash = `#/sessions/${made.id}`; }
  };
  const rate = async (event) => {
    const value = h("input", { type: "number", step: "any", min: "0", required: true });
    const given = await dialog("Change the learning rate", [field("Learning rate", value)], [["Change", () => ({ rate: Number(value.value) })]]);
    if (!given) return;
    await doing(event.target, async () => { await callJson("PATCH", path, { optimizer: { learning_rate: given.rate } }, signal); note("The learning rate is changed."); await refresh(); }, null);
  };
  const remove = async (event) => {
    if (!await confirmed("Delete this session with its parameters?", "Delete")) return;
    const done = await doing(event.target, () => call("DELETE", path, { signal }), told);
    if (done) { note("The session is deleted."); location.hash = "#/sessions"; }
  };
  return [link("Compare", `#/compare?ids=${id}`, { class: "button" }), button("Checkpoint", keep), button("Fork", fork), button("Learning rate", rate), button("Delete", remove, { class: "danger" })];
}

const callJson = async (method, path, body, signal) => (await call(method, path, { body, signal })).json();

// The form that trains and evaluates with values of the user.
async function workCard({ session, path, signal, refresh, columnsOf }) {
  let program = null;
  try { program = await get(`v1/programs/${session.program_id}`, {}, { signal }); } catch (error) { if (!(error instanceof Problem)) throw error; }
  if (!program) return card("Train", h("p", { class: "empty" }, "Its program is not registered, so there is no form of its feeds."));
  const feeds = program.signature.feeds.length ? tensorForm("Feeds", program.signature.feeds, { scale: 1 }) : null;
  const steps = h("input", { type: "number", min: "1", max: "100000", value: "20", class: "short", required: true, id: "steps" });
  const seed = h("input", { type: "number", min: "0", value: "0", class: "short" });
  const fetch = h("input", { placeholder: "loss", spellcheck: "false" });
  const stop = button("Stop", () => { going = false; }, { hidden: true });
  const place = h("div", {}), progress = h("p", { role: "status", class: "muted" });
  let going = false;
  const given = () => {
    try { return feeds ? feeds.values(Number(seed.value)) : {}; } catch (error) { if (error instanceof FormMistake) return null; throw error; }
  };
  const train = async (control) => {
    const values = given();
    if (!values) return;
    const wanted = Number(steps.value);
    going = true;
    stop.hidden = false;
    progress.textContent = "";
    let done = 0, loss = null;
    await doing(control, async () => {
      for (; done < wanted && going && !signal.aborted; done++) {
        const answer = await post(`${path}/steps`, { feeds: values, return_gradients: "norms" }, { signal });
        loss = scalarOf(answer.loss);
        if (done % 10 === 0) progress.textContent = `Step ${answer.step}, loss ${number(loss, 5)}`;
      }
    }, place);
    stop.hidden = true;
    going = false;
    if (signal.aborted) return;
    progress.textContent = `${done} ${done === 1 ? "step" : "steps"} done${loss === null ? "" : `, loss ${number(loss, 5)}`}.`;
    say(progress.textContent);
    refresh().catch(() => {});
    columnsOf();
  };
  const evaluate = (control) => {
    const values = given();
    if (!values) return;
    const names = fetch.value.split(",").map((each) => each.trim()).filter(Boolean);
    doing(control, async () => {
      const answer = await post(`${path}/evaluations`, { feeds: values, ...(names.length ? { fetch: names } : {}) }, { signal });
      fill(place, Object.entries(answer.fetched).map(([name, each]) => tensorTable(name, each)));
    }, place);
  };
  const form = h("form", {}, feeds?.element, h("div", { class: "row" }, field("Steps", steps), field("Seed of random values", seed), field("Fetch (for an evaluation)", fetch, "names with commas between them")),
    h("div", { class: "actions" }, h("button", { class: "main" }, "Train"), stop, button("Evaluate", (event) => evaluate(event.target))), progress, place);
  form.addEventListener("submit", (event) => { event.preventDefault(); train(event.submitter); });
  return card("Train and evaluate", form);
}

// The memory of the worker beside the prediction of the analysis.
async function compareMemory({ session, signal, memory }) {
  if (!session.loss) return;
  const [analysis, statistics] = await Promise.all([
    optional(`v1/programs/${session.program_id}/analysis`, { loss: session.loss }, { signal }).catch(() => null),
    optional("v1/workers/statistics", {}, { signal }).catch(() => null)]);
  if (!analysis || signal.aborted) return;
  const worker = statistics?.workers.find((each) => each.id === session.worker);
  fill(memory, card("Memory", table(["Quantity", ["Size", "number"]], [
    ["parameters and states of this session", bytes(session.bytes)],
    ["predicted: parameters", bytes(analysis.memory.parameters)],
    ["predicted: peak of a step", bytes(analysis.memory.peak)],
    ["predicted: kept for the backward pass", bytes(analysis.memory.kept)],
    ...(worker?.bytes ? [["resident memory of its worker, all sessions and code", bytes(worker.bytes)]] : []),
  ], { caption: "Memory against prediction" }),
  analysis.open_sizes.length ? h("p", { class: "muted" }, `Open sizes (${analysis.open_sizes.join(", ")}) count as 1 in the prediction.`) : null));
}
