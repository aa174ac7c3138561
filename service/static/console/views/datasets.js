// Datasets: the list, an upload, and one dataset with its columns and a preview.
import { call, get, json, listed, optional } from "../api.js";
import { bytes, button, card, facts, field, fill, h, link, mono, number, shape, table, when } from "../dom.js";
import { confirmed, doing, note, unavailable } from "../messages.js";

const FORMATS = {
  safetensors: "application/x-safetensors", npz: "application/x-npz", csv: "text/csv", parquet: "application/vnd.apache.parquet", jsonl: "application/x-ndjson", ndjson: "application/x-ndjson",
};

export async function show(context) {
  return context.rest[0] ? one(context, context.rest[0]) : list(context);
}

async function list({ page, title, every, signal }) {
  const place = h("div", {}), told = h("div", {});
  const first = await optional("v1/datasets", { page_size: 1 }, { signal });
  if (!first) { page.append(title("Datasets"), unavailable("Datasets")); return; }
  const file = h("input", { type: "file", required: true, accept: Object.keys(FORMATS).map((each) => `.${each}`).join() });
  const name = h("input", { maxlength: "128" });
  const draw = async () => {
    const datasets = await listed("v1/datasets", "datasets", { signal });
    fill(place, table(["Dataset", "Name", ["Rows", "number"], ["Size", "number"], "Stored"], datasets.map((each) => [
      link(mono(each.id), `#/datasets/${each.id}`, { class: "id" }), each.name, number(each.rows), bytes(each.size), when(each.created)]),
    { caption: "Datasets", empty: "No dataset is stored." }));
  };
  const form = h("form", { class: "row" }, field("File", file, "safetensors, NPZ, CSV with a header, Parquet or JSON lines"), field("Name", name), h("button", { class: "main" }, "Upload"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [chosen] = file.files, media = FORMATS[chosen.name.split(".").pop().toLowerCase()] || "application/octet-stream";
    doing(event.submitter, async () => {
      const made = await json("POST", "v1/datasets", { body: chosen, form: media, query: { name: name.value.trim() || chosen.name }, signal });
      note(`${number(made.rows)} rows are stored.`);
      location.hash = `#/datasets/${made.id}`;
    }, told);
  });
  page.append(title("Datasets"), card("Upload", form, told), place);
  await every(10000, draw);
}

async function one({ page, title, signal }, id) {
  const dataset = await get(`v1/datasets/${id}`, {}, { signal });
  const preview = await optional(`v1/datasets/${id}/preview`, { rows: 20 }, { signal });
  const remove = async (event) => {
    if (!await confirmed("Delete this dataset?", "Delete")) return;
    if (await doing(event.target, () => call("DELETE", `v1/datasets/${id}`, { signal }))) { note("The dataset is deleted."); location.hash = "#/datasets"; }
  };
  const statistic = (each, name) => number(each.statistics[name] ?? null);
  page.append(title(dataset.name || "Dataset", link("Submit a job", `#/jobs/new?dataset=${id}`, { class: "button main" }), button("Delete", remove, { class: "danger" })), mono(id),
    facts([["rows", number(dataset.rows)], ["size", bytes(dataset.size)], ["stored", when(dataset.created)], ["deleted", dataset.expires_at ? when(dataset.expires_at) : null]]),
    card("Columns", table(["Column", "Type of a row", "Texts", ["Lowest", "number"], ["Highest", "number"], ["Mean", "number"], ["NaN", "number"]], dataset.columns.map((each) => [
      mono(each.name), mono(shape(each)), each.vocabulary ? h("span", { class: "clip", title: each.vocabulary.slice(0, 100).join(", ") }, each.vocabulary.slice(0, 5).join(", ")) : "", statistic(each, "min"), statistic(each, "max"), statistic(each, "mean"), statistic(each, "nan")]), { caption: "Columns" })),
    preview ? card("Preview", previewTable(dataset.columns, preview)) : null);
}

function previewTable(columns, preview) {
  const names = columns.map((each) => each.name);
  const cell = (value) => {
    const text = value === null ? "not finite" : Array.isArray(value) ? JSON.stringify(value) : number(value, 5);
    return h("span", { class: "clip", title: text.length > 30 ? text.slice(0, 2000) : null }, text);
  };
  return table([["", "number"], ...names], preview.rows.map((row, i) => [h("span", { class: "muted" }, String(preview.first + i)), ...names.map((name) => cell(row[name]))]),
    { caption: "First rows", empty: "It has no rows." });
}
