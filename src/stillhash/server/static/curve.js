/* The live charts of quality and the figures above them, updated by server-sent events once a second. */
"use strict";

(() => {
  const box = document.querySelector("#curve");
  const live = document.querySelector("#live");
  const HEIGHT = 230;
  const SPAN = 5000; // milliseconds over which rows a second are counted
  const LATE = 4000; // without an event for so long, the server is away
  const NEW_SHARE = 0.3; // of the latest step in the weighted mean
  const NOISE_STEPS = 30; // latest steps that the noise is estimated from
  const MEASURES = { ndcg: "nDCG@10", precision: "P@10", map: "mAP" };

  let points = [];
  let means = []; // of the points so far: rows, version, and now, before and gain of each measure
  let counts = []; // time and number of items
  let tableVersion = null; // that the table shows
  let lastEvent = Date.now();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const signed = (value) => (value < -0.0005 ? "-" : "+") + Math.abs(value).toFixed(3);

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

  function vertical(plot, at, name) {
    const { ctx, bbox } = plot;
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.save();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  const drawAlarms = (plot) => points.filter((point) => point.drift).forEach((point) => vertical(plot, point.rows, "--alarm"));

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
      axes: [{ ...axis(30, "labelled rows learnt"), space: 70 }, axis(46)],
      series: [{}, ...colours.map(dots), ...colours.map(line)],
      hooks: { draw: [drawAlarms], setCursor: [(plot) => showMeans(plot.cursor.idx)] },
      cursor: { drag: { x: false, y: false }, sync: { key: "quality" }, points: { show: false } },
      legend: { show: false },
    };
    const plot = new uPlot(options, columns(), place);
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false, true));
    return { place, draw: () => plot.setData(columns()) };
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

  const charts = [
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
    }
  }

  function draw() {
    means = weightedMeans();
    charts.forEach((one) => one.draw());
    showMeans(null);
    box.querySelector(".empty").hidden = points.length > 0;
    box.dataset.points = points.length;
    document.querySelector("#noise").textContent = noiseSentence();
    const last = means[means.length - 1];
    if (!last) return;
    const after = `after ${last.rows.toLocaleString("en")} labelled rows, ${points.length} steps`;
    for (const name of ["ndcg", "precision"]) {
      show(name, last[`now-${name}`].toFixed(3));
      show(`${name}-gain`, signed(last[`gain-${name}`]));
      const plot = document.querySelector(`#plot-${name}`);
      plot.setAttribute("aria-label", `${MEASURES[name]}: ${last[`now-${name}`].toFixed(3)} learnt, ${last[`before-${name}`].toFixed(3)} before learning, ${after}`);
    }
    const gains = ["ndcg", "precision"].map((name) => `${signed(last[`gain-${name}`])} in ${MEASURES[name]}`);
    document.querySelector("#plot-gain").setAttribute("aria-label", `Gain over the ranking before learning: ${gains.join(", ")}, ${after}`);
  }

  // ---- the figures ----

  function show(name, value) {
    const figure = document.querySelector(`[data-figure=${name}]`);
    if (figure.textContent !== value) figure.textContent = value;
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
    if (added.length || progress.restart) draw();
    show("items", progress.items.toLocaleString("en"));
    show("rate", rate(progress.items));
    show("pending", progress.pending.toLocaleString("en"));
    show("version", String(progress.version));
    show("alarms", String(progress.alarms));
    document.querySelector(".figures .alarm").classList.toggle("none", !progress.alarms);
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
