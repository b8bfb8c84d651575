/* What the page does beyond plain documents: messages when something fails, keys, and the explanation's window.
   Everything else is HTML that the server drew, and htmx, which puts parts of it in place. */
"use strict";

(() => {
  const one = (selector, within = document) => within.querySelector(selector);

  // ---- messages ----

  function complain(message) {
    const box = one("#wrong");
    one("p", box).textContent = message;
    box.hidden = false;
  }

  function quiet() {
    one("#wrong").hidden = true;
  }

  /* The server's own words, where it said any. */
  function words(request) {
    try {
      const told = JSON.parse(request.responseText);
      return told.message[0].toUpperCase() + told.message.slice(1) + ".";
    } catch {
      return `The server answered with an error (${request.status}).`;
    }
  }

  document.addEventListener("htmx:responseError", (event) => {
    const request = event.detail.xhr;
    if (request.status === 401) location.href = "/login?then=" + encodeURIComponent(location.pathname + location.search);
    else complain(words(request));
  });
  document.addEventListener("htmx:sendError", () => complain("The server does not answer. Nothing was changed here; try again in a moment."));
  document.addEventListener("htmx:timeout", () => complain("The server took too long to answer."));
  document.addEventListener("htmx:beforeRequest", quiet);
  one("#wrong button").addEventListener("click", quiet);

  // ---- choices that lead somewhere at once ----

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
    if (event.target.matches("select[data-visit]")) location.href = event.target.value;
  });

  // ---- the explanation ----

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "why-body") one("#why").showModal();
  });
  document.addEventListener("click", (event) => {
    if (event.target.id === "why") event.target.close(); // beside the window
  });

  // ---- focus stays among the hits when they are drawn anew, even if the one that had it is gone ----

  let among = false;
  document.addEventListener("htmx:beforeSwap", (event) => {
    among = event.detail.target.id === "results" && event.detail.target.contains(document.activeElement);
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (among && document.activeElement === document.body) one(".now .look")?.focus();
    among = false;
  });

  // ---- an image, or a file with a vector, that is dropped or pasted anywhere ----

  function give(file) {
    const field = one("#file");
    if (!file || !field) return;
    const carrier = new DataTransfer();
    carrier.items.add(file);
    field.files = carrier.files;
    field.form.requestSubmit();
  }

  const carries = (event) => one("#file") && [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!carries(event)) return;
    event.preventDefault();
    give(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) {
      event.preventDefault();
      give(file);
    }
  });

  // ---- keys ----

  const busy = () => one("#results")?.classList.contains("htmx-request");

  /* The hit in a direction: the next, or the one above or below. */
  function beside(look, key) {
    const all = [...look.closest("ol, ul").querySelectorAll(".look")];
    const place = all.indexOf(look);
    if (key === "ArrowLeft") return all[place - 1] ?? across(look, ".then");
    if (key === "ArrowRight") return all[place + 1] ?? across(look, ".now");
    const left = (element) => element.getBoundingClientRect().left;
    const stack = all.filter((other) => Math.abs(left(other) - left(look)) < 4);
    return stack[stack.indexOf(look) + (key === "ArrowUp" ? -1 : 1)];
  }

  function across(look, side) {
    return look.closest(side) ? null : one(`${side} .look`);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || one("dialog[open]")) return;
    if (event.target.closest("input, textarea, select, .scroll")) return;
    if (event.key === "r" && one("#random")) return one("#random").click();
    const card = document.activeElement.closest?.(".card");
    if (event.key.startsWith("Arrow")) {
      const next = card ? beside(one(".look", card), event.key) : one(".now .look, .starts .look");
      if (!next || (!card && !["ArrowRight", "ArrowLeft"].includes(event.key))) return;
      event.preventDefault();
      next.focus();
      next.closest(".card").scrollIntoView({ block: "nearest", inline: "nearest" });
      return;
    }
    const act = { u: ".thumb.up", d: ".thumb.down", e: ".why" }[event.key];
    if (act && card && !busy()) one(act, card)?.click();
  });
})();
