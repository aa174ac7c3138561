// Calls of the service: JSON, problem documents, pages, the API key, and streams of events.

const KEY = "backpass-key";  // of sessionStorage: forgotten with the tab

export class Problem extends Error {
  // status: 0 if the service did not answer. document: the problem document.
  constructor(status, document) {
    super(document.detail || document.title || `status ${status}`);
    this.status = status;
    this.document = document;
    this.errors = document.errors || [];
  }
}

let askForKey = async () => false, asking = null;
export const onUnauthorized = (act) => { askForKey = act; };
export const storedKey = () => sessionStorage.getItem(KEY) || "";
export const storeKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

function urlOf(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") url.searchParams.append(name, each);
    }
  }
  return url;
}

async function sent(method, path, { query, body, headers = {}, signal, form } = {}) {
  const own = { ...headers };
  if (storedKey()) own.Authorization = `Bearer ${storedKey()}`;
  if (body !== undefined && !form) {
    own["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  } else if (form) {
    own["Content-Type"] = form;
  }
  try {
    return await fetch(urlOf(path, query), { method, headers: own, body, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No answer", detail: "the service cannot be reached" });
  }
}

// The Response of a call. After a 401 it asks for a key and sends the call again. Throws Problem.
export async function call(method, path, options = {}) {
  let answer = await sent(method, path, options);
  while (answer.status === 401) {
    asking ||= Promise.resolve(askForKey(Boolean(storedKey()))).finally(() => { asking = null; });
    if (!await asking) break;
    answer = await sent(method, path, options);
  }
  if (answer.ok || answer.status === 304) return answer;
  let told = { title: answer.statusText, status: answer.status };
  try { told = await answer.json(); } catch { /* not a problem document: the status says all */ }
  throw new Problem(answer.status, told);
}

// The JSON of the answer; null for an answer without content.
export async function json(method, path, options) {
  const answer = await call(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

export const get = (path, query, options) => json("GET", path, { query, ...options });
export const post = (path, body, options) => json("POST", path, { body, ...options });

// As `get`; null if the service has no such route, or the key may not use it.
export async function optional(path, query, options) {
  try {
    return await get(path, query, options);
  } catch (error) {
    if (error instanceof Problem && [403, 404, 405].includes(error.status)) return null;
    throw error;
  }
}

// All items of a list with pages, at most `limit`; null if there is no such route.
export async function listed(path, member, { query = {}, limit = 1000, ...options } = {}) {
  const found = [];
  let token = "";
  do {
    const page = await optional(path, { page_size: 200, ...query, page_token: token }, options);
    if (page === null) return null;
    found.push(...page[member]);
    token = page.next_page_token;
  } while (token && found.length < limit);
  return found;
}

// Server-sent events over fetch, which sends the key: EventSource cannot. act({ id, event, data }) for each event.
// Goes on with Last-Event-ID after a lost connection until `signal` aborts. Throws Problem if the route refuses.
export async function events(path, act, { signal, query } = {}) {
  let last = null, wait = 500;
  while (!signal.aborted) {
    const headers = { Accept: "text/event-stream", ...(last === null ? {} : { "Last-Event-ID": last }) };
    try {
      const answer = await call("GET", path, { headers, signal, query });
      if (answer.status === 204) return;  // all events were sent
      if (!(answer.headers.get("content-type") || "").startsWith("text/event-stream")) {
        throw new Problem(406, { title: "Not a stream", detail: "the service answers without a stream of events" });
      }
      wait = 500;
      for await (const each of parsed(answer.body)) {
        if (each.id !== undefined) last = each.id;
        act(each);
        if (each.event === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status !== 0 && error.status < 500 && error.status !== 429) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, 15000);
  }
}

async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", event = {};
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const lines = text.split(/\r\n|\r|\n/);
    text = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data !== undefined) yield { event: "message", ...event };
        event = {};
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;  // a comment keeps the connection alive
      const name = colon < 0 ? line : line.slice(0, colon);
      const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      event[name] = name === "data" && event.data !== undefined ? `${event.data}\n${content}` : content;
    }
  }
}
