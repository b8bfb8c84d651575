/* The map of a collection: move, zoom, point at items and select them. map_canvas.js draws the points.
   What is in view, the highlighted label and the selection are in the address. */
"use strict";

(() => {
  const board = document.querySelector(".map");
  const [under, over] = [document.querySelector("#map-points"), document.querySelector("#map-marks")];
  const [tip, list, busy] = ["#map-tip", "#map-items", ".map-busy"].map((name) => document.querySelector(name));
  const HINT = list.innerHTML;
  const LISTED = 48; // items of a selection at a time
  const COLOURS = 8; // of labels; the others are grey
  const MAX_ZOOM = 400, NEAR = 9; // pixels
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const view = { x: 0, y: 0, zoom: 1 }; // its middle, and how much larger than when all is shown
  let points = null, colours = null, middles = [], highlighted = null, brushing = false;
  let box = null; // what is selected: left, bottom, right, top
  let chosen = [], listed = 0;
  let image = null, pixels = null, waiting = false, hovered = null, moving = null;

  // ---- the view ----

  const ratio = () => window.devicePixelRatio || 1;
  const fitScale = () => 0.92 * Math.min(over.clientWidth / points.width, over.clientHeight / points.height);
  const scaleNow = () => view.zoom * fitScale(); // css pixels of a unit
  const toScreen = (x, y) => [over.clientWidth / 2 + (x - view.x) * scaleNow(), over.clientHeight / 2 - (y - view.y) * scaleNow()];
  const toMap = (x, y) => [view.x + (x - over.clientWidth / 2) / scaleNow(), view.y - (y - over.clientHeight / 2) / scaleNow()];

  function showAll() {
    Object.assign(view, { x: points.left + points.width / 2, y: points.bottom + points.height / 2, zoom: 1 });
  }

  function moveBy(dx, dy) {
    view.x = Math.max(points.left, Math.min(points.left + points.width, view.x - dx / scaleNow()));
    view.y = Math.max(points.bottom, Math.min(points.bottom + points.height, view.y + dy / scaleNow()));
    changed();
  }

  /* Zoom so that the place under (x, y) stays there. */
  function zoomBy(factor, x = over.clientWidth / 2, y = over.clientHeight / 2) {
    const [mapX, mapY] = toMap(x, y);
    view.zoom = Math.max(0.5, Math.min(MAX_ZOOM, view.zoom * factor));
    const [nowX, nowY] = toMap(x, y);
    view.x += mapX - nowX;
    view.y += mapY - nowY;
    changed();
  }

  /* Move there in a few frames; at once where people prefer less motion. */
  function glideTo(change) {
    const from = { ...view };
    change();
    const to = { ...view }, start = performance.now();
    if (calm.matches) return changed();
    Object.assign(view, from);
    const step = (now) => {
      const share = Math.min(1, (now - start) / 180), eased = share * (2 - share);
      view.zoom = from.zoom * (to.zoom / from.zoom) ** eased;
      view.x = from.x + (to.x - from.x) * eased;
      view.y = from.y + (to.y - from.y) * eased;
      changed();
      if (share < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  let remembering = 0;
  function changed() {
    draw();
    clearTimeout(remembering);
    remembering = setTimeout(() => {
      remember();
      findPictures();
    }, 250);
  }

  function remember() {
    const address = new URL(location.href), { searchParams: params } = address;
    const short = (value) => String(Number(value.toPrecision(5)));
    const middle = [points.left + points.width / 2, points.bottom + points.height / 2];
    const whole = view.zoom === 1 && view.x === middle[0] && view.y === middle[1];
    const values = {
      view: whole ? null : [view.x, view.y, view.zoom].map(short).join(","),
      label: highlighted === null ? null : labelName(highlighted),
      box: box && box.map((value) => String(value)).join(","),
    };
    for (const [name, value] of Object.entries(values)) value === null ? params.delete(name) : params.set(name, value);
    history.replaceState(null, "", address);
  }

  function recall() {
    const params = new URLSearchParams(location.search);
    const numbers = (name, count) => {
      const values = (params.get(name) ?? "").split(",").map(Number);
      return values.length === count && values.every(Number.isFinite) ? values : null;
    };
    const seen = numbers("view", 3);
    if (seen && seen[2] > 0) Object.assign(view, { x: seen[0], y: seen[1], zoom: Math.max(0.5, Math.min(MAX_ZOOM, seen[2])) });
    const name = params.get("label"), number = points.names.findIndex(([label]) => label === name);
    highlighted = number >= 0 ? number : null;
    const stored = numbers("box", 4);
    if (stored) select(stored);
  }

  // ---- drawing ----

  function draw() {
    if (waiting || !points) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      drawNow();
    });
  }

  function drawNow() {
    const width = Math.round(over.clientWidth * ratio()), height = Math.round(over.clientHeight * ratio());
    if (!width || !height) return;
    if (!image || image.width !== width || image.height !== height) {
      for (const canvas of [under, over]) [canvas.width, canvas.height] = [width, height];
      image = under.getContext("2d").createImageData(width, height);
      pixels = new Uint32Array(image.data.buffer);
    }
    const start = performance.now();
    const device = { x: view.x, y: view.y, scale: scaleNow() * ratio() };
    const drawn = pointMap.drawPoints(pixels, width, height, points, device, radius() * ratio(), colours.points, colours.ground, highlighted);
    under.getContext("2d").putImageData(image, 0, 0);
    drawMarks();
    board.dataset.drawn = drawn;
    board.dataset.zoom = view.zoom.toPrecision(4);
    board.dataset.milliseconds = (performance.now() - start).toFixed(2);
  }

  /* Fewer points, or closer ones, are larger. */
  function radius() {
    const crowd = Math.sqrt((over.clientWidth * over.clientHeight) / Math.max(1, points.n));
    return Math.max(1.3, Math.min(5.5, 0.3 * crowd * Math.min(4, view.zoom ** 0.35)));
  }

  function drawMarks() {
    const pen = over.getContext("2d"), style = getComputedStyle(board);
    pen.setTransform(ratio(), 0, 0, ratio(), 0, 0);
    pen.clearRect(0, 0, over.clientWidth, over.clientHeight);
    const shown = moving?.brush ? moving.brush : box && [...toScreen(box[0], box[3]), ...toScreen(box[2], box[1])];
    if (shown) {
      const [x, y, w, h] = [Math.min(shown[0], shown[2]), Math.min(shown[1], shown[3]), Math.abs(shown[2] - shown[0]), Math.abs(shown[3] - shown[1])];
      pen.strokeStyle = pen.fillStyle = style.getPropertyValue("--learnt");
      pen.globalAlpha = 0.12;
      pen.fillRect(x, y, w, h);
      pen.globalAlpha = 1;
      pen.lineWidth = 1.5;
      pen.setLineDash([6, 4]);
      pen.strokeRect(x, y, w, h);
      pen.setLineDash([]);
    }
    drawPictures(pen);
    if (!close.length) drawNames(pen, style);
    if (hovered !== null) {
      const [x, y] = toScreen(points.places[2 * hovered], points.places[2 * hovered + 1]);
      for (const [line, name] of [[4, "--paper"], [2, "--text"]]) {
        pen.beginPath();
        pen.arc(x, y, radius() + 4, 0, 7);
        pen.lineWidth = line;
        pen.strokeStyle = style.getPropertyValue(name);
        pen.stroke();
      }
    }
  }

  /* The names of labels in the middle of their points, where they do not cover each other. */
  function drawNames(pen, style) {
    const taken = [];
    pen.font = `600 ${over.clientWidth < 500 ? 12 : 14}px system-ui, sans-serif`;
    [pen.textAlign, pen.textBaseline, pen.lineJoin, pen.lineWidth] = ["center", "middle", "round", 4];
    for (const { label, x, y } of middles) {
      if (highlighted !== null && label !== highlighted) continue;
      const name = labelName(label).length > 24 ? labelName(label).slice(0, 23) + "…" : labelName(label);
      const [left, top] = toScreen(x, y), half = pen.measureText(name).width / 2 + 4;
      if (left < 0 || top < 0 || left > over.clientWidth || top > over.clientHeight) continue;
      if (taken.some((other) => Math.abs(other.left - left) < other.half + half && Math.abs(other.top - top) < 20)) continue;
      taken.push({ left, top, half });
      pen.strokeStyle = style.getPropertyValue("--map-ground");
      pen.fillStyle = style.getPropertyValue("--text");
      pen.globalAlpha = 0.85;
      pen.strokeText(name, left, top);
      pen.globalAlpha = 1;
      pen.fillText(name, left, top);
    }
  }

  /* The median of the points of each label, of those that are not predicted where there are any. */
  function findMiddles() {
    const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    const own = Array.from(points.names, () => [[], []]), all = Array.from(points.names, () => [[], []]);
    for (let i = 0; i < points.n; i++) {
      if (points.labels[i] >= points.names.length) continue;
      for (const groups of points.predicted[i] ? [all] : [own, all]) {
        groups[points.labels[i]][0].push(points.places[2 * i]);
        groups[points.labels[i]][1].push(points.places[2 * i + 1]);
      }
    }
    const middle = (label) => (own[label][0].length ? own[label] : all[label]).map(median);
    return points.names.map((_, label) => label).filter((label) => all[label][0].length).map((label) => {
      const [x, y] = middle(label);
      return { label, x, y };
    });
  }

  // ---- colours and the legend ----

  const labelName = (number) => points.names[number][0];

  function parseColour(text) {
    const hex = text.trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }
  const pack = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
  const blend = (colour, ground, share) => colour.map((value, i) => Math.round(value * share + ground[i] * (1 - share)));

  function colourPoints() {
    const style = getComputedStyle(board), read = (name) => parseColour(style.getPropertyValue(name));
    const ground = read("--map-ground"), other = read("--map-other"), none = read("--map-none");
    const named = Array.from({ length: COLOURS }, (_, n) => read(`--map-${n + 1}`));
    const faint = pack(blend(none, ground, 0.45)), table = new Uint32Array(512);
    for (let label = 0; label < 256; label++) {
      const colour = label === 255 ? none : named[label] ?? other;
      table[2 * label] = pack(colour);
      table[2 * label + 1] = pack(blend(colour, ground, 0.55)); // predicted
      if (highlighted !== null && label !== highlighted) table[2 * label] = table[2 * label + 1] = faint;
      else if (highlighted !== null && label >= COLOURS) table.fill(pack(read("--learnt")), 2 * label, 2 * label + 2);
    }
    colours = { ground: pack(ground), points: new Uint32Array(points.n) };
    for (let i = 0; i < points.n; i++) colours.points[i] = table[2 * points.labels[i] + points.predicted[i]];
  }

  function showLegend() {
    const legend = board.querySelector(".map-legend"), counts = new Uint32Array(256);
    for (const label of points.labels) counts[label]++;
    const others = points.labels.reduce((sum, label) => sum + (label >= COLOURS && label < 255), 0);
    const button = (number, name, count, colour) => {
      const one = document.createElement("button");
      one.type = "button";
      one.className = "small";
      one.dataset.label = number;
      one.setAttribute("aria-pressed", String(highlighted === number));
      const dot = Object.assign(document.createElement("span"), { className: "dot" });
      dot.style.background = `var(${colour})`;
      const text = Object.assign(document.createElement("bdi"), { textContent: name });
      const size = Object.assign(document.createElement("span"), { className: "count", textContent: count.toLocaleString("en") });
      one.append(dot, text, size);
      return one;
    };
    const parts = points.names.slice(0, COLOURS).map(([name], n) => button(n, name, counts[n], `--map-${n + 1}`));
    if (highlighted !== null && highlighted >= COLOURS) parts.push(button(highlighted, labelName(highlighted), counts[highlighted], "--learnt"));
    if (points.names.length > COLOURS) {
      const more = document.createElement("select");
      more.setAttribute("aria-label", "Highlight another label");
      more.append(new Option(`${(points.names.length - COLOURS).toLocaleString("en")} more labels (${others.toLocaleString("en")})`, ""));
      points.names.slice(COLOURS).forEach(([name, count], n) => more.append(new Option(`${name} (${count})`, n + COLOURS)));
      if (highlighted !== null && highlighted >= COLOURS) more.value = highlighted;
      const wrapped = Object.assign(document.createElement("span"), { className: "more-labels" });
      const dot = Object.assign(document.createElement("span"), { className: "dot" });
      dot.style.background = "var(--map-other)";
      wrapped.append(dot, more);
      parts.push(wrapped);
    }
    if (counts[255]) {
      const none = Object.assign(document.createElement("span"), { className: "no-label", textContent: `no label ${counts[255].toLocaleString("en")}` });
      const dot = Object.assign(document.createElement("span"), { className: "dot" });
      dot.style.background = "var(--map-none)";
      none.prepend(dot);
      parts.push(none);
    }
    if (points.predicted.some(Boolean)) parts.push(Object.assign(document.createElement("p"), { className: "muted", textContent: "Paler: predicted, the item has no label." }));
    legend.replaceChildren(...parts);
  }

  function highlight(number) {
    highlighted = highlighted === number ? null : number;
    const active = document.activeElement?.dataset?.label;
    colourPoints();
    showLegend();
    if (active !== undefined) board.querySelector(`.map-legend [data-label="${active}"]`)?.focus();
    changed();
  }

  // ---- selecting and listing items ----

  function select(rectangle) {
    box = rectangle;
    choose(pointMap.pointsWithin(points, ...box));
    changed();
  }

  function choose(numbers) {
    [chosen, listed] = [numbers, 0];
    board.dataset.chosen = numbers.length;
    listMore();
  }

  async function listMore() {
    const part = chosen.slice(listed, listed + LISTED), first = listed;
    const params = new URLSearchParams({ key: board.dataset.key, points: part.join(","), total: chosen.length, first });
    if (box) params.set("box", box.join(","));
    listed += part.length;
    const target = first ? list.querySelector(".map-cards") : list;
    const last = list.querySelector("[data-map=more]"), focused = last !== null && last === document.activeElement;
    last?.remove();
    await htmx.ajax("GET", `${board.dataset.items}?${params}`, { target, swap: first ? "beforeend" : "innerHTML" });
    if (first === 0) describeMix();
    if (listed < chosen.length) {
      const more = Object.assign(document.createElement("button"), { type: "button", className: "small", textContent: `Show more (${(chosen.length - listed).toLocaleString("en")} left)` });
      more.dataset.map = "more";
      list.append(more);
      if (focused) more.focus();
    } else if (focused) {
      list.querySelectorAll(".map-card a")[first]?.focus();
    }
  }

  /* Which main labels the selection has, the most frequent first. */
  function describeMix() {
    const counts = new Map(), head = list.querySelector(".map-chosen");
    for (const i of chosen) counts.set(points.labels[i], (counts.get(points.labels[i]) ?? 0) + 1);
    const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4);
    const names = most.map(([label, count]) => `${label === 255 ? "no label" : label < points.names.length ? labelName(label) : "others"} ${count.toLocaleString("en")}`);
    if (head && chosen.length > 1) head.after(Object.assign(document.createElement("p"), { className: "muted map-mix", textContent: names.join(", ") + (counts.size > 4 ? ", …" : "") }));
  }

  function clearSelection() {
    box = null;
    chosen = [];
    delete board.dataset.chosen;
    list.innerHTML = HINT;
    changed();
  }

  function setBrushing(on) {
    brushing = on;
    board.querySelector("[data-map=brush]").setAttribute("aria-pressed", String(on));
    board.classList.toggle("brushing", on);
  }

  function selectView() {
    const [left, top] = toMap(0, 0), [right, bottom] = toMap(over.clientWidth, over.clientHeight);
    select([left, bottom, right, top]);
  }

  // ---- the tip of a point ----

  const known = new Map(); // what is shown of a point
  let pointing = 0;

  function hover(number, x, y) {
    if (number !== hovered) {
      hovered = number;
      drawMarks();
      tip.hidden = true;
      clearTimeout(pointing);
      if (number !== null) pointing = setTimeout(() => showTip(number), known.has(number) ? 0 : 90);
    }
    if (number === null) return;
    const left = x + 16 + 190 > over.clientWidth ? x - 196 : x + 16;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, Math.min(over.clientHeight - 150, y - 40))}px)`;
  }

  /* Fetch what is shown of these points, unless it is known. */
  async function fetchItems(numbers) {
    const missing = numbers.filter((number) => !known.has(number)).slice(0, LISTED);
    if (!missing.length) return;
    const params = new URLSearchParams({ key: board.dataset.key, points: missing.join(",") });
    const answer = await fetch(`${board.dataset.items}?${params}`, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (!answer?.ok) return;
    if (known.size > 1000) known.clear();
    for (const card of new DOMParser().parseFromString(await answer.text(), "text/html").querySelectorAll(".map-card")) {
      const labels = [...card.querySelectorAll(".chips bdi")].map((label) => label.textContent);
      const [picture, text] = [card.querySelector("img")?.getAttribute("src"), card.querySelector(".passage")?.textContent];
      known.set(Number(card.dataset.point), { picture, text, id: card.querySelector(".id bdi").textContent, labels });
    }
  }

  async function showTip(number) {
    await fetchItems([number]);
    if (number !== hovered || !known.has(number)) return;
    const { picture, text, id, labels } = known.get(number), shown = tip.querySelector("img");
    shown.hidden = !picture;
    if (picture) shown.src = picture;
    const name = Object.assign(document.createElement("strong"), { textContent: id });
    tip.querySelector("p").replaceChildren(name, document.createElement("br"), text ? text.slice(0, 160) : labels.join(", ") || describeGuess(number));
    tip.hidden = false;
  }

  // ---- pictures, where few points are in view ----

  const PICTURE = 46; // pixels
  let close = []; // the points that are shown as pictures

  async function findPictures() {
    const [left, top] = toMap(0, 0), [right, bottom] = toMap(over.clientWidth, over.clientHeight);
    const within = pointMap.pointsWithin(points, left, bottom, right, top);
    close = within.length <= 2 * LISTED ? within : [];
    await fetchItems(close);
    await fetchItems(close); // the other half
    for (const number of close) {
      const item = known.get(number);
      if (!item?.picture || item.image) continue;
      item.image = new Image();
      item.image.onload = drawMarks;
      item.image.src = item.picture;
    }
    drawMarks();
  }

  function drawPictures(pen) {
    let count = 0;
    for (const number of close) {
      const image = known.get(number)?.image;
      if (!image?.complete || !image.naturalWidth) continue;
      const [x, y] = toScreen(points.places[2 * number], points.places[2 * number + 1]), colour = colours.points[number];
      const size = PICTURE / Math.max(image.naturalWidth, image.naturalHeight), [w, h] = [image.naturalWidth * size, image.naturalHeight * size];
      pen.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
      pen.fillRect(x - w / 2 - 2.5, y - h / 2 - 2.5, w + 5, h + 5);
      pen.drawImage(image, x - w / 2, y - h / 2, w, h);
      count++;
    }
    board.dataset.pictures = count;
  }

  const describeGuess = (number) => (points.predicted[number] && points.names[points.labels[number]] ? `no labels; predicted: ${labelName(points.labels[number])}` : "no labels");
  const pointAt = (x, y, reach = NEAR) => pointMap.nearestPoint(points, ...toMap(x, y), reach / scaleNow());

  // ---- pointers ----

  const pressed = new Map(); // pointers that are down
  const place = (event) => {
    const { left, top } = over.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };

  over.addEventListener("pointerdown", (event) => {
    if (!points || event.button > 0) return;
    over.setPointerCapture(event.pointerId);
    const [x, y] = place(event);
    pressed.set(event.pointerId, [x, y]);
    const wantsBrush = pressed.size === 1 && (brushing || event.shiftKey);
    moving = { x, y, far: false, brush: wantsBrush ? [x, y, x, y] : null };
    hover(null);
  });

  over.addEventListener("pointermove", (event) => {
    if (!points) return;
    const [x, y] = place(event), before = pressed.get(event.pointerId);
    if (!before) return hover(pointAt(x, y), x, y);
    pressed.set(event.pointerId, [x, y]);
    if (Math.hypot(x - moving.x, y - moving.y) > 3) moving.far = true;
    if (pressed.size === 2) return pinch(event.pointerId, before);
    if (moving.brush) {
      moving.brush = [moving.brush[0], moving.brush[1], x, y];
      drawMarks();
    } else if (moving.far) moveBy(x - before[0], y - before[1]);
  });

  function pinch(id, before) {
    const now = pressed.get(id), [other] = [...pressed].filter(([one]) => one !== id).map(([, at]) => at);
    moving.brush = null;
    moving.far = true;
    const ratioOf = Math.hypot(now[0] - other[0], now[1] - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1]));
    moveBy((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    zoomBy(ratioOf, (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  }

  function release(event) {
    if (!pressed.delete(event.pointerId) || !moving) return;
    const { brush, far } = moving;
    if (pressed.size) return;
    moving = null;
    if (event.type === "pointercancel") return drawMarks();
    if (brush && far) {
      const [a, b] = [toMap(brush[0], brush[1]), toMap(brush[2], brush[3])];
      setBrushing(false);
      select([Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])]);
    } else if (!far) {
      const [x, y] = place(event), number = pointAt(x, y, event.pointerType === "mouse" ? NEAR : 18);
      if (number !== null) {
        box = null;
        choose([number]);
        changed();
      }
      if (number !== null && event.pointerType !== "mouse") hover(number, x, y);
    }
    drawMarks();
  }
  over.addEventListener("pointerup", release);
  over.addEventListener("pointercancel", release);
  over.addEventListener("pointerleave", () => hover(null));

  over.addEventListener("wheel", (event) => {
    if (!points) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    zoomBy(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0018)), ...place(event));
    hover(null);
  }, { passive: false });

  // ---- keys and buttons ----

  const ACTIONS = {
    in: () => glideTo(() => zoomBy(1.6)),
    out: () => glideTo(() => zoomBy(1 / 1.6)),
    fit: () => glideTo(showAll),
    brush: () => setBrushing(!brushing),
    view: selectView,
    clear: clearSelection,
    more: listMore,
  };
  const STEP = 60; // pixels
  const KEYS = {
    ArrowLeft: () => moveBy(STEP, 0), ArrowRight: () => moveBy(-STEP, 0), ArrowUp: () => moveBy(0, STEP), ArrowDown: () => moveBy(0, -STEP),
    "+": ACTIONS.in, "=": ACTIONS.in, "-": ACTIONS.out, 0: ACTIONS.fit, b: ACTIONS.brush, Enter: selectView,
    Escape: () => (brushing ? setBrushing(false) : clearSelection()),
  };

  board.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    if (!act || !points || (event.target !== over && event.key !== "Escape")) return;
    event.preventDefault();
    act();
  });

  board.addEventListener("click", (event) => {
    const button = event.target.closest("[data-map]"), label = event.target.closest("button[data-label]");
    if (!points) return;
    if (button) ACTIONS[button.dataset.map]();
    if (label) highlight(Number(label.dataset.label));
  });
  board.addEventListener("change", (event) => {
    if (event.target.matches(".map-legend select")) highlight(event.target.value === "" ? highlighted : Number(event.target.value));
  });
  list.addEventListener("pointerover", (event) => {
    const card = event.target.closest("[data-point]");
    hovered = card ? Number(card.dataset.point) : null;
    drawMarks();
  });

  // ---- the beginning ----

  async function begin() {
    const answer = await fetch(`${board.dataset.points}?${new URLSearchParams({ key: board.dataset.key })}`, { headers: { "HX-Request": "true" } });
    if (!answer.ok) {
      busy.textContent = answer.status === 409 ? "The collection has changed meanwhile. Load the page again." : "The points could not be loaded.";
      return;
    }
    points = pointMap.parsePoints(await answer.arrayBuffer());
    middles = findMiddles();
    busy.hidden = true;
    showAll();
    recall();
    colourPoints();
    showLegend();
    drawNow();
    findPictures();
    new ResizeObserver(draw).observe(over);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      colourPoints();
      draw();
    });
  }
  begin();
})();
