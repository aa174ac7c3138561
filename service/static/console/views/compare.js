// Several sessions and jobs on the same charts.
import { listed, Problem } from "../api.js";
import { lineChart } from "../chart.js";
import { badge, card, fill, h, link, mono, number, select, table } from "../dom.js";
import { follow, has, seriesOf } from "../follow.js";

const MOST = 16;

export async function show({ page, title, query, signal }) {
  const [sessions, jobs] = await Promise.all([listed("v1/sessions", "sessions", { signal }), listed("v1/jobs", "jobs", { signal })]);
  const runs = [...(sessions || []).map((each) => ({ ...each, path: `v1/sessions/${each.id}`, view: `#/sessions/${each.id}` })),
    ...(jobs || []).map((each) => ({ ...each, path: `v1/jobs/${each.id}`, view: `#/jobs/${each.id}` }))];
  const chosen = new Set((query.get("ids") || "").split(",").filter((id) => runs.some((each) => each.id === id)).slice(0, MOST));
  const names = new Map(runs.map((each) => [each.id, each.name ? `${each.name} (${each.id.slice(0, 10)}…)` : `${each.id.slice(0, 12)}…`]));
  const axis = select([["step", "by step"], ["time", "by time since the first point (s)"]], "step", { "aria-label": "Horizontal axis" });
  const charts = {};
  const place = h("div", { class: "charts" }), last = h("div", {});
  const data = new Map(), following = new Map();
  signal.addEventListener("abort", () => Object.values(charts).forEach((each) => each.destroy()));
  const build = () => {
    Object.values(charts).forEach((each) => each.destroy());
    for (const [column, text] of [["loss", "Loss"], ["gradient_norm", "Gradient norm"], ["learning_rate", "Learning rate"]]) charts[column] = lineChart({ title: text, x: axis.value });
    fill(place, Object.values(charts).map((each) => each.element));
  };
  const columnsOf = (id) => {
    const columns = data.get(id) || {};
    return axis.value === "step" ? columns : { ...columns, time: (columns.time || []).map((each) => each - columns.time[0]) };
  };
  const draw = () => {
    const ids = [...chosen];
    for (const [column, chart] of Object.entries(charts)) chart.set(ids.filter((id) => has(data.get(id) || {}, column)).map((id) => seriesOf(names.get(id), columnsOf(id), column, axis.value)));
    fill(last, table(["Run", "State", ["Steps", "number"], ["Last loss", "number"], ["Lowest loss", "number"]], ids.map((id) => {
      const run = runs.find((each) => each.id === id), losses = (data.get(id)?.loss || []).filter((each) => each !== null), steps = data.get(id)?.step || [];
      return [link(mono(names.get(id), id), run.view), badge(run.state), number(steps[steps.length - 1] ?? 0), number(losses[losses.length - 1] ?? null, 5), number(losses.length ? losses.reduce((a, b) => Math.min(a, b)) : null, 5)];
    }), { caption: "Chosen runs", empty: "Choose runs above." }));
  };
  const start = (id) => {
    const stopped = new AbortController();
    signal.addEventListener("abort", () => stopped.abort());
    following.set(id, stopped);
    follow(runs.find((each) => each.id === id).path, (columns) => { data.set(id, { ...columns }); draw(); }, stopped.signal)
      .catch((error) => { if (!(error instanceof Problem) && error.name !== "AbortError") throw error; });
  };
  const toggle = (id, on) => {
    if (on) { chosen.add(id); start(id); } else { chosen.delete(id); following.get(id)?.abort(); }
    history.replaceState(null, "", `#/compare?ids=${[...chosen].join(",")}`);
    draw();
  };
  axis.addEventListener("change", () => { build(); draw(); });
  build();
  const boxes = runs.length ? h("fieldset", { class: "runs" }, h("legend", {}, "Runs"), runs.map((each) => {
    const box = h("input", { type: "checkbox", checked: chosen.has(each.id), on: { change: (event) => toggle(each.id, event.target.checked) } });
    return h("label", {}, box, h("span", { title: each.id }, names.get(each.id)), badge(each.state), h("span", { class: "muted" }, each.step !== undefined ? `step ${number(each.step)}` : ""));
  })) : h("p", { class: "empty" }, "There are no sessions or jobs yet.");
  page.append(title("Compare", axis), card("Choose", boxes), place, card("Numbers", last));
  for (const id of chosen) start(id);
  draw();
}
