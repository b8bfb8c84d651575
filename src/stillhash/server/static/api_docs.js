/* Shows the OpenAPI description by Swagger UI. */
"use strict";

(() => {
  const place = document.querySelector("#api");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);

  dark.addEventListener("change", setTheme);
  setTheme();
  SwaggerUIBundle({
    url: place.dataset.openapi,
    domNode: place,
    docExpansion: "none",
    defaultModelsExpandDepth: -1,
    displayRequestDuration: true,
    syntaxHighlight: { activated: false }, // its colours are too faint
    validatorUrl: null, // nothing is sent to another server
  });
})();
