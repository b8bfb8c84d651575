/* Votes: hits glide to their new places, the focus goes with the voted one, and z takes the vote back.
   And the dialog that explains a hit. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const isVote = (event) => event.detail.requestConfig?.path?.endsWith("/thumb");

  let places = null; // of the hits before a vote, by the ids of their elements
  let oldIndex = -1; // of the hit that was voted on

  const cards = () => [...document.querySelectorAll(".now .card")];
  const keyOf = (card) => find(".look", card)?.id;

  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!isVote(event) || event.detail.xhr.status !== 200) return;
    const all = cards();
    places = new Map(all.map((card) => [keyOf(card), card.getBoundingClientRect()]));
    const id = event.detail.requestConfig.parameters?.id ?? event.detail.requestConfig.formData?.get?.("id");
    oldIndex = all.findIndex((card) => find(".thumb", card)?.getAttribute("hx-vals")?.includes(JSON.stringify(id)));
  });

  document.addEventListener("htmx:afterSettle", (event) => {
    if (!places || !find("#results")) return;
    const before = places;
    places = null;
    focusVoted();
    if (!calm.matches) cards().forEach((card) => glide(card, before.get(keyOf(card))));
  });

  /* Undo searches as the page does now: its query and options are beside the hits. */
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.target.id !== "undo") return;
    for (const [name, value] of Object.entries(JSON.parse(find("#hits").getAttribute("hx-vals")))) event.detail.parameters[name] = value;
  });

  /* Keep the focus on the voted hit; if it has left the page, on the hit that took its place. */
  function focusVoted() {
    const outcome = find("#message [data-voted]");
    if (!outcome) return;
    const key = outcome.dataset.voted;
    const pressed = { 1: `up-${key}`, 0: `down-${key}` }[outcome.dataset.cast] ?? `now-${key}`;
    const target = document.getElementById(pressed) ?? find(".look", cards()[oldIndex] ?? cards()[0] ?? document);
    target?.focus({ preventScroll: true });
    target?.closest(".card")?.scrollIntoView({ block: "nearest" });
  }

  /* Let a hit move from where it was; one that is new fades in. */
  function glide(card, from) {
    const to = card.getBoundingClientRect();
    const start = from
      ? { transform: `translate(${from.left - to.left}px, ${from.top - to.top}px)` }
      : { opacity: 0, transform: "scale(0.9)" };
    if (from && Math.abs(from.left - to.left) + Math.abs(from.top - to.top) < 2) return;
    card.animate([start, { opacity: 1, transform: "none" }], { duration: 420, easing: "cubic-bezier(0.2, 0.7, 0.2, 1)" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "z" || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
    if (event.target.closest("input, textarea, select")) return;
    if (!find("#results")?.classList.contains("htmx-request")) find("#undo")?.click();
  });
})();
