"use strict";
// Swagger UI over this service's own description. The page itself holds no script, as its content policy demands.
// Its path is relative to this script, so that it works below a path that a proxy adds. So are the paths of its requests:
// the description names no server, and Swagger UI would send them to the root of the origin.
const description = new URL("../openapi.json", document.currentScript.src).href;
const base = new URL("..", document.currentScript.src).href.replace(/\/$/, "");
const belowBase = (original) => (spec) => original({ ...spec, servers: [{ url: base }] });
const ownServer = () => ({ statePlugins: { spec: { wrapActions: { updateJsonSpec: belowBase } } } });
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: description,
    dom_id: "#swagger-ui",
    deepLinking: true,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    validatorUrl: null,
    plugins: [ownServer],
  });
});
