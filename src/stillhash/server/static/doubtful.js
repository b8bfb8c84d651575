/* Labels to check: keep or replace them, row after row, by keys. A row leaves the page when its change is stored. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const status = find("#checked");
  const list = find(".doubts");
  if (!list || !find(".doubt-actions")) return;
  const undoable = []; // {row, id, before}, the latest last
  let current = null;
  let busy = false;

  async function post(fields) {
    const options = { method: "POST", body: new URLSearchParams(fields), headers: { "HX-Request": "true" } };
    const response = await fetch(status.dataset.here, options).catch(() => null);
    if (response?.status === 401) location.href = "/login?next=" + encodeURIComponent(location.pathname);
    if (response?.ok) return response.json();
    const message = await response?.json().then((reply) => reply.message, () => null);
    status.textContent = `Nothing was changed: ${message ?? "the server does not answer"}.`;
    return null;
  }

  function go(row) {
    if (!row) return;
    if (current) current.tabIndex = -1;
    current = row;
    row.tabIndex = 0;
    row.focus();
    row.scrollIntoView({ block: "nearest" });
  }

  async function check(row, verb) {
    if (busy || (verb === "replace" && row.dataset.predicted === "[]")) return;
    busy = true;
    const { id, predicted } = row.dataset;
    const reply = await post({ id, verb, labels: predicted });
    busy = false;
    if (!reply) return;
    const next = row.nextElementSibling ?? row.previousElementSibling;
    undoable.push({ row, next: row.nextElementSibling, id, before: reply.before });
    row.remove();
    const what = verb === "keep" ? "keeps its labels" : `is now ${JSON.parse(predicted).join(", ")}`;
    status.textContent = `${find("bdi", row).textContent} ${what}. z undoes it.`;
    find("#no-doubts").hidden = Boolean(next);
    go(next);
  }

  async function undo() {
    const last = undoable.at(-1);
    if (!last || busy) return;
    busy = true;
    const reply = await post({ id: last.id, verb: "restore", labels: JSON.stringify(last.before) });
    busy = false;
    if (!reply) return;
    undoable.pop();
    list.insertBefore(last.row, last.next?.isConnected ? last.next : null);
    find("#no-doubts").hidden = true;
    status.textContent = `${find("bdi", last.row).textContent} has its labels from before.`;
    go(last.row);
  }

  document.addEventListener("submit", (event) => {
    const row = event.target.closest(".doubt");
    if (!row) return;
    event.preventDefault();
    check(row, event.submitter.value);
  });
  list.addEventListener("focusin", (event) => (current = event.target.closest(".doubt") ?? current));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const row = current?.isConnected ? current : list.firstElementChild;
    if (event.key === "z") undo();
    else if (!row) return;
    else if (event.key === "k") check(row, "keep");
    else if (event.key === "r") check(row, "replace");
    else if (event.key === "j" || event.key === "ArrowDown") {
      event.preventDefault();
      go(document.activeElement === row ? row.nextElementSibling : row);
    } else if (event.key === "ArrowUp") {
      event.preventDefault();
      go(row.previousElementSibling);
    }
  });
})();
