/* Of every page: error messages, selects that navigate, snippets to copy. The server renders the rest; htmx swaps parts. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);

  // ---- messages ----

  function showError(message) {
    const box = find("#error");
    find("p", box).textContent = message;
    box.hidden = false;
  }

  function hideError() {
    find("#error").hidden = true;
  }

  /* The server's message, if there is one. */
  function errorMessage(request) {
    try {
      const { message } = JSON.parse(request.responseText);
      return message[0].toUpperCase() + message.slice(1) + ".";
    } catch {
      return `The server answered with an error (${request.status}).`;
    }
  }

  window.stillhash = { errorMessage }; // for the scripts of single pages

  document.addEventListener("htmx:responseError", (event) => {
    const request = event.detail.xhr;
    if (request.status === 401) location.href = "/login?next=" + encodeURIComponent(location.pathname + location.search);
    else showError(errorMessage(request));
  });
  document.addEventListener("htmx:sendError", () => showError("The server does not answer. Nothing was changed; try again in a moment."));
  document.addEventListener("htmx:timeout", () => showError("The server took too long to answer."));
  document.addEventListener("htmx:beforeRequest", hideError);
  find("#error button").addEventListener("click", hideError);

  // ---- selects that submit or navigate ----

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
    if (event.target.matches("select[data-visit]")) location.href = event.target.value;
  });

  // ---- copy a snippet ----

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    await navigator.clipboard.writeText(find("code", button.closest(".snippet")).textContent);
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
})();
