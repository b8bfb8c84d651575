/* The Teach page: shows one item at a time, and sends each answer in the background, in order. An answer leaves the
   outbox when the server has acknowledged it; the outbox outlives the page, so that nothing is lost by a reload. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

  const root = find("#teach");
  if (!root) return;
  const { here, sitting } = root.dataset;
  const list = find("#teach-items");
  const REFILL_AT = 6; // items left, at which more are requested
  const AHEAD = 8; // items of the strip
  const RETRY_MS = [500, 1000, 2000, 4000, 8000];
  const STORED = `teach ${here} `;
  const ADOPT_MS = 60_000; // after which an outbox of another page of this browser is no longer its own

  const history = []; // answers that can be undone: {element, message}
  let exhausted = false;
  let refilling = false;

  // ---- the outbox: answers that are not acknowledged yet, oldest first ----

  let outbox = [];
  let sending = false;
  let inFlight = null;
  let counted = 0; // answers that the server has acknowledged

  /* The answers that this sitting could not send before a reload, and those of pages that were closed. */
  function loadOutbox() {
    const messages = [];
    try {
      for (const key of Object.keys(localStorage).filter((one) => one.startsWith(STORED)).sort()) {
        const stored = JSON.parse(localStorage.getItem(key));
        if (key !== STORED + sitting && Date.now() - stored.time < ADOPT_MS) continue;
        messages.push(...stored.messages);
        localStorage.removeItem(key);
      }
    } catch {
      // no storage, or not ours
    }
    return messages;
  }

  function storeOutbox() {
    try {
      if (outbox.length) localStorage.setItem(STORED + sitting, JSON.stringify({ time: Date.now(), messages: outbox }));
      else localStorage.removeItem(STORED + sitting);
    } catch {
      // without storage answers are still sent, and only lost if the page is closed before
    }
  }

  function send(message) {
    outbox.push(message);
    storeOutbox();
    pump();
  }

  function request(path, fields) {
    const options = fields ? { method: "POST", body: new URLSearchParams(fields), keepalive: true } : {};
    return fetch(`${here}/teach/${path}`, { ...options, headers: { "HX-Request": "true" } });
  }

  /* The labels that an undo removes: those that its answer added, as the server said. */
  function labelsOf(message) {
    return message.undoes ? message.undoes.added ?? message.undoes.labels : message.labels;
  }

  async function pump() {
    if (sending) return;
    sending = true;
    let tries = 0;
    while (outbox.length) {
      const message = (inFlight = outbox[0]);
      showSaved("busy");
      let response = null;
      try {
        const { id, answer } = message;
        response = await request("answer", { sitting, id, answer, labels: JSON.stringify(labelsOf(message)) });
      } catch {
        // no connection: the server may have stored it, and storing it again changes nothing
      }
      if (response?.ok) {
        const reply = await response.json();
        if (message.answer === "accept") message.added = tries ? message.labels : reply.added;
        outbox.shift();
        storeOutbox();
        tries = 0;
        counted += 1;
        showCounts(reply);
        if (reply.learnt) await refreshProgress();
      } else if (response?.status === 401) {
        location.href = "/login?next=" + encodeURIComponent(location.pathname + location.search);
        return;
      } else if (response && ![408, 429, 500, 502, 503, 504].includes(response.status)) {
        await refuse(message, response);
        tries = 0;
      } else {
        showSaved("failed");
        storeOutbox(); // with the present time: this page is still at it
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
        tries += 1;
      }
    }
    inFlight = null;
    sending = false;
    showSaved("ok");
  }

  /* An answer that can never be stored, because its item is gone, say: it is dropped, and the page says so. */
  async function refuse(message, response) {
    let reason = `the server answered with an error (${response.status})`;
    try {
      reason = (await response.json()).message;
    } catch {
      // it was no answer of ours
    }
    outbox.shift();
    storeOutbox();
    const box = find("#error");
    find("p", box).textContent = `The answer for item ${message.title} was not stored: ${reason}.`;
    box.hidden = false;
  }

  // ---- what the page says ----

  function figure(name, text) {
    find(`[data-figure="${name}"]`).textContent = text;
  }

  function showSaved(state) {
    const box = find("#saved");
    const waiting = outbox.length;
    box.dataset.state = state;
    box.dataset.waiting = waiting;
    if (state === "failed") box.textContent = `${waiting} not saved yet: the server does not take them just now. Trying again…`;
    else if (waiting) box.textContent = waiting === 1 ? "Saving…" : `Saving ${waiting}…`;
    else box.textContent = lastAnswer() ?? "Answers are saved as you go.";
  }

  function lastAnswer() {
    const message = history.at(-1)?.message;
    if (!message) return null;
    const what = { accept: message.labels.join(", "), reject: "none of these", skip: "skipped" }[message.answer];
    return `Saved. Last: ${message.title}, ${what}.`;
  }

  const figures = find(".teach-figures").dataset;
  const known = { labelled: Number(figures.labelled), total: Number(figures.total), items: Number(figures.items) };

  function showCounts(reply) {
    figure("labelled", reply.labelled);
    figure("rate", reply.rate === null ? "–" : Math.round(reply.rate));
    figure("right", reply.right === null ? "–" : `${Math.round(100 * reply.right)} %`);
    showTotal(known.total + reply.labelled - known.labelled);
  }

  function showTotal(total) {
    figure("total", total.toLocaleString("en"));
    find('[data-figure="share"]').style.width = `${(100 * total) / Math.max(1, known.items)}%`;
  }

  async function refreshProgress() {
    const before = counted;
    const response = await request(`progress?sitting=${sitting}`).catch(() => null);
    if (!response?.ok) return;
    const reply = await response.json();
    if (counted !== before) return refreshProgress(); // an answer was stored since, which the reply may lack
    Object.assign(known, { labelled: reply.labelled, total: reply.total, items: reply.items });
    showCounts(reply);
    figure("gain", reply.gain_text);
    figure("explained", reply.explained);
  }

  // ---- the items ----

  const current = () => list.firstElementChild;

  function show() {
    const item = current();
    findAll(".teach-item", list).forEach((one) => (one.hidden = one !== item));
    find("#no-items").hidden = Boolean(item) || !exhausted;
    findAll(".undo").forEach((button) => (button.disabled = !history.length));
    showAhead();
    if (item && !find("dialog[open]")) find("form", item).focus({ preventScroll: true });
    refill();
  }

  function showAhead() {
    const entries = findAll(".teach-item", list).slice(1, 1 + AHEAD).map((item) => {
      const entry = document.createElement("li");
      if (item.dataset.picture) {
        const picture = entry.appendChild(new Image(76, 76));
        Object.assign(picture, { src: item.dataset.picture, alt: `Item ${item.dataset.title}` });
      } else {
        entry.className = "words";
        entry.textContent = item.dataset.text;
      }
      return entry;
    });
    find("#ahead").replaceChildren(...entries);
  }

  async function refill() {
    if (refilling || exhausted || list.children.length > REFILL_AT) return;
    refilling = true;
    const response = await request(`items?sitting=${sitting}`).catch(() => null);
    if (response?.ok) {
      const part = new DOMParser().parseFromString(`<ol>${await response.text()}</ol>`, "text/html");
      const items = findAll(".teach-item", part);
      exhausted = !items.length;
      addItems(items);
    }
    refilling = false;
    if (!list.children.length || exhausted) show();
    else showAhead();
    if (!response?.ok) setTimeout(refill, 2000);
  }

  function addItems(items) {
    const seen = new Set(findAll(".teach-item", list).map((one) => one.dataset.id));
    history.forEach(({ message }) => seen.add(message.id));
    outbox.forEach((message) => seen.add(message.id));
    const fresh = items.filter((item) => !seen.has(item.dataset.id));
    fresh.forEach((item) => {
      item.hidden = Boolean(list.children.length);
      find('input[name="sitting"]', item).value = sitting;
      list.append(document.adoptNode(item));
    });
    if (fresh.length && current() === fresh[0]) show();
  }

  // ---- answers ----

  function chosenLabels(item) {
    return findAll(".choice input:checked", item).map((box) => JSON.parse(box.value));
  }

  function makeChoice(word, value, key) {
    const choice = document.createElement("label");
    choice.className = "choice other";
    choice.innerHTML = '<input type="checkbox" name="label"><kbd aria-hidden="true"></kbd><bdi></bdi>';
    find("input", choice).value = value;
    find("kbd", choice).textContent = key;
    find("bdi", choice).textContent = word;
    return choice;
  }

  /* Offer a label that was just used on the items that come next, where it is none of their choices yet. */
  function offer(label) {
    const value = JSON.stringify(label);
    for (const item of findAll(".teach-item", list)) {
      const values = findAll(".choice input", item).map((box) => box.value);
      if (values.length >= 9 || values.includes(value)) continue;
      find(".nothing", item)?.remove();
      find(".add-label", item).before(makeChoice(label, value, values.length + 1));
    }
  }

  function nudge(item) {
    item.classList.remove("nudge");
    void item.offsetWidth; // so that the animation starts again
    item.classList.add("nudge");
    const box = find("#saved");
    box.textContent = "Choose a label first; or x for none of these, s to skip.";
  }

  function answer(verb) {
    const item = current();
    if (!item) return;
    if (verb === "accept") addTyped(item);
    const labels = verb === "accept" ? chosenLabels(item) : [];
    if (verb === "accept" && !labels.length) return nudge(item);
    const message = { id: item.dataset.id, title: item.dataset.title, answer: verb, labels };
    history.push({ element: item, message });
    item.remove();
    labels.forEach(offer);
    send(message);
    show();
  }

  function undo() {
    const last = history.pop();
    if (!last) return;
    const { message, element } = last;
    if (outbox.includes(message) && message !== inFlight) {
      outbox = outbox.filter((one) => one !== message);
      storeOutbox();
    } else {
      send({ id: message.id, title: message.title, answer: "undo", labels: [], undoes: message });
    }
    list.prepend(element);
    show();
    if (!outbox.length) showSaved("ok");
  }

  function toggle(number) {
    const item = current();
    const box = item && findAll(".choice input", item)[number - 1];
    if (!box) return;
    if (find("#single").checked) {
      findAll(".choice input", item).forEach((one) => (one.checked = one === box));
      answer("accept");
    } else {
      box.checked = !box.checked;
    }
  }

  /* Make chosen labels of what is typed in the box; a number stays one where the collection has it so. */
  function addTyped(item) {
    const field = find(".add-label", item);
    const offered = new Map(findAll("#all-labels option").map((option) => [option.value, option.dataset.value]));
    const words = field.value.split(",").map((word) => word.trim()).filter(Boolean);
    for (const word of words) {
      const value = offered.get(word) ?? JSON.stringify(word);
      let box = findAll(".choice input", item).find((one) => one.value === value);
      if (!box) {
        const choice = makeChoice(word, value, findAll(".choice", item).length + 1);
        box = find("input", choice);
        field.before(choice);
      }
      box.checked = true;
    }
    field.value = "";
    return words.length > 0;
  }

  document.addEventListener("submit", (event) => {
    if (!event.target.closest(".teach-item")) return;
    event.preventDefault();
    answer(event.submitter?.value ?? "accept");
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest(".undo")) undo();
    else if (event.target.closest("#show-keys")) find("#keys").showModal();
    else if (event.target.id === "keys") event.target.close(); // on the backdrop
    else if (event.target.closest("#learn-now")) learnNow();
  });
  document.addEventListener("change", (event) => {
    const item = event.target.closest(".teach-item");
    if (item && event.target.matches(".choice input") && event.target.checked && find("#single").checked) {
      findAll(".choice input", item).forEach((one) => (one.checked = one === event.target));
    }
    if (event.target.id === "single") {
      const address = new URL(location.href);
      address.searchParams.set("one", event.target.checked ? "1" : "0");
      window.history.replaceState(null, "", address);
    }
  });

  async function learnNow() {
    const button = find("#learn-now");
    button.disabled = true;
    const response = await request("learn", { sitting }).catch(() => null);
    if (response?.ok) await refreshProgress();
    find("#saved").textContent = response?.ok ? `Learnt as version ${(await response.json()).version}.` : "The server is busy. Try again in a moment.";
    button.disabled = false;
  }

  // ---- keys ----

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
    const target = event.target;
    if (target.matches(".add-label")) {
      if (event.key === "Escape") find("form", current()).focus();
      if (event.key !== "Enter") return;
      event.preventDefault();
      const typed = addTyped(current());
      if (!typed || find("#single").checked) answer("accept");
      else find("form", current()).focus();
      return;
    }
    const verb = { x: "reject", s: "skip" }[event.key];
    const accepts = event.key === "Enter" || event.key === " ";
    if (accepts) {
      if (target.closest("a, button, summary, select, #single") || (event.key === " " && target.matches("input"))) return;
      event.preventDefault();
      if (!event.repeat) answer("accept");
    } else if (/^[1-9]$/.test(event.key)) {
      if (!event.repeat) toggle(Number(event.key));
    } else if (verb) {
      if (!event.repeat) answer(verb);
    } else if (event.key === "z") {
      undo();
    } else if (event.key === "?") {
      find("#keys").showModal();
    } else if (event.key === "/" && current()) {
      event.preventDefault();
      find(".add-label", current()).focus();
    }
  });

  // ---- begin: what an earlier page could not send comes first ----

  outbox = loadOutbox();
  storeOutbox();
  outbox.forEach((message) => findAll(".teach-item", list).find((item) => item.dataset.id === message.id)?.remove());
  window.addEventListener("online", pump);
  show();
  pump();
})();
