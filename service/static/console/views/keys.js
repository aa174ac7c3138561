// Keys and usage: who is calling, the use of its tenant, and for administrators the keys, tenants and the audit log.
import { call, listed, optional, post } from "../api.js";
import { badge, button, bytes, card, duration, facts, field, fill, h, mono, number, table, when } from "../dom.js";
import { confirmed, dialog, doing, note, unavailable } from "../messages.js";
import { quotas } from "../quotas.js";

const SCOPES = ["read", "write", "admin"];

export async function show({ page, title, signal }) {
  const me = await optional("v1/me", {}, { signal });
  if (!me) { page.append(title("Keys and usage"), unavailable("Keys and usage")); return; }
  const keys = h("div", {}), log = h("div", {});
  const isAdmin = (me.scopes || []).includes("admin");
  page.append(title("Keys and usage"), h("div", { class: "grid" }, caller(me), quotas(me.quotas || {}, "Limits of the tenant")), keys);
  const usage = await optional("v1/usage", {}, { signal });
  if (usage) page.append(days(usage.usage));
  page.append(log);
  if (!isAdmin) return;
  const draw = async () => {
    const found = await listed("v1/keys", "keys", { signal });
    if (found) fill(keys, keyCard(found, draw, signal, me));
  };
  await draw();
  const audit = await optional("v1/audit", { page_size: 100 }, { signal });
  if (audit) fill(log, card("Audit log", table(["When", "Tenant", "Key", "Action", "Target", ["Status", "number"], "Request"], audit.entries.map((each) => [
    when(each.time), each.tenant, each.key ? mono(`${each.key.slice(0, 10)}…`, each.key) : "none", each.action, each.target ? h("code", { class: "long" }, each.target) : "", String(each.status), each.request_id ? mono(`${each.request_id.slice(0, 10)}…`, each.request_id) : ""]),
  { caption: "Audit log", empty: "Nothing was created or deleted yet." })));
}

function caller(me) {
  return card("Caller", facts([["tenant", me.tenant], ["scopes", (me.scopes || []).join(", ")], ["key", me.key ? `${me.key.name || ""} ${me.key.prefix}…` : "none: the service asks for no key"],
    ["ends", me.key?.expires_at ? when(me.key.expires_at) : null], ["compute time today", me.today ? duration(me.today.compute_seconds) : null], ["steps today", me.today ? number(me.today.steps) : null], ["requests today", me.today ? number(me.today.requests) : null]]));
}

function days(rows) {
  return card("Usage by day", table(["Day (UTC)", "Tenant", ["Compute time", "number"], ["Steps", "number"], ["Requests", "number"], ["Bytes in", "number"], ["Bytes out", "number"]],
    [...rows].reverse().slice(0, 200).map((each) => [each.day, each.tenant, duration(each.compute_seconds), number(Math.round(each.steps)), number(Math.round(each.requests)), bytes(Math.round(each.bytes_in)), bytes(Math.round(each.bytes_out))]),
    { caption: "Usage by day", empty: "No usage yet." }));
}

function keyCard(keys, draw, signal, me) {
  const make = async (event) => {
    const tenant = h("input", { required: true, pattern: "[a-z0-9][a-z0-9._\\-]{0,63}", value: me.tenant }), name = h("input", { required: true, maxlength: "128", value: "key" }), days = h("input", { type: "number", min: "1", placeholder: "no end" });
    const boxes = SCOPES.map((scope) => h("input", { type: "checkbox", checked: scope !== "admin", value: scope, id: `scope-${scope}` }));
    const asked = await dialog("Make a key", [field("Tenant", tenant), field("Name", name), field("Ends after days", days),
      h("fieldset", {}, h("legend", {}, "Scopes"), boxes.map((box) => h("label", {}, box, ` ${box.value} `)))],
    [["Make", () => ({ tenant: tenant.value, name: name.value, scopes: boxes.filter((box) => box.checked).map((box) => box.value), ...(days.value ? { ttl_s: Number(days.value) * 86400 } : {}) })]]);
    if (!asked) return;
    const made = await doing(event.target, () => post("v1/keys", asked, { signal }), null);
    if (made) { await draw(); await tellKey(made); }
  };
  const rotate = (key) => async (event) => {
    if (!await confirmed(`Replace the key ${key.name}? The old one ends after a day.`, "Replace")) return;
    const made = await doing(event.target, () => post(`v1/keys/${key.id}/rotate`, {}, { signal }), null);
    if (made) { await draw(); await tellKey(made); }
  };
  const revoke = (key) => async (event) => {
    if (!await confirmed(`Revoke the key ${key.name} of ${key.tenant}? Its clients are refused at once.`, "Revoke")) return;
    if (await doing(event.target, () => call("DELETE", `v1/keys/${key.id}`, { signal }), null)) { note("The key is revoked."); await draw(); }
  };
  return card("Keys", table(["Name", "Tenant", "Key", "Scopes", "State", "Last use", "Ends", ""], keys.map((key) => [
    key.name, key.tenant, mono(`${key.prefix}…`), key.scopes.join(", "), badge(key.state === "valid" ? "active" : key.state), key.last_used ? when(key.last_used) : "never", key.expires_at ? when(key.expires_at) : "no end",
    key.state === "valid" && key.source !== "file" ? h("span", { class: "actions inline" }, button("Replace", rotate(key), { class: "small", "aria-label": `Replace ${key.name}` }), button("Revoke", revoke(key), { class: "small danger", "aria-label": `Revoke ${key.name}` })) : ""]),
  { caption: "Keys", empty: "There are no keys: everyone who reaches the service may use it. Make the first one with backpass keys create." }),
  keys.length ? h("div", { class: "actions" }, button("Make a key", make)) : null);
}

const tellKey = (made) => dialog("The new key", [h("p", {}, "Copy it now: it is not shown again."), h("p", {}, h("code", { class: "secret", tabindex: "0" }, made.key))], []);
