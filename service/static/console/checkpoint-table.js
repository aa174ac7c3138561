// The table of checkpoints, of all sessions or of one.
import { bytes, link, mono, number, table, when } from "./dom.js";

export function checkpointTable(checkpoints) {
  return table(["Checkpoint", "Name", ["Step", "number"], ["Size", "number"], "Made", ""], checkpoints.map((each) => [
    mono(each.id), each.name || "", number(each.step), bytes(each.size ?? each.bytes), when(each.created ?? each.created_at),
    link("Resume", `#/sessions/new?checkpoint=${each.id}`, { "aria-label": `Open a session from ${each.id}` })]),
  { caption: "Checkpoints", empty: "No checkpoints." });
}
