// Train on digits over the types that openapi-typescript generates, with openapi-fetch.
//
//   node digits.js URL DATA      DATA: JSON with program, optimizer, batches and test (feeds each)
//
// Prints the losses of the steps and the accuracy on the test feeds as JSON.

import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

interface Data {
  program: Schemas["Program"];
  optimizer: Schemas["Optimizer"];
  batches: Schemas["Tensors"][];
  test: Schemas["Tensors"];
}

const [url, path] = process.argv.slice(2) as [string, string];
const data: Data = JSON.parse(readFileSync(path, "utf8"));
const client = createClient<paths, "application/json" | "application/problem+json">({ baseUrl: url });

function known<T>(value: T | undefined | null, problem?: unknown): T {
  if (value === undefined || value === null) throw new Error(JSON.stringify(problem));
  return value;
}

/** The answer, unless the service went on with the call as an operation, which nothing here asks for. */
function answered<T extends object>(answer: T | undefined, problem?: unknown): Exclude<T, Schemas["Accepted"]> {
  const found = known(answer, problem);
  if ("request" in found) throw new Error("the call goes on as an operation");
  return found as Exclude<T, Schemas["Accepted"]>;
}

const registered = await client.POST("/v1/programs", { body: { program: data.program } });
const program = answered(registered.data, registered.error);
const opened = await client.POST("/v1/sessions", {
  body: { program_id: program.id, loss: "loss", optimizer: data.optimizer, init: { seed: 0 } },
});
const session = { params: { path: { session_id: answered(opened.data, opened.error).id } } };

const losses: number[] = [];
for (const feeds of data.batches) {
  const step = await client.POST("/v1/sessions/{session_id}/steps", {
    ...session,
    body: { feeds, seq: losses.length + 1 },
  });
  const loss = known(answered(step.data, step.error).loss?.data?.[0], step.data);
  losses.push(Number(loss));
}

const evaluated = await client.POST("/v1/sessions/{session_id}/evaluations", {
  ...session,
  body: { feeds: data.test, fetch: ["accuracy"] },
});
const accuracy = known(answered(evaluated.data, evaluated.error).fetched?.["accuracy"]?.data?.[0]);

const repeated = await client.POST("/v1/sessions/{session_id}/steps", { ...session, body: { seq: losses.length + 2 } });
if (repeated.error?.code !== "sequence-gap") throw new Error(JSON.stringify(repeated));
const closed = await client.DELETE("/v1/sessions/{session_id}", session);
if (closed.response.status !== 204) throw new Error(JSON.stringify(closed.error));

console.log(JSON.stringify({ losses, accuracy: Number(accuracy) }));
