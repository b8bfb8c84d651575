/* Select hits on the search page, and label them all at once. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

  const bar = find("#select-bar");
  if (!bar) return;
  const selected = new Set(); // ids as JSON
  let lastBox = null; // where a range begins
  let undoable = null; // what the items had before the last change
  let offered = false; // whether the box has the labels of the collection

  const boxes = () => findAll(".select-box input");

  // ---- what is selected ----

  function show() {
    find("#select-count").textContent = selected.size;
    const opens = bar.hidden && selected.size > 0;
    bar.hidden = selected.size === 0;
    if (opens) say("");
    if (opens && !offered) offerLabels();
  }

  function set(box, on) {
    box.checked = on;
    if (on) selected.add(box.dataset.item);
    else selected.delete(box.dataset.item);
  }

  function clear() {
    boxes().forEach((box) => set(box, false));
    selected.clear();
    lastBox = null;
    show();
  }

  /* Hits that are swapped in keep their selection; what is no longer on the page is no longer selected. */
  function restore() {
    const present = boxes();
    const names = new Set(present.map((box) => box.dataset.item));
    [...selected].filter((name) => !names.has(name)).forEach((name) => selected.delete(name));
    present.forEach((box) => (box.checked = selected.has(box.dataset.item)));
    lastBox = null;
    show();
  }

  async function offerLabels() {
    offered = true;
    const response = await fetch(bar.action, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (response?.ok) find("#select-names").innerHTML = await response.text();
    else offered = false;
  }

  // ---- what it says ----

  function say(text, before = null) {
    undoable = before?.length ? before : null;
    find("#select-message p").textContent = text;
    find("#select-undo").hidden = !undoable;
  }

  const items = (count) => (count === 1 ? "1 item" : `${count} items`);

  function sentence(verb, { changed, labels, version }) {
    const names = labels.join(", ");
    if (verb === "restore") return `Undone: ${items(changed)} ${changed === 1 ? "has its" : "have their"} earlier labels. Learnt as version ${version}.`;
    if (!changed) return verb === "add" ? `All of them had ${names} already.` : `None of them had ${names}.`;
    const what = verb === "add" ? `Added ${names} to ${items(changed)}` : `Removed ${names} from ${items(changed)}`;
    return `${what}. Learnt as version ${version}.`;
  }

  // ---- changes ----

  async function change(verb, fields) {
    findAll("button", bar).forEach((button) => (button.disabled = true));
    const body = new URLSearchParams({ verb, ...fields });
    const response = await fetch(bar.action, { method: "POST", body, headers: { "HX-Request": "true" } }).catch(() => null);
    findAll("button", bar).forEach((button) => (button.disabled = false));
    if (response?.status === 401) location.href = "/login?next=" + encodeURIComponent(location.pathname + location.search);
    if (!response?.ok) return fail(response);
    const reply = await response.json();
    say(sentence(verb, reply), reply.before);
    if (verb !== "restore") find("#select-labels").value = "";
    clear();
    refresh();
  }

  async function fail(response) {
    let message = "The server does not answer. Nothing was changed; try again in a moment";
    try {
      if (response) message = (await response.json()).message;
    } catch {
      message = `The server answered with an error (${response.status})`;
    }
    say(message[0].toUpperCase() + message.slice(1) + ".");
  }

  function refresh() {
    const hits = find("#hits") ? "#hits" : "#results";
    const address = find("#hits")?.dataset.address ?? location.href;
    htmx.ajax("GET", address, { target: hits, select: hits, swap: "outerHTML show:none" });
  }

  bar.addEventListener("submit", (event) => {
    event.preventDefault();
    const listed = `[${[...selected].join(",")}]`;
    change(event.submitter?.value ?? "add", { items: listed, labels: find("#select-labels").value });
  });
  find("#select-undo").addEventListener("click", () => {
    if (undoable) change("restore", { items: JSON.stringify(undoable) });
  });
  find("#select-clear").addEventListener("click", clear);

  // ---- the mouse, and keys ----

  document.addEventListener("click", (event) => {
    const box = event.target.closest?.(".select-box input");
    if (!box) return;
    const all = boxes();
    const [from, to] = [all.indexOf(lastBox), all.indexOf(box)].sort((a, b) => a - b);
    if (event.shiftKey && from >= 0) all.slice(from, to + 1).forEach((one) => set(one, box.checked));
    else set(box, box.checked);
    lastBox = box;
    show();
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
    if (event.key === "Escape" && !bar.hidden) return clear();
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    const box = document.activeElement.closest?.(".card")?.querySelector(".select-box input");
    const onLook = document.activeElement.matches?.(".look");
    if (box && (event.key === "m" || (event.key === " " && onLook))) {
      event.preventDefault();
      set(box, !box.checked);
      lastBox = box;
      show();
    } else if (event.key === "l" && !bar.hidden) {
      event.preventDefault();
      find("#select-labels").focus();
    }
  });

  document.addEventListener("htmx:afterSettle", restore);
  restore();
})();
