// The quotas of a tenant as a card: of each what is used and the limit, null where the service counts or limits nothing.
import { bytes, card, duration, number, table } from "./dom.js";

function text(name, value) {
  if (value === null || value === undefined) return "–";
  if (name.includes("bytes")) return bytes(value);
  return name.endsWith("seconds") ? duration(value) : number(value);
}

export function quotas(found, heading) {
  const rows = Object.entries(found).map(([name, each]) => [
    name.replaceAll("_", " "), text(name, each.used), each.limit === null ? "no limit" : text(name, each.limit)]);
  return card(heading, table(["Limit", ["Used", "number"], ["At most", "number"]], rows, { caption: heading, empty: "There are no limits." }));
}
