/* The gain, the live charts of quality and their markers, updated by server-sent events once a second. */
"use strict";

(() => {
  const box = document.querySelector("#curve");
  const live = document.querySelector("#live");
  const HEIGHT = 230;
  const MIN_POINTS = 3; // fewer are a sentence
  const REFRESH = 10000; // milliseconds between two refreshes of the quality of labels, at least
  const MARKER_COLOURS = { version: "--line-strong", votes: "--precision", labels: "--learnt", drift: "--alarm" };
  const SPAN = 5000; // milliseconds over which rows a second are counted
  const LATE = 4000; // without an event for so long, the server is away
  const NEW_SHARE = 0.3; // of the latest step in the weighted mean
  const NOISE_STEPS = 30; // latest steps that the noise is estimated from
  const MEASURES = { ndcg: "nDCG@10", precision: "P@10", map: "mAP" };

  let points = [];
  let means = []; // of the points so far: rows, version, and now, before and gain of each measure
  let markers = []; // what happened: kind, rows, version and text
  let charts = null; // until there are points enough
  let labelsAt = Date.now(); // when the quality of labels was last refreshed
  let counts = []; // time and number of items
  let tableVersion = null; // that the table shows
  let labelsTimer = null;
  let lastEvent = Date.now();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isZero = (value) => Math.abs(value).toFixed(3) === "0.000";
  const signed = (value) => (isZero(value) ? "" : value < 0 ? "-" : "+") + Math.abs(value).toFixed(3);

  // ---- the numbers ----

  /* Now, before and gain of each measure, by names such as "gain-ndcg". */
  function values(point) {
    const result = {};
    for (const name of Object.keys(MEASURES)) {
      result[`now-${name}`] = point[name];
      result[`before-${name}`] = point.before[name];
      result[`gain-${name}`] = point[name] - point.before[name];
    }
    return result;
  }

  /* The exponentially weighted mean up to each point. The first ones, where learning is fast, count for less. */
  function weightedMeans() {
    const sums = {};
    return points.map((point, n) => {
      const share = Math.max(NEW_SHARE, 2 / (n + 2));
      for (const [name, value] of Object.entries(values(point))) sums[name] = (sums[name] ?? 0) * (1 - share) + value * share;
      return { rows: point.rows, version: point.version, ...sums };
    });
  }

  /* By how much a gain is off by chance: the deviation of single steps, by the differences of neighbours. */
  function noise(name) {
    const gains = points.slice(-NOISE_STEPS).map((point) => values(point)[`gain-${name}`]);
    const squares = gains.slice(1).map((gain, n) => (gain - gains[n]) ** 2 / 2);
    return Math.sqrt(squares.reduce((sum, square) => sum + square, 0) / squares.length);
  }

  function noiseSentence() {
    if (points.length < 5) return "";
    const [step, mean] = [1, Math.sqrt(NEW_SHARE / (2 - NEW_SHARE))].map((part) =>
      ["ndcg", "precision"].map((name) => `±${(part * noise(name)).toFixed(3)} in ${MEASURES[name]}`).join(" and "),
    );
    return `By chance the gain of a single step is off by about ${step}, the line by ${mean}.`;
  }

  // ---- the charts ----

  const axis = (size, label) => ({
    size,
    label,
    labelSize: 20,
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
  });

  const line = (name) => ({ width: 2.5, stroke: () => colour(name), points: { show: () => points.length < 2, size: 6, fill: () => colour(name) } });
  const dots = (name) => ({ paths: () => null, points: { show: true, size: 5, width: 0, fill: () => colour(name) + "50" } });

  const shownKinds = () => [...document.querySelectorAll("[data-marker]:checked")].map((box) => box.dataset.marker);

  /* A line for what happened there; short ones at the foot for versions, signs at the top for the others. */
  function drawMarker(plot, marker) {
    const { ctx, bbox } = plot;
    const x = Math.round(plot.valToPos(marker.rows, "x", true));
    const pixel = devicePixelRatio;
    const top = marker.kind === "version" ? bbox.top + bbox.height - 7 * pixel : bbox.top;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour(MARKER_COLOURS[marker.kind]);
    ctx.lineWidth = 1.5 * pixel;
    if (marker.kind !== "version") ctx.setLineDash([4 * pixel, 4 * pixel]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (marker.kind !== "version") drawSign(ctx, marker.kind, x, bbox.top + 5 * pixel, 5 * pixel);
    ctx.restore();
  }

  /* The same signs as in the legend: a circle, a square, a triangle. */
  function drawSign(ctx, kind, x, y, size) {
    ctx.setLineDash([]);
    ctx.beginPath();
    if (kind === "votes") ctx.arc(x, y, size, 0, 2 * Math.PI);
    else if (kind === "labels") ctx.rect(x - size, y - size, 2 * size, 2 * size);
    else {
      ctx.moveTo(x, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.lineTo(x - size, y + size);
      ctx.closePath();
    }
    ctx.fill();
  }

  function drawMarkers(plot) {
    const kinds = shownKinds();
    for (const marker of markers) if (kinds.includes(marker.kind)) drawMarker(plot, marker);
  }

  /* What happened at the step under the pointer, in words. */
  function showMarkers(index) {
    const place = document.querySelector("#happened");
    if (index == null) place.textContent = "Point at a chart to see what happened there.";
    else {
      const kinds = shownKinds();
      const here = markers.filter((marker) => marker.rows === points[index].rows && kinds.includes(marker.kind));
      const texts = here.slice(-4).map((marker) => marker.text);
      const more = here.length > 4 ? `, and ${here.length - 4} more` : "";
      place.textContent = `At ${points[index].rows.toLocaleString("en")} labelled items: ${texts.join("; ") || "nothing more"}${more}.`;
    }
  }

  function countMarkers() {
    for (const place of document.querySelectorAll("[data-count]")) {
      const count = markers.filter((marker) => marker.kind === place.dataset.count).length;
      place.textContent = count.toLocaleString("en");
      place.closest(".marker").classList.toggle("zero", count === 0);
    }
  }

  /* A chart of some values, the weighted means as lines and the steps as dots, in these colours. */
  function chart(id, names, colours, range) {
    const place = document.querySelector(id);
    const columns = () => [
      points.map((point) => point.rows),
      ...names.map((name) => points.map((point) => values(point)[name])),
      ...names.map((name) => means.map((mean) => mean[name])),
    ];
    const options = {
      width: place.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false }, y: { range } },
      axes: [{ ...axis(30, "labelled items learnt"), space: 70 }, axis(46)],
      series: [{}, ...colours.map(dots), ...colours.map(line)],
      hooks: { draw: [drawMarkers], setCursor: [(plot) => showMeans(plot.cursor.idx), (plot) => showMarkers(plot.cursor.idx)] },
      cursor: { drag: { x: false, y: false }, sync: { key: "quality" }, points: { show: false } },
      legend: { show: false },
    };
    const plot = new uPlot(options, columns(), place);
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false, true));
    return { draw: () => plot.setData(columns()), redraw: () => plot.redraw(false, true) };
  }

  function levelRange(_, low, high) {
    if (low == null) return [0, 1];
    const margin = Math.max(0.02, (high - low) * 0.1);
    return [Math.max(0, low - margin), Math.min(1, high + margin)];
  }

  function gainRange(_, low, high) {
    if (low == null) return [0, 0.1];
    const margin = Math.max(0.01, (high - low) * 0.1);
    return [Math.min(low, 0) - margin, Math.max(high, 0) + margin];
  }

  const makeCharts = () => [
    chart("#plot-ndcg", ["before-ndcg", "now-ndcg"], ["--before", "--learnt"], levelRange),
    chart("#plot-precision", ["before-precision", "now-precision"], ["--before", "--precision"], levelRange),
    chart("#plot-gain", ["gain-ndcg", "gain-precision"], ["--learnt", "--precision"], gainRange),
  ];

  /* The means under the pointer, or the last ones, in the table. */
  function showMeans(index) {
    const mean = means[index ?? means.length - 1];
    for (const cell of document.querySelectorAll("#values [data-at]")) {
      const name = cell.dataset.at;
      const value = mean?.[name];
      if (value === undefined) cell.textContent = "–";
      else if (name === "rows" || name === "version") cell.textContent = value.toLocaleString("en");
      else cell.textContent = name.startsWith("gain") ? signed(value) : value.toFixed(3);
      if (name.startsWith("gain")) cell.classList.toggle("zero", value === undefined || isZero(value));
    }
  }

  function draw() {
    means = weightedMeans();
    box.dataset.points = points.length;
    box.querySelector(".charts").hidden = points.length < MIN_POINTS;
    showMeans(null);
    countMarkers();
    if (points.length < MIN_POINTS) return;
    charts ??= makeCharts(); // they need the space that they then have
    charts.forEach((one) => one.draw());
    document.querySelector("#noise").textContent = noiseSentence();
    const last = means[means.length - 1];
    const after = `after ${last.rows.toLocaleString("en")} labelled items, ${points.length} steps`;
    for (const name of ["ndcg", "precision"]) {
      const plot = document.querySelector(`#plot-${name}`);
      plot.setAttribute("aria-label", `${MEASURES[name]}: ${last[`now-${name}`].toFixed(3)} learnt, ${last[`before-${name}`].toFixed(3)} before learning, ${after}`);
    }
    const gains = ["ndcg", "precision"].map((name) => `${signed(last[`gain-${name}`])} in ${MEASURES[name]}`);
    document.querySelector("#plot-gain").setAttribute("aria-label", `Gain over the ranking before learning: ${gains.join(", ")}, ${after}`);
  }

  /* The sentence that leads the page, as the server words it. */
  function showGain(gain) {
    const lead = document.querySelector("#gain");
    lead.className = `panel lead ${gain.kind}`;
    lead.querySelector(".big").hidden = !gain.gains;
    const texts = { title: gain.title, sentence: gain.sentence, ...gain.gains };
    for (const [name, text] of Object.entries(texts)) {
      const place = lead.querySelector(`[data-gain=${name}]`);
      if (place.textContent !== text) place.textContent = text;
    }
  }

  function showFew(sentence) {
    const place = document.querySelector("#few");
    place.hidden = !sentence;
    place.textContent = sentence;
  }

  document.querySelector(".markers").addEventListener("change", () => charts?.forEach((one) => one.redraw()));

  // ---- the figures ----

  function show(name, value) {
    const figure = document.querySelector(`[data-figure=${name}]`);
    if (figure.textContent !== value) figure.textContent = value;
    figure.classList.toggle("zero", value === "0");
  }

  function rate(items) {
    const now = Date.now();
    counts = [...counts.filter(([when]) => now - when <= SPAN), [now, items]];
    const [since, first] = counts[0];
    const rows = now > since ? Math.max(0, items - first) / ((now - since) / 1000) : 0;
    return Math.round(rows).toLocaleString("en");
  }

  function setStatus(kind, text) {
    if (live.className === `live ${kind}`) return;
    live.className = `live ${kind}`;
    live.lastElementChild.textContent = text;
  }

  /* The table is not replaced while one of its forms is open. */
  function refreshTable(version) {
    const place = document.querySelector("#versions");
    if (tableVersion === null) tableVersion = version;
    if (tableVersion === version || place.querySelector("details[open]")) return;
    tableVersion = version;
    htmx.trigger(place, "refresh");
    htmx.trigger("#steps", "refresh");
    refreshLabels();
  }

  /* Not with every version: to measure them takes longer. */
  function refreshLabels() {
    const wait = labelsAt + REFRESH - Date.now();
    if (wait > 0) {
      clearTimeout(labelsTimer);
      labelsTimer = setTimeout(refreshLabels, wait);
      return;
    }
    labelsAt = Date.now();
    if (!document.querySelector("#labels details[open]")) htmx.trigger("#labels", "refresh");
  }

  // ---- events ----

  let source = null;

  function connect() {
    source?.close();
    source = new EventSource(box.dataset.events);
    source.addEventListener("message", (event) => update(JSON.parse(event.data)));
    source.addEventListener("failure", (event) => {
      lastEvent = Date.now();
      setStatus("off", JSON.parse(event.data).message);
    });
  }

  function update(progress) {
    lastEvent = Date.now();
    setStatus("on", "live");
    if (progress.restart) points = [];
    const seen = points.length ? points[points.length - 1].version : -1;
    const added = progress.points.filter((p) => p.version > seen);
    points = points.concat(added);
    if (progress.markers) markers = progress.markers;
    if (progress.gain) showGain(progress.gain);
    if (progress.few !== undefined) showFew(progress.few);
    if (added.length || progress.restart || progress.markers) draw();
    show("items", progress.items.toLocaleString("en"));
    show("rate", rate(progress.items));
    show("pending", progress.pending.toLocaleString("en"));
    show("version", String(progress.version));
    show("alarms", String(progress.alarms));
    refreshTable(progress.version);
  }

  connect();
  setInterval(() => {
    if (Date.now() - lastEvent <= LATE) return;
    setStatus("off", "no events from the server");
    if (source.readyState === EventSource.CLOSED) connect(); // refused, so the browser does not reconnect by itself
  }, 2000);
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => event.persisted && connect());
})();
