"use strict";
// Swagger UI over this service's own description. The page itself holds no script, as its content policy demands.
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: "../openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    validatorUrl: null,
  });
});
