/* The hits: the explanation, the focus among them, and keys. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);

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
