/* Error messages, keys, uploads and the explanation dialog. The server renders everything else; htmx swaps parts of it. */
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

  // ---- the explanation ----

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "why-body") find("#why").showModal();
  });
  document.addEventListener("click", (event) => {
    if (event.target.id === "why") event.target.close(); // on the backdrop
  });

  // ---- keep the focus among the hits when they are swapped, even if the focused one is gone ----

  let hadFocus = false;
  document.addEventListener("htmx:beforeSwap", (event) => {
    hadFocus = event.detail.target.id === "results" && event.detail.target.contains(document.activeElement);
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (hadFocus && document.activeElement === document.body) find(".now .look")?.focus();
    hadFocus = false;
  });

  // ---- an image, or a file with a vector, dropped or pasted anywhere ----

  function uploadFile(file) {
    const field = find("#file");
    if (!file || !field) return;
    const transfer = new DataTransfer();
    transfer.items.add(file);
    field.files = transfer.files;
    field.form.requestSubmit();
  }

  const hasFiles = (event) => find("#file") && [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    uploadFile(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) {
      event.preventDefault();
      uploadFile(file);
    }
  });

  // ---- keys ----

  const busy = () => find("#results")?.classList.contains("htmx-request");

  /* The hit to the left or right, or above or below. */
  function neighbour(look, key) {
    const all = [...look.closest("ol, ul").querySelectorAll(".look")];
    const index = all.indexOf(look);
    if (key === "ArrowLeft") return all[index - 1] ?? firstHit(look, ".then");
    if (key === "ArrowRight") return all[index + 1] ?? firstHit(look, ".now");
    const left = (element) => element.getBoundingClientRect().left;
    const stack = all.filter((other) => Math.abs(left(other) - left(look)) < 4);
    return stack[stack.indexOf(look) + (key === "ArrowUp" ? -1 : 1)];
  }

  function firstHit(look, side) {
    return look.closest(side) ? null : find(`${side} .look`);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
    if (event.target.closest("input, textarea, select, .scroll")) return;
    if (event.key === "r" && find("#random")) return find("#random").click();
    const card = document.activeElement.closest?.(".card");
    if (event.key.startsWith("Arrow")) {
      const next = card ? neighbour(find(".look", card), event.key) : find(".now .look, .starts .look");
      if (!next || (!card && !["ArrowRight", "ArrowLeft"].includes(event.key))) return;
      event.preventDefault();
      next.focus();
      next.closest(".card").scrollIntoView({ block: "nearest", inline: "nearest" });
      return;
    }
    const act = { u: ".thumb.up", d: ".thumb.down", e: ".why" }[event.key];
    if (act && card && !busy()) find(act, card)?.click();
  });
})();
