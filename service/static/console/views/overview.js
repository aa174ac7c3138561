// The service at a glance: workers, queues, compile times, memory, limits, use.
import { get, optional } from "../api.js";
import { badge, bytes, card, duration, facts, fill, h, link, number, shortId, table } from "../dom.js";
import { quotas } from "../quotas.js";

const SIZES = /bytes/, TIMES = /deadline|lease|_s$|after|timeout/;

export async function show({ page, title, every, signal }) {
  const root = await get("v1", {}, { signal });
  const live = h("div", { class: "grid" });
  const processes = h("div", {});
  page.append(title("Overview"), live, processes, limits(root));
  await every(3000, async () => {
    const [workers, statistics, sessions, jobs] = await Promise.all([
      optional("v1/workers", {}, { signal }), optional("v1/workers/statistics", {}, { signal }),
      optional("v1/sessions", { page_size: 200 }, { signal }), optional("v1/jobs", { page_size: 200 }, { signal }),
    ]);
    const memory = new Map((statistics?.workers || []).map((each) => [each.id, each.bytes]));
    fill(live, service(root, statistics, sessions, jobs), statistics && times(statistics));
    fill(processes, workers && workersCard(workers.workers, memory));
  });
}

function service(root, statistics, sessions, jobs) {
  const count = (page, name) => (page ? link(`${page[name].length}${page.next_page_token ? "+" : ""}`, `#/${name}`) : null);
  const state = (jobs?.jobs || []).filter((each) => ["running", "queued"].includes(each.state)).length;
  const busy = (sessions?.sessions || []).filter((each) => each.state === "busy").length;
  return card("Service", facts([
    ["version", root.version],
    ["sessions", sessions && h("span", {}, count(sessions, "sessions"), busy ? `, ${busy} busy` : "")],
    ["jobs", jobs && h("span", {}, count(jobs, "jobs"), state ? `, ${state} running or queued` : "")],
    ["requests in progress", statistics && number(statistics.active_requests)],
    ["calls that wait for a worker", statistics && number(statistics.waiting_calls)],
    ["answers", statistics && Object.entries(statistics.requests).map(([status, n]) => `${number(n)} × ${status}`).join(", ")],
    ["memory of the API process", statistics && bytes(statistics.service_bytes)],
  ]));
}

function workersCard(workers, memory) {
  return card("Workers", table(
    ["Worker", "State", "Device", ["Sessions", "number"], ["Queued", "number"], ["Memory", "number"], ["Restarts", "number"], "Last fault"],
    workers.map((each) => [shortId(each.id), badge(each.state), each.device, number(each.sessions), number(each.queued),
      bytes(memory.get(each.id)), number(each.restarts), each.last_fatal || "none"]),
    { caption: "Workers" }));
}

function times(statistics) {
  const rows = [["compile", statistics.compile], ...Object.entries(statistics.phases).map(([name, each]) => [name.replace("_", " "), each])];
  const { hits, misses } = statistics.compile_cache;
  return card("Times of calls", table(["Phase", ["Calls", "number"], ["Mean", "number"], ["Median ≤", "number"], ["95 % ≤", "number"]],
    rows.map(([name, each]) => [name, number(each.count), duration(each.mean), duration(each.median), duration(each.p95)]),
    { caption: "Times of calls by phase" }),
  h("p", { class: "muted" }, hits + misses ? `${number(hits)} of ${number(hits + misses)} calls found their program compiled.` : "No program was compiled yet."));
}

// The quotas of the caller, and the limits by setting.
function limits(root) {
  const text = (name, value) => (value === null ? "none" : SIZES.test(name) ? bytes(value) : TIMES.test(name) ? duration(value) : number(value));
  const rows = Object.entries(root.limits || {}).map(([name, value]) => [name.replaceAll("_", " "), text(name, value)]);
  return h("div", { class: "grid" }, root.quotas ? quotas(root.quotas, "Your quotas") : null, card("Limits", facts(rows)));
}
