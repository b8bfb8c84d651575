/* The hits: the explanation, the address, the focus among them, pictures, and keys. */
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

  // ---- looks alike, or same labels ----

  document.addEventListener("input", (event) => {
    if (event.target.id === "balance") find("#balance-state .value").textContent = Number(event.target.value).toFixed(2);
  });
  document.addEventListener("click", (event) => {
    const slider = find("#balance");
    if (event.target.id === "automatic" && slider) slider.value = slider.dataset.automatic;
  });

  // ---- space for more hits from the click on, so that nothing jumps when they come ----

  document.addEventListener("htmx:beforeRequest", (event) => {
    const [hits, first] = [find("#hits"), find(".now .card")];
    if (event.detail.elt.id !== "more" || !first) return;
    const [list, count] = [first.closest("ol"), Number(event.detail.elt.textContent.match(/\d+/))];
    const style = getComputedStyle(list);
    const columns = first.matches(".text") ? 1 : style.gridTemplateColumns.split(" ").length;
    const rows = Math.ceil((list.children.length + count) / columns) - Math.ceil(list.children.length / columns);
    hits.style.minHeight = `${hits.offsetHeight + rows * (first.offsetHeight + parseFloat(style.rowGap))}px`;
  });

  // ---- after a swap: the address says what is shown, and the focus stays among the hits, even if the focused one is gone ----

  let focused = null; // the element with the focus before a swap, if it was among the hits
  let shown = 0;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { target } = event.detail;
    focused = ["results", "hits"].includes(target.id) && target.contains(document.activeElement) ? document.activeElement : null;
    shown = document.querySelectorAll(".now .look").length;
  });
  document.addEventListener("htmx:afterSettle", () => {
    const hits = find("#hits");
    if (hits && hits.dataset.address !== location.pathname + location.search) history.replaceState(null, "", hits.dataset.address);
    if (!focused) return;
    const next = { more: document.querySelectorAll(".now .look")[shown], "hide-before": find("#show-before"), "show-before": find("#hide-before") };
    const instead = next[focused.id] ?? (document.activeElement === document.body ? find(".now .look") : null);
    instead?.focus({ preventScroll: true });
    focused = null;
  });

  // ---- a picture that is much smaller than its place keeps its pixels ----

  function markTiny(image) {
    if (image.naturalWidth && image.naturalWidth * 2 <= image.clientWidth) image.classList.add("tiny");
  }

  document.addEventListener("load", (event) => event.target.matches?.(".look img, .query img") && markTiny(event.target), true);
  document.querySelectorAll(".look img, .query img").forEach(markTiny);

  // ---- keys ----

  const busy = () => find("#results")?.classList.contains("htmx-request");

  /* The hit to the left or right, or above or below. */
  function neighbour(look, key) {
    const all = [...look.closest("ol, ul").querySelectorAll(".look")];
    const index = all.indexOf(look);
    if (key === "ArrowLeft") return all[index - 1] ?? (look.closest(".then") ? [...document.querySelectorAll(".now .look")].at(-1) : null);
    if (key === "ArrowRight") return all[index + 1] ?? (look.closest(".now") ? visible(find(".then .look")) : null);
    const left = (element) => element.getBoundingClientRect().left;
    const stack = all.filter((other) => Math.abs(left(other) - left(look)) < 4);
    return stack[stack.indexOf(look) + (key === "ArrowUp" ? -1 : 1)];
  }

  const visible = (element) => (element?.offsetParent ? element : null);

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
