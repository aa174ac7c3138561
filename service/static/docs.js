"use strict";
// Swagger UI over this service's own description. The page itself holds no script, as its content policy demands.
// Its path is relative to this script, so that it works below a path that a proxy adds.
const description = new URL("../openapi.json", document.currentScript.src).href;
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: description,
    dom_id: "#swagger-ui",
    deepLinking: true,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    validatorUrl: null,
  });
});
