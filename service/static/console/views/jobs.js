// Jobs: the list, a form to submit one, and one job with live curves, events and checkpoints.
import { call, get, listed, optional, post, Problem } from "../api.js";
import { lineChart } from "../chart.js";
import { checkpointTable } from "../checkpoint-table.js";
import { badge, button, card, duration, facts, field, fill, h, link, mono, number, select, table, when } from "../dom.js";
import { follow, has, seriesOf } from "../follow.js";
import { jobRequest } from "../job-request.js";
import { confirmed, doing, note, problemBox, unavailable } from "../messages.js";
import { lossField } from "../program-info.js";

const ENDED = ["succeeded", "failed", "canceled", "aborted"];
const ACTIONS = { pause: ["queued", "running"], resume: ["paused"], cancel: ["queued", "running", "pausing", "paused"] };

export async function show(context) {
  const [id] = context.rest;
  if (id === "new") return submit(context);
  return id ? one(context, id) : list(context);
}

async function list({ page, title, every, signal }) {
  const place = h("div", {});
  page.append(title("Jobs", link("Submit a job", "#/jobs/new", { class: "button main" })), place);
  await every(3000, async () => {
    const jobs = await listed("v1/jobs", "jobs", { signal });
    if (!jobs) { fill(place, unavailable("Jobs")); return; }
    fill(place, table(["Job", "State", "Progress", ["Loss", "number"], ["Steps/s", "number"], "Dataset", "Submitted"],
      jobs.sort((a, b) => b.created - a.created).map((each) => [
        link(each.name || mono(each.id), `#/jobs/${each.id}`, { class: "id" }), [badge(each.state), waits(each)], bar(each), number(each.metrics?.loss ?? null),
        each.rate ? number(each.rate, 3) : "", link(mono(`${each.dataset_id.slice(0, 10)}…`, each.dataset_id), `#/datasets/${each.dataset_id}`), when(each.created)]),
      { caption: "Jobs", empty: "No job was submitted." }));
  });
}

function waits(job) {
  return job.waiting ? h("small", { title: `since ${new Date(job.waiting.since * 1000).toLocaleString()}` }, ` waits: ${job.waiting.detail}`) : null;
}

function bar(job) {
  return h("span", { class: "progress" }, h("progress", { max: String(job.steps || 1), value: String(job.step), "aria-label": `Progress of ${job.name || job.id}` }),
    h("small", {}, `${number(job.step)} of ${number(job.steps)}`));
}

async function one({ page, title, every, signal }, id) {
  const path = `v1/jobs/${id}`;
  let job = await get(path, {}, { signal });
  const state = h("span", { "aria-live": "polite" }), actions = h("span", { class: "actions inline" }), about = h("div", {}), told = h("div", {}), kept = h("div", {}), happened = h("div", {});
  const curves = { loss: lineChart({ title: "Loss" }), gradient_norm: lineChart({ title: "Gradient norm" }), learning_rate: lineChart({ title: "Learning rate" }) };
  const others = new Map(), place = h("div", { class: "charts" }, Object.values(curves).map((each) => each.element));
  signal.addEventListener("abort", () => [...Object.values(curves), ...others.values()].forEach((each) => each.destroy()));
  const act = (name) => async (event) => {
    if (name === "cancel" && !await confirmed("Cancel this job? Its session keeps the steps that were done.", "Cancel the job")) return;
    const answer = await doing(event.target, () => post(`${path}/${name}`, undefined, { signal }), told);
    if (answer) { job = answer; draw(); }
  };
  const remove = async (event) => {
    if (!await confirmed("Delete this job with its events and curves?", "Delete")) return;
    if (await doing(event.target, () => call("DELETE", path, { signal }), told)) { note("The job is deleted."); location.hash = "#/jobs"; }
  };
  const draw = () => {
    fill(state, badge(job.state));
    const possible = [...Object.keys(ACTIONS).filter((name) => ACTIONS[name].includes(job.state)), ENDED.includes(job.state) ? "delete" : null].filter(Boolean);
    if (actions.dataset.possible !== possible.join()) {  // kept as they are, so that the focus stays
      actions.dataset.possible = possible.join();
      fill(actions, possible.map((name) => button(name[0].toUpperCase() + name.slice(1), name === "delete" ? remove : act(name), { class: ["cancel", "delete"].includes(name) ? "danger" : null })));
    }
    const metrics = Object.entries(job.metrics || {}).map(([name, value]) => [name, number(value, 5)]);
    const validation = Object.entries(job.validation || {}).map(([name, value]) => [`validation ${name}`, number(value, 5)]);
    fill(about, bar(job), facts([["reason", job.reason], ["waits", job.waiting ? [job.waiting.detail, ", since ", when(job.waiting.since)] : null], ["epoch", number(job.epoch, 4)], ...metrics, ...validation,
      ["best", job.best ? `${number(job.best.value, 5)} at step ${number(job.best.step)}` : null],
      ["steps per second", job.rate ? number(job.rate, 3) : null], ["time left", job.eta_s === null || job.eta_s === undefined ? null : duration(Math.round(job.eta_s))],
      ["place in the queue", job.state === "queued" && job.queue_position !== null ? number(job.queue_position) : null],
      ["compute time", duration(job.compute_s)], ["rows trained on", number(job.samples)], ["batch size", number(job.batch_size)],
      ["program", link(mono(`${job.program_id.slice(0, 12)}…`, job.program_id), `#/programs/${job.program_id}`)],
      ["dataset", link(mono(`${job.dataset_id.slice(0, 12)}…`, job.dataset_id), `#/datasets/${job.dataset_id}`)],
      ["session", link(mono(`${job.session_id.slice(0, 12)}…`, job.session_id), `#/sessions/${job.session_id}`)],
      ["submitted", when(job.created)], ["started", job.started ? when(job.started) : null], ["ended", job.ended ? when(job.ended) : null]]),
    job.error ? problemBox(new Problem(422, job.error)) : null);
  };
  draw();
  page.append(title(job.name || "Job", state, actions, link("Compare", `#/compare?ids=${id}`, { class: "button" })), mono(id), told, about, place, happened, kept);
  follow(path, (columns) => {
    const known = Object.keys(columns).filter((name) => !["step", "validation"].includes(name));
    for (const name of new Set([...known, ...Object.keys(columns.validation || {}).filter((each) => each !== "step")])) {
      if (!curves[name] && !others.has(name)) {
        others.set(name, lineChart({ title: name }));
        place.append(others.get(name).element);
      }
      const series = has(columns, name) ? [seriesOf(name.replace("_", " "), columns, name)] : [];
      if (columns.validation && has(columns.validation, name)) series.push(seriesOf(`validation ${name}`, columns.validation, name));
      (curves[name] || others.get(name)).set(series);
    }
  }, signal).catch((error) => { if (error.name !== "AbortError") fill(told, problemBox(error)); });
  const refresh = async () => {
    job = await get(path, {}, { signal });
    draw();
    const [events, checkpoints] = await Promise.all([optional(`${path}/events`, { limit: 1000 }, { signal }), optional(`${path}/checkpoints`, { page_size: 200 }, { signal })]);
    if (events) fill(happened, card("Events", table([["Number", "number"], "When", "Event", "Details"], events.events.slice(-100).reverse().map((each) => [
      number(each.id), when(each.data.time), each.kind, details(each.data)]), { caption: "Events", empty: "No events yet." })));
    if (checkpoints) fill(kept, card("Checkpoints", checkpointTable(checkpoints.checkpoints)));
  };
  await every(2000, async () => { if (!ENDED.includes(job.state) || !happened.firstChild) await refresh(); });
}

function details(data) {
  return Object.entries(data).filter(([name, value]) => name !== "time" && value !== null)
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? number(value, 5) : value}`).join(", ");
}

async function submit({ page, title, query, signal }) {
  const [programs, datasets] = await Promise.all([listed("v1/programs", "programs", { signal }), listed("v1/datasets", "datasets", { signal })]);
  if (!datasets) { page.append(title("Submit a job"), unavailable("Datasets and jobs")); return; }
  if (!programs.length || !datasets.length) {
    page.append(title("Submit a job"), h("p", { class: "empty" }, "A job needs a program and a dataset. ", link("Register a program", "#/programs/new"), " ", link("Upload a dataset", "#/datasets")));
    return;
  }
  const program = query.get("program") || programs[0].id;
  const [stored, ops] = await Promise.all([get(`v1/programs/${program}`, {}, { signal }), optional("v1/ops", { family: "optimizers", page_size: 200 }, { signal })]);
  const pick = select(programs.map((each) => [each.id, `${each.id.slice(0, 12)}… (${each.signature.ops} ops)`]), program);
  const dataset = select(datasets.map((each) => [each.id, `${each.name || each.id.slice(0, 12)} (${number(each.rows)} rows)`]), query.get("dataset") || datasets[0].id);
  pick.addEventListener("change", () => { location.hash = `#/jobs/new?program=${pick.value}&dataset=${dataset.value}`; });
  const loss = lossField(stored.program, null);
  const types = (ops?.ops || []).map((op) => op.type);
  const optimizer = select(types.length ? types : ["sgd"], types.includes("adam") ? "adam" : types[0]);
  const input = (value, props = {}) => h("input", { type: "number", min: "0", step: "any", class: "short", value, ...props });
  const name = h("input", { maxlength: "128" }), rate = input("0.01", { required: true }), epochs = input("10", { min: "1", step: "1", required: true }), batch = input("32", { min: "1", step: "1" });
  const fraction = input("", { max: "0.99", placeholder: "none" }), patience = input("", { step: "1", placeholder: "none" }), seed = input("0", { step: "1" }), priority = input("5", { step: "1", max: "9" }), keep = input("", { step: "1", placeholder: "none" });
  const shuffle = h("input", { type: "checkbox", checked: true, id: "shuffle" });
  const columns = h("div", {}), place = h("div", {});
  const feeds = stored.signature.feeds.map((each) => [each.name, h("select", {})]);
  const showColumns = async () => {
    const known = (await get(`v1/datasets/${dataset.value}`, {}, { signal })).columns;
    for (const [feed, control] of feeds) fill(control, known.map((each) => h("option", { value: each.name, selected: each.name === feed }, each.name)));
    fill(columns, feeds.length ? h("fieldset", {}, h("legend", {}, "Columns of the feeds"), h("div", { class: "row" }, feeds.map(([feed, control]) => field(feed, control)))) : []);
  };
  dataset.addEventListener("change", () => showColumns().catch((error) => fill(place, problemBox(error))));
  await showColumns();
  const form = h("form", { class: "card" },
    h("div", { class: "row" }, field("Name", name), field("Program", pick), field("Dataset", dataset), loss.element), columns,
    h("div", { class: "row" }, field("Optimizer", optimizer), field("Learning rate", rate), field("Epochs", epochs), field("Batch size", batch), field("Seed", seed), field("Priority", priority, "0 to 9")),
    h("div", { class: "row" }, field("Rows kept for validation", fraction, "a part between 0 and 1"), field("Early stop after", patience, "judgements without improvement"), field("Checkpoint every", keep, "steps"),
      h("div", { class: "field" }, h("label", { for: "shuffle" }, "Shuffle"), shuffle)),
    place, h("div", { class: "actions" }, h("button", { class: "main" }, "Submit")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    doing(event.submitter, async () => {
      const body = jobRequest({
        program, dataset: dataset.value, feeds: Object.fromEntries(feeds.map(([feed, control]) => [feed, control.value])), loss: loss.input.value,
        optimizer: optimizer.value, rate: rate.value, epochs: epochs.value, batch: batch.value, seed: seed.value, priority: priority.value,
        fraction: fraction.value, patience: patience.value, keep: keep.value, shuffle: shuffle.checked, name: name.value,
      });
      const made = await post("v1/jobs", body, { signal });
      note("The job is queued.");
      location.hash = `#/jobs/${made.id}`;
    }, place);
  });
  page.append(title("Submit a job"), form);
}
