/* The search box and its suggestions, and files that are chosen, dropped or pasted anywhere on the page. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const box = find("#search");
  const list = find("#suggestions");

  // ---- suggestions: a combobox whose options are links ----

  const WAIT = 120; // milliseconds after the last key
  let timer, request;
  let active = -1;
  const options = () => [...list.children];

  function open(yes) {
    list.hidden = !yes;
    box.setAttribute("aria-expanded", String(yes));
    if (!yes) choose(-1);
  }

  function choose(place) {
    active = place;
    options().forEach((option, index) => option.setAttribute("aria-selected", String(index === place)));
    const option = options()[place];
    if (option) {
      box.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else box.removeAttribute("aria-activedescendant");
  }

  async function suggest() {
    request?.abort();
    if (!box.value.trim()) return open(false);
    request = new AbortController();
    const query = new URLSearchParams(new FormData(box.form));
    try {
      const response = await fetch(`${box.form.dataset.suggest}?${query}`, { signal: request.signal, headers: { "HX-Request": "true" } });
      if (!response.ok) return open(false);
      list.innerHTML = await response.text();
      choose(-1);
      open(list.children.length > 0 && document.activeElement === box);
    } catch {
      // a later key has ended it, or the server is away: the box works without suggestions
    }
  }

  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(suggest, WAIT);
  });
  box.addEventListener("blur", () => open(false));
  box.form.addEventListener("submit", () => {
    clearTimeout(timer);
    request?.abort();
  });
  box.addEventListener("keydown", (event) => {
    const count = options().length;
    if (["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      if (list.hidden) return count ? open(true) : suggest();
      const step = event.key === "ArrowDown" ? 1 : -1;
      choose(((active + 1 + step + count + 1) % (count + 1)) - 1); // one place more: none, which is the box itself
    } else if (event.key === "Enter" && !list.hidden && active >= 0) {
      event.preventDefault();
      location.href = options()[active].dataset.visit;
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault(); // which would empty the box
      open(false);
    }
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus in the box
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.href = option.dataset.visit;
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    event.preventDefault();
    box.focus();
    box.select();
  });

  // ---- filters: a click elsewhere closes what is open ----

  document.addEventListener("click", (event) => {
    for (const details of document.querySelectorAll(".facet[open], .numbers[open]")) {
      if (!details.contains(event.target)) details.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const details = event.target.closest?.(".facet[open], .numbers[open]");
    if (!details) return;
    details.open = false;
    find("summary", details).focus();
  });

  // ---- a file that is chosen, dropped or pasted is searched for at once ----

  const field = find("#file");

  function send() {
    if (!field.files.length) return;
    document.body.classList.add("sending");
    field.form.requestSubmit();
  }

  function take(file) {
    if (!file) return;
    const transfer = new DataTransfer();
    transfer.items.add(file);
    field.files = transfer.files;
    send();
  }

  field.addEventListener("change", send);
  window.addEventListener("pageshow", () => {
    document.body.classList.remove("sending"); // back from the hits
    field.value = "";
  });

  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
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
    take(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) {
      event.preventDefault();
      take(file);
    }
  });
})();
