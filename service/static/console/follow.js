// The curves of a session or a job, kept up to date: by a stream of events where there is one, else by polling.
import { events, get, Problem } from "./api.js";

const MOST = 4000;  // points to fetch at first; the service keeps peaks
const POLL_MS = 1000, REFRESH_MS = 120;

// Calls changed(columns) at first and after each change, until `signal` aborts. path: v1/sessions/<id> or v1/jobs/<id>.
// columns: { step, time, loss, gradient_norm, learning_rate, ms, ... } as lists of equal length. Those of a job have its
// validations as a second set: columns.validation.
export async function follow(path, changed, signal) {
  const source = path.startsWith("v1/jobs/") ? jobPoints(path) : sessionPoints(path);
  let asking = null, again = false, timer = null;
  const tell = () => {
    timer ||= setTimeout(() => { timer = null; if (!signal.aborted) changed(source.columns); }, REFRESH_MS);
  };
  const ask = async () => {  // one question at a time: answers that overlap would add points twice
    if (asking) { again = true; return asking; }
    asking = source.ask(signal);
    try { if (await asking) tell(); } finally { asking = null; }
    if (again) { again = false; return ask(); }
    return undefined;
  };
  await ask();
  changed(source.columns);
  const poll = async () => {
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      if (document.hidden) continue;
      try { await ask(); } catch (error) {
        if (signal.aborted || (error instanceof Problem && error.status && error.status < 500 && error.status !== 429)) return;
      }
    }
  };
  const heard = new AbortController();
  signal.addEventListener("abort", () => heard.abort());
  events(`${path}/events`, () => ask().catch(() => {}), { signal: heard.signal, query: source.query?.() }).then(() => ask().catch(() => {}), poll);
}

const EMPTY = () => ({ step: [] });

// Append the lists of `more` to those of `columns`; missing values are null. Returns whether there were any.
function append(columns, more) {
  const before = columns.step.length, count = more.step.length;
  if (!count) return false;
  for (const name of new Set([...Object.keys(columns), ...Object.keys(more)])) {
    if (name === "validation") continue;
    columns[name] ||= new Array(before).fill(null);
    for (let i = 0; i < count; i++) columns[name].push(more[name] ? more[name][i] : null);
  }
  if (columns.step.length > 3 * MOST) {  // every second point of the older half goes
    const half = columns.step.length >> 1;
    for (const name of Object.keys(columns)) if (name !== "validation") columns[name] = columns[name].filter((_, i) => i >= half || i % 2 === 0);
  }
  return true;
}

function sessionPoints(path) {
  const found = { columns: EMPTY(), query: () => ({ after: last }), ask };
  let last = 0, history = null;
  async function ask(signal) {
    let answer = await get(`${path}/metrics`, { after: last, points: MOST }, { signal });
    const isOther = history !== null && answer.history !== history;
    if (isOther && last > 0) answer = await get(`${path}/metrics`, { points: MOST }, { signal });  // numbered anew
    if (isOther) found.columns = EMPTY();
    history = answer.history;
    last = answer.recorded;
    return append(found.columns, answer.columns) || isOther;
  }
  return found;
}

function jobPoints(path) {
  const found = { columns: EMPTY(), ask };
  let next = 1;
  async function ask(signal) {
    const answer = await get(`${path}/metrics`, { first: next, points: MOST }, { signal });
    if (answer.step.length) next = answer.step[answer.step.length - 1] + 1;
    const validated = answer.validation?.step?.length > 0;
    if (validated) {
      found.columns.validation ||= EMPTY();
      append(found.columns.validation, answer.validation);
    }
    return append(found.columns, { step: answer.step, ...answer.columns }) || validated;
  }
  return found;
}

// The series of one column for a chart; xs increase because later points of an equal step replace earlier ones.
export function seriesOf(name, columns, column, x = "step") {
  const xs = [], ys = [];
  const all = columns[x] || [], values = columns[column] || [];
  for (let i = 0; i < all.length; i++) {
    while (xs.length && all[i] <= xs[xs.length - 1] && x === "step") { xs.pop(); ys.pop(); }
    xs.push(all[i]);
    ys.push(values[i] ?? null);
  }
  return { name, xs, ys };
}

export const has = (columns, column) => (columns[column] || []).some((each) => each !== null);

// Steps per second over the last points.
export function throughput(columns, points = 50) {
  const times = columns.time || [], steps = columns.step || [], last = times.length - 1, first = Math.max(0, last - points);
  return last > first && times[last] > times[first] ? (steps[last] - steps[first]) / (times[last] - times[first]) : null;
}
