/* Uploads: files are dropped or chosen, sent with progress, and htmx follows their import. Without this the form works, too. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const form = find("form.upload-files");
  if (!form) return;
  const input = find("input[type=file]", form);
  const drop = find(".drop", form);
  const chosen = find("#upload-chosen");
  const state = find("#import-state");
  const MAX_FILES = 20000;
  let files = []; // pairs of a file and its path

  function formatBytes(count) {
    if (count < 1e6) return `${Math.max(1, Math.round(count / 1e3))} KB`;
    return count < 1e9 ? `${(count / 1e6).toPrecision(3)} MB` : `${(count / 1e9).toPrecision(3)} GB`;
  }

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function totalBytes() {
    return files.reduce((sum, [file]) => sum + file.size, 0);
  }

  function choose(pairs) {
    files = pairs;
    input.required = files.length === 0;
    const names = files.length === 1 ? files[0][1] : `${files.length.toLocaleString("en")} files`;
    chosen.textContent = files.length ? `${names}, ${formatBytes(totalBytes())}` : "Nothing chosen.";
  }

  input.addEventListener("change", () => choose([...input.files].map((file) => [file, file.name])));

  // ---- drop files and folders ----

  async function readEntry(entry) {
    if (entry.isFile) return [[await new Promise((done, failed) => entry.file(done, failed)), entry.fullPath.slice(1)]];
    const reader = entry.createReader();
    const pairs = [];
    for (;;) {
      const some = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!some.length || pairs.length > MAX_FILES) return pairs;
      for (const one of some) pairs.push(...(await readEntry(one)));
    }
  }

  async function droppedFiles(transfer) {
    const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean); // now: they vanish later
    if (!entries.length) return [...transfer.files].map((file) => [file, file.name]);
    return (await Promise.all(entries.map(readEntry))).flat();
  }

  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  drop.addEventListener("dragleave", (event) => {
    if (!drop.contains(event.relatedTarget)) drop.classList.remove("over");
  });
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    choose(await droppedFiles(event.dataTransfer));
  });

  // ---- send them ----

  function showProblem(message) {
    const box = element("div", "", { class: "outcome bad-outcome" });
    const text = element("p", "");
    text.append(element("strong", "Not imported."), ` ${message}`);
    box.append(text);
    state.replaceChildren(box);
  }

  function showSending(request) {
    const card = element("div", "", { class: "progress-card" });
    const line = element("p", "", { class: "working", "aria-hidden": "true" });
    const share = element("span", "");
    line.append(element("strong", "Uploading"), share);
    const bar = element("progress", "", { max: "100", value: "0", "aria-label": "Upload" });
    const cancel = element("button", "Cancel", { type: "button", class: "small" });
    const holder = element("form", "");
    holder.append(cancel);
    cancel.addEventListener("click", () => request.abort());
    card.append(line, bar, holder);
    state.replaceChildren(card);
    return (sent, total) => {
      bar.value = (100 * sent) / total;
      share.textContent = `${formatBytes(sent)} of ${formatBytes(total)}`;
    };
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!files.length) return;
    const most = Number(form.dataset.max);
    if (totalBytes() > most) {
      showProblem(`These are ${formatBytes(totalBytes())}; this server takes ${formatBytes(most)} at a time.`);
      return;
    }
    const body = new FormData();
    for (const field of form.querySelectorAll("input:checked")) body.append(field.name, field.value);
    for (const [file, path] of files) body.append("file", file, path);
    const request = new XMLHttpRequest();
    const button = find("button.first", form);
    const progress = showSending(request);
    button.disabled = true;
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true");
    request.upload.addEventListener("progress", (sent) => progress(sent.loaded, sent.total));
    request.addEventListener("loadend", () => (button.disabled = false));
    request.addEventListener("abort", () => showProblem("You stopped the upload. Nothing was changed."));
    request.addEventListener("error", () => showProblem("The connection ended. Nothing was changed; try again."));
    request.addEventListener("load", () => {
      if (request.status === 401) location.href = "/login?next=" + encodeURIComponent(location.pathname);
      else if (request.status !== 200) showProblem(stillhash.errorMessage(request));
      else {
        state.innerHTML = request.responseText;
        htmx.process(state);
        form.reset();
        choose([]);
      }
    });
    request.send(body);
  });
})();
